"""Light queues of a partition over its chain of segments (docs/light-queues.md): what every reader of them above this
file goes through, as `PartitionReader` is for partitions.

A row has the offset in its light queue that the broker gave it, moved as the offsets of the partition are: by where its
segment lies. So a light queue begins anew in each segment, at the partition's offset of its first record there, and the
rule of one broker (L2 in store/light_names.py) holds for the chain: no record has an offset that its queue had before,
whatever became of the brokers that gave those. Nothing of a light queue goes along with a partition.

    dense        within a segment. Where the partition has moved, the offsets of the queue jump up, to within the next
                 segment: readers go on there
    end          the one in the open segment; of a queue without records there, the partition's
    a read       begins in the segment that its offset lies in, and goes on from one to the next until it finds records;
                 one that cannot be reached now is an error, never passed over, unless it has nothing left
    Kafka        a segment on a Kafka cluster has none: sends that name light queues were refused there. While it is the
                 open one all is refused (NoLightQueues): nothing is accepted that could not be read

Errors are those of the brokers, NoLightQueues and UnknownQueue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

from gateway.brokers.base import LightQueues
from gateway.routing.base import Route, Routes
from gateway.routing.reading import first_shown, segment_at, shifted
from store.errors import NoLightQueues, StoreError
from store.types import Bounds, Entry, LightRead, LightRecord


def light_route(routes: Routes, topic: str, partition: int) -> tuple[Route, LightQueues]:
    """Where records of light queues of a partition go. Raises NoLightQueues where there are none, UnknownQueue."""
    route = routes.writable(topic, partition)
    if not _keeps_light(type(route.broker)):
        raise NoLightQueues(f"partition {partition} of topic {topic} is on a broker that has no light queues")
    return route, cast(LightQueues, route.broker)


@cache
def _keeps_light(kind: type) -> bool:
    """Whether brokers of a kind are `LightQueues`: to look for its methods takes 20 us, and each push would ask."""
    return issubclass(kind, LightQueues)


class LightPartitionReader:
    """Reads the light queues of the topics in a route table, partition by partition."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def end(self, topic: str, name: bytes, partition: int) -> int:
        """The lowest offset that the next record may get: no offset of the queue is as high."""
        route, broker = light_route(self._routes, topic, partition)
        return route.to_logical(max((await broker.light_bounds(route.queue, name)).max_offset, route.physical_start))

    async def stretches(self, topic: str, name: bytes, partition: int) -> list[Bounds]:
        """Where the queue has records, segment by segment: dense in each. None: it has none."""
        light_route(self._routes, topic, partition)
        chain = self._routes.chain(topic, partition)
        found = []
        for segment in chain[await _first_light(chain) :]:
            if _keeps_light(type(segment.broker)):
                own = await cast(LightQueues, segment.broker).light_bounds(segment.queue, name)
                low = segment.to_logical(max(own.min_offset, segment.physical_start))
                if low < (high := segment.to_logical(own.max_offset)):
                    found.append(Bounds(low, high))
        return found

    async def bounds(self, topic: str, name: bytes, partition: int) -> Bounds:
        """The offset of the queue's first record, and the one behind its last; of one without records, its end."""
        found = await self.stretches(topic, name, partition)
        if found:
            return Bounds(found[0].min_offset, found[-1].max_offset)
        end = await self.end(topic, name, partition)
        return Bounds(end, end)

    async def names(self, topic: str, partition: int, prefix: bytes, *, after: bytes, count: int) -> set[bytes]:
        """Names behind `after` that begin with `prefix`, of queues that have rows: the first `count` of each
        segment."""
        light_route(self._routes, topic, partition)
        chain = self._routes.chain(topic, partition)
        found: set[bytes] = set()
        for segment in chain[await _first_light(chain) :]:
            if _keeps_light(type(segment.broker)):
                broker = cast(LightQueues, segment.broker)
                found.update(await broker.light_names(segment.queue, prefix, after=after, count=count))
        return found

    async def read(
        self, topic: str, name: bytes, partition: int, offset: int, *, max_records: int, max_bytes: int
    ) -> LightRead:
        """As `Store.read_light`, of one segment, in the offsets of the light queue and of the partition."""
        light_route(self._routes, topic, partition)
        chain = self._routes.chain(topic, partition)
        raw_keys = self._routes.topic(topic).raw_keys  # before the read: a later topic of this name may have others
        at = segment_at(chain, offset)
        if at < len(chain) - 1:
            at = max(at, await _first_light(chain))
        while True:
            segment = chain[at]
            at += 1
            if _keeps_light(type(segment.broker)):
                broker = cast(LightQueues, segment.broker)
                physical = max(segment.to_physical(offset), segment.physical_start)
                read = await broker.read_light(
                    segment.queue, name, physical, max_records=max_records, max_bytes=max_bytes
                )
                if not read.records and await _is_sealed_now(segment):
                    read = await broker.read_light(
                        segment.queue, name, physical, max_records=max_records, max_bytes=max_bytes
                    )
                if read.records or at == len(chain):
                    break
        shift = segment.logical_start - segment.physical_start
        records = _shifted(read.records, shift) if shift else read.records
        for record in records:
            record.entry.raw_keys = raw_keys  # of its topic, never another: it may be others' entry as well
        end = read.max_offset + shift if at == len(chain) else await self.end(topic, name, partition)
        return LightRead(records, end, read.next_offset + shift)

    def tail(self, topic: str, name: bytes, partition: int, end: int) -> LightTail:
        """For a reader that has come to this end. Raises NoLightQueues, UnknownQueue, IndexDamaged."""
        return LightTail(self._routes, topic, name, partition, end)

    def follow(self, topic: str, name: bytes, partition: int, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever the queue has got records, wherever its partition is, and whenever that may be; until
        the answer is called. Not within this call: who reads after it misses nothing. Raises NoLightQueues,
        UnknownQueue."""
        return _Following(self._routes, topic, name, partition, wake).call_off


class LightTail:
    """The end of a light queue of a partition, where one reader waits again and again. It is told of what comes for as
    long as the reader follows the queue: so a record that finds it waiting is at hand, and neither the record nor the
    end behind it is looked up.

        wait    the first record that comes is kept for `take`. What comes behind it, or to a reader that does not wait,
                or cannot be told, is news: there is more than it knows of
        read    begins with `reading`. What comes from then on is news
        moved   the partition, or gone: it is off. The reader is woken, and reads
        call    ends it

    There is one for each socket: what is made anew with each push the garbage collector has to look at.
    """

    __slots__ = ("_call_offs", "_has_news", "_raw_keys", "_shift", "_told", "_wake", "is_on")

    def __init__(self, routes: Routes, topic: str, name: bytes, partition: int, end: int) -> None:
        self._wake: Callable[[], None] | None = None  # of who waits
        self._told: LightRecord | None = None  # the first one that came meanwhile
        self._has_news = False
        self.is_on = True
        route, broker = light_route(routes, topic, partition)
        self._shift = route.logical_start - route.physical_start
        self._raw_keys = routes.topic(topic).raw_keys
        self._call_offs: tuple[Callable[[], None], ...] = (
            broker.watch_light(route.queue, name, route.to_physical(end), self._came),
            routes.watch(topic, partition, self._moved),
        )

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when there is something to `take` or to read; not within this call."""
        self._wake = wake
        if self._has_news:
            asyncio.get_running_loop().call_soon(self._wake_up)

    def take(self, offset: int) -> LightRecord | None:
        """The record behind all that the reader had when it began to wait at `offset`. None: read."""
        told, self._told = self._told, None
        if told is None:
            return None
        if self._shift:
            [told] = _shifted([told], self._shift)
        told.entry.raw_keys = self._raw_keys
        return told if told.offset >= offset else None

    def reading(self) -> None:
        """The reader is about to look where it is."""
        self._told, self._has_news = None, False

    def __call__(self) -> None:
        """Wait no more, and hear of nothing."""
        self.is_on, self._wake, self._told = False, None, None
        call_offs, self._call_offs = self._call_offs, ()
        for call_off in call_offs:
            call_off()

    def _came(self, told: LightRecord | None) -> None:
        if self._wake is None or told is None or self._has_news:
            self._told, self._has_news = None, True
        else:
            self._told = told
        self._wake_up()

    def _moved(self) -> None:
        wake = self._wake
        self()
        if wake is not None:
            wake()

    def _wake_up(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()


class _Following:
    """Moves along with a partition."""

    __slots__ = ("_call_off", "_call_off_route", "_name", "_partition", "_routes", "_topic", "_wake")

    def __init__(self, routes: Routes, topic: str, name: bytes, partition: int, wake: Callable[[], None]) -> None:
        self._routes, self._topic, self._name, self._partition, self._wake = routes, topic, name, partition, wake
        self._call_off = self._watch()
        self._call_off_route = routes.watch(topic, partition, self._moved)

    def _watch(self) -> Callable[[], None]:
        route, broker = light_route(self._routes, self._topic, self._partition)
        return broker.watch_light(route.queue, self._name, None, self._came)

    def _came(self, _: LightRecord | None) -> None:
        self._wake()

    def _moved(self) -> None:
        self._call_off()
        try:
            self._call_off = self._watch()
        except StoreError:  # whoever is woken meets it
            self._call_off = _nothing
        self._wake()

    def call_off(self) -> None:
        self._call_off()
        self._call_off_route()


def _nothing() -> None:
    """There is nothing to call off."""


async def _first_light(chain: Sequence[Route]) -> int:
    """The index of the first segment that has records, or may get some."""
    if len(chain) == 1:
        return 0
    at, low, _ = await first_shown(chain)
    return at + 1 if low == chain[at].physical_end else at


async def _is_sealed_now(segment: Route) -> bool:
    """Whether a segment that may end anywhere before the next one begins, as it was taken over, has only just been
    sealed: it may have got records before that."""
    end = segment.physical_end
    if end is None or (await segment.broker.bounds(segment.queue)).max_offset >= end:
        return False
    await segment.broker.seal_queue(segment.queue)
    return True


def _shifted(records: Sequence[LightRecord], shift: int) -> list[LightRecord]:
    entries: dict[int, Entry] = {}
    for record in records:
        if record.entry.position not in entries:
            entries[record.entry.position] = shifted(record.entry, shift)
    return [
        LightRecord(record.offset + shift, entries[record.entry.position], record.record_index) for record in records
    ]

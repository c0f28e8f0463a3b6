"""Reading a partition and waiting at its end: every way out (pull, long poll, stream, socket, consumer instance) goes
through here, in logical offsets.

A partition may be a chain of queues on several brokers: `routing/` reads it in the partition's offsets, so no module
above it knows about queues.

A read never waits: who holds something for its answer gives that back before it waits for a node that restarts
(gateway/routing/patience.py). Bounds and searches by time do wait for one. A caller at the end of partitions is woken
by `watch` (one call for one end) or `watching` (several ends, for the length of a block), and reads again. Deadlines,
least amounts of bytes, rights that end and a server that shuts down are the surface's: it knows what it owes its
client. What a wake-up says is only that reading is worth another try, so a partition that is gone or fails wakes too,
and the read says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import NamedTuple

from gateway.api.turns import ITEMS_PER_TURN
from gateway.brokers.base import BrokerUnreachable
from gateway.errors import EPOCH_CHANGED, OFFSET_OUT_OF_RANGE, RequestError, invalid
from gateway.routing.base import Routes, TopicView, UnknownPartition
from gateway.routing.patience import patiently
from gateway.routing.reading import PartitionReader
from gateway.routing.tail_watcher import TailWatcher, Wake
from store.turns import others_turn
from store.types import OFFSET_MAX, Boundary, Bounds, Entry, ReadStatus


class Fetched(NamedTuple):
    """Whole entries, as `store.types.ReadResult`, in the partition's offsets."""

    entries: list[Entry]
    status: ReadStatus
    min_offset: int
    max_offset: int
    next_offset: int


class Tail(NamedTuple):
    """A partition, and its end as a reader last saw it."""

    topic: str
    partition: int
    end: int


class AtTime(NamedTuple):
    """An offset given by time: that of the first record stored at or after it."""

    time_ms: int


OffsetSpec = int | str | AtTime
"""An offset, counted from the end when negative; "earliest"; "latest"; such a number as a string; or a time."""


class Consumer:
    """Reads partitions of the topics in a route table. `tail_watcher` is shared with all others who wait."""

    def __init__(self, routes: Routes, tail_watcher: TailWatcher | None = None) -> None:
        self._routes = routes
        self._reader = PartitionReader(routes)
        tail_watcher = tail_watcher or TailWatcher(routes)
        self.watch, self.is_end = tail_watcher.watch, tail_watcher.is_end

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> Fetched:
        """Whole entries from the one containing `offset` on: at least one if there is any, then up to `max_bytes`, and
        none that begins at or behind `end_offset`.

        The status says why a read came back empty. With `tag_hashes`, entries without a record of such a tag are passed
        over (NO_MATCH when none had one, `next_offset` says how far was looked). Raises UnknownQueue, UnknownPartition,
        or another StoreError.
        """
        self._check(topic, partition)
        status, entries, low, high, next_offset = await self._reader.read(
            topic, partition, offset, max_bytes=max_bytes, end_offset=end_offset, tag_hashes=tag_hashes
        )
        return Fetched(entries, status, low, high, next_offset)

    def watching(self, tails: Sequence[Tail], wake: Wake) -> AbstractAsyncContextManager[None]:
        """Within the block, call `wake` when one of these ends has moved or cannot be told: once for each at most. Of
        many, a few are watched in each turn of the event loop: an end that is not known is asked for by a task."""
        return _Watching(self, tails, wake)

    async def bounds(self, topic: str, partition: int) -> Bounds:
        """The first readable offset, and the one the next record will get. Raises as `fetch`."""
        self._check(topic, partition)
        try:
            return await self._reader.bounds(topic, partition)
        except BrokerUnreachable as error:
            return await patiently(partial(self._reader.bounds, topic, partition), error)

    async def offset_for_time(
        self, topic: str, partition: int, time_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """LOWER: the offset of the first record stored at or after `time_ms`, the end offset when there is none. UPPER:
        of the last one stored at or before it, the first offset when there is none. DATED: where a search by the time
        of the records themselves begins. Raises as `fetch`."""
        self._check(topic, partition)
        search = partial(self._reader.offset_for_time, topic, partition, time_ms, boundary)
        try:
            return await search()
        except BrokerUnreachable as error:
            return await patiently(search, error)

    async def resolve_offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        """The offset a reader who asked for `spec` begins at. Numbers from 0 on pass as they are, in bounds or not.

        Raises RequestError 422 for a string that is none of the forms, else as `fetch`.
        """
        if isinstance(spec, AtTime):
            return await self.offset_for_time(topic, partition, spec.time_ms)
        if isinstance(spec, str):
            if spec == "earliest":
                return (await self.bounds(topic, partition)).min_offset
            if spec == "latest":
                return (await self.bounds(topic, partition)).max_offset
            spec = _parse_offset(spec)
        if spec >= 0:
            self._check(topic, partition)
            return spec
        low, high = await self.bounds(topic, partition)
        return max(low, high + spec)

    async def start_offset(self, topic: str, partition: int, spec: OffsetSpec, reset: str | None = None) -> int:
        """As `resolve_offset`, within the partition's bounds: an offset outside of them becomes the one that `reset`
        names ("earliest" or "latest"). Raises RequestError 416/41601 without it, else as `resolve_offset`."""
        offset = await self.resolve_offset(topic, partition, spec)
        if isinstance(spec, int):  # anything else was found within the bounds
            bounds = await self.bounds(topic, partition)
            if not bounds.min_offset <= offset <= bounds.max_offset:
                if reset is None:
                    raise out_of_range(topic, partition, offset, bounds)
                return bounds.min_offset if reset == "earliest" else bounds.max_offset
        return offset

    async def check_epoch(self, topic: TopicView, epoch: str | None) -> None:
        """Offsets are good for the topic they came from, not for a later one of the same name. `epoch`: that topic's
        id, None when it is not known. Raises RequestError 409/40953 with the bounds of the topic there is now."""
        if epoch in (None, str(topic.topic_id)):
            return
        bounds = [await self.bounds(topic.name, partition) for partition in range(topic.partitions)]
        raise RequestError(
            EPOCH_CHANGED,
            f"Topic {topic.name} was deleted and made again: the cursor's offsets are not its own. Begin without it.",
            details={
                "topic": topic.name,
                "epoch": str(topic.topic_id),
                "partitions": [
                    {"partition": partition, "beginning_offset": low, "end_offset": high}
                    for partition, (low, high) in enumerate(bounds)
                ],
            },
        )

    def _check(self, topic: str, partition: int) -> None:
        count = self._routes.topic(topic).partitions
        if not 0 <= partition < count:
            raise UnknownPartition(f"topic={topic} has partitions 0 to {count - 1}, not {partition}")


class _Watching(AbstractAsyncContextManager[None]):
    """See `Consumer.watching`. No generator, as `when_set`."""

    __slots__ = ("_call_offs", "_consumer", "_tails", "_wake")

    def __init__(self, consumer: Consumer, tails: Sequence[Tail], wake: Wake) -> None:
        self._consumer, self._tails, self._wake = consumer, tails, wake
        self._call_offs: list[Callable[[], None]] = []

    async def __aenter__(self) -> None:
        is_long = len(self._tails) > ITEMS_PER_TURN
        try:
            for number, tail in enumerate(self._tails):
                if is_long and number % ITEMS_PER_TURN == 0:
                    await others_turn()
                self._call_offs.append(self._consumer.watch(*tail, self._wake))
        except BaseException:
            self._call_off()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._call_off()

    def _call_off(self) -> None:
        for call_off in self._call_offs:
            call_off()


def out_of_range(topic: str, partition: int, offset: int, bounds: tuple[int, int]) -> RequestError:
    """The answer when an offset is not within its partition's bounds (which then are in the details)."""
    low, high = bounds
    return RequestError(
        OFFSET_OUT_OF_RANGE,
        f"Offset {offset} of partition {partition} of {topic} is out of range.",
        details={"topic": topic, "partition": partition, "beginning_offset": low, "end_offset": high},
    )


def _parse_offset(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or int(digits) > OFFSET_MAX:
        raise invalid('offset: must be a number, -N for the last N records, "earliest" or "latest"')
    return int(text)

"""Topics of a Kafka cluster that others write to, as topics of mq (`mq topic attach`). Partition p of the topic is
partition p of Kafka's, offset by offset: nothing is moved, sealed or fenced, any node reads and appends, and Kafka
keeps the records as long as its own settings say.

    reads      of what is committed. What is shown, foreign.py says: offsets have holes. A read gives entries without a
               hole between them; the first may begin behind the offset that is asked for, as behind a takeover
    the end    is behind the last record that is shown. Kafka's own (the last stable offset) may be behind that, by the
               marks of transactions: then the last record is looked for, backwards, once for each such end
    holes      what a fetch has behind a hole is kept for the next read, in few bytes
    waiting    while anyone waits for a topic, its ends are asked for by long polls, one a leader
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from gateway.brokers.base import BrokerUnreachable
from gateway.brokers.kafka.attached_links import FIRST_BATCH, Limits, SharedKafka, refusal
from gateway.brokers.kafka.attached_writer import AttachedWriter
from gateway.brokers.kafka.broker import WAITING_BYTES_MAX, Timer, all_of
from gateway.brokers.kafka.codes import INVALID_RECORD, OF_THE_MOMENT, OFFSET_OUT_OF_RANGE
from gateway.brokers.kafka.foreign import Opened, Shown, is_quick, opened
from gateway.brokers.kafka.port import Refused, Unreached
from store import record_batch
from store.errors import BrokerLacks, Corrupt, NoLightQueues, Overloaded, RecordTooLarge, StoreError, UnknownQueue
from store.limits import KiB, MiB
from store.types import Acks, Append, Appended, Boundary, Bounds, Entry, ExportedIds, QueueKey, ReadResult, ReadStatus

log = logging.getLogger(__name__)

NEVER_S = float("-inf")
ENDS_FRESH_S = 0.02
"""How long Kafka's ends of a topic are believed: of who asks for all partitions, the first asks Kafka."""

STARTS_FRESH_S = 5.0
FETCH_TRIES = 10
PAUSE_S = 0.05

LOOK_BYTES = 1 * MiB
LOOK_FACTOR = 8
"""The last record is looked for so many times as far back each time."""

AHEAD_BYTES_MAX = 16 * MiB
"""Of entries behind holes that are kept for the next reads."""

AHEAD_S = 10.0
OPENED_AT_ONCE = 4
"""Fetches of compressed batches: each may unpack to FOREIGN_BYTES_MAX."""

LIMITS_FRESH_S = 30.0
RECORD_OVERHEAD_BYTES = 1 * KiB
"""What a batch of one record has beside it, and the headers that a delayed one gets."""

FOLLOW_WAIT_MS = 500
FOLLOW_AGAIN_S = 1.0


class _Known(NamedTuple):
    """An end of Kafka's, the offset behind the last record that is shown before it, and when it was known: an end that
    was asked for later and is lower means that Kafka has lost records."""

    stable_end: int
    end: int
    at_s: float


class _Ahead(NamedTuple):
    """Entries of a stretch without all that is not shown of it."""

    start: int
    stop: int
    entries: Sequence[Entry]
    size: int
    until_s: float


@dataclass(slots=True)
class _Topic:
    """A topic that is attached, and what was heard of Kafka's."""

    name: str
    kafka_name: str
    partitions: int
    asking: asyncio.Task[None] | None = None
    asking_since_s: float = NEVER_S
    ends: Mapping[int, int] = field(default_factory=dict)
    ends_asked_s: float = NEVER_S
    stored_s: float = NEVER_S
    """When this node had stored something the last time: ends that were asked for before do not count."""

    starts: Mapping[int, int] = field(default_factory=dict)
    starts_asked_s: float = NEVER_S

    limits: Limits | None = None
    limits_asked_s: float = NEVER_S

    def forget(self) -> None:
        """Ask anew."""
        self.ends_asked_s = self.starts_asked_s = NEVER_S


class AttachedBroker:
    """`Broker` over topics of one Kafka cluster that others write to, under the cluster's name; see the module."""

    def __init__(self, name: str, kafka: SharedKafka, *, timer: Timer) -> None:
        """`timer`: the own broker, which keeps delayed records."""
        self._name = name
        self._kafka = kafka
        self._timer = timer
        self._topics: dict[int, _Topic] = {}
        self._known: dict[QueueKey, _Known] = {}
        self._looking: dict[QueueKey, asyncio.Lock] = {}
        self._ahead: OrderedDict[QueueKey, _Ahead] = OrderedDict()
        self._ahead_bytes = 0
        self._watching: dict[int, dict[object, Callable[[Mapping[QueueKey, int]], None]]] = {}
        self._following: dict[int, asyncio.Task[None]] = {}
        self._opening = asyncio.Semaphore(OPENED_AT_ONCE)
        self._writers: dict[QueueKey, AttachedWriter] = {}
        self._waiting_bytes = 0

    @property
    def name(self) -> str:
        """See `Broker.name`."""
        return self._name

    @property
    def served_by(self) -> str:
        """See `Broker`: any node serves them, also this one."""
        return self._timer.name

    async def close(self) -> None:
        """Wait for nothing any more, and append nothing."""
        for writer in list(self._writers.values()):
            await writer.close()
        for following in list(self._following.values()):
            following.cancel()
            await asyncio.wait([following])

    # ---- topics ----------------------------------------------------------------------------------------------------

    def attach(self, topic_id: int, name: str, kafka_name: str, partitions: int) -> None:
        """A topic is one of Kafka's, or has more partitions there."""
        if (known := self._topics.get(topic_id)) is not None:
            known.partitions = partitions
            known.forget()
            if (following := self._following.pop(topic_id, None)) is not None:
                following.cancel()
                self._follow_on(topic_id)
            return
        self._topics[topic_id] = _Topic(name, kafka_name, partitions)

    def detach(self, topic_id: int) -> None:
        """A topic is gone here. Kafka's stays."""
        if self._topics.pop(topic_id, None) is None:
            return
        for queue in [queue for queue in self._known if queue.topic_id == topic_id]:
            del self._known[queue]
            self._looking.pop(queue, None)
        for queue in [queue for queue in self._ahead if queue.topic_id == topic_id]:
            self._forget_ahead(queue)
        for queue in [queue for queue in self._writers if queue.topic_id == topic_id]:
            self._writers.pop(queue).refuse()
        for wake in list(self._watching.get(topic_id, {}).values()):
            wake({})

    async def partition_count(self, kafka_name: str) -> int:
        """How many partitions a topic of the cluster has. Raises BrokerRefuses, BrokerUnreachable."""
        try:
            return await self._kafka.partition_count(kafka_name)
        except (Unreached, Refused) as error:
            raise self._error(error, kafka_name) from error

    def has(self, queue: QueueKey) -> bool:
        """Whether a queue is a partition of an attached topic."""
        return queue.topic_id in self._topics

    def queues_of(self, topic_id: int) -> list[QueueKey]:
        """The partitions of a topic, if it is attached."""
        topic = self._topics.get(topic_id)
        return [] if topic is None else [QueueKey(topic_id, partition) for partition in range(topic.partitions)]

    def _topic(self, queue: QueueKey) -> _Topic:
        topic = self._topics.get(queue.topic_id)
        if topic is None or not 0 <= queue.queue_id < topic.partitions:
            raise UnknownQueue(f"queue {queue} of broker {self._name} is not known here")
        return topic

    # ---- bounds ----------------------------------------------------------------------------------------------------

    async def bounds(self, queue: QueueKey) -> Bounds:
        """See `Broker.bounds`."""
        topic = self._topic(queue)
        try:
            await self._ask_bounds(topic)
            start, stable_end = topic.starts[queue.queue_id], topic.ends[queue.queue_id]
            return Bounds(start, await self._end(queue, topic, start, stable_end, topic.ends_asked_s))
        except (Unreached, Refused) as error:
            raise await self._error_of(error, topic) from error

    async def first_kept(self, queue: QueueKey) -> int:
        """See `Broker.first_kept`."""
        return (await self.bounds(queue)).min_offset

    async def _ask_bounds(self, topic: _Topic) -> None:
        """Have bounds that are fresh, of all partitions: who asks meanwhile gets the same answer."""
        now_s = asyncio.get_running_loop().time()
        are_starts_fresh = topic.starts_asked_s > now_s - STARTS_FRESH_S
        if are_starts_fresh and topic.ends_asked_s > max(now_s - ENDS_FRESH_S, topic.stored_s):
            return
        asking = topic.asking
        if asking is None or asking.done() or topic.asking_since_s <= topic.stored_s:
            asking = topic.asking = asyncio.create_task(self._ask(topic, starts=not are_starts_fresh))
            topic.asking_since_s = now_s
            asking.add_done_callback(_heard)
        await asyncio.shield(asking)

    async def _ask(self, topic: _Topic, *, starts: bool) -> None:
        while True:
            asked_s = asyncio.get_running_loop().time()
            partitions = range(topic.partitions)
            found = await self._kafka.starts(topic.kafka_name, partitions) if starts else topic.starts
            ends = await self._kafka.stable_ends(topic.kafka_name, partitions)
            if len(partitions) == topic.partitions:
                break
            starts = True  # it has got more meanwhile, which may have been asked for
        if starts:
            topic.starts, topic.starts_asked_s = found, asked_s
        if asked_s > topic.ends_asked_s:
            topic.ends, topic.ends_asked_s = ends, asked_s

    async def _end(self, queue: QueueKey, topic: _Topic, start: int, stable_end: int, asked_s: float) -> int:
        """The offset behind the last record that is shown, when Kafka's end was that. Raises Unreached, Refused, and
        what opening raises."""
        async with self._looking.setdefault(queue, asyncio.Lock()):
            known = self._known.get(queue)
            if known is not None and known.stable_end >= stable_end:
                if known.stable_end == stable_end or known.at_s >= asked_s:
                    return max(start, known.end)
                known = None  # Kafka has lost some
            known = known or _Known(start, start, asked_s)
            low, back = max(start, known.stable_end), 1
            end: int | None = None
            while end is None and low < stable_end:
                at = max(low, stable_end - back)
                end = await self._last_shown(queue, topic, at, stable_end)
                if at == low:
                    break
                back *= LOOK_FACTOR
            self._known[queue] = _Known(stable_end, known.end if end is None else end, asked_s)
            return max(start, self._known[queue].end)

    async def _last_shown(self, queue: QueueKey, topic: _Topic, offset: int, stable_end: int) -> int | None:
        """The offset behind the last record shown between two offsets; None: there is none."""
        end: int | None = None
        while offset < stable_end:
            max_bytes = FIRST_BATCH if offset == stable_end - 1 else LOOK_BYTES
            try:
                found, _ = await self._opened(queue, topic, offset, max_bytes)
            except (Corrupt, RecordTooLarge, BrokerLacks):
                return stable_end  # who comes there is told
            if found.shown:
                end = min(found.shown[-1].next_offset, stable_end)
            offset = found.next_offset
        return end

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        """See `Broker.offset_for_time`; by Kafka's times of records. DATED: the first offset."""
        topic = self._topic(queue)
        low, high = await self.bounds(queue)
        if boundary is Boundary.DATED:
            return low
        try:
            found = await self._kafka.committed_at(
                topic.kafka_name, queue.queue_id, time_ms + (boundary is Boundary.UPPER)
            )
        except (Unreached, Refused) as error:
            raise await self._error_of(error, topic) from error
        at = high if found is None else min(max(found, low), high)
        return at if boundary is Boundary.LOWER else max(low, at - 1)

    # ---- reads -----------------------------------------------------------------------------------------------------

    async def read(
        self,
        queue: QueueKey,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        """See `Broker.read`. Tags are not looked at. What is asked for up to `end_offset` begins behind a hole, when
        there is one at `offset`: as many offsets from there on."""
        topic = self._topic(queue)
        low, high = await self.bounds(queue)
        if offset < low:
            return ReadResult(ReadStatus.TOO_SMALL, [], low, high, low)
        if offset >= high:
            status = ReadStatus.TOO_LARGE if offset > high else ReadStatus.AT_END
            return ReadResult(status, [], low, high, high)
        try:
            found = await self._from(queue, topic, offset, high, max_bytes)
        except (Unreached, Refused) as error:
            raise await self._error_of(error, topic) from error
        if not found:  # compaction has taken it a moment ago
            self._known.pop(queue, None)
            return ReadResult(ReadStatus.AT_END, [], low, high, high)
        end = None if end_offset is None else end_offset + max(0, found[0].base_offset - offset)
        entries: list[Entry] = []
        size = 0
        for entry in found:
            if entries and (entry.base_offset != entries[-1].next_offset or size + entry.size > max_bytes):
                break
            if end is not None and entry.base_offset >= end:
                break
            entries.append(entry)
            size += entry.size
        if not entries:
            return ReadResult(ReadStatus.AT_END, [], low, high, offset)
        return ReadResult(ReadStatus.FOUND, entries, low, max(high, entries[-1].next_offset), entries[-1].next_offset)

    async def _from(self, queue: QueueKey, topic: _Topic, offset: int, high: int, max_bytes: int) -> Sequence[Entry]:
        """Entries from an offset on: at least one, if there is one before `high`."""
        start = offset
        while offset < high:
            if (ahead := self._ahead_of(queue, offset)) is not None:
                if found := [entry for entry in ahead.entries if entry.next_offset > offset]:
                    return found
                offset = ahead.stop
                continue
            asked_s = asyncio.get_running_loop().time()
            got, stable_end = await self._opened(queue, topic, offset, max_bytes)
            entries = [_entry(queue, topic.name, one) for one in got.shown]
            if entries:
                known = self._known.get(queue)
                if got.next_offset == stable_end and (known is None or known.stable_end < stable_end):
                    self._known[queue] = _Known(stable_end, entries[-1].next_offset, asked_s)
                self._keep_ahead(queue, offset, got.next_offset, entries, max_bytes)
                return entries
            offset = got.next_offset
            self._keep_ahead(queue, start, offset, [], -1)  # who gives up and asks again goes on there
            max_bytes = max(max_bytes, LOOK_BYTES)
        return []

    async def _opened(self, queue: QueueKey, topic: _Topic, offset: int, max_bytes: int) -> tuple[Opened, int]:
        """What a fetch from an offset on shows, which is before Kafka's end; and that end. Raises Unreached, Refused,
        Corrupt, RecordTooLarge, BrokerLacks."""
        where = f"partition {queue.queue_id} of Kafka's topic {topic.kafka_name} ({self._name})"
        for _ in range(FETCH_TRIES):
            got = await self._kafka.fetch_committed(topic.kafka_name, queue.queue_id, offset, max_bytes=max_bytes)
            if got.batches:
                if is_quick(got.batches):
                    found = opened(got.batches, offset, got.aborted, where=where)
                else:
                    async with self._opening:
                        found = await asyncio.to_thread(opened, got.batches, offset, got.aborted, where=where)
                if found.next_offset > offset:
                    return found, got.end
            if offset >= got.end:
                break
            await asyncio.sleep(PAUSE_S)
        raise Unreached(f"{where} does not show offset {offset} yet")

    def _keep_ahead(self, queue: QueueKey, start: int, stop: int, entries: Sequence[Entry], max_bytes: int) -> None:
        self._forget_ahead(queue)
        size = sum(entry.size for entry in entries)
        if size <= max_bytes and all(one.next_offset == other.base_offset for one, other in pairwise(entries)):
            return  # the read has it all
        until_s = asyncio.get_running_loop().time() + AHEAD_S
        self._ahead[queue] = _Ahead(start, stop, entries, size, until_s)
        self._ahead_bytes += size
        while self._ahead_bytes > AHEAD_BYTES_MAX and len(self._ahead) > 1:
            self._forget_ahead(next(iter(self._ahead)))

    def _ahead_of(self, queue: QueueKey, offset: int) -> _Ahead | None:
        ahead = self._ahead.get(queue)
        if ahead is None:
            return None
        if ahead.until_s <= asyncio.get_running_loop().time():
            self._forget_ahead(queue)
            return None
        return ahead if ahead.start <= offset < ahead.stop else None

    def _forget_ahead(self, queue: QueueKey) -> None:
        if (ahead := self._ahead.pop(queue, None)) is not None:
            self._ahead_bytes -= ahead.size

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def watch(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> Callable[[], None]:
        """See `Broker.watch`."""
        token = object()
        self._watching.setdefault(topic_id, {})[token] = wake
        if topic_id not in self._following:
            self._follow_on(topic_id)

        def call_off() -> None:
            watching = self._watching.get(topic_id, {})
            watching.pop(token, None)
            if not watching:
                self._watching.pop(topic_id, None)
                if (following := self._following.pop(topic_id, None)) is not None:
                    following.cancel()

        return call_off

    def _follow_on(self, topic_id: int) -> None:
        self._following[topic_id] = asyncio.create_task(self._follow(topic_id), name=f"ends in {self._name}")

    def _wake(self, topic_id: int, ends: Mapping[QueueKey, int]) -> None:
        for wake in list(self._watching.get(topic_id, {}).values()):
            wake(ends)

    async def _follow(self, topic_id: int) -> None:
        """Tell of a topic's ends until cancelled."""
        is_away = False
        told: dict[QueueKey, int] = {}
        kafka_name = ""
        try:
            while (topic := self._topics.get(topic_id)) is not None:
                kafka_name = topic.kafka_name
                try:
                    partitions = range(topic.partitions)
                    asked_s = asyncio.get_running_loop().time()
                    ends = await self._kafka.stable_ends(kafka_name, partitions)
                    await self._tell(topic_id, topic, ends, asked_s, told)
                    is_away = False
                    async with asyncio.TaskGroup() as tasks:
                        for led in await self._kafka.by_leader(kafka_name, partitions):
                            its = {partition: ends[partition] for partition in led}
                            tasks.create_task(self._follow_some(topic_id, topic, its, told))
                except* Exception as errors:  # of any kind: nothing else tells those who wait
                    if not is_away:
                        _, unexpected = errors.split((Unreached, Refused, StoreError))
                        log.warning(
                            "ends in Kafka cannot be told topic=%s error=%r", kafka_name, errors.exceptions[0],
                            exc_info=unexpected,
                        )  # fmt: skip
                        self._wake(topic_id, {})
                    is_away = True
                    told.clear()
                await asyncio.sleep(FOLLOW_AGAIN_S if is_away else 0)
        finally:
            if kafka_name and not any(one.kafka_name == kafka_name for one in self._followed()):
                await self._kafka.leave(kafka_name)

    def _followed(self) -> list[_Topic]:
        return [self._topics[topic_id] for topic_id in self._following if topic_id in self._topics]

    async def _follow_some(
        self, topic_id: int, topic: _Topic, ends: Mapping[int, int], told: dict[QueueKey, int]
    ) -> None:
        while self._topics.get(topic_id) is topic:
            asked_s = asyncio.get_running_loop().time()
            now = await self._kafka.wait_for_more(topic.kafka_name, ends, wait_ms=FOLLOW_WAIT_MS)
            if now != ends:
                ends = now
                await self._tell(topic_id, topic, ends, asked_s, told)

    async def _tell(
        self, topic_id: int, topic: _Topic, ends: Mapping[int, int], asked_s: float, told: dict[QueueKey, int]
    ) -> None:
        """Wake who waits, of partitions where more is shown than was told."""
        changed: dict[QueueKey, int] = {}
        for partition, stable_end in ends.items():
            queue = QueueKey(topic_id, partition)
            end = await self._end(queue, topic, topic.starts.get(partition, 0), stable_end, asked_s)
            if told.get(queue) != end:
                told[queue] = changed[queue] = end
        topic.ends_asked_s = NEVER_S
        if changed:
            self._wake(topic_id, changed)

    # ---- appends ---------------------------------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """See `Broker.append`."""
        return await asyncio.shield(self.begin_append(appends, acks=acks))

    def begin_append(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        """See `Broker.begin_append`. `acks` is not asked: all replicas in sync have it. Identities are not: what is
        sent again is stored again. Raises NoLightQueues, and BrokerLacks for an offset that is expected."""
        for append in appends:
            self._topic(append.queue)
            if append.light is not None:
                raise NoLightQueues("the topic is attached, one of a Kafka cluster, which has no light queues")
            if append.expected_offset is not None:
                raise self._lacks("no offset can be kept for a send")
        size = sum(len(append.batch) for append in appends)
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise Overloaded(f"{self._waiting_bytes} bytes wait for broker {self._name}; at most {WAITING_BYTES_MAX}")
        begun = []
        for append in appends:
            self._waiting_bytes += len(append.batch)
            begun.append(self._writer(append.queue).begin(append))
        return all_of(begun)

    def _writer(self, queue: QueueKey) -> AttachedWriter:
        writer = self._writers.get(queue)
        if writer is None or not writer.is_serving:
            topic, loop = self._topic(queue), asyncio.get_running_loop()

            def on_stored(_end: int) -> None:
                topic.stored_s = loop.time()  # who asks now finds it

            def on_over() -> None:
                if self._writers.get(queue) is made:
                    del self._writers[queue]

            made = AttachedWriter(
                self._kafka, topic.kafka_name, queue.queue_id,
                on_stored=on_stored, on_over=on_over, on_freed=self._free,
            )  # fmt: skip
            self._writers[queue] = writer = made
        return writer

    def _free(self, size: int) -> None:
        self._waiting_bytes -= size

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See `Broker.schedule`: by the own timer, which delivers at least once. Raises as `check_delayed`."""
        await self.check_delayed(append)
        return await self._timer.schedule(append, acks=acks, keys=keys)

    async def check_delayed(self, append: Append) -> None:
        """Raises RecordTooLarge, BrokerRefuses for delayed records that Kafka would not take when they are due, as far
        as its settings are known; UnknownQueue."""
        for queue in {QueueKey(delay.topic_id, delay.partition) for delay in append.delays}:
            topic = self._topic(queue)
            await self._ask_limits(topic)
            if topic.limits is not None:
                _check_limits(append, topic.limits, topic.kafka_name)

    async def _ask_limits(self, topic: _Topic) -> None:
        now_s = asyncio.get_running_loop().time()
        if topic.limits_asked_s + LIMITS_FRESH_S <= now_s:
            topic.limits_asked_s = now_s
            try:
                topic.limits = await self._kafka.limits(topic.kafka_name)
            except (Unreached, Refused) as error:  # as a right to describe settings is missing
                log.info("limits of a topic are not known topic=%s error=%s", topic.kafka_name, error)

    # ---- groups ----------------------------------------------------------------------------------------------------

    def as_kafka_has(self, topic_id: int, offsets: Mapping[int, int]) -> dict[int, int]:
        """Committed offsets as Kafka's tools count: who has all that is shown is at Kafka's end."""
        found = {}
        for partition, offset in offsets.items():
            known = self._known.get(QueueKey(topic_id, partition))
            found[partition] = known.stable_end if known is not None and offset == known.end else offset
        return found

    async def commit(self, topic_id: int, group: str, offsets: Mapping[int, int]) -> None:
        """Have Kafka know a group's offsets in a topic, by partition. Raises UnknownQueue, BrokerRefuses,
        BrokerUnreachable."""
        topic = self._topic(QueueKey(topic_id, 0))
        try:
            await self._kafka.commit(group, topic.kafka_name, offsets)
        except (Unreached, Refused) as error:
            raise self._error(error, topic.kafka_name) from error

    # ---- what is not done ------------------------------------------------------------------------------------------

    async def create_queue(self, queue: QueueKey) -> None:
        """See `Broker.create_queue`. Raises BrokerLacks."""
        raise self._lacks("no partition moves there")

    async def seal_queue(self, queue: QueueKey) -> int:
        """See `Broker.seal_queue`. Raises BrokerLacks."""
        raise self._lacks("its partitions do not move")

    async def export_ids(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> ExportedIds:
        """See `Broker.export_ids`. Raises BrokerLacks."""
        raise self._lacks("its partitions do not move")

    async def import_ids(self, content: bytes) -> None:
        """See `Broker.import_ids`. Raises BrokerLacks."""
        raise self._lacks("no partition moves there")

    async def expire_queue(self, queue: QueueKey, before_offset: int) -> None:
        """See `Broker.expire_queue`. Raises BrokerLacks."""
        raise self._lacks("its records are Kafka's to keep and to delete")

    def _lacks(self, why: str) -> BrokerLacks:
        return BrokerLacks(f"the topic is attached, one of Kafka cluster {self._name} that others write to: {why}")

    async def _error_of(self, error: Unreached | Refused, topic: _Topic) -> StoreError:
        """What to say of an error of the cluster about a topic: that it is gone, if it is."""
        topic.forget()
        if isinstance(error, Refused):
            for queue in [queue for queue in self._ahead if self._topics.get(queue.topic_id) is topic]:
                self._forget_ahead(queue)
            if error.code not in OF_THE_MOMENT:
                return self._error(error, topic.kafka_name)
        try:
            await self._kafka.partition_count(topic.kafka_name)
        except Refused as gone:
            return self._error(gone, topic.kafka_name)
        except Unreached:
            pass
        return self._error(Unreached(str(error)), topic.kafka_name)

    def _error(self, error: Unreached | Refused, kafka_name: str) -> StoreError:
        if isinstance(error, Refused) and error.code != OFFSET_OUT_OF_RANGE:
            return refusal(kafka_name, error.code)
        return BrokerUnreachable(f"broker {self._name}: {error}")


def _heard(asking: asyncio.Task[None]) -> None:
    """Who asked may not wait any more."""
    if not asking.cancelled():
        asking.exception()


def _check_limits(append: Append, limits: Limits, topic: str) -> None:
    """Raises RecordTooLarge, BrokerRefuses for a record that Kafka does not take."""
    for record in record_batch.decode(append.batch):
        if record.key is None and limits.needs_keys:
            raise refusal(topic, INVALID_RECORD)
        headers_bytes = sum(len(name.encode()) + len(content or b"") for name, content in record.headers)
        size = len(record.key or b"") + len(record.value or b"") + headers_bytes
        if size + RECORD_OVERHEAD_BYTES > limits.batch_bytes_max:
            raise RecordTooLarge(
                f"a record of {size} bytes; Kafka's topic {topic} takes batches of {limits.batch_bytes_max}"
            )


def _entry(queue: QueueKey, topic: str, shown: Shown) -> Entry:
    """`position` is the offset behind it: what was compacted since has another one."""
    base_offset, next_offset, batch = shown
    return Entry(
        position=next_offset,
        size=len(batch),
        queue=queue,
        topic=topic,
        base_offset=base_offset,
        record_count=next_offset - base_offset,
        store_time_ms=record_batch.max_timestamp_ms(batch),
        json_values=False,
        batch=memoryview(batch),
    )

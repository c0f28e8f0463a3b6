"""Moving partitions for real: the steps of gateway/cluster/move.py over metadata and brokers.

Any node may run a move; all that it needs to know is in the metadata, so a move that was left is finished by beginning
another one (`Mover.move` on the same partition). The pause of a move is from the seal to the commit, between nodes:

    old broker   one call: it seals the queue (one fdatasync), and tells what it has remembered of repeated sends since
                 it was asked before the intent
    new broker   one call, if there was anything to tell (one fdatasync). Its queue was made, and asked for the offset
                 that the segment begins at, before the intent: nothing can be appended to a queue whose epoch no record
                 names
    metadata     one change

The node that makes a move to a Kafka cluster is the owner then. Which producer, and which epoch of it, fences a Kafka
partition next, is a key of its own, changed together with the intent: no two tenures have the same.

    fences/<broker>/<Kafka topic>/<partition>    {"v": 1, "pid": 4001, "epoch": 5}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile
from time import monotonic
from typing import Any, Literal, NamedTuple

import orjson

from gateway.brokers.base import Broker, NodeBroker
from gateway.brokers.kafka.broker import Fence, KafkaBroker, Place
from gateway.cluster import move
from gateway.cluster.metadata import ABSENT, Metadata, OutcomeUnknown
from gateway.cluster.move_slots import Slot
from gateway.cluster.move_stats import MoveStats
from gateway.cluster.record import PartitionRecord, PartitionState, SegmentRecord, decode, encode
from gateway.routing.table import Chain, Segment
from store.clock import Clock
from store.errors import BrokerLacks
from store.topics import FIRST_USER_TOPIC_ID
from store.types import OFFSET_MAX, ExportedIds, QueueKey

log = logging.getLogger(__name__)

PARTITIONS = "partitions/"
"""Where the records of partitions are, by topic id and number."""

FENCES = "fences/"
"""Where the next fences of Kafka partitions are."""

KAFKA_EPOCH_MAX = 32_766
"""Of a producer; behind it another one goes on."""


class MoveConflict(Exception):
    """Another node has changed the partition's record meanwhile: look where it is now, and begin again if need be."""


class StillThere(Exception):
    """What belongs to a node that is there is not taken over: it is asked to give it."""


class UnknownBroker(Exception):
    """There is no broker of this name."""


Step = Literal["warm", "intent", "seal", "commit"]
"""What a move is at, and waits for."""


class Move(NamedTuple):
    """A move that is under way. Of one that another node makes the step is the first one behind the intent."""

    source: str
    to: str
    step: Step
    since_ms: int


@dataclass(slots=True, eq=False)
class _Making:
    """A move that a mover makes: of which partition (topic id and number), and what it is at."""

    place: tuple[int, int]
    move: Move

    def at(self, step: Step) -> None:
        self.move = self.move._replace(step=step)


class Known(NamedTuple):
    """A partition's record, and its revision: ABSENT for one that has never moved and has no key of its own."""

    record: PartitionRecord
    revision: int


def key_of(topic_id: int, partition: int) -> str:
    """The key of a partition's record."""
    return f"{PARTITIONS}{topic_id}/{partition}"


def first_record(topic_id: int, partition: int, broker: str) -> PartitionRecord:
    """The record of a partition that has never moved: one queue, that of its number."""
    return PartitionRecord(
        epoch=0, owner=broker, segments=(SegmentRecord(start=0, broker=broker, queue=(topic_id, partition)),)
    )


def chain_of(
    topic_id: int, partition: int, record: PartitionRecord, broker_named: Callable[[str], Broker], *, own: str
) -> Chain:
    """The chain by which a partition is read and written on node `own`, of its record; what a Kafka broker has of it is
    told to it. Only the owner appends to a Kafka partition: for other nodes an open segment there is a queue of its
    node. For a process that does not know the Kafka cluster, as a gateway, so is what is sealed there. Raises
    UnknownBroker."""
    chain = []
    for segment in record.segments:
        queue = queue_of(topic_id, partition, segment)
        try:
            broker = broker_named(segment.broker)
        except UnknownBroker:
            if segment.pid is None or record.owner == own:
                raise
            broker = broker_named(record.owner)
        if isinstance(broker, KafkaBroker):
            broker.know(queue, place_of(segment), is_sealing=record.state is PartitionState.SEALING)
            if segment.end is None and record.owner != own:
                broker = broker_named(record.owner)
        chain.append(Segment(broker, queue, segment.start, segment.physical, segment.end))
    return tuple(chain)


def queue_of(topic_id: int, partition: int, segment: SegmentRecord) -> QueueKey:
    """What the brokers know a segment by."""
    if segment.pid is not None:
        return QueueKey(topic_id, move.queue_id_for(partition, segment.epoch))
    return _queue(segment)


def place_of(segment: SegmentRecord) -> Place:
    """Where in a Kafka cluster a segment lies."""
    topic, partition = segment.queue
    assert segment.pid is not None
    fence, shift = Fence(segment.pid, segment.kepoch), segment.start - segment.physical
    return Place(str(topic), partition, fence, segment.physical, segment.end, shift)


def _queue(segment: SegmentRecord) -> QueueKey:
    topic_id, queue_id = segment.queue
    if not isinstance(topic_id, int):
        raise UnknownBroker(f"broker {segment.broker} is none that embedded queues are moved to or from")
    return QueueKey(topic_id, queue_id)


class _NextFence(NamedTuple):
    """The fence that a move writes to a Kafka partition, and the key that says so, of a revision."""

    topic: str
    partition: int
    fence: Fence
    key: str
    revision: int

    @property
    def data(self) -> bytes:
        return orjson.dumps({"v": 1, "pid": self.fence.producer_id, "epoch": self.fence.epoch})


class Mover:
    """Moves partitions. `home` says on which broker a partition is that has never moved; `own` is the node that owns
    what this mover moves to a Kafka cluster."""

    def __init__(
        self,
        metadata: Metadata,
        broker_named: Callable[[str], NodeBroker | KafkaBroker],
        clock: Clock,
        *,
        home: Callable[[int, int], str],
        own: str = "",
    ) -> None:
        self._metadata = metadata
        self._broker_named = broker_named
        self._clock = clock
        self._home = home
        self._own = own
        self._making: list[_Making] = []  # now; of one partition there may be several, the latest last
        self.stats = MoveStats()

    @property
    def moves(self) -> dict[tuple[int, int], Move]:
        """Those that this mover makes now, by topic id and partition; of several of one partition the latest."""
        return {making.place: making.move for making in self._making}

    @property
    def move_count(self) -> int:
        """How many it makes now."""
        return len(self._making)

    def is_moving(self, topic_id: int, partition: int) -> bool:
        """Whether it moves a partition now."""
        return any(making.place == (topic_id, partition) for making in self._making)

    async def known(self, topic_id: int, partition: int) -> Known:
        """The record of a partition as of now. Raises Unavailable, ValueError for one that is not understood."""
        value = await self._metadata.get(key_of(topic_id, partition))
        if value is None:
            return Known(first_record(topic_id, partition, self._home(topic_id, partition)), ABSENT)
        return Known(decode(value.data), value.revision)

    async def move(self, topic_id: int, partition: int, to: str, slot: Slot | None = None) -> Known:
        """Move a partition to a broker, or take up a move of it that was left; its record when it is done. The answer
        is durable. A partition that is there already, and not moving, stays; on a Kafka cluster, if this node serves
        it. With `slot`, nothing is changed when that has been lost, and it is given back with the commit.

        Raises UnknownBroker, BrokerLacks, UnknownQueue, ChainFull, Unavailable before anything was changed;
        MoveConflict; and what brokers and metadata raise. Behind the intent the partition then takes no records until a
        move is finished: call this again, with any target.
        """
        known = await self.known(topic_id, partition)
        if known.record.to is None and self.is_at(topic_id, partition, known.record, to):
            return known
        begun = Move(known.record.open_segment.broker, to, "warm", self._clock.now_ms())
        making = _Making((topic_id, partition), begun)
        self._making.append(making)
        try:
            return await self._move(known, to, slot, making)
        except MoveConflict:
            self.stats.outcomes["conflict"] += 1
            raise
        except BaseException as error:
            at = making.move
            if at.step == "warm":
                self.stats.outcomes["failed"] += 1
                raise
            self.stats.outcomes["left"] += 1
            log.warning(
                "move left half way, the partition takes no records until it is finished topic_id=%d partition=%d "
                "from=%s to=%s step=%s error=%r",
                topic_id, partition, at.source, to, at.step, error,
            )  # fmt: skip
            raise
        finally:
            self._making.remove(making)

    async def begin(self, topic_id: int, partition: int, to: str) -> Known:
        """Have a record of a partition that has none, and that no node has a queue for: it begins on a Kafka cluster,
        at offset 0, owned and served by this node. Its record when there is one, of the node that made it. Raises
        UnknownBroker, MoveConflict, what brokers and metadata raise: then there may be none."""
        broker = self._broker_named(to)
        if not isinstance(broker, KafkaBroker):
            raise UnknownBroker(f"broker {to} is no Kafka cluster")
        key = key_of(topic_id, partition)
        if (found := await self._metadata.get(key)) is not None:
            return Known(decode(found.data), found.revision)
        queue = QueueKey(topic_id, move.queue_id_for(partition, 1))
        await broker.create_queue(queue)
        coming = await self._next_fence(broker, broker.kafka_topic(topic_id), partition)
        held = await self._metadata.compare_and_set(
            {key: ABSENT, coming.key: coming.revision}, {coming.key: coming.data}
        )
        if held is None:
            raise MoveConflict(f"partition {partition} of topic id {topic_id} is begun by another node")
        await broker.fence(coming.topic, coming.partition, coming.fence)
        segment = SegmentRecord(
            start=0, broker=to, queue=(coming.topic, coming.partition), epoch=1, from_ms=self._clock.now_ms(),
            physical=await broker.open(queue, coming.topic, coming.partition, coming.fence),
            pid=coming.fence.producer_id, kepoch=coming.fence.epoch,
        )  # fmt: skip
        record = PartitionRecord(epoch=1, owner=self._own, segments=(segment,), verified=segment.physical)
        fence = {coming._replace(revision=held)}
        with _served(broker, queue, segment):
            return Known(record, await self._set(topic_id, partition, ABSENT, record, fence))

    def is_at(self, topic_id: int, partition: int, record: PartitionRecord, to: str) -> bool:
        """Whether a partition is on a broker, and, on a Kafka cluster, served by this node."""
        if record.open_segment.broker != to:
            return False
        broker = self._broker_named(to)
        return not isinstance(broker, KafkaBroker) or broker.serves(queue_of(topic_id, partition, record.open_segment))

    async def _move(self, known: Known, to: str, slot: Slot | None, making: _Making) -> Known:
        topic_id, partition = making.place
        begun = move.intent(known.record, to)
        last = begun.open_segment
        source, target = self._broker_named(last.broker), self._broker_named(to)
        queue = QueueKey(topic_id, move.queue_id_for(partition, begun.epoch))
        if not _is_in(target, topic_id, partition, last) or target is not source:
            await target.create_queue(queue)
        physical = 0 if isinstance(target, KafkaBroker) else (await target.bounds(queue)).max_offset
        leaving_queue = queue_of(topic_id, partition, last)
        shift = last.start - last.physical
        position = OFFSET_MAX  # a broker that is its own target knows all ids; the numbers of producers are a queue's
        if last.broker != to:
            for segment in _before_on_same_node(begun):  # what it knows by itself and was not told
                own = queue_of(topic_id, partition, segment)
                await _tell(source, own, target, queue, segment.start - segment.physical, 0)
            position = await _tell(source, leaving_queue, target, queue, shift, 0)
        leaving, coming = await self._next_fences(topic_id, partition, last, source, target)
        making.at("intent")
        paused_s = monotonic()
        revision = await self._set(topic_id, partition, known.revision, begun, {leaving, coming}, slot=slot)
        making.at("seal")
        part: ExportedIds | None = None
        if isinstance(source, KafkaBroker):
            assert leaving is not None
            end = await self._sealed(topic_id, partition, begun, source, leaving)
        else:
            paused_s = monotonic()  # until it is sealed the queue takes records
            end, part = await source.leave_queue(leaving_queue, into=queue, shift=shift, since=position)
        is_same = coming is not None and coming == leaving
        if not is_same:
            await _tell(source, leaving_queue, target, queue, shift, position, part)  # what came since
        making.at("commit")
        place: dict[str, Any]
        if isinstance(target, KafkaBroker):
            assert coming is not None
            if not is_same:
                await target.fence(coming.topic, coming.partition, coming.fence)
            is_own = topic_id < FIRST_USER_TOPIC_ID  # whose records are not sent again
            after = leaving_queue if is_same and not is_own else None
            physical = await target.open(queue, coming.topic, coming.partition, coming.fence, after=after)
            place = {
                "owner": self._own, "queue": (coming.topic, coming.partition), "physical": physical,
                "pid": coming.fence.producer_id, "kepoch": coming.fence.epoch,
            }  # fmt: skip
        else:
            place = {"owner": to, "queue": (queue.topic_id, queue.queue_id), "physical": physical}
        done = move.commit(begun, end=end, now_ms=self._clock.now_ms(), **place)
        with _served(target, queue, done.open_segment) if isinstance(target, KafkaBroker) else nullcontext():
            revision = await self._set(topic_id, partition, revision, done, slot=slot, is_last=True)
        self.stats.done(pause_ms := (monotonic() - paused_s) * 1000)
        log.info(
            "partition moved topic_id=%d partition=%d from=%s to=%s epoch=%d offset=%d pause_ms=%.1f",
            topic_id, partition, last.broker, to, done.epoch, done.open_segment.start, pause_ms,
        )  # fmt: skip
        return Known(done, revision)

    async def _next_fences(
        self, topic_id: int, partition: int, last: SegmentRecord, source: Broker, target: Broker
    ) -> tuple[_NextFence | None, _NextFence | None]:
        """What fences the Kafka partitions that a move leaves, and comes to; the same one when they are the same."""
        leaving = coming = None
        if isinstance(source, KafkaBroker):
            leaving = await self._next_fence(source, str(last.queue[0]), last.queue[1])
        if isinstance(target, KafkaBroker):
            if target is source and _is_in(target, topic_id, partition, last):
                coming = leaving
            else:
                coming = await self._next_fence(target, target.kafka_topic(topic_id), partition)
        return leaving, coming

    async def _next_fence(self, broker: KafkaBroker, topic: str, partition: int) -> _NextFence:
        key = f"{FENCES}{broker.name}/{topic}/{partition}"
        value = await self._metadata.get(key)
        if value is not None:
            fields = orjson.loads(value.data)
            fence = Fence(fields["pid"], fields["epoch"] + 1)
            if fence.epoch <= KAFKA_EPOCH_MAX:
                return _NextFence(topic, partition, fence, key, value.revision)
        fence = Fence(await broker.new_producer(), 0)
        return _NextFence(topic, partition, fence, key, ABSENT if value is None else value.revision)

    async def _sealed(
        self, topic_id: int, partition: int, begun: PartitionRecord, source: KafkaBroker, leaving: _NextFence
    ) -> int:
        """Where the open segment on a Kafka cluster has ended."""
        last = begun.open_segment
        queue = queue_of(topic_id, partition, last)
        for segment in begun.segments:  # the watch may not have told of all
            if segment.broker == last.broker:
                source.know(queue_of(topic_id, partition, segment), place_of(segment))
        await source.stop(queue)
        fenced = await source.fence(leaving.topic, leaving.partition, leaving.fence)
        served = source.served_end(queue)
        since = max(begun.verified, last.physical) if served is None else served
        end = await source.own_end(place_of(last), since=since, until=fenced)
        source.sealed(queue, end)
        return end

    async def verify(self, topic_id: int, partition: int) -> Known:
        """Write down how far the open segment of a Kafka partition that this node serves is known to be its own: a
        search for its end begins there. Raises as `move`."""
        known = await self.known(topic_id, partition)
        if (end := self.unverified_end(topic_id, partition, known.record)) is None:
            return known
        verified = replace(known.record, verified=end)
        return Known(verified, await self._set(topic_id, partition, known.revision, verified))

    def unverified_end(self, topic_id: int, partition: int, record: PartitionRecord) -> int | None:
        """How far the open segment of a Kafka partition that this node serves is known to be its own, when the record
        does not say that yet; else None. Raises UnknownBroker."""
        broker = self._broker_named(record.open_segment.broker)
        if not isinstance(broker, KafkaBroker) or record.state is not PartitionState.NORMAL:
            return None
        end = broker.served_end(queue_of(topic_id, partition, record.open_segment))
        return None if end is None or end <= record.verified else end

    async def take_over(self, topic_id: int, partition: int, to: str) -> Known:
        """As `move`, without the broker that has the partition; see gateway/cluster/move.py. Raises as `move`."""
        known = await self.known(topic_id, partition)
        if known.record.to is None and known.record.open_segment.broker == to:
            return known
        begun = move.intent(known.record, to)
        target = self._broker_named(to)
        if isinstance(target, KafkaBroker):
            raise BrokerLacks("a partition is taken over to a node; it can be moved to a Kafka cluster then")
        queue = QueueKey(topic_id, move.queue_id_for(partition, begun.epoch))
        await target.create_queue(queue)
        revision = await self._set(topic_id, partition, known.revision, begun)
        physical = (await target.bounds(queue)).max_offset
        done = move.take_over(
            begun, owner=to, queue=(queue.topic_id, queue.queue_id), physical=physical, now_ms=self._clock.now_ms()
        )
        revision = await self._set(topic_id, partition, revision, done)
        log.warning(
            "partition taken over topic_id=%d partition=%d from=%s to=%s epoch=%d offset=%d",
            topic_id, partition, begun.open_segment.broker, to, done.epoch, done.open_segment.start,
        )  # fmt: skip
        return Known(done, revision)

    async def seal_taken(self, record: PartitionRecord, own: str) -> None:
        """Seal the queues of this broker that were taken over while it was away, and have the one where the partition
        goes on: a directory of a backup may have neither. Raises what brokers raise."""
        if not any(segment.taken for segment in record.segments):
            return
        broker = self._broker_named(own)
        for segment in record.segments:
            if segment.broker == own and (segment.taken or segment.end is None):
                await broker.create_queue(_queue(segment))
                if segment.taken:
                    await broker.seal_queue(_queue(segment))

    async def trim(self, topic_id: int, partition: int) -> Known:
        """Take segments off a partition's chain all of whose records have expired, and give up their queues; the record
        afterwards. Raises as `move`."""
        known = await self.known(topic_id, partition)
        first_kept: list[int] = []
        for segment in known.record.segments[:-1]:
            first_kept.append(await self._first_kept(topic_id, partition, segment))
            if segment.end is None or first_kept[-1] < segment.end:
                break  # it stays, so those behind it do: their brokers, which may be away, are not asked
        trimmed = move.trim(known.record, first_kept)
        if trimmed is known.record:
            return known
        revision = await self._set(topic_id, partition, known.revision, trimmed)
        for segment in known.record.segments[: -len(trimmed.segments)]:
            if segment.end is not None:
                queue = queue_of(topic_id, partition, segment)
                await self._broker_named(segment.broker).expire_queue(queue, segment.end)
        return Known(trimmed, revision)

    async def _first_kept(self, topic_id: int, partition: int, segment: SegmentRecord) -> int:
        """The first offset that a segment's queue has; the segment's end when it was taken over and has nothing."""
        broker, queue = self._broker_named(segment.broker), queue_of(topic_id, partition, segment)
        if segment.taken:
            await broker.seal_queue(queue)
        low, high = await broker.bounds(queue)
        return segment.end if segment.taken and segment.end is not None and low == high else low

    async def _set(
        self,
        topic_id: int,
        partition: int,
        revision: int,
        record: PartitionRecord,
        fences: Collection[_NextFence | None] = (),
        *,
        slot: Slot | None = None,
        is_last: bool = False,
    ) -> int:
        """Write a record over the one of a revision, and fences with it, while `slot` is held; `is_last` gives that
        back. Returns the record's own revision. When it is not known what became of the change, the record is read: the
        same one is ours, or as good as ours, as only its revision is compared from here on."""
        key = key_of(topic_id, partition)
        expected: dict[str, int] = {key: revision}
        changes: dict[str, bytes | None] = {key: encode(record)}
        for fence in fences:
            if fence is not None:
                expected[fence.key], changes[fence.key] = fence.revision, fence.data
        if slot is not None:
            expected[slot.key] = slot.revision
            if is_last:
                changes[slot.key] = None
        try:
            written = await self._metadata.compare_and_set(expected, changes)
        except OutcomeUnknown:
            found = await self._metadata.get(key)
            if found is None or found.data != encode(record):
                raise
            written = found.revision
        if written is None:
            raise MoveConflict(f"partition {partition} of topic id {topic_id} was changed by another node meanwhile")
        if slot is not None and is_last:
            slot.revision = ABSENT
        return written


@contextmanager
def _served(broker: KafkaBroker, queue: QueueKey, segment: SegmentRecord) -> Iterator[None]:
    """Serve a tenure from now on, while its record is written: the watch may tell of it before that is answered, and
    sends that were held come at once. Without the record no route leads there."""
    broker.serve(queue, place_of(segment))
    try:
        yield
    except BaseException:
        broker.refuse(queue)  # if it was written after all, the node takes over anew what it does not serve
        raise


def _is_in(broker: Broker, topic_id: int, partition: int, segment: SegmentRecord) -> bool:
    """Whether a segment lies in the Kafka partition in which a broker has the partition's tenures."""
    return isinstance(broker, KafkaBroker) and segment.queue == (broker.kafka_topic(topic_id), partition)


def _before_on_same_node(record: PartitionRecord) -> list[SegmentRecord]:
    """The segments right before the open one that are on the same node: the partition was moved to where it was."""
    *before, last = record.segments
    if last.pid is not None:
        return []
    found = list(takewhile(lambda segment: segment.broker == last.broker, reversed(before)))
    return found[::-1]


async def _tell(
    source: Broker,
    leaving: QueueKey,
    target: Broker,
    into: QueueKey,
    shift: int,
    position: int,
    part: ExportedIds | None = None,
) -> int:
    """Have the target remember what the source remembers of sends to a queue, from a position on, so that one that is
    repeated behind the move is still known (C6). `part`: the first one, if it is there already. Returns the position
    behind it."""
    while True:
        if part is None:
            part = await source.export_ids(leaving, into=into, shift=shift, since=position)
        if part.content:
            await target.import_ids(part.content)
        position = max(position, part.next_position)
        if part.is_last:
            return position
        part = None

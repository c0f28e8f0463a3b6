"""Moving partitions for real: the steps of gateway/cluster/move.py over metadata and brokers.

Any node may run a move; all that it needs to know is in the metadata, so a move that was left is finished by beginning
another one (`Mover.move` on the same partition). The pause of a move is from the seal to the commit: one fdatasync of
the old broker and one change of metadata; the queue of the target is made before. What the old broker remembers of
repeated sends is told to the new one before, too; only what came since, and the numbers of producers, in the pause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, NamedTuple

from gateway.brokers.base import Broker
from gateway.cluster import move
from gateway.cluster.metadata import ABSENT, Metadata, OutcomeUnknown
from gateway.cluster.record import PartitionRecord, SegmentRecord, decode, encode
from gateway.routing.table import Chain, Segment
from store.clock import Clock
from store.types import OFFSET_MAX, QueueKey

log = logging.getLogger(__name__)

PARTITIONS = "partitions/"
"""Where the records of partitions are, by topic id and number."""


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


def chain_of(record: PartitionRecord, broker_named: Callable[[str], Broker]) -> Chain:
    """The chain by which a partition is read and written, of its record. Raises UnknownBroker."""
    return tuple(
        Segment(broker_named(segment.broker), _queue(segment), segment.start, segment.physical, segment.end)
        for segment in record.segments
    )


def _queue(segment: SegmentRecord) -> QueueKey:
    topic_id, queue_id = segment.queue
    if not isinstance(topic_id, int):
        raise UnknownBroker(f"broker {segment.broker} is none that embedded queues are moved to or from")
    return QueueKey(topic_id, queue_id)


class Mover:
    """Moves partitions. `home` says on which broker a partition is that has never moved."""

    def __init__(
        self,
        metadata: Metadata,
        broker_named: Callable[[str], Broker],
        clock: Clock,
        *,
        home: Callable[[int, int], str],
    ) -> None:
        self._metadata = metadata
        self._broker_named = broker_named
        self._clock = clock
        self._home = home
        self.moves: dict[tuple[int, int], Move] = {}
        """Those that this mover makes now, by topic id and partition."""

    async def known(self, topic_id: int, partition: int) -> Known:
        """The record of a partition as of now. Raises Unavailable, ValueError for one that is not understood."""
        value = await self._metadata.get(key_of(topic_id, partition))
        if value is None:
            return Known(first_record(topic_id, partition, self._home(topic_id, partition)), ABSENT)
        return Known(decode(value.data), value.revision)

    async def move(self, topic_id: int, partition: int, to: str) -> Known:
        """Move a partition to a broker, or take up a move of it that was left; its record when it is done. The answer
        is durable. A partition that is there already, and not moving, stays.

        Raises UnknownBroker, UnknownQueue, ChainFull, Unavailable before anything was changed; MoveConflict; and what
        brokers and metadata raise. Behind the intent the partition then takes no records until a move is finished:
        call this again, with any target.
        """
        known = await self.known(topic_id, partition)
        if known.record.to is None and known.record.open_segment.broker == to:
            return known
        try:
            return await self._move(topic_id, partition, known, to)
        finally:
            self.moves.pop((topic_id, partition), None)

    async def _move(self, topic_id: int, partition: int, known: Known, to: str) -> Known:
        since_ms = self._clock.now_ms()

        def at(step: Step) -> None:
            self.moves[topic_id, partition] = Move(known.record.open_segment.broker, to, step, since_ms)

        at("warm")
        begun = move.intent(known.record, to)
        target = self._broker_named(to)
        source = self._broker_named(begun.open_segment.broker)
        queue = QueueKey(topic_id, move.queue_id_for(partition, begun.epoch))
        await target.create_queue(queue)  # warm: the fdatasync that this takes is no part of the pause
        sealed = _queue(begun.open_segment)
        shift = begun.open_segment.start - begun.open_segment.physical
        position = OFFSET_MAX  # a broker that is its own target knows all ids; the numbers of producers are a queue's
        if begun.open_segment.broker != to:
            position = await self._tell(source, target, sealed, queue, shift, 0)
        at("intent")
        revision = await self._set(topic_id, partition, known.revision, begun)
        at("seal")
        end = await source.seal_queue(sealed)
        await self._tell(source, target, sealed, queue, shift, position)  # what came since
        at("commit")
        physical = (await target.bounds(queue)).max_offset
        done = move.commit(
            begun,
            end=end,
            owner=to,
            queue=(queue.topic_id, queue.queue_id),
            physical=physical,
            now_ms=self._clock.now_ms(),
        )
        revision = await self._set(topic_id, partition, revision, done)
        log.info(
            "partition moved topic_id=%d partition=%d to=%s epoch=%d offset=%d",
            topic_id, partition, to, done.epoch, done.open_segment.start,
        )  # fmt: skip
        return Known(done, revision)

    async def take_over(self, topic_id: int, partition: int, to: str) -> Known:
        """As `move`, without the broker that has the partition; see gateway/cluster/move.py. Raises as `move`."""
        known = await self.known(topic_id, partition)
        if known.record.to is None and known.record.open_segment.broker == to:
            return known
        begun = move.intent(known.record, to)
        target = self._broker_named(to)
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

    async def _tell(
        self, source: Broker, target: Broker, queue: QueueKey, into: QueueKey, shift: int, position: int
    ) -> int:
        """Have the target remember what the source remembers of sends, from a position of the source's log on, so that
        one that is repeated behind the move is still known (C6). Returns the position behind it."""
        while True:
            part = await source.export_ids(queue, into=into, shift=shift, since=position)
            if part.content:
                await target.import_ids(part.content)
            position = max(position, part.next_position)
            if part.is_last:
                return position

    async def trim(self, topic_id: int, partition: int) -> Known:
        """Take segments off a partition's chain all of whose records have expired, and give up their queues; the record
        afterwards. Raises as `move`."""
        known = await self.known(topic_id, partition)
        trimmed = move.trim(known.record, [await self._first_kept(segment) for segment in known.record.segments])
        if trimmed is known.record:
            return known
        revision = await self._set(topic_id, partition, known.revision, trimmed)
        for segment in known.record.segments[: -len(trimmed.segments)]:
            if segment.end is not None:
                await self._broker_named(segment.broker).expire_queue(_queue(segment), segment.end)
        return Known(trimmed, revision)

    async def _first_kept(self, segment: SegmentRecord) -> int:
        """The first offset that a segment's queue has; the segment's end when it was taken over and has nothing."""
        broker, queue = self._broker_named(segment.broker), _queue(segment)
        if segment.taken:
            await broker.seal_queue(queue)
        low, high = await broker.bounds(queue)
        return segment.end if segment.taken and segment.end is not None and low == high else low

    async def _set(self, topic_id: int, partition: int, revision: int, record: PartitionRecord) -> int:
        """Write a record over the one of a revision; returns its own. When it is not known what became of the change,
        the record is read: the same one is ours, or as good as ours, as only its revision is compared from here on."""
        key = key_of(topic_id, partition)
        try:
            written = await self._metadata.compare_and_set({key: revision}, {key: encode(record)})
        except OutcomeUnknown:
            found = await self._metadata.get(key)
            if found is None or found.data != encode(record):
                raise
            written = found.revision
        if written is None:
            raise MoveConflict(f"partition {partition} of topic id {topic_id} was changed by another node meanwhile")
        return written

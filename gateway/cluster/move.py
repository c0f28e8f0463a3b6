"""How a partition changes its place, as pure functions on its record. Moving it and taking it over are one act:

    warm      make and check the target; read what it has to know already
    intent    compare-and-set of `intent(record, to)`: a new epoch. Whoever sees it stops admitting
    seal      the open segment's queue takes no more; its broker says where it ends, and says it again when asked again
    open      the target's queue; its broker says at which offset it begins
    commit    compare-and-set of `commit(...)` on the revision of the intent: old end, new segment, new owner
    serve     when the commit is known. After an unknown outcome: read first

    crash              state                                    then
    before the intent  unchanged                                nothing
    intent to seal     the old owner may write until sealed     any node begins again with a further intent
    seal to commit     no writes, reads go on                   likewise, with any target
    behind the commit  moved                                    the new owner serves, or is moved from in its turn

Nothing is rolled back: to call a move off is another move. A move that was left is finished by another `intent` on it,
whose epoch is higher, so nothing of the one that was left can be committed (the revision has changed).

An embedded broker makes a queue for each epoch (`queue_id_for`) and never opens a sealed one again. So the queue is the
fence: an owner of an older epoch appends to a queue that refuses it.

A Kafka partition is used again and again. Each tenure there begins with a fence, a batch of a higher epoch of the
partition's producer, and ends at the first batch that is not its own (gateway/brokers/kafka/). One without an
owner that serves it, as its process has ended or is in doubt, is taken over by a move to where it is.

A partition whose broker is away for long may be taken over without it (`take_over`): it is not known where its queue
ends, so the new segment begins TAKEN_OFFSETS further on, where that queue cannot have come. Nothing that was
acknowledged is lost, or has its offset given again: not what no other node has seen, nor what the broker, when it was
only cut off, goes on to acknowledge until it hears of it. The price is a gap in the offsets. When the broker is back,
its queue is sealed, at the latest by the first reader who comes to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.cluster.record import SEGMENTS_MAX, PartitionRecord, PartitionState, SegmentRecord
from store.errors import StoreError
from store.limits import PARTITIONS_MAX

TAKEN_OFFSETS = 1 << 44
"""Records that a segment cannot have: 100,000 a second for five years. A partition can be taken over 500 times before
its offsets leave what JavaScript counts exactly."""


class ChainFull(StoreError):
    """The partition has as many segments as a record can hold. It can move again when old ones have expired."""


def queue_id_for(partition: int, epoch: int) -> int:
    """The embedded queue in which a partition's segment of an epoch lies: the partition's own number in epoch 0, and
    one that no other partition or epoch has later. `store.topics.partition_of` and `epoch_of` are its inverse."""
    return epoch * PARTITIONS_MAX + partition


def intent(record: PartitionRecord, to: str) -> PartitionRecord:
    """The record in which a move to broker `to` has begun, also when another one was begun and left. Raises
    ChainFull."""
    if len(record.segments) >= SEGMENTS_MAX:
        raise ChainFull(
            f"The partition has {SEGMENTS_MAX} segments, as many as it can have: it can move again when the records of "
            f"the first ones have expired, or were deleted. Nothing was changed."
        )
    return replace(record, epoch=record.epoch + 1, state=PartitionState.SEALING, to=to)


def commit(
    record: PartitionRecord,
    *,
    end: int,
    owner: str,
    queue: tuple[int | str, int],
    physical: int,
    now_ms: int,
    pid: int | None = None,
    kepoch: int = 0,
) -> PartitionRecord:
    """The record in which a move is done: the open segment of `record`, which is that of the intent, ends at physical
    offset `end`; records go to `queue` of the intent's target from `physical` on. An old segment without any record
    is left out. `pid`, `kepoch`: of the fence of a target that is a Kafka partition. Raises ValueError."""
    last = record.open_segment
    if record.state is not PartitionState.SEALING or record.to is None:
        raise ValueError("only a move that was begun can be committed")
    if end < last.physical:
        raise ValueError(f"the segment begins at {last.physical} and cannot end at {end}")
    sealed = replace(last, end=end, to_ms=now_ms)
    opened = SegmentRecord(
        start=sealed.next_start,
        broker=record.to,
        queue=queue,
        physical=physical,
        epoch=record.epoch,
        from_ms=now_ms,
        pid=pid,
        kepoch=kepoch,
    )
    before = record.segments[:-1] if end == last.physical else (*record.segments[:-1], sealed)
    return replace(
        record,
        owner=owner,
        state=PartitionState.NORMAL,
        to=None,
        verified=physical,
        segments=(*before, opened),
    )


def take_over(
    record: PartitionRecord, *, owner: str, queue: tuple[int | str, int], physical: int, now_ms: int
) -> PartitionRecord:
    """As `commit`, without the broker of the open segment."""
    last = record.open_segment
    done = commit(record, end=last.physical + TAKEN_OFFSETS, owner=owner, queue=queue, physical=physical, now_ms=now_ms)
    *before, sealed, opened = done.segments
    return replace(done, segments=(*before, replace(sealed, taken=True), opened))


def trim(record: PartitionRecord, min_offsets: Sequence[int]) -> PartitionRecord:
    """The record without the first segments all of whose records have expired; `min_offsets`: the first offset that
    each segment's queue still has. Their queues may be deleted when this is committed."""
    count = 0
    for segment, min_offset in zip(record.segments[:-1], min_offsets, strict=False):
        if segment.end is None or min_offset < segment.end:
            break
        count += 1
    return replace(record, segments=record.segments[count:]) if count else record

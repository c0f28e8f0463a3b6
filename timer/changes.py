"""Cancel, move, fire now: how a pending schedule is consumed before it is due. Pure.

A change is appended to `__timer` as an entry of its own, and is durable as soon as that entry is:

    record 0 .. n-1    tombstones: no key, no value; the delay has topic id 0, the reason as partition, and due time and
                       origin of what it consumes; sources[i] names the accepted copy that tombstone i consumes
    record n .. n+k-1  the new copies of what was moved or is to fire now: record, new due time, old origin

So whatever consumes a copy, a delivery, a roll or a change, names it as a source, and recovery learns of all three in
the same way. A tombstone is not scheduled in the wheel; when it is met in `__timer`, the unit of the copy it names is
marked in the timer log, and from then on costs no memory. To fire now is to move to now.

The id of a moved schedule has its new due time; the old id names nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from store import record_batch
from store.record_batch import Record
from store.topics import TIMER_QUEUE
from store.types import Append, Delay, Source
from timer.record_cache import Picked
from timer.timer_log import MAGIC_DELETE, MAGIC_FIRED, MAGIC_MOVED, Unit

TOMBSTONE_TOPIC_ID = 0
"""No topic has it."""

NO_SCHEDULE = Delay(0, TOMBSTONE_TOPIC_ID, 255)
"""Of a record of `__timer` that is neither a schedule nor a tombstone: where the log has others beside them."""


class Reason(IntEnum):
    """Why a schedule was consumed before it was due."""

    CANCELLED = 0
    MOVED = 1
    FIRED = 2


class Changed(NamedTuple):
    """A copy that a change has consumed, whose tombstone is not met yet."""

    reason: Reason
    position: int
    """Of its unit in the timer log."""


MARKS = {
    Reason.CANCELLED: MAGIC_DELETE,
    Reason.MOVED: MAGIC_DELETE | MAGIC_MOVED,
    Reason.FIRED: MAGIC_DELETE | MAGIC_FIRED,
}
"""The bits that a unit's magic gets when its tombstone is met."""


class Standing(Enum):
    """What has become of one accepted copy, or of the schedule an id names."""

    PENDING = "pending"
    DELIVERED = "delivered"
    ROLLED = "rolled"  # of a copy only: another copy waits in its place
    MOVED = "moved"  # of a copy only
    UNKNOWN = "unknown"  # cancelled or moved away, or never accepted, or so long ago that the log does not know it


@dataclass(slots=True)
class Change:
    """One change that waits to be decided. `position` is of the copy's unit in the timer log."""

    position: int
    reason: Reason
    due_ms: int = 0  # the new one
    is_decided: bool = False
    is_done: bool = False  # else the copy was no longer pending
    error: Exception | None = None
    unit: Unit | None = None
    moved: Picked | None = None
    copy: Source | None = None  # the new one

    @property
    def source(self) -> Source:
        """The copy that is consumed."""
        assert self.unit is not None
        return Source(self.unit.entry_position, self.unit.record_index)


def encode_changes(changes: Sequence[Change], now_ms: int) -> Append:
    """The append that does all of `changes`. Raises RecordTooLarge."""
    records = [Record(None, None, now_ms)] * len(changes)
    delays = []
    tag_hashes = [0] * len(changes)
    json_values = True
    for change in changes:
        assert change.unit is not None
        delays.append(Delay(change.unit.due_ms, TOMBSTONE_TOPIC_ID, change.reason, *change.source))
    for change in changes:
        if (moved := change.moved) is not None:
            record, delay = moved.record, moved.delay
            origin = delay.origin_position, delay.origin_index
            if delay.origin_position < 0:
                origin = change.source
            records.append(record)
            delays.append(Delay(change.due_ms, delay.topic_id, delay.partition, *origin))
            tag_hashes.append(moved.tag_hash)
            json_values = json_values and moved.json_values
    return Append(
        queue=TIMER_QUEUE,
        batch=record_batch.encode(records),
        record_count=len(records),
        json_values=json_values,
        tag_hashes=tag_hashes if any(tag_hashes) else (),
        delays=delays,
        sources=[change.source for change in changes],
    )

"""What the stages of one timer share: its files, its marks, what is pending, and who has consumed which copy.

Each field has one stage that writes it, named beside it; the others only look. All of it belongs to the event loop.

Invariant
    S1  Every schedule accepted and neither delivered, dropped nor cancelled is counted once: among what is scheduled
        (`pending.total`), or among the records of `__timer` from the queue offset on, less the tombstones among
        these.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from store.clock import Clock
from store.topics import TIMER_QUEUE
from store.types import Source
from timer.changes import MARKS, Changed, Standing
from timer.config import TimerConfig
from timer.errors import TimerBusy
from timer.items import item_of
from timer.key_rows import KeyRows
from timer.metrics import TimerMetrics
from timer.open_slots import OpenSlots
from timer.pending_counts import PendingCounts
from timer.ports import Log, Target
from timer.ready import Ready
from timer.record_cache import RecordCache
from timer.timer_log import MAGIC_DELETE, MAGIC_FIRED, MAGIC_MOVED, MAGIC_ROLL, TimerLog, Unit
from timer.wheel import Wheel

PATIENCE_MS = 5000
"""How long a change or a look waits for what was accepted before it to be scheduled in the wheel."""

TURN_UNITS = 64
"""Units walked, or records scheduled or taken, between two turns of the event loop: a sixth of a millisecond.
A client's request takes a few turns, and all stages may be busy at once."""


@dataclass(slots=True, kw_only=True)
class TimerState:
    """The state between the stages."""

    config: TimerConfig
    log: Log
    clock: Clock
    metrics: TimerMetrics
    record_cache: RecordCache
    ready: Ready
    wheel: Wheel
    timer_log: TimerLog
    open: OpenSlots
    key_rows: KeyRows

    # Written by intake.
    queue_offset: int  # the next record of `__timer` to schedule
    queue_end_at_start: int
    intake_position: int  # no entry that is still to be scheduled lies before it
    pending: PendingCounts  # of what is scheduled; written by all that add or remove

    # What recovery found consumed, until it is met again. Emptied by intake and delivering.
    consumed_scheduled: dict[Source, int]  # with the seconds of their slots
    consumed_queued: set[Source]
    delivered_from_at_start: int
    delivered_until_s: int  # slots that held any of `consumed_scheduled` are before it

    # Written by changing; given up again by intake, which meets the tombstones.
    changed: dict[Source, Changed] = field(default_factory=dict)  # consumed by changes whose tombstones were not met
    tombstone_count: int = 0  # ... and how many those are
    awaited: dict[Source, asyncio.Future[tuple[Target, int]]] = field(default_factory=dict)  # copies to fire now

    record_bytes: int = 0  # written by firing: of the records read last, on average

    # Signals.
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # something earlier may have become due
    room: asyncio.Event = field(default_factory=asyncio.Event)  # intake may go on
    drained: asyncio.Event = field(default_factory=asyncio.Event)  # there may be room to load more of a slot
    scheduled: asyncio.Event = field(default_factory=asyncio.Event)  # intake went on
    leaving: asyncio.Lock = field(default_factory=asyncio.Lock)  # one go of deliveries, or of changes, at a time

    @property
    def is_catching_up(self) -> bool:
        """Whether records accepted before the start are still to be scheduled. Time stands still for the wheel
        meanwhile: they are scheduled where they are due, and no slot is opened, so that what is overdue is delivered
        oldest first. Not while a full disk or full memory holds up intake: then what is scheduled is delivered, for
        which slots are opened and loaded."""
        is_held_up = self.open.is_full() or self.timer_log.unwritten_bytes >= self.config.unwritten_bytes_max
        return self.queue_offset < self.queue_end_at_start and not is_held_up

    @property
    def intake_lag_count(self) -> int:
        """Accepted records that are not in the wheel yet."""
        return self.log.bounds(TIMER_QUEUE).max_offset - self.queue_offset

    @property
    def pending_count(self) -> int:
        """Schedules that are pending (S1)."""
        return self.pending.total + self.intake_lag_count - self.tombstone_count

    async def caught_up(self, end_offset: int | None = None) -> None:
        """Wait until all records of `__timer` before an offset (by default: all that were accepted before the call) are
        in the wheel. Raises TimerBusy when that takes long."""
        end = self.log.bounds(TIMER_QUEUE).max_offset if end_offset is None else end_offset
        try:
            async with asyncio.timeout(PATIENCE_MS / 1000):
                while self.queue_offset < end:
                    self.scheduled.clear()
                    await self.scheduled.wait()
        except TimeoutError:
            raise TimerBusy(
                "delayed records accepted before are still on their way into the wheel; try again"
            ) from None

    def standing_of(self, unit: Unit) -> Standing:
        """What became of one copy. While it is being delivered it is pending; while it is being changed it is not."""
        source = Source(unit.entry_position, unit.record_index)
        changed = self.changed.get(source)
        magic = unit.magic if changed is None else unit.magic | MARKS[changed.reason]
        if magic & MAGIC_DELETE:
            if magic & MAGIC_FIRED:
                return Standing.DELIVERED
            return Standing.MOVED if magic & MAGIC_MOVED else Standing.UNKNOWN
        slot_s = unit.slot_s
        open_slots = self.open
        if source not in self.consumed_scheduled and (
            slot_s >= open_slots.write_mark_s
            or (slot_s >= open_slots.read_mark_s and open_slots.is_waiting(item_of(unit)))
        ):
            return Standing.PENDING
        return Standing.ROLLED if magic & MAGIC_ROLL else Standing.DELIVERED

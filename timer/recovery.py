"""Opening the timer's files: what a restart trusts, what it rebuilds, and which schedules are already delivered.

    after a clean stop    the wheel file is complete; only the slots that were open are walked
    after a crash         the timer log is cut at the checkpoint, the wheel rebuilt from it, and `__timer` read again
                          from the checkpoint's queue offset on
    no usable files       (none yet, or damaged) everything is rebuilt from the log: they hold no fact of their own
    what was saved        (timer/saved.py, by another timer of the same log) the files are made of it, the rest is as
                          after a crash

In each case the sources of the entries appended since the checkpoint's `delivered from` say which schedules have been
delivered or rolled already. Only those are kept that recovery will meet again, so the set ends empty: *scheduled* ones
have a unit in the timer log; *queued* ones will be met on the way from the queue offset to the end of `__timer`.

Why nothing is lost or doubled: a schedule accepted before the checkpoint has a durable unit in a slot at or after the
read mark, or was delivered for good; one accepted later is found from the queue offset on. A delivery made before the
crash lies at or after `delivered from`: out of slots open at the checkpoint by that field's definition, any other was
appended after the checkpoint. The same holds for what a change (cancel, move, fire now) consumed: its unit is marked
once the tombstone in `__timer` is met (timer/changes.py); a checkpoint's `delivered from` lies at or before every entry
of `__timer` that its queue offset does not cover.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from store.errors import Corrupt
from store.topics import TIMER_QUEUE
from store.types import Bounds, QueueKey, Source
from timer.checkpoint import Checkpoint
from timer.pending_counts import PendingCounts
from timer.pending_file import PendingFile
from timer.saved import Saved
from timer.timer_log import MAGIC_DELETE, MAGIC_ROLL, UNIT_BYTES, TimerLog
from timer.wheel import NOWHERE, Wheel

log = logging.getLogger(__name__)

_TURN_UNITS = 256  # of what was saved: some milliseconds


class RecoveryLog(Protocol):
    """What recovery asks of the store."""

    @property
    def end_position(self) -> int:
        """As `Log.end_position`."""
        ...

    def bounds(self, queue: QueueKey) -> Bounds:
        """As `Log.bounds`."""
        ...

    async def sources_since(self, position: int) -> set[Source]:
        """As `Log.sources_since`."""
        ...

    async def yield_to_loop(self) -> None:
        """As `Log.yield_to_loop`."""
        ...


class Recovered(NamedTuple):
    """The state to go on from."""

    queue_offset: int
    queue_end: int  # the end of `__timer` at recovery
    read_mark_s: int
    delivered_until_s: int  # all slots that hold any of `scheduled` are before it
    delivered_from: int
    pending: PendingCounts  # units in slots from the read mark on, but those consumed
    scheduled: dict[Source, int]  # with the seconds of their slots
    queued: set[Source]
    outcome: str  # "clean", "crash", "rebuilt" or "saved", for the log line and the tests


async def recover(
    checkpoint: Checkpoint | None,
    wheel: Wheel,
    timer_log: TimerLog,
    pending_file: PendingFile,
    store_log: RecoveryLog,
    *,
    now_s: int,
    saved: Saved | None = None,
) -> Recovered:
    """Open the timer log, make the wheel agree with it, and say where to go on."""
    bounds = store_log.bounds(TIMER_QUEUE)
    if checkpoint is not None:
        try:
            recovered = await _from_checkpoint(checkpoint, wheel, timer_log, pending_file, store_log, bounds)
        except Corrupt as damage:
            log.warning("timer files damaged, rebuilding them from the log: %s", damage)
        else:
            log.info(
                "timer recovered (%s): pending=%d queue offset=%d read mark=%d",
                recovered.outcome, recovered.pending.total, recovered.queue_offset,
                recovered.read_mark_s,
            )  # fmt: skip
            return recovered
    timer_log.reset()
    wheel.reset()
    if saved is not None:
        return await _from_saved(saved, wheel, timer_log, store_log, bounds)
    queued = await store_log.sources_since(0)
    return Recovered(bounds.min_offset, bounds.max_offset, now_s, now_s, 0, PendingCounts(), {}, queued, "rebuilt")


async def _from_checkpoint(
    checkpoint: Checkpoint,
    wheel: Wheel,
    timer_log: TimerLog,
    pending_file: PendingFile,
    store_log: RecoveryLog,
    bounds: Bounds,
) -> Recovered:
    log_end = store_log.end_position
    read_mark_s = checkpoint.read_mark_s
    delivered_from = min(checkpoint.delivered_from, log_end)
    queue_offset = min(checkpoint.queue_offset, bounds.max_offset)
    if queue_offset < bounds.min_offset:
        log.error(
            "timer: retention removed records %d to %d of __timer before they were scheduled",
            queue_offset, bounds.min_offset - 1,
        )  # fmt: skip
        queue_offset = bounds.min_offset
    timer_log.open(checkpoint.log_end)
    sources = await store_log.sources_since(delivered_from)
    last = _last_source(timer_log)
    pending = pending_file.read(checkpoint.log_end, checkpoint.queue_offset) if checkpoint.clean else None
    if pending is not None and last.position < log_end:
        outcome = "clean"
        delivered_until_s = checkpoint.write_mark_s
        scheduled = _walk_open_slots(wheel, timer_log, read_mark_s, checkpoint.write_mark_s, sources)
        if queue_offset < bounds.max_offset:
            scheduled |= _look_up(
                timer_log, read_mark_s, sources.difference(scheduled)
            )  # tombstones may be still to be met
    else:
        outcome = "crash"
        pending, scheduled, delivered_until_s = _rebuild_wheel(wheel, timer_log, read_mark_s, log_end, sources)
        last = _last_source(timer_log)
    queued = {source for source in sources if source > last}
    return Recovered(
        queue_offset, bounds.max_offset, read_mark_s, delivered_until_s, delivered_from, pending, scheduled,
        queued, outcome,
    )  # fmt: skip


async def _from_saved(
    saved: Saved, wheel: Wheel, timer_log: TimerLog, store_log: RecoveryLog, bounds: Bounds
) -> Recovered:
    """Hang what was saved into files that are empty."""
    sources = await store_log.sources_since(saved.delivered_from)
    pending = PendingCounts()
    scheduled: dict[Source, int] = {}
    delivered_until_s, last = saved.read_mark_s, Source(-1, -1)
    for count, (magic, due_ms, position, size, index, topic_id, slot_s) in enumerate(saved.units(), 1):
        last = Source(position, index)
        timer_log.append(
            wheel.add(slot_s, timer_log.end), magic, due_ms, position, size, index, topic_id, slot_s
        )  # fmt: skip
        if last in sources:
            scheduled[last] = slot_s
            delivered_until_s = max(delivered_until_s, slot_s + 1)
        else:
            pending.add(topic_id, due_ms, rolls=bool(magic & MAGIC_ROLL))
        if count % _TURN_UNITS == 0:
            await store_log.yield_to_loop()
    queued = {source for source in sources if source > last}
    return Recovered(
        saved.queue_offset, bounds.max_offset, saved.read_mark_s, delivered_until_s, saved.delivered_from, pending,
        scheduled, queued, "saved",
    )  # fmt: skip


def _last_source(timer_log: TimerLog) -> Source:
    """The newest schedule in the timer log; one before all others when it is empty."""
    if timer_log.end == timer_log.start:
        return Source(-1, -1)
    unit = timer_log.read(timer_log.end - UNIT_BYTES)
    return Source(unit.entry_position, unit.record_index)


def _walk_open_slots(
    wheel: Wheel, timer_log: TimerLog, from_s: int, to_s: int, sources: set[Source]
) -> dict[Source, int]:
    """Which of `sources` are in the slots [from_s, to_s)."""
    scheduled: dict[Source, int] = {}
    slot_s = wheel.next_occupied(from_s, to_s) if sources else None
    while slot_s is not None:
        position = wheel.at(slot_s).last
        while position != NOWHERE:
            unit = timer_log.read(position)
            source = Source(unit.entry_position, unit.record_index)
            if source in sources and not unit.magic & MAGIC_DELETE:
                scheduled[source] = slot_s
            position = unit.previous
        slot_s = wheel.next_occupied(slot_s + 1, to_s)
    return scheduled


def _look_up(timer_log: TimerLog, read_mark_s: int, sources: set[Source]) -> dict[Source, int]:
    """Which of `sources` are in slots from the read mark on, whichever they are."""
    scheduled: dict[Source, int] = {}
    for source in sources:
        position = timer_log.find(*source)
        if position is not None:
            unit = timer_log.read(position)
            if unit.slot_s >= read_mark_s and not unit.magic & MAGIC_DELETE:
                scheduled[source] = unit.slot_s
    return scheduled


def _rebuild_wheel(
    wheel: Wheel, timer_log: TimerLog, read_mark_s: int, log_end: int, sources: set[Source]
) -> tuple[PendingCounts, dict[Source, int], int]:
    """Hang every unit from the read mark on again; return the counts of what is pending, which of `sources` they are,
    and the end of the slots those are in.

    Units of entries that the commit log no longer has (it was answered before it was flushed, and the power failed)
    are cut off: they stand at the end (L1).
    """
    wheel.reset()
    pending = PendingCounts()
    scheduled: dict[Source, int] = {}
    delivered_until_s = read_mark_s
    for position, unit in timer_log.scan():
        if unit.entry_position + unit.entry_size > log_end:
            log.warning("timer: the log ends before the entries of some schedules; cutting the timer log")
            timer_log.cut(position)
            break
        if unit.slot_s < read_mark_s:
            continue
        if wheel.add(unit.slot_s, position) != unit.previous:
            raise Corrupt("timerlog", position, f"the unit does not follow the last one of its slot {unit.slot_s}")
        if unit.magic & MAGIC_DELETE:
            wheel.release(unit.slot_s)
            continue
        if sources and (source := Source(unit.entry_position, unit.record_index)) in sources:
            scheduled[source] = unit.slot_s
            delivered_until_s = max(delivered_until_s, unit.slot_s + 1)
        else:
            pending.add(unit.topic_id, unit.due_ms, rolls=bool(unit.magic & MAGIC_ROLL))
    return pending, scheduled, delivered_until_s

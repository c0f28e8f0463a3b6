"""Cancel, move, fire now: changes of pending schedules, decided one go after the other.

    find        the copy that waits now (timer/schedules.py)
    claim       if it is still pending, no delivery takes it from here on
    append      one entry of `__timer` for all changes of the go (timer/changes.py): durable, and so done
    meet        intake meets the tombstones, marks the units and gives up the claims

Changes and deliveries exclude each other by one lock, so a copy has one consumer, and each answer is exact: done,
delivered already, or unknown. All changes that wait share one append.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from store.errors import Corrupt, DiskFull, Overloaded, RecordTooLarge, StoreError, StoreStopped, UnknownQueue
from store.types import Acks, Appended, Source
from timer.accepting import Accepting
from timer.changes import Change, Changed, Reason, Standing, encode_changes
from timer.errors import TimerBusy
from timer.pending_counts import MINUTE_MS
from timer.ports import Target
from timer.record_cache import pick
from timer.schedule import ScheduleId
from timer.schedules import TRIES, Query, Schedules
from timer.state import PATIENCE_MS, TURN_UNITS, TimerState
from timer.timer_log import MAGIC_ROLL

_CHANGES_PER_GO = 1000
"""What one append does, and with it one turn of the event loop: some milliseconds."""


class Outcome(NamedTuple):
    """What a change did. `standing` PENDING: it was done, and `schedule` is the id that names the schedule from now on
    (of a cancel: the id that named it). DELIVERED or UNKNOWN: it was not. `target` and `offset` are where a record
    fired now went."""

    standing: Standing
    schedule: ScheduleId
    target: Target | None = None
    offset: int = -1


class Changing:
    """Changes schedules for its callers; any number of callers at a time."""

    def __init__(self, state: TimerState, schedules: Schedules, accepting: Accepting) -> None:
        self._state = state
        self._schedules = schedules
        self._accepting = accepting
        self._changes: list[Change] = []  # these wait to be decided

    async def cancel(self, schedule: ScheduleId) -> Outcome:
        """Have a schedule never delivered. Durable on return. Raises what `Log.append` raises, TimerBusy, Corrupt."""
        outcome, _ = await self._change(schedule, Reason.CANCELLED, 0)
        return outcome

    async def move(self, schedule: ScheduleId, due_ms: int) -> Outcome:
        """Give a schedule another due time, and with it another id. Durable on return. Raises as `cancel`;
        TooManySchedules when no more are accepted for that second."""
        with self._accepting.room_at(due_ms):
            outcome, _ = await self._change(schedule, Reason.MOVED, due_ms)
        return outcome

    async def fire(self, schedule: ScheduleId) -> Outcome:
        """Deliver a schedule now. Delivered durably on return. Raises as `cancel`; UnknownQueue when its queue is gone;
        TimerBusy also when it is due now but its delivery takes long."""
        outcome, change = await self._change(schedule, Reason.FIRED, self._state.clock.now_ms())
        if change is None or change.copy is None:
            return outcome
        delivery = self._state.awaited[change.copy]
        try:
            async with asyncio.timeout(PATIENCE_MS / 1000):
                target, offset = await delivery
        except TimeoutError:
            raise TimerBusy(
                "the schedule is due now, and will be delivered behind others that are; ask again what became of it"
            ) from None
        finally:
            self._state.awaited.pop(change.copy, None)
        return outcome._replace(target=target, offset=offset)

    async def cancel_all(self, query: Query) -> int:
        """Cancel all pending schedules that are meant, in goes of some thousand; return how many were. Durable on
        return; on an error those of earlier goes are cancelled. Raises as `cancel`."""
        cancelled_count = 0
        cursor: int | None = 0
        while cursor is not None:
            # What was there at the call is in the wheel after the first go; later ones need not wait for tombstones.
            positions, cursor = await self._schedules.positions(
                query, cursor=cursor, limit=_CHANGES_PER_GO, waits=cursor == 0
            )
            changes = [Change(position, Reason.CANCELLED) for position in positions]
            await self._decide(changes)
            cancelled_count += sum(change.is_done for change in changes)
        return cancelled_count

    async def _change(self, schedule: ScheduleId, reason: Reason, due_ms: int) -> tuple[Outcome, Change | None]:
        """Find the copy that waits now, and change it; again when it was copied in between."""
        for _ in range(TRIES):
            found = await self._schedules.find(schedule)
            if found.standing is not Standing.PENDING:
                return Outcome(found.standing, schedule), None
            change = Change(found.position, reason, due_ms)
            await self._decide([change])
            if change.is_done:
                named = schedule if reason is Reason.CANCELLED else schedule._replace(due_ms=due_ms)
                return Outcome(Standing.PENDING, named), change
        raise TimerBusy("the schedule is being copied all the time; try again")

    async def _decide(self, changes: list[Change]) -> None:
        """Have changes decided, with all others that wait. Raises the error of the first that has one."""
        self._changes += changes
        while not all(change.is_decided for change in changes):
            await asyncio.shield(self._step())  # never cancelled between its decisions and their append
        for change in changes:
            if change.error is not None:
                raise change.error

    async def _step(self) -> None:
        """Decide the next changes that wait, and append those that can be done in one go."""
        async with self._state.leaving:
            changes, self._changes = self._changes[:_CHANGES_PER_GO], self._changes[_CHANGES_PER_GO:]
            if not changes:
                return
            try:
                await self._go(changes)
            except Exception as error:
                for change in changes:
                    if not change.is_done:
                        change.error = error
            finally:
                for change in changes:
                    change.is_decided = True

    async def _go(self, changes: list[Change]) -> None:
        if self._state.open.withdrawn_count >= self._state.config.heap_count_max:
            raise TimerBusy("many schedules that are due have been cancelled; try again")
        for change in changes:
            if change.reason is not Reason.CANCELLED:
                await self._take_body(change)
        claimed: list[Change] = []
        try:
            for start in range(0, len(changes), TURN_UNITS):
                claimed += (change for change in changes[start : start + TURN_UNITS] if self._claim(change))
                await self._state.log.yield_to_loop()
        except Corrupt:
            self._unclaim(claimed)
            raise
        groups = list(_go_sizes(claimed, self._state.config.batch_bytes_max))
        for number, group in enumerate(groups):
            try:
                append = encode_changes(group, self._state.clock.now_ms())
                (appended,) = await self._state.log.append([append], acks=Acks.FLUSHED)
            except (Overloaded, DiskFull, RecordTooLarge, UnknownQueue):  # nothing was stored
                for rest in groups[number:]:
                    self._unclaim(rest)
                raise
            self._changed_durably(group, appended)

    async def _take_body(self, change: Change) -> None:
        """Read the record of a schedule that is to be copied."""
        try:
            unit = self._state.timer_log.read(change.position)
            if self._state.standing_of(unit) is Standing.PENDING:
                source = Source(unit.entry_position, unit.record_index)
                change.moved = pick(source, await self._state.record_cache.get(source.position, (source.record_index,)))
        except StoreStopped:
            raise
        except StoreError as error:
            change.error = error

    def _claim(self, change: Change) -> bool:
        """Keep a copy that is pending from being delivered; False when it is not pending any more."""
        unit = change.unit = self._state.timer_log.read(change.position)
        if change.error is not None or self._state.standing_of(unit) is not Standing.PENDING:
            return False
        self._state.changed[change.source] = Changed(change.reason, change.position)
        return True

    def _unclaim(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._state.changed.pop(change.source, None)

    def _changed_durably(self, changes: list[Change], appended: Appended) -> None:
        """Count changes whose entry is durable. Their units are marked when their tombstones are met."""
        metrics = self._state.metrics
        copy_index = len(changes)
        removed: Counter[tuple[int, int, bool]] = Counter()
        for change in changes:
            assert change.unit is not None
            change.is_done = True
            unit = change.unit
            removed[unit.topic_id, unit.due_ms // MINUTE_MS, bool(unit.magic & MAGIC_ROLL)] += 1
            if change.reason is Reason.CANCELLED:
                metrics.cancelled_count += 1
                continue
            metrics.moved_count += 1
            change.copy = Source(appended.position, copy_index)
            copy_index += 1
            if change.reason is Reason.FIRED:
                self._state.awaited[change.copy] = asyncio.get_running_loop().create_future()
        for (topic_id, minute, rolls), count in removed.items():
            self._state.pending.remove(topic_id, minute * MINUTE_MS, rolls=rolls, count=count)
        self._state.tombstone_count += len(changes)


def _go_sizes(changes: list[Change], bytes_max: int) -> Iterator[list[Change]]:
    """Changes cut into groups of about `bytes_max` of records to copy."""
    group: list[Change] = []
    size_bytes = 0
    for change in changes:
        moved_bytes = 0 if change.moved is None else change.moved.size_bytes
        if group and size_bytes + moved_bytes > bytes_max:
            yield group
            group, size_bytes = [], 0
        group.append(change)
        size_bytes += moved_bytes
    if group:
        yield group

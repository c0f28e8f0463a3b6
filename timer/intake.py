"""Stages one and two of the timer: from `__timer` into the timer log and the wheel.

    enqueue get     read `__timer` from the queue offset on
    enqueue put     unit into the timer log, position into the wheel; into memory too when the slot is open. A tombstone
                    is not scheduled: it marks the unit of what it consumed

Invariants
    E1  A unit names only what the log shows as durable; `Log` shows nothing else.
    E2  Slots in use span less than two laps: nothing is scheduled while the read mark is a lap behind the clock.
    E3  Between two turns of the event loop the timer log, the wheel, the counts and the queue offset agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from store.limits import MiB
from store.topics import TIMER_QUEUE
from store.types import Entry, ReadStatus, Source
from store.waits import is_set_within
from timer.changes import MARKS, NO_SCHEDULE, TOMBSTONE_TOPIC_ID, Reason
from timer.items import item_of, pack_item
from timer.pending_counts import MINUTE_MS
from timer.ports import TopicKey
from timer.schedule import LAP_SLOTS, SLOT_MS, slot_for
from timer.schedule_keys import keys_of
from timer.state import TURN_UNITS, TimerState
from timer.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL

log = logging.getLogger(__name__)

_READ_BYTES = 1 * MiB
_WAIT_MS = 500

BEHIND_TURNS = 16
BEHIND_UNITS_MAX = 1024
"""In so many turns of the event loop it is to schedule what is behind; but not more of it in one, which takes
milliseconds then. Who lists or cancels schedules waits for all that was accepted before."""

BURST_TURNS = 16
"""Over so many turns at least a burst is spread: what was accepted in one turn can be many milliseconds' work."""

TURN_UNITS_MAX = 4096
"""And this at most is scheduled in one turn, however much is behind: 10 ms, or 20 of schedules with keys."""


class Intake:
    """Hangs accepted schedules into the wheel, in the order of acceptance."""

    def __init__(self, state: TimerState, when_idle: Callable[[], None]) -> None:
        """`when_idle` is called when all that was accepted has been met, and then twice a second."""
        self._state = state
        self._when_idle = when_idle

    async def run(self) -> None:
        """Hang in what comes, until cancelled."""
        state = self._state
        while True:
            if await self.step():
                await state.log.yield_to_loop()
            elif self.may_go_on():
                self._when_idle()
                await state.log.wait_for(TIMER_QUEUE, state.queue_offset, _WAIT_MS)
            else:
                state.room.clear()
                await is_set_within(state.room, _WAIT_MS / 1000)

    async def step(self) -> int:
        """Hang the next accepted schedules in; return how many records were taken (0: none there, or no room)."""
        if not self.may_go_on():
            return 0
        state = self._state
        first_offset = state.queue_offset
        end_offset = state.log.bounds(TIMER_QUEUE).max_offset
        turn_count, turn_count_max = 0, self._turn_count_max(end_offset, end_offset)
        for entry in await self._get():
            keys = await self._keys_of(entry)
            while state.queue_offset < entry.next_offset:
                if not self.may_go_on():
                    return state.queue_offset - first_offset
                put_from = state.queue_offset
                self._put(entry, keys)
                turn_count += state.queue_offset - put_from
                if turn_count >= turn_count_max:
                    await state.log.yield_to_loop()
                    seen_offset, end_offset = end_offset, state.log.bounds(TIMER_QUEUE).max_offset
                    turn_count, turn_count_max = 0, self._turn_count_max(seen_offset, end_offset)
        return state.queue_offset - first_offset

    async def _keys_of(self, entry: Entry) -> Iterator[bytes | None] | None:
        """The schedule keys of the records of an entry that are still to be put. They are decoded with `_put`, at its
        pace: all of them before it, in turns of their own, left the wheel seconds behind."""
        keys = keys_of(entry)
        if keys is not None:
            for number in range(self._state.queue_offset - entry.base_offset):  # there was no room for more of it
                next(keys)
                if number % TURN_UNITS == 0:
                    await self._state.log.yield_to_loop()
        return keys

    def _turn_count_max(self, seen_offset: int, end_offset: int) -> int:
        """How many records to schedule before the event loop has its next turn: as many as were accepted in the last
        one (those from `seen_offset` on), so that senders cannot leave the wheel behind, and some that are behind; of a
        burst a part."""
        behind_count = end_offset - self._state.queue_offset
        count = end_offset - seen_offset + min(behind_count // BEHIND_TURNS, BEHIND_UNITS_MAX)
        return max(TURN_UNITS, min(count, max(BEHIND_UNITS_MAX, behind_count // BURST_TURNS), TURN_UNITS_MAX))

    def may_go_on(self) -> bool:
        """False while memory is full of what fires at once, units wait for a full disk, or E2 forbids it."""
        state = self._state
        return (
            not state.open.is_full()
            and state.timer_log.unwritten_bytes < state.config.unwritten_bytes_max
            and self._base_s() - state.open.read_mark_s <= LAP_SLOTS
        )

    def _base_s(self) -> int:
        """The second from which slots are reckoned: now, or the write mark when it is ahead, or time stands still."""
        state = self._state
        write_mark_s = state.open.write_mark_s
        return write_mark_s if state.is_catching_up else max(write_mark_s, state.clock.now_ms() // SLOT_MS)

    async def _get(self) -> list[Entry]:
        state = self._state
        result = await state.log.read(TIMER_QUEUE, state.queue_offset, max_bytes=_READ_BYTES)
        if result.status is ReadStatus.TOO_SMALL:
            log.error(
                "timer: retention removed records %d to %d of __timer before they were scheduled",
                state.queue_offset, result.min_offset - 1,
            )  # fmt: skip
            state.queue_offset = result.min_offset
        return result.entries

    def _put(self, entry: Entry, keys: Iterator[bytes | None] | None) -> None:
        """Hang the next records of one entry, at most TURN_UNITS. No await inside (E3)."""
        state = self._state
        wheel_add = state.wheel.add
        timer_log = state.timer_log
        open_slots = state.open
        log_end = state.log.end_position
        roll_window_ms = state.config.roll_window_ms
        added: dict[tuple[int, int, bool], int] = {}
        base_ms = self._base_s() * SLOT_MS
        read_mark_s = open_slots.read_mark_s
        write_mark_s = open_slots.write_mark_s
        consumed = state.consumed_queued
        position, entry_size = entry.position, entry.size
        accepted_count = 0
        first_offset = state.queue_offset
        start = first_offset - entry.base_offset
        stop = min(start + TURN_UNITS, entry.record_count)
        arrived = False
        for index, delay in enumerate(entry.delays[start:stop], start):
            key = None if keys is None else next(keys)
            if consumed and (source := Source(position, index)) in consumed:
                consumed.discard(source)
                state.metrics.already_delivered_count += 1
                if key is not None:  # whose row would go on naming the copy before it
                    state.key_rows.meet(TopicKey(delay.topic_id, key), source, read_mark_s)
                continue
            due_ms, topic_id, _, origin_position, _ = delay
            if topic_id == TOMBSTONE_TOPIC_ID:
                if delay == NO_SCHEDULE:
                    continue
                self._meet_tombstone(entry.sources[index], Reason(delay.partition))
                if entry.base_offset + index >= state.queue_end_at_start:
                    state.tombstone_count -= 1
                arrived = True
                continue
            if due_ms - base_ms < roll_window_ms:  # as `slot_for`, whose answer is an object
                slot_s, rolls = due_ms // SLOT_MS, False
            else:
                slot_s, rolls = slot_for(due_ms, base_ms, roll_window_ms)
            if slot_s < read_mark_s:
                slot_s = read_mark_s
            timer_log.append(
                wheel_add(slot_s, timer_log.end),
                MAGIC_ROLL if rolls else MAGIC_DEFAULT,
                due_ms,
                position,
                entry_size,
                index,
                topic_id,
                slot_s,
            )
            if key is not None:
                state.key_rows.meet(TopicKey(topic_id, key), Source(position, index), slot_s)
            added_to = topic_id, due_ms // MINUTE_MS, rolls
            added[added_to] = added.get(added_to, 0) + 1
            if origin_position < 0:
                accepted_count += 1
            if slot_s < write_mark_s:
                fire_ms = slot_s * SLOT_MS if rolls else due_ms
                open_slots.arrive(pack_item(fire_ms, position, index, slot_s, rolls), log_end)
                arrived = True
        for (topic_id, minute, rolls), count in added.items():
            state.pending.add(topic_id, minute * MINUTE_MS, rolls=rolls, count=count)
        state.metrics.accepted_count += accepted_count
        state.queue_offset = entry.base_offset + stop
        state.intake_position = position + entry_size if stop == entry.record_count else position
        state.scheduled.set()
        if first_offset < state.queue_end_at_start <= state.queue_offset:
            self._catch_up_with_start()
        if arrived:
            state.wake.set()

    def _catch_up_with_start(self) -> None:
        """All tombstones that were there at the start are met: what else was consumed lies in slots that had been
        opened."""
        state = self._state
        state.drained.set()  # slots may be opened
        state.consumed_queued.clear()
        until_s = max(state.consumed_scheduled.values(), default=0) + 1
        state.delivered_until_s = min(state.delivered_until_s, max(until_s, state.open.write_mark_s))

    def _meet_tombstone(self, source: Source, reason: Reason) -> None:
        """Mark the unit of a copy that a change has consumed, so that its slot's walk passes over it."""
        state = self._state
        changed = state.changed.pop(source, None)
        # To find it takes 20 reads; that is for a start, where it is not known what was changed before.
        position = state.timer_log.find(*source) if changed is None else changed.position
        if position is not None:
            unit = state.timer_log.read(position)
            if not unit.magic & MAGIC_DELETE:
                state.timer_log.mark(position, unit.magic | MARKS[reason])
                state.wheel.release(unit.slot_s)
            item = item_of(unit)
            state.open.withdraw(item)  # the walk may have been there before
            state.ready.drop((item,))
        state.consumed_scheduled.pop(source, None)

"""The way in: a delayed record becomes an append to `__timer`, when there is room for it.

Two bounds, both answered before anything is stored: on all schedules that are pending, and on those of one second (what
must be delivered as fast as the disk takes it). Never is one too many accepted: what comes counts from before its
append on, and for the moment in which that is being answered twice. In its second it counts first here, by the records
of `__timer` that are not in the wheel yet, then in its slot of the wheel. A second gets room back when a schedule of it
is cancelled or moved away, not when it is delivered: then it is nearly over. What rolls first counts in its second once
that is within the roll window, and is never refused then.

A repeat of what was accepted needs no room, and no key of its own: it is answered as a repeat also when nothing more
is accepted, or its key is taken (by what it repeats).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Appended
from store.uncancelled import to_its_end
from timer.errors import ScheduleKeyTaken, TooManySchedules
from timer.ports import TopicKey
from timer.schedule import SLOT_MS
from timer.schedule_keys import ScheduleKeys
from timer.state import TimerState

_InSeconds = dict[int, int]  # epoch second -> schedules


class Accepting:
    """Takes schedules in, within the bounds of the configuration."""

    def __init__(self, state: TimerState, keys: ScheduleKeys) -> None:
        self._state = state
        self._keys = keys
        self._accepting_count = 0  # records in appends under way
        self._unscheduled: _InSeconds = {}  # what is not in the wheel yet; for a moment also some that does
        self._unscheduled_entries: list[tuple[int, _InSeconds]] = []  # heap: by the offset behind each

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See TimerService.schedule."""
        assert append.queue == TIMER_QUEUE
        in_seconds = _by_second(delay.due_ms for delay in append.delays)
        count = len(append.delays)
        wanted = [
            None if key is None else TopicKey(delay.topic_id, key)
            for key, delay in zip(keys, append.delays, strict=bool(keys))
        ]
        try:
            if wanted:
                await self._keys.claim(wanted)
            try:
                self._hold(in_seconds, count)
            except TooManySchedules:
                self._keys.give_back(wanted)
                raise
        except (TooManySchedules, ScheduleKeyTaken):
            await self._state.log.refuse_known([append], acks=acks)
            raise
        appending = self._append(append, in_seconds, wanted, acks)
        # A sender who gives up waiting must not give back the keys of what is stored all the same.
        return await (to_its_end(appending) if wanted else appending)

    async def _append(
        self, append: Append, in_seconds: _InSeconds, keys: Sequence[TopicKey | None], acks: Acks
    ) -> Appended:
        count = len(append.delays)
        try:
            (appended,) = await self._state.log.append([append], acks=acks)
        except BaseException:
            self._let_go(in_seconds)
            self._keys.give_back(keys)
            raise
        finally:
            self._accepting_count -= count
        end_offset = appended.base_offset + count
        heapq.heappush(self._unscheduled_entries, (end_offset, in_seconds))
        if keys:
            self._keys.stored(keys, end_offset)
        return appended

    @contextmanager
    def room_at(self, due_ms: int) -> Iterator[None]:
        """Hold room in a second for a schedule that is pending already. Raises TooManySchedules."""
        in_second = {due_ms // SLOT_MS: 1}
        self._hold(in_second, 0)
        try:
            yield
        finally:
            self._let_go(in_second)

    def _hold(self, in_seconds: _InSeconds, new_count: int) -> None:
        self._forget_scheduled()
        state, unscheduled = self._state, self._unscheduled
        config = state.config
        if state.pending_count + self._accepting_count + new_count > config.pending_count_max:
            raise TooManySchedules(f"{config.pending_count_max} schedules are pending; no more are accepted")
        slot_at = state.wheel.at
        for second_s, count in in_seconds.items():
            if slot_at(second_s).unit_count + unscheduled.get(second_s, 0) + count > config.slot_count_max:
                raise TooManySchedules(
                    f"{config.slot_count_max} schedules are due in second {second_s}; no more are accepted"
                )
        for second_s, count in in_seconds.items():
            unscheduled[second_s] = unscheduled.get(second_s, 0) + count
        self._accepting_count += new_count

    def forget_met(self) -> None:
        """Let go of what is held for records until intake has met them. Each send does so, but what the last ones
        before a pause hold would stay until the next: small objects that keep the allocator from returning the memory
        around them."""
        self._keys.forget_met()
        self._forget_scheduled()

    def _forget_scheduled(self) -> None:
        entries = self._unscheduled_entries
        while entries and entries[0][0] <= self._state.queue_offset:
            self._let_go(heapq.heappop(entries)[1])

    def _let_go(self, in_seconds: _InSeconds) -> None:
        unscheduled = self._unscheduled
        for second_s, count in in_seconds.items():
            if unscheduled[second_s] == count:
                del unscheduled[second_s]
            else:
                unscheduled[second_s] -= count


def _by_second(dues_ms: Iterable[int]) -> _InSeconds:
    in_seconds: _InSeconds = {}
    for due_ms in dues_ms:
        second_s = due_ms // SLOT_MS
        in_seconds[second_s] = in_seconds.get(second_s, 0) + 1
    return in_seconds

"""Accept (some with a schedule key), wait, roll, cancel (one, many), move, fire now, checkpoint, expire, step or strobe
the clock and crash, at random: each record once, never early, never after it was cancelled, the count of what is
pending exact, and each key with one schedule.

Covers timer.recovery and timer.checkpointing, and what they leave in timer.state. Every run is a seed; a failure names
it. `MQ_TIMER_RUNS` sets how many are tried.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import pairwise, product
from random import Random

import pytest

from store.errors import Overloaded
from store.record_batch import decode
from store.types import Acks, Append
from tests.clock import FakeClock
from tests.simdisk import PowerCut, SimDisk
from tests.timer.fakes import TARGET, FakeKeyIndex, FakeLog, keyed_append, make_timer, settle
from timer import schedules
from timer.changes import Reason, Standing
from timer.errors import ScheduleKeyTaken
from timer.pending_counts import MINUTE_MS
from timer.schedule import ScheduleId
from timer.schedules import DuePosition, Query
from timer.service import TimerService
from timer.timer_log import MAGIC_DELETE
from timer.wheel import NOWHERE, SLOTS

RUNS = int(os.environ.get("MQ_TIMER_RUNS", "100"))
OPERATIONS = 60
KEYS = (b"a", b"b", b"c", b"d")
STROBE_MS = 300


class Killed(Exception):
    """The process dies in the middle of an append."""


class Run:
    """One random history. The model is `accepted`: value -> due time, -1 once nothing is owed any more."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = FakeClock()
        self.log = FakeLog(self.clock)
        self.disk = SimDisk()
        self.accepted: dict[bytes, int] = {}
        self.ids: dict[bytes, ScheduleId] = {}
        self.keys: dict[bytes, bytes] = {}  # of those sent with a schedule key
        self.key_index = FakeKeyIndex()
        self.has_strobed = False
        self.gone: list[ScheduleId] = []  # cancelled or moved away
        self.settings = {
            "heap_count_max": self.rng.choice((4, 10, 1000)),
            "fire_records_max": self.rng.choice((1, 3, 100)),
            "timer_log_file_units": self.rng.choice((3, 16, 64)),
            "roll_window_ms": self.rng.choice((2_000, 10_000, 100_000)),
        }
        self.timer: TimerService

    async def start(self) -> None:
        self.timer = make_timer(self.log, self.disk, self.clock, key_index=self.key_index, **self.settings)
        await self.timer.start()

    async def accept(self) -> None:
        rng = self.rng
        batch = []
        for _ in range(rng.choice((1, 1, 3, 12))):
            due_ms = self.clock.now_ms() + rng.choice((-5000, 0, 1, 40, 900, 3000, 9000, 30_000)) + rng.randrange(50)
            value = b"%d" % len(self.accepted)
            self.accepted[value] = due_ms
            batch.append((due_ms, value))
        acks = Acks.FLUSHED if rng.random() < 0.8 else Acks.WRITTEN
        appended = await self.log.accept(batch, acks=acks)
        for index, (due_ms, value) in enumerate(batch):
            self.ids[value] = ScheduleId(due_ms, appended.position, index)

    async def accept_with_keys(self) -> None:
        """Taken are exactly the keys of what is owed, and each leads to its schedule; else all is accepted."""
        self.clock.strobe(0)
        if not await self._is_settled():
            return
        rng = self.rng
        holders = {self.keys[value]: self.ids[value] for value in self._owed() & self.keys.keys()}
        for key in KEYS:
            assert await self.timer.named(TARGET.topic_id, key) == holders.get(key)
        keys = rng.sample(KEYS, rng.choice((1, 1, 2)))
        schedules = [
            (self.clock.now_ms() + rng.choice((1, 900, 9000, 30_000)), b"%d" % (len(self.accepted) + index), key)
            for index, key in enumerate(keys)
        ]
        taken = {index: holders[key] for index, key in enumerate(keys) if key in holders}
        sending = self.timer.schedule(
            keyed_append(schedules), acks=Acks.FLUSHED if rng.random() < 0.8 else Acks.WRITTEN, keys=keys
        )
        if taken:
            with pytest.raises(ScheduleKeyTaken) as caught:
                await sending
            assert caught.value.taken == taken
            return
        appended = await sending
        for index, (due_ms, value, key) in enumerate(schedules):
            self.accepted[value] = due_ms
            self.ids[value] = ScheduleId(due_ms, appended.position, index)
            self.keys[value] = key

    async def change(self) -> None:
        """Cancel, move or fire one of all there ever were, and compare the answer with what has been delivered."""
        if not await self._is_settled() or not self.ids:
            return
        rng = self.rng
        self.clock.strobe(0)  # the model and the timer are to mean the same by "now"
        value = rng.choice(sorted(self.ids))
        is_delivered = any(record.value == value for record in self.log.delivered())
        is_owed = self.accepted[value] >= 0 and not is_delivered
        reason = rng.choice(tuple(Reason))
        due_ms = self._new_due_ms(reason)
        try:
            standing = await self._ask(self.ids[value], reason, due_ms)
        except Overloaded:  # too many were cancelled in slots that the clock, set back, keeps open
            return
        if is_owed:
            self._changed(value, reason, due_ms)
        assert (standing is Standing.PENDING) == is_owed
        if is_delivered and not self.has_strobed:  # its delivery may be stored before its due time
            assert standing is Standing.DELIVERED
        if rng.random() < 0.5 and await self._is_settled():
            for gone in self.gone[-3:]:
                assert (await self.timer.find(gone))[0] is Standing.UNKNOWN

    async def cancel_all(self) -> None:
        """Cancel what is due in a stretch of time: exactly what the model has there."""
        if not await self._is_settled():
            return
        from_ms = self.clock.now_ms() + self.rng.randrange(-1000, 20_000)
        to_ms = from_ms + self.rng.randrange(10_000)
        delivered = {record.value for record in self.log.delivered()}
        meant = [
            value for value, due_ms in self.accepted.items() if from_ms <= due_ms < to_ms and value not in delivered
        ]
        try:
            assert await self.timer.cancel_all(Query(from_ms=from_ms, to_ms=to_ms)) == len(meant)
        except Overloaded:
            assert self.timer.pending_count == len(self._owed())
            return
        for value in meant:
            self._changed(value, Reason.CANCELLED, 0)
        assert self.timer.pending_count == len(self._owed())

    async def check_counts(self) -> None:
        """Every count of what is pending agrees with the model, and each second's with what waits in it."""
        if not await self._is_settled():
            return
        timer = self.timer
        owed_count = len(self._owed())
        assert timer.pending_count == owed_count
        assert sum(timer.pending_counts().values()) == owed_count
        assert await timer.count(Query()) == owed_count
        await self._check_over_time(sorted(self.accepted[value] for value in self._owed()))
        wheel, timer_log, open_slots = timer._state.wheel, timer._state.timer_log, timer._state.open
        from_s, to_s = open_slots.write_mark_s, open_slots.write_mark_s + SLOTS
        while (second_s := wheel.next_occupied(from_s, to_s)) is not None:
            chain = wheel.at(second_s)
            waiting_count, position = 0, chain.last
            while position != NOWHERE:
                unit = timer_log.read(position)
                waiting_count += not unit.magic & MAGIC_DELETE
                position = unit.previous
            assert chain.unit_count == waiting_count
            from_s = second_s + 1

    async def _check_over_time(self, dues_ms: list[int]) -> None:
        """What is counted by minute and what is counted one by one are the same, and pages go by due time."""
        self.clock.strobe(0)
        timer, now_ms = self.timer, self.clock.now_ms()
        minutes = [now_ms // MINUTE_MS * MINUTE_MS + MINUTE_MS * number for number in range(-2, 5)]
        for bounds, share in product((minutes, [bound_ms + 1 for bound_ms in minutes]), (0, schedules.WALKED_SHARE)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(schedules, "WALKED_SHARE", share)  # 0: slots are walked, else the timer log is searched
                census = await timer.census(Query(), bounds)
            assert census.counts == [sum(one <= due < other for due in dues_ms) for one, other in pairwise(bounds)]
            assert census.overdue_count == sum(due < now_ms for due in dues_ms)
        from_ms, to_ms = minutes[2], now_ms + self.rng.randrange(20_000)
        assert await timer.count(Query(from_ms=from_ms)) == sum(from_ms <= due for due in dues_ms)
        meant = [due for due in dues_ms if from_ms <= due < to_ms]
        assert await timer.count(Query(from_ms=from_ms, to_ms=to_ms)) == len(meant)
        for query, expected in ((Query(), dues_ms), (Query(from_ms=from_ms, to_ms=to_ms), meant)):
            listed: list[int] = []
            after: DuePosition | None = None
            for _ in range(2 + len(expected)):
                page = await timer.page_by_due(query, after=after, limit=7)
                listed += [schedule.id.due_ms for schedule in page.schedules]
                if (after := page.next_after) is None:
                    break
            assert listed == expected

    async def _is_settled(self) -> bool:
        """Whether all that can happen has happened. Not when memory is full of what the clock, set back, does not let
        fire: the timer would say so."""
        await settle(self.timer)
        return self.timer.intake_lag_count == 0

    def _new_due_ms(self, reason: Reason) -> int:
        now_ms = self.clock.now_ms()
        if reason is Reason.FIRED:
            return now_ms
        return now_ms + self.rng.choice((0, 500, 4000, 40_000)) + self.rng.randrange(50)

    async def _ask(self, schedule: ScheduleId, reason: Reason, due_ms: int) -> Standing:
        if reason is Reason.CANCELLED:
            return (await self.timer.cancel(schedule)).standing
        if reason is Reason.MOVED:
            return (await self.timer.move(schedule, due_ms)).standing
        firing = asyncio.create_task(self.timer.fire(schedule))
        for _ in range(500):
            await asyncio.sleep(0)
            await settle(self.timer)
            if firing.done():
                return firing.result().standing
        firing.cancel()  # memory is full, as above: it is changed, and will fire
        await asyncio.wait([firing])
        return Standing.PENDING

    def _changed(self, value: bytes, reason: Reason, due_ms: int) -> None:
        """Have the model follow a change."""
        schedule = self.ids[value]
        if reason is Reason.CANCELLED:
            self.accepted[value] = -1
            self.gone.append(schedule)
        else:
            self.accepted[value] = due_ms
            self.ids[value] = schedule._replace(due_ms=due_ms)

    def _owed(self) -> set[bytes]:
        """What is accepted and neither cancelled nor delivered."""
        owed = {value for value, due_ms in self.accepted.items() if due_ms >= 0}
        return owed.difference(record.value for record in self.log.delivered())

    async def _die_in_change(self) -> None:
        """The process dies with a change's append not begun, or done but not answered."""
        self.clock.strobe(0)
        if not await self._is_settled() or not (owed := self._owed() & self.ids.keys()):
            return
        value = self.rng.choice(sorted(owed))
        reason = self.rng.choice(tuple(Reason))
        due_ms = self._new_due_ms(reason)
        is_done = self.rng.random() < 0.7

        def die(appends: Sequence[Append]) -> None:
            raise Killed

        if is_done:
            self.log.after_append = die
        else:
            self.log.before_append = die
        try:
            await self._ask(self.ids[value], reason, due_ms)
        except Killed:
            if is_done:
                self._changed(value, reason, due_ms)
        except Overloaded:
            pass
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:  # the dead write nothing
                task.cancel()
                await asyncio.wait([task])
            self.log.before_append = self.log.after_append = lambda appends: None

    async def crash(self) -> None:
        """A power cut, or a kill; perhaps in the middle of a delivery, and perhaps during recovery again."""
        rng = self.rng
        how = rng.randrange(5)
        if how == 0:

            def die(appends: Sequence[Append]) -> None:
                raise Killed

            self.log.after_append = die
            try:
                self.clock.step(rng.choice((100, 2000)))
                await settle(self.timer)
            except Killed:
                pass
            self.log.after_append = lambda appends: None
        elif how == 1:
            self.disk.cut_power_at(rng.randrange(1, 12))
            try:
                await settle(self.timer)
                await (self.timer.close() if rng.random() < 0.5 else self.timer.checkpoint())
            except PowerCut:
                pass
        elif how == 2:
            await self._die_in_change()
        if how != 1 and rng.random() < 0.3:
            self.disk.kill()
        else:
            self.disk = self.disk.crash(rng)
            kept = {entry.position for entry in self.log.entries}
            self.log.lose_unflushed()
            if len(self.log.entries) < len(kept):
                self._forget_lost()
        if rng.random() < 0.1:
            self.key_index.reset()  # its file is lost
        while rng.random() < 0.3:
            self.disk.cut_power_at(rng.randrange(1, 8))
            try:
                await self.start()
                await self.timer.firing_step()
            except PowerCut:
                pass
            self.disk = self.disk.crash(rng)
        await self.start()

    def _forget_lost(self) -> None:
        """Records whose accept was answered WRITTEN and that the power cut took are not owed any more."""
        there = {value for entry in self.log.entries for value in _values(entry.batch)}
        for value in [value for value in self.accepted if value not in there]:
            self.accepted[value] = -1
            self.ids.pop(value, None)

    async def step(self) -> None:
        rng = self.rng
        operation = rng.randrange(100)
        if operation < 15:
            await self.accept()
        elif operation < 22:
            await self.accept_with_keys()
        elif operation < 29:
            await self.change()
        elif operation < 31:
            await self.cancel_all()
        elif operation < 32:
            await self.check_counts()
        elif operation < 50:
            await self.timer.intake_step()
        elif operation < 65:
            await self.timer.firing_step()
        elif operation < 80:
            self.clock.step(rng.choice((1, 30, 400, 1500, 6000)))
        elif operation < 81:
            self.clock.strobe(STROBE_MS)
            self.has_strobed = True
        elif operation < 82:
            self.clock.strobe(0)
        elif operation < 84:
            self.clock.step(rng.choice((-200, -2500, -20_000, 60_000)))
        elif operation < 91:
            await self.timer.checkpoint()
        elif operation < 92:
            await self.timer.expire()
        elif operation < 94:
            await self.timer.close()
            await self.start()
            assert self.timer.recovery_outcome == "clean"
        else:
            await self.crash()

    async def run(self) -> None:
        await self.start()
        for _ in range(OPERATIONS):
            await self.step()
        self.clock.strobe(0)
        await self.check_counts()
        last_ms = max(self.accepted.values(), default=0)
        for _ in range(1000):
            await settle(self.timer)
            if self.timer.pending_count == 0 and self.clock.now_ms() > last_ms:
                break
            self.clock.step(1000)
        self.judge()
        await self.timer.close()
        await self.start()
        await settle(self.timer)
        self.judge()

    def judge(self) -> None:
        delivered = self.log.delivered()
        owed = {value: due_ms for value, due_ms in self.accepted.items() if due_ms >= 0}
        assert sorted(record.value for record in delivered) == sorted(owed)
        for record in delivered:
            assert record.due_ms == owed[record.value]
            # When it strobes, the reading that made a record due is not the one at its append.
            assert record.at_ms >= record.due_ms - STROBE_MS * self.has_strobed
        assert self.timer.pending_count == 0


def _values(batch: memoryview) -> list[bytes]:
    return [record.value for record in decode(batch) if record.value is not None]


@pytest.mark.parametrize("part", range(5))
def test_each_accepted_record_is_delivered_once_and_never_early(part: int) -> None:
    for seed in range(part, RUNS, 5):
        try:
            asyncio.run(Run(seed).run())
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise

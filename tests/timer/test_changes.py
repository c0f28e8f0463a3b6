"""Cancel, move, fire now, find and list: exact answers, whatever the copy of a schedule went through.

Covers timer.changing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from store.errors import DiskFull, UnknownQueue
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import TARGET, FailOnce, FakeLog, make_timer, settle
from timer.changes import Change, Standing
from timer.changing import Changing
from timer.checkpointing import FREED_AT_ONCE
from timer.errors import TimerBusy
from timer.firing import CATCH_UP_RECORDS_MAX
from timer.ports import Due
from timer.schedule import ScheduleId, decode_schedule_id
from timer.schedules import KEYS_PER_PAGE_MAX, Query
from timer.service import TimerService
from timer.state import TURN_UNITS
from timer.timer_log import TimerLog


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock) -> FakeLog:
    return FakeLog(clock)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


@pytest.fixture
async def timer(log: FakeLog, clock: FakeClock, disk: SimDisk) -> TimerService:
    timer = make_timer(log, disk, clock)
    await timer.start()
    return timer


async def accept(timer: TimerService, log: FakeLog, *due_in_ms: int) -> list[ScheduleId]:
    """Schedules named by their index; in the wheel on return."""
    appended = await log.accept([(START_MS + due_ms, b"%d" % number) for number, due_ms in enumerate(due_in_ms)])
    await settle(timer)
    return [ScheduleId(START_MS + due_ms, appended.position, number) for number, due_ms in enumerate(due_in_ms)]


async def standing(timer: TimerService, schedule: ScheduleId) -> Standing:
    return (await timer.find(schedule))[0]


def values(log: FakeLog) -> list[bytes]:
    return [delivered.value for delivered in log.delivered()]


async def pass_time(timer: TimerService, clock: FakeClock, by_ms: int) -> None:
    for _ in range(by_ms // 250):
        clock.step(250)
        await settle(timer)


@pytest.mark.parametrize("due_ms", [500, 5_000, 95_000], ids=["open slot", "closed slot", "rolls"])
async def test_a_cancelled_schedule_is_never_delivered_and_unknown_from_then_on(
    timer: TimerService, log: FakeLog, clock: FakeClock, due_ms: int
) -> None:
    first, second = await accept(timer, log, due_ms, due_ms)
    assert await standing(timer, first) is Standing.PENDING
    assert (await timer.cancel(first)).standing is Standing.PENDING
    assert timer.pending_count == 1
    await settle(timer)
    assert timer.pending_count == 1
    assert timer.pending_counts() == {TARGET.topic_id: 1}
    for _ in range(2):
        assert (await timer.cancel(first)).standing is Standing.UNKNOWN
        await timer.checkpoint()
    await pass_time(timer, clock, 100_000)
    assert values(log) == [b"1"]
    assert (await timer.cancel(first)).standing is Standing.UNKNOWN
    assert (await timer.cancel(second)).standing is Standing.DELIVERED
    assert (timer.metrics.cancelled_count, timer.pending_count, timer.pending_counts()) == (1, 0, {})


async def test_a_schedule_is_found_after_each_of_many_rolls(
    timer: TimerService, log: FakeLog, clock: FakeClock
) -> None:
    far, other = await accept(timer, log, 200_000, 200_000)
    for _ in range(20):
        await pass_time(timer, clock, 9_000)
        await timer.expire()
        found, schedule = await timer.find(far)
        assert found is Standing.PENDING
        assert schedule is not None
        assert (schedule.id, schedule.record.record.value) == (far, b"0")
    assert timer.metrics.rolled_count > 20
    assert (await timer.cancel(far)).standing is Standing.PENDING
    await pass_time(timer, clock, 30_000)
    assert values(log) == [b"1"]
    assert await standing(timer, other) is Standing.DELIVERED
    assert await standing(timer, far) is Standing.UNKNOWN


async def test_ids_that_name_nothing_are_unknown(timer: TimerService, log: FakeLog, clock: FakeClock) -> None:
    (real,) = await accept(timer, log, 5_000)
    for forged in (
        real._replace(due_ms=real.due_ms + 1),
        real._replace(due_ms=1),
        real._replace(record_index=1),
        real._replace(position=real.position + 1),
        real._replace(position=10**15),
        real._replace(position=0),
    ):
        assert (await timer.cancel(forged)).standing is Standing.UNKNOWN
    assert await standing(timer, real) is Standing.PENDING


@pytest.mark.parametrize("to_ms", [100, 700, 3_000, 80_000])
@pytest.mark.parametrize("due_ms", [600, 5_000, 60_000])
async def test_a_moved_schedule_has_a_new_id_and_fires_at_its_new_time(
    timer: TimerService, log: FakeLog, clock: FakeClock, due_ms: int, to_ms: int
) -> None:
    (old,) = await accept(timer, log, due_ms)
    moved = await timer.move(old, START_MS + to_ms)
    assert moved.standing is Standing.PENDING
    assert moved.schedule == old._replace(due_ms=START_MS + to_ms)
    await settle(timer)
    assert await standing(timer, old) is Standing.UNKNOWN
    assert await standing(timer, moved.schedule) is Standing.PENDING
    assert timer.pending_count == 1
    await pass_time(timer, clock, 100_000)
    (delivered,) = log.delivered()
    assert delivered.due_ms == START_MS + to_ms
    assert delivered.at_ms - delivered.due_ms < 250
    assert decode_schedule_id(delivered.schedule_id) == moved.schedule
    assert await standing(timer, moved.schedule) is Standing.DELIVERED
    assert await standing(timer, old) is Standing.UNKNOWN


async def test_a_schedule_moved_to_and_fro_is_found_by_the_id_it_has(timer: TimerService, log: FakeLog) -> None:
    (first,) = await accept(timer, log, 5_000)
    schedule = first
    for due_ms in (60_000, 5_000, 70_000, 5_000):
        schedule = (await timer.move(schedule, START_MS + due_ms)).schedule
        await settle(timer)
        assert await standing(timer, schedule) is Standing.PENDING
    assert schedule == first
    assert (await timer.cancel(first)).standing is Standing.PENDING
    await settle(timer)
    assert (await timer.cancel(first)).standing is Standing.UNKNOWN
    assert timer.pending_count == 0


async def test_fire_now_answers_where_the_record_went(timer: TimerService, log: FakeLog, clock: FakeClock) -> None:
    near, far = await accept(timer, log, 5_000, 80_000)
    await log.accept([(START_MS, b"before")])
    await settle(timer)
    running = asyncio.create_task(timer.run())
    clock.step(10)
    fired = await timer.fire(far)
    assert (fired.standing, fired.target, fired.offset) == (Standing.PENDING, TARGET, 1)
    assert (await timer.fire(near)).offset == 2
    assert (await timer.fire(near)).standing is Standing.DELIVERED
    assert (await timer.cancel(far)).standing is Standing.DELIVERED
    running.cancel()
    await asyncio.wait([running])
    assert values(log) == [b"before", b"1", b"0"]
    assert timer.pending_count == 0


async def test_fire_now_says_that_the_queue_is_gone(timer: TimerService, log: FakeLog) -> None:
    (schedule,) = await accept(timer, log, 5_000)
    log.queues.discard(TARGET)
    running = asyncio.create_task(timer.run())
    with pytest.raises(UnknownQueue):
        await timer.fire(schedule)
    running.cancel()
    await asyncio.wait([running])


async def test_a_change_that_could_not_be_stored_changes_nothing(
    timer: TimerService, log: FakeLog, clock: FakeClock
) -> None:
    schedules = await accept(timer, log, 500, 3_000)
    for schedule in schedules:
        log.before_append = FailOnce(DiskFull("full"))
        with pytest.raises(DiskFull):
            await timer.cancel(schedule)
        assert await standing(timer, schedule) is Standing.PENDING
    assert timer.pending_count == 2
    await pass_time(timer, clock, 5_000)
    assert values(log) == [b"0", b"1"]


async def test_many_changes_that_wait_share_one_append(timer: TimerService, log: FakeLog) -> None:
    schedules = await accept(timer, log, *range(2_000, 2_100))
    before = log.append_count
    running = asyncio.create_task(timer.run())
    outcomes = await asyncio.gather(
        *(timer.cancel(schedule) for schedule in schedules), *(timer.cancel(schedule) for schedule in schedules)
    )
    assert sorted(outcome.standing.name for outcome in outcomes) == ["PENDING"] * 100 + ["UNKNOWN"] * 100
    running.cancel()
    await asyncio.wait([running])
    assert log.append_count - before <= 3
    assert timer.pending_count == 0


async def test_a_cancelled_caller_leaves_its_change_whole(timer: TimerService, log: FakeLog, clock: FakeClock) -> None:
    (schedule,) = await accept(timer, log, 3_000)
    cancelling = asyncio.create_task(timer.cancel(schedule))
    appending = asyncio.Event()
    log.before_append = lambda appends: appending.set()
    await appending.wait()
    cancelling.cancel()
    await asyncio.wait([cancelling])
    await settle(timer)
    await pass_time(timer, clock, 5_000)
    assert values(log) == []
    assert timer.pending_count == 0


async def test_a_change_made_just_before_a_crash_holds(log: FakeLog, clock: FakeClock, disk: SimDisk) -> None:
    """Whether its tombstone had been met, and was in a checkpoint, or neither."""
    for due_ms in (500, 3_000, 60_000):
        for met in range(4):
            start_ms = clock.now_ms()
            log.entries.clear()
            log.levels.clear()
            disk = SimDisk()
            timer = make_timer(log, disk, clock)
            await timer.start()
            appended = await log.accept([(start_ms + due_ms, b"cancelled"), (start_ms + due_ms, b"kept")])
            await settle(timer)
            await timer.checkpoint()
            schedule = ScheduleId(start_ms + due_ms, appended.position, 0)
            assert (await timer.cancel(schedule)).standing is Standing.PENDING
            if met >= 1:
                await timer.intake_step()
            if met >= 2:
                await timer.checkpoint()
            if met == 3:
                await timer.close()
            timer = make_timer(log, disk.crash(Random(met)), clock)
            await timer.start()
            assert timer.recovery_outcome == ("clean" if met == 3 else "crash")
            clock.step(due_ms)  # overdue before the tombstone could be met again
            await timer.firing_step()
            await pass_time(timer, clock, 70_000)
            assert values(log) == [b"kept"], (due_ms, met)
            assert timer.pending_count == 0
            assert (await timer.cancel(schedule)).standing is Standing.UNKNOWN


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_what_became_of_a_copy_is_known_also_if_it_was_made_and_consumed_just_before_a_crash(
    log: FakeLog, clock: FakeClock, disk: SimDisk, timer: TimerService, is_moved: bool, is_cancelled: bool
) -> None:
    """It has no unit after the crash: what has the schedule's due time last is the copy before it."""
    (schedule,) = await accept(timer, log, 45_000)
    for is_first in (True, False):
        if is_moved:
            assert (await timer.move(schedule, schedule.due_ms)).schedule == schedule
        else:
            await pass_time(timer, clock, 15_000)  # it rolls
        await settle(timer)
        if is_first:
            await timer.checkpoint()
    if is_cancelled:
        assert (await timer.cancel(schedule)).standing is Standing.PENDING
    await pass_time(timer, clock, 50_000)
    timer = make_timer(log, disk.crash(Random(1)), clock)
    await timer.start()
    await settle(timer)
    assert len(log.delivered()) == (not is_cancelled)
    assert await standing(timer, schedule) is (Standing.UNKNOWN if is_cancelled else Standing.DELIVERED)


async def test_closing_before_the_tombstone_is_met_forgets_nothing(
    log: FakeLog, clock: FakeClock, disk: SimDisk, timer: TimerService
) -> None:
    schedule, _ = await accept(timer, log, 4_000, 4_000)
    await timer.cancel(schedule)
    await timer.close()
    timer = make_timer(log, disk.crash(Random(1)), clock)
    await timer.start()
    assert timer.recovery_outcome == "clean"
    clock.step(6_000)
    await timer.firing_step()
    await settle(timer)
    assert values(log) == [b"1"]
    assert (timer.pending_count, timer.pending_counts()) == (0, {})


async def test_delivered_and_cancelled_are_told_apart_when_the_units_are_gone(
    log: FakeLog, clock: FakeClock, disk: SimDisk
) -> None:
    timer = make_timer(log, disk, clock, timer_log_file_units=2)
    await timer.start()
    delivered, cancelled = await accept(timer, log, 2_000, 2_000)
    await timer.cancel(cancelled)
    await pass_time(timer, clock, 10_000)
    await accept(timer, log, 40_000, 40_000, 40_000)
    await pass_time(timer, clock, 2_000)
    await timer.expire()
    assert all("timerlog/" + "0" * 20 not in path for path in disk.paths())
    assert await standing(timer, delivered) is Standing.DELIVERED
    assert await standing(timer, cancelled) is Standing.UNKNOWN


async def test_listing_pages_through_what_is_meant(timer: TimerService, log: FakeLog, clock: FakeClock) -> None:
    schedules = await accept(timer, log, *(1_500 + 100 * number for number in range(100)), 50_000)
    for number in (3, 50):
        await timer.cancel(schedules[number])
        await settle(timer)
    clock.step(2_000)
    await settle(timer)
    pending = [schedule for number, schedule in enumerate(schedules) if number > 5 and number != 50]
    listed: list[ScheduleId] = []
    cursor: int | None = 0
    while cursor is not None:
        page = await timer.page(Query(frozenset((TARGET.topic_id,))), cursor=cursor, limit=7)
        assert len(page.schedules) <= 7
        listed += [schedule.id for schedule in page.schedules]
        cursor = page.next_cursor
    assert listed == pending
    assert timer.pending_counts() == {TARGET.topic_id: len(pending)}
    window = Query(from_ms=START_MS + 4_000, to_ms=START_MS + 4_500)
    found = (await timer.page(window, limit=100)).schedules
    assert [schedule.id.due_ms - START_MS for schedule in found] == [4_000, 4_100, 4_200, 4_300, 4_400]
    assert len((await timer.page(Query(keys=frozenset((b"key",))), limit=1000)).schedules) == len(pending)
    for nothing in (Query(keys=frozenset((b"other",))), Query(frozenset((99,)))):
        assert (await timer.page(nothing, limit=100)).schedules == []
    bounds_ms = [START_MS + 1_000 * number for number in range(61)]
    histogram, overdue_count, _ = await timer.census(Query(), bounds_ms)
    assert (sum(histogram), overdue_count) == (len(pending), 0)
    assert (histogram[4], histogram[50], histogram[0]) == (10, 1, 0)


@pytest.mark.parametrize("count", [KEYS_PER_PAGE_MAX, KEYS_PER_PAGE_MAX + 1])
async def test_a_page_of_a_key_that_few_have_ends_before_it_takes_long(
    timer: TimerService, log: FakeLog, count: int
) -> None:
    """In the order of acceptance and of due times; a page of all takes no notice."""
    await accept(timer, log, *(60_000 + number for number in range(count)))
    rare = Query(keys=frozenset((b"other",)))
    page = await timer.page(rare, limit=10)
    due = await timer.page_by_due(rare, after=None, limit=10)
    is_more = count > KEYS_PER_PAGE_MAX
    assert (page.schedules, page.next_cursor is not None) == ([], is_more)
    assert (due.schedules, due.next_after is not None) == ([], is_more)
    if page.next_cursor is not None and due.next_after is not None:
        assert (await timer.page(rare, cursor=page.next_cursor, limit=10)).next_cursor is None
        assert (await timer.page_by_due(rare, after=due.next_after, limit=10)).next_after is None
    assert len((await timer.page(Query(), limit=count)).schedules) == count


async def test_bulk_cancel_takes_what_is_meant_and_no_more(timer: TimerService, log: FakeLog, clock: FakeClock) -> None:
    await accept(timer, log, *(500 + 100 * number for number in range(100)))
    assert await timer.cancel_all(Query(frozenset((99,)))) == 0
    assert await timer.cancel_all(Query(frozenset((TARGET.topic_id,)), from_ms=START_MS + 1_000)) == 95
    await settle(timer)
    assert await timer.cancel_all(Query(frozenset((TARGET.topic_id,)), from_ms=START_MS + 1_000)) == 0
    await pass_time(timer, clock, 20_000)
    assert values(log) == [b"0", b"1", b"2", b"3", b"4"]
    assert timer.pending_count == 0


async def test_many_are_cancelled_some_a_turn_and_none_is_searched_for(
    timer: TimerService, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tombstone was searched for in the timer log, twenty reads each: of a million that is a minute of the event
    loop, in which nobody else's delayed record was on time."""
    await accept(timer, log, *(3_000 + number for number in range(2_500)))
    searched: list[tuple[int, int]] = []
    find = TimerLog.find

    def counted(self: TimerLog, *source: int) -> int | None:
        searched.append(source)  # type: ignore[arg-type]
        return find(self, *source)

    claimed = [0]
    claim = Changing._claim

    def noted(self: Changing, change: Change) -> bool:
        claimed[0] += 1
        return claim(self, change)

    monkeypatch.setattr(TimerLog, "find", counted)
    monkeypatch.setattr(Changing, "_claim", noted)
    entries_before = len(log.entries)
    in_turns: list[int] = []
    yield_to_loop = log.yield_to_loop

    async def turn() -> None:
        in_turns.append(claimed[0] - sum(in_turns))
        await yield_to_loop()

    log.yield_to_loop = turn  # type: ignore[method-assign]
    cancelling = asyncio.create_task(timer.cancel_all(Query()))
    while not cancelling.done():
        await asyncio.sleep(0)
        await timer.intake_step()
    assert cancelling.result() == sum(in_turns) == 2_500
    assert max(in_turns) <= TURN_UNITS
    assert max(entry.record_count for entry in log.entries[entries_before:]) == 1_000
    await settle(timer)
    assert searched == []
    assert timer.pending_count == 0
    assert not timer._state.changed


async def test_memory_for_cancelled_schedules_is_given_back(timer: TimerService, log: FakeLog) -> None:
    await accept(timer, log, *(8_000 + number for number in range(1_000)))
    assert await timer.cancel_all(Query()) == 1_000
    await settle(timer)
    await timer.checkpoint()
    state = timer._state
    assert (len(state.changed), state.timer_log.unwritten_bytes, state.open.withdrawn_count) == (0, 0, 0)


async def test_what_a_checkpoint_has_written_is_freed_in_turns(timer: TimerService, log: FakeLog) -> None:
    count = 3 * FREED_AT_ONCE
    await accept(timer, log, *(3_600_000 + number for number in range(count)))
    await timer.checkpoint()
    cancelling = asyncio.create_task(timer.cancel_all(Query()))
    while not cancelling.done():
        await asyncio.sleep(0)
        await timer.intake_step()
    assert cancelling.result() == count
    await settle(timer)
    marks = timer._state.timer_log._marks
    assert len(marks) == count
    left: list[int] = []
    yield_to_loop = log.yield_to_loop

    async def noted() -> None:
        left.append(len(marks))
        await yield_to_loop()

    log.yield_to_loop = noted  # type: ignore[method-assign]
    await timer.checkpoint()
    assert left == [2 * FREED_AT_ONCE, FREED_AT_ONCE, 0]


async def test_a_look_while_nothing_is_scheduled_says_so(
    timer: TimerService, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timer.state.PATIENCE_MS", 1)
    await log.accept([(START_MS + 1_000, b"x")])
    with pytest.raises(TimerBusy, match="try again"):
        await timer.page(Query(), limit=1)


async def test_a_tombstone_met_in_the_middle_of_a_go_of_deliveries_still_holds(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock, timer_log_file_units=10_000)
    await timer.start()
    ids = await accept(timer, log, *(1 for _ in range(600)))
    for schedule in (ids[0], ids[300], ids[599]):
        while timer.intake_lag_count:
            await timer.intake_step()
        assert (await timer.cancel(schedule)).standing is Standing.PENDING
    clock.step(1)
    await asyncio.gather(timer.firing_step(), timer.intake_step())
    await settle(timer)
    assert len(values(log)) == 597
    assert not {b"0", b"300", b"599"} & set(values(log))
    assert timer.pending_count == 0


async def test_a_listing_does_not_wait_for_deliveries_and_shows_what_is_not_delivered_yet(
    log: FakeLog, clock: FakeClock
) -> None:
    timer = make_timer(log, SimDisk(), clock, timer_log_file_units=10_000)
    await timer.start()
    await accept(timer, log, *(500 + number for number in range(1500)))
    clock.step(3_000)
    seen: list[tuple[int, int]] = []

    deliver = timer._firing._partitions.deliver

    async def watched(dues: Sequence[Due]) -> list[Sequence[int] | None]:
        before = len((await timer.page(Query(), limit=2000)).schedules)
        offsets = await deliver(dues)
        seen.append((before, await timer.count(Query())))
        return offsets

    timer._firing._partitions.deliver = watched  # type: ignore[method-assign]
    assert await timer.firing_step() == 1500
    assert seen == [(left_count, left_count) for left_count in range(1500, 0, -CATCH_UP_RECORDS_MAX)]
    assert await timer.count(Query()) == 0

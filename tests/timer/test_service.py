"""The timer as a whole: on time, in order, once, whatever the clock, the disk and the store do.

Covers timer.intake and timer.firing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

from store import record_batch
from store.errors import DiskFull, RecordTooLarge
from store.record_batch import Record
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay, Entry, QueueKey
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import OTHER_TARGET, TARGET, FailOnce, FakeLog, make_timer, settle
from timer.changes import Standing
from timer.firing import BUSY_RECORDS_MIN, CATCH_UP_MS, CATCH_UP_RECORDS_MAX, PIECE_RECORDS_MAX
from timer.intake import BEHIND_UNITS_MAX, BURST_TURNS, TURN_UNITS_MAX
from timer.ports import Delivered, Due, OwnPartitions, Target
from timer.schedule import LAP_SLOTS, ScheduleId, decode_schedule_id, encode_schedule_id
from timer.schedules import Query
from timer.service import TimerService
from timer.state import TURN_UNITS
from timer.timer_log import UNIT_BYTES

DAY_MS = 86_400_000


class Killed(Exception):
    """The process dies here."""


def values(log: FakeLog) -> list[bytes]:
    return [delivered.value for delivered in log.delivered()]


def lags_at_turns(log: FakeLog, timer: TimerService) -> list[int]:
    """Filled from now on with how many records are still to be scheduled whenever the timer yields."""
    lags: list[int] = []

    async def yield_to_loop() -> None:
        lags.append(timer.intake_lag_count)

    log.yield_to_loop = yield_to_loop  # type: ignore[method-assign]
    return lags


async def run_clock(timer: TimerService, clock: FakeClock, by_ms: int, step_ms: int = 250) -> None:
    for _ in range(by_ms // step_ms):
        clock.step(step_ms)
        await settle(timer)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock) -> FakeLog:
    return FakeLog(clock)


@pytest.fixture
async def timer(log: FakeLog, clock: FakeClock) -> TimerService:
    timer = make_timer(log, SimDisk(), clock)
    await timer.start()
    return timer


async def test_a_record_fires_at_its_millisecond_and_not_before(
    timer: TimerService, log: FakeLog, clock: FakeClock
) -> None:
    appended = await log.accept([(START_MS + 1234, b"x")])
    await settle(timer)
    clock.step(1233)
    await settle(timer)
    assert log.delivered() == []
    assert timer.pending_count == 1
    clock.step(1)
    await settle(timer)
    (delivered,) = log.delivered()
    assert (delivered.queue, delivered.value, delivered.due_ms) == (TARGET, b"x", START_MS + 1234)
    assert delivered.schedule_id == encode_schedule_id(START_MS + 1234, appended.position, 0)
    assert timer.pending_count == 0
    assert timer.metrics.fired_count == 1
    assert timer.metrics.late_counts[0] == 1


async def test_a_delivered_record_keeps_everything_and_cannot_bring_our_headers(
    timer: TimerService, log: FakeLog, clock: FakeClock
) -> None:
    forged: list[tuple[str, bytes | None]] = [("mq-schedule-id", b"forged"), ("mq-tag", b"red"), ("none", None)]
    batch = record_batch.encode([Record(b"k", b'"v"', 42, forged), Record(None, None, 43)])
    delays = [Delay(START_MS + 5, *TARGET), Delay(START_MS + 5, *OTHER_TARGET)]
    append = Append(queue=TIMER_QUEUE, batch=batch, record_count=2, json_values=True, tag_hashes=[77, 0], delays=delays)
    (appended,) = await log.append([append], acks=Acks.FLUSHED)
    clock.step(5)
    await settle(timer)
    _, first, second = log.entries
    assert (first.queue, first.json_values, first.tag_hashes) == (TARGET, True, (77,))
    assert (second.queue, second.json_values, second.tag_hashes) == (OTHER_TARGET, True, ())
    assert [tuple(source) for source in (*first.sources, *second.sources)] == [
        (appended.position, 0),
        (appended.position, 1),
    ]
    (record,) = record_batch.decode(first.batch)
    assert (record.key, record.value, record.timestamp) == (b"k", b'"v"', 42)
    assert dict(record.headers) == {
        "mq-tag": b"red",
        "none": None,
        "mq-deliver-at": str(START_MS + 5).encode(),
        "mq-schedule-id": encode_schedule_id(START_MS + 5, appended.position, 0).encode(),
    }
    assert len(record.headers) == 4
    (tombstone,) = record_batch.decode(second.batch)
    assert (tombstone.key, tombstone.value) == (None, None)


async def test_equal_due_times_keep_the_order_of_sending_and_others_go_by_due_time(
    timer: TimerService, log: FakeLog, clock: FakeClock
) -> None:
    due_ms = START_MS + 3000
    await log.accept([(due_ms, b"c"), (due_ms, b"d"), (due_ms - 1, b"b")])
    await log.accept([(due_ms, b"e"), (due_ms - 2999, b"a")])
    await settle(timer)
    clock.step(5000)
    await settle(timer)
    assert values(log) == [b"a", b"b", b"c", b"d", b"e"]


async def test_due_records_of_one_queue_become_one_batch(timer: TimerService, log: FakeLog, clock: FakeClock) -> None:
    for number in range(100):
        await log.accept([(START_MS + 10 + number % 7, b"%d" % number)])
    await settle(timer)
    before = log.append_count
    clock.step(20)
    await settle(timer)
    assert len(values(log)) == 100
    assert log.append_count == before + 1


async def test_a_record_accepted_late_fires_at_once(timer: TimerService, log: FakeLog, clock: FakeClock) -> None:
    clock.step(60_000)
    await settle(timer)
    await log.accept([(START_MS + 1, b"late"), (START_MS - DAY_MS, b"later")])
    await settle(timer)
    assert values(log) == [b"later", b"late"]


async def test_a_long_delay_rolls_as_often_as_needed_and_keeps_its_id(
    timer: TimerService, log: FakeLog, clock: FakeClock
) -> None:
    appended = await log.accept([(START_MS + 100_007, b"far")])
    await settle(timer)
    await run_clock(timer, clock, 100_000)
    assert values(log) == []
    assert timer.metrics.rolled_count == 7
    clock.step(7)
    await settle(timer)
    (delivered,) = log.delivered()
    assert decode_schedule_id(delivered.schedule_id) == (START_MS + 100_007, appended.position, 0)
    assert timer.metrics.accepted_count == 1
    assert timer.pending_count == 0


async def test_a_ten_year_delay_is_delivered_when_the_clock_gets_there(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock, roll_window_ms=6 * DAY_MS)
    await timer.start()
    await log.accept([(START_MS + 3652 * DAY_MS, b"decade")])
    await run_clock(timer, clock, 3651 * DAY_MS, step_ms=3 * DAY_MS)
    assert values(log) == []
    await run_clock(timer, clock, DAY_MS, step_ms=DAY_MS // 2)
    assert values(log) == [b"decade"]


async def test_the_clock_stepping_back_delays_but_neither_loses_nor_hurries(
    timer: TimerService, log: FakeLog, clock: FakeClock
) -> None:
    await log.accept([(START_MS + 2000, b"x")])
    await settle(timer)
    clock.step(1500)
    await settle(timer)
    clock.step(-3_600_000)
    await log.accept([(START_MS - 3_590_000, b"in the past that is now ahead")])
    await settle(timer)
    assert values(log) == []
    await run_clock(timer, clock, 3_600_000 + 500, step_ms=500)
    assert values(log) == [b"in the past that is now ahead", b"x"]
    assert all(delivered.at_ms >= delivered.due_ms for delivered in log.delivered())


async def test_a_strobing_clock_never_makes_a_record_early(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock)
    await timer.start()
    clock.strobe(200)
    await log.accept([(START_MS + 50 * number, b"%03d" % number) for number in range(100)])
    for _ in range(600):
        clock.step(10)
        await timer.intake_step()
        await timer.firing_step()
    assert sorted(values(log)) == [b"%03d" % number for number in range(100)]
    # The reading when it was popped is not the one when it was appended: 200 ms is the strobe itself.
    assert all(delivered.at_ms >= delivered.due_ms - 200 for delivered in log.delivered())


async def test_four_hundred_days_of_downtime_lose_nothing_and_fire_oldest_first(log: FakeLog, clock: FakeClock) -> None:
    disk = SimDisk()
    timer = make_timer(log, disk, clock, roll_window_ms=6 * DAY_MS, heap_count_max=16)
    await timer.start()
    rng = Random(4)
    dues = [START_MS + rng.randrange(6 * DAY_MS) for _ in range(300)]
    await log.accept([(due_ms, b"%d" % due_ms) for due_ms in dues])
    await settle(timer)
    await timer.close()
    clock.step(400 * DAY_MS)
    late_ms = START_MS + 6 * DAY_MS  # younger than all of them
    await log.accept([(START_MS - 7, b"not scheduled before the stop"), (late_ms, b"nor this one")])
    timer = make_timer(log, disk, clock, roll_window_ms=6 * DAY_MS, heap_count_max=16)
    await timer.start()
    assert timer.recovery_outcome == "clean"
    most_in_memory = 0
    assert await timer.firing_step() == 0, "what is older may still have to be scheduled"
    assert await timer.intake_step() == 2
    await log.accept([(START_MS + 400 * DAY_MS, b"accepted after the start")])
    assert await timer.intake_step() == 0, "the read mark is more than a lap behind: catch up first"
    while timer.pending_count:
        await timer.firing_step()
        await timer.intake_step()
        most_in_memory = max(most_in_memory, timer._state.open.in_memory_count)
    *fired, last, after_start = values(log)
    assert fired == [b"not scheduled before the stop", *(b"%d" % due_ms for due_ms in sorted(dues))]
    assert (last, after_start) == (b"nor this one", b"accepted after the start")
    assert most_in_memory <= 16 + 4


async def test_a_slot_fuller_than_memory_fires_in_order(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock, heap_count_max=10, fire_records_max=3)
    await timer.start()
    rng = Random(1)
    dues = [START_MS + 5000 + rng.randrange(1000) for _ in range(200)]
    for due_ms in dues[:100]:
        await log.accept([(due_ms, b"%d" % due_ms)])
    await settle(timer)
    await run_clock(timer, clock, 4500)
    for due_ms in dues[100:]:  # these arrive when the slot is open already
        await log.accept([(due_ms, b"%d" % due_ms)])
        await timer.intake_step()
        assert timer._state.open.in_memory_count <= 14
    await run_clock(timer, clock, 2000, step_ms=10)
    assert values(log) == [b"%d" % due_ms for due_ms in sorted(dues)]


async def test_a_record_for_a_deleted_topic_is_dropped_and_the_others_go_on(
    timer: TimerService, log: FakeLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    gone = QueueKey(99, 0)
    batch = record_batch.encode([Record(None, b"%d" % number, 0) for number in range(4)])
    delays = [Delay(START_MS + 1, *(gone if number % 2 else TARGET)) for number in range(4)]
    await log.append([Append(queue=TIMER_QUEUE, batch=batch, record_count=4, delays=delays)], acks=Acks.FLUSHED)
    clock.step(1)
    await settle(timer)
    assert values(log) == [b"0", b"2"]
    assert timer.metrics.dropped_count == 2
    assert timer.pending_count == 0
    assert [record.message for record in caplog.records].count(
        "timer: dropping records due for a partition that is gone, topic id=99 partition=0"
    ) == 1


async def test_a_full_disk_delays_delivery_until_there_is_room(
    timer: TimerService, log: FakeLog, clock: FakeClock
) -> None:
    await log.accept([(START_MS + 1, b"x")])
    await settle(timer)
    log.before_append = FailOnce(DiskFull("full"))
    clock.step(1)
    assert await timer.firing_step() == 0
    assert values(log) == []
    assert timer._firing.idle_ms() == 200
    await settle(timer)
    assert values(log) == [b"x"]


async def test_a_batch_too_large_for_the_store_is_split(timer: TimerService, log: FakeLog, clock: FakeClock) -> None:
    def refuse(appends: Sequence[Append]) -> None:
        if any(append.record_count > 3 for append in appends):
            raise RecordTooLarge("more than three")

    await log.accept([(START_MS + 1, b"%d" % number) for number in range(3)])
    await log.accept([(START_MS + 1, b"%d" % number) for number in range(3, 6)])
    await settle(timer)
    log.before_append = refuse
    clock.step(1)
    await settle(timer)
    assert values(log) == [b"%d" % number for number in range(6)]


async def test_an_unreadable_entry_is_neither_delivered_nor_forgotten(log: FakeLog, clock: FakeClock) -> None:
    disk = SimDisk()
    timer = make_timer(log, disk, clock)
    await timer.start()
    bad = await log.accept([(START_MS + 1, b"bad")])
    await log.accept([(START_MS + 1, b"good")])
    log.unreadable.add(bad.position)
    clock.step(1)
    await settle(timer)
    await run_clock(timer, clock, 5000)
    assert values(log) == [b"good"]
    assert (timer.metrics.parked_count, timer.pending_count) == (1, 1)
    log.unreadable.clear()
    await timer.close()
    timer = make_timer(log, disk, clock)
    await timer.start()
    await settle(timer)
    assert values(log) == [b"good", b"bad"]
    assert timer.pending_count == 0


async def test_a_crash_after_the_delivery_and_before_the_checkpoint_does_not_deliver_twice(
    log: FakeLog, clock: FakeClock
) -> None:
    disk = SimDisk()
    timer = make_timer(log, disk, clock)
    await timer.start()
    await log.accept([(START_MS + 1500, b"a"), (START_MS + 1500, b"b"), (START_MS + 20_000, b"rolls")])
    await settle(timer)
    await timer.checkpoint()

    def die(appends: Sequence[Append]) -> None:
        raise Killed

    log.after_append = die
    clock.step(1500)
    with pytest.raises(Killed):
        await settle(timer)
    for attempt in range(3):  # and the next process dies while it knows of it only from the log
        disk = disk.crash(Random(attempt))
        log.after_append = lambda appends: None
        timer = make_timer(log, disk, clock)
        await timer.start()
        assert timer.pending_count == 1
        await settle(timer)
        await timer.checkpoint()
        assert values(log) == [b"a", b"b"]
    assert timer.metrics.already_delivered_count == 2
    log.after_append = die
    with pytest.raises(Killed):  # and it dies between the roll and its checkpoint
        await run_clock(timer, clock, 12_000)
    log.after_append = lambda appends: None
    timer = make_timer(log, disk.crash(Random(9)), clock)
    await timer.start()
    await run_clock(timer, clock, 10_000)
    assert values(log) == [b"a", b"b", b"rolls"]
    assert timer.pending_count == 0


async def test_an_accept_that_a_power_cut_took_back_leaves_no_trace(log: FakeLog, clock: FakeClock) -> None:
    disk = SimDisk()
    timer = make_timer(log, disk, clock)
    await timer.start()
    await log.accept([(START_MS + 5000, b"kept")])
    await log.accept([(START_MS + 5000, b"lost")] * 3, acks=Acks.WRITTEN)
    await settle(timer)
    await timer.checkpoint()
    log.lose_unflushed()
    disk = disk.crash(Random(0))
    timer = make_timer(log, disk, clock)
    await timer.start()
    await log.accept([(START_MS + 5000, b"in its place")])
    timer = make_timer(log, disk.crash(Random(0)), clock)  # again, before anything else was checkpointed
    await timer.start()
    await settle(timer)
    clock.step(5000)
    await settle(timer)
    assert values(log) == [b"kept", b"in its place"]
    assert timer.pending_count == 0


async def test_damaged_timer_files_are_rebuilt_from_the_log(log: FakeLog, clock: FakeClock) -> None:
    disk = SimDisk()
    timer = make_timer(log, disk, clock)
    await timer.start()
    await log.accept([(START_MS + 100 * number, b"%02d" % number) for number in range(60)])
    await settle(timer)
    clock.step(3000)
    await settle(timer)
    delivered = values(log)
    assert len(delivered) == 31
    await timer.close()
    for name in ("wheel", "timerlog/00000000000000000000", "checkpoint"):
        damaged = disk.crash(Random(0))
        path = next(path for path in damaged.paths() if path.endswith(name))
        content = damaged.contents(path)
        damaged.overwrite(path, 0, bytes(byte ^ 0xFF if byte else 0 for byte in content))
        timer = make_timer(log, damaged, clock)
        await timer.start()
        assert timer.recovery_outcome == "rebuilt", name
        await settle(timer)
        assert values(log) == delivered, name
        assert timer.pending_count == 29, name
    clock.step(3000)
    await settle(timer)
    assert values(log) == [b"%02d" % number for number in range(60)]


async def test_a_full_timer_disk_stops_neither_delivery_nor_later_checkpoints(log: FakeLog, clock: FakeClock) -> None:
    disk = SimDisk()
    timer = make_timer(log, disk, clock)
    await timer.start()
    disk.capacity_bytes = disk.used_bytes() + 100
    await log.accept([(START_MS + 1000, b"x"), (START_MS + 2000, b"y")])
    await settle(timer)
    await timer.checkpoint()
    assert timer.metrics.checkpoint_failure_count == 1
    clock.step(1000)
    await settle(timer)
    assert values(log) == [b"x"]
    disk.capacity_bytes = None
    await timer.checkpoint()
    timer = make_timer(log, disk.crash(Random(0)), clock)
    await timer.start()
    clock.step(1000)
    await settle(timer)
    assert values(log) == [b"x", b"y"]


class Away(OwnPartitions):
    """A broker that is away, until its partitions are said to be elsewhere."""

    is_away = True

    async def deliver(self, dues: Sequence[Due]) -> Sequence[Delivered]:
        return [None] * len(dues) if self.is_away else await super().deliver(dues)

    def has_moved(self, target: Target) -> bool:
        return not self.is_away


async def test_what_waits_for_a_broker_is_delivered_once_though_what_came_later_was_due_before(
    log: FakeLog, clock: FakeClock
) -> None:
    brokers = Away(log)
    timer = make_timer(log, SimDisk(), clock, partitions=brokers)
    await timer.start()
    early_count = CATCH_UP_RECORDS_MAX + 44  # more than are tried again while nothing else is due
    await log.accept([(START_MS + 1000 + number // 2, b"%d" % number) for number in range(early_count)])
    await timer.intake_step()
    clock.step(2000)
    await timer.firing_step()
    await timer.firing_step()  # they are tried once more, and then wait a while
    late = [(START_MS + 1100, b"late"), (START_MS + 500, b"later")]
    for one in late:
        await log.accept([one])
        await timer.intake_step()
        await timer.firing_step()
    assert values(log) == []
    brokers.is_away = False
    await settle(timer)
    assert sorted(values(log)) == sorted([b"%d" % number for number in range(early_count)] + [b"late", b"later"])
    assert timer.pending_count == 0


async def test_timer_log_files_expire_when_nothing_in_them_is_pending(log: FakeLog, clock: FakeClock) -> None:
    disk = SimDisk()
    timer = make_timer(log, disk, clock, timer_log_file_units=8, roll_window_ms=600_000)
    await timer.start()
    first = await log.accept([(START_MS + 30_000, b"slow")])
    for number in range(40):
        await log.accept([(START_MS + 1000 + number, b"%d" % number)])
    await settle(timer)
    clock.step(5000)
    await settle(timer)
    await timer.expire()
    assert timer.needed_position == first.position
    assert len([path for path in disk.paths() if "timerlog" in path]) == 6
    clock.step(30_000)
    await settle(timer)
    clock.step(1000)
    await settle(timer)
    last = await log.accept([(clock.now_ms() + 60_000, b"next")])
    await settle(timer)
    await timer.expire()
    assert timer.needed_position == last.position
    assert len([path for path in disk.paths() if "timerlog" in path]) == 1
    timer = make_timer(log, disk.crash(Random(3)), clock, timer_log_file_units=8, roll_window_ms=600_000)
    await timer.start()
    assert (timer.recovery_outcome, timer.pending_count) == ("crash", 1)


async def test_nothing_is_scheduled_while_the_read_mark_is_a_lap_behind(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock)
    await timer.start()
    await log.accept([(START_MS + 3_000, b"first")])
    await settle(timer)
    clock.step((LAP_SLOTS + 10) * 1000)
    await log.accept([(START_MS + 1, b"second")])
    assert await timer.intake_step() == 0
    await settle(timer)
    assert values(log) == [b"first", b"second"]


async def test_a_clock_that_jumps_within_an_entry_lets_no_slot_be_used_twice(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock, roll_window_ms=6 * DAY_MS)
    await timer.start()
    two_laps_ms = 2 * LAP_SLOTS * 1000
    near = [(START_MS + 3000, b"near %d" % number) for number in range(TURN_UNITS)]
    await log.accept([*near, *((START_MS + two_laps_ms + 3000, b"far %d" % number) for number in range(50))])
    intake = asyncio.create_task(timer.intake_step())
    while not timer._state.queue_offset:  # noqa: ASYNC110 -- it has had one turn then
        await asyncio.sleep(0)
    clock.step(
        12 * DAY_MS
    )  # as when the machine slept: two laps and three seconds hence is near enough to schedule now
    assert await intake == TURN_UNITS
    await settle(timer)
    assert values(log) == [value for _, value in near]
    clock.set(START_MS + two_laps_ms + 3000)
    await settle(timer)
    assert len(values(log)) == TURN_UNITS + 50
    assert timer.pending_count == 0


async def test_many_small_entries_are_scheduled_in_one_turn(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock)
    await timer.start()
    for number in range(3 * TURN_UNITS):
        await log.accept([(START_MS + 1000, b"%d" % number)])
    lags = lags_at_turns(log, timer)
    assert await timer.intake_step() == 3 * TURN_UNITS
    assert lags == [2 * TURN_UNITS, TURN_UNITS, 0]


async def test_those_who_send_cannot_leave_the_wheel_behind(log: FakeLog, clock: FakeClock) -> None:
    """In each turn of the event loop far more is accepted than would be scheduled one."""
    timer = make_timer(log, SimDisk(), clock)
    await timer.start()
    per_turn = 10 * TURN_UNITS
    await log.accept([(START_MS + 1000, b"x")] * per_turn)
    lags = []

    async def accepting() -> None:
        if len(lags) < 200:
            lags.append(timer.intake_lag_count)
            await log.accept([(START_MS + 1000, b"x")] * per_turn)

    log.yield_to_loop = accepting  # type: ignore[method-assign]
    while timer.intake_lag_count:
        await timer.intake_step()
    assert len(lags) == 200
    assert max(lags[100:]) <= 3 * per_turn


async def test_a_burst_is_not_scheduled_in_the_turn_after_it(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock)
    await timer.start()
    burst_count = 90 * BEHIND_UNITS_MAX
    await log.accept([(START_MS + 1000, b"x")] * 2 * TURN_UNITS)
    lags: list[int] = []

    async def yield_to_loop() -> None:
        lags.append(timer.intake_lag_count)
        if len(lags) == 1:
            await log.accept([(START_MS + 1000, b"x")] * burst_count)

    log.yield_to_loop = yield_to_loop  # type: ignore[method-assign]
    while timer.intake_lag_count:
        await timer.intake_step()
    behind = [lags[0] + burst_count, *lags[1:]]
    lengths = [before - after for before, after in pairwise(behind)]
    assert behind[0] // BURST_TURNS > TURN_UNITS_MAX
    assert TURN_UNITS < max(lengths) < TURN_UNITS_MAX + TURN_UNITS


async def test_what_is_far_behind_is_scheduled_in_turns_of_a_bounded_length(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock)
    await timer.start()
    for _ in range(100):
        await log.accept([(START_MS + 1000, b"x")] * 1000)
    lags = lags_at_turns(log, timer)
    while timer.intake_lag_count:
        await timer.intake_step()
    lengths = [before - after for before, after in pairwise([100_000, *lags])]
    assert BEHIND_UNITS_MAX <= max(lengths) < BEHIND_UNITS_MAX + TURN_UNITS


async def test_no_more_units_wait_for_the_disk_than_may(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock, unwritten_bytes_max=TURN_UNITS * UNIT_BYTES)
    await timer.start()
    await log.accept([(START_MS + 1000, b"%d" % number) for number in range(2 * TURN_UNITS + 1)])
    scheduled_counts = []
    while timer.intake_lag_count:
        scheduled_counts.append(await timer.intake_step())
        assert await timer.intake_step() == 0
        await timer.checkpoint()
    assert scheduled_counts == [TURN_UNITS, TURN_UNITS, 1]


async def test_memory_that_fills_while_a_start_is_caught_up_with_does_not_stop_deliveries(
    log: FakeLog, clock: FakeClock
) -> None:
    """Slots were opened while a full disk held it up, and one stays open for a record that cannot be read. What then
    arrives is older than what was delivered out of the next slot, and behind records that were put back on disk."""
    start_ms = START_MS // 1000 * 1000
    damaged = await log.accept([(start_ms + 50, b"damaged")])
    log.unreadable.add(damaged.position)
    for number in range(18):
        await log.accept([(start_ms + 100 + number, b"first slot %d" % number)])
    await log.accept([(start_ms + 1900, b"second slot")])
    for number in range(6):
        await log.accept([(start_ms + 200 + number, b"arrives in the first slot %d" % number)])
    for number in range(8):
        await log.accept([(start_ms + 1500 + number, b"arrives in the second slot %d" % number)])
    timer = make_timer(log, SimDisk(), clock, heap_count_max=4, unwritten_bytes_max=20 * UNIT_BYTES)
    await timer.start()
    await settle(timer)
    clock.set(start_ms + 1950)
    await settle(timer)
    assert len(values(log)) == 19
    await timer.checkpoint()  # the disk is back
    await settle(timer)
    assert (len(values(log)), timer.intake_lag_count, timer.pending_count) == (19 + 6 + 8, 0, 1)


@pytest.mark.parametrize("keys", [None, frozenset((b"key", b"another"))])
async def test_a_list_reads_each_entry_once(
    timer: TimerService, log: FakeLog, clock: FakeClock, keys: frozenset[bytes | None] | None
) -> None:
    for _ in range(3):
        await log.accept([(START_MS + 1000 + number, b"%d" % number) for number in range(100)])
    await settle(timer)
    read: list[int] = []
    reader = timer._state.record_cache._reader
    read_entry = reader._read_entry

    async def counted(position: int) -> Entry:
        read.append(position)
        return await read_entry(position)

    reader._read_entry = counted
    page = await timer.page(Query(keys=keys), limit=1000)
    assert [schedule.record.record.value for schedule in page.schedules] == [b"%d" % n for n in range(100)] * 3
    assert len(read) == len(log.entries)


async def test_what_is_due_within_an_interval_shares_an_append(log: FakeLog, clock: FakeClock) -> None:
    timer = make_timer(log, SimDisk(), clock, fire_interval_ms=25)
    await timer.start()
    await log.accept([(START_MS + 1 + number, b"%d" % number) for number in range(100)])
    await settle(timer)
    before = log.append_count
    running = asyncio.create_task(timer.run())
    started_s = asyncio.get_running_loop().time()
    while len(values(log)) < 100:  # the clock follows the real one, so that a record is due every millisecond
        clock.set(START_MS + int((asyncio.get_running_loop().time() - started_s) * 1000))
        await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait([running])
    assert log.append_count - before <= 1 + 100 // 25 + 1
    assert all(delivered.at_ms >= delivered.due_ms for delivered in log.delivered())


@pytest.mark.parametrize(("count", "nap_ms"), [(BUSY_RECORDS_MIN - 1, 25), (BUSY_RECORDS_MIN, 50)])
async def test_goes_that_deliver_much_are_further_apart(
    count: int, nap_ms: int, log: FakeLog, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = make_timer(log, SimDisk(), clock, fire_interval_ms=25)
    await timer.start()
    await log.accept([(START_MS, b"x")] * count)
    while await timer.intake_step():
        pass
    await timer._firing.get(clock.now_ms())
    naps_s: list[float] = []
    sleep = asyncio.sleep

    async def nap(delay_s: float) -> None:
        if delay_s:
            naps_s.append(delay_s)
            raise asyncio.CancelledError
        await sleep(0)

    monkeypatch.setattr("timer.firing.asyncio.sleep", nap)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 7.0)
    with contextlib.suppress(asyncio.CancelledError):
        await timer._firing.run()
    assert naps_s == [pytest.approx(nap_ms / 1000)]
    assert len(values(log)) == count


@pytest.mark.parametrize("strobe_ms", [0, 500])
async def test_a_clock_that_stands_still_or_strobes_makes_no_loop_spin(
    log: FakeLog, clock: FakeClock, strobe_ms: int
) -> None:
    timer = make_timer(log, SimDisk(), clock)
    await timer.start()
    clock.strobe(strobe_ms)
    await log.accept([(START_MS + strobe_ms + 1, b"soon"), (START_MS + strobe_ms + 700, b"later")])
    running = asyncio.create_task(timer.run())
    readings = clock.reading_count
    await asyncio.sleep(0.5)
    readings = clock.reading_count - readings
    running.cancel()
    await asyncio.wait([running])
    assert values(log) == []
    assert readings < 500 * 6, "looked at the clock more often than a few times a millisecond"


async def test_counts_never_drift_over_every_way_out(log: FakeLog, clock: FakeClock) -> None:
    disk = SimDisk()
    rng = Random(3)
    accepted: dict[bytes, ScheduleId] = {}
    cancelled_count = 0
    timer = make_timer(log, disk, clock)
    await timer.start()
    for number in range(40):
        values_now = [b"%d-%d" % (number, index) for index in range(10)]
        dues = [clock.now_ms() + rng.choice((100, 3000, 30_000)) + rng.randrange(1000) for _ in values_now]
        appended = await log.accept(list(zip(dues, values_now, strict=True)))
        for index, (due_ms, value) in enumerate(zip(dues, values_now, strict=True)):
            accepted[value] = ScheduleId(due_ms, appended.position, index)
        clock.step(rng.choice((0, 400, 2500)))
        await settle(timer)
        for value in rng.sample(sorted(accepted), 3):
            outcome = await timer.cancel(accepted[value])
            cancelled_count += outcome.standing is Standing.PENDING
            await settle(timer)
        if number % 5 == 0:
            await timer.close()
            timer = make_timer(log, disk, clock)
            await timer.start()
        elif number % 5 == 3:
            await timer.checkpoint()
            disk = disk.crash(rng)
            timer = make_timer(log, disk, clock)
            await timer.start()
        await settle(timer)
        expected = len(accepted) - cancelled_count - len(log.delivered())
        assert timer.pending_count == expected
        assert timer.pending_counts() == ({TARGET.topic_id: expected} if expected else {})
        assert await timer.count(Query()) == expected


async def test_large_records_scattered_over_many_entries_are_not_read_again_for_every_few(
    log: FakeLog, clock: FakeClock
) -> None:
    timer = make_timer(log, SimDisk(), clock, fire_bytes_max=64 * 1024, bodies_bytes_max=1)
    await timer.start()
    entry_count = 40
    for entry in range(entry_count):  # each has a record due at each of fifty milliseconds
        await log.accept([(START_MS + 10 + number, b"%d" % entry * 1000) for number in range(50)])
    while await timer.intake_step():
        pass
    clock.step(3_000)
    steps_count = 0
    while await timer.firing_step():
        steps_count += 1
    assert len(log.delivered()) == entry_count * 50
    assert [record.due_ms for record in log.delivered()] == sorted(record.due_ms for record in log.delivered())
    assert steps_count <= 250, "64 KiB of 3 MB at a time, half of that as a rule"


@pytest.mark.parametrize(
    ("late_ms", "count_max"),
    [(0, PIECE_RECORDS_MAX), (CATCH_UP_MS, PIECE_RECORDS_MAX), (CATCH_UP_MS + 1, CATCH_UP_RECORDS_MAX)],
)
async def test_deliveries_are_small_appends_until_they_are_late(
    timer: TimerService, log: FakeLog, clock: FakeClock, late_ms: int, count_max: int
) -> None:
    count = CATCH_UP_RECORDS_MAX + 1
    await log.accept([(START_MS + 10, b"%d" % number) for number in range(count)])
    while await timer.intake_step():
        pass
    clock.step(10 + late_ms)
    before_count = log.append_count
    await timer.firing_step()
    assert log.append_count - before_count == -(-count // count_max)
    assert values(log) == [b"%d" % number for number in range(count)]

"""The bounds on what may be pending, in all and in one second: exact at n and n + 1, whatever is under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from store import record_batch
from store.clock import SystemClock
from store.config import StoreConfig
from store.errors import AlreadyStored
from store.files import OsFiles
from store.record_batch import Record
from store.store import Store
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Appended, Delay, Identity
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import TARGET, FakeLog, make_timer, settle
from timer.changes import Standing
from timer.config import TimerConfig
from timer.errors import TooManySchedules
from timer.ports import OwnPartitions
from timer.schedule import ScheduleId
from timer.schedules import Query
from timer.service import TimerService


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock) -> FakeLog:
    return FakeLog(clock)


async def start(log: FakeLog, clock: FakeClock, disk: SimDisk, *, pending: int = 10, slot: int = 4) -> TimerService:
    timer = make_timer(log, disk, clock, pending_count_max=pending, slot_count_max=slot)
    await timer.start()
    return timer


async def schedule(timer: TimerService, *due_in_ms: int) -> list[ScheduleId]:
    batch = record_batch.encode([Record(None, b"x", 0)] * len(due_in_ms))
    delays = [Delay(START_MS + due_ms, *TARGET) for due_ms in due_in_ms]
    append = Append(queue=TIMER_QUEUE, batch=batch, record_count=len(delays), delays=delays)
    appended = await timer.schedule(append, acks=Acks.FLUSHED)
    return [ScheduleId(delay.due_ms, appended.position, index) for index, delay in enumerate(delays)]


async def test_no_more_than_the_bounds_are_accepted_and_room_comes_back(log: FakeLog, clock: FakeClock) -> None:
    timer = await start(log, clock, SimDisk())
    await schedule(timer, 2_000, 2_001, 2_002)
    await settle(timer)
    with pytest.raises(TooManySchedules, match="4 schedules are due in second"):
        await schedule(timer, 2_998, 2_999)
    await schedule(timer, 2_999, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000)
    await settle(timer)
    assert timer.pending_count == 10
    with pytest.raises(TooManySchedules, match="10 schedules are pending"):
        await schedule(timer, 9_000)
    assert timer.pending_count == 10
    await timer.cancel_all(Query(from_ms=START_MS + 8_000))
    await schedule(timer, 9_000)
    assert timer.pending_count == 10


async def test_what_is_not_scheduled_yet_counts_too(log: FakeLog, clock: FakeClock) -> None:
    timer = await start(log, clock, SimDisk())
    await schedule(timer, 2_000, 2_001)
    answers = await asyncio.gather(*(schedule(timer, 2_002) for _ in range(4)), return_exceptions=True)
    assert [isinstance(answer, TooManySchedules) for answer in answers] == [False, False, True, True]
    await settle(timer)
    with pytest.raises(TooManySchedules):
        await schedule(timer, 2_003)
    await asyncio.gather(*(schedule(timer, 3_000 + 500 * n) for n in range(20)), return_exceptions=True)
    assert 4 < timer.pending_count <= 10
    while timer.pending_count < 10:  # one after the other all the room there is can be had
        await schedule(timer, 60_000 + timer.pending_count * 1000)
    with pytest.raises(TooManySchedules):
        await schedule(timer, 90_000)


async def test_a_failed_append_takes_no_room(log: FakeLog, clock: FakeClock) -> None:
    timer = await start(log, clock, SimDisk())

    def fail(_: object) -> None:
        raise OSError

    log.before_append = fail
    for _ in range(20):
        with pytest.raises(OSError):
            await schedule(timer, 2_000)
    log.before_append = lambda _: None
    await schedule(timer, 2_000, 2_001, 2_002, 2_003)


@pytest.mark.parametrize("stop", ["clean", "crash", "before the tombstone is met"])
async def test_a_second_gets_room_back_by_cancelling_also_over_a_restart(
    log: FakeLog, clock: FakeClock, stop: str
) -> None:
    disk = SimDisk()
    timer = await start(log, clock, disk, pending=100)
    first, second, *_ = await schedule(timer, 2_000, 2_001, 2_002, 2_003)
    await settle(timer)
    await timer.cancel(first)
    if stop != "before the tombstone is met":
        await settle(timer)
    if stop == "crash":
        await timer.checkpoint()
        disk = disk.crash(Random(1))
    else:
        await timer.close()
    timer = await start(log, clock, disk, pending=100)
    await settle(timer)
    await schedule(timer, 2_004)
    await settle(timer)
    with pytest.raises(TooManySchedules):
        await schedule(timer, 2_005)
    await timer.cancel(second)
    await settle(timer)
    await schedule(timer, 2_006)


async def test_a_move_needs_room_in_its_second_and_leaves_room_in_the_old_one(log: FakeLog, clock: FakeClock) -> None:
    timer = await start(log, clock, SimDisk(), pending=8)
    moved, *_ = await schedule(timer, 2_000, 2_001, 2_002, 2_003)
    await schedule(timer, 3_000, 3_001, 3_002)
    await settle(timer)
    outcome = await timer.move(moved, START_MS + 3_500)
    assert outcome.standing is Standing.PENDING
    await settle(timer)
    with pytest.raises(TooManySchedules):
        await timer.move((await schedule(timer, 2_500))[0], START_MS + 3_600)
    assert timer.pending_count == 8


async def test_a_repeat_is_answered_as_one_when_nothing_more_is_accepted(tmp_path: Path) -> None:
    store = await Store.open(StoreConfig(root=tmp_path), files=OsFiles(), clock=SystemClock())
    topic, _ = await store.create_topic("orders", 1)
    config = TimerConfig(root=tmp_path / "timer", pending_count_max=1)
    timer = TimerService(config, store, OsFiles(), SystemClock(), partitions=OwnPartitions(store))
    await timer.start()
    due_ms = SystemClock().now_ms() + 3_600_000

    async def send(*names: bytes) -> Appended:
        batch = record_batch.encode([Record(None, name, 0) for name in names])
        append = Append(
            queue=TIMER_QUEUE,
            batch=batch,
            record_count=len(names),
            delays=[Delay(due_ms, topic.topic_id, 0)] * len(names),
            identity=Identity(message_ids=[name.ljust(16, b".") for name in names]),
        )
        return await timer.schedule(append, acks=Acks.FLUSHED)

    appended = await send(b"a")
    for names in ((b"a",), (b"a", b"b")):
        with pytest.raises(AlreadyStored) as known:
            await send(*names)
        (found,) = known.value.originals
        original = found[0].schedule
        assert original is not None
        assert (original.due_ms, original.position, original.record_index) == (due_ms, appended.position, 0)
        assert list(found) == [0]
    with pytest.raises(TooManySchedules):
        await send(b"b")
    assert timer.pending_count == 1
    await timer.close()
    await store.close()

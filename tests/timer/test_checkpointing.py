"""Stops in the middle of something: one thread at a time, no file closed under one, and no count wrong afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from store.types import Acks, Append, Appended
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import ROOT, FakeLog, make_timer, settle
from tests.waiting import PATIENCE_S
from timer.config import TimerConfig
from timer.ports import OwnPartitions
from timer.schedule import ScheduleId
from timer.service import TimerService


class Thread:
    """Runs work in a real thread, held up there while `is_open` is not set."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.entered = asyncio.Event()
        self.at_work_count = self.most_count = 0

    async def run(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def held() -> None:
            self.at_work_count += 1
            self.most_count = max(self.most_count, self.at_work_count)
            loop.call_soon_threadsafe(self.entered.set)
            assert self.is_open.wait(PATIENCE_S)
            work()
            self.at_work_count -= 1

        await asyncio.to_thread(held)

    async def hold_next(self) -> None:
        """Wait until work is held up in the thread."""
        self.is_open.clear()
        self.entered.clear()
        async with asyncio.timeout(PATIENCE_S):
            await self.entered.wait()


class SlowLog(FakeLog):
    """Answers an append a while after it is durable, when told to."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.is_slow = False
        self.stored = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        appendeds = await super().append(appends, acks=acks)
        if self.is_slow:
            self.stored.set()
            await self.may_answer.wait()
        return appendeds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def _begun(clock: FakeClock) -> tuple[FakeLog, SimDisk, Thread, TimerService]:
    log, disk, thread = FakeLog(clock), SimDisk(), Thread()
    config = TimerConfig(root=ROOT, checkpoint_interval_ms=1, expire_interval_ms=1)
    timer = TimerService(config, log, disk, clock, partitions=OwnPartitions(log), run_blocking=thread.run)
    await timer.start()
    await log.accept([(START_MS + 60_000, b"a"), (START_MS + 61_000, b"b")])
    await settle(timer)
    return log, disk, thread, timer


async def _found_clean(log: FakeLog, disk: SimDisk, clock: FakeClock) -> None:
    again = make_timer(log, disk, clock)
    await again.start()
    assert (again.recovery_outcome, again.pending_count) == ("clean", 2)
    await again.close()


async def test_a_stop_during_a_checkpoint_waits_for_it_and_then_leaves_its_own(clock: FakeClock) -> None:
    log, disk, thread, timer = await _begun(clock)
    running = asyncio.create_task(timer.run())
    await thread.hold_next()
    running.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done(), "a thread still writes"
    closing = asyncio.create_task(timer.close())
    await asyncio.sleep(0)
    thread.is_open.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    await closing
    assert thread.most_count == 1
    await _found_clean(log, disk, clock)


async def test_a_cancelled_stop_closes_no_file_under_the_thread_that_writes_it(clock: FakeClock) -> None:
    log, disk, thread, timer = await _begun(clock)
    closing = asyncio.create_task(timer.close())
    await thread.hold_next()
    for _ in range(3):
        closing.cancel()
        await asyncio.sleep(0)
    assert not closing.done()
    thread.is_open.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert thread.most_count == 1
    await _found_clean(log, disk, clock)


async def test_a_stop_between_a_delivery_and_its_answer_leaves_no_count_behind(clock: FakeClock) -> None:
    log, disk = SlowLog(clock), SimDisk()
    timer = make_timer(log, disk, clock)
    await timer.start()
    await log.accept([(START_MS + 1, b"a"), (START_MS + 60_000, b"b")])
    await settle(timer)
    clock.step(1)
    log.is_slow = True
    running = asyncio.create_task(timer.run())
    await log.stored.wait()
    running.cancel()
    await asyncio.sleep(0)
    log.may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    await timer.close()
    again = make_timer(log, disk, clock)
    await again.start()
    await settle(again)
    assert (again.recovery_outcome, again.pending_count) == ("clean", 1)
    assert [delivered.value for delivered in log.delivered()] == [b"a"]
    await again.close()


async def test_a_stop_while_a_cancel_is_stored_leaves_no_count_behind(clock: FakeClock) -> None:
    log, disk = SlowLog(clock), SimDisk()
    timer = make_timer(log, disk, clock)
    await timer.start()
    appended = await log.accept([(START_MS + 50_000, b"a"), (START_MS + 60_000, b"b")])
    await settle(timer)
    log.is_slow = True
    cancelling = asyncio.create_task(timer.cancel(ScheduleId(START_MS + 50_000, appended.position, 0)))
    await log.stored.wait()
    cancelling.cancel()
    closing = asyncio.create_task(timer.close())
    for _ in range(5):
        await asyncio.sleep(0)
    log.may_answer.set()
    await closing
    again = make_timer(log, disk, clock)
    await again.start()
    await settle(again)
    assert (again.recovery_outcome, again.pending_count) == ("clean", 1)
    clock.step(100_000)
    await settle(again)
    assert [delivered.value for delivered in log.delivered()] == [b"b"]
    await again.close()

"""A timer that has nothing to do takes nearly no turns of the event loop, whatever it is that it waits for.

A turn is one call of the selector: what an idle loop makes rarely, and a busy one thousands of times a second.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Sequence

import pytest

from store.errors import DiskFull, Overloaded, StoreError
from store.types import Append
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import FakeLog, make_timer, settle
from timer.schedule import LAP_SLOTS, SLOT_MS, ScheduleId
from timer.service import TimerService

HOUR_MS = 3_600_000
WATCHED_S = 0.4
TURNS_PER_S_MAX = 200
"""The loops look up twice a second each when all is quiet; a 1 ms timer that is armed again and again makes 1,000."""


class CountingSelector(selectors.DefaultSelector):
    """Counts the turns of the event loop that it serves."""

    turn_count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.turn_count += 1
        return super().select(timeout)


class Scene:
    """A timer and its world, in a state in which there is nothing to do."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log = FakeLog(self.clock)
        self.disk = SimDisk()
        self.timer: TimerService

    async def start(self, **settings: int) -> None:
        self.timer = make_timer(self.log, self.disk, self.clock, **settings)
        await self.timer.start()

    async def accept(self, *dues_ms: int) -> list[ScheduleId]:
        appended = await self.log.accept([(due_ms, b"%d" % due_ms) for due_ms in dues_ms])
        return [ScheduleId(due_ms, appended.position, index) for index, due_ms in enumerate(dues_ms)]

    def refuse_deliveries(self, error: StoreError) -> None:
        def refuse(appends: Sequence[Append]) -> None:
            raise error

        self.log.before_append = refuse


async def nothing_pending(scene: Scene) -> None:
    await scene.start()


async def frozen_before_the_due_time(scene: Scene) -> None:
    await scene.start()
    await scene.accept(START_MS + 1, START_MS + 700)


async def strobing_below_the_due_time(scene: Scene) -> None:
    await scene.start()
    scene.clock.strobe(500)
    await scene.accept(START_MS + 501, START_MS + 1200)


async def frozen_with_a_slot_that_memory_holds_in_part(scene: Scene) -> None:
    await scene.start(heap_count_max=8)
    await scene.accept(*(START_MS + 1500 + number for number in range(100)))
    await scene.timer.intake_step()
    scene.clock.step(600)


async def set_back_with_memory_full(scene: Scene) -> None:
    await scene.start(heap_count_max=8)
    await scene.accept(*(START_MS + 500 + number for number in range(100)))
    await settle(scene.timer)
    scene.clock.step(520)
    await settle(scene.timer)
    scene.clock.step(-HOUR_MS)
    await scene.accept(START_MS + 600)


async def set_back_with_much_that_was_cancelled(scene: Scene) -> None:
    await scene.start(heap_count_max=8)
    ids = await scene.accept(*(START_MS + 500 + number for number in range(20)))
    await settle(scene.timer)
    scene.clock.step(505)
    await settle(scene.timer)
    for schedule in ids[10:16]:
        await scene.timer.cancel(schedule)
        await scene.timer.intake_step()
    scene.clock.step(-HOUR_MS)


async def due_long_ago_and_unreadable(scene: Scene) -> None:
    await scene.start()
    await scene.accept(START_MS - HOUR_MS, START_MS)
    scene.log.unreadable.add(scene.log.entries[0].position)


async def due_for_a_full_disk(scene: Scene) -> None:
    await scene.start(heap_count_max=8)
    await scene.accept(*(START_MS - number for number in range(100)))
    await scene.timer.intake_step()
    scene.refuse_deliveries(DiskFull("no space"))


async def due_for_a_store_that_is_overloaded(scene: Scene) -> None:
    await scene.start()
    await scene.accept(*(START_MS - number for number in range(100)))
    await scene.timer.intake_step()
    scene.refuse_deliveries(Overloaded("too much"))


async def a_lap_behind_with_deliveries_refused(scene: Scene) -> None:
    await scene.start()
    await scene.accept(START_MS + 3000)
    await settle(scene.timer)
    scene.clock.step((LAP_SLOTS + 10) * SLOT_MS)
    await scene.accept(START_MS + 1)
    scene.refuse_deliveries(DiskFull("no space"))


async def units_waiting_for_a_full_disk(scene: Scene) -> None:
    await scene.start(unwritten_bytes_max=52, checkpoint_interval_ms=1000)
    await scene.accept(START_MS + HOUR_MS)
    await scene.timer.intake_step()
    await scene.accept(START_MS + HOUR_MS)


SCENES = [
    nothing_pending,
    frozen_before_the_due_time,
    strobing_below_the_due_time,
    frozen_with_a_slot_that_memory_holds_in_part,
    set_back_with_memory_full,
    set_back_with_much_that_was_cancelled,
    due_long_ago_and_unreadable,
    due_for_a_full_disk,
    due_for_a_store_that_is_overloaded,
    a_lap_behind_with_deliveries_refused,
    units_waiting_for_a_full_disk,
]


async def _turns(build: Callable[[Scene], Awaitable[None]], selector: CountingSelector) -> int:
    scene = Scene()
    await build(scene)
    running = asyncio.create_task(scene.timer.run())
    await asyncio.sleep(0.1)  # what there is to do is done
    before = selector.turn_count
    await asyncio.sleep(WATCHED_S)
    turn_count = selector.turn_count - before
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled(), "a loop has failed"
    return turn_count


@pytest.mark.parametrize("build", SCENES, ids=lambda build: build.__name__)
def test_a_timer_that_can_do_nothing_does_nothing(build: Callable[[Scene], Awaitable[None]]) -> None:
    selector = CountingSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        turn_count = runner.run(_turns(build, selector))
    assert turn_count < TURNS_PER_S_MAX * WATCHED_S

"""Tasks of one owner: what is cancelled with it, what is finished first, and what is undone when nobody hears of it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from gateway.api.tasks import Tasks, stop, task_group, when_set
from tests.waiting import until


class Gate:
    """A piece of work that goes through when it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.ended = ""

    async def go(self) -> int:
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "done"
        return 7

    async def pass_through(self) -> None:
        await self.go()


async def test_close_cancels_what_was_started_and_waits_for_what_is_to_be_finished() -> None:
    tasks = Tasks(lambda error: None)
    started, finished = Gate(), Gate()
    tasks.start(started.pass_through())
    tasks.finish(finished.pass_through())
    await asyncio.sleep(0)
    closing = asyncio.create_task(tasks.close())
    await asyncio.sleep(0.01)
    assert (started.ended, closing.done()) == ("cancelled", False)
    finished.opened.set()
    await closing
    assert (finished.ended, len(tasks)) == ("done", 0)


async def test_what_does_not_finish_in_time_is_cancelled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.api.tasks.FINISH_TIMEOUT_S", 0.01)
    tasks = Tasks(lambda error: None)
    gate = Gate()
    tasks.finish(gate.pass_through())
    await asyncio.sleep(0)
    await tasks.close()
    assert gate.ended == "cancelled"


async def test_a_caller_that_is_cancelled_leaves_nothing_half_done() -> None:
    tasks = Tasks(lambda error: None)
    gate = Gate()
    undone: list[str] = []

    async def undo() -> None:
        undone.append(gate.ended)

    for late in (False, True):  # cancelled before the work is done, or in the very turn in which it is
        gate = Gate()
        caller = asyncio.create_task(tasks.whole(gate.go(), unheard=undo))
        await asyncio.sleep(0)
        if late:
            gate.opened.set()
            while not gate.ended:  # noqa: ASYNC110
                await asyncio.sleep(0)
        caller.cancel()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await tasks.close()
        assert gate.ended == "done"
    assert undone == ["done", "done"]
    gate = Gate()
    gate.opened.set()
    assert await tasks.whole(gate.go(), unheard=undo) == 7
    assert len(undone) == 2


async def test_every_failure_is_told_to_somebody() -> None:
    failures: list[BaseException] = []
    tasks = Tasks(failures.append)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("x")

    tasks.start(fail())
    tasks.finish(fail())
    with pytest.raises(ValueError, match="x"):
        await tasks.whole(fail())
    await tasks.close()
    assert len(failures) == 2, "of the third the caller was told"
    caller = asyncio.create_task(tasks.whole(fail()))
    await asyncio.sleep(0)
    await stop(caller)
    await tasks.close()
    assert len(failures) == 3


async def test_an_event_calls_within_the_block_and_never_behind_it() -> None:
    event, calls = asyncio.Event(), list[int]()
    with when_set(event, lambda: calls.append(1)):
        await asyncio.sleep(0)
        assert calls == []
        event.set()
        await until(lambda: calls)
    assert calls == [1]
    late = asyncio.Event()
    with when_set(late, lambda: calls.append(2)):
        await asyncio.sleep(0)
    late.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert calls == [1]
    with when_set(event, lambda: calls.append(3)):
        await until(lambda: calls == [1, 3])  # it is set before
    with when_set(event, lambda: calls.append(4)):
        pass
    await asyncio.sleep(0)
    assert calls == [1, 3]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What dies here dies by reference count."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("is_at_the_end", [False, True])
async def test_a_task_that_was_cancelled_in_a_group_keeps_nothing(is_at_the_end: bool) -> None:
    held = Gate()
    there = weakref.ref(held)

    async def keep(gate: Gate) -> None:
        async with task_group() as others:
            others.create_task(gate.go())
            if not is_at_the_end:
                await gate.go()

    tasks = Tasks(lambda error: pytest.fail(str(error)))
    keeping = tasks.start(keep(held))
    del held
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await tasks.close()
    assert keeping.cancelled()
    await asyncio.sleep(0)
    assert there() is None

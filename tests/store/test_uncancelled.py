"""store.uncancelled: what was begun comes to its end, and the cancellation is told then."""

from __future__ import annotations

import asyncio

import pytest

from store.uncancelled import to_its_end, uncancelled


async def test_a_cancellation_is_raised_when_the_work_is_done_however_often_it_comes() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(uncancelled(work))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    work.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_without_a_cancellation_it_is_the_future_itself() -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    work.set_result(1)
    assert await uncancelled(work) == 1
    failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    failed.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        await uncancelled(failed)


async def test_what_came_too_late_is_undone() -> None:
    may_end = asyncio.Event()
    undone: list[int] = []

    async def work() -> int:
        await may_end.wait()
        return 7

    async def undo(result: int) -> None:
        undone.append(result)

    waiting = asyncio.ensure_future(to_its_end(work(), undo=undo))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    assert (waiting.done(), undone) == (False, [])
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert undone == [7]
    assert await to_its_end(work(), undo=undo) == 7
    assert undone == [7]

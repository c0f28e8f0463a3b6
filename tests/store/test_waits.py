"""store/waits.py: an event that comes, one that does not, and a wait that is cancelled as its event comes."""

from __future__ import annotations

import asyncio

import pytest

from store.waits import is_set_within
from tests.waiting import WOKEN_S


async def test_an_event_that_comes_is_told_from_one_that_does_not() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.001)
    asyncio.get_running_loop().call_later(0.001, event.set)
    assert await is_set_within(event, WOKEN_S)
    assert await is_set_within(event, None)


@pytest.mark.parametrize("timeout_s", [None, WOKEN_S])
@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_wait_that_is_cancelled_as_its_event_comes_is_cancelled(timeout_s: float | None, turns: int) -> None:
    event = asyncio.Event()

    async def forever() -> None:
        while True:
            await is_set_within(event, timeout_s)
            event.clear()

    waiting = asyncio.create_task(forever())
    await asyncio.sleep(0.001)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    assert (await asyncio.wait([waiting], timeout=WOKEN_S))[0] == {waiting}

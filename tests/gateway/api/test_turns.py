"""gateway.api.turns: long lists leave others their turn."""

from __future__ import annotations

import asyncio

import pytest

from gateway.api.turns import few_a_turn


@pytest.mark.parametrize(("count", "turns"), [(0, 0), (2, 0), (3, 1), (7, 2)])
async def test_others_have_a_turn_after_so_many_items(count: int, turns: int) -> None:
    had = 0

    async def other() -> None:
        nonlocal had
        while True:
            await asyncio.sleep(0)
            had += 1

    running = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    assert [item async for item in few_a_turn(range(count), per_turn=3)] == list(range(count))
    assert had == turns
    running.cancel()

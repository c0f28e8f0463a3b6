"""gateway.api.turns: long lists leave others their turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest

from gateway.api.turns import few_a_turn


@pytest.mark.parametrize(("count", "stretches"), [(0, 0), (3, 0), (4, 2), (7, 3)])
async def test_others_have_a_turn_before_so_many_items(count: int, stretches: int) -> None:
    had = 0

    async def other() -> None:
        nonlocal had
        while True:
            await asyncio.sleep(0)
            had += 1

    running = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    assert [item async for item in few_a_turn(range(count), per_turn=3)] == list(range(count))
    assert had == stretches
    running.cancel()


async def test_of_all_long_lists_a_few_items_are_gone_through_in_a_turn() -> None:
    turn = 0
    done: Counter[int] = Counter()

    async def other() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def go_through(items: Iterable[int]) -> None:
        async for _ in few_a_turn(items, per_turn=3):
            done[turn] += 1

    running = asyncio.ensure_future(other())
    await asyncio.gather(*(go_through(range(10)) for _ in range(8)), go_through(iter(range(10))))
    running.cancel()
    assert max(done.values()) == 3

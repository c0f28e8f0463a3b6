"""gateway.api.turns: long lists leave others their turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Iterable

import pytest

from gateway.api import turns
from gateway.api.turns import STRETCH_S, few_a_turn, in_turns
from store.turns import TURN_S, stretches


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


async def test_items_that_take_long_leave_others_their_turn_however_few_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn, now_s = 0, 0.0
    done: Counter[int] = Counter()

    async def other() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    monkeypatch.setattr(turns, "monotonic", lambda: now_s)
    running = asyncio.ensure_future(other())
    await asyncio.sleep(0)
    async for _ in few_a_turn(range(9), per_turn=9):
        now_s += 0.6 * STRETCH_S
        done[turn] += 1
    running.cancel()
    assert list(done.values()) == [2, 2, 2, 2, 1]


async def test_what_all_begin_in_a_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one step, which by itself asks for no turn."""
    turn, now_s = 0, 0.0
    done: Counter[int] = Counter()

    async def other() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    def work() -> Generator[None, None, int]:
        nonlocal now_s
        now_s += 0.6 * TURN_S
        done[turn] += 1
        return 7
        yield

    monkeypatch.setattr(turns, "thread_time", lambda: now_s)
    running = asyncio.ensure_future(other())
    assert await asyncio.gather(*(in_turns(work(), is_counted=True) for _ in range(9))) == [7] * 9
    running.cancel()
    assert sorted(done.values())[-2:] == [1, 2]
    assert not stretches().is_full, "what has asked is not counted"

"""store.turns: of all long work, one stretch in a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

from store.turns import TURN_S, Stretches, others_turn, stretches
from tests.waiting import PATIENCE_S


async def test_one_stretch_a_turn_whoever_asks_and_in_their_order() -> None:
    turn = 0
    done: list[tuple[int, str]] = []

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def work(name: str) -> None:
        for _ in range(3):
            await others_turn()
            done.append((turn, name))

    async def held(name: str) -> None:
        for _ in range(3):
            async with stretches().next():
                done.append((turn, name))

    counting = asyncio.ensure_future(count())
    await asyncio.gather(work("a"), held("b"), work("c"))
    counting.cancel()
    assert max(Counter(at for at, _ in done).values()) == 1
    assert [name for _, name in done] == ["b", "a", "c"] * 3 or [name for _, name in done] == ["a", "b", "c"] * 3


async def test_who_gives_up_waiting_stops_nobody() -> None:
    waiting = [asyncio.ensure_future(others_turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    async with asyncio.timeout(PATIENCE_S):
        await waiting[2]
        await others_turn()


async def test_a_turn_is_full_beyond_its_time_and_the_next_one_is_not() -> None:
    turn = stretches()
    turn.spent(TURN_S / 2)
    turn.spent(TURN_S / 2)
    assert not turn.is_full
    turn.spent(TURN_S / 1000)
    assert turn.is_full
    await asyncio.sleep(0)
    assert not turn.is_full


def test_each_loop_has_its_own() -> None:
    """Also where two run in turn."""
    loops = [asyncio.new_event_loop() for _ in range(2)]

    async def own() -> Stretches:
        return stretches()

    try:
        found = [[loop.run_until_complete(own()) for loop in loops] for _ in range(3)]
    finally:
        for loop in loops:
            loop.close()
    assert found[0][0] is not found[0][1]
    assert found[1] == found[2] == found[0]

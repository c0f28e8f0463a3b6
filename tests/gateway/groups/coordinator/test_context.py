"""gateway.groups.coordinator.context: turns, changes, and what belongs to nobody."""

from __future__ import annotations

import asyncio
import gc

from gateway.groups.coordinator.context import WOKEN_A_TURN, Changes, Stats, Turns
from gateway.groups.machines.progress import PartitionKey
from tests.gateway.groups.coordinator.world import wanting, world

KEY = PartitionKey(16, 0)


async def test_a_turn_is_somebodys_alone_and_costs_nothing_when_nobody_has_it() -> None:
    turns = Turns()
    assert not turns.is_busy("g", KEY)
    async with turns.of_leases("g", KEY):
        assert turns.is_busy("g", KEY)
        assert not turns.of_group("g").locked()
        assert not turns.is_busy("h", KEY)
    gc.collect()
    assert (len(turns._locks), len(turns._all_leases)) == (0, 0)


async def test_the_turn_of_a_whole_group_waits_for_its_leases() -> None:
    async with world(values=[b"1"]) as made:
        await made.groups.receive("g", wanting())
        context = made.groups._context
        order: list[str] = []

        async def have_all() -> None:
            async with context.whole_group("g"):
                order.append("all")

        async def have_one() -> None:
            async with context.turns.of_leases("g", PartitionKey(16, 7)):
                order.append("one, later")

        async with context.turns.of_leases("g", KEY, PartitionKey(16, 1)):
            waiting = [asyncio.ensure_future(have_all()), asyncio.ensure_future(have_one())]
            for _ in range(5):
                await asyncio.sleep(0)
            order.append("leases")
        await asyncio.gather(*waiting)
        assert order == ["leases", "all", "one, later"], "and it is not overtaken for ever"


async def test_a_change_wakes_those_who_listen_to_it_once() -> None:
    changes = Changes()
    loop = asyncio.get_running_loop()
    mine, gone, other = (loop.create_future() for _ in range(3))
    changes.listen("g", mine)
    changes.listen("g", gone)
    changes.listen("h", other)
    changes.forget("g", gone)
    changes.happened("g")
    assert (mine.done(), gone.done(), other.done()) == (True, False, False)
    changes.happened("g")
    changes.all_happened()
    assert other.done()
    assert changes._waiting == {}


async def test_of_many_who_wait_for_a_change_some_are_woken_in_each_turn() -> None:
    changes = Changes()
    loop = asyncio.get_running_loop()
    waiting = [loop.create_future() for _ in range(2 * WOKEN_A_TURN + 1)]
    for waiter in waiting:
        changes.listen("g", waiter)
    changes.happened("g")
    counts = []
    for _ in range(3):
        counts.append(sum(waiter.done() for waiter in waiting))
        await asyncio.sleep(0)
    assert counts == [WOKEN_A_TURN, 2 * WOKEN_A_TURN, len(waiting)]


def test_counting_can_begin_anew() -> None:
    stats = Stats(settled_count=5)
    stats.reset()
    assert stats == Stats()

"""gateway.groups.coordinator.context: turns, changes, and what belongs to nobody."""

from __future__ import annotations

import asyncio

from gateway.groups.coordinator.context import WOKEN_A_TURN, Changes, Stats, Turns
from gateway.groups.machines.progress import PartitionKey
from tests.gateway.groups.coordinator.world import wanting, world
from tests.waiting import WOKEN_S

KEY = PartitionKey(16, 0)


async def test_a_turn_is_somebodys_alone_and_costs_nothing_when_nobody_has_it() -> None:
    turns = Turns()
    assert not turns.is_busy("g", KEY)
    async with turns.of_leases("g", KEY):
        assert turns.is_busy("g", KEY)
        assert not turns.is_busy("h", KEY)
        async with turns.of_group("g"):
            assert len(turns.locks) == 2
    assert (len(turns.locks), len(turns.gates), turns.part_counts) == (0, 0, {})


async def test_turns_are_handed_on_in_order_whoever_gives_up_waiting() -> None:
    """At whatever step the second of three is cancelled: while it waits, as it is its turn, and afterwards."""
    for step in range(8):
        turns = Turns()
        order: list[int] = []

        async def have(number: int, turns: Turns = turns, order: list[int] = order) -> None:
            async with turns.of_leases("g", KEY):
                assert not order or order[-1] < number
                order.append(number)
                await asyncio.sleep(0)

        waiting = [asyncio.ensure_future(have(number)) for number in range(3)]
        for _ in range(step):
            await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait(waiting)
        assert order in ([0, 2], [0, 1, 2]), step
        assert (len(turns.locks), turns.part_counts) == (0, {}), step


async def test_who_waits_for_the_whole_and_gives_up_lets_the_others_go_on() -> None:
    turns = Turns()

    async def have_all() -> None:
        async with turns.of_all_leases("g"):
            raise AssertionError("it was not to get it")

    async def have_one() -> None:
        async with turns.of_leases("g", PartitionKey(16, 1)):
            pass

    async with turns.of_leases("g", KEY):
        whole, one = asyncio.ensure_future(have_all()), asyncio.ensure_future(have_one())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not one.done()
        whole.cancel()
        await asyncio.wait_for(one, WOKEN_S)
    assert (len(turns.gates), turns._free, turns.part_counts) == (0, {}, {})


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

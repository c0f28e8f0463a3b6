"""gateway.routing.tail_watcher: one wait a partition, however many want to know. See tests/gateway/surfaces/ws/
test_frame_cache.py for those who come back after each wake-up."""

from __future__ import annotations

import asyncio

from gateway.routing.tail_watcher import TailWatcher
from tests.gateway.groups.coordinator.world import world
from tests.waiting import WOKEN_S, until


async def test_all_who_watch_are_woken_by_one_wait_and_nobody_who_has_gone() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(made.routes)
        woken: list[int] = []
        call_offs = [watcher.watch("orders", 0, 0, lambda n=n: woken.append(n)) for n in range(5)]  # type: ignore[misc]
        assert len(watcher._tails) == 1
        call_offs[4]()
        await asyncio.sleep(0)
        await made.send(b"1")
        await until(lambda: woken)
        assert woken == [0, 1, 2, 3]
        assert watcher.is_end("orders", 0, 1)
        await made.send(b"2")  # the first wait of nobody
        await made.send(b"3")  # and the second: it ends
        await until(lambda: not watcher._tails)
        assert woken == [0, 1, 2, 3]


async def test_who_comes_with_another_end_is_woken_at_once_but_not_inside_the_call() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(made.routes)
        watcher.watch("orders", 0, 0, lambda: None)
        woken = asyncio.Event()
        watcher.watch("orders", 0, 7, woken.set)
        assert not woken.is_set()
        await asyncio.wait_for(woken.wait(), WOKEN_S)
        await watcher.close()


async def test_who_waits_for_a_topic_is_told_which_partitions_got_records() -> None:
    async with world(partitions=3) as made:
        watcher = TailWatcher(made.routes)
        woken: list[int] = []
        first, second = (watcher.watch_topic("orders", lambda n=n: woken.append(n)) for n in range(2))  # type: ignore[misc]
        await made.topic("others", 1)
        await made.send(b"1", partition=2)
        await made.send(b"1", topic="others")
        assert (sorted(woken), first.changed(), first.changed()) == ([0, 1], [2], [])
        await made.send(b"2", partition=0)
        await made.send(b"2", partition=2)
        await made.send(b"3", partition=2)
        assert (first.changed(), second.changed()) == ([2, 0], [2, 0])
        second.close()
        second.close()
        woken.clear()
        await made.broker.delete_topic("orders")
        assert (woken, first.changed()) == ([0], []), "the topic is gone"
        first.close()
        assert (watcher._topics, made.store._watching) == ({}, {})


async def test_a_partition_that_goes_away_wakes_too() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(made.routes)
        while_there, gone = asyncio.Event(), asyncio.Event()
        watcher.watch("orders", 0, 0, while_there.set)
        await asyncio.sleep(0)
        await made.broker.delete_topic("orders")
        await asyncio.wait_for(while_there.wait(), WOKEN_S)
        watcher.watch("orders", 0, 0, gone.set)
        await asyncio.wait_for(gone.wait(), WOKEN_S)


async def test_closing_ends_the_waits_those_too_that_have_not_begun() -> None:
    async with world(partitions=2) as made:
        watcher = TailWatcher(made.routes)
        woken: list[int] = []
        for partition in range(2):
            watcher.watch("orders", partition, 0, lambda n=partition: woken.append(n))  # type: ignore[misc]
            if not partition:
                await asyncio.sleep(0)
        await watcher.close()
        assert (sorted(woken), len(watcher._tails)) == ([0, 1], 0)

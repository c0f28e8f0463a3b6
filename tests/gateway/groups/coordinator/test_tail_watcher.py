"""gateway.groups.coordinator.tail_watcher: one wait a partition, however many listen."""

from __future__ import annotations

import asyncio

from gateway.groups.coordinator.records import RecordReader
from gateway.groups.coordinator.tail_watcher import TailWatcher
from tests.gateway.groups.coordinator.world import world
from tests.waiting import WOKEN_S


async def test_all_who_listen_are_woken_by_one_wait_and_nobody_who_has_gone() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(RecordReader(made.routes))
        loop = asyncio.get_running_loop()
        waiters = [loop.create_future() for _ in range(5)]
        for waiter in waiters:
            watcher.listen("orders", 0, 0, waiter)
        assert len(watcher._tasks) == 1
        watcher.forget("orders", 0, waiters[4])
        await asyncio.sleep(0)
        await made.send(b"1")
        await asyncio.wait_for(asyncio.gather(*waiters[:4]), WOKEN_S)
        assert not waiters[4].done()
        assert (watcher._tasks, watcher._waiting) == ({}, {})


async def test_a_partition_that_goes_away_wakes_too() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(RecordReader(made.routes))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await made.broker.delete_topic("orders")
        watcher.listen("orders", 0, 0, waiter)
        await asyncio.wait_for(waiter, WOKEN_S)


async def test_closing_ends_the_waits() -> None:
    async with world(partitions=1) as made:
        watcher = TailWatcher(RecordReader(made.routes))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watcher.listen("orders", 0, 0, waiter)
        await asyncio.sleep(0)
        await watcher.close()
        assert waiter.done()
        assert watcher._tasks == {}

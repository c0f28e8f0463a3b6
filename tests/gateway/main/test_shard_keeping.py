"""gateway.main.shard_keeping: shards are looked at when they may have changed, and not else."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from gateway.cluster.mover import MoveConflict
from gateway.cluster.node import ClusterNode
from gateway.cluster.shard_log import SHARDS
from gateway.main import shard_keeping
from gateway.main.shard_keeping import ShardKeeper, until_settled
from store.errors import Overloaded
from store.topics import TIMER

PAUSE_S = 0.05


class Node:
    """What of a node a keeper asks."""

    name = "n1"

    def __init__(self) -> None:
        self.on_shards: list[Callable[[], None]] = []
        self.owners: dict[int, str] = {}
        self.refused = 0

    async def begin_shard(self, _topic_id: int, shard: int, _broker: str) -> None:
        if self.refused:
            self.refused -= 1
            raise MoveConflict
        self.owners[shard] = "n1" if shard % 2 else "n2"

    def shard_owner(self, _topic_id: int, shard: int) -> str | None:
        return self.owners.get(shard)


class World:
    def __init__(self, broker: str | None) -> None:
        self.node = Node()
        self.looks: Counter[int] = Counter()
        self.here: set[int] = set()
        self.failures = 0
        self.keeper = ShardKeeper(
            cast(ClusterNode, self.node), TIMER, broker=broker, look=self.look, is_here=self.here.__contains__
        )

    async def look(self, shard: int) -> None:
        self.looks[shard] += 1
        if self.failures:
            self.failures -= 1
            raise Overloaded("it cannot be read")
        if self.node.owners.get(shard) == "n1":
            self.here.add(shard)


@asynccontextmanager
async def running(broker: str | None = None) -> AsyncIterator[World]:
    world = World(broker)
    task = asyncio.create_task(world.keeper.run())
    await asyncio.sleep(PAUSE_S)
    yield world
    task.cancel()
    await asyncio.wait([task])
    assert world.node.on_shards == []


async def test_what_is_not_here_is_looked_at_when_the_node_says_so_and_not_else() -> None:
    async with running() as world:
        assert world.looks == dict.fromkeys(range(SHARDS), 1)
        await asyncio.sleep(PAUSE_S)
        assert world.looks.total() == SHARDS
        [wake] = world.node.on_shards
        wake()
        wake()
        await asyncio.sleep(PAUSE_S)
        assert world.looks == dict.fromkeys(range(SHARDS), 2)
        world.keeper.wake(3)
        await asyncio.sleep(PAUSE_S)
        assert world.looks.total() == 2 * SHARDS + 1


async def test_what_is_here_is_looked_at_now_and_then_and_what_failed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_keeping, "HERE_S", PAUSE_S / 5)
    monkeypatch.setattr(shard_keeping, "RETRY_S", PAUSE_S / 5)
    async with running() as world:
        world.node.owners[1] = "n1"
        world.failures = 1
        world.keeper.wake(1)
        await asyncio.sleep(3 * PAUSE_S)
        assert world.here == {1}
        assert world.looks[1] > 3
        assert world.looks[2] == 1


@pytest.mark.parametrize(
    ("owners", "broker", "here", "expected"),
    [
        ({}, None, set(), True),  # of a cluster without shards
        ({}, "kafka1", set(), False),  # they are to be begun
        ({0: "n2", 1: "n1"}, None, set(), False),  # one is this node's
        ({0: "n2", 1: "n1"}, None, {1}, True),
        (dict.fromkeys(range(SHARDS - 1), "n2"), "kafka1", set(), False),
        (dict.fromkeys(range(SHARDS), "n2"), "kafka1", set(), True),
    ],
)
def test_a_node_is_settled_when_its_shards_are_here(
    owners: dict[int, str], broker: str | None, here: set[int], expected: bool
) -> None:
    world = World(broker)
    world.node.owners = owners
    world.here |= here
    assert world.keeper.is_settled is expected


async def test_a_start_waits_for_it_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_keeping, "SETTLE_LOOK_S", 0.001)
    monkeypatch.setattr(shard_keeping, "RETRY_S", PAUSE_S)
    world, stopping = World("kafka1"), asyncio.Event()
    world.node.refused = 2
    settling = asyncio.create_task(until_settled([world.keeper], stopping))
    task = asyncio.create_task(world.keeper.run())
    await asyncio.sleep(PAUSE_S / 2)
    assert not settling.done()
    await asyncio.sleep(4 * PAUSE_S)
    assert len(world.node.owners) == SHARDS
    assert not settling.done(), "its own are not read"
    world.keeper.wake()
    await asyncio.wait_for(settling, 1.0)
    assert len(world.here) == SHARDS // 2
    task.cancel()
    await asyncio.wait([task])
    world.here.clear()
    asyncio.get_running_loop().call_later(0.01, stopping.set)
    await asyncio.wait_for(until_settled([world.keeper], stopping), 1.0)
    monkeypatch.setattr(shard_keeping, "TAKE_OWN_S", 0.01)
    await asyncio.wait_for(until_settled([world.keeper], asyncio.Event()), 1.0)

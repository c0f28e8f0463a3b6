"""gateway.routing.holding."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from gateway.routing import holding
from gateway.routing.holding import await_move, held_until_s
from gateway.routing.table import RouteTable, Segment
from store.errors import SealedQueue, UnknownQueue
from store.topics import Topic
from store.types import QueueKey
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker
from tests.waiting import WOKEN_S

TOPIC = Topic(16, "orders", 2)


def table() -> tuple[RouteTable, FakeBroker]:
    routes, broker = RouteTable(), FakeBroker(FakeClock())
    routes.put(TOPIC, broker)
    return routes, broker


def moved(broker: FakeBroker) -> tuple[Segment, ...]:
    return (Segment(broker, QueueKey(16, 0), 0, 0, 3), Segment(broker, QueueKey(16, 1024), 3))


async def test_a_send_is_held_until_one_of_its_partitions_is_elsewhere() -> None:
    routes, broker = table()
    known = [(partition, routes.writable("orders", partition)) for partition in (0, 1)]
    async with asyncio.timeout(WOKEN_S):
        waiting = asyncio.create_task(await_move(routes, "orders", known, held_until_s()))
        await asyncio.sleep(0)
        assert not waiting.done()
        routes.set_chain("orders", 0, moved(broker))
        await waiting
        await await_move(routes, "orders", known, held_until_s())  # it is there already


async def test_the_table_is_asked_to_look_when_it_hears_nothing() -> None:
    routes, broker = table()
    asked: list[tuple[str, int]] = []

    async def look(topic: str, partition: int) -> None:
        asked.append((topic, partition))
        routes.set_chain(topic, partition, moved(broker))

    routes.refresh_by = look
    with patch.object(holding, "REFRESH_MS", 1):
        async with asyncio.timeout(WOKEN_S):
            await await_move(routes, "orders", [(0, routes.writable("orders", 0))], held_until_s())
    assert asked == [("orders", 0)]


async def test_a_send_is_not_held_for_ever_nor_for_a_topic_that_is_gone() -> None:
    routes, _ = table()
    known = [(0, routes.writable("orders", 0))]
    now_s = asyncio.get_running_loop().time()
    with pytest.raises(SealedQueue, match="send again"), patch.object(holding, "REFRESH_MS", 1):
        await await_move(routes, "orders", known, now_s + 0.005)
    assert held_until_s() - now_s == pytest.approx(holding.HOLD_MS / 1000, abs=1)
    waiting = asyncio.create_task(await_move(routes, "orders", known, held_until_s()))
    await asyncio.sleep(0)
    routes.remove(TOPIC)
    with pytest.raises(UnknownQueue):
        await asyncio.wait_for(waiting, WOKEN_S)

"""gateway.brokers.local over a real store on a simulated disk."""

from __future__ import annotations

import asyncio

import pytest

from gateway.brokers.local import LocalBroker
from gateway.routing.table import RouteTable
from store import Store
from store.errors import UnknownQueue
from store.record_batch import Record, encode
from store.topics import TIMER_QUEUE, Topic
from store.types import Acks, Append, Appended, Delay, QueueKey, ReadStatus
from tests.simdisk import SimDisk
from tests.store.kit import append_of, opened
from tests.waiting import WOKEN_S


class Unbounded:
    """Accepts every schedule, as a timer with room does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def schedule(self, append: Append, *, acks: Acks) -> Appended:
        return (await self._store.append([append], acks=acks))[0]


def broker_over(store: Store, routes: RouteTable) -> LocalBroker:
    broker = LocalBroker(
        store,
        Unbounded(store),
        name="b",
        on_topic=lambda topic: routes.put(topic, broker),
        on_deleted=routes.remove,
    )
    return broker


async def test_append_read_and_a_long_poll_that_the_next_record_ends() -> None:
    async with opened(SimDisk()) as store:
        made: list[Topic] = []
        broker = LocalBroker(store, Unbounded(store), name="b", on_topic=made.append, on_deleted=made.remove)
        topic = await broker.create_topic("orders", 2)
        assert made == [topic]
        queue = QueueKey(topic.topic_id, 1)
        waiting = asyncio.ensure_future(broker.read(queue, 0, max_bytes=1, wait_ms=60_000))
        await asyncio.sleep(0)
        await broker.append([append_of(queue, [b"x"])], acks=Acks.FLUSHED)
        result = await asyncio.wait_for(waiting, WOKEN_S)
        assert (result.status, result.next_offset, await broker.bounds(queue)) == (ReadStatus.FOUND, 1, (0, 1))
        assert (await broker.read(queue, 1, max_bytes=1)).status is ReadStatus.AT_END
        assert broker.ready() == []


async def test_a_schedule_is_an_entry_of_the_timers_topic_with_its_delays_and_tags() -> None:
    async with opened(SimDisk()) as store:
        broker = broker_over(store, RouteTable())
        delays = [Delay(5_000, 16, 0), Delay(6_000, 16, 1)]
        batch = encode([Record(None, b"1", 0), Record(None, b"2", 0)])
        append = Append(queue=TIMER_QUEUE, batch=batch, record_count=2, tag_hashes=[7, 0], delays=delays)
        answer = await broker.schedule(append, acks=Acks.WRITTEN)
        [entry] = (await store.read(TIMER_QUEUE, 0, max_bytes=1)).entries
        assert (entry.position, entry.delays, entry.tag_hashes) == (answer.position, delays, [7, 0])
        assert answer.acks is Acks.WRITTEN


async def test_routes_follow_growth_and_deletion_and_a_reader_that_waits_is_told() -> None:
    async with opened(SimDisk()) as store:
        routes = RouteTable()
        broker = broker_over(store, routes)
        topic = await broker.create_topic("orders", 1)
        assert (await broker.grow_topic("orders", 3)).partitions == 3
        assert routes.writable("orders", 2).queue == QueueKey(topic.topic_id, 2)
        waiting = asyncio.ensure_future(broker.read(QueueKey(topic.topic_id, 0), 0, max_bytes=1, wait_ms=60_000))
        await asyncio.sleep(0)
        await broker.delete_topic("orders")
        with pytest.raises(UnknownQueue):
            await asyncio.wait_for(waiting, WOKEN_S)
        with pytest.raises(UnknownQueue):
            routes.topic("orders")
        assert (await broker.create_topic("orders", 1)).topic_id > topic.topic_id

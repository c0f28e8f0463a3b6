"""gateway.brokers.local over a real store on a simulated disk."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import pytest

from gateway.brokers.local import LocalBroker
from gateway.routing.reading import PartitionReader
from gateway.routing.table import RouteTable, Segment
from gateway.routing.tail_watcher import TailWatcher
from store import Store
from store.errors import SealedQueue, UnknownQueue
from store.limits import PARTITIONS_MAX
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

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
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


async def test_an_append_is_told_to_who_watches_and_read() -> None:
    async with opened(SimDisk()) as store:
        made: list[Topic] = []
        broker = LocalBroker(store, Unbounded(store), name="b", on_topic=made.append, on_deleted=made.remove)
        topic = await broker.create_topic("orders", 2)
        assert made == [topic]
        queue = QueueKey(topic.topic_id, 1)
        told: list[Mapping[QueueKey, int]] = []
        forget = broker.watch(topic.topic_id, told.append)
        await broker.append([append_of(queue, [b"x"])], acks=Acks.FLUSHED)
        forget()
        assert told == [{queue: 1}]
        result = await broker.read(queue, 0, max_bytes=1)
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
        told: list[Mapping[QueueKey, int]] = []
        broker.watch(topic.topic_id, told.append)
        await broker.delete_topic("orders")
        assert told == [{}]
        with pytest.raises(UnknownQueue):
            await broker.read(QueueKey(topic.topic_id, 0), 0, max_bytes=1)
        with pytest.raises(UnknownQueue):
            routes.topic("orders")
        assert (await broker.create_topic("orders", 1)).topic_id > topic.topic_id


async def test_a_partition_moves_to_another_queue_and_its_reader_goes_on_there() -> None:
    async with opened(SimDisk()) as store:
        routes = RouteTable()
        broker = broker_over(store, routes)
        topic = await broker.create_topic("orders", 1)
        first, further = QueueKey(topic.topic_id, 0), QueueKey(topic.topic_id, PARTITIONS_MAX)
        await broker.append([append_of(first, [b"0", b"1"])], acks=Acks.FLUSHED)
        reader = PartitionReader(routes)
        watcher, woken = TailWatcher(routes), asyncio.Event()
        watcher.watch("orders", 0, 2, woken.set)
        await broker.create_queue(further)
        end = await broker.seal_queue(first)
        with pytest.raises(SealedQueue):
            await broker.append([append_of(first, [b"x"])], acks=Acks.FLUSHED)
        chain = (Segment(broker, first, physical_end=end), Segment(broker, further, logical_start=end))
        routes.set_chains(topic, [chain])
        await broker.configure_topic("orders", {"retention_ms": 1_000_000})
        route = routes.writable("orders", 0)
        assert route.queue == further, "a topic that is configured keeps its chains"
        await route.broker.append([append_of(route.queue, [b"2"])], acks=Acks.FLUSHED)
        await asyncio.wait_for(woken.wait(), WOKEN_S)
        assert (await reader.read("orders", 0, 2, max_bytes=1)).next_offset == 3
        assert await reader.bounds("orders", 0) == (0, 3)
        await broker.expire_queue(first, end)
        assert await reader.bounds("orders", 0) == (2, 3)
        [entry] = (await reader.read("orders", 0, 2, max_bytes=1)).entries
        assert entry.base_offset == 2


@pytest.mark.parametrize("turns", range(8))
async def test_the_route_table_hears_of_changes_whose_callers_are_gone(turns: int) -> None:
    async with opened(SimDisk()) as store:
        routes = RouteTable()
        broker = broker_over(store, routes)

        async def given_up(change: Coroutine[Any, Any, object]) -> None:
            asked = asyncio.ensure_future(change)
            for _ in range(turns):
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])

        await broker.create_topic("stays", 1)
        await given_up(broker.create_topic("orders", 1))
        await given_up(broker.grow_topic("stays", 3))
        await given_up(broker.delete_topic("stays"))
        known = [(topic.topic_id, topic.name, topic.partitions) for topic in routes.topics()]
        assert known == [
            (topic.topic_id, topic.name, topic.partitions) for topic in store.topics() if not topic.is_system
        ]


async def test_a_change_that_a_deletion_overtakes_brings_no_topic_back() -> None:
    async with opened(SimDisk()) as store:
        routes = RouteTable()
        broker = broker_over(store, routes)
        await broker.create_topic("orders", 1)
        hiding, go_on = store._hide_expired, asyncio.Event()

        async def hide_later(topics: Sequence[Topic]) -> None:
            await go_on.wait()
            await hiding(topics)

        store._hide_expired = hide_later  # type: ignore[method-assign]
        changing = asyncio.ensure_future(broker.configure_topic("orders", {"retention_ms": 60_000}))
        while store.topic("orders").config.retention_ms is None:  # noqa: ASYNC110 - until it is applied
            await asyncio.sleep(0)
        await broker.delete_topic("orders")
        go_on.set()
        await changing
        assert "orders" not in routes

"""gateway/api/read.py"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from gateway.api.read import AtTime, Consumer, OffsetSpec, Tail
from gateway.api.turns import ITEMS_PER_TURN
from gateway.errors import INVALID, RequestError
from gateway.routing.base import UnknownPartition
from gateway.routing.table import RouteTable, Segment
from gateway.routing.tail_watcher import Wake
from gateway.surfaces.http.context import Gateway
from store import record_batch
from store.errors import UnknownQueue
from store.record_batch import Record
from store.types import Acks, Append, QueueKey, ReadStatus
from tests.clock import START_MS, FakeClock
from tests.gateway.fake_broker import FakeBroker, FakeTopic
from tests.waiting import WOKEN_S, until

QUEUE = QueueKey(16, 0)


async def send(broker: FakeBroker, count: int, queue: QueueKey = QUEUE) -> None:
    batch = record_batch.encode([Record(None, b"1", 5)] * count)
    await broker.append([Append(queue=queue, batch=batch, record_count=count)], acks=Acks.FLUSHED)


async def test_with_one_queue_entries_pass_as_they_are(gateway: Gateway, broker: FakeBroker) -> None:
    await send(broker, 3)
    await send(broker, 2)
    fetched = await gateway.consumer.fetch("orders", 0, 4, max_bytes=1 << 20)
    assert fetched.status is ReadStatus.FOUND
    assert fetched.entries[0] is broker.entries[QUEUE][1]
    assert (fetched.min_offset, fetched.max_offset, fetched.next_offset) == (0, 5, 5)


async def test_a_partition_that_moved_is_read_in_its_own_offsets(clock: FakeClock) -> None:
    old, new = FakeBroker(clock), FakeBroker(clock)
    await send(old, 5, QueueKey(1, 0))
    await send(new, 7, QueueKey(1, 3))
    await send(new, 2, QueueKey(1, 3))
    routes = RouteTable()
    chain = (
        Segment(old, QueueKey(1, 0), physical_end=5),
        Segment(new, QueueKey(1, 3), logical_start=5, physical_start=0),
    )
    routes.set_chains(FakeTopic("moved", 9, 1), [chain])
    consumer = Consumer(routes)
    before = await consumer.fetch("moved", 0, 2, max_bytes=1 << 20)
    assert [entry.base_offset for entry in before.entries] == [0]
    after = await consumer.fetch("moved", 0, 12, max_bytes=1 << 20)
    assert [entry.base_offset for entry in after.entries] == [12]
    assert [record.offset for entry in after.entries for record in record_batch.decode(entry.batch)] == [12, 13]
    assert (after.max_offset, after.next_offset) == (14, 14)
    assert await consumer.bounds("moved", 0) == (0, 14)
    assert await consumer.resolve_offset("moved", 0, -3) == 11


@pytest.mark.parametrize(
    ("spec", "offset"),
    [
        ("earliest", 2), ("latest", 5), ("3", 3), ("0", 0), ("99", 99), (4, 4), ("-1", 4), (-3, 2), ("-99", 2),
        (AtTime(0), 2), (AtTime(START_MS), 2), (AtTime(START_MS + 1), 5),
    ],
)  # fmt: skip
async def test_offsets_are_resolved(gateway: Gateway, broker: FakeBroker, spec: OffsetSpec, offset: int) -> None:
    await send(broker, 5)
    broker.min_offsets[QUEUE] = 2
    assert await gateway.consumer.resolve_offset("orders", 0, spec) == offset


@pytest.mark.parametrize("text", ["", "-", "+1", "1.5", "first", "--1", "1e3", "٣", "9" * 19, " 1"])
async def test_other_words_are_no_offsets(gateway: Gateway, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        await gateway.consumer.resolve_offset("orders", 0, text)
    assert caught.value.error_code == INVALID


async def test_unknown_topics_and_partitions_are_told_apart(gateway: Gateway) -> None:
    consumer = gateway.consumer
    for topic, partition, error in (("nope", 0, UnknownQueue), ("orders", 4, UnknownPartition)):
        for call in (
            consumer.fetch(topic, partition, 0, max_bytes=1),
            consumer.bounds(topic, partition),
            consumer.resolve_offset(topic, partition, 0),
            consumer.resolve_offset(topic, partition, "latest"),
            consumer.offset_for_time(topic, partition, 0),
        ):
            with pytest.raises(error) as caught:
                await call
            assert type(caught.value) is error


async def test_of_many_ends_a_few_are_watched_in_a_turn(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, turn, gone = gateway.consumer, 0, 0
    watched: Counter[int] = Counter()

    def watch(topic: str, partition: int, end: int, wake: Wake) -> Callable[[], None]:
        watched[turn] += 1
        return call_off

    def call_off() -> None:
        nonlocal gone
        gone += 1

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    monkeypatch.setattr(consumer, "watch", watch)
    counting = asyncio.ensure_future(count())
    async with consumer.watching([Tail("orders", 0, end) for end in range(10 * ITEMS_PER_TURN)], lambda: None):
        assert max(watched.values()) == ITEMS_PER_TURN
        assert watched.total() == 10 * ITEMS_PER_TURN
    assert gone == 10 * ITEMS_PER_TURN
    counting.cancel()


async def test_whoever_waits_at_several_ends_is_woken_by_any_and_by_none_behind_the_block(
    gateway: Gateway, broker: FakeBroker
) -> None:
    consumer, woken = gateway.consumer, asyncio.Event()
    first, second = Tail("orders", 0, 0), Tail("orders", 1, 0)
    async with consumer.watching([first, second, Tail("nowhere", 0, 0)], woken.set):
        await asyncio.wait_for(woken.wait(), WOKEN_S)  # by the partition that is not there
    woken.clear()
    async with consumer.watching([first, second], woken.set):
        await asyncio.sleep(0)
        assert not woken.is_set()
        await send(broker, 1, QueueKey(16, 1))
        await asyncio.wait_for(woken.wait(), WOKEN_S)
    woken.clear()
    async with consumer.watching([Tail("orders", 1, 1)], woken.set):
        await asyncio.sleep(0)
    await send(broker, 1, QueueKey(16, 1))
    await until(lambda: consumer.is_end("orders", 1, 2))
    assert not woken.is_set()


async def test_where_a_reader_begins_is_within_the_bounds_or_where_it_chose_to_be_reset(
    gateway: Gateway, broker: FakeBroker
) -> None:
    await send(broker, 5)
    broker.min_offsets[QUEUE] = 2
    start_offset = gateway.consumer.start_offset
    begins = [await start_offset("orders", 0, spec) for spec in (2, 5, -1, "earliest", "latest")]
    assert begins == [2, 5, 4, 2, 5]
    for offset in (1, 6):
        assert await start_offset("orders", 0, offset, "earliest") == 2
        assert await start_offset("orders", 0, offset, "latest") == 5
        with pytest.raises(RequestError) as caught:
            await start_offset("orders", 0, offset)
        assert caught.value.error_code == 41601
        assert caught.value.details == {
            "topic": "orders", "partition": 0, "beginning_offset": 2, "end_offset": 5,
        }  # fmt: skip

"""gateway.cluster.attaching: topics of Kafka clusters over nodes that share metadata, and what is refused of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from functools import partial

import pytest

from gateway.brokers.kafka.attached import AttachedBroker
from gateway.brokers.kafka.codes import TOPIC_AUTHORIZATION
from gateway.cluster import attaching
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.metadata import Value
from gateway.cluster.mover import UnknownBroker, key_of
from gateway.cluster.node import ClusterNode, _grown
from gateway.cluster.peer import PeerBroker
from gateway.cluster.record import PartitionRecord, SegmentRecord, encode
from gateway.cluster.restoring import restored
from gateway.cluster.topics import decode_topic, encode_topic
from gateway.routing.base import Attachment
from store import Store
from store.errors import BrokerLacks, BrokerRefuses, IllegalTopic, TopicExists, UnknownQueue
from store.limits import PARTITIONS_MAX
from store.topics import Topic
from store.types import Bounds, QueueKey
from tests.gateway.brokers.kafka.fake_shared import FakeSharedKafka
from tests.gateway.cluster.test_node import joined, names
from tests.waiting import until

ORDERS = Attachment("kafka1", "prod.orders")


@pytest.fixture
def kafka() -> FakeSharedKafka:
    made = FakeSharedKafka()
    made.make("prod.orders", 3)
    return made


@pytest.fixture
def metadata() -> MemoryMetadata:
    return MemoryMetadata()


@pytest.fixture
async def node(metadata: MemoryMetadata, kafka: FakeSharedKafka) -> AsyncIterator[tuple[ClusterNode, Store]]:
    async with joined(metadata, shared=kafka) as made:
        yield made


Made = tuple[ClusterNode, Store]


async def attach(node: ClusterNode, name: str = "orders", to: Attachment = ORDERS) -> Topic:
    return await node.attach_topic(name, to, lambda _: nullcontext())


async def test_a_topic_is_attached_with_kafkas_partitions_and_no_store_has_it(
    node: Made, kafka: FakeSharedKafka
) -> None:
    own, store = node
    topic = await attach(own)
    assert (topic.name, topic.partitions) == ("orders", 3)
    assert own._routes.attached(topic.topic_id) == ORDERS
    assert names(store) == []
    kafka.shared("prod.orders", 1).send((None, b"x"))
    [segment] = own._routes.chain("orders", 1)
    assert isinstance(segment.broker, AttachedBroker)
    assert await segment.broker.bounds(segment.queue) == Bounds(0, 1)
    assert await attach(own) == topic, "said again, nothing changes"


async def test_another_node_has_it_too_and_so_has_this_one_after_a_restart(
    node: Made, metadata: MemoryMetadata, kafka: FakeSharedKafka
) -> None:
    topic = await attach(node[0])
    async with joined(metadata, name="n2", shared=kafka) as (other, store):
        [segment] = other._routes.chain("orders", 2)
        assert isinstance(segment.broker, AttachedBroker)
        assert other._routes.attached(topic.topic_id) == ORDERS
        assert names(store) == []


async def test_a_process_that_does_not_know_the_cluster_goes_through_a_node_that_is_there(
    node: Made, metadata: MemoryMetadata
) -> None:
    topic = await attach(node[0])
    async with joined(metadata, name="n2") as (other, store):
        [segment] = other._routes.chain("orders", 0)
        assert isinstance(segment.broker, PeerBroker)
        assert segment.queue == QueueKey(topic.topic_id, 0)
        with pytest.raises(UnknownQueue):
            store.bounds(segment.queue)
        assert other.unknown_brokers() == ["kafka1"]


async def test_to_detach_it_takes_it_away_everywhere_and_kafka_keeps_its_records(
    node: Made, metadata: MemoryMetadata, kafka: FakeSharedKafka
) -> None:
    own, _ = node
    kafka.shared("prod.orders", 0).send((None, b"x"))
    topic = await attach(own)
    async with joined(metadata, name="n2", shared=kafka) as (other, _):
        await own.delete_topic("orders")
        await other._see(await metadata.list(""))
        for one in (own, other):
            assert "orders" not in one._routes
            assert one._routes.attached(topic.topic_id) is None
    assert kafka.shared("prod.orders", 0).batches
    await own._see(await metadata.list(""))
    again = await attach(own)
    assert again.topic_id > topic.topic_id


async def test_a_name_that_goes_from_one_kind_of_topic_to_the_other_leaves_nothing_behind(
    node: Made, metadata: MemoryMetadata, kafka: FakeSharedKafka
) -> None:
    own, _ = node
    await own.create_topic("orders", 1)
    async with joined(metadata, name="n2", shared=kafka) as (other, store):
        assert names(store) == ["orders"]
        await own.delete_topic("orders")
        attached = await attach(own)
        await other._see(await metadata.list(""))
        assert names(store) == []
        assert other._routes.attached(attached.topic_id) == ORDERS
        await own.delete_topic("orders")
        await own.create_topic("orders", 2)
        await other._see(await metadata.list(""))
        assert names(store) == ["orders"]
        assert other._routes.attached(attached.topic_id) is None
        assert other._routes.attached(other._routes.topic("orders").topic_id) is None


async def test_what_cannot_be_attached_is_refused_and_nothing_is_made(
    node: Made, metadata: MemoryMetadata, kafka: FakeSharedKafka
) -> None:
    own, _ = node
    await own.create_topic("bills", 1)
    kafka.make("closed")
    kafka.refused["closed"] = TOPIC_AUTHORIZATION
    kafka.make("__consumer_offsets")
    kafka.make("mq.moved")
    segment = SegmentRecord(start=0, broker="kafka1", queue=("mq.moved", 0), epoch=1, pid=1, kepoch=1)
    moved = PartitionRecord(epoch=1, owner="n1", segments=(segment,))
    own._follower._values[key_of(99, 0)] = Value(encode(moved), 1)
    for name, to, error in (
        ("a", Attachment("kafka2", "prod.orders"), UnknownBroker),
        ("a", Attachment("kafka1", "nothing"), BrokerRefuses),
        ("a", Attachment("kafka1", "closed"), BrokerRefuses),
        ("a", Attachment("kafka1", "__consumer_offsets"), IllegalTopic),
        ("a", Attachment("kafka1", "mq.moved"), BrokerLacks),
        ("__a", ORDERS, IllegalTopic),
        ("bills", ORDERS, TopicExists),
    ):
        with pytest.raises(error):
            await attach(own, name, to)
    assert [view.name for view in own._routes.topics()] == ["bills"]
    await attach(own)
    with pytest.raises(TopicExists, match="attached as orders"):
        await attach(own, "again")
    with pytest.raises(TopicExists):
        await attach(own, "orders", Attachment("kafka1", "prod.orders", mirror_groups=True))
    with pytest.raises(TopicExists):
        await own.create_topic("orders", 3)


async def test_more_partitions_than_a_topic_may_have_are_refused(node: Made, kafka: FakeSharedKafka) -> None:
    kafka.make("wide", PARTITIONS_MAX)
    kafka.make("wider", PARTITIONS_MAX + 1)
    assert (await attach(node[0], "wide", Attachment("kafka1", "wide"))).partitions == PARTITIONS_MAX
    with pytest.raises(IllegalTopic):
        await attach(node[0], "wider", Attachment("kafka1", "wider"))


async def test_what_is_kafkas_is_refused(node: Made, kafka: FakeSharedKafka) -> None:
    own, _ = node
    await attach(own)
    for refused in (
        own.move("orders", 0, "n1"),
        own.move("orders", 0, "kafka1"),
        own.grow_topic("orders", 4),
        own.configure_topic("orders", {"retention_ms": 1_000}),
    ):
        with pytest.raises(BrokerLacks, match="attached"):
            await refused
    assert (await own.configure_topic("orders", {"max_message_bytes": 100})).config.max_message_bytes == 100
    kafka.make("mq.bills")
    await own.create_topic("bills", 1)
    await attach(own, "theirs", Attachment("kafka1", "mq.bills"))
    with pytest.raises(BrokerLacks, match="attached"):
        await own.move("bills", 0, "kafka1")


async def test_partitions_that_come_in_kafka_come_here(
    node: Made, kafka: FakeSharedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _ = node
    monkeypatch.setattr(attaching, "GROWTH_INTERVAL_S", 0.01)
    await attach(own)
    looking = asyncio.create_task(own._follow_growth())
    try:
        kafka.refused["prod.orders"] = TOPIC_AUTHORIZATION
        await asyncio.sleep(0.03)
        del kafka.refused["prod.orders"]
        kafka.make("prod.orders", 5)
        await until(lambda: own._routes.topic("orders").partitions == 5)
    finally:
        looking.cancel()
    [segment] = own._routes.chain("orders", 4)
    assert await segment.broker.bounds(segment.queue) == Bounds(0, 0)


async def test_a_topic_of_mqs_own_that_has_taken_the_name_meanwhile_does_not_grow(
    node: Made, kafka: FakeSharedKafka
) -> None:
    own, _ = node
    attached = await attach(own)
    kafka.make("prod.orders", 5)
    [(topic, count)] = [one async for one in own._attaching.grown()]
    assert (topic.topic_id, count) == (attached.topic_id, 5)
    await own.delete_topic("orders")
    await own.create_topic("orders", 2)
    await own._change_topic("orders", partial(_grown, topic.topic_id, count))
    assert own._routes.topic("orders").partitions == 2


async def test_a_topic_that_is_gone_meanwhile_does_not_grow_and_ends_nothing(
    node: Made, kafka: FakeSharedKafka
) -> None:
    own, _ = node
    attached = await attach(own)
    await own.delete_topic("orders")
    with pytest.raises(UnknownQueue, match="orders"):
        await own._change_topic("orders", partial(_grown, attached.topic_id, 5))


async def test_it_is_in_the_metadata_and_a_restored_cluster_has_it_unchanged(
    node: Made, metadata: MemoryMetadata
) -> None:
    own, _ = node
    await attach(own)
    values = {key: value.data for key, value in (await metadata.list("")).values.items()}
    record = decode_topic(values["topics/orders"])
    assert record.attached == ORDERS
    assert encode_topic(record) == values["topics/orders"]
    made = restored(values, 1)
    assert made["topics/orders"] == values["topics/orders"]
    assert not any(key.startswith("partitions/") for key in made)

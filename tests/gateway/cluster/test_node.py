"""gateway.cluster.node over metadata in memory and a simulated disk: what is deleted, and what never is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.api.cluster import GROUPS
from gateway.brokers.base import BrokerUnreachable
from gateway.brokers.kafka import broker as kafka_broker
from gateway.brokers.kafka.attached import AttachedBroker
from gateway.brokers.kafka.broker import KafkaBroker
from gateway.brokers.kafka.port import TopicPlan
from gateway.brokers.local import LocalBroker
from gateway.brokers.none import NoBroker
from gateway.cluster import balancer as balancing
from gateway.cluster import move
from gateway.cluster import node as nodes
from gateway.cluster.balance import PlannedMove
from gateway.cluster.balancer import Balancer
from gateway.cluster.members import (
    CLUSTER,
    NODES,
    OWNERS,
    CannotJoin,
    encode_format,
    encode_session,
    format_in,
    join,
)
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.metadata import ABSENT, Changes, Listing, MetadataError, OtherMetadata, OutcomeUnknown, Value
from gateway.cluster.move_slots import SLOTS
from gateway.cluster.mover import Known, first_record, key_of, queue_of
from gateway.cluster.node import GIVE, TAKE, ClusterNode, NameTaken
from gateway.cluster.peer_auth import Secret
from gateway.cluster.record import SEGMENTS_MAX, PartitionRecord, PartitionState, SegmentRecord, encode
from gateway.cluster.shard_log import SHARD_TOPICS
from gateway.cluster.topics import COUNTERS, Counters, TopicRecord, TopicsInMemory, encode_counters, encode_topic
from gateway.routing.table import RouteTable
from store import Store
from store.data_format import VERSION as DATA_VERSION
from store.errors import BrokerLacks, UnknownQueue
from store.topics import FIRST_USER_TOPIC_ID, Topic, TopicConfig
from tests.clock import FakeClock
from tests.gateway.brokers.kafka.fake import FakeKafka, new_repeats
from tests.gateway.brokers.kafka.fake_shared import FakeSharedKafka
from tests.gateway.cluster.test_members import disk, own
from tests.gateway.groups.coordinator.world import PlainTimer
from tests.store.kit import open_store
from tests.waiting import PATIENCE_S, WOKEN_S, until

ROOT = Path("/data")


@asynccontextmanager
async def joined(
    metadata: MemoryMetadata,
    kafka: FakeKafka | None = None,
    *,
    name: str = "n1",
    shared: FakeSharedKafka | None = None,
    storeless: bool = False,
) -> AsyncIterator[tuple[ClusterNode, Store]]:
    """A node of a cluster, and its store; perhaps with a Kafka cluster kafka1: `kafka`, on which topics begin, or
    `shared`, in which others write."""
    files, clock, routes = disk(), FakeClock(), RouteTable()
    store = await open_store(files, clock=clock)
    broker: LocalBroker | NoBroker = NoBroker(name)
    if not storeless:
        timer = PlainTimer(store, clock)
        broker = LocalBroker(store, timer, name=name, on_topic=lambda _: None, on_deleted=lambda _: None)
    brokers: dict[str, KafkaBroker] = {}
    attached: dict[str, AttachedBroker] = {}
    if (known := kafka or shared) is not None:
        brokers["kafka1"] = KafkaBroker(
            "kafka1", known, clock, prefix="mq.", topic_of=routes.by_id,
            retention_ms_of=lambda topic_id: routes.by_id(topic_id).config.retention_ms or -1,
            on_doubt=lambda: None, repeats=new_repeats(), timer=broker,
        )  # fmt: skip
    if shared is not None:
        attached["kafka1"] = AttachedBroker("kafka1", shared, timer=broker)
    node = ClusterNode(
        name, metadata, broker, Secret(b"s" * 16), TopicsInMemory(store.config) if storeless else store, routes, clock,
        on_topics=lambda: None,
        kafka=brokers, attached=attached,
    )  # fmt: skip
    node.default_broker = None if kafka is None else "kafka1"
    member = await join(
        metadata, ROOT, files, replace(own(name), storeless=storeless), [], next_topic_id=FIRST_USER_TOPIC_ID
    )
    node.cluster_id = member.cluster
    await node.begin()
    try:
        yield node, store
    finally:
        await node.close()
        await store.close()


def places(node: ClusterNode, topic: str) -> list[str]:
    """Where each partition of a topic is, and that there is no older segment of it."""
    view = node._routes.topic(topic)
    chains = [node._routes.chain(topic, partition) for partition in range(view.partitions)]
    return ["|".join(segment.broker.name for segment in chain) for chain in chains]


async def test_the_partitions_of_a_new_topic_begin_on_the_default_broker(hurry: None) -> None:
    metadata, kafka = MemoryMetadata(), FakeKafka()
    async with joined(metadata) as (node, _):
        await node.create_topic("older", 1)
        await node.create_topic("older", 1)
        assert places(node, "older") == ["n1"]
    async with joined(metadata, kafka) as (node, _):
        topic = await node.create_topic("orders", 20, config=TopicConfig(retention_ms=5_000))
        assert kafka.plans["mq.orders"] == TopicPlan("mq.orders", 20, 5_000)
        assert places(node, "orders") == ["kafka1"] * 20
        assert places(node, "older") == ["n1"], "what was there stays"
        await node.grow_topic("orders", 22)
        assert kafka.plans["mq.orders"].partitions == 22
        assert places(node, "orders") == ["kafka1"] * 22
        await node.grow_topic("older", 2)
        assert places(node, "older") == ["n1"] * 2
        await node.create_topic("%RETRY%billing", 1, is_own=True)
        assert places(node, "%RETRY%billing") == ["n1"]
        await node.move("orders", 3, "n1")
        await node._begin_on_kafka()
        assert places(node, "orders")[3] == "n1", "who moves it away has it there"
        balancer = Balancer(node, node._routes, _give, (), moves_per_s=1)
        assert await balancer._partitions() == {
            "n1": [("%RETRY%billing", 0), ("older", 0), ("older", 1), ("orders", 3)]
        }
        await node.delete_topic(topic.name)


async def test_partitions_of_a_node_without_a_store_begin_on_kafka_and_nothing_comes_to_it(
    hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, kafka = MemoryMetadata(), FakeKafka()
    async with joined(metadata, kafka, storeless=True) as (node, _):
        await node.create_topic("orders", 3)
        assert places(node, "orders") == ["kafka1"] * 3
        ((_, (record, _)), *_) = node._follower.moved()
        assert [(one.broker, one.start, one.end) for one in record.segments] == [("kafka1", 0, None)]
        await node.create_topic("%RETRY%billing", 1, is_own=True)
        assert places(node, "%RETRY%billing") == ["kafka1"]
        assert kafka.plans["mq.__retry.billing"].partitions == 1
        with pytest.raises(BrokerLacks, match="has no store"):
            await node.move("orders", 0, "n1")
        with pytest.raises(BrokerLacks, match="has no store"):
            await node.take_over_owned(GROUPS, "g")
        assert (node.takers(), node._present_takers()) == ([], ["n1"])
        key = await node.shared_receipt_key()
        assert len(key) == nodes.RECEIPT_KEY_BYTES
        assert await node.shared_receipt_key() == key
        assert await node.receipt_keys([b"own"]) == [key]
    async with joined(metadata, kafka, name="n2", storeless=True) as (node, _):
        assert (await node.shared_receipt_key(), await node.receipt_keys([])) == (key, [key])
        async with node.in_session("mine"):
            await node.check_own_record(own("n2").data)
            with pytest.raises(CannotJoin, match="choose another --node"):
                await node.check_own_record("of another process")
            await node._see(Changes(10**6, {NODES + "n2": Value(encode_session("mine", DATA_VERSION), 10**6)}))
            with pytest.raises(NameTaken, match="another process is node n2"):
                await node._see(Changes(10**6, {NODES + "n2": Value(encode_session("theirs", DATA_VERSION), 10**6)}))


async def test_a_partition_whose_home_is_gone_before_it_began_begins_elsewhere(
    hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, kafka = MemoryMetadata(), FakeKafka()
    async with joined(metadata, kafka, storeless=True) as (node, _):
        made = kafka.make_topic

        async def made_and_gone(plan: TopicPlan) -> None:
            await made(plan)
            kafka.is_away = True

        kafka.make_topic = made_and_gone  # type: ignore[method-assign]
        monkeypatch.setattr(nodes, "BEGIN_LOOKS", 1)
        await node.create_topic("orders", 2)
        kafka.is_away, kafka.make_topic = False, made  # type: ignore[method-assign]
    async with joined(metadata, kafka, name="n2") as (node, _):
        await node._begin_on_kafka()
        assert places(node, "orders") == ["n1"] * 2, "it may be back"
        node._take_kafka(0.0)
        monkeypatch.setattr(nodes, "TAKE_AFTER_S", 0.0)
        node._away_since_s["n1"] = 0.0
        await node._begin_on_kafka()
        assert places(node, "orders") == ["kafka1"] * 2
        await node.create_topic("bills", 2)
        assert places(node, "bills") == ["kafka1"] * 2
        node.default_broker = None
        await node.create_topic("own", 4)
        assert places(node, "own") == ["n2"] * 4, "none begins where nothing can be"
    async with joined(metadata, kafka, name="n3", storeless=True) as (node, _):
        assert places(node, "own") == ["n2"] * 4
        with pytest.raises(BrokerUnreachable, match="no node with a store is there"):
            await node.grow_topic("own", 5)
        await node.grow_topic("bills", 3)
        assert places(node, "bills")[2] == "kafka1"


async def test_a_topic_whose_kafka_is_away_is_not_made_or_is_there_when_it_is_back(hurry: None) -> None:
    metadata, kafka = MemoryMetadata(), FakeKafka()
    async with joined(metadata, kafka) as (node, store):
        kafka.is_away = True
        with pytest.raises(BrokerUnreachable):
            await node.create_topic("orders", 2)
        assert names(store) == []
        kafka.is_away = False
        made = kafka.make_topic

        async def made_and_gone(plan: TopicPlan) -> None:
            await made(plan)
            kafka.is_away = True

        kafka.make_topic = made_and_gone  # type: ignore[method-assign]
        await node.create_topic("orders", 2)
        assert names(store) == ["orders"]
        assert all(node.is_to_begin(node._routes.topic("orders").topic_id, partition) for partition in (0, 1))
        balancer = Balancer(node, node._routes, _give, (), moves_per_s=1)
        assert await balancer._partitions() == {}, "it is nobody's share"
        kafka.is_away, kafka.make_topic = False, made  # type: ignore[method-assign]
    async with joined(metadata, kafka) as (node, _):
        await node._begin_on_kafka()
        assert places(node, "orders") == ["kafka1"] * 2, "by the process that was started next"


@asynccontextmanager
async def two_with_kafka(partitions: int) -> AsyncIterator[tuple[ClusterNode, ClusterNode]]:
    """Nodes n1, which owns all partitions of a topic on a Kafka cluster, and n2, which hears what n1 asks."""
    metadata, kafka = MemoryMetadata(), FakeKafka()
    async with (
        joined(metadata, kafka) as (first, _),
        joined(metadata, kafka, name="n2") as (second, _),
        first.in_session("1"),
        second.in_session("2"),
    ):
        await first.create_topic("orders", partitions)  # n2 is not heard of yet: all are at home on n1
        await until(lambda: first.owned_on_kafka()["n1"] == partitions)
        for node in (first, second):
            await node._see(await metadata.list(""))

        for asking, other in ((first, second), (second, first)):

            async def asked(_: str, operation: str, head: dict[str, Any], other: ClusterNode = other) -> Any:
                return await other.answer({"what": operation, **head})

            asking._asked = asked  # type: ignore[method-assign, assignment]
        yield first, second


def served(node: ClusterNode) -> int:
    kafka = node.kafka["kafka1"]
    return sum(map(kafka.serves, kafka.queues_of(node._routes.topic("orders").topic_id)))


async def test_a_node_that_stops_has_the_others_take_over_what_it_owns_on_kafka_at_once(hurry: None) -> None:
    async with two_with_kafka(40) as (first, second):
        assert first.owned_on_kafka() == {"n1": 40}
        assert served(first) == 40
        await first.give_kafka()
        assert first.owned_on_kafka() == second.owned_on_kafka() == {"n2": 40}
        assert (served(first), served(second)) == (0, 40)
        first._take_kafka(0.0)
        assert not first._taking, "it does not take them back"
        await first.give_kafka()
        assert (served(first), served(second)) == (0, 40), "there is nothing to give"


async def test_a_node_that_drains_gives_what_it_owns_on_kafka(hurry: None) -> None:
    async with two_with_kafka(3) as (first, second):
        for node in (first, second):
            node.members["n1"] = replace(node.members["n1"], draining=True)
        await Balancer(first, first._routes, _give, (), moves_per_s=1).drain()
        assert first.owned_on_kafka() == {"n2": 3}
        assert (served(first), served(second)) == (0, 3)


async def test_what_nobody_takes_stays_with_its_owner(hurry: None) -> None:
    async with two_with_kafka(3) as (first, second):
        del second.answers[TAKE]  # a program of before

        async def asked(_name: str, operation: str, head: dict[str, Any]) -> Any:
            with pytest.raises(UnknownQueue):
                await second.answer({"what": operation, **head})

        first._asked = asked  # type: ignore[method-assign, assignment]
        await first.give_kafka()
        first._take_kafka(0.0)
        await asyncio.gather(*first._taking.values())
        assert first.owned_on_kafka() == {"n1": 3}
        assert served(first) == 3, "anew"
        second.members["n2"] = replace(second.members["n2"], draining=True)
        first.members["n2"] = second.members["n2"]
        await first.give_kafka()
        assert served(first) == 3, "nobody takes any, so nothing stops"


async def test_a_node_takes_over_only_what_the_asking_one_owns(hurry: None) -> None:
    async with two_with_kafka(2) as (first, second):
        topic_id = first._routes.topic("orders").topic_id
        head = {"what": TAKE, "node": "n3", "partitions": [[topic_id, 0], [topic_id, 1], [topic_id, 7]]}
        await second.answer(head)
        assert (served(first), served(second)) == (2, 0)
        await second.answer(head | {"node": "n1"})
        assert served(second) == 2


async def test_what_another_node_owns_on_kafka_is_nobodys_share(hurry: None) -> None:
    """Its route leads to that node, on whose disk nothing of it is. A node that came used to take it to its own."""
    async with two_with_kafka(4) as (first, second):
        for node in (first, second):
            assert await Balancer(node, node._routes, _give, (), moves_per_s=1)._partitions() == {}
        topic_id = first._routes.topic("orders").topic_id
        assert {node.kafka_of(topic_id, 0) for node in (first, second)} == {"kafka1"}
        second.members["n2"] = replace(second.members["n2"], balancing=True)
        await Balancer(second, second._routes, _give, (), moves_per_s=1000).take_share()
        assert [node._follower.kafka_of(topic_id, 0) for node in (first, second)] == ["kafka1"] * 2
        assert sum(second.owned_on_kafka().values()) == 4
        await first.move("orders", 0, "n1")
        assert first.kafka_of(topic_id, 0) is None


@asynccontextmanager
async def balanced(node: ClusterNode, **options: Any) -> AsyncIterator[Balancer]:
    """A node's balancer, which runs."""
    balancer = Balancer(node, node._routes, _give, (), moves_per_s=1000, **options)
    running = asyncio.create_task(balancer.run())
    try:
        yield balancer
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_node_that_comes_takes_its_share_of_what_others_own_on_kafka_once(
    hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "INTERVAL_S", 0.0)
    async with two_with_kafka(5) as (first, second), asyncio.timeout(PATIENCE_S):
        for options in ({"evens_out": True}, {"evens_out": False}):  # it is not steady yet; it is to wait
            async with balanced(second, **options):
                for _ in range(20):
                    await asyncio.sleep(0)
            assert first.owned_on_kafka() == {"n1": 5}
        monkeypatch.setattr(balancing, "STEADY_S", 0.0)
        async with balanced(first, evens_out=True), balanced(second, evens_out=True) as balancer:
            await until(lambda: first.owned_on_kafka() == second.owned_on_kafka() == {"n1": 3, "n2": 2})
            await until(lambda: balancer._takes_from_s == float("inf"))
            assert (served(first), served(second)) == (3, 2)
            assert (first.lacking_on_kafka(), second.lacking_on_kafka()) == (None, None)
            assert second.blocked is None
            await second.give_kafka()
            for _ in range(20):
                await asyncio.sleep(0)
            assert first.owned_on_kafka() == {"n1": 5}, "a share is taken once"


@pytest.mark.parametrize("storeless", [False, True])
async def test_a_node_that_is_added_takes_its_share_of_what_others_own_on_kafka(
    hurry: None, monkeypatch: pytest.MonkeyPatch, storeless: bool
) -> None:
    monkeypatch.setattr(balancing, "INTERVAL_S", 0.0)
    async with two_with_kafka(4) as (first, second), asyncio.timeout(PATIENCE_S):
        await second.set_draining("n2", True)
        async with balanced(second):
            await asyncio.sleep(0)
            assert second.lacking_on_kafka() is not None, "it drains, and is asked for nothing"
            second.members["n2"] = replace(second.members["n2"], storeless=storeless)
            await second.set_draining("n2", False)
            first.members["n2"] = second.members["n2"]
            assert second.members["n2"].balancing
            await until(lambda: not second.members["n2"].balancing)
        assert first.owned_on_kafka() == {"n1": 2, "n2": 2}


async def test_who_is_asked_by_a_program_that_gives_nothing_keeps_it_and_is_asked_later_again(
    hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "INTERVAL_S", 0.0)
    monkeypatch.setattr(balancing, "STEADY_S", 0.0)
    async with two_with_kafka(2) as (first, second), asyncio.timeout(PATIENCE_S):
        asked = second._asked

        async def refused(*given: Any) -> None:
            monkeypatch.setattr(balancing, "STEADY_S", 3600.0)
            with pytest.raises(UnknownQueue):
                await asked(*given)

        give = first.answers.pop(GIVE)  # a program of before
        second._asked = refused  # type: ignore[method-assign, assignment]
        async with balanced(second, evens_out=True) as balancer:
            await until(lambda: balancer._takes_from_s > asyncio.get_running_loop().time() + 3000)
            assert (served(first), served(second)) == (2, 0)
            first.answers[GIVE], second._asked = give, asked  # type: ignore[method-assign]
            balancer._takes_from_s = 0.0
            await until(lambda: second.owned_on_kafka() == {"n1": 1, "n2": 1})
            assert (served(first), served(second)) == (1, 1)


async def test_a_node_gives_only_what_it_owns_and_to_whom_may_have_it(hurry: None) -> None:
    async with two_with_kafka(3) as (first, second):
        topic_id = first._routes.topic("orders").topic_id
        head = {"what": GIVE, "node": "n2", "partitions": [[topic_id, 0], [topic_id, 7]]}
        await first.answer(head | {"node": "n9"})
        await second.answer(head)
        assert served(first) == 3
        first._giving.add((topic_id, 0))  # somebody has it already
        await first.answer(head)
        assert served(first) == 3
        first._giving.clear()
        await first.answer(head)
        assert (served(first), served(second)) == (2, 1)
        assert not first._giving


async def test_shares_are_those_of_each_kind_of_shard_and_of_all_other_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with joined(MemoryMetadata(), FakeKafka(), name="n3") as (node, _):
        for name in ("n1", "n2"):
            node.members[name] = replace(node.members["n3"], name=name)
            node._nodes[name] = DATA_VERSION
        topics = [*SHARD_TOPICS, FIRST_USER_TOPIC_ID, FIRST_USER_TOPIC_ID + 1]
        owners = {(topic_id, number): ("n1", "n2")[number % 2] for topic_id in topics for number in range(16)}
        known = {at: Known(replace(first_record(*at, "n1"), owner=owner), 1) for at, owner in owners.items()}
        monkeypatch.setattr(node._follower, "on_kafka", lambda: known)
        while (wanted := node.lacking_on_kafka()) is not None:
            at, owner = wanted
            assert known[at].record.owner == owner
            known[at] = Known(replace(known[at].record, owner="n3"), 1)
        counts = Counter((at[0] if at[0] in SHARD_TOPICS else 0, one.record.owner) for at, one in known.items())
        for topic_id in SHARD_TOPICS:
            assert sorted(counts[topic_id, name] for name in ("n1", "n2", "n3")) == [5, 5, 6]
            assert counts[topic_id, "n3"] == 5
        assert sorted(counts[0, name] for name in ("n1", "n2", "n3")) == [10, 11, 11]
        of_n3 = [at for at, one in known.items() if one.record.owner == "n3"]
        assert {at[0] for at in of_n3} == {*topics}, "some of each topic"


async def test_partitions_of_a_node_that_is_away_are_taken_over_at_once_by_the_one_that_comes_next(hurry: None) -> None:
    async with two_with_kafka(4) as (_, second):
        del second._nodes["n1"]
        assert second._take_kafka(100.0) == nodes.NEXT_LOOK_INTERVAL_S
        assert not second._taking
        second._take_kafka(100.001 + nodes.NEXT_TAKE_AFTER_S)
        assert len(second._taking) == 4
        second._take_kafka(100.1)
        assert len(second._taking) == 4, "each once"
        await asyncio.gather(*second._taking.values())
        assert served(second) == 4
        assert not second._taking


async def test_any_other_node_takes_them_over_later(hurry: None) -> None:
    async with two_with_kafka(2) as (_, second):
        del second._nodes["n1"]
        second._nodes["n3"] = DATA_VERSION
        second.members["n3"] = replace(second.members["n2"], name="n3")
        second.members["n2"] = replace(second.members["n2"], draining=True)  # it is next of none
        assert second._take_kafka(100.0) == nodes.LOOK_INTERVAL_S
        second._take_kafka(100.0 + nodes.TAKE_AFTER_S - 0.01)
        assert not second._taking
        second._take_kafka(100.0 + nodes.TAKE_AFTER_S)
        await asyncio.gather(*second._taking.values())
        assert served(second) == 2


async def test_who_looks_after_shards_is_woken_when_they_may_have_changed(hurry: None) -> None:
    async with two_with_kafka(1) as (first, _):
        woken: list[str] = []
        first.on_shards.append(lambda: woken.append("x"))
        await first._see(Changes(999, {"partitions/99/0": None}))
        assert not woken, "a node without shards does nothing"
        first._follower.system_owners[2, 0] = "n2"
        await first._see(Changes(1000, {"brokers/none": None}))
        assert not woken
        await first._see(Changes(1001, {"partitions/99/0": None}))
        assert woken == ["x"]


async def _give(_group: str, _to: str) -> None:
    raise AssertionError


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_broker, "PAUSE_S", 0.0)
    monkeypatch.setattr(nodes, "BEGIN_LOOKS", 3)


def names(store: Store) -> list[str]:
    return [topic.name for topic in store.topics() if not topic.is_system]


async def test_a_topic_is_deleted_when_the_metadata_says_so_and_only_then() -> None:
    metadata = MemoryMetadata()
    async with joined(metadata) as (node, store):
        await node.create_topic("orders", 1)
        await node.create_topic("bills", 1)
        await node._see(listing := await metadata.list(""))
        later = listing.revision + 100
        cluster = listing.values[CLUSTER]
        young = Value(encode_counters(Counters(FIRST_USER_TOPIC_ID + 1, 1)), later)
        for other in (
            Listing(later, {}),  # lost
            Listing(later, {**listing.values, CLUSTER: Value(b"another", later)}),
            Listing(listing.revision - 1, {CLUSTER: cluster, COUNTERS: listing.values[COUNTERS]}),  # from a backup
            Listing(later, {CLUSTER: cluster, COUNTERS: young}),  # ... and much has happened since
        ):
            with pytest.raises(OtherMetadata):
                await node._see(other)
            assert names(store) == ["orders", "bills"]
        await metadata.compare_and_set(
            {"topics/orders": listing.values["topics/orders"].revision}, {"topics/orders": None}
        )
        await node._see(await metadata.list(""))
        assert names(store) == ["bills"]


class _Lossy(MemoryMetadata):
    """The answers to some changes are lost, whether they were made or not."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[bool] = []

    async def compare_and_set(self, expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        if not self.losses:
            return await super().compare_and_set(expected, changes)
        if self.losses.pop(0):
            await super().compare_and_set(expected, changes)
        raise OutcomeUnknown("lost")


class _Stopped(_Lossy):
    """And for a moment nothing is answered as it is, as by an etcd that is stopped."""

    async def get(self, key: str) -> Value | None:
        if self.losses:
            self.losses.pop(0)
            raise MetadataError("the connection is closing")
        return await super().get(key)


@pytest.mark.parametrize("is_made", [True, False])
async def test_a_name_is_owned_for_certain_though_metadata_answers_otherwise_meanwhile(
    is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cluster.node.RETRY_S", 0)
    metadata = _Stopped()
    async with joined(metadata) as (node, _):
        metadata.losses = [is_made, True]
        assert await node.own(GROUPS, "g", ABSENT)
        assert (await node.owner_now(GROUPS, "g"))[0] == "n1"
        _, revision = await node.owner_now(GROUPS, "g")
        metadata.losses = [is_made, True]
        await node.disown(GROUPS, "g", revision)
        assert (await node.owner_now(GROUPS, "g"))[0] is None


async def test_what_was_given_away_does_not_come_back_by_a_watch_that_is_behind() -> None:
    metadata = MemoryMetadata()
    async with joined(metadata) as (n1, _), joined(metadata, name="n2") as (n2, _):
        assert await n1.claim(GROUPS, "g") == "n1"
        claimed = await metadata.list(OWNERS)
        _, revision = await n1.owner_now(GROUPS, "g")
        assert await n2.own(GROUPS, "g", revision)
        n1.note_owner(GROUPS, "g", "n2", revision)
        for seen in (claimed, await metadata.list(OWNERS)):
            await n1._see(Changes(seen.revision, dict(seen.values)))
            assert n1.owner(GROUPS, "g") == "n2"
        assert n1._owner_revisions == {}, "nothing is kept"
        n1.note_owner(GROUPS, "g", "n3", revision)
        assert n1.owner(GROUPS, "g") == "n2", "the metadata has told of what came after"


@pytest.mark.parametrize("losses", [[], [True], [False, True], [False, False]])
async def test_a_name_is_let_go_of_for_certain_and_what_the_watch_says_late_changes_nothing(
    losses: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cluster.node.RETRY_S", 0)
    metadata = _Lossy()
    async with joined(metadata) as (node, _):
        assert await node.claim(GROUPS, "g") == "n1"
        claimed = await metadata.list("")
        _, revision = await node.owner_now(GROUPS, "g")
        metadata.losses = list(losses)
        await node.disown(GROUPS, "g", revision)
        assert node.owner(GROUPS, "g") is None
        gone = await metadata.list("")
        assert not any(key.startswith(OWNERS) for key in gone.values)
        await node._see(claimed)
        assert node.owner(GROUPS, "g") is None, "the watch is behind"
        assert await node.claim(GROUPS, "g") == "n1"
        await node._see(gone)
        assert node.owner(GROUPS, "g") == "n1", "likewise"
        await node._see(now := await metadata.list(""))
        assert node.owner(GROUPS, "g") == "n1"
        key = next(key for key in now.values if key.startswith(OWNERS))
        await metadata.compare_and_set({key: now.values[key].revision}, {key: b'{"node":"n2"}'})
        await node.disown(GROUPS, "g", now.values[key].revision)
        assert node.owner(GROUPS, "g") == "n2", "another node was faster"
        await node._see(await metadata.list(""))
        assert node._owner_revisions == {}, "nothing is kept"


async def test_what_another_node_has_taken_is_known_before_the_watch_tells_of_it() -> None:
    metadata = MemoryMetadata()
    async with joined(metadata) as (node, _):
        assert await node.look_up(GROUPS, "g") is None
        await metadata.compare_and_set({f"{OWNERS}{GROUPS}/g": ABSENT}, {f"{OWNERS}{GROUPS}/g": b'{"node":"n2"}'})
        assert node.owner(GROUPS, "g") is None
        assert (await node.look_up(GROUPS, "g"), node.owner(GROUPS, "g")) == ("n2", "n2")


async def test_a_topic_may_be_told_before_the_broker_on_which_it_begins() -> None:
    """Another node tells of the topic it has made; what the watch says of brokers comes later."""
    metadata = MemoryMetadata()
    async with joined(metadata) as (node, _):
        await join(metadata, ROOT, disk(), own("n2"), [], next_topic_id=FIRST_USER_TOPIC_ID)
        topic = Topic(FIRST_USER_TOPIC_ID, "orders", 2, 1)
        record = TopicRecord(topic, ((0, ("n1", "n2")),))
        moved = first_record(topic.topic_id, 0, "n2")
        changes = {"topics/orders": encode_topic(record), key_of(topic.topic_id, 0): encode(moved)}
        counters = await metadata.get(COUNTERS)
        assert counters is not None
        await metadata.compare_and_set(
            {**dict.fromkeys(changes, ABSENT), COUNTERS: counters.revision},
            {**changes, COUNTERS: encode_counters(Counters(topic.topic_id + 1, 2))},
        )
        await node.look_at("orders")
        assert [node._routes.broker_name("orders", partition) for partition in (0, 1)] == ["n1", "n2"]
        await node._see(await metadata.list(""))
        assert [node._routes.broker_name("orders", partition) for partition in (0, 1)] == ["n2", "n2"]


async def test_a_chain_that_was_heard_before_its_broker_is_applied_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = MemoryMetadata()
    async with joined(metadata) as (node, _):
        topic = await node.create_topic("orders", 2)
        await join(metadata, ROOT, disk(), own("n2"), [], next_topic_id=FIRST_USER_TOPIC_ID)
        key = key_of(topic.topic_id, 0)
        await metadata.compare_and_set({key: ABSENT}, {key: encode(first_record(topic.topic_id, 0, "n2"))})
        await node.refresh("orders", 0)
        assert node._routes.broker_name("orders", 0) == "n1", "nobody here knows n2 yet"
        await put(metadata, node, topic.topic_id, 1, first_record(topic.topic_id, 1, "n1"))
        listing = await metadata.list("")
        applied: list[str] = []
        monkeypatch.setattr(node._follower, "_apply", _noting(applied, node._follower._apply))
        await node._see(Changes(listing.revision, {"brokers/n2": listing.values["brokers/n2"]}))
        assert node._routes.broker_name("orders", 0) == "n2"
        assert applied == [key], "those that were applied are left alone: there may be very many"
        assert node._follower._not_applied == set()


def _noting(applied: list[str], apply: Callable[[str, Value], None]) -> Callable[[str, Value], None]:
    def noting(key: str, value: Value) -> None:
        applied.append(key)
        apply(key, value)

    return noting


async def put(
    metadata: MemoryMetadata, node: ClusterNode, topic_id: int, partition: int, record: PartitionRecord
) -> None:
    """A record of a partition that has none, which the node knows on return."""
    made = await metadata.compare_and_set(
        {key_of(topic_id, partition): ABSENT}, {key_of(topic_id, partition): encode(record)}
    )
    assert made is not None
    node._follower.note(topic_id, partition, Known(record, made))


def chained(topic_id: int, partition: int, count: int, broker: str = "n1") -> PartitionRecord:
    """A partition with so many segments, all on one broker, one record in each but the open one."""
    segments = [
        SegmentRecord(
            start=epoch, broker=broker, queue=(topic_id, move.queue_id_for(partition, epoch)), epoch=epoch,
            end=1 if epoch < count - 1 else None,
        )
        for epoch in range(count)
    ]  # fmt: skip
    return PartitionRecord(epoch=count - 1, owner=broker, segments=tuple(segments))


@pytest.mark.parametrize("what", ["a move that was left", "a trim", "a partition that is to begin", "an end on Kafka"])
async def test_what_does_not_answer_holds_up_no_take_over(
    what: str, hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each kind of what a node looks after one never ends; a partition on Kafka is taken over all the same."""
    for name in ("LOOK_INTERVAL_S", "FINISH_AFTER_S", "TRIM_INTERVAL_S", "VERIFY_INTERVAL_S"):
        monkeypatch.setattr(nodes, name, 0.001)
    hangs = asyncio.Event()

    async def hang(*_: object) -> None:
        hangs.set()
        await asyncio.Event().wait()

    metadata = MemoryMetadata()
    async with joined(metadata, FakeKafka()) as (node, _):
        await node.create_topic("orders", 1)
        ((at, known),) = node._follower.on_kafka().items()
        node.default_broker = None
        topic_id = (await node.create_topic("stuck", 1)).topic_id
        if what == "a move that was left":
            monkeypatch.setattr(node._own, "create_queue", hang)
            await put(metadata, node, topic_id, 0, move.intent(first_record(topic_id, 0, "n1"), "n1"))
        elif what == "a trim":
            monkeypatch.setattr(node._own, "bounds", hang)
            await put(metadata, node, topic_id, 0, chained(topic_id, 0, 2))
        elif what == "a partition that is to begin":
            monkeypatch.setattr(node, "_begin_partition", hang)
            node._beginning.add((topic_id, 0))
        else:
            monkeypatch.setattr(node._mover, "unverified_end", lambda *_: 1, raising=False)
            monkeypatch.setattr(node._mover, "verify", hang)
        running = asyncio.create_task(node.run())
        try:
            await asyncio.wait_for(hangs.wait(), PATIENCE_S)
            await node.kafka["kafka1"].stop(queue_of(*at, known.record.open_segment))
            assert served(node) == 0
            await until(lambda: served(node) == 1, pause_s=0.001)
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_a_node_that_is_stopped_as_it_hears_of_something_stops() -> None:
    async with joined(MemoryMetadata(), FakeKafka()) as (node, _):
        for heard in (node._doubt, node._is_to_begin):
            running = asyncio.create_task(node.run())
            await asyncio.sleep(0.01)
            heard.set()
            running.cancel()
            assert (await asyncio.wait([running], timeout=WOKEN_S))[0] == {running}


class _Refusing(MemoryMetadata):
    """Refuses to list the slots of moves, as etcd does after a change of its users."""

    refusals: int | None = 0

    async def list(self, prefix: str) -> Listing:
        if prefix == SLOTS and self.refusals is not None:
            self.refusals += 1
            raise MetadataError("etcd does not let mq in")
        return await super().list(prefix)


async def test_a_node_goes_on_when_the_metadata_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LOOK_INTERVAL_S", 0.001)
    metadata = _Refusing()
    slot = f"{SLOTS}0"
    async with joined(metadata) as (node, _):
        await metadata.compare_and_set({slot: ABSENT}, {slot: b'{"v":1,"node":"n1","topic_id":16,"partition":0}'})
        running = asyncio.create_task(node.run())
        try:
            await until(lambda: running.done() or (metadata.refusals or 0) > 2, pause_s=0.001)
            assert not running.done(), running
            metadata.refusals = None
            async with asyncio.timeout(PATIENCE_S):
                while await metadata.get(slot) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_a_partition_that_can_have_no_more_segments_stays_and_its_node_says_so() -> None:
    metadata = MemoryMetadata()
    async with joined(metadata) as (node, _), joined(metadata, name="n2"):
        topic_id = (await node.create_topic("orders", 2)).topic_id
        await node._see(await metadata.list(""))
        balancer = Balancer(node, node._routes, _give, (), moves_per_s=1)
        await put(metadata, node, topic_id, 0, chained(topic_id, 0, SEGMENTS_MAX))
        assert not await balancer._moved(PlannedMove("orders", 0, "n1", "n2"))
        assert node.blocked is not None
        assert f"partition 0 of orders cannot go to n2: The partition has {SEGMENTS_MAX} segments" in node.blocked
        error = await node._mover.known(topic_id, 0)
        assert error.record.state is PartitionState.NORMAL, "nothing was changed"


async def test_the_log_says_which_nodes_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    metadata = MemoryMetadata()
    session = encode_session("2", DATA_VERSION)
    async with joined(metadata) as (node, _):
        await join(metadata, ROOT, disk(), own("n2"), [], next_topic_id=FIRST_USER_TOPIC_ID)
        for change, said in (
            (session, ["node is there node=n2"]),
            (session, []),
            (None, ["node is away, its session has ended node=n2"]),
        ):
            found = await metadata.get(NODES + "n2")
            key, revision = NODES + "n2", ABSENT if found is None else found.revision
            await metadata.compare_and_set({key: revision}, {key: change})
            for seen in (await metadata.list(""), await metadata.list("")):
                with caplog.at_level("INFO"):
                    caplog.clear()
                    await node._see(seen)
                assert [one for one in caplog.messages if one.startswith("node is")] == said
                said = []


async def test_other_work_has_its_turns_while_all_partitions_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "SEGMENTS_A_TURN", 2)
    metadata = MemoryMetadata()
    async with joined(metadata) as (node, _):
        topic_id = (await node.create_topic("orders", 5)).topic_id
        for partition in range(5):
            await put(metadata, node, topic_id, partition, first_record(topic_id, partition, "n1"))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        before = turns
        seen = [(at, turns - before) async for at, _ in node._moved()]
        counting.cancel()
        assert seen == [((topic_id, partition), turn) for partition, turn in enumerate((0, 0, 1, 1, 2))]


async def test_light_queues_wait_until_all_nodes_know_them() -> None:
    metadata = MemoryMetadata()
    async with joined(metadata) as (node, _):
        await join(metadata, ROOT, disk(), own("n2"), [], next_topic_id=FIRST_USER_TOPIC_ID)

        async def lacking() -> list[str]:
            await node._see(await metadata.list(""))
            return node._routes.lacking(DATA_VERSION)

        assert await lacking() == ["n2"], "it has not said what it knows"
        old = b'{"v":1,"process":"a program from before that"}'
        revision = await metadata.compare_and_set({"nodes/n2": ABSENT}, {"nodes/n2": old})
        assert revision is not None
        assert await lacking() == ["n2"]
        new = encode_session("upgraded", DATA_VERSION)
        kept = {"formats/n2": encode_format(DATA_VERSION)}
        revision = await metadata.compare_and_set(
            {"nodes/n2": revision, "formats/n2": ABSENT}, {"nodes/n2": new, **kept}
        )
        assert revision is not None
        assert await lacking() == []
        assert node._routes.lacking(DATA_VERSION + 1) == ["n2"]
        gone = await metadata.compare_and_set({"nodes/n2": revision}, {"nodes/n2": None})
        assert gone is not None
        assert await lacking() == [], "it restarts"
        await metadata.compare_and_set({"nodes/n2": ABSENT}, {"nodes/n2": old})
        assert await lacking() == ["n2"], "it has gone back to the version before"


async def test_a_node_says_what_it_knows() -> None:
    metadata = MemoryMetadata()
    async with joined(metadata) as (node, _), node.in_session("one"):
        values = (await metadata.list("")).values
        assert {key: format_in(values[key].data) for key in ("nodes/n1", "formats/n1")} == {
            "nodes/n1": DATA_VERSION,
            "formats/n1": DATA_VERSION,
        }
        assert node._routes.lacking(DATA_VERSION) == [], "it knows itself"

"""gateway.surfaces.kafka.nodes, and every request that asks it: one node of a cluster, as Kafka clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.api.producer import Producer
from gateway.api.read import Consumer, Fetched
from gateway.auth.access import OPEN
from gateway.cluster.members import Member
from gateway.cluster.metadata import Unavailable
from gateway.cluster.move import queue_id_for
from gateway.groups.machines.copies import GROUP_NAME_BYTES_MAX
from gateway.groups.machines.membership import MEMBER_ID_BYTES_MAX
from gateway.routing.select import PartitionSelector
from gateway.routing.table import RouteTable, Segment
from gateway.settings.kafka import KafkaListener
from gateway.surfaces.http.answer_memory import Allowance
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.kafka import errors, group_requests, metadata, offsets, records, topics
from gateway.surfaces.kafka.fetch import read_fetch
from gateway.surfaces.kafka.frames import read_header
from gateway.surfaces.kafka.groups import KafkaGroups
from gateway.surfaces.kafka.nodes import Node, Place, Places, coordinator_of, is_elsewhere, nodes_of, refusal
from gateway.surfaces.kafka.produce import read_produce
from gateway.surfaces.kafka.records import Producing
from gateway.surfaces.kafka.schema import Message, decode, encode
from gateway.surfaces.kafka.service import Handler
from gateway.surfaces.kafka.session import Session
from loadtest.turns import kafka as asking
from store import record_batch
from store.limits import PARTITIONS_MAX
from store.record_batch import Record, encode_columns
from store.topics import Topic, epoch_of
from store.types import Acks, Buffer, Entry, QueueKey, ReadStatus
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.surfaces.kafka import oracle

REACHED = KafkaListener("", "127.0.0.1", 9999)
TOPIC_ID = 16
EPOCH = 3


def member(name: str, number: int, *kafka: str, room: str = "") -> Member:
    return Member(name=name, number=number, data="", address="", url="", room=room, kafka=kafka)


@dataclass
class Cluster:
    """What a session asks of the cluster."""

    name: str = "n1"
    owners: dict[str, str] = field(default_factory=dict)
    away: set[str] = field(default_factory=lambda: {"n3"})
    members: dict[str, Member] = field(
        default_factory=lambda: {
            "n4": member("n4", 3, "OTHER://n4:9092"),
            "n3": member("n3", 2, "KAFKA://n3:9092"),
            "n2": member("n2", 1, "OTHER://n2:9094", "KAFKA://n2:9092", room="east"),
            "n1": member("n1", 0, "KAFKA://[::1]:9092", "not understood"),
        }
    )

    def is_there(self, name: str) -> bool:
        return name not in self.away

    def owner(self, kind: str, name: str) -> str | None:
        assert kind == "groups"
        return self.owners.get(name)


class Partly(FakeBroker):
    """The broker of a node. Topics cannot be made: etcd is away."""

    def __init__(self, name: str) -> None:
        super().__init__(FakeClock())
        self.name = self.served_by = name

    async def create_topic(self, *_: Any, **__: Any) -> Any:
        raise Unavailable("etcd cannot be reached")


OWNERS = (("n1", 0), ("n2", 0), ("n1", EPOCH), ("n3", 1), ("n4", 0))
"""Who has each partition of the topic, and since which epoch."""


def session_of(gateway: Gateway, listener: str = "KAFKA") -> Session:
    return Session(gateway, KafkaGroups(gateway.groups), listener, REACHED, "10.0.0.1", OPEN)


def clustered(listener: str = "KAFKA") -> tuple[Session, Cluster]:
    gateway, _ = fake_gateway(FakeClock())
    table, cluster = RouteTable(), Cluster()
    brokers = {name: Partly(name) for name in cluster.members}
    chains = [
        (Segment(brokers[name], QueueKey(TOPIC_ID, queue_id_for(partition, epoch))),)
        for partition, (name, epoch) in enumerate(OWNERS)
    ]
    table.set_chains(Topic(TOPIC_ID, "orders", len(OWNERS)), chains)
    producer = Producer(table, PartitionSelector(), clock=FakeClock(), limits=gateway.limits, acks=Acks.FLUSHED)
    gateway = replace(
        gateway, routes_table=table, admin=cast(Any, brokers["n1"]), cluster=cast(Any, cluster), producer=producer,
        consumer=Consumer(table),
    )  # fmt: skip
    return session_of(gateway, listener), cluster


async def test_a_server_that_is_alone_is_broker_0_where_it_was_reached() -> None:
    gateway, broker = fake_gateway(FakeClock())
    await broker.create_topic("orders", 2)
    session = session_of(gateway)
    assert list(nodes_of(session).values()) == [Node(0, "127.0.0.1", 9999, None)]
    assert await Places(session, 9).of(gateway.routes_table.topic("orders")) == (Place(0, 0, 0),) * 2
    assert refusal(session, "orders", 0, EPOCH) == errors.NONE
    assert coordinator_of(session, "g") == Node(0, "127.0.0.1", 9999, None)
    assert not is_elsewhere(session, "g")


def test_the_brokers_are_the_nodes_that_are_there_and_have_the_listener_of_the_client() -> None:
    session, cluster = clustered()
    assert list(nodes_of(session).values()) == [Node(0, "::1", 9092, None), Node(1, "n2", 9092, "east")]
    cluster.away.clear()
    assert [node.number for node in nodes_of(session).values()] == [0, 1, 2]
    session, _ = clustered("OTHER")
    assert [node.host for node in nodes_of(session).values()] == ["127.0.0.1", "n2", "n4"], "it has just been reached"


@pytest.mark.parametrize(("version", "no_listener"), [(5, errors.LEADER_NOT_AVAILABLE), (6, errors.LISTENER_NOT_FOUND)])
async def test_metadata_names_the_owners_and_their_epochs(version: int, no_listener: int) -> None:
    session, _ = clustered()
    request = {"topics": [{"name": "orders"}], "allow_auto_topic_creation": False}
    answer = await metadata.metadata(session, version, request)
    assert ([one["node_id"] for one in answer["brokers"]], answer["controller_id"]) == ([0, 1], 0)
    found = await Places(session, version).of(session.gateway.routes_table.topic("orders"))
    assert found == (
        Place(0, 0, 0), Place(1, 0, 0), Place(0, EPOCH, 0), Place(2, 1, errors.LEADER_NOT_AVAILABLE),
        Place(3, 0, no_listener),
    )  # fmt: skip
    read = decode("MetadataResponse", version, encode("MetadataResponse", version, answer))["topics"][0]["partitions"]
    assert [one["leader_id"] for one in read] == [0, 1, 0, -1, -1]
    assert [one["replica_nodes"] for one in read] == [[0], [1], [0], [2], [3]]
    assert [one["isr_nodes"] for one in read] == [[0], [1], [0], [], []]


async def test_a_topic_that_cannot_be_made_while_etcd_is_away_is_asked_for_again() -> None:
    session, _ = clustered()
    (topic,) = (await metadata.metadata(session, 9, {"topics": [{"name": "new"}]}))["topics"]
    assert topic["error_code"] == errors.LEADER_NOT_AVAILABLE
    new = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    (topic,) = (await topics.create_topics(session, 5, {"topics": [new], "validate_only": False}))["topics"]
    assert topic["error_code"] == errors.NOT_CONTROLLER
    new |= {"num_partitions": -1, "replication_factor": -1, "assignments": [{"partition_index": 0, "broker_ids": [0]}]}
    (topic,) = (await topics.create_topics(session, 5, {"topics": [new], "validate_only": False}))["topics"]
    assert topic["error_code"] == errors.INVALID_REPLICA_ASSIGNMENT


async def test_settings_are_those_of_the_node_that_is_asked() -> None:
    session, _ = clustered()
    asked = [{"resource_type": topics.BROKER, "resource_name": name, "configuration_keys": None} for name in "01"]
    own, other = (await topics.describe_configs(session, 4, {"resources": asked}))["results"]
    assert own["configs"]
    assert other["error_code"] == errors.INVALID_REQUEST


def test_an_epoch_is_that_of_the_queue() -> None:
    for partition in (0, PARTITIONS_MAX - 1):
        for epoch in (0, 1, EPOCH):
            assert epoch_of(QueueKey(TOPIC_ID, queue_id_for(partition, epoch))) == epoch


@pytest.mark.parametrize(
    ("partition", "epoch", "code"),
    [
        (0, -1, errors.NONE),
        (0, 0, errors.NONE),
        (0, 1, errors.UNKNOWN_LEADER_EPOCH),
        (1, 0, errors.NOT_LEADER),
        (2, EPOCH, errors.NONE),
        (2, EPOCH - 1, errors.FENCED_LEADER_EPOCH),
        (2, EPOCH + 1, errors.UNKNOWN_LEADER_EPOCH),
        (3, -1, errors.NOT_LEADER),
        (len(OWNERS), 0, errors.NONE),  # there is none: whoever goes on says so
    ],
)
def test_only_the_owner_answers_for_a_partition_and_in_its_epoch(partition: int, epoch: int, code: int) -> None:
    assert refusal(clustered()[0], "orders", partition, epoch) == code


async def produced(session: Session, partition: int) -> int:
    frame = memoryview(asking.produce("orders", encode_columns(None, [b"v"], 0), 2))[4:]
    answer: list[bytes] = []
    done = asyncio.Event()

    def made(buffers: Iterable[Buffer] | None, *, is_last: bool = False) -> None:
        answer.append(b"".join(map(bytes, buffers or ())))
        done.set()

    header = read_header(frame)
    Producing(session, header.version, read_produce(frame, header.at, header.version), made).begin()
    await done.wait()
    (topic,) = oracle.message("ProduceResponse", 8, answer[0]).responses
    return int(topic.partition_responses[partition].error_code)


async def fetched(session: Session, partition: int) -> int:
    frame = memoryview(asking.fetch("orders", 2))[4:]
    gateway = session.gateway
    allowance = Allowance(gateway.stats.answers, session.payer, gateway.limits.answering_bytes_max)
    header = read_header(frame)
    request = read_fetch(frame, header.at, header.version)
    answer = b"".join(map(bytes, await records.fetch(session, header.version, request, allowance)))
    (topic,) = oracle.message("FetchResponse", 4, answer).responses
    return int(topic.partitions[partition].error_code)


async def listed(session: Session, partition: int) -> int:
    request = {"topics": [{"name": "orders", "partitions": [{"partition_index": partition, "timestamp": -1}]}]}
    (found,) = (await offsets.list_offsets(session, 4, request))["topics"][0]["partitions"]
    return int(found.get("error_code", 0))


async def ended(session: Session, partition: int) -> int:
    asked = {"partition": partition, "leader_epoch": 7, "current_leader_epoch": -1}
    (found,) = (
        await offsets.offset_for_leader_epoch(session, 4, {"topics": [{"topic": "orders", "partitions": [asked]}]})
    )["topics"][0]["partitions"]
    assert (found["leader_epoch"], found["end_offset"]) == ((-1, -1) if partition else (0, 0))
    return int(found.get("error_code", 0))


async def deleted(session: Session, partition: int) -> int:
    asked = {"name": "orders", "partitions": [{"partition_index": partition, "offset": 0}]}
    (found,) = (await records.delete_records(session, 2, {"topics": [asked]}))["topics"][0]["partitions"]
    return int(found.get("error_code", 0))


@pytest.mark.parametrize("ask", [produced, fetched, listed, ended, deleted])
async def test_every_request_about_records_is_for_the_owner(ask: Callable[[Session, int], Awaitable[int]]) -> None:
    session, _ = clustered()
    assert [await ask(session, partition) for partition in (0, 1)] == [errors.NONE, errors.NOT_LEADER]


@pytest.mark.parametrize(
    ("owner", "code", "port"),
    [
        ("n1", errors.NONE, 9092),
        (None, errors.NONE, 9092),
        ("n2", errors.NONE, 9092),
        ("n3", errors.COORDINATOR_NOT_AVAILABLE, -1),  # not there
        ("n4", errors.COORDINATOR_NOT_AVAILABLE, -1),  # where this client has no way to it
    ],
)
async def test_the_coordinator_of_a_group_is_its_node(owner: str | None, code: int, port: int) -> None:
    session, cluster = clustered()
    cluster.owners = {} if owner is None else {"g": owner}
    answer = await metadata.find_coordinator(session, 2, {"key": "g", "key_type": 0})
    assert (answer["error_code"], answer["port"]) == (code, port)
    assert answer["node_id"] == (-1 if code else int(owner == "n2"))
    assert is_elsewhere(session, "g") == (owner not in (None, "n1"))


def test_a_group_begins_on_a_node_that_does_not_drain() -> None:
    session, cluster = clustered()

    def drain(*names: str) -> None:
        cluster.members = {name: replace(one, draining=name in names) for name, one in cluster.members.items()}

    drain("n1")
    assert coordinator_of(session, "g") == nodes_of(session)["n2"]
    cluster.owners = {"g": "n1"}
    assert coordinator_of(session, "g") == nodes_of(session)["n1"], "it is there still"
    cluster.owners = {}
    drain("n1", "n2")
    assert coordinator_of(session, "g") == nodes_of(session)["n1"], "n3 and n4 cannot be reached"


class Expiring:
    """A partition's records 5 to 9, in two batches. Those before went after a search has found the third of them."""

    batches = (
        record_batch.with_base_offset(bytes(record_batch.encode([Record(None, b"a", ms) for ms in (30, 95, 40)])), 5),
        record_batch.with_base_offset(bytes(record_batch.encode([Record(None, b"b", ms) for ms in (50, 60)])), 8),
    )

    async def bounds(self, *_: object) -> tuple[int, int]:
        return 0, 10

    async def offset_for_time(self, *_: object) -> int:
        return 2

    async def fetch(self, _topic: str, _partition: int, offset: int, *, max_bytes: int) -> Fetched:
        if offset < 5:
            return Fetched([], ReadStatus.TOO_SMALL, 5, 10, 5)
        entries = [
            Entry(0, len(batch), QueueKey(TOPIC_ID, 0), "orders", base, following - base, 1, False, memoryview(batch))
            for batch in self.batches
            for base, following in [record_batch.offsets_of(batch)]
            if following > offset
        ]
        return Fetched(entries, ReadStatus.FOUND if entries else ReadStatus.AT_END, 5, 10, 10)


@pytest.mark.parametrize(
    ("time_ms", "found"),
    [
        (30, {"offset": 5, "timestamp": 30}),
        (96, {}),
        (offsets.Special.MAX_TIMESTAMP, {"offset": 6, "timestamp": 95}),
    ],
)
async def test_a_search_by_time_goes_on_where_the_log_begins_when_retention_has_passed_it(
    time_ms: int, found: Message
) -> None:
    assert await offsets._found(cast(Any, Expiring()), "orders", 0, time_ms) == found


async def test_the_nodes_of_many_groups_are_found_in_several_turns() -> None:
    session, _ = clustered()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(others())
    names = [str(number) for number in range(10 * metadata.GROUPS_PER_TURN)]
    answer = await metadata.find_coordinator(session, 4, {"coordinator_keys": names, "key_type": 0})
    counting.cancel()
    assert [found["key"] for found in answer["coordinators"]] == names
    assert turns >= 9


MEMBER = {"group_id": "g", "member_id": "m", "generation_id": 1}
JOIN = {
    "group_id": "g", "member_id": "", "session_timeout_ms": 10_000, "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("handler", "version", "request_", "code_of"),
    [
        (group_requests.join_group, 5, JOIN, lambda answer: answer["error_code"]),
        (group_requests.sync_group, 3, MEMBER | {"assignments": []}, lambda answer: answer["error_code"]),
        (group_requests.heartbeat, 3, MEMBER, lambda answer: answer["error_code"]),
        (group_requests.leave_group, 2, MEMBER, lambda answer: answer["error_code"]),
        (
            group_requests.offset_commit,
            7,
            MEMBER | {"topics": [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 0}]}]},
            lambda answer: answer["topics"][0]["partitions"][0]["error_code"],
        ),
        (group_requests.offset_fetch, 7, {"group_id": "g", "topics": None}, lambda answer: answer["error_code"]),
        (group_requests.offset_delete, 0, {"group_id": "g", "topics": []}, lambda answer: answer["error_code"]),
        (group_requests.describe_groups, 5, {"groups": ["g"]}, lambda answer: answer["groups"][0]["error_code"]),
        (group_requests.delete_groups, 2, {"groups_names": ["g"]}, lambda answer: answer["results"][0]["error_code"]),
    ],
)
async def test_every_request_about_a_group_is_for_its_node(
    handler: Handler, version: int, request_: Message, code_of: Callable[[Message], int]
) -> None:
    session, cluster = clustered()
    cluster.owners = {"g": "n2"}
    assert code_of(await handler(session, version, request_)) == errors.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("group", "code"),
    [
        ("g" * GROUP_NAME_BYTES_MAX, errors.MEMBER_ID_REQUIRED),
        ("g" * (GROUP_NAME_BYTES_MAX + 1), errors.INVALID_GROUP_ID),
        ("not a name", errors.INVALID_GROUP_ID),
        ("", errors.INVALID_GROUP_ID),
    ],
)
async def test_nobody_comes_into_a_group_whose_name_no_group_may_have(group: str, code: int) -> None:
    gateway, _ = fake_gateway(FakeClock())
    gateway = replace(gateway, groups=cast(Any, SimpleNamespace(members=lambda _: {}, plan_state=lambda _: None)))
    answer = await group_requests.join_group(session_of(gateway), 5, JOIN | {"group_id": group})
    assert answer["error_code"] == code


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("field", ["group_instance_id", "protocol_type", "protocols"])
async def test_names_of_members_are_as_long_as_those_who_join_by_any_version_can_be_told(field: str, more: int) -> None:
    gateway, _ = fake_gateway(FakeClock())
    gateway = replace(gateway, groups=cast(Any, SimpleNamespace(members=lambda _: {}, plan_state=lambda _: None)))
    name = "i" * (MEMBER_ID_BYTES_MAX + more)
    value = [{"name": name, "metadata": b""}] if field == "protocols" else name
    join = JOIN | {"member_id": "unknown", field: value}
    answer = await group_requests.join_group(session_of(gateway), 9, join)
    assert answer["error_code"] == (errors.INVALID_REQUEST if more else errors.UNKNOWN_MEMBER_ID)

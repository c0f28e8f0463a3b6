"""Kafka clients and several `mq serve` with a real etcd: each node is a broker, leaders are the owners, and clients go
on while partitions and groups move, nodes drain, and one is killed. Nothing acknowledged is lost or doubled.

Covers gateway.surfaces.kafka.nodes with gateway.main.listener's advertised addresses."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import aiohttp
import aiokafka
import confluent_kafka
import mq as mq_client
import pytest
from aiokafka.errors import KafkaError
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

from gateway.surfaces.kafka import apis, errors
from loadtest.bench.librdkafka import rdkafka_performance
from loadtest.peers.fetch import TOOLS
from tests.e2e import test_kafka_clients as clients
from tests.e2e.kafka_wire import wire
from tests.gateway.cli.command import mq
from tests.gateway.cluster.etcd_server import EtcdServer, free_port
from tests.gateway.cluster.test_served import Nodes, served
from tests.waiting import PATIENCE_S

TOPIC = "numbers"
PARTITIONS = 3
GROUP = "team"


class KafkaNodes(Nodes):
    """Nodes with a port for Kafka clients each."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.addresses: dict[str, str] = {}
        self.consuming: list[Consuming] = []

    async def start(self, name: str, *, joined: bool = False, **more: str) -> None:
        port = free_port()
        self.addresses[name] = f"127.0.0.1:{port}"
        self._settings |= {"MQ_KAFKA_ENABLED": "true", "MQ_KAFKA_PORT": str(port)}
        await super().start(name, joined=joined, **more)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    def admin(self, name: str | None = None) -> Any:
        return AdminClient({
            "bootstrap.servers": self.bootstrap if name is None else self.addresses[name], "log_level": 0,
        })  # fmt: skip

    async def create(self, topic: str, partitions: int) -> None:
        admin = self.admin()
        await asyncio.to_thread(admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result, PATIENCE_S)

    async def owners(self, topic: str) -> list[str]:
        routes = await self.done("n1", "GET", f"/mq/v1/topics/{topic}/routes")
        return [row["owner"] for row in routes["partitions"]]

    async def record_count(self, topic: str) -> int:
        """Records ever sent to a topic; 0 while a node that has some is away."""
        status, answer = await self.ask("n1", "GET", f"/mq/v1/topics/{topic}/offsets")
        return sum(row["end_offset"] for row in answer["partitions"]) if status == 200 else 0

    async def move_to(self, topic: str, partition: int, to: str) -> None:
        await self.done("n1", "POST", f"/mq/v1/topics/{topic}/partitions/{partition}/move", json={"to": to})

    async def owner_of(self, group: str) -> str:
        """The node whose Kafka listener FindCoordinator names."""
        async with wire(self.addresses["n1"]) as one:
            found = await one.ask(apis.FIND_COORDINATOR, 2, {"key": group, "key_type": 0})
        assert found["error_code"] == 0, found
        return next(name for name, at in self.addresses.items() if at == f"{found['host']}:{found['port']}")

    async def drain(self, name: str, asked: str) -> None:
        """Return when a node has neither partitions nor groups; by way of another one."""
        await self.done(asked, "PATCH", f"/mq/v1/brokers/{name}", json={"draining": True})
        async with asyncio.timeout(PATIENCE_S):
            while True:
                rows = (await self.done(asked, "GET", "/mq/v1/brokers"))["brokers"]
                row = next(row for row in rows if row["broker"] == name)
                if row["state"] == "drained":
                    return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def kafka_nodes(directory: Path, etcd: EtcdServer, seed: int) -> AsyncIterator[KafkaNodes]:
    async with served(directory, etcd, Random(seed), 3, KafkaNodes) as nodes:
        assert isinstance(nodes, KafkaNodes)
        try:
            yield nodes
        finally:  # a test that fails must not wait for threads that go on
            for one in nodes.consuming:
                one.stop()


class Producing:
    """Numbers from an idempotent producer of librdkafka, until told to end; an error ends it at once."""

    def __init__(self, bootstrap: str, topic: str, per_s: int) -> None:
        self._producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, "log_level": 0,
                "message.timeout.ms": int(PATIENCE_S * 1000),
            }
        )  # fmt: skip
        self._topic, self._per_s = topic, per_s
        self.sent = 0
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.errors: list[str] = []
        self._is_over = False
        self._task = asyncio.create_task(self._run())

    def _on_delivery(self, error: object, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged[message.value()] = (message.partition(), message.offset())

    async def _run(self) -> None:
        while not self._is_over:
            for _ in range(max(1, self._per_s // 100)):
                self._producer.produce(
                    self._topic,
                    value=b"%d" % self.sent,
                    partition=self.sent % PARTITIONS,
                    on_delivery=self._on_delivery,
                )
                self.sent += 1
            self._producer.poll(0)
            await asyncio.sleep(0.01)

    async def more(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged, in each partition some."""
        before = len(self.acknowledged)
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < before + count:
                assert not self.errors, self.errors
                await asyncio.sleep(0.005)

    async def end(self) -> set[bytes]:
        """What was sent, all of which is acknowledged."""
        self._is_over = True
        await self._task
        left = await asyncio.to_thread(self._producer.flush, PATIENCE_S)
        assert (left, self.errors) == (0, []), (left, self.errors)
        assert len(self.acknowledged) == self.sent
        return set(self.acknowledged)


class Consuming:
    """A member of a group (librdkafka), in a thread of its own; commits what it has seen."""

    def __init__(self, nodes: KafkaNodes, topic: str, group: str) -> None:
        self._consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": nodes.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
                "enable.auto.commit": False, "session.timeout.ms": 6000, "heartbeat.interval.ms": 200, "log_level": 0,
            }
        )  # fmt: skip
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self.seen: list[bytes] = []
        self.errors: list[str] = []
        self.owned: set[int] = set()  # from when it is told of them until it begins to give them up
        self._is_over = False
        self._task = asyncio.create_task(asyncio.to_thread(self._run))
        nodes.consuming.append(self)

    def _on_assign(self, _: object, partitions: Sequence[Any]) -> None:
        self.owned = {one.partition for one in partitions}

    def _on_revoke(self, *_: object) -> None:
        self.owned = set()

    def _run(self) -> None:
        try:
            while not self._is_over:
                messages = self._consumer.consume(1_000, 0.05)
                for message in messages:
                    if message.error() is not None:
                        self.errors.append(str(message.error()))
                    else:
                        self.seen.append(message.value())
                if messages:
                    # What cannot be committed now, because the group moves or begins a round, is with the next ones.
                    with suppress(confluent_kafka.KafkaException):
                        self._consumer.commit(asynchronous=False)
        finally:
            self._consumer.close()

    def stop(self) -> None:
        """Have the thread end soon."""
        self._is_over = True

    async def end(self) -> None:
        self.stop()
        await self._task


async def until_seen(members: Sequence[Consuming], values: set[bytes]) -> None:
    """All of them have come to some member, none of which was told of an error."""
    async with asyncio.timeout(PATIENCE_S):
        while not values <= {value for member in members for value in member.seen}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert [error for member in members for error in member.errors] == []


def _end_of(consumer: Any, place: confluent_kafka.TopicPartition) -> int:
    """Where a partition ends. This call of librdkafka is not repeated by itself when the partition has just moved."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            end: int = consumer.get_watermark_offsets(place, timeout=PATIENCE_S)[1]
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > until:
                raise
            consumer.list_topics(place.topic, timeout=PATIENCE_S)
        else:
            return end


async def stored(nodes: KafkaNodes, topic: str, partitions: int = PARTITIONS) -> Counter[bytes]:
    """What is in a topic, by a consumer without a group."""

    def read() -> Counter[bytes]:
        consumer: Any = confluent_kafka.Consumer(
            {"bootstrap.servers": nodes.bootstrap, "group.id": "reader", "log_level": 0}
        )
        places = [confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)]
        ends = {place.partition: _end_of(consumer, place) for place in places}
        consumer.assign(places)
        found: Counter[bytes] = Counter()
        read: Counter[int] = Counter()
        last = time.monotonic()
        until = last + PATIENCE_S
        while found.total() < sum(ends.values()):
            now = time.monotonic()
            assert now < until, f"read {read} of {ends}, the last one {now - last:.1f} s ago"
            for message in consumer.consume(1_000, 0.2):
                assert message.error() is None, message.error()
                found[message.value()] += 1
                read[message.partition()] += 1
                last = now
        consumer.close()
        return found

    return await asyncio.to_thread(read)


async def test_kafka_clients_go_on_while_partitions_and_their_group_move(tmp_path: Path, etcd: EtcdServer) -> None:
    async with asyncio.timeout(3 * PATIENCE_S), kafka_nodes(tmp_path, etcd, 1) as nodes:
        await nodes.create(TOPIC, PARTITIONS)
        assert sorted(await nodes.owners(TOPIC)) == ["n1", "n2", "n3"]
        producing, member = Producing(nodes.bootstrap, TOPIC, 1_000), Consuming(nodes, TOPIC, GROUP)
        await producing.more()
        await _leaders_are_owners(nodes)
        for partition in range(PARTITIONS):
            await nodes.move_to(TOPIC, partition, "n3" if partition != 2 else "n1")
            await producing.more()
        await _leaders_are_owners(nodes)
        async with asyncio.timeout(PATIENCE_S):
            while not member.owned:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        drained = await nodes.owner_of(GROUP)
        other = next(name for name in nodes.addresses if name != drained)
        await nodes.drain(drained, other)
        assert await nodes.owner_of(GROUP) != drained
        await producing.more()
        values = await producing.end()
        await until_seen([member], values)
        await member.end()
        assert await stored(nodes, TOPIC) == Counter(values)
        await _own_no_partition_at_once(nodes)


async def _leaders_are_owners(nodes: KafkaNodes) -> None:
    """Every node tells the same brokers and leaders; only the leader answers for a partition."""
    owners = await nodes.owners(TOPIC)
    by_address = {address: name for name, address in nodes.addresses.items()}
    asked = [{"partition_index": number, "current_leader_epoch": -1, "timestamp": -1} for number in range(PARTITIONS)]
    for address, own in by_address.items():
        async with asyncio.timeout(PATIENCE_S), wire(address) as one:
            while True:  # a node's watch may be a little behind
                answer = await one.ask(apis.METADATA, 9, {"topics": [{"name": TOPIC}]})
                names = {row["node_id"]: by_address[f"{row['host']}:{row['port']}"] for row in answer["brokers"]}
                assert sorted(names.values()) == ["n1", "n2", "n3"]
                assert names[answer["controller_id"]] == own
                leaders = {row["partition_index"]: names[row["leader_id"]] for row in answer["topics"][0]["partitions"]}
                if [leaders[number] for number in range(PARTITIONS)] == owners:
                    break
                await asyncio.sleep(0.01)
            request = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": TOPIC, "partitions": asked}]}
            (topic,) = (await one.ask(apis.LIST_OFFSETS, 4, request))["topics"]
            codes = {row["partition_index"]: row["error_code"] for row in topic["partitions"]}
            assert codes == {n: 0 if owner == own else errors.NOT_LEADER for n, owner in enumerate(owners)}


async def _own_no_partition_at_once(nodes: KafkaNodes) -> None:
    """A Kafka member, which is connected to the node of the group, and a WebSocket member by way of another one."""
    await nodes.create("mixed", 4)
    member = Consuming(nodes, "mixed", "mixed")
    await _owns_all(member)
    owner = await nodes.owner_of("mixed")
    asked = next(name for name in nodes.addresses if name != owner)
    url = f"{nodes.servers[asked].url}/ws/v1/consume?topic=mixed&group=mixed&mode=stream"
    async with nodes._http.ws_connect(url) as socket:
        await _shared(member, socket)
    await _owns_all(member)
    await member.end()
    assert member.errors == []


async def _owns_all(member: Consuming) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(member.owned) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _shared(member: Consuming, socket: aiohttp.ClientWebSocketResponse) -> None:
    """Return when both members have two partitions, none of which the other one had at the same time."""
    owned: set[int] = set()
    async with asyncio.timeout(PATIENCE_S):
        while not len(member.owned) == len(owned) == 2:
            with suppress(TimeoutError):
                frame = await socket.receive(timeout=0.02)
                assert frame.type is aiohttp.WSMsgType.TEXT, frame
                message = json.loads(frame.data)
                if message.get("op") == "assigned":
                    owned |= {number for numbers in message["partitions"].values() for number in numbers}
            assert not member.owned & owned, (member.owned, owned)


@pytest.mark.matrix
async def test_topics_groups_and_offsets_are_administered_by_any_node(tmp_path: Path, etcd: EtcdServer) -> None:
    async with asyncio.timeout(3 * PATIENCE_S), kafka_nodes(tmp_path, etcd, 3) as nodes:
        admins = {name: nodes.admin(name) for name in nodes.addresses}

        def result(futures: Any) -> Any:
            (future,) = futures.values()
            return future.result(PATIENCE_S)

        def administer() -> None:
            result(admins["n2"].create_topics([NewTopic("made", 2, 1, config={"retention.ms": "60000"})]))
            for admin in admins.values():
                assert len(admin.list_topics(timeout=PATIENCE_S).topics["made"].partitions) == 2
            result(admins["n3"].create_partitions([NewPartitions("made", 6)]))
            for admin in admins.values():
                found = admin.list_topics(timeout=PATIENCE_S)
                leaders = [one.leader for one in found.topics["made"].partitions.values()]
                assert (sorted(found.brokers), len(leaders), set(leaders)) == ([0, 1, 2], 6, {0, 1, 2})
                described = admin.describe_cluster().result(PATIENCE_S)
                assert len(described.nodes) == 3
            resource = ConfigResource(ConfigResource.Type.TOPIC, "made", set_config={"retention.ms": "70000"})
            result(admins["n1"].alter_configs([resource]))
            for admin in admins.values():
                configs = result(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "made")]))
                assert configs["retention.ms"].value == "70000"
            producer: Any = confluent_kafka.Producer({"bootstrap.servers": nodes.addresses["n1"], "log_level": 0})
            for number in range(60):
                producer.produce("made", value=b"%d" % number, partition=number % 6)
            assert producer.flush(PATIENCE_S) == 0
            places = [confluent_kafka.TopicPartition("made", number, 4) for number in range(6)]
            deleted = admins["n2"].delete_records(places)
            assert {one.result(PATIENCE_S).low_watermark for one in deleted.values()} == {4}
            listed = admins["n3"].list_offsets(dict.fromkeys(places, OffsetSpec.earliest()))
            assert {one.result(PATIENCE_S).offset for one in listed.values()} == {4}
            for name in nodes.addresses:  # a group of each node: the one that was asked first
                offsets = [confluent_kafka.TopicPartition("made", 0, 7)]
                group = confluent_kafka.ConsumerGroupTopicPartitions(f"of-{name}", offsets)
                result(admins[name].alter_consumer_group_offsets([group]))
            for admin in admins.values():
                valid = admin.list_consumer_groups().result(PATIENCE_S).valid
                assert {f"of-{name}" for name in nodes.addresses} <= {one.group_id for one in valid}
                for name in nodes.addresses:
                    found = result(
                        admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(f"of-{name}")])
                    )
                    assert [(one.partition, one.offset) for one in found.topic_partitions] == [(0, 7)]
                    assert result(admin.describe_consumer_groups([f"of-{name}"])).state.name == "EMPTY"
            for number, name in enumerate(nodes.addresses):
                result(admins[f"n{(number + 1) % 3 + 1}"].delete_consumer_groups([f"of-{name}"]))
            assert not admins["n1"].list_consumer_groups().result(PATIENCE_S).valid
            result(admins["n3"].delete_topics(["made"]))
            for admin in admins.values():
                assert "made" not in admin.list_topics(timeout=PATIENCE_S).topics

        await asyncio.to_thread(administer)


@pytest.mark.matrix
async def test_who_is_behind_is_not_left_where_another_node_s_segment_ends(tmp_path: Path, etcd: EtcdServer) -> None:
    """As tests/gateway/cluster/test_mover.py has it, for a consumer: partition 0 was on n2 for a while; a consumer that
    has read all of it has gone, and n1 begins to follow n2, as partition 1 goes there."""
    async with asyncio.timeout(3 * PATIENCE_S), kafka_nodes(tmp_path, etcd, 6) as nodes:
        await nodes.create(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            await nodes.move_to(TOPIC, partition, "n1")
        records = {"records": [{"value": value} for value in range(10)]}
        v2 = {"Content-Type": "application/vnd.kafka.json.v2+json"}
        for to in ("n2", "n1", "n1"):
            await nodes.done("n1", "POST", f"/topics/{TOPIC}/partitions/0", json=records, headers=v2)
            await nodes.move_to(TOPIC, 0, to)
        assert await nodes.servers["n1"].stop() == 0  # it has followed n2 until now
        await nodes.servers["n1"].start()
        for _ in range(2):
            assert (await stored(nodes, TOPIC)).total() == 30
            url = f"{nodes.servers['n1'].url}/topics/{TOPIC}/partitions/0/records?offset=30&timeout=200&format=json"
            async with nodes._http.get(url) as waits_at_the_end:
                assert await waits_at_the_end.json(content_type=None) == []
            await nodes.move_to(TOPIC, 1, "n2")
            await asyncio.sleep(1)  # until n2 has told the ends of its queues, mostly


class AioProducing:
    """As Producing, by aiokafka."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, acks="all", request_timeout_ms=int(PATIENCE_S * 1000)
        )
        self._topic = topic
        self._is_over = False
        self.values: set[bytes] = set()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._producer.start()
        sent = []
        while not self._is_over:
            value = b"aio %d" % len(sent)
            sent.append(await self._producer.send(self._topic, value, partition=len(sent) % PARTITIONS))
            self.values.add(value)
            await asyncio.sleep(0.005)
        await asyncio.gather(*sent)  # raises what the application is told of
        await self._producer.stop()

    async def end(self) -> set[bytes]:
        self._is_over = True
        await asyncio.wait_for(self._task, 2 * PATIENCE_S)
        return self.values


class AioConsuming:
    """As Consuming, by aiokafka."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
            session_timeout_ms=6_000, heartbeat_interval_ms=200,
        )  # fmt: skip
        self.seen: list[bytes] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._consumer.start()
        try:
            while True:
                for messages in (await self._consumer.getmany(timeout_ms=50)).values():
                    self.seen += [message.value for message in messages]
                with suppress(KafkaError):  # as above
                    await self._consumer.commit()
        finally:
            await self._consumer.stop()

    async def end(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_or_doubled_while_nodes_are_killed_restarted_and_drained(
    seed: int, tmp_path: Path, etcd: EtcdServer
) -> None:
    random = Random(seed)
    async with asyncio.timeout(8 * PATIENCE_S), kafka_nodes(tmp_path, etcd, seed) as nodes:
        await nodes.create(TOPIC, PARTITIONS)
        names = list(nodes.addresses)
        producing, aio_producing = Producing(nodes.bootstrap, TOPIC, 1_000), AioProducing(nodes.bootstrap, TOPIC)
        member, aio_member = Consuming(nodes, TOPIC, GROUP), AioConsuming(nodes.bootstrap, TOPIC, GROUP)
        await producing.more()
        for step in range(6):
            for partition in range(PARTITIONS):
                await nodes.move_to(TOPIC, partition, random.choice(names))
            await producing.more()
            victim = await nodes.owner_of(GROUP) if step % 2 else random.choice(names)
            other = next(name for name in names if name != victim)
            if step < 2:
                await nodes.servers[victim].kill()
                await asyncio.sleep(random.random())
                await nodes.servers[victim].start()
            elif step < 4:
                assert await nodes.servers[victim].stop() == 0
                await nodes.servers[victim].start()
            else:
                await nodes.drain(victim, other)
                await nodes.done(other, "PATCH", f"/mq/v1/brokers/{victim}", json={"draining": False})
            await producing.more(300)
        values = await producing.end() | await aio_producing.end()
        async with asyncio.timeout(PATIENCE_S):
            while not values <= {*member.seen, *aio_member.seen}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await member.end()
        await aio_member.end()
        assert await stored(nodes, TOPIC) == Counter(values)
        assert member.seen
        assert aio_member.seen


@pytest.mark.matrix
@pytest.mark.parametrize("name", clients.CLIENTS)
async def test_a_client_of_each_kind_while_partitions_move_and_nodes_are_killed_and_drained(
    name: str, tmp_path: Path, etcd: EtcdServer
) -> None:
    client = await clients._had(clients.CLIENTS[name])
    async with asyncio.timeout(8 * PATIENCE_S), kafka_nodes(tmp_path, etcd, 4) as nodes:
        await nodes.create(TOPIC, PARTITIONS)
        at: Any = SimpleNamespace(address=nodes.addresses["n1"])
        consuming = [*client.consume, *clients._options(client, at, TOPIC, GROUP)]
        members = [await clients.Running.begin(consuming, client.environment) for _ in range(2)]
        producer = await clients.Running.begin(
            [*client.produce, *clients._options(client, at, TOPIC)], client.environment
        )

        async def shared() -> bool:
            return await clients._owned(nodes.servers["n1"], GROUP) == [1, 2]

        async def write(count: int, begin: int) -> None:
            assert producer.process.stdin is not None
            for number in range(begin, begin + count):
                producer.process.stdin.write(b"%d\n" % number)
                if number % 25 == 24:
                    await producer.process.stdin.drain()
                    await asyncio.sleep(25 / clients.LINES_PER_S)

        async def fault(number: int) -> None:
            if number == 0:
                for partition in range(PARTITIONS):
                    await nodes.move_to(TOPIC, partition, "n2")
            elif number == 1:
                await nodes.servers["n2"].kill()
                await nodes.servers["n2"].start()
            elif number == 2:
                await nodes.drain("n1", "n2")
            else:
                assert await nodes.servers["n1"].stop() == 0
                await nodes.servers["n1"].start()

        try:
            await clients._until(shared, lambda: [member.errors for member in members])
            count = 500
            for number in range(4):
                await asyncio.gather(write(count, number * count), fault(number))
            assert producer.process.stdin is not None
            producer.process.stdin.close()
            await producer.ended_well()
            values = set(map(str, range(4 * count)))
            async with asyncio.timeout(clients.WAIT_S):
                while not values <= {line for member in members for line in member.lines}:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        finally:
            for running in (*members, producer):
                await running.kill()
        found = await stored(nodes, TOPIC)
        assert found.keys() == {value.encode() for value in values}
        assert set(found.values()) == {1}


@pytest.mark.matrix
async def test_librdkafka_s_c_tool_while_partitions_move_and_a_node_and_a_member_are_killed(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """The tool's idempotent producer ends well only when each of its numbers is acknowledged."""
    tool = await clients._had(lambda: rdkafka_performance(TOOLS))
    async with asyncio.timeout(8 * PATIENCE_S), kafka_nodes(tmp_path, etcd, 5) as nodes:
        await nodes.create(TOPIC, PARTITIONS)
        producing, consuming = clients.c_tool(tool, nodes.bootstrap, per_s=clients.NUMBERS_PER_S // 3)
        members = [await clients.Running.begin(consuming, None) for _ in range(2)]

        async def shared() -> bool:
            return await clients._owned(nodes.servers["n1"], GROUP) == [1, 2]

        async def sent(share: float) -> None:
            async with asyncio.timeout(clients.WAIT_S):
                while await nodes.record_count(TOPIC) < share * clients.NUMBERS:
                    assert producer.process.returncode is None, producer.errors
                    await asyncio.sleep(0.05)

        try:
            await clients._until(shared, lambda: [member.errors for member in members])
            producer = await clients.Running.begin(producing, None)
            try:
                await sent(0.1)
                for partition in range(PARTITIONS):
                    await nodes.move_to(TOPIC, partition, "n2")
                await _leaders_are_owners(nodes)
                await sent(0.4)
                await nodes.servers["n2"].kill()
                await members[1].kill()
                await nodes.servers["n2"].start()
                await sent(0.7)
                for partition in range(PARTITIONS):
                    await nodes.move_to(TOPIC, partition, f"n{partition + 1}")
                await _leaders_are_owners(nodes)
                assert producer.process.returncode is None, "it had sent all before the last move"
                await producer.ended_well()
            finally:
                await producer.kill()
            await clients.all_committed(nodes.servers["n1"], members, PARTITIONS)
        finally:
            for member in members:
                await member.kill()
        found = await stored(nodes, TOPIC)
        assert len(found) == clients.NUMBERS == found.total()  # each number once


@pytest.mark.matrix
async def test_strategies_go_by_rooms_of_members_of_every_kind_and_by_names_of_brokers(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    """The original's vector for consistent hash: partitions 0 to 7 of topic T, broker b, members c0, c1 and c2."""
    async with served(tmp_path, etcd, Random(31), 1, KafkaNodes) as nodes, AsyncExitStack() as members:
        assert isinstance(nodes, KafkaNodes)
        await nodes.start("b", MQ_ROOM="west")
        await nodes.done("n1", "PUT", "/mq/v1/topics/T", json={"partitions": 8})
        await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": 4})
        for partition in range(8):
            await nodes.done("n1", "POST", f"/mq/v1/topics/T/partitions/{partition}/move", json={"to": "b"})
        for partition in range(4):
            to = "n1" if partition < 2 else "b"
            await nodes.done("n1", "POST", f"/mq/v1/topics/{TOPIC}/partitions/{partition}/move", json={"to": to})
        await nodes.done("n1", "PATCH", "/mq/v1/groups/vector", json={"strategy": "consistent_hash"})
        await nodes.done("b", "PATCH", "/mq/v1/groups/near", json={"strategy": "machine_room_nearby"})
        client = await members.enter_async_context(mq_client.connect(nodes.servers["n1"].url))
        for name in ("c0", "c1", "c2"):
            await members.enter_async_context(client.group("vector").stream("T", member=name))
        assert await _shares(nodes, "vector", {"c0": [3, 4, 6], "c1": [1, 2, 5], "c2": [0, 7]}) == []

        socket = await members.enter_async_context(client.group("near").stream(TOPIC, member="socket", room="east"))
        v2 = {"Content-Type": "application/vnd.kafka.v2+json"}
        made = {"name": "rest", "client.rack": "west"}
        await nodes.done("n1", "POST", "/consumers/near", json=made, headers=v2)
        instance = "/consumers/near/instances/rest"
        await nodes.done("n1", "POST", f"{instance}/subscription", json={"topics": [TOPIC]}, headers=v2)
        assert await _shares(nodes, "near", {"socket": [0, 1], "rest": [2, 3]}) == []
        kafka: Any = confluent_kafka.Consumer({
            "bootstrap.servers": nodes.bootstrap, "group.id": "near", "client.id": "kafka", "client.rack": "west",
            "partition.assignment.strategy": "cooperative-sticky", "log_level": 0,
        })  # fmt: skip
        members.callback(kafka.close)
        kafka.subscribe([TOPIC])
        polling = asyncio.create_task(_poll(kafka))
        members.callback(polling.cancel)
        accepts = {"Accept": "application/vnd.kafka.binary.v2+json"}
        async with asyncio.timeout(PATIENCE_S):
            while (await nodes.ask("n1", "GET", f"{instance}/records", headers=accepts))[0] == 200:
                if sorted(len(numbers) for numbers in (await _seen(nodes, "near"))[0].values()) == [1, 1, 2]:
                    break
        shares, _ = await _seen(nodes, "near")
        assert shares.pop("socket") == [0, 1]
        assert sorted(shares.values()) == [[2], [3]]
        described = await nodes.done("n1", "GET", "/mq/v1/groups/near")
        assert {row["room"] for row in described["members"]} == {"east", "west"}
        await socket.aclose()
        alone = ["rooms without a member, whose partitions members of all rooms share: east"]
        async with asyncio.timeout(PATIENCE_S):  # until its node knows that it is gone, and has shared out anew
            while (seen := await _seen(nodes, "near"))[1] != alone or "socket" in seen[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        ran = await asyncio.to_thread(mq, "group", "describe", "near", url=nodes.servers["n1"].url)
        assert "warning: rooms without a member" in ran.stdout, ran.stderr


async def _poll(consumer: Any) -> None:
    while True:
        await asyncio.to_thread(consumer.poll, 0.1)


async def _seen(nodes: KafkaNodes, group: str) -> tuple[dict[str, list[int]], list[str]]:
    """The partitions of each member, and what the group is warned of."""
    described = await nodes.done("n1", "GET", f"/mq/v1/groups/{group}")
    shares = {row["member_id"]: sorted(one["partition"] for one in row["assigned"]) for row in described["members"]}
    return shares, described["warnings"]


async def _shares(nodes: KafkaNodes, group: str, expected: dict[str, list[int]]) -> list[str]:
    """Wait until members have what is expected; the warnings."""
    shares: dict[str, list[int]] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while shares != expected:
                await asyncio.sleep(0.05)
                shares, warnings = await _seen(nodes, group)
    assert shares == expected
    return warnings

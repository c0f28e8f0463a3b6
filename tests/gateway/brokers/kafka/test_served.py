"""`mq serve` with a real Apache Kafka as a second broker: partitions move there and back while clients send and read,
the server is killed, and everything that was acknowledged is there, once, at its offset.

Covers gateway.brokers.kafka.links, gateway.main.kafka_brokers and the moves of gateway.cluster.mover to and from Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from gateway.errors import NO_LIGHT_QUEUES
from loadtest.peers.servers import Server as Peer
from tests.e2e.server import SMALL_FILES, Server
from tests.gateway.cluster.etcd_server import PASSWORD, EtcdServer, etcd_metadata, free_port
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.matrix

TOPIC = "orders"
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
SENDERS = 4
MOVES = 6


class Node:
    """A node with Kafka as a broker, and its clients. What was acknowledged is in `sent`, by offset. Without etcd it is
    the only one."""

    def __init__(
        self, directory: Path, etcd: EtcdServer | None, endpoint: str, prefix: str, http: aiohttp.ClientSession
    ) -> None:
        self.name = "local" if etcd is None else "n1"
        self.settings = {
            **SMALL_FILES,
            "MQ_CLUSTER_KAFKA": f"kafka1=kafka://127.0.0.1:1,{endpoint}?replication=1&min_insync=1&prefix={prefix}",
            "MQ_KAFKA_ENABLED": "false",
        }
        if etcd is not None:
            self._join(directory, etcd)
        self.server = Server(directory / "data", self.settings, port=free_port())
        self._http = http
        self.sent: dict[int, str] = {}
        self.is_over = False
        self.lost = 0
        self.longest_s = 0.0

    def _join(self, directory: Path, etcd: EtcdServer) -> None:
        (directory / "secret").write_bytes(b"the secret of nodes with Kafka in tests")
        (directory / "password").write_text(PASSWORD)
        self.settings |= {
            "MQ_CLUSTER_NODE": self.name,
            "MQ_CLUSTER_INTERNAL_PORT": str(free_port()),
            "MQ_CLUSTER_ETCD": ",".join(etcd.config.endpoints),
            "MQ_CLUSTER_ETCD_USER": "root",
            "MQ_CLUSTER_ETCD_PASSWORD_FILE": str(directory / "password"),
            "MQ_CLUSTER_ETCD_CA_FILE": str(directory / "cert.pem"),
            "MQ_CLUSTER_PREFIX": f"kafka-{free_port()}/",
            "MQ_CLUSTER_SECRET_FILE": str(directory / "secret"),
        }

    async def ask(self, method: str, path: str, **sent: Any) -> tuple[int, Any]:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with self._http.request(method, self.server.url + path, timeout=timeout, **sent) as response:
            return response.status, orjson.loads(await response.read() or b"null")

    async def done(self, method: str, path: str, **sent: Any) -> Any:
        status, answer = await self.ask(method, path, **sent)
        assert status < 300, (path, answer)
        return answer

    async def move(self, to: str, partition: int = 0) -> Any:
        path = f"/mq/v1/topics/{TOPIC}/partitions/{partition}/move"
        return await self.done("POST", path, json={"to": to})

    async def send(self, value: str, headers: dict[str, str] = JSON, **more: object) -> tuple[int, Any]:
        record = {"value": value, **more}
        path = f"/topics/{TOPIC}/partitions/0"
        status, answer = await self.ask("POST", path, data=orjson.dumps({"records": [record]}), headers=headers)
        if status == 200 and (offset := answer["offsets"][0].get("offset")) is not None:
            assert offset not in self.sent, "an offset is given twice"
            self.sent[offset] = value
        return status, answer

    async def send_on(self, client: int) -> None:
        number = 0
        while not self.is_over:
            number += 1
            begun_s = time.monotonic()
            try:
                status, answer = await self.send(f"{client}-{number}")
            except (aiohttp.ClientError, TimeoutError, OSError):
                self.lost += 1
                await asyncio.sleep(0.02)
                continue
            self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
            if status != 200:
                assert status == 503, answer
                self.lost += 1

    async def goes_on(self) -> None:
        """Return when sends are acknowledged again."""
        count = len(self.sent)
        await until(lambda: len(self.sent) >= count + 20, pause_s=0.05)

    async def read_all(self, partition: int = 0) -> dict[int, str]:
        found: dict[int, str] = {}
        offset = 0
        while True:
            path = f"/topics/{TOPIC}/partitions/{partition}/records?offset={offset}&max_bytes=100000"
            answer = await self.done("GET", path, headers={"Accept": JSON["Content-Type"]})
            if not answer:
                return found
            for record in answer:
                assert record["offset"] == offset, "offsets are dense"
                found[offset] = record["value"]
                offset += 1

    async def check(self) -> None:
        """Everything acknowledged is there, at its offset, and nothing twice."""
        found = await self.read_all()
        assert self.sent.items() <= found.items()
        assert len(set(found.values())) == len(found), "a record twice"


@pytest.fixture
async def node(tmp_path: Path, etcd: EtcdServer, kafka: Peer, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with etcd_metadata(etcd), aiohttp.ClientSession() as http:
        (tmp_path / "cert.pem").write_bytes((etcd._directory / "cert.pem").read_bytes())
        own = Node(tmp_path, etcd, kafka.endpoint, f"{request.node.name[:20]}.", http)
        await own.server.start()
        try:
            await own.done("PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": 2})
            yield own
        finally:
            await own.server.end()


@pytest.fixture
async def only_node(tmp_path: Path, kafka: Peer, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with aiohttp.ClientSession() as http:
        own = Node(tmp_path, None, kafka.endpoint, f"{request.node.name[:20]}.", http)
        await own.server.start()
        try:
            await own.done("PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": 2})
            yield own
        finally:
            await own.server.end()


async def test_a_server_without_etcd_moves_a_partition_and_is_killed_meanwhile(only_node: Node) -> None:
    node = only_node
    await moves_under_load(node)
    await node.move("kafka1")
    node.is_over = False
    senders = [asyncio.create_task(node.send_on(SENDERS + client)) for client in range(SENDERS)]
    for number in range(4):
        await asyncio.sleep(0.5)
        moving = asyncio.create_task(node.move("local" if number % 2 else "kafka1"))
        await asyncio.sleep(0.005 * number)
        await node.server.kill()
        await asyncio.wait([moving])
        moving.exception()
        await node.server.start()
        await node.goes_on()
    node.is_over = True
    await asyncio.gather(*senders)
    await node.check()
    assert await node.server.stop() == 0
    await node.server.start()
    await node.check()


async def test_a_partition_moves_to_kafka_and_back_under_load(node: Node) -> None:
    await moves_under_load(node)


async def moves_under_load(node: Node) -> None:
    await node.send("before")
    senders = [asyncio.create_task(node.send_on(client)) for client in range(SENDERS)]
    for number in range(MOVES):
        await node.goes_on()  # a tenure without records is no segment
        route = await node.move("kafka1" if number % 2 == 0 else node.name)
        assert route["owner"] == ("kafka1" if number % 2 == 0 else node.name)
    await node.goes_on()
    node.is_over = True
    await asyncio.gather(*senders)
    await node.check()
    routes = await node.done("GET", f"/mq/v1/topics/{TOPIC}/routes")
    segments = routes["partitions"][0]["segments"]
    assert [one["broker"] for one in segments] == [node.name, "kafka1"] * (MOVES // 2) + [node.name]
    assert node.lost == 0, "a move is a slower send, and nothing else"
    print(f"\n{len(node.sent)} records, {MOVES} moves, the longest send {node.longest_s * 1000:.0f} ms")


async def test_a_server_that_is_killed_takes_its_partition_on_kafka_over_again(node: Node, kafka: Peer) -> None:
    await node.move("kafka1")
    senders = [asyncio.create_task(node.send_on(client)) for client in range(SENDERS)]
    for _ in range(2):
        await asyncio.sleep(0.5)
        await node.server.kill()
        await node.server.start()
        await node.goes_on()
    node.is_over = True
    await asyncio.gather(*senders)
    await node.check()
    await node.move("n1")
    await node.send("behind")
    await node.check()
    assert await node.server.stop() == 0
    await node.server.start()
    await node.check()


async def test_kafkas_own_clients_see_the_records_of_a_partition_that_is_there(
    node: Node, kafka: Peer, request: pytest.FixtureRequest
) -> None:
    await node.move("kafka1")
    for number in range(3):
        await node.send(f"v{number}", key=f"k{number}", headers=JSON)
    consumer = AIOKafkaConsumer(
        f"{request.node.name[:20]}.{TOPIC}", bootstrap_servers=kafka.endpoint, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        found: list[tuple[Any, Any]] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 3:
                message = await consumer.getone()
                assert message.timestamp_type == 1, "the time of the append"
                if message.headers:
                    assert message.headers == (("mq-fence", None),), "what mq puts there for itself can be told by it"
                else:
                    found.append((message.key, message.value))
    finally:
        await consumer.stop()
    assert found == [(b"k%d" % n, b'"v%d"' % n) for n in range(3)]


async def test_what_cannot_be_there_is_refused_and_nothing_is_stored(node: Node) -> None:
    await node.move("kafka1")
    status, answer = await node.send("x", JSON, queues=["user/1"])
    refusal = answer if status != 200 else answer["offsets"][0]
    assert refusal["error_code"] == 40963, answer
    assert await node.read_all() == {}
    brokers = await node.done("GET", "/mq/v1/brokers")
    assert {one["broker"]: one["kind"] for one in brokers["brokers"]} == {"n1": "embedded", "kafka1": "kafka"}
    status, _ = await node.ask("POST", f"/mq/v1/topics/{TOPIC}/partitions/0/takeover", json={"accept_offline": True})
    assert status == 409
    plan = await node.done("GET", "/mq/v1/brokers/n1/plan?draining=false")
    assert plan["moves"] == []


async def test_repeated_sends_are_recognised_over_moves_and_kills(node: Node) -> None:
    async def again(name: str) -> tuple[int, int]:
        """The offsets of a request with a key, and of a record with an id."""
        path, body = f"/topics/{TOPIC}/partitions/0", {"records": [{"value": f"{name}-key"}]}
        by_key = await node.done("POST", path, json=body, headers={**JSON, "Idempotency-Key": name})
        body = {"records": [{"value": f"{name}-id", "msg_id": name}]}
        by_id = await node.done("POST", path, json=body, headers=JSON)
        return by_key["offsets"][0]["offset"], by_id["offsets"][0]["offset"]

    seen = {"on-n1": await again("on-n1")}
    await node.move("kafka1")
    seen["on-kafka1"] = await again("on-kafka1")
    for step in ("nothing", "kill", "back", "kill", "there", "stop"):
        if step == "kill":
            await node.server.kill()
            await node.server.start()
        elif step == "stop":
            assert await node.server.stop() == 0
            await node.server.start()
        elif step in ("back", "there"):
            await node.move("n1" if step == "back" else "kafka1")
        for name, offsets in seen.items():
            assert await again(name) == offsets, (step, name)
        seen[step] = await again(f"new-{step}")
        assert await again(f"new-{step}") == seen.pop(step)
    values = list((await node.read_all()).values())
    assert len(values) == len(set(values)) == 2 * (2 + 5), "one for each that was sent: kill came twice, with one name"


async def test_requests_over_several_partitions_are_stored_once_while_one_of_them_moves(only_node: Node) -> None:
    node, done = only_node, 0

    async def send_both(client: int) -> None:
        nonlocal done
        while not node.is_over:
            done += 1
            records = [{"value": f"{client}-{done}-{partition}", "partition": partition} for partition in (0, 1)]
            await node.done("POST", f"/topics/{TOPIC}", data=orjson.dumps({"records": records * 20}), headers=JSON)

    senders = [asyncio.create_task(send_both(client)) for client in range(SENDERS)]
    for to in ("kafka1", "local", "kafka1", "local"):
        for partition in (0, 1):
            await asyncio.sleep(0.3)
            await node.move(to, partition)
    node.is_over = True
    await asyncio.gather(*senders)
    for partition in (0, 1):
        found = Counter((await node.read_all(partition)).values())
        assert len(found) == done
        assert set(found.values()) == {20}, "each request once"


async def test_an_idempotent_producer_of_kafka_goes_on_over_moves_and_kills(only_node: Node, tmp_path: Path) -> None:
    node = only_node
    await node.server.stop()
    port = free_port()
    kafka = {"MQ_KAFKA_ENABLED": "true", "MQ_KAFKA_PORT": str(port)}
    node.server = Server(tmp_path / "data", {**node.settings, **kafka}, port=free_port())
    await node.server.start()
    producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", enable_idempotence=True, linger_ms=1)
    await producer.start()
    try:
        for step in ("here", "move", "kill", "back", "move", "kill"):
            sending = [await producer.send(TOPIC, b'"%s-%d"' % (step.encode(), n), partition=0) for n in range(200)]
            if step == "kill":
                await node.server.kill()
                await node.server.start()
            elif step != "here":
                await node.move("local" if step == "back" else "kafka1")
            for number, sent in enumerate(await asyncio.gather(*sending)):
                assert node.sent.setdefault(sent.offset, f"{step}-{number}") == f"{step}-{number}"
    finally:
        await producer.stop()
    found = await node.read_all()
    assert found == node.sent, "all of it, once, where it was said to be"
    assert len(found) == 6 * 200


async def test_light_queues_are_refused_while_their_partition_is_on_kafka_and_go_on_when_it_is_back(
    tmp_path: Path, kafka: Peer, request: pytest.FixtureRequest
) -> None:
    """Sends, pulls and a device's offset; what waits for its time; a server that is killed meanwhile."""
    async with aiohttp.ClientSession() as http:
        node = Node(tmp_path, None, kafka.endpoint, f"{request.node.name[:20]}.", http)
        node.server = Server(tmp_path / "data", {**node.settings, "MQ_STORE_INDEX": "rocksdb"}, port=free_port())
        await node.server.start()
        try:
            await _light_queues_beside_kafka(node)
        finally:
            await node.server.end()


async def _light_queues_beside_kafka(node: Node) -> None:
    await node.done("PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": 1})
    path = f"/mq/v1/topics/{TOPIC}/queues/user%2F1"

    async def rows(**params: str) -> list[tuple[int, str]]:
        found = []
        while (answer := await node.done("GET", f"{path}/records", params=params))["records"]:  # of a segment each
            found += [(record["queue_offset"], record["value"]) for record in answer["records"]]
            params = {"cursor": answer["next_cursor"]}
        return found

    async def send(value: str, **more: object) -> int:
        status, answer = await node.send(value, queues=["user/1"], **more)
        return int(answer.get("error_code") or answer["offsets"][0].get("error_code") or status)

    assert [await send(f"before-{number}") for number in range(3)] == [200, 200, 200]
    due_s = time.time() + 8  # not before the move
    assert await send("waits", deliver_at=int(due_s * 1000)) == 200
    cursor = (await node.done("GET", f"{path}/records"))["next_cursor"]
    status, _ = await node.ask("PUT", f"{path}/offsets", params={"group": "phone", "cursor": cursor})
    assert status == 204
    await node.move("kafka1")
    await node.server.kill()
    await node.server.start()
    assert await send("refused") == NO_LIGHT_QUEUES
    for where in (f"{path}/records", path, f"{path}/sse", f"{path}/offsets?group=phone", path.rpartition("/")[0]):
        status, answer = await node.ask("GET", where)
        assert (status, answer["error_code"]) == (409, NO_LIGHT_QUEUES), where
    place = {"topic": TOPIC, "queue": "user/1", "partition": 0, "committed": 3}
    page = await node.done("GET", "/mq/v1/groups/phone/light-offsets")
    assert page["offsets"] == [{**place, "end_offset": None, "lag": None}]
    status, answer = await node.send("there")
    assert (status, answer["offsets"][0]["offset"]) == (200, 3), answer
    await asyncio.sleep(max(due_s - time.time(), 0) + 0.5)  # what waits is due, and waits on
    await node.move(node.name)
    assert await send("behind") == 200
    found: list[tuple[int, str]] = []
    for _ in range(round(PATIENCE_S / 0.1)):
        found = await rows()
        if len(found) == 5:
            break
        await asyncio.sleep(0.1)
    assert [value for _, value in found[:3]] == [f"before-{number}" for number in range(3)]
    assert sorted(value for _, value in found[3:]) == ["behind", "waits"]
    offsets = [offset for offset, _ in found]
    assert offsets[:3] == [0, 1, 2]
    assert offsets[3] > 3, "above all that it had, and above what Kafka has got"
    assert offsets[4] == offsets[3] + 1, "and dense from there"
    assert await rows(cursor=cursor) == await rows(group="phone") == found[3:], "who was there before goes on"
    page = await node.done("GET", "/mq/v1/groups/phone/light-offsets")
    assert page["offsets"] == [{**place, "end_offset": offsets[4] + 1, "lag": 2}], "records, not offsets"
    await node.check()


async def test_delayed_records_are_delivered_where_their_partition_is(node: Node) -> None:
    async def later(value: str, delay_ms: int) -> str:
        status, answer = await node.ask(
            "POST", f"/topics/{TOPIC}/partitions/0", headers=JSON,
            data=orjson.dumps({"records": [{"value": value, "delay_ms": delay_ms}]}),
        )  # fmt: skip
        assert status == 200, answer
        return str(answer["offsets"][0]["schedule_id"])

    before = [await later(f"before-{number}", 3_000) for number in range(20)]
    await node.move("kafka1")
    there = [await later(f"there-{number}", 2_000 + 100 * number) for number in range(20)]
    cancelled = there.pop()
    status, _ = await node.ask("DELETE", f"/mq/v1/schedules/{cancelled}")
    assert status in (200, 204)
    await node.server.kill()
    await node.server.start()

    for _ in range(round(PATIENCE_S / 0.2)):
        if len(await node.read_all()) >= len(before) + len(there):
            break
        await asyncio.sleep(0.2)
    await node.move("n1")
    await node.send("behind")
    found = list((await node.read_all()).values())
    assert sorted(found) == sorted(
        [f"before-{number}" for number in range(20)] + [f"there-{number}" for number in range(19)] + ["behind"]
    )
    routes = await node.done("GET", f"/mq/v1/topics/{TOPIC}/routes")
    assert "kafka1" in [one["broker"] for one in routes["partitions"][0]["segments"]], "they were delivered there"


async def test_new_topics_begin_on_the_default_broker_and_stay_there(
    node: Node, etcd: EtcdServer, kafka: Peer, tmp_path: Path
) -> None:
    await node.server.stop()
    settings = {**node.settings, "MQ_CLUSTER_DEFAULT_BROKER": "kafka2"}
    refused = Server(tmp_path / "data", settings, port=free_port())
    with pytest.raises(
        AssertionError, match=r"cluster\.default_broker: kafka2 is no broker of cluster\.kafka \(kafka1\)"
    ):
        await refused.start()
    settings["MQ_CLUSTER_DEFAULT_BROKER"] = "kafka1"
    first = node.server = Server(tmp_path / "data", settings, port=free_port())
    await first.start()
    (tmp_path / "second").mkdir()
    own = {"MQ_CLUSTER_NODE": "n2", "MQ_CLUSTER_INTERNAL_PORT": str(free_port())}
    second = Server(tmp_path / "second" / "data", {**settings, **own}, port=free_port())  # takes its share by itself
    await second.start()
    try:
        await node.done("PUT", "/mq/v1/topics/new", json={"partitions": 6})
        await node.done("PATCH", "/mq/v1/topics/new", json={"partitions": 8})
        owned: Counter[int] = Counter()
        for number, server in enumerate((node.server, second)):
            node.server = server
            routes = (await node.done("GET", "/mq/v1/topics/new/routes"))["partitions"]
            assert [len(one["segments"]) for one in routes] == [1] * 8
            owned.update(one["partition"] for one in routes if one["owner"] == "kafka1")  # each node: of what it owns
            records = [{"value": n, "partition": n} for n in range(8)]
            sent = await node.done("POST", "/topics/new", data=orjson.dumps({"records": records}), headers=JSON)
            assert [one.get("offset") for one in sent["offsets"]] == [number] * 8
        assert owned == dict.fromkeys(range(8), 1)
        routes = (await node.done("GET", f"/mq/v1/topics/{TOPIC}/routes"))["partitions"]
        assert {one["owner"] for one in routes} <= {"n1", "n2"}, "what was there is on nodes"
    finally:
        node.server = first
        await second.end()


async def test_a_topic_that_differs_is_refused_before_anything_moves(
    node: Node, kafka: Peer, request: pytest.FixtureRequest
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.endpoint)
    await admin.start()
    try:
        config = {"cleanup.policy": "compact"}
        name = f"{request.node.name[:20]}.{TOPIC}"
        await admin.create_topics([NewTopic(name, 1, 1, topic_configs=config)])
    finally:
        await admin.close()
    status, answer = await node.ask("POST", f"/mq/v1/topics/{TOPIC}/partitions/0/move", json={"to": "kafka1"})
    assert status == 409, answer
    assert "cleanup.policy is compact, and must be delete" in answer["message"]
    assert "message.timestamp.type is CreateTime" in answer["message"]
    await node.send("still here")
    await node.check()


async def test_a_topic_that_has_too_few_partitions_gets_more(
    node: Node, kafka: Peer, request: pytest.FixtureRequest
) -> None:
    await node.send("before")
    await node.move("kafka1")
    await node.done("PATCH", f"/mq/v1/topics/{TOPIC}", json={"partitions": 5})
    await node.move("kafka1", 4)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.endpoint)
    await admin.start()
    try:
        [found] = await admin.describe_topics([f"{request.node.name[:20]}.{TOPIC}"])
    finally:
        await admin.close()
    assert len(found["partitions"]) == 5


async def test_another_node_appends_through_the_owner_and_takes_over_when_it_is_gone(
    node: Node, etcd: EtcdServer, tmp_path: Path
) -> None:
    directory = tmp_path / "second"
    directory.mkdir()
    settings = {**node.settings, "MQ_CLUSTER_NODE": "n2", "MQ_CLUSTER_INTERNAL_PORT": str(free_port())}
    second = Server(directory / "data", {**settings, "MQ_CLUSTER_BALANCE": "false"}, port=free_port())
    await second.start()
    first = node.server
    try:
        await node.move("kafka1")
        await node.send("by n1")
        node.server = second
        await node.send("by n2")
        await node.check()
        await node.move("kafka1")  # it is there: nothing happens
        senders = [asyncio.create_task(node.send_on(client)) for client in range(SENDERS)]
        await first.kill()
        await node.goes_on()
        node.is_over = True
        await asyncio.gather(*senders)
        await node.check()
        await node.move("n2")
        await node.check()
    finally:
        node.server = first
        with suppress(ProcessLookupError):
            await second.end()

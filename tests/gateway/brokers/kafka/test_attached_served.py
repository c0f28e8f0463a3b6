"""`mq topic attach` with a real Apache Kafka: a topic that others write to in every codec, in transactions, with
tombstones and holes, read in every way that mq has, and sent to. What Kafka's own consumer sees is what mq shows.

Covers gateway.brokers.kafka.attached_links.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

import aiohttp
import confluent_kafka.admin
import orjson
import pytest
from pyspark.sql import SparkSession

from loadtest.peers.servers import Server as Peer
from tests.e2e.server import SMALL_FILES, Server
from tests.gateway.cli.command import mq
from tests.gateway.cluster.etcd_server import EtcdServer, free_port
from tests.gateway.cluster.test_served import served
from tests.spark.conftest import load, spark
from tests.waiting import PATIENCE_S, until

__all__ = ["spark"]  # a fixture

pytestmark = pytest.mark.matrix

TOPIC = "orders"
librdkafka: Any = confluent_kafka
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BINARY = "application/vnd.kafka.binary.v2+json"
JSON = "application/vnd.kafka.json.v2+json"
RECORDS = 50
HEADERS: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("null", None), ("h", b"2")]


class Seen(NamedTuple):
    """A record, as Kafka's consumer or mq shows it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


class World:
    """A server with a Kafka cluster, a topic there that others write to, and clients of both."""

    def __init__(self, directory: Path, endpoint: str, http: aiohttp.ClientSession) -> None:
        self.kafka_name = f"prod.{uuid4().hex[:8]}"
        self.setting = f"kafka1=kafka://{endpoint}?replication=1&min_insync=1"
        settings = {
            **SMALL_FILES,
            "MQ_CLUSTER_KAFKA": self.setting,
            "MQ_KAFKA_PORT": str(port := free_port()),
        }
        self.own_servers = {"bootstrap.servers": f"127.0.0.1:{port}"}
        self.server = Server(directory / "data", settings, port=free_port())
        self._servers = {"bootstrap.servers": endpoint}
        self._admin = librdkafka.admin.AdminClient(self._servers)
        self._http = http

    async def make(self, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        new = librdkafka.admin.NewTopic(self.kafka_name, partitions, 1, config=config or {})
        await asyncio.wrap_future(self._admin.create_topics([new])[self.kafka_name])

    async def grow(self, partitions: int) -> None:
        new = librdkafka.admin.NewPartitions(self.kafka_name, partitions)
        await asyncio.wrap_future(self._admin.create_partitions([new])[self.kafka_name])

    async def drop(self) -> None:
        await asyncio.wrap_future(self._admin.delete_topics([self.kafka_name])[self.kafka_name])

    def produce(self, rows: Sequence[tuple[bytes | None, bytes | None]], **settings: str) -> None:
        producer = librdkafka.Producer({**self._servers, "linger.ms": 20, **settings})
        for key, value in rows:
            producer.produce(self.kafka_name, key=key, value=value, partition=0, headers=HEADERS)
        producer.flush()

    def transactions(self, *commits: bool) -> None:
        producer = librdkafka.Producer({**self._servers, "transactional.id": uuid4().hex})
        producer.init_transactions()
        for commit in commits:
            producer.begin_transaction()
            for number in range(5):
                producer.produce(self.kafka_name, key=b"t", value=b'"%d of %d"' % (number, commit), partition=0)
            producer.flush()
            producer.commit_transaction() if commit else producer.abort_transaction()

    def consumed(self, *, by_mq: bool = False) -> list[Seen]:
        """All that Kafka's own consumer sees of partition 0, in Kafka or by mq's port for Kafka clients."""
        consumer = librdkafka.Consumer(
            {
                **(self.own_servers if by_mq else self._servers),
                "group.id": uuid4().hex,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([librdkafka.TopicPartition(TOPIC if by_mq else self.kafka_name, 0, 0)])
        found: list[Seen] = []
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "Kafka does not answer"
            if message.error() is not None:
                consumer.close()
                return found
            headers = [(name, value) for name, value in message.headers() or []]
            found.append(Seen(message.offset(), message.key(), message.value(), headers, message.timestamp()[1]))

    def committed(self, group: str) -> int:
        """The offset of a group in partition 0, as Kafka's tools see it."""
        asked = librdkafka.ConsumerGroupTopicPartitions(group, [librdkafka.TopicPartition(self.kafka_name, 0)])
        found = self._admin.list_consumer_group_offsets([asked])[group].result()
        offset: int = found.topic_partitions[0].offset
        return offset

    async def text(self, path: str) -> str:
        async with self._http.get(self.server.url + path) as response:
            assert response.status == 200
            return await response.text()

    async def ask(self, method: str, path: str, **sent: Any) -> tuple[int, Any]:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with self._http.request(method, self.server.url + path, timeout=timeout, **sent) as response:
            body = await response.read()
            return response.status, orjson.loads(body or b"null")

    async def done(self, method: str, path: str, **sent: Any) -> Any:
        status, answer = await self.ask(method, path, **sent)
        assert status < 300, (path, answer)
        return answer

    async def attach(self, **more: object) -> Any:
        sent = {"broker": "kafka1", "name": self.kafka_name, **more}
        return await self.done("POST", f"/mq/v1/topics/{TOPIC}/attach", json=sent)

    async def read(self, offset: int = 0, step_bytes: int = 3_000) -> list[Seen]:
        """All that mq shows of partition 0, from read to read."""
        found: list[Seen] = []
        while True:
            path = f"/topics/{TOPIC}/partitions/0/records?offset={offset}&max_bytes={step_bytes}"
            timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
            async with self._http.get(self.server.url + path, headers={"Accept": BINARY}, timeout=timeout) as response:
                rows = orjson.loads(await response.read())
                assert response.status == 200, rows
                if not rows:
                    assert response.headers["Mq-Next-Offset"] == response.headers["Mq-End-Offset"]
                    return found
                found += [
                    Seen(
                        row["offset"], _bytes(row["key"]), _bytes(row["value"]),
                        [(one["key"], _bytes(one["value"])) for one in row.get("headers", ())], row["timestamp"],
                    )
                    for row in rows
                ]  # fmt: skip
                assert int(response.headers["Mq-Next-Offset"]) == found[-1].offset + 1
                offset = found[-1].offset + 1


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.fixture
async def world(tmp_path: Path, kafka: Peer) -> AsyncIterator[World]:
    async with aiohttp.ClientSession() as http:
        own = World(tmp_path, kafka.endpoint, http)
        await own.server.start()
        try:
            yield own
        finally:
            await own.server.end()


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    """As `until`, for what has to be asked for."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def written_by_others(world: World) -> list[Seen]:
    """A topic with everything in it; what Kafka's consumer sees of it."""
    await world.make()
    for codec in CODECS:
        rows: list[tuple[bytes | None, bytes | None]] = [
            (b"%s-%d" % (codec.encode(), number), b'{"codec":"%s","n":%d}' % (codec.encode(), number))
            for number in range(RECORDS)
        ]
        rows += [(b"gone", None), (None, b'"no key"')]
        await asyncio.to_thread(partial(world.produce, rows, **{"compression.type": codec}))
    await asyncio.to_thread(world.transactions, True, False, True, False)
    seen: list[Seen] = await asyncio.to_thread(world.consumed)
    assert len(seen) == len(CODECS) * (RECORDS + 2) + 10
    return seen


async def test_every_reader_of_mq_sees_what_kafkas_consumer_sees(world: World) -> None:
    seen = await written_by_others(world)
    command = ("topic", "attach", TOPIC, "--broker", "kafka1", "--name", world.kafka_name, "--json")
    attached = await asyncio.to_thread(mq, *command, url=world.server.url)
    assert orjson.loads(attached.stdout)["attached"] == {
        "broker": "kafka1", "name": world.kafka_name, "mirror_groups": False, "sends": "at_least_once",
    }  # fmt: skip
    described = await asyncio.to_thread(mq, "topic", "describe", TOPIC, url=world.server.url)
    assert f"topic {world.kafka_name} of kafka1" in described.stdout
    deleted = await asyncio.to_thread(mq, "topic", "delete", TOPIC, "--yes", url=world.server.url)
    assert deleted.returncode == 2
    assert f"mq topic detach {TOPIC}" in deleted.stderr
    assert await world.read() == seen
    assert await world.read(step_bytes=1_000_000) == seen
    assert await asyncio.to_thread(partial(world.consumed, by_mq=True)) == seen
    for offset in (0, seen[-6].offset - 1, seen[-6].offset + 1, seen[-5].offset, seen[-1].offset):
        assert await world.read(offset) == [one for one in seen if one.offset >= offset]
    [bounds] = (await world.done("GET", f"/mq/v1/topics/{TOPIC}/offsets"))["partitions"]
    assert (bounds["beginning_offset"], bounds["end_offset"]) == (0, seen[-1].offset + 1)
    since = seen[len(seen) // 2].timestamp_ms
    [at] = (await world.done("GET", f"/mq/v1/topics/{TOPIC}/offsets?timestamp={since}"))["partitions"]
    assert at["offset_for_time"] == next(one.offset for one in seen if one.timestamp_ms >= since)
    assert await leased(world, "billing") == [(one.offset, one.key) for one in seen]
    assert await pushed(world, len(seen)) == [one.offset for one in seen]
    assert await streamed(world, len(seen)) == [one.offset for one in seen]
    assert await polled(world, len(seen)) == [one.offset for one in seen]


async def leased(world: World, group: str) -> list[tuple[int, bytes | None]]:
    """All that a group in queue mode receives, and acknowledges."""
    found: list[tuple[int, bytes | None]] = []
    while True:
        sent = {"topics": [TOPIC], "max_messages": 30, "start": "earliest", "wait_ms": 0}
        messages = (await world.done("POST", f"/mq/v1/groups/{group}/messages:receive", json=sent))["messages"]
        if not messages:
            break
        for one in messages:
            assert one["delivery_attempt"] == 1
            found.append((one["offset"], None if one["key"] is None else one["key"].encode()))
        receipts = [one["receipt"] for one in messages]
        await world.done("POST", f"/mq/v1/groups/{group}/messages:ack", json={"receipts": receipts})
    assert (await world.done("GET", f"/mq/v1/groups/{group}/lag"))["total_lag"] == 0
    return found


async def pushed(world: World, count: int) -> list[int]:
    """What a socket is sent, from the beginning."""
    offsets: list[int] = []
    async with world._http.ws_connect(world.server.url.replace("http", "ws") + "/ws/v1") as socket:
        await socket.send_json(
            {"op": "subscribe", "id": 1, "sub": "s", "topics": [TOPIC], "from": "earliest", "credit": 10_000}
        )
        while len(offsets) < count:
            frame = orjson.loads((await socket.receive(PATIENCE_S)).data)
            assert "error_code" not in frame, frame
            offsets += [one["offset"] for one in frame.get("messages", ())]
    return offsets


async def streamed(world: World, count: int) -> list[int]:
    """What Server-Sent Events bring, from the beginning."""
    offsets: list[int] = []
    url = f"{world.server.url}/mq/v1/topics/{TOPIC}/sse?from=earliest"
    async with world._http.get(url) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data:") and b'"offset"' in line:
                offsets.append(orjson.loads(line[5:])["offset"])
            if len(offsets) == count:
                return offsets
    raise AssertionError("the stream has ended")


async def polled(world: World, count: int) -> list[int]:
    """What a consumer instance of a group reads, and commits; its lag is 0 then."""
    made = await world.done(
        "POST", "/consumers/stream", data=orjson.dumps({"format": "binary", "auto.offset.reset": "earliest"}),
        headers={"Content-Type": "application/vnd.kafka.v2+json"},
    )  # fmt: skip
    path = f"/consumers/stream/instances/{made['instance_id']}"
    await world.done(
        "POST", f"{path}/subscription", data=orjson.dumps({"topics": [TOPIC]}),
        headers={"Content-Type": "application/vnd.kafka.v2+json"},
    )  # fmt: skip
    offsets: list[int] = []
    while len(offsets) < count:
        records = await world.done("GET", f"{path}/records?max_bytes=5000", headers={"Accept": BINARY})
        offsets += [one["offset"] for one in records]
    await world.done("POST", f"{path}/offsets")
    assert (await world.done("GET", "/mq/v1/groups/stream/lag"))["total_lag"] == 0
    await world.done("DELETE", path)
    return offsets


async def test_spark_sees_what_kafkas_consumer_sees(world: World, spark: SparkSession) -> None:
    seen = await written_by_others(world)
    await world.attach()
    rows = await asyncio.to_thread(
        lambda: load(spark, world.server.url, subscribe=TOPIC, includeHeaders="true").collect()
    )
    found = [
        (row.offset, _raw(row.key), _raw(row.value), [(one.key, _raw(one.value)) for one in row.headers or ()])
        for row in sorted(rows, key=lambda row: row.offset)
    ]
    assert found == [one[:4] for one in seen]
    reader = spark.read.format("mq").options(url=world.server.url, subscribe=TOPIC, valueFormat="json")
    frame = reader.schema("codec STRING, n BIGINT").load().where("codec = 'snappy'").agg({"n": "sum"})
    counted = await asyncio.to_thread(frame.collect)
    assert counted[0][0] == sum(range(RECORDS))


def _raw(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


async def test_a_compacted_topic_is_read_around_its_holes(world: World) -> None:
    compacted = {
        "cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "1000", "delete.retention.ms": "0",
    }  # fmt: skip
    await world.make(config=compacted)
    rows: list[tuple[bytes | None, bytes | None]] = [(b"%d" % (number % 40), b"%d" % number) for number in range(400)]
    for first in range(0, 400, 50):
        await asyncio.to_thread(
            world.produce, rows[first : first + 50], **{"compression.type": CODECS[first // 50 % 5]}
        )
        await asyncio.sleep(0.6)  # its segment is closed
    await asyncio.to_thread(world.produce, [(b"last", b"x")])
    await world.attach()
    before = await world.read()

    async def is_compacted() -> bool:
        return len(await asyncio.to_thread(world.consumed)) < 200

    await until_true(is_compacted)
    seen: list[Seen] = await asyncio.to_thread(world.consumed)
    assert len(seen) >= 41
    assert seen[-1].offset == 400
    found = await world.read(step_bytes=500)
    assert found == seen or found == await asyncio.to_thread(world.consumed), "it is still being compacted"
    assert {one.offset for one in found} <= {one.offset for one in before}
    for offset in range(0, 401, 57):
        assert await world.read(offset) == [one for one in found if one.offset >= offset]
    assert await leased(world, "billing") == [(one.offset, one.key) for one in found]


async def test_kafkas_consumer_sees_what_mq_sends(world: World) -> None:
    await world.make()
    await world.attach()
    await asyncio.to_thread(world.produce, [(b"other", b"1")])
    records = [
        {"key": "k", "value": {"a": 1}, "headers": [{"key": "h", "value": "MQ=="}, {"key": "null", "value": None}]},
        {"key": None, "value": None},
    ]
    path = f"/topics/{TOPIC}/partitions/0"
    sent = {"data": orjson.dumps({"records": records}), "headers": {"Content-Type": JSON, "Idempotency-Key": "once"}}
    for base in (1, 3):  # ids are not in force
        answer = await world.done("POST", path, **sent)
        assert [one["offset"] for one in answer["offsets"]] == [base, base + 1]
    delayed = {"records": [{"key": "d", "value": "later", "delay_ms": 300}]}
    await world.done("POST", path, data=orjson.dumps(delayed), headers={"Content-Type": JSON})

    async def are_all_there() -> bool:
        return len(await asyncio.to_thread(world.consumed)) == 6

    await until_true(are_all_there)
    seen: list[Seen] = await asyncio.to_thread(world.consumed)
    assert [name for name, _ in seen[-1].headers] == ["mq-deliver-at", "mq-schedule-id"], "mq's clients do not see them"
    shown = [*seen[:-1], seen[-1]._replace(headers=[])]
    assert [one[1:4] for one in shown[1:]] == [
        (b"k", b'{"a":1}', [("h", b"1"), ("null", None)]),
        (None, None, []),
        (b"k", b'{"a":1}', [("h", b"1"), ("null", None)]),
        (None, None, []),
        (b"d", b'"later"', []),
    ]
    assert await world.read() == shown
    status, refused = await world.ask(
        "POST", f"/mq/v1/topics/{TOPIC}/messages?partition=0", data=b"x", headers={"If-Match": '"3"'}
    )
    assert (status, refused["error_code"]) == (409, 40964), refused
    large = orjson.dumps({"records": [{"value": base64.b64encode(os.urandom(1_500_000)).decode()}]})
    status, refused = await world.ask("POST", path, data=large, headers={"Content-Type": JSON})
    assert (status, refused["error_code"]) == (413, 41350), refused
    assert len(await asyncio.to_thread(world.consumed)) == 6


async def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(world: World) -> None:
    await world.make()
    await world.attach()
    sent: dict[int, str] = {}
    is_over = False

    async def send_on(client: int) -> None:
        number = 0
        while not is_over:
            number += 1
            value = f"{client}-{number}"
            body = orjson.dumps({"records": [{"value": value}]})
            try:
                status, answer = await world.ask(
                    "POST", f"/topics/{TOPIC}/partitions/0", data=body, headers={"Content-Type": JSON}
                )
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(0.02)
                continue
            if status == 200:
                assert answer["offsets"][0]["offset"] not in sent
                sent[answer["offsets"][0]["offset"]] = value
            else:
                assert status == 503, answer

    async def goes_on() -> None:
        count = len(sent)
        await until(lambda: len(sent) >= count + 20, pause_s=0.05)

    senders = [asyncio.create_task(send_on(client)) for client in range(4)]
    for _ in range(3):
        await goes_on()
        await world.server.kill()
        await world.server.start()
    await goes_on()
    is_over = True
    await asyncio.gather(*senders)
    seen: list[Seen] = await asyncio.to_thread(world.consumed)
    stored = {one.offset: orjson.loads(one.value or b"") for one in seen}
    assert sent.items() <= stored.items()
    assert await world.read() == seen
    assert len(await leased(world, "billing")) == len(seen)


async def test_retries_and_dead_letters_stay_in_mq_and_the_group_goes_on(world: World) -> None:
    await world.make()
    await asyncio.to_thread(world.produce, [(b"k", b'"%d"' % number) for number in range(10)])
    await world.attach()
    group = "/mq/v1/groups/billing"
    received: list[tuple[int, int]] = []
    await world.done("PATCH", group, json={"max_attempts": 2, "backoff": "1ms"})
    async with asyncio.timeout(PATIENCE_S):
        while len(received) < 11:
            sent = {"topics": [TOPIC], "start": "earliest", "wait_ms": 100}
            messages = (await world.done("POST", f"{group}/messages:receive", json=sent))["messages"]
            for one in messages:
                received.append((one["offset"], one["delivery_attempt"]))
                verb = "nack" if one["offset"] == 4 else "ack"
                await world.done("POST", f"{group}/messages:{verb}", json={"receipts": [one["receipt"]]})
    assert sorted(received) == sorted([*((offset, 1) for offset in range(10)), (4, 2)])
    letters: list[dict[str, object]] = []

    async def is_dead() -> bool:
        letters[:] = (await world.done("GET", f"{group}/dlq"))["messages"]
        return bool(letters)

    await until_true(is_dead)
    assert [(one["topic"], one["topic_offset"], one["value"]) for one in letters] == [(TOPIC, 4, "4")]
    assert len(await asyncio.to_thread(world.consumed)) == 10


async def test_lag_tools_of_kafka_see_groups_of_mq(world: World) -> None:
    await world.make()
    await asyncio.to_thread(world.produce, [(b"k", b'"%d"' % number) for number in range(10)])
    await asyncio.to_thread(world.transactions, True)
    await world.attach(mirror_groups=True)
    group = f"billing-{world.kafka_name}"
    assert len(await leased(world, group)) == 15

    async def is_told() -> bool:
        return await asyncio.to_thread(world.committed, group) == 16  # behind the mark of the transaction

    await until_true(is_told)
    metrics = await world.text("/metrics")
    assert 'mq_mirrored_commits_total{outcome="refused"} 0.0' in metrics
    assert "mq_mirror_behind 0.0" in metrics


async def test_partitions_that_come_and_a_topic_that_goes_in_kafka(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.make()
    await asyncio.to_thread(world.produce, [(b"k", b'"1"')])
    await world.attach()
    await world.grow(3)

    async def has_grown() -> bool:
        count: int = (await world.done("GET", f"/mq/v1/topics/{TOPIC}"))["partitions"]
        return count == 3

    await until_true(has_grown)
    body = {"data": orjson.dumps({"records": [{"value": "new"}]}), "headers": {"Content-Type": JSON}}
    answer = await world.done("POST", f"/topics/{TOPIC}/partitions/2", **body)
    assert answer["offsets"][0]["offset"] == 0
    await world.drop()
    refused: dict[str, object] = {}

    async def is_gone() -> bool:
        path = f"/topics/{TOPIC}/partitions/0/records?offset=0"
        status, answer = await world.ask("GET", path, headers={"Accept": JSON})
        refused.update(answer if status == 502 else {})
        return status == 502

    await until_true(is_gone)
    assert refused["error_code"] == 50250
    status, refused = await world.ask("POST", f"/topics/{TOPIC}/partitions/0", **body)
    assert (status, refused["error_code"]) == (502, 50250), refused
    detached = await asyncio.to_thread(mq, "topic", "detach", TOPIC, "--json", url=world.server.url)
    assert orjson.loads(detached.stdout) == {"topic": TOPIC, "detached": True}
    status, refused = await world.ask(
        "POST", f"/mq/v1/topics/{TOPIC}/attach", json={"broker": "kafka1", "name": world.kafka_name}
    )
    assert (status, refused["error_code"]) == (502, 50250), refused
    assert (await world.ask("GET", f"/mq/v1/topics/{TOPIC}"))[0] == 404
    assert await world.server.stop() == 0


async def test_nodes_and_a_gateway_without_a_store_all_serve_it_and_one_may_go(
    world: World, etcd: EtcdServer, tmp_path: Path
) -> None:
    """n1 and n2 know the Kafka cluster; the gateway reaches it through either."""
    await world.make()
    await asyncio.to_thread(world.produce, [(b"k", b'"0"')])
    async with served(tmp_path, etcd, Random(1), 0) as nodes:
        for name in ("n1", "n2"):
            await nodes.start(name, MQ_CLUSTER_KAFKA=world.setting)
        await nodes.start("g1", joined=True)

        async def send(name: str, value: str) -> int:
            body = {"records": [{"value": value}]}
            answer = await nodes.done(
                name, "POST", f"/topics/{TOPIC}/partitions/0", json=body, headers={"Content-Type": JSON}
            )
            offset: int = answer["offsets"][0]["offset"]
            return offset

        async def read(name: str, offset: int, wait_ms: int = 0) -> list[str]:
            path = f"/topics/{TOPIC}/partitions/0/records?offset={offset}&timeout={wait_ms}&format=json"
            return [one["value"] for one in await nodes.done(name, "GET", path)]

        sent = {"broker": "kafka1", "name": world.kafka_name}
        made = await nodes.done("g1", "POST", f"/mq/v1/topics/{TOPIC}/attach", json=sent)
        assert made["attached"]["name"] == world.kafka_name
        for number, name in enumerate(("n1", "n2", "g1"), 1):
            assert await send(name, str(number)) == number
        for name in ("n1", "n2", "g1"):
            assert await read(name, 0) == ["0", "1", "2", "3"]
        waiting = asyncio.create_task(read("g1", 4, wait_ms=20_000))
        await asyncio.sleep(0.5)
        await send("n2", "4")
        assert await waiting == ["4"]
        for gone, left in (("n1", "n2"), ("n2", "n1")):
            await nodes.servers[gone].kill()

            async def is_served() -> bool:
                path = f"/topics/{TOPIC}/partitions/0/records?offset=0&format=json"
                status, _ = await nodes.ask("g1", "GET", path)
                return status == 200

            await until_true(is_served)
            assert (await read("g1", 4))[:1] == ["4"]
            await send("g1", f"without {gone}")
            assert (await read(left, 5))[-1] == f"without {gone}"
            await nodes.servers[gone].start()
        await nodes.done("n1", "POST", f"/mq/v1/topics/{TOPIC}/detach")
        for name in ("n1", "n2", "g1"):
            assert (await nodes.ask(name, "GET", f"/mq/v1/topics/{TOPIC}"))[0] == 404
    assert len(await asyncio.to_thread(world.consumed)) == 7

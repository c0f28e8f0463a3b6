"""`mq topic attach` with a real Apache Kafka: a topic that others write to in every codec, in transactions, with
tombstones and holes, read in every way that mq has, and sent to. What Kafka's own consumer sees is what mq shows.

Covers gateway.brokers.kafka.attached_links.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import aiohttp
import orjson
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from loadtest.peers.fetch import TOOLS
from loadtest.peers.kafka import Kafka
from loadtest.peers.peer import Unavailable
from loadtest.peers.servers import Server as Peer
from tests.e2e.server import SMALL_FILES, Server
from tests.gateway.cluster.etcd_server import free_port
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.matrix

TOPIC = "orders"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BINARY = "application/vnd.kafka.binary.v2+json"
JSON = "application/vnd.kafka.json.v2+json"
RECORDS = 50
HEADERS: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("null", None), ("h", b"2")]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    peer = Kafka()
    with ExitStack() as stack:
        try:
            peer.prepare(TOOLS)
        except Unavailable as error:
            pytest.skip(str(error))
        yield stack.enter_context(peer.serve(TOOLS, tmp_path_factory.mktemp("kafka"), peer.levels[0]))


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
        settings = {
            **SMALL_FILES,
            "MQ_CLUSTER_KAFKA": f"kafka1=kafka://{endpoint}?replication=1&min_insync=1",
            "MQ_KAFKA_ENABLED": "false",
        }
        self.server = Server(directory / "data", settings, port=free_port())
        self._servers = {"bootstrap.servers": endpoint}
        self._admin = AdminClient(self._servers)
        self._http = http

    async def make(self, partitions: int = 1, **config: str) -> None:
        new = NewTopic(self.kafka_name, partitions, 1, config=config)
        await asyncio.wrap_future(self._admin.create_topics([new])[self.kafka_name])

    async def grow(self, partitions: int) -> None:
        new = NewPartitions(self.kafka_name, partitions)
        await asyncio.wrap_future(self._admin.create_partitions([new])[self.kafka_name])

    async def drop(self) -> None:
        await asyncio.wrap_future(self._admin.delete_topics([self.kafka_name])[self.kafka_name])

    def produce(self, rows: Sequence[tuple[bytes | None, bytes | None]], **settings: str) -> None:
        producer = Producer({**self._servers, "linger.ms": 20, **settings})
        for key, value in rows:
            producer.produce(self.kafka_name, key=key, value=value, partition=0, headers=HEADERS)
        producer.flush()

    def transactions(self, *commits: bool) -> None:
        producer = Producer({**self._servers, "transactional.id": uuid4().hex})
        producer.init_transactions()
        for commit in commits:
            producer.begin_transaction()
            for number in range(5):
                producer.produce(self.kafka_name, key=b"t", value=b'"%d of %d"' % (number, commit), partition=0)
            producer.flush()
            producer.commit_transaction() if commit else producer.abort_transaction()

    def consumed(self) -> list[Seen]:
        """All that Kafka's own consumer sees of partition 0."""
        consumer = Consumer(
            {
                **self._servers,
                "group.id": uuid4().hex,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(self.kafka_name, 0, 0)])
        found: list[Seen] = []
        while True:
            message: Message | None = consumer.poll(PATIENCE_S)
            assert message is not None, "Kafka does not answer"
            if message.error() is not None:
                consumer.close()
                return found
            headers = [(name, value) for name, value in message.headers() or []]
            found.append(Seen(message.offset(), message.key(), message.value(), headers, message.timestamp()[1]))

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
    attached = await world.attach()
    assert attached["attached"] == {
        "broker": "kafka1", "name": world.kafka_name, "mirror_groups": False, "sends": "at_least_once",
    }  # fmt: skip
    assert await world.read() == seen
    assert await world.read(step_bytes=1_000_000) == seen
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

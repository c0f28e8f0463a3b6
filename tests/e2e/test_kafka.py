"""Kafka's own clients against a real server: confluent-kafka (librdkafka in Python) and kcat (an old librdkafka)."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import aiokafka
import confluent_kafka
import jwt as pyjwt
import kafka as kafka_python
import pytest
import pytest_asyncio
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from gateway.auth.config import AuthConfig
from gateway.auth.tokens import change_tokens, mint
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.apis import LIST_OFFSETS, METADATA, OFFSET_DELETE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from loadtest.certificates import write_certificate
from loadtest.peers.fetch import TOOLS, program
from loadtest.peers.kafka import VERSION as JAVA_VERSION
from loadtest.peers.kafka import Kafka as ApacheKafka
from loadtest.peers.peer import Unavailable
from loadtest.peers.servers import free_port
from tests.e2e.kafka_wire import Wire, wire
from tests.e2e.server import DIES_WITH_US, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one server for those that do it no harm

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAIT_S = 30.0
SECRET = b"s" * 32
LEEWAY_MS = 1_000


class Kafka:
    """A server, and Kafka's clients of it."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.address = f"127.0.0.1:{port}"
        self.admin: Any = AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    async def create(self, topic: str, partitions: int, **config: str) -> None:
        new = NewTopic(topic, partitions, 1, config={name.replace("_", "."): value for name, value in config.items()})
        await asyncio.to_thread(self.admin.create_topics([new])[topic].result, WAIT_S)

    def producer(self, **settings: Any) -> Any:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return confluent_kafka.Producer({"bootstrap.servers": self.address, "log_level": 0, **given})

    def send(self, topic: str, values: list[bytes], **settings: Any) -> list[tuple[int, int]]:
        """Where each record went, in the order of acknowledgement."""
        producer = self.producer(**settings)
        placed: list[tuple[int, int]] = []

        def acknowledged(error: object, message: Any) -> None:
            assert error is None, error
            placed.append((message.partition(), message.offset()))

        for value in values:
            producer.produce(topic, key=value, value=value, on_delivery=acknowledged)
        assert producer.flush(WAIT_S) == 0
        return placed

    @contextmanager
    def consumer(self, group: str, topic: str, **settings: Any) -> Iterator[Any]:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address, "log_level": 0, "group.id": group, "auto.offset.reset": "earliest",
                "enable.auto.commit": False, "session.timeout.ms": 6000, "heartbeat.interval.ms": 300, **given,
            }
        )  # fmt: skip
        consumer.subscribe([topic])
        try:
            yield consumer
        finally:
            consumer.close()


def _values(consumer: Any, count: int, timeout_s: float = WAIT_S) -> list[bytes]:
    found: list[bytes] = []
    until = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < until:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found.append(message.value())
    return found


def _assigned(consumers: list[Any], count: int) -> list[set[int]]:
    """The partitions of each consumer, once they have so many together and none twice."""
    until = time.monotonic() + WAIT_S
    while True:
        for consumer in consumers:
            consumer.poll(0.1)
        shares = [{one.partition for one in consumer.assignment()} for consumer in consumers]
        if all(shares) and sum(map(len, shares)) == count == len(set().union(*shares)):
            return shares
        assert time.monotonic() < until, shares


@asynccontextmanager
async def serving(
    directory: Path, settings: dict[str, str] | None = None, *, under: Sequence[str] = ()
) -> AsyncIterator[Kafka]:
    """A server of its own."""
    port = free_port()
    server = Server(directory / "data", {"MQ_KAFKA_PORT": str(port), **(settings or {})}, under=under)
    await server.start()
    try:
        yield Kafka(server, port)
    finally:
        await server.end()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kafka(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Kafka]:
    """Shared: every test has topics and groups of its own."""
    async with serving(tmp_path_factory.mktemp("kafka")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def own_kafka(tmp_path: Path) -> AsyncIterator[Kafka]:
    """For a test that kills it."""
    async with serving(tmp_path) as made:
        yield made


async def test_every_codec_goes_in_and_comes_out_the_same_for_kafka_and_for_http(kafka: Kafka) -> None:
    await kafka.create("orders", 1)
    sent = {codec: [f"{codec} {number}".encode() for number in range(300)] for codec in CODECS}
    for codec, values in sent.items():
        await asyncio.to_thread(
            kafka.send, "orders", values, compression_type=codec, linger_ms=20, enable_idempotence=codec == "zstd"
        )
    everything = [value for values in sent.values() for value in values]

    def consume() -> list[bytes]:
        with kafka.consumer("all", "orders") as consumer:
            return _values(consumer, len(everything))

    assert await asyncio.to_thread(consume) == everything
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{kafka.server.url}/mq/v1/topics/orders/partitions/0/messages/899") as answer,
    ):
        assert await answer.read() == sent["snappy"][-1]


async def test_kafka_and_http_share_offsets_and_topics(kafka: Kafka) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{kafka.server.url}/mq/v1/topics/shared", json={"partitions": 1}) as answer:
            assert answer.status == 201
        async with session.post(
            f"{kafka.server.url}/topics/shared",
            json={"records": [{"value": {"n": 1}}]},
            headers={"Content-Type": "application/vnd.kafka.json.v2+json"},
        ) as answer:
            assert answer.status == 200
        assert await asyncio.to_thread(kafka.send, "shared", [b"two"]) == [(0, 1)]

        def consume() -> list[bytes]:
            with kafka.consumer("both", "shared") as consumer:
                values = _values(consumer, 2)
                consumer.commit(asynchronous=False)
                return values

        assert await asyncio.to_thread(consume) == [b'{"n":1}', b"two"]
        async with session.get(f"{kafka.server.url}/mq/v1/groups/both/lag") as answer:
            [lag] = (await answer.json())["partitions"]
            assert (lag["committed"], lag["lag"]) == (2, 0)


MEMBER = """
import sys
import confluent_kafka

consumer = confluent_kafka.Consumer(
    {"bootstrap.servers": sys.argv[1], "group.id": "team", "session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
)
consumer.subscribe(["work"])
while True:
    consumer.poll(0.1)
"""


@pytest.mark.matrix
async def test_a_leaving_member_s_partitions_go_to_the_others(kafka: Kafka) -> None:
    await kafka.create("left", 6)

    def run() -> None:
        with kafka.consumer("leavers", "left") as first:
            with kafka.consumer("leavers", "left") as second:
                shares = _assigned([first, second], 6)
                assert [len(share) for share in shares] == [3, 3]
            _assigned([first], 6)

    await asyncio.to_thread(run)


@pytest.mark.matrix
async def test_a_killed_member_s_partitions_go_to_the_others_when_its_session_ends(kafka: Kafka) -> None:
    await kafka.create("work", 6)

    def owned(consumer: Any) -> int:
        consumer.poll(0.1)
        return len(consumer.assignment())

    def run() -> None:
        with kafka.consumer("team", "work") as first:
            _assigned([first], 6)
            second = subprocess.Popen([*DIES_WITH_US, sys.executable, "-c", MEMBER, kafka.address])
            try:
                until = time.monotonic() + WAIT_S
                while owned(first) != 3:
                    assert time.monotonic() < until
            finally:
                second.kill()
                second.wait()
            killed_s = time.monotonic()
            _assigned([first], 6)
            # The session is as long as it asked for: what it owned is nobody else's before.
            assert time.monotonic() - killed_s > 5

    await asyncio.to_thread(run)


@pytest.mark.matrix
async def test_cooperative_members_hand_over_without_giving_up_the_rest(kafka: Kafka) -> None:
    await kafka.create("handed", 6)
    settings = {"partition_assignment_strategy": "cooperative-sticky"}

    def run() -> None:
        with kafka.consumer("sticky", "handed", **settings) as first:
            _assigned([first], 6)
            with kafka.consumer("sticky", "handed", **settings) as second:
                shares = _assigned([first, second], 6)
                assert [len(share) for share in shares] == [3, 3]
            _assigned([first], 6)

    await asyncio.to_thread(run)


async def test_a_kafka_and_a_websocket_member_never_own_one_partition_at_once(kafka: Kafka) -> None:
    await kafka.create("mixed", 4)
    owned_by_socket: set[int] = set()

    with kafka.consumer("mixed", "mixed") as consumer:
        await asyncio.to_thread(_assigned, [consumer], 4)
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{kafka.server.url}/ws/v1", protocols=["mq.v1.json"]) as socket_,
        ):
            await socket_.send_json({"op": "hello", "id": 1})
            await socket_.send_json(
                {"op": "subscribe", "id": 2, "sub": "s", "mode": "stream", "group": "mixed", "topics": ["mixed"],
                 "credit": 100}
            )  # fmt: skip
            until = time.monotonic() + WAIT_S
            while True:
                await asyncio.to_thread(consumer.poll, 0.1)
                try:
                    message = json.loads((await socket_.receive(timeout=0.05)).data)
                except TimeoutError:
                    message = {}
                if message.get("op") == "assigned":
                    owned_by_socket |= {number for numbers in message["partitions"].values() for number in numbers}
                own = {one.partition for one in consumer.assignment()}
                # What the socket has, the Kafka member has given up before.
                assert not own & owned_by_socket, (own, owned_by_socket)
                if len(own) == len(owned_by_socket) == 2:
                    break
                assert time.monotonic() < until, (own, owned_by_socket)
        await asyncio.to_thread(_assigned, [consumer], 4)  # the socket is gone, and the leader plans again


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(own_kafka: Kafka) -> None:
    await own_kafka.create("kept", 2)
    producer = own_kafka.producer(enable_idempotence=True, linger_ms=1)
    acknowledged: dict[bytes, tuple[int, int]] = {}

    def on_delivery(error: object, message: Any) -> None:
        if error is None:
            acknowledged[message.value()] = (message.partition(), message.offset())

    sent = 0
    for round_ in range(3):
        until = time.monotonic() + 0.4
        while time.monotonic() < until:
            producer.produce("kept", value=str(sent).encode(), on_delivery=on_delivery)
            sent += 1
            producer.poll(0)
            if sent % 200 == 0:
                await asyncio.sleep(0.01)
        if round_ < 2:
            await own_kafka.server.kill()
            await own_kafka.server.start()
    assert await asyncio.to_thread(producer.flush, WAIT_S) == 0
    assert len(acknowledged) == sent

    def consume() -> list[bytes]:
        with own_kafka.consumer("after", "kept") as consumer:
            return _values(consumer, sent) + _values(consumer, 1, 0.5)

    found = Counter(await asyncio.to_thread(consume))
    assert found == Counter(
        acknowledged.keys()
    )  # once each: an idempotent producer's repeats are known after a crash, too


@pytest.mark.embedded("offsets are looked up by the time of the append on a Kafka cluster")
async def test_offsets_by_the_records_own_time_whatever_it_is(kafka: Kafka) -> None:
    """A day ahead, and behind; the latest time of all (KIP-734), which is the first one's of two, and no tiers."""
    await kafka.create("dated", 1)
    now_ms, day_ms = int(time.time() * 1000), 86_400_000
    dates_ms = [now_ms, now_ms + day_ms, now_ms - day_ms, now_ms + 1, now_ms + day_ms, 5]

    def run() -> None:
        producer = kafka.producer()
        for date_ms in dates_ms:
            producer.produce("dated", b"x", partition=0, timestamp=date_ms)
            assert producer.flush(WAIT_S) == 0
        spec = confluent_kafka.admin.OffsetSpec
        place = confluent_kafka.TopicPartition("dated", 0)

        def found(wanted: Any) -> tuple[int, int]:
            result = kafka.admin.list_offsets({place: wanted})[place].result(WAIT_S)
            return result.offset, result.timestamp

        for time_ms in (4, now_ms - 1, now_ms + 1, now_ms + 60_000, now_ms + day_ms):
            first = next(at for at, date_ms in enumerate(dates_ms) if date_ms >= time_ms)
            assert found(spec.for_timestamp(time_ms)) == (first, dates_ms[first]), time_ms - now_ms
        assert found(spec.for_timestamp(now_ms + day_ms + 1)) == (-1, -1)
        assert found(spec.max_timestamp()) == (1, now_ms + day_ms)

    await asyncio.to_thread(run)
    async with wire(kafka.address) as client:

        async def asked(version: int, time_ms: int) -> tuple[int, int]:
            partitions = [{"partition_index": 0, "timestamp": time_ms}]
            [topic] = (
                await client.ask(
                    LIST_OFFSETS, version, {"replica_id": -1, "topics": [{"name": "dated", "partitions": partitions}]}
                )
            )["topics"]
            [one] = topic["partitions"]
            return one["error_code"], one["offset"]

        assert [await asked(11, time_ms) for time_ms in range(-6, 0)] == [
            (0, -1),
            (0, -1),
            (0, 0),
            (0, 1),
            (0, 0),
            (0, 6),
        ]
        for since, time_ms in ((7, -3), (8, -4), (9, -5), (11, -6)):
            assert (await asked(since - 1, time_ms))[0] == errors.UNSUPPORTED_VERSION
            assert (await asked(since, time_ms))[0] == errors.NONE
        assert (await asked(11, -7))[0] == errors.UNSUPPORTED_VERSION


async def test_admin_requests(kafka: Kafka) -> None:
    await kafka.create("made", 2, retention_ms="60000")
    admin = kafka.admin

    def run() -> None:
        resource = ConfigResource("topic", "made")
        configs = admin.describe_configs([resource])[resource].result(WAIT_S)
        assert configs["retention.ms"].value == "60000"
        admin.create_partitions([NewPartitions("made", 5)])["made"].result(WAIT_S)
        assert len(admin.list_topics(timeout=WAIT_S).topics["made"].partitions) == 5
        kafka.send("made", [b"a", b"b", b"c"], partitioner="consistent")
        ends = {
            number: admin.list_offsets(
                {confluent_kafka.TopicPartition("made", number): confluent_kafka.admin.OffsetSpec.latest()}
            )[confluent_kafka.TopicPartition("made", number)]
            .result(WAIT_S)
            .offset
            for number in range(5)
        }
        assert sum(ends.values()) == 3
        number = next(number for number, end in ends.items() if end)
        low = confluent_kafka.TopicPartition("made", number, ends[number])
        admin.delete_records([low])[low].result(WAIT_S)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.address, "group.id": "x"})
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition("made", number), timeout=WAIT_S) == (
            ends[number],
            ends[number],
        )
        consumer.close()
        admin.delete_topics(["made"])["made"].result(WAIT_S)
        assert "made" not in admin.list_topics(timeout=WAIT_S).topics
        new = NewTopic("compacted", 1, 1, config={"cleanup.policy": "compact"})
        refused = admin.create_topics([new])["compacted"]
        with pytest.raises(confluent_kafka.KafkaException, match="compact"):
            refused.result(WAIT_S)

    await asyncio.to_thread(run)


async def test_offsets_are_taken_back_but_not_where_a_member_consumes(kafka: Kafka) -> None:
    await kafka.create("taken", 2)
    await kafka.create("left-alone", 1)

    def offsets_of(topic: str) -> dict[int, int]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.address, "group.id": "forgetful"})
        wanted = [confluent_kafka.TopicPartition(topic, number) for number in range(2 if topic == "taken" else 1)]
        found = {one.partition: one.offset for one in consumer.committed(wanted, timeout=WAIT_S)}
        consumer.close()
        return found

    def commit() -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.address, "group.id": "forgetful"})
        wanted = [("taken", 0, 3), ("taken", 1, 4), ("left-alone", 0, 5)]
        offsets = [confluent_kafka.TopicPartition(*one) for one in wanted]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    await asyncio.to_thread(commit)
    asked = {
        "group_id": "forgetful",
        "topics": [
            {"name": "taken", "partitions": [{"partition_index": number} for number in (0, 7)]},
            {"name": "left-alone", "partitions": [{"partition_index": 0}]},
        ],
    }
    async with wire(kafka.address) as client:
        with kafka.consumer("forgetful", "left-alone") as consumer:
            await asyncio.to_thread(_assigned, [consumer], 1)
            answer = await client.ask(OFFSET_DELETE, 0, asked)
        assert [[one["error_code"] for one in topic["partitions"]] for topic in answer["topics"]] == [[0, 3], [86]]
        unknown = await client.ask(OFFSET_DELETE, 0, asked | {"group_id": "nobody"})
        assert unknown["error_code"] == 69
    invalid = confluent_kafka.OFFSET_INVALID
    assert await asyncio.to_thread(offsets_of, "taken") == {0: invalid, 1: 4}
    assert await asyncio.to_thread(offsets_of, "left-alone") == {0: 5}


async def test_headers_delay_records_where_the_topic_says_so(kafka: Kafka) -> None:
    await kafka.create("later", 1, mq_headers="true")
    await kafka.create("sooner", 1)

    plain = kafka.producer(linger_ms=0)
    numbered = kafka.producer(linger_ms=0, enable_idempotence=True, compression_type="zstd")

    def produced(topic: str, headers: list[tuple[str, bytes]], producer: Any = plain) -> tuple[str | None, int | None]:
        found: list[tuple[str | None, int | None]] = []

        def on_delivery(error: Any, message: Any) -> None:
            found.append((None if error is None else error.name(), message.offset()))

        producer.produce(topic, b"v", b"k", headers=headers, on_delivery=on_delivery)
        assert producer.flush(WAIT_S) == 0
        return found[0]

    def run() -> None:
        delay, at = "mq-delay-ms", "mq-deliver-at"
        for producer in (plain, numbered):
            assert produced("sooner", [], producer)[0] is None
        began_ms = time.time() * 1000
        assert produced("later", [(delay, b"1500"), ("mq-tag", b"red"), ("own", b"kept")]) == (None, None)
        due = str(int(began_ms) + 1700).encode()
        assert produced("later", [(at, due)], numbered) == (None, None)
        assert produced("later", [("own", b"now")], numbered) == (None, 0)
        assert produced("later", [(at, b"2001-01-01T00:00:00Z")]) == (None, 1)  # due already: an ordinary send
        for headers in (
            [(delay, b"-1")], [(delay, b"1s")], [(delay, b"1"), (at, b"5")], [(at, b"soon")], [(delay, b"9" * 18)],
            [("mq-schedule-id", b"x")],
        ):  # fmt: skip
            assert produced("later", headers)[0] == "INVALID_RECORD", headers
        assert produced("sooner", [(delay, b"700")])[0] == "INVALID_RECORD"
        with kafka.consumer("later", "later") as consumer:
            found = []
            while len(found) < 4:
                message = consumer.poll(WAIT_S)
                assert message is not None
                found.append((time.time() * 1000 - began_ms, dict(message.headers() or ())))
        (_, now), (_, past), (first_ms, first), (second_ms, second) = found
        assert (now, past) == ({"own": b"now"}, {})
        assert (first["own"], first["mq-tag"]) == (b"kept", b"red")
        assert first_ms >= 1500
        assert second_ms >= 1700
        assert second[at] == due
        assert delay not in first

    await asyncio.to_thread(run)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{kafka.server.url}/mq/v1/topics/later") as answer,
    ):
        assert (await answer.json())["mq_headers"] is True


@pytest.mark.embedded("light queues are refused on a Kafka cluster")
async def test_a_header_puts_records_into_light_queues(tmp_path: Path, kafka: Kafka) -> None:
    def produced(one: Kafka, *headers: tuple[str, bytes]) -> str | None:
        found: list[str | None] = []
        producer = one.producer(linger_ms=0)
        producer.produce(
            "chat", b"1", headers=list(headers), on_delivery=lambda error, _: found.append(error and error.name())
        )
        assert producer.flush(WAIT_S) == 0
        return found[0]

    name = ("mq-queues", b'["user/42", "room/7"]')
    await kafka.create("chat", 1, mq_headers="true")
    assert await asyncio.to_thread(produced, kafka, name) == "INVALID_RECORD", "its index is in files"
    async with serving(tmp_path, {"MQ_STORE_INDEX": "rocksdb"}) as own:
        await own.create("chat", 1, mq_headers="true")
        assert await asyncio.to_thread(produced, own, ("mq-queues", b"user/42")) == "INVALID_RECORD"
        assert await asyncio.to_thread(produced, own, ("own", b"kept"), name) is None
        assert await asyncio.to_thread(produced, own, ("mq-delay-ms", b"200"), name) is None
        path = f"{own.server.url}/mq/v1/topics/chat/queues/user%2F42/records"
        seen: list[int] = []
        async with aiohttp.ClientSession() as session:
            cursor = ""
            while len(seen) < 2:
                async with session.get(f"{path}?timeout=10000{cursor}") as answer:
                    page = await answer.json()
                cursor = f"&cursor={page['next_cursor']}"
                seen += [record["queue_offset"] for record in page["records"]]
                assert "mq-queues" not in str(page["records"])
        assert seen == [0, 1]


async def test_dead_letters_are_topics_for_kafka_clients(kafka: Kafka) -> None:
    async with aiohttp.ClientSession() as session:
        await kafka.create("rejected", 1)
        await asyncio.to_thread(kafka.send, "rejected", [b"good", b"bad"])
        group = f"{kafka.server.url}/mq/v1/groups/billing"
        ask = {"topics": ["rejected"], "max_messages": 10, "wait_ms": 2_000, "start": "earliest"}
        async with session.post(f"{group}/messages:receive", json=ask) as answer:
            messages = (await answer.json())["messages"]
        receipts = [one["receipt"] for one in messages]
        assert len(receipts) == 2
        async with session.post(
            f"{group}/messages:reject", json={"receipts": receipts, "reason": "no such customer"}
        ) as (answer):
            assert answer.status == 200, await answer.text()

        def consume() -> list[tuple[bytes, dict[str, bytes]]]:
            with kafka.consumer("clerk", "%DLQ%billing") as consumer:
                found: list[Any] = []
                until_s = time.monotonic() + WAIT_S
                while len(found) < 2 and time.monotonic() < until_s:
                    found += consumer.consume(10, 0.2)
                consumer.commit(asynchronous=False)
                return [(message.value(), dict(message.headers() or ())) for message in found]

        found = await asyncio.to_thread(consume)
        assert sorted(value for value, _ in found) == [b"bad", b"good"]
        assert {headers["mq-reason"] for _, headers in found} == {b"no such customer"}


@pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat here: .ci/setup installs it where it may")
async def test_kcat_sends_reads_and_joins_a_group(kafka: Kafka) -> None:
    async def kcat(*args: str, stdin: bytes = b"") -> bytes:
        process = await asyncio.create_subprocess_exec(
            "kcat", "-b", kafka.address, *args,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await asyncio.wait_for(process.communicate(stdin), WAIT_S)
        assert process.returncode == 0, errors.decode()
        return out

    lines = b"".join(b"line %d\n" % number for number in range(100))
    for codec in CODECS:  # the topic is made by the first of them
        await kcat("-P", "-t", "old", "-z", codec, "-X", "enable.idempotence=true", stdin=lines)
    assert (await kcat("-C", "-t", "old", "-o", "beginning", "-e", "-q")).count(b"\n") == 500
    assert (await kcat("-G", "g", "-X", "auto.offset.reset=earliest", "-c", "500", "-q", "old")).count(b"\n") == 500
    assert b'"topic":"old"' in await kcat("-L", "-J")


async def _lags(kafka: Kafka, group: str) -> list[tuple[int, int]]:
    """What a group has committed, and its lag, as HTTP tells it."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{kafka.server.url}/mq/v1/groups/{group}/lag") as answer,
    ):
        return [(one["committed"], one["lag"]) for one in (await answer.json())["partitions"]]


@pytest.mark.matrix
async def test_aiokafka_sends_consumes_with_a_group_and_commits(kafka: Kafka) -> None:
    await kafka.create("aio", 1)
    values = [f"{number}".encode() for number in range(200)]
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=kafka.address) as producer:
        for sent in [await producer.send("aio", value) for value in values]:
            await asyncio.wait_for(sent, WAIT_S)
    found: list[bytes] = []
    async with aiokafka.AIOKafkaConsumer(
        "aio", bootstrap_servers=kafka.address, group_id="aio", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        while len(found) < len(values):
            found.append((await asyncio.wait_for(consumer.getone(), WAIT_S)).value)
        await consumer.commit()
    assert found == values
    assert await _lags(kafka, "aio") == [(200, 0)]


@pytest.mark.matrix
async def test_kafka_python_sends_consumes_with_a_group_and_commits(kafka: Kafka) -> None:
    await kafka.create("pure", 1)
    values = [f"{number}".encode() for number in range(200)]

    def run() -> list[bytes]:
        producer = kafka_python.KafkaProducer(bootstrap_servers=kafka.address)
        for sent in [producer.send("pure", value) for value in values]:
            sent.get(WAIT_S)
        producer.close()
        consumer = kafka_python.KafkaConsumer(
            "pure", bootstrap_servers=kafka.address, group_id="pure", auto_offset_reset="earliest",
            enable_auto_commit=False, consumer_timeout_ms=WAIT_S * 1000,
        )  # fmt: skip
        found = [next(consumer).value for _ in values]
        consumer.commit()
        consumer.close()
        return found

    assert await asyncio.to_thread(run) == values
    assert await _lags(kafka, "pure") == [(200, 0)]


@pytest.mark.matrix
async def test_apache_kafka_s_own_tools(kafka: Kafka) -> None:
    try:
        await asyncio.to_thread(ApacheKafka().prepare, TOOLS)
        java = program("java", "default-jre-headless")
    except Unavailable as error:
        pytest.skip(f"no Java client of Kafka's here: {error}")

    async def tool(name: str, *args: str) -> str:
        process = await asyncio.create_subprocess_exec(
            java, "-Xmx256M", "-cp", f"{TOOLS / f'kafka-{JAVA_VERSION}'}/*", f"org.apache.kafka.tools.{name}", *args,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, errors = await asyncio.wait_for(process.communicate(), 2 * WAIT_S)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        assert process.returncode == 0, errors.decode()
        return out.decode()

    at = ("--bootstrap-server", kafka.address)
    await tool("TopicCommand", *at, "--create", "--topic", "java", "--partitions", "2")
    described = await tool("TopicCommand", *at, "--describe", "--topic", "java")
    assert "PartitionCount: 2" in described
    sent = await tool(
        "ProducerPerformance", "--topic", "java", "--num-records", "2000", "--record-size", "100", "--throughput", "-1",
        "--producer-props", f"bootstrap.servers={kafka.address}", "acks=all",
    )  # fmt: skip
    assert "2000 records sent" in sent
    read = await tool(
        "ConsumerPerformance", *at, "--topic", "java", "--messages", "2000", "--group", "java", "--hide-header"
    )
    assert int(float(read.strip().splitlines()[-1].split(",")[4])) == 2000
    lags = await _lags(kafka, "java")
    assert sum(committed for committed, _ in lags) == 2000
    assert sum(lag for _, lag in lags) == 0
    group = await tool("consumer.group.ConsumerGroupCommand", *at, "--describe", "--group", "java")
    rows = [line.split() for line in group.splitlines() if line.startswith("java ")]
    assert sorted(row[2] for row in rows) == ["0", "1"]
    assert {row[5] for row in rows} == {"0"}  # the lag


def _token(data: Path, principal: str, *scopes: str) -> str:
    data.mkdir(exist_ok=True)
    token, record = mint(principal, scopes, now_ms=int(time.time() * 1000))
    change_tokens(AuthConfig(data=data).tokens_path, lambda tokens: tokens.update({record.id: record}))
    return token


def _jwt(scope: str, *, principal: str = "bob", valid_s: float = 60) -> str:
    claims = {"iss": "us", "aud": "mq", "sub": principal, "exp": time.time() + valid_s, "scope": scope}
    return pyjwt.encode(claims, SECRET, "HS256")


async def _authenticated(client: Wire, jwt: str) -> Any:
    assert not (await client.ask(SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"}))["error_code"]
    return await client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": f"n,,\1auth=Bearer {jwt}\1\1".encode()})


async def _renewed(address: str) -> None:
    """A credential that ends is renewed on its connection (KIP-368), by the same principal, or ends it."""
    ask = {"topics": []}
    async with wire(address) as renewing, wire(address) as ending, wire(address) as changing, wire(address) as late:
        for client in (renewing, ending, changing):
            answer = await _authenticated(client, _jwt("mq:admin", valid_s=2))
            assert not answer["error_code"], answer
            assert 0 < answer["session_lifetime_ms"] <= 2_000, "its own end, without the leeway"
            assert (await client.ask(METADATA, 1, ask))["brokers"]
        assert 0 < (await _authenticated(late, _jwt("mq:admin", valid_s=0)))["session_lifetime_ms"] <= LEEWAY_MS
        assert (await _authenticated(renewing, _jwt("mq:admin")))["session_lifetime_ms"] > 3_000
        assert (await _authenticated(changing, _jwt("mq:admin", principal="ann")))["error_code"] == 58
        await asyncio.sleep(3.5)
        for ended in (changing, ending):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await ended.ask(METADATA, 1, ask)
        assert (await renewing.ask(METADATA, 1, ask))["brokers"]


async def test_tls_with_passwords_and_jwts_on_two_listeners(tmp_path: Path) -> None:
    data, cert, key = tmp_path / "data", tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    (tmp_path / "jwt").write_bytes(SECRET)
    password = _token(data, "ann", "admin")
    inside, outside = free_port(), free_port()
    listeners = f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}"
    server = Server(
        data,
        {
            "MQ_AUTH_ENABLED": "true", "MQ_TLS_CERT_FILE": str(cert), "MQ_TLS_KEY_FILE": str(key),
            "MQ_AUTH_JWT_ISSUER": "us", "MQ_AUTH_JWT_AUDIENCE": "mq", "MQ_AUTH_JWT_KEY_FILE": str(tmp_path / "jwt"),
            "MQ_AUTH_JWT_ALGORITHM": "HS256", "MQ_KAFKA_LISTENERS": listeners,
            "MQ_KAFKA_ADVERTISED": f"OUTSIDE://localhost:{outside}",
        },
    )  # fmt: skip
    await server.start()
    signed_count = 0

    def settings(port: int, **more: object) -> dict[str, object]:
        own = {name.replace("_", "."): value for name, value in more.items()}
        return {"bootstrap.servers": f"127.0.0.1:{port}", "ssl.ca.location": str(cert), "log_level": 0, **own}

    def by_password(port: int) -> dict[str, object]:
        return settings(
            port, security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="x", sasl_password=password
        )

    def by_jwt(port: int, scope: str) -> dict[str, object]:
        def signed(_: object) -> tuple[str, float]:
            nonlocal signed_count
            signed_count += 1
            return _jwt(scope), time.time() + 60

        return settings(port, security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER") | {"oauth_cb": signed}

    def sent(given: dict[str, object], topic: str, timeout_ms: int = 5000) -> str | None:
        errors: list[str | None] = []

        def on_delivery(error: Any, _: object) -> None:
            errors.append(None if error is None else error.name())

        producer = confluent_kafka.Producer({**given, "message.timeout.ms": timeout_ms})
        producer.produce(topic, b"x", on_delivery=on_delivery)
        producer.flush(WAIT_S)
        [error] = errors
        return error

    def run() -> None:
        administrator: Any = AdminClient(by_password(inside))
        for topic in administrator.create_topics([NewTopic("orders", 1, 1), NewTopic("bills", 1, 1)]).values():
            topic.result(WAIT_S)
        # What a client is told to connect to next depends on the listener that it has come by.
        for port, advertised in ((inside, f"127.0.0.1:{inside}"), (outside, f"localhost:{outside}")):
            [node] = AdminClient(by_password(port)).list_topics(timeout=WAIT_S).brokers.values()
            assert f"{node.host}:{node.port}" == advertised
        bob = by_jwt(outside, "mq:writer:topic:orders")
        assert sent(bob, "orders") is None
        assert sent(bob, "bills") == "TOPIC_AUTHORIZATION_FAILED"
        assert signed_count >= 2
        assert sent(by_jwt(outside, "mq:admin") | {"oauth_cb": lambda _: ("e30.e30.e30", time.time() + 60)}, "orders",
                    1500) == "_MSG_TIMED_OUT"  # fmt: skip
        plaintext = settings(inside, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="x",
                             sasl_password=password)  # fmt: skip
        assert sent(plaintext, "orders", 1500) == "_MSG_TIMED_OUT"

    try:
        await asyncio.to_thread(run)
    finally:
        await server.end()


async def test_who_may_do_what_by_sasl_plain(tmp_path: Path) -> None:
    data = tmp_path / "data"
    admin, writer = _token(data, "ann", "admin"), _token(data, "bill", "writer:topic:orders")
    port = free_port()
    (tmp_path / "jwt").write_bytes(SECRET)
    by_jwt = {
        "MQ_AUTH_JWT_ISSUER": "us", "MQ_AUTH_JWT_AUDIENCE": "mq", "MQ_AUTH_JWT_KEY_FILE": str(tmp_path / "jwt"),
        "MQ_AUTH_JWT_ALGORITHM": "HS256", "MQ_AUTH_JWT_LEEWAY_MS": str(LEEWAY_MS),
    }  # fmt: skip
    server = Server(data, {"MQ_KAFKA_PORT": str(port), "MQ_AUTH_ENABLED": "true", **by_jwt})
    await server.start()

    def settings(password: str) -> dict[str, object]:
        return {
            "bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": "anybody", "sasl.password": password, "log_level": 0,
        }  # fmt: skip

    def sent(password: str, topic: str, timeout_ms: int = 5000) -> str | None:
        errors: list[str | None] = []

        def on_delivery(error: Any, _: object) -> None:
            errors.append(None if error is None else error.name())

        producer = confluent_kafka.Producer({**settings(password), "message.timeout.ms": timeout_ms})
        producer.produce(topic, b"x", on_delivery=on_delivery)
        producer.flush(WAIT_S)
        [error] = errors
        return error

    def run() -> None:
        administrator = AdminClient(settings(admin))
        made = administrator.create_topics([NewTopic("orders", 1, 1), NewTopic("bills", 1, 1)])
        for topic in made.values():
            topic.result(WAIT_S)
        assert sent(admin, "bills") is None
        assert sent(writer, "orders") is None
        assert sent(writer, "bills") == "TOPIC_AUTHORIZATION_FAILED"
        assert sent("mq_wrong", "orders", 1500) == "_MSG_TIMED_OUT"  # it never gets in
        with pytest.raises(confluent_kafka.KafkaException):
            AdminClient(settings("")).list_topics(timeout=2)
        reader = confluent_kafka.Consumer({**settings(writer), "group.id": "g", "auto.offset.reset": "earliest"})
        reader.subscribe(["orders"])
        message = reader.poll(WAIT_S)
        assert message.error().name() == "GROUP_AUTHORIZATION_FAILED"
        reader.close()
        anything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        bills = [rule for rule in administrator.describe_acls(anything).result(WAIT_S) if rule.principal == "User:bill"]
        assert {(rule.restype, rule.name, rule.operation, rule.permission_type) for rule in bills} == {
            (ResourceType.TOPIC, "orders", operation, AclPermissionType.ALLOW)
            for operation in (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.WRITE)
        }
        rule = AclBinding(
            ResourceType.TOPIC, "bills", ResourcePatternType.LITERAL, "User:bill", "*", AclOperation.READ,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        [refused] = administrator.create_acls([rule]).values()
        with pytest.raises(confluent_kafka.KafkaException, match="mq token"):
            refused.result(WAIT_S)
        assert AdminClient(settings(writer)).describe_acls(anything).result(WAIT_S) == []

    try:
        await _renewed(f"127.0.0.1:{port}")
        await asyncio.to_thread(run)
        with socket.create_connection(("127.0.0.1", port)) as stranger:  # Metadata before saying who it is
            stranger.sendall(b"\0\0\0\x0e\0\x03\0\x01\0\0\0\x01\0\0\xff\xff\xff\xff")
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(stranger.recv, 100) == b""
    finally:
        await server.end()

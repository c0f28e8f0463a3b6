"""What Kafka's console consumer and Spark's own Kafka source see of a topic of mq that is on a real Apache Kafka: the
keys, values, user headers and order that mq's clients see; and what they see beside that (docs/kafka-broker.md)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import orjson
import pytest

from loadtest.peers.fetch import TOOLS, jars
from loadtest.peers.kafka import java_command
from loadtest.peers.peer import Unavailable
from store import record_batch
from tests.e2e.server import SMALL_FILES, Server
from tests.gateway.brokers.kafka.servers import JAVA, KafkaServers, kafka_servers, tools
from tests.spark.batches import Message
from tests.spark.batches import batch as encoded

pytestmark = pytest.mark.matrix

TOPIC = "orders"
PARTITIONS = 2
OLD_MS = 1_600_000_000_000
BATCH = {"Content-Type": "application/vnd.mq.batch"}
NATIVE = {"Accept": "application/vnd.mq.batch"}
FENCES = 2
SPARK_SOURCE = "4.2.0"
"""Of Spark's Kafka source: the newest that Maven Central has; it works with the pyspark that is installed."""

CONSOLE_TIMEOUT_MS = 15_000
PART, HEADER = " <|> ", " <;> "
"""What the console consumer puts between what it prints."""

Headers = Sequence[tuple[str, bytes | None]]


class Seen(NamedTuple):
    """A record: its partition and offset, and all that a user sends."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    with kafka_servers(tmp_path_factory.mktemp("kafka")) as servers:
        yield servers


@pytest.fixture
async def http(kafka: KafkaServers, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a server on which partitions of a topic were filled, moved to a node, and back."""
    settings = {
        "MQ_CLUSTER_KAFKA": f"kafka1=kafka://{kafka.endpoint}?replication=1&min_insync=1&prefix={tmp_path.name}.",
        "MQ_CLUSTER_DEFAULT_BROKER": "kafka1",
        "MQ_KAFKA_ENABLED": "false",
    }
    server = Server(tmp_path / "data", {**SMALL_FILES, **settings})
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url) as session:
            yield session
    finally:
        await server.end()


def batch(partition: int, number: int, codec: str) -> bytes:
    """Three records: text with headers; bytes without a key; a tombstone."""
    key, at_ms = f"k{partition}-{number}".encode(), OLD_MS + number
    headers = [("trace", b"t1"), ("trace", b"t2"), ("none", None)]
    records = [
        Message(key, "värde".encode() * 50, at_ms, headers),
        Message(None, bytes((65 + number, 9, 66)), at_ms),
        Message(key, None, at_ms, [("mq-tag", b"gone")]),
    ]
    return encoded(records, codec=codec)


async def filled(http: aiohttp.ClientSession) -> None:
    """Batches of each codec; some with an identity; the partition goes to the node and back in between."""

    async def sent(number: int, codec: str, **headers: str) -> None:
        for partition in range(PARTITIONS):
            data = batch(partition, number, codec)
            path = f"/topics/{TOPIC}/partitions/{partition}"
            async with http.post(path, data=data, headers={**BATCH, **headers}) as answer:
                assert answer.status == 200, await answer.text()

    async with http.put(f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS}) as answer:
        assert answer.status == 201, await answer.text()
    await sent(0, "none")
    await sent(1, "zstd")
    await sent(2, "gzip", **{"Mq-Producer": "job/0", "Mq-Sequence": "7"})
    for to in ("local", "kafka1"):
        for partition in range(PARTITIONS):
            path = f"/mq/v1/topics/{TOPIC}/partitions/{partition}/move"
            async with http.post(path, json={"to": to}) as answer:
                assert answer.status == 200, await answer.text()
    body = orjson.dumps({"records": [{"key": "j", "value": {"a": [1, "ö"]}, "partition": 0, "msg_id": "one"}]})
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    async with http.post(f"/topics/{TOPIC}", data=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()


async def seen_by_mq(http: aiohttp.ClientSession) -> list[Seen]:
    found = []
    for partition in range(PARTITIONS):
        offset = 0
        while True:
            path = f"/topics/{TOPIC}/partitions/{partition}/records?offset={offset}"
            async with http.get(path, headers=NATIVE) as answer:
                data = await answer.read()
            batches = [bytes(one) for one in record_batch.whole_batches(data)]
            records = [record for one in batches for record in record_batch.decode(one)]
            if not records:
                break
            for record in records:
                headers = [(name, value) for name, value in record.headers]
                found.append(Seen(partition, record.offset, record.key, record.value, headers))
                assert record.timestamp < OLD_MS + 10 or record.key == b"j", "mq's clients have the sender's times"
            offset = records[-1].offset + 1
    return found


async def said_by(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert output, errors.decode()[-2000:]
    return output.decode()


async def seen_by_console(endpoint: str, topic: str) -> list[Seen]:
    shown = ("key", "headers", "offset", "partition", "timestamp")
    command = [*java_command(tools(), JAVA), "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    command += ["--bootstrap-server", endpoint, "--topic", topic, "--from-beginning"]
    command += ["--timeout-ms", str(CONSOLE_TIMEOUT_MS)]
    command += [part for name in shown for part in ("--property", f"print.{name}=true")]
    plain = "deserializer=org.apache.kafka.common.serialization.BytesDeserializer"  # prints what is not ASCII as \\xC3
    more = (
        f"key.separator={PART}",
        f"headers.separator={HEADER}",
        *(f"{one}.{plain}" for one in ("key", "value", "headers")),
    )
    command += [part for one in more for part in ("--property", one)]
    found = []
    for line in (await said_by(*command)).splitlines():
        time, partition, offset, headers, key, value = line.split(PART)
        assert time.startswith("LogAppendTime:"), "not the sender's"
        assert int(time.partition(":")[2]) > OLD_MS + 1_000_000
        found.append(
            Seen(
                int(partition.partition(":")[2]), int(offset.partition(":")[2]), _data(key), _data(value),
                [(name, _data(text)) for name, _, text in (one.partition(":") for one in headers.split(HEADER))]
                if headers != "NO_HEADERS" else [],
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: one[:2])


def _data(text: str) -> bytes | None:
    return None if text == "null" else text.encode().decode("unicode_escape").encode("latin1")


async def seen_by_spark(endpoint: str, topic: str) -> list[Seen]:
    version = SPARK_SOURCE
    names = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13")
    artifacts = [f"org.apache.spark:{name}:{version}" for name in names]
    try:
        libraries = jars(
            TOOLS, f"spark-kafka-{version}",
            [*artifacts, "org.apache.kafka:kafka-clients:3.9.1", "org.apache.commons:commons-pool2:2.12.0"], alone=True,
        )  # fmt: skip
    except Unavailable as error:
        pytest.skip(str(error))
    program = Path(__file__).with_name("spark_source.py")
    lines = await said_by(sys.executable, str(program), str(libraries), endpoint, topic)
    found = []
    for partition, offset, key, value, headers, time_type in map(json.loads, lines.splitlines()):
        assert time_type == 1, "the time of the append"
        found.append(Seen(partition, offset, _bytes(key), _bytes(value), [(name, _bytes(of)) for name, of in headers]))
    return found


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin1")


def users(seen: Sequence[Seen]) -> list[tuple[int, bytes | None, bytes | None, Headers]]:
    """What is a user's, of what clients of Kafka see: in order, without what mq has put there for itself."""
    found = []
    for record in seen:
        names = [name for name, _ in record.headers]
        if names == ["mq-fence"] or (names == ["mq-ids"] and record.key is None):
            continue
        headers = [one for one in record.headers if one[0] != "mq-ids"]
        found.append((record.partition, record.key, record.value, headers))
    return found


@pytest.mark.parametrize("by", ["console", "spark"])
async def test_clients_of_kafka_see_what_clients_of_mq_see(
    kafka: KafkaServers, http: aiohttp.ClientSession, tmp_path: Path, by: str
) -> None:
    await filled(http)
    of_mq = await seen_by_mq(http)
    assert len(of_mq) == PARTITIONS * 3 * 3 + 1
    of_kafka = await (seen_by_console if by == "console" else seen_by_spark)(kafka.endpoint, f"{tmp_path.name}.{TOPIC}")
    assert users(of_kafka) == [(one.partition, one.key, one.value, one.headers) for one in of_mq]

    names = [[name for name, _ in one.headers] for one in of_kafka]
    assert names.count(["mq-fence"]) == (2 * FENCES + 1) * PARTITIONS, "two tenures, and the end of the first"
    with_ids = [one for one, own in zip(of_kafka, names, strict=True) if "mq-ids" in own and one.key is not None]
    assert [one.key for one in with_ids if one.key == b"j"] == [b"j"], "the record that was sent with a msg_id"
    assert len(with_ids) == PARTITIONS + 1, "and the first record of each numbered batch"
    first = [one.offset for one in of_kafka if one.partition == 0]
    assert first == [*range(len(first))], "no transactions, so no control records: Kafka's offsets have no gaps"
    user_offsets = [one.offset for one in of_kafka if one.partition == 0 and users([one])]
    assert user_offsets[:9] == [FENCES + offset for offset in range(9)], "mq's offsets, and the fences before"

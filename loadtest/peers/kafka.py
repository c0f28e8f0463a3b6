"""Apache Kafka: one broker in KRaft mode, from its Maven artifacts.

Its clients: confluent-kafka (librdkafka) for Python, and its own tools, whose rates are those of its Java client.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from loadtest.peers import kafka_protocol as protocol
from loadtest.peers import replay, work
from loadtest.peers.fetch import TOOLS, jars, program, said
from loadtest.peers.peer import (
    Durability,
    Level,
    Numbers,
    Options,
    Peer,
    Way,
    WorkFailed,
)
from loadtest.peers.servers import Died, Server, free_port, running
from store.record_batch import encode_columns

VERSION = "4.1.0"
CLUSTER_ID = "bXEtc2NvcmVib2FyZC0wMQ"

# What bin/kafka-server-start.sh sets.
SERVER_JAVA = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
TOOL_JAVA = ("-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")

SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.partitions=1
log.segment.delete.delay.ms=1000
"""

PRODUCER = {"acks": "all", "linger.ms": 1}
"""For batches. All else is librdkafka's default: up to 10,000 messages a batch, the limits of its queue. Its default
linger of 5 ms is slower where only four batches are unanswered: nothing more comes while it waits."""

QUICK_PRODUCER = {"acks": "all", "linger.ms": 0}
"""For single records: who waits for each of them sets this."""

CONSUMER = {
    "group.id": "scoreboard",
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1_048_576,
    "fetch.queue.backoff.ms": 10,
}
"""At librdkafka's defaults a consumer of small records stops at 100,000 fetched ones and looks again a second later."""

TOOL_PRODUCER = ("acks=all", "batch.size=131072", "linger.ms=5")
POLL_S = 0.1
POLL_RECORDS = 10_000
TOOL_RECORDS_PER_S_MAX = 3_000_000
"""It is told how many records to send, and stopped when the window is over."""

FIRST_RECORD_TIMEOUT_S = 30.0
TOOL_PRODUCER_WARM_S, TOOL_CONSUMER_WARM_S = 3.0, 2.0
"""From its first record on, at least: a tool's JVM is new in every step, unlike the server's."""

SCAN_TOPIC = "scan-by-tool"
SCAN_RECORDS_PER_S = 4_500_000
"""kafka-consumer-perf-test reads a topic once, so one that it reads for long enough must be large: so many records for
each second. It is filled once for each server and stays."""

TOOL_REPORT_MS = 200
FETCH_RECORDS = 1_000_000
FETCH_BYTES = 1_048_576
FILL_IN_FLIGHT = 8


class _Client:
    """librdkafka calls back on threads of its own, or of ours; asyncio waits."""

    def __init__(self, endpoint: str) -> None:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient

        self._kafka: Any = confluent_kafka
        self._servers: dict[str, Any] = {"bootstrap.servers": endpoint}
        self._admin: Any = AdminClient(self._servers)
        self._producers: dict[object, Any] = {}
        self._to_create: dict[str, asyncio.Future[None]] = {}
        self._creating: asyncio.Task[None] | None = None
        self._is_open = True

    async def create(self, topic: str) -> None:
        """One partition, one replica. What waits goes in one request: a broker answers those of a connection in turn,
        a request for one topic takes it 35 ms, and one for 64 of them 300 ms."""
        loop = asyncio.get_running_loop()
        done = self._to_create[topic] = loop.create_future()
        if self._creating is None or self._creating.done():
            self._creating = loop.create_task(self._create_waiting())
        await done

    async def create_unflushed(self, topic: str) -> None:
        """As `create`, without the level's syncs: for what is filled outside the clock, and only read within."""
        new = self._kafka.admin.NewTopic(topic, 1, 1, config={"flush.messages": str(2**62)})
        made: dict[str, Future[None]] = self._admin.create_topics([new])
        await asyncio.wrap_future(made[topic])

    async def drop(self, topic: str) -> None:
        """Its files are removed a second later."""
        gone: dict[str, Future[None]] = self._admin.delete_topics([topic])
        await asyncio.wrap_future(gone[topic])

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """Handed over together; answered when every record is acknowledged."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        left = len(values)

        def acknowledged(error: object, _: object) -> None:
            nonlocal left
            left -= 1
            if error is not None or left == 0:
                loop.call_soon_threadsafe(_settle, done, error)

        if len(values) == 1:
            self._producer(QUICK_PRODUCER).produce(topic, values[0], partition=0, on_delivery=acknowledged)
        else:
            batch = [{"value": one} for one in values]
            taken = self._producer(PRODUCER).produce_batch(topic, batch, partition=0, on_delivery=acknowledged)
            if taken != len(batch):
                raise WorkFailed(f"librdkafka took {taken} of {len(batch)} records")
        await done

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """A consumer that is assigned the partition from its start, without a group to join."""
        consumer = self._kafka.Consumer({**self._servers, **CONSUMER})
        consumer.assign([self._kafka.TopicPartition(topic, 0, 0)])
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:  # one, so that the consumer is closed behind its last poll
            try:
                while True:
                    if values := await loop.run_in_executor(thread, _polled, consumer):
                        yield values
            finally:
                thread.submit(consumer.close)

    def close(self) -> None:
        """End the threads that poll."""
        self._is_open = False

    async def _create_waiting(self) -> None:
        while waiting := self._to_create:
            self._to_create = {}
            new = [self._kafka.admin.NewTopic(topic, 1, 1) for topic in waiting]
            made: dict[str, Future[None]] = self._admin.create_topics(new)
            for topic, done in waiting.items():
                try:
                    await asyncio.wrap_future(made[topic])
                    _settle(done, None)
                except self._kafka.KafkaException as error:
                    _settle(done, error)

    def _producer(self, settings: Mapping[str, object]) -> Any:
        linger_ms = settings["linger.ms"]
        producer = self._producers.get(linger_ms)
        if producer is None:
            producer = self._producers[linger_ms] = self._kafka.Producer({**self._servers, **settings})
            Thread(target=self._serve_callbacks, args=(producer,), daemon=True).start()
        return producer

    def _serve_callbacks(self, producer: Any) -> None:
        """`poll` returns as soon as it has called back."""
        while self._is_open:
            producer.poll(POLL_S)


def _polled(consumer: Any) -> list[bytes]:
    """What is there as soon as anything is: `consume` alone would wait until it has all that it may bring."""
    first = consumer.poll(POLL_S)
    messages = [] if first is None else [first, *consumer.consume(POLL_RECORDS, 0)]
    for message in messages:
        if message.error() is not None:
            raise WorkFailed(str(message.error()))
    return [message.value() for message in messages]


def _settle(done: asyncio.Future[None], error: object) -> None:
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(WorkFailed(str(error)))


@asynccontextmanager
async def _connected(endpoint: str) -> AsyncIterator[_Client]:
    client = _Client(endpoint)
    try:
        yield client
    finally:
        client.close()


async def _worked(do: Callable[..., Awaitable[Numbers]], endpoint: str, topic: str, options: Options) -> Numbers:
    async with _connected(endpoint) as client:
        return await do(client, topic, **options)


class _Offsets:
    """How many records a topic holds, from the broker."""

    def __init__(self, endpoint: str, topic: str) -> None:
        import confluent_kafka

        self._consumer: Any = confluent_kafka.Consumer({"bootstrap.servers": endpoint, "group.id": "scoreboard"})
        self._partition = confluent_kafka.TopicPartition(topic, 0)

    def has_topic(self) -> bool:
        """Whether it has been made."""
        is_there: bool = self._partition.topic in self._consumer.list_topics(timeout=10).topics
        return is_there

    def end(self) -> int:
        """The offset behind the last record."""
        end: int = self._consumer.get_watermark_offsets(self._partition, timeout=10)[1]
        return end


async def _produced_by_tool(endpoint: str, topic: str, options: Options) -> Numbers:
    async with _connected(endpoint) as client:
        await client.create(topic)
    return await asyncio.to_thread(_tool_window, endpoint, topic, **options)


def _tool_window(endpoint: str, topic: str, *, duration_s: float, warm_s: float) -> Numbers:
    """The tool runs for longer than the window; what the topic holds at both ends of it is counted."""
    warm_s = max(warm_s, TOOL_PRODUCER_WARM_S)
    count = int(TOOL_RECORDS_PER_S_MAX * (warm_s + duration_s))
    command = [*java_command(TOOLS, TOOL_JAVA), "org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
    command += ["--num-records", str(count), "--record-size", str(work.VALUE_BYTES), "--throughput", "-1"]
    command += ["--producer-props", f"bootstrap.servers={endpoint}", *TOOL_PRODUCER]
    offsets = _Offsets(endpoint, topic)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            deadline_s = time.monotonic() + FIRST_RECORD_TIMEOUT_S
            while offsets.end() == 0 and process.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.05)
            time.sleep(warm_s)
            first, began_s = offsets.end(), time.monotonic()
            time.sleep(duration_s)
            last, ended_s = offsets.end(), time.monotonic()
            is_running = process.poll() is None
        finally:
            process.kill()
        errors = process.communicate()[1].decode()
    if not is_running or last == first:
        raise WorkFailed(f"kafka-producer-perf-test ended, or sent nothing: {errors[-500:]}")
    took_s = ended_s - began_s
    numbers = {"records": last - first, "records_per_s": (last - first) / took_s, "took_s": took_s}
    return {**numbers, "stored": offsets.end(), "began_s": began_s, "ended_s": ended_s}


async def _consumed_by_tool(endpoint: str, topic: str, options: Options) -> Numbers:
    """One pass. Not over the topic of `batched`: that is read in a second."""
    warm_s = max(options["warm_s"], TOOL_CONSUMER_WARM_S)
    wanted = int(SCAN_RECORDS_PER_S * (warm_s + options["duration_s"]))
    offsets = _Offsets(endpoint, SCAN_TOPIC)
    if not offsets.has_topic():
        async with _connected(endpoint) as client:
            await client.create_unflushed(SCAN_TOPIC)
    await _fill(endpoint, SCAN_TOPIC, wanted - offsets.end())
    count = offsets.end()
    command = [
        *java_command(TOOLS, TOOL_JAVA),
        "org.apache.kafka.tools.ConsumerPerformance",
        "--bootstrap-server",
        endpoint,
    ]
    command += ["--topic", SCAN_TOPIC, "--messages", str(count), "--show-detailed-stats"]
    command += ["--reporting-interval", str(TOOL_REPORT_MS), "--hide-header"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        raise WorkFailed(f"kafka-consumer-perf-test: {errors.decode()[-500:]}")
    return scanned(output.decode(), warm_s=warm_s, wall_s=time.time(), monotonic_s=time.monotonic())


def scanned(output: str, *, warm_s: float, wall_s: float, monotonic_s: float) -> Numbers:
    """The rate behind the first `warm_s` of kafka-consumer-perf-test's detailed statistics.

    A line is "2025-01-31 12:00:00:123, 0, MB, MB/s, records, records/s, ...", MB and records from the start on. The
    last two arguments are the same moment, to tell the lines' times in monotonic time. Raises WorkFailed.
    """
    if "WARNING" in output:
        raise WorkFailed(f"kafka-consumer-perf-test: {output[output.index('WARNING') :][:300]}")
    lines = re.findall(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d):(\d{3}), \d+, [\d.]+, [\d.]+, (\d+),", output, re.MULTILINE)
    reports = [(datetime.fromisoformat(f"{at}.{ms}").timestamp(), int(records)) for at, ms, records in lines]
    while reports and reports[0][1] == 0:
        del reports[0]
    warm = [one for one in reports if one[0] >= reports[0][0] + warm_s]
    if len(warm) < 2:
        raise WorkFailed(f"kafka-consumer-perf-test read for less than {warm_s:g} s: {output[-300:]}")
    (first_s, first), (last_s, last) = warm[0], warm[-1]
    took_s, began_s = last_s - first_s, first_s - wall_s + monotonic_s
    numbers = {"records": last - first, "records_per_s": (last - first) / took_s, "took_s": took_s}
    return {**numbers, "began_s": began_s, "ended_s": began_s + took_s}


async def _replayed(endpoint: str, topic: str, options: Options) -> Numbers:
    host, _, port = endpoint.rpartition(":")
    async with _connected(endpoint) as client:
        await client.create(topic)
        await client.send(topic, [bytes(100)])  # librdkafka waits until the new topic has a leader, a replay would fail
        numbers = await replay.replay(
            host,
            int(port),
            request=protocol.produce(topic, _batch()),
            whole=protocol.produced_bytes,
            records=work.BATCH_RECORDS,
            connections=int(options["connections"]),
            duration_s=options["duration_s"],
            warm_s=options["warm_s"],
        )
        await client.drop(topic)
    return numbers


async def _fetched(endpoint: str, topic: str, options: Options) -> Numbers:
    host, _, port = endpoint.rpartition(":")
    async with _connected(endpoint) as client:
        await client.create_unflushed(topic)
        await _fill(endpoint, topic, FETCH_RECORDS)
        numbers = await replay.fetch(
            host,
            int(port),
            request=lambda offset: protocol.fetch(topic, offset, FETCH_BYTES),
            whole=protocol.fetched,
            count=FETCH_RECORDS,
            duration_s=options["duration_s"],
            warm_s=options["warm_s"],
        )
        await client.drop(topic)
    return numbers


async def _fill(endpoint: str, topic: str, count: int) -> None:
    """At least so many records, in batches of 1,000."""
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = protocol.produce(topic, _batch())
    sent = asyncio.Semaphore(FILL_IN_FLIGHT)
    batch_count = -(-count // work.BATCH_RECORDS)

    async def answered() -> None:
        buffer = bytearray()
        for _ in range(batch_count):
            while not (size := protocol.produced_bytes(buffer)):
                piece = await reader.read(65_536)
                if not piece:
                    raise WorkFailed("the broker closed the connection")
                buffer += piece
            del buffer[:size]
            sent.release()

    async def requested() -> None:
        for _ in range(batch_count):
            await sent.acquire()
            writer.write(request)
            await writer.drain()

    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(answered())
            both.create_task(requested())
    finally:
        writer.close()


def _batch() -> bytearray:
    """Now is its time: retention would remove what looks old."""
    values = [work.value(number) for number in range(work.BATCH_RECORDS)]
    return encode_columns(None, values, time.time_ns() // 1_000_000)


def _python(do: Callable[..., Awaitable[Numbers]]) -> Way:
    return Way("confluent-kafka", partial(_worked, do))


def java_command(tools: Path, options: Sequence[str]) -> list[str]:
    return [program("java", "default-jre-headless"), *options, "-cp", f"{tools / f'kafka-{VERSION}'}/*"]


class Kafka(Peer):
    """One broker; two levels."""

    name = "kafka"
    about = (
        f"Apache Kafka {VERSION}, KRaft, one broker, heap 1 GiB and G1 as its start script sets them, threads at their"
        f" defaults; acks=all. kafka-producer-perf-test: {', '.join(TOOL_PRODUCER)}. confluent-kafka: linger.ms=1 for"
        " batches and 0 for single records; queued.min.messages=1,000,000 and fetch.queue.backoff.ms=10 for reading."
        " Not in the work with an ack for every record: only its share groups, a preview in this version, have one"
    )
    levels = (
        Level("default", Durability.WRITTEN, "the operating system has it; when it is synced is left to it"),
        Level("flush each", Durability.SYNCED, "log.flush.interval.messages=1: a sync behind every append"),
    )
    warm_up_s = 20.0

    def prepare(self, tools: Path) -> str:
        jars(tools, f"kafka-{VERSION}", [f"org.apache.kafka:kafka{part}:{VERSION}" for part in ("_2.13", "-tools")])
        return VERSION

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        port, controller = free_port(), free_port()
        text = SETTINGS.format(port=port, controller=controller, logs=data / "kafka")
        if level.durability is Durability.SYNCED:
            text += "log.flush.interval.messages=1\n"
        (data / "server.properties").write_text(text)
        (data / "log4j2.properties").write_text(
            "rootLogger.level=warn\nrootLogger.appenderRef.c.ref=c\n"
            "appender.c.type=Console\nappender.c.name=c\nappender.c.layout.type=PatternLayout\n"
        )
        java = java_command(tools, (*SERVER_JAVA, f"-Dlog4j2.configurationFile={data / 'log4j2.properties'}"))
        if not (data / "kafka").exists():
            options = ("-t", CLUSTER_ID, "-c", str(data / "server.properties"))
            told = said([*java, "kafka.tools.StorageTool", "format", *options])
            if not (data / "kafka").exists():
                raise Died(f"Kafka's storage cannot be formatted: {told[-500:]}")
        command = [*java, "kafka.Kafka", str(data / "server.properties")]
        with running(f"127.0.0.1:{port}", [command], data) as server:
            yield server

    def ways(self, work_name: str) -> Sequence[Way]:
        match work_name:
            case "replay":
                return (Way("prebuilt bytes", _replayed),)
            case "fetch":
                return (Way("raw bytes", _fetched),)
            case "batched":
                return (Way("kafka-producer-perf-test", _produced_by_tool), _python(work.batched))
            case "scan":
                return (Way("kafka-consumer-perf-test", _consumed_by_tool), _python(work.scan))
            case "push" | "singles" | "topics" | "fill" | "first_record" | "drop":
                return (_python(getattr(work, work_name)),)
            case _:
                return ()


PEERS = (Kafka(),)

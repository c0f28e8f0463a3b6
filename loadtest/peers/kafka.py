"""Apache Kafka: one broker in KRaft mode, from its Maven artifacts; confluent-kafka (librdkafka) as the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from loadtest.peers.fetch import jars, program, said
from loadtest.peers.peer import Client, Durability, Peer
from loadtest.peers.servers import Died, Server, free_port, running

VERSION = "4.1.0"
POLL_S = 0.1
POLL_RECORDS = 10_000
CREATE_TIMEOUT_S = 30
CLUSTER_ID = "bXEtc2NvcmVib2FyZC0wMQ"
HEAP = "-Xmx1g"

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
"""


class _Client:
    """librdkafka calls back on its own thread; asyncio waits."""

    def __init__(self, endpoint: str) -> None:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient

        self._kafka: Any = confluent_kafka
        self._endpoint = endpoint
        self._producer: Any = confluent_kafka.Producer(
            {"bootstrap.servers": endpoint, "acks": "all", "linger.ms": 1, "batch.num.messages": 1000}
        )
        self._admin: Any = AdminClient({"bootstrap.servers": endpoint})
        self._waiting = 0
        self._poller: asyncio.Task[None] | None = None

    async def create(self, topic: str) -> None:
        """One partition, one replica."""
        made = self._admin.create_topics([self._kafka.admin.NewTopic(topic, 1, 1)])
        await asyncio.to_thread(made[topic].result, CREATE_TIMEOUT_S)

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

        def hand_over() -> None:
            for one in values:
                self._producer.produce(topic, one, on_delivery=acknowledged, partition=0)

        await asyncio.to_thread(hand_over) if len(values) > 1 else hand_over()
        self._waiting += 1
        if self._poller is None or self._poller.done():
            self._poller = loop.create_task(self._poll())
        try:
            await done
        finally:
            self._waiting -= 1

    async def _poll(self) -> None:
        """librdkafka calls back while it is polled; one thread does that for all sends."""
        while self._waiting:
            await asyncio.to_thread(self._producer.poll, 0.005)

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """A consumer that is assigned the partition from its start."""
        consumer = self._kafka.Consumer({"bootstrap.servers": self._endpoint, "group.id": "g", "fetch.wait.max.ms": 50})
        consumer.assign([self._kafka.TopicPartition(topic, 0, 0)])
        try:
            while True:
                messages = await asyncio.to_thread(consumer.consume, POLL_RECORDS, 0.002)
                if messages:
                    yield [message.value() for message in messages if message.error() is None]
        finally:
            consumer.close()


def _settle(done: asyncio.Future[None], error: object) -> None:
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(RuntimeError(str(error)))


class Kafka(Peer):
    """log.flush.interval.messages=1 syncs behind every append; as it comes Kafka leaves that to the system."""

    name = "kafka"
    about = f"Apache Kafka {VERSION}, KRaft, one broker, heap 1 GiB, acks=all; confluent-kafka"

    def prepare(self, tools: Path) -> str:
        jars(tools, f"kafka-{VERSION}", [f"org.apache.kafka:kafka_2.13:{VERSION}"])
        return VERSION

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        port, controller = free_port(), free_port()
        text = SETTINGS.format(port=port, controller=controller, logs=data / "kafka")
        if durability is Durability.SYNCED:
            text += "log.flush.interval.messages=1\n"
        (data / "server.properties").write_text(text)
        (data / "log4j2.properties").write_text(
            "rootLogger.level=warn\nrootLogger.appenderRef.c.ref=c\n"
            "appender.c.type=Console\nappender.c.name=c\nappender.c.layout.type=PatternLayout\n"
        )
        classpath = f"{tools / f'kafka-{VERSION}'}/*"
        java = [program("java", "default-jre-headless"), HEAP, "-XX:+UseG1GC", "-cp", classpath]
        java += [f"-Dlog4j2.configurationFile={data / 'log4j2.properties'}"]
        if not (data / "kafka").exists():
            options = ("-t", CLUSTER_ID, "-c", str(data / "server.properties"))
            told = said([*java, "kafka.tools.StorageTool", "format", *options])
            if not (data / "kafka").exists():
                raise Died(f"Kafka's storage cannot be formatted: {told[-500:]}")
        command = [*java, "kafka.Kafka", str(data / "server.properties")]
        with running(f"127.0.0.1:{port}", [command], data) as server:
            yield server

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        yield _Client(endpoint)


PEERS = (Kafka(),)

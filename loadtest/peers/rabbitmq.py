"""RabbitMQ, from Debian's packages, as two peers: classic queues and streams. Clients: its own PerfTest, aio-pika.

A classic queue confirms persistent messages when they are synced (checked: 20 messages confirmed one by one, 22 calls
of fsync). A stream confirms when they are written; it never syncs what it holds (checked: all calls of fsync were for
the files that say which streams there are). So the two are of different durability and have no work in common but
sending.

Without a plugin its delays are TTL queues, which keep the order in which they were filled: they are not measured.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.peers import tool, work
from loadtest.peers.fetch import TOOLS, jars, program, said
from loadtest.peers.peer import (
    Durability,
    Level,
    Numbers,
    Options,
    Peer,
    Unavailable,
    Way,
    WorkFailed,
    by_python_client,
)
from loadtest.peers.servers import Server, free_port, running

TOOL_ARTIFACT = "com.rabbitmq:perf-test:2.22.1"
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PREFETCH = 500
"""Messages on their way to a consumer; RabbitMQ advises some hundreds."""

ACKS_EVERY = 100
"""Of a stream, which has no acks of its own: it takes one as leave to send more."""

TOOL_WARM_S = 3.0
"""PerfTest's JVM is new in every step: it is still getting faster for so long."""

SCAN_WARM_S = 1.0
RECEIVE_WARM_SHARE = 0.25
"""Less for a consumer: what is there for it lasts some seconds."""

LOOK_S = 0.02


class _Client:
    """A topic is a durable queue; the default exchange leads to it."""

    arguments: Mapping[str, str] = {}

    def __init__(self, channel: Any, reader: Any) -> None:
        self._channel = channel
        self._reader = reader

    async def create(self, topic: str) -> None:
        """A durable queue."""
        await self._channel.declare_queue(topic, durable=True, arguments=dict(self.arguments))

    async def drop(self, topic: str) -> None:
        """With what it holds."""
        await self._channel.queue_delete(topic)

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """Published together; answered when every record is confirmed."""
        import aio_pika

        exchange = self._channel.default_exchange
        mode = aio_pika.DeliveryMode.PERSISTENT
        await asyncio.gather(
            *(exchange.publish(aio_pika.Message(one, delivery_mode=mode), routing_key=topic) for one in values)
        )

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """A consumer without acks."""
        async with aclosing(self._delivered(topic, no_ack=True)) as pieces:
            async for messages in pieces:
                yield [message.body for message in messages]

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """A consumer that acks every message. RabbitMQ confirms no acks."""
        async with aclosing(self._delivered(topic)) as pieces:
            async for messages in pieces:
                for message in messages:
                    await message.ack()
                yield [message.body for message in messages]

    async def stored(self, topic: str) -> int:
        """How many messages a queue holds that no consumer has."""
        queue = await self._channel.declare_queue(topic, passive=True)
        count: int = queue.declaration_result.message_count
        return count

    async def _delivered(self, topic: str, **consumer: Any) -> AsyncGenerator[Sequence[Any]]:
        waiting: asyncio.Queue[Any] = asyncio.Queue()
        queue = await self._reader.get_queue(topic)
        tag = await queue.consume(waiting.put, **consumer)
        try:
            while True:
                messages = [await waiting.get()]
                while not waiting.empty():
                    messages.append(waiting.get_nowait())
                yield messages
        finally:
            await queue.cancel(tag)


class _StreamClient(_Client):
    """A topic is a stream."""

    arguments: Mapping[str, str] = {"x-queue-type": "stream"}

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """From its first message. An ack of some stands for those before them."""
        unacked = 0
        async with aclosing(self._delivered(topic, arguments={"x-stream-offset": "first"})) as pieces:
            async for messages in pieces:
                unacked += len(messages)
                if unacked >= ACKS_EVERY:
                    await messages[-1].ack(multiple=True)
                    unacked = 0
                yield [message.body for message in messages]


@asynccontextmanager
async def _connected(endpoint: str, kind: type[_Client]) -> AsyncIterator[Any]:
    import aio_pika

    async with await aio_pika.connect(f"amqp://guest:guest@{endpoint}/") as connection:
        reader = await connection.channel(publisher_confirms=False)
        await reader.set_qos(prefetch_count=PREFETCH)
        yield kind(await connection.channel(), reader)


class Report(NamedTuple):
    """A line of PerfTest: the rate since the line before."""

    at_s: float
    per_s: int


def reports(output: str, what: str) -> list[Report]:
    """The rates that PerfTest has printed: of what is "confirmed" or "received"."""
    lines = re.findall(rf"time ([\d.]+) s,.* {what}: (\d+) msg/s", output)
    return [Report(float(at_s), int(per_s)) for at_s, per_s in lines]


def window(found: Sequence[Report], warm_s: float, zero_s: float) -> Numbers:
    """The rate from `warm_s` on; of a consumer not behind its last message.

    `zero_s`: when PerfTest's clock began. Raises WorkFailed.
    """
    while found and not found[-1].per_s:
        found = found[:-1]
    counts = [later.per_s * (later.at_s - earlier.at_s) for earlier, later in pairwise([Report(0.0, 0), *found])]
    used = [(report.at_s, count) for report, count in zip(found, counts, strict=True) if report.at_s >= warm_s]
    if len(used) < 2:
        raise WorkFailed(f"PerfTest printed no two rates behind its first {warm_s:g} s: {list(found)}")
    (began_s, _), *_, (ended_s, _) = used
    records = sum(count for _, count in used[1:])
    return {
        "records": round(records),
        "records_per_s": records / (ended_s - began_s),
        "took_s": ended_s - began_s,
        "began_s": zero_s + began_s,
        "ended_s": zero_s + ended_s,
        "stored": round(sum(counts)),
    }


async def _ran(endpoint: str, load: Sequence[str], what: str, warm_s: float) -> Numbers:
    """A run of PerfTest, its time told by when its lines come."""
    async with tool.running(_perf_test(endpoint, load)) as running_tool:
        found: list[Report] = []
        zero_s = 0.0
        while running_tool.is_alive:
            if len(now := reports(running_tool.output(), what)) > len(found):
                found, zero_s = now, time.monotonic() - now[-1].at_s
            await asyncio.sleep(LOOK_S)
        return window(reports(await running_tool.end(), what), warm_s, zero_s)


async def _published(endpoint: str, topic: str, options: Options, *, kind: type[_Client]) -> Numbers:
    """Four producers, each with 1,000 unconfirmed messages."""
    load = ["--producers", str(work.IN_FLIGHT), "--confirm", str(work.BATCH_RECORDS), "--queue", topic]
    async with _connected(endpoint, kind) as client:
        await client.create(topic)
        return await _sent(endpoint, load, kind, options)


async def _published_singly(endpoint: str, topic: str, options: Options, *, kind: type[_Client]) -> Numbers:
    """64 producers over ten queues, each with one unconfirmed message."""
    names = [f"{topic}-{number}" for number in range(work.SINGLES_TOPICS)]
    load = ["--producers", str(work.SINGLES_IN_FLIGHT), "--confirm", "1", "--queue-pattern", f"{topic}-%d"]
    load += ["--queue-pattern-from", "0", "--queue-pattern-to", str(work.SINGLES_TOPICS - 1)]
    async with _connected(endpoint, kind) as client:
        for name in names:
            await client.create(name)
        numbers = await _sent(endpoint, load, kind, options)
        for name in names:
            await client.drop(name)
    return numbers


async def _sent(endpoint: str, load: Sequence[str], kind: type[_Client], options: Options) -> Numbers:
    warm_s = max(options["warm_s"], TOOL_WARM_S)
    to_send = ["--consumers", "0", "--size", str(work.VALUE_BYTES), *_for(warm_s + options["duration_s"])]
    return await _ran(endpoint, [*load, *to_send, *_declaring(kind)], "confirmed", warm_s)


async def _received(endpoint: str, topic: str, options: Options) -> Numbers:
    """An ack for every message."""
    fill = ["--producers", str(work.IN_FLIGHT), "--consumers", "0", "--confirm", str(work.BATCH_RECORDS)]
    fill += ["--queue", topic, "--size", str(work.VALUE_BYTES), *_for(options["fill_s"])]
    fill += ["--pmessages", str(int(options["count"]) // work.IN_FLIGHT)]
    async with _connected(endpoint, _Client) as client:
        await client.create(topic)
        await tool.ran(_perf_test(endpoint, [*fill, *_declaring(_Client)]))
        consume = ["--producers", "0", "--queue", topic, "--qos", str(PREFETCH), *_declaring(_Client)]
        count = await client.stored(topic)
        async with tool.running(_perf_test(endpoint, consume)) as consumer:
            numbers = await tool.drained(
                consumer,
                lambda: client.stored(topic),
                count=count,
                warm_share=RECEIVE_WARM_SHARE,
                duration_s=options["duration_s"],
            )
        await client.drop(topic)
    return numbers


async def _scanned(endpoint: str, topic: str, options: Options) -> Numbers:
    """One pass, from the first message."""
    warm_s = max(options["warm_s"], SCAN_WARM_S)
    consume = ["--producers", "0", "--queue", topic, "--qos", str(PREFETCH), "--multi-ack-every", str(ACKS_EVERY)]
    consume += ["--stream-consumer-offset", "first", "--cmessages", str(int(options["count"]))]
    consume += [*_for(warm_s + options["duration_s"]), *_declaring(_StreamClient)]
    return await _ran(endpoint, consume, "received", warm_s)


def _for(duration_s: float) -> list[str]:
    """It counts whole seconds, and prints a rate behind each."""
    return ["--time", str(math.ceil(duration_s) + 1)]


def _declaring(kind: type[_Client]) -> list[str]:
    """It declares its queues itself, as they are declared already. (Its own option for streams limits their size.)"""
    arguments = ",".join(f"{name}={value}" for name, value in kind.arguments.items())
    return ["--flag", "persistent", "--auto-delete", "false", *(["--queue-args", arguments] if arguments else [])]


def _perf_test(endpoint: str, load: Sequence[str]) -> list[str]:
    classpath = f"{jars(TOOLS, 'rabbitmq-perf-test', [TOOL_ARTIFACT])}/*"
    java = [program("java", "default-jre-headless"), "-cp", classpath, "com.rabbitmq.perf.PerfTest"]
    return [*java, "--uri", f"amqp://guest:guest@{endpoint}", *load]


class RabbitMq(Peer):
    """Classic queues."""

    name = "rabbitmq"
    about = (
        "RabbitMQ as Debian 12 has it, 3.10 of 2022, whose support has ended: a classic durable queue, persistent"
        f" messages, publisher confirms, {PREFETCH} messages on their way to a consumer. PerfTest"
        f" ({TOOL_ARTIFACT.rpartition(':')[2]}): {work.IN_FLIGHT} producers with {work.BATCH_RECORDS:,} unconfirmed"
        " messages each, or 64 with one; an ack for every message"
    )
    levels: Sequence[Level] = (
        Level(
            "classic queue",
            Durability.SYNCED,
            "a message is confirmed when it is synced; one sync for all that have come meanwhile",
        ),
    )
    _client: type[_Client] = _Client

    def prepare(self, tools: Path) -> str:
        if not SERVER.exists():
            raise Unavailable("rabbitmq-server is not installed (apt-get install rabbitmq-server)")
        jars(tools, "rabbitmq-perf-test", [TOOL_ARTIFACT])
        told = said(["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"])
        return told.strip() or "of unknown version"

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        port, distribution = free_port(), free_port()
        home = data / "rabbitmq"
        home.mkdir(exist_ok=True)
        (data / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{port}\nvm_memory_high_watermark.relative = 0.4\nlog.console.level = error\n"
        )
        (data / "enabled_plugins").write_text("[].\n")
        environment = {
            "HOME": str(home),
            "RABBITMQ_NODENAME": "mq@localhost",  # its data are under this name, so it is the same after a restart
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(data / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(data / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
        }
        if os.geteuid() == 0:
            environment["RABBITMQ_USER"] = "root"
        epmd = shutil.which("epmd") or program("epmd", "erlang-base")
        commands = [[epmd, "-address", "127.0.0.1", "-port", environment["ERL_EPMD_PORT"]], [str(SERVER)]]
        with running(f"127.0.0.1:{port}", commands, data, environment=environment) as server:
            yield server

    def ways(self, work_name: str) -> Sequence[Way]:
        python = partial(by_python_client, partial(_connected, kind=self._client), client="aio-pika")
        match work_name:
            case "batched":
                return (Way("PerfTest", partial(_published, kind=self._client)), python(work.batched))
            case "singles":
                return (Way("PerfTest", partial(_published_singly, kind=self._client)), python(work.singles))
            case "receive":
                return (Way("PerfTest", _received), python(work.receive))
            case "push" | "topics" | "create" | "fill" | "first_record" | "drop":
                return (python(getattr(work, work_name)),)
            case _:
                return ()


class RabbitMqStreams(RabbitMq):
    """Streams, over AMQP as well."""

    name = "rabbitmq streams"
    about = (
        "The same RabbitMQ, a stream instead of the queue, over AMQP (its own protocol needs a plugin);"
        f" an ack for every {ACKS_EVERY} messages, which only asks for more"
    )
    levels = (Level("stream", Durability.WRITTEN, "a message is confirmed when it is written; it is never synced"),)
    _client = _StreamClient

    def ways(self, work_name: str) -> Sequence[Way]:
        match work_name:
            case "scan":
                python = by_python_client(partial(_connected, kind=_StreamClient), work.scan, "aio-pika")
                return (Way("PerfTest", _scanned), python)
            case "receive":
                return ()
            case _:
                return super().ways(work_name)


PEERS = (RabbitMq(), RabbitMqStreams())

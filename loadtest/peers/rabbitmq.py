"""RabbitMQ, from Debian's packages; aio-pika as the client, with publisher confirms.

Confirms of persistent messages to a durable queue are sent when the messages are on disk (RabbitMQ decides itself when
it syncs, at latest every few hundred ms), so there is one level of durability. Consumers are pushed to and do not ack:
the queue is not kept, so a topic can be read once. Without a plugin its delays are TTL queues, which keep the order in
which they were filled: they are not measured.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from loadtest.peers.fetch import program, said
from loadtest.peers.peer import Client, Durability, Peer, Unavailable
from loadtest.peers.servers import Server, free_port, running

PREFETCH = 5_000
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class _Client:
    """A topic is a durable queue; the default exchange leads to it."""

    def __init__(self, channel: Any, reader: Any) -> None:
        self._channel = channel
        self._reader = reader

    async def create(self, topic: str) -> None:
        """A durable queue."""
        await self._channel.declare_queue(topic, durable=True)

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
        waiting: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(message: Any) -> None:
            waiting.put_nowait(message.body)

        queue = await self._reader.declare_queue(topic, durable=True)
        tag = await queue.consume(on_message, no_ack=True)
        try:
            while True:
                values = [await waiting.get()]
                while not waiting.empty():
                    values.append(waiting.get_nowait())
                yield values
        finally:
            await queue.cancel(tag)


class RabbitMq(Peer):
    """Classic durable queues."""

    name = "rabbitmq"
    about = (
        "RabbitMQ, a classic durable queue, persistent messages, publisher confirms, a consumer without acks; aio-pika"
    )
    durabilities = (Durability.SYNCED,)

    def prepare(self, tools: Path) -> str:
        if not SERVER.exists():
            raise Unavailable("rabbitmq-server is not installed (apt-get install rabbitmq-server)")
        told = said(["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"])
        return told.strip() or "of unknown version"

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
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

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        import aio_pika

        async with await aio_pika.connect(f"amqp://guest:guest@{endpoint}/") as connection:
            reader = await connection.channel(publisher_confirms=False)
            await reader.set_qos(prefetch_count=PREFETCH)
            yield _Client(await connection.channel(), reader)


PEERS = (RabbitMq(),)

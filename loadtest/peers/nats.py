"""NATS JetStream: nats-server built from the Go module proxy; nats-py as the client.

Its delays are a header of single messages, in whole seconds and one subject each: they are not measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from loadtest.peers.fetch import go_program
from loadtest.peers.peer import Client, Durability, Peer
from loadtest.peers.servers import Server, free_port, running

VERSION = "v2.12.2"
MODULE = "github.com/nats-io/nats-server/v2"
PENDING_MAX = 8_000


class _Client:
    """A topic is a stream with one subject of the same name."""

    def __init__(self, connection: Any) -> None:
        self._stream: Any = connection.jetstream(publish_async_max_pending=PENDING_MAX)

    async def create(self, topic: str) -> None:
        """A stream in files."""
        await self._stream.add_stream(name=topic, subjects=[topic])

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """Published without waiting in between; answered when every record is acknowledged."""
        if len(values) == 1:
            await self._stream.publish(topic, values[0])
            return
        answers = [await self._stream.publish_async(topic, one, wait_stall=30) for one in values]
        await asyncio.gather(*answers)

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """An ordered push consumer, from the first record."""
        waiting: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(message: Any) -> None:
            waiting.put_nowait(message.data)

        subscription = await self._stream.subscribe(topic, ordered_consumer=True, cb=on_message)
        try:
            while True:
                values = [await waiting.get()]
                while not waiting.empty():
                    values.append(waiting.get_nowait())
                yield values
        finally:
            await subscription.unsubscribe()


class Nats(Peer):
    """sync_interval: always syncs behind every message; as it comes NATS syncs every two minutes."""

    name = "nats"
    about = f"NATS JetStream {VERSION}, one server, file storage, an ordered push consumer; nats-py"

    def prepare(self, tools: Path) -> str:
        go_program(tools, MODULE, MODULE, VERSION)
        return VERSION

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        port = free_port()
        sync = "sync_interval: always" if durability is Durability.SYNCED else ""
        (data / "nats.conf").write_text(
            f'host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{data / "nats"}"\n {sync} }}\n'
        )
        binary = go_program(tools, MODULE, MODULE, VERSION)
        with running(f"127.0.0.1:{port}", [[binary, "-c", str(data / "nats.conf")]], data) as server:
            yield server

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        import nats

        connection = await nats.connect(f"nats://{endpoint}")
        try:
            yield _Client(connection)
        finally:
            await connection.close()


PEERS = (Nats(),)

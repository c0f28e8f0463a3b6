"""Redis Streams, from Debian's packages; redis-py as the client, pipelined.

Delayed records are what people build on Redis: a sorted set by due time, and a loop that moves what is due to the
stream, every 10 ms, by a script. The loop runs in the client's process, as it would in a user's.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from loadtest.peers.fetch import program, said
from loadtest.peers.peer import Client, Durability, Peer
from loadtest.peers.servers import Server, free_port, running

READ_RECORDS = 5_000
POLL_S = 0.01
CONNECTIONS_MAX = 10_000
MOVE = (
    "local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1000) "
    "for _, one in ipairs(due) do redis.call('XADD', KEYS[2], '*', 'v', string.sub(one, 10)) end "
    "if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end return #due"
)


class _Client:
    """Sends over one connection each, reads over another."""

    def __init__(self, connect: Any) -> None:
        self._connect = connect
        self._sender: Any = connect()
        self._mover: asyncio.Task[None] | None = None
        self._is_closing = False
        self._number = 0

    async def create(self, topic: str) -> None:
        """A stream is there once it has been sent to."""

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One pipeline of XADD."""
        pipeline = self._sender.pipeline(transaction=False)
        for one in values:
            pipeline.xadd(topic, {"v": one})
        await pipeline.execute()

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """XREAD, blocking."""
        connection: Any = self._connect()
        last: bytes | str = "0-0"
        try:
            while True:
                found = await connection.xread({topic: last}, count=READ_RECORDS, block=1_000)
                if found:
                    entries = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
                    last = entries[-1][0]
                    yield [fields[b"v"] for _, fields in entries]
        finally:
            await connection.aclose()

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """One ZADD; members begin with a number, since equal members would be one."""
        if self._mover is None:
            self._mover = asyncio.get_running_loop().create_task(self._move(topic))
        members = {}
        for one, due in zip(values, due_ms, strict=True):
            self._number += 1
            members[b"%08d:" % self._number + one] = due
        await self._sender.zadd(f"{topic}:due", members)

    async def _move(self, topic: str) -> None:
        connection: Any = self._connect()
        while not self._is_closing:
            if not await connection.eval(MOVE, 2, f"{topic}:due", topic, time.time_ns() // 1_000_000):
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Let the loop end by itself: one that is cancelled in a call may go on for ever (redis-py 8.1). Raises what it
        came to."""
        self._is_closing = True
        if self._mover is not None:
            await self._mover


class Redis(Peer):
    """appendfsync always syncs behind every pipeline; everysec is its default."""

    name = "redis streams"
    about = "Redis Streams, append-only file; delayed: a sorted set and a loop that moves what is due; redis-py"
    can_delay = True

    def prepare(self, tools: Path) -> str:
        return said([program("redis-server", "redis-server"), "--version"]).split("v=")[1].split()[0]

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        port = free_port()
        level = "always" if durability is Durability.SYNCED else "everysec"
        # fmt: off
        command = [
            program("redis-server", "redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data),
            "--appendonly", "yes", "--appendfsync", level, "--save", "",
        ]
        # fmt: on
        with running(f"127.0.0.1:{port}", [command], data, is_ready=lambda _: _has_loaded(port)) as server:
            yield server

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        from redis.asyncio import Redis as Connection

        port = int(endpoint.rpartition(":")[2])
        client = _Client(lambda: Connection(host="127.0.0.1", port=port, max_connections=CONNECTIONS_MAX))
        yield client
        await client.close()


def _has_loaded(port: int) -> bool:
    """Whether it answers. It listens before it has read its file, and answers -LOADING until then."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


PEERS = (Redis(),)

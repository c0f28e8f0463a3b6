"""Redis Streams, from Debian's packages. Clients: redis-benchmark, redis-py with hiredis, prebuilt RESP.

Delayed records are what people build on Redis: a sorted set by due time, and a loop that moves what is due to the
stream by a script. The loop runs in the client's process, as it would in a user's. It sleeps until the next record is
due, so that lateness is Redis's and not that of a poll.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.peers import replay, tool, work
from loadtest.peers.fetch import program, said
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

CONNECTIONS_MAX = 10_000
READ_RECORDS = 10_000
READ_TIMEOUT_MS = 1_000
GROUP_READ_RECORDS = 1_000
GROUP = "scoreboard"
MOVE_RECORDS = 1_000
MOVE = (
    f"local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, {MOVE_RECORDS}) "
    "for _, one in ipairs(due) do redis.call('XADD', KEYS[2], '*', 'v', string.sub(one, 10)) end "
    "if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end "
    "return redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')"
)
IDLE_S = 0.01
"""How long the loop sleeps at most: a record that is due before all others may be added meanwhile."""

ENDLESS = str(2**31 - 1)
"""Requests of a redis-benchmark that is not to end."""

RANDOM_KEY = "__rand_int__"


class _Client:
    """Each call takes a connection from a pool, which has as many as are needed."""

    def __init__(self, port: int) -> None:
        from redis.asyncio import Redis as Connections

        self._redis: Any = Connections(host="127.0.0.1", port=port, max_connections=CONNECTIONS_MAX, protocol=2)
        self._mover: asyncio.Task[None] | None = None
        self._is_closing = False
        self._number = 0

    async def create(self, topic: str) -> None:
        """A stream is there once it has been sent to."""

    async def drop(self, topic: str) -> None:
        """Its memory is freed in the background; the append-only file is rewritten when Redis sees fit."""
        await self._redis.unlink(topic, f"{topic}:due")

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """XADD; a pipeline of them when there are several."""
        if len(values) == 1:
            await self._redis.xadd(topic, {"v": values[0]})
            return
        pipeline = self._redis.pipeline(transaction=False)
        for one in values:
            pipeline.xadd(topic, {"v": one})
        await pipeline.execute()

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """XREAD, blocking."""
        last: bytes | str = "0-0"
        async with self._redis.client() as connection:
            while True:
                found = await connection.xread({topic: last}, count=READ_RECORDS, block=READ_TIMEOUT_MS)
                if found:
                    entries = found[0][1]
                    last = entries[-1][0]
                    yield [fields[b"v"] for _, fields in entries]

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """XREADGROUP; XACK of every record travels with the next read, and is confirmed before they are yielded."""
        await self._redis.xgroup_create(topic, GROUP, "0", mkstream=True)
        entries: Sequence[Any] = ()
        async with self._redis.client() as connection:
            while True:
                pipeline = connection.pipeline(transaction=False)
                if entries:
                    pipeline.xack(topic, GROUP, *(one for one, _ in entries))
                pipeline.xreadgroup(GROUP, "consumer", {topic: ">"}, count=GROUP_READ_RECORDS)
                *acked, found = await pipeline.execute()
                if entries:
                    if acked != [len(entries)]:
                        raise WorkFailed(f"{acked} of {len(entries)} records were acknowledged")
                    yield [fields[b"v"] for _, fields in entries]
                elif not found:
                    await asyncio.sleep(IDLE_S)
                entries = found[0][1] if found else ()

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """One ZADD; members begin with a number, since equal members would be one."""
        if self._mover is None:
            self._mover = asyncio.get_running_loop().create_task(self._move(topic))
        members = {}
        for one, due in zip(values, due_ms, strict=True):
            self._number += 1
            members[b"%08d:" % self._number + one] = due
        await self._redis.zadd(f"{topic}:due", members)

    async def _move(self, topic: str) -> None:
        move = self._redis.register_script(MOVE)
        while not self._is_closing:
            left = await move(keys=[f"{topic}:due", topic], args=[time.time_ns() // 1_000_000])
            next_s = float(left[1]) / 1000 - time.time() if left else IDLE_S
            if next_s > 0:
                await asyncio.sleep(min(next_s, IDLE_S))

    async def stored(self, topics: Sequence[str]) -> int:
        """How many records streams hold."""
        pipeline = self._redis.pipeline(transaction=False)
        for topic in topics:
            pipeline.xlen(topic)
        counts: Sequence[int] = await pipeline.execute()
        return sum(counts)

    async def close(self) -> None:
        """Let the loop end by itself: one that is cancelled in a call may go on for ever (redis-py 8.1). Raises what it
        came to."""
        self._is_closing = True
        if self._mover is not None:
            await self._mover
        await self._redis.aclose()


@asynccontextmanager
async def _connected(endpoint: str) -> AsyncIterator[_Client]:
    client = _Client(int(endpoint.rpartition(":")[2]))
    yield client
    await client.close()


def xadd(topic: str, value: bytes) -> bytes:
    """XADD in RESP, the protocol of Redis: an array of strings, each behind its length."""
    words = (b"XADD", topic.encode(), b"*", b"v", value)
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def added_bytes(buffer: bytearray) -> int:
    """The size of the answers to a batch of XADD when all are there, else 0: each is an ID behind its length.

    Raises WorkFailed for an error.
    """
    if buffer.startswith(b"-") or b"\n-" in buffer:  # no line of an ID begins so
        raise WorkFailed(bytes(buffer[:200]).decode(errors="replace"))
    return len(buffer) if buffer.count(b"\n") == 2 * work.BATCH_RECORDS else 0


async def _replayed(endpoint: str, topic: str, options: Options) -> Numbers:
    host, _, port = endpoint.rpartition(":")
    request = b"".join(xadd(topic, work.value(number)) for number in range(work.BATCH_RECORDS))
    numbers = await replay.replay(
        host,
        int(port),
        request=request,
        whole=added_bytes,
        records=work.BATCH_RECORDS,
        connections=int(options["connections"]),
        duration_s=options["duration_s"],
        warm_s=options["warm_s"],
    )
    async with _connected(endpoint) as client:
        await client.drop(topic)
    return numbers


async def _batched_by_tool(endpoint: str, topic: str, options: Options) -> Numbers:
    pipelined = ["-P", str(work.BATCH_RECORDS), "-c", str(work.IN_FLIGHT)]
    async with _connected(endpoint) as client:
        command = _benchmark(endpoint, pipelined, topic)
        return await tool.window(command, lambda: client.stored([topic]), options)


async def _singles_by_tool(endpoint: str, topic: str, options: Options) -> Numbers:
    names = [f"{topic}-{number:012}" for number in range(work.SINGLES_TOPICS)]
    one_by_one = ["-P", "1", "-c", str(work.SINGLES_IN_FLIGHT), "-r", str(work.SINGLES_TOPICS)]
    async with _connected(endpoint) as client:
        command = _benchmark(endpoint, one_by_one, f"{topic}-{RANDOM_KEY}")
        numbers = await tool.window(command, lambda: client.stored(names), options)
        for name in names:
            await client.drop(name)
    return numbers


def _benchmark(endpoint: str, load: Sequence[str], key: str) -> list[str]:
    port = endpoint.rpartition(":")[2]
    command = [program("redis-benchmark", "redis-tools"), "-h", "127.0.0.1", "-p", port, "-n", ENDLESS, "-q", *load]
    return [*command, "XADD", key, "*", "v", work.value(1).decode()]


class Redis(Peer):
    """Streams and, for delays, sorted sets."""

    name = "redis streams"
    about = (
        "Redis Streams, append-only file, all else at its defaults (the file is rewritten when it has doubled)."
        f" redis-benchmark: -P {work.BATCH_RECORDS} -c {work.IN_FLIGHT} for batches. redis-py with hiredis: pipelines"
        f" of XADD, XREAD COUNT {READ_RECORDS:,}, XREADGROUP COUNT {GROUP_READ_RECORDS:,} with XACK of every record."
        " Delayed: a sorted set and a loop that moves what is due by a script"
    )
    levels = (
        Level(
            "everysec",
            Durability.WRITTEN,
            "appendfsync everysec, its default: written before the answer, synced every second. While such a sync is"
            " running, writes wait for it up to 2 s and answers do not: a killed process may lose those",
        ),
        Level("always", Durability.SYNCED, "appendfsync always: one sync for all commands that came together"),
    )

    def prepare(self, tools: Path) -> str:
        try:
            import hiredis  # noqa: F401
        except ImportError:
            raise Unavailable("hiredis is not installed (pip install 'redis[hiredis]')") from None
        program("redis-benchmark", "redis-tools")
        return said([program("redis-server", "redis-server"), "--version"]).split("v=")[1].split()[0]

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        port = free_port()
        # fmt: off
        command = [
            program("redis-server", "redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data),
            "--appendonly", "yes", "--appendfsync", level.name, "--save", "",
        ]
        # fmt: on
        with running(f"127.0.0.1:{port}", [command], data, is_ready=lambda _: _has_loaded(port)) as server:
            yield server

    def ways(self, work_name: str) -> Sequence[Way]:
        python = partial(by_python_client, _connected, client="redis-py with hiredis")
        match work_name:
            case "replay":
                return (Way("prebuilt bytes", _replayed),)
            case "batched":
                return (Way("redis-benchmark", _batched_by_tool), python(work.batched))
            case "singles":
                return (Way("redis-benchmark", _singles_by_tool), python(work.singles))
            case "scan" | "receive" | "push" | "delayed" | "topics" | "create" | "fill" | "first_record" | "drop":
                return (python(getattr(work, work_name)),)
            case _:
                return ()


def _has_loaded(port: int) -> bool:
    """Whether it answers. It listens before it has read its file, and answers -LOADING until then."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


PEERS = (Redis(),)

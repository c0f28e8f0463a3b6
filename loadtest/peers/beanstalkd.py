"""beanstalkd, from Debian's packages; its text protocol, spoken here and pipelined. A tube is read once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from loadtest.peers.fetch import program, said
from loadtest.peers.peer import Client, Durability, Peer
from loadtest.peers.servers import Server, free_port, running

RESERVE_RECORDS = 100
DEFAULT_SYNC_MS = 50


class _Connection:
    """Commands out, answers in, one caller at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer


class _Client:
    """A connection for each caller at work."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._senders: asyncio.Queue[_Connection] = asyncio.Queue()

    async def _connect(self) -> _Connection:
        return _Connection(*await asyncio.open_connection(self._host, self._port, limit=2**22))

    async def create(self, topic: str) -> None:
        """A tube is there once it has been sent to."""

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """`put`s, pipelined."""
        await self._put(topic, [(0, one) for one in values])

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """`put`s with a delay. Its seconds are whole: a delay is rounded up, and then late by up to a second."""
        now_ms = time.time_ns() // 1_000_000
        await self._put(
            topic, [(max(-((now_ms - due) // 1000), 1), one) for one, due in zip(values, due_ms, strict=True)]
        )

    async def _put(self, topic: str, jobs: Sequence[tuple[int, bytes]]) -> None:
        connection = await self._connect() if self._senders.empty() else self._senders.get_nowait()
        puts = (b"put 1 %d 60 %d\r\n%s\r\n" % (delay_s, len(one), one) for delay_s, one in jobs)
        connection.writer.write(b"use %s\r\n" % topic.encode() + b"".join(puts))
        await connection.reader.readline()
        for _ in jobs:
            answer = await connection.reader.readline()
            if not answer.startswith(b"INSERTED"):
                raise RuntimeError(answer.decode())
        self._senders.put_nowait(connection)

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """reserve and delete, 100 of each on the way."""
        connection = await self._connect()
        reader, writer = connection.reader, connection.writer
        writer.write(b"watch %s\r\nignore default\r\n" % topic.encode())
        await reader.readline()
        await reader.readline()
        writer.write(b"reserve\r\n" * RESERVE_RECORDS)
        try:
            while True:
                line = await reader.readline()
                if line.startswith(b"DELETED"):
                    continue
                word, job, size = line.split()
                if word != b"RESERVED":
                    raise RuntimeError(line.decode())
                body = await reader.readexactly(int(size) + 2)
                writer.write(b"delete %s\r\nreserve\r\n" % job)
                yield [body[:-2]]
        finally:
            writer.close()


class Beanstalkd(Peer):
    """-f 0 syncs behind every job; its default is at most every 50 ms."""

    name = "beanstalkd"
    about = "beanstalkd, binlog; its protocol, pipelined"
    can_delay = True

    def prepare(self, tools: Path) -> str:
        return said([program("beanstalkd", "beanstalkd"), "-v"]).split()[-1]

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        port = free_port()
        (data / "binlog").mkdir(exist_ok=True)
        every_ms = 0 if durability is Durability.SYNCED else DEFAULT_SYNC_MS
        # fmt: off
        command = [
            program("beanstalkd", "beanstalkd"), "-l", "127.0.0.1", "-p", str(port), "-b", str(data / "binlog"),
            "-f", str(every_ms),
        ]
        # fmt: on
        with running(f"127.0.0.1:{port}", [command], data) as server:
            yield server

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        host, port = endpoint.split(":")
        yield _Client(host, int(port))


PEERS = (Beanstalkd(),)

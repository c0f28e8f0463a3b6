"""beanstalkd, from Debian's packages. Clients: greenstalk, its text protocol spoken here and pipelined, prebuilt puts.

It has jobs and no log: what is consumed is deleted, so there is no scan.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from loadtest.peers import replay, work
from loadtest.peers.fetch import program, said
from loadtest.peers.peer import (
    Client,
    Durability,
    Level,
    Numbers,
    Options,
    Peer,
    Way,
    WorkFailed,
    by_python_client,
)
from loadtest.peers.servers import Server, free_port, running

READ_BYTES = 2**18
WIDTH_MAX = 128
"""Jobs that are reserved and deleted together."""

TTR_S = 60
FEW_JOBS = 50_000
"""So many are left where they are: they take little memory, and to delete one is a sync at -f 0."""

DELETES = 1_000
PEEKED = re.compile(rb"(?s:FOUND (\d+) \d+\r\n.*|NOT_FOUND)\r\n\Z")
STATS = re.compile(rb"current-jobs-ready: (\d+)\n(?s:.*)\r\n\Z")
T = TypeVar("T")


class Job(NamedTuple):
    """A job that has been reserved."""

    number: bytes
    value: bytes


class _Connection:
    """Commands out, answers in, one caller at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def asked(self, commands: bytes, cut: Callable[[bytearray], T | None]) -> T:
        """What `cut` makes of the answers to commands once they are whole. Raises WorkFailed."""
        buffer = bytearray()
        self._writer.write(commands)
        while True:
            piece = await self._reader.read(READ_BYTES)
            if not piece:
                raise WorkFailed("beanstalkd closed the connection")
            buffer += piece
            if (found := cut(buffer)) is not None:
                return found

    def close(self) -> None:
        self._writer.close()


class _Client:
    """A connection for each caller at work."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._senders: list[_Connection] = []

    async def _connect(self) -> _Connection:
        return _Connection(*await asyncio.open_connection(self._host, self._port))

    async def create(self, topic: str) -> None:
        """A tube is there once it has been sent to."""

    async def drop(self, topic: str) -> None:
        """Delete its jobs by their numbers, unless they are few.

        Numbers are given in the order of arrival and steps follow one another: those between the first of a tube and as
        many as it has belong to the same step.
        """
        connection = await self._connect()
        while found := await self._first(connection, topic):
            first, count = found
            if count < FEW_JOBS:
                break
            for start in range(first, first + count, DELETES):
                numbers = range(start, min(start + DELETES, first + count))
                commands = b"".join(b"delete %d\r\n" % number for number in numbers)
                await connection.asked(commands, partial(_lines, count=len(numbers)))
        connection.close()

    async def _first(self, connection: _Connection, topic: str) -> tuple[int, int] | None:
        """The number of the first ready job of a tube, and how many there are; None without any."""
        peeked = await connection.asked(use(topic) + b"peek-ready\r\n", PEEKED.search)
        if peeked[1] is None:
            return None
        stats = await connection.asked(b"stats-tube %s\r\n" % topic.encode(), STATS.search)
        return int(peeked[1]), int(stats[1])

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
        connection = self._senders.pop() if self._senders else await self._connect()
        commands = use(topic) + b"".join(put(one, delay_s) for delay_s, one in jobs)
        await connection.asked(commands, lambda buffer: inserted_bytes(buffer, len(jobs)) or None)
        self._senders.append(connection)

    def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Jobs as soon as they are reserved; they are deleted afterwards."""
        return self._consumed(topic, is_deleted_first=False)

    def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Jobs that have been reserved and deleted."""
        return self._consumed(topic, is_deleted_first=True)

    async def _consumed(self, topic: str, *, is_deleted_first: bool) -> AsyncGenerator[Sequence[bytes]]:
        """Deletes of jobs travel with the next reserves, which are twice as many as long as all find a job.

        The first reserve waits for a job, and nothing on a connection gets past it: it may not while deletes are due.
        """
        connection = await self._connect()
        await connection.asked(b"watch %s\r\nignore default\r\n" % topic.encode(), partial(_lines, count=2))
        jobs: Sequence[Job] = ()
        width = 1
        try:
            while True:
                deletes = b"".join(b"delete %s\r\n" % job.number for job in jobs)
                first = b"reserve-with-timeout 0\r\n" if is_deleted_first and jobs else b"reserve\r\n"
                reserves = first + b"reserve-with-timeout 0\r\n" * (width - 1)
                deleted, jobs = (
                    jobs,
                    await connection.asked(deletes + reserves, partial(consumed, deleted=len(jobs), reserved=width)),
                )
                width = min(2 * width, WIDTH_MAX) if len(jobs) == width else max(len(jobs), 1)
                if shown := deleted if is_deleted_first else jobs:
                    yield [job.value for job in shown]
        finally:
            connection.close()


class _Greenstalk:
    """greenstalk's, which waits for every answer. A thread for each connection."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._threads = ThreadPoolExecutor(work.IN_FLIGHT)
        self._senders: list[Any] = []
        self._own = _Client(host, port)

    async def create(self, topic: str) -> None:
        """A tube is there once it has been sent to."""

    async def drop(self, topic: str) -> None:
        """As ours."""
        await self._own.drop(topic)

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """`put`s one after the other."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._send, topic, values)

    def _send(self, topic: str, values: Sequence[bytes]) -> None:
        connection = self._senders.pop() if self._senders else self._connect()
        connection.use(topic)
        for one in values:
            connection.put(one)
        self._senders.append(connection)

    def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """As `receive`: it knows no other way."""
        return self.receive(topic)

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Reserve, then delete, one job after the other."""
        connection = self._connect(watch=topic)
        loop = asyncio.get_running_loop()
        try:
            while True:
                yield await loop.run_in_executor(self._threads, _reserved_and_deleted, connection)
        finally:
            connection.close()

    def _connect(self, **tubes: str) -> Any:
        import greenstalk

        return greenstalk.Client(self._address, encoding=None, **tubes)

    def close(self) -> None:
        for one in self._senders:
            one.close()


def _reserved_and_deleted(connection: Any) -> list[bytes]:
    """So many that the step from thread to thread costs little; what is there when there are fewer."""
    import greenstalk

    values: list[bytes] = []
    with suppress(greenstalk.TimedOutError):
        for _ in range(WIDTH_MAX):
            job = connection.reserve(timeout=0 if values else 1)
            connection.delete(job)
            values.append(job.body)
    return values


@asynccontextmanager
async def _connected(endpoint: str) -> AsyncIterator[Client]:
    host, port = endpoint.split(":")
    yield _Client(host, int(port))


@asynccontextmanager
async def _connected_greenstalk(endpoint: str) -> AsyncIterator[Client]:
    host, port = endpoint.split(":")
    client = _Greenstalk(host, int(port))
    yield client
    client.close()


def use(topic: str) -> bytes:
    """The command that chooses the tube to put into."""
    return b"use %s\r\n" % topic.encode()


def put(value: bytes, delay_s: int = 0) -> bytes:
    """The command that adds a job."""
    return b"put 1 %d %d %d\r\n%s\r\n" % (delay_s, TTR_S, len(value), value)


def inserted_bytes(buffer: bytearray, count: int) -> int:
    """The size of so many INSERTED, a USING before them or not; 0 when they are not whole. Raises WorkFailed."""
    if not buffer.endswith(b"\n"):
        return 0
    using = buffer.startswith(b"USING ")
    line_count = buffer.count(b"\n")
    if buffer.count(b"INSERTED ") != line_count - using:
        raise WorkFailed(f"beanstalkd answered {bytes(buffer[-200:])!r}")
    return len(buffer) if line_count - using == count else 0


def used_bytes(buffer: bytearray) -> int:
    """The size of a USING, 0 when it is not whole."""
    return buffer.find(b"\n") + 1


def consumed(buffer: bytearray, deleted: int, reserved: int) -> list[Job] | None:
    """The jobs in the answers to so many deletes and then reserves; None when they are not whole. Raises WorkFailed."""
    if buffer.count(b"\n") < deleted + reserved:
        return None
    position = 0
    jobs = []
    for number in range(deleted + reserved):
        end = buffer.find(b"\n", position)
        if end < 0:
            return None
        line = bytes(buffer[position : end - 1])
        position = end + 1
        word, *fields = line.split()
        if word == (b"DELETED" if number < deleted else b"TIMED_OUT"):
            continue
        if number < deleted or word != b"RESERVED":
            raise WorkFailed(f"beanstalkd answered {line!r}")
        body = position + int(fields[1])
        if len(buffer) < body + 2:
            return None
        jobs.append(Job(fields[0], bytes(buffer[position:body])))
        position = body + 2
    return jobs


def _lines(buffer: bytearray, count: int) -> bytearray | None:
    """The answers once there are so many lines."""
    return buffer if buffer.count(b"\n") == count else None


async def _replayed(endpoint: str, topic: str, options: Options) -> Numbers:
    host, _, port = endpoint.rpartition(":")
    numbers = await replay.replay(
        host,
        int(port),
        opening=use(topic),
        opened=used_bytes,
        request=b"".join(put(work.value(number)) for number in range(work.BATCH_RECORDS)),
        whole=partial(inserted_bytes, count=work.BATCH_RECORDS),
        records=work.BATCH_RECORDS,
        connections=int(options["connections"]),
        duration_s=options["duration_s"],
        warm_s=options["warm_s"],
    )
    async with _connected(endpoint) as client:
        await client.drop(topic)
    return numbers


class Beanstalkd(Peer):
    """Two levels; one thread, which writes, syncs and answers."""

    name = "beanstalkd"
    about = (
        "beanstalkd with a binlog; all jobs are in memory beside. Our own client pipelines its protocol: 1,000 puts,"
        f" up to {WIDTH_MAX} reserves and deletes at a time; greenstalk waits for every answer. A delay is in whole"
        " seconds"
    )
    levels = (
        Level(
            "-f 50",
            Durability.WRITTEN,
            "its default: written to the binlog before the answer; synced by the first write that comes 50 ms after the"
            " last sync. A power failure loses the last 50 ms of a busy server, more of one that has paused since",
        ),
        Level("-f 0", Durability.SYNCED, "a sync behind every job, before its answer"),
    )

    def prepare(self, tools: Path) -> str:
        return said([program("beanstalkd", "beanstalkd"), "-v"]).split()[-1]

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        port = free_port()
        (data / "binlog").mkdir(exist_ok=True)
        # fmt: off
        command = [
            program("beanstalkd", "beanstalkd"), "-l", "127.0.0.1", "-p", str(port), "-b", str(data / "binlog"),
            *level.name.split(),
        ]
        # fmt: on
        with running(f"127.0.0.1:{port}", [command], data) as server:
            yield server

    def ways(self, work_name: str) -> Sequence[Way]:
        own = partial(by_python_client, _connected, client="own pipelined client")
        greenstalk = partial(by_python_client, _connected_greenstalk, client="greenstalk")
        match work_name:
            case "replay":
                return (Way("prebuilt bytes", _replayed),)
            case "batched" | "receive":
                run = getattr(work, work_name)
                return (own(run), greenstalk(run))
            case "push" | "singles" | "delayed" | "topics" | "create" | "fill" | "first_record" | "drop":
                return (own(getattr(work, work_name)),)
            case _:
                return ()


PEERS = (Beanstalkd(),)

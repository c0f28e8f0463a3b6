"""nsqd, built from the Go module proxy. Clients: wrk over HTTP, nsqd's own bench programs, and its TCP protocol spoken
here (eight commands), since its Python library is not kept.

--mem-queue-size=0 sends every message through the disk queue. That queue writes to its file before the answer, at both
levels (checked: after kill -9 every acknowledged message was there), and it syncs behind the answer: go-diskqueue's
ioLoop answers the writer first, then syncs when --sync-every or --sync-timeout says so. So none of its levels is synced
before the answer.

A topic that is only sent to gets no channel: each channel has a queue of its own, which doubles the work of the disk.
nsqd keeps nothing that is consumed and finished, so there is no scan. A message that goes through the disk queue loses
its delay (measured: it came 2.4 s early), so it cannot delay.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson

from loadtest.bench.request import Request
from loadtest.peers import replay, tool, work
from loadtest.peers.fetch import TOOLS, go_program
from loadtest.peers.peer import Durability, Level, Numbers, Options, Peer, Way, WorkFailed, by_python_client
from loadtest.peers.servers import Server, free_port, running

VERSION = "v1.3.0"
MODULE = "github.com/nsqio/nsq"
PROGRAMS = ("apps/nsqd", "bench/bench_writer", "bench/bench_reader")
REPLACE = "replace github.com/judwhite/go-svc => github.com/mreiferson/go-svc v1.2.2-0.20210815184239-7a96e00010f6"
READY = 2_500
"""Messages on their way to a consumer: nsqd's default for --max-rdy-count."""

READERS = 2
CHANNEL = "scoreboard"
MAGIC = b"  V2"
READ_BYTES = 2**18

_FRAME = struct.Struct(">ii")
"""Size of what follows the first field, kind; then the body."""

_LENGTH = struct.Struct(">i")
_RESPONSE, _ERROR = 0, 1
OK = _FRAME.pack(6, _RESPONSE) + b"OK"
_HEARTBEAT = b"_heartbeat_"
_ID = slice(10, 26)
"""Of a message: behind time and attempts, before its value."""

_BODY = slice(26, None)


class Endpoint(NamedTuple):
    """Where nsqd listens."""

    host: str
    http: int
    tcp: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        host, http, tcp = text.split(":")
        return cls(host, int(http), int(tcp))

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.http}"


class _Connection:
    """One connection: commands out, frames in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._buffer = bytearray()

    async def bodies(self) -> list[bytes]:
        """What has come, at least one body of a response or a message. Raises WorkFailed for an error."""
        while True:
            piece = await self._reader.read(READ_BYTES)
            if not piece:
                raise WorkFailed("nsqd closed the connection")
            self._buffer += piece
            found = frames(self._buffer)
            if _HEARTBEAT in found:
                self.writer.write(b"NOP\n")
                found = [one for one in found if one != _HEARTBEAT]
            if found:
                return found

    async def asked(self, command: bytes) -> None:
        """A command and its OK."""
        self.writer.write(command)
        await self.bodies()


class _Client:
    """Several connections to send (a connection answers one command after the other), one to read."""

    def __init__(
        self, endpoint: Endpoint, http: aiohttp.ClientSession, *, with_channel: bool, settings: Mapping[str, int]
    ) -> None:
        self._endpoint = endpoint
        self._http = http
        self._with_channel = with_channel
        self._settings = settings
        self._senders: list[_Connection] = []

    async def _connect(self) -> _Connection:
        connection = _Connection(*await asyncio.open_connection(self._endpoint.host, self._endpoint.tcp))
        await connection.asked(MAGIC + identify(self._settings))
        return connection

    async def create(self, topic: str) -> None:
        """With a channel only where it will be read: one that is made later gets what the topic holds then."""
        await self._asked("POST", f"/topic/create?topic={topic}")
        if self._with_channel:
            await self._asked("POST", f"/channel/create?topic={topic}&channel={CHANNEL}")

    async def drop(self, topic: str) -> None:
        """With its channel and its files."""
        await self._asked("POST", f"/topic/delete?topic={topic}")

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One PUB or MPUB."""
        connection = self._senders.pop() if self._senders else await self._connect()
        await connection.asked(publish(topic, values))
        self._senders.append(connection)

    def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """As `receive`: it knows no other way."""
        return self.receive(topic)

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Pushed to a channel; FIN for every message. nsqd confirms no FIN."""
        connection = await self._connect()
        await connection.asked(b"SUB %s %s\n" % (topic.encode(), CHANNEL.encode()))
        connection.writer.write(b"RDY %d\n" % READY)
        try:
            while True:
                messages = await connection.bodies()
                connection.writer.write(b"".join(b"FIN %s\n" % one[_ID] for one in messages))
                yield [one[_BODY] for one in messages]
        finally:
            connection.writer.close()

    async def depth(self, topic: str) -> int:
        """How many messages a topic without a channel holds."""
        return depth(await self._stats(topic))

    async def left(self, topic: str) -> int:
        """How many of its messages are not finished."""
        return left(await self._stats(topic))

    async def _stats(self, topic: str) -> Stats:
        answer: Stats = orjson.loads(await self._asked("GET", f"/stats?format=json&topic={topic}"))
        return answer

    async def _asked(self, method: str, target: str) -> bytes:
        async with self._http.request(method, self._endpoint.url + target) as response:
            answer = await response.read()
            if response.status != 200:
                raise WorkFailed(f"{method} {target}: {response.status} {answer[:200]!r}")
            return answer


Stats = Mapping[str, Sequence[Mapping[str, Any]] | None]
"""What /stats says of one topic; None of one that is not there yet."""


def depth(stats: Stats) -> int:
    """Messages that are in no channel yet. (`message_count` counts those of an MPUB when the last one is written.)"""
    return sum(topic["depth"] for topic in stats["topics"] or ())


def left(stats: Stats) -> int:
    """Messages that are not finished, of a topic with one channel."""
    channels: list[Mapping[str, int]] = [channel for topic in stats["topics"] or () for channel in topic["channels"]]
    return depth(stats) + sum(one["depth"] + one["in_flight_count"] for one in channels)


def publish(topic: str, values: Sequence[bytes]) -> bytes:
    """The command that sends them: PUB for one, MPUB for several."""
    if len(values) == 1:
        return b"PUB %s\n" % topic.encode() + _LENGTH.pack(len(values[0])) + values[0]
    messages = b"".join(_LENGTH.pack(len(one)) + one for one in values)
    size = _LENGTH.size + len(messages)
    return b"MPUB %s\n" % topic.encode() + _LENGTH.pack(size) + _LENGTH.pack(len(values)) + messages


def identify(settings: Mapping[str, int]) -> bytes:
    """The command that sets a connection up; all else stays at nsqd's defaults."""
    body = orjson.dumps(settings)
    return b"IDENTIFY\n" + _LENGTH.pack(len(body)) + body


def frames(buffer: bytearray) -> list[bytes]:
    """Cut the bodies of whole frames, which are responses or messages, off a buffer. Raises WorkFailed for an error."""
    found = []
    start = 0
    while len(buffer) - start >= _FRAME.size:
        size, kind = _FRAME.unpack_from(buffer, start)
        end = start + _LENGTH.size + size
        if len(buffer) < end:
            break
        body = bytes(buffer[start + _FRAME.size : end])
        if kind == _ERROR:
            raise WorkFailed(body.decode(errors="replace"))
        found.append(body)
        start = end
    del buffer[:start]
    return found


def answered_bytes(buffer: bytearray) -> int:
    """The size of one OK, 0 when it is not whole. Raises WorkFailed for any other answer."""
    if buffer and not OK.startswith(buffer[: len(OK)]):
        raise WorkFailed(f"nsqd answered {bytes(buffer[:200])!r}")
    return len(OK) if len(buffer) >= len(OK) else 0


@asynccontextmanager
async def _connected(
    text: str, *, with_channel: bool = False, settings: Mapping[str, int] | None = None
) -> AsyncIterator[_Client]:
    async with aiohttp.ClientSession() as http:
        yield _Client(Endpoint.parse(text), http, with_channel=with_channel, settings=settings or {})


async def _single(text: str, topic: str, options: Options) -> Numbers:
    endpoint = Endpoint.parse(text)
    request = Request("POST", f"/pub?topic={topic}", {}, work.value(1))
    async with _connected(text) as client:
        numbers = await replay.single(
            endpoint.url,
            request,
            connections=int(options["connections"]),
            duration_s=options["duration_s"],
            warm_s=options["warm_s"],
        )
        await client.drop(topic)
    return numbers


async def _replayed(text: str, topic: str, options: Options) -> Numbers:
    endpoint = Endpoint.parse(text)
    async with _connected(text) as client:
        numbers = await replay.replay(
            endpoint.host,
            endpoint.tcp,
            opening=MAGIC + identify({"heartbeat_interval": -1}),
            opened=answered_bytes,
            request=publish(topic, [work.value(number) for number in range(work.BATCH_RECORDS)]),
            whole=answered_bytes,
            records=work.BATCH_RECORDS,
            connections=int(options["connections"]),
            duration_s=options["duration_s"],
            warm_s=options["warm_s"],
        )
        await client.drop(topic)
    return numbers


async def _written(text: str, topic: str, options: Options) -> Numbers:
    """bench_writer has as many connections as Go uses processors."""
    # fmt: off
    command = [
        _built(TOOLS, "bench/bench_writer"), "-nsqd-tcp-address", f"127.0.0.1:{Endpoint.parse(text).tcp}",
        "-topic", topic, "-size", str(work.VALUE_BYTES), "-batch-size", str(work.BATCH_RECORDS), "-runfor", "1h",
    ]
    # fmt: on
    async with _connected(text) as client:
        return await tool.window(command, lambda: client.depth(topic), options, {"GOMAXPROCS": str(work.IN_FLIGHT)})


async def _read(text: str, topic: str, options: Options) -> Numbers:
    """bench_reader says its rate over a time that may go beyond the last message: nsqd's counters are taken instead."""
    # fmt: off
    command = [
        _built(TOOLS, "bench/bench_reader"), "-nsqd-tcp-address", f"127.0.0.1:{Endpoint.parse(text).tcp}",
        "-topic", topic, "-channel", CHANNEL, "-size", str(work.VALUE_BYTES), "-rdy", str(READY), "-runfor", "1h",
    ]
    # fmt: on
    async with _connected(text, with_channel=True) as client:
        await client.create(topic)
        count = await work.filled(client, topic, int(options["count"]), options["fill_s"])
        async with tool.running(command, {"GOMAXPROCS": str(READERS)}) as reader:
            numbers = await tool.drained(
                reader, lambda: client.left(topic), count=count, warm_share=0.0, duration_s=options["duration_s"]
            )
        await client.drop(topic)
    return numbers


def _built(tools: Path, program: str) -> str:
    return go_program(tools, f"{MODULE}/{program}", MODULE, VERSION, replace=REPLACE)


class Nsq(Peer):
    """Two levels, both written before the answer."""

    name = "nsqd"
    about = (
        f"nsqd {VERSION}, --mem-queue-size=0, all else at its defaults. A topic that is only sent to has no channel;"
        f" one that is read has one. bench_writer: MPUB of {work.BATCH_RECORDS:,} on {work.IN_FLIGHT} connections;"
        f" bench_reader: {READERS} connections, RDY {READY:,}. push: output_buffer_size=-1, since nsqd else sends to a"
        " consumer up to 250 ms late. In no work with a sync before the answer: at --sync-every=1 too it answers first"
    )
    levels = (
        Level(
            "default sync",
            Durability.WRITTEN,
            "--mem-queue-size=0: written to its file before the answer; synced behind 2,500 messages or 2 s",
        ),
        Level(
            "sync-every=1",
            Durability.WRITTEN,
            "--sync-every=1: written to its file before the answer; the sync of it begins behind the answer",
            workloads=("single",),
        ),
    )

    def prepare(self, tools: Path) -> str:
        for program in PROGRAMS:
            _built(tools, program)
        return VERSION

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        tcp, http = free_port(), free_port()
        (data / "nsq").mkdir(exist_ok=True)
        # fmt: off
        command = [
            _built(tools, "apps/nsqd"), "-data-path", str(data / "nsq"), "-mem-queue-size", "0",
            "-tcp-address", f"127.0.0.1:{tcp}", "-http-address", f"127.0.0.1:{http}",
            "-broadcast-address", "127.0.0.1", "-log-level", "error",
        ]
        # fmt: on
        if level.name == "sync-every=1":
            command += ["-sync-every", "1"]
        with running(f"127.0.0.1:{http}:{tcp}", [command], data) as server:
            yield server

    def ways(self, work_name: str) -> Sequence[Way]:
        connect: Callable[[str], AbstractAsyncContextManager[_Client]] = partial(
            _connected,
            with_channel=work_name in ("receive", "push"),
            settings={"output_buffer_size": -1} if work_name == "push" else {},
        )
        python = partial(by_python_client, connect, client="own client")
        match work_name:
            case "single":
                return (Way("wrk", _single),)
            case "replay":
                return (Way("prebuilt bytes", _replayed),)
            case "batched":
                return (Way("bench_writer", _written), python(work.batched))
            case "receive":
                return (Way("bench_reader", _read), python(work.receive))
            case "push" | "singles" | "topics" | "create" | "fill" | "first_record" | "drop":
                return (python(getattr(work, work_name)),)
            case _:
                return ()


PEERS = (Nsq(),)

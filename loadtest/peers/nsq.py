"""nsqd, built from the Go module proxy; its own TCP protocol, spoken here (six commands), and HTTP for one record.

--mem-queue-size=0 sends every message through the disk queue, --sync-every=1 syncs behind each write. As it comes
messages wait in memory and nothing is on disk: that is not "the operating system has it", so there is one level. nsqd
keeps nothing once it is consumed and finished: a topic can be read once. A message that goes through the disk queue
loses its delay (measured: it came 2.4 s early): with this durability it cannot delay.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from loadtest.bench.request import Request
from loadtest.peers.fetch import go_program
from loadtest.peers.peer import Client, Durability, Peer
from loadtest.peers.servers import Server, free_port, running

VERSION = "v1.3.0"
MODULE = "github.com/nsqio/nsq"
PACKAGE = f"{MODULE}/apps/nsqd"
REPLACE = "replace github.com/judwhite/go-svc => github.com/mreiferson/go-svc v1.2.2-0.20210815184239-7a96e00010f6"
READY = 2_500
CHANNEL = "scoreboard"
_FRAME = struct.Struct(">ii")
_RESPONSE, _ERROR, _MESSAGE = 0, 1, 2
_ID = slice(10, 26)
_BODY = slice(26, None)


class _Connection:
    """One connection: commands out, frames in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._free = asyncio.Lock()

    async def frame(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat."""
        while True:
            size, kind = _FRAME.unpack(await self._reader.readexactly(8))
            body = await self._reader.readexactly(size - 4)
            if kind == _RESPONSE and body == b"_heartbeat_":
                self.writer.write(b"NOP\n")
            elif kind == _ERROR:
                raise RuntimeError(body.decode())
            else:
                return kind, body

    async def asked(self, command: bytes) -> None:
        """A command and its OK."""
        async with self._free:
            self.writer.write(command)
            await self.frame()


class _Client:
    """Several connections to send (a connection answers one command after the other), one to read."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._senders: asyncio.Queue[_Connection] = asyncio.Queue()
        self._made_count = 0

    async def _connect(self) -> _Connection:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=2**22)
        writer.write(b"  V2")
        return _Connection(reader, writer)

    async def create(self, topic: str) -> None:
        """A topic is there once it has been sent to; its channel once it has been read, so it is made here."""
        connection = await self._connect()
        await connection.asked(b"SUB %s %s\n" % (topic.encode(), CHANNEL.encode()))
        connection.writer.close()

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One MPUB."""
        parts = b"".join(struct.pack(">i", len(one)) + one for one in values)
        body = struct.pack(">i", len(values)) + parts
        await self._sent(b"MPUB %s\n" % topic.encode() + struct.pack(">i", len(body)) + body)

    async def _sent(self, command: bytes) -> None:
        connection = await self._connect() if self._senders.empty() else self._senders.get_nowait()
        await connection.asked(command)
        self._senders.put_nowait(connection)

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Pushed to a channel; every message is finished."""
        connection = await self._connect()
        await connection.asked(b"SUB %s %s\n" % (topic.encode(), CHANNEL.encode()))
        connection.writer.write(b"RDY %d\n" % READY)
        try:
            while True:
                _, body = await connection.frame()
                connection.writer.write(b"FIN %s\n" % body[_ID])
                yield [body[_BODY]]
        finally:
            connection.writer.close()


class Nsq(Peer):
    """See the module."""

    name = "nsqd"
    about = f"nsqd {VERSION}, --mem-queue-size=0 --sync-every=1, MPUB; its TCP protocol, and HTTP for one record"
    durabilities = (Durability.SYNCED,)

    def prepare(self, tools: Path) -> str:
        go_program(tools, PACKAGE, MODULE, VERSION, replace=REPLACE)
        return VERSION

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        tcp, http = free_port(), free_port()
        (data / "nsq").mkdir(exist_ok=True)
        # fmt: off
        command = [
            go_program(tools, PACKAGE, MODULE, VERSION, replace=REPLACE),
            "-data-path", str(data / "nsq"), "-mem-queue-size", "0",
            "-tcp-address", f"127.0.0.1:{tcp}", "-http-address", f"127.0.0.1:{http}", "-sync-every", "1",
            "-max-rdy-count", str(READY), "-max-body-size", str(2**26), "-broadcast-address", "127.0.0.1",
            "-log-level", "error",
        ]
        # fmt: on
        with running(f"127.0.0.1:{http}:{tcp}", [command], data) as server:
            yield server

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        host, _, tcp = endpoint.split(":")
        yield _Client(host, int(tcp))

    def single(self, topic: str) -> Request | None:
        return Request("POST", f"/pub?topic={topic}", {}, b"x" * 100)

    def url(self, endpoint: str) -> str:
        parts = endpoint.split(":")
        return f"http://{parts[0]}:{parts[1]}"


PEERS = (Nsq(),)

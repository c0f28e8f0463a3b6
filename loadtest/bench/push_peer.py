"""NATS JetStream's push to one subscriber, for `push.py`: each message once, from a stream in files to a push consumer.

    raw     a plain socket that counts the messages by their protocol line and looks at nothing else
    tool    NATS's own benchmark tool (Go, `nats bench oldjs ordered`): an ordered push consumer of nats.go, which hands
            each message to a callback. Its other one, `js ordered`, pulls, and took half as many a second here
    python  nats-py: an ordered push consumer, which hands each message to a callback

The server is that of the scoreboard (`loadtest/peers/nats.py`), its files not synced: what is measured is reading.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import orjson
import psutil

from loadtest.bench.push_work import Pushed
from loadtest.bench.request import RunFailed
from loadtest.peers.fetch import TOOLS, go_program
from loadtest.peers.nats import CLI_MODULE, CLI_VERSION, PEERS
from loadtest.peers.peer import Durability
from loadtest.peers.servers import Server

TIMEOUT_S = 120.0
STREAM = "push"
"""The stream, and its one subject."""

_DELIVERED = "delivered"
_INBOX = "inbox"
_RATE = re.compile(r"stats: ([\d,]+) msgs/sec")


class NatsPush:
    """A stream of `record_count` equal messages."""

    def __init__(self, server: Server, tool: str, directory: Path, record_count: int) -> None:
        self._server = server
        self._tool = tool
        self._directory = directory
        self.record_count = record_count

    async def raw(self) -> Pushed:
        """To a socket that only counts."""
        host, _, port = self._server.endpoint.rpartition(":")
        loop = asyncio.get_running_loop()
        client_before_s, server_before_s, began_s = time.process_time(), self._server_s(), time.perf_counter()
        transport, counter = await loop.create_connection(lambda: Counter(self.record_count), host, int(port))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await counter.done
        finally:
            transport.abort()
        return self._pushed(began_s, time.process_time() - client_before_s, server_before_s)

    async def tool(self) -> Pushed:
        """To NATS's own tool; the rate is the one it prints."""
        client_before_s, server_before_s, began_s = _children_s(), self._server_s(), time.perf_counter()
        text = await self._run_tool("oldjs", "ordered", STREAM, "--msgs", str(self.record_count))
        pushed = self._pushed(began_s, _children_s() - client_before_s, server_before_s)
        return pushed._replace(took_s=self.record_count / printed_rate(text))

    async def python(self, record_count: int, *, parses: bool) -> Pushed:
        """To nats-py, as many of the messages; the values as bytes, or parsed as JSON."""
        import nats

        left = record_count
        done = asyncio.Event()

        async def on_message(message: Any) -> None:
            nonlocal left
            if parses:
                orjson.loads(message.data)
            left -= 1
            if not left:
                done.set()

        connection = await nats.connect(f"nats://{self._server.endpoint}")
        try:
            client_before_s, server_before_s, began_s = time.process_time(), self._server_s(), time.perf_counter()
            await connection.jetstream().subscribe(STREAM, ordered_consumer=True, cb=on_message)
            async with asyncio.timeout(TIMEOUT_S):
                await done.wait()
            pushed = self._pushed(began_s, time.process_time() - client_before_s, server_before_s)
            return pushed._replace(record_count=record_count)
        finally:
            await connection.close()

    async def fill(self, value: bytes) -> None:
        """Make the stream and publish the messages, by NATS's own tool."""
        import nats

        connection = await nats.connect(f"nats://{self._server.endpoint}")
        await connection.jetstream().add_stream(
            name=STREAM, subjects=[STREAM]
        )  # the tool's own asks for a newer server
        await connection.close()
        payload = self._directory / "payload"
        payload.write_bytes(value)
        text = await self._run_tool(
            "js",
            "pub",
            "async",
            STREAM,
            "--stream",
            STREAM,
            "--msgs",
            str(self.record_count),
            "--payload",
            str(payload),
        )
        printed_rate(text)

    async def _run_tool(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *[self._tool, "--server", f"nats://{self._server.endpoint}", "bench", *arguments, "--no-progress"],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "HOME": str(self._directory), "XDG_CONFIG_HOME": str(self._directory)},
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            raise RunFailed("nats bench did not end") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        text = output.decode(errors="replace")
        if process.returncode:
            raise RunFailed(f"nats bench failed: {text.strip()[-500:]}")
        return text

    def _server_s(self) -> float:
        times = [psutil.Process(pid).cpu_times() for pid in self._server.pids]
        return float(sum(one.user + one.system for one in times))

    def _pushed(self, began_s: float, client_s: float, server_before_s: float) -> Pushed:
        took_s = time.perf_counter() - began_s
        return Pushed(self.record_count, took_s, took_s, client_s, self._server_s() - server_before_s)


class Counter(asyncio.Protocol):
    """A NATS client that makes a push consumer of the stream from its first message and counts what comes.

    Flow control is on, as in an ordered consumer: the server asks from time to time whether the client has kept up, and
    is answered at once. Acknowledged is nothing.
    """

    _LINE = f"MSG {STREAM} 1 $JS.ACK.".encode()  # a message keeps the subject that it was published with
    _FLOW = re.compile(rb"\$JS\.FC\.\S+")

    def __init__(self, wanted: int) -> None:
        self.count = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted = wanted
        self._rest = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        config = {
            "deliver_subject": _DELIVERED,
            "deliver_policy": "all",
            "ack_policy": "none",
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": 5_000_000_000,
            "mem_storage": True,
        }
        request = orjson.dumps({"stream_name": STREAM, "config": config})
        self._transport.write(
            b'CONNECT {"verbose":false,"headers":true,"protocol":1}\r\n'
            + f"SUB {_DELIVERED} 1\r\nSUB {_INBOX} 2\r\n".encode()
            + f"PUB $JS.API.CONSUMER.CREATE.{STREAM} {_INBOX} {len(request)}\r\n".encode()
            + request
            + b"\r\n"
        )

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        end = data.rfind(b"\r\n") + 2  # a line that is not complete waits for its end; 1 where there is none
        if end < 2:
            self._rest = data
            return
        self._rest = data[end:]
        lines = data[:end]
        self.count += lines.count(self._LINE)
        if b"$JS.FC." in lines:
            self._transport.write(b"".join(b"PUB %s 0\r\n\r\n" % one for one in self._FLOW.findall(lines)))
        if lines.startswith(b"PING\r\n") or b"\r\nPING\r\n" in lines:
            self._transport.write(b"PONG\r\n")
        if self.done.done():
            return
        if b"-ERR" in lines or b'"error":' in lines:
            self.done.set_exception(RunFailed(f"NATS refused: {lines[:300]!r}"))
        elif self.count >= self._wanted:
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RunFailed(f"NATS closed the connection after {self.count} messages"))


def printed_rate(text: str) -> float:
    """Messages a second as the tool prints them. Raises RunFailed when it printed none."""
    found = _RATE.search(text)
    if found is None:
        raise RunFailed(f"nats bench printed no rate: {text.strip()[-500:]}")
    return float(found[1].replace(",", ""))


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@asynccontextmanager
async def nats_push(directory: Path, record_count: int, value: bytes) -> AsyncIterator[tuple[NatsPush, str]]:
    """A server with a stream of so many messages, and what it is. Raises Unavailable with the reason."""
    (peer,) = PEERS
    version = peer.prepare(TOOLS)
    tool = go_program(TOOLS, f"{CLI_MODULE}/nats", CLI_MODULE, CLI_VERSION)
    directory.mkdir()
    level = next(one for one in peer.levels if one.durability is Durability.WRITTEN)
    with peer.serve(TOOLS, directory, level) as server:
        push = NatsPush(server, tool, directory, record_count)
        await push.fill(value)
        yield push, f"JetStream {version}, one server, a stream in files ({level.about}); nats bench {CLI_VERSION}"

"""Our own load client: raw HTTP/1.1 over asyncio sockets, as little work for one answer as Python can do.

It understands what the two servers of the benchmark send (a Content-Length, no chunks) and nothing else. It runs in
the benchmark's process on one core; servers have the other.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import urlsplit

from loadtest.bench.request import Load, Request, RunFailed
from loadtest.stats import percentile

LAST_ANSWERS_TIMEOUT_S = 15.0

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    def __init__(self, on_answer: Callable[[Connection, int], None]) -> None:
        """`on_answer` gets the status of every complete answer; 0 when the connection is lost instead."""
        self._on_answer = on_answer
        self._head = b""
        self._status = 0
        self._missing_bytes = 0
        self._transport: asyncio.Transport
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, *pieces: bytes) -> None:
        """Send a request; the answer before must have come. What follows the first piece is sent apart: by the loop's
        turn after the next, as uvloop joins what is written in one."""
        first, *rest = pieces
        self._transport.write(first)
        loop = asyncio.get_running_loop()
        for piece in rest:
            loop.call_soon(loop.call_soon, self._transport.write, piece)

    def close(self) -> None:
        self._closing = True
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._missing_bytes:
            self._missing_bytes -= len(data)
        else:
            self._head += data
            end = self._head.find(_HEAD_END)
            if end < 0:
                return
            head = self._head[:end].lower()
            self._status = int(head[9:12])
            at = head.find(_LENGTH)
            length = int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._missing_bytes = length - (len(self._head) - end - len(_HEAD_END))
            self._head = b""
        if self._missing_bytes <= 0:
            is_whole = self._missing_bytes == 0
            self._missing_bytes = 0
            self._on_answer(self, self._status if is_whole else 0)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self._on_answer(self, 0)


async def connect(url: str, on_answer: Callable[[Connection, int], None]) -> Connection:
    """A connection to the server at `url`. Raises OSError."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(on_answer), parts.hostname, parts.port
    )
    return connection


class RawClient:
    """The load client that is always there."""

    name = "asyncio raw sockets (loadtest/bench/raw_client.py)"

    def __init__(self, *, is_apart: bool = False) -> None:
        """`is_apart`: head and body are sent one after the other, as http.client of Python does."""
        self._is_apart = is_apart

    async def drive(self, url: str, request: Request, *, connections: int, duration_s: float) -> Load:
        """See `LoadClient`. Requests under way at the end are waited for, and counted with the time they took."""
        encoded = request.encode(url)
        head = len(encoded) - len(request.body)
        pieces = (encoded[:head], encoded[head:]) if self._is_apart else (encoded,)
        run = _Run(pieces, connections, duration_s)
        opened = [await connect(url, run.answered) for _ in range(connections)]
        try:
            run.begin(opened)
            async with asyncio.timeout(duration_s + LAST_ANSWERS_TIMEOUT_S):
                await run.ended.wait()
        except TimeoutError:
            raise RunFailed(f"{run.under_way_count} requests were not answered") from None
        finally:
            for connection in opened:
                connection.close()
        return run.load()


class _Run:
    """Counts the answers of one run and keeps every connection busy until its time is up."""

    def __init__(self, request: Sequence[bytes], connections: int, duration_s: float) -> None:
        self.ended = asyncio.Event()
        self.under_way_count = connections
        self._request = request
        self._duration_s = duration_s
        self._began_s = 0.0
        self._last_s = 0.0
        self._sent_s: dict[Connection, float] = {}
        self._took_s = array("d")
        self._error_count = 0

    def begin(self, connections: list[Connection]) -> None:
        self._began_s = time.perf_counter()
        for connection in connections:
            self._sent_s[connection] = time.perf_counter()
            connection.send(*self._request)

    def answered(self, connection: Connection, status: int) -> None:
        now_s = time.perf_counter()
        self._last_s = now_s
        if status == 200:
            self._took_s.append(now_s - self._sent_s[connection])
        else:
            self._error_count += 1
        if status and now_s - self._began_s < self._duration_s:
            self._sent_s[connection] = now_s
            connection.send(*self._request)
            return
        self.under_way_count -= 1
        if self.under_way_count == 0:
            self.ended.set()

    def load(self) -> Load:
        took_ms = [took_s * 1000 for took_s in self._took_s]
        return Load(
            len(took_ms),
            self._error_count,
            self._last_s - self._began_s,
            percentile(took_ms, 50) if took_ms else 0.0,
            percentile(took_ms, 99) if took_ms else 0.0,
        )

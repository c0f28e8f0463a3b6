"""Clients of the workloads "server alone": prebuilt bytes in, raw bytes out, at as little cost as Python can have.

A request of `replay` and an answer of `fetch` hold a thousand records or more, so a client's cost is per batch and the
server is what is measured. `single` leaves the load to wrk, which is written in C.

    replay   a few connections, each sending the same bytes again as soon as the answer is whole
    fetch    one connection, each request asking for what is behind the last answer
    single   one record a request over HTTP
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

from loadtest.bench.request import Request, RunFailed
from loadtest.bench.wrk_client import WrkClient
from loadtest.peers.peer import Numbers, WorkFailed
from loadtest.peers.work import Window

ANSWER_TIMEOUT_S = 30.0
HTTP_HEAD_BYTES_MAX = 4096

OfConnection = Callable[[int], bytes]
"""Bytes that are each connection's own, made from its number."""


class Fetched(NamedTuple):
    """One whole answer to a fetch."""

    size_bytes: int
    """How much of the buffer it is."""

    next_offset: int
    """What to ask for next: the offset behind its last whole record."""


async def replay(
    host: str,
    port: int,
    *,
    request: bytes | OfConnection,
    whole: Callable[[bytearray], int],
    records: int,
    opening: bytes | OfConnection = b"",
    opened: Callable[[bytearray], int] | None = None,
    connections: float,
    duration_s: float,
    warm_s: float,
) -> Numbers:
    """Send `request`, which holds so many `records`, again and again over each connection.

    `whole` returns how many bytes at the start of the buffer answer one request wholly; 0 when more are to come. It
    raises WorkFailed for an answer that is an error. `opening` goes first; `opened` judges its answer alike, and
    without `opened` no answer is awaited.
    """
    window: Window | None = None

    async def send_again(connection: Connection, message: bytes) -> None:
        assert window is not None
        while (sent_s := time.monotonic()) < window.ended_s:
            connection.skip(await connection.answer(message, whole))
            window.count(records, sent_s)

    async with connected(host, port, int(connections)) as made:
        for number, connection in enumerate(made):
            if opened is None:
                connection.write(_of(opening, number))
            else:
                connection.skip(await connection.answer(_of(opening, number), opened))
        window = Window(warm_s, duration_s)
        async with asyncio.TaskGroup() as group:
            for number, connection in enumerate(made):
                group.create_task(send_again(connection, _of(request, number)))
    return window.numbers()


async def fetch(
    host: str,
    port: int,
    *,
    request: Callable[[int], bytes],
    whole: Callable[[bytearray], Fetched | None],
    count: int,
    duration_s: float,
    warm_s: float,
) -> Numbers:
    """Ask for the bytes from an offset on, then from where they end, and from 0 again behind `count` records.

    `whole` returns what the buffer's first answer is, None when more is to come. It raises WorkFailed for an error.
    """
    offset = 0
    async with connected(host, port, 1) as (connection,):
        window = Window(warm_s, duration_s)
        while (sent_s := time.monotonic()) < window.ended_s:
            found: Fetched = await connection.answer(request(offset), whole)
            connection.skip(found.size_bytes)
            if found.next_offset <= offset:
                raise WorkFailed(f"nothing came at offset {offset:,} of {count:,}")
            window.count(found.next_offset - offset, sent_s)
            offset = found.next_offset if found.next_offset < count else 0
    return window.numbers()


async def single(url: str, request: Request, *, connections: float, duration_s: float, warm_s: float) -> Numbers:
    """wrk, with so many connections; its warm-up is a run of its own (in whole seconds). Raises WorkFailed."""
    wrk = WrkClient.find()
    if wrk is None:
        raise WorkFailed("wrk is not installed (apt-get install wrk)")
    try:
        await wrk.drive(url, request, connections=int(connections), duration_s=warm_s)
        began_s = time.monotonic()
        load = await wrk.drive(url, request, connections=int(connections), duration_s=duration_s)
    except RunFailed as error:
        raise WorkFailed(str(error)) from error
    if load.error_count:
        raise WorkFailed(f"{load.error_count} of {load.request_count} requests failed")
    return {
        "records": load.request_count,
        "records_per_s": load.request_count / load.duration_s,
        "took_s": load.duration_s,
        "p50_ms": load.p50_ms,
        "p99_ms": load.p99_ms,
        "began_s": began_s,
        "ended_s": began_s + load.duration_s,
    }


def http_answer(buffer: bytearray, status: bytes = b"200") -> int:
    """A `whole` for servers that answer HTTP with a Content-Length. Raises WorkFailed for another status."""
    head = buffer.find(b"\r\n\r\n")
    if head < 0:
        return 0
    if not buffer.startswith(b"HTTP/1.1 %b " % status):
        raise WorkFailed(buffer[:300].decode(errors="replace"))
    size_bytes = head + 4 + int(http_header(buffer, b"Content-Length"))
    return size_bytes if len(buffer) >= size_bytes else 0


def http_records(buffer: bytearray) -> Fetched | None:
    """A `whole` of `fetch` for mq's answers with records. Raises WorkFailed unless the status is 200."""
    size_bytes = http_answer(buffer)
    return Fetched(size_bytes, int(http_header(buffer, b"Mq-Next-Offset"))) if size_bytes else None


def http_header(buffer: bytearray, name: bytes) -> bytes:
    """A field of the answer at the start of the buffer. Raises WorkFailed when it is not there."""
    found = re.search(rb"\r\n%s: *([^\r]*)\r\n" % name, memoryview(buffer)[:HTTP_HEAD_BYTES_MAX], re.IGNORECASE)
    if found is None:
        raise WorkFailed(f"an answer has no {name.decode()}")
    return bytes(found[1])


class Connection(asyncio.Protocol):
    """One request at a time, its answer collected in a buffer."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._cut: Callable[[bytearray], Any] | None = None
        self._answered: asyncio.Future[Any]
        self._is_lost = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def write(self, message: bytes) -> None:
        """Send what has no answer."""
        self._transport.write(message)

    async def answer(self, message: bytes, cut: Callable[[bytearray], Any]) -> Any:
        """Send a message; what `cut` makes of the bytes that have come, once that is something."""
        if self._is_lost:
            raise WorkFailed("the server closed the connection")
        self._answered, self._cut = asyncio.get_running_loop().create_future(), cut
        self._transport.write(message)
        self._look()  # what is needed may be there already
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._answered
        except TimeoutError:
            raise WorkFailed(f"no whole answer within {ANSWER_TIMEOUT_S:g} s") from None

    def skip(self, size_bytes: int) -> None:
        """The first bytes of the buffer are done with."""
        del self._buffer[:size_bytes]

    def close(self) -> None:
        """At once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._settle(error=WorkFailed(f"the server closed the connection ({exc or 'no reason'})"))

    def _look(self) -> None:
        if self._cut is None:
            return
        try:
            if found := self._cut(self._buffer):
                self._settle(found)
        except WorkFailed as error:
            self._settle(error=error)

    def _settle(self, found: object = None, error: WorkFailed | None = None) -> None:
        if self._cut is None or self._answered.done():
            return
        self._cut = None
        if error is None:
            self._answered.set_result(found)
        else:
            self._answered.set_exception(error)


@asynccontextmanager
async def connected(host: str, port: int, count: int) -> AsyncGenerator[list[Connection]]:
    """Connections until the block ends. Raises OSError."""
    made: list[Connection] = []
    try:
        for _ in range(count):
            made.append((await asyncio.get_running_loop().create_connection(Connection, host, port))[1])
        yield made
    finally:
        for connection in made:
            connection.close()


def _of(message: bytes | OfConnection, number: int) -> bytes:
    return message(number) if callable(message) else message

"""What `queues.py` does at a server with inboxes, whichever it is (queues_wire.py).

rows     records, each into some inboxes, over CONNECTIONS connections, each with one request of ROWS_A_REQUEST rows
reads    of random inboxes, one after the other
pushes   sockets, each on an inbox of its own, while single records are sent to random ones at a fixed rate
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import NamedTuple, cast

from loadtest.bench.push_latency import PushPath
from loadtest.bench.queues_store import any_of
from loadtest.bench.queues_wire import Asked, Closes, Inboxes
from loadtest.peers.peer import WorkFailed
from loadtest.peers.replay import ANSWER_TIMEOUT_S, Connection, connected

CONNECTIONS = 8
ROWS_A_REQUEST = 960
"""A whole number of records at each fan-out; an atomic batch of NATS has 1,000 messages at most."""

ADDRESSES = 8
"""Of this machine, from which sockets come."""

SOCKETS_AT_ONCE = 100


class Stretch(NamedTuple):
    """So much work took so long, of which the server and this process had CPU."""

    done: int
    took_s: float
    server_s: float
    client_s: float

    @property
    def cores(self) -> str:
        """What may have been the limit, in words."""
        return f"{self.server_s / self.took_s:.2f} cores, client {self.client_s / self.took_s:.2f}"


class Clock:
    """Measures a stretch from its making on."""

    def __init__(self, server: Inboxes) -> None:
        self._server = server
        self._before = time.perf_counter(), server.cpu_s(), time.process_time()

    def stretch(self, count: int) -> Stretch:
        """What was done since."""
        began_s, server_s, client_s = self._before
        now_s = time.perf_counter()
        return Stretch(count, now_s - began_s, self._server.cpu_s() - server_s, time.process_time() - client_s)


@asynccontextmanager
async def _opened(server: Inboxes, count: int) -> AsyncIterator[list[Connection]]:
    async with connected(server.host, server.port, count) as made:
        for number, connection in enumerate(made):
            if (opening := server.opening(number)) is not None:
                connection.skip(await connection.answer(*opening))
        yield made


async def fill(server: Inboxes, inbox_count: int) -> None:
    """A record into each inbox."""
    inboxes = iter(range(inbox_count))

    def requests(number: int) -> Iterator[Asked]:
        while some := [[inbox] for inbox in islice(inboxes, ROWS_A_REQUEST)]:
            yield server.send(number, some)

    await _answered(server, [requests(number) for number in range(CONNECTIONS)])


async def send_rows(server: Inboxes, inbox_count: int, row_count: int, fan_out: int) -> Stretch:
    """Into random inboxes. The requests are made before the clock starts."""
    fan_out = min(fan_out, inbox_count)
    records = any_of(inbox_count, fan_out, 1)
    each = max(-(-row_count // (CONNECTIONS * ROWS_A_REQUEST)), 1)
    requests = [
        [server.send(number, list(islice(records, ROWS_A_REQUEST // fan_out))) for _ in range(each)]
        for number in range(CONNECTIONS)
    ]
    clock = Clock(server)
    await _answered(server, requests)
    return clock.stretch(CONNECTIONS * each * (ROWS_A_REQUEST // fan_out) * fan_out)


async def _answered(server: Inboxes, requests: Sequence[Iterable[Asked]]) -> None:
    async def send(connection: Connection, own: Iterable[Asked]) -> None:
        for asked in own:
            connection.skip(await connection.answer(*asked))

    async with _opened(server, len(requests)) as made, asyncio.TaskGroup() as group:
        for connection, own in zip(made, requests, strict=True):
            group.create_task(send(connection, own))


async def read_inboxes(server: Inboxes, inbox_count: int, count: int) -> list[float]:
    """How long each takes, in ms, after as many that are not counted."""
    choose, took_ms = random.Random(7).randrange, []
    async with _opened(server, 1) as (connection,):
        for _ in range(2 * count):
            asked = server.read(0, choose(inbox_count))
            began_s = time.perf_counter()
            connection.skip(await connection.answer(*asked))
            took_ms.append((time.perf_counter() - began_s) * 1000)
    return took_ms[count:]


class _Sent(NamedTuple):
    """A record and its inbox; each connection makes a request of it, which may have the connection's own address."""

    inbox: int
    value: bytes


class _Sender(asyncio.Protocol):
    """See `push_latency.Sending`."""

    def __init__(self, server: Inboxes, number: int) -> None:
        self._server, self._number = server, number
        self.on_answer: Callable[[_Sender, int], None]
        self._whole: Callable[[bytearray], int] = lambda _: 0  # NATS says hello unasked
        self._buffer = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, asked: Asked) -> None:
        """The request before must be answered."""
        self._whole = asked.whole
        self._transport.write(asked.request)

    def send(self, sent: _Sent) -> None:
        self.ask(self._server.send(self._number, [[sent.inbox]], sent.value))

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            size, status = self._whole(self._buffer), 200
        except WorkFailed:
            size, status = len(self._buffer), 500
        if size:
            del self._buffer[:size]
            self.on_answer(self, status)


class InboxPath(PushPath):
    """Sends each record to one of many inboxes, and hears of it from the sockets on them."""

    def __init__(self, server: Inboxes, count: int) -> None:
        self._server, self._count = server, count
        self._choose = random.Random(5)
        self._arrived: list[int] = []
        self._came = asyncio.Event()
        self._sender_count = 0
        super().__init__("", self._next, {})

    def arrived(self, sequences: Sequence[int]) -> None:
        """What a socket was pushed."""
        self._arrived += sequences
        self._came.set()

    async def _next(self) -> list[int]:
        while not self._arrived:
            self._came.clear()
            await self._came.wait()
        arrived, self._arrived = self._arrived, []
        return arrived

    async def _connect(self, on_answer: Callable[[_Sender, int], None]) -> _Sender:
        self._sender_count += 1
        made = _Sender(self._server, self._sender_count)
        await asyncio.get_running_loop().create_connection(lambda: made, self._server.host, self._server.port)
        if (opening := self._server.opening(self._sender_count)) is not None:
            opened = asyncio.Event()
            made.on_answer = lambda *_: opened.set()
            made.ask(opening)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await opened.wait()
        made.on_answer = on_answer
        return made

    def _request(self, sequence: int) -> _Sent:
        return _Sent(self._choose.randrange(self._count), b'{"sequence":%d}' % sequence)


async def listening(server: Inboxes, push: str, count: int, path: InboxPath) -> list[Closes]:
    """Sockets on the first `count` inboxes. Raises RunFailed."""
    sockets: list[Closes] = []
    for first in range(0, count, SOCKETS_AT_ONCE):
        some = range(first, min(first + SOCKETS_AT_ONCE, count))
        ones = (server.listen(push, one, path.arrived, f"127.0.0.{1 + one % ADDRESSES}") for one in some)
        sockets += await asyncio.gather(*ones)
    return sockets

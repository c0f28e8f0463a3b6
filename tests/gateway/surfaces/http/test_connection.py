"""gateway/surfaces/http/connection.py: how many connections there may be, and how long a slow one lasts."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import time
from contextlib import ExitStack
from dataclasses import replace

import orjson
import pytest
from aiohttp import web

from gateway.settings.limits import Limits
from gateway.surfaces.http.accepting import UNSENT_BYTES
from gateway.surfaces.http.connection import LINES_MAX, Connection, ConnectionLimiter, has_many_lines
from gateway.surfaces.http.context import Gateway, GatewayStats
from gateway.surfaces.http.read_turns import READ_PER_TURN, WOKEN_PER_TURN, ReadTurns
from store.limits import KiB, MiB
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import served, serving, talk
from tests.waiting import PATIENCE_S

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPLOADS = 40
PIECE_BYTES_MAX = 256 * KiB
"""What uvloop reads of a socket at once."""

SIOCOUTQ = 0x5411
"""Asks a socket how many bytes its peer has not acknowledged, sent or not; see tcp(7)."""

ENDS_S = 12.0
"""More than the times set here, and the 5 s that aiohttp lingers; less than the defaults, 15 and 30 s."""


def closing(request: bytes) -> bytes:
    """The same request, and the connection ends with its answer."""
    return request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


def json_request(body: bytes, kind: bytes = b"application/vnd.kafka.json.v2+json") -> bytes:
    """A send of one connection."""
    return (
        b"POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (kind, len(body), body)
    )


def test_connections_are_counted_in_all_and_by_address() -> None:
    stats = GatewayStats()
    limiter = ConnectionLimiter(Limits(connections_max=3, connections_per_address_max=2), stats)
    assert [limiter.enter("a"), limiter.enter("a"), limiter.enter("a"), limiter.enter("b"), limiter.enter("c")] == [
        True, True, False, True, False,
    ]  # fmt: skip
    limiter.leave("a")
    assert limiter.enter("c")
    assert (stats.connection_count, stats.connection_refused_count) == (3, 2)
    for address in ("a", "b", "c"):
        limiter.leave(address)
    assert stats.connection_count == 0
    assert not limiter._by_address


@pytest.mark.parametrize("is_refused", [False, True])
async def test_what_a_turn_reads_of_large_bodies_is_bounded_over_all_connections(
    is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those who are refused and go on sending, too: what they send is taken, and dropped, at once."""
    gateway, broker = fake_gateway(FakeClock())
    await broker.create_topic("other" if is_refused else "orders", 1)
    turns: list[int] = []  # bytes read in each
    begin_next = ReadTurns._next

    def next_turn(self: ReadTurns) -> None:
        turns.append(self._bytes)
        begin_next(self)

    monkeypatch.setattr(ReadTurns, "_next", next_turn)
    request = (
        json_request(b"x" * (4 * MiB), b"text/plain")
        if is_refused
        else json_request(orjson.dumps({"records": [{"value": "x" * MiB}]}))
    )
    async with served(gateway) as port, asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*(talk(port, request, timeout_s=PATIENCE_S) for _ in range(UPLOADS)))
    assert {answer[9:12] for answer in answers} == ({b"415"} if is_refused else {b"200"})
    assert sum(turns) > UPLOADS * MiB // 2, "small pieces are not counted"
    # One that comes beyond the bound is read once more, a piece, before it rests.
    assert max(turns) <= READ_PER_TURN + (UPLOADS + WOKEN_PER_TURN) * PIECE_BYTES_MAX
    assert sorted(turns)[-3] <= READ_PER_TURN + 2 * WOKEN_PER_TURN * PIECE_BYTES_MAX


async def test_what_many_quiet_connections_send_at_once_is_looked_at_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The turn has begun to read each of them before it knows how much comes."""
    gateway, broker = fake_gateway(FakeClock())
    await broker.create_topic("orders", 1)
    turns = [0]  # bytes looked at in each
    begin_next, take_in = ReadTurns._next, Connection._take_in

    def next_turn(self: ReadTurns) -> None:
        turns.append(0)
        begin_next(self)

    def taken_in(self: Connection, data: bytes, *, is_late: bool = False) -> None:
        turns[-1] += len(data)
        take_in(self, data, is_late=is_late)

    monkeypatch.setattr(ReadTurns, "_next", next_turn)
    monkeypatch.setattr(Connection, "_take_in", taken_in)
    request = json_request(orjson.dumps({"records": [{"value": "x" * PIECE_BYTES_MAX}]}))
    with ExitStack() as open_:
        async with served(gateway) as port, asyncio.timeout(PATIENCE_S):
            loop = asyncio.get_running_loop()
            sockets = [open_.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(UPLOADS)]
            for one in sockets:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MiB)
            while gateway.stats.connection_count < UPLOADS:  # noqa: ASYNC110 -- a plain counter
                await asyncio.sleep(0.01)
            sent = [one.send(request, socket.MSG_DONTWAIT) for one in sockets]  # while the server cannot read
            assert sum(sent) > 2 * READ_PER_TURN
            for one, size in zip(sockets, sent, strict=True):
                one.setblocking(False)
                await loop.sock_sendall(one, request[size:])
            answers = [await loop.sock_recv(one, 4 * KiB) for one in sockets]
    assert {answer[9:12] for answer in answers} == {b"200"}
    assert sum(turns) == UPLOADS * len(request)
    assert max(turns) <= READ_PER_TURN + (WOKEN_PER_TURN + 1) * PIECE_BYTES_MAX


@pytest.fixture
def gateway() -> Gateway:
    return fake_gateway(FakeClock(), limits__connections_max=2, keepalive_timeout_ms=300, body_timeout_ms=300)[0]


async def test_one_connection_too_many_is_told_and_room_comes_back(gateway: Gateway) -> None:
    async with served(gateway) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:
            writer.write(HEALTH)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        answer = await talk(port, b"")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in answer
        assert b'"error_code":42950' in answer
        assert gateway.stats.connection_refused_count == 1
        held[0][1].close()
        async with asyncio.timeout(PATIENCE_S):
            while gateway.stats.connection_count == 2:  # noqa: ASYNC110 -- a plain counter
                await asyncio.sleep(0.01)
        assert (await talk(port, closing(HEALTH))).startswith(b"HTTP/1.1 200")
        held[1][1].close()


async def drip(port: int, first: bytes, drop: bytes) -> None:
    """Go on sending a little until the server ends the connection. TimeoutError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    ended = asyncio.ensure_future(reader.read())
    try:
        async with asyncio.timeout(ENDS_S):
            while not ended.done():
                writer.write(drop)
                await asyncio.wait((ended,), timeout=0.05)
    finally:
        writer.close()
        ended.cancel()


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"X-A: b\r\n"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: ", b"a"),
        (b"G", b"E"),
        (b"", b"\r\n"),
    ],
)
async def test_headers_that_trickle_in_end_with_their_time(gateway: Gateway, first: bytes, drop: bytes) -> None:
    async with served(gateway) as port:
        await drip(port, first, drop)


@pytest.mark.parametrize(
    ("headers", "drop"),
    [(b"Content-Length: 100000\r\n", b"a"), (b"Transfer-Encoding: chunked\r\n", b"1\r\na\r\n")],
)
async def test_bodies_that_trickle_in_end_with_their_time(headers: bytes, drop: bytes) -> None:
    gateway, broker = fake_gateway(FakeClock(), keepalive_timeout_ms=300, body_timeout_ms=300)
    await broker.create_topic("orders", 1)
    first = b"POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers + b"\r\n"
    async with served(gateway) as port:
        await drip(port, first, drop)
        assert broker.stored_count == 0


async def test_many_slow_clients_do_not_stop_the_others(gateway: Gateway) -> None:
    gateway = replace(gateway, limits=replace(gateway.limits, connections_max=1000))
    gateway = replace(gateway, config=replace(gateway.config, limits=gateway.limits))
    async with served(gateway) as port:
        slow = [asyncio.ensure_future(drip(port, b"GET / HTTP/1.1\r\n", b"X: y\r\n")) for _ in range(100)]
        started_s = time.monotonic()
        assert (await talk(port, HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))).startswith(
            b"HTTP/1.1 200"
        )
        assert time.monotonic() - started_s < ENDS_S
        await asyncio.gather(*slow)


async def test_an_address_has_only_so_many_connections_and_zero_is_any_number() -> None:
    assert Limits().connections_per_address_max < Limits().connections_max, "one address cannot take all"
    for limit, refused in ((2, 1), (0, 0)):
        gateway, _ = fake_gateway(FakeClock(), limits__connections_per_address_max=limit)
        async with served(gateway) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            statuses = []
            for reader, writer in held:
                writer.write(HEALTH)
                statuses.append(int((await reader.readline()).split()[1]))
            assert statuses == [200, 200, 503 if refused else 200]
            assert (gateway.stats.connection_refused_count, gateway.stats.address_refused_count) == (refused, refused)
            metrics = await talk(port, closing(HEALTH.replace(b"/healthz", b"/metrics")))
            assert refused or b'mq_connections_refused_total{limit="address"} 0.0' in metrics
            for _, writer in held:
                writer.close()


@pytest.mark.parametrize("is_stopping", [True, False])
async def test_a_handler_that_ends_as_a_stop_gives_it_up_is_not_an_error(
    is_stopping: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: web.Request) -> web.Response:
        # What aiohttp's shutdown leaves for one turn when its time is over: a waiter that was cancelled.
        protocol = request.protocol
        protocol._handler_waiter = asyncio.get_running_loop().create_future()
        protocol._handler_waiter.cancel()
        protocol._force_close = is_stopping
        return web.Response()

    application = web.Application()
    application.router.add_get("/healthz", handler)
    gateway, _ = fake_gateway(FakeClock())
    async with serving(application, gateway) as port:
        assert (await talk(port, HEALTH, timeout_s=2)).startswith(b"HTTP/1.1 200")
    assert ("Unhandled exception" in caplog.text) is not is_stopping


async def test_what_is_no_http_is_answered_like_everything_else(gateway: Gateway) -> None:
    async with served(gateway) as port:
        head, _, body = (await talk(port, b"GET / HTTP/1.1\r\nno header\r\n\r\n")).partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert lines[0].split(" ", 1)[1] == "400 bad request"
    assert "server" not in headers
    assert headers.get("connection", "close") == "close"
    answer = orjson.loads(body)
    assert (answer["error_code"], answer["request_id"], answer["retriable"]) == (400, headers["x-request-id"], False)


@pytest.mark.parametrize(
    ("data", "is_many"),
    [
        (b"a\r\n" * LINES_MAX, False),
        (b"a\r\n" * (LINES_MAX + 1), True),
        (b"\r\n" * (LINES_MAX + 1), True),
        (b"a\n" * (10 * LINES_MAX), False),  # lines of a body
        (b"a\n" * LINES_MAX + b"\r\n" * LINES_MAX, False),
        (b"a\n" * LINES_MAX + b"\r\n" * (LINES_MAX + 1), True),
        (b"", False),
    ],
)
def test_more_line_ends_than_one_turn_has_time_for_are_many(data: bytes, is_many: bool) -> None:
    assert has_many_lines(data) is is_many


async def test_thousands_of_requests_at_once_are_answered_in_order_and_in_turns() -> None:
    """More of them than one read of a socket holds; meanwhile others have their turn."""
    gateway = fake_gateway(FakeClock())[0]
    count = 5_000
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        pipelined = b"".join(
            b"GET /%d HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r%d\r\n\r\n" % (n, n) for n in range(count)
        )
        writer.write(pipelined)
        heard = b""
        async with asyncio.timeout(PATIENCE_S):
            while heard.count(b"X-Request-Id:") < count:
                heard += await reader.read(1 << 20)
        writer.close()
    ids = [int(line[len(b"X-Request-Id: r") :]) for line in heard.split(b"\r\n") if line.startswith(b"X-Request-Id: r")]
    assert ids == list(range(count))


@pytest.mark.parametrize("chunk", [b"1\r\n \r\n", b"2\r\n  \r\n"])
async def test_a_body_in_chunks_of_a_byte_is_whole(chunk: bytes) -> None:
    gateway, broker = fake_gateway(FakeClock())
    await broker.create_topic("orders", 1)
    body = b'{"records":[{"value":1}]}'
    head = b"POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/vnd.kafka.json.v2+json\r\n"
    whole = b"%x\r\n%b\r\n" % (len(body), body)
    request = head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk * 200_000 + whole + b"0\r\n\r\n"
    async with served(gateway) as port:
        assert (await talk(port, request, timeout_s=PATIENCE_S)).startswith(b"HTTP/1.1 200")


async def test_the_kernel_takes_little_of_an_answer_before_its_client_does(gateway: Gateway) -> None:
    made: list[socket.socket] = []
    taken = asyncio.Event()

    async def large(request: web.Request) -> web.Response:
        assert request.transport is not None
        made.append(request.transport.get_extra_info("socket"))
        asyncio.get_running_loop().call_soon(taken.set)
        return web.Response(body=bytes(8 * MiB))

    application = web.Application()
    application.router.add_get("/healthz", large)
    async with serving(application, gateway) as port, asyncio.timeout(PATIENCE_S):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KiB)
            client.connect(("127.0.0.1", port))
            client.send(HEALTH)
            await taken.wait()
            before, waiting = -1, 0
            while before != waiting or not waiting:
                await asyncio.sleep(0.1)
                before, waiting = waiting, _unacknowledged(made[0])
            assert waiting < 3 * UNSENT_BYTES, "what is unsent, a piece beyond it, and what the client has no room for"


def _unacknowledged(one: socket.socket) -> int:
    found: int = struct.unpack("i", fcntl.ioctl(one.fileno(), SIOCOUTQ, bytes(4)))[0]
    return found

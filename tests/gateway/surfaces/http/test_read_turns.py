"""gateway.surfaces.http.read_turns: what a turn reads is bounded, and everybody is read."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest
import uvloop

from gateway.main.application import build_application
from gateway.main.listener import listening
from gateway.main.tls import ServerTls
from gateway.settings.tls import TlsConfig
from gateway.surfaces.http.connection import Connection, ConnectionLimiter
from gateway.surfaces.http.read_turns import (
    ANSWERED_MAX,
    HELD_FROM,
    HELD_MAX,
    LARGE_READ_BYTES,
    LET_GO_PER_TURN,
    READ_PER_TURN,
    WOKEN_PER_TURN,
    ReadTurns,
)
from loadtest.certificates import write_certificate
from store.limits import KiB, MiB
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.waiting import PATIENCE_S

PIECE_BYTES = 256 * KiB
"""What is read of a socket at once."""

TLS_RECORD_BYTES = 17 * KiB
"""What TLS may have of a record that is not whole."""

SENDERS = 100


class Socket:
    """A reader, and what waits for it."""

    def __init__(self, turns: ReadTurns, *, waiting: int = 0, may_send_much: bool = True) -> None:
        self.turns = turns
        self.waiting_bytes = waiting
        self.read_bytes = 0
        self.may_send_much = may_send_much
        self.is_resting = False
        self.woken: Callable[[Socket], None] = lambda _: None
        turns.expects(self)

    def rest(self) -> bool:
        was_resting, self.is_resting = self.is_resting, True
        return not was_resting

    def read_on(self) -> None:
        assert self.is_resting
        self.is_resting = False
        self.woken(self)

    def read(self) -> None:
        """As the event loop does when its turn comes to the socket."""
        size = min(self.waiting_bytes, PIECE_BYTES)
        if size and not self.is_resting:
            self.waiting_bytes -= size
            self.read_bytes += size
            self.turns.took(self, size)


class Loop:
    """The turns of an event loop, by hand."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()
        self.turns = ReadTurns(self._soon.append)

    def next_turn(self) -> None:
        """Call what was to be called."""
        for _ in range(len(self._soon)):
            self._soon.popleft()()

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be called."""
        return not self._soon


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.mark.parametrize(("over", "is_held"), [(0, False), (1, True)])
def test_who_may_have_a_large_piece_waiting_is_held_beyond_the_bound(loop: Loop, over: int, is_held: bool) -> None:
    quiet = Socket(loop.turns)
    readers = [Socket(loop.turns) for _ in range(HELD_FROM // PIECE_BYTES)]
    for one in readers:
        loop.turns.took(one, PIECE_BYTES)
    loop.turns.took(readers[0], over)
    assert all(one.is_resting for one in readers), "beyond READ_PER_TURN"
    assert quiet.is_resting is is_held
    loop.next_turn()
    assert not quiet.is_resting
    while not loop.is_over:
        loop.next_turn()
    assert not any(one.is_resting for one in readers)


def test_at_the_first_bound_nobody_rests_and_beyond_it_who_has_read(loop: Loop) -> None:
    first, second, quiet = (Socket(loop.turns) for _ in range(3))
    loop.turns.took(first, READ_PER_TURN)
    assert not first.is_resting
    loop.turns.took(second, 1)
    assert (first.is_resting, second.is_resting, quiet.is_resting) == (True, True, False)


def test_of_those_that_send_little_the_last_are_held_and_all_who_have_sent_much_before(loop: Loop) -> None:
    answered, large, ended = (Socket(loop.turns, may_send_much=False) for _ in range(3))
    later = [Socket(loop.turns, may_send_much=False) for _ in range(ANSWERED_MAX)]
    loop.turns.took(large, LARGE_READ_BYTES)
    loop.turns.took(ended, LARGE_READ_BYTES)
    for _ in range(3):
        loop.next_turn()  # it was long ago
    loop.turns.ended(ended)
    loop.turns.took(Socket(loop.turns), HELD_FROM + 1)
    assert (answered.is_resting, large.is_resting, ended.is_resting) == (False, True, False)
    assert all(one.is_resting for one in later)
    while not loop.is_over:
        loop.next_turn()
    answered.may_send_much = True
    loop.turns.took(Socket(loop.turns), HELD_FROM + 1)
    assert not answered.is_resting, "until it says so, it is not looked at"
    while not loop.is_over:
        loop.next_turn()
    loop.turns.expects(answered)
    loop.turns.took(Socket(loop.turns), HELD_FROM + 1)
    assert answered.is_resting


@pytest.mark.parametrize("over", [0, 1])
def test_so_many_are_looked_at_to_hold_them_the_last_ones(loop: Loop, over: int) -> None:
    quiet = [Socket(loop.turns) for _ in range(HELD_MAX - 1 + over)]
    loop.turns.took(Socket(loop.turns), HELD_FROM + 1)
    assert [one.is_resting for one in quiet] == [False] * over + [True] * (HELD_MAX - 1)


def test_so_many_are_let_go_in_a_turn_who_has_waited_longest_first(loop: Loop) -> None:
    quiet = [Socket(loop.turns) for _ in range(LET_GO_PER_TURN + 1)]
    loop.turns.took(Socket(loop.turns), HELD_FROM + 1)
    loop.next_turn()
    assert [one.is_resting for one in quiet] == [False] * LET_GO_PER_TURN + [True]
    loop.next_turn()
    assert not any(one.is_resting for one in quiet)


@pytest.mark.parametrize("count", [20, 300])
def test_all_that_send_without_an_end_are_read_as_much(loop: Loop, count: int) -> None:
    """Whatever the order in which the event loop comes to them: here those that began to read on last come last."""
    sockets = [Socket(loop.turns, waiting=1 << 40) for _ in range(count)]
    order = dict.fromkeys(sockets)

    def woken(one: Socket) -> None:
        del order[one]
        order[one] = None

    for one in sockets:
        one.woken = woken
    turns = 100 * count // WOKEN_PER_TURN
    for _ in range(turns):
        before = sum(one.read_bytes for one in sockets)
        for one in list(order):
            one.read()
        assert sum(one.read_bytes for one in sockets) - before <= HELD_FROM + PIECE_BYTES
        loop.next_turn()
    read = sorted(one.read_bytes for one in sockets)
    assert read[0] > 50 * PIECE_BYTES
    assert read[-1] < 2 * read[0]


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_of_a_hundred_that_send_at_once_a_turn_reads_little_more_than_its_bound(
    is_tls: bool,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of them has sent anything before, so that none is known to send much."""
    made: list[Connection] = []
    turns: list[int] = []  # bytes read in each
    undecrypted: list[int] = []
    begin_next, connection_made = ReadTurns._next, Connection.connection_made

    def next_turn(self: ReadTurns) -> None:
        turns.append(self._bytes)
        transports = (one.transport for one in made)
        undecrypted.append(sum(one.get_read_buffer_size() for one in transports if one is not None and is_tls))  # type: ignore[attr-defined]
        begin_next(self)

    def noted(self: Connection, transport: asyncio.BaseTransport) -> None:
        made.append(self)
        connection_made(self, transport)

    monkeypatch.setattr(ReadTurns, "_next", next_turn)
    monkeypatch.setattr(Connection, "connection_made", noted)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_send_at_once(tmp_path if is_tls else None, made))
    assert sum(turns) > SENDERS * PIECE_BYTES // 2, "small pieces are not counted"
    assert max(turns) > READ_PER_TURN, "they did not come at once"
    assert max(turns) <= HELD_FROM + PIECE_BYTES
    assert max(undecrypted) <= HELD_FROM + SENDERS * TLS_RECORD_BYTES


async def _send_at_once(directory: Path | None, made: list[Connection]) -> None:
    gateway, broker = fake_gateway(FakeClock())
    await broker.create_topic("orders", 1)
    tls = trusting = None
    if directory is not None:
        cert, key = directory / "cert.pem", directory / "key.pem"
        write_certificate(cert, key)
        tls, trusting = ServerTls(TlsConfig(cert_file=cert, key_file=key)), ssl.create_default_context(cafile=str(cert))
    body = orjson.dumps({"records": [{"value": "x" * PIECE_BYTES}]})
    request = (
        b"POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/vnd.kafka.json.v2+json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    with ExitStack() as open_:
        listener = open_.enter_context(socket.create_server(("127.0.0.1", 0), backlog=SENDERS))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MiB)  # what waits is a whole piece
        listener.setblocking(False)
        limiter = ConnectionLimiter(gateway.limits, gateway.stats)
        async with (
            asyncio.timeout(PATIENCE_S),
            listening(build_application(gateway), gateway, limiter, listener, tls),
        ):
            streams = []
            for _ in range(SENDERS):
                client = socket.create_connection(listener.getsockname())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MiB)
                name = None if trusting is None else "localhost"
                streams.append(await asyncio.open_connection(sock=client, ssl=trusting, server_hostname=name))
            while len(made) < SENDERS:  # noqa: ASYNC110 -- a plain counter
                await asyncio.sleep(0.01)
            for _, writer in streams:
                writer.write(request)
            answers = [await reader.readline() for reader, _ in streams]
            for _, writer in streams:
                writer.close()
    assert set(answers) == {b"HTTP/1.1 200 OK\r\n"}

"""The bounds of a Kafka connection, each at its limit and one beyond, over a transport in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.auth.access import NOBODY, OPEN, Access
from gateway.settings.kafka import KafkaListener
from gateway.settings.limits import Limits
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.context import GatewayStats
from gateway.surfaces.http.read_turns import HELD_FROM, READ_PER_TURN, WOKEN_PER_TURN, ReadTurns
from gateway.surfaces.kafka import connection as module
from gateway.surfaces.kafka.apis import PRODUCE
from gateway.surfaces.kafka.connection import (
    AUTHENTICATION_TIMEOUT_S,
    JOINED_BYTES_MAX,
    PIPELINE_MAX,
    UNKNOWN_FRAME_BYTES_MAX,
    KafkaConnection,
)
from gateway.surfaces.kafka.frames import LARGE_BYTES, REQUEST_BYTES_MIN, Header
from gateway.surfaces.kafka.session import Session
from store.types import Buffer

VERSION = 7
RESPONSE_HEAD_BYTES = 8


class Transport:
    """What asyncio would do with a connection is only noted."""

    def __init__(self, address: str) -> None:
        self.peer = (address, 50_000)
        self.is_open = True
        self.is_reading = True
        self.sent: list[bytes] = []
        self.pieces: list[list[bytes]] = []

    def get_extra_info(self, name: str) -> object:
        return {"peername": self.peer, "sockname": ("127.0.0.1", 9092)}.get(name)

    def abort(self) -> None:
        self.is_open = False

    close = abort

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def write(self, content: bytes) -> None:
        if content:
            self.sent.append(content)

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        self.pieces.append([bytes(buffer) for buffer in buffers])


class Node:
    """A server's side of connections; Produce requests are begun, and answered when a test says so."""

    def __init__(self, limits: Limits | None = None, access: Access = OPEN) -> None:
        self.limits = limits or Limits()
        self.stats = GatewayStats()
        self.limiter = ConnectionLimiter(self.limits, self.stats)
        self.access = access
        self.connections: set[KafkaConnection] = set()
        self.next_turn: list[Callable[[], None]] = []
        self.read_turns = ReadTurns(self.next_turn.append)
        self.done: list[Callable[[Iterable[Buffer] | None], None]] = []
        self.gateway: Any = SimpleNamespace(limits=self.limits, stats=self.stats, rates=None)

    def begin_produce(self, session: Session, header: Header, frame: memoryview, done: Any) -> bool:
        self.done.append(done)
        return True

    def connect(self, address: str = "10.0.0.1") -> tuple[KafkaConnection, Transport]:
        def new_session(address: str, reached: KafkaListener) -> Session:
            return Session(self.gateway, cast(Any, None), "", reached, address, self.access)

        connection = KafkaConnection(
            self.gateway, cast(Any, self), self.limiter, new_session, self.connections, self.read_turns
        )
        transport = Transport(address)
        connection.connection_made(cast(Any, transport))
        return connection, transport


def _produce(size: int = REQUEST_BYTES_MIN) -> bytes:
    """A whole Produce request whose frame, without its length, has so many bytes."""
    head = PRODUCE.to_bytes(2, "big") + VERSION.to_bytes(2, "big") + b"\0\0\0\1" + b"\xff\xff"
    return size.to_bytes(4, "big") + head + bytes(size - len(head))


def test_connections_in_all() -> None:
    node = Node(replace(Limits(), connections_max=2, connections_per_address_max=0))
    (first, one), (_, two), (_, three) = node.connect(), node.connect("10.0.0.2"), node.connect("10.0.0.3")
    assert (one.is_open, two.is_open, three.is_open) == (True, True, False)
    assert (node.stats.connection_refused_count, node.stats.address_refused_count) == (1, 0)
    first.connection_lost(None)
    assert node.connect("10.0.0.3")[1].is_open


def test_connections_of_one_address() -> None:
    node = Node(replace(Limits(), connections_per_address_max=2))
    transports = [node.connect()[1] for _ in range(3)]
    assert [transport.is_open for transport in transports] == [True, True, False]
    assert node.connect("10.0.0.2")[1].is_open
    assert node.stats.address_refused_count == 1
    assert node.stats.kafka.connection_count == 3


@pytest.mark.parametrize(("over", "is_open"), [(0, True), (1, False)])
def test_bytes_being_received_of_all_connections(over: int, is_open: bool) -> None:
    node = Node(replace(Limits(), receiving_bytes_max=1_000, body_bytes_max=1_000))
    (first, _), (second, transport) = node.connect(), node.connect()
    first.data_received(_produce(900)[:600])
    second.data_received(_produce(900)[: 400 + over])
    assert transport.is_open is is_open
    assert node.stats.body_refused_count == over
    for connection in (first, second):
        connection.connection_lost(None)
    assert node.stats.receiving_bytes == 0


def test_what_a_turn_reads_is_bounded_over_all_connections() -> None:
    node = Node()
    count = 2 * WOKEN_PER_TURN + 1
    made = [node.connect() for _ in range(count)]
    for connection, _ in made:
        connection.data_received(_produce(READ_PER_TURN)[: READ_PER_TURN // count + 1])
        still = [transport.is_reading for _, transport in made]
        assert still == [connection is not made[-1][0]] * count, "all that read large pieces rest when it is too much"
    quiet = node.connect()
    quiet[0].data_received(b"x")
    assert not quiet[1].is_reading, "who comes in a turn that has read too much"

    def turn() -> list[int]:
        waiting, node.next_turn[:] = node.next_turn[:], []
        for call in waiting:
            call()
        return [number for number, (_, transport) in enumerate(made) if transport.is_reading]

    made.append(quiet)
    in_order = [*range(count + 1)]
    assert turn() == sorted(in_order[:WOKEN_PER_TURN])
    made[in_order[-1]][0].connection_lost(None)
    assert turn() == sorted(in_order[: 2 * WOKEN_PER_TURN])
    assert turn() == sorted(in_order[:-1]), "who is gone does not read on"
    assert turn() == sorted(in_order[:-1])
    assert node.next_turn == []


def test_who_may_have_a_large_request_waiting_is_held_when_a_turn_has_read_too_much() -> None:
    node = Node()
    (silent, held), (served, _), (half, resting) = (node.connect() for _ in range(3))
    served.data_received(_produce())
    half.data_received(_produce(1_000)[:100])
    large, _ = node.connect()
    large.data_received(_produce(2 * HELD_FROM)[: HELD_FROM - 200])
    assert (held.is_reading, resting.is_reading) == (True, True)
    large.data_received(bytes(200))
    assert (held.is_reading, resting.is_reading) == (False, False)
    assert [one.may_send_much for one in (silent, half, served)] == [True, True, False]
    silent.connection_lost(None)
    while node.next_turn:
        waiting, node.next_turn[:] = node.next_turn[:], []
        for call in waiting:
            call()
    assert resting.is_reading
    assert not held.is_reading, "it is gone"


def test_a_large_request_is_read_to_where_it_stays() -> None:
    node = Node()
    connection, _ = node.connect()
    stream, at = _produce(4 * LARGE_BYTES) + _produce(), 0
    buffers: list[object] = []
    while at < len(stream):
        buffer = connection.get_buffer(-1)
        piece = stream[at : at + min(len(buffer), 100_000)]
        buffer[: len(piece)] = piece
        connection.buffer_updated(len(piece))
        at += len(piece)
        buffers.append(buffer.obj)
    assert len(node.done) == 2
    assert len({id(one) for one in buffers}) == 2, "one for the rest of the large request, one for all else"
    assert node.stats.receiving_bytes == len(stream)
    connection.connection_lost(None)
    assert node.stats.receiving_bytes == 0


@pytest.mark.parametrize(("size", "is_open"), [(UNKNOWN_FRAME_BYTES_MAX, True), (UNKNOWN_FRAME_BYTES_MAX + 1, False)])
def test_a_request_of_a_client_that_has_not_said_who_it_is(size: int, is_open: bool) -> None:
    connection, transport = Node(access=NOBODY).connect()
    connection.data_received(size.to_bytes(4, "big"))  # its length is enough: no byte of it is waited for
    assert transport.is_open is is_open


@pytest.mark.parametrize(("over", "is_open"), [(0, True), (1, False)])
def test_a_request_of_a_client_that_is_known(over: int, is_open: bool) -> None:
    node = Node()
    connection, transport = node.connect()
    connection.data_received((node.limits.body_bytes_max + over).to_bytes(4, "big"))
    assert transport.is_open is is_open


@pytest.mark.parametrize(
    "length",
    [b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x09", b"GET ", b"POST", b"OPTI"],
)
def test_hostile_lengths(length: bytes) -> None:
    node = Node()
    connection, transport = node.connect()
    connection.data_received(length)
    assert not transport.is_open
    assert node.stats.kafka.malformed_count == 1
    connection.data_received(_produce())  # what asyncio had read already
    assert not node.done


def test_nothing_is_served_before_the_client_has_said_who_it_is() -> None:
    node = Node(access=NOBODY)
    connection, transport = node.connect()
    connection.data_received(_produce())
    assert (transport.is_open, node.done) == (False, [])


@pytest.mark.parametrize("more", [0, 1])
async def test_small_responses_are_sent_as_one_piece(more: int) -> None:
    node = Node()
    connection, transport = node.connect()
    connection.data_received(_produce())
    body = bytes(JOINED_BYTES_MAX - RESPONSE_HEAD_BYTES + more)
    node.done[0]([body])
    sent, pieces = transport.sent, [b"".join(pieces) for pieces in transport.pieces]
    assert [len(one) for one in (sent, pieces)] == [1 - more, more]
    assert [one[RESPONSE_HEAD_BYTES:] for one in (*sent, *pieces)] == [body]


@pytest.mark.parametrize("is_late", [False, True])
def test_how_long_the_rest_of_a_request_may_take(is_late: bool) -> None:
    connection, transport = Node().connect()
    before_s = monotonic()
    connection.data_received(_produce(100)[:50])
    after_s = monotonic()
    connection.look(after_s + 5.1 if is_late else before_s + 5, body_timeout_s=5, idle_timeout_s=1_000)
    assert transport.is_open is not is_late


@pytest.mark.parametrize("is_late", [False, True])
def test_how_long_a_client_may_take_to_say_who_it_is(is_late: bool) -> None:
    before_s = monotonic()
    connection, transport = Node(access=NOBODY).connect()
    now_s = (monotonic() + 0.1 if is_late else before_s) + AUTHENTICATION_TIMEOUT_S
    connection.look(now_s, body_timeout_s=1_000, idle_timeout_s=1_000)
    assert transport.is_open is not is_late


def test_that_reading_has_paused_gives_no_more_time_to_say_who_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, transport = Node(access=NOBODY).connect()
    opened_s = monotonic()
    monkeypatch.setattr(module, "monotonic", lambda: opened_s + AUTHENTICATION_TIMEOUT_S)
    connection.rest()
    connection.read_on()  # as between two requests that come together
    connection.look(opened_s + AUTHENTICATION_TIMEOUT_S + 0.1, body_timeout_s=1_000, idle_timeout_s=1_000)
    assert not transport.is_open


async def test_requests_that_are_begun_and_answers_in_the_order_of_requests() -> None:
    node = Node()
    connection, transport = node.connect()
    connection.data_received(_produce() * PIPELINE_MAX)
    assert (len(node.done), transport.is_reading) == (PIPELINE_MAX, True)
    connection.data_received(_produce())
    assert (len(node.done), transport.is_reading) == (PIPELINE_MAX, False)  # one more waits, and no more is read
    node.done[1]([b"second"])
    await asyncio.sleep(0)
    assert transport.sent == []
    node.done[0]([b"first"])
    node.done[2]([b"third"])
    await asyncio.sleep(0)
    [sent] = transport.sent  # what is answered in one turn goes out by one write
    assert sent.index(b"first") < sent.index(b"second") < sent.index(b"third")
    assert (len(node.done), transport.is_reading) == (PIPELINE_MAX + 1, True)
    node.done[3]([b"fourth"])
    connection.connection_lost(None)  # between an answer and its write
    await asyncio.sleep(0)
    assert transport.sent == [sent]


@pytest.mark.parametrize("is_late", [False, True])
def test_how_long_a_client_may_say_nothing(is_late: bool) -> None:
    node = Node()
    before_s = monotonic()
    connection, transport = node.connect()
    connection.data_received(_produce())
    late_s = monotonic() + 100.1
    connection.look(late_s, body_timeout_s=1, idle_timeout_s=100)
    assert transport.is_open  # its request is being served
    node.done[0]([b"answer"])
    connection.look(late_s if is_late else before_s + 100, body_timeout_s=1, idle_timeout_s=100)
    assert transport.is_open is not is_late

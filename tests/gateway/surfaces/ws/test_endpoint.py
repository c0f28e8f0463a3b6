"""The socket itself: handshake, close codes, slow peers, shutdown; the real route table, two client stacks."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
import websockets
from aiohttp import ClientSession, WSMsgType, WSServerHandshakeError, web
from aiohttp.test_utils import TestServer

from gateway.auth.access import NOBODY, Access, Permission, forbidden
from gateway.auth.rates import Rates
from gateway.errors import RequestError
from gateway.settings.limits import Limits
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.ws.conversation import REFUSED_IN_A_ROW_MAX
from gateway.surfaces.ws.protocol import SUBPROTOCOL, binary_frame, split_binary
from store.record_batch import Record, encode
from tests.clock import START_MS
from tests.gateway.fake_broker import FakeBroker
from tests.gateway.production_server import ProductionServer
from tests.gateway.surfaces.ws.memory import memory_gateway
from tests.gateway.surfaces.ws.scripted_groups import ScriptedGroups
from tests.waiting import PATIENCE_S, until

Frame = dict[str, Any]


class Somebody:
    """A principal with rights that a test can end."""

    def __init__(self, principal: str, expires_at_ms: int | None, topics: set[str]) -> None:
        self.principal = principal
        self.expires_at_ms = expires_at_ms
        self.topics = topics
        self.on_end: Callable[[], None] | None = None
        self.is_over = False

    def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        return (topic is None or topic in self.topics) and group != "secret"

    def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        if not self.allows(permission, topic=topic, group=group):
            raise forbidden(permission, topic, group)

    def watch(self, on_end: Callable[[], None]) -> Callable[[], None]:
        self.on_end = on_end
        return lambda: None


class Tokens:
    """Knows tokens by heart; a request names nobody."""

    is_required = True

    def __init__(self) -> None:
        self.known: dict[str, Somebody] = {}

    def access_of_request(self, request: web.BaseRequest) -> Access:
        header = request.headers.get("Authorization")
        return NOBODY if header is None else self.access_of_token(header.removeprefix("Bearer "), "")

    def access_of_token(self, token: str, address: str) -> Access:
        try:
            return self.known[token]
        except KeyError:
            raise RequestError(40101, "unknown token") from None

    def issue_ticket(self, access: Access) -> str:
        raise NotImplementedError


class Running:
    """One server over a fake broker, on a free port."""

    def __init__(self, gateway: Gateway, broker: FakeBroker, server: TestServer) -> None:
        self.gateway = gateway
        self.broker = broker
        self.url = str(server.make_url("/ws/v1").with_scheme("ws"))
        self.port = server.port


Start = Callable[..., Awaitable[Running]]
SUBSCRIBE: Frame = {"op": "subscribe", "sub": "s", "topics": ["orders"]}


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[TestServer] = []

    async def start(**options: Any) -> Running:
        tokens = options.pop("tokens", None)
        rates = options.pop("rates", None)
        gateway, broker = memory_gateway({"orders": 2, "secret": 1}, **options)
        gateway = replace(gateway, rates=rates, groups=fake_groups(gateway))
        if tokens is not None:
            gateway = replace(gateway, authenticator=tokens)
        server = ProductionServer(gateway)
        await server.start_server()
        servers.append(server)
        return Running(gateway, broker, server)

    yield start
    for server in servers:
        await server.close()


def fake_groups(gateway: Gateway) -> ScriptedGroups:
    return ScriptedGroups(gateway.routes_table, gateway.consumer, START_MS)


async def sockets_closed(gateway: Gateway) -> None:
    await until(lambda: not gateway.stats.ws_socket_count)


async def test_aiohttp_client_produces_and_follows(start: Start) -> None:
    server = await start()
    async with ClientSession() as client, client.ws_connect(server.url, protocols=(SUBPROTOCOL,)) as socket:
        assert socket.protocol == SUBPROTOCOL
        await socket.send_json({"id": 1, "op": "hello"})
        assert (await socket.receive_json())["server"] == "mq/1.2.3"
        await socket.send_json({"id": 2, "op": "subscribe", "sub": "s", "topics": ["orders"], "from": "earliest"})
        assert (await socket.receive_json())["partitions"] == {"orders": [0, 1]}
        assert (await socket.receive_json())["op"] == "caught_up"
        await socket.send_json({"op": "produce", "topic": "orders", "records": [{"value": "é"}], "ack": False})
        (message,) = (await socket.receive_json())["messages"]
        assert message["value"] == "é"
        assert server.gateway.stats.ws_sent_message_count == 1
    await sockets_closed(server.gateway)
    assert server.gateway.stats.ws_subscription_count == 0


async def test_websockets_client_reads_everything_once(start: Start) -> None:
    server = await start()
    async with websockets.connect(server.url, subprotocols=[websockets.Subprotocol(SUBPROTOCOL)]) as socket:
        assert socket.subprotocol == SUBPROTOCOL
        for first in range(0, 5000, 500):
            records = [{"key": n % 7, "value": n} for n in range(first, first + 500)]
            await socket.send(
                orjson.dumps({"op": "produce", "topic": "orders", "records": records, "ack": False}).decode()
            )
        subscribe = {"id": 1, "op": "subscribe", "sub": "s", "topics": ["orders"], "from": "earliest", "credit": 100}
        await socket.send(orjson.dumps(subscribe).decode())
        values: list[int] = []
        while len(values) < 5000:
            frame = orjson.loads(await socket.recv())
            values += [message["value"] for message in frame.get("messages", [])]
            assert len(frame.get("messages", [])) <= 100
        assert sorted(values) == list(range(5000))
        for key in range(7):  # one key, one partition, one order
            assert [value for value in values if value % 7 == key] == list(range(key, 5000, 7))
        pong = await socket.ping()
        await pong


@pytest.mark.parametrize("text", ["{", "7", '[{"op":"ping"},3]'])
async def test_a_bad_frame_is_told_and_closed_with_4500(start: Start, text: str) -> None:
    server = await start()
    async with websockets.connect(server.url) as socket:
        await socket.send(text)
        assert orjson.loads(await socket.recv())["op"] == "error"
        with pytest.raises(websockets.ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 4500
    await sockets_closed(server.gateway)


async def test_a_binary_frame_that_was_not_agreed_on_is_closed_with_1003(start: Start) -> None:
    server = await start()
    async with websockets.connect(server.url) as socket:
        await socket.send(b"\x00")
        with pytest.raises(websockets.ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1003


async def test_the_largest_frame_passes_and_one_byte_more_is_closed_with_1009(start: Start) -> None:
    server = await start(limits=Limits(ws_frame_bytes_max=1000))
    largest = '{"op":"ping"}'.ljust(1000)
    async with websockets.connect(server.url) as socket:
        await socket.send(largest)
        assert orjson.loads(await socket.recv())["op"] == "pong"
        await socket.send(largest + " ")
        with pytest.raises(websockets.ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1009
    await sockets_closed(server.gateway)


async def test_text_that_is_not_utf8_is_closed_with_1007(start: Start) -> None:
    server = await start()
    async with websockets.connect(server.url) as socket:
        await socket.send(b'{"op":"\xff"}', text=True)
        with pytest.raises(websockets.ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1007


async def test_an_unknown_op_leaves_the_socket_usable(start: Start) -> None:
    server = await start()
    async with websockets.connect(server.url) as socket:
        await socket.send('{"id":1,"op":"dance"}\n{"id":2,"op":"ping"}')
        answers = [orjson.loads(await socket.recv()) for _ in range(2)]
        assert [(answer["id"], answer["ok"]) for answer in answers] == [(1, False), (2, True)]


async def test_shutdown_says_goaway_and_closes_with_4001(start: Start) -> None:
    server = await start()
    server.broker.hold = asyncio.Event()
    async with websockets.connect(server.url) as socket:
        await socket.send('{"id":1,"op":"produce","topic":"orders","records":[{"value":1}]}')
        await until(lambda: server.broker.append_count)
        server.gateway.draining.set()
        goaway = orjson.loads(await socket.recv())
        assert (goaway["op"], goaway["reason"]) == ("goaway", "shutdown")
        assert goaway["resume"].startswith("sess_")
        for begins in ({"op": "produce", "topic": "orders", "records": [{"value": 2}]}, {**SUBSCRIBE, "sub": "late"}):
            refused_now = await asked(socket, {"id": 2, **begins})
            assert (refused_now["error_code"], refused_now["retriable"]) == (50350, True), "nothing was begun"
        server.broker.hold.set()
        assert orjson.loads(await socket.recv())["ok"], "an accepted produce is answered before the close"
        with pytest.raises(websockets.ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 4001
    await sockets_closed(server.gateway)
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(server.url)
    assert refused.value.response.status_code == 503


async def test_a_peer_that_takes_no_bytes_is_closed_with_4008_and_others_do_not_notice(start: Start) -> None:
    server = await start(write_timeout_ms=100)
    async with ClientSession() as client, client.ws_connect(server.url) as healthy:
        raw = sockets.create_connection(("127.0.0.1", server.port or 0))
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        request = (
            f"GET /ws/v1 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        await loop.sock_sendall(raw, request.encode())
        records = [{"value": "x" * 1_000_000}] * 4
        for _ in range(3):  # more than the kernel's buffers take
            await healthy.send_json({"id": 1, "op": "produce", "topic": "orders", "records": records})
            assert (await healthy.receive_json())["ok"]
        await loop.sock_sendall(raw, masked('{"op":"subscribe","sub":"s","topics":["orders"],"from":"earliest"}'))
        async with asyncio.timeout(PATIENCE_S):
            while not server.gateway.stats.ws_slow_close_count:
                await healthy.send_json({"op": "ping"})
                assert (await healthy.receive_json())["op"] == "pong"
            seen = b""
            while chunk := await loop.sock_recv(raw, 1 << 20):
                seen = (seen + chunk)[-64:]
        raw.close()
        assert seen.endswith(b"\x88\x02" + (4008).to_bytes(2, "big")), "the code is behind what was on its way"


def masked(text: str) -> bytes:
    """A client's text frame of less than 126 bytes; a mask of zeros leaves it readable."""
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text.encode()


async def test_a_client_that_vanishes_leaves_nothing_behind(start: Start) -> None:
    server = await start()
    async with ClientSession() as client:
        socket = await client.ws_connect(server.url)
        await socket.send_json({"id": 1, "op": "subscribe", "sub": "s", "topics": ["orders"]})
        await socket.receive_json()
        connection = socket.get_extra_info("socket")
        connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        assert socket._response.connection is not None
        assert socket._response.connection.transport is not None
        socket._response.connection.transport.abort()
        await sockets_closed(server.gateway)
    assert server.gateway.stats.ws_subscription_count == 0


async def test_pages_of_other_origins_are_refused_before_the_handshake(start: Start) -> None:
    server = await start(origins=("https://app.example",))
    async with ClientSession() as client:
        for origin in (f"http://127.0.0.1:{server.port}", "https://app.example"):
            async with client.ws_connect(server.url, headers={"Origin": origin}) as socket:
                await socket.send_json({"op": "ping"})
                assert (await socket.receive_json())["op"] == "pong"
        with pytest.raises(WSServerHandshakeError) as refused:
            await client.ws_connect(server.url, headers={"Origin": "https://evil.example"})
        assert refused.value.status == 403


async def test_a_plain_get_and_one_socket_too_many_get_plain_answers(start: Start) -> None:
    server = await start(limits=Limits(ws_sockets_max=1))
    async with ClientSession() as client:
        async with client.get(server.url.replace("ws:", "http:")) as answer:
            assert answer.status == 400
            assert (await answer.json(content_type=None))["error_code"] == 400
        async with client.ws_connect(server.url):
            with pytest.raises(WSServerHandshakeError) as refused:
                await client.ws_connect(server.url)
            assert refused.value.status == 429
        await sockets_closed(server.gateway)
        async with client.ws_connect(server.url) as socket:
            await socket.send_json({"op": "ping"})
            assert (await socket.receive()).type is WSMsgType.TEXT


async def closed_with(socket: websockets.ClientConnection) -> int | None:
    """The code of the close, whatever came before it."""
    async with asyncio.timeout(PATIENCE_S):
        with suppress(websockets.ConnectionClosed):
            async for _ in socket:
                pass
        await socket.wait_closed()
    return socket.close_code


async def asked(socket: websockets.ClientConnection, command: Frame) -> Frame:
    """The answer to a command, whatever is pushed before it."""
    await socket.send(orjson.dumps(command).decode())
    async with asyncio.timeout(PATIENCE_S):
        while True:
            frame: Frame = orjson.loads(await socket.recv())
            if frame.get("id") == command["id"]:
                return frame


# ------------------------------------------------------------------------------------------------- signs of life


async def test_who_answers_no_ping_is_closed_with_4003(start: Start) -> None:
    server = await start(ws_ping_ms=30)
    raw = sockets.create_connection(("127.0.0.1", server.port or 0))
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    request = (
        f"GET /ws/v1 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    await loop.sock_sendall(raw, request.encode())
    seen = b""
    async with asyncio.timeout(PATIENCE_S):
        while chunk := await loop.sock_recv(raw, 1 << 16):
            seen += chunk
            if seen.endswith(b"\x88\x02" + (4003).to_bytes(2, "big")):
                break
    raw.close()
    assert seen.count(b"\x89\x00") == 2, "it was pinged twice"


async def test_who_answers_pings_stays(start: Start) -> None:
    server = await start(ws_ping_ms=20)
    async with websockets.connect(server.url, ping_interval=None) as socket:
        await asyncio.sleep(0.15)
        assert (await asked(socket, {"id": 1, "op": "ping"}))["ok"]


async def test_pings_that_we_do_not_read_are_not_missed(start: Start) -> None:
    """While a socket waits for the disk nobody reads its pongs: it is alive nevertheless."""
    server = await start(ws_ping_ms=200)
    server.broker.hold = asyncio.Event()
    async with websockets.connect(server.url, ping_interval=None) as socket:
        produce = {"op": "produce", "topic": "orders", "records": [{"value": "x" * 3_000_000}] * 3}
        for number in (1, 2):  # together more than may be unanswered
            await socket.send(orjson.dumps({"id": number, **produce}).decode())
        await until(lambda: server.broker.append_count)
        await asyncio.sleep(0.8)
        server.broker.hold.set()
        assert [orjson.loads(await socket.recv())["id"] for _ in range(2)] == [1, 2]


# ------------------------------------------------------------------------------------------------- authentication


async def test_somebody_unknown_must_say_hello_with_a_good_token_first(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.surfaces.ws.rights.HELLO_TIMEOUT_S", 0.05)
    tokens = Tokens()
    tokens.known["good"] = Somebody("ann", None, {"orders"})
    server = await start(tokens=tokens)
    for first in (None, '{"op":"hello"}', '{"op":"hello","token":"bad"}', '{"op":"pause","sub":"s"}'):
        async with websockets.connect(server.url) as socket:
            if first is not None:
                await socket.send(first)
            assert await closed_with(socket) == 4501
    async with websockets.connect(server.url) as socket:
        hello = await asked(socket, {"id": 1, "op": "hello", "token": "good"})
        assert hello["limits"]["max_frame"] == 1024 * 1024
        await asyncio.sleep(0.1)  # longer than the time for hello
        subscribe = {"id": 2, "op": "subscribe", "sub": "s", "topics": ["orders"]}
        assert (await asked(socket, subscribe))["ok"]


async def test_a_stranger_sends_no_large_frame_and_strangers_are_few(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.surfaces.ws.endpoint.STRANGERS_MAX", 2)
    tokens = Tokens()
    tokens.known["good"] = Somebody("ann", None, {"orders"})
    server = await start(tokens=tokens)
    async with websockets.connect(server.url) as first, websockets.connect(server.url):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(server.url)
        assert refused.value.response.status_code == 429
        await first.send('{"op":"hello","token":"good"}'.ljust(1024 * 1024))
        assert (await asked(first, {"id": 2, "op": "ping"}))["ok"]
        async with websockets.connect(server.url) as third:
            await third.send(" " * (1024 * 1024 + 1))
            assert await closed_with(third) == 1009


async def test_every_command_is_judged_by_itself(start: Start) -> None:
    tokens = Tokens()
    ann = tokens.known["good"] = Somebody("ann", None, {"orders"})
    server = await start(tokens=tokens)
    async with websockets.connect(server.url, additional_headers={"Authorization": "Bearer good"}) as socket:
        secret = {"sub": "s", "topics": ["secret"]}
        queue = {"sub": "s", "topics": ["orders"], "mode": "queue", "group": "secret"}
        for number, command in enumerate(
            [
                {"op": "produce", "topic": "secret", "records": [{"value": 1}]},
                {"op": "subscribe", **secret},
                {"op": "subscribe", **queue},
            ]
        ):
            assert (await asked(socket, {"id": number, **command}))["error_code"] == 40301
        pattern = {"id": 7, "op": "subscribe", "sub": "s", "pattern": ".*"}
        assert (await asked(socket, pattern))["partitions"] == {"orders": [0, 1]}
        ann.topics.clear()
        assert (await asked(socket, {"id": 8, "op": "seek", "sub": "s", "to": "earliest"}))["error_code"] == 40301


async def test_rights_end_with_a_warning_and_a_new_token_goes_on(start: Start) -> None:
    tokens = Tokens()
    tokens.known["old"] = Somebody("ann", START_MS + 30_000, {"orders"})
    tokens.known["new"] = Somebody("ann", None, {"orders"})
    tokens.known["soon"] = Somebody("ann", START_MS + 20, {"orders"})
    tokens.known["bob"] = Somebody("bob", None, {"orders"})
    server = await start(tokens=tokens)
    headers = {"Authorization": "Bearer old"}
    async with websockets.connect(server.url, additional_headers=headers) as socket:
        assert orjson.loads(await socket.recv()) == {"op": "auth_expiring", "in_ms": 30_000}
        assert (await asked(socket, {"id": 1, "op": "auth", "token": "new"}))["expires_at"] is None
        tokens.known["new"].on_end()  # type: ignore[misc]
        assert await closed_with(socket) == 4501
    async with websockets.connect(server.url, additional_headers=headers) as socket:
        await asked(socket, {"id": 1, "op": "auth", "token": "soon"})
        clock = server.gateway.clock
        clock.step(25)  # type: ignore[attr-defined]
        assert await closed_with(socket) == 4005
        clock.step(-25)  # type: ignore[attr-defined]
    async with websockets.connect(server.url, additional_headers=headers) as socket:
        await socket.send('{"op":"auth","token":"bob"}')
        assert await closed_with(socket) == 4503


# ------------------------------------------------------------------------------------------------- limits


async def test_commands_over_the_rate_are_refused_and_many_in_a_row_close_with_4029(start: Start) -> None:
    server = await start(rates=Rates(requests_per_s=1, bytes_per_s=0, now_s=lambda: 0.0))
    produce = {"op": "produce", "topic": "orders", "records": [{"value": 1}]}
    async with websockets.connect(server.url) as socket:  # opening it took one of two
        assert (await asked(socket, {"id": 1, **produce}))["ok"]
        for number in range(2, REFUSED_IN_A_ROW_MAX + 1):
            refused = await asked(socket, {"id": number, **produce})
            assert (refused["error_code"], refused["retriable"]) == (42901, True)
            assert refused["retry_after_ms"] > 0
        await socket.send(orjson.dumps(produce).decode())
        assert await closed_with(socket) == 4029


async def test_too_many_commands_in_one_frame_close_with_4504(start: Start) -> None:
    server = await start()
    async with websockets.connect(server.url) as socket:
        await socket.send("[" + ",".join(["{}"] * 10_001) + "]")
        assert await closed_with(socket) == 4504


async def test_large_frames_are_compressed_for_clients_that_offer_it_small_ones_never(start: Start) -> None:
    for deflate in (True, False):
        server = await start(ws_deflate=deflate)
        async with ClientSession() as client, client.ws_connect(server.url, compress=15) as socket:
            assert bool(socket.compress) is deflate
            await socket.send_json({"id": 1, "op": "subscribe", "sub": "s", "topics": ["orders"], "from": "latest"})
            await socket.receive_json()
            await socket.receive_json()
            for size in (10, 100_000):
                records = [{"value": "x" * size}]
                await socket.send_json({"op": "produce", "topic": "orders", "records": records, "ack": False})
                (message,) = (await socket.receive_json())["messages"]
                assert message["value"] == "x" * size


# ------------------------------------------------------------------------------------------------- binary frames


async def test_binary_frames_carry_bytes_as_they_are_both_ways(start: Start) -> None:
    server = await start()
    async with websockets.connect(server.url) as socket:
        hello = await asked(socket, {"id": 1, "op": "hello", "binary": True})
        assert hello["binary"]
        subscribe = {"id": 2, "op": "subscribe", "sub": "s", "topics": ["orders"], "from": "earliest"}
        assert (await asked(socket, subscribe))["ok"]
        await socket.recv()
        records = [{"key_len": 2, "value_len": 3, "tag": "paid"}, {"key_len": None, "value_len": 0}, {"key_len": 1}]
        header = {"id": 3, "op": "produce", "topic": "orders", "partition": 1, "records": records}
        await socket.send(binary_frame(orjson.dumps(header), b"\xff\x00abck"))
        frames = [await socket.recv(), await socket.recv()]
        (pushed,) = [frame for frame in frames if isinstance(frame, bytes)]
        head, payload = split_binary(pushed)
        assert bytes(payload) == b"\xff\x00abck"
        messages = head["messages"]
        assert isinstance(messages, list)
        lengths = [(message["key_len"], message["value_len"]) for message in messages]
        assert lengths == [(2, 3), (None, 0), (1, None)]
        assert (head["bytes"], messages[0]["tag"], messages[2]["cursor"]) == (6, "paid", "orders:1=3")


@pytest.mark.parametrize(
    ("header", "payload", "code"),
    [
        ({"op": "produce", "topic": "orders", "records": [{"value_len": 3}]}, b"ab", 400),
        ({"op": "produce", "topic": "orders", "records": [{"value_len": 1}]}, b"ab", 400),
        ({"op": "produce", "topic": "orders", "records": [{"value_len": -1}]}, b"", 400),
        ({"op": "produce", "topic": "orders", "records": [{"value_len": 0, "value": 1}]}, b"", 422),
        ({"op": "produce", "topic": "orders", "records": [{"value_len": 0, "x": 1}]}, b"", 422),
        ({"op": "produce", "topic": "orders", "records": []}, b"", 422),
        ({"op": "produce", "topic": "orders", "format": "batch"}, b"no batch", 400),
        ({"op": "produce", "topic": "orders", "format": "batch"}, b"", 422),
        ({"op": "ping"}, b"", 422),
    ],
)
async def test_a_binary_frame_that_does_not_add_up_is_refused_and_stores_nothing(
    start: Start, header: Frame, payload: bytes, code: int
) -> None:
    server = await start()
    async with websockets.connect(server.url) as socket:
        await asked(socket, {"id": 1, "op": "hello", "binary": True})
        await socket.send(binary_frame(orjson.dumps({"id": 2, **header}), payload))
        assert orjson.loads(await socket.recv())["error_code"] == code
    assert not server.broker.entries


async def test_raw_batches_come_and_go_as_they_are_stored(start: Start) -> None:
    server = await start()
    batch = bytes(encode([Record(b"k", b"v%d" % n, 1) for n in range(50)]))
    async with websockets.connect(server.url) as socket:
        await asked(socket, {"id": 1, "op": "hello", "binary": True})
        header = {"id": 2, "op": "produce", "topic": "orders", "partition": 0, "format": "batch"}
        await socket.send(binary_frame(orjson.dumps(header), batch * 3))
        offsets = orjson.loads(await socket.recv())["offsets"]
        assert offsets == [{"partition": 0, "offset": 50 * n, "record_count": 50} for n in range(3)]
        subscribe = {
            "id": 3, "op": "subscribe", "sub": "s", "topics": ["orders"], "format": "batch", "credit": 60,
            "auto_credit": False, "from": {"orders": {"0": 10, "1": 0}},
        }  # fmt: skip
        assert (await asked(socket, subscribe))["ok"]
        head, payload = split_binary(await socket.recv())  # type: ignore[arg-type]
        assert (head["offset"], head["next_offset"], head["count"], head["credit"]) == (10, 50, 40, 20)
        assert len(payload) == len(batch)
        permit = {"id": 4, "op": "permit", "sub": "s", "messages": 19}
        await asked(socket, permit)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(socket.recv(), 0.05)  # 39 left, the next batch has 50
        await asked(socket, permit | {"messages": 21})  # all returned: one batch may exceed what is left
        head, _ = split_binary(await socket.recv())  # type: ignore[arg-type]
        assert (head["count"], head["credit"]) == (50, 10)


async def test_binary_forms_need_hello(start: Start) -> None:
    server = await start()
    async with websockets.connect(server.url) as socket:
        subscribe = {"id": 1, "op": "subscribe", "sub": "s", "topics": ["orders"], "format": "batch"}
        assert (await asked(socket, subscribe))["error_code"] == 422


# ------------------------------------------------------------------------------------------------- short forms


async def test_short_forms_ask_who_one_is_before_the_handshake(start: Start) -> None:
    tokens = Tokens()
    tokens.known["good"] = Somebody("ann", None, set())
    with_tokens = await start(tokens=tokens)
    for headers, status in (({}, 401), ({"Authorization": "Bearer good"}, 403)):
        for path in ("produce?topic=orders", "consume?topic=orders"):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(f"{with_tokens.url}/{path}", additional_headers=headers)
            assert refused.value.response.status_code == status

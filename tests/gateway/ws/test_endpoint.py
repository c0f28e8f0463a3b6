"""The socket itself: handshake, close codes, slow peers, shutdown; the real route table, two client stacks."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest
import websockets
from aiohttp import ClientSession, WSMsgType, WSServerHandshakeError
from aiohttp.test_utils import TestServer

from gateway.http.application import build_application
from gateway.http.context import Gateway
from gateway.limits import Limits
from gateway.ws.endpoint import origin_allowed
from gateway.ws.protocol import SUBPROTOCOL
from tests.gateway.ws.memory import MemoryBroker, memory_gateway, until

Frame = dict[str, Any]


class Running:
    """One server over a memory broker, on a free port."""

    def __init__(self, gateway: Gateway, broker: MemoryBroker, server: TestServer) -> None:
        self.gateway = gateway
        self.broker = broker
        self.url = str(server.make_url("/ws/v1").with_scheme("ws"))
        self.port = server.port


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[TestServer] = []

    async def start(**options: Any) -> Running:
        gateway, broker = memory_gateway({"orders": 2}, **options)
        server = TestServer(build_application(gateway))
        await server.start_server()
        servers.append(server)
        return Running(gateway, broker, server)

    yield start
    for server in servers:
        await server.close()


async def sockets_closed(gateway: Gateway) -> None:
    await until(lambda: not gateway.stats.ws_socket_count)


async def test_aiohttp_client_produces_and_follows(start: Start) -> None:
    server = await start()
    async with ClientSession() as client, client.ws_connect(server.url, protocols=(SUBPROTOCOL,)) as socket:
        assert socket.protocol == SUBPROTOCOL
        await socket.send_json({"id": 1, "op": "hello"})
        assert (await socket.receive_json())["server"] == "mq/0.0.1"
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
        async with asyncio.timeout(20):
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


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://mq.local:8082", True),
        ("http://MQ.local:8082", True),
        ("https://app.example", True),
        ("http://mq.local", False),
        ("http://mq.local:8082.evil.example", False),
        ("http://evil.example/mq.local:8082", False),
        ("http://app.example", False),
        ("null", False),
        ("", False),
        ("http://[", False),
    ],
)
def test_an_origin_equals_the_host_or_is_listed(origin: str, allowed: bool) -> None:
    assert origin_allowed(origin, "mq.local:8082", ("https://app.example",)) is allowed


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

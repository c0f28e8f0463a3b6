"""gateway/surfaces/http/forwarding.py beside a node that is a plain aiohttp server: how answers are passed back. Whose
a request is, and real nodes: tests/gateway/cluster/test_served.py."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.api.cluster import Cluster
from gateway.errors import OVERLOADED
from gateway.groups.machines.errors import UnknownGroup
from gateway.groups.protocol import Groups
from gateway.surfaces.http.answer_memory import SMALL_BYTES
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.forwarding import FORWARDED, Forwarder
from gateway.surfaces.http.relaying import AHEAD_BYTES_MAX
from store.limits import MiB
from tests.clock import FakeClock
from tests.contract import stubbed
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import served
from tests.waiting import PATIENCE_S

PATH = "/mq/v1/groups/g/leases"
RECEIVE = "/mq/v1/groups/g/messages:receive"
KERNEL_BYTES_MAX = 16 * MiB
"""What the socket buffers of two connections on one machine may hold."""
SOCKET_HEAD = (
    f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
).encode()

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def forwarding_to(answer: Answer, *, is_told: bool = True) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway whose every group belongs to another node, which answers so; and its URL. `is_told`: the gateway has
    heard of that, and need not ask the metadata."""
    node = web.Application()
    node.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(node) as other:
        cluster = cast(
            Cluster, _Cluster({"other": SimpleNamespace(name="other", number=1, url=str(other.make_url("")))}, is_told)
        )
        forwarder = Forwarder(cluster, None)
        gateway, _ = fake_gateway(FakeClock(), ws_write_timeout_ms=1_000)
        gateway = replace(gateway, cluster=cluster, forwarder=forwarder, groups=cast(Groups, _NoGroups()))
        async with served(gateway) as port:
            with stubbed():
                yield gateway, f"http://127.0.0.1:{port}"
        await forwarder.close()


class _NoGroups:
    def leases(self, group: str, *_: object, **__: object) -> None:
        raise UnknownGroup(group)


class _Cluster(SimpleNamespace):
    """Every name belongs to the other node."""

    def __init__(self, members: Mapping[str, object], is_told: bool) -> None:
        super().__init__(name="this", members=members)
        self._is_told = is_told

    def owner(self, kind: str, name: str) -> str | None:
        return "other" if self._is_told else None

    async def look_up(self, kind: str, name: str) -> str:
        return "other"


async def test_a_group_that_has_just_come_to_another_node_is_found_there() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"groups": 1})

    async with (
        forwarding_to(answer, is_told=False) as (_, url),
        aiohttp.ClientSession() as http,
        http.get(url + PATH) as response,
    ):
        assert (response.status, await response.json()) == (200, {"groups": 1})


async def test_a_large_answer_waits_at_its_node_for_clients_that_do_not_read_it() -> None:
    written = [0]

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            for _ in range(64):
                await response.write(bytes(MiB))
                written[0] += MiB
        return response

    async with forwarding_to(answer) as (gateway, url), aiohttp.ClientSession(read_bufsize=1024) as http:
        unread = [await http.get(url + PATH) for _ in range(4)]
        held = await _until_still(lambda: written[0])
        assert 0 < held <= len(unread) * (KERNEL_BYTES_MAX + 2 * AHEAD_BYTES_MAX), "of 256 MiB"
        assert 0 < gateway.stats.answers.held_bytes <= len(unread) * 2 * (AHEAD_BYTES_MAX + MiB)
        async with asyncio.timeout(PATIENCE_S):
            while gateway.stats.answers.held_bytes or gateway.stats.slow_close_count < len(unread):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        for response in unread:
            response.close()


async def _until_still(count: Callable[[], int]) -> int:
    last = -1
    while last != (now := count()) or not now:
        last = now
        await asyncio.sleep(0.2)
    return last


async def test_an_answer_comes_through_as_the_node_has_made_it() -> None:
    text = gzip.compress(bytes(range(256)) * 4096, compresslevel=1, mtime=0) + bytes(2 * SMALL_BYTES)
    asked: list[Mapping[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers)
        headers = {"Content-Type": "text/x", "Content-Encoding": "gzip", "X-Of-Node": "1", "X-Request-Id": "node's"}
        if request.query.get("chunked"):
            response = web.StreamResponse(status=206, headers=headers)
            await response.prepare(request)
            for at in range(0, len(text), 100_000):
                await response.write(text[at : at + 100_000])
            return response
        return web.Response(status=206, body=text, headers=headers)

    async with forwarding_to(answer) as (gateway, url), aiohttp.ClientSession(auto_decompress=False) as http:
        for query in ("", "?chunked=1"):
            async with http.get(url + PATH + query, headers={"X-Request-Id": "mine"}) as response:
                assert (response.status, await response.read() == text) == (206, True)
                shown = response.headers
                assert (shown["Content-Type"], shown["Content-Encoding"], shown["X-Of-Node"]) == ("text/x", "gzip", "1")
                assert shown.getall("X-Request-Id") == ["node's"], "errors name it in their body, too"
        async with http.head(url + PATH) as response:
            assert (response.status, response.content_length, await response.read()) == (206, len(text), b"")
        async with http.get(url + PATH, skip_auto_headers=["Accept", "Accept-Encoding", "User-Agent"]) as response:
            await response.read()
        assert not {"Accept", "Accept-Encoding", "User-Agent"} & asked[-1].keys(), "it is sent on as it came"
        assert asked[-1][FORWARDED] == "this"
        assert gateway.stats.answers.held_bytes == 0


@pytest.mark.parametrize("begins", [True, False])
async def test_a_node_that_breaks_off_is_not_taken_for_the_end(begins: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(MiB)})
        await response.prepare(request)
        if begins:
            await response.write(bytes(1000))
            await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.close()
        return response

    async with forwarding_to(answer) as (_, url), aiohttp.ClientSession() as http:
        if begins:
            with pytest.raises(aiohttp.ClientError):
                async with http.get(url + PATH) as response:
                    await response.read()
        else:
            async with http.get(url + PATH) as response:
                assert (response.status, (await response.json())["error_code"]) == (503, OVERLOADED)


async def test_where_there_is_no_room_a_large_answer_is_refused_and_a_small_one_is_not() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=bytes(int(request.query["size"])))

    async with forwarding_to(answer) as (gateway, url), aiohttp.ClientSession() as http:
        gateway.stats.answers.count("others", gateway.limits.answering_bytes_max)
        for method, path, size, status in (
            ("GET", PATH, SMALL_BYTES, 200),
            ("GET", PATH, SMALL_BYTES + 1, 503),
            ("POST", RECEIVE, SMALL_BYTES + 1, 200),  # what it tells has been done
        ):
            async with http.request(method, f"{url}{path}?size={size}", data=b"{}") as response:
                assert response.status == status
                assert len(await response.read()) == size or status == 503


@pytest.mark.parametrize("connection", ["", "Connection: upgrade\r\n"])
async def test_nothing_behind_an_upgrade_reaches_the_node_before_it_has_agreed(connection: str) -> None:
    """A worker's headers are believed by the store's process: who could have bytes of their own read as a request
    there could name any client's address."""
    asked: list[str] = []
    arrived, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        arrived.set()
        await may_answer.wait()
        return web.Response(text="no socket")

    async with forwarding_to(answer) as (_, url), asyncio.timeout(PATIENCE_S):
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n{connection}\r\n"
        writer.write(head.encode())
        await arrived.wait()
        writer.write(b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\nMq-Client: 10.1.2.3\r\n\r\n" * 100)
        await writer.drain()
        await asyncio.sleep(0.1)
        may_answer.set()
        assert b"no socket" in await reader.read()
        writer.close()
        await asyncio.sleep(0.1)
    assert asked == [PATH]


async def test_what_a_client_says_before_the_node_has_agreed_to_a_socket_comes_through_then() -> None:
    arrived, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        arrived.set()
        await may_answer.wait()
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str((await socket.receive_str())[::-1])
        await socket.close()
        return socket

    async with forwarding_to(answer) as (_, url), asyncio.timeout(PATIENCE_S):
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(SOCKET_HEAD)
        await arrived.wait()
        writer.write(b"\x81\x85\0\0\0\0hello")
        await writer.drain()
        await asyncio.sleep(0.1)
        may_answer.set()
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(7) == b"\x81\x05olleh"
        writer.close()


async def test_bytes_in_a_query_that_are_no_text_are_no_failure_of_ours() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text="here")

    async with forwarding_to(answer) as (_, url), asyncio.timeout(PATIENCE_S):
        port = int(url.rpartition(":")[2])
        for upgrade in ("", "Upgrade: websocket\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET %b?x=\xff\xfe\xc3 HTTP/1.1\r\nHost: localhost\r\n%bConnection: close\r\n\r\n"
                         % (PATH.encode(), upgrade.encode()))  # fmt: skip
            said = await reader.read()
            assert said.split(b" ", 2)[1] in (b"200", b"400"), said
            writer.close()


async def test_what_a_socket_is_told_waits_at_its_node_for_a_client_that_does_not_read() -> None:
    written = [0]

    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        with suppress(ConnectionError):
            for _ in range(128):
                await socket.send_bytes(bytes(MiB))
                written[0] += MiB
        return socket

    async with forwarding_to(answer) as (gateway, url), asyncio.timeout(PATIENCE_S):
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1024)
        writer.write(SOCKET_HEAD)
        assert await _until_still(lambda: written[0]) <= KERNEL_BYTES_MAX + 4 * MiB, "of 128 MiB"
        while not gateway.stats.slow_close_count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        writer.transport.abort()


async def test_what_a_client_sends_on_a_socket_waits_there_while_the_node_does_not_read() -> None:
    agreed, may_end = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        transport = request.transport
        assert transport is not None
        transport.pause_reading()  # type: ignore[attr-defined]
        agreed.set()
        await may_end.wait()
        return socket

    async with forwarding_to(answer) as (_, url), asyncio.timeout(PATIENCE_S):
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(SOCKET_HEAD)
        await agreed.wait()
        sent = [0]

        async def flood() -> None:
            while sent[0] < 128 * MiB:
                writer.write(bytes(MiB))
                await writer.drain()
                sent[0] += MiB

        flooding = asyncio.ensure_future(flood())
        assert await _until_still(lambda: sent[0]) <= KERNEL_BYTES_MAX + 4 * MiB, "of 128 MiB"
        flooding.cancel()
        writer.transport.abort()
        may_end.set()

"""gateway/surfaces/http/reading.py: bodies in memory have a bound over all connections, and whoever gives up leaves
nothing behind."""

from __future__ import annotations

import asyncio
import gc
import gzip
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import pytest
import zstandard

from gateway.codec.inflate import Inflater
from gateway.errors import OVERLOADED
from gateway.surfaces.http.context import Gateway
from store.limits import MiB
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import served, talk
from tests.waiting import PATIENCE_S

JSON_TYPE = "application/vnd.kafka.json.v2+json"
HEAD = (
    b"POST /topics/orders HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/vnd.kafka.json.v2+json\r\nContent-Length: %d\r\n\r\n"
)
BODY = b'{"records":[{"value":"%s"}]}'


@pytest.fixture
async def gateway() -> Gateway:
    gateway, broker = fake_gateway(
        FakeClock(), limits__receiving_bytes_max=4 * MiB, limits__body_bytes_max=2 * MiB, body_timeout_ms=60_000
    )
    await broker.create_topic("orders", 1)
    return gateway


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is given back only when cycles are looked for is not given back here."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


async def until(gateway: Gateway, receiving_bytes: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while gateway.stats.receiving_bytes != receiving_bytes:  # noqa: ASYNC110 -- a plain counter
            await asyncio.sleep(0.01)


async def begin(port: int, size: int, sent: int) -> asyncio.StreamWriter:
    """A request that announces a body and sends part of it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD % size)
    await asyncio.sleep(0.01)  # the head comes alone: the body does not count when it comes with it
    writer.write(b"[" * sent)
    await writer.drain()
    return writer


@pytest.mark.usefixtures("no_collector")
async def test_uploads_that_are_given_up_leave_nothing_behind(gateway: Gateway) -> None:
    async with served(gateway) as port:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            held = [await begin(port, 2 * MiB, MiB) for _ in range(3)]
            await until(gateway, 3 * MiB)
            for writer in held:
                writer.transport.abort()
            await until(gateway, 0)
        await asyncio.sleep(0.1)
        after, _ = tracemalloc.get_traced_memory()
    assert after - before < 3 * MiB  # of 30


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("path", ["/topics/orders", "/mq/v1/topics/orders/messages:batch"])
async def test_bodies_that_inflate_to_too_much_leave_nothing_behind(gateway: Gateway, path: str, coding: str) -> None:
    zeros = bytes(32 * MiB)
    bomb = gzip.compress(zeros) if coding == "gzip" else zstandard.compress(zeros)
    kind = JSON_TYPE if path == "/topics/orders" else "application/x-ndjson"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Encoding: {coding}\r\n"
    request = f"{head}Content-Length: {len(bomb)}\r\n\r\n".encode() + bomb
    async with served(gateway) as port:
        await talk(port, request)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            assert b"413" in await talk(port, request)
        after, _ = tracemalloc.get_traced_memory()
    assert after - before < MiB


async def test_of_all_compressed_bodies_one_piece_is_inflated_in_a_turn(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred bytes of zstd are megabytes in their first piece: many such requests would be one long turn."""
    bomb = zstandard.compress(bytes(32 * MiB))
    head = f"POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON_TYPE}\r\nContent-Encoding: zstd\r\n"
    request = f"{head}Content-Length: {len(bomb)}\r\n\r\n".encode() + bomb
    turn = 0
    inflated: Counter[int] = Counter()
    feed = Inflater.feed

    def counted(self: Inflater, data: bytes) -> Iterator[bytes]:
        inflated[turn] += 1
        return feed(self, data)

    async def others() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    monkeypatch.setattr(Inflater, "feed", counted)
    async with served(gateway) as port:
        counting = asyncio.ensure_future(others())
        answers = await asyncio.gather(*(talk(port, request) for _ in range(16)))
        counting.cancel()
    assert all(b"413" in answer for answer in answers)
    assert max(inflated.values()) == 1
    assert inflated.total() == 16


async def test_beyond_the_bound_a_body_is_refused_and_room_comes_back(gateway: Gateway) -> None:
    async with served(gateway) as port:
        held = [await begin(port, 2 * MiB, 2 * MiB - 1) for _ in range(2)]
        await until(gateway, 4 * MiB - 2)
        body = BODY % (b"x" * MiB)
        answer = await talk(port, HEAD % len(body) + body)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in answer
        assert b'"error_code":%d' % OVERLOADED in answer
        assert (gateway.stats.body_refused_count, gateway.stats.receiving_bytes) == (1, 4 * MiB - 2)
        small = BODY % b"x"  # comes with its head
        whole = HEAD.replace(b"Host", b"Connection: close\r\nHost") % len(small) + small
        assert (await talk(port, whole)).startswith(b"HTTP/1.1 200 ")
        for writer in held:
            writer.transport.abort()
        await until(gateway, 0)
        whole = HEAD.replace(b"Host", b"Connection: close\r\nHost") % len(body) + body
        assert (await talk(port, whole)).startswith(b"HTTP/1.1 200 ")
        assert gateway.stats.receiving_bytes == 0


@pytest.mark.parametrize("size", [2 * MiB, 2 * MiB + 1], ids=["n", "n + 1"])
async def test_a_body_that_is_refused_is_given_back(gateway: Gateway, size: int) -> None:
    async with served(gateway) as port:
        chunked = HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
        answer = await talk(port, chunked + b"%x\r\n" % size + b"x" * size + b"\r\n0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 " if size == 2 * MiB else b"HTTP/1.1 413 ")
        await until(gateway, 0)

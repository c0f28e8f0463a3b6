"""Bodies in several buffers: what arrives is all of them, in order."""

from __future__ import annotations

import hashlib

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.surfaces.http.buffers_body import JOINED_BYTES_MAX, BuffersBody, body_of
from store.types import Buffer


def test_small_bodies_are_joined() -> None:
    half = bytes(JOINED_BYTES_MAX // 2)
    assert body_of([]) == b""
    assert body_of([half, memoryview(half)]) == 2 * half
    larger = body_of([half, half, b"x"])
    assert isinstance(larger, BuffersBody)
    assert len(larger) == larger.size == JOINED_BYTES_MAX + 1


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_all_parts_arrive_in_order_and_the_connection_goes_on(method: str) -> None:
    rows = [bytes([n]) * (100_000 + n) for n in range(60)]  # more than a socket holds
    parts: list[Buffer] = [memoryview(row) if n % 2 else row for n, row in enumerate(rows)]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body_of(parts), headers={"Mq-Next-Offset": "7"})

    application = web.Application()
    application.router.add_get("/", answer)
    async with TestClient(TestServer(application)) as client:
        for _ in range(2):
            async with client.request(method, "/") as response:
                body = await response.read()
                assert (response.status, response.headers["Mq-Next-Offset"]) == (200, "7")
                assert response.headers["Content-Length"] == str(sum(map(len, rows)))
            wanted = b"".join(rows) if method == "GET" else b""
            assert hashlib.sha256(body).digest() == hashlib.sha256(wanted).digest()


async def test_a_client_that_goes_away_in_the_middle_costs_nothing() -> None:
    parts: list[Buffer] = [bytes(1_000_000)] * 40

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body_of(parts))

    application = web.Application()
    application.router.add_get("/", answer)
    async with TestClient(TestServer(application)) as client:
        response = await client.get("/")
        assert len(await response.content.readexactly(1000)) == 1000
        response.close()
        async with client.get("/") as whole:
            assert len(await whole.read()) == 40_000_000

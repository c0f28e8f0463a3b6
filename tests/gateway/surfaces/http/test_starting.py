"""gateway/surfaces/http/starting.py: what a server says while its store recovers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.test_utils import TestClient

from gateway.surfaces.http.starting import RecoveryProgress, build_starting_application

Client = TestClient[web.Request, web.Application]


async def test_alive_not_ready_and_how_far(aiohttp_client: Callable[[web.Application], Awaitable[Client]]) -> None:
    progress = RecoveryProgress()
    client = await aiohttp_client(build_starting_application(progress))
    for path in ("/healthz", "/healthy", "/_health"):
        assert (await client.get(path)).status == 200
    for path in ("/ready", "/status/ready"):
        assert (await client.get(path)).status == 503
    response = await client.get("/readyz")
    assert (response.status, (await response.json())["reasons"]) == (503, ["recovering: opening the store"])
    progress.tell(16, 64)
    assert "16 of at most 64 bytes" in (await (await client.get("/readyz")).json())["reasons"][0]


async def test_everything_else_is_to_be_tried_again(
    aiohttp_client: Callable[[web.Application], Awaitable[Client]],
) -> None:
    client = await aiohttp_client(build_starting_application(RecoveryProgress()))
    for method, path in (("GET", "/topics"), ("POST", "/topics/orders"), ("GET", "/ws/v1"), ("DELETE", "/x/y")):
        response = await client.request(method, path)
        answer = await response.json()
        assert (response.status, answer["error_code"], answer["retriable"]) == (503, 50350, True)
        assert response.headers["Retry-After"] == "1"
        assert response.headers["X-Request-Id"] == answer["request_id"]
        assert "Server" not in response.headers

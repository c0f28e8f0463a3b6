"""gateway.surfaces.http.application with gateway.surfaces.http.reading and the route table: what happens around every
handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.auth.access import Permission
from gateway.main.application import build_application
from gateway.main.routes import ROUTES
from gateway.settings.config import ConfigError
from gateway.surfaces.http.application import uses_c_parser
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.routes import Body, Row, check_table
from store.errors import Corrupt
from tests.clock import FakeClock
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.production_server import ProductionServer
from tests.waiting import PATIENCE_S

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
RECORD = b'{"records":[{"value":1}]}'


async def nothing(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
    return web.Response()


def test_every_route_has_a_permission_and_a_place_of_its_own() -> None:
    check_table((row.method, row.path) for row in ROUTES)
    assert all(isinstance(row.permission, Permission) for row in ROUTES)


def test_a_row_without_permission_is_refused() -> None:
    with pytest.raises(ValueError, match="no permission"):
        Row(method="GET", path="/x", name="x", handler=nothing, permission=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Row(method="GET", path="/x", name="x", handler=nothing)  # type: ignore[call-arg]


def test_a_row_with_an_unknown_method_or_a_place_taken_is_refused(gateway: Gateway) -> None:
    with pytest.raises(ValueError, match="unknown method"):
        Row(method="BREW", path="/x", name="x", handler=nothing, permission=Permission.PUBLIC)
    one = Row(method="GET", path="/x/{a}", name="x", handler=nothing, permission=Permission.PUBLIC)
    with pytest.raises(ValueError, match="two routes"):
        build_application(gateway, [one, replace(one, path="/x/{b}")])


async def test_only_the_table_is_served(gateway: Gateway) -> None:
    served = {
        (route.method, route.resource.canonical.removesuffix("{slash}").rstrip("/") or "/")
        for route in build_application(gateway).router.routes()
        if route.resource is not None
    }
    served = {(method, path) for method, path in served if method not in ("HEAD", "*")}
    assert served == {(row.method, row.path) for row in ROUTES}


async def test_applications_of_one_process_have_their_resources_in_common_and_endpoints_of_their_own(
    aiohttp_client: Callable[[TestServer], Awaitable[Client]],
) -> None:
    applications = []
    for name in ("orders", "events"):
        gateway, broker = fake_gateway(FakeClock())
        await broker.create_topic(name, 1)
        application = build_application(gateway)
        client = await aiohttp_client(ProductionServer(gateway, application))
        for _ in range(2):
            assert await (await client.get("/topics")).json() == [name]
        assert (await client.get("/nowhere")).status == 404
        by_route = {route: sum(stats.statuses.values()) for route, stats in gateway.stats.routes.items()}
        assert {route: count for route, count in by_route.items() if count} == {"topic_names": 2, "unmatched": 1}
        assert by_route.keys() == {row.name for row in ROUTES} | {"unmatched"}, "those that nobody asked for are shown"
        applications.append(application)
    one, other = ([*application.router.resources()] for application in applications)
    assert all(mine is theirs for mine, theirs in zip(one, other, strict=True))


def test_routes_that_only_read_read_no_body() -> None:
    reading = ("GET", "DELETE")
    assert {row.name for row in ROUTES if row.method not in reading and row.body is Body.NONE} == {
        "root",
        "commit_in_queue",
        "detach_topic",
        "fire_schedule",
        "issue_ticket",
        "pause_recurring",
        "resume_recurring",
    }
    with_body = {row.name for row in ROUTES if row.method in reading and row.body is not Body.NONE}
    assert with_body == {"committed_offsets"}  # the REST Proxy has a GET with a body


@pytest.mark.parametrize("path", ["/topics", "/healthz", "/topics/orders/partitions/0", "/mq/v1/topics"])
async def test_a_trailing_slash_and_head_are_fine(client: Client, path: str) -> None:
    assert (await client.get(path + "/")).status == 200
    response = await client.head(path)
    assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/topics", "GET, HEAD"),
        ("PUT", "/topics/orders", "GET, HEAD, POST"),
        ("POST", "/mq/v1/topics/orders", "DELETE, GET, HEAD, PATCH, PUT"),
        ("TRACE", "/topics", "GET, HEAD"),
        ("PATCH", "/topics/orders/partitions/0/records", "GET, HEAD"),
        ("OPTIONS", "/", "GET, HEAD, POST"),
    ],
)
async def test_another_method_is_told_the_ones_there_are(client: Client, method: str, path: str, allow: str) -> None:
    response = await client.request(method, path)
    assert (response.status, response.headers["Allow"]) == (405, allow)
    assert (await response.json())["error_code"] == 405


@pytest.mark.parametrize("path", ["/nope", "/topics/orders/nope", "/topics//", "/ws", "/%00", "/mq/v2/topics"])
async def test_an_unknown_path_is_a_404_in_the_common_shape(client: Client, path: str) -> None:
    response = await client.get(path)
    answer = await response.json()
    assert response.status == 404
    assert set(answer) == {"error_code", "message", "request_id", "retriable"}


@pytest.mark.parametrize("path", ["/topics", "/nope", "/topics/nope", "/metrics"])
async def test_every_answer_has_a_request_id_and_none_names_the_server(client: Client, path: str) -> None:
    first, second = await client.get(path), await client.get(path)
    assert first.headers["X-Request-Id"] != second.headers["X-Request-Id"]
    assert "Server" not in first.headers


async def test_a_clients_request_id_is_repeated_if_it_is_fit_to_be(client: Client) -> None:
    for sent, kept in (("abc-1", True), ("x" * 128, True), ("x" * 129, False), ("ä", False), ("", True)):
        response = await client.get("/topics/nope", headers={"X-Request-Id": sent})
        assert (response.headers["X-Request-Id"] == sent) is kept
        assert (await response.json())["request_id"] == response.headers["X-Request-Id"]


async def test_a_body_nobody_asked_for_is_ignored(client: Client) -> None:
    response = await client.get("/topics", data=b"{}", headers={"Content-Type": "application/json"})
    assert response.status == 200


async def test_a_bug_is_a_500_without_its_text_and_is_logged_once(
    client: Client, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.error = ZeroDivisionError("secret")
    response = await client.post("/topics/orders", data=RECORD, headers=JSON)
    answer = await response.json()
    assert (response.status, answer["error_code"], answer["message"]) == (500, 500, "Internal Server Error")
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert answer["request_id"] in record.getMessage()
    assert record.exc_info is not None


async def test_corruption_is_logged_with_its_place(
    client: Client, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.error = Corrupt("/data/log/0", 7, "crc")
    await client.get("/topics/orders/partitions/0/records")
    assert "/data/log/0, position 7: crc" in caplog.text


async def test_a_body_that_does_not_come_is_a_408_and_ends_the_connection(
    clock: FakeClock, aiohttp_client: Callable[[TestServer], Awaitable[Client]]
) -> None:
    gateway, broker = fake_gateway(clock, body_timeout_ms=20)
    await broker.create_topic("orders", 1)
    server = ProductionServer(gateway)
    await server.start_server()
    await aiohttp_client(server)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = "POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"Connection: close" in answer
    assert broker.stored_count == 0
    writer.close()


@pytest.mark.parametrize("length", [16 * 1024 * 1024 + 1, 99_999_999_999])
async def test_a_body_announced_too_large_is_refused_unread(client: Client, length: int) -> None:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    head = "POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {length}\r\n\r\n".encode())
    assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_a_broken_chunk_is_a_400(client: Client, broker: FakeBroker) -> None:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    head = "POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode())
    await writer.drain()
    writer.write(b"zz\r\n")
    assert (await asyncio.wait_for(reader.readline(), PATIENCE_S)).split()[1] == b"400"
    assert broker.stored_count == 0
    writer.close()


async def test_pipelined_sends_are_answered_in_order(client: Client) -> None:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    head = (
        "POST /topics/orders/partitions/0 HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/vnd.kafka.json.v2+json\r\n"
    )
    request = f"{head}Content-Length: {len(RECORD)}\r\n\r\n".encode() + RECORD
    writer.write(request * 3)
    for offset in range(3):
        answer = await asyncio.wait_for(reader.readuntil(b'"value_schema_id":null}'), PATIENCE_S)
        assert f'"offset":{offset},'.encode() in answer
    writer.close()


def test_the_c_parser_is_in_use() -> None:
    assert uses_c_parser()


def test_other_machines_are_let_in_only_when_it_is_written_out(clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match="insecure_no_auth"):
        fake_gateway(clock, host="0.0.0.0")
    fake_gateway(clock, host="0.0.0.0", insecure_no_auth=True)

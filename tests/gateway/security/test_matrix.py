"""Every route, every role: what the wrapper lets through is what is declared here, line by line, a second time.

A new route fails until it is declared. What a handler asks for besides, for names in bodies and queries, is in
`test_server.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from gateway.auth.access import Permission
from gateway.main.routes import ROUTES
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.routes import Row
from gateway.surfaces.ws.commands import PERMISSIONS
from tests import contract
from tests.gateway.security.kit import Secured, secured, served

PUBLIC, DESCRIBE, SEND, RECEIVE, CREATE, DELETE, OPERATE, SOCKET, AUDIT, ACCESS, KNOWN = (
    Permission.PUBLIC, Permission.DESCRIBE, Permission.SEND, Permission.RECEIVE, Permission.CREATE, Permission.DELETE,
    Permission.OPERATE, Permission.SOCKET, Permission.AUDIT, Permission.ACCESS, Permission.KNOWN,
)  # fmt: skip

DECLARED: dict[str, Permission] = {
    "POST /topics/{topic}": SEND,
    "POST /topics/{topic}/partitions/{partition}": SEND,
    "GET /topics/{topic}/partitions/{partition}/records": RECEIVE,
    "GET /": PUBLIC,
    "POST /": PUBLIC,
    "GET /brokers": DESCRIBE,
    "GET /topics": DESCRIBE,
    "GET /topics/{topic}": DESCRIBE,
    "GET /topics/{topic}/partitions": DESCRIBE,
    "GET /topics/{topic}/partitions/{partition}": DESCRIBE,
    "GET /topics/{topic}/partitions/{partition}/offsets": DESCRIBE,
    "GET /consumers/{group}/instances/{instance}/records": RECEIVE,
    "POST /consumers/{group}": RECEIVE,
    "DELETE /consumers/{group}/instances/{instance}": RECEIVE,
    "POST /consumers/{group}/instances/{instance}/subscription": RECEIVE,
    "GET /consumers/{group}/instances/{instance}/subscription": RECEIVE,
    "DELETE /consumers/{group}/instances/{instance}/subscription": RECEIVE,
    "POST /consumers/{group}/instances/{instance}/assignments": RECEIVE,
    "GET /consumers/{group}/instances/{instance}/assignments": RECEIVE,
    "POST /consumers/{group}/instances/{instance}/offsets": RECEIVE,
    "GET /consumers/{group}/instances/{instance}/offsets": RECEIVE,
    "POST /consumers/{group}/instances/{instance}/offsets:query": RECEIVE,
    "POST /consumers/{group}/instances/{instance}/positions": RECEIVE,
    "POST /consumers/{group}/instances/{instance}/positions/beginning": RECEIVE,
    "POST /consumers/{group}/instances/{instance}/positions/end": RECEIVE,
    "GET /consumers/{group}/instances/{instance}/topics/{topic}": RECEIVE,
    "GET /topics/{topic}/partitions/{partition}/messages": RECEIVE,
    "POST /v3/clusters/{cluster}/topics/{topic}/records": SEND,
    "POST /v3/clusters/{cluster}/topics/{topic}/records:batch": SEND,
    "GET /v3/clusters": DESCRIBE,
    "GET /v3/clusters/{cluster}": DESCRIBE,
    "GET /v3/clusters/{cluster}/brokers": DESCRIBE,
    "GET /v3/clusters/{cluster}/brokers/{broker}": DESCRIBE,
    "GET /v3/clusters/{cluster}/brokers/{broker}/configs": DESCRIBE,
    "GET /v3/clusters/{cluster}/topics": DESCRIBE,
    "POST /v3/clusters/{cluster}/topics": CREATE,
    "GET /v3/clusters/{cluster}/topics/{topic}": DESCRIBE,
    "PATCH /v3/clusters/{cluster}/topics/{topic}": CREATE,
    "DELETE /v3/clusters/{cluster}/topics/{topic}": DELETE,
    "GET /v3/clusters/{cluster}/topics/{topic}/configs": DESCRIBE,
    "POST /v3/clusters/{cluster}/topics/{topic}/configs:alter": CREATE,
    "GET /v3/clusters/{cluster}/topics/{topic}/configs/{name}": DESCRIBE,
    "PUT /v3/clusters/{cluster}/topics/{topic}/configs/{name}": CREATE,
    "DELETE /v3/clusters/{cluster}/topics/{topic}/configs/{name}": CREATE,
    "GET /v3/clusters/{cluster}/topics/{topic}/partitions": DESCRIBE,
    "GET /v3/clusters/{cluster}/topics/{topic}/partitions/{partition}": DESCRIBE,
    "GET /v3/clusters/{cluster}/topics/{topic}/partitions/{partition}/offset": DESCRIBE,
    "GET /v3/clusters/{cluster}/topics/{topic}/partitions/{partition}/replicas": DESCRIBE,
    "POST /kafka/v3/clusters/{cluster}/topics/{topic}/records": SEND,
    "POST /kafka/v3/clusters/{cluster}/topics/{topic}/records:batch": SEND,
    "GET /kafka/v3/clusters": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/brokers": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/brokers/{broker}": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/brokers/{broker}/configs": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/topics": DESCRIBE,
    "POST /kafka/v3/clusters/{cluster}/topics": CREATE,
    "GET /kafka/v3/clusters/{cluster}/topics/{topic}": DESCRIBE,
    "PATCH /kafka/v3/clusters/{cluster}/topics/{topic}": CREATE,
    "DELETE /kafka/v3/clusters/{cluster}/topics/{topic}": DELETE,
    "GET /kafka/v3/clusters/{cluster}/topics/{topic}/configs": DESCRIBE,
    "POST /kafka/v3/clusters/{cluster}/topics/{topic}/configs:alter": CREATE,
    "GET /kafka/v3/clusters/{cluster}/topics/{topic}/configs/{name}": DESCRIBE,
    "PUT /kafka/v3/clusters/{cluster}/topics/{topic}/configs/{name}": CREATE,
    "DELETE /kafka/v3/clusters/{cluster}/topics/{topic}/configs/{name}": CREATE,
    "GET /kafka/v3/clusters/{cluster}/topics/{topic}/partitions": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/topics/{topic}/partitions/{partition}": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/topics/{topic}/partitions/{partition}/offset": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/topics/{topic}/partitions/{partition}/replicas": DESCRIBE,
    "GET /mq/v1/topics": DESCRIBE,
    "GET /mq/v1/topics/{topic}": DESCRIBE,
    "PUT /mq/v1/topics/{topic}": CREATE,
    "PATCH /mq/v1/topics/{topic}": CREATE,
    "POST /admin/topics": CREATE,
    "DELETE /mq/v1/topics/{topic}": DELETE,
    "GET /mq/v1/topics/{topic}/offsets": DESCRIBE,
    "POST /mq/v1/topics/{topic}/messages": SEND,
    "POST /mq/v1/topics/{topic}/messages:batch": SEND,
    "GET /mq/v1/topics/{topic}/partitions/{partition}/messages/{offset}": RECEIVE,
    "GET /mq/v1/topics/{topic}/messages": RECEIVE,
    "POST /mq/v1/topics/{topic}/messages:search": RECEIVE,
    "GET /mq/v1/messages/{message_id}": RECEIVE,
    "GET /mq/v1/topics/{topic}/sse": RECEIVE,
    "GET /mq/v1/schedules": DESCRIBE,
    "GET /mq/v1/schedules:histogram": DESCRIBE,
    "POST /mq/v1/schedules:batch": SEND,
    "GET /mq/v1/schedules/{schedule}": RECEIVE,
    "DELETE /mq/v1/schedules": SEND,
    "DELETE /mq/v1/schedules/{schedule}": SEND,
    "PATCH /mq/v1/schedules/{schedule}": SEND,
    "POST /mq/v1/schedules/{schedule}:fire": SEND,
    "GET /mq/v1/recurring": DESCRIBE,
    "GET /mq/v1/recurring/{recurring}": RECEIVE,
    "PUT /mq/v1/recurring/{recurring}": SEND,
    "DELETE /mq/v1/recurring/{recurring}": SEND,
    "POST /mq/v1/recurring/{recurring}:pause": SEND,
    "POST /mq/v1/recurring/{recurring}:resume": SEND,
    "POST /mq/v1/groups/{group}/messages:receive": RECEIVE,
    "POST /mq/v1/groups/{group}/messages:ack": RECEIVE,
    "POST /mq/v1/groups/{group}/messages:nack": RECEIVE,
    "POST /mq/v1/groups/{group}/messages:reject": RECEIVE,
    "POST /mq/v1/groups/{group}/messages:extend": RECEIVE,
    "GET /mq/v1/groups": DESCRIBE,
    "GET /mq/v1/light-groups": DESCRIBE,
    "GET /mq/v1/groups/{group}/light-offsets": DESCRIBE,
    "GET /mq/v1/groups/{group}": DESCRIBE,
    "DELETE /mq/v1/groups/{group}": DELETE,
    "PATCH /mq/v1/groups/{group}": CREATE,
    "GET /mq/v1/groups/{group}/lag": DESCRIBE,
    "GET /mq/v1/groups/{group}/lag/history": DESCRIBE,
    "GET /mq/v1/groups/{group}/leases": DESCRIBE,
    "POST /mq/v1/groups/{group}/dlq:settle": RECEIVE,
    "POST /mq/v1/groups/{group}/offsets:reset": RECEIVE,
    "GET /mq/v1/groups/{group}/dlq": RECEIVE,
    "POST /mq/v1/groups/{group}/dlq:redrive": RECEIVE,
    "GET /v3/clusters/{cluster}/consumer-groups": DESCRIBE,
    "GET /v3/clusters/{cluster}/consumer-groups/{group}": DESCRIBE,
    "GET /v3/clusters/{cluster}/consumer-groups/{group}/consumers": DESCRIBE,
    "GET /v3/clusters/{cluster}/consumer-groups/{group}/consumers/{consumer}": DESCRIBE,
    "GET /v3/clusters/{cluster}/consumer-groups/{group}/consumers/{consumer}/assignments": DESCRIBE,
    "GET /v3/clusters/{cluster}/consumer-groups/{group}/lag-summary": DESCRIBE,
    "GET /v3/clusters/{cluster}/consumer-groups/{group}/lags": DESCRIBE,
    "GET /v3/clusters/{cluster}/consumer-groups/{group}/lags/{topic}/partitions/{partition}": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/consumer-groups": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/consumer-groups/{group}": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/consumer-groups/{group}/consumers": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/consumer-groups/{group}/consumers/{consumer}": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/consumer-groups/{group}/consumers/{consumer}/assignments": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/consumer-groups/{group}/lag-summary": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/consumer-groups/{group}/lags": DESCRIBE,
    "GET /kafka/v3/clusters/{cluster}/consumer-groups/{group}/lags/{topic}/partitions/{partition}": DESCRIBE,
    "POST /mq/v1/tickets": SOCKET,
    "GET /ws/v1": SOCKET,
    "GET /ws/v1/consume": SOCKET,
    "GET /ws/v1/produce": SOCKET,
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
    "GET /metrics": OPERATE,
    "GET /mq/v1/audit": AUDIT,
    "GET /mq/v1/stats": OPERATE,
    "GET /mq/v1/stats/stream": OPERATE,
    "GET /mq/v1/brokers": OPERATE,
    "PATCH /mq/v1/brokers/{broker}": OPERATE,
    "POST /mq/v1/brokers/{broker}/takeover": OPERATE,
    "GET /mq/v1/brokers/{broker}/plan": OPERATE,
    "GET /mq/v1/moves": OPERATE,
    "GET /mq/v1/topics/{topic}/queues/{queue}/records": RECEIVE,
    "GET /mq/v1/topics/{topic}/queues/{queue}/sse": RECEIVE,
    "GET /mq/v1/topics/{topic}/queues/{queue}/offsets": RECEIVE,
    "PUT /mq/v1/topics/{topic}/queues/{queue}/offsets": RECEIVE,
    "DELETE /mq/v1/topics/{topic}/queues/{queue}/offsets": RECEIVE,
    "GET /mq/v1/topics/{topic}/queues/{queue}": DESCRIBE,
    "GET /mq/v1/topics/{topic}/queues": DESCRIBE,
    "GET /mq/v1/topics/{topic}/routes": OPERATE,
    "POST /mq/v1/topics/{topic}/attach": OPERATE,
    "POST /mq/v1/topics/{topic}/detach": OPERATE,
    "POST /mq/v1/topics/{topic}/partitions/{partition}/move": OPERATE,
    "POST /mq/v1/topics/{topic}/partitions/{partition}/takeover": OPERATE,
    "GET /mq/v1/routes": OPERATE,
    "GET /mq/v1/connections": OPERATE,
    "DELETE /mq/v1/connections/{connection}": OPERATE,
    "GET /mq/v1/sessions": OPERATE,
    "DELETE /mq/v1/sessions/{session}": OPERATE,
    "GET /mq/v1/settings": OPERATE,
    "GET /mq/v1/tokens": ACCESS,
    "POST /mq/v1/tokens": ACCESS,
    "DELETE /mq/v1/tokens/{token}": ACCESS,
    "GET /mq/v1/rules": ACCESS,
    "PUT /mq/v1/rules": ACCESS,
    "GET /mq/v1/limits": PUBLIC,
    "GET /mq/v1/info": PUBLIC,
    "GET /mq/v1/me": KNOWN,
    "GET /openapi.json": PUBLIC,
    "GET /asyncapi.json": PUBLIC,
    "GET /docs": PUBLIC,
    "GET /examples": PUBLIC,
    "GET /console/{file}": PUBLIC,
    "GET /examples/{file}": PUBLIC,
    "GET /healthy": PUBLIC,
    "GET /_health": PUBLIC,
    "GET /ready": PUBLIC,
    "GET /status/ready": PUBLIC,
    "GET /openapi": PUBLIC,
}
"""By the method and path of a route."""

ROLES: dict[str, list[str]] = {
    "reader": ["reader:topic:orders", "reader:group:billing"],
    "writer": ["writer:topic:orders", "writer:group:billing"],
    "owner": ["admin:topic:orders", "admin:group:billing"],
    "reader of others": ["reader:topic:other", "reader:group:other"],
    "owner of others": ["admin:topic:other", "admin:group:other"],
    "nothing": [],
    "operator": ["operate"],
    "auditor": ["audit"],
    "access": ["access"],
    "admin": ["admin"],
}

MAY: dict[str, set[Permission]] = {
    "reader": {DESCRIBE, RECEIVE},
    "writer": {DESCRIBE, SEND},
    "owner": {DESCRIBE, RECEIVE, SEND, CREATE, DELETE},
    "reader of others": set(),
    "owner of others": set(),
    "nothing": set(),
    "operator": {OPERATE},
    "auditor": {AUDIT},
    "access": {ACCESS},
    "admin": {DESCRIBE, RECEIVE, SEND, CREATE, DELETE, OPERATE, AUDIT, ACCESS},
}
"""What each role may do to topic `orders` and group `billing`."""

SOMEWHERE: dict[str, set[Permission]] = MAY | {
    "reader of others": {DESCRIBE, RECEIVE},
    "owner of others": {DESCRIBE, RECEIVE, SEND, CREATE, DELETE},
}
"""What each may do to anything at all: what is asked where a path names nothing."""


DECLARED_OPS: dict[str, Permission | None] = {
    "produce": SEND, "subscribe": RECEIVE, "ack": RECEIVE, "nack": RECEIVE, "reject": RECEIVE, "extend": RECEIVE,
    "release": RECEIVE, "seek": RECEIVE, "hello": None, "auth": None, "ping": None, "permit": None, "pause": None,
    "resume": None, "unsubscribe": None, "seen": None,
}  # fmt: skip
"""Of a socket. None: about the socket itself, or only takes from what a subscription was allowed.
tests/gateway/surfaces/ws/test_endpoint.py asks for each as somebody who may not."""


def name_of(row: Row) -> str:
    return f"{row.method} {row.path}"


def path_of(row: Row) -> str:
    path = row.path.replace("{topic}", "orders").replace("{group}", "billing").replace("{partition}", "0")
    while "{" in path:
        path = path[: path.index("{")] + "0" + path[path.index("}") + 1 :]
    return path


def expected(row: Row, role: str) -> int:
    permission = DECLARED[name_of(row)]
    if permission is PUBLIC:
        return 204
    if role == "nobody":
        # A browser's socket says who it is later; everything else says it at once.
        return 204 if permission is SOCKET and row.method == "GET" else 401
    if role in ("wrong", "expired"):
        return 401
    names_something = "{topic}" in row.path or "{group}" in row.path
    allowed = permission in (SOCKET, KNOWN) or permission in (MAY if names_something else SOMEWHERE)[role]
    return 204 if allowed else 403


async def _done(_gateway: Gateway, _request: web.Request, _body: bytes) -> web.Response:
    return web.Response(status=204)


@pytest.fixture
async def parts() -> AsyncIterator[Secured]:
    names = {role.replace(" ", "-"): scopes for role, scopes in ROLES.items()}
    with contract.stubbed():
        yield await secured(names)


def test_every_route_is_declared_with_its_permission() -> None:
    assert {name_of(row): row.permission for row in ROUTES} == DECLARED


def test_every_op_of_a_socket_is_declared_with_its_permission() -> None:
    assert PERMISSIONS == DECLARED_OPS


async def test_every_route_lets_in_whom_it_should(parts: Secured) -> None:
    rows = [replace(row, handler=_done) for row in ROUTES]
    wrong = []
    async with served(parts.gateway, rows=rows) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        for role in ("nobody", "wrong", "expired", *ROLES):
            token = parts.tokens.get(role.replace(" ", "-"))
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            for row in rows:
                if role in ("wrong", "expired"):
                    parts.clock.step(600_001)  # or the address would have to wait
                async with client.request(row.method, path_of(row), headers=headers) as response:
                    if response.status != expected(row, role):
                        wrong.append((role, name_of(row), response.status, expected(row, role)))
                    if response.status in (401, 403):
                        body = await response.json()
                        assert body["error_code"] == {401: 40101, 403: 40301}[response.status]
                        assert ("WWW-Authenticate" in response.headers) is (response.status == 401)
    assert wrong == []


async def test_a_topic_is_refused_under_every_spelling(parts: Secured) -> None:
    """What the wrapper judged is what the handler gets: no encoding of a name slips past."""
    seen: list[str] = []

    async def handler(_gateway: Gateway, request: web.Request, _body: bytes) -> web.Response:
        seen.append(request.match_info["topic"])
        return web.Response(status=204)

    rows = [replace(row, handler=handler) for row in ROUTES if row.name == "produce"]
    headers = {"Authorization": f"Bearer {parts.tokens['writer']}"}
    async with served(parts.gateway, rows=rows) as port, aiohttp.ClientSession() as client:
        for spelling in ("orders", "%6frders", "orders/", "other", "%6fther", "orders%2f", "orders%00", "orders%20",
                         "..%2forders", "ORDERS", "orders%0d%0a"):  # fmt: skip
            url = URL(f"http://127.0.0.1:{port}/topics/{spelling}", encoded=True)
            async with client.post(url, headers=headers) as response:
                assert response.status in (204, 403, 404), spelling
    assert set(seen) == {"orders"}

"""gateway/surfaces/native/access.py, connections.py: tokens, rules, connections, sessions and settings over HTTP, by
each role."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from gateway.api.shapes.access import EXPIRES_IN_MS_MAX
from gateway.auth.scopes import SCOPES_MAX
from gateway.auth.tokens import PRINCIPAL_CHARS_MAX
from tests.gateway.security.test_server import PATIENCE_S, client_of, config_of, running, token_for, until

ROLES = {
    "none": [],
    "reader": ["reader:topic:*"],
    "writer": ["writer:topic:*"],
    "operator": ["operate"],
    "keeper": ["access", "reader:topic:orders"],
    "admin": ["admin"],
}


async def ask(
    client: aiohttp.ClientSession, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, Any, str | None]:
    """Status; the body, of an error its code; and the ETag."""
    sent = {name.replace("_", "-"): text for name, text in headers.items()}
    async with client.request(method, f"/mq/v1{path}", json=body, headers=sent) as response:
        answer = None if response.status == 204 else await response.json()
        etag = response.headers.get("ETag")
        return response.status, answer["error_code"] if response.status >= 400 else answer, etag


async def test_tokens_and_rules_over_http(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    tokens = {role: token_for(config, role, *scopes) for role, scopes in ROLES.items()}
    async with running(config) as url:
        clients = {role: client_of(url, token) for role, (token, _) in tokens.items()}
        try:
            for role, client in clients.items():
                status = 200 if role in ("keeper", "admin") else 403
                for path in ("/tokens", "/rules"):
                    assert (await ask(client, "GET", path))[0] == status, role
                if status == 403:
                    for method, path in (("POST", "/tokens"), ("DELETE", "/tokens/x"), ("PUT", "/rules")):
                        assert (await ask(client, method, path, {}))[0] == 403, role
            await _tokens(url, clients, tokens)
            await _rules(url, clients)
        finally:
            for client in clients.values():
                await client.close()


async def _tokens(url: str, clients: dict[str, Any], tokens: dict[str, tuple[str, str]]) -> None:
    admin, keeper = clients["admin"], clients["keeper"]
    _, page, etag = await ask(admin, "GET", "/tokens?limit=4")
    assert (len(page["tokens"]), page["total"]) == (4, len(ROLES))
    _, rest, _ = await ask(admin, "GET", f"/tokens?limit=4&cursor={page['next_cursor']}")
    listed = [row["id"] for row in (*page["tokens"], *rest["tokens"])]
    assert (sorted(listed), rest["next_cursor"]) == (sorted(id_ for _, id_ in tokens.values()), None)
    assert "sha256" not in page["tokens"][0]
    assert (await ask(admin, "GET", "/tokens?q=READ"))[1]["tokens"][0]["principal"] == "reader"

    body = {"principal": "app", "scopes": ["reader:topic:orders"], "expires_in_ms": 60_000}
    status, made, _ = await ask(keeper, "POST", "/tokens", body)
    assert (status, made["principal"], made["scopes"]) == (201, "app", ["reader:topic:orders"])
    async with client_of(url, made["token"]) as app:  # good at once
        assert (await (await app.get("/mq/v1/me")).json())["principal"] == "app"
        assert (await ask(keeper, "POST", "/tokens", {"principal": "app", "scopes": ["operate"]}))[1] == 40301
        assert (await ask(keeper, "POST", "/tokens", body, If_Match=etag or ""))[1] == 41250
        assert (await ask(admin, "DELETE", f"/tokens/{made['id']}", If_Match=etag or ""))[1] == 41250
        assert (await ask(keeper, "DELETE", f"/tokens/{made['id']}"))[0] == 204
        assert (await app.get("/mq/v1/me")).status == 401  # at once
    assert (await ask(keeper, "DELETE", f"/tokens/{made['id']}"))[1] == 40453
    for wrong, code in (
        ({"principal": "no name"}, 422), ({"principal": ""}, 422),
        ({"principal": "x" * (PRINCIPAL_CHARS_MAX + 1)}, 422),
        ({"principal": "x", "scopes": ["nonsense"]}, 422), ({"principal": "x", "expires_in_ms": 0}, 42253),
        ({"principal": "x", "expires_in_ms": EXPIRES_IN_MS_MAX + 1}, 42253),
        ({"principal": "x", "scopes": ["operate"] * (SCOPES_MAX + 1)}, 422), ({"principal": "x", "y": 1}, 422),
    ):  # fmt: skip
        assert (await ask(admin, "POST", "/tokens", wrong))[1] == code, str(wrong)[:60]
    most = {"principal": "x" * PRINCIPAL_CHARS_MAX, "scopes": ["operate"] * SCOPES_MAX}
    assert (await ask(admin, "POST", "/tokens", {**most, "expires_in_ms": EXPIRES_IN_MS_MAX}))[0] == 201
    _, trail, _ = await ask(admin, "GET", "/audit?action=token")
    told = {(entry["action"], entry["outcome"]) for entry in trail["entries"]}
    assert {("token.create", "done"), ("token.create", "refused"), ("token.revoke", "done")} <= told
    assert made["token"] not in str(trail)


async def _rules(url: str, clients: dict[str, Any]) -> None:
    admin, keeper, reader = clients["admin"], clients["keeper"], clients["reader"]
    _, rules, etag = await ask(keeper, "GET", "/rules")
    assert (rules, bool(etag)) == ({"rules": []}, True)
    wanted = {"rules": [{"principal": "writer", "allow": ["reader:topic:orders"], "deny": []}]}
    assert (await ask(keeper, "PUT", "/rules", wanted))[1] == 42850
    assert (await ask(keeper, "PUT", "/rules", wanted, If_Match='"0"'))[1] == 41250
    more = {"rules": [{"principal": "writer", "allow": ["admin"]}]}
    assert (await ask(keeper, "PUT", "/rules", more, If_Match=etag or ""))[1] == 40301
    status, put, tag = await ask(keeper, "PUT", "/rules", wanted, If_Match=etag or "")
    assert (status, put) == (200, wanted)
    assert await ask(admin, "GET", "/rules") == (200, wanted, tag)
    me = await (await clients["writer"].get("/mq/v1/me")).json()  # in force at once
    assert {"permissions": ["describe", "receive"], "kind": "topic", "pattern": "orders"} in me["allow"]
    denied = {"rules": [{"principal": "reader", "allow": [], "deny": ["receive:topic:secret"]}]}
    status, _, tag = await ask(admin, "PUT", "/rules", denied, If_Match=tag or "")
    assert status == 200
    assert (await (await reader.get("/mq/v1/me")).json())["deny"][0]["pattern"] == "secret"
    assert (await ask(keeper, "PUT", "/rules", {"rules": []}, If_Match=tag or ""))[1] == 40301
    assert (await ask(admin, "PUT", "/rules", {"rules": [{"principal": "x", "allow": ["y"]}]}, If_Match=tag or ""))[
        1
    ] == 422


async def test_without_authentication_there_is_nothing_to_change(tmp_path: Path) -> None:
    async with running(config_of(tmp_path, **{"auth.enabled": False})) as url, client_of(url, None) as client:
        for method, path in (("GET", "/tokens"), ("DELETE", "/tokens/x"), ("GET", "/rules")):
            assert (await ask(client, method, path))[1] == 40958
        assert (await ask(client, "POST", "/tokens", {"principal": "x"}))[1] == 40958


async def test_connections_sessions_and_settings(tmp_path: Path) -> None:
    config = config_of(tmp_path, log_level="error")
    config = replace(config, sources={"log_level": "flag"})
    tokens = {role: token_for(config, role, *scopes)[0] for role, scopes in ROLES.items()}
    async with running(config) as url:
        clients = {role: client_of(url, token) for role, token in tokens.items()}
        try:
            for role, client in clients.items():
                status = 200 if role in ("operator", "admin") else 403
                for path in ("/connections", "/sessions", "/settings"):
                    assert (await ask(client, "GET", path))[0] == status, role
                if status == 403:
                    for path in ("/connections/c1", "/sessions/x"):
                        assert (await ask(client, "DELETE", path))[0] == 403, role
            async with asyncio.timeout(PATIENCE_S):
                await _connections(clients)
                await _sessions(clients)
            _, answer, _ = await ask(clients["operator"], "GET", "/settings")
        finally:
            for client in clients.values():
                await client.close()
    settings = {row["name"]: row for row in answer["settings"]}
    assert settings["log_level"]["source"] == "flag"
    assert (settings["log_level"]["value"], settings["log_level"]["default"]) == ("error", "info")
    assert (settings["store.acks"]["value"], settings["store.acks"]["source"]) == ("flushed", "default")
    assert "fdatasync" in settings["store.acks"]["description"] or settings["store.acks"]["description"]
    assert "sources" not in settings


async def _connections(clients: dict[str, Any]) -> None:
    operator = clients["operator"]
    _, page, _ = await ask(operator, "GET", "/connections?limit=2")
    assert (len(page["connections"]), page["total"]) == (2, len(ROLES))
    _, page, _ = await ask(operator, "GET", f"/connections?cursor={page['next_cursor']}")
    assert len(page["connections"]) == len(ROLES) - 2
    _, page, _ = await ask(operator, "GET", "/connections?q=WRIT")
    (row,) = page["connections"]
    assert (row["principal"], row["kind"], row["address"].partition(":")[0]) == ("writer", "http", "127.0.0.1")
    admin, writer = clients["admin"], clients["writer"]
    await admin.put("/mq/v1/topics/fast", json={"partitions": 1})
    body = {"records": [{"value": 1}]}
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    for _ in range(3):  # by the fast path too
        assert (await writer.post("/topics/fast", json=body, headers=headers)).ok
    assert (await ask(operator, "GET", "/connections?q=writer"))[1]["connections"] == [row]
    assert (await ask(operator, "DELETE", f"/connections/{row['connection']}"))[0] == 204
    assert (await ask(operator, "DELETE", f"/connections/{row['connection']}"))[1] == 40454
    assert (await writer.get("/topics")).status == 200  # on another one

    async def is_another() -> bool:
        _, page, _ = await ask(operator, "GET", "/connections?q=writer")
        return [one["connection"] for one in page["connections"]] not in ([], [row["connection"]])

    await until(is_another)


async def _sessions(clients: dict[str, Any]) -> None:
    operator, reader = clients["operator"], clients["reader"]
    socket = await reader.ws_connect("/ws/v1")
    await socket.send_json({"id": 1, "op": "hello"})
    welcome = await socket.receive_json()
    await socket.send_json({"id": 2, "op": "subscribe", "sub": "s", "topics": ["fast"], "from": "latest"})
    await socket.receive_json()
    _, page, _ = await ask(operator, "GET", "/sessions?q=reader")
    (row,) = page["sessions"]
    assert (row["principal"], row["state"], row["subscriptions"], row["groups"]) == ("reader", "open", 1, [])
    assert welcome["session"].startswith(row["session"])
    assert welcome["session"] != row["session"]
    _, page, _ = await ask(operator, "GET", "/connections?q=reader")
    assert "websocket" in {one["kind"] for one in page["connections"]}
    assert (await ask(operator, "DELETE", f"/sessions/{row['session']}"))[0] == 204
    while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:  # that it has caught up
        pass
    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 4503)
    await socket.close()

    async def is_gone() -> bool:
        return (await ask(operator, "GET", "/sessions"))[1]["total"] == 0  # type: ignore[no-any-return]

    await until(is_gone)
    assert (await ask(operator, "DELETE", f"/sessions/{row['session']}"))[1] == 40454

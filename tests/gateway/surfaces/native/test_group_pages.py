"""Groups, their open records, lags and dead letters in pages, over a whole server (gateway/surfaces/native/groups.py,
gateway/groups/coordinator/looking.py), by each role and over a restart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.groups.coordinator import dead_letters as letters_module
from gateway.groups.coordinator import looking, service
from gateway.groups.protocol import SETTLE_LETTERS_MAX
from tests.gateway.security.test_server import client_of, config_of, running, token_for, until

ROLES = {
    "none": [],
    "reader": ["reader:topic:orders", "reader:group:billing"],
    "writer": ["writer:topic:orders"],
    "operator": ["operate"],
    "owner": ["admin:group:billing", "receive:topic:orders", "describe:topic:orders"],
    "admin": ["admin"],
}
Clients = Mapping[str, aiohttp.ClientSession]


async def ask(client: aiohttp.ClientSession, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Status, and the body: of an error its code."""
    async with client.request(method, f"/mq/v1/groups{path}", json=body) as response:
        answer = await response.json()
        return response.status, answer["error_code"] if response.status >= 400 else answer


async def receive(client: aiohttp.ClientSession, group: str, count: int, **fields: object) -> list[dict[str, Any]]:
    body = {"topics": ["orders"], "max_messages": count, "start": "earliest", **fields}
    _, answer = await ask(client, "POST", f"/{group}/messages:receive", body)
    return list(answer["messages"])


async def test_pages_of_groups_leases_lags_and_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LAG_INTERVAL_MS", 20)
    monkeypatch.setattr(looking, "LAGS_A_TURN", 1)
    config = config_of(tmp_path, partitions_default=1)
    tokens = {role: token_for(config, role, *scopes)[0] for role, scopes in ROLES.items()}
    async with running(config) as url:
        clients = {role: client_of(url, token) for role, token in tokens.items()}
        admin = clients["admin"]
        for topic, partitions in (("orders", 1), ("others", 3)):
            await admin.put(f"/mq/v1/topics/{topic}", json={"partitions": partitions})
        await admin.post("/topics/orders", json={"records": [{"value": number} for number in range(20)]})
        for group in ("a", "b", "hidden"):
            await receive(admin, group, 1)
        messages = await receive(admin, "billing", 8, consumer="worker-1")
        try:
            await _groups(clients)
            await _leases(clients, messages)
            await _lags(clients)
            await _letters(clients, messages, monkeypatch)
        finally:
            for client in clients.values():
                await client.close()
    async with running(config) as url, client_of(url, tokens["admin"]) as admin:
        _, page = await ask(admin, "GET", "/billing/dlq")
        assert ([letter["offset"] for letter in page["messages"]], page["total"]) == ([1, 5, 7], 3)
        _, redriven = await ask(admin, "POST", "/billing/dlq:redrive", {"max_messages": 2})
        assert redriven == {"redriven": 2}
        _, page = await ask(admin, "GET", "/billing/dlq")
        assert ([letter["offset"] for letter in page["messages"]], page["total"]) == ([7], 1)
        again = await receive(admin, "billing", 100)
        assert {message["value"] for message in again} >= {1, 5}  # 3 was sent back before the restart


async def _groups(clients: Clients) -> None:
    admin = clients["admin"]

    async def names(query: str, role: str = "admin") -> tuple[list[str], str | None, int]:
        status, page = await ask(clients[role], "GET", f"?{query}")
        assert status == 200, page
        return [row["group"] for row in page["groups"]], page["next_cursor"], page["total"]

    first, cursor, total = await names("limit=3")
    assert (first, total) == (["a", "b", "billing"], 4)
    assert await names(f"limit=3&cursor={cursor}") == (["hidden"], None, 4)
    assert await names("q=B") == (["b", "billing"], None, 2)
    assert (await names("sort=in_flight&limit=1"))[0] == ["billing"]
    assert await names("sort=members&order=asc") == (["a", "b", "billing", "hidden"], None, 4)
    assert await names("limit=9", "reader") == (["billing"], None, 1)

    async def has_lag() -> bool:
        _, page = await ask(admin, "GET", "?sort=lag&q=billing")
        return bool(page["groups"][0]["lag"] == 20)

    await until(has_lag)
    _, page = await ask(admin, "GET", "?q=billing")
    (row,) = page["groups"]
    assert (row["in_flight"], row["dead"], row["topics"], row["state"]) == (8, 0, ["orders"], "empty")
    for query, code in (("limit=0", 42253), ("limit=201", 42253), ("sort=x", 422), ("cursor=x", 40050)):
        assert (await ask(admin, "GET", f"?{query}"))[1] == code
    _, whole = await ask(admin, "GET", "")
    assert set(whole) == {"groups"}
    assert set(whole["groups"][0]) == {"group", "state", "generation", "member_count", "topics"}


async def _leases(clients: Clients, messages: list[dict[str, Any]]) -> None:
    admin = clients["admin"]
    body = {"receipts": [messages[0]["receipt"]], "invisible_ms": 60_000}
    _, extended = await ask(admin, "POST", "/billing/messages:extend", body)
    messages[0]["receipt"] = extended["results"][0]["new_receipt"]
    await ask(admin, "POST", "/billing/messages:nack", {"receipts": [messages[7]["receipt"]], "delay_ms": 0})
    (messages[7],) = await receive(admin, "billing", 1, consumer="worker-2", max_bytes=1)
    rows: list[dict[str, Any]] = []
    cursor = ""
    while True:
        _, page = await ask(clients["reader"], "GET", f"/billing/leases?limit=3{cursor}")
        assert page["total"] == 8
        rows += page["leases"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert [row["offset"] for row in rows] == list(range(8))
    assert [row["consumer"] for row in rows] == ["worker-1"] * 7 + ["worker-2"]
    assert [row["attempt"] for row in rows] == [1] * 7 + [2]
    assert {row["state"] for row in rows} == {"leased"}
    assert [row["until_ms"] for row in rows[1:]] == [message["visible_until"] for message in messages[1:]]
    assert (await ask(admin, "GET", "/billing/leases?topic=others"))[1]["total"] == 0
    assert (await ask(admin, "GET", "/nobody/leases"))[1] == 40405
    for cursor in ("x", "WzFd"):
        assert (await ask(admin, "GET", f"/billing/leases?cursor={cursor}"))[1] == 40050
    expected = {"none": 403, "writer": 403, "operator": 403, "reader": 200, "owner": 200, "admin": 200}
    for role, status in expected.items():
        for path in ("/billing/leases", "/billing/lag?limit=1", "/billing/lag/history"):
            assert (await ask(clients[role], "GET", path))[0] == status, (role, path)


async def _lags(clients: Clients) -> None:
    admin = clients["admin"]
    body = {"topics": ["others"], "start": "earliest"}
    await ask(admin, "POST", "/billing/messages:receive", body)
    places: list[tuple[str, int]] = []
    cursor = ""
    while True:
        _, page = await ask(admin, "GET", f"/billing/lag?limit=1{cursor}")
        places += [(row["topic"], row["partition"]) for row in page["partitions"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert places == [("orders", 0), ("others", 0), ("others", 1), ("others", 2)]
    _, page = await ask(clients["reader"], "GET", "/billing/lag?limit=200")
    assert ([row["topic"] for row in page["partitions"]], page["total_lag"]) == (["orders"], 20)
    _, page = await ask(admin, "GET", "/billing/lag?limit=2&topics=others")
    assert [row["partition"] for row in page["partitions"]] == [0, 1]
    assert (await ask(admin, "GET", "/billing/lag?cursor=x"))[1] == 40050

    async def has_history() -> bool:
        _, history = await ask(admin, "GET", "/billing/lag/history")
        return bool(history["lag"] and history["lag"][-1] == 20 and history["step_ms"] == 5_000)

    await until(has_history)
    assert (await ask(admin, "GET", "/nobody/lag/history"))[1] == 40405


async def _letters(clients: Clients, messages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    admin = clients["admin"]
    receipts = [message["receipt"] for message in messages]
    _, answer = await ask(admin, "POST", "/billing/messages:reject", {"receipts": receipts, "reason": "no"})
    assert all(result["ok"] for result in answer["results"])

    async def listed(query: str = "") -> tuple[list[int], int]:
        _, page = await ask(admin, "GET", f"/billing/dlq{query}")
        return [letter["offset"] for letter in page["messages"]], page["total"]

    async def settle(action: str, *offsets: int, role: str = "admin") -> tuple[int, Any]:
        status, answer = await ask(clients[role], "POST", "/billing/dlq:settle", {"action": action, "offsets": offsets})
        return status, [one["ok"] for one in answer["results"]] if status == 200 else answer

    assert await listed() == (list(range(8)), 8)
    for role, expected in {
        "none": (403, 403), "writer": (403, 403), "operator": (403, 403), "reader": (200, 403), "owner": (200, 200),
    }.items():  # fmt: skip
        assert (await settle("redrive", 99, role=role))[0] == expected[0], role
        assert (await settle("purge", 99, role=role))[0] == expected[1], role
    assert await settle("purge", 4, 6, 4, 99) == (200, [True, True, False, False])
    assert await listed() == ([0, 1, 2, 3, 5, 7], 6)
    assert await listed("?offset=4&limit=1") == ([5], 6)
    assert (await ask(admin, "GET", "?q=billing"))[1]["groups"][0]["dead"] == 6
    assert await settle("redrive", 3, 4) == (200, [True, False])
    back = await receive(admin, "billing", 100)
    assert [(message["value"], message["delivery_attempt"]) for message in back if message["value"] == 3] == [(3, 1)]
    assert await settle("purge", 0) == (200, [True])  # the first one: how far the group is moves on
    assert await listed() == ([1, 2, 5, 7], 4)
    monkeypatch.setattr(letters_module, "RANGES_MAX", 1)
    assert (await settle("purge", 2))[1] == 42950  # 2 to 4 and 6 would be two stretches
    monkeypatch.setattr(letters_module, "RANGES_MAX", 2)
    assert await settle("purge", 2) == (200, [True])
    assert await listed() == ([1, 5, 7], 3)
    for offsets, code in (([], 422), ([0] * (SETTLE_LETTERS_MAX + 1), 422), ([-1], 42253)):
        assert (await settle("purge", *offsets))[1] == code
    assert (await settle("purge", *[0] * SETTLE_LETTERS_MAX))[0] == 200
    assert (await ask(admin, "POST", "/nobody/dlq:settle", {"action": "purge", "offsets": [0]}))[1] == 40405

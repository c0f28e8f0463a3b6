"""gateway/surfaces/native/stats.py, me.py and the paged list of topics; gateway/main/readings.py and
gateway/api/topic_figures.py behind them: a whole server, asked by each role."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from gateway.api import figures, topic_figures
from gateway.api.figures import SERIES
from tests.gateway.security.test_server import client_of, config_of, running, token_for, until

SHAPES = {
    "none": [],
    "reader": ["reader:topic:orders", "reader:group:billing"],
    "writer": ["writer:topic:orders"],
    "operator": ["operate"],
    "admin": ["admin"],
}


async def test_who_asks_what_runs_and_the_list_of_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "GROUP_STEP_MS", 1)
    monkeypatch.setattr(topic_figures, "SNAPSHOT_MS", 1)
    config = config_of(tmp_path)
    tokens = {role: token_for(config, role, *scopes) for role, scopes in SHAPES.items()}
    async with running(config) as url:
        clients = {role: client_of(url, token) for role, (token, _) in tokens.items()}
        try:
            await _me(clients, tokens)
            admin = clients["admin"]
            for name, partitions in (("orders", 2), ("Events", 1), ("a-hidden", 3)):
                assert (await admin.put(f"/mq/v1/topics/{name}", json={"partitions": partitions})).status == 201
            body = {"records": [{"value": number} for number in range(5)]}
            assert (await admin.post("/topics/orders", data=orjson.dumps(body))).ok
            later = {"records": [{"value": 1, "delay_ms": 3_600_000}]}
            assert (await admin.post("/topics/orders", data=orjson.dumps(later))).ok
            await _stats(clients)
            await _topics(clients)
        finally:
            for client in clients.values():
                await client.close()


async def _me(clients: dict, tokens: dict) -> None:  # type: ignore[type-arg]
    for role, client in clients.items():
        response = await client.get("/mq/v1/me")
        assert (response.status, response.headers["Cache-Control"]) == (200, "no-store")
        me = await response.json()
        assert (me["principal"], me["token_id"], me["is_authenticated"]) == (role, tokens[role][1], True)
        assert (me["deny"], me["is_whole"], me["expires_ms"]) == ([], True, None)
        assert len(me["allow"]) == len(SHAPES[role])
    assert (await (await clients["reader"].get("/mq/v1/me")).json())["allow"] == [
        {"permissions": ["describe", "receive"], "kind": "topic", "pattern": "orders"},
        {"permissions": ["describe", "receive"], "kind": "group", "pattern": "billing"},
    ]
    (all_,) = (await (await clients["admin"].get("/mq/v1/me")).json())["allow"]
    permissions = ["describe", "send", "receive", "create", "delete", "operate", "audit", "access"]
    assert all_ == {"permissions": permissions, "kind": None, "pattern": "*"}
    assert (await clients["admin"].get("/mq/v1/me?x=1")).status == 422
    async with client_of(str(clients["admin"]._base_url), None) as stranger:
        assert (await stranger.get("/mq/v1/me")).status == 401


async def _stats(clients: dict) -> None:  # type: ignore[type-arg]
    operator = clients["operator"]
    for role, status in {"none": 403, "reader": 403, "writer": 403, "operator": 200, "admin": 200}.items():
        for path in ("/mq/v1/stats", "/mq/v1/stats/stream"):
            async with clients[role].get(path) as response:
                assert response.status == status, (role, path)
    async with operator.get("/mq/v1/stats/stream") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        looks = []
        async with asyncio.timeout(10):
            while len(looks) < 2:
                if (line := await stream.content.readline()).startswith(b"data: "):
                    looks.append(orjson.loads(line[6:]))
        assert looks[1]["time_ms"] > looks[0]["time_ms"]
        assert set(looks[1]) == {"time_ms", "now", "alarms"}
    stats = await (await operator.get("/mq/v1/stats")).json()
    now = stats["now"]
    assert (now["topics"], now["partitions"], now["pending"], now["groups"], stats["alarms"]) == (3, 6, 1, 0, [])
    for name in ("disk_free_bytes", "disk_total_bytes", "log_bytes", "rss_bytes", "connections"):
        assert now[name] > 0, name
    assert set(stats["series"]) == set(SERIES)
    assert len({len(points) for points in stats["series"].values()}) == 1
    assert max(point or 0 for point in stats["series"]["in_records_s"]) > 0
    minutes = await (await operator.get("/mq/v1/stats?points=minutes")).json()
    assert minutes["step_ms"] == 60_000
    assert (await operator.get("/mq/v1/stats?points=hours")).status == 422


async def _topics(clients: dict) -> None:  # type: ignore[type-arg]
    admin = clients["admin"]

    async def page(query: str, role: str = "admin") -> tuple[list[str], str | None, int]:
        body = await (await clients[role].get(f"/mq/v1/topics?{query}")).json()
        return [row["topic"] for row in body["topics"]], body["next_cursor"], body["total"]

    names, cursor, total = await page("limit=2")
    assert (names, total) == (["Events", "a-hidden"], 3)
    assert await page(f"limit=2&cursor={cursor}") == (["orders"], None, 3)
    assert await page("q=EV") == (["Events"], None, 1)
    assert await page("order=desc&limit=200") == (["orders", "a-hidden", "Events"], None, 3)
    assert await page("sort=partitions") == (["a-hidden", "orders", "Events"], None, 3)
    assert await page("sort=records&order=asc") == (["Events", "a-hidden", "orders"], None, 3)
    assert (await page("sort=pending&limit=1"))[0] == ["orders"]
    assert await page("limit=9", "reader") == (["orders"], None, 1)
    assert (await clients["none"].get("/mq/v1/topics?limit=9")).status == 403
    (row,) = (await (await admin.get("/mq/v1/topics?q=orders")).json())["topics"]
    assert (row["records"], row["pending"], row["partitions"]) == (5, 1, 2)
    assert row["appended_bytes"] > 0
    for wrong, code in (("limit=0", 42253), ("limit=201", 42253), ("q=", 422), ("sort=x", 422), ("x=1", 422),
                        (f"cursor={cursor}&sort=records", 40050), (f"q={'a' * 250}", 422)):  # fmt: skip
        refused = await (await admin.get(f"/mq/v1/topics?{wrong}")).json()
        assert refused["error_code"] == code, wrong
    assert (await admin.get(f"/mq/v1/topics?limit=200&q={'a' * 249}")).status == 200
    whole = await (await admin.get("/mq/v1/topics")).json()
    assert set(whole) == {"topics"}
    assert set(whole["topics"][0]) == {"topic", "topic_id", "partitions", "json_keys"}

    async def has_rate() -> bool:
        await admin.post("/topics/orders", data=b'{"records":[{"value":1}]}')
        body = await (await admin.get("/mq/v1/topics?sort=in_records_s&limit=1")).json()
        return bool(body["topics"][0]["in_records_s"] > 0)

    await until(has_rate)


async def test_without_authentication_everybody_may_do_everything(tmp_path: Path) -> None:
    async with running(config_of(tmp_path, **{"auth.enabled": False})) as url, client_of(url, None) as client:
        me = await (await client.get("/mq/v1/me")).json()
        assert (me["principal"], me["is_authenticated"], me["token_id"]) == ("anonymous", False, None)
        assert me["allow"][0]["kind"] is None

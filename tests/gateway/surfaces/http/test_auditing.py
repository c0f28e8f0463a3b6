"""gateway.surfaces.http.auditing: every route that administers leaves a line, whoever asks and whatever comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import hdrs, web

from gateway.api.trail import Trail
from gateway.auth.access import Permission
from gateway.errors import RequestError
from gateway.main.routes import ROUTES
from gateway.surfaces.http.auditing import FIELDS_BYTES_MAX
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.routes import Handler, Row
from tests import contract
from tests.clock import START_MS
from tests.gateway.security.kit import Secured, secured, served
from tests.gateway.security.test_matrix import path_of
from tests.simdisk import SimDisk

NOT_ADMINISTERING = {
    "root", "produce", "produce_partition", "produce_raw", "produce_lines", "v3_produce", "v3_produce_batch",
    "create_instance", "delete_instance", "subscribe", "unsubscribe", "assign", "commit_offsets",
    "query_committed_offsets", "seek", "seek_to_beginning", "seek_to_end",
    "receive", "ack", "nack", "reject", "extend", "issue_ticket", "search_messages",
    "commit_in_queue", "forget_in_queue",
}  # fmt: skip
"""Routes that are no GET and no business of the trail: sending, searching, and consuming as a member of a group. A new
route is either named here or has an action."""

ADMIN_ROWS = [row for row in ROUTES if row.action is not None]


async def _done(_gateway: Gateway, _request: web.Request, _body: bytes) -> web.Response:
    return web.Response(status=204)


async def _refused(_gateway: Gateway, _request: web.Request, _body: bytes) -> web.Response:
    raise RequestError(40301, "no")


async def _failed(_gateway: Gateway, _request: web.Request, _body: bytes) -> web.Response:
    raise RuntimeError("a fault")


@pytest.fixture
async def parts() -> AsyncIterator[Secured]:
    scopes = {"ann": ["admin"], "nothing": [], "auditor": ["audit"], "operator": ["operate"]}
    with contract.stubbed():
        yield await secured(scopes)


def rows_with(handler: Handler) -> list[Row]:
    return [replace(row, handler=handler) for row in ADMIN_ROWS]


@asynccontextmanager
async def audited(parts: Secured, rows: list[Row] | None) -> AsyncIterator[tuple[aiohttp.ClientSession, Trail]]:
    """A client of a server with a trail."""
    trail = Trail(Path("/data"), SimDisk(), parts.clock, monotonic_s=lambda: 0.0, gather_s=0)
    writing = asyncio.create_task(trail.run())
    gateway = replace(parts.gateway, trail=trail)
    try:
        async with served(gateway, rows=rows) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            yield client, trail
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        await trail.close()


async def lines(trail: Trail) -> list[dict[str, object]]:
    """What is on disk, the oldest first, when all is written that waits."""
    await trail.close()
    return (await trail.page(lambda row: True, cursor=None, limit=10_000)).rows[::-1]


def bearer(parts: Secured, name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {parts.tokens[name]}"}


def test_every_route_that_changes_something_names_its_action_or_is_known_to_need_none() -> None:
    changing = [row for row in ROUTES if row.method != hdrs.METH_GET]
    assert {row.name for row in changing if row.action is None} == NOT_ADMINISTERING
    assert all(row.method != hdrs.METH_GET for row in ADMIN_ROWS)


@pytest.mark.parametrize(
    "permission", [Permission.CREATE, Permission.DELETE, Permission.OPERATE, Permission.AUDIT, Permission.ACCESS]
)
def test_a_route_that_administers_and_names_no_action_does_not_start(permission: Permission) -> None:
    with pytest.raises(ValueError, match="names no action"):
        Row(method="POST", path="/x", name="x", handler=_done, permission=permission)
    Row(method="POST", path="/x", name="x", handler=_done, permission=permission, action="x.do")


async def test_every_administering_route_is_in_the_trail_with_who_and_what(parts: Secured) -> None:
    async with audited(parts, rows_with(_done)) as (client, trail):
        for row in ADMIN_ROWS:
            headers = {**bearer(parts, "ann"), "X-Request-Id": f"{row.method} {row.path}"}
            async with client.request(row.method, path_of(row), headers=headers) as response:
                assert response.status == 204
            newest = (await trail.page(lambda row: True, cursor=None, limit=1)).rows
            if not str(row.action).startswith(("schedule.", "recurring.")):
                assert newest[0]["request_id"] == headers["X-Request-Id"]  # before the answer
        found = await lines(trail)
    (token_id,) = [id_ for id_, record in parts.policy.tokens.items() if record.principal == "ann"]
    by_request = {line["request_id"]: line for line in found}
    assert len(by_request) == len(found) == len(ADMIN_ROWS)
    for row in ADMIN_ROWS:
        line = by_request[f"{row.method} {row.path}"]
        assert line["action"] == row.action
        assert (line["principal"], line["token_id"]) == ("ann", token_id)
        assert (line["outcome"], line["status"], line["error_code"]) == ("done", 204, None)
        assert line["address"] == "127.0.0.1"
        assert line["time_ms"] == START_MS
        if "{topic}" in row.path:
            assert line["object"]["topic"] == "orders"  # type: ignore[index]
        if "{group}" in row.path:
            assert line["object"]["group"] == "billing"  # type: ignore[index]


async def test_the_record_of_a_recurring_schedule_is_in_no_log(parts: Secured) -> None:
    body = {"topic": "orders", "record": {"value": "confidential"}, "cron": "@daily"}
    async with audited(parts, rows_with(_done)) as (client, trail):
        async with client.put("/mq/v1/recurring/daily", json=body, headers=bearer(parts, "ann")) as response:
            assert response.status == 204
        (line,) = await lines(trail)
    assert line["object"] == {"topic": "orders", "recurring": "daily"}
    assert line["details"] == {"cron": "@daily"}


@pytest.mark.parametrize(
    ("name", "status", "error_code", "principal"),
    [(None, 401, 40101, "nobody"), ("wrong", 401, 40101, "nobody"), ("nothing", 403, 40301, "nothing")],
)
async def test_denied_attempts_are_in_the_trail(
    parts: Secured, name: str | None, status: int, error_code: int, principal: str
) -> None:
    async with audited(parts, rows_with(_done)) as (client, trail):
        for row in ADMIN_ROWS:
            parts.clock.step(600_001)  # or the address would have to wait
            async with client.request(
                row.method, path_of(row), headers={} if name is None else bearer(parts, name)
            ) as response:
                assert response.status == status
        found = await lines(trail)
    assert len(found) == len(ADMIN_ROWS)
    for line in found:
        assert (line["outcome"], line["status"], line["error_code"]) == ("refused", status, error_code)
        assert line["principal"] == principal


@pytest.mark.parametrize(
    ("handler", "outcome", "status", "error_code"),
    [(_refused, "refused", 403, 40301), (_failed, "failed", 500, 500)],
)
async def test_what_was_refused_or_failed_is_in_the_trail(
    parts: Secured, handler: Handler, outcome: str, status: int, error_code: int
) -> None:
    async with audited(parts, rows_with(handler)) as (client, trail):
        for row in ADMIN_ROWS:
            async with client.request(row.method, path_of(row), headers=bearer(parts, "ann")) as response:
                assert response.status == status
        found = await lines(trail)
    assert len(found) == len(ADMIN_ROWS)
    assert {(line["outcome"], line["status"], line["error_code"]) for line in found} == {(outcome, status, error_code)}


async def test_an_action_whose_caller_has_gone_is_in_the_trail(parts: Secured) -> None:
    async def gone(_gateway: Gateway, _request: web.Request, _body: bytes) -> web.Response:
        raise ConnectionResetError

    async with audited(parts, rows_with(gone)) as (client, trail):
        with suppress(aiohttp.ClientError):
            await client.post("/mq/v1/groups/billing/dlq:redrive", headers=bearer(parts, "ann"))
        (line,) = await lines(trail)
    assert (line["action"], line["outcome"], line["status"], line["principal"]) == (
        "group.redrive", "unknown", None, "ann",
    )  # fmt: skip


async def test_names_and_details_come_from_path_query_and_body_and_nothing_else(parts: Secured) -> None:
    secret = "mq_4f7k2q9xw3bd2_" + "S" * 43
    headers = {**bearer(parts, "ann"), "Cookie": "a-cookie", "X-Note": "a-header"}
    async with audited(parts, rows_with(_done)) as (client, trail):
        body: dict[str, object] = {"topic_name": "new", "partitions_count": 3, "note": secret}
        await client.post("/admin/topics", json=body, headers=headers)
        query = {"topic": "orders", "key": "k", "token": "in-the-query", "from": "5"}
        await client.delete("/mq/v1/schedules", params=query, headers=headers)
        await client.post("/mq/v1/groups/g/offsets:reset", json={"topic": "orders", "to": "earliest"}, headers=headers)
        found = {line["action"]: line for line in await lines(trail)}
        everything = str(found)
    assert found["topic.create"]["object"] == {"topic_name": "new"}
    assert found["topic.create"]["details"] == {"partitions_count": 3, "note": "***"}
    assert found["schedule.cancel"]["object"] == {"topic": "orders"}
    assert found["schedule.cancel"]["details"] == {"key": "k", "from": "5"}
    assert found["group.reset"]["object"] == {"topic": "orders", "group": "g"}
    assert found["group.reset"]["details"] == {"to": "earliest"}
    for text in (secret, parts.tokens["ann"], "a-cookie", "a-header", "in-the-query"):
        assert text not in everything


async def test_of_a_long_body_its_size_is_kept_and_nothing_of_it_is_read(parts: Secured) -> None:
    begin, end = b'{"topic":"new","note":"', b'"}'
    async with audited(parts, rows_with(_done)) as (client, trail):
        for size in (FIELDS_BYTES_MAX, FIELDS_BYTES_MAX + 1):
            body = begin + b"x" * (size - len(begin) - len(end)) + end
            headers = {**bearer(parts, "ann"), "Content-Type": "application/json"}
            await client.post("/mq/v1/schedules:batch", data=body, headers=headers)
        short, long = sorted(await lines(trail), key=lambda line: str(line["request_id"]))
    assert short["object"] == {"topic": "new"}
    assert "body_bytes" not in short["details"]  # type: ignore[operator]
    assert (long["object"], long["details"]) == ({}, {"body_bytes": FIELDS_BYTES_MAX + 1})


async def test_of_what_was_refused_only_names_are_kept(parts: Secured) -> None:
    async with audited(parts, rows_with(_refused)) as (client, trail):
        body = {"topic_name": "new", "password": "hush"}
        await client.post("/admin/topics", json=body, headers=bearer(parts, "ann"))
        (line,) = await lines(trail)
    assert (line["object"], line["details"]) == ({"topic_name": "new"}, {})


async def test_a_flood_of_strangers_takes_nothing_out_of_what_was_done(parts: Secured) -> None:
    async with audited(parts, rows_with(_done)) as (client, trail):
        await client.delete("/mq/v1/topics/orders", headers=bearer(parts, "ann"))
        for _ in range(300):
            async with client.delete("/mq/v1/topics/orders") as response:
                assert response.status == 401
        found = await lines(trail)
        assert trail.stats.suppressed_count == 100
    assert [line["outcome"] for line in found].count("refused") == 200
    assert [line["action"] for line in found if line["outcome"] == "done"] == ["topic.delete"]


@pytest.mark.parametrize(("name", "status"), [("ann", 200), ("auditor", 200), ("operator", 403), ("nothing", 403)])
async def test_reading_the_trail_takes_a_right_of_its_own(parts: Secured, name: str, status: int) -> None:
    async with (
        audited(parts, None) as (client, _),
        client.get("/mq/v1/audit", headers=bearer(parts, name)) as response,
    ):
        assert response.status == status


async def test_the_trail_is_read_by_time_actor_action_and_outcome_page_by_page(parts: Secured) -> None:
    headers = bearer(parts, "ann")
    async with audited(parts, None) as (client, trail):
        for number in range(4):
            await client.put(f"/mq/v1/topics/t{number}", json={"partitions": 1}, headers=headers)
            parts.clock.step(1000)
        await client.delete("/mq/v1/topics/t0", headers=headers)
        await client.delete("/mq/v1/topics/none", headers=headers)
        await lines(trail)

        async def asked(**query: object) -> list[object]:
            texts = {name.rstrip("_"): str(value) for name, value in query.items()}
            async with client.get("/mq/v1/audit", params=texts, headers=headers) as response:
                assert response.status == 200, await response.text()
                return [entry["object"]["topic"] for entry in (await response.json())["entries"]]

        assert await asked() == ["none", "t0", "t3", "t2", "t1", "t0"] or await asked() == [
            "t0", "none", "t3", "t2", "t1", "t0",
        ]  # fmt: skip
        assert await asked(action="topic.create") == ["t3", "t2", "t1", "t0"]
        assert await asked(action="topic", outcome="refused") == ["none"]
        assert await asked(action="top") == []
        assert await asked(principal="bob") == []
        assert await asked(from_=START_MS + 1000, to=START_MS + 3000) == ["t2", "t1"]
        seen: list[object] = []
        cursor: str | None = None
        while True:
            query = {"limit": "1", "action": "topic.create"} | ({} if cursor is None else {"cursor": cursor})
            async with client.get("/mq/v1/audit", params=query, headers=headers) as response:
                page = await response.json()
            seen += [entry["object"]["topic"] for entry in page["entries"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == ["t3", "t2", "t1", "t0"]
        async with client.get("/mq/v1/audit?cursor=x", headers=headers) as response:
            assert (response.status, (await response.json())["error_code"]) == (400, 40050)

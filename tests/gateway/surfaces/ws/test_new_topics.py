"""A topic that is created after somebody asked for its like is read from its first record, over every surface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.surfaces.ws import queue
from tests.gateway.surfaces.ws.whole import Whole, whole

V2 = {"Content-Type": "application/vnd.kafka.v2+json", "Accept": "application/vnd.kafka.json.v2+json"}


@pytest_asyncio.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Whole]:
    monkeypatch.setattr(queue, "PATTERN_WAIT_MS", 200)
    async with whole(tmp_path) as server:
        await server.fill(2)
        yield server


async def new_topic(server: Whole) -> None:
    """One with records in it before anybody can have looked."""
    await server.topic("orders-eu")
    await server.fill(3, topic="orders-eu", first=10)


@pytest.mark.parametrize("mode", ["stream", "queue"])
async def test_a_socket_that_follows_a_pattern(server: Whole, mode: str) -> None:
    wish = {"group": "g", "mode": mode, "pattern": "orders.*", "start": "latest"}
    async with server.peer() as peer:
        await peer.subscribe(**wish)
        await new_topic(server)
        assert [message["value"] for message in await peer.messages(3)] == [10, 11, 12]


@pytest.mark.parametrize("mode", ["stream", "queue"])
async def test_a_socket_that_was_away_when_the_topic_came(server: Whole, mode: str) -> None:
    wish = {"group": "g", "mode": mode, "pattern": "orders.*", "start": "latest"}
    async with server.peer() as peer:
        await peer.subscribe(**wish)
        await peer.ok("unsubscribe", sub="s")
    await new_topic(server)
    async with server.peer() as peer:
        await peer.subscribe(**wish)
        assert [message["value"] for message in await peer.messages(3)] == [10, 11, 12]


async def test_an_instance_that_subscribes_to_a_pattern(server: Whole) -> None:
    async def call(method: str, path: str, body: object = None) -> list[dict[str, object]]:
        async with server.session.request(method, f"/consumers/g{path}", json=body, headers=V2) as response:
            assert response.status < 300, await response.text()
            content = await response.read()
            return await response.json(content_type=None) if content else []

    await call("POST", "", {"name": "a", "format": "json", "auto.offset.reset": "latest"})
    await call("POST", "/instances/a/subscription", {"topic_pattern": "orders.*"})
    assert await call("GET", "/instances/a/records?timeout=0") == []
    await new_topic(server)
    records: list[dict[str, object]] = []
    while len(records) < 3:
        records += await call("GET", "/instances/a/records?timeout=1000")
    assert [record["value"] for record in records] == [10, 11, 12]


async def test_records_between_the_first_owner_and_the_first_commit_reach_the_next_one(server: Whole) -> None:
    """A member was sent records, acked none, and is gone: the next one has them, though it asks for the latest."""
    async with server.peer() as peer:
        await peer.subscribe(group="g", mode="stream", start="latest", member="a")
        await server.fill(2, first=20)
        assert [message["value"] for message in await peer.messages(2)] == [20, 21]
        await peer.ok("unsubscribe", sub="s")
    async with server.peer() as peer:
        await peer.subscribe(group="g", mode="stream", start="latest", member="b")
        assert [message["value"] for message in await peer.messages(2)] == [20, 21]

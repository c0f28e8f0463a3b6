"""C12 over every way to commit, on a whole server: who does not own a partition commits nothing there.

One group, a REST Proxy instance and a socket in it: first the instance has everything, then the socket takes one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from gateway.surfaces.ws.protocol import NOT_OWNER
from tests.gateway.surfaces.ws.whole import Whole, whole

V2 = {"Content-Type": "application/vnd.kafka.v2+json", "Accept": "application/vnd.kafka.json.v2+json"}
PLACE = "/consumers/g/instances/a"


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Whole]:
    async with whole(tmp_path, partitions=2) as server:
        for partition in (0, 1):
            await server.fill(3, partition=partition)
        yield server


async def v2(server: Whole, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with server.session.request(method, f"/consumers/g{path}", json=body, headers=V2) as response:
        return response.status, await response.json(content_type=None) if await response.read() else None


async def read_all(server: Whole) -> list[Any]:
    """What instance `a` is handed, until there is nothing more."""
    found: list[Any] = []
    while True:
        status, records = await v2(server, "GET", "/instances/a/records?timeout=100")
        assert status == 200, records
        if not records:
            return found
        found += records


async def commit(server: Whole, partition: int, offset: int) -> tuple[int, Any]:
    """By instance `a`; the offset is that of the last record that was consumed."""
    offsets = [{"topic": "orders", "partition": partition, "offset": offset}]
    return await v2(server, "POST", "/instances/a/offsets", {"offsets": offsets})


async def test_a_commit_of_who_is_not_the_owner_is_refused_on_every_way(server: Whole) -> None:
    settings = {"name": "a", "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
    assert (await v2(server, "POST", "", settings))[0] == 200
    assert (await v2(server, "POST", "/instances/a/subscription", {"topics": ["orders"]}))[0] == 204
    assert len(await read_all(server)) == 6
    assert (await commit(server, 0, 0))[0] == 200, "the owner's"
    assert (await commit(server, 1, 0))[0] == 200
    async with server.peer() as peer:
        await peer.subscribe(group="g", mode="stream", member="b")
        await read_all(server)  # in which the instance hears that it is to give one up
        assigned = await peer.next(op="assigned")
        ((_, (moved,)),) = assigned["partitions"].items()
        kept = 1 - moved
        assert await server.committed("g", moved) == 1
        # The instance's, for what the socket has now: stale.
        status, answer = await commit(server, moved, 2)
        assert (status, answer["error_code"]) == (409, NOT_OWNER), answer
        # The socket's, for what the instance has still.
        acked = await peer.ok("ack", sub="s", cursor=f"orders:{kept}=3")
        assert acked["results"][0]["error_code"] == NOT_OWNER
        # Nobody's, while somebody owns it.
        offsets = {"topic": "orders", "to": "latest", "partitions": [moved]}
        async with server.session.post("/mq/v1/groups/g/offsets:reset", json=offsets) as response:
            assert response.status == 409
        assert await server.committed("g", moved) == 1
        assert await server.committed("g", kept) == 1
        # The owners', as before.
        acked = await peer.ok("ack", sub="s", cursor=f"orders:{moved}=3")
        assert acked["results"][0]["ok"], acked
        assert (await commit(server, kept, 2))[0] == 200
        assert (await server.committed("g", 0), await server.committed("g", 1)) == (3, 3)

"""Two `mq serve` with tokens and a real etcd, of which one goes: lists name it. Tickets, which are of one node.

Covers gateway.surfaces.http.gathering, gateway.auth.tickets and gateway.surfaces.ws.elsewhere.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from tests.gateway.cli.command import mq
from tests.gateway.cluster.etcd_server import EtcdServer
from tests.gateway.cluster.test_served import JSON, Nodes, served
from tests.waiting import PATIENCE_S

HOUR_MS = 3_600_000
LISTS = ("groups", "schedules?topic=orders", "recurring", "connections", "sessions")


class WithTokens(Nodes):
    """Nodes that ask for a token; these clients have one."""

    def __init__(self, directory: Path, etcd: EtcdServer, http: aiohttp.ClientSession, random: Random) -> None:
        super().__init__(directory, etcd, http, random)
        file = {"MQ_AUTH_TOKEN_FILE": str(directory / "tokens.json")}
        self._settings |= {"MQ_AUTH_ENABLED": "true", **file}
        made = mq("token", "create", "ann", "--allow", "admin", "--data", str(directory / "none"), **file)
        self.token = made.stdout.strip()
        assert self.token, made.stderr

    async def ask(self, name: str, method: str, path: str, **sent: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}", **sent.pop("headers", {})}
        return await super().ask(name, method, path, headers=headers, **sent)

    async def missing(self, path: str) -> tuple[list[str], str | None]:
        """The nodes that are missing in a list that the first node answers: by its body, and by its header."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self._http.get(f"{self.servers['n1'].url}{path}", headers=headers) as response:
            body = await response.json(content_type=None)
            assert response.status == 200, body
            return body.get("missing_nodes", []), response.headers.get("Mq-Missing-Nodes")


async def test_a_node_that_is_away_is_named_and_its_tickets_are_its_own(tmp_path: Path, etcd: EtcdServer) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), served(tmp_path, etcd, Random(29), 2, WithTokens) as nodes:
        assert isinstance(nodes, WithTokens)
        assert (await nodes.ask("n1", "PUT", "/mq/v1/topics/orders", json={"partitions": 2}))[0] == 201
        for name in ("n1", "n2"):
            await nodes.done(name, "PATCH", f"/mq/v1/groups/of-{name}", json={"max_attempts": 3})
        await _tickets_are_of_a_node(nodes)
        await _lists_name_who_is_away(nodes)


async def _tickets_are_of_a_node(nodes: WithTokens) -> None:
    async def ticket(name: str) -> str:
        return str((await nodes.done(name, "POST", "/mq/v1/tickets"))["ticket"])

    url = nodes.servers["n2"].url
    given = await ticket("n1")
    async with nodes._http.get(f"{url}/mq/v1/topics/orders/sse?ticket={given}") as response:
        refusal = await response.json(content_type=None)
    assert (response.status, refusal["error_code"]) == (409, 40965), refusal
    assert "node n1" in refusal["message"]
    with pytest.raises(aiohttp.WSServerHandshakeError) as handshake:
        await nodes._http.ws_connect(f"{url}/ws/v1?ticket={given}")
    assert handshake.value.status == 409

    # A group of another node, with a ticket of the node that is asked: who has it is said, and the socket goes on.
    async with nodes._http.get(
        f"{url}/mq/v1/topics/orders/sse?group=of-n1&ack=auto&ticket={await ticket('n2')}"
    ) as response:
        event = await response.text()  # it is the last one, and ends the stream
    assert "event: error" in event, event
    assert '"error_code":409,"message":"group of-n1 belongs to node n1: connect to http://' in event, event
    async with nodes._http.ws_connect(f"{url}/ws/v1?ticket={await ticket('n2')}") as socket:
        subscribe = {"op": "subscribe", "topics": ["orders"], "mode": "queue"}
        for id_, group in enumerate(("of-n1", "of-n2")):
            await socket.send_json({**subscribe, "id": id_, "sub": f"s{id_}", "group": group})
            answer = await socket.receive_json(timeout=PATIENCE_S)
            assert answer["id"] == id_, answer
            if group == "of-n1":
                assert (answer["error_code"], "node n1" in answer["message"]) == (409, True), answer
            else:
                assert answer["mode"] == "queue", answer


async def _lists_name_who_is_away(nodes: WithTokens) -> None:
    delayed = {"records": [{"value": number, "partition": number, "delay_ms": HOUR_MS} for number in (0, 1)]}
    await nodes.done("n1", "POST", "/topics/orders", json=delayed, headers=JSON)
    for path in LISTS:
        assert await nodes.missing(f"/mq/v1/{path}") == ([], None), path
    nodes.servers["n2"].signal(signal.SIGSTOP)
    begun = time.monotonic()
    found = await asyncio.gather(*(nodes.missing(f"/mq/v1/{path}") for path in LISTS))
    assert found == [(["n2"], "n2")] * len(LISTS)
    assert time.monotonic() - begun < PATIENCE_S
    nodes.servers["n2"].signal(signal.SIGCONT)
    await nodes.servers["n2"].kill()
    while await nodes.up_count("n1") == 2:  # its session is there for some seconds: nothing listens
        for path in LISTS:
            assert await nodes.missing(f"/mq/v1/{path}") == (["n2"], "n2"), path
        await asyncio.sleep(0.2)
    for path in LISTS:
        assert await nodes.missing(f"/mq/v1/{path}") == (["n2"], "n2"), path
    groups = await nodes.done("n1", "GET", "/mq/v1/groups")
    assert [row["group"] for row in groups["groups"]] == ["of-n1"]
    await nodes.start("n2")
    while await nodes.missing("/mq/v1/groups") != ([], None):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    groups = await nodes.done("n1", "GET", "/mq/v1/groups")
    assert [row["group"] for row in groups["groups"]] == ["of-n1", "of-n2"]

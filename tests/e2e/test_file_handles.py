"""A server whose process may have few files open, and strangers who connect and say nothing: what is sent is stored,
what is due is delivered, meanwhile and after, however the log grows.

Before: with 1,024 handles, 1,100 strangers stopped sends and the timer until a restart.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.server import SMALL_FILES, Server

STRANGERS = 1_100
RECORD = "x" * 500_000
HEADERS = {"Content-Type": "application/vnd.kafka.json.v2+json"}


@pytest.fixture(autouse=True)
def own_handles() -> Iterator[None]:
    """The strangers are sockets of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard > 2 * STRANGERS
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * STRANGERS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def strangers(port: int) -> list[socket.socket]:
    """From many addresses, so that no bound on one address spares the others."""
    made = []
    for number in range(STRANGERS):
        one = socket.socket()
        one.bind((f"127.0.1.{1 + number % 100}", 0))
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        made.append(one)
    return made


async def send(client: aiohttp.ClientSession, url: str, record: dict[str, object]) -> int | None:
    async with client.post(f"{url}/topics/orders", json={"records": [record]}, headers=HEADERS) as response:
        body = await response.json(content_type=None)
        assert response.status == 200, body
        offset: int | None = body["offsets"][0]["offset"]
        return offset


@pytest.mark.parametrize("handle_limit", [300, pytest.param(1024, marks=pytest.mark.matrix)])
async def test_strangers_do_not_stop_the_log(tmp_path: Path, handle_limit: int) -> None:
    server = Server(
        tmp_path / "data", {**SMALL_FILES, "MQ_TIMER_CHECKPOINT_INTERVAL_MS": "100"},
        under=("prlimit", f"--nofile={handle_limit}:{handle_limit}"),
    )  # fmt: skip
    await server.start()
    try:
        port = int(server.url.rpartition(":")[2])
        connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=300)
        async with aiohttp.ClientSession(connector=connector) as client:
            async with client.put(f"{server.url}/mq/v1/topics/orders", json={"partitions": 1}) as response:
                assert response.status == 201
            held = strangers(port)
            await asyncio.sleep(1)
            offsets = [await send(client, server.url, {"value": RECORD}) for _ in range(40)]  # five files of the log
            assert offsets == list(range(40))
            await send(client, server.url, {"value": "due", "delay_ms": 500})
            await asyncio.sleep(2)
            assert await send(client, server.url, {"value": RECORD}) == 41  # 40 was the one that fell due
            async with client.get(f"{server.url}/metrics") as response:
                metrics = dict(line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[0] != "#")
            assert float(metrics["process_max_fds"]) == handle_limit
            assert float(metrics["process_open_fds"]) < handle_limit
            assert float(metrics["mq_connections"]) <= float(metrics["mq_connections_max"]) <= handle_limit / 2
            assert float(metrics['mq_connections_refused_total{limit="all"}']) > 0
            assert float(metrics["mq_store_failed"]) == 0
            for one in held:
                one.close()
            assert [await send(client, server.url, {"value": RECORD}) for _ in range(20)] == list(range(42, 62))
        assert await server.stop() == 0
        assert f"few file handles, so fewer connections handles={handle_limit} " in server.log()
    finally:
        await server.end()

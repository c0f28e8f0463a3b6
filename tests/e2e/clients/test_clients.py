"""Clients of the REST Proxy that others wrote: kafka-bridge-client in both of its modes, kafka-mcp's API class, and
npm's kafka-rest. Unmodified; the server is stopped or killed in the middle of their sessions, and comes back.

The drivers are bridge_driver, mcp_driver and rest_driver.js beside this file; `tests.e2e.clients.installed` installs.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.clients.installed import HERE, npm_client, pypi_clients
from tests.e2e.server import Server
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.matrix


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """On a port it keeps when it is started again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = Server(tmp_path / "data", port=port)
    await running.start()
    yield running
    await running.end()


async def create_topic(server: Server, topic: str) -> None:
    path = f"{server.url}/mq/v1/topics/{topic}"
    async with aiohttp.ClientSession() as session, session.put(path, json={"partitions": 2}) as response:
        assert response.status == 201


async def drive(server: Server, command: list[str], environment: dict[str, str], *, kill: bool) -> None:
    """Run a driver to its end; where it says so, the server goes away and comes back."""
    driver = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=HERE.anchor, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert driver.stdin is not None
    assert driver.stdout is not None
    assert driver.stderr is not None
    try:
        line = await asyncio.wait_for(driver.stdout.readline(), PATIENCE_S)
        assert line != b"done\n", "the session ended before the server went away"
        if line == b"restart\n":
            if kill:
                await server.kill()
            else:
                assert await server.stop() == 0
            await server.start()
            driver.stdin.write(b"\n")
            line = await asyncio.wait_for(driver.stdout.readline(), PATIENCE_S)
        if line != b"done\n":
            errors = await asyncio.wait_for(driver.stderr.read(), PATIENCE_S)
            pytest.fail(f"the client said {line!r}\n{errors.decode()}\n{server.log()[-2000:]}")
        assert await asyncio.wait_for(driver.wait(), PATIENCE_S) == 0
    finally:
        if driver.returncode is None:
            driver.kill()
            await driver.wait()


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill -9"])
@pytest.mark.parametrize("proxy", ["strimzi", "confluent"])
async def test_kafka_bridge_client(server: Server, proxy: str, kill: bool) -> None:
    environment = pypi_clients()
    await create_topic(server, "orders")
    command = [sys.executable, str(HERE / "bridge_driver.py"), server.url, "orders", proxy]
    await drive(server, command, environment, kill=kill)


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill -9"])
async def test_kafka_mcp(server: Server, kill: bool) -> None:
    command = [sys.executable, str(HERE / "mcp_driver.py"), server.url, "payments"]
    await drive(server, command, pypi_clients(), kill=kill)


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill -9"])
async def test_npm_kafka_rest(server: Server, kill: bool) -> None:
    environment = npm_client()
    await create_topic(server, "orders")
    await drive(server, ["node", str(HERE / "rest_driver.js"), server.url, "orders"], environment, kill=kill)

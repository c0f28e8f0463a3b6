"""npm's `ws` as a client of a real server: the driver is tests/e2e/clients/ws_driver.js. Skipped, with a reason, where
there is no node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.clients.installed import HERE, WEBSOCKET_CLIENT, npm_client
from tests.e2e.server import Server
from tests.waiting import PATIENCE_S


@pytest.mark.matrix
async def test_npm_ws_in_all_modes_over_a_cut_and_a_stop(tmp_path: Path) -> None:
    environment = npm_client(WEBSOCKET_CLIENT)
    server = Server(tmp_path / "data")
    try:
        await server.start()
        async with aiohttp.ClientSession() as session:
            assert (await session.put(f"{server.url}/mq/v1/topics/orders", json={"partitions": 2})).status == 201
        driver = await asyncio.create_subprocess_exec(
            "node", str(HERE / "ws_driver.js"), server.url, env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert driver.stderr is not None
        try:
            line = await asyncio.wait_for(driver.stdout.readline(), PATIENCE_S)
            if line == b"stop\n":
                assert await server.stop() == 0
                driver.stdin.write(b"\n")
                line = await asyncio.wait_for(driver.stdout.readline(), PATIENCE_S)
            if line != b"ok\n":
                driver.stdin.close()
                error = await asyncio.wait_for(driver.stderr.read(), PATIENCE_S)
                raise AssertionError(f"{line!r}\n{error.decode()}\n{server.log()}")
            assert await driver.wait() == 0
        finally:
            if driver.returncode is None:
                driver.kill()
                await driver.wait()
    finally:
        await server.end()

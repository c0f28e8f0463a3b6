"""gateway/main/listener.py: who may connect while the server starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.main.listener import answering_not_ready, bound_socket
from gateway.settings.config import build
from gateway.surfaces.http.starting import RecoveryProgress
from tests.waiting import PATIENCE_S


async def test_connections_are_bounded_before_the_store_is_open(tmp_path: Path) -> None:
    """Recovery opens files: who says nothing must not have their handles."""
    config = build({"data": tmp_path, "port": 0, "limits.connections_max": 3, "limits.connections_per_address_max": 2})
    with bound_socket(config.host, config.port) as listener:
        port = listener.getsockname()[1]
        async with answering_not_ready(config, listener, RecoveryProgress(), None):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            await asyncio.sleep(0.05)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(PATIENCE_S):
                assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            writer.close()
            held.pop()[1].close()

            async def is_let_in() -> bool:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
                writer.close()
                return answer.startswith(b"HTTP/1.1 200")

            async with asyncio.timeout(PATIENCE_S):
                while True:
                    if await is_let_in():
                        break
                    await asyncio.sleep(0.01)
            held.pop()[1].close()

"""gateway.surfaces.kafka.server: what the kernel holds of what a client does not take."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from gateway.surfaces.kafka import apis
from gateway.surfaces.kafka.server import SEND_BUFFER_BYTES
from loadtest.turns.kafka import fetch
from store.limits import KiB
from tests.gateway.security.test_server import config_of, running
from tests.gateway.surfaces.kafka import wrong
from tests.gateway.surfaces.kafka.asking import asking
from tests.waiting import PATIENCE_S


def _sent_bytes(port: int) -> int:
    """What the kernel has of what was written to the connections of a port, and their clients have not taken."""
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port:
            found += int(fields[4].partition(":")[0], 16)
    return found


async def test_the_kernel_takes_little_of_a_response_ahead_of_its_client(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with running(config_of(tmp_path, **{"kafka.port": port, "auth.enabled": False})):
        async with asking(f"127.0.0.1:{port}") as asker:
            topic = {"name": "large", "num_partitions": 1, "replication_factor": 1}
            await asker.ask(apis.CREATE_TOPICS, 5, {"topics": [topic], "timeout_ms": 10_000})
            await asker.ask(apis.PRODUCE, 9, wrong.produced(wrong.batch(bytes(3_000 * KiB)), "large", 0))
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KiB)
            client.connect(("127.0.0.1", port))
            client.sendall(fetch("large", 1))
            async with asyncio.timeout(PATIENCE_S):
                while not _sent_bytes(port):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert 0 < _sent_bytes(port) <= 2 * SEND_BUFFER_BYTES

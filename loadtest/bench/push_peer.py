"""NATS JetStream's push, in the same run of `push.py` as ours: an ordered push consumer of a stream in files.

The server and the client are those of the scoreboard (`loadtest/peers/nats`). As it pushes message by message through
a client in Python, its rate is that of the client as much as the server's: nats-py is what its users have.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from loadtest.peers.nats import PEERS
from loadtest.peers.peer import Durability

TOOLS = Path(__file__).parents[2] / "artifacts" / "peers"
TIMEOUT_S = 120.0
_BATCH = 1_000


async def nats_push(data: Path, record_count: int, value: bytes, rounds: int) -> tuple[list[float], str]:
    """Records a second in each round, and what it is. Raises Unavailable with the reason."""
    (peer,) = PEERS
    peer.prepare(TOOLS)
    data.mkdir()
    rates = []
    with peer.serve(TOOLS, data, Durability.UNSYNCED) as server:
        async with peer.client(server.endpoint) as client, asyncio.timeout(TIMEOUT_S):
            await client.create("push")
            for _ in range(0, record_count, _BATCH):
                await client.send("push", [value] * _BATCH)
            for _ in range(rounds):
                left, began_s = record_count, time.perf_counter()
                pushed = client.read("push")
                async for values in pushed:
                    left -= len(values)
                    if left <= 0:
                        break
                rates.append(record_count / (time.perf_counter() - began_s))
                await pushed.aclose()
    return rates, peer.about

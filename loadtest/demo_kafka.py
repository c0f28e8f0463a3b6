"""The part of the demo with a Kafka cluster as broker: `make demo KAFKA=1`.

Partitions of the flights move to a real Kafka while flights are sent, a third of them lie there, and the partitions
move back. Kafka is one broker of its own, in KRaft mode, which is fetched once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from rich.console import Console

from loadtest.peers.fetch import TOOLS
from loadtest.peers.kafka import Kafka
from loadtest.peers.peer import Unavailable
from loadtest.peers.servers import Died

BROKER, HOME = "kafka1", "local"
KAFKA_FAILURES = (Died, Unavailable)


@contextmanager
def kafka_beside(console: Console, directory: Path) -> Iterator[tuple[str, ...]]:
    """A Kafka while the block runs; the flags by which a server knows it. Raises KAFKA_FAILURES."""
    peer = Kafka()
    with console.status("fetching and starting Apache Kafka ..."):
        version = peer.prepare(TOOLS)
    directory.mkdir()
    with peer.serve(TOOLS, directory, peer.levels[0]) as served:
        console.print(f"Kafka    {served.endpoint}, Apache Kafka {version}")
        yield "--broker", f"{BROKER}=kafka://{served.endpoint}?replication=1&min_insync=1"


async def move_there_and_back(
    console: Console, session: aiohttp.ClientSession, url: str, topic: str, partitions: int, share: Callable[[], float]
) -> None:
    """Move all partitions to Kafka when a third of the work is done (`share`), and back after two thirds."""
    for at, to in ((1 / 3, BROKER), (2 / 3, HOME)):
        while share() < at:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        begun_s = asyncio.get_running_loop().time()
        for partition in range(partitions):
            path = f"/mq/v1/topics/{topic}/partitions/{partition}/move"
            async with session.post(url + path, json={"to": to}) as response:
                if response.status != 200:
                    raise aiohttp.ClientError(f"moving partition {partition} to {to}: {await response.text()}")
        took_ms = (asyncio.get_running_loop().time() - begun_s) * 1000
        console.print(f"{partitions} partitions moved to {to} in {took_ms:.0f} ms, {share():.0%} was sent by then")


async def records_there(session: aiohttp.ClientSession, url: str, topic: str) -> int:
    """How many records of a topic lie in Kafka. Its partitions have moved on."""
    async with session.get(f"{url}/mq/v1/topics/{topic}/routes") as response:
        routes = await response.json()
    segments = [one for partition in routes["partitions"] for one in partition["segments"]]
    return sum(one["end_offset"] - one["first_offset"] for one in segments if one["broker"] == BROKER)

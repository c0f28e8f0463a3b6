"""Strangers with a right to receive, as many groups and members as they like, over a real server: it stays small, and
answers /healthz meanwhile.

Each was measured on an earlier version: 600 groups in a topic of 1,024 partitions took 1.8 GB and held up /healthz for
2 s; one receive from 97 such topics took 60 s.

    python -m tests.e2e.test_group_storms      all of it at full size, printing what docs/security.md shows
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from tests.e2e.server import Server
from tests.fork_server import EXECUTED

PARTITIONS = 1024
V2 = {"Content-Type": "application/vnd.kafka.v2+json"}
SETTINGS = {
    "MQ_LIMITS_CONNECTIONS_PER_ADDRESS_MAX": "0",
    "MQ_LOG_LEVEL": "warning",
    "MQ_STORE_DISK_FLOOR_BYTES": "0",
}
Work = Callable[[aiohttp.ClientSession, str], Awaitable[Counter[int]]]


class Figures(NamedTuple):
    """What a storm cost the server."""

    took_s: float
    statuses: Counter[int]
    health_ms: float
    grown_bytes: int
    cpu_s: float

    def __str__(self) -> str:
        return (
            f"{self.took_s:.1f} s, answers {dict(self.statuses)}, slowest /healthz {self.health_ms:.0f} ms, "
            f"memory +{self.grown_bytes / 2**20:.0f} MiB, {self.cpu_s:.1f} s of CPU"
        )


@asynccontextmanager
async def serving(data: Path, topic_count: int, partitions: int = PARTITIONS, **more: str) -> AsyncIterator[Server]:
    server = Server(data / "data", {**SETTINGS, **more}, under=EXECUTED)
    await server.start()
    try:
        async with aiohttp.ClientSession() as client:
            for number in range(topic_count):
                url = f"{server.url}/mq/v1/topics/t{number}"
                async with client.put(url, json={"partitions": partitions}) as response:
                    assert response.status == 201, await response.text()
        yield server
    finally:
        await server.end()


async def storm(server: Server, work: Work) -> Figures:
    """Do it, and ask all the time whether the server is there."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=600)
    async with (
        aiohttp.ClientSession() as watcher,
        aiohttp.ClientSession(connector=connector, timeout=timeout) as client,
    ):
        slowest_ms = 0.0

        async def watch() -> None:
            nonlocal slowest_ms
            while True:
                began_s = time.perf_counter()
                async with watcher.get(f"{server.url}/healthz") as response:
                    assert response.status == 200
                slowest_ms = max(slowest_ms, 1000 * (time.perf_counter() - began_s))
                await asyncio.sleep(0.02)

        before_bytes, before_s, began_s = server.rss_bytes(), server.cpu_s(), time.perf_counter()
        watching = asyncio.create_task(watch())
        statuses = await work(client, server.url)
        took_s = time.perf_counter() - began_s
        watching.cancel()
        await asyncio.wait([watching])
        assert watching.cancelled(), watching.exception()
        return Figures(took_s, statuses, slowest_ms, server.rss_bytes() - before_bytes, server.cpu_s() - before_s)


def receives(group_count: int, topic_count: int, at_once: int = 100) -> Work:
    """So many groups ask once for records of so many topics."""

    async def work(client: aiohttp.ClientSession, url: str) -> Counter[int]:
        topics = [f"t{number}" for number in range(topic_count)]
        room = asyncio.Semaphore(at_once)

        async def one(number: int) -> int:
            async with room, client.post(
                f"{url}/mq/v1/groups/g{number}/messages:receive", json={"topics": topics, "wait_ms": 100}
            ) as response:  # fmt: skip
                await response.read()
                return response.status

        return Counter(await asyncio.gather(*(one(number) for number in range(group_count))))

    return work


def instances(count: int, group_count: int) -> Work:
    """So many REST Proxy instances join groups."""

    async def work(client: aiohttp.ClientSession, url: str) -> Counter[int]:
        room = asyncio.Semaphore(200)

        async def one(number: int) -> int:
            base = f"{url}/consumers/g{number % group_count}"
            name = f"i{number}"
            async with room:
                async with client.post(base, data=json.dumps({"name": name}), headers=V2) as response:
                    if response.status != 200:
                        return response.status
                instance = f"{base}/instances/{name}"
                body = json.dumps({"topics": ["t0"]})
                async with client.post(f"{instance}/subscription", data=body, headers=V2) as response:
                    if response.status != 204:
                        return response.status
                accept = {"Accept": "application/vnd.kafka.binary.v2+json"}
                async with client.get(f"{instance}/records?timeout=1", headers=accept) as response:
                    return response.status

        return Counter(await asyncio.gather(*(one(number) for number in range(count))))

    return work


def sockets(count: int, group_count: int, mode: str) -> Work:
    """So many sockets subscribe, and stay until all have; statuses are 200 or the error code of the answer."""

    async def work(client: aiohttp.ClientSession, url: str) -> Counter[int]:
        room = asyncio.Semaphore(200)
        open_ones = []

        async def one(number: int) -> int:
            asked = {"id": 1, "op": "subscribe", "sub": "s", "topics": ["t0"], "mode": mode}
            async with room:
                socket = await client.ws_connect(f"{url}/ws/v1", max_msg_size=0)
                open_ones.append(socket)
                await socket.send_json({**asked, "group": f"g{number % group_count}"})
                while (answer := await socket.receive_json()).get("id") != 1:
                    pass
                return 200 if answer["ok"] else int(answer["error_code"])

        outcomes = Counter(await asyncio.gather(*(one(number) for number in range(count))))
        await asyncio.gather(*(socket.close() for socket in open_ones))
        return outcomes

    return work


MiB = 2**20


@pytest.mark.embedded("its 4,096 partitions take minutes to be made on a Kafka of one small process")
async def test_many_groups_in_many_partitions_take_little(tmp_path: Path) -> None:
    async with serving(tmp_path, 4) as server:
        figures = await storm(server, receives(40, 4))
    assert figures.statuses == {200: 40}
    assert figures.grown_bytes < 30 * MiB, str(figures)  # 40 x 4,096 lease objects took 500
    assert figures.health_ms < 400, str(figures)


async def test_members_that_come_all_at_once_are_let_in_up_to_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, 1, 8) as server:
        limit = {"members_max": 150}
        async with aiohttp.ClientSession() as client, client.patch(f"{server.url}/mq/v1/groups/g0", json=limit) as made:
            assert made.status == 200
        over_http = await storm(server, instances(200, 1))
        assert over_http.statuses == {200: 150, 429: 50}, str(over_http)
        queue = await storm(server, sockets(200, 5, "queue"))
        streams = await storm(server, sockets(200, 10, "stream"))
    assert queue.statuses[200] >= 160, str(queue)
    assert streams.statuses[200] >= 180, str(streams)
    for figures in (over_http, queue, streams):
        assert figures.took_s < 20, str(figures)
        assert figures.health_ms < 1_000, str(figures)


async def measure() -> None:
    """All at full size."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if len(sys.argv) < 2 else sys.argv[1]) as directory:
        storms = [
            ("receive: 1 group, 97 topics x 1,024 partitions", receives(1, 97)),
            ("receive: 100 groups, 97 topics x 1,024", receives(100, 97)),
            ("receive: 600 groups, 1 topic x 1,024", receives(600, 1, 600)),
            ("receive: 10,000 groups, 1 topic x 1,024", receives(10_000, 1, 600)),
        ]
        for name, work in storms:
            data = Path(directory) / name[:30].replace(" ", "_").replace(",", "").replace(":", "")
            data.mkdir()
            async with serving(data, 97) as server:
                print(f"{name}: {await storm(server, work)}; after {server.rss_bytes() // MiB} MiB", flush=True)
        for name, work in (
            ("10,000 instances, 1 group", instances(10_000, 1)),
            ("10,000 instances, 100 groups", instances(10_000, 100)),
            ("8,000 sockets, stream mode, 1 group", sockets(8_000, 1, "stream")),
            ("8,000 sockets, stream mode, 100 groups", sockets(8_000, 100, "stream")),
            ("8,000 sockets, queue mode, 1 group", sockets(8_000, 1, "queue")),
            ("8,000 sockets, queue mode, 1,000 groups", sockets(8_000, 1_000, "queue")),
        ):
            data = Path(directory) / name.replace(" ", "_").replace(",", "")
            data.mkdir()
            async with serving(data, 1, 8) as server:
                print(f"{name}: {await storm(server, work)}; after {server.rss_bytes() // MiB} MiB", flush=True)


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(measure())

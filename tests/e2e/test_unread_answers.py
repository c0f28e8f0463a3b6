"""Clients that ask for as much as they may and read nothing, of every kind, beside one that reads: the server stays
small, serves the reader, answers /healthz, ends the others, and gives the memory back.

Before: 40 unread fetches of 64 MiB took 8.4 GB, and the process kept a gigabyte.
"""

from __future__ import annotations

import asyncio
import socket
import time
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
import pytest

from store import record_batch
from store.limits import MiB
from store.record_batch import Record
from tests.e2e.server import Server
from tests.fork_server import EXECUTED
from tests.waiting import PATIENCE_S

RSS_BYTES_MAX = 512 * MiB
KEPT_BYTES_MAX = 50 * MiB
PARTITIONS = 2  # records of 100 bytes in batches of 1,000; records of 9 KB in batches of 7 MB
BYTES_MAX = 64 * MiB

_KAFKA = "application/vnd.kafka.{}.v2+json"
_RECORDS = f"/topics/orders/partitions/%d/records?max_bytes={BYTES_MAX}"
_KINDS: list[tuple[str, str]] = [
    (_RECORDS % 0, _KAFKA.format("json")),
    (_RECORDS % 1, _KAFKA.format("json")),
    (_RECORDS % 0, _KAFKA.format("binary")),
    (_RECORDS % 0, "application/vnd.mq.batch"),
    (_RECORDS % 1, "application/vnd.mq.batch"),
    (_RECORDS % 0, "application/x-ndjson"),
    (_RECORDS % 1, "application/x-ndjson"),
    (_RECORDS % 0 + "&filter=*", _KAFKA.format("json")),
    ("/mq/v1/topics/orders/sse?from=earliest", "text/event-stream"),
    ("/mq/v1/topics/orders/sse?from=earliest", "application/x-ndjson"),
    ("INSTANCE", _KAFKA.format("json")),
    ("RECEIVE", "application/json"),
    ("SOCKET", ""),
]


@dataclass
class Seen:
    """What was measured."""

    start_bytes: int = 0
    peak_bytes: int = 0
    end_bytes: int = 0
    health_s: list[float] = field(default_factory=list)
    read_count: int = 0


async def fill(client: aiohttp.ClientSession, url: str) -> None:
    async with client.put(f"{url}/mq/v1/topics/orders", json={"partitions": PARTITIONS}) as response:
        assert response.status == 201
    small = record_batch.encode([Record(None, b'"%b"' % (b"x" * 90), 7)] * 1_000)
    large = record_batch.encode([Record(None, b'"%b"' % (b"x" * 9_000), 7)] * 800)
    for partition, batches in enumerate(([small] * 75, [large])):
        for _ in range(9):
            async with client.post(
                f"{url}/topics/orders/partitions/{partition}",
                data=b"".join(batches),
                headers={"Content-Type": "application/vnd.mq.batch"},
            ) as response:
                assert response.status == 200, await response.text()


async def unread(client: aiohttp.ClientSession, url: str, numbers: range) -> list[socket.socket]:
    """Requests whose answers nobody reads, each with a number of its own."""
    held = []
    for number in numbers:
        path, accept = _KINDS[number % len(_KINDS)]
        method, more, body = "GET", "", b""
        if path == "INSTANCE":
            settings = {"name": f"i{number}", "format": "json", "auto.offset.reset": "earliest"}
            place = f"/consumers/g{number}/instances/i{number}"
            async with client.post(f"{url}/consumers/g{number}", json=settings) as response:
                assert response.status == 200, await response.text()
            async with client.post(f"{url}{place}/subscription", json={"topics": ["orders"]}) as response:
                assert response.status == 204
            path = f"{place}/records?max_bytes={BYTES_MAX}"
        elif path == "RECEIVE":
            method, path = "POST", f"/mq/v1/groups/q{number}/messages:receive"
            body = orjson.dumps(
                {"topics": ["orders"], "start": "earliest", "max_messages": 1_000, "max_bytes": BYTES_MAX}
            )
        elif path == "SOCKET":
            path = "/ws/v1/consume?topic=orders&from=earliest"
            more = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            more += f"Sec-WebSocket-Key: {b64encode(bytes(16)).decode()}\r\n"
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        one.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n{more}Content-Length: {len(body)}\r\n"
        )
        one.sendall(head.replace("Content-Length: 0\r\n", "").encode() + b"\r\n" + body)
        one.setblocking(False)
        held.append(one)
        await asyncio.sleep(0)
    return held


async def metric(server: Server, name: str) -> float:
    """From another address, as of a scraper: what one caller leaves unread takes half of the room, so it has some."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))) as client,
        client.get(f"{server.url}/metrics") as response,
    ):
        text = await response.text()
        assert response.status == 200, text
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


async def watch(server: Server, seen: Seen) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as client:
        while True:
            begun_s = time.perf_counter()
            async with client.get(f"{server.url}/healthz") as response:
                assert response.status == 200
            seen.health_s.append(time.perf_counter() - begun_s)
            seen.peak_bytes = max(seen.peak_bytes, server.rss_bytes())
            await asyncio.sleep(0.02)


async def read_all(server: Server, seen: Seen) -> None:
    """A client that reads, as its answers say where to go on."""
    async with aiohttp.ClientSession() as client:
        offset = 0
        while offset < 75_000:
            path = f"{server.url}{_RECORDS % 0}&offset={offset}&end_offset=75000"
            async with client.get(path, headers={"Accept": _KAFKA.format("json")}) as response:
                assert response.status == 200, await response.text()
                next_offset = int(response.headers["Mq-Next-Offset"])
                records = orjson.loads(await response.read())
            assert [record["offset"] for record in records] == list(range(offset, next_offset))
            offset = next_offset
            seen.read_count += len(records)


@pytest.mark.parametrize(
    ("count", "timeout_ms"),
    [pytest.param(52, 2_000, marks=pytest.mark.matrix), pytest.param(208, 10_000, marks=pytest.mark.long)],
)
async def test_answers_that_nobody_reads(tmp_path: Path, count: int, timeout_ms: int) -> None:
    server = Server(tmp_path / "data", {"MQ_WS_WRITE_TIMEOUT_MS": str(timeout_ms)}, under=EXECUTED)
    await server.start()
    seen, answering_bytes, closed = Seen(), -1.0, 0.0
    try:
        async with aiohttp.ClientSession() as client:
            await fill(client, server.url)
            for one in await unread(
                client, server.url, range(count, count + len(_KINDS))
            ):  # what is cached, and made once
                one.close()
            await asyncio.sleep(6)
            seen.start_bytes = server.rss_bytes()
            watching = asyncio.create_task(watch(server, seen))
            held = await unread(client, server.url, range(count))
            await read_all(server, seen)
            # All of them are still there. Those that were not closed were refused, as one caller has half of the room,
            # or have all of their answer in the kernel's buffers: how many is the kernel's affair.
            until_s = time.monotonic() + PATIENCE_S
            while (waiting := await metric(server, "mq_answering_bytes")) or not (
                closed := await metric(server, "mq_slow_connections_closed_total")
            ):
                assert time.monotonic() < until_s, f"{waiting:.0f} bytes wait for clients that read nothing"
                await asyncio.sleep(0.2)
            for one in held:
                one.close()
            watching.cancel()
            until_s = time.monotonic() + 60  # of quiet: five requests for metrics a second were none
            while time.monotonic() < until_s:
                seen.end_bytes = server.rss_bytes()
                if seen.end_bytes < seen.start_bytes + KEPT_BYTES_MAX:
                    break
                await asyncio.sleep(0.2)
            answering_bytes = await metric(server, "mq_answering_bytes")
    finally:
        await server.end()
    figures = (
        f"start {seen.start_bytes / MiB:.0f} peak {seen.peak_bytes / MiB:.0f} end {seen.end_bytes / MiB:.0f} MiB, "
        f"health max {max(seen.health_s):.2f} s of {len(seen.health_s)}, {closed:.0f} of {count} closed"
    )
    print(figures)
    assert seen.peak_bytes < RSS_BYTES_MAX, figures
    assert seen.end_bytes < seen.start_bytes + KEPT_BYTES_MAX, figures
    assert seen.read_count == 75_000
    assert max(seen.health_s) < 2, figures
    assert answering_bytes == 0

"""Streams of a real server over kill -9: a browser that reconnects loses nothing and sees nothing twice; a streamed
send that is repeated with its key stores nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import orjson

from tests.e2e.server import SMALL_FILES, Server
from tests.waiting import PATIENCE_S

RECORD_COUNT = 3000
KILL_COUNT = 3
LINES = {"Content-Type": "application/x-ndjson"}


async def test_sse_resumes_exactly_over_kill_9(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", SMALL_FILES)
    seen: list[int] = []
    last_id = ""
    try:
        await server.start()
        async with aiohttp.ClientSession() as session:
            await session.put(f"{server.url}/mq/v1/topics/orders", json={"partitions": 3})
            body = b"".join(b'{"value":%d,"key":"k%d"}\n' % (number, number % 7) for number in range(RECORD_COUNT))
            async with session.post(
                f"{server.url}/mq/v1/topics/orders/messages:batch", data=body, headers=LINES
            ) as sent:
                assert len((await sent.read()).splitlines()) == RECORD_COUNT
        for kill in range(KILL_COUNT + 1):
            stop_at = RECORD_COUNT if kill == KILL_COUNT else (kill + 1) * RECORD_COUNT // (KILL_COUNT + 1)
            async with aiohttp.ClientSession() as session:
                headers = {"Last-Event-ID": last_id} if last_id else {}
                url = f"{server.url}/mq/v1/topics/orders/sse?from=earliest"
                async with session.get(url, headers=headers) as response:
                    assert response.status == 200, await response.text()
                    pending_id = last_id
                    while len(seen) < stop_at:
                        line = (await asyncio.wait_for(response.content.readline(), PATIENCE_S)).decode().rstrip("\n")
                        if line.startswith("id: "):
                            pending_id = line[4:]
                        elif line.startswith("data: ") and '"value"' in line:
                            seen.append(orjson.loads(line[6:])["value"])
                        elif not line:
                            last_id = pending_id  # as browsers do: an id counts once its event is complete
                    if kill < KILL_COUNT:
                        last_id = pending_id
                        await server.kill()
            if kill < KILL_COUNT:
                await server.start()
        assert sorted(seen) == list(range(RECORD_COUNT))
    finally:
        await server.end()


async def test_a_streamed_send_is_repeated_over_kill_9_without_duplicates(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", SMALL_FILES)
    body = b"".join(b'{"value":%d}\n' % number for number in range(RECORD_COUNT))
    headers = {**LINES, "Idempotency-Key": '"all of them"'}

    async def send(upto: int | None = None) -> int:
        """Send everything; give up behind `upto` receipts. The number of receipts."""
        count = 0
        async with aiohttp.ClientSession() as session:
            url = f"{server.url}/mq/v1/topics/orders/messages:batch"
            async with session.post(url, data=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                async for line in response.content:
                    assert "error_code" not in orjson.loads(line)
                    count += 1
                    if upto is not None and count >= upto:
                        await server.kill()
                        break
        return count

    try:
        await server.start()
        async with aiohttp.ClientSession() as session:
            await session.put(f"{server.url}/mq/v1/topics/orders", json={"partitions": 3})
        for upto in (1, RECORD_COUNT // 3):
            await send(upto)
            await server.start()
        assert await send() == RECORD_COUNT
        values: list[int] = []
        async with aiohttp.ClientSession() as session:
            for partition in range(3):
                url = f"{server.url}/topics/orders/partitions/{partition}/records"
                async with session.get(url, headers={"Accept": "application/x-ndjson"}) as response:
                    values += [orjson.loads(line)["value"] async for line in response.content]
        assert sorted(values) == list(range(RECORD_COUNT))
    finally:
        await server.end()

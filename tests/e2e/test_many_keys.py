"""A million record keys, and a million schedule keys, on a server at default settings: memory, answers, a restart, and
all of them cancelled by one request. Ids of sends and of requests by the million: tests/store/dedup/test_ids.py.
MQ_KEYS: how many."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import orjson
import pytest

from loadtest.attack.watch import memory
from store.limits import MiB
from tests.e2e.server import Server
from tests.fork_server import EXECUTED

MILLION = int(os.environ.get("MQ_KEYS", "1000000"))
A_REQUEST = 5_000
AT_A_TIME = 4
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
DELAY_MS = 4 * 3_600_000
ANSWERED_S = 240
"""By when one request that cancels a million has its answer, whatever else runs on the machine. What it took is
printed."""

GROWTH_BYTES_MAX = 128 * MiB
KEY_TAKEN = 40954


@pytest.mark.long
async def test_a_million_keys_of_records_and_of_schedules(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", {"MQ_KAFKA_ENABLED": "false"}, under=EXECUTED)
    await server.start()
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWERED_S)) as http:
            for topic in ("records", "schedules"):
                async with http.put(f"{server.url}/mq/v1/topics/{topic}", json={"partitions": 4}) as answer:
                    assert answer.status == 201
            await _send(server, http, "records", lambda number: {"key": f"k{number}", "value": 1})  # what else may grow
            before = memory(server.pid).rss_bytes
            await _send(server, http, "records", lambda number: {"key": f"other-{number}", "value": 1})
            assert memory(server.pid).rss_bytes < before + GROWTH_BYTES_MAX, "nothing is kept of record keys"
            await _send(server, http, "schedules", _scheduled)
            assert memory(server.pid).rss_bytes < before + GROWTH_BYTES_MAX, "schedule keys are on disk"
            assert await _sent_again(server, http, 0, MILLION // 2, MILLION - 1) == [KEY_TAKEN] * 3
            assert await server.stop() == 0
            await server.start()
            assert await _sent_again(server, http, 0, MILLION // 2, MILLION - 1) == [KEY_TAKEN] * 3
            began_s = time.monotonic()
            async with http.delete(f"{server.url}/mq/v1/schedules?topic=schedules") as answer:
                assert (answer.status, await answer.json()) == (200, {"cancelled": MILLION})
            print(f"{MILLION} schedules cancelled in {time.monotonic() - began_s:.0f} s")
            assert await _sent_again(server, http, 0, MILLION // 2, MILLION - 1) == [None] * 3, "their keys are free"
            assert memory(server.pid).rss_bytes < before + 2 * GROWTH_BYTES_MAX
    finally:
        await server.stop()


def _scheduled(number: int) -> dict[str, object]:
    return {"value": 1, "delay_ms": DELAY_MS + number, "schedule_key": f"k{number}"}


async def _send(
    server: Server, http: aiohttp.ClientSession, topic: str, record: Callable[[int], dict[str, object]]
) -> None:
    firsts = iter(range(0, MILLION, A_REQUEST))

    async def some() -> None:
        for first in firsts:
            body = orjson.dumps({"records": [record(number) for number in range(first, first + A_REQUEST)]})
            async with http.post(f"{server.url}/topics/{topic}", data=body, headers=JSON) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()

    await asyncio.gather(*(some() for _ in range(AT_A_TIME)))


async def _sent_again(server: Server, http: aiohttp.ClientSession, *numbers: int) -> list[int | None]:
    """The error code of each of these keys, sent alone."""
    codes: list[int | None] = []
    for number in numbers:
        body = orjson.dumps({"records": [_scheduled(number)]})
        async with http.post(f"{server.url}/topics/schedules", data=body, headers=JSON) as answer:
            told = await answer.json(content_type=None)
            codes.append(told["offsets"][0]["error_code"] if answer.status == 200 else told["error_code"])
    return codes

"""kill -9 of a real server whose recurring schedules fire all the time: each due time has one record, none is early.

MQ_RECURRING_KILLS=60 makes it a long run.
"""

from __future__ import annotations

import asyncio
import os
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.server import SMALL_FILES, Server

KILLS = int(os.environ.get("MQ_RECURRING_KILLS", "4"))
SEED = int(os.environ.get("MQ_TORTURE_SEED", str(random.randrange(2**32))))
NAMES = [f"all-{number:02}" for number in range(20)] + ["once", "cron"]
JSON_V2 = {"Accept": "application/vnd.kafka.json.v2+json"}


async def test_each_due_time_has_one_record_whatever_is_killed(tmp_path: Path) -> None:
    print(f"seed {SEED}: repeat with MQ_TORTURE_SEED={SEED}")
    rng = random.Random(SEED)
    server = Server(tmp_path / "data", SMALL_FILES)
    await server.start()
    async with aiohttp.ClientSession() as session:
        assert (await session.put(f"{server.url}/mq/v1/topics/orders", json={"partitions": 3})).status == 201
        made = {}
        for name in NAMES:
            rule = {"cron": "* * * * *"} if name == "cron" else {"every_ms": 1_000}
            body = {"topic": "orders", "record": {"key": name, "value": name}, **rule}
            body["missed"] = "all" if name.startswith("all") else "once"
            async with session.put(f"{server.url}/mq/v1/recurring/{name}", json=body) as answer:
                assert answer.status == 201, await answer.text()
                made[name] = (await answer.json())["next_at"]
        for _ in range(KILLS):
            await asyncio.sleep(rng.uniform(0.3, 1.7))
            await server.kill()
            await server.start()
        await asyncio.sleep(1.2)
        for name in NAMES:
            async with session.post(f"{server.url}/mq/v1/recurring/{name}:pause") as answer:
                assert answer.status == 200
        shown = {}
        for name in NAMES:  # paused: nothing fires, and what has fired is delivered
            async with asyncio.timeout(10):
                while True:
                    row = await (await session.get(f"{server.url}/mq/v1/recurring/{name}")).json()
                    found = [record for record in await _records(session, server) if record["value"] == name]
                    if len(found) == row["delivered_count"]:
                        break
            shown[name] = row, found
    await server.end()
    for name, (row, found) in shown.items():
        dues_ms = [record["deliver_at"] for record in found]
        assert len(set(dues_ms)) == len(dues_ms), f"{name}: twice"
        assert dues_ms == sorted(dues_ms), name
        assert all(record["store_timestamp"] >= record["deliver_at"] for record in found), f"{name}: early"
        if name.startswith("all"):
            assert dues_ms[0] == made[name]
            assert all(later - sooner == 1_000 for sooner, later in pairwise(dues_ms)), f"{name}: lost"
            assert dues_ms[-1] == row["last_at"]
            assert row["missed_count"] == 0
            assert len(dues_ms) >= KILLS
        if name == "once":
            assert row["delivered_count"] + row["missed_count"] == (row["last_at"] - made[name]) // 1_000 + 1


async def _records(session: aiohttp.ClientSession, server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for partition in range(3):
        path = f"{server.url}/topics/orders/partitions/{partition}/records?offset=0&max_bytes=10000000"
        async with session.get(path, headers=JSON_V2) as answer:
            assert answer.status == 200, await answer.text()
            found += await answer.json(content_type=None)
    return found

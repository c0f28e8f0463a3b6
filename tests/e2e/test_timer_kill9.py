"""kill -9 of a real server full of delayed records, again and again: each comes once, none early, no cancelled one.

First it is filled, while it is being killed, and some fire all the time; then the rest becomes due, while it is being
killed. MQ_TIMER_PENDING=1000000 makes it a long run.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import orjson
import pytest

from tests.e2e.server import SMALL_FILES, Server
from tests.waiting import PATIENCE_S

PENDING = int(os.environ.get("MQ_TIMER_PENDING", "12000"))
SEED = int(os.environ.get("MQ_TORTURE_SEED", str(random.randrange(2**32))))
SENDERS = 4
BATCH = 500
PARTITIONS = 3
FILL_MS = PENDING * 3 // 10  # then most of what was sent becomes due,
SPREAD_MS = max(3_000, PENDING // 5)  # over this time
SOON_SHARE = 0.05
JSON_V2 = "application/vnd.kafka.json.v2+json"
BATCHES = {"Content-Type": JSON_V2}
SETTINGS = {
    **SMALL_FILES,
    "MQ_STORE_COMMIT_LOG_FILE_BYTES": str(32 * 1024 * 1024),
    "MQ_TIMER_ROLL_WINDOW_MS": str(max(3000, (FILL_MS + SPREAD_MS) // 2)),  # most roll at least once
    "MQ_TIMER_CHECKPOINT_INTERVAL_MS": "200",
}


class Run:
    """A server, what it was sent, and what it said about that."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.rng = random.Random(SEED)
        self.due_ms: dict[int, int] = {}
        self.accepted: set[int] = set()
        self.ids: dict[int, str] = {}  # of accepted ones, but for those that were due when they arrived
        self.cancelled: set[int] = set()
        self.maybe_cancelled: set[int] = set()
        self.full_ms = _now_ms() + FILL_MS
        self.most_pending_count = 0
        print(f"seed {SEED}: repeat with MQ_TORTURE_SEED={SEED}")

    async def send_for_ever(self) -> None:
        """Send until enough are accepted; what had no answer is not known to be."""
        while len(self.accepted) < PENDING:
            now_ms = _now_ms()
            numbers = range(len(self.due_ms), len(self.due_ms) + BATCH)
            records = []
            for number in numbers:
                if self.rng.random() < SOON_SHARE:
                    due_ms = now_ms + self.rng.randrange(500, 5_000)
                else:
                    due_ms = max(now_ms + 500, self.full_ms) + self.rng.randrange(SPREAD_MS)
                self.due_ms[number] = due_ms
                records.append({"value": number, "partition": number % PARTITIONS, "deliver_at": due_ms})
            try:
                url = f"{self.server.url}/topics/later"
                async with self.session.post(url, data=orjson.dumps({"records": records}), headers=BATCHES) as answer:
                    assert answer.status == 200, await answer.text()
                    offsets = orjson.loads(await answer.read())["offsets"]
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.05)  # the server is down
                continue
            self.accepted.update(numbers)
            request_indexes = zip(numbers, offsets, strict=True)
            self.ids.update(
                (number, place["schedule_id"]) for number, place in request_indexes if "schedule_id" in place
            )

    async def cancel_for_ever(self) -> None:
        """Cancel some now and then, until cancelled."""
        while True:
            await asyncio.sleep(0.02)
            if not self.ids:
                continue
            number = self.rng.choice(list(self.ids))
            self.maybe_cancelled.add(number)
            try:
                async with self.session.delete(f"{self.server.url}/mq/v1/schedules/{self.ids[number]}") as answer:
                    assert answer.status in (204, 404, 409), await answer.text()
                    if answer.status == 204:
                        self.cancelled.add(number)
                    elif answer.status == 409 and number not in self.cancelled:
                        self.maybe_cancelled.discard(number)
            except (aiohttp.ClientError, OSError):
                continue

    async def pending_count(self) -> int:
        async with self.session.get(f"{self.server.url}/mq/v1/schedules?limit=1") as answer:
            total = (await answer.json())["total"]
        assert isinstance(total, int)
        self.most_pending_count = max(self.most_pending_count, total)
        return total

    async def delivered(self) -> list[tuple[int, int]]:
        """Value and store time of every record in the topic."""
        found: list[tuple[int, int]] = []
        for partition in range(PARTITIONS):
            offset = "0"
            while True:
                url = f"{self.server.url}/topics/later/partitions/{partition}/records?offset={offset}"
                async with self.session.get(url, headers={"Accept": JSON_V2}) as answer:
                    records = orjson.loads(await answer.read())
                    offset = answer.headers["Mq-Next-Offset"]
                if not records:
                    break
                found += [(record["value"], record["store_timestamp"]) for record in records]
        return found


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    server = Server(tmp_path / "data", SETTINGS)
    await server.start()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=180)) as session:
        async with session.put(f"{server.url}/mq/v1/topics/later", json={"partitions": PARTITIONS}) as answer:
            assert answer.status == 201
        yield Run(server, session)
    await server.end()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_each_delayed_record_is_delivered_once_over_kill_9(run: Run) -> None:
    tasks = [asyncio.create_task(run.send_for_ever()) for _ in range(SENDERS)]
    cancelling = asyncio.create_task(run.cancel_for_ever())
    sending = asyncio.gather(*tasks)
    started_s = time.monotonic()
    killed_count = 0
    while not sending.done() or _now_ms() < run.full_ms + SPREAD_MS + 1000 or len(run.cancelled) < 5:
        await asyncio.sleep(run.rng.uniform(0.3, 1.2 + PENDING / 100_000))
        await run.pending_count()
        await run.server.kill()
        killed_count += 1
        await run.server.start()
    await sending
    cancelling.cancel()
    await asyncio.wait([cancelling])
    async with asyncio.timeout(PATIENCE_S + PENDING / 1_000):
        while await run.pending_count():  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.2)
    delivered = await run.delivered()
    values = [value for value, _ in delivered]
    assert len(values) == len(set(values)), "delivered twice"
    assert not [value for value, stored_ms in delivered if stored_ms < run.due_ms[value]], "delivered early"
    assert not run.cancelled & set(values), "delivered though cancelled"
    lost = run.accepted - set(values) - run.cancelled
    assert lost <= run.maybe_cancelled, "lost"
    print(
        f"{killed_count} kills in {time.monotonic() - started_s:.0f} s: {len(run.accepted)} accepted, "
        f"up to {run.most_pending_count} pending, "
        f"{len(run.cancelled)} cancelled, {len(values)} delivered; 0 lost, 0 early, 0 twice"
    )
    assert await run.server.stop() == 0

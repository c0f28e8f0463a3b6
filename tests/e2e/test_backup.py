"""`mq backup` of a server under load that is killed meanwhile; `mq restore`; and what had been acknowledged before."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.server import REPOSITORY, SMALL_FILES, Server
from tests.waiting import until

PARTITIONS = 3
PRODUCERS = 4
SETTINGS = {**SMALL_FILES, "MQ_AUTH_ENABLED": "false"}
HOUR_MS = 3_600_000

Stored = dict[tuple[int, int], str]


class Load:
    """Clients of a server, and what it has acknowledged to them."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.acknowledged: Stored = {}
        self.pending: set[str] = set()  # values of delayed records
        self.settled = 0
        self._sent = 0

    async def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        async with self.session.request(method, self.server.url + path, json=body) as answer:
            assert answer.status < 300, await answer.text()
            found: dict[str, object] = await answer.json()
            return found

    async def produce_for_ever(self) -> None:
        while True:
            values = [f"{self._sent + number}:{'x' * random.randrange(3000)}" for number in range(8)]
            self._sent += len(values)
            body = {"records": [{"value": value} for value in values]}
            if delayed := self._sent % 40 == 0:
                body["records"][-1]["delay_ms"] = HOUR_MS  # type: ignore[assignment]
            headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
            url = f"{self.server.url}/topics/orders"
            async with self.session.post(url, json=body, headers=headers) as answer:
                assert answer.status == 200
                receipts = (await answer.json())["offsets"]
            if delayed:
                self.pending.add(values.pop())
            for value, receipt in zip(values, receipts, strict=False):
                self.acknowledged[receipt["partition"], receipt["offset"]] = value

    async def consume_for_ever(self) -> None:
        while True:
            asked = {"topics": ["orders"], "start": "earliest", "max_messages": 20, "wait_ms": 1000}
            answer = await self.ask("POST", "/mq/v1/groups/mailers/messages:receive", asked)
            receipts = [message["receipt"] for message in answer["messages"]]  # type: ignore[attr-defined]
            if receipts:
                await self.ask("POST", "/mq/v1/groups/mailers/messages:ack", {"receipts": receipts})
                self.settled += len(receipts)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def mq(*arguments: str | Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *map(str, arguments),
        cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def done(*arguments: str | Path) -> str:
    process = await mq(*arguments)
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def everything(server: Server, session: aiohttp.ClientSession) -> Stored:
    """All records of the topic, read to the end."""
    found: Stored = {}
    for partition in range(PARTITIONS):
        offset = 0
        while True:
            path = f"/topics/orders/partitions/{partition}/records?offset={offset}&max_bytes=4000000"
            headers = {"Accept": "application/vnd.kafka.json.v2+json"}
            async with session.get(server.url + path, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                records = await answer.json()
            if not records:
                break
            for record in records:
                found[partition, record["offset"]] = record["value"]
            offset = records[-1]["offset"] + 1
    return found


@pytest.mark.embedded("copies files of the node's own log")
async def test_a_backup_under_load_has_what_was_acknowledged_before_it_began_and_restores(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    data, copy, restored = tmp_path / "data", tmp_path / "copy", tmp_path / "restored"
    server = Server(data, SETTINGS)
    again = Server(restored, SETTINGS)
    try:
        await server.start()
        load = Load(server, session)
        await load.ask("PUT", "/mq/v1/topics/orders", {"partitions": PARTITIONS})
        clients = [asyncio.create_task(load.produce_for_ever()) for _ in range(PRODUCERS)]
        clients.append(asyncio.create_task(load.consume_for_ever()))
        first = tmp_path / "first"
        # The next one links files of the log that the first has in full; the newest is made before it is needed.
        await until(lambda: len(list((data / "commitlog").iterdir())) > 2, pause_s=0.05)
        await done("backup", data, first)
        await asyncio.sleep(1)
        acknowledged, pending, settled = dict(load.acknowledged), set(load.pending), load.settled
        at = server.url
        backing_up = asyncio.create_task(done("backup", data, copy, "--link-from", first, "--no-verify"))
        await asyncio.sleep(random.random() / 2)
        await server.kill()
        said = await backing_up
        await asyncio.gather(*clients, return_exceptions=True)
        assert f"{copy}: has everything acknowledged before" in said
        assert " 0 of them linked" not in said
        assert len(acknowledged) > 100
        assert pending
        assert settled

        await done("restore", copy, restored)
        assert oct(restored.stat().st_mode & 0o777) == "0o700"
        await again.start()
        assert at != again.url
        load.server = again
        found = await everything(again, session)
        assert {receipt: found.get(receipt) for receipt in acknowledged} == acknowledged
        schedules = await load.ask("GET", "/mq/v1/schedules?topic=orders&limit=1000")
        assert len(schedules["schedules"]) >= len(pending)  # type: ignore[arg-type]
        lag = await load.ask("GET", "/mq/v1/groups/mailers/lag")
        assert lag["total_lag"] <= len(found) - settled  # what was settled stays settled
        assert again.log().count("Traceback") == 0
    finally:
        await server.end()
        await again.end()


async def test_a_backup_that_is_killed_leaves_none_and_says_so(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    server = Server(data, SETTINGS)
    await server.start()
    try:
        load = Load(server, session)
        await load.ask("PUT", "/mq/v1/topics/orders", {"partitions": PARTITIONS})
        process = await mq("backup", data, copy)
        partial = tmp_path / "copy.partial"
        await until(partial.exists)
        os.kill(process.pid, signal.SIGSTOP)
        was_done = copy.exists()
        process.kill()
        await process.wait()
        assert copy.exists() == was_done
        if not was_done:
            assert partial.exists()
            refused = await mq("backup", data, copy)
            _, errors = await refused.communicate()
            assert refused.returncode == 2
            assert b"copy.partial is in the way" in errors
    finally:
        await server.end()

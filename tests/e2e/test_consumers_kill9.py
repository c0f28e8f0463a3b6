"""Consumer instances while the server is killed: no record is lost, what is committed does not come again.

Three instances of one group poll and commit; one of them is deleted and made again; records are sent all the while.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.server import SMALL_FILES, Server
from tests.waiting import PATIENCE_S, until

KILLS = 2
BETWEEN_KILLS_S = 1.5
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
GONE = (aiohttp.ClientError, ConnectionError, asyncio.TimeoutError)


class Session:
    """One client of the server, wherever it is now."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self._server = server
        self._http = http

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, object]:
        """Status and answer; 0 when there was no server."""
        try:
            async with self._http.request(method, self._server.url + path, json=body, headers=JSON) as response:
                content = await response.read()
                return response.status, await response.json(content_type=None) if content else None
        except GONE:
            await asyncio.sleep(0.05)
            return 0, None


class Consumer:
    """An instance, and what its client got."""

    def __init__(self, session: Session, name: str, committed: set[int]) -> None:
        """`committed` is the group's: what any of its clients committed must not come to any of them again."""
        self._session = session
        self._name = name
        self._committed = committed
        self.got: list[int] = []
        self.came_again: set[int] = set()
        self.is_done = False

    async def run(self, *, ends_after: int | None = None) -> None:
        place = f"/consumers/g/instances/{self._name}"
        await self._until((200, 409), "POST", "/consumers/g", {
            "name": self._name, "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false",
        })  # fmt: skip
        await self._until((204,), "POST", f"{place}/subscription", {"topics": ["orders"]})
        while not self.is_done and (ends_after is None or len(self.got) < ends_after):
            status, records = await self._session.call("GET", f"{place}/records?timeout=200")
            if status == 0:
                continue
            assert status == 200, records
            assert isinstance(records, list)
            values = [record["value"] for record in records]
            self.came_again.update(self._committed.intersection(values))
            self.got += values
            if values:
                status, answer = await self._session.call("POST", f"{place}/offsets")
                assert status in (0, 200, 409), answer  # 409: a partition has gone to another meanwhile
                if status == 200:
                    self._committed.update(values)
        await self._until((204, 404), "DELETE", place)

    async def _until(self, wanted: tuple[int, ...], method: str, path: str, body: object = None) -> None:
        while True:
            status, answer = await self._session.call(method, path, body)
            if status in wanted:
                return
            assert status == 0, answer


async def send(session: Session, sent: set[int], stopping: asyncio.Event) -> None:
    """Records one behind the other; `sent` has those that were acknowledged."""
    for number in itertools.count():
        if stopping.is_set():
            return
        records = {"records": [{"key": number % 7, "value": number}]}
        status, _ = await session.call("POST", "/topics/orders", records)
        if status == 200:
            sent.add(number)
        await asyncio.sleep(0.002)


async def until_all(sent: set[int], consumers: list[Consumer]) -> None:
    while True:
        missing = sent.difference(*(consumer.got for consumer in consumers))
        if not missing:
            return
        await asyncio.sleep(0.1)


async def test_nothing_is_lost_and_what_is_committed_does_not_come_again(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", SMALL_FILES)
    await server.start()
    sent: set[int] = set()
    stopping = asyncio.Event()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        session = Session(server, http)
        try:
            assert (await session.call("PUT", "/mq/v1/topics/orders", {"partitions": 4}))[0] == 201
            committed: set[int] = set()
            consumers = [Consumer(session, f"c{number}", committed) for number in range(4)]
            async with asyncio.TaskGroup() as tasks:
                sender = tasks.create_task(send(session, sent, stopping))
                for number in range(3):
                    tasks.create_task(consumers[number].run(ends_after=100 if number == 2 else None))
                for round_ in range(KILLS):
                    await asyncio.sleep(BETWEEN_KILLS_S)
                    await server.kill()
                    await server.start()
                    if round_ == 0:
                        tasks.create_task(consumers[3].run())
                await asyncio.sleep(BETWEEN_KILLS_S)
                await until(lambda: len(sent) > 100, pause_s=0.05)
                stopping.set()
                await sender
                try:
                    await asyncio.wait_for(until_all(sent, consumers), PATIENCE_S)
                except TimeoutError:
                    missing = sent.difference(*(consumer.got for consumer in consumers))
                    pytest.fail(f"{len(missing)} of {len(sent)} records never came\n{server.log()[-3000:]}")
                finally:
                    for consumer in consumers:
                        consumer.is_done = True
            assert [consumer.came_again for consumer in consumers] == [set()] * 4
            assert await server.stop() == 0
        finally:
            await server.end()

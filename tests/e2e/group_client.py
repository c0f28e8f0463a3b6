"""A client process of tests/e2e/test_groups.py: some members in stream mode and some consumers in queue mode.

    python -m tests.e2e.group_client URL LOG NAME MEMBERS CONSUMERS SEED

It may be killed and stopped at any instant. What it sees goes to LOG at once, one JSON array a line, with the time of
the machine's monotonic clock (ms, the same for all processes):

    ["owns",  member, generation, {partition: next offset}, at]
    ["got",   member, partition, [[offset, value], ...], at]
    ["asks",  member, partition, offset, at]                                    about to be acked
    ["acked", member, partition, offset, ok or null, asked at, answered at]     null: no answer
    ["lease", consumer, offset and partition, value, attempt, visible until (epoch ms), at (epoch ms), at]
    ["done",  consumer, value, attempt, ok or null, answered at (epoch ms), at]
    ["back",  consumer, value, attempt, at]                                     asked to be delivered again
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from contextlib import suppress
from random import Random

import aiohttp
import orjson

TOPIC, STREAM, QUEUE = "orders", "streaming", "queueing"
GONE = (aiohttp.ClientError, ConnectionError, asyncio.TimeoutError)
INVISIBLE_MS = 2_000
STAYS_S = (1.0, 6.0)
WORKS_S = 0.02
"""How long a member or a consumer works on what it got, at most."""

HANGS_S = 3.0
"""How long a member does now and then: longer than it may keep a partition that is revoked."""


class Log:
    """Lines that outlive the process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *line: object) -> None:
        os.write(self._fd, orjson.dumps([*line, now_ms()], option=orjson.OPT_NON_STR_KEYS) + b"\n")


def now_ms() -> float:
    return time.monotonic_ns() / 1e6


class Member:
    """One member of the streaming group: consumes what it owns, commits, gives up what is revoked; goes and comes."""

    def __init__(self, name: str, url: str, http: aiohttp.ClientSession, log: Log, rng: Random) -> None:
        self._name, self._url, self._http, self._log, self._rng = name, url, http, log, rng
        self._ids = itertools.count(1)
        self._asked: dict[int, tuple[int, int, float]] = {}  # partition, offset, when, by the id of an ack
        self._draining: set[int] = set()

    async def run(self) -> None:
        while True:
            with suppress(*GONE):
                async with self._http.ws_connect(f"{self._url}/ws/v1", max_msg_size=0) as socket:
                    await self._live(socket)
            for partition, offset, asked_ms in self._asked.values():
                self._log.write("acked", self._name, partition, offset, None, asked_ms)
            self._asked.clear()
            self._draining.clear()
            await asyncio.sleep(self._rng.uniform(0.05, 0.5))

    async def _live(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await socket.send_json(
            {"id": 0, "op": "subscribe", "sub": "s", "topics": [TOPIC], "mode": "stream", "group": STREAM,
             "member": self._name, "start": "earliest"}
        )  # fmt: skip
        stays_s = self._rng.uniform(*STAYS_S)
        async with asyncio.timeout(stays_s) as limit:
            try:
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        await self._heed(socket, orjson.loads(message.data))
            except TimeoutError:
                pass
        if limit.expired() and self._rng.random() < 0.5:
            await socket.send_json({"id": -1 + 2**31, "op": "unsubscribe", "sub": "s"})  # else it just goes away

    async def _heed(self, socket: aiohttp.ClientWebSocketResponse, said: dict[str, object]) -> None:
        if said.get("op") == "assigned" or said.get("id") == 0:
            assert said.get("ok", True), said
            self._owns(said)
        elif said.get("op") == "revoked" and not said.get("lost"):
            await socket.send_json({"op": "release", "sub": "s", "partitions": said["partitions"]})
        elif said.get("op") == "messages":
            await self._consume(socket, said["messages"])
        elif isinstance(id_ := said.get("id"), int) and id_ in self._asked:
            partition, offset, asked_ms = self._asked.pop(id_)
            results = said.get("results")
            is_ok = isinstance(results, list) and results[0]["ok"]
            self._log.write("acked", self._name, partition, offset, is_ok, asked_ms)

    def _owns(self, said: dict[str, object]) -> None:
        cursor = str(said["cursor"]).split(";") if said["cursor"] else []
        request_indexes = dict(part.removeprefix(f"{TOPIC}:").split("=") for part in cursor)
        named = said["partitions"].get(TOPIC, []) if isinstance(said["partitions"], dict) else []
        owned = {partition: int(request_indexes[str(partition)]) for partition in named}
        if owned:
            self._log.write("owns", self._name, said["generation"], owned)

    async def _consume(self, socket: aiohttp.ClientWebSocketResponse, messages: object) -> None:
        assert isinstance(messages, list)
        partition = messages[0]["partition"]
        self._log.write("got", self._name, partition, [[one["offset"], one["value"]] for one in messages])
        await asyncio.sleep(HANGS_S if self._rng.random() < 0.05 else self._rng.uniform(0, WORKS_S))
        offset = messages[-1]["offset"]
        id_ = next(self._ids)
        self._log.write("asks", self._name, partition, offset)
        self._asked[id_] = (partition, offset, now_ms())
        await socket.send_json(
            {"id": id_, "op": "ack", "sub": "s", "up_to": [{"topic": TOPIC, "partition": partition, "offset": offset}]}
        )


class Consumer:
    """One consumer in queue mode, over HTTP: acks nearly all it gets, gives some back, leaves some to their end."""

    def __init__(self, name: str, url: str, http: aiohttp.ClientSession, log: Log, rng: Random) -> None:
        self._name, self._url, self._http, self._log, self._rng = name, url, http, log, rng

    async def run(self) -> None:
        while True:
            try:
                await self._round()
            except GONE:
                await asyncio.sleep(self._rng.uniform(0.05, 0.3))

    async def _round(self) -> None:
        asked = {
            "topics": [TOPIC],
            "max_messages": self._rng.randrange(1, 32),
            "wait_ms": 500,
            "invisible_ms": INVISIBLE_MS,
        }
        messages = (await self._post("receive", asked))["messages"]
        assert isinstance(messages, list)
        for one in messages:
            position = [one["partition"], one["offset"]]
            lease = (one["delivery_attempt"], one["visible_until"], time.time() * 1e3)
            self._log.write("lease", self._name, position, one["value"], *lease)
        await asyncio.sleep(self._rng.uniform(0, WORKS_S))
        dice = self._rng.random()
        if dice < 0.03:
            return  # their leases end by themselves
        receipts = {"receipts": [one["receipt"] for one in messages]}
        if not messages:
            return
        if dice < 0.06:
            for one in messages:
                self._log.write("back", self._name, one["value"], one["delivery_attempt"])
            await self._post("nack", {**receipts, "delay_ms": self._rng.choice((0, 100))})
            return
        verdicts: list[bool | None] = [None] * len(messages)
        try:
            results = (await self._post("ack", receipts))["results"]
            assert isinstance(results, list)
            verdicts = [result["ok"] for result in results]
        finally:
            answered_ms = time.time() * 1e3
            for one, is_ok in zip(messages, verdicts, strict=True):
                self._log.write("done", self._name, one["value"], one["delivery_attempt"], is_ok, answered_ms)

    async def _post(self, what: str, body: object) -> dict[str, object]:
        url = f"{self._url}/mq/v1/groups/{QUEUE}/messages:{what}"
        async with self._http.post(url, json=body) as response:
            answer = await response.json(content_type=None)
            if response.status == 503:  # stopping, or starting
                raise ConnectionError
            assert response.status == 200, answer
            assert isinstance(answer, dict)
            return answer


async def main() -> None:
    url, path, name, members, consumers, seed = sys.argv[1:]
    log = Log(path)
    timeout = aiohttp.ClientTimeout(total=10)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http, asyncio.TaskGroup() as tasks:
        for number in range(int(members)):
            rng = Random(f"{seed}-{name}-m{number}")
            tasks.create_task(Member(f"{name}-{number}", url, http, log, rng).run())
        for number in range(int(consumers)):
            rng = Random(f"{seed}-{name}-c{number}")
            tasks.create_task(Consumer(f"{name}-{number}", url, http, log, rng).run())


if __name__ == "__main__":
    asyncio.run(main())

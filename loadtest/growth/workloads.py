"""The workloads whose cost is measured over their size. Each gets a server and a size, and answers with numbers.

CPU is the server's, all threads, in µs for each record (or what the name says): on a busy machine it says more than
rates do. Sends are durable. A workload that finds less or other than was sent raises WorkloadFailed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import orjson

from loadtest.bench.payloads import BATCH_TYPE, JSON_TYPE, json_body, json_value, raw_batch
from loadtest.bench.raw_client import RawClient
from loadtest.bench.request import Request
from loadtest.process import Running
from loadtest.stats import percentile

Numbers = Mapping[str, float]

TOPIC = "growth"
IN_FLIGHT = 4
TIMEOUT_S = 90.0
SINGLE_S = 2.0
BATCHED_COUNT = 50_000
RAW_BATCH = 1_000
PUSH_PER_S, PUSH_COUNT = 100, 200
SOON_COUNT, SOON_MS = 500, 1_500
FAR_MS = 3_600_000
SENT_AT_LAST = 300_000
READ_COUNT = 200_000
ACCEPTED_AT_LAST = 20_000
TOPIC_SENDS = 3_000
MEMBER_PARTITIONS = 100
QUEUE_COUNT = 20_000
SETTLE_S = 0.5


class WorkloadFailed(Exception):
    """The server did not do the work, or did it wrongly."""


class Meter:
    """What the server takes from here on."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._cpu_s = server.cpu_s()
        self._began_s = time.perf_counter()

    def per(self, count: int) -> dict[str, float]:
        """CPU for each of these, and how many a second."""
        took_s = time.perf_counter() - self._began_s
        return {"cpu_us": (self._server.cpu_s() - self._cpu_s) / count * 1e6, "per_s": count / took_s}


async def single(server: Running, size: int) -> Numbers:
    """One record a request over `size` connections."""
    async with _client(server) as client:
        await client.topic()
    request = Request("POST", f"/topics/{TOPIC}", {"Content-Type": JSON_TYPE}, json_body([1]))
    meter = Meter(server)
    load = await RawClient().drive(server.url, request, connections=size, duration_s=SINGLE_S)
    if load.error_count:
        raise WorkloadFailed(f"{load.error_count} of {load.request_count} requests failed")
    return {**meter.per(load.request_count), "p99_ms": load.p99_ms}


async def batch(server: Running, size: int) -> Numbers:
    """`size` JSON records a request, four requests at a time."""
    async with _client(server) as client:
        await client.topic()
        body = json_body(range(size))
        count = max(BATCHED_COUNT // size, IN_FLIGHT * 10)
        meter = Meter(server)
        await client.repeat(count, lambda _: client.post(f"/topics/{TOPIC}", body, JSON_TYPE))
        return meter.per(count * size)


async def stored(server: Running, size: int) -> Numbers:
    """A log that has `size` records: sending 300,000 more in raw batches, and reading the first 1,000."""
    async with _client(server) as client:
        await client.topic()
        await client.fill(size)
        meter = Meter(server)
        await client.fill(SENT_AT_LAST)
        numbers = meter.per(SENT_AT_LAST)
        began_s = time.perf_counter()
        await client.get(f"/topics/{TOPIC}/partitions/0/records?offset=0&max_records=1000", JSON_TYPE)
        return {**numbers, "read_ms": (time.perf_counter() - began_s) * 1000, "rss_mb": server.rss_bytes() / 1e6}


async def consume(server: Running, size: int) -> Numbers:
    """`size` records from the start, over one WebSocket, in JSON; again and again until 200,000 have come.

    Few records come from the memory of the server, many from its files.
    """
    async with _client(server) as client:
        await client.topic()
        await client.fill(size)
        times = max(READ_COUNT // size, 1)
        meter = Meter(server)
        for _ in range(times):
            async with client.socket() as socket:
                await socket.ask(op="subscribe", sub="s", topics=[TOPIC], **{"from": "earliest"}, credit=10_000)
                next_offset = 0
                while next_offset < size:
                    for message in await socket.messages():
                        if message["offset"] != next_offset:
                            raise WorkloadFailed(f"offset {message['offset']} came where {next_offset} was to come")
                        next_offset += 1
        return meter.per(size * times)


async def push(server: Running, size: int) -> Numbers:
    """100 single records a second to `size` sockets: from the send to the last reader's hand."""
    async with _client(server) as client, AsyncExitStack() as sockets:
        await client.topic()
        readers = [await sockets.enter_async_context(client.socket()) for _ in range(size)]
        for reader in readers:
            await reader.ask(op="subscribe", sub="s", topics=[TOPIC], credit=10_000)
        latencies_ms: list[float] = []

        async def read(socket: _Socket) -> None:
            left = PUSH_COUNT
            while left:
                messages = await socket.messages()
                now_ms = time.time_ns() / 1e6
                latencies_ms.extend(now_ms - message["value"]["sent_ms"] for message in messages)
                left -= len(messages)

        async def send() -> None:
            began_s = time.perf_counter()
            for number in range(PUSH_COUNT):
                await asyncio.sleep(max(began_s + number / PUSH_PER_S - time.perf_counter(), 0))
                records = [{"value": {**json_value(number), "sent_ms": time.time_ns() / 1e6}}]
                await client.post(f"/topics/{TOPIC}", orjson.dumps({"records": records}), JSON_TYPE)

        meter = Meter(server)
        async with asyncio.TaskGroup() as tasks:
            for reader in readers:
                tasks.create_task(read(reader))
            tasks.create_task(send())
        numbers = meter.per(PUSH_COUNT * size)
        return {**numbers, "p50_ms": percentile(latencies_ms, 50), "p99_ms": percentile(latencies_ms, 99)}


async def pending(server: Running, size: int) -> Numbers:
    """`size` delayed records that wait: accepting 20,000 more, and how late 500 are that fall due meanwhile."""
    async with _client(server) as client:
        await client.topic()
        far_ms = time.time_ns() // 1_000_000 + FAR_MS

        async def delay(count: int) -> None:
            async def one(number: int) -> None:
                records = [
                    {"value": json_value(each), "deliver_at": far_ms + (number * RAW_BATCH + each) % FAR_MS}
                    for each in range(RAW_BATCH)
                ]
                await client.post(f"/topics/{TOPIC}", orjson.dumps({"records": records}), JSON_TYPE)

            await client.repeat(count // RAW_BATCH, one)

        await delay(size)
        meter = Meter(server)
        await delay(ACCEPTED_AT_LAST)
        numbers = meter.per(ACCEPTED_AT_LAST)
        soon_ms = time.time_ns() // 1_000_000 + SOON_MS
        soon = [{"value": json_value(each), "deliver_at": soon_ms + each} for each in range(SOON_COUNT)]
        async with client.socket() as socket:
            await socket.ask(op="subscribe", sub="s", topics=[TOPIC], credit=10_000)
            await client.post(f"/topics/{TOPIC}", orjson.dumps({"records": soon}), JSON_TYPE)
            late_ms: list[float] = []
            while len(late_ms) < SOON_COUNT:
                late_ms += [one["store_timestamp"] - one["deliver_at"] for one in await socket.messages()]
        if min(late_ms) < 0:
            raise WorkloadFailed(f"a delayed record was {-min(late_ms)} ms early")
        return {**numbers, "late_p99_ms": percentile(late_ms, 99), "rss_mb": server.rss_bytes() / 1e6}


async def topics(server: Running, size: int) -> Numbers:
    """`size` topics: making them, and 3,000 single records to one after the other, 32 at a time."""
    async with _client(server) as client:
        began_s = time.perf_counter()
        await client.repeat(size, lambda number: client.topic(f"{TOPIC}{number}"), at_a_time=32)
        made_s = time.perf_counter() - began_s
        body = json_body([1])
        await asyncio.sleep(SETTLE_S)
        meter = Meter(server)
        await client.repeat(
            TOPIC_SENDS, lambda number: client.post(f"/topics/{TOPIC}{number % size}", body, JSON_TYPE), at_a_time=32
        )
        return {**meter.per(TOPIC_SENDS), "made_per_s": size / made_s, "rss_mb": server.rss_bytes() / 1e6}


async def members(server: Running, size: int) -> Numbers:
    """A group of `size` members in stream mode on 100 partitions: from the first to join until all is shared out."""
    async with _client(server) as client, AsyncExitStack() as sockets:
        await client.topic(partitions=MEMBER_PARTITIONS)
        owned: dict[int, set[int]] = {}
        shared = asyncio.Event()

        async def listen(number: int, socket: _Socket) -> None:
            async for push_ in socket.pushes():
                mine = owned[number]
                if push_.get("op") == "assigned":
                    mine.update(push_["partitions"].get(TOPIC, ()))
                elif push_.get("op") == "revoked":
                    mine.difference_update(push_["partitions"].get(TOPIC, ()))
                    await socket.tell(op="release", sub="s", partitions=push_["partitions"])
                _share()

        def _share() -> None:
            if len(owned) == size and sorted(one for mine in owned.values() for one in mine) == list(
                range(MEMBER_PARTITIONS)
            ):
                few, many = min(map(len, owned.values())), max(map(len, owned.values()))
                if many - few <= 1:
                    shared.set()

        joined = [await sockets.enter_async_context(client.socket()) for _ in range(size)]
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            listeners = []
            for number, socket in enumerate(joined):
                answer = await socket.ask(
                    op="subscribe", sub="s", topics=[TOPIC], mode="stream", group=f"{TOPIC}-group"
                )
                owned[number] = set(answer["partitions"].get(TOPIC, ()))
                listeners.append(tasks.create_task(listen(number, socket)))
            _share()
            await shared.wait()
            took_s = time.perf_counter() - began_s
            for listener in listeners:
                listener.cancel()
        return {"each_ms": took_s * 1000 / size, "shared_ms": took_s * 1000}


async def consumers(server: Running, size: int) -> Numbers:
    """20,000 records leased and acked by `size` consumers in queue mode, each over a WebSocket."""
    async with _client(server) as client, AsyncExitStack() as sockets:
        await client.topic()
        await client.fill(QUEUE_COUNT)
        joined = [await sockets.enter_async_context(client.socket()) for _ in range(size)]
        left = QUEUE_COUNT
        acked = asyncio.Event()

        async def work(socket: _Socket) -> None:
            nonlocal left
            async for push_ in socket.pushes():
                if push_.get("op") == "messages":
                    receipts = [message["receipt"] for message in push_["messages"]]
                    await socket.tell(op="ack", sub="s", receipts=receipts)
                elif "results" in push_:
                    left -= sum(result["ok"] for result in push_["results"])
                    if left <= 0:
                        acked.set()

        meter = Meter(server)
        async with asyncio.TaskGroup() as tasks:
            workers = []
            for socket in joined:
                await socket.ask(
                    op="subscribe", sub="s", topics=[TOPIC], mode="queue", group=f"{TOPIC}-group", credit=1_000
                )
                workers.append(tasks.create_task(work(socket)))
            await acked.wait()
            numbers = meter.per(QUEUE_COUNT)
            for worker in workers:
                worker.cancel()
        return numbers


async def idle(server: Running, size: int) -> Numbers:
    """Memory of `size` sockets that subscribe and hear nothing."""
    async with _client(server) as client, AsyncExitStack() as sockets:
        await client.topic()
        before = server.rss_bytes()
        for _ in range(size):
            socket = await sockets.enter_async_context(client.socket())
            await socket.ask(op="subscribe", sub="s", topics=[TOPIC])
        await asyncio.sleep(SETTLE_S)
        return {"rss_kb": max(server.rss_bytes() - before, 0) / size / 1e3}


class _Socket:
    """A socket of the client: one answer or push at a time."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._next_id = 0
        self._kept: list[dict[str, Any]] = []

    async def tell(self, **command: object) -> int:
        """A command; its answer comes among the pushes."""
        self._next_id += 1
        await self._socket.send_str(orjson.dumps({"id": self._next_id, **command}).decode())
        return self._next_id

    async def ask(self, **command: object) -> dict[str, Any]:
        """A command and its answer. What was pushed in between is kept. Raises WorkloadFailed."""
        number = await self.tell(**command)
        kept = []
        while (frame := await self._frame()).get("id") != number:
            kept.append(frame)
        self._kept += kept
        if not frame["ok"]:
            raise WorkloadFailed(str(frame))
        return frame

    async def pushes(self) -> AsyncIterator[dict[str, Any]]:
        """Everything that comes."""
        while True:
            yield await self._frame()

    async def messages(self) -> list[dict[str, Any]]:
        """The messages of the next frame that has some."""
        async for frame in self.pushes():
            if frame.get("op") == "messages":
                found: list[dict[str, Any]] = frame["messages"]
                return found
        raise WorkloadFailed("the socket was closed")

    async def _frame(self) -> dict[str, Any]:
        if self._kept:
            return self._kept.pop(0)
        frame = await self._socket.receive()
        if frame.type is not aiohttp.WSMsgType.TEXT:
            raise WorkloadFailed(f"the socket was closed: {frame.extra or self._socket.close_code}")
        told: dict[str, Any] = orjson.loads(frame.data)
        if told.get("op") in ("error", "goaway"):
            raise WorkloadFailed(str(told))
        return told


class _Client:
    """HTTP and sockets of one work."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def topic(self, name: str = "", *, partitions: int = 1) -> None:
        """Make the topic, or another."""
        path = f"/mq/v1/topics/{name or TOPIC}"
        await self._asked("PUT", path, orjson.dumps({"partitions": partitions}), "application/json")

    async def post(self, path: str, body: bytes, kind: str) -> None:
        """Raises WorkloadFailed."""
        await self._asked("POST", path, body, kind)

    async def get(self, path: str, kind: str) -> None:
        """The same."""
        async with self._session.get(self._url + path, headers={"Accept": kind}) as response:
            answer = await response.read()
            if response.status >= 300:
                raise WorkloadFailed(f"GET {path}: {response.status} {answer[:200]!r}")

    async def fill(self, count: int) -> None:
        """That many records in raw batches of 1,000."""
        body = raw_batch(range(RAW_BATCH))
        await self.repeat(count // RAW_BATCH, lambda _: self.post(f"/topics/{TOPIC}/partitions/0", body, BATCH_TYPE))

    async def repeat(self, count: int, one: Any, *, at_a_time: int = IN_FLIGHT) -> None:
        """`one(number)` for every number below `count`."""
        numbers = iter(range(count))

        async def some() -> None:
            for number in numbers:
                await one(number)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_a_time):
                tasks.create_task(some())

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[_Socket]:
        """A WebSocket."""
        async with self._session.ws_connect(f"{self._url}/ws/v1", max_msg_size=0) as socket:
            yield _Socket(socket)

    async def _asked(self, method: str, path: str, body: bytes, kind: str) -> None:
        headers = {"Content-Type": kind}
        async with self._session.request(method, self._url + path, data=body, headers=headers) as response:
            answer = await response.read()
            if response.status >= 300:
                raise WorkloadFailed(f"{method} {path}: {response.status} {answer[:200]!r}")


@asynccontextmanager
async def _client(server: Running) -> AsyncIterator[_Client]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield _Client(session, server.url)

"""Sockets of a real server process, through another stack (`websockets`): cuts, kill -9, SIGTERM, slow peers.

tests/e2e/test_websocket_npm.py does the same talk with npm's `ws`.
"""

from __future__ import annotations

import asyncio
import os
import socket as sockets
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import websockets

from tests.e2e.server import SMALL_FILES, Server
from tests.fork_server import EXECUTED
from tests.waiting import PATIENCE_S

Frame = dict[str, Any]
PARTITIONS = 2
RECORDS = int(os.environ.get("MQ_SOCKET_RECORDS", "2000"))
KILLS = int(os.environ.get("MQ_SOCKET_KILLS", "3"))


@pytest.fixture
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    """On a port that it keeps when it is started again; with the topic `orders`."""
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The timeout of writes is longer than the test: who reads nothing stays.
    settings = {**SMALL_FILES, "MQ_WS_WRITE_TIMEOUT_MS": "120000"}
    running = Server(tmp_path / "data", settings, port=port, under=getattr(request, "param", ()))
    await running.start()
    async with aiohttp.ClientSession() as session:
        path = f"{running.url}/mq/v1/topics/orders"
        assert (await session.put(path, json={"partitions": PARTITIONS})).status == 201
    yield running
    await running.end()


class Socket:
    """One connection of `websockets`. Pushes that come before an answer wait for `push`."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self.connection = connection
        self._pushes: list[Frame] = []
        self._next_id = 0

    async def say(self, command: Frame) -> None:
        await self.connection.send(orjson.dumps(command).decode())

    async def ask(self, op: str, **fields: Any) -> Frame:
        self._next_id += 1
        await self.say({"id": self._next_id, "op": op, **fields})
        while True:
            frame = await self._receive()
            if frame.get("id") == self._next_id:
                assert frame["ok"], frame
                return frame
            self._pushes.append(frame)

    async def push(self) -> Frame:
        return self._pushes.pop(0) if self._pushes else await self._receive()

    async def _receive(self) -> Frame:
        frame: Frame = orjson.loads(await self.connection.recv())
        return frame

    def cut(self) -> None:
        self.connection.transport.abort()


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Socket]:
    """A connection, as soon as the server takes one."""
    url = server.url.replace("http:", "ws:") + "/ws/v1"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                connection = await websockets.connect(url, max_size=None)
                break
            except (OSError, websockets.InvalidHandshake, EOFError):
                await asyncio.sleep(0.05)
    try:
        yield Socket(connection)
    finally:
        connection.transport.abort()


# ------------------------------------------------------------------------------------------------- clients of a crash


class Client:
    """One that keeps its connection, or makes another; it begins anew in `talk`. Done once `is_done`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.is_done = False

    async def run(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.is_done:
                with suppress(websockets.ConnectionClosed, ConnectionError):
                    async with connected(self.server) as socket:
                        await self.talk(socket)

    async def talk(self, socket: Socket) -> None:
        raise NotImplementedError


class Sender(Client):
    """Sends numbered records; what was not answered is sent again with the same msg_id."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.sent = 0

    async def talk(self, socket: Socket) -> None:
        while self.sent < RECORDS:
            numbers = range(self.sent, min(self.sent + 20, RECORDS))
            records = [{"value": n, "msg_id": f"m{n}", "partition": n % PARTITIONS} for n in numbers]
            answer = await socket.ask("produce", topic="orders", records=records)
            assert len(answer["offsets"]) == len(records)
            self.sent = numbers.stop
        self.is_done = True


class Reader(Client):
    """Keeps its own offsets by cursors."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.values: list[int] = []
        self.request_indexes: dict[str, int] = {}

    async def talk(self, socket: Socket) -> None:
        begin: object = {"orders": self.request_indexes} if self.request_indexes else "earliest"
        answer = await socket.ask("subscribe", sub="s", topics=["orders"], **{"from": begin})
        self.request_indexes = {
            part.partition(":")[2].partition("=")[0]: int(part.partition("=")[2])
            for part in answer["cursor"].split(";")
        }
        while len(self.values) < RECORDS:
            for message in (await socket.push()).get("messages", []):
                assert message["offset"] == self.request_indexes[str(message["partition"])], "none left out, none twice"
                self.request_indexes[str(message["partition"])] = message["offset"] + 1
                self.values.append(message["value"])
        self.is_done = True


class StreamMember(Client):
    """What it has taken counts once it is committed; after a crash the cursor of the answer says what was."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.committed: list[int] = []
        self.taken: list[tuple[int, int, int]] = []  # partition, offset, value

    def settle(self, cursor: str) -> None:
        request_indexes = {
            int(part.partition(":")[2].partition("=")[0]): int(part.partition("=")[2]) for part in cursor.split(";")
        }
        self.committed += [
            value for partition, offset, value in self.taken if offset < request_indexes.get(partition, 0)
        ]
        self.taken = [one for one in self.taken if one[1] >= request_indexes.get(one[0], 0)]

    async def talk(self, socket: Socket) -> None:
        fields = {"mode": "stream", "group": "stream", "member": "m", "start": "earliest", "batch": 50}
        answer = await socket.ask("subscribe", sub="s", topics=["orders"], **fields)
        assert answer["partitions"] == {"orders": list(range(PARTITIONS))}, "a named member keeps its partitions"
        self.settle(answer["cursor"])
        self.taken.clear()  # it comes again
        while len(self.committed) < RECORDS:
            messages = (await socket.push()).get("messages", [])
            if messages:
                self.taken += [(one["partition"], one["offset"], one["value"]) for one in messages]
                answer = await socket.ask("ack", sub="s", cursor=messages[-1]["cursor"])
                assert answer["results"][0]["ok"], answer
                self.settle(messages[-1]["cursor"])
        self.is_done = True


class QueueConsumer(Client):
    """Counts what was answered as acked."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.acked: set[int] = set()
        self.unsure: set[int] = set()  # acked, and never answered

    async def talk(self, socket: Socket) -> None:
        fields = {"mode": "queue", "group": "queue", "start": "earliest", "credit": 200, "invisible_ms": 1500}
        await socket.ask("subscribe", sub="s", topics=["orders"], **fields)
        while len(self.acked | self.unsure) < RECORDS:
            messages = (await socket.push()).get("messages", [])
            values = {message["value"] for message in messages}
            assert not values & self.acked, "what was answered as acked does not come again"
            self.unsure |= values
            answer = await socket.ask("ack", sub="s", receipts=[message["receipt"] for message in messages] or ["?"])
            self.acked |= {
                one["value"] for one, result in zip(messages, answer["results"], strict=False) if result["ok"]
            }
            self.unsure -= self.acked
        self.is_done = True


async def test_kill_9_again_and_again_loses_nothing_and_repeats_nothing_that_was_committed(server: Server) -> None:
    sender, reader, member, consumer = Sender(server), Reader(server), StreamMember(server), QueueConsumer(server)
    clients = [asyncio.create_task(client.run()) for client in (sender, reader, member, consumer)]
    try:
        for kill in range(KILLS):
            async with asyncio.timeout(PATIENCE_S):
                while sender.sent < RECORDS * (kill + 1) // (KILLS + 2):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await server.kill()
            await server.start()
        await asyncio.gather(*clients)
    finally:
        for task in clients:
            task.cancel()
    everything = list(range(RECORDS))
    assert sorted(reader.values) == everything
    assert sorted(member.committed) == everything, "committed once each"
    assert sorted(consumer.acked | consumer.unsure) == everything


async def test_a_cut_connection_goes_on_where_it_was_in_all_modes(server: Server) -> None:
    """Over and over, with frames on their way; sessions resume, so nothing that was taken in comes again."""
    sender = Sender(server)
    await sender.run()
    modes: dict[str, Frame] = {
        "reader": {"from": "earliest"},
        "stream": {"mode": "stream", "group": "st", "start": "earliest"},
        "queue": {"mode": "queue", "group": "qu", "start": "earliest", "credit": 10_000},
    }
    values: dict[str, list[int]] = {sub: [] for sub in modes}
    seen = dict.fromkeys(modes, 0)
    session, cut_count = "", 0
    while any(len(some) < RECORDS for some in values.values()):
        async with connected(server) as socket:
            if session:
                answer = await socket.ask("hello", resume=session, seen=seen)
                assert answer["resumed"]
                assert {sub: state["seq"] for sub, state in answer["subs"].items()} == seen
            else:
                session = (await socket.ask("hello"))["session"]
                for sub, fields in modes.items():
                    await socket.ask("subscribe", sub=sub, topics=["orders"], batch=16, **fields)
            for _ in range(40):
                if not any(len(some) < RECORDS for some in values.values()):
                    break
                frame = await asyncio.wait_for(socket.push(), PATIENCE_S)
                if frame["op"] != "messages":
                    continue
                sub = frame["sub"]
                assert frame["seq"] == seen[sub] + 1
                seen[sub] += 1
                values[sub] += [message["value"] for message in frame["messages"]]
                if sub == "queue":
                    receipts = [message["receipt"] for message in frame["messages"]]
                    await socket.say({"op": "ack", "sub": "queue", "receipts": receipts})
            socket.cut()
            cut_count += 1
    assert cut_count > 5
    for some in values.values():
        assert sorted(some) == list(range(RECORDS)), "each once"


async def test_sigterm_says_goaway_answers_what_was_sent_and_ends_well(server: Server) -> None:
    async with connected(server) as socket:
        session = (await socket.ask("hello"))["session"]
        await socket.ask("subscribe", sub="s", topics=["orders"], mode="stream", group="g", member="m")
        for number in range(50):
            await socket.say({"id": 1000 + number, "op": "produce", "topic": "orders", "records": [{"value": number}]})
        stopping = asyncio.create_task(server.stop())
        answers, goaway = {}, None
        with suppress(websockets.ConnectionClosed):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    frame = await socket.push()
                    if frame.get("op") == "goaway":
                        goaway = frame
                    elif "id" in frame:
                        answers[frame["id"]] = frame["ok"] or frame["error_code"] == 50350
        assert socket.connection.close_code == 4001
        assert goaway is not None
        assert (goaway["resume"], goaway["reason"]) == (session, "shutdown")
        assert goaway["reconnect_after_ms"] > 0
        assert answers == dict.fromkeys(range(1000, 1050), True), "stored, or refused: no doubt about any"
        assert await stopping == 0
    await server.start()
    async with connected(server) as socket:
        assert (await socket.ask("hello", resume=session))["resumed"] is False
        answer = await socket.ask("subscribe", sub="s", topics=["orders"], mode="stream", group="g", member="m")
        assert answer["partitions"] == {"orders": list(range(PARTITIONS))}


# ------------------------------------------------------------------------------------------------- slow readers

SLOW_READERS = 20
PUSHED_MB = 24
RSS_GROWTH_BYTES_MAX = 100 * 1024 * 1024
"""For the slow, 20 sockets with an outbox of at most 1 MiB and a transport's buffer; for the cache of slices; for what
was stored and is still in memory. All that was pushed to all of them is 480 MB."""

LATENCY_P50_S_MAX = 1.0
LATENCY_P99_S_MAX = 10.0
"""Generous: machines that run tests are busy. What a slow reader could cost is the write timeout, two minutes."""


@pytest.mark.parametrize("server", [EXECUTED], ids=["executed"], indirect=True)
async def test_slow_readers_cost_no_memory_and_nobody_else_notices(server: Server) -> None:
    slow = [await _one_that_reads_nothing(server) for _ in range(SLOW_READERS)]
    try:
        async with connected(server) as stingy, connected(server) as healthy, connected(server) as sender:
            await stingy.ask("subscribe", sub="s", topics=["orders"], credit=1, auto_credit=False)
            await healthy.ask("subscribe", sub="s", topics=["orders"], credit=10_000)
            before_bytes = server.rss_bytes()
            latencies_s: list[float] = []
            highest_bytes = before_bytes
            for number in range(PUSHED_MB * 4):
                began_s = time.perf_counter()
                records = [{"value": f"{number:06}" + "x" * 25_000}] * 10
                await sender.say({"op": "produce", "topic": "orders", "records": records, "ack": False})
                left = len(records)
                while left:
                    frame = await asyncio.wait_for(healthy.push(), PATIENCE_S)
                    left -= len(frame.get("messages", []))
                latencies_s.append(time.perf_counter() - began_s)
                highest_bytes = max(highest_bytes, server.rss_bytes())
            frame = await asyncio.wait_for(stingy.push(), PATIENCE_S)
            if frame["op"] == "caught_up":
                frame = await asyncio.wait_for(stingy.push(), PATIENCE_S)
            assert len(frame["messages"]) == 1, "its credit, no more"
    finally:
        for one in slow:
            one.close()
    latencies_s.sort()
    assert highest_bytes - before_bytes < RSS_GROWTH_BYTES_MAX
    assert statistics.median(latencies_s) < LATENCY_P50_S_MAX
    assert latencies_s[len(latencies_s) * 99 // 100] < LATENCY_P99_S_MAX


async def _one_that_reads_nothing(server: Server) -> sockets.socket:
    """Subscribes with all the credit there is, and never reads."""
    place = server.url.removeprefix("http://")
    host, _, port = place.rpartition(":")
    raw = sockets.create_connection((host, int(port)))
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    request = (
        f"GET /ws/v1 HTTP/1.1\r\nHost: {place}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    await loop.sock_sendall(raw, request.encode())
    assert b" 101 " in await loop.sock_recv(raw, 4096)
    command = b'{"op":"subscribe","sub":"s","topics":["orders"],"credit":10000}'
    assert len(command) < 126
    await loop.sock_sendall(raw, bytes([0x81, 0x80 | len(command), 0, 0, 0, 0]) + command)  # a mask of zeros
    return raw

"""kill -9 of a real server under load, again and again: nothing acknowledged is lost, doubled, moved or changed.

Producers post batches of flight-like records, some to a named partition, some by key, and one sends by Kafka's
protocol; followers long-poll every partition meanwhile; the history checker (tests/history.py) judges what all of them
saw together with a final read of everything. MQ_KILL_CYCLES=500 (`make torture-kill`) makes it a long run.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import zlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import confluent_kafka
import orjson
import pytest

from loadtest.peers.servers import free_port
from tests.e2e.server import SMALL_FILES, Server
from tests.fork_server import EXECUTED
from tests.history import Json, Outcome, Recorder, Seen, Send, check, is_intact, seal
from tests.waiting import PATIENCE_S, until

CYCLES = int(os.environ.get("MQ_KILL_CYCLES", "8"))
DELAYED_CYCLES = max(CYCLES // 2, 1)
SEED = int(os.environ.get("MQ_TORTURE_SEED", str(random.randrange(2**32))))
PARTITIONS = 3
PRODUCERS = 4
TOPIC = "flights"
JSON_V2 = "application/vnd.kafka.json.v2+json"
CARRIERS = ("UA", "AA", "B6", "DL", "EV")


def now_ms() -> float:
    return time.monotonic() * 1000


class World:
    """A server, its clients, and what they saw."""

    def __init__(self, server: Server, session: aiohttp.ClientSession, kafka_address: str) -> None:
        self.server = server
        self.kafka_address = kafka_address
        self.session = session
        self.history = Recorder()
        self.rng = random.Random(SEED)
        self.is_up = asyncio.Event()  # the server has said where it listens
        print(f"seed {SEED}: repeat with MQ_TORTURE_SEED={SEED}")

    async def start(self) -> None:
        """Start the server and let the clients know its address. Every other run is executed and not forked, so that
        each has another seed for `hash` than the one before: no order of a set may matter to what is on disk."""
        self.server.under = () if self.server.under else EXECUTED
        await self.server.start()
        self.is_up.set()

    async def kill(self) -> None:
        """kill -9: requests under way break off, and none is begun before the next start."""
        self.is_up.clear()
        await self.server.kill()

    async def stop(self) -> None:
        """SIGTERM, with requests coming until the process has ended."""
        assert await self.server.stop() == 0, self.server.log()
        self.is_up.clear()

    async def create_topic(self) -> None:
        body = {"partitions": PARTITIONS}
        async with self.session.put(f"{self.server.url}/mq/v1/topics/{TOPIC}", json=body) as answer:
            assert answer.status == 201, await answer.text()

    async def produce_for_ever(self, client: str) -> None:
        """Post batches until cancelled. A client that loses its connection does not know what became of the batch."""
        if client.startswith("kafka"):
            await self.produce_by_kafka_for_ever(client, self.kafka_address)
        while True:
            await self.is_up.wait()
            try:
                await self._produce(client)
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.02)  # the server is stopping

    async def produce_by_kafka_for_ever(self, client: str, address: str) -> None:
        """Send by Kafka's protocol until cancelled: librdkafka's idempotent producer sends again what it has no answer
        to, so all but the last few records are acknowledged, each with its offset."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 2, "log_level": 0,
                "reconnect.backoff.max.ms": 200,
            }
        )  # fmt: skip

        def delivered(send: Send, error: object, message: Any) -> None:
            if error is None:
                send.ok(now_ms(), message.offset())

        try:
            while True:
                for _ in range(self.rng.choice((1, 10, 60)) if len(producer) < 500 else 0):
                    value, tail, flight = self._flight(client)
                    partition = zlib.crc32(tail.encode()) % PARTITIONS
                    send = self.history.send(value, partition, now_ms())
                    content = orjson.dumps(seal(flight))
                    producer.produce(TOPIC, content, tail, partition, on_delivery=partial(delivered, send))
                producer.poll(0)
                await asyncio.sleep(0.005)
        finally:
            producer.purge()  # nothing is sent behind the final read

    def _flight(self, client: str) -> tuple[str, str, dict[str, Json]]:
        """A value that nobody else has sent, a key, and a record of both."""
        value = self.history.value(client)
        tail = f"N{self.rng.randrange(10_000, 99_999)}"
        return (
            value,
            tail,
            {
                "id": value,
                "tailnum": tail,
                "carrier": self.rng.choice(CARRIERS),
                "arr_delay": self.rng.randrange(-60, 300),
                "note": "x" * self.rng.choice((0, 40, 2000)),
            },
        )

    async def _produce(self, client: str) -> None:
        records, sends = [], []
        partition = self.rng.randrange(PARTITIONS) if client.endswith(("0", "1")) else None
        delayed_ms = self.rng.randrange(-200, 3000) if client.startswith("timer") else None  # some are due already
        for _ in range(self.rng.choice((1, 1, 10, 60))):
            value, tail, flight = self._flight(client)
            record: dict[str, object] = {"key": tail, "value": seal(flight)}
            due_ms = None
            if delayed_ms is not None:
                due_ms = time.time_ns() // 1_000_000 + delayed_ms + self.rng.randrange(200)
                record["deliver_at"] = due_ms
            target = zlib.crc32(tail.encode()) % PARTITIONS if partition is None else partition
            records.append(record)
            sends.append(self.history.send(value, target, now_ms(), due_ms=due_ms))
        path = f"/topics/{TOPIC}" if partition is None else f"/topics/{TOPIC}/partitions/{partition}"
        body = orjson.dumps({"records": records})
        headers = {"Content-Type": JSON_V2}
        async with self.session.post(self.server.url + path, data=body, headers=headers) as answer:
            content = await answer.read()
            ended_ms = now_ms()
            if answer.status in (400, 413, 422, 507):
                for send in sends:
                    send.fail(ended_ms)
            elif answer.status == 200:
                assert answer.headers["Mq-Acks"] == "flushed"
                self._answered(sends, orjson.loads(content)["offsets"], ended_ms)

    def _answered(self, sends: list[Send], offsets: list[dict[str, int | str | None]], ended_ms: float) -> None:
        for send, receipt in zip(sends, offsets, strict=True):
            assert receipt["error_code"] is None
            assert receipt["partition"] == send.partition, "a key's partition is crc32(key) % partitions"
            offset = receipt["offset"]
            if isinstance(offset, int):
                # A delayed record has one too if it was due when the server came to it.
                assert send.due_ms is None or send.due_ms <= time.time_ns() // 1_000_000, "stored before it was due"
                assert "schedule_id" not in receipt
                send.ok(ended_ms, offset)
            else:
                assert offset is None
                assert send.due_ms is not None
                assert receipt["schedule_id"]
                send.ok(ended_ms)

    async def follow_for_ever(self, partition: int) -> None:
        """Long-poll one partition and note what comes, across restarts of the server."""
        offset = 0
        while True:
            await self.is_up.wait()
            try:
                seen, offset = await self.fetch(partition, offset, wait_ms=500)
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.02)
                continue
            self.history.read(partition, seen)

    async def fetch(self, partition: int, offset: int, *, wait_ms: int) -> tuple[list[Seen], int]:
        """One read, and where the next one begins."""
        url = f"{self.server.url}/topics/{TOPIC}/partitions/{partition}/records"
        query = {"offset": str(offset), "timeout": str(wait_ms)}
        async with self.session.get(url, params=query, headers={"Accept": JSON_V2}) as answer:
            content = await answer.read()
            if answer.status == 503:
                raise aiohttp.ClientError("starting or stopping")
            assert answer.status == 200, content
            seen = [
                Seen(
                    record["offset"],
                    record["value"]["id"],
                    is_intact(record["value"]) and record["key"] == record["value"]["tailnum"],
                    record.get("store_timestamp"),
                )
                for record in orjson.loads(content)
            ]
            return seen, int(answer.headers["Mq-Next-Offset"])

    async def read_everything(self) -> int:
        """The final read of each partition; returns the number of records."""
        count = 0
        for partition in range(PARTITIONS):
            whole, offset = list[Seen](), 0
            while True:
                seen, following = await self.fetch(partition, offset, wait_ms=0)
                if not seen:
                    break
                whole += seen
                offset = following
            self.history.final_read(partition, whole)
            count += len(whole)
        return count


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    kafka_port = free_port()  # the same across restarts: its clients find the server again by themselves
    server = Server(tmp_path / "data", {**SMALL_FILES, "MQ_KAFKA_PORT": str(kafka_port)})
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            world = World(server, session, f"127.0.0.1:{kafka_port}")
            await world.start()
            yield world
        finally:
            await server.end()


def acked_sends(world: World, *, delayed: bool) -> list[Send]:
    return [one for one in world.history.sends if one.outcome is Outcome.OK and (one.due_ms is not None or not delayed)]


def acked_by_kafka(world: World) -> list[Send]:
    return [one for one in acked_sends(world, delayed=False) if one.value.startswith("kafka")]


async def load_and_kill(
    world: World, clients: list[str], *, cycles: int, acked_min: int, delayed: bool = False
) -> None:
    """Keep the load up through all cycles; kill the server at random moments, some of them while it recovers, but not
    before `acked_min` more sends are acknowledged: less load would prove nothing. librdkafka takes longer than most
    lives to find the server again: every other one lasts until it has."""

    def is_enough(cycle: int) -> bool:
        by_kafka_min = cycle // 2 if "kafka" in clients else 0
        is_loaded = len(acked_sends(world, delayed=delayed)) > acked_min * cycle
        return is_loaded and len(acked_by_kafka(world)) >= by_kafka_min

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(world.produce_for_ever(client)) for client in clients]
        tasks += [group.create_task(world.follow_for_ever(partition)) for partition in range(PARTITIONS)]
        for cycle in range(1, cycles + 1):
            await asyncio.sleep(world.rng.uniform(0.03, 0.6))
            await until(lambda cycle=cycle: is_enough(cycle), pause_s=0.05)
            await world.kill()
            await world.start()
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()


async def test_kill_9_under_load_loses_doubles_and_moves_nothing(world: World) -> None:
    await world.create_topic()
    clients = [*(f"client{number}" for number in range(PRODUCERS)), "kafka"]
    await load_and_kill(world, clients, cycles=CYCLES, acked_min=50)
    assert len(acked_by_kafka(world)) >= CYCLES // 2
    await world.kill()
    await world.start()
    count = await world.read_everything()
    acked, unknown = world.history.count(Outcome.OK), world.history.count(Outcome.INFO)
    print(f"{CYCLES + 1} kills, {acked} acked, {unknown} unknown, {count} there")
    assert world.history.count(Outcome.FAIL) == 0
    assert check(world.history) == []
    assert await world.server.stop() == 0, world.server.log()


async def test_kill_9_delivers_each_delayed_record_once_and_never_early(world: World) -> None:
    await world.create_topic()
    await load_and_kill(world, ["timer0", "timer2", "client1"], cycles=DELAYED_CYCLES, acked_min=20, delayed=True)
    acked = acked_sends(world, delayed=True)
    last_due_ms = max(send.due_ms for send in world.history.sends if send.due_ms is not None)
    missing = {(send.partition, send.value) for send in acked}
    give_up_ms = last_due_ms + PATIENCE_S * 1000
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    while time.time_ns() // 1_000_000 <= last_due_ms or missing:
        assert time.time_ns() // 1_000_000 < give_up_ms, f"{len(missing)} delayed records never came"
        for partition, offset in offsets.items():
            seen, offsets[partition] = await world.fetch(partition, offset, wait_ms=100)
            world.history.read(partition, seen)
            missing -= {(partition, record.value) for record in seen}
    count = await world.read_everything()
    print(f"{DELAYED_CYCLES} kills, {len(acked)} delayed records acked, {count} records there")
    assert check(world.history) == []
    assert await world.server.stop() == 0, world.server.log()


async def test_a_clean_stop_under_load_answers_or_refuses_everything(world: World) -> None:
    """SIGTERM: what was answered is there, and the next start finds a clean store."""
    await world.create_topic()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(world.produce_for_ever(f"client{number}")) for number in range(PRODUCERS)]
        for _ in range(2):
            await asyncio.sleep(world.rng.uniform(0.2, 0.6))
            await until(lambda: world.history.count(Outcome.OK) > 100, pause_s=0.05)
            await world.stop()
            await world.start()
        for task in tasks:
            task.cancel()
    await world.read_everything()
    assert check(world.history) == []

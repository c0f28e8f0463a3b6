"""A broker and a route table in memory, enough to run the real producer, consumer and sockets without a disk."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry

from gateway.api.producer import Producer
from gateway.api.read import Consumer
from gateway.brokers.base import Broker
from gateway.routing.table import RouteTable
from gateway.settings.config import build
from gateway.settings.limits import Limits
from gateway.surfaces.http.context import Gateway, GatewayStats
from store import record_batch
from store.errors import StoreError
from store.types import Acks, Append, Appended, Boundary, Bounds, Delay, Entry, QueueKey, ReadResult, ReadStatus
from tests.clock import START_MS, FakeClock
from tests.gateway.fake_broker import NO_GROUPS, FakeTopic


class MemoryBroker:
    """Entries in lists. `hold` keeps appends waiting, `failure` makes reads fail, `low` plays retention."""

    name = "memory"

    def __init__(self) -> None:
        self.entries: dict[QueueKey, list[Entry]] = {}
        self.low: dict[QueueKey, int] = {}
        self.hold: asyncio.Event | None = None
        self.failure: StoreError | None = None
        self.scheduled: list[Delay] = []
        self.append_count = 0
        self.read_count = 0
        self._position = 0
        self._grown = asyncio.Condition()

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        answers = [self._store(append, acks) for append in appends]
        self.append_count += 1
        async with self._grown:
            self._grown.notify_all()
        if self.hold is not None:
            await self.hold.wait()
        return answers

    def _store(self, append: Append, acks: Acks) -> Appended:
        entries = self.entries.setdefault(append.queue, [])
        base_offset = entries[-1].next_offset if entries else 0
        batch = record_batch.with_base_offset(append.batch, base_offset)
        entry = Entry(
            self._position,
            len(batch),
            append.queue,
            "topic",
            base_offset,
            append.record_count,
            START_MS + base_offset,
            append.json_values,
            memoryview(batch),
        )
        self._position += len(batch)
        entries.append(entry)
        return Appended(entry.position, base_offset, entry.store_time_ms, acks)

    async def schedule(self, append: Append, *, acks: Acks) -> Appended:
        self.scheduled.extend(append.delays)
        return Appended(0, 0, START_MS, acks)

    async def read(
        self,
        queue: QueueKey,
        offset: int,
        *,
        max_bytes: int,
        wait_ms: int = 0,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        self.read_count += 1
        async with self._grown:
            if wait_ms:
                await self._grown.wait_for(lambda: self.failure is not None or self._bounds(queue).max_offset > offset)
        if self.failure is not None:
            raise self.failure
        low, high = self._bounds(queue)
        if offset < low:
            return ReadResult(ReadStatus.TOO_SMALL, [], low, high, low)
        if offset > high:
            return ReadResult(ReadStatus.TOO_LARGE, [], low, high, high)
        found: list[Entry] = []
        size = 0
        for entry in self.entries.get(queue, []):
            if end_offset is not None and entry.base_offset >= max(end_offset, offset + 1):
                break
            if entry.next_offset > offset and (not found or size + entry.size <= max_bytes):
                found.append(entry)
                size += entry.size
        if not found:
            return ReadResult(ReadStatus.AT_END if high else ReadStatus.EMPTY, [], low, high, offset)
        return ReadResult(ReadStatus.FOUND, found, low, high, found[-1].next_offset)

    async def wake(self) -> None:
        """Let those who wait at the end look again."""
        async with self._grown:
            self._grown.notify_all()

    async def bounds(self, queue: QueueKey) -> Bounds:
        return self._bounds(queue)

    def _bounds(self, queue: QueueKey) -> Bounds:
        entries = self.entries.get(queue, [])
        return Bounds(self.low.get(queue, 0), entries[-1].next_offset if entries else 0)

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        entries = self.entries.get(queue, [])
        return next((entry.base_offset for entry in entries if entry.store_time_ms >= time_ms), self._bounds(queue)[1])


class MemoryRoutes(RouteTable):
    """The real table; every partition is the queue of the same number on the one broker."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker

    def add(self, name: str, partitions: int, topic_id: int | None = None) -> None:
        """Make a topic, or let one grow."""
        known = {topic.name: topic.topic_id for topic in self.topics()}
        self.put(FakeTopic(name, topic_id or known.get(name, len(known) + 1), partitions), self._broker)


class FirstPartition:
    """Keys by CRC-32 as everywhere; records without key go to partition 0."""

    def for_key(self, key: bytes, count: int) -> int:
        return zlib.crc32(key) % count

    def next(self, topic: str, count: int, selector: str | None = None) -> int:
        return 0


class MemoryAdmin:
    """Topics of a test are made by the test."""

    async def create_topic(self, name: str, partitions: int) -> FakeTopic:
        raise NotImplementedError

    def ready(self) -> list[str]:
        return []


def memory_gateway(
    topics: dict[str, int],
    *,
    limits: Limits | None = None,
    origins: tuple[str, ...] = (),
    write_timeout_ms: int = 10_000,
    **settings: object,
) -> tuple[Gateway, MemoryBroker]:
    """A gateway over a fresh memory broker with these topics and partition counts."""
    broker = MemoryBroker()
    routes = MemoryRoutes(broker)
    for name, partitions in topics.items():
        routes.add(name, partitions)
    limits = limits or Limits()
    config = replace(
        build({"data": "unused", "ws_write_timeout_ms": write_timeout_ms, **settings}),
        limits=limits,
        allowed_origins=origins,
    )
    clock = FakeClock()
    gateway = Gateway(
        version="0.0.1",
        metrics=CollectorRegistry(),
        config=config,
        limits=limits,
        clock=clock,
        routes_table=routes,
        admin=MemoryAdmin(),
        producer=Producer(routes, FirstPartition(), clock=clock, limits=limits, acks=Acks.FLUSHED),
        consumer=Consumer(routes),
        groups=NO_GROUPS,
        stats=GatewayStats(),
        draining=asyncio.Event(),
    )
    return gateway, broker

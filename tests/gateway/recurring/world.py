"""Recurring schedules over a real store on a simulated disk, without threads or real time: steps and snapshots happen
when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from gateway.api.producer import Producer
from gateway.api.recurring import ProducerRouting
from gateway.brokers.local import LocalBroker
from gateway.main.admin import pin
from gateway.recurring.definitions import RECURRING_EVENTS, Definition, Missed, Recurring, RecurringRecord
from gateway.recurring.rule import Rule
from gateway.recurring.service import RecurringSchedules
from gateway.routing.base import TopicView
from gateway.routing.delivery import RoutedPartitions
from gateway.routing.select import PartitionSelector
from gateway.routing.table import RouteTable
from gateway.settings.limits import Limits
from store import Store, record_batch
from store.config import StoreConfig
from store.types import Acks, QueueKey
from tests.clock import FakeClock
from tests.gateway.groups.coordinator.world import PlainTimer, inline
from tests.simdisk import SimDisk
from tests.store.kit import abandon, entries_of, open_store, with_settings

HOUR_MS = 3_600_000
COUNT_MAX = 20
CONFIG = with_settings(commit_log_file_bytes=256 * 1024, extent_bytes=64 * 1024)
"""A thousand events fit an entry."""


class Sent(NamedTuple):
    """A delivered record."""

    name: str
    value: bytes
    due_ms: int
    missed_count: int
    key: bytes | None
    timestamp_ms: int
    partition: int


class World:
    """One server's life on a disk. `start`, then `stop` or `abandon`, then `start` again."""

    def __init__(self, disk: SimDisk | None = None, config: StoreConfig = CONFIG) -> None:
        self.disk = disk or SimDisk()
        self.config = config
        self.clock = FakeClock()
        self.store: Store
        self.routes: RouteTable
        self.broker: LocalBroker
        self.recurring: RecurringSchedules
        self._writing: asyncio.Task[None]

    async def start(self) -> None:
        self.store = await open_store(self.disk, self.config, self.clock)
        self.routes = RouteTable()
        timer = PlainTimer(self.store, self.clock)
        self.broker = LocalBroker(self.store, timer, name="b", on_topic=self._put, on_deleted=self.routes.remove)
        for topic in self.store.topics():
            if not topic.is_system:
                self._put(topic)
        producer = Producer(
            self.routes, PartitionSelector(self.routes), clock=self.clock, limits=Limits(), acks=Acks.FLUSHED
        )
        self.recurring = RecurringSchedules(
            self.broker,
            RECURRING_EVENTS.snapshot_files(self.config.root, self.disk, inline),
            self.store,
            RoutedPartitions(self.routes, own="b"),
            self.clock,
            routing=ProducerRouting(producer, self.routes),
            count_max=COUNT_MAX,
        )
        pin(self.store, lambda: self.recurring.needed_position)
        await self.recurring.start()
        self._writing = asyncio.create_task(self.recurring._events.run())

    def _put(self, topic: TopicView) -> None:
        self.routes.put(topic, self.broker)

    async def stop(self) -> None:
        """A clean stop."""
        self._writing.cancel()
        await asyncio.wait([self._writing])
        await self.recurring.close()
        await self.store.close()

    async def kill(self) -> None:
        """kill -9, and another start."""
        await abandon()
        self.disk.kill()
        await self.start()

    async def settle(self) -> None:
        """Everything that is due fires and is delivered."""
        while await self.recurring.step():
            pass

    async def pass_ms(self, ms: int) -> None:
        """The clock moves on, and then what is due fires."""
        self.clock.step(ms)
        await self.settle()

    async def sent(self, topic: str = "orders") -> list[Sent]:
        """What was delivered to a topic, partition by partition."""
        found = []
        view = self.routes.topic(topic)
        for partition in range(view.partitions):
            for entry in await entries_of(self.store, QueueKey(view.topic_id, partition)):
                for record in record_batch.decode(entry.batch):
                    headers = dict(record.headers)
                    name, due, missed = (
                        headers.get(header) for header in ("mq-recurring", "mq-deliver-at", "mq-recurring-missed")
                    )
                    assert name is not None
                    assert due is not None
                    value = record.value or b""
                    found.append(
                        Sent(name.decode(), value, int(due), int(missed or 0), record.key, record.timestamp, partition)
                    )
        return found

    async def dues(self) -> list[int]:
        """When delivered records were due, reckoned from the clock's start, in seconds."""
        return [(one.due_ms - FakeClock().now_ms()) // 1000 for one in await self.sent()]

    def get(self, name: str = "r") -> Recurring:
        return self.recurring.table.get(name)


@asynccontextmanager
async def world(partitions: int = 1) -> AsyncIterator[World]:
    """A server with topic `orders`."""
    made = World()
    await made.start()
    await made.broker.create_topic("orders", partitions)
    try:
        yield made
    finally:
        await made.stop()


def every(
    seconds: int, anchor_ms: int, *, value: bytes = b"v", missed: Missed = "once", topic: str = "orders"
) -> Definition:
    """A schedule that is due every so many seconds."""
    rule = Rule(every_ms=seconds * 1000, anchor_ms=anchor_ms)
    return Definition(topic, RecurringRecord(value=value), rule, missed)

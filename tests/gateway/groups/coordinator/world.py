"""A coordinator over a real store on a simulated disk, without threads, loops or real time: what happens by itself in a
server (looking for silent members, dead letters, snapshots, the timer) happens here when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

from gateway.brokers.local import LocalBroker
from gateway.codec.tags import batch_tag_hashes
from gateway.groups.coordinator.service import Coordinator
from gateway.groups.machines.progress import Start
from gateway.groups.machines.strategies.registry import StrategyRegistry
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import Receive
from gateway.routing.base import TopicView
from gateway.routing.table import RouteTable
from gateway.routing.tail_watcher import TailWatcher
from gateway.settings.limits import Limits
from store import Store, record_batch
from store.config import StoreConfig
from store.errors import TopicExists
from store.light_names import LightNames
from store.record_batch import Headers, Record
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Appended, Delay, QueueKey, Source
from tests.clock import FakeClock
from tests.simdisk import SimDisk
from tests.store.kit import SMALL, abandon, open_store

ORDERS = Subscription(frozenset(["orders"]))
IN_FLIGHT_MAX = 1000
GROUPS_MAX = 1000


async def inline(work: Callable[[], None]) -> None:
    """Run what waits for the disk in place."""
    work()


class PlainTimer:
    """Accepts schedules as entries of `__timer`; `fire` delivers what is due once, by looking at the whole log."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self._store = store
        self._clock = clock
        self.error: Exception | None = None
        self._firing = asyncio.Lock()

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        if self.error is not None:
            raise self.error
        (answer,) = await self._store.append([append], acks=acks)
        return answer

    async def fire(self) -> int:
        """Deliver what is due now; how many records that were."""
        async with self._firing:
            return await self._fire()

    async def _fire(self) -> int:
        delivered = await self._store.sources_since(0)
        offset, end = self._store.bounds(TIMER_QUEUE)
        count = 0
        while offset < end:
            read = await self._store.read(TIMER_QUEUE, offset, max_bytes=1 << 20)
            offset = read.next_offset
            for entry in read.entries:
                for index, record in enumerate(record_batch.decode(entry.batch)):
                    delay, source = Delay(*entry.delays[index]), Source(entry.position, index)
                    if delay.due_ms <= self._clock.now_ms() and source not in delivered:
                        batch = record_batch.encode(
                            [Record(record.key, record.value, record.timestamp, record.headers)]
                        )
                        queue = QueueKey(delay.topic_id, delay.partition)
                        await self._store.append(
                            [Append(queue=queue, batch=batch, record_count=1, json_values=True, sources=[source])],
                            acks=Acks.FLUSHED,
                        )
                        count += 1
        return count


class World:
    """One server's life on a disk. `start`, then `stop`, `kill` or `crash`, then `start` again."""

    def __init__(self, disk: SimDisk | None = None, config: StoreConfig = SMALL) -> None:
        self.disk = disk or SimDisk()
        self.config = config
        self.clock = FakeClock()
        self.monotonic_ms = 0
        self.limits = Limits(group_in_flight_max=IN_FLIGHT_MAX, groups_max=GROUPS_MAX)
        self.strategies = StrategyRegistry()
        self.store: Store
        self.timer: PlainTimer
        self.routes: RouteTable
        self.broker: LocalBroker
        self.groups: Coordinator
        self.draining: asyncio.Event
        self._writing: asyncio.Task[None]

    async def start(self) -> None:
        self.store = await open_store(self.disk, self.config, self.clock)
        self.timer = PlainTimer(self.store, self.clock)
        self.routes = RouteTable()
        self.draining = asyncio.Event()
        self.broker = LocalBroker(
            self.store, self.timer, name="b", on_topic=self._place, on_deleted=self.routes.remove
        )  # fmt: skip
        for topic in self.store.topics():
            if not topic.is_system:
                self._place(topic)
        self.groups = Coordinator(
            directory=self.config.root,
            files=self.disk,
            broker=self.broker,
            routes=self.routes,
            tail_watcher=TailWatcher(self.routes),
            own_topics=self,
            clock=self.clock,
            monotonic_ms=lambda: self.monotonic_ms,
            draining=self.draining,
            limits=self.limits,
            strategies=self.strategies,
            run_blocking=inline,
        )
        await self.groups.start()
        self._writing = asyncio.create_task(self.groups.log.run())

    def _place(self, topic: TopicView) -> None:
        self.routes.put(topic, self.broker)

    async def create_own_topic(self, name: str, partitions: int) -> TopicView:
        try:
            return await self.broker.create_topic(name, partitions, is_own=True)
        except TopicExists:
            return self.routes.topic(name)

    async def stop(self) -> None:
        """A clean stop."""
        self._writing.cancel()
        await asyncio.wait([self._writing])
        await self.groups.close()
        await self.store.close()

    async def kill(self) -> None:
        """kill -9."""
        await abandon()
        self.disk.kill()

    async def crash(self, seed: int) -> None:
        """The power fails, and the server starts again on what the disk has kept."""
        await abandon()
        self.disk = self.disk.crash(Random(seed))
        await self.start()

    async def tick(self, ms: int) -> None:
        """Time passes, and what happens by itself happens."""
        self.clock.step(ms)
        self.monotonic_ms += ms
        await self.timer.fire()
        await self.groups.stream.look()
        await self.groups.dead_letters.dead_letter_all()

    # What clients do

    async def topic(self, name: str = "orders", partitions: int = 2) -> None:
        await self.broker.create_topic(name, partitions)

    async def send(
        self,
        *values: bytes,
        topic: str = "orders",
        partition: int = 0,
        headers: Headers = (),
        acks: Acks = Acks.FLUSHED,
        light: str | None = None,
    ) -> int:
        """One batch, its records in this light queue; its first offset."""
        batch = record_batch.encode([Record(None, value, self.clock.now_ms(), headers) for value in values])
        append = Append(
            queue=self.routes.writable(topic, partition).queue,
            batch=batch,
            record_count=len(values),
            json_values=True,
            tag_hashes=batch_tag_hashes(batch),
            light=LightNames.of([[light.encode()] if light else []] * len(values)),
        )
        (answer,) = await self.broker.append([append], acks=acks)
        return answer.base_offset

    async def records(self, topic: str, partition: int = 0) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
        """Values and headers of all records of a partition."""
        queue = self.routes.writable(topic, partition).queue
        low, high = await self.broker.bounds(queue)
        found = []
        while low < high:
            read = await self.broker.read(queue, low, max_bytes=1 << 20)
            low = read.next_offset
            found += [(r.value, dict(r.headers)) for entry in read.entries for r in record_batch.decode(entry.batch)]
        return found


@asynccontextmanager
async def world(
    partitions: int = 2, *, values: Sequence[bytes] = (), config: StoreConfig = SMALL
) -> AsyncIterator[World]:
    """A server with topic `orders`, and these records in its first partition."""
    made = World(config=config)
    await made.start()
    await made.topic(partitions=partitions)
    if values:
        await made.send(*values)
    try:
        yield made
    finally:
        await made.stop()


def wanting(*topics: str, **settings: object) -> Receive:
    """A receive from the first record on."""
    return Receive(topics=topics or ("orders",), **{"start": Start.FIRST, **settings})  # type: ignore[arg-type]

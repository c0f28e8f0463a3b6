"""A broker in memory: entries in lists, a clock that stands still, failures on demand. And a whole gateway over it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

from gateway.api.producer import Producer
from gateway.api.read import Consumer
from gateway.brokers.base import ALONE
from gateway.codec.texts import TextCache
from gateway.groups.protocol import Groups
from gateway.main.metrics import Collector, registry_of
from gateway.routing.base import Attachment, Selector, TopicView
from gateway.routing.select import PartitionSelector
from gateway.routing.table import RouteTable
from gateway.routing.tail_watcher import TailWatcher
from gateway.settings.config import build
from gateway.settings.limits import Limits
from gateway.surfaces.http.context import Gateway, GatewayStats
from store import record_batch
from store.errors import AlreadyStored, IllegalTopic, OffsetMoved, SealedQueue, TopicExists
from store.topics import TIMER_QUEUE, Changes, KeyForm, TopicConfig, check_config
from store.types import (
    Acks,
    Append,
    Appended,
    Boundary,
    Bounds,
    Entry,
    Original,
    QueueKey,
    ReadResult,
    ReadStatus,
)
from tests.clock import FakeClock
from timer.errors import ScheduleKeyTaken
from timer.schedule import ScheduleId

NO_GROUPS = cast(Groups, object())
"""For gateways whose test has nothing to do with groups."""


class FakeTopic(NamedTuple):
    """A `TopicView`."""

    name: str
    topic_id: int
    partitions: int
    config: TopicConfig = TopicConfig()
    json_keys: KeyForm = KeyForm.RAW

    @property
    def raw_keys(self) -> bool:
        return self.json_keys is KeyForm.RAW


class FakeShard:
    """A shard of `__timer` that accepts all, or says what is `known`, or whose keys are `taken`."""

    served_by = ALONE

    def __init__(self, name: str) -> None:
        self.name = name
        self.schedules: list[tuple[Append, Sequence[bytes | None]]] = []
        self.known: Mapping[int, Original] | None = None
        self.taken: Mapping[int, ScheduleId | None] | None = None

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        if self.known is not None:
            raise AlreadyStored([self.known])
        if self.taken is not None:
            raise ScheduleKeyTaken(self.taken)
        self.schedules.append((append, keys))
        return Appended(1 << 48, 0, 0, acks)


class FakeBroker:
    """Implements `gateway.brokers.base.Broker` and topic creation. `error` is raised by every call while it is set.

    `waiting` is set when somebody waits at the end of a partition, so that a test knows when to append. While `hold` is
    not set, appends that are stored are not answered. `min_offsets` plays retention.
    """

    name = served_by = ALONE

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.error: Exception | None = None
        self.reasons: list[str] = []
        self.entries: dict[QueueKey, list[Entry]] = {}
        self.min_offsets: dict[QueueKey, int] = {}
        self.sealed: set[QueueKey] = set()
        self.appends: list[Append] = []
        self.schedules: list[Append] = []
        self.acks: list[Acks] = []
        self.reached: Acks | None = None
        self.waiting = asyncio.Event()
        self.hold: asyncio.Event | None = None
        self.append_count = self.read_count = 0  # calls
        self.on_topic: Callable[[TopicView], None] = lambda topic: None
        self.on_deleted: Callable[[TopicView], None] = lambda topic: None
        self.on_attached: Callable[[int, Attachment], None] = lambda topic_id, to: None
        self._topics: dict[str, FakeTopic] = {}
        self._topic_ids = itertools.count(16)  # none comes again
        self.watching: list[tuple[int, Callable[[Mapping[QueueKey, int]], None]]] = []
        self._position = 0

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        self._raise()
        for append in appends:
            if append.queue in self.sealed:
                raise SealedQueue("sealed")
            entries = self.entries.get(append.queue)
            next_offset = entries[-1].next_offset if entries else 0
            if append.expected_offset not in (None, next_offset):
                raise OffsetMoved(append.expected_offset or 0, next_offset)
        self.acks.append(acks)
        answers = [self._append(append, acks) for append in appends]
        self.append_count += 1
        for append, answer in zip(appends, answers, strict=True):
            for topic_id, wake in list(self.watching):
                if topic_id == append.queue.topic_id:
                    wake({append.queue: answer.base_offset + append.record_count})
        if self.hold is not None:
            await self.hold.wait()
        return answers

    def begin_append(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        return asyncio.ensure_future(self.append(appends, acks=acks))

    def _append(self, append: Append, acks: Acks) -> Appended:
        self.appends.append(append)
        entries = self.entries.setdefault(append.queue, [])
        base_offset = entries[-1].next_offset if entries else 0
        batch = memoryview(record_batch.with_base_offset(append.batch, base_offset))
        now_ms = self.clock.now_ms()
        entry = Entry(
            self._position,
            len(batch),
            append.queue,
            "",
            base_offset,
            append.record_count,
            now_ms,
            append.json_values,
            batch,
            append.tag_hashes,
        )
        entries.append(entry)
        self._position += len(batch)
        return Appended(entry.position, base_offset, now_ms, self.reached or acks)

    def wake(self) -> None:
        """Let those who wait at an end look again."""
        for _, wake in list(self.watching):
            wake({})

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        self._raise()
        self.acks.append(acks)
        assert append.queue == TIMER_QUEUE
        self.schedules.append(append)
        position = self._position
        self._position += len(append.batch)
        return Appended(position, len(self.schedules) - 1, self.clock.now_ms(), self.reached or acks)

    async def read(
        self,
        queue: QueueKey,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        self._raise()
        self.read_count += 1
        low, high = self._bounds(queue)
        if offset < low:
            return ReadResult(ReadStatus.TOO_SMALL, [], low, high, low)
        if offset >= high:
            status = ReadStatus.TOO_LARGE if offset > high else ReadStatus.AT_END if high else ReadStatus.EMPTY
            return ReadResult(status, [], low, high, high)
        found: list[Entry] = []
        size = 0
        next_offset = offset
        for entry in self.entries[queue]:
            if entry.next_offset <= offset:
                continue
            if end_offset is not None and entry.base_offset >= max(end_offset, offset + 1):
                break
            if tag_hashes is None or not tag_hashes.isdisjoint(entry.tag_hashes):
                size += entry.size
                if found and size > max_bytes:
                    break
                found.append(entry)
            next_offset = entry.next_offset
        return ReadResult(ReadStatus.FOUND if found else ReadStatus.NO_MATCH, found, low, high, next_offset)

    def watch(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> Callable[[], None]:
        self.watching.append((topic_id, wake))
        return lambda: self.watching.remove((topic_id, wake))

    async def bounds(self, queue: QueueKey) -> Bounds:
        self._raise()
        return self._bounds(queue)

    def _bounds(self, queue: QueueKey) -> Bounds:
        entries = self.entries.get(queue)
        return Bounds(self.min_offsets.get(queue, 0), entries[-1].next_offset if entries else 0)

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        bounds = self._bounds(queue)
        if boundary is Boundary.UPPER:
            time_ms += 1
        later = (entry.base_offset for entry in self.entries.get(queue, []) if entry.store_time_ms >= time_ms)
        found = max(next(later, bounds.max_offset), bounds.min_offset)
        return max(found - 1, bounds.min_offset) if boundary is Boundary.UPPER else found

    async def create_queue(self, queue: QueueKey) -> None:
        self.entries.setdefault(queue, [])

    async def seal_queue(self, queue: QueueKey) -> int:
        self.sealed.add(queue)
        return self._bounds(queue).max_offset

    async def first_kept(self, queue: QueueKey) -> int:
        return self._bounds(queue).min_offset

    async def expire_queue(self, queue: QueueKey, before_offset: int) -> None:
        self.min_offsets[queue] = max(before_offset, self.min_offsets.get(queue, 0))

    async def create_topic(
        self, name: str, partitions: int, config: TopicConfig | None = None, json_keys: KeyForm | None = None
    ) -> FakeTopic:
        self._raise()
        check_config(config or TopicConfig(), retention_ms_max=None)
        if not name.replace("-", "").isalnum():
            raise IllegalTopic(f"{name} is no name")
        existing = self._topics.get(name)
        if existing is not None and existing.partitions != partitions:
            raise TopicExists(f"{name} has {existing.partitions} partitions")
        return existing or self.add_topic(name, partitions, config, json_keys)

    def add_topic(
        self, name: str, partitions: int, config: TopicConfig | None = None, json_keys: KeyForm | None = None
    ) -> FakeTopic:
        """A topic that was not there."""
        topic = FakeTopic(name, next(self._topic_ids), partitions, config or TopicConfig(), json_keys or KeyForm.RAW)
        self._topics[name] = topic
        self.on_topic(topic)
        return topic

    async def grow_topic(self, name: str, partitions: int) -> FakeTopic:
        self._raise()
        topic = self._topics[name]
        if partitions < topic.partitions:
            raise IllegalTopic(f"{name} cannot shrink")
        self._topics[name] = topic = topic._replace(partitions=partitions)
        self.on_topic(topic)
        return topic

    async def attach_topic(self, name: str, to: Attachment) -> FakeTopic:
        topic = await self.create_topic(name, 2)
        self.on_attached(topic.topic_id, to)
        return topic

    async def configure_topic(self, name: str, changes: Changes) -> FakeTopic:
        self._raise()
        config = self._topics[name].config.changed(changes)
        check_config(config, retention_ms_max=None)
        self._topics[name] = topic = self._topics[name]._replace(config=config)
        self.on_topic(topic)
        return topic

    async def delete_topic(self, name: str) -> None:
        self._raise()
        self.on_deleted(self._topics.pop(name))

    def brokers(self) -> Sequence[str]:
        return (self.name,)

    def ready(self) -> Sequence[str]:
        return self.reasons

    @property
    def stored_count(self) -> int:
        """Records appended or scheduled."""
        return sum(append.record_count for append in self.appends) + sum(
            append.record_count for append in self.schedules
        )

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


class _Watcher(TailWatcher):
    """Says when somebody waits."""

    def __init__(self, routes: RouteTable, on_watch: Callable[[], None]) -> None:
        super().__init__(routes)
        self._on_watch = on_watch

    def watch(self, topic: str, partition: int, end: int, wake: Callable[[], None]) -> Callable[[], None]:
        self._on_watch()
        return super().watch(topic, partition, end, wake)


def fake_gateway(
    clock: FakeClock, *, selector: Selector | None = None, limits: Limits | None = None, **settings: object
) -> tuple[Gateway, FakeBroker]:
    """A gateway over a fresh fake broker. Settings are named as in `gateway.settings.config`, "__" for the dot."""
    broker = FakeBroker(clock)
    routes = RouteTable()
    broker.on_topic = lambda topic: routes.put(topic, broker)
    broker.on_deleted = routes.remove
    broker.on_attached = routes.attachments.__setitem__
    config = build({"data": Path("unused"), **{name.replace("__", "."): value for name, value in settings.items()}})
    if limits is not None:
        config = replace(config, limits=limits)
    producer = Producer(
        routes,
        selector or PartitionSelector(),
        clock=clock,
        limits=config.limits,
        acks=config.store.acks,
        compress=config.compression == "zstd",
    )
    stats = GatewayStats()
    gateway = Gateway(
        version="1.2.3",
        config=config,
        limits=config.limits,
        clock=clock,
        routes_table=routes,
        admin=broker,
        producer=producer,
        consumer=Consumer(routes, _Watcher(routes, broker.waiting.set)),
        groups=NO_GROUPS,
        stats=stats,
        texts=TextCache(config.limits.rendered_bytes_max),
        metrics=registry_of(Collector(stats, producer)),
        draining=asyncio.Event(),
    )
    return gateway, broker

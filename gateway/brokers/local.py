"""The embedded broker: the store and the timer of this node. A delayed record is an append to system topic `__timer`,
which the timer follows; so accepting a schedule costs what a send costs and is exactly as durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, Unpack

from store import Store
from store.errors import BrokerLacks, UnknownQueue
from store.topics import Changes, Topic, TopicChoices
from store.types import (
    Acks,
    Append,
    Appended,
    Boundary,
    Bounds,
    ExportedIds,
    LightRead,
    LightWake,
    QueueKey,
    ReadResult,
)
from store.uncancelled import to_its_end


class Scheduling(Protocol):
    """Accepts entries of `__timer`, within the bounds on what may be pending. `timer.service.TimerService` is one."""

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """As `Store.append`; raises TooManySchedules or ScheduleKeyTaken, with nothing stored."""
        ...


class LocalBroker:
    """`Broker` over a store and a timer. The route table is told of each topic that was made or grown (`on_topic`)
    or deleted (`on_deleted`) before the change is answered."""

    def __init__(
        self,
        store: Store,
        timer: Scheduling,
        *,
        name: str,
        on_topic: Callable[[Topic], None],
        on_deleted: Callable[[Topic], None],
    ) -> None:
        self._store = store
        self._timer = timer
        self._name = name
        self._on_topic = on_topic
        self._on_deleted = on_deleted

    @property
    def name(self) -> str:
        """See `Broker.name`."""
        return self._name

    @property
    def served_by(self) -> str:
        """See `Broker`."""
        return self._name

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """See `Broker.append`."""
        return await self._store.append(appends, acks=acks)

    def begin_append(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        """See `Broker.begin_append`."""
        return self._store.begin_append(appends, acks=acks)

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See `Broker.schedule`."""
        return await self._timer.schedule(append, acks=acks, keys=keys)

    async def read(
        self,
        queue: QueueKey,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        """See `Broker.read`."""
        return await self._store.read(queue, offset, max_bytes=max_bytes, end_offset=end_offset, tag_hashes=tag_hashes)

    def watch(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> Callable[[], None]:
        """See `Broker.watch`."""
        return self._store.watch_topic(topic_id, wake)

    async def light_bounds(self, queue: QueueKey, name: bytes) -> Bounds:
        """See `Store.light_bounds`."""
        return self._store.light_bounds(queue, name)

    async def read_light(
        self, queue: QueueKey, name: bytes, offset: int, *, max_records: int, max_bytes: int
    ) -> LightRead:
        """See `Store.read_light`."""
        return await self._store.read_light(queue, name, offset, max_records=max_records, max_bytes=max_bytes)

    async def light_names(self, queue: QueueKey, prefix: bytes, *, after: bytes, count: int) -> list[bytes]:
        """See `Store.light_names`."""
        return self._store.light_names(queue, prefix, after=after, count=count)

    def note_light(self) -> None:
        """See `Store.note_light`."""
        self._store.note_light()

    def watch_light(self, queue: QueueKey, name: bytes, end: int | None, wake: LightWake) -> Callable[[], None]:
        """See `LightQueues.watch_light`."""
        if end is not None and self._store.light_end(queue, name) != end:
            wake(None)
        return self._store.watch_light(queue, name, wake)

    async def bounds(self, queue: QueueKey) -> Bounds:
        """See `Broker.bounds`."""
        return self._store.bounds(queue)

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        """See `Broker.offset_for_time`."""
        return await self._store.offset_for_time(queue, time_ms, boundary)

    async def first_kept(self, queue: QueueKey) -> int:
        """See `Broker.first_kept`."""
        return self._store.bounds(queue).min_offset

    async def create_queue(self, queue: QueueKey) -> None:
        """See `Broker.create_queue`."""
        await self._store.create_queue(queue)

    async def seal_queue(self, queue: QueueKey) -> int:
        """See `Broker.seal_queue`."""
        return await self._store.seal_queue(queue)

    async def export_ids(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> ExportedIds:
        """See `Broker.export_ids`."""
        return await self._store.export_ids(queue, into=into, shift=shift, since=since)

    async def leave_queue(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> tuple[int, ExportedIds]:
        """See `NodeBroker.leave_queue`."""
        end = await self._store.seal_queue(queue)
        return end, await self._store.export_ids(queue, into=into, shift=shift, since=since)

    async def import_ids(self, content: bytes) -> None:
        """See `Broker.import_ids`."""
        await self._store.import_ids(content)

    async def expire_queue(self, queue: QueueKey, before_offset: int) -> None:
        """See `Broker.expire_queue`."""
        await self._store.expire_queue(queue, before_offset)

    async def create_topic(self, name: str, partitions: int, **choices: Unpack[TopicChoices]) -> Topic:
        """The topic, created if need be; durable on return. Raises IllegalTopic, TopicExists."""
        try:
            topic, is_new = await self._store.create_topic(name, partitions, **choices)
        except asyncio.CancelledError:  # it is made all the same
            self._tell(name)
            raise
        if is_new:
            self._tell(name)
        return topic

    def _tell(self, name: str) -> None:
        """Tell the route table of a topic as it is now; one that is not there stays away."""
        with suppress(UnknownQueue):
            self._on_topic(self._store.topic(name))

    async def attach_topic(self, name: str, to: object, room: object) -> Topic:
        """Raises BrokerLacks: a server without Kafka clusters has none of whose topics one could be."""
        raise BrokerLacks("this server knows no Kafka cluster: start it with --broker NAME=kafka://HOST:PORT")

    async def configure_topic(self, name: str, changes: Changes) -> Topic:
        """The topic with other choices; durable and in force on return. Raises UnknownQueue, IllegalTopic."""
        return await self._changed(self._store.configure_topic(name, changes))

    async def grow_topic(self, name: str, partitions: int) -> Topic:
        """The topic with this many partitions; durable on return. Raises UnknownQueue, IllegalTopic."""
        return await self._changed(self._store.grow_topic(name, partitions))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; durable on return. Raises UnknownQueue, IllegalTopic."""

        async def delete() -> None:
            self._on_deleted(await self._store.delete_topic(name))

        await to_its_end(delete())

    async def _changed(self, change: Awaitable[tuple[Topic, bool]]) -> Topic:
        """Make a change and tell the route table, also when the caller is gone: it would not hear of the
        topic until a restart."""

        async def make() -> Topic:
            topic, is_new = await change
            if is_new:
                self._tell(topic.name)
            return topic

        return await to_its_end(make())

    def ready(self) -> list[str]:
        """Why no record can be taken now; empty when all is well."""
        failure = self._store.failure
        return [] if failure is None else [str(failure)]

"""What other nodes ask this one for: its own store, the partitions of Kafka clusters that it owns, and attached topics,
as one broker. Queue keys tell them apart: a tenure has one that no embedded queue has, and no store has a queue of an
attached topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

from gateway.brokers.base import Broker, BrokerUnreachable, LightQueues, NodeBroker, all_stored
from gateway.brokers.kafka.attached import AttachedBroker
from gateway.brokers.kafka.broker import KafkaBroker
from store.errors import NoLightQueues, StoreError
from store.topics import TIMER_QUEUE
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

Schedules = Callable[[Append, Acks, Sequence[bytes | None]], Awaitable[Appended]]
"""As `Broker.schedule`."""


async def no_shards(append: Append, _acks: Acks, _keys: Sequence[bytes | None]) -> Appended:
    """Of a node that has none."""
    raise BrokerUnreachable(f"shard {append.queue} of delayed records is not here; nothing was stored")


class Beside:
    """`Broker` over the own one and Kafka clusters. `schedules` takes what is for shards of `__timer`."""

    def __init__(
        self, own: NodeBroker, kafka: Sequence[KafkaBroker | AttachedBroker], schedules: Schedules = no_shards
    ) -> None:
        self._own = own
        self._kafka = kafka
        self._schedules = schedules

    @property
    def name(self) -> str:
        """See `Broker.name`."""
        return self._own.name

    @property
    def served_by(self) -> str:
        """See `Broker`."""
        return self._own.name

    def queues_of(self, topic_id: int) -> list[QueueKey]:
        """What of a topic this node serves that is not in its store."""
        return [queue for kafka in self._kafka for queue in kafka.queues_of(topic_id)]

    def _of(self, queue: QueueKey) -> Broker:
        return next((kafka for kafka in self._kafka if kafka.has(queue)), self._own)

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """See `Broker.append`."""
        return await asyncio.shield(self.begin_append(appends, acks=acks))

    def begin_append(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        """See `Broker.begin_append`."""
        brokers = [self._of(append.queue) for append in appends]
        if all(broker is brokers[0] for broker in brokers):
            return brokers[0].begin_append(appends, acks=acks)
        begun = [_begun(broker, append, acks) for broker, append in zip(brokers, appends, strict=True)]
        return asyncio.ensure_future(all_stored(begun))

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See `Broker.schedule`."""
        if append.queue != TIMER_QUEUE:
            return await self._schedules(append, acks, keys)
        partitions = [QueueKey(delay.topic_id, delay.partition) for delay in append.delays]
        attached = (kafka for kafka in self._kafka if any(map(kafka.has, partitions)))
        broker: Broker = next(attached, self._own)
        return await broker.schedule(append, acks=acks, keys=keys)

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
        return await self._of(queue).read(
            queue, offset, max_bytes=max_bytes, end_offset=end_offset, tag_hashes=tag_hashes
        )

    def watch(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> Callable[[], None]:
        """See `Broker.watch`."""
        call_offs = [broker.watch(topic_id, wake) for broker in (self._own, *self._kafka)]

        def call_off() -> None:
            for each in call_offs:
                each()

        return call_off

    async def bounds(self, queue: QueueKey) -> Bounds:
        """See `Broker.bounds`."""
        return await self._of(queue).bounds(queue)

    async def first_kept(self, queue: QueueKey) -> int:
        """See `Broker.first_kept`."""
        return await self._of(queue).first_kept(queue)

    async def create_queue(self, queue: QueueKey) -> None:
        """See `Broker.create_queue`: of the own store."""
        await self._own.create_queue(queue)

    async def seal_queue(self, queue: QueueKey) -> int:
        """See `Broker.seal_queue`."""
        return await self._of(queue).seal_queue(queue)

    async def export_ids(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> ExportedIds:
        """See `Broker.export_ids`: of the own store."""
        return await self._own.export_ids(queue, into=into, shift=shift, since=since)

    async def leave_queue(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> tuple[int, ExportedIds]:
        """See `NodeBroker.leave_queue`: of the own store."""
        return await self._own.leave_queue(queue, into=into, shift=shift, since=since)

    async def import_ids(self, content: bytes) -> None:
        """See `Broker.import_ids`: to the own store."""
        await self._own.import_ids(content)

    async def expire_queue(self, queue: QueueKey, before_offset: int) -> None:
        """See `Broker.expire_queue`."""
        await self._of(queue).expire_queue(queue, before_offset)

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        """See `Broker.offset_for_time`."""
        return await self._of(queue).offset_for_time(queue, time_ms, boundary)

    # ---- light queues: of the own store, as a Kafka cluster has none -----------------------------------------------

    def _light_of(self, queue: QueueKey) -> LightQueues:
        if self._of(queue) is not self._own:
            raise NoLightQueues("the partition is on a Kafka cluster, which has no light queues")
        return cast(LightQueues, self._own)

    async def light_bounds(self, queue: QueueKey, name: bytes) -> Bounds:
        """See `LightQueues.light_bounds`."""
        return await self._light_of(queue).light_bounds(queue, name)

    async def read_light(
        self, queue: QueueKey, name: bytes, offset: int, *, max_records: int, max_bytes: int
    ) -> LightRead:
        """See `LightQueues.read_light`."""
        return await self._light_of(queue).read_light(queue, name, offset, max_records=max_records, max_bytes=max_bytes)

    async def light_names(self, queue: QueueKey, prefix: bytes, *, after: bytes, count: int) -> list[bytes]:
        """See `LightQueues.light_names`."""
        return await self._light_of(queue).light_names(queue, prefix, after=after, count=count)

    def note_light(self) -> None:
        """See `LightQueues.note_light`."""
        cast(LightQueues, self._own).note_light()

    def watch_light(self, queue: QueueKey, name: bytes, end: int | None, wake: LightWake) -> Callable[[], None]:
        """See `LightQueues.watch_light`."""
        return self._light_of(queue).watch_light(queue, name, end, wake)


def _begun(broker: Broker, append: Append, acks: Acks) -> asyncio.Future[list[Appended]]:
    """The append's own answer also when it is refused at once: those before it are under way, and may be stored."""
    try:
        return broker.begin_append([append], acks=acks)
    except StoreError as error:
        refused: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        refused.set_exception(error)
        return refused

"""Where records go that a group could not consume: through the timer into its retry topic, or to its dead letters.

    crash                                             what a restart finds
    after the copy is durable, before the record is   copy and record: the record is delivered again when its lease has
    settled                                           ended, and so is the copy: at least once
    before the copy is durable                        the record, on lease or waiting

So a record is settled only after its copy is durable; a refused copy (full disk, too many schedules) leaves it open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.codec.tags import batch_tag_hashes
from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.records import Stored
from gateway.groups.machines.copies import Origin, dead_letter_topic, origin_of, retry_topic
from gateway.groups.machines.progress import Place
from gateway.routing.base import TopicView
from gateway.routing.told import told
from store import record_batch
from store.limits import MiB
from store.record_batch import Record
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay, QueueKey

BATCH_BYTES = 4 * MiB
"""Copies are gathered up to this size for one batch; one record alone may be larger."""

_RECORD_OVERHEAD_BYTES = 512

DEAD_LETTER_PARTITIONS = 1


class Copy(NamedTuple):
    """A record to store. `json_values`: key and value are known to be JSON; a raw key is not, as a topic of a group
    takes records of topics with either form of keys. `due_ms` (epoch ms): for delayed ones."""

    record: Record
    json_values: bool
    partition: int = 0
    due_ms: int = 0

    @classmethod
    def of(cls, stored: Stored, record: Record, partition: int = 0, due_ms: int = 0) -> Copy:
        """The copy `record` of a stored one."""
        return cls(record, stored.json_values and not (stored.raw_keys and record.key is not None), partition, due_ms)


class CopyWriter:
    """Stores copies in the topics of groups, made when first needed."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def schedule(self, group: str, copies: Sequence[Copy]) -> None:
        """Have copies delivered to the group's retry topic when they are due; durable on return. Raises StoreError or
        TooManySchedules: what was accepted before it is delivered all the same."""
        view = await self._retry_topic(group)
        for part in _cut(copies):
            route = self._context.routes.writable(view.name, 0)
            delays = [Delay(copy.due_ms, view.topic_id, copy.partition % view.partitions) for copy in part]
            append = _append_of(TIMER_QUEUE, part, delays)
            if (shard := self._context.routes.timer(view.topic_id, 0)) is not None:
                await shard.schedule(append, acks=Acks.FLUSHED)
            else:
                scheduling = route.broker.schedule(append, acks=Acks.FLUSHED)
                await told(self._context.routes, route.broker, scheduling)
        self._context.stats.retry_count += len(copies)

    async def retry_now(self, group: str, copies: Sequence[Copy]) -> None:
        """Put copies into the group's retry topic; durable on return. Raises StoreError."""
        view = await self._retry_topic(group)
        by_partition: dict[int, list[Copy]] = {}
        for copy in copies:
            by_partition.setdefault(copy.partition % view.partitions, []).append(copy)
        for partition, lane in sorted(by_partition.items()):
            await self._append(view.name, partition, lane)

    async def dead_letter(self, group: str, copies: Sequence[Copy]) -> None:
        """Put copies into the group's dead-letter topic; durable on return. Raises StoreError."""
        view = await self._own_topic(dead_letter_topic(group), DEAD_LETTER_PARTITIONS)
        await self._append(view.name, 0, copies)
        self._context.stats.dead_letter_count += len(copies)

    async def _append(self, topic: str, partition: int, copies: Sequence[Copy]) -> None:
        route = self._context.routes.writable(topic, partition)
        for part in _cut(copies):
            appending = route.broker.append([_append_of(route.queue, part)], acks=Acks.FLUSHED)
            await told(self._context.routes, route.broker, appending)

    async def _retry_topic(self, group: str) -> TopicView:
        return await self._own_topic(retry_topic(group), self._context.table.config(group).retry_partitions)

    async def _own_topic(self, name: str, partitions: int) -> TopicView:
        known = self._context.find_topic(name)
        return known or await self._context.own_topics.create_own_topic(name, partitions)


def copied_from(group: str, topic: str, key: Place, stored: Stored, attempts: int) -> Origin:
    """Where a record came from first, after so many deliveries. Only what we wrote ourselves is believed."""
    first = origin_of(stored.record.headers) if topic == retry_topic(group) else None
    if first is not None:
        return first._replace(attempts=attempts)
    if key.name:
        return Origin(topic, key.partition, stored.record.offset, attempts, stored.raw_keys, key.name, stored.offset)
    return Origin(topic, key.partition, stored.offset, attempts, stored.raw_keys)


def _append_of(queue: QueueKey, copies: Sequence[Copy], delays: Sequence[Delay] = ()) -> Append:
    batch = record_batch.encode([copy.record for copy in copies])
    return Append(
        queue=queue,
        batch=batch,
        record_count=len(copies),
        json_values=all(copy.json_values for copy in copies),
        tag_hashes=batch_tag_hashes(batch),
        delays=delays,
    )


def _cut(copies: Sequence[Copy]) -> Iterator[Sequence[Copy]]:
    """Copies in parts of about `BATCH_BYTES`."""
    part: list[Copy] = []
    size = 0
    for copy in copies:
        record = copy.record
        own = len(record.key or b"") + len(record.value or b"") + _RECORD_OVERHEAD_BYTES
        own += sum(len(name) + len(value or b"") for name, value in record.headers)
        if part and size + own > BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(copy)
        size += own
    if part:
        yield part

"""What the timer asks of others: the log it follows and appends to, the partitions it delivers to, and who runs its
waits for the disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from store.errors import StoreError
from store.light_names import LightNames
from store.types import Acks, Append, Appended, Boundary, Bounds, Entry, QueueKey, ReadResult, Source


class Log(Protocol):
    """What the timer asks of the store. Only durable entries are seen through it."""

    @property
    def end_position(self) -> int:
        """Exclusive end of the dispatched log. An append called from now on lands at or after it."""
        ...

    def bounds(self, queue: QueueKey) -> Bounds:
        """As Store.bounds."""
        ...

    async def read(self, queue: QueueKey, offset: int, *, max_bytes: int) -> ReadResult:
        """As Store.read."""
        ...

    async def wait_for(self, queue: QueueKey, offset: int, timeout_ms: int) -> bool:
        """As Store.wait_for."""
        ...

    async def read_entry(self, position: int) -> Entry:
        """The entry at a position. Raises Corrupt."""
        ...

    def entry_at_hand(self, position: int) -> Entry | None:
        """The entry at a position, where that takes no wait; else None. Raises Corrupt."""
        ...

    async def read_entries(self, positions: Sequence[int]) -> list[Entry]:
        """Entries at positions, in their order. Raises Corrupt."""
        ...

    async def sources_since(self, position: int) -> set[Source]:
        """Sources of all entries (those of `__timer` too) that lie at or after `position`."""
        ...

    async def yield_to_loop(self) -> None:
        """As Store.yield_to_loop: between two pieces of the timer's work."""
        ...

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """As Store.append. When it raises UnknownQueue, RecordTooLarge, Overloaded or DiskFull, it has stored none of
        `appends`."""
        ...

    async def refuse_known(self, appends: Sequence[Append], *, acks: Acks) -> None:
        """As Store.refuse_known: raise AlreadyStored when an append would."""
        ...


class PartitionedLog(Log, Protocol):
    """A log that has the partitions, too, to which the timer delivers."""

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        """As Store.offset_for_time."""
        ...


class Target(NamedTuple):
    """Where a record goes when it is due: a partition. In which queue that lies, the timer does not know."""

    topic_id: int
    partition: int


class Due(NamedTuple):
    """Due records of one partition, as one batch. `sources` names for each the copy of the schedule that is consumed,
    and so says which record it is however often it is sent."""

    target: Target
    batch: bytearray
    record_count: int
    json_values: bool
    tag_hashes: Sequence[int]
    sources: Sequence[Source]
    light: LightNames | None = None
    """The light queues of the records."""


Delivered = Sequence[int] | StoreError | None
"""What became of a batch: the offsets of its records; None: not stored, to be tried again; an error: it was refused for
what is in it, and nothing of it was stored."""


class Partitions(Protocol):
    """The partitions that delays name."""

    async def deliver(self, dues: Sequence[Due]) -> Sequence[Delivered]:
        """Store due records in their partitions, those of one partition in their order; durable on return. What became
        of each batch. A record that was stored by an earlier call is not stored again. Raises UnknownQueue,
        RecordTooLarge, Overloaded or DiskFull when nothing was stored."""
        ...

    def has_moved(self, target: Target) -> bool:
        """Whether a partition is elsewhere by now than where its last batch was not stored."""
        ...

    async def offset_for_time(self, target: Target, time_ms: int) -> int:
        """The offset of the first record stored at or after a time. Raises UnknownQueue, or what reading raises."""
        ...

    async def read(self, target: Target, offset: int, *, max_bytes: int) -> ReadResult:
        """As `Log.read`, of a partition."""
        ...


class OwnPartitions:
    """The partitions of a log whose queues they are, for a timer without a server above it. A restart learns from the
    log which records were stored."""

    def __init__(self, log: PartitionedLog) -> None:
        self._log = log

    async def deliver(self, dues: Sequence[Due]) -> Sequence[Delivered]:
        """See `Partitions`."""
        appendeds = await self._log.append([append_of(due, QueueKey(*due.target)) for due in dues], acks=Acks.FLUSHED)
        return [
            range(appended.base_offset, appended.base_offset + due.record_count)
            for due, appended in zip(dues, appendeds, strict=True)
        ]

    def has_moved(self, target: Target) -> bool:
        """See `Partitions`."""
        return False

    async def offset_for_time(self, target: Target, time_ms: int) -> int:
        """See `Partitions`."""
        return await self._log.offset_for_time(QueueKey(*target), time_ms, Boundary.LOWER)

    async def read(self, target: Target, offset: int, *, max_bytes: int) -> ReadResult:
        """See `Partitions`."""
        return await self._log.read(QueueKey(*target), offset, max_bytes=max_bytes)


def append_of(due: Due, queue: QueueKey) -> Append:
    """The append that delivers due records to the queue in which their partition lies now."""
    return Append(
        queue=queue,
        batch=due.batch,
        record_count=due.record_count,
        json_values=due.json_values,
        tag_hashes=due.tag_hashes,
        sources=due.sources,
        light=due.light,
    )


class TopicKey(NamedTuple):
    """A schedule key: its sender's name for a schedule, UTF-8, within a topic."""

    topic_id: int
    key: bytes


class KeyRow(NamedTuple):
    """Where a schedule key led when intake met it last: which copy of the schedule, and the second of its slot."""

    source: Source
    slot_s: int


class KeyIndex(Protocol):
    """Rows of schedule keys on disk; `timer.key_index.SqliteKeyIndex` is one. Its calls wait for the disk, and raise
    OSError."""

    queue_offset: int
    """Up to here the rows know every record of `__timer`; -1 when there are none, or none that can be read."""

    @property
    def is_used(self) -> bool:
        """Whether there ever was a row since `reset`."""
        ...

    def find(self, keys: Iterable[TopicKey]) -> dict[TopicKey, Source]:
        """Where keys lead; those without a row are left out. Only once it is used."""
        ...

    def commit(self, rows: Mapping[TopicKey, KeyRow], queue_offset: int, *, before_s: int | None) -> None:
        """Put rows in, in place of those of the same keys; first take out those of slots before a second. All of it, or
        nothing; durable on return."""
        ...

    def all_rows(self) -> Iterable[tuple[TopicKey, KeyRow]]:
        """All rows, in no order. Only once it is used."""
        ...

    def reset(self) -> None:
        """Forget all rows."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...


RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that waits for the disk without holding up the event loop."""

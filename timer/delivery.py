"""From due schedules to appends: bodies out of the log, one batch for each target queue. Pure but for reading entries.

A delivered record is the accepted one (key, value, timestamp, headers) plus two headers:

    mq-deliver-at   the due time, decimal epoch ms
    mq-schedule-id  the schedule's id; see timer/schedule.py

The entry it travels in names its *source*: the `__timer` entry and record index it was copied from. A record that
rolls is copied the same way, into another `__timer` entry, with its delay and origin. So each accepted copy has
exactly one source naming it once it is consumed, and a restart learns from the log which copies are consumed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from store import record_batch
from store.errors import Corrupt, StoreError, StoreStopped
from store.limits import MiB
from store.record_batch import Headers, Record
from store.types import Append, Delay, Entry, QueueKey, Source
from timer.open_slots import Item
from timer.schedule import spell_schedule_id

TIMER_QUEUE = QueueKey(2, 0)
"""The queue of the system topic `__timer`: every accepted schedule, in the order of acceptance."""

DELIVER_AT_HEADER = "mq-deliver-at"
SCHEDULE_ID_HEADER = "mq-schedule-id"
_OUR_HEADERS = frozenset((DELIVER_AT_HEADER, SCHEDULE_ID_HEADER))

_RECORD_OVERHEAD_BYTES = 128  # framing, our two headers and the record's share of the entry's extension
_new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
_READ_AHEAD_BYTES = 4 * MiB
_READ_AHEAD_COUNT = 1000
_DECODED_OVERHEAD_BYTES = 300  # what Python adds to a decoded record


PlainRecord = tuple[bytes | None, bytes | None, int, Headers]
"""A Record as a plain tuple. Bodies holds a hundred thousand; unlike named ones, the garbage collector soon leaves
plain tuples of plain things alone, and each of its looks at so many would take a tenth of a second."""


class Body(NamedTuple):
    """A `__timer` entry, decoded."""

    records: Sequence[PlainRecord]
    delays: Sequence[Delay]
    tag_hashes: Sequence[int]
    json_values: bool
    store_time_ms: int
    size_bytes: int


@dataclass(slots=True)
class Group:
    """Due records of one target queue, in order: what becomes one batch."""

    queue: QueueKey
    size_bytes: int = 0
    items: list[Item] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)  # filled when the group rolls
    tag_hashes: list[int] = field(default_factory=list)
    tagged: bool = False
    json_values: bool = True

    def append(self) -> Append:
        """The append that delivers (or rolls) the group. Raises RecordTooLarge."""
        return Append(
            queue=self.queue,
            batch=record_batch.encode(self.records),
            record_count=len(self.records),
            json_values=self.json_values,
            tag_hashes=self.tag_hashes if self.tagged else (),
            delays=self.delays,
            sources=self.sources,
        )

    def halves(self) -> tuple[Group, Group]:
        """The same records as two groups of half the size."""
        middle = len(self.records) // 2
        return self._part(0, middle), self._part(middle, len(self.records))

    def _part(self, start: int, stop: int) -> Group:
        return Group(
            self.queue,
            self.size_bytes // 2,
            self.items[start:stop],
            self.records[start:stop],
            self.sources[start:stop],
            self.delays[start:stop],
            self.tag_hashes[start:stop],
            self.tagged,
            self.json_values,
        )


class Picked(NamedTuple):
    """One due record, taken out of its body."""

    item: Item
    record: Record
    delay: Delay
    tag_hash: int
    json_values: bool
    size_bytes: int


def pick(item: Item, body: Body) -> Picked:
    """Take one record out of its body. Raises Corrupt when the entry is not what the schedule says."""
    index = item[2]
    if index >= len(body.records) or index >= len(body.delays):
        raise Corrupt("commitlog", item[1], f"the entry has no delayed record {index}")
    record = _new(Record, body.records[index])
    key, value, _, headers = record
    size_bytes = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    if headers:
        size_bytes += sum(len(name) + len(content or b"") + 4 for name, content in headers)
    tag_hash = body.tag_hashes[index] if body.tag_hashes else 0
    return _new(Picked, (item, record, body.delays[index], tag_hash, body.json_values, size_bytes))


class Grouping:
    """Sorts due records into groups. Groups of one queue follow each other in order."""

    def __init__(self, *, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._open: dict[QueueKey, Group] = {}
        self.firing: list[Group] = []
        self.rolling: list[Group] = []

    def add(self, picked: Picked) -> None:
        """Add one due record."""
        item, record, delay, tag_hash, json_values, size_bytes = picked
        due_ms, topic_id, queue_id, origin_position, origin_index = delay
        _, position, record_index, _, rolls = item
        if origin_position < 0:
            origin_position, origin_index = position, record_index
        if rolls:
            queue = TIMER_QUEUE
        else:
            queue = _new(QueueKey, (topic_id, queue_id))
            key, value, timestamp_ms, headers = record
            kept = [header for header in headers if header[0] not in _OUR_HEADERS] if headers else []
            kept.append((DELIVER_AT_HEADER, b"%d" % due_ms))
            kept.append((SCHEDULE_ID_HEADER, spell_schedule_id(due_ms, origin_position, origin_index)))
            record = _new(Record, (key, value, timestamp_ms, kept))
        group = self._open.get(queue)  # nothing fires into the timer's own queue, so the key is enough
        if group is None or group.size_bytes + size_bytes > self._batch_bytes_max:
            group = self._open[queue] = Group(queue)
            (self.rolling if rolls else self.firing).append(group)
        group.size_bytes += size_bytes
        group.items.append(item)
        group.records.append(record)
        group.sources.append(_new(Source, (position, record_index)))
        if rolls:
            group.delays.append(Delay(due_ms, topic_id, queue_id, origin_position, origin_index))
        group.tag_hashes.append(tag_hash)
        if tag_hash:
            group.tagged = True
        if not json_values:
            group.json_values = False


class Bodies:
    """Reads `__timer` entries, many in one go; keeps the most recently used ones decoded, up to a number of bytes."""

    def __init__(
        self,
        read_entry: Callable[[int], Awaitable[Entry]],
        read_entries: Callable[[Sequence[int]], Awaitable[list[Entry]]],
        *,
        bytes_max: int,
    ) -> None:
        self._read_entry = read_entry
        self._read_entries = read_entries
        self._bytes_max = bytes_max
        self._bytes = 0
        self._bodies: OrderedDict[int, Body] = OrderedDict()
        self._read_bytes = 0  # the newest go's, and how many entries they were
        self._read_count = 0

    async def get(self, position: int) -> Body:
        """The body at a log position. Raises what the log raises, or MalformedBatch."""
        body = self._bodies.get(position)
        if body is not None:
            self._bodies.move_to_end(position)
            return body
        return self._keep(await self._read_entry(position))

    async def read_ahead(self, positions: Sequence[int]) -> int:
        """Read the first of some entries in one go, as many as look like `_READ_AHEAD_BYTES`; return how many `get` has
        at hand now. One that cannot be read is left to `get`, which says why. Raises StoreStopped."""
        mean_bytes = self._read_bytes // self._read_count if self._read_count else _READ_AHEAD_BYTES
        ahead = positions[: max(1, min(_READ_AHEAD_COUNT, _READ_AHEAD_BYTES // max(1, mean_bytes)))]
        missing = [position for position in ahead if position not in self._bodies]
        if missing:
            try:
                entries = await self._read_entries(missing)
            except StoreStopped:
                raise
            except StoreError:
                return len(ahead)
            self._read_count = len(entries)
            self._read_bytes = sum(entry.size for entry in entries)
            for entry in entries:
                with suppress(StoreError):
                    self._keep(entry)
                await asyncio.sleep(0)
        return len(ahead)

    def _keep(self, entry: Entry) -> Body:
        records = tuple(
            (record.key, record.value, record.timestamp, tuple(record.headers))
            for record in record_batch.decode(entry.batch)
        )
        size_bytes = len(entry.batch) + _DECODED_OVERHEAD_BYTES * len(records)
        body = Body(records, entry.delays, entry.tag_hashes, entry.json_values, entry.store_time_ms, size_bytes)
        self._bodies[entry.position] = body
        self._bytes += size_bytes
        while self._bytes > self._bytes_max and len(self._bodies) > 1:
            self._bytes -= self._bodies.popitem(last=False)[1].size_bytes
        return body

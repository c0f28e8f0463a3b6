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
from store.entry import packed_delays, packed_sources, unpack_delay
from store.errors import Corrupt, StoreError, StoreStopped
from store.limits import MiB
from store.packed import Packed
from store.record_batch import Headers, Record
from store.types import Append, Delay, Entry, QueueKey, Source
from timer.items import Item, source_of, source_row, unpack_item
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
_TURN_RECORDS = 128  # decoded between two turns of the event loop
_DECODED_OVERHEAD_BYTES = 300  # what Python adds to a decoded record


class Body(NamedTuple):
    """A `__timer` entry, decoded: a column for each field. Bodies holds a hundred thousand records; as objects of their
    own, each look of the garbage collector at them would take a tenth of a second."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]
    headers: Sequence[Headers]
    delays: Packed[Delay]
    tag_hashes: Sequence[int]
    json_values: bool
    store_time_ms: int
    size_bytes: int


class Picked(NamedTuple):
    """One record, taken out of its body."""

    record: Record
    delay: Delay
    tag_hash: int
    json_values: bool
    size_bytes: int


def pick(source: Source, body: Body) -> Picked:
    """Take one record out of its body. Raises Corrupt when the entry is not what the schedule says."""
    index = _checked(source, body)
    record = Record(body.keys[index], body.values[index], body.timestamps_ms[index], body.headers[index])
    tag_hash = body.tag_hashes[index] if body.tag_hashes else 0
    return Picked(record, body.delays[index], tag_hash, body.json_values, _record_bytes(*record))


def _checked(source: Source, body: Body) -> int:
    position, index = source
    if index >= len(body.keys) or index >= len(body.delays):
        raise Corrupt("commitlog", position, f"the entry has no delayed record {index}")
    return index


def _record_bytes(key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers) -> int:
    size_bytes = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    if headers:
        size_bytes += sum(len(name) + len(content or b"") + 4 for name, content in headers)
    return size_bytes


class DueRecords:
    """Due records of one go, in order: a column for each field, filled body by body."""

    def __init__(self, items: Sequence[Item]) -> None:
        count = len(items)
        self.items = items
        self.keys: list[bytes | None] = [None] * count
        self.values: list[bytes | None] = [None] * count
        self.timestamps_ms = [0] * count
        self.headers: list[Headers] = [()] * count
        self.delays = [b""] * count
        self.tag_hashes = [0] * count
        self.json_values = bytearray(count)
        self.sizes_bytes = [0] * count

    def fill(self, numbers: Sequence[int], body: Body) -> int:
        """Take the records of some items, all of this body; return their bytes. Raises Corrupt as `pick`."""
        items, row = self.items, body.delays.row
        total_bytes = 0
        for number in numbers:
            index = _checked(source_of(items[number]), body)
            key = self.keys[number] = body.keys[index]
            value = self.values[number] = body.values[index]
            timestamp_ms = self.timestamps_ms[number] = body.timestamps_ms[index]
            headers = self.headers[number] = body.headers[index]
            self.delays[number] = row(index)
            if body.tag_hashes:
                self.tag_hashes[number] = body.tag_hashes[index]
            self.json_values[number] = body.json_values
            size_bytes = self.sizes_bytes[number] = _record_bytes(key, value, timestamp_ms, headers)
            total_bytes += size_bytes
        return total_bytes


@dataclass(slots=True)
class Group:
    """Due records of one target queue, in order: what becomes one batch."""

    queue: QueueKey
    size_bytes: int = 0
    items: list[Item] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
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
            sources=packed_sources(b"".join(map(source_row, self.items))),
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
            self.delays[start:stop],
            self.tag_hashes[start:stop],
            self.tagged,
            self.json_values,
        )


class Grouping:
    """Sorts due records into groups. Groups of one queue follow each other in order."""

    def __init__(self, *, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._open: dict[QueueKey, Group] = {}
        self.firing: list[Group] = []
        self.rolling: list[Group] = []

    def add(self, due: DueRecords, number: int) -> None:
        """Add one due record."""
        _, position, record_index, _, rolls = unpack_item(item := due.items[number])
        due_ms, topic_id, queue_id, origin_position, origin_index = unpack_delay(due.delays[number])
        if origin_position < 0:
            origin_position, origin_index = position, record_index
        headers: Headers = due.headers[number]
        if rolls:
            queue = TIMER_QUEUE
        else:
            queue = _new(QueueKey, (topic_id, queue_id))
            headers = [header for header in headers if header[0] not in _OUR_HEADERS] if headers else []
            headers.append((DELIVER_AT_HEADER, b"%d" % due_ms))
            headers.append((SCHEDULE_ID_HEADER, spell_schedule_id(due_ms, origin_position, origin_index)))
        size_bytes = due.sizes_bytes[number]
        group = self._open.get(queue)  # nothing fires into the timer's own queue, so the key is enough
        if group is None or group.size_bytes + size_bytes > self._batch_bytes_max:
            group = self._open[queue] = Group(queue)
            (self.rolling if rolls else self.firing).append(group)
        group.size_bytes += size_bytes
        group.items.append(item)
        group.records.append(_new(Record, (due.keys[number], due.values[number], due.timestamps_ms[number], headers)))
        if rolls:
            group.delays.append(Delay(due_ms, topic_id, queue_id, origin_position, origin_index))
        tag_hash = due.tag_hashes[number]
        group.tag_hashes.append(tag_hash)
        if tag_hash:
            group.tagged = True
        if not due.json_values[number]:
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
        return await self._keep(await self._read_entry(position))

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
                    await self._keep(entry)
        return len(ahead)

    async def _keep(self, entry: Entry) -> Body:
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        timestamps_ms: list[int] = []
        headers: list[Headers] = []
        known: dict[tuple[tuple[str, bytes | None], ...], Headers] = {}  # records of one batch mostly have the same
        for count, record in enumerate(record_batch.decode(entry.batch), 1):
            keys.append(record.key)
            values.append(record.value)
            timestamps_ms.append(record.timestamp)
            own = tuple(record.headers)
            headers.append(known.setdefault(own, own) if own else ())
            if count % _TURN_RECORDS == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        size_bytes = len(entry.batch) + _DECODED_OVERHEAD_BYTES * len(keys)
        body = Body(
            tuple(keys), tuple(values), tuple(timestamps_ms), tuple(headers), packed_delays(entry.delays),
            entry.tag_hashes, entry.json_values, entry.store_time_ms, size_bytes,
        )  # fmt: skip
        if entry.position not in self._bodies:  # somebody else may have come first
            self._bytes += size_bytes
        self._bodies[entry.position] = body
        while self._bytes > self._bytes_max and len(self._bodies) > 1:
            self._bytes -= self._bodies.popitem(last=False)[1].size_bytes
        return body

"""From due schedules to appends: one batch for each partition. Pure.

A delivered record is the accepted one (key, value, timestamp, headers) plus two headers:

    mq-deliver-at   the due time, decimal epoch ms
    mq-schedule-id  the schedule's id; see timer/schedule.py

One that was sent with a schedule key has had it in a header of its own, `mq-schedule-key`, since it was accepted. One
that names light queues has them in `mq-queues` until it is delivered: then they are the batch's, and in no header.

The entry it travels in names its *source*: the `__timer` entry and record index it was copied from. A record that
rolls is copied the same way, into another `__timer` entry, with its delay and origin. So each accepted copy has
exactly one source naming it once it is consumed, and a restart learns from the log which copies are consumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from store import record_batch
from store.light_names import LightNames
from store.log.entry import packed_sources, unpack_delay
from store.record_batch import Headers, Record
from store.topics import TIMER_QUEUE
from store.types import Append, Delay
from timer.items import Item, record_index_of, source_of, source_row, unpack_item
from timer.ports import Due, Target, append_of
from timer.record_cache import Body, checked_rows, record_bytes
from timer.schedule import spell_schedule_id

DELIVER_AT_HEADER = "mq-deliver-at"
SCHEDULE_ID_HEADER = "mq-schedule-id"
SCHEDULE_KEY_HEADER = "mq-schedule-key"
QUEUES_HEADER = "mq-queues"
"""A JSON array of names."""

_OUR_HEADERS = frozenset((DELIVER_AT_HEADER, SCHEDULE_ID_HEADER, QUEUES_HEADER))

_ROLLING = Target(*TIMER_QUEUE)  # of what is delivered nowhere yet; nothing fires into the timer's own queue

_new = tuple.__new__  # a NamedTuple's own constructor takes three times as long


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
        items = self.items
        indexes = [record_index_of(items[number]) for number in numbers]
        rows = checked_rows(source_of(items[numbers[0]]).position, indexes, body)
        return sum([self.take(number, body, row) for number, row in zip(numbers, rows, strict=True)])

    def take(self, number: int, body: Body, row: int) -> int:
        """Take the record of one item out of this row of its body; return its bytes. The body itself is not kept: it
        may have been decoded for a few of its records."""
        key = self.keys[number] = body.keys[row]
        value = self.values[number] = body.values[row]
        timestamp_ms = self.timestamps_ms[number] = body.timestamps_ms[row]
        headers = self.headers[number] = body.headers[row]
        self.delays[number] = body.delays.row_bytes(row)
        if body.tag_hashes:
            self.tag_hashes[number] = body.tag_hashes[row]
        self.json_values[number] = body.json_values
        size_bytes = self.sizes_bytes[number] = record_bytes(key, value, timestamp_ms, headers)
        return size_bytes


@dataclass(slots=True)
class Group:
    """Due records of one partition, or records that roll, in order: what becomes one batch."""

    target: Target
    size_bytes: int = 0
    items: list[Item] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)  # filled when the group rolls
    tag_hashes: list[int] = field(default_factory=list)
    tagged: bool = False
    json_values: bool = True
    queues: list[Sequence[bytes]] = field(default_factory=list)  # light queues of each record; empty: of none

    def append(self) -> Append:
        """The append to `__timer` of a group that rolls. Raises RecordTooLarge."""
        append = append_of(self.due(), TIMER_QUEUE)
        append.delays = self.delays
        return append

    def due(self) -> Due:
        """What is to be delivered. Raises RecordTooLarge."""
        return Due(
            self.target,
            record_batch.encode(self.records),
            len(self.records),
            self.json_values,
            self.tag_hashes if self.tagged else (),
            packed_sources(b"".join(map(source_row, self.items))),
            LightNames.of(self.queues),
        )

    def halves(self) -> tuple[Group, Group]:
        """The same records as two groups of half the size."""
        middle = len(self.records) // 2
        return self._part(0, middle), self._part(middle, len(self.records))

    def _part(self, start: int, stop: int) -> Group:
        return Group(
            self.target,
            self.size_bytes // 2,
            self.items[start:stop],
            self.records[start:stop],
            self.delays[start:stop],
            self.tag_hashes[start:stop],
            self.tagged,
            self.json_values,
            self.queues[start:stop],
        )


class Grouping:
    """Sorts due records into groups. Groups of one partition follow each other in order."""

    def __init__(self, *, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._open: dict[Target, Group] = {}
        self.firing: list[Group] = []
        self.rolling: list[Group] = []

    def add(self, due: DueRecords, number: int) -> None:
        """Add one due record."""
        _, position, record_index, _, rolls = unpack_item(item := due.items[number])
        due_ms, topic_id, partition, origin_position, origin_index = unpack_delay(due.delays[number])
        if origin_position < 0:
            origin_position, origin_index = position, record_index
        headers: Headers = due.headers[number]
        queues: Sequence[bytes] = ()
        if rolls:
            target = _ROLLING
        else:
            target = _new(Target, (topic_id, partition))
            if headers:
                queues = _queues_in(headers)
                headers = [header for header in headers if header[0] not in _OUR_HEADERS]
            else:
                headers = []
            headers.append((DELIVER_AT_HEADER, b"%d" % due_ms))
            headers.append((SCHEDULE_ID_HEADER, spell_schedule_id(due_ms, origin_position, origin_index)))
        size_bytes = due.sizes_bytes[number]
        group = self._open.get(target)
        if group is None or group.size_bytes + size_bytes > self._batch_bytes_max:
            group = self._open[target] = Group(target)
            (self.rolling if rolls else self.firing).append(group)
        group.size_bytes += size_bytes
        group.items.append(item)
        group.records.append(_new(Record, (due.keys[number], due.values[number], due.timestamps_ms[number], headers)))
        if rolls:
            group.delays.append(Delay(due_ms, topic_id, partition, origin_position, origin_index))
        if queues and not group.queues:
            group.queues = [()] * (len(group.records) - 1)
        if queues or group.queues:
            group.queues.append(queues)
        tag_hash = due.tag_hashes[number]
        group.tag_hashes.append(tag_hash)
        if tag_hash:
            group.tagged = True
        if not due.json_values[number]:
            group.json_values = False


def _queues_in(headers: Headers) -> Sequence[bytes]:
    """The light queues that a record waits to be in."""
    for name, value in headers:
        if name == QUEUES_HEADER and value is not None:
            return [queue.encode() for queue in orjson.loads(value)]
    return ()

"""What is due soon, as it will be delivered: one row of bytes for each schedule.

    0        4          8            16         24      25          29
    +--------+----------+------------+----------+-------+-----------+---------+---------------------------------+
    | topic  | partition| timestamp  | tag hash | flags | more      | more    | the record from the length of   |
    | id u32 | u32      | ms i64     | i64      | u8    | bytes u32 |         | its key on (store/record_batch) |
    +--------+----------+------------+----------+-------+-----------+---------+---------------------------------+

    flags    1: the value is JSON; 2: it rolls, and `more` is its delay, packed; else `more` is the names of its light
             queues, a JSON array, or empty

A delivered record is the accepted one (key, value, timestamp, headers) plus two headers:

    mq-deliver-at   the due time, decimal epoch ms
    mq-schedule-id  the schedule's id; see timer/schedule.py

One that was sent with a schedule key has had it in a header of its own, `mq-schedule-key`, since it was accepted. One
that names light queues has them in `mq-queues` until it is delivered: then they are the batch's, and in no header. One
that rolls is as it was accepted.

A record is taken apart, and its row made, once: when it is read ahead (timer/prefetch.py), or else when it is due. A
delivery then joins rows to batches. Bytes, not objects: of a hundred thousand each look of the garbage collector would
take a tenth of a second.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from store.errors import Corrupt
from store.log.entry import packed_delays, unpack_delay
from store.record_batch import DecodedRecord, header_bytes, record_tail
from store.types import Entry
from timer.entry_reader import TURN_RECORDS, EntryReader
from timer.items import Item, record_index_of, rolls_of, source_row
from timer.schedule import SCHEDULE_ID_BYTES, spell_schedule_ids

DELIVER_AT_HEADER = "mq-deliver-at"
SCHEDULE_ID_HEADER = "mq-schedule-id"
SCHEDULE_KEY_HEADER = "mq-schedule-key"
QUEUES_HEADER = "mq-queues"
"""A JSON array of names."""

_OUR_HEADERS = frozenset((DELIVER_AT_HEADER, SCHEDULE_ID_HEADER, QUEUES_HEADER))


def _header_of(name: str, value_bytes: int) -> bytes:
    """A template of a header whose value has so many bytes."""
    return header_bytes(name.encode(), bytes(value_bytes))[:-value_bytes] + b"%b"


_FIRED = {
    digit_count: _header_of(DELIVER_AT_HEADER, digit_count) + _header_of(SCHEDULE_ID_HEADER, SCHEDULE_ID_BYTES)
    for digit_count in range(1, 20)
}
"""Our two headers, by how many digits the due time has."""


_ROW = struct.Struct(">IIqqBI")
_ORIGIN = struct.Struct(">qI")
_DUE_BYTES, _ORIGIN_AT = 8, 16  # in a packed delay (store/log/entry.py)
_JSON, _ROLLS = 1, 2
FRAMING_BYTES = 16
"""What a record takes in its batch and entry beside its row, at most: the row's own fields are not in it."""

ROW_OVERHEAD_BYTES = 120
"""What a row takes in memory beside its bytes."""

FULL_SHARE = 0.6
"""Of the bytes that rows may take: with so many, nothing more is made ready ahead."""

unpack_row = _ROW.unpack_from
"""row -> topic id, partition, timestamp ms, tag hash, flags, bytes of `more`"""
ROW_BYTES = _ROW.size


def row_columns(rows: Iterable[bytes]) -> Iterable[tuple[int, ...]]:
    """The fields of some rows, at least one, as of `unpack_row`: a tuple for each field."""
    return zip(*_ROW.iter_unpack(b"".join([row[:ROW_BYTES] for row in rows])), strict=True)


def is_json(flags: int) -> bool:
    """Whether the value of a row with these flags is JSON."""
    return bool(flags & _JSON)


def rolls(flags: int) -> bool:
    """Whether a row with these flags only rolls."""
    return bool(flags & _ROLLS)


def make_row(
    record: DecodedRecord, delay: bytes, tag_hash: int, *, item: Item, schedule_id: bytes, is_json: bool
) -> bytes:
    """The row of one record; `delay` packed, with the origin filled in."""
    due_ms, topic_id, partition, _, _ = unpack_delay(delay)
    own: Iterable[tuple[str, bytes | None]] = record.headers
    flags = _JSON if is_json else 0
    more = b""
    count = 0
    headers = b""
    if rolls_of(item):
        flags |= _ROLLS
        more = delay
    else:
        if own:
            more = next((value for name, value in own if name == QUEUES_HEADER and value is not None), b"")
            own = [header for header in own if header[0] not in _OUR_HEADERS]
        count = 2
        due = b"%d" % due_ms
        headers = _FIRED[len(due)] % (due, schedule_id)
    if own:
        names = [header_bytes(name.encode(), value) for name, value in own]
        count += len(names)
        headers = b"".join((*names, headers))
    tail = record_tail(record.key, record.value, count, headers)
    return _ROW.pack(topic_id, partition, record.timestamp, tag_hash, flags, len(more)) + more + tail


class Ready:
    """Rows by item. When they take more than `bytes_max`, all are given up: what is due is read again."""

    def __init__(self, reader: EntryReader, *, bytes_max: int) -> None:
        self._reader = reader
        self._bytes_max = bytes_max
        self._bytes = 0
        self.given_up_count = 0
        """How often all rows were given up."""
        self._rows: dict[Item, bytes] = {}
        self.row_of = self._rows.get
        """The row of an item; None when it is not at hand."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be made ready ahead."""
        return self._bytes > self._bytes_max * FULL_SHARE

    def missing(self, items: Iterable[Item]) -> list[Item]:
        """Those that have no row."""
        rows = self._rows
        return [item for item in items if item not in rows]

    def drop(self, items: Iterable[Item]) -> None:
        """Forget rows: their records are delivered, or never will be."""
        rows, left_bytes = self._rows, self._bytes
        for item in items:
            if (row := rows.pop(item, None)) is not None:
                left_bytes -= len(row) + ROW_OVERHEAD_BYTES
        self._bytes = left_bytes

    async def read_ahead(self, wanted: Mapping[int, Collection[Item]]) -> int:
        """As `EntryReader.read_ahead`, for `get`. `wanted`: items by the log position of their entry."""
        return await self._reader.read_ahead(wanted, self._has, self._keep)

    async def get(self, position: int, items: Sequence[Item]) -> list[bytes]:
        """The rows of items, all of the entry at a log position. Raises what the log raises, or MalformedBatch; Corrupt
        when the entry is not what the schedules say."""
        rows = [row for item in items if (row := self.row_of(item)) is not None]
        if len(rows) == len(items):
            return rows
        made = await self._keep(await self._reader.entry(position), items)
        if lost := [item for item in items if item not in made]:
            raise Corrupt("commitlog", position, f"the entry has no delayed record {record_index_of(lost[0])}")
        return [made[item] for item in items]

    def _has(self, position: int, items: Collection[Item]) -> bool:
        return all(map(self._rows.__contains__, items))

    async def _keep(self, entry: Entry, items: Collection[Item]) -> dict[Item, bytes]:
        """Make the rows of some records of an entry, but for those that it does not have."""
        delays = packed_delays(entry.delays)
        there = sorted(items, key=source_row)
        while there and record_index_of(there[-1]) >= min(entry.record_count, len(delays)):
            there.pop()
        tag_hashes, json_values = entry.tag_hashes, entry.json_values
        records = iter(await self._reader.some(entry, [record_index_of(item) for item in there]))
        made: dict[Item, bytes] = {}
        for at in range(0, len(there), TURN_RECORDS):
            some = there[at : at + TURN_RECORDS]
            indexes = [record_index_of(item) for item in some]
            own = [_with_origin(delays.row_bytes(index), entry.position, index) for index in indexes]
            ids = spell_schedule_ids([delay[:_DUE_BYTES] + delay[_ORIGIN_AT:] for delay in own])
            for item, index, delay, schedule_id, record in zip(
                some, indexes, own, ids, islice(records, len(some)), strict=True
            ):
                made[item] = make_row(
                    record, delay, tag_hashes[index] if tag_hashes else 0,
                    item=item, schedule_id=schedule_id, is_json=json_values,
                )  # fmt: skip
            if self._reader.took(len(some)):
                await self._reader.others_turn()
        self._add(made)
        return made

    def _add(self, made: Mapping[Item, bytes]) -> None:
        rows = self._rows
        new = made if rows.keys().isdisjoint(made) else {item: row for item, row in made.items() if item not in rows}
        self._bytes += sum(map(len, new.values())) + ROW_OVERHEAD_BYTES * len(new)
        rows.update(made)
        if self._bytes > self._bytes_max:
            rows.clear()
            self._bytes = 0
            self.given_up_count += 1


def _with_origin(delay: bytes, position: int, index: int) -> bytes:
    """A packed delay, whose origin is this record unless it names another."""
    return delay[:_ORIGIN_AT] + _ORIGIN.pack(position, index) if delay[_ORIGIN_AT] & 0x80 else delay

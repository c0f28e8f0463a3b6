"""Bodies of schedules that somebody looks at: records of `__timer` entries, decoded, and kept for a while.

Schedules that are listed lie in few entries, side by side: of an entry of which much is wanted all is decoded. What is
due is not taken from here (timer/ready.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from store.errors import Corrupt
from store.log.entry import packed_delays
from store.log.packed import Packed
from store.record_batch import DecodedRecord, Headers, Record
from store.types import Delay, Entry, Source
from timer.entry_reader import EntryReader

_RECORD_OVERHEAD_BYTES = 128  # framing, our two headers and the record's share of the entry's extension
DECODED_OVERHEAD_BYTES = 300  # what Python adds to a decoded record,
_BODY_OVERHEAD_BYTES = 500  # and to the columns of an entry


class Body(NamedTuple):
    """Records of a `__timer` entry, decoded: a column for each field. There may be a hundred thousand records here; as
    objects of their own, each look of the garbage collector at them would take a tenth of a second."""

    rows: Mapping[int, int] | None  # in the columns, by record index; None: all are there, each at its index
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]
    headers: Sequence[Headers]
    delays: Packed[Delay]
    tag_hashes: Sequence[int]
    json_values: bool
    store_time_ms: int
    size_bytes: int

    def has(self, indexes: Iterable[int] | None) -> bool:
        """Whether all of these records (None: all) were decoded, of those that the entry has."""
        return self.rows is None or (indexes is not None and all(index in self.rows for index in indexes))


class Picked(NamedTuple):
    """One record, taken out of its body."""

    record: Record
    delay: Delay
    tag_hash: int
    json_values: bool
    size_bytes: int


def pick(source: Source, body: Body) -> Picked:
    """Take one record out of its body. Raises Corrupt when the entry is not what the schedule says."""
    index = source.record_index
    row = index if body.rows is None else body.rows.get(index)
    if row is None or row >= min(len(body.keys), len(body.delays)):
        raise Corrupt("commitlog", source.position, f"the entry has no delayed record {index}")
    record = Record(body.keys[row], body.values[row], body.timestamps_ms[row], body.headers[row])
    tag_hash = body.tag_hashes[row] if body.tag_hashes else 0
    return Picked(record, body.delays[row], tag_hash, body.json_values, _record_bytes(*record))


def _record_bytes(key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers) -> int:
    """What a record counts for when it is delivered."""
    size_bytes = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    if headers:
        size_bytes += sum(len(name) + len(content or b"") + 4 for name, content in headers)
    return size_bytes


class RecordCache:
    """Keeps the most recently used bodies, up to `bytes_max`."""

    def __init__(self, reader: EntryReader, *, bytes_max: int) -> None:
        self._reader = reader
        self._bytes_max = bytes_max
        self._bytes = 0
        self._cached: OrderedDict[int, Body] = OrderedDict()

    async def get(self, position: int, indexes: Collection[int] | None) -> Body:
        """The body at a log position, with these records at least; None: with all. Raises what the log raises, or
        MalformedBatch."""
        body = self._cached.get(position)
        if body is not None and body.has(indexes):
            self._cached.move_to_end(position)
            return body
        return await self._keep(await self._reader.entry(position), indexes)

    def has(self, position: int, indexes: Collection[int]) -> bool:
        """Whether these records of an entry are at hand."""
        body = self._cached.get(position)
        return body is not None and body.has(indexes)

    async def read_ahead(self, wanted: Mapping[int, Collection[int]]) -> int:
        """As `EntryReader.read_ahead`, for `get`. `wanted`: record indexes by log position."""
        return await self._reader.read_ahead(wanted, self.has, self._keep)

    async def _keep(self, entry: Entry, indexes: Collection[int] | None) -> Body:
        delays = packed_delays(entry.delays)
        tag_hashes = entry.tag_hashes
        rows: dict[int, int] | None = None
        records: Iterable[DecodedRecord]
        if indexes is None or self._reader.wants_whole(entry, len(indexes)):
            records = self._reader.all(entry)
        else:
            there = sorted(index for index in indexes if index < min(entry.record_count, len(delays)))
            records = await self._reader.some(entry, there)
            rows = {index: row for row, index in enumerate(there)}
            delays = delays.rows(there)
            tag_hashes = [tag_hashes[index] for index in there] if tag_hashes else ()
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        timestamps_ms: list[int] = []
        headers: list[Headers] = []
        known: dict[tuple[tuple[str, bytes | None], ...], Headers] = {}  # records of one batch mostly have the same
        for record in records:
            keys.append(record.key)
            values.append(record.value)
            timestamps_ms.append(record.timestamp)
            own = tuple(record.headers)
            headers.append(known.setdefault(own, own) if own else ())
            if self._reader.took():
                await self._reader.others_turn()
        size_bytes = _BODY_OVERHEAD_BYTES + DECODED_OVERHEAD_BYTES * len(keys)
        size_bytes += sum(map(len, filter(None, keys))) + sum(map(len, filter(None, values)))
        size_bytes += sum(len(name) + len(content or b"") for own in known for name, content in own)
        body = Body(
            rows, tuple(keys), tuple(values), tuple(timestamps_ms), tuple(headers), delays,
            tag_hashes, entry.json_values, entry.store_time_ms, size_bytes,
        )  # fmt: skip
        if (before := self._cached.get(entry.position)) is not None:
            if before.rows is None and rows is not None:
                return body  # another reader has decoded all of it meanwhile
            del self._cached[entry.position]
            self._bytes -= before.size_bytes
        self._bytes += size_bytes
        self._cached[entry.position] = body
        while self._bytes > self._bytes_max and len(self._cached) > 1:
            self._bytes -= self._cached.popitem(last=False)[1].size_bytes
        return body

"""Bodies of schedules: entries of `__timer`, read many in one go, decoded as far as they are wanted.

Records are accepted in batches, and fire one by one. Where much of an entry is wanted all of it is decoded, and kept
for a while. Where due times are mixed within batches, each second wants a few records of each of many entries, more
than memory holds decoded: then only those are decoded. Where the records of an entry start is remembered, four bytes
a record, so that none is walked over twice.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple

from store import record_batch
from store.errors import Corrupt, StoreError, StoreStopped
from store.limits import MiB
from store.log.entry import packed_delays
from store.log.packed import Packed
from store.record_batch import DecodedRecord, Headers, Record
from store.types import Delay, Entry, Source

_RECORD_OVERHEAD_BYTES = 128  # framing, our two headers and the record's share of the entry's extension
_READ_AHEAD_BYTES = 4 * MiB
_READ_AHEAD_COUNT = 1000
_TURN_RECORDS = 64  # decoded between two turns of the event loop
_ENTRY_RECORDS = 16  # to read and open an entry takes as long as to decode so many
DECODED_OVERHEAD_BYTES = 300  # what Python adds to a decoded record,
_BODY_OVERHEAD_BYTES = 500  # to the columns of an entry,
STARTS_OVERHEAD_BYTES = 250  # and to where its records start
_WHOLE_SHARE = 4  # an entry of which more than one record in so many is wanted is decoded whole


class Body(NamedTuple):
    """Records of a `__timer` entry, decoded: a column for each field. Bodies holds a hundred thousand records; as
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

    def row_of(self, index: int) -> int | None:
        """Where a record is in the columns; None when it was not decoded, or the entry has no such record."""
        row = index if self.rows is None else self.rows.get(index)
        return row if row is not None and row < len(self.keys) and row < len(self.delays) else None


class Picked(NamedTuple):
    """One record, taken out of its body."""

    record: Record
    delay: Delay
    tag_hash: int
    json_values: bool
    size_bytes: int


def pick(source: Source, body: Body) -> Picked:
    """Take one record out of its body. Raises Corrupt when the entry is not what the schedule says."""
    [row] = checked_rows(source.position, [source.record_index], body)
    record = Record(body.keys[row], body.values[row], body.timestamps_ms[row], body.headers[row])
    tag_hash = body.tag_hashes[row] if body.tag_hashes else 0
    return Picked(record, body.delays[row], tag_hash, body.json_values, record_bytes(*record))


def checked_rows(position: int, indexes: Sequence[int], body: Body) -> Sequence[int]:
    """Where records of the entry at `position` are in the columns of its body. Raises Corrupt when it has no such
    record."""
    count = min(len(body.keys), len(body.delays))
    rows = indexes
    if body.rows is not None:
        row_of = body.rows.get
        rows = [row_of(index, count) for index in indexes]
    if max(rows) >= count:
        raise Corrupt("commitlog", position, f"the entry has no delayed record {indexes[rows.index(max(rows))]}")
    return rows


def record_bytes(key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Headers) -> int:
    """What a record counts for when it is delivered."""
    size_bytes = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    if headers:
        size_bytes += sum(len(name) + len(content or b"") + 4 for name, content in headers)
    return size_bytes


class RecordCache:
    """Reads `__timer` entries; keeps the most recently used ones decoded, up to `bytes_max`, and where the records of
    others start, up to half of that."""

    def __init__(
        self,
        entry_at_hand: Callable[[int], Entry | None],
        read_entry: Callable[[int], Awaitable[Entry]],
        read_entries: Callable[[Sequence[int]], Awaitable[list[Entry]]],
        yield_to_loop: Callable[[], Awaitable[None]],
        *,
        bytes_max: int,
    ) -> None:
        self._entry_at_hand = entry_at_hand
        self._read_entry = read_entry
        self._read_entries = read_entries
        self._yield_to_loop = yield_to_loop
        self._bytes_max = bytes_max
        self._bytes = 0
        self._cached: OrderedDict[int, Body] = OrderedDict()
        self._starts_bytes = 0
        self._starts: OrderedDict[int, array[int]] = OrderedDict()
        self._read_bytes = 0  # the newest go's, and how many entries they were
        self._read_count = 0
        self._turn_count = 0  # records decoded since the loop had its turn: of many entries there may be a few each

    async def get(self, position: int, indexes: Collection[int] | None) -> Body:
        """The body at a log position, with these records at least; None: with all. Raises what the log raises, or
        MalformedBatch."""
        body = self._cached.get(position)
        if body is not None and body.has(indexes):
            self._cached.move_to_end(position)
            return body
        entry = self._entry_at_hand(position)
        return await self._keep(await self._read_entry(position) if entry is None else entry, indexes)

    def body_of(self, position: int) -> Body | None:
        """What is decoded of the entry at a log position, for who only looks."""
        return self._cached.get(position)

    def at_hand(self, position: int) -> Body | None:
        """The same, for who takes records of it."""
        body = self._cached.get(position)
        if body is not None:
            self._cached.move_to_end(position)
        return body

    def has(self, position: int, indexes: Collection[int]) -> bool:
        """Whether these records of an entry are at hand."""
        body = self._cached.get(position)
        return body is not None and body.has(indexes)

    async def read_ahead(self, wanted: Mapping[int, Collection[int]]) -> int:
        """Read the first of some entries in one go, as many as look like `_READ_AHEAD_BYTES`; return how many `get` has
        at hand now. `wanted`: record indexes by log position. One that cannot be read is left to `get`, which says why.
        Raises StoreStopped."""
        mean_bytes = self._read_bytes // self._read_count if self._read_count else _READ_AHEAD_BYTES
        ahead = list(islice(wanted, max(1, min(_READ_AHEAD_COUNT, _READ_AHEAD_BYTES // max(1, mean_bytes)))))
        read_sizes: list[int] = []
        missing: list[int] = []
        for position in ahead:
            if self.has(position, wanted[position]):
                continue
            with suppress(StoreError):
                if (found := self._entry_at_hand(position)) is None:
                    missing.append(position)
                    continue
                read_sizes.append(found.size)
                await self._keep(found, wanted[position])
        if missing:
            try:
                entries = await self._read_entries(missing)
            except StoreStopped:
                raise
            except StoreError:
                entries = []
            for entry in entries:
                read_sizes.append(entry.size)
                with suppress(StoreError):
                    await self._keep(entry, wanted[entry.position])
        if read_sizes:
            self._read_count, self._read_bytes = len(read_sizes), sum(read_sizes)
        return len(ahead)

    async def _keep(self, entry: Entry, indexes: Collection[int] | None) -> Body:
        self._turn_count += _ENTRY_RECORDS
        delays = packed_delays(entry.delays)
        tag_hashes = entry.tag_hashes
        rows: dict[int, int] | None = None
        records: Iterable[DecodedRecord]
        if indexes is None or len(indexes) * _WHOLE_SHARE >= len(delays) or record_batch.is_compressed(entry.batch):
            records = record_batch.decode(entry.batch)
        else:
            starts = await self._starts_of(entry)
            there = sorted(index for index in indexes if index < min(len(starts), len(delays)))
            rows = {index: row for row, index in enumerate(there)}
            records = chain.from_iterable(
                record_batch.decode_some(entry.batch, starts, there[at : at + _TURN_RECORDS])
                for at in range(0, len(there), _TURN_RECORDS)
            )
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
            self._turn_count += 1
            if self._turn_count >= _TURN_RECORDS:
                self._turn_count = 0
                await self._yield_to_loop()
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

    async def _starts_of(self, entry: Entry) -> array[int]:
        """Where the records of an entry start in its batch. Raises MalformedBatch."""
        starts = self._starts.get(entry.position)
        if starts is not None:
            self._starts.move_to_end(entry.position)
            return starts
        starts = array("I")
        for some in record_batch.record_starts(entry.batch):
            starts.extend(some)
            await self._yield_to_loop()
        if entry.position not in self._starts:  # another reader may have come first
            self._starts_bytes += _starts_bytes(starts)
        self._starts[entry.position] = starts
        while self._starts_bytes > self._bytes_max // 2 and len(self._starts) > 1:
            self._starts_bytes -= _starts_bytes(self._starts.popitem(last=False)[1])
        return starts


def _starts_bytes(starts: array[int]) -> int:
    return STARTS_OVERHEAD_BYTES + starts.itemsize * len(starts)

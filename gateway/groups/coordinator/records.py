"""Reading single records for queue mode: entries decoded once and remembered, in the partition's offsets.

A receive takes some tens of records, an entry may hold thousands: the entry that the next receive needs is usually the
one that the last receive read. Memory is bounded by `bytes_max`, the least recently used entries go first.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import NamedTuple

from gateway.brokers.event_log import RunBlocking
from gateway.codec.records import are_json
from gateway.groups.machines.progress import Place
from gateway.groups.protocol import PlainRecords
from gateway.routing.base import Routes
from gateway.routing.light import LightPartitionReader
from gateway.routing.reading import PartitionReader
from store import record_batch
from store.limits import KiB, MiB
from store.record_batch import DecodedRecord, Headers
from store.types import Bounds, Entry, ReadStatus

CACHE_BYTES_MAX = 32 * MiB
DECODED_A_TURN = 4_000
"""Records of an entry that are decoded in the event loop, in 2 ms; more are in a thread."""

LOOKED_AT_BYTES = 128 * KiB
"""Of an entry's records that are looked at, whether they are JSON, in one turn of the event loop: 0.5 ms, or 2 where
all are small objects."""

_READ_BYTES = 256 * KiB
_LIGHT_RECORDS = 500
_DECODED_OVERHEAD_BYTES = 300  # what Python adds to a decoded record
_PLAIN_OVERHEAD_BYTES = 80  # ... where there is an object for its key and its value alone


@dataclass(frozen=True, slots=True)
class Decoded:
    """One entry of a partition with its records."""

    base_offset: int
    store_time_ms: int
    json_values: bool
    raw_keys: bool
    records: Sequence[DecodedRecord]
    size_bytes: int
    sizes: array[int]
    """What the records before each one count for together, as `size_of` has it; at last, all of them."""

    @property
    def next_offset(self) -> int:
        """The offset behind its last record."""
        return self.base_offset + len(self.records)

    def at(self, offset: int) -> Stored:
        """One record of it."""
        record = self.records[offset - self.base_offset]
        return Stored(record, offset, self.store_time_ms, self.json_values, self.raw_keys)

    def part(self, first: int, end: int) -> Part:
        """The records from one offset to before another."""
        records = self.records[first - self.base_offset : end - self.base_offset]
        return Part(records, first, self.store_time_ms, self.json_values, self.raw_keys)

    def bytes_of(self, first: int, end: int) -> int:
        """What they count for."""
        return self.sizes[end - self.base_offset] - self.sizes[first - self.base_offset]

    def end_of(self, first: int, max_bytes: int) -> int:
        """How far the records from `first` on go that count for at most so much: the offset behind the last one."""
        at = first - self.base_offset
        return self.base_offset + bisect_right(self.sizes, self.sizes[at] + max_bytes, at) - 1


class Part(NamedTuple):
    """Records one behind the other, the first one at `base_offset`, and what their entry says about them."""

    records: Sequence[DecodedRecord]
    base_offset: int
    store_time_ms: int
    json_values: bool
    raw_keys: bool

    def up_to(self, end: int) -> Part:
        """Those before an offset."""
        size = end - self.base_offset
        return self if size >= len(self.records) else self._replace(records=self.records[:size])


class Step(NamedTuple):
    """Entries from an offset on, and where to read on. No entries: nothing there (yet), or nothing with the tags."""

    entries: list[Decoded]
    next_offset: int


class Stored(NamedTuple):
    """One record and what its entry says about it."""

    record: DecodedRecord
    offset: int
    store_time_ms: int
    json_values: bool
    raw_keys: bool

    @property
    def size_bytes(self) -> int:
        """Of key, value and headers."""
        record = self.record
        return size_of(record.key, record.value, record.headers)

    def part(self) -> Part:
        """The same, as records one behind the other."""
        record, offset, store_time_ms, json_values, raw_keys = self
        return Part([record], offset, store_time_ms, json_values, raw_keys)


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """What a record counts for where bytes are bounded: its key, value and headers."""
    size = len(key or b"") + len(value or b"")
    return size + sum(len(name) + len(content or b"") for name, content in headers) if headers else size


def _are_json(entry: Entry, records: Sequence[DecodedRecord], size_bytes: int) -> bool:
    """Whether all of an entry's records are JSON, as its sender need not have promised: one look at all of them, for
    all who receive them, in place of one at what each receive takes. False for large ones, which would take long."""
    if len(records) > DECODED_A_TURN or size_bytes > LOOKED_AT_BYTES:
        return False
    keys: Iterable[bytes | None]
    if isinstance(records, PlainRecords):
        keys, values = records.keys or (), records.values
    else:
        keys, values = [one.key for one in records], [one.value for one in records]
    return are_json(values if entry.raw_keys else [*keys, *values])


def _plain_records(entry: Entry) -> PlainRecords | None:
    found = record_batch.alike_columns(entry.batch)
    if found is None:
        return None
    keys, values, time_ms = found
    return PlainRecords(entry.base_offset, None if keys.count(None) == len(keys) else keys, values, time_ms)


def _plain_sizes(records: PlainRecords) -> array[int]:
    if records.keys is None:
        return array("q", accumulate([0 if value is None else len(value) for value in records.values], initial=0))
    return _sizes_of(records)


def _sizes_of(records: Iterable[DecodedRecord]) -> array[int]:
    return array("q", accumulate((size_of(one.key, one.value, one.headers) for one in records), initial=0))


_PartitionId = tuple[int, int]  # topic id, partition


class RecordReader:
    """Records of the partitions in a route table. Raises UnknownQueue and what reading raises."""

    def __init__(
        self, routes: Routes, *, bytes_max: int = CACHE_BYTES_MAX, run_blocking: RunBlocking = asyncio.to_thread
    ) -> None:
        self._routes = routes
        self._run_blocking = run_blocking
        self._reader = PartitionReader(routes)
        self._light_reader = LightPartitionReader(routes)
        self._bytes_max = bytes_max
        self._bytes = 0
        self.bounds = self._reader.bounds
        """Of a topic's partition: the first readable offset, and the one the next record will get."""

        self._entries: OrderedDict[tuple[int, int, int], Decoded] = OrderedDict()  # by topic id, partition, base offset
        self._bases: dict[_PartitionId, list[int]] = {}  # base offsets of what is remembered, sorted

    async def offset_at_time(self, topic: str, partition: int, time_ms: int) -> int:
        """The offset of the first record stored at or after a time, the end when there is none."""
        return await self._reader.offset_for_time(topic, partition, time_ms)

    async def bounds_of(self, topic: str, key: Place) -> Bounds:
        """The same of a light queue, in its offsets, or of a partition. Raises NoLightQueues, IndexDamaged as well."""
        if not key.name:
            return await self.bounds(topic, key.partition)
        return await self._light_reader.bounds(topic, key.name.encode(), key.partition)

    async def step(
        self, topic: str, partition: int, offset: int, *, tag_hashes: frozenset[int] | None = None, name: str = ""
    ) -> Step:
        """Entries from the one that holds `offset` on. Behind what retention took, it goes on with what is left.
        `name`: of a light queue, in whose offsets all is: of each entry, its records that are in the queue."""
        if name:
            return await self._light_step(topic, partition, offset, name)
        partition_id = (self._routes.topic(topic).topic_id, partition)
        remembered = self._remembered(partition_id, offset)
        if remembered is not None:
            return Step([remembered], remembered.next_offset)
        read = await self._reader.read(topic, partition, offset, max_bytes=_READ_BYTES, tag_hashes=tag_hashes)
        if read.status is ReadStatus.TOO_LARGE:
            return Step([], offset)
        entries = [await self._opened(partition_id, entry) for entry in read.entries]
        return Step(entries, read.next_offset)

    async def _light_step(self, topic: str, partition: int, offset: int, name: str) -> Step:
        partition_id = (self._routes.topic(topic).topic_id, partition)
        read = await self._light_reader.read(
            topic, name.encode(), partition, offset, max_records=_LIGHT_RECORDS, max_bytes=_READ_BYTES
        )
        entries: list[Decoded] = []
        for _, found in groupby(read.records, key=lambda one: one.entry.position):
            in_queue = list(found)  # one behind the other: its offsets have no gaps
            entry = in_queue[0].entry
            whole = self._remembered(partition_id, entry.base_offset) or await self._opened(partition_id, entry)
            records = [whole.records[one.record_index] for one in in_queue]
            entries.append(replace(whole, base_offset=in_queue[0].offset, records=records, sizes=_sizes_of(records)))
        return Step(entries, read.next_offset)

    async def _opened(self, partition_id: _PartitionId, entry: Entry) -> Decoded:
        records: Sequence[DecodedRecord]
        if (plain := await self._plain(entry)) is not None:
            records, sizes, overhead_bytes = plain, _plain_sizes(plain), _PLAIN_OVERHEAD_BYTES
        else:
            records, sizes = await self._decoded(entry)
            overhead_bytes = _DECODED_OVERHEAD_BYTES
        decoded = Decoded(
            entry.base_offset,
            entry.store_time_ms,
            entry.json_values or _are_json(entry, records, sizes[-1]),
            entry.raw_keys,
            records,
            len(entry.batch) + overhead_bytes * entry.record_count,
            sizes,
        )
        self._remember(partition_id, decoded)
        return decoded

    async def _plain(self, entry: Entry) -> PlainRecords | None:
        """The records of an entry that are alike, without the codec: a fifth of its time, and a third of the memory."""
        found: list[PlainRecords | None] = []
        if entry.record_count > DECODED_A_TURN:
            await self._run_blocking(lambda: found.append(_plain_records(entry)))
            return found[0]
        return _plain_records(entry)

    async def _decoded(self, entry: Entry) -> tuple[list[DecodedRecord], array[int]]:
        decoded: list[DecodedRecord] = []
        sizes = array("q")

        def decode(piece: list[DecodedRecord]) -> None:
            decoded.extend(piece)
            sizes.extend(_sizes_of(piece))

        def decode_all() -> None:
            for piece in record_batch.decode_in_pieces(entry.batch):  # all at once would let no other thread in
                decode(piece)

        if entry.record_count > DECODED_A_TURN:
            await self._run_blocking(decode_all)
        else:
            for piece in record_batch.decode_in_pieces(entry.batch):
                decode(piece)
                if piece[-1].headers:  # each of which takes as long as a record
                    await asyncio.sleep(0)
        return decoded, sizes

    async def at(self, topic: str, key: Place, offset: int) -> Stored | None:
        """One record; None when retention took it."""
        step = await self.step(topic, key.partition, offset, name=key.name)
        if not step.entries or step.entries[0].base_offset > offset:
            return None
        return step.entries[0].at(offset)

    def at_hand(self, key: Place, offset: int) -> Decoded | None:
        """The entry that holds a record of a partition, where it is remembered."""
        return self._remembered((key.topic_id, key.partition), offset)

    def _remembered(self, partition_id: _PartitionId, offset: int) -> Decoded | None:
        bases = self._bases.get(partition_id)
        if not bases or (at := bisect_right(bases, offset)) == 0:
            return None
        key = (*partition_id, bases[at - 1])
        entry = self._entries[key]
        if offset >= entry.next_offset:
            return None
        self._entries.move_to_end(key)
        return entry

    def _remember(self, partition_id: _PartitionId, entry: Decoded) -> None:
        key = (*partition_id, entry.base_offset)
        if key in self._entries:
            return
        self._entries[key] = entry
        insort(self._bases.setdefault(partition_id, []), entry.base_offset)
        self._bytes += entry.size_bytes
        while self._bytes > self._bytes_max and len(self._entries) > 1:
            (topic_id, partition, base), oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.size_bytes
            bases = self._bases[topic_id, partition]
            bases.remove(base)
            if not bases:
                del self._bases[topic_id, partition]

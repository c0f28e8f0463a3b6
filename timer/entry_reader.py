"""Entries of `__timer`, read many in one go, and taken apart as far as their records are wanted.

Records are accepted in batches, and fire one by one. Where due times are mixed within batches, each moment wants a few
records of each of many entries: only those are decoded. Where the records of an entry start is remembered, four bytes a
record, so that none is walked over twice.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, compress, islice
from typing import TypeVar

from store import record_batch
from store.errors import StoreError, StoreStopped
from store.limits import MiB
from store.record_batch import DecodedRecord
from store.types import Entry

_READ_AHEAD_BYTES = 4 * MiB
_READ_AHEAD_COUNT = 1000
TURN_RECORDS = 64  # decoded between two turns of the event loop
_ENTRY_RECORDS = 16  # to read and open an entry takes as long as to decode so many
STARTS_OVERHEAD_BYTES = 250  # what Python adds to where the records of an entry start
_WHOLE_SHARE = 4  # an entry of which more than one record in so many is wanted is decoded whole

Wanted = TypeVar("Wanted", bound=Collection[object])
"""Which records of an entry are wanted, however that is said."""


class EntryReader:
    """Reads and decodes for those who keep what they want of it. Where records start takes up to `starts_bytes_max`."""

    def __init__(
        self,
        entry_at_hand: Callable[[int], Entry | None],
        read_entry: Callable[[int], Awaitable[Entry]],
        read_entries: Callable[[Sequence[int]], Awaitable[list[Entry]]],
        yield_to_loop: Callable[[], Awaitable[None]],
        *,
        starts_bytes_max: int,
    ) -> None:
        self._entry_at_hand = entry_at_hand
        self._read_entry = read_entry
        self._read_entries = read_entries
        self._yield_to_loop = yield_to_loop
        self._starts_bytes_max = starts_bytes_max
        self._starts_bytes = 0
        self._starts: OrderedDict[int, array[int]] = OrderedDict()
        self._read_bytes = 0  # the newest go's, and how many entries they were
        self._read_count = 0
        self._turn_count = 0  # records decoded since the loop had its turn: of many entries there may be a few each

    async def entry(self, position: int) -> Entry:
        """The entry at a log position. Raises what the log raises."""
        entry = self._entry_at_hand(position)
        return await self._read_entry(position) if entry is None else entry

    async def read_ahead(
        self,
        wanted: Mapping[int, Wanted],
        has: Callable[[int, Wanted], bool],
        keep: Callable[[Entry, Wanted], Awaitable[object]],
    ) -> int:
        """Read the first of some entries in one go, as many as look like `_READ_AHEAD_BYTES`, and give to `keep` those
        that one has not; how many have been looked at. `wanted`: what of each, by log position. One that cannot be read
        is left to `entry`, which says why. Raises StoreStopped."""
        mean_bytes = self._read_bytes // self._read_count if self._read_count else _READ_AHEAD_BYTES
        ahead = list(islice(wanted, max(1, min(_READ_AHEAD_COUNT, _READ_AHEAD_BYTES // max(1, mean_bytes)))))
        read_sizes: list[int] = []
        missing: list[int] = []
        for position in ahead:
            if has(position, wanted[position]):
                continue
            with suppress(StoreError):
                if (found := self._entry_at_hand(position)) is None:
                    missing.append(position)
                    continue
                read_sizes.append(found.size)
                await keep(found, wanted[position])
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
                    await keep(entry, wanted[entry.position])
        if read_sizes:
            self._read_count, self._read_bytes = len(read_sizes), sum(read_sizes)
        return len(ahead)

    def wants_whole(self, entry: Entry, count: int) -> bool:
        """Whether an entry of which so many records are wanted had better be decoded whole."""
        return count * _WHOLE_SHARE >= entry.record_count or record_batch.is_compressed(entry.batch)

    async def some(self, entry: Entry, indexes: Sequence[int]) -> Iterable[DecodedRecord]:
        """The records of these indexes, which ascend and are all there, in order; decoded as they are taken. Who takes
        them says so (`took`). Raises MalformedBatch."""
        self._turn_count += _ENTRY_RECORDS
        if self.wants_whole(entry, len(indexes)):
            is_wanted = bytearray(entry.record_count)
            for index in indexes:
                is_wanted[index] = 1
            return compress(record_batch.decode(entry.batch), is_wanted)
        starts = await self._starts_of(entry)
        return chain.from_iterable(
            record_batch.decode_some(entry.batch, starts, indexes[at : at + TURN_RECORDS])
            for at in range(0, len(indexes), TURN_RECORDS)
        )

    def all(self, entry: Entry) -> Iterable[DecodedRecord]:
        """All records of an entry, as `some`."""
        self._turn_count += _ENTRY_RECORDS
        return record_batch.decode(entry.batch)

    def took(self, count: int = 1) -> bool:
        """So many records were decoded; whether it is others' turn (`others_turn`)."""
        self._turn_count += count
        return self._turn_count >= TURN_RECORDS

    async def others_turn(self) -> None:
        """Let them have it."""
        self._turn_count = 0
        await self._yield_to_loop()

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
        while self._starts_bytes > self._starts_bytes_max and len(self._starts) > 1:
            self._starts_bytes -= _starts_bytes(self._starts.popitem(last=False)[1])
        return starts


def _starts_bytes(starts: array[int]) -> int:
    return STARTS_OVERHEAD_BYTES + starts.itemsize * len(starts)

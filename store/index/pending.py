"""Units of one queue that wait in memory for a flush: one row an entry, however many records it holds.

An entry of a thousand records is a thousand units in a file, all alike. Here it is three integers, made into units by
the flush, in its thread: what the event loop does for an entry, and what the entry takes of memory, is the same for
any number of records (but for tag hashes, 8 bytes a record). A snapshot of the index keeps rows as they are (`cells`).

    rows   base offset, position, size; base offset, position, size; ...      an entry ends where the next one begins

Rows are only added at the end, and removed at the beginning by the owner, not while a flush reads them: so a thread may
read those that were there when the flush began.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

_COLUMNS = 3
_FIRST_ROWS = 16  # unpacked for a reader or a flush: many readers need no more
_ROWS_AT_A_TIME = 256  # ... then
ROW_BYTES = _COLUMNS * array("q").itemsize


Cells = tuple[int, int, int, int, "array[int] | None"]
"""The fields of a Pending; a flush goes through hundreds of thousands."""


class Pending(NamedTuple):
    """One entry that waits. `tag_hashes` is None when no record has a tag."""

    base_offset: int
    next_offset: int
    position: int
    size: int
    tag_hashes: Sequence[int] | None

    def has_tag(self, tag_hashes: frozenset[int], offset: int, end: int) -> bool:
        """Whether a record of [offset, end) has such a tag; the hash of no tag is 0."""
        if not self.tag_hashes:
            return 0 in tag_hashes
        first = max(0, offset - self.base_offset)
        return not tag_hashes.isdisjoint(self.tag_hashes[first : end - self.base_offset])


class PendingUnits:
    """The entries of one queue that wait, in the order of their offsets and positions, without holes."""

    __slots__ = ("_rows", "_tag_hashes")

    def __init__(self) -> None:
        self._rows = array("q")
        self._tag_hashes: dict[int, array[int]] = {}  # by base offset

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._rows) // _COLUMNS

    @property
    def byte_count(self) -> int:
        """The bytes of memory that the entries take."""
        return len(self) * ROW_BYTES + sum(len(hashes) * hashes.itemsize for hashes in self._tag_hashes.values())

    def add(self, base_offset: int, position: int, size: int, tag_hashes: Sequence[int] = ()) -> int:
        """Add an entry behind all others. Returns the bytes of memory it takes."""
        self._rows.extend((base_offset, position, size))
        if not tag_hashes:
            return ROW_BYTES
        hashes = self._tag_hashes[base_offset] = array("q", tag_hashes)
        return ROW_BYTES + len(hashes) * hashes.itemsize

    def add_rows(self, rows: list[int]) -> int:
        """Add entries without tags behind all others, as base offset, position, size of each in turn. Returns the bytes
        of memory they take."""
        self._rows.extend(rows)
        return len(rows) // _COLUMNS * ROW_BYTES

    def count_before(self, position: int) -> int:
        """How many entries lie before a log position."""
        if not self._rows or self._rows[-2] < position:
            return len(self)
        return bisect_left(range(len(self)), position, key=lambda row: self._rows[_COLUMNS * row + 1])

    def since(self, offset: int, end: int) -> Iterator[Pending]:
        """The entries from the one that holds `offset` on; `end` is where the last one ends."""
        rows = self._rows
        if offset >= end:
            return iter(())
        first = bisect_right(range(len(self)), offset, key=lambda row: rows[_COLUMNS * row]) - 1
        return map(Pending._make, self._cells(max(0, first), len(self), end))

    def first(self, count: int, end: int) -> Iterator[Cells]:
        """The first `count` entries; `end` is where they end."""
        return self._cells(0, count, end)

    def end_of(self, count: int, end: int) -> int:
        """Where the first `count` entries end; `end` is where the last one of all ends."""
        return self._rows[_COLUMNS * count] if count < len(self) else end

    def cells(self, count: int) -> array[int]:
        """The first `count` entries to be kept: their rows, then the tag hashes of those whose size is negative in its
        row, a hash a record."""
        cells = self._rows[: _COLUMNS * count]
        if self._tag_hashes:
            hashes = array("q")
            for at in range(0, len(cells), _COLUMNS):
                if (of_entry := self._tag_hashes.get(cells[at])) is not None:
                    cells[at + 2] = -cells[at + 2]
                    hashes += of_entry
            cells += hashes
        return cells

    @classmethod
    def of_cells(cls, cells: array[int], count: int, end: int) -> PendingUnits:
        """The entries that `cells` gave; `end` is where the last one ends."""
        units = cls()
        units._rows = rows = cells[: _COLUMNS * count]
        at = len(rows)
        if at < len(cells):
            for row in range(0, len(rows), _COLUMNS):
                if rows[row + 2] < 0:
                    rows[row + 2] = -rows[row + 2]
                    next_offset = rows[row + _COLUMNS] if row + _COLUMNS < len(rows) else end
                    hash_count = next_offset - rows[row]
                    units._tag_hashes[rows[row]] = cells[at : at + hash_count]
                    at += hash_count
        return units

    def remove(self, count: int) -> int:
        """Remove the first `count` entries. Returns the bytes of memory they took."""
        removed = count * ROW_BYTES
        if self._tag_hashes:
            for base_offset in self._rows[: _COLUMNS * count : _COLUMNS]:
                hashes = self._tag_hashes.pop(base_offset, None)
                if hashes is not None:
                    removed += len(hashes) * hashes.itemsize
        del self._rows[: _COLUMNS * count]
        return removed

    def _cells(self, first: int, until: int, end: int) -> Iterator[Cells]:
        return chain.from_iterable(self._parts(first, until, end))

    def _parts(self, first: int, until: int, end: int) -> Iterator[Iterator[Cells]]:
        count = _FIRST_ROWS
        while first < until:
            stop = min(first + count, until)
            yield self._part(first, stop, until, end)
            first, count = stop, _ROWS_AT_A_TIME

    def _part(self, begin: int, stop: int, until: int, end: int) -> Iterator[Cells]:
        cells = self._rows[_COLUMNS * begin : _COLUMNS * stop].tolist()
        base_offsets = cells[0::_COLUMNS]
        last = self._rows[_COLUMNS * stop] if stop < until else end
        hashes = map(self._tag_hashes.get, base_offsets) if self._tag_hashes else repeat(None, len(base_offsets))
        return zip(base_offsets, [*base_offsets[1:], last], cells[1::_COLUMNS], cells[2::_COLUMNS], hashes, strict=True)

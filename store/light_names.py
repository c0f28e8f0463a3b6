"""The light queues that the records of one batch name, and the offsets they get there: one packed block.

A light queue is one of many small queues of a partition: a record may be in up to 64 of them and is stored once
(docs/light-queues.md). The offsets are in the log, because an index that is built again after the log has lost its
beginning could not count them.

    name count u32 · row count u32
    first offset i64 of each name     of the first record of this batch that names it, the next one gets one more;
                                      -1: not assigned; no entry in the log has it
    length u8 of each name
    count u8 of each record           how many light queues it is in
    name index u32 of each row        the names of record 0, then those of record 1, ...
    the names, UTF-8, end to end

    L1  a record names a queue at most once
    L2  the offsets of one light queue ascend by one along the log, from where it begins: at the offset of its first
        record in the partition. One that has no row left, and comes back, begins so again: as each record adds at most
        one row, that is above every offset it had
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from store.limits import LIGHT_NAME_BYTES_MAX, LIGHT_NAMES_MAX
from store.types import Buffer

_COUNTS = struct.Struct(">II")
_OFFSET = struct.Struct(">q")
_INDEX = struct.Struct(">I")
NOT_ASSIGNED = -1


class LightRow(NamedTuple):
    """One record in one light queue: the record's index in the batch, the queue's name, the record's offset there."""

    record_index: int
    name: bytes
    offset: int


class _Rows(NamedTuple):
    """How many names each record has, and the index of each in `names`, record after record."""

    counts: bytes
    name_indexes: Sequence[int]


class LightNames:
    """See above. Equal when the blocks are; one object for the garbage collector, whatever is in it."""

    __slots__ = ("_names", "_rows", "block")

    def __init__(self, block: Buffer, names: Sequence[bytes] | None = None, rows: _Rows | None = None) -> None:
        """`names`, `rows`: what is in it, where that is known."""
        self.block = bytes(block)
        self._names = names
        self._rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LightNames) and self.block == other.block

    def __hash__(self) -> int:
        return hash(self.block)

    def __repr__(self) -> str:
        return f"LightNames({self.rows()!r:.200})"

    @classmethod
    def of(cls, names_of_records: Sequence[Sequence[bytes]]) -> LightNames | None:
        """The names of each record of a batch, no offset assigned; None when no record has one.

        A name has 1 to `LIGHT_NAME_BYTES_MAX` bytes without a zero byte, a record at most `LIGHT_NAMES_MAX` names,
        each once: callers have checked.
        """
        named = list(chain.from_iterable(names_of_records))
        if not named:
            return None
        index_of = dict.fromkeys(named, 0)
        names = list(index_of)
        counts = list(map(len, names_of_records))
        indexes: Sequence[int] = range(len(named))
        if len(names) < len(named):
            index_of.update(zip(names, indexes, strict=False))
            indexes = list(map(index_of.__getitem__, named))
            assert all(len(own) == len(set(own)) for own in names_of_records if len(own) > 1)
        lengths = list(map(len, names))
        assert min(lengths) > 0
        assert max(lengths) <= LIGHT_NAME_BYTES_MAX
        assert max(counts) <= LIGHT_NAMES_MAX
        block = b"".join(
            (
                _COUNTS.pack(len(names), len(named)),
                _OFFSET.pack(NOT_ASSIGNED) * len(names),
                bytes(lengths),
                bytes(counts),
                struct.pack(f">{len(named)}I", *indexes),
                *names,
            )
        )
        return cls(block, names, _Rows(bytes(counts), indexes))

    @property
    def names(self) -> Sequence[bytes]:
        """The distinct names, in the order of their first use."""
        if self._names is not None:
            return self._names
        name_count, _ = _COUNTS.unpack_from(self.block)
        lengths_at = _COUNTS.size + name_count * _OFFSET.size
        lengths = self.block[lengths_at : lengths_at + name_count]
        names_at = len(self.block) - sum(lengths)
        return [self.block[at:end] for at, end in pairwise(accumulate(lengths, initial=names_at))]

    def let_go(self) -> None:
        """Keep the names in the block alone from now on: as objects they take five times as much memory."""
        self._names = self._rows = None

    @property
    def first_offsets(self) -> Sequence[int]:
        """For each of `names`."""
        name_count, _ = _COUNTS.unpack_from(self.block)
        return struct.unpack_from(f">{name_count}q", self.block, _COUNTS.size)

    @property
    def row_count(self) -> int:
        """Records, each as often as it has names."""
        count: int = _COUNTS.unpack_from(self.block)[1]
        return count

    @property
    def is_assigned(self) -> bool:
        """Whether the records have their offsets; not in `__timer`."""
        return self.first_offsets[0] != NOT_ASSIGNED

    def assigned(self, first_offsets: Sequence[int]) -> LightNames:
        """The same names with the first offset of each."""
        block = bytearray(self.block)
        struct.pack_into(f">{len(first_offsets)}q", block, _COUNTS.size, *first_offsets)
        return LightNames(block, self._names, self._rows)

    def of_records(self) -> list[list[bytes]]:
        """The names of each record."""
        names = self.names
        counts, indexes = self._opened_rows()
        found = iter(indexes)
        return [[names[next(found)] for _ in range(count)] for count in counts]

    @property
    def name_indexes(self) -> Sequence[int]:
        """For each row, record by record, the index of its name in `names`: those ascend where they first come."""
        return self._opened_rows().name_indexes

    @property
    def record_indexes(self) -> Sequence[int]:
        """For each row, the index of its record in the batch."""
        counts = self._opened_rows().counts
        if counts.count(1) == len(counts):
            return range(len(counts))
        return [record_index for record_index, count in enumerate(counts) for _ in range(count)]

    def first_records(self) -> list[int]:
        """For each of `names`, the index of the first record with it."""
        name_count, row_count = _COUNTS.unpack_from(self.block)
        if name_count == row_count:  # each is named once
            return list(self.record_indexes)
        first: list[int] = []
        for record_index, name_index in zip(self.record_indexes, self.name_indexes, strict=True):
            if name_index == len(first):
                first.append(record_index)
        return first

    def record_counts(self) -> list[int]:
        """For each of `names`, how many records have it."""
        name_count, row_count = _COUNTS.unpack_from(self.block)
        if name_count == row_count:
            return [1] * name_count
        counts = [0] * name_count
        for name_index in self.name_indexes:
            counts[name_index] += 1
        return counts

    def rows(self) -> list[LightRow]:
        """A row for each record and name, by record. The offsets are meaningless before they are assigned."""
        names = self.names
        following = list(self.first_offsets)
        rows: list[LightRow] = []
        for record_index, name_index in zip(self.record_indexes, self.name_indexes, strict=True):
            rows.append(LightRow(record_index, names[name_index], following[name_index]))
            following[name_index] += 1
        return rows

    def has(self, row: LightRow) -> bool:
        """Whether a record has this offset in this light queue."""
        record_index, name, offset = row
        block = self.block  # an entry may have thousands of names: only those of this record are looked at
        name_starts, row_starts, rows_at, counted = _opened(block)
        if not 0 <= record_index < len(row_starts) - 1:
            return False
        first_row, end_row = row_starts[record_index : record_index + 2]
        own_at = rows_at + first_row * _INDEX.size
        for name_index in struct.unpack_from(f">{end_row - first_row}I", block, own_at):
            if block[name_starts[name_index] : name_starts[name_index + 1]] == name:
                first: int = _OFFSET.unpack_from(block, _COUNTS.size + name_index * _OFFSET.size)[0]
                if block.find(_INDEX.pack(name_index), rows_at, own_at) < 0:  # the usual case: nothing to count
                    return offset == first
                # A reader goes from record to record: to count from the first one each time took 100 ms of 1,000.
                at, count = counted.get(name_index, (0, 0))
                if at > first_row:
                    at = count = 0
                count += struct.unpack_from(f">{first_row - at}I", block, rows_at + at * _INDEX.size).count(name_index)
                counted[name_index] = first_row, count
                return offset == first + count
        return False

    def _opened_rows(self) -> _Rows:
        if self._rows is not None:
            return self._rows
        name_count, row_count = _COUNTS.unpack_from(self.block)
        lengths_at = _COUNTS.size + name_count * _OFFSET.size
        counts_at = lengths_at + name_count
        indexes_at = len(self.block) - sum(self.block[lengths_at:counts_at]) - _INDEX.size * row_count
        name_indexes = struct.unpack_from(f">{row_count}I", self.block, indexes_at)
        return _Rows(self.block[counts_at:indexes_at], name_indexes)


@lru_cache(maxsize=2)
def _opened(block: bytes) -> tuple[Sequence[int], Sequence[int], int, dict[int, tuple[int, int]]]:
    """What `has` looks at: where each name begins, which row is the first of each record, with the end of the last one
    behind them, where the rows begin, and for names that were looked for a row and how many of those before it have the
    name. The readers of many queues look into one entry, one after the other."""
    name_count, row_count = _COUNTS.unpack_from(block)
    lengths_at = _COUNTS.size + name_count * _OFFSET.size
    counts_at = lengths_at + name_count
    lengths = block[lengths_at:counts_at]
    names_at = len(block) - sum(lengths)
    rows_at = names_at - row_count * _INDEX.size
    name_starts = list(accumulate(lengths, initial=names_at))
    return name_starts, list(accumulate(block[counts_at:rows_at], initial=0)), rows_at, {}

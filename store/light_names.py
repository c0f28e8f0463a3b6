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
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
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


class LightNames:
    """See above. Equal when the blocks are; one object for the garbage collector, whatever is in it."""

    __slots__ = ("_names", "block")

    def __init__(self, block: Buffer, names: Sequence[bytes] | None = None) -> None:
        """`names`: those in it, where they are known."""
        self.block = bytes(block)
        self._names = names

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
        index_of: dict[bytes, int] = {}
        indexes = [index_of.setdefault(name, len(index_of)) for names in names_of_records for name in names]
        if not indexes:
            return None
        assert all(0 < len(name) <= LIGHT_NAME_BYTES_MAX for name in index_of)
        assert all(len(set(names)) == len(names) <= LIGHT_NAMES_MAX for names in names_of_records)
        name_count = len(index_of)
        return cls(
            names=list(index_of),
            block=b"".join(
                (
                    _COUNTS.pack(name_count, len(indexes)),
                    struct.pack(">q", NOT_ASSIGNED) * name_count,
                    bytes(map(len, index_of)),
                    bytes(map(len, names_of_records)),
                    struct.pack(f">{len(indexes)}I", *indexes),
                    *index_of,
                )
            ),
        )

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
        self._names = None

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
        return LightNames(block, self._names)

    def of_records(self) -> list[list[bytes]]:
        """The names of each record."""
        names = self.names
        counts, indexes = self._rows(names)
        found = iter(indexes)
        return [[names[next(found)] for _ in range(count)] for count in counts]

    def first_records(self) -> list[int]:
        """For each of `names`, the index of the first record with it."""
        names = self.names
        counts, indexes = self._rows(names)
        if len(indexes) == len(names):  # each is named once, in this order
            return [record_index for record_index, count in enumerate(counts) for _ in range(count)]
        first = [0] * len(names)
        at = sum(counts)
        for record_index in range(len(counts) - 1, -1, -1):
            for name_index in indexes[at - counts[record_index] : at]:
                first[name_index] = record_index
            at -= counts[record_index]
        return first

    def record_counts(self) -> list[int]:
        """For each of `names`, how many records have it."""
        names = self.names
        indexes = self._rows(names)[1]
        if len(indexes) == len(names):
            return [1] * len(names)
        count_of = Counter(indexes)
        return [count_of[name_index] for name_index in range(len(names))]

    def rows(self) -> list[LightRow]:
        """A row for each record and name, by record. The offsets are meaningless before they are assigned."""
        names = self.names
        counts, indexes = self._rows(names)
        following = list(self.first_offsets)
        rows: list[LightRow] = []
        at = 0
        for record_index, count in enumerate(counts):
            for name_index in indexes[at : at + count]:
                rows.append(LightRow(record_index, names[name_index], following[name_index]))
                following[name_index] += 1
            at += count
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

    def by_record(self) -> tuple[bytes, Sequence[int]]:
        """How many names each record has, and the index of each in `names`, record after record."""
        return self._rows(self.names)

    def _rows(self, names: Sequence[bytes]) -> tuple[bytes, Sequence[int]]:
        """How many names each record has, and the index of each in `names`."""
        name_count, row_count = _COUNTS.unpack_from(self.block)
        counts_at = _COUNTS.size + name_count * (_OFFSET.size + 1)
        indexes_at = len(self.block) - sum(map(len, names)) - 4 * row_count
        return self.block[counts_at:indexes_at], struct.unpack_from(f">{row_count}I", self.block, indexes_at)


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

"""Rows of light queues in the RocksDB index: which record of the partition is at which offset of which light queue.

    two more column families of consumequeue.rocksdb/, made when the first row is written; integers are big-endian

    `light`, a row for each record and light queue
      key    topic id u32 | queue id u32 | name | 00 | offset i64
      value  offset in the partition i64 | position i64 | size i32

    `light_end`, a row for each light queue that has rows
      key    topic id u32 | queue id u32 | name
      value  the offset that its next record gets i64

A name has no zero byte, so the rows of one queue lie between `name 00` and `name 01`. Nothing is kept in memory for a
queue, but the rows that no flush has written yet: those of a few seconds, or `PENDING_ROWS_MAX`, and what came while
they are written.

    LI1  a flush writes these rows, then the units of their records (R1 in store/index/rocksdb.py). A crash in between
         leaves rows whose units are replayed, and these with them: the same keys, the same values
    LI2  rows may lead to records that retention has taken: each row has its record's offset in the partition, and the
         partition's min offset says which rows count. They ascend together. `remove` frees rows before their part of
         the log goes
    LI3  a queue has an end as long as it has rows, and no longer than its last record: who asks for one that has none
         gets None, and the queue begins anew (L2 in store/light_names.py)
"""

from __future__ import annotations

import heapq
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, Protocol, TypeAlias

from rocksdict import ColumnFamily, WriteBatch

from store.index.pauses import with_pauses
from store.light_names import LightNames
from store.types import Bounds, Entry, Indexed, QueueKey

_QUEUE = struct.Struct(">II")
_TOPIC = struct.Struct(">I")
_OFFSET = struct.Struct(">q")
ROW = struct.Struct(">qqi")
_COLUMNS = 4  # of a row in memory: offset, offset in the partition, position, size
NAME_END = b"\0"
_BEHIND_NAME = b"\x01"

PENDING_ROWS_MAX = 131_072
"""Rows in memory from which on a checkpoint is due. A second's worth, and some 30 MB with a name each."""

SORTED_KEYS = 4_096
SAMPLES = 16
"""About so many keys a flush sorts at a time: two milliseconds, in which no other thread has the interpreter. Which, so
many of them say."""

_ROW_BYTES = _COLUMNS * array("q").itemsize
_NAME_BYTES = 260  # a key, a tuple or an array and their place in a dictionary
_ENTRY_BYTES = 120


class LightUnit(NamedTuple):
    """One row: where a record of a light queue is."""

    offset: int
    partition_offset: int
    position: int  # of its entry
    size: int


class LightDatabase(Protocol):
    """What is needed of the database (store/index/rocksdb.py). Reads raise IndexDamaged, writes OSError."""

    @property
    def has_light(self) -> bool:
        """Whether the two families are there."""
        ...

    def make_light(self) -> None:
        """Make the two families if they are not there."""
        ...

    @property
    def light(self) -> ColumnFamily:
        """A handle for batches."""
        ...

    @property
    def light_end(self) -> ColumnFamily:
        """A handle for batches."""
        ...

    def light_rows(self, first: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Up to `count` rows of `light` in [first, end)."""
        ...

    def light_ends(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of `light_end`."""
        ...

    def light_end_keys(self, first: bytes, end: bytes, count: int) -> list[bytes]:
        """Up to `count` keys of `light_end` in [first, end)."""
        ...

    def write_patiently(self, fill: Callable[[WriteBatch], None], /) -> None:
        """Write a batch, waiting for compaction if need be; in a thread."""
        ...


_Cells: TypeAlias = "tuple[int, ...] | array[int]"
"""Columns of the rows of a light queue, one row after the other, offsets ascending. A tuple, if it is one row."""

_Rows: TypeAlias = "dict[bytes, _Cells]"
"""Rows in memory, by key of `light_end`."""

_Piece: TypeAlias = "tuple[bytes, _Cells]"
"""Some rows of one light queue, and its key."""


class _Appended(NamedTuple):
    """What makes the rows of one entry."""

    position: int
    size: int
    queue: QueueKey
    base_offset: int
    light: LightNames


def end_key(queue: QueueKey, name: bytes) -> bytes:
    """The key of a light queue in `light_end`."""
    return _QUEUE.pack(*queue) + name


def row_key(queue: QueueKey, name: bytes, offset: int) -> bytes:
    """The key of a row in `light`."""
    return _QUEUE.pack(*queue) + name + NAME_END + _OFFSET.pack(offset)


def queue_of(key: bytes) -> QueueKey:
    """The queue in a key of either family."""
    return QueueKey(*_QUEUE.unpack_from(key))


def light_queue_of(row_key: bytes) -> bytes:
    """The key in `light_end` that belongs to a key in `light`."""
    return row_key[: -len(NAME_END) - _OFFSET.size]


def offset_of(row_key: bytes) -> int:
    """The offset in a key of `light`."""
    return end_of(row_key[-_OFFSET.size :])


def end_of(value: bytes) -> int:
    """The offset in a value of `light_end`."""
    offset: int = _OFFSET.unpack(value)[0]
    return offset


class LightRows:
    """The rows of all light queues of one store. One owner calls everything, except `write` and `remove`."""

    def __init__(self, database: Callable[[], LightDatabase], batch_rows_max: int) -> None:
        self._database = database
        self._batch_rows_max = batch_rows_max
        self._pending: _Rows = {}
        self._flushing: list[_Rows] = []  # of flushes that have not ended well, oldest first
        self._appended: list[_Appended] = []  # what made `_pending`
        self._row_count = 0  # in `_pending`
        self._flushing_row_count = 0
        self._flushing_bytes = 0
        self.added_count = 0
        """Rows that came since the start."""

    @property
    def is_flush_due(self) -> bool:
        """Whether there are so many rows in memory that they should be written."""
        return self._row_count >= PENDING_ROWS_MAX

    @property
    def has_rows(self) -> bool:
        """Whether there may be any."""
        return self._row_count > 0 or bool(self._flushing) or self._database().has_light

    @property
    def pending_bytes(self) -> int:
        """Memory that all rows in memory take."""
        return self._pending_bytes + self._flushing_bytes

    @property
    def _pending_bytes(self) -> int:
        return self._row_count * _ROW_BYTES + len(self._pending) * _NAME_BYTES + len(self._appended) * _ENTRY_BYTES

    def append(self, entry: Indexed) -> None:
        """Add the rows of an entry, if its records are in light queues. Their offsets ascend along each queue."""
        if entry.light is not None and entry.light.is_assigned:
            self.added_count += entry.light.row_count
            self._add(_Appended(entry.position, entry.size, entry.queue, entry.base_offset, entry.light))

    def _add(self, appended: _Appended) -> None:
        position, size, queue, base_offset, light = appended
        pending, prefix = self._pending, _QUEUE.pack(*queue)
        names, following = light.names, list(light.first_offsets)
        for record_index, name_index in zip(light.record_indexes, light.name_indexes, strict=True):
            key = prefix + names[name_index]
            row = following[name_index], base_offset + record_index, position, size
            following[name_index] += 1
            of_queue = pending.get(key)
            if of_queue is None:
                pending[key] = row
            elif isinstance(of_queue, tuple):
                pending[key] = array("q", of_queue + row)
            else:
                of_queue.extend(row)
        self._row_count += light.row_count
        self._appended.append(appended)

    # ---- reading -------------------------------------------------------------------------------------------------

    def ends(self, queue: QueueKey, names: Sequence[bytes]) -> list[int | None]:
        """For each light queue the offset that its next record gets, None when it has no rows."""
        prefix = _QUEUE.pack(*queue)
        keys = [prefix + name for name in names]
        found: list[int | None] = [None] * len(keys)
        missing: Sequence[int] = range(len(keys))
        for rows in self._newest_first():
            left: list[int] = []
            of = rows.get
            for number in missing:
                if (of_queue := of(keys[number])) is None:
                    left.append(number)
                else:
                    found[number] = of_queue[-_COLUMNS] + 1
            missing = left
        database = self._database()
        if missing and database.has_light:
            values = database.light_ends([keys[number] for number in missing])
            stored = [number for number, value in zip(missing, values, strict=True) if value is not None]
            packed = b"".join([value for value in values if value is not None])
            for number, (end,) in zip(stored, _OFFSET.iter_unpack(packed), strict=True):
                found[number] = end
        return found

    def bounds(self, queue: QueueKey, name: bytes, low: int) -> Bounds | None:
        """Where a light queue begins and ends, if records of the partition before offset `low` do not count; None when
        it has no rows."""
        [end] = self.ends(queue, [name])
        if end is None:
            return None
        first = self._first_from(queue, name, 0)
        if first is None or first.partition_offset >= low:
            return Bounds(end if first is None else first.offset, end)
        before, at = first.offset, end  # the first row that counts is behind `before`, and not behind `at`
        while before + 1 < at:
            middle = (before + at) // 2
            found = self._first_from(queue, name, middle)
            if found is None or found.partition_offset >= low:
                at = middle
            else:
                before = found.offset
        found = self._first_from(queue, name, at)
        return Bounds(end if found is None else found.offset, end)

    def _first_from(self, queue: QueueKey, name: bytes, offset: int) -> LightUnit | None:
        found = self.units(queue, name, offset, 1)
        return found[0] if found else None

    def units(self, queue: QueueKey, name: bytes, offset: int, count: int) -> list[LightUnit]:
        """Up to `count` rows of a light queue, from the first one at or behind `offset` on."""
        key = end_key(queue, name)
        in_memory = [of_queue for rows in (*self._flushing, self._pending) if (of_queue := rows.get(key)) is not None]
        database = self._database()
        found: list[LightUnit] = []
        if database.has_light and (not in_memory or offset < in_memory[0][0]):
            prefix = key + NAME_END
            end = prefix + _OFFSET.pack(in_memory[0][0]) if in_memory else key + _BEHIND_NAME
            for stored_key, value in database.light_rows(prefix + _OFFSET.pack(offset), end, count):
                found.append(LightUnit(offset_of(stored_key), *ROW.unpack(value)))
        for of_queue in in_memory:  # what a flush has left behind may be in two of them
            row = bisect_left(range(len(of_queue) // _COLUMNS), offset, key=lambda at: of_queue[at * _COLUMNS])
            cells = iter(of_queue[row * _COLUMNS : (row + count - len(found)) * _COLUMNS])
            found += map(LightUnit, cells, cells, cells, cells)
            offset = max(offset, of_queue[-_COLUMNS] + 1)
        return found

    def names(self, queue: QueueKey, prefix: bytes, after: bytes, count: int) -> list[bytes]:
        """Up to `count` names behind `after`, of light queues that have rows and whose names begin with `prefix`, in
        the order of their bytes."""
        key_from = max(end_key(queue, prefix), end_key(queue, after) + b"\0" if after else b"")
        key_end = _behind(end_key(queue, prefix))
        found = {key for rows in self._newest_first() for key in rows if key_from <= key < key_end}
        database = self._database()
        if database.has_light:
            found.update(database.light_end_keys(key_from, key_end, count))
        return [key[_QUEUE.size :] for key in heapq.nsmallest(count, found)]

    def _newest_first(self) -> Iterator[_Rows]:
        yield self._pending
        yield from reversed(self._flushing)

    # ---- writing -------------------------------------------------------------------------------------------------

    def begin_flush(self, checkpoint: int) -> list[_Rows]:
        """What a flush has to `write`: all rows in memory, but for those of entries at or behind the checkpoint. They
        are readable as before; `finish_flush` says that they are written."""
        left = [appended for appended in self._appended if appended.position >= checkpoint]
        if self._pending:
            self._flushing_row_count += self._row_count
            self._flushing_bytes += self._pending_bytes
            self._flushing.append(self._pending)
            self._pending, self._appended, self._row_count = {}, [], 0
            for appended in left:
                self._add(appended)
        return list(self._flushing)

    def write(self, work: Sequence[_Rows], checkpoint: int, pauses_s: float) -> None:
        """Write the rows of entries before the checkpoint: they survive kill -9, and a power cut once the database is
        synced. In a thread, with pauses of so much in all. Raises OSError."""
        database = self._database()
        if work:
            database.make_light()
        piece_count = -(-(self._flushing_row_count + sum(map(len, work))) // self._batch_rows_max)
        for chunk in with_pauses(self._chunks(work, checkpoint), pauses_s, piece_count):
            database.write_patiently(_Put(database, chunk))

    def _chunks(self, work: Sequence[_Rows], checkpoint: int) -> Iterator[list[_Piece]]:
        """The rows of entries before the checkpoint, as many at a time as a batch takes; an end counts as one."""
        cells_max = (self._batch_rows_max - 1) * _COLUMNS
        chunk: list[_Piece] = []
        count = 0
        for key, cells in chain.from_iterable(map(_in_order, work)):
            if cells[-2] >= checkpoint:
                cells = cells[: _COLUMNS * bisect_left(cells[2::_COLUMNS], checkpoint)]
            for first in range(0, len(cells), cells_max):
                piece = cells[first : first + cells_max] if len(cells) > cells_max else cells
                if count + len(piece) > cells_max:
                    yield chunk
                    chunk, count = [], 0
                chunk.append((key, piece))
                count += len(piece) + _COLUMNS
        if chunk:
            yield chunk

    def finish_flush(self, work: Sequence[_Rows]) -> None:
        """What was written is read from the database from now on."""
        self._flushing = self._flushing[len(work) :]
        self._flushing_row_count = self._flushing_bytes = 0

    def remove(self, entries: Iterable[Entry]) -> None:
        """Free the rows of entries that are about to expire, oldest first, and the ends of queues that have no other.
        In a thread, while no flush is under way. Raises OSError, IndexDamaged."""
        database = self._database()
        rows = (
            (entry.queue, name, offset)
            for entry in entries
            if entry.light is not None and entry.light.is_assigned
            for _, name, offset in entry.light.rows()
        )
        while chunk := list(islice(rows, self._batch_rows_max)):
            last_offsets = {end_key(queue, name): offset for queue, name, offset in chunk}
            keys = list(last_offsets)
            ends = zip(keys, database.light_ends(keys), strict=True)
            over = [key for key, end in ends if end == _OFFSET.pack(last_offsets[key] + 1)]
            database.write_patiently(_Delete(database, [row_key(*row) for row in chunk], over))

    def drop_topic(self, topic_id: int, batch: WriteBatch) -> None:
        """Forget all light queues of a topic; what is stored of them goes with the batch. While no flush is under
        way."""
        first, end = _TOPIC.pack(topic_id), _TOPIC.pack(topic_id + 1)
        self._appended = [appended for appended in self._appended if appended.queue.topic_id != topic_id]
        for rows in self._newest_first():
            for key in [key for key in rows if key.startswith(first)]:
                gone = rows.pop(key)
                if rows is self._pending:
                    self._row_count -= len(gone) // _COLUMNS
        self._delete_range(batch, first, end)

    def clear(self) -> None:
        """Forget all that is stored, for a rebuild. Blocking. Raises OSError."""
        if self._database().has_light:
            self._database().write_patiently(partial(self._delete_range, first=b"", end=b"\xff" * (_QUEUE.size + 1)))

    def _delete_range(self, batch: WriteBatch, first: bytes, end: bytes) -> None:
        database = self._database()
        if database.has_light:
            batch.delete_range(first, end, database.light)
            batch.delete_range(first, end, database.light_end)


class _Put:
    """Fills a batch with rows, and with the ends of their queues as of these rows."""

    def __init__(self, database: LightDatabase, pieces: Sequence[_Piece]) -> None:
        self._database = database
        self._pieces = pieces

    def __call__(self, batch: WriteBatch) -> None:
        light, light_end = self._database.light, self._database.light_end
        put, pack_offset, pack_row = batch.put, _OFFSET.pack, ROW.pack
        for key, cells in self._pieces:
            prefix = key + NAME_END
            for at in range(0, len(cells), _COLUMNS):
                offset, partition_offset, position, size = cells[at : at + _COLUMNS]
                put(prefix + pack_offset(offset), pack_row(partition_offset, position, size), light)
            put(key, pack_offset(offset + 1), light_end)


class _Delete:
    """Fills a batch with deletions of rows and ends."""

    def __init__(self, database: LightDatabase, rows: Sequence[bytes], ends: Sequence[bytes]) -> None:
        self._database = database
        self._rows = rows
        self._ends = ends

    def __call__(self, batch: WriteBatch) -> None:
        light, light_end = self._database.light, self._database.light_end
        for key in self._rows:
            batch.delete(key, light)
        for key in self._ends:
            batch.delete(key, light_end)


def _in_order(rows: _Rows) -> Iterator[_Piece]:
    """All rows by key: neighbours are put in faster. A part of the keys after the other is sorted; some of them say
    where the parts begin."""
    keys = list(rows)
    some = sorted(keys[:: max(SORTED_KEYS // SAMPLES, 1)])
    begins = some[SAMPLES::SAMPLES]
    parts: list[list[bytes]] = [[] for _ in range(len(begins) + 1)]
    for key in keys:
        parts[bisect_right(begins, key)].append(key)
    for part in parts:
        part.sort()
        yield from zip(part, map(rows.__getitem__, part), strict=True)


def _behind(prefix: bytes) -> bytes:
    """The first key behind all that begin with this prefix; a queue's key is never all FF."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])

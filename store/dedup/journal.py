"""The rows of the dedup index on disk, appended at each checkpoint: recovery loads them instead of minutes of log.

Format of `dedup/<20 digits>`, big-endian: blocks end to end, each

    0       4        8       12      16         20       24       28
    +-------+--------+-------+-------+----------+--------+--------+--------------------------------------------------+
    |crc32c |length  |row    |id     |part count|index   |delay   | columns                                          |
    |u32    |u32     |count  |count  |u32       |count   |count   |                                                  |
    +-------+--------+-------+-------+----------+--------+--------+--------------------------------------------------+

    crc       over everything from `length` to the end of the columns
    length    of the columns, in bytes
    columns   of rows: positions i64, base offsets i64, store times i64, queues i64 (topic id << 32 | queue id)
              of ids: values i64 (row << 17 | index of the record), ids 16 bytes each
              of parts: request id 16 bytes, fingerprint 8 bytes, row u32, first index u32, record count u32
              indices u32: of the parts, in order, whose first index is NOT_A_RUN, `record count` each
              of delayed entries: row u32, record count u32; then due ms i64, topic id u32, queue id u32 of each record

Which bytes count is said by the snapshot of the topics, which is saved after them (`Marks`): what a file holds behind
that was not finished, and is written over. A new file is begun every quarter of the window; a file goes when all its
rows have left the window.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from store.dedup.ids import DELAY, NOT_A_RUN, Columns, Part, Row, first_of_run, packed_index, packed_queue
from store.files import Files
from store.types import ID_BYTES, NO_ID

DIRECTORY = "dedup"

BLOCK_IDS = 20_000
"""A block ends with the row with which it has so many ids, of records and of requests: to write one takes some
100 bytes of memory an id, and there may be a million of them between two checkpoints."""

_HEADER = struct.Struct(">IIIIIII")
_CRC_FROM = 4
_PART = struct.Struct(">16s8sIII")
_DELAYED = struct.Struct(">II")
_ID = struct.Struct(f">{ID_BYTES}s")


class Segment(NamedTuple):
    """One file of the journal: its name, the bytes of it that count, and the store times of its first and last row."""

    start: int
    bytes_: int
    first_ms: int
    last_ms: int


class JournalDamaged(Exception):
    """The journal is not what the snapshot says it is. It is derived: the ids are read from the log again."""


class DedupJournal:
    """The files of one journal. `segments` is what counts once a snapshot has it."""

    def __init__(self, root: Path, files: Files, *, segment_ms: int) -> None:
        self.directory = root / DIRECTORY
        self._files = files
        self._segment_ms = segment_ms
        self.segments: Sequence[Segment] = ()

    def load(self, segments: Sequence[Segment]) -> Iterator[Columns]:
        """All rows of these segments, in order. Raises JournalDamaged; what was yielded before it is then no use."""
        self.segments = segments
        return self.read(segments)

    def read(self, segments: Sequence[Segment]) -> Iterator[Columns]:
        """All rows of some of the segments, in order. Raises as `load`."""
        names = self._files.list(self.directory)
        for segment in segments:
            if _name(segment.start) not in names:
                raise JournalDamaged(f"{_name(segment.start)} is missing")
            file = self._files.open(self.directory / _name(segment.start))
            try:
                content = file.pread(segment.bytes_, 0)
            finally:
                file.close()
            if len(content) < segment.bytes_:
                raise JournalDamaged(f"{_name(segment.start)} is cut")
            yield from decode_blocks(content)

    def append(self, rows: Sequence[Row], window_ms: int) -> Sequence[Segment]:
        """Write rows behind what counts, durably; return the segments that are to count from now on, without those
        that have left the window. OSError passes through; what counted still does."""
        first_ms, last_ms = rows[0].store_time_ms, rows[-1].store_time_ms
        kept = [segment for segment in self.segments if last_ms - segment.last_ms <= window_ms]
        if kept and first_ms - kept[-1].first_ms < self._segment_ms:
            start, size, first_ms, _ = kept.pop()
        else:
            start, size = rows[0].position, 0
            self._files.make_dirs(self.directory)
            self._remove_all_but({segment.start for segment in self.segments})
        is_new = not size
        file = self._files.open(self.directory / _name(start), create=is_new)
        try:
            for some in _blocks_of(rows):
                size += file.pwritev([encode_block(some)], size)
            file.datasync()
        finally:
            file.close()
        if is_new:
            self._files.sync_dir(self.directory)
        return [*kept, Segment(start, size, first_ms, last_ms)]

    def _remove_all_but(self, starts: set[int]) -> None:
        """Remove files that no snapshot counts any more."""
        wanted = set(map(_name, starts))
        for name in self._files.list(self.directory):
            if name not in wanted:
                self._files.remove(self.directory / name)


def _blocks_of(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows of each block."""
    first = id_count = 0
    for end, row in enumerate(rows, 1):
        id_count += len(row.message_ids) + (row.request is not None)
        if id_count >= BLOCK_IDS or end == len(rows):
            yield rows[first:end]
            first, id_count = end, 0


def encode_block(rows: Sequence[Row]) -> bytes:
    """One block."""
    ids: list[bytes] = []
    values = array("q")
    parts: list[bytes] = []
    request_indexes: list[int] = []
    delayed: list[bytes] = []
    for number, row in enumerate(rows):
        if NO_ID not in row.message_ids:
            ids += row.message_ids
            values.extend(range(packed_index(number, 0), packed_index(number, len(row.message_ids))))
        else:
            for index, message_id in enumerate(row.message_ids):
                if message_id != NO_ID:
                    ids.append(message_id)
                    values.append(packed_index(number, index))
        if (request := row.request) is not None:
            first, count = first_of_run(request.request_indexes), len(request.request_indexes)
            if first == NOT_A_RUN:
                request_indexes += request.request_indexes
            parts.append(_PART.pack(request.request_id, request.fingerprint, number, first, count))
        if row.delays:
            delayed.append(_DELAYED.pack(number, len(row.delays) // DELAY.size) + row.delays)
    columns = b"".join(
        [
            _column([row.position for row in rows]),
            _column([row.base_offset for row in rows]),
            _column([row.store_time_ms for row in rows]),
            _column([packed_queue(row.queue) for row in rows]),
            _column(values),
            *ids,
            *parts,
            struct.pack(f">{len(request_indexes)}I", *request_indexes),
            *delayed,
        ]
    )
    block = bytearray(
        _HEADER.pack(0, len(columns), len(rows), len(ids), len(parts), len(request_indexes), len(delayed))
    )
    block += columns
    struct.pack_into(">I", block, 0, crc32c(memoryview(block)[_CRC_FROM:]))
    return bytes(block)


def decode_blocks(content: bytes) -> Iterator[Columns]:
    """The contents of blocks laid end to end. Raises JournalDamaged when they are not whole."""
    view = memoryview(content)
    at = 0
    while at < len(view):
        if len(view) - at < _HEADER.size:
            raise JournalDamaged(f"a block is cut at byte {at}")
        crc, length, *counts = _HEADER.unpack_from(view, at)
        end = at + _HEADER.size + length
        if end > len(view) or crc32c(view[at + _CRC_FROM : end]) != crc:
            raise JournalDamaged(f"the CRC of the block at byte {at} does not match")
        yield _decode_columns(view[at + _HEADER.size : end], *counts)
        at = end


def _decode_columns(
    view: memoryview, row_count: int, id_count: int, part_count: int, index_count: int, delayed_count: int
) -> Columns:
    at = 0

    def take(size: int) -> memoryview:
        nonlocal at
        at += size
        return view[at - size : at]

    positions, base_offsets, times_ms, queues = (_native(take(8 * row_count)) for _ in range(4))
    values = _native(take(8 * id_count))
    ids = [message_id for (message_id,) in _ID.iter_unpack(take(ID_BYTES * id_count))]
    parts = take(_PART.size * part_count)
    request_indexes = struct.unpack(f">{index_count}I", take(4 * index_count))
    requests: list[tuple[bytes, Part]] = []
    used = 0
    for request_id, fingerprint, row, first, count in _PART.iter_unpack(parts):
        own: Sequence[int] = range(first, first + count)
        if first == NOT_A_RUN:
            own = request_indexes[used : used + count]
            used += count
        requests.append((request_id, Part(fingerprint, row, own)))
    delays = []
    for _ in range(delayed_count):
        row, count = _DELAYED.unpack(take(_DELAYED.size))
        delays.append((row, bytes(take(count * DELAY.size))))
    return Columns(positions, base_offsets, times_ms, queues, ids, values, requests, delays)


def _column(numbers: Iterable[int]) -> bytes:
    column = array("q", numbers)
    if sys.byteorder == "little":
        column.byteswap()
    return column.tobytes()


def _native(view: memoryview) -> array[int]:
    column = array("q")
    column.frombytes(view)
    if sys.byteorder == "little":
        column.byteswap()
    return column


def segment_path(root: Path, start: int) -> Path:
    """The file of a segment."""
    return root / DIRECTORY / _name(start)


def _name(start: int) -> str:
    return f"{start:020d}"

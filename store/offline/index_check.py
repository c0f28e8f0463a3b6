"""Compare an index with the log it was made from, without opening it as a server would: for `mq verify`.

The log is read once, from its beginning to its end, and each entry is held against its units (`expect`). What lies
behind the checkpoint is not looked at: a start forgets it. `finish` looks in the other direction: units that the index
counts, but whose entries were not seen.

A RocksDB index has its own module, store/offline/index_check_rocksdb.py. Memory is bounded: one piece of a limited
number of queues.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from store.index.base import ENTRY_EXTENT, TAG_HASH, UNIT, UNIT_BYTES
from store.index.counted import Counted, decode_counted, is_unfinished
from store.index.opening import ROCKSDB_DIRECTORY
from store.offline.index_findings import IndexCheck, NoIndexCheck, OffsetRange, WrongRanges, WrongUnits
from store.snapshot import Snapshot
from store.types import Bounds, Entry, QueueKey

_PIECE_UNITS = 512  # read at once of one queue
_PIECES_MAX = 2048  # queues with a piece in memory: 20 MiB
_SCAN_UNITS = 65_536
_NOT_TO_ENTRY = "index units do not point to the entry that holds these records"
_NONE = Bounds(0, 0)
_NO_ENTRY = "the log has no entry where these index units point"


class _Files:
    """The units of one queue: the first bytes of its files, ascending, and the handle of the one last read; then the
    units that the snapshot keeps."""

    __slots__ = ("counted", "directory", "fd", "fd_start", "starts")

    def __init__(self, directory: Path, counted: Counted | None) -> None:
        self.directory = directory
        self.counted = counted
        names = os.listdir(directory) if directory.is_dir() else []
        self.starts = sorted(int(name) for name in names if name.isdecimal())
        self.fd = -1
        self.fd_start = -1

    def path_of(self, at: int) -> tuple[Path, int]:
        """The file that holds, or should hold, a byte of the queue, and the file's first byte."""
        start = self.starts[max(0, bisect_right(self.starts, at) - 1)] if self.starts else 0
        return self.directory / f"{start:020}", start

    def read(self, at: int, size: int) -> bytes:
        """Bytes of the queue from `at` on, whole units; shorter where a file is missing or ends early."""
        if self.counted is None or not self.counted.kept:
            return self._read_files(at, size)
        in_files = min(max(0, self.counted.files_end * UNIT_BYTES - at), size)
        units = self._read_files(at, in_files)
        if len(units) < in_files:
            return units
        return units + _kept_units(self.counted, (at + in_files) // UNIT_BYTES, (size - in_files) // UNIT_BYTES)

    def _read_files(self, at: int, size: int) -> bytes:
        parts = []
        while size > 0:
            number = bisect_right(self.starts, at) - 1
            if number < 0:
                break
            start = self.starts[number]
            if start != self.fd_start:
                self.close()
                self.fd = os.open(self.directory / f"{start:020}", os.O_RDONLY | os.O_CLOEXEC)
                self.fd_start = start
            end = self.starts[number + 1] if number + 1 < len(self.starts) else at + size
            part = os.pread(self.fd, min(size, end - at), at - start)
            parts.append(part)
            at += len(part)
            size -= len(part)
            if at < end:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = self.fd_start = -1


class _Piece(NamedTuple):
    """Units of one queue in memory, from a byte of the queue on."""

    files: _Files
    at: int
    units: bytes


class FileIndexCheck:
    """Checks `consumequeue/` and what the index snapshot keeps: `counted` and `checkpoint` of it."""

    def __init__(self, root: Path, counted: Iterable[Counted], *, checkpoint: int, log_begin: int) -> None:
        self._directory = root / "consumequeue"
        self._counted = {one.key: one for one in counted}
        self.checkpoint = checkpoint
        self._log_begin = log_begin
        self._pieces: OrderedDict[QueueKey, _Piece] = OrderedDict()
        self._seen: dict[QueueKey, OffsetRange] = {}  # of the entries before the checkpoint
        self._wrong = WrongRanges()

    def expect(self, entry: Entry) -> None:
        """See `IndexCheck.expect`."""
        if entry.position >= self.checkpoint:
            return
        key = entry.queue
        base_offset, next_offset = entry.base_offset, entry.next_offset
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = OffsetRange(base_offset, next_offset)
        else:
            seen.end = next_offset
        counted = self._counted[key].bounds if key in self._counted else _NONE
        if entry.tag_hashes:
            extent = ENTRY_EXTENT.pack(entry.position, entry.size)
            expected = b"".join([extent + TAG_HASH.pack(tag_hash) for tag_hash in entry.tag_hashes])
        else:
            expected = UNIT.pack(entry.position, entry.size, 0) * entry.record_count
        at = base_offset * UNIT_BYTES
        piece = self._pieces.get(key)
        if piece is None or not piece.at <= at <= piece.at + len(piece.units) - len(expected):
            piece = self._read(key, piece, at, len(expected))
        is_counted = counted.min_offset <= base_offset and next_offset <= counted.max_offset
        if not is_counted or not piece.units.startswith(expected, at - piece.at):
            self._wrong.add(entry)

    def finish(self) -> Iterator[WrongUnits]:
        """See `IndexCheck.finish`."""
        for key, ranges in self._wrong.items():
            files = self._files(key)
            for wrong in ranges:
                yield from self._wrong_units(key, files, wrong, _NOT_TO_ENTRY)
        for key, (_, counted, _, _) in self._counted.items():
            seen = self._seen.get(key) or OffsetRange(counted.max_offset, counted.max_offset)
            files = self._files(key)
            lost, stray = OffsetRange(), OffsetRange()
            for offset, position in _positions(files, counted.min_offset, min(seen.first, counted.max_offset)):
                if self._log_begin <= position < self.checkpoint:
                    lost.add(offset)
                elif not 0 <= position < self._log_begin:
                    stray.add(offset)
            files.close()
            yield from self._wrong_units(key, files, stray, "index units of expired records were changed")
            yield from self._wrong_units(key, files, lost, _NO_ENTRY, is_lost=True)
            behind = OffsetRange(seen.end, counted.max_offset) if seen.end < counted.max_offset else OffsetRange()
            yield from self._wrong_units(key, files, behind, _NO_ENTRY, is_lost=True)

    def close(self) -> None:
        """See `IndexCheck.close`."""
        for piece in self._pieces.values():
            piece.files.close()
        self._pieces.clear()

    def _wrong_units(
        self, key: QueueKey, files: _Files, wrong: OffsetRange, reason: str, *, is_lost: bool = False
    ) -> Iterator[WrongUnits]:
        if wrong.end:
            at = wrong.first * UNIT_BYTES
            path, start = files.path_of(at)
            yield WrongUnits(key, (wrong.first, wrong.end), str(path), at - start, reason, is_lost)

    def _read(self, key: QueueKey, piece: _Piece | None, at: int, size: int) -> _Piece:
        files = self._files(key) if piece is None else piece.files
        made = self._pieces[key] = _Piece(files, at, files.read(at, max(size, _PIECE_UNITS * UNIT_BYTES)))
        self._pieces.move_to_end(key)
        if len(self._pieces) > _PIECES_MAX:
            self._pieces.popitem(last=False)[1].files.close()
        return made

    def _files(self, key: QueueKey) -> _Files:
        return _Files(self._directory / str(key.topic_id) / str(key.queue_id), self._counted.get(key))


def _kept_units(counted: Counted, offset: int, count: int) -> bytes:
    """Units that the snapshot keeps, from an offset on; fewer where it has no more."""
    units: list[bytes] = []
    end = min(offset + count, counted.bounds.max_offset)
    for one in counted.kept.since(offset, counted.bounds.max_offset):
        first, last = max(offset, one.base_offset), min(end, one.next_offset)
        if first >= last:
            break
        if one.tag_hashes:
            hashes = one.tag_hashes[first - one.base_offset : last - one.base_offset]
            units += [UNIT.pack(one.position, one.size, tag_hash) for tag_hash in hashes]
        else:
            units.append(UNIT.pack(one.position, one.size, 0) * (last - first))
    return b"".join(units)


def _positions(files: _Files, first: int, end: int) -> Iterator[tuple[int, int]]:
    """The offsets [first, end) that have a unit, and where it points."""
    while first < end:
        count = min(_SCAN_UNITS, end - first)
        units = files.read(first * UNIT_BYTES, count * UNIT_BYTES)
        units = units[: len(units) // UNIT_BYTES * UNIT_BYTES]
        if not units:
            return
        for offset, (position, _, _) in enumerate(UNIT.iter_unpack(units), first):
            yield offset, position
        first += len(units) // UNIT_BYTES


def open_index_check(root: Path, snapshot: Snapshot | None, *, log_begin: int, log_start: int = 0) -> IndexCheck:
    """The check that fits the index of this directory. `snapshot` is that of an index in files, if there is one.
    Retention has given up what lies before `log_start`; the log may still have it.

    Raises IndexDamaged when a database cannot be opened.
    """
    if snapshot is not None:
        if is_unfinished(snapshot.content):
            return NoIndexCheck(snapshot.next_offset)
        counted = decode_counted(snapshot.content)
        return FileIndexCheck(root, counted, checkpoint=snapshot.next_offset, log_begin=log_begin)
    if (root / ROCKSDB_DIRECTORY).is_dir():
        try:
            from store.offline.index_check_rocksdb import RocksDbIndexCheck
        except ModuleNotFoundError:  # the extra is not installed
            return NoIndexCheck()
        return RocksDbIndexCheck(root, log_begin=log_begin, log_start=log_start)
    return NoIndexCheck()

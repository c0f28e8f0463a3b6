"""Consume queues in files: the default, good for up to some ten thousand queues.

    consumequeue/<topic id>/<queue id>/<first byte, 20 digits>

Format: an array of 20-byte units, big-endian, unit i for offset i, so that a look-up is one multiplication. A file
holds `file_units` units and is named by the byte offset of its first one.

    0            8         12           20
    +------------+---------+------------+
    |position i64|size i32 |tag hash i64|      position and size of the entry; records of one entry share them
    +------------+---------+------------+

Units wait in memory until `flush`; readers see both. Nothing here has a checksum: after a crash, the units behind the
checkpoint are built again from the log, and the end of a queue is believed only if the entry it points to agrees.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

from store.checkpoint import CheckpointFile
from store.consume_queue.base import ConsumeQueues, EntryAt, Flush, Run
from store.errors import Corrupt
from store.files import File, Files
from store.types import Bounds, Entry, QueueKey

_UNIT = struct.Struct(">qiq")
UNIT_BYTES = 20
assert _UNIT.size == UNIT_BYTES
_PLACE = struct.Struct(">qi")
_TAG_HASH = struct.Struct(">q")
_NO_TAG = _TAG_HASH.pack(0)
NAME_DIGITS = 20
OPEN_FILES_MAX = 1024
_CHECKED_COUNT = 4096  # units read at once while looking for the last good one


class _Queue:
    """One queue: units [min, flushed) are in files, the ones after them in memory."""

    __slots__ = ("directory", "flushed_count", "min_offset", "pending")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.min_offset = 0
        self.flushed_count = 0
        self.pending = bytearray()

    @property
    def max_offset(self) -> int:
        return self.flushed_count + len(self.pending) // UNIT_BYTES


class FileConsumeQueues(ConsumeQueues):
    """All queues below `root/consumequeue`, with `root/checkpoint` beside them. Queues are opened when first touched.

    Units that point at or behind the checkpoint at opening are dropped when their queue is opened.
    """

    def __init__(self, root: Path, files: Files, *, file_units: int, first_position: int, entry_at: EntryAt) -> None:
        self._directory = root / "consumequeue"
        self._files = files
        self._file_bytes = file_units * UNIT_BYTES
        self._first_position = first_position
        self._entry_at = entry_at
        self._checkpoint_file = CheckpointFile(root / "checkpoint", files)
        self._checkpoint = self._checked_position = self._checkpoint_file.load()
        self._queues: dict[QueueKey, _Queue] = {}
        self._dirty: set[QueueKey] = set()
        self._open_files: OrderedDict[Path, File] = OrderedDict()
        self._pending_bytes = 0

    @property
    def checkpoint(self) -> int:
        return self._checkpoint

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def append(self, entry: Entry) -> None:
        queue = self._queue(entry.queue)
        max_offset = queue.max_offset
        if entry.next_offset <= max_offset:
            return
        if entry.base_offset != max_offset:
            raise AssertionError(
                f"{entry.queue}: entry at offset {entry.base_offset}, but the queue ends at {max_offset}"
            )
        place = _PLACE.pack(entry.position, entry.size)
        if entry.tag_hashes:
            units = b"".join([place + _TAG_HASH.pack(tag_hash) for tag_hash in entry.tag_hashes])
        else:
            units = (place + _NO_TAG) * entry.record_count
        queue.pending += units
        self._pending_bytes += len(units)
        self._dirty.add(entry.queue)

    def bounds(self, queue: QueueKey) -> Bounds:
        found = self._queue(queue)
        return Bounds(found.min_offset, found.max_offset)

    def runs(
        self, queue: QueueKey, offset: int, unit_count: int, tag_hashes: frozenset[int] | None = None
    ) -> list[Run]:
        found = self._queue(queue)
        units = self._read_units(found, offset, unit_count)
        runs = []
        at = 0
        while at < len(units):
            position, size = _PLACE.unpack_from(units, at)
            unit_offset = offset + at // UNIT_BYTES
            if size <= 0:
                raise Corrupt(str(found.directory), unit_offset * UNIT_BYTES, "an index unit was never written")
            end = _end_of_run(units, at)
            if tag_hashes is None or _has_tag(units[at:end], tag_hashes):
                runs.append(Run(position, size, unit_offset))
            at = end
        return runs

    def advance_min(self, position: int) -> None:
        self._first_position = position
        for queue in self._queues.values():
            self._correct_min(queue)

    def topic_ids(self) -> set[int]:
        stored = {int(name) for name in self._files.list(self._directory)}
        return stored | {key.topic_id for key in self._queues}

    def drop_topic(self, topic_id: int) -> None:
        for key in [key for key in self._queues if key.topic_id == topic_id]:
            self._pending_bytes -= len(self._queues.pop(key).pending)
            self._dirty.discard(key)
        topic_directory = self._directory / str(topic_id)
        for queue_name in self._files.list(topic_directory):
            for name in self._files.list(topic_directory / queue_name):
                self._remove_file(topic_directory / queue_name, int(name))
            self._files.remove_dir(topic_directory / queue_name)
        if str(topic_id) in self._files.list(self._directory):
            self._files.remove_dir(topic_directory)

    def flush(self, checkpoint: int) -> Flush:
        dirty, self._dirty = self._dirty, set()
        work = [(self._queues[key], bytes(self._queues[key].pending)) for key in dirty]

        def run() -> None:
            try:
                for queue, units in work:
                    self._write_units(queue.directory, queue.flushed_count, units)
                self._checkpoint_file.save(checkpoint)
            except BaseException:
                self._dirty |= dirty
                raise

        def finish() -> None:
            self._checkpoint = checkpoint
            for queue, units in work:
                del queue.pending[: len(units)]
                queue.flushed_count += len(units) // UNIT_BYTES
                self._pending_bytes -= len(units)

        return Flush(run, finish)

    def close(self) -> None:
        self._checkpoint_file.close()
        for file in self._open_files.values():
            file.close()
        self._open_files.clear()

    # ---- files ---------------------------------------------------------------------------------------------------

    def _queue(self, key: QueueKey) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._open_queue(key)
        return queue

    def _open_queue(self, key: QueueKey) -> _Queue:
        queue = _Queue(self._directory / str(key.topic_id) / str(key.queue_id))
        starts = self._starts(queue.directory)
        if not starts:
            return queue
        queue.min_offset = starts[0] // UNIT_BYTES
        end = starts[-1] + self._file(queue.directory, starts[-1]).size()
        queue.flushed_count = self._last_good(key, queue, end // UNIT_BYTES)
        for start in starts:
            good_bytes = max(0, queue.flushed_count * UNIT_BYTES - start)
            if start + good_bytes < min(end, start + self._file_bytes):
                self._file(queue.directory, start).truncate(good_bytes)
        self._correct_min(queue)
        return queue

    def _starts(self, directory: Path) -> list[int]:
        """The files of a queue without a gap up to the last. Older ones behind a gap were removed once: a power cut
        brought their names back."""
        starts = [int(name) for name in self._files.list(directory)]
        kept = 0
        for number, (before, start) in enumerate(pairwise(starts), 1):
            if start != before + self._file_bytes:
                kept = number
        for start in starts[:kept]:
            self._remove_file(directory, start)
        return starts[kept:]

    def _correct_min(self, queue: _Queue) -> None:
        """Raise a queue's min offset to its first unit that points into the log, and remove files before that unit."""
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            if _PLACE.unpack_from(self._read_units(queue, middle, 1))[0] < self._first_position:
                low = middle + 1
            else:
                high = middle
        queue.min_offset = low
        last_start = max(queue.flushed_count - 1, 0) * UNIT_BYTES // self._file_bytes * self._file_bytes
        for name in self._files.list(queue.directory):
            if int(name) + self._file_bytes <= low * UNIT_BYTES and int(name) < last_start:
                self._remove_file(queue.directory, int(name))

    def _remove_file(self, directory: Path, start: int) -> None:
        if (file := self._open_files.pop(directory / _name(start), None)) is not None:
            file.close()
        self._files.remove(directory / _name(start))

    def _last_good(self, key: QueueKey, queue: _Queue, count: int) -> int:
        """The units of a queue to believe: up to the last that points before the checked position, to its own entry."""
        while count > queue.min_offset:
            first = max(queue.min_offset, count - _CHECKED_COUNT)
            units = self._read_files(queue.directory, first, count - first)
            for index in range(len(units) // UNIT_BYTES - 1, -1, -1):
                position, size = _PLACE.unpack_from(units, index * UNIT_BYTES)
                is_checked = size > 0 and 0 <= position < self._checked_position
                if is_checked and self._points_to(key, first + index, position):
                    return first + index + 1
            count = first
        return queue.min_offset

    def _points_to(self, key: QueueKey, offset: int, position: int) -> bool:
        try:
            entry = self._entry_at(position)
        except Corrupt:
            return False
        return entry is None or (entry.queue == key and entry.base_offset <= offset < entry.next_offset)

    def _read_units(self, queue: _Queue, offset: int, count: int) -> bytes | bytearray:
        pending_at = (offset - queue.flushed_count) * UNIT_BYTES
        if pending_at >= 0:
            return queue.pending[pending_at : pending_at + count * UNIT_BYTES]
        units = self._read_files(queue.directory, offset, min(count, queue.flushed_count - offset))
        missing = count - len(units) // UNIT_BYTES
        return units + queue.pending[: missing * UNIT_BYTES] if missing > 0 else units

    def _read_files(self, directory: Path, offset: int, count: int) -> bytes:
        parts = []
        position, end = offset * UNIT_BYTES, (offset + count) * UNIT_BYTES
        while position < end:
            start = position - position % self._file_bytes
            size = min(end, start + self._file_bytes) - position
            part = self._file(directory, start).pread(size, position - start)
            parts.append(part)
            if len(part) < size:
                break
            position += size
        return b"".join(parts)

    def _file(self, directory: Path, start: int) -> File:
        path = directory / _name(start)
        file = self._open_files.get(path)
        if file is None:
            if len(self._open_files) >= OPEN_FILES_MAX:
                self._open_files.popitem(last=False)[1].close()
            file = self._open_files[path] = self._files.open(path)
        self._open_files.move_to_end(path)
        return file

    def _write_units(self, directory: Path, offset: int, units: bytes) -> None:
        """Write units from `offset` on and make them durable. Runs in a thread: it opens files of its own."""
        view = memoryview(units)
        position = offset * UNIT_BYTES
        while view:
            start = position - position % self._file_bytes
            part = view[: start + self._file_bytes - position]
            is_new = position == start
            if is_new:
                self._files.make_dirs(directory)
            file = self._files.open(directory / _name(start), create=is_new)
            try:
                file.pwritev([part], position - start)
                file.datasync()
            finally:
                file.close()
            if is_new:
                self._files.sync_dir(directory)
            position += len(part)
            view = view[len(part) :]


def _end_of_run(units: bytes | bytearray, at: int) -> int:
    """The byte behind the last unit from `at` on that has the same position: gallop, then bisect.

    Units of one entry are neighbours, and entries hold up to thousands of records: a step a unit would be the most
    expensive part of a read.
    """
    place = units[at : at + _PLACE.size]
    low, step = at, UNIT_BYTES  # the unit at `low` belongs to the run
    while low + step < len(units) and units[low + step : low + step + _PLACE.size] == place:
        low += step
        step *= 2
    high = min(low + step, len(units))  # the unit at `high` does not
    while high - low > UNIT_BYTES:
        middle = low + (high - low) // (2 * UNIT_BYTES) * UNIT_BYTES
        if units[middle : middle + _PLACE.size] == place:
            low = middle
        else:
            high = middle
    return high


def _has_tag(units: bytes | bytearray, tag_hashes: frozenset[int]) -> bool:
    return any(tag_hash in tag_hashes for _, _, tag_hash in _UNIT.iter_unpack(units))


def _name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}}"

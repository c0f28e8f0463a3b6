"""Consume queues in files: the default, good for up to some ten thousand queues.

    consumequeue/<topic id>/<queue id>/<first byte, 20 digits>

Format: an array of 20-byte units, big-endian, unit i for offset i, so that a look-up is one multiplication. A file
holds `file_units` units and is named by the byte offset of its first one.

    0            8         12           20
    +------------+---------+------------+
    |position i64|size i32 |tag hash i64|      position and size of the entry; records of one entry share them
    +------------+---------+------------+

Units wait in memory until `flush`, a row an entry (store/index/pending.py); readers see both. How many units
each queue has is in the index snapshot (store/snapshot.py, files `index.0` and `index.1`): next offset = the
checkpoint, a position of the log; content: store/index/counted.py.

A flush does not write every queue's file: rows of queues with few of them are kept in the snapshot, and in memory,
until all of them together are more than a small part of what the log grew by (`KEPT_LOG_SHARE`). Then they all go to
their files.

Order of a flush: units synced, then the snapshot. So what the snapshot counts is durable, and whatever a file holds
behind it (a crash came in between) is ignored and written over. Units have no checksum: the store compares every entry
it reads with the unit that led to it.

A damaged index is built again over its files. Before the first unit is written, the snapshot is saved once more with
first position -1: it counts no units then, and only remembers how far each queue and the durable log went. A start
that finds it so builds the index again.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from store.errors import IndexDamaged, Overloaded
from store.files import OUT_OF_HANDLES, File, Files
from store.index.base import ENTRY_EXTENT, UNIT, UNIT_BYTES, ConsumeQueues, Flush, Run
from store.index.counted import (
    NOTHING_KEPT,
    Counted,
    Row,
    as_unfinished,
    decode_bounds,
    decode_counted,
    encode_counted,
    first_position_of,
    is_unfinished,
)
from store.index.pending import ROW_BYTES, Cells, PendingUnits
from store.limits import KiB, MiB
from store.snapshot import Snapshot, SnapshotFiles
from store.types import Bounds, Indexed, QueueKey

NAME_DIGITS = 20
OPEN_FILES_MAX = 1024
OPEN_FILES_SHARE = 8
"""One handle in so many may be one of a file that is kept open for reading."""

SYNCED_EACH_MAX = 32
"""Files that one flush syncs one by one; more are synced together."""

PIECE_BYTES = 1 * MiB
"""Units of one file that a flush makes and writes at a time, or those of one entry."""

KEPT_LOG_SHARE = 8
KEPT_BYTES_MAX = 24 * MiB
"""What a flush keeps in the snapshot: at most that part of what the log grew by since the last one, and so much."""

KEPT_QUEUE_BYTES_MAX = 4 * KiB
"""... and of one queue: with more, its file is worth a write."""

LONG_RUN_UNITS = 256
"""Entries of so many records are looked for one by one: to read all of their units takes longer."""

_NO_RUN = 0, 0

_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long
_EMPTY = Bounds(0, 0)


class _Queue:
    """One queue: units [min, flushed) are in files, the ones after them in memory."""

    __slots__ = (
        "directory", "flushed_count", "key", "last_run", "max_offset", "min_offset", "named", "pending", "written",
    )  # fmt: skip

    def __init__(self, key: QueueKey, directory: Path, offset: int) -> None:
        self.key = key
        self.directory = directory
        self.min_offset = self.flushed_count = self.max_offset = offset
        self.pending = PendingUnits()
        self.named: set[int] = set()  # starts of the files whose names are durable
        self.last_run = _NO_RUN  # where the entry begins that was looked for last, and how many records one had
        self.written: tuple[int, Path] | None = None  # start and path of the file that a flush wrote last

    def path_of(self, start: int) -> Path:
        """The path of one file. The last one is kept: making it costs as much as opening the file."""
        if self.written is None or self.written[0] != start:
            self.written = start, self.directory / _name(start)
        return self.written[1]


_Work = tuple[_Queue, int, int]
"""A queue, how many of its pending entries a flush makes durable, and the offset where they end."""


class FileConsumeQueues(ConsumeQueues):
    """All queues below `root/consumequeue`, with the snapshot beside it."""

    def __init__(
        self, root: Path, files: Files, *, file_units: int, first_position: int, rebuild: bool = False
    ) -> None:
        """Raises IndexDamaged when files do not hold what the snapshot counts; Corrupt on a newer format version."""
        self._directory = root / "consumequeue"
        self._files = files
        self._file_bytes = file_units * UNIT_BYTES
        self._first_position = first_position
        self._snapshots = SnapshotFiles(root, "index", files)
        self._checkpoint = 0
        self._durable_position = 0
        self._dropped: list[int] = []  # topics whose files the next flush removes
        self._expired: list[tuple[Path, int]] = []  # files that it removes as well, by directory and start
        self._queues: dict[QueueKey, _Queue] = {}
        self._dirty: set[QueueKey] = set()
        self._open_files: OrderedDict[tuple[Path, int], File] = OrderedDict()  # by directory and start
        self._open_files_max = max(1, min(OPEN_FILES_MAX, files.handle_limit // OPEN_FILES_SHARE))
        self._pending_bytes = 0
        self._last_position = -1  # of the entries added
        self._floors: dict[QueueKey, int] = {}
        self._unfinished: Snapshot | None = None  # to be saved before the first unit of a rebuild is written
        snapshot = self._snapshots.load()
        if snapshot is None:
            return
        self._durable_position = snapshot.next_offset
        if rebuild:
            # The files stay: the same units will be written over them.
            self._floors = {key: bounds.max_offset for key, bounds in decode_bounds(snapshot.content)}
            self._unfinished = snapshot._replace(content=as_unfinished(snapshot.content))
            return
        if is_unfinished(snapshot.content):
            raise IndexDamaged(f"{self._directory}: building it again was cut off")
        self._checkpoint = snapshot.next_offset
        for counted in decode_counted(snapshot.content):
            self._queues[counted.key] = self._open_queue(counted)
        self._remove_strangers()
        if first_position > first_position_of(snapshot.content):
            self.advance_min(first_position)

    @property
    def checkpoint(self) -> int:
        """See `ConsumeQueues.checkpoint`."""
        return self._checkpoint

    @property
    def durable_position(self) -> int:
        """See `ConsumeQueues.durable_position`."""
        return self._durable_position

    @property
    def pending_bytes(self) -> int:
        """See `ConsumeQueues.pending_bytes`."""
        return self._pending_bytes

    @property
    def pending_file_count(self) -> int:
        """See `ConsumeQueues.pending_file_count`."""
        return len(self._dirty)

    def append(self, entry: Indexed) -> None:
        """See `ConsumeQueues.append`."""
        queue = self._queues.get(entry.queue) or self._queue(entry.queue)
        next_offset = entry.next_offset
        if next_offset <= queue.max_offset:
            return
        if entry.base_offset != queue.max_offset:
            self._begin_at(entry.queue, entry.base_offset)
        if not queue.pending:
            self._dirty.add(entry.queue)
        self._pending_bytes += queue.pending.add(entry.base_offset, entry.position, entry.size, entry.tag_hashes)
        queue.max_offset = next_offset
        if entry.position > self._last_position:  # a rebuild adds what has expired last
            self._last_position = entry.position

    def extend(self, queue: QueueKey, entries: Sequence[Indexed]) -> None:
        """See `ConsumeQueues.extend`."""
        found = self._queue(queue)
        if any(entry.tag_hashes for entry in entries) or entries[0].base_offset != found.max_offset:
            super().extend(queue, entries)
            return
        expected = found.max_offset
        rows: list[int] = []
        for entry in entries:
            base_offset = entry.base_offset
            if base_offset != expected:
                raise IndexDamaged(f"{queue} ends at offset {expected}, but {base_offset} is known")
            expected += entry.record_count
            rows += base_offset, entry.position, entry.size
        self._pending_bytes += found.pending.add_rows(rows)
        found.max_offset = expected
        self._last_position = max(self._last_position, entries[-1].position)
        self._dirty.add(queue)

    def finish_rebuild(self) -> None:
        """See `ConsumeQueues.finish_rebuild`."""
        for key, offset in self._floors.items():
            self._begin_at(key, offset)
        self._floors.clear()

    def _begin_at(self, key: QueueKey, offset: int) -> None:
        """Let a queue without units begin at an offset. Raises IndexDamaged when it has some and ends before it."""
        queue = self._queue(key)
        if queue.max_offset >= offset:
            return
        if queue.min_offset != queue.max_offset:
            raise IndexDamaged(f"{key} ends at offset {queue.max_offset}, but {offset} is known")
        queue.min_offset = queue.flushed_count = queue.max_offset = offset

    def max_offset(self, queue: QueueKey) -> int:
        """See `ConsumeQueues.max_offset`."""
        return self.bounds(queue).max_offset

    def bounds(self, queue: QueueKey) -> Bounds:
        """See `ConsumeQueues.bounds`."""
        found = self._queues.get(queue)  # looking makes none: a receive may look at 100,000 of them
        return _EMPTY if found is None else _new(Bounds, (found.min_offset, found.max_offset))

    def runs(
        self, queue: QueueKey, offset: int, unit_count: int, tag_hashes: frozenset[int] | None = None
    ) -> list[Run]:
        """See `ConsumeQueues.runs`."""
        found = self._queues.get(queue)
        if found is None:
            return []
        end = offset + unit_count
        runs: list[Run] = []
        if offset < found.flushed_count:
            flushed_end = min(end, found.flushed_count)
            first = self._long_runs(found, offset, flushed_end, runs) if tag_hashes is None else offset
            units = self._read_files(found.directory, first, flushed_end - first)
            at = length = 0
            while at < len(units):
                unit_offset = first + at // UNIT_BYTES
                run = _run(found.directory, units[at : at + ENTRY_EXTENT.size], unit_offset)
                run_end = _end_of_run(units, at, length)
                if run_end < len(units):  # else it may be longer
                    length = run_end - at
                if tag_hashes is None or _has_tag(units[at:run_end], tag_hashes):
                    runs.append(run)
                at = run_end
            if units:
                found.last_run = unit_offset, length // UNIT_BYTES
        if end > found.flushed_count:
            for pending in found.pending.since(offset, found.max_offset):
                if pending.base_offset >= end:
                    break
                if tag_hashes is None or pending.has_tag(tag_hashes, offset, end):
                    runs.append(Run(pending.position, pending.size, max(offset, pending.base_offset)))
        return runs

    def _long_runs(self, queue: _Queue, offset: int, end: int, runs: list[Run]) -> int:
        """Add the entries of flushed units from `offset` on that are as long as the last one; the offset where one
        begins that is not. Two units are read of each: the last that should be its own, and the one behind it."""
        first, length = queue.last_run
        if length < LONG_RUN_UNITS:
            return offset
        at, extent = offset, self._read_files(queue.directory, offset, 1)[: ENTRY_EXTENT.size]
        while at < end:
            if not first <= at < first + length:  # it begins here
                first = at
            run_end = min(first + length, end)
            ends = self._read_files(queue.directory, run_end - 1, 2 if run_end < end else 1)
            following = ends[UNIT_BYTES : UNIT_BYTES + ENTRY_EXTENT.size]
            if not ends.startswith(extent) or following == extent:
                break
            runs.append(_run(queue.directory, extent, at))
            at, extent = run_end, following
        queue.last_run = first, length
        return at

    def advance_min(self, position: int) -> None:
        """See `ConsumeQueues.advance_min`."""
        self._first_position = position
        for queue in self._queues.values():
            self._correct_min(queue)

    def topic_ids(self) -> set[int]:
        """See `ConsumeQueues.topic_ids`."""
        return {key.topic_id for key in self._queues}

    def drop_topic(self, topic_id: int) -> None:
        """See `ConsumeQueues.drop_topic`."""
        for key in [key for key in self._queues if key.topic_id == topic_id]:
            queue = self._queues.pop(key)
            self._pending_bytes -= queue.pending.remove(len(queue.pending))
            self._dirty.discard(key)
            for opened in [opened for opened in self._open_files if opened[0] == queue.directory]:
                self._open_files.pop(opened).close()
        self._dropped.append(topic_id)

    def flush(self, checkpoint: int) -> Flush:
        # Little is done here for each queue: there may be ten thousand, and the event loop stands still.
        """See `ConsumeQueues.flush`."""
        dropped, expired = list(self._dropped), list(self._expired)
        work: list[_Work] = []
        is_all = self._last_position < checkpoint
        for key in self._dirty:
            queue = self._queues[key]
            pending = queue.pending
            count = len(pending) if is_all else pending.count_before(checkpoint)
            work.append((queue, count, pending.end_of(count, queue.max_offset)))
        queues = list(self._queues.items())
        first_position = self._first_position
        keep_bytes_max = min((checkpoint - self._checkpoint) // KEPT_LOG_SHARE, KEPT_BYTES_MAX)
        written: list[_Work] = []

        def run() -> None:
            kept = _kept(work, keep_bytes_max)
            written[:] = sorted([one for one in work if one[0] not in kept], key=_key)
            content = encode_counted(first_position, _rows(queues, work, kept))
            if self._unfinished is not None:
                self._snapshots.save(self._unfinished)
                self._unfinished = None
            self._write_all(written)
            self._snapshots.save(Snapshot(checkpoint, content))
            # After the snapshot that no longer counts them.
            for directory, start in expired:
                with suppress(FileNotFoundError):  # removed by a flush that failed behind it
                    self._files.remove(directory / _name(start))
            for topic_id in dropped:
                self._remove_topic(topic_id)

        def finish() -> None:
            self._checkpoint = self._durable_position = checkpoint
            del self._dropped[: len(dropped)]
            del self._expired[: len(expired)]
            for queue, count, end in written:
                self._pending_bytes -= queue.pending.remove(count)
                queue.flushed_count = end
            self._dirty = {key for key in self._dirty if self._queues[key].pending}

        return Flush(run, finish)

    def close(self) -> None:
        """See `ConsumeQueues.close`."""
        for file in self._open_files.values():
            file.close()
        self._open_files.clear()

    # ---- files ---------------------------------------------------------------------------------------------------

    def _queue(self, key: QueueKey) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(key, self._directory.joinpath(str(key.topic_id), str(key.queue_id)), 0)
        return queue

    def _open_queue(self, counted: Counted) -> _Queue:
        key, bounds, files_end, kept = counted
        queue = _Queue(key, self._directory.joinpath(str(key.topic_id), str(key.queue_id)), files_end)
        queue.min_offset, queue.max_offset = bounds
        if kept:
            queue.pending = kept
            self._pending_bytes += kept.byte_count
            self._dirty.add(key)
        if bounds.min_offset >= files_end:
            return queue
        end = files_end * UNIT_BYTES
        first = bounds.min_offset * UNIT_BYTES // self._file_bytes * self._file_bytes
        present = {int(name) for name in self._files.list(queue.directory)}
        for start in range(first, end, self._file_bytes):
            size = self._file(queue.directory, start).size() if start in present else 0
            if size < min(self._file_bytes, end - start):
                raise IndexDamaged(f"{queue.directory / _name(start)} holds less than {files_end} units")
            queue.named.add(start)
        for start in present:
            if start < first:  # removed once; a power cut brought the name back
                self._files.remove(queue.directory / _name(start))
        return queue

    def _correct_min(self, queue: _Queue) -> None:
        """Raise a queue's min offset to its first unit that points into the log. Files before that unit go with the
        next flush: a start misses them while no snapshot says so."""
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            if self._position(queue, middle) < self._first_position:
                low = middle + 1
            else:
                high = middle
        queue.min_offset = low
        last = max(queue.named, default=0)
        for start in sorted(queue.named):
            if start + self._file_bytes <= low * UNIT_BYTES and start < last:
                if (file := self._open_files.pop((queue.directory, start), None)) is not None:
                    file.close()
                self._expired.append((queue.directory, start))
                queue.named.discard(start)

    def _position(self, queue: _Queue, offset: int) -> int:
        if offset >= queue.flushed_count:
            return next(queue.pending.since(offset, queue.max_offset)).position
        position: int = ENTRY_EXTENT.unpack_from(self._read_files(queue.directory, offset, 1))[0]
        if position < 0:
            raise IndexDamaged(f"{queue.directory}: the unit of offset {offset} points nowhere")
        return position

    def _read_files(self, directory: Path, offset: int, count: int) -> bytes:
        """Units that were flushed. Raises IndexDamaged."""
        parts = []
        position, end = offset * UNIT_BYTES, (offset + count) * UNIT_BYTES
        while position < end:
            start = position - position % self._file_bytes
            size = min(end, start + self._file_bytes) - position
            try:
                part = self._file(directory, start).pread(size, position - start)
            except OSError as error:
                if error.errno in OUT_OF_HANDLES:
                    raise Overloaded(f"no file can be opened now: {error}") from error
                raise IndexDamaged(f"{directory / _name(start)} cannot be read: {error}") from error
            if len(part) < size:
                raise IndexDamaged(f"{directory / _name(start)} ends before the unit of offset {offset + count - 1}")
            parts.append(part)
            position += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _file(self, directory: Path, start: int) -> File:
        key = directory, start  # no path: joining one costs more than a read of units
        file = self._open_files.get(key)
        if file is None:
            if len(self._open_files) >= self._open_files_max:
                self._open_files.popitem(last=False)[1].close()
            file = self._open_files[key] = self._files.open(directory / _name(start))
        self._open_files.move_to_end(key)
        return file

    def _remove_strangers(self) -> None:
        """Remove the files of topics the snapshot does not count: deleted, and a crash came before their removal."""
        known = {key.topic_id for key in self._queues}
        for name in self._files.list(self._directory):
            if int(name) not in known:
                self._remove_topic(int(name))

    def _remove_topic(self, topic_id: int) -> None:
        directory = self._directory / str(topic_id)
        for queue_name in self._files.list(directory):
            for name in self._files.list(directory / queue_name):
                self._files.remove(directory / queue_name / name)
            self._files.remove_dir(directory / queue_name)
        if str(topic_id) in self._files.list(self._directory):
            self._files.remove_dir(directory)

    def _write_all(self, work: Sequence[_Work]) -> None:
        """Write units behind what their queues have in files, durably. Runs in a thread: it opens files of its own.

        Each new length of a file is a change to the file system's journal, and syncing thousands of files one by one
        costs one each; many are synced together, new names among them.
        """
        together = len(work) > SYNCED_EACH_MAX
        written = [
            (queue, self._write_units(queue, queue.pending.first(count, end), sync=not together))
            for queue, count, end in work
            if count
        ]
        if together:
            self._files.sync_all(self._directory)
        for queue, starts in written:
            queue.named |= starts

    def _write_units(self, queue: _Queue, entries: Iterator[Cells], *, sync: bool) -> set[int]:
        """The starts of the files written."""
        starts: set[int] = set()
        position = queue.flushed_count * UNIT_BYTES
        for units in _pieces(entries):
            view = memoryview(units)
            while view:
                start = position - position % self._file_bytes
                part = view[: start + self._file_bytes - position]
                is_new = start not in queue.named and start not in starts
                if is_new:
                    self._files.make_dirs(queue.directory, sync=False)
                file = self._files.open(queue.path_of(start), create=is_new)
                try:
                    file.pwritev([part], position - start)
                    if sync:
                        file.datasync()
                finally:
                    file.close()
                if is_new and sync:  # those above as well: they may be left from a flush that did not come to its sync
                    for directory in (queue.directory, queue.directory.parent, self._directory, self._directory.parent):
                        self._files.sync_dir(directory)
                starts.add(start)
                position += len(part)
                view = view[len(part) :]
        return starts


def _rows(
    queues: Sequence[tuple[QueueKey, _Queue]], work: Sequence[_Work], kept: Mapping[_Queue, array[int]]
) -> Iterator[Row]:
    """What the snapshot says of all queues once the work of a flush is done."""
    ends = {queue: (count, end) for queue, count, end in work}
    for key, queue in queues:
        count, end = ends.get(queue, (0, queue.flushed_count))
        cells = kept.get(queue, NOTHING_KEPT)
        yield Row(key, Bounds(queue.min_offset, end), count if cells else 0, cells)


def _key(work: _Work) -> QueueKey:
    """Files are written in the order in which most were made: it takes the kernel a quarter less than any other."""
    return work[0].key


def _kept(work: Sequence[_Work], bytes_max: int) -> dict[_Queue, array[int]]:
    """The cells of the queues that a flush leaves without a write to their files: all that have few, or none."""
    kept: dict[_Queue, array[int]] = {}
    size = 0
    for queue, count, _ in work:
        if not 0 < count * ROW_BYTES <= KEPT_QUEUE_BYTES_MAX:
            continue
        cells = queue.pending.cells(count)
        cells_bytes = len(cells) * cells.itemsize
        if cells_bytes > KEPT_QUEUE_BYTES_MAX:
            continue
        size += cells_bytes
        if size > bytes_max:
            return {}
        kept[queue] = cells
    return kept


def _pieces(entries: Iterator[Cells]) -> Iterator[bytes]:
    """The units of entries, so many at a time that memory stays small."""
    units: list[bytes] = []
    size = 0
    for base_offset, next_offset, position, entry_bytes, tag_hashes in entries:
        if tag_hashes:
            units.append(b"".join([UNIT.pack(position, entry_bytes, tag_hash) for tag_hash in tag_hashes]))
        else:
            units.append(UNIT.pack(position, entry_bytes, 0) * (next_offset - base_offset))
        size += len(units[-1])
        if size >= PIECE_BYTES:
            yield b"".join(units)
            units, size = [], 0
    if units:
        yield b"".join(units)


def _run(directory: Path, extent: bytes, offset: int) -> Run:
    """The entry of the unit that begins so. Raises IndexDamaged."""
    position, size = ENTRY_EXTENT.unpack(extent)
    if size <= 0 or position < 0:
        raise IndexDamaged(f"{directory}: the unit of offset {offset} points nowhere")
    return Run(position, size, offset)


def _end_of_run(units: bytes | bytearray, at: int, length: int) -> int:
    """The byte behind the last unit from `at` on that has the same position: look where it is when the run is as long
    as the one before (`length` in bytes, or 0), as batches of one sender are; else gallop, then bisect.

    Units of one entry are neighbours, and entries hold up to thousands of records: a step a unit would be the most
    expensive part of a read.
    """
    extent = units[at : at + ENTRY_EXTENT.size]
    likely = at + length
    if length and extent == units[likely - UNIT_BYTES : likely - UNIT_BYTES + ENTRY_EXTENT.size]:
        if extent != units[likely : likely + ENTRY_EXTENT.size]:
            return likely
        at = likely
    low, step = at, UNIT_BYTES  # the unit at `low` belongs to the run
    while low + step < len(units) and units[low + step : low + step + ENTRY_EXTENT.size] == extent:
        low += step
        step *= 2
    high = min(low + step, len(units))  # the unit at `high` does not
    while high - low > UNIT_BYTES:
        middle = low + (high - low) // (2 * UNIT_BYTES) * UNIT_BYTES
        if units[middle : middle + ENTRY_EXTENT.size] == extent:
            low = middle
        else:
            high = middle
    return high


def _has_tag(units: bytes | bytearray, tag_hashes: frozenset[int]) -> bool:
    return any(tag_hash in tag_hashes for _, _, tag_hash in UNIT.iter_unpack(units))


def _name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}}"

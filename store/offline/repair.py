"""Copy what is intact of a damaged data directory into a new one that opens and verifies, and name what is lost.

A partition is a total order of gap-free offsets, and an offset once shown never changes. So whatever survives must keep
its offset, and an offset whose record is gone must not be given to another one. Of the three honest ways to do that

    move the queue's beginning behind the hole      loses everything intact before it
    leave a hole in the offsets                     no reader and no index of ours, nor of Kafka, knows such a thing
    put something into the hole                     loses only what is lost

this is the third: each lost offset gets a *tombstone*, a record with neither key nor value, and with a header `mq-lost`
where there is room for it. Consumers see that something is missing, and where.

Intact entries keep their positions too, byte for byte: schedule ids, delivered sources and durable marks are positions.
So the tombstones have to fit into the damaged bytes themselves. They do, being smaller than what was there (without
the header, then compressed, if need be; RepairImpossible otherwise). Bytes left over are covered by filler entries of
topic id 0, which no topic has (a queue for each repair): a start drops them from the index. Where the end of a queue is
lost, its index says how far it went, and the tombstones come behind the last intact entry.

    before   | entry 7..9 | ~~~~ damage ~~~~ | entry 13, 14 |         index: the queue ends at 16
    after    | entry 7..9 | tombst. 10..12|f.| entry 13, 14 | tombst. 15

What is made anew: the index, by `rebuild_index`; the topics, from their snapshot, the intact metadata records, and the
topic names that the entries carry (so a deletion whose record is lost is undone). What is copied as far as it is whole:
snapshots of others, such as the progress of consumer groups; and the sequences of producers, for they may be of
entries that have expired. What is left out: the ids in `dedup/`, which the next start reads from the log again, and
the timer's files, which it builds again; a schedule whose delivered record is lost is then delivered again. The new
directory is verified before `repair` returns, and the original is only read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import orjson

from store import record_batch
from store.config import StoreConfig
from store.data_format import VERSION as DATA_VERSION
from store.dedup.idempotency import PRODUCERS_SNAPSHOT
from store.dedup.producers import Table, decode_table, encode_table
from store.errors import StoreError
from store.files import OsFiles
from store.index.counted import decode_bounds
from store.index.opening import KINDS, REBUILD_SNAPSHOT, IndexKind, has_index, read_max_offsets
from store.limits import BATCH_RECORDS_MAX, PARTITIONS_MAX, MiB
from store.log.entry import BLANK_BYTES, HEADER_BYTES, Blank, encode_blank, encode_entry, padded
from store.offline.directory import Found, Hole, Stain, Verdict, judge, locked, log_files, sync_path
from store.offline.index_rebuild import rebuild_index
from store.offline.verify import verify
from store.record_batch import Record, decode, encode, with_base_offset
from store.snapshot import Snapshot, SnapshotFiles, decode_snapshot
from store.topics import (
    FIRST_USER_TOPIC_ID,
    META_QUEUE,
    Event,
    KeyForm,
    QueueCreated,
    TopicCreated,
    TopicDeleted,
    TopicGrown,
    TopicTable,
    decode_events,
)
from store.types import Append, Buffer, Entry, QueueKey

LOST_HEADER = "mq-lost"
LOST_POSITION = -1  # of a producer's batch that is gone
FILLER_TOPIC_ID = 0
_COPY_BYTES = 8 * MiB
_FILLER_BYTES_MAX = 4 * MiB
_TAIL_STEP_BYTES = 64 * 1024
_PAD_BYTES_MAX = 256
_OWN_SNAPSHOTS = ("index", "meta", PRODUCERS_SNAPSHOT, REBUILD_SNAPSHOT)

Progress = Callable[[int, int], None]
"""Told how many bytes of the log have been worked through, and how many there are: read once, copied once."""


class RepairImpossible(StoreError):
    """The intact parts cannot be put together; the original is untouched, the new directory is of no use."""


class LostRange(NamedTuple):
    """Offsets [first, end) of one partition whose records are gone; tombstones stand in their places unless
    `is_before_begin`: then the partition now begins behind them."""

    topic: str
    queue: QueueKey
    first: int
    end: int
    is_before_begin: bool = False


@dataclass(slots=True)
class RepairReport:
    """What was kept and what is lost."""

    entry_count: int = 0
    record_count: int = 0
    hole_count: int = 0
    lost: list[LostRange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def lost_count(self) -> int:
        """Records that are gone."""
        return sum(lost.end - lost.first for lost in self.lost)


@dataclass(slots=True)
class _Queue:
    """What the log has shown of one queue."""

    topic: str
    first_offset: int
    next_offset: int
    end_position: int  # behind its last entry


class _Gap(NamedTuple):
    """Lost offsets that have to be covered by a hole between two log positions."""

    lost: LostRange
    after: int
    before: int


class _Context(NamedTuple):
    """What entries written at a position must not contradict: marks of the entries before it."""

    durable_position: int
    store_time_ms: int


@dataclass(slots=True)
class _Damaged:
    """A hole to be filled, and what goes into it."""

    position: int
    end: int
    context: _Context
    gaps: list[LostRange] = field(default_factory=list)


_ZSTD_LEVEL = 19  # a filler must fit where a batch was; repair has time


class _Style(Enum):
    """How much a tombstone says; each takes less room than the one before."""

    HEADER_ON_EACH = 0
    HEADER_ON_FIRST = 1
    BARE = 2
    COMPRESSED = 3


def repair(config: StoreConfig, out: Path, *, progress: Progress | None = None) -> RepairReport:
    """Make `out`, which must not exist yet, a whole data directory of what is intact in `config.root`.

    On return `out` is durable and has passed `verify`. Of `config`, the sizes of files must be the server's. Raises
    NotAStore, StoreLocked, RepairImpossible, FileExistsError, and OSError when `out` cannot be written.
    """
    with locked(config.root):
        return _Repair(config, out, progress).run()


class _Repair:
    """One run. First the whole log is read and judged (`_read`), then copied and completed (`_write`)."""

    def __init__(self, config: StoreConfig, out: Path, progress: Progress | None) -> None:
        self._config = config
        self._root = config.root
        self._out = out
        self._file_bytes = config.commit_log_file_bytes
        self._progress = progress
        self._files = OsFiles()
        self._report = RepairReport()
        self._queues: dict[QueueKey, _Queue] = {}
        self._topics = TopicTable()
        self._meta_offset = 0
        self._snapshot_next_id = FIRST_USER_TOPIC_ID  # smaller ids that the snapshot lacks were deleted
        self._log_start = 0
        self._store_time_ms = 0
        self._deleted_ids: set[int] = set()
        self._max_offsets: dict[QueueKey, int] = {}
        self._checkpoint = 0
        self._holes: list[_Damaged] = []
        self._stains: list[Stain] = []
        self._gaps: list[_Gap] = []
        self._filler_queue = QueueKey(FILLER_TOPIC_ID, 0)
        self._filler_offset = 0
        self._producers: Table = {}
        self._producer_positions: set[int] = set()  # of batches in it that the log should have
        self._log_begin = self._log_end = 0
        self._context = _Context(0, 0)
        self._done_bytes = self._total_bytes = 0

    def run(self) -> RepairReport:
        report = self._report
        self._out.mkdir(parents=True)
        self._take_index()
        self._take_topics()
        self._take_producers()
        self._read()
        self._complete_topics()
        self._assign_gaps()
        self._write()
        self._save_topics()
        self._save_producers()
        self._copy_snapshots()
        (self._out / "format").write_bytes(b"mq data format %d\n" % DATA_VERSION)
        for path in sorted(self._out.rglob("*")):
            sync_path(path)
        sync_path(self._out)
        kind: IndexKind = "rocksdb" if has_index("rocksdb", self._out, self._files) else "file"
        rebuild_index(replace(self._config, root=self._out), kind)
        if (self._root / "timer").exists():
            report.notes.append("the timer's files are left out; the next start builds them again from the log")
        checked = verify(self._out)
        if checked.findings:
            raise RepairImpossible(f"the repaired copy does not verify: {checked.findings[0]}")
        return report

    # ---- reading -------------------------------------------------------------------------------------------------

    def _take_index(self) -> None:
        """What the index knows: how far each queue went, and up to where all had been durable."""
        for path in [*self._root.glob("index.[01]"), *self._root.glob("consumequeue.rocksdb")]:
            if path.is_dir():
                shutil.copytree(path, self._out / path.name)
            else:
                shutil.copy(path, self._out / path.name)
        for kind in KINDS:
            known = read_max_offsets(kind, self._out, self._files)
            if known is not None and known[0] >= self._checkpoint:
                self._checkpoint, self._max_offsets = known
        if not self._checkpoint:
            self._report.notes.append("no index could be read: records lost at the end of a partition are not known")

    def _take_topics(self) -> None:
        snapshot = SnapshotFiles(self._root, "meta", self._files).load()
        if snapshot is not None:
            fields = orjson.loads(snapshot.content)
            self._topics.restore(fields)
            self._meta_offset = snapshot.next_offset
            self._snapshot_next_id = fields["next_topic_id"]
            self._log_start = fields["log_start"]
            self._store_time_ms = fields["store_time_ms"]

    def _take_producers(self) -> None:
        snapshot = SnapshotFiles(self._root, PRODUCERS_SNAPSHOT, self._files).load()
        if snapshot is not None:
            self._producers = decode_table(snapshot.content)
            self._producer_positions = {one.position for sent in self._producers.values() for one in sent}

    def _read(self) -> None:
        files, _ = log_files(self._root)
        for file in files:
            if file.start % self._file_bytes or file.size > self._file_bytes:
                raise RepairImpossible(
                    f"{file.path} is no {self._file_bytes}-byte log file; give the server's --config"
                )
        self._log_begin = self._log_end = files[0].start if files else 0
        self._total_bytes = 2 * sum(file.size for file in files)
        for file, piece, verdict in judge(files, self._checkpoint):
            if isinstance(piece, Found):
                self._keep(piece)
                self._log_end = piece.entry.position + piece.entry.size
            elif isinstance(piece, Blank):
                self._log_end = file.end
            elif isinstance(piece, Stain):
                self._stains.append(piece)
            elif isinstance(piece, Hole) and verdict is Verdict.ROT:
                self._add_hole(piece)
            self._tell(piece.size if not isinstance(piece, Found) else piece.entry.size)
        files_end = files[-1].end if files else self._log_begin
        if files_end < self._checkpoint:
            self._add_hole(Hole(files_end, self._checkpoint - files_end, "the log is cut"))
        # What had been there stays taken: a position is never used again either.
        self._log_end = max(self._log_end, self._checkpoint)
        self._holes = [hole for hole in self._holes if hole.position < self._log_end]
        for hole in self._holes:
            hole.end = min(hole.end, self._log_end)

    def _keep(self, found: Found) -> None:
        entry = found.entry
        self._report.entry_count += 1
        self._report.record_count += entry.record_count
        self._context = _Context(found.durable_position, entry.store_time_ms)
        self._producer_positions.discard(entry.position)
        if entry.queue.topic_id == FILLER_TOPIC_ID:  # of an earlier repair
            self._filler_queue = QueueKey(FILLER_TOPIC_ID, max(self._filler_queue.queue_id, entry.queue.queue_id + 1))
        queue = self._queues.get(entry.queue)
        if queue is None:
            expected, after = (0 if self._log_begin == 0 else entry.base_offset), self._log_begin
            queue = self._queues[entry.queue] = _Queue(entry.topic, entry.base_offset, 0, 0)
        else:
            expected, after = queue.next_offset, queue.end_position
        if entry.base_offset < expected:
            raise RepairImpossible(f"topic {entry.topic}: offset {entry.base_offset} comes twice; no damage does that")
        if entry.base_offset > expected:
            lost = LostRange(entry.topic, entry.queue, expected, entry.base_offset)
            self._gaps.append(_Gap(lost, after, entry.position))
        queue.next_offset = entry.next_offset
        queue.end_position = entry.position + entry.size
        if entry.queue == META_QUEUE and entry.next_offset > self._meta_offset:
            self._apply_meta(entry)

    def _apply_meta(self, entry: Entry) -> None:
        self._meta_offset = entry.next_offset
        try:
            events: list[Event] = decode_events(record.value for record in decode(entry.batch))
        except ValueError:
            return  # a tombstone of an earlier repair; what it lost is found again as below
        for event in events:
            if isinstance(event, TopicDeleted):
                self._deleted_ids.add(event.topic_id)
            if isinstance(event, TopicCreated) or event.topic_id in self._topics:
                self._topics.apply(event)

    def _add_hole(self, hole: Hole) -> None:
        self._report.hole_count += 1
        position, end = hole.position, hole.position + hole.size
        while position < end:  # nothing spans files
            file_end = position - position % self._file_bytes + self._file_bytes
            last = self._holes[-1] if self._holes else None
            if last is not None and last.end == position and position % self._file_bytes:
                last.end = min(end, file_end)
            else:
                self._holes.append(_Damaged(position, min(end, file_end), self._context))
            position = min(end, file_end)

    # ---- deciding ------------------------------------------------------------------------------------------------

    def _complete_topics(self) -> None:
        """Topics whose creation or growth is lost, from the names their entries carry."""
        for key, queue in sorted(self._queues.items()):
            known = next((topic for topic in self._topics.all() if topic.topic_id == key.topic_id), None)
            if known is not None:
                if key.queue_id >= PARTITIONS_MAX:
                    if isinstance(made := self._topics.decide_create_queue(key), QueueCreated):
                        self._topics.apply(made)
                elif key.queue_id >= known.partitions:
                    self._topics.apply(TopicGrown(key.topic_id, key.queue_id + 1))
            elif key.topic_id >= self._snapshot_next_id and key.topic_id not in self._deleted_ids:
                self._report.notes.append(
                    f"topic {queue.topic}: its creation is lost; known from its records; its keys are taken for raw"
                )
                is_further = key.queue_id >= PARTITIONS_MAX
                self._topics.apply(
                    TopicCreated(key.topic_id, queue.topic, 1 if is_further else key.queue_id + 1, 0, {}, KeyForm.RAW)
                )
                if is_further:
                    self._topics.apply(QueueCreated(*key))

    def _assign_gaps(self) -> None:
        """Give each gap to the largest hole where it may be; what is lost at an end goes behind the log."""
        for gap in self._gaps:
            holes = [hole for hole in self._holes if gap.after <= hole.position and hole.end <= gap.before]
            if not holes:
                raise RepairImpossible(f"offsets {gap.lost} are missing, but no damage was found where they were")
            max(holes, key=lambda hole: hole.end - hole.position).gaps.append(gap.lost)
            self._report.lost.append(gap.lost)
        self._name_what_was_before_the_log()

    def _name_what_was_before_the_log(self) -> None:
        """Records of lost files at the beginning, or in damage before a queue's first entry in a log that has been
        trimmed: nothing can stand in for them, the queue begins behind them."""
        snapshot = SnapshotFiles(self._root, "index", self._files).load()
        if not self._log_begin or snapshot is None or (self._log_start == self._log_begin and not self._holes):
            return
        for key, bounds in decode_bounds(snapshot.content):
            queue = self._queues.get(key)
            if queue is not None and bounds.min_offset < queue.first_offset:
                lost = LostRange(queue.topic, key, bounds.min_offset, queue.first_offset, is_before_begin=True)
                self._report.lost.append(lost)

    # ---- writing -------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        (self._out / "commitlog").mkdir()
        files, _ = log_files(self._root)
        for file in files:
            if file.start < max(self._log_end, self._log_begin + 1):
                self._copy(file.path, min(file.size, self._log_end - file.start), file.size)
        for stain in self._stains:
            if stain.position < self._log_end:
                self._put(stain.position, bytes(min(stain.size, self._log_end - stain.position)))
        for hole in self._holes:
            position = hole.position
            for buffer in self._filling(hole):
                self._put(position, buffer)
                position += len(buffer)
        self._append_lost_ends()

    def _copy(self, path: Path, used_bytes: int, size: int) -> None:
        """Copy a log file; what lies behind the log's end becomes zeros."""
        with path.open("rb") as source, (self._out / "commitlog" / path.name).open("wb") as target:
            left = used_bytes
            while left > 0 and (chunk := source.read(min(left, _COPY_BYTES))):
                target.write(chunk)
                left -= len(chunk)
                self._tell(len(chunk))
            rest = size - target.tell()
            while rest > 0:
                rest -= target.write(bytes(min(rest, _COPY_BYTES)))

    def _put(self, position: int, content: bytes) -> None:
        """Write into the new log, at a position that lies in one file."""
        start = position - position % self._file_bytes
        path = self._out / "commitlog" / f"{start:020}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, content, position - start)
        finally:
            os.close(fd)

    def _filling(self, hole: _Damaged) -> list[bytes]:
        """Buffers that take exactly the bytes of a hole: tombstones, and a blank marker or fillers for the rest."""
        size = hole.end - hole.position
        file_end = hole.position - hole.position % self._file_bytes + self._file_bytes
        for style in _Style:
            tombstones, position = [], hole.position
            for lost in hole.gaps:
                for buffer in self._tombstones(lost, position, hole.context, style):
                    tombstones.append(buffer)
                    position += len(buffer)
            rest = hole.end - position
            if rest < 0:
                continue
            if rest == 0:
                return tombstones
            if hole.end == file_end and rest >= BLANK_BYTES:
                marker = encode_blank(position, rest, hole.context.durable_position)
                return [*tombstones, marker + bytes(rest - len(marker))]
            if fillers := self._fillers(position, rest, hole.context):
                return [*tombstones, *fillers]
            if padded_out := self._padded_out(hole, style, tombstones, rest):
                return padded_out
        raise RepairImpossible(f"the tombstones of {hole.gaps} do not fit the {size} damaged bytes at {hole.position}")

    def _padded_out(self, hole: _Damaged, style: _Style, tombstones: list[bytes], rest: int) -> list[bytes] | None:
        """The tombstones with the last one made longer by `rest` bytes, if that can be done."""
        if not tombstones:
            return None
        lost = hole.gaps[-1]
        count = (lost.end - lost.first - 1) % BATCH_RECORDS_MAX + 1
        last = lost._replace(first=lost.end - count)
        position = hole.end - len(tombstones[-1]) - rest
        for pad_bytes in range(1, _PAD_BYTES_MAX):
            [buffer] = self._tombstones(last, position, hole.context, style, pad_bytes)
            if len(buffer) == len(tombstones[-1]) + rest:
                return [*tombstones[:-1], buffer]
        return None

    def _tombstones(
        self, lost: LostRange, position: int, context: _Context, style: _Style, pad_bytes: int = 0
    ) -> list[bytes]:
        """Entries with a tombstone for each lost offset."""
        entries = []
        for first in range(lost.first, lost.end, BATCH_RECORDS_MAX):
            count = min(BATCH_RECORDS_MAX, lost.end - first)
            batch = _tombstone_batch(count, context.store_time_ms, style, pad_bytes)
            entries.append(_entry(lost.queue, lost.topic, batch, count, first, position, context))
            position += len(entries[-1])
        return entries

    def _fillers(self, position: int, size: int, context: _Context) -> list[bytes] | None:
        """Filler entries of exactly `size` bytes in all; None when that is too little for one."""
        fillers = []
        while size:
            wanted = size if size <= _FILLER_BYTES_MAX else min(_FILLER_BYTES_MAX, size - _FILLER_BYTES_MAX // 2)
            filler = self._filler(position, wanted & -8, context)
            if filler is None:
                return None
            fillers.append(filler)
            self._filler_offset += 1
            position += len(filler)
            size -= len(filler)
        return fillers

    def _filler(self, position: int, size: int, context: _Context) -> bytes | None:
        """One filler entry of exactly `size` bytes; lengths in a batch are varints, so it is tried out."""
        overhead = HEADER_BYTES + record_batch.HEADER_BYTES + 7
        for value_bytes in range(max(0, size - overhead - 16), max(0, size - overhead) + 1):
            batch = encode([Record(None, bytes(value_bytes), context.store_time_ms)])
            if padded(HEADER_BYTES + len(batch)) == size:
                return _entry(self._filler_queue, "", batch, 1, self._filler_offset, position, context)
        return None

    def _append_lost_ends(self) -> None:
        """Tombstones for what the index knew behind the last intact record of each queue."""
        context = self._context
        for key, max_offset in sorted(self._max_offsets.items()):
            queue = self._queues.get(key)
            if queue is None and self._log_begin:
                continue  # all its records have expired; the index keeps its end
            first = 0 if queue is None else queue.next_offset
            if first >= max_offset:
                continue
            known = [topic.name for topic in self._topics.all() if topic.topic_id == key.topic_id]
            name = known[0] if known else "" if queue is None else queue.topic
            lost = LostRange(name, key, first, max_offset)
            if known:  # not of a deleted topic
                self._report.lost.append(lost)
            while first < max_offset:
                part = lost._replace(first=first, end=min(max_offset, first + self._records_per_file()))
                self._append(part, context)
                first = part.end

    def _records_per_file(self) -> int:
        return max(1, min(BATCH_RECORDS_MAX, self._file_bytes // 4 // 32))

    def _append(self, lost: LostRange, context: _Context) -> None:
        """Tombstones at the end of the log, in the next file when this one is full."""
        end = self._log_end
        [entry] = self._tombstones(lost, end, context, _Style.HEADER_ON_EACH)
        room = self._file_bytes - end % self._file_bytes
        if len(entry) + BLANK_BYTES > room:
            marker = encode_blank(end, room, context.durable_position)
            self._log_end = end + room
            self._put(end, marker + bytes(room - len(marker)))
            [entry] = self._tombstones(lost, self._log_end, context, _Style.HEADER_ON_EACH)
        self._put(self._log_end, entry)
        self._log_end += len(entry)

    def _save_topics(self) -> None:
        meta = self._queues.get(META_QUEUE)
        next_offset = max(meta.next_offset if meta else 0, self._max_offsets.get(META_QUEUE, 0), self._meta_offset)
        store_time_ms = max(self._store_time_ms, self._context.store_time_ms)
        marks = {"log_start": self._log_begin, "store_time_ms": store_time_ms}
        content = orjson.dumps({**marks, **self._topics.snapshot()})
        SnapshotFiles(self._out, "meta", self._files).save(Snapshot(next_offset, content))

    def _save_producers(self) -> None:
        """The sequences stay known, of lost batches too: they had been stored, and what came behind them still is."""
        if not self._producers:
            return
        lost = {position for position in self._producer_positions if position >= self._log_begin}
        table = {
            key: tuple(one._replace(position=LOST_POSITION) if one.position in lost else one for one in sent)
            for key, sent in self._producers.items()
        }
        SnapshotFiles(self._out, PRODUCERS_SNAPSHOT, self._files).save(Snapshot(1, encode_table(table)))

    def _copy_snapshots(self) -> None:
        """Whole snapshots that are not of the store's making."""
        for path in sorted(self._root.glob("*.[01]")):
            if path.stem not in _OWN_SNAPSHOTS and decode_snapshot(path.read_bytes()) is not None:
                shutil.copy(path, self._out / path.name)

    def _tell(self, size: int) -> None:
        self._done_bytes += size
        if self._progress is not None:
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)


def _tombstone_batch(count: int, timestamp_ms: int, style: _Style, pad_bytes: int) -> bytearray:
    """A batch of records without key and value; `pad_bytes` makes the first one longer."""
    header = [(LOST_HEADER, b"")]
    padded_header = [(LOST_HEADER, bytes(pad_bytes))]
    if style is _Style.HEADER_ON_EACH:
        records = [Record(None, None, timestamp_ms, header)] * count
        records[0] = Record(None, None, timestamp_ms, padded_header)
    else:
        records = [Record(None, None, timestamp_ms)] * count
        if style is _Style.HEADER_ON_FIRST:
            records[0] = Record(None, None, timestamp_ms, padded_header)
        elif pad_bytes:
            records[0] = Record(bytes(pad_bytes), None, timestamp_ms)
    batch = encode(records)
    return record_batch.zstd_packed(batch, level=_ZSTD_LEVEL) if style is _Style.COMPRESSED else batch


def _entry(
    queue: QueueKey, topic: str, batch: Buffer, count: int, base_offset: int, position: int, context: _Context
) -> bytes:
    append = Append(queue=queue, batch=batch, record_count=count)
    buffers = encode_entry(
        append,
        with_base_offset(batch, base_offset),
        topic=topic.encode(),
        position=position,
        durable_position=context.durable_position,
        base_offset=base_offset,
        store_time_ms=context.store_time_ms,
    )
    return b"".join(buffers)

"""Check a data directory that no server has open: every byte of the log, and everything derived from it.

    log        every entry and blank marker, CRC and position; padding, unused space; nothing missing between files
    batches    each RecordBatch: lengths, its own CRC, every record; base offset and count as the entry says
    order      offsets dense in each queue, store times and durable positions never decreasing
    index      every unit its snapshot counts, against the entries
    repeats    the ids in `dedup/` and the sequences in `producers.N`, against the entries
    state      format, snapshots of the index and of the topics, metadata records

Nothing is written, and memory is bounded by the number of queues. What is found has one of two severities:

    damage     records are lost or cannot be read, or a file contradicts the log: see `mq repair`
    leftover   what a crash may leave, or a derived file whose loss the next start puts right by itself

Damage behind the checkpoint is judged as recovery judges it (store/offline/directory.py, `judge`). One limit follows:
rot in the last group of a store that was *killed* looks like a torn tail. After a clean stop the checkpoint is at the
end, and nothing can hide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import orjson

from store.data_format import VERSION as DATA_VERSION
from store.dedup.idempotency import PRODUCERS_SNAPSHOT
from store.errors import FormatTooNew, IndexDamaged, StoreError
from store.index.counted import is_unfinished
from store.index.opening import REBUILD_SNAPSHOT
from store.limits import MiB
from store.log.entry import Blank
from store.offline.directory import Found, Hole, LogFile, Stain, Verdict, judge, locked, log_files
from store.offline.idempotency_check import IdempotencyCheck
from store.offline.index_check import open_index_check
from store.offline.index_findings import IndexCheck, NoIndexCheck
from store.record_batch import check, decode
from store.snapshot import VERSION as SNAPSHOT_VERSION
from store.snapshot import Snapshot, decode_snapshot
from store.topics import META_QUEUE, TopicTable, decode_events
from store.types import Bounds, Entry, QueueKey

FINDINGS_MAX = 1000
_PROGRESS_BYTES = 16 * MiB
_FORMAT_PREFIX = b"mq data format "

Progress = Callable[[int, int], None]
"""Told how many bytes of the log have been checked, and how many there are."""


class Severity(Enum):
    """How bad a finding is; see the module header."""

    DAMAGE = "damage"
    LEFTOVER = "leftover"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. `position` is a log position for files of the log, else a byte of the
    file. `offsets` is the half-open range of one queue that cannot be read any more, where that is known."""

    severity: Severity
    path: str
    position: int
    reason: str
    topic: str | None = None
    queue: int | None = None
    offsets: tuple[int, int] | None = None

    def __str__(self) -> str:
        text = f"{self.severity.value}: {self.path}, position {self.position}: {self.reason}"
        if self.offsets is not None:
            text += f" (topic {self.topic}, partition {self.queue}, {offsets_text(*self.offsets)})"
        return text


@dataclass(slots=True)
class VerifyReport:
    """What was checked, and what was found. More than FINDINGS_MAX findings are counted only."""

    log_begin: int = 0
    log_end: int = 0  # behind the last entry that a start would keep
    log_bytes: int = 0
    entry_count: int = 0
    record_count: int = 0
    queue_count: int = 0
    checkpoint: int = 0
    index_checked: bool = True
    offsets: dict[QueueKey, Bounds] = field(default_factory=dict)  # that the log has, of each queue
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0

    @property
    def is_clean(self) -> bool:
        """True when nothing is damaged; leftovers of a crash are no damage."""
        return self.damage_count == 0

    damage_count: int = 0

    def add(self, finding: Finding) -> None:
        """Keep a finding."""
        self.finding_count += 1
        self.damage_count += finding.severity is Severity.DAMAGE
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


@dataclass(slots=True)
class _Queue:
    """What the log has shown of one queue so far."""

    topic: str
    first_offset: int
    next_offset: int


def verify(root: Path, *, progress: Progress | None = None) -> VerifyReport:
    """Check a whole data directory. Raises NotAStore, StoreLocked, FormatTooNew: nothing was checked then."""
    with locked(root):
        return _Verifier(root, progress).run()


def check_snapshots(root: Path, name: str, add: Callable[[Finding], None]) -> Snapshot | None:
    """The newest whole snapshot `name.0` or `name.1` below a directory, as a start would believe it; what is not whole
    is added to the findings. Raises FormatTooNew."""
    paths = [path for path in (root / f"{name}.0", root / f"{name}.1") if path.exists()]
    best: tuple[int, Snapshot] | None = None
    broken = []
    for path in paths:
        decoded = decode_snapshot(path.read_bytes())
        if decoded is None:
            broken.append(path)
            continue
        version, generation, snapshot = decoded
        if version != SNAPSHOT_VERSION:
            raise FormatTooNew(f"{path} has version {version}; this program knows {SNAPSHOT_VERSION}: use a newer mq")
        if best is None or generation > best[0]:
            best = generation, snapshot
    for path in broken:
        if len(broken) == 2:  # a crash tears one at most
            add(Finding(Severity.DAMAGE, str(path), 0, "a snapshot fails its check, and the other one too"))
        else:
            add(Finding(Severity.LEFTOVER, str(path), 0, "a snapshot fails its check; the other one counts"))
    return None if best is None else best[1]


def offsets_text(first: int, end: int) -> str:
    """A half-open range of offsets for people."""
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"


class _Verifier:
    """One run over one directory, which no other process changes."""

    def __init__(self, root: Path, progress: Progress | None) -> None:
        self._root = root
        self._progress = progress
        self._report = VerifyReport()
        self._queues: dict[QueueKey, _Queue] = {}
        self._topics = TopicTable()
        self._log_start = 0  # retention has given up everything before it
        self._meta_offset = 0  # records of `__meta` before it are in the topic table
        self._index: IndexCheck = NoIndexCheck()
        self._marks: Mapping[str, object] = {}  # how far repeated sends were saved
        self._idempotency: IdempotencyCheck
        self._last_hole: tuple[LogFile, Hole] | None = None
        self._gaps: set[tuple[QueueKey, tuple[int, int]]] = set()  # offsets already reported as missing
        self._last_store_time_ms = 0
        self._last_durable = 0
        self._told_bytes = 0

    def run(self) -> VerifyReport:
        report = self._report
        self._check_format()
        index = check_snapshots(self._root, "index", report.add)
        if index is not None and is_unfinished(index.content):
            self._leftover(self._root / "index.0", 0, "the index is being built again: the next start does that")
        meta = check_snapshots(self._root, "meta", report.add)
        producers = check_snapshots(self._root, PRODUCERS_SNAPSHOT, report.add)
        if check_snapshots(self._root, REBUILD_SNAPSHOT, report.add) is not None:
            reason = "a rebuild of the index was not finished: run mq index rebuild again"
            self._leftover(self._root / f"{REBUILD_SNAPSHOT}.0", 0, reason)
        if meta is not None:
            self._restore(meta)
        files, strangers = log_files(self._root)
        for path in strangers:
            self._damage(path, 0, "not a file of the commit log")
        self._check_beginning(files)
        report.log_bytes = sum(file.size for file in files)
        report.log_begin = report.log_end = files[0].start if files else 0
        try:
            self._index = open_index_check(self._root, index, log_begin=report.log_begin, log_start=self._log_start)
        except IndexDamaged as error:
            self._damage(self._root, 0, f"the index cannot be opened: {error}; see mq index rebuild")
        report.checkpoint = self._index.checkpoint
        report.index_checked = not isinstance(self._index, NoIndexCheck)
        self._idempotency = IdempotencyCheck(self._root, self._marks, producers, log_begin=report.log_begin)
        try:
            self._check_log(files)
            if report.checkpoint > report.log_end and files:
                reason = f"the log ends at {report.log_end}, before the checkpoint: a log file is missing or cut"
                self._damage(self._root / "index.0", 0, reason)
            self._check_topics(meta)
            self._check_index()
            self._check_idempotency()
        finally:
            self._index.close()
        report.queue_count = len(self._queues)
        report.offsets = {key: Bounds(queue.first_offset, queue.next_offset) for key, queue in self._queues.items()}
        if self._progress is not None:
            self._progress(report.log_bytes, report.log_bytes)
        return report

    # ---- small files ---------------------------------------------------------------------------------------------

    def _check_format(self) -> None:
        path = self._root / "format"
        content = path.read_bytes() if path.exists() else b""
        if not content.strip(b"\0"):
            self._leftover(path, 0, "missing or empty: the next start writes it")
            return
        version = content.removeprefix(_FORMAT_PREFIX).strip()
        if content.startswith(_FORMAT_PREFIX) and version.isdigit() and int(version) > DATA_VERSION:
            raise FormatTooNew(f"{path} says format {int(version)}; this program knows {DATA_VERSION}: use a newer mq")
        if content not in [_FORMAT_PREFIX + b"%d\n" % known for known in range(1, DATA_VERSION + 1)]:
            self._damage(path, 0, f"{content[:40]!r} is not a format stamp")

    def _restore(self, snapshot: Snapshot) -> None:
        """The topic table and the beginning of the log from the snapshot of the topics."""
        try:
            fields = orjson.loads(snapshot.content)
            self._topics.restore(fields)
            self._log_start = fields["log_start"]
            self._marks = fields.get("repeats", {})
            self._meta_offset = snapshot.next_offset
        except (ValueError, TypeError, KeyError) as error:
            self._damage(self._root / "meta.0", 0, f"the snapshot of the topics is not understood: {error!r}")

    # ---- the log -------------------------------------------------------------------------------------------------

    def _check_beginning(self, files: Sequence[LogFile]) -> None:
        if files and files[0].start > self._log_start:
            self._damage(files[0].path, self._log_start, f"the log begins at {self._log_start}: a file is missing")

    def _check_log(self, files: Sequence[LogFile]) -> None:
        report = self._report
        for file, piece, verdict in judge(files, report.checkpoint):
            if isinstance(piece, Found):
                self._check_entry(file, *piece)
                report.log_end = piece.entry.position + piece.entry.size
                self._tell(report.log_end - report.log_begin)
            elif isinstance(piece, Blank):
                report.log_end = file.end
            elif isinstance(piece, Stain):
                self._leftover(file.path, piece.position, f"{piece.size} bytes: {piece.reason}")
            elif isinstance(piece, Hole) and verdict is Verdict.ROT:
                self._damage(file.path, piece.position, f"{piece.size} bytes: {piece.reason}")
                self._last_hole = file, piece
            elif isinstance(piece, Hole):
                reason = f"{piece.reason}: the torn tail of a crash, the next start cuts it"
                self._leftover(file.path, piece.position, reason)

    def _check_entry(self, file: LogFile, entry: Entry, durable: int) -> None:
        report = self._report
        report.entry_count += 1
        report.record_count += entry.record_count
        try:
            header = check(entry.batch)
        except StoreError as error:
            self._damage(file.path, entry.position, f"the batch does not decode: {error}")
        else:
            if (header.base_offset, header.record_count) != (entry.base_offset, entry.record_count):
                said = f"{entry.record_count} records at offset {entry.base_offset}"
                reason = f"the batch has {header.record_count} records at offset {header.base_offset}, not {said}"
                self._damage(file.path, entry.position, reason)
        if entry.store_time_ms < self._last_store_time_ms:
            self._damage(file.path, entry.position, "the store time is before that of the entry before")
        self._last_store_time_ms = entry.store_time_ms
        if not self._last_durable <= durable <= entry.position:
            self._damage(file.path, entry.position, f"durable position {durable} is impossible here")
        self._last_durable = durable
        self._check_offset(file, entry)
        if entry.queue == META_QUEUE:
            self._apply_meta(file, entry)
        if entry.identity is not None:
            self._idempotency.expect(entry, entry.identity)
        self._index.expect(entry)

    def _check_offset(self, file: LogFile, entry: Entry) -> None:
        queue = self._queues.get(entry.queue)
        if queue is None:
            queue = self._queues[entry.queue] = _Queue(entry.topic, entry.base_offset, entry.base_offset)
            if self._report.log_begin == 0 and entry.base_offset:
                self._gap(file, entry, 0)
        elif entry.base_offset > queue.next_offset:
            self._gap(file, entry, queue.next_offset)
        elif entry.base_offset < queue.next_offset:
            reason = f"offset {entry.base_offset} comes again; topic {entry.topic}, partition {entry.queue.queue_id}"
            self._damage(file.path, entry.position, reason)
        queue.next_offset = entry.next_offset

    def _gap(self, file: LogFile, entry: Entry, first: int) -> None:
        path, position, reason = file.path, entry.position, "offsets are missing before this entry"
        if self._last_hole is not None:
            path, position = self._last_hole[0].path, self._last_hole[1].position
            reason = "these offsets were in the damaged bytes"
        self._gaps.add((entry.queue, (first, entry.base_offset)))
        self._damage(path, position, reason, entry.queue, entry.topic, (first, entry.base_offset))

    def _apply_meta(self, file: LogFile, entry: Entry) -> None:
        if entry.next_offset <= self._meta_offset:
            return
        try:
            for event in decode_events(record.value for record in decode(entry.batch)):
                self._topics.apply(event)
        except (ValueError, KeyError, StoreError) as error:
            self._damage(file.path, entry.position, f"a metadata record is not understood: {error}")
        self._meta_offset = entry.next_offset

    # ---- what the log says about the rest ------------------------------------------------------------------------

    def _check_topics(self, snapshot: Snapshot | None) -> None:
        meta = self._queues.get(META_QUEUE)
        if snapshot is not None and meta is not None and snapshot.next_offset > meta.next_offset:
            reason = f"knows records of __meta up to {snapshot.next_offset}, the log has them up to {meta.next_offset}"
            self._damage(self._root / "meta.0", 0, reason)

    def _check_index(self) -> None:
        for wrong in self._index.finish():
            if wrong.queue.topic_id not in self._topics:
                continue  # deleted; the next start drops what is left of it
            if (wrong.queue, wrong.offsets) in self._gaps:
                continue  # the log has said so already
            queue = self._queues.get(wrong.queue)
            topic = queue.topic if queue is not None else f"with id {wrong.queue.topic_id}"
            self._damage(Path(wrong.path), wrong.position, wrong.reason, wrong.queue, topic, wrong.offsets)

    def _check_idempotency(self) -> None:
        for wrong in self._idempotency.finish():
            if wrong.queue is not None and wrong.queue.topic_id not in self._topics:
                continue  # the topic was deleted while the record was on its way
            self._damage(wrong.path, wrong.position, wrong.reason)

    def _tell(self, done: int) -> None:
        if self._progress is not None and done - self._told_bytes >= _PROGRESS_BYTES:
            self._told_bytes = done
            self._progress(done, self._report.log_bytes)

    def _damage(
        self,
        path: Path,
        position: int,
        reason: str,
        queue: QueueKey | None = None,
        topic: str | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> None:
        queue_id = None if queue is None else queue.queue_id
        self._report.add(Finding(Severity.DAMAGE, str(path), position, reason, topic, queue_id, offsets))

    def _leftover(self, path: Path, position: int, reason: str) -> None:
        self._report.add(Finding(Severity.LEFTOVER, str(path), position, reason))

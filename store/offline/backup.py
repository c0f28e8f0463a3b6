"""A consistent copy of a data directory, made while a server writes to it or while none does.

The server takes no part: the copy is made from the files alone, so it works as well with a server that hangs or whose
disk has failed. It covers everything that was acknowledged before it began, whole entries only, up to one position of
the log:

    1  open every file of the log, so that retention can unlink them and they stay readable
    2  copy what only snapshots may know: topics, ends of partitions, groups, producers. Each counts what was durable
       when it was saved, so nothing beyond 3
    3  find the end of the log now: behind its last whole entry. An acknowledged entry lies before it, because its
       write was over before this began; an entry that is half written lies behind it
    4  copy the log up to that end

To its server the copy is what a crash leaves, with two differences: no torn tail, and no files that can be made
again from the log. Left out are the units of the index and the timer's files, which the next start builds; the index
snapshot says so (store/index/counted.py, first position -1) and keeps the ends of partitions. `backup.json` is
written last: a directory without it is the rest of a backup that was cut off.

A file of the log before the checkpoint never changes again: it is linked instead of copied where `link_from`, an
earlier copy or the data directory itself, has it with the same size and time of change (as `rsync --link-dest` does).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import orjson

from store.clock import SystemClock
from store.data_format import VERSION as DATA_VERSION
from store.data_format import version_of
from store.dedup.idempotency import PRODUCERS_SNAPSHOT
from store.dedup.journal import Segment, segment_path
from store.errors import Corrupt, FormatTooNew, IndexDamaged, IndexRefused
from store.files import OsFiles
from store.index.counted import NOTHING_KEPT, Row, as_unfinished, encode_counted
from store.index.opening import FILE_SNAPSHOT, ROCKSDB_DIRECTORY, has_index
from store.limits import MiB
from store.log.entry import Blank
from store.offline.directory import Found, Hole, LogFile, NotAStore, Verdict, judge, log_files, sync_path
from store.snapshot import Snapshot, SnapshotFiles, decode_snapshot
from store.types import Bounds

MANIFEST = "backup.json"
TOPICS_SNAPSHOT = "meta"

STATE_ATTEMPTS = 200
STATE_WAIT_S = 0.02
"""How often snapshots are read again that a server was saving meanwhile, and how long apart."""

COPY_BYTES = 16 * MiB
SYNC_BYTES = 64 * MiB
"""What is copied before it is synced: a server on the same disk waits for what is dirty in its syncs."""

_CANNOT_CLONE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)

Progress = Callable[[int, int], None]
"""Told how many bytes of the log have been copied, and how many there are."""


@dataclass(slots=True)
class BackupReport:
    """What a copy holds. `began_ms`: everything acknowledged before it is in the copy."""

    began_ms: int
    log_begin: int = 0
    log_end: int = 0
    copied_bytes: int = 0
    linked_bytes: int = 0
    index: str = "file"
    """The kind of the index that the server had."""


class _Newest(NamedTuple):
    """The file of a pair that counts."""

    generation: int
    path: Path
    content: bytes
    mode: int
    snapshot: Snapshot


class _State(NamedTuple):
    """Everything small, of one moment: what a start would find."""

    snapshots: Mapping[str, _Newest]
    segments: Mapping[Path, bytes]  # of ids, by path below the directory
    partitions: Snapshot | None  # their ends, as an index in files says them
    index_kind: str

    @property
    def checkpoint(self) -> int:
        """A position up to which the log is durable."""
        return 0 if self.partitions is None else self.partitions.next_offset


class _Overtaken(Exception):
    """Retention has taken files of the log between those that are held."""


def backup(root: Path, out: Path, *, link_from: Path | None = None, progress: Progress | None = None) -> BackupReport:
    """Copy the data directory `root` into the directory `out`, which may hold files of others already (`auth/`).

    On return all that is in `out` is durable; its own name is the caller's. Raises NotAStore, FormatTooNew;
    Corrupt when bytes of the log behind the checkpoint, or both files of a snapshot, are damaged; OSError.
    """
    report = BackupReport(SystemClock().now_ms())
    if not (root / "commitlog").is_dir():
        raise NotAStore(f"{root} has no commitlog/: it is not a data directory")
    stamp = _checked_format(root)
    with ExitStack() as handles:
        log = _HeldLog(root, handles)
        state, end = _found(root, log)
        checkpoint = state.checkpoint
        # The first one always: where the log begins is a fact of its own.
        files = [(file, fd) for number, (file, fd) in enumerate(log.files()) if file.start < end or not number]
        _write_state(state, stamp, out)
        report.index = state.index_kind
        report.log_begin, report.log_end = (files[0][0].start, end) if files else (0, 0)
        for file, fd in files:
            size = min(file.size, end - file.start)
            target = out / "commitlog" / file.path.name
            if file.end <= checkpoint and _link(link_from, fd, target):
                report.linked_bytes += size
            else:
                for done in _copy(fd, target, size):
                    _tell(progress, report, report.copied_bytes + report.linked_bytes + done)
                report.copied_bytes += size
            _tell(progress, report, report.copied_bytes + report.linked_bytes)
    (out / MANIFEST).write_bytes(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2) + b"\n")
    for path in sorted(out.rglob("*"), reverse=True):
        sync_path(path)
    sync_path(out)
    return report


def _found(root: Path, log: _HeldLog) -> tuple[_State, int]:
    """Everything small, and a later end of the log."""
    for _ in range(STATE_ATTEMPTS):
        log.hold()
        state = _read_state(root)
        with suppress(_Overtaken):
            return state, log.end(state.checkpoint)
        log.release()
    raise Corrupt(str(root / "commitlog"), 0, "log files expire faster than they can be opened")


def _tell(progress: Progress | None, report: BackupReport, done: int) -> None:
    if progress is not None:
        progress(done, report.log_end - report.log_begin)


class _HeldLog:
    """The files of the log, open: what retention unlinks meanwhile stays readable."""

    def __init__(self, root: Path, handles: ExitStack) -> None:
        self._root = root
        self._handles = handles
        self._held: dict[Path, int] = {}  # handles, in the order of the log

    def hold(self) -> None:
        """Open what is there and not open yet."""
        while True:
            try:
                for file in log_files(self._root)[0]:
                    if file.path not in self._held:
                        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
                        self._handles.callback(os.close, fd)
                        self._held[file.path] = fd
            except FileNotFoundError:  # retention was quicker: without it, what lies before it is of no use either
                self._held.clear()
            else:
                return

    def release(self) -> None:
        """Forget all."""
        self._held.clear()

    def files(self) -> list[tuple[LogFile, int]]:
        """What is held, with the sizes of now."""
        return [(LogFile(path, int(path.name), os.fstat(fd).st_size), fd) for path, fd in self._held.items()]

    def end(self, checkpoint: int) -> int:
        """The position behind the last whole entry. Raises Corrupt when what had been durable is damaged,
        _Overtaken.

        A server may be writing: bytes that are no entry may be one a moment later, with valid ones behind it that say
        it had been durable before *they* were written. So what looks damaged is read again before it is called so.
        """
        suspect = -1
        while True:
            self.hold()
            held = self.files()
            if any(before.end != file.start for (before, _), (file, _) in pairwise(held)):
                raise _Overtaken
            first = max((number for number, (file, _) in enumerate(held) if file.start <= checkpoint), default=0)
            end = held[first][0].start if held else 0
            # By handle: retention may have unlinked the path.
            opened = [file._replace(path=Path(f"/proc/self/fd/{fd}")) for file, fd in held[first:]]
            for file, piece, verdict in judge(opened, checkpoint):
                if isinstance(piece, Hole) and verdict is Verdict.ROT:
                    if piece.position == suspect:
                        raise self._corrupt(piece.position, "these bytes had been durable and are no entry")
                    suspect = piece.position
                    break
                if isinstance(piece, Found):
                    end = piece.entry.position + piece.entry.size
                elif isinstance(piece, Blank):
                    end = file.end
            else:
                if end < checkpoint:
                    raise self._corrupt(end, f"the log ends here, but was durable up to {checkpoint}")
                return end

    def _corrupt(self, position: int, reason: str) -> Corrupt:
        paths = [path for path in self._held if int(path.name) <= position]
        path = paths[-1] if paths else self._root / "commitlog"
        return Corrupt(str(path), position, f"{reason}; see mq verify and mq repair")


# ---- what is small ---------------------------------------------------------------------------------------------------


def _checked_format(root: Path) -> bytes:
    path = root / "format"
    content = path.read_bytes() if path.exists() else b""
    version = version_of(content, str(path))
    if version is not None and version > DATA_VERSION:
        raise FormatTooNew(f"{path} says format {version}; this program knows {DATA_VERSION}: use a newer mq")
    return content


def _read_state(root: Path) -> _State:
    """All snapshots, of one moment. Those of the store refer to each other, so they are read again when a checkpoint
    came in between; a server makes one every few seconds. Raises Corrupt."""
    problem: Exception | None = None
    for _ in range(STATE_ATTEMPTS):
        try:
            snapshots = {name: _newest(root, name) for name in _names(root)}
            segments = _segments(root, snapshots.get(TOPICS_SNAPSHOT))
            partitions, kind = _partitions(root, snapshots.pop(FILE_SNAPSHOT, None))
            together = (TOPICS_SNAPSHOT, PRODUCERS_SNAPSHOT)
            was = [snapshots[name].generation for name in together if name in snapshots]
            if was == [_newest(root, name).generation for name in together if name in _names(root)]:
                return _State(snapshots, segments, partitions, kind)
        except (FileNotFoundError, Corrupt, IndexDamaged) as error:
            problem = error
        time.sleep(STATE_WAIT_S)
    raise problem or Corrupt(str(root / f"{TOPICS_SNAPSHOT}.0"), 0, "the snapshots change faster than they can be read")


def _names(root: Path) -> list[str]:
    return sorted({path.stem for path in root.glob("*.[01]")})


def _newest(root: Path, name: str) -> _Newest:
    """The snapshot that counts. Raises Corrupt when there is none whole, FileNotFoundError when it went."""
    found = []
    for path in sorted(root.glob(f"{name}.[01]")):
        content = path.read_bytes()
        if (decoded := decode_snapshot(content)) is not None:
            _, generation, snapshot = decoded
            found.append(_Newest(generation, path, content, path.stat().st_mode & 0o777, snapshot))
    if not found:
        raise Corrupt(str(root / f"{name}.0"), 0, "the snapshot fails its check, and the other one too")
    return max(found, key=lambda one: one.generation)


def _segments(root: Path, topics: _Newest | None) -> dict[Path, bytes]:
    """Of the files of recent ids, the bytes that count."""
    if topics is None:
        return {}
    try:
        marks = orjson.loads(topics.snapshot.content).get("repeats", {})
        segments = [Segment(*segment) for segment in marks.get("segments", ())]
    except (ValueError, TypeError, AttributeError) as error:
        raise Corrupt(str(topics.path), 0, f"the snapshot of the topics is not understood: {error!r}") from error
    found = {}
    for segment in segments:
        path = segment_path(root, segment.start)
        with path.open("rb") as file:
            found[path.relative_to(root)] = file.read(segment.bytes_)
    return found


def _partitions(root: Path, newest: _Newest | None) -> tuple[Snapshot | None, str]:
    """What the index knows of the ends of partitions, as the snapshot of an index in files that is to be built."""
    if not has_index("rocksdb", root, OsFiles()):
        if newest is None:
            return None, "file"
        return newest.snapshot._replace(content=as_unfinished(newest.snapshot.content)), "file"
    try:
        from store.offline.index_check_rocksdb import RocksDbIndexCheck
    except ModuleNotFoundError as error:
        raise IndexRefused(f"{root / ROCKSDB_DIRECTORY} needs the package rocksdict to be read") from error
    database = RocksDbIndexCheck(root, log_begin=0)
    try:
        rows = [Row(key, Bounds(0, end), 0, NOTHING_KEPT) for key, end in database.max_offsets.items()]
        return Snapshot(database.checkpoint, as_unfinished(encode_counted(0, rows))), "rocksdb"
    finally:
        database.close()


def _write_state(state: _State, stamp: bytes, out: Path) -> None:
    (out / "commitlog").mkdir()
    (out / "format").write_bytes(stamp)
    for one in state.snapshots.values():
        target = out / one.path.name
        target.touch(mode=one.mode)
        target.write_bytes(one.content)
    for path, content in state.segments.items():
        (out / path).parent.mkdir(exist_ok=True)
        (out / path).write_bytes(content)
    if state.partitions is not None:
        SnapshotFiles(out, FILE_SNAPSHOT, OsFiles()).save(state.partitions)


# ---- what is large ---------------------------------------------------------------------------------------------------


def _link(link_from: Path | None, fd: int, target: Path) -> bool:
    """Link to the same file of another directory, if that has it; False when it has not, or cannot be linked to."""
    if link_from is None:
        return False
    path = link_from / "commitlog" / target.name
    with suppress(OSError):
        there, here = path.stat(), os.fstat(fd)
        if (there.st_size, there.st_mtime_ns) == (here.st_size, here.st_mtime_ns):
            os.link(path, target)
            return True
    return False


def _copy(fd: int, target: Path, size: int) -> Iterator[int]:
    """Copy the first bytes of a file; yields how many have been."""
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        copied = synced = 0
        can_clone = True
        while copied < size:
            wanted = min(COPY_BYTES, size - copied)
            try:
                if can_clone:  # shares blocks where the file system can (XFS, btrfs)
                    count = os.copy_file_range(fd, out, wanted, copied, copied)
                else:
                    count = os.pwrite(out, os.pread(fd, wanted, copied), copied)
            except OSError as error:
                if not can_clone or error.errno not in _CANNOT_CLONE:
                    raise
                can_clone = False
                continue
            if not count:
                raise OSError(errno.EIO, "the file has become shorter while it was copied", str(target.name))
            copied += count
            if copied - synced >= SYNC_BYTES:
                os.fdatasync(out)
                synced = copied
            yield copied
        here = os.fstat(fd)
        if here.st_size == size:  # a whole file: the next backup knows it by its size and time
            os.utime(out, ns=(here.st_atime_ns, here.st_mtime_ns))
    finally:
        os.close(out)

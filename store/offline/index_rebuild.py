"""Build the index again from the commit log, offline: of the same kind, or of the other one.

    1  collect the max offset of every queue from what index there is, and a position before which the log is durable
    2  when the index is replaced in place: read the log once, so that rot in it is found before the index is given up
    3  save 1 as `index-rebuild`: from now on the new index counts as unfinished, and is refused by the store. Remove
       the one that it replaces, so that no rot of it is left: a database reads through old tables that newer ones hide
    4  read the log, add every entry; then the queues that have no record left, at the max offset they had
    5  flush, remove `index-rebuild`, remove the other kind

A kill before 3 changes nothing. A kill between 3 and 5 leaves the other kind as usable as it was, and running the
rebuild again begins at 1, where `index-rebuild` still knows what the replaced index knew. A kill inside 5 leaves a
finished index.

The checkpoint of the new index is a durable position of the log; what lies behind it is left to the recovery of the
next start, torn tails included.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from store.config import StoreConfig
from store.data_format import check_format
from store.errors import Corrupt, IndexDamaged, IndexRefused, StoreLocked
from store.files import Files, OsFiles
from store.index.base import ConsumeQueues
from store.index.opening import (
    KINDS,
    IndexKind,
    Rebuild,
    clear_rebuild,
    has_index,
    load_rebuild,
    open_kind,
    other_kind,
    read_max_offsets,
    remove_index,
    save_rebuild,
)
from store.limits import MiB
from store.log.commit_log import CommitLog
from store.log.entry import HEADER_BYTES, Damage, durable_position_of
from store.log.recovery import Progress
from store.types import Entry, QueueKey

PENDING_BYTES_MAX = 32 * MiB
_PROGRESS_BYTES = 4 * MiB


class RebuildReport(NamedTuple):
    """What a rebuild did."""

    kind: IndexKind
    entry_count: int
    record_count: int
    queue_count: int
    empty_queue_count: int  # queues without records, whose max offset was taken over
    checkpoint: int
    is_certain: bool
    """False: no old index could be read and the log has lost its beginning to retention. Queues without a record left
    begin at offset 0 again."""


def rebuild_index(
    config: StoreConfig, to: IndexKind, *, files: Files | None = None, progress: Progress | None = None
) -> RebuildReport:
    """Build the index of kind `to` for the data directory of `config`, in place of what index it has.

    `progress` is told the bytes of the log read so far and the bytes to read. On return the new index is durable and
    the only one. Raises StoreLocked when a server has the directory open, Corrupt when the log is damaged before its
    durable end, IndexDamaged when the log has lost records that the old index knew, IndexRefused when the directory
    has no log or the kind is not installed.
    """
    files = files or OsFiles()
    root = config.root
    if "commitlog" not in files.list(root):
        raise IndexRefused(f"{root} is not a data directory: it has no commitlog")
    try:
        lock = files.lock(root)
    except BlockingIOError as error:
        raise StoreLocked(f"{root} is in use by another process; stop the server first") from error
    try:
        check_format(root, files)
        commit_log = CommitLog(
            root / "commitlog",
            files,
            file_bytes=config.commit_log_file_bytes,
            extent_bytes=config.extent_bytes,
            disk_floor_bytes=config.disk_floor_bytes,
        )
        try:
            commit_log.open()
            return _rebuild(commit_log, config, to, files, progress)
        finally:
            commit_log.close()
    finally:
        lock.close()


def _rebuild(
    commit_log: CommitLog, config: StoreConfig, to: IndexKind, files: Files, progress: Progress | None
) -> RebuildReport:
    root, first_position = config.root, commit_log.first_position
    known, is_certain = _known(root, to, files, first_position)
    is_in_place = has_index(to, root, files)
    scan = _Scan(commit_log, known.durable_position, progress, pass_count=1 + is_in_place)
    if is_in_place:
        for _ in scan.entries():
            pass
    save_rebuild(root, files, known)
    if is_in_place:
        remove_index(to, root, files)
    queues = open_kind(to, config, files, first_position=first_position, rebuild=True)
    try:
        entry_count = record_count = 0
        seen: set[QueueKey] = set()
        for entry in scan.entries():
            queues.append(entry)
            seen.add(entry.queue)
            entry_count += 1
            record_count += entry.record_count
            if queues.pending_bytes >= PENDING_BYTES_MAX:
                _flush(queues, scan.durable_at(entry))
        empty = {key: offset for key, offset in known.max_offsets.items() if queues.bounds(key).max_offset < offset}
        for key, max_offset in empty.items():
            if key in seen or not first_position:
                raise IndexDamaged(
                    f"the log has lost records of topic id {key.topic_id}, queue {key.queue_id}: the index knew the "
                    f"offsets below {max_offset}, the log those below {queues.bounds(key).max_offset}"
                )
            queues.append(_expired_entry(key, max_offset, first_position))
        queues.advance_min(first_position)
        _flush(queues, scan.durable_position)
    finally:
        queues.close()
    clear_rebuild(root, files)
    remove_index(other_kind(to), root, files)
    return RebuildReport(
        to, entry_count, record_count, len(seen), len(empty), scan.durable_position, is_certain or not first_position
    )


def _known(root: Path, to: IndexKind, files: Files, first_position: int) -> tuple[Rebuild, bool]:
    """What all indexes in the directory know together (an old one knows less, never anything wrong), and whether one
    of them reaches the beginning of the log."""
    unfinished = load_rebuild(root, files)
    max_offsets = dict(unfinished.max_offsets) if unfinished is not None else {}
    durable_position = unfinished.durable_position if unfinished is not None else 0
    for kind in KINDS:
        found = read_max_offsets(kind, root, files)
        if found is None:
            continue
        durable_position = max(durable_position, found[0])
        for key, max_offset in found[1].items():
            max_offsets[key] = max(max_offset, max_offsets.get(key, 0))
    is_certain = durable_position >= first_position
    return Rebuild(to, max(durable_position, first_position), max_offsets), is_certain


class _Scan:
    """Reads the log from its first byte to its end, once for each pass."""

    def __init__(
        self, commit_log: CommitLog, durable_position: int, progress: Progress | None, *, pass_count: int
    ) -> None:
        self.durable_position = durable_position
        self._log = commit_log
        self._progress = progress
        self._log_bytes = commit_log.prepared_position - commit_log.first_position
        self._total_bytes = self._log_bytes * pass_count
        self._done_bytes = 0  # of earlier passes

    def entries(self) -> Iterator[Entry]:
        """All entries up to the first bytes that are none. At the end `durable_position` is as far as the log is
        known to be durable. Raises Corrupt when those bytes lie before that."""
        end = told = self._log.first_position
        last: Entry | None = None
        reason = "the log ends here"
        for found in self._log.scan(end):
            if isinstance(found, Damage):
                reason = found.reason
                break
            end = found.position + found.size
            if end - told >= _PROGRESS_BYTES:
                told = end
                self._tell(end - self._log.first_position)
            if isinstance(found, Entry):
                last = found
                yield found
        if last is not None:
            self.durable_position = self.durable_at(last)
        if end < self.durable_position:
            known = f"{reason}, but the log was durable up to {self.durable_position}"
            raise Corrupt(self._log.path_of(end), end, known)
        self._tell(self._log_bytes)
        self._done_bytes += self._log_bytes

    def durable_at(self, entry: Entry) -> int:
        """How far the log is durable, as an entry knows that was written later."""
        header = memoryview(self._log.read_bytes(entry.position, HEADER_BYTES))
        return max(self.durable_position, durable_position_of(header, 0))

    def _tell(self, bytes_of_pass: int) -> None:
        if self._progress is not None:
            self._progress(self._done_bytes + bytes_of_pass, self._total_bytes)


def _expired_entry(queue: QueueKey, max_offset: int, first_position: int) -> Entry:
    """Stands for the last entry of a queue whose records have all expired: it lies before the log."""
    return Entry(first_position - 1, 1, queue, "", max_offset - 1, 1, 0, False, memoryview(b""))


def _flush(queues: ConsumeQueues, checkpoint: int) -> None:
    flush = queues.flush(checkpoint)
    flush.run()
    flush.finish()

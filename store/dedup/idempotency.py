"""Repeated sends in the store: what is known, what is in flight, and how both survive a stop.

    append with an identity ──> in flight? wait for it ──> known? AlreadyStored ──> room? ──> Writer
                                                                                       │
    published or replayed entry ──> DedupIndex, ProducerTable, MovedIds  in flight until it is answered
    checkpoint ──> journal, producers.0/1 ──> marks in the snapshot of the topics

An id is stored in the extension of the entry it belongs to, so both become durable together. Between the check and the
append lies no turn of the event loop, and what was appended counts as in flight until its outcome is known, whether or
not its caller still waits: of any number of equal sends one is stored.

The marks say up to which position of the log the saved state goes, and which bytes of the journal are part of it. What
is behind that is replayed from the log, by the same `apply` that live entries go through. When a file is not what the
marks say, its ids are read from the log again.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, zip_longest
from operator import attrgetter
from pathlib import Path
from struct import error as StructError

from store.dedup.ids import Row, row_of
from store.dedup.journal import DedupJournal, JournalDamaged, Segment
from store.dedup.known import KnownSends
from store.dedup.moved import Leaving, decode_part, encode_part, leaving_row, leaving_rows
from store.dedup.producers import Sent, Table, decode_table, encode_table
from store.errors import Corrupt, MalformedBatch
from store.files import Files
from store.log.commit_log import CommitLog
from store.log.entry import Blank, Damage
from store.log.recovery import PROGRESS_BYTES, Progress
from store.record_batch import decode
from store.snapshot import Snapshot, SnapshotFiles
from store.topics import MOVED_IDS_QUEUE
from store.types import Entry

log = logging.getLogger(__name__)

SEGMENTS_PER_WINDOW = 4
PRODUCERS_SNAPSHOT = "producers"


def _nothing(_: Entry) -> None:
    """No other caller is to see what is read again."""


class Idempotency(KnownSends):
    """The identities of one store. All methods but `load`, `catch_up` and `Saving.run` belong to the event loop."""

    def __init__(
        self, root: Path, files: Files, *, window_ms: int, ids_max: int, producer_expiry_ms: int, producers_max: int
    ) -> None:
        super().__init__(
            window_ms=window_ms, ids_max=ids_max, producer_expiry_ms=producer_expiry_ms, producers_max=producers_max
        )
        self._journal = DedupJournal(root, files, segment_ms=max(1, window_ms // SEGMENTS_PER_WINDOW))
        self._snapshots = SnapshotFiles(root, PRODUCERS_SNAPSHOT, files)
        self._ids_until = 0  # entries before it are in the index
        self._saved_until = 0  # ... and in the journal
        self._producers_until = 0
        self.is_damaged = False  # a part of what was saved could not be read, and was not saved again yet
        self._unsaved: list[Row] = []  # not in the journal yet
        self._producers_saves = 0
        self._producers_changed = False

    # ---- opening -------------------------------------------------------------------------------------------------

    def load(self, marks: Mapping[str, object]) -> None:
        """The saved state. `marks` as `Saving.marks` gave them, empty for a new store."""
        until = marks.get("until", 0)
        assert isinstance(until, int)
        segments = marks.get("segments", ())
        assert isinstance(segments, Sequence)
        self._ids_until = self._producers_until = self._saved_until = until
        try:
            for rows in self._journal.load([Segment(*segment) for segment in segments]):
                self._index.restore(rows)
        except JournalDamaged as damage:
            log.warning("reading the ids of the window from the log again reason=%s", damage)
            self._index = self._new_index()
            self._journal.segments = ()
            self._ids_until = self._saved_until = 0
            self.is_damaged = True
        saves = marks.get("producers", 0)
        assert isinstance(saves, int)
        snapshot = self._snapshots.load()
        if saves and (snapshot is None or snapshot.next_offset < saves):
            log.warning("reading the producers' sequences from the log again reason=producers.0 and .1 are missing")
            self._producers_until = 0
            self.is_damaged = self._producers_changed = True
        elif snapshot is not None:
            self._producers.restore(decode_table(snapshot.content))
            self._producers_saves = snapshot.next_offset
        if self._snapshots.is_torn:
            self.is_damaged = self._producers_changed = True

    def catch_up(
        self,
        commit_log: CommitLog,
        end: int,
        now_ms: int,
        progress: Progress | None,
        *,
        also: Callable[[Entry], None] = _nothing,
    ) -> int:
        """Apply what lies between the saved state and `end`, from where on entries are replayed; the bytes that were
        read for it. None, usually: only when files were lost or the index was built again offline. `also` is called
        with what is read: all of it, when no state was saved. Raises Corrupt."""
        begin = end
        if self._ids_until < end:
            begin = max(self._ids_until, self._window_start(commit_log, end, now_ms))
        begin = told = max(min(begin, self._producers_until), commit_log.first_position)
        for found in commit_log.scan(begin, end=end) if begin < end else ():
            if isinstance(found, Damage):
                raise Corrupt(commit_log.path_of(found.position), found.position, found.reason)
            if not isinstance(found, Blank):
                self.apply(found, is_durable=True)
                also(found)
            if progress is not None and found.position - told >= PROGRESS_BYTES:
                told = found.position
                progress(told - begin, commit_log.prepared_position - begin)
        return max(0, end - begin)

    def _window_start(self, commit_log: CommitLog, end: int, now_ms: int) -> int:
        """A position of the log before which nothing is in the window: the start of a file."""
        begin = commit_log.first_position
        for start, following in pairwise(commit_log.starts()):
            if following >= end or commit_log.read_entry(following).store_time_ms >= now_ms - self._window_ms:
                break
            begin = start
        return begin

    def apply(self, entry: Entry, *, is_durable: bool) -> None:
        """Take in an entry that was stored, in the order of the log; those that are known change nothing. `is_durable`:
        no power cut takes it."""
        identity = entry.identity
        if entry.queue == MOVED_IDS_QUEUE:
            self._apply_moved(entry, is_durable=is_durable)
        elif identity is not None:
            if (identity.message_ids or identity.request) and entry.position >= self._ids_until:
                row = row_of(entry, identity)
                self._index.add(row)
                self._unsaved.append(row)
                self._ids_until = entry.position + 1
            if identity.producer is not None and entry.position >= self._producers_until:
                producer_id, sequence = identity.producer
                sent = Sent(sequence, entry.base_offset, entry.position, entry.store_time_ms)
                self._producers.add(entry.queue, producer_id, sent, is_durable=is_durable)
                self._producers_until = entry.position + 1
                self._producers_changed = True

    def apply_moved_ids(self, entry: Entry) -> None:
        """Take in, when opening, the ids of an entry of `__moved_ids` that was stored before what is replayed."""
        for record in decode(entry.batch):
            self._moved.add(entry.position, decode_part(record.value or b""))

    def _apply_moved(self, entry: Entry, *, is_durable: bool) -> None:
        for record in decode(entry.batch):
            part = decode_part(record.value or b"")
            self._moved.add(entry.position, part)
            if part.producers and entry.position >= self._producers_until:
                for (producer_id, queue), batches in part.producers.items():
                    for sent in batches:
                        own = sent._replace(position=entry.position)
                        self._producers.add(queue, producer_id, own, is_durable=is_durable)
                self._producers_until = entry.position + 1
                self._producers_changed = True

    # ---- moving --------------------------------------------------------------------------------------------------

    def new_part(self, content: bytes, now_ms: int) -> bytes:
        """What of a part that was received is to be written, empty for nothing. Raises TooManyIds when its ids cannot
        be remembered, MalformedBatch when it is no part."""
        try:
            part = decode_part(content)
        except (JournalDamaged, StructError) as error:
            raise MalformedBatch(f"the ids of a partition that moves are not understood: {error}") from error
        self._moved.prune(now_ms)
        rows = self._moved.only_new(part)
        self._index.check_room(sum(row.id_count for row in rows) + len(self._moved), now_ms)
        return encode_part(rows, part.producers) if rows or part.producers else b""

    def is_saved(self, since: int) -> bool:
        """Whether rows of entries from a position on may be in the journal."""
        return since < self._saved_until

    def saved_rows(self, leaving: Leaving, now_ms: int) -> list[Row]:
        """What the journal has of a partition that leaves. For a thread, while nothing is saved. Raises Corrupt."""
        oldest_ms = now_ms - self._window_ms
        segments = self._journal.segments
        wanted = [
            segment
            for segment, following in zip_longest(segments, segments[1:])
            if following is None or following.start > leaving.since
        ]
        rows: list[Row] = []
        try:
            for columns in self._journal.read(wanted):
                rows += leaving_rows(columns, leaving, oldest_ms=oldest_ms)
        except JournalDamaged as damage:
            raise Corrupt(str(self._journal.directory), 0, str(damage)) from damage
        return rows

    def unsaved_rows(self, leaving: Leaving, until: int) -> list[Row]:
        """What is known besides of entries before a position."""
        begin = bisect_left(self._unsaved, leaving.since, key=attrgetter("position"))
        end = bisect_left(self._unsaved, until, key=attrgetter("position"))
        rows = [leaving_row(row, leaving) for row in self._unsaved[begin:end]]
        return [row for row in rows if row is not None]

    def moved_positions(self, leaving: Leaving) -> list[int]:
        """Of the entries of `__moved_ids` that say what is known of the partition from earlier moves, in order."""
        return self._moved.positions(leaving.partition, leaving.since)

    def leaving_producers(self, leaving: Leaving, until: int) -> Table:
        """The numbers of its producers before a position, for the store that it goes to."""
        return self._producers.leaving(
            leaving.queue, into=leaving.into, shift=leaving.shift, since=leaving.producers_since, until=until
        )

    # ---- saving --------------------------------------------------------------------------------------------------

    def saving(self, until: int, now_ms: int) -> Saving:
        """What a checkpoint at position `until` has to write. Every entry before `until` has been applied, and the log
        is durable up to there."""
        self._moved.prune(now_ms)
        self._producers.confirm(until)
        count = bisect_left(self._unsaved, until, key=attrgetter("position"))
        table = self._producers.copy() if self._producers_changed else None
        self._producers_changed = self._producers.has_unsaved
        return Saving(self, until, self._unsaved[:count], table)


class Saving:
    """One save of the identities: `run` in a thread, then `marks` into a durable snapshot, then `finish`."""

    def __init__(self, idempotency: Idempotency, until: int, rows: Sequence[Row], table: Table | None) -> None:
        self._idempotency = idempotency
        self._until = until
        self._rows = rows
        self._table = table
        self._segments = idempotency._journal.segments
        self._saves = idempotency._producers_saves

    def run(self) -> None:
        """Write what is new, durably. OSError passes through: what was saved before still counts."""
        if self._rows:
            self._segments = self._idempotency._journal.append(self._rows, self._idempotency._window_ms)
        if self._table is not None:
            self._saves += 1
            self._idempotency._snapshots.save(Snapshot(self._saves, encode_table(self._table)))

    @property
    def marks(self) -> dict[str, object]:
        """What the next start needs to know, as JSON."""
        segments = [list(segment) for segment in self._segments]
        return {"until": self._until, "segments": segments, "producers": self._saves}

    def finish(self, *, is_saved: bool) -> None:
        """Said once: whether the marks have become durable."""
        idempotency = self._idempotency
        if is_saved:
            del idempotency._unsaved[: len(self._rows)]
            idempotency._journal.segments = self._segments
            idempotency._saved_until = self._until
            idempotency._producers_saves = self._saves
            idempotency.is_damaged = False
        elif self._table is not None:
            idempotency._producers_changed = True

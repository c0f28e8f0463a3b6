"""Compare what is remembered of repeated sends (`dedup/`, `producers.N`) with the log it came from: for `mq verify`.

The log is read once, and each entry with an identity is held against its row (`expect`): rows and entries come in the
same order, so both are walked side by side. What the marks do not count yet, and what has left the log, is not looked
at. Memory is bounded as in the server: one file of the journal, and the table of the producers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from store.dedup.ids import Row, packed_queue, row_of, rows_of
from store.dedup.journal import JournalDamaged, Segment, decode_blocks, segment_path
from store.dedup.producers import Table, decode_table
from store.snapshot import Snapshot
from store.topics import MOVED_IDS_QUEUE
from store.types import NO_ID, Entry, Identity, QueueKey

_HEALS = "nothing is lost: the next start reads the ids from the log again"


class WrongMemory(NamedTuple):
    """Something that is remembered and is not in the log, or the reverse. `queue` where one queue's record is meant."""

    path: Path
    position: int  # of the log; of the file where it cannot be read
    reason: str
    queue: QueueKey | None = None


class _Ids(NamedTuple):
    """What a row says of its entry, in a form that can be compared."""

    position: int
    base_offset: int
    store_time_ms: int
    queue: int
    message_ids: Sequence[tuple[int, bytes]]  # index of the record, id
    request: tuple[bytes, bytes, Sequence[int]] | None
    delays: bytes


class _Batch(NamedTuple):
    """A batch that a producer has numbered."""

    producer_id: bytes
    queue: QueueKey
    sequence: int
    base_offset: int


class IdempotencyCheck:
    """One check. `marks` are those in the snapshot of the topics; `producers` the newest whole snapshot of theirs."""

    def __init__(self, root: Path, marks: Mapping[str, object], producers: Snapshot | None, *, log_begin: int) -> None:
        segments, until, saves = marks.get("segments", ()), marks.get("until", 0), marks.get("producers", 0)
        assert isinstance(segments, Sequence)
        assert isinstance(until, int)
        assert isinstance(saves, int)
        self._root = root
        self._log_begin = log_begin
        self._until = until
        self._wrong: list[WrongMemory] = []
        self._segments = [Segment(*segment) for segment in segments]
        self._path = root
        self._rows = self._read()
        self._row = next(self._rows, None)
        self._first = self._row.position if self._row is not None else until  # entries before it have left the window
        self._batches: dict[int, _Batch] = {}
        self._last_sequences: dict[tuple[bytes, QueueKey], int] = {}
        if saves:
            self._take_producers(saves, producers)

    def expect(self, entry: Entry, identity: Identity) -> None:
        """The log holds this entry; called in the log's order."""
        if entry.queue == MOVED_IDS_QUEUE:
            return  # what it says is in no file but the log and the table of producers
        if (identity.message_ids or identity.request) and self._first <= entry.position < self._until:
            self._expect_row(entry, identity)
        if identity.producer is None:
            return
        producer_id, sequence = identity.producer
        batch = self._batches.pop(entry.position, None)
        if batch is not None and batch != _Batch(producer_id, entry.queue, sequence, entry.base_offset):
            self._wrong_producer(entry.position, "a producer is remembered with another batch than this entry holds")
        last = self._last_sequences.get((producer_id, entry.queue))
        if last is not None and entry.position < self._until and sequence > last:
            reason = f"sequence {sequence} of a producer is stored here, but {last} is remembered as its last one"
            self._wrong_producer(entry.position, reason, entry.queue)

    def finish(self) -> Iterator[WrongMemory]:
        """Everything that is wrong, once all entries were shown to `expect`."""
        while self._row is not None:
            self._stray(self._row)
        for position in self._batches:
            self._wrong_producer(position, "a producer's batch is remembered that the log does not have here")
        yield from self._wrong

    def _expect_row(self, entry: Entry, identity: Identity) -> None:
        while self._row is not None and self._row.position < entry.position:
            self._stray(self._row)
        row = self._row
        if row is None or row.position > entry.position:
            if self._first < self._until:  # not when the journal could not be read
                reason = "the ids of this entry are not in dedup/"
                self._wrong.append(WrongMemory(self._path, entry.position, reason, entry.queue))
            return
        if row != _ids_of(row_of(entry, identity)):
            reason = "dedup/ has other ids or another position for this entry"
            self._wrong.append(WrongMemory(self._path, entry.position, reason, entry.queue))
        self._row = next(self._rows, None)

    def _stray(self, row: _Ids) -> None:
        if row.position >= self._log_begin:
            reason = "dedup/ has ids of an entry that is not in the log"
            self._wrong.append(WrongMemory(self._path, row.position, reason))
        self._row = next(self._rows, None)

    def _read(self) -> Iterator[_Ids]:
        """All rows that count; none from the first bytes on that cannot be read."""
        for segment in self._segments:
            path = self._path = segment_path(self._root, segment.start)
            try:
                content = path.read_bytes()[: segment.bytes_]
                if len(content) < segment.bytes_:
                    raise JournalDamaged(f"{segment.bytes_} bytes count, the file has {len(content)}")
                for columns in decode_blocks(content):
                    yield from map(_ids_of, rows_of(columns, range(len(columns.positions))))
            except FileNotFoundError:
                self._lost(path, "the file is missing")
                return
            except JournalDamaged as damage:
                self._lost(path, str(damage))
                return

    def _lost(self, path: Path, reason: str) -> None:
        self._wrong.append(WrongMemory(path, 0, f"{reason}; {_HEALS}"))
        self._until = 0

    def _take_producers(self, saves: int, producers: Snapshot | None) -> None:
        if producers is None or producers.next_offset < saves:
            reason = "the last save of the producers' sequences is lost; the next start reads what the log has of them"
            self._wrong.append(WrongMemory(self._root / "producers.0", 0, reason))
            return
        table: Table = decode_table(producers.content)
        for (producer_id, queue), sent in table.items():
            self._last_sequences[producer_id, queue] = sent[-1].sequence
            for one in sent:
                if one.position >= self._log_begin and one.base_offset >= 0:  # else it is in another store
                    self._batches[one.position] = _Batch(producer_id, queue, one.sequence, one.base_offset)

    def _wrong_producer(self, position: int, reason: str, queue: QueueKey | None = None) -> None:
        self._wrong.append(WrongMemory(self._root / "producers.0", position, reason, queue))


def _ids_of(row: Row) -> _Ids:
    """What a row says, in a form that can be compared."""
    request = row.request
    return _Ids(
        row.position,
        row.base_offset,
        row.store_time_ms,
        packed_queue(row.queue),
        [(index, id_) for index, id_ in enumerate(row.message_ids) if id_ != NO_ID],
        None if request is None else (request.request_id, request.fingerprint, list(request.request_indexes)),
        row.delays,
    )

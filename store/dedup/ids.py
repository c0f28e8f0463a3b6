"""Which records of the last minutes are known by an id, and where they are: what makes a repeated send harmless. Pure.

Two kinds of ids, both of 16 bytes. A *message id* names one record. A *request id* names a whole request; a record is
known by its index in it, so a request of a thousand records costs one id a partition, and one that was torn by a crash
is completed by its repeat: what is known is answered, what is missing is appended.

An entry that carries ids is one row; rows are numbered in the order of the log. A message id leads to its row and the
record's index in it, packed into one integer; a request id to its row, with an index that no record has.

    rows        64 bytes each, the oldest first
    extras      in the same order, the delays and the indexes in a request that some rows have
    ids         of messages and of requests -> row << 17 | index: store/dedup/id_table.py, some 30 bytes each

Invariants
    D1  an id is known exactly while `now - store time of its entry <= window`; an id in the window is never forgotten
    D2  the same entries, applied in the order of the log, give the same index
    D3  `add` takes every entry; whether there is room is asked before an entry is made (`check_room`)
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from store.dedup.id_table import IdTable
from store.errors import IdentityReused, TooManyIds
from store.limits import BATCH_RECORDS_MAX
from store.topics import TIMER_QUEUE
from store.types import (
    NO_FINGERPRINT,
    NO_ID,
    Entry,
    Identity,
    Original,
    QueueKey,
    RequestPart,
    ScheduleKey,
)

_INDEX_BITS = 17
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_REQUEST = _INDEX_MASK
"""The index of a request id, which is no record's."""
assert BATCH_RECORDS_MAX <= _REQUEST

DELAY = struct.Struct(">qII")
"""What is kept of each record of a `__timer` entry: due ms, topic id, queue id."""

NOT_A_RUN = 0xFFFF_FFFF
"""Instead of the first index of a row's records in their request: the indexes do not follow each other."""

_PRUNES_PER_WINDOW = 64
_ROUNDS_PER_WINDOW = 4
"""In which all chains are swept: so much of a window later than it might an id's memory is free."""


class Row(NamedTuple):
    """What is kept of one entry that carries ids. `delays` (entries of `__timer` only) is a DELAY struct a record."""

    position: int
    base_offset: int
    store_time_ms: int
    queue: QueueKey
    message_ids: Sequence[bytes]
    request: RequestPart | None
    delays: bytes

    @property
    def id_count(self) -> int:
        """Ids that take room: of messages, and of a part of a request."""
        return len(self.message_ids) - self.message_ids.count(NO_ID) + (self.request is not None)


class Part(NamedTuple):
    """The records of one entry that belong to one request."""

    fingerprint: bytes
    row: int
    request_indexes: Sequence[int]


class Columns(NamedTuple):
    """The rows of a block of the journal, numbered from 0, in columns."""

    positions: array[int]
    base_offsets: array[int]
    times_ms: array[int]
    queues: array[int]  # see `packed_queue`
    ids: Sequence[bytes]
    values: array[int]  # of each id; see `packed_index`
    requests: Sequence[tuple[bytes, Part]]
    delays: Sequence[tuple[int, bytes]]  # row, DELAY structs


class _Kept(NamedTuple):
    """A row, as it is held. `ids_until`, `extras_until`: of all rows that ever were, up to this one."""

    position: int
    base_offset: int
    time_ms: int
    queue: int  # see `packed_queue`
    ids_until: int
    extras_until: int  # bytes: DELAY structs, then the indexes in the request of a row that is NOT_A_RUN
    fingerprint: bytes
    first: int  # index in the request of the first record, or NOT_A_RUN
    run_length: int  # records that belong to a request


_KEPT = struct.Struct("qqqqQQ8sII")
_INDEX_BYTES = array("I").itemsize


class DedupIndex:
    """The ids of one store. `ids_max` bounds message ids and parts of requests together."""

    def __init__(self, *, window_ms: int, ids_max: int) -> None:
        self._window_ms = window_ms
        self._ids_max = ids_max
        self._table = IdTable(ids_max)
        self._rows = bytearray()
        self._extras = bytearray()
        self._first_row = 0
        self._ids_until = self._extras_until = 0  # of the last row
        self._ids_gone = self._extras_gone = 0  # the same of the last row that left the window
        self._prune_at_ms = 0

    def __len__(self) -> int:
        """Ids that are remembered: message ids, and parts of requests."""
        return self._ids_until - self._ids_gone

    # ---- asking --------------------------------------------------------------------------------------------------

    def find(self, identity: Identity, now_ms: int) -> dict[int, Original]:
        """Which records of a batch are known, by their index, and where they are.

        Raises IdentityReused when the batch's request is known with another fingerprint.
        """
        found: dict[int, Original] = {}
        if identity.request is not None:
            self._find_indexes(identity.request, now_ms, found)
        for index, packed in self._table.find(identity.message_ids):
            at, place = (packed >> _INDEX_BITS) - self._first_row, packed & _INDEX_MASK
            if place != _REQUEST and self._is_alive(at, now_ms):
                found[index] = self._original(at, place)
        return found

    def _find_indexes(self, request: RequestPart, now_ms: int, found: dict[int, Original]) -> None:
        wanted = request.request_indexes
        for _, packed in self._table.find([request.request_id]):
            at = (packed >> _INDEX_BITS) - self._first_row
            if packed & _INDEX_MASK != _REQUEST or not self._is_alive(at, now_ms):
                continue
            kept = self._kept(at)
            if kept.fingerprint != request.fingerprint and NO_FINGERPRINT not in (
                kept.fingerprint,
                request.fingerprint,
            ):
                raise IdentityReused("this Idempotency-Key was used for a request with another content")
            indexes = self._request_indexes(at)
            if indexes[-1] < wanted[0] or wanted[-1] < indexes[0]:
                continue
            index_of = {request_index: index for index, request_index in enumerate(indexes)}
            for index, request_index in enumerate(wanted):
                if (known := index_of.get(request_index)) is not None:
                    found[index] = self._original(at, known)

    def check_room(self, count: int, now_ms: int) -> None:
        """Raises TooManyIds unless `count` more ids can be remembered now."""
        if len(self) + count <= self._ids_max:
            return
        self.prune(now_ms)
        if len(self) + count > self._ids_max:
            oldest_ms = self._kept(0).time_ms if self._rows else now_ms
            raise TooManyIds(
                f"{len(self)} ids of the last {self._window_ms} ms are remembered, as many as may be",
                max(1, oldest_ms + self._window_ms + 1 - now_ms),
            )

    # ---- keeping -------------------------------------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """Remember the ids of an entry; entries come in the order of the log."""
        if row.store_time_ms >= self._prune_at_ms:
            self.prune(row.store_time_ms)
        packed = packed_index(self._first_row + self._row_count, 0)
        if row.message_ids:
            self._table.put(row.message_ids, range(packed, packed + len(row.message_ids)))
        if (request := row.request) is not None:
            self._table.put([request.request_id], [packed | _REQUEST])
        place = row.position, row.base_offset, row.store_time_ms, packed_queue(row.queue)
        self._keep(place, row.id_count, request, row.delays)

    def restore(self, rows: Columns) -> None:
        """Remember the rows of a block: there may be ten thousand in one turn of the event loop."""
        first = self._first_row + self._row_count
        shift = packed_index(first, 0)
        numbers = [(value + shift, id_) for value, id_ in zip(rows.values, rows.ids, strict=True)]
        numbers += [(packed_index(first + part.row, _REQUEST), id_) for id_, part in rows.requests]
        numbers.sort()  # as `add` does, a row's request behind its messages
        self._table.put([id_ for _, id_ in numbers], [number for number, _ in numbers])
        id_counts = Counter([(number >> _INDEX_BITS) - first for number, _ in numbers])
        parts = {part.row: part for _, part in rows.requests}
        delays = dict(rows.delays)
        places = zip(rows.positions, rows.base_offsets, rows.times_ms, rows.queues, strict=True)
        for row, place in enumerate(places):
            self._keep(place, id_counts[row], parts.get(row), delays.get(row, b""))

    def _keep(
        self, place: tuple[int, int, int, int], id_count: int, part: RequestPart | Part | None, delays: bytes
    ) -> None:
        extras, fingerprint, first, run_length = delays, NO_FINGERPRINT, 0, 0
        if part is not None:
            fingerprint, run_length = part.fingerprint, len(part.request_indexes)
            first = first_of_run(part.request_indexes)
            if first == NOT_A_RUN:
                extras += array("I", part.request_indexes).tobytes()
        self._ids_until += id_count
        self._extras_until += len(extras)
        self._extras += extras
        self._rows += _KEPT.pack(*place, self._ids_until, self._extras_until, fingerprint, first, run_length)

    def prune(self, now_ms: int) -> None:
        """Let go of what is out of the window: of rows at once, of ids in pieces, as a million may leave together and
        everything waits meanwhile. They are known no more from then on."""
        before_ms = now_ms - self._window_ms
        if dead := bisect_left(range(self._row_count), before_ms, key=lambda at: self._kept(at).time_ms):
            gone = self._kept(dead - 1)
            del self._extras[: gone.extras_until - self._extras_gone]
            del self._rows[: dead * _KEPT.size]
            self._first_row += dead
            self._ids_gone, self._extras_gone = gone.ids_until, gone.extras_until
        self._table.sweep(packed_index(self._first_row, 0))
        prunes = max(_PRUNES_PER_WINDOW, _ROUNDS_PER_WINDOW * self._table.sweep_count)
        self._prune_at_ms = now_ms + self._window_ms // prunes + 1

    # ---- rows, counted from the oldest that is held ----------------------------------------------------------------

    @property
    def _row_count(self) -> int:
        return len(self._rows) // _KEPT.size

    def _kept(self, at: int) -> _Kept:
        return _Kept._make(_KEPT.unpack_from(self._rows, at * _KEPT.size))

    def _is_alive(self, at: int, now_ms: int) -> bool:
        return at >= 0 and now_ms - self._kept(at).time_ms <= self._window_ms

    def _extras_of(self, at: int) -> tuple[bytearray, Sequence[int]]:
        """DELAY structs, and the indexes in the request of a row that is NOT_A_RUN."""
        kept, base = self._kept(at), self._extras_gone
        begin = self._kept(at - 1).extras_until if at else base
        extras = self._extras[begin - base : kept.extras_until - base]
        delays_end = len(extras) - (_INDEX_BYTES * kept.run_length if kept.first == NOT_A_RUN else 0)
        return extras[:delays_end], array("I", bytes(extras[delays_end:]))

    def _request_indexes(self, at: int) -> Sequence[int]:
        kept = self._kept(at)
        return self._extras_of(at)[1] if kept.first == NOT_A_RUN else range(kept.first, kept.first + kept.run_length)

    def _original(self, at: int, index: int) -> Original:
        kept = self._kept(at)
        if delays := self._extras_of(at)[0]:
            due_ms, *queue = DELAY.unpack_from(delays, index * DELAY.size)
            schedule = ScheduleKey(due_ms, kept.position, index)
            return Original(QueueKey(*queue), None, kept.position, kept.time_ms, schedule)
        return Original(unpacked_queue(kept.queue), kept.base_offset + index, kept.position, kept.time_ms)


def row_of(entry: Entry, identity: Identity) -> Row:
    """The row of an entry that carries message ids or a request id."""
    is_timer = entry.queue == TIMER_QUEUE
    return Row(
        entry.position,
        entry.base_offset,
        entry.store_time_ms,
        entry.queue,
        identity.message_ids,
        identity.request,
        b"".join([DELAY.pack(delay.due_ms, delay.topic_id, delay.partition) for delay in entry.delays if is_timer]),
    )


def rows_of(columns: Columns, numbers: Collection[int]) -> Iterator[Row]:
    """The rows of these numbers, in order; with no NO_ID behind a row's last id."""
    ids: dict[int, list[bytes]] = {number: [] for number in numbers}
    for value, message_id in zip(columns.values, columns.ids, strict=True):
        if (own := ids.get(value >> _INDEX_BITS)) is not None:
            own += repeat(NO_ID, (value & _INDEX_MASK) - len(own))
            own.append(message_id)
    requests = {
        part.row: RequestPart(request_id, part.fingerprint, part.request_indexes)
        for request_id, part in columns.requests
        if part.row in ids
    }
    delays = dict(columns.delays)
    for number, message_ids in ids.items():
        yield Row(
            columns.positions[number],
            columns.base_offsets[number],
            columns.times_ms[number],
            unpacked_queue(columns.queues[number]),
            message_ids,
            requests.get(number),
            delays.get(number, b""),
        )


def first_of_run(indexes: Sequence[int]) -> int:
    """The first of ascending numbers that follow each other, or NOT_A_RUN."""
    return indexes[0] if indexes[-1] - indexes[0] == len(indexes) - 1 else NOT_A_RUN


def packed_index(row: int, index: int) -> int:
    """A record of a row in one integer: what an id leads to."""
    return row << _INDEX_BITS | index


def packed_queue(queue: QueueKey) -> int:
    """A queue in one integer of 8 bytes."""
    return queue.topic_id << 32 | queue.queue_id


def unpacked_queue(packed: int) -> QueueKey:
    """The reverse of `packed_queue`."""
    return QueueKey(packed >> 32, packed & 0xFFFF_FFFF)

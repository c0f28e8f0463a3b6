"""Which records of the last minutes are known by an id, and where they are: what makes a repeated send harmless. Pure.

Two kinds of ids, both of 16 bytes. A *message id* names one record. A *request id* names a whole request; a record is
known by its index in it, so a request of a thousand records costs one id a partition, and one that was torn by a crash
is completed by its repeat: what is known is answered, what is missing is appended.

An entry that carries ids is one row; rows are numbered in the order of the log. A message id leads to its row and the
record's index in it, packed into one integer.

    rows        position, base offset, store time, queue      four columns of 8 bytes
    ids         message id  ->  row << 17 | index             dicts, each and all in the order of the rows
    requests    request id  ->  fingerprint, row, indexes     a part for each entry, in the order of the last row

Invariants
    D1  an id is known exactly while `now - store time of its entry <= window`; an id in the window is never forgotten
    D2  the same entries, applied in the order of the log, give the same index
    D3  `add` takes every entry; whether there is room is asked before an entry is made (`check_room`)
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, repeat, takewhile
from typing import NamedTuple

from store.errors import IdentityReused, TooManyIds
from store.limits import BATCH_RECORDS_MAX
from store.topics import TIMER_QUEUE
from store.types import NO_FINGERPRINT, NO_ID, Entry, Identity, Original, QueueKey, RequestPart, ScheduleKey

_INDEX_BITS = 17
_INDEX_MASK = (1 << _INDEX_BITS) - 1
assert BATCH_RECORDS_MAX <= _INDEX_MASK

DELAY = struct.Struct(">qII")
"""What is kept of each record of a `__timer` entry: due ms, topic id, queue id."""

IDS_PER_DICT_MAX = 2**19 * 2 // 3
"""A dict that grows is copied, at once, with the interpreter held: 60 ms and twice its memory at a million ids. It is
as large as one of 2**19 slots gets without; further ids begin another."""
assert BATCH_RECORDS_MAX <= IDS_PER_DICT_MAX

_PRUNES_PER_WINDOW = 64
PRUNED_AT_ONCE = 20_000
_GO_ON_MS = 10


class Row(NamedTuple):
    """What is kept of one entry that carries ids. `delays` (entries of `__timer` only) is a DELAY struct a record."""

    position: int
    base_offset: int
    store_time_ms: int
    queue: QueueKey
    message_ids: Sequence[bytes]
    request: RequestPart | None
    delays: bytes


class Part(NamedTuple):
    """The records of one entry that belong to one request."""

    fingerprint: bytes
    row: int
    request_indexes: Sequence[int]


class Columns(NamedTuple):
    """A stretch of rows in the form the index has them, numbered from 0: they are loaded by the hundred thousand."""

    positions: array[int]
    base_offsets: array[int]
    times_ms: array[int]
    queues: array[int]  # see `packed_queue`
    ids: Sequence[bytes]
    values: array[int]  # of each id; see `packed_index`
    requests: Sequence[tuple[bytes, Part]]
    delays: Sequence[tuple[int, bytes]]  # row, DELAY structs


class DedupIndex:
    """The ids of one store. `ids_max` bounds message ids and parts of requests together."""

    def __init__(self, *, window_ms: int, ids_max: int) -> None:
        self._window_ms = window_ms
        self._ids_max = ids_max
        self._first_row = 0
        self._positions = array("q")
        self._base_offsets = array("q")
        self._times_ms = array("q")
        self._queues = array("q")
        self._ids: list[dict[bytes, int]] = [{}]  # an id is in one of them; see IDS_PER_DICT_MAX
        self._requests: dict[bytes, tuple[Part, ...]] = {}
        self._part_count = 0
        self._delays: dict[int, bytes] = {}
        self._prune_at_ms = 0

    def __len__(self) -> int:
        """Ids that take room: message ids, and parts of requests."""
        return sum(map(len, self._ids)) + self._part_count

    # ---- asking --------------------------------------------------------------------------------------------------

    def find(self, identity: Identity, now_ms: int) -> dict[int, Original]:
        """Which records of a batch are known, by their index, and where they are.

        Raises IdentityReused when the batch's request is known with another fingerprint.
        """
        found: dict[int, Original] = {}
        if identity.request is not None:
            self._find_indexes(identity.request, now_ms, found)
        ids = identity.message_ids
        for known in self._ids if ids else ():
            if known.keys().isdisjoint(ids):
                continue
            for index, message_id in enumerate(ids):
                value = known.get(message_id)
                if value is not None and self._is_alive(value >> _INDEX_BITS, now_ms):
                    found[index] = self._original(value >> _INDEX_BITS, value & _INDEX_MASK)
        return found

    def _find_indexes(self, request: RequestPart, now_ms: int, found: dict[int, Original]) -> None:
        wanted = request.request_indexes
        for part in self._requests.get(request.request_id, ()):
            if not self._is_alive(part.row, now_ms):
                continue
            if part.fingerprint != request.fingerprint and NO_FINGERPRINT not in (
                part.fingerprint,
                request.fingerprint,
            ):
                raise IdentityReused("this Idempotency-Key was used for a request with another content")
            if part.request_indexes[-1] < wanted[0] or wanted[-1] < part.request_indexes[0]:
                continue
            index_of = {request_index: index for index, request_index in enumerate(part.request_indexes)}
            for index, request_index in enumerate(wanted):
                if (known := index_of.get(request_index)) is not None:
                    found[index] = self._original(part.row, known)

    def _is_alive(self, row: int, now_ms: int) -> bool:
        at = row - self._first_row
        return at >= 0 and now_ms - self._times_ms[at] <= self._window_ms

    def _original(self, row: int, index: int) -> Original:
        at = row - self._first_row
        position, time_ms = self._positions[at], self._times_ms[at]
        if (delays := self._delays.get(row)) is not None:
            due_ms, *queue = DELAY.unpack_from(delays, index * DELAY.size)
            return Original(QueueKey(*queue), None, position, time_ms, ScheduleKey(due_ms, position, index))
        return Original(unpacked_queue(self._queues[at]), self._base_offsets[at] + index, position, time_ms)

    def check_room(self, count: int, now_ms: int) -> None:
        """Raises TooManyIds unless `count` more ids can be remembered now."""
        if len(self) + count <= self._ids_max:
            return
        while self.prune(now_ms) and len(self) + count > self._ids_max:
            pass
        if len(self) + count > self._ids_max:
            oldest_ms = self._times_ms[0] if self._times_ms else now_ms
            raise TooManyIds(
                f"{len(self)} ids of the last {self._window_ms} ms are remembered, as many as may be",
                max(1, oldest_ms + self._window_ms + 1 - now_ms),
            )

    # ---- keeping -------------------------------------------------------------------------------------------------

    def add(self, row: Row) -> None:
        """Remember the ids of an entry; entries come in the order of the log."""
        if row.store_time_ms >= self._prune_at_ms:
            self.prune(row.store_time_ms)
        number = self._first_row + len(self._positions)
        self._positions.append(row.position)
        self._base_offsets.append(row.base_offset)
        self._times_ms.append(row.store_time_ms)
        self._queues.append(packed_queue(row.queue))
        if row.message_ids:
            first = number << _INDEX_BITS
            self._put_ids(row.message_ids, range(first, first + len(row.message_ids)))
        if (request := row.request) is not None:
            self._put_part(request.request_id, Part(request.fingerprint, number, request.request_indexes))
        if row.delays:
            self._delays[number] = row.delays

    def restore(self, rows: Columns) -> None:
        """Remember many entries at once."""
        first = self._first_row + len(self._positions)
        self._positions += rows.positions
        self._base_offsets += rows.base_offsets
        self._times_ms += rows.times_ms
        self._queues += rows.queues
        shift = packed_index(first, 0)
        for at in range(0, len(rows.ids), IDS_PER_DICT_MAX):
            some = slice(at, at + IDS_PER_DICT_MAX)
            self._put_ids(rows.ids[some], [value + shift for value in rows.values[some]])
        for request_id, part in rows.requests:
            self._put_part(request_id, Part(part.fingerprint, part.row + first, part.request_indexes))
        for number, delays in rows.delays:
            self._delays[number + first] = delays

    def _put_ids(self, ids: Sequence[bytes], values: Sequence[int]) -> None:
        for known in self._ids:
            if not known.keys().isdisjoint(ids):  # they are out of the window; their turn in the order is new
                for message_id in ids:
                    known.pop(message_id, None)
        if len(self._ids[-1]) + len(ids) > IDS_PER_DICT_MAX:
            self._ids.append({})
        newest = self._ids[-1]
        newest.update(zip(ids, values, strict=True))
        newest.pop(NO_ID, None)

    def _put_part(self, request_id: bytes, part: Part) -> None:
        self._requests[request_id] = (*self._requests.pop(request_id, ()), part)
        self._part_count += 1

    def prune(self, now_ms: int) -> bool:
        """Let go of what is out of the window, of PRUNED_AT_ONCE of each kind: a million may leave it together, and
        everything waits meanwhile. Whether there is more."""
        dead_count = bisect_left(self._times_ms, now_ms - self._window_ms)
        first_row = self._first_row + dead_count
        end = first_row << _INDEX_BITS
        id_count = self._prune_ids(end)
        requests = takewhile(lambda item: item[1][-1].row < first_row, self._requests.items())
        dead_requests = list(islice(requests, PRUNED_AT_ONCE))
        for request_id, parts in dead_requests:
            self._part_count -= len(parts)
            del self._requests[request_id]
        delays = list(islice(takewhile(first_row.__gt__, self._delays), PRUNED_AT_ONCE))
        for row in delays:
            del self._delays[row]
        if PRUNED_AT_ONCE in (id_count, len(dead_requests), len(delays)):
            self._prune_at_ms = now_ms + _GO_ON_MS  # not in the same turn of the event loop
            return True
        self._prune_at_ms = now_ms + self._window_ms // _PRUNES_PER_WINDOW + 1
        for column in (self._positions, self._base_offsets, self._times_ms, self._queues):
            del column[:dead_count]
        self._first_row = first_row
        return False

    def _prune_ids(self, end: int) -> int:
        count = 0
        while True:
            oldest = self._ids[0]
            dead = list(islice(takewhile(lambda item: item[1] < end, oldest.items()), PRUNED_AT_ONCE - count))
            for message_id, _ in dead:
                del oldest[message_id]
            count += len(dead)
            if oldest or len(self._ids) == 1:
                return count
            del self._ids[0]


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


def packed_index(row: int, index: int) -> int:
    """A record of a row in one integer: what an id leads to."""
    return row << _INDEX_BITS | index


def packed_queue(queue: QueueKey) -> int:
    """A queue in one integer of 8 bytes."""
    return queue.topic_id << 32 | queue.queue_id


def unpacked_queue(packed: int) -> QueueKey:
    """The reverse of `packed_queue`."""
    return QueueKey(packed >> 32, packed & 0xFFFF_FFFF)

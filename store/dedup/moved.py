"""Ids of records that were stored before their partition moved to this store: C6 holds over a move.

When a partition leaves, its ids of the window and the newest numbers of its producers are read at the old store
(`Store.export_ids`), a part at a time, and written at the new one (`Store.import_ids`), each part as one record of
the system topic `__moved_ids`, big-endian:

    0          4           4 + length
    +----------+-----------+---------------+
    |length of |block      |producers      |
    |block u32 |           |               |
    +----------+-----------+---------------+

    block      rows of the partition as in `dedup/` (store/dedup/journal.py), oldest first; empty when there are none.
               Their queue is topic id and partition, their base offset the partition's, their position that in the
               store which has the entry: of a schedule it is a part of its id
    producers  as in `producers.N` (store/dedup/producers.py), of the queue in which the partition goes on; base offsets
               below 0, see `Sent`

Whatever a part says stays true: records keep their offsets in the partition. So parts of a move that was left do no
harm, and of a part that comes again only what is new is written: else ids would double with each move there and back.

    crash                       what a restart finds
    before `import_ids` answers   the part or not: the move is taken up, and all parts are sent again
    behind it                   the part. Ids are read from the topic, producers are in `producers.N` as all others are

Invariants
    V1  an id that came is known as long as one of the store's own: `now - store time of its entry <= window`
    V2  parts are taken in once, in the order of the log
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from store.dedup.ids import DELAY, Columns, DedupIndex, Row, packed_queue, rows_of, unpacked_queue
from store.dedup.journal import decode_blocks, encode_block
from store.dedup.producers import Sent, Table, decode_table, encode_table
from store.limits import MiB
from store.topics import TIMER_QUEUE, partition_of
from store.types import ID_BYTES, OFFSET_MAX, Append, Original, QueueKey

PART_BYTES_MAX = 1 * MiB
"""About how large a part is. One row more than fits makes it larger: a row is never in two."""

PRODUCERS_PER_PART = 500
"""Some 90 KiB, and some milliseconds at either end."""

_LENGTH = struct.Struct(">I")
_ROW_BYTES = 128
"""What a row takes at most besides its ids, indexes and delays."""


_Key = int | tuple[int, int]
"""Tells the rows of a partition apart: the partition's offset; of delayed records position and time."""


class Part(NamedTuple):
    """What one part says. `rows` None: no ids."""

    rows: Columns | None
    producers: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What is asked of a store that a partition leaves: of its queue there, what lies at positions from `since` on, for
    queue `into` of the store that it goes to. `shift` added makes the queue's offsets the partition's. A store that
    goes on with its own partition knows all ids, and not the numbers of producers for `into`: `since` is OFFSET_MAX."""

    queue: QueueKey
    into: QueueKey
    shift: int
    since: int = 0

    @property
    def partition(self) -> QueueKey:
        """Topic id and number."""
        return partition_of(self.queue)

    @property
    def producers_since(self) -> int:
        """From which position on producers are told."""
        return 0 if self.since == OFFSET_MAX else self.since


def encode_part(rows: Sequence[Row], producers: Table) -> bytes:
    """The bytes of a part."""
    block = encode_block(sorted(rows, key=lambda row: row.store_time_ms)) if rows else b""
    return b"".join([_LENGTH.pack(len(block)), block, encode_table(producers)])


def decode_part(content: bytes) -> Part:
    """What the bytes of a part say. Raises JournalDamaged, struct.error for others."""
    end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
    return Part(next(decode_blocks(content[_LENGTH.size : end]), None), decode_table(content[end:]))


def row_bytes(row: Row) -> int:
    """About what a row takes in a part."""
    index_count = 0 if row.request is None else len(row.request.request_indexes)
    return _ROW_BYTES + (ID_BYTES + 8) * len(row.message_ids) + 4 * index_count + len(row.delays)


def leaving_row(row: Row, leaving: Leaving) -> Row | None:
    """What a row of the store's own says to others; None: it is not of this partition. All of a delayed entry goes
    along, if any record of it is for the partition."""
    partition = leaving.partition
    if row.queue == leaving.queue:
        return row._replace(queue=partition, base_offset=row.base_offset + leaving.shift)
    if row.queue == TIMER_QUEUE and any(tuple(queue) == partition for _, *queue in DELAY.iter_unpack(row.delays)):
        return row._replace(queue=partition)
    return None


def leaving_rows(columns: Columns, leaving: Leaving, *, oldest_ms: int) -> list[Row]:
    """As `leaving_row`, of all rows of a block that are not older than this. Safe in a thread."""
    wanted = (packed_queue(leaving.queue), packed_queue(TIMER_QUEUE))
    numbers = [
        number
        for number, (queue, position, time_ms) in enumerate(
            zip(columns.queues, columns.positions, columns.times_ms, strict=True)
        )
        if queue in wanted and position >= leaving.since and time_ms >= oldest_ms
    ]
    rows = (leaving_row(row, leaving) for row in rows_of(columns, numbers)) if numbers else ()
    return [row for row in rows if row is not None]


def still_known(part: Part, *, oldest_ms: int) -> list[Row]:
    """The rows of a part that are not older than this."""
    if part.rows is None:
        return []
    return list(rows_of(part.rows, [at for at, time_ms in enumerate(part.rows.times_ms) if time_ms >= oldest_ms]))


class _Moved(NamedTuple):
    position: int  # of the entry with the part
    ids: DedupIndex
    keys: Sequence[_Key]


class _Partition(NamedTuple):
    parts: list[_Moved]
    keys: set[_Key]  # of all rows of the parts


class MovedIds:
    """The ids that came with partitions."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._of_partition: dict[QueueKey, _Partition] = {}
        self._until = 0

    def __bool__(self) -> bool:
        return bool(self._of_partition)

    def __len__(self) -> int:
        """Ids, as `DedupIndex` counts them."""
        return sum(len(moved.ids) for partition in self._of_partition.values() for moved in partition.parts)

    def add(self, position: int, part: Part) -> None:
        """Take in the part of the entry at a position (V2)."""
        rows = part.rows
        if position < self._until or rows is None:
            return
        self._until = position + 1
        index = DedupIndex(window_ms=self._window_ms, ids_max=len(rows.ids) + len(rows.requests))
        index.restore(rows)
        partition = self._of_partition.setdefault(unpacked_queue(rows.queues[0]), _Partition([], set()))
        keys = _keys_of(rows)
        partition.parts.append(_Moved(position, index, keys))
        partition.keys.update(keys)

    def only_new(self, part: Part) -> list[Row]:
        """The rows of a part that did not come before."""
        rows = part.rows
        if rows is None:
            return []
        partition = self._of_partition.get(unpacked_queue(rows.queues[0]))
        known = partition.keys if partition is not None else ()
        return list(rows_of(rows, [number for number, key in enumerate(_keys_of(rows)) if key not in known]))

    def find(self, append: Append, now_ms: int) -> dict[int, Original]:
        """As `DedupIndex.find`, for a batch with an identity."""
        found: dict[int, Original] = {}
        assert append.identity is not None
        for partition in _partitions_of(append):
            if (known := self._of_partition.get(partition)) is not None:
                for moved in known.parts:
                    for at, original in moved.ids.find(append.identity, now_ms).items():
                        found[at] = original._replace(is_moved=True)
        return found

    def positions(self, partition: QueueKey, since: int) -> list[int]:
        """Of the entries that brought what is known of a partition, in order."""
        known = self._of_partition.get(partition)
        return [] if known is None else [moved.position for moved in known.parts if moved.position >= since]

    def prune(self, now_ms: int) -> None:
        """Let go of what is out of the window."""
        for key, partition in list(self._of_partition.items()):
            for moved in partition.parts:
                moved.ids.prune(now_ms)
            left = [moved for moved in partition.parts if len(moved.ids)]
            if not left:
                del self._of_partition[key]
            elif len(left) < len(partition.parts):
                self._of_partition[key] = _Partition(left, {row for moved in left for row in moved.keys})


def first_part(found: Iterable[tuple[int, Sequence[Row]]], *, bytes_max: int) -> tuple[list[Row], int | None]:
    """The rows of the next part, and where the part behind it begins; None when it is the last one. `found`: rows with
    the position at which this store has them, in order."""
    rows: list[Row] = []
    size = 0
    for position, own in found:
        size += sum(map(row_bytes, own))
        if rows and size > bytes_max:
            return rows, position
        rows += own
    return rows, None


def first_producers(table: Table, *, before: int | None) -> tuple[Table, int | None]:
    """Those of a table whose newest batch lies before a position (None: all), for one part; where the part behind it
    begins: at that position, when they are all in this one. Those of one position are never in two parts."""
    told = [item for item in table.items() if before is None or _newest_position(item) < before]
    told.sort(key=_newest_position)
    count = PRODUCERS_PER_PART
    while 0 < count < len(told) and _newest_position(told[count]) == _newest_position(told[count - 1]):
        count += 1
    return dict(told[:count]), before if count >= len(told) else _newest_position(told[count])


def _newest_position(item: tuple[object, Sequence[Sent]]) -> int:
    return item[1][-1].position


def _keys_of(rows: Columns) -> Sequence[_Key]:
    keys: list[_Key] = list(rows.base_offsets)
    for number, _ in rows.delays:
        keys[number] = (rows.positions[number], rows.times_ms[number])
    return keys


def _partitions_of(append: Append) -> Collection[QueueKey]:
    if append.queue == TIMER_QUEUE:
        return {QueueKey(delay.topic_id, delay.partition) for delay in append.delays}
    return (partition_of(append.queue),)

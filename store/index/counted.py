"""What an index in files counts: the content of its snapshot, `index.0` and `index.1` (framing: store/snapshot.py).

    0              8               12
    +--------------+---------------+-----------------------+---------------------------+
    |first position|queue count u32|a row of each queue    |cells, i64 each            |
    |i64           |               |                       |                           |
    +--------------+---------------+-----------------------+---------------------------+

    a row    0            4            8          16         24          28
             +------------+------------+----------+----------+-----------+----------+
             |topic id u32|queue id u32|min offset|max offset|entry count|cell count|
             |            |            |i64       |i64       |u32        |u32       |
             +------------+------------+----------+----------+-----------+----------+

    first position   of the log, for which the min offsets hold; -1: the files are being built again, the rows tell
                     what the index knew before
    entry count      the queue's last entries that are kept here, not in its files; where the first of them begins,
                     the files end
    cells            for each queue in turn: base offset, position, size of each such entry; then the tag hashes, one a
                     record, of those whose size is negative (its amount is the size)

In directories of before, that kept no entries here, `first position i64` was followed by rows without the last two
fields. Such a content has a length that 8 divides, and one of today has not.

Big-endian. A few bytes here instead of a write, a page and an inode of a file: that is what makes a checkpoint of ten
thousand queues cheap (docs/decisions/0025-a-checkpoint-keeps-a-few-units.md).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from store.errors import IndexDamaged
from store.index.pending import PendingUnits
from store.types import Bounds, QueueKey

_HEAD = struct.Struct(">qI")
_ROW = struct.Struct(">IIqqII")
_ROW_WITHOUT_KEPT = struct.Struct(">IIqq")
_FIRST_POSITION = struct.Struct(">q")
_UNFINISHED = _FIRST_POSITION.pack(-1)


class Counted(NamedTuple):
    """One queue: `bounds` of all its units; those from `files_end` on, an offset, are in `kept` instead of files."""

    key: QueueKey
    bounds: Bounds
    files_end: int
    kept: PendingUnits


class Row(NamedTuple):
    """One queue to be encoded. `cells`: of the entries kept, see PendingUnits.cells."""

    key: QueueKey
    bounds: Bounds
    entry_count: int
    cells: array[int]


NOTHING_KEPT = array("q")


def encode_counted(first_position: int, rows: Iterable[Row]) -> bytes:
    """The content of a snapshot."""
    heads: list[bytes] = []
    cells = array("q")
    for key, bounds, entry_count, kept in rows:
        heads.append(_ROW.pack(*key, *bounds, entry_count, len(kept)))
        cells += kept
    _swap(cells)
    return b"".join((_HEAD.pack(first_position, len(heads)), *heads, cells.tobytes()))


def first_position_of(content: bytes) -> int:
    """Where the log began when this was saved; -1 while the index is being built again."""
    position: int = _FIRST_POSITION.unpack_from(content)[0]
    return position


def as_unfinished(content: bytes) -> bytes:
    """The same, saying that the files are being built again: it counts no units then."""
    return _UNFINISHED + content[len(_UNFINISHED) :]


def is_unfinished(content: bytes) -> bool:
    """Whether an index snapshot says that the files are being built again: it counts no units then, its bounds tell
    what the index knew before."""
    return content.startswith(_UNFINISHED)


def decode_counted(content: bytes) -> Iterator[Counted]:
    """What an index snapshot says of each queue. Raises IndexDamaged when it is none of this format."""
    content = _as_today(content)
    rows = list(_rows(content))
    cells = array("q", content[_HEAD.size + len(rows) * _ROW.size :])
    _swap(cells)
    ends = accumulate(row[5] for row in rows)
    for (topic_id, queue_id, min_offset, max_offset, entry_count, cell_count), end in zip(rows, ends, strict=True):
        kept = PendingUnits.of_cells(cells[end - cell_count : end], entry_count, max_offset)
        files_end = cells[end - cell_count] if entry_count else max_offset
        yield Counted(QueueKey(topic_id, queue_id), Bounds(min_offset, max_offset), files_end, kept)


def decode_bounds(content: bytes) -> Iterator[tuple[QueueKey, Bounds]]:
    """The bounds of each queue. Raises IndexDamaged when it is none of this format."""
    for topic_id, queue_id, min_offset, max_offset, _, _ in _rows(_as_today(content)):
        yield QueueKey(topic_id, queue_id), Bounds(min_offset, max_offset)


def _as_today(content: bytes) -> bytes:
    """The same, of whichever version."""
    rows = content[_FIRST_POSITION.size :]
    if len(content) % 8 or len(rows) % _ROW_WITHOUT_KEPT.size:
        return content
    today = [_ROW.pack(*row, 0, 0) for row in _ROW_WITHOUT_KEPT.iter_unpack(rows)]
    return b"".join((_HEAD.pack(first_position_of(content), len(today)), *today))


def _rows(content: bytes) -> Iterator[tuple[int, int, int, int, int, int]]:
    _, queue_count = _HEAD.unpack_from(content)
    end = _HEAD.size + queue_count * _ROW.size
    cell_count = sum([row[5] for row in _ROW.iter_unpack(content[_HEAD.size : end])]) if end <= len(content) else -1
    if end + 8 * cell_count != len(content):
        raise IndexDamaged(
            "the index snapshot is of another format: remove index.0, index.1 and consumequeue/; the next start makes "
            "them from the log"
        )
    return _ROW.iter_unpack(content[_HEAD.size : end])


def _swap(cells: array[int]) -> None:
    if sys.byteorder == "little":
        cells.byteswap()

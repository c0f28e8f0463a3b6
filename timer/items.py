"""Schedules of open slots as the timer holds them in memory: each is 25 bytes. Pure.

Big-endian, so that items compare by (fire ms, entry position, record index), and a shorter key sorts before all that
it is a prefix of:

    0         8          16      20       24      25
    +---------+----------+-------+--------+-------+
    | fire ms | entry    | record| slot   | rolls |    fire ms: the due time, or the start of the slot when the
    | i64     | pos  i64 | index | time s | u8    |    schedule only rolls there
    |         |          | u32   | u32    |       |    entry, record: which copy of the schedule (store.types.Source)
    +---------+----------+-------+--------+-------+

Bytes, not tuples: the garbage collector does not look at them. A busy second holds a hundred thousand, and each look at
so many tuples took up to a tenth of a second.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter

from store.types import Source
from timer.schedule import SLOT_MS
from timer.timer_log import MAGIC_ROLL, Unit

Item = bytes
Key = bytes
"""The beginning of an Item."""

_ITEM = struct.Struct(">qqIIB")
_FIRE_MS = _POSITION = struct.Struct(">q")
_SOURCE = struct.Struct(">qI")
_SLOT = struct.Struct(">I")
_RECORD_INDEX = struct.Struct(">I")
_SOURCE_AT, _RECORD_INDEX_AT, _SLOT_AT, _ROLLS_AT = 8, 16, 20, 24
_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long
ITEM_BYTES = 25
assert _ITEM.size == ITEM_BYTES

LOWEST: Key = b""
HIGHEST: Key = b"\xff" * ITEM_BYTES  # no time is negative

pack_item = _ITEM.pack
"""fire ms, entry position, record index, slot s, rolls -> Item"""

unpack_item = _ITEM.unpack

fire_key = _FIRE_MS.pack
"""The smallest key of a fire ms."""


def item_of(unit: Unit) -> Item:
    """A unit of the timer log as the open slots hold it."""
    _, magic, due_ms, entry_position, _, record_index, _, slot_s = unit
    if magic & MAGIC_ROLL:
        return pack_item(slot_s * SLOT_MS, entry_position, record_index, slot_s, True)
    return pack_item(due_ms, entry_position, record_index, slot_s, False)


def fire_ms_of(item: Item) -> int:
    """When the item fires, epoch ms."""
    fire_ms: int = _FIRE_MS.unpack_from(item)[0]
    return fire_ms


def slot_of(item: Item) -> int:
    """The second in which the item is due."""
    slot_s: int = _SLOT.unpack_from(item, _SLOT_AT)[0]
    return slot_s


def source_of(item: Item) -> Source:
    """The copy that the item is of."""
    return _new(Source, _SOURCE.unpack_from(item, _SOURCE_AT))


def position_of(item: Item) -> int:
    """The `position` of the item's source."""
    position: int = _POSITION.unpack_from(item, _SOURCE_AT)[0]
    return position


def record_index_of(item: Item) -> int:
    """The `record_index` of the item's source."""
    record_index: int = _RECORD_INDEX.unpack_from(item, _RECORD_INDEX_AT)[0]
    return record_index


def rolls_of(item: Item) -> bool:
    """Whether the item only rolls."""
    return bool(item[_ROLLS_AT])


slot_bytes: Callable[[Item], bytes] = itemgetter(slice(_SLOT_AT, _ROLLS_AT))
"""The slot as it stands in the item: equal for items of one slot."""

position_bytes: Callable[[Item], bytes] = itemgetter(slice(_SOURCE_AT, _RECORD_INDEX_AT))
"""The position of the item's source as it stands in the item, big-endian: equal for items of one entry."""

source_row: Callable[[Item], bytes] = itemgetter(slice(_SOURCE_AT, _SLOT_AT))
"""The copy as a row of an entry's sources (store/log/entry.py)."""

_fire_bytes: Callable[[Item], bytes] = itemgetter(slice(0, _SOURCE_AT))


def fire_counts(items: Iterable[Item]) -> dict[int, int]:
    """How many of the items fire at each time, epoch ms."""
    return {int.from_bytes(fire): count for fire, count in Counter(map(_fire_bytes, items)).items()}

"""What a timer knows, for another timer of the same log that goes on without its files. Pure.

Format, big-endian:

    0       4         6       8              16          24               32      36     40
    +-------+---------+-------+--------------+-----------+----------------+-------+------+-----------+--------+
    | magic | version | zero  | queue offset | read mark | delivered from | units | rows | units ... | rows.. |
    | u32   | u16     | u16   | i64          | s i64     | i64            | u32   | u32  | 33 bytes  |        |
    +-------+---------+-------+--------------+-----------+----------------+-------+------+-----------+--------+

    magic 0x6D717473 ("mqts"), version 1; the three numbers are those of the checkpoint (timer/checkpoint.py)
    unit  magic u8, due ms i64, entry position i64, entry size i32, record index i32, topic id i32, slot s u32: those
          that wait in slots from the read mark on, in the order of the timer log (timer/timer_log.py)
    row   topic id i32, entry position i64, record index i32, slot s u32, bytes of the key u16, key: of schedule keys

Records of `__timer` from the queue offset on, and sources from `delivered from` on, are read from the log; so a unit
that was delivered or changed since then may be among these, or may not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from store.errors import FormatTooNew
from store.types import Source
from timer.ports import KeyRow, TopicKey
from timer.timer_log import Unit

SAVED_PER_TURN = 256
"""Units looked at between two turns of the event loop."""

_HEADER = struct.Struct(">IHHqqqII")
_UNIT = struct.Struct(">BqqiiiI")
_ROW = struct.Struct(">iqiIH")
_MAGIC = 0x6D717473
_VERSION = 1


class Saved(NamedTuple):
    """One state of a timer. `packed_units`: units laid end to end."""

    queue_offset: int
    read_mark_s: int
    delivered_from: int
    packed_units: bytes
    rows: Sequence[tuple[TopicKey, KeyRow]]

    def units(self) -> Iterator[tuple[int, int, int, int, int, int, int]]:
        """Magic, due ms, entry position and size, record index, topic id and slot of each unit."""
        return _UNIT.iter_unpack(self.packed_units)

    def encoded(self) -> bytes:
        """The bytes of it."""
        made = bytearray(
            _HEADER.pack(
                _MAGIC, _VERSION, 0, self.queue_offset, self.read_mark_s, self.delivered_from,
                len(self.packed_units) // _UNIT.size, len(self.rows),
            )
        )  # fmt: skip
        made += self.packed_units
        for (topic_id, key), (source, slot_s) in self.rows:
            made += _ROW.pack(topic_id, *source, slot_s, len(key)) + key
        return bytes(made)


def packed_unit(unit: Unit) -> bytes:
    """One unit as it is saved."""
    _, magic, due_ms, position, size, index, topic_id, slot_s = unit
    return _UNIT.pack(magic, due_ms, position, size, index, topic_id, slot_s)


def decode_saved(content: bytes) -> Saved:
    """What `Saved.encoded` gave. Raises FormatTooNew, ValueError."""
    try:
        (
            magic, version, _, queue_offset, read_mark_s, delivered_from, unit_count, row_count,
        ) = _HEADER.unpack_from(content)  # fmt: skip
        if magic != _MAGIC:
            raise ValueError(f"what a timer has saved begins with {magic:#x}: not ours to read")
        if version != _VERSION:
            raise FormatTooNew(f"what a timer has saved is of version {version}; this program knows {_VERSION}")
        at = _HEADER.size + unit_count * _UNIT.size
        units = content[_HEADER.size : at]
        rows = []
        for _ in range(row_count):
            topic_id, position, index, slot_s, key_bytes = _ROW.unpack_from(content, at)
            at += _ROW.size + key_bytes
            rows.append((TopicKey(topic_id, content[at - key_bytes : at]), KeyRow(Source(position, index), slot_s)))
    except struct.error as error:
        raise ValueError(f"what a timer has saved is cut short: {error}") from error
    if at != len(content):
        raise ValueError(f"what a timer has saved has {len(content)} bytes, not {at}")
    return Saved(queue_offset, read_mark_s, delivered_from, units, rows)

"""How far the consume queues reach: two slots, written in turn, so that a torn write leaves the other one whole.

Format of file `checkpoint`, big-endian, two slots of 4096 bytes at 0 and 4096; the rest of a slot is zero:

    0       4         8            16           24
    +-------+---------+------------+------------+----------+
    |"MQCP" |version  |generation  |position i64|crc32c    |
    |       |u32 = 1  |u64         |            |u32 over  |
    |       |         |            |            |the above |
    +-------+---------+------------+------------+----------+

Invariants
    K1  the slot with the highest generation and a valid CRC is the checkpoint; none means position 0
    K2  every byte of the log before the position is durable, and so is every index unit of the entries before it: a
        checkpoint may trail, never lead
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from store.errors import Corrupt
from store.files import Files

_SLOT = struct.Struct(">4sIQq")
_CRC = struct.Struct(">I")
SLOT_BYTES = 4096
CONTENT_BYTES = _SLOT.size + _CRC.size
MAGIC = b"MQCP"
VERSION = 1


class Slot(NamedTuple):
    """What one valid slot says."""

    version: int
    generation: int
    position: int


class CheckpointFile:
    """Reads and replaces the checkpoint of one store."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        is_new = path.name not in files.list(path.parent)
        self._file = files.open(path, create=True)
        if is_new:
            files.sync_dir(path.parent)
        self._generation = 0

    def load(self) -> int:
        """The position of the newest valid slot, 0 when there is none. Raises Corrupt on a newer format version."""
        position = 0
        for number in (0, 1):
            slot = decode_slot(self._file.pread(CONTENT_BYTES, number * SLOT_BYTES))
            if slot is None:
                continue
            if slot.version != VERSION:
                reason = f"version {slot.version}; this program knows {VERSION}"
                raise Corrupt(str(self._path), number * SLOT_BYTES, reason)
            if slot.generation > self._generation:
                self._generation, position = slot.generation, slot.position
        return position

    def save(self, position: int) -> None:
        """Write the older slot; durable on return. OSError passes through: the other slot still holds."""
        generation = self._generation + 1
        content = _SLOT.pack(MAGIC, VERSION, generation, position)
        self._file.pwritev([content, _CRC.pack(crc32c(content))], generation % 2 * SLOT_BYTES)
        self._file.datasync()
        self._generation = generation

    def close(self) -> None:
        self._file.close()


def decode_slot(content: bytes) -> Slot | None:
    """The slot in these bytes, or None when they do not fit together."""
    if len(content) < CONTENT_BYTES:
        return None
    magic, version, generation, position = _SLOT.unpack_from(content)
    if magic != MAGIC or _CRC.unpack_from(content, _SLOT.size)[0] != crc32c(content[: _SLOT.size]):
        return None
    return Slot(version, generation, position)

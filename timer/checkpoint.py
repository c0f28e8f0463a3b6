"""Up to where the timer is: what a restart trusts of the timer log and the wheel.

File format: two slots, at byte 0 and byte 4096, each big-endian:

    0       4         6       8            16         24             32          40           48               56    60
    +-------+---------+-------+------------+----------+--------------+-----------+------------+----------------+-----+
    | magic | version | flags | generation | log end  | queue offset | read mark | write mark | delivered from | crc |
    | u32   | u16     | u16   | u64        | i64      | i64          | s i64     | s i64      | i64            | u32 |
    +-------+---------+-------+------------+----------+--------------+-----------+------------+----------------+-----+

    magic 0x6D717463 ("mqtc"); version 1; flags: bit 0 = the wheel file is complete (clean stop),
           bit 1 = the file `keys` says where schedule keys lead, up to the queue offset or further
    crc: CRC-32C of the 56 bytes before it
    log end         the timer log is durable up to this position; what follows it is cut
    queue offset    the next record of `__timer` to schedule in the wheel
    read mark       every slot before it is done for good: all its records were delivered durably
    write mark      slots before it were open: some of their records may have been delivered
    delivered from  commit-log position at or after which lies every delivery out of slots from the read mark on

Invariants
    K1  The newest slot that passes its CRC counts. A write goes to the other one, so a torn write loses nothing.
    K2  A checkpoint trails what it describes: timer log first, then the wheel, then this file.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from store.errors import Corrupt, FormatTooNew
from store.files import Files

_SLOT = struct.Struct(">IHHQqqqqq")
_CRC = struct.Struct(">I")
assert _SLOT.size == 56
_MAGIC = 0x6D717463
_VERSION = 1
_CLEAN = 0x0001
_KEYED = 0x0002
_SLOT_SPACING_BYTES = 4096  # a torn page never holds both


class Checkpoint(NamedTuple):
    """One state of the timer; see the module header for each field."""

    log_end: int
    queue_offset: int
    read_mark_s: int
    write_mark_s: int
    delivered_from: int
    clean: bool
    keyed: bool = False


class CheckpointFile:
    """The two-slot file. `latest` is None when no slot is whole: never written, or damaged.

    Raises FormatTooNew for a version that this code does not know.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._path = path
        self._file = files.open(path, create=True)
        self._generation = 0
        self.latest: Checkpoint | None = None
        for number in (0, 1):
            self._consider(self._file.pread(_SLOT.size + _CRC.size, number * _SLOT_SPACING_BYTES))

    def write(self, checkpoint: Checkpoint) -> None:
        """Make `checkpoint` the latest. Durable on return; OSError when it is not (and then see store.files F3)."""
        generation = self._generation + 1
        slot = _SLOT.pack(
            _MAGIC, _VERSION, _CLEAN * checkpoint.clean | _KEYED * checkpoint.keyed, generation,
            checkpoint.log_end, checkpoint.queue_offset, checkpoint.read_mark_s, checkpoint.write_mark_s,
            checkpoint.delivered_from,
        )  # fmt: skip
        self._file.pwritev([slot, _CRC.pack(crc32c(slot))], generation % 2 * _SLOT_SPACING_BYTES)
        self._file.datasync()
        self._generation = generation
        self.latest = checkpoint

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _consider(self, slot: bytes) -> None:
        if len(slot) < _SLOT.size + _CRC.size or crc32c(slot[: _SLOT.size]) != _CRC.unpack_from(slot, _SLOT.size)[0]:
            return
        (
            magic, version, flags, generation, log_end, queue_offset, read_mark_s, write_mark_s, delivered_from,
        ) = _SLOT.unpack_from(slot)  # fmt: skip
        if magic != _MAGIC:
            raise Corrupt(str(self._path), 0, f"timer checkpoint of magic {magic:#x}: not ours to read")
        if version != _VERSION:
            raise FormatTooNew(f"{self._path} has version {version}; this program knows {_VERSION}: use a newer mq")
        if generation > self._generation:
            self._generation = generation
            marks = log_end, queue_offset, read_mark_s, write_mark_s, delivered_from
            self.latest = Checkpoint(*marks, clean=bool(flags & _CLEAN), keyed=bool(flags & _KEYED))

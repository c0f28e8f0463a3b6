"""How many schedules are pending, by topic: what a clean stop leaves, so that the next start need not count.

File format, big-endian, written whole:

    0       4         6       8         16             24      28 + 12 n
    +-------+---------+-------+---------+--------------+-------+----------------------+-----+
    | magic | version | zero  | log end | queue offset | count | count x (topic id,   | crc |
    | u32   | u16     | u16   | i64     | i64          | u32   | schedules): i32, i64 | u32 |
    +-------+---------+-------+---------+--------------+-------+----------------------+-----+

    magic 0x6D717470 ("mqtp"); version 1; crc: CRC-32C of everything before it
    log end, queue offset   those of the clean checkpoint it belongs to; it says nothing about any other state

Invariant
    N1  Written and flushed before the clean checkpoint. One that is missing, damaged or of another checkpoint only
        makes the start count again, as after a crash.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from crc32c import crc32c

from store.files import Files

_HEADER = struct.Struct(">IHHqqI")
_TOPIC = struct.Struct(">iq")
_CRC = struct.Struct(">I")
assert _HEADER.size == 28
_MAGIC = 0x6D717470
_VERSION = 1


class PendingFile:
    """The file of one timer."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = files.open(path, create=True)

    def write(self, counts: Mapping[int, int], log_end: int, queue_offset: int) -> None:
        """Replace what the file says. Durable on return; OSError when it is not."""
        content = _HEADER.pack(_MAGIC, _VERSION, 0, log_end, queue_offset, len(counts))
        content += b"".join(_TOPIC.pack(topic_id, count) for topic_id, count in counts.items())
        self._file.pwritev([content, _CRC.pack(crc32c(content))], 0)
        self._file.datasync()

    def read(self, log_end: int, queue_offset: int) -> dict[int, int] | None:
        """Schedules by topic id as of the checkpoint with these marks; None when the file does not know."""
        content = self._file.pread(self._file.size(), 0)
        if len(content) < _HEADER.size + _CRC.size:
            return None
        magic, version, _, its_log_end, its_queue_offset, count = _HEADER.unpack_from(content)
        end = _HEADER.size + count * _TOPIC.size
        if (magic, version, its_log_end, its_queue_offset) != (_MAGIC, _VERSION, log_end, queue_offset):
            return None
        if end + _CRC.size > len(content) or _CRC.unpack_from(content, end)[0] != crc32c(content[:end]):
            return None
        return dict(_TOPIC.iter_unpack(content[_HEADER.size : end]))

    def close(self) -> None:
        """Release the file."""
        self._file.close()

"""How many schedules are pending, by topic and by minute: what a clean stop leaves, so that the next start need not
count.

File format, big-endian, written whole:

    0       4         6        8         16             24      28 + 12 n
    +-------+---------+--------+---------+--------------+-------+----------------------+-----------+-----------+-----+
    | magic | version | merged | log end | queue offset | count | count x (topic id,   | minutes   | minutes   | crc |
    | u32   | u16     | u16    | i64     | i64          | u32   | schedules): i32, i64 | by due    | of rolled | u32 |
    +-------+---------+--------+---------+--------------+-------+----------------------+-----------+-----------+-----+

    magic 0x6D717470 ("mqtp"); version 2; crc: CRC-32C of everything before it
    log end, queue offset   those of the clean checkpoint it belongs to; it says nothing about any other state
    minutes                 count u32, then so many pages of timer/pending_counts.py: topic id i32, hour of the epoch
                            i64, 60 counts i32
    merged                  bits: 1, 2: the first, the second part of the minutes is of all topics together (topic id 0)

Invariant
    N1  Written and flushed before the clean checkpoint. One that is missing, damaged, of another version or of another
        checkpoint only makes the start count again, as after a crash.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from store.files import Files
from timer.pending_counts import PAGE_MINUTES, PendingCounts

_HEADER = struct.Struct(">IHHqqI")
_TOPIC = struct.Struct(">iq")
_COUNT = struct.Struct(">I")
_PAGE = struct.Struct(f">iq{PAGE_MINUTES}i")
_CRC = struct.Struct(">I")
assert _HEADER.size == 28
MAGIC = 0x6D717470
VERSION = 2


class Parsed(NamedTuple):
    """What a file says."""

    version: int
    log_end: int
    queue_offset: int
    counts: PendingCounts | None
    """None: the file fails its check, or is of another version."""


def parse(content: bytes) -> Parsed | None:
    """What the content of a file says; None when it is too short to be one. Raises ValueError for another magic."""
    if content[: _CRC.size] != MAGIC.to_bytes(_CRC.size, "big"):
        raise ValueError("not a file of pending counts")
    if len(content) < _HEADER.size + _CRC.size:
        return None
    _, version, merged, log_end, queue_offset, topic_count = _HEADER.unpack_from(content)
    unknown = Parsed(version, log_end, queue_offset, None)
    if version != VERSION:
        return unknown
    parts = [(_HEADER.size, end := _HEADER.size + topic_count * _TOPIC.size)]
    try:
        for _ in range(2):
            start = end + _COUNT.size
            end = start + _COUNT.unpack_from(content, end)[0] * _PAGE.size
            parts.append((start, end))
        (crc,) = _CRC.unpack_from(content, end)
    except struct.error:  # it is shorter than it says
        return unknown
    if crc != crc32c(content[:end]):
        return unknown
    counts = PendingCounts()
    topics, *pages = (content[slice(*part)] for part in parts)
    counts.by_topic.update(_TOPIC.iter_unpack(topics))
    counts.total = sum(counts.by_topic.values())
    for bit, minutes, part in zip((1, 2), (counts.due, counts.rolled), pages, strict=True):
        rows = _PAGE.iter_unpack(part)
        minutes.restore(((topic_id, hour, page) for topic_id, hour, *page in rows), is_merged=bool(merged & bit))
    return Parsed(version, log_end, queue_offset, counts)


class PendingFile:
    """The file of one timer."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = files.open(path, create=True)

    def write(self, counts: PendingCounts, log_end: int, queue_offset: int) -> None:
        """Replace what the file says. Durable on return; OSError when it is not."""
        by_topic = counts.by_topic
        merged = counts.due.is_merged | counts.rolled.is_merged << 1
        content = _HEADER.pack(MAGIC, VERSION, merged, log_end, queue_offset, len(by_topic))
        content += b"".join(_TOPIC.pack(topic_id, count) for topic_id, count in by_topic.items())
        for minutes in (counts.due, counts.rolled):
            pages = minutes.by_topic()
            content += _COUNT.pack(len(pages))
            content += b"".join(_PAGE.pack(topic_id, hour, *page[:PAGE_MINUTES]) for topic_id, hour, page in pages)
        self._file.pwritev([content, _CRC.pack(crc32c(content))], 0)
        self._file.datasync()

    def read(self, log_end: int, queue_offset: int) -> PendingCounts | None:
        """The counts as of the checkpoint with these marks; None when the file does not know."""
        try:
            parsed = parse(self._file.pread(self._file.size(), 0))
        except ValueError:
            return None
        if parsed is None or (parsed.log_end, parsed.queue_offset) != (log_end, queue_offset):
            return None
        return parsed.counts

    def close(self) -> None:
        """Release the file."""
        self._file.close()

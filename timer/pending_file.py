"""How many schedules are pending, by topic and by time: what a clean stop leaves, so that the next start need not
count.

File format, big-endian, written whole:

    0       4         6        8         16             24      28 + 12 n
    +-------+---------+--------+---------+--------------+-------+----------------------+-----------+-----------+-----+
    | magic | version | parts  | log end | queue offset | count | count x (topic id,   | near,     | of topics | crc |
    | u32   | u16     | u16    | i64     | i64          | u32   | schedules): i32, i64 | rolled    | the same  | u32 |
    +-------+---------+--------+---------+--------------+-------+----------------------+-----------+-----------+-----+

    magic 0x6D717470 ("mqtp"); version 2; crc: CRC-32C of everything before it
    log end, queue offset   those of the clean checkpoint it belongs to; it says nothing about any other state
    near, rolled            count u32, then so many pages of timer/pending_counts.py: topic id i32, number i64, and
                            counts i32: 60 minutes of an hour, 96 quarters of the hours of a day
    parts                   2: of all topics (topic id 0) near and rolled; 4: the same by topic follow

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
from timer.pending_counts import PendingCounts, TimeCounts

_HEADER = struct.Struct(">IHHqqI")
_TOPIC = struct.Struct(">iq")
_COUNT = struct.Struct(">I")
_CRC = struct.Struct(">I")
assert _HEADER.size == 28
MAGIC = 0x6D717470
VERSION = 2


def _page_of(times: TimeCounts) -> struct.Struct:
    return struct.Struct(f">iq{times.page_bins}i")


def _parts(counts: PendingCounts) -> list[TimeCounts]:
    return [*counts.of_all, *(counts.of_topics or ())]


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
    _, version, parts, log_end, queue_offset, topic_count = _HEADER.unpack_from(content)
    unknown = Parsed(version, log_end, queue_offset, None)
    if version != VERSION:
        return unknown
    counts = PendingCounts()
    if parts == len(counts.of_all):
        counts.of_topics = None
    topics_end = end = _HEADER.size + topic_count * _TOPIC.size
    pages = []
    try:
        for times in _parts(counts):
            start = end + _COUNT.size
            end = start + _COUNT.unpack_from(content, end)[0] * _page_of(times).size
            pages.append((times, start, end))
        (crc,) = _CRC.unpack_from(content, end)
    except struct.error:  # it is shorter than it says
        return unknown
    if crc != crc32c(content[:end]):
        return unknown
    counts.by_topic.update(_TOPIC.iter_unpack(content[_HEADER.size : topics_end]))
    counts.total = sum(counts.by_topic.values())
    for times, start, end in pages:
        rows = _page_of(times).iter_unpack(content[start:end])
        times.restore((topic_id, number, page) for topic_id, number, *page in rows)
    return Parsed(version, log_end, queue_offset, counts)


class PendingFile:
    """The file of one timer."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = files.open(path, create=True)

    def write(self, counts: PendingCounts, log_end: int, queue_offset: int) -> None:
        """Replace what the file says. Durable on return; OSError when it is not."""
        by_topic = counts.by_topic
        parts = _parts(counts)
        content = _HEADER.pack(MAGIC, VERSION, len(parts), log_end, queue_offset, len(by_topic))
        content += b"".join(_TOPIC.pack(topic_id, count) for topic_id, count in by_topic.items())
        for times in parts:
            rows, pack = times.rows(), _page_of(times).pack
            content += _COUNT.pack(len(rows))
            content += b"".join(pack(topic_id, number, *page[:-1]) for topic_id, number, page in rows)
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

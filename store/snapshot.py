"""A small state saved whole, so that the log records it was made from may expire: two files, written in turn.

Format of `<name>.0` and `<name>.1`, big-endian:

    0       4         8            16           24        28          28 + length
    +-------+---------+------------+------------+---------+-----------+---------+
    |"MQSS" |version  |generation  |next offset |length   |content    |crc32c   |
    |       |u32 = 1  |u64         |i64         |u32      |           |u32      |
    +-------+---------+------------+------------+---------+-----------+---------+

    next offset   of the system topic the state comes from: records from there on are not in the content yet
    crc           over everything before it

The valid file with the highest generation counts; a torn write leaves the other one whole.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from store.errors import FormatTooNew
from store.files import Files

_HEADER = struct.Struct(">4sIQqI")
_CRC = struct.Struct(">I")
MAGIC = b"MQSS"
VERSION = 1


class Snapshot(NamedTuple):
    """A state, and the offset from which its source has to be applied to it."""

    next_offset: int
    content: bytes


class SnapshotFiles:
    """Saves and loads one named state in a directory. `is_private`: only the owner may read the files."""

    def __init__(self, directory: Path, name: str, files: Files, *, is_private: bool = False) -> None:
        self._is_private = is_private
        self._paths = (directory / f"{name}.0", directory / f"{name}.1")
        self._files = files
        self._generation = 0
        self.is_torn = False
        """One file fails its check, as a crash leaves it; the next save writes it anew."""

    def load(self) -> Snapshot | None:
        """The newest valid state, None when there is none. Raises FormatTooNew."""
        newest: Snapshot | None = None
        names = self._files.list(self._paths[0].parent)
        for path in self._paths:
            if path.name not in names:
                continue
            file = self._files.open(path)
            try:
                decoded = decode_snapshot(file.pread(file.size(), 0))
            finally:
                file.close()
            if decoded is None:
                self.is_torn = True
                continue
            version, generation, snapshot = decoded
            if version != VERSION:
                raise FormatTooNew(f"{path} has version {version}; this program knows {VERSION}: use a newer mq")
            if generation > self._generation:
                self._generation, newest = generation, snapshot
        return newest

    def save(self, snapshot: Snapshot) -> None:
        """Replace the older file; durable on return. OSError passes through: the other file still holds."""
        generation = self._generation + 1
        path = self._paths[generation % 2]
        header = _HEADER.pack(MAGIC, VERSION, generation, snapshot.next_offset, len(snapshot.content))
        crc = crc32c(snapshot.content, crc32c(header))
        file = self._files.open(path, create=True, is_private=self._is_private)
        try:
            written = file.pwritev([header, snapshot.content, _CRC.pack(crc)], 0)
            file.truncate(written)
            file.datasync()
        finally:
            file.close()
        self._files.sync_dir(path.parent)
        self._generation = generation
        self.is_torn = False


def decode_snapshot(content: bytes) -> tuple[int, int, Snapshot] | None:
    """(version, generation, snapshot), or None when the bytes do not fit together."""
    if len(content) < _HEADER.size + _CRC.size:
        return None
    magic, version, generation, next_offset, length = _HEADER.unpack_from(content)
    end = _HEADER.size + length
    if magic != MAGIC or len(content) < end + _CRC.size:
        return None
    if _CRC.unpack_from(content, end)[0] != crc32c(content[:end]):
        return None
    return version, generation, Snapshot(next_offset, content[_HEADER.size : end])

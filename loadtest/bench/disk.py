"""The limit of durable writing: one pwritev and one fdatasync, again and again, in a file that already has its blocks.

The file was filled with zeros, so an fdatasync moves data and no metadata; it is larger than any cache of the disk,
and each block is written once, from the beginning to the end: a log is written like that. The page cache does not hold
it (a log's next blocks are not there either), so that the price of a page is in the limit as it is in ours. In a
virtual machine a page that was free a moment ago is cheaper than one that its host has yet to give: who compares the
two closely has both let go of theirs at the same times (`forget_pages`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

MiB = 1024 * 1024
FILE_BYTES = 2048 * MiB
_ZEROS = bytes(MiB)


class Written(NamedTuple):
    """What a stretch of the loop came to."""

    sync_count: int
    byte_count: int
    duration_s: float


class DiskLoop:
    """Writes to one preallocated file from end to end; when it is through, from its beginning again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._position = 0

    def run(self, buffers: list[bytes], duration_s: float) -> Written:
        """Write all buffers by one pwritev, then fdatasync, until the time is up. Blocks."""
        size = sum(map(len, buffers))
        sync_count = 0
        spent_s = 0.0
        while spent_s < duration_s:
            if self._position + size > FILE_BYTES:
                self.forget_pages()
                self._position = 0
            began_s = time.perf_counter()
            self._position += os.pwritev(self._fd, buffers, self._position)
            os.fdatasync(self._fd)
            spent_s += time.perf_counter() - began_s
            sync_count += 1
        return Written(sync_count, sync_count * size, spent_s)

    def forget_pages(self) -> None:
        """Take what was written out of the page cache."""
        forget_pages(self._fd, self._position)


def forget_pages(fd: int, end: int) -> None:
    """Take the first `end` bytes of a file, at least one and all of them durable, out of the page cache."""
    os.posix_fadvise(fd, 0, end, os.POSIX_FADV_DONTNEED)


def forget_files(directory: Path) -> None:
    """Have all files in a directory, however deep, durable and out of the page cache. Its server may go on meanwhile:
    what it deletes is passed over, whole directories too."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError), Path(parent, name).open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def disk_loop(directory: Path) -> Iterator[DiskLoop]:
    """A loop on a file in a directory; the file is removed afterwards."""
    path = directory / "disk-limit"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        for _ in range(FILE_BYTES // len(_ZEROS)):
            os.write(fd, _ZEROS)
        os.fsync(fd)
        forget_pages(fd, FILE_BYTES)
        yield DiskLoop(fd)
    finally:
        os.close(fd)
        path.unlink()

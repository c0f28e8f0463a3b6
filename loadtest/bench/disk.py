"""The limit of durable writing: one pwritev and one fdatasync, again and again, into a file that already has its bytes.

The file is filled with zeros first, as the commit log is, so that an fdatasync moves data and no metadata.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

MiB = 1024 * 1024
FILE_BYTES = 256 * MiB
_ZEROS = bytes(MiB)


class Written(NamedTuple):
    """What a stretch of the loop came to."""

    sync_count: int
    byte_count: int
    duration_s: float


class DiskLoop:
    """Writes to one preallocated file, round and round."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._position = 0

    def run(self, buffers: list[bytes], duration_s: float) -> Written:
        """Write all buffers by one pwritev, then fdatasync, until the time is up. Blocks."""
        size = sum(map(len, buffers))
        sync_count = 0
        began_s = time.perf_counter()
        while (now_s := time.perf_counter()) - began_s < duration_s:
            if self._position + size > FILE_BYTES:
                self._position = 0
            self._position += os.pwritev(self._fd, buffers, self._position)
            os.fdatasync(self._fd)
            sync_count += 1
        return Written(sync_count, sync_count * size, now_s - began_s)


@contextmanager
def disk_loop(directory: Path) -> Iterator[DiskLoop]:
    """A loop on a file in a directory; the file is removed afterwards."""
    path = directory / "disk-limit"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        for _ in range(FILE_BYTES // len(_ZEROS)):
            os.write(fd, _ZEROS)
        os.fsync(fd)
        yield DiskLoop(fd)
    finally:
        os.close(fd)
        path.unlink()

"""Files in memory, of a process that keeps nothing on a disk: gone with it, whatever ends it.

Each is an anonymous file of the system (memfd), so holes in it take no memory, and what reads and writes files of a
disk reads and writes these. Directories are what paths say; they need not be made.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from store.files import OsFile, OsFiles


class MemoryFile(OsFile):
    """One file; whoever opens it has the same one. Its memory is given back when it is removed and nobody has it any
    more."""

    __slots__ = ()

    def close(self) -> None:
        """See `File.close`: others may have it open."""

    def __del__(self) -> None:
        OsFile.close(self)


class MemoryFiles(OsFiles):
    """`Files` of one process."""

    def __init__(self) -> None:
        self._files: dict[Path, MemoryFile] = {}

    def open(self, path: Path, *, create: bool = False, is_private: bool = False) -> MemoryFile:
        """See `Files.open`."""
        if (file := self._files.get(path)) is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            file = self._files[path] = MemoryFile(os.memfd_create(path.name), path)
        return file

    def list(self, directory: Path) -> list[str]:
        """See `Files.list`: of its files."""
        return sorted(path.name for path in self._files if path.parent == directory)

    def make_dirs(self, directory: Path, *, sync: bool = True) -> None:
        """See `Files.make_dirs`."""

    def remove(self, path: Path) -> None:
        """See `Files.remove`."""
        if self._files.pop(path, None) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def sync_dir(self, directory: Path) -> None:
        """See `Files.sync_dir`."""

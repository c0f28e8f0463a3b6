"""The only place where the store and the timer touch a disk.

`Files` and `File` are the seam: `OsFiles` is the real disk; tests put a simulated one with power cuts and
I/O errors in its place. What a power cut may leave, and so what callers must do:

    F1  bytes written but not covered by a later successful `datasync` of that file may be lost, kept or garbage,
        each disk sector on its own; bytes that were durable before and are written again unchanged stay what they are
    F2  a created, renamed or removed name is certain only after `sync_dir` of its directory
    F3  after a failed `datasync` nothing is known about any byte since the last successful one; calling it
        again may claim success for bytes that are gone, so callers must stop instead

No file of a data directory is a symbolic link: the lock covers what is in the directory, so a link would let two
servers write the same file, or one overwrite what is no part of its data. `lock_directory` looks for links when a
directory is opened, and no later open follows one. The directory itself may be reached by links.

All writes are complete or raise: short writes are finished here. `OSError` passes through to the caller, which
knows what it means. No mmap: a full disk or a truncated file would kill the process instead of raising.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Protocol

from store.kernel_sync import KernelSync
from store.types import Buffer
from store.uninitialized import uninitialized

_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = getattr(_libc, "sync_file_range", None)  # Linux; the os module has no name for it
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2  # begin to write, wait for nothing: errors stay for fdatasync to report

_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)  # Linux 4.14

IOV_MAX = 1024  # buffers one pwritev takes (Linux UIO_MAXIOV)

OUT_OF_HANDLES = frozenset((errno.EMFILE, errno.ENFILE))
"""What `Files.open` raises when the process or the system can open no more for now. Nothing has failed: a later call
may succeed."""

LINKS_ALLOWED = frozenset(("auth",))
"""Names in a data directory that are not the store's: files that people write, which may be links, as Kubernetes mounts
them."""

_SCANNED_LEVELS = 2
"""Directories below a data directory that are searched for links; files further down are checked by each open."""

_CANNOT_LOCK = frozenset((errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))

SPARE_HANDLES = 16
"""Kept open by the process, to be given up for a file when there is no other: what sockets take is not missing when the
log has to grow."""


class LinkRefused(OSError):
    """A file or directory in a data directory is a symbolic link. It was not followed."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, "a symbolic link, which the lock of the data directory does not cover", path)

    def __str__(self) -> str:
        return (
            f"{self.filename} is {self.strerror}: put what it leads to in its place, mount it there, "
            "or let the data directory as a whole be a link"
        )


class File(Protocol):
    """One open file. Positions and sizes are bytes."""

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes; shorter only at the end of the file."""
        ...

    def pread_cached(self, size: int, position: int) -> Buffer | None:
        """As `pread`, if that need not wait for the disk; else None."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers one after the other from `position` on; return the byte count. Not yet durable."""
        ...

    def allocate(self, position: int, size: int) -> None:
        """Take space on the disk for `size` bytes from `position`, which must be the file's end or behind it; the file
        grows, and the new bytes read as zeros. Raises OSError when the disk is full. Durable after the next
        `datasync`."""
        ...

    def begin_writeout(self, position: int, size: int) -> None:
        """Ask the system to begin writing these bytes to the disk now, so that a `datasync` to come finds less to do.
        It promises nothing, and takes nothing from what `datasync` says. Raises OSError."""
        ...

    def datasync(self) -> None:
        """Make every byte written so far durable (fdatasync). Raises OSError; see F3."""
        ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend to `size`; durable after the next `datasync`."""
        ...

    def close(self) -> None:
        """Release it; nothing is synced."""
        ...


class Lock(Protocol):
    """What keeps other processes out."""

    def close(self) -> None:
        """Let them in."""
        ...


class BackgroundSync(Protocol):
    """Syncs files beside an event loop, without a thread. All methods belong to the loop's thread."""

    def begin(self, file: File) -> asyncio.Future[None] | None:
        """Begin `file.datasync()`; the future ends as it does. One at a time. None, with nothing begun, when the system
        cannot do it for this file: call `datasync` in a thread."""
        ...

    def yield_to_loop(self) -> None:
        """Let a sync that is under way have the processor: for a loop with work that can wait."""
        ...

    def close(self) -> None:
        """Give everything back; waits for a sync that is under way."""
        ...


class Files(Protocol):
    """A file system. Paths are absolute or relative to the process, as the caller gave them."""

    def open(self, path: Path, *, create: bool = False, is_private: bool = False) -> File:
        """Open for reading and writing; with `create`, make an empty file when there is none. Without it, a file on a
        file system that has become read-only opens for reading. `is_private`: only its owner may read a file that is
        made."""
        ...

    @property
    def handle_limit(self) -> int:
        """How many files and sockets the process may have open."""
        ...

    def list(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def make_dirs(self, directory: Path, *, sync: bool = True) -> None:
        """Create a directory and its parents, and make their names durable; without `sync` that is left to the caller's
        `sync_dir` of each parent, or `sync_all`."""
        ...

    def remove(self, path: Path) -> None:
        """Delete a file; durable once its directory is synced."""
        ...

    def remove_dir(self, directory: Path) -> None:
        """Remove an empty directory."""
        ...

    def sync_dir(self, directory: Path) -> None:
        """Make creations and removals in this directory durable."""
        ...

    def sync_all(self, directory: Path) -> None:
        """Make everything on the file system of this directory durable, names included: for thousands of files, of
        which each would cost a sync of its own."""
        ...

    def lock(self, directory: Path) -> Lock:
        """Lock a directory for this process; raises BlockingIOError when another process holds it, LinkRefused when
        there are symbolic links in it."""
        ...

    def background_sync(self) -> BackgroundSync | None:
        """For the running event loop; None where the system has no such thing."""
        ...

    def free_bytes(self, directory: Path) -> int:
        """Bytes an unprivileged process may still write on this file system."""
        ...


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    def pread(self, size: int, position: int) -> bytes:
        """See `File.pread`."""
        chunk = os.pread(self._fd, size, position)
        if len(chunk) == size or not chunk:
            return chunk
        parts = [chunk]
        done = len(chunk)
        while done < size and (chunk := os.pread(self._fd, size - done, position + done)):
            parts.append(chunk)
            done += len(chunk)
        return b"".join(parts)

    def pread_cached(self, size: int, position: int) -> Buffer | None:
        """See `File.pread_cached`."""
        if not _RWF_NOWAIT:
            return None
        data = uninitialized(size)
        try:
            count = os.preadv(self._fd, [data], position, _RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # a file system that cannot say
                return None
            raise
        return data if count == size else None

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """See `File.pwritev`."""
        start = position
        for first in range(0, len(buffers), IOV_MAX):
            group = buffers[first : first + IOV_MAX]
            wanted = sum(map(len, group))
            written = os.pwritev(self._fd, group, position)
            position += written
            if written < wanted:
                rest = memoryview(b"".join(group))[written:]
                while rest:
                    written = os.pwrite(self._fd, rest, position)
                    position += written
                    rest = rest[written:]
        return position - start

    def allocate(self, position: int, size: int) -> None:
        """See `File.allocate`."""
        os.posix_fallocate(self._fd, position, size)  # where a file system cannot, the C library writes

    def begin_writeout(self, position: int, size: int) -> None:
        """See `File.begin_writeout`."""
        if _sync_file_range is not None and _sync_file_range(self._fd, position, size, _SYNC_FILE_RANGE_WRITE):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(self.path))

    def datasync(self) -> None:
        """See `File.datasync`."""
        os.fdatasync(self._fd)

    def size(self) -> int:
        """See `File.size`."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        """See `File.close`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        # A file that is removed while others read it is closed by the last of them.
        if self._fd >= 0:
            with suppress(OSError):
                self.close()


class OsLock:
    """Locks of the operating system, which ends them with the process."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def close(self) -> None:
        """See `Lock.close`."""
        while self.fds:
            os.close(self.fds.pop())


def lock_directory(directory: Path, *, create: bool) -> OsLock:
    """Lock a directory, and the file `lock` in it; without `create` that only if it is there.

    The directory's own inode, because the file can be deleted: a second process would make and lock another one. The
    file as well, because versions before this one lock nothing else. Where a file system locks no directories (NFS),
    the file is all. Raises BlockingIOError when another process holds either, LinkRefused when there is a link in it:
    nothing was touched then.
    """
    _refuse_links(directory, _SCANNED_LEVELS)
    lock = OsLock()
    try:
        lock.fds.append(_opened(directory, os.O_RDONLY | os.O_DIRECTORY))
        try:
            fcntl.flock(lock.fds[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise
        try:
            flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
            lock.fds.append(_opened(directory / "lock", flags | os.O_NOFOLLOW, 0o644))
        except FileNotFoundError:
            return lock
        fcntl.flock(lock.fds[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        lock.close()
        raise
    return lock


def _refuse_links(directory: Path, levels: int) -> None:
    """Raises LinkRefused for a symbolic link in a data directory, and so many levels of directories below it."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(".") or (levels == _SCANNED_LEVELS and entry.name in LINKS_ALLOWED):
                continue  # no name of ours begins so: a file system may show its snapshots there
            if entry.is_symlink():
                raise LinkRefused(entry.path)
            if levels and entry.is_dir(follow_symlinks=False):
                with suppress(PermissionError):  # `lost+found`: what cannot be read is not ours
                    _refuse_links(Path(entry.path), levels - 1)


class OsBackgroundSync:
    """`BackgroundSync` by the kernel."""

    def __init__(self, kernel: KernelSync) -> None:
        self._kernel = kernel

    def begin(self, file: File) -> asyncio.Future[None] | None:
        """See `BackgroundSync.begin`."""
        assert isinstance(file, OsFile)
        return self._kernel.begin(file._fd)

    def yield_to_loop(self) -> None:
        """See `BackgroundSync.yield_to_loop`."""
        self._kernel.yield_to_loop()

    def close(self) -> None:
        """See `BackgroundSync.close`."""
        self._kernel.close()


class _Spares:
    """Handles that are kept for files. One for the process, as the limit is the process's."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def fill(self) -> None:
        """Have as many as there should be, or as can be had."""
        with suppress(OSError):
            while len(self._fds) < SPARE_HANDLES:
                self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def give_up(self) -> bool:
        """Close one; False when none is left."""
        try:
            os.close(self._fds.pop())
        except IndexError:
            return False
        return True


_spares = _Spares()


def _opened(path: Path, flags: int, mode: int = 0o777) -> int:
    """A file descriptor, in place of a spare one when there is no other (another thread may take it away again)."""
    while True:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            if error.errno == errno.ELOOP and os.path.islink(path):
                raise LinkRefused(str(path)) from error
            if error.errno == errno.ENOMEM:  # for a handle: nothing of a file has been touched
                raise OSError(errno.ENFILE, error.strerror, error.filename) from error
            if error.errno not in OUT_OF_HANDLES or not _spares.give_up():
                raise
        else:
            _spares.fill()
            return fd


class OsFiles:
    """The real file system."""

    _file: ClassVar[type[OsFile]] = OsFile

    @property
    def handle_limit(self) -> int:
        """See `Files.handle_limit`."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def open(self, path: Path, *, create: bool = False, is_private: bool = False) -> OsFile:
        """See `Files.open`."""
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
            fd = _opened(path, flags, 0o600 if is_private else 0o644)
        except OSError as error:
            if create or error.errno != errno.EROFS:
                raise
            fd = _opened(path, os.O_RDONLY | os.O_NOFOLLOW)
        return self._file(fd, path)

    def list(self, directory: Path) -> list[str]:
        """See `Files.list`."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_dirs(self, directory: Path, *, sync: bool = True) -> None:
        """See `Files.make_dirs`."""
        missing = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for made in reversed(missing):
            made.mkdir(exist_ok=True)
            if sync:
                self.sync_dir(made.parent)

    def remove(self, path: Path) -> None:
        """See `Files.remove`."""
        os.remove(path)

    def remove_dir(self, directory: Path) -> None:
        """See `Files.remove_dir`."""
        os.rmdir(directory)

    def sync_dir(self, directory: Path) -> None:
        """See `Files.sync_dir`."""
        fd = _opened(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, directory: Path) -> None:
        """See `Files.sync_all`."""
        fd = _opened(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _libc.syncfs(fd):  # the os module has no name for it; errors since Linux 5.8
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(directory))
        finally:
            os.close(fd)

    def lock(self, directory: Path) -> OsLock:
        """See `Files.lock`."""
        return lock_directory(directory, create=True)

    def background_sync(self) -> OsBackgroundSync | None:
        """See `Files.background_sync`."""
        kernel = KernelSync.open()
        return None if kernel is None else OsBackgroundSync(kernel)

    def free_bytes(self, directory: Path) -> int:
        """See `Files.free_bytes`."""
        stat = os.statvfs(directory)
        return stat.f_bavail * stat.f_frsize


class CacheFile(OsFile):
    """A file that no other process reads: nothing of it is made durable."""

    def datasync(self) -> None:
        """Nothing is to be durable."""


class CacheFiles(OsFiles):
    """Files of a cache, which goes with the process: each of their syncs would hold up the event loop for nothing."""

    _file = CacheFile

    def sync_dir(self, directory: Path) -> None:
        """Nothing is to be durable."""

    def sync_all(self, directory: Path) -> None:
        """Nothing is to be durable."""

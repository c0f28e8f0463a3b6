"""A simulated disk: power cuts, I/O errors and a full disk, in memory, reproducible from a seed.

`SimDisk` implements `store.files.Files`, so the store, the timer and recovery run on it unchanged.

    disk = SimDisk()
    ... run a workload on it ...
    for seed in range(1000):
        after = disk.crash(random.Random(seed))   # one of the many disks a power cut may leave; `disk` stays as it is
        ... recover on `after` and compare with a model ...

What it models
    M1  Bytes written since the last successful `datasync` of their file survive a power cut in units of 512 bytes,
        each on its own. A unit holds what it held after any number of the un-synced writes that touched it (none
        and all included), or garbage from the first to the last byte that changed: random bytes, or bytes of
        another unit of the same file (a stale sector).
    M2  The size is apart from the data: un-synced growth or truncation may be kept, lost, or stop at a unit between.
    M3  Of the un-synced creations and removals any subset happens. A lost name takes the file with it, even if
        its bytes were synced; a lost removal brings the file back. A removed directory takes its files with it, and so
        does a lost one.
    M4  A failing `datasync` may drop the dirty bytes: reads still see them, the next `datasync` succeeds, and after
        a power cut they are gone. (Linux does that: ext4, XFS and btrfs mark the pages clean.)
    M5  Any operation fails with EIO, ENOSPC, ... at its Nth call, once or for ever. A failing write may have
        stored a prefix.
    M6  A capacity: a write that does not fit stores what fits and raises ENOSPC, as `pwritev` does in the end.
    M7  The power fails *in* the Nth changing call: its effect is un-synced in whatever part, and everything after
        it raises `PowerCut`.
    M8  A killed process (`kill`): the page cache survives, handles and locks do not.
    M9  Rot of bytes at rest (`flip`, `overwrite`).

What it does not model
    - damage to synced bytes that share a unit with un-synced ones, or that are written again unchanged: a log that
      appends within a sector lives on drives that write a sector whole or not at all
    - renames: the seam has none
    - one write seen half done by another thread: each call is atomic
    - allocation: a sparse file is charged its whole size; an unlinked open file is charged nothing
    - units other than 512 bytes; time; the order in which a real elevator works (any subset covers every order)

Thread safe: the store writes from a worker thread while the event loop reads.
"""

from __future__ import annotations

import asyncio
import errno as errno_names
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from store.files import File
from store.types import Buffer

UNIT_BYTES = 512

Operation = Literal[
    "open",
    "create",
    "pread",
    "pwritev",
    "allocate",
    "begin_writeout",
    "datasync",
    "truncate",
    "size",
    "list",
    "remove",
    "remove_dir",
    "make_dirs",
    "sync_dir",
    "lock",
]
CHANGING: frozenset[Operation] = frozenset(
    {"create", "pwritev", "allocate", "datasync", "truncate", "remove", "remove_dir", "make_dirs", "sync_dir"}
)


class PowerCut(OSError):
    """The power has failed; nothing reaches this disk any more."""

    def __init__(self) -> None:
        super().__init__(errno_names.EIO, "power cut (simulated)")


class Call(NamedTuple):
    """One changing call, in the order they came. `error` is the errno it was answered with, or 0."""

    operation: Operation
    path: str
    position: int = 0
    size: int = 0
    error: int = 0


@dataclass(slots=True)
class Fault:
    """Makes an operation fail at its `nth` matching call from now (1 is the next), and with `sticky` ever after."""

    operation: Operation
    errno: int = errno_names.EIO
    nth: int = 1
    sticky: bool = False
    path_part: str = ""  # only calls whose path contains this
    drop_dirty: bool = False  # datasync only: M4
    partial_bytes: int = 0  # pwritev only: stored before the error
    hit_count: int = field(default=0, init=False)
    _call_count: int = field(default=0, init=False)

    def strikes(self, operation: Operation, path: str) -> bool:
        """Count one call; True when it is to fail."""
        if operation != self.operation or self.path_part not in path:
            return False
        self._call_count += 1
        struck = self._call_count == self.nth or (self.sticky and self._call_count > self.nth)
        self.hit_count += struck
        return struck


class Mark(NamedTuple):
    """A moment in the life of a file: how many writes it had got, and how often its size had changed."""

    writes: int
    sizes: int


class _Inode:
    """One file's bytes: `cache` is what reads see, `durable` what is certain, `writes` the way from one to the other.

    `cache` and `durable` are one object until the first write, and `durable` is shared with the disks that
    crashes made from this one; whoever changes it first makes a copy.
    """

    __slots__ = ("cache", "done", "durable", "is_shared", "sizes", "writes")

    def __init__(self, durable: bytearray, *, is_shared: bool = False) -> None:
        self.durable = durable
        self.cache = durable
        self.is_shared = is_shared
        self.writes: list[tuple[int, bytes]] = []  # (position, bytes), since the last datasync
        self.sizes: list[int] = [len(durable)]  # the durable size, then every size since
        self.done = Mark(0, 0)  # writes and sizes that are no longer in these lists

    def write(self, position: int, data: bytes) -> None:
        cache = self._own_cache()
        if position > len(cache):
            cache.extend(bytes(position - len(cache)))
        cache[position : position + len(data)] = data
        self.writes.append((position, data))
        if len(cache) != self.sizes[-1]:
            self.sizes.append(len(cache))

    def resize(self, size: int) -> None:
        cache = self._own_cache()
        if size < len(cache):
            # Old bytes must not come back if the file grows again: to the units, cutting is a write of zeros.
            self.writes.append((size, bytes(len(cache) - size)))
            del cache[size:]
        else:
            cache.extend(bytes(size - len(cache)))
        self.sizes.append(size)

    def mark(self) -> Mark:
        """What a datasync that begins now will cover; what is written until it ends is left to the next."""
        return Mark(self.done.writes + len(self.writes), self.done.sizes + len(self.sizes) - 1)

    def sync(self, until: Mark) -> None:
        """Make durable what there was at a mark."""
        write_count, size_count = self._left(until)
        if self.cache is not self.durable:
            durable = bytearray(self.durable) if self.is_shared else self.durable
            self.is_shared = False
            durable.extend(bytes(max(0, max(self.sizes[: size_count + 1]) - len(durable))))
            for position, data in self.writes[:write_count]:
                durable[position : position + len(data)] = data
            del durable[self.sizes[size_count] :]
            self.durable = durable
        self.drop(until)
        del self.sizes[:size_count]
        self.done = Mark(self.done.writes, self.done.sizes + size_count)

    def drop(self, until: Mark) -> None:
        """Forget what was not synced, and keep showing it (M4)."""
        write_count, _ = self._left(until)
        del self.writes[:write_count]
        self.done = Mark(self.done.writes + write_count, self.done.sizes)

    def _left(self, until: Mark) -> Mark:
        """How many of the writes and sizes in the lists lie before a mark."""
        return Mark(max(0, until.writes - self.done.writes), max(0, until.sizes - self.done.sizes))

    def rot(self, position: int, data: bytes) -> None:
        """Change bytes at rest, behind everybody's back."""
        for image in {id(image): image for image in (self._own_cache(), self._own_durable())}.values():
            image[position : position + len(data)] = data

    def after_power_cut(self, rng: Random) -> _Inode:
        """One of the files a power cut may leave of this one (M1, M2)."""
        if not self.writes and len(self.sizes) == 1:
            self.is_shared = True
            return _Inode(self.durable, is_shared=True)
        image = bytearray(self.durable)
        image.extend(bytes(max(0, max(self.sizes) - len(image))))
        writes_of: dict[int, list[int]] = {}
        for index, (position, data) in enumerate(self.writes):
            for unit in range(position // UNIT_BYTES, -(-(position + len(data)) // UNIT_BYTES)):
                writes_of.setdefault(unit, []).append(index)
        # Files differ in luck, so that "log lost, index kept" comes up as often as an even mix.
        kept = rng.choice((0.0, 0.5, 0.9, 1.0))
        garbage = rng.choice((0.0, 0.0, 0.05, 0.5))
        for unit, indexes in writes_of.items():
            start, end = unit * UNIT_BYTES, min((unit + 1) * UNIT_BYTES, len(image))
            before = bytes(image[start:end])
            is_garbage = rng.random() < garbage
            version = len(indexes) if is_garbage or rng.random() < kept else rng.randrange(len(indexes))
            for index in indexes[:version]:
                position, data = self.writes[index]
                low, high = max(start, position), min(end, position + len(data))
                image[low:high] = data[low - position : high - position]
            if is_garbage:
                low, high = _changed(before, image[start:end])
                image[start + low : start + high] = self._garbage(rng, high - low)
        between = range(-(-min(self.sizes) // UNIT_BYTES) * UNIT_BYTES, max(self.sizes), UNIT_BYTES)
        del image[rng.choice(between) if between and rng.random() < 0.25 else rng.choice(self.sizes) :]
        return _Inode(image)

    def _garbage(self, rng: Random, size: int) -> bytes:
        if rng.random() < 0.5 and len(self.cache) >= size:
            unit = rng.randrange(len(self.cache) // UNIT_BYTES + 1) * UNIT_BYTES
            stale = bytes(self.cache[unit : unit + size])
            return stale + bytes(size - len(stale))
        return rng.randbytes(size)

    def _own_cache(self) -> bytearray:
        if self.cache is self.durable:
            self.cache = bytearray(self.durable)
        return self.cache

    def _own_durable(self) -> bytearray:
        if self.is_shared:
            self.durable = bytearray(self.durable)
            self.is_shared = False
        return self.durable


class SimFile:
    """An open file of a SimDisk. Implements `store.files.File`."""

    def __init__(self, disk: SimDisk, path: Path, name: str, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._process = disk.process
        self._is_open = True
        self.path = path
        self._path = name

    def pread(self, size: int, position: int) -> bytes:
        disk = self._disk
        with disk.mutex:
            # Half of all calls: what `_begin` would find, without calling it.
            if disk.faults or disk.is_dark or not self._is_open or self._process != disk.process:
                self._begin("pread")
            return bytes(self._inode.cache[position : position + size])

    def pread_cached(self, size: int, position: int) -> Buffer | None:
        data = self.pread(size, position)
        return data if len(data) == size else None

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        with self._disk.mutex:
            fault = self._begin("pwritev", position, len(data), defer=True)
            stored = data[: fault.partial_bytes] if isinstance(fault, Fault) else data
            fitting = self._disk.fitting_bytes(self._inode, position, len(stored))
            if fitting:
                self._inode.write(position, stored[:fitting])
            self._disk.finish(fault)
            if fitting < len(data):
                self._disk.calls[-1] = self._disk.calls[-1]._replace(error=errno_names.ENOSPC)
                raise OSError(errno_names.ENOSPC, os.strerror(errno_names.ENOSPC), self._path)
        return len(data)

    def allocate(self, position: int, size: int) -> None:
        # As a write of zeros, of which a power cut may keep any part and spoil any other: more than a file system does.
        with self._disk.mutex:
            fault = self._begin("allocate", position, size, defer=True)
            if fault is None and self._disk.fitting_bytes(self._inode, position, size) < size:
                self._disk.calls[-1] = self._disk.calls[-1]._replace(error=errno_names.ENOSPC)
                raise OSError(errno_names.ENOSPC, os.strerror(errno_names.ENOSPC), self._path)
            if not isinstance(fault, Fault):
                self._inode.write(position, bytes(size))
            self._disk.finish(fault)

    def begin_writeout(self, position: int, size: int) -> None:
        """Nothing: what is written may reach the disk at any time anyway (M1)."""
        with self._disk.mutex:
            self._begin("begin_writeout", position, size)

    def datasync(self) -> None:
        self.datasync_until(self.mark())

    def mark(self) -> Mark:
        """What a datasync that begins now will cover."""
        with self._disk.mutex:
            return self._inode.mark()

    def datasync_until(self, mark: Mark) -> None:
        """The end of a datasync that began at a mark."""
        with self._disk.mutex:
            fault = self._begin("datasync", defer=True)
            if fault is None:
                self._inode.sync(mark)
            elif isinstance(fault, Fault) and fault.drop_dirty:
                self._inode.drop(mark)
            self._disk.finish(fault)

    def size(self) -> int:
        with self._disk.mutex:
            self._begin("size")
            return len(self._inode.cache)

    def truncate(self, size: int) -> None:
        with self._disk.mutex:
            fault = self._begin("truncate", size, defer=True)
            if not isinstance(fault, Fault):
                self._inode.resize(size)
            self._disk.finish(fault)

    def close(self) -> None:
        self._is_open = False
        self._disk.unlock(self)

    def _begin(self, operation: Operation, position: int = 0, size: int = 0, *, defer: bool = False) -> Trouble:
        if not self._is_open or self._process != self._disk.process:
            raise OSError(errno_names.EBADF, os.strerror(errno_names.EBADF), self._path)
        return self._disk.begin(operation, self._path, position, size, defer=defer)


SYNC_TURNS = (1, 20, 2, 20)


class SimBackgroundSync:
    """Syncs that end some turns of the loop after they began (SYNC_TURNS, in turn), and cover what was there when they
    began. Implements `store.files.BackgroundSync`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[None] | None = None
        self._sync_count = 0

    def begin(self, file: File) -> asyncio.Future[None] | None:
        assert self._outcome is None, "one at a time"
        assert isinstance(file, SimFile)
        self._outcome = self._loop.create_future()
        self._loop.call_soon(
            self._sync, file, file.mark(), self._outcome, SYNC_TURNS[self._sync_count % len(SYNC_TURNS)] - 1
        )
        self._sync_count += 1
        return self._outcome

    def yield_to_loop(self) -> None:
        """It has no thread to wait for."""

    def _sync(self, file: SimFile, mark: Mark, outcome: asyncio.Future[None], turns_left: int) -> None:
        if turns_left:
            self._loop.call_soon(self._sync, file, mark, outcome, turns_left - 1)
            return
        self._outcome = None
        if outcome.done():
            return  # the process has ended
        try:
            file.datasync_until(mark)
        except (OSError, PowerCut) as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    def close(self) -> None:
        assert self._outcome is None, "a sync is under way"


Trouble = Fault | PowerCut | None


class SimDisk:
    """A file system in memory. `crash` and `kill` are what the tests are about; the rest is `Files`."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        """May be changed at any time: less than what is used means that nothing grows."""
        self.calls: list[Call] = []
        """Every changing call so far; clear it to look at a part."""
        self.faults: list[Fault] = []
        self.process = 0
        self.mutex = threading.RLock()
        self.change_count = 0
        """Changing calls so far: the space `cut_power_at` chooses from."""
        self._cut_at: int | None = None
        self.is_dark = False
        """The power has failed."""
        self.syncs_beside = False
        """Whether there is a `background_sync`."""
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._name_changes: list[tuple[str, _Inode | None]] = []  # (path, inode created there, or None: removed)
        self._directories: set[str] = {"/", "."}
        self._made_directories: list[str] = []  # without a sync since
        self._removed_directories: list[str] = []  # since their parent was synced
        self._locks: dict[str, SimFile] = {}
        self._listings: dict[str, list[str]] | None = None  # what is in each directory; None: to be found out

    # What can go wrong -----------------------------------------------------------------------------------------

    def crash(self, rng: Random) -> SimDisk:
        """One of the disks that a power cut at this moment may leave. This one is not changed, so many crash
        states can be drawn from one run; faults, locks and the power switch do not carry over."""
        with self.mutex:
            after = SimDisk(capacity_bytes=self.capacity_bytes)
            after.syncs_beside = self.syncs_beside
            names = dict(self._durable_names)
            happens = rng.choice((0.0, 0.5, 1.0))
            for path, inode in self._name_changes:
                if rng.random() < happens:
                    if inode is None:
                        names.pop(path, None)
                    else:
                        names[path] = inode
            for directory in self._removed_directories:
                if rng.random() < happens:
                    names = {path: inode for path, inode in names.items() if not path.startswith(f"{directory}/")}
                else:
                    after._directories.add(directory)
            after._directories |= self._directories
            for directory in self._made_directories:
                if rng.random() >= happens:
                    names = {path: inode for path, inode in names.items() if not path.startswith(f"{directory}/")}
                    after._directories = {name for name in after._directories if not _is_within(name, directory)}
            after._names = {path: inode.after_power_cut(rng) for path, inode in names.items()}
            after._durable_names = dict(after._names)
            return after

    def kill(self) -> None:
        """End the process that uses this disk, as kill -9 does: every handle and lock is dead, the bytes stay."""
        with self.mutex:
            self.process += 1
            self._locks.clear()

    def cut_power_at(self, nth: int) -> None:
        """Let the power fail in the `nth` changing call from now (1 is the next)."""
        self._cut_at = self.change_count + nth

    def inject(self, fault: Fault) -> Fault:
        """Add a fault; returned so that a test can look at `hit_count`."""
        self.faults.append(fault)
        return fault

    def flip(self, path: str | Path, position: int, bit: int) -> None:
        """Flip one bit of a file at rest."""
        inode = self._names[os.fspath(path)]
        inode.rot(position, bytes([inode.cache[position] ^ (1 << bit)]))

    def overwrite(self, path: str | Path, position: int, data: bytes) -> None:
        """Replace bytes of a file at rest."""
        self._names[os.fspath(path)].rot(position, data)

    # What there is ---------------------------------------------------------------------------------------------

    def contents(self, path: str | Path) -> bytes:
        """All bytes of a file as a reader sees them."""
        return bytes(self._names[os.fspath(path)].cache)

    def paths(self) -> list[str]:
        """Every file, sorted."""
        return sorted(self._names)

    def names_in(self, directory: Path) -> list[str]:
        """What `list` says, for tests: works without power and is not logged."""
        if self._listings is None:
            self._listings = {}
            for entry in sorted((*self._names, *self._directories)):
                if (parent := _parent(entry)) != entry:
                    self._listings.setdefault(parent, []).append(entry.rpartition("/")[2])
        return list(self._listings.get(os.fspath(directory), ()))

    def is_clean(self) -> bool:
        """True when a power cut now could not change anything."""
        return not (self._name_changes or self._made_directories) and all(
            not i.writes and len(i.sizes) == 1 for i in self._names.values()
        )

    def used_bytes(self) -> int:
        """Bytes charged against the capacity."""
        return sum(len(inode.cache) for inode in {id(i): i for i in self._names.values()}.values())

    # Files -----------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, is_private: bool = False) -> SimFile:
        name = os.fspath(path)
        with self.mutex:
            self.begin("open", name)
            inode = self._names.get(name)
            if inode is None:
                if not create or _parent(name) not in self._directories:
                    raise FileNotFoundError(errno_names.ENOENT, os.strerror(errno_names.ENOENT), name)
                inode = _Inode(bytearray())
                fault = self.begin("create", name, defer=True)
                if not isinstance(fault, Fault):
                    self._names[name] = inode
                    self._listings = None
                    self._name_changes.append((name, inode))
                self.finish(fault)
            return SimFile(self, path, name, inode)

    def list(self, directory: Path) -> list[str]:
        name = os.fspath(directory)
        with self.mutex:
            self.begin("list", name)
            return self.names_in(directory)

    def make_dirs(self, directory: Path, *, sync: bool = True) -> None:
        with self.mutex:
            missing = [os.fspath(d) for d in (directory, *directory.parents) if os.fspath(d) not in self._directories]
            if missing:
                self.begin("make_dirs", os.fspath(directory))
                self._directories.update(missing)
                self._listings = None
                if not sync:
                    self._made_directories += missing
                self._removed_directories = [name for name in self._removed_directories if name not in missing]

    def remove(self, path: Path) -> None:
        name = os.fspath(path)
        with self.mutex:
            if name not in self._names:
                raise FileNotFoundError(errno_names.ENOENT, os.strerror(errno_names.ENOENT), name)
            fault = self.begin("remove", name, defer=True)
            if not isinstance(fault, Fault):
                del self._names[name]
                self._listings = None
                self._name_changes.append((name, None))
            self.finish(fault)

    def remove_dir(self, directory: Path) -> None:
        name = os.fspath(directory)
        with self.mutex:
            if name not in self._directories:
                raise FileNotFoundError(errno_names.ENOENT, os.strerror(errno_names.ENOENT), name)
            if self.names_in(directory):
                raise OSError(errno_names.ENOTEMPTY, os.strerror(errno_names.ENOTEMPTY), name)
            fault = self.begin("remove_dir", name, defer=True)
            if not isinstance(fault, Fault):
                self._directories.remove(name)
                self._listings = None
                self._removed_directories.append(name)
            self.finish(fault)

    def sync_all(self, directory: Path) -> None:
        # Nothing else is on this disk, and a sync of everything may stop halfway.
        for path in self.paths():
            self.open(Path(path)).datasync()
        for name in sorted(self._directories):
            self.sync_dir(Path(name))

    def background_sync(self) -> SimBackgroundSync | None:
        return SimBackgroundSync() if self.syncs_beside else None

    def sync_dir(self, directory: Path) -> None:
        name = os.fspath(directory)
        with self.mutex:
            self.begin("sync_dir", name)
            if name not in self._directories:
                raise FileNotFoundError(errno_names.ENOENT, os.strerror(errno_names.ENOENT), name)
            self._made_directories = [made for made in self._made_directories if _parent(made) != name]
            gone = {removed for removed in self._removed_directories if _parent(removed) == name}
            self._removed_directories = [removed for removed in self._removed_directories if removed not in gone]
            uncertain = []
            for path, inode in self._name_changes:
                if _parent(path) != name and _parent(path) not in gone:
                    uncertain.append((path, inode))
                elif inode is None:
                    self._durable_names.pop(path, None)
                else:
                    self._durable_names[path] = inode
            self._name_changes = uncertain

    def lock(self, directory: Path) -> SimFile:
        path = directory / "lock"
        name = os.fspath(path)
        with self.mutex:
            self.begin("lock", name)
            if name in self._locks:
                raise BlockingIOError(errno_names.EAGAIN, os.strerror(errno_names.EAGAIN), name)
            locked = self._locks[name] = self.open(path, create=True)
            return locked

    @property
    def handle_limit(self) -> int:
        return 1 << 20

    def free_bytes(self, directory: Path) -> int:
        if self.capacity_bytes is None:
            return 1 << 50
        return max(0, self.capacity_bytes - self.used_bytes())

    # For SimFile -----------------------------------------------------------------------------------------------

    def begin(
        self, operation: Operation, path: str, position: int = 0, size: int = 0, *, defer: bool = False
    ) -> Trouble:
        """Count and log one call, and decide its fate. Raises it, or with `defer` returns it for `finish`."""
        if self.is_dark:
            raise PowerCut
        trouble: Trouble = None
        if self.faults:
            trouble = next((fault for fault in self.faults if fault.strikes(operation, path)), None)
        if operation in CHANGING:
            self.change_count += 1
            if self.change_count == self._cut_at:
                self.is_dark = True
                trouble = PowerCut()
            error = 0 if trouble is None else trouble.errno or 0
            self.calls.append(Call(operation, path, position, size, error))
        if trouble is not None and not defer:
            self.finish(trouble)
        return trouble

    def finish(self, trouble: Trouble) -> None:
        """Raise what `begin` decided on."""
        if isinstance(trouble, Fault):
            raise OSError(trouble.errno, f"{os.strerror(trouble.errno)} (simulated)")
        if trouble is not None:
            raise trouble

    def fitting_bytes(self, inode: _Inode, position: int, size: int) -> int:
        """How many of `size` bytes at `position` the capacity allows."""
        growth = position + size - len(inode.cache)
        if self.capacity_bytes is None or growth <= 0:
            return size
        return max(0, size - max(0, growth - max(0, self.capacity_bytes - self.used_bytes())))

    def unlock(self, file: SimFile) -> None:
        """Give back the lock this file holds, if any."""
        with self.mutex:
            if self._locks.get(os.fspath(file.path)) is file:
                del self._locks[os.fspath(file.path)]


def _changed(before: Buffer, after: Buffer) -> tuple[int, int]:
    """The range from the first to behind the last byte that differs; (0, 0) when none does."""
    difference = int.from_bytes(before, "big") ^ int.from_bytes(after, "big")
    if not difference:
        return 0, 0
    first = len(before) - (difference.bit_length() + 7) // 8
    return first, len(before) - ((difference & -difference).bit_length() - 1) // 8


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


@cache
def _parent(path: str) -> str:
    parent, slash, _ = path.rpartition("/")
    return (parent or "/") if slash else "."

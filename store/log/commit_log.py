"""The commit log: one address space of bytes, cut into files named by the position of their first byte.

    commitlog/00000000000000000000     positions 0 .. file_bytes - 1
    commitlog/00000000001073741824     positions file_bytes .. 2 * file_bytes - 1

A file holds entries (store/log/entry.py) end to end. An entry never spans files: when the rest of a file is too small,
a blank marker fills it and the entry goes to the next file. At least BLANK_BYTES stay free for that marker.

Files grow ahead of the tail (`prepare`), a step at a time, so that a full disk shows before a send has been accepted,
not in the middle of one. What is prepared reads as zeros. Ahead of small groups the zeros are written: an fdatasync of
overwritten bytes moves no metadata, which is half the latency of a small send. Ahead of large groups the space is only
allocated: each fdatasync then has a change of metadata to commit as well, but not every byte is written twice
(docs/decisions/0007-zeros-ahead-of-small-groups-only.md).

Invariants
    L1  bytes in [end_position, prepared_position) are zero
    L2  everything before durable_position has been covered by a successful fdatasync, and so has every directory
        entry leading to it
    L3  after a failed write or fdatasync this object refuses all writes; only recovery can tell what the disk holds

Writing (`write`) belongs to the writer, which makes one call at a time; so does syncing. A sync of what was written may
run beside later writes: it says for which bytes it speaks (`take_unsynced`). `prepare` may run beside both in another
thread; it touches only what lies behind prepared_position. Any number of threads may read what the writer has
published.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from store.errors import Corrupt, DiskFull, OutOfHandles, StoreError, StoreStopped
from store.files import OUT_OF_HANDLES, BackgroundSync, File, Files
from store.limits import ENTRY_BYTES_MAX, KiB, MiB
from store.log.entry import (
    BLANK_BYTES,
    HEADER_BYTES,
    Blank,
    Damage,
    Header,
    decode_entry,
    decode_headers,
    durable_position_of,
    encode_blank,
    entry_length,
)
from store.types import Buffer, Entry

NAME_DIGITS = 20
_ZEROS = bytes(1 * MiB)
_ZERO_BYTES = 4 * MiB  # zeroed and synced at a time: a send's fdatasync may have to wait for all of it
_ZERO_WRITE_BYTES = 128 * KiB  # ... and written at a time: both lock the file, and a send's write waits for one of them
_ALLOCATE_BYTES = 64 * MiB  # allocated and synced at a time
_SCAN_BYTES = 512 * KiB  # what the processor keeps at hand while it checks entries: a quarter faster than 4 MiB
_FIRST_READ_BYTES = 4096


class Span(NamedTuple):
    """A range of the log that holds one entry."""

    position: int
    size: int


class Group(NamedTuple):
    """Entries that lie end to end, up to `end`. When the last one was written, the log was durable up to a position."""

    entries: Sequence[Header | Entry]
    end: int
    durable_position: int


class Unsynced(NamedTuple):
    """What no datasync has covered yet: the files, by their first positions, and where the log ended."""

    starts: Sequence[int]
    end: int


def _out_of_handles(error: OSError) -> OutOfHandles | None:
    """What is to be said of an open that may succeed later; None for any other error."""
    return OutOfHandles(f"no file can be opened now: {error}") if error.errno in OUT_OF_HANDLES else None


class CommitLog:
    """Reads, writes and scans the log's files. Positions are absolute; sizes are bytes."""

    def __init__(
        self, directory: Path, files: Files, *, file_bytes: int, extent_bytes: int, disk_floor_bytes: int
    ) -> None:
        self._directory = directory
        self._files = files
        self._file_bytes = file_bytes
        self._extent_bytes = extent_bytes
        self._disk_floor_bytes = disk_floor_bytes
        self._open_files: dict[int, File] = {}  # by start position, ascending
        self._dirty: set[int] = set()  # starts of files written since the last datasync
        self._unnamed: set[int] = set()  # starts of files whose directory entry is not known to be durable
        self._failed = False
        self._preparing = threading.Condition()
        self._is_preparing = False
        self.first_position = 0
        self.end_position = 0
        self.durable_position = 0
        self.prepared_position = 0

    def open(self) -> None:
        """Open all files. Sets `first_position` and `prepared_position`; recovery finds the rest.

        Raises Corrupt when a file is missing in the middle or has an impossible name or size.
        """
        self._files.make_dirs(self._directory)
        starts = []
        for name in self._files.list(self._directory):
            if len(name) != NAME_DIGITS or not name.isdigit() or int(name) % self._file_bytes:
                raise Corrupt(str(self._directory / name), 0, f"not the name of a {self._file_bytes}-byte log file")
            starts.append(int(name))
        for before, start in pairwise(starts):
            if start != before + self._file_bytes:
                raise Corrupt(self.path_of(before + self._file_bytes), 0, "a log file is missing")
        for start in starts:
            file = self._files.open(self._directory / _name(start))
            self._open_files[start] = file
            if file.size() > self._file_bytes:
                raise Corrupt(self.path_of(start), self._file_bytes, "the file is larger than configured")
        # A file made just before a kill may exist without its name being durable.
        self._files.sync_dir(self._directory)
        self.first_position = starts[0] if starts else 0
        self.prepared_position = starts[-1] + self._open_files[starts[-1]].size() if starts else 0
        self.end_position = self.durable_position = self.first_position

    def close(self) -> None:
        """Close all files. Nothing is flushed."""
        for file in self._open_files.values():
            file.close()
        self._open_files.clear()

    def path_of(self, position: int) -> str:
        """The path of the file that holds a position, for messages."""
        return str(self._directory / _name(self.file_start(position)))

    def file_start(self, position: int) -> int:
        """The first position of the file that holds `position`."""
        return position - position % self._file_bytes

    # ---- writing -------------------------------------------------------------------------------------------------

    def position_for(self, position: int, size: int) -> int:
        """Where an entry of `size` bytes goes when the tail is at `position`: there, or at the next file's start."""
        remaining = self._file_bytes - position % self._file_bytes
        return position if size + BLANK_BYTES <= remaining else position + remaining

    def prepare(self, position: int, *, zero: bool = True, below_floor: bool = False) -> None:
        """Make the log at least reach up to `position`, by writing zeros or by allocating space that reads as zeros;
        durable on return (L1, L2). `below_floor`: take free space that sends are refused.

        Raises DiskFull when there is no room; what is prepared so far stays usable. Raises StoreStopped on any
        other I/O error.
        """
        self._refuse_if_failed()
        while self.prepared_position < position:
            with self._preparing:
                if self._is_preparing:  # in another thread: its next step may be all that is needed here
                    self._preparing.wait()
                    continue
                self._is_preparing = True
            try:
                if self.prepared_position < position:
                    self._prepare_step(zero, below_floor)
            except DiskFull:
                if zero:
                    raise
                zero = True  # there may be room for smaller steps
            finally:
                with self._preparing:
                    self._is_preparing = False
                    self._preparing.notify_all()

    def _prepare_step(self, zero: bool, below_floor: bool) -> None:
        self._refuse_if_failed()
        start = self.file_start(self.prepared_position)
        step = _ZERO_BYTES if zero or below_floor else _ALLOCATE_BYTES
        if below_floor:  # no more than sends leave (StoreConfig.own_reserve_bytes): nothing of it becomes theirs
            step = min(step, self._extent_bytes // 4)
        size = min(step, self._extent_bytes, start + self._file_bytes - self.prepared_position)
        if not below_floor:
            self._check_room(size)
        try:
            self._grow(start, size, zero)
        except OSError as error:
            raise self._fail(error) from error
        self.prepared_position += size

    def _grow(self, start: int, size: int, zero: bool) -> None:
        """Add `size` bytes at prepared_position to the file at `start`; make them durable, and the file's name.

        Only a write or an allocation may find the disk full and be tried again, and only an open may find that nothing
        can be opened. A failed datasync is final whatever its error says: it may have dropped entries that were written
        to this file before.
        """
        path = self._directory / _name(start)
        file = self._open_files.get(start)
        if file is None:
            file = self._open_files[start] = self._opened(path, create=True)
            self._unnamed.add(start)
        try:
            if zero:
                self._write_zeros(file, self.prepared_position - start, size)
            else:
                file.allocate(self.prepared_position - start, size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(_NO_ROOM.format(path=self._directory)) from error
            raise
        # By a handle of its own: the kernel tells each handle of an error once, and `sync` must be told too.
        own = self._opened(path)
        try:
            own.datasync()
        finally:
            own.close()
        if start in self._unnamed:
            try:
                self._files.sync_dir(self._directory)
            except OSError as error:
                raise _out_of_handles(error) or error from None
            self._unnamed.discard(start)

    def _opened(self, path: Path, *, create: bool = False) -> File:
        """Raises OutOfHandles, OSError."""
        try:
            return self._files.open(path, create=create)
        except OSError as error:
            raise _out_of_handles(error) or error from None

    def _write_zeros(self, file: File, position: int, size: int) -> None:
        zeros = memoryview(_ZEROS)
        for at in range(0, size, _ZERO_WRITE_BYTES):
            file.pwritev([zeros[: min(_ZERO_WRITE_BYTES, size - at)]], position + at)

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write entries end to end from `position` on, all within one prepared file; return the new end.

        Moves `end_position`, not `durable_position`. A gap between the old end and `position` (a roll) is filled
        with a blank marker.
        """
        self._refuse_if_failed()
        start = self.file_start(position)
        try:
            if position != self.end_position:
                self._write_blank(position)
            written = self._open_files[start].pwritev(buffers, position - start)
        except OSError as error:
            raise self._fail(error) from error
        self._dirty.add(start)
        self.end_position = position + written
        assert self.end_position <= self.prepared_position
        return self.end_position

    def begin_writeout(self, position: int, size: int) -> None:
        """Have the disk begin with bytes that were written, all within one file, while more are made ready. They are
        not durable before `sync`. A failure is final (L3)."""
        self._refuse_if_failed()
        start = self.file_start(position)
        try:
            self._open_files[start].begin_writeout(position - start, size)
        except OSError as error:
            raise self._fail(error) from error

    def take_unsynced(self) -> Unsynced:
        """What is there to be synced, to be given to `sync` or `sync_beside` at once. Between two writes."""
        unsynced = Unsynced(sorted(self._dirty), self.end_position)
        self._dirty = set()
        return unsynced

    def sync(self, unsynced: Unsynced | None = None) -> None:
        """Make durable what was taken; by default, everything written so far. A failure is final (L3)."""
        self._refuse_if_failed()
        starts, end = self.take_unsynced() if unsynced is None else unsynced
        try:
            for start in starts:
                self._open_files[start].datasync()
        except OSError as error:
            raise self._fail(error) from error
        self.durable_position = end

    async def sync_beside(
        self, unsynced: Unsynced, background: BackgroundSync, meanwhile: Callable[[], None] | None = None
    ) -> bool:
        """As `sync`, without a thread. `meanwhile` is called once it is under way. False, with nothing done: it needs a
        thread."""
        self._refuse_if_failed()
        if len(unsynced.starts) != 1:
            return False
        outcome = background.begin(self._open_files[unsynced.starts[0]])
        if outcome is None:
            return False
        try:
            if meanwhile is not None:
                meanwhile()
            await outcome
        except OSError as error:
            raise self._fail(error) from error
        self.durable_position = unsynced.end
        return True

    def starts(self) -> list[int]:
        """The first positions of all files that hold anything, in order."""
        return [start for start in sorted(self._open_files) if start < self.end_position or start == 0]

    def remove_first(self) -> None:
        """Remove the oldest file; those who are reading it finish. Not for the file that holds the tail."""
        start = self.first_position
        assert start + self._file_bytes <= self.file_start(self.end_position)
        with suppress(FileNotFoundError):  # gone already, when the last try failed behind it
            self._files.remove(self._directory / _name(start))
        self._files.sync_dir(self._directory)
        self.first_position = start + self._file_bytes  # first: a reader in another thread that misses the file asks it
        del self._open_files[start]  # not closed: readers in other threads hold it, the last one lets it go

    def _write_blank(self, next_start: int) -> None:
        size = next_start - self.end_position
        old = self.file_start(self.end_position)
        assert BLANK_BYTES <= size <= self._file_bytes
        assert next_start == old + self._file_bytes
        marker = encode_blank(self.end_position, size, self.durable_position)
        self._open_files[old].pwritev([marker], self.end_position - old)
        self._dirty.add(old)

    def _check_room(self, size: int) -> None:
        if self._disk_floor_bytes and self._files.free_bytes(self._directory) < size + self._disk_floor_bytes:
            raise DiskFull(_NO_ROOM.format(path=self._directory))

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise StoreStopped("the log took an I/O error; restart the server to recover")

    def _fail(self, error: OSError) -> StoreError:
        self._failed = True
        return StoreStopped(f"writing the commit log failed ({error}); restart the server to recover")

    # ---- reading -------------------------------------------------------------------------------------------------

    def read_bytes(self, position: int, size: int) -> bytes:
        """Raw bytes within one file; shorter where the file ends."""
        start = self.file_start(position)
        file = self._open_files.get(start)
        if file is None:
            raise Corrupt(self.path_of(position), position, "there is no such log file")
        try:
            return file.pread(min(size, start + self._file_bytes - position), position - start)
        except OSError as error:
            raise Corrupt(self.path_of(position), position, f"reading failed ({error})") from error

    def read_entry(self, position: int) -> Entry:
        """The entry at a position, checked. Raises Corrupt."""
        view = memoryview(self.read_bytes(position, _FIRST_READ_BYTES))
        size = entry_length(view) if len(view) >= HEADER_BYTES else 0
        if size > len(view):
            view = memoryview(self.read_bytes(position, size))
        return self._entry_or_raise(view, 0, position)

    def cached_entry(self, position: int, *, bytes_max: int) -> Entry | None:
        """As `read_entry`, if it has at most so many bytes and the system holds them all in memory; else None. Raises
        Corrupt."""
        start = self.file_start(position)
        try:
            file = self._open_files[start]
            head = file.pread_cached(HEADER_BYTES, position - start)
            if head is None or not HEADER_BYTES <= (size := entry_length(head)) <= bytes_max:
                return None
            found = file.pread_cached(size, position - start)
        except (KeyError, OSError):
            return None  # `read_entry` says what is wrong
        return None if found is None else self._entry_or_raise(memoryview(found), 0, position)

    def read_spans(self, spans: Sequence[Span]) -> list[Entry]:
        """The entries at the given positions, in order. Neighbours are fetched by one system call. Raises Corrupt."""
        entries: list[Entry] = []
        for run in self._neighbours(spans):
            begin, size = _extent(run)
            entries += self._entries_of(run, self.read_bytes(begin, size))
        return entries

    def cached_spans(self, spans: Sequence[Span]) -> list[Entry] | None:
        """As `read_spans`, if the system holds all of it in memory; else None. Raises Corrupt."""
        entries: list[Entry] = []
        for run in self._neighbours(spans):
            begin, size = _extent(run)
            start = self.file_start(begin)
            try:
                found = self._open_files[start].pread_cached(size, begin - start)
            except (KeyError, OSError):
                return None  # `read_spans` says what is wrong
            if found is None:
                return None
            entries += self._entries_of(run, found)
        return entries

    def _neighbours(self, spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
        """The spans in stretches of those that lie end to end in one file."""
        first = 0
        while first < len(spans):
            last = first
            while (
                last + 1 < len(spans)
                and spans[last + 1].position == spans[last].position + spans[last].size
                and self.file_start(spans[last + 1].position) == self.file_start(spans[first].position)
            ):
                last += 1
            yield spans[first : last + 1]
            first = last + 1

    def _entries_of(self, run: Sequence[Span], data: Buffer) -> list[Entry]:
        view = memoryview(data)
        begin = run[0].position
        return [self._entry_or_raise(view, span.position - begin, span.position) for span in run]

    def scan(self, position: int, *, end: int | None = None) -> Iterator[Entry | Blank | Damage]:
        """Entries and blanks from `position` (an entry boundary) on, across files, up to `end` or the prepared end.

        Stops after yielding the first Damage. Space that was never written is a Damage with `is_zero`; reaching
        the end of the last file yields nothing more.
        """
        for found in self._scan(position, end, by_header=False):
            if isinstance(found, Group):
                yield from found.entries  # type: ignore[misc]
            else:
                yield found

    def scan_groups(self, position: int, *, end: int | None = None) -> Iterator[Group | Blank | Damage]:
        """As `scan`, with entries in groups, and the headers only of those without an extension:
        three times as fast."""
        return self._scan(position, end, by_header=True)

    def _scan(self, position: int, end: int | None, *, by_header: bool) -> Iterator[Group | Blank | Damage]:
        limit = self.prepared_position if end is None else end
        window = _SCAN_BYTES
        while position < limit:
            file_end = self.file_start(position) + self._file_bytes
            view = memoryview(self.read_bytes(position, window))
            is_rest_of_file = len(view) < window
            window = _SCAN_BYTES
            at = 0
            while position + at < min(limit, file_end):
                if by_header and (headers := decode_headers(view, at, position + at)):
                    last = headers[-1]
                    durable_position = durable_position_of(view, last.position - position)
                    at = last.position + last.size - position
                    yield Group(headers, position + at, durable_position)
                    continue
                needed = HEADER_BYTES
                if len(view) - at >= HEADER_BYTES:
                    needed = max(HEADER_BYTES, min(entry_length(view, at), ENTRY_BYTES_MAX))
                if at + needed > len(view) and not is_rest_of_file:
                    window = max(_SCAN_BYTES, needed)
                    break  # read on from this entry's start
                found = decode_entry(view, at, position + at)
                if isinstance(found, Blank) and position + at + found.size != file_end:
                    found = Damage(position + at, "a blank marker does not reach the end of the file", False)
                if isinstance(found, Damage):
                    yield found
                    return
                durable_position = durable_position_of(view, at)
                at += found.size
                yield Group([found], position + at, durable_position) if isinstance(found, Entry) else found
            position += at

    def _entry_or_raise(self, view: memoryview, at: int, position: int) -> Entry:
        found = decode_entry(view, at, position)
        if isinstance(found, Entry):
            return found
        reason = found.reason if isinstance(found, Damage) else "a blank marker where an entry should be"
        raise Corrupt(self.path_of(position), position, reason)

    # ---- recovery ------------------------------------------------------------------------------------------------

    def accept_tail(self, durable_from: int, end: int) -> None:
        """After a scan found that the log ends at `end`: make it so, and durable (L1, L2).

        Bytes in [durable_from, end) were perhaps never synced, or their fdatasync failed and the page cache only
        pretends: they are written again and synced. Everything behind `end` is zeroed.
        """
        try:
            position = durable_from
            while position < end:
                start = self.file_start(position)
                chunk = self.read_bytes(position, min(_SCAN_BYTES, end - position))
                self._open_files[start].pwritev([chunk], position - start)
                self._dirty.add(start)
                position += len(chunk)
            for chunk_at, size in self.nonzero_chunks(end):
                start = self.file_start(chunk_at)
                self._open_files[start].pwritev([bytes(size)], chunk_at - start)
                self._dirty.add(start)
            self.end_position = end
            self.sync()
        except OSError as error:
            raise self._fail(error) from error

    def nonzero_chunks(self, position: int) -> Iterator[Span]:
        """Ranges behind `position` that hold anything but zeros, in pieces."""
        while position < self.prepared_position:
            size = min(len(_ZEROS), self.prepared_position - position)
            chunk = self.read_bytes(position, size)
            if not chunk:
                position = self.file_start(position) + self._file_bytes
                continue
            if chunk != _ZEROS[: len(chunk)]:
                yield Span(position, len(chunk))
            position += len(chunk)


_NO_ROOM = "no room for the commit log in {path}; free some space or shorten retention, sends resume by themselves"


def _extent(run: Sequence[Span]) -> tuple[int, int]:
    """The position and the size of neighbours."""
    begin = run[0].position
    return begin, run[-1].position + run[-1].size - begin


def _name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}}"

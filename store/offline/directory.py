"""Reading a data directory as it lies on disk, damaged or not, without changing a byte: what the offline tools share.

`pieces` takes the commit log apart from its first byte to its last. Unlike recovery it goes on behind damage:

    Found    a valid entry, with the durable position it carries
    Blank    a marker that the rest of its file is unused
    Hole     bytes that are neither, up to the next valid entry of the file, or to the file's end
    Stain    bytes that must be zero and are not, but hide nothing: padding, the rest behind a blank marker
    Unused   zeros up to the end of the file: prepared, not yet written

`judge` says of each hole what recovery would (store/log/recovery.py): rot, or the torn tail of a crash, which ends the
log.

Every byte of the log belongs to exactly one piece (a Stain lies inside its entry or blank). Memory is bounded by a
window of some megabytes, whatever the size of the log.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from store.errors import StoreError, StoreLocked
from store.files import lock_directory
from store.limits import ENTRY_BYTES_MAX, MiB
from store.log.entry import ALIGNMENT, HEADER_BYTES, Blank, Damage, decode_entry, durable_position_of, entry_length
from store.types import Entry

NAME_DIGITS = 20
WINDOW_BYTES = 8 * MiB
_ZEROS = bytes(1 * MiB)
_WORD = struct.Struct(">q")
_LENGTH = struct.Struct(">I")
_OWN_POSITION_AT = 16


class NotAStore(StoreError):
    """The path is not a data directory."""


class Found(NamedTuple):
    """One valid entry. Everything before `durable_position` had been synced when it was written."""

    entry: Entry
    durable_position: int


class LogFile(NamedTuple):
    """One file of the log on disk: positions [start, start + size)."""

    path: Path
    start: int
    size: int

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.start + self.size


class Hole(NamedTuple):
    """Bytes that are no entry and are not just unused."""

    position: int
    size: int
    reason: str


class Stain(NamedTuple):
    """Bytes that must be zero and are not; no record is touched."""

    position: int
    size: int
    reason: str


class Unused(NamedTuple):
    """Zeros up to the end of the file."""

    position: int
    size: int


Piece = Found | Blank | Hole | Stain | Unused


class Verdict(Enum):
    """What a piece means for the log."""

    GOOD = "good"
    ROT = "rot"  # bytes that had been durable are gone
    TORN = "torn"  # what a crash left of writes that were not acknowledged; the log ends before it


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep servers out while a tool reads. Creates nothing.

    Raises StoreLocked when a server holds it, NotAStore when there is no such directory.
    """
    if not root.is_dir():
        raise NotAStore(f"{root} is not a directory")
    if not (root / "commitlog").is_dir():
        raise NotAStore(f"{root} has no commitlog/: it is not a data directory")
    try:
        lock = lock_directory(root, create=False)
    except BlockingIOError as error:
        raise StoreLocked(f"{root} is in use by a server; stop it, or work on a copy of the directory") from error
    try:
        yield
    finally:
        lock.close()


def log_files(root: Path) -> tuple[list[LogFile], list[Path]]:
    """The files of the log in order, and what else lies in their directory."""
    found: list[LogFile] = []
    strangers: list[Path] = []
    for path in sorted((root / "commitlog").iterdir()):
        if len(path.name) == NAME_DIGITS and path.name.isdecimal() and path.is_file():
            found.append(LogFile(path, int(path.name), path.stat().st_size))
        else:
            strangers.append(path)
    return found, strangers


def judge(files: Sequence[LogFile], durable_position: int) -> Iterator[tuple[LogFile, Piece, Verdict]]:
    """Every piece of the log up to its end, with its verdict. What lies before `durable_position` (the checkpoint) had
    been durable; what lies behind it only if an entry behind it says so. Missing files are holes, too."""
    for number, file in enumerate(files):
        if number and (gap := file.start - files[number - 1].end):
            before = files[number - 1]
            yield before, Hole(before.end, gap, f"the log goes on at {file.start} only"), Verdict.ROT
        for piece in pieces(file):
            if not isinstance(piece, Hole | Unused):
                yield file, piece, Verdict.GOOD
            elif _had_been_durable(files[number:], piece, durable_position):
                reason = piece.reason if isinstance(piece, Hole) else "zeros where an entry should be"
                yield file, Hole(piece.position, piece.size, reason), Verdict.ROT
            else:
                yield file, piece, Verdict.TORN if isinstance(piece, Hole) else Verdict.GOOD
                if isinstance(piece, Hole) or any(_is_used(later) for later in files[number + 1 :]):
                    return


def _had_been_durable(files: Sequence[LogFile], piece: Hole | Unused, durable_position: int) -> bool:
    if piece.position < durable_position:
        return True
    for file in files:
        begin = max(file.start, piece.position + piece.size)
        if begin < file.end:
            for behind in pieces(file, from_position=begin):
                if isinstance(behind, Found) and behind.durable_position > piece.position:
                    return True
    return False


def _is_used(file: LogFile) -> bool:
    return not all(isinstance(piece, Unused) for piece in pieces(file))


def pieces(file: LogFile, *, from_position: int | None = None) -> Iterator[Piece]:
    """Take one log file apart, from a piece's beginning on. Entries are views that live until the next step."""
    position = file.start if from_position is None else from_position
    window = WINDOW_BYTES
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while position < file.end:
            view = memoryview(_read(fd, window, position - file.start))
            if not view:
                return  # cut while we read
            is_last = position + len(view) >= file.end
            window = WINDOW_BYTES
            at = 0
            while at < len(view):
                needed = HEADER_BYTES
                if len(view) - at >= HEADER_BYTES:
                    needed = min(max(HEADER_BYTES, entry_length(view, at)), ENTRY_BYTES_MAX)
                if at + needed > len(view) and not is_last:
                    window = max(window, needed)  # an entry may be larger
                    break  # read on from here
                found = decode_entry(view, at, position + at)
                if isinstance(found, Entry):
                    length = _LENGTH.unpack_from(view, at)[0]
                    yield Found(found, durable_position_of(view, at))
                    if length != found.size and any(view[at + length : at + found.size]):
                        yield Stain(position + at + length, found.size - length, "padding is not zero")
                    at += found.size
                    continue
                if isinstance(found, Blank) and found.position + found.size == file.end:
                    yield found
                    yield from _stains(fd, file, found.position + HEADER_BYTES)
                    return
                following = _next_entry(fd, file, found)
                is_zero = isinstance(found, Damage) and found.is_zero
                if is_zero and following == file.end and first_nonzero(fd, found.position - file.start) is None:
                    yield Unused(found.position, file.end - found.position)
                    return
                yield Hole(found.position, following - found.position, _reason(found))
                at = following - position
                break
            position += at
    finally:
        os.close(fd)


def _reason(found: Blank | Damage) -> str:
    if isinstance(found, Blank):
        return "a blank marker does not reach the end of the file"
    return "zeros where an entry should be" if found.is_zero else found.reason


def _next_entry(fd: int, file: LogFile, behind: Blank | Damage) -> int:
    """Where the next valid entry or blank marker begins behind something that is none; the file's end without one."""
    position = behind.position + ALIGNMENT
    while (nonzero := first_nonzero(fd, position - file.start)) is not None:
        position = max(position, file.start + (nonzero & -ALIGNMENT))  # a length is never 0
        view = memoryview(_read(fd, WINDOW_BYTES + ENTRY_BYTES_MAX, position - file.start))
        searched = min(WINDOW_BYTES, len(view))
        words_end = min(searched + _OWN_POSITION_AT, len(view)) & -ALIGNMENT
        for number, (word,) in enumerate(_WORD.iter_unpack(view[:words_end]), -_OWN_POSITION_AT // ALIGNMENT):
            at = number * ALIGNMENT
            if word != position + at or at < 0:
                continue
            found = decode_entry(view, at, word)
            if isinstance(found, Entry) or (isinstance(found, Blank) and word + found.size == file.end):
                return int(word)
        position += searched
    return file.end


def _stains(fd: int, file: LogFile, position: int) -> Iterator[Stain]:
    nonzero = first_nonzero(fd, position - file.start)
    if nonzero is not None:
        at = file.start + nonzero
        yield Stain(at, file.end - at, "the unused rest of the file is not zero")


def first_nonzero(fd: int, at: int) -> int | None:
    """The first byte from `at` of a file on that is not zero; None when there is none."""
    while chunk := _read(fd, len(_ZEROS), at):
        if chunk != _ZEROS[: len(chunk)]:
            return at + len(chunk) - len(chunk.lstrip(b"\0"))
        at += len(chunk)
    return None


def _read(fd: int, size: int, at: int) -> bytes:
    parts = []
    while size and (part := os.pread(fd, size, at)):
        parts.append(part)
        size -= len(part)
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

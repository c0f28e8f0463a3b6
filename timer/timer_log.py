"""The timer log: one 52-byte unit for each schedule scheduled in the wheel, linked backwards within its slot.

File format: files of a fixed number of units, named by the position of their first byte (20 digits), so unit i of
the log is at position 52 * i and no unit spans files. Unit, big-endian:

    0      4          12      16       24        32      36       40      44       48      52
    +------+----------+-------+--------+---------+-------+--------+-------+--------+-------+
    | size | previous | magic | due ms | entry   | entry | record | topic | slot   | crc   |
    | i32  | i64      | i32   | i64    | pos i64 | size  | index  | id    | time s | u32   |
    |      |          |       |        |         | i32   | i32    | i32   | u32    |       |
    +------+----------+-------+--------+---------+-------+--------+-------+--------+-------+

    size      52; 0 never parses
    previous  position of the unit that scheduled the same slot before this one; -1 = none
    magic     bits: 1 fires at its due time; 2 rolls: its slot is an intermediate one; with 4 it was taken out of its
              slot by a change (cancelled, or with 8 fired now, with 16 moved). 4, 8 and 16 are set later, in place
    entry     the `__timer` entry (commit-log position and size) that holds the record, and the record's index in it
    topic id  where the record is to go
    slot      the wheel slot it is in; the due time's second, a later one when that had passed, or the roll's
    crc       CRC-32C of the 48 bytes before it, seeded with the unit's own position: a misplaced unit does not parse

Invariants
    L1  Units stand in the order of their entries in the commit log (entry position, record index).
    L2  What is appended is readable at once, and durable after `write` of a range that covers it. The checkpoint's
        log end never passes what is durable; a restart cuts the log there, so nothing torn is ever read.
    L3  A mark (a later magic) is seen by every read at once, and durable with the next `write`. A power cut may tear
        the few bytes of one: the unit then fails its check, and recovery builds the timer's files again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from store.errors import Corrupt
from store.files import File, Files

UNIT_BYTES = 52
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
MAGIC_FIRED = 8
MAGIC_MOVED = 16

_UNIT = struct.Struct(">iqiqqiiiII")
_FACTS = struct.Struct(">iqiqqiiiI")  # the unit without its CRC
_CRC = struct.Struct(">I")
assert _UNIT.size == UNIT_BYTES
assert _FACTS.size + _CRC.size == UNIT_BYTES

_BLOCK_UNITS = 78  # read at once when walking backwards: what fits a 4 KiB page
_SCAN_UNITS = 16_384  # read at once when scanning: 0.8 MiB
_DUE = struct.Struct(">q")
DUE_AT, TOPIC_ID_AT = 16, 40
"""Where the fields begin in a unit."""

_SEED_MASK = 0xFFFF_FFFF
_NAME_DIGITS = 20
_new = tuple.__new__  # a NamedTuple's own constructor takes three times as long


class Unit(NamedTuple):
    """One unit as stored, without the fields that only guard it."""

    previous: int
    magic: int
    due_ms: int
    entry_position: int
    entry_size: int
    record_index: int
    topic_id: int
    slot_s: int


def unpack_units(chunk: bytes) -> Iterator[tuple[int, int, int, int, int, int, int, int, int, int]]:
    """The raw fields of units laid end to end, size and CRC included; nothing is checked."""
    return _UNIT.iter_unpack(chunk)


class Unwritten(NamedTuple):
    """What waits for `write`: the units from `position` on, and marked units before it."""

    position: int
    units: bytearray
    marks: dict[int, bytes]


class TimerLog:
    """The files of one timer log, and the units not yet written to them. One owner appends and reads.

    `write` alone may run in another thread meanwhile; `written` tells the owner that it succeeded.
    """

    def __init__(self, files: Files, directory: Path, *, file_units: int) -> None:
        assert file_units > 0
        self._files = files
        self._directory = directory
        self._file_bytes = file_units * UNIT_BYTES
        self._handles: dict[int, File] = {}
        self._tail = bytearray()  # units from _tail_start on, in no file yet
        self._tail_start = 0
        self._marks: dict[int, bytes] = {}  # marked units that no `write` has been given yet
        self._marking: dict[int, bytes] = {}  # ... and those that one was given; it is not changed meanwhile
        self._block = b""  # the last read of a file, from _block_start on
        self._block_start = 0
        self.start = 0
        """Position of the oldest unit still there (or of the end)."""

    def open(self, end: int) -> None:
        """Open the log as of a checkpoint. Bytes after `end` are void: never read, and written over in time (L2).
        Raises Corrupt when bytes before it are missing."""
        self._files.make_dirs(self._directory)
        starts = []
        for name in self._files.list(self._directory):
            if len(name) != _NAME_DIGITS or not name.isdecimal():
                continue
            start = int(name)
            if start >= end:
                self._files.remove(self._directory / name)
            else:
                starts.append(start)
        self._tail_start = end
        self.start = min(starts, default=end)
        if starts != list(range(self.start, end, self._file_bytes)) or (not starts and end % self._file_bytes):
            raise Corrupt(str(self._directory), end, f"the timer log lacks files before its end; it has {starts}")
        for start in starts:
            file = self._handles[start] = self._files.open(self._path(start))
            wanted = min(end - start, self._file_bytes)
            if file.size() < wanted:
                raise Corrupt(str(self._path(start)), file.size(), f"the file has less than {wanted} bytes")

    def cut(self, position: int) -> None:
        """Forget the units from `position` on. Only before the first `append`."""
        assert not self._tail
        self._tail_start = position
        self._block = b""

    def reset(self) -> None:
        """Remove every file and begin again at position 0."""
        self._files.make_dirs(self._directory)
        self.close()
        self._handles.clear()
        for name in self._files.list(self._directory):
            self._files.remove(self._directory / name)
        self._tail.clear()
        self._marks, self._marking = {}, {}
        self._block = b""
        self._tail_start = self._block_start = self.start = 0

    @property
    def end(self) -> int:
        """The position the next unit gets."""
        return self._tail_start + len(self._tail)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of units and marks that wait for `write`."""
        return len(self._tail) + UNIT_BYTES * (len(self._marks) + len(self._marking))

    def append(
        self, previous: int, magic: int, due_ms: int, entry_position: int, entry_size: int, record_index: int,
        topic_id: int, slot_s: int,
    ) -> None:  # fmt: skip
        """Append one unit at `end`. Not durable."""
        tail = self._tail
        facts = _FACTS.pack(
            UNIT_BYTES, previous, magic, due_ms, entry_position, entry_size, record_index, topic_id, slot_s
        )
        tail += facts
        tail += _CRC.pack(crc32c(facts, self._tail_start + len(tail) - _FACTS.size & _SEED_MASK))

    def read(self, position: int) -> Unit:
        """The unit at `position`. Raises Corrupt when there is none."""
        if self._marks or self._marking:
            for marks in (self._marks, self._marking):
                if (marked := marks.get(position)) is not None:
                    return self._parse(marked, 0, position)
        if position >= self._tail_start:
            return self._parse(self._tail, position - self._tail_start, position)
        at = position - self._block_start
        if not 0 <= at <= len(self._block) - UNIT_BYTES:
            self._read_block(position)
            at = position - self._block_start
        return self._parse(self._block, at, position)

    def walk(self, position: int, count_max: int) -> tuple[list[Unit], int]:
        """The chain from `position` on, newest first, at most `count_max` units; and where it goes on, or -1. Raises
        Corrupt."""
        units: list[Unit] = []
        while position >= 0 and len(units) < count_max:
            unit = self.read(position)
            units.append(unit)
            position = unit.previous
        return units, position

    def scan(self) -> Iterator[tuple[int, Unit]]:
        """All written units with their positions, oldest first. Raises Corrupt where one fails its check."""
        position = self.start
        while position < self._tail_start:
            start = position - position % self._file_bytes
            size = min(_SCAN_UNITS * UNIT_BYTES, start + self._file_bytes - position, self._tail_start - position)
            chunk = self._handles[start].pread(size, position - start)
            for at in range(0, size, UNIT_BYTES):
                yield position + at, self._parse(chunk, at, position + at)
            position += size

    def mark(self, position: int, magic: int) -> None:
        """Replace the magic of the unit at `position`. Not durable (L3). Raises Corrupt when there is no unit."""
        unit = self.read(position)
        facts = _FACTS.pack(
            UNIT_BYTES, unit.previous, magic, unit.due_ms, unit.entry_position, unit.entry_size, unit.record_index,
            unit.topic_id, unit.slot_s,
        )  # fmt: skip
        self._marks[position] = facts + _CRC.pack(crc32c(facts, position & _SEED_MASK))

    def is_marked(self, position: int) -> bool:
        """Whether the unit at `position` has a mark that is not written yet."""
        return position in self._marks or position in self._marking

    def find(self, entry_position: int, record_index: int) -> int | None:
        """The position of the unit of one accepted record, by bisection (L1); None when it has none."""
        wanted = entry_position, record_index
        low, high = self.start // UNIT_BYTES, self.end // UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            unit = self.read(middle * UNIT_BYTES)
            found = unit.entry_position, unit.record_index
            if found == wanted:
                return middle * UNIT_BYTES
            if found < wanted:
                low = middle + 1
            else:
                high = middle
        return None

    def chunks(self, position: int, *, backwards: bool = False) -> Iterator[tuple[int, bytes]]:
        """All units from `position` on as (position, bytes) of many units each, oldest or newest first. Marks that are
        not written yet do not show, and nothing is checked: read what is found with `read`."""
        parts = list(self._parts(max(position, self.start)))
        for start, size in reversed(parts) if backwards else parts:
            if start >= self._tail_start:
                yield start, bytes(self._tail[start - self._tail_start : start - self._tail_start + size])
                continue
            file_start = start - start % self._file_bytes
            file = self._handles.get(file_start)
            if file is not None:  # else it expired meanwhile
                yield start, file.pread(size, start - file_start)

    def search_due(self, due_ms: int) -> Iterator[tuple[int, Unit] | None]:
        """All units of one due millisecond, newest first. None in between, now and then, for the caller's event loop.

        Looks at every byte of the log, at the speed of a byte search: about 0.1 s for a million units.
        """
        wanted = _DUE.pack(due_ms)
        for position, chunk in self.chunks(self.start, backwards=True):
            at = chunk.rfind(wanted)
            while at >= 0:
                if at % UNIT_BYTES == DUE_AT:
                    yield position + at - DUE_AT, self.read(position + at - DUE_AT)
                at = chunk.rfind(wanted, 0, at + len(wanted) - 1)
            yield None

    def _parts(self, position: int) -> Iterator[tuple[int, int]]:
        """Where chunks from `position` on begin, and their sizes; none spans files or the written end."""
        while position < self.end:
            end = self._tail_start if position < self._tail_start else self.end
            size = min(_SCAN_UNITS * UNIT_BYTES, self._file_bytes - position % self._file_bytes, end - position)
            yield position, size
            position += size

    def unwritten(self) -> Unwritten:
        """What to give to `write`. It does not look at each mark: there may be a hundred thousand."""
        self._marking = {**self._marking, **self._marks} if self._marking else self._marks  # the last write failed
        self._marks = {}
        return Unwritten(self._tail_start, bytearray(self._tail), self._marking)

    def write(self, unwritten: Unwritten) -> None:
        """Write units at the log's written end, and marks in place. Durable on return; OSError when it is not."""
        position, units, marks = unwritten
        for at, unit in marks.items():
            if at >= position:
                units[at - position : at - position + UNIT_BYTES] = unit
        view = memoryview(units)
        while view:
            start = position - position % self._file_bytes
            part = view[: start + self._file_bytes - position]
            file = self._handles.get(start)
            if file is None:
                file = self._made(start)
            file.pwritev([part], position - start)
            file.datasync()
            position += len(part)
            view = view[len(part) :]
        marked: set[int] = set()
        for at, run in _runs(marks, unwritten.position, self._file_bytes):  # what is behind was just written
            start = at - at % self._file_bytes
            if start in self._handles:  # else it expired
                self._handles[start].pwritev(run, at - start)
                marked.add(start)
        for start in marked:
            self._handles[start].datasync()

    def _made(self, start: int) -> File:
        """A new file, whose name is certain before it is known: a write that fails now is tried again without this."""
        file = self._files.open(self._path(start), create=True)
        try:
            self._files.sync_dir(self._directory)
        except BaseException:
            file.close()
            raise
        self._handles[start] = file
        return file

    def written(self, unwritten: Unwritten) -> None:
        """Note that `write` of this succeeded. What it holds is the caller's."""
        assert unwritten.position == self._tail_start
        assert unwritten.marks is self._marking
        del self._tail[: len(unwritten.units)]
        self._tail_start += len(unwritten.units)
        self._marking = {}
        if unwritten.marks:
            self._block = b""  # it may hold a unit as it was

    def expire(self, position: int) -> int:
        """Remove the files that end at or before `position`, except the last one; return how many."""
        removed = 0
        while self.start + self._file_bytes <= min(position, self._tail_start - 1):
            self._handles.pop(self.start).close()
            self._files.remove(self._path(self.start))
            self._files.sync_dir(self._directory)  # one by one: a power cut must not leave a hole
            self.start += self._file_bytes
            removed += 1
            self._block = b""
        return removed

    def close(self) -> None:
        """Release its files."""
        for file in self._handles.values():
            file.close()

    def _path(self, start: int) -> Path:
        return self._directory / f"{start:0{_NAME_DIGITS}d}"

    def _read_block(self, position: int) -> None:
        """Read the block that ends with the unit at `position`, as a walk goes backwards from there; or, right behind
        the last block, the one that begins with it: a reader goes on and on."""
        start = position - position % self._file_bytes
        file = self._handles.get(start)
        if position < self.start or file is None:
            raise Corrupt(str(self._directory), position, f"no timer-log unit there; the log begins at {self.start}")
        if self._block and position == self._block_start + len(self._block):
            block_start = position
            stop = min(start + self._file_bytes, self._tail_start, position + _BLOCK_UNITS * UNIT_BYTES)
        else:
            block_start = max(start, position - (_BLOCK_UNITS - 1) * UNIT_BYTES)
            stop = position + UNIT_BYTES
        self._block = file.pread(stop - block_start, block_start - start)
        self._block_start = block_start

    def _parse(self, buffer: bytes | bytearray, at: int, position: int) -> Unit:
        if position % UNIT_BYTES == 0 and at + UNIT_BYTES <= len(buffer):
            size, previous, magic, due_ms, entry, entry_size, record_index, topic_id, slot_s, crc = _UNIT.unpack_from(
                buffer, at
            )
            if size == UNIT_BYTES and crc == crc32c(buffer[at : at + _FACTS.size], position & _SEED_MASK):
                return _new(Unit, (previous, magic, due_ms, entry, entry_size, record_index, topic_id, slot_s))
        raise Corrupt(
            str(self._path(position - position % self._file_bytes)), position, "a timer-log unit fails its check"
        )


def _runs(marks: Mapping[int, bytes], end: int, file_bytes: int) -> Iterator[tuple[int, list[bytes]]]:
    """Marked units before `end`, those that stand side by side in a file together: each run by its position."""
    first, run = 0, list[bytes]()
    for at in sorted(marks):
        if at >= end:
            break
        if run and (at != first + len(run) * UNIT_BYTES or at % file_bytes == 0):
            yield first, run
            run = []
        if not run:
            first = at
        run.append(marks[at])
    if run:
        yield first, run

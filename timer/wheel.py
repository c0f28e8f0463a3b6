"""The wheel: for each second, where in the timer log the chain of its schedules begins and ends.

How it turns, tick by tick. Let the wheel have 6 slots instead of 1,209,600, and two laps of 3. `add(slot, position)`
adds a timer-log unit into the slot of an epoch second and answers what was there last (the unit's `prev`):

    add(100, 0)   -> -1    index 100 % 6 = 4 held nothing   slot 4: time 100, first   0, last   0, count 1
    add(101, 52)  -> -1    index 5                          slot 5: time 101, first  52, last  52, count 1
    add(100, 104) ->  0    index 4 again, same second       slot 4: time 100, first   0, last 104, count 2
    at(100)                 = last 104, count 2: walk 104 -> 0 -> -1, newest first
    at(106)                 index 106 % 6 = 4, but the stored time is 100: empty. Nothing is swept between laps
    add(106, 156) -> -1    second 100 is long over          slot 4: time 106, first 156, last 156, count 1
    at(100)                 the stored time is 106: empty now

Why two laps: the read mark may trail the clock by up to one lap while writes go up to one lap ahead of it, so the
seconds in use span less than two laps and no two of them share an index.

File format: 2 x 604,800 slots of 32 bytes, no header, 38,707,200 bytes (sparse where nothing ever scheduled). Slot of
second s at byte (s % 1,209,600) * 32. Big-endian:

    0         8         16        24       28      32
    +---------+---------+---------+--------+-------+
    | time s  | first   | last    | count  | magic |    first, last: timer-log positions, oldest and newest unit
    | i64     | i64     | i64     | i32    | u32   |    magic: 0x6D715731 XOR the CRC-32C of the 28 bytes before it
    +---------+---------+---------+--------+-------+

Invariants
    W1  A slot of zeros was never used and reads as empty; any other slot must pass its magic when it is loaded.
        Second 0 of the epoch is never used.
    W2  The file holds no fact of its own: the timer log names the slot of every unit, and the wheel is rebuilt from
        it after a crash. So the file is written only at a clean stop, page by page, dirty pages only.
    W3  A survey may run in a thread while the owner goes on: it sees every unit that was there when it began. One that
        is added meanwhile it may see or not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from store.errors import Corrupt
from store.files import IOV_MAX, Files
from timer.schedule import LAP_SLOTS

SLOTS = 2 * LAP_SLOTS
SLOT_BYTES = 32
PAGE_BYTES = 4096
WHEEL_BYTES = SLOTS * SLOT_BYTES
NOWHERE = -1
"""The position before the first unit of a chain."""

_SLOT = struct.Struct(">qqqiI")
_FACTS = struct.Struct(">qqqi")  # the slot without its magic
_MAGIC = 0x6D715731
_PAGE_SLOTS = PAGE_BYTES // SLOT_BYTES
_PAGES = WHEEL_BYTES // PAGE_BYTES
_SURVEY_BYTES = 256 * PAGE_BYTES
_EMPTY_SLOT = bytes(SLOT_BYTES)
_EMPTY_PAGE = bytes(PAGE_BYTES)

assert _SLOT.size == SLOT_BYTES
assert _FACTS.size == SLOT_BYTES - 4
assert _PAGES * PAGE_BYTES == WHEEL_BYTES


class Chain(NamedTuple):
    """What is in one second: timer-log positions of the oldest and newest unit, and how many of them wait."""

    first: int
    last: int
    unit_count: int


EMPTY_CHAIN = Chain(NOWHERE, NOWHERE, 0)


class Survey(NamedTuple):
    """What all seconds from a mark on hold: units that wait, and the oldest timer-log position there (or NOWHERE)."""

    unit_count: int
    oldest: int


class Wheel:
    """The wheel file, its pages loaded on demand. One owner; nothing is written before `flush`."""

    def __init__(self, files: Files, path: Path) -> None:
        self._path = path
        self._file = files.open(path, create=True)
        self._pages: dict[int, bytearray] = {}
        self._dirty: set[int] = set()
        self._forgotten = False  # whether the file's content is void

    def add(self, slot_s: int, position: int) -> int:
        """Make `position` the newest unit of a second; return the one before it, or NOWHERE."""
        index = slot_s % SLOTS
        number = index // _PAGE_SLOTS
        page = self._pages.get(number)
        if page is None:
            page = self._load(number)
        at = index % _PAGE_SLOTS * SLOT_BYTES
        time_s, first, last, count = _FACTS.unpack_from(page, at)
        if time_s != slot_s:
            first, last, count = position, NOWHERE, 0
        facts = _FACTS.pack(slot_s, first, position, count + 1)
        _SLOT.pack_into(page, at, slot_s, first, position, count + 1, crc32c(facts) ^ _MAGIC)
        self._dirty.add(number)
        previous: int = last
        return previous

    def release(self, slot_s: int) -> None:
        """Count one unit of a second less: it does not wait any more. It stays in the chain."""
        index = slot_s % SLOTS
        number = index // _PAGE_SLOTS
        page = self._pages.get(number)
        if page is None:
            page = self._load(number)
        at = index % _PAGE_SLOTS * SLOT_BYTES
        time_s, first, last, count = _FACTS.unpack_from(page, at)
        if time_s == slot_s:
            facts = _FACTS.pack(time_s, first, last, count - 1)
            _SLOT.pack_into(page, at, time_s, first, last, count - 1, crc32c(facts) ^ _MAGIC)
            self._dirty.add(number)

    def at(self, slot_s: int) -> Chain:
        """What is in a second; EMPTY_CHAIN when its place belongs to another lap, or nothing in it waits."""
        index = slot_s % SLOTS
        number = index // _PAGE_SLOTS
        page = self._pages.get(number)
        if page is None:
            page = self._load(number)
        time_s, first, last, count = _FACTS.unpack_from(page, index % _PAGE_SLOTS * SLOT_BYTES)
        return Chain(first, last, count) if time_s == slot_s and count else EMPTY_CHAIN

    def next_occupied(self, from_s: int, to_s: int) -> int | None:
        """The first second in [from_s, to_s) that holds anything. Looks at two laps at most, whatever the range."""
        slot_s = from_s
        end_s = min(to_s, from_s + SLOTS)
        while slot_s < end_s:
            index = slot_s % SLOTS
            number = index // _PAGE_SLOTS
            page = self._peek(number)
            start = index % _PAGE_SLOTS
            stop = min(_PAGE_SLOTS, start + end_s - slot_s)
            if page != _EMPTY_PAGE:
                with memoryview(page) as view, view[start * SLOT_BYTES : stop * SLOT_BYTES] as asked:
                    for time_s, _, _, count, _ in _SLOT.iter_unpack(asked):
                        if time_s == slot_s and count:
                            return slot_s
                        slot_s += 1
            else:
                slot_s += stop - start
        return None

    def survey(self, from_s: int) -> Survey:
        """Count what waits in all seconds from `from_s` on, and find the oldest unit that hangs there.

        Reads the whole file, in large pieces and without keeping it. Raises Corrupt (W1).
        """
        total = 0
        oldest = NOWHERE
        for number in self._written_pages():
            for time_s, first, _, count, _ in _SLOT.iter_unpack(self._peek(number)):
                if time_s >= from_s and time_s:  # where nothing waits a chain may go on, too
                    total += count
                    oldest = first if oldest == NOWHERE else min(oldest, first)
        return Survey(total, oldest)

    def reset(self) -> None:
        """Forget everything. The file itself is emptied by the next `flush`, not before (W2)."""
        self._pages.clear()
        self._dirty.clear()
        self._forgotten = True

    def flush(self) -> None:
        """Write the dirty pages. Durable on return; OSError when it is not (and then see store.files F3)."""
        if self._forgotten:
            self._file.truncate(0)
        for first, count in _runs(sorted(self._dirty)):
            self._file.pwritev([self._pages[number] for number in range(first, first + count)], first * PAGE_BYTES)
        self._file.datasync()
        self._dirty.clear()
        self._forgotten = False

    def close(self) -> None:
        """Release the file; nothing is synced."""
        self._file.close()

    def _load(self, number: int) -> bytearray:
        page = self._pages[number] = bytearray(self._read(number))
        return page

    def _written_pages(self) -> Iterator[int]:
        """The pages that are in memory, and those of the file that are not all zeros; in no order. Pages may be loaded
        while it goes on, by whom this is not the thread of (W3)."""
        held = list(self._pages)
        yield from held
        known = frozenset(held)
        if self._forgotten:
            return
        for position in range(0, _PAGES * PAGE_BYTES, _SURVEY_BYTES):
            piece = self._file.pread(_SURVEY_BYTES, position)
            if not piece:
                return
            if piece != bytes(len(piece)):
                for at in range(0, len(piece), PAGE_BYTES):
                    number = (position + at) // PAGE_BYTES
                    if number not in known and piece[at : at + PAGE_BYTES] != _EMPTY_PAGE:
                        yield number

    def _peek(self, number: int) -> bytes | bytearray:
        """A page for looking only: not kept in memory when it was not there."""
        page = self._pages.get(number)
        return self._read(number) if page is None else page

    def _read(self, number: int) -> bytes:
        if self._forgotten:
            return _EMPTY_PAGE
        page = self._file.pread(PAGE_BYTES, number * PAGE_BYTES).ljust(PAGE_BYTES, b"\0")
        if page != _EMPTY_PAGE:
            for at in range(0, PAGE_BYTES, SLOT_BYTES):
                slot = page[at : at + SLOT_BYTES]
                if slot != _EMPTY_SLOT and crc32c(slot[: _FACTS.size]) ^ _MAGIC != int.from_bytes(slot[_FACTS.size :]):
                    raise Corrupt(str(self._path), number * PAGE_BYTES + at, "a slot of the wheel fails its check")
        return page


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring page numbers as (first, count), no run longer than one write takes."""
    first = count = 0
    for number in numbers:
        if count and number == first + count and count < IOV_MAX:
            count += 1
            continue
        if count:
            yield first, count
        first, count = number, 1
    if count:
        yield first, count

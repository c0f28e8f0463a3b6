"""Sequential read-ahead: what a reader that goes on from read to read will ask for next, read while its client takes
the last answer.

A large read is copied out of the system's cache, checked, and copied to a socket. Then the event loop waits until the
client has taken all of it and asks again; the client waits for the next read in turn. Here both work at once:

    a read ends because it has as many bytes as it may         where it ends is known as a place to go on from
    one that began at such a place does the same               what follows is read, a piece in each idle turn
    the next one asks for it                                   entries that are here are not read again

Only what the system has in memory is read, by the loop itself, and only while the loop is idle: a turn that was longer
had something else to do, and after a few of those it ends. Where many read at once there is no idle turn, and reading
earlier would gain nothing. An entry is given once; one that nobody asks for is forgotten after a while. There is room
for BYTES_MAX, and beyond it nothing is read: to make room for it would be to read twice what others will ask for.

Invariants
    R1  an entry that is here was read from its position of the log and checked, and an index led to it
    R2  there are never more bytes than BYTES_MAX and those of an entry, nor more than PLACES_MAX places to go on from
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from store.errors import StoreError
from store.index.base import Run
from store.kernel_sync import IDLE_TURN_S
from store.limits import KiB, MiB
from store.types import Entry, QueueKey

BYTES_MAX = 8 * MiB
PLACES_MAX = 256
PIECE_BYTES = 128 * KiB
"""To copy and check so much takes some 30 us."""

ENTRY_BYTES_MAX = 1 * MiB
LARGE_BYTES = 4 * KiB
"""Reads of smaller entries, in the mean, are left alone: to decode them takes longer than the copy."""

BUSY_TURNS_MAX = 8
"""Longer turns than IDLE_TURN_S that are waited for."""

RunsOf = Callable[[QueueKey, int], Iterator[Run]]
"""The entries of a queue from an offset on, looked up as they are asked for. Raises StoreError."""

ReadAll = Callable[[QueueKey, Sequence[Run]], Sequence[Entry] | None]
"""These entries, if the system has all of them in memory. Raises StoreError."""


class ReadAhead:
    """What was read ahead of the readers of one store. All methods belong to the event loop's thread."""

    def __init__(
        self,
        runs_of: RunsOf,
        read: ReadAll,
        is_here: Callable[[int], bool],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`is_here`: whether the entry at a position is in memory anyway."""
        self._runs_of, self._read, self._is_here, self._now_s = runs_of, read, is_here, now_s
        self._loop = asyncio.get_running_loop()
        self._places: dict[tuple[QueueKey, int], list[Run]] = {}  # to go on from, and what was looked up from there on
        self._entries: dict[int, Entry] = {}  # by position
        self._bytes = 0
        self._pieces: Iterator[None] | None = None  # of the reading under way
        self._busy_turns = 0  # of it
        self._is_turning = False  # `_turn` is called in the next turn

    def __len__(self) -> int:
        """How many entries are here."""
        return len(self._entries)

    def runs_from(self, queue: QueueKey, offset: int) -> Sequence[Run]:
        """The entries of a queue from an offset on: as many as were looked up here, or none."""
        return self._places.get((queue, offset), ())

    def taken(self, position: int) -> Entry | None:
        """The entry at a position; it is not here any more."""
        entry = self._entries.pop(position, None)
        if entry is not None:
            self._bytes -= entry.size
        return entry

    def forget(self) -> None:
        """Give the memory back, and end what is under way."""
        self._entries.clear()
        self._places.clear()
        self._bytes = 0
        self._pieces = None

    def has_read(self, queue: QueueKey, offset: int, entries: Sequence[Entry], max_bytes: int) -> None:
        """A read from `offset` on ended with these entries, though there are more."""
        if sum([entry.size for entry in entries]) < LARGE_BYTES * len(entries):
            return
        goes_on = self._places.pop((queue, offset), None) is not None
        if len(self._places) >= PLACES_MAX:
            del self._places[next(iter(self._places))]
        following = entries[-1].next_offset
        if (queue, following) in self._places:
            return  # another reader is as far
        runs = self._places[queue, following] = []
        if goes_on:
            self._pieces, self._busy_turns = self._in_pieces(queue, following, max_bytes, runs), 0
            if not self._is_turning:
                self._is_turning = True
                self._loop.call_soon(self._turn, 0.0)

    def _turn(self, last_s: float) -> None:
        """Read a piece if the turn since `last_s` had nothing else to do (0.0: it is not known)."""
        if self._pieces is not None:
            if self._now_s() - last_s >= IDLE_TURN_S:
                self._busy_turns += 1
                is_over = self._busy_turns > BUSY_TURNS_MAX
            else:
                is_over = next(self._pieces, self) is self
            if is_over:
                self._pieces = None
        self._is_turning = self._pieces is not None
        if self._is_turning:
            self._loop.call_soon(self._turn, self._now_s())

    def _in_pieces(self, queue: QueueKey, offset: int, max_bytes: int, runs: list[Run]) -> Iterator[None]:
        """Read up to `max_bytes` from an offset on; yields behind each piece. `runs` gets all that was looked up."""
        piece: list[Run] = []
        piece_bytes = 0
        try:
            for run in self._runs_of(queue, offset):
                runs.append(run)
                max_bytes -= run.size
                if max_bytes < 0 or run.size > ENTRY_BYTES_MAX or self._bytes + piece_bytes >= BYTES_MAX:
                    break
                if run.position in self._entries or self._is_here(run.position):
                    continue
                piece.append(run)
                piece_bytes += run.size
                if piece_bytes >= PIECE_BYTES:
                    if not self._have_read(queue, piece):
                        return
                    piece, piece_bytes = [], 0
                    yield
            self._have_read(queue, piece)
        except StoreError:
            pass  # for the read to tell

    def _have_read(self, queue: QueueKey, piece: Sequence[Run]) -> bool:
        """False when the system would have to wait for the disk."""
        entries = self._read(queue, piece)
        if entries is None:
            return False
        for entry in entries:
            self._entries[entry.position] = entry
            self._bytes += entry.size
        return True

"""The seam behind which consume queues live, and what every kind of them shares.

A consume queue maps each offset of one queue to the entry that holds the record, and to the hash of its tag. It holds
no fact of its own: it can be cut at a log position and built again from the log.

    I1  a unit is added only after the entry it points to is as durable as its append asked for
    I2  units are added in offset order without holes: the first offset of an append is the queue's max offset
    I3  readers are bounded by [min, max); what a kind of index keeps outside of it is never shown
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from store.types import Boundary, Bounds, Entry, QueueKey


class Run(NamedTuple):
    """One entry as the index sees it: where it is, and the first of its offsets that the index was asked about."""

    position: int
    size: int
    offset: int


class Flush(NamedTuple):
    """One flush under way: `run` blocks and belongs in a thread, `finish` belongs to the owner once `run` returned."""

    run: Callable[[], None]
    finish: Callable[[], None]


class ConsumeQueues(ABC):
    """All consume queues of one store. One owner calls everything, except `Flush.run`."""

    @abstractmethod
    def append(self, entry: Entry) -> None:
        """Add one unit a record. An entry whose offsets are already indexed is ignored, so replay is idempotent.

        Raises AssertionError on a hole (I2): the log and the index disagree, which only a bug can cause.
        """

    @abstractmethod
    def bounds(self, queue: QueueKey) -> Bounds:
        """Min and max offset; (0, 0) for a queue that has never held a record."""

    @abstractmethod
    def runs(self, queue: QueueKey, offset: int, unit_count_max: int) -> list[Run]:
        """The entries that hold `offset` and the offsets after it, for up to `unit_count_max` units."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Memory taken by units that no finished flush has covered."""

    @abstractmethod
    def flush(self) -> Flush:
        """Begin to make all units added so far durable. They are once `run` has returned; the owner may go on adding
        and reading meanwhile. One at a time. After an OSError from `run` the next flush tries the same units again."""

    @abstractmethod
    def close(self) -> None: ...


def search_time(bounds: Bounds, time_ms: int, boundary: Boundary, time_at: Callable[[int], int]) -> int:
    """Binary search by store time over the offsets of one queue; store times never decrease along a queue.

    LOWER: the first offset with time >= `time_ms`, else max. UPPER: the last offset with time <= `time_ms`, else min.
    Works on offsets, not on files, so runs of equal times may cross anything.

    Example, times 10 10 10 30 30 at offsets 0-4: search 10 gives LOWER 0, UPPER 2; 20 gives 3 and 2; 5 gives 0 and 0;
    40 gives 5 and 4.
    """
    low, high = bounds.min_offset, bounds.max_offset
    is_lower = boundary is Boundary.LOWER
    while low < high:
        middle = (low + high) // 2
        found_ms = time_at(middle)
        if found_ms < time_ms or (not is_lower and found_ms == time_ms):
            low = middle + 1
        else:
            high = middle
    return low if is_lower else max(low - 1, bounds.min_offset)


def tag_hashes_of(entry: Entry) -> Sequence[int]:
    """One tag hash a record; zeros when no record of the entry has a tag."""
    return entry.tag_hashes or (0,) * entry.record_count

"""The seam behind which consume queues live, and what every kind of them shares.

A consume queue maps each offset of one queue to the entry that holds the record, and to the hash of its tag. It holds
no fact of its own: it can be cut at a log position and built again from the log.

    I1  a unit is added only after the entry it points to is as durable as its append asked for
    I2  units are added in offset order without holes: the first offset of an append is the queue's max offset
    I3  readers are bounded by [min, max); what a kind of index keeps outside of it is never shown
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from store.index.light import LightRows

from store.types import Boundary, Bounds, Indexed, QueueKey

# A unit as every kind of index stores it: position and size of the entry in the log, hash of the record's tag.
UNIT = struct.Struct(">qiq")
UNIT_BYTES = 20
assert UNIT.size == UNIT_BYTES
ENTRY_EXTENT = struct.Struct(">qi")  # the first two fields: where the entry lies
TAG_HASH = struct.Struct(">q")  # the last one


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
    """All consume queues of one store. One owner calls everything, except `Flush.run`.

    Every kind is told at opening where the log begins: units that point before that have expired. Opening raises
    IndexDamaged when the index lacks what it had made durable; the store then opens it with `rebuild`: without units
    and with checkpoint 0. A rebuild that is interrupted leaves what was there before, to be rebuilt again.
    """

    pauses_s: float = 0.0
    """How long a flush that writes many rows may pause in all, so that an event loop goes on (store/index/pauses.py):
    set by who has one."""

    @property
    @abstractmethod
    def checkpoint(self) -> int:
        """A log position: units of all entries before it were durable when the index was opened or last flushed.
        Units behind it were forgotten at opening; the store adds them again from the log."""

    @property
    @abstractmethod
    def durable_position(self) -> int:
        """How far the log was durable when the index was last flushed. A rebuild knows it too, if anything is left to
        know it from; else 0."""

    @abstractmethod
    def append(self, entry: Indexed) -> None:
        """Add one unit a record. An entry whose offsets are already indexed is ignored, so replay is idempotent. A
        queue without units takes its first entry at any offset: what was before it has expired.

        Raises IndexDamaged on a hole (I2): the log and the index disagree.
        """

    def extend(self, queue: QueueKey, entries: Sequence[Indexed]) -> None:
        """Add entries of one queue, in order: as `append` of each. Raises IndexDamaged."""
        for entry in entries:
            self.append(entry)

    @abstractmethod
    def finish_rebuild(self) -> None:
        """After an opening with `rebuild` and the replay of the whole log: queues that lost all their records to
        retention keep the max offset that the damaged index knew. Raises IndexDamaged when a queue that has records
        ends before it: then the log has lost some."""

    @abstractmethod
    def max_offset(self, queue: QueueKey) -> int:
        """The offset the queue's next record gets."""

    @abstractmethod
    def bounds(self, queue: QueueKey) -> Bounds:
        """Min and max offset; (0, 0) for a queue that has never held a record."""

    @abstractmethod
    def runs(
        self, queue: QueueKey, offset: int, unit_count: int, tag_hashes: frozenset[int] | None = None
    ) -> list[Run]:
        """The entries that hold the `unit_count` offsets from `offset` on; all of them must lie within the bounds.

        With `tag_hashes`, only entries with at least one record among those offsets whose tag hash is in the set.
        Raises Corrupt when a unit was never written.
        """

    def store_time_ms(self, queue: QueueKey, offset: int) -> int | None:
        """When the entry that holds this offset (within the bounds) was stored; None when this index does not know."""
        return None

    @abstractmethod
    def advance_min(self, position: int) -> None:
        """The log now begins at `position`: raise each queue's min offset to the first unit at or behind it and free
        what lies before. A queue left without units keeps its max offset: offsets are never used again."""

    @abstractmethod
    def topic_ids(self) -> set[int]:
        """Every topic that has a unit here."""

    @abstractmethod
    def drop_topic(self, topic_id: int) -> None:
        """Forget all queues of a topic; what they take on disk is freed by the next flush at the latest. Not while a
        flush is running."""

    @property
    def light(self) -> LightRows | None:
        """The rows of light queues; None where this kind of index keeps none."""
        return None

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Memory taken by units that no finished flush has put where they belong. A flush may leave a bounded few:
        durable all the same, and read again by the next start."""

    @property
    def pending_file_count(self) -> int:
        """How many files the next flush writes: 0 where that does not grow with the number of queues."""
        return 0

    @abstractmethod
    def flush(self, checkpoint: int) -> Flush:
        """Begin to make the units of all entries before `checkpoint` durable, and then the checkpoint. The caller
        promises that the log is durable up to there and that all entries before it were added; units behind it may be
        of entries that a power cut takes, so they stay in memory. Done once `run` has returned; the owner may go on
        adding and reading meanwhile. One at a time. After an OSError from `run` nothing is lost: the next flush tries
        the same units again."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Nothing is flushed."""


def search_time(bounds: Bounds, time_ms: int, boundary: Boundary) -> Generator[int, int, int]:
    """Binary search by store time over the offsets of one queue; store times never decrease along a queue. Yields the
    offsets whose times it wants to be sent, and returns the offset found.

    LOWER: the first offset with time >= `time_ms`, else max. UPPER: the last offset with time <= `time_ms`, else min.
    Works on offsets, not on files, so runs of equal times may cross anything.

    Example, times 10 10 10 30 30 at offsets 0-4: search 10 gives LOWER 0, UPPER 2; 20 gives 3 and 2; 5 gives 0 and 0;
    40 gives 5 and 4.
    """
    low, high = bounds.min_offset, bounds.max_offset
    is_lower = boundary is Boundary.LOWER
    while low < high:
        middle = (low + high) // 2
        found_ms = yield middle
        if found_ms < time_ms or (not is_lower and found_ms == time_ms):
            low = middle + 1
        else:
            high = middle
    return low if is_lower else max(low - 1, bounds.min_offset)

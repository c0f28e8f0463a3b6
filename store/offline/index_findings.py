"""What a check of an index finds, and what `mq verify` asks of one kind of index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from store.types import Entry, QueueKey

WRONG_RANGES_MAX = 100  # remembered of one queue


class WrongUnits(NamedTuple):
    """A range of offsets of one queue, half open, that the index has wrong."""

    queue: QueueKey
    offsets: tuple[int, int]
    path: str
    position: int  # byte in the file
    reason: str
    is_lost: bool  # the log has no such records; otherwise a rebuild of the index puts it right


class IndexCheck(Protocol):
    """What `mq verify` asks of one kind of index."""

    @property
    def checkpoint(self) -> int:
        """The log position up to which the index vouches for its units, and for the log."""
        ...

    def expect(self, entry: Entry) -> None:
        """The log holds this entry; called in the log's order."""
        ...

    def finish(self) -> Iterator[WrongUnits]:
        """Everything that is wrong, once all entries were shown to `expect`."""
        ...

    def close(self) -> None:
        """Release the index."""
        ...


class NoIndexCheck:
    """There is no index that could be checked here. `checkpoint`: what is known of it all the same."""

    def __init__(self, checkpoint: int = 0) -> None:
        self.checkpoint = checkpoint

    def expect(self, entry: Entry) -> None:
        """Nothing to compare with."""

    def finish(self) -> Iterator[WrongUnits]:
        """Nothing is wrong with what is not there."""
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


class OffsetRange:
    """A half-open range of offsets that grows."""

    __slots__ = ("end", "first")

    def __init__(self, first: int = 0, end: int = 0) -> None:
        self.first = first
        self.end = end

    def add(self, offset: int) -> None:
        """The range reaches to this offset."""
        if not self.end:
            self.first = offset
        self.end = offset + 1


class WrongRanges:
    """The offsets of entries that an index has wrong, by queue: of each the first WRONG_RANGES_MAX ranges."""

    def __init__(self) -> None:
        self._by_queue: dict[QueueKey, list[OffsetRange]] = {}

    def add(self, entry: Entry) -> None:
        """The index does not point to this entry; called in the log's order."""
        ranges = self._by_queue.setdefault(entry.queue, [])
        if ranges and ranges[-1].end == entry.base_offset:
            ranges[-1].end = entry.next_offset
        elif len(ranges) < WRONG_RANGES_MAX:
            ranges.append(OffsetRange(entry.base_offset, entry.next_offset))

    def items(self) -> Iterable[tuple[QueueKey, list[OffsetRange]]]:
        """Each queue with its ranges."""
        return self._by_queue.items()

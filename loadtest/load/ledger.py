"""Which records were acknowledged and which came where, exactly, in little memory. Pure.

A sender numbers its records 0, 1, 2, ...; so what became of them is a set of numbers for each sender, kept as ranges:
a run without losses has one range a sender, however long it is. (In queue mode with several processes each of them has
the pieces that were leased to it; they become one range when they are put together.) Ledgers of several processes are
merged into one; the sender of a record and its consumer may be in different ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Way = str
"""How records were consumed: LOG, STREAM, QUEUE or QUEUE_FIRST."""

LOG = "log"
STREAM = "stream"
QUEUE = "queue"
QUEUE_FIRST = "queue, first attempt"

Packed = Mapping[str, Sequence[int]]
"""By sender: start and end of each range, one after the other."""


class RecordId(NamedTuple):
    """The identity of a record within one run."""

    sender: str
    sequence: int


class Ranges:
    """A set of whole numbers from 0 on, as disjoint half-open ranges in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Add start, ..., end - 1; how many of them were there before."""
        first = bisect_left(self._ends, start)  # the first range that touches or comes later
        last = first
        known_count = 0
        merged_start, merged_end = start, end
        while last < len(self._starts) and self._starts[last] <= end:
            known_count += max(min(end, self._ends[last]) - max(start, self._starts[last]), 0)
            merged_start = min(merged_start, self._starts[last])
            merged_end = max(merged_end, self._ends[last])
            last += 1
        self._starts[first:last] = [merged_start]
        self._ends[first:last] = [merged_end]
        return known_count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """How many numbers."""
        return sum(end - start for start, end in self)

    def without(self, other: Ranges) -> Iterator[int]:
        """Numbers that are here and not in the other, in order."""
        for start, end in self:
            at = start
            for index in range(bisect_left(other._ends, start + 1), len(other._starts)):
                if other._starts[index] >= end:
                    break
                yield from range(at, min(other._starts[index], end))
                at = max(at, other._ends[index])
            yield from range(at, end)


class Ledger:
    """What one process, or all of them, know of a run."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, Ranges] = {}
        self.consumed: dict[Way, dict[str, Ranges]] = {}
        self.twice: dict[Way, int] = {}
        """Receipts of a record that had come before in the same way."""

    def acknowledge(self, sender: str, start: int, end: int) -> None:
        """The server has said 200 to these; each is told once."""
        self.acknowledged.setdefault(sender, Ranges()).add(start, end)

    def consume(self, way: Way, record: RecordId) -> bool:
        """This one came; whether for the first time."""
        known = self._consume(way, record.sender, record.sequence, record.sequence + 1)
        return not known

    def _consume(self, way: Way, sender: str, start: int, end: int) -> int:
        known_count = self.consumed.setdefault(way, {}).setdefault(sender, Ranges()).add(start, end)
        self.twice[way] = self.twice.get(way, 0) + known_count
        return known_count

    @property
    def acknowledged_count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def lost(self, way: Way) -> Iterator[RecordId]:
        """Acknowledged and not come that way; to be looked at when nothing is on its way any more."""
        came = self.consumed.get(way, {})
        for sender, ranges in self.acknowledged.items():
            for sequence in ranges.without(came.get(sender, Ranges())):
                yield RecordId(sender, sequence)

    def is_complete(self, way: Way) -> bool:
        """Whether everything acknowledged has come that way."""
        return next(self.lost(way), None) is None

    def packed(self) -> dict[str, object]:
        """For a message to another process."""
        return {
            "acknowledged": _packed(self.acknowledged),
            "consumed": {way: _packed(senders) for way, senders in self.consumed.items()},
            "twice": self.twice,
        }

    def merge(self, acknowledged: Packed, consumed: Mapping[Way, Packed], twice: Mapping[Way, int]) -> None:
        """Add what another process has `packed`. A record that both have counts as one that came twice."""
        for sender, numbers in acknowledged.items():
            for start, end in _pairs(numbers):
                self.acknowledge(sender, start, end)
        for way, senders in consumed.items():
            self.twice[way] = self.twice.get(way, 0) + twice.get(way, 0)
            for sender, numbers in senders.items():
                for start, end in _pairs(numbers):
                    self._consume(way, sender, start, end)


def _packed(senders: Mapping[str, Ranges]) -> dict[str, list[int]]:
    return {sender: [bound for pair in ranges for bound in pair] for sender, ranges in senders.items()}


def _pairs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(numbers[::2], numbers[1::2], strict=True)

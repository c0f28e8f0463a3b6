"""Items in order, as sorted runs that are never merged as a whole. Pure.

A heap or one sorted list of a hundred thousand is at some moment sorted, merged or copied in one go: for 10 to 100 ms,
in which the event loop answers no request. Here what is added stays the run it came in, and each operation looks at the
runs' ends only: taking what is due cuts the front off each run (by bisection) and sorts these pieces.

    add run 3 5 9, add run 4 6, push 5      runs: [3 5 9] [4 6] [5]
    take below 6, at most 10             -> 3 4 5 5            [9] [6]

Invariants
    R1  Each run is ascending and not empty, but for the newest: what was pushed last, which may be empty.
    R2  The count is that of the items in all runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from timer.items import HIGHEST, Item, Key

RUN_COUNT = 1024
"""Items that are sorted, or gathered by `push`, before they become a run: sorting these takes a tenth of a
millisecond."""

_DEPTH_MIN = 8
"""How far into each run `take` looks at a time, at least: of many equally filled ones it finds three in each."""

_SAMPLES_COUNT = 2048
_SAMPLED_COUNT_MIN = 4096


class Runs:
    """A sorted collection of items for one owner."""

    def __init__(self) -> None:
        self._pushed: list[Item] = []
        self._runs: list[list[Item]] = [self._pushed]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def first(self) -> Item | None:
        """The smallest item."""
        return min((run[0] for run in self._runs if run), default=None)

    def push(self, item: Item) -> None:
        """Add one item."""
        insort(self._pushed, item)
        self._count += 1
        if len(self._pushed) >= RUN_COUNT:
            self._pushed = []
            self._runs.append(self._pushed)

    def add(self, run: list[Item]) -> None:
        """Add sorted items. The list belongs to this collection from here on."""
        if run:
            self._runs.append(run)
            self._count += len(run)

    def take_over(self, others: Runs) -> None:
        """Add all that `others` holds, which is empty afterwards."""
        for run in others._runs:
            self.add(run)
        others.__init__()  # type: ignore[misc]

    def take(self, limit: Key, count_max: int) -> list[Item]:
        """Remove the smallest items below `limit`, at most `count_max`, and return them in order."""
        taken: list[Item] = []
        while (room_count := count_max - len(taken)) > 0:
            fronts = [run for run in self._runs if run and run[0] < limit]
            if not fronts:
                break
            depth = max(_DEPTH_MIN, 2 * room_count // len(fronts))
            # All that is not above the smallest of these stands before them in the runs.
            cut = min((run[depth] for run in fronts if len(run) > depth), default=limit)
            if cut < limit:
                counts = [bisect_right(run, cut, hi=min(len(run), depth + 1)) for run in fronts]
            else:
                counts = [bisect_left(run, limit, hi=min(len(run), depth + 1)) for run in fronts]
            piece = sorted(item for run, count in zip(fronts, counts, strict=True) for item in run[:count])
            if len(piece) > room_count:
                del piece[room_count:]
                counts = [bisect_right(run, piece[-1], hi=count) for run, count in zip(fronts, counts, strict=True)]
            for run, count in zip(fronts, counts, strict=True):
                del run[:count]
            taken += piece
        self._count -= len(taken)
        self._drop_empty()
        return taken

    def count_below(self, limit: Key) -> int:
        """How many items are below `limit`."""
        return sum([bisect_left(run, limit) for run in self._runs])

    def between(self, first: Key, limit: Key) -> list[Item]:
        """The items from `first` on and below `limit`, in no order, which stay."""
        found: list[Item] = []
        for run in self._runs:
            found += run[bisect_left(run, first) : bisect_left(run, limit)]
        return found

    def key_near(self, count: int) -> Key:
        """A key with at most `count` items before it, and nearly so many: exactly so many of a few thousand items, else
        a few per cent less. HIGHEST when there are no more items than that."""
        if count >= self._count:
            return HIGHEST
        stride = max(1, self._count // _SAMPLES_COUNT)
        unseen_count = (len(self._runs) - 1) * (stride - 1)  # what the samples do not show of the other runs
        if count < _SAMPLED_COUNT_MIN or unseen_count > count // 2:
            stride, unseen_count = 1, 0
        samples = sorted(item for run in self._runs for item in run[stride - 1 :: stride])
        return samples[(count + 1 - unseen_count) // stride - 1]

    def cut(self, key: Key) -> list[Item]:
        """Remove the items at or above `key` and return them, in no order."""
        removed: list[Item] = []
        for run in self._runs:
            at = bisect_left(run, key)
            removed += run[at:]
            del run[at:]
        self._count -= len(removed)
        self._drop_empty()
        return removed

    def _drop_empty(self) -> None:
        self._runs = [run for run in self._runs if run or run is self._pushed]

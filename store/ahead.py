"""Which records are dated ahead of when they were stored: what a search by record time needs besides the log. Pure.

A record is stored after it was made, and store times never fall along a queue. So records from a time on are found by
a binary search by store time, as long as no record is dated much later than it was stored. A producer whose clock is
wrong does that, and one that dates its records as it likes. Batches that are dated more than AHEAD_MS ahead are
remembered here, as stretches of their queue:

    first, end     offsets of its first record, and behind its last one
    lead_ms        no batch of it is dated further ahead of its store time
    max_ms         ... nor later

Such batches that follow each other are one stretch while their leads are alike (the same power of two): a producer
whose clock is an hour ahead takes one row, however much it sends. A queue has STRETCHES_MAX; when there is one more,
the two neighbours that lie closest together become one. A search is right all the same, and looks at more records.
There are ROWS_MAX rows in all, as they are gone through with every checkpoint: at that limit a queue that has some goes
on with its last one, and for queues that have none there is one row together (`of_others`), which covers all of each.

Invariants
    A1  a batch that is dated more than AHEAD_MS ahead lies in a stretch of its queue or of the others, with at least
        its lead and its time
    A2  the table is derived: the same entries, in their order, added once or several times, give A1 again. It is saved
        with the topics; what was saved of records that a power cut took is cut off at opening (`cut`), and the log is
        replayed from there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from store.types import QueueKey

AHEAD_MS = 10_000
"""How far a record may be dated ahead of its store time without a row here."""

STRETCHES_MAX = 16
"""Rows of one queue."""

ROWS_MAX = 4_096
"""Rows of all queues: some milliseconds of the event loop."""

_OTHERS = QueueKey(-1, -1)
"""Stands for the queue in the row of the others."""

_EVERY_END = (1 << 63) - 1


class Stretch(NamedTuple):
    """See the module."""

    first: int
    end: int
    lead_ms: int
    max_ms: int


class AheadTable:
    """The stretches of all queues of one store."""

    def __init__(self) -> None:
        self._stretches: dict[QueueKey, list[Stretch]] = {}
        self._row_count = 0
        self.of_others: Stretch | None = None
        """Holds for every queue, besides its own stretches."""

    def of(self, queue: QueueKey) -> Sequence[Stretch]:
        """The stretches of a queue, in the order of their offsets."""
        return self._stretches.get(queue, ())

    def add(self, queue: QueueKey, first: int, end: int, *, store_time_ms: int, dated_ms: int) -> None:
        """Take in a batch whose latest record is dated `dated_ms`, more than AHEAD_MS ahead. One that is known changes
        nothing."""
        found = self._stretches.get(queue)
        new = Stretch(first, end, dated_ms - store_time_ms, dated_ms)
        is_full = self._row_count >= ROWS_MAX
        if found is None:
            if is_full:
                new = Stretch(0, _EVERY_END, new.lead_ms, new.max_ms)
                self.of_others = new if self.of_others is None else _joined(self.of_others, new)
                return
            found = self._stretches[queue] = []
        elif end <= found[-1].end:
            return
        elif is_full or found[-1].lead_ms.bit_length() == new.lead_ms.bit_length():
            found[-1] = _joined(found[-1], new)
            return
        found.append(new)
        self._row_count += 1
        if len(found) > STRETCHES_MAX:
            at = min(range(len(found) - 1), key=lambda at: found[at + 1].end - found[at].first)
            found[at : at + 2] = [_joined(found[at], found[at + 1])]
            self._row_count -= 1

    def drop_topic(self, topic_id: int) -> None:
        """Forget all queues of a topic."""
        for queue in [queue for queue in self._stretches if queue.topic_id == topic_id]:
            self._row_count -= len(self._stretches.pop(queue))

    def cut(self, end_of: Callable[[QueueKey], int]) -> None:
        """Forget what lies at or behind the end of each queue."""
        self._keep(lambda queue, one: one._replace(end=min(one.end, end_of(queue))))

    def prune(self, low_of: Callable[[QueueKey], int]) -> None:
        """Forget what lies before the first record of each queue."""
        self._keep(lambda queue, one: one._replace(first=max(one.first, low_of(queue))))

    def _keep(self, change: Callable[[QueueKey, Stretch], Stretch]) -> None:
        kept = {
            queue: [one for one in (change(queue, old) for old in found) if one.first < one.end]
            for queue, found in self._stretches.items()
        }
        self._stretches = {queue: found for queue, found in kept.items() if found}
        self._row_count = sum(map(len, self._stretches.values()))

    def rows(self) -> list[list[int]]:
        """The table for `restore`, as JSON: topic id, queue id, and the four numbers of a stretch."""
        rows = [[*queue, *one] for queue, found in self._stretches.items() for one in found]
        return rows if self.of_others is None else [*rows, [*_OTHERS, *self.of_others]]

    def restore(self, rows: Iterable[Sequence[int]]) -> None:
        """Replace the table by one that was saved."""
        self._stretches, self._row_count, self.of_others = {}, 0, None
        for topic_id, queue_id, *numbers in rows:
            queue, one = QueueKey(topic_id, queue_id), Stretch(*numbers)
            if queue == _OTHERS:
                self.of_others = one
            else:
                self._stretches.setdefault(queue, []).append(one)
                self._row_count += 1


def _joined(one: Stretch, following: Stretch) -> Stretch:
    lead_ms, max_ms = max(one.lead_ms, following.lead_ms), max(one.max_ms, following.max_ms)
    return Stretch(one.first, following.end, lead_ms, max_ms)

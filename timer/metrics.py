"""What the timer counts: plain integers on one object, read by their publishers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from timer.items import Item, fire_counts

LATENESS_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 60_000)
"""Upper bounds (inclusive) of the lateness buckets; one more bucket holds everything above."""


@dataclass(slots=True)
class TimerMetrics:
    """Counters since the start of the process, in records unless the name says otherwise."""

    accepted_count: int = 0
    """New schedules scheduled in the wheel."""

    fired_count: int = 0
    rolled_count: int = 0
    cancelled_count: int = 0

    moved_count: int = 0
    """Given another due time; those fired now among them."""

    dropped_count: int = 0
    """Due for a queue that no longer exists, or too large to be delivered."""

    parked_count: int = 0
    """Due, but their entry in the log cannot be read; they stay pending and are tried again after a restart."""

    already_delivered_count: int = 0
    """Found delivered in the log during recovery, and so not delivered again."""

    checkpoint_failure_count: int = 0

    late_max_ms: int = 0
    late_sum_ms: int = 0
    late_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BOUNDS_MS) + 1))
    """Fired records by how long after their due time their delivery was durable."""

    def fired(self, now_ms: int, items: Sequence[Item]) -> None:
        """Count records whose delivery was durable at `now_ms`, in the order of their due times."""
        self.fired_count += len(items)
        for fire_ms, count in fire_counts(items).items():
            late_ms = max(0, now_ms - fire_ms)
            self.late_sum_ms += late_ms * count
            self.late_counts[bisect_left(LATENESS_BOUNDS_MS, late_ms)] += count
            self.late_max_ms = max(self.late_max_ms, late_ms)

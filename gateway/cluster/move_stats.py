"""What the moves that this node makes count: plain integers on one object, read by their publishers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

PAUSE_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 60_000)
"""Upper bounds (inclusive) of the pause buckets; one more bucket holds everything above."""

MoveOutcome = Literal["done", "conflict", "failed", "left"]
"""How a move ended: the partition is there; another node changed the partition's record meanwhile; nothing was changed;
it may be half way, and is finished by another move."""

OUTCOMES: tuple[MoveOutcome, ...] = ("done", "conflict", "failed", "left")


@dataclass(slots=True)
class MoveStats:
    """Counters since the start of the process."""

    outcomes: Counter[MoveOutcome] = field(default_factory=Counter)

    pause_sum_ms: float = 0.0
    pause_counts: list[int] = field(default_factory=lambda: [0] * (len(PAUSE_BOUNDS_MS) + 1))
    """Moves that are done, by how long the partition took no records: from before its queue was sealed (on a Kafka
    cluster: before the intent was written) until the commit was."""

    def done(self, pause_ms: float) -> None:
        """Count a move that was made, and its pause."""
        self.outcomes["done"] += 1
        self.pause_sum_ms += pause_ms
        self.pause_counts[bisect_left(PAUSE_BOUNDS_MS, pause_ms)] += 1

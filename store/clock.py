"""Time, injectable. Wall time is for data (timestamps, due times); intervals use the event loop's monotonic clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the store and the timer read the wall clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC. May step in either direction."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return time.time_ns() // 1_000_000

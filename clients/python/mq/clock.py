"""Time, as everything here sees it: given in, so that tests and `mq.testing` can run hours in an instant."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """Let it not come."""
        ...


class Clock(Protocol):
    """Wall time for data, monotonic time for intervals, and calls to come."""

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some moment."""
        ...

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call after this many seconds."""
        ...


class LoopClock:
    """The clock of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since some moment."""
        return self._loop.time()

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call after this many seconds."""
        return self._loop.call_later(delay_s, call)

"""Whether a peer still takes bytes: a slow one may take its time, one that takes nothing at all is given up.

write begins   90 kB wait   look after a quarter of the time   80 kB wait: it moves    80 kB, 80, 80, 80: timeout
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOKS = 4
"""Looks without progress that make a timeout: it is reported after `timeout_s` and up to a quarter more."""


class WriteWatchdog:
    """Watches one transport while something waits to be taken."""

    __slots__ = ("_idle_count", "_last_bytes", "_on_timeout", "_step_s", "_timer", "_waiting_bytes")

    def __init__(self, waiting_bytes: Callable[[], int], *, timeout_s: float, on_timeout: Callable[[], None]) -> None:
        """`waiting_bytes`: what the transport holds and the peer has not taken."""
        self._waiting_bytes = waiting_bytes
        self._step_s = timeout_s / LOOKS
        self._on_timeout = on_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._last_bytes = 0
        self._idle_count = 0

    def begin(self) -> None:
        """The transport is full: a writer waits for room."""
        self._last_bytes = self._waiting_bytes()
        self._idle_count = 0
        self._timer = asyncio.get_running_loop().call_later(self._step_s, self._look)

    def end(self) -> None:
        """There is room, or no writer waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        waiting_bytes = self._waiting_bytes()
        stands = 0 < self._last_bytes <= waiting_bytes
        self._idle_count = self._idle_count + 1 if stands else 0
        self._last_bytes = waiting_bytes
        if self._idle_count >= LOOKS:
            self._timer = None
            self._on_timeout()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._step_s, self._look)

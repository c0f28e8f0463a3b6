"""A wall clock that moves only when a test says so. Implements `store.clock.Clock`.

clock = FakeClock()          stands still at START_MS
clock.step(1500)             1.5 s later; negative: the clock was set back
clock.strobe(200)            from now on each reading alternates between +0 and +200 ms, as a fighting NTP makes it
"""

from __future__ import annotations

START_MS = 1_700_000_000_000


class FakeClock:
    """Wall time under a test's control. Frozen unless stepped."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._strobe_ms = 0
        self._reading_count = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC, as the last step left them."""
        self._reading_count += 1
        return self._now_ms + self._strobe_ms * (self._reading_count % 2)

    @property
    def reading_count(self) -> int:
        """How often the time was asked for."""
        return self._reading_count

    def step(self, by_ms: int) -> int:
        """Move the clock by `by_ms`, backwards when negative; return the new time."""
        self._now_ms += by_ms
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Put the clock at `now_ms`."""
        self._now_ms = now_ms

    def strobe(self, width_ms: int) -> None:
        """Make readings jump to and fro by `width_ms`; 0 ends it."""
        self._strobe_ms = width_ms

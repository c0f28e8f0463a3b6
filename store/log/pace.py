"""Whether the event loop may write to the log by itself, or had better leave it to a thread. Pure.

A small write into the page cache takes some ten microseconds, and handing it to a thread and back several times that.
But a write can also wait: for a throttled disk, for memory. The loop then answers no request; so it writes only what is
small, keeps a moving estimate of how long that takes, and leaves it to the thread for a while when it is too long:
for twice as long each time the first tries after a pause are slow again.
"""

from __future__ import annotations

from store.limits import KiB

INLINE_BYTES_MAX = 512 * KiB
"""Bytes the loop writes at most by one call: some 0.15 ms for a checksum and a copy. To hand them to a thread takes as
long, and the loop fights it for the interpreter's lock meanwhile."""

INLINE_MS_MAX = 5.0
"""Mean duration of its last writes from which on the loop leaves them to a thread. On a busy machine a write seems to
take a millisecond or two because something else runs meanwhile; a thread would wait for that too."""

PAUSE_MS_MIN, PAUSE_MS_MAX = 1_000, 60_000
"""How long it does so, at first and in the end."""

_WEIGHT = 1 / 16  # of the newest write in the mean: one write of 80 ms is too slow, and so are some twenty of 7 ms


class Pace:
    """Whether one writer may write inline. Times are the wall clock's: a step of it costs at most one pause."""

    def __init__(self) -> None:
        self._mean_ms = 0.0
        self._pause_ms = PAUSE_MS_MIN
        self._paused_at_ms = self._resume_at_ms = 0

    def is_inline(self, size: int, now_ms: int) -> bool:
        """Whether to write `size` bytes inline."""
        if size > INLINE_BYTES_MAX:
            return False
        return now_ms >= self._resume_at_ms or now_ms < self._paused_at_ms  # ... or the clock was set back

    def wrote(self, took_ms: int, now_ms: int) -> None:
        """An inline write has taken so long."""
        self._mean_ms += (max(took_ms, 0) - self._mean_ms) * _WEIGHT
        if self._mean_ms < INLINE_MS_MAX:
            return
        is_again = now_ms - self._resume_at_ms < self._pause_ms  # it was slow for most of the time since the last pause
        self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX) if is_again else PAUSE_MS_MIN
        self._paused_at_ms, self._resume_at_ms = now_ms, now_ms + self._pause_ms
        self._mean_ms = 0.0

"""Rate limits: a token bucket for each caller. Pure: the clock is given.

A bucket fills at the configured rate up to BURST_S seconds' worth. A request is let through while the bucket is above
zero, and is then charged in full, its body too: so a body that is larger than the bucket is possible, and the debt is
waited for afterwards. With 100 requests/s and a burst of 2 s:

    now      level
    0 s      200        200 requests at once are fine, the next one is told to come back in 10 ms
    1 s      100
    2 s      200        full again
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BURST_S = 2.0
CALLERS_MAX = 10_000
"""Callers remembered; the one that has not called for the longest time is forgotten, which gives it a full bucket."""


@dataclass(slots=True)
class _Bucket:
    requests: float
    bytes: float
    at_s: float


class Rates:
    """The buckets of all callers. 0 means no limit; `now_s` is a monotonic clock."""

    def __init__(self, *, requests_per_s: int, bytes_per_s: int, now_s: Callable[[], float]) -> None:
        self._requests_per_s = requests_per_s
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._buckets: dict[str, _Bucket] = {}

    def spend(self, caller: str, *, requests: int = 0, bytes_: int = 0) -> int | None:
        """Charge a caller. None when it may go on; else in how many ms to come back, and nothing is charged."""
        bucket = self._filled(caller)
        wait_s = 0.0
        if self._requests_per_s and requests and bucket.requests < requests:
            wait_s = (requests - bucket.requests) / self._requests_per_s
        if self._bytes_per_s and bucket.bytes <= 0:
            wait_s = max(wait_s, (1 - bucket.bytes) / self._bytes_per_s)
        if wait_s:
            return max(1, round(wait_s * 1000))
        bucket.requests -= requests
        bucket.bytes -= bytes_
        return None

    def owe(self, caller: str, *, bytes_: int) -> None:
        """Charge what has already been taken in."""
        self._filled(caller).bytes -= bytes_

    def _filled(self, caller: str) -> _Bucket:
        now_s = self._now_s()
        bucket = self._buckets.pop(caller, None)
        if bucket is None:
            bucket = _Bucket(self._requests_per_s * BURST_S, self._bytes_per_s * BURST_S, now_s)
        else:
            elapsed_s = max(0.0, now_s - bucket.at_s)
            bucket.requests = min(self._requests_per_s * BURST_S, bucket.requests + elapsed_s * self._requests_per_s)
            bucket.bytes = min(self._bytes_per_s * BURST_S, bucket.bytes + elapsed_s * self._bytes_per_s)
            bucket.at_s = now_s
        self._buckets[caller] = bucket  # at the end: dicts keep the order of insertion
        if len(self._buckets) > CALLERS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return bucket

"""How long an address that keeps failing to authenticate has to wait. Pure: time comes in as an argument.

The first few (`free_failures`) cost nothing: people mistype. Each one after that closes the address for twice as long
as the one before, from FIRST_WAIT_MS to WAIT_MS_MAX. An address that has been quiet for FORGET_MS starts afresh.

This is for what a wrong guess costs (checking a signature, a line in a log), not against guessing: 256 random bits
are not guessed. So a valid static token is accepted at any time, even from behind the proxy of an attacker.
"""

from __future__ import annotations

from dataclasses import dataclass

FREE_FAILURES = 10
"""Unless `auth.free_failures` says otherwise."""

FIRST_WAIT_MS = 1_000
WAIT_MS_MAX = 60_000
FORGET_MS = 600_000
ADDRESSES_MAX = 10_000
"""Addresses remembered; the one that failed longest ago is forgotten first."""


@dataclass(slots=True)
class _Failures:
    count: int
    last_ms: int
    closed_until_ms: int


class Backoff:
    """The failures of all addresses. Times are monotonic ms."""

    def __init__(self, free_failures: int = FREE_FAILURES) -> None:
        self._free_failures = free_failures
        self._failures: dict[str, _Failures] = {}

    def wait_ms(self, address: str, now_ms: int) -> int:
        """How long the address has to wait; 0 when it may try."""
        failures = self._failures.get(address)
        return 0 if failures is None else max(0, failures.closed_until_ms - now_ms)

    def failed(self, address: str, now_ms: int) -> None:
        """Count one failure."""
        failures = self._failures.pop(address, None)
        if failures is None or now_ms - failures.last_ms >= FORGET_MS:
            failures = _Failures(0, now_ms, now_ms)
        failures.count += 1
        failures.last_ms = now_ms
        if failures.count > self._free_failures:
            doublings = min(failures.count - self._free_failures - 1, 16)
            failures.closed_until_ms = now_ms + min(FIRST_WAIT_MS << doublings, WAIT_MS_MAX)
        self._failures[address] = failures  # at the end: dicts keep the order of insertion
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]

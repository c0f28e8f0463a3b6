"""What can be chosen for one consumer group, with its defaults, and the back-off table's text form."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.groups.errors import IllegalRequest

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STEP = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)", re.ASCII)
BACKOFF_MS_LIMIT = 365 * _UNITS_MS["d"]
BACKOFF_STEPS_MAX = 64


def parse_backoff(text: str) -> tuple[int, ...]:
    """The waits in a text like "10s 30s 1m 2h", in milliseconds. Raises IllegalRequest."""
    steps = [_STEP.fullmatch(step) for step in text.split()]
    waits_ms = tuple(int(step[1]) * _UNITS_MS[step[2]] for step in steps if step)
    if not 1 <= len(waits_ms) == len(steps) <= BACKOFF_STEPS_MAX or max(waits_ms) > BACKOFF_MS_LIMIT:
        raise IllegalRequest(
            f'a back-off table is 1 to {BACKOFF_STEPS_MAX} waits like "10s 30s 1m 2h", none over a year: {text!r}'
        )
    return waits_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of one group. The second half is for queue mode only."""

    strategy: str | None = "sticky"
    """Name of the allocation strategy. None: a member computes the assignment, as in Kafka's classic protocol."""

    members_max: int = 1000
    session_timeout_ms: int = 30_000
    """For members that name none. A member not heard from for longer is out; shorter finds dead ones sooner and
    expires more that were only slow."""

    session_timeout_ms_min: int = 1_000
    session_timeout_ms_max: int = 1_800_000

    drain_timeout_ms: int = 60_000
    """How long a member may take to give up a partition that is to move. After that it is out, heartbeats or not:
    otherwise one stuck member keeps a partition from everybody."""

    rebalance_interval_ms: int = 20_000
    """How often the shell asks whether the assignment is still what it should be, though nothing has happened."""

    invisible_ms: int = 30_000
    """How long a lease lasts when a request names no time."""

    invisible_ms_max: int = 43_200_000
    max_attempts: int = 16
    """Deliveries of a record before it is dead-lettered."""

    backoff_ms: tuple[int, ...] = parse_backoff("10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
    """Waits before the second, third, … delivery of a record that was given back; the last one repeats."""

    in_flight_max: int = 10_000
    """Records of one partition between the first and the last delivered one that are not settled. Bounds memory."""

    fifo: bool = False
    """Deliver the records of one message group one after the other."""

    def __post_init__(self) -> None:
        if not self.session_timeout_ms_min <= self.session_timeout_ms <= self.session_timeout_ms_max:
            raise IllegalRequest("session_timeout_ms must lie between its min and max")
        if not self.backoff_ms or min(self.backoff_ms) < 0:
            raise IllegalRequest("backoff_ms must name at least one wait")
        if not 1 <= self.invisible_ms <= self.invisible_ms_max:
            raise IllegalRequest("invisible_ms must lie between 1 and invisible_ms_max")
        positive = ("members_max", "drain_timeout_ms", "rebalance_interval_ms", "max_attempts", "in_flight_max")
        for name in positive:
            if getattr(self, name) < 1:
                raise IllegalRequest(f"{name} must be at least 1")

"""What can be chosen for one consumer group, with its defaults, and the back-off table's text form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from gateway.groups.machines.errors import IllegalRequest
from store.limits import PARTITIONS_MAX

SHARED = "shared"
BROADCAST = "broadcast"

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STEP = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)", re.ASCII)
BACKOFF_MS_LIMIT = 365 * _UNITS_MS["d"]
BACKOFF_STEPS_MAX = 64
INVISIBLE_MS_MAX = 12 * _UNITS_MS["h"]
"""The longest lease that a request may ask for."""

INVISIBLE_MS_LIMIT = 365 * _UNITS_MS["d"]
"""The longest that a group may say: the end of a lease has its place in receipts and events."""


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

    mode: str = SHARED
    """SHARED: the members share the partitions. BROADCAST: each member has all of them, and offsets of its own."""

    strategy: str | None = "sticky"
    """Name of the allocation strategy. None: a member computes the assignment, as in Kafka's classic protocol."""

    strategy_options: Mapping[str, object] = field(default_factory=dict)
    """What the strategy takes; see `strategies.registry`."""

    members_max: int = 1000
    session_timeout_ms: int = 30_000
    """For members that name none. A member not heard from for longer is out; shorter finds dead ones sooner and
    expires more that were only slow."""

    session_timeout_ms_min: int = 1_000
    session_timeout_ms_max: int = 1_800_000

    drain_timeout_ms: int = 60_000
    """How long a member may take to give up a partition that is to move. After that it is out, heartbeats or not:
    otherwise one stuck member keeps a partition from all others."""

    rebalance_interval_ms: int = 20_000
    """How often the shell asks whether the assignment is still what it should be, though nothing has happened."""

    invisible_ms: int = 30_000
    """How long a lease lasts when a request names no time."""

    invisible_ms_max: int = INVISIBLE_MS_MAX
    max_attempts: int = 16
    """Deliveries of a record before it is dead-lettered."""

    backoff_ms: tuple[int, ...] = parse_backoff("10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
    """Waits before the second, third, … delivery of a record that was given back; the last one repeats."""

    in_flight_max: int = 10_000
    """Records of one partition between the first and the last delivered one that are not settled. Bounds memory."""

    fifo: bool = False
    """Deliver the records of one message group one after the other."""

    retry_through_timer_ms: int = 1_000
    """Waits from this length on are spent as a copy in the timer, and the record itself is done; shorter ones, and
    those of a message group, in place. A record that waits in place holds back the committed offset and is open."""

    retry_partitions: int = 1
    """Partitions of the group's retry topic, made with the first copy."""

    def __post_init__(self) -> None:
        if not self.session_timeout_ms_min <= self.session_timeout_ms <= self.session_timeout_ms_max:
            raise IllegalRequest("session_timeout_ms must lie between its min and max")
        if not self.backoff_ms or min(self.backoff_ms) < 0:
            raise IllegalRequest("backoff_ms must name at least one wait")
        if not 1 <= self.invisible_ms <= self.invisible_ms_max:
            raise IllegalRequest("invisible_ms must lie between 1 and invisible_ms_max")
        if self.mode not in (SHARED, BROADCAST):
            raise IllegalRequest(f'mode must be "{SHARED}" or "{BROADCAST}"')
        if not 1 <= self.retry_partitions <= PARTITIONS_MAX:
            raise IllegalRequest(f"retry_partitions must lie between 1 and {PARTITIONS_MAX}")
        if self.retry_through_timer_ms < 0:
            raise IllegalRequest("retry_through_timer_ms must not be negative")
        positive = ("members_max", "drain_timeout_ms", "rebalance_interval_ms", "max_attempts", "in_flight_max")
        for name in positive:
            if getattr(self, name) < 1:
                raise IllegalRequest(f"{name} must be at least 1")


def with_changes(config: GroupConfig, changes: Mapping[str, object]) -> GroupConfig:
    """The settings with some of them changed, by name; None takes a setting back to its default, but for `strategy`,
    where it means that a member computes the assignment. Raises IllegalRequest for an unknown name or a wrong type.

    `backoff_ms` is a list of waits in milliseconds, or a text as `parse_backoff` reads it.
    """
    default = GroupConfig()
    read: dict[str, object] = {}
    for name, value in changes.items():
        if name not in _NAMES:
            raise IllegalRequest(f"a group has no setting {name}; there are {', '.join(sorted(_NAMES))}")
        read[name] = getattr(default, name) if value is None and name != "strategy" else _checked(name, value, default)
    return replace(config, **read)  # type: ignore[arg-type]


def changed_settings(config: GroupConfig) -> dict[str, object]:
    """The settings that are not the default, for `with_changes`: what has to be kept of a configuration."""
    default = asdict(GroupConfig())
    return {name: value for name, value in asdict(config).items() if value != default[name]}


_NAMES = frozenset(item.name for item in fields(GroupConfig))


def _checked(name: str, value: object, default: GroupConfig) -> object:
    """A value in its setting's type."""
    usual = getattr(default, name)
    if name == "backoff_ms":
        if isinstance(value, str):
            return parse_backoff(value)
        if not isinstance(value, list | tuple) or not all(type(wait_ms) is int for wait_ms in value):
            raise IllegalRequest('backoff_ms must be a list of milliseconds or a text like "10s 30s 1m"')
        if len(value) > BACKOFF_STEPS_MAX or any(wait_ms > BACKOFF_MS_LIMIT for wait_ms in value):
            raise IllegalRequest(f"backoff_ms has at most {BACKOFF_STEPS_MAX} waits, none over a year")
        return tuple(value)
    if name == "strategy" and value is None:
        return None
    if name == "strategy_options":
        if not isinstance(value, dict):
            raise IllegalRequest("strategy_options must be an object")
        return value
    if type(value) is not type(usual):  # true is no number here
        raise IllegalRequest(f"{name} must be a {_TYPE_NAMES[type(usual)]}")
    return value


_TYPE_NAMES: dict[type, str] = {int: "whole number", bool: "boolean", str: "string"}

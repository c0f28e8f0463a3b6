"""What an attack is, what is seen of its victim meanwhile, and when the victim has failed. Pure.

A row of the report has numbers only when all of them were measured: a victim that died, or that answered no health
check, is a failed row without any.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    pass

MiB = 1024 * 1024

Numbers = Mapping[str, int]
Run = Callable[..., Awaitable[None]]
"""Takes the attacker, and the attack's numbers by name."""

Prepare = Callable[..., Awaitable[None]]
"""The same, for what an operator has put into the server before. Memory is compared with what it was after this."""


class Victim(NamedTuple):
    """A way to start a server; all else is as by default."""

    name: str
    handle_limit: int | None = None
    """Files and sockets that the process may have. None: as the system has it."""

    is_secured: bool = False
    """It asks who one is, by token or JWT, speaks TLS, and logs every request."""

    is_node: bool = False
    """It is a node of a cluster, with an etcd (which must be installed), and listens for other nodes."""


DEFAULT = Victim("default")
SECURED = Victim("secured", is_secured=True)
NODE = Victim("node", is_node=True)


class Kept(NamedTuple):
    """What is remembered: of what, for how long, and what each of them may take."""

    number: str
    """The name of the attack's number that says how many there are."""

    text: str
    bytes_each_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack, in two sizes."""

    name: str
    tried: str
    """What it does, with its numbers in braces."""

    run: Run
    full: Numbers
    short: Numbers | None
    """None: only in full."""

    prepare: Prepare | None = None
    victim: Victim = DEFAULT
    keeps: Kept | None = None
    """What the server has promised to remember for this client: so much of its memory need not go back."""

    timeout_s: float = 120.0

    def numbers(self, *, is_short: bool) -> Numbers | None:
        """Of one size."""
        return self.short if is_short else self.full

    def kept_bytes_max(self, numbers: Numbers) -> int:
        """What the server may keep of it."""
        return 0 if self.keeps is None else self.keeps.bytes_each_max * numbers[self.keeps.number]

    def text(self, numbers: Numbers) -> str:
        """What is done with these numbers."""
        return self.tried.format_map({name: f"{value:,}" for name, value in numbers.items()})


@dataclass(slots=True)
class Outcome:
    """What the attacker saw. `problems` are answers that no server may give."""

    seen: dict[str, int]
    problems: list[str]


class Bounds(NamedTuple):
    """What must hold. `rss_bytes` and the others are the largest that are good."""

    rss_bytes: int
    back_bytes: int | None
    """Above the start, after a minute of quiet. None: not looked at."""

    health_ms: float
    gap_ms: float
    """Between two sends of another client that were acknowledged."""

    late_ms: float
    """A delayed record of another client, at its delivery."""

    turn_ms: float
    """CPU time of a turn of the event loop, with all that hundreds of connections have sent at once."""


QUIET_MAX_S = 60.0
FULL = Bounds(rss_bytes=512 * MiB, back_bytes=50 * MiB, health_ms=1_000, gap_ms=2_000, late_ms=1_000, turn_ms=50)
SHORT = Bounds(rss_bytes=512 * MiB, back_bytes=None, health_ms=5_000, gap_ms=10_000, late_ms=10_000, turn_ms=100)
"""Other tests run beside it and take the processor; what a turn takes of it grows with them, too: twice the bound, and
no look at how slow the machine is."""

STOP_RSS_BYTES = 2048 * MiB
"""The attack has won, and is ended before the machine is out of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured of one attack."""

    start_bytes: int
    worst_bytes: int
    health_ms: float
    handles: int
    gap_ms: float
    late_ms: float | None
    """None: no delayed record was due."""

    turn_ms: float
    """The longest turn of the event loop used the CPU for at most this; 0: for less than the server counts (50 ms)."""

    slowness: float
    """Of the machine meanwhile (loadtest/slowness.py): what the bound of turns is multiplied by."""

    back_bytes: int | None
    back_s: float
    """What it had after so many seconds of quiet."""


def problems_of(figures: Figures, bounds: Bounds, *, kept_bytes_max: int = 0) -> list[str]:
    """What did not hold, in words. `kept_bytes_max`: what need not go back."""
    found = []

    def bounded(what: str, value: float | None, largest: float, unit: str) -> None:
        if value is not None and value > largest:
            found.append(f"{what} {value:,.0f} {unit}, more than {largest:,.0f}")

    bounded("memory", figures.worst_bytes / MiB, bounds.rss_bytes / MiB, "MiB")
    if bounds.back_bytes is not None and figures.back_bytes is not None:
        after = f"memory after {figures.back_s:.0f} s of quiet: above the start by"
        kept = figures.back_bytes - figures.start_bytes
        bounded(after, kept / MiB, (bounds.back_bytes + kept_bytes_max) / MiB, "MiB")
    bounded("slowest health check", figures.health_ms, bounds.health_ms, "ms")
    bounded("time between two sends acknowledged", figures.gap_ms, bounds.gap_ms, "ms")
    bounded("a delayed record was late by", figures.late_ms, bounds.late_ms, "ms")
    slow = "" if figures.slowness == 1 else f" on a machine that is {figures.slowness:.1f} times as slow"
    bounded(f"longest turn of the event loop{slow}", figures.turn_ms, bounds.turn_ms * figures.slowness, "ms")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attack of the report. Times are seconds since the run began."""

    name: str
    tried: str
    victim: str
    began_s: float
    ended_s: float
    """When the attacker was gone; quiet follows."""

    figures: Figures | None
    """None: the victim died, or a number is missing."""

    seen: Mapping[str, int]
    problems: Sequence[str]
    keeps: str = ""
    """What was promised, and what each of it takes."""

    @property
    def is_good(self) -> bool:
        """Whether everything held."""
        return self.figures is not None and not self.problems

"""Which brokers to avoid for a while: a table from how long a broker took to how long it is left alone. Pure.

A penalty table is read from its slowest row down; the first row the latency reaches says the penalty. A failure counts
as a latency of its own. Two tables of RocketMQ are here: CURRENT (5.x), mild enough that a broker is tried again
soon, and LEGACY (4.x, the one of the original article), which leaves a broker alone for minutes.

    latency from ms      50    100    550   1800   3000   5000   15000          failure counts as 10,000
    CURRENT              0      0    2000   5000   6000  10000   30000

    latency from ms      50    100    550   1000   2000   3000   15000          failure counts as 30,000
    LEGACY               0      0   30000  60000 120000 180000  600000

A broker that is avoided is *unavailable*; one that failed and has not answered since is *unreachable* too. Whoever
chooses takes an available broker, else a reachable one, else any (`gateway/routing/select.py`): no request is refused
because all brokers are slow.

Invariants
    F1  every penalty ends: without further sends a broker is available again after at most the largest one
    F2  a penalty is prolonged by a worse one, and never shortened by a milder one
    F3  a broker never heard of is available and reachable; the table holds only brokers with a penalty or a failure
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

MEAN_COUNT = 64
"""About how many answers the mean of latencies looks back."""


class Penalty(NamedTuple):
    """From this latency on a broker is left alone for so long."""

    latency_ms: float
    avoid_ms: float


@dataclass(frozen=True, slots=True)
class PenaltyTable:
    """Penalties in rising order of latency, and the latency that a failure counts as."""

    penalties: Sequence[Penalty]
    failure_latency_ms: float

    def avoid_ms(self, latency_ms: float) -> float:
        """How long a broker of this latency is left alone."""
        for penalty in reversed(self.penalties):
            if latency_ms >= penalty.latency_ms:
                return penalty.avoid_ms
        return 0


def _table(latencies_ms: Sequence[int], avoid_ms: Sequence[int], failure_latency_ms: int) -> PenaltyTable:
    return PenaltyTable(tuple(map(Penalty, latencies_ms, avoid_ms)), failure_latency_ms)


CURRENT = _table((50, 100, 550, 1800, 3000, 5000, 15000), (0, 0, 2000, 5000, 6000, 10000, 30000), 10_000)
LEGACY = _table((50, 100, 550, 1000, 2000, 3000, 15000), (0, 0, 30000, 60000, 120000, 180000, 600000), 30_000)
OFF = PenaltyTable((), 0)
"""No broker is avoided for its latency, nor after a failure: only by the second attempt of the send that failed."""

FaultTable = Literal["off", "5.x", "4.x"]
TABLES: Mapping[FaultTable, PenaltyTable] = {"off": OFF, "5.x": CURRENT, "4.x": LEGACY}
"""By what an operator calls them."""


@dataclass(slots=True)
class _Fault:
    available_from_ms: float
    is_reachable: bool


class LatencyFaults:
    """What is known of each broker. Times are monotonic, in ms, and come from the caller."""

    def __init__(self, table: PenaltyTable = CURRENT) -> None:
        self._table = table
        self._mildest_ms = min((p.latency_ms for p in table.penalties if p.avoid_ms), default=float("inf"))
        self._faults: dict[str, _Fault] = {}
        self._means_ms: dict[str, float] = {}

    def __bool__(self) -> bool:
        """False when no broker need be avoided: the usual case, and the cheapest question."""
        return bool(self._faults)

    def answered(self, broker: str, latency_ms: float, now_ms: float) -> None:
        """A broker did what it was asked, in this time."""
        mean_ms = self._means_ms.get(broker, latency_ms)
        self._means_ms[broker] = mean_ms + (latency_ms - mean_ms) / MEAN_COUNT
        if latency_ms < self._mildest_ms and broker not in self._faults:
            return
        fault = self._penalise(broker, self._table.avoid_ms(latency_ms), now_ms)
        fault.is_reachable = True
        if fault.available_from_ms <= now_ms:
            del self._faults[broker]

    def failed(self, broker: str, now_ms: float, *, is_reachable: bool = True) -> None:
        """A broker did not do what it was asked; `is_reachable` False: it did not even answer."""
        fault = self._penalise(broker, self._table.avoid_ms(self._table.failure_latency_ms), now_ms)
        fault.is_reachable = is_reachable

    def reached(self, broker: str) -> None:
        """A broker has answered a question that took no records: it is reachable, and its penalty goes on."""
        if (fault := self._faults.get(broker)) is not None:
            fault.is_reachable = True

    def unreachable(self) -> list[str]:
        """The brokers that have not answered since they last did not."""
        return [broker for broker, fault in self._faults.items() if not fault.is_reachable]

    def _penalise(self, broker: str, avoid_ms: float, now_ms: float) -> _Fault:
        fault = self._faults.setdefault(broker, _Fault(now_ms, True))
        fault.available_from_ms = max(fault.available_from_ms, now_ms + avoid_ms)
        return fault

    def latency_ms(self, broker: str) -> float | None:
        """What a broker took lately, on average; None when it was never asked."""
        return self._means_ms.get(broker)

    def avoided_ms(self, broker: str, now_ms: float) -> float:
        """How long a broker is left alone from now on."""
        fault = self._faults.get(broker)
        return 0 if fault is None else max(fault.available_from_ms - now_ms, 0)

    def is_available(self, broker: str, now_ms: float) -> bool:
        """Whether a broker need not be avoided now."""
        fault = self._faults.get(broker)
        return fault is None or now_ms >= fault.available_from_ms

    def is_reachable(self, broker: str) -> bool:
        """Whether a broker has answered since it last did not."""
        fault = self._faults.get(broker)
        return fault is None or fault.is_reachable

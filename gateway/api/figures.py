"""What runs through the server, how much waits, and what is wrong: now, over the last minutes, over the last day.

Once a second the counters are read, looked at or not, and kept in rings of fixed size: SECONDS points a second
apart and MINUTES points a minute apart, a point of a minute being the mean of its seconds. Nothing is looked through
for it: what is read are counters, and gauges that others keep. So a page that draws all of it costs what it weighs.

An alarm has a code that stays, since when, and what to do. It is on while its condition holds; a step of the clock,
which has no end, for CLOCK_STEP_SHOWN_MS.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isnan, nan
from typing import Literal, NamedTuple

log = logging.getLogger(__name__)

SECONDS, MINUTES = 900, 1_440
"""Points of the two rings."""

STEP_MS, MINUTE_MS = 1_000, 60_000
GROUP_SECONDS, GROUP_STEP_MS = 180, 5_000
"""Points of a group's lag that are kept finely, and how far they are apart: as often as lags are read."""

GROUP_HISTORIES_MAX = 1_000
"""Groups whose lag is kept over time: 13 KiB each, once a day is full."""

CLOCK_STEP_MS = 1_000
"""By how much the wall clock and the monotonic one may disagree between two readings."""

CLOCK_STEP_SHOWN_MS = 600_000
TIMER_BEHIND_MS = 5_000
LAGGING_COUNT = 1_000
"""A group that has fewer records before it is not called lagging."""

LAGGING_MS = 300_000
"""How long its lag must have grown."""

LAGGING_SHOWN_MAX = 10
Severity = Literal["error", "warning"]
Points = Literal["seconds", "minutes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters since start; a rate is made of each."""

    in_records: int = 0
    in_bytes: int = 0
    out_records: int = 0
    out_bytes: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """How much there is now; None where it is not known."""

    lag: int | None = None
    pending: int | None = None
    topics: int | None = None
    partitions: int | None = None
    groups: int | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    log_bytes: int | None = None
    rss_bytes: int | None = None
    loop_p99_ms: float | None = None
    connections: int | None = None
    sockets: int | None = None


class Trouble(NamedTuple):
    """What is wrong now. `group`: in which group, if it is one's."""

    code: str
    severity: Severity
    message: str
    help: str
    group: str | None = None


class Alarm(NamedTuple):
    """A trouble, and since when (epoch ms)."""

    trouble: Trouble
    since_ms: int


class Reading(NamedTuple):
    """One look at everything. `group_lags`: of the groups whose lag is known."""

    counters: Counters
    gauges: Gauges
    troubles: Sequence[Trouble]
    group_lags: Mapping[str, int]
    lags_version: int
    """Changes when lags were read anew."""

    appended: Mapping[int, Sequence[int]]
    """Records and bytes by topic id, since start."""

    pending_by_topic: Callable[[], Mapping[int, int]]


NO_READING = Reading(Counters(), Gauges(), (), {}, 0, {}, dict)
_RATES = tuple(f"{field.name}_s" for field in fields(Counters))
_GAUGES = tuple(field.name for field in fields(Gauges))
SERIES = (*_RATES, "lag", "pending", "disk_free_bytes", "rss_bytes", "loop_p99_ms", "connections")
"""What is kept over time."""


class Ring:
    """The last points of some series, all of the same times. Memory is fixed once it is full."""

    def __init__(self, names: Sequence[str], size: int) -> None:
        self._size = size
        self._columns = {name: array("d") for name in names}
        self._next = 0

    def add(self, point: Mapping[str, float | None]) -> None:
        """Add one point; what it does not name was not measured."""
        for name, column in self._columns.items():
            given = point.get(name)
            figure = nan if given is None else float(given)
            if len(column) < self._size:
                column.append(figure)
            else:
                column[self._next] = figure
        self._next = (self._next + 1) % self._size

    def series(self) -> dict[str, list[float | None]]:
        """All points, the oldest first; None: not measured."""
        return {name: [None if isnan(one) else one for one in self._ordered(name)] for name in self._columns}

    def last(self, name: str, count: int) -> list[float]:
        """Up to `count` points of one series, the newest last; nan: not measured."""
        return list(self._ordered(name)[-count:])

    def _ordered(self, name: str) -> array[float]:
        column = self._columns[name]
        first = self._next if len(column) == self._size else 0
        return column[first:] + column[:first]


class History(NamedTuple):
    """Series of points `step_ms` apart, the last one at `end_ms`."""

    step_ms: int
    end_ms: int
    series: Mapping[str, list[float | None]]


class _TwoRings:
    """Fine points, and coarse ones that are their means."""

    def __init__(self, names: Sequence[str], fine: int, fine_step_ms: int) -> None:
        self._names = names
        self._step_ms = fine_step_ms
        self._fine, self._coarse = Ring(names, fine), Ring(names, MINUTES)
        self._a_minute = MINUTE_MS // fine_step_ms
        self._count = 0
        self._fine_ms = self._coarse_ms = 0

    def add(self, now_ms: int, point: Mapping[str, float | None]) -> None:
        self._fine.add(point)
        self._fine_ms = now_ms
        self._count += 1
        if self._count % self._a_minute == 0:
            means = {}
            for name in self._names:
                known = [one for one in self._fine.last(name, self._a_minute) if not isnan(one)]
                means[name] = sum(known) / len(known) if known else None
            self._coarse.add(means)
            self._coarse_ms = now_ms

    def history(self, points: Points) -> History:
        if points == "seconds":
            return History(self._step_ms, self._fine_ms, self._fine.series())
        return History(MINUTE_MS, self._coarse_ms, self._coarse.series())

    def last(self, name: str, count: int) -> list[float]:
        return self._fine.last(name, count)


class Figures:
    """All of one server. `tick` with each second (`run` does); the rest answers from memory.

    `read` looks at everything; `clock_ms` is the wall's, `monotonic_ms` for intervals.
    """

    def __init__(
        self, read: Callable[[], Reading], *, clock_ms: Callable[[], int], monotonic_ms: Callable[[], int]
    ) -> None:
        self._read = read
        self._clock_ms = clock_ms
        self._monotonic_ms = monotonic_ms
        self._reading = NO_READING
        self._at_ms: tuple[int, int] | None = None  # wall, monotonic
        self._rings = _TwoRings(SERIES, SECONDS, STEP_MS)
        self._groups: dict[str, _TwoRings] = {}
        self._lags_version = 0
        self._alarms: dict[tuple[str, str | None], Alarm] = {}
        self._clock_stepped: tuple[int, Trouble] | None = None
        self._rates: dict[str, float | None] = dict.fromkeys(_RATES)
        self._topic_rates: dict[int, tuple[float, float]] = {}
        self._topics_at: tuple[int, Mapping[int, tuple[int, int]]] | None = None
        self._ticked = asyncio.Event()
        self.time_ms = 0
        """When it was looked last, epoch ms; 0: not yet."""

    # What is

    def now(self) -> dict[str, float | None]:
        """Rates of the last second, and what there is now."""
        gauges = self._reading.gauges
        return {**self._rates, **{name: getattr(gauges, name) for name in _GAUGES}}

    def history(self, points: Points) -> History:
        """The rates and gauges that are kept over time."""
        return self._rings.history(points)

    def group_history(self, group: str, points: Points) -> History | None:
        """The lag of a group over time; None when none is kept of it."""
        rings = self._groups.get(group)
        return None if rings is None else rings.history(points)

    def alarms(self) -> list[Alarm]:
        """What is wrong, errors first, then what began first."""
        return sorted(self._alarms.values(), key=lambda alarm: (alarm.trouble.severity, alarm.since_ms, alarm.trouble))

    def group_lag(self, group: str) -> int | None:
        """The lag of a group, some seconds ago; None: it is not known."""
        return self._reading.group_lags.get(group)

    def topic_rate(self, topic_id: int) -> tuple[float, float]:
        """Records and bytes a second that a topic got lately."""
        return self._topic_rates.get(topic_id, (0.0, 0.0))

    def appended(self, topic_id: int) -> tuple[int, int]:
        """Records and bytes that a topic got since the server started."""
        records, size = self._reading.appended.get(topic_id, (0, 0))
        return records, size

    def pending_by_topic(self) -> Mapping[int, int]:
        """Delayed records that are to come, by topic id."""
        return self._reading.pending_by_topic()

    async def next_tick(self) -> None:
        """Wait for the next look."""
        await self._ticked.wait()

    # What goes on

    async def run(self) -> None:
        """Look once a second until cancelled. A look that fails is in the log, and stops nothing: no records wait
        for it."""
        while True:
            try:
                self.tick()
            except Exception:
                log.exception("figures could not be read")
            await asyncio.sleep(STEP_MS / 1000)

    def tick(self) -> None:
        """Look at everything, and keep it."""
        reading = self._read()
        now_ms, monotonic_ms = self._clock_ms(), self._monotonic_ms()
        step: Trouble | None = None
        if self._at_ms is not None and (passed_ms := monotonic_ms - self._at_ms[1]) > 0:
            before = self._reading.counters
            for field, rate in zip(fields(Counters), _RATES, strict=True):
                grown = getattr(reading.counters, field.name) - getattr(before, field.name)
                self._rates[rate] = max(grown, 0) * 1000 / passed_ms
            step = _clock_step(now_ms - self._at_ms[0] - passed_ms)
        self._reading, self._at_ms, self.time_ms = reading, (now_ms, monotonic_ms), now_ms
        self._rings.add(now_ms, self.now())
        self._rate_topics(monotonic_ms, reading.appended)
        if reading.lags_version != self._lags_version:
            self._lags_version = reading.lags_version
            self._keep_lags(now_ms, reading.group_lags)
        self._judge(now_ms, monotonic_ms, step)
        self._ticked.set()
        self._ticked = asyncio.Event()

    def _rate_topics(self, monotonic_ms: int, appended: Mapping[int, Sequence[int]]) -> None:
        """Every GROUP_STEP_MS: who draws ten thousand topics needs no newer rates."""
        if self._topics_at is None:
            self._topics_at = monotonic_ms, _frozen(appended)
            return
        then_ms, before = self._topics_at
        passed_ms = monotonic_ms - then_ms
        if passed_ms < GROUP_STEP_MS:
            return
        rates = {}
        for topic_id, (records, size) in appended.items():
            was = before.get(topic_id, (0, 0))
            if records != was[0]:
                rates[topic_id] = (records - was[0]) * 1000 / passed_ms, (size - was[1]) * 1000 / passed_ms
        self._topic_rates = rates
        self._topics_at = monotonic_ms, _frozen(appended)

    def _keep_lags(self, now_ms: int, lags: Mapping[str, int]) -> None:
        for gone in self._groups.keys() - lags.keys():
            del self._groups[gone]
        for group, lag in lags.items():
            rings = self._groups.get(group)
            if rings is None:
                if len(self._groups) >= GROUP_HISTORIES_MAX:
                    continue
                rings = self._groups[group] = _TwoRings(("lag",), GROUP_SECONDS, GROUP_STEP_MS)
            rings.add(now_ms, {"lag": lag})

    def _judge(self, now_ms: int, monotonic_ms: int, step: Trouble | None) -> None:
        if step is not None:
            self._clock_stepped = monotonic_ms, step
        troubles = [*self._reading.troubles, *self._lagging()]
        if self._clock_stepped is not None:
            at_ms, stepped = self._clock_stepped
            if monotonic_ms - at_ms < CLOCK_STEP_SHOWN_MS:
                troubles.append(stepped)
            else:
                self._clock_stepped = None
        on: dict[tuple[str, str | None], Alarm] = {}
        for trouble in troubles:
            known = self._alarms.get((trouble.code, trouble.group))
            since_ms = now_ms if known is None or trouble is step else known.since_ms
            on[trouble.code, trouble.group] = Alarm(trouble, since_ms)
        self._alarms = on

    def _lagging(self) -> list[Trouble]:
        """The groups whose lag has grown for a while, the largest first."""
        count = LAGGING_MS // GROUP_STEP_MS
        found: list[tuple[int, str]] = []
        for group, rings in self._groups.items():
            lag = self._reading.group_lags.get(group, 0)
            if lag >= LAGGING_COUNT and len(lags := rings.last("lag", count)) == count and lag > lags[0] > 0:
                found.append((lag, group))
        found.sort(reverse=True)
        return [
            Trouble(
                "group_lagging",
                "warning",
                f"Group {group} falls behind: {lag} records wait, more than {LAGGING_MS // 60_000} minutes ago.",
                "Look at its members and its dead letters; start more consumers, or make each faster.",
                group,
            )
            for lag, group in found[:LAGGING_SHOWN_MAX]
        ]


def no_figures() -> Figures:
    """Those of a server that has none."""
    return Figures(lambda: NO_READING, clock_ms=lambda: 0, monotonic_ms=lambda: 0)


def _frozen(appended: Mapping[int, Sequence[int]]) -> dict[int, tuple[int, int]]:
    return {topic_id: (records, size) for topic_id, (records, size) in appended.items()}


def _clock_step(apart_ms: int) -> Trouble | None:
    if abs(apart_ms) < CLOCK_STEP_MS:
        return None
    way = "forward" if apart_ms > 0 else "back"
    return Trouble(
        "clock_step",
        "warning",
        f"The clock of this machine was set {way} by {abs(apart_ms) / 1000:.1f} s.",
        "Delayed records are due by this clock. Let chrony or ntpd slew it instead of setting it.",
    )

"""What a run counts besides Locust's own statistics, by the second and in total. Pure: time is passed in.

Every process counts; a worker hands its counts to the master now and then (`take`), which adds them to its own. The
columns of the CSV file, one row every second (every six on a master, whose workers report every three):

    time_s           epoch, seconds
    users            Locust users
    acknowledged, long_poll, reader, stream, queue     records a second: sent, and read in each way
    redelivered      records a second that came to a group more than once
    delayed          delayed records a second that fell due
    late_p50_ms, late_p99_ms, late_max_ms              how late they were stored; empty without any
    push_p50_ms, push_p99_ms                           from the store to a socket user's hand; empty without any
    locust_cpu_percent                                 of one core, the busiest of Locust's processes
    server_cpu_percent, server_rss_mb                  when the server's process is known
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, TypedDict

COUNTS = ("acknowledged", "long_poll", "reader", "stream", "queue", "redelivered", "delayed")
TIMES = ("late", "push")
COLUMNS = (
    "time_s", "users", *COUNTS, "late_p50_ms", "late_p99_ms", "late_max_ms", "push_p50_ms", "push_p99_ms",
    "locust_cpu_percent", "server_cpu_percent", "server_rss_mb",
)  # fmt: skip
MS_MAX = 60_000
"""Times above this count as this: the histograms stay small."""

Histogram = Counter[int]


class Report(TypedDict):
    """What a worker sends to its master: counts since the last one, and the CPU time of its process so far."""

    counts: dict[str, int]
    times: dict[str, dict[int, int]]
    cpu_s: float


class Machine(NamedTuple):
    """What the server's process has taken so far (CPU) and has now (memory)."""

    cpu_s: float
    rss_bytes: int


class Metrics:
    """Counts of this process since they were last taken."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._times: dict[str, Histogram] = {name: Counter() for name in TIMES}

    def count(self, name: str, number: int = 1) -> None:
        """One of COUNTS."""
        self._counts[name] += number

    def time(self, name: str, took_ms: float) -> None:
        """One of TIMES."""
        self._times[name][min(max(round(took_ms), 0), MS_MAX)] += 1

    def take(self, cpu_s: float) -> Report:
        """What has been counted since, which then begins at 0."""
        report = Report(
            counts=dict(self._counts), times={name: dict(one) for name, one in self._times.items()}, cpu_s=cpu_s
        )
        self.__init__()  # type: ignore[misc]
        return report


class History:
    """All processes together: totals, and one row for every interval."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.late: Histogram = Counter()
        self.rows: list[dict[str, float | None]] = []
        self._counts: Counter[str] = Counter()
        self._times: dict[str, Histogram] = {name: Counter() for name in TIMES}
        self._cpu_s: dict[str, float] = {}
        self._cpu_before_s: dict[str, float] = {}
        self._server: Machine | None = None
        self._row_s: float | None = None

    def add(self, process: str, report: Report) -> None:
        """Counts of one process."""
        self._counts.update(report["counts"])
        self.totals.update(report["counts"])
        for name, times in report["times"].items():
            counted = Counter({int(ms): number for ms, number in times.items()})
            self._times[name].update(counted)
            if name == "late":
                self.late.update(counted)
        self._cpu_s[process] = report["cpu_s"]

    def row(self, now_s: float, users: int, server: Machine | None) -> dict[str, float | None] | None:
        """The row of the interval that ends now; None the first time, which only begins one."""
        began_s, self._row_s = self._row_s, now_s
        before_s = self._cpu_before_s
        busy_s = max((cpu_s - before_s[name] for name, cpu_s in self._cpu_s.items() if name in before_s), default=None)
        server_before, self._server = self._server, server
        self._cpu_before_s = dict(self._cpu_s)
        if began_s is None or now_s <= began_s:
            return None
        interval_s = now_s - began_s
        late, push = self._times["late"], self._times["push"]
        row: dict[str, float | None] = {
            "time_s": round(now_s, 3),
            "users": users,
            **{name: round(self._counts[name] / interval_s, 1) for name in COUNTS},
            "late_p50_ms": percentile(late, 50),
            "late_p99_ms": percentile(late, 99),
            "late_max_ms": percentile(late, 100),
            "push_p50_ms": percentile(push, 50),
            "push_p99_ms": percentile(push, 99),
            "locust_cpu_percent": None if busy_s is None else round(busy_s / interval_s * 100, 1),
            "server_cpu_percent": None,
            "server_rss_mb": None,
        }
        if server is not None:
            row["server_rss_mb"] = round(server.rss_bytes / 1e6, 1)
            if server_before is not None:
                row["server_cpu_percent"] = round((server.cpu_s - server_before.cpu_s) / interval_s * 100, 1)
        self._counts = Counter()
        self._times = {name: Counter() for name in TIMES}
        self.rows.append(row)
        return row


def percentile(histogram: Mapping[int, int], percent: float) -> int | None:
    """The smallest value that at least `percent` per cent do not exceed (nearest rank); None without values."""
    total = sum(histogram.values())
    if not total:
        return None
    wanted = max(total * percent / 100, 1)
    seen = 0
    for value in sorted(histogram):
        seen += histogram[value]
        if seen >= wanted:
            return value
    return max(histogram)

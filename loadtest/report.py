"""The report of a load test: one HTML file with charts in it, made from the files that Locust and the run wrote.

python -m loadtest.report DIR        reads DIR/run_*.csv and, where it is there, DIR/run.json; writes DIR/report.html

run_stats.csv, run_stats_history.csv, run_failures.csv      Locust's (`--csv DIR/run --csv-full-history`)
run_mq_history.csv                                          ours: loadtest/load/metrics.py has its columns
run.json                                                    what was run, where (`python -m loadtest.load`)
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import orjson
from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from loadtest.bench.machine import described
from loadtest.charts import SERIES_MAX, Series, lines

PREFIX = "run"
BUSY_PERCENT = 90.0
"""Above this share of a core Locust measures itself."""

Row = Mapping[str, str]


class Chart(NamedTuple):
    """One figure of the page."""

    title: str
    about: str
    svg: Markup


class Line(NamedTuple):
    """One row of the tables."""

    kind: str
    name: str
    request_count: int
    failed_count: int
    per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


def main() -> None:
    """See the module."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m loadtest.report DIR")
    print(write_report(Path(sys.argv[1])))


def write_report(directory: Path) -> Path:
    """Read the files of a run; the page that was written. Raises FileNotFoundError when there is no run."""
    about_file = directory / f"{PREFIX}.json"
    about = orjson.loads(about_file.read_bytes()) if about_file.exists() else {}
    history = _rows(directory / f"{PREFIX}_stats_history.csv")
    ours = _rows(directory / f"{PREFIX}_mq_history.csv")
    table = [_line(row) for row in _rows(directory / f"{PREFIX}_stats.csv") if row["Name"] != "Aggregated"]
    checks = [line for line in table if line.kind == "CHECK"]
    busiest = max((value for row in ours if (value := _number(row["locust_cpu_percent"])) is not None), default=None)
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape())
    page = directory / "report.html"
    page.write_text(
        templates.get_template("report.html").render(
            about=about,
            machine=described(about["machine"]) if about else "",
            checks=checks,
            failed_count=sum(line.failed_count for line in table),
            requests=[line for line in table if line.kind != "CHECK"],
            failures=_rows(directory / f"{PREFIX}_failures.csv"),
            charts=list(charts(history, ours)),
            busiest=busiest,
            is_busy=busiest is not None and busiest > BUSY_PERCENT,
            records=sum((_number(row["acknowledged"]) or 0) * seconds for row, seconds in _with_seconds(ours)),
        )
    )
    return page


def charts(history: Sequence[Row], ours: Sequence[Row]) -> Sequence[Chart]:
    """Throughput, latency, lateness, and what it took."""
    start_s = min([float(row["Timestamp"]) for row in history] + [float(row["time_s"]) for row in ours], default=0.0)
    names = sorted({row["Name"] for row in history if row["Type"] == "POST"})[: SERIES_MAX // 2]
    latency = [
        _series(f"{name}, {title}", [row for row in history if row["Name"] == name], column, "Timestamp", start_s)
        for name in names
        for column, title in (("50%", "p50"), ("99%", "p99"))
    ]
    wanted = (
        ("Records", "Sent (acknowledged), and read in each way.", "records/s", _ours(ours, start_s, *_READ)),
        ("Answers to sends", "Over the last seconds, as Locust tells them.", "ms", latency),
        ("From the store to a socket", "The last message of every frame.", "ms", _ours(ours, start_s, *_PUSH)),
        ("Lateness of delayed records", "From the due time to the store.", "ms", _ours(ours, start_s, *_LATE)),
        ("Users", "", "users", _ours(ours, start_s, "users")),
        ("CPU", "Of one core; of Locust: its busiest process.", "%", _ours(ours, start_s, *_CPU)),
        ("Memory of the server", "", "MB", _ours(ours, start_s, "server_rss_mb")),
    )
    return [
        Chart(title, about, Markup(lines(drawn, x_label="seconds", y_label=unit)))
        for title, about, unit, series in wanted
        if (drawn := [one for one in series if any(value is not None for value in one.y)])
    ]


_READ = ("acknowledged", "stream", "queue", "reader", "long_poll")
_PUSH = ("push_p50_ms", "push_p99_ms")
_LATE = ("late_p50_ms", "late_p99_ms", "late_max_ms")
_CPU = ("server_cpu_percent", "locust_cpu_percent")


def _ours(rows: Sequence[Row], start_s: float, *columns: str) -> list[Series]:
    return [_series(_title(column), rows, column, "time_s", start_s) for column in columns]


def _series(name: str, rows: Sequence[Row], column: str, time_column: str, start_s: float) -> Series:
    x = [float(row[time_column]) - start_s for row in rows]
    values = [_number(row[column]) for row in rows]
    if time_column == "Timestamp":  # Locust says 0 where it has no answers to tell of
        values = [value or None for value in values]
    return Series(name, x, values)


def _title(column: str) -> str:
    for unit in ("_ms", "_percent", "_mb", "_cpu"):
        column = column.removesuffix(unit)
    return column.replace("_", " ")


def _with_seconds(rows: Sequence[Row]) -> Sequence[tuple[Row, float]]:
    """Each row with the length of its interval; of the first it is taken to be that of the second."""
    times = [float(row["time_s"]) for row in rows]
    if len(times) < 2:
        return [(row, 1.0) for row in rows]
    lengths = [after - before for before, after in pairwise(times)]
    return list(zip(rows, [lengths[0], *lengths], strict=True))


def _rows(file: Path) -> list[Row]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def _line(row: Row) -> Line:
    return Line(
        row["Type"],
        row["Name"],
        int(row["Request Count"]),
        int(row["Failure Count"]),
        float(row["Requests/s"]),
        *(_number(row[column]) or 0.0 for column in ("50%", "95%", "99%", "Max Response Time")),
    )


def _number(text: str) -> float | None:
    """None for an empty field and Locust's "N/A"."""
    try:
        return float(text)
    except ValueError:
        return None


if __name__ == "__main__":
    main()

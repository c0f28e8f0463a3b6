"""The report, made from the files of a run: growth.json, growth.md, and a plot for each scenario.

A cell is the median of the rounds and their range. Growth is the cost at 100x divided by the cost at 1x, round by
round: 1 means that the cost of one does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadtest.bench.machine import described
from loadtest.charts import Series, lines
from loadtest.growth.scenarios import FACTORS, SCENARIOS, Scenario
from loadtest.stats import paired_ratio, spread

FORMAT = 1
REASON_CHARS = 120
UNITS = {
    "cpu_us": "µs CPU", "per_s": "per second", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "rss_mb": "MB of memory",
    "read_ms": "ms to read the first 1,000", "late_p99_ms": "late p99 ms", "made_per_s": "made per second",
    "shared_ms": "ms until shared out", "rss_kb": "kB of memory each", "each_ms": "ms each",
}  # fmt: skip

Result = Mapping[str, Any]


def write_report(runs: Path, out: Path) -> None:
    """From a directory of runs to a directory of documents."""
    about = orjson.loads((runs / "about.json").read_bytes())
    results = [orjson.loads(file.read_bytes()) for file in sorted(runs.glob("*-*-*.json"))]
    out.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT, **about, "results": results}
    (out / "growth.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    (out / "growth.md").write_text("\n".join(_page(about, results)) + "\n")
    for scenario in SCENARIOS:
        if drawn := plot(scenario, results):
            (out / f"growth-{scenario.name}.svg").write_text(drawn)


def plot(scenario: Scenario, results: Sequence[Result]) -> str | None:
    """Cost over size, with its range; None without numbers."""
    found = [(size, spread(values)) for size in scenario.sizes() if (values := _values(scenario, results, size))]
    if not found:
        return None
    sizes = [float(size) for size, _ in found]
    series = [
        Series("median and range", sizes, [value.median for _, value in found], [value for _, value in found]),
        Series("as at 1x", sizes, [found[0][1].median] * len(found), is_reference=True),
    ]
    return lines(series, x_label=scenario.grows, y_label=scenario.unit, log=True, marked=True)


def _page(about: Mapping[str, Any], results: Sequence[Result]) -> Iterator[str]:
    machine = about["machine"]
    yield "# How cost grows"
    yield ""
    yield "Written by `make bench-growth`, from files that the runs wrote (all of them: `growth.json`). Every point is"
    yield f"a server of its own; a cell is the median of {about['rounds']} rounds and their range. *growth*: the cost"
    yield "at 100x divided by the cost at 1x, round by round; 1: one costs the same however many there are."
    yield ""
    yield "| scenario | what grows | cost | 1x | 10x | 100x | growth |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for scenario in SCENARIOS:
        cells = " | ".join(_cell(scenario, results, size) for size in scenario.sizes())
        grows = f"{scenario.base:,} to {scenario.base * FACTORS[-1]:,} {scenario.grows}"
        yield f"| {scenario.title} | {grows} | {scenario.unit} | {cells} | {growth(scenario, results)} |"
    yield ""
    for scenario in SCENARIOS:
        yield f"## {scenario.title}"
        yield ""
        yield (scenario.work.__doc__ or "").strip()
        yield ""
        yield f"![{scenario.title}](growth-{scenario.name}.svg)"
        yield ""
        yield from _others(scenario, results)
    yield "## Conditions"
    yield ""
    yield f"- {about['started_at']}; commit {about['commit']}; load average at the start {machine['load_average']}."
    yield f"- {described(machine)}; client and server on one machine."


def growth(scenario: Scenario, results: Sequence[Result]) -> str:
    """The last column; empty when a round lacks either end."""
    small, large = (
        {result["round"]: result[scenario.cost] for result in _of(scenario, results, size) if "failed" not in result}
        for size in (scenario.sizes()[0], scenario.sizes()[-1])
    )
    rounds = sorted(small.keys() & large.keys())
    if not rounds or not all(small[one] > 0 for one in rounds):
        return "-"
    ratio = paired_ratio([large[one] for one in rounds], [small[one] for one in rounds])
    return f"{ratio.median:.2f} ({ratio.low:.2f} - {ratio.high:.2f})"


def _others(scenario: Scenario, results: Sequence[Result]) -> Iterator[str]:
    """What else was measured, as a list."""
    names = dict.fromkeys(
        name for result in _of(scenario, results) for name in result if name in UNITS and name != scenario.cost
    )
    for name in names:
        cells = []
        for size in scenario.sizes():
            values = [result[name] for result in _of(scenario, results, size) if name in result]
            cells.append(f"{_number(spread(values).median)} at {size:,}" if values else f"failed at {size:,}")
        yield f"- {UNITS[name]}: {', '.join(cells)}"
    if names:
        yield ""


def _of(scenario: Scenario, results: Sequence[Result], size: int | None = None) -> list[Result]:
    return [one for one in results if one["scenario"] == scenario.name and size in (None, one["size"])]


def _values(scenario: Scenario, results: Sequence[Result], size: int) -> list[float]:
    return [one[scenario.cost] for one in _of(scenario, results, size) if "failed" not in one]


def _cell(scenario: Scenario, results: Sequence[Result], size: int) -> str:
    values = _values(scenario, results, size)
    failed = [one["failed"] for one in _of(scenario, results, size) if "failed" in one]
    shown = ""
    if values:
        middle = spread(values)
        shown = f"{_number(middle.median)} ({_number(middle.low)} - {_number(middle.high)})"
    if failed:
        reason = " ".join(failed[0].split())[:REASON_CHARS].replace("|", "/")
        shown = f"{shown}; " if shown else ""
        shown += f"failed {len(failed)} of {len(failed) + len(values)}: {reason}"
    return shown or "-"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

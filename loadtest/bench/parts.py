"""What the pages of the benchmarks share: rows with every run, goals, and parts that are measured apart.

    part      some rows that one run of a program measures together, with the conditions they were measured in
    row       one work: ours round by round and, of the same rounds, what it is measured beside
    goal      what ours must reach; a goal that is missed is shown as missed

A program writes each part as soon as it is measured. What is not measured again keeps its rows, its commit and its
date: the page says which rows are of which.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import orjson
import psutil

from loadtest.bench import machine
from loadtest.peers import usage
from loadtest.stats import Spread, paired_ratio

FORMAT = 2
HIGHER_IS_BETTER = ("records/s", "MB/s")

BUSY = 0.85
"""From which share on something is called the limit of a row."""


class Goal(NamedTuple):
    """Bounds of the median of ours, in the row's unit, and of its share of the limit's speed. None: no bound."""

    at_least: float | None = None
    at_most: float | None = None
    share: float | None = None


class Row(NamedTuple):
    """One work. `ours` and `limit` have one value a round, in `unit`. CPU is per record, in microseconds: that of the
    server's process, and what kernel threads took beside it (loadtest/kernel_cpu.py)."""

    work: str
    unit: str
    ours: Sequence[float]
    limit: Sequence[float] = ()
    goal: Goal | None = None
    cpu_us: Sequence[float] = ()
    kernel_us: Sequence[float] = ()
    note: str = ""

    def share(self) -> Spread:
        """Our speed as a share of the limit's, round by round. The row must have a limit."""
        if self.unit in HIGHER_IS_BETTER:
            return paired_ratio(self.ours, self.limit)
        return paired_ratio(self.limit, self.ours)

    def is_met(self) -> bool | None:
        """None: there is no goal."""
        goal, median = self.goal, statistics.median(self.ours)
        if goal is None:
            return None
        return (
            (goal.at_least is None or median >= goal.at_least)
            and (goal.at_most is None or median <= goal.at_most)
            and (goal.share is None or self.share().median >= goal.share)
        )


HEADINGS = ("work", "ours", "limit", "speed of ours / limit", "CPU", "kernel threads", "goal", "met")
ALIGNMENT = "|---|---:|---:|---:|---:|---:|---|---|"


def cells(row: Row) -> tuple[str, ...]:
    """A row as HEADINGS has it. `n = 1` says that there is one run, and so no range."""
    ours = number(statistics.median(row.ours), row.unit)
    return (
        f"{row.work} ({row.note})" if row.note else row.work,
        f"{ours}, n = 1" if len(row.ours) == 1 else ours,
        number(statistics.median(row.limit), row.unit) if row.limit else "-",
        shown_share(row.share()) if row.limit else "-",
        f"{statistics.median(row.cpu_us):.2f} µs" if row.cpu_us else "-",
        f"{statistics.median(row.kernel_us):.2f} µs" if row.kernel_us else "-",
        goal_text(row.goal, row.unit),
        met(row.is_met()),
    )


def met(is_met: bool | None) -> str:
    """The last cell of a row."""
    return "-" if is_met is None else "yes" if is_met else "**no**"


def goal_text(goal: Goal | None, unit: str) -> str:
    """A goal in words."""
    if goal is None:
        return "-"
    bounds = []
    if goal.share is not None:
        bounds.append(f">= {goal.share:.0%} of the limit")
    if goal.at_least is not None:
        bounds.append(f">= {number(goal.at_least, unit)}")
    if goal.at_most is not None:
        bounds.append(f"<= {number(goal.at_most, unit)}")
    return ", ".join(bounds)


def shown_share(share: Spread) -> str:
    """The median of the rounds' ratios in per cent, and their range."""
    text = f"{share.median:.0%}"
    return text if share.low == share.high else f"{text} ({share.low:.0%} - {share.high:.0%})"


def shown_times(ratio: Spread) -> str:
    """As `shown_share`, as a multiple."""
    text = f"{ratio.median:.2g}x"
    return text if ratio.low == ratio.high else f"{text} ({ratio.low:.2g} - {ratio.high:.2g})"


def number(value: float, unit: str) -> str:
    """A value for people."""
    if unit == "records/s":
        return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.3g} k/s"
    if unit == "MB/s":
        return f"{value:.0f} MB/s"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def limit(cores: Mapping[str, float], idle_cores: float, core_count: int) -> str:
    """What keeps a rate from being higher: `cores` has what of them each program used, the servers of one thread first.
    A tool's start is part of its time."""
    server, *_ = cores
    if cores[server] >= BUSY:
        return f"{server}'s thread"
    if idle_cores <= (1 - BUSY) * core_count:
        others = {**cores, "other programs": core_count - idle_cores - sum(cores.values())}
        return f"the cores, taken mostly by {max(others, key=lambda name: others[name])}"
    if cores.get("the client", 0.0) >= BUSY:
        return "the client's thread"
    return "waiting: the disk, or the next answer"


class Part(NamedTuple):
    """Rows that were measured together. `rows` are those of `Row`, or whatever the program's page is made of, as JSON
    has them."""

    conditions: Mapping[str, object]
    rows: Sequence[Mapping[str, object]]


def conditions(directory: Path, **settings: object) -> dict[str, object]:
    """What a reader must know to judge a part, measured below `directory`. No names, no paths."""
    return {
        "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": machine.commit(),
        **machine.facts(directory),
        **machine.versions(),
        **settings,
    }


def own_cpu_s() -> float:
    """Processor seconds of this program and of the tools that it has run and waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def idle_cpu_s() -> float:
    """Seconds that the processors had nothing to do."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


class OtherPrograms:
    """What runs beside a benchmark, from its making on: all but this process, its children and kernel threads."""

    def __init__(self) -> None:
        self._first = self._look()

    def said(self) -> str:
        """For the conditions of a part."""
        last = self._look()
        used = usage.taken([self._first, last], self._first.at_s, last.at_s)
        return f"{max(0.0, used.others_cpu_s) / used.wall_s:.0%} of a core"

    def _look(self) -> usage.Look:
        return usage.look(time.monotonic(), (), (os.getpid(),), None)


def read(path: Path, order: Sequence[str]) -> dict[str, Part]:
    """What was measured before, of the parts that there are still; nothing where the file has another format."""
    found = orjson.loads(path.read_bytes()) if path.exists() else {}
    if found.get("format") != FORMAT:
        return {}
    return {name: Part(**found["parts"][name]) for name in order if name in found["parts"]}


def write(
    directory: Path,
    name: str,
    order: Sequence[str],
    measured: Mapping[str, Part],
    as_markdown: Callable[[Mapping[str, Part]], str],
) -> dict[str, Part]:
    """Put what was measured beside what is in `<name>.json`, in the order given; write that file and `<name>.md`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    known = {**read(path, order), **measured}
    parts = {one: known[one] for one in order if one in known}
    content = {"format": FORMAT, "parts": {one: part._asdict() for one, part in parts.items()}}
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    # From the file's bytes: the page shows what the file has.
    (directory / f"{name}.md").write_text(as_markdown(read(path, order)))
    return parts


def rows_of(part: Part) -> list[Row]:
    """The rows of a part that has those of `Row`."""
    return [Row(**{**row, "goal": Goal(**row["goal"]) if row["goal"] else None}) for row in part.rows]  # type: ignore


def as_dicts(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Rows for JSON."""
    return [{**row._asdict(), "goal": row.goal._asdict() if row.goal else None} for row in rows]


def condition_lines(parts: Mapping[str, Part]) -> list[str]:
    """What all parts share, a line each; then what each has for itself."""
    each = [part.conditions for part in parts.values()]
    shared = [name for name in each[0] if all(one.get(name) == each[0][name] for one in each)] if each else []
    lines = [f"- {name.replace('_', ' ')}: {each[0][name]}" for name in shared]
    for part_name, part in parts.items():
        own = [f"{name.replace('_', ' ')} {value}" for name, value in part.conditions.items() if name not in shared]
        if own:
            lines.append(f"- **{part_name}**: {', '.join(own)}")
    return lines

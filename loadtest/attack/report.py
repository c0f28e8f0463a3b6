"""The run as a chart, a file of numbers, and a table in docs/security.md between two marks. Pure but for `write`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import orjson

from gateway.main.loop_watch import BOUNDS_S, HELD_S
from loadtest.attack.attack import FULL, Bounds, MiB, Row
from loadtest.attack.curves import Curves, Point, thinned
from loadtest.charts import Panel, Span, panels

FORMAT = 1
PAGE, CHART, NUMBERS = "security.md", "benchmarks/attack.svg", "benchmarks/attack.json"
BEGIN, END = "<!-- written by make attack -->", "<!-- end of what make attack writes -->"
REASON_CHARS_MAX = 200
SEEN_MAX = 4
"""Kinds of answers that a row shows; all are in the file."""


def write(out: Path, about: Mapping[str, Any], rows: Sequence[Row], curves: Curves) -> None:
    """Put all three below a directory of documents; of the page only what is between the marks, where it has them."""
    (out / CHART).parent.mkdir(parents=True, exist_ok=True)
    (out / CHART).write_text(chart(rows, curves))
    points = {
        item.name: [[round(point.at_s, 1), point.value] for point in thinned(getattr(curves, item.name))]
        for item in fields(curves)
    }
    document = {"format": FORMAT, **about, "rows": [asdict(row) for row in rows], "curves": points}
    (out / NUMBERS).write_bytes(orjson.dumps(document) + b"\n")
    page = out / PAGE
    before = page.read_text() if page.exists() else f"{BEGIN}\n{END}\n"
    page.write_text(replaced(before, "\n".join(table(about, rows)) + "\n"))


def replaced(page: str, written: str) -> str:
    """The page with new text between its marks. Raises ValueError when it has none."""
    head, begin, rest = page.partition(f"{BEGIN}\n")
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks the lines {BEGIN!r} and {END!r}")
    return f"{head}{begin}{written}{end}{tail}"


def chart(rows: Sequence[Row], curves: Curves, bounds: Bounds = FULL) -> str:
    """All curves over the time of the run, but for those without a point; attacks are numbered as in the table."""
    spans = [Span(row.began_s / 60, row.ended_s / 60, str(number)) for number, row in enumerate(rows, 1)]

    def panel(name: str, points: Sequence[Point], bound: float | None = None, *, log: bool = False) -> Panel:
        kept = thinned(points)
        return Panel(name, [point.at_s / 60 for point in kept], [point.value for point in kept], bound, log)

    drawn = [
        panel("memory, MiB", curves.rss_mib, bounds.rss_bytes / MiB),
        panel("/healthz, ms", curves.health_ms, bounds.health_ms, log=True),
        panel("longest turn, ms at most", [_drawn(point) for point in curves.turn_ms], bounds.turn_ms),
        panel("file handles", curves.handles),
    ]
    return panels([one for one in drawn if one.x], spans, x_label="minutes")


def table(about: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[str]:
    """The part of the page that is generated."""
    machine = about["machine"]
    yield f"![memory, health checks, turns of the event loop and file handles over the run]({CHART})"
    yield ""
    yield "| | attack | tried | memory at worst (start) | slowest `/healthz` | longest turn | answers | back to |"
    yield "|---:|---|---|---:|---:|---:|---|---:|"
    for number, row in enumerate(rows, 1):
        yield f"| {number} | {' | '.join(_cells(row))} |"
    yield ""
    good = sum(row.is_good for row in rows)
    yield f"The server held in {good} of {len(rows)} attacks on {about['started_at'][:10]} (commit {about['commit']};"
    yield f"{machine['cpu']}, {machine['cores']} cores, shared with the attacker and with whatever else ran: a load of"
    yield f"{machine['load_average']:,.1f} when it began; all numbers: [{NUMBERS}]({NUMBERS})). `make attack`"
    yield "repeats it."


def _cells(row: Row) -> Iterator[str]:
    yield f"`{row.name}`"
    yield _text(row.tried)
    figures = row.figures
    if figures is None:
        yield from ("-", "-", "-")
    else:
        yield f"{figures.worst_bytes / MiB:,.0f} MiB ({figures.start_bytes / MiB:,.0f})"
        yield f"{figures.health_ms:,.0f} ms"
        yield turn(figures.turn_ms, figures.slowness)
    yield _answers(row)
    if figures is None or figures.back_bytes is None:
        yield "-"
    else:
        promised = f"; {row.keeps}" if row.keeps else ""
        yield f"{figures.back_bytes / MiB:,.0f} MiB after {figures.back_s:,.0f} s{promised}"


def _drawn(turn_ms: Point) -> Point:
    return turn_ms._replace(value=None if turn_ms.value is None else min(turn_ms.value, BOUNDS_S[-1] * 1000))


def turn(longest_ms: float, slowness: float) -> str:
    """The longest turn of the loop as a cell; with how slow the machine was, where that matters."""
    if not longest_ms:
        return f"< {HELD_S * 1000:,.0f} ms"
    if longest_ms == float("inf"):
        return "beyond all bounds"
    return f"≤ {longest_ms:,.0f} ms" + (f" (machine {slowness:.1f} times as slow)" if slowness > 1 else "")


def _answers(row: Row) -> str:
    """What the attacker was told, the most frequent first, and what did not hold."""
    ordered = sorted(row.seen.items(), key=lambda pair: -pair[1])
    shown = ", ".join(f"{what} ({count:,})" for what, count in ordered[:SEEN_MAX])
    failed = "; ".join(f"**failed: {_text(problem)}**" for problem in row.problems)
    return "; ".join(part for part in (shown, failed) if part)


def _text(words: str) -> str:
    """Within a cell."""
    return " ".join(words.split())[:REASON_CHARS_MAX].replace("|", "/")

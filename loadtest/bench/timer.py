"""`make bench-timer`: the timer's speed beside its goals, its limit and its peers; writes docs/benchmarks/timer.*.

What is measured: loadtest/bench/timer_work.py. The peers: loadtest/bench/timer_peers.py.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from gateway.main.wiring import calm_collector
from loadtest.bench import machine
from loadtest.bench.timer_peers import peer_rows
from loadtest.bench.timer_work import Row, TooSlow, accept_and_busy, flat_and_recovery, lateness

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
HEADINGS = ("work", "measured", "goal", "met")
FEW = 10_000


def cells(row: Row) -> tuple[str, str, str, str]:
    """A row for people."""
    return row.work, row.measured, row.goal or "-", "-" if row.is_met is None else "yes" if row.is_met else "**no**"


def as_markdown(conditions: dict[str, object], rows: list[Row]) -> str:
    """One page: the table, what the words mean, the conditions."""
    lines = [
        "# The timer, beside its goals, its limit and what others use",
        "",
        "Written by `make bench-timer` (with `PENDING='1000000 10000000'` for the large run); the numbers for programs",
        "are in `timer.json`. One process, a real disk, no HTTP; accepted and delivered means: durable, after an",
        "fdatasync.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---|---|---|",
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
        "- *accept*: batches of 1,000 delayed records of 100 bytes, eight at a time.",
        "- *busy*: from the first millisecond of the second until the last record is delivered. *others*: meanwhile",
        "  somebody appends single records durably and reads each back, every 5 ms. *The limit*: one thread only",
        "  writes the same bytes at the same pace (a pwrite and fdatasync for each piece), and small writes every 5 ms",
        "  between; no byte is encoded, no schedule looked for: what that is slower than before, the disk is.",
        "- *lateness*: from the due millisecond until durably delivered. *The limit* only writes the same bytes at",
        "  the same pace (one pwrite and fdatasync every 4 ms, from a thread), in turn with ours: what it is late, the",
        "  disk and the machine are.",
        "- *flat*: CPU of accepting one schedule. *recovery*: opening what a killed process left.",
        "- Redis: a sorted set, polled every 10 ms by a script that moves what is due to a list; one client.",
        "  beanstalkd: delayed jobs, reserved and deleted by one pipelined client; its delays are whole seconds. Late:",
        "  5,000 a second (beanstalkd -f 0: 500), from the due time until the client that hands them on has them.",
        "",
        "## Conditions",
        "",
        *(f"- {name.replace('_', ' ')}: {value}" for name, value in conditions.items()),
        "",
    ]
    return "\n".join(lines)


def _flat(many: int) -> Callable[[Path], list[Row]]:
    return lambda root: uvloop.run(flat_and_recovery(root, FEW, many))


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.timer", description="The speed of the timer.")
    parser.add_argument("--count", type=int, default=100_000, help="records of accept and busy, a multiple of 1,000")
    parser.add_argument(
        "--many", type=int, nargs="+", default=[1_000_000], metavar="COUNT", help="pending ones of flat and recovery"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of busy and lateness")
    parser.add_argument("--only", default="", metavar="NAME", help="busy, lateness, flat or peers; writes no results")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="must be a disk, not memory")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    options = parser.parse_args()
    parts: dict[str, Callable[[Path], list[Row]]] = {
        **{f"flat {many:,}": _flat(many) for many in options.many},  # first: its memory is the process's
        "busy": lambda root: uvloop.run(accept_and_busy(root, options.count, options.rounds)),
        "lateness": lambda root: uvloop.run(lateness(root, options.rounds)),
        "peers": lambda root: peer_rows(root, options.count),
    }
    calm_collector()
    console = Console(highlight=False, width=160)
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    conditions: dict[str, object] = {"started": started, **machine.facts(options.dir), "rounds": options.rounds}
    rows: list[Row] = []
    for name, part in parts.items():
        if options.only in name:
            with tempfile.TemporaryDirectory(prefix="mq-timer-", dir=options.dir) as directory, console.status(name):
                try:
                    rows += part(Path(directory))
                except TooSlow as error:
                    rows.append(Row(name, f"not measured: {error}"))
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
    if not options.only:
        options.out.mkdir(parents=True, exist_ok=True)
        versions = dict(machine.versions())
        content = {"conditions": conditions, "versions": versions, "rows": [row._asdict() for row in rows]}
        (options.out / "timer.json").write_bytes(
            orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        )
        (options.out / "timer.md").write_text(as_markdown(conditions, rows))


if __name__ == "__main__":
    main()

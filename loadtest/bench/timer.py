"""`make bench-timer`: the timer's speed beside its goals, its limit and its peers; writes docs/benchmarks/timer.*.

What is measured in one process: loadtest/bench/timer_work.py. Through a server and beside the peers:
loadtest/bench/timer_peers.py. Each part is written when it is measured, and `--only` measures one again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import uvloop
from rich.console import Console

from gateway.main.garbage import calm_collector
from loadtest.bench import parts as pages
from loadtest.bench import timer_peers
from loadtest.bench.parts import Part, met
from loadtest.bench.timer_peers import Served
from loadtest.bench.timer_work import Row, TooSlow, accepting, busy, flat_and_recovery, lateness
from loadtest.process import end_when_told

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
HEADINGS = ("work", "measured", "n", "goal", "met")
FEW = 10_000
FLATS = (1_000_000, 10_000_000)
SERVED = "through a server"


def cells(row: Row) -> tuple[str, ...]:
    """A row for people."""
    return row.work, row.measured, str(row.n), row.goal or "-", met(row.is_met)


def as_markdown(parts: Mapping[str, Part]) -> str:
    """One page: in one process, through a server beside the peers, the conditions."""
    own = [Row(**row) for name, part in parts.items() if name != SERVED for row in part.rows]  # type: ignore[arg-type]
    served = [Served(**row) for row in parts[SERVED].rows] if SERVED in parts else []  # type: ignore[arg-type]
    lines = [
        "# The timer, beside its goals, its limit and what others use",
        "",
        "Written by `make bench-timer`; the numbers for programs are in `timer.json`. A real disk; accepted and",
        "delivered means: durable, after an fdatasync. *n*: rounds; n = 1 has no range.",
        "",
        "## In one process, without wire or reader",
        "",
        "The store and the timer alone: no HTTP, no readers of what is delivered. Not to be compared with the",
        "second table.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---|---:|---|---|",
        *(f"| {' | '.join(cells(row))} |" for row in own),
        "",
        "- *accept*: batches of 1,000 delayed records of 100 bytes, eight at a time.",
        "- *busy*: from the first millisecond of the second until the last record is delivered. *others*: meanwhile",
        "  another client appends single records durably and reads each back, every 5 ms. *The limit*: one thread only",
        "  writes the same bytes at the same pace (a pwrite and fdatasync for each piece), and small writes every 5 ms",
        "  between; no byte is encoded, no schedule looked for: what that is slower than before, the disk is.",
        "- *lateness*: from the due millisecond until durably delivered. *The limit* only writes the same bytes at",
        "  the same pace (one pwrite and fdatasync every 4 ms, from a thread), in turn with ours: what it is late, the",
        "  disk and the machine are.",
        "- *flat*: CPU of accepting one schedule, of this process. *recovery*: opening what a killed process left.",
        "",
        *_served_lines(served),
        "## Conditions",
        "",
        *pages.condition_lines(parts),
        "",
    ]
    return "\n".join(lines)


def _served_lines(rows: list[Served]) -> list[str]:
    if not rows:
        return []
    return [
        "## Through a server, from a client that sends to a client that gets the record",
        "",
        "Ours over HTTP and a WebSocket, beside a Redis sorted set and beanstalkd; all in every round, each with a new",
        "server. Medians of rounds, and their range; a ratio is the median of the rounds' ratios.",
        "",
        *timer_peers.table(rows),
        "",
        "- *accept*: batches of 1,000 records of 100 bytes, one at a time over one connection: the time between a",
        "  batch and its answer.",
        "- *busy*: from the beginning of the second in which the records are due until the client has the last one.",
        "- *late*: from the due time until the client has the record, of records due evenly over four seconds.",
        "- Redis: the client moves what is due from the sorted set to a list by a script, which also returns the next",
        "  due time; the client sleeps until then. beanstalkd: reserves are on their way when jobs get due; its delays",
        "  are whole seconds, so for *late* jobs are put two seconds before they are due.",
        "- Ours is pushed to a reader as JSON frames, after it was stored durably.",
        "",
    ]


def _flat(many: int) -> Callable[[Path], list[Row]]:
    return lambda root: uvloop.run(flat_and_recovery(root, FEW, many))


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    end_when_told()
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.timer", description="The speed of the timer.")
    parser.add_argument("--count", type=int, default=100_000, help="records of busy, a multiple of 1,000")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, but for flat and recovery, which have one")
    parser.add_argument("--only", default="", metavar="NAME", help="parts named like this")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="must be a disk, not memory")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    options = parser.parse_args()
    console = Console(highlight=False, width=160)
    own: dict[str, Callable[[Path], list[Row]]] = {
        **{f"flat {many:,}": _flat(many) for many in FLATS},  # first: its memory is the process's
        "accept": lambda root: uvloop.run(accepting(root, options.count, options.rounds)),
        "busy": lambda root: uvloop.run(busy(root, options.count, options.rounds)),
        "lateness": lambda root: uvloop.run(lateness(root, options.rounds)),
    }
    order = (*own, SERVED)
    names = [name for name in order if options.only in name]
    if not names:
        sys.exit(f"nothing is named like {options.only!r}; there are: {', '.join(order)}")
    calm_collector()
    for name in names:
        with tempfile.TemporaryDirectory(prefix="mq-timer-", dir=options.dir) as directory, console.status(name) as now:
            root = Path(directory)
            conditions = pages.conditions(root, rounds=1 if name.startswith("flat") else options.rounds)
            others = pages.OtherPrograms()
            rows: list[dict[str, object]]
            if name == SERVED:
                served = timer_peers.measure(root, options.count, options.rounds, now.update)
                rows = [row._asdict() for row in served]
            else:
                try:
                    rows = [row._asdict() for row in own[name](root)]
                except TooSlow as error:
                    rows = [Row(name, f"not measured: {error}")._asdict()]
            conditions["other_programs"] = others.said()
        pages.write(options.out, "timer", order, {name: Part(conditions, rows)}, as_markdown)
    console.print((options.out / "timer.md").read_text(), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()

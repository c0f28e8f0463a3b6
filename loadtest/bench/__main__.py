"""`python -m loadtest.bench`: measure everything, print the table, write `latest.json` and `latest.md`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import orjson
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.bench import machine, report
from loadtest.bench.parts import OtherPrograms
from loadtest.bench.raw_client import RawClient
from loadtest.bench.scenario import Bench, Outcome, Scenario, measure
from loadtest.bench.scenarios import scenarios
from loadtest.bench.wrk_client import WrkClient
from loadtest.kernel_cpu import idle_kernel_cpu_share
from loadtest.process import end_when_told

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
ROUNDS, QUICK_ROUNDS = 5, 3
RUN_S, QUICK_RUN_S = 2.0, 0.8


def main() -> None:
    """Run the benchmark and exit: 0, or 1 when a scenario failed."""
    end_when_told()
    options = _options()
    chosen = [one for one in scenarios() if options.only in one.name]
    if not chosen:
        sys.exit(f"no scenario is named like {options.only!r}; there are: {', '.join(one.name for one in scenarios())}")
    rounds, run_s = (QUICK_ROUNDS, QUICK_RUN_S) if options.quick else (ROUNDS, RUN_S)
    client = WrkClient.find() or RawClient()
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=options.dir) as directory:
        conditions = report.Conditions(
            started_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit=machine.commit(),
            machine=machine.facts(Path(directory)),
            versions=machine.versions(),
            client=client.name,
            rounds=rounds,
            run_s=run_s,
            other_programs="",
        )
        others = OtherPrograms()
        bench = Bench(client, Path(directory), idle_kernel_cpu_share())
        outcomes = uvloop.run(_measured(console, bench, chosen, rounds, run_s))
        conditions = replace(conditions, other_programs=others.said())
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "latest.json").write_bytes(
        orjson.dumps(report.as_json(conditions, outcomes), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    )
    (options.out / "latest.md").write_text(report.as_markdown(conditions, outcomes))
    console.print(_table(outcomes))
    for outcome in outcomes:
        if outcome.failure is not None:
            console.print(f"FAILED {outcome.scenario.name}: {outcome.failure}", markup=False, soft_wrap=True)
    sys.exit(1 if any(outcome.failure is not None for outcome in outcomes) else 0)


async def _measured(console: Console, bench: Bench, chosen: list[Scenario], rounds: int, run_s: float) -> list[Outcome]:
    outcomes = []
    columns = TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        for scenario in chosen:
            subjects = {side for one in scenario.comparisons for side in (one.ours, one.limit)}
            task = progress.add_task(scenario.name, total=len(subjects) * rounds)
            outcome = await measure(scenario, bench, rounds=rounds, run_s=run_s, ran=partial(progress.advance, task))
            outcomes.append(outcome)
    return outcomes


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=None, pad_edge=False)
    for index, heading in enumerate(report.HEADINGS):
        table.add_column(heading, justify="right" if 0 < index < 5 else "left", overflow="fold")
    for outcome in outcomes:
        for row in report.rows(outcome):
            table.add_row(*row)
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: about a minute")
    parser.add_argument("--only", default="", metavar="NAME", help="only scenarios whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the results are written")
    parser.add_argument(
        "--dir", type=Path, default=Path("/var/tmp"), help="where stores are put; must be a disk, not memory"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()

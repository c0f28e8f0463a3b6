"""Runs all points and writes docs/benchmarks/growth/. See the package."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import orjson
import uvloop

from loadtest.bench.machine import commit, facts, versions
from loadtest.bench.request import RunFailed
from loadtest.growth.report import write_report
from loadtest.growth.scenarios import FACTORS, SCENARIOS, Scenario
from loadtest.growth.workloads import TIMEOUT_S, WorkloadFailed
from loadtest.process import ProcessFailed, end_when_told, running_server

REPOSITORY = Path(__file__).resolve().parents[2]
REASON_CHARS_MAX = 1000


def main() -> None:
    """See the package."""
    options = _options()
    chosen = [one for one in SCENARIOS if not options.only or one.name in options.only.split("; ")]
    if not chosen:
        sys.exit(f"no scenario is named {options.only}; there are: {'; '.join(one.name for one in SCENARIOS)}")
    end_when_told()
    if not options.resume:
        shutil.rmtree(options.runs, ignore_errors=True)
    options.runs.mkdir(parents=True, exist_ok=True)
    about = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "rounds": options.rounds,
        "machine": facts(options.dir),
        "versions": dict(versions()),
    }
    if not (options.runs / "about.json").exists():
        (options.runs / "about.json").write_bytes(orjson.dumps(about, option=orjson.OPT_INDENT_2))
    deadline_s = time.monotonic() + options.minutes * 60
    for number in range(options.rounds):
        for scenario in chosen:
            for factor in FACTORS[:2] if options.quick else FACTORS:
                file = options.runs / f"{number}-{scenario.name}-{factor}.json"
                if file.exists():
                    continue
                if time.monotonic() > deadline_s:
                    print("the rest: --resume")
                    sys.exit(3)
                result = point(scenario, scenario.base * factor, options.dir)
                row = {"round": number, "scenario": scenario.name, "size": scenario.base * factor, **result}
                beside = file.with_suffix(".new")
                beside.write_bytes(orjson.dumps(row, option=orjson.OPT_INDENT_2))
                os.replace(beside, file)
                print(f"round {number}: {scenario.name} {scenario.base * factor:,}: {_short(result)}", flush=True)
    write_report(options.runs, options.out)


def point(scenario: Scenario, size: int, directory: Path) -> dict[str, object]:
    """One size on a new server: numbers, or `{"failed": why}`."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="mq-growth-", dir=directory) as data,
            running_server(Path(data) / "data") as server,
        ):

            async def work() -> dict[str, object]:
                async with asyncio.timeout(TIMEOUT_S):
                    return dict(await scenario.work(server, size))

            return uvloop.run(work())
    except* (WorkloadFailed, RunFailed, ProcessFailed, aiohttp.ClientError, OSError, TimeoutError) as problems:
        error: BaseException = problems
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        reason = str(error) or type(error).__name__
    return {"failed": reason[:REASON_CHARS_MAX]}


def _short(result: dict[str, object]) -> str:
    if "failed" in result:
        return f"FAILED: {result['failed']}"
    return ", ".join(f"{name} {value:,.1f}" for name, value in result.items() if isinstance(value, (int, float)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.growth", description="How cost grows with size.")
    parser.add_argument("--only", default="", help="names, with '; ' between them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--resume", action="store_true", help="go on: points that are there are not measured again")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no point after that; exit code 3")
    parser.add_argument("--quick", action="store_true", help="only 1x and 10x")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where data is put; a disk, not memory")
    parser.add_argument("--runs", type=Path, default=REPOSITORY / "artifacts" / "growth" / "runs")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks" / "growth")
    return parser.parse_args()


if __name__ == "__main__":
    main()

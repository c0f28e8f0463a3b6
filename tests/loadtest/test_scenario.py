"""Subjects are measured in turn, and a failed run never yields a number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadtest.bench import report
from loadtest.bench.raw_client import RawClient
from loadtest.bench.request import RunFailed
from loadtest.bench.scenario import WARM_UP_S, Bench, Comparison, Measures, Outcome, Scenario, Subject, measure
from loadtest.process import ProcessFailed

CONDITIONS = report.Conditions(
    started_at="2026-01-01 00:00 UTC",
    machine={
        "cpu": "a CPU", "cores": 2, "memory_gib": 8.0, "kernel": "6", "file_system": "ext4", "load_average": 0.1,
        "slowness": 1.0, "pages_out": False,
    },
    versions={"python": "3.11"},
    client="a client",
    rounds=3,
    run_s=1.0,
    commit="a commit",
    other_programs="0 % of a core",
)  # fmt: skip
BENCH = Bench(RawClient(), Path())
COMPARISONS = (
    Comparison("work", "ours, now", "limit, now", "records_per_s"),
    Comparison("time", "ours, now", "limit, now", "p50_ms", lower_is_better=True),
    Comparison("cost", "ours, now", "limit, now", "cpu_us", lower_is_better=True),
)


def scenario(run: Callable[[str, float], Measures]) -> Scenario:
    """A scenario of two subjects; `run` gets the name and the seconds of every run."""

    @asynccontextmanager
    async def prepare(_: Bench) -> AsyncIterator[Sequence[Subject]]:
        def subject(name: str) -> Subject:
            async def one(duration_s: float) -> Measures:
                return run(name, duration_s)

            return Subject(name, one)

        yield [subject("limit, now"), subject("ours, now")]

    return Scenario("a scenario", "About it.", prepare, COMPARISONS)


async def measured(run: Callable[[str, float], Measures], rounds: int = 3) -> Outcome:
    return await measure(scenario(run), BENCH, rounds=rounds, run_s=1.0, ran=lambda: None)


def written(outcome: Outcome) -> Any:
    """The scenario as the JSON file has it."""
    [described] = orjson.loads(orjson.dumps(report.as_json(CONDITIONS, [outcome])))["scenarios"]
    return described


def made_up(name: str, number: int) -> Measures:
    """The machine gets faster by a million each time; we are always half as fast as the limit."""
    speed = 1e6 * number * (0.5 if name.startswith("ours") else 1.0)
    is_ours = name.startswith("ours")
    return {
        "records_per_s": speed,
        "p50_ms": 1e6 / speed,
        "cpu_us": 30.0 if is_ours else 10.0,
        "kernel_us": 8.0 * is_ours,
    }


async def test_subjects_take_turns_after_a_warm_up_that_does_not_count() -> None:
    log: list[tuple[str, float]] = []

    def run(name: str, duration_s: float) -> Measures:
        log.append((name[0], duration_s))
        return {"records_per_s": float(len(log)), "p50_ms": 1.0, "cpu_us": 1.0, "kernel_us": 0.0}

    outcome = await measured(run, rounds=2)
    assert log == [("l", WARM_UP_S), ("o", WARM_UP_S), ("l", 1.0), ("o", 1.0), ("l", 1.0), ("o", 1.0)]
    assert outcome.values("ours, now", "records_per_s") == [4.0, 6.0]
    assert outcome.values("limit, now", "records_per_s") == [3.0, 5.0]


async def test_the_report_pairs_the_rounds() -> None:
    counts = {"ours, now": 0, "limit, now": 0}

    def run(name: str, _: float) -> Measures:
        counts[name] += 1
        return made_up(name, counts[name])

    outcome = await measured(run)
    assert report.rows(outcome) == [
        ("work", "50% (50% - 50%)", "1.50 M/s", "3.00 M/s", "-", "limit"),
        ("time", "2.0x (2.0x - 2.0x)", "0.67 ms", "0.33 ms", "-", "limit"),
        ("cost", "3.0x (3.0x - 3.0x)", "30 µs", "10 µs", "8 µs, 0 µs", "limit"),
    ]
    described = written(outcome)
    assert len(described["runs"]["ours, now"]) == 3
    assert described["comparisons"][0]["ratio"] == {"median": 0.5, "low": 0.5, "high": 0.5}


@pytest.mark.parametrize(
    "error",
    [RunFailed("3 answers were wrong"), ConnectionRefusedError("nobody listens"), ProcessFailed("the server died")],
)
async def test_a_run_that_fails_leaves_no_number(error: Exception) -> None:
    run_count = 0

    def run(name: str, _: float) -> Measures:
        nonlocal run_count
        run_count += 1
        if run_count == 5:
            raise error
        return made_up(name, 1)

    outcome = await measured(run)
    assert outcome.failure == str(error)
    assert [row[1:4] for row in report.rows(outcome)] == [("FAILED", "-", "-")] * 3
    described = written(outcome)
    assert (described["runs"], described["comparisons"]) == ({}, [])
    assert f"**Failed:** {error}" in report.as_markdown(CONDITIONS, [outcome])


async def test_a_bug_in_the_benchmark_is_not_taken_for_a_failed_run() -> None:
    nothing: dict[str, float] = {}
    with pytest.raises(KeyError):
        await measured(lambda name, _: {name: nothing["missing"]})


async def test_the_page_has_a_row_for_every_comparison_and_names_its_conditions() -> None:
    page = report.as_markdown(CONDITIONS, [await measured(lambda name, _: made_up(name, 2))])
    assert "| work | 50% (50% - 50%) | 1.00 M/s | 2.00 M/s | - | limit |" in page
    assert "| time | 2.0x" in page
    described = "a CPU, 2 cores, 1.0 times as slow as our reference (loadtest/slowness.py), 8.0 GiB, Linux 6, ext4"
    assert f"{described}; load average at the start 0.1." in page
    assert "About it." in page

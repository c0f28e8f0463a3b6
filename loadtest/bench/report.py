"""The results as JSON, with every run, and as one Markdown page: ratios first, conditions below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from loadtest.bench.machine import described
from loadtest.bench.scenario import Comparison, Outcome
from loadtest.stats import Spread

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a reader must know to judge the numbers."""

    started_at: str
    commit: str
    machine: Mapping[str, object]
    versions: Mapping[str, str]
    client: str
    rounds: int
    run_s: float
    other_programs: str
    """CPU that they took meanwhile."""


def as_json(conditions: Conditions, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Everything: conditions, every run of every subject, and the comparisons drawn from them."""
    return {
        "format": FORMAT,
        "started_at": conditions.started_at,
        "commit": conditions.commit,
        "machine": dict(conditions.machine),
        "versions": dict(conditions.versions),
        "client": conditions.client,
        "rounds": conditions.rounds,
        "run_s": conditions.run_s,
        "other_programs": conditions.other_programs,
        "scenarios": [
            {
                "name": outcome.scenario.name,
                "about": outcome.scenario.about,
                "failure": outcome.failure,
                "runs": {subject: list(runs) for subject, runs in outcome.runs.items()},
                "comparisons": [_comparison(outcome, comparison) for comparison in _drawn(outcome)],
            }
            for outcome in outcomes
        ],
    }


def _drawn(outcome: Outcome) -> Sequence[Comparison]:
    return () if outcome.failure is not None else outcome.scenario.comparisons


def _comparison(outcome: Outcome, comparison: Comparison) -> dict[str, object]:
    ours, limit, ratio = outcome.compared(comparison)
    return {
        "work": comparison.work,
        "measure": comparison.measure,
        "lower_is_better": comparison.lower_is_better,
        "ours": {"subject": comparison.ours, **ours._asdict()},
        "limit": {"subject": comparison.limit, **limit._asdict()},
        "ratio": ratio._asdict(),
    }


def rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """Work, ratio with range, ours, the limit, of CPU time what kernel threads took of both, and what the limit is; a
    failed scenario has its reason instead."""
    if outcome.failure is not None:
        return [
            (comparison.work, "FAILED", "-", "-", "-", comparison.limit.partition(",")[0])
            for comparison in outcome.scenario.comparisons
        ]
    lines: list[tuple[str, ...]] = []
    for comparison in outcome.scenario.comparisons:
        ours, limit, ratio = outcome.compared(comparison)
        shown = _times if comparison.lower_is_better else _percent
        lines.append(
            (
                comparison.work,
                f"{shown(ratio.median)} ({shown(ratio.low)} - {shown(ratio.high)})",
                _number(ours, comparison.measure),
                _number(limit, comparison.measure),
                _kernel_threads(outcome, comparison),
                comparison.limit.partition(",")[0],
            )
        )
    return lines


def _kernel_threads(outcome: Outcome, comparison: Comparison) -> str:
    if comparison.measure != "cpu_us":
        return "-"
    ours, limit = (median(outcome.values(side, "kernel_us")) for side in (comparison.ours, comparison.limit))
    return f"{ours:.0f} µs, {limit:.0f} µs"


HEADINGS = ("work", "ours / limit", "ours", "limit", "of them kernel threads", "the limit is")


def as_markdown(conditions: Conditions, outcomes: Sequence[Outcome]) -> str:
    """One page. The table is all most readers want; what follows says what it means."""
    machine, versions = conditions.machine, conditions.versions
    lines = [
        "# Our speed beside its limits",
        "",
        "Written by `make bench`; every run is in `latest.json`. Ratios are medians of rounds (and their range), each",
        "round measuring ours and the limit in turn. Throughput: more is better, 100% is the limit's speed. A limit is",
        "what the same machine does without our work, not an upper bound (loadtest/bench/__init__.py).",
        "Latency: less is better, 1.0x is the limit itself. k/s, M/s: thousands, millions of records a second.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---:|---:|---:|---:|---|",
        *(f"| {' | '.join(row)} |" for outcome in outcomes for row in rows(outcome)),
        "",
        "## Conditions",
        "",
        f"- {conditions.started_at}, commit {conditions.commit}.",
        f"- {conditions.rounds} rounds of {conditions.run_s:g} s a run, after one that is not counted.",
        f"- {described(machine)}; load average at the start {machine['load_average']}.",
        f"- Other programs took {conditions.other_programs} meanwhile.",
        f"- {', '.join(f'{name} {number}' for name, number in versions.items())}.",
        f"- Load client: {conditions.client}. Servers are processes of their own, on loopback, started for the run.",
        "- Durable means: answered after an fdatasync that covers the record.",
        "",
        "## What was done",
        "",
        *(_about(outcome) for outcome in outcomes),
        "",
    ]
    return "\n".join(lines)


def _about(outcome: Outcome) -> str:
    failure = "" if outcome.failure is None else f" **Failed:** {outcome.failure}"
    return f"- **{outcome.scenario.name}**: {outcome.scenario.about}{failure}"


def _percent(ratio: float) -> str:
    return f"{ratio:.0%}" if ratio >= 0.1 else f"{ratio:.1%}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x"


def _number(value: Spread, measure: str) -> str:
    """A median, short: "2.35 ms", "812 k/s" (records a second)."""
    if measure.endswith("_ms"):
        return f"{value.median:.2f} ms"
    if measure.endswith("_us"):
        return f"{value.median:.0f} µs"
    assert measure == "records_per_s", measure
    if value.median >= 1e6:
        return f"{value.median / 1e6:.2f} M/s"
    return f"{value.median / 1e3:.3g} k/s"

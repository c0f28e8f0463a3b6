"""The shape of a scenario, and how it is run: subjects in turn, round by round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import aiohttp

from loadtest.bench.request import LoadClient, RunFailed
from loadtest.process import ProcessFailed
from loadtest.stats import Spread, paired_ratio, spread

WARM_UP_S = 0.2
SCENARIO_TIMEOUT_S = 120.0

Measures = Mapping[str, float]
"""Numbers of one run, by name; names end with their unit."""


class Subject(NamedTuple):
    """Something whose speed is measured. `run` gets the seconds it may take."""

    name: str
    run: Callable[[float], Awaitable[Measures]]


class Comparison(NamedTuple):
    """One line of the result. `measure` names a number of both subjects."""

    work: str
    ours: str
    limit: str
    measure: str
    lower_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Bench:
    """What every scenario is given."""

    client: LoadClient
    directory: Path
    idle_share: float = 0.0
    """Seconds of CPU that kernel threads take in a second while nothing runs."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of work. `prepare` starts what it needs and stops it afterwards; `about` states the conditions."""

    name: str
    about: str
    prepare: Callable[[Bench], AbstractAsyncContextManager[Sequence[Subject]]]
    comparisons: Sequence[Comparison]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of one scenario, by subject, round by round; or why there are none."""

    scenario: Scenario
    runs: Mapping[str, Sequence[Measures]]
    failure: str | None = None

    def values(self, subject: str, measure: str) -> list[float]:
        return [run[measure] for run in self.runs[subject]]

    def compared(self, comparison: Comparison) -> tuple[Spread, Spread, Spread]:
        """Ours, the limit, and ours divided by the limit."""
        ours = self.values(comparison.ours, comparison.measure)
        limit = self.values(comparison.limit, comparison.measure)
        return spread(ours), spread(limit), paired_ratio(ours, limit)


async def measure(scenario: Scenario, bench: Bench, *, rounds: int, run_s: float, ran: Callable[[], None]) -> Outcome:
    """Run every subject once to warm up, then `rounds` times in turn. `ran` is called after every run."""
    runs: dict[str, list[Measures]] = {}
    try:
        async with asyncio.timeout(SCENARIO_TIMEOUT_S), scenario.prepare(bench) as subjects:
            for subject in subjects:
                await subject.run(WARM_UP_S)
                runs[subject.name] = []
            for _ in range(rounds):
                for subject in subjects:
                    runs[subject.name].append(await subject.run(run_s))
                    ran()
    except (RunFailed, ProcessFailed, aiohttp.ClientError, OSError) as error:
        return Outcome(scenario, {}, failure=str(error) or type(error).__name__)
    return Outcome(scenario, runs)

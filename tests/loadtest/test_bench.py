"""The benchmark itself, run very briefly: every scenario yields every number that it promises."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from loadtest.bench import payloads, scenarios
from loadtest.bench.raw_client import RawClient
from loadtest.bench.request import RunFailed
from loadtest.bench.scenario import Bench, Scenario, measure
from loadtest.bench.store_append import StoreLoop, store_loop
from store.record_batch import check


@pytest.mark.matrix
@pytest.mark.parametrize("scenario", scenarios.scenarios(), ids=lambda scenario: scenario.name.replace(" ", "-"))
async def test_a_scenario_runs_and_its_comparisons_are_positive(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenarios, "PULLED_RECORDS", 20_000)
    run_count = 0

    def ran() -> None:
        nonlocal run_count
        run_count += 1

    outcome = await measure(scenario, Bench(RawClient(), tmp_path), rounds=1, run_s=0.1, ran=ran)
    assert outcome.failure is None
    assert run_count == len(outcome.runs)
    for comparison in scenario.comparisons:
        ours, limit, ratio = outcome.compared(comparison)
        assert min(ours.median, limit.median, ratio.median) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_payloads_are_what_the_report_says() -> None:
    assert len(orjson.dumps(payloads.json_value(9_999_999))) == payloads.VALUE_BYTES == 85
    assert len(orjson.loads(payloads.json_body(range(1000)))["records"]) == 1000
    assert check(payloads.raw_batch(range(1000))).record_count == 1000


async def test_an_append_that_the_store_refuses_fails_the_run(tmp_path: Path) -> None:
    async with store_loop(tmp_path) as loop:
        misdirected = StoreLoop(loop._store, topic_id=999)
        with pytest.raises(RunFailed, match="an append failed: "):
            await misdirected.run(payloads.raw_batch([1]), 1, in_flight=3, duration_s=5.0)

"""Every work at a tiny size against one real server: it finds what it sent, and has the number that is plotted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.growth import workloads
from loadtest.growth.scenarios import SCENARIOS, Scenario
from loadtest.process import Running, running_server

TINY = {
    "SINGLE_S": 0.2, "BATCHED_COUNT": 200, "SENT_AT_LAST": 2_000, "READ_COUNT": 2_000, "PUSH_COUNT": 5,
    "ACCEPTED_AT_LAST": 1_000, "SOON_COUNT": 20, "SOON_MS": 300, "TOPIC_SENDS": 50, "QUEUE_COUNT": 1_000,
    "SETTLE_S": 0.01,
}  # fmt: skip
SIZES = {"stored": 1_000, "consume": 1_000, "pending": 1_000}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_server(tmp_path_factory.mktemp("growth") / "data") as running:
        yield running


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
async def test_a_work_has_the_number_that_is_plotted(
    scenario: Scenario, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TINY.items():
        monkeypatch.setattr(workloads, name, value)
    monkeypatch.setattr(workloads, "TOPIC", f"tiny-{scenario.name}")
    numbers = await scenario.work(server, SIZES.get(scenario.name, 3))
    assert numbers[scenario.cost] >= 0
    assert all(value >= 0 for value in numbers.values())


def test_the_sizes_of_this_test_are_names_of_the_workloads() -> None:
    assert all(hasattr(workloads, name) for name in TINY)

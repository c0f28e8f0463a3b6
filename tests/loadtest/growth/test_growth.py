"""How cost grows: points have numbers or a reason, and the report is made from their files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from loadtest.growth import workloads
from loadtest.growth.__main__ import point
from loadtest.growth.report import growth, plot, write_report
from loadtest.growth.scenarios import FACTORS, SCENARIOS, Scenario
from loadtest.process import Running

ABOUT = {
    "started_at": "2026-01-01",
    "commit": "c0ffee",
    "rounds": 2,
    "machine": {
        "cpu": "c",
        "cores": 2,
        "memory_gib": 1,
        "kernel": "k",
        "file_system": "ext4",
        "load_average": 0,
        "slowness": 1.0,
        "pages_out": False,
    },
}


async def kill(server: Running, size: int) -> Mapping[str, float]:
    """A server that is killed while it is measured."""
    os.kill(server.pid, 9)
    raise ConnectionResetError("what its client sees")


def by_name(name: str) -> Scenario:
    return next(one for one in SCENARIOS if one.name == name)


def test_a_point_has_the_number_that_is_plotted(tmp_path: Path) -> None:
    scenario = by_name("idle")
    result = point(scenario, 3, tmp_path)
    assert float(str(result[scenario.cost])) >= 0


def test_a_server_that_is_killed_gives_no_number(tmp_path: Path) -> None:
    result = point(by_name("idle")._replace(work=kill), 1, tmp_path)
    assert list(result) == ["failed"]
    assert "exit code -9" in str(result["failed"])


def test_a_work_that_is_refused_gives_no_number(tmp_path: Path) -> None:
    async def refused(server: Running, size: int) -> Mapping[str, float]:
        raise workloads.WorkloadFailed("offset 3 came where 2 was to come")

    result = point(by_name("idle")._replace(work=refused), 1, tmp_path)
    assert result == {"failed": "offset 3 came where 2 was to come"}


def results() -> list[dict[str, object]]:
    costs = {1: 10.0, 10: 11.0, 100: 20.0}
    rows: list[dict[str, object]] = [
        {"round": number, "scenario": "single", "size": size, "cpu_us": cost + number, "per_s": 5}
        for number in range(2)
        for size, cost in costs.items()
    ]
    rows.append({"round": 0, "scenario": "push", "size": 1, "cpu_us": 3.0})
    rows.append({"round": 0, "scenario": "push", "size": 100, "failed": "it | died"})
    return rows


def test_growth_is_taken_round_by_round() -> None:
    assert growth(by_name("single"), results()) == "1.95 (1.91 - 2.00)"
    assert growth(by_name("push"), results()) == "-"


def test_the_report_is_made_from_the_files_and_a_failure_has_no_number(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "about.json").write_bytes(orjson.dumps(ABOUT))
    for number, row in enumerate(results()):
        (runs / f"{row['round']}-{row['scenario']}-{number}.json").write_bytes(orjson.dumps(row))
    write_report(runs, tmp_path / "out")
    page = (tmp_path / "out" / "growth.md").read_text()
    assert "| 10.5 (10 - 11) |" in page
    push = next(line for line in page.splitlines() if line.startswith("| Pushing"))
    assert "failed 1 of 1: it / died" in push
    assert ElementTree.parse(tmp_path / "out" / "growth-single.svg")
    assert not (tmp_path / "out" / "growth-topics.svg").exists()
    assert len(orjson.loads((tmp_path / "out" / "growth.json").read_bytes())["results"]) == len(results())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_every_scenario_says_what_it_does(scenario: Scenario) -> None:
    assert scenario.work.__doc__
    assert scenario.sizes() == [scenario.base * factor for factor in FACTORS]
    assert plot(scenario, []) is None

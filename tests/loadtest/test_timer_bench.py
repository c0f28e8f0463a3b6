"""The timer's benchmark: its arithmetic, its page, and what it says of peers that are not there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadtest.bench import timer_peers
from loadtest.bench.timer import as_markdown, cells
from loadtest.bench.timer_work import Row, accept_and_busy, flat_and_recovery, percentiles


def test_percentiles_are_of_the_values_given() -> None:
    values = [float(value) for value in range(1000, 0, -1)]
    assert percentiles(values) == [501.0, 991.0, 1000.0]
    assert percentiles([7.0]) == [7.0, 7.0, 7.0]


def test_the_page_says_what_was_missed_and_under_which_conditions() -> None:
    rows = [Row("busy", "3,000 ms", "<= 2,000 ms", False), Row("redis", "1,000 ms")]
    page = as_markdown({"cores": 2}, rows)
    assert "| busy | 3,000 ms | <= 2,000 ms | **no** |" in page
    assert "| redis | 1,000 ms | - | - |" in page
    assert "- cores: 2" in page
    assert cells(Row("x", "y", "z", True))[3] == "yes"


def test_a_peer_that_is_not_installed_is_named_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = timer_peers.peer_rows(tmp_path, 1000)
    assert [row.work for row in rows] == ["redis", "beanstalkd"]
    assert all("apt-get install" in row.measured for row in rows)


def test_every_measurement_runs_and_checks_what_it_measures(tmp_path: Path) -> None:
    (tmp_path / "busy").mkdir()
    (tmp_path / "flat").mkdir()
    rows = asyncio.run(accept_and_busy(tmp_path / "busy", 1000, 1))
    assert [row.work for row in rows] == ["accept", "busy", "others", "others, the limit"]
    rows = asyncio.run(flat_and_recovery(tmp_path / "flat", 1000, 3000))
    assert [row.work for row in rows] == ["flat", "memory", "change", "recovery", "clean start"]
    assert "202,998 pending" in rows[3].measured  # 3,000 and two times five probes of 20,000, less two cancelled

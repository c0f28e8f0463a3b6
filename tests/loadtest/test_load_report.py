"""The report page: made from the CSV files alone; what failed, and a Locust that was the limit, are said first."""

from __future__ import annotations

import csv
from pathlib import Path

import orjson
import pytest

from loadtest.bench import machine
from loadtest.load.metrics import COLUMNS
from loadtest.report import BUSY_PERCENT, write_report

STATS = "Type,Name,Request Count,Failure Count,Median Response Time,Max Response Time,Requests/s,50%,95%,99%"
HISTORY = "Timestamp,User Count,Type,Name,Requests/s,50%,95%,99%,Total Request Count"


def run(directory: Path, *, failed: int = 0, locust_percent: float = 10) -> str:
    """A run's files; the page that is made of them."""
    (directory / "run_stats.csv").write_text(
        f"{STATS}\nPOST,send 1,200,0,3,9,100,3,5,8\nCHECK,every record is there once,1,{failed},0,0,0,0,0,0\n"
        f",Aggregated,201,{failed},3,9,100,3,5,8\n"
    )
    (directory / "run_stats_history.csv").write_text(
        f"{HISTORY}\n100,5,POST,send 1,0,N/A,N/A,N/A,0\n101,5,POST,send 1,90,3,5,8,90\n102,5,POST,send 1,99,3,5,9,190\n"
    )
    error = "1 came <twice>" if failed else ""
    (directory / "run_failures.csv").write_text(
        "Method,Name,Error,Occurrences\n" + (f"CHECK,every record is there once,{error},{failed}\n" if failed else "")
    )
    with (directory / "run_mq_history.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for second in (101, 102):
            writer.writerow(
                {**dict.fromkeys(COLUMNS, ""), "time_s": second, "acknowledged": 100, "users": 5, "late_p50_ms": 1}
                | {"locust_cpu_percent": locust_percent}
            )
    return write_report(directory).read_text()


def test_a_good_run_says_so_and_has_its_charts(tmp_path: Path) -> None:
    page = run(tmp_path)
    assert "everything as promised" in page
    assert "200 records acknowledged" in page
    for title in ("Records", "Answers to sends", "Lateness of delayed records", "CPU"):
        assert f"<h2>{title}</h2>" in page
    assert "Memory of the server" not in page  # nothing was measured
    assert "http://" not in page.replace("http://www.w3.org", "")  # nothing is fetched from anywhere


def test_the_machine_of_a_run_is_told(tmp_path: Path) -> None:
    facts = machine.facts(tmp_path)
    about = {"machine": facts, "own_server": True, "versions": {"python": "3"}}
    (tmp_path / "run.json").write_bytes(orjson.dumps(about))
    assert f"{machine.described(facts)}; load average at the start {facts['load_average']}." in run(tmp_path)


def test_a_failure_comes_first_and_is_escaped(tmp_path: Path) -> None:
    page = run(tmp_path, failed=1)
    assert "1 failures" in page
    assert "✗ every record is there once" in page
    assert "1 came &lt;twice&gt;" in page


@pytest.mark.parametrize(("percent", "is_said"), [(BUSY_PERCENT, False), (BUSY_PERCENT + 1, True)])
def test_a_locust_that_was_the_limit_is_said(tmp_path: Path, percent: float, is_said: bool) -> None:
    assert ("as much its own as the server's" in run(tmp_path, locust_percent=percent)) == is_said


def test_without_files_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_report(tmp_path)

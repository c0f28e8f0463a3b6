"""The report: a table between two marks, a chart of all curves, and no number where there was none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from loadtest.attack.attack import Figures, MiB, Row
from loadtest.attack.curves import Curves, Point
from loadtest.attack.report import BEGIN, CHART, END, NUMBERS, PAGE, chart, replaced, table, turn, write

ABOUT = {
    "started_at": "2026-01-01T00:00:00+00:00",
    "commit": "c0ffee",
    "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "k", "file_system": "ext4", "load_average": 0},
}
HELD = Row(
    name="idle", tried="connections", victim="default", began_s=1, ended_s=5,
    figures=Figures(
        start_bytes=80 * MiB, worst_bytes=90 * MiB, health_ms=12.4, handles=120, gap_ms=60, late_ms=3, turn_ms=100,
        slowness=1.0,
        back_bytes=81 * MiB, back_s=5,
    ),
    seen={"503": 40, "left open": 60}, problems=[],
)  # fmt: skip
DEAD = Row(
    name="killer", tried="a | b", victim="default", began_s=6, ended_s=7, figures=None, seen={},
    problems=["the server has ended\nwith a traceback"],
)  # fmt: skip
CURVES = Curves(
    rss_mib=[Point(0, 80), Point(2, 90), Point(5, 81)],
    handles=[Point(0, 20), Point(2, 120)],
    health_ms=[Point(0, 1.0), Point(2, 12.4), Point(3, None)],
)


def test_a_row_has_its_numbers() -> None:
    rows = [line for line in table(ABOUT, [HELD]) if line.startswith("| 1 ")]
    assert rows == [
        "| 1 | `idle` | connections | 90 MiB (80) | 12 ms | ≤ 100 ms | left open (60), 503 (40) | 81 MiB after 5 s |"
    ]


def test_a_dead_victim_is_a_failed_row_without_numbers() -> None:
    text = "\n".join(table(ABOUT, [HELD, DEAD]))
    assert "| 2 | `killer` | a / b | - | - | - | **failed: the server has ended with a traceback** | - |" in text
    assert "held in 1 of 2" in text


def test_a_turn_that_is_not_counted_is_shorter_than_what_is() -> None:
    assert turn(0, 1) == "< 50 ms"
    assert turn(100.0, 1) == "≤ 100 ms"
    assert turn(80.0, 1.62) == "≤ 80 ms (machine 1.6 times as slow)"
    assert turn(float("inf"), 1) == "beyond all bounds"


def test_only_what_is_between_the_marks_changes() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(page, "new\n") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="lacks"):
        replaced("a page of its own", "new\n")


def test_the_chart_has_every_curve_and_number() -> None:
    drawn = chart([HELD, DEAD], CURVES)
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    for text in ("memory, MiB", "/healthz, ms", "file handles", "minutes", ">1<", ">2<"):
        assert text in drawn
    assert "longest turn" not in drawn, "what has no point has no curve"
    assert "longest turn" in chart([HELD], replace(CURVES, turn_ms=[Point(1, 0.0), Point(6, float("inf"))]))
    assert drawn == chart([HELD, DEAD], CURVES)


def test_a_run_is_written_and_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path, ABOUT, [HELD, DEAD], CURVES)
    assert (tmp_path / PAGE).read_text().count("`idle`") == 1
    assert (tmp_path / CHART).read_text().startswith("<svg")
    document = orjson.loads((tmp_path / NUMBERS).read_bytes())
    assert document["rows"][1]["figures"] is None
    assert document["curves"]["health_ms"][-1] == [3, None]


def test_the_page_of_the_repository_has_the_marks() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / PAGE
    assert replaced(page.read_text(), "")

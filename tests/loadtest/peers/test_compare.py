"""Two results agree when the ranges of every row overlap; a quick one agrees when it says who is ahead."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from loadtest.peers.compare import compare, differences, directions
from loadtest.peers.report import PROGRAMS

PEERS = {"mq": {"is_limit": False}, "kafka": {"is_limit": False}, "bare": {"is_limit": True}}


def file_of(path: Path, step: str = "batched", measure: str = "records_per_s", **values: list[float]) -> Path:
    rows = [
        {
            "round": number, "peer": peer, "level": "always", "client": PROGRAMS, "durability": "synced",
            "step": step, measure: value,
        }
        for peer, numbers in values.items()
        for number, value in enumerate(numbers)
    ]  # fmt: skip
    path.write_bytes(orjson.dumps({"peers": PEERS, "results": rows}))
    return path


def test_ranges_that_touch_agree_and_those_apart_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = file_of(tmp_path / "a", mq=[90, 100, 110])
    assert compare(first, file_of(tmp_path / "b", mq=[110, 120, 130])) == 0
    assert compare(first, file_of(tmp_path / "c", mq=[111, 120, 130])) == 1
    shown = f"Batches of 1,000: mq, always, {PROGRAMS}: 100 (90 - 110) against 120"
    assert capsys.readouterr().out.splitlines() == [
        f"agrees: {shown} (110 - 130), 1.20x",
        "1 of 1 rows agree: their ranges overlap",
        f"DIFFERS: {shown} (111 - 130), 1.20x",
        "0 of 1 rows agree: their ranges overlap",
    ]


def test_what_was_measured_once_is_told_and_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several, once = file_of(tmp_path / "a", mq=[90, 100, 110]), file_of(tmp_path / "b", mq=[1200])
    assert compare(several, once) == 1, "nothing was judged"
    assert capsys.readouterr().out.splitlines() == [
        f"once: Batches of 1,000: mq, always, {PROGRAMS}: 100 (90 - 110) against 1,200, 12.00x",
        "0 of 0 rows agree: their ranges overlap",
    ]


def test_rows_without_numbers_in_both_agree_in_nothing(tmp_path: Path) -> None:
    first = file_of(tmp_path / "a", mq=[1, 2])
    other = file_of(tmp_path / "b", kafka=[1, 2])
    assert list(differences(first, other)) == []
    assert compare(first, other) == 1


def test_a_quick_run_agrees_when_it_is_on_the_same_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = file_of(tmp_path / "full", mq=[200, 220, 240], kafka=[100, 100, 100])
    assert directions(full, file_of(tmp_path / "a", mq=[105], kafka=[100])) == 0
    assert directions(full, file_of(tmp_path / "b", mq=[95], kafka=[100])) == 1
    assert capsys.readouterr().out.splitlines() == [
        "1 of 1 rows agree on who is ahead; 0 are level",
        f"DISAGREES: Batches of 1,000, synced: kafka, always, {PROGRAMS}: 2.2 (2 - 2.4), quick 0.95",
        "0 of 1 rows agree on who is ahead; 0 are level",
    ]


def test_a_row_that_is_level_is_listed_and_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = file_of(tmp_path / "full", mq=[90, 120, 130], kafka=[100, 100, 100])
    assert directions(full, file_of(tmp_path / "a", mq=[50], kafka=[100])) == 1, "nothing was judged"
    assert capsys.readouterr().out.splitlines() == [
        f"level: Batches of 1,000, synced: kafka, always, {PROGRAMS}: 1.2 (0.9 - 1.3), quick 0.5",
        "0 of 0 rows agree on who is ahead; 1 are level",
    ]


def test_a_limit_has_no_direction(tmp_path: Path) -> None:
    full = file_of(tmp_path / "full", mq=[1, 1], bare=[2, 2])
    assert directions(full, full) == 1, "nothing was judged"


def test_what_a_quick_run_does_at_another_size_is_not_judged(tmp_path: Path) -> None:
    once = {"mq": [20.0], "kafka": [10.0]}
    restarts = file_of(tmp_path / "a", step="restart", measure="first_record_ms", **once)
    assert list(differences(restarts, restarts)), "the rows are there"
    assert directions(restarts, restarts) == 1, "nothing was judged"

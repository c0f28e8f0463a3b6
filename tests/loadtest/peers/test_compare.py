"""Two results agree when the ranges of every row overlap."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from loadtest.peers.compare import compare, differences


def file_of(path: Path, values: list[float], peer: str = "mq") -> Path:
    rows = [
        {"round": number, "peer": peer, "durability": "synced", "step": "batched", "records_per_s": value}
        for number, value in enumerate(values)
    ]
    path.write_bytes(orjson.dumps({"results": rows}))
    return path


def test_ranges_that_touch_agree_and_those_apart_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = file_of(tmp_path / "a", [90, 100, 110])
    assert compare(first, file_of(tmp_path / "b", [110, 120, 130])) == 0
    assert compare(first, file_of(tmp_path / "c", [111, 120, 130])) == 1
    assert "Batches of 1,000: mq, synced: 100 (90 - 110) against 120 (111 - 130)" in capsys.readouterr().out


def test_what_was_measured_once_is_told_and_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several, once = file_of(tmp_path / "a", [90, 100, 110]), file_of(tmp_path / "b", [1200])
    assert compare(several, once) == 1, "nothing was judged"
    assert capsys.readouterr().out.splitlines() == [
        "once: Batches of 1,000: mq, synced: 100 against 1,200",
        "0 of 0 rows agree: their ranges overlap",
    ]


def test_rows_without_numbers_in_both_agree_in_nothing(tmp_path: Path) -> None:
    first = file_of(tmp_path / "a", [1, 2])
    other = file_of(tmp_path / "b", [1, 2], peer="kafka")
    assert list(differences(first, other)) == []
    assert compare(first, other) == 1

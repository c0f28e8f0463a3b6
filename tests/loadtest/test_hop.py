"""The program that measures hops and moves, on next to nothing: that it runs, and writes what it found."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from loadtest.bench import hop


@pytest.mark.matrix
def test_it_measures_hops_and_moves_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop, "WORKS", (hop.Work("2 records", 2, 2, 3),))
    monkeypatch.setattr(hop, "IDS", (0, 1000))
    monkeypatch.setattr(sys, "argv", ["hop", "--rounds", "5", "--moves", "3", "--out", str(tmp_path)])
    hop.main()
    found = orjson.loads((tmp_path / "hop.json").read_bytes())
    [row] = found["hop"]
    assert 0 < row["own_us"] < row["peer_us"]
    assert [move["ids"] for move in found["move"]] == [0, 1000]
    assert "| 2 records |" in (tmp_path / "hop.md").read_text()

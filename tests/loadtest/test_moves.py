"""The program that measures how long moves pause a partition: which sends it counts as held; a small run."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from loadtest.bench import moves
from loadtest.bench.moves import Sent, told_apart
from tests.gateway.cluster.etcd_server import need_etcd


def test_a_move_holds_the_sends_to_its_partition_that_it_met_and_no_others() -> None:
    move = Sent(1, 10.0, 10.5)
    sent = [
        Sent(1, 9.0, 9.9),  # before
        Sent(1, 9.9, 10.1),
        Sent(1, 10.2, 10.6),  # the slowest
        Sent(2, 10.1, 10.9),  # another partition, meanwhile: it may share a disk with the move, and counts nowhere
        Sent(1, 10.6, 12.0),  # behind
    ]
    held, other = told_apart([move], sent)
    assert held == pytest.approx([400.0])
    assert other == pytest.approx([900.0, 1400.0])
    assert told_apart([move._replace(partition=0)], sent)[0] == [], "nobody has sent to it"


@pytest.mark.matrix
def test_a_small_run_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_etcd()
    monkeypatch.setattr(moves, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["moves", "--moves", "12", "--rate", "60", "--write", "--dir", str(tmp_path)])
    moves.main()
    found = orjson.loads((tmp_path / "moves.json").read_bytes())
    assert len(found["pauses"]) == 12
    assert 0 < min(found["pauses"]) <= max(found["pauses"]) < 60_000
    assert found["cpu_ms"] > 0
    assert len(found["other"]) > 20
    assert "| pause |" in (tmp_path / "moves.md").read_text()

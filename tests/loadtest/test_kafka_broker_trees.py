"""loadtest/bench/kafka_broker_trees.py: the line of a work, and all of it on a real Kafka, in small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loadtest.bench import kafka_broker_trees as trees
from loadtest.bench import librdkafka
from loadtest.peers.fetch import TOOLS
from loadtest.peers.peer import Unavailable


def test_a_line_has_what_both_cost_and_how_much_less_this_one() -> None:
    assert trees.line("in", [0.4, 0.5, 0.6, 0.5, 0.5], [0.8, 1.0, 1.2, 1.0, 1.0]) == (
        "| in | 0.50 | 1.00 | 0.50 (0.50 - 0.50) |"
    )


@pytest.mark.matrix
def test_both_servers_are_measured_on_one_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        librdkafka.rdkafka_performance(TOOLS)
    except Unavailable as error:
        pytest.skip(str(error))
    monkeypatch.setattr(trees, "RUN_S", 0.1)
    monkeypatch.setattr(trees, "WORKS", [one._replace(records=min(one.records, 2_000)) for one in trees.WORKS])
    monkeypatch.setattr(trees, "line", lambda name, this, other: f"{name}: {len(this)}, {len(other)}, {sum(this) >= 0}")
    monkeypatch.setattr(sys, "argv", ["kafka_broker_trees", ".", "--rounds", "1", "--dir", str(tmp_path)])
    trees.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines == [f"{work.name}: 1, 1, True" for work in trees.WORKS]
    assert list(tmp_path.glob("mq-trees-*")) == []

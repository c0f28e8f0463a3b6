"""loadtest/bench/kafka_broker.py and kafka_broker_work.py: the page, and all of it on a real Kafka, in small."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import orjson
import pytest

from loadtest.bench import kafka_broker, librdkafka
from loadtest.bench.kafka_broker import as_markdown
from loadtest.bench.parts import Part
from loadtest.peers.fetch import TOOLS
from loadtest.peers.peer import Unavailable

USED = {"mq": 0.5, "Kafka": 0.7, "the client": 0.2}
ROW: dict[str, object] = {
    "work": "records of 100 B in", "way": "mq, HTTP", "unit": "records/s", "values": [1.5e6, 1.7e6],
    "beside": [2e6, 2e6], "goal": {"at_least": 1e6, "at_most": None, "share": 0.8}, "cores": [USED, USED],
    "idle_cores": [0.1, 0.1], "cpu_s": [USED, USED],
}  # fmt: skip


def test_a_row_says_what_each_program_took_and_whether_its_goal_was_met() -> None:
    alone = ROW | {"way": "Kafka, librdkafka", "beside": [], "goal": None}
    late = ROW | {"work": "200/s, p50", "unit": "ms", "values": [11.0], "beside": [2.0]}
    late["goal"] = {"at_least": None, "at_most": 10.0, "share": None}
    page = as_markdown({"in": Part({"cores": 2}, [ROW, alone]), "latency": Part({"cores": 2}, [late])})
    assert (
        "| records of 100 B in | mq, HTTP | 1.60 M/s (1.50 M/s - 1.70 M/s) | 80% (75% - 85%) | 0.50 | 0.70 | 0.20 "
        "| 0.50 | 0.70 | 0.20 | the cores, taken mostly by Kafka | >= 80% of librdkafka's, >= 1.00 M/s | yes |"
    ) in page
    assert "| records of 100 B in | Kafka, librdkafka | 1.60 M/s (1.50 M/s - 1.70 M/s) | - |" in page
    assert (
        "| 200/s, p50 | mq, HTTP | 11 ms | 18% | 0.50 | 0.70 | 0.20 | 0.50 | 0.70 | 0.20 | - | <= 10 ms | **no** |"
        in page
    )
    assert "- 200/s, p50, mq, HTTP: 11 ms, 18% of librdkafka's own; the goal is <= 10 ms." in page


@pytest.mark.matrix
def test_it_goes_all_ways_and_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        librdkafka.rdkafka_performance(TOOLS)
    except Unavailable as error:
        pytest.skip(str(error))
    small = ["--scale", "0.01", "--rounds", "1", "--dir", str(tmp_path), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["kafka_broker", *small])
    kafka_broker.main()
    parts = orjson.loads((tmp_path / "out" / "kafka-broker.json").read_bytes())["parts"]
    assert [len(part["rows"]) for part in parts.values()] == [10, 8, 12]
    for row in (row for part in parts.values() for row in part["rows"]):
        assert median(row["values"]) > 0, row
        assert row["unit"] != "ms" or median(row["values"]) < 60_000, row
        [cpu_s] = row["cpu_s"]
        assert cpu_s["mq"] > 0 or row["way"] != "mq, HTTP", row
    page = (tmp_path / "out" / "kafka-broker.md").read_text()
    assert page.count("| mq, HTTP |") == 4
    assert page.count("1 MB batches |") == 2
    assert list(tmp_path.glob("mq-bench-*")) == []

"""loadtest/bench/kafka.py and librdkafka.py: what the tool prints, and the page."""

from __future__ import annotations

import pytest

from loadtest.bench.kafka import as_markdown
from loadtest.bench.librdkafka import rate_of, said
from loadtest.bench.parts import Part
from loadtest.peers.peer import WorkFailed

PRODUCED = (
    "% 100000 messages produced (10000000 bytes), 100000 delivered (offset 99999, 0 failed) in 432ms: "
    "231000 msgs/s and 23.10 MB/s, 0 produce failures, 0 in queue, no compression"
)
CONSUMED = "% 400000 (40000000 bytes) messages consumed in 657ms: 608000 msgs/s (60.80 MB/s)"


def test_the_rate_of_a_whole_run() -> None:
    assert rate_of(PRODUCED, 100_000) == 231_000
    assert rate_of(f"{PRODUCED}\n{CONSUMED}", 100_000) == 608_000
    with pytest.raises(WorkFailed):
        rate_of(PRODUCED, 100_001)
    with pytest.raises(WorkFailed):
        rate_of("% ERROR", 1)


def test_a_tool_that_counted_one_message_less_than_were_delivered_did_its_work() -> None:
    command = ["sh", "-c", f"echo '{PRODUCED.replace('100000 messages', '99999 messages')}'; exit 1"]
    assert rate_of(said(command, ended_by=(0, 1)), 100_000) == 231_000
    with pytest.raises(WorkFailed, match="sh ended with 1: % 99999 messages"):
        said(command)


def test_a_row_says_who_is_faster_what_it_costs_and_what_limits_it() -> None:
    row: dict[str, object] = {
        "work": "produce 100 B", "client": "c", "unit": "records/s", "produces": True, "ours": [200_000, 220_000],
        "theirs": [100_000, 100_000], "ours_cpu_s": [0.5, 0.5], "theirs_cpu_s": [1.0, 1.0],
        "ours_cores": [0.2, 0.2], "ours_client_cores": [1.6, 1.6], "ours_idle_cores": [0.1, 0.1],
    }  # fmt: skip
    late = row | {"work": "p99", "unit": "ms", "produces": False, "ours": [4.0], "theirs": [2.0]}
    old = {name: value for name, value in row.items() if not name.endswith("_cores")} | {"work": "old"}
    page = as_markdown({"durable": Part({"rounds": 2, "cores": 2}, [row, late, old])})
    assert (
        "| produce 100 B | c | 210 k/s | 100 k/s | 2.1x (2 - 2.2) | 0.50 | 1.00 | 0.5x | 0.20 + 1.60 "
        "| the cores, taken mostly by the client | >= 1.5x | yes |"
    ) in page
    assert "| p99 | c | 4 ms | 2 ms | 0.5x | 0.50 | 1.00 | 0.5x | 0.20 + 1.60 | - | >= 1x | **no** |" in page
    assert "| old | c | 210 k/s | 100 k/s | 2.1x (2 - 2.2) | 0.50 | 1.00 | 0.5x | - | - | >= 1.5x | yes |" in page
    assert "- durable, p99, c: 0.5x of Kafka's speed, the goal is 1x; 0.5x of its CPU time.\n" in page

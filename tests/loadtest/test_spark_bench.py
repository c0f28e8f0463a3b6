"""`make bench-spark`: what a row says, and that a topic with other batches is not read."""

from __future__ import annotations

import pytest

from loadtest.bench import spark
from loadtest.bench.parts import Part
from loadtest.bench.spark import BATCH_ROWS, Row, WrongLayout, as_markdown, batch_records, cells, check_layout
from store.record_batch import Record, encode


def test_ours_is_a_share_of_each_other_round_by_round() -> None:
    row = Row("write", "records/s", {"mq": [1e6, 2e6, 3e6], "kafka": [2e6, 2e6, 2e6]}, ">= 400,000", True, "note")
    assert cells(row) == ("write (note)", "2.00 M/s", "kafka 2.00 M/s: 100% (50% - 150%)", ">= 400,000", "yes")


def test_the_page_is_made_of_what_was_stored() -> None:
    row = Row("write", "records/s", {"mq": [1e5]}, ">= 400,000", False)
    page = as_markdown({"writes": Part({"rounds": 1}, [row._asdict()])})
    assert "| write | 100 k/s |  | >= 400,000 | **no** |" in page
    assert "kafka.batch.size=1048576" in page


def test_the_records_of_each_batch_are_counted_up_to_a_batch_that_is_cut() -> None:
    batches = [bytes(encode([Record(None, b"x", 0)] * count)) for count in (3, 1, 7)]
    whole = b"".join(batches)
    assert batch_records(whole) == [3, 1, 7]
    assert batch_records(whole[:-1]) == [3, 1]
    assert batch_records(whole + bytes(500)) == [3, 1, 7], "a file that has its space before its batches"
    assert batch_records(b"") == []


@pytest.mark.parametrize("counts", [[BATCH_ROWS, BATCH_ROWS - 1], [1], []])
def test_a_topic_with_other_batches_is_refused(counts: list[int]) -> None:
    check_layout("t", [BATCH_ROWS, BATCH_ROWS])
    with pytest.raises(WrongLayout, match="t has batches"):
        check_layout("t", counts)


def test_the_sink_of_kafka_carries_what_a_request_of_ours_does() -> None:
    assert spark.KAFKA_SINK["kafka.batch.size"] == spark.BATCH_BYTES == 1024 * 1024
    assert spark.KAFKA_SINK["kafka.max.request.size"] > spark.PARTITIONS * spark.BATCH_BYTES

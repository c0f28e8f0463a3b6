"""A server that is killed and started again while Spark reads: the job goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.conftest import Server, fill, load

COUNT = 20_000
TIMEOUT_S = 120
SMALL_BATCHES = "spark.sql.execution.arrow.maxRecordsPerBatch"


def wait_for(path: Path) -> None:
    """Until a file is there."""
    pause = threading.Event()
    for _ in range(100 * TIMEOUT_S):
        if path.exists():
            return
        pause.wait(0.01)
    raise TimeoutError(path)


def test_a_server_that_is_killed_in_mid_read_costs_time_but_no_records(
    spark: SparkSession, own_server: Server, tmp_path: Path
) -> None:
    fill(own_server, "t", COUNT, value_bytes=500)  # far more than the pipes between the processes hold
    options = {"fetchBytes": "100000", "columns": "value", "subscribe": "t", "minPartitions": "2"}
    reached, go_on = tmp_path / "reached", tmp_path / "go-on"

    def stop_in_between(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 3:
                reached.touch()
                wait_for(go_on)
            yield batch

    frame = load(spark, own_server.url, **options).mapInArrow(stop_in_between, "value binary")
    seen: list[int] = []
    reading = threading.Thread(target=lambda: seen.extend(int(row.value) for row in frame.collect()))
    spark.conf.set(SMALL_BATCHES, "200")
    try:
        reading.start()
        wait_for(reached)
        own_server.kill_and_start_again()
        go_on.touch()
        reading.join(TIMEOUT_S)
    finally:
        spark.conf.unset(SMALL_BATCHES)
    assert sorted(seen) == list(range(COUNT))

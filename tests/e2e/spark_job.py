"""Spark jobs for test_spark_crash.py and test_spark_cluster.py, which run them as processes of their own.

python -m tests.e2e.spark_job copy URL SOURCE SINK CHECKPOINT    a stream from topic to topic, slow enough to be killed
python -m tests.e2e.spark_job cluster URL MASTER SOURCE SINK     read and write on executors that lack this package
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyspark_mq
from pyspark.sql import DataFrame, SparkSession

BATCH_RECORDS = 20_000
"""Of one micro-batch."""


def session(master: str, **conf: str) -> SparkSession:
    """A small session without a web page."""
    builder = SparkSession.builder.master(master).appName("mq-job").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
    for name, value in conf.items():
        builder = builder.config(name.replace("_", "."), value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def copy(url: str, source: str, sink: str, checkpoint: str) -> None:
    """Every record of one topic into another, a few at a time, until all are there."""
    pyspark_mq.prepare()
    spark = session("local[2]")

    def slowly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, 500):
                time.sleep(0.02)
                yield batch.slice(start, 500)

    stream = spark.readStream.format("mq").options(
        url=url, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=BATCH_RECORDS, columns="key,value"
    )
    rows = stream.load().mapInArrow(slowly, "key binary, value binary")
    writer = rows.writeStream.format("mq").options(url=url, topic=sink)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def cluster(url: str, master: str, source: str, sink: str) -> None:
    """Print as JSON: how many records were read, whether executors have the package, and who they are."""
    spark = session(master, spark_executor_memory="512m", spark_driver_host="127.0.0.1", spark_cores_max="2")
    pyspark_mq.register(spark, ship_code=True)

    def read() -> DataFrame:
        return spark.read.format("mq").options(url=url, subscribe=source, minPartitions=8).load()

    def who(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        from importlib.util import find_spec

        count = sum(batch.num_rows for batch in batches)
        time.sleep(0.5)  # so that no executor takes all tasks
        yield pa.record_batch({"count": [count], "has": [find_spec("pyspark_mq") is not None], "where": [os.getcwd()]})

    rows = read().mapInArrow(who, "count long, has boolean, where string").collect()
    read().select("key", "value").write.format("mq").options(url=url, topic=sink).mode("append").save()
    report = {
        "count": sum(row["count"] for row in rows),
        "tasks": len(rows),
        "has_package": any(row["has"] for row in rows),
        "executors": sorted({row["where"] for row in rows}),
    }
    print(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    {"copy": copy, "cluster": cluster}[sys.argv[1]](*sys.argv[2:])

"""Run by an older pyspark (test_spark_versions.py): reads, streams and writes; prints a report as JSON."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable

import pyspark_mq
from pyspark.sql import DataFrame, SparkSession


def main(url: str, directory: str) -> None:
    """Topics `source` (values 0 to 999), `sink` and `copies` are there."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        pyspark_mq.prepare()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def count(topic: str) -> int:
        return spark.read.format("mq").options(url=url, subscribe=topic).load().count()

    def run(start: Callable[[DataFrame], object], checkpoint: str) -> None:
        stream = spark.readStream.format("mq").options(
            url=url, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger=100, columns="value"
        )
        start(
            stream.load()
            .writeStream.option("checkpointLocation", f"{directory}/{checkpoint}")
            .trigger(availableNow=True)
        )

    report: dict[str, object] = {"warned": [str(one.message) for one in warned], "read": count("source")}
    sizes: list[int] = []

    def save(rows: DataFrame, batch_id: int) -> None:
        sizes.append(rows.count())
        options = {"url": url, "topic": "sink", "writeId": "w", "writeEpoch": str(batch_id)}
        rows.write.format("mq").options(**options).mode("append").save()

    run(lambda writer: writer.foreachBatch(save).start().awaitTermination(), "each")  # type: ignore[attr-defined]
    report |= {"batches": sizes, "sink": count("sink")}
    try:
        run(
            lambda writer: writer.format("mq").options(url=url, topic="copies").start().awaitTermination(),  # type: ignore[attr-defined]
            "copies",
        )
    except Exception as error:
        report["refused"] = str(error)
    report["copies"] = count("copies")
    spark.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])

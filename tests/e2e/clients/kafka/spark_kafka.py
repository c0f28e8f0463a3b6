"""Spark's own Kafka source and sink for tests/e2e/test_kafka_clients.py: a stream from topic to topic, until it is
killed.

    spark_kafka.py ADDRESS SOURCE SINK CHECKPOINT JAR,JAR,...
"""

from __future__ import annotations

import sys

import pyspark_mq
from pyspark.sql import SparkSession


def main(address: str, source: str, sink: str, checkpoint: str, jars: str) -> None:
    """Copy for ever; each micro-batch prints how many records it had."""
    pyspark_mq.prepare()
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.jars", jars)
    builder = builder.config("spark.ui.enabled", "false").config("spark.executor.memory", "512m")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    known = spark.read.format("kafka").options(**{"kafka.bootstrap.servers": address, "subscribe": source}).load()
    print("batch read", known.count(), flush=True)
    stream = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": address, "subscribe": source, "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "400",
        }
    ).load()  # fmt: skip
    writer = stream.writeStream.format("kafka").options(**{"kafka.bootstrap.servers": address, "topic": sink})
    writer.option("checkpointLocation", checkpoint).trigger(processingTime="100 milliseconds").start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

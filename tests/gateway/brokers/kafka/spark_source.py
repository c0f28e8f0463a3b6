"""A program: what Spark's own Kafka source reads of a topic, as JSON, a row a line.

spark_source.py JARS ENDPOINT TOPIC
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(jars: str, endpoint: str, topic: str) -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", ",".join(map(str, sorted(Path(jars).glob("*.jar")))))
    session = builder.config("spark.driver.memory", "512m").getOrCreate()
    source = session.read.format("kafka").option("kafka.bootstrap.servers", endpoint).option("subscribe", topic)
    for row in source.option("includeHeaders", "true").load().orderBy("partition", "offset").collect():
        headers = [[header.key, _text(header.value)] for header in row.headers or ()]
        told = [row.partition, row.offset, _text(row.key), _text(row.value), headers, row.timestampType]
        print(json.dumps(told), flush=True)
    session.stop()


def _text(data: bytearray | None) -> str | None:
    return None if data is None else bytes(data).decode("latin1")


if __name__ == "__main__":
    main(*sys.argv[1:])

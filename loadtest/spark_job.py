"""The demo's Spark job: flights and mean arrival delay of every airline, read from a topic of a running server.

    python -m loadtest.spark_job http://127.0.0.1:8082

prints one JSON array of [airline, flights, mean delay in minutes], most flights first. It runs in a process of its
own, so that Spark's messages stay apart and nothing of the Java machine is left when it ends.
"""

from __future__ import annotations

import sys

import orjson
import pyspark_mq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from loadtest.flights import table

FLIGHT = "row BIGINT, carrier STRING, arr_delay INT"
QUICK_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""One job of seconds: what the JVM's second compiler and its collector threads cost never comes back."""


def carriers(spark: SparkSession, url: str) -> list[tuple[str, int, float | None]]:
    """One row an airline. The topic's values are JSON; only the columns of FLIGHT are taken out of them."""
    records = spark.read.format("mq").option("url", url).option("subscribe", "flights").load()
    flights = records.select(F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")).select("flight.*")
    counted = (
        flights.join(F.broadcast(spark.createDataFrame(table("airlines.csv"))), "carrier")
        .groupBy("name")
        .agg(F.count("*").alias("flights"), F.avg("arr_delay").alias("mean_delay"))
        .orderBy(F.desc("flights"), "name")
    )
    return [(row["name"], row["flights"], row["mean_delay"]) for row in counted.collect()]


def main() -> None:
    """Run the job against the server named on the command line."""
    pyspark_mq.prepare()  # before the first session: Spark must find this interpreter, and a Java
    spark = (
        SparkSession.builder.appName("mq demo")
        .master("local[2]")
        .config("spark.driver.extraJavaOptions", QUICK_TO_START)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    try:
        print(orjson.dumps(carriers(spark, sys.argv[1])).decode())
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

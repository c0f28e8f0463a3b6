"""The data source in Spark, against a real server. One session for all: what needs no JVM is tested elsewhere."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructType

from tests.spark.batches import Message
from tests.spark.conftest import Server, load
from tests.spark.fake_server import CUT, DISCONNECT, Answer, serving

COUNT = 3000


@pytest.fixture(scope="module")
def orders(mq: Server) -> str:
    """A topic of 3 partitions: value n of COUNT is in partition n % 3, with nulls, headers and two codecs."""
    mq.create("orders", 3)
    for partition in range(3):
        numbers = range(partition, COUNT, 3)
        for first in range(0, len(numbers), 100):
            messages = [message(n) for n in numbers[first : first + 100]]
            mq.send("orders", partition, messages, codec=("none", "zstd", "gzip")[first // 100 % 3])
    return "orders"


def message(n: int) -> Message:
    headers = [("n", b"%d" % n), ("mq-tag", b"even")] if n % 2 == 0 else []
    return Message(b"k%d" % n if n % 5 else None, b"%d" % n if n % 7 else None, 1_700_000_000_000 + n, headers)


@pytest.fixture
def topic(mq: Server) -> str:
    """A new empty topic of 2 partitions."""
    name = f"t-{uuid.uuid4().hex}"
    mq.create(name, 2)
    return name


def send(mq: Server, topic: str, partition: int, numbers: range) -> None:
    mq.send(topic, partition, [Message(value=b"%d" % n) for n in numbers])


def test_a_topic_is_a_table(spark: SparkSession, mq: Server, orders: str) -> None:
    rows = load(spark, mq.url, subscribe=orders, includeHeaders="true").collect()
    assert len(rows) == COUNT
    for row in rows:
        n = 3 * row.offset + row.partition
        sent = message(n)
        assert (row.key, row.value, row.topic, row.timestampType) == (sent.key, sent.value, "orders", 0)
        assert row.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(sent.timestamp_ms / 1000, UTC)
        assert [tuple(header) for header in row.headers or []] == list(sent.headers)
    assert len({(row.partition, row.offset) for row in rows}) == COUNT


def test_sql_over_a_topic_equals_the_direct_computation(spark: SparkSession, mq: Server, orders: str) -> None:
    frame = load(spark, mq.url, subscribe=orders, minPartitions="8")
    assert frame.rdd.getNumPartitions() >= 8
    total = frame.select(F.sum(F.col("value").cast("string").cast("long"))).first()
    assert total is not None
    assert total[0] == sum(n for n in range(COUNT) if n % 7)
    spark.sql(f"CREATE TEMPORARY VIEW orders USING mq OPTIONS (url '{mq.url}', subscribe '{orders}')")
    counts = spark.sql("SELECT partition, count(*), count(key) FROM orders GROUP BY ALL ORDER BY 1").collect()
    assert [tuple(row) for row in counts] == [
        (p, COUNT // 3, sum(n % 5 > 0 for n in range(p, COUNT, 3))) for p in range(3)
    ]


def test_columns_and_a_schema_are_projections(spark: SparkSession, mq: Server, orders: str) -> None:
    frame = load(spark, mq.url, assign='{"orders":[0]}', columns="tag,offset,deliverAt")
    assert frame.columns == ["tag", "offset", "deliverAt"]
    assert frame.where("tag = 'even'").count() == len(range(0, COUNT, 6))
    schema = StructType().add("offset", LongType()).add("value", "binary")
    chosen = spark.read.format("mq").schema(schema).options(url=mq.url, subscribe=orders, minPartitions=5).load()
    assert chosen.columns == ["offset", "value"]
    assert chosen.where("value is null").count() == len(range(0, COUNT, 7))


def test_offsets_choose_what_is_read(spark: SparkSession, mq: Server, orders: str) -> None:
    frame = load(
        spark,
        mq.url,
        subscribe=orders,
        startingOffsets='{"orders":{"0":10,"1":-2,"2":999}}',
        endingOffsets='{"orders":{"0":12,"1":1,"2":-1}}',
    )
    assert sorted((r.partition, r.offset) for r in frame.collect()) == [(0, 10), (0, 11), (1, 0), (2, 999)]


def test_an_empty_topic_is_an_empty_table(spark: SparkSession, mq: Server, topic: str) -> None:
    assert load(spark, mq.url, subscribe=topic).count() == 0


def test_a_wrong_option_is_reported_at_load(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"unknown option 'subscibe'; the options are url, "):
        load(spark, "http://127.0.0.1:1", subscibe="t")


def test_an_unknown_topic_is_reported_with_those_there_are(spark: SparkSession, mq: Server, orders: str) -> None:
    with pytest.raises(AnalysisException, match=r"the server has no nope; its topics are .*orders"):
        load(spark, mq.url, subscribe="nope").count()


def test_a_failing_server_costs_time_but_no_records(spark: SparkSession) -> None:
    with serving() as fake:
        fake.create("t")
        fake.send("t", 0, [b"%d" % n for n in range(100)])
        busy = Answer(503, {"error_code": 50351, "message": "busy", "retriable": True})
        fake.faults = [busy, DISCONNECT, busy, CUT]
        frame = load(spark, fake.url, subscribe="t")
        assert frame.selectExpr("count(*)", "count(distinct value)").first() == (100, 100)


JSON_VALUES = [
    '{"id": 1, "name": "a", "price": 1.5, "on": true, "tags": ["x", null], "at": "2026-01-02T03:04:05Z"}',
    '{"in": {"y": 1}}',
    '{"id": null, "price": 2, "tags": [], "in": {}}',
    '{"id": 9223372036854775807, "price": "NaN", "other": [1]}',
    '{"id": "1"}',
    '{"id": 1.5}',
    '{"in": {"y": 5, "z": 6}, "name": ""}',
    '{"name": 123456789012345678901234567890, "price": 123456789012345678901234567890, "on": 1}',
    '{"name": {"a": [1, 2]}, "id": 9223372036854775808, "at": "soon"}',
    '{"name": [true, null], "price": "x", "id": -9223372036854775808}',
    '{"name": true, "id": 1, "id": 2}',
    '{"name": "\\u00e4\\ud83d\\ude00\\n", "price": 1e400}',
    '[{"id": 1}]',
    " {}  ",
    "{}",
    "",
    "nonsense",
    '{"id": 1',
]


FLAT = "id LONG, name STRING, price DOUBLE, `on` BOOLEAN, at TIMESTAMP"


@pytest.mark.parametrize("schema", [FLAT, f"{FLAT}, tags ARRAY<STRING>, `in` STRUCT<y: INT>"])
def test_json_values_are_what_from_json_makes_of_them(spark: SparkSession, mq: Server, topic: str, schema: str) -> None:
    mq.send(topic, 0, [Message(value=text.encode()) for text in JSON_VALUES] + [Message(value=None)])
    reader = spark.read.format("mq").options(url=mq.url, subscribe=topic, valueFormat="json")
    ours = reader.schema(f"{schema}, _offset LONG").load().orderBy("_offset").drop("_offset").collect()
    rows = load(spark, mq.url, subscribe=topic).orderBy("offset")
    theirs = rows.select(F.from_json(F.col("value").cast("string"), schema).alias("v")).select("v.*").collect()
    assert [str(row) for row in ours] == [str(row) for row in theirs]


def test_json_values_need_a_schema(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"needs to know the fields: \.schema"):
        load(spark, "http://127.0.0.1:1", subscribe="t", valueFormat="json")


def stream(spark: SparkSession, mq: Server, topic: str, **options: str) -> DataFrame:
    return spark.readStream.format("mq").options(url=mq.url, subscribe=topic, **options).load()


def run_available(frame: DataFrame, checkpoint: Path) -> dict[int, list[int]]:
    """Run until all that was there is read; the values of each batch."""
    batches: dict[int, list[int]] = {}

    def keep(rows: DataFrame, batch_id: int) -> None:
        batches[batch_id] = sorted(int(row.value) for row in rows.collect())

    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    return batches


def test_a_stream_goes_on_where_its_checkpoint_ends(
    spark: SparkSession, mq: Server, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, mq, topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    send(mq, topic, 0, range(60))
    send(mq, topic, 1, range(60, 80))
    first = run_available(frame, tmp_path)
    assert [len(values) for values in first.values()] == [40, 40]
    assert sorted(n for values in first.values() for n in values) == list(range(80))
    send(mq, topic, 1, range(80, 85))
    second = run_available(frame, tmp_path)
    assert list(second.values()) == [list(range(80, 85))]
    assert min(second) == max(first) + 1


def test_a_batch_that_failed_is_run_again_with_the_same_records(
    spark: SparkSession, mq: Server, topic: str, tmp_path: Path
) -> None:
    send(mq, topic, 0, range(30))
    frame = stream(spark, mq, topic, startingOffsets="earliest", maxOffsetsPerTrigger="10", columns="value")
    seen: list[tuple[int, list[int]]] = []

    def keep(rows: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, sorted(int(row.value) for row in rows.collect())))
        if len(seen) == 2:
            send(mq, topic, 0, range(30, 35))
            raise RuntimeError("the sink is down")

    def run() -> None:
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination(60)

    with pytest.raises(StreamingQueryException, match="the sink is down"):
        run()
    run()
    assert [batch_id for batch_id, _ in seen[:3]] == [0, 1, 1]
    assert seen[1] == seen[2]
    assert sorted(n for values in dict(seen).values() for n in values) == list(range(35))


def test_a_stream_from_the_end_sees_only_what_comes_later(
    spark: SparkSession, mq: Server, topic: str, tmp_path: Path
) -> None:
    send(mq, topic, 0, range(5))
    frame = stream(spark, mq, topic)
    assert run_available(frame, tmp_path) == {0: []}
    send(mq, topic, 0, range(5, 9))
    assert run_available(frame, tmp_path) == {1: [5, 6, 7, 8]}

"""Which columns can be written, and what becomes of their values."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark_mq.errors import MqError, OptionError
from pyspark_mq.rows import ROW_BYTES, TYPES, Column, columns_to_write, epoch_ms, row_bytes, rows_by_topic

VALUE = ("value", "binary")


def test_columns_are_found_in_any_spelling_and_what_only_the_server_sets_is_passed_over() -> None:
    fields = [("Key", "string"), ("offset", "bigint"), VALUE, ("delay_ms", "int"), ("DELIVERAT", "timestamp")]
    found = columns_to_write(fields, topic_given=True)
    assert found == (Column("key", 0), Column("value", 2), Column("delayMs", 3), Column("deliverAt", 4))


def test_the_option_goes_before_the_column_topic() -> None:
    fields = [VALUE, ("topic", "string")]
    assert columns_to_write(fields, topic_given=True) == (Column("value", 0),)
    assert columns_to_write(fields, topic_given=False) == (Column("value", 0), Column("topic", 1))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("key", "string")], "no column value"),
        ([VALUE, ("dealyMs", "int")], "column dealyMs cannot be written: the columns are key, value, "),
        ([VALUE, ("delayMs", "string")], "column delayMs is string; it must be tinyint or smallint or int or bigint"),
        ([VALUE, ("delayMs", "int"), ("delay_ms", "int")], "delay_ms is there twice"),
        ([VALUE], "no topic"),
    ],
)
def test_what_cannot_be_written_is_an_error(fields: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        columns_to_write(fields, topic_given=said != "no topic")


def test_every_column_has_a_type_to_have() -> None:
    fields = [(name, kinds[0]) for name, kinds in TYPES.items()]
    assert [column.name for column in columns_to_write(fields, topic_given=False)] == list(TYPES)


def table(**columns: pa.Array) -> tuple[pa.RecordBatch, tuple[Column, ...]]:
    return pa.record_batch(columns), tuple(Column(name, index) for index, name in enumerate(columns))


def test_rows_are_split_by_topic_and_by_when_they_are_due() -> None:
    batch, columns = table(
        topic=pa.array(["a", "b", "a", "b"]),
        value=pa.array(["1", "2", "3", None]),
        delayMs=pa.array([None, 5, None, None], pa.int32()),
        deliverAt=pa.array([None, None, 7, None], pa.int64()),
    )
    a, b = rows_by_topic(batch, columns, None)
    assert (a.topic, a.now["value"].to_pylist(), a.later["value"].to_pylist()) == ("a", [b"1"], ["3"])
    assert (b.topic, b.now["value"].to_pylist(), b.later["value"].to_pylist()) == ("b", [None], ["2"])
    assert a.now["key"].to_pylist() == [None]


def test_a_row_without_a_topic_or_a_time_is_an_error() -> None:
    batch, columns = table(topic=pa.array(["a", None]), value=pa.array(["1", "2"]))
    with pytest.raises(MqError, match="no topic"):
        rows_by_topic(batch, columns, None)
    batch, columns = table(value=pa.array(["1"]), timestamp=pa.array([None], pa.timestamp("us", "UTC")))
    with pytest.raises(MqError, match="no timestamp"):
        rows_by_topic(batch, columns, "t")


def test_a_header_without_a_key_is_an_error() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch, columns = table(value=pa.array(["1"]), headers=pa.array([[{"key": None, "value": b""}]], kind))
    with pytest.raises(MqError, match="a header has no key"):
        rows_by_topic(batch, columns, "t")


def test_times_are_milliseconds_whatever_their_unit_and_zone() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns", "UTC")):
        assert epoch_ms(pa.array([moment, None], kind)).to_pylist() == [1767225600000, None]
    assert epoch_ms(pa.array([5, None], pa.int32())).to_pylist() == [5, None]


def test_sizes_are_of_the_row_alone() -> None:
    batch, columns = table(key=pa.array(["abc", None]), value=pa.array([None, "x"]))
    (rows,) = rows_by_topic(batch, columns, "t")
    assert row_bytes(rows.now).tolist() == [ROW_BYTES + 3, ROW_BYTES + 1]

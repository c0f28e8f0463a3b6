"""JSON values as typed columns, without a JVM; test_spark.py compares with Spark's own from_json."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark_mq import json_values
from pyspark_mq.errors import MqError, OptionError
from pyspark_mq.json_values import JsonValues


def rows(schema: T.StructType, *values: bytes | None, fail_fast: bool = False) -> list[dict[str, object]]:
    made = JsonValues(schema, fail_fast=fail_fast)
    count = len(values)
    given = {"value": pa.array(values, pa.binary()), "offset": pa.array(range(count), pa.int64())}
    batch = pa.RecordBatch.from_arrays([given[name] for name in made.columns], names=list(made.columns))
    found: list[dict[str, object]] = made.to_rows(batch, "t/0").to_pylist()
    return found


def one(kind: T.DataType, text: str) -> object:
    (row,) = rows(T.StructType().add("x", kind), b'{"x": %s}' % text.encode())
    return row["x"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (T.LongType(), "5", 5),
        (T.LongType(), "9223372036854775807", 2**63 - 1),
        (T.LongType(), "9223372036854775808", None),
        (T.IntegerType(), "-2147483648", -(2**31)),
        (T.IntegerType(), "-2147483649", None),
        (T.IntegerType(), "1.5", None),
        (T.IntegerType(), '"1"', None),
        (T.IntegerType(), "true", None),
        (T.ShortType(), "32768", None),
        (T.ByteType(), "127", 127),
        (T.DoubleType(), "1", 1.0),
        (T.DoubleType(), "1.5e3", 1500.0),
        (T.DoubleType(), '"-Infinity"', -float("inf")),
        (T.DoubleType(), '"1"', None),
        (T.FloatType(), "0.5", 0.5),
        (T.StringType(), '"a\\u00e4"', "aä"),
        (T.StringType(), '"\\ud800"', None),
        (T.StringType(), "5", "5"),
        (T.StringType(), '{"a": [1, null]}', '{"a":[1,null]}'),
        (T.StringType(), '{"a": "\\ud800"}', None),
        (T.BooleanType(), "true", True),
        (T.BooleanType(), '"true"', None),
        (T.BinaryType(), '"aGk="', b"hi"),
        (T.BinaryType(), '"!"', None),
        (T.DecimalType(6, 2), "1.255", Decimal("1.26")),
        (T.DecimalType(6, 2), '"12.5"', Decimal("12.50")),
        (T.DecimalType(3, 2), "10", None),
        (T.DecimalType(3, 2), '"NaN"', None),
        (T.DecimalType(3, 2), '"Infinity"', None),
        (T.DateType(), '"2026-01-02"', date(2026, 1, 2)),
        (T.DateType(), '"soon"', None),
        (T.TimestampType(), '"2026-01-02T03:04:05.5Z"', datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC)),
        (T.TimestampType(), '"2026-01-02 03:04:05+02:00"', datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        (T.TimestampType(), "1767225600", datetime(2026, 1, 1, tzinfo=UTC)),
        (T.TimestampNTZType(), '"2026-01-02T03:04:05"', datetime(2026, 1, 2, 3, 4, 5)),
        (T.ArrayType(T.LongType()), "[1, null, 3]", [1, None, 3]),
        (T.ArrayType(T.LongType()), "1", None),
        (T.MapType(T.StringType(), T.LongType()), '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        (T.MapType(T.StringType(), T.LongType()), '{"\\ud800": 1}', None),
        (T.StructType().add("y", T.LongType()).add("z", T.StringType()), '{"y": 1}', {"y": 1, "z": None}),
        (T.StructType().add("y", T.LongType()), "[]", None),
    ],
)
def test_a_field_fits_its_type_or_is_null(kind: T.DataType, text: str, value: object) -> None:
    assert one(kind, text) == value
    assert one(kind, "null") is None


def test_a_list_is_text_or_null_however_deep_it_is() -> None:
    schema = T.StructType().add("x", T.StringType()).add("_corrupt_record", T.StringType())
    lists = ["[" * depth + "]" * depth for depth in range(1, sys.getrecursionlimit() + 100, 7)]
    documents = [f'{{"x": {text}}}' for text in lists]
    found = rows(schema, *(document.encode() for document in documents))
    assert {row["_corrupt_record"] for row in found if row["x"] is None} != set()
    for text, document, row in zip(lists, documents, found, strict=True):
        assert (row["x"], row["_corrupt_record"]) in ((text, None), (None, document))


SCHEMA = T.StructType().add("id", T.LongType()).add("_corrupt_record", T.StringType()).add("_offset", T.LongType())


def test_what_is_no_object_is_null_and_kept_as_text() -> None:
    bad = [b"", b"null", b"[]", b"5", b'{"id": 1', b"\xff", b'{"id": "x"}', b"[" * 100_000]
    found = rows(SCHEMA, b'{"id": 7}', None, *bad)
    assert found[0] == {"id": 7, "_corrupt_record": None, "_offset": 0}
    assert found[1] == {"id": None, "_corrupt_record": None, "_offset": 1}
    assert [row["_corrupt_record"] for row in found[2:]] == [text.decode("utf-8", "replace") for text in bad]
    assert [row["id"] for row in found[2:]] == [None] * len(bad)
    assert [row["_offset"] for row in found] == list(range(len(found)))


def test_every_column_of_a_record_can_be_beside_its_fields() -> None:
    schema = T.StructType().add("_key", T.BinaryType()).add("_timestamp", T.TimestampType()).add("key", T.StringType())
    header = T.StructType().add("key", T.StringType()).add("value", T.BinaryType())
    schema = schema.add("_headers", T.ArrayType(header)).add("_messageId", T.StringType())
    assert JsonValues(schema).columns == ("value", "key", "timestamp", "headers", "messageId")


def test_failfast_stops_at_the_first_that_does_not_fit() -> None:
    with pytest.raises(MqError, match=r"t/0: a value does not fit the schema \(id: not a whole number.*\"x\""):
        rows(SCHEMA, b'{"id": 1}', b'{"id": "x"}', fail_fast=True)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (T.StructType().add("x", T.LongType(), False), "nullable"),
        (T.StructType().add("x", T.DayTimeIntervalType()), "cannot have the type interval"),
        (T.StructType().add("x", T.MapType(T.LongType(), T.LongType())), "cannot have the type map"),
        (T.StructType().add("_corrupt_record", T.LongType()), "must be a string"),
        (T.StructType().add("_offset", T.StringType()), "column _offset is string, but must be int64"),
    ],
)
def test_schemas_that_cannot_be(schema: T.StructType, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        JsonValues(schema)


FLAT = (
    T.StructType()
    .add("a", T.StringType())
    .add("b", T.LongType())
    .add("c", T.DoubleType())
    .add("d", T.BooleanType())
    .add("e", T.FloatType())
    .add("f", T.ShortType())
    .add("_corrupt_record", T.StringType())
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.integers(2**63 - 2, 2**64 + 2), st.integers(-(2**64), -(2**63) + 2))
CELLS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(), st.lists(NUMBERS, max_size=2))
DOCUMENTS = st.dictionaries(st.sampled_from("abcdef"), CELLS)
TEXTS = st.one_of(
    DOCUMENTS.map(lambda document: json.dumps(document).encode()),  # with NaN, Infinity, halves of surrogate pairs
    DOCUMENTS.map(lambda document: json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    DOCUMENTS.map(lambda document: json.dumps(document).encode("utf-16")),
    CELLS.map(lambda cell: json.dumps(cell).encode()),
    st.binary(max_size=10),
    st.sampled_from(
        [b'{"b":1,"b":"x"}', b'{"b":01}', b' {"b": 1.0} ', b'{"c":1e999}', b'\xef\xbb\xbf{"b":1}', b'{"b":1}{']
    ),
)


@given(st.lists(st.one_of(st.none(), TEXTS), min_size=1, max_size=8))
@settings(deadline=None)
def test_both_parsers_and_both_ways_to_a_column_give_the_same(texts: list[bytes | None]) -> None:
    together = rows(FLAT, *texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "orjson", None)
        patch.setattr(json_values, "_PLAIN", {})
        alone = [row for text in texts for row in rows(FLAT, text)]
    assert repr(together) == repr(alone)  # NaN is not equal to itself


@given(st.binary(max_size=40))
def test_no_bytes_break_it(value: bytes) -> None:
    (row,) = rows(SCHEMA, value)
    assert row["_offset"] == 0

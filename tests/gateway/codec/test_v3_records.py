"""gateway/codec/v3_records.py"""

from __future__ import annotations

import orjson
import pytest

from gateway.codec.records import ProduceRecord
from gateway.codec.v3_records import data_types, parse_v3_record, receipt_of
from gateway.errors import RequestError


def parsed(value: object) -> ProduceRecord:
    record = parse_v3_record(value, raw_keys=False)
    assert isinstance(record, ProduceRecord), record
    return record


def test_every_field_of_a_record() -> None:
    record = parsed(
        {
            "partition_id": 1,
            "headers": [{"name": "h", "value": "AAE="}, {"name": "empty", "value": None}],
            "key": {"type": "STRING", "data": "u1"},
            "value": {"type": "JSON", "data": {"a": 1}},
            "timestamp": "2026-01-01T00:00:00.5Z",
            "tag": "paid",
            "delay_ms": 5,
        }
    )
    assert record[:7] == (b"u1", b'{"a":1}', [("h", b"\0\1"), ("empty", None)], 1767225600500, 1, "paid", 5)


def test_binary_data_and_no_data() -> None:
    assert parsed({"value": {"type": "BINARY", "data": "AAE="}}).value == b"\0\1"
    assert parsed({"value": {"type": "JSON", "data": None}}).value is None
    assert parsed({}).value is None


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (5, 400),
        ({"value": 5}, 400),
        ({"value": {"type": "BINARY", "data": "A"}}, 400),
        ({"value": {"type": "BINARY", "data": 5}}, 400),
        ({"value": {"type": "STRING", "data": 5}}, 400),
        ({"value": {"type": "AVRO", "data": "x"}}, 400),
        ({"value": {"data": "x"}}, 400),
        ({"value": {"type": "JSON", "dta": 1}}, 422),
        ({"value": {"type": "JSON", "data": orjson.loads(b"[" * 255 + b"]" * 255)}}, 422),
        ({"dealy_ms": 5}, 422),
        ({"headers": {}}, 400),
        ({"headers": [{"key": "h"}]}, 400),
        ({"headers": [{"name": "mq-tag", "value": "AA=="}]}, 42251),
        ({"timestamp": "soon"}, 400),
        ({"partition_id": "1"}, 400),
        ({"delay_ms": -1}, 42250),
    ],
)
def test_bad_records_are_told_why(value: object, code: int) -> None:
    error = parse_v3_record(value, raw_keys=False)
    assert isinstance(error, RequestError)
    assert error.error_code == code


def test_a_receipt_repeats_types_and_sizes() -> None:
    value = {"key": {"type": "STRING", "data": "u1"}, "value": {"type": "JSON", "data": None}}
    receipt = receipt_of("c", "t", parsed(value), data_types(value), partition=1, offset=5, timestamp_ms=1767225600007)
    assert receipt == {
        "cluster_id": "c",
        "topic_name": "t",
        "partition_id": 1,
        "offset": 5,
        "timestamp": "2026-01-01T00:00:00.007Z",
        "key": {"type": "STRING", "size": 2},
    }
    assert data_types(5) == data_types({}) == (None, None)

"""The records of the benchmark: a key of 8 characters and a JSON value of 85 bytes, the same in every scenario."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from store.record_batch import Record, encode

VALUE_BYTES = 85
RECORDS_PER_BATCH = 1_000
JSON_TYPE = "application/vnd.kafka.json.v2+json"
BATCH_TYPE = "application/vnd.mq.batch"

_TIMESTAMP_MS = 1_767_225_600_000


def json_value(number: int) -> dict[str, object]:
    """A value of VALUE_BYTES bytes when encoded; `number` is below ten million."""
    return {"order": number + 10_000_000, "sku": "A-1234-56", "amount": 12.5, "note": "x" * (VALUE_BYTES - 60)}


def json_body(numbers: Sequence[int]) -> bytes:
    """A request body with one record a number."""
    records = [{"key": _key(number), "value": json_value(number)} for number in numbers]
    return orjson.dumps({"records": records})


def raw_batch(numbers: Sequence[int]) -> bytes:
    """The same records as one RecordBatch v2."""
    records = [
        Record(orjson.dumps(_key(number)), orjson.dumps(json_value(number)), _TIMESTAMP_MS) for number in numbers
    ]
    return bytes(encode(records))


def _key(number: int) -> str:
    return f"k{number:07}"

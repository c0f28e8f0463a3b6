"""Records and receipts in the shapes of the REST Proxy's v3 API. Pure.

    {"partition_id": 1, "headers": [{"name": "h", "value": "<base64>"}], "timestamp": "2026-01-01T00:00:00Z",
     "key": {"type": "STRING", "data": "u1"}, "value": {"type": "JSON", "data": {"sku": 9}}}

Types are BINARY (base64), JSON and STRING; what needs a schema registry (AVRO, JSONSCHEMA, PROTOBUF, or a schema's id
instead of a type) comes here as `SerializedData`, and is refused where there is no registry. `tag`, `delay_ms`,
`deliver_at`, `msg_id`, `message_group` and `schedule_key` are ours, beside the standard fields. Unlike v2, each record
is judged alone.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from gateway.codec.json_text import json_again
from gateway.codec.records import ProduceRecord, parse_raw_record, plain_record
from gateway.codec.times import parse_time_ms
from gateway.errors import RequestError, bad_request, invalid

_OWN = ("tag", "delay_ms", "deliver_at", "msg_id", "message_group", "schedule_key", "queues")
_KNOWN = frozenset(("partition_id", "headers", "key", "value", "timestamp", *_OWN))
DATA_FIELDS = frozenset(("type", "data", "subject_name_strategy", "subject", "schema_id", "schema_version", "schema"))
PLAIN_TYPES = ("BINARY", "JSON", "STRING")


class SerializedData(NamedTuple):
    """A key or value by a schema, and what its receipt says of it."""

    data: bytes | None
    shown: Mapping[str, object]


DataTypes = tuple[object, object]
"""The types of key and value, as a record names them, or all that a receipt says of them."""


def data_types(value: object) -> DataTypes:
    """The types that a record names for its key and value; they come back in its receipt."""
    if not isinstance(value, dict):
        return None, None
    return _data_type(value.get("key")), _data_type(value.get("value"))


def _data_type(part: object) -> object:
    if isinstance(part, SerializedData):
        return part.shown
    return part.get("type") if isinstance(part, dict) else None


def parse_v3_record(value: object, *, raw_keys: bool) -> ProduceRecord | RequestError:
    """One record, or the error it is answered with. `raw_keys`: those of the topic are (store/topics.py)."""
    if isinstance(value, RequestError):
        return value
    try:
        if not isinstance(value, dict):
            raise bad_request("A record must be a JSON object.")
        for name in value:
            if name not in _KNOWN:
                raise invalid(f"Unrecognized field: {name}")
        fields: dict[str, object] = {name: value[name] for name in _OWN if name in value}
        if (partition := value.get("partition_id")) is not None:
            fields["partition"] = partition
        if (headers := value.get("headers")) is not None:
            fields["headers"] = _headers(headers)
        if (timestamp := value.get("timestamp")) is not None:
            try:
                fields["timestamp"] = parse_time_ms(timestamp)
            except ValueError as error:
                raise bad_request(f"timestamp: {error}") from error
        key = _data("key", value.get("key"), strings_raw=raw_keys)
        return parse_raw_record(fields, key, _data("value", value.get("value")))
    except RequestError as error:
        return RequestError(error.error_code, error.message)


def plain_v3_record(value: object, *, raw_keys: bool) -> ProduceRecord | None:
    """As `parse_v3_record`, for a record that has nothing but a value, which is JSON. None: that must look. Raises
    RequestError."""
    if value.__class__ is not dict:
        return None
    assert isinstance(value, dict)
    data = value.get("value")
    if len(value) != 1 or data.__class__ is not dict or len(data) != 2 or data.get("type") != "JSON":
        return None
    return plain_record({"value": data["data"]}, raw_keys=raw_keys) if "data" in data else None


def receipt_of(
    cluster_id: str,
    topic: str,
    record: ProduceRecord,
    types: DataTypes,
    *,
    partition: int,
    offset: int | None,
    timestamp_ms: int,
) -> dict[str, object]:
    """What both ways of sending answer for a stored record."""
    receipt: dict[str, object] = {
        "cluster_id": cluster_id,
        "topic_name": topic,
        "partition_id": partition,
        "offset": offset,
        "timestamp": rfc3339(timestamp_ms),
    }
    for name, data, kind in (("key", record.key, types[0]), ("value", record.value, types[1])):
        if data is not None:
            shown = kind if isinstance(kind, Mapping) else {"type": kind}
            receipt[name] = {**shown, "size": len(data)}
    return receipt


@lru_cache(maxsize=64)  # records that arrive together have one time
def rfc3339(time_ms: int) -> str:
    """A time as receipts have it."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).replace(microsecond=time_ms % 1000 * 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _headers(headers: object) -> list[dict[str, object]]:
    if not isinstance(headers, list):
        raise bad_request('headers: must be an array of {"name", "value"} objects')
    renamed: list[dict[str, object]] = []
    for header in headers:
        if not isinstance(header, dict) or not header.keys() <= {"name", "value"}:
            raise bad_request('headers: must hold {"name", "value"} objects, values in base64')
        renamed.append({"key": header.get("name"), "value": header.get("value")})
    return renamed


def _data(name: str, part: object, *, strings_raw: bool = False) -> bytes | None:
    """The bytes of a key or value. `strings_raw`: a JSON string is its UTF-8, as STRING is."""
    if part is None:
        return None
    if isinstance(part, SerializedData):
        return part.data
    if not isinstance(part, Mapping):
        raise bad_request(f'{name}: must be an object such as {{"type": "JSON", "data": 1}}')
    for field in part:
        if field not in DATA_FIELDS:
            raise invalid(f"Unrecognized field: {name}.{field}")
    kind, data = part.get("type"), part.get("data")
    if kind not in PLAIN_TYPES:
        raise bad_request(f"{name}: type must be one of {', '.join(PLAIN_TYPES)}; this server has no schema registry")
    if data is None:
        return None
    if kind == "JSON":
        return data.encode() if strings_raw and isinstance(data, str) else json_again(data, name)
    if not isinstance(data, str):
        raise bad_request(f"{name}: data must be a string for type {kind}")
    if kind == "STRING":
        return data.encode()
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        raise bad_request(f"{name}: data is not a valid base64 string") from None

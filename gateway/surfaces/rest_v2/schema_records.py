"""Records in the formats that need a schema registry, both ways: the shape of requests and answers. What serializes is
`gateway.api.schemas`.

A key is often plain text although the value has a schema: one that is UTF-8, and does not begin as a serializer's does,
is shown as a string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson

from gateway.api.schemas import Chosen, Converted, Schemas, SchemaWish, Unreadable, subject_topic
from gateway.api.turns import in_turns
from gateway.codec.filters import TagFilter
from gateway.codec.json_steps import STEP_BYTES
from gateway.codec.records import (
    Encoded,
    Format,
    ProduceRecord,
    at_record,
    check_records,
    encode_column,
    encoded_records_in_steps,
    open_envelope,
    parts,
    undecodable_fields,
)
from gateway.codec.schema_parts import SchemaFormat, split_frame
from gateway.errors import JSON_UNFIT, KEY_SCHEMA_MISSING, SCHEMA_FORMAT, RequestError, bad_request
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import let_go
from store import record_batch
from store.turns import others_turn
from store.types import OFFSET_MAX, Entry

RECORDS_AT_ONCE = 500
"""Records that are deserialized together."""


class Shown(NamedTuple):
    """Key and value of records as fields of JSON, by offset, and their bytes in it; those from `stop` on have not been
    looked at."""

    fields: Mapping[int, Mapping[str, object]]
    sizes: Mapping[int, int]
    stop: int


async def deserialized(
    schemas: Schemas,
    fmt: SchemaFormat,
    entries: Sequence[Entry],
    start: int,
    *,
    stop: int = OFFSET_MAX,
    count_max: int = RECORDS_AT_ONCE,
    tag_filter: TagFilter | None = None,
) -> Shown:
    """Records of entries with offsets in [start, stop): the first ones, one of them at least. Raises RequestError when
    the registry does not answer."""
    picked: list[record_batch.DecodedRecord] = []
    end = min(stop, entries[-1].next_offset)
    for entry in entries:
        if entry.base_offset >= end:
            break
        for piece in record_batch.decode_in_pieces(entry.batch):
            if piece[0].offset >= end:
                break
            for record in piece:
                if not start <= record.offset < end:
                    continue
                if tag_filter is not None and not tag_filter.wants(record.headers):
                    continue
                if len(picked) == min(count_max, RECORDS_AT_ONCE):
                    end = record.offset
                    break
                picked.append(record)
            await others_turn()
    asked = [part for record in picked for part in _serialized_parts(record)]
    converted: list[Converted] = []
    least = max(1, len(_serialized_parts(picked[0]))) if asked else 0
    while len(converted) < least:
        converted += await schemas.deserialize(fmt, asked[len(converted) :])
    made = iter(converted)
    fields: dict[int, Mapping[str, object]] = {}
    sizes: dict[int, int] = {}
    for record in picked:
        own = [next(made, None) for _ in _serialized_parts(record)]
        if None in own:
            return Shown(fields, sizes, record.offset)
        sizes[record.offset] = sum(len(one) for one in own if isinstance(one, bytes))
        fields[record.offset] = _fields(record, own)
    return Shown(fields, sizes, end)


def _serialized_parts(record: record_batch.DecodedRecord) -> list[bytes]:
    """What of a record a serializer has written, or should have: the value, and a key that is no plain text."""
    key = record.key
    is_text = key is None or (split_frame(key) is None and _text(key) is not None)
    return [part for part in (None if is_text else key, record.value) if part is not None]


def _fields(record: record_batch.DecodedRecord, own: list[Converted | None]) -> Mapping[str, object]:
    key, value = record.key, record.value
    shown_value = None if value is None else own.pop()
    shown_key = own.pop() if own else None if key is None else _text(key)
    for name, one in (("key", shown_key), ("value", shown_value)):
        if isinstance(one, Unreadable):
            return undecodable_fields(key, value, f"The record's {name}: {one.why}.")
    return {"key": _fragment(shown_key), "value": _fragment(shown_value)}


def _fragment(shown: object) -> object:
    return orjson.Fragment(shown) if isinstance(shown, bytes) else shown


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


class Serialized(NamedTuple):
    """Records of a request, and the schemas they were serialized by."""

    records: list[ProduceRecord]
    key_schema: Chosen | None
    value_schema: Chosen | None


async def serialized(
    gateway: Gateway, schemas: Schemas, topic: str, fmt: SchemaFormat, envelope: object, size_bytes: int
) -> Serialized:
    """The records of a request body, which has so many bytes, all or none of them. Raises RequestError: 422/42201 and
    42202 for keys and values without a schema, 42203 for those that are not of theirs, and as `Schemas.choose`."""
    sent = check_records(open_envelope(envelope, records_max=gateway.limits.records_per_request_max))
    assert isinstance(envelope, dict)
    try:
        return await _serialized(schemas, subject_topic(gateway.routes_table, topic), fmt, envelope, sent, size_bytes)
    finally:
        if size_bytes > STEP_BYTES:
            await let_go(sent, size_bytes)


async def _serialized(
    schemas: Schemas,
    topic: str,
    fmt: SchemaFormat,
    envelope: Mapping[str, object],
    sent: list[dict[str, object]],
    size_bytes: int,
) -> Serialized:
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for part in parts(sent, size_bytes):
        keys += encode_column([item.get("key") for item in part], Format.JSON)
        values += encode_column([item.get("value") for item in part], Format.JSON)
        await others_turn()
    wishes = {name: _wish(envelope, name, fmt) for name in ("key", "value")}
    for name, column in (("key", keys), ("value", values)):
        if wishes[name] is None and any(one is not None for one in column):
            raise RequestError(
                KEY_SCHEMA_MISSING if name == "key" else SCHEMA_FORMAT,
                f"Request includes {name}s but does not include {name}_schema or {name}_schema_id.",
            )
    chosen: list[Chosen | None] = []
    columns: list[Encoded] = []
    for name, column in (("key", keys), ("value", values)):
        wish = wishes[name]
        schema = None if wish is None else await schemas.choose(topic, wish, is_key=name == "key")
        chosen.append(schema)
        columns.append(column if schema is None else await _column(schemas, schema, name, column))
    return Serialized(await in_turns(encoded_records_in_steps(sent, *columns, size_bytes=size_bytes)), *chosen)


async def _column(schemas: Schemas, schema: Chosen, name: str, column: Sequence[bytes | None]) -> Encoded:
    made: list[bytes | None] = [None] * len(column)
    indexes = [index for index, one in enumerate(column) if one is not None]
    converted = await schemas.serialize(schema.schema_id, [one for one in column if one is not None])
    for index, one in zip(indexes, converted, strict=True):
        if isinstance(one, Unreadable):
            raise at_record(RequestError(JSON_UNFIT, f"The {name} does not fit its schema: {one.why}"), index)
        made[index] = one
    return made


def _wish(envelope: Mapping[str, object], name: str, fmt: SchemaFormat) -> SchemaWish | None:
    """The schema that a request names for its keys or values."""
    text, schema_id = envelope.get(f"{name}_schema"), envelope.get(f"{name}_schema_id")
    if text is None and schema_id is None:
        return None
    if text is not None and not isinstance(text, str):
        raise bad_request(f"{name}_schema: must be a string")
    if schema_id is not None and schema_id.__class__ is not int:
        raise bad_request(f"{name}_schema_id: must be an integer")
    assert schema_id is None or isinstance(schema_id, int)
    return SchemaWish(format=fmt, text=text, schema_id=schema_id)

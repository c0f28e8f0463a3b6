"""Records as JSON objects, in both directions.

In: `{"key", "value", "partition", "headers", "timestamp", "tag", "delay_ms", "deliver_at", "msg_id", "message_group",
"schedule_key"}`,
all optional. How key and value become bytes is the format's choice:

    json     any JSON value, stored as compact JSON; null is no key, or a tombstone. In a topic whose keys are raw
             (store/topics.py) a key that is a string is stored as its UTF-8: the same key as in the other formats
    binary   standard base64 with padding
    text     a string, stored as UTF-8

Out: the same, plus topic, partition, offset, timestamp, store_timestamp. A raw key is shown as a JSON string, whatever
JSON it was: the bytes do not tell 7 from "7". Formats need not match: a record whose bytes do not decode in the format
asked for comes with `"value": null`, its bytes as `value_b64`/`key_b64` and an error, so that one bad record never
blocks a reader. The native form (format None) never fails: `value` where the bytes are JSON, else `value_text`, else
`value_b64`, and the key likewise; a raw key is `key`, or `key_b64` where it is no UTF-8.

Invariants
    R1  all records of a request are checked before any is returned: one bad record refuses the batch
    R2  an unknown field refuses the request; a misspelt `delay_ms` must never send at once
    R3  bytes are passed on as JSON without a look only when their entry promises `json_values`; raw keys never are
    R4  a rendered record has no line break in it, so that it can be a line of NDJSON
"""

from __future__ import annotations

import binascii
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, TypeVar

import orjson

from gateway.codec.filters import TagFilter
from gateway.codec.json_steps import STEP_BYTES
from gateway.codec.json_text import unwritable
from gateway.codec.message_ids import message_id_prefix
from gateway.codec.tags import (
    DELIVER_AT_HEADER,
    RESERVED_PREFIX,
    SCHEDULE_ID_HEADER,
    SCHEDULE_KEY_HEADER,
    TAG_HEADER,
)
from gateway.codec.times import TIME_MS_MAX, parse_time_ms
from gateway.errors import (
    DELAY_ILLEGAL,
    RECORD_PART_ILLEGAL,
    RECORD_TOO_LARGE,
    UNDECODABLE,
    RequestError,
    bad_request,
    invalid,
)
from gateway.settings.limits import MESSAGE_GROUP_BYTES_MAX, MSG_ID_BYTES_MAX, SCHEDULE_KEY_BYTES_MAX
from store import record_batch
from store.limits import (
    HEADER_COUNT_MAX,
    HEADERS_BYTES_MAX,
    KEY_BYTES_MAX,
    LIGHT_NAME_BYTES_MAX,
    LIGHT_NAMES_MAX,
    RECORD_BYTES_MAX,
    TAG_BYTES_MAX,
)
from store.types import Entry

BATCH_REFUSED = 42208


class Format(Enum):
    """How keys and values are written in JSON."""

    JSON = "json"
    BINARY = "binary"
    TEXT = "text"


class ProduceRecord(NamedTuple):
    """One checked record. `value` None is a tombstone; times are epoch ms; at most one of the delays is set."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None
    partition: int | None
    tag: str | None
    delay_ms: int | None
    deliver_at_ms: int | None
    msg_id: str | None = None
    message_group: str | None = None
    schedule_key: str | None = None
    queues: Sequence[bytes] | None = None
    """Names of light queues."""


RECORD_FIELDS = frozenset(
    (
        "key", "value", "partition", "headers", "timestamp", "tag", "delay_ms", "deliver_at", "msg_id", "message_group",
        "schedule_key", "queues",
    )
)  # fmt: skip
STEP_RECORDS = 1_000
"""Records checked between two turns of the event loop: some 2 ms."""

DUE_DIGITS_END = 16
"""A due time with so many digits is not shown."""

_INDEX = re.compile(r"^records\[([0-9]+)\]")
_HEADER_KNOWN = frozenset(("key", "value", "text"))
_ENVELOPE_KNOWN = frozenset(("records", "key_schema", "key_schema_id", "value_schema", "value_schema_id"))


def plain_record(item: object, *, raw_keys: bool) -> ProduceRecord | None:
    """As `parse_records` in the JSON format, for one record that has nothing but a key and a value. None: that must
    look. Raises RequestError."""
    if item.__class__ is not dict:
        return None
    assert isinstance(item, dict)
    key: bytes | None = None
    if len(item) != 1 or "value" not in item:  # most have nothing else
        if len(item) != ("key" in item) + ("value" in item):
            return None
        sent = item.get("key")
        key = sent.encode() if raw_keys and sent.__class__ is str else _encode_json_value(sent, 0)
    value = _encode_json_value(item.get("value"), 0)
    if key is not None and len(key) > KEY_BYTES_MAX:
        return None
    if value is not None and len(value) > RECORD_BYTES_MAX - KEY_BYTES_MAX:
        return None
    # A NamedTuple's own constructor takes three times as long.
    return tuple.__new__(ProduceRecord, (key, value, [], None, None, None, None, None, None, None, None, None))


def only_value(envelope: object) -> ProduceRecord | None:
    """The record of the JSON of a request body in its commonest form: one, of the JSON format, that has nothing but a
    value. As `open_envelope` and `plain_record`, in one look; None for any other form. Raises RequestError."""
    if (
        envelope.__class__ is dict
        and len(envelope) == 1
        and (records := envelope.get("records")).__class__ is list
        and len(records) == 1
        and (item := records[0]).__class__ is dict
        and len(item) == 1
        and "value" in item
    ):
        value = _encode_json_value(item["value"], 0)
        if value is None or len(value) <= RECORD_BYTES_MAX - KEY_BYTES_MAX:
            return tuple.__new__(ProduceRecord, (None, value, [], None, None, None, None, None, None, None, None, None))
    return None


def open_envelope(envelope: object, *, records_max: int) -> object:
    """What the JSON of a request body has as its `records`; the schema fields of old clients are ignored. Raises
    RequestError."""
    if not isinstance(envelope, dict):
        raise bad_request('The body must be a JSON object such as {"records": [{"value": 1}]}.')
    if len(envelope) != 1 or "records" not in envelope:
        for name in envelope:
            if name not in _ENVELOPE_KNOWN:
                raise unrecognized(name)
    records: object = envelope.get("records")
    if isinstance(records, list) and len(records) > records_max:
        raise RequestError(BATCH_REFUSED, f"{len(records)} records in one request; the limit is {records_max}.")
    return records


def parse_records_in_steps(
    records: object, fmt: Format, *, raw_keys: bool, size_bytes: int
) -> Generator[None, None, list[ProduceRecord]]:
    """As `parse_records`, which is what the generator returns, of a text of so many bytes, some of them a step."""
    if not isinstance(records, list) or len(records) <= 1:
        return parse_records(records, fmt, raw_keys=raw_keys)
    parsed: list[ProduceRecord] = []
    for part in parts(records, size_bytes):
        try:
            parsed += parse_records(part, fmt, raw_keys=raw_keys)
        except RequestError as error:
            raise _further(error, len(parsed)) from None
        yield
    return parsed


Item = TypeVar("Item")


def parts(records: list[Item], size_bytes: int) -> Iterator[list[Item]]:
    """Some records after the other, of a text of so many bytes: as many as one turn of the event loop has time for."""
    count = max(size_bytes // STEP_BYTES, len(records) // STEP_RECORDS) + 1
    bounds = [len(records) * number // count for number in range(count + 1)]
    for first, last in pairwise(bounds):
        if first < last:
            yield records[first:last]


def parse_records(records: object, fmt: Format, *, raw_keys: bool) -> list[ProduceRecord]:
    """Check a list of record objects and encode their keys and values. `raw_keys`: those of the topic are.

    Raises RequestError for the first record that breaks a rule, naming it; then none is returned (R1).
    """
    records = check_records(records)
    keys: Encoded
    values: Encoded
    if len(records) == 1 and fmt is Format.JSON:  # the commonest request, without the lists of the others
        key = records[0].get("key")
        keys = [key.encode() if raw_keys and key.__class__ is str else _encode_json_value(key, 0)]
        values = [_encode_json_value(records[0].get("value"), 0)]
    else:
        keys = encode_keys([item.get("key") for item in records], fmt, raw_keys=raw_keys)
        values = encode_column([item.get("value") for item in records], fmt)
    return encoded_records(records, keys, values)


def check_records(records: object) -> list[dict[str, object]]:
    """The `records` of a request, if they are objects. Raises RequestError."""
    if records is None:
        raise invalid("records must not be empty")
    if not isinstance(records, list):
        raise bad_request("records must be an array")
    if not records:
        raise invalid("records must not be empty")
    for index, item in enumerate(records):
        if item.__class__ is not dict:
            raise at_record(bad_request("must be a JSON object"), index)
    return records


def encoded_records(records: Sequence[dict[str, object]], keys: Encoded, values: Encoded) -> list[ProduceRecord]:
    """As `parse_records`, of records whose keys and values are bytes already."""
    new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
    parsed: list[ProduceRecord] = []
    append = parsed.append
    try:
        for item, key, value in zip(records, keys, values, strict=True):
            if key is not None and len(key) > KEY_BYTES_MAX:
                _check_key(key)
            # The usual record has nothing but a key and a value.
            if len(item) == ("key" in item) + ("value" in item):
                if value is not None and len(value) > RECORD_BYTES_MAX - KEY_BYTES_MAX:
                    _check_size(key, value, ())
                append(new(ProduceRecord, (key, value, [], None, None, None, None, None, None, None, None, None)))
            elif "msg_id" in item and len(item) == ("key" in item) + ("value" in item) + 1:
                if value is not None and len(value) > RECORD_BYTES_MAX - KEY_BYTES_MAX:
                    _check_size(key, value, ())
                msg_id = item["msg_id"]
                if msg_id.__class__ is not str or not 0 < len(msg_id) <= MSG_ID_BYTES_MAX // 4:
                    msg_id = _parse_name("msg_id", msg_id, MSG_ID_BYTES_MAX)
                append(new(ProduceRecord, (key, value, [], None, None, None, None, None, msg_id, None, None, None)))
            else:
                append(_parse_fields(item, key, value))
    except RequestError as error:
        raise at_record(error, len(parsed)) from None
    return parsed


def encoded_records_in_steps(
    records: list[dict[str, object]], keys: Encoded, values: Encoded, *, size_bytes: int
) -> Generator[None, None, list[ProduceRecord]]:
    """As `encoded_records`, which is what the generator returns, of a text of so many bytes, some of them a step."""
    parsed: list[ProduceRecord] = []
    for part in parts(records, size_bytes):
        first, last = len(parsed), len(parsed) + len(part)
        try:
            parsed += encoded_records(part, keys[first:last], values[first:last])
        except RequestError as error:
            raise _further(error, first) from None
        yield
    return parsed


def parse_raw_record(fields: dict[str, object], key: bytes | None, value: bytes | None) -> ProduceRecord:
    """One record whose key and value are bytes already; `fields` are its others. Raises RequestError."""
    if key is not None:
        _check_key(key)
    return _parse_fields(fields, key, value)


def with_headers(record: ProduceRecord, headers: Sequence[tuple[str, bytes | None]]) -> ProduceRecord:
    """The record with these headers before its own. Raises RequestError when together they break a limit."""
    if not headers:
        return record
    together = [*headers, *record.headers]
    _check_headers(together)
    _check_size(record.key, record.value, together)
    return record._replace(headers=together)


def _check_key(key: bytes) -> None:
    if len(key) > KEY_BYTES_MAX:
        raise _part_illegal("key", f"has {len(key)} bytes; the limit is {KEY_BYTES_MAX}")


def _parse_fields(item: dict[str, object], key: bytes | None, value: bytes | None) -> ProduceRecord:
    """One record with any of the known fields. Errors say nothing of the record's index."""
    if not item.keys() <= RECORD_FIELDS:
        raise unrecognized(next(name for name in item if name not in RECORD_FIELDS))
    field = item.get
    headers = [] if (given := field("headers")) is None else _parse_headers(given)
    _check_size(key, value, headers)
    delay_ms, deliver_at_ms = _parse_delay(field("delay_ms"), field("deliver_at"))
    fields = (
        key,
        value,
        headers,
        None if (given := field("timestamp")) is None else _parse_timestamp(given),
        None if (given := field("partition")) is None else _parse_partition(given),
        None if (given := field("tag")) is None else _parse_tag(given),
        delay_ms,
        deliver_at_ms,
        _parse_name("msg_id", field("msg_id"), MSG_ID_BYTES_MAX),
        None if (given := field("message_group")) is None else _parse_message_group(given),
        _parse_name("schedule_key", field("schedule_key"), SCHEDULE_KEY_BYTES_MAX),
        None if (given := field("queues")) is None else parse_light_names(given),
    )
    return tuple.__new__(ProduceRecord, fields)


def _check_size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> None:
    size = len(key or b"") + len(value or b"")
    if headers:
        size += _headers_bytes(headers)
    if size > RECORD_BYTES_MAX:
        raise RequestError(
            RECORD_TOO_LARGE, f"has {size} bytes of key, value and headers; the limit is {RECORD_BYTES_MAX}"
        )


def _headers_bytes(headers: Sequence[tuple[str, bytes | None]]) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


def _parse_headers(headers: object) -> list[tuple[str, bytes | None]]:
    if not isinstance(headers, list):
        raise _part_illegal("headers", 'must be an array of {"key", "value"} objects')
    if len(headers) > HEADER_COUNT_MAX:
        raise _part_illegal("headers", f"has {len(headers)} entries; the limit is {HEADER_COUNT_MAX}")
    parsed = [_parse_header(header) for header in headers]
    _check_headers(parsed)
    return parsed


def _check_headers(headers: Sequence[tuple[str, bytes | None]]) -> None:
    if len(headers) > HEADER_COUNT_MAX:
        raise _part_illegal("headers", f"has {len(headers)} entries; the limit is {HEADER_COUNT_MAX}")
    if (size := _headers_bytes(headers)) > HEADERS_BYTES_MAX:
        raise _part_illegal("headers", f"has {size} bytes; the limit is {HEADERS_BYTES_MAX}")


def _parse_header(header: object) -> tuple[str, bytes | None]:
    if not isinstance(header, dict):
        raise _part_illegal("headers", 'must hold {"key", "value"} objects')
    for name in header:
        if name not in _HEADER_KNOWN:
            raise unrecognized(name)
    name = header.get("key")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise _part_illegal("headers", "needs a key of one or more printable characters")
    if name.startswith(RESERVED_PREFIX):
        raise _part_illegal("headers", f'key "{name}" is reserved: names must not begin with "{RESERVED_PREFIX}"')
    if "text" in header:
        text = header["text"]
        if "value" in header or not isinstance(text, str):
            raise _part_illegal("headers", f'"{name}" needs either a base64 "value" or a string "text"')
        return name, text.encode()
    value = header.get("value")
    if value is None:
        return name, None
    if not isinstance(value, str):
        raise _part_illegal("headers", f'"{name}": value must be a base64 string or null')
    return name, _base64(value)


def parse_light_names(names: object) -> Sequence[bytes]:
    """The names of the light queues of one record. Raises RequestError."""
    if not isinstance(names, list) or not 0 < len(names) <= LIGHT_NAMES_MAX:
        raise _part_illegal("queues", f"must be an array of 1 to {LIGHT_NAMES_MAX} names")
    queues = [parse_light_name(name) for name in names]
    if len(set(queues)) < len(queues):
        raise _part_illegal("queues", "names a queue twice")
    return queues


def parse_light_name(name: object) -> bytes:
    """The name of a light queue. Raises RequestError."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise _part_illegal("queues", "needs names of one or more printable characters")
    if "*" in name:
        raise _part_illegal("queues", 'a name must not contain "*"')
    if (size := len(name.encode())) > LIGHT_NAME_BYTES_MAX:
        raise _part_illegal("queues", f"a name has {size} bytes; the limit is {LIGHT_NAME_BYTES_MAX}")
    return name.encode()


def _parse_tag(tag: object) -> str:
    if not isinstance(tag, str) or not tag or not tag.isprintable():
        raise _part_illegal("tag", "must be a string of one or more printable characters")
    if "|" in tag:
        raise _part_illegal("tag", 'must not contain "|": it separates tags in a filter')
    if (size := len(tag.encode())) > TAG_BYTES_MAX:
        raise _part_illegal("tag", f"has {size} bytes; the limit is {TAG_BYTES_MAX}")
    return tag


def _parse_name(field: str, name: object, bytes_max: int) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise _part_illegal(field, "must be a string of one or more characters")
    if (size := len(name.encode())) > bytes_max:
        raise _part_illegal(field, f"has {size} bytes; the limit is {bytes_max}")
    return name


def _parse_message_group(group: object) -> str:
    if not isinstance(group, str) or not group or not group.isprintable():
        raise _part_illegal("message_group", "must be a string of one or more printable characters")
    if (size := len(group.encode())) > MESSAGE_GROUP_BYTES_MAX:
        raise _part_illegal("message_group", f"has {size} bytes; the limit is {MESSAGE_GROUP_BYTES_MAX}")
    return group


def _parse_timestamp(timestamp: object) -> int:
    if not _is_int(timestamp):
        raise bad_request("timestamp: must be an integer, epoch milliseconds")
    assert isinstance(timestamp, int)
    if not 0 <= timestamp <= TIME_MS_MAX:
        raise invalid(f"timestamp: must be between 0 and {TIME_MS_MAX}")
    return timestamp


def _parse_partition(partition: object) -> int:
    if not _is_int(partition):
        raise bad_request("partition: must be an integer")
    assert isinstance(partition, int)
    return partition


def _parse_delay(delay_ms: object, deliver_at: object) -> tuple[int | None, int | None]:
    """(delay_ms, deliver_at_ms). Whether a delay is too long is the producer's to judge: it knows the clock."""
    if delay_ms is not None and deliver_at is not None:
        raise _delay_illegal("delay_ms", "and deliver_at exclude each other")
    if delay_ms is not None:
        if not _is_int(delay_ms):
            raise _delay_illegal("delay_ms", "must be an integer, milliseconds")
        assert isinstance(delay_ms, int)
        if delay_ms < 0:
            raise _delay_illegal("delay_ms", "must not be negative")
        return delay_ms, None
    if deliver_at is not None:
        try:
            return None, parse_time_ms(deliver_at)
        except ValueError as error:
            raise _delay_illegal("deliver_at", str(error)) from error
    return None, None


def _is_int(value: object) -> bool:
    """True for JSON integers; `true` is an int to Python, but not here."""
    return value.__class__ is int


Encoded = Sequence[bytes | None]


def encode_column(values: list[object], fmt: Format) -> Encoded:
    """The values of all records as they are stored. Raises RequestError naming the first bad one."""
    return _ENCODERS[fmt](values)


def encode_keys(keys: list[object], fmt: Format, *, raw_keys: bool) -> Encoded:
    """The keys of all records as they are stored. Raises RequestError naming the first bad one."""
    if not raw_keys or fmt is not Format.JSON:
        return encode_column(keys, fmt)
    if set(map(type, keys)) <= {str}:
        return list(map(str.encode, keys))  # type: ignore[arg-type]
    return [key.encode() if isinstance(key, str) else _encode_json_value(key, index) for index, key in enumerate(keys)]


def stored_forms(key: str, *, raw_keys: bool) -> frozenset[bytes]:
    """What to look for to find a key: as it is, and in a topic without raw keys also as JSON has it."""
    return frozenset((key.encode(),) if raw_keys else (key.encode(), orjson.dumps(key)))


_LINE_BREAK = orjson.Fragment(b"\n")


def _encode_json(values: list[object]) -> Encoded:
    """Each value as compact JSON; None stays None.

    All are written in one call, with line breaks between them, and cut apart there: compact JSON has none of its own.
    A call for each value takes several times as long, because each first claims a kilobyte and gives most of it back.
    """
    spaced: list[object] = [_LINE_BREAK] * (2 * len(values) - 1)
    spaced[::2] = values
    try:
        encoded = orjson.dumps(spaced)[1:-1].split(b",\n,")
    except TypeError:
        return [_encode_json_value(value, index) for index, value in enumerate(values)]
    if b"null" not in encoded:
        return encoded
    return [None if one == b"null" else one for one in encoded]


def _encode_json_value(value: object, index: int) -> bytes | None:
    if value is None:
        return None
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise at_record(unwritable("key or value", error), index) from error


def _encode_binary(values: list[object]) -> Encoded:
    encoded: list[bytes | None] = []
    try:
        for value in values:
            if value is None:
                encoded.append(None)
            elif isinstance(value, str):
                encoded.append(_base64(value))
            else:
                raise bad_request('key and value must be base64 strings; send JSON as it is with "?format=json"')
    except RequestError as error:
        raise at_record(error, len(encoded)) from None
    return encoded


def _encode_text(values: list[object]) -> Encoded:
    encoded: list[bytes | None] = []
    for value in values:
        if value is None:
            encoded.append(None)
        elif isinstance(value, str):
            encoded.append(value.encode())
        else:
            raise at_record(bad_request("key and value must be strings in the text format"), len(encoded))
    return encoded


def _base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        shown = text if len(text) <= 40 else text[:40] + "..."
        raise bad_request(
            f'Bad Request: data="{shown}" is not a valid base64 string. '
            'Keys and values in other forms need "?format=json" or "?format=text".'
        ) from error


_ENCODERS: dict[Format, Callable[[list[object]], Encoded]] = {
    Format.JSON: _encode_json,
    Format.BINARY: _encode_binary,
    Format.TEXT: _encode_text,
}


def unrecognized(name: str) -> RequestError:
    """The answer to an unknown field (R2)."""
    return invalid(f"Unrecognized field: {name}")


def _part_illegal(part: str, rule: str) -> RequestError:
    return RequestError(RECORD_PART_ILLEGAL, f"{part}: {rule}")


def _delay_illegal(part: str, rule: str) -> RequestError:
    return RequestError(DELAY_ILLEGAL, f"{part}: {rule}")


def _further(error: RequestError, count: int) -> RequestError:
    """The same error of a record that comes after so many others."""
    texts = error.validation_errors or ()
    named = [_INDEX.sub(lambda found: f"records[{int(found[1]) + count}]", text) for text in texts]
    return RequestError(error.error_code, error.message, validation_errors=named)


def at_record(error: RequestError, index: int) -> RequestError:
    """The same error with the record's index in `validation_errors`; the message keeps the words clients look for."""
    return RequestError(error.error_code, error.message, validation_errors=[f"records[{index}]: {error.message}"])


STEP_ITEMS = 8192
"""Records that are rendered in one step, and their headers, each of which takes about as long: some 10 ms."""


def render_records_in_steps(
    topic: str,
    partition: int,
    entries: Sequence[Entry],
    fmt: Format | None,
    *,
    start: int,
    stop: int,
    topic_id: int | None = None,
    tag_filter: TagFilter | None = None,
) -> Generator[None, None, list[dict[str, object]]]:
    """The records of entries with offsets in [start, stop) as objects for orjson; bytes that are JSON are Fragments.

    The entries' base offsets must be those of the partition. With `topic_id` each has its `message_id`; with
    `tag_filter` only those come that it wants. It yields after STEP_ITEMS records and headers: of the few kilobytes of
    a compressed batch there may be half a million.
    """
    rendered: list[dict[str, object]] = []
    append = rendered.append
    fields_of = _FIELDS[fmt]
    fragment = orjson.Fragment
    id_prefix = None if topic_id is None else message_id_prefix(topic_id, partition)
    left_items = STEP_ITEMS
    for entry in entries:
        records: Iterable[record_batch.DecodedRecord] = record_batch.decode(entry.batch)
        plain_json = fmt in _JSON_LIKE
        raw_keys = entry.raw_keys
        if plain_json and not entry.json_values:
            own: list[record_batch.DecodedRecord] = []
            for record in records:
                if record.offset >= stop:
                    break
                if record.offset >= start:
                    own.append(record)
                left_items -= 1 + len(record.headers)
                if left_items <= 0:
                    left_items = STEP_ITEMS
                    yield
            plain_json = are_shown_plainly(
                [record.key for record in own],
                [record.value for record in own],
                json_values=False,
                raw_keys=raw_keys,
            )
            records = own
        shown_key: Callable[[bytes], object] = bytes.decode if raw_keys else fragment
        store_time_ms = entry.store_time_ms
        for record in records:
            offset = record.offset
            if offset >= stop:
                break
            headers = record.headers
            left_items -= 1 + len(headers)
            if left_items <= 0:
                left_items = STEP_ITEMS
                yield
            if offset < start:
                continue
            if tag_filter is not None and not tag_filter.wants(headers):
                continue
            key = record.key
            value = record.value
            is_plain = plain_json
            shown: object = None
            if is_plain and key is not None:
                try:
                    shown = shown_key(key)
                except UnicodeDecodeError:  # a raw key that is no UTF-8
                    is_plain = False
            if is_plain:
                item: dict[str, object] = {
                    "topic": topic,
                    "key": shown,
                    "value": None if value is None else fragment(value),
                    "partition": partition,
                    "offset": offset,
                    "timestamp": record.timestamp,
                    "store_timestamp": store_time_ms,
                }
            else:
                item = {
                    "topic": topic,
                    **fields_of(key, value, raw_keys),
                    "partition": partition,
                    "offset": offset,
                    "timestamp": record.timestamp,
                    "store_timestamp": store_time_ms,
                }
            if id_prefix is not None:
                item["message_id"] = f"{id_prefix}{offset}"
            if headers:
                add_headers(item, headers)
            append(item)
    return rendered


def render_lines(records: Sequence[Mapping[str, object]]) -> bytes:
    """Rendered records, each on a line of its own (NDJSON). All are written in one call, as R4 allows."""
    if not records:
        return b""
    spaced: list[object] = [_LINE_BREAK] * (2 * len(records) - 1)
    spaced[::2] = records
    return orjson.dumps(spaced)[1:-1].replace(b",\n,", b"\n") + b"\n"


def split_lines(records: Sequence[Mapping[str, object]]) -> list[bytes]:
    """Objects of `render_records_in_steps`, each as JSON without a line break in it."""
    return render_lines(records).split(b"\n")[:-1]


def render_parts(
    key: bytes | None,
    value: bytes | None,
    headers: record_batch.Headers,
    fmt: Format | None,
    *,
    json_values: bool,
    raw_keys: bool,
) -> dict[str, object]:
    """Key, value and headers of one record as the fields that `render_records_in_steps` gives them."""
    item: dict[str, object]
    if json_values and fmt in _JSON_LIKE and (not raw_keys or are_utf8((key,))):  # R3
        item = {
            "key": None if key is None else key.decode() if raw_keys else orjson.Fragment(key),
            "value": None if value is None else orjson.Fragment(value),
        }
    else:
        item = _FIELDS[fmt](key, value, raw_keys)
    if headers:
        add_headers(item, headers)
    return item


def render_record(
    topic: str,
    partition: int,
    record: record_batch.DecodedRecord,
    entry: Entry,
    fmt: Format | None,
    *,
    topic_id: int | None = None,
    fields: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """One record of an entry as `render_records_in_steps` has it, for those who look at records one by one. `fields`:
    its key and value, where they are not in `fmt`."""
    if fields is None:
        fields = render_parts(record.key, record.value, (), fmt, json_values=entry.json_values, raw_keys=entry.raw_keys)
    item: dict[str, object] = {
        "topic": topic,
        **fields,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "store_timestamp": entry.store_time_ms,
    }
    if topic_id is not None:
        item["message_id"] = f"{message_id_prefix(topic_id, partition)}{record.offset}"
    if record.headers:
        add_headers(item, record.headers)
    return item


def add_headers(item: dict[str, object], headers: record_batch.Headers) -> None:
    """Our own headers become fields, the others a list; trouble in a header never fails a read."""
    shown: list[dict[str, object]] = []
    for name, value in headers:
        if name == TAG_HEADER and value is not None:
            item["tag"] = value.decode("utf-8", "replace")
        elif name == DELIVER_AT_HEADER and value is not None and value.isdigit():
            item["deliver_at"] = int(value) if len(value) < DUE_DIGITS_END else None
        elif name == SCHEDULE_ID_HEADER and value is not None:
            item["schedule_id"] = value.decode("ascii", "replace")
        elif name == SCHEDULE_KEY_HEADER and value is not None:
            item["schedule_key"] = value.decode("utf-8", "replace")
        else:
            shown.append({"key": name, "value": None if value is None else _b64(value)})
    if shown:
        item["headers"] = shown


def _b64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _binary_fields(key: bytes | None, value: bytes | None, raw_keys: bool) -> dict[str, object]:
    return {"key": None if key is None else _b64(key), "value": None if value is None else _b64(value)}


def _json_fields(key: bytes | None, value: bytes | None, raw_keys: bool) -> dict[str, object]:
    if value is None or _is_json(value):
        shown = None if value is None else _fragment(value)
        if key is None:
            return {"key": None, "value": shown}
        if raw_keys:
            with suppress(UnicodeDecodeError):
                return {"key": key.decode(), "value": shown}
        elif _is_json(key):
            return {"key": _fragment(key), "value": shown}
    what = "key is not UTF-8, or its value" if raw_keys else "key or value"
    return undecodable_fields(key, value, f"The record's {what} is not JSON.")


def _text_fields(key: bytes | None, value: bytes | None, raw_keys: bool) -> dict[str, object]:
    try:
        return {"key": None if key is None else key.decode(), "value": None if value is None else value.decode()}
    except UnicodeDecodeError:
        return undecodable_fields(key, value, "The record's key or value is not UTF-8.")


def undecodable_fields(key: bytes | None, value: bytes | None, error: str) -> dict[str, object]:
    """Key and value of a record that does not decode in the format asked for."""
    fields: dict[str, object] = {"key": None, "value": None}
    if key is not None:
        fields["key_b64"] = _b64(key)
    if value is not None:
        fields["value_b64"] = _b64(value)
    fields["error_code"] = UNDECODABLE
    fields["error"] = error
    return fields


def _native_fields(key: bytes | None, value: bytes | None, raw_keys: bool) -> dict[str, object]:
    key_fields = _raw_key_field(key) if raw_keys and key is not None else native_field("key", key)
    return {**key_fields, **native_field("value", value)}


def _raw_key_field(key: bytes) -> dict[str, object]:
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key_b64": _b64(key)}


def native_field(name: str, data: bytes | None) -> dict[str, object]:
    """A key that is no raw one, or a value, as the native form has it: JSON, else text, else base64."""
    if data is None:
        return {name: None}
    if _is_json(data):
        return {name: _fragment(data)}
    try:
        return {f"{name}_text": data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": _b64(data)}


def _fragment(data: bytes) -> orjson.Fragment:
    """Bytes that are JSON, for orjson to pass on, on one line (R4): a line break in JSON is never within a string."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\n", b" ").replace(b"\r", b" ")
    return orjson.Fragment(data)


_BETWEEN = secrets.randbits(62)
"""Put between values that are looked at together. It is random, so no value holds it."""


def are_shown_plainly(
    keys: Iterable[bytes | None], values: Iterable[bytes | None], *, json_values: bool, raw_keys: bool
) -> bool:
    """Whether all records can be shown as JSON without a look at each: values are JSON and keys as well, or UTF-8 where
    they are raw. `json_values`: their entry promises what it can."""
    if raw_keys:
        return are_utf8(keys) and (json_values or are_json(values))
    return json_values or are_json([*keys, *values])


def are_utf8(parts: Iterable[bytes | None]) -> bool:
    """Whether all are UTF-8: one look at all of them, as a space between two completes nothing."""
    try:
        b" ".join(filter(None, parts)).decode()
    except UnicodeDecodeError:
        return False
    return True


def are_json(parts: Iterable[bytes | None]) -> bool:
    """Whether all keys and values are JSON on one line each: one look for all takes a third of the time of one at each.

    They are when all of them, with a number between each two, are one list with each number in its place: it could lie
    elsewhere only if what is before it were no whole value.
    """
    present = [part for part in parts if part is not None]
    if not present:
        return True
    text = b"[%b]" % (b",%d," % _BETWEEN).join(present)
    if b"\n" in text or b"\r" in text:
        return False  # R4
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return len(values) == 2 * len(present) - 1 and values[1::2] == [_BETWEEN] * (len(present) - 1)


def _is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


_FIELDS: dict[Format | None, Callable[[bytes | None, bytes | None, bool], dict[str, object]]] = {
    None: _native_fields,
    Format.JSON: _json_fields,
    Format.BINARY: _binary_fields,
    Format.TEXT: _text_fields,
}
_JSON_LIKE = (Format.JSON, None)

"""Records of the native API as JSON objects, in: one document a record, judged one by one.

The fields are those of `gateway/codec/records.py` with JSON keys and values; beside `key` and `value` there are
`key_text` and `value_text` (strings stored as UTF-8) and `key_b64` and `value_b64` (base64), the forms in which records
come out. So what was read can be sent: the fields that say where a record was (topic, offset, store_timestamp,
message_id, schedule_id) are no fields of a record to send, and are refused like every unknown one.

Invariants
    N1  one bad record is answered by its own error; those around it are not touched
"""

from __future__ import annotations

import binascii
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import orjson

from gateway.codec.documents import TOO_LONG, Document
from gateway.codec.json_steps import TOO_DEAR_TEXT
from gateway.codec.json_text import json_again, parse_json
from gateway.codec.records import Format, ProduceRecord, parse_raw_record, parse_records, plain_record
from gateway.errors import RECORD_TOO_LARGE, RequestError, bad_request, invalid
from store.limits import HEADERS_BYTES_MAX, RECORD_BYTES_MAX, KiB

DOCUMENT_BYTES_MAX = (RECORD_BYTES_MAX + HEADERS_BYTES_MAX) * 4 // 3 + 64 * KiB
"""One record as JSON: base64 of the largest one, and room for names."""

_FORMS = ("key", "key_text", "key_b64", "value", "value_text", "value_b64")
_SEPARATOR = b'"%s"' % secrets.token_hex(16).encode()  # random: no client can send it
_SEPARATOR_VALUE: str = orjson.loads(_SEPARATOR)


class Parsed(NamedTuple):
    """One record or error a document, in their order; `json_values`: as `store.types.Append` has it."""

    records: list[ProduceRecord | RequestError]
    json_values: bool


def parse_documents(documents: Sequence[Document], *, raw_keys: bool) -> Parsed:
    """The records of JSON documents. `raw_keys`: those of the topic are (store/topics.py)."""
    return parse_objects(load_documents(documents), raw_keys=raw_keys)


def load_documents(documents: Sequence[Document]) -> list[object | RequestError]:
    """The JSON value of each document, or the error it is answered with. All are parsed in one call if they can be."""
    plain = [document for document in documents if isinstance(document, bytes)]
    if 1 < len(plain) == len(documents):
        try:
            values = orjson.loads(b"[%s]" % (b",%s," % _SEPARATOR).join(plain))
        except orjson.JSONDecodeError:
            pass
        else:
            # Lines that are JSON only together (one ends in the next) do not leave every second place to a separator.
            if len(values) == 2 * len(plain) - 1 and values[1::2] == [_SEPARATOR_VALUE] * (len(plain) - 1):
                return list(values[::2])
    return [_load(document) for document in documents]


def _load(document: Document) -> object | RequestError:
    if document is TOO_LONG:
        return RequestError(RECORD_TOO_LARGE, f"The document has more than {DOCUMENT_BYTES_MAX} bytes.")
    if not isinstance(document, bytes):
        return invalid(f"The document has {TOO_DEAR_TEXT}")
    try:
        return parse_json(document, "document")
    except RequestError as error:
        return error


def parse_objects(values: Sequence[object], *, raw_keys: bool) -> Parsed:
    """The records of JSON values; errors among the values stay errors."""
    if len(values) == 1:
        with suppress(RequestError):  # said below
            if (record := plain_record(values[0], raw_keys=raw_keys)) is not None:
                return Parsed([record], True)
    if not any(isinstance(value, RequestError) or has_form(value) for value in values):
        try:
            return Parsed(list(parse_records(list(values), Format.JSON, raw_keys=raw_keys)), True)
        except RequestError:
            pass  # which one it was is found out below
    records = [value if isinstance(value, RequestError) else _parse(value, raw_keys) for value in values]
    is_json = not any(map(has_form, values))
    return Parsed(records, is_json)


def has_form(value: object) -> bool:
    """Whether a record has its key or value in a form of the native API."""
    return isinstance(value, dict) and (
        "value_b64" in value or "value_text" in value or "key_b64" in value or "key_text" in value
    )


def _parse(value: object, raw_keys: bool) -> ProduceRecord | RequestError:
    try:
        if not isinstance(value, dict):
            raise bad_request("A record must be a JSON object.")
        if not has_form(value):
            return parse_records([value], Format.JSON, raw_keys=raw_keys)[0]
        fields = {name: field for name, field in value.items() if name not in _FORMS}
        key = _bytes_of(value, "key", strings_raw=raw_keys)
        return parse_raw_record(fields, key, _bytes_of(value, "value"))
    except RequestError as error:
        return RequestError(error.error_code, error.message)


def _bytes_of(value: dict[str, object], name: str, *, strings_raw: bool = False) -> bytes | None:
    """The bytes of a key or value in whichever of its three forms it has. `strings_raw`: a JSON string is its UTF-8."""
    plain, text, encoded = value.get(name), value.get(f"{name}_text"), value.get(f"{name}_b64")
    if sum(f"{name}{form}" in value for form in ("", "_text", "_b64")) > 1:
        raise bad_request(f"{name}, {name}_text and {name}_b64 exclude each other.")
    if text is not None:
        if not isinstance(text, str):
            raise bad_request(f"{name}_text: must be a string")
        return text.encode()
    if encoded is not None:
        if not isinstance(encoded, str):
            raise bad_request(f"{name}_b64: must be a string")
        try:
            return binascii.a2b_base64(encoded, strict_mode=True)
        except ValueError:
            raise bad_request(f"{name}_b64: is not base64") from None
    if strings_raw and isinstance(plain, str):
        return plain.encode()
    return None if plain is None else json_again(plain, name)

"""Content negotiation: which format a body has, and which an answer takes.

Grammar of the REST Proxy's media types: `application/vnd.kafka[.<embedded>][.v1|.v2]+json`; embedded is `binary` (also
when left out on a send or a read), `json`, `text`, or one of the schema formats, which need a schema registry: a
server without one says what to use instead (42202).
`application/json` and `application/octet-stream` count as binary. Raw RecordBatches have a type of their own.

A send without Content-Type is refused: it is the one kind of body a foreign web page can send unasked.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from gateway.api.schemas import Schemas
from gateway.codec.records import Format
from gateway.codec.schema_parts import SchemaFormat
from gateway.errors import SCHEMA_FORMAT, RequestError, invalid

BATCH_TYPE = "application/vnd.mq.batch"
LINES_TYPE = "application/x-ndjson"
JSON_TYPE = "application/json"
V2_TYPE = "application/vnd.kafka.v2+json"

AnyFormat = Format | SchemaFormat

_BY_NAME: dict[str, AnyFormat] = {fmt.value: fmt for kind in (Format, SchemaFormat) for fmt in kind}
_KAFKA = re.compile(rf"application/vnd\.kafka(?:\.({'|'.join(_BY_NAME)}))?(?:\.v[12])?\+json")
LINES_TYPES = (LINES_TYPE, "application/ndjson", "application/jsonl")
_ANYTHING = ("*/*", "application/*", "*/json")


class RecordsType(NamedTuple):
    """The form an answer with records takes: a JSON array in a format, or in a schema format (and `fmt` is None); lines
    (NDJSON) in a format, or in the native form when `fmt` is None; else raw batches."""

    content_type: str
    fmt: Format | None
    is_lines: bool = False
    schema_format: SchemaFormat | None = None


def any_format_named(name: str) -> AnyFormat:
    """The format of a `?format=` parameter. Raises RequestError 422."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise invalid("Invalid format type.") from None


def format_named(name: str) -> Format:
    """As `any_format_named`, where no schema format can be had. Raises RequestError 42202 for those."""
    fmt = any_format_named(name)
    if isinstance(fmt, SchemaFormat):
        raise no_schemas(fmt)
    return fmt


def no_schemas(fmt: SchemaFormat) -> RequestError:
    """The answer to a schema format: what it is used for works without one."""
    name = fmt.value
    return RequestError(
        SCHEMA_FORMAT,
        f"{name} needs a schema registry, which this server does not have. Use the format json for JSON as it is, or "
        f"binary for bytes that the client serializes with its own {name} library (base64 in JSON): "
        "application/vnd.kafka.json.v2+json, application/vnd.kafka.binary.v2+json.",
    )


def schemas_for(schemas: Schemas | None, fmt: SchemaFormat) -> Schemas:
    """The schemas of a server. Raises RequestError 42202 when it has none."""
    if schemas is None:
        raise no_schemas(fmt)
    return schemas


@lru_cache(maxsize=256)
def sent_format(content_type: str) -> AnyFormat | None:
    """The embedded format of a send's Content-Type; None for raw batches. Raises RequestError 415."""
    media = content_type.partition(";")[0].strip().lower()
    if media == BATCH_TYPE:
        return None
    if media in (JSON_TYPE, "application/octet-stream"):
        return Format.BINARY
    match = _KAFKA.fullmatch(media)
    if match is not None:
        return Format.BINARY if match[1] is None else _BY_NAME[match[1]]
    raise RequestError(
        415,
        "HTTP 415 Unsupported Media Type: send application/vnd.kafka.json.v2+json (or binary, text), "
        f"application/json, or {BATCH_TYPE}.",
    )


@lru_cache(maxsize=256)
def json_type(accept: str, default: str) -> str:
    """The Content-Type of a JSON answer without records, for an Accept header. Raises RequestError 406."""
    for media in preferred_types(accept):
        if media in _ANYTHING or _KAFKA.fullmatch(media):
            return default
        if media == JSON_TYPE:
            return JSON_TYPE
    raise _not_acceptable()


@lru_cache(maxsize=256)
def records_type(accept: str, *, has_schemas: bool = False) -> RecordsType:
    """The form of an answer with records, for an Accept header. Raises RequestError 406, or, on a server without a
    schema registry, 42202 where the most wanted of what cannot be is a schema format."""
    refusal = _not_acceptable()
    for media in preferred_types(accept):
        if media == BATCH_TYPE:
            return RecordsType(BATCH_TYPE, None)
        if media in LINES_TYPES:
            return RecordsType(LINES_TYPE, None, is_lines=True)
        if media in _ANYTHING:
            return kafka_records_type(Format.BINARY)
        if media == JSON_TYPE:
            return RecordsType(JSON_TYPE, Format.BINARY)
        match = _KAFKA.fullmatch(media)
        if match is not None:
            fmt = Format.BINARY if match[1] is None else _BY_NAME[match[1]]
            if has_schemas or not isinstance(fmt, SchemaFormat):
                return kafka_records_type(fmt)
            if refusal.error_code != SCHEMA_FORMAT:
                refusal = no_schemas(fmt)
    raise refusal


def kafka_records_type(fmt: AnyFormat) -> RecordsType:
    """The REST Proxy's type for records in a format."""
    content_type = f"application/vnd.kafka.{fmt.value}.v2+json"
    if isinstance(fmt, SchemaFormat):
        return RecordsType(content_type, None, schema_format=fmt)
    return RecordsType(content_type, fmt)


def prefers(accept: str, *wanted: str) -> str | None:
    """The first of the wanted media types that an Accept header names; None when it names none of them."""
    return next((media for media in preferred_types(accept) if media in wanted), None)


def preferred_types(accept: str) -> list[str]:
    """The media ranges of an Accept header, the most wanted first; those with q=0 are left out."""
    ranges: list[tuple[float, str]] = []
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        if media and weight > 0:
            ranges.append((weight, media))
    ranges.sort(key=lambda item: -item[0])  # stable: as written among equals
    return [media for _, media in ranges]


def _not_acceptable() -> RequestError:
    return RequestError(406, "HTTP 406 Not Acceptable: no type of the Accept header can be produced here.")

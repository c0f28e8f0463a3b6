"""CloudEvents 1.0 over HTTP, and as records by the rules of its Kafka binding. Pure.

Binary mode: each attribute is a header (`ce-id` in HTTP, `ce_id` in a record), the data is the body, its type is
Content-Type. Structured mode: the body is the whole event as JSON, `application/cloudevents+json`, stored as it is.
The key of an event is its `partitionkey`, when the sender names no other.

Attribute values are percent-encoded in HTTP headers (HTTP binding, 3.1.3.2) and plain UTF-8 in records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from gateway.codec.json_text import parse_json
from gateway.errors import RequestError, bad_request

STRUCTURED_TYPE = "application/cloudevents+json"
BATCH_TYPE = "application/cloudevents-batch+json"
HTTP_PREFIX = "ce-"
RECORD_PREFIX = "ce_"
_REQUIRED = ("id", "source", "specversion", "type")
_NAME = re.compile(r"[a-z0-9]+", re.ASCII)
_PLAIN = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")

Headers = list[tuple[str, bytes | None]]


def binary_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """The record headers for an event in binary mode; none when the request is no event.

    Raises RequestError 400 when a required attribute is missing, or one is no attribute or not UTF-8.
    """
    attributes = {
        name[len(HTTP_PREFIX) :].lower(): unquote(value)
        for name, value in headers
        if name[: len(HTTP_PREFIX)].lower() == HTTP_PREFIX
    }
    if "specversion" not in attributes:
        return []  # without it, a CloudEvents receiver takes the message for another kind
    _check(attributes, "ce-")
    try:
        return [(RECORD_PREFIX + name, value.encode()) for name, value in attributes.items()]
    except UnicodeEncodeError:  # other octets of a header are surrogates here
        raise bad_request("The attributes of an event must be UTF-8.") from None


def check_structured(body: bytes) -> str | None:
    """Check an event in structured mode; its partition key. Raises RequestError 400."""
    return check_event(parse_json(body, "event"))


def check_event(event: object) -> str | None:
    """Check an event that is a JSON value; its partition key. Raises RequestError 400."""
    if not isinstance(event, dict):
        raise bad_request("An event must be a JSON object.")
    _check(event, "")
    key = event.get("partitionkey")
    return key if isinstance(key, str) and key else None


def http_headers(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    """The HTTP headers for the `ce_` headers of a record."""
    return {
        HTTP_PREFIX + name.removeprefix(RECORD_PREFIX): quote(value.decode("utf-8", "replace"), safe=_PLAIN)
        for name, value in headers
        if value is not None and is_attribute(name)
    }


def is_attribute(name: str) -> bool:
    """Whether a record header is an attribute of an event."""
    return name.startswith(RECORD_PREFIX) and _NAME.fullmatch(name.removeprefix(RECORD_PREFIX)) is not None


def _check(attributes: Mapping[str, object], prefix: str) -> None:
    for name in _REQUIRED:
        value = attributes.get(name)
        if not isinstance(value, str) or not value:
            raise _missing(prefix + name)
    if attributes["specversion"] != "1.0":
        raise bad_request(f"{prefix}specversion: only CloudEvents 1.0 is accepted")
    for name in attributes:
        if name not in ("data", "data_base64") and not _NAME.fullmatch(name):
            raise bad_request(f"{prefix}{name}: the name of an attribute has lower-case letters and digits only")


def _missing(name: str) -> RequestError:
    return bad_request(f"{name}: an event needs it, as a string that is not empty")

"""What the creator of a consumer instance may choose, in the keys of two dialects.

    name | id                                       of the instance; made up when left out
    format                                          binary (default), json, text; avro, jsonschema, protobuf
    auto.offset.reset                               latest (default), earliest; largest, smallest in v1
    auto.commit.enable | enable.auto.commit         true (default), false; as JSON or as a string
    fetch.min.bytes | responseMinBytes              a read waits for so many; 1 (default), -1 means the default
    consumer.request.timeout.ms | requestWaitMs     the longest a read waits; 1000 (default) unless the read says longer
    max.poll.records                                records of one read at most
    on.decode.error                                 inline (default), fail, skip: records that are not in `format`
    client.rack                                     the machine room that the instance stands for, as in Kafka's clients

Other keys are ignored, as clients pass on whatever they have. `enable.auto.commit` is Strimzi's key, and its clients
expect 204 for a commit where Confluent's expect 200: the key tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from gateway.codec.records import Format
from gateway.errors import CONFIG_CONSTRAINT, RequestError, invalid
from gateway.groups.machines.membership import MEMBER_ID_BYTES_MAX, ROOM_BYTES_MAX
from gateway.groups.machines.progress import Start
from gateway.surfaces.http.media import AnyFormat, any_format_named

CONFIG_ILLEGAL = 42204

FETCH_MIN_BYTES_MAX = 10_000_000
REQUEST_TIMEOUT_MS_DEFAULT = 1000
REQUEST_TIMEOUT_MS_MAX = 600_000
POLL_RECORDS_MAX = 100_000

_T = TypeVar("_T")
_STRIMZI_COMMIT = "enable.auto.commit"
_ROOM = "client.rack"
_RESETS = {"latest": Start.LAST, "earliest": Start.FIRST, "largest": Start.LAST, "smallest": Start.FIRST}
_BOOLEANS = {"true": True, "false": False}
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class OnDecodeError(Enum):
    """What to do with a record whose bytes are not in the instance's format."""

    INLINE = "inline"  # hand it out with its bytes in base64 and an error
    FAIL = "fail"  # refuse the read; the position stays
    SKIP = "skip"  # leave it out


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """The settings of one instance; fixed once it is created."""

    format: AnyFormat = Format.BINARY
    start: Start = Start.LAST
    """Where to begin in a partition in which the group has committed nothing."""

    auto_commit: bool = True
    is_strimzi: bool = False
    fetch_min_bytes: int = 1
    request_timeout_ms: int | None = None
    poll_records_max: int | None = None
    on_decode_error: OnDecodeError = OnDecodeError.INLINE
    room: str = ""


def parse_settings(body: Mapping[str, object]) -> tuple[str | None, InstanceSettings]:
    """The name asked for and the settings of a creation request.

    Raises RequestError 422: 422 for an unknown format, 40001 for `fetch.min.bytes`, 42204 for the rest.
    """
    name = _parse_name(body)
    return name, InstanceSettings(
        format=_parse_format(body.get("format")),
        start=_choice(body, "auto.offset.reset", _RESETS, Start.LAST),
        auto_commit=_parse_auto_commit(body),
        is_strimzi=_STRIMZI_COMMIT in body,
        fetch_min_bytes=_parse_fetch_min_bytes(body),
        request_timeout_ms=_integer(
            body, ("consumer.request.timeout.ms", "requestWaitMs"), least=0, most=REQUEST_TIMEOUT_MS_MAX
        ),
        poll_records_max=_integer(body, ("max.poll.records",), least=1, most=POLL_RECORDS_MAX),
        on_decode_error=_choice(
            body, "on.decode.error", {choice.value: choice for choice in OnDecodeError}, OnDecodeError.INLINE
        ),
        room=_parse_room(body.get(_ROOM)),
    )


def settings_as_json(settings: InstanceSettings) -> dict[str, object]:
    """The settings as a creation request that would give them."""
    shown: dict[str, object] = {
        "format": settings.format.value,
        "auto.offset.reset": "earliest" if settings.start is Start.FIRST else "latest",
        _STRIMZI_COMMIT if settings.is_strimzi else "auto.commit.enable": settings.auto_commit,
        "fetch.min.bytes": settings.fetch_min_bytes,
        "on.decode.error": settings.on_decode_error.value,
    }
    if settings.request_timeout_ms is not None:
        shown["consumer.request.timeout.ms"] = settings.request_timeout_ms
    if settings.poll_records_max is not None:
        shown["max.poll.records"] = settings.poll_records_max
    if settings.room:
        shown[_ROOM] = settings.room
    return shown


def _parse_name(body: Mapping[str, object]) -> str | None:
    names = [_checked_name(body[key]) for key in ("id", "name") if body.get(key) is not None]
    return names[0] if names else None


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or not name.isprintable() or "/" in name or name in (".", ".."):
        raise _illegal('name: must be a string of one or more printable characters without "/"')
    if (size := len(name.encode())) > MEMBER_ID_BYTES_MAX:
        raise _illegal(f"name: has {size} bytes; the limit is {MEMBER_ID_BYTES_MAX}")
    return name


def _parse_room(room: object) -> str:
    if room is None:
        return ""
    if not isinstance(room, str) or not room.isprintable() or len(room.encode()) > ROOM_BYTES_MAX:
        raise _illegal(f"{_ROOM}: must be a string of printable characters, {ROOM_BYTES_MAX} bytes at most")
    return room


def _parse_format(value: object) -> AnyFormat:
    if value is None:
        return Format.BINARY
    if not isinstance(value, str):
        raise invalid("Invalid format type.")
    return any_format_named(value.lower())


def _parse_auto_commit(body: Mapping[str, object]) -> bool:
    confluents = _boolean(body, "auto.commit.enable", True)
    return _boolean(body, _STRIMZI_COMMIT, True) if _STRIMZI_COMMIT in body else confluents


def _boolean(body: Mapping[str, object], key: str, default: bool) -> bool:
    value = body.get(key)
    return value if isinstance(value, bool) else _choice(body, key, _BOOLEANS, default)


def _parse_fetch_min_bytes(body: Mapping[str, object]) -> int:
    try:
        value = _integer(body, ("fetch.min.bytes", "responseMinBytes"), least=-1, most=FETCH_MIN_BYTES_MAX)
    except RequestError as error:
        raise RequestError(CONFIG_CONSTRAINT, error.message) from None
    return 1 if value is None else max(value, 1)


def _choice(body: Mapping[str, object], key: str, choices: Mapping[str, _T], default: _T) -> _T:
    value = body.get(key)
    if value is None:
        return default
    chosen = choices.get(value.lower()) if isinstance(value, str) else None
    if chosen is None:
        raise _illegal(f"{key}: must be one of {', '.join(choices)}")
    return chosen


def _integer(body: Mapping[str, object], keys: tuple[str, ...], *, least: int, most: int) -> int | None:
    key = next((key for key in keys if body.get(key) is not None), None)
    if key is None:
        return None
    value = body[key]
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _illegal(f"{key}: must be an integer from {least} to {most}")
    return value


def _illegal(rule: str) -> RequestError:
    return RequestError(CONFIG_ILLEGAL, f"Invalid consumer configuration: {rule}")

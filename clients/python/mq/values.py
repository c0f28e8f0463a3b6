"""Values on their way in and out: durations and times, bodies and how they are decoded. Pure.

A body is sent as JSON, except bytes, which are sent as they are, and None, which is a tombstone. A body is read as JSON
if it is JSON, else as text if it is UTF-8, else as bytes; or as the type that the reader asks for.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from mq.errors import MqError, Undecodable

Duration: TypeAlias = str | float | timedelta
"""Seconds, a timedelta, or text such as "250ms", "30s", "15m", "1h30m", "2d"."""

Instant: TypeAlias = datetime | float
"""An aware datetime, or epoch seconds as `time.time()` gives them."""

Body: TypeAlias = bytes | None
Decode: TypeAlias = Callable[[Body], Any]

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TERM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_EPOCH_S_MAX = 1e11
"""Year 5138: a larger number is milliseconds by mistake."""


def seconds(value: Duration, name: str) -> float:
    """A duration in seconds, 0 or more. Raises MqError naming the parameter."""
    if isinstance(value, timedelta):
        amount = value.total_seconds()
    elif isinstance(value, str):
        terms = _TERM.findall(value)
        if not terms or "".join(number + unit for number, unit in terms) != value.replace(" ", ""):
            raise MqError(f'{name}: {value!r} is not a duration; write for example "250ms", "30s", "15m" or "1h30m"')
        amount = sum(float(number) * _UNIT_S[unit] for number, unit in terms)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        amount = float(value)
    else:
        raise MqError(f"{name}: must be seconds, a timedelta or text, not {type(value).__name__}")
    if not 0 <= amount < float("inf"):
        raise MqError(f"{name}: must not be negative or infinite, and is {value!r}")
    return amount


def milliseconds(value: Duration, name: str) -> int:
    """A duration in whole milliseconds, rounded up: never earlier than asked for."""
    amount = seconds(value, name) * 1000
    return int(amount) + (amount - int(amount) > 1e-6)


def epoch_ms(value: Instant, name: str) -> int:
    """A time in epoch milliseconds. Raises MqError for a datetime without a zone, or a number out of range."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise MqError(f"{name}: {value} has no time zone; use datetime.now(UTC) or .astimezone()")
        return round(value.timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _EPOCH_S_MAX:
        raise MqError(f"{name}: must be an aware datetime or epoch seconds (as time.time() gives), and is {value!r}")
    return round(value * 1000)


def instant(epoch: int) -> datetime:
    """Epoch milliseconds as an aware datetime in UTC."""
    return datetime.fromtimestamp(epoch / 1000, UTC)


def _encode_other(value: object) -> object:
    """What msgspec does not know: pydantic models, and whatever dumps itself as they do."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(
            f"a value of type {type(value).__name__} cannot be sent as JSON; send bytes, or a type that can"
        )
    return dump(mode="json")


_json = msgspec.json.Encoder(enc_hook=_encode_other)


def encode_json(value: object) -> bytes:
    """A value as JSON. Raises TypeError for what JSON cannot say."""
    try:
        return _json.encode(value)
    except (TypeError, msgspec.MsgspecError, UnicodeEncodeError, ValueError) as error:
        raise TypeError(f"this value cannot be sent as JSON: {error}") from None


def encode_headers(headers: Mapping[str, str | bytes | None]) -> list[dict[str, str | None]]:
    """Headers as the protocol writes them."""
    written: list[dict[str, str | None]] = []
    for name, value in headers.items():
        if isinstance(value, str):
            written.append({"key": name, "text": value})
        elif value is None or isinstance(value, bytes):
            written.append({"key": name, "value": None if value is None else b64encode(value).decode()})
        else:
            raise TypeError(f"headers[{name!r}]: must be str, bytes or None, not {type(value).__name__}")
    return written


def lenient(body: Body) -> Any:
    """JSON if it is JSON, else text if it is UTF-8, else bytes; None for a tombstone."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return text_or_bytes(body)


def text_or_bytes(body: bytes) -> str | bytes:
    """Text if it is UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def _as_bytes(body: Body) -> Body:
    return body


def _as_text(body: Body) -> str | None:
    if body is None:
        return None
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if isinstance(value, str):
        return value
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"the value is not text: {error}") from None


def _decode_other(type_: Any, value: object) -> Any:
    """A type that msgspec does not know, inside one that it does: pydantic models."""
    validate = getattr(type_, "model_validate", None)
    if validate is None:
        raise Undecodable(f"values cannot be read as {type_!r}: use a msgspec struct, a dataclass or a pydantic model")
    return validate(value)


def decoder(type_: Any) -> Decode:
    """How bodies become values of a type: None and Any are lenient, bytes is the body itself, str is text; else a
    msgspec struct, dataclass, TypedDict, pydantic model, or builtin containers of these.

    The decoder raises Undecodable. A tombstone decodes to None if the type allows it.
    """
    if type_ is None or type_ is Any or type_ is object:
        return lenient
    if type_ is bytes:
        return _as_bytes
    if type_ is str:
        return _as_text
    decode: Callable[[bytes], Any] | None = getattr(type_, "model_validate_json", None)
    if decode is None:
        try:
            decode = msgspec.json.Decoder(type_, dec_hook=_decode_other).decode
        except TypeError as error:
            raise MqError(f"values cannot be read as {type_!r}: {error}") from None
    name = getattr(type_, "__name__", str(type_))

    def decode_typed(body: Body, decode: Callable[[bytes], Any] = decode) -> Any:
        try:
            return decode(b"null" if body is None else body)
        except Undecodable:
            raise
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:  # pydantic's are ValueErrors
            raise Undecodable(f"the value is no {name}: {error}") from None

    return decode_typed

"""Structs of what callers send, how they are filled, and what is said when they cannot be.

Limits that never change are in the types. Those that an operator chooses are named (`up_to("delay_ms_max")`) and looked
up in the server's `Limits`; what counts in bytes (`in_bytes`) is counted here, as types count characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta, inspect

from gateway.api.shapes.schema import Schema, bound_of, schema_of
from gateway.codec.times import TIME_MS_MAX, parse_time_ms
from gateway.errors import INVALID, LIMIT_ILLEGAL, MALFORMED, RequestError, bad_request, invalid
from gateway.settings.limits import Limits
from store.types import OFFSET_MAX, RECORD_OFFSET_MAX


class OpenShape(msgspec.Struct):
    """A JSON object that a caller sends, with whatever else callers of its kind send: what is not known is ignored.

    `codes`: the error code of a field where it is not INVALID, or LIMIT_ILLEGAL for a number out of its range.
    `more`: what its JSON Schema has besides its fields.
    """

    codes: ClassVar[Mapping[str, int]] = {}
    more: ClassVar[Schema] = {}


class Shape(OpenShape, forbid_unknown_fields=True):
    """The usual JSON object, which is closed: a field that it does not have is refused."""


AnyShape = TypeVar("AnyShape", bound=OpenShape)


def whole(least: int, most: int, said: str | None = None) -> Meta:
    """A whole number within a range."""
    return Meta(ge=least, le=most, description=said)


def up_to(limit: str, said: str | None = None, *, least: int = 0) -> Meta:
    """A whole number of at most what the server's `Limits` have under this name."""
    return Meta(ge=least, description=said, extra={"most": limit})


def chars(most: int | None = None, said: str | None = None, *, least: int = 1) -> Meta:
    """A string of so many characters."""
    return Meta(min_length=least, max_length=most, description=said)


def in_bytes(most: int, said: str | None = None, *, least: int = 0) -> Meta:
    """A string of so many bytes in UTF-8."""
    return Meta(min_length=least or None, description=said, extra={"bytes": most})


def one_of(*words: str, said: str | None = None) -> Meta:
    """The words of a Literal in the order in which they are shown; msgspec sorts them."""
    return Meta(description=said, extra_json_schema={"enum": list(words)})


def at_time(said: str) -> Meta:
    """A whole number that is a point in time, epoch ms, and may be written as RFC 3339 in a text (`load_texts`)."""
    shown = [{"type": "integer", "minimum": 0, "maximum": TIME_MS_MAX}, TIME_TEXT_SCHEMA]
    return Meta(extra={"is_time": True, "schema": {"anyOf": shown, "description": said}})


def judged(schema: Schema | Callable[[Limits], Schema]) -> Meta:
    """A value that its reader judges; callers are shown this schema, which may depend on the server's limits."""
    return Meta(extra={"schema": schema})


Partition = Annotated[int, whole(0, RECORD_OFFSET_MAX)]
"""A partition as clients name it; whether there is one is found out where it is looked for."""

PartitionNumber = Annotated[int, whole(0, 999_999_999)]
"""A partition as answers and sockets name it."""

RecordOffset = Annotated[int, whole(0, RECORD_OFFSET_MAX)]
NextOffset = Annotated[int, whole(0, OFFSET_MAX)]
Name = Annotated[str, chars()]

TIME_TEXT_SCHEMA: Schema = {
    "type": "string",
    "format": "date-time",
    "pattern": "^(19[7-9][0-9]|[2-9][0-9]{3})-",
    "description": "RFC 3339, with its offset from UTC.",
}
TIME_SCHEMA: Schema = {
    "anyOf": [{"type": "integer", "minimum": 0, "maximum": TIME_MS_MAX}, TIME_TEXT_SCHEMA],
    "description": "Epoch milliseconds, or RFC 3339.",
}
Time = Annotated[object, judged(TIME_SCHEMA)]
"""A point in time; `time_ms` reads it."""


def time_ms(value: object, field: str, error_code: int = INVALID) -> int:
    """Epoch ms of a `Time`. Raises RequestError."""
    try:
        return parse_time_ms(value)
    except ValueError as error:
        raise RequestError(error_code, f"{field}: {error}") from error


class AtTime(Shape):
    """The first record stored at or after a time."""

    timestamp: Time

    def __post_init__(self) -> None:
        self.ms()

    def ms(self) -> int:
        """Epoch ms."""
        return time_ms(self.timestamp, "timestamp")


Begin = Literal["earliest", "latest"] | AtTime
"""Where a group begins, or is moved to."""


def load(shape: type[AnyShape], value: object, limits: Limits) -> AnyShape:
    """The struct of a JSON value. Raises RequestError, which names the field and its rule."""
    try:
        loaded = msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise _refusal(shape, str(error), limits) from None
    return _within(shape, loaded, limits)


COMMAS_MAX = 100_000
"""In a JSON text that is not read in steps. The largest request that is not too large has a third of it: 10,000
partitions with a topic and an offset each. A list of 350,000 empty strings, 1 MiB, took 60 ms."""


def load_json(shape: type[AnyShape], text: bytes, limits: Limits) -> AnyShape:
    """As `load`, of a JSON text: nothing is made of it but the struct, so what does not fit costs nothing, however
    large it is. Raises RequestError."""
    if len(text) > COMMAS_MAX and text.count(b",") > COMMAS_MAX:
        raise RequestError(INVALID, f"The body has more than {COMMAS_MAX:,} commas: no request needs so many.")
    try:
        loaded = msgspec.json.decode(text, type=shape)
    except msgspec.ValidationError as error:
        raise _refusal(shape, str(error), limits) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"The body is not JSON: {error}") from None
    return _within(shape, loaded, limits)


def _within(shape: type[AnyShape], loaded: AnyShape, limits: Limits) -> AnyShape:
    """The struct, if it keeps the limits that no type has. Raises RequestError."""
    for name, unit, limit in _bounds(shape):
        given = getattr(loaded, name)
        if unit == "bytes":
            is_over = isinstance(given, str) and len(given.encode()) > limit
        else:
            is_over = isinstance(given, int) and given > getattr(limits, limit)
        if is_over:
            code = shape.codes.get(name, INVALID if unit == "bytes" else LIMIT_ILLEGAL)
            raise RequestError(code, f"{name}: must be {_rule(schema_of(shape, limits)['properties'][name], unit)}")
    return loaded


def load_texts(shape: type[AnyShape], texts: Mapping[str, str], limits: Limits) -> AnyShape:
    """The struct of what a URL or headers say: all of it text, numbers and times too. Raises RequestError."""
    given: dict[str, object] = {}
    readers = _readers(shape)
    for name, text in texts.items():
        if name not in readers and issubclass(shape, Shape):
            raise invalid(f"Unrecognized parameter: {name}")
        read = readers.get(name)
        given[name] = text if read is None else read(name, text)
    return load(shape, given, limits)


def text_time_ms(name: str, text: str) -> int:
    """Epoch ms of a time in a text: digits or RFC 3339. Raises RequestError MALFORMED."""
    return time_ms(int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else text, name, MALFORMED)


def _text_whole(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or (value := int(text)) > OFFSET_MAX:
        raise RequestError(MALFORMED, f"{name}: must be an integer of at most {OFFSET_MAX}")
    return value


@cache
def _readers(shape: type[OpenShape]) -> dict[str, Callable[[str, str], int] | None]:
    """How the text of each field is read; None: it is a text."""
    info = inspect.type_info(shape)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: _reader(field.type) for field in info.fields}


def _reader(kind: inspect.Type) -> Callable[[str, str], int] | None:
    match kind:
        case inspect.UnionType():
            return next((found for one in kind.types if (found := _reader(one)) is not None), None)
        case inspect.Metadata():
            return text_time_ms if (kind.extra or {}).get("is_time") else _reader(kind.type)
        case inspect.IntType():
            return _text_whole
    return None


@cache
def _bounds(shape: type[OpenShape]) -> list[tuple[str, str, Any]]:
    """The fields with limits that no type has: name, unit, limit."""
    info = inspect.type_info(shape)
    assert isinstance(info, inspect.StructType)
    return [(field.name, *bound) for field in info.fields if (bound := bound_of(field.type)) is not None]


_AT = re.compile(r"(?P<what>.*?)(?: - at `(?:key` in `)?\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(?:[0-9]+|\.\.\.)\]")
_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)


def _refusal(shape: type[OpenShape], text: str, limits: Limits) -> RequestError:
    """What msgspec says of a value, in our words: which field, and what it must be."""
    match = _AT.fullmatch(text)
    assert match is not None
    what, path = match["what"], (match["path"] or "").removeprefix(".")
    named = _FIELD.match(what)
    if named is not None and what.startswith("Object contains"):
        return invalid(f"Unrecognized field: {named[1]}")
    if named is not None:
        where = f"{path}.{named[1]}" if path else named[1]
        return RequestError(shape.codes.get(re.split(r"[.\[]", where)[0], INVALID), f"{where}: is required")
    schema: Schema = schema_of(shape, limits)
    first = ""
    for step in _STEP.finditer(match["path"] or ""):
        first = first or step[1] or ""
        schema = _into(schema, step[1])
    is_range = what.startswith(("Expected `int` >", "Expected `int` <"))
    code = shape.codes.get(first, LIMIT_ILLEGAL if is_range else INVALID)
    return RequestError(code, f"{path or 'the object'}: must be {_rule(schema)}")


def _into(schema: Schema, name: str | None) -> Schema:
    """The schema of a field, or of the entries of a list or a mapping."""
    for one in schema.get("anyOf", [schema]):
        found = one.get("properties", {}).get(name) if name else one.get("items", one.get("additionalProperties"))
        if isinstance(found, dict):
            return found
    return {}


def _rule(schema: Schema, unit: str = "") -> str:
    """A schema in words."""
    if "anyOf" in schema:
        return " or ".join(_rule(one) for one in schema["anyOf"] if one != {"type": "null"})
    if "enum" in schema:
        return " or ".join(f'"{word}"' for word in schema["enum"])
    kinds = schema.get("type", "something else")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "object" and "properties" in schema:
        return "an object {" + ", ".join(f'"{name}"' for name in schema["properties"]) + "}"
    words = {"boolean": "true or false", "string": "a string"}.get(kind, f"an {kind}")
    ends = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}.get(kind, ("minimum", "maximum"))
    least, most = (schema.get(end) for end in ends)
    of = {"string": unit or "characters", "array": "entries"}.get(kind)
    if least is None and most is None:
        return words
    span = f"at least {least}" if most is None else f"at most {most}" if not least and of else f"{least} to {most}"
    return f"{words} of {span} {of}" if of else f"{words} of {span}" if most is None else f"{words} from {span}"

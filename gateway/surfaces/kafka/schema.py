"""Kafka's messages as dictionaries: one reader and one writer for each message and version. Pure.

The layouts are in messages.json, made from Apache Kafka's message definitions (docs/decisions/0044-kafka-wire.md). A
layout is compiled to nested functions when a version of it is first used. Produce and Fetch, which carry records, are
not here (`produce.py`, `fetch.py`).

    before a message is flexible                     from its flexible version on
    string   i16 length, bytes; -1: null             unsigned varint length + 1, bytes; 0: null
    bytes    i32 length, bytes; -1: null             unsigned varint length + 1, bytes; 0: null
    array    i32 count, elements; -1: null           unsigned varint count + 1, elements; 0: null
    struct   its fields                              its fields, then tagged fields: count, then (tag, size, bytes) each

Invariants
    K1  no length or count is believed before it is known to fit the bytes that are there
    K2  a message is decoded to at most ELEMENTS_MAX elements of arrays: a byte on the wire may be a dictionary in
        memory
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import orjson

ELEMENTS_MAX = 20_000
"""Elements of all arrays of one request."""

Message = dict[str, Any]
"""A message or a struct in it, by the names of its fields."""


class Malformed(ValueError):
    """Bytes that are not the message they should be."""


class Encoded(NamedTuple):
    """The value of an array field that is written as it is: its count and elements, encoded before."""

    content: bytes


class Reader:
    """Reads one message. `left`: the elements that it may still have (K2)."""

    __slots__ = ("at", "buffer", "end", "left")

    def __init__(self, buffer: bytes | memoryview, at: int = 0) -> None:
        self.buffer = buffer
        self.at = at
        self.end = len(buffer)
        self.left = ELEMENTS_MAX

    def take(self, size: int) -> bytes:
        """The next bytes. Raises Malformed when there are fewer."""
        at = self.at
        if size < 0 or size > self.end - at:
            raise Malformed(f"{size} bytes at byte {at} of {self.end}")
        self.at = at + size
        return bytes(self.buffer[at : at + size])

    def unpack(self, form: struct.Struct) -> Any:
        """The one value of a form."""
        at = self.at
        if form.size > self.end - at:
            raise Malformed(f"{form.size} bytes at byte {at} of {self.end}")
        self.at = at + form.size
        return form.unpack_from(self.buffer, at)[0]

    def varint(self) -> int:
        """An unsigned varint of at most five bytes."""
        value = shift = 0
        while True:
            if self.at >= self.end or shift > 28:
                raise Malformed(f"a varint without an end at byte {self.at}")
            byte = self.buffer[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def count(self, count: int) -> int:
        """A count of elements, each of which takes a byte at least."""
        self.left -= count
        if count > self.end - self.at or self.left < 0:
            raise Malformed(f"{count} elements at byte {self.at} of {self.end}")
        return count

    def skip_tags(self) -> None:
        """Read past tagged fields."""
        if self.at < self.end and not self.buffer[self.at]:  # as nearly all have it: there are none
            self.at += 1
            return
        for _ in range(self.count(self.varint())):
            self.varint()
            self.take(self.varint())


Read = Callable[[Reader], Any]
Write = Callable[[bytearray, Any], None]

_I8, _I16, _I32, _I64 = (struct.Struct(form) for form in (">b", ">h", ">i", ">q"))
_NUMBERS = {"int8": _I8, "int16": _I16, "int32": _I32, "int64": _I64}


def write_varint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _length_reader(form: struct.Struct, flexible: bool) -> Callable[[Reader], int]:
    if flexible:
        return lambda reader: reader.varint() - 1
    return lambda reader: int(reader.unpack(form))


def _length_writer(form: struct.Struct, flexible: bool) -> Callable[[bytearray, int], None]:
    if flexible:
        return lambda out, length: write_varint(out, length + 1)

    def write(out: bytearray, length: int) -> None:
        out += form.pack(length)

    return write


def _text_codec(flexible: bool, nullable: bool) -> tuple[Read, Write]:
    read_length, write_length = _length_reader(_I16, flexible), _length_writer(_I16, flexible)

    def read(reader: Reader) -> str | None:
        length = read_length(reader)
        if length < 0:
            if length != -1 or not nullable:
                raise Malformed(f"a string of length {length} at byte {reader.at}")
            return None
        try:
            return reader.take(length).decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"a string that is not UTF-8: {error}") from error

    def write(out: bytearray, value: str | None) -> None:
        if value is None:
            assert nullable
            write_length(out, -1)
        else:
            content = value.encode()
            write_length(out, len(content))
            out += content

    return read, write


def _bytes_codec(flexible: bool, nullable: bool) -> tuple[Read, Write]:
    read_length, write_length = _length_reader(_I32, flexible), _length_writer(_I32, flexible)

    def read(reader: Reader) -> bytes | None:
        length = read_length(reader)
        if length == -1 and nullable:
            return None
        return reader.take(length)

    def write(out: bytearray, value: bytes | None) -> None:
        if value is None:
            assert nullable
            write_length(out, -1)
        else:
            write_length(out, len(value))
            out += value

    return read, write


def _number_codec(form: struct.Struct) -> tuple[Read, Write]:
    def write(out: bytearray, value: int) -> None:
        out += form.pack(value)

    return lambda reader: reader.unpack(form), write


def _bool_codec() -> tuple[Read, Write]:
    return lambda reader: reader.unpack(_I8) != 0, lambda out, value: out.append(bool(value))


def _array_codec(element: tuple[Read, Write], flexible: bool, nullable: bool) -> tuple[Read, Write]:
    read_count, write_count = _length_reader(_I32, flexible), _length_writer(_I32, flexible)
    read_one, write_one = element

    def read(reader: Reader) -> list[Any] | None:
        count = read_count(reader)
        if count < 0:
            if count != -1 or not nullable:
                raise Malformed(f"an array of {count} elements at byte {reader.at}")
            return None
        return [read_one(reader) for _ in range(reader.count(count))]

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            assert nullable
            write_count(out, -1)
        elif isinstance(value, Encoded):
            out += value.content
        else:
            write_count(out, len(value))
            for one in value:
                write_one(out, one)

    return read, write


def _is_in(version: int, versions: list[int] | None) -> bool:
    return versions is not None and versions[0] <= version <= versions[1]


def _struct_codec(fields: list[list[Any]], version: int, flexible: bool) -> tuple[Read, Write]:
    """`write` takes the default of a field that is not given; a name that is none of a field's is a bug of ours."""
    own = [
        (name, _default(kind, default), *_codec(kind, inner, version, flexible, _is_in(version, nullable)))
        for name, kind, versions, nullable, default, inner in fields
        if _is_in(version, versions)
    ]
    known = {name for name, *_ in fields}

    def read(reader: Reader) -> Message:
        value = {name: read_one(reader) for name, _, read_one, _ in own}
        if flexible:
            reader.skip_tags()
        return value

    def write(out: bytearray, value: Message) -> None:
        assert known.issuperset(value), f"{set(value) - known} are no fields"
        for name, default, _, write_one in own:
            write_one(out, value.get(name, default))
        if flexible:
            out.append(0)

    return read, write


def _default(kind: str, default: str | None) -> Any:
    if default == "null":
        return None
    if kind in _NUMBERS:
        return int(default or 0)
    if kind == "bool":
        return default == "true"
    return {"string": default or "", "bytes": b""}.get(kind, ())


def _codec(kind: str, inner: Any, version: int, flexible: bool, nullable: bool) -> tuple[Read, Write]:
    if kind.startswith("[]"):
        return _array_codec(_codec(kind[2:], inner, version, flexible, False), flexible, nullable)
    if kind == "struct":
        return _struct_codec(inner, version, flexible)
    if kind == "string":
        return _text_codec(flexible, nullable)
    if kind == "bytes":
        return _bytes_codec(flexible, nullable)
    if kind == "bool":
        return _bool_codec()
    return _number_codec(_NUMBERS[kind])


@cache
def _definitions() -> Mapping[str, Any]:
    found: Mapping[str, Any] = orjson.loads((files(__package__) / "messages.json").read_bytes())
    return found


def is_flexible(name: str, version: int) -> bool:
    """Whether a version of a message has compact lengths and tagged fields."""
    return bool(version >= _definitions()[name]["flexible"])


@cache
def _message_codec(name: str, version: int) -> tuple[Read, Write]:
    definition = _definitions()[name]
    assert _is_in(version, definition["versions"]), f"{name} has no version {version}"
    return _struct_codec(definition["fields"], version, is_flexible(name, version))


def decode(name: str, version: int, buffer: bytes | memoryview, at: int = 0) -> Message:
    """A message whose bytes begin at `at`. Bytes behind it are passed over. Raises Malformed."""
    message: Message = _message_codec(name, version)[0](Reader(buffer, at))
    return message


def encode(name: str, version: int, message: Message) -> bytearray:
    """The bytes of a message; a field that it lacks has its default."""
    out = bytearray()
    _message_codec(name, version)[1](out, message)
    return out


def encode_array(name: str, version: int, path: tuple[str, ...], value: list[Message]) -> Encoded:
    """An array of a message, by the names that lead to it, encoded once for messages to come."""
    fields = _definitions()[name]["fields"]
    for step in path:
        kind, nullable, inner = next(
            (kind, nullable, inner)
            for name_, kind, versions, nullable, _, inner in fields
            if name_ == step and _is_in(version, versions)
        )
        fields = inner
    out = bytearray()
    _codec(kind, inner, version, is_flexible(name, version), _is_in(version, nullable))[1](out, value)
    return Encoded(bytes(out))

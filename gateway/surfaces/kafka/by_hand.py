"""What Produce and Fetch have in common, which are read and written by hand (`produce.py`, `fetch.py`). Pure.

    topics     count · (name · count of partitions · (a partition's fields, tagged fields) · tagged fields)

In flexible versions lengths and counts are compact, and each struct ends with tagged fields, of which there are none.
"""

from __future__ import annotations

import struct

from gateway.surfaces.kafka.schema import Malformed, Reader, write_varint

_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")
_ONE_BYTE_MAX = 0x7F


def length(reader: Reader, form: struct.Struct, flexible: bool) -> int:
    """A length; -1: null."""
    return reader.varint() - 1 if flexible else int(reader.unpack(form))


def count(reader: Reader, flexible: bool) -> int:
    """The count of an array. Raises Malformed for null."""
    found = length(reader, _I32, flexible)
    if found < 0:
        raise Malformed("an array is null")
    return reader.count(found)


def text(reader: Reader, flexible: bool) -> str:
    """A string. Raises Malformed for null."""
    try:
        return reader.take(length(reader, _I16, flexible)).decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"a string that is not UTF-8: {error}") from error


def write_text(out: bytearray, value: str | None, flexible: bool) -> None:
    """Append a string or null."""
    content = b"" if value is None else value.encode()
    size = -1 if value is None else len(content)
    if flexible:
        write_count(out, size, flexible)
    else:
        out += _I16.pack(size)
    out += content


def write_count(out: bytearray, value: int, flexible: bool) -> None:
    """Append the count of an array."""
    if not flexible:
        out += _I32.pack(value)
    elif value < _ONE_BYTE_MAX:
        out.append(value + 1)
    else:
        write_varint(out, value + 1)

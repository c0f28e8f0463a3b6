"""gateway/codec/schema_parts.py: the head of what a schema registry's serializers write."""

from __future__ import annotations

import pytest

from gateway.codec.schema_parts import SCHEMA_ID_MAX, framed, split_frame


def test_the_head_is_a_zero_byte_and_the_id() -> None:
    assert framed(1, b"x") == b"\0\0\0\0\x01x"
    assert framed(SCHEMA_ID_MAX, b"") == b"\0\x7f\xff\xff\xff"
    assert split_frame(framed(70_000, b"payload")) == (70_000, b"payload")


@pytest.mark.parametrize("part", [b"", b"\0", b"\0\0\0\0", b"\x01\0\0\0\x01x", b'{"a":1}'])
def test_other_bytes_have_none(part: bytes) -> None:
    assert split_frame(part) is None

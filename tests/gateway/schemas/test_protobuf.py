"""gateway/schemas/protobuf.py: messages that no code was generated for."""

from __future__ import annotations

from base64 import b64encode

import orjson
import pytest
from google.protobuf import descriptor_pb2

from gateway.schemas.protobuf import INDEXES_MAX, Protobuf
from gateway.schemas.request import SchemaText, Unfit
from tests.gateway.schemas.fake_registry import PROTO

NESTED = """
syntax = "proto3";
package a.b;
import "google/protobuf/timestamp.proto";
import "other/customer.proto";
message First { int32 n = 1; }
message Second {
  message Zero { string s = 1; }
  message Inner { google.protobuf.Timestamp at = 1; c.Customer who = 2; repeated int64 big_ones = 3; }
  Inner inner = 1;
}
"""
CUSTOMER = 'syntax = "proto3"; package c; message Customer { string name = 1; }'


def proto(text: str, *references: tuple[str, str]) -> Protobuf:
    return Protobuf(SchemaText("protobuf", text, references))


def described(text: str, *, name: str = "order.proto") -> str:
    """The same schema as Python's clients register it."""
    file = descriptor_pb2.FileDescriptorProto()
    file.CopyFrom(proto(text)._file)
    file.name = name
    return b64encode(file.SerializeToString()).decode()


def test_the_first_message_by_json() -> None:
    codec = proto(PROTO)
    written = codec.serialize(b'{"sku": 9, "orderNote": "x"}')
    assert written == b"\x00\x08\x09\x12\x01x"
    assert orjson.loads(codec.deserialize(written)) == {"sku": 9, "orderNote": "x"}
    assert orjson.loads(codec.deserialize(b"\x00")) == {"sku": 0, "orderNote": ""}  # defaults are shown
    assert codec.name == "org.example.Order"


def test_a_nested_message_by_the_way_to_it() -> None:
    codec = proto(NESTED, ("other/customer.proto", CUSTOMER))
    inner = b"\x0a\x02\x08\x05\x12\x03\x0a\x01z\x1a\x01\x07"
    assert orjson.loads(codec.deserialize(b"\x04\x02\x02" + inner)) == {
        "at": "1970-01-01T00:00:05Z", "who": {"name": "z"}, "bigOnes": ["7"],
    }  # fmt: skip
    assert orjson.loads(codec.deserialize(b"\x02\x00\x08\x01")) == {"n": 1}
    assert codec.name == "a.b.First"


def test_a_descriptor_is_as_good_as_a_text() -> None:
    codec = proto(described(PROTO))
    assert codec.serialize(b'{"sku": 9}') == b"\x00\x08\x09"
    assert proto(PROTO).deserialize(b"\x00\x08\x09") == codec.deserialize(b"\x00\x08\x09")


def test_text_and_descriptors_do_not_mix() -> None:
    with pytest.raises(ValueError, match="two forms"):
        proto(NESTED, ("other/customer.proto", described(CUSTOMER)))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x04",  # two indexes are to come
        b"\x80\x80\x80\x80\x80\x01",  # a number without an end
        bytes([2 * (INDEXES_MAX + 1)]) + b"\0" * (INDEXES_MAX + 1),
        b"\x02\x02",  # no second message
        b"\x02\x01",  # a negative index
        b"\x01",  # a negative count
        b"\x00\x0a\xff",  # cut
    ],
)
def test_bytes_that_are_no_message_are_told(payload: bytes) -> None:
    with pytest.raises(Unfit):
        proto(PROTO).deserialize(payload)


def test_so_many_indexes_are_read() -> None:
    with pytest.raises(Unfit, match="has no message"):
        proto(PROTO).deserialize(bytes([2 * INDEXES_MAX]) + b"\0" * INDEXES_MAX)


@pytest.mark.parametrize("value", ['{"skew": 1}', '{"sku": "x"}', "[]", '{"sku": 99999999999}'])
def test_json_that_is_not_of_the_message_is_refused(value: str) -> None:
    with pytest.raises(Unfit):
        proto(PROTO).serialize(value.encode())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("message {", "line 1"),
        ('syntax = "proto3";', "no message"),
        ('syntax = "proto3"; import "none.proto"; message A {}', "none.proto"),
        ('syntax = "proto3"; import "/etc/hostname"; message A {}', "hostname"),
        ('syntax = "proto3"; import "../x.proto"; message A {}', "x.proto"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        proto(text)


@pytest.mark.parametrize("name", ["../x.proto", "/x.proto", "a//b.proto", "a/./b.proto", "", "a/..", "x" * 201, "a\0b"])
def test_a_reference_is_no_way_out_of_the_directory(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a file"):
        proto(PROTO, (name, CUSTOMER))

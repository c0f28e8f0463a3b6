"""gateway/schemas/avro.py: Avro's JSON encoding and its binary one."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import orjson
import pytest

from gateway.schemas.avro import Avro
from gateway.schemas.request import SchemaText, Unfit

RECORD = {
    "type": "record",
    "name": "R",
    "namespace": "org.example",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "both", "type": ["null", "int", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "raw", "type": "bytes", "default": ""},
        {"name": "four", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "prices", "type": {"type": "map", "values": "double"}},
        {"name": "next", "type": ["null", "R"]},
        {
            "name": "list",
            "type": {"type": "array", "items": ["null", "Kind", "Four", {"type": "array", "items": "int"}]},
        },
    ],
}
VALUE = {
    "id": 2**60,
    "both": {"int": 7},
    "kind": "B",
    "raw": "\u0000ÿ",
    "four": "abcd",
    "day": 20_000,
    "prices": {"a": 1.5, "b": "NaN"},
    "next": {
        "org.example.R": {
            "id": -1, "both": {"string": "x"}, "kind": "A", "raw": "", "four": "ÿÿÿÿ", "day": 0, "prices": {},
            "next": None, "list": [],
        }
    },
    "list": [None, {"org.example.Kind": "A"}, {"org.example.Four": "1234"}, {"array": [1, 2]}],
}  # fmt: skip


def avro(schema: Any, *references: tuple[str, Any]) -> Avro:
    return Avro(SchemaText("avro", _text(schema), tuple((name, _text(one)) for name, one in references)))


def _text(schema: Any) -> str:
    return orjson.dumps(schema).decode()


def test_a_value_of_every_type_comes_back_as_it_was() -> None:
    codec = avro(RECORD)
    assert orjson.loads(codec.deserialize(codec.serialize(orjson.dumps(VALUE)))) == VALUE
    assert codec.name == "org.example.R"


def test_the_bytes_are_those_of_avro_itself() -> None:
    codec = avro(["null", "int", "long", "string", "double", {"type": "map", "values": "int"}])
    assert codec.serialize(b"null") == b"\0"
    assert codec.serialize(b'{"int": 1}') == b"\x02\x02"
    assert codec.serialize(b'{"long": 1}') == b"\x04\x02"  # the branch that was named, not the first that fits
    assert codec.serialize(b'{"string": "a"}') == b"\x06\x02a"
    assert codec.serialize(b'{"map": {"a": 1}}') == b"\x0a\x02\x02a\x02\x00"
    assert codec.name is None


def test_a_field_with_a_default_may_be_left_out() -> None:
    codec = avro(
        {
            "type": "record",
            "name": "D",
            "fields": [
                {"name": "a", "type": "int", "default": 3},
                {"name": "b", "type": ["null", "string"], "default": None},
                {"name": "c", "type": {"type": "array", "items": "int"}, "default": []},
            ],
        }
    )
    assert orjson.loads(codec.deserialize(codec.serialize(b"{}"))) == {"a": 3, "b": None, "c": []}


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        ("int", "1.5", "value is no int"),
        ("int", "true", "value is no int"),
        ("int", str(2**31), "value is no int"),
        ("long", str(2**63), "value is no long"),
        ("string", "1", "value is no string"),
        ("boolean", "0", "value is no boolean"),
        ("null", "0", "value is no null"),
        ("float", '"1"', "value is no float"),
        ("bytes", '"\u0100"', "U\\+0000 to U\\+00FF"),
        ({"type": "fixed", "name": "F", "size": 2}, '"abc"', "has 3 bytes, not 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, '"B"', "value is no E"),
        ({"type": "array", "items": "int"}, "[1, null]", r"value\[\] is no int"),
        ({"type": "map", "values": "int"}, '{"a": "b"}', "value.a is no int"),
        (["null", "string"], '"plain"', "is a union: write null or .* null, string"),
        (["null", "string"], '{"int": 1}', "is a union"),
        (["string"], "null", "is a union"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}, "{}", "value.a is missing"),
        ({"type": "record", "name": "R", "fields": []}, '{"b": 1}', "has a field b"),
    ],
)
def test_a_value_that_is_not_of_the_schema_is_told_where(schema: Any, value: str, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        avro(schema).serialize(value.encode())


def test_types_of_other_schemas_are_found_by_their_names() -> None:
    codec = avro(
        {"type": "record", "name": "Order", "namespace": "a", "fields": [{"name": "who", "type": "b.Customer"}]},
        ("b.Customer", {"type": "record", "name": "b.Customer", "fields": [{"name": "id", "type": "int"}]}),
    )
    assert orjson.loads(codec.deserialize(codec.serialize(b'{"who": {"id": 4}}'))) == {"who": {"id": 4}}
    alone = avro("b.Id", ("b.Id", {"type": "fixed", "name": "Id", "namespace": "b", "size": 1}))
    assert alone.serialize(b'"x"') == b"x"
    union = avro(["null", "b.Id"], ("b.Id", {"type": "fixed", "name": "Id", "namespace": "b", "size": 1}))
    assert union.serialize(b'{"b.Id": "x"}') == b"\x02x"
    assert union.deserialize(b"\x02x") == b'{"b.Id":"x"}'


@pytest.mark.parametrize("text", ["{", '{"type": "nothing"}', '"unknown.Name"', "5", '{"type": "record", "name": "R"}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(Exception):  # noqa: B017 -- whatever fastavro raises
        Avro(SchemaText("avro", text)).serialize(b"1")


def test_what_fastavro_writes_is_read() -> None:
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(RECORD), {
        "id": 1, "both": "x", "kind": "A", "raw": b"\xff", "four": b"1234", "day": 3, "prices": {"p": 2.0},
        "next": None, "list": [[5], "A"],
    })  # fmt: skip
    read = orjson.loads(avro(RECORD).deserialize(written.getvalue()))
    assert read["both"] == {"string": "x"}
    assert read["raw"] == "ÿ"
    assert read["list"] == [{"array": [5]}, {"org.example.Kind": "A"}]

"""gateway/schemas/json_schema.py: what is sent is validated, and nothing is fetched for it."""

from __future__ import annotations

import time

import orjson
import pytest

from gateway.schemas.json_schema import JsonSchema
from gateway.schemas.request import SchemaText, Unfit
from tests.gateway.schemas.fake_registry import JSON_SCHEMA


def schema(text: str, *references: tuple[str, str]) -> JsonSchema:
    return JsonSchema(SchemaText("jsonschema", text, references))


def test_json_goes_through_as_it_is() -> None:
    codec = schema(JSON_SCHEMA)
    assert codec.serialize(b'{"sku":9}') == b'{"sku":9}'
    assert codec.deserialize(b'{ "sku": 9,\r\n "more": 118059162071741130342400 }') == (
        b'{ "sku": 9,   "more": 118059162071741130342400 }'
    )
    assert codec.name == "Order"
    assert schema("true").name is None


def test_a_value_that_is_not_of_the_schema_is_told_where() -> None:
    with pytest.raises(Unfit, match=r"value\.sku: "):
        schema(JSON_SCHEMA).serialize(b'{"sku":"x"}')
    with pytest.raises(Unfit, match="required"):
        schema(JSON_SCHEMA).serialize(b"{}")


def test_what_is_read_is_not_validated_but_must_be_json() -> None:
    assert schema(JSON_SCHEMA).deserialize(b"[]") == b"[]"
    with pytest.raises(ValueError):
        schema(JSON_SCHEMA).deserialize(b"{")


def test_references_are_those_of_the_registry() -> None:
    codec = schema('{"$ref": "customer.json"}', ("customer.json", '{"type": "integer"}'))
    assert codec.serialize(b"5") == b"5"
    with pytest.raises(Unfit):
        codec.serialize(b'"x"')


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:9/x.json", "https://example.org/x.json", "file:///etc/hostname", "x.json"]
)
def test_nothing_else_is_fetched(uri: str) -> None:
    with pytest.raises(Exception, match=r"references|retriev|resolve|fetch|offline|disabled"):
        schema(orjson.dumps({"$ref": uri}).decode()).serialize(b"5")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", r"(?=a)(a+)+\1$"])
def test_a_pattern_does_not_take_for_ever(pattern: str) -> None:
    codec = schema(orjson.dumps({"pattern": f"^{pattern}"}).decode())
    begun_s = time.process_time()
    with pytest.raises(Unfit):
        codec.serialize(orjson.dumps("a" * 60 + "!"))
    assert time.process_time() - begun_s < 4.0

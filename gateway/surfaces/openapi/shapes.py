"""JSON Schema (2020-12), written short. Objects are closed: a field that is not described may not be there."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.api.shapes.base import TIME_SCHEMA, TIME_TEXT_SCHEMA
from gateway.api.shapes.schema import nullable as nullable
from store.types import OFFSET_MAX

Schema = dict[str, object]

ANYTHING: Schema = {}
STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
OFFSET: Schema = {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX}
PARTITION: Schema = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
TIME_MS: Schema = {"type": "integer", "minimum": 0, "description": "Epoch milliseconds."}
TIME_TEXT = TIME_TEXT_SCHEMA
BASE64: Schema = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
BYTES: Schema = {"type": "string", "format": "binary"}


def ref(name: str) -> Schema:
    """A schema of `schemas.py`."""
    return {"$ref": f"#/components/schemas/{name}"}


def obj(
    required: Mapping[str, Schema],
    optional: Mapping[str, Schema] | None = None,
    *,
    others: bool | Schema = False,
    **more: object,
) -> Schema:
    """An object with these fields; `others` says whether, or of which shape, there may be more."""
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    return {**schema, "additionalProperties": others, **more}


def array(items: Schema, *, least: int | None = None, most: int | None = None) -> Schema:
    """A list."""
    schema: Schema = {"type": "array", "items": items}
    if least is not None:
        schema["minItems"] = least
    if most is not None:
        schema["maxItems"] = most
    return schema


def mapping(values: Schema) -> Schema:
    """An object whose names are data."""
    return {"type": "object", "additionalProperties": values}


def either(*schemas: Schema) -> Schema:
    """Any of several shapes."""
    return {"anyOf": list(schemas)}


def words(*values: str) -> Schema:
    """One of these strings."""
    return {"type": "string", "enum": list(values)}


def exactly(value: object) -> Schema:
    """This value and no other."""
    return {"const": value}


def integer(least: int, most: int | None = None) -> Schema:
    """A whole number in a range."""
    schema: Schema = {"type": "integer", "minimum": least}
    if most is not None:
        schema["maximum"] = most
    return schema


def text(most: int | None = None, *, least: int = 0, pattern: str | None = None) -> Schema:
    """A string of so many characters."""
    schema: Schema = {"type": "string"}
    if least:
        schema["minLength"] = least
    if most is not None:
        schema["maxLength"] = most
    if pattern is not None:
        schema["pattern"] = pattern
    return schema


def said(schema: Schema, description: str) -> Schema:
    """The schema with words to it."""
    return {**schema, "description": description}


def with_example(schema: Schema, *examples: object) -> Schema:
    """The schema with examples, which the docs page shows."""
    return {**schema, "examples": list(examples)}


TIME = TIME_SCHEMA
TOPIC = said(text(249, least=1), "Letters, digits and ._%- in ASCII.")

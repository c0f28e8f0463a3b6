"""Avro: its JSON encoding to its binary one, and back. fastavro reads schemas and binary data.

In JSON a value of a union is null or {"type": value}, with the full name of a named type; bytes and fixed are strings
of ISO 8859-1; logical types are the type below them. When a union has both int and long (or float and double), what
fastavro has read does not say which of them it was, and the wider one is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import fastavro
import fastavro.read
import fastavro.write
import orjson

from gateway.schemas.request import SchemaText, Unfit

# Values stay what they are in binary: a date is an int, a decimal is bytes.
fastavro.read.LOGICAL_READERS.clear()
fastavro.write.LOGICAL_WRITERS.clear()

Type = Any
"""A schema as fastavro has parsed it: a name, a list (a union) or an object."""

_RANGES = {"int": 2**31, "long": 2**63}
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_RECORDS = ("record", "error")
_NAMED = (*_RECORDS, "enum", "fixed")


class Avro:
    """One schema."""

    def __init__(self, schema: SchemaText) -> None:
        """Raises ValueError, or what fastavro raises for what is no schema."""
        self._named: dict[str, dict[str, Any]] = {}
        for _, text in schema.references:
            fastavro.parse_schema(orjson.loads(text), named_schemas=self._named)
        parsed = fastavro.parse_schema(orjson.loads(schema.text), named_schemas=self._named)
        self._schema = list(map(self._whole, parsed)) if isinstance(parsed, list) else self._whole(parsed)

    @property
    def name(self) -> str | None:
        """Of the record; None for a schema without a name."""
        return self._schema["name"] if isinstance(self._schema, dict) and self._type(self._schema) in _NAMED else None

    def serialize(self, value: bytes) -> bytes:
        """JSON to binary. Raises Unfit."""
        written = BytesIO()
        fastavro.schemaless_writer(written, self._schema, self._from_json(orjson.loads(value), self._schema, "value"))
        return written.getvalue()

    def deserialize(self, payload: bytes) -> bytes:
        """Binary to JSON. Raises what fastavro raises for other bytes."""
        read = fastavro.schemaless_reader(
            BytesIO(payload), self._schema, None, return_record_name=True, return_named_type=True
        )
        return orjson.dumps(self._to_json(read, self._schema))

    def _whole(self, schema: Type) -> Type:
        """With all types that it names, where it is only the name of one of them."""
        if not isinstance(schema, str) or schema not in self._named:
            return schema
        return {**self._named[schema], "__fastavro_parsed": True, "__named_schemas": self._named}

    def _resolved(self, schema: Type) -> Type:
        return self._named.get(schema, schema) if isinstance(schema, str) else schema

    def _type(self, schema: Type) -> str:
        """`union`, or the type's own name."""
        schema = self._resolved(schema)
        if isinstance(schema, list):
            return "union"
        return str(schema if isinstance(schema, str) else schema["type"])

    def _label(self, branch: Type) -> str:
        """What a value of this branch of a union is called in JSON."""
        branch, kind = self._resolved(branch), self._type(branch)
        return str(branch["name"]) if kind in _NAMED else kind

    def _from_json(self, value: Any, schema: Type, at: str) -> Any:
        schema, kind = self._resolved(schema), self._type(schema)
        match kind:
            case "union":
                return self._branch_from_json(value, schema, at)
            case "null" if value is None:
                return None
            case "boolean" if isinstance(value, bool):
                return value
            case "int" | "long" if value.__class__ is int and -_RANGES[kind] <= value < _RANGES[kind]:
                return value
            case "float" | "double" if value.__class__ in (int, float):
                return float(value)
            case "float" | "double" if isinstance(value, str) and value in _NO_NUMBERS:
                return _NO_NUMBERS[value]
            case "string" if isinstance(value, str):
                return value
            case "bytes" | "fixed" if isinstance(value, str):
                return _latin(value, at, schema["size"] if kind == "fixed" else None)
            case "enum" if value in schema["symbols"]:
                return value
            case "array" if isinstance(value, list):
                return [self._from_json(one, schema["items"], f"{at}[]") for one in value]
            case "map" if isinstance(value, dict):
                return {name: self._from_json(one, schema["values"], f"{at}.{name}") for name, one in value.items()}
            case "record" | "error" if isinstance(value, dict):
                return self._fields_from_json(value, schema["fields"], at)
        raise Unfit(f"{at} is no {self._label(schema)}")

    def _branch_from_json(self, value: Any, branches: Sequence[Type], at: str) -> Any:
        if value is None and any(self._type(branch) == "null" for branch in branches):
            return None
        if isinstance(value, dict) and len(value) == 1:
            (label,) = value
            for branch in branches:
                if self._label(branch) == label != "null":
                    return label, self._from_json(value[label], branch, at)  # fastavro's way to name a branch
        labels = ", ".join(map(self._label, branches))
        raise Unfit(f'{at} is a union: write null or {{"type": value}}, with one of the types {labels}')

    def _fields_from_json(self, value: Mapping[str, Any], fields: Sequence[dict[str, Any]], at: str) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for field in fields:
            name = field["name"]
            if name in value:
                made[name] = self._from_json(value[name], field["type"], f"{at}.{name}")
            elif "default" not in field:
                raise Unfit(f"{at}.{name} is missing, and has no default")
        if len(made) < len(value):
            raise Unfit(f"{at} has a field {next(name for name in value if name not in made)}, its schema has not")
        return made

    def _to_json(self, value: Any, schema: Type) -> Any:
        schema, kind = self._resolved(schema), self._type(schema)
        if kind == "union":
            if value is None:
                return None
            branch = self._branch_of(value, schema)
            return {self._label(branch): self._to_json(value[1] if isinstance(value, tuple) else value, branch)}
        if isinstance(value, bytes):
            return value.decode("iso-8859-1")
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")
        if kind == "array":
            return [self._to_json(one, schema["items"]) for one in value]
        if kind == "map":
            return {name: self._to_json(one, schema["values"]) for name, one in value.items()}
        if kind in _RECORDS:
            return {field["name"]: self._to_json(value[field["name"]], field["type"]) for field in schema["fields"]}
        return value

    def _branch_of(self, value: Any, branches: Sequence[Type]) -> Type:
        """The branch that a value was read by: of a named type fastavro says it, of others its class does."""
        if isinstance(value, tuple):
            wanted: tuple[str, ...] = (value[0],)
        elif isinstance(value, bool):
            wanted = ("boolean",)
        elif isinstance(value, int):
            wanted = ("long", "int")
        elif isinstance(value, float):
            wanted = ("double", "float")
        else:
            wanted = ({str: "string", bytes: "bytes", list: "array", dict: "map"}[value.__class__],)
        by_label = {self._label(branch): branch for branch in branches}
        return by_label[next(label for label in wanted if label in by_label)]


def _latin(text: str, at: str, size: int | None) -> bytes:
    try:
        made = text.encode("iso-8859-1")
    except UnicodeEncodeError:
        raise Unfit(f"{at} is bytes: a string of the characters U+0000 to U+00FF, one a byte") from None
    if size is not None and len(made) != size:
        raise Unfit(f"{at} has {len(made)} bytes, not {size}")
    return made

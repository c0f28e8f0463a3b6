"""JSON by a JSON Schema: what is stored is the JSON itself. jsonschema-rs validates what is sent; what is read was
validated by its sender, as Confluent's deserializers have it."""

from __future__ import annotations

from typing import Any, NoReturn

import jsonschema_rs
import orjson

from gateway.schemas.request import SchemaText, Unfit

BACKTRACKS_MAX = 1_000_000
"""Steps back of one `pattern` that is no regular one; with more of them the value is refused."""


class JsonSchema:
    """One schema."""

    def __init__(self, schema: SchemaText) -> None:
        """Raises ValueError, or what jsonschema-rs raises for what is no schema."""
        self._schema: Any = orjson.loads(schema.text)
        registry = jsonschema_rs.Registry(
            [(name, orjson.loads(text)) for name, text in schema.references], retriever=_refuse
        )
        self._validator = jsonschema_rs.validator_for(
            self._schema,
            registry=registry,
            offline=True,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX),
        )

    @property
    def name(self) -> str | None:
        """Its title; None without one."""
        title = self._schema.get("title") if isinstance(self._schema, dict) else None
        return title if isinstance(title, str) else None

    def serialize(self, value: bytes) -> bytes:
        """JSON as it is, compact. Raises Unfit."""
        loaded = orjson.loads(value)
        try:
            self._validator.validate(loaded)
        except jsonschema_rs.ValidationError as error:
            at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
            raise Unfit(f"value{at}: {error.message}") from None
        return value

    def deserialize(self, payload: bytes) -> bytes:
        """The JSON as it is, on one line. Raises ValueError."""
        orjson.loads(payload)
        return payload.replace(b"\n", b" ").replace(b"\r", b" ")


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is none of the schema's references")

"""JSON Schema (2020-12) of structs. Objects are closed unless their struct takes what it does not know."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from msgspec import NODEFAULT, Struct, inspect

from gateway.settings.limits import Limits

Schema = dict[str, Any]


class Part(Struct, forbid_unknown_fields=True):
    """A JSON object of an answer. All its fields are always there, except those whose default is UNSET.

    `is_component`: its schema has a name, that of the class, and others refer to it.
    """

    is_component: ClassVar[bool] = False


@lru_cache(maxsize=512)
def schema_of(shape: type[Struct], limits: Limits) -> Schema:
    """The schema of what a server with these limits takes or answers. Not to be changed by its callers."""
    kind = inspect.type_info(shape)
    assert isinstance(kind, inspect.StructType)
    return _object(kind, limits)


def nullable(schema: Schema) -> Schema:
    """As the schema, or null."""
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def not_null(schema: Schema) -> Schema:
    """As `nullable` was given it; itself when it is not nullable."""
    if {"type": "null"} in schema.get("anyOf", ()):
        (only,) = (one for one in schema["anyOf"] if one != {"type": "null"})
        return dict(only)
    return {**schema, "type": schema["type"][0]} if isinstance(schema.get("type"), list) else schema


def bound_of(kind: inspect.Type) -> tuple[str, Any] | None:
    """A limit that is not in the type itself: its unit ("most": a name in Limits; "bytes": a number) and the limit."""
    if isinstance(kind, inspect.UnionType):
        return next((bound for one in kind.types if (bound := bound_of(one)) is not None), None)
    if isinstance(kind, inspect.Metadata):
        for unit in ("most", "bytes"):
            if kind.extra is not None and unit in kind.extra:
                return unit, kind.extra[unit]
        return bound_of(kind.type)
    return None


def _schema(kind: inspect.Type, limits: Limits) -> Schema:
    match kind:
        case inspect.Metadata():
            return _with_metadata(kind, limits)
        case inspect.UnionType():
            return _union(kind, limits)
        case inspect.StructType():
            if issubclass(kind.cls, Part) and kind.cls.is_component:
                return {"$ref": f"#/components/schemas/{kind.cls.__name__}"}
            return _object(kind, limits)
        case inspect.NoneType():
            return {"type": "null"}
        case inspect.AnyType() | inspect.CustomType():  # `object`: anything
            return {}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return _present({"type": "integer", "minimum": kind.ge, "maximum": kind.le})
        case inspect.FloatType():
            return _present({"type": "number", "minimum": kind.ge, "maximum": kind.le})
        case inspect.StrType():
            lengths = {"minLength": kind.min_length, "maxLength": kind.max_length}
            return _present({"type": "string", **lengths, "pattern": kind.pattern})
        case inspect.LiteralType():
            return {"type": "string", "enum": list(kind.values)}
        case inspect.EnumType():
            return {"type": "string", "enum": [member.value for member in kind.cls]}
        case inspect.ListType() | inspect.VarTupleType():
            items = {"type": "array", "items": _schema(kind.item_type, limits)}
            return _present({**items, "minItems": kind.min_length, "maxItems": kind.max_length})
        case inspect.DictType():
            values = {"type": "object", "additionalProperties": _schema(kind.value_type, limits)}
            return _present({**values, "minProperties": kind.min_length})
    raise TypeError(f"no schema for {kind}")


def _present(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if value is not None}


def _with_metadata(kind: inspect.Metadata, limits: Limits) -> Schema:
    extra = kind.extra or {}
    if "schema" in extra:
        shown = extra["schema"]
        return dict(shown(limits) if callable(shown) else shown)
    schema = _schema(kind.type, limits)
    if "most" in extra:
        schema["maximum"] = getattr(limits, extra["most"])
    if "bytes" in extra:
        schema["maxLength"] = extra["bytes"]
    return {**schema, **(kind.extra_json_schema or {})}


def _union(kind: inspect.UnionType, limits: Limits) -> Schema:
    others = [_schema(one, limits) for one in kind.types if not isinstance(one, inspect.NoneType)]
    if len(others) == 1:
        return nullable(others[0]) if kind.includes_none else others[0]
    return {"anyOf": [*others, {"type": "null"}] if kind.includes_none else others}


def _has_default(field: inspect.Field) -> bool:
    """Whether it has one that is shown: msgspec tells of none where it is UNSET."""
    return field.default is not NODEFAULT or field.default_factory is not NODEFAULT


def _object(kind: inspect.StructType, limits: Limits) -> Schema:
    fields = {field.encode_name: _schema(field.type, limits) for field in kind.fields}
    is_shown = issubclass(kind.cls, Part)
    required = [one.encode_name for one in kind.fields if one.required or (is_shown and _has_default(one))]
    if kind.tag_field is not None:
        fields = {kind.tag_field: {"const": kind.tag}, **fields}
        required.insert(0, kind.tag_field)
    schema: Schema = {"type": "object", "properties": fields}
    if required:
        schema["required"] = required
    return {**schema, "additionalProperties": not kind.forbid_unknown_fields, **getattr(kind.cls, "more", {})}

"""`valueFormat=json`: the fields of JSON values as typed columns, with the rules of Spark's `from_json`.

A field that is missing or null is null. A field whose JSON does not fit its type is null too, and so are all fields of
a value that is no JSON object; such a value is in the column `_corrupt_record`, if the schema has one. With
mode=FAILFAST it is an error instead. What a record has besides its value are columns with an underscore before their
name: `_key binary`, `_offset bigint`, `_timestamp timestamp`, ...

Values are parsed one by one: pyarrow's own JSON reader takes the interpreter down with it on some input (a value `null`
is enough), and strangers may send anything. `orjson` does it where it is installed and the schema is flat; what it
refuses, or would round (whole numbers beyond 64 bits), is left to the standard library, so both ways give the same. A
column whose cells all have the class of its type goes to Arrow as a whole; else each cell is looked at.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from types import NoneType

import pyarrow as pa
from pyspark.sql import types as T

from pyspark_mq.decode import ARROW_TYPES
from pyspark_mq.errors import MqError, OptionError

CORRUPT = "_corrupt_record"
"""The column for values that do not fit, as Spark's JSON source calls it."""

METADATA_PREFIX = "_"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SPECIAL = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "INF": math.inf,
    "+INF": math.inf,
    "-Infinity": -math.inf,
    "-INF": -math.inf,
}

_PLAIN: dict[type[T.DataType], frozenset[type]] = {
    T.StringType: frozenset({str}),
    T.LongType: frozenset({int}),
    T.IntegerType: frozenset({int}),
    T.ShortType: frozenset({int}),
    T.ByteType: frozenset({int}),
    T.DoubleType: frozenset({int, float}),
    T.FloatType: frozenset({int, float}),
    T.BooleanType: frozenset({bool}),
}
"""Types whose cells need no conversion when all of a column are of these classes, or null."""

Convert = Callable[[object], object]
"""From parsed JSON that is not null to what Arrow takes. Raises ValueError for what does not fit."""

Parse = Callable[[bytes], object]

Spoilt = Callable[[int, object], None]
"""Told of a row that does not fit, and why."""

_NO_FIELDS: dict[str, object] = {}
_ROUNDED = (float, dict, list)
"""What may hold a number as text: orjson makes a float of a whole number beyond 64 bits."""


class JsonValues:
    """How the values of a topic become columns. Goes to the executors, so it is pickled."""

    def __init__(self, schema: T.StructType, *, fail_fast: bool = False) -> None:
        """Raises OptionError for a type that JSON values cannot have."""
        self._schema = schema
        self._fail_fast = fail_fast
        self._metadata = [f.name for f in schema.fields if _is_metadata(f)]
        self._fields = [f for f in schema.fields if f.name not in self._metadata and f.name != CORRUPT]
        corrupt = [f for f in schema.fields if f.name == CORRUPT]
        if any(f.dataType != T.StringType() for f in corrupt):
            raise OptionError(f"column {CORRUPT} must be a string")
        if not all(f.nullable for f in schema.fields):
            raise OptionError("columns of JSON values are nullable: any field may be missing")
        types = [_arrow_type(f.dataType) for f in schema.fields]
        for field, arrow in zip(schema.fields, types, strict=True):
            ours = ARROW_TYPES[field.name.removeprefix(METADATA_PREFIX)] if field.name in self._metadata else arrow
            if not arrow.equals(ours):
                raise OptionError(f"column {field.name} is {field.dataType.simpleString()}, but must be {ours}")
        self._arrow = pa.schema(list(zip(schema.fieldNames(), types, strict=True)))
        self._is_exact = any(_has_decimal(field.dataType) for field in self._fields)
        nested = (T.StructType, T.ArrayType, T.MapType)
        has_nested = any(isinstance(field.dataType, nested) for field in self._fields)
        self._is_simple = not self._is_exact and not has_nested

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the connector's columns that `to_rows` needs."""
        return ("value", *(name.removeprefix(METADATA_PREFIX) for name in self._metadata))

    def to_rows(self, batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
        """From those columns to the schema's. `source` names where the records are from, for errors.

        Raises MqError for the first value that does not fit, with mode FAILFAST.
        """
        texts = batch["value"].to_pylist()
        corrupt: list[str | None] = [None] * len(texts)

        def spoilt(row: int, reason: object) -> None:
            text = texts[row].decode("utf-8", "replace")
            if self._fail_fast:
                raise MqError(f"{source}: a value does not fit the schema ({reason}): {text[:200]}")
            corrupt[row] = text

        documents = self._documents(texts, spoilt)
        columns: dict[str, pa.Array] = {}
        for field in self._fields:
            cells = [document.get(field.name) for document in documents]
            columns[field.name] = self._column(field, cells, texts, spoilt)
        columns |= {name: batch[name.removeprefix(METADATA_PREFIX)] for name in self._metadata}
        if CORRUPT in self._arrow.names:
            columns[CORRUPT] = pa.array(corrupt, pa.string())
        return pa.RecordBatch.from_arrays([columns[name] for name in self._arrow.names], schema=self._arrow)

    def _documents(self, texts: Sequence[bytes | None], spoilt: Spoilt) -> list[dict[str, object]]:
        """The fields of each value; none of one that is no object."""
        loads = (_fast_parser() if self._is_simple else None) or self._exactly
        documents: list[dict[str, object]] = []
        for row, text in enumerate(texts):
            document: object = _NO_FIELDS
            if text is not None:
                try:
                    document = loads(text)
                except (ValueError, RecursionError):
                    document = None
                if document.__class__ is not dict:  # or the fast parser does not take what the exact one does
                    document = self._object(text, row, spoilt)
            documents.append(document)  # type: ignore[arg-type]  # mypy does not follow __class__
        return documents

    def _object(self, text: bytes, row: int, spoilt: Spoilt) -> dict[str, object]:
        try:
            document = self._exactly(text)
        except (ValueError, RecursionError) as error:
            spoilt(row, error)
            return _NO_FIELDS
        if not isinstance(document, dict):
            spoilt(row, "it is no JSON object")
            return _NO_FIELDS
        return document

    def _exactly(self, text: bytes) -> object:
        return json.loads(text, parse_float=Decimal if self._is_exact else None)

    def _column(
        self, field: T.StructField, cells: list[object], texts: Sequence[bytes | None], spoilt: Spoilt
    ) -> pa.Array:
        """The cells of one field as Arrow. `texts` are the values they are from."""
        kind, arrow = field.dataType, self._arrow.field(field.name).type
        plain = _PLAIN.get(type(kind))
        if plain is not None and plain.issuperset(set(map(type, cells)) - {NoneType}):
            try:
                return pa.array(cells, arrow)
            except (ValueError, OverflowError):
                pass  # a number out of range, half of a surrogate pair
        convert = _converter(kind)
        is_text = isinstance(kind, T.StringType)
        for row, value in enumerate(cells):
            if value is not None:
                try:
                    if is_text and value.__class__ in _ROUNDED:
                        document = self._exactly(texts[row] or b"")
                        assert isinstance(document, dict)
                        value = document[field.name]
                    cells[row] = convert(value)
                except (ValueError, OverflowError, InvalidOperation, RecursionError) as error:
                    cells[row] = None
                    spoilt(row, f"{field.name}: {error}")
        return pa.array(cells, arrow)


def _fast_parser() -> Parse | None:
    """orjson, where it can be imported: executors may have only the code of this package."""
    try:
        from orjson import loads
    except ImportError:
        return None
    return loads


def _is_metadata(field: T.StructField) -> bool:
    name = field.name.removeprefix(METADATA_PREFIX)
    return field.name.startswith(METADATA_PREFIX) and name in ARROW_TYPES and name != "value"


def _has_decimal(kind: T.DataType) -> bool:
    match kind:
        case T.StructType():
            return any(_has_decimal(field.dataType) for field in kind.fields)
        case T.ArrayType():
            return _has_decimal(kind.elementType)
        case T.MapType():
            return _has_decimal(kind.valueType)
        case _:
            return isinstance(kind, T.DecimalType)


def _arrow_type(kind: T.DataType) -> pa.DataType:
    match kind:
        case T.StructType():
            return pa.struct([pa.field(f.name, _arrow_type(f.dataType), f.nullable) for f in kind.fields])
        case T.ArrayType():
            return pa.list_(pa.field("element", _arrow_type(kind.elementType), kind.containsNull))
        case T.MapType() if kind.keyType == T.StringType():
            return pa.map_(pa.string(), pa.field("value", _arrow_type(kind.valueType), kind.valueContainsNull))
        case T.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    for known, arrow, _ in _SCALARS:
        if isinstance(kind, known):
            return arrow
    raise OptionError(f"a JSON value cannot have the type {kind.simpleString()}")


def _converter(kind: T.DataType) -> Convert:
    match kind:
        case T.StructType():
            return _struct(kind.fields)
        case T.ArrayType():
            return _array(kind)
        case T.MapType():
            return _map(kind)
        case T.DecimalType():
            return _decimal(kind)
    return next(convert for known, _, convert in _SCALARS if isinstance(kind, known))


def _struct(fields: Sequence[T.StructField]) -> Convert:
    parts = [(field.name, _converter(field.dataType)) for field in fields]

    def convert(value: object) -> object:
        document = _of(dict, value)
        found = ((name, document.get(name), part) for name, part in parts)
        return {name: None if item is None else part(item) for name, item, part in found}

    return convert


def _array(kind: T.ArrayType) -> Convert:
    part = _converter(kind.elementType)
    return lambda value: [None if item is None else part(item) for item in _of(list, value)]


def _map(kind: T.MapType) -> Convert:
    part = _converter(kind.valueType)
    return lambda value: [(_string(k), None if item is None else part(item)) for k, item in _of(dict, value).items()]


def _decimal(kind: T.DecimalType) -> Convert:
    smallest, digits = Decimal(1).scaleb(-kind.scale), kind.precision

    def convert(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
            raise ValueError("not a number")
        number = Decimal(value)
        if not number.is_finite():
            raise ValueError("not a finite number")
        with localcontext(prec=digits):
            return number.quantize(smallest)

    return convert


def _of(kind: type, value: object):  # type: ignore[no-untyped-def]  # raw JSON
    if value.__class__ is not kind:
        raise ValueError(f"not {'an array' if kind is list else 'an object'}")
    return value


def _whole(bits: int) -> Convert:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: object) -> object:
        if value.__class__ is not int or not low <= value <= high:
            raise ValueError(f"not a whole number of {bits} bits")
        return value

    return convert


def _floating(value: object) -> object:
    if value.__class__ is float:
        return value
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("not a number")
    return float(value)


def _boolean(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("not true or false")
    return value


def _string(value: object) -> object:
    text = value
    if not isinstance(text, str):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    text.encode()  # half of a surrogate pair is no text: ValueError
    return text


def _binary(value: object) -> object:
    return b64decode(_text(value), validate=True)


def _date(value: object) -> object:
    return date.fromisoformat(_text(value).strip()[:10])


def _timestamp(value: object) -> object:
    """A text in ISO 8601, in UTC where it names no zone; or seconds since 1970."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _EPOCH + timedelta(seconds=float(value))
    moment = datetime.fromisoformat(_text(value).strip())
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _local_timestamp(value: object) -> object:
    return datetime.fromisoformat(_text(value).strip()).replace(tzinfo=None)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


_SCALARS: Sequence[tuple[type[T.DataType], pa.DataType, Convert]] = (
    (T.StringType, pa.string(), _string),
    (T.LongType, pa.int64(), _whole(64)),
    (T.IntegerType, pa.int32(), _whole(32)),
    (T.ShortType, pa.int16(), _whole(16)),
    (T.ByteType, pa.int8(), _whole(8)),
    (T.DoubleType, pa.float64(), _floating),
    (T.FloatType, pa.float32(), _floating),
    (T.BooleanType, pa.bool_(), _boolean),
    (T.BinaryType, pa.binary(), _binary),
    (T.DateType, pa.date32(), _date),
    (T.TimestampType, pa.timestamp("us", "UTC"), _timestamp),
    (T.TimestampNTZType, pa.timestamp("us"), _local_timestamp),
)

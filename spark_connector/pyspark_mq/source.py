"""The data source Spark finds by the name "mq": which columns, and which reader or writer."""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_mq import compat
from pyspark_mq.batch import BatchReader
from pyspark_mq.errors import OptionError
from pyspark_mq.json_values import JsonValues
from pyspark_mq.options import Options, WriteOptions, check_names, is_about_reading
from pyspark_mq.rows import Column, columns_to_write
from pyspark_mq.stream import StreamReader
from pyspark_mq.writer import BatchWriter, StreamWriter

_SQL_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "tag": "string",
    "deliverAt": "timestamp",
    "scheduleId": "string",
    "messageId": "string",
}
"""Every column there is, with its type as Spark's `simpleString` writes it."""


class MqDataSource(DataSource):
    """`format("mq")`. Options are checked at `load()` and `save()`, so a wrong one is reported there."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)
        check_names(self._given)
        if is_about_reading(self._given):
            Options.parse(self._given)  # Spark may ask for a reader much later

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "mq"

    def schema(self) -> str:
        """The columns asked for by `columns` and `includeHeaders`; Spark does not ask when the user gives a schema."""
        options = Options.parse(self._given)
        if options.json_values:
            raise OptionError("valueFormat=json needs to know the fields: .schema('id BIGINT, name STRING')")
        return ", ".join(f"`{name}` {_SQL_TYPES[name]}" for name in options.columns)

    def reader(self, schema: StructType) -> BatchReader:
        """A reader of what the topics hold now."""
        options = Options.parse(self._given)
        return BatchReader(options, *_to_read(schema, options))

    def streamReader(self, schema: StructType) -> StreamReader:
        """A reader of what arrives."""
        options = Options.parse(self._given)
        if (degraded := compat.missing()) is not None:
            warnings.warn(degraded, stacklevel=2)
        return StreamReader(options, *_to_read(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A writer of one batch job."""
        if overwrite:
            raise OptionError('a topic cannot be overwritten, only added to: use .mode("append")')
        options = WriteOptions.parse(self._given)
        return BatchWriter(options, columns_to_send(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """A writer of one micro-batch. In complete mode (`overwrite`) each adds the whole result."""
        if not compat.STREAM_WRITES:
            raise OptionError("writing a stream needs pyspark 4.1 or later; with 4.0 write in foreachBatch")
        options = WriteOptions.parse(self._given)
        return StreamWriter(options, columns_to_send(schema, options))


def _to_read(schema: StructType, options: Options) -> tuple[tuple[str, ...], JsonValues | None]:
    """Which of our columns are read, and what is made of them."""
    if not options.json_values:
        return columns_of(schema), None
    values = JsonValues(schema, fail_fast=options.fail_fast)
    return values.columns, values


def columns_to_send(schema: StructType, options: WriteOptions) -> tuple[Column, ...]:
    """Which columns of a DataFrame are sent. Raises OptionError."""
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    columns = columns_to_write(fields, topic_given=options.topic is not None)
    return tuple(column for column in columns if column.name != "headers" or options.include_headers)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The names of a schema whose columns are all ours, in any order. Raises OptionError.

    A user's `.schema(...)` is a projection: what it leaves out is not even decoded.
    """
    for field in schema.fields:
        wanted = _SQL_TYPES.get(field.name)
        if wanted is None or field.dataType.simpleString() != wanted or not field.nullable:
            given = f"{field.name} {field.dataType.simpleString()}" + ("" if field.nullable else " NOT NULL")
            raise OptionError(
                f"column {given} is none of ours: they are {', '.join(f'{n} {t}' for n, t in _SQL_TYPES.items())}, "
                "all nullable; cast after the load"
            )
    return tuple(field.name for field in schema.fields)

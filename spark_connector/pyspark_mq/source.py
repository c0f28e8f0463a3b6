"""The data source Spark finds by the name "mq": which columns, and which reader."""

from __future__ import annotations

import warnings
from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_mq.batch import BatchReader
from pyspark_mq.compat import ADMISSION_CONTROL
from pyspark_mq.errors import OptionError
from pyspark_mq.options import Options
from pyspark_mq.stream import StreamReader

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
}
"""Every column there is, with its type as Spark's `simpleString` writes it."""


class MqDataSource(DataSource):
    """`format("mq")`. Options are parsed at `load()`, so a wrong one is reported there."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "mq"

    def schema(self) -> str:
        """The columns asked for by `columns` and `includeHeaders`; Spark does not ask when the user gives a schema."""
        return ", ".join(f"`{name}` {_SQL_TYPES[name]}" for name in self._options.columns)

    def reader(self, schema: StructType) -> BatchReader:
        """A reader of what the topics hold now."""
        return BatchReader(self._options, columns_of(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """A reader of what arrives."""
        if not ADMISSION_CONTROL and self._options.records_per_trigger_max is not None:
            warnings.warn("pyspark before 4.2 has no rate limit: maxOffsetsPerTrigger is ignored", stacklevel=2)
        return StreamReader(self._options, columns_of(schema))


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

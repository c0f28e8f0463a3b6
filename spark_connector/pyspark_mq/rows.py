"""What a DataFrame that is written must look like, and its Arrow batches as rows to send.

Columns are found by name, in any order; capitals and underscores do not count (`delayMs`, `delay_ms`). As in Spark's
Kafka sink, `value` must be there, and the others may be. Columns that only the server sets are passed over, so that
what was read can be written; any other column is an error: a misspelt `delayms` must never send at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_mq.encode import header_sections, sizes_of
from pyspark_mq.errors import MqError, OptionError

_BYTES = ("string", "binary")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_HEADERS = ("array<struct<key:string,value:binary>>",)

TYPES: Mapping[str, tuple[str, ...]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": _WHOLE,
    "headers": _HEADERS,
    "tag": ("string",),
    "timestamp": ("timestamp",),
    "delayMs": _WHOLE,
    "deliverAt": ("timestamp", "bigint"),
}
"""The columns that are written, with the types each may have, as Spark's `simpleString` writes them."""

PASSED_OVER = ("offset", "timestampType", "scheduleId", "messageId")
"""Columns of a read that the server sets anew."""

ROW_BYTES = 24
"""What a record takes besides key, value and headers, for deciding where to cut; in truth 7 to 40."""


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


_NAMES = {_plain(name): name for name in (*TYPES, *PASSED_OVER)}


class Column(NamedTuple):
    """A column of a DataFrame: where it is, and which of TYPES it is."""

    name: str
    column_index: int


def columns_to_write(fields: Sequence[tuple[str, str]], *, topic_given: bool) -> tuple[Column, ...]:
    """The columns to send, out of (name, type) of all columns of a DataFrame. Raises OptionError."""
    found: dict[str, int] = {}
    for index, (given, kind) in enumerate(fields):
        name = _NAMES.get(_plain(given))
        if name is None:
            raise OptionError(
                f"column {given} cannot be written: the columns are {', '.join(TYPES)}; put the others into the value, "
                "for example with .selectExpr('key', 'to_json(struct(*)) AS value')"
            )
        if name in PASSED_OVER:
            continue
        if name in found:
            raise OptionError(f"column {given} is there twice")
        if kind not in TYPES[name]:
            raise OptionError(f"column {given} is {kind}; it must be {' or '.join(TYPES[name])}: cast it")
        found[name] = index
    if "value" not in found:
        raise OptionError("there is no column value: make one, for example with to_json(struct(*)) AS value")
    if not topic_given and "topic" not in found:
        raise OptionError("no topic: give the option topic, or a column topic")
    return tuple(Column(name, index) for name, index in found.items() if name != "topic" or not topic_given)


class Rows(NamedTuple):
    """Rows of one Arrow batch for one topic, split by when they are due; either part may be empty."""

    topic: str
    now: pa.RecordBatch
    """Columns key, value, and those of sections, timestamp_ms (see encode.py) and partition that there are."""

    later: pa.RecordBatch
    """Rows with a delay, as they came, with the columns' names of TYPES."""


def rows_by_topic(batch: pa.RecordBatch, columns: Sequence[Column], topic: str | None) -> list[Rows]:
    """An Arrow batch as rows to send, in its order within each topic. Raises MqError for a row without a topic."""
    named = pa.RecordBatch.from_arrays([batch.column(c.column_index) for c in columns], names=[c.name for c in columns])
    if topic is not None:
        return [_split(topic, named)]
    topics = named["topic"].dictionary_encode()
    if topics.null_count:
        raise MqError("a row has no topic: the column topic is null; give the option topic, or filter such rows out")
    if len(topics.dictionary) == 1:
        return [_split(topics.dictionary[0].as_py(), named)]
    return [
        _split(name, named.filter(pc.equal(topics.indices, topic_index)))
        for topic_index, name in enumerate(topics.dictionary.to_pylist())
    ]


def _split(topic: str, rows: pa.RecordBatch) -> Rows:
    delayed = None
    for name in ("delayMs", "deliverAt"):
        if name in rows.schema.names:
            there = pc.is_valid(rows[name])
            delayed = there if delayed is None else pc.or_(delayed, there)
    if delayed is None:
        return Rows(topic, _ready(rows), rows.slice(0, 0))
    return Rows(topic, _ready(rows.filter(pc.invert(delayed))), rows.filter(delayed))


def _ready(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that encode.py wants."""
    there = rows.schema.names
    ready = {
        "key": rows["key"].cast(pa.binary()) if "key" in there else pa.nulls(rows.num_rows, pa.binary()),
        "value": rows["value"].cast(pa.binary()),
    }
    if "headers" in there or "tag" in there:
        try:
            ready["sections"] = header_sections(
                rows["headers"] if "headers" in there else None, rows["tag"] if "tag" in there else None, rows.num_rows
            )
        except ValueError as error:
            raise MqError(f"{error}: each header is a struct of a key and a value") from error
    if "timestamp" in there:
        ready["timestamp_ms"] = epoch_ms(rows["timestamp"])
        if ready["timestamp_ms"].null_count:
            raise MqError("a row has no timestamp: fill the column, or leave it out to have the time of the write")
    if "partition" in there:
        ready["partition"] = rows["partition"].cast(pa.int64())
    return pa.RecordBatch.from_arrays(list(ready.values()), names=list(ready))


def epoch_ms(times: pa.Array) -> pa.Array:
    """Timestamps (any unit and zone) or whole milliseconds as int64 milliseconds; nulls stay."""
    if not pa.types.is_timestamp(times.type):
        return times.cast(pa.int64())
    return times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())


def row_bytes(rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """About what each row takes in a batch, whatever its index in it. A function of the row alone."""
    sizes = np.maximum(sizes_of(rows["key"]), 0) + np.maximum(sizes_of(rows["value"]), 0) + ROW_BYTES
    return sizes + sizes_of(rows["sections"]) if "sections" in rows.schema.names else sizes

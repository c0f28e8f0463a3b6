"""What the connector is measured against: the cheapest Python data sources and sinks there can be.

bench_memory    the rows of a topic, made once a task in memory, given to Spark as Arrow
bench_null      a sink that counts Arrow batches and throws them away
bench_ticks     a stream of one row a micro-batch that makes no request
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

CHUNK_ROWS = 50_000
KEY_BYTES = 10
TOPIC = "memory"
HANDED_OVER_BYTES = 4 * 1024 * 1024
"""Values in one Arrow batch: Spark takes larger ones more slowly."""


def chunk(columns: list[str], value_bytes: int, start: int = 0) -> pa.RecordBatch:
    """CHUNK_ROWS rows as a read of a topic gives them."""
    count = CHUNK_ROWS
    octets = np.random.default_rng(start).integers(0, 256, count * value_bytes, dtype=np.uint8)
    bounds = np.arange(0, (count + 1) * value_bytes, value_bytes, dtype=np.int32)
    made = {
        "key": lambda: pa.array([b"%0*d" % (KEY_BYTES, start + n) for n in range(count)], pa.binary()),
        "value": lambda: pa.BinaryArray.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(octets)]
        ),
        "topic": lambda: pa.repeat(pa.scalar(TOPIC), count),
        "partition": lambda: pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": lambda: pa.array(np.arange(start, start + count)),
        "timestamp": lambda: pa.array(np.full(count, 1_700_000_000_000_000)).cast(pa.timestamp("us", "UTC")),
        "timestampType": lambda: pa.repeat(pa.scalar(0, pa.int32()), count),
    }
    return pa.record_batch({name: made[name]() for name in columns})


@dataclass(frozen=True)
class Rows(InputPartition):
    """How many rows a task makes."""

    count: int


class _Memory(DataSourceReader):
    def __init__(self, columns: list[str], count: int, tasks: int, value_bytes: int) -> None:
        self._columns, self._count, self._tasks, self._value_bytes = columns, count, tasks, value_bytes

    def partitions(self) -> list[Rows]:
        return [Rows(self._count // self._tasks)] * self._tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        step = min(CHUNK_ROWS, HANDED_OVER_BYTES // self._value_bytes)
        rows = chunk(self._columns, self._value_bytes).slice(0, step)
        for left in range(partition.count, 0, -step):
            yield rows.slice(0, min(left, step))


class MemorySource(DataSource):
    """Options: count, tasks, valueBytes; the columns are those of the schema."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "bench_memory"

    def reader(self, schema: StructType) -> _Memory:
        given = self._given
        return _Memory(schema.fieldNames(), int(given["count"]), int(given["tasks"]), int(given["valuebytes"]))


class _Null(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class NullSink(DataSource):
    """No options."""

    @classmethod
    def name(cls) -> str:
        return "bench_null"

    def writer(self, schema: StructType, overwrite: bool) -> _Null:
        return _Null()


class _Ticks(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, count: int) -> None:
        self._count = count

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(1)

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"n": min(start["n"] + 1, self._count)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"x"], pa.binary())})

    def commit(self, end: dict[str, int]) -> None:
        pass

    def stop(self) -> None:
        pass


class TickSource(DataSource):
    """Option: count, the micro-batches."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "bench_ticks"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> _Ticks:
        return _Ticks(int(self._given["count"]))

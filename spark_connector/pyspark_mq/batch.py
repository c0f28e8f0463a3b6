"""`spark.read.format("mq")`: a topic as a table."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_mq.catalog import Catalog
from pyspark_mq.client import Client
from pyspark_mq.errors import MqError, OptionError
from pyspark_mq.json_values import JsonValues
from pyspark_mq.offsets import (
    EARLIEST,
    LATEST,
    Earliest,
    Exact,
    Latest,
    Offsets,
    Range,
    Topics,
    clamp,
    outside,
    plan,
    resolve_end,
    resolve_start,
)
from pyspark_mq.options import Options
from pyspark_mq.reading import Task, read, report_loss


class BatchReader(DataSourceReader):
    """Reads what the topics hold between two edges, both fixed when Spark first plans the DataFrame.

    Spark keeps that plan: an action on the same DataFrame later reads the same records, and new ones are seen by
    a new `load()`.
    """

    def __init__(self, options: Options, columns: tuple[str, ...], values: JsonValues | None = None) -> None:
        if isinstance(options.starting, Latest) or _names(options.starting, LATEST):
            raise OptionError("startingOffsets=latest (-1) is for streams: a batch that begins at the end has no rows")
        if isinstance(options.ending, Earliest) or _names(options.ending, EARLIEST):
            raise OptionError(
                "endingOffsets=earliest (-2) is not legal: a batch that ends at the beginning has no rows"
            )
        if options.group is not None:
            raise OptionError("groupId is for streams: it reports how far one is, and a batch is done when it is done")
        self._options = options
        self._columns = columns
        self._values = values

    def partitions(self) -> list[Task]:
        """Look up bounds and times, and cut what lies between into tasks."""
        options = self._options
        catalog = Catalog(Client(options.endpoint), options.selection)
        topics = catalog.all()
        if not topics:
            raise MqError(f"no topic matches {options.selection}")
        times = catalog.times()
        start = resolve_start(
            options.starting or Earliest(), topics, times, no_match_is_latest=options.no_match_is_latest
        )
        end = resolve_end(options.ending or Latest(), topics, times)
        return [Task(ranges) for ranges in plan(self._ranges(topics, start, end), options.split)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor; see `reading.read`."""
        return read(self._options, self._columns, partition, self._values)

    def _ranges(self, topics: Topics, start: Offsets, end: Offsets) -> Iterator[Range]:
        for topic, state in topics.items():
            for partition, bounds in sorted(state.partitions.items()):
                wanted = Range(topic, partition, start[topic][partition], end[topic][partition], state.epoch)
                if wanted.start > wanted.end:
                    raise OptionError(
                        f"{topic}/{partition} would begin at {wanted.start}, after its end at {wanted.end}; "
                        "compare the starting and ending options"
                    )
                kept, lost = clamp(wanted, bounds)
                if lost:
                    report_loss(lost, fail=self._options.fail_on_data_loss)
                yield from outside(kept, bounds.gaps)


def _names(edge: object, special: int) -> bool:
    return isinstance(edge, Exact) and any(special in partitions.values() for partitions in edge.offsets.values())

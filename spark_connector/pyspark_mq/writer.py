"""`df.write.format("mq")` and `writeStream.format("mq")`: a topic as a sink.

Which process does what: Spark makes a writer on the driver, for a stream one for each micro-batch, and sends copies to
the executors, where `write` runs once for each attempt of a task; `commit` and `abort` run on the driver again, on yet
another copy. Nothing has to be committed: what a task has sent is durable, and a repeat of it stores nothing twice.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_mq.client import Client
from pyspark_mq.compat import DataSourceStreamArrowWriter
from pyspark_mq.errors import MqError
from pyspark_mq.identity import EPOCH_MAX, Identity, Keyed, Numbered
from pyspark_mq.options import WriteOptions
from pyspark_mq.rows import Column
from pyspark_mq.sending import Counts, partition_count, write

log = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task did."""

    counts: Counts


class BatchWriter(DataSourceArrowWriter):
    """One batch job. Its id is made here, so that all attempts of its tasks share it."""

    def __init__(self, options: WriteOptions, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns
        self._job = uuid.uuid4().hex
        self._started_ms = time.time_ns() // 1_000_000
        if options.topic is not None:
            partition_count(Client(options.endpoint), options.topic)  # an unknown topic is reported at once

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of one task; durable on return."""
        task = _task()
        options = self._options
        identity: Identity
        if options.write_id is None:
            identity = Keyed(self._job, task.partitionId(), self._started_ms)
        else:
            identity = Numbered(_named(options.write_id, options), task.partitionId(), options.write_epoch)
        return _write(options, self._columns, iterator, identity)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        log.info("wrote %s", _summed(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed. Topics have no transactions: what its tasks have sent stays."""
        hint = "" if self._options.write_id else "; with the option writeId a new run completes it instead"
        log.warning("a write failed. Stored before that: %s, by tasks that ended well%s", _summed(messages), hint)


class StreamWriter(DataSourceStreamArrowWriter):
    """One stream, known by the id that its checkpoint holds."""

    def __init__(self, options: WriteOptions, columns: tuple[Column, ...]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of one task of a micro-batch; durable on return."""
        task = _task()
        query, epoch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query is None or epoch is None:
            raise MqError("Spark does not say which query and which batch this task is of")
        if int(epoch) > EPOCH_MAX:
            raise MqError(f"batch {epoch} of a query; {EPOCH_MAX} is the last: begin a new checkpoint")
        name = _named(self._options.write_id or query, self._options)
        return _write(self._options, self._columns, iterator, Numbered(name, task.partitionId(), int(epoch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a micro-batch are done."""
        log.info("batch %d: wrote %s", batchId, _summed(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch failed; its repeat after a restart completes it."""
        log.warning("batch %d failed; a restart completes it. So far: %s", batchId, _summed(messages))


def _named(name: str, options: WriteOptions) -> str:
    """Rows in another order are another write: else turning `sortRows` on could not get past what was torn."""
    return f"{name}~sorted" if options.sort_rows else name


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "write runs in a task"
    return task


def _write(
    options: WriteOptions, columns: tuple[Column, ...], iterator: Iterator[pa.RecordBatch], identity: Identity
) -> Written:
    new_client: Callable[[], Client] = lambda: Client(options.endpoint)  # noqa: E731
    counts = write(
        iterator, columns, topic=options.topic, identity=identity, new_client=new_client, sort_rows=options.sort_rows
    )
    return Written(counts)


def _summed(messages: list[WriterCommitMessage | None]) -> str:
    counts = sum((message.counts for message in messages if isinstance(message, Written)), Counts())
    return f"{counts.stored} records" + (f", {counts.repeated} were there before" if counts.repeated else "")

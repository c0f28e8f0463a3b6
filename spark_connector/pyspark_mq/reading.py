"""What an executor does: read the ranges of one task and hand them to Spark as Arrow batches.

One request is under way while the bytes of the one before are decoded. A range is read to its end or the task fails;
records that have vanished meanwhile (retention, a deleted topic) follow `failOnDataLoss`.

Invariants
    R1  every record of the task's ranges comes out exactly once, in offset order within a partition
    R2  a request goes on where the last whole batch ended, so a retry never repeats a record
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_mq.client import Client
from pyspark_mq.decode import Batches, decode, find_batches
from pyspark_mq.errors import DataLossError, MalformedBody, NotFound, OutOfRange
from pyspark_mq.json_values import JsonValues
from pyspark_mq.offsets import Range
from pyspark_mq.options import Options

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""How long the thread that decodes keeps the interpreter while the one that fetches wants it. A body arrives in dozens
of pieces; with Python's 5 ms for each it would take longer to arrive than to decode."""

T = TypeVar("T")


@dataclass(frozen=True)
class Task(InputPartition):
    """The ranges that one Spark task reads, one after the other."""

    ranges: tuple[Range, ...]


class _Piece(NamedTuple):
    """Batches that hold records of a range from `offset` on."""

    range: Range
    offset: int
    batches: Batches


def read(
    options: Options, columns: tuple[str, ...], task: InputPartition, values: JsonValues | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a task, as Arrow batches with these columns, or with those that `values` makes of them.

    Raises DataLossError when records of the task are gone and `fail_on_data_loss` is set, and the client's errors.
    """
    if not isinstance(task, Task):  # Spark's stand-in for an empty plan
        return
    for piece in _ahead(_pieces(Client(options.endpoint), options, task.ranges)):
        decoded = decode(
            piece.batches,
            topic=piece.range.topic,
            partition=piece.range.partition,
            epoch=piece.range.epoch,
            start=piece.offset,
            end=piece.range.end,
            columns=columns,
        )
        yield from decoded if values is None else (values.to_rows(rows, str(piece.range)) for rows in decoded)


def report_loss(message: str, *, fail: bool) -> None:
    """Records are gone: raise DataLossError, or only warn and go on with what is left."""
    if fail:
        raise DataLossError(
            f"{message}. They may have been removed by retention, or the topic was deleted and created again. "
            'To go on with what is left, set .option("failOnDataLoss", "false").'
        )
    log.warning("%s; going on with what is left (failOnDataLoss=false)", message)


def _pieces(client: Client, options: Options, ranges: Iterable[Range]) -> Iterator[_Piece]:
    """All batches of the ranges, in order."""
    for wanted in ranges:
        offset = wanted.start
        while offset < wanted.end:
            try:
                fetched = client.fetch(
                    wanted.topic, wanted.partition, offset, end_offset=wanted.end, max_bytes=options.fetch_bytes
                )
            except NotFound:
                _lost(options, wanted, offset, "the partition no longer exists")
                break
            except OutOfRange as error:
                _lost(options, wanted, offset, f"the server has [{error.beginning_offset}, {error.end_offset})")
                if error.beginning_offset <= offset:
                    break
                offset = error.beginning_offset
                continue
            if fetched.epoch != wanted.epoch:
                _lost(options, wanted, offset, "the topic was deleted and created again")
                break
            if fetched.body:
                batches = find_batches(fetched.body)
                next_offset = batches.next_offset
                yield _Piece(wanted, offset, batches)
            else:
                next_offset = fetched.next_offset
            if next_offset <= offset:
                if fetched.body or fetched.bounds.end >= wanted.end:
                    raise MalformedBody(f"the server answered a read of {wanted} from {offset} on with nothing new")
                _lost(options, wanted, offset, f"the server has [{fetched.bounds.beginning}, {fetched.bounds.end})")
                break
            offset = next_offset


def _lost(options: Options, wanted: Range, offset: int, reason: str) -> None:
    message = f"records [{offset}, {wanted.end}) of {wanted.topic}/{wanted.partition} cannot be read: {reason}"
    report_loss(message, fail=options.fail_on_data_loss)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in another thread while the one before is in use."""
    maker = ThreadPoolExecutor(1, thread_name_prefix="mq-fetch")
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(min(interval_s, SWITCH_INTERVAL_S))
    try:
        pending = maker.submit(next, items, None)
        while (item := pending.result()) is not None:
            pending = maker.submit(next, items, None)
            yield item
    finally:  # a LIMIT ends a task early: do not wait for a request whose answer is not wanted
        maker.shutdown(wait=False, cancel_futures=True)
        sys.setswitchinterval(interval_s)

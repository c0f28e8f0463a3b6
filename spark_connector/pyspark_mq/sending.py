"""What an executor does with the rows of a task: cut them into batches, and send each so that a repeat is known.

Rows go to lanes, one for each partition: the row's own `partition`, else CRC-32 of its key modulo the number of
partitions (as the server does it), else in turn, STRIDE rows at a time. A lane is cut into batches by the rows alone,
so a task that is run again with the same rows in the same order sends the same batches again, under the same names
(identity.py).

Batches of one lane are sent one after the other, so a partition has the rows in their order; up to IN_FLIGHT lanes
at a time. What is sent is kept until it is answered, and no more is read from Spark meanwhile.
"""

from __future__ import annotations

import json
import time
import zlib
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_mq.client import Client
from pyspark_mq.encode import encode
from pyspark_mq.errors import MqError, NotFound, NotRepeatable, ServerError
from pyspark_mq.identity import Identity
from pyspark_mq.rows import Column, Rows, epoch_ms, row_bytes, rows_by_topic

Ints = npt.NDArray[np.int64]

BATCH_BYTES = 1024 * 1024
"""A batch ends with the row that reaches this size; no batch is larger by more than one row."""

BATCH_RECORDS = 10_000
"""No batch has more records."""

STRIDE = BATCH_RECORDS
"""Rows without a key that go to one partition before it is the next one's turn."""

DELAYED_RECORDS = 5_000
"""Delayed rows of one request."""

DELAYED_BYTES = 4 * 1024 * 1024
"""A request with delayed rows ends with the row that reaches this size, before base64."""

IN_FLIGHT = 4

_T = TypeVar("_T")


class Counts(NamedTuple):
    """Records of a task: those stored by it, and those an earlier attempt had stored."""

    stored: int = 0
    repeated: int = 0

    def __add__(self, other: object) -> Counts:
        assert isinstance(other, Counts)
        return Counts(self.stored + other.stored, self.repeated + other.repeated)


def write(
    batches: Iterable[pa.RecordBatch],
    columns: tuple[Column, ...],
    *,
    topic: str | None,
    identity: Identity,
    new_client: Callable[[], Client],
    sort_rows: bool = False,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Counts:
    """Send all rows of a task; they are durable on return. `topic` is for all rows, without a column of that name.

    With `sort_rows` all of them are held in memory and sent in an order that depends on nothing but their content.
    Raises NotRepeatable, and the client's errors; then some of the rows may be stored, and a repeat completes them.
    """
    found: Iterator[Rows] = (
        rows for batch in batches if batch.num_rows for rows in rows_by_topic(batch, columns, topic)
    )
    if sort_rows:
        found = _sorted(found)
    with _Outbox(identity, new_client, now_ms) as outbox:
        for rows in found:
            outbox.add(rows)
        return outbox.finish()


def _sorted(found: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows, those of each topic in the order of their content."""
    by_topic: dict[str, list[Rows]] = {}
    for rows in found:
        by_topic.setdefault(rows.topic, []).append(rows)
    for topic, parts in sorted(by_topic.items()):
        nothing = parts[0]
        for batch in _sorted_batches([part.now for part in parts]):
            yield nothing._replace(topic=topic, now=batch, later=nothing.later.slice(0, 0))
        for batch in _sorted_batches([part.later for part in parts]):
            yield nothing._replace(topic=topic, now=nothing.now.slice(0, 0), later=batch)


def _sorted_batches(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    by = [(name, "ascending") for name in batches[0].schema.names if name != "headers"]
    yield from pa.Table.from_batches(batches).sort_by(by).to_batches(max_chunksize=BATCH_RECORDS)


class _Lane:
    """Rows that wait to be sent to one partition, and the last batch of it that is under way."""

    def __init__(self) -> None:
        self.number = 0
        self.digest = 0
        self.is_known = True  # to the server, the last batch that it answered
        self.under_way: Future[None] | None = None
        self._pieces: list[pa.RecordBatch] = []
        self._bytes = 0
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows; every batch that is full now."""
        ends = np.cumsum(row_bytes(rows))
        start, sent_bytes = 0, 0
        while start < rows.num_rows:
            full = int(np.searchsorted(ends, sent_bytes + BATCH_BYTES - self._bytes)) + 1
            end = min(full, start + BATCH_RECORDS - self._count, rows.num_rows)
            self._pieces.append(rows.slice(start, end - start))
            self._bytes += int(ends[end - 1]) - sent_bytes
            self._count += end - start
            start, sent_bytes = end, int(ends[end - 1])
            if self._bytes >= BATCH_BYTES or self._count >= BATCH_RECORDS:
                yield self.rest()

    def rest(self) -> pa.RecordBatch:
        """What has been taken and not yet given out; without a row when there is nothing."""
        pieces, self._pieces, self._bytes, self._count = self._pieces, [], 0, 0
        return pa.concat_batches(pieces) if pieces else _NOTHING


_NOTHING = pa.record_batch({"key": pa.array([], pa.binary())})


class _Delayed:
    """Rows of one topic that are to be delivered later, as JSON objects."""

    def __init__(self) -> None:
        self.number = 0
        self.records: list[dict[str, object]] = []
        self.bytes = 0


class _Outbox:
    """Cuts and sends the rows of one task. Use it in a `with`: it has threads."""

    def __init__(self, identity: Identity, new_client: Callable[[], Client], now_ms: Callable[[], int]) -> None:
        self._identity = identity
        self._now_ms = now_ms
        self._clients: SimpleQueue[Client] = SimpleQueue()
        for _ in range(IN_FLIGHT):
            self._clients.put(new_client())
        self._threads = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="mq-send")
        self._under_way: deque[Future[None]] = deque()
        self._partition_counts: dict[str, int] = {}
        self._keyless_counts: dict[str, int] = {}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._delayed: dict[str, _Delayed] = {}
        self._counts: deque[Counts] = deque()  # filled by the threads

    def __enter__(self) -> _Outbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)  # after an error, answers are of no interest

    def add(self, rows: Rows) -> None:
        """Take rows; send what is full."""
        if rows.now.num_rows:
            for partition, part in self._by_partition(rows.topic, rows.now):
                lane = self._lanes.setdefault((rows.topic, partition), _Lane())
                for batch in lane.add(part):
                    self._send(rows.topic, partition, lane, batch)
        if rows.later.num_rows:
            self._add_delayed(rows.topic, rows.later)

    def finish(self) -> Counts:
        """Send the rest, and wait for all answers."""
        for (topic, partition), lane in self._lanes.items():
            batch = lane.rest()
            if batch.num_rows:
                self._send(topic, partition, lane, batch)
        for topic, delayed in self._delayed.items():
            self._send_delayed(topic, delayed)
        while self._under_way:
            self._under_way.popleft().result()
        for (topic, partition), lane in self._lanes.items():
            if not lane.is_known:  # if it were, then all before it: its digest is of all rows of the lane
                raise _not_repeatable(f"{topic}/{partition}", _PASSED)
        return sum(self._counts, Counts())

    # --- which partition

    def _by_partition(self, topic: str, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each partition, in their order."""
        count = self._partition_count(topic)
        partitions = self._partitions(topic, rows, count)
        names = [name for name in rows.schema.names if name != "partition"]
        rows = rows.select(names)
        first = int(partitions[0])
        if (partitions == first).all():
            yield first, rows
            return
        order = np.argsort(partitions, kind="stable")
        rows = rows.take(pa.array(order))
        bounds = np.searchsorted(partitions[order], np.arange(count + 1))
        for partition, (start, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            if start < end:
                yield partition, rows.slice(start, end - start)

    def _partitions(self, topic: str, rows: pa.RecordBatch, count: int) -> Ints:
        chosen = np.zeros(rows.num_rows, dtype=np.int64)
        free = np.ones(rows.num_rows, dtype=np.bool_)
        if "partition" in rows.schema.names:
            given = rows["partition"]
            free = given.is_null().to_numpy(zero_copy_only=False)
            chosen = given.fill_null(0).to_numpy(zero_copy_only=False).copy()
            wrong = chosen[(chosen < 0) | (chosen >= count)]
            if wrong.size:
                raise MqError(f"topic {topic} has partitions 0 to {count - 1}; a row says partition {wrong[0]}")
        keys = rows["key"]
        if keys.null_count < len(keys):
            crcs = [-1 if key is None else zlib.crc32(key) for key in keys.to_pylist()]
            by_key = np.array(crcs, dtype=np.int64)
            keyed = free & (by_key >= 0)
            chosen[keyed] = by_key[keyed] % count
            free &= ~keyed
        keyless_count = int(free.sum())
        if keyless_count:
            before = self._keyless_counts.get(topic, 0)
            turns = self._identity.first_turn + (before + np.arange(keyless_count)) // STRIDE
            chosen[free] = turns % count
            self._keyless_counts[topic] = before + keyless_count
        return chosen

    def _partition_count(self, topic: str) -> int:
        if topic not in self._partition_counts:
            self._partition_counts[topic] = self._with_client(lambda client: partition_count(client, topic))
        return self._partition_counts[topic]

    # --- sending

    def _send(self, topic: str, partition: int, lane: _Lane, rows: pa.RecordBatch) -> None:
        encoded = encode(rows)
        if encoded.base_timestamp_ms is not None:
            lane.digest = zlib.crc32(encoded.base_timestamp_ms.to_bytes(8, "big", signed=True), lane.digest)
        lane.digest = zlib.crc32(encoded.records, lane.digest)
        headers = self._identity.of_batch(lane.number, lane.digest)
        lane.number += 1
        stamp_ms = self._identity.stamp_ms
        body = encoded.sealed(self._now_ms() if stamp_ms is None else stamp_ms)

        def send(client: Client) -> Counts:
            is_repeat, lane.is_known = client.send_batch(topic, partition, body, headers)
            return Counts(0, encoded.record_count) if is_repeat else Counts(encoded.record_count)

        if lane.under_way is not None:
            lane.under_way.result()
        lane.under_way = self._start(f"{topic}/{partition}", send)

    def _add_delayed(self, topic: str, rows: pa.RecordBatch) -> None:
        delayed = self._delayed.setdefault(topic, _Delayed())
        for record, size in _as_json(rows):
            delayed.records.append(record)
            delayed.bytes += size
            if len(delayed.records) >= DELAYED_RECORDS or delayed.bytes >= DELAYED_BYTES:
                self._send_delayed(topic, delayed)

    def _send_delayed(self, topic: str, delayed: _Delayed) -> None:
        if not delayed.records:
            return
        count = len(delayed.records)
        body = json.dumps({"records": delayed.records}, separators=(",", ":")).encode()
        headers = self._identity.of_delayed(delayed.number)
        delayed.number += 1
        delayed.records, delayed.bytes = [], 0

        def send(client: Client) -> Counts:
            repeated = client.send_json(topic, body, headers)
            return Counts(count - repeated, repeated)

        self._start(topic, send)

    def _start(self, place: str, send: Callable[[Client], Counts]) -> Future[None]:
        def run() -> None:
            try:
                self._counts.append(self._with_client(send))
            except ServerError as error:
                if error.error_code not in _NOT_REPEATABLE:
                    raise
                raise _not_repeatable(place, str(error)) from error

        while len(self._under_way) >= IN_FLIGHT:
            self._under_way.popleft().result()
        started = self._threads.submit(run)
        self._under_way.append(started)
        return started

    def _with_client(self, use: Callable[[Client], _T]) -> _T:
        client = self._clients.get()
        try:
            return use(client)
        finally:
            self._clients.put(client)


_PASSED = "the last batch has a number below all that it remembers: of fewer rows than before, or of an earlier epoch"
_NOT_REPEATABLE = (40956, 42254)  # a number that was passed over; a key with another body


def _not_repeatable(place: str, said: str) -> NotRepeatable:
    return NotRepeatable(
        f"{place}: an earlier attempt of this write sent other rows, or the same in another order. Nothing was taken "
        "for stored that is not. Rows that went through a shuffle may come in another order each time: set "
        "sortRows=true. To go on now, set another writeId: all rows of this write are then sent again, and those that "
        f"the earlier attempt stored are there twice. The server said: {said}"
    )


def partition_count(client: Client, topic: str) -> int:
    """How many partitions a topic has. An unknown one is an MqError that names those there are."""
    try:
        return len(client.topic(topic).partitions)
    except NotFound:
        known = ", ".join(sorted(client.topic_names())) or "(none)"
        raise MqError(f"the server has no topic {topic}: create it first; its topics are {known}") from None


def _as_json(rows: pa.RecordBatch) -> Iterator[tuple[dict[str, object], int]]:
    """Delayed rows as the server's JSON takes them, each with its size before base64."""
    columns = {name: rows[name] for name in rows.schema.names if name != "topic"}
    for name in ("timestamp", "deliverAt"):
        if name in columns:
            columns[name] = epoch_ms(columns[name])
    for name in ("key", "value"):
        if name in columns:
            columns[name] = columns[name].cast(pa.binary())
    fields = [_JSON_FIELDS[name] for name in columns]
    for values in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        record: dict[str, object] = {}
        size = 0
        for field, value in zip(fields, values, strict=True):
            if value is None:
                continue
            if isinstance(value, bytes):
                size += len(value)
                value = b64encode(value).decode()
            elif field == "headers":
                size += sum(len(header["key"]) + len(header["value"] or b"") for header in value)
                value = [_json_header(header["key"], header["value"]) for header in value]
            record[field] = value
        if "delay_ms" in record and "deliver_at" in record:
            raise MqError("a row has both a delayMs and a deliverAt: leave one of them null")
        yield record, size


def _json_header(key: str, value: bytes | None) -> dict[str, str]:
    return {"key": key} if value is None else {"key": key, "value": b64encode(value).decode()}


_JSON_FIELDS = {
    "key": "key",
    "value": "value",
    "partition": "partition",
    "headers": "headers",
    "tag": "tag",
    "timestamp": "timestamp",
    "delayMs": "delay_ms",
    "deliverAt": "deliver_at",
}

"""Sending: records that are sent in one turn of the event loop go together, in commands bounded by count and bytes;
each caller gets the receipts of its own records. What waits or is on its way is bounded: beyond that `QueueFull`.

A record is encoded when it is sent: it may be changed afterwards, and what JSON cannot say is told to its sender alone.

Invariants
    P1  the records of one call travel in one command: all of them are stored, or none
    P2  nothing is stored twice. What may have been stored is sent again only if the server knows it again: by the key
    of
        its command (an idempotent client gives each command one), or because every record has a `msg_id`. Anything else
        fails with ConnectionLost
    P3  sends to one topic are stored in the order they were made, but for those that are refused and sent again
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from mq.clock import Clock
from mq.connection import Connection
from mq.errors import MqError, QueueFull, Refused, Undecodable
from mq.frames import Frame, write_binary, write_text
from mq.message import Receipt
from mq.protocol import Command, Outgoing
from mq.record import Encoded

log = logging.getLogger("mq")

Acks: TypeAlias = Literal["flushed", "written"]
R = TypeVar("R")

COMMAND_RECORDS_MAX = 1_000
"""Of a command that has several calls. More make the server's turn longer, and the whole no faster."""
COMMAND_BYTES_MAX = 1024 * 1024
"""The same in bytes."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of records that may wait or be on their way."""
ENVELOPE_BYTES = 4096
"""Room in a frame for what is not records."""
RETRY_S = 30.0
"""How long a send that the server cannot take for now (full disk, overload, rate limit) is tried again."""
RETRY_AFTER_S = 0.5

STORE_STOPPED = 50350
"""What was sent may have been stored."""
TOO_MANY = 42950
"""Among others: the server remembers as many ids of sends as it can."""
OF_ALL = frozenset({401, 403, 404, 40101, 40301, 40401})
"""Refusals that are about the whole command: no such topic, no such right."""

_GUILTY = re.compile(r"records\[(\d+)\]")


class Sending(asyncio.Future[R], Coroutine[Any, None, R], Generic[R]):
    """The receipts to come. It may be awaited like a coroutine, also by `create_task` and task groups; but it was sent
    whether it is awaited or not, and `gather` over thousands of them costs no task for each."""

    __slots__ = ("_steps", "is_many", "records", "size_bytes")
    records: Sequence[Encoded]
    size_bytes: int
    is_many: bool

    def send(self, value: Any, /) -> None:
        """One step, for the task that runs this as a coroutine."""
        return self._run().send(value)  # type: ignore[no-any-return]

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> None:
        """An error, or a cancellation, for the task that runs this as a coroutine."""
        return self._run().throw(typ if val is None else val)  # type: ignore[no-any-return]

    def close(self) -> None:
        """The task that ran this has ended."""

    def _run(self) -> Any:
        try:
            return self._steps
        except AttributeError:
            self._steps: Any = self.__await__()
            return self._steps


class _Batch:
    """Calls that go together in one command. `key`: by what the server knows a repeat. `raw`: it is of raw batches, and
    the partition they go to."""

    __slots__ = ("acks", "bytes_max", "calls", "count", "has_parts", "key", "raw", "size_bytes", "topic", "until_s")

    def __init__(self, topic: str, acks: Acks | None, has_parts: bool, raw: tuple[int | None] | None = None) -> None:
        self.topic = topic
        self.acks = acks
        self.has_parts = has_parts
        self.raw = raw
        self.calls: list[Sending[Any]] = []
        self.count = 0
        self.size_bytes = 0
        self.bytes_max = COMMAND_BYTES_MAX
        self.key: str | None = None
        self.until_s = 0.0

    def add(self, call: Sending[Any]) -> None:
        """One more call."""
        self.calls.append(call)
        self.count += len(call.records)
        self.size_bytes += call.size_bytes

    def only(self, calls: Iterable[Sending[Any]]) -> _Batch:
        """A batch of these calls of it."""
        some = _Batch(self.topic, self.acks, self.has_parts, self.raw)
        for call in calls:
            some.add(call)
        return some

    def has_ids(self) -> bool:
        """Whether every record has a `msg_id`."""
        return all(record.has_id for call in self.calls for record in call.records)

    @property
    def is_repeatable(self) -> bool:
        """P2."""
        return self.key is not None or self.has_ids()


class Sender:
    """The sends of one client."""

    def __init__(
        self, connection: Connection, clock: Clock, *, idempotent: bool, pending_max: int, retry_s: float = RETRY_S
    ) -> None:
        self._conversation = connection.conversation
        self._clock = clock
        self._idempotent = idempotent
        self._pending_max = pending_max
        self._retry_s = retry_s
        self._loop = asyncio.get_running_loop()
        self._filling: dict[str, _Batch] = {}
        self._pending_count = 0
        self._pending_bytes = 0
        self._passing_count = 0
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._prefix = secrets.token_hex(8)
        self._next_key = 0
        self._is_told_ids_are_full = False

    # ----------------------------------------------------------------------------------------------- for the caller

    def send(self, topic: str, record: Encoded, acks: Acks | None) -> Sending[Receipt]:
        """Send one record. Raises QueueFull, Closed, MqError at once; the rest is the future's."""
        sending: Sending[Receipt] = Sending(loop=self._loop)
        sending.records = (record,)
        sending.is_many = False
        sending.size_bytes = size_bytes = record.size_bytes if record.parts else len(record.text) + 1
        batch = self._filling.get(topic)
        if (
            batch is not None
            and batch.acks == acks
            and not batch.has_parts
            and not record.parts
            and batch.count < COMMAND_RECORDS_MAX
            and batch.size_bytes + size_bytes <= batch.bytes_max
            and self._pending_count < self._pending_max
            and self._pending_bytes + size_bytes <= PENDING_BYTES_MAX
        ):  # What `_take` does, in half its time: the usual send goes with others of its turn.
            batch.calls.append(sending)
            batch.count += 1
            batch.size_bytes += size_bytes
            self._pending_count += 1
            self._pending_bytes += size_bytes
        else:
            self._take(topic, sending, bool(record.parts), acks)
        return sending

    def send_many(self, topic: str, records: Sequence[Encoded], acks: Acks | None) -> Sending[list[Receipt]]:
        """Send records that are stored together, or not at all (P1)."""
        if len(records) > (limit := self._conversation.limits.max_records):
            raise MqError(f"send_many: {len(records)} records; the server takes {limit} at a time: send several lists")
        has_parts = any(record.parts for record in records)
        if has_parts:
            records = [record if record.parts else _with_parts(record) for record in records]
        sending = self._many(records)
        if not records:
            sending.set_result([])
        else:
            self._take(topic, sending, has_parts, acks)
        return sending

    def send_raw(self, topic: str, batches: bytes, partition: int | None, acks: Acks | None) -> Sending[list[Receipt]]:
        """Send Kafka RecordBatches (v2), end to end, as they are; one receipt for each batch."""
        sending = self._many([Encoded(b"", (batches,), False)])
        self._check(sending)
        batch = _Batch(topic, acks, has_parts=True, raw=(partition,))
        self._add(batch, sending)
        self._depart(batch)
        return sending

    def passes(self, count: int) -> None:
        """So many records go through middleware, and count until `passed`. Raises QueueFull."""
        if self._passing_count and self._passing_count + count > self._pending_max:
            raise self._queue_full(self._passing_count)
        self._passing_count += count

    def passed(self, count: int) -> None:
        """What became of so many of them is known."""
        self._passing_count -= count
        self._tell_waiters()

    @property
    def is_full(self) -> bool:
        """Whether a send would raise QueueFull."""
        most = max(self._pending_count, self._passing_count)
        return most >= self._pending_max or self._pending_bytes >= PENDING_BYTES_MAX

    async def room(self) -> None:
        """Return when another send would be taken."""
        await self._until(lambda: not self.is_full)

    async def flush(self) -> None:
        """Return when everything that was sent is answered."""
        self._depart_all()
        await self._until(lambda: self._pending_count == self._passing_count == 0)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            changed: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((is_so, changed))
            await changed

    def _many(self, records: Sequence[Encoded]) -> Sending[list[Receipt]]:
        sending: Sending[list[Receipt]] = Sending(loop=self._loop)
        sending.is_many = True
        sending.records = records
        sending.size_bytes = sum(record.size_bytes for record in records)
        return sending

    # --------------------------------------------------------------------------------------------------- gathering

    def _take(self, topic: str, sending: Sending[Any], has_parts: bool, acks: Acks | None) -> None:
        self._check(sending)
        batch = self._filling.get(topic)
        if batch is not None and (
            batch.count + len(sending.records) > COMMAND_RECORDS_MAX
            or batch.size_bytes + sending.size_bytes > batch.bytes_max
            or batch.has_parts != has_parts
            or batch.acks != acks
        ):
            self._depart(self._filling.pop(topic))
            batch = None
        if batch is None:
            if not self._filling:
                self._loop.call_soon(self._depart_all)
            batch = self._filling[topic] = _Batch(topic, acks, has_parts)
            batch.bytes_max = min(COMMAND_BYTES_MAX, self._conversation.limits.max_frame - ENVELOPE_BYTES)
        self._add(batch, sending)

    def _add(self, batch: _Batch, sending: Sending[Any]) -> None:
        batch.add(sending)
        self._pending_count += len(sending.records)
        self._pending_bytes += sending.size_bytes

    def _check(self, sending: Sending[Any]) -> None:
        if self._conversation.error is not None:
            raise self._conversation.error
        size_bytes, count = sending.size_bytes, len(sending.records)
        # A frame that is too large would end the connection, and everything else on it.
        if size_bytes > (limit := self._conversation.limits.max_frame - ENVELOPE_BYTES):
            raise MqError(f"{size_bytes} bytes in one send; the server takes {limit}")
        if self._pending_count and (
            self._pending_count + count > self._pending_max or self._pending_bytes + size_bytes > PENDING_BYTES_MAX
        ):
            raise self._queue_full(self._pending_count)

    def _queue_full(self, count: int) -> QueueFull:
        return QueueFull(
            f"{count} records ({self._pending_bytes} bytes) wait to be stored; the limit is {self._pending_max}. "
            "Wait with `await client.room()`, or await the sends"
        )

    def _depart_all(self) -> None:
        filling, self._filling = self._filling, {}
        for batch in filling.values():
            self._depart(batch)

    # ------------------------------------------------------------------------------------------------ on their way

    def _depart(self, batch: _Batch) -> None:
        """Send a batch. What was cancelled in the meantime stays here."""
        if any(call.cancelled() for call in batch.calls):
            self._release(batch.only(call for call in batch.calls if call.cancelled()))
            batch = batch.only(call for call in batch.calls if not call.cancelled())
        if not batch.calls:
            return
        if self._idempotent and not batch.has_ids():
            self._next_key += 1
            batch.key = f"{self._prefix}-{self._next_key}"
        batch.until_s = self._clock.monotonic_s() + self._retry_s
        self._transmit(batch)

    def _transmit(self, batch: _Batch) -> None:
        self._conversation.submit(
            Command(
                partial(_frame, batch),
                partial(self._stored, batch),
                partial(self._failed, batch),
                repeatable=batch.is_repeatable,
            )
        )

    def _stored(self, batch: _Batch, answer: Frame) -> None:
        receipts = answer.offsets
        if answer.acks != "flushed":
            for receipt in receipts:
                msgspec.structs.force_setattr(receipt, "acks", answer.acks)
        if batch.raw is None and len(receipts) != batch.count:
            raise Undecodable(f"{len(receipts)} receipts for {batch.count} records")
        at = 0
        for call in batch.calls:  # the loop of the sending hot path
            if call.is_many:
                end = len(receipts) if batch.raw is not None else at + len(call.records)
                if not call.done():
                    call.set_result(receipts[at:end])
                at = end
            else:
                if not call.done():  # its caller may have been cancelled
                    call.set_result(receipts[at])
                at += 1
        self._release(batch)

    def _failed(self, batch: _Batch, error: Exception) -> None:
        if isinstance(error, Refused):
            if self._goes_again(batch, error):
                return
            innocent = _innocent(batch, error)
            if innocent:
                kept = {id(call) for calls in innocent for call in calls}
                again = [batch.only(calls) for calls in innocent]
                batch = batch.only(call for call in batch.calls if id(call) not in kept)
                for some in again:
                    self._depart(some)
        for call in batch.calls:
            if not call.done():
                call.set_exception(error)
        self._release(batch)

    def _goes_again(self, batch: _Batch, error: Refused) -> bool:
        """After a refusal, of which nothing was stored: whether the batch is sent again as it is."""
        if error.code == TOO_MANY and batch.key is not None:
            # The server can remember no more ids. Sends without one go on; where a connection is lost they fail.
            if not self._is_told_ids_are_full:
                self._is_told_ids_are_full = True
                log.warning(
                    "the server cannot remember more sends (store.dedup_ids_max); they go on without protection against"
                    " a lost connection, and raise ConnectionLost then"
                )
            batch.key = None
            self._transmit(batch)
            return True
        if not error.retriable or self._clock.monotonic_s() >= batch.until_s:
            return False
        if error.code == STORE_STOPPED and not batch.is_repeatable:
            return False
        after_s = RETRY_AFTER_S if error.retry_after_ms is None else error.retry_after_ms / 1000
        self._clock.later(after_s, partial(self._transmit, batch))
        return True

    def _release(self, batch: _Batch) -> None:
        """The calls of a batch are settled."""
        self._pending_count -= batch.count
        self._pending_bytes -= batch.size_bytes
        self._tell_waiters()

    def _tell_waiters(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for is_so, changed in waiters:
                if is_so() and not changed.done():
                    changed.set_result(None)
                elif not changed.done():
                    self._waiters.append((is_so, changed))


def _frame(batch: _Batch, id_: int) -> Outgoing:
    command: dict[str, object] = {"id": id_, "op": "produce", "topic": batch.topic}
    if batch.acks is not None:
        command["acks"] = batch.acks
    if batch.key is not None:
        command["idempotency_key"] = batch.key
    parts = (
        [part for call in batch.calls for record in call.records for part in record.parts] if batch.has_parts else []
    )
    if batch.raw is not None:
        command["format"] = "batch"
        if batch.raw[0] is not None:
            command["partition"] = batch.raw[0]
        return write_binary(write_text(command), parts), True
    records = b",".join([record.text for call in batch.calls for record in call.records])
    text = b'%b,"records":[%b]}' % (write_text(command)[:-1], records)
    return (write_binary(text, parts), True) if batch.has_parts else (text, False)


def _innocent(batch: _Batch, error: Refused) -> list[list[Sending[Any]]]:
    """One bad record refuses all that travelled with it. Which calls are to be sent again, and in which company: those
    that the refusal does not name, or, if it names none, each by itself."""
    if len(batch.calls) == 1 or error.code in OF_ALL or error.retriable:
        return []
    guilty: set[int] = set()
    for rule in error.validation_errors:
        if match := _GUILTY.match(rule):
            guilty.add(_call_of(batch, int(match[1])))
    if not guilty:
        return [[call] for call in batch.calls]
    innocent = [call for index, call in enumerate(batch.calls) if index not in guilty]
    return [innocent] if innocent else []


def _with_parts(record: Encoded) -> Encoded:
    """A record of a text frame as one of a binary frame: its value moves to the payload."""
    fields: dict[str, Any] = msgspec.json.decode(record.text, type=dict[str, msgspec.Raw])
    value = fields.pop("value", None)
    if value is None:
        return record
    body = bytes(value)
    fields["value_len"] = len(body)
    return Encoded(write_text(fields), (body,), record.has_id)


def _call_of(batch: _Batch, record_index: int) -> int:
    """Which call the record of this number is of."""
    for index, call in enumerate(batch.calls):
        record_index -= len(call.records)
        if record_index < 0:
            return index
    return len(batch.calls) - 1

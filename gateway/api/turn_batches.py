"""Records that many callers send in one turn of the event loop, as few batches.

All records of a turn that go one way (`Way`) are one batch, one append and one future. Each caller is known by what it
waits with; its record has the offset of its place in the batch.

Invariants
    B1  a record is checked before it joins a batch (`Producer.batch_partition`): one bad record fails no other
    B2  a batch has BATCH_RECORDS_MAX records and BATCH_BYTES_MAX bytes at most; the next record begins another
    B3  records without a key of one turn and topic go to one partition, as those of one request do; where the next
        sync waits for more senders, those turns count as one
    B4  records of one way are stored in the order they came, those of two ways if `end` was called in between
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Generic, TypeGuard, TypeVar

from gateway.api.producer import Begun, Producer
from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.codec.records import ProduceRecord
from store.errors import StoreError
from store.limits import KiB
from store.types import Acks, Appended

BATCH_RECORDS_MAX = 256
BATCH_BYTES_MAX = 256 * KiB
"""Records, and bytes of requests, of one batch: to answer so many takes a millisecond."""

WAITED_S = 1.0
"""After which an answer that a broker cannot be reached is not asked for again: those that take long are of clusters
that do not answer for ten seconds."""

Way = tuple[str, int | None, bool, Acks | None]
"""Topic, partition (None: any), whether keys and values are JSON, level."""

Waiting = TypeVar("Waiting")


class TurnBatch(Generic[Waiting]):
    """Records of one turn that go one way, and who waits for each."""

    __slots__ = ("answers", "records", "size_bytes", "started_s", "waiting")

    def __init__(self) -> None:
        self.records: list[ProduceRecord] = []
        self.waiting: list[Waiting] = []
        self.size_bytes = 0
        self.answers: tuple[int, list[bytes]] | None = None  # made ahead, if the first record gets this offset
        self.started_s = perf_counter()  # the others have come in the same turn


class TurnBatches(Generic[Waiting]):
    """The batches of this turn. What it calls must not raise."""

    def __init__(
        self,
        producer: Producer,
        *,
        answer: Callable[[TurnBatch[Waiting], Begun], None],
        give_back: Callable[[Sequence[Waiting]], None],
        meanwhile: Callable[[Sequence[tuple[TurnBatch[Waiting], Begun]]], None] | None = None,
    ) -> None:
        """`answer` is called when a batch's outcome is there, `give_back` with callers whose batch could not begin:
        nothing was stored, and each may try by itself. `meanwhile`: while the disk works (`Producer.write_held`)."""
        self._producer = producer
        self._answer = answer
        self._give_back = give_back
        self._meanwhile = meanwhile
        self._batches: dict[Way, TurnBatch[Waiting]] = {}
        self.number = 0
        """Of the turn: what was added when it was another one has begun."""

    def add(self, way: Way, record: ProduceRecord, waiting: Waiting, size_bytes: int) -> None:
        """A record, as `Producer.batch_partition` has found its way."""
        batch = self._batches.get(way)
        if batch is None or len(batch.records) >= BATCH_RECORDS_MAX or batch.size_bytes + size_bytes > BATCH_BYTES_MAX:
            batch = self._next(way, batch)
        batch.records.append(record)
        batch.waiting.append(waiting)
        batch.size_bytes += size_bytes

    def end(self) -> None:
        """Begin all batches there are."""
        batches, self._batches = self._batches, {}
        self.number += 1
        all_begun: list[tuple[TurnBatch[Waiting], Begun]] = []
        self._producer.hold_writes()
        try:
            for way, batch in batches.items():
                if (begun := self._begin(way, batch)) is not None:
                    all_begun.append((batch, begun))
        finally:
            caller_count = sum([len(batch.waiting) for batch, _ in all_begun])
            meanwhile = None if self._meanwhile is None else partial(self._meanwhile, all_begun)
            self._producer.write_held(meanwhile, caller_count=caller_count)
        for batch, begun in all_begun:
            once_done(begun.outcome, partial(self._done, batch, begun))

    def _next(self, way: Way, full: TurnBatch[Waiting] | None) -> TurnBatch[Waiting]:
        """A batch for those that go this way; the one before is full, if there was one in this turn."""
        batches = self._batches
        if not batches:
            asyncio.get_running_loop().call_soon(
                self._end_turn
            )  # behind all that has arrived: the loop reads every socket before
        if full is not None and (begun := self._begin(way, full)) is not None:
            begun.outcome.add_done_callback(partial(self._done, full, begun))
        batch: TurnBatch[Waiting] = TurnBatch()
        batches[way] = batch
        return batch

    def _end_turn(self) -> None:
        if self._batches and not self._producer.when_gathered(self._end_turn):  # else more may come for the same
            self.end()

    def _begin(self, way: Way, batch: TurnBatch[Waiting]) -> Begun | None:
        """None: it is refused, and given back."""
        topic, partition, json_values, acks = way
        try:
            return self._producer.begin(topic, batch.records, partition=partition, json_values=json_values, acks=acks)
        except Exception:  # each meets the same error by itself, and is answered
            self._give_back(batch.waiting)
            return None

    def _done(self, batch: TurnBatch[Waiting], begun: Begun, _: asyncio.Future[list[Appended]]) -> None:
        self._answer(batch, begun)


def once_done(
    outcome: asyncio.Future[list[Appended]], answer: Callable[[asyncio.Future[list[Appended]]], None]
) -> None:
    """Call `answer`, now if it can be: two turns of the event loop sooner than by a callback."""
    if outcome.done():
        answer(outcome)
    else:
        outcome.add_done_callback(answer)


def is_to_be_told(error: BaseException, started_s: float) -> TypeGuard[StoreError]:
    """Whether an append's error is the answer. Else each record of it may be sent by itself: the same error is met
    again, or another broker found. What may be stored at another node would be stored twice, and a broker that could
    not be reached for WAITED_S is not waited for again."""
    is_late = perf_counter() - started_s >= WAITED_S
    return isinstance(error, AnswerLost) or (isinstance(error, BrokerUnreachable) and is_late)

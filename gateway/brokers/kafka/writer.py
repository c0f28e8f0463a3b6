"""The appends of one tenure to a Kafka partition: at most IN_FLIGHT_MAX batches are on their way, and the next one is
sent when the first of these is stored. When one is not, no other follows: all that are on their way are waited for, and
what was not stored is sent again first, the same bytes in the same order. So Kafka stores each batch once: it knows
that many batches of a producer.

    waiting ──sent behind each other──> sent ──stored, in order──> acknowledged
                                         │ └──lost, or of the moment──> sent again, with growing pauses
                                         └──another may be the owner──> in doubt: nothing is acknowledged any more

Invariants
    W1  what is acknowledged lies without a gap behind all that was acknowledged before (fencing.py)
    W2  a batch gets its numbers and its offset when it is first sent, and keeps them; what was never sent has none.
        Number and offset go together: a copy of a batch at another offset is none of the tenure (broker.py)
    W3  a caller who is told that nothing was stored had a batch that was never sent
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.brokers.kafka.codes import NEVER, Outcome, Stored, Verdict, judge
from gateway.brokers.kafka.fencing import Sent, Tenure
from gateway.brokers.kafka.port import Kafka
from store import record_batch
from store.errors import MalformedBatch, OffsetMoved, SealedQueue, StoreError
from store.limits import MiB
from store.types import Acks, Append, Appended, Buffer

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 5
"""Batches of a producer of which Kafka recognises repeats."""

IN_FLIGHT_BYTES_MAX = 4 * MiB
"""Of these batches; a larger one goes alone."""

GIVE_UP_S = 10.0
"""How long a caller waits for a cluster that does not answer."""

GIVE_UP_LOOK_S = 0.5
"""How often callers are checked for having waited that long, also while an answer of Kafka is awaited: a leader whose
replicas are away takes 8 s for each try."""

DRAIN_S = 1.0
"""How long a move waits for what is on its way."""

PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
SEQUENCES = 1 << 31
"""Numbers of a producer's records; behind the last one they begin anew."""

FENCE_HEADER = "mq-fence"


FENCES = 2
"""Batches of an epoch before the first one of a user's: what seals the tenure before, and what opens its own."""


def fence_batch(producer_id: int, epoch: int, time_ms: int, *, opening: bytes | None = None) -> bytes:
    """The batch that says that an epoch of a producer has begun, or, with a value, that its tenure is open: a record
    that is none of a user's."""
    batch = record_batch.encode([record_batch.Record(None, opening, time_ms, [(FENCE_HEADER, None)])])
    return record_batch.numbered(batch, producer_id, epoch, 0 if opening is None else 1)


@dataclass(slots=True, eq=False)
class _Call:
    """One batch of a caller. `sent`, `parts` (of the batch as it is sent): since it was first sent. `done`: what its
    caller is told, alone in a list, who does not wait for ever; `settled`: what became of it."""

    append: Append
    done: asyncio.Future[list[Appended]]
    since_s: float
    settled: asyncio.Future[Appended] | None = None
    sent: Sent | None = None
    parts: tuple[Buffer, ...] = ()
    stored: Stored | None = None


class Writer:
    """See the module. `on_stored` gets the offset behind all that is acknowledged; `on_doubt` is called once."""

    NEVER: ClassVar[frozenset[int]] = NEVER
    """Codes of batches that are not sent again."""

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        partition: int,
        *,
        producer_id: int,
        epoch: int,
        start: int,
        on_acknowledged: Callable[[Append, Appended], None],
        on_stored: Callable[[int], None],
        on_doubt: Callable[[], None],
        on_freed: Callable[[int], None],
    ) -> None:
        """`start`: the offset behind the fences of this producer and epoch. `on_acknowledged` is called before anyone
        hears of a batch, also when its caller waits no more. `on_freed` gets the bytes of each batch that
        is held no more."""
        self._kafka = kafka
        self._topic, self._partition = topic, partition
        self._producer_id, self._epoch = producer_id, epoch
        self._tenure: Tenure[_Call] = Tenure(start)
        self._sequence = FENCES
        self._next_offset = start
        self._on_acknowledged = on_acknowledged
        self._on_stored, self._on_doubt, self._on_freed = on_stored, on_doubt, on_freed
        self._waiting: deque[_Call] = deque()
        self._sent: list[_Call] = []  # not known to be stored
        self._stored: list[_Call] = []  # behind one that is not known to be
        self._running: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.end = start
        """The offset behind the last record that is acknowledged."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the partition has to be taken over anew."""
        return self._tenure.is_in_doubt

    @property
    def is_serving(self) -> bool:
        """Whether appends are taken."""
        return not self._is_closed and not self.is_in_doubt

    def begin(self, append: Append, settled: asyncio.Future[Appended] | None = None) -> asyncio.Future[list[Appended]]:
        """Append a batch behind those before. The answer, alone in a list as it is a broker's to one batch, may be that
        it is not known what became of it, and comes soon; `settled` is told when that is known, or the tenure is over.
        Raises SealedQueue."""
        if not self.is_serving:
            raise SealedQueue(f"partition {self._partition} of {self._topic} is being taken over")
        loop = asyncio.get_running_loop()
        call = _Call(append, loop.create_future(), loop.time(), settled)
        self._waiting.append(call)
        if self._looking is None:
            self._looking = loop.call_later(GIVE_UP_LOOK_S, self._give_up)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name=f"appends to {self._topic}/{self._partition}")
        return call.done

    def refuse(self) -> None:
        """Take no more."""
        self._is_closed = True
        self._refuse_waiting()

    async def stop(self) -> None:
        """As `refuse`, and wait for what is on its way, but not long: what is not acknowledged then never is."""
        self.refuse()
        if self._running is not None and not self._running.done():
            await asyncio.wait([self._running], timeout=DRAIN_S)

    async def close(self) -> None:
        """As `stop`, at once."""
        self.refuse()
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait([self._running])
        self._lose_sent()

    # ---- sending ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._send_all()
        except Exception:
            log.exception("appends have stopped topic=%s partition=%d", self._topic, self._partition)
            self._tenure.is_in_doubt = True
        if self.is_in_doubt:
            self._refuse_waiting()
            self._lose_sent()
            self._on_doubt()

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # who else sends in this turn comes along
        pause_s = PAUSE_S
        while not self.is_in_doubt and (self._sent or self._waiting):
            if await self._send_some():
                pause_s = PAUSE_S
                continue
            if not self.is_in_doubt:
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _send_some(self) -> bool:
        """Send what was not stored again; else what waits, as long as all of it is stored. Whether all was."""
        if (lane := await self._kafka.lane(self._topic, self._partition)) is None:
            return False
        again = list(self._sent)
        under_way = [lane.send(*call.parts) for call in again]
        try:
            while True:
                if not again:
                    under_way += [lane.send(*call.parts) for call in self._take()]
                if not under_way:
                    return True
                await under_way[0]
                answered = list(takewhile(lambda one: one.done(), under_way))
                if not all(isinstance(one.result(), Stored) for one in answered):
                    answered = under_way.copy()
                    await asyncio.wait(answered)
                del under_way[: len(answered)]
                if not self._judged([one.result() for one in answered]):
                    return False
        finally:
            for one in under_way:  # nobody waits for them any more
                one.cancel()

    async def _pause(self, pause_s: float) -> None:
        """Before what was not stored is sent again."""
        await asyncio.sleep(pause_s)

    def _take(self) -> list[_Call]:
        """Number the batches that may be sent now."""
        taken = []
        size = sum(len(call.append.batch) for call in self._sent)
        while self._waiting and len(self._sent) < IN_FLIGHT_MAX:
            append = self._waiting[0].append
            if self._sent and size + len(append.batch) > IN_FLIGHT_BYTES_MAX:
                break
            call = self._waiting.popleft()
            if append.expected_offset not in (None, self._next_offset):
                assert append.expected_offset is not None
                self._fail(call, OffsetMoved(append.expected_offset, self._next_offset))
                continue
            size += len(append.batch)
            call.sent = self._tenure.send(append.record_count)
            head = record_batch.numbered_head(append.batch, self._producer_id, self._epoch, self._sequence)
            call.parts = head, memoryview(append.batch)[record_batch.HEADER_BYTES :]
            self._sequence = (self._sequence + append.record_count) % SEQUENCES
            self._next_offset += append.record_count
            self._sent.append(call)
            taken.append(call)
        return taken

    def _judged(self, outcomes: list[Outcome]) -> bool:
        """Acknowledge what may be acknowledged, of the first that were sent; whether all of these are stored."""
        left: list[_Call] = []
        ready: list[_Call] = []
        is_over = False
        judged = judge(outcomes, self.NEVER)
        for call, outcome, verdict in zip(self._sent[: len(outcomes)], outcomes, judged, strict=True):
            if isinstance(verdict, Stored):
                assert call.sent is not None
                call.stored = verdict
                self._stored.append(call)
                ready += self._tenure.stored(call.sent, verdict.base_offset, call)
                if self.is_in_doubt:
                    log.error(
                        "a batch lies where it should not: others have written to the partition, or Kafka has lost"
                        " records; it is taken over anew topic=%s partition=%d offset=%d expected=%d",
                        self._topic, self._partition, verdict.base_offset, call.sent.expected_offset,
                    )  # fmt: skip
                continue
            if verdict is Verdict.NEVER:
                log.error("Kafka refuses a batch topic=%s partition=%d code=%s", self._topic, self._partition, outcome)
                self._fail(call, self._refusal(outcome))
                is_over = True
                continue
            is_over = is_over or verdict is Verdict.DOUBT
            left.append(call)
        self._acknowledge(ready)
        self._sent[: len(outcomes)] = left
        if is_over:
            self._tenure.is_in_doubt = True
        return not left and not is_over and not self.is_in_doubt

    def _refusal(self, code: Outcome) -> StoreError:
        """What its caller is told of a batch that Kafka does not take."""
        return MalformedBatch(f"Kafka refuses this batch with error {code}; nothing was stored")

    def _acknowledge(self, ready: list[_Call]) -> None:
        self._stored = [call for call in self._stored if call not in ready]
        for call in ready:
            assert call.stored is not None
            offset, time_ms = call.stored
            self.end = offset + call.append.record_count
            self._on_freed(len(call.append.batch))
            time_ms = time_ms if time_ms >= 0 else record_batch.max_timestamp_ms(call.append.batch)
            appended = Appended(offset, offset, time_ms, Acks.FLUSHED)
            self._on_acknowledged(call.append, appended)
            if call.settled is not None and not call.settled.done():
                call.settled.set_result(appended)
            if not call.done.done():
                call.done.set_result([appended])
        if ready:
            self._on_stored(self.end)

    def _give_up(self) -> None:
        """Answer callers who have waited for too long, and check again later. What was sent is sent on: it may be
        stored already, or is, behind one of which that is not known."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() - GIVE_UP_S
        for call in (*self._stored, *self._sent):
            if call.since_s < until_s and not call.done.done():
                call.done.set_exception(AnswerLost(f"Kafka does not answer for topic {self._topic}"))
        while self._waiting and self._waiting[0].since_s < until_s:
            self._fail(self._waiting.popleft(), BrokerUnreachable(f"Kafka does not answer for topic {self._topic}"))
        is_needed = self._stored or self._sent or self._waiting
        self._looking = loop.call_later(GIVE_UP_LOOK_S, self._give_up) if is_needed else None

    def _refuse_waiting(self) -> None:
        for call in self._waiting:
            self._fail(call, SealedQueue(f"partition {self._partition} of {self._topic} is being taken over"))
        self._waiting.clear()

    def _lose_sent(self) -> None:
        for call in (*self._stored, *self._sent):
            self._fail(call, AnswerLost(f"partition {self._partition} of {self._topic} was taken over meanwhile"))
        self._stored, self._sent = [], []

    def _fail(self, call: _Call, error: StoreError) -> None:
        self._on_freed(len(call.append.batch))
        if call.settled is not None and not call.settled.done():
            call.settled.set_exception(error)
        if not call.done.done():
            call.done.set_exception(error)

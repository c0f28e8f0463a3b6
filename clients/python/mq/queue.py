"""Queues: each message goes to a free member of the group, on lease, and is acked, given back or rejected by itself.
Leases are extended for as long as their messages are held here, those that wait included, up to `lease_max`.

What is settled in one turn of the event loop in the same way goes in one command; each caller gets its own result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, TypeVar

from mq.clock import Clock, Timer
from mq.connection import Connection
from mq.errors import LEASE_OVER, LeaseLost, MqError, Refused
from mq.frames import Frame, Result, State
from mq.leases import RECEIPTS_PER_COMMAND, RETRY_S, Leases
from mq.message import Message
from mq.read import Start, start_field
from mq.send import Sending
from mq.subscription import Held, Subscription, What
from mq.values import Decode

T = TypeVar("T")

PREFETCH = 100
"""Messages that are received ahead; each that waits here is on lease."""


class _Gathered:
    """Messages that are settled in the same way. `answered`: the server's word on them has come, or none will."""

    def __init__(self, fields: dict[str, object], answered: asyncio.Future[None]) -> None:
        self.fields = fields
        self.answered = answered
        self.messages: list[Message[Any]] = []
        self.waiting: list[Sending[None]] = []


class Queue(Subscription[T]):
    """Messages on lease: settle each with `ack`, `nack` or `reject`. A message whose lease is over is not given."""

    mode: ClassVar[str] = "queue"

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        sub: str,
        what: What,
        decode: Decode,
        *,
        group: str,
        lease_s: float,
        lease_max_s: float,
        prefetch: int | None,
        start: Start | None,
        on_lost: Callable[[Message[Any]], object] | None,
        on_over: Callable[[Any], object],
    ) -> None:
        self._start = None if start is None else start_field(start)
        credit = min(prefetch or PREFETCH, connection.conversation.limits.max_credit)
        super().__init__(connection, clock, sub, what, decode, credit=credit, on_over=on_over)
        self._group = group
        self._on_lost = on_lost
        self._leases = Leases(lease_s, lease_max_s)
        self._gathering: dict[str, _Gathered] = {}
        self._unanswered: set[asyncio.Future[None]] = set()
        self._timer: Timer | None = None
        self._items: Iterator[Message[Any]] = iter(())
        self._is_stopped = False
        self._gives_back = False
        self._unsaid = 0
        """By how much the credit that the server knows is less than the window."""

    @property
    def held_count(self) -> int:
        """Messages that were received and are not settled."""
        return len(self._leases)

    async def __aiter__(self) -> AsyncIterator[Message[T]]:
        self._begin_reading()
        try:
            while (message := await self.get()) is not None:
                yield message
        finally:
            await self.aclose()

    def stop(self) -> None:
        """Take no more messages: `get` returns None from now on. What is held can still be settled, until `aclose`."""
        self._is_paused = self._is_stopped = True
        self._conversation.tell({"op": "pause", "sub": self.sub})
        self._wake()

    def give_back(self) -> None:
        """Stop, and give back what waits here and what is still on its way: it is delivered again at once."""
        self.stop()
        self._gives_back = True
        waiting = [*self._items, *(message for held in self._inbox for message in held.items)]
        self._items = iter(())
        self._inbox.clear()
        self._release(waiting)

    def widen(self, count: int) -> None:
        """Let so many more messages be here at a time."""
        self._window.size += count
        self._unsaid += count
        if self._is_attached and self._conversation.state == "open":  # else the next connection says it
            self._permit()

    async def get(self) -> Message[T] | None:
        """The next message; None when the queue is closed. Several may wait at a time. Raises what ended the queue."""
        while not self._is_stopped:
            for message in self._items:
                if not self._is_out(message):
                    return message
            if self._inbox and not self._is_closing:
                self._items = iter(self._inbox.popleft().items)
                continue
            if self._error is not None:
                raise self._error
            if self._is_over or self._is_closing:
                return None
            try:
                await self._changed()
            except asyncio.CancelledError:
                self._wake(1)  # it may have been for this one that it was woken
                raise
        return None

    def settle(self, op: str, message: Message[Any], fields: dict[str, object]) -> Sending[None]:
        """Send it with what else is settled in this turn."""
        settled: Sending[None] = Sending(loop=self._loop)
        if message.is_lost or self._is_over or message.receipt is None:
            _fail(settled, self._cannot_settle(op, message))
            return settled
        if op != "extend":
            self._leases.discard(message)
            message.is_settled = True
        key = op if not fields else f"{op} {fields}"
        gathered = self._gathering.get(key)
        if gathered is None or len(gathered.messages) >= RECEIPTS_PER_COMMAND:
            if not self._gathering:
                self._loop.call_soon(self._settle_gathered)
            elif gathered is not None:
                self._send(gathered)
            gathered = self._gathering[key] = _Gathered({"op": op, **fields}, self._loop.create_future())
        gathered.messages.append(message)
        gathered.waiting.append(settled)
        return settled

    def _permit(self) -> None:
        unsaid, self._unsaid = self._unsaid, 0
        if unsaid:
            self._conversation.tell({"op": "permit", "sub": self.sub, "messages": unsaid})

    def _release(self, messages: Iterable[Message[Any]]) -> None:
        for message in messages:
            if not message.is_lost:
                self.settle("nack", message, {"delay_ms": 0})

    def _cannot_settle(self, op: str, message: Message[Any]) -> MqError:
        if message.is_lost:
            return LeaseLost(f"{op}: the lease of {message.id} is over: it was, or will be, delivered again")
        if message.receipt is None:
            return MqError(f"{op}: {message.id} has no receipt")
        return self._as_mq_error() or MqError(f"{op}: the queue is closed; {message.id} comes again")

    def _as_mq_error(self) -> MqError | None:
        return self._error if isinstance(self._error, MqError) else None

    # ------------------------------------------------------------------------------------------------------ settling

    def _settle_gathered(self) -> None:
        gathering, self._gathering = self._gathering, {}
        for gathered in gathering.values():
            self._send(gathered)

    def _send(self, gathered: _Gathered) -> None:
        receipts = [message.receipt for message in gathered.messages]
        self._unanswered.add(gathered.answered)
        self._conversation.request(
            {**gathered.fields, "sub": self.sub, "receipts": receipts},
            partial(self._settled, gathered),
            partial(self._not_settled, gathered),
        )

    def _settled(self, gathered: _Gathered, answer: Frame) -> None:
        for message, waiter, result in zip(gathered.messages, gathered.waiting, answer.results, strict=True):
            if result.ok:
                if result.new_receipt is not None:
                    self._extended(message, result, gathered.fields["invisible_ms"])
                if not waiter.done():
                    waiter.set_result(None)
            else:
                _fail(waiter, self._error_of(message, result))
        self._done(gathered)

    def _not_settled(self, gathered: _Gathered, error: Exception) -> None:
        for waiter in gathered.waiting:
            _fail(waiter, error)
        self._done(gathered)

    def _done(self, gathered: _Gathered) -> None:
        self._unanswered.discard(gathered.answered)
        gathered.answered.set_result(None)

    def _error_of(self, message: Message[Any], result: Result) -> Refused:
        if result.error_code != LEASE_OVER:
            return Refused(result.error, result.error_code)
        self._lost(message)
        return LeaseLost(f"{message.id}: {result.error}")

    async def _settle_all(self) -> None:
        self._settle_gathered()
        # Not for the callers' futures: who stopped waiting for an ack has cancelled his.
        if self._unanswered:
            await asyncio.wait(self._unanswered)

    # -------------------------------------------------------------------------------------------------------- leases

    def _is_out(self, message: Message[Any]) -> bool:
        """Whether the lease is over: the message comes again, here or elsewhere."""
        if message.is_lost:
            return True
        until_ms = message.visible_until_ms
        if until_ms is None or until_ms > self._clock.now_ms() + self._conversation.clock_ahead_ms:
            return False
        self._lost(message)
        return True

    def _extend(self) -> None:
        """Extend all that is held; each keeps its new receipt."""
        self._timer = None
        if self._is_over:
            return
        messages = self._leases.to_extend(self._clock.monotonic_s())
        if messages and not self._conversation.is_sending:
            self._extend_after(RETRY_S)
            return
        lease_ms = int(self._leases.lease_s * 1000)
        for at in range(0, len(messages), RECEIPTS_PER_COMMAND):
            some = messages[at : at + RECEIPTS_PER_COMMAND]
            self._conversation.request(
                {
                    "op": "extend",
                    "sub": self.sub,
                    "receipts": [message.receipt for message in some],
                    "invisible_ms": lease_ms,
                },
                partial(self._all_extended, some, lease_ms),
                lambda error: self._extend_after(RETRY_S),
                repeatable=False,
            )
        if len(self._leases):
            self._extend_after(self._leases.interval_s)

    def _extend_after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.later(delay_s, self._extend)

    def _all_extended(self, messages: list[Message[Any]], lease_ms: int, answer: Frame) -> None:
        for message, result in zip(messages, answer.results, strict=True):
            if message.is_settled:
                continue
            if result.ok:
                self._extended(message, result, lease_ms)
            elif result.error_code == LEASE_OVER:
                self._lost(message)
            else:
                self._extend_after(RETRY_S)

    def _extended(self, message: Message[Any], result: Result, lease_ms: object) -> None:
        message.receipt = result.new_receipt or message.receipt
        if isinstance(lease_ms, int):
            message.visible_until_ms = self._clock.now_ms() + self._conversation.clock_ahead_ms + lease_ms

    def _lost(self, message: Message[Any]) -> None:
        self._leases.discard(message)
        if not message.is_lost:
            message.is_lost = True
            self._call(self._on_lost, message)

    # ----------------------------------------------------------------------------------------------- for the connection

    def _command(self) -> dict[str, object]:
        conversation = self._conversation
        if self._clock.monotonic_s() - conversation.lost_at_s > conversation.grace_s:
            # The session is over, and its leases with it; those of a server that was restarted are still ours. What is
            # being worked on is told by the next extension.
            self._forget(held.items for held in self._inbox)
            self._inbox.clear()
        self._unsaid = 0
        return {
            "group": self._group,
            "start": self._start,
            "credit": self._window.size,
            "invisible_ms": int(self._leases.lease_s * 1000),
        }

    def _subscribed(self, answer: Frame) -> None:
        self._permit()

    def _kept(self, state: State) -> None:
        """Messages of frames that came stay leased, under the receipts they have."""
        self._permit()

    def _take_in(self, frame: Frame) -> None:
        messages = frame.messages
        if self._is_over or not messages:
            return
        for message in messages:
            message._source = self
        self._leases.add(messages, self._clock.monotonic_s())
        if self._timer is None:
            self._extend_after(self._leases.interval_s)
        if self._gives_back:
            self._release(messages)
            return
        self._inbox.append(Held(messages, None, 0, len(messages)))
        self._wake(len(messages))

    def _forget(self, frames: Iterable[Iterable[Message[Any]]]) -> None:
        for messages in frames:
            for message in messages:
                self._lost(message)

    def _finish(self, error: Exception | None) -> None:
        super()._finish(error)
        self._items = iter(())
        self._leases.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _told(self, frame: Frame) -> None:
        """Topics of a pattern that come and go."""


def _fail(waiter: Sending[None], error: Exception) -> None:
    """Settle with an error that need not be retrieved: the message comes again."""
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()

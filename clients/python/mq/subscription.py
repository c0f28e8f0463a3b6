"""What all three ways to consume have in common: a subscription over all connections, frames in, messages out.

    reader   no group; offsets are kept here, and after a lost session it goes on from there    mq/read.py
    stream   partitions of a group; what the consumer is done with is committed                  mq/stream.py
    queue    single messages on lease, settled one by one                                        mq/queue.py

A message is *given* when the loop gets it, and *done* when the loop asks for the next one.

Invariants
    S1  a slow consumer has at most its credit waiting here, and slows no other on the connection
    S2  reader, stream: a message is given at most once as long as its partition stays here: over lost connections, lost
        sessions and restarts of the server
    S3  stream: what is committed is done
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from mq.clock import Clock
from mq.connection import Connection
from mq.credit import Window
from mq.errors import Closed, ConnectionLost, MqError, Refused, Undecodable
from mq.frames import Frame, State
from mq.message import Message
from mq.progress import Progress
from mq.values import Body, Decode

log = logging.getLogger("mq")

T = TypeVar("T")

RETRY_S = 1.0
"""Before a subscription that was refused for now is tried again."""


class What(NamedTuple):
    """What to consume: names, or a pattern over whole names; with `tags`, only records with one of these."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    tags: tuple[str, ...] | None = None
    queue: str | None = None
    """Of the topics, only this light queue; `room/*`: all whose names begin so."""

    def fields(self) -> dict[str, object]:
        """As `subscribe` takes them."""
        fields: dict[str, object] = {}
        if self.pattern is not None:
            fields["pattern"] = self.pattern
        else:
            fields["topics"] = list(self.topics)
        if self.tags is not None:
            fields["filter"] = "tag:" + "||".join(self.tags)
        if self.queue is not None:
            fields["queue"] = self.queue
        return fields


class Held:
    """A frame that waits for the consumer, or that it is at. `progress`: reader and stream, where all items are of one
    partition. `end`: the offset behind it. `cost`: what it cost of the credit."""

    __slots__ = ("cost", "end", "is_dropped", "is_void", "items", "progress")

    def __init__(self, items: Sequence[Any], progress: Progress | None, end: int, cost: int) -> None:
        self.items = items
        self.progress = progress
        self.end = end
        self.cost = cost
        self.is_dropped = False
        """The rest of it is not to be given."""
        self.is_void = False
        """Nor does it count what was: the partition goes on elsewhere now."""


class Subscription(Generic[T]):
    """One subscription. Iterate over it, or over `batches()`; leaving the loop closes it."""

    mode: ClassVar[str]

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        sub: str,
        what: What,
        decode: Decode,
        *,
        credit: int,
        on_over: Callable[[Any], object],
    ) -> None:
        self.sub = sub
        self.seen = 0
        self.decode: Callable[[Body], Any] = decode
        self._connection = connection
        self._conversation = connection.conversation
        self._clock = clock
        self._what = what
        self._window = Window(credit)
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Held] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._is_attached = False
        """This connection knows the subscription."""
        self._attempt = 0
        self._is_paused = False
        self._is_read = False
        self._is_closing = False
        self._is_over = False
        self._error: Exception | None = None
        self._closed: asyncio.Task[None] | None = None
        # Later in this turn, so that what the caller still says about it counts.
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if not self._is_closing:
            self._conversation.follow(self)

    # ----------------------------------------------------------------------------------------------- for the consumer

    async def __aenter__(self) -> Self:
        await self.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[Message[T]]:
        self._begin_reading()
        try:
            while (held := await self._next()) is not None:
                for message in held.items:  # the loop of the receiving hot path
                    self._last = message
                    yield message
                    if held.is_dropped:
                        break
        finally:
            await self.aclose()

    async def batches(self) -> AsyncIterator[Sequence[Message[T]]]:
        """The messages as they come, a frame at a time: less work for each than one by one."""
        self._begin_reading()
        try:
            while (held := await self._next()) is not None:
                self._last = held.items[-1]
                self._is_whole = True
                yield held.items
                self._is_whole = False
        finally:
            await self.aclose()

    _last: Any = None  # the message in hand
    _is_whole = False  # it is not one message that is in hand, but its whole frame

    async def ready(self) -> None:
        """Return once the server has accepted the subscription. Raises Refused or Closed if it never does."""
        await asyncio.shield(self._ready)

    async def pause(self) -> None:
        """Receive no more until `resume`; what is on its way still comes."""
        self._is_paused = True
        await self._ask({"op": "pause"})

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._is_paused = False
        await self._ask({"op": "resume"})

    async def aclose(self) -> None:
        """Settle what is done, give back what is not, and end the subscription."""
        if self._closed is None:
            self._is_closing = True
            self._wake()
            self._closed = self._loop.create_task(self._shut())
        await asyncio.shield(self._closed)

    def _begin_reading(self) -> None:
        if self._is_read:
            raise MqError("this subscription is being read by another loop: make one for each")
        self._is_read = True

    async def _next(self) -> Held | None:
        """The next frame; the consumer is done with the one before. None at the end. Raises what ended it."""
        self._finish_hand()
        while not self._inbox or self._is_closing:
            if self._error is not None:
                raise self._error
            if self._is_over or self._is_closing:
                return None
            await self._changed()
        held = self._inbox.popleft()
        self._take_in_hand(held)
        return held

    # ----------------------------------------------------------------------------------------------- for the connection

    def attach(self, state: State | None) -> None:
        """There is a new connection."""
        self._attempt += 1
        self._is_attached = False
        if state is not None:
            self._is_attached = True
            if state.paused != self._is_paused:
                self._conversation.tell({"op": "pause" if self._is_paused else "resume", "sub": self.sub})
            self._kept(state)
            self._accept()
        else:
            self.seen = 0
            fields = {"op": "subscribe", "sub": self.sub, "mode": self.mode, **self._what.fields(), **self._command()}
            self._conversation.request(
                {name: value for name, value in fields.items() if value is not None},
                self._answered, partial(self._not_subscribed, self._attempt), repeatable=False,
            )  # fmt: skip

    def push(self, frame: Frame) -> None:
        """A frame of the subscription."""
        if frame.op in ("messages", "batch"):
            # A frame that is missing must not be passed over in silence.
            if frame.seq > self.seen + 1:
                raise Undecodable(f"frame {frame.seq} of a subscription came after frame {self.seen}")
            if frame.seq == self.seen + 1:
                self.seen += 1
                self._take_in(frame)
        else:
            self._told(frame)

    def ended(self, error: Exception) -> None:
        """No frame will follow."""
        self._finish(None if isinstance(error, Closed) and error.code == 1000 else error)

    def _answered(self, answer: Frame) -> None:
        self._is_attached = True
        if self._is_paused:
            self._conversation.tell({"op": "pause", "sub": self.sub})
        self._subscribed(answer)
        self._accept()

    def _accept(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _not_subscribed(self, attempt: int, error: Exception) -> None:
        if isinstance(error, ConnectionLost) or self._is_over:
            return  # the next connection attaches again
        if isinstance(error, Refused) and error.retriable:
            after_s = RETRY_S if error.retry_after_ms is None else error.retry_after_ms / 1000
            self._clock.later(after_s, partial(self._attach_again, attempt))
            return
        self._conversation.followers.pop(self.sub, None)
        self._finish(error)

    def _attach_again(self, attempt: int) -> None:
        if not self._is_over and attempt == self._attempt and self._conversation.is_sending:
            self.attach(None)

    # ------------------------------------------------------------------------------------------------- of each mode

    @abstractmethod
    def _command(self) -> dict[str, object]:
        """The mode's own fields of `subscribe`; None: left out. The session is a new one."""

    def _subscribed(self, answer: Frame) -> None:
        """The subscription is new."""

    def _kept(self, state: State) -> None:
        """The session was resumed: this is what the server has of the subscription."""

    def _told(self, frame: Frame) -> None:
        """A push that is no messages."""

    @abstractmethod
    def _take_in(self, frame: Frame) -> None:
        """Messages."""

    def _take_in_hand(self, held: Held) -> None:
        """The consumer gets this frame now."""

    def _finish_hand(self) -> None:
        """The consumer has asked for more: it is done with what it had."""

    async def _settle_all(self) -> None:
        """Before the end: tell the server what is done."""

    # ------------------------------------------------------------------------------------------------------ the end

    async def _shut(self) -> None:
        if self._is_over:
            return
        if self._conversation.state == "open":
            await quietly(self._settle_all())
        if self._is_over:
            return
        is_to_tell = self._conversation.leave(self)
        self._finish(None)
        if is_to_tell:
            await quietly(self._ask({"op": "unsubscribe"}, repeatable=False))

    def _finish(self, error: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._error = error
        # A reader still gets what has come; the others could not settle it, and after aclose() it is not wanted.
        if error is None or self.mode != "reader":
            self._inbox.clear()
        if not self._ready.done():
            self._ready.set_exception(error or Closed("the subscription was closed"))
            self._ready.exception()  # the iterating task gets the error there
        self._wake()
        self._on_over(self)

    async def _changed(self) -> None:
        """Wait for a frame, or for the end."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self, count: int | None = None) -> None:
        """Wake so many of those who wait; all of them without a count."""
        left = len(self._waiters) if count is None else count
        while self._waiters and left > 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                left -= 1

    def _ask(self, fields: dict[str, object], *, repeatable: bool = True) -> asyncio.Future[Frame]:
        return self._connection.request({**fields, "sub": self.sub}, repeatable=repeatable)

    def _call(self, hook: Callable[..., object] | None, *arguments: object) -> None:
        """Call the application; what it raises must not stop us half-way through a frame."""
        if hook is not None:
            try:
                hook(*arguments)
            except Exception as error:
                self._loop.call_exception_handler({"message": f"{hook!r} failed", "exception": error})

    def settle(self, op: str, message: Message[Any], fields: dict[str, object]) -> Awaitable[None]:
        """Settle a message."""
        raise MqError(f"{op}: a reader has nothing to settle; read as a group: client.group(name).queue(topic)")


async def quietly(work: Awaitable[object]) -> None:
    """Something whose failure changes nothing: what was not settled comes again."""
    try:
        await work
    except MqError as error:
        log.debug("given up: %s", error)

"""One connection of a Kafka client: frames in, responses out in the order of their requests.

Produce requests are pipelined: their batches take their place in the log as they come, and each is answered when its
own append has ended. Any other request has the connection for itself until it is answered, as in Apache Kafka; what
comes meanwhile waits, at most a frame or two of it, as reading stops. A client that wants to do something while it
waits for records or for a rebalance uses another connection, and all do.

Bounds are those of HTTP: connections (in all and by address), bytes of requests that are not answered, bytes of
responses that are not taken, how long the rest of a request may take, how long a client may take no byte.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Protocol, cast

from gateway.auth.access import NOBODY
from gateway.auth.address import counted_as
from gateway.auth.rates import Rates
from gateway.settings.kafka import KafkaListener
from gateway.surfaces.http.answer_memory import Allowance
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.read_turns import ReadTurns, let_read, stop_reading
from gateway.surfaces.http.write_watchdog import WriteWatchdog
from gateway.surfaces.kafka.apis import API_VERSIONS, APIS, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from gateway.surfaces.kafka.frames import Frames, Header, read_header, response_head
from gateway.surfaces.kafka.schema import Malformed
from gateway.surfaces.kafka.session import Session
from store.limits import KiB
from store.types import Buffer

log = logging.getLogger(__name__)

PIPELINE_MAX = 64
"""Requests of one connection that are begun and not answered."""

UNKNOWN_FRAME_BYTES_MAX = 64 * KiB
"""Bytes of a request from a client that has not said who it is."""

AUTHENTICATION_TIMEOUT_S = 10.0
MALFORMED_LOG_INTERVAL_S = 60.0
JOINED_BYTES_MAX = 4 * KiB
"""What is sent as one piece: several cost the transport more than to put so little together."""

_READ = memoryview(bytearray(128 * KiB))
"""Where all is read to that is not the rest of a large frame; it is copied before anything else is read."""

READ_BYTES = 512 * KiB
"""What is read at a time of a large frame."""

_BEFORE_ACCESS = frozenset((API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE))


def _nothing() -> None:
    """To be done no more."""


class Done(Protocol):
    """What is called with a response when it is made."""

    def __call__(self, buffers: Iterable[Buffer] | None, *, is_last: bool = False) -> None:
        """`buffers` None: there is to be no response. The connection ends with one that `is_last`."""
        ...


class Answer:
    """The response to one request: to be sent when it is made, and those before it."""

    __slots__ = ("allowance", "buffers", "frame_bytes", "is_last", "is_made")

    def __init__(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self.buffers: Sequence[Buffer] | None = ()
        """None: there is to be no response."""

        self.allowance: Allowance | None = None
        self.is_made = False
        self.is_last = False  # the connection ends with it


class Served(Protocol):
    """Serves requests."""

    def begin_produce(self, session: Session, header: Header, frame: memoryview, done: Done) -> bool:
        """Begin to serve a Produce request; `done` is called with the response. False, and nothing has begun,
        for one that takes more than a turn of the event loop."""
        ...

    async def serve_produce(self, session: Session, header: Header, frame: memoryview, done: Done) -> None:
        """As `begin_produce`, for any Produce request; all of it has begun on return."""
        ...

    async def serve(self, session: Session, header: Header, frame: memoryview, answer: Answer) -> None:
        """Serve any other request: fill in its answer. Raises Malformed."""
        ...


class KafkaConnection(asyncio.BufferedProtocol):
    """asyncio's protocol of one connection."""

    def __init__(
        self,
        gateway: Gateway,
        served: Served,
        limiter: ConnectionLimiter,
        new_session: Callable[[str, KafkaListener], Session],
        connections: set[KafkaConnection],
        read_turns: ReadTurns,
    ) -> None:
        self._gateway = gateway
        self._served = served
        self._limiter = limiter
        self._new_session = new_session
        self._connections = connections
        self._read_turns = read_turns
        self._frames = Frames(UNKNOWN_FRAME_BYTES_MAX)
        self._answers: deque[Answer] = deque()  # of requests that are begun, in order
        self._held_bytes = 0  # of requests, counted in `receiving_bytes`
        self._held_until_taken: list[Allowance] = []
        self._address: str | None = None  # None: not let in
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._unwatch: Callable[[], None] | None = None
        self._write_watchdog: WriteWatchdog | None = None  # while the client is behind
        self._is_reading = True
        self._is_resting = False
        self._opened_s = self._heard_s = self._began_s = monotonic()
        self._is_flushing = False  # in the next turn of the event loop
        self._is_closing = False

    # ------------------------------------------------------------------------------------------- life

    def let_in(self, address: str) -> None:
        """See `CountedProtocol`."""
        self._address = address

    def give_up(self) -> None:
        """See `CountedProtocol`."""
        if self._address is not None and self._transport is None:
            self._limiter.leave(self._address)
            self._address = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        own = transport.get_extra_info("sockname")
        if self._address is None:
            address = counted_as(str(peer[0])) if peer else ""
            if not self._limiter.enter(address):
                self._transport.abort()
                return
            self._address = address
        self._gateway.stats.kafka.connection_count += 1
        self._connections.add(self)
        self._limiter.opened(self)
        self._read_turns.expects(self)
        reached = KafkaListener("", str(own[0]), int(own[1])) if own else KafkaListener("", "", 0)
        self._session = self._new_session(str(peer[0]) if peer else "", reached)
        self._session.on_access = self._access_changed
        self._access_changed()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        self._is_closing = True
        self._connections.discard(self)
        if self._address is not None:
            self._limiter.leave(self._address)
            self._limiter.closed(self)
            self._read_turns.ended(self)
            self._gateway.stats.kafka.connection_count -= 1
            self._address = None
        if self._task is not None:
            self._task.cancel()
            self._task = None  # how it ended leads to all it had, and back to here
        if self._unwatch is not None:
            self._unwatch()
        self._end_watch()
        self._release(self._held_bytes)
        self._taken()
        for answer in self._answers:
            if answer.allowance is not None:
                answer.allowance.release()
        # What it holds goes now, and not when the collector comes by: a connection and its session know each other.
        self._frames.clear()
        self._answers.clear()
        self._transport = None
        if self._session is not None:
            self._session.on_access = _nothing

    @property
    def kind(self) -> str:
        """See OpenConnection."""
        return "kafka"

    @property
    def principal(self) -> str | None:
        """See OpenConnection."""
        return self._session.access.principal if self._session is not None and self._session.is_known else None

    @property
    def peer(self) -> str:
        """See OpenConnection."""
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""

    def end(self) -> None:
        """See OpenConnection."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served."""
        return not self._answers and self._task is None

    def look(self, now_s: float, *, body_timeout_s: float, idle_timeout_s: float) -> None:
        """Close the connection when its client takes too long: for the rest of a request, to say who it is, or to send
        anything. Called now and then."""
        silent_s = now_s - self._heard_s
        unknown = self._session is not None and not self._session.is_known
        if (
            (self._is_reading and not self._frames.is_between and now_s - self._began_s > body_timeout_s)
            or (unknown and now_s - self._opened_s > AUTHENTICATION_TIMEOUT_S)
            or (self.is_idle and silent_s > idle_timeout_s)
        ):
            self.close()

    def close(self) -> None:
        """End the connection; what is written already is sent."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()

    def _access_changed(self) -> None:
        session = self._session
        assert session is not None
        if self._unwatch is not None:
            self._unwatch()
        self._unwatch = session.access.watch(self.close) if session.is_known else None
        bytes_max = self._gateway.limits.body_bytes_max if session.is_known else UNKNOWN_FRAME_BYTES_MAX
        self._frames.bytes_max = bytes_max

    # ------------------------------------------------------------------------------------------- requests

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        room = self._frames.room
        return _READ if room is None else room[:READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        if self._frames.room is None:
            self.data_received(bytes(_READ[:nbytes]))
        else:
            self._came(nbytes, None)

    def data_received(self, data: bytes) -> None:
        """Take in what has come."""
        self._came(len(data), data)

    def _came(self, size: int, data: bytes | None) -> None:
        """So many bytes; None: they are where `Frames.room` is."""
        if self._is_closing:
            return
        now_s = self._heard_s = monotonic()
        is_known = self._session is not None and self._session.is_known
        if is_known and self._frames.is_between:
            self._began_s = now_s
        stats = self._gateway.stats
        self._held_bytes += size
        stats.receiving_bytes += size
        if stats.receiving_bytes > self._gateway.limits.receiving_bytes_max:
            stats.body_refused_count += 1
            self._refuse("too many bytes are being received")
            return
        if data is None:
            self._frames.came(size)
        else:
            self._frames.feed(data)
        self._read_turns.took(self, size)
        if self._frames.has_one:
            if is_known:
                self._began_s = now_s  # of the next request, if some of it is here
            if not self._is_resting:
                self._pump()
        else:
            self._read_turns.expects(self)

    def eof_received(self) -> None:
        """See asyncio.Protocol."""

    def _refuse(self, reason: str) -> None:
        """End the connection of a client that cannot be answered."""
        self._is_closing = True
        stats = self._gateway.stats.kafka
        stats.malformed_count += 1
        now_s = monotonic()
        if now_s >= stats.malformed_quiet_until_s:
            stats.malformed_quiet_until_s = now_s + MALFORMED_LOG_INTERVAL_S
            client = self._session.client_id if self._session is not None else ""
            log.warning(
                "Kafka connection closed address=%s client=%r reason=%s count=%d",
                self._address, client[:100], reason, stats.malformed_count,
            )  # fmt: skip
        if self._transport is not None:
            self._transport.abort()

    def _pump(self) -> None:
        """Begin what may be begun now."""
        try:
            while (
                self._frames.has_one
                and self._task is None
                and self._write_watchdog is None
                and len(self._answers) < PIPELINE_MAX
                and not self._is_closing
                and (frame := self._frames.take()) is not None
            ):
                self._begin(frame)
        except Malformed as error:
            self._refuse(str(error))
            return
        self._read_or_wait()

    def rest(self) -> bool:
        """See Reader."""
        if self._is_resting or self._transport is None:
            return False
        self._is_resting = True
        self._read_or_wait()
        stop_reading(self._transport)
        return True

    @property
    def may_send_much(self) -> bool:
        """See Reader."""
        return self._heard_s == self._opened_s or not self._frames.is_between

    def read_on(self) -> None:
        """See Reader."""
        self._is_resting = False
        if self._transport is None:
            return  # the connection has ended
        let_read(self._transport)
        if self._frames.has_one:
            self._pump()
        else:
            self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Read as long as no whole request waits, and it is not others' turn."""
        wants_more = not self._frames.has_one and not self._is_resting
        if wants_more is not self._is_reading and self._transport is not None and not self._is_closing:
            self._is_reading = wants_more
            if wants_more:
                self._began_s = monotonic()  # that the rest of a request was not read was not the client's doing
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _begin(self, frame: memoryview) -> None:
        """Raises Malformed."""
        session = self._session
        assert session is not None
        header = read_header(frame)
        session.client_id = header.client_id
        if not session.is_known and header.key not in _BEFORE_ACCESS:
            self._refuse(f"{APIS[header.key].name} before authentication")
            return
        if session.access is not NOBODY and session.access.is_over:
            self.close()
            return
        answer = Answer(len(frame) + 4)
        self._answers.append(answer)

        def done(buffers: Iterable[Buffer] | None, *, is_last: bool = False) -> None:
            answer.is_last = is_last
            self._made(header, answer, buffers)

        is_free = header.key == PRODUCE and self._gateway.rates is None
        if is_free and self._served.begin_produce(session, header, frame, done):
            return
        self._task = asyncio.get_running_loop().create_task(self._serve(session, header, frame, answer, done))

    async def _serve(self, session: Session, header: Header, frame: memoryview, answer: Answer, done: Done) -> None:
        try:
            if self._gateway.rates is not None:
                await self._pay(session, self._gateway.rates, len(frame))
            if header.key == PRODUCE:
                await self._served.serve_produce(session, header, frame, done)
            else:
                await self._served.serve(session, header, frame, answer)
        except Malformed as error:
            self._refuse(str(error))
            return
        except Exception:
            log.exception("a Kafka request failed api=%s version=%d", APIS[header.key].name, header.version)
            self.close()
            return
        self._task = None
        if header.key != PRODUCE:
            self._made(header, answer, answer.buffers)
        self._pump()

    async def _pay(self, session: Session, rates: Rates, size: int) -> None:
        """Wait until the client may send one more request: Kafka's clients are slowed down, not refused."""
        while (wait_ms := rates.spend(session.payer, requests=1)) is not None:  # noqa: ASYNC110 - time alone says when
            await asyncio.sleep(wait_ms / 1000)
        rates.owe(session.payer, bytes_=size)

    # ------------------------------------------------------------------------------------------- responses

    def _made(self, header: Header, answer: Answer, buffers: Iterable[Buffer] | None) -> None:
        answer.buffers = None
        if buffers is not None:
            body = list(buffers)
            answer.buffers = [response_head(header, sum(map(len, body))), *body]
        answer.is_made = True
        self._gateway.stats.kafka.answered(APIS[header.key].name)
        if len(self._answers) == 1:
            self._flush()
        elif not self._is_flushing:  # those that one write to the disk has answered go out by one write as well
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        answers, transport = self._answers, self._transport
        was_full = len(answers) >= PIPELINE_MAX
        out: list[Buffer] = []
        is_last = False
        while answers and answers[0].is_made:
            answer = answers.popleft()
            out += answer.buffers or ()
            is_last = is_last or answer.is_last
            if answer.allowance is not None:
                self._held_until_taken.append(answer.allowance)
            self._release(min(answer.frame_bytes, self._held_bytes))
        if transport is None or transport.is_closing():
            self._taken()
            return
        if sum(map(len, out)) <= JOINED_BYTES_MAX:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)
        if self._held_until_taken and self._write_watchdog is None:
            self._taken()
        if is_last:
            self.close()
        elif was_full:
            self._pump()

    def _release(self, size: int) -> None:
        self._held_bytes -= size
        self._gateway.stats.receiving_bytes -= size

    def _taken(self) -> None:
        """The client has taken its responses, or is gone."""
        for allowance in self._held_until_taken:
            allowance.release()
        self._held_until_taken.clear()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._write_watchdog = WriteWatchdog(
            self._waiting_bytes,
            timeout_s=self._gateway.config.ws_write_timeout_ms / 1000,
            on_timeout=self._cut_off,
        )
        self._write_watchdog.begin()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._end_watch()
        self._taken()
        self._pump()

    def _waiting_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _cut_off(self) -> None:
        self._write_watchdog = None
        self._gateway.stats.slow_close_count += 1
        if self._transport is not None:
            self._transport.abort()

    def _end_watch(self) -> None:
        if self._write_watchdog is not None:
            self._write_watchdog.end()
            self._write_watchdog = None

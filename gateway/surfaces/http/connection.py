"""One TCP connection: whether there is room for it, and what is answered to what is no HTTP.

The shell around aiohttp's protocol class. Connections are counted in all and by address; one too many is told so and
closed before anything of it is read. aiohttp answers malformed requests by itself, past every route; here that answer
gets the shape of all others: JSON, a request id, no Server header.

Whoever takes no byte of an answer for the write timeout is cut off, whatever the answer is; sockets watch themselves.

A request that is whole while the connection is idle is shown to the fast path first. While that has one, what follows
on the connection waits unparsed, so answers keep the order of their requests. A head that the parser has read before is
not parsed again (heads.py), as long as it is known that the parser is between two requests; the rest of its body, which
many clients send apart, is waited for a moment. What the fast path does not take, or gives back, and what does not come
in time, is parsed and answered as if the fast path had never had it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time_ns
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from gateway.api.connections import OpenConnection
from gateway.auth.access import NOBODY, Access
from gateway.auth.address import counted_as
from gateway.errors import TOO_MANY, RequestError, draining
from gateway.settings.limits import Limits
from gateway.surfaces.http.answers import REQUEST_ID, RequestIds, error_answer
from gateway.surfaces.http.context import GatewayStats
from gateway.surfaces.http.heads import END, HeadMemo
from gateway.surfaces.http.read_turns import LARGE_READ_BYTES, ReadTurns, let_read, stop_reading
from gateway.surfaces.http.write_watchdog import WriteWatchdog
from store.limits import KiB
from store.types import Buffer

RETRY_AFTER_S = 1
BODY_WAIT_S = 1.0
"""How long the rest of a body is waited for, before aiohttp gets what there is, with its own limits of time."""

LINES_BYTES = 16 * KiB
LINES_MAX = 1_000
"""Line ends in what has arrived at once, beyond which it is taken in pieces of LINES_BYTES."""


class ConnectionLimiter:
    """Counts connections, and knows those that are open. A refused one is not counted. `read_turns` bounds what all of
    them read in a turn of the event loop."""

    def __init__(
        self, limits: Limits, stats: GatewayStats, now_ms: Callable[[], int] = lambda: time_ns() // 1_000_000
    ) -> None:
        self._limits = limits
        self.receiving_bytes_max = limits.receiving_bytes_max
        self.stats = stats
        self.read_turns = ReadTurns(lambda call: asyncio.get_running_loop().call_soon(call))
        self._now_ms = now_ms
        self._by_address: dict[str, int] = {}

    def enter(self, address: str) -> bool:
        """Whether there is room for one more connection from this address; if so it is counted."""
        count = self._by_address.get(address, 0)
        is_full = self.stats.connection_count >= self._limits.connections_max
        if is_full or 0 < self._limits.connections_per_address_max <= count:
            self.stats.connection_refused_count += 1
            if not is_full:
                self.stats.address_refused_count += 1
            return False
        self._by_address[address] = count + 1
        self.stats.connection_count += 1
        return True

    def leave(self, address: str) -> None:
        """A connection that was let in has ended."""
        self.stats.connection_count -= 1
        count = self._by_address[address] - 1
        if count:
            self._by_address[address] = count
        else:
            del self._by_address[address]

    def opened(self, connection: OpenConnection) -> None:
        """A connection that was let in begins."""
        self.stats.open_connections.opened(connection, self._now_ms())

    def closed(self, connection: OpenConnection) -> None:
        """It has ended."""
        self.stats.open_connections.closed(connection)


class Client(Protocol):
    """Who has sent a request that the fast path has."""

    @property
    def remote(self) -> str | None:
        """Its address, as aiohttp's `request.remote` has it."""
        ...

    def is_there(self) -> bool:
        """Whether its connection is open."""
        ...

    def lost(self) -> asyncio.Future[None]:
        """Done when its connection has ended."""
        ...

    def reply(self, answer: bytes | Sequence[Buffer] | None) -> None:
        """Answer it, with what may lie in several buffers; None: have aiohttp answer it."""
        ...

    async def taken(self) -> None:
        """Wait until it has taken what was written, but for what a connection's buffer holds, or is gone."""
        ...


Meaning = TypeVar("Meaning")


class FastPath(Protocol[Meaning]):
    """A way to answer some requests without aiohttp's tasks, requests and responses."""

    @property
    def heads(self) -> HeadMemo[Meaning]:
        """Heads of requests that may be for it."""
        ...

    def read(self, message: RawRequestMessage) -> Meaning | None:
        """What the head of a request that may be for it means; None: it is for aiohttp."""
        ...

    def is_repeatable(self, meaning: Meaning) -> bool:
        """Whether its client may send requests, and the same head again, so that it is worth remembering."""
        ...

    def named(self, meaning: Meaning, request_id: str | None, offset: int | None) -> Meaning:
        """The same for a request whose client gave it another id, or asks for another offset; None: as it was."""
        ...

    def principal_of(self, meaning: Meaning) -> str | None:
        """Who sent such a request; None when that is not known any more."""
        ...

    def bytes_max(self, meaning: Meaning) -> int:
        """Of a body that it takes."""
        ...

    def take(self, meaning: Meaning, data: bytes, start: int, client: Client) -> bool:
        """Begin to serve a request whose body is the data from `start` on, and reply in a later turn of the event loop.
        False, and nothing has happened, when aiohttp must serve it."""
        ...


class _Coming(NamedTuple):
    """A request whose body is not whole yet: what there is of it, its size in all, and the end of waiting for it."""

    pieces: list[bytes]
    size: int
    timer: asyncio.TimerHandle


class _Messages(list[Any]):
    """What a connection has parsed and not begun: a few. An empty deque takes 600 bytes."""

    __slots__ = ()

    def popleft(self) -> Any:
        """As of a deque."""
        return self.pop(0)


class Connection(web.RequestHandler):
    """aiohttp's protocol of one connection, counted by a limiter."""

    __slots__ = (
        "_access",
        "_address",
        "_body_left_bytes",
        "_coming",
        "_fast_path",
        "_held",
        "_is_between_requests",
        "_is_resting",
        "_limiter",
        "_lost",
        "_meaning",
        "_peer",
        "_receiving_bytes",
        "_remote",
        "_request_ids",
        "_taken",
        "_write_timeout_s",
        "_write_watchdog",
        "is_spliced",
    )

    def __init__(
        self,
        manager: web.Server,
        limiter: ConnectionLimiter,
        request_ids: RequestIds,
        fast_path: FastPath[Any] | None = None,
        *,
        write_timeout_s: float,
        **options: Any,
    ) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._messages = _Messages()  # type: ignore[assignment]  # for a deque: it is asked for no more than this
        self._limiter = limiter
        self._request_ids = request_ids
        self._fast_path = fast_path
        # The request that the fast path has: as it came, or, when it had to be parsed, as aiohttp knows it.
        self._taken: bytes | tuple[RawRequestMessage, StreamReader] | None = None
        self._is_between_requests = True  # whether the parser is known to be
        self._body_left_bytes = 0  # how much of the body that the parser is in has yet to come; 0: not known
        self._coming: _Coming | None = None  # unknown to the parser
        self._receiving_bytes = 0  # of what came in pieces for the fast path, as counted among the server's
        self._held = b""  # came while the fast path had a request
        self._is_resting = False  # reading goes on in a later turn
        self._address: str | None = None  # None: not let in
        self._access: Access = NOBODY  # of the last request that was not for the fast path
        self._meaning: Any = None  # of the last one that was
        self._peer = ""
        self._remote: str | None = None
        self._write_timeout_s = write_timeout_s
        self._write_watchdog: WriteWatchdog | None = None  # while the client is behind
        self._lost: asyncio.Future[None] | None = None
        self.is_spliced = False
        """Whether a socket of it is passed on to another process. Other sockets are watched by their endpoint."""

    def let_in(self, address: str) -> None:
        """It is counted already; `connection_lost` or `give_up` takes it off."""
        self._address = address

    def give_up(self) -> None:
        """Nothing came of it, so it is not counted any more. Nothing happens once it was made."""
        if self._address is not None and self.transport is None:
            self._limiter.leave(self._address)
            self._address = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        if self._address is None:
            peer = transport.get_extra_info("peername")
            address = counted_as(str(peer[0])) if peer else ""
            if self._limiter.enter(address):
                self._address = address
        if self._address is not None:
            peer = transport.get_extra_info("peername")
            self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
            self._remote = None if peer is None else str(peer[0] if isinstance(peer, tuple) else peer)
            self._limiter.opened(self)
            super().connection_made(transport)
            self._limiter.read_turns.expects(self)
        else:
            self.force_close()  # what still comes in is dropped
            cast(asyncio.Transport, transport).write(_REFUSAL)
            transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        if self._address is not None:
            self._limiter.leave(self._address)
            self._limiter.closed(self)
            self._limiter.read_turns.ended(self)
            self._address = None
        self._end_watch()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        if self._coming is not None:
            self._joined()
            self._count_received(0)
        super().connection_lost(exc)

    def lost(self) -> asyncio.Future[None]:
        """Done when the connection has ended."""
        if self._lost is None:
            self._lost = self._loop.create_future()
            if self.transport is None:
                self._lost.set_result(None)
        return self._lost

    # ------------------------------------------------------------------------------------- for people who look

    @property
    def kind(self) -> str:
        """See OpenConnection."""
        return "websocket" if self._upgraded else "http"

    @property
    def principal(self) -> str | None:
        """See OpenConnection."""
        if self._access is NOBODY and self._meaning is not None and self._fast_path is not None:
            return self._fast_path.principal_of(self._meaning)
        return None if self._access is NOBODY else self._access.principal

    @property
    def peer(self) -> str:
        """See OpenConnection."""
        return self._peer

    def note_caller(self, access: Access) -> None:
        """Whose request the last one is."""
        self._access = access

    def end(self) -> None:
        """See OpenConnection."""
        if self.transport is not None:
            self.transport.abort()

    # --------------------------------------------------------------------------------- clients that do not read

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        super().pause_writing()
        if not self._upgraded or self.is_spliced:
            self._write_watchdog = WriteWatchdog(
                self._waiting_bytes, timeout_s=self._write_timeout_s, on_timeout=self._cut_off
            )
            self._write_watchdog.begin()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._end_watch()
        super().resume_writing()

    def _waiting_bytes(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def _cut_off(self) -> None:
        self._write_watchdog = None
        if self.transport is not None:
            self._limiter.stats.slow_close_count += 1
            self.transport.abort()

    def _end_watch(self) -> None:
        if self._write_watchdog is not None:
            self._write_watchdog.end()
            self._write_watchdog = None

    # ------------------------------------------------------------------------------------------ the fast path

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if len(data) >= LARGE_READ_BYTES:
            self._limiter.read_turns.took(self, len(data))
            if self._is_resting:
                self._hold(data)
                return
        self._take_in(data)

    def rest(self) -> bool:
        """See Reader."""
        transport = self.transport
        if self._is_resting or transport is None or transport.get_protocol() is not self:
            return False  # over, or a link's between nodes by now
        self._is_resting = True
        stop_reading(transport)
        return True

    @property
    def may_send_much(self) -> bool:
        """See Reader."""
        is_answered = bool(self._next_keepalive_close_time)  # which has been set with the first answer
        is_between = self._is_between_requests and self._coming is None
        return not (self._upgraded or (is_answered and is_between))

    def _resume_transport_reading(self) -> None:
        """See aiohttp's: it reads on whenever what there was has been taken. Not while this rests."""
        if not self._is_resting:
            super()._resume_transport_reading()

    def read_on(self) -> None:
        """See Reader."""
        self._is_resting = False
        if self.transport is None:
            return  # the connection has ended
        let_read(self.transport)
        if self._held and self._taken is None:
            self._release(is_late=True)
        if not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def _take_in(self, data: bytes, *, is_late: bool = False) -> None:
        """What has come, or was held back (`is_late`: for a turn of the event loop)."""
        if self._taken is not None or self._held:
            self._hold(data)
            return
        if self._coming is not None:
            self._come(data)
            return
        if self._waiter is None and not is_late and self._is_turning():
            self._held = data  # without a pause of reading: two calls of the transport for so short a time
            self._loop.call_soon(self._go_on)
            return
        found, fast_path = None, self._fast_path
        if fast_path is not None and self._is_between_requests and self._is_idle():
            found = fast_path.heads.find(data)
            if found is not None:
                meaning, start, end, request_id, offset = found
                if request_id is not None or offset is not None:
                    meaning = fast_path.named(meaning, request_id, offset)
                if len(data) == end:
                    if fast_path.take(meaning, data, start, self):
                        self._meaning = meaning
                        self._keep(data)
                        return
                elif (
                    len(data) < end and end - start <= fast_path.bytes_max(meaning) and self._count_received(len(data))
                ):
                    self._coming = _Coming([data], end, self._loop.call_later(BODY_WAIT_S, self._give_up))
                    self._expect(end - len(data))
                    return
        self._receive(data, may_take=found is None)

    def _is_idle(self) -> bool:
        """Whether there is a fast path that may have the next request: aiohttp is not busy with one, the client reads
        its answers, and the connection does not end."""
        waiter = self._waiter
        return not (
            self._fast_path is None
            or waiter is None
            or waiter.done()
            or self._paused
            or self._close
            or self._force_close
        )

    def _is_turning(self) -> bool:
        """Whether aiohttp, which waits for no request, has answered one, and will wait in the next turn of the event
        loop. A client that is quick, and whose first request was not for the fast path, would have none for it
        otherwise."""
        return (
            self._fast_path is not None
            and self._is_between_requests
            and not (self._request_in_progress or self._messages or self._close or self._force_close)
        )

    def _come(self, data: bytes) -> None:
        """More of a body that is waited for."""
        assert self._coming is not None
        pieces, size, _ = self._coming
        pieces.append(data)
        if not self._count_received(self._receiving_bytes + len(data)):
            self._give_up()
        elif self._receiving_bytes >= size:
            self._take_in(self._joined())
            if self._taken is None:
                self._count_received(0)

    def _joined(self) -> bytes:
        """All of what was waited for; it is not, any more."""
        assert self._coming is not None
        pieces, _, timer = self._coming
        self._coming = None
        timer.cancel()
        return b"".join(pieces)

    def _give_up(self) -> None:
        """Give aiohttp what there is of a request."""
        data = self._joined()
        self._count_received(0)
        self._receive(data, may_take=False)

    def _count_received(self, size: int) -> bool:
        """Have so many bytes counted among those that the server is receiving; False, and nothing has changed, when
        they are too many."""
        stats, more = self._limiter.stats, size - self._receiving_bytes
        if more > 0 and stats.receiving_bytes + more > self._limiter.receiving_bytes_max:
            return False
        stats.receiving_bytes += more
        self._receiving_bytes = size
        return True

    def _receive(self, data: bytes, *, may_take: bool) -> None:
        """Have aiohttp's parser read on, and show the fast path what comes of it."""
        if len(data) > LINES_BYTES and has_many_lines(data):
            # Thousands of requests, or of chunks, which the parser would go through in one turn of the event loop.
            later, self._held = self._held, data[LINES_BYTES:]
            self._hold(later)  # what is held already has come behind it
            data = data[:LINES_BYTES]
            self._loop.call_soon(self._go_on)
        fast_path, waiter = self._fast_path, self._waiter
        if not may_take or fast_path is None or waiter is None or not self._is_idle():
            self._parse(data)
            return
        self._waiter = None  # so that it is not woken yet
        is_head = self._parse(data)
        self._waiter = waiter
        messages = self._messages
        if messages and not (len(messages) == 1 and self._take(fast_path, data if is_head else None, *messages[0])):
            self._wake(waiter)

    def _parse(self, data: bytes) -> bool:
        """Have aiohttp's parser read on. Whether it was between two requests, got one head, and nothing behind its
        body."""
        if not data:  # aiohttp asks its parser for what it has put off
            super().data_received(data)
            return False
        was_between, self._is_between_requests = self._is_between_requests, False
        left, self._body_left_bytes = self._body_left_bytes, 0
        count = len(self._messages)
        super().data_received(data)
        if left:
            self._body_left_bytes = max(0, left - len(data))
            self._is_between_requests = left == len(data)
            return False
        message = self._messages[-1][0] if was_between and len(self._messages) == count + 1 else None
        if (
            not isinstance(message, RawRequestMessage)
            or message.chunked
            or message.upgrade
            or not data.startswith(message.method.encode() + b" ")  # it passes over empty lines before a request
        ):
            self._expect(None)
            return False
        left = data.find(END) + len(END) + _length_of(message) - len(data)
        self._body_left_bytes = max(0, left)
        self._is_between_requests = left == 0
        self._expect(left)
        return left >= 0

    def _expect(self, left_bytes: int | None) -> None:
        """So many bytes of a request are yet to come; None: that is not known."""
        if (left_bytes is None or left_bytes >= LARGE_READ_BYTES) and self.transport is not None:
            self._limiter.read_turns.expects(self)

    def _take(self, fast_path: FastPath[Any], data: bytes | None, message: object, payload: StreamReader) -> bool:
        """Let the fast path have the request that was just parsed, if it can. `data`: what it began with, when that may
        be remembered."""
        if not isinstance(message, RawRequestMessage):  # not HTTP
            return False
        meaning = fast_path.read(message)
        if meaning is None:
            return False
        if data is not None and fast_path.is_repeatable(meaning):
            fast_path.heads.remember(data, message, meaning)
        if payload.__class__ is not StreamReader or not payload.is_eof():
            return False  # without a body, or not whole
        # The body is looked at, not read: reading it would make aiohttp parse on, and the ordinary way needs it still.
        pieces = payload._buffer
        if len(pieces) != 1 or not fast_path.take(meaning, pieces[0], 0, self):
            return False
        self._meaning = meaning
        self._messages.clear()
        self._keep((message, payload))
        return True

    def _keep(self, taken: bytes | tuple[RawRequestMessage, StreamReader]) -> None:
        self._taken = taken
        self._request_in_progress = True  # a shutdown waits for it

    @property
    def remote(self) -> str | None:
        """See Client."""
        return self._remote

    def is_there(self) -> bool:
        """See Client."""
        return self.transport is not None

    async def taken(self) -> None:
        """See Client."""
        with suppress(ConnectionError):
            await self._drain_helper()

    def reply(self, answer: bytes | Sequence[Buffer] | None) -> None:
        """See Client."""
        taken, self._taken, transport = self._taken, None, self.transport
        assert taken is not None
        self._request_in_progress = False
        if self._receiving_bytes:
            self._count_received(0)
        if answer is None:
            self._fall_back(taken)
            return
        if transport is not None and not transport.is_closing():
            if taken.__class__ is not bytes:
                assert self._parser is not None
                self._parser.message_consumed()
            if isinstance(answer, bytes):
                transport.write(answer)
            else:
                transport.writelines(answer)
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)
        if self._held:
            self._release()

    def _fall_back(self, taken: bytes | tuple[RawRequestMessage, StreamReader]) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # the connection has ended, or the server stops
            if self.transport is not None:
                self.transport.write(_refusal(draining()))
                self.force_close()
            if self._handler_waiter is not None and not self._handler_waiter.done():
                self._handler_waiter.set_result(None)
            return
        if isinstance(taken, bytes):
            self._parse(taken)
        else:
            self._messages.append(taken)
            self._wake(waiter)
        if self._held:
            self._release()

    @staticmethod
    def _wake(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def _go_on(self) -> None:
        """Take what was held back for others' turn."""
        if self._held and self._taken is None:
            self._release(is_late=True)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if not self._buffer_paused:
            self._pause_reading_for_buffer()

    def _release(self, *, is_late: bool = False) -> None:
        held, self._held = self._held, b""
        if self._buffer_paused:
            self._resume_reading_for_buffer()
        self._take_in(held, is_late=is_late)

    def _process_keepalive(self) -> None:
        """aiohttp's end of an idle connection. One whose request is in the fast path, or coming, is not idle."""
        if self._taken is not None or self._coming is not None:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()

    # ------------------------------------------------------------------------------------------------- errors

    def log_exception(self, *args: Any, **details: Any) -> None:
        """As aiohttp's, but for handlers that end because their client is gone, and for what aiohttp does to itself:
        when a stop gives up waiting for a handler in the very turn in which that ends, it wakes a waiter that is gone.
        With many sockets that is a traceback for each."""
        failure = details.get("exc_info")
        is_gone = self.transport is None and isinstance(failure, ConnectionError)
        if not (is_gone or (self._force_close and isinstance(failure, asyncio.InvalidStateError))):
            super().log_exception(*args, **details)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that is no HTTP, or whose handler failed outside of every route."""
        self.log_exception("Error handling request from %s", request.remote, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        # What the parser says may repeat what was sent: it is not for the answer.
        text = "Internal Server Error" if status >= 500 else "The request is not HTTP/1.1 as this server reads it."
        if isinstance(exc, HttpProcessingError):
            text = f"{text[:-1]} ({type(exc).__name__})."
        request_id = self._request_ids.fixed(request)
        answer = error_answer(RequestError(status, text), request_id)
        response = _Anonymous(body=answer.body, status=status, headers=answer.headers)
        response.headers[REQUEST_ID] = request_id
        response.force_close()
        return response


class _Anonymous(web.Response):
    """An answer without a Server header, where the signal that removes it elsewhere does not come."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.pop(hdrs.SERVER, None)


def _length_of(message: RawRequestMessage) -> int:
    """How long the body of a message is that has no other framing than a length."""
    return int(message.headers.get(hdrs.CONTENT_LENGTH, 0))


def has_many_lines(data: bytes) -> bool:
    """Whether there are more than LINES_MAX line ends. To look for one octet at a time is fast where there are few: two
    are counted place by place, which took 0.1 ms of each body of 100 kB."""
    at = -1
    for _ in range(LINES_MAX + 1):
        at = data.find(b"\n", at + 1)
        if at < 0:
            return False
    return data.count(b"\r\n") > LINES_MAX


def _refusal(error: RequestError) -> bytes:
    answer = error_answer(error, "none")
    assert isinstance(answer.body, bytes)
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(answer.body)}\r\n"
        f"Retry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + answer.body


_REFUSAL = _refusal(RequestError(TOO_MANY, "Too many connections are open.", retriable=True))

"""`GET /ws/v1` and its short forms: where a WebSocket begins and ends. The shell: aiohttp and close codes, no rules.

One task reads, one writes; produces and acks are tasks of the same group, and so is an order to close. Whichever ends
first raises Closing with the code to close with, and takes the others with it. What outlives the connection is in
`sessions.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import NoReturn

from aiohttp import WebSocketError, WSMsgType, web

from gateway.api.tasks import task_group
from gateway.auth.access import NOBODY
from gateway.errors import READ_ONLY, RequestError, bad_request
from gateway.surfaces.http.admission import payer_of
from gateway.surfaces.http.answer_memory import SMALL_BYTES, Allowance
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import GATEWAY, Gateway
from gateway.surfaces.http.forwarding import for_node, token_of
from gateway.surfaces.http.write_watchdog import WriteWatchdog
from gateway.surfaces.ws.conversation import Conversation
from gateway.surfaces.ws.elsewhere import Elsewhere
from gateway.surfaces.ws.in_flight import StartTask
from gateway.surfaces.ws.metrics import SocketMetrics
from gateway.surfaces.ws.outbox import Closing, Outbox, OutboxClosed
from gateway.surfaces.ws.protocol import (
    BINARY,
    PING,
    SUBPROTOCOL,
    TEXT,
    TOO_MANY,
    CloseCode,
    websocket_frame,
)
from gateway.surfaces.ws.rights import Rights
from gateway.surfaces.ws.session import REFUSALS
from gateway.surfaces.ws.sessions import Sessions
from gateway.surfaces.ws.short_forms import Sender, consume_command, produce_target
from store.limits import KiB, MiB
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)

OUTBOX_BYTES_MAX = 1024 * 1024
"""Frames of one socket that wait to be written."""

CLOSE_TIMEOUT_S = 2.0
"""How long a client may take to answer our close frame."""

LINGER_S = 10.0
"""How long what is on its way to a peer may still be taken after the socket has ended."""

RECONNECT_AFTER_MS = 1500
"""What a client is told to wait when the server stops."""

GO_AWAY_TIMEOUT_S = 5.0
"""How long a stopping server waits for the answers to a socket's produces and acks."""

COMPRESS_BYTES_MIN = 1 * KiB
"""Smaller frames are not compressed, whatever was agreed on: it costs more than it saves."""

_WINDOW_BITS = 15

STRANGER_FRAME_BYTES_MAX = 1 * MiB
"""Largest frame on a socket that was opened without a token, also after `hello` has brought one."""

STRANGERS_MAX = 256
"""Sockets open at once whose client has not said who it is."""

PINGS_MISSED_MAX = 2

FRAMES_AT_ONCE = 256
"""Frames of one socket that are taken before it is others' turn."""

GOODBYES = (0, 1000, 1001)
"""Codes with which a client says that it does not come back; 0: none."""

SESSIONS = web.AppKey("sessions", Sessions)

_Take = Callable[[str | bytes], Awaitable[None]]


def install_sockets(application: web.Application, gateway: Gateway) -> None:
    """Give an application the sessions of its sockets."""
    sessions = Sessions(gateway)
    application[SESSIONS] = sessions
    gateway.metrics.register(SocketMetrics(sessions))

    async def close(_: web.Application) -> None:
        await sessions.close()

    application.on_cleanup.append(close)


async def websocket_handler(_gateway: Gateway, request: web.Request, _body: bytes) -> web.StreamResponse:
    """One socket for any number of sends and subscriptions, until either side ends it."""
    return await _Socket(request).serve(_take_commands)


async def consume_handler(_gateway: Gateway, request: web.Request, _body: bytes) -> web.StreamResponse:
    """A socket that begins as if its client had subscribed to what the query says."""
    socket = _Socket(request)
    command = consume_command(request.query, socket.gateway, access_of(request))

    async def begin(conversation: Conversation) -> _Take:
        try:
            await conversation.subscribe(command)
        except REFUSALS as error:
            await conversation.refuse(command.id, error)
        return await _take_commands(conversation)

    return await socket.serve(begin)


async def produce_handler(_gateway: Gateway, request: web.Request, _body: bytes) -> web.StreamResponse:
    """A socket on which every frame is a message to be stored."""
    socket = _Socket(request)
    target = produce_target(request.query, socket.gateway, access_of(request))

    async def begin(conversation: Conversation) -> _Take:
        return Sender(socket.gateway, target, conversation).take

    return await socket.serve(begin)


async def _take_commands(conversation: Conversation) -> _Take:
    async def take(frame: str | bytes) -> None:
        if isinstance(frame, str):
            await conversation.take(frame)
        else:
            await conversation.take_binary(frame)

    return take


class _Socket:
    """One connection, from its request to its end."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.gateway = gateway = request.app[GATEWAY]
        self._sessions = request.app[SESSIONS]
        self._access = access_of(request)
        is_stranger = self._access is NOBODY
        self._admit(is_stranger)
        frame_bytes_max = gateway.limits.ws_frame_bytes_max
        self._frame_bytes_max = min(frame_bytes_max, STRANGER_FRAME_BYTES_MAX) if is_stranger else frame_bytes_max
        self._socket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,),
            autoping=False,
            # aiohttp's limit is exclusive: a frame of exactly `max_msg_size` bytes is refused.
            max_msg_size=self._frame_bytes_max + 1,
            compress=gateway.config.ws_deflate,
            timeout=CLOSE_TIMEOUT_S,
        )
        if not self._socket.can_prepare(request):
            raise bad_request("This is a WebSocket: the request must ask for an upgrade.")
        self._compresses = False
        self._said_goodbye = False
        # A task of this socket's, and what it talks, while it lasts. Methods that know them are smaller than closures.
        self._start: StartTask | None = None
        self._conversation: Conversation | None = None
        self._is_ordered_to_close = False
        self._write_watchdog = WriteWatchdog(
            self._waiting_bytes,
            timeout_s=gateway.config.ws_write_timeout_ms / 1000,
            on_timeout=self._give_up_slow,
        )
        self._is_listening = False
        self._missed_count = 0  # pings since the client was last heard

    def _admit(self, is_stranger: bool) -> None:
        """Refuse, with a plain HTTP answer, who may not open a socket here and now."""
        gateway = self.gateway
        if gateway.draining.is_set():
            raise RequestError(READ_ONLY, "The server is stopping.", retriable=True, retry_after_ms=RECONNECT_AFTER_MS)
        if gateway.stats.ws_socket_count >= gateway.limits.ws_sockets_max or (
            is_stranger and self._sessions.stranger_count >= STRANGERS_MAX
        ):
            raise RequestError(
                TOO_MANY, "Too many sockets are open.", retriable=True, retry_after_ms=RECONNECT_AFTER_MS
            )

    async def serve(self, begin: Callable[[Conversation], Awaitable[_Take]]) -> web.StreamResponse:
        """Shake hands, talk, close. `begin` says what becomes of the frames."""
        stats = self.gateway.stats
        stats.ws_socket_count += 1
        try:
            await self._socket.prepare(self._request)
            self._compresses = bool(self._socket.compress)
            if self._compresses:
                assert self._socket._writer is not None
                self._socket._writer.compress = 0  # only frames for which `_write` says so
            code = await self._converse(begin)
            await self._close(code)
        finally:
            stats.ws_socket_count -= 1
        return self._socket

    async def _converse(self, begin: Callable[[Conversation], Awaitable[_Take]]) -> CloseCode | None:
        """Run the conversation to its end; the code to close with, None when the client is gone."""
        code: CloseCode | None = None
        gateway = self.gateway
        conversation: Conversation | None = None
        payer = payer_of(self._access, self._request.remote or "")
        allowance = Allowance(gateway.stats.answers, payer, gateway.limits.answering_bytes_max)
        outbox = Outbox(
            self._write,
            bytes_max=OUTBOX_BYTES_MAX,
            write_at_once=self._write_at_once,
            start=self._start_soon,
            allowance=allowance,
        )
        rights: Rights | None = None
        try:
            async with task_group() as tasks:
                start = self._start = tasks.create_task
                rights = Rights(
                    self._access,
                    gateway.clock,
                    warn=self._warn,
                    close=self._order,
                )
                conversation = self._conversation = Conversation(
                    gateway,
                    self._sessions,
                    outbox,
                    start,
                    rights=rights,
                    address=self._request.remote or "",
                    close=self._order,
                    frame_bytes_max=self._frame_bytes_max,
                    elsewhere=self._elsewhere(outbox, start),
                )
                self._sessions.when_draining(self._leave_with_server)
                rights.renew(self._access)
                self._sessions.heartbeats.add(self)
                await self._read(await begin(conversation))
        except* Closing as closings:
            closing = closings.exceptions[0]
            assert isinstance(closing, Closing)
            code = closing.code
        except* (OutboxClosed, ConnectionError):
            pass
        except* Exception as failures:
            log.error("a socket failed", exc_info=failures)
            code = CloseCode.INTERNAL
        finally:
            self._conversation = None
            outbox.close()
            self._write_watchdog.end()
            self._sessions.heartbeats.remove(self)
            self._sessions.not_when_draining(self._leave_with_server)
            if rights is not None:
                rights.end()
            if conversation is not None:
                await to_its_end(conversation.end(code, said_goodbye=self._said_goodbye))
        if code is CloseCode.SLOW:
            gateway.stats.ws_slow_close_count += 1
        return code

    def _elsewhere(self, outbox: Outbox, start: StartTask) -> Elsewhere | None:
        """What groups of other nodes are used by; None: there are none, or another node asks."""
        gateway, request = self.gateway, self._request
        if gateway.cluster is None or gateway.forwarder is None or for_node(request):
            return None
        token = token_of(request, token_in_query=gateway.config.auth.token_in_query)
        is_open = not gateway.authenticator.is_required
        return Elsewhere(gateway.cluster, gateway.forwarder.connect, outbox, start, token=token, is_open=is_open)

    def _start_soon(self, work: Coroutine[object, object, None]) -> None:
        assert self._start is not None
        _start_from_timer(self._start, work)

    async def _write(self, frame: bytes, is_binary: bool) -> None:
        if self._write_at_once(frame, is_binary):
            return
        kind = WSMsgType.BINARY if is_binary else WSMsgType.TEXT
        compress = _WINDOW_BITS if self._compresses and len(frame) >= COMPRESS_BYTES_MIN else None
        self._write_watchdog.begin()
        try:
            await self._socket.send_frame(frame, kind, compress)
        finally:
            self._write_watchdog.end()

    def _write_at_once(self, frame: bytes, is_binary: bool) -> bool:
        if self._compresses and len(frame) >= COMPRESS_BYTES_MIN:
            return False
        return self._put_at_once(BINARY if is_binary else TEXT, frame)

    def _put_at_once(self, opcode: int, payload: bytes) -> bool:
        """Write a frame as it is, without aiohttp's three coroutines for it, if that needs no wait: the transport takes
        what makes it full, and has room again, after it was full, below a quarter of that. False, and nothing is
        written, if it does, or when the connection ends."""
        transport = self._request.transport
        if transport is None or transport.is_closing() or self._socket.closed:
            return False
        waiting_bytes = transport.get_write_buffer_size()
        if waiting_bytes > SMALL_BYTES // 4 or waiting_bytes + len(payload) > SMALL_BYTES:
            return False
        transport.write(websocket_frame(opcode, payload))
        return True

    def _waiting_bytes(self) -> int:
        transport = self._request.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    async def _read(self, take: _Take) -> NoReturn:
        count = 0
        while True:
            count += 1
            if count % FRAMES_AT_ONCE == 0:  # thousands may have come at once, and then nothing here waits
                await asyncio.sleep(0)
            self._missed_count = 0
            self._is_listening = True
            message = await self._socket.receive()
            self._is_listening = False
            kind = message.type
            if kind is WSMsgType.TEXT or kind is WSMsgType.BINARY:
                if _size(message.data) > self._frame_bytes_max:  # inflated, aiohttp lets one byte more pass
                    raise Closing(CloseCode.TOO_LARGE)
                await take(message.data)
            elif kind is WSMsgType.PING:
                await self._socket.pong(message.data)
            elif kind is not WSMsgType.PONG:
                # CLOSE, CLOSING, CLOSED; or ERROR, when aiohttp has closed with a code of its own (1007, 1009).
                self._said_goodbye = isinstance(message.data, WebSocketError) or (
                    kind is WSMsgType.CLOSE and message.data in GOODBYES
                )
                raise Closing(None)

    # Orders to close

    def _order(self, code: CloseCode) -> None:
        """Close the socket soon."""
        if self._start is not None and not self._is_ordered_to_close:
            self._is_ordered_to_close = True
            _start_from_timer(self._start, _closing(code))

    def _give_up_slow(self) -> None:
        self._order(CloseCode.SLOW)

    def _warn(self, in_ms: int) -> None:
        if self._conversation is not None:
            self._start_soon(self._conversation.warn(in_ms))

    def _leave_with_server(self) -> None:
        if self._conversation is not None:
            self._start_soon(self._go_away(self._conversation))

    async def _go_away(self, conversation: Conversation) -> None:
        try:
            async with asyncio.timeout(GO_AWAY_TIMEOUT_S):
                await conversation.go_away(RECONNECT_AFTER_MS)
        except TimeoutError:
            log.warning(
                "socket=%s did not take the farewell in %g s", conversation.session.name[:12], GO_AWAY_TIMEOUT_S
            )
        self._order(CloseCode.SHUTDOWN)

    # Signs of life

    def beat(self) -> None:
        """Ping; give up on a peer that has not been heard of for two pings."""
        if self._missed_count >= PINGS_MISSED_MAX:
            self._order(CloseCode.NO_PONG)
            return
        if self._is_listening:  # while we do not read it is we who miss the pongs
            self._missed_count += 1
        if not self._put_at_once(PING, b""):
            self._start_soon(self._ping())
        self._sessions.heartbeats.add(self)

    async def _ping(self) -> None:
        try:
            await self._socket.ping()
        except ConnectionError:
            raise Closing(None) from None

    async def _close(self, code: CloseCode | None) -> None:
        """Close with a code, and see that nothing of a peer that takes no bytes stays in memory."""
        transport = self._request.transport
        try:
            if code is not None:
                async with asyncio.timeout(2 * CLOSE_TIMEOUT_S):
                    # A slow peer finds the code behind what is already on its way.
                    await self._socket.close(code=code, drain=False)
        except TimeoutError:
            pass
        finally:
            if transport is not None:
                asyncio.get_running_loop().call_later(LINGER_S, transport.abort)  # of a closed transport: no effect


async def _closing(code: CloseCode) -> NoReturn:
    raise Closing(code)


def _size(frame: str | bytes) -> int:
    """Bytes of a frame; of a text that is ASCII without encoding it."""
    return len(frame) if isinstance(frame, bytes) or frame.isascii() else len(frame.encode())


def _start_from_timer(start: StartTask, work: Coroutine[object, object, None]) -> None:
    """Start a task of a group that may be about to end; then it is not needed any more."""
    try:
        start(work)
    except RuntimeError:
        work.close()

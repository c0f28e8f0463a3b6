"""`GET /ws/v1`: where a WebSocket begins and ends. The shell around `session.py`: aiohttp and close codes, no rules.

One task reads, one writes, one waits for the server to stop; subscriptions and produces are tasks of the same group.
Whichever ends first raises Closing with the code to close with, and takes the others with it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

from gateway.http.context import GATEWAY, Gateway
from gateway.http.errors import READ_ONLY, RequestError, bad_request
from gateway.ws.outbox import Closing, Outbox
from gateway.ws.protocol import SUBPROTOCOL, TOO_MANY, CloseCode
from gateway.ws.session import Session

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
"""How long a stopping server waits for the answers to a socket's produces."""


async def websocket_handler(request: web.Request) -> web.WebSocketResponse:
    """Serve one socket until either side ends it. Raises RequestError before the handshake."""
    gateway = request.app[GATEWAY]
    _admit(request, gateway)
    socket = web.WebSocketResponse(
        protocols=(SUBPROTOCOL,),
        heartbeat=gateway.config.ws_ping_ms / 1000,
        # aiohttp's limit is exclusive: a frame of exactly `max_msg_size` bytes is refused.
        max_msg_size=gateway.limits.ws_frame_bytes_max + 1,
        compress=False,
        timeout=CLOSE_TIMEOUT_S,
    )
    if not socket.can_prepare(request):
        raise bad_request("This is a WebSocket: the request must ask for an upgrade.")
    gateway.stats.ws_socket_count += 1
    try:
        await socket.prepare(request)
        code = await _converse(socket, gateway)
        await _close(request, socket, code)
    finally:
        gateway.stats.ws_socket_count -= 1
    return socket


def _admit(request: web.Request, gateway: Gateway) -> None:
    """Refuse, with a plain HTTP answer, who may not open a socket here and now."""
    if gateway.draining.is_set():
        raise RequestError(503, READ_ONLY, "The server is stopping.", retriable=True, retry_after_ms=RECONNECT_AFTER_MS)
    if gateway.stats.ws_socket_count >= gateway.limits.ws_sockets_max:
        raise RequestError(
            429, TOO_MANY, "Too many sockets are open.", retriable=True, retry_after_ms=RECONNECT_AFTER_MS
        )
    origin = request.headers.get("Origin")
    if origin is not None and not origin_allowed(origin, request.host, gateway.config.allowed_origins):
        raise RequestError(403, 40301, f"Pages of {origin[:200]} may not open a socket here (allowed_origins).")


def origin_allowed(origin: str, host: str, allowed: tuple[str, ...]) -> bool:
    """Whether a page of this origin may open a socket: it came from this server, or the operator says so.

    Browsers send Origin with every socket and let a page of any site open one; other clients send none.
    """
    if origin in allowed:
        return True
    try:
        served_by = urlsplit(origin).netloc
    except ValueError:
        return False
    return bool(served_by) and served_by.lower() == host.lower()


async def _converse(socket: web.WebSocketResponse, gateway: Gateway) -> CloseCode | None:
    """Run the conversation to its end; the code to close with, None when the client is gone."""
    code: CloseCode | None = None
    outbox = Outbox(
        lambda frame: socket.send_frame(frame, WSMsgType.TEXT),
        bytes_max=OUTBOX_BYTES_MAX,
        write_timeout_s=gateway.config.ws_write_timeout_ms / 1000,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            session = Session(gateway, outbox, tasks.create_task)
            tasks.create_task(outbox.run())
            tasks.create_task(_leave_with_server(gateway, session))
            await _read(socket, session)
    except* Closing as closings:
        closing = closings.exceptions[0]
        assert isinstance(closing, Closing)
        code = closing.code
    except* Exception as failures:
        log.error("a socket failed", exc_info=failures)
        code = CloseCode.INTERNAL
    if code is CloseCode.SLOW:
        gateway.stats.ws_slow_close_count += 1
    return code


async def _read(socket: web.WebSocketResponse, session: Session) -> NoReturn:
    while True:
        message = await socket.receive()
        if message.type is WSMsgType.TEXT:
            await session.take(message.data)
        elif message.type is WSMsgType.BINARY:
            raise Closing(CloseCode.UNSUPPORTED)
        else:
            # CLOSE, CLOSING, CLOSED; or ERROR, when aiohttp has closed with a code of its own (1007, 1009, no pong).
            raise Closing(None)


async def _leave_with_server(gateway: Gateway, session: Session) -> NoReturn:
    await gateway.draining.wait()
    try:
        async with asyncio.timeout(GO_AWAY_TIMEOUT_S):
            await session.go_away(RECONNECT_AFTER_MS)
    except TimeoutError:
        log.warning("socket=%s did not take the farewell in %g s", session.name, GO_AWAY_TIMEOUT_S)
    raise Closing(CloseCode.SHUTDOWN)


async def _close(request: web.Request, socket: web.WebSocketResponse, code: CloseCode | None) -> None:
    """Close with a code, and see that nothing of a peer that takes no bytes stays in memory."""
    transport = request.transport
    try:
        if code is not None:
            async with asyncio.timeout(2 * CLOSE_TIMEOUT_S):
                # A slow peer finds the code behind what is already on its way.
                await socket.close(code=code, drain=False)
    except TimeoutError:
        pass
    finally:
        if transport is not None:
            asyncio.get_running_loop().call_later(LINGER_S, transport.abort)  # of a closed transport: no effect

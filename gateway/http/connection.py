"""One TCP connection: whether there is room for it, and what is answered to what is no HTTP.

The shell around aiohttp's protocol class. Connections are counted in all and by address; one too many is told so and
closed before anything of it is read. aiohttp answers malformed requests by itself, past every route; here that answer
gets the shape of all others: JSON, a request id, no Server header.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.auth.address import counted_as
from gateway.http.answers import REQUEST_ID, RequestIds, error_answer
from gateway.http.context import GatewayStats
from gateway.http.errors import TOO_MANY, RequestError
from gateway.limits import Limits
from gateway.tls import HANDSHAKE_TIMEOUT_S

RETRY_AFTER_S = 1


class Door:
    """Counts connections. A refused one is not counted."""

    def __init__(self, limits: Limits, stats: GatewayStats) -> None:
        self._limits = limits
        self._stats = stats
        self._by_address: dict[str, int] = {}

    def enter(self, address: str) -> bool:
        """Whether there is room for one more connection from this address; if so it is counted."""
        count = self._by_address.get(address, 0)
        if (
            self._stats.connection_count >= self._limits.connections_max
            or count >= self._limits.connections_per_address_max
        ):
            self._stats.connection_refused_count += 1
            return False
        self._by_address[address] = count + 1
        self._stats.connection_count += 1
        return True

    def leave(self, address: str) -> None:
        """A connection that was let in has ended."""
        self._stats.connection_count -= 1
        count = self._by_address[address] - 1
        if count:
            self._by_address[address] = count
        else:
            del self._by_address[address]


class Connection(web.RequestHandler):
    """aiohttp's protocol of one connection, behind the door."""

    __slots__ = ("_address", "_door", "_request_ids")

    def __init__(self, manager: web.Server, door: Door, request_ids: RequestIds, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._door = door
        self._request_ids = request_ids
        self._address: str | None = None  # None: not let in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        peer = transport.get_extra_info("peername")
        address = counted_as(str(peer[0])) if peer else ""
        if self._door.enter(address):
            self._address = address
            super().connection_made(transport)
        else:
            self.force_close()  # what still comes in is dropped
            cast(asyncio.Transport, transport).write(_REFUSAL)
            transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        if self._address is not None:
            self._door.leave(self._address)
            self._address = None
        super().connection_lost(exc)

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
        answer = error_answer(RequestError(status, status, text), request_id)
        response = _Anonymous(body=answer.body, status=status, headers=answer.headers)
        response.headers[REQUEST_ID] = request_id
        response.force_close()
        return response


class _Anonymous(web.Response):
    """An answer without a Server header, where the signal that removes it elsewhere does not come."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.pop(hdrs.SERVER, None)


class Site(web.BaseSite):
    """Where a runner's connections come in: a bound socket, with TLS or without."""

    __slots__ = ("_connect", "_socket")

    def __init__(
        self,
        runner: web.BaseRunner,
        bound: socket.socket,
        connect: Callable[[], Connection],
        *,
        ssl_context: ssl.SSLContext | None,
        backlog: int,
    ) -> None:
        super().__init__(runner, ssl_context=ssl_context, backlog=backlog)
        self._socket = bound
        self._connect = connect

    @property
    def name(self) -> str:
        """See web.BaseSite."""
        return str(self._socket.getsockname())

    async def start(self) -> None:
        """Accept connections from now on."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self._connect,
            sock=self._socket,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._ssl_context else None,
        )


def _refusal() -> bytes:
    error = RequestError(503, TOO_MANY, "Too many connections are open.", retriable=True)
    answer = error_answer(error, "none")
    assert isinstance(answer.body, bytes)
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(answer.body)}\r\n"
        f"Retry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + answer.body


_REFUSAL = _refusal()

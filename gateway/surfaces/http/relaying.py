"""Passing whole requests on to another process, and its answers back: bodies as they come, and sockets byte by byte.

A gateway process beside the store's (`mq serve --workers`) answers by itself what many ask for: sends and reads. All
else goes on from here as it came, over a Unix socket, with the client's address: the store's process decides about it,
and its answer is passed back as it is.

    bodies     at most AHEAD_BYTES of one wait in memory, either way: who reads slowly slows whoever writes
    upgrades   the request's head is sent on, and from then on bytes are: what is said on a socket is looked at by one
               process only. Reading pauses beyond AHEAD_BYTES that the other side has not taken
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import aiohttp
from aiohttp import hdrs, web
from aiohttp._websocket.reader import WebSocketReader
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict
from yarl import URL

from gateway.errors import OVERLOADED, RequestError
from gateway.surfaces.http.answers import REQUEST_ID, take_id
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.streaming import StreamedAnswer
from store.limits import KiB

log = logging.getLogger(__name__)

CLIENT = "Mq-Client"
"""Names the address of the client to the process that a request is passed on to. Believed on its Unix socket alone."""

AHEAD_BYTES = 64 * KiB
HEAD_BYTES_MAX = 64 * KiB
"""Of the answer to an upgrade."""

CONNECT_TIMEOUT_S = 2.0
_PER_HOP = frozenset(
    name.lower()
    for name in (
        hdrs.CONNECTION, hdrs.KEEP_ALIVE, hdrs.PROXY_AUTHENTICATE, hdrs.PROXY_AUTHORIZATION, hdrs.TE, hdrs.TRAILER,
        hdrs.TRANSFER_ENCODING, hdrs.UPGRADE, hdrs.EXPECT, CLIENT,
    )
)  # fmt: skip
_NOT_BACK = _PER_HOP | {hdrs.DATE.lower(), hdrs.SERVER.lower(), "x-request-id", hdrs.CONTENT_LENGTH.lower()}
_NOT_ADDED = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)
"""What aiohttp's client would say of itself where the caller has not."""


class Relay:
    """Passes requests on to the process that listens at a Unix socket. Close it."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._path, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=AHEAD_BYTES,
            skip_auto_headers=_NOT_ADDED,
        )

    async def close(self) -> None:
        """End what is under way."""
        await self._http.close()

    async def answer(self, gateway: Gateway, request: web.Request, body: bytes | None = None) -> web.StreamResponse:
        """What the other process answers. `body`: the request's, when it was read (and inflated). Raises RequestError
        503 when it does not answer; ConnectionError when the client is gone."""
        if hdrs.UPGRADE in request.headers:
            return await self._spliced(request)
        headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() not in _PER_HOP)
        data: bytes | StreamReader | None = body
        if body is not None:
            headers.popall(hdrs.CONTENT_ENCODING, None)
            headers.popall(hdrs.CONTENT_LENGTH, None)
        elif request.can_read_body:
            data = request.content
        headers[CLIENT] = request.remote or ""
        url = URL("http://store" + request.rel_url.raw_path_qs, encoded=True)
        try:
            response = await self._http.request(request.method, url, data=data, headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _not_reached(error) from error
        async with response:
            return await _passed_back(gateway, request, response)

    async def _spliced(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=AHEAD_BYTES)
        except (OSError, TimeoutError) as error:
            raise _not_reached(error) from error
        head = [f"{request.method} {request.rel_url.raw_path_qs} HTTP/1.1", f"{CLIENT}: {request.remote or ''}"]
        said = [(name, value) for name, value in request.raw_headers if name.lower() != CLIENT.lower().encode()]
        writer.write("\r\n".join(head).encode() + b"\r\n" + b"".join(b"%b: %b\r\n" % each for each in said) + b"\r\n")
        try:
            return await _Splice(request, reader, writer).run()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _passed_back(gateway: Gateway, request: web.Request, response: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {name: value for name, value in response.headers.items() if name.lower() not in _NOT_BACK}
    if (request_id := response.headers.get(REQUEST_ID)) is not None:
        take_id(request, request_id)  # errors name it in their body, too
    size = response.content_length
    if request.method != hdrs.METH_HEAD and size is not None and size <= AHEAD_BYTES:
        return web.Response(status=response.status, body=await _read(response.read), headers=headers)
    answer = StreamedAnswer(gateway, request, status=response.status, headers=headers)
    answer.response.content_length = size
    if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
        answer.allowance.must_send = True
    await answer.begin()  # the first bytes of a stream may be long in coming
    try:
        while piece := await _read(response.content.readany):
            await answer.write(piece)
        return await answer.end()
    except RequestError:
        return answer.gone()  # it ends short, which its client sees


async def _read(read: Callable[[], object]) -> bytes:
    try:
        return cast(bytes, await read())  # type: ignore[misc]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _not_reached(error) from error


def _not_reached(error: Exception) -> RequestError:
    log.warning("the store's process does not answer error=%s", error or type(error).__name__)
    message = "The store's process does not answer: ask again when it is back."
    return RequestError(OVERLOADED, message, retriable=True, retry_after_ms=1000)


class _Splice:
    """Two connections joined until either ends. It stands in aiohttp's protocol where a WebSocket's parser does, and so
    gets what the client sends behind its request."""

    def __init__(self, request: web.Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._request = request
        self._reader, self._writer = reader, writer
        self._taking: asyncio.Task[None] | None = None  # the other side takes what was written

    async def run(self) -> web.StreamResponse:
        """Join them; the answer is for aiohttp, and writes nothing."""
        request = self._request
        protocol = request.protocol
        protocol.set_parser(cast(WebSocketReader, self))
        protocol.keep_alive(False)
        status = await self._pass_head()
        if status == 101:
            while data := await self._reader.read(AHEAD_BYTES):
                await self._write(data)
        if (transport := request.transport) is not None:
            transport.close()
        return _Done(status=status)

    async def _pass_head(self) -> int:
        """Pass the answer's head back, and its body when it is a refusal; its status."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            raise _not_reached(error) from error
        lines = head.split(b"\r\n")
        status = int(lines[0].split(b" ")[1])
        await self._write(head)
        if status != 101:
            left = next((int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")), 0)
            while left and (data := await self._reader.read(min(left, AHEAD_BYTES))):
                left -= len(data)
                await self._write(data)
        return status

    async def _write(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        transport.write(data)
        await self._request.protocol._drain_helper()

    # ---- what aiohttp calls: the client has sent something, or is gone

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass on what the client has sent."""
        self._writer.write(data)
        if self._taking is None and self._writer.transport.get_write_buffer_size() > AHEAD_BYTES:
            if (transport := self._request.transport) is not None:
                transport.pause_reading()
            self._taking = asyncio.create_task(self._take())
        return False, b""

    async def _take(self) -> None:
        with suppress(OSError):
            await self._writer.drain()
        self._taking = None
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    def feed_eof(self) -> None:
        """The client is gone."""
        self._writer.close()


class _Done(web.StreamResponse):
    """An answer that was written."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Nothing is left to write."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Likewise."""


RequestFactory = Callable[..., web.BaseRequest]


def naming_clients(make: RequestFactory) -> RequestFactory:
    """Requests as `make` makes them, with the addresses of the clients that a relay has named."""

    def named(message: RawRequestMessage, *others: object) -> web.BaseRequest:
        request = make(message, *others)
        if (address := message.headers.get(CLIENT)) is not None:
            request._transport_peername = (address, 0)
        return request

    return named

"""Passing whole requests on to another process, and its answers back: bodies as they come, and sockets byte by byte.

To the node that has a group (forwarding.py), over TCP; and from a gateway process beside the store's (`mq serve
--workers`), which answers sends and reads by itself, over a Unix socket (`Relay`). There all else goes on as it came,
with the client's address: the store's process decides about it.

    answers    a small one whole, a large one as it comes, so that a client which reads slowly slows the other process.
               What waits here meanwhile counts among the memory of all answers (`answer_memory.py`); where there is no
               room, an answer that has begun ends short
    upgrades   the request's head is sent on, and bytes are from when the other process has agreed: what is said on a
               socket is looked at by one process only. Before that nothing of the client's goes on: a process that
               does not agree would read it as the next request, whose headers it believes. Reading pauses when more
               than READ_BYTES wait for the other side
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import aiohttp
from aiohttp import hdrs, web
from aiohttp._websocket.reader import WebSocketReader
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict
from yarl import URL

from gateway.errors import OVERLOADED, RequestError
from gateway.surfaces.http.answer_memory import SMALL_BYTES
from gateway.surfaces.http.answers import REQUEST_ID, take_id
from gateway.surfaces.http.connection import Connection
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.streaming import StreamedAnswer
from store.limits import KiB

log = logging.getLogger(__name__)
T = TypeVar("T")

CLIENT = "Mq-Client"
"""Names the address of the client to the process that a request is passed on to. Believed on its Unix socket alone."""

READ_BYTES = 64 * KiB
"""Reading of an answer pauses beyond twice this."""

AHEAD_BYTES_MAX = 2 * READ_BYTES + 256 * KiB
"""What is read of an answer while its client takes what came before: uvloop reads up to 256 KiB at once."""

CONNECT_TIMEOUT_S = 2.0
HOP_BY_HOP = frozenset(
    name.lower()
    for name in (
        hdrs.CONNECTION, hdrs.KEEP_ALIVE, hdrs.PROXY_AUTHENTICATE, hdrs.PROXY_AUTHORIZATION, hdrs.TE, hdrs.TRAILER,
        hdrs.TRANSFER_ENCODING, hdrs.UPGRADE, hdrs.EXPECT, CLIENT,
    )
)  # fmt: skip
"""Headers of one connection."""

_NOT_BACK = HOP_BY_HOP | {hdrs.DATE.lower(), hdrs.SERVER.lower(), hdrs.CONTENT_LENGTH.lower()}
NOT_ADDED = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)
"""What aiohttp's client would say of itself where the caller has not."""


def client_session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """For requests that are passed on as they came: no cookies, no proxies, bodies as they are, no time limit but the
    connection's."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
        read_bufsize=READ_BYTES,
        skip_auto_headers=NOT_ADDED,
    )


class Relay:
    """Passes requests on to the process that listens at a Unix socket. Close it."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._http = client_session(aiohttp.UnixConnector(self._path, limit=0))

    async def close(self) -> None:
        """End what is under way."""
        await self._http.close()

    async def answer(self, gateway: Gateway, request: web.Request, body: bytes | None = None) -> web.StreamResponse:
        """What the other process answers. `body`: the request's, when it was read (and inflated). Raises RequestError
        503 when it does not answer; ConnectionError when the client is gone."""
        if asks_for_socket(request):
            said = [(name, value) for name, value in request.raw_headers if name.lower() != CLIENT.lower().encode()]
            said.append((CLIENT.encode(), (request.remote or "").encode()))
            opening = asyncio.open_unix_connection(self._path, limit=READ_BYTES)
            return await spliced(request, opening, request.rel_url.raw_path_qs, said, _not_reached)
        headers = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP
        )
        data: bytes | StreamReader | None = body
        if body is not None:
            headers.popall(hdrs.CONTENT_ENCODING, None)
            headers.popall(hdrs.CONTENT_LENGTH, None)
        elif request.can_read_body:
            data = request.content
        headers[CLIENT] = request.remote or ""
        url = URL("http://store" + request.rel_url.raw_path_qs, encoded=True)
        try:
            asking = self._http.request(request.method, url, data=data, headers=headers, allow_redirects=False)
            response = await while_there(request, asking)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _not_reached(error) from error
        async with response:
            return await while_there(request, passed_back(gateway, request, response, _not_reached))


Lost = Callable[[Exception], RequestError]
"""What the client is told when the other process does not answer, or not to the end."""


async def while_there(request: web.Request, work: Awaitable[T]) -> T:
    """The result of work for a client, which is given up when that goes: the other process has to learn of it, as
    records that were not delivered may count as taken. Raises ConnectionError then."""
    working = asyncio.ensure_future(work)
    leaving = cast(Connection, request.protocol).lost()
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ConnectionResetError("the client is gone")
        return working.result()
    finally:
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))


async def passed_back(
    gateway: Gateway, request: web.Request, response: aiohttp.ClientResponse, lost: Lost
) -> web.StreamResponse:
    """The answer of another process as that to a request here. Raises RequestError; ConnectionError when the client is
    gone."""
    headers = CIMultiDict((name, value) for name, value in response.headers.items() if name.lower() not in _NOT_BACK)
    if (request_id := headers.popall(REQUEST_ID, [None])[0]) is not None:
        take_id(request, request_id)  # errors name it in their body, too
    size = response.content_length
    if size is not None and size <= SMALL_BYTES and request.method != hdrs.METH_HEAD:
        return web.Response(status=response.status, body=await _read(response.read, lost), headers=headers)
    answer = StreamedAnswer(gateway, request, status=response.status, headers=headers)
    answer.response.content_length = size
    if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
        answer.allowance.must_send = True
    if size is None:
        await answer.begin()  # the first bytes of a stream may be long in coming
    try:
        while piece := await _read(response.content.readany, lost):
            await answer.write(piece, ahead_bytes=min(AHEAD_BYTES_MAX, size or AHEAD_BYTES_MAX))
        return await answer.end()
    except RequestError:
        if not answer.has_begun:
            raise
        return answer.gone()  # it ends short, which its client sees


async def _read(read: Callable[[], Awaitable[bytes]], lost: Lost) -> bytes:
    try:
        return await read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise lost(error) from error


def asks_for_socket(request: web.Request) -> bool:
    """Whether a request is the beginning of a WebSocket."""
    return request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"


async def spliced(
    request: web.Request,
    opening: Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    target: str,
    headers: Sequence[tuple[bytes, bytes]],
    lost: Lost,
    unopened: Lost | None = None,
) -> web.StreamResponse:
    """Send an upgrade on over a connection that is being opened, and join both until one ends. Raises RequestError when
    there is no answer; `unopened`, if given, says what when there is no connection."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await opening
    except (OSError, TimeoutError) as error:
        raise (unopened or lost)(error) from error
    lines = b"".join(b"%b: %b\r\n" % each for each in headers)
    writer.write(f"{request.method} {target} HTTP/1.1\r\n".encode() + lines + b"\r\n")
    try:
        return await _Splice(request, reader, writer, lost).run()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _not_reached(error: Exception) -> RequestError:
    log.warning("the store's process does not answer error=%s", error or type(error).__name__)
    message = "The store's process does not answer: ask again when it is back."
    return RequestError(OVERLOADED, message, retriable=True, retry_after_ms=1000)


class _Splice:
    """Two connections joined until either ends. It stands in aiohttp's protocol where a WebSocket's parser does, and so
    gets what the client sends behind its request."""

    def __init__(
        self, request: web.Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: Lost
    ) -> None:
        self._request = request
        self._lost = lost
        self._reader, self._writer = reader, writer
        self._is_joined = False  # the other side has agreed
        self._early = b""  # what the client has said before
        self._taking: asyncio.Task[None] | None = None  # the other side takes what was written

    async def run(self) -> web.StreamResponse:
        """Join them; the answer is for aiohttp, and writes nothing."""
        request = self._request
        protocol = request.protocol
        protocol.set_parser(cast(WebSocketReader, self))
        protocol.keep_alive(False)
        cast(Connection, protocol).is_spliced = True
        status = await self._pass_head()
        if status == 101:
            self._join()
            while data := await self._reader.read(READ_BYTES):
                await self._write(data)
        if (transport := request.transport) is not None:
            transport.close()
        return _Done(status=status)

    async def _pass_head(self) -> int:
        """Pass the answer's head back, and its body when it is a refusal; its status."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            raise self._lost(error) from error
        lines = head.split(b"\r\n")
        status = int(lines[0].split(b" ")[1])
        await self._write(head)
        if status != 101:
            left = next((int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")), 0)
            while left and (data := await self._reader.read(min(left, READ_BYTES))):
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
        """Pass on what the client has sent, or keep it until the other side has agreed."""
        if self._is_joined:
            self._pass(data)
        elif data:
            self._request.protocol._pause_reading_for_buffer()
            self._early += data
        return False, b""

    def _join(self) -> None:
        self._is_joined = True
        if early := self._early:
            self._early = b""
            self._request.protocol._resume_reading_for_buffer()
            self._pass(early)

    def _pass(self, data: bytes) -> None:
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size() > READ_BYTES:
            # Again, though it was: what the connection held back for others' turn lets it read on.
            self._request.protocol._pause_reading_for_buffer()
            if self._taking is None:
                self._taking = asyncio.create_task(self._take())

    async def _take(self) -> None:
        with suppress(OSError):
            await self._writer.drain()
        self._taking = None
        self._request.protocol._resume_reading_for_buffer()

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

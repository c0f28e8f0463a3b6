"""Building answers: JSON bodies by orjson, errors in the one shape, headers that every answer has."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec
import orjson
import zstandard
from aiohttp import hdrs, web
from multidict import istr

from gateway.errors import RequestError
from gateway.surfaces.http.buffers_body import BuffersBody, body_of
from gateway.surfaces.http.media import JSON_TYPE, V2_TYPE, json_type
from gateway.surfaces.http.statuses import status_of
from store.limits import KiB
from store.types import Buffer

REQUEST_ID = istr("X-Request-Id")
_REQUEST_ID_KEY = web.RequestKey("mq.request_id", str)
REQUEST_ID_CHARS_MAX = 128
"""Of an id that a client sends and that is repeated in the answer; a longer one is replaced."""

_ANYTHING = "*/*"

PACK_BYTES_MIN = 16 * KiB
"""Answers below this size are never compressed: it would cost more than it saves."""

ROWS_A_TURN = 150
"""Rows of a long list that are rendered between two turns of the event loop: up to 30 us each."""

_GZIP = 31


class RequestIds:
    """Ids of requests whose client sent none: unique among processes by a random prefix, cheap by a counter."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6).encode()
        self._numbers = itertools.count(1)

    def of(self, request: web.BaseRequest) -> str:
        """The id of this request, the client's own if it is fit to be repeated; the same at every call."""
        known: str | None = request.get(_REQUEST_ID_KEY)
        return self.of_headers(request.headers) if known is None else known

    def of_headers(self, headers: Mapping[str, str]) -> str:
        """The id of a request with these headers; another one at every call, unless its client sent one."""
        sent = self.sent_in(headers)
        return self.new() if sent is None else sent

    @staticmethod
    def sent_in(headers: Mapping[str, str]) -> str | None:
        """The id that a client sent, if it is fit to be repeated."""
        sent = headers.get(REQUEST_ID)
        if sent is not None and len(sent) <= REQUEST_ID_CHARS_MAX and sent.isascii() and sent.isprintable():
            return sent
        return None

    def new(self) -> str:
        """An id for a request whose client sent none."""
        return self.new_bytes().decode()

    def new_bytes(self) -> bytes:
        """As `new`, as it is sent."""
        return b"%b-%x" % (self._prefix, next(self._numbers))

    def fixed(self, request: web.BaseRequest) -> str:
        """As `of`, and remembered, for answers that name the id in their body too."""
        request[_REQUEST_ID_KEY] = request_id = self.of(request)
        return request_id


def take_id(request: web.BaseRequest, request_id: str) -> None:
    """Have a request's id be the one that another process has given it."""
    request[_REQUEST_ID_KEY] = request_id


def json_answer(
    request: web.BaseRequest,
    body: object,
    *,
    status: int = 200,
    default_type: str = JSON_TYPE,
) -> web.Response:
    """An answer with a JSON body, in the type the client prefers. `body`: structs of `gateway/api/shapes`, or what JSON
    has. Raises RequestError 406; see `check_accept`."""
    content_type = json_type(request.headers.get(hdrs.ACCEPT, _ANYTHING), default_type)
    text = orjson.dumps(body, default=msgspec.to_builtins)
    return web.Response(body=text, status=status, headers={hdrs.CONTENT_TYPE: content_type})


async def list_answer(
    request: web.BaseRequest, fields: Mapping[str, object], name: str, rows: Iterable[object]
) -> web.Response:
    """An answer with these fields and, under a name, an array of rows that are made when they are asked for: in turns
    of the event loop, however many. They are not joined, which takes milliseconds for as many megabytes. Raises
    RequestError 406."""
    content_type = json_type(request.headers.get(hdrs.ACCEPT, _ANYTHING), JSON_TYPE)
    before = {field: value for field, value in fields.items() if field != name}
    between = orjson.dumps({**before, name: []})[:-2]
    parts: list[bytes] = []
    rest = iter(rows)
    while some := list(islice(rest, ROWS_A_TURN)):
        parts.append(between)
        parts.append(msgspec.json.encode(some)[1:-1])
        between = b","
        await asyncio.sleep(0)
    parts.append(b"]}" if parts else between + b"]}")
    return web.Response(body=body_of(parts), headers={hdrs.CONTENT_TYPE: content_type})


def v2_answer(request: web.BaseRequest, body: object) -> web.Response:
    """An answer of the REST Proxy's surface."""
    return json_answer(request, body, default_type=V2_TYPE)


MISSING_NODES = "Mq-Missing-Nodes"
"""The header that names the nodes of a cluster of which an answer has nothing: they did not answer."""


def lacking(response: web.Response, nodes: Sequence[str]) -> web.Response:
    """The same answer, saying of which nodes it has nothing."""
    if nodes:
        response.headers[MISSING_NODES] = ", ".join(nodes)
    return response


PART = web.RequestKey("mq.part", bool)
"""In a request: its answer is a part of one. `packed` leaves it as it is."""


async def packed(request: web.BaseRequest, response: web.Response) -> web.Response:
    """The same answer with its body as `packed_body` has it."""
    body, accept = response.body, request.headers.get(hdrs.ACCEPT_ENCODING)
    if PART not in request and isinstance(body, bytes | BuffersBody):
        packed, headers = await packed_body(accept, body.buffers if isinstance(body, BuffersBody) else (body,))
        if packed is not None:
            response.body = packed
        response.headers.update(headers)
    return response


async def packed_body(accept: str | None, buffers: Sequence[Buffer]) -> tuple[bytes | None, Mapping[str, str]]:
    """A body compressed in a thread, when it is large and `accept` (Accept-Encoding) has zstd or gzip, else None; and
    the headers that say how it is."""
    if accept is None or sum(map(len, buffers)) < PACK_BYTES_MIN:
        return None, {}
    coding = next((coding for coding in ("zstd", "gzip") if _accepts(accept, coding)), None)
    if coding is None:
        return None, {hdrs.VARY: hdrs.ACCEPT_ENCODING}
    pack = zstandard.ZstdCompressor(level=1).compress if coding == "zstd" else _gzip
    packed = await asyncio.to_thread(lambda: pack(b"".join(buffers)))
    return packed, {hdrs.CONTENT_ENCODING: coding, hdrs.VARY: hdrs.ACCEPT_ENCODING}


def _accepts(accept_encoding: str, coding: str) -> bool:
    for part in accept_encoding.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() == coding:
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, level=1, wbits=_GZIP)


def check_accept(request: web.BaseRequest) -> str:
    """The type of a JSON answer. Called before anything is changed: a 406 must not follow a write."""
    return json_type(request.headers.get(hdrs.ACCEPT, _ANYTHING), V2_TYPE)


def error_answer(error: RequestError, request_id: str) -> web.Response:
    """The answer to a refused request."""
    response = web.Response(
        body=orjson.dumps(error.body(request_id)),
        status=status_of(error.error_code),
        headers={hdrs.CONTENT_TYPE: JSON_TYPE},
    )
    if error.retry_after_ms is not None:
        response.headers[hdrs.RETRY_AFTER] = str(-(-error.retry_after_ms // 1000))
    return response

"""Reading requests: bodies within a size and a deadline, query parameters within their type and range.

aiohttp neither limits how long a body takes nor, once it inflates, what it costs; so aiohttp inflates nothing, and
every body is read and inflated here, within the budget of `gateway/codec/inflate.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeVar

from aiohttp import web
from multidict import MultiDict, istr

from gateway.api.shapes.base import AnyShape, load, load_json, load_texts
from gateway.api.turns import aside
from gateway.auth.credentials import IN_QUERY
from gateway.codec.inflate import ENCODINGS, BadEncoding, InflatedTooLarge, Inflater
from gateway.codec.json_steps import STEP_BYTES
from gateway.codec.json_text import parse_json
from gateway.errors import OVERLOADED, RequestError, bad_request
from gateway.routing.base import TopicView
from gateway.settings.limits import Limits
from gateway.surfaces.http.context import Gateway
from store.limits import MiB
from store.turns import others_turn

Result = TypeVar("Result")

_CONTENT_ENCODING = istr("Content-Encoding")
_TURN_BYTES = 1 * MiB  # inflated between two turns of the event loop
_NO_LIMIT = 2**63
RETRY_MS = 1000
NO_HEADERS: Mapping[str, istr] = MappingProxyType({})


class Unread(RequestError):
    """A refusal that leaves the rest of the body unread, so the connection must end with the answer."""


async def read_body(gateway: Gateway, request: web.Request, *, bytes_max: int) -> tuple[bytes, int]:
    """The whole body, inflated, of at most `bytes_max`, complete within `body_timeout_ms`; and how many bytes of it
    count among those being received, which its user gives back (`give_back`): none of one that arrived with
    the head, as small bodies do.

    Raises RequestError 408, 413, 415, 503, or 400 when the body breaks HTTP or its encoding.
    """
    content = request.content
    if content.is_eof():
        return await _plain(request, content.read_nowait(), bytes_max), 0
    if (request.content_length or 0) > bytes_max:
        raise _too_large(bytes_max)
    stats, received_bytes_max = gateway.stats, gateway.limits.receiving_bytes_max
    timeout_ms = gateway.config.body_timeout_ms
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while part := await content.readany():
                parts.append(part)
                size += len(part)
                stats.receiving_bytes += len(part)
                if size > bytes_max:
                    raise _too_large(bytes_max)
                if stats.receiving_bytes > received_bytes_max:
                    stats.body_refused_count += 1
                    raise Unread(
                        OVERLOADED, "Too many bytes are being received. Nothing was stored.", True, None, RETRY_MS
                    )
        body = await _plain(request, await _joined(parts, size), bytes_max)
    except BaseException as error:
        stats.receiving_bytes -= size
        if isinstance(error, TimeoutError):
            raise Unread(408, f"The body was not complete after {timeout_ms} ms.", retriable=True) from None
        if isinstance(error, web.RequestPayloadError):
            raise Unread(400, f"The body breaks HTTP: {error}") from None
        raise
    finally:
        parts.clear()  # an error's traceback may live long, and this frame with it
        part = b""
    stats.receiving_bytes += len(body) - size
    return body, len(body)


def give_back(gateway: Gateway, size: int) -> None:
    """A body that `read_body` has read is not needed any more."""
    gateway.stats.receiving_bytes -= size


async def _plain(request: web.Request, body: bytes, bytes_max: int) -> bytes:
    """A body without its encoding."""
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    if _CONTENT_ENCODING in request.headers:
        inflater = _inflater(request, bytes_max)
        if inflater is not None:
            return await _inflated(inflater, body)
    return body


class BodyStream:
    """The body of a request piece by piece, inflated, for bodies without end: only waiting for a piece has a limit."""

    def __init__(self, request: web.Request, *, timeout_ms: int, charge: Callable[[int], None] | None = None) -> None:
        """`charge` is called with the bytes of each piece as they arrive, and may refuse. Raises RequestError 415."""
        self._content = request.content
        self._timeout_ms = timeout_ms
        self._charge = charge
        self._inflater = _inflater(request, _NO_LIMIT) if _CONTENT_ENCODING in request.headers else None

    async def pieces(self) -> AsyncIterator[bytes]:
        """What arrives, as it arrives. Raises RequestError 408, 413, or 400 when the body breaks HTTP or its encoding;
        the connection must end then."""
        inflater = self._inflater
        while arrived := await self._read():
            if self._charge is not None:
                self._charge(len(arrived))
            if inflater is None:
                yield arrived
                continue
            unseen_bytes = 0
            try:
                await others_turn()  # a few bytes may be many in the first piece already, of many requests at once
                for piece in inflater.feed(arrived):
                    unseen_bytes += len(piece)
                    yield piece
                    if unseen_bytes >= _TURN_BYTES:
                        unseen_bytes = 0
                        await others_turn()
            except ValueError as error:
                raise _not_inflated(error) from None
        if inflater is not None:
            try:
                inflater.finish()
            except BadEncoding as error:
                raise _not_inflated(error) from None

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await self._content.readany()
        except TimeoutError:
            raise Unread(408, f"No byte of the body came for {self._timeout_ms} ms.", retriable=True) from None
        except web.RequestPayloadError as error:
            raise Unread(400, f"The body breaks HTTP: {error}") from error


async def _inflated(inflater: Inflater, body: bytes) -> bytes:
    parts: list[bytes] = []
    part = b""
    unseen_bytes = 0
    try:
        await others_turn()  # a few bytes may be many in the first piece already, of many requests at once
        for part in inflater.feed(body):
            parts.append(part)
            unseen_bytes += len(part)
            if unseen_bytes >= _TURN_BYTES:
                unseen_bytes = 0
                await others_turn()
            part = b""
        inflater.finish()
        return await _joined(parts, sum(map(len, parts)))
    except ValueError as error:
        raise _not_inflated(error) from None
    finally:
        parts.clear()  # the error has this frame in its traceback, and waits for the collector
        part = b""


async def _joined(parts: list[bytes], size: int) -> bytes:
    """The whole of it. Megabytes are put together in a thread, for which CPython lets go of its lock: the system takes
    up to 3 ms for each MiB of memory that is new to the process (on a virtual machine)."""
    return await aside(lambda: b"".join(parts), is_long=size > _TURN_BYTES)


def _inflater(request: web.Request, bytes_max: int) -> Inflater | None:
    """What inflates this body; None when it is plain. Raises RequestError 415."""
    encoding = request.headers[_CONTENT_ENCODING].strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in ENCODINGS:
        accepted = ", ".join(name for name in ENCODINGS if not name.startswith("x-"))
        raise Unread(415, f"HTTP 415 Unsupported Media Type: Content-Encoding must be one of {accepted}, or none.")
    return Inflater(encoding, bytes_max=bytes_max)


def _not_inflated(error: ValueError) -> RequestError:
    if isinstance(error, InflatedTooLarge):
        return Unread(413, f"The body is too large: {error}.")
    if isinstance(error, BadEncoding):
        return Unread(400, f"Content-Encoding: {error}.")
    raise error


def _too_large(bytes_max: int) -> Unread:
    return Unread(413, f"The body is too large; the limit is {bytes_max} bytes.")


def read_query(
    shape: type[AnyShape], request: web.Request, gateway: Gateway, *, headers: Mapping[str, istr] = NO_HEADERS
) -> AnyShape:
    """The struct of the query parameters, without those by which a browser says who it is. `headers`: those that may
    say the same as a parameter, by its name. Raises RequestError 400, 422, 42253."""
    given = [(name, text) for name, header in headers.items() for text in request.headers.getall(header, ())]
    query: Mapping[str, str] = request.query if request.query_string else {}
    if request.method == "GET" and any(name in query for name in IN_QUERY):
        query = MultiDict((name, text) for name, text in query.items() if name not in IN_QUERY)
    return query_of(shape, query, gateway.limits, given)


def query_of(
    shape: type[AnyShape], query: Mapping[str, str], limits: Limits, given: Iterable[tuple[str, str]] = ()
) -> AnyShape:
    """The struct of these query parameters, and of `given` ones that are said elsewhere. Raises as `read_query`."""
    texts: dict[str, str] = {}

    for name, text in chain(query.items(), given):
        if name in texts:
            raise bad_request(f"{name}: given more than once")
        texts[name] = text
    return load_texts(shape, texts, limits)


def partition_in(request: web.Request) -> int | None:
    """The partition of the path; None when the path has none. Raises RequestError 404 for one that is no number."""
    text = request.match_info.get("partition")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise RequestError(404, "HTTP 404 Not Found")
    return int(text)


async def let_go(items: list[Any], size_bytes: int) -> None:
    """Forget what was parsed of so many bytes, in turns: to free millions of objects takes as long as to make them."""
    count = max(1, len(items) * MiB // (size_bytes + 1))
    while items:
        del items[-count:]
        await others_turn()


def read_shape(shape: type[AnyShape], body: bytes, gateway: Gateway) -> AnyShape:
    """The struct of a JSON body; no body is an empty object. Raises RequestError 400, 422."""
    if len(body) > STEP_BYTES:
        return load_json(shape, body, gateway.limits)
    return load(shape, json_object(body) if body.strip() else {}, gateway.limits)


def json_object(body: bytes, example: str = "") -> dict[str, object]:
    """The JSON object of a body. Raises RequestError 400."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise bad_request(
            f"The body must be a JSON object such as {example}." if example else "The body must be a JSON object."
        )
    return value


def topic_in(gateway: Gateway, request: web.Request) -> TopicView:
    """The topic of the path. Raises UnknownQueue."""
    return gateway.routes_table.topic(request.match_info["topic"])

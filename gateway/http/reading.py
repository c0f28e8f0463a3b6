"""Reading requests: bodies within a size and a deadline, query parameters within their type and range.

aiohttp neither limits how long a body takes nor, once it inflates, what it costs; the server therefore inflates
nothing (a Content-Encoding is refused) and every body is read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import web
from multidict import istr

from gateway.codec.times import parse_time_ms
from gateway.http.errors import LIMIT_ILLEGAL, RequestError, bad_request, invalid

_CONTENT_ENCODING = istr("Content-Encoding")


class Unread(RequestError):
    """A refusal that leaves the rest of the body unread, so the connection must end with the answer."""


async def read_body(request: web.Request, *, bytes_max: int, timeout_ms: int) -> bytes:
    """The whole body, of at most `bytes_max`, complete within `timeout_ms`.

    Raises RequestError 408, 413, 415, or 400 when the body breaks HTTP.
    """
    if _CONTENT_ENCODING in request.headers:
        raise Unread(
            415, 415, "HTTP 415 Unsupported Media Type: Content-Encoding is not accepted, send the body plain."
        )
    content = request.content
    if content.is_eof():  # arrived with the headers, as small bodies do
        body = content.read_nowait()
    else:
        if (request.content_length or 0) > bytes_max:
            raise _too_large(bytes_max)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                parts: list[bytes] = []
                size = 0
                while part := await content.readany():
                    parts.append(part)
                    size += len(part)
                    if size > bytes_max:
                        raise _too_large(bytes_max)
        except TimeoutError:
            raise Unread(408, 408, f"The body was not complete after {timeout_ms} ms.", retriable=True) from None
        except web.RequestPayloadError as error:
            raise Unread(400, 400, f"The body breaks HTTP: {error}") from error
        body = b"".join(parts)
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    return body


def _too_large(bytes_max: int) -> Unread:
    return Unread(413, 413, f"The body is too large; the limit is {bytes_max} bytes.")


class Query:
    """The query parameters of one request, each at most once. With `known`, any other name is refused."""

    def __init__(self, request: web.Request, *, known: Iterable[str] | None = None) -> None:
        self._values: dict[str, str] = {}
        if not request.query_string:
            return
        for name, value in request.query.items():
            if known is not None and name not in known:
                raise invalid(f"Unrecognized parameter: {name}")
            if name in self._values:
                raise bad_request(f"{name}: given more than once")
            self._values[name] = value

    def text(self, name: str) -> str | None:
        """The parameter as it was sent; None when it was not."""
        return self._values.get(name)

    def integer(self, name: str, default: int, *, least: int, most: int | None = None, clamp: bool = False) -> int:
        """The parameter as an integer from `least` to `most`; with `clamp` a larger one counts as `most`.

        Raises RequestError 400 when it is no integer, 422 when it is out of range.
        """
        text = self._values.get(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            raise bad_request(f"{name}: must be an integer")
        value = int(text)
        if most is not None and value > most and clamp:
            return most
        if value < least or (most is not None and value > most):
            rule = f"must be at least {least}" if most is None else f"must be between {least} and {most}"
            raise RequestError(422, LIMIT_ILLEGAL, f"{name}: {rule}")
        return value

    def time_ms(self, name: str) -> int | None:
        """The parameter as a time: epoch ms or RFC 3339. Raises RequestError 400."""
        text = self._values.get(name)
        if text is None:
            return None
        try:
            return parse_time_ms(int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else text)
        except ValueError as error:
            raise bad_request(f"{name}: {error}") from error


def partition_in(request: web.Request) -> int | None:
    """The partition of the path; None when the path has none. Raises RequestError 404 for one that is no number."""
    text = request.match_info.get("partition")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise RequestError(404, 404, "HTTP 404 Not Found")
    return int(text)

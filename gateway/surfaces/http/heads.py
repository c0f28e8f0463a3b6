"""Heads of requests that aiohttp's parser has read before, with what they came to.

Equal bytes parse equally: a head that is found here has the parser's answer, so there is no second grammar of HTTP.
Heads are compared without the digits of their Content-Length, and without their X-Request-Id when it is made of
letters, digits and `.-_`: how many such characters there are, and which, changes nothing else of what the parser says.
A GET has no body: of its head the digits of the parameter `offset` are left out, as a reader's next pull has others.
Whatever may change between two equal requests (rights, topics, quotas) is no part of what is remembered.

Invariants
    H1  a head is only remembered when it was the parser's whole input up to its end, each of its lines is a header to
        the parser, one of them is the Content-Length (of a GET none), one at most an X-Request-Id, and both are where
        they are cut out
    H2  a head is only found where the digits that were cut out are digits, LENGTH_DIGITS_MAX of them at most (of an
        offset OFFSET_DIGITS_MAX), and the id that was cut out has REQUEST_ID_CHARS_MAX of those characters at most, and
        one at least
    H3  two heads that are equal without what was cut out were cut at the same places: each place is behind the first
        occurrence of a name, and what is cut out has no part in any occurrence; `offset` is in the target once, which
        whoever gives a meaning to a GET has seen
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

from aiohttp import hdrs
from aiohttp.http_parser import RawRequestMessage

from gateway.surfaces.http.answers import REQUEST_ID, REQUEST_ID_CHARS_MAX
from store.limits import KiB

HEADS_MAX = 1024
"""Heads remembered; the oldest is forgotten first. Each holds some 3 KiB."""

HEAD_BYTES_MAX = 2 * KiB
"""Longer heads are not remembered."""

LENGTH_DIGITS_MAX = 9
"""Of a Content-Length in a head that is found here: more is no body for a fast path."""

OFFSET_DIGITS_MAX = 19
"""Of an offset in a head that is found here."""

END = b"\r\n\r\n"
_LINE = b"\r\n"
_LENGTHS = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
"""As clients write it; who writes it otherwise is parsed each time."""
_LENGTH_BYTES = len(_LENGTHS[0])
_IDS = (b"\r\nX-Request-Id: ", b"\r\nx-request-id: ")
_ID_BYTES = len(_IDS[0])
_ID = re.compile(rb"[A-Za-z0-9._-]{1,%d}" % REQUEST_ID_CHARS_MAX)
_ID_NAME = b"x-request-id"
_GET = b"GET "
_OFFSET = re.compile(rb"GET /[!->@-~]*\?(?:[!-%%'-~]*&)*?offset=([0-9]{1,%d})(?=[& ])" % OFFSET_DIGITS_MAX)

Meaning = TypeVar("Meaning")

Found = tuple[Meaning, int, int, str | None, int | None]
"""What a head means, where its body begins in the data, and where it ends; the id that its client gave the request; the
offset that a GET asks for."""


_Key = bytes | tuple[bytes]
"""A head without the digits of its length or offset; in a tuple, without a request id too."""


def _cut_length(data: bytes) -> tuple[bytes, bytes, int] | None:
    """A head without the digits of its length, those, and where its body begins; None where there is no length, or no
    end of the head."""
    at = data.find(_LENGTHS[0], 0, HEAD_BYTES_MAX)
    if at < 0:
        at = data.find(_LENGTHS[1], 0, HEAD_BYTES_MAX)
        if at < 0:
            return None
    at += _LENGTH_BYTES
    stop = data.find(_LINE, at)
    end = data.find(END, stop) if stop >= 0 else -1
    if end < 0:
        return None
    end += len(END)
    return data[:at] + data[stop:end], data[at:stop], end


def _cut_offset(data: bytes) -> tuple[bytes, bytes, int] | None:
    """The head of a GET without the digits of its offset, those, and where it ends; None where there is no offset, or
    no end of the head."""
    match = _OFFSET.match(data, 0, HEAD_BYTES_MAX)
    if match is None:
        return None
    at, stop = match.span(1)
    end = data.find(END, stop)
    if end < 0:
        return None
    end += len(END)
    return data[:at] + data[stop:end], match[1], end


def _cut(data: bytes) -> tuple[bytes, bytes, int] | None:
    """The head without the digits of what differs from request to request of its kind, those, and where it ends."""
    return _cut_offset(data) if data.startswith(_GET) else _cut_length(data)


def _cut_id(head: bytes) -> tuple[_Key, bytes] | None:
    """The same without its request id, and that; None where there is none, or one of other characters."""
    at = head.find(_IDS[0])
    if at < 0:
        at = head.find(_IDS[1])
        if at < 0:
            return None
    at += _ID_BYTES
    request_id = head[at : head.find(_LINE, at)]
    if _ID.fullmatch(request_id) is None:
        return None
    return (head[:at] + head[at + len(request_id) :],), request_id


class HeadMemo(Generic[Meaning]):
    """What the heads of requests mean. `HEADS_MAX` times `HEAD_BYTES_MAX` bounds its bytes."""

    def __init__(self) -> None:
        self._heads: dict[_Key, Meaning] = {}
        self._last: tuple[bytes, Found[Meaning]] | None = None  # found, its digits included: others send the same

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, data: bytes) -> Found[Meaning] | None:
        """What `data` is, when it begins with a head that is remembered; its body may have yet to come."""
        last = self._last
        if last is not None and data.startswith(last[0]):
            return last[1]
        cut = _cut(data)
        if cut is None:
            return None
        head, digits, start = cut
        request_id: str | None = None
        meaning = self._heads.get(head)  # first as it is: few clients number their requests
        if meaning is None:
            named = _cut_id(head)
            if named is None:
                return None
            meaning = self._heads.get(named[0])
            request_id = named[1].decode()
        if meaning is None:
            return None
        found: Found[Meaning]
        if head.startswith(_GET):
            found = meaning, start, start, request_id, int(digits)
        elif not digits.isdigit() or len(digits) > LENGTH_DIGITS_MAX:  # H2
            return None
        else:
            found = meaning, start, start + int(digits), request_id, None
        if request_id is None:
            self._last = data[:start], found
        return found

    def remember(self, data: bytes, message: RawRequestMessage, meaning: Meaning) -> None:
        """Remember the head that `data` begins with, which the parser, between two requests, has read as `message`. One
        that may not be remembered (H1) is not."""
        cut = _cut(data)
        if cut is None:
            return
        head, digits, start = cut
        is_get = head.startswith(_GET)
        key, request_id = _cut_id(head) or (head, None)
        names = [name.lower() for name, _ in message.raw_headers]
        is_whole = (
            start <= HEAD_BYTES_MAX
            and data.startswith(message.method.encode() + b" ")
            and data.count(_LINE, 0, start) == len(names) + 2
            and names.count(b"content-length") == (not is_get)
            and (is_get or message.headers[hdrs.CONTENT_LENGTH].encode() == digits)
            and names.count(_ID_NAME) == (request_id is not None)
            and (request_id is None or message.headers[REQUEST_ID].encode() == request_id)
        )
        if not is_whole:
            return
        if len(self._heads) >= HEADS_MAX:
            del self._heads[next(iter(self._heads))]
        self._heads[key] = meaning
        self._last = None

    def clear(self) -> None:
        """Forget all: heads hold credentials."""
        self._heads.clear()
        self._last = None

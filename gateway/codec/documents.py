"""Cutting an endless body into documents: lines (NDJSON), or JSON values one behind the other. Pure and incremental.

Invariants
    D1  no more than `bytes_max` of an unfinished document are kept: a longer one is answered by one TOO_LONG, and
        lines go on behind it, at the next line break; a stream of values cannot (where the next one begins is unknown)
    D2  however the body arrives in chunks, the documents are the same
    D3  a turn of the event loop looks at `turn_bytes` of a chunk at most, where looking is dear
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from store.limits import KiB, MiB


class Unreadable(Enum):
    """Stands for a document beyond a limit: of its bytes, or of its parts."""

    TOO_LONG = "too long"
    TOO_DEAR = "too dear"


_SPACE = b" \t\r\n"
TOO_LONG, TOO_DEAR = Unreadable.TOO_LONG, Unreadable.TOO_DEAR
Document = bytes | Unreadable


class Splitter(Protocol):
    """Cuts documents out of the chunks of a body."""

    turn_bytes: int
    """What to feed at a time, so that it takes a few milliseconds at most whatever the bytes are."""

    def feed(self, chunk: bytes) -> list[Document]:
        """The documents that end in this chunk."""
        ...

    def finish(self) -> list[Document]:
        """What is left at the end of the body: a last document without an end mark, perhaps cut short."""
        ...

    @property
    def is_broken(self) -> bool:
        """Whether nothing further can be told apart."""
        ...


class Lines:
    """Documents on lines of their own. Blank lines are none; a carriage return before the line break is no part."""

    is_broken = False
    turn_bytes = 1 * MiB

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._skips = False

    def feed(self, chunk: bytes) -> list[Document]:
        """See `Splitter.feed`."""
        *ended, rest = chunk.split(b"\n")
        documents: list[Document] = []
        if ended:
            self._keep(ended[0])
            documents += self._take()
            bytes_max = self._bytes_max
            documents += [
                TOO_LONG if len(line) > bytes_max else line for line in ended[1:] if line and not line.isspace()
            ]
        self._keep(rest)
        return documents

    def finish(self) -> list[Document]:
        """See `Splitter.finish`."""
        return self._take()

    def _keep(self, part: bytes) -> None:
        self._rest_bytes += len(part)
        if self._rest_bytes > self._bytes_max:
            self._skips = True
            self._rest.clear()
        else:
            self._rest.append(part)

    def _take(self) -> list[Document]:
        line = b"".join(self._rest)
        skips = self._skips
        self._rest.clear()
        self._rest_bytes = 0
        self._skips = False
        if skips:
            return [TOO_LONG]
        return [line] if line and not line.isspace() else []


def single_line(body: bytes) -> bytes | None:
    """The document of a whole body that has only one for `Lines`, if it is JSON; None: that must look."""
    document = body.strip(_SPACE)
    return document if document and b"\n" not in document else None


def single_object(body: bytes) -> bytes | None:
    """The document of a whole body that has only one for `Values`, if it is JSON; None: that must look."""
    document = body.strip(_SPACE)
    return document if document.startswith(b"{") else None


DEPTH_MAX = 1024
"""Brackets within brackets: no parser here takes more (orjson's limit)."""

_MARK = re.compile(rb'["{}\[\]\\]')
_OPENING, _CLOSING = b"{[", b"}]"


class Values:
    """JSON objects (or arrays) one behind the other, with or without white space between them.

    Looks at brackets outside of strings only; whether a document is JSON is for its parser to say. What is no object
    and no array is one document up to the next one that is. One that is nested too deep ends where it is, which is no
    JSON, and with it the stream.
    """

    turn_bytes = 8 * KiB  # of nothing but brackets: 5 ms

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._seen = 0  # bytes of the buffer that have been looked at
        self._depth = 0
        self._in_string = False
        self.is_broken = False

    def feed(self, chunk: bytes) -> list[Document]:
        """See `Splitter.feed`."""
        if self.is_broken:
            return []
        self._buffer += chunk
        buffer = self._buffer
        documents: list[Document] = []
        start = 0  # of the document that is being read
        at = self._seen
        find: Callable[..., re.Match[bytes] | None] = _MARK.search
        while (mark := find(buffer, at)) is not None:
            at = mark.end()
            byte = mark[0]
            if byte == b"\\":
                if self._in_string:
                    at += 1  # whatever it escapes; it may not have come yet
            elif byte == b'"':
                self._in_string = not self._in_string
            elif self._in_string:
                pass
            elif byte in _OPENING:
                if not self._depth:
                    documents += self._document(start, mark.start())
                    start = mark.start()
                self._depth += 1
                if self._depth > DEPTH_MAX:
                    self.is_broken = True
                    documents.append(bytes(buffer[start:at]))
                    buffer.clear()
            else:
                self._depth = max(self._depth - 1, 0)
                if not self._depth:
                    documents += self._document(start, at)
                    start = at
            if self.is_broken:
                return documents
        self._seen = max(at, len(buffer)) - start
        if len(buffer) - start > self._bytes_max:
            documents += self._break()
        del buffer[:start]
        return documents

    def finish(self) -> list[Document]:
        """See `Splitter.finish`."""
        rest = bytes(self._buffer).strip(_SPACE)
        self._buffer.clear()
        return [rest] if rest else []

    def _document(self, start: int, stop: int) -> list[Document]:
        if stop - start > self._bytes_max:
            return self._break()
        document = bytes(self._buffer[start:stop]).strip(_SPACE)
        return [document] if document else []

    def _break(self) -> list[Document]:
        self.is_broken = True
        self._buffer.clear()
        return [TOO_LONG]

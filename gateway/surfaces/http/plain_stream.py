"""Plain requests of the streams of `produce_stream.py`, for the fast path: a body that has arrived whole, and holds one
record. Cut, read and answered by what the stream is made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from aiohttp import hdrs
from aiohttp.http_parser import RawRequestMessage

from gateway.api.producer import Receipt
from gateway.codec.documents import Document
from gateway.codec.native import Parsed
from gateway.codec.records import ProduceRecord
from gateway.errors import RequestError
from gateway.routing.base import TopicView
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.plain import BODY_BYTES_MAX, Asked, Sent, head_of
from gateway.surfaces.http.produce_stream import Dialect
from gateway.surfaces.http.send_options import acks_named


class PlainDialect(Dialect, Protocol):
    """A dialect that reads and writes the commonest record at once: a test compares it with what all others get."""

    def parse(self, documents: Sequence[Document]) -> Parsed:
        """The records of documents, or for each the error it is answered with: of some, as `parsed` may do more."""
        ...

    def parse_plain(self, document: bytes) -> ProduceRecord | None:
        """As `parse`, for a record with nothing but a key and a value; None: that must look. Raises RequestError, or
        ValueError, for what is none."""
        ...

    def plain_receipt(self, record: ProduceRecord, receipt: Receipt) -> bytes:
        """As `receipt`, as JSON, for the only record of its stream, which was stored at once and for the first time."""
        ...


class PlainStream:
    """A stream of one record; see `plain.RecordForm`."""

    bytes_max = BODY_BYTES_MAX

    def __init__(
        self,
        gateway: Gateway,
        route: str,
        target: str,
        *,
        document: Callable[[bytes], bytes | None],
        dialect: Callable[[TopicView], PlainDialect],
        json_values: bool,
        content_type: str,
        media: tuple[str, ...] = (),
    ) -> None:
        """`target`: a pattern with a group for the topic, and perhaps one for `acks`. `document`: that of a body, when
        it has one alone provided that this is JSON. `media`: the types of bodies, in lower case; none: they do not
        matter. `json_values`: of plain records, as `store.types.Append` has it."""
        self.routes = (route,)
        self._draining = gateway.draining
        self._target = re.compile(target, re.ASCII)
        self._document = document
        self._dialect = dialect
        self._json_values = json_values
        self._head = head_of("200 OK", content_type)
        self._media = media

    def read(self, message: RawRequestMessage) -> Asked | None:
        """See `plain.Form`."""
        match = self._target.fullmatch(message.path)
        if match is None:
            return None
        if self._media:
            media = message.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
            if media not in self._media:
                return None
        topic, *acks = match.groups()
        return Asked(topic, None, acks_named(*acks or (None,)), self.routes[0], self._head, is_streamed=True)

    def sent(self, asked: Asked, body: bytes, view: TopicView) -> Sent | None:
        """See `plain.RecordForm`."""
        document = None if self._draining.is_set() else self._document(body)
        if document is None:
            return None
        dialect = self._dialect(view)
        plain = dialect.parse_plain(document)
        if plain is not None:
            return plain, self._json_values, dialect
        [record], json_values = dialect.parse([document])
        return None if isinstance(record, RequestError) else (record, json_values, dialect)

    def answer(self, asked: Asked, record: ProduceRecord, detail: PlainDialect, receipt: Receipt) -> bytes:
        """See `plain.RecordForm`."""
        return detail.plain_receipt(record, receipt) + b"\n"

"""Plain requests of the streams of `produce_stream.py`, for the fast path: a body that has arrived whole, and holds one
record. Cut, read and answered by what the stream is made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from aiohttp import hdrs
from aiohttp.http_parser import RawRequestMessage

from gateway.api.producer import Receipt
from gateway.codec.records import ProduceRecord, render_lines
from gateway.errors import RequestError
from gateway.routing.base import TopicView
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.plain import BODY_BYTES_MAX, Asked, Sent, head_of
from gateway.surfaces.http.produce_stream import Dialect
from gateway.surfaces.http.send_options import acks_named


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
        dialect: Callable[[TopicView], Dialect],
        content_type: str,
        media: tuple[str, ...] = (),
    ) -> None:
        """`target`: a pattern with a group for the topic, and perhaps one for `acks`. `document`: that of a body, when
        it has one alone provided that this is JSON. `media`: the types of bodies, in lower case; none: they do not
        matter."""
        self.routes = (route,)
        self._draining = gateway.draining
        self._target = re.compile(target, re.ASCII)
        self._document = document
        self._dialect = dialect
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
        [record], json_values = dialect.parse([document])
        return None if isinstance(record, RequestError) else (record, json_values, dialect)

    def answer(self, asked: Asked, record: ProduceRecord, detail: Dialect, receipt: Receipt) -> bytes:
        """See `plain.RecordForm`."""
        return render_lines([detail.receipt(0, record, receipt)])

"""Plain requests of the one-message API, for the fast path."""

from __future__ import annotations

import re

import orjson
from aiohttp import hdrs
from aiohttp.http_parser import RawRequestMessage

from gateway.api.producer import Receipt
from gateway.api.shapes.queries import SendRawQuery
from gateway.codec import cloudevents
from gateway.codec.records import ProduceRecord
from gateway.routing.base import TopicView
from gateway.settings.limits import Limits
from gateway.surfaces.http.media import JSON_TYPE, json_type
from gateway.surfaces.http.plain import BODY_BYTES_MAX, TOPIC, Asked, Sent, head_of
from gateway.surfaces.http.reading import query_of
from gateway.surfaces.http.send_options import acks_named
from gateway.surfaces.native.raw import receipt_as_answer, record_of
from store.limits import HEADERS_BYTES_MAX, KEY_BYTES_MAX, RECORD_BYTES_MAX

_TARGET = re.compile(rf"/mq/v1/topics/{TOPIC}/messages(?:\?.*)?", re.ASCII)
assert BODY_BYTES_MAX + KEY_BYTES_MAX + HEADERS_BYTES_MAX <= RECORD_BYTES_MAX, "no plain message is too large"


class PlainMessages:
    """The body is the record's value; all else of it is in the head. See `http/plain.py`."""

    routes = ("produce_raw",)
    bytes_max = BODY_BYTES_MAX

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def read(self, message: RawRequestMessage) -> Asked | None:
        """See `plain.Form`."""
        match = _TARGET.fullmatch(message.path)
        if match is None:
            return None
        headers = message.headers
        content_type = json_type(headers.get(hdrs.ACCEPT, "*/*"), JSON_TYPE)
        media = headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
        query = query_of(SendRawQuery, message.url.query, self._limits)
        if media == cloudevents.STRUCTURED_TYPE or query.tombstone == "true" or query.selector is not None:
            return None  # their bodies are looked at, or their partitions chosen otherwise
        return Asked(
            match[1], None, acks_named(query.acks), "produce_raw", head_of("201 Created", content_type),
            detail=record_of(headers, query, b""), status=201, is_repeatable=query.key is None,
        )  # fmt: skip

    def sent(self, asked: Asked, body: bytes, view: TopicView) -> Sent | None:
        """See `plain.RecordForm`."""
        record: ProduceRecord = asked.detail
        return record._replace(value=body), False, view.topic_id

    def answer(self, asked: Asked, record: ProduceRecord, detail: int, receipt: Receipt) -> bytes:
        """See `plain.RecordForm`."""
        return orjson.dumps(receipt_as_answer(asked.topic, receipt, detail))

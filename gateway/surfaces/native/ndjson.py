"""POST /mq/v1/topics/{topic}/messages:batch: a JSON record a line in, a receipt a line out, for as long as it takes.

    {"key": "u1", "value": {"sku": 9}}         {"i": 0, "partition": 0, "offset": 106}
    {"value": 1, "delay_ms": -1}               {"i": 1, "error_code": 42250, "error": "delay_ms: must not be negative"}

A body of `application/cloudevents-batch+json` is an array of events, each stored as a record in structured mode.

A client reads while it sends, or the receipts fill the connection and the server stops reading; one that cannot asks
for `?receipts=errors`: only what was refused, and at the end `{"count", "error_count"}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import orjson
from aiohttp import hdrs, web

from gateway.api.producer import Receipt
from gateway.api.render import receipt_as_json
from gateway.api.shapes.queries import SendLinesQuery
from gateway.api.turns import in_turns
from gateway.codec import cloudevents
from gateway.codec.documents import Document, Lines, Unreadable, single_line
from gateway.codec.json_steps import parse_in_steps
from gateway.codec.json_text import json_again
from gateway.codec.native import DOCUMENT_BYTES_MAX, Parsed, parse_documents
from gateway.codec.records import ProduceRecord, parse_raw_record, parts, plain_record, with_headers
from gateway.errors import RequestError, bad_request, invalid
from gateway.routing.base import TopicView
from gateway.surfaces.http.admission import charge_bytes
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.conditions import refuse_condition
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.idempotency import request_identity
from gateway.surfaces.http.media import JSON_TYPE, LINES_TYPE, LINES_TYPES
from gateway.surfaces.http.plain import ACKS, TOPIC
from gateway.surfaces.http.plain_stream import PlainStream
from gateway.surfaces.http.produce_stream import ProduceStream
from gateway.surfaces.http.reading import BodyStream, give_back, let_go, read_body, read_query
from gateway.surfaces.http.send_options import acks_named
from gateway.surfaces.http.streaming import StreamedAnswer
from gateway.surfaces.http.tracing import trace_headers
from gateway.surfaces.native.raw import CONTENT_TYPE_HEADER

QUERY = ("acks", "receipts")
_STREAM_TYPES = (*LINES_TYPES, JSON_TYPE)
_RECEIPT = b'{"i":0,"partition":%d,"offset":%d,"message_id":"%d-%d-%d"}'


class NativeLines:
    """Records and receipts of the native API, a line each."""

    def __init__(self, topic: TopicView) -> None:
        self._topic_id = topic.topic_id
        self._raw_keys = topic.raw_keys

    async def parsed(self, documents: Sequence[Document]) -> Parsed:
        """See `Dialect.parsed`."""
        return self.parse(documents)

    def parse(self, documents: Sequence[Document]) -> Parsed:
        """See `PlainDialect.parse`."""
        return parse_documents(documents, raw_keys=self._raw_keys)

    def parse_plain(self, document: bytes) -> ProduceRecord | None:
        """See `PlainDialect.parse_plain`."""
        return plain_record(orjson.loads(document), raw_keys=self._raw_keys)

    def receipt(self, request_index: int, record: ProduceRecord, receipt: Receipt) -> dict[str, object]:
        """See `Dialect.receipt`."""
        return {"i": request_index, **receipt_as_json(receipt, self._topic_id)}

    def plain_receipt(self, record: ProduceRecord, receipt: Receipt) -> bytes:
        """See `PlainDialect.plain_receipt`."""
        partition, offset, _, _, _, _, _ = receipt
        return _RECEIPT % (partition, offset, self._topic_id, partition, offset)

    def refusal(self, request_index: int, error: RequestError) -> dict[str, object]:
        """See `Dialect.refusal`."""
        fields: dict[str, object] = {"i": request_index, "error_code": error.error_code, "error": error.message}
        if error.retriable:
            fields["retriable"] = True
        return fields

    def last_words(self, error: RequestError, request_index: int) -> dict[str, object]:
        """See `Dialect.last_words`."""
        return {"error_code": error.error_code, "error": error.message, "count": request_index}


class EventLines(NativeLines):
    """CloudEvents in structured mode, with the receipts of the native API."""

    def parse(self, documents: Sequence[Document]) -> Parsed:
        """See `PlainDialect.parse`."""
        return Parsed([_event_record(document) for document in documents], False)


async def produce_lines(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Send records by the stream, one a line, and get a receipt for each as soon as it is stored."""
    refuse_condition(request)
    query = read_query(SendLinesQuery, request, gateway)
    acks = acks_named(query.acks)
    topic = request.match_info["topic"]
    view = gateway.routes_table.topic(topic)
    media = request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    timeout_ms = gateway.config.body_timeout_ms
    if media == cloudevents.BATCH_TYPE:
        body, counted = await read_body(gateway, request, bytes_max=gateway.limits.body_bytes_max)
        charge_bytes(gateway, request, len(body))
        try:
            pieces = _one_piece(await _lines_of_events(body, gateway.limits.records_per_request_max))
        finally:
            give_back(gateway, counted)
        dialect: NativeLines = EventLines(view)
    elif media in _STREAM_TYPES:
        stream = BodyStream(request, timeout_ms=timeout_ms, charge=lambda count: charge_bytes(gateway, request, count))
        pieces = stream.pieces()
        dialect = NativeLines(view)
    else:
        raise RequestError(415, f"HTTP 415 Unsupported Media Type: send {LINES_TYPE}, or {cloudevents.BATCH_TYPE}.")
    answer = StreamedAnswer(gateway, request, content_type=LINES_TYPE)
    return await ProduceStream(
        gateway,
        topic=topic,
        body=pieces,
        splitter=Lines(bytes_max=DOCUMENT_BYTES_MAX),
        dialect=dialect,
        answer=answer,
        access=access_of(request),
        acks=acks,
        trace=trace_headers(request),
        identity=request_identity(request, view.topic_id, None),
        errors_only=query.receipts == "errors",
    ).run()


def plain_lines(gateway: Gateway) -> PlainStream:
    """Streams of one line, for the fast path."""
    return PlainStream(
        gateway,
        "produce_lines",
        rf"/mq/v1/topics/{TOPIC}/messages:batch{ACKS}",
        document=single_line,
        dialect=NativeLines,
        json_values=True,
        content_type=LINES_TYPE,
        media=_STREAM_TYPES,
    )


async def _lines_of_events(body: bytes, count_max: int) -> bytes:
    """An array of events as lines of compact JSON. Raises RequestError 400, 422."""
    events = await in_turns(parse_in_steps(body, elements_max=count_max))
    if not isinstance(events, list):
        raise bad_request("The body must be a JSON array of events.")
    lines: list[bytes] = []
    try:
        if len(events) > count_max:
            raise invalid(f"{len(events)} events in one request; the limit is {count_max}")
        for part in parts(events, len(body)):
            lines += [json_again(event, "an event") + b"\n" for event in part]
            await asyncio.sleep(0)
    finally:
        await let_go(events, len(body))
    return b"".join(lines)


async def _one_piece(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


def _event_record(document: Document) -> ProduceRecord | RequestError:
    try:
        if isinstance(document, Unreadable):
            raise bad_request("The event is too large.")
        key = cloudevents.check_structured(document)
        record = parse_raw_record({}, None if key is None else key.encode(), document)
        return with_headers(record, [(CONTENT_TYPE_HEADER, cloudevents.STRUCTURED_TYPE.encode())])
    except RequestError as error:
        return error

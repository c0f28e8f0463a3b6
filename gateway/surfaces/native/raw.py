"""One message at a time, without an envelope: the bytes of a body in, the same bytes out.

    POST /mq/v1/topics/{topic}/messages                                send; 201, or 202 when it is delayed
    GET  /mq/v1/topics/{topic}/partitions/{partition}/messages/{offset}  read it back, with its Content-Type

What a record has besides its value travels in the query when it is sent (key, tag, partition, delay_ms, ...) and in
`Mq-*` headers when it is read. Content-Type is kept as the record header `content-type`. Headers of the record are
`Mq-Header-<name>` in both directions; HTTP compares names without case, so they are stored in lower case. Names and
values are percent-encoded where HTTP would not take them as they are; a value is UTF-8 before that.

A client's body is answered to others with the type that its sender chose, so answers say `nosniff` and are
sandboxed: no browser runs a stored page as one of this server's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy, istr

from gateway.api.producer import Receipt
from gateway.api.read import Fetched
from gateway.api.render import receipt_as_json
from gateway.api.shapes.queries import ReadRawQuery, SendRawQuery
from gateway.codec import cloudevents
from gateway.codec.message_ids import MessageId
from gateway.codec.records import ProduceRecord, parse_raw_record, with_headers
from gateway.codec.tags import (
    DELIVER_AT_HEADER,
    MESSAGE_GROUP_HEADER,
    RESERVED_PREFIX,
    SCHEDULE_ID_HEADER,
    SCHEDULE_KEY_HEADER,
    TAG_HEADER,
)
from gateway.errors import OFFSET_OUT_OF_RANGE, RECORD_PART_ILLEGAL, RequestError, invalid
from gateway.surfaces.http.admission import caller_of
from gateway.surfaces.http.answers import check_accept, json_answer
from gateway.surfaces.http.conditions import expected_offset
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.fetching import BEGINNING_OFFSET, END_OFFSET, EPOCH, NEXT_OFFSET, Sought, fetch_or_wait
from gateway.surfaces.http.idempotency import mark_replayed, request_identity
from gateway.surfaces.http.reading import partition_in, read_query
from gateway.surfaces.http.send_options import (
    DELAY_HEADERS,
    MQ_ACKS,
    acks_named,
    delayed,
    due_named,
    name_of_acks,
)
from gateway.surfaces.http.tracing import TRACEPARENT, TRACESTATE, trace_headers, traced
from store import record_batch
from store.record_batch import Headers
from store.turns import others_turn
from store.types import Entry

HEADER_PREFIX = "Mq-Header-"
CONTENT_TYPE_HEADER = "content-type"
OCTETS = "application/octet-stream"

_MEDIA_TYPE = re.compile(r"[!-~][ -~]{0,254}")
_TOKEN = "!#$&'*+-.^_`|~"  # what a header's name may hold besides letters and digits, without the percent sign
_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")


class RawRecord(NamedTuple):
    """One record as it was read, for `raw_answer`."""

    message_id: MessageId
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    store_time_ms: int


async def produce_raw(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Store the body as one record. Durable at the answered level (`Mq-Acks`)."""
    check_accept(request)
    query = read_query(SendRawQuery, request, gateway, headers=DELAY_HEADERS)
    topic = request.match_info["topic"]
    view = gateway.routes_table.topic(topic)
    record = traced(record_of(request.headers, query, body), trace_headers(request))
    identity = request_identity(request, view.topic_id, body)
    (receipt,) = await gateway.producer.produce(
        topic,
        [record],
        json_values=False,
        acks=acks_named(query.acks),
        selector=query.selector,
        identity=identity,
        expected_offset=expected_offset(request),
    )
    answer = receipt_as_answer(topic, receipt, view.topic_id)
    response = json_answer(request, answer, status=201 if receipt.schedule_id is None else 202)
    response.headers[MQ_ACKS] = name_of_acks(receipt.acks)
    if identity is not None:
        mark_replayed(response.headers, [receipt])
    return response


def receipt_as_answer(topic: str, receipt: Receipt, topic_id: int) -> dict[str, object]:
    """What became of the record."""
    return {"topic": topic, **receipt_as_json(receipt, topic_id), "timestamp": receipt.timestamp_ms}


async def read_raw(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The record at an offset. At the partition's end waits up to `timeout`, then 204; beyond its bounds 416."""
    timeout_ms = read_query(ReadRawQuery, request, gateway).timeout
    topic = request.match_info["topic"]
    partition = partition_in(request)
    assert partition is not None
    topic_id = gateway.routes_table.topic(topic).topic_id
    offset = await gateway.consumer.resolve_offset(topic, partition, request.match_info["offset"])
    sought = Sought(topic, partition, offset, max_bytes=1)
    fetched = await fetch_or_wait(gateway, caller_of(gateway, request), sought, timeout_ms=timeout_ms)
    bounds = {BEGINNING_OFFSET: str(fetched.min_offset), END_OFFSET: str(fetched.max_offset), EPOCH: str(topic_id)}
    if offset == fetched.max_offset:
        return web.Response(status=204, headers={NEXT_OFFSET: str(offset), **bounds})
    if not fetched.min_offset <= offset < fetched.max_offset:
        details = {"beginning_offset": fetched.min_offset, "end_offset": fetched.max_offset}
        raise RequestError(OFFSET_OUT_OF_RANGE, f"Offset {offset} is out of range.", details=details)
    response = raw_answer(
        raw_of(fetched.entries[0], await record_at(fetched, offset), MessageId(topic_id, partition, offset))
    )
    response.headers.update({NEXT_OFFSET: str(offset + 1), **bounds})
    return response


async def record_at(fetched: Fetched, offset: int) -> record_batch.DecodedRecord:
    """The record with this offset, out of what was fetched for it."""
    for piece in record_batch.decode_in_pieces(fetched.entries[0].batch):
        if piece[-1].offset >= offset:
            return next(record for record in piece if record.offset == offset)
        await others_turn()
    raise AssertionError(f"offset {offset} is missing in what was read for it")


def raw_of(entry: Entry, record: record_batch.DecodedRecord, message_id: MessageId) -> RawRecord:
    """A record of an entry, to be answered as it is."""
    return RawRecord(message_id, record.key, record.value, record.headers, record.timestamp, entry.store_time_ms)


def raw_answer(record: RawRecord) -> web.Response:
    """The record's bytes as the body, and the rest of it as headers."""
    message_id = record.message_id
    headers: CIMultiDict[str] = CIMultiDict()
    headers[hdrs.CONTENT_TYPE] = OCTETS
    headers["Mq-Partition"] = str(message_id.partition)
    headers["Mq-Offset"] = str(message_id.offset)
    headers["Mq-Message-Id"] = message_id.text
    headers["Mq-Timestamp"] = str(record.timestamp_ms)
    headers["Mq-Store-Timestamp"] = str(record.store_time_ms)
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    if record.key is not None:
        headers["Mq-Key"] = _written(record.key)
    if record.value is None:
        headers["Mq-Tombstone"] = "true"
    add_record_headers(headers, record.headers)
    return web.Response(body=record.value or b"", headers=headers)


def add_record_headers(answer: CIMultiDict[str], headers: Headers) -> None:
    """Put a record's headers among those of an answer. What cannot be one is percent-encoded; nothing fails."""
    answer.update(cloudevents.http_headers(headers))
    for name, value in headers:
        known = _KNOWN_HEADERS.get(name)
        if known is not None:
            if value is not None:
                answer[known] = _written(value)
        elif name == CONTENT_TYPE_HEADER:
            if value is not None and _MEDIA_TYPE.fullmatch(media := value.decode("latin-1")):
                answer[hdrs.CONTENT_TYPE] = media.rstrip()
        elif not (cloudevents.is_attribute(name) and value is not None) and not name.startswith(RESERVED_PREFIX):
            answer.add(HEADER_PREFIX + quote_from_bytes(name.encode(), safe=_TOKEN), _written(value or b""))


_KNOWN_HEADERS = {
    TAG_HEADER: istr("Mq-Tag"),
    DELIVER_AT_HEADER: istr("Mq-Deliver-At"),
    SCHEDULE_ID_HEADER: istr("Mq-Schedule-Id"),
    SCHEDULE_KEY_HEADER: istr("Mq-Schedule-Key"),
    MESSAGE_GROUP_HEADER: istr("Mq-Message-Group"),
    "traceparent": TRACEPARENT,
    "tracestate": TRACESTATE,
}


def _written(value: bytes) -> str:
    """Bytes as the value of a header: as they are where HTTP takes them (blanks inside too), else percent-encoded."""
    return quote_from_bytes(value, safe=_VISIBLE + " ") if value == value.strip() else quote_from_bytes(value, _VISIBLE)


def record_of(sent_headers: CIMultiDictProxy[str], query: SendRawQuery, body: bytes) -> ProduceRecord:
    """The record that a request describes by its head and its body. Raises RequestError."""
    content_type = sent_headers.get(hdrs.CONTENT_TYPE)
    media = (content_type or "").partition(";")[0].strip().lower()
    sent = list(sent_headers.items())
    headers = cloudevents.binary_headers(sent)
    key = query.key
    if media == cloudevents.STRUCTURED_TYPE:
        event_key = cloudevents.check_structured(body)
        key = event_key if key is None else key
    elif key is None:
        key = next((value.decode() for name, value in headers if name == "ce_partitionkey" and value), None)
    headers += _own_headers(sent)
    if content_type is not None:
        headers.append((CONTENT_TYPE_HEADER, _latin(content_type)))
    named = ("tag", "msg_id", "message_group", "schedule_key", "partition", "timestamp")
    fields: dict[str, object] = {name: given for name in named if (given := getattr(query, name)) is not None}
    if query.queues is not None:
        fields["queues"] = query.queues.split(",")
    value: bytes | None = body
    if query.tombstone == "true":
        if body:
            raise invalid("tombstone: a record without a value has no body")
        value = None
    [record] = delayed([parse_raw_record(fields, None if key is None else key.encode(), value)], due_named(query))
    return with_headers(record, headers)


def _own_headers(sent: Iterable[tuple[str, str]]) -> list[tuple[str, bytes | None]]:
    """Record headers out of `Mq-Header-*`."""
    headers: list[tuple[str, bytes | None]] = []
    for name, value in sent:
        if name[: len(HEADER_PREFIX)].lower() != HEADER_PREFIX.lower():
            continue
        own = unquote_to_bytes(name[len(HEADER_PREFIX) :].lower()).decode("utf-8", "replace")
        if not own or not own.isprintable():
            raise RequestError(RECORD_PART_ILLEGAL, f"{name}: a header needs a name of printable characters")
        if own.startswith(RESERVED_PREFIX):
            raise RequestError(RECORD_PART_ILLEGAL, f'{name}: names beginning with "{RESERVED_PREFIX}" are reserved')
        headers.append((own, unquote_to_bytes(value.encode("utf-8", "surrogateescape"))))
    return headers


def _latin(content_type: str) -> bytes:
    return content_type.encode("utf-8", "surrogateescape")

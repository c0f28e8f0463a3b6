"""POST /topics/{topic} and /topics/{topic}/partitions/{partition}: JSON records or raw batches in, receipts out.

Safe to repeat with an `Idempotency-Key`, a `msg_id` in the records, or a producer's sequence: what was stored before
is answered with its original place and `"duplicate": true`.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from aiohttp import hdrs, web

from gateway.codec.records import Format, parse_envelope
from gateway.http.acks import MQ_ACKS, acks_named, name_of_acks
from gateway.http.answers import check_accept
from gateway.http.context import Gateway
from gateway.http.errors import invalid
from gateway.http.idempotency import mark_replayed, producer_sequence, request_identity
from gateway.http.media import format_named, sent_format
from gateway.http.reading import Query, partition_in
from gateway.http.tracing import trace_headers, traced
from gateway.producer import BatchReceipt, Receipt
from gateway.routing.select import SELECTORS
from store.types import Acks

QUERY = ("acks", "format", "selector")


async def produce(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Send records, as JSON in three formats or as raw batches. 200 when all are as durable as asked; `Mq-Acks` names
    the level reached."""
    content_type = check_accept(request)
    fmt = sent_format(request.headers.get(hdrs.CONTENT_TYPE, ""))
    acks: Acks | None = None
    selector: str | None = None
    if request.query_string:
        query = Query(request)
        acks = acks_named(query.text("acks"))
        if fmt is not None and (name := query.text("format")) is not None:
            fmt = format_named(name)
        selector = selector_named(query.text("selector"))
    topic = request.match_info["topic"]
    partition = partition_in(request)
    topic_id = gateway.routes_table.topic(topic).topic_id  # an unknown topic is told before a bad record
    identity = request_identity(request, topic_id, body)
    sequence = producer_sequence(request)
    receipts: Sequence[Receipt] | Sequence[BatchReceipt]
    if fmt is None:
        batches = receipts = await gateway.producer.produce_batches(
            topic, body, partition=partition, acks=acks, selector=selector, identity=identity, sequence=sequence
        )
        offsets = _rendered_batches(batches)
    else:
        records = parse_envelope(body, fmt, records_max=gateway.limits.records_per_request_max)
        if trace := trace_headers(request):
            records = [traced(record, trace) for record in records]
        singles = receipts = await gateway.producer.produce(
            topic,
            records,
            partition=partition,
            json_values=fmt is Format.JSON,
            acks=acks,
            selector=selector,
            identity=identity,
            sequence=sequence,
        )
        offsets = _rendered(singles)
    reached = min(receipt.acks for receipt in receipts)
    response = web.Response(body=offsets, headers={hdrs.CONTENT_TYPE: content_type, MQ_ACKS: name_of_acks(reached)})
    if identity is not None or sequence is not None:
        mark_replayed(response.headers, receipts)
    return response


def selector_named(name: str | None) -> str | None:
    """The selector of a `?selector=` parameter. Raises RequestError 422."""
    if name is None or name in SELECTORS:
        return name
    raise invalid(f"selector: must be one of {', '.join(SELECTORS)}")


def _rendered(receipts: Sequence[Receipt]) -> bytes:
    offsets: list[dict[str, object]] = []
    for partition, offset, _, schedule_id, deliver_at_ms, _, duplicate in receipts:
        item: dict[str, object] = {"partition": partition, "offset": offset, "error_code": None, "error": None}
        if schedule_id is not None:
            item["schedule_id"] = schedule_id
            item["deliver_at"] = deliver_at_ms
        if duplicate:
            item["duplicate"] = True
        offsets.append(item)
    return orjson.dumps({"offsets": offsets, "key_schema_id": None, "value_schema_id": None})


def _rendered_batches(receipts: Sequence[BatchReceipt]) -> bytes:
    offsets: list[dict[str, object]] = []
    for partition, offset, record_count, _, duplicate in receipts:
        item: dict[str, object] = {"partition": partition, "offset": offset, "record_count": record_count}
        if duplicate:
            item["duplicate"] = True
        offsets.append(item)
    return orjson.dumps({"offsets": offsets})

"""POST /topics/{topic} and /topics/{topic}/partitions/{partition}: JSON records or raw batches in, receipts out.

Safe to repeat with an `Idempotency-Key`, a `msg_id` in the records, or a producer's sequence: what was stored before
is answered with its original offset and `"duplicate": true`.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from aiohttp import hdrs, web

from gateway.api.producer import BatchReceipt, Receipt, StoredBatch
from gateway.api.render import batch_receipt_as_json, receipt_as_json
from gateway.codec.columns import columns_of
from gateway.codec.records import Format, open_envelope, parse_records
from gateway.surfaces.http.answers import check_accept
from gateway.surfaces.http.conditions import expected_offset
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.idempotency import mark_replayed, producer_sequence, request_identity
from gateway.surfaces.http.media import format_named, sent_format
from gateway.surfaces.http.reading import Query, partition_in
from gateway.surfaces.http.send_options import MQ_ACKS, acks_named, name_of_acks, selector_named
from gateway.surfaces.http.tracing import trace_headers, traced
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
    expected = expected_offset(request)
    receipts: Sequence[Receipt] | Sequence[BatchReceipt]
    if fmt is None:
        batches = receipts = await gateway.producer.produce_batches(
            topic,
            body,
            partition=partition,
            acks=acks,
            selector=selector,
            identity=identity,
            sequence=sequence,
            expected_offset=expected,
        )
        offsets = orjson.dumps({"offsets": [batch_receipt_as_json(receipt) for receipt in batches]})
    else:
        sent = open_envelope(body, records_max=gateway.limits.records_per_request_max)
        trace = trace_headers(request)
        is_plain = not (trace or selector or identity or sequence or expected is not None)
        if is_plain and (columns := columns_of(sent, fmt)) is not None:
            stored = await gateway.producer.produce_columns(
                topic, columns, partition=partition, json_values=fmt is Format.JSON, acks=acks
            )
            if stored is not None:
                return _answer(content_type, rendered_columns(stored, len(columns.values)), stored)
        records = parse_records(sent, fmt)
        if trace:
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
            expected_offset=expected,
        )
        offsets = rendered_receipts(singles)
    response = _answer(content_type, offsets, receipts)
    if identity is not None or sequence is not None:
        mark_replayed(response.headers, receipts)
    return response


def _answer(
    content_type: str, body: bytes, receipts: Sequence[Receipt] | Sequence[BatchReceipt] | Sequence[StoredBatch]
) -> web.Response:
    reached = min(receipt.acks for receipt in receipts)
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type, MQ_ACKS: name_of_acks(reached)})


def rendered_columns(stored: Sequence[StoredBatch], count: int) -> bytes:
    """What `rendered_receipts` makes of new records, from the base offsets of whole batches."""
    items = [""] * count
    for partition, request_indexes, base_offset, _ in stored:
        head = f'{{"partition":{partition},"offset":'
        for request_index, offset in zip(
            request_indexes, range(base_offset, base_offset + len(request_indexes)), strict=True
        ):
            items[request_index] = f'{head}{offset},"error_code":null,"error":null}}'
    return f'{{"offsets":[{",".join(items)}],"key_schema_id":null,"value_schema_id":null}}'.encode()


def rendered_receipts(receipts: Sequence[Receipt]) -> bytes:
    """The answer to records sent as JSON."""
    offsets = [{**receipt_as_json(receipt), "error_code": None, "error": None} for receipt in receipts]
    return orjson.dumps({"offsets": offsets, "key_schema_id": None, "value_schema_id": None})

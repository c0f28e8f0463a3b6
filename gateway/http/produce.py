"""POST /topics/{topic} and /topics/{topic}/partitions/{partition}: JSON records or raw batches in, receipts out."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from aiohttp import hdrs, web
from multidict import istr

from gateway.codec.records import Format, parse_envelope
from gateway.http.answers import check_accept
from gateway.http.context import Gateway
from gateway.http.errors import invalid
from gateway.http.media import format_named, sent_format
from gateway.http.reading import Query, partition_in
from gateway.producer import BatchReceipt, Receipt
from store.types import Acks

MQ_ACKS = istr("Mq-Acks")
QUERY = ("acks", "format")
_ACKS = {"written": Acks.WRITTEN, "flushed": Acks.FLUSHED}
_ACKS_NAMES = {level: name for name, level in _ACKS.items()}


async def produce(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Send the records of the body. 200 when all are as durable as asked; `Mq-Acks` names the level reached."""
    content_type = check_accept(request)
    fmt = sent_format(request.headers.get(hdrs.CONTENT_TYPE, ""))
    acks: Acks | None = None
    if request.query_string:
        query = Query(request)
        acks = _acks_named(query.text("acks"))
        if fmt is not None and (name := query.text("format")) is not None:
            fmt = format_named(name)
    topic = request.match_info["topic"]
    partition = partition_in(request)
    if fmt is None:
        batches = await gateway.producer.produce_batches(topic, body, partition=partition, acks=acks)
        offsets = _rendered_batches(batches)
        reached = min(receipt.acks for receipt in batches)
    else:
        gateway.routes_table.topic(topic)  # an unknown topic is told before a bad record
        records = parse_envelope(body, fmt, records_max=gateway.limits.records_per_request_max)
        receipts = await gateway.producer.produce(
            topic, records, partition=partition, json_values=fmt is Format.JSON, acks=acks
        )
        offsets = _rendered(receipts)
        reached = min(receipt.acks for receipt in receipts)
    return web.Response(body=offsets, headers={hdrs.CONTENT_TYPE: content_type, MQ_ACKS: _ACKS_NAMES[reached]})


def _acks_named(name: str | None) -> Acks | None:
    if name is None:
        return None
    try:
        return _ACKS[name]
    except KeyError:
        raise invalid('acks: must be "written" or "flushed"') from None


def _rendered(receipts: Sequence[Receipt]) -> bytes:
    offsets: list[dict[str, object]] = []
    for partition, offset, _, schedule_id, deliver_at_ms, _ in receipts:
        item: dict[str, object] = {"partition": partition, "offset": offset, "error_code": None, "error": None}
        if schedule_id is not None:
            item["schedule_id"] = schedule_id
            item["deliver_at"] = deliver_at_ms
        offsets.append(item)
    return orjson.dumps({"offsets": offsets, "key_schema_id": None, "value_schema_id": None})


def _rendered_batches(receipts: Sequence[BatchReceipt]) -> bytes:
    offsets = [
        {"partition": partition, "offset": offset, "record_count": record_count}
        for partition, offset, record_count, _ in receipts
    ]
    return orjson.dumps({"offsets": offsets})

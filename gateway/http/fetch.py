"""GET /topics/{topic}/partitions/{partition}/records: a direct pull, at once or as a long poll that ends with the
first record. JSON in three formats, or whole RecordBatches as they are stored.
"""

from __future__ import annotations

import asyncio

import orjson
from aiohttp import hdrs, web
from multidict import istr

from gateway.codec.records import Format, render_records
from gateway.consumer import AtTime, Fetched, OffsetSpec
from gateway.http.context import Gateway
from gateway.http.errors import OFFSET_OUT_OF_RANGE, RequestError, invalid
from gateway.http.media import RecordsType, format_named, kafka_records_type, records_type
from gateway.http.reading import Query, partition_in
from store.limits import MiB
from store.types import Entry

NEXT_OFFSET = istr("Mq-Next-Offset")
BEGINNING_OFFSET = istr("Mq-Beginning-Offset")
END_OFFSET = istr("Mq-End-Offset")
EPOCH = istr("Mq-Epoch")

QUERY = ("offset", "timestamp", "timeout", "max_bytes", "max_records", "end_offset", "reset", "format")
OFFSET_MAX = 2**63 - 1
_TURN_BYTES = 1 * MiB  # entries rendered between two turns of the event loop


async def fetch_records(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Answer with records from `offset` on, and where the next pull begins."""
    kind, query = _form_of(request)
    limits = gateway.limits
    topic = request.match_info["topic"]
    partition = partition_in(request)
    assert partition is not None
    epoch = str(gateway.routes_table.topic(topic).topic_id)
    timeout_ms = query.integer("timeout", 0, least=0, most=limits.timeout_ms_max)
    default_bytes = limits.fetch_batch_bytes_default if kind.fmt is None else limits.fetch_bytes_default
    max_bytes = query.integer("max_bytes", default_bytes, least=1, most=limits.fetch_bytes_max, clamp=True)
    records_max = OFFSET_MAX if kind.fmt is None else limits.fetch_records_max
    max_records = query.integer("max_records", records_max, least=1, most=records_max, clamp=True)
    stop = query.integer("end_offset", OFFSET_MAX, least=0)
    start = await gateway.consumer.resolve_offset(topic, partition, _offset_spec(query))
    fetched = await _fetch(gateway, topic, partition, start, max_bytes, timeout_ms if start < stop else 0)
    if not fetched.min_offset <= start <= fetched.max_offset:
        start = _reset(query.text("reset"), start, fetched)
        fetched = await _fetch(gateway, topic, partition, start, max_bytes, timeout_ms if start < stop else 0)
    stop = min(stop, start + max_records)
    entries = [entry for entry in fetched.entries if entry.base_offset < stop]
    next_offset = max(start, entries[-1].next_offset) if entries else start
    if kind.fmt is None:
        body = b"".join([entry.batch for entry in entries])
    else:
        next_offset = min(next_offset, max(start, stop))
        body = await _rendered(topic, partition, entries, kind.fmt, start, stop)
    stats = gateway.stats
    stats.fetched_record_count += next_offset - start
    stats.fetched_byte_count += len(body)
    headers = {
        hdrs.CONTENT_TYPE: kind.content_type,
        NEXT_OFFSET: str(next_offset),
        BEGINNING_OFFSET: str(fetched.min_offset),
        END_OFFSET: str(fetched.max_offset),
        EPOCH: epoch,
    }
    return web.Response(body=body, headers=headers)


def _form_of(request: web.Request) -> tuple[RecordsType, Query]:
    query = Query(request, known=QUERY)
    name = query.text("format")
    if name is not None:
        return kafka_records_type(format_named(name)), query
    return records_type(request.headers.get(hdrs.ACCEPT, "*/*")), query


def _offset_spec(query: Query) -> OffsetSpec:
    time_ms = query.time_ms("timestamp")
    offset = query.text("offset")
    if time_ms is not None:
        if offset is not None:
            raise invalid("offset and timestamp exclude each other")
        return AtTime(time_ms)
    return "earliest" if offset is None else offset


def _reset(reset: str | None, offset: int, fetched: Fetched) -> int:
    """Where a pull outside the partition's bounds goes on. Raises RequestError 416 unless the client chose a place."""
    low, high = fetched.min_offset, fetched.max_offset
    if reset == "earliest":
        return low
    if reset == "latest":
        return high
    if reset is not None:
        raise invalid('reset: must be "earliest" or "latest"')
    place = f"below the first offset {low}" if offset < low else f"above the end offset {high}"
    raise RequestError(
        416,
        OFFSET_OUT_OF_RANGE,
        f"Offset {offset} is {place}.",
        details={"beginning_offset": low, "end_offset": high},
    )


async def _fetch(gateway: Gateway, topic: str, partition: int, offset: int, max_bytes: int, timeout_ms: int) -> Fetched:
    """What is there; when nothing is, wait up to `timeout_ms` for the first record, or until the server drains."""
    consumer = gateway.consumer
    fetched = await consumer.fetch(topic, partition, offset, max_bytes=max_bytes)
    if fetched.entries or timeout_ms == 0 or offset != fetched.max_offset or gateway.draining.is_set():
        return fetched
    waiting = asyncio.ensure_future(consumer.fetch(topic, partition, offset, max_bytes=max_bytes, wait_ms=timeout_ms))
    draining = asyncio.ensure_future(gateway.draining.wait())
    gateway.stats.long_poll_count += 1
    try:
        await asyncio.wait((waiting, draining), return_when=asyncio.FIRST_COMPLETED)
        return await waiting if waiting.done() else fetched
    finally:
        gateway.stats.long_poll_count -= 1
        waiting.cancel()
        draining.cancel()


async def _rendered(topic: str, partition: int, entries: list[Entry], fmt: Format, start: int, stop: int) -> bytes:
    """The JSON array of the records in [start, stop). Others get their turn while a large one is built."""
    records: list[dict[str, object]] = []
    first = 0
    size = 0
    for index, entry in enumerate(entries, 1):
        size += entry.size
        if size >= _TURN_BYTES or index == len(entries):
            records += render_records(topic, partition, entries[first:index], fmt, start=start, stop=stop)
            if index < len(entries):
                await asyncio.sleep(0)
            first = index
            size = 0
    return orjson.dumps(records)

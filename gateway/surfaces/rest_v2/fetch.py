"""GET /topics/{topic}/partitions/{partition}/records: a direct pull, at once or as a long poll that ends with the
first record. JSON in three formats, whole RecordBatches as they are stored, or NDJSON: one record a line, a whole range
in one answer of any length, sent as fast as the client reads.

With a filter, what does not match is passed over in the index. A read that looks at much and finds nothing answers with
no record and a later Mq-Next-Offset, so that the work of one request is bounded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson
from aiohttp import hdrs, web

from gateway.api.errors import error_of
from gateway.api.read import AtTime, Fetched, OffsetSpec
from gateway.api.shapes.queries import FetchQuery
from gateway.auth.access import Permission
from gateway.codec.filters import TagFilter, parse_filter
from gateway.codec.texts import render_texts
from gateway.errors import OFFSET_OUT_OF_RANGE, RequestError, draining, invalid
from gateway.surfaces.http.answers import packed
from gateway.surfaces.http.buffers_body import BuffersBody, body_of
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.fetching import BEGINNING_OFFSET, END_OFFSET, EPOCH, NEXT_OFFSET, fetch_or_wait
from gateway.surfaces.http.media import (
    BATCH_TYPE,
    LINES_TYPES,
    RecordsType,
    format_named,
    kafka_records_type,
    prefers,
    records_type,
)
from gateway.surfaces.http.reading import partition_in, read_query
from gateway.surfaces.http.streaming import StreamedAnswer, pieces, rendered_pieces
from store.limits import MiB
from store.types import OFFSET_MAX

FILTERED_READS_MAX = 16
"""Reads of the index (65,536 records each) that one filtered request makes in search of a first match."""

_STREAM_READ_BYTES = 2 * MiB  # of one read of a stream: bounds what it holds in memory


@dataclass(slots=True)
class _Pull:
    """One request, its defaults filled in. `start` moves on as records are passed over."""

    topic: str
    topic_id: int
    partition: int
    kind: RecordsType
    start: int
    stop: int
    max_bytes: int
    max_records: int
    timeout_ms: int
    tag_filter: TagFilter | None


async def fetch_records(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Records of one partition from an offset on, and where the next pull begins."""
    query = read_query(FetchQuery, request, gateway)
    kind = _form_of(request, query.format)
    pull = await _pull_of(gateway, request, kind, query)
    fetched = await _fetch(gateway, request, pull)
    if not fetched.min_offset <= pull.start <= fetched.max_offset:
        pull.start = _reset(query.reset, pull.start, fetched)
        fetched = await _fetch(gateway, request, pull)
    if kind.is_lines:
        return await _streamed(gateway, request, pull, fetched)
    if pull.tag_filter is None:
        body, next_offset = await _taken(pull, fetched)
    else:
        body, next_offset = await _taken_filtered(gateway, request, pull, fetched)
    stats = gateway.stats
    stats.fetched_record_count += next_offset - pull.start
    stats.fetched_byte_count += len(body)
    headers = {hdrs.CONTENT_TYPE: kind.content_type, NEXT_OFFSET: str(next_offset), **_bounds_headers(pull, fetched)}
    if kind.content_type == BATCH_TYPE:
        return web.Response(body=body, headers=headers)
    return await packed(request, web.Response(body=body, headers=headers))


async def _pull_of(gateway: Gateway, request: web.Request, kind: RecordsType, query: FetchQuery) -> _Pull:
    limits = gateway.limits
    topic = request.match_info["topic"]
    partition = partition_in(request)
    assert partition is not None
    if kind.is_lines:
        bytes_default = bytes_max = records_max = OFFSET_MAX  # bounded by how fast the client reads
    else:
        bytes_default = limits.fetch_batch_bytes_default if kind.fmt is None else limits.fetch_bytes_default
        bytes_max = limits.fetch_bytes_max
        records_max = OFFSET_MAX if kind.fmt is None else limits.fetch_records_max
    return _Pull(
        topic=topic,
        topic_id=gateway.routes_table.topic(topic).topic_id,
        partition=partition,
        kind=kind,
        timeout_ms=query.timeout,
        max_bytes=min(query.max_bytes or bytes_default, bytes_max),
        max_records=min(query.max_records or records_max, records_max),
        stop=query.end_offset,
        tag_filter=parse_filter(query.filter),
        start=await gateway.consumer.resolve_offset(topic, partition, _offset_spec(query)),
    )


def _bounds_headers(pull: _Pull, fetched: Fetched) -> dict[str, str]:
    return {
        BEGINNING_OFFSET: str(fetched.min_offset),
        END_OFFSET: str(fetched.max_offset),
        EPOCH: str(pull.topic_id),
    }


def _form_of(request: web.Request, name: str | None) -> RecordsType:
    """The form that the parameter `format` names, else the one that Accept asks for."""
    if name is None:
        return records_type(request.headers.get(hdrs.ACCEPT, "*/*"))
    fmt = format_named(name)
    accepted = _lines_accepted(request)
    return kafka_records_type(fmt) if accepted is None else accepted._replace(fmt=fmt)


def _lines_accepted(request: web.Request) -> RecordsType | None:
    """The lines that Accept asks for beside a `format=`; None when it does not."""
    name = prefers(request.headers.get(hdrs.ACCEPT, ""), *LINES_TYPES)
    return None if name is None else records_type(name)


def _offset_spec(query: FetchQuery) -> OffsetSpec:
    if query.timestamp is not None:
        if query.offset is not None:
            raise invalid("offset and timestamp exclude each other")
        return AtTime(query.timestamp)
    return "earliest" if query.offset is None else query.offset


def _reset(reset: str | None, offset: int, fetched: Fetched) -> int:
    """Where a pull outside the partition's bounds goes on. Raises RequestError 416 unless the client chose a
    position."""
    low, high = fetched.min_offset, fetched.max_offset
    if reset == "earliest":
        return low
    if reset == "latest":
        return high
    place = f"below the first offset {low}" if offset < low else f"above the end offset {high}"
    raise RequestError(
        OFFSET_OUT_OF_RANGE,
        f"Offset {offset} is {place}.",
        details={"beginning_offset": low, "end_offset": high},
    )


async def _fetch(gateway: Gateway, request: web.Request, pull: _Pull, timeout_ms: int | None = None) -> Fetched:
    if timeout_ms is None:
        timeout_ms = pull.timeout_ms
    return await fetch_or_wait(
        gateway,
        request,
        pull.topic,
        pull.partition,
        pull.start,
        max_bytes=min(pull.max_bytes, _STREAM_READ_BYTES) if pull.kind.is_lines else pull.max_bytes,
        timeout_ms=timeout_ms if pull.start < pull.stop else 0,
        end_offset=min(pull.stop, pull.start + pull.max_records) if pull.tag_filter is None else None,
        tag_hashes=None if pull.tag_filter is None else pull.tag_filter.hashes,
    )


async def _taken(pull: _Pull, fetched: Fetched) -> tuple[bytes | BuffersBody, int]:
    """The body made of what was fetched, and the offset behind it."""
    start = pull.start
    stop = min(pull.stop, start + pull.max_records)
    entries = [entry for entry in fetched.entries if entry.base_offset < stop]
    next_offset = max(start, entries[-1].next_offset) if entries else start
    if pull.kind.fmt is None:
        return body_of([entry.batch for entry in entries]), next_offset
    texts: list[bytes] = []
    for covering, low, high in pieces(entries, start, stop):
        texts += render_texts(pull.topic, pull.partition, covering, pull.kind.fmt, start=low, stop=high)
        if high < min(next_offset, stop):
            await asyncio.sleep(0)
    return b"[%b]" % b",".join(texts), min(next_offset, max(start, stop))


async def _taken_filtered(
    gateway: Gateway, request: web.Request, pull: _Pull, fetched: Fetched
) -> tuple[bytes | BuffersBody, int]:
    """As `_taken`, for the records that the filter wants; goes on reading until there is one."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + pull.timeout_ms / 1000
    first = pull.start
    try:
        for _ in range(FILTERED_READS_MAX):
            if pull.kind.fmt is None:
                entries = [entry for entry in fetched.entries if entry.base_offset < pull.stop]
                if entries:
                    is_cut = len(entries) < len(fetched.entries)
                    next_offset = entries[-1].next_offset if is_cut else fetched.next_offset
                    return body_of([entry.batch for entry in entries]), next_offset
            else:
                records, next_offset = await _wanted(pull, fetched)
                if records:
                    return orjson.dumps(records), next_offset
            pull.start = min(max(fetched.next_offset, pull.start), max(pull.stop, pull.start))
            left_ms = round((deadline_s - loop.time()) * 1000)
            if pull.start >= pull.stop or (pull.start >= fetched.max_offset and left_ms <= 0):
                break
            if gateway.draining.is_set():
                break
            fetched = await _fetch(gateway, request, pull, max(left_ms, 0))
        return b"" if pull.kind.fmt is None else b"[]", pull.start
    finally:
        pull.start = first


async def _wanted(pull: _Pull, fetched: Fetched) -> tuple[list[dict[str, object]], int]:
    """The wanted records of what was fetched, at most `max_records`, and the offset to go on at."""
    records: list[dict[str, object]] = []
    stop = pull.stop
    for piece, high in rendered_pieces(
        pull.topic,
        pull.partition,
        fetched.entries,
        pull.kind.fmt,
        start=pull.start,
        stop=stop,
        tag_filter=pull.tag_filter,
        topic_id=pull.topic_id if pull.kind.fmt is None else None,
    ):
        records += piece
        if len(records) >= pull.max_records:
            del records[pull.max_records :]
            last = records[-1]["offset"]
            assert isinstance(last, int)
            return records, last + 1
        if high < stop:
            await asyncio.sleep(0)
    return records, min(fetched.next_offset, max(stop, pull.start))


async def _streamed(gateway: Gateway, request: web.Request, pull: _Pull, fetched: Fetched) -> web.StreamResponse:
    """The records from `start` on as lines: up to `end_offset`, else to where the partition ended when asked.

    An error after the first line is a line of its own, `{"error_code", "error", "next_offset"}`, and ends the stream.
    """
    if pull.stop == OFFSET_MAX:
        pull.stop = max(fetched.max_offset, pull.start)
    headers = _bounds_headers(pull, fetched)
    if pull.max_bytes == OFFSET_MAX and (pull.tag_filter is None or pull.max_records == OFFSET_MAX):
        headers[NEXT_OFFSET] = str(max(pull.start, min(pull.stop, pull.start + pull.max_records)))
    answer = StreamedAnswer(gateway, request, content_type=pull.kind.content_type, headers=headers)
    if request.method == hdrs.METH_HEAD:
        return answer.response
    left_records, left_bytes = pull.max_records, pull.max_bytes
    stats = gateway.stats
    try:
        while True:
            stop = pull.stop if pull.tag_filter else min(pull.stop, pull.start + left_records)
            for covering, low, high in pieces(fetched.entries, pull.start, stop):
                texts = render_texts(
                    pull.topic,
                    pull.partition,
                    covering,
                    pull.kind.fmt,
                    start=low,
                    stop=high,
                    topic_id=pull.topic_id if pull.kind.fmt is None else None,
                    tag_filter=pull.tag_filter,
                )[:left_records]
                lines = b"\n".join([*texts, b""])
                if lines:
                    await answer.write(lines)
                await asyncio.sleep(0)
                left_records -= len(texts)
                left_bytes -= len(lines)
                stats.fetched_record_count += high - pull.start
                stats.fetched_byte_count += len(lines)
                pull.start = high
                if left_records <= 0 or left_bytes <= 0:
                    break
            if left_records <= 0 or left_bytes <= 0:
                break
            pull.start = min(max(fetched.next_offset, pull.start), max(pull.stop, pull.start))
            if pull.start >= pull.stop:
                break
            if gateway.draining.is_set():
                raise draining()
            access_of(request).check(Permission.RECEIVE, topic=pull.topic)
            at = pull.start
            fetched = await _fetch(gateway, request, pull)
            if not fetched.min_offset <= pull.start <= fetched.max_offset:
                _reset(None, pull.start, fetched)
            if fetched.next_offset == at and not fetched.entries:
                break  # the end, and nothing came in time
    except ConnectionError:
        return answer.gone()
    except Exception as error:
        if not answer.has_begun:
            raise
        refusal = error_of(error)
        line = {"error_code": refusal.error_code, "error": refusal.message, "next_offset": pull.start}
        await answer.write(orjson.dumps(line) + b"\n")
    return await answer.end()

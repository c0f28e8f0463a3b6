"""GET /topics/{topic}/partitions/{partition}/records: a direct pull, at once or as a long poll that ends with the
first record. JSON in three formats or by the schemas of a registry, whole RecordBatches as they are stored, or NDJSON:
one record a line, a whole range in one answer of any length, sent as fast as the client reads.

An answer that is larger than WHOLE_BYTES_MAX (batches: WHOLE_BATCHES_BYTES_MAX) is sent in pieces. Where it ends is
settled before, as the headers name the offset behind it: the same entries are read twice, the first time only to know
their sizes. An error in the middle ends the connection, so the client sees that the answer is incomplete. While much
memory is taken by answers that their clients do not read, answers end earlier than asked (`http/answer_memory.py`).

With a filter, what does not match is passed over in the index. A read that looks at much and finds nothing answers with
no record and a later Mq-Next-Offset, so that the work of one request is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import orjson
from aiohttp import hdrs, web

from gateway.api.errors import error_of
from gateway.api.read import AtTime, Fetched, OffsetSpec
from gateway.api.shapes.queries import FetchQuery
from gateway.api.turns import in_turns
from gateway.auth.access import Permission
from gateway.brokers.base import BrokerUnreachable
from gateway.codec.filters import TagFilter, parse_filter
from gateway.codec.records import render_record, render_records_in_steps
from gateway.codec.schema_parts import SchemaFormat
from gateway.codec.texts import Texts, render_texts_in_steps, single_texts_in_steps
from gateway.errors import EPOCH_CHANGED, OFFSET_OUT_OF_RANGE, RequestError, draining, invalid
from gateway.routing.patience import patiently
from gateway.surfaces.http.admission import allowance_of, caller_of
from gateway.surfaces.http.answer_memory import RENDERED_FACTOR, SMALL_BYTES, WHOLE_BYTES_MAX, Allowance
from gateway.surfaces.http.answers import packed, packed_body
from gateway.surfaces.http.buffers_body import body_of
from gateway.surfaces.http.caller import Caller, access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.fetching import (
    BEGINNING_OFFSET,
    END_OFFSET,
    EPOCH,
    NEXT_OFFSET,
    Sought,
    fetch_or_wait,
)
from gateway.surfaces.http.media import (
    LINES_TYPES,
    RecordsType,
    any_format_named,
    format_named,
    kafka_records_type,
    prefers,
    records_type,
    schemas_for,
)
from gateway.surfaces.http.plain import Whole
from gateway.surfaces.http.reading import partition_in, read_query
from gateway.surfaces.http.streaming import PIECE_RECORDS_MAX, StreamedAnswer, pieces, records_at_once, rendered_pieces
from gateway.surfaces.rest_v2.schema_records import RECORDS_AT_ONCE, deserialized
from store import record_batch
from store.limits import KiB, MiB
from store.turns import others_turn
from store.types import OFFSET_MAX, Buffer, Entry

log = logging.getLogger(__name__)

FILTERED_READS_MAX = 16
"""Reads of the index (65,536 records each) that one filtered request makes in search of a first match."""

WHOLE_BATCHES_BYTES_MAX = 8 * MiB
"""Batches of one answer that are read at once; more of them are read and sent piece by piece."""

PIECE_BYTES = 512 * KiB
"""Of an answer that is sent piece by piece. Each is read when the client has taken the one before."""

SCATTERED_MAX = 16
"""Texts of one answer that are sent as they are; more of them, which are smaller, are joined first."""

SHOWN_BYTES = 100
"""What a rendered record has at least beside its topic, key and value."""

SCHEMA_BYTES_MAX = 1 * MiB
"""Of the batches of one answer in a schema format."""

_EXTENT_READ_BYTES = 1 * MiB


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
    piece_records: int = PIECE_RECORDS_MAX
    """As many as the room for a piece held last, where it did not hold all: a compressed batch does not say how much
    its records become."""

    @property
    def is_raw(self) -> bool:
        """Whether whole batches are wanted."""
        return self.kind.fmt is None and not self.kind.is_lines and self.kind.schema_format is None

    @property
    def last(self) -> int:
        """No record at or behind it is wanted, but for those of a batch that holds others."""
        return max(self.start, min(self.stop, self.start + self.max_records))


async def fetch_records(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Records of one partition from an offset on, and where the next pull begins."""
    query = read_query(FetchQuery, request, gateway)
    kind = form_of(request.headers, query.format, has_schemas=gateway.schemas is not None)
    topic, partition = request.match_info["topic"], partition_in(request)
    assert partition is not None
    pull = _pull_of(gateway, topic, partition, kind, query)
    pull.start = await gateway.consumer.resolve_offset(topic, partition, _offset_spec(query))
    caller = caller_of(gateway, request)
    fetched = await _fetch(gateway, caller, pull)
    if not fetched.min_offset <= pull.start <= fetched.max_offset:
        pull.start = _reset(query.reset, pull.start, fetched)
        fetched = await _fetch(gateway, caller, pull)
    if fetched.entries and fetched.entries[0].base_offset > pull.start:  # a takeover has left a gap
        pull.start = fetched.entries[0].base_offset
    if kind.schema_format is not None:
        return await _by_schemas(gateway, request, pull, fetched, kind.schema_format, has_bounds=True)
    if kind.is_lines:
        return await _streamed(gateway, request, pull, fetched)
    return await _answer(gateway, request, pull, fetched, _bounds_headers(pull, fetched))


async def pulled(
    gateway: Gateway,
    caller: Caller,
    topic: str,
    partition: int,
    start: int,
    kind: RecordsType,
    query: FetchQuery,
    accept_encoding: str | None,
) -> Whole | None:
    """What `fetch_records` answers to a query without a filter, in a form that is neither lines nor by schemas, from
    this offset on; None where that is in pieces, or refused for want of memory, and for an offset that is out of
    bounds. Raises as it does."""
    pull = _pull_of(gateway, topic, partition, kind, query)
    pull.start = start
    allowance = caller.allowance
    fetched = await _fetch(gateway, caller, pull)
    entries = fetched.entries
    if not fetched.min_offset <= start <= fetched.max_offset:
        return None
    if entries:
        is_more = entries[-1].next_offset < min(pull.last, fetched.max_offset)
        is_more = is_more and pull.max_bytes > _one_read_bytes(pull)
        if allowance.is_ample and (is_more or not (pull.is_raw or _is_whole(pull, entries, allowance.room_bytes))):
            return None  # in pieces: before any record is rendered, which would be in vain
        pull.start = max(start, entries[0].base_offset)  # a takeover has left a gap
    bounds = _bounds_headers(pull, fetched)
    made, next_offset = await _taken(gateway, pull, entries, allowance.room_bytes)
    end = (await _extent(gateway, pull, fetched, next_offset))[0] if allowance.is_ample else next_offset
    entries.clear()
    if end > next_offset:
        return None
    body: Sequence[Buffer] = made if pull.is_raw else _array(made)
    size = sum(map(len, body))
    headers = {NEXT_OFFSET: str(next_offset), **bounds}
    if not pull.is_raw:
        packed, more = await packed_body(accept_encoding, body)
        headers |= more
        body = body if packed is None else (packed,)
    allowance.made()
    if not allowance.hold(sum(map(len, body))):
        return None
    _count(gateway, pull, next_offset, size)
    return Whole("".join([f"{name}: {text}\r\n" for name, text in headers.items()]).encode(), body)


async def fetch_messages(
    gateway: Gateway, request: web.Request, kind: RecordsType, topic: str, partition: int, start: int, count: int
) -> web.StreamResponse:
    """So many records from an offset on, without saying where the next pull begins."""
    pull = _Pull(
        topic=topic,
        topic_id=gateway.routes_table.topic(topic).topic_id,
        partition=partition,
        kind=kind,
        start=start,
        stop=OFFSET_MAX,
        max_bytes=gateway.limits.fetch_bytes_default,
        max_records=count,
        timeout_ms=0,
        tag_filter=None,
    )
    fetched = await _fetch(gateway, caller_of(gateway, request), pull)
    if kind.schema_format is not None:
        return await _by_schemas(gateway, request, pull, fetched, kind.schema_format, has_bounds=False)
    return await _answer(gateway, request, pull, fetched, None)


async def _by_schemas(
    gateway: Gateway, request: web.Request, pull: _Pull, fetched: Fetched, fmt: SchemaFormat, *, has_bounds: bool
) -> web.StreamResponse:
    """The first records of a pull by their schemas: an answer ends earlier than in other formats."""
    schemas = schemas_for(gateway.schemas, fmt)
    stop = pull.last if pull.tag_filter is None else pull.stop
    next_offset = max(pull.start, min(fetched.next_offset, stop))
    texts: list[bytes] = []
    if fetched.entries:
        shown = await deserialized(
            schemas, fmt, fetched.entries, pull.start,
            stop=stop, count_max=pull.max_records, tag_filter=pull.tag_filter,
        )  # fmt: skip
        access_of(request).check(Permission.RECEIVE, topic=pull.topic)  # rules may have changed meanwhile
        if shown.stop < fetched.entries[-1].next_offset:
            next_offset = shown.stop
        for entry in fetched.entries:
            if entry.base_offset >= shown.stop:
                break
            for piece in record_batch.decode_in_pieces(entry.batch):
                for record in piece:
                    if (fields := shown.fields.get(record.offset)) is not None:
                        item = render_record(pull.topic, pull.partition, record, entry, None, fields=fields)
                        texts.append(orjson.dumps(item))
                await others_turn()
    body = b"[%b]" % b",".join(texts)
    gateway.stats.fetched_record_count += len(texts)
    gateway.stats.fetched_byte_count += len(body)
    headers: dict[str, str] = {hdrs.CONTENT_TYPE: pull.kind.content_type}
    if has_bounds:
        headers |= {NEXT_OFFSET: str(next_offset), **_bounds_headers(pull, fetched)}
    return await packed(request, web.Response(body=body, headers=headers))


async def _answer(
    gateway: Gateway, request: web.Request, pull: _Pull, fetched: Fetched, bounds: dict[str, str] | None
) -> web.StreamResponse:
    """The answer with the records of a pull. `bounds`: headers that name offsets; None without any of them."""
    headers: dict[str, str] = {hdrs.CONTENT_TYPE: pull.kind.content_type}
    allowance = allowance_of(gateway, request)
    batch_bytes = 0
    if pull.tag_filter is None:
        made, next_offset = await _taken(gateway, pull, fetched.entries, allowance.room_bytes)
        end = next_offset
        if allowance.is_ample:  # else it is as large as it may be
            end, batch_bytes = await _extent(gateway, pull, fetched, next_offset)
    else:
        made, next_offset = await _taken_filtered(gateway, caller_of(gateway, request), pull, fetched)
        end = next_offset
    fetched.entries.clear()  # callers still have it while the answer is written
    if bounds is not None:
        headers |= {NEXT_OFFSET: str(end), **bounds}
    if end > next_offset:
        if pull.is_raw:
            headers[hdrs.CONTENT_LENGTH] = str(batch_bytes)
        answer = StreamedAnswer(gateway, request, content_type=pull.kind.content_type, headers=headers)
        return await _in_pieces(gateway, request, pull, answer, made, next_offset, end)
    body = body_of(made if pull.is_raw else _array(made))
    _count(gateway, pull, next_offset, len(body))
    response = web.Response(body=body, headers=headers)
    return response if pull.is_raw else await packed(request, response)


def _count(gateway: Gateway, pull: _Pull, next_offset: int, size: int) -> None:
    gateway.stats.fetched_record_count += next_offset - pull.start
    gateway.stats.fetched_byte_count += size


async def _in_pieces(
    gateway: Gateway,
    request: web.Request,
    pull: _Pull,
    answer: StreamedAnswer,
    made: list[Buffer],
    next_offset: int,
    end: int,
) -> web.StreamResponse:
    """Send what is made, up to `next_offset`, and go on to `end`; each piece is read when there is room for it."""
    if request.method == hdrs.METH_HEAD:
        return answer.response
    opening = b"["
    try:
        while True:
            _count(gateway, pull, next_offset, sum(map(len, made)))
            if not pull.is_raw:
                made[0] = b"".join((opening, made[0]))
                if next_offset >= end:
                    made[-1] = b"".join((made[-1], b"]"))
            await answer.write(_joined(made, b"" if pull.is_raw else b","))
            pull.start, opening = next_offset, b","
            if pull.start >= end:
                return await answer.end()
            access_of(request).check(Permission.RECEIVE, topic=pull.topic)
            try:
                room_bytes, entries = await _next_entries(gateway, pull, end, answer.allowance)
            except BrokerUnreachable as error:
                room_bytes, entries = await patiently(
                    partial(_next_entries, gateway, pull, end, answer.allowance), error
                )
            made, next_offset = await _taken(gateway, pull, entries, room_bytes, end=end)
            del entries
    except ConnectionError:
        return answer.gone()
    except Exception as error:
        if not answer.has_begun:
            raise
        refusal = error_of(error)
        log.log(
            logging.ERROR if refusal.hides_cause else logging.WARNING,
            "answer ended early topic=%s partition=%s offset=%s error=%r",
            pull.topic, pull.partition, pull.start, error,
        )  # fmt: skip
        return answer.gone()


def _joined(made: list[Buffer], between: bytes) -> bytes:
    """One piece of all that is made; the list is empty then, so that the piece alone waits for the client."""
    piece = between.join(made)
    made.clear()
    return piece


def _array(texts: list[Buffer]) -> list[Buffer]:
    """The JSON array of texts, in few buffers: large ones are sent from where they are."""
    if len(texts) > SCATTERED_MAX:
        texts = [b",".join(texts)]
    buffers: list[Buffer] = [b","] * (2 * len(texts) + 1)
    buffers[1::2] = texts
    buffers[0] = b"[" if texts else b"[]"
    if texts:
        buffers[-1] = b"]"
    return buffers


async def _next_entries(gateway: Gateway, pull: _Pull, end: int, allowance: Allowance) -> tuple[int, list[Entry]]:
    """Entries from `start` on, and the room for what they become. Raises RequestError when they are not there any more;
    BrokerUnreachable, and then no room is held."""
    room_bytes = await allowance.begin(PIECE_BYTES)
    try:
        fetched = await gateway.consumer.fetch(
            pull.topic,
            pull.partition,
            pull.start,
            max_bytes=room_bytes if pull.is_raw else room_bytes // RENDERED_FACTOR,
            end_offset=end,
        )
    except BrokerUnreachable:
        allowance.release()
        raise
    if gateway.routes_table.topic(pull.topic).topic_id != pull.topic_id:
        raise RequestError(EPOCH_CHANGED, f"Topic {pull.topic} was deleted and made again.")
    if not fetched.entries:
        _reset(None, pull.start, fetched)
    return room_bytes, fetched.entries


async def _extent(gateway: Gateway, pull: _Pull, fetched: Fetched, next_offset: int) -> tuple[int, int]:
    """The offset behind the whole answer, by the rule of a read with `max_bytes`, and the bytes of its batches where
    they take more than one read. `fetched` is the first of them, of which `next_offset` is reached."""
    at, last, left_bytes, batch_bytes = pull.start, pull.last, pull.max_bytes, 0
    entries, high = fetched.entries, fetched.max_offset
    if not entries or pull.max_bytes <= _one_read_bytes(pull):
        return (next_offset if pull.is_raw or not entries else min(last, entries[-1].next_offset)), 0
    while True:
        for entry in entries:
            if entry.base_offset >= last or (at > pull.start and entry.size > left_bytes):
                return at if pull.is_raw else min(at, last), batch_bytes
            at = entry.next_offset
            left_bytes -= entry.size
            batch_bytes += len(entry.batch)
        if not entries or at >= min(last, high) or left_bytes <= 0:
            return at if pull.is_raw else min(at, last), batch_bytes
        await others_turn()  # what is cached is read without a wait
        fetched = await gateway.consumer.fetch(
            pull.topic, pull.partition, at, max_bytes=min(left_bytes, _EXTENT_READ_BYTES), end_offset=last
        )
        entries = fetched.entries


def _is_whole(pull: _Pull, entries: Sequence[Entry], room_bytes: int) -> bool:
    """Whether so many bytes seem to have room for what the records become."""
    count = min(pull.last, entries[-1].next_offset) - pull.start
    return sum([entry.size for entry in entries]) + count * (SHOWN_BYTES + len(pull.topic)) <= room_bytes


def _one_read_bytes(pull: _Pull) -> int:
    """What is read at once for an answer."""
    return WHOLE_BATCHES_BYTES_MAX if pull.is_raw else WHOLE_BYTES_MAX // RENDERED_FACTOR


def _pull_of(gateway: Gateway, topic: str, partition: int, kind: RecordsType, query: FetchQuery) -> _Pull:
    """Its `start` is for the caller to find."""
    limits = gateway.limits
    if kind.is_lines:
        bytes_default = bytes_max = records_max = OFFSET_MAX  # bounded by how fast the client reads
    elif kind.schema_format is not None:
        bytes_default = bytes_max = SCHEMA_BYTES_MAX
        records_max = RECORDS_AT_ONCE
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
        start=0,
    )


def _bounds_headers(pull: _Pull, fetched: Fetched) -> dict[str, str]:
    return {
        BEGINNING_OFFSET: str(fetched.min_offset),
        END_OFFSET: str(fetched.max_offset),
        EPOCH: str(pull.topic_id),
    }


def form_of(headers: Mapping[str, str], name: str | None, *, has_schemas: bool) -> RecordsType:
    """The form that the parameter `format` names, else the one that Accept asks for."""
    if name is None:
        return records_type(headers.get(hdrs.ACCEPT, "*/*"), has_schemas=has_schemas)
    fmt = any_format_named(name) if has_schemas else format_named(name)
    if isinstance(fmt, SchemaFormat):
        return kafka_records_type(fmt)
    accepted = _lines_accepted(headers)
    return kafka_records_type(fmt) if accepted is None else accepted._replace(fmt=fmt)


def _lines_accepted(headers: Mapping[str, str]) -> RecordsType | None:
    """The lines that Accept asks for beside a `format=`; None when it does not."""
    name = prefers(headers.get(hdrs.ACCEPT, ""), *LINES_TYPES)
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
    where = f"below the first offset {low}" if offset < low else f"above the end offset {high}"
    raise RequestError(
        OFFSET_OUT_OF_RANGE,
        f"Offset {offset} is {where}.",
        details={"beginning_offset": low, "end_offset": high},
    )


async def _fetch(gateway: Gateway, caller: Caller, pull: _Pull, timeout_ms: int | None = None) -> Fetched:
    if timeout_ms is None:
        timeout_ms = pull.timeout_ms
    sought = Sought(
        pull.topic,
        pull.partition,
        pull.start,
        max_bytes=pull.max_bytes,
        wanted_bytes=_wanted_bytes(pull),
        is_rendered=not pull.is_raw,
        end_offset=min(pull.stop, pull.start + pull.max_records) if pull.tag_filter is None else None,
        tag_hashes=None if pull.tag_filter is None else pull.tag_filter.hashes,
    )
    return await fetch_or_wait(gateway, caller, sought, timeout_ms=timeout_ms if pull.start < pull.stop else 0)


def _wanted_bytes(pull: _Pull) -> int:
    """The memory that an answer, or the first piece of it, would take."""
    if pull.is_raw:
        return min(pull.max_bytes, WHOLE_BATCHES_BYTES_MAX)
    return PIECE_BYTES if pull.kind.is_lines else WHOLE_BYTES_MAX


async def _taken(
    gateway: Gateway, pull: _Pull, entries: Sequence[Entry], room_bytes: int, *, end: int | None = None
) -> tuple[list[Buffer], int]:
    """The batches of entries, or the texts of their records, from `start` on until they have `room_bytes` (one at
    least); and the offset behind them. `end`: of the answer, where that is not the pull's own."""
    last = pull.last if end is None else end
    entries = [entry for entry in entries if entry.base_offset < last]
    if pull.is_raw:
        return [entry.batch for entry in entries], entries[-1].next_offset if entries else pull.start
    texts, next_offset = await _texts(gateway, pull, entries, last, room_bytes)
    return [one.data for one in texts], next_offset


async def _texts(
    gateway: Gateway, pull: _Pull, entries: Sequence[Entry], last: int, room_bytes: int
) -> tuple[list[Texts], int]:
    """The texts of records from `start` on, as `_taken`. With a filter they may have more than `room_bytes`, and are of
    one record each."""
    texts: list[Texts] = []
    size = 0
    next_offset = pull.start
    stop = min(last, entries[-1].next_offset) if entries else pull.start
    await _large_turn(entries)
    records_max = min(records_at_once(entries, room_bytes), pull.piece_records)
    for covering, low, high in pieces(entries, pull.start, last, records_max):
        steps = render_texts_in_steps(
            pull.topic,
            pull.partition,
            covering,
            pull.kind.fmt,
            separator=b"\n" if pull.kind.is_lines else b",",
            start=low,
            stop=high,
            topic_id=pull.topic_id,
            has_ids=pull.kind.fmt is None,
            tag_filter=pull.tag_filter,
            cache=gateway.texts,
        )
        made = await in_turns(steps)
        texts += made
        size += sum([one.size for one in made])
        next_offset = high
        if size > room_bytes:
            break
        if high < stop:
            await others_turn()
    if pull.tag_filter is not None:
        return texts, next_offset
    pull.piece_records = min(2 * pull.piece_records, PIECE_RECORDS_MAX)
    while size > room_bytes and next_offset > pull.start + 1:
        too_many = texts.pop()
        size -= too_many.size
        if too_many.record_count > 1 and (size < room_bytes or not texts):
            await others_turn()  # they are rendered once more
            texts += await _single_texts(pull, entries, next_offset - too_many.record_count, next_offset)
            size += too_many.size
        else:
            next_offset -= too_many.record_count
            pull.piece_records = next_offset - pull.start
    return texts, next_offset


async def _large_turn(entries: Sequence[Entry]) -> None:
    """Others' turn before the first of many records is rendered: dozens of large answers may be made at once."""
    if sum(entry.size for entry in entries) > SMALL_BYTES:
        await others_turn()


async def _single_texts(pull: _Pull, entries: Sequence[Entry], low: int, high: int) -> list[Texts]:
    """The texts of records that do not all fit, one by one."""
    covering = [entry for entry in entries if entry.next_offset > low and entry.base_offset < high]
    topic_id = pull.topic_id if pull.kind.fmt is None else None
    objects = await in_turns(
        render_records_in_steps(
            pull.topic, pull.partition, covering, pull.kind.fmt, start=low, stop=high, topic_id=topic_id
        )
    )
    return await in_turns(single_texts_in_steps(objects))


async def _taken_filtered(gateway: Gateway, caller: Caller, pull: _Pull, fetched: Fetched) -> tuple[list[Buffer], int]:
    """As `_taken`, for the records that the filter wants; goes on reading until there is one."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + pull.timeout_ms / 1000
    first = pull.start
    try:
        for _ in range(FILTERED_READS_MAX):
            if pull.is_raw:
                entries = [entry for entry in fetched.entries if entry.base_offset < pull.stop]
                if entries:
                    is_cut = len(entries) < len(fetched.entries)
                    next_offset = entries[-1].next_offset if is_cut else fetched.next_offset
                    return [entry.batch for entry in entries], next_offset
            else:
                texts, next_offset = await _wanted(pull, fetched, caller.allowance.room_bytes)
                if texts:
                    return texts, next_offset
            pull.start = min(max(fetched.next_offset, pull.start), max(pull.stop, pull.start))
            left_ms = round((deadline_s - loop.time()) * 1000)
            if pull.start >= pull.stop or (pull.start >= fetched.max_offset and left_ms <= 0):
                break
            if gateway.draining.is_set():
                break
            fetched = await _fetch(gateway, caller, pull, max(left_ms, 0))
        return [], pull.start
    finally:
        pull.start = first


async def _wanted(pull: _Pull, fetched: Fetched, room_bytes: int) -> tuple[list[Buffer], int]:
    """The texts of the wanted records of what was fetched, at most `max_records`, and the offset to go on at."""
    texts: list[Buffer] = []
    size = 0
    stop = pull.stop
    await _large_turn(fetched.entries)
    async for records, high in rendered_pieces(
        pull.topic,
        pull.partition,
        fetched.entries,
        pull.kind.fmt,
        start=pull.start,
        stop=stop,
        tag_filter=pull.tag_filter,
    ):
        for record in records:
            texts.append(orjson.dumps(record))
            size += len(texts[-1])
            if len(texts) >= pull.max_records or size > room_bytes:
                offset = record["offset"]
                assert isinstance(offset, int)
                return texts, offset + 1
        if high < stop:
            await others_turn()
    return texts, min(fetched.next_offset, max(stop, pull.start))


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
    caller = caller_of(gateway, request)
    left_records, left_bytes = pull.max_records, pull.max_bytes
    stats = gateway.stats
    try:
        while True:
            stop = pull.stop if pull.tag_filter else min(pull.stop, pull.start + left_records)
            texts, high = await _texts(gateway, pull, fetched.entries, stop, answer.allowance.room_bytes)
            is_all = not fetched.entries or high >= fetched.entries[-1].next_offset
            next_read = fetched.next_offset if is_all else high
            fetched.entries.clear()  # nothing but the lines is held while the client takes them
            if pull.tag_filter is not None:
                del texts[left_records:]
            left_records -= sum([one.record_count for one in texts])
            lines: list[Buffer] = [one.data for one in texts]
            texts.clear()
            size = sum(map(len, lines)) + len(lines)
            if lines:
                lines.append(b"")
                await answer.write(_joined(lines, b"\n"))
            left_bytes -= size
            stats.fetched_record_count += high - pull.start
            stats.fetched_byte_count += size
            pull.start = high
            if left_records <= 0 or left_bytes <= 0:
                break
            pull.start = min(max(next_read, pull.start), max(pull.stop, pull.start))
            if pull.start >= pull.stop:
                break
            if gateway.draining.is_set():
                raise draining()
            caller.access.check(Permission.RECEIVE, topic=pull.topic)
            at = pull.start
            fetched = await _fetch(gateway, caller, pull)
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

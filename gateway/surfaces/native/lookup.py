"""Finding single messages: by id, at the cost of one read; by key, tag, text or time, by looking through the log.

There is no index by key: it would cost every send, and only a person with a question needs it. A search reads
the partitions from a time on, passes over batches in which the key's bytes do not occur (at the speed of memory, unless
they are compressed), and stops after SEARCH_BYTES_MAX, `limit` messages, or PAGE_BYTES_MAX of them. The answer then has
a `next_cursor`; a page may be empty and have one. Naming the partition, or a time, is what makes a search in a large
topic short.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
from collections.abc import Sequence
from typing import NamedTuple

import orjson
from aiohttp import hdrs, web

from gateway.api.read import AtTime
from gateway.api.shapes.queries import FindQuery
from gateway.api.shapes.search import SearchBody
from gateway.auth.access import Permission
from gateway.codec.cursors import parse_cursor, write_cursor
from gateway.codec.filters import TagFilter, parse_filter
from gateway.codec.message_ids import parse_message_id
from gateway.codec.records import render_record, stored_forms
from gateway.errors import CURSOR_ILLEGAL, MESSAGE_NOT_FOUND, RATE_LIMITED, RequestError, invalid
from gateway.routing.base import TopicView, UnknownPartition
from gateway.surfaces.http.admission import payer_of
from gateway.surfaces.http.answer_memory import PAGE_BYTES_MAX
from gateway.surfaces.http.answers import check_accept, json_answer, packed
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import JSON_TYPE, prefers
from gateway.surfaces.http.reading import read_query, read_shape
from gateway.surfaces.http.rights import while_allowed
from gateway.surfaces.native.raw import OCTETS, raw_answer, raw_of, record_at
from store import record_batch
from store.errors import UnknownQueue
from store.limits import KiB, MiB
from store.types import Entry

SEARCH_BYTES_MAX = 64 * MiB
"""Of the log that one request looks through."""

SHOWN_VALUE_BYTES_MAX = 64 * KiB
"""Of a value in the answer to a search for people; a read by its id has all of it."""

_READ_BYTES = 4 * MiB


async def get_message(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One message by its id: as JSON, or, with `Accept: application/octet-stream`, its bytes."""
    try:
        message_id = parse_message_id(request.match_info["message_id"])
    except ValueError:
        raise _not_found() from None
    try:
        view = gateway.routes_table.by_id(message_id.topic_id)
    except UnknownQueue:
        raise _not_found() from None
    if message_id.partition >= view.partitions:
        raise _not_found()
    access = access_of(request)
    if not (access.allows(Permission.DESCRIBE, topic=view.name) or access.allows(Permission.RECEIVE, topic=view.name)):
        raise _not_found()  # a number does not tell who asks that there is such a topic
    fetched = await gateway.consumer.fetch(view.name, message_id.partition, message_id.offset, max_bytes=1)
    access.check(Permission.RECEIVE, topic=view.name)  # see `fetch_or_wait`
    if not fetched.entries:
        raise _not_found()
    entry, record = fetched.entries[0], await record_at(fetched, message_id.offset)
    if prefers(request.headers.get(hdrs.ACCEPT, ""), OCTETS, JSON_TYPE) == OCTETS:
        return raw_answer(raw_of(entry, record, message_id))
    match = _match(view, entry, message_id.partition, record)
    return json_answer(request, orjson.Fragment(match.text))


async def find_messages(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """A page of the messages with a key, oldest first in each partition."""
    query = read_query(FindQuery, request, gateway)
    view = gateway.routes_table.topic(request.match_info["topic"])
    wanted = _Wanted(keys=stored_forms(query.key, raw_keys=view.raw_keys))
    search = _Search(gateway, request, view, wanted, query.limit)
    await search.run(partitions_of(query.partition, view), _start(query.cursor, view), query.from_)
    shown = [orjson.Fragment(match.text) for match in search.found]
    return await packed(request, json_answer(request, {"messages": shown, "next_cursor": search.next_cursor}))


async def search_messages(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
    """A page of the messages of a topic: of some partition or time, with a key, a tag, or a text in them.

    One request looks through 64 MiB of the log at most; `complete` says whether it has seen all, else `next_cursor`
    goes on. A caller may search once at a time. Of a value above 64 KiB its beginning is shown.
    """
    check_accept(request)
    asked = read_shape(SearchBody, body, gateway)
    view = gateway.routes_table.topic(request.match_info["topic"])
    start = _start(asked.cursor, view)
    if asked.offset is not None:
        if asked.partition is None:
            raise invalid("offset: needs a partition")
        start = start or (asked.partition, asked.offset)
    wanted = _Wanted(
        keys=None if asked.key is None else stored_forms(asked.key, raw_keys=view.raw_keys),
        tags=None if asked.tag is None else parse_filter(f"tag:{asked.tag}"),
        text=None if asked.text is None else asked.text.encode().lower(),
        to_ms=asked.to_ms(),
        is_cut=True,
    )
    search = _Search(gateway, request, view, wanted, asked.limit)
    payer = payer_of(access_of(request), request.remote or "")
    if payer in gateway.searching:
        message = "One search at a time: your last one is not over."
        raise RequestError(RATE_LIMITED, message, retriable=True, retry_after_ms=1000)
    gateway.searching.add(payer)
    try:
        async with while_allowed(gateway, request):
            await search.run(partitions_of(asked.partition, view), start, asked.from_ms())
    finally:
        gateway.searching.discard(payer)
    answer = {
        "messages": [orjson.Fragment(match.text) for match in search.found],
        "scanned_records": search.scanned_records,
        "scanned_bytes": search.scanned_bytes,
        "complete": search.next_cursor is None,
        "next_cursor": search.next_cursor,
    }
    return await packed(request, json_answer(request, answer))


class _Match(NamedTuple):
    """A record that was looked for, as JSON."""

    offset: int
    text: bytes


class _Wanted(NamedTuple):
    """Which records: with one of some keys and tags, with a text in key, value or headers (in lower case: ASCII letters
    are compared so), stored before a time. None: any. `is_cut`: of large values only the beginning is shown."""

    keys: frozenset[bytes] | None = None
    tags: TagFilter | None = None
    text: bytes | None = None
    to_ms: int | None = None
    is_cut: bool = False

    def may_be_in(self, entry: Entry) -> bool:
        """Whether it is worth taking this entry apart: what is compressed does not show what is in it."""
        if record_batch.is_compressed(entry.batch) or (self.keys is None and self.text is None):
            return True
        data = bytes(entry.batch)
        if self.keys is not None and not any(key in data for key in self.keys):
            return False
        return self.text is None or self.text in data.lower()

    def has(self, record: record_batch.DecodedRecord) -> bool:
        """Whether this record is one of them."""
        if self.keys is not None and record.key not in self.keys:
            return False
        if self.tags is not None and not self.tags.wants(record.headers):
            return False
        if self.text is None:
            return True
        parts = (record.key, record.value, *(value for _, value in record.headers))
        return any(part is not None and self.text in part.lower() for part in parts)


class _Search:
    """One page of a search: what it has found, how far it has come, how much it may still look through."""

    def __init__(self, gateway: Gateway, request: web.Request, view: TopicView, wanted: _Wanted, limit: int) -> None:
        self._gateway = gateway
        self._request = request
        self._view = view
        self._wanted = wanted
        self._limit = limit
        self._left_answer_bytes = PAGE_BYTES_MAX
        self.found: list[_Match] = []
        self.scanned_records = self.scanned_bytes = 0
        self.next_cursor: str | None = None

    async def run(self, partitions: Sequence[int], start: tuple[int, int] | None, from_ms: int | None) -> None:
        """Look through partitions, from an offset in one of them on, else from a time. Raises RequestError."""
        consumer, name = self._gateway.consumer, self._view.name
        for number in partitions:
            if start is not None and number < start[0]:
                continue
            if start is not None and number == start[0]:
                offset = start[1]
            else:
                spec = "earliest" if from_ms is None else AtTime(from_ms)
                offset = await consumer.resolve_offset(name, number, spec)
            await self._look_through(number, offset)
            if self.next_cursor is not None:
                return

    async def _look_through(self, number: int, offset: int) -> None:
        """One partition, from an offset on."""
        wanted, view = self._wanted, self._view
        hashes = None if wanted.tags is None else wanted.tags.hashes
        while True:
            fetched = await self._gateway.consumer.fetch(
                view.name, number, offset, max_bytes=_READ_BYTES, tag_hashes=hashes
            )
            access_of(self._request).check(Permission.RECEIVE, topic=view.name)
            if offset < fetched.min_offset:
                offset = fetched.min_offset  # retention has been here since
                continue
            if not fetched.entries and fetched.next_offset <= offset:
                return
            for entry in fetched.entries:
                if wanted.to_ms is not None and entry.store_time_ms >= wanted.to_ms:
                    return
                offset = await self._take(entry, number, offset)
                if (
                    len(self.found) >= self._limit
                    or self.scanned_bytes >= SEARCH_BYTES_MAX
                    or self._left_answer_bytes <= 0
                ):
                    self.next_cursor = write_cursor([(view.name, number, offset)], {view.name: str(view.topic_id)})
                    return
            offset = max(offset, fetched.next_offset)
            await asyncio.sleep(0)

    async def _take(self, entry: Entry, number: int, offset: int) -> int:
        """What is wanted of one entry, from an offset on; the offset to go on from."""
        self.scanned_bytes += entry.size
        if not self._wanted.may_be_in(entry):
            self.scanned_records += entry.next_offset - max(offset, entry.base_offset)
            return entry.next_offset
        for piece in record_batch.decode_in_pieces(entry.batch):
            if self.scanned_records or piece[0].offset > entry.base_offset:
                await asyncio.sleep(0)
            for record in piece:
                if record.offset < offset:
                    continue
                self.scanned_records += 1
                if self._wanted.has(record):
                    match = _match(self._view, entry, number, record, is_cut=self._wanted.is_cut)
                    self.found.append(match)
                    self._left_answer_bytes -= len(match.text)
                    if len(self.found) >= self._limit:
                        return record.offset + 1
        return entry.next_offset


def _match(
    view: TopicView, entry: Entry, partition: int, record: record_batch.DecodedRecord, *, is_cut: bool = False
) -> _Match:
    """A record in the native form; with the beginning of its value when that is large and to be cut."""
    value = record.value
    shown = render_record(view.name, partition, record, entry, None, topic_id=view.topic_id)
    if is_cut and value is not None and len(value) > SHOWN_VALUE_BYTES_MAX:
        for name in ("value", "value_text", "value_b64"):
            shown.pop(name, None)
        beginning = value[:SHOWN_VALUE_BYTES_MAX]
        try:
            shown["value_text"] = _cut_text(beginning)
        except UnicodeDecodeError:
            shown["value_b64"] = base64.b64encode(beginning).decode()
        shown |= {"value_truncated": True, "value_size": len(value)}
    return _Match(record.offset, orjson.dumps(shown))


def _cut_text(beginning: bytes) -> str:
    """Text whose last character may be cut. Raises UnicodeDecodeError for what is no text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    return decoder.decode(beginning)


def partitions_of(number: int | None, view: TopicView) -> list[int]:
    """The partition that a query names, else all of the topic. Raises UnknownPartition."""
    if number is None:
        return list(range(view.partitions))
    if not 0 <= number < view.partitions:
        raise UnknownPartition(f"topic={view.name} has partitions 0 to {view.partitions - 1}, not {number}")
    return [number]


def _start(text: str | None, view: TopicView) -> tuple[int, int] | None:
    """The partition and offset that a cursor names. Raises RequestError 400/40050."""
    if text is None:
        return None
    cursor = parse_cursor(text)
    next_offsets = list(cursor.offsets.get(view.name, {}).items())
    if len(next_offsets) != 1 or cursor.epochs.get(view.name) != str(view.topic_id) or len(cursor.offsets) != 1:
        raise RequestError(CURSOR_ILLEGAL, "cursor: not one that a page of this topic has named")
    return next_offsets[0]


def _not_found() -> RequestError:
    return RequestError(MESSAGE_NOT_FOUND, "Message not found: no such id, or retention has passed it.")

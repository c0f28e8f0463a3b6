"""Finding single messages: by id, at the cost of one read; by key, by looking through the log.

There is no index by key: it would cost every send, and nobody but a person with a question needs it. A search reads
the partitions from a time on, passes over batches in which the key's bytes do not occur (at the speed of memory, unless
they are compressed), and stops after SEARCH_BYTES_MAX, `limit` messages, or PAGE_BYTES_MAX of them. The answer then has
a `next_cursor`; a page may be empty and have one. Naming the partition, or a time, is what makes a search in a large
topic short.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import orjson
from aiohttp import hdrs, web

from gateway.api.read import AtTime
from gateway.api.shapes.queries import FindQuery
from gateway.auth.access import Permission
from gateway.codec.cursors import parse_cursor, write_cursor
from gateway.codec.message_ids import parse_message_id
from gateway.codec.records import render_record, stored_forms
from gateway.errors import CURSOR_ILLEGAL, MESSAGE_NOT_FOUND, RequestError
from gateway.routing.base import TopicView, UnknownPartition
from gateway.surfaces.http.answer_memory import PAGE_BYTES_MAX
from gateway.surfaces.http.answers import json_answer, packed
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import JSON_TYPE, prefers
from gateway.surfaces.http.reading import read_query
from gateway.surfaces.native.raw import OCTETS, raw_answer, record_at
from store import record_batch
from store.limits import MiB
from store.types import Entry

SEARCH_BYTES_MAX = 64 * MiB
"""Of the log that one request looks through."""

_READ_BYTES = 4 * MiB


async def get_message(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One message by its id: as JSON, or, with `Accept: application/octet-stream`, its bytes."""
    try:
        message_id = parse_message_id(request.match_info["message_id"])
    except ValueError:
        raise _not_found() from None
    views = gateway.routes_table.topics()
    view = next((view for view in views if view.topic_id == message_id.topic_id), None)
    if view is None or message_id.partition >= view.partitions:
        raise _not_found()
    access = access_of(request)
    if not (access.allows(Permission.DESCRIBE, topic=view.name) or access.allows(Permission.RECEIVE, topic=view.name)):
        raise _not_found()  # a number does not tell who asks that there is such a topic
    fetched = await gateway.consumer.fetch(view.name, message_id.partition, message_id.offset, max_bytes=1)
    access.check(Permission.RECEIVE, topic=view.name)  # see `fetch_or_wait`
    if not fetched.entries:
        raise _not_found()
    record = record_at(fetched, message_id)
    if prefers(request.headers.get(hdrs.ACCEPT, ""), OCTETS, JSON_TYPE) == OCTETS:
        return raw_answer(record)
    (found,) = _matches(view, fetched.entries[0], message_id.partition, None, start=message_id.offset, count_max=1)
    return json_answer(request, orjson.Fragment(found.text))


async def find_messages(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """A page of the messages with a key, oldest first in each partition."""
    query = read_query(FindQuery, request, gateway)
    limit = query.limit
    view = gateway.routes_table.topic(request.match_info["topic"])
    keys = stored_forms(query.key, raw_keys=view.raw_keys)
    partitions = _partitions(query.partition, view)
    time_ms = query.from_
    start = _start(query.cursor, view)
    if start is not None:
        partitions = [number for number in partitions if number >= start[0]]
    found: list[_Match] = []
    left_bytes, left_answer_bytes = SEARCH_BYTES_MAX, PAGE_BYTES_MAX
    next_cursor: str | None = None
    for number in partitions:
        if start is not None and number == start[0]:
            offset = start[1]
        else:
            spec = "earliest" if time_ms is None else AtTime(time_ms)
            offset = await gateway.consumer.resolve_offset(view.name, number, spec)
        while next_cursor is None:
            fetched = await gateway.consumer.fetch(view.name, number, offset, max_bytes=_READ_BYTES)
            access_of(request).check(Permission.RECEIVE, topic=view.name)
            if offset < fetched.min_offset:
                offset = fetched.min_offset  # retention has been here since
                continue
            if not fetched.entries:
                break
            for entry in fetched.entries:
                matches = _matches(view, entry, number, keys, start=offset, count_max=limit - len(found))
                left_answer_bytes -= sum(len(match.text) for match in matches)
                found += matches
                left_bytes -= entry.size
                offset = entry.next_offset
                if len(found) >= limit:
                    offset = found[-1].offset + 1
                if len(found) >= limit or left_bytes <= 0 or left_answer_bytes <= 0:
                    next_cursor = write_cursor([(view.name, number, offset)], {view.name: str(view.topic_id)})
                    break
            await asyncio.sleep(0)
        if next_cursor is not None:
            break
    shown = [orjson.Fragment(match.text) for match in found]
    return await packed(request, json_answer(request, {"messages": shown, "next_cursor": next_cursor}))


class _Match(NamedTuple):
    """A record that was looked for, as JSON."""

    offset: int
    text: bytes


def _matches(
    view: TopicView, entry: Entry, partition: int, keys: frozenset[bytes] | None, *, start: int, count_max: int
) -> list[_Match]:
    """The records of an entry from `start` on that have one of the keys (None: any), in the native form."""
    if keys is not None and not record_batch.is_compressed(entry.batch):
        data = bytes(entry.batch)
        if not any(key in data for key in keys):
            return []
    found: list[_Match] = []
    for record in record_batch.decode(entry.batch):
        if record.offset < start or (keys is not None and record.key not in keys):
            continue
        shown = render_record(view.name, partition, record, entry, None, topic_id=view.topic_id)
        found.append(_Match(record.offset, orjson.dumps(shown)))
        if len(found) >= count_max:
            break
    return found


def _partitions(number: int | None, view: TopicView) -> list[int]:
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

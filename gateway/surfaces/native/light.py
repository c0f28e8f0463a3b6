"""Records of one light queue of a topic, long polled: an inbox, a room (docs/light-queues.md).

A light queue is one per partition, so a reader's place is a cursor: a next offset for each partition. A partition that
the cursor does not name begins at its first record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from gateway.api.light import Found, LightReader
from gateway.api.shapes.queries import LightQuery
from gateway.api.tasks import is_set_within, when_set
from gateway.auth.access import Permission
from gateway.codec.cursors import parse_cursor, write_cursor
from gateway.codec.records import parse_light_name, render_record
from gateway.errors import CURSOR_ILLEGAL, RequestError
from gateway.routing.base import TopicView
from gateway.surfaces.http.admission import allowance_of
from gateway.surfaces.http.answer_memory import RENDERED_FACTOR, SMALL_BYTES
from gateway.surfaces.http.answers import check_accept, json_answer, packed
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import read_query
from gateway.surfaces.http.rights import while_allowed
from gateway.surfaces.native.lookup import partitions_of
from store import record_batch
from store.turns import others_turn


async def read_queue(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Records of a light queue, and where the next pull begins. A name with a slash is percent-encoded in the path."""
    check_accept(request)
    query = read_query(LightQuery, request, gateway)
    view = gateway.routes_table.topic(request.match_info["topic"])
    name = parse_light_name(request.match_info["queue"])
    reader = LightReader(gateway.routes_table)
    partitions = partitions_of(query.partition, view)
    offsets = await _offsets(gateway, view, query)
    if query.from_ == "latest" and query.cursor is None:
        offsets = await reader.ends(view.name, name, partitions)
    # What comes first changes with each pull, so that a busy partition does not keep the others waiting.
    shift = sum(offsets.values()) % len(partitions)
    wanted = {partition: offsets.get(partition, 0) for partition in (*partitions[shift:], *partitions[:shift])}
    allowance = allowance_of(gateway, request)

    async def read() -> Found:
        room_bytes = await allowance.begin(SMALL_BYTES)
        max_bytes = max(1, min(gateway.limits.fetch_bytes_default, room_bytes // RENDERED_FACTOR))
        found = await reader.read(view.name, name, wanted, max_records=query.limit, max_bytes=max_bytes)
        # After the read, as `fetch_or_wait`.
        access_of(request).check(Permission.RECEIVE, topic=f"{view.name}/{name.decode()}")
        return found

    found = await read()
    if not found.records and query.timeout and not gateway.draining.is_set():
        allowance.release()
        woken = asyncio.Event()
        gateway.stats.long_poll_count += 1
        try:
            async with while_allowed(gateway, request):
                with reader.watching(view.name, name, partitions, woken.set), when_set(gateway.draining, woken.set):
                    found = await read()  # what came before the watch
                    if not found.records:
                        allowance.release()
                        await is_set_within(woken, query.timeout / 1000)
        finally:
            gateway.stats.long_poll_count -= 1
        if not found.records:
            found = await read()
    answer = {"records": await _rendered(view, name, found), "next_cursor": _cursor_of(view, offsets, found)}
    return await packed(request, json_answer(request, answer))


async def _offsets(gateway: Gateway, view: TopicView, query: LightQuery) -> dict[int, int]:
    """The next offsets that the query names, by partition."""
    if query.cursor is None:
        return {}
    cursor = parse_cursor(query.cursor)
    if set(cursor.offsets) != {view.name} or max(cursor.offsets[view.name]) >= view.partitions:
        raise RequestError(CURSOR_ILLEGAL, "cursor: not one that a pull of this topic has named")
    await gateway.consumer.check_epoch(view, cursor.epochs.get(view.name))
    return dict(cursor.offsets[view.name])


def _cursor_of(view: TopicView, before: Mapping[int, int], found: Found) -> str:
    """Where the next pull begins; partitions without a record so far are left out, but for one."""
    offsets = {**before, **found.next_offsets}
    named = {partition: offset for partition, offset in sorted(offsets.items()) if offset} or {min(offsets): 0}
    epochs = {view.name: str(view.topic_id)}
    return write_cursor(((view.name, partition, offset) for partition, offset in named.items()), epochs)


async def _rendered(view: TopicView, name: bytes, found: Found) -> list[dict[str, object]]:
    shown = []
    position = -1
    records: list[record_batch.DecodedRecord] = []
    for partition, (offset, entry, index) in found.records:
        if entry.position != position:  # the records of one entry follow each other
            position, records = entry.position, list(record_batch.decode(entry.batch))
            await others_turn()
        item = render_record(view.name, partition, records[index], entry, None, topic_id=view.topic_id)
        shown.append({**item, "queue": name.decode(), "queue_offset": offset})
    return shown

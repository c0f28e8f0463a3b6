"""Light queues of a topic: records of one, long polled; how far groups are in it; which there are
(docs/light-queues.md).

A light queue is one per partition, so a reader's place is a cursor: a next offset for each partition. A partition that
the cursor does not name begins at its first record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from aiohttp import web

from gateway.api.light import PARTITIONS_A_TURN, Found, LightReader, commit_light
from gateway.api.pages import decode_after, encode_after, read_cursor
from gateway.api.pages import write_cursor as write_key
from gateway.api.shapes import answers
from gateway.api.shapes.queries import CommitLightQuery, LightGroupQuery, LightQuery, ListLightQuery
from gateway.api.tasks import when_set
from gateway.api.turns import few_a_turn
from gateway.auth.access import Permission
from gateway.codec.cursors import write_cursor
from gateway.codec.records import parse_light_name
from gateway.groups.protocol import LightPlace
from gateway.routing.base import TopicView
from gateway.surfaces.http.admission import allowance_of
from gateway.surfaces.http.answer_memory import RENDERED_FACTOR, SMALL_BYTES
from gateway.surfaces.http.answers import check_accept, json_answer, packed
from gateway.surfaces.http.caller import access_of, is_visible
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.light import check_group, cursor_offsets, light_offsets
from gateway.surfaces.http.reading import read_query
from gateway.surfaces.http.rights import while_allowed
from gateway.surfaces.native.lookup import partitions_of
from store.waits import is_set_within


async def read_queue(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Records of a light queue, and where the next pull begins. A name with a slash is percent-encoded in the path."""
    check_accept(request)
    query = read_query(LightQuery, request, gateway)
    view = gateway.routes_table.topic(request.match_info["topic"])
    name = parse_light_name(request.match_info["queue"])
    check_group(request, view, name, query.group)
    reader = LightReader(gateway.routes_table)
    partitions = partitions_of(query.partition, view)
    is_latest = query.from_ == "latest"
    offsets = await light_offsets(
        gateway, view, name, partitions, cursor=query.cursor, group=query.group, is_latest=is_latest
    )
    # What comes first changes with each pull, so that a busy partition does not keep the others waiting.
    shift = sum(offsets.values()) % len(partitions)
    wanted = {partition: offsets[partition] for partition in (*partitions[shift:], *partitions[:shift])}
    allowance = allowance_of(gateway, request)

    async def read_once() -> Found:
        room_bytes = await allowance.begin(SMALL_BYTES)
        max_bytes = max(1, min(gateway.limits.fetch_bytes_default, room_bytes // RENDERED_FACTOR))
        found = await reader.read(view.name, name, wanted, max_records=query.limit, max_bytes=max_bytes)
        # After the read, as `fetch_or_wait`.
        access_of(request).check(Permission.RECEIVE, topic=f"{view.name}/{name.decode()}")
        return found

    found = await read_once()
    if not found.records and query.timeout and not gateway.draining.is_set():
        allowance.release()
        woken = asyncio.Event()
        until_s = asyncio.get_running_loop().time() + query.timeout / 1000
        gateway.stats.long_poll_count += 1
        try:
            async with while_allowed(gateway, request):
                with reader.watching(view.name, name, partitions, woken.set), when_set(gateway.draining, woken.set):
                    found = await read_once()  # what came before the watch
                    while not found.records and not gateway.draining.is_set():
                        allowance.release()
                        is_woken = await is_set_within(woken, until_s - asyncio.get_running_loop().time())
                        woken.clear()
                        found = await read_once()
                        if not is_woken:
                            break
        finally:
            gateway.stats.long_poll_count -= 1
    shown = await gateway.light_rendering.of(view.name, name, found.records, topic_id=view.topic_id)
    answer = {"records": shown, "next_cursor": _cursor_of(view, offsets, found)}
    return await packed(request, json_answer(request, answer))


async def committed_in_queue(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """How far a group is in a light queue. A partition in which it has never said so is left out."""
    check_accept(request)
    view, name, group = _of_group(gateway, request, read_query(LightGroupQuery, request, gateway).group)
    reader = LightReader(gateway.routes_table)
    committed = gateway.groups.light_offsets.committed
    shown: list[dict[str, int]] = []
    for partition in range(view.partitions):
        offset = committed(group, view.name, partition, name.decode())
        if offset is not None:
            end, lag = await reader.end_and_lag(view.name, name, partition, offset)
            shown.append({"partition": partition, "committed": offset, "end_offset": end, "lag": lag})
    triples = ((view.name, row["partition"], row["committed"]) for row in shown)
    cursor = write_cursor(triples, {view.name: str(view.topic_id)}) if shown else None
    answer = {"group": group, "topic": view.name, "queue": name.decode(), "cursor": cursor, "partitions": shown}
    return json_answer(request, answer)


async def commit_in_queue(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Say how far a group is in a light queue: 204. What is said last stands. Durable when answered."""
    query = read_query(CommitLightQuery, request, gateway)
    view, name, group = _of_group(gateway, request, query.group)
    offsets = await cursor_offsets(gateway, view, query.cursor)
    await commit_light(gateway.groups, gateway.routes_table, group, view.name, name, offsets)
    return web.Response(status=204)


async def forget_in_queue(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Forget how far a group is in a light queue: 204. Durable when answered."""
    view, name, group = _of_group(gateway, request, read_query(LightGroupQuery, request, gateway).group)
    await gateway.groups.light_offsets.forget(group, view.name, name.decode())
    return web.Response(status=204)


async def group_light_offsets(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """How far a group is in light queues: a page by topic, queue and partition, of topics that the caller may describe.
    `prefix`: what names of queues begin with."""
    check_accept(request)
    query = read_query(ListLightQuery, request, gateway)
    group = request.match_info["group"]
    gateway.groups.view(group)  # 404 for one that is not there
    key = read_cursor(query.cursor, (str, str, int))
    after = None if key is None else LightPlace._make([*key, 0])
    found = await gateway.groups.light_offsets.places(
        group, query.prefix or "", after=after, count=query.limit + 1, shows=partial(is_visible, request)
    )
    page = found[: query.limit]
    rows = []
    for place, known in zip(page, await LightReader(gateway.routes_table).ends_and_lags(page), strict=True):
        end, lag = (None, None) if known is None else known
        rows.append(answers.LightPlace(*place, end_offset=end, lag=lag))
    next_cursor = write_key(page[-1][:3]) if len(found) > len(page) else None
    body = answers.LightPlacePage(group=group, offsets=rows, next_cursor=next_cursor)
    return await packed(request, json_answer(request, body))


def _of_group(gateway: Gateway, request: web.Request, group: str) -> tuple[TopicView, bytes, str]:
    """The topic, the light queue and the group of a request, if its caller may receive from them. Raises RequestError,
    UnknownQueue."""
    view = gateway.routes_table.topic(request.match_info["topic"])
    name = parse_light_name(request.match_info["queue"])
    check_group(request, view, name, group)
    return view, name, group


async def list_queues(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Light queues of a topic, in the order of their names' bytes, a page at a time. They are read from the index, and
    never all at once."""
    check_accept(request)
    query = read_query(ListLightQuery, request, gateway)
    view = gateway.routes_table.topic(request.match_info["topic"])
    after = "" if query.cursor is None else decode_after(query.cursor)
    names = await LightReader(gateway.routes_table).names(
        view, (query.prefix or "").encode(), after=after.encode(), count=query.limit + 1
    )
    page = [name.decode() for name in names[: query.limit]]
    next_cursor = encode_after(page[-1]) if len(names) > query.limit else None
    return await packed(request, json_answer(request, {"queues": page, "next_cursor": next_cursor}))


async def get_queue(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Where a light queue begins and ends in each partition in which it has records."""
    check_accept(request)
    view = gateway.routes_table.topic(request.match_info["topic"])
    name = parse_light_name(request.match_info["queue"])
    reader = LightReader(gateway.routes_table)
    shown: list[dict[str, int]] = []
    count = 0
    async for partition in few_a_turn(range(view.partitions), per_turn=PARTITIONS_A_TURN):
        if stretches := await reader.stretches(view.name, name, partition):
            begin, end = stretches[0].min_offset, stretches[-1].max_offset
            shown.append({"partition": partition, "beginning_offset": begin, "end_offset": end})
            count += sum(high - low for low, high in stretches)
    answer = {"topic": view.name, "queue": name.decode(), "record_count": count, "partitions": shown}
    return json_answer(request, answer)


def _cursor_of(view: TopicView, before: Mapping[int, int], found: Found) -> str:
    """Where the next pull begins; partitions without a record so far are left out, but for one."""
    offsets = {**before, **found.next_offsets}
    named = {partition: offset for partition, offset in sorted(offsets.items()) if offset} or {min(offsets): 0}
    epochs = {view.name: str(view.topic_id)}
    return write_cursor(((view.name, partition, offset) for partition, offset in named.items()), epochs)

"""Topics and their offsets: the native form, and Strimzi's `POST /admin/topics`.

Settings of a topic are `retention_ms`, `max_message_bytes` and `selector` here; where Kafka's names are spoken the
first two are `retention.ms` and `max.message.bytes`; what was not chosen is left out, and null takes a choice back.
`json_keys` is chosen when a topic is made, and stays (store/topics.py).
"""

from __future__ import annotations

import asyncio
from functools import partial

from aiohttp import web
from msgspec import UNSET
from msgspec.structs import asdict

from gateway.api.pages import SORTED_IN_LOOP, SortKey, page_of
from gateway.api.shapes import answers
from gateway.api.shapes.base import load
from gateway.api.shapes.queries import PAGE_ROWS_DEFAULT, ListTopicsQuery, OffsetsQuery
from gateway.api.shapes.topics import AttachTopicBody, NewTopicBody, StrimziTopicBody, TopicChangesBody, TopicSettings
from gateway.api.topic_figures import TopicFigure, TopicFigures
from gateway.api.turns import aside
from gateway.auth.access import Permission
from gateway.codec.topic_configs import kafka_changes
from gateway.errors import invalid
from gateway.routing.base import Attachment, TopicView
from gateway.surfaces.http.answers import check_accept, json_answer, lacking, list_answer, packed
from gateway.surfaces.http.caller import access_of, visible_topics
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import json_object, read_query, read_shape, topic_in
from store.errors import BrokerLacks, TopicExists, UnknownQueue
from store.topics import CONFIG_NAMES, TopicConfig
from store.types import Boundary

PARTITIONS_AT_ONCE = 64
"""Partitions that are looked into before it is others' turn: a search by time costs 0.1 ms."""

TOPIC_FIGURES = web.AppKey("topic_figures", TopicFigures)


async def create_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Create a topic: 201, or 200 when it exists with this shape. Durable when answered."""
    check_accept(request)
    view, is_new = await topic_made(gateway, request.match_info["topic"], body)
    return json_answer(request, shown_natively(gateway, view), status=201 if is_new else 200)


async def topic_made(gateway: Gateway, name: str, body: bytes) -> tuple[TopicView, bool]:
    """The topic that a body asks for, and whether it was not there. Durable on return. Raises RequestError, TopicExists
    when there is one of another shape, and as `TopicAdmin.create_topic`."""
    shape = read_shape(NewTopicBody, body, gateway)
    wanted, changes = shape.partitions, shape.changes()
    _check_selector(gateway, shape)
    config = TopicConfig().changed(changes) if changes else None
    try:
        existing: TopicView | None = gateway.routes_table.topic(name)
    except UnknownQueue:
        existing = None
    if existing is not None:
        if wanted is not None and wanted != existing.partitions:
            raise TopicExists(f"Topic {name} exists with another number of partitions: {existing.partitions}.")
        if config is not None and config != existing.config:
            raise TopicExists(f"Topic {name} exists with other settings: {existing.config.chosen()}. Use PATCH.")
        if shape.json_keys not in (None, existing.json_keys):
            raise TopicExists(f"Topic {name} exists with json_keys {existing.json_keys}, which cannot be changed.")
        return existing, False
    count = wanted or gateway.config.partitions_default
    return await gateway.admin.create_topic(name, count, config, shape.json_keys), True


async def attach_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Have a topic that is one of a Kafka cluster, which others write to as well: 201, or 200 when it is attached so.
    Durable when answered."""
    check_accept(request)
    shape = read_shape(AttachTopicBody, body, gateway)
    name = request.match_info["topic"]
    is_new = all(view.name != name for view in gateway.routes_table.topics())
    view = await gateway.admin.attach_topic(name, Attachment(shape.broker, shape.name or name, shape.mirror_groups))
    return json_answer(request, shown_natively(gateway, view), status=201 if is_new else 200)


async def detach_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Have an attached topic no more: 204. The topic in Kafka, and its records, stay as they are; what groups have
    committed here is gone."""
    view = topic_in(gateway, request)
    if gateway.routes_table.attached(view.topic_id) is None:
        raise BrokerLacks(f"topic {view.name} is mq's own, and attached to nothing")
    await gateway.admin.delete_topic(view.name)
    return web.Response(status=204)


def _check_selector(gateway: Gateway, shape: TopicSettings) -> None:
    """Raises RequestError for a selector that is not here."""
    if shape.selector is not UNSET:
        gateway.producer.selector_of(None, shape.selector)


async def change_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Give a topic more partitions, or other settings. With more partitions, keys that had one may get another: order
    across the change is lost."""
    check_accept(request)
    shape = read_shape(TopicChangesBody, body, gateway)
    wanted, changes = shape.partitions, shape.changes()
    _check_selector(gateway, shape)
    if wanted is None and not changes:
        raise invalid(f"partitions: must be given, or {', or '.join(CONFIG_NAMES)}")
    view = topic_in(gateway, request)
    if changes:
        view = await gateway.admin.configure_topic(view.name, changes)
    if wanted is not None:
        view = await gateway.admin.grow_topic(view.name, wanted)
    return json_answer(request, shown_natively(gateway, view))


async def admin_create_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Create a topic as Strimzi's bridge does: 201; 409 when it exists with another shape."""
    check_accept(request)
    asked = json_object(body, '{"topic_name": "orders", "partitions_count": 4}')
    shape = load(StrimziTopicBody, asked, gateway.limits)
    name = shape.topic_name
    access_of(request).check(Permission.CREATE, topic=name)
    count = gateway.config.partitions_default if shape.partitions_count is None else shape.partitions_count
    changes = kafka_changes((shape.config or {}).items())
    await gateway.admin.create_topic(name, count, TopicConfig().changed(changes) if changes else None)
    return web.Response(status=201)


async def delete_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Delete a topic and its records: 204. One made again under its name begins empty."""
    await gateway.admin.delete_topic(topic_in(gateway, request).name)
    return web.Response(status=204)


async def list_topics(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """The topics that the caller may describe: all of them, or, with any parameter, one page of them with how much each
    holds and gets.

    A page by name or partitions is as things are; by another figure, as they were up to 5 s ago.
    """
    query = read_query(ListTopicsQuery, request, gateway)
    if not request.query_string:
        rows = map(partial(shown_natively, gateway), await visible_topics(gateway, request))
        return await packed(request, await list_answer(request, {}, "topics", rows))
    sort = query.sort or "name"
    views = await visible_topics(gateway, request, (query.q or "").lower())
    figures = request.app[TOPIC_FIGURES]
    is_plain = sort in ("name", "partitions")
    lately = {} if is_plain else (await figures.lately(gateway.routes_table.topics())).by_id

    def key(view: TopicView) -> SortKey:
        known = lately.get(view.topic_id)
        figure = (view.partitions if sort == "partitions" else 0) if known is None else getattr(known, sort)
        return figure, view.name

    paged = partial(
        page_of,
        views,
        key,
        sort=sort,
        order=query.order or ("asc" if sort == "name" else "desc"),
        cursor=query.cursor,
        limit=query.limit or PAGE_ROWS_DEFAULT,
        is_sorted=sort == "name",
    )
    page = await aside(paged, is_long=len(views) > SORTED_IN_LOOP and sort != "name")
    now = await figures.of(page.rows)
    listed = [_listed(gateway, view, now.by_id[view.topic_id]) for view in page.rows if view.topic_id in now.by_id]
    body = answers.TopicPage(
        next_cursor=page.next_cursor, total=page.total, topics=listed, missing_nodes=list(now.missing) or UNSET
    )
    return await packed(request, lacking(json_answer(request, body), now.missing))


async def describe_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One topic with how much it holds and gets, and the bounds of its partitions."""
    view = topic_in(gateway, request)
    offsets = await _offsets(gateway, view, None)
    figures, missing = await request.app[TOPIC_FIGURES].of([view])
    if view.topic_id not in figures:
        raise UnknownQueue(f"topic {view.name} does not exist")
    listed = _listed(gateway, view, figures[view.topic_id])
    return lacking(json_answer(request, answers.TopicWithOffsets(**asdict(listed), offsets=offsets)), missing)


async def topic_offsets(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The bounds of all partitions. With `timestamp` the offsets of the first records from that time on, too; with
    `boundary=upper` those of the last ones up to it."""
    query = read_query(OffsetsQuery, request, gateway)
    view = topic_in(gateway, request)
    offsets = await _offsets(gateway, view, query.timestamp, Boundary(query.boundary))
    return json_answer(request, answers.TopicOffsets(view.name, str(view.topic_id), offsets))


def shown_natively(gateway: Gateway, view: TopicView) -> answers.Topic:
    """A topic as the native API has it."""
    shown = answers.Topic(view.name, view.topic_id, view.partitions, view.json_keys)
    if (attached := gateway.routes_table.attached(view.topic_id)) is not None:
        shown.attached = answers.Attached(attached.broker, attached.name, attached.mirror_groups)
    for name in CONFIG_NAMES:
        if (chosen := getattr(view.config, name)) is not None:
            setattr(shown, name, chosen)
    return shown


def _listed(gateway: Gateway, view: TopicView, figure: TopicFigure) -> answers.ListedTopic:
    return answers.ListedTopic(**asdict(shown_natively(gateway, view)), **figure._asdict())


async def _offsets(
    gateway: Gateway, view: TopicView, time_ms: int | None, boundary: Boundary = Boundary.LOWER
) -> list[answers.BoundsAtTime]:
    consumer = gateway.consumer
    rows: list[answers.BoundsAtTime] = []
    for number in range(view.partitions):
        bounds = await consumer.bounds(view.name, number)
        row = answers.BoundsAtTime(number, bounds.min_offset, bounds.max_offset)
        if time_ms is not None:
            row.offset_for_time = await consumer.offset_for_time(view.name, number, time_ms, boundary)
        rows.append(row)
        if number % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
            await asyncio.sleep(0)
    return rows

"""Topics and their offsets: the native form, and Strimzi's `POST /admin/topics`.

Settings of a topic are `retention_ms`, `max_message_bytes` and `selector` here; where Kafka's names are spoken the
first two are `retention.ms` and `max.message.bytes`; what was not chosen is left out, and null takes a choice back.
"""

from __future__ import annotations

from aiohttp import web

from gateway.auth.access import Permission
from gateway.codec.records import unrecognized
from gateway.codec.topic_configs import kafka_changes, partition_count
from gateway.errors import bad_request, invalid
from gateway.routing.base import TopicView
from gateway.routing.select import SELECTORS
from gateway.surfaces.http.answers import check_accept, json_answer
from gateway.surfaces.http.caller import access_of, visible_topics
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import Query, json_object, topic_in
from store.errors import TopicExists, UnknownQueue
from store.topics import CONFIG_NAMES, TopicConfig
from store.types import Boundary

OFFSETS_QUERY = ("timestamp", "boundary")
_BOUNDARIES = tuple(boundary.value for boundary in Boundary)


async def create_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Create a topic: 201, or 200 when it exists with this shape. Durable when answered."""
    check_accept(request)
    wanted, changes = _wanted_shape(body, gateway.limits.partitions_max)
    name = request.match_info["topic"]
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
        return json_answer(request, _native(existing))
    created = await gateway.admin.create_topic(name, wanted or gateway.config.partitions_default, config)
    return json_answer(request, _native(created), status=201)


async def change_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Give a topic more partitions, or other settings. With more partitions, keys that had one may get another: order
    across the change is lost."""
    check_accept(request)
    wanted, changes = _wanted_shape(body, gateway.limits.partitions_max)
    if wanted is None and not changes:
        raise invalid(f"partitions: must be given, or {', or '.join(CONFIG_NAMES)}")
    view = topic_in(gateway, request)
    if changes:
        view = await gateway.admin.configure_topic(view.name, changes)
    if wanted is not None:
        view = await gateway.admin.grow_topic(view.name, wanted)
    return json_answer(request, _native(view))


async def admin_create_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Create a topic as Strimzi's bridge does: 201; 409 when it exists with another shape."""
    check_accept(request)
    shape = json_object(body, '{"topic_name": "orders", "partitions_count": 4}')
    for field in shape:
        if field not in ("topic_name", "partitions_count", "replication_factor", "config"):
            raise unrecognized(field)
    name, wanted = shape.get("topic_name"), shape.get("partitions_count")
    if not isinstance(name, str):
        raise invalid("topic_name: must be a string")
    access_of(request).check(Permission.CREATE, topic=name)
    count = (
        gateway.config.partitions_default if wanted is None else partition_count(wanted, gateway.limits.partitions_max)
    )
    configs = {} if shape.get("config") is None else shape["config"]
    if not isinstance(configs, dict):
        raise bad_request("config: must be an object of names and values")
    changes = kafka_changes(configs.items())
    await gateway.admin.create_topic(name, count, TopicConfig().changed(changes) if changes else None)
    return web.Response(status=201)


async def delete_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Delete a topic and its records: 204. One made again under its name begins empty."""
    await gateway.admin.delete_topic(topic_in(gateway, request).name)
    return web.Response(status=204)


async def list_topics(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """All topics that the caller may describe, with their shapes."""
    return json_answer(request, {"topics": [_native(view) for view in visible_topics(gateway, request)]})


async def describe_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One topic with the bounds of its partitions."""
    view = topic_in(gateway, request)
    offsets = await _offsets(gateway, view, None)
    return json_answer(request, {**_native(view), "offsets": offsets})


async def topic_offsets(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The bounds of all partitions. With `timestamp` the offsets of the first records from that time on, too; with
    `boundary=upper` those of the last ones up to it."""
    query = Query(request, known=OFFSETS_QUERY)
    time_ms = query.time_ms("timestamp")
    boundary = query.text("boundary") or Boundary.LOWER.value
    if boundary not in _BOUNDARIES:
        raise invalid(f"boundary: must be one of {', '.join(_BOUNDARIES)}")
    view = topic_in(gateway, request)
    offsets = await _offsets(gateway, view, time_ms, Boundary(boundary))
    return json_answer(request, {"topic": view.name, "epoch": str(view.topic_id), "partitions": offsets})


def _native(view: TopicView) -> dict[str, object]:
    return {"topic": view.name, "topic_id": view.topic_id, "partitions": view.partitions, **view.config.chosen()}


async def _offsets(
    gateway: Gateway, view: TopicView, time_ms: int | None, boundary: Boundary = Boundary.LOWER
) -> list[dict[str, int]]:
    consumer = gateway.consumer
    rows: list[dict[str, int]] = []
    for number in range(view.partitions):
        bounds = await consumer.bounds(view.name, number)
        row = {"partition": number, "beginning_offset": bounds.min_offset, "end_offset": bounds.max_offset}
        if time_ms is not None:
            row["offset_for_time"] = await consumer.offset_for_time(view.name, number, time_ms, boundary)
        rows.append(row)
    return rows


def _wanted_shape(body: bytes, partitions_max: int) -> tuple[int | None, dict[str, int | str | None]]:
    """The number of partitions that a body asks for, None when it does not say, and the settings it names."""
    shape = json_object(body, '{"partitions": 4}') if body.strip() else {}
    changes: dict[str, int | str | None] = {}
    for name, value in shape.items():
        if name == "selector":
            if value is not None and value not in SELECTORS:
                raise invalid(f"selector: must be one of {', '.join(SELECTORS)}, or null")
            assert value is None or isinstance(value, str)
            changes[name] = value
        elif name in CONFIG_NAMES:
            if value is not None and value.__class__ is not int:
                raise invalid(f"{name}: must be an integer, or null")
            assert value is None or isinstance(value, int)
            changes[name] = value
        elif name != "partitions":
            raise unrecognized(name)
    wanted = shape.get("partitions")
    if wanted is None:
        return None, changes
    if wanted.__class__ is not int or not 1 <= wanted <= partitions_max:
        raise invalid(f"partitions: must be an integer from 1 to {partitions_max}")
    assert isinstance(wanted, int)
    return wanted, changes

"""Topics and their offsets: the REST Proxy's metadata, and the native form with its creation."""

from __future__ import annotations

import orjson
from aiohttp import web

from gateway.codec.records import unrecognized
from gateway.http.answers import check_accept, json_answer, v2_answer
from gateway.http.context import Gateway
from gateway.http.errors import TOPIC_METADATA_NOT_FOUND, RequestError, UnknownPartition, bad_request, invalid
from gateway.http.reading import Query, partition_in
from gateway.topics import TopicView
from store.errors import TopicExists, UnknownQueue

OFFSETS_QUERY = ("timestamp",)
_BROKER_ID = 0  # one broker answers for all partitions


async def root(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Nothing to see: old clients probe it."""
    return v2_answer(request, {})


async def brokers(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The broker ids of the REST Proxy's metadata."""
    return v2_answer(request, {"brokers": [_BROKER_ID]})


async def topic_names(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The names of all topics."""
    return v2_answer(request, [view.name for view in gateway.routes_table.topics()])


async def topic_metadata(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One topic with its partitions, in the REST Proxy's shape."""
    try:
        view = _topic(gateway, request)
    except UnknownQueue:
        raise RequestError(404, TOPIC_METADATA_NOT_FOUND, "Topic not found.") from None
    body = {
        "name": view.name,
        "configs": {"cleanup.policy": "delete"},
        "partitions": [_partition(number) for number in range(view.partitions)],
    }
    return v2_answer(request, body)


async def partitions(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The partitions of a topic."""
    view = _topic(gateway, request)
    return v2_answer(request, [_partition(number) for number in range(view.partitions)])


async def partition(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One partition of a topic."""
    number = partition_in(request)
    view = _topic(gateway, request)
    assert number is not None
    if number >= view.partitions:
        raise UnknownPartition
    return v2_answer(request, _partition(number))


async def partition_offsets(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The first readable offset of a partition, and the one the next record will get."""
    number = partition_in(request)
    assert number is not None
    bounds = await gateway.consumer.bounds(request.match_info["topic"], number)
    return v2_answer(request, {"beginning_offset": bounds.min_offset, "end_offset": bounds.max_offset})


async def create_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Create a topic: 201, or 200 when it exists with this shape. Durable when answered."""
    check_accept(request)
    wanted = _wanted_partitions(body, gateway.limits.partitions_max)
    name = request.match_info["topic"]
    try:
        existing: TopicView | None = gateway.routes_table.topic(name)
    except UnknownQueue:
        existing = None
    if existing is not None:
        if wanted is not None and wanted != existing.partitions:
            raise TopicExists(f"Topic {name} exists with another number of partitions: {existing.partitions}.")
        return json_answer(request, _native(existing))
    created = await gateway.admin.create_topic(name, wanted or gateway.config.partitions_default)
    return json_answer(request, _native(created), status=201)


async def grow_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Give a topic more partitions. Keys that had a partition may get another one: order across the change is lost."""
    check_accept(request)
    wanted = _wanted_partitions(body, gateway.limits.partitions_max)
    if wanted is None:
        raise invalid("partitions: must be given")
    return json_answer(request, _native(await gateway.admin.grow_topic(_topic(gateway, request).name, wanted)))


async def delete_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Delete a topic and its records: 204. One made again under its name begins empty."""
    await gateway.admin.delete_topic(_topic(gateway, request).name)
    return web.Response(status=204)


async def list_topics(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """All topics with their shapes."""
    return json_answer(request, {"topics": [_native(view) for view in gateway.routes_table.topics()]})


async def describe_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One topic with the bounds of its partitions."""
    view = _topic(gateway, request)
    offsets = await _offsets(gateway, view, None)
    return json_answer(request, {**_native(view), "offsets": offsets})


async def topic_offsets(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The bounds of all partitions, and with `timestamp` the offsets of the first records from that time on."""
    time_ms = Query(request, known=OFFSETS_QUERY).time_ms("timestamp")
    view = _topic(gateway, request)
    offsets = await _offsets(gateway, view, time_ms)
    return json_answer(request, {"topic": view.name, "epoch": str(view.topic_id), "partitions": offsets})


def _topic(gateway: Gateway, request: web.Request) -> TopicView:
    return gateway.routes_table.topic(request.match_info["topic"])


def _partition(number: int) -> dict[str, object]:
    replica = {"broker": _BROKER_ID, "leader": True, "in_sync": True}
    return {"partition": number, "leader": _BROKER_ID, "replicas": [replica]}


def _native(view: TopicView) -> dict[str, object]:
    return {"topic": view.name, "topic_id": view.topic_id, "partitions": view.partitions}


async def _offsets(gateway: Gateway, view: TopicView, time_ms: int | None) -> list[dict[str, int]]:
    consumer = gateway.consumer
    rows: list[dict[str, int]] = []
    for number in range(view.partitions):
        bounds = await consumer.bounds(view.name, number)
        row = {"partition": number, "beginning_offset": bounds.min_offset, "end_offset": bounds.max_offset}
        if time_ms is not None:
            row["offset_for_time"] = await consumer.offset_for_time(view.name, number, time_ms)
        rows.append(row)
    return rows


def _wanted_partitions(body: bytes, partitions_max: int) -> int | None:
    """The number of partitions a creation asks for; None when it does not say."""
    if not body.strip():
        return None
    try:
        shape = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The body is not JSON: {error}") from error
    if not isinstance(shape, dict):
        raise bad_request('The body must be a JSON object such as {"partitions": 4}.')
    for name in shape:
        if name != "partitions":
            raise unrecognized(name)
    wanted = shape.get("partitions")
    if wanted is None:
        return None
    if wanted.__class__ is not int or not 1 <= wanted <= partitions_max:
        raise invalid(f"partitions: must be an integer from 1 to {partitions_max}")
    assert isinstance(wanted, int)
    return wanted

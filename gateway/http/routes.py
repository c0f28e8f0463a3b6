"""Every route of the server, in one table. Nothing is served that is not in it.

A row says what the route is called, who may use it, how large a body it reads and which query parameters it knows; a
row that lacks a permission, or that takes another's place, does not start. A path answers with a trailing "/" too, and
a GET route answers HEAD.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from aiohttp import hdrs, web

from gateway.auth.access import Permission
from gateway.http import fetch, ops, produce, schedules, topics
from gateway.http.context import Gateway
from gateway.limits import Limits
from gateway.ws.endpoint import websocket_handler
from store.limits import KiB

Handler = Callable[[Gateway, web.Request, bytes], Awaitable[web.StreamResponse]]

SMALL_BODY_BYTES_MAX = 64 * KiB
METHODS = (hdrs.METH_GET, hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH, hdrs.METH_DELETE)


class Body(Enum):
    """How much of a request's body a route reads. What a route does not read is drained, not refused."""

    NONE = "none"
    SMALL = "small"
    RECORDS = "records"

    def bytes_max(self, limits: Limits) -> int:
        """0 when the body is not read at all."""
        return {Body.NONE: 0, Body.SMALL: SMALL_BODY_BYTES_MAX, Body.RECORDS: limits.body_bytes_max}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One route. `name` labels its metrics."""

    method: str
    path: str
    name: str
    handler: Handler
    permission: Permission
    body: Body = Body.NONE
    query: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.permission, Permission):
            raise ValueError(f"route {self.method} {self.path} has no permission")
        if self.method not in METHODS:
            raise ValueError(f"route {self.path} has the unknown method {self.method}")


async def _websocket(_gateway: Gateway, request: web.Request, _body: bytes) -> web.StreamResponse:
    return await websocket_handler(request)


def _get(path: str, name: str, handler: Handler, permission: Permission, query: Sequence[str] = ()) -> Row:
    return Row(method=hdrs.METH_GET, path=path, name=name, handler=handler, permission=permission, query=query)


def _post(
    path: str, name: str, handler: Handler, permission: Permission, body: Body = Body.SMALL, query: Sequence[str] = ()
) -> Row:
    return Row(
        method=hdrs.METH_POST, path=path, name=name, handler=handler, permission=permission, body=body, query=query
    )


def _put(path: str, name: str, handler: Handler, permission: Permission) -> Row:
    return Row(method=hdrs.METH_PUT, path=path, name=name, handler=handler, permission=permission, body=Body.SMALL)


def _patch(path: str, name: str, handler: Handler, permission: Permission) -> Row:
    return Row(method=hdrs.METH_PATCH, path=path, name=name, handler=handler, permission=permission, body=Body.SMALL)


def _delete(path: str, name: str, handler: Handler, permission: Permission, query: Sequence[str] = ()) -> Row:
    return Row(method=hdrs.METH_DELETE, path=path, name=name, handler=handler, permission=permission, query=query)


_TOPIC = "/topics/{topic}"
_PARTITION = "/topics/{topic}/partitions/{partition}"
_NATIVE = "/mq/v1/topics/{topic}"
_SCHEDULES = "/mq/v1/schedules"
_SCHEDULE = "/mq/v1/schedules/{schedule}"

ROUTES: tuple[Row, ...] = (
    # aiohttp tries the routes of one prefix in this order: the busiest first.
    _post(_TOPIC, "produce", produce.produce, Permission.SEND, Body.RECORDS, produce.QUERY),
    _post(_PARTITION, "produce_partition", produce.produce, Permission.SEND, Body.RECORDS, produce.QUERY),
    _get(f"{_PARTITION}/records", "fetch", fetch.fetch_records, Permission.RECEIVE, fetch.QUERY),
    # REST Proxy metadata
    _get("/", "root", topics.root, Permission.PUBLIC),
    _post("/", "root", topics.root, Permission.PUBLIC, Body.NONE),
    _get("/brokers", "brokers", topics.brokers, Permission.DESCRIBE),
    _get("/topics", "topic_names", topics.topic_names, Permission.DESCRIBE),
    _get(_TOPIC, "topic_metadata", topics.topic_metadata, Permission.DESCRIBE),
    _get(f"{_TOPIC}/partitions", "partitions", topics.partitions, Permission.DESCRIBE),
    _get(_PARTITION, "partition", topics.partition, Permission.DESCRIBE),
    _get(f"{_PARTITION}/offsets", "partition_offsets", topics.partition_offsets, Permission.DESCRIBE),
    # REST Proxy v2: consumer instances
    # REST Proxy v3
    # native: topics and records
    _get("/mq/v1/topics", "list_topics", topics.list_topics, Permission.DESCRIBE),
    _get(_NATIVE, "describe_topic", topics.describe_topic, Permission.DESCRIBE),
    _put(_NATIVE, "create_topic", topics.create_topic, Permission.CREATE),
    _patch(_NATIVE, "grow_topic", topics.grow_topic, Permission.CREATE),
    _delete(_NATIVE, "delete_topic", topics.delete_topic, Permission.DELETE),
    _get(f"{_NATIVE}/offsets", "topic_offsets", topics.topic_offsets, Permission.DESCRIBE, topics.OFFSETS_QUERY),
    # native: schedules
    _get(_SCHEDULES, "list_schedules", schedules.list_schedules, Permission.DESCRIBE, schedules.LIST_QUERY),
    _get(
        f"{_SCHEDULES}:histogram",
        "schedule_histogram",
        schedules.histogram,
        Permission.DESCRIBE,
        schedules.HISTOGRAM_QUERY,
    ),
    _get(_SCHEDULE, "get_schedule", schedules.get_schedule, Permission.RECEIVE, schedules.GET_QUERY),
    _delete(_SCHEDULES, "cancel_schedules", schedules.cancel_schedules, Permission.SEND, schedules.CANCEL_QUERY),
    _delete(_SCHEDULE, "cancel_schedule", schedules.cancel_schedule, Permission.SEND),
    _patch(_SCHEDULE, "move_schedule", schedules.move_schedule, Permission.SEND),
    _post(f"{_SCHEDULE}:fire", "fire_schedule", schedules.fire_schedule, Permission.SEND, Body.NONE),
    # native: consumer groups
    # sockets
    _get("/ws/v1", "websocket", _websocket, Permission.SOCKET),
    # operations
    _get("/healthz", "healthz", ops.healthz, Permission.PUBLIC),
    _get("/readyz", "readyz", ops.readyz, Permission.PUBLIC),
    _get("/metrics", "metrics", ops.metrics, Permission.OPERATE),
    _get("/mq/v1/limits", "limits", ops.limits, Permission.PUBLIC),
    _get("/mq/v1/info", "info", ops.info, Permission.PUBLIC),
)

_PARAMETER = re.compile(r"\{\w+\}")


def check_table(rows: Sequence[Row]) -> None:
    """Raises ValueError when two rows answer the same requests."""
    seen: set[tuple[str, str]] = set()
    for row in rows:
        place = (row.method, _PARAMETER.sub("{}", row.path))
        if place in seen:
            raise ValueError(f"two routes for {row.method} {row.path}")
        seen.add(place)

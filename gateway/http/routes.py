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

from gateway.http import fetch, ops, produce, schedules, topics
from gateway.http.context import Gateway
from gateway.limits import Limits
from gateway.ws.endpoint import websocket_handler
from store.limits import KiB

Handler = Callable[[Gateway, web.Request, bytes], Awaitable[web.StreamResponse]]

SMALL_BODY_BYTES_MAX = 64 * KiB
METHODS = (hdrs.METH_GET, hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH, hdrs.METH_DELETE)


class Permission(Enum):
    """What a principal must be allowed to do."""

    PUBLIC = "public"  # liveness: tells nothing
    DESCRIBE = "describe"
    SEND = "send"
    RECEIVE = "receive"
    CREATE = "create"
    DELETE = "delete"
    OPERATE = "operate"  # what shows the server's inside
    SOCKET = "socket"  # opening one; each op in it is judged by itself


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


def _send(path: str, name: str) -> Row:
    return Row(
        method=hdrs.METH_POST,
        path=path,
        name=name,
        handler=produce.produce,
        permission=Permission.SEND,
        body=Body.RECORDS,
        query=produce.QUERY,
    )


_TOPIC = "/topics/{topic}"
_PARTITION = "/topics/{topic}/partitions/{partition}"
_NATIVE = "/mq/v1/topics/{topic}"
_SCHEDULES = "/mq/v1/schedules"
_SCHEDULE = "/mq/v1/schedules/{schedule}"

ROUTES: tuple[Row, ...] = (
    # aiohttp tries the routes of one prefix in this order: the busiest first.
    _send(_TOPIC, "produce"),
    _send(_PARTITION, "produce_partition"),
    _get(f"{_PARTITION}/records", "fetch", fetch.fetch_records, Permission.RECEIVE, fetch.QUERY),
    # REST Proxy metadata
    _get("/", "root", topics.root, Permission.PUBLIC),
    Row(method=hdrs.METH_POST, path="/", name="root", handler=topics.root, permission=Permission.PUBLIC),
    _get("/brokers", "brokers", topics.brokers, Permission.DESCRIBE),
    _get("/topics", "topic_names", topics.topic_names, Permission.DESCRIBE),
    _get(_TOPIC, "topic_metadata", topics.topic_metadata, Permission.DESCRIBE),
    _get(f"{_TOPIC}/partitions", "partitions", topics.partitions, Permission.DESCRIBE),
    _get(_PARTITION, "partition", topics.partition, Permission.DESCRIBE),
    _get(f"{_PARTITION}/offsets", "partition_offsets", topics.partition_offsets, Permission.DESCRIBE),
    # native
    _get("/mq/v1/topics", "list_topics", topics.list_topics, Permission.DESCRIBE),
    _get(_NATIVE, "describe_topic", topics.describe_topic, Permission.DESCRIBE),
    Row(
        method=hdrs.METH_PUT,
        path=_NATIVE,
        name="create_topic",
        handler=topics.create_topic,
        permission=Permission.CREATE,
        body=Body.SMALL,
    ),
    Row(
        method=hdrs.METH_PATCH,
        path=_NATIVE,
        name="grow_topic",
        handler=topics.grow_topic,
        permission=Permission.CREATE,
        body=Body.SMALL,
    ),
    Row(
        method=hdrs.METH_DELETE,
        path=_NATIVE,
        name="delete_topic",
        handler=topics.delete_topic,
        permission=Permission.DELETE,
    ),
    _get(f"{_NATIVE}/offsets", "topic_offsets", topics.topic_offsets, Permission.DESCRIBE, topics.OFFSETS_QUERY),
    # schedules
    _get(_SCHEDULES, "list_schedules", schedules.list_schedules, Permission.DESCRIBE, schedules.LIST_QUERY),
    _get(
        f"{_SCHEDULES}:histogram",
        "schedule_histogram",
        schedules.histogram,
        Permission.DESCRIBE,
        schedules.HISTOGRAM_QUERY,
    ),
    _get(_SCHEDULE, "get_schedule", schedules.get_schedule, Permission.RECEIVE, schedules.GET_QUERY),
    Row(
        method=hdrs.METH_DELETE,
        path=_SCHEDULES,
        name="cancel_schedules",
        handler=schedules.cancel_schedules,
        permission=Permission.SEND,
        query=schedules.CANCEL_QUERY,
    ),
    Row(
        method=hdrs.METH_DELETE,
        path=_SCHEDULE,
        name="cancel_schedule",
        handler=schedules.cancel_schedule,
        permission=Permission.SEND,
    ),
    Row(
        method=hdrs.METH_PATCH,
        path=_SCHEDULE,
        name="move_schedule",
        handler=schedules.move_schedule,
        permission=Permission.SEND,
        body=Body.SMALL,
    ),
    Row(
        method=hdrs.METH_POST,
        path=f"{_SCHEDULE}:fire",
        name="fire_schedule",
        handler=schedules.fire_schedule,
        permission=Permission.SEND,
    ),
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

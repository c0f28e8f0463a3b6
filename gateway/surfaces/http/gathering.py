"""Lists in a cluster: what each node has, as one answer of whichever node is asked.

Groups, delayed records, recurring schedules, connections and sessions belong to nodes. The node that is asked for a
list asks each other one for its part of it, with the caller's credentials, so each judges what the caller may see, and
merges the answers (gateway/api/merged.py). NODES_AT_ONCE nodes are asked at a time, each has ANSWER_TIMEOUT_S, and
answers at most ANSWER_BYTES_MAX.

    a node is away or slow      the answer says so: `missing_nodes` and the header Mq-Missing-Nodes name it
    ... of a change             (cancel all of a topic, a batch) the others do it, and the answer is an error, or says
                                of which it is not known
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import orjson
from aiohttp import hdrs, web

from gateway.api.cluster import Cluster
from gateway.api.merged import (
    MISSING,
    Rows,
    added,
    by_node,
    cursors_by_due,
    cursors_in_turn,
    merged_behind,
    merged_by_due,
    merged_in_turn,
    merged_list,
    merged_names,
    merged_page,
    read_place,
    rows_of,
)
from gateway.api.pages import Order
from gateway.api.shapes.queries import PAGE_ROWS_DEFAULT
from gateway.api.shapes.schedules import BatchBody
from gateway.errors import OVERLOADED, RequestError
from gateway.surfaces.http.answers import PART, json_answer, lacking, packed
from gateway.surfaces.http.buffers_body import BuffersBody
from gateway.surfaces.http.context import Forwards, Gateway
from gateway.surfaces.http.forwarding import ANSWER_TIMEOUT_S, NotConnected, for_node
from gateway.surfaces.http.reading import read_shape
from gateway.surfaces.http.routes import Handler, Row

log = logging.getLogger(__name__)

NODES_AT_ONCE = 16

CHANGE_TIMEOUT_S = 30.0
"""How long another node may take to change what it has."""

_SCHEDULE_NOT_FOUND = 40450

_GROUPS = Rows("groups", "group", {"lag": "lag", "dead": "dead", "in_flight": "in_flight", "members": "member_count"})


class _Nodes(NamedTuple):
    """The nodes of a cluster, and one request that all of them are asked."""

    gateway: Gateway
    cluster: Cluster
    forwarder: Forwards
    handler: Handler
    request: web.Request

    @property
    def names(self) -> list[str]:
        """All that may have something, by name."""
        return sorted(name for name in self.cluster.members if not self.cluster.is_gone(name))

    async def own(self, query: Mapping[str, str] | None = None) -> bytes:
        """What this node answers; `query`: other parameters than those of the request. Raises what the handler
        raises."""
        url = self.request.rel_url if query is None else self.request.rel_url.with_query(query)
        request = self.request.clone(rel_url=url)
        request[PART] = True
        answer = cast(web.Response, await self.handler(self.gateway, request, b""))
        return _text_of(answer)

    async def others(
        self, queries: Mapping[str, Mapping[str, str]] | None = None, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> tuple[dict[str, bytes], list[str]]:
        """What the other nodes answer, and which of them do not. `queries`: by node, other parameters than those of the
        request."""
        at_once = asyncio.Semaphore(NODES_AT_ONCE)
        names = [name for name in (self.names if queries is None else queries) if name != self.cluster.name]

        async def ask(node: str) -> bytes | None:
            url = self.request.rel_url
            if queries is not None:
                url = url.with_query(queries[node])
            if not self.cluster.is_there(node):
                return None
            async with at_once:
                try:
                    return await self.forwarder.ask(self.request, node, url, timeout_s=timeout_s)
                except RequestError as error:
                    log.warning("a list lacks what a node has node=%s error=%s", node, error)
                    return None

        found = dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
        texts = {name: text for name, text in found.items() if text is not None}
        return texts, [name for name in names if name not in texts]

    async def all(self, queries: Mapping[str, Mapping[str, str]] | None = None) -> tuple[dict[str, bytes], list[str]]:
        """What all nodes answer, this one first: what it refuses, no other one is asked."""
        own = await self.own(None if queries is None else queries[self.cluster.name])
        texts, missing = await self.others(queries)
        return {self.cluster.name: own, **texts}, missing

    async def answer(self, body: Mapping[str, object], missing: Sequence[str]) -> web.StreamResponse:
        """The answer with this body."""
        return await packed(self.request, lacking(json_answer(self.request, body), missing))


Gathers = Callable[[_Nodes, bytes], Awaitable[web.StreamResponse]]


def gathering(gateway: Gateway, row: Row, handler: Handler) -> Handler:
    """The handler of a route in a cluster: a list is that of all nodes."""
    cluster, forwarder = gateway.cluster, gateway.forwarder
    gathers = _GATHERS.get((row.method, row.path.removeprefix("/kafka")))
    if gathers is None and "{schedule}" in row.path:
        gathers = _by_key
    if cluster is None or forwarder is None or gathers is None:
        return handler
    gather = gathers

    async def gathered(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
        if for_node(request):
            return await handler(gateway, request, body)
        return await gather(_Nodes(gateway, cluster, forwarder, handler, request), body)

    return gathered


async def _groups(nodes: _Nodes, _: bytes) -> web.StreamResponse:
    texts, missing = await nodes.all()
    query = nodes.request.query
    if not nodes.request.query_string:
        return await nodes.answer(merged_list(texts, _GROUPS, missing), missing)
    sort = query.get("sort", "name")
    order = query.get("order", "asc" if sort == "name" else "desc")
    page = merged_page(texts, _GROUPS, missing, sort=sort, order=cast(Order, order), limit=_limit(query))
    return await nodes.answer(page, missing)


async def _v3_groups(nodes: _Nodes, _: bytes) -> web.StreamResponse:
    texts, missing = await nodes.all()
    body = merged_list(texts, Rows("data", "consumer_group_id"), missing)
    del body[MISSING]  # the API has no such field; the header says it
    return await nodes.answer(body, missing)


async def _opened(rows: Rows, nodes: _Nodes, _: bytes) -> web.StreamResponse:
    texts, missing = await nodes.all()
    page = merged_page(texts, rows, missing, sort="opened", order="asc", limit=_limit(nodes.request.query))
    return await nodes.answer(page, missing)


async def _recurring(nodes: _Nodes, _: bytes) -> web.StreamResponse:
    texts, missing = await nodes.all()
    names = merged_names(texts, Rows("recurring", "name"), missing, limit=_limit(nodes.request.query))
    return await nodes.answer(names, missing)


async def _light_groups(nodes: _Nodes, _: bytes) -> web.StreamResponse:
    texts, missing = await nodes.all()
    page = merged_behind(texts, Rows("groups", "group"), missing, limit=_limit(nodes.request.query))
    return await nodes.answer(page, missing)


# ---- delayed records ------------------------------------------------------------------------------------------------


async def _schedules(nodes: _Nodes, _: bytes) -> web.StreamResponse:
    query, names = nodes.request.query, nodes.names
    place = read_place(query["cursor"]) if "cursor" in query else None
    by_due = query.get("order") == "due"
    cursors = cursors_by_due(names, place) if by_due else cursors_in_turn(names, place)
    asked = {name: value for name, value in query.items() if name != "cursor"}

    def query_of(node: str) -> dict[str, str]:
        if node not in cursors:
            return {**asked, "limit": "1"}  # for its total
        cursor = cursors[node]
        return asked if cursor is None else {**asked, "cursor": cursor}

    texts, missing = await nodes.all({name: query_of(name) for name in names})
    limit = _limit(query)
    if by_due:
        return await nodes.answer(merged_by_due(texts, missing, limit=limit), missing)
    first = names[0] if place is None else place.node
    return await nodes.answer(merged_in_turn(texts, missing, first=first, limit=limit, known=names), missing)


async def _histogram(nodes: _Nodes, _: bytes) -> web.StreamResponse:
    own = await nodes.own()
    query = dict(nodes.request.query)
    if "bounds" not in query:  # of the same parts as here, though it is later
        query["from"] = str(orjson.loads(own)["from"])
    texts, missing = await nodes.others(dict.fromkeys(nodes.names, query))
    counted = added({nodes.cluster.name: own, **texts}, ("counts", "total", "overdue", "rolled"), missing)
    return await nodes.answer(counted, missing)


async def _cancel_all(nodes: _Nodes, _: bytes) -> web.StreamResponse:
    own = await nodes.own()
    texts, missing = await nodes.others(timeout_s=CHANGE_TIMEOUT_S)
    body = added({nodes.cluster.name: own, **texts}, ("cancelled",), missing)
    if missing:
        message = f"Cancelled {body['cancelled']}; of what {', '.join(missing)} has it is not known: ask again."
        raise RequestError(OVERLOADED, message, retriable=True, details=body, retry_after_ms=1000)
    del body[MISSING]
    return await nodes.answer(body, missing)


async def _batch(nodes: _Nodes, body: bytes) -> web.StreamResponse:
    """Changes of delayed records by id: each node does those of its own."""
    gateway, request, name = nodes.gateway, nodes.request, nodes.cluster.name
    ids = read_shape(BatchBody, body, gateway).schedule_ids
    places = by_node(ids, name, known=nodes.cluster.members, timer_owner=nodes.cluster.timer_owner)
    if places.keys() <= {name}:
        return await nodes.handler(gateway, request, body)
    asked = orjson.loads(body)

    async def results(node: str) -> Sequence[object]:
        some = [ids[place] for place in places[node]]
        part = orjson.dumps({**asked, "schedule_ids": some})
        if node == name:
            answer = cast(web.Response, await nodes.handler(gateway, request, part))
            return _results(_text_of(answer))
        try:
            return _results(await nodes.forwarder.ask(request, node, request.rel_url, part, timeout_s=CHANGE_TIMEOUT_S))
        except NotConnected as error:
            why = error.message
        except RequestError as error:
            why = f"{error.message} It is not known whether this was done."
        undone = {"ok": False, "error_code": OVERLOADED, "error": why}
        return [{"schedule_id": each, **undone} for each in some]

    found: list[object] = [None] * len(ids)
    for node, some in zip(places, await asyncio.gather(*map(results, places)), strict=True):
        for place, result in zip(places[node], some, strict=True):
            found[place] = result
    return json_answer(request, {"results": found})


def _results(text: bytes) -> Sequence[object]:
    return [orjson.Fragment(bytes(each)) for each in rows_of(text, "results")]


async def _by_key(nodes: _Nodes, body: bytes) -> web.StreamResponse:
    """A delayed record that is named by its key: it is that of the node that has one of this key."""
    gateway, request = nodes.gateway, nodes.request
    try:
        return await nodes.handler(gateway, request, body)
    except RequestError as error:
        if error.error_code != _SCHEDULE_NOT_FOUND or "topic" not in request.query:
            raise
        unknown = error
    for node in nodes.names:
        if node != nodes.cluster.name:
            answer = await nodes.forwarder.answer(gateway, request, body, node, is_part=True)
            if answer.status != 404:
                return answer
    raise unknown


_GATHERS: Mapping[tuple[str, str], Gathers] = {
    (hdrs.METH_GET, "/mq/v1/groups"): _groups,
    (hdrs.METH_GET, "/mq/v1/light-groups"): _light_groups,
    (hdrs.METH_GET, "/v3/clusters/{cluster}/consumer-groups"): _v3_groups,
    (hdrs.METH_GET, "/mq/v1/connections"): partial(_opened, Rows("connections", "connection", {"opened": "since_ms"})),
    (hdrs.METH_GET, "/mq/v1/sessions"): partial(_opened, Rows("sessions", "session", {"opened": "since_ms"})),
    (hdrs.METH_GET, "/mq/v1/recurring"): _recurring,
    (hdrs.METH_GET, "/mq/v1/schedules"): _schedules,
    (hdrs.METH_GET, "/mq/v1/schedules:histogram"): _histogram,
    (hdrs.METH_DELETE, "/mq/v1/schedules"): _cancel_all,
    (hdrs.METH_POST, "/mq/v1/schedules:batch"): _batch,
}
"""By method and path."""


def _text_of(answer: web.Response) -> bytes:
    body = answer.body
    return body.joined() if isinstance(body, BuffersBody) else cast(bytes, body)


def _limit(query: Mapping[str, str]) -> int:
    return int(query.get("limit", PAGE_ROWS_DEFAULT))

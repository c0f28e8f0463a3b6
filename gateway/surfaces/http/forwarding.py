"""Requests for what belongs to one node of a cluster, answered by that node whichever is asked.

A consumer group, a recurring schedule and a schedule belong to one node: groups and recurring schedules to the one that
was first asked for them, schedules to the one whose timer holds them, which their ids name. Another node sends the
request on as it came, with the caller's credentials, and passes the answer back as it comes (relaying.py); likewise an
event stream, or a socket that subscribes by its URL, of a consumer of a group. A group may move
meanwhile: then the node that had it sends the request on once more. Whatever else was sent on is not sent on again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import partial

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from gateway.api.cluster import GROUPS, RECURRING, Cluster
from gateway.auth.credentials import TICKET_PARAMETER, TICKET_SUBPROTOCOL
from gateway.codec.schedule_ids import split_node
from gateway.errors import OVERLOADED, RequestError
from gateway.groups.machines.errors import GroupError
from gateway.surfaces.http.context import Forwards, Gateway
from gateway.surfaces.http.relaying import (
    HOP_BY_HOP,
    READ_BYTES,
    asks_for_socket,
    client_session,
    passed_back,
    spliced,
    while_there,
)
from gateway.surfaces.http.routes import Handler

log = logging.getLogger(__name__)

FORWARDED = "Mq-Forwarded-By"
"""Names the nodes that have sent a request on."""

HOPS_MAX = 2

_NOT_ON = HOP_BY_HOP | {name.lower() for name in (hdrs.HOST, hdrs.CONTENT_LENGTH, hdrs.ORIGIN, FORWARDED)}
"""The host and the origin were checked here."""

_NOT_OF_SOCKETS = {name.lower().encode() for name in (hdrs.HOST, hdrs.ORIGIN)}


class Forwarder:
    """Sends requests on to other nodes. Close it."""

    def __init__(self, cluster: Cluster, tls: ssl.SSLContext | None) -> None:
        self._cluster = cluster
        self._tls = tls
        self._http = client_session(aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls))

    async def close(self) -> None:
        """End what is under way."""
        await self._http.close()

    async def answer(self, gateway: Gateway, request: web.Request, body: bytes, node: str) -> web.StreamResponse:
        """What a node answers to this request. Raises RequestError 503 when it does not, ConnectionError when the
        client is gone."""
        passed = request.headers.getall(FORWARDED, [])
        if len(passed) >= HOPS_MAX:
            raise _unreachable(node, "the nodes do not agree on whose this is; ask again")
        member = self._cluster.members.get(node)
        if member is None:
            raise RequestError(404, f"There is no node {node} in this cluster.")
        url = URL(member.url.rstrip("/") + request.rel_url.raw_path_qs, encoded=True)
        if asks_for_socket(request):
            return await self._spliced(request, url, node)
        headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() not in _NOT_ON)
        if body:
            headers.popall(hdrs.CONTENT_ENCODING, None)  # it was inflated when it was read
        for name in (*passed, self._cluster.name):
            headers.add(FORWARDED, name)
        try:
            asking = self._http.request(request.method, url, data=body or None, headers=headers, allow_redirects=False)
            response = await while_there(request, asking)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _not_reached(node, error) from error
        async with response:
            return await while_there(request, passed_back(gateway, request, response, partial(_not_reached, node)))

    async def _spliced(self, request: web.Request, url: URL, node: str) -> web.StreamResponse:
        headers = [each for each in request.raw_headers if each[0].lower() not in _NOT_OF_SOCKETS]
        headers += [(b"Host", url.authority.encode()), (FORWARDED.encode(), self._cluster.name.encode())]
        tls = (self._tls or True) if url.scheme == "https" else None
        opening = asyncio.open_connection(url.host, url.port, ssl=tls, limit=READ_BYTES)
        return await spliced(request, opening, url.raw_path_qs, headers, partial(_not_reached, node))


def forwarding(gateway: Gateway, path: str, handler: Handler) -> Handler:
    """The handler of a route in a cluster: of what belongs to another node, that node answers."""
    cluster, forwarder = gateway.cluster, gateway.forwarder
    if cluster is None or forwarder is None:
        return handler
    if path in _GROUP_IN_QUERY:
        return _forwarding_by_query(cluster, forwarder, handler)
    kind = GROUPS if "{group}" in path else RECURRING if "{recurring}" in path else None
    if kind is None and "{schedule}" not in path:
        return handler

    async def forwarded(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
        if kind is None:
            node, _ = split_node(request.match_info["schedule"])
            owner = node or cluster.name
        else:
            name = request.match_info["group" if kind == GROUPS else "recurring"]
            known = cluster.owner(kind, name)
            if known is None and request.method in _CREATING:
                known = await cluster.claim(kind, name)
            owner = known or cluster.name
        if owner == cluster.name:
            try:
                return await handler(gateway, request, body)
            except (GroupError, RequestError):
                if kind is None or (now := cluster.owner(kind, name)) is None or now == owner:
                    raise
                owner = now  # it has moved meanwhile: nothing was done here, and what was found is not so
        return await forwarder.answer(gateway, request, body, owner)

    return forwarded


_GROUP_IN_QUERY = ("/mq/v1/topics/{topic}/sse", "/ws/v1/consume")
"""Routes of streams that may be those of one consumer of a group."""


def _forwarding_by_query(cluster: Cluster, forwarder: Forwards, handler: Handler) -> Handler:
    async def forwarded(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
        group = request.query.get("group")
        owner = None if group is None else cluster.owner(GROUPS, group)
        # A ticket is of this node, and means nothing to another one: its holder is told whom to ask.
        has_ticket = TICKET_PARAMETER in request.query or TICKET_SUBPROTOCOL in request.headers.get(
            hdrs.SEC_WEBSOCKET_PROTOCOL, ""
        )
        if owner is None or owner == cluster.name or has_ticket:
            return await handler(gateway, request, body)
        return await forwarder.answer(gateway, request, body, owner)

    return forwarded


_CREATING = frozenset((hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH))
"""Methods by which a group or a recurring schedule may come into being."""


def _not_reached(node: str, error: Exception) -> RequestError:
    log.warning("node not reached node=%s error=%s", node, error or type(error).__name__)
    return _unreachable(node, "ask again when it is back")


def _unreachable(node: str, what: str) -> RequestError:
    message = f"This belongs to node {node}, which does not answer: {what}."
    return RequestError(OVERLOADED, message, retriable=True, retry_after_ms=1000)

"""Requests for what belongs to one node of a cluster, answered by that node whichever is asked.

A consumer group, a recurring schedule and a schedule belong to one node: groups and recurring schedules to the one that
was first asked for them, schedules to the one whose timer holds them, which their ids name. Another node sends the
request on as it came, with the caller's credentials, and passes the answer back as it comes (relaying.py); likewise an
event stream, or a socket that subscribes by its URL, of a consumer of a group. A group may move
meanwhile: then the node that had it sends the request on once more. Whatever else was sent on is not sent on again.

A gateway without a store (`mq serve --join`) sends on what it does not answer by itself (`ToNodes`): likewise to the
node that has what a request names, and anything else to a node that is there, for one client always to the same: so
tickets and sessions are found again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from zlib import crc32

import aiohttp
import orjson
from aiohttp import hdrs, web
from aiohttp.streams import StreamReader
from multidict import CIMultiDict
from yarl import URL

from gateway.api.cluster import GROUPS, RECURRING, Cluster
from gateway.auth.credentials import TICKET_PARAMETER, TICKET_SUBPROTOCOL, Malformed, in_headers, of_browser
from gateway.codec.schedule_ids import split_node
from gateway.errors import OVERLOADED, RequestError
from gateway.groups.machines.errors import GroupError
from gateway.recurring.errors import RecurringUnowned
from gateway.surfaces.http.answers import PART
from gateway.surfaces.http.context import Forwards, Gateway
from gateway.surfaces.http.relaying import (
    CONNECT_TIMEOUT_S,
    HOP_BY_HOP,
    READ_BYTES,
    asks_for_socket,
    client_session,
    passed_back,
    spliced,
    while_there,
)
from gateway.surfaces.http.routes import Handler
from store.limits import MiB

log = logging.getLogger(__name__)

SCOPE, NODE = "Mq-Scope", "node"
"""A request with this header is about the asked node alone."""

ANSWER_TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 16 * MiB
"""What another node answers for itself alone."""

SOCKET_HEARTBEAT_S = 20.0
"""How often the other end of a socket to another node is asked whether it is there."""

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

    async def answer(
        self, gateway: Gateway, request: web.Request, body: bytes | None, node: str, *, is_part: bool = False
    ) -> web.StreamResponse:
        """What a node answers to this request. `body`: the request's, None: it was not read, and is passed on as it
        comes. `is_part`: it answers for itself alone. Raises RequestError 503 when it does not answer, NotConnected
        when nothing was sent to it; ConnectionError when the client is gone."""
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
        data: bytes | StreamReader | None = body or None
        if body:
            headers.popall(hdrs.CONTENT_ENCODING, None)  # it was inflated when it was read
        elif body is None and request.can_read_body:
            data = request.content
        for name in (*passed, self._cluster.name):
            headers.add(FORWARDED, name)
        if is_part:
            headers[SCOPE] = NODE
        try:
            asking = self._http.request(request.method, url, data=data, headers=headers, allow_redirects=False)
            response = await while_there(request, asking)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _not_connected(node, error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _not_reached(node, error) from error
        async with response:
            return await while_there(request, passed_back(gateway, request, response, partial(_not_reached, node)))

    async def ask(
        self, request: web.Request, node: str, target: URL, body: bytes = b"", *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> bytes:
        """See `Forwards.ask`. Raises NotConnected when nothing was sent, RequestError."""
        member = self._cluster.members[node]
        url = URL(member.url.rstrip("/") + target.raw_path_qs, encoded=True)
        headers = {SCOPE: NODE, FORWARDED: self._cluster.name, hdrs.ACCEPT: "application/json"}
        if (token := token_of(request)) is not None:
            headers[hdrs.AUTHORIZATION] = f"Bearer {token}"
        if body:
            headers[hdrs.CONTENT_TYPE] = "application/json"
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.request(
                    request.method, url, data=body or None, headers=headers, allow_redirects=False
                ) as found,
            ):
                text = await _bounded(found.content, node)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _not_connected(node, error) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _not_reached(node, error) from error
        if found.status != 200:
            raise _refusal(node, found.status, text)
        return text

    async def connect(self, node: str, token: str | None) -> aiohttp.ClientWebSocketResponse:
        """See `Forwards.connect`. Raises NotConnected."""
        member = self._cluster.members[node]
        headers = {SCOPE: NODE, FORWARDED: self._cluster.name}
        if token is not None:
            headers[hdrs.AUTHORIZATION] = f"Bearer {token}"
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._http.ws_connect(
                    member.url.rstrip("/") + "/ws/v1",
                    headers=headers,
                    heartbeat=SOCKET_HEARTBEAT_S,
                    max_msg_size=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CONNECT_TIMEOUT_S),
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _not_connected(node, error) from error

    async def _spliced(self, request: web.Request, url: URL, node: str) -> web.StreamResponse:
        headers = [each for each in request.raw_headers if each[0].lower() not in _NOT_OF_SOCKETS]
        headers += [(b"Host", url.authority.encode()), (FORWARDED.encode(), self._cluster.name.encode())]
        tls = (self._tls or True) if url.scheme == "https" else None
        opening = asyncio.open_connection(url.host, url.port, ssl=tls, limit=READ_BYTES)
        lost, unopened = partial(_not_reached, node), partial(_not_connected, node)
        return await spliced(request, opening, url.raw_path_qs, headers, lost, unopened)


async def _bounded(content: StreamReader, node: str) -> bytes:
    text = bytearray()
    while piece := await content.readany():
        text += piece
        if len(text) > ANSWER_BYTES_MAX:
            raise _unreachable(node, f"it answers more than {ANSWER_BYTES_MAX} bytes")
    return bytes(text)


def _refusal(node: str, status: int, text: bytes) -> RequestError:
    """What a node refuses, as it says it."""
    try:
        said = orjson.loads(text)
        return RequestError(int(said["error_code"]), f"Node {node}: {said['message']}")
    except (ValueError, TypeError, KeyError):
        return RequestError(OVERLOADED, f"Node {node} answers {status}.", retriable=True, retry_after_ms=1000)


class NotConnected(RequestError):
    """A node that took no connection: nothing of a request was sent to it."""


class ToNodes:
    """The nodes of a cluster, for a gateway that has nothing itself: each request is for one of them."""

    def __init__(self, cluster: Cluster, forwarder: Forwards) -> None:
        self._cluster = cluster
        self._forwarder = forwarder

    async def answer(self, gateway: Gateway, request: web.Request, body: bytes | None = None) -> web.StreamResponse:
        """What the node that has what a request names answers, or one that is there. See `Forwarder.answer`."""
        owner = _owner_of(self._cluster, request)
        nodes = self.there_for(request.remote or "") if owner is None else [owner]
        if not nodes:
            raise RequestError(OVERLOADED, "No node of the cluster is there.", retriable=True, retry_after_ms=1000)
        for node in nodes[:-1]:
            with suppress(NotConnected):
                return await self._forwarder.answer(gateway, request, body, node)
        return await self._forwarder.answer(gateway, request, body, nodes[-1])

    def there_for(self, client: str) -> list[str]:
        """The nodes that are there, in the order in which they are asked for a client: one that drains comes last, as
        it is about to go. Each client has an order of its own, in which nodes that come and go change nothing else."""
        cluster = self._cluster
        names = [name for name in cluster.members if cluster.is_there(name)]
        return sorted(names, key=lambda name: (cluster.members[name].draining, crc32(f"{client} {name}".encode())))


def _owner_of(cluster: Cluster, request: web.Request) -> str | None:
    """The node to which what a request names belongs; None: none, or it names nothing."""
    named = request.match_info
    for one in NAMED_BY_NODE:
        if one in named:
            return node_in(cluster, request, one)
    if (recurring := named.get("recurring")) is not None:
        return cluster.owner(RECURRING, recurring)
    if (group := named.get("group")) is not None:
        return cluster.owner(GROUPS, group)
    has_group = _GROUP_OF_STREAM.fullmatch(request.path) is not None and not _has_ticket(request)
    return cluster.owner(GROUPS, request.query["group"]) if has_group and "group" in request.query else None


def for_node(request: web.Request) -> bool:
    """Whether a request is about this node alone: another one asks for its part of a list, or for a client of its; or
    this one for its own part."""
    return PART in request or request.headers.get(SCOPE) == NODE


def token_of(request: web.Request, *, token_in_query: bool = False) -> str | None:
    """The token that a request came with; None when there is none: a ticket is of this node."""
    try:
        found = in_headers(request.headers) or of_browser(request.headers, request.query, token_in_query=token_in_query)
    except Malformed:  # it was refused before
        return None
    return None if found is None or found.is_ticket else found.text


def forwarding(gateway: Gateway, path: str, handler: Handler) -> Handler:
    """The handler of a route in a cluster: of what belongs to another node, that node answers."""
    cluster, forwarder = gateway.cluster, gateway.forwarder
    if cluster is None or forwarder is None:
        return handler
    if path in _GROUP_IN_QUERY:
        return _forwarding_by_query(cluster, forwarder, handler)
    if path in _LIGHT_GROUP_IN_QUERY:
        return _forwarding_by_query(cluster, forwarder, handler, claiming=(hdrs.METH_PUT,))
    kind = GROUPS if "{group}" in path else RECURRING if "{recurring}" in path else None
    named = next((name for name in NAMED_BY_NODE if f"{{{name}}}" in path), None)
    if kind is None and named is None:
        return handler

    async def forwarded(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
        if kind is None:
            assert named is not None
            owner = node_in(cluster, request, named) or cluster.name
        else:
            name = request.match_info["group" if kind == GROUPS else "recurring"]
            known = cluster.owner(kind, name)
            if known is None and request.method in _CREATING:
                known = await cluster.claim(kind, name)
            owner = known or cluster.name
        if owner == cluster.name:
            try:
                return await handler(gateway, request, body)
            except RecurringUnowned:  # it was deleted, and let go of, meanwhile
                return await forwarded(gateway, request, body)
            except (GroupError, RequestError):
                if kind is None:
                    raise
                # It may have come to another node, or have moved, and this one has not heard of that yet: nothing was
                # done here then, and what was found is not so.
                now = cluster.owner(kind, name) or await cluster.look_up(kind, name)
                if now is None or now == owner:
                    raise
                owner = now
        return await forwarder.answer(gateway, request, body, owner)

    return forwarded


NAMED_BY_NODE = ("schedule", "connection", "session")
"""What is named in a path by an id that begins with its node."""


def node_in(cluster: Cluster, request: web.Request, named: str) -> str | None:
    """The node that an id in the path names, or whose shard of delayed records. With `topic` a schedule is named by its
    key, which names none."""
    if named == "schedule" and "topic" in request.query:
        return None
    node, rest = split_node(request.match_info[named])
    return cluster.timer_owner(rest) if node is None and named == "schedule" else node


_GROUP_IN_QUERY = ("/mq/v1/topics/{topic}/sse", "/ws/v1/consume")
"""Routes of streams that may be those of one consumer of a group."""

_OF_LIGHT_QUEUE = "/mq/v1/topics/{topic}/queues/{queue}/"
_LIGHT_GROUP_IN_QUERY = tuple(_OF_LIGHT_QUEUE + what for what in ("records", "sse", "offsets"))
"""Routes that begin where a group is in a light queue, or say it: the group needs no owner until it is said."""

_GROUP_OF_STREAM = re.compile(
    "|".join(re.sub("{(topic|queue)}", "[^/]+", path) + "/?" for path in (*_GROUP_IN_QUERY, *_LIGHT_GROUP_IN_QUERY))
)


def _forwarding_by_query(
    cluster: Cluster, forwarder: Forwards, handler: Handler, *, claiming: Collection[str] | None = None
) -> Handler:
    """`claiming`: methods by which a group begins to be used; None: by any."""

    async def forwarded(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
        group = request.query.get("group")
        if group is None or _has_ticket(request):
            return await handler(gateway, request, body)
        begins = claiming is None or request.method in claiming
        owner = cluster.owner(GROUPS, group) or await (cluster.claim if begins else cluster.look_up)(GROUPS, group)
        if owner in (None, cluster.name):
            return await handler(gateway, request, body)
        return await forwarder.answer(gateway, request, body, owner)

    return forwarded


def _has_ticket(request: web.Request) -> bool:
    """A ticket is of one node, and means nothing to another one: its holder is told whom to ask."""
    protocols = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "")
    return TICKET_PARAMETER in request.query or TICKET_SUBPROTOCOL in protocols


_CREATING = frozenset((hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH))
"""Methods by which a group or a recurring schedule may come into being."""


def _not_reached(node: str, error: Exception) -> RequestError:
    log.warning("node not reached node=%s error=%s", node, error or type(error).__name__)
    return _unreachable(node, "ask again when it is back")


def _not_connected(node: str, error: Exception) -> NotConnected:
    refusal = _not_reached(node, error)
    return NotConnected(refusal.error_code, refusal.message, retriable=True, retry_after_ms=refusal.retry_after_ms)


def _unreachable(node: str, what: str) -> RequestError:
    message = f"This belongs to node {node}, which does not answer: {what}."
    return RequestError(OVERLOADED, message, retriable=True, retry_after_ms=1000)

"""Requests for what belongs to one node of a cluster, answered by that node whichever is asked.

A consumer group, a recurring schedule and a schedule belong to one node: groups and recurring schedules to the one that
was first asked for them, schedules to the one whose timer holds them, which their ids name. Another node sends the
request on as it came, with the caller's credentials, and passes the answer back. It is sent on once at most.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from gateway.api.cluster import GROUPS, RECURRING, Cluster
from gateway.codec.schedule_ids import split_node
from gateway.errors import OVERLOADED, RequestError
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.routes import Handler

log = logging.getLogger(__name__)

FORWARDED = "Mq-Forwarded-By"
"""Names the node that has sent a request on."""

CONNECT_TIMEOUT_S = 2.0
_HOP_BY_HOP = frozenset(
    name.lower()
    for name in (
        hdrs.CONNECTION, hdrs.KEEP_ALIVE, hdrs.PROXY_AUTHENTICATE, hdrs.PROXY_AUTHORIZATION, hdrs.TE, hdrs.TRAILER,
        hdrs.TRANSFER_ENCODING, hdrs.UPGRADE, hdrs.HOST, hdrs.CONTENT_LENGTH, hdrs.EXPECT, hdrs.ORIGIN, FORWARDED,
    )
)  # fmt: skip
"""Of one connection; and what this node has answered by itself: the host and the origin were checked here."""

_NOT_BACK = _HOP_BY_HOP | {hdrs.DATE.lower(), hdrs.SERVER.lower(), hdrs.CONTENT_ENCODING.lower(), "x-request-id"}


class Forwarder:
    """Sends requests on to other nodes. Close it."""

    def __init__(self, cluster: Cluster, tls: ssl.SSLContext | None) -> None:
        self._cluster = cluster
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def close(self) -> None:
        """End what is under way."""
        await self._http.close()

    async def answer(self, request: web.Request, body: bytes, node: str) -> web.Response:
        """What a node answers to this request. Raises RequestError 503 when it does not."""
        if FORWARDED in request.headers:
            raise _unreachable(node, "the nodes do not agree on whose this is; ask again")
        member = self._cluster.members.get(node)
        if member is None:
            raise RequestError(404, f"There is no node {node} in this cluster.")
        headers = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP
        )
        if body:
            headers.popall(hdrs.CONTENT_ENCODING, None)  # it was inflated when it was read
        headers[FORWARDED] = self._cluster.name
        url = URL(member.url.rstrip("/") + request.rel_url.raw_path_qs, encoded=True)
        try:
            async with self._http.request(
                request.method, url, data=body or None, headers=headers, allow_redirects=False
            ) as response:
                return web.Response(
                    status=response.status, body=await response.read(), headers=_passed_back(response.headers)
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("node not reached node=%s error=%s", node, error)
            raise _unreachable(node, "ask again when it is back") from error


def forwarding(gateway: Gateway, path: str, handler: Handler) -> Handler:
    """The handler of a route in a cluster: of what belongs to another node, that node answers."""
    cluster, forwarder = gateway.cluster, gateway.forwarder
    if cluster is None or forwarder is None:
        return handler
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
            return await handler(gateway, request, body)
        return await forwarder.answer(request, body, owner)

    return forwarded


_CREATING = frozenset((hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH))
"""Methods by which a group or a recurring schedule may come into being."""


def _passed_back(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _NOT_BACK)


def _unreachable(node: str, what: str) -> RequestError:
    message = f"This belongs to node {node}, which does not answer: {what}."
    return RequestError(OVERLOADED, message, retriable=True, retry_after_ms=1000)

"""Requests for what belongs to one node of a cluster, answered by that node whichever is asked.

A consumer group, a recurring schedule and a schedule belong to one node: groups and recurring schedules to the one that
was first asked for them, schedules to the one whose timer holds them, which their ids name. Another node sends the
request on as it came, with the caller's credentials, and passes the answer back: a small one whole, a large one as it
comes, so that a client which reads slowly slows the other node. What waits here meanwhile counts among the memory of
all answers (`answer_memory.py`); where there is no room, an answer that has begun ends short. A group may move
meanwhile: then the node that had it sends the request on once more. Whatever else was sent on is not sent on again.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from gateway.api.cluster import GROUPS, RECURRING, Cluster
from gateway.codec.schedule_ids import split_node
from gateway.errors import OVERLOADED, RequestError
from gateway.groups.machines.errors import GroupError
from gateway.surfaces.http.answer_memory import SMALL_BYTES
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.routes import Handler
from gateway.surfaces.http.streaming import StreamedAnswer
from store.limits import KiB

log = logging.getLogger(__name__)

FORWARDED = "Mq-Forwarded-By"
"""Names the nodes that have sent a request on."""

HOPS_MAX = 2

CONNECT_TIMEOUT_S = 2.0
READ_BYTES = 64 * KiB
"""Reading of a node's answer pauses beyond twice this."""

AHEAD_BYTES_MAX = 2 * READ_BYTES + 256 * KiB
"""What is read of an answer while its client takes what came before: uvloop reads up to 256 KiB at once."""

_HOP_BY_HOP = frozenset(
    name.lower()
    for name in (
        hdrs.CONNECTION, hdrs.KEEP_ALIVE, hdrs.PROXY_AUTHENTICATE, hdrs.PROXY_AUTHORIZATION, hdrs.TE, hdrs.TRAILER,
        hdrs.TRANSFER_ENCODING, hdrs.UPGRADE, hdrs.HOST, hdrs.CONTENT_LENGTH, hdrs.EXPECT, hdrs.ORIGIN, FORWARDED,
    )
)  # fmt: skip
"""Of one connection; and what this node has answered by itself: the host and the origin were checked here."""

_NOT_BACK = _HOP_BY_HOP | {hdrs.DATE.lower(), hdrs.SERVER.lower(), "x-request-id"}
_NOT_ADDED = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)
"""What the client of here would say of itself, where the caller has not: the answer is for the caller."""


class Forwarder:
    """Sends requests on to other nodes. Close it."""

    def __init__(self, cluster: Cluster, tls: ssl.SSLContext | None) -> None:
        self._cluster = cluster
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=READ_BYTES,
            skip_auto_headers=_NOT_ADDED,
        )

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
        headers = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP
        )
        if body:
            headers.popall(hdrs.CONTENT_ENCODING, None)  # it was inflated when it was read
        for name in (*passed, self._cluster.name):
            headers.add(FORWARDED, name)
        url = URL(member.url.rstrip("/") + request.rel_url.raw_path_qs, encoded=True)
        try:
            response = await self._http.request(
                request.method, url, data=body or None, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _not_reached(node, error) from error
        async with response:
            return await self._passed_on(gateway, request, response, node)

    async def _passed_on(
        self, gateway: Gateway, request: web.Request, response: aiohttp.ClientResponse, node: str
    ) -> web.StreamResponse:
        size, headers = response.content_length, _passed_back(response.headers)
        if size is not None and size <= SMALL_BYTES and request.method != hdrs.METH_HEAD:
            return web.Response(status=response.status, body=await _read(response.read, node), headers=headers)
        answer = StreamedAnswer(gateway, request, status=response.status, headers=headers)
        answer.response.content_length = size
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            answer.allowance.must_send = True
        if size is None:
            await answer.begin()  # the first bytes of a stream may be long in coming
        try:
            while piece := await _read(response.content.readany, node):
                await answer.write(piece, ahead_bytes=min(AHEAD_BYTES_MAX, size or AHEAD_BYTES_MAX))
            return await answer.end()
        except RequestError:
            if not answer.has_begun:
                raise
            return answer.gone()  # it ends short, which its client sees


async def _read(read: Callable[[], Awaitable[bytes]], node: str) -> bytes:
    try:
        return await read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _not_reached(node, error) from error


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
            try:
                return await handler(gateway, request, body)
            except (GroupError, RequestError):
                if kind is None or (now := cluster.owner(kind, name)) is None or now == owner:
                    raise
                owner = now  # it has moved meanwhile: nothing was done here, and what was found is not so
        return await forwarder.answer(gateway, request, body, owner)

    return forwarded


_CREATING = frozenset((hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH))
"""Methods by which a group or a recurring schedule may come into being."""


def _passed_back(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _NOT_BACK)


def _not_reached(node: str, error: Exception) -> RequestError:
    log.warning("node not reached node=%s error=%s", node, error or type(error).__name__)
    return _unreachable(node, "ask again when it is back")


def _unreachable(node: str, what: str) -> RequestError:
    message = f"This belongs to node {node}, which does not answer: {what}."
    return RequestError(OVERLOADED, message, retriable=True, retry_after_ms=1000)

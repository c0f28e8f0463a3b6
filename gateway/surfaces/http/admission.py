"""Whether a request may be done at all, decided from its head, before its body is read or its handler runs.

    1  the page it comes from, if any, may use this server       403   origins.py
    2  who it is                                                 401   auth/authenticator.py
    3  may do what the route's row says to the topic and group   403   auth/access.py
       in the path
    4  has not had too many requests or bytes                    429   auth/rates.py

A public route asks for the first only. A socket may be opened without credentials: a browser
cannot say it earlier; the socket then asks for it. Whatever else is named, in bodies and queries, the handler checks.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import cast

from aiohttp import HttpVersion10, hdrs, web

from gateway.auth.access import NOBODY, OPEN, Access, Permission
from gateway.auth.address import counted_as
from gateway.auth.authenticator import unauthenticated
from gateway.auth.rates import Rates
from gateway.errors import RATE_LIMITED, TOPIC_NOT_FOUND, RequestError
from gateway.settings.limits import Limits
from gateway.surfaces.http.answer_memory import Allowance
from gateway.surfaces.http.caller import Caller, access_of, grant
from gateway.surfaces.http.connection import Connection
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.origins import Origins

Admit = Callable[[web.Request], None]


def admission(gateway: Gateway, path: str, permission: Permission, origins: Origins) -> Admit:
    """What to call with each request of a route; it raises RequestError for one that may not go on."""
    authenticator, rates = gateway.authenticator, gateway.rates
    has_topic, has_group, has_queue = "{topic}" in path, "{group}" in path, "{queue}" in path
    check_origin = origins.check

    def admit_public(request: web.Request) -> None:
        check_version(request)
        check_origin(request.headers)

    def admit(request: web.Request) -> None:
        check_version(request)
        check_origin(request.headers)
        access = authenticator.access_of_request(request)
        grant(request, access)  # before anything is refused: the logs and the trail say who it was
        if access is NOBODY:
            if permission is not Permission.SOCKET or request.method == hdrs.METH_POST:
                raise unauthenticated("Credentials are missing: send a token (Authorization: Bearer ...).")
        elif access is not OPEN:
            names = request.match_info
            topic = names["topic"] if has_topic else None
            if topic is not None and "/" in topic:  # no topic's name, but in a right it would be a light queue's
                raise RequestError(TOPIC_NOT_FOUND, "Topic not found.")
            access.check(
                permission,
                topic=f"{topic}/{names['queue']}" if has_queue else topic,
                group=names["group"] if has_group else None,
            )
        if rates is not None:
            charge(rates, request, access)

    return admit_public if permission is Permission.PUBLIC else admit


def check_version(request: web.BaseRequest) -> None:
    """End a connection of HTTP/0.9, which has no status to refuse with.

    aiohttp reads it nevertheless. Raises RequestError; the connection is aborted first, so the client never sees it.
    """
    if request.version < HttpVersion10:
        if request.transport is not None:
            request.transport.abort()
        raise RequestError(505, "HTTP/0.9 is not spoken here.")


def payer_of(access: Access, address: str) -> str:
    """Who is charged for what this caller does: the principal, or the address of one that has no name."""
    return f"address {counted_as(address)}" if access is OPEN or access is NOBODY else access.principal


def allowance_of(gateway: Gateway, request: web.Request) -> Allowance:
    """What the answer to a request may hold, for as long as the request lasts."""
    allowance = gateway.stats.answers.open.get(id(request))
    if allowance is None:
        payer = payer_of(access_of(request), request.remote or "")
        allowance = Allowance(gateway.stats.answers, payer, gateway.limits.answering_bytes_max)
        gateway.stats.answers.open[id(request)] = allowance
    return allowance


def caller_of(gateway: Gateway, request: web.Request) -> Caller:
    """Who has sent a request that was admitted."""
    return Caller(
        access_of(request),
        request.remote,
        allowance_of(gateway, request),
        lambda: request.transport is not None,
        lambda: cast(Connection, request.protocol).lost(),
    )


def charge(rates: Rates, request: web.Request, access: Access) -> None:
    """Charge one request. Raises RequestError 429."""
    retry_after_ms = rates.spend(payer_of(access, request.remote or ""), requests=1)
    if retry_after_ms is not None:
        raise rate_limited(retry_after_ms)


def charge_bytes(gateway: Gateway, request: web.Request, count: int) -> None:
    """Charge a request's sender for bytes that have come in."""
    if gateway.rates is not None and count:
        gateway.rates.owe(payer_of(access_of(request), request.remote or ""), bytes_=count)


def rate_limited(retry_after_ms: int) -> RequestError:
    """The refusal of a caller that sends too much."""
    return RequestError(
        RATE_LIMITED,
        "Too many requests or bytes; the limits are at /mq/v1/limits.",
        retriable=True,
        retry_after_ms=retry_after_ms,
    )


def rates_of(limits: Limits) -> Rates | None:
    """The buckets that the limits ask for; None when they ask for none."""
    if not limits.requests_per_s_max and not limits.request_bytes_per_s_max:
        return None
    return Rates(requests_per_s=limits.requests_per_s_max, bytes_per_s=limits.request_bytes_per_s_max, now_s=monotonic)

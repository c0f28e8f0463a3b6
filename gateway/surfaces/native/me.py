"""Who asks, and what they may do: what a page needs to know before it offers a button. The server decides all the same,
each time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from aiohttp import hdrs, web

from gateway.api.shapes.queries import NoQuery
from gateway.api.shapes.server import SHOWN_SCOPES_MAX, Me, ShownScope
from gateway.auth.access import OPEN, Permission, Scope
from gateway.surfaces.http.answers import json_answer
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import read_query

_ORDER = {permission: number for number, permission in enumerate(Permission)}


async def me(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Who the caller is, until when, and what it may do, as it is now.

    Denied by any scope of `deny` that matches; else allowed by any of `allow` that does.
    """
    read_query(NoQuery, request, gateway)
    access = access_of(request)
    allow, deny = access.scopes()
    body = Me(
        principal=access.principal,
        token_id=access.token_id,
        expires_ms=access.expires_at_ms,
        is_authenticated=access is not OPEN,
        allow=_shown(allow),
        deny=_shown(deny),
        is_whole=max(len(allow), len(deny)) <= SHOWN_SCOPES_MAX,
    )
    response = json_answer(request, body)
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    return response


def _shown(scopes: Sequence[Scope]) -> list[ShownScope]:
    return [
        ShownScope([one.value for one in sorted(scope.permissions, key=_ORDER.__getitem__)], scope.kind, scope.pattern)
        for scope in islice(scopes, SHOWN_SCOPES_MAX)
    ]

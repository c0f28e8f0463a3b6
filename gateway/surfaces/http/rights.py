"""Rights over time: what waits or streams ends with the rights of its caller.

A token may be revoked, expire, or lose a right while its request waits. Who is told at the next question already
(Access.check) needs nothing of this; it is for what would otherwise wait, or go on, without asking. A client that goes
ends its waiting, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

from aiohttp import web

from gateway.auth.access import Access
from gateway.auth.authenticator import unauthenticated
from gateway.errors import RequestError
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.connection import Connection
from gateway.surfaces.http.context import Gateway


def ended() -> RequestError:
    """The refusal of a caller whose rights ended while it waited."""
    return unauthenticated("These credentials have ended meanwhile: revoked, or expired.")


def while_allowed(gateway: Gateway, request: web.BaseRequest) -> AbstractAsyncContextManager[None]:
    """Cancel the block when its caller's rights end, or its client goes. Raises RequestError 401/40101, or
    ConnectionError, then.

    For waiting that may be given up at any moment. Rules that change without ending the rights cancel nothing: ask for
    the permission again behind the block, before anything is answered.
    """
    return while_there(gateway, access_of(request), cast(Connection, request.protocol).lost())


@asynccontextmanager
async def while_there(gateway: Gateway, access: Access, lost: asyncio.Future[None]) -> AsyncIterator[None]:
    """As `while_allowed`, of whoever has these rights and this connection, which is lost when the future is done."""
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(left_s(gateway, access))
    is_within = True

    def end(_: object = None) -> None:
        if is_within and not limit.expired():
            limit.reschedule(loop.time())

    try:
        async with limit:
            lost.add_done_callback(end)
            unwatch = access.watch(end)
            try:
                yield
            finally:
                is_within = False  # `end` may be on its way already
                unwatch()
                lost.remove_done_callback(end)
    except TimeoutError:
        if not limit.expired():
            raise
        if lost.done():
            raise ConnectionResetError("the client is gone") from None
        raise ended() from None


def left_s(gateway: Gateway, access: Access) -> float | None:
    """Seconds until rights end by time; None when they do not."""
    if access.expires_at_ms is None:
        return None
    return max(0, access.expires_at_ms - gateway.clock.now_ms()) / 1000

"""Connections and sessions, to look at and to end; and what this server's settings are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from aiohttp import web
from msgspec.structs import replace

from gateway.api.pages import page_of
from gateway.api.shapes import server
from gateway.api.shapes.queries import PAGE_ROWS_DEFAULT, ListQuery, NoQuery
from gateway.codec.schedule_ids import split_node, with_node
from gateway.errors import CONNECTION_NOT_FOUND, RequestError
from gateway.settings.page import described
from gateway.surfaces.http.answers import json_answer, packed
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import read_query

CONNECTIONS_A_TURN = 1_000
"""Connections looked at between two turns of the event loop."""


class SessionsAdmin(Protocol):
    """The sessions of sockets. `gateway.surfaces.ws.sessions.Sessions` is one."""

    def shown(self) -> Sequence[server.ShownSession]:
        """All of them."""
        ...

    def kick(self, name: str) -> bool:
        """End a session and its socket; False when there is none of this name."""
        ...


SESSIONS_ADMIN = web.AppKey("sessions_admin", SessionsAdmin)


async def list_connections(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """A page of the open connections, the oldest first; `q` is looked for in principals and addresses."""
    query = read_query(ListQuery, request, gateway)
    part = (query.q or "").lower()
    rows: list[server.ShownConnection] = []
    node = None if gateway.cluster is None else gateway.cluster.name
    for number, (name, one, since_ms) in enumerate(list(gateway.stats.open_connections.all()), 1):
        row = server.ShownConnection(with_node(node, name), one.kind, one.principal, one.peer, since_ms)
        if part in row.address or part in (row.principal or "").lower():
            rows.append(row)
        if number % CONNECTIONS_A_TURN == 0:
            await asyncio.sleep(0)
    page = page_of(
        rows,
        lambda row: (row.since_ms, row.connection),
        sort="opened",
        order="asc",
        cursor=query.cursor,
        limit=query.limit or PAGE_ROWS_DEFAULT,
    )
    body = server.ConnectionPage(next_cursor=page.next_cursor, total=page.total, connections=page.rows)
    return await packed(request, json_answer(request, body))


async def end_connection(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """End a connection at once: 204. Its client may connect again; revoke its token to keep it out."""
    if not gateway.stats.open_connections.end(split_node(request.match_info["connection"])[1]):
        raise RequestError(CONNECTION_NOT_FOUND, "No such connection (any more).")
    return web.Response(status=204)


async def list_sessions(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """A page of the sessions of sockets, with a socket or waiting for their client; `q` is looked for in principals,
    addresses and groups."""
    query = read_query(ListQuery, request, gateway)
    part = (query.q or "").lower()

    def has(row: server.ShownSession) -> bool:
        return any(part in text.lower() for text in (row.principal, row.address, *row.groups))

    node = None if gateway.cluster is None else gateway.cluster.name
    page = page_of(
        [replace(row, session=with_node(node, row.session)) for row in request.app[SESSIONS_ADMIN].shown() if has(row)],
        lambda row: (row.since_ms, row.session),
        sort="opened",
        order="asc",
        cursor=query.cursor,
        limit=query.limit or PAGE_ROWS_DEFAULT,
    )
    body = server.SessionPage(next_cursor=page.next_cursor, total=page.total, sessions=page.rows)
    return await packed(request, json_answer(request, body))


async def end_session(_: Gateway, request: web.Request, __: bytes) -> web.Response:
    """End a session: 204. Its socket is closed and cannot be resumed; what it had on lease goes back."""
    if not request.app[SESSIONS_ADMIN].kick(split_node(request.match_info["session"])[1]):
        raise RequestError(CONNECTION_NOT_FOUND, "No such session (any more).")
    return web.Response(status=204)


async def settings(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """All settings: what each is, its default, where it comes from. Secrets are none: settings name their files."""
    read_query(NoQuery, request, gateway)
    rows = [server.ShownSetting(*row) for row in described(gateway.config)]
    return await packed(request, json_answer(request, server.Settings(rows)))

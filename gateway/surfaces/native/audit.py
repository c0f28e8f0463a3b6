"""The trail: who created, changed, deleted or reset what, from where, and with which outcome."""

from __future__ import annotations

from aiohttp import web

from gateway.api.shapes.queries import AuditQuery
from gateway.errors import CURSOR_ILLEGAL, RequestError
from gateway.surfaces.http.answers import json_answer
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import read_query


async def audit(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One page of the trail of admin actions, the newest first.

    A page may be short, even empty, and still have a `next_cursor`.
    """
    asked = read_query(AuditQuery, request, gateway)
    actions = None if asked.action is None else (asked.action, f"{asked.action}.")

    def is_wanted(row: dict[str, object]) -> bool:
        time_ms, action = row["time_ms"], str(row.get("action"))
        return (
            (asked.to is None or (isinstance(time_ms, int) and time_ms < asked.to))
            and (actions is None or action == actions[0] or action.startswith(actions[1]))
            and (asked.principal is None or row.get("principal") == asked.principal)
            and (asked.outcome is None or row.get("outcome") == asked.outcome)
        )

    if gateway.trail is None:
        return json_answer(request, {"entries": [], "next_cursor": None})
    try:
        page = await gateway.trail.page(is_wanted, cursor=asked.cursor, limit=asked.limit, from_ms=asked.from_ or 0)
    except ValueError as error:
        raise RequestError(CURSOR_ILLEGAL, str(error)) from error
    return json_answer(request, {"entries": page.rows, "next_cursor": page.next_cursor})

"""POST /mq/v1/tickets: a one-time ticket for a browser's socket or event stream."""

from __future__ import annotations

from aiohttp import hdrs, web

from gateway.api.shapes.answers import Ticket
from gateway.auth.tickets import TICKET_MS
from gateway.surfaces.http.answers import check_accept, json_answer
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway


async def issue_ticket(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """A ticket with the caller's own rights, to be used once and soon."""
    check_accept(request)
    ticket = gateway.authenticator.issue_ticket(access_of(request))
    answer = json_answer(request, Ticket(ticket, TICKET_MS // 1000))
    answer.headers[hdrs.CACHE_CONTROL] = "no-store"
    return answer

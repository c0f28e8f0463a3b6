"""From a request to a line of the trail: what happens around every route whose row names an action.

What is kept of a request: the names in its path, the query parameters that its route knows and the fields of its JSON
body, these but for names only if it was accepted: what was refused may hold anything. Never a header. Of a body of more
than FIELDS_BYTES_MAX only its size: to read one of 1 MiB of keys takes 240 ms, in which nothing else runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import orjson
from aiohttp import web

from gateway.api.shapes.schema import schema_of
from gateway.api.trail import Trail
from gateway.api.trail_files import Act, Outcome
from gateway.auth.access import Access
from gateway.surfaces.http.answers import RequestIds
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.routes import SLASH, Row
from store.limits import KiB

NAMES = frozenset(("topic", "topic_name", "group", "schedule", "recurring"))
"""Fields and parameters that name what an action is for; a path has others, which say which part of it."""

_RECORD = "record"
"""The field with the record of a recurring schedule: what is sent is in no log."""

FIELDS_BYTES_MAX = 64 * KiB

_BODY = web.RequestKey("mq.audited_body", bytes)
_ERROR_CODE = web.RequestKey("mq.error_code", int)

AiohttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def begun(row: Row) -> Row:
    """The row with a handler that keeps the request's body for the trail."""
    handler = row.handler

    async def handle(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
        request[_BODY] = body
        return await handler(gateway, request, body)

    return replace(row, handler=handle)


UNNAMED = ("cluster", SLASH)
"""What a path may have beside the names of objects."""


def note_error_code(request: web.BaseRequest, error_code: int) -> None:
    """Remember what a request was refused with."""
    request[_ERROR_CODE] = error_code


def audited(
    gateway: Gateway, trail: Trail, row: Row, endpoint: AiohttpHandler, request_ids: RequestIds
) -> AiohttpHandler:
    """The endpoint of a route of `begun`, which leaves a line for each request before it is answered."""
    assert row.action is not None
    action = row.action
    parameters = frozenset(schema_of(row.query, gateway.limits)["properties"]) if row.query is not None else frozenset()

    def act(request: web.Request, outcome: Outcome, status: int | None) -> Act:
        return act_of(
            action,
            access_of(request),
            request.remote,
            request_ids.fixed(request),
            given={**_known(request, parameters), **fields_of(request.get(_BODY, b""))},
            named={name: text for name, text in request.match_info.items() if name not in UNNAMED},
            outcome=outcome,
            status=status,
            error_code=request.get(_ERROR_CODE),
        )

    async def endpoint_with_trail(request: web.Request) -> web.StreamResponse:
        try:
            response = await endpoint(request)
        except BaseException:  # who asked has gone, or the server stops
            if _BODY in request:
                trail.record(act(request, "unknown", None))
            raise
        await trail.recorded(act(request, outcome_of(request, response.status), response.status))
        return response

    return endpoint_with_trail


def act_of(
    action: str,
    access: Access,
    address: str | None,
    request_id: str,
    *,
    given: Mapping[str, object],
    named: Mapping[str, str],
    outcome: Outcome,
    status: int | None,
    error_code: int | None = None,
) -> Act:
    """What is kept of a request. `given`: its parameters and the fields of its body; `named`: the names in its path."""
    names = {name: text for name, text in given.items() if name in NAMES and isinstance(text, str)}
    return Act(
        action=action,
        principal=access.principal,
        token_id=access.token_id,
        object={**names, **named},
        details={} if outcome == "refused" else {name: given[name] for name in given if name not in names},
        address=address,
        outcome=outcome,
        status=status,
        error_code=error_code,
        request_id=request_id,
    )


def outcome_of(request: web.BaseRequest, status: int) -> Outcome:
    """What came of a request. One that its handler never saw was refused, whatever its status: a stranger must not
    find one that counts as the server's fault."""
    if status < 400:
        return "done"
    return "failed" if status >= 500 and _BODY in request else "refused"


def _known(request: web.Request, parameters: frozenset[str]) -> Mapping[str, object]:
    query = request.query if request.query_string else {}
    return {name: text for name, text in query.items() if name in parameters}


def fields_of(body: bytes) -> Mapping[str, object]:
    """What is kept of a body."""
    if len(body) > FIELDS_BYTES_MAX:
        return {"body_bytes": len(body)}
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return {name: given for name, given in fields.items() if name != _RECORD} if isinstance(fields, dict) else {}

"""From the route table to an aiohttp application: what happens around every handler.

One wrapper a route instead of middlewares, of which each would cost a tenth of a small request: it asks whether the
request may be done (`admission.py`), reads the body within its limits, maps errors, and counts. A signal gives every
answer, aiohttp's own included, its request id and takes away the Server header, which would tell strangers what to
attack.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from time import perf_counter
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.http_parser import HttpRequestParser

from gateway.api.errors import error_of
from gateway.errors import RequestError
from gateway.settings.config import GatewayConfig
from gateway.surfaces.http.access_log import log_access
from gateway.surfaces.http.admission import admission, allowance_of, charge, charge_bytes, check_version
from gateway.surfaces.http.answer_memory import SMALL_BYTES, no_room, size_of
from gateway.surfaces.http.answers import REQUEST_ID, RequestIds, error_answer
from gateway.surfaces.http.auditing import audited, begun, note_error_code
from gateway.surfaces.http.buffers_body import BuffersBody
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import GATEWAY, Gateway, RouteStats
from gateway.surfaces.http.forwarding import forwarding
from gateway.surfaces.http.gathering import gathering
from gateway.surfaces.http.origins import ORIGIN, Origins
from gateway.surfaces.http.reading import Unread, give_back, read_body
from gateway.surfaces.http.routes import SLASH, Row, check_table
from store.errors import Corrupt, IndexDamaged

log = logging.getLogger(__name__)

AiohttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SCHEDULE = "{schedule:[^/]+}"
"""Colons too: a schedule key may have some, and not all clients escape them. `…/{schedule}:fire` is for POST alone."""

RECURRING = "{recurring:[^/:]+}"
"""No colons: no name has one, and `…/{recurring}:pause` is a resource of its own, for POST alone."""

UNMATCHED = "unmatched"
"""The metrics label of requests that no route answers."""


ENDPOINTS: web.AppKey[Callable[[int], AiohttpHandler]] = web.AppKey("endpoints")
"""What answers the requests of a row of the table, by its number; behind the last one: those that no route answers."""


def application_of(gateway: Gateway, rows: Sequence[Row]) -> web.Application:
    """An application that serves these routes. Raises ValueError for an illegal route table."""
    application = web.Application()
    application[GATEWAY] = gateway
    request_ids = RequestIds()
    origins = origins_of(gateway.config)
    for row in rows:
        gateway.stats.routes.setdefault(row.name, RouteStats())

    def endpoint(number: int) -> AiohttpHandler:
        if number == len(rows):
            return _unmatched(gateway, request_ids, origins)
        return _endpoint(gateway, rows[number], request_ids, origins)

    endpoints: Callable[[int], AiohttpHandler] = cache(endpoint)
    application[ENDPOINTS] = endpoints
    for resource in _resources(tuple((row.method, row.path) for row in rows)):
        application.router.register_resource(resource)
    application.on_response_prepare.append(_header_finisher(request_ids, origins))
    return application


@lru_cache(maxsize=4)
def _resources(table: tuple[tuple[str, str], ...]) -> Sequence[web.AbstractResource]:
    """All that aiohttp needs to know of the routes with these methods and paths. Nothing of it is of one application:
    to make it takes ten times as long as all else about one. Raises ValueError for an illegal table."""
    check_table(table)
    router = web.UrlDispatcher()
    endpoints = [_numbered(number) for number in range(len(table) + 1)]
    for slash in ("", "/"):
        for (method, written), endpoint in zip(table, endpoints, strict=False):
            path = _pattern(written, slash)
            if path is None:
                continue
            resource = router.add_resource(path)
            resource.add_route(method, endpoint)
            if method == hdrs.METH_GET:
                resource.add_route(hdrs.METH_HEAD, endpoint)
    router.add_route("*", "/{unmatched:.*}", endpoints[-1])
    return tuple(router.resources())


def _numbered(number: int) -> AiohttpHandler:
    """What answers the requests of a row in any application: made when the first one comes."""

    async def endpoint(request: web.Request) -> web.StreamResponse:
        return await request.app[ENDPOINTS](number)(request)

    return endpoint


def _pattern(path: str, slash: str) -> str | None:
    """A path with or without a slash behind it, as aiohttp writes it; None: there is one for both already."""
    if "{" not in path:
        return None if path == "/" and slash else path + slash
    if slash:
        return None
    return path.replace("{schedule}", SCHEDULE).replace("{recurring}", RECURRING) + f"{{{SLASH}:/?}}"


def origins_of(config: GatewayConfig) -> Origins:
    """Who may use a server with these settings from a web page."""
    allowed = config.allowed_origins
    # A deliberately public or authenticated server may be reached under any host name.
    is_anonymous = not (config.auth.enabled or config.insecure_no_auth)
    names = frozenset(urlsplit(origin).hostname or "" for origin in allowed) if is_anonymous else None
    return Origins(allowed, names)


def uses_c_parser() -> bool:
    """Whether aiohttp parses HTTP in C. Its Python parser is slower and less tried."""
    return HttpRequestParser.__module__ == "aiohttp._http_parser"


def _endpoint(gateway: Gateway, row: Row, request_ids: RequestIds, origins: Origins) -> AiohttpHandler:
    if row.action is None or gateway.trail is None:
        return _plain_endpoint(gateway, row, request_ids, origins)
    endpoint = _plain_endpoint(gateway, begun(row), request_ids, origins)
    return audited(gateway, gateway.trail, row, endpoint, request_ids)


def _plain_endpoint(gateway: Gateway, row: Row, request_ids: RequestIds, origins: Origins) -> AiohttpHandler:
    handler = gathering(gateway, row, forwarding(gateway, row.path, row.handler))
    admit = admission(gateway, row.path, row.permission, origins)
    rates = gateway.rates
    is_logged = gateway.config.access_log
    bytes_max = row.body.bytes_max(gateway.limits)
    answered = gateway.stats.routes[row.name].answered
    allowances = gateway.stats.answers.open

    async def endpoint(request: web.Request) -> web.StreamResponse:
        started_s = perf_counter()
        body, counted = b"", 0
        try:
            try:
                admit(request)
                if bytes_max:
                    body, counted = await read_body(gateway, request, bytes_max=bytes_max)
                if rates is not None:
                    charge_bytes(gateway, request, len(body))
                response = await handler(gateway, request, body)
                large = _held(gateway, request, response) if size_of(response) > SMALL_BYTES else None
            except ConnectionError:
                raise  # the client is gone
            except Exception as error:
                response, large = _refused(request, error, row.name, request_ids), None
                if request.writer.output_size and request.transport is not None:
                    request.transport.abort()  # an answer has begun: a second head would be taken for a part of it
            finally:
                if counted:
                    give_back(gateway, counted)
            elapsed_s = perf_counter() - started_s
            answered(response.status, elapsed_s)
            if is_logged:
                log_access(request, response.status, elapsed_s, request_ids.fixed(request))
            if large is not None:  # written here, to know when its client has taken it
                with suppress(ConnectionError):  # aiohttp meets it again, and knows what to do
                    await large.prepare(request)
                    await large.write_eof()
                large.body = None  # aiohttp keeps the response for as long as the connection is idle
        finally:
            if allowances and (allowance := allowances.pop(id(request), None)) is not None:
                allowance.release()
        return response

    return endpoint


def _held(gateway: Gateway, request: web.Request, response: web.StreamResponse) -> web.Response:
    """A large answer, counted for as long as it is written. Raises RequestError 503 for one that may be refused."""
    assert isinstance(response, web.Response)
    allowance = allowance_of(gateway, request)
    allowance.made()
    if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
        allowance.must_send = True
    if not allowance.hold(size_of(response)):
        raise no_room()
    if isinstance(response.body, bytes):
        response.body = BuffersBody((response.body,))  # else aiohttp copies it
    return response


def _refused(request: web.Request, error: Exception, route: str, request_ids: RequestIds) -> web.Response:
    refusal = error_of(error)
    note_error_code(request, refusal.error_code)
    request_id = request_ids.fixed(request)
    if isinstance(error, Corrupt | IndexDamaged):
        log.error("damage route=%s request_id=%s error=%s", route, request_id, error)
    elif refusal.hides_cause:
        log.error("request failed route=%s request_id=%s", route, request_id, exc_info=error)
    response = error_answer(refusal, request_id)
    if response.status == 401:
        response.headers[hdrs.WWW_AUTHENTICATE] = _challenge(request)
    if isinstance(refusal, Unread):
        response.force_close()
    return response


def _challenge(request: web.Request) -> str:
    """How to authenticate. Basic makes a browser ask its user: for pages people open, not for what pages ask for."""
    asks_user = request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
    return 'Bearer realm="mq", Basic realm="mq", charset="UTF-8"' if asks_user else 'Bearer realm="mq"'


def _unmatched(gateway: Gateway, request_ids: RequestIds, origins: Origins) -> AiohttpHandler:
    """Answers what no route does: a page's preflight; 405 when the path has other methods, else 404. It costs its
    sender a request, and is logged, like any other."""
    rates, is_logged = gateway.rates, gateway.config.access_log
    answered = gateway.stats.routes.setdefault(UNMATCHED, RouteStats()).answered

    async def unmatched(request: web.Request) -> web.StreamResponse:
        started_s = perf_counter()
        try:
            check_version(request)
            if rates is not None:
                charge(rates, request, access_of(request))
            response = await answer(request)
        except RequestError as error:
            response = _refused(request, error, UNMATCHED, request_ids)
        elapsed_s = perf_counter() - started_s
        answered(response.status, elapsed_s)
        if is_logged:
            log_access(request, response.status, elapsed_s, request_ids.fixed(request))
        return response

    async def answer(request: web.Request) -> web.Response:
        methods: set[str] = set()
        for resource in request.app.router.resources():
            if resource.canonical != "/{unmatched}":
                _, allowed = await resource.resolve(request)
                methods |= allowed
        request_id = request_ids.fixed(request)
        response: web.Response
        if methods and request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers:
            granted = origins.preflight_headers(request.headers, ", ".join(sorted(methods)))
            response = web.Response(status=204 if granted else 403, headers=granted)
        elif methods:
            response = error_answer(RequestError(405, "HTTP 405 Method Not Allowed"), request_id)
            response.headers[hdrs.ALLOW] = ", ".join(sorted(methods))
        else:
            response = error_answer(RequestError(404, "HTTP 404 Not Found"), request_id)
        return response

    return unmatched


def _header_finisher(
    request_ids: RequestIds, origins: Origins
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    async def finish_headers(request: web.Request, response: web.StreamResponse) -> None:
        headers = response.headers
        headers[REQUEST_ID] = request_ids.of(request)
        headers.pop(hdrs.SERVER, None)
        if ORIGIN in request.headers:
            for name, value in origins.answer_headers(request.headers, headers).items():
                headers.setdefault(name, value)

    return finish_headers

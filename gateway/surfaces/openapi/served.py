"""`/openapi.json`, `/asyncapi.json` and `/docs`: made at the first request, and kept.

The page is whole in itself: no script, style, font or picture comes from anywhere else, and its headers forbid it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property

import orjson
from aiohttp import hdrs, web

from gateway.surfaces.http.answers import check_accept, packed
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import JSON_TYPE
from gateway.surfaces.openapi.document import Route, build_document
from gateway.surfaces.openapi.page import CONTENT_SECURITY_POLICY, render_page
from gateway.surfaces.openapi.sockets import build_socket_document

HTML_TYPE = "text/html; charset=utf-8"


class Documents:
    """The documents of one server."""

    def __init__(self, gateway: Gateway, routes: Sequence[Route]) -> None:
        self._gateway = gateway
        self._routes = routes

    @cached_property
    def openapi(self) -> dict[str, object]:
        """See `document.py`."""
        auth = self._gateway.config.auth
        return build_document(
            self._routes,
            limits=self._gateway.limits,
            version=self._gateway.version,
            asks_who=auth.enabled,
            token_in_query=auth.token_in_query,
        )

    @cached_property
    def asyncapi(self) -> dict[str, object]:
        """See `sockets.py`."""
        return build_socket_document(limits=self._gateway.limits, version=self._gateway.version)

    @cached_property
    def openapi_bytes(self) -> bytes:
        """As it is served."""
        return orjson.dumps(self.openapi)

    @cached_property
    def asyncapi_bytes(self) -> bytes:
        """As it is served."""
        return orjson.dumps(self.asyncapi)

    @cached_property
    def page(self) -> bytes:
        """Both for people."""
        return render_page(self.openapi, self.asyncapi).encode()


DOCUMENTS = web.AppKey("documents", Documents)


async def openapi(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """This API as an OpenAPI 3.1 document."""
    return await _document(request, lambda: request.app[DOCUMENTS].openapi_bytes)


async def asyncapi(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """The WebSocket `/ws/v1` as an AsyncAPI 3.0 document."""
    return await _document(request, lambda: request.app[DOCUMENTS].asyncapi_bytes)


async def docs(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Both documents as a page to read, without anything from elsewhere."""
    headers = {
        hdrs.CONTENT_TYPE: HTML_TYPE,
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    body = await _made(lambda: request.app[DOCUMENTS].page)
    return await packed(request, web.Response(body=body, headers=headers))


async def _document(request: web.Request, make: Callable[[], bytes]) -> web.StreamResponse:
    check_accept(request)
    return await packed(request, web.Response(body=await _made(make), headers={hdrs.CONTENT_TYPE: JSON_TYPE}))


async def _made(make: Callable[[], bytes]) -> bytes:
    """Made in a thread: the first time it takes a few hundred milliseconds."""
    return await asyncio.get_running_loop().run_in_executor(None, make)

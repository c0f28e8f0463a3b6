"""A test server on connections as in production, without the fast path; with it: tests/gateway/security/kit.py."""

from __future__ import annotations

from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.main.application import build_application
from gateway.surfaces.http.answers import RequestIds
from gateway.surfaces.http.connection import Connection, ConnectionLimiter
from gateway.surfaces.http.context import Gateway


class ProductionServer(TestServer):
    """Handlers are not cancelled when their client goes, and bodies come as they were sent."""

    __test__ = False

    def __init__(self, gateway: Gateway, application: web.Application | None = None) -> None:
        super().__init__(application or build_application(gateway))
        self._gateway = gateway

    async def _make_runner(self, **kwargs: Any) -> web.BaseRunner[Any]:
        return _Runner(self.app, self._gateway)


class _Runner(web.AppRunner):
    def __init__(self, application: web.Application, gateway: Gateway) -> None:
        super().__init__(application, handle_signals=False)
        self._connect = partial(
            _connected, ConnectionLimiter(gateway.limits, gateway.stats), gateway.config.ws_write_timeout_ms / 1000
        )

    async def _make_server(self) -> Any:
        return _Server(await super()._make_server(), self._connect)


class _Server:
    """An aiohttp server that makes connections of ours."""

    def __init__(self, server: Any, connect: Any) -> None:
        self._server = server
        self._connect = connect

    def __call__(self) -> Connection:
        return self._connect(self._server)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


def _connected(limiter: ConnectionLimiter, write_timeout_s: float, server: Any) -> Connection:
    return Connection(
        server, limiter, RequestIds(), access_log=None, auto_decompress=False, write_timeout_s=write_timeout_s
    )

"""A gateway over a fake broker, with and without HTTP around it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from unittest.mock import patch

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, DynamicResource, Request, Resource

from gateway.surfaces.http.context import Gateway
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.production_server import ProductionServer

Client = TestClient[Request, Application]


@pytest.fixture(scope="session", autouse=True)
def paths_are_parsed_once() -> Iterator[None]:
    """A server makes its application once, and so once a pattern of each path. Here it took a fifth of making one,
    which in turn takes a fifth of a test of a surface."""
    parse = DynamicResource.__init__
    known: dict[str, tuple[re.Pattern[str], str]] = {}

    def parse_once(self: DynamicResource, path: str, *, name: str | None = None) -> None:
        if path not in known:
            parse(self, path, name=name)
            known[path] = self._pattern, self._formatter
            return
        Resource.__init__(self, name=name)
        self._orig_path = path
        self._pattern, self._formatter = known[path]

    with patch.object(DynamicResource, "__init__", parse_once):
        yield


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def parts(clock: FakeClock) -> tuple[Gateway, FakeBroker]:
    """A gateway with the topic `orders` of 4 partitions."""
    gateway, broker = fake_gateway(clock)
    await broker.create_topic("orders", 4)
    return gateway, broker


@pytest.fixture
def gateway(parts: tuple[Gateway, FakeBroker]) -> Gateway:
    return parts[0]


@pytest.fixture
def broker(parts: tuple[Gateway, FakeBroker]) -> FakeBroker:
    return parts[1]


@pytest.fixture
async def client(gateway: Gateway, aiohttp_client: Callable[[TestServer], Awaitable[Client]]) -> Client:
    """A client of the gateway's application, served as in production: nothing is inflated."""
    server = ProductionServer(gateway)
    await server.start_server()
    return await aiohttp_client(server)

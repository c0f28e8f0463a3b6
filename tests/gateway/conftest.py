"""A gateway over a fake broker, with and without HTTP around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request

from gateway.surfaces.http.context import Gateway
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.production_server import ProductionServer

Client = TestClient[Request, Application]


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

"""gateway/surfaces/http/rights.py: a wait ends with the rights of whoever waits, and with nothing else. Live: e2e."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from aiohttp.test_utils import make_mocked_request

from gateway.auth.access import OPEN, Access, Permission
from gateway.errors import RequestError
from gateway.surfaces.http.caller import grant
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.rights import left_s, while_allowed
from tests.clock import START_MS, FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.waiting import PATIENCE_S


class Somebody:
    """Rights that a test ends."""

    principal = "somebody"

    def __init__(self, *, left_ms: int | None = None, is_over: bool = False) -> None:
        self.expires_at_ms = None if left_ms is None else START_MS + left_ms
        self.is_over = is_over
        self.watchers: list[Callable[[], None]] = []

    def allows(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        return True

    def check(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> None:
        return None

    def watch(self, on_end: Callable[[], None]) -> Callable[[], None]:
        if self.is_over:
            on_end()
        self.watchers.append(on_end)
        return lambda: self.watchers.remove(on_end)


@pytest.fixture
def gateway() -> Gateway:
    return fake_gateway(FakeClock())[0]


async def wait(gateway: Gateway, access: Access, what: asyncio.Event, lost: asyncio.Future[None] | None = None) -> str:
    request = make_mocked_request(
        "GET", "/", protocol=Mock(ssl_context=None, peername=None, lost=lambda: lost or asyncio.Future())
    )
    grant(request, access)
    async with while_allowed(gateway, request):
        await what.wait()
    return "done"


async def test_a_client_that_goes_ends_the_wait(gateway: Gateway) -> None:
    for access in (OPEN, Somebody()):
        lost: asyncio.Future[None] = asyncio.Future()
        waiting = asyncio.ensure_future(wait(gateway, access, asyncio.Event(), lost))
        await asyncio.sleep(0)
        lost.set_result(None)
        with pytest.raises(ConnectionError):
            await waiting
        with pytest.raises(ConnectionError):
            await wait(gateway, access, asyncio.Event(), lost)


async def test_a_client_that_goes_when_the_wait_is_over_ends_nothing(gateway: Gateway) -> None:
    what, lost = asyncio.Event(), asyncio.Future[None]()
    waiting = asyncio.ensure_future(wait(gateway, OPEN, what, lost))
    await asyncio.sleep(0)
    what.set()
    await asyncio.sleep(0)
    lost.set_result(None)  # the waiter goes on in the same turn
    assert await waiting == "done"


async def test_rights_that_are_withdrawn_end_the_wait(gateway: Gateway) -> None:
    access = Somebody()
    waiting = asyncio.ensure_future(wait(gateway, access, asyncio.Event()))
    await asyncio.sleep(0)
    (on_end,) = access.watchers
    on_end()
    on_end()  # said twice
    with pytest.raises(RequestError, match="ended") as refusal:
        await waiting
    assert refusal.value.error_code == 40101
    assert access.watchers == []


@pytest.mark.parametrize("access", [Somebody(left_ms=20), Somebody(left_ms=-5), Somebody(is_over=True)])
async def test_rights_that_end_by_time_or_have_ended_end_it_too(gateway: Gateway, access: Somebody) -> None:
    with pytest.raises(RequestError, match="ended"):
        await asyncio.wait_for(wait(gateway, access, asyncio.Event()), PATIENCE_S)
    assert access.watchers == []


@pytest.mark.parametrize("access", [OPEN, Somebody(), Somebody(left_ms=60_000)])
async def test_what_comes_in_time_is_not_touched(gateway: Gateway, access: Access) -> None:
    event = asyncio.Event()
    waiting = asyncio.ensure_future(wait(gateway, access, event))
    await asyncio.sleep(0)
    event.set()
    assert await waiting == "done"


async def test_a_timeout_inside_is_its_own(gateway: Gateway) -> None:
    request = make_mocked_request("GET", "/")
    grant(request, Somebody())
    with pytest.raises(TimeoutError):
        async with while_allowed(gateway, request), asyncio.timeout(0.01):
            await asyncio.Event().wait()


async def test_a_waiter_that_is_cancelled_is_cancelled(gateway: Gateway) -> None:
    access = Somebody(left_ms=60_000)
    waiting = asyncio.ensure_future(wait(gateway, access, asyncio.Event()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert access.watchers == []


def test_how_long_rights_last(gateway: Gateway) -> None:
    assert [left_s(gateway, one) for one in (OPEN, Somebody(left_ms=1500), Somebody(left_ms=-1))] == [None, 1.5, 0]

"""gateway.routing.patience: how long a look waits for a broker, and how often it looks."""

from __future__ import annotations

import asyncio

import pytest

from gateway.brokers.base import BrokerUnreachable
from gateway.routing.patience import AWAY_S, patiently


class Broker:
    """Away until a time of the loop, since another one."""

    def __init__(self, *, back_s: float, away_since_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self._back_s, self._since_s = loop.time() + back_s, loop.time() - away_since_s
        self.looks = 0

    def error(self) -> BrokerUnreachable:
        return BrokerUnreachable("away", asyncio.get_running_loop().time() - self._since_s)

    async def look(self) -> str:
        self.looks += 1
        if asyncio.get_running_loop().time() < self._back_s:
            raise self.error()
        return "found"


async def test_a_broker_that_comes_back_answers() -> None:
    broker = Broker(back_s=0.4)
    assert await patiently(broker.look, broker.error()) == "found"
    assert 1 <= broker.looks <= 8, "it is not asked all the time"


async def test_who_comes_late_waits_for_the_rest_of_the_time_and_no_longer() -> None:
    loop = asyncio.get_running_loop()
    broker = Broker(back_s=60, away_since_s=AWAY_S - 0.3)
    begun_s = loop.time()
    with pytest.raises(BrokerUnreachable):
        await patiently(broker.look, broker.error())
    assert 0.25 <= loop.time() - begun_s < AWAY_S / 2
    broker = Broker(back_s=60, away_since_s=AWAY_S)
    with pytest.raises(BrokerUnreachable):
        await patiently(broker.look, broker.error())
    assert broker.looks == 0, "it has been away for long: nobody waits"


async def test_other_errors_are_not_waited_for() -> None:
    async def look() -> str:
        raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"):
        await patiently(look, BrokerUnreachable("away"))

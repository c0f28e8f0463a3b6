"""Sends of the server's own (deliveries of the timer, retries, dead letters) tell the route table how a broker did, as
those of producers do."""

from __future__ import annotations

from collections.abc import Awaitable
from time import perf_counter
from typing import TypeVar

from gateway.brokers.base import Broker
from gateway.routing.base import Routes
from store.errors import StoreError

T = TypeVar("T")


async def told(routes: Routes, broker: Broker, send: Awaitable[T]) -> T:
    """The answer to a send that the broker was just asked for. Raises what it raises."""
    started_s = perf_counter()
    try:
        answer = await send
    except StoreError as error:
        routes.failed(broker, perf_counter() * 1000, error)
        raise
    ended_s = perf_counter()
    routes.answered(broker, (ended_s - started_s) * 1000, ended_s * 1000)
    return answer

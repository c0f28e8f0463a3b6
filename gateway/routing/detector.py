"""Finds out whether brokers that did not answer do so again: no records are sent to them while others do.

A broker that is unreachable is asked where one of its queues ends. An answer of any kind makes it reachable; whether it
is still avoided for its latency is another matter (gateway/routing/fault.py). Without unreachable brokers nothing is
asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.routing.table import RouteTable, Segment
from store.errors import StoreError

log = logging.getLogger(__name__)

PROBE_INTERVAL_S = 2.0
PROBE_TIMEOUT_S = 0.2


class Detector:
    """Probes the unreachable brokers of a route table. `sleep` waits between two rounds."""

    def __init__(self, routes: RouteTable, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._routes = routes
        self._sleep = sleep

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await self._sleep(PROBE_INTERVAL_S)
            await asyncio.gather(*map(self._probe, self._routes.unreachable()))

    async def _probe(self, segment: Segment) -> None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await segment.broker.bounds(segment.queue)
        except (BrokerUnreachable, AnswerLost, TimeoutError):
            return
        except StoreError:
            pass  # it answered
        self._routes.faults.reached(segment.broker.name)
        log.info("broker is reachable again broker=%s", segment.broker.name)

"""Sends to a partition that moves are held until it has moved: its old queue refuses them, and stores nothing.

The open segment that a caller knew is sealed. Mostly the route table hears of the new one within milliseconds; it is
asked to look by itself (`Routes.refresh`) when it does not, since what tells it may be late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from gateway.routing.base import Route, Routes
from store.errors import SealedQueue
from store.waits import is_set_within

HOLD_MS = 5_000
"""How long a send is held; beyond it, it is refused with nothing stored."""

REFRESH_MS = 500
"""How long nothing is heard before the table is asked to look."""


def held_until_s() -> float:
    """When a send that is held from now on is refused, by the event loop's clock."""
    return asyncio.get_running_loop().time() + HOLD_MS / 1000


async def await_move(routes: Routes, topic: str, sealed: Collection[tuple[int, Route]], until_s: float) -> None:
    """Return when one of these partitions has another open segment than this. Raises SealedQueue when it takes too
    long, UnknownQueue when the topic is gone."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    forget = routes.watch(topic, None, changed.set)
    try:
        while all(routes.writable(topic, partition) == route for partition, route in sealed):
            left_s = until_s - loop.time()
            if left_s <= 0:
                raise SealedQueue(f"topic {topic}: a partition has been moving for {HOLD_MS} ms; send again")
            changed.clear()
            if not await is_set_within(changed, min(left_s, REFRESH_MS / 1000)):
                for partition, _ in sealed:
                    await routes.refresh(topic, partition)
    finally:
        forget()

"""Waiting for an event that may not come."""

from __future__ import annotations

import asyncio


async def is_set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until the event is set; False when the time (None: no end) was over before.

    A cancellation ends it whatever else happens in the same turn: `asyncio.wait_for` of Python 3.11 may swallow one,
    and a loop around it goes on for ever.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False

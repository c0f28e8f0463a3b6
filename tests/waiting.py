"""How long tests wait for what must come. It costs nothing where it comes, and a machine under load takes its time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import count

PATIENCE_S = 120.0 if os.environ.get("CI") else 40.0
"""Who waits for a failing test to end does not want to wait long; CI's machines may be slow."""

WOKEN_S = 20.0
"""For a long poll that something is to end: less than the 30 or 60 s after which it would end by itself."""

TURNS = 100
PAUSE_S = 0.001
"""What comes of the loop's own turns comes within some; what has not come by then waits for the time, a thread or
another process, which a loop that goes round and round would only keep from the processor."""


async def until(condition: Callable[[], object], *, pause_s: float | None = None) -> None:
    """Let others run until the condition holds; for what announces itself by no event. TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        for turn in count():
            if condition():
                return
            await asyncio.sleep((0 if turn < TURNS else PAUSE_S) if pause_s is None else pause_s)

"""How long tests wait for what must come. It costs nothing where it comes, and a machine under load takes its time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

PATIENCE_S = 120.0 if os.environ.get("CI") else 40.0
"""Who waits for a failing test to end does not want to wait long; CI's machines may be slow."""

WOKEN_S = 20.0
"""For a long poll that something is to end: less than the 30 or 60 s after which it would end by itself."""


async def until(condition: Callable[[], object], *, pause_s: float = 0.0) -> None:
    """Let others run until the condition holds; for what announces itself by no event. TimeoutError."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(pause_s)

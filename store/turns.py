"""Long work leaves others their turn: it is cut into stretches, and of all there is in the process, one stretch is done
in a turn of the event loop. A thousand requests at once, each with short stretches, would else be one long turn.

Whoever has little to do need not ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Stretches] = WeakKeyDictionary()


class Stretches:
    """The stretches of one event loop, first come, first served."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def next(self) -> AsyncIterator[None]:
        """One stretch. What is done in it should not wait for anything."""
        async with self._lock:
            yield
            await asyncio.sleep(0)  # held meanwhile: the next one's stretch is in the next turn


def stretches() -> Stretches:
    """Those of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = Stretches()
    return found


async def others_turn() -> None:
    """Wait for the turn of the event loop in which the caller's next stretch is done, however much of it waits. The
    stretch may wait for something, which then is in no turn."""
    async with stretches().next():
        pass

"""Long work leaves others their turn: it is cut into stretches, and of all there is in the process, one stretch is done
in a turn of the event loop. A thousand requests at once, each with short stretches, would else be one long turn.

Whoever has little to do need not ask. Where many may have it at once, they say how long it took, and who comes when the
turn is full asks all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import ReferenceType, WeakKeyDictionary, ref

TURN_S = 0.02
"""What those who have little to do may take of a turn together: it is full then. With the last of them and a stretch
it is less than 50 ms."""

_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Stretches] = WeakKeyDictionary()
_last: tuple[ReferenceType[asyncio.AbstractEventLoop], Stretches] | None = None  # of the loop that asked last


class Stretches:
    """The stretches of one event loop, first come, first served."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._spent_s = 0.0  # of this turn

    @property
    def is_full(self) -> bool:
        """Whether this turn has been used for so long that what is begun now should be a stretch."""
        return self._spent_s > TURN_S

    def spent(self, seconds: float) -> None:
        """Work that is no stretch has taken so much of this turn: CPU time of its thread, as others' is not its own."""
        if not self._spent_s:
            asyncio.get_running_loop().call_soon(self._begin)
        self._spent_s += seconds

    def _begin(self) -> None:
        self._spent_s = 0.0

    @asynccontextmanager
    async def next(self) -> AsyncIterator[None]:
        """One stretch. What is done in it should not wait for anything."""
        async with self._lock:
            yield
            await asyncio.sleep(0)  # held meanwhile: the next one's stretch is in the next turn


def stretches() -> Stretches:
    """Those of the running event loop."""
    global _last
    loop = asyncio.get_running_loop()
    if _last is not None and _last[0]() is loop:
        return _last[1]
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = Stretches()
    _last = ref(loop), found
    return found


async def others_turn() -> None:
    """Wait for the turn of the event loop in which the caller's next stretch is done, however much of it waits. The
    stretch may wait for something, which then is in no turn."""
    async with stretches().next():
        pass

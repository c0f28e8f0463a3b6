"""When Python's cyclic garbage collector looks, and at how many objects at once: all else waits meanwhile, some 100 ms
a million.

Nearly all objects here die by reference count. The collector is for cycles: an error refers to its traceback, that to
the frames it went through, and they to the error. By itself it looks at all objects of a process whenever there are a
quarter more, and a server that remembers a million things would stop for it. So what has survived one look is frozen,
which takes it out of all further ones:

    what came last   looked at after ALLOCATIONS objects, or each YOUNG_S, once; what is left is frozen
    what is frozen   thawed and looked at with all others when the server has little to do and GROWN_IDLE objects were
                     frozen since the last time, and a tenth more; when it is busy, not before they have become twice as
                     many

A cycle that was in use in the moment of a look is found by the thaw. Those are few: there is a look in ten thousand
objects that stay, and what is in use then is what a few requests hold.

Even to count what is frozen takes 100 ms a million, in which nothing else runs. So it is not counted before as many
objects came into being as there would have to be, and as many blocks of memory. The first is what the collector counts
to know when to look: never less than what they have become more by, but with time any number. The second is exact, but
many blocks are no objects.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 10_000
"""Tracked objects that may come into being before the collector looks at them. A batch of 1,000 records is some 5,000
that die by reference count; with Python's defaults the collector walked them again and again: half of the CPU time of
such a request (8.7 ms; 4.3 ms with 50,000 here). Looking three times before freezing, the last time at 75,000, took 56
ms of the event loop in `make attack`."""

YOUNG_S = 0.25
"""How often the collector looks at what came last, however little it is. ALLOCATIONS counts what came less what has
gone, the long frozen too: where each push to one of 15,000 sockets replaces what the one before left there, 100,000
objects came together, and 150 ms were needed to look at them."""

_NEVER = 1 << 30
GROWN_IDLE = 50_000
GROWN_BUSY_MIN = 1_000_000


@contextmanager
def collector_off() -> Iterator[None]:
    """No look at all within the block: for the loading of modules, whose objects stay. Looks at them took a sixth of
    the CPU time of a server's start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def calm_collector() -> None:
    """Have the collector look as said above from now on. What was loaded before is not looked at now: of 100,000
    objects 2,000 are garbage, and to find them takes a tenth of the CPU time of a start."""
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, _NEVER, _NEVER)
    gc.callbacks.append(_freeze_what_is_left)


def _is_calm() -> bool:
    return _freeze_what_is_left in gc.callbacks


class _Came:
    """Objects that came since the start, less those that have gone: at each look, as many as the collector counted."""

    count = 0


def _freeze_what_is_left(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _Came.count += gc.get_count()[0]
    else:
        gc.freeze()


def look_at_young() -> None:
    """Look at what came last, and freeze what is left. For a process whose collector is calm."""
    gc.collect(0)


class Thawing:
    """When what is frozen is looked at. For a process whose collector is calm; in any other, nothing is frozen."""

    def __init__(self) -> None:
        self._count = gc.get_freeze_count() if _is_calm() else 0  # when it was looked at last
        self._came_count = _Came.count  # when it was counted last
        self._block_count = sys.getallocatedblocks()  # ... and then

    def look(self, *, is_idle: bool) -> bool:
        """Thaw and look if it is time; whether it was. Everything stands still meanwhile."""
        least = max(GROWN_IDLE, self._count // 10) if is_idle else max(GROWN_BUSY_MIN, self._count)
        block_count = sys.getallocatedblocks()
        if min(block_count - self._block_count, _Came.count - self._came_count) < least:
            self._block_count = min(self._block_count, block_count)
            return False
        self._note()
        if gc.get_freeze_count() - self._count < least:
            return False
        gc.unfreeze()
        gc.collect()
        self._count = gc.get_freeze_count()
        self._note()
        return True

    def _note(self) -> None:
        self._came_count, self._block_count = _Came.count, sys.getallocatedblocks()

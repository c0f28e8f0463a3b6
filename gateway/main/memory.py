"""Memory that is free goes back to the system.

glibc keeps what was freed for the next who needs it, in an arena for each few threads: after large answers or uploads a
process stays hundreds of megabytes larger than what it uses, for good. So all threads share one arena, which costs them
nothing, as Python allocates under its own lock, and free pages stay where they are until `give_back_forever` has the
library return them. It looks at the size of the process now and then: pages are returned at once when it grew since the
last time, and seldom while it only stays large, as what held the pages then may be free by now. That takes some
milliseconds, in a thread.
Where there is no glibc on Linux (musl, macOS), no pages are returned so: their allocators do it by themselves.

26 unread JSON fetches, resident MiB before, at most, after:

    neither      119   216   216       one arena and trim   123   195   134
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gateway.main.garbage import YOUNG_S, Thawing, look_at_young
from store.limits import MiB

LOOK_S = 5.0
GROWTH_BYTES = 16 * MiB
"""What a process may have grown before its free pages are looked for."""
LOOKS_WHILE_LARGE = 4
"""How many looks apart they are looked for while the process stays that much above the least it ever was."""

IDLE_SHARE = 0.05
"""A process that uses less than so much of a core has little to do. To look at all objects stops it, with 4,000 sockets
on a busy machine, for 0.7 to 0.9 s of CPU time: at a quarter of a core that was in the middle of 500 sends a second."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_MMAP_THRESHOLD_BYTES = 32 * MiB  # glibc's largest
_NEVER_TRIM = 2**31 - 1
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def share_one_arena() -> None:
    """Have threads that begin later use the arena of the first, and free pages stay until they are returned from here:
    glibc would return them while the event loop frees what it held, and fetch them again with the next request."""
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        if trimmer() is not None:
            mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM)


def trimmer() -> Callable[[], object] | None:
    """What returns free pages to the system; None where the C library has no such thing."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes = (ctypes.c_size_t,)
    return lambda: trim(0)


def resident_bytes() -> int:
    """Memory of this process."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES


class Trimming:
    """When free pages are returned."""

    def __init__(self, trim: Callable[[], object], resident: Callable[[], int] = resident_bytes) -> None:
        self._trim = trim
        self._resident = resident
        self._least_bytes = self._last_bytes = resident()
        self._looks = 0  # since pages were returned

    def look(self) -> bool:
        """Return free pages if the process has grown, or has long been large; whether it was so. Blocks for some
        milliseconds."""
        now_bytes = self._resident()
        self._looks += 1
        self._least_bytes = min(self._least_bytes, now_bytes)
        self._last_bytes = min(self._last_bytes, now_bytes)
        has_grown = now_bytes >= self._last_bytes + GROWTH_BYTES
        is_large = now_bytes >= self._least_bytes + GROWTH_BYTES
        if not (has_grown or (is_large and self._looks >= LOOKS_WHILE_LARGE)):
            return False
        gc.collect()  # what was not looked at yet, see garbage.py: garbage may hold much
        self._trim()
        self._last_bytes, self._looks = self._resident(), 0
        return True


async def give_back_forever() -> None:
    """Return free pages, and look for garbage, now and then, until cancelled."""
    trim = trimmer()
    trimming = None if trim is None or not _STATM.exists() else Trimming(trim)
    thawing = Thawing()
    while True:
        used_s = time.process_time()
        for _ in range(max(int(LOOK_S / YOUNG_S), 1)):
            await asyncio.sleep(min(LOOK_S, YOUNG_S))
            look_at_young()
        is_idle = time.process_time() - used_s < IDLE_SHARE * LOOK_S
        await asyncio.to_thread(thawing.look, is_idle=is_idle)
        if trimming is not None:
            await asyncio.to_thread(trimming.look)

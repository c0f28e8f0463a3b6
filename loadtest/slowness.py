"""How slow this machine is at this moment, beside the one that limits of CPU time are meant for.

Where cores are slower, or are shared with other tests (caches, hyper-threads, a host's other guests), the same work
takes more CPU time. A fixed computation in the same process, right before and after a case, is slower by about as much.
"""

from __future__ import annotations

import struct
import time

REFERENCE_MS = 5.0
"""CPU time of `reference` on the machine that the limits are meant for, when it does nothing else."""

_FIELDS = struct.Struct(">qii")
_ROUNDS = 9_000


def slowness() -> float:
    """CPU time of `reference` now, in this thread, as a multiple of REFERENCE_MS; at least 1: a limit never becomes
    tighter than it is said to be."""
    began_s = time.thread_time()
    reference()
    return max(1.0, 1000 * (time.thread_time() - began_s) / REFERENCE_MS)


def reference() -> int:
    """What turns are mostly made of: fields out of bytes, small objects, text, a dictionary. A fixed amount of it."""
    packed = b"".join(_FIELDS.pack(number << 20, number, -number) for number in range(_ROUNDS))
    seen: dict[tuple[str, int], int] = {}
    for offset, low, high in _FIELDS.iter_unpack(packed):
        seen[f"topic-{low & 63}", low] = offset + high
    return sum(seen.values())

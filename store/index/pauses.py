"""A thread that works for long lets the event loop go on meanwhile.

One thread at a time has the interpreter. The loop gives it up whenever it looks at its sockets, and then waits for a
thread that has it until that waits for something, or 5 ms are over: for each socket anew. So a thread that writes
thousands of rows in a row stops the loop for as long as it takes, however small the pieces are. With a pause after each
piece the loop has as many turns as it needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

PAUSE_SHARE = 8
"""A pause is so many times as long as what was done before it, at most: the loop has the rest. A loop that is busy for
85 % of the time falls behind when the thread has more than 15 %, and is late for as long as the thread works. It was a
third."""


def with_pauses(pieces: Iterable[T], pauses_s: float, piece_count: int) -> Iterator[T]:
    """The pieces of some work, about `piece_count` of them, with a pause before each but the first, until all pauses
    have taken `pauses_s`: where that is short, each pause is, and no stretch of the work has none. What is done between
    them is measured by the thread's own CPU time: while it waits for the interpreter, others have it."""
    began_s = time.thread_time()
    for number, piece in enumerate(pieces):
        if number and pauses_s > 0:
            paused_s = time.monotonic()
            own_s = pauses_s / max(piece_count - number, 1)
            time.sleep(min(PAUSE_SHARE * (time.thread_time() - began_s), own_s))
            pauses_s -= time.monotonic() - paused_s  # on a busy machine, many times as long as it was to be
            began_s = time.thread_time()
        yield piece

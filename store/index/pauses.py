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

PAUSE_SHARE = 2
"""A pause is so many times as long as what was done before it."""


def with_pauses(pieces: Iterable[T], pauses_s: float) -> Iterator[T]:
    """The pieces of some work, with a pause before each but the first, until all pauses have taken `pauses_s`. What is
    done between them is measured by the thread's own CPU time: while it waits for the interpreter, others have it."""
    began_s = time.thread_time()
    for number, piece in enumerate(pieces):
        if number and pauses_s > 0:
            paused_s = time.monotonic()
            time.sleep(min(PAUSE_SHARE * (time.thread_time() - began_s), pauses_s))
            pauses_s -= time.monotonic() - paused_s  # on a busy machine, many times as long as it was to be
            began_s = time.thread_time()
        yield piece

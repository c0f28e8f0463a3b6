"""How much is read in one turn of the event loop.

A turn reads every socket that has something until it has no more, up to megabytes each, and a hundred that send large
requests would be one long turn for all others. So what a turn reads is bounded over all connections; one that comes
beyond that rests, and a few of those read on in each turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from store.limits import MiB

READ_PER_TURN = 2 * MiB
"""Beyond it, each connection is read once: one piece, of 256 KiB at most."""

WOKEN_PER_TURN = 8
"""Of those that rest."""


class ReadTurns:
    """The bound over the connections of one event loop. `soon` has a function called in its next turn."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._bytes = 0  # in this turn
        self._resting: deque[Callable[[], None]] = deque()
        self._is_awaited = False  # the next turn

    def has_room_after(self, size: int) -> bool:
        """So many bytes were read; whether the connection may go on in this turn."""
        self._bytes += size
        self._await()
        return self._bytes <= READ_PER_TURN

    def rest(self, read_on: Callable[[], None]) -> None:
        """Have a connection read on in a later turn, behind those that rest already."""
        self._resting.append(read_on)
        self._await()

    def _await(self) -> None:
        if not self._is_awaited:
            self._is_awaited = True
            self._soon(self._next)

    def _next(self) -> None:
        self._bytes = 0
        self._is_awaited = False
        for _ in range(min(WOKEN_PER_TURN, len(self._resting))):
            self._resting.popleft()()
        if self._resting:
            self._await()

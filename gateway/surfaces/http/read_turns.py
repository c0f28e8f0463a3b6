"""How much is read in one turn of the event loop.

A turn reads every socket that has something until it has no more, up to megabytes each, and a hundred that send large
requests would be one long turn for all others. So what a turn reads is bounded over all connections. Beyond that all
that have read large pieces lately rest, those among them that the turn would have come to as well, and a few of them
read on in each turn. A connection that has been quiet until then is read once, a piece of 256 KiB at most, of a large
request by Kafka's protocol 512: it keeps the piece, and looks at it when its turn has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from store.limits import KiB, MiB

READ_PER_TURN = 2 * MiB
LARGE_READ_BYTES = 64 * KiB
"""Who reads so much at once rests with the others when it is too much. Small pieces count, where they are told of."""

WOKEN_PER_TURN = 8
"""Of those that rest."""


class Reader(Protocol):
    """A connection that has read a large piece."""

    def rest(self) -> None:
        """Read no more until `read_on`, whatever asks for it. It may rest already, or be over."""
        ...

    def read_on(self) -> None:
        """Its turn has come, also for what it was told to rest with."""
        ...


class ReadTurns:
    """The bound over the connections of one event loop. `soon` has a function called in its next turn."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._bytes = 0  # in this turn
        self._reading: dict[Reader, None] = {}  # in this turn
        self._lately: dict[Reader, None] = {}  # in the one before
        self._resting: deque[Reader] = deque()
        self._is_awaited = False  # the next turn

    def took(self, reader: Reader, size: int) -> None:
        """A connection has read so many bytes."""
        self._bytes += size
        is_too_much = self._bytes > READ_PER_TURN
        if is_too_much or size >= LARGE_READ_BYTES:
            self._reading[reader] = None
        if is_too_much:
            for one in {**self._lately, **self._reading}:
                one.rest()
                self._resting.append(one)
            self._reading.clear()
            self._lately.clear()
        if not self._is_awaited:
            self._is_awaited = True
            self._soon(self._next)

    def _next(self) -> None:
        self._bytes = 0
        self._lately, self._reading = self._reading, {}
        for _ in range(min(WOKEN_PER_TURN, len(self._resting))):
            self._resting.popleft().read_on()
        self._is_awaited = bool(self._resting or self._lately)
        if self._is_awaited:
            self._soon(self._next)

"""How much is read in one turn of the event loop.

A turn reads every socket that has something, up to 256 KiB of each, and a hundred that send large requests would be one
long turn for all others: a megabyte of memory that was never touched takes a millisecond, and with TLS it is copied and
decrypted too. So what a turn reads is bounded over all connections:

    READ_PER_TURN   beyond it all that have read large pieces lately rest, those among them that the turn would have
                    come to as well, and WOKEN_PER_TURN of them read on in each turn
    HELD_FROM       beyond it all others that may have a large piece waiting are held for the rest of the turn, and
                    LET_GO_PER_TURN of them read on in each turn

Who may have a large piece waiting says so (`expects`): a connection that begins, one whose request is a large one, one
that has sent a large piece before. Of those that have had small requests answered, and nothing else, the last ones are
held as well; one of the others that sends a large request is read once: 256 KiB at most, of a large request by Kafka's
protocol 512. It keeps them, and looks at them when its turn has come.

A socket that is told to rest is passed over in the same turn: libuv asks for each whether it is to be read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Protocol

from store.limits import KiB, MiB

READ_PER_TURN = 2 * MiB
HELD_FROM = 2 * READ_PER_TURN
LARGE_READ_BYTES = 64 * KiB
"""Who reads so much at once rests with the others when it is too much. Small pieces count, where they are told of."""

WOKEN_PER_TURN = 8
"""Of those that rest."""

LET_GO_PER_TURN = 64
"""Of those that are held: most of them have nothing to read. When they have, the others are held again."""

ANSWERED_MAX = 256
"""Connections that are held though their requests were small so far, and have been answered: those that began last."""

HELD_MAX = 4_096
"""Connections that are looked at to hold them, once a turn: some milliseconds. Those that have begun or read last."""


class Reader(Protocol):
    """A connection that reads."""

    def rest(self) -> bool:
        """Read no more until `read_on`, whatever asks for it. False when it rests already, or is over."""
        ...

    def read_on(self) -> None:
        """Its turn has come, also for what it was told to rest with."""
        ...

    @property
    def may_send_much(self) -> bool:
        """Whether it has sent nothing yet, or is in the middle of a request."""
        ...


class ReadTurns:
    """The bound over the connections of one event loop. `soon` has a function called in its next turn."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._bytes = 0  # in this turn
        self._reading: dict[Reader, None] = {}  # in this turn
        self._lately: dict[Reader, None] = {}  # in the one before
        self._resting: deque[Reader] = deque()
        self._expected: dict[Reader, bool] = {}  # what may have a large piece waiting; True: it has sent one before
        self._held: deque[Reader] = deque()
        self._is_holding = False  # all that are expected, in this turn
        self._is_awaited = False  # the next turn

    def expects(self, reader: Reader) -> None:
        """A connection may have a large piece waiting, from now on."""
        self._expected.setdefault(reader, False)

    def ended(self, reader: Reader) -> None:
        """A connection has ended."""
        self._expected.pop(reader, None)

    def took(self, reader: Reader, size: int) -> None:
        """A connection has read so many bytes."""
        self._bytes += size
        is_too_much = self._bytes > READ_PER_TURN
        if size >= LARGE_READ_BYTES:
            self._expected.pop(reader, None)
            self._expected[reader] = True  # behind those that have waited longer
        if is_too_much or size >= LARGE_READ_BYTES:
            self._reading[reader] = None
        if is_too_much:
            self._resting += [one for one in {**self._lately, **self._reading} if one.rest()]
            self._reading.clear()
            self._lately.clear()
        if self._bytes > HELD_FROM and not self._is_holding:
            self._is_holding = True
            self._hold()
        if not self._is_awaited:
            self._is_awaited = True
            self._soon(self._next)

    def _hold(self) -> None:
        """Have all rest that may have a large piece waiting."""
        held: list[Reader] = []
        answered_count = 0
        for one, is_large in list(islice(reversed(self._expected.items()), HELD_MAX)):
            is_answered = not (is_large or one.may_send_much)
            answered_count += is_answered
            if is_answered and answered_count > ANSWERED_MAX:
                del self._expected[one]  # until it says so again
            elif one.rest():
                held.append(one)
        self._held += reversed(held)

    def _next(self) -> None:
        self._bytes = 0
        self._is_holding = False
        self._lately, self._reading = self._reading, {}
        for waiting, count in ((self._resting, WOKEN_PER_TURN), (self._held, LET_GO_PER_TURN)):
            for _ in range(min(count, len(waiting))):
                waiting.popleft().read_on()
        self._is_awaited = bool(self._resting or self._held or self._lately)
        if self._is_awaited:
            self._soon(self._next)


def stop_reading(transport: asyncio.Transport) -> None:
    """At once, also where it has TLS: that goes on reading for a transport that is paused, 256 KiB at a time, until it
    has more than its limit. Nothing happens where the connection is over."""
    transport.pause_reading()
    _limit(transport, 0)


def let_read(transport: asyncio.Transport) -> None:
    """Take back what `stop_reading` has done to TLS. The transport is paused as it was."""
    _limit(transport, None)


def _limit(transport: asyncio.Transport, high: int | None) -> None:
    limit = getattr(transport, "set_read_buffer_limits", None)
    if limit is not None:
        with suppress(AttributeError):  # TLS has let its socket go, and the protocol will be told
            limit(high=high)

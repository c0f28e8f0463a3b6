"""When sockets ping their clients. All of them wait equally long, so one timer, that of the first, is enough: one each
takes 600 bytes of a socket.

Those that opened together, as after a restart of the server, come due together. They are let through a few at a time,
and as each waits anew from then on, they stay apart.
"""

from __future__ import annotations

import asyncio
from math import ceil
from typing import Protocol

BEATS_A_LOOK = 32
"""Sockets that ping at a time, some 100 us each with the answer."""

LOOK_PAUSE_S = 0.01
"""Between two looks at least. Of more sockets than go through in half of the interval so, more ping at a time."""


class Beats(Protocol):
    """A socket."""

    def beat(self) -> None:
        """The time has come. It may be added again."""


class Heartbeats:
    """The sockets of a server, in the order in which their time comes."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._due_s: dict[Beats, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, socket: Beats) -> None:
        """Have one beat after the interval, once."""
        loop = asyncio.get_running_loop()
        self._due_s[socket] = loop.time() + self._interval_s
        if self._timer is None:
            self._timer = loop.call_later(self._interval_s, self._look)

    def remove(self, socket: Beats) -> None:
        """It has ended."""
        self._due_s.pop(socket, None)
        if not self._due_s and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        count_max = max(BEATS_A_LOOK, ceil(len(self._due_s) * 2 * LOOK_PAUSE_S / self._interval_s))
        due: list[Beats] = []
        for socket, due_s in self._due_s.items():
            if due_s > now_s or len(due) == count_max:
                break
            due.append(socket)
        for socket in due:
            del self._due_s[socket]
        for socket in due:
            socket.beat()
        first_s = next(iter(self._due_s.values()), None)
        self._timer = None if first_s is None else loop.call_at(max(first_s, now_s + LOOK_PAUSE_S), self._look)

"""What waits to be written to one socket: a bounded queue of frames, and the one task that writes them, while there
are some: of a socket that waits, a task would take a kilobyte. A frame that the transport takes at once, with nothing
before it, is written by its sender.

Invariants
    O1  frames leave in the order they were put in
    O2  at most `bytes_max` bytes wait, or one frame: a sender of more waits until there is room
    O3  what waits counts among the memory of all answers; while much of that is taken, frames get smaller (`room`)

Whether the peer takes anything at all is watched by `write_watchdog.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from gateway.surfaces.http.answer_memory import Allowance
from gateway.surfaces.ws.protocol import CloseCode

Write = Callable[[bytes, bool], Awaitable[None]]
"""Hands one frame, text or binary (True), to the transport; returns when the transport has room again. Raises OSError
when it is gone."""

WriteAtOnce = Callable[[bytes, bool], bool]
"""The same, if the transport takes the frame without a wait. False, and nothing is written, where it does not, or is
gone."""


class Closing(Exception):
    """The connection is to end: with this code, or without a word when the client is gone (None)."""

    def __init__(self, code: CloseCode | None) -> None:
        super().__init__(code)
        self.code = code


class OutboxClosed(Exception):
    """The connection is gone; what is put now is dropped."""


class Outbox:
    """One socket's way out. Most sockets are idle: what waiting needs is made at the first wait."""

    def __init__(
        self,
        write: Write,
        *,
        bytes_max: int,
        write_at_once: WriteAtOnce,
        start: Callable[[Coroutine[object, object, None]], object],
        allowance: Allowance | None = None,
    ) -> None:
        """`start` runs what writes the queue, as a task, which may raise Closing. `allowance`: what the socket may
        hold; None where nothing is counted."""
        self._start = start
        self._write = write
        self._write_at_once = write_at_once
        self._allowance = allowance
        if allowance is not None:
            allowance.must_send = True  # what is in a frame is counted as sent
        self._bytes_max = bytes_max
        self._frames: list[tuple[bytes, bool, asyncio.Future[None] | None]] = []  # short: O2
        self._waiting_bytes = 0
        self._is_writing = False
        self._room: asyncio.Future[None] | None = None  # the sender that has the turn waits for room
        self._is_closed = False
        self._turn = asyncio.Lock()  # fair: those who wait for room are not overtaken (O1)

    def room(self, wanted_bytes: int) -> int:
        """How large the next frame should be at most (O3)."""
        return wanted_bytes if self._allowance is None else self._allowance.share(wanted_bytes)

    async def put(self, frame: bytes) -> None:
        """Queue a frame. Returns when it is queued, not when it is sent. Raises OutboxClosed."""
        if not self.send_at_once(frame):
            await self._enqueue(frame, False, None)

    async def send(self, frame: bytes, *, is_binary: bool = False) -> None:
        """Queue a frame and wait until the transport has taken it. Raises OutboxClosed."""
        if frame and self.send_at_once(frame, is_binary=is_binary):
            return
        taken = asyncio.get_running_loop().create_future()
        await self._enqueue(frame, is_binary, taken)
        await taken

    def send_at_once(self, frame: bytes, *, is_binary: bool = False) -> bool:
        """Whether the transport has taken a frame, with nothing before it. False: nothing has happened."""
        if self._frames or self._is_closed or self._turn.locked():
            return False
        return self._write_at_once(frame, is_binary)

    async def flush(self) -> None:
        """Wait until the transport has taken all that is queued now."""
        await self.send(b"")

    def close(self) -> None:
        """The connection has ended: a sender that waits, or comes, is told so."""
        self._is_closed = True
        _tell(self._room)
        for _, _, taken in self._frames:
            if taken is not None and not taken.done():
                taken.set_exception(OutboxClosed())
        self._frames.clear()
        self._wait_for(-self._waiting_bytes)

    async def _write_all(self) -> None:
        """Write what is queued. Raises Closing: nothing more is written then."""
        while self._frames:
            await self._write_first()
        self._is_writing = False

    async def _write_first(self) -> None:
        frame, is_binary, taken = self._frames[0]
        if frame:
            try:
                await self._write(frame, is_binary)
            except OSError:
                raise Closing(None) from None
        del self._frames[0]  # only now: a frame being written takes its room (O2)
        self._wait_for(-len(frame))
        _tell(self._room)
        _tell(taken)

    async def _enqueue(self, frame: bytes, is_binary: bool, taken: asyncio.Future[None] | None) -> None:
        async with self._turn:
            while self._frames and self._waiting_bytes + len(frame) > self._bytes_max:
                self._room = asyncio.get_running_loop().create_future()
                await self._room
            if self._is_closed:
                raise OutboxClosed
            self._frames.append((frame, is_binary, taken))
            self._wait_for(len(frame))
            if not self._is_writing:
                self._is_writing = True
                self._start(self._write_all())

    def _wait_for(self, change_bytes: int) -> None:
        self._waiting_bytes += change_bytes
        if self._allowance is not None:
            self._allowance.hold(self._waiting_bytes)


def _tell(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)

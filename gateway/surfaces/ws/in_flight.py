"""What a socket has asked for and is answered later: produces, and what settles records. Bounded in number and bytes.

They run side by side, so that many share one flush, and begin in the order they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

WORK_BYTES_MAX = 16 * 1024 * 1024
"""Of the frames of one socket's unanswered commands; a larger frame is taken when it is alone."""

WORK_COUNT_MAX = 1024
"""Unanswered commands of one socket: each is a task, or a future at least."""


class StartTask(Protocol):
    """`asyncio.TaskGroup.create_task` of the group whose failure ends the socket."""

    def __call__(self, work: Coroutine[object, object, None], /) -> asyncio.Task[None]:
        """Run it."""
        ...


class InFlight:
    """The unanswered commands of one socket."""

    def __init__(self, start_task: StartTask) -> None:
        self._start_task = start_task
        self._sizes: dict[asyncio.Future[Any], int] = {}
        self._bytes = 0
        self._one_done: asyncio.Event | None = None  # of those who wait

    def __len__(self) -> int:
        return len(self._sizes)

    async def start(self, work: Coroutine[object, object, None], size_bytes: int) -> None:
        """Begin; waits first while too much is unanswered."""
        try:
            await self.room(size_bytes)
        except BaseException:
            work.close()
            raise
        self.hold(self._start_task(work), size_bytes)

    async def room(self, size_bytes: int) -> None:
        """Wait while too much is unanswered."""
        while self._sizes and (len(self) >= WORK_COUNT_MAX or self._bytes + size_bytes > WORK_BYTES_MAX):
            await self._next_done()

    def hold(self, work: asyncio.Future[Any], size_bytes: int) -> None:
        """Count what has begun until it is done."""
        self._sizes[work] = size_bytes
        self._bytes += size_bytes
        work.add_done_callback(self._done)

    async def settled(self) -> None:
        """Wait until everything is answered."""
        while self._sizes:
            await self._next_done()

    async def _next_done(self) -> None:
        if self._one_done is None:
            self._one_done = asyncio.Event()
        await self._one_done.wait()

    def _done(self, work: asyncio.Future[Any]) -> None:
        self._bytes -= self._sizes.pop(work)
        if self._one_done is not None:
            self._one_done.set()
            self._one_done = None

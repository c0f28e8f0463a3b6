"""What a socket has asked for and is answered later: produces, and what settles records. Bounded in number and bytes.

They run side by side, so that many share one flush, and begin in the order they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

WORK_BYTES_MAX = 16 * 1024 * 1024
"""Of the frames of one socket's unanswered commands; a larger frame is taken when it is alone."""

WORK_COUNT_MAX = 1024
"""Unanswered commands of one socket: each is a task, a future, or a record in a batch."""


class StartTask(Protocol):
    """`asyncio.TaskGroup.create_task` of the group whose failure ends the socket."""

    def __call__(self, work: Coroutine[object, object, None], /) -> asyncio.Task[None]:
        """Run it."""
        ...


class InFlight:
    """The unanswered commands of one socket."""

    def __init__(self, start_task: StartTask) -> None:
        self._start_task = start_task
        self._count = 0
        self._bytes = 0
        self._one_done: asyncio.Event | None = None  # of those who wait

    def __len__(self) -> int:
        return self._count

    async def start(self, work: Coroutine[object, object, None], size_bytes: int) -> None:
        """Begin; waits first while too much is unanswered."""
        try:
            await self.room(size_bytes)
        except BaseException:
            work.close()
            raise
        self.start_now(work, size_bytes)

    def start_now(self, work: Coroutine[object, object, None], size_bytes: int) -> asyncio.Task[None] | None:
        """Begin at once. None, and nothing begins, when the socket ends."""
        try:
            task = self._start_task(work)
        except RuntimeError:
            work.close()
            return None
        self.hold(task, size_bytes)
        return task

    async def room(self, size_bytes: int) -> None:
        """Wait while too much is unanswered."""
        while self._count and (self._count >= WORK_COUNT_MAX or self._bytes + size_bytes > WORK_BYTES_MAX):
            await self._next_done()

    def hold(self, work: asyncio.Future[Any], size_bytes: int) -> None:
        """Count what has begun until it is done."""
        self.begun(size_bytes)
        work.add_done_callback(partial(self._done, size_bytes))

    def begun(self, size_bytes: int) -> None:
        """Count what has begun until `ended` is called for it."""
        self._count += 1
        self._bytes += size_bytes

    def ended(self, size_bytes: int) -> None:
        """It is answered."""
        self._count -= 1
        self._bytes -= size_bytes
        if self._one_done is not None:
            self._one_done.set()
            self._one_done = None

    async def settled(self) -> None:
        """Wait until everything is answered."""
        while self._count:
            await self._next_done()

    async def _next_done(self) -> None:
        if self._one_done is None:
            self._one_done = asyncio.Event()
        await self._one_done.wait()

    def _done(self, size_bytes: int, _: asyncio.Future[Any]) -> None:
        self.ended(size_bytes)

"""Waiting for what must not be left half done, although the waiting task may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class _Unended(Awaitable[T]):
    """A future, for a task that waits for it and does not end it. To cancel a task is to cancel what it waits for;
    where that is refused, as here, it is told once what it waits for is done. `asyncio.shield` has the task told at
    once, and costs a second future, four callbacks and a turn of the event loop more."""

    __slots__ = ("_asyncio_future_blocking", "_future", "add_done_callback", "get_loop")

    def __init__(self, future: asyncio.Future[T]) -> None:
        self._future = future
        self._asyncio_future_blocking = False  # asyncio knows by it what a task can wait for; see `asyncio.isfuture`
        self.add_done_callback, self.get_loop = future.add_done_callback, future.get_loop

    def cancel(self, msg: object = None) -> bool:
        """Not this one."""
        return False

    def __await__(self) -> Generator[Any, None, T]:
        if not self._future.done():
            self._asyncio_future_blocking = True
            yield self
        return self._future.result()


async def uncancelled(future: asyncio.Future[T]) -> T:
    """The result of a future. A cancellation meanwhile is raised only when the future is done.

    Whoever holds a lock while events are being written must hold it until they are applied, or the next decision is
    made on a state that is about to change.
    """
    return await _Unended(future)


async def to_its_end(work: Coroutine[Any, Any, T], *, undo: Callable[[T], Awaitable[None]] | None = None) -> T:
    """Do something to its end, whichever task is cancelled meanwhile; then undo it, if need be."""
    task = asyncio.create_task(work)
    try:
        return await uncancelled(task)
    except asyncio.CancelledError:
        if undo is not None and not task.cancelled() and task.exception() is None:
            await undo(task.result())
        raise

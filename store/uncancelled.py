"""Waiting for what must not be left half done, although the waiting task may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def uncancelled(future: asyncio.Future[T]) -> T:
    """The result of a future. A cancellation meanwhile is raised only when the future is done.

    Whoever holds a lock while events are being written must hold it until they are applied, or the next decision is
    made on a state that is about to change.
    """
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if future.done():
            raise
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()  # seen
    raise asyncio.CancelledError


async def to_its_end(work: Coroutine[Any, Any, T], *, undo: Callable[[T], Awaitable[None]] | None = None) -> T:
    """Do something to its end, whichever task is cancelled meanwhile; then undo it, if need be."""
    task = asyncio.create_task(work)
    try:
        return await uncancelled(task)
    except asyncio.CancelledError:
        if undo is not None and not task.cancelled() and task.exception() is None:
            await undo(task.result())
        raise

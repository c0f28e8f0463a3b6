"""Tasks that belong to something that lives longer than one connection: started, watched, and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class Tasks:
    """Running tasks of one owner. One that fails is told to `on_failure`; nothing is dropped in silence."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run `work` until it ends or `close` is called."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def __len__(self) -> int:
        return len(self._running)

    async def close(self) -> None:
        """Cancel what runs and wait for it; the caller's own task is left alone."""
        running = self._running - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)


async def stop(task: asyncio.Task[None] | None) -> None:
    """Cancel one task and wait until it has ended."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait((task,))

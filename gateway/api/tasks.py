"""Tasks that belong to something that lives longer than one connection: started, watched, and ended together.

start    runs until it ends or its owner does: then it is cancelled        pushing, heartbeats
finish   what must not be left half done: its owner waits for it           commits, giving leases back, leaving
hold     the same of what needs no task: a future                          acks
whole    `finish`, and wait for it; who waits may be cancelled, the work is not
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

FINISH_TIMEOUT_S = 10.0
"""How long `close` waits for what is to be finished."""

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that a cancellation ends without leftovers: for groups that come and go with connections.

    Before Python 3.13 the frame that leaves a TaskGroup keeps the error that it raises, and the error's traceback keeps
    that frame and those around it: each stream that ended kept all it had, until the collector looked at it.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except asyncio.CancelledError as error:
        error.__traceback__ = None
        raise


class Tasks:
    """Running tasks of one owner. One that fails is told to `on_failure`; nothing is dropped in silence."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Future[Any], bool] = {}  # the value: is to be finished

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run `work` until it ends or `close` is called."""
        return self._add(work, is_to_finish=False)

    def finish(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run `work` to its end; `close` waits for it."""
        return self._add(work, is_to_finish=True)

    def hold(self, work: asyncio.Future[Any]) -> None:
        """`close` waits for what goes on by itself, and whose failure others hear of."""
        self._tasks[work] = True
        work.add_done_callback(self._tasks.pop)

    async def whole(
        self, work: Awaitable[T], *, unheard: Callable[[], Coroutine[object, object, None]] | None = None
    ) -> T:
        """The result of `work`, which runs to its end even if the caller is cancelled meanwhile.

        `unheard` takes back what was done then. Raises what `work` raises.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.finish(self._answer(work, result, unheard))
        try:
            return await result
        except asyncio.CancelledError:
            # It may have been answered in the very turn in which the caller was cancelled.
            if unheard is not None and not result.cancelled() and result.exception() is None:
                self.finish(unheard())
            raise

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Cancel what was started, wait for what is to be finished; the caller's own task is left alone."""
        if running := self._others(is_to_finish=False):
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        deadline_s = asyncio.get_running_loop().time() + FINISH_TIMEOUT_S
        while finishing := self._others(is_to_finish=True):
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                for task in finishing:
                    task.cancel()
            await asyncio.wait(finishing, timeout=max(left_s, 1.0))

    def _others(self, *, is_to_finish: bool) -> list[asyncio.Future[Any]]:
        own = asyncio.current_task()
        return [task for task, finishes in self._tasks.items() if finishes is is_to_finish and task is not own]

    def _add(self, work: Coroutine[object, object, None], *, is_to_finish: bool) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = is_to_finish
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            with suppress(asyncio.CancelledError):
                task.exception()  # takes the error out of the task: its traceback leads to all that the task had
        elif (error := task.exception()) is not None:
            self._on_failure(error)

    async def _answer(
        self,
        work: Awaitable[T],
        result: asyncio.Future[T],
        unheard: Callable[[], Coroutine[object, object, None]] | None,
    ) -> None:
        try:
            answer = await work
        except Exception as error:
            if result.done():  # the caller was cancelled
                raise
            result.set_exception(error)
        else:
            if not result.done():
                result.set_result(answer)
            elif unheard is not None:
                await unheard()
        finally:
            result.cancel()  # cancelled ourselves


class when_set:
    """Within the block, call something as soon as the event is set. Each read that waits has one: a generator and what
    contextlib makes of it would be three times as many calls."""

    __slots__ = ("_call", "_event", "_waiting")

    def __init__(self, event: asyncio.Event, call: Callable[[], object]) -> None:
        self._event = event
        self._call: Callable[[], object] | None = call

    def __enter__(self) -> None:
        # Goes as far as the future that it waits for: a task for it would be two turns of the loop.
        self._waiting = self._event.wait()
        try:
            self._waiting.send(None).add_done_callback(self._tell)
        except StopIteration:
            asyncio.get_running_loop().call_soon(self._tell)

    def __exit__(self, *_: object) -> None:
        self._call = None
        self._waiting.close()

    def _tell(self, _: object = None) -> None:
        if self._call is not None:
            self._call()


async def stop(task: asyncio.Task[None] | None) -> None:
    """Cancel one task and wait until it has ended."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait((task,))

"""One call at a time for many callers: what is asked while a call runs goes into the next one, together.

A commit costs a flush whatever is in it. Clients that ack message by message would wait for one each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from gateway.api.tasks import Tasks

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Merged(Generic[Item, Answer]):
    """Calls `work` with the items of all who ask, in the order they asked; it answers one by one, in that order.

    What is asked is done, whether or not the client still waits for the answer.
    """

    def __init__(self, work: Callable[[list[Item]], Awaitable[Sequence[Answer]]], tasks: Tasks) -> None:
        self._work = work
        self._tasks = tasks
        self._items: list[Item] = []
        self._askers: list[tuple[int, asyncio.Future[Sequence[Answer]]]] = []
        self._running: asyncio.Task[None] | None = None

    def ask(self, items: Sequence[Item]) -> asyncio.Future[Sequence[Answer]]:
        """The answers to these items, asked for from here on. Raises what `work` raises."""
        asked: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self._items.extend(items)
        self._askers.append((len(items), asked))
        if self._running is None:
            self._running = self._tasks.finish(self._run())
        return asked

    async def settled(self) -> None:
        """Wait until everything that was asked so far is done."""
        while self._running is not None:
            await asyncio.wait((self._running,))

    async def _run(self) -> None:
        askers: list[tuple[int, asyncio.Future[Sequence[Answer]]]] = []
        try:
            while self._askers:
                items, askers = self._items, self._askers
                self._items, self._askers = [], []
                try:
                    answers = await self._work(items)
                except Exception as error:
                    for _, asked in askers:
                        if not asked.done():
                            asked.set_exception(error)
                    continue
                at = 0
                for count, asked in askers:
                    if not asked.done():
                        asked.set_result(answers[at : at + count])
                    at += count
        finally:
            self._running = None
            for _, asked in askers + self._askers:
                asked.cancel()  # cancelled in the middle; of one that is done: no effect
            self._items, self._askers = [], []

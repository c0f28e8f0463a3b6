"""What comes next, for readers who read on: asked of Kafka while they take what they have, so that neither waits for
the other. Who begins where another read has ended reads on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.brokers.kafka.port import Fetched
from store.limits import MiB
from store.types import QueueKey

AHEAD_MAX = 16
"""Answers that are asked for or there, and not taken yet."""

AHEAD_BYTES_MAX = 1 * MiB
"""Of an answer, as it is asked for (one batch may be larger). Who asks for more waits for it."""

KEPT_S = 1.0
"""How long an answer waits for its reader."""

READERS_MAX = 1_024
"""Ends of reads that are remembered."""


At = tuple[QueueKey, int]
"""A queue, and the offset from which on something is fetched. How much of it does not count: what comes is whole
batches from there on, more or fewer of them."""

Fetch = Callable[[], Coroutine[Any, Any, Fetched]]


class ReadAhead:
    """See the module. What lies before the end of a queue does not change, so an answer does not become stale."""

    def __init__(self) -> None:
        self._ends: OrderedDict[At, None] = OrderedDict()  # of reads, the latest one last
        self._under_way: dict[At, tuple[asyncio.Task[Fetched], asyncio.TimerHandle]] = {}

    async def fetched(self, at: At, fetch: Fetch) -> Fetched:
        """What was asked for ahead, or what `fetch` has, which may raise."""
        if (found := self._under_way.pop(at, None)) is not None:
            task, timer = found
            timer.cancel()
            try:
                return await task
            except Exception:
                pass  # it is asked once more, and who reads hears of that
        return await fetch()

    def has_read(self, at: At, following: At, max_bytes: int, fetch: Fetch | None) -> None:
        """A read of so many bytes has ended where another one would begin; `fetch` has what is there, if anything."""
        if reads_on := at in self._ends:
            del self._ends[at]
        self._ends[following] = None
        if len(self._ends) > READERS_MAX:
            self._ends.popitem(last=False)
        if (
            reads_on
            and fetch is not None
            and max_bytes <= AHEAD_BYTES_MAX
            and len(self._under_way) < AHEAD_MAX
            and following not in self._under_way
        ):
            task = asyncio.create_task(fetch(), name=f"read ahead of {following}")
            task.add_done_callback(_heard)
            timer = asyncio.get_running_loop().call_later(KEPT_S, self._forget, following)
            self._under_way[following] = task, timer

    def _forget(self, at: At) -> None:
        task, timer = self._under_way.pop(at)
        timer.cancel()
        task.cancel()

    def close(self) -> None:
        """Ask for nothing any more."""
        for at in list(self._under_way):
            self._forget(at)


def _heard(task: asyncio.Task[Fetched]) -> None:
    """Nobody else may ask how it ended."""
    if not task.cancelled():
        task.exception()

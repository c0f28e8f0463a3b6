"""What comes next, for readers who read on: asked of Kafka while they take what they have, so that neither waits for
the other. Who begins where another read has ended reads on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

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


class Want(NamedTuple):
    """A fetch: of a queue, from an offset on, of so many bytes."""

    queue: QueueKey
    offset: int
    max_bytes: int


Fetch = Callable[[], Coroutine[Any, Any, Fetched]]


class ReadAhead:
    """See the module. What lies before the end of a queue does not change, so an answer does not become stale."""

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[QueueKey, int], None] = OrderedDict()  # of reads, the latest one last
        self._under_way: dict[Want, tuple[asyncio.Task[Fetched], asyncio.TimerHandle]] = {}

    async def fetched(self, want: Want, fetch: Fetch) -> Fetched:
        """What was asked for ahead, or what `fetch` has, which may raise."""
        if (found := self._under_way.pop(want, None)) is not None:
            task, timer = found
            timer.cancel()
            try:
                return await task
            except Exception:
                pass  # it is asked once more, and who reads hears of that
        return await fetch()

    def has_read(self, want: Want, next_offset: int, fetch: Fetch | None) -> None:
        """A read has ended before `next_offset`; `fetch`: what comes next is there, and had by it."""
        if reads_on := (want.queue, want.offset) in self._ends:
            del self._ends[want.queue, want.offset]
        self._ends[want.queue, next_offset] = None
        if len(self._ends) > READERS_MAX:
            self._ends.popitem(last=False)
        following = want._replace(offset=next_offset)
        if (
            reads_on
            and fetch is not None
            and want.max_bytes <= AHEAD_BYTES_MAX
            and len(self._under_way) < AHEAD_MAX
            and following not in self._under_way
        ):
            task = asyncio.create_task(fetch(), name=f"read ahead of queue {want.queue}")
            task.add_done_callback(_heard)
            timer = asyncio.get_running_loop().call_later(KEPT_S, self._forget, following)
            self._under_way[following] = task, timer

    def _forget(self, want: Want) -> None:
        task, timer = self._under_way.pop(want)
        timer.cancel()
        task.cancel()

    def close(self) -> None:
        """Ask for nothing any more."""
        for want in list(self._under_way):
            self._forget(want)


def _heard(task: asyncio.Task[Fetched]) -> None:
    """Nobody else may ask how it ended."""
    if not task.cancelled():
        task.exception()

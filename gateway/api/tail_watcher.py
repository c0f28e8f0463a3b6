"""Waiting at the ends of partitions: one read that waits a partition, however many sockets follow it.

Who has read everything asks to be woken once when there is more. The first to ask starts a task that waits at that end;
it stays as long as somebody asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.api.consumer import Fetched
from gateway.api.tasks import Tasks
from store.errors import StoreError
from store.types import ReadStatus

WAIT_MS = 30_000
"""How long one wait at a partition's end lasts; it is renewed. Bounds what a lost wake-up could cost."""

Wake = Callable[[], None]


class Fetch(Protocol):
    """`gateway.api.consumer.Consumer.fetch`."""

    async def __call__(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        wait_ms: int = 0,
        tag_hashes: frozenset[int] | None = None,
    ) -> Fetched: ...


class TailWatcher:
    """The ends of all partitions that somebody waits at."""

    def __init__(self, fetch: Fetch, tasks: Tasks) -> None:
        self._fetch = fetch
        self._tasks = tasks
        self._by_partition: dict[tuple[str, int], _Tail] = {}

    def watch(self, topic: str, partition: int, end: int, wake: Wake) -> Callable[[], None]:
        """Call `wake` once, when the end is not `end` any more, or cannot be told. The answer calls that off."""
        key = topic, partition
        tail = self._by_partition.get(key)
        if tail is None:
            tail = self._by_partition[key] = _Tail(end)
            self._tasks.start(self._follow(key, tail))
        token = object()
        if tail.end != end:
            asyncio.get_running_loop().call_soon(wake)  # not at once: the caller is in the middle of something
        else:
            tail.waiting[token] = wake
        return lambda: tail.call_off(token)

    def is_end(self, topic: str, partition: int, offset: int) -> bool:
        """Whether this is known to be the end without a read; a wrong no costs a read."""
        tail = self._by_partition.get((topic, partition))
        return tail is not None and tail.end == offset

    async def _follow(self, key: tuple[str, int], tail: _Tail) -> None:
        topic, partition = key
        try:
            while tail.is_wanted():
                # The answer is only a wake-up: everybody reads for himself, in his turn and as far as his credit goes.
                fetched = await self._fetch(topic, partition, tail.end, max_bytes=1, wait_ms=WAIT_MS)
                if fetched.status not in (ReadStatus.AT_END, ReadStatus.EMPTY):
                    tail.end = fetched.max_offset
                    tail.wake_all()
                await asyncio.sleep(0)  # a server that shuts down answers waits at once: let it cancel us
        except StoreError:
            pass  # who is woken meets it again, and can say so
        finally:
            del self._by_partition[key]
            tail.wake_all()


class _Tail:
    """Who waits at one end, and where it is."""

    __slots__ = ("_was_idle", "end", "waiting")

    def __init__(self, end: int) -> None:
        self.end = end
        self.waiting: dict[object, Wake] = {}
        self._was_idle = False

    def is_wanted(self) -> bool:
        """False when nobody has waited for two turns: those who were woken have had time to come back."""
        was_idle, self._was_idle = self._was_idle, not self.waiting
        return bool(self.waiting) or not was_idle

    def call_off(self, token: object) -> None:
        self.waiting.pop(token, None)

    def wake_all(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for wake in waiting.values():
            wake()

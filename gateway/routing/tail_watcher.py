"""Waiting at the ends of partitions: one read that waits a partition, however many readers and consumers there are.

Who has read everything asks to be woken once when there is more. The first to ask starts a task that waits at that end;
it stays as long as somebody asks. This is below groups and api, because both wait: sockets, streams, long polls and
consumer instances through `gateway.api.read`, receives through the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.routing.base import Routes
from gateway.routing.reading import PartitionReader
from store.errors import StoreError
from store.types import ReadStatus

WAIT_MS = 30_000
"""How long one wait at a partition's end lasts; it is renewed. Bounds what a lost wake-up could cost."""

Wake = Callable[[], None]


class TailWatcher:
    """The ends of all partitions that somebody waits at."""

    def __init__(self, routes: Routes) -> None:
        self._reader = PartitionReader(routes)
        self._tails: dict[tuple[str, int], _Tail] = {}  # by topic and partition

    def watch(self, topic: str, partition: int, end: int, wake: Wake) -> Callable[[], None]:
        """Call `wake` once, when the partition's end is not `end` any more, or cannot be told: its topic is gone, or a
        broker fails. The answer calls that off."""
        tail = self._tails.get((topic, partition))
        if tail is None:
            tail = self._tails[topic, partition] = _Tail(end)
            tail.task = asyncio.create_task(self._follow(topic, partition, tail), name="mq-tail-watcher")
            tail.task.add_done_callback(lambda _: self._tails.pop((topic, partition)).wake_all())
        token = object()
        if tail.end != end:
            asyncio.get_running_loop().call_soon(wake)  # not at once: the caller is in the middle of something
        else:
            tail.waiting[token] = wake
        return lambda: tail.call_off(token)

    def is_end(self, topic: str, partition: int, offset: int) -> bool:
        """Whether this is known to be the end without a read; a wrong no costs a read."""
        tail = self._tails.get((topic, partition))
        return tail is not None and tail.end == offset

    async def close(self) -> None:
        """End all waits; who waits is woken."""
        tasks = [tail.task for tail in self._tails.values() if tail.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self, topic: str, partition: int, tail: _Tail) -> None:
        try:
            while tail.is_wanted():
                # The answer is only a wake-up: everybody reads for himself, in his turn and as far as his credit goes.
                read = await self._reader.read(topic, partition, tail.end, max_bytes=1, wait_ms=WAIT_MS)
                if read.max_offset != tail.end or read.status not in (ReadStatus.AT_END, ReadStatus.EMPTY):
                    tail.end = read.max_offset
                    tail.wake_all()
                await asyncio.sleep(0)  # a server that shuts down answers waits at once: let it cancel us
        except StoreError:
            pass  # who is woken meets it again, and can say so


class _Tail:
    """Who waits at one end, and where it is."""

    __slots__ = ("_was_idle", "end", "task", "waiting")

    def __init__(self, end: int) -> None:
        self.end = end
        self.task: asyncio.Task[None] | None = None
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

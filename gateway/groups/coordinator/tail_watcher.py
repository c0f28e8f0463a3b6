"""Waiting for new records in many partitions at once: one wait a partition, however many consumers want to know."""

from __future__ import annotations

import asyncio

from gateway.groups.coordinator.records import RecordReader
from store.errors import StoreError

WAIT_MS = 30_000
"""A wait ends after this time, and with it the waits of those who listen: they look, find nothing, and listen again."""

_Partition = tuple[str, int]


class TailWatcher:
    """Wakes those who listen to a partition when it gets a record, or goes away."""

    def __init__(self, records: RecordReader) -> None:
        self._records = records
        self._waiting: dict[_Partition, set[asyncio.Future[None]]] = {}
        self._tasks: dict[_Partition, asyncio.Task[None]] = {}

    def listen(self, topic: str, partition: int, end: int, waiter: asyncio.Future[None]) -> None:
        """Have a future done when the partition has more than `end` records before its end, perhaps earlier."""
        key = (topic, partition)
        self._waiting.setdefault(key, set()).add(waiter)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._watch(key, end), name="mq-groups-tail-watcher")

    def forget(self, topic: str, partition: int, waiter: asyncio.Future[None]) -> None:
        """Listen no more. The wait itself goes on: usually somebody listens again soon."""
        if (waiting := self._waiting.get((topic, partition))) is not None:
            waiting.discard(waiter)

    async def close(self) -> None:
        """End all waits."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch(self, key: _Partition, end: int) -> None:
        try:
            await self._records.wait_beyond(*key, end, WAIT_MS)
        except StoreError:
            pass  # whoever is woken meets it too
        finally:
            del self._tasks[key]
            for waiter in self._waiting.pop(key, ()):
                if not waiter.done():
                    waiter.set_result(None)

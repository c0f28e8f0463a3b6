"""Waiting for new records in many partitions at once: one wait a partition, however many consumers want to know."""

from __future__ import annotations

import asyncio

from gateway.brokers.base import Broker
from store.errors import StoreError
from store.types import QueueKey

WAIT_MS = 30_000
"""A wait ends after this time, and with it the waits of those who listen: they look, find nothing, and listen again."""

_Queue = tuple[str, QueueKey]


class TailWatcher:
    """Wakes those who listen to a queue when it gets a record, or goes away."""

    def __init__(self) -> None:
        self._waiting: dict[_Queue, set[asyncio.Future[None]]] = {}
        self._tasks: dict[_Queue, asyncio.Task[None]] = {}

    def listen(self, broker: Broker, queue: QueueKey, end: int, waiter: asyncio.Future[None]) -> None:
        """Have a future done when the queue has more than `end` records before its end, perhaps earlier."""
        key = (broker.name, queue)
        self._waiting.setdefault(key, set()).add(waiter)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._watch(broker, queue, end), name="mq-groups-tail-watcher")

    def forget(self, broker: Broker, queue: QueueKey, waiter: asyncio.Future[None]) -> None:
        """Listen no more. The wait itself goes on: usually somebody listens again soon."""
        if (waiting := self._waiting.get((broker.name, queue))) is not None:
            waiting.discard(waiter)

    async def close(self) -> None:
        """End all waits."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch(self, broker: Broker, queue: QueueKey, end: int) -> None:
        try:
            await broker.read(queue, end, max_bytes=1, wait_ms=WAIT_MS)
        except StoreError:
            pass  # whoever is woken meets it too
        finally:
            del self._tasks[broker.name, queue]
            for waiter in self._waiting.pop((broker.name, queue), ()):
                if not waiter.done():
                    waiter.set_result(None)

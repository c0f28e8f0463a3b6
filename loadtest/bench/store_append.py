"""The store alone, in this process, without HTTP: batches appended by several tasks, each waiting for its fdatasync."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loadtest.bench.request import RunFailed
from store import Store
from store.config import StoreConfig
from store.errors import StoreError
from store.types import Acks, Append, QueueKey

PARTITIONS = 4


class StoreLoop:
    """Appends one batch again and again."""

    def __init__(self, store: Store, topic_id: int) -> None:
        self._store = store
        self._topic_id = topic_id

    async def run(self, batch: bytes, record_count: int, *, in_flight: int, duration_s: float) -> float:
        """Records a second with `in_flight` appends under way all the time. Raises RunFailed when one is refused."""
        began_s = time.perf_counter()
        appended_count = 0

        async def append(number: int) -> None:
            nonlocal appended_count
            queue = QueueKey(self._topic_id, number % PARTITIONS)
            while time.perf_counter() - began_s < duration_s:
                one = Append(queue=queue, batch=batch, record_count=record_count, json_values=True)
                await self._store.append([one], acks=Acks.FLUSHED)
                appended_count += 1

        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(in_flight):
                    tasks.create_task(append(number))
        except ExceptionGroup as failures:
            refused, others = failures.split(StoreError)
            if refused is None or others is not None:
                raise
            raise RunFailed(f"an append failed: {refused.exceptions[0]}") from failures
        return appended_count * record_count / (time.perf_counter() - began_s)


@asynccontextmanager
async def store_loop(directory: Path) -> AsyncIterator[StoreLoop]:
    """A loop on a store of its own."""
    store = await Store.open(StoreConfig(root=directory))
    try:
        topic, _ = await store.create_topic("bench", PARTITIONS)
        yield StoreLoop(store, topic.topic_id)
    finally:
        await store.close()

"""The timer on the real store and its loops: accept, run, stop at any moment, restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from store import record_batch
from store.clock import SystemClock
from store.config import StoreConfig
from store.files import OsFiles
from store.limits import MiB
from store.record_batch import Record
from store.store import Store
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay, QueueKey
from tests.waiting import PATIENCE_S
from timer.config import TimerConfig
from timer.ports import OwnPartitions
from timer.service import TimerService

RECORDS = 400
ROUNDS = 4


async def reach(store: Store, queue: QueueKey, offset: int) -> None:
    """Wait until a queue has a record at `offset`."""
    async with asyncio.timeout(PATIENCE_S):
        while not await store.wait_for(queue, offset, 1000):
            pass


async def test_the_loops_deliver_every_record_once_across_restarts(tmp_path: Path) -> None:
    clock = SystemClock()
    config = StoreConfig(root=tmp_path, extent_bytes=1 * MiB, commit_log_file_bytes=16 * MiB)
    timer_config = TimerConfig(root=tmp_path / "timer", roll_window_ms=2000, checkpoint_interval_ms=20)
    outcomes = []
    for number in range(ROUNDS + 1):
        store = await Store.open(config, files=OsFiles(), clock=clock)
        timer = TimerService(timer_config, store, OsFiles(), clock, partitions=OwnPartitions(store))
        await timer.start()
        outcomes.append(timer.recovery_outcome)
        if number == 0:
            topic, _ = await store.create_topic("orders", 2)
        running = asyncio.create_task(timer.run())
        if number < ROUNDS:
            values = [b"%d" % (number * RECORDS + index) for index in range(RECORDS)]
            now_ms = clock.now_ms()
            delays = [Delay(now_ms + index, topic.topic_id, index % 2) for index in range(RECORDS)]
            batch = record_batch.encode([Record(b"k", value, now_ms) for value in values])
            await store.append(
                [Append(queue=TIMER_QUEUE, batch=batch, record_count=RECORDS, delays=delays)], acks=Acks.FLUSHED
            )
            await reach(store, QueueKey(topic.topic_id, 0), number * RECORDS // 4)
        else:
            for queue_id in (0, 1):
                queue = QueueKey(topic.topic_id, queue_id)
                await reach(store, queue, ROUNDS * RECORDS // 2 - 1)
            async with asyncio.timeout(PATIENCE_S):
                while timer.pending_count:  # noqa: ASYNC110 - it counts a moment after others can read
                    await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait([running])
        if number % 2:  # else as if killed: no clean checkpoint
            await timer.close()
        if number < ROUNDS:
            await store.close()
    assert outcomes == ["rebuilt", "crash", "clean", "crash", "clean"]
    delivered = []
    for queue_id in (0, 1):
        result = await store.read(QueueKey(topic.topic_id, queue_id), 0, max_bytes=16 * MiB)
        for entry in result.entries:
            for record in record_batch.decode(entry.batch):
                assert record.value is not None
                delivered.append(int(record.value))
                due = dict(record.headers)["mq-deliver-at"]
                assert due is not None
                assert entry.store_time_ms >= int(due)
    assert sorted(delivered) == list(range(ROUNDS * RECORDS))
    assert timer.pending_count == 0
    await store.close()

"""W5: when sends are refused for room, what the server has to note itself goes on (store.log.writer)."""

from __future__ import annotations

import pytest

from store.errors import DiskFull
from store.limits import KiB
from store.store import Store
from store.topics import OFFSETS_QUEUE
from store.types import Acks, QueueKey
from tests.simdisk import SimDisk
from tests.store.kit import append_of, open_store, with_settings


async def _filled(disk: SimDisk, floor_bytes: int) -> tuple[Store, QueueKey]:
    """A store that has no room for sends any more."""
    store = await open_store(disk, with_settings(disk_floor_bytes=floor_bytes))
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    while True:
        try:
            await store.append([append_of(queue, [b"x" * 1000])])
        except DiskFull:
            return store, queue


async def test_sends_leave_prepared_log_for_what_the_server_has_to_note() -> None:
    disk = SimDisk(capacity_bytes=500 * KiB)
    store, queue = await _filled(disk, 0)
    disk.capacity_bytes = disk.used_bytes()
    note = append_of(OFFSETS_QUEUE, [b"n" * (store.config.own_reserve_bytes - 1200)])
    await store.append([note])
    with pytest.raises(DiskFull):
        await store.append([append_of(queue, [b"x" * 1000])])
    with pytest.raises(DiskFull):
        await store.append([note])
    disk.capacity_bytes += 500 * KiB
    await store.append([note, append_of(queue, [b"x" * 1000])])
    await store.close()


async def test_the_server_notes_what_it_has_to_below_the_disk_floor() -> None:
    disk = SimDisk(capacity_bytes=500 * KiB)
    store, queue = await _filled(disk, 100 * KiB)
    for _ in range(10):
        await store.append([append_of(OFFSETS_QUEUE, [b"n" * 3000])])
        with pytest.raises(DiskFull):
            await store.append([append_of(queue, [b"x" * 1000])])
    await store.delete_topic("t")
    assert disk.free_bytes(store.config.root) < 100 * KiB
    await store.close()


async def test_a_queue_is_sealed_on_a_full_disk_where_what_was_stored_of_it_ends() -> None:
    """Sends that wait are refused when it is their turn, and the offsets that they had are no part of it."""
    disk = SimDisk(capacity_bytes=500 * KiB)
    store, queue = await _filled(disk, 100 * KiB)
    end = store.bounds(queue).max_offset
    waiting = [store.begin_append([append_of(queue, [b"x" * 1000])], acks=Acks.FLUSHED) for _ in range(3)]
    assert await store.seal_queue(queue) == end
    for each in waiting:
        with pytest.raises(DiskFull):
            await each
    assert store.bounds(queue).max_offset == end
    await store.close()

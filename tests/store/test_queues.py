"""store.store: further queues, sealed and expired ones, across restarts, snapshots and power cuts."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from store import Store
from store.config import StoreConfig
from store.errors import AlreadyStored, IllegalTopic, SealedQueue, UnknownQueue
from store.limits import PARTITIONS_MAX, MiB
from store.offline.verify import verify
from store.topics import META_QUEUE, TIMER_QUEUE
from store.types import Acks, Boundary, Bounds, Identity, QueueKey, ReadStatus
from tests.simdisk import SimDisk
from tests.store.kit import abandon, append_of, open_store, opened

FIRST = QueueKey(16, 0)
FURTHER = QueueKey(16, PARTITIONS_MAX)


async def made(disk: SimDisk) -> Store:
    store = await open_store(disk)
    await store.create_topic("orders", 2)
    await store.create_queue(FURTHER)
    return store


async def read_values(store: Store, queue: QueueKey, offset: int = 0) -> list[int]:
    read = await store.read(queue, offset, max_bytes=1 << 20)
    return [entry.base_offset for entry in read.entries]


async def check(store: Store) -> None:
    """What `test_what_was_said_of_queues_outlives` has done."""
    assert await store.seal_queue(FIRST) == 3
    assert store.bounds(FURTHER) == Bounds(1, 2)
    assert await read_values(store, FIRST) == [0, 1, 2]
    for queue in (FIRST, FURTHER):
        with pytest.raises(SealedQueue):
            await store.append([append_of(queue, [b"x"])], acks=Acks.FLUSHED)
    with pytest.raises(UnknownQueue):
        store.bounds(QueueKey(16, PARTITIONS_MAX + 1))


@pytest.mark.parametrize("ending", ["close", "kill", "power cut"])
@pytest.mark.parametrize("is_saved", [False, True])
async def test_what_was_said_of_queues_outlives(ending: str, is_saved: bool) -> None:
    disk = SimDisk()
    store = await made(disk)
    for number in range(3):
        await store.append([append_of(FIRST, [b"%d" % number])], acks=Acks.WRITTEN)
    await store.append([append_of(FURTHER, [b"0"]), append_of(FURTHER, [b"1"])], acks=Acks.WRITTEN)
    assert await store.seal_queue(FIRST) == 3
    assert await store.seal_queue(FURTHER) == 2
    await store.expire_queue(FURTHER, 1)
    await check(store)
    if is_saved:
        await store._save_checkpoint()
    if ending == "close":
        await store.close()
    else:
        await abandon()
        if ending == "kill":
            disk.kill()
        else:
            disk = disk.crash(random.Random(1))
    async with opened(disk) as store:
        await check(store)


async def test_what_was_accepted_before_the_seal_is_stored_and_nothing_behind_it(tmp_path: Path) -> None:
    store = await Store.open(StoreConfig(root=tmp_path, commit_log_file_bytes=1 * MiB, extent_bytes=1 * MiB))
    await store.create_topic("orders", 1)
    before = [store.begin_append([append_of(FIRST, [b"%d" % n])], acks=Acks.FLUSHED) for n in range(20)]
    sealing = [asyncio.ensure_future(store.seal_queue(FIRST)) for _ in range(2)]
    for _ in range(3):  # they have begun
        await asyncio.sleep(0)
    with pytest.raises(SealedQueue):
        await store.append([append_of(FIRST, [b"late"])])
    assert await asyncio.gather(*sealing) == [20, 20]
    assert [answers[0].base_offset for answers in await asyncio.gather(*before)] == list(range(20))
    assert store.bounds(FIRST) == Bounds(0, 20)
    await store.close()


async def test_sealing_takes_one_fdatasync_and_telling_what_is_remembered_then_none() -> None:
    disk = SimDisk()
    store = await made(disk)
    append = append_of(FIRST, [b"x"])
    append.identity = Identity(message_ids=[b"i" * 16])
    await store.append([append], acks=Acks.WRITTEN)
    syncs = store.stats.sync_count
    assert await store.seal_queue(FIRST) == 1
    assert store.stats.sync_count == syncs + 1
    assert (await store.export_ids(FIRST, into=FURTHER, shift=0, since=0)).content
    assert store.stats.sync_count == syncs + 1
    await abandon()
    async with opened(disk.crash(random.Random(1))) as after:
        assert await after.seal_queue(FIRST) == 1
        assert await read_values(after, FIRST) == [0], "durable with the seal"
        assert (await after.export_ids(FIRST, into=FURTHER, shift=0, since=0)).content


async def test_a_seal_whose_caller_is_cancelled_is_made_whole() -> None:
    async with opened(SimDisk()) as store:
        await store.create_topic("orders", 1)
        sealing = asyncio.ensure_future(store.seal_queue(FIRST))
        await asyncio.sleep(0)
        sealing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sealing
        assert await store.seal_queue(FIRST) == 0
        with pytest.raises(SealedQueue):
            await store.append([append_of(FIRST, [b"late"])])


async def test_a_repeat_of_what_a_sealed_queue_holds_is_answered_as_a_repeat() -> None:
    async with opened(SimDisk()) as store:
        await store.create_topic("orders", 1)
        append = append_of(FIRST, [b"x"])
        append.identity = Identity(message_ids=[b"i" * 16])
        await store.append([append])
        await store.seal_queue(FIRST)
        with pytest.raises(AlreadyStored) as known:
            await store.append([append])
        assert known.value.originals[0][0].offset == 0


async def test_what_was_given_up_is_neither_read_nor_found_and_a_new_configuration_does_not_bring_it_back() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("orders", 1)
        for number in range(4):
            await store.append([append_of(FIRST, [b"%d" % number])])
        await store.expire_queue(FIRST, 2)
        await store.expire_queue(FIRST, 1)  # there is no way back
        await store.configure_topic(topic.name, {"retention_ms": 1_000_000})
        assert (await store.read(FIRST, 1, max_bytes=1)).status is ReadStatus.TOO_SMALL
        assert await store.offset_for_time(FIRST, 0, Boundary.LOWER) == 2
        await store.expire_queue(FIRST, 99)
        assert store.bounds(FIRST) == Bounds(4, 4)
        [appended] = await store.append([append_of(FIRST, [b"4"])])
        assert appended.base_offset == 4


async def test_a_topic_that_grows_or_goes_and_its_queues() -> None:
    async with opened(SimDisk()) as store:
        await store.create_topic("orders", 1)
        await store.create_queue(FURTHER)
        await store.create_queue(FURTHER)
        await store.create_queue(FIRST)  # it is there
        await store.append([append_of(FURTHER, [b"x"])])
        await store.grow_topic("orders", PARTITIONS_MAX)
        assert store.bounds(FURTHER) == Bounds(0, 1)
        await store.delete_topic("orders")
        again, _ = await store.create_topic("orders", 1)
        for queue in (FURTHER, QueueKey(again.topic_id, PARTITIONS_MAX)):
            with pytest.raises(UnknownQueue):
                store.bounds(queue)


async def test_what_no_queue_may_be_or_become() -> None:
    async with opened(SimDisk()) as store:
        await store.create_topic("orders", 1)
        for queue in (QueueKey(16, 1), QueueKey(16, PARTITIONS_MAX - 1), QueueKey(META_QUEUE.topic_id, PARTITIONS_MAX)):
            with pytest.raises(IllegalTopic):
                await store.create_queue(queue)
        with pytest.raises(UnknownQueue):
            await store.create_queue(QueueKey(17, PARTITIONS_MAX))
        with pytest.raises(UnknownQueue):
            await store.seal_queue(FURTHER)
        with pytest.raises(IllegalTopic):
            await store.seal_queue(TIMER_QUEUE)
        await store.append([append_of(FIRST, [b"x"])])


async def test_the_tools_for_a_closed_directory_know_further_queues(tmp_path: Path) -> None:
    for has_snapshot in (True, False):
        root = tmp_path / str(has_snapshot)
        store = await Store.open(StoreConfig(root=root, commit_log_file_bytes=1 * MiB, extent_bytes=1 * MiB))
        await store.create_topic("orders", 1)
        await store.create_queue(FURTHER)
        await store.append([append_of(FURTHER, [b"x"])])
        await store.seal_queue(FURTHER)
        await store.close()
        if not has_snapshot:
            for name in ("meta.0", "meta.1"):
                (root / name).unlink(missing_ok=True)
        assert verify(root).findings == []

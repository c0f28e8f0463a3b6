"""Repeated sends against a whole store: what is answered, when, and what is refused. Crashes: tests/properties."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from store.errors import AlreadyStored, TooManyIds
from store.offline.repair import repair
from store.offline.verify import verify
from store.types import Acks, Append, Appended, Identity, ProducerSequence, QueueKey
from tests.clock import FakeClock
from tests.simdisk import SimDisk
from tests.store.kit import append_of, open_store, opened, values_of, with_settings
from tests.store.offline_kit import config_of, open_at


def with_ids(queue: QueueKey, *numbers: int) -> Append:
    plain = append_of(queue, [b"%d" % number for number in numbers])
    return Append(
        queue=queue,
        batch=plain.batch,
        record_count=len(numbers),
        identity=Identity(message_ids=[b"%016d" % number for number in numbers]),
    )


async def test_a_batch_with_a_known_record_is_not_stored_at_all() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 2)
        queue, other = QueueKey(topic.topic_id, 0), QueueKey(topic.topic_id, 1)
        await store.append([with_ids(queue, 1, 2)])
        with pytest.raises(AlreadyStored) as known:
            await store.append([append_of(other, [b"x"]), with_ids(other, 3, 2)])
        assert [{i: (o.queue, o.offset) for i, o in found.items()} for found in known.value.originals] == [
            {},
            {1: (queue, 1)},
        ]
        assert await values_of(store, other) == []


async def test_a_repeat_is_answered_once_the_original_is_as_durable_as_it_asks() -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        await store.append([with_ids(queue, 1)], acks=Acks.WRITTEN)
        syncs = store.stats.sync_count
        with pytest.raises(AlreadyStored):
            await store.append([with_ids(queue, 1)], acks=Acks.WRITTEN)
        assert store.stats.sync_count == syncs
        with pytest.raises(AlreadyStored):
            await store.append([with_ids(queue, 1)], acks=Acks.FLUSHED)
        assert store.stats.sync_count == syncs + 1


async def test_of_equal_appends_at_once_one_is_stored_even_when_its_caller_gives_up() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        calls = [asyncio.ensure_future(store.append([with_ids(queue, 1)])) for _ in range(3)]
        await asyncio.sleep(0)
        calls[0].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert [type(answer) for answer in answers[1:]] == [AlreadyStored, AlreadyStored]
        assert await values_of(store, queue) == [b"1"]


async def test_the_numbers_of_one_producer_may_be_under_way_together() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)

        def numbered(sequence: int) -> Append:
            plain = append_of(queue, [b"%d" % sequence])
            identity = Identity(producer=ProducerSequence(b"p" * 16, sequence))
            return Append(queue=queue, batch=plain.batch, record_count=1, identity=identity)

        calls = [store.append([numbered(sequence)]) for sequence in (1, 2, 2, 3)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [list, list, AlreadyStored, list]
        assert await values_of(store, queue) == [b"1", b"2", b"3"]


async def test_the_window_holds_dedup_ids_max_and_one_more_is_refused_also_after_a_restart() -> None:
    clock, disk = FakeClock(), SimDisk()
    config = with_settings(dedup_ids_max=3, dedup_window_ms=1000, retention_ms=None)
    store = await open_store(disk, config, clock)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    answers: list[Appended] = await store.append([with_ids(queue, 1, 2, 3)])
    assert answers
    for _ in range(2):
        with pytest.raises(TooManyIds):
            await store.append([with_ids(queue, 4)])
        with pytest.raises(AlreadyStored):
            await store.append([with_ids(queue, 3)])
        await store.append([append_of(queue, [b"plain"])])
        assert store.remembered == (3, 0)
        await store.close()
        store = await open_store(disk, config, clock)
    clock.step(1001)
    await store.append([with_ids(queue, 1, 4, 5)])
    assert await values_of(store, queue) == [b"1", b"2", b"3", b"plain", b"plain", b"1", b"4", b"5"]
    await store.close()


async def test_a_producer_is_known_after_a_clean_restart() -> None:
    disk = SimDisk()
    config = with_settings(retention_ms=None)
    store = await open_store(disk, config)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)

    def numbered(sequence: int) -> Append:
        plain = append_of(queue, [b"x"])
        identity = Identity(producer=ProducerSequence(b"p" * 16, sequence))
        return Append(queue=queue, batch=plain.batch, record_count=1, identity=identity)

    await store.append([numbered(1)])
    await store.append([numbered(2)])
    await store.close()
    store = await open_store(disk, config)
    with pytest.raises(AlreadyStored) as known:
        await store.append([numbered(1)])
    assert known.value.originals[0][0].offset == 0
    assert store.remembered == (0, 1)
    await store.close()


async def test_what_was_sent_is_still_known_in_a_repaired_directory(tmp_path: Path) -> None:
    root, out = tmp_path / "data", tmp_path / "repaired"
    store = await open_at(root)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    await store.append([with_ids(queue, 1)])
    await store.close()
    assert verify(root).is_clean
    repair(config_of(root), out)
    store = await open_at(out)
    with pytest.raises(AlreadyStored):
        await store.append([with_ids(queue, 1)])
    await store.close()

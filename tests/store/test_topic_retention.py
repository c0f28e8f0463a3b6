"""Store: a topic whose own retention is shorter than the store's hides what is older."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from store.errors import IllegalTopic
from store.topics import TopicConfig
from store.types import QueueKey, ReadStatus
from tests.clock import FakeClock
from tests.simdisk import SimDisk
from tests.store.kit import SMALL, abandon, append_of, open_store, opened

CONFIG = replace(SMALL, retention_ms=100_000)


async def test_what_is_older_than_the_topics_retention_is_not_shown() -> None:
    disk, clock = SimDisk(), FakeClock()
    async with opened(disk, CONFIG, clock) as store:
        topic, _ = await store.create_topic("a", 2, config=TopicConfig(retention_ms=1000))
        queue = QueueKey(topic.topic_id, 0)
        await store.append([append_of(queue, [b"1", b"2"])])
        clock.step(600)
        await store.append([append_of(queue, [b"3"])])
        clock.step(400)
        await store._hide_expired(store.topics())
        assert store.bounds(queue) == (0, 3)  # exactly as old as the retention: still there
        clock.step(1)
        await store._hide_expired(store.topics())
        assert store.bounds(queue) == (2, 3)
        assert (await store.read(queue, 0, max_bytes=1)).status is ReadStatus.TOO_SMALL
        assert (await store.read(queue, 2, max_bytes=1)).status is ReadStatus.FOUND
        clock.step(10_000)
        await store._hide_expired(store.topics())
        assert store.bounds(queue) == (3, 3)
        await store.append([append_of(queue, [b"4"])])
        assert store.bounds(queue) == (3, 4)


async def test_a_round_that_has_begun_undoes_no_longer_retention() -> None:
    disk, clock = SimDisk(), FakeClock()
    async with opened(disk, CONFIG, clock) as store:
        first, _ = await store.create_topic("a", 50, config=TopicConfig(retention_ms=1000))
        topic, _ = await store.create_topic("b", 1, config=TopicConfig(retention_ms=1000))
        gone, _ = await store.create_topic("c", 1, config=TopicConfig(retention_ms=1000))
        queue = QueueKey(topic.topic_id, 0)
        await store.append([append_of(queue, [b"1"])])
        clock.step(2000)
        looking = asyncio.create_task(store._hide_expired([first, topic, gone]))
        await asyncio.sleep(0)
        await store.configure_topic("b", {"retention_ms": None})
        await store.delete_topic("c")
        await looking
        assert store.bounds(queue) == (0, 1)
        assert store._hidden_until.keys() == set()


async def test_a_restart_shows_no_expired_record_again() -> None:
    disk, clock = SimDisk(), FakeClock()
    store = await open_store(disk, CONFIG, clock)
    topic, _ = await store.create_topic("a", 1, config=TopicConfig(retention_ms=1000))
    queue = QueueKey(topic.topic_id, 0)
    await store.append([append_of(queue, [b"1"])])
    await abandon()
    disk.kill()
    clock.step(1001)
    async with opened(disk, CONFIG, clock) as again:
        assert again.bounds(queue) == (1, 1)
        assert again.topic("a").config == TopicConfig(retention_ms=1000)


async def test_a_longer_retention_shows_what_is_still_in_the_log() -> None:
    disk, clock = SimDisk(), FakeClock()
    async with opened(disk, CONFIG, clock) as store:
        topic, is_new = await store.create_topic("a", 1)
        assert is_new
        queue = QueueKey(topic.topic_id, 0)
        await store.append([append_of(queue, [b"1"])])
        clock.step(2000)
        assert (await store.configure_topic("a", {"retention_ms": 1000}))[1]
        assert store.bounds(queue) == (1, 1)
        assert not (await store.configure_topic("a", {"retention_ms": 1000}))[1]
        await store.configure_topic("a", {"retention_ms": None})
        assert store.bounds(queue) == (0, 1)


async def test_a_deleted_topic_leaves_nothing_behind() -> None:
    disk, clock = SimDisk(), FakeClock()
    async with opened(disk, CONFIG, clock) as store:
        topic, _ = await store.create_topic("a", 1, config=TopicConfig(retention_ms=1))
        await store.append([append_of(QueueKey(topic.topic_id, 0), [b"1"])])
        clock.step(10)
        await store._hide_expired(store.topics())
        await store.delete_topic("a")
        assert store._hidden_until == {}


async def test_a_retention_longer_than_the_stores_is_refused() -> None:
    async with opened(SimDisk(), CONFIG) as store:
        await store.create_topic("a", 1, config=TopicConfig(retention_ms=100_000))
        for make in (
            store.create_topic("b", 1, config=TopicConfig(retention_ms=100_001)),
            store.configure_topic("a", {"retention_ms": 100_001}),
        ):
            with pytest.raises(IllegalTopic, match="100000"):
                await make

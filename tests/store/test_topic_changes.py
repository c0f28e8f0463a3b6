"""store/topic_changes.py: topics that are made at the same time share entries, and all else stays as one by one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from store import Store
from store.errors import IllegalTopic, StoreError, StoreStopped, TopicExists
from store.limits import KiB
from store.topic_changes import CREATED_TOGETHER_MAX
from store.topics import META_QUEUE, Topic
from tests.simdisk import SimDisk
from tests.store.kit import SMALL, abandon, entries_of, open_store, opened
from tests.waiting import PATIENCE_S

NAMES = [f"t{number}" for number in range(2 * CREATED_TOGETHER_MAX + 1)]


def user_topics(store: Store) -> dict[str, Topic]:
    return {topic.name: topic for topic in store.topics() if not topic.is_system}


async def test_topics_made_at_once_share_entries_of_at_most_so_many_and_are_there_after_a_restart() -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        made = await asyncio.gather(*(store.create_topic(name, 2) for name in NAMES))
        assert [(topic.name, is_new) for topic, is_new in made] == [(name, True) for name in NAMES]
        first = made[0][0].topic_id
        assert [topic.topic_id for topic, _ in made] == list(range(first, first + len(NAMES)))
        counts = [entry.record_count for entry in await entries_of(store, META_QUEUE)]
        assert counts == [CREATED_TOGETHER_MAX, CREATED_TOGETHER_MAX, 1]
        there = user_topics(store)
    async with opened(disk) as store:
        assert user_topics(store) == there
        (later, _), (last, _) = await asyncio.gather(store.create_topic("x", 1), store.create_topic("y", 1))
        assert (later.topic_id, last.topic_id) == (first + len(NAMES), first + len(NAMES) + 1)


async def test_each_of_a_shared_entry_is_told_what_became_of_its_own() -> None:
    async with opened(SimDisk()) as store:
        kept, _ = await store.create_topic("kept", 1)
        told = await asyncio.gather(
            store.create_topic("a", 1),
            store.create_topic("kept", 1),
            store.create_topic("..", 1),
            store.create_topic("kept", 2),
            store.create_topic("a", 1),  # the same again: decided when the first is there
            store.create_topic("a", 3),
            store.grow_topic("kept", 4),
            store.create_topic("kept", 4),
            return_exceptions=True,
        )
        a, there, illegal, other_shape, again, not_again, grown, there_now = told
        assert isinstance(a, tuple)
        assert a[1]
        assert there == (kept, False)
        assert isinstance(illegal, IllegalTopic)
        assert isinstance(other_shape, TopicExists)
        assert again == (a[0], False)
        assert isinstance(not_again, TopicExists)
        assert grown == (replace(kept, partitions=4), True)
        assert there_now == (replace(kept, partitions=4), False)
        assert set(user_topics(store)) == {"a", "kept"}


async def test_a_failing_disk_refuses_all_that_share_the_entry() -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        disk.cut_power_at(1)
        told = await asyncio.gather(*(store.create_topic(name, 1) for name in NAMES), return_exceptions=True)
        assert all(isinstance(error, StoreStopped) for error in told)
        assert user_topics(store) == {}


@pytest.mark.parametrize("seed", range(20))
async def test_after_a_power_cut_topics_that_were_answered_are_there_and_ids_are_used_once(seed: int) -> None:
    rng, disk = Random(seed), SimDisk()
    store = await open_store(disk)
    answered: dict[str, Topic] = {}

    async def create(name: str) -> None:
        topic, _ = await store.create_topic(name, rng.randint(1, 3))
        answered[name] = topic

    disk.cut_power_at(rng.randint(1, 12))
    await asyncio.gather(*(create(name) for name in NAMES), return_exceptions=True)
    await abandon()
    async with opened(disk.crash(rng)) as after:
        there = user_topics(after)
        assert {name: there.get(name) for name in answered} == answered
        made = await asyncio.gather(*(after.create_topic(f"later-{name}", 1) for name in NAMES))
        ids = [topic.topic_id for topic in there.values()] + [topic.topic_id for topic, _ in made]
        assert len(set(ids)) == len(ids)


async def test_creations_that_do_not_fit_one_entry_together_are_written_one_by_one() -> None:
    async with opened(SimDisk(), replace(SMALL, extent_bytes=8 * KiB)) as store:
        names = [f"{number:03}{'n' * 200}" for number in range(CREATED_TOGETHER_MAX)]
        made = await asyncio.gather(*(store.create_topic(name, 1) for name in names))
        assert [topic.name for topic, _ in made] == names
        with pytest.raises(StoreError):
            await store.create_topic("..", 1)


@pytest.mark.parametrize("turns", range(8))
async def test_a_loop_that_ends_leaves_nobody_waiting(turns: int) -> None:
    """All tasks are cancelled then, in whatever turn: that of the changes before it has begun, too."""
    store = await open_store(SimDisk())
    making = [asyncio.create_task(store.create_topic(name, 1)) for name in ("a", "b")]
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await abandon()
    assert all(task.done() for task in making)

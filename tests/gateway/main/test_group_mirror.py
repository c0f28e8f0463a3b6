"""gateway.main.group_mirror: what of groups Kafka is told, when, and what becomes of refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.brokers.kafka.attached import AttachedBroker
from gateway.brokers.kafka.codes import GROUP_AUTHORIZATION
from gateway.groups.coordinator.service import Coordinator
from gateway.groups.machines.progress import Absent, Found, PartitionKey, Stored
from gateway.main import group_mirror as module
from gateway.main.group_mirror import GroupMirror
from gateway.routing.base import Attachment
from gateway.routing.table import RouteTable
from store.topics import Topic
from tests.gateway.brokers.kafka.fake_shared import FakeSharedKafka, foreign_batch
from tests.waiting import until

NAME = "prod.orders"
MIRRORED, OTHER = Topic(16, "orders", 2), Topic(17, "bills", 1)


class Groups:
    """What groups have committed."""

    def __init__(self) -> None:
        self.committed: dict[str, dict[PartitionKey, int]] = {}

    def names(self) -> list[str]:
        return sorted(self.committed)

    def topic_ids(self, group: str) -> set[int]:
        return {key.topic_id for key in self.committed[group]}

    def stored(self, group: str, key: PartitionKey) -> Stored:
        offset = self.committed[group].get(key)
        return Absent() if offset is None else Found(offset, "", 0)


class World:
    def __init__(self) -> None:
        self.kafka = FakeSharedKafka()
        self.log = self.kafka.make(NAME, 2)
        self.groups = Groups()
        self.broker = AttachedBroker("kafka1", self.kafka, timer=cast(Any, SimpleNamespace(name="n1")))
        routes = RouteTable()
        for topic, is_mirrored in ((MIRRORED, True), (OTHER, False)):
            routes.put(topic, self.broker)
            routes.attachments[topic.topic_id] = Attachment("kafka1", NAME, is_mirrored)
            self.broker.attach(topic.topic_id, topic.name, NAME, topic.partitions)
        groups = cast(Coordinator, SimpleNamespace(table=self.groups))
        self.mirror = GroupMirror(groups, routes, {"kafka1": self.broker})

    def commit(self, group: str, offset: int, partition: int = 0, topic: Topic = MIRRORED) -> None:
        self.groups.committed.setdefault(group, {})[PartitionKey(topic.topic_id, partition)] = offset


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    world = World()
    running = asyncio.create_task(world.mirror.run())
    yield world
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await world.broker.close()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_has_changed_is_told_once_and_only_of_topics_for_which_it_is_wanted(world: World) -> None:
    world.commit("billing", 3)
    world.commit("billing", 5, topic=OTHER)
    await until(lambda: world.kafka.commits == [("billing", NAME, {0: 3})])
    await settle()
    assert len(world.kafka.commits) == 1
    world.commit("billing", 7, partition=1)
    await until(lambda: world.kafka.commits[1:] == [("billing", NAME, {1: 7})])


async def test_who_has_everything_is_at_kafkas_end(world: World) -> None:
    world.log.put(foreign_batch({0: (b"t", b"t")}, producer_id=5, is_transactional=True))
    world.log.end_transaction(5, commit=True)
    [queue, _] = world.broker.queues_of(MIRRORED.topic_id)
    assert (await world.broker.bounds(queue)).max_offset == 1
    world.commit("billing", 1)
    await until(lambda: world.kafka.commits == [("billing", NAME, {0: 2})])


async def test_a_refusal_counts_holds_up_no_other_group_and_is_tried_again(world: World) -> None:
    world.kafka.refused["billing"] = GROUP_AUTHORIZATION
    world.commit("billing", 1)
    world.commit("shipping", 2)
    await until(lambda: world.kafka.commits == [("shipping", NAME, {0: 2})])
    await until(lambda: world.mirror.refused_count > 1)
    assert _read(world)["mq_mirror_behind"] == 1
    del world.kafka.refused["billing"]
    await until(lambda: len(world.kafka.commits) == 2)
    assert _read(world)["mq_mirror_behind"] == 0
    assert world.mirror.told_count == 2


async def test_a_cluster_that_is_away_and_groups_and_topics_that_go_are_survived(world: World) -> None:
    world.kafka.is_away = True
    world.commit("billing", 1)
    await until(lambda: world.mirror.refused_count)
    del world.groups.committed["billing"]
    await until(lambda: not _read(world)["mq_mirror_behind"])
    world.kafka.is_away = False
    world.commit("billing", 2)
    await until(lambda: world.kafka.commits == [("billing", NAME, {0: 2})])
    world.broker.detach(MIRRORED.topic_id)
    world.commit("billing", 3)
    await settle()
    assert len(world.kafka.commits) == 1


def _read(world: World) -> dict[str, float]:
    return {metric.name: metric.samples[0].value for metric in world.mirror.collect()}

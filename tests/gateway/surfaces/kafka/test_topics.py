"""gateway/surfaces/kafka/topics.py: the topics of one CreateTopics are made together, and each is answered for itself.

All else of this file: tests/e2e/test_kafka.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from gateway.routing.table import RouteTable
from gateway.settings.limits import Limits
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.session import Session
from gateway.surfaces.kafka.topics import create_topics
from store.errors import IllegalTopic
from store.topic_changes import CREATED_TOGETHER_MAX
from store.topics import Topic, TopicConfig
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker


class Admin:
    """Makes a topic in some turns of the loop, and counts how many are under way at a time."""

    def __init__(self) -> None:
        self.routes = RouteTable()
        self.broker = FakeBroker(FakeClock())
        self.most_at_once = 0
        self._under_way = 0

    async def create_topic(self, name: str, partitions: int, config: TopicConfig) -> Topic:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        for _ in range(CREATED_TOGETHER_MAX):
            await asyncio.sleep(0)
        self._under_way -= 1
        if name == "..":
            raise IllegalTopic("a topic name is not this")
        topic = Topic(16 + len(self.routes), name, partitions, config=config)
        self.routes.put(topic, self.broker)
        return topic


def asked(name: str, partitions: int = 1) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": -1, "assignments": [], "configs": []}


async def test_topics_of_a_request_are_made_together_and_answered_one_by_one() -> None:
    admin = Admin()
    admin.routes.put(Topic(9, "there", 1), admin.broker)
    config = SimpleNamespace(partitions_default=3)
    gateway = SimpleNamespace(limits=Limits(), config=config, routes_table=admin.routes, admin=admin, trail=None)
    session = cast(Session, SimpleNamespace(gateway=gateway, may=lambda *_, topic: topic != "secret"))
    many = [asked(f"t{number}", -1) for number in range(CREATED_TOGETHER_MAX)]
    others = ["there", "secret", "..", "twice", "twice", "last"]
    request: dict[str, Any] = {"topics": [*many, *map(asked, others)], "validate_only": False}
    answers = list((await create_topics(session, 2, request))["topics"])
    assert [answer["name"] for answer in answers] == [*dict.fromkeys(topic["name"] for topic in request["topics"])]
    assert [answer["error_code"] for answer in answers[:-5]] == [errors.NONE] * len(many)
    assert [answer["error_code"] for answer in answers[-5:]] == [
        errors.TOPIC_ALREADY_EXISTS,
        errors.TOPIC_AUTHORIZATION_FAILED,
        errors.INVALID_TOPIC,
        errors.INVALID_REQUEST,
        errors.NONE,
    ]
    assert admin.most_at_once == CREATED_TOGETHER_MAX
    assert {topic.partitions for topic in admin.routes.topics()} == {1, 3}
    assert "twice" not in admin.routes

    request = {"topics": [asked("not made")], "validate_only": True}
    (answer,) = (await create_topics(session, 2, request))["topics"]
    assert answer["error_code"] == errors.NONE
    assert "not made" not in admin.routes

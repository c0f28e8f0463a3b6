"""gateway.api.shapes.groups, schedules, topics and gateway.api.shapes.consumers: from bodies to requests.

Their limits, through a server, are in tests/gateway/surfaces/native and test_same_everywhere.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.shapes.base import load
from gateway.api.shapes.consumers import (
    TOPIC_PARTITIONS_MAX,
    CommitBody,
    PartitionsBody,
    PatternBody,
    PositionsBody,
    TopicsBody,
)
from gateway.api.shapes.groups import ReceiveBody, ResetBody
from gateway.api.shapes.schedules import MoveBy, MoveTo
from gateway.api.shapes.schema import schema_of
from gateway.api.shapes.topics import (
    NewTopicBody,
    StrimziTopicBody,
    V3ConfigChangesBody,
    V3ConfigValueBody,
    V3NewTopicBody,
    V3TopicChangesBody,
)
from gateway.errors import RequestError
from gateway.groups.machines.progress import Start, StartTime
from gateway.groups.protocol import Receive, ResetTo
from gateway.settings.limits import Limits

LIMITS = Limits()


def test_a_receive_with_nothing_but_topics_is_the_usual_one() -> None:
    body = load(ReceiveBody, {"topics": ["a", "b", "a"]}, LIMITS)
    assert body.request() == Receive(topics=("a", "b"))


def test_a_receive_with_everything() -> None:
    fields = {"max_messages": 1, "max_bytes": 2, "wait_ms": 3, "invisible_ms": 4, "attempt_id": "i", "consumer": "c"}
    body = load(ReceiveBody, {"topics": ["a"], "filter": "tag:x||y", "start": {"timestamp": 5}, **fields}, LIMITS)
    tags = frozenset(("x", "y"))
    assert body.request() == Receive(topics=("a",), tags=tags, start=StartTime(5), **fields)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as refusal:
        load(ReceiveBody, {"topics": ["a"], "filter": "x"}, LIMITS).request()
    assert refusal.value.error_code == 42252


@pytest.mark.parametrize(
    ("to", "target"),
    [
        ("earliest", Start.FIRST),
        ("latest", Start.LAST),
        (7, 7),
        (2**63 - 1, 2**63 - 1),
        ({"timestamp": "1970-01-01T00:00:01Z"}, StartTime(1000)),
    ],
)
def test_where_a_group_is_moved(to: object, target: ResetTo) -> None:
    assert load(ResetBody, {"topic": "a", "to": to}, LIMITS).target() == target


def test_when_a_schedule_is_due() -> None:
    assert load(MoveBy, {"delay_ms": 5}, LIMITS).due_ms(10) == 15
    assert load(MoveTo, {"deliver_at": "1970-01-01T00:00:01Z"}, LIMITS).due_ms(10) == 1000
    for shape, value in (
        (MoveBy, {"delay_ms": None}),
        (MoveTo, {"deliver_at": "soon"}),
        (MoveTo, {"deliver_at": None}),
    ):
        with pytest.raises(RequestError) as refusal:
            load(shape, value, LIMITS).due_ms(10)  # type: ignore[attr-defined]
        assert refusal.value.error_code == 42250


def test_settings_of_a_topic_that_are_named() -> None:
    body = load(NewTopicBody, {"partitions": 4, "retention_ms": None, "selector": "random"}, LIMITS)
    assert (body.partitions, body.changes()) == (4, {"retention_ms": None, "selector": "random"})
    assert load(NewTopicBody, {"partitions": None}, LIMITS).changes() == {}


def test_strimzis_topic() -> None:
    body = load(StrimziTopicBody, {"topic_name": "t", "replication_factor": "any", "config": {"x": 1}}, LIMITS)
    assert (body.topic_name, body.partitions_count, body.config) == ("t", None, {"x": 1})
    for value, code in (({"topic_name": "t", "config": []}, 400), ({"topic_name": ""}, 422), ({}, 422)):
        with pytest.raises(RequestError) as refusal:
            load(StrimziTopicBody, value, LIMITS)
        assert refusal.value.error_code == code


PLACE = {"topic": "orders", "partition": 0, "of.old.clients": True}


def refused(shape: Any, value: object) -> int:
    with pytest.raises(RequestError) as refusal:
        load(shape, value, LIMITS)
    return refusal.value.error_code


def test_bodies_of_consumer_instances_take_fields_of_old_clients() -> None:
    (place,) = load(PartitionsBody, {"partitions": [PLACE], "more": 1}, LIMITS).partitions
    assert (place.topic, place.partition) == ("orders", 0)
    offsets = load(CommitBody, {"offsets": [{**PLACE, "offset": 5, "metadata": "m"}]}, LIMITS).offsets
    assert offsets is not None
    assert (offsets[0].offset, offsets[0].metadata) == (5, "m")
    assert load(CommitBody, {}, LIMITS).offsets is None
    timestamps = load(PositionsBody, {"timestamps": [{**PLACE, "timestamp": 5}]}, LIMITS).timestamps
    assert timestamps is not None
    assert timestamps[0].timestamp == 5
    assert load(TopicsBody, {"topics": ["a"], "topic_pattern": None}, LIMITS).topics == ["a"]
    assert load(PatternBody, {"topics": [], "topic_pattern": "a.*"}, LIMITS).topic_pattern == "a.*"


@pytest.mark.parametrize("shape", [PartitionsBody, CommitBody, PositionsBody])
def test_partitions_of_one_request(shape: Any) -> None:
    name = "partitions" if shape is PartitionsBody else "offsets"
    item = {**PLACE, "offset": 0}
    load(shape, {name: [item] * TOPIC_PARTITIONS_MAX}, LIMITS)
    for wrong in ([item] * (TOPIC_PARTITIONS_MAX + 1), [{**item, "partition": -1}], [{**item, "topic": ""}], [1], 1):
        assert refused(shape, {name: wrong}) == 422


def test_subscriptions_that_are_none() -> None:
    for shape, value in ((TopicsBody, {}), (TopicsBody, {"topics": []}), (PatternBody, {"topic_pattern": 1})):
        assert refused(shape, value) == 422


def test_bodies_of_v3() -> None:
    assert load(V3NewTopicBody, {"topic_name": "t", "validate_only": True}, LIMITS).validate_only is True
    assert refused(V3NewTopicBody, {"topic_name": "t", "partition_count": 1}) == 422
    for count, code in ((LIMITS.partitions_max + 1, 422), (0, 422), (None, 422)):
        assert refused(V3TopicChangesBody, {"partitions_count": count}) == code
    assert load(V3TopicChangesBody, {"partitions_count": LIMITS.partitions_max}, LIMITS).partitions_count == 1024
    assert load(V3ConfigValueBody, {}, LIMITS).value is None
    assert refused(V3ConfigChangesBody, {}) == 400
    rows = schema_of(V3ConfigChangesBody, LIMITS)["properties"]["data"]["items"]["anyOf"]
    assert [row["properties"]["name"]["const"] for row in rows] == [
        "retention.ms", "max.message.bytes", "mq.headers", "cleanup.policy",
    ]  # fmt: skip

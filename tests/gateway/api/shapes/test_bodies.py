"""gateway.api.shapes.groups, gateway.api.shapes.schedules, gateway.api.shapes.topics: from bodies to requests.

Their limits, through a server, are in tests/gateway/surfaces/native and test_same_everywhere.
"""

from __future__ import annotations

import pytest

from gateway.api.shapes.base import load
from gateway.api.shapes.groups import ReceiveBody, ResetBody
from gateway.api.shapes.schedules import MoveBy, MoveTo
from gateway.api.shapes.topics import NewTopicBody, StrimziTopicBody
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

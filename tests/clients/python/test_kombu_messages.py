"""mq.kombu.messages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mq.kombu.messages import (
    TAG_CHARS_MAX,
    TOPIC_CHARS_MAX,
    delay_s,
    escaped,
    eta_of,
    is_early,
    rename_eta,
    tag_of,
    topic_of_exchange,
    topic_of_queue,
)

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def unescaped(name: str) -> str:
    return re.sub(rb"_x([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), name.encode()).decode()


@given(st.text(min_size=1, max_size=40))
def test_no_two_names_become_one(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]+", escaped(name))
    assert unescaped(escaped(name)) == name
    if len(escaped(name)) < TOPIC_CHARS_MAX - 2:
        topic = topic_of_queue(name)
        assert unescaped(topic) == name
        assert not topic.startswith(("__", "kombu-exchange."))
        assert topic not in (".", "..")


def test_usual_names_stay_as_they_are() -> None:
    assert topic_of_queue("celery") == "celery"
    assert topic_of_queue("my_queue.high-1") == "my_queue.high-1"
    assert topic_of_queue("a b/c_x") == "a_x20b_x2fc_x5fx"
    assert topic_of_exchange("celery.pidbox") == "kombu-exchange.celery.pidbox"
    assert topic_of_exchange("") == "kombu-exchange.amq.default"


def test_names_of_topics_are_bounded() -> None:
    assert len(topic_of_queue("q" * TOPIC_CHARS_MAX)) == TOPIC_CHARS_MAX
    for name in ("q" * (TOPIC_CHARS_MAX + 1), ""):
        with pytest.raises(ValueError, match="it may have 1 to 240"):
            topic_of_queue(name)


def test_a_long_routing_key_is_a_tag_all_the_same() -> None:
    assert tag_of("") is None
    assert tag_of("k" * TAG_CHARS_MAX) == "k" * TAG_CHARS_MAX
    assert len(tag_of("k" * (TAG_CHARS_MAX + 1)) or "") == 64
    assert tag_of("k" * 200) != tag_of("k" * 201)


def test_an_eta_is_a_time_with_a_zone() -> None:
    assert eta_of({"eta": "2026-11-24T12:00:00+00:00"}) == NOW
    assert eta_of({"eta": "2026-11-24T12:00:00"}) == NOW
    assert eta_of({"eta": "2026-11-24T14:00:00+02:00"}) == NOW
    assert eta_of({"eta": NOW}) == NOW
    for none in ({}, {"eta": None}, {"eta": "tomorrow"}, {"eta": 5}):
        assert eta_of(none) is None


def test_a_delay_is_at_most_what_the_server_takes() -> None:
    assert delay_s(NOW + timedelta(seconds=5), NOW, 10_000) == 5
    assert delay_s(NOW + timedelta(seconds=10), NOW, 10_000) == 10
    assert delay_s(NOW + timedelta(seconds=11), NOW, 10_000) == 10
    assert delay_s(NOW - timedelta(seconds=1), NOW, 10_000) == 0


def test_a_task_that_waited_for_a_part_of_its_time_is_early() -> None:
    headers = {"eta": NOW.isoformat()}
    due_ms = int(NOW.timestamp() * 1000)
    assert not is_early(headers, due_ms)
    assert is_early(headers, due_ms - 1)
    assert not is_early(headers, None)  # it was due when it was sent
    assert not is_early({}, due_ms)


def test_a_worker_sees_no_eta_that_was_waited_for() -> None:
    payload = {"headers": {"eta": NOW.isoformat(), "id": "1"}}
    rename_eta(payload)
    assert payload["headers"] == {"eta": None, "mq_eta": NOW.isoformat(), "id": "1"}
    bare: dict[str, dict[str, str]] = {"headers": {}}
    rename_eta(bare)
    assert bare == {"headers": {}}

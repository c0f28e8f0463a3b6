"""gateway.cluster.topics: records and numbers that the nodes agree on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.cluster.topics import (
    Counters,
    TopicRecord,
    decode_counters,
    decode_topic,
    encode_counters,
    encode_topic,
    grown,
    in_turn,
    table_of,
)
from store.errors import IllegalTopic, TopicExists, UnknownQueue
from store.topics import KeyForm, Topic, TopicConfig, TopicCreated

TOPIC = Topic(17, "orders", 4, 5, TopicConfig(retention_ms=1000, selector="random"), KeyForm.RAW)
RECORD = TopicRecord(TOPIC, ((0, ("n1", "n2")),))


def test_a_topic_is_read_as_it_was_written() -> None:
    assert decode_topic(encode_topic(RECORD)) == RECORD
    plain = TopicRecord(Topic(16, "%DLQ%billing", 1, 0, TopicConfig(), KeyForm.CONFLUENT), ((0, ("n3",)), (1, ("n1",))))
    assert decode_topic(encode_topic(plain)) == plain
    on_kafka = replace(RECORD, begins_on="kafka1")
    assert decode_topic(encode_topic(on_kafka)) == on_kafka
    assert decode_counters(encode_counters(Counters(18, 3))) == Counters(18, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b'{"v": 2}', encode_topic(RECORD).replace(b'"v":1', b'"v":2'),
        encode_topic(RECORD).replace(b"raw", b"boiled"), encode_topic(TopicRecord(TOPIC, ())),
        encode_topic(TopicRecord(TOPIC, ((0, ()),))), encode_topic(TopicRecord(TOPIC, ((1, ("n1",)),))),
        encode_topic(RECORD).replace(b'"name"', b'"title"'),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="topic's record is not understood"):
        decode_topic(data)
    with pytest.raises(ValueError, match="numbers are not understood"):
        decode_counters(data)


def test_a_partition_never_has_another_home() -> None:
    assert [RECORD.home_of(partition) for partition in range(4)] == ["n1", "n2", "n1", "n2"]
    more = grown(RECORD, replace(TOPIC, partitions=7), ["n3", "n1"])
    assert [more.home_of(partition) for partition in range(4)] == ["n1", "n2", "n1", "n2"]
    assert [more.home_of(partition) for partition in range(4, 7)] == ["n3", "n1", "n3"]
    assert grown(replace(RECORD, begins_on="kafka1"), more.topic, ["n3"]).begins_on == "kafka1"
    assert grown(more, replace(TOPIC, partitions=7, config=TopicConfig()), ["n9"]).homes == more.homes


def test_topics_of_one_partition_begin_on_all_brokers_in_turn() -> None:
    assert [in_turn(["n3", "n1", "n2"], topic_id)[0] for topic_id in range(16, 20)] == ["n2", "n3", "n1", "n2"]
    with pytest.raises(ValueError, match="no broker"):
        in_turn([], 16)


def test_changes_are_decided_as_by_a_store() -> None:
    made = table_of(None, 40).decide_create("orders", 2, 7)
    assert isinstance(made, TopicCreated)
    assert (made.topic_id, made.partitions, made.created_ms) == (40, 2, 7)
    table = table_of(RECORD, 40)
    assert table.decide_create("orders", 4, 7) == TOPIC
    with pytest.raises(TopicExists):
        table.decide_create("orders", 5, 7)
    with pytest.raises(IllegalTopic):
        table.decide_grow("orders", 3)
    with pytest.raises(UnknownQueue):
        table_of(None, 40).decide_delete("orders")

"""store.topics: decide, write, apply; names, ids that are never used twice, and what survives a restart."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import IllegalTopic, TopicExists, UnknownQueue
from store.limits import PARTITIONS_MAX, RECORD_BYTES_MAX, TOPIC_NAME_BYTES_MAX
from store.topics import (
    CLUSTER,
    CONFIG_NAMES,
    FIRST_USER_TOPIC_ID,
    META,
    MOVED_IDS,
    OFFSETS,
    RECURRING,
    TIMER,
    Event,
    KeyForm,
    Topic,
    TopicConfig,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    TopicGrown,
    TopicTable,
    check_config,
    check_name,
    decode_events,
    encode_event,
)
from store.types import QueueKey


def created(table: TopicTable, name: str, partitions: int = 2) -> Topic:
    event = table.decide_create(name, partitions, 5)
    assert isinstance(event, TopicCreated)
    return table.apply(event)


def test_a_new_table_has_the_system_topics_only() -> None:
    assert TopicTable().all() == [META, TIMER, OFFSETS, RECURRING, CLUSTER, MOVED_IDS]
    assert all(topic.is_system for topic in TopicTable().all())


def test_a_snapshot_is_made_later_of_what_was_there_when_it_was_asked_for() -> None:
    table = TopicTable()
    topic = created(table, "a", 2)
    table.apply(table.decide_seal(QueueKey(topic.topic_id, 0), 7))
    before, later = table.snapshot(), table.captured()
    created(table, "b", 2)
    table.apply(table.decide_seal(QueueKey(topic.topic_id, 1), 9))
    table.apply(table.decide_delete("a"))
    assert later() == before != table.snapshot()


def test_deciding_changes_nothing() -> None:
    table = TopicTable()
    assert table.decide_create("a", 2, 5) == TopicCreated(FIRST_USER_TOPIC_ID, "a", 2, 5, {}, KeyForm.RAW)
    with pytest.raises(UnknownQueue):
        table.by_name("a")


def test_a_topic_can_be_found_by_name_id_and_queue() -> None:
    table = TopicTable()
    topic = created(table, "a", 2)
    assert not topic.is_system
    assert table.by_name("a") is topic
    assert topic.topic_id in table
    assert table.of_queue(QueueKey(topic.topic_id, 1)) is topic
    for queue in (QueueKey(topic.topic_id, 2), QueueKey(topic.topic_id, -1), QueueKey(99, 0)):
        with pytest.raises(UnknownQueue):
            table.of_queue(queue)


def test_creating_again_is_fine_with_the_same_shape_only() -> None:
    table = TopicTable()
    topic = created(table, "a", 2)
    assert table.decide_create("a", 2, 9) is topic
    with pytest.raises(TopicExists, match="2 partitions, not 3"):
        table.decide_create("a", 3, 9)


def test_a_topic_grows_and_never_shrinks() -> None:
    table = TopicTable()
    topic = created(table, "a", 2)
    assert table.decide_grow("a", 2) is topic
    event = table.decide_grow("a", 5)
    assert event == TopicGrown(topic.topic_id, 5)
    assert isinstance(event, TopicGrown)
    assert table.apply(event).partitions == table.by_name("a").partitions == 5
    with pytest.raises(IllegalTopic, match="cannot shrink"):
        table.decide_grow("a", 4)
    with pytest.raises(UnknownQueue):
        table.decide_grow("b", 4)


def test_a_topic_has_a_configuration_that_survives_a_restart() -> None:
    table = TopicTable()
    event = table.decide_create("a", 2, 5, config=TopicConfig(retention_ms=1000))
    assert isinstance(event, TopicCreated)
    table.apply(decode_events([encode_event(event)])[0])
    assert table.by_name("a").config == TopicConfig(retention_ms=1000)
    changed = table.decide_configure("a", {"retention_ms": None, "max_message_bytes": 5})
    assert isinstance(changed, TopicConfigured)
    table.apply(decode_events([encode_event(changed)])[0])
    assert table.by_name("a").config.chosen() == {"max_message_bytes": 5}
    restored = TopicTable()
    restored.restore(orjson.loads(orjson.dumps(table.snapshot())))
    assert restored.all() == table.all()


def test_a_configuration_is_compared_only_when_one_is_given() -> None:
    table = TopicTable()
    topic = created(table, "a")
    assert table.decide_create("a", 2, 9) is topic
    assert table.decide_create("a", 2, 9, config=TopicConfig()) is topic
    assert table.decide_configure("a", {"retention_ms": None}) is topic
    with pytest.raises(TopicExists, match="configuration"):
        table.decide_create("a", 2, 9, config=TopicConfig(retention_ms=1))


def test_a_configuration_has_limits() -> None:
    check_config(TopicConfig(retention_ms=1000, max_message_bytes=RECORD_BYTES_MAX), retention_ms_max=1000)
    check_config(TopicConfig(retention_ms=10**15, max_message_bytes=1), retention_ms_max=None)
    for config in (
        TopicConfig(retention_ms=1001),
        TopicConfig(retention_ms=0),
        TopicConfig(max_message_bytes=0),
        TopicConfig(max_message_bytes=RECORD_BYTES_MAX + 1),
    ):
        with pytest.raises(IllegalTopic):
            check_config(config, retention_ms_max=1000)


def test_ids_are_never_used_twice_not_even_after_a_restart() -> None:
    table = TopicTable()
    first = created(table, "a")
    table.apply(table.decide_delete("a"))
    assert first.topic_id not in table
    with pytest.raises(UnknownQueue):
        table.by_name("a")
    restored = TopicTable()
    restored.restore(orjson.loads(orjson.dumps(table.snapshot())))
    for again in (table, restored):
        assert created(again, "a").topic_id > first.topic_id


@pytest.mark.parametrize("name", ["__meta", "__timer", "__offsets"])
def test_system_topics_cannot_be_changed(name: str) -> None:
    table = TopicTable()
    for decide in (table.decide_delete, lambda name: table.decide_grow(name, 4)):
        with pytest.raises(IllegalTopic):
            decide(name)
    with pytest.raises(IllegalTopic):
        table.decide_create(name, 1, 0)


@pytest.mark.parametrize("partitions", [-1, 0, PARTITIONS_MAX + 1])
def test_partitions_have_limits(partitions: int) -> None:
    table = TopicTable()
    with pytest.raises(IllegalTopic, match=str(PARTITIONS_MAX)):
        table.decide_create("a", partitions, 0)
    assert isinstance(table.decide_create("a", PARTITIONS_MAX, 0), TopicCreated)


@pytest.mark.parametrize("name", ["a", "A.b-c_9%", "x" * TOPIC_NAME_BYTES_MAX, "...", "a.."])
def test_legal_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a b",
        "a\n",
        "ä",
        "a\0",
        "x" * (TOPIC_NAME_BYTES_MAX + 1),
        "__a",
        "%DLQ%g",
        "%RETRY%g",
        "../a",
    ],
)
def test_illegal_names(name: str) -> None:
    with pytest.raises(IllegalTopic):
        check_name(name)


configs = st.dictionaries(st.sampled_from(CONFIG_NAMES), st.integers(1, 2**53))
events = st.one_of(
    st.builds(
        TopicCreated, st.integers(16, 999), st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 99), configs
    ),
    st.builds(TopicConfigured, st.integers(16, 999), configs),
    st.builds(TopicGrown, st.integers(16, 999), st.integers(1, 9)),
    st.builds(TopicDeleted, st.integers(16, 999)),
)


@given(st.lists(events, max_size=5))
def test_events_come_back_from_their_records(history: list[Event]) -> None:
    assert decode_events(map(encode_event, history)) == history


@pytest.mark.parametrize(
    "value",
    [None, b"", b"{", b"[]", b"1", b"{}", b'{"event":"topic_renamed","topic_id":16}', b'{"event":"topic_deleted"}',
     b'{"event":"topic_deleted","topic_id":16,"new":1}'],
)  # fmt: skip
def test_a_record_that_is_not_understood_is_never_skipped(value: bytes | None) -> None:
    with pytest.raises(ValueError, match="newer version"):
        decode_events([value])


def test_a_snapshot_is_the_whole_table() -> None:
    table = TopicTable()
    for name in "abc":
        created(table, name)
    table.apply(table.decide_delete("b"))
    grown = table.decide_grow("c", 9)
    assert isinstance(grown, TopicGrown)
    table.apply(grown)
    restored = TopicTable()
    restored.restore(orjson.loads(orjson.dumps(table.snapshot())))
    assert restored.all() == table.all()
    assert restored.snapshot() == table.snapshot()


def test_a_topic_keeps_the_form_of_keys_that_it_was_made_with() -> None:
    table = TopicTable()
    event = table.decide_create("a", 1, 0, json_keys=KeyForm.CONFLUENT)
    assert isinstance(event, TopicCreated)
    (read,) = decode_events([encode_event(event)])
    topic = table.apply(read)
    assert (topic.json_keys, topic.raw_keys) == (KeyForm.CONFLUENT, False)
    assert table.decide_create("a", 1, 0) is topic
    assert table.decide_create("a", 1, 0, json_keys=KeyForm.CONFLUENT) is topic
    with pytest.raises(TopicExists):
        table.decide_create("a", 1, 0, json_keys=KeyForm.RAW)


def test_a_topic_of_an_older_version_has_json_keys() -> None:
    event = {"event": "topic_created", "topic_id": 16, "name": "a", "partitions": 1, "created_ms": 5, "config": {}}
    table = TopicTable()
    (read,) = decode_events([orjson.dumps(event)])
    assert table.apply(read).json_keys is KeyForm.CONFLUENT
    snapshot = orjson.loads(orjson.dumps(table.snapshot()))
    for topic in snapshot["topics"]:
        del topic["json_keys"]
    restored = TopicTable()
    restored.restore(snapshot)
    assert restored.by_name("a").json_keys is KeyForm.CONFLUENT

"""gateway/routing/table.py: the list of topics. Chains of segments: tests/gateway/api/test_consumer.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.table import RouteTable
from store.clock import SystemClock
from store.errors import UnknownQueue
from store.topics import Topic
from tests.gateway.fake_broker import FakeBroker

NAMES = ("a", "aa", "b", "B", "%DLQ%a", "z")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(NAMES), st.integers(1, 3), st.booleans())))
def test_topics_are_listed_by_name_whatever_comes_grows_and_goes(steps: list[tuple[bool, str, int, bool]]) -> None:
    table, broker, there = RouteTable(), FakeBroker(SystemClock()), dict[str, Topic]()
    for comes, name, partitions, is_new in steps:
        topic = Topic(16 + 2 * NAMES.index(name) + is_new, name, partitions)
        before = table.topics()
        kept = list(before)
        if comes:
            table.put(topic, broker)
            there[name] = topic
        else:
            table.remove(topic)
            if name in there and there[name].topic_id == topic.topic_id:
                del there[name]
        assert before == kept, "who goes through a list is not disturbed"
        assert table.topics() == [there[name] for name in sorted(there)]
        assert (len(table), table.partition_count) == (len(there), sum(one.partitions for one in there.values()))
        assert [table.by_id(view.topic_id) for view in table.topics()] == table.topics()
        for name in NAMES:
            assert (name in table) == (name in there)
    for name in set(NAMES) - set(there):
        with pytest.raises(UnknownQueue):
            table.topic(name)

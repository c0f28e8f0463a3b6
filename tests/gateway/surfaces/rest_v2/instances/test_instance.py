"""gateway/surfaces/rest_v2/instances/instance.py: the table of its docstring, and a model of a client that loses
answers."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.groups.machines.membership import Share
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import TOPICS_MAX, Subscription
from gateway.groups.protocol import OffsetCommit, TopicPartition
from gateway.surfaces.rest_v2.instances.instance import (
    DOCUMENT_BYTES_MAX,
    ILLEGAL_STATE,
    Instance,
    Position,
    decode_instance,
)
from gateway.surfaces.rest_v2.instances.settings import InstanceSettings

P0, P1 = Partition("orders", 16, 0), Partition("orders", 16, 1)


def subscribed(*places: Partition) -> Instance:
    instance = Instance("g", "c1", InstanceSettings())
    instance.subscribe(Subscription(frozenset(("orders",))))
    for place in instance.own_share(Share(1, places, (), b"", False)):
        instance.begin(place, 0, None)
    return instance


def restarted(instance: Instance) -> Instance:
    return decode_instance(instance.group, instance.name, instance.encode())


def offsets(instance: Instance) -> tuple[int, int, int | None]:
    position = instance.positions[P0]
    return position.next_offset, position.confirmed, position.committed


def commit(instance: Instance) -> None:
    instance.committed(instance.unsaved())


def test_the_table_in_the_docstring() -> None:
    instance = subscribed(P0)
    assert offsets(instance) == (0, 0, None)
    instance.ask_for_more()
    instance.delivered({P0: 10})
    assert offsets(instance) == (10, 0, None)
    instance.ask_for_more()
    commit(instance)
    instance.delivered({P0: 20})
    assert offsets(instance) == (20, 10, 10)
    again = restarted(instance)
    assert offsets(again) == (20, 10, 10)
    again.ask_for_more()
    assert offsets(again) == (10, 10, 10)
    committing = restarted(instance)
    committing.confirm()
    commit(committing)
    assert offsets(committing) == (20, 20, 20)
    committing.ask_for_more()
    assert offsets(committing) == (20, 20, 20)


def test_a_place_where_nothing_was_read_is_committed_too() -> None:
    assert subscribed(P0).unsaved() == [OffsetCommit("orders", 0, 0)]


def test_what_a_commit_names_the_client_has() -> None:
    instance = subscribed(P0)
    instance.delivered({P0: 10})
    instance.committed([OffsetCommit("orders", 0, 4), OffsetCommit("other", 0, 1)])
    assert offsets(instance) == (10, 4, 4)
    instance.committed([OffsetCommit("orders", 0, 99)])
    assert offsets(instance) == (10, 10, 99)


def test_a_commit_ahead_of_reading_stays_until_the_client_reads_past_it_or_seeks_back() -> None:
    instance = subscribed(P0)
    instance.delivered({P0: 10})
    instance.committed([OffsetCommit("orders", 0, 20)])
    instance.confirm()
    assert instance.unsaved() == []
    assert instance.positions[P0].is_clean
    instance.delivered({P0: 21})
    instance.confirm()
    assert instance.unsaved() == [OffsetCommit("orders", 0, 21)]
    commit(instance)
    instance.seek(P0, 3)
    assert instance.unsaved() == [OffsetCommit("orders", 0, 3)]


def test_a_clean_partition_can_go_and_another_cannot() -> None:
    assert Position(5, 5, 5).is_clean
    assert Position(5, 5, None).is_clean
    assert not Position(6, 5, 5).is_clean
    assert Position(5, 5, 9).is_clean
    assert not Position(5, 5, 4).is_clean


def test_partitions_that_go_are_forgotten_and_those_that_stay_are_not() -> None:
    instance = subscribed(P0, P1)
    instance.delivered({P0: 3, P1: 4})
    assert instance.own_share(Share(2, (P0,), (P1,), b"", False)) == []
    assert instance.owned() == [TopicPartition("orders", 0)]
    assert instance.reading_order() == [P0]
    assert instance.own_share(Share(2, (P0,), (), b"", False)) == []
    assert instance.own_share(Share(3, (P0, P1), (), b"", False)) == [P1]
    assert instance.positions[P0].next_offset == 3
    instance.delivered({P1: 9})  # of a read that began before
    assert P1 not in instance.positions


def test_reading_begins_with_another_partition_each_time() -> None:
    instance = subscribed(P0, P1)
    assert {instance.reading_order()[0] for _ in range(2)} == {P0, P1}
    assert Instance("g", "c", InstanceSettings()).reading_order() == []


def test_subscribing_and_assigning_exclude_each_other() -> None:
    instance = subscribed(P0)
    with pytest.raises(RequestError) as refused:
        instance.assign([TopicPartition("orders", 0)])
    assert refused.value.error_code == ILLEGAL_STATE
    instance.unsubscribe()
    assert instance.positions == {}
    instance.assign([TopicPartition("orders", 0), TopicPartition("orders", 0)])
    assert instance.assigned == (TopicPartition("orders", 0),)
    with pytest.raises(RequestError):
        instance.subscribe(Subscription(frozenset(("orders",))))


def test_only_own_partitions_have_a_place() -> None:
    instance = subscribed(P0)
    assert instance.partitions_of([TopicPartition("orders", 0)] * 2) == [P0, P0]
    for topic, number in (("orders", 1), ("other", 0)):
        with pytest.raises(RequestError) as refused:
            instance.partitions_of([TopicPartition("orders", 0), TopicPartition(topic, number)])
        assert refused.value.error_code == ILLEGAL_STATE


def test_the_topics_of_a_pattern_are_those_that_match() -> None:
    instance = Instance("g", "c", InstanceSettings())
    assert instance.topics(["a-1"]) == []
    instance.subscribe(Subscription(frozenset(("b",)), "a-.*"))
    assert instance.topics(["a-1", "a-2", "c"]) == ["a-1", "a-2", "b"]


def test_a_document_holds_all_of_it() -> None:
    instance = subscribed(P0, P1)
    instance.delivered({P0: 7})
    again = restarted(instance)
    assert (again.wish, again.generation, again.settings) == (instance.wish, 1, instance.settings)
    assert again.positions == instance.positions
    assert again.is_resumed
    instance.unsubscribe()
    instance.assign([TopicPartition("orders", 1)])
    assert restarted(instance).assigned == (TopicPartition("orders", 1),)


def test_a_document_that_is_too_long_leaves_out_the_positions_and_then_is_refused() -> None:
    instance = subscribed(*(Partition("t" * 249, 16, number) for number in range(1000)))
    content = instance.encode()
    assert len(content) <= DOCUMENT_BYTES_MAX
    assert decode_instance("g", "c", content).positions == {}
    before = instance.wish
    with pytest.raises(RequestError) as refused:
        instance.subscribe(Subscription(frozenset(f"{number:0249}" for number in range(TOPICS_MAX))))
    assert refused.value.error_code == 422
    assert instance.wish == before
    instance.unsubscribe()
    instance.assign([TopicPartition("orders", 0)])
    with pytest.raises(RequestError) as refused:
        instance.assign([TopicPartition("orders", number) for number in range(10_000)])
    assert refused.value.error_code == 422
    assert instance.assigned == (TopicPartition("orders", 0),)
    assert instance.encode()


@pytest.mark.parametrize("over", [0, 1])
def test_a_document_has_room_for_every_generation(over: int) -> None:
    instance, last = subscribed(), 2**63 - 1
    many = frozenset(f"{number:0249}" for number in range(259))
    instance.wish, instance.generation = Subscription(many | {"t"}), last
    left = DOCUMENT_BYTES_MAX - len(instance.encode())
    instance.generation = None
    wish = Subscription(many | {"t" * (1 + left + over)})
    if over:
        with pytest.raises(RequestError):
            instance.subscribe(wish)
        return
    instance.subscribe(wish)
    instance.generation = last
    assert len(instance.encode()) == DOCUMENT_BYTES_MAX


@pytest.mark.parametrize("content", [b"", b"{", b"1", b'{"version": 2}'])
def test_what_is_no_document(content: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode_instance("g", "c", content)


READ, LOST, RESTART, COMMIT = "read", "lost answer", "restart", "commit"
STEPS = st.lists(st.tuples(st.sampled_from((READ, LOST, RESTART, COMMIT)), st.integers(1, 5)), max_size=40)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from((READ, LOST, RESTART, COMMIT)), st.integers(1, 5)), max_size=40), st.booleans()
)
def test_whatever_is_lost_a_client_gets_every_record_before_it_is_committed(
    steps: list[tuple[str, int]], auto_commit: bool
) -> None:
    """A client that reads, loses answers in crashes of the server (only there), and commits what it was handed."""
    instance = subscribed(P0)
    got = 0  # the client has all records before this one
    for step, count in steps:
        if step in (READ, LOST):
            instance.ask_for_more()
            if auto_commit:
                commit(instance)
            begin = instance.positions[P0].next_offset
            assert begin <= got, "records left out"
            instance.delivered({P0: begin + count})
            if step == LOST:  # the server is killed before the answer is out
                instance = restarted(instance)
            else:
                got = max(got, begin + count)
        elif step == RESTART:
            instance = restarted(instance)
        elif instance.positions[P0].next_offset <= got:  # a client commits when it has what it was handed
            instance.confirm()
            commit(instance)
        committed = instance.positions[P0].committed
        assert committed is None or committed <= got


def test_the_document_is_json_for_people() -> None:
    assert orjson.loads(subscribed(P0).encode())["positions"] == [["orders", 16, 0, 0, 0, None]]

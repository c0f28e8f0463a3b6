"""Choosing partitions: by key, in turn, at random, by room; away from brokers that are slow or failed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.fault import LatencyFaults
from gateway.routing.select import RANDOM, ROOM, SELECTORS, PartitionSelector
from gateway.routing.table import RouteTable


class Brokers:
    """Partition p of every topic lies on broker `names[p]`."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.faults = LatencyFaults()

    def broker_name(self, topic: str, partition: int) -> str:
        return self.names[partition]

    def room_of(self, broker: str) -> str:
        return RouteTable().room_of(broker)


def taken(selector: PartitionSelector, count: int, times: int, *, how: str | None = None) -> Sequence[int]:
    return [selector.next("t", count, how) for _ in range(times)]


def test_a_key_goes_by_its_crc32() -> None:
    assert PartitionSelector().for_key(b"hello", 7) == (0x3610A686 | 0) % 7 == zlib.crc32(b"hello") % 7
    keys = [b"%d" % number for number in range(100)] + [b""]
    assert PartitionSelector().for_keys(keys, 7) == [PartitionSelector().for_key(key, 7) for key in keys]


def test_without_trouble_each_partition_has_its_turn() -> None:
    brokers = Brokers("a", "b", "a")
    assert taken(PartitionSelector(), 3, 4) == [0, 1, 2, 0]
    assert taken(PartitionSelector(brokers), 3, 4) == [0, 1, 2, 0]


def test_of_a_topic_that_is_gone_nothing_is_kept() -> None:
    selector = PartitionSelector()
    assert taken(selector, 3, 2) == [0, 1]
    selector.forget("t")
    selector.forget("another")
    assert taken(selector, 3, 2) == [0, 1]


def test_a_broker_to_be_avoided_is_passed_over_until_its_penalty_ends() -> None:
    now_ms = 0.0
    brokers = Brokers("a", "b", "c")
    selector = PartitionSelector(brokers, now_ms=lambda: now_ms)
    brokers.faults.answered("b", 600, now_ms)
    assert taken(selector, 3, 4) == [0, 2, 0, 2]
    now_ms = 2000
    assert taken(selector, 3, 3) == [0, 1, 2]


def test_a_reachable_broker_is_better_than_one_that_does_not_answer() -> None:
    brokers = Brokers("a", "b")
    brokers.faults.failed("a", 0, is_reachable=False)
    brokers.faults.failed("b", 0)
    assert taken(PartitionSelector(brokers), 2, 3) == [1, 1, 1]


def test_when_all_are_in_trouble_all_are_used() -> None:
    brokers = Brokers("a", "b")
    for name in "ab":
        brokers.faults.failed(name, 0, is_reachable=False)
    assert taken(PartitionSelector(brokers), 2, 4) == [0, 1, 0, 1]


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.sets(st.sampled_from("abc")), st.sampled_from("abc")
)
def test_the_broker_that_has_just_failed_is_not_chosen_while_there_is_another(
    names: list[str], avoided: set[str], failed: str
) -> None:
    brokers = Brokers(*names)
    for name in avoided:
        brokers.faults.failed(name, 0)
    selector = PartitionSelector(brokers)
    for _ in range(2 * len(names)):
        chosen = names[selector.next("t", len(names), failed_broker=failed)]
        assert chosen != failed or set(names) == {failed}


def test_random_takes_what_chance_says_and_avoids_too() -> None:
    brokers = Brokers("a", "b", "a")
    selector = PartitionSelector(brokers, below=lambda count: count - 2)
    assert taken(selector, 3, 2, how=RANDOM) == [1, 1]
    brokers.faults.failed("b", 0)
    assert taken(selector, 3, 2, how=RANDOM) == [2, 2]
    assert taken(selector, 3, 1) == [0], "chance does not move the turn"


def test_a_room_takes_its_own_brokers_and_others_when_it_has_none() -> None:
    brokers = Brokers("east@a", "west@b", "east@c", "d")
    assert taken(PartitionSelector(brokers, room="east"), 4, 4, how=ROOM) == [0, 2, 0, 2]
    assert taken(PartitionSelector(brokers, room="north"), 4, 4, how=ROOM) == [0, 1, 2, 3]
    assert taken(PartitionSelector(brokers, room="west"), 4, 2) == [0, 1]


@pytest.mark.parametrize("how", SELECTORS)
def test_one_broker_without_a_room_serves_every_selector(how: str) -> None:
    selector = PartitionSelector(Brokers("local", "local"), below=lambda count: 1)
    assert set(taken(selector, 2, 4, how=how)) <= {0, 1}

"""gateway.groups.machines.topic_leases: the leases of a topic, without cost for partitions in which nothing is open.

The model is a `PartitionLeases` for every partition that never goes away, which is what there was before:

    same      every partition decides as its own machine would: verdicts, what is ready, where the group is
    lazy      only partitions with open records have a machine
    replay    the log, and the snapshot, lead another one to the same state
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.events import (
    Leased,
    LeaseEvent,
    LeasesBegun,
    LeasesSet,
    QueueEvent,
    Settled,
    decode_events,
    encode_event,
)
from gateway.groups.machines.leases import Fresh, PartitionLeases, Verdict
from gateway.groups.machines.receipts import Receipt
from gateway.groups.machines.topic_leases import TopicLeases

PARTITIONS = 4
CONFIG = GroupConfig(max_attempts=3, in_flight_max=8, backoff_ms=(10, 50))


def replayed(events: Sequence[QueueEvent]) -> TopicLeases:
    made = TopicLeases("g", 16)
    for event in decode_events([encode_event(event) for event in events]):
        made.apply(cast(QueueEvent, event), CONFIG)
    return made


class TopicLeasesModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.log: list[QueueEvent] = []
        self.topic = TopicLeases("g", 16)
        self.each: dict[int, PartitionLeases] = {}
        self.open_count = 0
        self.receipts: list[Receipt] = []

    partition = st.integers(0, PARTITIONS - 1)

    @initialize(next_offsets=st.lists(st.integers(0, 3), min_size=1, max_size=PARTITIONS))
    def begin(self, next_offsets: list[int]) -> None:
        self.begin_at(0, next_offsets)

    def begin_at(self, first: int, next_offsets: list[int]) -> None:
        event = self.topic.decide_begin(first, next_offsets, self.now_ms)
        for partition, next_offset in enumerate(next_offsets, start=first):
            self.each[partition] = PartitionLeases("g", 16, partition, CONFIG)
            self.each[partition].apply(LeasesSet("g", 16, partition, event.epoch, next_offset, ()))
        self.apply(event)

    def write(self, events: Sequence[LeaseEvent]) -> None:
        for event in events:
            self.each[event.partition].apply(event)
            self.apply(event)

    def apply(self, event: QueueEvent) -> None:
        self.log.append(event)
        self.open_count += self.topic.apply(event, CONFIG)

    def known(self, partition: int) -> int:
        return partition % len(self.each)

    @rule(partition=partition, limit=st.integers(1, 3), fresh_count=st.integers(0, 3))
    def receive(self, partition: int, limit: int, fresh_count: int) -> None:
        partition = self.known(partition)
        lazy, own = self.topic.at(partition, CONFIG), self.each[partition]
        first = own.next_offset
        fresh = [Fresh(offset) for offset in range(first, first + min(fresh_count, own.room))]
        old = own.ready(self.now_ms, limit)
        assert lazy.ready(self.now_ms, limit) == old
        for machine in (own, lazy):
            leases, events = machine.decide_receive(
                old, fresh, fetched_to=first + len(fresh), limit=limit, invisible_ms=30, now_ms=self.now_ms
            )
        self.receipts += [Receipt(16, partition, *lease[:3], own.epoch) for lease in leases]
        self.write(events)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), is_nack=st.booleans())
    def settle(self, data: st.DataObject, is_nack: bool) -> None:
        receipt = data.draw(st.sampled_from(self.receipts))
        lazy, own = self.topic.at(receipt.partition, CONFIG), self.each[receipt.partition]
        decide = PartitionLeases.decide_nack if is_nack else PartitionLeases.decide_ack
        decision, expected = decide(lazy, [receipt], self.now_ms), decide(own, [receipt], self.now_ms)
        assert decision == expected
        self.write(expected.events)

    @rule(partition=partition)
    def dead_letters(self, partition: int) -> None:
        own = self.each[self.known(partition)]
        self.write(own.decide_settle(letter.offset for letter in own.dead_letters(self.now_ms, 100)))

    @rule(partition=partition, next_offset=st.integers(0, 5))
    def reset_one(self, partition: int, next_offset: int) -> None:
        lazy = self.topic.at(self.known(partition), CONFIG)
        assert lazy.decide_reset(next_offset, self.now_ms) == self.each[self.known(partition)].decide_reset(
            next_offset, self.now_ms
        )
        self.write(lazy.decide_reset(next_offset, self.now_ms))

    @rule(next_offset=st.integers(0, 5))
    def reset_all(self, next_offset: int) -> None:
        epochs = {receipt.epoch for receipt in self.receipts}
        self.begin_at(0, [next_offset] * len(self.each))
        assert not epochs & {machine.epoch for machine in self.each.values()}, "no receipt is good any more"

    @precondition(lambda self: 0 < len(self.each) < PARTITIONS)
    @rule(next_offset=st.integers(0, 5))
    def partitions_are_added(self, next_offset: int) -> None:
        self.begin_at(len(self.each), [next_offset])

    @rule(ms=st.integers(-5, 60))
    def the_clock_moves(self, ms: int) -> None:
        self.now_ms += ms

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        before = list(self.topic.snapshot())
        if from_snapshot:
            self.log = [*before]
        self.topic = replayed(self.log)
        assert list(self.topic.snapshot()) == before

    @invariant()
    def each_partition_is_as_if_it_had_its_own_machine(self) -> None:
        assert self.topic.end == len(self.each)
        for partition, own in self.each.items():
            assert self.topic.at(partition, CONFIG).snapshot() == own.snapshot()
            assert self.topic.next_offset(partition) == own.next_offset
            assert self.topic.low_offset(partition) == own.low_offset
        assert self.open_count == sum(own.open_count for own in self.each.values())

    @invariant()
    def only_what_is_open_has_a_machine(self) -> None:
        assert set(self.topic.open) == {at for at, own in self.each.items() if own.open_count}


TopicLeasesModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTopicLeasesModel = TopicLeasesModel.TestCase


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_records_become_ready_in_the_same_order_after_a_restart(from_snapshot: bool) -> None:
    """Record 1 was ready from the beginning, and that old time put it before record 0 until a restart forgot it."""
    model = TopicLeasesModel()
    model.begin_at(0, [0])
    model.receive(partition=0, limit=1, fresh_count=2)
    model.receive(partition=0, limit=1, fresh_count=0)
    model.the_clock_moves(30)
    assert model.topic.at(0, CONFIG).ready(model.now_ms, 1) == [0]
    model.restart(from_snapshot)
    model.receive(partition=0, limit=1, fresh_count=0)


@pytest.mark.parametrize("is_at_end", [False, True])
def test_a_thousand_partitions_that_gave_nothing_take_less_than_20_bytes_each(is_at_end: bool) -> None:
    """They were 1,500 each, and an event of 120 bytes in the log."""
    event = TopicLeases("g", 16).decide_begin(0, [1_000_000 + at if is_at_end else 0 for at in range(1024)], 5)
    assert len(encode_event(event)) < (10_000 if is_at_end else 120)
    tracemalloc.start()
    try:
        topics = [replayed([event]) for _ in range(20)]
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes / len(topics) < (20 * 1024 if is_at_end else 2048)
    assert topics[0].open == {}


def test_leases_of_a_version_without_a_begin_are_read() -> None:
    """It wrote `leases_set` for each partition, and its receipts are still good."""
    begun = [LeasesSet("g", 16, partition, 7, 10 * partition, ()) for partition in range(3)]
    taken = [Leased("g", 16, 1, 12, (10, 11), (), (10, 11), 99), Settled("g", 16, 1, (10,))]
    made = replayed([*begun, *taken])
    assert [made.next_offset(partition) for partition in range(3)] == [0, 12, 20]
    assert (made.end, list(made.open), made.low_offset(1)) == (3, [1], 11)
    receipts = [Receipt(16, 1, 10, 1, 99, 7), Receipt(16, 1, 11, 1, 99, 7), Receipt(16, 1, 11, 1, 99, 6)]
    assert made.at(1, CONFIG).decide_ack(receipts, 50).verdicts == [Verdict.OK, Verdict.OK, Verdict.STALE]
    assert made.at(2, CONFIG).verdicts([Receipt(16, 2, 5, 1, 99, 6)], 50) == [Verdict.STALE]


def test_a_begin_is_small_where_partitions_begin_with_their_first_record() -> None:
    begun = TopicLeases("g", 16).decide_begin(0, [0, 5, 0, 0], 9)
    assert begun == LeasesBegun("g", 16, 9, 0, 4, (0, 5))
    assert list(replayed([begun]).snapshot()) == [begun]

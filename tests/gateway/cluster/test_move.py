"""The steps of a move: on records by themselves, in a world where everything goes wrong, and with each rule left out.

Covers gateway.cluster.move and gateway.brokers.kafka.fencing. MQ_MOVE_STEPS sets how far the long form goes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.brokers.kafka.fencing import Batch, Sent, Tenure, own_end
from gateway.cluster import move
from gateway.cluster.record import (
    SEGMENTS_MAX,
    PartitionRecord,
    PartitionState,
    SegmentRecord,
    check,
    decode,
    encode,
)
from store.limits import PARTITIONS_MAX
from tests.gateway.cluster.move_world import Item, MoveWorld, Queue, Rules, tenure_of

STEPS = 300
SEEDS = 60
LONG_STEPS = int(os.environ.get("MQ_MOVE_STEPS", "12_000_000"))
MUTANT_SEEDS = 400

FIRST = PartitionRecord(epoch=0, owner="n1", segments=(SegmentRecord(start=0, broker="n1", queue=(16, 2)),))


def moved(record: PartitionRecord, to: str, end: int, now_ms: int = 5) -> PartitionRecord:
    begun = move.intent(record, to)
    queue = (16, move.queue_id_for(2, begun.epoch))
    done = move.commit(begun, end=end, owner=to, queue=queue, physical=0, now_ms=now_ms)
    check(done)
    return done


def test_a_move_ends_one_segment_and_opens_the_next_at_the_following_offset() -> None:
    begun = move.intent(FIRST, "n2")
    assert (begun.epoch, begun.state, begun.to) == (1, PartitionState.SEALING, "n2")
    assert tenure_of(begun, "n1") is None
    check(begun)
    done = moved(moved(FIRST, "n2", 101), "n1", 20)
    assert [(s.start, s.broker, s.queue, s.end, s.epoch) for s in done.segments] == [
        (0, "n1", (16, 2), 101, 0),
        (101, "n2", (16, PARTITIONS_MAX + 2), 20, 1),
        (121, "n1", (16, 2 * PARTITIONS_MAX + 2), None, 2),
    ]
    assert (tenure_of(done, "n1"), tenure_of(done, "n2")) == (2, None)
    assert decode(encode(done)) == done


def test_a_segment_without_records_leaves_no_trace() -> None:
    there_and_back = moved(moved(FIRST, "n2", 101), "n1", 0)
    assert [(s.start, s.broker) for s in there_and_back.segments] == [(0, "n1"), (101, "n1")]


def test_a_move_that_was_left_is_finished_by_another_intent() -> None:
    left = move.intent(FIRST, "n2")
    again = move.intent(left, "n3")
    assert (again.epoch, again.to) == (2, "n3")
    assert moved(left, "n3", 7).open_segment.start == 7


def test_what_was_not_begun_cannot_be_committed_and_no_segment_ends_before_it_begins() -> None:
    with pytest.raises(ValueError, match="begun"):
        move.commit(FIRST, end=1, owner="n2", queue=(16, 0), physical=0, now_ms=0)
    begun = replace(move.intent(FIRST, "n2"), segments=(replace(FIRST.open_segment, physical=5),))
    with pytest.raises(ValueError, match="cannot end"):
        move.commit(begun, end=4, owner="n2", queue=(16, 0), physical=0, now_ms=0)


def test_a_chain_takes_its_limit_of_segments_and_no_more() -> None:
    record = FIRST
    for _ in range(SEGMENTS_MAX - 1):
        begun = move.intent(record, "n2")
        queue = (16, move.queue_id_for(2, begun.epoch))
        record = move.commit(begun, end=10, owner="n2", queue=queue, physical=0, now_ms=1_800_000_000_000)
    check(record)
    assert len(record.segments) == SEGMENTS_MAX
    assert len(encode(record)) < 1024 * 1024 - 1024, "it fits a value of the metadata"
    with pytest.raises(move.ChainFull):
        move.intent(record, "n2")


def test_trimming_takes_the_first_segments_that_have_expired_and_never_the_open_one() -> None:
    record = moved(moved(moved(FIRST, "n2", 10), "n1", 10), "n2", 10)
    assert move.trim(record, [9, 10, 10, 0]) == record
    assert move.trim(record, [10, 9, 10, 0]).segments == record.segments[1:]
    assert move.trim(record, [10, 10, 10, 10]).segments == record.segments[3:]


def test_queues_of_epochs_and_partitions_never_meet() -> None:
    ids = [move.queue_id_for(partition, epoch) for partition in range(PARTITIONS_MAX) for epoch in range(3)]
    assert len(set(ids)) == len(ids)
    assert move.queue_id_for(PARTITIONS_MAX - 1, 0) == PARTITIONS_MAX - 1


def test_an_owner_acknowledges_in_order_and_nothing_behind_a_gap() -> None:
    tenure: Tenure[str] = Tenure(10)
    first, second, third = tenure.send(2), tenure.send(1), tenure.send(1)
    assert tenure.stored(second, 12, "b") == []
    assert tenure.stored(first, 10, "a") == ["a", "b"]
    assert tenure.stored(third, 14, "c") == []
    assert tenure.is_in_doubt
    assert tenure.stored(tenure.send(1), 14, "d") == []


def test_a_segment_ends_at_the_first_batch_of_another_epoch() -> None:
    batches = [Batch(5, 2, 3), Batch(7, 1, 3), Batch(8, 1, None), Batch(9, 1, 3)]
    assert own_end(batches, 5, 3) == 8
    assert own_end(batches[3:], 9, 3) == 10
    assert own_end([], 5, 3) == 5


# ---- the world -----------------------------------------------------------------------------------------------------


def run(seed: int, steps: int, rules: Rules | None = None) -> MoveWorld:
    world = MoveWorld(Random(seed), rules)
    for _ in range(Random(seed).randrange(steps // 2, steps)):
        world.step()
    world.finish()
    return world


def test_a_partition_moves_and_is_taken_over_while_everything_goes_wrong() -> None:
    worlds = [run(seed, STEPS) for seed in range(SEEDS)]
    for what in worlds[0].counts:
        assert sum(world.counts[what] for world in worlds) > SEEDS // 4, f"hardly any {what}: the test sees nothing"


@given(st.randoms(use_true_random=False), st.integers(1, 40))
@settings(max_examples=25, suppress_health_check=[HealthCheck.large_base_example, HealthCheck.data_too_large])
def test_the_smallest_histories_hold_too(random: Random, steps: int) -> None:
    world = MoveWorld(random)
    for _ in range(steps):
        world.step()
    world.finish()


@pytest.mark.long
def test_a_partition_moves_for_millions_of_steps() -> None:
    seed = done = 0
    while done < LONG_STEPS:
        run(seed, 400)
        seed, done = seed + 1, done + 300


# ---- each rule, left out -------------------------------------------------------------------------------------------


class AnyPosition(Tenure[int]):
    def stored(self, sent: Sent, base_offset: int, token: int) -> list[int]:
        return [token]


class AnyOrder(Tenure[int]):
    def stored(self, sent: Sent, base_offset: int, token: int) -> list[int]:
        self.is_in_doubt = self.is_in_doubt or base_offset != sent.expected_offset
        return [] if self.is_in_doubt else [token]


class UnsealedQueue(Queue):
    def append(self, epoch: int, sequence: int, record: int) -> int:
        self.log.append(Item(record, epoch))
        return len(self.log) - 1


def until_the_last(batches: Sequence[Batch], start: int, epoch: int) -> int:
    return batches[-1].next_offset if batches else start


def same_epoch(record: PartitionRecord, to: str) -> PartitionRecord:
    return replace(record, state=PartitionState.SEALING, to=to)


def refuse_what_was_left(record: PartitionRecord, to: str) -> PartitionRecord:
    if record.state is PartitionState.SEALING:
        return record
    return move.intent(record, to)


class HastyQueue(Queue):
    def seal(self) -> int:
        super().seal()
        return max(0, len(self.log) - 1)  # as if the writer had not finished


def gapped(record: PartitionRecord, **answers: Any) -> PartitionRecord:
    done = move.commit(record, **answers)
    opened = replace(done.open_segment, start=record.open_segment.start + answers["end"])
    return replace(done, segments=(*done.segments[:-1], opened))


def trim_at_once(record: PartitionRecord, min_offsets: Sequence[int]) -> PartitionRecord:
    return replace(record, segments=record.segments[1:]) if len(record.segments) > 1 else record


MUTANTS = {
    "a compare-and-set that does not compare": (Rules(has_compare=False), "1234567"),
    "an owner that does not look at positions": (Rules(tenure=AnyPosition), "237"),
    "an owner that acknowledges out of order": (Rules(tenure=AnyOrder), "27"),
    "a Kafka segment that ends at its fence": (Rules(sealed_end=until_the_last), "5"),
    "a reader that shows whatever is there": (Rules(shown_end=until_the_last), "3"),
    "a Kafka segment that begins with its fence": (Rules(open_kafka=lambda kafka, epoch: kafka.fence(epoch)), "58"),
    "a sealed queue that takes records": (Rules(queue=UnsealedQueue), "237"),
    "a seal that does not wait for the writer": (Rules(queue=HastyQueue), "23"),
    "a new segment that does not follow the old one": (Rules(commit=gapped), "1"),
    "an owner that serves before its commit is known": (Rules(waits_for_commit=False), "238"),
    "an intent without a new epoch": (Rules(intent=same_epoch), "168"),
    "a move that nobody takes up when it was left": (Rules(intent=refuse_what_was_left), "18"),
    "an embedded queue that is used again": (Rules(queue_id=lambda partition, epoch: partition), "8"),
    "a move that tells no ids": (Rules(tells_ids=False, tells_later_ids=False), "4"),
    "a move that tells ids only before its seal": (Rules(tells_later_ids=False), "4"),
    "a move that does not pass on what it was told": (Rules(passes_ids_on=False), "4"),
    "a trim that does not ask what has expired": (Rules(trim=trim_at_once), "9"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_any_one_rule_an_invariant_breaks(name: str) -> None:
    rules, invariants = MUTANTS[name]
    found = next((broken for seed in range(MUTANT_SEEDS) if (broken := broken_by(seed, rules))), "none")
    assert found[0] in invariants, found


def broken_by(seed: int, rules: Rules) -> str:
    """What a history breaks, the number of the invariant first; empty when it holds all."""
    try:
        run(seed, STEPS, rules)
    except AssertionError as error:
        return str(error)
    return ""

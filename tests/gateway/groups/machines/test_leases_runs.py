"""Leases kept by run, against the same machine with a row for each record: whatever is asked, they answer alike, write
the same events, and snapshots of them are equal.

`Fresh` ones and ranges are taken; runs are cut short, so that what spans several is seen too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.events import LeaseEvent, decode_events, encode_event
from gateway.groups.machines.leases import Decision, Fresh, Lease, PartitionLeases
from gateway.groups.machines.receipts import Receipt

Answer = TypeVar("Answer")
RUN = 5
CONFIG = GroupConfig(max_attempts=3, in_flight_max=40, backoff_ms=(10, 50))


@contextmanager
def runs_of(count: int) -> Iterator[None]:
    with patch("gateway.groups.machines.leases.RUN_RECORDS_MAX", count):
        yield


def in_runs(receipts: list[Receipt]) -> list[Receipt]:
    """The same, as clients' texts of runs are read: one for those that stand in order."""
    runs: list[Receipt] = []
    for receipt in receipts:
        if (
            runs
            and receipt._replace(offset=0) == runs[-1]._replace(offset=0, size=1)
            and (receipt.offset == runs[-1].offset + runs[-1].size)
        ):
            runs[-1] = runs[-1]._replace(size=runs[-1].size + 1)
        else:
            runs.append(receipt)
    return runs


class Twins(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.log: list[LeaseEvent] = []
        self.given: list[Lease] = []

    @initialize(max_attempts=st.integers(1, 3))
    def begin(self, max_attempts: int) -> None:
        self.config = GroupConfig(max_attempts=max_attempts, in_flight_max=40, backoff_ms=(10, 50))
        self.by_run = PartitionLeases("g", 16, 0, self.config)
        self.by_row = PartitionLeases("g", 16, 0, self.config)

    def both(self, ask: Callable[[PartitionLeases], Answer]) -> Answer:
        answer = ask(self.by_run)
        assert ask(self.by_row) == answer
        return answer

    def write(self, events: list[LeaseEvent]) -> None:
        self.log += events
        with runs_of(RUN):
            for event in events:
                self.by_run.apply(event)
        with runs_of(0):
            for event in events:
                self.by_row.apply(event)
        assert not self.by_row._state.runs

    def decide(self, decision: Decision) -> None:
        self.write(decision.events)

    @rule(
        limit=st.integers(1, 12),
        fresh_count=st.integers(0, 12),
        gap=st.integers(0, 1),
        is_range=st.booleans(),
        wait_ms=st.integers(1, 100),
        attempt_id=st.sampled_from([None, None, None, "a"]),
    )
    def receive(
        self, limit: int, fresh_count: int, gap: int, is_range: bool, wait_ms: int, attempt_id: str | None
    ) -> None:
        first = self.by_run.next_offset + gap  # retention took what is before it
        taken = range(first, first + min(fresh_count, self.both(lambda one: one.room)))
        fresh = taken if is_range else [Fresh(offset) for offset in taken]
        old = self.both(lambda one: one.ready(self.now_ms, limit))
        leases, events = self.both(
            lambda one: one.decide_receive(
                old, fresh, fetched_to=taken.stop, limit=limit, invisible_ms=wait_ms, now_ms=self.now_ms,
                attempt_id=attempt_id,
            )
        )  # fmt: skip
        self.write(events)
        self.given += [
            Lease(at, one.attempt, one.until_ms) for one in leases for at in range(one.offset, one.offset + one.size)
        ]

    def draw(self, data: st.DataObject) -> list[Receipt]:
        if data.draw(st.booleans()):  # those of one receive, or of many
            at = data.draw(st.integers(0, len(self.given) - 1))
            leases = self.given[at : at + data.draw(st.integers(1, 12))]
        else:
            leases = data.draw(st.lists(st.sampled_from(self.given), max_size=6))
        return [Receipt(16, 0, lease.offset, lease.attempt, lease.until_ms, 0) for lease in leases]

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        receipts = self.draw(data)
        decision = self.both(lambda one: one.decide_ack(receipts, self.now_ms))
        assert self.both(lambda one: one.decide_ack(in_runs(receipts), self.now_ms)) == decision
        self.decide(decision)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), delay_ms=st.none() | st.integers(0, 100), reason=st.sampled_from(["", "no"]))
    def nack(self, data: st.DataObject, delay_ms: int | None, reason: str) -> None:
        receipts = self.draw(data)
        self.decide(self.both(lambda one: one.decide_nack(receipts, self.now_ms, delay_ms=delay_ms, reason=reason)))

    @precondition(lambda self: self.given)
    @rule(data=st.data(), wait_ms=st.integers(1, 100))
    def extend(self, data: st.DataObject, wait_ms: int) -> None:
        receipts = self.draw(data)
        self.decide(self.both(lambda one: one.decide_extend(receipts, wait_ms, self.now_ms)))

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        receipts = self.draw(data)
        decision = self.both(lambda one: one.decide_give_back(receipts, self.now_ms))
        assert self.both(lambda one: one.decide_give_back(in_runs(receipts), self.now_ms)) == decision
        self.decide(decision)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        receipts = self.draw(data)
        self.decide(self.both(lambda one: one.decide_reject(receipts, "no", self.now_ms)))

    @rule(offset=st.integers(0, 60))
    def ack_up_to(self, offset: int) -> None:
        self.write(self.both(lambda one: one.decide_ack_up_to(offset, self.now_ms)))

    @rule()
    def dead_letters(self) -> None:
        letters = self.both(lambda one: one.dead_letters(self.now_ms, 100))
        self.write(self.both(lambda one: one.decide_settle(letter.offset for letter in letters)))

    @rule(offset=st.integers(0, 60))
    def one_is_gone_from_the_log(self, offset: int) -> None:
        self.write(self.both(lambda one: one.decide_settle([offset, offset])))

    @rule(max_attempts=st.integers(1, 3))
    def reconfigure(self, max_attempts: int) -> None:
        self.config = GroupConfig(max_attempts=max_attempts, in_flight_max=40, backoff_ms=(10, 50))
        self.by_run.reconfigure(self.config)
        self.by_row.reconfigure(self.config)

    @rule(ms=st.integers(-20, 60))
    def the_clock_moves(self, ms: int) -> None:
        self.now_ms += ms

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        before = self.by_run.snapshot()
        if from_snapshot:
            self.log = [before]
        self.by_run = PartitionLeases("g", 16, 0, self.config)
        self.by_row = PartitionLeases("g", 16, 0, self.config)  # a look may have dropped times that nothing waits for
        log = [cast(LeaseEvent, event) for event in decode_events(map(encode_event, self.log))]
        with runs_of(RUN):
            for event in log:
                self.by_run.apply(event)
        with runs_of(0):
            for event in log:
                self.by_row.apply(event)
        assert self.by_run.snapshot() == before

    @invariant()
    def they_are_alike(self) -> None:
        if not hasattr(self, "by_run"):
            return
        for look in (
            PartitionLeases.snapshot,
            lambda one: one.low_offset,
            lambda one: one.open_count,
            lambda one: set(one.open_offsets()),
            lambda one: one.leased_count(self.now_ms),
            lambda one: one.waiting_count(self.now_ms),
            lambda one: one.may_have_dead_letters,
            lambda one: one.leases_of("a", self.now_ms),
            PartitionLeases.next_due_ms,
        ):
            self.both(look)
        state = self.by_run._state
        assert state.run_firsts == sorted(state.runs)
        assert state.run_open_count == sum(run.open_count for run in state.runs.values())
        assert all(run.open_count == run.open_bits.bit_count() > 0 for run in state.runs.values())
        assert len(state.lows) <= 2 * len(state.records) + 65


Twins.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestTwins = Twins.TestCase


@pytest.mark.parametrize("count", [1, RUN, RUN + 1, 3 * RUN])
def test_a_receive_is_runs_and_acks_leave_nothing(count: int) -> None:
    machine = PartitionLeases("g", 16, 0, CONFIG)
    leases, events = machine.decide_receive(
        (), range(7, 7 + count), fetched_to=7 + count, limit=count, invisible_ms=100, now_ms=0
    )
    with runs_of(RUN):
        machine.apply(events[0])
    state = machine._state
    assert [(run.first, run.end) for run in state.runs.values()] == [
        (first, min(first + RUN, 7 + count)) for first in range(7, 7 + count, RUN)
    ]
    assert not state.records
    (lease,) = leases
    receipts = Receipt(16, 0, lease.offset, lease.attempt, lease.until_ms, 0, lease.size).each()
    for receipt in reversed(receipts):
        (settled,) = machine.decide_ack([receipt], 1).events
        machine.apply(settled)
    assert (machine.open_count, machine.low_offset, state.runs, state.run_firsts) == (0, 7 + count, {}, [])


def test_a_run_that_is_extended_again_and_again_stays_one_and_takes_no_more_memory() -> None:
    machine = PartitionLeases("g", 16, 0, CONFIG)
    leases, events = machine.decide_receive((), range(8), fetched_to=8, limit=8, invisible_ms=100, now_ms=0)
    machine.apply(events[0])
    (lease,) = leases
    receipts = Receipt(16, 0, lease.offset, lease.attempt, lease.until_ms, 0, lease.size).each()
    for now_ms in range(300):
        (moved,) = machine.decide_extend(receipts, 100, now_ms).events
        machine.apply(moved)
    assert len(machine._state.runs) == 1
    assert len(machine._state.due) <= 2 + 64
    assert machine.next_due_ms() == 399
    assert machine.ready(398, 10) == []
    assert machine.ready(399, 10) == list(range(8))

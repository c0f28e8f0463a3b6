"""Leases under any order of receives, acks, restarts and clock steps, against a model of plain dicts.

The model knows for each taken record only: done or not, how often it was handed out, until when it is out or waits.

    lost      a record that is not done can be handed out again, or is a dead letter, once all times have passed
    once      no record is handed out while it is out, or waits, or an earlier one of its message group is open
    ack       a receipt is accepted exactly while its lease holds
    replay    the log, and the snapshot, lead another machine to the same state
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.events import LeaseEvent, decode_events, encode_event
from gateway.groups.machines.leases import Fresh, Lease, PartitionLeases, Verdict
from gateway.groups.machines.receipts import Receipt


@dataclass
class Row:
    """What the model knows of one open record."""

    attempt: int = 0
    busy_until_ms: int = 0
    holder: int = 0  # attempt number of the lease that holds, 0 if none
    finished: bool = False


class LeasesModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.log: list[bytes] = []
        self.open: dict[int, Row] = {}
        self.done: set[int] = set()
        self.given: list[Lease] = []

    @initialize(fifo=st.booleans(), max_attempts=st.integers(1, 4))
    def begin(self, fifo: bool, max_attempts: int) -> None:
        self.config = GroupConfig(fifo=fifo, max_attempts=max_attempts, in_flight_max=8, backoff_ms=(10, 50))
        self.machine = PartitionLeases("g", 16, 0, self.config)

    def message_group(self, offset: int) -> str | None:
        return [None, "a", "b", "a"][offset % 4] if self.config.fifo else None

    def write(self, events: list[LeaseEvent]) -> None:
        for event in events:
            self.log.append(encode_event(event))
            self.machine.apply(event)

    def may_be_leased(self, offset: int) -> bool:
        row = self.open[offset]
        group = self.message_group(offset)
        return (
            row.busy_until_ms <= self.now_ms
            and not row.finished
            and row.attempt < self.config.max_attempts
            and (group is None or all(self.message_group(other) != group for other in self.open if other < offset))
        )

    @rule(limit=st.integers(1, 5), fresh_count=st.integers(0, 5), skip=st.integers(0, 6), wait_ms=st.integers(1, 100))
    def receive(self, limit: int, fresh_count: int, skip: int, wait_ms: int) -> None:
        first = self.machine.next_offset
        taken = range(first, first + min(fresh_count, self.machine.room))
        fresh = [Fresh(offset, self.message_group(offset)) for offset in taken if offset % 7 != skip]
        old = self.machine.ready(self.now_ms, limit)
        leasable = {offset for offset in self.open if self.may_be_leased(offset)}
        assert set(old) <= leasable
        assert len(old) == min(limit, len(leasable))
        leases, events = self.machine.decide_receive(
            old, fresh, fetched_to=taken.stop, limit=limit, invisible_ms=wait_ms, now_ms=self.now_ms
        )
        self.write(events)
        self.done |= {offset for offset in taken if offset % 7 == skip}
        self.open |= {record.offset: Row() for record in fresh}
        assert len(leases) <= limit
        may = {lease.offset for lease in leases if self.may_be_leased(lease.offset)}
        assert may == {lease.offset for lease in leases}
        for lease in leases:
            row = self.open[lease.offset]
            row.attempt += 1
            row.holder, row.busy_until_ms = row.attempt, self.now_ms + wait_ms
            assert lease == Lease(lease.offset, row.attempt, row.busy_until_ms)
        self.given += leases

    def verdicts(self, leases: list[Lease], *, is_done_ok: bool) -> list[Verdict]:
        def verdict(lease: Lease) -> Verdict:
            if lease.offset in self.done:
                return Verdict.OK if is_done_ok else Verdict.EXPIRED
            row = self.open[lease.offset]
            holds = row.holder == lease.attempt and self.now_ms < row.busy_until_ms
            return Verdict.OK if holds else Verdict.EXPIRED

        return [verdict(lease) for lease in leases]

    def draw(self, data: st.DataObject) -> tuple[list[Lease], list[Receipt]]:
        leases = data.draw(st.lists(st.sampled_from(self.given), max_size=4))
        return leases, [Receipt(16, 0, lease.offset, lease.attempt, lease.until_ms, 0) for lease in leases]

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        leases, receipts = self.draw(data)
        decision = self.machine.decide_ack(receipts, self.now_ms)
        assert decision.verdicts == self.verdicts(leases, is_done_ok=True)
        self.write(decision.events)
        for lease, verdict in zip(leases, decision.verdicts, strict=True):
            if verdict is Verdict.OK:
                self.open.pop(lease.offset, None)
                self.done.add(lease.offset)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), delay_ms=st.none() | st.integers(0, 100))
    def nack(self, data: st.DataObject, delay_ms: int | None) -> None:
        leases, receipts = self.draw(data)
        decision = self.machine.decide_nack(receipts, self.now_ms, delay_ms=delay_ms)
        assert decision.verdicts == self.verdicts(leases, is_done_ok=False)
        self.write(decision.events)
        for lease, verdict in zip(leases, decision.verdicts, strict=True):
            if verdict is Verdict.OK:
                row = self.open[lease.offset]
                wait_ms = ((10, 50, 50, 50)[row.attempt - 1]) if delay_ms is None else delay_ms
                is_last = row.attempt >= self.config.max_attempts
                row.holder, row.busy_until_ms = 0, self.now_ms + (0 if is_last else wait_ms)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), wait_ms=st.integers(1, 100))
    def extend(self, data: st.DataObject, wait_ms: int) -> None:
        leases, receipts = self.draw(data)
        decision = self.machine.decide_extend(receipts, wait_ms, self.now_ms)
        assert decision.verdicts == self.verdicts(leases, is_done_ok=False)
        self.write(decision.events)
        for lease, verdict in zip(leases, decision.verdicts, strict=True):
            if verdict is Verdict.OK:
                self.open[lease.offset].busy_until_ms = self.now_ms + wait_ms

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        leases, receipts = self.draw(data)
        decision = self.machine.decide_reject(receipts, "no", self.now_ms)
        assert decision.verdicts == self.verdicts(leases, is_done_ok=False)
        self.write(decision.events)
        for lease, verdict in zip(leases, decision.verdicts, strict=True):
            if verdict is Verdict.OK:
                self.open[lease.offset].finished, self.open[lease.offset].holder = True, 0

    @rule(is_copied=st.booleans())
    def dead_letters(self, is_copied: bool) -> None:
        letters = self.machine.dead_letters(self.now_ms, 100)
        assert [letter.offset for letter in letters] == [
            offset
            for offset, row in self.open.items()
            if row.finished or (row.attempt >= self.config.max_attempts and row.busy_until_ms <= self.now_ms)
        ]
        if is_copied:
            self.write(self.machine.decide_settle(letter.offset for letter in letters))
            for letter in letters:
                del self.open[letter.offset]
                self.done.add(letter.offset)

    @rule(ms=st.integers(-20, 60))
    def the_clock_moves(self, ms: int) -> None:
        self.now_ms += ms

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        before = self.machine.snapshot()
        if from_snapshot:
            self.log = [encode_event(before)]
        self.machine = PartitionLeases("g", 16, 0, self.config)
        for event in decode_events(self.log):
            self.machine.apply(cast(LeaseEvent, event))
        assert self.machine.snapshot() == before

    @rule()
    def nothing_is_lost_when_all_times_have_passed(self) -> None:
        later_ms = self.now_ms + 1000
        letters = {letter.offset for letter in self.machine.dead_letters(later_ms, 100)}
        ready = set(self.machine.ready(later_ms, 100))
        withheld = {
            offset
            for offset in self.open
            if self.message_group(offset) is not None
            and any(self.message_group(other) == self.message_group(offset) for other in self.open if other < offset)
        }
        assert letters | ready | withheld == set(self.open)
        assert not letters & ready

    @invariant()
    def what_is_open_is_what_is_not_done(self) -> None:
        if not hasattr(self, "machine"):
            return
        assert self.machine.open_count == len(self.open) <= self.config.in_flight_max
        assert self.machine.low_offset == min(self.open, default=self.machine.next_offset)
        assert set(range(self.machine.next_offset)) == self.done | set(self.open)
        due_ms = self.machine.next_due_ms()
        if any(self.may_be_leased(offset) for offset in self.open):
            assert due_ms is not None
            assert due_ms <= self.now_ms


LeasesModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLeasesModel = LeasesModel.TestCase

"""Leases by example: attempts, back-off, dead letters, FIFO, repeated receives. Beside it: test_leases_model.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.errors import IllegalRequest
from gateway.groups.machines.events import LeaseEvent, decode_events, encode_event
from gateway.groups.machines.leases import (
    ATTEMPT_ID_BYTES_MAX,
    EXHAUSTED,
    DeadLetter,
    Decision,
    Fresh,
    Lease,
    PartitionLeases,
    Verdict,
)
from gateway.groups.machines.receipts import Receipt

OK, EXPIRED, STALE = Verdict.OK, Verdict.EXPIRED, Verdict.STALE
INVISIBLE_MS = 1000


class Queue:
    """One partition's leases with its shell's duties: what is decided is written and applied at once."""

    def __init__(self, message_groups: Sequence[str | None] = (), **settings: int | tuple[int, ...]) -> None:
        self.config = GroupConfig(fifo=bool(message_groups), **settings)  # type: ignore[arg-type]
        self.machine = PartitionLeases("g", 16, 0, self.config)
        self.message_groups = message_groups
        self.now_ms = 1_767_225_600_000
        self.log: list[bytes] = []

    def do(self, events: Sequence[LeaseEvent]) -> None:
        for event in events:
            self.log.append(encode_event(event))
            self.machine.apply(event)

    def decided(self, decision: Decision) -> list[Verdict]:
        self.do(decision.events)
        return decision.verdicts

    def receive(self, limit: int, fresh_count: int = 0, attempt_id: str | None = None) -> list[Lease]:
        first = self.machine.next_offset
        fresh = [
            Fresh(offset, self.message_groups[offset] if self.message_groups else None)
            for offset in range(first, first + fresh_count)
        ]
        leases, events = self.machine.decide_receive(
            self.machine.ready(self.now_ms, limit),
            fresh,
            fetched_to=first + fresh_count,
            limit=limit,
            invisible_ms=INVISIBLE_MS,
            now_ms=self.now_ms,
            attempt_id=attempt_id,
        )
        self.do(events)
        return leases

    def receipt(self, lease: Lease, **changes: int) -> Receipt:
        return Receipt(16, 0, lease.offset, lease.attempt, lease.until_ms, self.machine.epoch)._replace(**changes)

    def ack(self, *leases: Lease) -> list[Verdict]:
        return self.decided(self.machine.decide_ack([self.receipt(lease) for lease in leases], self.now_ms))

    def nack(self, *leases: Lease, delay_ms: int | None = None) -> list[Verdict]:
        receipts = [self.receipt(lease) for lease in leases]
        return self.decided(self.machine.decide_nack(receipts, self.now_ms, delay_ms=delay_ms))


def offsets(leases: list[Lease]) -> list[int]:
    return [lease.offset for lease in leases]


def test_records_are_leased_once_and_done_after_their_ack() -> None:
    queue = Queue()
    leases = queue.receive(3, fresh_count=4)
    assert leases == [Lease(offset, 1, queue.now_ms + INVISIBLE_MS) for offset in range(3)]
    assert offsets(queue.receive(10)) == [3]
    assert queue.receive(10) == []
    assert queue.ack(leases[0], leases[2]) == [OK, OK]
    assert (queue.machine.low_offset, queue.machine.next_offset, queue.machine.open_count) == (1, 4, 2)
    assert queue.ack(leases[1]) == [OK]
    assert queue.machine.low_offset == 3


def test_acking_twice_is_fine_and_writes_nothing() -> None:
    queue = Queue()
    (lease,) = queue.receive(1, fresh_count=1)
    queue.ack(lease)
    assert queue.machine.decide_ack([queue.receipt(lease)], queue.now_ms) == Decision([OK], [])


def test_a_lease_that_ends_is_given_to_the_next_and_its_receipt_is_void() -> None:
    queue = Queue()
    (first,) = queue.receive(1, fresh_count=1)
    assert queue.machine.next_due_ms() == first.until_ms
    queue.now_ms += INVISIBLE_MS - 1
    assert queue.receive(1) == []
    queue.now_ms += 1
    assert queue.ack(first) == [EXPIRED]
    (second,) = queue.receive(1)
    assert second == Lease(0, 2, queue.now_ms + INVISIBLE_MS)
    assert (queue.ack(first), queue.ack(second)) == ([EXPIRED], [OK])
    assert queue.machine.next_due_ms() is None


def test_an_extended_lease_lasts_longer() -> None:
    queue = Queue()
    (lease,) = queue.receive(1, fresh_count=1)
    queue.now_ms += INVISIBLE_MS - 1
    decision = queue.machine.decide_extend([queue.receipt(lease)], 5000, queue.now_ms)
    assert queue.decided(decision) == [OK]
    queue.now_ms += 4999
    assert queue.receive(1) == []
    assert queue.ack(lease) == [OK]


def test_a_record_given_back_waits_by_the_table_or_as_asked() -> None:
    queue = Queue(backoff_ms=(10, 200))
    (lease,) = queue.receive(1, fresh_count=1)
    for wait_ms in (10, 200, 200):
        assert queue.nack(lease) == [OK]
        assert queue.ack(lease) == [EXPIRED]
        queue.now_ms += wait_ms - 1
        assert queue.receive(1) == []
        queue.now_ms += 1
        (lease,) = queue.receive(1)
    assert lease.attempt == 4
    assert queue.nack(lease, delay_ms=0) == [OK]
    assert offsets(queue.receive(1)) == [0]


def test_what_the_last_nack_said_is_the_reason_of_the_dead_letter_and_survives_a_restart() -> None:
    queue = Queue(max_attempts=2, backoff_ms=(10,))
    leases = queue.receive(2, fresh_count=2)
    now_ms = queue.now_ms
    queue.do(queue.machine.decide_nack([queue.receipt(one) for one in leases], now_ms, delay_ms=0, reason="no").events)
    one, other = queue.receive(2)
    decision = queue.machine.decide_nack([queue.receipt(one), queue.receipt(one)], now_ms, delay_ms=500, reason="db")
    assert queue.decided(decision) == [OK, OK]
    letters = [DeadLetter(0, 2, f"{EXHAUSTED}: db")]
    assert queue.machine.dead_letters(now_ms, 10) == letters
    again = PartitionLeases("g", 16, 0, queue.config)
    again.apply(queue.machine.snapshot())
    assert again.dead_letters(now_ms, 10) == letters
    assert queue.ack(other) == [OK]


def test_after_the_last_attempt_a_record_is_a_dead_letter_until_its_copy_is_durable() -> None:
    queue = Queue(max_attempts=2, backoff_ms=(10,))
    leases = queue.receive(2, fresh_count=2)
    queue.nack(*leases, delay_ms=0)
    given_back, left = queue.receive(2)
    queue.nack(given_back)
    assert queue.machine.dead_letters(queue.now_ms, 10) == [DeadLetter(0, 2, EXHAUSTED)]
    queue.now_ms = left.until_ms
    letters = queue.machine.dead_letters(queue.now_ms, 10)
    assert letters == [DeadLetter(0, 2, EXHAUSTED), DeadLetter(1, 2, EXHAUSTED)]
    assert queue.machine.dead_letters(queue.now_ms, 1) == letters[:1]
    assert queue.receive(10) == []
    assert queue.machine.low_offset == 0
    queue.do(queue.machine.decide_settle(offset for offset, _, _ in letters))
    assert (queue.machine.low_offset, queue.machine.dead_letters(queue.now_ms, 10)) == (2, [])
    assert queue.machine.decide_settle(offset for offset, _, _ in letters) == []


def test_a_rejected_record_is_a_dead_letter_at_once() -> None:
    queue = Queue()
    (lease,) = queue.receive(1, fresh_count=1)
    decision = queue.machine.decide_reject([queue.receipt(lease)], "bad schema", queue.now_ms)
    assert queue.decided(decision) == [OK]
    queue.now_ms += 10 * INVISIBLE_MS
    assert queue.receive(1) == []
    assert queue.ack(lease) == [EXPIRED]
    assert queue.machine.dead_letters(queue.now_ms, 10) == [DeadLetter(0, 1, "bad schema")]


def test_records_of_one_message_group_come_one_after_the_other() -> None:
    queue = Queue(["a", "a", "b", None, "a", None])
    first = queue.receive(10, fresh_count=6)
    assert offsets(first) == [0, 2, 3, 5]
    assert queue.receive(10) == []
    queue.nack(first[0], delay_ms=100)  # what comes after it waits too
    assert queue.receive(10) == []
    queue.now_ms += 100
    (again,) = queue.receive(10)
    assert again.offset == 0
    queue.ack(again)
    (second,) = queue.receive(10)
    assert second.offset == 1
    queue.ack(second)
    assert offsets(queue.receive(10)) == [4]


def test_a_dead_letter_holds_its_message_group_until_it_is_copied() -> None:
    queue = Queue(["a", "a"])
    (lease,) = queue.receive(2, fresh_count=2)
    queue.decided(queue.machine.decide_reject([queue.receipt(lease)], "no", queue.now_ms))
    assert queue.receive(2) == []
    queue.do(queue.machine.decide_settle(letter.offset for letter in queue.machine.dead_letters(queue.now_ms, 1)))
    assert offsets(queue.receive(2)) == [1]


def test_a_receive_that_is_repeated_gets_the_leases_it_has() -> None:
    queue = Queue()
    leases = queue.receive(3, fresh_count=3, attempt_id="w1-1")
    written = len(queue.log)
    assert queue.receive(3, fresh_count=3, attempt_id="w1-1") == leases
    assert (len(queue.log), queue.machine.next_offset) == (written, 3)
    queue.ack(leases[1])
    assert queue.receive(3, attempt_id="w1-1") == [leases[0], leases[2]]
    queue.now_ms += INVISIBLE_MS
    assert [lease.attempt for lease in queue.receive(3, attempt_id="w1-1")] == [2, 2]


def test_what_the_consumer_does_not_want_is_done() -> None:
    queue = Queue()
    leases, events = queue.machine.decide_receive(
        [], [Fresh(1), Fresh(4)], fetched_to=10, limit=5, invisible_ms=INVISIBLE_MS, now_ms=queue.now_ms
    )
    queue.do(events)
    assert (offsets(leases), queue.machine.next_offset, queue.machine.low_offset) == ([1, 4], 10, 1)
    queue.ack(*leases)
    assert queue.machine.low_offset == 10


def test_what_is_not_ready_is_not_leased_even_if_asked_for() -> None:
    queue = Queue()
    queue.receive(1, fresh_count=1)
    leases, events = queue.machine.decide_receive(
        [0, 7], [], fetched_to=1, limit=5, invisible_ms=INVISIBLE_MS, now_ms=queue.now_ms
    )
    assert (leases, events) == ([], [])


def test_open_records_are_bounded() -> None:
    queue = Queue(in_flight_max=3)
    leases = queue.receive(2, fresh_count=2)
    assert queue.machine.room == 1
    with pytest.raises(IllegalRequest):
        queue.receive(2, fresh_count=2)
    queue.ack(leases[0])
    assert offsets(queue.receive(2, fresh_count=2)) == [2, 3]
    assert queue.machine.room == 0


def test_extending_without_end_does_not_grow_memory() -> None:
    queue = Queue()
    (lease,) = queue.receive(1, fresh_count=1)
    for _ in range(1000):
        queue.now_ms += 1
        queue.decided(queue.machine.decide_extend([queue.receipt(lease)], INVISIBLE_MS, queue.now_ms))
    assert len(queue.machine._state.due) <= 2 + 64
    assert queue.machine.next_due_ms() == queue.now_ms + INVISIBLE_MS


def test_a_reset_voids_receipts() -> None:
    queue = Queue()
    (lease,) = queue.receive(1, fresh_count=1)
    receipt = queue.receipt(lease)
    queue.do(queue.machine.decide_reset(50, queue.now_ms))
    assert (queue.machine.low_offset, queue.machine.next_offset, queue.machine.open_count) == (50, 50, 0)
    assert queue.machine.decide_ack([receipt], queue.now_ms).verdicts == [STALE]


@pytest.mark.parametrize("changes", [{"topic_id": 17}, {"partition": 1}, {"epoch": 1}, {"offset": 1}])
def test_a_receipt_of_elsewhere_is_stale(changes: dict[str, int]) -> None:
    queue = Queue()
    (lease,) = queue.receive(1, fresh_count=1)
    receipt = queue.receipt(lease, **changes)
    assert queue.machine.decide_ack([receipt], queue.now_ms) == Decision([STALE], [])
    assert queue.machine.decide_nack([receipt], queue.now_ms) == Decision([STALE], [])


def test_times_and_ids_have_limits() -> None:
    queue = Queue()
    (lease,) = queue.receive(1, fresh_count=1, attempt_id="a" * ATTEMPT_ID_BYTES_MAX)
    limit_ms = queue.config.invisible_ms_max
    receipts = [queue.receipt(lease)]
    assert queue.machine.decide_extend(receipts, limit_ms, queue.now_ms).verdicts == [OK]
    assert queue.machine.decide_nack(receipts, queue.now_ms, delay_ms=0).verdicts == [OK]
    with pytest.raises(IllegalRequest):
        queue.receive(1, attempt_id="a" * (ATTEMPT_ID_BYTES_MAX + 1))
    for invisible_ms in (0, limit_ms + 1):
        with pytest.raises(IllegalRequest):
            queue.machine.decide_extend(receipts, invisible_ms, queue.now_ms)
        with pytest.raises(IllegalRequest):
            queue.machine.decide_receive([], [], fetched_to=1, limit=1, invisible_ms=invisible_ms, now_ms=queue.now_ms)
    with pytest.raises(IllegalRequest):
        queue.machine.decide_nack(receipts, queue.now_ms, delay_ms=-1)


def test_leases_and_attempts_survive_a_restart() -> None:
    queue = Queue(["a", "a", None, None])
    leases = queue.receive(10, fresh_count=4, attempt_id="w1-1")
    queue.ack(leases[1])
    queue.nack(leases[2], delay_ms=100)
    for log in (queue.log, [encode_event(queue.machine.snapshot())]):
        again = PartitionLeases("g", 16, 0, queue.config)
        for event in decode_events(log):
            again.apply(cast(LeaseEvent, event))
        assert again.snapshot() == queue.machine.snapshot()
        assert again.leases_of("w1-1", queue.now_ms) == leases[:1]
        assert again.ready(queue.now_ms, 10) == []
        assert again.ready(queue.now_ms + 100, 10) == [3]
        assert again.next_due_ms() is not None
        assert again.decide_ack([queue.receipt(leases[0])], queue.now_ms).verdicts == [OK]


def test_asking_what_is_ready_changes_nothing() -> None:
    queue = Queue()
    (lease,) = queue.receive(1, fresh_count=1)
    queue.nack(lease, delay_ms=100)
    queue.now_ms += 100
    assert [queue.machine.ready(queue.now_ms, 5) for _ in range(3)] == [[0], [0], [0]]
    assert queue.machine.next_due_ms() == queue.now_ms
    assert offsets(queue.receive(1)) == [0]


def test_a_lease_that_has_gone_to_another_request_is_not_given_to_the_first() -> None:
    queue = Queue()
    queue.receive(1, fresh_count=1, attempt_id="w1-1")
    queue.now_ms += INVISIBLE_MS
    assert [lease.attempt for lease in queue.receive(1, attempt_id="w2-1")] == [2]
    assert queue.receive(1, attempt_id="w1-1") == []

"""gateway/api/workers.py: who has records in hand, and that what is kept of it is bounded."""

from __future__ import annotations

from gateway.api.lease import AllLeases
from gateway.api.shapes.answers import Worker
from gateway.api.workers import POLLED_GROUPS_MAX, POLLERS_MAX, SHOWN_MS, SWEEP_COUNT, Pollers
from gateway.groups.protocol import LEASE_OVER, RECEIPT_ILLEGAL, Accepted, Settled


def test_receipts_count_until_they_are_settled_or_over() -> None:
    pollers = Pollers()
    pollers.took("ann", ["r0-0", "r0-1", "r0-2"], 100, 10)
    pollers.took("bob", ["r0-3", "r0-4", "r0-5"], 100, 20)
    assert list(pollers.settled(Accepted(["r0-4", "of nobody", "r0-5"]))) == [Settled("of nobody", True)]
    strange, illegal = Settled("of nobody", True), Settled("r0-1", False, RECEIPT_ILLEGAL)
    assert pollers.settled([Settled("r0-0", True), strange, illegal]) == [strange, illegal]
    assert pollers.settled([Settled("r0-1", False, LEASE_OVER)]) == []
    assert pollers.extended([Settled("r0-2", True, new_receipt="n"), strange], 500) == [strange]
    assert pollers.workers(30) == [Worker("ann", 1, 20), Worker("bob", 1, 10)]
    assert pollers.workers(100) == [Worker("ann", 1, 90), Worker("bob", 0, 80)]
    assert pollers.settled([Settled("n", True)]) == []
    assert pollers.workers(101) == [Worker("ann", 0, 91), Worker("bob", 0, 81)]


def test_who_is_silent_for_long_is_not_shown() -> None:
    pollers = Pollers()
    pollers.heard("ann", 1000)
    assert pollers.workers(1000 + SHOWN_MS) == [Worker("ann", 0, SHOWN_MS)]
    assert pollers.workers(1001 + SHOWN_MS) == []


def test_what_is_kept_is_bounded() -> None:
    pollers = Pollers()
    for number in range(POLLERS_MAX + 1):
        pollers.heard(f"c{number}", 1)
    names = {worker.consumer for worker in pollers.workers(1)}
    assert (len(names), "c0" in names) == (POLLERS_MAX, False)
    for number in range(SWEEP_COUNT + 1):
        pollers.took("ann", [f"r0-{number}"], until_ms=number, now_ms=number)
    assert len(pollers._leases) == 0


def test_groups_whose_consumers_poll_are_bounded() -> None:
    leases = AllLeases()
    for number in range(POLLED_GROUPS_MAX + 1):
        leases.pollers(f"g{number}").heard("ann", 1)
    assert (leases.workers("g0", 1), len(leases.workers("g1", 1))) == ([], 1)

"""gateway/auth/tickets.py"""

from __future__ import annotations

from gateway.auth.access import OPEN
from gateway.auth.tickets import TICKET_MS, TICKETS_MAX, Tickets
from tests.clock import FakeClock


def test_a_ticket_is_good_once() -> None:
    tickets = Tickets(FakeClock().now_ms)
    ticket = tickets.issue(OPEN)
    assert ticket is not None
    assert tickets.redeem("x") is None
    assert tickets.redeem(ticket) is OPEN
    assert tickets.redeem(ticket) is None


def test_a_ticket_of_a_cluster_names_its_node() -> None:
    one, other = Tickets(FakeClock().now_ms, "n1"), Tickets(FakeClock().now_ms, "n-2")
    ticket = one.issue(OPEN)
    assert ticket is not None
    assert (one.other_node(ticket), other.other_node(ticket)) == (None, "n1")
    assert Tickets(FakeClock().now_ms).other_node(ticket) is None, "alone there is no other node"
    for none in (ticket[:-1], ticket.upper(), ticket.replace(".", "-"), f"{ticket}.x", "n1." + "\udcff" * 43):
        assert other.other_node(none) is None
    assert other.redeem(ticket) is None
    assert one.redeem(ticket) is OPEN


def test_a_ticket_is_good_for_a_while() -> None:
    clock = FakeClock()
    tickets = Tickets(clock.now_ms)
    first, second = tickets.issue(OPEN), tickets.issue(OPEN)
    assert first is not None
    assert second is not None
    clock.step(TICKET_MS - 1)
    assert tickets.redeem(first) is OPEN
    clock.step(1)
    assert tickets.redeem(second) is None


def test_the_number_of_tickets_is_bounded_and_old_ones_make_room() -> None:
    clock = FakeClock()
    tickets = Tickets(clock.now_ms)
    assert all(tickets.issue(OPEN) for _ in range(TICKETS_MAX))
    assert tickets.issue(OPEN) is None
    clock.step(TICKET_MS)
    assert tickets.issue(OPEN) is not None

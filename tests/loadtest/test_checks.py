"""The checks of the demo and the load test fail when they should."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from loadtest.checks import Deliveries, KeyOrder, Lateness


def test_what_was_sent_and_never_received_is_lost() -> None:
    deliveries: Deliveries[int] = Deliveries()
    deliveries.sent(range(5))
    for record_id in (0, 1, 4):
        deliveries.received(record_id)
    assert deliveries.lost == {2, 3}
    assert not deliveries.is_complete
    assert (deliveries.sent_count, deliveries.received_count) == (5, 3)


def test_a_record_may_arrive_before_its_sender_hears_of_it() -> None:
    deliveries: Deliveries[int] = Deliveries()
    deliveries.received(7)
    deliveries.sent([7])
    assert deliveries.is_complete
    assert deliveries.lost == frozenset()


def test_a_record_whose_request_failed_is_neither_lost_nor_duplicated() -> None:
    deliveries: Deliveries[int] = Deliveries()
    deliveries.received(1)
    assert deliveries.is_complete
    assert deliveries.duplicate_count == 0


@given(st.sets(st.integers(0, 30)), st.lists(st.integers(0, 30)), st.randoms())
def test_the_count_of_losses_and_duplicates_is_exact_in_any_order(
    sent: set[int], received: list[int], random: Random
) -> None:
    deliveries: Deliveries[int] = Deliveries()
    steps = [("sent", record_id) for record_id in sent] + [("received", record_id) for record_id in received]
    random.shuffle(steps)
    for what, record_id in steps:
        if what == "sent":
            deliveries.sent([record_id])
        else:
            deliveries.received(record_id)
    assert deliveries.lost == sent - set(received)
    assert deliveries.duplicate_count == len(received) - len(set(received))
    assert deliveries.is_complete == (sent <= set(received))


def test_a_key_that_goes_back_or_repeats_is_out_of_order() -> None:
    order = KeyOrder()
    assert order.received("a", 1) is None
    assert order.received("a", 3) is None  # a gap is for others to judge
    assert order.received("a", 2) == "key a: record 2 came after record 3"
    assert order.received("a", 3) == "key a: record 3 came after record 3"


def test_keys_do_not_disturb_each_other() -> None:
    order = KeyOrder()
    assert [order.received(key, number) for key, number in (("a", 5), ("b", 1), ("a", 6), ("b", 2))] == [None] * 4


def test_only_what_fires_before_its_time_is_early() -> None:
    lateness = Lateness()
    for at_ms in (999, 1000, 1001):
        lateness.fired(1000, at_ms)
    assert lateness.late_ms == [-1, 0, 1]
    assert lateness.early_count == 1

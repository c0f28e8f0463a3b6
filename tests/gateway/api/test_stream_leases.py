"""gateway/api/stream_leases.py: how many records a stream may have out, and who says that there is room again."""

from __future__ import annotations

from gateway.api.stream_leases import Hand, Hands
from gateway.groups.protocol import Delivered, Settled


def message(offset: int, *, partition: int = 0, until_ms: int = 100) -> Delivered:
    return Delivered(
        "t", partition, offset, None, b"1", (), 0, 0, True, None, None, 1, f"r{partition}-{offset}", until_ms
    )


def test_a_stream_has_its_credit_out_and_not_one_more() -> None:
    hand = Hand(2, lambda: None)
    assert hand.room(0) == 2
    hand.took([message(0)])
    assert hand.room(0) == 1
    hand.took([message(1, until_ms=50)])
    assert (hand.room(0), hand.next_end_ms) == (0, 50)
    assert hand.room(49) == 0
    assert hand.room(50) == 1, "a lease that is over counts no more"


def test_whoever_settles_makes_room() -> None:
    calls: list[str] = []
    hands, hand = Hands(), Hand(3, lambda: calls.append("room"))
    hands.add("g", hand)
    hand.took([message(0), message(1), message(0, partition=1)])
    hands.settled("other", [Settled("r0-0", True)])
    hands.settled("g", [Settled("of nobody", True)])
    assert (hand.room(0), calls) == (0, [])
    hands.settled("g", [Settled("r0-0", True)])
    assert (hand.room(0), calls) == (1, ["room"])
    hands.extended("g", [Settled("r0-1", True, new_receipt="n")], 500)
    assert hand.room(0) == 1
    hands.settled("g", [Settled("r0-1", False, 40951)])
    assert hand.room(0) == 1, "it goes on under its new receipt"
    hands.settled_up_to("g", "t", 0, 0)
    assert hand.room(0) == 1
    hands.settled_up_to("g", "t", 0, 1)
    assert (hand.room(0), calls) == (2, ["room"] * 2)
    hands.remove("g", hand)
    assert not hands._by_group

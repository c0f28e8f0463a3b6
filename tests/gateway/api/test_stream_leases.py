"""gateway/api/stream_leases.py: how many records a stream may have out, and who says that there is room again."""

from __future__ import annotations

from gateway.api.stream_leases import AllStreamLeases, StreamLeases
from gateway.groups.protocol import Delivered, Settled


def message(offset: int, *, partition: int = 0, until_ms: int = 100) -> Delivered:
    return Delivered(
        "t", partition, offset, None, b"1", (), 0, 0, True, None, None, 1, f"r{partition}-{offset}", until_ms
    )


def test_a_stream_has_its_credit_out_and_not_one_more() -> None:
    leases = StreamLeases(2, lambda: None)
    assert leases.room(0) == 2
    leases.took([message(0)])
    assert leases.room(0) == 1
    leases.took([message(1, until_ms=50)])
    assert (leases.room(0), leases.next_end_ms) == (0, 50)
    assert leases.room(49) == 0
    assert leases.room(50) == 1, "a lease that is over counts no more"


def test_whoever_settles_makes_room() -> None:
    calls: list[str] = []
    stream_leases, leases = AllStreamLeases(), StreamLeases(3, lambda: calls.append("room"))
    stream_leases.add("g", leases)
    leases.took([message(0), message(1), message(0, partition=1)])
    stream_leases.settled("other", [Settled("r0-0", True)])
    stream_leases.settled("g", [Settled("of nobody", True)])
    assert (leases.room(0), calls) == (0, [])
    stream_leases.settled("g", [Settled("r0-0", True)])
    assert (leases.room(0), calls) == (1, ["room"])
    stream_leases.extended("g", [Settled("r0-1", True, new_receipt="n")], 500)
    assert leases.room(0) == 1
    stream_leases.settled("g", [Settled("r0-1", False, 40951)])
    assert leases.room(0) == 1, "it goes on under its new receipt"
    stream_leases.settled_up_to("g", "t", 0, 0)
    assert leases.room(0) == 1
    stream_leases.settled_up_to("g", "t", 0, 1)
    assert (leases.room(0), calls) == (2, ["room"] * 2)
    stream_leases.remove("g", leases)
    assert not stream_leases._by_group

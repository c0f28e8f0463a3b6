"""The latency fault table: both penalty tables at their edges, and that every penalty ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.fault import CURRENT, LEGACY, OFF, TABLES, LatencyFaults


@pytest.mark.parametrize(
    ("latency_ms", "current_ms", "legacy_ms"),
    [
        (0, 0, 0),
        (49, 0, 0),
        (50, 0, 0),
        (100, 0, 0),
        (549, 0, 0),
        (550, 2000, 30_000),
        (999, 2000, 30_000),
        (1000, 2000, 60_000),
        (1799, 2000, 60_000),
        (1800, 5000, 60_000),
        (2000, 5000, 120_000),
        (2999, 5000, 120_000),
        (3000, 6000, 180_000),
        (4999, 6000, 180_000),
        (5000, 10_000, 180_000),
        (14_999, 10_000, 180_000),
        (15_000, 30_000, 600_000),
        (10**9, 30_000, 600_000),
    ],
)
def test_the_penalty_of_a_latency(latency_ms: int, current_ms: int, legacy_ms: int) -> None:
    assert CURRENT.avoid_ms(latency_ms) == current_ms
    assert LEGACY.avoid_ms(latency_ms) == legacy_ms


def test_a_failure_counts_as_a_latency() -> None:
    assert CURRENT.avoid_ms(CURRENT.failure_latency_ms) == 10_000
    assert LEGACY.avoid_ms(LEGACY.failure_latency_ms) == 600_000


def test_a_slow_broker_is_left_alone_until_its_penalty_ends() -> None:
    faults = LatencyFaults()
    faults.answered("a", 600, 1000)
    assert not faults.is_available("a", 2999)
    assert faults.is_available("a", 3000)
    assert faults.is_available("b", 1000)
    assert faults.is_reachable("a")


def test_a_milder_penalty_does_not_shorten_a_worse_one() -> None:
    faults = LatencyFaults()
    faults.failed("a", 0)
    faults.answered("a", 600, 100)
    faults.answered("a", 1, 200)
    assert not faults.is_available("a", 9_999)
    assert faults.is_available("a", 10_000)


def test_a_broker_that_does_not_answer_is_unreachable_until_it_does() -> None:
    faults = LatencyFaults()
    faults.failed("a", 0, is_reachable=False)
    assert not faults.is_reachable("a")
    faults.answered("a", 1, 20_000)
    assert faults.is_reachable("a")
    assert not faults, "nothing is left to avoid"


def test_the_usual_case_leaves_no_trace() -> None:
    faults = LatencyFaults()
    faults.answered("a", 5, 0)
    faults.answered("a", 549, 0)
    assert not faults


@given(st.lists(st.tuples(st.integers(0, 20_000), st.booleans(), st.integers(0, 5000)), max_size=20))
def test_every_penalty_ends(events: list[tuple[int, bool, int]]) -> None:
    faults = LatencyFaults(LEGACY)
    now_ms = 0
    for latency_ms, fails, later_ms in events:
        now_ms += later_ms
        if fails:
            faults.failed("a", now_ms)
        else:
            faults.answered("a", latency_ms, now_ms)
    assert faults.is_available("a", now_ms + 600_000)


def test_switched_off_nobody_is_avoided_and_the_rest_is_as_ever() -> None:
    assert [TABLES[name] for name in ("off", "5.x", "4.x")] == [OFF, CURRENT, LEGACY]
    faults = LatencyFaults(OFF)
    faults.answered("a", 10**9, 0)
    faults.failed("a", 0)
    faults.failed("b", 0, is_reachable=False)
    assert faults.is_available("a", 0)
    assert faults.is_available("b", 0)
    assert faults.latency_ms("a") == 10**9


def test_who_answers_a_probe_is_reachable_and_goes_on_to_be_avoided() -> None:
    faults = LatencyFaults()
    faults.failed("a", 0, is_reachable=False)
    faults.failed("b", 0)
    assert faults.unreachable() == ["a"]
    faults.reached("a")
    faults.reached("c")
    assert faults.unreachable() == []
    assert not faults.is_available("a", 9_999)
    assert not faults.unreachable()

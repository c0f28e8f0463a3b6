"""gateway/auth/rates.py"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.rates import BURST_S, CALLERS_MAX, Rates


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_example_of_the_docstring() -> None:
    now = Seconds()
    rates = Rates(requests_per_s=100, bytes_per_s=0, now_s=now)
    assert [rates.spend("a", requests=1) for _ in range(200)] == [None] * 200
    assert rates.spend("a", requests=1) == 10
    assert rates.spend("b", requests=1) is None
    now.now += 1
    assert [rates.spend("a", requests=1) for _ in range(101)] == [None] * 100 + [10]
    now.now += 60
    assert [rates.spend("a", requests=1) for _ in range(201)] == [None] * 200 + [10]


def test_a_body_larger_than_the_bucket_is_possible_and_waited_for_afterwards() -> None:
    now = Seconds()
    rates = Rates(requests_per_s=0, bytes_per_s=1000, now_s=now)
    assert rates.spend("a", requests=1) is None
    rates.owe("a", bytes_=7000)
    assert rates.spend("a", requests=1) == 5001
    now.now += 5.1
    assert rates.spend("a", requests=1, bytes_=1) is None


def test_what_is_refused_costs_nothing() -> None:
    now = Seconds()
    rates = Rates(requests_per_s=1, bytes_per_s=0, now_s=now)
    while rates.spend("a", requests=1) is None:
        pass
    for _ in range(100):
        assert rates.spend("a", requests=1) == 1000


def test_the_number_of_callers_is_bounded() -> None:
    rates = Rates(requests_per_s=1, bytes_per_s=0, now_s=Seconds())
    while rates.spend("a", requests=1) is None:
        pass
    for number in range(CALLERS_MAX - 1):
        rates.spend(str(number), requests=1)
    assert rates.spend("a", requests=1) is not None
    for number in range(CALLERS_MAX):
        rates.spend(str(number), requests=1)
    assert rates.spend("a", requests=1) is None


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 500)), max_size=60))
def test_nobody_gets_more_than_the_rate_and_the_burst(steps: list[tuple[float, int]]) -> None:
    now = Seconds()
    rates = Rates(requests_per_s=10, bytes_per_s=100, now_s=now)
    start_s, requests, sent_bytes, last_bytes = now.now, 0, 0, 0
    for wait_s, size in steps:
        now.now += wait_s
        if rates.spend("a", requests=1, bytes_=size) is None:
            requests, sent_bytes, last_bytes = requests + 1, sent_bytes + size, size
    elapsed_s = now.now - start_s
    assert requests <= 10 * (elapsed_s + BURST_S) + 1e-6
    assert sent_bytes - last_bytes <= 100 * (elapsed_s + BURST_S) + 1e-6


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_who_comes_back_when_told_is_let_in(sizes: list[int]) -> None:
    now = Seconds()
    rates = Rates(requests_per_s=10, bytes_per_s=100, now_s=now)
    for size in sizes:
        wait_ms = rates.spend("a", requests=1, bytes_=size)
        if wait_ms is not None:
            now.now += (wait_ms + 1) / 1000
            assert rates.spend("a", requests=1, bytes_=size) is None

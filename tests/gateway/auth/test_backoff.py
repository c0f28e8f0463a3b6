"""gateway/auth/backoff.py"""

from __future__ import annotations

import pytest

from gateway.auth.backoff import ADDRESSES_MAX, FIRST_WAIT_MS, FORGET_MS, FREE_FAILURES, WAIT_MS_MAX, Backoff
from gateway.settings.config import ConfigError, build


def failed(times: int, address: str = "a") -> Backoff:
    backoff = Backoff()
    for _ in range(times):
        backoff.failed(address, 0)
    return backoff


def test_some_failures_are_free_and_then_each_doubles_the_wait() -> None:
    assert failed(FREE_FAILURES).wait_ms("a", 0) == 0
    assert failed(FREE_FAILURES + 1).wait_ms("a", 0) == FIRST_WAIT_MS
    assert failed(FREE_FAILURES + 2).wait_ms("a", 0) == 2 * FIRST_WAIT_MS
    assert failed(FREE_FAILURES + 50).wait_ms("a", 0) == WAIT_MS_MAX
    assert failed(FREE_FAILURES + 50).wait_ms("b", 0) == 0


def test_the_wait_ends_and_a_quiet_address_is_forgotten() -> None:
    backoff = failed(FREE_FAILURES + 1)
    assert backoff.wait_ms("a", FIRST_WAIT_MS - 1) == 1
    assert backoff.wait_ms("a", FIRST_WAIT_MS) == 0
    backoff.failed("a", FORGET_MS - 1)
    assert backoff.wait_ms("a", FORGET_MS - 1) == 2 * FIRST_WAIT_MS
    backoff.failed("a", 2 * FORGET_MS - 1)
    assert backoff.wait_ms("a", 2 * FORGET_MS - 1) == 0


def test_the_number_of_addresses_is_bounded() -> None:
    backoff = failed(FREE_FAILURES + 1)
    for number in range(ADDRESSES_MAX - 1):
        backoff.failed(str(number), 0)
    assert backoff.wait_ms("a", 0) == FIRST_WAIT_MS
    backoff.failed("one more", 0)
    assert backoff.wait_ms("a", 0) == 0


def test_how_many_failures_are_free_can_be_chosen() -> None:
    for free in (0, 3):
        backoff = Backoff(free)
        for _ in range(free):
            backoff.failed("a", 0)
        assert backoff.wait_ms("a", 0) == 0
        backoff.failed("a", 0)
        assert backoff.wait_ms("a", 0) == FIRST_WAIT_MS
    assert build({"data": "d", "auth.free_failures": 0}).auth.free_failures == 0
    with pytest.raises(ConfigError, match="free_failures"):
        build({"data": "d", "auth.free_failures": -1})

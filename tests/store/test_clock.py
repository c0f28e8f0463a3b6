"""store.clock, and the fake one that all tests of time stand on."""

from __future__ import annotations

import time

from store.clock import Clock, SystemClock
from tests.clock import START_MS, FakeClock


def test_the_system_clock_is_utc_in_milliseconds() -> None:
    before = time.time() * 1000
    now_ms = SystemClock().now_ms()
    assert before - 1 <= now_ms <= time.time() * 1000


def test_a_fake_clock_stands_still_until_stepped_either_way() -> None:
    fake = FakeClock()
    clock: Clock = fake
    assert clock.now_ms() == clock.now_ms() == START_MS
    assert fake.step(1500) == clock.now_ms() == START_MS + 1500
    assert fake.step(-3600_000) == clock.now_ms() == START_MS + 1500 - 3600_000
    fake.set(7)
    assert clock.now_ms() == 7


def test_a_strobing_clock_jumps_to_and_fro() -> None:
    clock = FakeClock(1000)
    clock.strobe(200)
    assert sorted({clock.now_ms() for _ in range(10)}) == [1000, 1200]
    clock.strobe(0)
    assert {clock.now_ms() for _ in range(10)} == {1000}

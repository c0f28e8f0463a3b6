"""loadtest/slowness.py: limits are loosened by how slow the machine is, and never tightened."""

from __future__ import annotations

import pytest

from loadtest import slowness
from loadtest.slowness import REFERENCE_MS, reference


@pytest.mark.parametrize(
    ("taken_ms", "expected"), [(REFERENCE_MS / 2, 1.0), (REFERENCE_MS, 1.0), (2 * REFERENCE_MS, 2.0)]
)
def test_a_machine_that_is_twice_as_slow_may_take_twice_as_long(
    taken_ms: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [0.0]

    def take() -> int:
        clock_s[0] += taken_ms / 1000
        return 0

    monkeypatch.setattr(slowness, "reference", take)
    monkeypatch.setattr(slowness.time, "thread_time", lambda: clock_s[0])
    assert slowness.slowness() == pytest.approx(expected)


def test_the_reference_is_the_same_work_each_time() -> None:
    assert reference() == reference() == sum((number << 20) - number for number in range(slowness._ROUNDS))

"""store.index.pauses: others have their turn between pieces, and no more time than is to be had."""

from __future__ import annotations

import pytest

from store.index import pauses
from store.index.pauses import PAUSE_SHARE, with_pauses


class Clock:
    """Each piece takes a millisecond of the thread's time, and each pause `late` times as long as it should."""

    def __init__(self) -> None:
        self.late = 1.0
        self.slept: list[float] = []
        self._used_s = 0.0
        self._now_s = 100.0

    def thread_time(self) -> float:
        self._used_s += 0.001
        return self._used_s

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, pause_s: float) -> None:
        assert pause_s > 0
        self.slept.append(pause_s)
        self._now_s += self.late * pause_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pauses, "time", clock)
    return clock


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_there_is_a_pause_between_pieces_by_how_long_they_took(clock: Clock, count: int) -> None:
    assert list(with_pauses(range(count), 1.0, count)) == list(range(count))
    assert clock.slept == pytest.approx([PAUSE_SHARE * 0.001] * max(count - 1, 0))


@pytest.mark.parametrize("counted", [1, 3, 10, 1_000])
@pytest.mark.parametrize("late", [1.0, 2.0, 100.0])
def test_all_pauses_together_are_bounded_however_late_they_end(clock: Clock, counted: int, late: float) -> None:
    clock.late = late
    pauses_s = 4 * PAUSE_SHARE * 0.001
    assert len(list(with_pauses(range(10), pauses_s, counted))) == 10
    assert all(sum(clock.slept[:number]) * late < pauses_s * (1 + 1e-9) for number in range(len(clock.slept)))
    assert sum(clock.slept) <= pauses_s * (1 + 1e-9), "of which the last may be late"


def test_where_there_is_too_little_time_each_pause_is_shorter(clock: Clock) -> None:
    pauses_s = 4 * PAUSE_SHARE * 0.001
    assert len(list(with_pauses(range(10), pauses_s, 10))) == 10
    assert clock.slept == pytest.approx([pauses_s / 9] * 9, rel=0.2)

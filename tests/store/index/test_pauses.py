"""store.index.pauses: others have their turn between pieces, and no more time than is to be had."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from store.index import pauses
from store.index.pauses import PAUSE_SHARE, with_pauses


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; each piece takes a millisecond of the thread's time."""
    slept: list[float] = []
    used = iter(range(10_000))
    clock = SimpleNamespace(thread_time=lambda: next(used) / 1000, sleep=slept.append)
    monkeypatch.setattr(pauses, "time", clock)
    return slept


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_there_is_a_pause_between_pieces_as_long_as_they_took(slept: list[float], count: int) -> None:
    assert list(with_pauses(range(count), 1.0)) == list(range(count))
    assert slept == pytest.approx([PAUSE_SHARE * 0.001] * max(count - 1, 0))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_all_pauses_together_are_bounded(slept: list[float], count: int) -> None:
    pauses_s = count * PAUSE_SHARE * 0.001
    assert len(list(with_pauses(range(10), pauses_s))) == 10
    assert sum(slept) == pytest.approx(pauses_s)
    assert len(slept) in (count, count + 1)

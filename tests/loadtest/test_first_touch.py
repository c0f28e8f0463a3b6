"""loadtest/bench/first_touch.py on a small file."""

from __future__ import annotations

from pathlib import Path

from loadtest.bench.first_touch import costs


def test_each_case_of_each_round_has_a_cost(tmp_path: Path) -> None:
    found = list(costs(tmp_path, 2, 2, 0.5))
    assert [case for case, _ in found] == ["cached", "at once", "after 0.5 s"] * 2
    assert all(cost_us > 0 for _, cost_us in found)
    assert list(tmp_path.iterdir()) == []

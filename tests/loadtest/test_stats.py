"""Percentiles and paired ratios, against their definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.stats import Spread, paired_ratio, percentile, spread

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1)


@pytest.mark.parametrize(("percent", "expected"), [(0, 10), (20, 10), (21, 20), (50, 30), (99, 50), (100, 50)])
def test_a_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([50, 10, 40, 20, 30], percent) == expected


@given(numbers, st.floats(0, 100))
def test_a_percentile_is_one_of_the_values_and_covers_its_share(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    share = math.ceil(len(values) * percent / 100)
    assert sum(value <= found for value in values) >= share
    assert sum(value < found for value in values) < max(share, 1)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_a_percentile_of_nothing_or_beyond_is_refused(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError):
        percentile(values, percent)


def test_a_spread_is_median_and_range() -> None:
    assert spread([5.0, 1.0, 3.0]) == Spread(3.0, 1.0, 5.0)
    assert spread([2.0, 1.0]).median == 1.5
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_ratios_are_taken_round_by_round() -> None:
    """The machine was twice as fast in the second round; the ratio does not see it."""
    assert paired_ratio([50.0, 100.0], [100.0, 200.0]) == Spread(0.5, 0.5, 0.5)


def test_rounds_must_pair_up() -> None:
    with pytest.raises(ValueError):
        paired_ratio([1.0], [1.0, 2.0])

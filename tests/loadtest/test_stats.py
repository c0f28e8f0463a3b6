"""Percentiles and paired ratios, against their definitions."""

from __future__ import annotations

import argparse
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.stats import Spread, mean_ratio, paired_ratio, percentile, ratio_rounds, spread

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


def test_the_mean_of_ratios_has_the_interval_of_students_t() -> None:
    """Logarithms -2 … 2: mean 0, deviation 1.5811; the quantile of t with 4 degrees of freedom is 2.7764."""
    ratio = mean_ratio([math.exp(log) for log in (-2, -1, 0, 1, 2)], [1.0] * 5)
    assert ratio.median == pytest.approx(1)
    assert math.log(ratio.high) == pytest.approx(2.7764 * 1.5811 / math.sqrt(5), rel=0.01)
    assert ratio.low == pytest.approx(1 / ratio.high)


def test_too_few_rounds_have_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 5"):
        mean_ratio([1.0] * 4, [1.0] * 4)
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--rounds", type=ratio_rounds)
    assert parser.parse_args(["--rounds", "5"]).rounds == 5
    for text in ("4", "-5", "five"):
        with pytest.raises(argparse.ArgumentError, match="at least 5"):
            parser.parse_args([f"--rounds={text}"])

"""Percentiles and the comparison of two subjects measured in turn. Pure."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` per cent of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is no percentage")
    rank = max(math.ceil(len(values) * percent / 100), 1)
    return sorted(values)[rank - 1]


class Spread(NamedTuple):
    """The middle of some runs, and their range."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and range of at least one value."""
    if not values:
        raise ValueError("no values")
    return Spread(statistics.median(values), min(values), max(values))


def paired_ratio(ours: Sequence[float], limit: Sequence[float]) -> Spread:
    """Ours divided by the limit, round by round.

    Neighbours in time share what else the machine was doing, so their ratio varies less than either of them.
    """
    return spread([one / other for one, other in zip(ours, limit, strict=True)])


RATIO_ROUNDS_MIN = 5


def ratio_rounds(text: str) -> int:
    """The value of an option `--rounds` whose rounds end in `mean_ratio`. Raises ArgumentTypeError before a run of
    minutes would end in no figure."""
    if not text.isdecimal() or (rounds := int(text)) < RATIO_ROUNDS_MIN:
        raise argparse.ArgumentTypeError(f"{text}: at least {RATIO_ROUNDS_MIN}, for an interval")
    return rounds


def mean_ratio(ours: Sequence[float], other: Sequence[float], confidence: float = 0.95) -> Spread:
    """The mean of the rounds' ratios, and its confidence interval; of their logarithms, to which 2 and 1/2 are equally
    far from 1.

    By Student's t, whose quantile is that of the normal distribution with three terms of correction (Abramowitz and
    Stegun 26.7.5): within 1 % from RATIO_ROUNDS_MIN on, so fewer are refused.
    """
    logs = [math.log(one / two) for one, two in zip(ours, other, strict=True)]
    if len(logs) < RATIO_ROUNDS_MIN:
        raise ValueError(f"{len(logs)} rounds are too few for an interval: at least {RATIO_ROUNDS_MIN}")
    mean, free = statistics.fmean(logs), len(logs) - 1
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    quantile = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    quantile += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    width = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return Spread(math.exp(mean), math.exp(mean - width), math.exp(mean + width))

"""Percentiles and the comparison of two subjects measured in turn. Pure."""

from __future__ import annotations

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

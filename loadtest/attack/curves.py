"""What is seen of a process over time: points of curves, the worst of a while, the longest turn of its loop. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

LOOP_TURNS = "mq_loop_held_seconds_bucket"
"""The server's histogram of long turns of its event loop, in seconds (`gateway/main/loop_watch.py`)."""

WORK = 'cause="work"'
"""Turns that used the CPU for so long; the others were late because the machine was busy with something else."""


class Point(NamedTuple):
    """Seconds since the run began, and a value. None: none was to be had."""

    at_s: float
    value: float | None


@dataclass(slots=True)
class Curves:
    """Of one run, over all of its servers."""

    rss_mib: list[Point] = field(default_factory=list)
    handles: list[Point] = field(default_factory=list)
    health_ms: list[Point] = field(default_factory=list)
    turn_ms: list[Point] = field(default_factory=list)
    slowness: list[Point] = field(default_factory=list)


def worst(points: Sequence[Point], since_s: float, until_s: float) -> float | None:
    """The largest value of a while. None: there is none, or one of them was not to be had."""
    values = [point.value for point in points if since_s <= point.at_s <= until_s]
    found = [value for value in values if value is not None]
    return max(found) if found and len(found) == len(values) else None


def middle(points: Sequence[Point], since_s: float, until_s: float) -> float | None:
    """The median of the values of a while."""
    values = [point.value for point in points if since_s <= point.at_s <= until_s and point.value is not None]
    return median(values) if values else None


def thinned(points: Sequence[Point], every_s: float = 1.0) -> list[Point]:
    """The worst point of each stretch of time; a missing one is worse than any."""
    kept: dict[int, Point] = {}
    for point in points:
        stretch = int(point.at_s / every_s)
        before = kept.get(stretch)
        if before is None or _badness(point) > _badness(before):
            kept[stretch] = point
    return list(kept.values())


def _badness(point: Point) -> float:
    return float("inf") if point.value is None else point.value


def loop_turns(metrics: str) -> dict[float, float] | None:
    """From `/metrics`: long turns that were work, by the upper bound of their bucket, cumulative. None: it has none."""
    found: dict[float, float] = {}
    for line in metrics.splitlines():
        name, _, value = line.rpartition(" ")
        metric, _, labels = name.partition("{")
        if metric == LOOP_TURNS and WORK in labels:
            found[float(labels.partition('le="')[2].partition('"')[0])] = float(value)
    return found or None


def longest_turn_ms(before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """The upper bound of the longest turn between two readings; 0 when no turn was long enough to be counted.

    One longer than every bound is infinite.
    """
    longest = counted = 0.0
    for bound in sorted(after):
        new = after[bound] - before.get(bound, 0.0)
        if new > counted:
            longest, counted = bound * 1000, new
    return longest

"""gateway/api/figures.py"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.api import figures
from gateway.api.figures import (
    CLOCK_STEP_MS,
    LAGGING_COUNT,
    LAGGING_MS,
    Counters,
    Figures,
    Gauges,
    Reading,
    Ring,
    Trouble,
)

FULL = Trouble("disk_full", "error", "full", "free space")


class World:
    """A server whose counters and clocks a test turns."""

    def __init__(self) -> None:
        self.wall_ms, self.monotonic_ms = 1_000_000, 0
        self.counters, self.gauges = Counters(), Gauges()
        self.troubles: list[Trouble] = []
        self.lags: Mapping[str, int] = {}
        self.version = 0
        self.appended: dict[int, list[int]] = {}
        self.figures = Figures(self.read, clock_ms=lambda: self.wall_ms, monotonic_ms=lambda: self.monotonic_ms)

    def read(self) -> Reading:
        return Reading(
            self.counters, self.gauges, self.troubles, self.lags, self.version, self.appended, lambda: {16: 3}
        )

    def pass_s(self, seconds: int = 1, *, lag: int | None = None) -> None:
        for _ in range(seconds):
            self.wall_ms += 1000
            self.monotonic_ms += 1000
            if self.monotonic_ms % 5000 == 0:
                self.version += 1
                if lag is not None:
                    self.lags = {"billing": lag + self.version}
            self.figures.tick()

    def codes(self) -> list[str]:
        return [alarm.trouble.code for alarm in self.figures.alarms()]


def test_a_ring_keeps_the_last_points_in_order() -> None:
    ring = Ring(("a", "b"), 3)
    assert ring.series() == {"a": [], "b": []}
    for number in range(5):
        ring.add({"a": number, "b": None if number == 3 else number / 2})
        assert len(ring.series()["a"]) == min(number + 1, 3)
    assert ring.series() == {"a": [2, 3, 4], "b": [1, None, 2]}
    assert ring.last("a", 2) == [3, 4]


async def test_counters_become_rates_and_are_kept() -> None:
    world = World()
    world.pass_s()
    assert world.figures.now()["in_records_s"] is None  # one look makes no rate
    world.counters = Counters(in_records=10, out_bytes=500)
    world.gauges = Gauges(lag=7, loop_p99_ms=1.5)
    world.pass_s()
    now = world.figures.now()
    assert (now["in_records_s"], now["out_bytes_s"], now["requests_s"], now["lag"]) == (10, 500, 0, 7)
    history = world.figures.history("seconds")
    assert (history.step_ms, history.end_ms) == (1000, world.wall_ms)
    assert history.series["in_records_s"] == [None, 10]
    assert history.series["loop_p99_ms"] == [None, 1.5]
    assert world.figures.history("minutes").series["lag"] == []
    world.gauges = Gauges(lag=67)
    world.pass_s(58)
    assert world.figures.history("minutes").series["lag"] == [(7 + 58 * 67) / 59]  # what is not known does not count


async def test_memory_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, minutes, histories_max = 70, 3, 10
    monkeypatch.setattr(figures, "SECONDS", seconds)
    monkeypatch.setattr(figures, "MINUTES", minutes)
    monkeypatch.setattr(figures, "GROUP_HISTORIES_MAX", histories_max)
    world = World()
    world.pass_s(seconds + 5)
    assert {len(points) for points in world.figures.history("seconds").series.values()} == {seconds}
    world.pass_s((minutes + 2) * 60 - seconds)
    assert {len(points) for points in world.figures.history("minutes").series.values()} == {minutes}
    for count, expected in ((histories_max, True), (histories_max + 1, False)):
        world.lags = {f"g{number}": 1 for number in range(count)}
        world.pass_s(5)
        assert (world.figures.group_history(f"g{count - 1}", "seconds") is not None) is expected
    world.lags = {}
    world.pass_s(5)
    assert world.figures.group_history("g0", "seconds") is None


async def test_topics_have_rates_of_the_last_seconds() -> None:
    world = World()
    world.appended = {16: [100, 1000], 17: [5, 50]}
    world.pass_s()
    world.appended[16] = [150, 2000]
    world.pass_s(4)
    assert world.figures.topic_rate(16) == (0, 0)
    world.pass_s()
    assert world.figures.topic_rate(16) == (10, 200)
    assert (world.figures.topic_rate(17), world.figures.topic_rate(99)) == ((0, 0), (0, 0))
    assert (world.figures.appended(16), world.figures.appended(99)) == ((150, 2000), (0, 0))
    assert world.figures.pending_by_topic() == {16: 3}


async def test_an_alarm_lasts_as_long_as_its_trouble() -> None:
    world = World()
    world.pass_s()
    assert world.codes() == []
    world.troubles = [FULL]
    world.pass_s()
    began_ms = world.wall_ms
    world.pass_s(5)
    assert [(alarm.trouble, alarm.since_ms) for alarm in world.figures.alarms()] == [(FULL, began_ms)]
    world.troubles = []
    world.pass_s()
    assert world.codes() == []


async def test_a_step_of_the_clock_is_told_for_a_while() -> None:
    for step_ms, is_told in ((CLOCK_STEP_MS - 1, False), (CLOCK_STEP_MS, True), (-CLOCK_STEP_MS, True)):
        world = World()
        world.pass_s()
        world.wall_ms += step_ms
        world.pass_s()
        assert (world.codes() == ["clock_step"]) is is_told
        world.pass_s(figures.CLOCK_STEP_SHOWN_MS // 1000 - 1)
        assert (world.codes() == ["clock_step"]) is is_told
        world.pass_s()
        assert world.codes() == []


async def test_a_group_whose_lag_grows_is_told() -> None:
    world = World()
    world.pass_s(LAGGING_MS // 1000 - 5, lag=LAGGING_COUNT)
    assert world.codes() == []
    world.pass_s(5, lag=LAGGING_COUNT)
    (alarm,) = world.figures.alarms()
    assert (alarm.trouble.code, alarm.trouble.group) == ("group_lagging", "billing")
    history = world.figures.group_history("billing", "seconds")
    assert history is not None
    assert (history.step_ms, len(history.series["lag"])) == (5000, LAGGING_MS // 5000)
    assert world.figures.group_lag("billing") == LAGGING_COUNT + world.version
    world.pass_s(5, lag=-1_000_000)
    assert world.codes() == []
    few = World()
    few.pass_s(LAGGING_MS // 1000, lag=LAGGING_COUNT - LAGGING_MS // 5000 - 1)
    assert few.codes() == []

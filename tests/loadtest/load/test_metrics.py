"""Counts of several processes become rows: rates over each interval, percentiles, the busiest process."""

from __future__ import annotations

import orjson

from loadtest.load.metrics import COLUMNS, MS_MAX, History, Machine, Metrics, percentile


def test_rows_hold_rates_of_their_interval_and_totals_go_on() -> None:
    metrics, history = Metrics(), History()
    assert history.row(100.0, 0, None) is None
    history.add("a", metrics.take(1.0))
    history.row(101.0, 0, None)
    metrics.count("acknowledged", 300)
    for late_ms in (1, 2, 3, 90):
        metrics.time("late", late_ms)
    told = orjson.loads(orjson.dumps(metrics.take(1.5), option=orjson.OPT_NON_STR_KEYS))  # as the master gets it
    history.add("a", told)
    history.add("b", Metrics().take(7.0))  # a process that is new has no share of this interval
    row = history.row(103.0, 5, Machine(2.0, 3_000_000))
    assert row is not None
    assert set(row) == set(COLUMNS)
    assert (row["acknowledged"], row["users"], row["locust_cpu_percent"]) == (150.0, 5, 25.0)
    assert (row["late_p50_ms"], row["late_p99_ms"], row["late_max_ms"]) == (2, 90, 90)
    assert (row["server_cpu_percent"], row["server_rss_mb"], row["push_p50_ms"]) == (None, 3.0, None)
    row = history.row(104.0, 5, Machine(2.5, 4_000_000))
    assert row is not None
    assert (row["acknowledged"], row["late_p50_ms"], row["server_cpu_percent"]) == (0.0, None, 50.0)
    assert history.totals["acknowledged"] == 300
    assert percentile(history.late, 50) == 2


def test_times_are_bounded() -> None:
    metrics = Metrics()
    metrics.time("push", MS_MAX)
    metrics.time("push", MS_MAX + 1)
    metrics.time("push", -3)
    assert metrics.take(0)["times"]["push"] == {MS_MAX: 2, 0: 1}
    assert metrics.take(0)["times"]["push"] == {}

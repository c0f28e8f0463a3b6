"""docs/deploy/grafana.json: a Grafana dashboard made from the metrics of a server. `make dashboard` writes it, a test
compares.

The first row is chosen by hand. Below it is a row for each part of the server, with a panel for each of its metrics:
counters as rates, histograms as quantiles, gauges as they are, by their labels, with the help text as description.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client.core import Metric

from gateway.api.trail import Trail
from gateway.main.admin import LocalAdmin
from gateway.main.application import build_application
from gateway.main.loop_watch import LoopWatch
from gateway.main.metrics import RecurringCollector
from gateway.main.wiring import build_gateway, build_recurring
from gateway.routing.table import RouteTable
from gateway.settings.config import load
from store import Store
from store.clock import SystemClock
from store.files import OsFiles
from timer.ports import OwnPartitions
from timer.service import TimerService

Json = dict[str, object]

_OVERVIEW: Sequence[tuple[str, str, str, str]] = (
    ("Requests by status", "reqps", "sum by (code) (rate(mq_http_requests_total{%s}[$__rate_interval]))", "{{code}}"),
    (
        "Time of a send, 99th percentile",
        "s",
        "histogram_quantile(0.99, sum by (le, instance) "
        '(rate(mq_http_request_seconds_bucket{route="produce", %s}[$__rate_interval])))',
        "{{instance}}",
    ),
    ("Records in", "short", "sum by (topic) (rate(mq_produce_records_total{%s}[$__rate_interval]))", "{{topic}}"),
    ("Records out", "short", "sum by (way) (rate(mq_consume_records_total{%s}[$__rate_interval]))", "{{way}}"),
    ("Lag of groups", "short", "sum by (group, topic) (mq_group_lag{%s})", "{{group}} {{topic}}"),
    ("On lease", "short", "sum by (group) (mq_inflight{%s})", "{{group}}"),
    ("Delayed records", "short", "sum by (instance) (mq_schedule_pending{%s})", "{{instance}}"),
    (
        "Late delivery, 99th percentile",
        "s",
        "histogram_quantile(0.99, sum by (le, instance) "
        "(rate(mq_schedule_fire_lateness_seconds_bucket{%s}[$__rate_interval])))",
        "{{instance}}",
    ),
    ("Log written", "Bps", "sum by (instance) (deriv(mq_store_log_end_bytes{%s}[5m]))", "{{instance}}"),
    ("Sends refused until a restart", "short", "max by (instance) (mq_store_failed{%s})", "{{instance}}"),
    (
        "Event loop held",
        "percentunit",
        "sum by (instance, cause) (rate(mq_loop_held_seconds_sum{%s}[$__rate_interval]))",
        "{{instance}} {{cause}}",
    ),
    ("Connections", "short", "sum by (instance) (mq_connections{%s})", "{{instance}}"),
)
"""Title, unit, expression, legend; `%s` is where the chosen instances go."""

_ROWS = (
    ("HTTP", ("mq_http_", "mq_connections", "mq_receiving", "mq_answering", "mq_bodies", "mq_answers", "mq_slow")),
    ("Sends and reads", ("mq_produce_", "mq_consume_", "mq_fetch_", "mq_long_polls", "mq_streams")),
    ("WebSocket", ("mq_ws_",)),
    ("Groups", ("mq_group", "mq_inflight")),
    ("Kafka", ("mq_kafka_",)),
    ("Delayed records", ("mq_schedule_", "mq_recurring_")),
    ("Store", ("mq_store_",)),
    ("Process", ("",)),
)
"""Titles, and how the names of their metrics begin; the first that fits counts."""

_INSTANCES = 'instance=~"$instance"'
_COLUMNS, _WIDTH, _HEIGHT = 4, 6, 7


async def served_metrics(directory: Path) -> list[Metric]:
    """Every metric of a new server in this directory, with its labels."""
    config = load(file=None, environment={}, flags={"data": directory, "store.disk_floor_bytes": 0})
    files, clock = OsFiles(), SystemClock()
    store = await Store.open(config.store, files=files, clock=clock)
    routes = RouteTable()
    timer = TimerService(config.timer, store, files, clock, partitions=OwnPartitions(store))
    await timer.start()
    trail = Trail(config.data, files, clock, monotonic_s=lambda: 0.0)
    admin = LocalAdmin(store, timer, config.limits, routes)
    gateway, _ = build_gateway(config, store, timer, admin, clock, trail)
    build_application(gateway)
    gateway.metrics.register(LoopWatch())
    gateway.metrics.register(RecurringCollector(build_recurring(gateway, store, admin)))
    try:
        return list(gateway.metrics.collect())
    finally:
        await timer.close()
        await store.close()


def dashboard(metrics: Iterable[Metric]) -> Json:
    """The dashboard."""
    by_row: dict[str, list[Metric]] = {title: [] for title, _ in _ROWS}
    for metric in sorted(metrics, key=lambda metric: metric.name):
        title = next(title for title, starts in _ROWS if metric.name.startswith(starts))
        by_row[title].append(metric)
    panels: list[Json] = [_row("Overview", 0)]
    overview = [_panel(title, "", unit, [(text % _INSTANCES, legend)]) for title, unit, text, legend in _OVERVIEW]
    y = _placed(overview, 1)
    panels += overview
    for title, chosen in by_row.items():
        row = _row(title, y)
        inside = [_panel_of(metric) for metric in chosen]
        _placed(inside, y + 1)
        row |= {"collapsed": True, "panels": inside}
        panels.append(row)
        y += 1
    for number, panel in enumerate(_each(panels), 1):
        panel["id"] = number
    return {
        "title": "mq",
        "uid": "mq",
        "tags": ["mq"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "panels": panels,
    }


def _each(panels: Iterable[Json]) -> Iterable[Json]:
    for panel in panels:
        yield panel
        inside = panel.get("panels", ())
        assert isinstance(inside, (list, tuple))
        yield from inside


def _panel_of(metric: Metric) -> Json:
    """A panel for one metric."""
    labels = ["instance", *_labels_of(metric)]
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    unit = "bytes" if metric.name.endswith("_bytes") else "ms" if metric.name.endswith("_ms") else "short"
    match metric.type:
        case "histogram":
            rate = f"sum by (le, {', '.join(labels)}) (rate({metric.name}_bucket{{{_INSTANCES}}}[$__rate_interval]))"
            targets = [(f"histogram_quantile({q}, {rate})", f"{legend} p{q * 100:g}") for q in (0.5, 0.99)]
            return _panel(metric.name, metric.documentation, "s", targets)
        case "counter":
            text = f"sum by ({', '.join(labels)}) (rate({metric.name}_total{{{_INSTANCES}}}[$__rate_interval]))"
            title, unit = f"{metric.name}_total", "Bps" if unit == "bytes" else unit
            return _panel(title, f"{metric.documentation} A second.", unit, [(text, legend)])
        case _:
            text = f"sum by ({', '.join(labels)}) ({metric.name}{{{_INSTANCES}}})"
            return _panel(metric.name, metric.documentation, unit, [(text, legend)])


def _labels_of(metric: Metric) -> Sequence[str]:
    names: Sequence[str] = getattr(metric, "_labelnames", ())  # samples would say, but there may be none yet
    return names


def _panel(title: str, description: str, unit: str, targets: Sequence[tuple[str, str]]) -> Json:
    return {
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": text, "legendFormat": legend}
            for number, (text, legend) in enumerate(targets)
        ],
    }


def _row(title: str, y: int) -> Json:
    place = {"x": 0, "y": y, "w": _COLUMNS * _WIDTH, "h": 1}
    return {"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _placed(panels: Sequence[Json], y: int) -> int:
    """Lay panels out in a grid from a line on; the line behind them."""
    for number, panel in enumerate(panels):
        row, column = divmod(number, _COLUMNS)
        panel["gridPos"] = {"x": column * _WIDTH, "y": y + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
    return y + -(-len(panels) // _COLUMNS) * _HEIGHT


def _source_variable() -> Json:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _instance_variable() -> Json:
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": "label_values(mq_store_log_end_bytes, instance)", "refId": "instances"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def main() -> None:
    """Write the dashboard to standard output: `make dashboard`."""
    with tempfile.TemporaryDirectory() as directory:
        made = dashboard(asyncio.run(served_metrics(Path(directory))))
    json.dump(made, sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()

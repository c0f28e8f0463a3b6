"""Our numbers where Locust shows its own: a tab of its page, `/stats/requests`, and a CSV file beside its files.

GET /mq/history.csv     the history so far (the columns: metrics.py); also written to <--csv prefix>_mq_history.csv
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
from flask import Flask, Response, request
from locust.env import Environment

from loadtest.load.metrics import COLUMNS, History, percentile

TAB = "mq"
STATISTICS = "/stats/requests"


def history_file(prefix: str) -> Path:
    """Where the history goes, beside Locust's own files of that prefix."""
    return Path(f"{prefix}_mq_history.csv")


def write_row(environment: Environment, row: Mapping[str, float | None], *, is_first: bool) -> None:
    """One row more in the file, if files are written at all."""
    prefix = environment.parsed_options.csv_prefix if environment.parsed_options is not None else None
    if prefix:
        with history_file(prefix).open("w" if is_first else "a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if is_first:
                writer.writeheader()
            writer.writerow(row)


def add_tab(environment: Environment, history: Callable[[], History]) -> None:
    """Extend Locust's page."""
    page = environment.web_ui
    assert page is not None
    application = page.app
    assert isinstance(application, Flask)
    page.template_args["extended_tabs"] = [{"title": "mq", "key": TAB}]
    page.template_args["extended_tables"] = [
        {
            "key": TAB,
            "structure": [
                {"key": "name", "title": "Count"},
                {"key": "now", "title": "Now"},
                {"key": "total", "title": "Total"},
            ],
        }
    ]
    page.template_args["extended_csv_files"] = [{"href": "/mq/history.csv", "title": "Download mq's history CSV"}]

    @application.after_request
    def extend(response: Response) -> Response:
        if request.path == STATISTICS and response.status_code == 200:
            told = orjson.loads(response.get_data())
            told["extended_stats"] = [{"key": TAB, "data": table(history())}]
            response.set_data(orjson.dumps(told))
        return response

    @application.route("/mq/history.csv")
    def history_csv() -> Response:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(history().rows)
        return Response(text.getvalue(), mimetype="text/csv")


def table(history: History) -> list[dict[str, object]]:
    """What the tab shows: every column, now and over the whole run."""
    row = history.rows[-1] if history.rows else {}
    totals: dict[str, object] = dict(history.totals)
    totals |= {f"late_p{percent}_ms": percentile(history.late, percent) for percent in (50, 99)}
    totals["late_max_ms"] = percentile(history.late, 100)
    return [
        {"name": _title(name), "now": _shown(row.get(name)), "total": _shown(totals.get(name))}
        for name in COLUMNS
        if name != "time_s"
    ]


def _title(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else ""

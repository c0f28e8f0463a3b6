"""The examples of docs/spark.md do what the page says. Each is run as it stands there, with this server's address."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pyspark_mq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.batches import Message
from tests.spark.conftest import ROOT, Server, load

PAGE = ROOT / "docs" / "spark.md"
FLIGHTS = [{"carrier": carrier, "arr_delay": delay} for delay in range(30) for carrier in ("UA", "DL", "B6")]
SPARKS_OWN = {"First: which Python Spark uses", "Columns", "On a cluster", "What is guaranteed"}
"""Sections whose code is about the session, or is a piece of an example."""


def examples() -> dict[str, list[str]]:
    """The Python blocks of the page by the heading above them."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^##+ ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        if blocks:
            found[section.split("\n", 1)[0]] = blocks
    return found


@pytest.fixture(scope="module")
def flights(mq: Server) -> None:
    for name in ("flights", "named-flights", "reminders", "copies"):
        mq.create(name, 2)
    for number, flight in enumerate(FLIGHTS):
        stamp_ms = 1_767_225_600_000 + 1000 * number
        mq.send("flights", number % 2, [Message(b"f%d" % number, json.dumps(flight).encode(), stamp_ms)])


def run(heading: str, spark: SparkSession, mq: Server, directory: Path, *, reminders: int = 0) -> dict[str, object]:
    (code,) = examples()[heading]
    code = code.replace("http://127.0.0.1:8082", mq.url).replace('"/data/', f'"{directory}/')
    names: dict[str, object] = {"spark": spark, "pyspark_mq": pyspark_mq}
    exec(code.replace("1_000_000)\n    .select", f"{reminders})\n    .select"), names)  # noqa: S102 - our own page
    return names


def test_every_example_has_a_test() -> None:
    tested = {"A batch report", "A streaming aggregation", "Enrich and write back", "A million reminders"}
    assert examples().keys() - SPARKS_OWN == tested


def test_a_batch_report(spark: SparkSession, mq: Server, flights: None, tmp_path: Path) -> None:
    report = run("A batch report", spark, mq, tmp_path)["report"]
    assert isinstance(report, DataFrame)
    found = [(row["carrier"], row["count(1)"], row["avg(arr_delay)"]) for row in report.collect()]
    assert found == [(carrier, 30, 14.5) for carrier in ("B6", "DL", "UA")]


@pytest.mark.matrix
def test_a_streaming_aggregation(spark: SparkSession, mq: Server, flights: None, tmp_path: Path) -> None:
    """All but what the watermark holds back, which is less than 10 minutes old in the data."""
    more = 1_767_225_600_000 + 3_600_000
    mq.send("flights", 0, [Message(b"late", b'{"carrier": "XX"}', more)])
    run("A streaming aggregation", spark, mq, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "counts")).collect()
    assert sum(row["count"] for row in rows) == len(FLIGHTS)
    assert sorted(row["count"] for row in rows) == [30, 60]


@pytest.mark.matrix
def test_enrich_and_write_back(spark: SparkSession, mq: Server, flights: None, tmp_path: Path) -> None:
    for _ in range(2):
        run("Enrich and write back", spark, mq, tmp_path)
        rows = load(spark, mq.url, subscribe="named-flights").collect()
        assert len(rows) == 60
        assert {json.loads(row.value)["name"] for row in rows} == {"United", "Delta"}
        assert len({row.key for row in rows}) == 60


def pending_reminders(mq: Server) -> dict[str, Any]:
    """Their count, and the first of them."""
    with urllib.request.urlopen(f"{mq.url}/mq/v1/schedules?topic=reminders&limit=1&include=value") as answer:
        page: dict[str, Any] = json.load(answer)
        return page


@pytest.mark.parametrize("count", [2_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_million_reminders(spark: SparkSession, mq: Server, flights: None, tmp_path: Path, count: int) -> None:
    before = pending_reminders(mq)["total"]
    started_s = time.monotonic()
    run("A million reminders", spark, mq, tmp_path, reminders=count)
    print(f"{count:,} reminders in {time.monotonic() - started_s:.1f} s")
    page = pending_reminders(mq)
    assert page["total"] == before + count
    assert page["schedules"][0]["deliver_at"] > 1000 * (time.time() + 23 * 3600)
    assert load(spark, mq.url, subscribe="reminders").count() == 0


def test_the_piece_for_foreach_batch(spark: SparkSession, mq: Server, flights: None) -> None:
    names: dict[str, object] = {}
    exec(examples()["What is guaranteed"][0].replace("http://127.0.0.1:8082", mq.url), names)  # noqa: S102 - our own page
    rows = spark.range(10).selectExpr("string(id) AS value")
    for batch_id in (0, 1, 1):
        names["save"](rows, batch_id)  # type: ignore[operator]
    assert load(spark, mq.url, subscribe="copies").count() == 20

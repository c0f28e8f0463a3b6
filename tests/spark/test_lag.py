"""Reporting how far a stream is, against a real server."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark_mq.client import Client, Endpoint
from pyspark_mq.errors import ServerUnavailable
from pyspark_mq.lag import LagReporter
from pyspark_mq.options import Options
from pyspark_mq.stream import StreamReader

from tests.spark.batches import Message
from tests.spark.conftest import Server


class Recorder(Client):
    """A client that notes what it is told, and waits for leave before each."""

    def __init__(self) -> None:
        super().__init__(Endpoint(urls=("http://127.0.0.1:1",)))
        self.told: list[tuple[str, str, int, int]] = []
        self.leave = threading.Semaphore(0)
        self.is_broken = False

    def move_group(self, group: str, topic: str, partition: int, offset: int) -> None:
        self.leave.acquire()
        if self.is_broken:
            raise ServerUnavailable("no answer")
        self.told.append((group, topic, partition, offset))


@pytest.fixture
def client() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.leave.release(1000)


def test_only_what_changed_is_reported_and_only_the_newest(client: Recorder) -> None:
    reporter = LagReporter(client, "g")
    reporter.report({"t": {0: 1, 1: 5}})
    for offset in range(2, 100):
        reporter.report({"t": {0: offset, 1: 5}})
    client.leave.release(1000)
    reporter.close()
    assert [one for one in client.told if one[2] == 0][-1] == ("g", "t", 0, 99)
    assert client.told.count(("g", "t", 1, 5)) == 1
    assert len(client.told) <= 4


def test_a_report_that_fails_is_no_failure_of_the_stream(client: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    client.is_broken = True
    client.leave.release(1000)
    reporter = LagReporter(client, "g")
    reporter.report({"t": {0: 1}})
    reporter.close()
    assert "position of group g could not be reported: no answer" in caplog.text


def test_the_end_of_a_stream_does_not_wait_for_ever(
    client: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pyspark_mq.lag.CLOSE_TIMEOUT_S", 0.01)
    reporter = LagReporter(client, "g")
    reporter.report({"t": {0: 1}})
    reporter.close()
    assert "not reported in time" in caplog.text


def test_the_server_shows_the_lag_of_a_stream(mq: Server) -> None:
    mq.create("lagging", 2)
    mq.send("lagging", 0, [Message(value=b"v")] * 10)
    options = {"url": mq.url, "subscribe": "lagging", "startingOffsets": "earliest", "groupId": "nightly"}
    reader = StreamReader(Options.parse(options), ("value",))
    end = reader.latestOffset(reader.initialOffset())
    mq.send("lagging", 0, [Message(value=b"v")] * 3)
    reader.commit(end)
    reader.stop()
    with urllib.request.urlopen(f"{mq.url}/mq/v1/groups/nightly/lag?topics=lagging") as answer:
        lag = json.load(answer)
    assert lag["total_lag"] == 3
    assert {row["partition"]: row["committed"] for row in lag["partitions"]}[0] == 10


def test_all_that_was_available_is_no_lag_when_the_query_has_ended(
    mq: Server, spark: SparkSession, tmp_path: Path
) -> None:
    mq.create("drained", 2)
    mq.send("drained", 0, [Message(value=b"v")] * 10)
    mq.send("drained", 1, [Message(value=b"v")] * 5)
    stream = spark.readStream.format("mq").options(
        url=mq.url, subscribe="drained", startingOffsets="earliest", groupId="drainer", maxOffsetsPerTrigger=8
    )
    query = (
        stream.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    with urllib.request.urlopen(f"{mq.url}/mq/v1/groups/drainer/lag") as answer:
        lag = json.load(answer)
    assert lag["total_lag"] == 0
    assert [row["committed"] for row in lag["partitions"]] == [10, 5]


def test_a_group_that_does_not_exist_yet_is_made(mq: Server) -> None:
    mq.create("fresh", 1)
    Client(Endpoint(urls=(mq.url,))).move_group("new-group", "fresh", 0, 0)
    with urllib.request.urlopen(f"{mq.url}/mq/v1/groups") as answer:
        assert "new-group" in {group["group"] for group in json.load(answer)["groups"]}

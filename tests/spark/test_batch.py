"""Planning a batch read against a server, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark_mq.batch import BatchReader
from pyspark_mq.errors import DataLossError, MqError, OptionError
from pyspark_mq.options import Options

from tests.spark.fake_server import FakeServer, serving


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Topic a: offsets 0 to 9 stored at 1000, 10 to 19 at 2000; 5 records in its partition 1. Topic ab: one record."""
    with serving() as fake:
        fake.create("a", 2)
        fake.send("a", 0, [b"v"] * 10, time_ms=1000)
        fake.send("a", 0, [b"v"] * 10, time_ms=2000)
        fake.send("a", 1, [b"v"] * 5, time_ms=1500)
        fake.create("ab")
        fake.send("ab", 0, [b"v"], time_ms=9000)
        yield fake


def planned(server: FakeServer, **options: str) -> list[str]:
    selected = (
        options if {"assign", "subscribePattern", "subscribe"} & options.keys() else {"subscribe": "a", **options}
    )
    parsed = Options.parse({"url": server.url, **selected})
    return [str(piece) for task in BatchReader(parsed, ("value",)).partitions() for piece in task.ranges]


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({}, ["a/0 [0, 20)", "a/1 [0, 5)"]),
        ({"subscribe": "ab,a"}, ["a/0 [0, 20)", "a/1 [0, 5)", "ab/0 [0, 1)"]),
        ({"subscribePattern": "a.?"}, ["a/0 [0, 20)", "a/1 [0, 5)", "ab/0 [0, 1)"]),
        ({"subscribePattern": "b"}, None),
        ({"assign": '{"a":[1]}'}, ["a/1 [0, 5)"]),
        (
            {"startingOffsets": '{"a":{"0":7,"1":-2}}', "endingOffsets": '{"a":{"0":9,"1":-1}}'},
            ["a/0 [7, 9)", "a/1 [0, 5)"],
        ),
        ({"startingTimestamp": "1200", "endingTimestamp": "1800"}, ["a/0 [10, 10)", "a/1 [0, 5)"][1:]),
        ({"startingTimestamp": "1800", "startingOffsetsByTimestampStrategy": "latest"}, ["a/0 [10, 20)"]),
        ({"endingOffsetsByTimestamp": '{"a":{"0":2000,"1":1}}'}, ["a/0 [0, 10)"]),
        ({"minPartitions": "5"}, ["a/0 [0, 5)", "a/0 [5, 10)", "a/0 [10, 15)", "a/0 [15, 20)", "a/1 [0, 5)"]),
        ({"maxRecordsPerPartition": "10"}, ["a/0 [0, 10)", "a/0 [10, 20)", "a/1 [0, 5)"]),
    ],
)
def test_options_choose_what_is_read(server: FakeServer, options: dict[str, str], ranges: list[str] | None) -> None:
    if ranges is None:
        with pytest.raises(MqError, match="no topic matches"):
            planned(server, **options)
    else:
        assert planned(server, **options) == ranges


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets=latest"),
        ({"startingOffsets": '{"a":{"0":-1,"1":0}}'}, "startingOffsets=latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest"),
        ({"groupId": "g"}, "groupId is for streams"),
        (
            {"startingOffsets": '{"a":{"0":9,"1":0}}', "endingOffsets": '{"a":{"0":8,"1":1}}'},
            "at 9, after its end at 8",
        ),
        ({"startingTimestamp": "1800"}, "startingOffsetsByTimestampStrategy"),
    ],
)
def test_offsets_that_make_no_sense_are_errors(server: FakeServer, options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        planned(server, **options)


def test_what_is_not_there_is_named_with_what_is(server: FakeServer) -> None:
    with pytest.raises(MqError, match=r"no orders; its topics are a, ab"):
        planned(server, subscribe="a,orders")
    with pytest.raises(MqError, match=r"no a/2; its topics are"):
        planned(server, assign='{"a":[0,2]}')


def test_offsets_that_retention_has_passed_fail_or_are_clamped(server: FakeServer) -> None:
    server.trim("a", 0, 10)
    start = '{"a":{"0":3,"1":0}}'
    with pytest.raises(DataLossError, match=r"\[3, 20\) of a/0 .* has \[10, 20\)"):
        planned(server, startingOffsets=start)
    assert planned(server, startingOffsets=start, failOnDataLoss="false") == ["a/0 [10, 20)", "a/1 [0, 5)"]

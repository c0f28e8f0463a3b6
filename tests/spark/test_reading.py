"""Reading a task: whole ranges, across batches and failures, and what happens when records vanish."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark_mq.errors import DataLossError
from pyspark_mq.offsets import Range
from pyspark_mq.options import Options
from pyspark_mq.reading import SWITCH_INTERVAL_S, Task, read

from tests.spark.fake_server import CUT, DISCONNECT, FakeServer, serving


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Topic t: partition 0 holds offsets 0 to 29 in batches of 3, each value its offset; partition 1 has 5 records."""
    with serving() as fake:
        fake.create("t", 2)
        for first in range(0, 30, 3):
            fake.send("t", 0, [b"%d" % n for n in range(first, first + 3)])
        fake.send("t", 1, [b"x%d" % n for n in range(5)])
        yield fake


def values(server: FakeServer, *ranges: tuple[int, int, int], lossy: bool = False, epoch: str = "1") -> list[str]:
    """Values of (partition, start, end) ranges read as one task, a few batches a request."""
    given = {"url": server.url, "subscribe": "t", "fetchBytes": "250", "failOnDataLoss": str(not lossy)}
    task = Task(tuple(Range("t", partition, start, end, epoch) for partition, start, end in ranges))
    found = read(Options.parse(given), ("value",), task)
    return [value.decode() for rows in found for value in rows["value"].to_pylist()]


def numbers(start: int, end: int) -> list[str]:
    return [str(n) for n in range(start, end)]


def test_ranges_that_begin_and_end_within_batches_are_read_exactly(server: FakeServer) -> None:
    assert values(server, (0, 4, 25), (1, 1, 3), (0, 26, 27)) == [*numbers(4, 25), "x1", "x2", "26"]
    assert sum("records" in request for request in server.requests) > 3


def test_broken_requests_neither_lose_nor_repeat_records(server: FakeServer) -> None:
    server.faults = [DISCONNECT, CUT, CUT]
    assert values(server, (0, 0, 30)) == numbers(0, 30)


def test_an_empty_plan_reads_nothing(server: FakeServer) -> None:
    options = Options.parse({"url": server.url, "subscribe": "t"})
    assert list(read(options, ("value",), InputPartition(None))) == []
    assert server.requests == []


def test_records_removed_by_retention_fail_the_task_or_are_skipped(server: FakeServer) -> None:
    server.trim("t", 0, 12)
    with pytest.raises(DataLossError, match=r"\[3, 20\) of t/0 .*\[12, 30\).*failOnDataLoss"):
        values(server, (0, 3, 20))
    assert values(server, (0, 3, 20), (1, 0, 1), lossy=True) == [*numbers(12, 20), "x0"]
    assert values(server, (0, 3, 9), lossy=True) == []


def test_records_past_the_end_fail_the_task_or_are_skipped(server: FakeServer) -> None:
    with pytest.raises(DataLossError, match=r"\[30, 40\) of t/0 .*\[0, 30\)"):
        values(server, (0, 25, 40))
    assert values(server, (0, 25, 40), lossy=True) == numbers(25, 30)
    with pytest.raises(DataLossError, match=r"\[35, 40\)"):
        values(server, (0, 35, 40))
    assert values(server, (0, 35, 40), (0, 0, 1), lossy=True) == ["0"]


def test_a_topic_deleted_or_created_again_is_not_read_as_if_it_were_the_same(server: FakeServer) -> None:
    server.create("t", 2)
    server.send("t", 0, [b"new"] * 30)
    with pytest.raises(DataLossError, match="created again"):
        values(server, (0, 0, 3))
    assert values(server, (0, 0, 3), lossy=True) == []
    del server.topics["t"]
    with pytest.raises(DataLossError, match="no longer exists"):
        values(server, (0, 0, 3))
    assert values(server, (0, 0, 3), lossy=True) == []


def test_a_reader_that_stops_early_leaves_the_rest_unread(server: FakeServer) -> None:
    options = Options.parse({"url": server.url, "subscribe": "t", "fetchBytes": "1"})
    rows = read(options, ("value",), Task((Range("t", 0, 0, 30, "1"),)))
    before_s = sys.getswitchinterval()
    next(rows)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert isinstance(rows, Generator)
    rows.close()
    assert len(server.requests) <= 3
    assert sys.getswitchinterval() == before_s

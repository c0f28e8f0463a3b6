"""A stream's decisions, driven as Spark drives them but without a JVM; see the call order in docs/spark.md."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark_mq.errors import DataLossError, MqError, OptionError
from pyspark_mq.options import Options
from pyspark_mq.stream import StreamOffset, StreamReader

from tests.spark.fake_server import FakeServer, serving

ALL = ReadAllAvailable()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Topic t with 100 records in partition 0 and 50 in partition 1."""
    with serving() as fake:
        fake.create("t", 2)
        fake.send("t", 0, [b"v"] * 100)
        fake.send("t", 1, [b"v"] * 50)
        yield fake


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def stream(server: FakeServer, clock: Clock | None = None, **options: str) -> StreamReader:
    selected = options if "subscribePattern" in options else {"subscribe": "t", **options}
    parsed = Options.parse({"url": server.url, **selected})
    return StreamReader(parsed, ("value",), monotonic=(clock or Clock()).monotonic)


def at(p0: int, p1: int, epoch: str = "1") -> dict[str, dict[str, int | str]]:
    return {"#epochs": {"t": epoch}, "t": {"0": p0, "1": p1}}


def read_between(reader: StreamReader, start: object, end: object) -> list[str]:
    return [str(piece) for task in reader.partitions(start, end) for piece in task.ranges]  # type: ignore[arg-type]


def test_a_stream_from_the_beginning_reads_all_and_then_waits(server: FakeServer) -> None:
    reader = stream(server, startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == at(0, 0)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end == at(100, 50) == reader.reportLatestOffset()
    assert read_between(reader, start, end) == ["t/0 [0, 100)", "t/1 [0, 50)"]
    reader.commit(end)
    assert json.dumps(reader.latestOffset(end, ALL)) == json.dumps(end), "compared as text by Spark"


def test_batch_zero_of_a_stream_from_the_end_is_empty_and_may_be_planned_again(server: FakeServer) -> None:
    reader = stream(server)
    start = reader.initialOffset()
    assert start == at(100, 50)
    server.send("t", 0, [b"v"] * 7)
    assert reader.latestOffset(start, ALL) == start
    assert reader.initialOffset() == start, "asked again, with more records there by now"
    assert read_between(reader, start, start) == []
    assert reader.latestOffset(start, ALL) == at(107, 50)

    again = stream(server)  # the driver died in batch 0: Spark asks for a new beginning and keeps the old end
    assert read_between(again, again.initialOffset(), start) == []
    assert again.latestOffset(start, ALL) == at(107, 50), "what came meanwhile is in batch 1"


LATE = {"startingTimestamp": "99999999999999", "startingOffsetsByTimestampStrategy": "latest"}


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": '{"t":{"0":-1,"1":-1}}'}, at(100, 50)),
        ({"startingOffsets": '{"t":{"0":-1,"1":20}}'}, at(100, 20)),
        (LATE, at(100, 50)),
    ],
)
@pytest.mark.parametrize("asks_for_the_end_first", [False, True])
def test_batch_zero_may_be_planned_again_where_only_some_partitions_begin_at_their_end(
    server: FakeServer, options: dict[str, str], start: dict[str, dict[str, int | str]], asks_for_the_end_first: bool
) -> None:
    reader = stream(server, **options)
    if asks_for_the_end_first:  # as pyspark 4.0 and 4.1 do
        end = reader.latestOffset()
        server.send("t", 0, [b"v"] * 7)
        assert reader.initialOffset() == start
    else:
        assert reader.initialOffset() == start
        server.send("t", 0, [b"v"] * 7)
        end = reader.latestOffset(start, ALL)
    assert end == at(100, 50), "what came since is not in batch 0"
    batch_zero = read_between(reader, start, end)

    server.send("t", 0, [b"v"] * 20)
    again = stream(server, **options)
    assert read_between(again, again.initialOffset(), end) == batch_zero
    following = again.latestOffset(end, ALL)
    assert read_between(again, end, following) == ["t/0 [100, 127)"]


def test_equal_offsets_are_equal_text() -> None:
    offset = StreamOffset({"b": "2", "a": "1"}, {"b": {10: 1, 9: 2}, "a": {0: 3}})
    text = json.dumps(offset.to_json())
    assert text == '{"#epochs": {"a": "1", "b": "2"}, "a": {"0": 3}, "b": {"9": 2, "10": 1}}'
    assert StreamOffset.from_json(json.loads(text)) == offset


def test_a_restart_reads_the_ranges_of_the_checkpoint_first(server: FakeServer) -> None:
    reader = stream(server, startingOffsets="earliest")
    assert read_between(reader, at(10, 20), at(30, 20)) == ["t/0 [10, 30)"]
    assert reader.latestOffset(at(30, 20), ALL) == at(100, 50)


def test_the_rate_limit_is_shared_by_backlog(server: FakeServer) -> None:
    reader = stream(server, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    assert reader.latestOffset(at(0, 0), limit) == at(20, 10)
    assert reader.latestOffset(at(0, 0), ALL) == at(100, 50), "Trigger.Once reads all there is"


def test_available_now_stops_at_what_was_there_at_the_start(server: FakeServer) -> None:
    reader = stream(server, startingOffsets="earliest", maxOffsetsPerTrigger="90", minOffsetsPerTrigger="80")
    reader.prepareForTriggerAvailableNow()
    server.send("t", 0, [b"v"] * 40)
    reached = [reader.initialOffset()]
    while (end := reader.latestOffset(reached[-1], reader.getDefaultReadLimit())) != reached[-1]:
        reached.append(end)
    assert reached == [at(0, 0), at(60, 30), at(100, 50)]


def test_available_now_from_the_end_begins_where_it_ends(server: FakeServer) -> None:
    reader = stream(server)
    reader.prepareForTriggerAvailableNow()
    server.send("t", 0, [b"v"])
    start = reader.initialOffset()
    assert start == at(100, 50)
    assert [reader.latestOffset(start, ALL) for _ in range(2)] == [start, start]


def test_a_batch_waits_for_enough_records_but_not_for_ever(server: FakeServer) -> None:
    clock = Clock()
    reader = stream(server, clock, startingOffsets="earliest", minOffsetsPerTrigger="20", maxTriggerDelay="10s")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(20)
    assert reader.latestOffset(at(95, 50), limit) == at(100, 50), "the first batch does not wait"
    server.send("t", 0, [b"v"] * 19)
    assert reader.latestOffset(at(100, 50), limit) == at(100, 50)
    assert reader.latestOffset(at(100, 50), ALL) == at(119, 50)
    clock.now = 9.9
    assert reader.latestOffset(at(100, 50), limit) == at(100, 50)
    clock.now = 10
    assert reader.latestOffset(at(100, 50), limit) == at(119, 50)
    server.send("t", 1, [b"v"] * 20)
    assert reader.latestOffset(at(119, 50), limit) == at(119, 70), "enough is there"


def test_topics_that_appear_later_are_read_from_their_beginning(server: FakeServer) -> None:
    reader = stream(server, subscribePattern="[t-z]", startingOffsets="latest")
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    server.create("z")
    server.send("z", 0, [b"v"] * 3)
    end = reader.latestOffset(start, ALL)
    assert end == {"#epochs": {"t": "1", "z": "2"}, "t": {"0": 100, "1": 50}, "z": {"0": 3}}
    assert read_between(reader, start, end) == ["z/0 [0, 3)"]


def test_a_new_topic_that_retention_has_reached_is_a_loss(server: FakeServer) -> None:
    server.create("z")
    server.send("z", 0, [b"v"] * 3)
    server.send("z", 0, [b"v"] * 3)
    server.trim("z", 0, 3)
    for lossy in (False, True):
        reader = stream(server, subscribePattern=".", failOnDataLoss=str(not lossy))
        end = reader.latestOffset(at(100, 50), ALL)
        if lossy:
            assert read_between(reader, at(100, 50), end) == ["z/0 [3, 6)"]
        else:
            with pytest.raises(DataLossError, match=r"\[0, 6\) of z/0"):
                reader.partitions(at(100, 50), end)


def test_a_topic_created_again_is_a_loss_and_then_read_from_its_beginning(server: FakeServer) -> None:
    server.create("t", 2)
    server.send("t", 0, [b"v"] * 200)
    with pytest.raises(DataLossError, match="t was deleted and created again"):
        stream(server).latestOffset(at(100, 50), ALL)
    reader = stream(server, failOnDataLoss="false")
    end = reader.latestOffset(at(100, 50), ALL)
    assert end == at(200, 0, epoch="2")
    assert read_between(reader, at(100, 50), end) == ["t/0 [0, 200)"]
    with pytest.raises(DataLossError, match=r"epoch 1\) no longer exists"):
        stream(server).partitions(at(0, 0), at(100, 50))


def test_a_topic_that_vanished_is_a_loss(server: FakeServer) -> None:
    del server.topics["t"]
    with pytest.raises(DataLossError, match=r"partitions \[0, 1\] of topic t no longer exist"):
        stream(server).latestOffset(at(100, 50), ALL)
    reader = stream(server, failOnDataLoss="false")
    end = reader.latestOffset(at(100, 50), ALL)
    assert end == {"#epochs": {}}
    assert read_between(reader, at(100, 50), end) == []
    assert read_between(reader, at(0, 0), at(100, 50)) == []


def test_a_partition_that_went_back_is_a_loss(server: FakeServer) -> None:
    with pytest.raises(DataLossError, match="t/0 now ends at 100, but the stream is at 130"):
        stream(server).latestOffset(at(130, 50), ALL)
    reader = stream(server, failOnDataLoss="false")
    end = reader.latestOffset(at(130, 50), ALL)
    assert read_between(reader, at(130, 50), end) == []
    with pytest.raises(DataLossError, match="t/0 went back from 130 to 100"):
        stream(server).partitions(at(130, 50), at(100, 50))


def test_retention_past_the_position_is_a_loss(server: FakeServer) -> None:
    server.send("t", 0, [b"v"] * 10)
    server.trim("t", 0, 100)
    reader = stream(server)
    end = reader.latestOffset(at(40, 50), ALL)
    with pytest.raises(DataLossError, match=r"\[40, 110\) of t/0"):
        reader.partitions(at(40, 50), end)
    reader = stream(server, failOnDataLoss="false")
    assert read_between(reader, at(40, 50), reader.latestOffset(at(40, 50), ALL)) == ["t/0 [100, 110)"]


def test_older_sparks_pass_no_arguments_and_ask_for_the_end_first(server: FakeServer) -> None:
    reader = stream(server)
    end = reader.latestOffset()
    server.send("t", 0, [b"v"])
    assert reader.initialOffset() == end == at(100, 50)
    assert reader.latestOffset() == at(101, 50)


def test_a_topic_that_is_not_there_stops_a_new_query_but_a_pattern_waits(server: FakeServer) -> None:
    with pytest.raises(MqError, match="no nope; its topics are t"):
        stream(server, subscribe="nope").initialOffset()
    assert stream(server, subscribePattern="nope").initialOffset() == {"#epochs": {}}


def test_options_of_batches_are_refused(server: FakeServer) -> None:
    with pytest.raises(OptionError, match="for batch reads only"):
        stream(server, endingOffsets="latest")


def test_a_reader_is_pickled_in_its_first_state(server: FakeServer) -> None:
    reader = stream(server)
    reader.initialOffset()
    server.send("t", 0, [b"v"])
    assert copy.copy(reader).initialOffset() == at(101, 50)

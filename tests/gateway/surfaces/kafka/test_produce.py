"""Produce and Fetch as kafka-python writes and reads them, in every version; hostile bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import kafka.protocol.consumer as theirs_consumer
import kafka.protocol.producer as theirs_producer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.surfaces.kafka import produce
from gateway.surfaces.kafka.apis import APIS, FETCH, PRODUCE
from gateway.surfaces.kafka.fetch import PartitionBatches, PartitionFetch, read_fetch, write_fetched
from gateway.surfaces.kafka.produce import (
    HEAD_BYTES_MAX,
    PartitionRecords,
    Produced,
    ProduceReader,
    ProduceRequest,
    TooMany,
    read_produce,
    write_produced,
)
from gateway.surfaces.kafka.schema import Malformed
from tests.gateway.surfaces.kafka import oracle

BATCHES = [b"first batch", b"second batch"]


def _versions(key: int) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def produce_request(
    version: int,
    topics: Mapping[str, Mapping[int, bytes | None]] = {"orders": dict(enumerate(BATCHES))},
    *,
    acks: int = -1,
    transactional_id: str | None = None,
) -> bytes:
    """A Produce request, by default of two batches, without its header."""
    request: Any = theirs_producer.ProduceRequest
    topic_data = [
        request.TopicProduceData(
            version=version,
            name=name,
            partition_data=[
                request.TopicProduceData.PartitionProduceData(version=version, index=number, records=batch)
                for number, batch in partitions.items()
            ],
        )
        for name, partitions in topics.items()
    ]
    made = request(
        version=version, transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=topic_data
    )
    return oracle.encoded(made, version)


def fetch_request(version: int, session_epoch: int = -1) -> bytes:
    """A Fetch request of one partition, without its header."""
    request: Any = theirs_consumer.FetchRequest
    partition = request.FetchTopic.FetchPartition(
        version=version, partition=3, current_leader_epoch=5, fetch_offset=42, last_fetched_epoch=-1,
        log_start_offset=-1, partition_max_bytes=1000,
    )  # fmt: skip
    topic = request.FetchTopic(version=version, topic="orders", partitions=[partition])
    made = request(
        version=version, replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=2000, isolation_level=0,
        session_id=5, session_epoch=session_epoch, topics=[topic], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    return oracle.encoded(made, version)


@pytest.mark.parametrize("version", _versions(PRODUCE))
def test_produce(version: int) -> None:
    request = read_produce(memoryview(produce_request(version)), 0, version)
    assert (request.is_transactional, request.acks) == (False, -1)
    records = [PartitionRecords(number, memoryview(batch)) for number, batch in enumerate(BATCHES)]
    assert request.topics == [("orders", records)]
    answered = write_produced([("orders", [Produced(0, 0, 17, -1, None), Produced(1, 87, -1, -1, "bad")])], version)
    found = oracle.message("ProduceResponse", version, bytes(answered))
    good, bad = found.responses[0].partition_responses
    assert (found.responses[0].name, good.index, good.error_code, good.base_offset) == ("orders", 0, 0, 17)
    assert (bad.index, bad.error_code, bad.base_offset) == (1, 87, -1)
    assert version < 8 or bad.error_message == "bad"
    assert oracle.encoded(found, version) == bytes(answered)


_TOPICS = st.dictionaries(
    st.sampled_from(("orders", "orders-2", "o" * 249)),
    st.dictionaries(st.sampled_from((0, 1, 300)), st.sampled_from((None, b"", b"a batch", bytes(40_000))), max_size=2),
    max_size=2,
)


@given(
    st.lists(
        st.tuples(st.sampled_from((3, 8, 9)), _TOPICS, st.sampled_from((-1, 1)), st.sampled_from((None, "mine"))),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 3),
)
def test_what_a_connection_remembers_of_a_request_changes_no_other(
    requests: Sequence[tuple[int, dict[str, dict[int, bytes | None]], int, str | None]], at: int
) -> None:
    reader = ProduceReader()
    for version, topics, acks, transactional_id in requests:
        content = produce_request(version, topics, acks=acks, transactional_id=transactional_id)
        for cut in (0, 0, 1):  # once more, and without its last byte
            frame = memoryview(bytes(at) + content[: len(content) - cut])
            try:
                expected = read_produce(frame, at, version)
            except Malformed:
                with pytest.raises(Malformed):
                    reader.read(frame, at, version, 100)
            else:
                assert reader.read(frame, at, version, 100) == expected


@pytest.mark.parametrize("more", [0, 1])
def test_the_head_of_a_request_is_remembered_up_to_a_size(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    def noted(frame: memoryview, at: int, version: int, partitions_max: int | None = None) -> ProduceRequest:
        reads.append(at)
        return read_produce(frame, at, version, partitions_max)

    monkeypatch.setattr(produce, "read_produce", noted)
    reader, reads_from = ProduceReader(), 7
    head_bytes = read_produce(memoryview(produce_request(3, {"": {0: b""}})), 0, 3).records_at
    name = "n" * (HEAD_BYTES_MAX - head_bytes + more)
    for batch in (b"first", b"second"):
        frame = memoryview(bytes(reads_from) + produce_request(3, {name: {0: batch}}))
        request = reader.read(frame, reads_from, 3, 100)
        assert request.topics == [(name, [PartitionRecords(0, memoryview(batch))])]
    assert len(reads) == 1 + more


@pytest.mark.parametrize("size", [0, 125, 126, 127, 128, 300])
def test_counts_and_lengths_of_one_byte_and_of_more(size: int) -> None:
    name, topics = "n" * size, [("t", [Produced(number, 0, 0, 0, None) for number in range(size)])]
    written = bytes(write_produced([*topics, (name, ())], 9))
    found = oracle.message("ProduceResponse", 9, written)
    assert [len(found.responses[0].partition_responses), found.responses[1].name] == [size, name]


@pytest.mark.parametrize("version", _versions(FETCH))
def test_fetch(version: int) -> None:
    request = read_fetch(memoryview(fetch_request(version)), 0, version)
    assert request[:4] == (500, 1, 2000, -1)
    assert request.topics == [("orders", [PartitionFetch(3, 5 if version >= 9 else -1, 42, 1000)])]
    answered = b"".join(
        write_fetched([("orders", [PartitionBatches(3, 0, 50, 7, BATCHES), PartitionBatches(4, 1, 9, 0, ())])], version)
    )
    found = oracle.message("FetchResponse", version, answered)
    first, second = found.responses[0].partitions
    assert (first.partition_index, first.error_code, first.high_watermark) == (3, 0, 50)
    assert bytes(first.records) == b"".join(BATCHES)
    assert (second.partition_index, second.error_code, bytes(second.records or b"")) == (4, 1, b"")


@pytest.mark.parametrize("version", _versions(PRODUCE))
def test_a_response_without_topics(version: int) -> None:
    assert oracle.message("ProduceResponse", version, bytes(write_produced([], version))).responses == []


@given(st.sampled_from(_versions(PRODUCE)), st.data())
def test_mangled_requests_are_refused_and_nothing_else_happens(version: int, data: st.DataObject) -> None:
    for made, read in ((produce_request(version), read_produce), (fetch_request(min(version + 3, 12)), read_fetch)):
        mangled = bytearray(made)
        for _ in range(data.draw(st.integers(1, 4))):
            mangled[data.draw(st.integers(0, len(mangled) - 1))] = data.draw(st.integers(0, 255))
        with suppress(Malformed):
            read(memoryview(bytes(mangled[: data.draw(st.integers(0, len(mangled)))])), 0, version)


@pytest.mark.parametrize("version", _versions(PRODUCE))
def test_a_reader_that_wants_few_partitions_stops_before_it_reads_more(version: int) -> None:
    frame = memoryview(produce_request(version))
    assert read_produce(frame, 0, version, partitions_max=3) == read_produce(frame, 0, version)
    with pytest.raises(TooMany):
        read_produce(frame, 0, version, partitions_max=2)

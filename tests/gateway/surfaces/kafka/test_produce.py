"""Produce and Fetch as kafka-python writes and reads them, in every version; hostile bytes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import kafka.protocol.consumer as theirs_consumer
import kafka.protocol.producer as theirs_producer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.surfaces.kafka.apis import APIS, FETCH, PRODUCE
from gateway.surfaces.kafka.fetch import PartitionBatches, PartitionFetch, read_fetch, write_fetched
from gateway.surfaces.kafka.produce import PartitionRecords, Produced, TooMany, read_produce, write_produced
from gateway.surfaces.kafka.schema import Malformed
from tests.gateway.surfaces.kafka import oracle

BATCHES = [b"first batch", b"second batch"]


def _versions(key: int) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def produce_request(version: int) -> bytes:
    """A Produce request of two batches, without its header."""
    request: Any = theirs_producer.ProduceRequest
    partitions = [
        request.TopicProduceData.PartitionProduceData(version=version, index=number, records=batch)
        for number, batch in enumerate(BATCHES)
    ]
    topic = request.TopicProduceData(version=version, name="orders", partition_data=partitions)
    made = request(version=version, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[topic])
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

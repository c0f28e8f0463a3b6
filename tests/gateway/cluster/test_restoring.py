"""gateway.cluster.restoring: the metadata of a cluster that is made of a backup."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import orjson
import pytest

from gateway.cluster.members import FORMATS, NODES, OWNERS
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.move import TAKEN_OFFSETS, intent, queue_id_for
from gateway.cluster.mover import PARTITIONS, first_record, key_of
from gateway.cluster.record import PartitionRecord, PartitionState, SegmentRecord, check, decode, encode
from gateway.cluster.restoring import TOPIC_IDS_SKIPPED, restored
from gateway.cluster.topics import COUNTERS, Counters, TopicRecord, decode_counters, encode_counters, encode_topic
from gateway.main.cluster_backup import MANIFEST, METADATA, NoBackup, restore
from store.topics import Topic

TOPIC = Topic(16, "orders", 3, 1)
MOVED = PartitionRecord(
    epoch=3,
    owner="n2",
    segments=(
        SegmentRecord(start=0, broker="n1", queue=(16, 1), end=100, epoch=0),
        SegmentRecord(start=100, broker="n2", queue=(16, queue_id_for(1, 3)), epoch=3),
    ),
)


def values() -> dict[str, bytes]:
    return {
        "cluster": b"c1",
        COUNTERS: encode_counters(Counters(17, 2)),
        "topics/orders": encode_topic(TopicRecord(TOPIC, ((0, ("n1", "n2")),))),
        "brokers/n1": b"{}",
        f"{OWNERS}groups/workers": b'{"node":"n1"}',
        f"{NODES}n1": b"{}",
        f"{FORMATS}n1": b"{}",
        key_of(16, 1): encode(MOVED),
        key_of(16, 2): encode(intent(first_record(16, 2, "n1"), "n2")),
        key_of(15, 0): encode(first_record(15, 0, "n1")),  # of a topic that is deleted
    }


def test_every_partition_goes_on_at_its_broker_in_a_new_epoch_where_nobody_has_been() -> None:
    found = restored(values(), now_ms=7)
    records = [decode(found[key_of(16, partition)]) for partition in range(3)]
    for record in records:
        check(record)
        *sealed, opened = record.segments
        assert record.state is PartitionState.NORMAL
        assert all(segment.taken for segment in sealed)
        assert opened.start == sealed[-1].start + TAKEN_OFFSETS
        assert opened.broker == record.owner == sealed[-1].broker
        assert (opened.physical, opened.end, opened.from_ms) == (0, None, 7)
    assert [record.owner for record in records] == ["n1", "n2", "n1"], "a move that was under way is none any more"
    assert [record.epoch for record in records] == [1, 4, 2]
    queues = {segment.queue for record in records for segment in record.segments}
    assert len(queues) == sum(len(record.segments) for record in records), "no queue is used twice"


def test_the_rest_stays_but_for_who_was_there() -> None:
    found = restored(values(), now_ms=7)
    kept = {key: data for key, data in found.items() if not key.startswith((PARTITIONS, COUNTERS))}
    assert kept.keys() == {"cluster", "topics/orders", "brokers/n1", f"{OWNERS}groups/workers"}
    assert all(data == values()[key] for key, data in kept.items())
    assert decode_counters(found[COUNTERS]) == Counters(17 + TOPIC_IDS_SKIPPED, 2)
    assert key_of(15, 0) not in found


def test_restored_once_more_it_is_another_stretch_further_on() -> None:
    again = restored(restored(values(), now_ms=7), now_ms=8)
    record = decode(again[key_of(16, 0)])
    assert [segment.start for segment in record.segments] == [0, TAKEN_OFFSETS, 2 * TAKEN_OFFSETS]


async def test_a_backup_with_partitions_on_kafka_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    there = SegmentRecord(start=100, broker="kafka1", queue=("orders", 1), epoch=4, physical=2, pid=4001)
    was = SegmentRecord(start=0, broker="kafka1", queue=("orders", 1), end=102, epoch=2, physical=2, pid=4000)
    on_kafka = PartitionRecord(epoch=4, owner="n1", segments=(was, there), verified=2)
    back = PartitionRecord(
        epoch=3, owner="n1", segments=(was, SegmentRecord(start=100, broker="n1", queue=(16, 5), epoch=3))
    )
    metadata = MemoryMetadata()

    def never(*_: object) -> NoReturn:
        raise NotImplementedError

    for record, expected in ((on_kafka, "partitions of orders were on a Kafka cluster"), (back, None)):
        kept = {**values(), key_of(16, 1): encode(record), key_of(15, 0): encode(on_kafka)}
        listed = {"v": 1, "revision": 9, "values": {key: data.decode() for key, data in kept.items()}}
        made = {"v": 1, "cluster": "c1", "began_ms": 1, "ended_ms": 2, "nodes": ["n1"], "without": []}
        (tmp_path / METADATA).write_bytes(orjson.dumps(listed))
        (tmp_path / MANIFEST).write_bytes(orjson.dumps(made))
        with pytest.raises(NoBackup if expected else NotImplementedError, match=expected):
            await restore(metadata, tmp_path, {"n1": tmp_path / "n1"}, never, never)
    assert (await metadata.list("")).values == {}

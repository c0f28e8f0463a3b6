"""The metadata of a cluster that is made of a backup (gateway/main/cluster_backup.py), of that of the cluster that was.
Pure.

The directories were copied one after the other, and before the metadata. So a directory knows of no topic, queue or
epoch of which the metadata has never heard; and it may have less of a segment than the metadata says: what came between
its copy and that of the metadata. And the cluster that was has gone on, and has given offsets that are in no copy. So
every partition is taken over (gateway/cluster/move.py), from the broker that has it, by the same one:

    a new epoch                       what still believes in the old one writes into a queue that is sealed
    a segment TAKEN_OFFSETS further   no offset is given twice, not even one of which only a client of the cluster that
                                      was knows; a group that has committed beyond its records' end skips nothing
    all older segments are `taken`    each ends where its queue ends in the copy: readers go on behind it

Topic ids are not given twice either: the next one is TOPIC_IDS_SKIPPED further on. Sessions are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gateway.cluster import move
from gateway.cluster.members import FORMATS, NODES
from gateway.cluster.mover import PARTITIONS, first_record, key_of
from gateway.cluster.record import PartitionRecord, decode, encode
from gateway.cluster.shard_log import SNAPSHOTS
from gateway.cluster.topics import (
    COUNTERS,
    TOPICS,
    TopicRecord,
    decode_counters,
    decode_topic,
    encode_counters,
)

TOPIC_IDS_SKIPPED = 10_000
"""Topics that the cluster which was may have made after its backup."""

_LEFT_OUT = (NODES, FORMATS, PARTITIONS, SNAPSHOTS)


def restored(values: Mapping[str, bytes], now_ms: int) -> dict[str, bytes]:
    """The keys of the new cluster, of those of the backup. Raises ValueError for what is not understood, ChainFull."""
    found = {key: data for key, data in values.items() if not key.startswith(_LEFT_OUT)}
    if (counted := values.get(COUNTERS)) is not None:
        counters = decode_counters(counted)
        found[COUNTERS] = encode_counters(replace(counters, topic_id=counters.topic_id + TOPIC_IDS_SKIPPED))
    for key, data in values.items():
        if key.startswith(TOPICS):
            topic = decode_topic(data)
            if topic.attached is not None:
                continue
            for partition in range(topic.topic.partitions):
                at = key_of(topic.topic.topic_id, partition)
                found[at] = encode(_taken(_record_of(values.get(at), topic, partition), topic, partition, now_ms))
    return found


def _record_of(data: bytes | None, topic: TopicRecord, partition: int) -> PartitionRecord:
    if data is None:
        return first_record(topic.topic.topic_id, partition, topic.home_of(partition))
    return decode(data)


def _taken(record: PartitionRecord, topic: TopicRecord, partition: int, now_ms: int) -> PartitionRecord:
    to = record.open_segment.broker
    begun = move.intent(record, to)  # one that was under way is overtaken
    queue = (topic.topic.topic_id, move.queue_id_for(partition, begun.epoch))
    taken = move.take_over(begun, owner=to, queue=queue, physical=0, now_ms=now_ms)
    *sealed, opened = taken.segments
    return replace(taken, segments=(*(replace(segment, taken=True) for segment in sealed), opened))

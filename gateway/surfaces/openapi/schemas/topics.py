"""Topics: native, as metadata of the REST Proxy, and as Strimzi makes them."""

from __future__ import annotations

from gateway.settings.limits import Limits
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    OFFSET,
    PARTITION,
    STRING,
    TOPIC,
    Schema,
    array,
    either,
    integer,
    mapping,
    nullable,
    obj,
    ref,
    said,
    text,
    with_example,
    words,
)


def topics(limits: Limits) -> dict[str, Schema]:
    """Topics and their offsets."""
    chosen = {
        "retention_ms": said(integer(1), "Records stored longer ago are not shown."),
        "max_message_bytes": said(integer(1, limits.record_bytes_max), "Key, value and headers of one record."),
        "selector": said(
            words("key", "round_robin", "random", "room"), "How the partition of records that name none is chosen."
        ),
    }
    settings = {
        "partitions": said(nullable(integer(1, limits.partitions_max)), "More later, never fewer."),
        **{name: nullable(schema) for name, schema in chosen.items()},
    }
    replica = obj({"broker": COUNT, "leader": BOOLEAN, "in_sync": BOOLEAN})
    bounds = {"partition": PARTITION, "beginning_offset": OFFSET, "end_offset": OFFSET}
    topic = {"topic": STRING, "topic_id": said(COUNT, "The epoch: never used again."), "partitions": integer(1)}
    return {
        "NewTopic": with_example(obj({}, settings), {"partitions": 4}, {"partitions": 4, "retention_ms": 86_400_000}),
        "TopicChanges": with_example(obj({}, settings, minProperties=1), {"partitions": 8}, {"retention_ms": None}),
        "Topic": obj(topic, chosen),
        "TopicWithOffsets": obj({**topic, "offsets": array(obj(bounds))}, chosen),
        "Topics": obj({"topics": array(ref("Topic"))}),
        "TopicOffsets": obj(
            {
                "topic": STRING,
                "epoch": STRING,
                "partitions": array(
                    obj(bounds, {"offset_for_time": said(OFFSET, "The first record stored at or after `timestamp`.")})
                ),
            }
        ),
        "StrimziTopic": with_example(
            obj(
                {"topic_name": TOPIC},
                {
                    "partitions_count": nullable(integer(1, limits.partitions_max)),
                    "replication_factor": said(ANYTHING, "Ignored: there is one broker."),
                    "config": nullable(obj({}, kafka_settings(limits))),
                },
            ),
            {"topic_name": "orders", "partitions_count": 4},
        ),
        "Brokers": obj({"brokers": array(COUNT)}),
        "TopicNames": array(STRING),
        "TopicMetadata": obj(
            {"name": STRING, "configs": mapping(STRING), "partitions": array(ref("PartitionMetadata"))}
        ),
        "PartitionMetadata": obj({"partition": PARTITION, "leader": COUNT, "replicas": array(replica)}),
        "PartitionsMetadata": array(ref("PartitionMetadata")),
        "PartitionOffsets": obj({"beginning_offset": OFFSET, "end_offset": OFFSET}),
        "Nothing": obj({}),
    }


def kafka_settings(limits: Limits) -> dict[str, Schema]:
    """A topic's settings under Kafka's names, as integers or as texts of integers."""
    digits = text(18, pattern="^0*[1-9][0-9]*$")
    return {
        "retention.ms": nullable(either(integer(1, 10**18 - 1), digits)),
        "max.message.bytes": nullable(either(integer(1, limits.record_bytes_max), digits)),
        "cleanup.policy": nullable(words("delete")),
    }

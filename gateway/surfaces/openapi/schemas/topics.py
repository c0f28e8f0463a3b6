"""Topics: native, as metadata of the REST Proxy, and as Strimzi makes them."""

from __future__ import annotations

from gateway.api.shapes.schema import not_null, schema_of
from gateway.api.shapes.topics import NewTopicBody, StrimziTopicBody, TopicChangesBody, TopicSettings
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.shapes import (
    BOOLEAN,
    COUNT,
    OFFSET,
    PARTITION,
    STRING,
    Schema,
    array,
    integer,
    mapping,
    obj,
    ref,
    said,
)
from store.topics import CONFIG_NAMES


def topics(limits: Limits) -> dict[str, Schema]:
    """Topics and their offsets."""
    settings = schema_of(TopicSettings, limits)["properties"]
    chosen = {name: not_null(settings[name]) for name in CONFIG_NAMES}
    json_keys = not_null(schema_of(NewTopicBody, limits)["properties"]["json_keys"])
    replica = obj({"broker": COUNT, "leader": BOOLEAN, "in_sync": BOOLEAN})
    bounds = {"partition": PARTITION, "beginning_offset": OFFSET, "end_offset": OFFSET}
    topic = {
        "topic": STRING,
        "topic_id": said(COUNT, "The epoch: never used again."),
        "partitions": integer(1),
        "json_keys": json_keys,
    }
    return {
        "NewTopic": schema_of(NewTopicBody, limits),
        "TopicChanges": schema_of(TopicChangesBody, limits),
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
        "StrimziTopic": schema_of(StrimziTopicBody, limits),
        "Brokers": obj({"brokers": array(COUNT)}),
        "TopicNames": array(STRING),
        "TopicMetadata": obj(
            {"name": STRING, "configs": mapping(STRING), "partitions": array(ref("PartitionMetadata"))}
        ),
        "PartitionMetadata": obj({"partition": PARTITION, "leader": COUNT, "replicas": array(replica)}),
        "PartitionsMetadata": array(ref("PartitionMetadata")),
        "PartitionOffsets": obj({"beginning_offset": OFFSET, "end_offset": OFFSET}),
    }

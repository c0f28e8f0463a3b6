"""Consumer instances of the REST Proxy v2. They take fields they do not know, as clients send many."""

from __future__ import annotations

from gateway.api.shapes.consumers import CommitBody, PartitionsBody, PatternBody, PositionsBody, TopicsBody
from gateway.api.shapes.schema import schema_of
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
    OFFSET,
    PARTITION,
    STRING,
    Schema,
    array,
    either,
    integer,
    nullable,
    obj,
    ref,
    said,
    text,
    with_example,
    words,
)


def instances(limits: Limits) -> dict[str, Schema]:
    """Instances, and what they are told."""
    boolean = nullable(either(BOOLEAN, words("true", "false", "True", "False", "TRUE", "FALSE")))
    return {
        "NewInstance": with_example(
            said(
                {
                    **obj(
                        {},
                        {
                            "name": said(nullable(text(255, least=1)), "Made up when left out. `id` is the same."),
                            "id": nullable(text(255, least=1)),
                            "format": said(nullable(STRING), "binary (default), json, text."),
                            "auto.offset.reset": said(nullable(STRING), "latest (default) or earliest."),
                            "auto.commit.enable": boolean,
                            "enable.auto.commit": said(boolean, "Strimzi's; its clients' commits are answered 204."),
                            "fetch.min.bytes": said(nullable(either(integer(-1, 10_000_000), STRING)), "1."),
                            "consumer.request.timeout.ms": nullable(either(integer(0, 600_000), STRING)),
                            "max.poll.records": nullable(either(integer(1, 100_000), STRING)),
                            "on.decode.error": said(nullable(STRING), "inline (default), skip, fail."),
                        },
                        others=True,
                    )
                },
                "Other settings of Kafka consumers are ignored.",
            ),
            {"name": "c1", "format": "json", "auto.offset.reset": "earliest"},
        ),
        "Instance": obj({"instance_id": STRING, "base_uri": STRING}),
        "Subscription": with_example(
            either(schema_of(TopicsBody, limits), schema_of(PatternBody, limits)),
            {"topics": ["orders"]},
            {"topic_pattern": "orders-.*"},
        ),
        "SubscribedTopics": obj({"topics": array(STRING)}),
        "PartitionsToName": schema_of(PartitionsBody, limits),
        "AssignedPartitions": obj({"partitions": array(ref("TopicPartition"))}),
        "OffsetsToCommit": schema_of(CommitBody, limits),
        "CommittedOffsets": obj(
            {"offsets": array(obj({"topic": STRING, "partition": PARTITION, "offset": OFFSET, "metadata": STRING}))}
        ),
        "NoErrors": array(ANYTHING, most=0),
        "Positions": schema_of(PositionsBody, limits),
    }

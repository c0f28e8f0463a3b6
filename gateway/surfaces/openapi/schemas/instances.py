"""Consumer instances of the REST Proxy v2. They take fields they do not know, as clients send many."""

from __future__ import annotations

from gateway.codec.times import TIME_MS_MAX
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
    OFFSET,
    PARTITION,
    STRING,
    TIME_TEXT,
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


def instances() -> dict[str, Schema]:
    """Instances, and what they are told."""
    boolean = nullable(either(BOOLEAN, words("true", "false", "True", "False", "TRUE", "FALSE")))
    topic_partition = obj({"topic": text(least=1), "partition": integer(0, 2**63 - 2)}, others=True)
    offset = integer(0, 2**63 - 2)
    timestamp = either(integer(0, TIME_MS_MAX), TIME_TEXT)
    at_offset = obj(
        {"topic": text(least=1), "partition": integer(0, 2**63 - 2), "offset": offset},
        {"metadata": nullable(STRING)},
        others=True,
    )
    at_time = obj(
        {"topic": text(least=1), "partition": integer(0, 2**63 - 2), "timestamp": timestamp},
        others=True,
    )
    example = {"topic": "orders", "partition": 0}
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
            either(
                obj(
                    {"topics": array(STRING, least=1)},
                    {"topic_pattern": {"type": "null"}},
                    others=True,
                ),
                obj({"topic_pattern": STRING}, {"topics": nullable(array(STRING, most=0))}, others=True),
            ),
            {"topics": ["orders"]},
            {"topic_pattern": "orders-.*"},
        ),
        "SubscribedTopics": obj({"topics": array(STRING)}),
        "PartitionsToName": with_example(
            obj({"partitions": array(topic_partition, most=10_000)}, others=True), {"partitions": [example]}
        ),
        "AssignedPartitions": obj({"partitions": array(ref("TopicPartition"))}),
        "OffsetsToCommit": with_example(
            obj({}, {"offsets": nullable(array(at_offset, most=10_000))}, others=True),
            {"offsets": [{**example, "offset": 41}]},
        ),
        "CommittedOffsets": obj(
            {"offsets": array(obj({"topic": STRING, "partition": PARTITION, "offset": OFFSET, "metadata": STRING}))}
        ),
        "NoErrors": array(ANYTHING, most=0),
        "Positions": with_example(
            obj(
                {},
                {
                    "offsets": nullable(array(at_offset, most=10_000)),
                    "timestamps": nullable(array(at_time, most=10_000)),
                },
                others=True,
                minProperties=1,
            ),
            {"offsets": [{**example, "offset": 0}]},
            {"timestamps": [{**example, "timestamp": "2026-01-31T09:30:00Z"}]},
        ),
    }

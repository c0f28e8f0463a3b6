"""The REST Proxy v3: resources, pages of them, records and receipts."""

from __future__ import annotations

from gateway.api.shapes.schema import schema_of
from gateway.api.shapes.topics import (
    V3ConfigChangesBody,
    V3ConfigValueBody,
    V3NewTopicBody,
    V3TopicChangesBody,
)
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.schemas.sent import record_fields
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BASE64,
    BOOLEAN,
    COUNT,
    OFFSET,
    PARTITION,
    STRING,
    TIME,
    Schema,
    array,
    either,
    exactly,
    integer,
    nullable,
    obj,
    ref,
    text,
    with_example,
    words,
)


def v3(limits: Limits) -> dict[str, Schema]:
    """Resources and pages."""
    related = obj({"related": STRING})
    metadata = obj({"self": STRING, "resource_name": STRING})

    def resource(kind: str, **named: Schema) -> Schema:
        return obj({"kind": exactly(kind), "metadata": metadata, "cluster_id": STRING, **named})

    def page(kind: str, name: str) -> Schema:
        return obj(
            {
                "kind": exactly(kind),
                "metadata": obj({"self": STRING, "next": {"type": "null"}}),
                "data": array(ref(name)),
            }
        )

    config = {
        "name": STRING,
        "value": STRING,
        "is_read_only": BOOLEAN,
        "is_sensitive": BOOLEAN,
        "source": words("DEFAULT_CONFIG", "DYNAMIC_TOPIC_CONFIG"),
        "synonyms": array(ANYTHING, most=0),
        "is_default": BOOLEAN,
    }
    data = either(
        {"type": "null"},
        obj({"type": exactly("BINARY")}, {"data": nullable(BASE64), **_v3_ignored()}),
        obj({"type": exactly("JSON")}, {"data": ANYTHING, **_v3_ignored()}),
        obj({"type": exactly("STRING")}, {"data": nullable(STRING), **_v3_ignored()}),
    )
    own = record_fields(limits)
    record = {
        "partition_id": nullable(PARTITION),
        "headers": nullable(array(obj({"name": text(least=1)}, {"value": nullable(BASE64)}), most=64)),
        "key": data,
        "value": data,
        "timestamp": nullable(TIME),
        **{name: own[name] for name in ("tag", "delay_ms", "deliver_at", "msg_id", "message_group", "schedule_key")},
    }
    consumer = {"consumer_group_id": STRING, "consumer_id": STRING}
    nobody: dict[str, Schema] = {"instance_id": {"type": "null"}, "client_id": STRING}
    partition = {"topic_name": STRING, "partition_id": PARTITION}
    return {
        "V3Cluster": resource(
            "KafkaCluster",
            **dict.fromkeys(
                (
                    "controller",
                    "acls",
                    "brokers",
                    "broker_configs",
                    "consumer_groups",
                    "topics",
                    "partition_reassignments",
                ),
                related,
            ),
        ),
        "V3Clusters": page("KafkaClusterList", "V3Cluster"),
        "V3Broker": resource(
            "KafkaBroker",
            broker_id=COUNT,
            host=nullable(STRING),
            port=nullable(COUNT),
            rack={"type": "null"},
            configs=related,
            partition_replicas=related,
        ),
        "V3Brokers": page("KafkaBrokerList", "V3Broker"),
        "V3BrokerConfig": resource("KafkaBrokerConfig", broker_id=COUNT, **config),
        "V3BrokerConfigs": page("KafkaBrokerConfigList", "V3BrokerConfig"),
        "V3NewTopic": schema_of(V3NewTopicBody, limits),
        "V3TopicChanges": schema_of(V3TopicChangesBody, limits),
        "V3Topic": resource(
            "KafkaTopic",
            topic_name=STRING,
            is_internal=BOOLEAN,
            replication_factor=exactly(1),
            partitions_count=integer(1),
            partitions=related,
            configs=related,
            partition_reassignments=related,
            authorized_operations=array(STRING),
        ),
        "V3Topics": page("KafkaTopicList", "V3Topic"),
        "V3TopicConfig": resource("KafkaTopicConfig", topic_name=STRING, **config),
        "V3TopicConfigs": page("KafkaTopicConfigList", "V3TopicConfig"),
        "V3ConfigValue": schema_of(V3ConfigValueBody, limits),
        "V3ConfigChanges": schema_of(V3ConfigChangesBody, limits),
        "V3Partition": resource("KafkaPartition", **partition, leader=related, replicas=related, reassignment=related),
        "V3Partitions": page("KafkaPartitionList", "V3Partition"),
        "V3PartitionOffsets": resource(
            "KafkaPartitionWithOffsets", **partition, earliest_offset=OFFSET, latest_offset=OFFSET
        ),
        "V3Replica": resource(
            "KafkaReplica", **partition, broker_id=COUNT, is_leader=BOOLEAN, is_in_sync=BOOLEAN, broker=related
        ),
        "V3Replicas": page("KafkaReplicaList", "V3Replica"),
        "V3Record": with_example(
            obj({}, record), {"value": {"type": "JSON", "data": {"sku": 9}}, "key": {"type": "STRING", "data": "u1"}}
        ),
        "V3Batch": with_example(
            obj(
                {"entries": array(obj({"id": text(80, least=1)}, others=True), least=1, most=1000)},
                others=True,
                description="Each entry is an `id`, unique in the batch, and the fields of a V3Record.",
            ),
            {"entries": [{"id": "1", "value": {"type": "STRING", "data": "x"}}]},
        ),
        "V3Group": resource(
            "KafkaConsumerGroup",
            consumer_group_id=STRING,
            is_simple=BOOLEAN,
            partition_assignor=STRING,
            state=words("EMPTY", "STABLE", "PREPARING_REBALANCE"),
            type=exactly("CLASSIC"),
            is_mixed_consumer_group=BOOLEAN,
            coordinator=related,
            consumer=related,
            consumers=related,
            lag_summary=related,
        ),
        "V3Groups": page("KafkaConsumerGroupList", "V3Group"),
        "V3Consumer": resource("KafkaConsumer", **consumer, **nobody, assignments=related),
        "V3Consumers": page("KafkaConsumerList", "V3Consumer"),
        "V3Assignment": resource("KafkaConsumerAssignment", **consumer, **partition, partition=related, lag=related),
        "V3Assignments": page("KafkaConsumerAssignmentList", "V3Assignment"),
        "V3LagSummary": resource(
            "KafkaConsumerGroupLagSummary",
            consumer_group_id=STRING,
            max_lag_consumer_id=STRING,
            max_lag_instance_id={"type": "null"},
            max_lag_client_id=STRING,
            max_lag_topic_name=STRING,
            max_lag_partition_id=PARTITION,
            max_lag=COUNT,
            total_lag=COUNT,
            max_lag_consumer=related,
            max_lag_partition=related,
        ),
        "V3Lag": resource(
            "KafkaConsumerLag",
            **consumer,
            **nobody,
            **partition,
            current_offset=OFFSET,
            log_end_offset=OFFSET,
            lag=COUNT,
        ),
        "V3Lags": page("KafkaConsumerLagList", "V3Lag"),
    }


def _v3_ignored() -> dict[str, Schema]:
    return dict.fromkeys(("subject_name_strategy", "subject", "schema_id", "schema_version", "schema"), ANYTHING)

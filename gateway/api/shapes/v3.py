"""The REST Proxy's v3 API: the entries of a batch to send, and the resources and pages that are answered.

A resource has `kind`, `metadata`, the cluster's id and its own fields; a page has its resources in `data`.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from msgspec import Meta, field

from gateway.api.shapes.answers import Answer, Count
from gateway.api.shapes.base import NextOffset, OpenShape, PartitionNumber, chars, judged, one_of
from gateway.api.shapes.schema import Part
from gateway.codec.records import BATCH_REFUSED
from gateway.errors import RequestError

ENTRIES_MAX = 1000
ENTRY_ID_CHARS_MAX = 80


class V3Entry(OpenShape):
    """An entry of a batch, as far as the batch is concerned; its record is judged by itself."""

    id: Annotated[str, chars(ENTRY_ID_CHARS_MAX)]


class V3BatchBody(OpenShape):
    """Records to send, each with an id of its own."""

    codes = {"entries": BATCH_REFUSED}
    more = {
        "description": "Each entry is an `id`, unique in the batch, and the fields of a V3Record.",
        "examples": [{"entries": [{"id": "1", "value": {"type": "STRING", "data": "x"}}]}],
    }

    entries: Annotated[list[V3Entry], Meta(min_length=1, max_length=ENTRIES_MAX)]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for entry in self.entries:
            if entry.id in seen:
                raise RequestError(BATCH_REFUSED, f"entries: the id {entry.id} occurs more than once")
            seen.add(entry.id)


# Answers


class Related(Part):
    """A link."""

    related: str


class ResourceMetadata(Part):
    """Where a resource is, and its name among all of Confluent's."""

    self_: str = field(name="self")
    resource_name: str


class Resource(Answer, tag_field="kind"):
    """What every resource has."""

    metadata: ResourceMetadata
    cluster_id: str


class PageMetadata(Part):
    """Where a page is, and the next one."""

    self_: str = field(name="self")
    next: Annotated[str | None, Meta(description="Of topics, with `page_size`; null at the end.")] = None


AnyResource = TypeVar("AnyResource", bound=Resource)


class Page(Answer, Generic[AnyResource], tag_field="kind"):
    """A list: whole, but for topics of which a page is asked for."""

    metadata: PageMetadata
    data: list[AnyResource]


class V3Cluster(Resource, tag="KafkaCluster"):
    """The cluster."""

    controller: Related
    acls: Related
    brokers: Related
    broker_configs: Related
    consumer_groups: Related
    topics: Related
    partition_reassignments: Related


class V3Clusters(Page[V3Cluster], tag="KafkaClusterList"):
    """The one cluster."""


class V3Broker(Resource, tag="KafkaBroker"):
    """The broker."""

    broker_id: Count
    host: str | None
    port: Count | None
    configs: Related
    partition_replicas: Related
    rack: None = None


class V3Brokers(Page[V3Broker], tag="KafkaBrokerList"):
    """The one broker."""


class Config(Resource):
    """A setting under Kafka's name."""

    name: str
    value: str
    is_read_only: bool
    source: Annotated[
        Literal["DEFAULT_CONFIG", "DYNAMIC_TOPIC_CONFIG"], one_of("DEFAULT_CONFIG", "DYNAMIC_TOPIC_CONFIG")
    ]
    is_default: bool
    is_sensitive: bool = False
    synonyms: Annotated[list[object], Meta(max_length=0)] = []


class V3BrokerConfig(Config, tag="KafkaBrokerConfig", kw_only=True):
    """What holds for topics that chose nothing."""

    broker_id: Count


class V3BrokerConfigs(Page[V3BrokerConfig], tag="KafkaBrokerConfigList"):
    """All of it."""


class V3Topic(Resource, tag="KafkaTopic"):
    """A topic."""

    topic_name: str
    partitions_count: Annotated[int, Meta(ge=1)]
    partitions: Related
    configs: Related
    partition_reassignments: Related
    is_internal: bool = False
    replication_factor: Annotated[int, judged({"const": 1})] = 1
    authorized_operations: list[str] = []


class V3Topics(Page[V3Topic], tag="KafkaTopicList"):
    """Topics."""


class V3TopicConfig(Config, tag="KafkaTopicConfig", kw_only=True):
    """A setting of a topic."""

    topic_name: str


class V3TopicConfigs(Page[V3TopicConfig], tag="KafkaTopicConfigList"):
    """The settings of a topic."""


class OfPartition(Resource):
    """What belongs to a partition."""

    topic_name: str
    partition_id: PartitionNumber


class V3Partition(OfPartition, tag="KafkaPartition"):
    """A partition."""

    leader: Related
    replicas: Related
    reassignment: Related


class V3Partitions(Page[V3Partition], tag="KafkaPartitionList"):
    """The partitions of a topic."""


class V3PartitionOffsets(OfPartition, tag="KafkaPartitionWithOffsets"):
    """The bounds of a partition."""

    earliest_offset: NextOffset
    latest_offset: NextOffset


class V3Replica(OfPartition, tag="KafkaReplica"):
    """The one copy of a partition."""

    broker_id: Count
    broker: Related
    is_leader: bool = True
    is_in_sync: bool = True


class V3Replicas(Page[V3Replica], tag="KafkaReplicaList"):
    """All copies."""


class V3Group(Resource, tag="KafkaConsumerGroup"):
    """A consumer group."""

    consumer_group_id: str
    is_simple: bool
    partition_assignor: str
    state: Annotated[
        Literal["EMPTY", "STABLE", "PREPARING_REBALANCE"], one_of("EMPTY", "STABLE", "PREPARING_REBALANCE")
    ]
    coordinator: Related
    consumer: Related
    consumers: Related
    lag_summary: Related
    type: Annotated[str, judged({"const": "CLASSIC"})] = "CLASSIC"
    is_mixed_consumer_group: bool = False


class V3Groups(Page[V3Group], tag="KafkaConsumerGroupList"):
    """Consumer groups."""


class OfConsumer(Resource):
    """What belongs to a member of a group."""

    consumer_group_id: str
    consumer_id: str


class V3Consumer(OfConsumer, tag="KafkaConsumer"):
    """A member of a group."""

    client_id: str
    assignments: Related
    instance_id: None = None


class V3Consumers(Page[V3Consumer], tag="KafkaConsumerList"):
    """The members of a group."""


class V3Assignment(OfConsumer, tag="KafkaConsumerAssignment"):
    """A partition that a member owns."""

    topic_name: str
    partition_id: PartitionNumber
    partition: Related
    lag: Related


class V3Assignments(Page[V3Assignment], tag="KafkaConsumerAssignmentList"):
    """The partitions that a member owns."""


class V3LagSummary(Resource, tag="KafkaConsumerGroupLagSummary"):
    """The largest lag of a group, and the sum of all."""

    consumer_group_id: str
    max_lag_consumer_id: str
    max_lag_client_id: str
    max_lag_topic_name: str
    max_lag_partition_id: PartitionNumber
    max_lag: Count
    total_lag: Count
    max_lag_consumer: Related
    max_lag_partition: Related
    max_lag_instance_id: None = None


class V3Lag(OfConsumer, tag="KafkaConsumerLag"):
    """How far a group is in a partition."""

    client_id: str
    topic_name: str
    partition_id: PartitionNumber
    current_offset: NextOffset
    log_end_offset: NextOffset
    lag: Count
    instance_id: None = None


class V3Lags(Page[V3Lag], tag="KafkaConsumerLagList"):
    """How far a group is."""

"""What callers are answered, except for records and their receipts: groups, topics, offsets, the server itself.

A handler fills a struct; the struct's JSON Schema is published under the name of its class. Records, receipts and
results of settling come by the thousand and are rendered by hand (api/render.py, codec/records.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, get_args

from msgspec import UNSET, Meta, UnsetType, field

from gateway.api.shapes.base import NextOffset, PartitionNumber, judged, one_of
from gateway.api.shapes.schema import Part
from gateway.api.shapes.topics import JsonKeys, MaxMessageBytes, MqHeaders, RetentionMs, SelectorName
from gateway.groups.machines.config import GroupConfig
from gateway.groups.protocol import GroupState

Count = Annotated[int, Meta(ge=0)]
TimeMs = Annotated[int, Meta(ge=0, description="Epoch milliseconds.")]


class Answer(Part):
    """An answer, or what several answers have in common."""

    is_component: ClassVar[bool] = True


class TopicPartition(Answer):
    """A partition by name."""

    topic: str
    partition: PartitionNumber


# The server


class Health(Answer):
    """The process runs."""

    status: Annotated[str, judged({"const": "ok"})] = "ok"


class Ready(Answer):
    """The server takes records."""

    status: Annotated[str, judged({"const": "ok"})] = "ok"
    reasons: Annotated[list[str], Meta(max_length=0)] = []


class NotReady(Answer):
    """The server takes no records, and why."""

    reasons: Annotated[list[str], Meta(min_length=1)]
    status: Annotated[str, judged({"const": "unavailable"})] = "unavailable"


class Info(Answer):
    """Which server this is."""

    version: str
    cluster_id: Annotated[str, Meta(description="Made with the data directory, and kept.")]
    started_ms: TimeMs
    kafka: Annotated[list[str], Meta(description="Where it listens for Kafka clients: NAME://HOST:PORT.")]
    name: Annotated[str, judged({"const": "mq"})] = "mq"


class Ticket(Answer):
    """A one-time ticket."""

    ticket: str
    expires_in: Annotated[int, Meta(ge=0, description="Seconds. It is good once.")]


# Topics


class Attached(Answer):
    """Which topic of which Kafka cluster a topic is; others write to it as well (docs/kafka-broker.md)."""

    broker: str
    name: str
    mirror_groups: Annotated[bool, Meta(description="What groups commit is told to Kafka, too.")]
    sends: Annotated[
        str,
        judged({"const": "at_least_once"}),
    ] = "at_least_once"


class Topic(Answer):
    """A topic and what was chosen for it."""

    topic: str
    topic_id: Annotated[int, Meta(ge=0, description="The epoch: never used again.")]
    partitions: Annotated[int, Meta(ge=1)]
    json_keys: JsonKeys
    retention_ms: RetentionMs | UnsetType = UNSET
    max_message_bytes: MaxMessageBytes | UnsetType = UNSET
    selector: SelectorName | UnsetType = UNSET
    mq_headers: MqHeaders | UnsetType = UNSET
    attached: Attached | UnsetType = UNSET


class ListedTopic(Topic, kw_only=True):
    """A topic, and how much it holds and gets."""

    records: Annotated[int, Meta(ge=0, description="Readable now, in all partitions.")]
    appended_bytes: Annotated[int, Meta(ge=0, description="Stored since the server started.")]
    in_records_s: Annotated[float, Meta(ge=0, description="Records a second, over the last 5 s.")]
    in_bytes_s: Annotated[float, Meta(ge=0)]
    pending: Annotated[int, Meta(ge=0, description="Delayed records that are to come.")]


class Topics(Answer):
    """Topics."""

    topics: list[Topic]


MissingNodes = Annotated[
    list[str], Meta(description="In a cluster: the nodes that did not answer. What they have is not here.")
]


class ListPage(Answer, kw_only=True):
    """One page of a list."""

    next_cursor: Annotated[str | None, Meta(description="For the next page, in the same order; null at the end.")]
    total: Annotated[int, Meta(ge=0, description="How many there are in all pages.")]
    missing_nodes: MissingNodes | UnsetType = UNSET


class TopicPage(ListPage):
    """A page of topics."""

    topics: list[ListedTopic]


class Bounds(Part):
    """The bounds of a partition: its first readable offset, and the one its next record gets."""

    partition: PartitionNumber
    beginning_offset: NextOffset
    end_offset: NextOffset


class BoundsAtTime(Bounds):
    """With the result of a search by time."""

    offset_for_time: (
        Annotated[NextOffset, Meta(description="The first record stored at or after `timestamp`.")] | UnsetType
    ) = UNSET


class TopicWithOffsets(ListedTopic, kw_only=True):
    """A topic and the bounds of its partitions."""

    offsets: Sequence[Bounds]


class TopicOffsets(Answer):
    """The bounds of a topic's partitions."""

    topic: str
    epoch: str
    partitions: list[BoundsAtTime]


# REST Proxy v2


class Brokers(Answer):
    """The ids of all brokers."""

    brokers: list[Count]


class Replica(Part):
    """The one copy of a partition."""

    broker: Count
    leader: bool
    in_sync: bool


class PartitionMetadata(Answer):
    """A partition and its replicas."""

    partition: PartitionNumber
    leader: Count
    replicas: list[Replica]


class TopicMetadata(Answer):
    """A topic under Kafka's names."""

    name: str
    configs: dict[str, str]
    partitions: list[PartitionMetadata]


class PartitionOffsets(Answer):
    """The bounds of one partition."""

    beginning_offset: NextOffset
    end_offset: NextOffset


class Instance(Answer):
    """A consumer instance that was created."""

    instance_id: str
    base_uri: str


class SubscribedTopics(Answer):
    """The topics an instance is subscribed to."""

    topics: list[str]


class AssignedPartitions(Answer):
    """The partitions an instance has."""

    partitions: list[TopicPartition]


class CommittedOffset(Part):
    """What an instance's group has committed in a partition."""

    topic: str
    partition: PartitionNumber
    offset: NextOffset
    metadata: str


class CommittedOffsets(Answer):
    """Committed offsets."""

    offsets: list[CommittedOffset]


# Groups


class GroupSummary(Answer):
    """A group in a list."""

    group: str
    state: Annotated[GroupState, one_of(*get_args(GroupState))]
    generation: Count
    member_count: Count
    topics: list[str]


class GroupList(Answer):
    """Groups."""

    groups: list[GroupSummary]
    missing_nodes: MissingNodes | UnsetType = UNSET


class ListedGroup(GroupSummary):
    """A group, and how much it has before it."""

    lag: Annotated[Count | None, Meta(description="Some seconds ago; null: it is not known.")]
    in_flight: Annotated[int, Meta(ge=0, description="Records leased or given back, and not settled.")]
    dead: Annotated[int, Meta(ge=0, description="Dead letters that were not sent back or purged.")]


class GroupPage(ListPage):
    """A page of groups."""

    groups: list[ListedGroup]


class LeaseRow(Part):
    """A record of queue mode that is out."""

    topic: str
    partition: PartitionNumber
    offset: NextOffset
    consumer: Annotated[str | None, Meta(description="null: no consumer has it, or the server no longer knows which.")]
    attempt: Count
    until_ms: Annotated[int, Meta(ge=0, description="When the lease ends, or it may be delivered again.")]
    state: Annotated[Literal["leased", "delayed"], one_of("leased", "delayed", said="`delayed`: it was given back.")]
    queue: Annotated[str | None, Meta(description="The light queue in whose offsets it is.")] = None


class LeasePage(ListPage):
    """A page of them, by topic, partition, light queue and offset."""

    leases: list[LeaseRow]


class LagHistory(Answer):
    """The lag of a group over time."""

    group: str
    step_ms: Annotated[int, Meta(ge=1, description="How far apart points are.")]
    end_ms: Annotated[int, Meta(ge=0, description="The time of the last point.")]
    lag: Annotated[list[float | None], Meta(description="The oldest first; null: not known.")]


class GroupMember(Part):
    """A member in stream mode, and what it has."""

    member_id: str
    topics: list[str]
    topic_pattern: str | None
    session_timeout_ms: Count
    heard_ago_ms: int
    room: Annotated[str | None, Meta(description="The machine room that it says it stands in.")]
    assigned: list[TopicPartition]
    revoking: list[TopicPartition]


class Worker(Part):
    """A consumer of queue mode."""

    more: ClassVar[dict[str, str]] = {"description": "A consumer of queue mode."}

    consumer: Annotated[
        str, Meta(description="The name it gave, else who asked and from where; of a socket, its session.")
    ]
    leased: Annotated[int, Meta(ge=0, description="Records in its hands.")]
    heard_ago_ms: Annotated[Count | None, Meta(description="null: it is connected.")]


class Group(GroupSummary):
    """A group, whole."""

    config: Annotated[GroupConfig, judged({"$ref": "#/components/schemas/GroupSettings"})]
    members: list[GroupMember]
    workers: list[Worker]
    warnings: Annotated[
        list[str], Meta(description="What is odd about how partitions are shared out by machine rooms, for people.")
    ]
    light_offset_count: Annotated[int, Meta(ge=0, description="Offsets in light queues, each partition counted.")]


class LightGroup(Part):
    """A group with offsets in light queues."""

    group: str
    light_offset_count: Count


class LightGroupPage(Answer):
    """A page of them, by name."""

    groups: list[LightGroup]
    next_cursor: Annotated[str | None, Meta(description="Send it back as `cursor`; null at the end.")]
    missing_nodes: MissingNodes | UnsetType = UNSET


class LightPlace(Part):
    """How far a group is in a light queue of one partition."""

    topic: str
    queue: str
    partition: int
    committed: Annotated[int, Meta(ge=0, description="The next offset that it reads.")]
    end_offset: Annotated[Count | None, Meta(description="null: where the partition is does not answer now.")]
    lag: Annotated[Count | None, Meta(description="Records from `committed` on; null as `end_offset`.")]


class LightPlacePage(Answer):
    """A page of them, by topic, queue and partition."""

    group: str
    offsets: list[LightPlace]
    next_cursor: Annotated[str | None, Meta(description="Send it back as `cursor`; null at the end.")]


class PartitionLag(Part):
    """How far a group is in one partition."""

    topic: str
    partition: PartitionNumber
    committed: Annotated[NextOffset | None, Meta(description="null: nothing is.")]
    metadata: str
    beginning: NextOffset
    end: NextOffset
    lag: Count
    lost: Annotated[int, Meta(ge=0, description="What retention took before it was consumed.")]
    in_flight: Count
    delayed: Annotated[int, Meta(ge=0, description="Given back, and not due yet.")]
    oldest_unacked_ms: TimeMs | None
    owner: str | None


class GroupLag(Answer):
    """How far a group is."""

    group: str
    total_lag: Count
    in_flight: Count
    partitions: list[PartitionLag]


class GroupLagPage(GroupLag):
    """Some of the partitions; the sums are of these."""

    next_cursor: Annotated[str | None, Meta(description="For the next page; null at the end.")]


class LetterResult(Part):
    """What became of one dead letter."""

    offset: NextOffset
    ok: bool
    error_code: int | UnsetType = UNSET
    error: str | UnsetType = UNSET


class LetterResults(Answer):
    """One for each, in the order asked."""

    results: list[LetterResult]


class Move(Part):
    """What a reset does to one partition."""

    partition: PartitionNumber
    from_: NextOffset | None = field(name="from")
    to: NextOffset


class Moves(Answer):
    """What a reset does, or would do."""

    topic: str
    dry_run: bool
    partitions: list[Move]


class Acked(Answer):
    """How many records an ack up to an offset has settled."""

    acked: Count


class Redriven(Answer):
    """How many dead letters went back."""

    redriven: Count


# Schedules


class Cancelled(Answer):
    """How many schedules were cancelled."""

    cancelled: Count


class Moved(Answer):
    """A schedule at its new time."""

    schedule_id: Annotated[str, Meta(description="The new id; the old one is gone.")]
    deliver_at: TimeMs


class Fired(Answer):
    """Where a schedule was delivered."""

    topic: str | None
    partition: PartitionNumber
    offset: NextOffset


class Counted(Part):
    """Schedules by their due time."""

    counts: list[Count]
    total: Annotated[int, Meta(ge=0, description="In all these parts.")]
    overdue: Annotated[int, Meta(ge=0, description="Of all there are: past due, and to be delivered next.")]
    rolled: Annotated[
        int,
        Meta(ge=0, description="Of all there are: due so late that they are copied to the log's head on their way."),
    ]
    missing_nodes: MissingNodes | UnsetType = UNSET


class Histogram(Counted, Answer, kw_only=True):
    """Schedules by their due time, in parts of one length."""

    from_: TimeMs = field(name="from")
    bucket_ms: Count


class HistogramOfBounds(Counted, Answer, kw_only=True):
    """Schedules by their due time, between bounds."""

    bounds: list[TimeMs]

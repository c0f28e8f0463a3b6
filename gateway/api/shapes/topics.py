"""Topics: how many partitions, and what is chosen for them, in our names and in Kafka's."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from gateway.api.shapes.base import OpenShape, Shape, chars, judged, up_to
from gateway.api.shapes.schema import Schema, nullable
from gateway.cluster.record import NODE_NAME_CHARS_MAX
from gateway.errors import INVALID, MALFORMED
from gateway.routing.select import SELECTORS
from gateway.settings.limits import Limits
from store.limits import TOPIC_NAME_BYTES_MAX
from store.topics import CONFIG_NAMES, KeyForm

SELECTOR_SCHEMA: Schema = {
    "type": "string",
    "description": "How the partition of records that name none is chosen, by one of these or of an installed package.",
    "examples": list(SELECTORS),
}

_KEY_FORM = "How a key sent as a JSON string is stored: raw, as its UTF-8; confluent, as JSON with its quotes. Fixed."

RetentionMs = Annotated[int, Meta(ge=1, description="Records stored longer ago are not shown.")]
MaxMessageBytes = Annotated[int, up_to("record_bytes_max", "Key, value and headers of one record.", least=1)]
SelectorName = Annotated[str, judged(SELECTOR_SCHEMA)]
MqHeaders = Annotated[
    bool,
    Meta(
        description="Kafka clients may delay records by `mq-delay-ms` or `mq-deliver-at`, and they and raw batches may "
        "name light queues by `mq-queues`."
    ),
]
JsonKeys = Annotated[KeyForm, Meta(description=_KEY_FORM)]
TopicName = Annotated[str, chars(TOPIC_NAME_BYTES_MAX, "Letters, digits and ._%- in ASCII.")]
PartitionCount = Annotated[int, up_to("partitions_max", least=1)]


class TopicSettings(Shape):
    """A topic's shape; null takes a choice back."""

    codes = {"partitions": INVALID, "retention_ms": INVALID, "max_message_bytes": INVALID}

    partitions: Annotated[int, up_to("partitions_max", "More later, never fewer.", least=1)] | None = None
    retention_ms: RetentionMs | UnsetType | None = UNSET
    max_message_bytes: MaxMessageBytes | UnsetType | None = UNSET
    selector: SelectorName | UnsetType | None = UNSET
    mq_headers: MqHeaders | UnsetType | None = UNSET

    def changes(self) -> dict[str, int | str | None]:
        """The settings that are named."""
        named = {name: getattr(self, name) for name in CONFIG_NAMES}
        return {name: value for name, value in named.items() if value is not UNSET}


class NewTopicBody(TopicSettings):
    """A topic that is to be there."""

    codes = TopicSettings.codes | {"json_keys": INVALID}
    more = {"examples": [{"partitions": 4}, {"partitions": 4, "retention_ms": 86_400_000}, {"json_keys": "confluent"}]}

    json_keys: JsonKeys | None = None


class TopicChangesBody(TopicSettings):
    """What is to change."""

    more = {"minProperties": 1, "examples": [{"partitions": 8}, {"retention_ms": None}]}


class BrokerBody(Shape):
    """What is to be of a broker."""

    codes = {"draining": INVALID}
    more = {"examples": [{"draining": True}]}

    draining: Annotated[bool, Meta(description="It gives its partitions and groups to the others, and takes none.")]


class MovePartitionBody(Shape):
    """Where a partition is to be."""

    codes = {"to": INVALID}
    more = {"examples": [{"to": "n2"}]}

    to: Annotated[str, chars(NODE_NAME_CHARS_MAX, "A broker of the cluster, by name.")]


class AttachTopicBody(Shape):
    """Which topic of which Kafka cluster a topic is to be."""

    codes = {"broker": INVALID, "name": INVALID}
    more = {"examples": [{"broker": "kafka1", "name": "prod.orders"}, {"broker": "kafka1", "mirror_groups": True}]}

    broker: Annotated[str, chars(NODE_NAME_CHARS_MAX, "A Kafka cluster of the server's settings, by name.")]
    name: Annotated[str, chars(TOPIC_NAME_BYTES_MAX, "Its name in Kafka; without it, the same.")] | None = None
    mirror_groups: Annotated[bool, Meta(description="Tell Kafka what groups commit, for its tools.")] = False


class TakeoverBody(Shape):
    """That what only the broker knows is done without (docs/cluster.md, "When a node does not come back")."""

    codes = {"accept_offline": INVALID}
    more = {"examples": [{"accept_offline": True}]}

    accept_offline: Annotated[bool, Meta(description="Must be true: nothing is taken over by accident.")]


class TakePartitionBody(TakeoverBody):
    """The same of a partition, and where it is to be."""

    codes = {"accept_offline": INVALID, "to": INVALID}
    more = {"examples": [{"accept_offline": True, "to": "n2"}]}

    to: Annotated[str, chars(NODE_NAME_CHARS_MAX, "A broker; without it, the one with the fewest.")] | UnsetType = UNSET


def kafka_settings_schema(limits: Limits) -> dict[str, Schema]:
    """A topic's settings under Kafka's names, as integers or as texts of integers. `kafka_changes` judges them."""
    digits = {"type": "string", "maxLength": 18, "pattern": "^0*[1-9][0-9]*$"}
    retention = {"type": "integer", "minimum": 1, "maximum": 10**18 - 1}
    size = {"type": "integer", "minimum": 1, "maximum": limits.record_bytes_max}
    return {
        "retention.ms": nullable({"anyOf": [retention, digits]}),
        "max.message.bytes": nullable({"anyOf": [size, digits]}),
        "mq.headers": nullable({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["true", "false"]}]}),
        "cleanup.policy": nullable({"type": "string", "enum": ["delete"]}),
    }


def _strimzi_config(limits: Limits) -> Schema:
    return nullable({"type": "object", "properties": kafka_settings_schema(limits), "additionalProperties": False})


class StrimziTopicBody(Shape):
    """A topic as Strimzi's bridge makes it."""

    codes = {"partitions_count": INVALID, "config": MALFORMED}
    more = {"examples": [{"topic_name": "orders", "partitions_count": 4}]}

    topic_name: TopicName
    partitions_count: PartitionCount | None = None
    replication_factor: Annotated[object, Meta(description="Ignored: there is one broker.")] = None
    config: Annotated[dict[str, object] | None, judged(_strimzi_config)] = None


# REST Proxy v3


def _rows(limits: Limits, *, with_operations: bool) -> Schema:
    operation = {"operation": nullable({"type": "string", "enum": ["SET", "DELETE"]})} if with_operations else {}
    rows = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "value": value, **operation},
            "required": ["name"],
            "additionalProperties": True,
        }
        for name, value in kafka_settings_schema(limits).items()
    ]
    return {"type": "array", "items": {"anyOf": rows}}


def _new_configs(limits: Limits) -> Schema:
    return nullable(_rows(limits, with_operations=False))


def _config_changes(limits: Limits) -> Schema:
    return _rows(limits, with_operations=True)


def _any_setting(limits: Limits) -> Schema:
    return {"anyOf": list(kafka_settings_schema(limits).values())}


class V3NewTopicBody(Shape):
    """A topic that is to be made. `configs` are judged by `kafka_changes`."""

    codes = {"partitions_count": INVALID}
    more = {"examples": [{"topic_name": "orders", "partitions_count": 4}]}

    topic_name: TopicName
    partitions_count: PartitionCount | None = None
    replication_factor: object = None
    replicas_assignments: object = None
    configs: Annotated[object, judged(_new_configs)] = None
    validate_only: object = None


class V3TopicChangesBody(Shape):
    """More partitions."""

    codes = {"partitions_count": INVALID}
    more = {"examples": [{"partitions_count": 8}]}

    partitions_count: PartitionCount


class V3ConfigValueBody(OpenShape):
    """One setting; null, or none, takes a choice back."""

    more = {"examples": [{"value": "86400000"}]}

    value: Annotated[object, judged(_any_setting)] = None


class V3ConfigChangesBody(OpenShape):
    """Several settings at once."""

    codes = {"data": MALFORMED}
    more = {"examples": [{"data": [{"name": "retention.ms", "value": "86400000"}]}]}

    data: Annotated[object, judged(_config_changes)]
    validate_only: object = None

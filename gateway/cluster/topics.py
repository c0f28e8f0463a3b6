"""What the nodes agree on about topics: what each is, and on which broker each partition begins. Pure.

One metadata key a topic (`topics/<name>`), JSON:

    {"v": 1, "topic_id": 17, "name": "orders", "partitions": 4, "created_ms": 1767225600000, "config": {},
     "json_keys": "raw", "homes": [[0, ["n1", "n2"]]],
     "attached": {"broker": "kafka1", "name": "prod.orders", "mirror_groups": false}}

    attached  written only of a topic that is one of a Kafka cluster, which others write to as well
    homes   from which partition on, the brokers that partitions begin on, in turn: here n1, n2, n1, n2. Growing a
            topic adds an entry, so that no partition's home ever changes
    begins_on
            a Kafka cluster on which its partitions are to be, if any: one that has never moved goes there from its
            home, and one that has moved stays where it is

and one key for all numbers that are given out once (`counters`): {"topic_id": 18, "broker": 2}, the next of each.
A partition that has moved has a record of its own (record.py); its home then says where its first segment was.

`TopicsInMemory` keeps them for gateways without a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from gateway.routing.base import Attachment
from store.config import StoreConfig
from store.errors import UnknownQueue
from store.topics import FIRST_USER_TOPIC_ID, KeyForm, Topic, TopicConfig, TopicTable

TOPICS = "topics/"
COUNTERS = "counters"
VERSION = 1

Homes = tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic, and where its partitions begin. See the module."""

    topic: Topic
    homes: Homes
    begins_on: str | None = None
    attached: Attachment | None = None

    def home_of(self, partition: int) -> str:
        """The broker on which a partition begins."""
        first, brokers = next(each for each in reversed(self.homes) if each[0] <= partition)
        return brokers[(partition - first) % len(brokers)]


@dataclass(frozen=True, slots=True)
class Counters:
    """The next numbers to be given out."""

    topic_id: int
    broker: int = 0


class TopicsInMemory:
    """Topics as a store keeps them, of a gateway that has none: gone when its process ends."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self._topics: dict[str, Topic] = {}

    @property
    def next_topic_id(self) -> int:
        """See `Store.next_topic_id`."""
        return max((topic.topic_id + 1 for topic in self._topics.values()), default=FIRST_USER_TOPIC_ID)

    def topics(self) -> Sequence[Topic]:
        """See `Store.topics`."""
        return list(self._topics.values())

    def topic(self, name: str) -> Topic:
        """See `Store.topic`."""
        if (topic := self._topics.get(name)) is None:
            raise UnknownQueue(f"topic {name} does not exist")
        return topic

    async def put_topic(self, wanted: Topic) -> Topic:
        """See `Store.put_topic`."""
        self._topics[wanted.name] = wanted
        return wanted

    async def delete_topic(self, name: str) -> Topic:
        """See `Store.delete_topic`."""
        topic = self.topic(name)
        del self._topics[name]
        return topic


def key_of_topic(name: str) -> str:
    """The key of a topic's record."""
    return TOPICS + name


def in_turn(brokers: Sequence[str], topic_id: int) -> tuple[str, ...]:
    """Brokers in the order in which a topic's partitions begin on them: topics of one partition spread too."""
    if not brokers:
        raise ValueError("no broker takes partitions")
    at = topic_id % len(brokers)
    names = sorted(brokers)
    return (*names[at:], *names[:at])


def grown(record: TopicRecord, topic: Topic, brokers: Sequence[str]) -> TopicRecord:
    """The record of a topic with other settings, or more partitions, which begin on these brokers."""
    more = topic.partitions > record.topic.partitions
    homes = (*record.homes, (record.topic.partitions, in_turn(brokers, topic.topic_id))) if more else record.homes
    return replace(record, topic=topic, homes=homes)


def table_of(record: TopicRecord | None, next_topic_id: int) -> TopicTable:
    """The table in which a change of one topic is decided, as a store of its own would decide it."""
    table = TopicTable()
    topics = [] if record is None else [_fields(record.topic)]
    table.restore({"topics": topics, "next_topic_id": next_topic_id})
    return table


def encode_topic(record: TopicRecord) -> bytes:
    """The JSON of a record."""
    fields = {"v": VERSION, **_fields(record.topic), "homes": record.homes}
    if record.begins_on is not None:
        fields["begins_on"] = record.begins_on
    if record.attached is not None:
        fields["attached"] = asdict(record.attached)
    return orjson.dumps(fields)


def decode_topic(data: bytes) -> TopicRecord:
    """The record of its JSON. Raises ValueError: a record that is not understood must not be acted on."""
    try:
        fields: dict[str, Any] = orjson.loads(data)
        _check_version(fields.pop("v"))
        homes = tuple((int(first), tuple(map(str, brokers))) for first, brokers in fields.pop("homes"))
        if not homes or homes[0][0] or any(not brokers for _, brokers in homes):
            raise ValueError("no home")
        begins_on, attached = fields.pop("begins_on", None), fields.pop("attached", None)
        config, json_keys = TopicConfig(**fields.pop("config")), KeyForm(fields.pop("json_keys"))
        topic = Topic(**fields, config=config, json_keys=json_keys)
        return TopicRecord(topic, homes, begins_on, attached and Attachment(**attached))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"a topic's record is not understood: {error!r}") from error


def encode_counters(counters: Counters) -> bytes:
    """The JSON of the numbers."""
    return orjson.dumps({"v": VERSION, "topic_id": counters.topic_id, "broker": counters.broker})


def decode_counters(data: bytes) -> Counters:
    """The numbers of their JSON. Raises ValueError."""
    try:
        fields: dict[str, int] = orjson.loads(data)
        _check_version(fields["v"])
        return Counters(fields["topic_id"], fields["broker"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the cluster's numbers are not understood: {error!r}") from error


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ValueError(f"version {version}; this program knows {VERSION}")


def _fields(topic: Topic) -> Mapping[str, object]:
    return {
        "topic_id": topic.topic_id,
        "name": topic.name,
        "partitions": topic.partitions,
        "created_ms": topic.created_ms,
        "config": topic.config.chosen(),
        "json_keys": topic.json_keys,
    }

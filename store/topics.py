"""Topics as events: decide → write → apply. The table is rebuilt at start by applying what the log holds.

An event is one JSON record of system topic `__meta`:  {"event": "topic_created", "topic_id": 16, "name": ..,
"partitions": .., "created_ms": ..}. Topic ids grow and are never used twice, so nothing stored under an old id can
show up under a topic that was created again.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

import orjson

from store.errors import Corrupt, IllegalTopic, TopicExists, UnknownQueue
from store.limits import PARTITIONS_MAX, TOPIC_NAME_BYTES_MAX
from store.types import QueueKey

_NAME = re.compile(rf"[A-Za-z0-9._%-]{{1,{TOPIC_NAME_BYTES_MAX}}}", re.ASCII)
RESERVED_PREFIXES = ("__", "%DLQ%", "%RETRY%")
FIRST_USER_TOPIC_ID = 16


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its number of partitions; partition p is queue p."""

    topic_id: int
    name: str
    partitions: int
    created_ms: int = 0

    @property
    def is_system(self) -> bool:
        return self.topic_id < FIRST_USER_TOPIC_ID


META = Topic(1, "__meta", 1)
TIMER = Topic(2, "__timer", 1)
OFFSETS = Topic(3, "__offsets", 1)
META_QUEUE = QueueKey(META.topic_id, 0)
TIMER_QUEUE = QueueKey(TIMER.topic_id, 0)


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """The event that brings a topic into being."""

    topic_id: int
    name: str
    partitions: int
    created_ms: int


class TopicTable:
    """All topics of one store, by name and by id. Changes only through `apply`."""

    def __init__(self) -> None:
        self._by_name = {topic.name: topic for topic in (META, TIMER, OFFSETS)}
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}

    def decide_create(self, name: str, partitions: int, now_ms: int) -> TopicCreated | Topic:
        """The event to write, or the topic if one with this shape exists. Raises IllegalTopic, TopicExists."""
        check_name(name)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise IllegalTopic(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        existing = self._by_name.get(name)
        if existing is not None:
            if existing.partitions != partitions:
                raise TopicExists(f"topic {name} exists with {existing.partitions} partitions, not {partitions}")
            return existing
        topic_id = max(FIRST_USER_TOPIC_ID, max(self._by_id) + 1)
        return TopicCreated(topic_id, name, partitions, now_ms)

    def apply(self, event: TopicCreated) -> Topic:
        topic = Topic(event.topic_id, event.name, event.partitions, event.created_ms)
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        return topic

    def by_name(self, name: str) -> Topic:
        """Raises UnknownQueue."""
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownQueue(f"topic {name} does not exist")
        return topic

    def of_queue(self, queue: QueueKey) -> Topic:
        """The topic a queue belongs to. Raises UnknownQueue when the store has no such queue."""
        topic = self._by_id.get(queue.topic_id)
        if topic is None or not 0 <= queue.queue_id < topic.partitions:
            raise UnknownQueue(f"queue {queue.queue_id} of topic id {queue.topic_id} does not exist")
        return topic

    def all(self) -> list[Topic]:
        """Every topic, system topics first, by id."""
        return sorted(self._by_id.values(), key=lambda topic: topic.topic_id)


def check_name(name: str) -> None:
    """Raises IllegalTopic unless clients may use this name for a topic."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise IllegalTopic(
            f"a topic name is 1 to {TOPIC_NAME_BYTES_MAX} of the characters A-Z a-z 0-9 . _ % - and not . or .."
        )
    if name.startswith(RESERVED_PREFIXES):
        raise IllegalTopic(f"topic names beginning with {', '.join(RESERVED_PREFIXES)} are reserved")


def encode_event(event: TopicCreated) -> bytes:
    """The JSON record of one event."""
    return orjson.dumps({"event": "topic_created", **asdict(event)})


def decode_event(value: bytes | None, *, path: str, position: int) -> TopicCreated:
    """The event of one record. Raises Corrupt: metadata that cannot be understood must not be skipped."""
    try:
        fields = orjson.loads(value or b"")
        if fields.pop("event") != "topic_created":
            raise ValueError("unknown event")
        return TopicCreated(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"a metadata record does not decode ({error}); is a newer version needed?"
        raise Corrupt(path, position, reason) from error

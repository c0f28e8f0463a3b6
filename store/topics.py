"""Topics as events: decide → write → apply. The table is rebuilt at start by applying what was written.

An event is one JSON record of system topic `__meta`:

    {"event": "topic_created", "topic_id": 16, "name": "orders", "partitions": 4, "created_ms": 1767225600000,
     "config": {}, "json_keys": "raw"}
    {"event": "topic_grown", "topic_id": 16, "partitions": 8}
    {"event": "topic_configured", "topic_id": 16, "config": {"retention_ms": 86400000}}
    {"event": "topic_deleted", "topic_id": 16}
    {"event": "queue_created", "topic_id": 16, "queue_id": 1024}
    {"event": "queue_sealed", "topic_id": 16, "queue_id": 1024, "end_offset": 57}
    {"event": "queue_expired", "topic_id": 16, "queue_id": 1024, "before_offset": 57}

Topic ids grow and are never used twice, so nothing stored under an old id can show up under a topic that was created
again. A topic has a queue for each of its partitions, by number; further ones, in which segments of partitions lie,
have ids from PARTITIONS_MAX on, so that a topic that grows never meets one; modulo PARTITIONS_MAX an id is the number
of its partition. A queue that is sealed stays so.
Topics made before `json_keys` was written have the form "confluent".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, TypedDict

import orjson

from store.errors import IllegalTopic, TopicExists, UnknownQueue
from store.limits import PARTITIONS_MAX, RECORD_BYTES_MAX, TOPIC_NAME_BYTES_MAX
from store.types import QueueKey

_NAME = re.compile(rf"[A-Za-z0-9._%-]{{1,{TOPIC_NAME_BYTES_MAX}}}", re.ASCII)
RESERVED_PREFIXES = ("__", "%DLQ%", "%RETRY%")
FIRST_USER_TOPIC_ID = 16


def partition_of(queue: QueueKey) -> QueueKey:
    """The partition (topic id, number) that a queue is a segment of."""
    return QueueKey(queue.topic_id, queue.queue_id % PARTITIONS_MAX)


def epoch_of(queue: QueueKey) -> int:
    """The epoch of its partition in which a queue was made: 0 for one that has never moved."""
    return queue.queue_id // PARTITIONS_MAX


class KeyForm(StrEnum):
    """How a key that a client writes as a JSON string becomes bytes. Chosen when a topic is made, and fixed from then
    on: with another form the same key would go to another partition."""

    RAW = "raw"
    """UTF-8 of the string, as raw batches, text and Spark have it: one key, one partition, whatever way it came."""

    CONFLUENT = "confluent"
    """The JSON text, quotes included, as Confluent's REST Proxy stores keys."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What can be chosen for one topic; None: nothing was."""

    retention_ms: int | None = None
    """Records stored longer ago are not shown any more. Their bytes go with the log they are in, so this can only be
    shorter than the retention of the store."""

    max_message_bytes: int | None = None
    """Key, value and headers of one record."""

    selector: str | None = None
    """How a partition is chosen for records that name none: a name of the gateway's, which the store only keeps."""

    mq_headers: bool | None = None
    """Whether Kafka clients may ask for delays by headers: the batches that they send are opened then. The gateway's
    too."""

    def chosen(self) -> dict[str, int | str]:
        """What was chosen, by name."""
        return {name: value for name in CONFIG_NAMES if (value := getattr(self, name)) is not None}

    def changed(self, changes: Changes) -> TopicConfig:
        """With other choices."""
        return replace(self, **changes)  # type: ignore[arg-type]


NOTHING_CHOSEN = TopicConfig()

Chosen = dict[str, int | str]
"""What was chosen for a topic, by name."""

Changes = Mapping[str, int | str | None]
"""Choices, by the names of TopicConfig; None takes one back."""

CONFIG_NAMES = tuple(field.name for field in fields(TopicConfig))


class TopicChoices(TypedDict, total=False):
    """What may be chosen for a topic that is created, beside its name and number of partitions."""

    config: TopicConfig | None
    """None, or left out: nothing is chosen; an existing topic keeps what it has."""

    json_keys: KeyForm | None
    """None, or left out: a new topic's keys are raw, an existing topic keeps its form."""

    is_own: bool
    """Whether it is one of the server's own topics, whose names may begin with a reserved prefix."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, its number of partitions, and what was chosen for it."""

    topic_id: int
    name: str
    partitions: int
    created_ms: int = 0
    config: TopicConfig = TopicConfig()
    json_keys: KeyForm = KeyForm.CONFLUENT

    @property
    def is_system(self) -> bool:
        """Whether it is one of the store itself."""
        return self.topic_id < FIRST_USER_TOPIC_ID

    @property
    def raw_keys(self) -> bool:
        """Whether keys are stored as they are, not as JSON text."""
        return self.json_keys is KeyForm.RAW


META = Topic(1, "__meta", 1)
TIMER = Topic(2, "__timer", 1)
OFFSETS = Topic(3, "__offsets", 1)
RECURRING = Topic(4, "__recurring", 1)
CLUSTER = Topic(5, "__cluster", 1)
MOVED_IDS = Topic(6, "__moved_ids", 1)
META_QUEUE = QueueKey(META.topic_id, 0)
TIMER_QUEUE = QueueKey(TIMER.topic_id, 0)
OFFSETS_QUEUE = QueueKey(OFFSETS.topic_id, 0)
RECURRING_QUEUE = QueueKey(RECURRING.topic_id, 0)
CLUSTER_QUEUE = QueueKey(CLUSTER.topic_id, 0)
MOVED_IDS_QUEUE = QueueKey(MOVED_IDS.topic_id, 0)
APPLIED = frozenset(topic.topic_id for topic in (META, OFFSETS, RECURRING, CLUSTER, MOVED_IDS))
"""Ids of the topics whose records are applied as they are written, and read again only after a start."""


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic comes into being."""

    topic_id: int
    name: str
    partitions: int
    created_ms: int
    config: Chosen
    json_keys: KeyForm = KeyForm.CONFLUENT


@dataclass(frozen=True, slots=True)
class TopicConfigured:
    """From now on this is what is chosen for a topic, and nothing else."""

    topic_id: int
    config: Chosen


@dataclass(frozen=True, slots=True)
class TopicGrown:
    """A topic has more partitions from now on; there is no way back."""

    topic_id: int
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic and all its records are gone."""

    topic_id: int


@dataclass(frozen=True, slots=True)
class QueueCreated:
    """A topic has a further queue."""

    topic_id: int
    queue_id: int


@dataclass(frozen=True, slots=True)
class QueueSealed:
    """A queue takes no more records; `end_offset` is behind its last one."""

    topic_id: int
    queue_id: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class QueueExpired:
    """Records of a queue before an offset are gone."""

    topic_id: int
    queue_id: int
    before_offset: int


Event = TopicCreated | TopicGrown | TopicConfigured | TopicDeleted | QueueCreated | QueueSealed | QueueExpired
_EVENTS: dict[str, type[Event]] = {
    "topic_created": TopicCreated,
    "topic_grown": TopicGrown,
    "topic_configured": TopicConfigured,
    "topic_deleted": TopicDeleted,
    "queue_created": QueueCreated,
    "queue_sealed": QueueSealed,
    "queue_expired": QueueExpired,
}
_EVENT_NAMES = {kind: name for name, kind in _EVENTS.items()}
_FIELD_NAMES = {kind: tuple(field.name for field in fields(kind)) for kind in (Topic, *_EVENTS.values())}


@dataclass(frozen=True, slots=True)
class QueueState:
    """What is to be said of a queue: where it ends (None: it is open), and before which offset its records are gone."""

    end_offset: int | None = None
    before_offset: int = 0


_OPEN = QueueState()


class TopicTable:
    """All topics of one store, by name and by id. Changes only through `apply` (and `restore`, at start)."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._queues: dict[QueueKey, QueueState] = {}  # those of which something is to be said
        self._newest: dict[QueueKey, int] = {}  # of those of each partition (topic id, number), the highest queue id
        self._next_id = FIRST_USER_TOPIC_ID
        for topic in (META, TIMER, OFFSETS, RECURRING, CLUSTER, MOVED_IDS):
            self._put(topic)

    @property
    def next_id(self) -> int:
        """The lowest id that no topic has had."""
        return self._next_id

    def decide_create(
        self,
        name: str,
        partitions: int,
        now_ms: int,
        *,
        config: TopicConfig | None = None,
        json_keys: KeyForm | None = None,
        is_own: bool = False,
        before: int = 0,
    ) -> TopicCreated | Topic:
        """The event to write, or the topic if one with this shape (and `config` and `json_keys`, if given) exists. A
        new topic's keys are raw unless `json_keys` says otherwise. `is_own`: it is the server's own, and its name may
        begin with a reserved prefix. `before`: so many topics of other names are made by events that were decided and
        not applied yet. Raises IllegalTopic, TopicExists."""
        check_name(name, is_own=is_own)
        _check_partitions(partitions)
        existing = self._by_name.get(name)
        if existing is not None:
            if existing.partitions != partitions:
                raise TopicExists(f"topic {name} exists with {existing.partitions} partitions, not {partitions}")
            if config is not None and config != existing.config:
                raise TopicExists(f"topic {name} exists with another configuration: {existing.config.chosen()}")
            if json_keys is not None and json_keys is not existing.json_keys:
                raise TopicExists(f"topic {name} exists with json_keys={existing.json_keys}; it cannot be changed")
            return existing
        chosen = {} if config is None else config.chosen()
        return TopicCreated(self._next_id + before, name, partitions, now_ms, chosen, json_keys or KeyForm.RAW)

    def decide_configure(self, name: str, changes: Changes) -> TopicConfigured | Topic:
        """The event to write, or the topic if the changes change nothing; None takes a choice back. Names are those of
        TopicConfig. Raises UnknownQueue, IllegalTopic for a system topic."""
        topic = self._user_topic(name)
        config = topic.config.changed(changes)
        return topic if config == topic.config else TopicConfigured(topic.topic_id, config.chosen())

    def decide_grow(self, name: str, partitions: int) -> TopicGrown | Topic:
        """The event to write, or the topic if it has that many already. Raises UnknownQueue, IllegalTopic."""
        topic = self._user_topic(name)
        _check_partitions(partitions)
        if partitions < topic.partitions:
            raise IllegalTopic(f"topic {name} has {topic.partitions} partitions; it cannot shrink to {partitions}")
        return topic if partitions == topic.partitions else TopicGrown(topic.topic_id, partitions)

    def decide_delete(self, name: str) -> TopicDeleted:
        """The event to write. Raises UnknownQueue, IllegalTopic for a system topic."""
        return TopicDeleted(self._user_topic(name).topic_id)

    def decide_put(self, wanted: Topic) -> Event | Topic:
        """The next event on the way to a topic that was made elsewhere, by its id; the topic when it is as wanted. A
        topic of its name under another id has to be deleted first. Raises TopicExists, IllegalTopic when it has more
        partitions here."""
        topic = self._by_id.get(wanted.topic_id)
        if topic is None:
            if wanted.name in self._by_name:
                raise TopicExists(f"topic {wanted.name} exists under another id")
            return TopicCreated(
                wanted.topic_id, wanted.name, wanted.partitions, wanted.created_ms, wanted.config.chosen(),
                wanted.json_keys,
            )  # fmt: skip
        if topic.partitions != wanted.partitions:
            return self.decide_grow(topic.name, wanted.partitions)
        return topic if topic.config == wanted.config else TopicConfigured(topic.topic_id, wanted.config.chosen())

    def decide_create_queue(self, queue: QueueKey) -> QueueCreated | Topic:
        """The event to write, or the topic if it has the queue. Raises UnknownQueue when there is no such topic,
        IllegalTopic for an id that is a partition's."""
        topic = self._by_id.get(queue.topic_id)
        if topic is None:
            raise UnknownQueue(f"topic id {queue.topic_id} does not exist")
        if queue in self._queues or 0 <= queue.queue_id < topic.partitions:
            return topic
        if queue.queue_id < PARTITIONS_MAX or topic.is_system:
            raise IllegalTopic(f"further queues of user topics have ids from {PARTITIONS_MAX} on, not {queue.queue_id}")
        return QueueCreated(*queue)

    def decide_seal(self, queue: QueueKey, end_offset: int) -> QueueSealed | Topic:
        """The event to write, or the topic if the queue is sealed. Raises UnknownQueue, IllegalTopic."""
        topic = self._user_topic(self.of_queue(queue).name)
        return topic if self.state_of(queue).end_offset is not None else QueueSealed(*queue, end_offset)

    def decide_expire(self, queue: QueueKey, before_offset: int) -> QueueExpired | Topic:
        """The event to write, or the topic if so much is gone already. Raises UnknownQueue, IllegalTopic."""
        topic = self._user_topic(self.of_queue(queue).name)
        return topic if before_offset <= self.state_of(queue).before_offset else QueueExpired(*queue, before_offset)

    def apply(self, event: Event) -> Topic:
        """Change the table; the topic as it is afterwards (as it last was, when it is deleted)."""
        if isinstance(event, TopicCreated):
            self._next_id = max(self._next_id, event.topic_id + 1)
            config = NOTHING_CHOSEN.changed(event.config) if event.config else NOTHING_CHOSEN
            json_keys = KeyForm(event.json_keys)
            return self._put(Topic(event.topic_id, event.name, event.partitions, event.created_ms, config, json_keys))
        topic = self._by_id[event.topic_id]
        if isinstance(event, TopicGrown):
            return self._put(replace(topic, partitions=event.partitions))
        if isinstance(event, TopicConfigured):
            return self._put(replace(topic, config=TopicConfig().changed(event.config)))
        if isinstance(event, QueueCreated):
            self._put_state(QueueKey(event.topic_id, event.queue_id), QueueState())
            return topic
        if isinstance(event, (QueueSealed, QueueExpired)):
            queue = QueueKey(event.topic_id, event.queue_id)
            state = self.state_of(queue)
            if isinstance(event, QueueSealed):
                self._put_state(queue, replace(state, end_offset=event.end_offset))
            else:
                self._put_state(queue, replace(state, before_offset=event.before_offset))
            return topic
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        for queue in [queue for queue in self._queues if queue.topic_id == topic.topic_id]:
            del self._queues[queue]
            self._newest.pop(partition_of(queue), None)
        return topic

    def _put_state(self, queue: QueueKey, state: QueueState) -> None:
        self._queues[queue] = state
        partition = partition_of(queue)
        self._newest[partition] = max(self._newest.get(partition, 0), queue.queue_id)

    def snapshot(self) -> dict[str, object]:
        """The whole table as JSON fields, for `restore`."""
        return self.captured()()

    def captured(self) -> Callable[[], dict[str, object]]:
        """What makes the snapshot as of this call, later and in another thread: of 10,000 topics it takes 10 ms."""
        next_id, captured, states = self._next_id, self.all(), list(self._queues.items())

        def snapshot() -> dict[str, object]:
            topics = [
                {**_as_fields(topic), "config": topic.config.chosen()} for topic in captured if not topic.is_system
            ]
            queues = [[*queue, state.end_offset, state.before_offset] for queue, state in states]
            return {"next_topic_id": next_id, "topics": topics} | ({"queues": queues} if queues else {})

        return snapshot

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Fill an empty table with the fields of a snapshot."""
        for topic in fields["topics"]:
            json_keys = KeyForm(topic.get("json_keys", KeyForm.CONFLUENT))
            config = TopicConfig(**topic.get("config", {}))  # absent where topics had none yet
            self._put(Topic(**{**topic, "config": config, "json_keys": json_keys}))
        for topic_id, queue_id, end_offset, before_offset in fields.get("queues", ()):
            self._put_state(QueueKey(topic_id, queue_id), QueueState(end_offset, before_offset))
        self._next_id = fields["next_topic_id"]

    def by_name(self, name: str) -> Topic:
        """Raises UnknownQueue."""
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownQueue(f"topic {name} does not exist")
        return topic

    def of_queue(self, queue: QueueKey) -> Topic:
        """The topic a queue belongs to. Raises UnknownQueue when the store has no such queue."""
        topic = self._by_id.get(queue.topic_id)
        if topic is None or not (0 <= queue.queue_id < topic.partitions or queue in self._queues):
            raise UnknownQueue(f"queue {queue.queue_id} of topic id {queue.topic_id} does not exist")
        return topic

    def state_of(self, queue: QueueKey) -> QueueState:
        """What is to be said of a queue."""
        return self._queues.get(queue, _OPEN)

    def has_left(self, partition: QueueKey) -> bool:
        """Whether a partition (topic id, number) has moved away: the newest of its queues takes no more records."""
        newest = self._newest.get(partition)
        return newest is not None and self.state_of(QueueKey(partition.topic_id, newest)).end_offset is not None

    def stated_queues(self) -> list[QueueKey]:
        """The queues of which something is to be said."""
        return list(self._queues)

    def queues_of(self, topic: Topic) -> list[QueueKey]:
        """All queues of a topic."""
        further = [queue for queue in self._queues if queue.topic_id == topic.topic_id]
        return [QueueKey(topic.topic_id, number) for number in range(topic.partitions)] + [
            queue for queue in further if queue.queue_id >= topic.partitions
        ]

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._by_id

    def all(self) -> list[Topic]:
        """Every topic, system topics first, by id."""
        return sorted(self._by_id.values(), key=lambda topic: topic.topic_id)

    def _user_topic(self, name: str) -> Topic:
        topic = self.by_name(name)
        if topic.is_system:
            raise IllegalTopic(f"{name} is a system topic")
        return topic

    def _put(self, topic: Topic) -> Topic:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        return topic


def is_name(name: str) -> bool:
    """Whether a topic can have this name."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def check_name(name: str, *, is_own: bool = False) -> None:
    """Raises IllegalTopic unless clients, or the server for a topic of its own, may use this name."""
    if not is_name(name):
        raise IllegalTopic(
            f"a topic name is 1 to {TOPIC_NAME_BYTES_MAX} of the characters A-Z a-z 0-9 . _ % - and not . or .."
        )
    if name.startswith(RESERVED_PREFIXES) and not is_own:
        raise IllegalTopic(f"topic names beginning with {', '.join(RESERVED_PREFIXES)} are reserved")


def check_config(config: TopicConfig, *, retention_ms_max: int | None) -> None:
    """Raises IllegalTopic for a configuration that could not be kept. `retention_ms_max`: the store's retention."""
    retention_ms = config.retention_ms
    if retention_ms is not None and (
        retention_ms < 1 or (retention_ms_max is not None and retention_ms > retention_ms_max)
    ):
        shorter = "" if retention_ms_max is None else f" and at most {retention_ms_max}, the retention of the store"
        raise IllegalTopic(f"retention_ms must be at least 1{shorter} (store.retention_ms), not {retention_ms}")
    message_bytes = config.max_message_bytes
    if message_bytes is not None and not 1 <= message_bytes <= RECORD_BYTES_MAX:
        raise IllegalTopic(f"max_message_bytes must be between 1 and {RECORD_BYTES_MAX}, not {message_bytes}")


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise IllegalTopic(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")


def _as_fields(one: Event | Topic) -> dict[str, object]:
    """As `asdict`, which copies the values too, and takes ten times as long."""
    return {name: getattr(one, name) for name in _FIELD_NAMES[type(one)]}


def encode_event(event: Event) -> bytes:
    """The JSON record of one event."""
    return orjson.dumps({"event": _EVENT_NAMES[type(event)], **_as_fields(event)})


def decode_events(values: Iterable[bytes | None]) -> list[Event]:
    """The events of the records of one entry. Raises ValueError: unknown metadata must not be skipped."""
    events: list[Event] = []
    for value in values:
        try:
            event = orjson.loads(value or b"")
            events.append(_EVENTS[event.pop("event")](**event))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"a metadata record is not understood ({error!r}); was it written by a newer version?"
            raise ValueError(reason) from error
    return events

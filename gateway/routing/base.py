"""What producers and consumers need to know of topics, and where partitions are: the seam to `gateway/routing/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.brokers.base import Broker, Scheduler
from store.errors import StoreError, UnknownQueue
from store.topics import KeyForm, TopicConfig
from store.types import Original, QueueKey


@dataclass(frozen=True, slots=True)
class Attachment:
    """Of which Kafka cluster a topic is, and its name there: others write to it as well. Sends are stored at least
    once, offsets may have holes, and neither partitions nor retention are mq's. `mirror_groups`: what groups commit is
    told to Kafka."""

    broker: str
    name: str
    mirror_groups: bool = False


class TopicView(Protocol):
    """One topic as clients see it."""

    @property
    def name(self) -> str:
        """As clients name it."""
        ...

    @property
    def topic_id(self) -> int:
        """Never used again for another topic."""
        ...

    @property
    def partitions(self) -> int:
        """How many."""
        ...

    @property
    def config(self) -> TopicConfig:
        """What was chosen for it."""
        ...

    @property
    def json_keys(self) -> KeyForm:
        """How keys sent as JSON are stored."""
        ...

    @property
    def raw_keys(self) -> bool:
        """Whether keys are stored as they are, not as JSON text."""
        ...


class Route(Protocol):
    """A segment of a partition: a stretch of a queue of a broker, and how its offsets and the partition's translate."""

    @property
    def broker(self) -> Broker:
        """Whose queue it is."""
        ...

    @property
    def queue(self) -> QueueKey:
        """The queue, as its broker knows it."""
        ...

    @property
    def logical_start(self) -> int:
        """The partition's offset of the segment's first record."""
        ...

    @property
    def physical_start(self) -> int:
        """The queue's offset of the segment's first record."""
        ...

    @property
    def physical_end(self) -> int | None:
        """Exclusive; None while records may be added."""
        ...

    def to_logical(self, offset: int) -> int:
        """The partition's offset for one of the queue."""
        ...

    def to_physical(self, offset: int) -> int:
        """The queue's offset for one of the partition."""
        ...


class Routes(Protocol):
    """The table of topics and routes; every method answers from memory."""

    def topics(self) -> list[TopicView]:
        """All topics, by name."""
        ...

    def topic(self, name: str) -> TopicView:
        """Raises store.errors.UnknownQueue."""
        ...

    def writable(self, topic: str, partition: int) -> Route:
        """The open segment of a partition. Raises UnknownQueue."""
        ...

    def attached(self, topic_id: int) -> Attachment | None:
        """What is to be said of a topic that is one of a Kafka cluster; None: it is mq's own."""
        ...

    def by_id(self, topic_id: int) -> TopicView:
        """Raises store.errors.UnknownQueue."""
        ...

    def timer(
        self, topic_id: int, partition: int, key: str | None = None, *, has_ids: bool = False
    ) -> Scheduler | None:
        """What keeps delayed records of a partition, and of a schedule key, and recognises repeated sends of those that
        have ids; None: the partition's broker."""
        ...

    def chain(self, topic: str, partition: int) -> Sequence[Route]:
        """The segments of a partition, in order; only the last one is open. Raises UnknownQueue."""
        ...

    def broker_name(self, topic: str, partition: int) -> str:
        """The broker that takes records of a partition now. Raises UnknownQueue."""
        ...

    def room_of(self, broker: str) -> str:
        """The machine room of a broker; empty when it has none."""
        ...

    def lacking(self, data_format: int) -> list[str]:
        """The nodes of the cluster whose program does not know a data format (store/data_format.py), by name: until
        there is none, nothing may begin to use what it brings."""
        ...

    def watch(self, topic: str, partition: int | None, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` with each change of a partition's chain, None: of any of the topic's, until the answer is
        called."""
        ...

    async def refresh(self, topic: str, partition: int) -> None:
        """Look where a partition is now, if there is a source newer than this table; as far as it can be told."""
        ...

    def locate(self, topic: str, broker: Broker, queue: QueueKey, offset: int | None) -> tuple[int, int | None]:
        """The partition that a queue is part of, and its offset for one of the queue's. Raises UnknownQueue."""
        ...

    def answered(self, broker: Broker, latency_ms: float, now_ms: float) -> None:
        """A broker has taken records. Times are monotonic."""
        ...

    def latency_ms(self, broker: str) -> float | None:
        """How long a broker has taken for sends lately, a moving mean; None: it was not asked."""
        ...

    def avoided_ms(self, broker: str, now_ms: float) -> float:
        """How long a broker is to be avoided from now on; 0: it is not."""
        ...

    def failed(self, broker: Broker, now_ms: float, error: StoreError) -> None:
        """A broker has refused records, or did not answer. An error that is not the broker's own counts for nothing."""
        ...


class Selector(Protocol):
    """Which partition a record goes to when the sender names none."""

    def for_key(self, key: bytes, count: int) -> int:
        """The partition of a key, of `count`."""
        ...

    def for_keys(self, keys: Sequence[bytes], count: int) -> list[int]:
        """As `for_key`, for many keys in one call."""
        ...

    def next(self, topic: str, count: int, selector: str | None = None, *, failed_broker: str | None = None) -> int:
        """The partition of records without a key, of `count`. `failed_broker` has just failed an attempt to send
        them."""
        ...

    def forget(self, topic: str) -> None:
        """A topic is gone, and whose turn it was."""
        ...


class UnknownPartition(UnknownQueue):
    """The topic exists, but has no partition of this number."""


def place_of(routes: Routes, topic: str, broker: Broker, original: Original) -> tuple[int, int | None]:
    """The partition and offset of a record that `broker` says was stored before (not of a schedule). Raises
    UnknownQueue."""
    if original.is_moved:
        return original.queue.queue_id, original.offset
    return routes.locate(topic, broker, original.queue, original.offset)


def topic_id_of(routes: Routes, name: str) -> int | None:
    """The id of the topic with this name; None when there is none (any more)."""
    try:
        return routes.topic(name).topic_id
    except UnknownQueue:
        return None

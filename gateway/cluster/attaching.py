"""Topics of Kafka clusters that others write to, as one process of mq has them: what of the metadata's topics is
attached, and through whom this process reaches it. A node that knows the cluster does so itself, any other process
through a node. No store has a queue of such a topic: a node that does not know the cluster refuses what reaches it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from gateway.brokers.base import Broker
from gateway.brokers.kafka.attached import AttachedBroker
from gateway.cluster.mover import UnknownBroker
from gateway.cluster.record import PartitionRecord
from gateway.cluster.topics import TopicRecord
from gateway.routing.base import Attachment
from gateway.routing.table import Chain, RouteTable, Segment
from store.errors import BrokerLacks, IllegalTopic, StoreError, TopicExists
from store.limits import PARTITIONS_MAX
from store.topics import Changes, Topic
from store.types import QueueKey

log = logging.getLogger(__name__)

GROWTH_INTERVAL_S = 30.0
"""How often Kafka is asked whether topics have more partitions there."""

INTERNAL_PREFIX = "__"
"""Of the names of Kafka's own topics."""


class Attaching:
    """See the module. `nodes`: the brokers of other nodes, those that are there first."""

    def __init__(
        self, brokers: Mapping[str, AttachedBroker], routes: RouteTable, nodes: Callable[[], Iterable[Broker]]
    ) -> None:
        self._brokers = brokers
        self._routes = routes
        self._nodes = nodes
        self._topics: dict[int, TopicRecord] = {}

    @property
    def names(self) -> set[str]:
        """The Kafka clusters that topics are attached to."""
        return {one.attached.broker for one in self._topics.values() if one.attached is not None}

    def put(self, record: TopicRecord) -> list[Chain]:
        """A topic is attached, or has grown: the chains of its partitions. Raises UnknownBroker when no node is known
        to reach it."""
        to, topic = record.attached, record.topic
        assert to is not None
        self._topics[topic.topic_id] = record
        self._routes.attachments[topic.topic_id] = to
        if (own := self._brokers.get(to.broker)) is not None:
            own.attach(topic.topic_id, topic.name, to.name, topic.partitions)
        return self._chains(record)

    def _chains(self, record: TopicRecord) -> list[Chain]:
        assert record.attached is not None
        topic = record.topic
        broker: Broker | None = self._brokers.get(record.attached.broker) or next(iter(self._nodes()), None)
        if broker is None:
            raise UnknownBroker(f"no node is known that reaches Kafka cluster {record.attached.broker}")
        return [(Segment(broker, QueueKey(topic.topic_id, number)),) for number in range(topic.partitions)]

    def drop(self, topic_id: int) -> None:
        """A topic is attached no more."""
        self._routes.attachments.pop(topic_id, None)
        self._topics.pop(topic_id, None)
        for broker in self._brokers.values():
            broker.detach(topic_id)

    def nodes_changed(self) -> None:
        """Reach what is reached through other nodes through one that is there."""
        for record in self._topics.values():
            if record.attached is not None and record.attached.broker not in self._brokers:
                self._routes.set_chains(record.topic, self._chains(record))

    # ---- what may be done ------------------------------------------------------------------------------------------

    async def partitions_of(self, name: str, to: Attachment, moved: Iterable[PartitionRecord]) -> int:
        """How many partitions a topic has that is to be attached under a name. `moved`: the partitions that have moved.
        Raises UnknownBroker, IllegalTopic, TopicExists, BrokerLacks, BrokerRefuses, BrokerUnreachable."""
        if (broker := self._brokers.get(to.broker)) is None:
            raise UnknownBroker(f"there is no Kafka cluster {to.broker} among the brokers")
        if to.name.startswith(INTERNAL_PREFIX):
            raise IllegalTopic(f"topic {to.name} is Kafka's own, or mq's")
        for record in self._topics.values():
            known = record.attached
            if known is not None and (known.broker, known.name) == (to.broker, to.name) and record.topic.name != name:
                raise TopicExists(f"topic {to.name} of {to.broker} is attached as {record.topic.name}")
        if any((one.broker, one.queue[0]) == (to.broker, to.name) for record in moved for one in record.segments):
            raise BrokerLacks(f"partitions of mq lie in topic {to.name} of {to.broker}: mq is their only writer")
        count = await broker.partition_count(to.name)
        if count > PARTITIONS_MAX:
            raise IllegalTopic(f"topic {to.name} has {count} partitions; at most {PARTITIONS_MAX} can be attached")
        return count

    def check_move(self, topic_id: int, to: str, kafka_name: str | None) -> None:
        """Raises BrokerLacks when a partition may not move to a broker, where it would lie in a Kafka topic."""
        self._refuse(topic_id, "its partitions do not move")
        if any((one.broker, one.name) == (to, kafka_name) for one in self._routes.attachments.values()):
            raise BrokerLacks(f"topic {kafka_name} of {to} is attached: others write to it")

    def check_grow(self, topic_id: int) -> None:
        """Raises BrokerLacks when a topic's partitions are not mq's."""
        self._refuse(topic_id, "it has the partitions that it has there, and gets more when it has more there")

    def check_changes(self, topic_id: int, changes: Changes) -> None:
        """Raises BrokerLacks for settings that are not mq's."""
        if changes.get("retention_ms") is not None:
            self._refuse(topic_id, "how long records are kept is set there")

    def _refuse(self, topic_id: int, why: str) -> None:
        if (known := self._routes.attached(topic_id)) is not None:
            raise BrokerLacks(f"the topic is attached, it is {known.name} of Kafka cluster {known.broker}: {why}")

    # ---- growth ----------------------------------------------------------------------------------------------------

    async def grown(self) -> AsyncIterator[tuple[Topic, int]]:
        """Topics that have more partitions in Kafka than here, as far as it can be asked, and how many."""
        for record in list(self._topics.values()):
            to, topic = record.attached, record.topic
            assert to is not None
            if (broker := self._brokers.get(to.broker)) is None:
                continue
            try:
                count = min(await broker.partition_count(to.name), PARTITIONS_MAX)
            except StoreError as error:
                log.warning("attached topic cannot be looked at topic=%s error=%s", topic.name, error)
                continue
            if count > topic.partitions:
                yield topic, count

"""From a partition, which never moves, to the queue that holds it today (seeds: logical queues).

A partition is a chain of segments. Each segment is a stretch of one physical queue of one broker; all but the last
are sealed. Moving a partition to another broker seals the last segment and opens one there, at the next offset, so
offsets stay dense and clients notice nothing. With one broker every chain is one open segment that begins at 0, and
logical and physical offsets are the same.

    partition 0 of "orders":   logical   0 ........ 100 | 101 .......... 200 | 201 ...
                               segment   broker a, q 0  |  broker b, q 2     |  broker a, q 3 (open)
                               physical  0 ........ 100 |  0 ........... 99  |  0 ...

    R1  segments of a chain are ordered by logical_start and leave no gap
    R2  only the last segment is open (physical_end None): a partition has one writable queue at a time
    R3  a chain is replaced as a whole, and who watches it is told; a reader holds one immutable tuple
    R4  the list of topics has those of the dicts, by name: it is asked for often, and never sorted anew
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain as chained
from operator import attrgetter

from gateway.brokers.base import AnswerLost, Broker, BrokerUnreachable, Scheduler
from gateway.routing.base import Attachment, TopicView
from gateway.routing.fault import CURRENT, LatencyFaults, PenaltyTable
from store.errors import DiskFull, Overloaded, PartitionLeft, SealedQueue, StoreError, StoreStopped, UnknownQueue
from store.types import QueueKey
from store.watching import watch


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one queue, and where it lies in its partition. `physical_end` is exclusive; None while open."""

    broker: Broker
    queue: QueueKey
    logical_start: int = 0
    physical_start: int = 0
    physical_end: int | None = None

    def holds(self, offset: int | None) -> bool:
        """Whether the queue's record at `offset` belongs to this segment; None: any."""
        return offset is None or (
            self.physical_start <= offset and (self.physical_end is None or offset < self.physical_end)
        )

    def to_logical(self, offset: int) -> int:
        """See `Route.to_logical`."""
        return offset - self.physical_start + self.logical_start

    def to_physical(self, offset: int) -> int:
        """See `Route.to_physical`."""
        return offset - self.logical_start + self.physical_start


Chain = tuple[Segment, ...]

_NAME_OF = attrgetter("name")
_BROKERS_OWN = (StoreStopped, DiskFull, Overloaded, AnswerLost)
"""Errors of sends that are for reasons of the broker, not of the records."""

_PARTITIONS_OWN = (SealedQueue, PartitionLeft)
"""Of these, those that a move of the partition explains."""


class RouteTable:
    """All topics a gateway knows and the chain of each of their partitions. Answers from memory.

    `faults` is what sends have told of the brokers, by name; `rooms` the machine rooms that their nodes are set up for,
    `formats` the newest data format that the program of each other one knows. `attachments`: of topics of Kafka
    clusters, by topic id.
    """

    def __init__(self, penalties: PenaltyTable = CURRENT) -> None:
        self.faults = LatencyFaults(penalties)
        self.rooms: dict[str, str] = {}
        self.formats: dict[str, int] = {}
        self.attachments: dict[int, Attachment] = {}
        self._topics: dict[str, TopicView] = {}
        self._by_id: dict[int, TopicView] = {}
        self._by_name: list[TopicView] = []
        self._chains: dict[str, tuple[Chain, ...]] = {}
        self._watching: dict[tuple[str, int | None], dict[object, Callable[[], None]]] = {}
        self.partition_count = 0
        """Partitions of all topics."""

        self.timers: Callable[[int, int, str | None, bool], Scheduler | None] = lambda *_: None
        """See `timer`."""

        self.on_removed: Callable[[str], None] = lambda _: None
        """Told the name of a topic that is gone, for what is kept by name elsewhere."""

        self.refresh_by: Callable[[str, int], Awaitable[None]] | None = None
        """Looks where a partition is now, and sets its chain; None: this table is all there is."""

    def put(self, topic: TopicView, broker: Broker) -> None:
        """Add a topic, or its new shape: its chains stay, and each partition that is new lies on `broker`, in the queue
        of its number."""
        known = self._topics.get(topic.name)
        is_known = known is not None and known.topic_id == topic.topic_id
        chains = list(self._chains[topic.name][: topic.partitions]) if is_known else []
        chains += [(Segment(broker, QueueKey(topic.topic_id, p)),) for p in range(len(chains), topic.partitions)]
        self.set_chains(topic, chains)

    def set_chains(self, topic: TopicView, chains: Sequence[Chain]) -> None:
        """Add or replace a topic's chains. Raises ValueError when they break R1 or R2."""
        if len(chains) != topic.partitions:
            raise ValueError(f"{len(chains)} chains for {topic.partitions} partitions")
        for chain in chains:
            _check_chain(chain)
        at = bisect_left(self._by_name, topic.name, key=_NAME_OF)
        self._by_name[at : at + (topic.name in self._topics)] = [topic]
        if (known := self._topics.get(topic.name)) is not None:
            del self._by_id[known.topic_id]
        self._topics[topic.name] = self._by_id[topic.topic_id] = topic
        before = self._chains.get(topic.name, ())
        self._chains[topic.name] = tuple(chains)
        self.partition_count += len(chains) - len(before)
        self._wake(topic.name, (p for p, chain in enumerate(before) if p >= len(chains) or chain != chains[p]))

    def set_chain(self, topic: str, partition: int, chain: Chain) -> None:
        """Replace the chain of one partition. Raises UnknownQueue, and ValueError when it breaks R1 or R2."""
        chains = list(self._chains.get(topic, ()))
        if chains != (replaced := [*chains[:partition], chain, *chains[partition + 1 :]]):
            self.chain(topic, partition)  # it is there
            self.set_chains(self.topic(topic), replaced)

    def remove(self, topic: TopicView) -> None:
        """Forget a topic, unless another one has taken its name."""
        if (known := self._topics.get(topic.name)) is not None and known.topic_id == topic.topic_id:
            del self._topics[topic.name], self._by_id[topic.topic_id]
            del self._by_name[bisect_left(self._by_name, topic.name, key=_NAME_OF)]
            chains = self._chains.pop(topic.name)
            self.partition_count -= len(chains)
            self._wake(topic.name, range(len(chains)))
            self.on_removed(topic.name)

    def attached(self, topic_id: int) -> Attachment | None:
        """See `Routes.attached`."""
        return self.attachments.get(topic_id)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __len__(self) -> int:
        """All topics."""
        return len(self._topics)

    def topics(self) -> list[TopicView]:
        """All topics, by name."""
        return self._by_name.copy()

    def topic(self, name: str) -> TopicView:
        """Raises UnknownQueue."""
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownQueue(f"topic {name} does not exist")
        return topic

    def by_id(self, topic_id: int) -> TopicView:
        """Raises UnknownQueue."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownQueue(f"topic id {topic_id} does not exist")
        return topic

    def timer(
        self, topic_id: int, partition: int, key: str | None = None, *, has_ids: bool = False
    ) -> Scheduler | None:
        """See `Routes.timer`."""
        return self.timers(topic_id, partition, key, has_ids)

    def writable(self, topic: str, partition: int) -> Segment:
        """The open segment of a partition. Raises UnknownQueue."""
        return self.chain(topic, partition)[-1]

    def chain(self, topic: str, partition: int) -> Chain:
        """The segments of a partition. Raises UnknownQueue."""
        chains = self._chains.get(topic)
        if chains is None or not 0 <= partition < len(chains):
            raise UnknownQueue(f"partition {partition} of topic {topic} does not exist")
        return chains[partition]

    def watch(self, topic: str, partition: int | None, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` with each change of a partition's chain, its end included, None: of any partition of the topic,
        until the answer is called."""
        return watch(self._watching, (topic, partition), wake)

    async def refresh(self, topic: str, partition: int) -> None:
        """See `Routes.refresh`."""
        if self.refresh_by is not None:
            await self.refresh_by(topic, partition)

    def _wake(self, topic: str, partitions: Iterable[int]) -> None:
        changed: list[int | None] = list(partitions)
        for partition in [*changed, None] if changed else ():
            for wake in list(self._watching.get((topic, partition), {}).values()):
                wake()

    def locate(self, topic: str, broker: Broker, queue: QueueKey, offset: int | None) -> tuple[int, int | None]:
        """The partition that a queue is part of, and the partition's offset for one of the queue; a queue that was used
        more than once is told apart by the offset. Raises UnknownQueue."""
        chains = self._chains.get(topic, ())
        guess = queue.queue_id  # with one broker it is right
        for partition in chained((guess,), range(len(chains))) if guess < len(chains) else range(len(chains)):
            for segment in chains[partition]:
                if segment.broker is broker and segment.queue == queue and segment.holds(offset):
                    return partition, None if offset is None else segment.to_logical(offset)
        raise UnknownQueue(f"no partition of topic {topic} lies in queue {queue.queue_id} of {broker.name}")

    def broker_name(self, topic: str, partition: int) -> str:
        """The broker that takes records of a partition now. Raises UnknownQueue."""
        return self.writable(topic, partition).broker.name

    def room_of(self, broker: str) -> str:
        """The machine room of a broker: its node's, else what stands before an @ of its name."""
        room, at, _ = broker.partition("@")
        return self.rooms.get(broker) or (room if at else "")

    def lacking(self, data_format: int) -> list[str]:
        """See `Routes.lacking`."""
        return sorted(name for name, known in self.formats.items() if known < data_format)

    def answered(self, broker: Broker, latency_ms: float, now_ms: float) -> None:
        """A broker has taken records. Times are monotonic."""
        self.faults.answered(broker.name, latency_ms, now_ms)

    def latency_ms(self, broker: str) -> float | None:
        """See `Routes.latency_ms`."""
        return self.faults.latency_ms(broker)

    def avoided_ms(self, broker: str, now_ms: float) -> float:
        """See `Routes.avoided_ms`."""
        return self.faults.avoided_ms(broker, now_ms)

    def failed(self, broker: Broker, now_ms: float, error: StoreError) -> None:
        """See `Routes.failed`."""
        if isinstance(error, _BROKERS_OWN) and not isinstance(error, _PARTITIONS_OWN):
            is_reachable = not isinstance(error, (BrokerUnreachable, AnswerLost))
            self.faults.failed(broker.name, now_ms, is_reachable=is_reachable)

    def unreachable(self) -> list[Segment]:
        """A segment on each broker that has not answered since it last did not. Looks at every chain when there is
        one."""
        names = set(self.faults.unreachable())
        found: dict[str, Segment] = {}
        if names:
            for chains in self._chains.values():
                for chain in chains:
                    for segment in chain:
                        if segment.broker.name in names:
                            found.setdefault(segment.broker.name, segment)
        return list(found.values())


def _check_chain(chain: Chain) -> None:
    if not chain or chain[-1].physical_end is not None:
        raise ValueError("the last segment of a chain must be open (R2)")
    for number, segment in enumerate(chain[:-1]):
        if segment.physical_end is None or segment.to_logical(segment.physical_end) != chain[number + 1].logical_start:
            raise ValueError("segments must be sealed and follow each other without a gap (R1, R2)")

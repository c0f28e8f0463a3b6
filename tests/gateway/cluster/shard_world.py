"""Nodes that own one shard in turn, on a Kafka cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from gateway.brokers.base import Broker
from gateway.brokers.event_log import EventLog
from gateway.brokers.kafka.broker import KafkaBroker
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.mover import Known, Mover, UnknownBroker, chain_of, queue_of
from gateway.cluster.record import PartitionState
from gateway.cluster.shard_log import SHARD_TOPICS, Shard, ShardLog, ShardSnapshots
from gateway.groups.coordinator.context import GROUP_EVENTS
from gateway.groups.machines.events import DocumentPut, Event
from store.topics import OFFSETS
from store.types import Acks, Append, Appended
from tests.clock import FakeClock
from tests.gateway.brokers.kafka.fake import FakeKafka, new_repeats

NUMBER = 3


class NoTimer:
    """Of shards nothing is delayed."""

    name = "n1"

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        raise AssertionError(f"{append.queue} is delayed")


class Node:
    """One that may own the shard. `take` as often as wanted; what it has in memory then is `state`."""

    def __init__(self, name: str, kafka: FakeKafka, metadata: MemoryMetadata, clock: FakeClock) -> None:
        self.name = name
        self.metadata = metadata
        self.clock = clock
        self.doubts = 0
        self.broker = KafkaBroker(
            "kafka1", kafka, clock, prefix="mq.",
            topic_of=SHARD_TOPICS.__getitem__, retention_ms_of=lambda _: -1, on_doubt=self._doubt,
            repeats=new_repeats(), timer=NoTimer(),
        )  # fmt: skip
        self.mover = Mover(metadata, self._named, clock, home=lambda *_: name, own=name)
        self.state: dict[str, bytes] = {}
        self.read_count = 0
        self.shard: Shard
        self.log: ShardLog
        self.snapshots: ShardSnapshots
        self.events: EventLog[Event]
        self._running: asyncio.Task[None] | None = None

    def _doubt(self) -> None:
        self.doubts += 1

    def _named(self, name: str) -> Broker:
        if name != "kafka1":
            raise UnknownBroker(name)
        return self.broker

    async def own(self) -> Shard:
        """Be the owner: fence, and serve; nothing is read yet."""
        await self.mover.begin(OFFSETS.topic_id, NUMBER, "kafka1")
        known = await self.mover.move(OFFSETS.topic_id, NUMBER, "kafka1")
        return self.note(known)

    def note(self, known: Known) -> Shard:
        """Apply a record."""
        chain = chain_of(OFFSETS.topic_id, NUMBER, known.record, self._named, own=self.name)
        self.shard = Shard(NUMBER, chain, self.broker, self._doubt)
        self.log = ShardLog(self.shard)
        self.snapshots = ShardSnapshots(self.shard.queue, self.log, self.metadata, self.clock, verified=self._verified)
        return self.shard

    async def _verified(self) -> int:
        record = (await self.mover.verify(OFFSETS.topic_id, NUMBER)).record
        is_own = queue_of(OFFSETS.topic_id, NUMBER, record.open_segment) == self.shard.tenure
        return record.verified if is_own and record.state is PartitionState.NORMAL else 0

    async def take(self) -> None:
        """Be the owner, and read everything."""
        await self.end()
        await self.own()
        self.state = {}
        self.events = EventLog(
            GROUP_EVENTS, self.log, self.clock, self.snapshots,
            apply=lambda event, _: self._apply(event),
            whole_state=lambda: [put(key, content) for key, content in self.state.items()],
        )  # fmt: skip
        self.read_count = await self.events.replay(lambda _: None)
        self._running = asyncio.create_task(self.events.run())

    def _apply(self, event: Event) -> None:
        if isinstance(event, DocumentPut) and event.content is not None:
            self.state[event.key] = event.content

    async def put(self, *keys: str) -> None:
        await self.events.write([put(key, b"x") for key in keys])

    async def end(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            self._running = None


def put(key: str, content: bytes) -> DocumentPut:
    return DocumentPut("g", key, content)


def nodes(names: Iterable[str]) -> tuple[FakeKafka, list[Node]]:
    kafka, metadata, clock = FakeKafka(), MemoryMetadata(), FakeClock()
    return kafka, [Node(name, kafka, metadata, clock) for name in names]

"""Nodes that own one shard of `__timer` in turn, on a Kafka cluster in memory, and the partition that they deliver to,
which another node owns there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gateway.brokers.base import Broker
from gateway.brokers.kafka.broker import KafkaBroker
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.mover import Mover, UnknownBroker, chain_of, queue_of
from gateway.cluster.record import PartitionState
from gateway.cluster.shard_ids import ShardIds
from gateway.cluster.shard_log import SHARD_TOPICS, Shard, ShardLog, ShardSnapshots
from gateway.main.timer_shards import Tenure
from gateway.routing.reading import PartitionReader
from gateway.routing.table import RouteTable
from store import record_batch
from store.errors import StoreError
from store.record_batch import Record
from store.topics import TIMER, TIMER_QUEUE, Topic
from store.types import Acks, Append, Appended, Delay, Identity
from tests.clock import FakeClock
from tests.gateway.brokers.kafka.fake import FakeKafka, new_repeats
from tests.gateway.cluster.shard_world import NoTimer
from tests.simdisk import SimDisk
from tests.timer.fakes import FakeKeyIndex, run_inline
from timer.config import TimerConfig
from timer.metrics import TimerMetrics
from timer.ready import DELIVER_AT_HEADER, SCHEDULE_ID_HEADER
from timer.schedule import ScheduleId

NUMBER = 5
TARGET = Topic(16, "orders", 1)
WINDOW_MS = 60_000
ROLL_WINDOW_MS = 20_000
IDS_MAX = 10_000


class Delivered(NamedTuple):
    """A record in the partition."""

    value: bytes
    due_ms: int
    schedule_id: str
    stored_ms: int


class World:
    """Kafka, the metadata, the clock, and the partition."""

    def __init__(self) -> None:
        self.kafka, self.metadata, self.clock = FakeKafka(), MemoryMetadata(), FakeClock()
        self.kafka.clock = self.clock
        self.routes = RouteTable()
        self.target = self.broker("t")
        self._mover = self.mover("t", self.target)

    def broker(self, name: str) -> KafkaBroker:
        topics = {**SHARD_TOPICS, TARGET.topic_id: TARGET}
        return KafkaBroker(
            "kafka1", self.kafka, self.clock, prefix="mq.", topic_of=topics.__getitem__, retention_ms_of=lambda _: -1,
            on_doubt=lambda: None, repeats=new_repeats(WINDOW_MS), timer=NoTimer(),
        )  # fmt: skip

    def mover(self, name: str, broker: KafkaBroker) -> Mover:
        def named(wanted: str) -> Broker:
            if wanted != "kafka1":
                raise UnknownBroker(wanted)
            return broker

        self.named = named
        return Mover(self.metadata, named, self.clock, home=lambda *_: name, own=name)

    async def serve(self) -> None:
        """Have the partition be served, by its owner in a new tenure."""
        await self._mover.begin(TARGET.topic_id, 0, "kafka1")
        known = await self._mover.move(TARGET.topic_id, 0, "kafka1")

        def named(_: str) -> Broker:
            return self.target

        self.routes.set_chains(TARGET, [chain_of(TARGET.topic_id, 0, known.record, named, own="t")])

    @property
    def is_served(self) -> bool:
        route = self.routes.writable(TARGET.name, 0)
        return self.target.serves(route.queue)

    async def delivered(self) -> list[Delivered]:
        """What is in the partition."""
        reader, found, at = PartitionReader(self.routes), [], 0
        while (read := await reader.read(TARGET.name, 0, at, max_bytes=1 << 20)).entries:
            for entry in read.entries:
                for record in record_batch.decode(entry.batch):
                    headers = dict(record.headers)
                    due_ms = int(headers[DELIVER_AT_HEADER] or b"")
                    id_ = (headers[SCHEDULE_ID_HEADER] or b"").decode()
                    found.append(Delivered(record.value or b"", due_ms, id_, entry.store_time_ms))
            at = read.next_offset
        return found


class TimerNode:
    """One that may own the shard. `take` as often as wanted; what it had before goes on as a zombie may."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.broker = world.broker(name)
        self.mover = world.mover(name, self.broker)
        self.tenure: Tenure | None = None
        self.other_ids = 0  # of other shards of the node

    def _named(self, _: str) -> Broker:
        return self.broker

    async def take(self, **settings: int) -> Tenure:
        """Be the owner, and read what there is."""
        self.tenure = None
        await self.mover.begin(TIMER.topic_id, NUMBER, "kafka1")
        known = await self.mover.move(TIMER.topic_id, NUMBER, "kafka1")
        chain = chain_of(TIMER.topic_id, NUMBER, known.record, self._named, own=self.name)
        shard = Shard(NUMBER, chain, self.broker, lambda: None)
        chosen = {"roll_window_ms": ROLL_WINDOW_MS, "timer_log_file_units": 16} | settings
        tenure = Tenure(
            shard, self._snapshots_of, self.world.routes, SimDisk(), self.world.clock,
            TimerConfig(root=Path("/nowhere/cache"), **chosen), window_ms=WINDOW_MS, metrics=TimerMetrics(),
            ids=ShardIds(window_ms=WINDOW_MS, ids_max=IDS_MAX, all_count=self._id_count),
            run_blocking=run_inline, key_index=FakeKeyIndex(),
        )  # fmt: skip
        await tenure.start()
        self.tenure = tenure
        return tenure

    def _snapshots_of(self, shard: Shard, log: ShardLog) -> ShardSnapshots:
        async def verified() -> int:
            record = (await self.mover.verify(*shard.queue)).record
            is_own = queue_of(*shard.queue, record.open_segment) == shard.tenure
            return record.verified if is_own and record.state is PartitionState.NORMAL else 0

        return ShardSnapshots(shard.queue, log, self.world.metadata, self.world.clock, verified=verified)

    def _id_count(self) -> int:
        return self.other_ids + (0 if self.tenure is None else self.tenure.log.ids.id_count)

    @property
    def is_serving(self) -> bool:
        return self.tenure is not None and self.tenure.shard.is_served

    async def step(self) -> None:
        """Take in and deliver until nothing happens at this time of the clock, or it has failed."""
        if self.tenure is None:
            return
        try:
            for _ in range(50):
                if not await self.tenure.timer.intake_step() + await self.tenure.timer.firing_step():
                    return
        except StoreError:
            self.tenure.shard.kafka.refuse(self.tenure.shard.tenure)  # as a timer that has stopped

    async def accept(self, schedules: Iterable[tuple[int, bytes]], identity: Identity | None = None) -> Appended:
        assert self.tenure is not None
        return await self.tenure.timer.schedule(append_of(schedules, identity), acks=Acks.FLUSHED)


def append_of(schedules: Iterable[tuple[int, bytes]], identity: Identity | None = None) -> Append:
    """A batch of delayed records, each a due time and a value."""
    rows = list(schedules)
    batch = record_batch.encode([Record(b"key", value, due_ms) for due_ms, value in rows])
    delays = [Delay(due_ms, TARGET.topic_id, 0) for due_ms, _ in rows]
    return Append(queue=TIMER_QUEUE, batch=batch, record_count=len(rows), delays=delays, identity=identity)


def ids_of(answer: Appended, schedules: Iterable[tuple[int, bytes]]) -> list[ScheduleId]:
    """The ids of a batch that was accepted."""
    return [ScheduleId(due_ms, answer.position, index) for index, (due_ms, _) in enumerate(schedules)]


def counts_of(delivered: Iterable[Delivered]) -> Counter[bytes]:
    return Counter(one.value for one in delivered)


async def nodes(count: int) -> tuple[World, list[TimerNode]]:
    world = World()
    await world.serve()
    return world, [TimerNode(f"n{number}", world) for number in range(1, count + 1)]

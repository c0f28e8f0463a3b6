"""Delayed records whose log is on a Kafka cluster: SHARDS partitions of the system topic `__timer`, each owned by one
node, whose timer delivers what is due of it. Where they are, and who takes them over, gateway/cluster/node.py says; how
one is read and written, gateway/cluster/timer_shard.py; the timer is that of the node's own store (timer/service.py),
with files that are a cache: each tenure begins with a snapshot, and what is behind it.

    a delayed record    belongs to the shard of its partition, or of its topic and schedule key, once that was begun;
                        one with a message id or an Idempotency-Key when all nodes know that shards keep these. All that
                        were accepted before stay with the node's own timer
    begun               by the first node that is told to (`cluster.timers_broker`), for all nodes and for good
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from gateway.brokers.base import ALONE, BrokerUnreachable
from gateway.cluster.node import ClusterNode
from gateway.cluster.shard_ids import ShardIds
from gateway.cluster.shard_log import SHARDS, Shard, ShardLog, ShardSnapshots
from gateway.cluster.timer_shard import (
    ClaimedPartitions,
    TimerShardLog,
    queue_of_shard,
    shard_of_queue,
)
from gateway.main.shards import Shards
from gateway.routing.base import Routes
from gateway.routing.delivery import RoutedPartitions
from gateway.routing.table import RouteTable
from store.clock import Clock
from store.data_format import SHARD_IDS_FORMAT
from store.errors import Overloaded
from store.files import CacheFiles, Files
from store.limits import MiB
from store.memory_files import MemoryFiles
from store.topics import TIMER, TIMER_QUEUE
from store.types import Acks, Append, Appended
from timer.config import TimerConfig
from timer.key_index import SqliteKeyIndex
from timer.metrics import TimerMetrics
from timer.ports import KeyIndex, RunBlocking
from timer.saved import decode_saved
from timer.service import TimerService

log = logging.getLogger(__name__)

SAVE_INTERVAL_S = 30.0
SAVE_RECORDS_MAX = 20_000
"""Records behind the last snapshot after which the next one does not wait: what a takeover has to read."""

SAVED_SHARE = 4
"""... but at least this part of the schedules that a snapshot holds: so it is not most of what is written."""

DIRECTORY = "timer-cache"
"""In the data directory. Nothing in it outlives the process."""

IN_MEMORY = Path(":memory:")
"""What SQLite takes for a file of its own that is nowhere."""

HEAP_SHARE = 4
"""Of what a timer may hold in memory; and of a node that has all shards few are full at a time."""

FILE_UNITS = 16 * 1024
BODIES_BYTES_MAX = 4 * MiB
NEVER_MS = 1 << 52


def shard_of_partition(topic_id: int, partition: int) -> int:
    """The shard to which delayed records of a partition belong."""
    return crc32(b"%d/%d" % (topic_id, partition)) % SHARDS


def shard_of_key(topic_id: int, key: bytes) -> int:
    """The shard to which the delayed record of a schedule key belongs."""
    return crc32(b"%d:" % topic_id + key) % SHARDS


class ShardTimer:
    """A shard as a `Scheduler`, for who accepts delayed records on whichever node."""

    served_by = ALONE
    """Ids of its schedules name the shard, no node."""

    def __init__(self, number: int, node: ClusterNode, shards: TimerShards | None) -> None:
        self.name = f"{TIMER.name}/{number}"
        self._number = number
        self._node = node
        self._shards = shards

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See `Broker.schedule`."""
        owner = self._node.shard_owner(TIMER.topic_id, self._number)
        append = replace(append, queue=queue_of_shard(self._number))
        if owner == self._node.name and self._shards is not None:
            return await self._shards.schedule(append, acks, keys)
        if owner is None or not self._node.is_there(owner):
            raise _taken_over(self._number)
        return await self._node.peer(owner).schedule(append, acks=acks, keys=keys)


class ShardTimers:
    """Which shard takes a delayed record; None while shards are not begun."""

    def __init__(self, node: ClusterNode, routes: Routes, shards: TimerShards | None) -> None:
        self._node = node
        self._routes = routes
        self._all = [ShardTimer(number, node, shards) for number in range(SHARDS)]

    def __call__(self, topic_id: int, partition: int, key: str | None, has_ids: bool) -> ShardTimer | None:
        """See `RouteTable.timers`."""
        if has_ids and self._routes.lacking(SHARD_IDS_FORMAT):
            return None  # a shard may be that node's, which would forget them
        number = shard_of_partition(topic_id, partition) if key is None else shard_of_key(topic_id, key.encode())
        if self._node.timers_broker is None and self._node.shard_owner(TIMER.topic_id, number) is None:
            return None
        return self._all[number]


class Tenure:
    """A shard in a tenure of this node, and its timer. `start`, then `run` until cancelled, then `end`."""

    def __init__(
        self,
        shard: Shard,
        snapshots_of: Callable[[Shard, ShardLog], ShardSnapshots],
        routes: Routes,
        files: Files,
        clock: Clock,
        config: TimerConfig,
        *,
        window_ms: int,
        ids: ShardIds,
        metrics: TimerMetrics,
        run_blocking: RunBlocking = asyncio.to_thread,
        key_index: KeyIndex | None = None,
    ) -> None:
        self.shard = shard
        self.log = TimerShardLog(shard, clock, ids)
        own = replace(
            config,
            heap_count_max=max(4, config.heap_count_max // HEAP_SHARE),
            bodies_bytes_max=min(config.bodies_bytes_max, BODIES_BYTES_MAX),
            timer_log_file_units=min(config.timer_log_file_units, FILE_UNITS),
            expire_interval_ms=NEVER_MS,  # with a snapshot
        )
        self._directory = own.root
        routed = RoutedPartitions(routes, own=f"{TIMER.name}/{shard.number}", is_shard=True)
        self.timer = TimerService(
            own, self.log, files, clock,
            partitions=ClaimedPartitions(self.log, routed, clock, window_ms=window_ms), metrics=metrics,
            run_blocking=run_blocking, key_index=key_index,
        )  # fmt: skip
        self._snapshots = snapshots_of(shard, self.log.events)
        self._saving = asyncio.Lock()  # one that is under way has taken ids that the next one would not name
        self._saved_s = 0.0
        self._saved_offset = 0

    async def start(self) -> None:
        """Read the shard. Raises what reading raises: then there is nothing to end."""
        begun_s = self._saved_s = _now_s()
        try:
            await self.log.open()
            if (snapshot := await self._snapshots.load()) is not None:
                self._saved_offset = snapshot.next_offset
                await self.log.load_ids(self._snapshots.ids, snapshot.next_offset)
            await self.timer.start(None if snapshot is None else decode_saved(snapshot.content))
        except BaseException:
            await self.end()
            raise
        log.info(
            "timer taken up shard=%d schedules=%d records=%d seconds=%.3f",
            self.shard.number, self.timer.pending_count, self.timer.intake_lag_count, _now_s() - begun_s,
        )  # fmt: skip

    async def run(self) -> None:
        """Accept and deliver until cancelled."""
        await self.timer.run()

    def leave(self) -> None:
        """The tenure is over: what waits for Kafka ends."""
        self.log.close()

    async def end(self) -> None:
        """Forget it all; the log has what is needed."""
        self.leave()
        self.timer.abandon()
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    @property
    def is_save_due(self) -> bool:
        """Whether the next owner would have much to read."""
        behind_count = self.log.bounds(TIMER_QUEUE).max_offset - self._saved_offset
        is_much = behind_count >= max(SAVE_RECORDS_MAX, self.timer.pending_count // SAVED_SHARE)
        return is_much or (behind_count > 0 and _now_s() - self._saved_s >= SAVE_INTERVAL_S)

    async def save(self) -> None:
        """Have the log say what is over, save a snapshot, and give up the records that nothing needs any more. Raises
        what Kafka and the metadata raise: then the snapshot before counts."""
        async with self._saving:
            self._saved_s = _now_s()
            await self.log.tell_over()
            self.log.forget(self.timer.may_be_pending)
            claims_from = self.log.claims_from
            await self.timer.expire()
            needed = min(self.timer.needed_position, claims_from) - self.log.base
            saved = await self.timer.save()
            saved = saved._replace(delivered_from=min(saved.delivered_from, claims_from))
            if saved.queue_offset > self._saved_offset:
                ids = await self.log.tell_ids(saved.queue_offset)
                needed = min([needed, *(offset for offset, _ in ids)])
                await self._snapshots.save(saved.queue_offset, saved.encoded, needed=needed, ids=ids)
                # Its own parts are behind it, and no reason for another one.
                self._saved_offset = self.log.bounds(TIMER_QUEUE).max_offset


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class TimerShards:
    """The shards of a node. `run` until cancelled, then `close`. `has_data`: the timers' caches are in `directory`,
    else in memory."""

    def __init__(
        self,
        node: ClusterNode,
        routes: RouteTable,
        clock: Clock,
        config: TimerConfig,
        *,
        broker: str | None,
        directory: Path,
        has_data: bool,
        window_ms: int,
        ids_max: int,
        metrics: TimerMetrics,
    ) -> None:
        self._node = node
        self._routes = routes
        self._clock = clock
        self._config = config
        self._directory = directory / DIRECTORY
        self._has_data = has_data
        self._window_ms = window_ms
        self._ids_max = ids_max
        self._metrics = metrics
        self._tenure_count = 0
        self._shards: Shards[Tenure] = Shards(node, TIMER.topic_id, self._tenure, broker=broker)
        self.run, self.save = self._shards.run, self._shards.save
        node.timers_broker = broker
        node.schedule_in_shard = self.schedule
        routes.timers = ShardTimers(node, routes, self)
        self._forget_files()

    @property
    def is_settled(self) -> bool:
        """See `ShardKeeper.is_settled`."""
        return self._shards.is_settled

    def _forget_files(self) -> None:
        if self._has_data:
            shutil.rmtree(self._directory, ignore_errors=True)

    def here(self) -> dict[int, TimerService]:
        """The timers of the shards that are here, by number."""
        return {number: tenure.timer for number, tenure in self._shards.here().items()}

    def shard_here(self, shard: int) -> TimerService | None:
        """The timer of a shard; None: it was not begun, or another node that is there has it. Raises Overloaded while
        nobody has it."""
        owner = self._node.shard_owner(TIMER.topic_id, shard)
        if owner is None or (owner != self._node.name and self._node.is_there(owner)):
            return None
        return self.timer(shard)

    def timer(self, shard: int) -> TimerService:
        """The timer of a shard. Raises Overloaded while it is not here."""
        if (tenure := self._shards.get(shard)) is None:
            raise _taken_over(shard)
        return tenure.timer

    async def schedule(self, append: Append, acks: Acks, keys: Sequence[bytes | None]) -> Appended:
        """Accept delayed records of the shard that an append names; as `TimerService.schedule`. Raises Overloaded when
        it is not here."""
        shard = shard_of_queue(append.queue)
        assert shard is not None
        to = self._routes.attached(append.delays[0].topic_id)
        if to is not None and (kafka := self._node.attached.get(to.broker)) is not None:
            await kafka.check_delayed(append)
        return await self.timer(shard).schedule(replace(append, queue=TIMER_QUEUE), acks=acks, keys=keys)

    async def close(self) -> None:
        """Deliver nothing more."""
        await self._shards.close()
        self._forget_files()

    def _tenure(self, shard: Shard) -> Tenure:
        self._tenure_count += 1
        return Tenure(
            shard, self._node.snapshots_of, self._routes, CacheFiles() if self._has_data else MemoryFiles(),
            self._clock, replace(self._config, root=self._directory / str(self._tenure_count)),
            window_ms=self._window_ms, metrics=self._metrics,
            ids=ShardIds(window_ms=self._window_ms, ids_max=self._ids_max, all_count=self._id_count),
            key_index=None if self._has_data else SqliteKeyIndex(IN_MEMORY),
        )  # fmt: skip

    def _id_count(self) -> int:
        return sum(tenure.log.ids.id_count for tenure in self._shards.all_here())


def _taken_over(shard: int) -> Overloaded:
    return BrokerUnreachable(f"shard {shard} of delayed records is being taken over; nothing was stored")

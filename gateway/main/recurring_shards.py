"""Recurring schedules whose log is on a Kafka cluster: SHARDS partitions of the system topic `__recurring`, each owned
by one node, which fires what is due of it (gateway/main/shards.py). They are begun with those of delayed records, by
the first node that is told to (`cluster.timers_broker`), for all nodes and for good.

    a name    belongs to a node by a key of its own in the metadata, as long as it has one: those from before. Any other
              one belongs to its shard, once that was begun

A `fired` event is what a claim is to a delayed record (gateway/cluster/timer_shard.py): what has fired and is not known
to be delivered may have been. It is delivered again with the same message id, to the partition that was chosen when it
fired; when that is longer ago than partitions are certain to know ids, it is looked for there. Before a delivery the
owner writes one more event, which an owner that was replaced cannot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.api.cluster import RECURRING as NAMES
from gateway.cluster.node import ClusterNode
from gateway.cluster.shard_log import Shard, ShardLog, ShardSnapshots, shard_of
from gateway.cluster.timer_shard import Claim, ClaimedPartitions
from gateway.codec.tags import DELIVER_AT_HEADER, RECURRING_HEADER
from gateway.main.recurring_names import RecurringNames
from gateway.main.shards import Shards
from gateway.recurring.definitions import RECURRING_EVENTS, Definition, Recurring
from gateway.recurring.service import RecordRouting, RecurringSchedules, RecurringStats
from gateway.routing.base import Routes
from gateway.routing.delivery import RoutedPartitions
from store.clock import Clock
from store.errors import Overloaded
from store.record_batch import Headers
from store.topics import RECURRING
from store.types import QueueKey, Source

log = logging.getLogger(__name__)

SAVE_EVENTS_MAX = 20_000
"""Events behind the last snapshot after which the next one does not wait for its time: what a takeover has to read."""


CLAIMED_MAX = 10_000
"""Claims in memory after which those are forgotten that no schedule owes any more."""


def named_in(headers: Headers) -> list[bytes]:
    """The schedule and the due time of a record that a recurring schedule has sent."""
    found = dict(headers)
    name, due = found.get(RECURRING_HEADER), found.get(DELIVER_AT_HEADER)
    return [] if name is None or due is None else [name + b"@" + due]


class _Claims:
    """`gateway.cluster.timer_shard.Claims` of what has fired. `take` what a log that was read owes."""

    def __init__(self, clock: Clock) -> None:
        self.claimed: dict[Source, Claim] = {}
        self.schedules: RecurringSchedules
        self._clock = clock

    async def claim(self, sources: Sequence[Source]) -> None:
        """See `Claims.claim`."""
        claim = Claim(self._clock.now_ms(), 0)
        await self.schedules.confirm()
        if len(self.claimed) >= CLAIMED_MAX:  # of schedules that were deleted, or changed, meanwhile
            owed = {source for source, _ in self._owed()}
            self.claimed = {source: one for source, one in self.claimed.items() if source in owed}
        for source in sources:
            self.claimed.setdefault(source, claim)

    def over(self, sources: Sequence[Source]) -> None:
        """See `Claims.over`."""
        for source in sources:
            self.claimed.pop(source, None)

    def refused(self, sources: Sequence[Source]) -> None:
        """See `Claims.refused`."""
        self.over(sources)

    async def sources_since(self, position: int) -> set[Source]:
        """See `DeliveredSources`: the log of a shard says nothing of it."""
        return set()

    def take(self) -> None:
        """Note what may have been delivered: none of it before it was due."""
        self.claimed = {source: Claim(due_ms, 0) for source, due_ms in self._owed()}

    def _owed(self) -> Iterator[tuple[Source, int]]:
        table = self.schedules.table
        return ((one.source, one.due_ms) for name in table.owing for one in table.get(name).owed)


class Tenure:
    """The schedules of a shard in a tenure of this node; see `gateway.main.shards.Tenure`."""

    def __init__(
        self,
        shard: Shard,
        snapshots_of: Callable[[Shard, ShardLog], ShardSnapshots],
        routes: Routes,
        clock: Clock,
        *,
        routing: RecordRouting,
        count_max: int,
        window_ms: int,
        stats: RecurringStats,
    ) -> None:
        self.shard = shard
        events = ShardLog(shard)
        self._claims = _Claims(clock)
        partitions = ClaimedPartitions(
            self._claims, RoutedPartitions(routes, own=f"{RECURRING.name}/{shard.number}"), clock,
            window_ms=window_ms, header=RECURRING_HEADER, named=named_in,
        )  # fmt: skip
        self.schedules = self._claims.schedules = RecurringSchedules(
            events, snapshots_of(shard, events), self._claims, partitions, clock,
            routing=routing, count_max=count_max, fixes_partitions=True, stats=stats,
            kind=replace(RECURRING_EVENTS, queue=QueueKey(RECURRING.topic_id, shard.number)),
        )  # fmt: skip

    async def start(self) -> None:
        """Read the shard. Raises what reading raises: then there is nothing to end."""
        await self.schedules.start()
        self._claims.take()

    async def run(self) -> None:
        """Fire and deliver until cancelled."""
        await self.schedules.run()

    def leave(self) -> None:
        """The tenure is over: what is written on ends by itself."""

    async def end(self) -> None:
        """Forget it all; the log has what is needed."""
        self.schedules.abandon(_taken_over(f"shard {self.shard.number}"))

    @property
    def is_save_due(self) -> bool:
        """Whether the next owner would have much to read."""
        return self.schedules.unsaved_count >= SAVE_EVENTS_MAX

    async def save(self) -> None:
        """Save a snapshot."""
        await self.schedules.save()


class AllRecurring:
    """The recurring schedules that a node has: its own, if it has a store, and those of the shards that are here. As
    one `RecurringAdmin`, whose table is this, too. `run` until cancelled, then `close`."""

    def __init__(
        self,
        own: RecurringSchedules | None,
        node: ClusterNode,
        tenure_of: Callable[[Shard], Tenure],
        stats: RecurringStats,
    ) -> None:
        """`stats`: of all, which count together."""
        self._own = own
        self._node = node
        self.stats = stats
        self._names = None if own is None else RecurringNames(own, node)
        self._shards: Shards[Tenure] = Shards(node, RECURRING.topic_id, tenure_of, broker=node.timers_broker)
        self.save, self.close = self._shards.save, self._shards.close

    async def run(self) -> None:
        """Fire what is due, and follow which shards are here, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._shards.run(), name="recurring schedules on Kafka")
            if self._own is not None and self._names is not None:
                tasks.create_task(self._own.run(), name="recurring schedules of the store")
                tasks.create_task(self._names.run(), name="names of recurring schedules")

    @property
    def is_settled(self) -> bool:
        """See `ShardKeeper.is_settled`."""
        return self._shards.is_settled

    def _all(self) -> list[RecurringSchedules]:
        own = [] if self._own is None else [self._own]
        return own + [tenure.schedules for tenure in self._shards.here().values()]

    def _of(self, name: str) -> RecurringSchedules:
        """The schedules among which a name is. Raises Overloaded while they are not here."""
        if self._own is not None and not self._node.is_sharded(NAMES, name):
            return self._own
        if (tenure := self._shards.get(shard_of(name))) is None:
            raise _taken_over(f"recurring schedule {name}")
        return tenure.schedules

    async def put(self, name: str, definition: Definition, paused: bool | None) -> tuple[Recurring, bool]:
        """See `RecurringSchedules.put`. Raises Overloaded, too, while its shard is not here."""
        return await self._of(name).put(name, definition, paused)

    async def pause(self, name: str, paused: bool) -> Recurring:
        """See `RecurringSchedules.pause`. Raises as `put`."""
        return await self._of(name).pause(name, paused)

    async def delete(self, name: str) -> None:
        """See `RecurringSchedules.delete`. Raises as `put`."""
        await self._of(name).delete(name)

    @property
    def table(self) -> AllRecurring:
        """What there is."""
        return self

    def find(self, name: str) -> Recurring | None:
        """The one of this name, if there is one. Raises as `put`."""
        return self._of(name).table.find(name)

    def names(self, *, after: str = "") -> list[str]:
        """The names behind one, sorted."""
        return sorted(name for one in self._all() for name in one.table.names(after=after))

    def __len__(self) -> int:
        return sum(len(one.table) for one in self._all())

    @property
    def troubles(self) -> Mapping[str, str]:
        """See `RecurringSchedules.troubles`."""
        return {name: trouble for one in self._all() for name, trouble in one.troubles.items()}

    @property
    def owing(self) -> list[str]:
        """The schedules with records that are owed."""
        return [name for one in self._all() for name in one.table.owing]


def _taken_over(what: str) -> Overloaded:
    return Overloaded(f"the log of {what} is being taken over; nothing was written")

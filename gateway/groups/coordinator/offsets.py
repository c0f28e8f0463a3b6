"""How far groups are: committed offsets, where to start, lag, reset. In queue mode the first record that is not done is
the committed offset.

Where a group begins in a topic is fixed when a consumer first asks (see `start_positions`): a hand-over before the
first commit loses nothing.

A commit is decided and queued while it has the group's turn, so it stands in the log before any change of owners that
is decided later, and behind every one before: the next owner reads it, and no former owner commits after it. Where the
group has leases it has their turns too, until it is applied.

    crash                                  what a restart finds
    before the position to begin is durable        none: no consumer has begun, and the next one asks again
    after a commit is durable, before its answer   the commit
    after a reset is durable, before its answer    the reset, whole: offsets, leases and members are one entry
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from time import monotonic

from prometheus_client.samples import Sample

from gateway.groups.coordinator.context import STRETCH_PARTITIONS, Context, check_partition
from gateway.groups.coordinator.start_positions import partitions_without_offset, start_in
from gateway.groups.coordinator.stream import StreamMode
from gateway.groups.machines.broadcast import is_lone, member_of
from gateway.groups.machines.config import BROADCAST
from gateway.groups.machines.copies import RETRY_PREFIX, check_group_name
from gateway.groups.machines.errors import GroupActive, GroupUnavailable
from gateway.groups.machines.events import Barrier, CommittedOffset, Event, OffsetsCommitted
from gateway.groups.machines.progress import (
    Absent,
    Commit,
    Found,
    PartitionBounds,
    PartitionKey,
    StartTime,
    Unavailable,
    lag_of,
    where_to_start,
)
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.protocol import (
    CommittedPosition,
    MemberKey,
    OffsetCommit,
    PartitionLag,
    PlannedMove,
    ResetTo,
    StartSpec,
    TopicPartition,
)
from gateway.routing.base import TopicView
from store.errors import StoreStopped
from store.turns import stretches
from store.types import Bounds
from store.uncancelled import to_its_end, uncancelled

log = logging.getLogger(__name__)

LAG_METRIC = "mq_group_lag"
LAGS_TURN_S = 0.005
"""How long lags are looked at in one turn of the event loop. One takes 15 us, or, where the first record that is not
done is in a large batch, 2 ms."""

FEW = 64
"""A request for at most so many partitions does not wait for the stretch of work of another."""


class Offsets:
    """Progress of all groups of one node."""

    def __init__(self, context: Context, stream: StreamMode) -> None:
        self._context = context
        self._stream = stream
        self._committing: Counter[str] = Counter()  # commits under way, by group

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition], *, member_id: str | None = None
    ) -> list[CommittedPosition]:
        """See `Groups.committed`."""
        name = self._stream.name_of(group, member_id)
        positions = []
        for topic, partition in partitions:
            stored = self._context.table.stored(name, self._context.key(topic, partition))
            match stored:
                case Found():
                    positions.append(CommittedPosition(topic, partition, stored.offset, stored.metadata))
                case Absent():
                    positions.append(CommittedPosition(topic, partition, None, ""))
                case Unavailable():
                    raise GroupUnavailable(stored.reason)
        return positions

    async def start_offset(
        self,
        group: str,
        topic_partition: TopicPartition,
        start: StartSpec,
        *,
        member_id: str | None = None,
    ) -> int:
        """See `Groups.start_offset`."""
        name = self._stream.name_of(group, member_id)
        if isinstance(self._context.table.stored(name, self._context.key(*topic_partition)), Absent):
            start = await to_its_end(self._begin(name, topic_partition.topic, start))
        return await self.where(name, topic_partition, start)

    async def _begin(self, name: str, topic: str, start: StartSpec) -> StartSpec:
        """Fix, durably, where the group begins in a topic; what is to be said in place of `start` where nothing can
        be fixed: in a partition that came this instant, and when the store has stopped, which takes no more records."""
        context = self._context
        async with context.turns.of_group(name):
            if self._committing[name]:  # what was committed before is applied before we look
                await context.write([Barrier()], flushed=False)
            view = context.routes.topic(topic)
            if is_lone(name) and name not in context.table:
                return start  # a member that has left and keeps no position
            start = start_in(context.table, name, view, start)
            now_ms = context.clock.now_ms()
            keys = partitions_without_offset(context.table, name, view)
            offsets = await self.where_all(name, topic, [key.partition for key in keys], start)
            positions = [CommittedOffset(*key, offset, "", now_ms) for key, offset in zip(keys, offsets, strict=True)]
            begun = OffsetsCommitted(name, tuple(positions))
            try:
                with context.room.for_bytes(name, context.table.progress.added_bytes(begun)):
                    await context.write([begun] if positions else [])
            except StoreStopped as error:
                log.warning("group=%s topic=%s the place to begin is not kept: %s", name, topic, error)
        return start

    async def where_all(self, name: str, topic: str, partitions: Sequence[int], start: StartSpec) -> list[int]:
        """The same as `where` of many partitions of a topic."""
        offsets: list[int] = []
        for first in range(0, len(partitions), STRETCH_PARTITIONS):
            some = partitions[first : first + STRETCH_PARTITIONS]
            waits = isinstance(start, StartTime)  # for the disk
            async with nullcontext() if waits or len(partitions) <= FEW else stretches().next():
                offsets += [await self.where(name, TopicPartition(topic, partition), start) for partition in some]
        return offsets

    async def where(
        self,
        name: str,
        topic_partition: TopicPartition,
        start: StartSpec,
    ) -> int:
        """The stored offset, else what `start` says; nothing is fixed by it. `name` as the group's members have it."""
        stored = self._context.table.stored(name, self._context.key(*topic_partition))
        time_ms = start.time_ms if isinstance(start, StartTime) and not isinstance(stored, Found) else None
        is_retry_topic = topic_partition.topic.startswith(RETRY_PREFIX)
        found = where_to_start(
            stored,
            start,
            await self._bounds(*topic_partition, time_ms),
            is_retry_topic=is_retry_topic,
        )
        if isinstance(found, Unavailable):
            raise GroupUnavailable(found.reason)
        return found

    async def commit(self, group: str, commits: Sequence[OffsetCommit], member: MemberKey | None = None) -> None:
        """See `Groups.commit`."""
        check_group_name(group)
        context = self._context
        name = self._stream.name_of(group, None if member is None else member.member_id)
        self._committing[name] += 1
        with ExitStack() as room:
            room.callback(self._committed, name)
            async with context.turns.of_group(name):
                wanted = await self._wanted(commits)
                keys = [commit.key for commit in wanted.values() if context.table.leases(name, commit.key)]
                async with context.turns.of_leases(name, *keys):
                    events = self._decide_commit(name, wanted, member)
                    more = sum(map(context.table.progress.added_bytes, _commits_in(events)))
                    room.enter_context(context.room.for_bytes(name, more))
                    written = context.log.write(events)
                    if keys:
                        await uncancelled(written)
            await uncancelled(written)

    async def _wanted(self, commits: Sequence[OffsetCommit]) -> dict[Partition, Commit]:
        """Commits by partition, with the id of its topic; of several for one the last. Raises UnknownQueue,
        UnknownPartition."""
        wanted = {}
        for first in range(0, len(commits), STRETCH_PARTITIONS):
            async with nullcontext() if len(commits) <= FEW else stretches().next():
                for commit in commits[first : first + STRETCH_PARTITIONS]:
                    key = self._context.key(commit.topic, commit.partition)
                    wanted[Partition(commit.topic, *key)] = Commit(key, commit.offset, commit.metadata)
        return wanted

    def _committed(self, name: str) -> None:
        self._committing[name] -= 1
        if not self._committing[name]:
            del self._committing[name]

    def _decide_commit(self, name: str, wanted: Mapping[Partition, Commit], member: MemberKey | None) -> list[Event]:
        """The events of a commit."""
        context = self._context
        membership = context.table.get_or_new(name).membership
        if member is not None:
            membership.check_owner(member.member_id, member.generation, wanted)
            membership.heartbeat(member.member_id, member.generation, context.monotonic_ms())
        elif owner := next((owner for p in wanted if (owner := membership.owner(p)) is not None), None):
            raise GroupActive(f"group={name} member={owner.member_id} owns one of these partitions and commits there")
        now_ms = context.clock.now_ms()
        commits = list(wanted.values())
        is_alone = self._committing[name] == 1  # else what is known is not the last that was committed
        events: list[Event] = [
            *context.table.progress.decide_commit(name, commits, now_ms, keep_unchanged=not is_alone)
        ]
        return events + self._ends_of_queue_mode(name, commits, now_ms)

    def _ends_of_queue_mode(self, name: str, commits: Iterable[Commit], now_ms: int) -> list[Event]:
        """Where the group was in queue mode, its leases follow the committed offset. Raises GroupActive while records
        are in consumers' hands."""
        events: list[Event] = []
        for commit in commits:
            leases = self._context.table.leases(name, commit.key)
            if leases is None or leases.low_offset == commit.offset:
                continue
            if leases.leased_count(now_ms):
                raise GroupActive(f"group={name} has records on lease in partition {commit.key.partition}; ack those")
            events += leases.decide_reset(commit.offset, now_ms)
        return events

    async def forget(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        """See `Groups.forget_offsets`."""
        context = self._context
        table = context.table
        table.get(group)
        name = self._stream.name_of(group, None)
        keys = [context.key(topic, partition) for partition in partitions]
        async with context.turns.of_group(name):
            wanting = [
                member.member_id
                for member in table.get(name).membership.members()
                if member.subscription.matches(topic)
            ]
            if wanting:
                raise GroupActive(f"group={name} member={wanting[0]} consumes topic={topic}")
            if any(table.leases(name, key) is not None for key in keys):
                raise GroupActive(f"group={name} consumes topic={topic} in queue mode")
            now_ms, may_be_more = context.clock.now_ms(), self._committing[name] > 0
            await context.write(table.progress.decide_forget(name, keys, now_ms, keep_unknown=may_be_more))

    async def lag(self, group: str, topics: Sequence[str] | None = None) -> list[PartitionLag]:
        """See `Groups.lag`."""
        context = self._context
        context.table.get(group)
        names = [group]
        if context.table.config(group).mode == BROADCAST:
            names = context.table.lone_groups(group)
        lags = []
        turn_s = monotonic()
        for name in names:
            for view in self.topics_of(name):
                if topics is None or view.name in topics:
                    for partition in range(view.partitions):
                        lags.append(await self.lag_of(name, view, partition))
                        if monotonic() - turn_s >= LAGS_TURN_S:
                            async with stretches().next():
                                pass  # the next ones in another go: what is in memory is read without a wait
                            turn_s = monotonic()
        return sorted(lags, key=lambda lag: (lag.topic, lag.partition, lag.owner or ""))

    def topics_of(self, name: str) -> list[TopicView]:
        """Topics a group consumes, or has consumed."""
        context = self._context
        ids = context.table.topic_ids(name)
        members = context.table.get(name).membership.members()
        return [
            topic
            for topic in context.routes.topics()
            if topic.topic_id in ids or any(member.subscription.matches(topic.name) for member in members)
        ]

    async def lags(self, name: str, limit: int) -> tuple[list[Sample], int]:
        """The lag of up to `limit` partitions in which a group has a position, as samples of LAG_METRIC, and how many
        partitions of its topics were not looked at."""
        context = self._context
        lags: list[Sample] = []
        omitted_count = 0
        for topic_id in sorted(context.table.topic_ids(name)):
            view = context.find_topic_by_id(topic_id)
            if view is None:
                continue
            for first in range(0, view.partitions, STRETCH_PARTITIONS):
                some = range(first, min(first + STRETCH_PARTITIONS, view.partitions))
                if len(lags) >= limit:
                    omitted_count += len(some)
                    continue
                async with stretches().next():
                    lags += [lag for partition in some if (lag := await self._count_of(name, view, partition))]
        return lags[:limit], omitted_count + max(len(lags) - limit, 0)

    async def _count_of(self, name: str, view: TopicView, partition: int) -> Sample | None:
        """None where the group has no position."""
        key = PartitionKey(view.topic_id, partition)
        stored = self._context.table.stored(name, key)
        if not isinstance(stored, Found):
            return None
        bounds = await self._context.records.bounds(view.name, partition)
        labels = {"group": name, "topic": view.name, "partition": str(partition)}
        return Sample(LAG_METRIC, labels, self._count(name, key, stored, bounds))

    def _count(self, name: str, key: PartitionKey, stored: Found | Absent, bounds: Bounds) -> int:
        """Records a group has not consumed: in queue mode those that are not done."""
        queue = self._context.table.queue(name, key.topic_id)
        if queue is None or key.partition >= queue.end:
            return lag_of(stored, bounds, bounds.min_offset).lag
        leases = queue.open.get(key.partition)
        open_count = 0 if leases is None else leases.open_count
        return open_count + max(bounds.max_offset - max(queue.next_offset(key.partition), bounds.min_offset), 0)

    async def lag_of(self, name: str, view: TopicView, partition: int) -> PartitionLag:
        """How far a group is in one partition. Raises GroupUnavailable."""
        context = self._context
        key = PartitionKey(view.topic_id, partition)
        bounds = await context.records.bounds(view.name, partition)
        stored = context.table.stored(name, key)
        if isinstance(stored, Unavailable):
            raise GroupUnavailable(stored.reason)
        lag = lag_of(stored, bounds, bounds.min_offset)
        owner = context.table.get(name).membership.owner(Partition(view.name, *key))
        leases = context.table.leases(name, key)
        now_ms = context.clock.now_ms()
        first = bounds.min_offset if lag.committed is None else max(lag.committed, bounds.min_offset)
        oldest = await context.records.at(view.name, key, first) if first < bounds.max_offset else None
        return PartitionLag(
            topic=view.name,
            partition=partition,
            committed=lag.committed,
            metadata=stored.metadata if isinstance(stored, Found) else "",
            beginning=bounds.min_offset,
            end=bounds.max_offset,
            lag=self._count(name, key, stored, bounds),
            lost=lag.lost_count,
            in_flight=0 if leases is None else leases.leased_count(now_ms),
            delayed=0 if leases is None else leases.waiting_count(now_ms),
            oldest_unacked_ms=None if oldest is None else oldest.store_time_ms,
            owner=member_of(name) or (None if owner is None else owner.member_id),
        )

    async def reset(
        self,
        group: str,
        topic: str,
        to: ResetTo,
        *,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[PlannedMove]:
        """See `Groups.reset`."""
        context = self._context
        context.table.get(group)
        view = context.routes.topic(topic)
        numbers = sorted(set(range(view.partitions) if partitions is None else partitions))
        for number in numbers:
            check_partition(view, number)
        names = [group]
        if context.table.config(group).mode == BROADCAST:
            names = context.table.lone_groups(group)
        planned: list[PlannedMove] = []
        for name in names:
            planned += await self._reset(name, view, to, numbers, dry_run=dry_run, force=force)
        return planned

    async def _reset(
        self, name: str, view: TopicView, to: ResetTo, numbers: Sequence[int], *, dry_run: bool, force: bool
    ) -> list[PlannedMove]:
        context = self._context
        table = context.table
        time_ms = to.time_ms if isinstance(to, StartTime) else None
        keys = [PartitionKey(view.topic_id, number) for number in numbers]
        positions = {key: await self._bounds(view.name, key.partition, time_ms) for key in keys}
        async with context.whole_group(name):
            now_ms = context.clock.now_ms()
            state = table.get(name)
            moves = table.progress.plan_reset(name, to, positions)
            planned = []
            for move in moves:
                stored = table.stored(name, move.key)
                before = stored.offset if isinstance(stored, Found) else None
                planned.append(PlannedMove(view.name, move.key.partition, before, move.after))
            if dry_run:
                return planned
            queue = table.queue_or_new(name, view.topic_id)
            leased_count = sum(queue.open[at].leased_count(now_ms) for at in numbers if at in queue.open)
            if leased_count and not force:
                raise GroupActive(f"group={name} has {leased_count} records on lease; force the reset")
            events: list[Event] = []
            if force:
                events += self._stream.decide_evict(name)
            member_count = len(state.membership.members())
            events += table.progress.decide_reset(name, moves, member_count=member_count, force=force, now_ms=now_ms)
            if queue.end and list(numbers[: queue.end]) == list(range(queue.end)):  # all partitions: one event
                events.append(queue.decide_begin(0, [move.after for move in moves[: queue.end]], now_ms))
            else:
                for move in moves:
                    if (leases := table.leases(name, move.key)) is not None:
                        events += leases.decide_reset(move.after, now_ms)
            await context.write(events)
            context.leases_changed.happened(name)
            return planned

    async def _bounds(self, topic: str, partition: int, time_ms: int | None) -> PartitionBounds:
        records = self._context.records
        at_time = None if time_ms is None else await records.offset_at_time(topic, partition, time_ms)
        return PartitionBounds(await records.bounds(topic, partition), at_time)


def _commits_in(events: Iterable[Event]) -> list[OffsetsCommitted]:
    return [event for event in events if isinstance(event, OffsetsCommitted)]

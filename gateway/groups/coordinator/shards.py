"""Groups whose log is not this node's own but a shard, a log that any node of the cluster may take over: by its name a
group belongs to a shard, and by the shard to a node. The shards that are here are written and read by
gateway/brokers/event_log.py, as the node's own log is; where they are, gateway/main/group_shards.py knows.

    take up   read the shard's snapshot and what is behind it; then its groups are as their former node left them
    give up   write nothing more of it, let those who have a turn end, forget its groups

Invariants
    G1  what is in memory of a shard is what its log has, in one tenure: whatever makes that uncertain (an append
        without an answer, another owner) gives the shard up, and it is read anew
    G2  nothing is decided on a state of one tenure and written in another: no task that has a turn of one of the groups
        is left when a shard is read again
    G3  while a shard is not here, `Belonging` refuses its groups
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.brokers.event_log import EventLog, Log, Snapshots
from gateway.cluster.shard_log import shard_of
from gateway.groups.coordinator.context import GROUP_EVENTS, Context
from gateway.groups.coordinator.handover import Handover
from gateway.groups.machines.broadcast import group_of
from gateway.groups.machines.events import Event, Forgotten
from store.errors import Overloaded
from store.turns import others_turn
from store.types import QueueKey

log = logging.getLogger(__name__)


class GroupLogs:
    """Where the events of groups go: to the node's own log, or to that of their shard."""

    def __init__(self, own: EventLog[Event]) -> None:
        self._own = own
        self.is_sharded: Callable[[str], bool] = lambda group: False
        """Whether a group belongs to a shard."""

        self.shards: dict[int, EventLog[Event]] = {}

    def write(self, events: Sequence[Event], *, flushed: bool = True) -> asyncio.Future[None]:
        """See `EventLog.write`; the events are of one group. Overloaded: its shard is not here."""
        group = group_of(events[0].group) if events else ""
        if not group or not self.is_sharded(group):  # what is of no group is the node's
            return self._own.write(events, flushed=flushed)
        if (shard := self.shards.get(shard_of(group))) is not None:
            return shard.write(events, flushed=flushed)
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(_taken_over(f"group {group}"))
        return refused


def _taken_over(what: str) -> Overloaded:
    return Overloaded(f"the log of {what} is being taken over; nothing was written")


class Shards:
    """The shards that are here. `apply` changes the groups by one event."""

    def __init__(
        self, context: Context, logs: GroupLogs, handover: Handover, *, apply: Callable[[Event], None]
    ) -> None:
        self._context = context
        self._logs = logs
        self._handover = handover
        self._apply = apply
        self._running: dict[int, asyncio.Task[None]] = {}
        self.failure: Exception | None = None
        """An event that is in a log cannot be applied: only a restart can help."""

    def set_sharded(self, is_sharded: Callable[[str], bool]) -> None:
        """Say which groups belong to shards."""
        self._logs.is_sharded = is_sharded

    @property
    def receipt_keys(self) -> Sequence[bytes]:
        """What this node signs receipts with."""
        return self._handover.keys

    def accept_receipts(self, keys: Sequence[bytes]) -> None:
        """Receipts that other nodes have signed are good here, too."""
        self._handover.signer.accept(keys)

    def log_of(self, shard: int) -> EventLog[Event] | None:
        """The events of a shard that is here."""
        return self._logs.shards.get(shard)

    def names(self) -> set[str]:
        """The groups of all shards, and their lone members."""
        return {name for name in self._context.table.names() if self._logs.is_sharded(group_of(name))}

    def _names(self, shard: int) -> list[str]:
        return [name for name in self._context.table.names() if self._is_of(shard, name)]

    def _is_of(self, shard: int, name: str) -> bool:
        return shard_of(group_of(name)) == shard and self._logs.is_sharded(group_of(name))

    async def take_up(self, shard: int, broker: Log, snapshots: Snapshots) -> None:
        """Read a shard that is not here, and go on with its groups. Raises what reading raises: then it is not here."""
        context = self._context
        is_read = False

        def apply(event: Event) -> None:
            if is_read:
                self._apply(event)
            else:
                counted = replace(context.stats)  # what is read is not what has happened
                self._apply(event)
                context.stats.set_to(counted)

        events = EventLog(
            replace(GROUP_EVENTS, queue=QueueKey(GROUP_EVENTS.queue.topic_id, shard)),
            broker,
            context.clock,
            snapshots,
            apply=lambda event, _: apply(event),
            whole_state=lambda: context.table.snapshot(
                self._names(shard), light_of=lambda group: self._is_of(shard, group)
            ),
        )
        try:
            count = await events.replay(lambda _: None)
        except BaseException:
            await self._forget(shard)
            raise
        is_read = True
        self._handover.took_up(names := {group_of(name) for name in self._names(shard)})
        self._logs.shards[shard] = events
        self._running[shard] = asyncio.create_task(self._run(shard, events), name=f"groups events of shard {shard}")
        log.info("groups taken up shard=%d groups=%d events=%d", shard, len(names), count)

    async def _run(self, shard: int, events: EventLog[Event]) -> None:
        try:
            await events.run()
        except Exception as error:
            log.exception("events of groups have stopped shard=%d", shard)
            self.failure = error

    async def give_up(self, shard: int) -> None:
        """Forget a shard, which may be another node's by now. `Belonging` refuses its groups already."""
        events = self._logs.shards.pop(shard)
        await self._end(shard)
        events.abandon(_taken_over(f"shard {shard}"))
        await self._context.turns.ended(lambda name: self._is_of(shard, name))
        await self._forget(shard)
        log.info("groups given up shard=%d", shard)

    async def _end(self, shard: int) -> None:
        running = self._running.pop(shard)
        running.cancel()
        await asyncio.wait([running])

    async def _forget(self, shard: int) -> None:
        names = self._names(shard)
        for name in names:
            self._apply(Forgotten(name, None))
            self._context.members_changed.happened(name)  # who waits looks, and learns where it is
        for group in {group_of(name) for name in names}:
            for tell in self._handover.on_gone:
                tell(group)
        for _ in self._context.table.light_offsets.drop(lambda group: self._is_of(shard, group)):
            await others_turn()

    async def save(self, shard: int) -> None:
        """Save a snapshot of a shard that is here."""
        if (events := self.log_of(shard)) is not None:
            await asyncio.shield(events.save())

    async def close(self) -> None:
        """Write what waits. No snapshots: who takes the shards over waits for this (`save` them before)."""

        async def close(shard: int, events: EventLog[Event]) -> None:
            await self._end(shard)
            await events.close(saves=False)

        await asyncio.gather(*[close(shard, events) for shard, events in self._logs.shards.items()])
        self._logs.shards.clear()

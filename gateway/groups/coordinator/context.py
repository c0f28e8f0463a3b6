"""What the parts of the coordinator share: the groups, the log of their events, the turns in which they change, and who
waits for a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import Protocol
from weakref import WeakValueDictionary

from gateway.groups.coordinator.event_log import EventLog
from gateway.groups.coordinator.records import RecordReader
from gateway.groups.machines.errors import GroupFull
from gateway.groups.machines.events import Event
from gateway.groups.machines.progress import PartitionKey
from gateway.groups.machines.table import GroupTable
from gateway.routing.base import Routes, TopicView, UnknownPartition
from gateway.routing.tail_watcher import TailWatcher
from store.clock import Clock
from store.errors import UnknownQueue
from store.uncancelled import uncancelled


class OwnTopics(Protocol):
    """Makes the topics that belong to groups, whose names are reserved."""

    async def create_own_topic(self, name: str, partitions: int) -> TopicView:
        """The topic, made if need be; one of any shape is returned as it is. Durable on return."""
        ...


class Turns:
    """Locks by what they guard: a group's members and settings, or its leases in one partition. Who decides an event
    keeps the lock until it is applied: an event that was decided on a state that was about to change does not fit the
    state it meets, now or at any later start. Locks that nobody holds or waits for take no memory."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, PartitionKey | None], asyncio.Lock] = WeakValueDictionary()

    def of_group(self, group: str) -> asyncio.Lock:
        """Members, settings, deletion."""
        return self._of((group, None))

    def of_leases(self, group: str, key: PartitionKey) -> asyncio.Lock:
        """Leases in one partition. Taken after the group's, when both are needed, and in the order of the keys."""
        return self._of((group, key))

    def is_busy(self, group: str, key: PartitionKey) -> bool:
        """Whether somebody has the turn of these leases now."""
        lock = self._locks.get((group, key))
        return lock is not None and lock.locked()

    def _of(self, what: tuple[str, PartitionKey | None]) -> asyncio.Lock:
        lock = self._locks.get(what)
        if lock is None:
            lock = self._locks[what] = asyncio.Lock()
        return lock


class Changes:
    """Wakes whoever waits for a change of something, all at once."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def listen(self, name: str, waiter: asyncio.Future[None]) -> None:
        """Have a future done with the next change."""
        self._waiting.setdefault(name, set()).add(waiter)

    def forget(self, name: str, waiter: asyncio.Future[None]) -> None:
        """Listen no more."""
        if (waiting := self._waiting.get(name)) is not None:
            waiting.discard(waiter)
            if not waiting:
                del self._waiting[name]

    def all_happened(self) -> None:
        """Wake everybody."""
        for name in list(self._waiting):
            self.happened(name)

    def happened(self, name: str) -> None:
        """Wake who listens to this."""
        for waiter in self._waiting.pop(name, ()):
            if not waiter.done():
                waiter.set_result(None)


@dataclass(slots=True)
class Stats:
    """Counters since start, for metrics."""

    rebalance_count: int = 0
    expired_member_count: int = 0
    delivered_count: int = 0
    redelivered_count: int = 0
    settled_count: int = 0
    retry_count: int = 0
    dead_letter_count: int = 0
    lost_count: int = 0
    """Records that retention took while a group still had to consume them."""

    def reset(self) -> None:
        """Begin to count anew."""
        for item in fields(self):
            setattr(self, item.name, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One coordinator's common ground. `monotonic_ms` is for lengths of time, `clock` for data."""

    table: GroupTable
    log: EventLog
    routes: Routes
    records: RecordReader
    tail_watcher: TailWatcher
    own_topics: OwnTopics
    clock: Clock
    monotonic_ms: Callable[[], int]
    draining: asyncio.Event
    groups_max: int
    turns: Turns = field(default_factory=Turns)
    members_changed: Changes = field(default_factory=Changes)
    leases_changed: Changes = field(default_factory=Changes)
    stats: Stats = field(default_factory=Stats)

    async def write(self, events: Sequence[Event], *, flushed: bool = True) -> None:
        """Write events and wait until they are applied, even when cancelled meanwhile. Raises as `EventLog.write`."""
        if events:
            await uncancelled(self.log.write(events, flushed=flushed))

    @asynccontextmanager
    async def whole_group(self, *names: str) -> AsyncIterator[None]:
        """The turns of everything these groups have: members, settings, and all leases. Leases in a further partition
        begin under the group's turn only, so none are missed."""
        async with AsyncExitStack() as held:
            for name in names:
                await held.enter_async_context(self.turns.of_group(name))
            for name in names:
                for key in sorted(self.table.get(name).leases) if name in self.table else ():
                    await held.enter_async_context(self.turns.of_leases(name, key))
            yield

    @asynccontextmanager
    async def leases_of(self, group: str, keys: Iterable[PartitionKey]) -> AsyncIterator[None]:
        """The turns of leases in some partitions, in the order of the keys: no two callers wait for each other."""
        async with AsyncExitStack() as held:
            for key in sorted(keys):
                await held.enter_async_context(self.turns.of_leases(group, key))
            yield

    def check_room(self, group: str) -> None:
        """Raises GroupFull when this would be one group too many."""
        if group not in self.table and len(self.table) >= self.groups_max:
            raise GroupFull(f"there are {self.groups_max} groups, which is the limit (groups_max); delete one first")

    def key(self, topic: str, partition: int) -> PartitionKey:
        """The partition by its topic's id. Raises UnknownQueue, UnknownPartition."""
        view = self.routes.topic(topic)
        check_partition(view, partition)
        return PartitionKey(view.topic_id, partition)

    def find_topic(self, name: str) -> TopicView | None:
        """A topic by name, if there is one."""
        try:
            return self.routes.topic(name)
        except UnknownQueue:
            return None

    def topic_name(self, topic_id: int) -> str | None:
        """A topic's name; None when it is gone."""
        return next((topic.name for topic in self.routes.topics() if topic.topic_id == topic_id), None)


def check_partition(view: TopicView, partition: int) -> None:
    """Raises UnknownPartition."""
    if not 0 <= partition < view.partitions:
        raise UnknownPartition(f"topic={view.name} has partitions 0 to {view.partitions - 1}, not {partition}")

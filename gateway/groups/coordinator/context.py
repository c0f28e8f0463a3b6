"""What the parts of the coordinator share: the groups, the log of their events, the turns in which they change, and who
waits for a change."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Generic, Protocol, TypeVar

from gateway.brokers.event_log import EventKind, RunBlocking
from gateway.groups.coordinator.records import RecordReader
from gateway.groups.machines.broadcast import group_of
from gateway.groups.machines.errors import GroupFull, GroupUnowned
from gateway.groups.machines.events import Barrier, Event, decode_events, encode_event
from gateway.groups.machines.progress import PartitionKey, Place
from gateway.groups.machines.table import GroupTable
from gateway.routing.base import Routes, TopicView, UnknownPartition
from gateway.routing.tail_watcher import TailWatcher
from store.clock import Clock
from store.errors import UnknownQueue
from store.topics import OFFSETS_QUEUE
from store.uncancelled import uncancelled

T = TypeVar("T")

GROUP_EVENTS: EventKind[Event] = EventKind(
    whose="consumer groups",
    snapshot_name="groups",
    queue=OFFSETS_QUEUE,
    encode=encode_event,
    decode=decode_events,
    barrier=Barrier(),
)


class EventWriter(Protocol):
    """Where the events of groups are written; see `EventLog.write`."""

    def write(self, events: Sequence[Event], *, flushed: bool = True) -> asyncio.Future[None]:
        """See `EventLog.write`."""
        ...


class OwnTopics(Protocol):
    """Makes the topics that belong to groups, whose names are reserved."""

    async def create_own_topic(self, name: str, partitions: int) -> TopicView:
        """The topic, made if need be; one of any shape is returned as it is. Durable on return."""
        ...


class Belonging:
    """Which groups are this node's: those of a server that is alone, all. One that goes to another node leaves first:
    it is not changed until it is known whether it has gone."""

    def __init__(self) -> None:
        self.elsewhere: Callable[[str], Exception | None] = lambda group: None
        """Why a group is not to be asked for here; None: it is this node's, or has no owner yet. GroupElsewhere, or
        Overloaded while it is being read."""

        self.is_owned: Callable[[str], bool] = lambda group: True
        """Whether a group is this node's, so that something of it may be written."""

        self._leaving: dict[str, asyncio.Event] = {}

    def check(self, name: str) -> None:
        """Raises GroupElsewhere, Overloaded. `name`: as the table has it."""
        if (error := self.elsewhere(group_of(name))) is not None:
            raise error

    def is_elsewhere(self, name: str) -> bool:
        """Whether it is another node's."""
        return self.elsewhere(group_of(name)) is not None

    @contextmanager
    def leaving(self, group: str) -> Iterator[None]:
        """Who writes of the group waits while the block runs."""
        gone = self._leaving[group] = asyncio.Event()
        try:
            yield
        finally:
            del self._leaving[group]
            gone.set()

    async def settled(self, name: str) -> None:
        """Wait until the group is not leaving, and may be written. Raises GroupElsewhere, GroupUnowned."""
        while self._leaving and (gone := self._leaving.get(group_of(name))) is not None:
            await gone.wait()
        self.check(name)
        if not self.is_owned(group := group_of(name)):
            raise GroupUnowned(f"group {group} is no node's")


_Key = tuple[str, Place | None]
"""A group, and what of it: a partition, a light queue, or None: its members and settings."""


class _Locks(Generic[T]):
    """One lock for each of many things. One that is not held takes no memory, and to take and release it costs next to
    nothing: there is a row for it while it is held, with those who wait, if any. It is handed on in their order."""

    def __init__(self) -> None:
        self._held: dict[T, deque[asyncio.Future[None]] | None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def held(self) -> list[T]:
        """Those that somebody has."""
        return list(self._held)

    def is_held(self, key: T) -> bool:
        """Whether somebody has it."""
        return key in self._held

    async def acquire(self, key: T) -> None:
        """Wait for it. Whoever knows that it is not held calls `take`."""
        if key not in self._held:
            self.take(key)
            return
        waiting = self._held[key]
        if waiting is None:
            waiting = self._held[key] = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was handed over all the same
                self.release(key)
            raise

    def take(self, key: T) -> None:
        """Have one that nobody has."""
        self._held[key] = None

    def release(self, key: T) -> None:
        """Hand it on to who has waited longest, if anybody still does."""
        waiting = self._held[key]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._held[key]


class _GroupTurn:
    """Of a group; see `Turns.of_group`."""

    __slots__ = ("_group", "_turns")

    def __init__(self, turns: Turns, group: str) -> None:
        self._turns = turns
        self._group = group

    async def __aenter__(self) -> None:
        await self._turns.locks.acquire((self._group, None))
        try:
            self._turns.belonging.check(self._group)
        except BaseException:
            self._turns.locks.release((self._group, None))
            raise

    async def __aexit__(self, *error: object) -> None:
        self._turns.locks.release((self._group, None))


class _LeasesTurn:
    """Of some partitions of a group; see `Turns.of_leases`. Not made of other context managers: each receive and each
    ack takes one, and they would cost as much as its records."""

    __slots__ = ("_group", "_held", "_keys", "_turns")

    def __init__(self, turns: Turns, group: str, keys: Sequence[Place]) -> None:
        self._turns = turns
        self._group = group
        self._keys = keys
        self._held: list[_Key] = []

    async def __aenter__(self) -> None:
        turns, group, locks = self._turns, self._group, self._turns.locks
        if turns.gates.is_held(group):
            await turns.gates.acquire(group)
            turns.gates.release(group)
        turns.part_counts[group] = turns.part_counts.get(group, 0) + 1
        try:
            for place in self._keys:
                key = (group, place)
                if locks.is_held(key):
                    await locks.acquire(key)
                else:
                    locks.take(key)
                self._held.append(key)
            turns.belonging.check(group)
        except BaseException:
            self._release()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._release()

    def _release(self) -> None:
        for key in self._held:
            self._turns.locks.release(key)
        self._turns.end_part(self._group)


class Turns:
    """Locks by what they guard: a group's members and settings, or its leases in one partition. Who decides an event
    keeps the lock until it is applied: an event that was decided on a state that was about to change does not fit the
    state it meets, now or at any later start. Taking a turn raises GroupElsewhere when the group is another node's by
    then.

    The turns of all leases of a group are held in part by many, or as a whole by one, who has the gate: who waits for
    the whole comes before those who ask for a part later."""

    def __init__(self, belonging: Belonging | None = None) -> None:
        self.belonging = belonging or Belonging()
        self.locks: _Locks[_Key] = _Locks()
        self.gates: _Locks[str] = _Locks()
        self.part_counts: dict[str, int] = {}
        self._free: dict[str, asyncio.Future[None]] = {}  # of who has the gate and waits for the last part to end

    def of_group(self, group: str) -> _GroupTurn:
        """Members, settings, deletion."""
        return _GroupTurn(self, group)

    @asynccontextmanager
    async def of_any(self, group: str) -> AsyncIterator[None]:
        """Everything of a group, whichever node it belongs to."""
        await self.locks.acquire((group, None))
        try:
            async with self.of_all_leases(group):
                yield
        finally:
            self.locks.release((group, None))

    def of_leases(self, group: str, *keys: Place) -> _LeasesTurn:
        """Leases in some partitions or light queues: taken in the order of the keys, so no two callers wait for each
        other, and after the group's turn when both are needed. Who has some asks for no others."""
        return _LeasesTurn(self, group, sorted(keys) if len(keys) > 1 else keys)

    @asynccontextmanager
    async def of_all_leases(self, group: str) -> AsyncIterator[None]:
        """Leases in all partitions, also in those where there are none yet."""
        await self.gates.acquire(group)
        try:
            if group in self.part_counts:
                free = self._free[group] = asyncio.get_running_loop().create_future()
                try:
                    await free
                finally:
                    del self._free[group]
            yield
        finally:
            self.gates.release(group)

    def end_part(self, group: str) -> None:
        """Somebody has no part of a group's leases any more."""
        if self.part_counts[group] > 1:
            self.part_counts[group] -= 1
            return
        del self.part_counts[group]
        if (free := self._free.get(group)) is not None and not free.done():
            free.set_result(None)

    async def ended(self, is_meant: Callable[[str], bool]) -> None:
        """Wait until no task has a turn of these groups that had one, or waited for one, at the call. Have `belonging`
        refuse them first, so that none is taken anew."""
        for key in self.locks.held():
            if is_meant(key[0]):
                await self.locks.acquire(key)
                self.locks.release(key)
        for group in {*self.part_counts, *self.gates.held()}:
            if is_meant(group):
                async with self.of_all_leases(group):
                    pass

    def is_busy(self, group: str, key: Place) -> bool:
        """Whether the turn of these leases is taken now."""
        return self.locks.is_held((group, key))


STRETCH_PARTITIONS = 250
"""Partitions that are looked at in one stretch of long work: 1 ms, or 3 where a group begins."""

WOKEN_A_TURN = 50
"""Who waits and is woken in one turn of the event loop: a thousand members of a group take 20 us each to look, and some
of them tell their clients."""


class Changes:
    """Wakes the tasks that wait for a change of something."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def listen(self, name: str, waiter: asyncio.Future[None]) -> None:
        """Have a future done with the next change."""
        self._waiting.setdefault(name, set()).add(waiter)

    def forget(self, name: str, waiter: asyncio.Future[None]) -> bool:
        """Listen no more. Whether nothing has happened meanwhile."""
        waiting = self._waiting.get(name)
        if waiting is None or waiter not in waiting:
            return False
        waiting.remove(waiter)
        if not waiting:
            del self._waiting[name]
        return True

    def all_happened(self) -> None:
        """Wake every waiter."""
        for name in list(self._waiting):
            self.happened(name)

    def happened(self, name: str) -> None:
        """Wake who listens to this, WOKEN_A_TURN at once."""
        if waiting := self._waiting.pop(name, None):
            _wake_some(iter(waiting))


def _wake_some(waiting: Iterator[asyncio.Future[None]]) -> None:
    some = list(islice(waiting, WOKEN_A_TURN))
    for waiter in some:
        if not waiter.done():
            waiter.set_result(None)
    if len(some) == WOKEN_A_TURN:
        asyncio.get_running_loop().call_soon(_wake_some, waiting)


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
        self.set_to(Stats())

    def set_to(self, other: Stats) -> None:
        """Have the counts of another one."""
        for item in fields(self):
            setattr(self, item.name, getattr(other, item.name))


class GroupLimits(Protocol):
    """What the groups of one node may keep; see gateway/settings/limits.py."""

    @property
    def groups_max(self) -> int:
        """Groups."""
        ...

    @property
    def group_bytes_max(self) -> int:
        """Bytes of one group, as `GroupTable.size_of` counts them."""
        ...

    @property
    def groups_bytes_max(self) -> int:
        """Bytes of all groups."""
        ...

    @property
    def group_in_flight_max(self) -> int:
        """Open records of one group."""
        ...

    @property
    def in_flight_total_max(self) -> int:
        """Open records of all groups."""
        ...


class Room:
    """What groups may still keep. Bytes are those of `GroupTable.size_bytes`; what is about to be written counts."""

    def __init__(self, table: GroupTable, limits: GroupLimits) -> None:
        self._table = table
        self._limits = limits
        self._writing_bytes: Counter[str] = Counter()  # by group
        self._making: Counter[str] = Counter()  # calls that make a group
        self._taking_count: Counter[str] = Counter()  # records, by group

    @contextmanager
    def for_bytes(self, group: str, more: int) -> Iterator[None]:
        """While events are written that make a group larger by this, or make it. Raises GroupFull."""
        table, limits, writing, making = self._table, self._limits, self._writing_bytes, self._making
        is_new = group not in table
        if is_new and group not in making and len(table) + len(making) >= limits.groups_max:
            raise GroupFull(f"there are {limits.groups_max} groups, which is the limit (groups_max); delete one first")
        if more > 0 and table.size_of(group) + writing[group] + more > limits.group_bytes_max:
            raise GroupFull(
                f"group={group} may keep {limits.group_bytes_max} bytes (group_bytes_max) of members, positions and "
                "documents; spread its topics or members over several groups"
            )
        if more > 0 and table.size_bytes + writing.total() + more > limits.groups_bytes_max:
            raise GroupFull(
                f"all groups together may keep {limits.groups_bytes_max} bytes (groups_bytes_max); delete some first"
            )
        with _counted(writing, group, max(more, 0)), _counted(making, group, int(is_new)):
            yield

    @contextmanager
    def for_light(self, more: int) -> Iterator[None]:
        """While offsets in light queues are written that take so much more. Raises GroupFull."""
        table, limits, writing = self._table, self._limits, self._writing_bytes
        if more > 0 and table.size_bytes + writing.total() + more > limits.groups_bytes_max:
            raise GroupFull(
                f"all groups together may keep {limits.groups_bytes_max} bytes (groups_bytes_max), offsets in light "
                "queues among them; forget some first"
            )
        with _counted(writing, "", max(more, 0)):
            yield

    def for_records(self, group: str) -> int:
        """How many more records a group may have open, over all partitions."""
        table, limits, taking = self._table, self._limits, self._taking_count
        mine = limits.group_in_flight_max - table.get(group).open_count - taking[group]
        return max(min(mine, limits.in_flight_total_max - table.open_count - taking.total()), 0)

    @contextmanager
    def taking(self, group: str, count: int) -> Iterator[None]:
        """While records are about to be opened."""
        with _counted(self._taking_count, group, count):
            yield


@contextmanager
def _counted(counter: Counter[str], name: str, count: int) -> Iterator[None]:
    counter[name] += count
    try:
        yield
    finally:
        counter[name] -= count
        if not counter[name]:
            del counter[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One coordinator's common ground. `monotonic_ms` is for lengths of time, `clock` for data."""

    table: GroupTable
    log: EventWriter
    routes: Routes
    records: RecordReader
    tail_watcher: TailWatcher
    own_topics: OwnTopics
    clock: Clock
    monotonic_ms: Callable[[], int]
    draining: asyncio.Event
    room: Room
    run_blocking: RunBlocking
    belonging: Belonging
    turns: Turns
    note_light: Callable[[], None]
    """Have programs that know of no light queues refuse the directory that events are written to. Durable on return.
    Raises as `Store.note_light`."""

    members_changed: Changes = field(default_factory=Changes)
    leases_changed: Changes = field(default_factory=Changes)
    """By group: there may be something to receive in any partition."""

    leases_moved: Changes = field(default_factory=Changes)
    """By group: there may be something to receive in partitions with open records."""

    stats: Stats = field(default_factory=Stats)

    async def write(self, events: Sequence[Event], *, flushed: bool = True) -> None:
        """Write events, all of one group, and wait until they are applied, even when cancelled meanwhile. Raises as
        `EventLog.write`; GroupElsewhere."""
        if events:
            await self.belonging.settled(events[0].group)
            await uncancelled(self.log.write(events, flushed=flushed))

    @asynccontextmanager
    async def whole_group(self, *names: str) -> AsyncIterator[None]:
        """The turns of everything these groups have: members, settings, and all leases."""
        async with AsyncExitStack() as held:
            for name in names:
                await held.enter_async_context(self.turns.of_group(name))
            for name in names:
                await held.enter_async_context(self.turns.of_all_leases(name))
            yield

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

    def find_topic_by_id(self, topic_id: int) -> TopicView | None:
        """A topic by its id, if it is still there."""
        try:
            return self.routes.by_id(topic_id)
        except UnknownQueue:
            return None

    def topic_name(self, topic_id: int) -> str | None:
        """A topic's name; None when it is gone."""
        view = self.find_topic_by_id(topic_id)
        return None if view is None else view.name


def check_partition(view: TopicView, partition: int) -> None:
    """Raises UnknownPartition."""
    if not 0 <= partition < view.partitions:
        raise UnknownPartition(f"topic={view.name} has partitions 0 to {view.partitions - 1}, not {partition}")

"""Recurring schedules at work: kept, listed, and fired when they are due.

    put, pause, delete    decide ──> write ──> apply (gateway/recurring/definitions.py says what and why it survives)
    step                  what is due: `fired` events, durable ──> the records, delivered durably ──> `delivered` events

A step delivers what is owed before it fires more. A schedule that owes a record does not fire; the others go on, also
where the broker of one's partition is away. All decisions are made under one lock, held until what was decided is
applied. A start learns from the log which owed records were delivered before.

Never early: a due time is compared with the server's clock when it fires. A clock that is stepped forward fires what it
passes; stepped back, it fires nothing again, and nothing more until it has passed the last due time.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, Protocol

from gateway.brokers.event_log import EventKind, EventLog, Log, Snapshots
from gateway.codec.records import ProduceRecord
from gateway.codec.tags import DELIVER_AT_HEADER, MISSED_HEADER, RECURRING_HEADER, tag_hash
from gateway.recurring.definitions import (
    MISSED_MAX,
    RECURRING_EVENTS,
    Barrier,
    Definition,
    Delivered,
    Event,
    Fired,
    Owed,
    Recurring,
    RecurringTable,
)
from gateway.recurring.errors import RecurringUnowned, Undeliverable
from gateway.recurring.rule import Rule
from store import record_batch
from store.clock import Clock
from store.errors import DiskFull, Overloaded, RecordTooLarge, StoreError, StoreStopped, UnknownQueue
from store.light_names import LightNames
from store.limits import MiB
from store.record_batch import Record
from store.types import Source
from store.uncancelled import to_its_end, uncancelled
from store.waits import is_set_within
from timer.ports import Delivered as Stored
from timer.ports import Due, Partitions, Target

log = logging.getLogger(__name__)

COUNTED_MAX = 10_000
"""Missed due times of a cron expression are counted up to here; of `every`, all of them are."""

SNAPSHOT_INTERVAL_S = 30
FIRED_PER_STEP = 500
DELIVERED_PER_STEP = 1_000
DELIVERED_BYTES = 1 * MiB
_DUES_PER_TURN = 200
_NEXT_PER_TURN = 50
_PASSED_OVER_MAX = 64
_IDLE_MS_MAX = 500
_RETRY_MS = 200
_WITHOUT_TOPIC_MS = 2_000
"""How soon a schedule whose topic is not there looks again."""


class DeliveredSources(Protocol):
    """What the log says of what was delivered; `store.Store` is one."""

    async def sources_since(self, position: int) -> set[Source]:
        """The sources of all entries from a position on."""
        ...


class RecordRouting(Protocol):
    """Chooses the partition of records as for sent ones; implemented by `gateway.api.recurring.ProducerRouting`."""

    def check(self, topic: str, record: ProduceRecord) -> None:
        """Raises Undeliverable unless a topic takes the record."""
        ...

    def route(self, topic: str, records: Sequence[ProduceRecord]) -> tuple[Target, Sequence[Record]]:
        """The partition for records of one key, or of none, and the records as they are stored.
        Raises Undeliverable."""
        ...


@dataclass(slots=True)
class RecurringStats:
    """Counters since start."""

    delivered_count: int = 0
    missed_count: int = 0
    dropped_count: int = 0


class _Row(NamedTuple):
    """One owed record on its way."""

    recurring: Recurring
    owed: Owed
    target: Target
    record: Record


class RecurringSchedules:
    """The recurring schedules of one log. `start`, then `run` until cancelled, then `close`, or `abandon`.

    `routing` chooses the partition of a record, `partitions` stores it there, `sources` knows what was stored before.
    Those that count together share `stats`. `fixes_partitions`: a record goes to the partition that was chosen when it
    fired, also when another process delivers it again.
    """

    def __init__(
        self,
        event_log: Log,
        snapshots: Snapshots,
        sources: DeliveredSources,
        partitions: Partitions,
        clock: Clock,
        *,
        routing: RecordRouting,
        count_max: int,
        kind: EventKind[Event] = RECURRING_EVENTS,
        fixes_partitions: bool = False,
        stats: RecurringStats | None = None,
    ) -> None:
        self.table = RecurringTable()
        self.stats = stats or RecurringStats()
        self.troubles: dict[str, str] = {}
        """Why a schedule that is due does not fire, by name."""

        self.is_owned: Callable[[str], bool] = lambda _: True
        """Whether a name is this node's. Set in a cluster."""

        self.on_deleted: Callable[[str], Awaitable[None]] = _nothing
        """Called with the name of a schedule that was deleted, before `delete` returns."""

        self._sources = sources
        self._partitions = partitions
        self._clock = clock
        self._routing = routing
        self._count_max = count_max
        self._fixes_partitions = fixes_partitions
        self._events: EventLog[Event] = EventLog(
            kind, event_log, clock, snapshots, apply=self.table.apply, whole_state=self.table.snapshot
        )
        self._unnoted: list[Delivered] = []  # delivered, but the table does not know
        self._held_up: set[str] = set()  # those whose records could not be stored last time: they come after others
        self._turn = asyncio.Lock()
        self._leaving: dict[str, asyncio.Event] = {}
        self._wake = asyncio.Event()
        self._next_ms: dict[str, int] = {}
        self._due: list[tuple[int, str]] = []  # heap; what `_next_ms` does not have is passed over

    @property
    def needed_position(self) -> int | None:
        """Retention must keep the log from this position on; None: from nowhere on. 0 before `start`."""
        return self._events.needed_position

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Read what there is, and find out what was delivered. Raises Corrupt, or as reading does."""
        event_count = await self._events.replay(_warn_of_lost)
        owed = [(name, one) for name in self.table.owing for one in self.table.get(name).owed]
        if owed:
            delivered = await self._sources.sources_since(min(one.position for _, one in owed))
            for name, one in owed:
                # Delivered in order, and counted off in order.
                if one.source in delivered:
                    self._unnoted.append(Delivered(name, 1))
        if event_count or len(self.table):
            log.info("recurring schedules read schedules=%s events=%s", len(self.table), event_count)

    async def run(self) -> None:
        """Fire until cancelled. Raises only what a restart can help with."""
        async with asyncio.TaskGroup() as outer:
            writing = outer.create_task(self._events.run(), name="recurring schedules events")
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._fire_on(), name="recurring schedules")
                    tasks.create_task(self._save_on(), name="recurring schedules snapshot")
            finally:  # what these wait for is written first
                writing.cancel()

    async def close(self) -> None:
        """Write what waits, and save a snapshot. Call when `run` has ended."""
        await self._events.close()

    def abandon(self, error: StoreError) -> None:
        """Write nothing more: see `EventLog.abandon`."""
        self._events.abandon(error)

    @property
    def unsaved_count(self) -> int:
        """Events that are in no snapshot."""
        return self._events.unsaved_count

    async def save(self) -> None:
        """Save a snapshot; see `EventLog.save`."""
        await to_its_end(self._events.save())

    async def confirm(self) -> None:
        """Return when it is certain that the log is this process's still: something was written behind all that was.
        Raises as `EventLog.write`."""
        await self._events.write([Barrier()])

    # ------------------------------------------------------------------ changes

    async def put(self, name: str, definition: Definition, paused: bool | None) -> tuple[Recurring, bool]:
        """Have a schedule of this name; whether it is new. Durable on return. `paused` None: as it is. Raises
        TooManyRecurring, RecurringUnowned, or as `EventLog.write`."""
        while True:
            async with self._in_turn():
                left = self._leaving.get(name)
                if left is None:
                    if not self.is_owned(name):
                        raise RecurringUnowned(f"recurring schedule {name} is no node's")
                    is_new = self.table.find(name) is None
                    now_ms = self._clock.now_ms()
                    event = self.table.decide_put(name, definition, paused, now_ms=now_ms, count_max=self._count_max)
                    await self._write(() if event is None else (event,))
                    return self.table.get(name), is_new
            await left.wait()

    async def pause(self, name: str, paused: bool) -> Recurring:
        """Have a schedule rest, or go on. Durable on return. Raises UnknownRecurring, or as `EventLog.write`."""
        async with self._in_turn():
            event = self.table.decide_pause(name, paused, self._clock.now_ms())
            await self._write(() if event is None else (event,))
            return self.table.get(name)

    async def delete(self, name: str) -> None:
        """Have no schedule of this name. Durable on return. Raises UnknownRecurring, or as `EventLog.write`."""
        async with self._in_turn():
            await self._write((self.table.decide_delete(name),))
        await self.on_deleted(name)

    @asynccontextmanager
    async def leaving(self, name: str) -> AsyncIterator[bool]:
        """Have a `put` of a name wait until the block ends. Whether there is no schedule of it, and the block alone has
        its name: else nothing waits."""
        async with self._turn:
            is_unused = self.table.find(name) is None and name not in self._leaving
            if is_unused:
                self._leaving[name] = asyncio.Event()
        try:
            yield is_unused
        finally:
            if is_unused:
                self._leaving.pop(name).set()

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """The turn to decide. What was delivered is noted before anything else is: until then it counts as owed."""
        async with self._turn:
            await self._note()
            yield

    async def _note(self) -> None:
        """Write `delivered` events of what is known to be delivered."""
        unnoted, self._unnoted = self._unnoted, []
        try:
            await self._write(unnoted, flushed=False)
        except StoreError:
            self._unnoted = unnoted
            raise

    async def _write(self, events: Sequence[Event], *, flushed: bool = True) -> None:
        """Write events under the turn, and wait until they are applied, even when cancelled meanwhile."""
        if events:
            await uncancelled(self._events.write(events, flushed=flushed))
            self._wake.set()

    # ------------------------------------------------------------------ firing

    async def step(self) -> bool:
        """Deliver what is owed, then fire what is due, some of it; whether there may be more to do at once."""
        async with self._in_turn():
            if self.table.owing and await self._deliver():
                return True
            return await self._fire()

    async def next_due_ms(self) -> int | None:
        """When the next schedule is due, as far as that is known; None: none ever is."""
        for count, name in enumerate(list(self.table.changed), 1):
            self.table.changed.discard(name)
            self._look_again(name, None)
            if count % _NEXT_PER_TURN == 0:
                await asyncio.sleep(0)
        while self._due and self._next_ms.get(self._due[0][1]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _look_again(self, name: str, at_ms: int | None) -> None:
        """Look at a schedule when it is due next, or at another time."""
        recurring = self.table.find(name)
        due_ms = at_ms if recurring is None or at_ms is not None else recurring.next_due_ms()
        if recurring is None or due_ms is None:
            self._next_ms.pop(name, None)
            self.troubles.pop(name, None)
        elif self._next_ms.get(name) != due_ms:
            self._next_ms[name] = due_ms
            heapq.heappush(self._due, (due_ms, name))
            if len(self._due) > 2 * len(self._next_ms) + _PASSED_OVER_MAX:
                self._due = [(ms, one) for one, ms in self._next_ms.items()]
                heapq.heapify(self._due)

    async def _fire(self) -> bool:
        """Write `fired` events of schedules that are due."""
        now_ms = self._clock.now_ms()
        events: list[Fired] = []
        names: list[str] = []
        looked_count = owing_count = counted = 0
        while looked_count + owing_count < FIRED_PER_STEP and len(events) < MISSED_MAX and counted < COUNTED_MAX:
            next_ms = await self.next_due_ms()
            if next_ms is None or next_ms > now_ms:
                break
            _, name = heapq.heappop(self._due)
            del self._next_ms[name]
            if name in self.table.owing:  # it is looked at again when its records are delivered
                owing_count += 1
                continue
            looked_count += 1
            recurring = self.table.get(name)
            if not self._is_deliverable(recurring):
                self._look_again(name, now_ms + _WITHOUT_TOPIC_MS)
                continue
            names.append(name)
            dues_ms, due_count = await self._passed(recurring, now_ms)
            if recurring.definition.rule.cron is not None:  # gone through one by one
                counted += due_count
            if dues_ms:
                partition = self._partition_for(recurring, dues_ms[0]) if self._fixes_partitions else None
                events += self.table.decide_fire(name, dues_ms, due_count, partition)
        self.table.changed.update(names)  # also when nothing can be written: they are due still
        await self._write_fired(events)
        self.stats.missed_count += sum(event.missed_count for event in events)
        return looked_count > 0 or owing_count == FIRED_PER_STEP

    async def _write_fired(self, events: Sequence[Fired]) -> None:
        """Write `fired` events, in one entry if the store's are that large: each of them stands for itself."""
        try:
            await self._write(events)
        except RecordTooLarge:
            if len(events) == 1:
                raise
            middle = len(events) // 2
            await self._write_fired(events[:middle])
            await self._write_fired(events[middle:])

    def _is_deliverable(self, recurring: Recurring) -> bool:
        """Whether its topic is there and takes the record. If not, what is due is due until it is, or missed."""
        name, definition = recurring.name, recurring.definition
        try:
            self._routing.check(definition.topic, definition.record.at(0))
        except Undeliverable as error:
            if name not in self.troubles:
                log.warning("recurring schedule=%s waits for its topic=%s: %s", name, definition.topic, error)
            self.troubles[name] = str(error)
            return False
        self.troubles.pop(name, None)
        return True

    def _partition_for(self, recurring: Recurring, due_ms: int) -> int | None:
        """The partition to which the records go that fire now, the first one at a due time."""
        definition = recurring.definition
        try:
            target, _ = self._routing.route(definition.topic, [definition.record.at(due_ms)])
        except Undeliverable:  # it is dropped when it is to be delivered
            return None
        return target.partition

    async def _passed(self, recurring: Recurring, now_ms: int) -> tuple[Sequence[int], int]:
        """The due times behind `from_ms` and up to now that get a record, and how many there are in all."""
        rule = recurring.definition.rule
        kept_count = 1 if recurring.definition.missed == "once" else MISSED_MAX
        due_count = rule.count_between(recurring.from_ms, now_ms)
        if due_count is not None:
            assert rule.every_ms is not None
            start_ms = max(recurring.from_ms, now_ms - kept_count * rule.every_ms)
            return await _last_dues(rule, start_ms, now_ms, kept_count), due_count
        kept: deque[int] = deque(maxlen=kept_count)
        due_count = 0
        for due_ms in rule.dues(recurring.from_ms):
            if due_ms > now_ms:
                return kept, due_count
            if due_count == COUNTED_MAX:  # too long ago to go through all of them: the last ones, from behind
                break
            due_count += 1
            kept.append(due_ms)
            if due_count % _DUES_PER_TURN == 0:
                await asyncio.sleep(0)
        behind_ms = 60_000 * kept_count
        while True:
            start_ms = max(recurring.from_ms, now_ms - behind_ms)
            last = await _last_dues(rule, start_ms, now_ms, kept_count)
            if len(last) == kept_count or start_ms == recurring.from_ms:
                return last, due_count
            behind_ms *= 4

    async def _deliver(self) -> bool:
        """Deliver owed records durably, some of them; False: for some there is no room now, or no broker."""
        rows, dropped = self._owed_rows()
        self._done([Delivered(name, count, dropped=True) for name, count in dropped.items()])
        is_done = True
        async for same, offsets in self._stored(_by_target(rows)):
            self._done(_delivered_events(same[: len(offsets)], offsets))
            self._held_up.difference_update(row.recurring.name for row in same)
            self._held_up.update(row.recurring.name for row in same[len(offsets) :])
            is_done = is_done and len(offsets) == len(same)
        await self._note()
        return is_done

    def _done(self, events: Sequence[Delivered]) -> None:
        """Remember what was delivered until it is noted, whatever fails meanwhile: it must not be delivered again."""
        self._unnoted += events
        for event in events:
            if event.dropped:
                self.stats.dropped_count += event.count
            else:
                self.stats.delivered_count += event.count

    def _owed_rows(self) -> tuple[list[_Row], dict[str, int]]:
        """The next owed records, those of one schedule in order and to one partition; and how many to drop, by name."""
        rows: list[_Row] = []
        dropped: dict[str, int] = {}
        size_bytes = 0
        self._held_up.intersection_update(self.table.owing)
        for name in sorted(self.table.owing, key=self._held_up.__contains__):
            recurring = self.table.get(name)
            definition = recurring.definition
            count = max(1, min(len(recurring.owed), DELIVERED_BYTES // (1 + definition.record.size_bytes)))
            some = _of_one_partition(recurring.owed[:count])
            try:
                target, records = self._routing.route(
                    definition.topic, [definition.record.at(owed.due_ms) for owed in some]
                )
            except Undeliverable as error:
                log.warning("dropping records of recurring schedule=%s that are due: %s", name, error)
                dropped[name] = len(recurring.owed)
                continue
            if (partition := some[0].partition) is not None:
                target = target._replace(partition=partition)
            rows += [_Row(recurring, owed, target, record) for owed, record in zip(some, records, strict=True)]
            size_bytes += count * definition.record.size_bytes
            if size_bytes >= DELIVERED_BYTES or len(rows) >= DELIVERED_PER_STEP:
                break
        return rows, dropped

    async def _stored(
        self, groups: Collection[Sequence[_Row]]
    ) -> AsyncIterator[tuple[Sequence[_Row], Sequence[int | None]]]:
        """Records of one partition each, and what `_store` says of them. One call: who is away holds up nobody."""
        if not groups:
            return
        try:
            told = await self._partitions.deliver([_due_of(rows) for rows in groups])
        except (Overloaded, DiskFull) as error:
            log.debug("recurring schedules wait for room: %s", error)
            told = [None] * len(groups)
        except (UnknownQueue, RecordTooLarge):  # nothing was stored: find what it is about
            for rows in groups:
                yield rows, await self._store(rows)
            return
        for rows, one in zip(groups, told, strict=True):
            yield rows, await self._offsets(rows, one)

    async def _store(self, rows: Sequence[_Row]) -> Sequence[int | None]:
        """The offsets of the first of these records, all of one partition, delivered durably; None for one that is to
        be dropped. Those without are to be tried again."""
        try:
            (told,) = await self._partitions.deliver([_due_of(rows)])
        except (Overloaded, DiskFull):
            return ()
        except (UnknownQueue, RecordTooLarge) as error:  # nothing was stored
            told = error
        return await self._offsets(rows, told)

    async def _offsets(self, rows: Sequence[_Row], told: Stored) -> Sequence[int | None]:
        """See `_store`, by what was told of them."""
        if not isinstance(told, StoreError):
            return told or ()
        if len(rows) == 1 or isinstance(told, UnknownQueue):
            log.warning("dropping records of recurring schedules that are due: %s", told)
            return [None] * len(rows)
        middle = len(rows) // 2
        first = await self._store(rows[:middle])
        return first if len(first) < middle else [*first, *await self._store(rows[middle:])]

    async def _fire_on(self) -> None:
        """Fire until cancelled. When a disk has failed, fire no more, but let reads go on."""
        trouble = ""
        while True:
            self._wake.clear()
            try:
                if await self.step():
                    await asyncio.sleep(0)
                    continue
                is_waiting = bool(self.table.owing)
            except StoreStopped as error:
                log.error("recurring schedules have stopped until a restart: %s", error)
                return
            except StoreError as error:  # a full disk, mostly
                if str(error) != trouble:
                    log.warning("recurring schedules wait: %s", trouble := str(error))
                is_waiting = True
            if is_waiting:
                await asyncio.sleep(_RETRY_MS / 1000)
                continue
            next_ms = await self.next_due_ms()
            if next_ms is None:
                await self._wake.wait()
            else:  # never long: the clock may be stepped
                await is_set_within(self._wake, max(1, min(_IDLE_MS_MAX, next_ms - self._clock.now_ms())) / 1000)

    async def _save_on(self) -> None:
        while True:
            await asyncio.sleep(SNAPSHOT_INTERVAL_S)
            await self.save()


async def _nothing(_name: str) -> None:
    pass


def _warn_of_lost(count: int) -> None:
    log.warning("%d events of recurring schedules were lost before a repair: look at what there is now", count)


async def _last_dues(rule: Rule, after_ms: int, until_ms: int, count_max: int) -> Sequence[int]:
    """The last due times in (after, until]."""
    last: deque[int] = deque(maxlen=count_max)
    for number, due_ms in enumerate(rule.dues(after_ms), 1):
        if due_ms > until_ms:
            break
        last.append(due_ms)
        if number % _DUES_PER_TURN == 0:
            await asyncio.sleep(0)
    return last


def _of_one_partition(owed: Sequence[Owed]) -> Sequence[Owed]:
    """The first ones, as long as they go to one partition."""
    return list(takewhile(lambda one: one.partition == owed[0].partition, owed))


def _by_target(rows: Iterable[_Row]) -> Collection[Sequence[_Row]]:
    by_target: dict[Target, list[_Row]] = {}
    for row in rows:
        by_target.setdefault(row.target, []).append(row)
    return by_target.values()


def _due_of(rows: Sequence[_Row]) -> Due:
    hashes = [0 if (tag := row.recurring.definition.record.tag) is None else tag_hash(tag) for row in rows]
    return Due(
        rows[0].target,
        record_batch.encode([_delivered_record(row) for row in rows]),
        len(rows),
        all(row.recurring.definition.record.json_values for row in rows),
        hashes if any(hashes) else (),
        [row.owed.source for row in rows],
        LightNames.of([[name.encode() for name in row.recurring.definition.record.queues] for row in rows]),
    )


def _delivered_record(row: _Row) -> Record:
    key, value, timestamp_ms, headers = row.record
    own = [(DELIVER_AT_HEADER, b"%d" % row.owed.due_ms), (RECURRING_HEADER, row.recurring.name.encode())]
    if row.owed.missed_count:
        own.append((MISSED_HEADER, b"%d" % row.owed.missed_count))
    return Record(key, value, timestamp_ms, [*headers, *own])


def _delivered_events(rows: Sequence[_Row], offsets: Sequence[int | None]) -> list[Delivered]:
    """One event for each stretch of records of one schedule that had the same fate."""
    events: list[Delivered] = []
    for row, offset in zip(rows, offsets, strict=True):
        name, partition = row.recurring.name, row.target.partition
        event = Delivered(name, 1, dropped=True) if offset is None else Delivered(name, 1, partition, offset)
        if events and events[-1].name == name and events[-1].dropped == event.dropped:
            last = events.pop()
            event = Delivered(name, last.count + 1, event.partition, event.offset, event.dropped)
        events.append(event)
    return events

"""Pending schedules, seen from outside: find one by its id, list them, count them over time.

There is no index; nothing is kept in memory for it. What is used instead:

    by id      Units of the timer log stand in the order of their entries, so the copy that an id names is found by
               bisection: some 25 reads. When that copy has rolled or was moved, the one that waits now has the id's
               due time in its unit: a search for those eight bytes over the timer log, newest first (a tenth of a
               second for a million schedules), and the origin in the log's entry decides among the units found.
    list       The timer log in order, from a position that is the cursor: the order of acceptance, where a roll or a
               move counts as a new acceptance. Going on from the cursor misses nothing that stays pending; a schedule
               that rolls meanwhile may be met twice.

An id that has no unit any more was delivered if the log shows its delivery, at or after its due time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from store.errors import Overloaded, StoreError
from store.limits import MiB
from store.types import Boundary, Bounds, Delay, Entry, QueueKey, ReadResult
from timer.changes import Standing
from timer.delivery import TIMER_QUEUE, Bodies, Picked, pick
from timer.open_slots import Item
from timer.schedule import ScheduleId
from timer.timer_log import MAGIC_DELETE, UNIT_BYTES, TimerLog, Unit, unpack_units

UNITS_PER_PAGE_MAX = 1_000_000
"""Units looked at for one page; a page may be short, even empty, and still not the last one."""

KEY_BYTES_PER_PAGE_MAX = 64 * MiB
"""Bytes of records read for one page when only a key is asked for."""

_TRIES = 20
_TURN_UNITS = 1024
_EVIDENCE_BYTES_MAX = 64 * MiB
_EVIDENCE_READ_BYTES = 4 * MiB


class ScheduleLog(Protocol):
    """What is asked of the store."""

    @property
    def end_position(self) -> int: ...
    def bounds(self, queue: QueueKey) -> Bounds: ...
    async def read(self, queue: QueueKey, offset: int, *, max_bytes: int) -> ReadResult: ...
    async def read_entry(self, position: int) -> Entry: ...
    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int: ...


class Schedule(NamedTuple):
    """One pending schedule and its record. `accepted_ms` is None once it has rolled or moved."""

    id: ScheduleId
    topic_id: int
    queue_id: int
    record: Picked
    accepted_ms: int | None
    size_bytes: int


class Found(NamedTuple):
    """Where an id leads: what became of it and, while it is pending, its unit's position in the timer log."""

    standing: Standing
    position: int = -1


class Query(NamedTuple):
    """Which schedules: of some topics, due in [from_ms, to_ms), with one of some keys. None: any."""

    topic_ids: frozenset[int] | None = None
    from_ms: int = 0
    to_ms: int | None = None
    keys: frozenset[bytes | None] | None = None


class Page(NamedTuple):
    """Schedules in the order of acceptance, their units' positions, and the cursor to go on from (None: the end)."""

    schedules: list[Schedule]
    positions: list[int]
    next_cursor: int | None


class Schedules:
    """Looks pending schedules up. `standing_of` tells what became of a unit at this moment; `settled` waits until no
    delivery is half done; `caught_up` until everything accepted before the call hangs in the wheel; `copied_count`
    changes whenever a copy took the place of another."""

    def __init__(
        self,
        log: ScheduleLog,
        timer_log: TimerLog,
        bodies: Bodies,
        *,
        standing_of: Callable[[Unit], Standing],
        settled: asyncio.Lock,
        caught_up: Callable[[], Awaitable[None]],
        copied_count: Callable[[], int],
        read_mark_s: Callable[[], int],
    ) -> None:
        self._log = log
        self._timer_log = timer_log
        self._bodies = bodies
        self._standing_of = standing_of
        self._settled = settled
        self._caught_up = caught_up
        self._copied_count = copied_count
        self._read_mark_s = read_mark_s
        self._searching = asyncio.Lock()  # one search over everything at a time

    async def find(self, schedule: ScheduleId) -> Found:
        """What the id leads to: PENDING, DELIVERED or UNKNOWN. Raises Overloaded, Corrupt."""
        for _ in range(_TRIES):
            copied_count = self._copied_count()
            await self._caught_up()
            found = await self._find(schedule)
            if found is not None and found.standing in (Standing.PENDING, Standing.DELIVERED):
                return found
            if self._copied_count() == copied_count:  # else it may have been copied behind our back
                if found is None and await self._was_delivered(schedule):
                    return Found(Standing.DELIVERED)
                return Found(Standing.UNKNOWN)
        raise Overloaded("schedules are being copied all the time; try again")

    async def read(self, position: int) -> Schedule:
        """The schedule of a unit. Raises what the log raises."""
        unit = self._timer_log.read(position)
        body = await self._bodies.get(unit.entry_position)
        picked = pick(_item(unit), body)
        delay = picked.delay
        origin = delay.origin_position, delay.origin_index
        accepted_ms = None
        if delay.origin_position < 0:
            origin = unit.entry_position, unit.record_index
            accepted_ms = body.store_time_ms
        record = picked.record
        size_bytes = len(record.key or b"") + len(record.value or b"")
        return Schedule(
            ScheduleId(delay.due_ms, *origin), delay.topic_id, delay.queue_id, picked, accepted_ms, size_bytes
        )

    async def page(self, query: Query, *, cursor: int = 0, limit: int) -> Page:
        """The next schedules from a cursor on, at most `limit`. Raises what the log raises."""
        await self._caught_up()
        schedules: list[Schedule] = []
        positions: list[int] = []
        unit_count = body_bytes = 0
        last_body = -1
        for start, chunk in self._timer_log.chunks(cursor - cursor % UNIT_BYTES):
            async for position in self._pending(self._candidates(start, chunk, query)):
                if len(schedules) == limit or body_bytes > KEY_BYTES_PER_PAGE_MAX:
                    return Page(schedules, positions, position)
                if query.keys is not None:
                    unit = self._timer_log.read(position)
                    if unit.entry_position != last_body:
                        last_body = unit.entry_position
                        body_bytes += unit.entry_size
                schedule = await self.read(position)
                if query.keys is None or schedule.record.record.key in query.keys:
                    schedules.append(schedule)
                    positions.append(position)
            unit_count += len(chunk) // UNIT_BYTES
            if unit_count >= UNITS_PER_PAGE_MAX:
                return Page(schedules, positions, start + len(chunk))
            await asyncio.sleep(0)
        return Page(schedules, positions, None)

    async def histogram(self, query: Query, bounds_ms: Sequence[int]) -> list[int]:
        """How many pending schedules are due in each [bounds[i], bounds[i + 1]); the bounds are equally far apart.
        Looks at every unit: a second for four million. A key is not looked at. Raises Overloaded, Corrupt."""
        await self._caught_up()
        first_ms, end_ms = bounds_ms[0], bounds_ms[-1]
        width_ms = bounds_ms[1] - first_ms
        counts = [0] * (len(bounds_ms) - 1)
        async with self._searching:
            for start, chunk in self._timer_log.chunks(self._timer_log.start):
                async with self._settled:
                    for position in self._candidates(start, chunk, query):
                        unit = self._timer_log.read(position)
                        if first_ms <= unit.due_ms < end_ms and self._standing_of(unit) is Standing.PENDING:
                            counts[(unit.due_ms - first_ms) // width_ms] += 1
                await asyncio.sleep(0)
        return counts

    async def _pending(self, positions: Sequence[int]) -> AsyncIterator[int]:
        """Those of some units that are pending. Many at a time: while overdue schedules fire, each wait for
        `settled` is as long as a go of deliveries."""
        for first in range(0, len(positions), _TURN_UNITS):
            async with self._settled:
                pending = [
                    position
                    for position in positions[first : first + _TURN_UNITS]
                    if self._standing_of(self._timer_log.read(position)) is Standing.PENDING
                ]
            for position in pending:
                yield position

    def _candidates(self, start: int, chunk: bytes, query: Query) -> list[int]:
        """Positions of units that may be pending and meant."""
        read_mark_s = self._read_mark_s()
        topic_ids, from_ms = query.topic_ids, query.from_ms
        to_ms = (1 << 63) if query.to_ms is None else query.to_ms
        return [
            start + number * UNIT_BYTES
            for number, (_, _, magic, due_ms, _, _, _, its_topic_id, slot_s, _) in enumerate(unpack_units(chunk))
            if slot_s >= read_mark_s
            and not magic & MAGIC_DELETE
            and (topic_ids is None or its_topic_id in topic_ids)
            and from_ms <= due_ms < to_ms
        ]

    async def _find(self, schedule: ScheduleId) -> Found | None:
        """What the newest copy of a schedule says; None when there is no unit of it."""
        origin = schedule.position, schedule.record_index
        position = self._timer_log.find(*origin)
        if position is not None and self._timer_log.read(position).due_ms == schedule.due_ms:
            found = await self._stands(position)
            if found.standing not in (Standing.ROLLED, Standing.MOVED):
                return found
        async with self._searching:
            delays: Sequence[Delay] = ()
            entry_position = -1
            match_count = 0
            for match in self._timer_log.search_due(schedule.due_ms):
                match_count += 1
                if match is None or match_count % _TURN_UNITS == 0:
                    await asyncio.sleep(0)
                if match is None:
                    continue
                position, unit = match
                if unit.entry_position != entry_position:
                    entry_position = unit.entry_position
                    try:
                        delays = (await self._log.read_entry(entry_position)).delays
                    except StoreError:
                        if (await self._stands(position)).standing is Standing.PENDING:
                            raise
                        delays = ()  # retention has taken what is over
                if unit.record_index < len(delays):
                    delay = delays[unit.record_index]
                    if (delay.origin_position, delay.origin_index) == origin:
                        return await self._stands(position)
        return None

    async def _stands(self, position: int) -> Found:
        async with self._settled:
            return Found(self._standing_of(self._timer_log.read(position)), position)

    async def _was_delivered(self, schedule: ScheduleId) -> bool:
        """Whether the log shows the delivery of a schedule that has no unit any more, near its due time."""
        if schedule.position >= self._log.end_position:
            return False
        try:
            entry = await self._log.read_entry(schedule.position)
        except StoreError:
            return False  # retention has taken it, or it never was
        if entry.queue != TIMER_QUEUE or schedule.record_index >= len(entry.delays):
            return False
        delay = entry.delays[schedule.record_index]
        queue = QueueKey(delay.topic_id, delay.queue_id)
        written = schedule.text.encode("ascii")
        read_bytes = 0
        try:
            offset = await self._log.offset_for_time(queue, schedule.due_ms, Boundary.LOWER)
            while read_bytes < _EVIDENCE_BYTES_MAX:
                result = await self._log.read(queue, offset, max_bytes=_EVIDENCE_READ_BYTES)
                if not result.entries:
                    return False
                for entry in result.entries:
                    read_bytes += entry.size
                    if entry.sources and written in bytes(entry.batch):
                        return True
                offset = result.next_offset
        except StoreError:  # the topic is gone
            return False
        return False


def _item(unit: Unit) -> Item:
    return unit.due_ms, unit.entry_position, unit.record_index, unit.slot_s, False

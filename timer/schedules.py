"""Pending schedules, seen from outside: find one by its id, list them, count them over time.

There is no index of them; nothing is kept in memory but counts by minute. What is used instead:

    by id      Units of the timer log stand in the order of their entries, so the copy that an id names is found by
               bisection: some 25 reads. When that copy has rolled or was moved, the one that waits now has the id's
               due time in its unit: a search for those eight bytes over the timer log, newest first (a tenth of a
               second for a million schedules), and the origin in the log's entry decides among the units found.
    list       The timer log in order, from a position that is the cursor: the order of acceptance, where a roll or a
               move counts as a new acceptance. Going on from the cursor misses nothing that stays pending; a schedule
               that rolls meanwhile may be met twice.
    by due     The counts by minute (timer/pending_counts.py) say in which minutes the next ones are. Their slots are
               walked; when any that has rolled is due there, which may wait in any earlier slot, the timer log is
               searched for these minutes (timer/finding.py; some hundredths of a second for a million schedules).
    count      The counts by minute. Of a minute, or a quarter of an hour of what has rolled, in which a bound lies,
               the schedules are looked at as by due.

Listing and counting wait for no delivery and yield every few hundred units: a chart drawn of what is pending
every second delays no request. A lookup by id waits for the end of a go, so that its answer is final.

An id that has no unit any more was delivered if the log shows its delivery, at or after its due time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from store.errors import Corrupt, StoreError
from store.limits import MiB
from store.topics import TIMER_QUEUE
from store.types import Delay, Source
from timer.changes import Standing
from timer.errors import TimerBusy
from timer.finding import DueUnits, Span, merged
from timer.pending_counts import MINUTE_MS, QUARTER_MS
from timer.ports import Partitions, Target
from timer.record_cache import Picked, pick
from timer.schedule import SLOT_MS, ScheduleId
from timer.state import TURN_UNITS, TimerState
from timer.timer_log import MAGIC_DELETE, MAGIC_ROLL, UNIT_BYTES, unpack_units
from timer.wheel import NOWHERE

UNITS_PER_PAGE_MAX = 1_000_000
"""Units looked at for one page; a page may be short, even empty, and still not the last one."""

PAGE_BYTES_MAX = 4 * MiB
"""Keys and values of one page. It ends with the schedule that reaches this size."""

KEY_BYTES_PER_PAGE_MAX = 64 * MiB
"""Bytes of records read for one page when only a key is asked for."""

KEYS_PER_PAGE_MAX = 4_000
"""Records whose keys are compared for one page: some 40 ms of CPU time."""

DUE_WINDOW_LEAST, DUE_WINDOW_MAX = 1_000, 10_000
"""Schedules, in the order of due times, that are looked for at once: some pages."""

DUE_WINDOW_MS = 5_000
"""How long the following pages are taken from what was found: what is accepted meanwhile shows later."""

DUE_WINDOWS_PER_PAGE = 4
"""So often it is looked for more before a page stays short."""

WALKED_SHARE = 64
"""Looking at a schedule in its slot takes as long as searching so many units of the timer log."""

LAST_POSITION = 10**18 - 1
"""Behind all of one due time; in the cursor as long as a position may be."""

TRIES = 20
"""How often a schedule is looked for that is copied at the same time."""

_TURN_UNITS = 256  # looked at between two turns of the event loop
_TURN_DUES = 4096  # ... when only the due times are
_TURN_SKIPPED = 16_384  # ... when most are ruled out by a byte
_TURN_PAGES = 512  # ... pages of counts
_TURN_SLOTS = 3600  # ... slots of which most are empty
_NEVER_MS = 1 << 62
_EVIDENCE_BYTES_MAX = 64 * MiB
_EVIDENCE_READ_BYTES = 4 * MiB


class Schedule(NamedTuple):
    """One pending schedule and its record. `accepted_ms` is None once it has rolled or moved."""

    id: ScheduleId
    topic_id: int
    partition: int
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

    @property
    def is_narrow(self) -> bool:
        """Whether a time or topics are asked for."""
        return self.topic_ids is not None or self.from_ms > 0 or self.to_ms is not None

    def means(self, topic_id: int, due_ms: int) -> bool:
        """Whether a schedule is asked for, unless its key is another."""
        if self.topic_ids is not None and topic_id not in self.topic_ids:
            return False
        return self.from_ms <= due_ms and (self.to_ms is None or due_ms < self.to_ms)


class DuePosition(NamedTuple):
    """Where a schedule stands in the order of due times; of one time, in that of the timer log."""

    due_ms: int
    position: int


class DuePage(NamedTuple):
    """Schedules, the first due first, the position of the last one that was looked at (None: the end), and the position
    of each."""

    schedules: list[Schedule]
    next_after: DuePosition | None
    positions: list[DuePosition]


class Census(NamedTuple):
    """How many schedules are due between each two of some bounds; of all that are meant, how many are past due, and how
    many wait in an intermediate slot, as they are due behind the roll window."""

    counts: list[int]
    overdue_count: int
    rolled_count: int


class _Between(NamedTuple):
    """How many are due before, between and behind some bounds, and how many of all have rolled."""

    counts: list[int]
    rolled_count: int


class Page(NamedTuple):
    """Schedules in the order of acceptance, and the cursor to go on from (None: the end)."""

    schedules: list[Schedule]
    next_cursor: int | None
    positions: list[int]
    """Of each: the cursor of a page that begins with it."""


class _Window(NamedTuple):
    """The next schedules behind a position, when they were looked for, and whether there are no others."""

    query: Query
    after: DuePosition
    positions: list[DuePosition]
    until: DuePosition | None  # up to there they are all (None: there are no others)
    at_ms: int

    def has(self, query: Query, after: DuePosition, now_ms: int) -> bool:
        """Whether the ones behind another position are among these."""
        if query != self.query or not self.at_ms <= now_ms < self.at_ms + DUE_WINDOW_MS:
            return False
        return self.after < after and (self.until is None or after < self.until)


class Schedules:
    """Looks pending schedules up. Changes nothing."""

    def __init__(self, state: TimerState, partitions: Partitions) -> None:
        self._state = state
        self._partitions = partitions
        self._searching = asyncio.Lock()  # one search over everything at a time
        self._window: _Window | None = None

    async def show(self, schedule: ScheduleId) -> tuple[Standing, Schedule | None]:
        """What became of a schedule, and the schedule itself while it is pending. Raises TimerBusy, Corrupt."""
        for _ in range(TRIES):
            found = await self.find(schedule)
            if found.standing is not Standing.PENDING:
                return found.standing, None
            try:
                return found.standing, await self.read(found.position)
            except Corrupt:
                if self._state.standing_of(self._state.timer_log.read(found.position)) is Standing.PENDING:
                    raise
        raise TimerBusy("the schedule is being copied all the time; try again")

    async def find(self, schedule: ScheduleId) -> Found:
        """What the id leads to: PENDING, DELIVERED or UNKNOWN. Raises TimerBusy, Corrupt."""
        for _ in range(TRIES):
            copied_count = self._copied_count
            await self._state.caught_up()
            found = await self._find(schedule)
            if found is not None and found.standing in (Standing.PENDING, Standing.DELIVERED):
                return found
            if self._copied_count == copied_count:  # else it may have been copied behind our back
                # Of a copy that was consumed before a crash, and met after it, there is no unit: the one before it says
                # that it was copied.
                is_copied = found is not None and found.standing in (Standing.ROLLED, Standing.MOVED)
                if (found is None or is_copied) and await self._was_delivered(schedule):
                    return Found(Standing.DELIVERED)
                return Found(Standing.UNKNOWN)
        raise TimerBusy("schedules are being copied all the time; try again")

    async def topic_of(self, schedule: ScheduleId) -> int | None:
        """The topic id of the schedule that an id names, whatever has become of it; None when the log does not know it
        (any more)."""
        delay = await self._accepted(schedule)
        return None if delay is None else delay.topic_id

    async def _accepted(self, schedule: ScheduleId) -> Delay | None:
        """The delay that the named entry was accepted with; None when there is no such entry (any more)."""
        if schedule.position >= self._state.log.end_position:
            return None
        try:
            entry = await self._state.log.read_entry(schedule.position)
        except StoreError:
            return None
        if entry.queue != TIMER_QUEUE or schedule.record_index >= len(entry.delays):
            return None
        return entry.delays[schedule.record_index]

    async def read(self, position: int, *, is_one_of_many: bool = False) -> Schedule:
        """The schedule of a unit; `is_one_of_many`: its neighbours, most of them of the same entry, are asked for next.
        Raises what the log raises."""
        unit = self._state.timer_log.read(position)
        source = Source(unit.entry_position, unit.record_index)
        body = await self._state.record_cache.get(source.position, None if is_one_of_many else (source.record_index,))
        picked = pick(source, body)
        delay = picked.delay
        origin = delay.origin_position, delay.origin_index
        accepted_ms = None
        if delay.origin_position < 0:
            origin = unit.entry_position, unit.record_index
            accepted_ms = body.store_time_ms
        record = picked.record
        size_bytes = len(record.key or b"") + len(record.value or b"")
        return Schedule(
            ScheduleId(delay.due_ms, *origin), delay.topic_id, delay.partition, picked, accepted_ms, size_bytes
        )

    async def page(self, query: Query, *, cursor: int = 0, limit: int) -> Page:
        """The next schedules from a cursor on, at most `limit`, or as many as have PAGE_BYTES_MAX. Raises what the log
        raises."""
        positions, next_cursor = await self.positions(query, cursor=cursor, limit=limit)
        schedules: list[Schedule] = []
        left_bytes = PAGE_BYTES_MAX
        for position in positions:
            if left_bytes <= 0:
                return Page(schedules, position, positions[: len(schedules)])
            schedules.append(await self.read(position, is_one_of_many=True))
            left_bytes -= schedules[-1].size_bytes
        return Page(schedules, next_cursor, positions)

    async def positions(
        self, query: Query, *, cursor: int = 0, limit: int, waits: bool = True
    ) -> tuple[list[int], int | None]:
        """As `page`, but where the units are. Records are read only when a key is asked for. `waits`: for what was
        accepted before the call to be in the wheel."""
        if waits:
            await self._state.caught_up()
        positions: list[int] = []
        left_read_bytes, left_compared = KEY_BYTES_PER_PAGE_MAX, KEYS_PER_PAGE_MAX
        first = max(cursor, self._state.timer_log.start)
        last_entry = -1
        async for end, pending in self._look_through(query, cursor):
            for position, _, _ in pending:
                if len(positions) == limit or min(left_read_bytes, left_compared) <= 0:
                    return positions, position
                if query.keys is not None:
                    left_compared -= 1
                    unit = self._state.timer_log.read(position)
                    if unit.entry_position != last_entry:
                        last_entry = unit.entry_position
                        left_read_bytes -= unit.entry_size
                    schedule = await self.read(position, is_one_of_many=True)
                    if schedule.record.record.key not in query.keys:
                        continue
                positions.append(position)
            if end - first >= UNITS_PER_PAGE_MAX * UNIT_BYTES:
                return positions, end
        return positions, None

    async def page_by_due(self, query: Query, *, after: DuePosition | None, limit: int) -> DuePage:
        """As `page`, the first due first. What is found for one page serves those that follow within DUE_WINDOW_MS.
        Raises what the log raises."""
        after = after or DuePosition(-1, -1)
        schedules: list[Schedule] = []
        stand_at: list[DuePosition] = []
        left_bytes, left_read_bytes, left_compared = PAGE_BYTES_MAX, KEY_BYTES_PER_PAGE_MAX, KEYS_PER_PAGE_MAX
        for _ in range(DUE_WINDOWS_PER_PAGE):
            async with self._searching:  # who asks meanwhile for what follows finds it ready
                window = self._window
                if window is None or not window.has(query, after, self._state.clock.now_ms()):
                    window = self._window = await self._due_after(query, after)
            positions = window.positions
            begin = bisect_right(positions, after)
            for number in range(begin, len(positions)):
                if (number - begin) % limit == 0:
                    await self._read_ahead(position for _, position in positions[number : number + limit])
                if len(schedules) == limit or min(left_bytes, left_read_bytes, left_compared) <= 0:
                    return DuePage(schedules, after, stand_at)
                after = positions[number]
                unit = self._state.timer_log.read(after.position)
                if self._state.standing_of(unit) is not Standing.PENDING:
                    continue
                schedule = await self.read(after.position)
                left_read_bytes -= schedule.size_bytes
                left_compared -= query.keys is not None
                if query.keys is None or schedule.record.record.key in query.keys:
                    schedules.append(schedule)
                    stand_at.append(after)
                    left_bytes -= schedule.size_bytes
            if window.until is None:
                return DuePage(schedules, None, stand_at)
            after = window.until
        return DuePage(schedules, after, stand_at)

    async def _read_ahead(self, positions: Iterable[int]) -> None:
        """Have the records of units at hand for `read`: each entry is read once, many in one go."""
        wanted: dict[int, list[int]] = {}
        for position in positions:
            unit = self._state.timer_log.read(position)
            wanted.setdefault(unit.entry_position, []).append(unit.record_index)
        while wanted:
            count = await self._state.record_cache.read_ahead(wanted)
            for entry_position in list(islice(wanted, count)):
                del wanted[entry_position]

    async def _due_after(self, query: Query, after: DuePosition) -> _Window:
        """The next schedules behind a position: DUE_WINDOW_LEAST or more, unless there are fewer."""
        state = self._state
        await state.caught_up()
        next_ms = after.due_ms + (after.position == LAST_POSITION)
        from_ms, to_ms = max(query.from_ms, next_ms), query.to_ms
        end_ms, is_all, has_rolled = state.pending.next_ones(query.topic_ids, from_ms, DUE_WINDOW_LEAST)
        if to_ms is not None and end_ms >= to_ms:
            end_ms, is_all = to_ms, True
        near = query._replace(from_ms=from_ms, to_ms=end_ms, keys=None)
        searches = has_rolled or (query.topic_ids is not None and await self._are_many(from_ms, end_ms))
        found: list[DuePosition] = []
        worst: DuePosition | None = None  # what is behind it is not among the next ones
        until: DuePosition | None = None if is_all else DuePosition(end_ms - 1, LAST_POSITION)
        async for end, pending in self._look_through(near, 0) if searches else self._walk_slots(near):
            for position, due_ms, _ in pending:
                one = DuePosition(due_ms, position)
                if one > after and (worst is None or one < worst):
                    found.append(one)
            if len(found) > 2 * DUE_WINDOW_MAX:
                found.sort()
                del found[DUE_WINDOW_MAX:]
                worst = found[-1]
            if not searches and end is not None and end >= state.open.write_mark_s and len(found) >= DUE_WINDOW_LEAST:
                until = DuePosition(end * SLOT_MS - 1, LAST_POSITION)
                break
        found.sort()
        if worst is not None or len(found) > DUE_WINDOW_MAX:
            del found[DUE_WINDOW_MAX:]
            until = found[-1]
        return _Window(query, after, found, until, state.clock.now_ms())

    async def _are_many(self, from_ms: int, to_ms: int) -> bool:
        """Whether to walk the slots of a time, in which schedules of all topics are, takes longer than a search."""
        bounds_ms = [from_ms - from_ms % QUARTER_MS, to_ms + -to_ms % QUARTER_MS]  # no bin is split
        known = await self._count_between(Query(), bounds_ms)
        return known is None or self._is_quicker_searched(known.counts[1])

    def _is_quicker_searched(self, count: int) -> bool:
        units_count = (self._state.timer_log.end - self._state.timer_log.start) // UNIT_BYTES
        return count * WALKED_SHARE > units_count

    async def census(self, query: Query, bounds_ms: Sequence[int]) -> Census:
        """Pending schedules between bounds that rise; [bounds[i], bounds[i + 1]). Of whole minutes they are at hand; of
        the minutes in which a bound lies schedules are looked at one by one. Of the query only its topics count. Raises
        TimerBusy, Corrupt."""
        state = self._state
        await state.caught_up()
        now_ms = state.clock.now_ms()
        of_topics = Query(query.topic_ids)
        known = await self._count_between(of_topics, bounds_ms)
        past = await self._count_between(of_topics, [now_ms])
        if known is not None and past is not None:
            return Census(known.counts[1:-1], past.counts[0], known.rolled_count)
        counts = [0] * (len(bounds_ms) + 1)
        overdue_count = rolled_count = 0
        async with self._searching:
            async for _, pending in self._look_through(of_topics, 0):
                for _, due_ms, magic in pending:
                    counts[bisect_right(bounds_ms, due_ms)] += 1
                    overdue_count += due_ms < now_ms
                    rolled_count += bool(magic & MAGIC_ROLL)
        return Census(counts[1:-1], overdue_count, rolled_count)

    async def count(self, query: Query) -> int:
        """How many are pending and meant, whatever their key. Raises TimerBusy, Corrupt."""
        await self._state.caught_up()
        bounds_ms = [query.from_ms] + ([] if query.to_ms is None else [query.to_ms])
        known = await self._count_between(Query(query.topic_ids), bounds_ms)
        if known is not None:
            return known.counts[1]
        async with self._searching:
            return sum([len(pending) async for _, pending in self._look_through(query, 0)])

    async def _count_between(self, of_topics: Query, bounds_ms: Sequence[int]) -> _Between | None:
        """What is pending of some topics before, between and behind bounds that rise. None: these topics are not told
        apart."""
        known = self._state.pending.times(of_topics.topic_ids)
        if known is None:
            return None
        times, topic_ids = known
        counts = [0] * (len(bounds_ms) + 1)
        sums = []
        split: tuple[Counter[int], Counter[int]] = Counter(), Counter()
        for part, bins in zip(times, split, strict=True):
            pages = part.pages(topic_ids)
            for start in range(0, len(pages), _TURN_PAGES):
                for number, page in pages[start : start + _TURN_PAGES]:
                    part.spread(number, page, bounds_ms, counts, bins)
                await self._state.log.yield_to_loop()
            sums.append(sum(page[-1] for _, page in pages))
        async for due_ms in self._dues_in(of_topics, *split):
            counts[bisect_right(bounds_ms, due_ms)] += 1
        return _Between(counts, sums[True])

    async def _dues_in(self, of_topics: Query, minutes: Counter[int], quarters: Counter[int]) -> AsyncIterator[int]:
        """The due times of what is pending in some minutes, and of what has rolled in some quarters of an hour: both by
        their starts, with how many are there."""
        walked, searched = minutes, Counter[int]()
        if self._is_quicker_searched(minutes.total()):
            walked, searched = searched, walked
        begin_ms = self._state.open.write_mark_s * SLOT_MS
        spans = [Span(start_ms, start_ms + MINUTE_MS) for start_ms in walked if start_ms >= begin_ms]
        if past := [start_ms for start_ms in walked if start_ms < begin_ms]:  # these may all wait in open slots
            spans.append(Span(min(past), max(past) + MINUTE_MS))
        for from_ms, to_ms in spans:
            async for _, pending in self._walk_slots(of_topics._replace(from_ms=from_ms, to_ms=to_ms)):
                for _, due_ms, magic in pending:
                    if not magic & MAGIC_ROLL and due_ms - due_ms % MINUTE_MS in walked:
                        yield due_ms
        if not searched and not quarters:
            return
        spans = [Span(start_ms, start_ms + MINUTE_MS) for start_ms in searched]
        spans += [Span(start_ms, start_ms + QUARTER_MS) for start_ms in quarters]
        async with self._searching:
            async for _, pending in self._look_through(of_topics, 0, merged(spans)):
                for _, due_ms, magic in pending:
                    bins, bin_ms = (quarters, QUARTER_MS) if magic & MAGIC_ROLL else (searched, MINUTE_MS)
                    if due_ms - due_ms % bin_ms in bins:
                        yield due_ms

    async def _walk_slots(self, query: Query) -> AsyncIterator[tuple[int | None, list[tuple[int, int, int]]]]:
        """As `_look_through`, but slot by slot, through a query's range of time (which must end). Open slots are looked
        at as well, where what was due before it was accepted may wait. Named is, at the end of each slot, the second
        before which all are told; not told are those that have rolled and wait in earlier slots."""
        state = self._state
        assert query.to_ms is not None
        write_mark_s = state.open.write_mark_s
        slot_s, to_s = query.from_ms // SLOT_MS, max(write_mark_s, -(-query.to_ms // SLOT_MS))
        if slot_s < write_mark_s:
            slot_s = state.open.read_mark_s
        while slot_s < to_s:
            found_s = state.wheel.next_occupied(slot_s, stop_s := min(to_s, slot_s + _TURN_SLOTS))
            slot_s = stop_s if found_s is None else found_s + 1
            position = NOWHERE if found_s is None else state.wheel.at(found_s).last
            while position != NOWHERE:
                walked = []
                for unit in state.timer_log.walk(position, TURN_UNITS)[0]:
                    if query.means(unit.topic_id, unit.due_ms) and state.standing_of(unit) is Standing.PENDING:
                        walked.append((position, unit.due_ms, unit.magic))
                    position = unit.previous
                yield slot_s if position == NOWHERE else None, walked
                await state.log.yield_to_loop()
            await state.log.yield_to_loop()

    async def _look_through(
        self, query: Query, cursor: int, spans: Sequence[Span] | None = None
    ) -> AsyncIterator[tuple[int, list[tuple[int, int, int]]]]:
        """All units from a cursor on, those of one turn of the event loop at a time: where they end, and position, due
        time and magic of those that are pending and meant, and due in some spans (None: at any time). A schedule counts
        as pending until its delivery is durable, and as changed while its change is being made durable."""
        if spans is None and query.is_narrow:
            spans = [Span(query.from_ms, _NEVER_MS if query.to_ms is None else query.to_ms)]
        finder = None if spans is None else DueUnits(spans, query.topic_ids)
        for start, chunk in self._state.timer_log.chunks(cursor - cursor % UNIT_BYTES):
            at = 0
            while at < len(chunk):
                turn_units = _TURN_UNITS if finder is None else _TURN_SKIPPED if finder.are_few else _TURN_DUES
                units = chunk[at : at + turn_units * UNIT_BYTES]
                first, end = start + at, start + at + len(units)
                if finder is None:
                    pending = list(self._pending(range(first, end, UNIT_BYTES), units))
                else:
                    pending = []
                    places = finder.places(units)
                    for number in range(0, len(places), _TURN_UNITS):
                        if number:
                            await self._state.log.yield_to_loop()
                        some = [place * UNIT_BYTES for place in places[number : number + _TURN_UNITS]]
                        found = b"".join([units[place : place + UNIT_BYTES] for place in some])
                        pending += self._pending([first + place for place in some], found)
                at += len(units)
                yield end, pending
                await self._state.log.yield_to_loop()

    def _pending(self, positions: Sequence[int], units: bytes) -> Iterator[tuple[int, int, int]]:
        """Position, due time and magic of those among some units that are pending."""
        state = self._state
        read_mark_s, write_mark_s = state.open.read_mark_s, state.open.write_mark_s
        changed, consumed, is_marked = state.changed, state.consumed_scheduled, state.timer_log.is_marked
        for position, unit in zip(positions, unpack_units(units), strict=True):
            _, _, magic, due_ms, entry_position, _, record_index, _, slot_s, _ = unit
            if slot_s >= read_mark_s and not magic & MAGIC_DELETE:
                if slot_s < write_mark_s or is_marked(position):
                    if state.standing_of(state.timer_log.read(position)) is Standing.PENDING:
                        yield position, due_ms, magic
                elif (source := (entry_position, record_index)) not in changed and source not in consumed:
                    yield position, due_ms, magic

    @property
    def _copied_count(self) -> int:
        """Changes whenever a copy took the place of another."""
        return self._state.metrics.rolled_count + self._state.metrics.moved_count

    async def _find(self, schedule: ScheduleId) -> Found | None:
        """What the newest copy of a schedule says; None when there is no unit of it."""
        origin = schedule.position, schedule.record_index
        position = self._state.timer_log.find(*origin)
        if position is not None and self._state.timer_log.read(position).due_ms == schedule.due_ms:
            found = await self._stands(position)
            if found.standing not in (Standing.ROLLED, Standing.MOVED):
                return found
        async with self._searching:
            delays: Sequence[Delay] = ()
            entry_position = -1
            match_count = 0
            for match in self._state.timer_log.search_due(schedule.due_ms):
                match_count += 1
                if match is None or match_count % _TURN_UNITS == 0:
                    await self._state.log.yield_to_loop()
                if match is None:
                    continue
                position, unit = match
                if unit.entry_position != entry_position:
                    entry_position = unit.entry_position
                    try:
                        delays = (await self._state.log.read_entry(entry_position)).delays
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
        async with self._state.leaving:
            return Found(self._state.standing_of(self._state.timer_log.read(position)), position)

    async def _was_delivered(self, schedule: ScheduleId) -> bool:
        """Whether the log shows the delivery of a schedule whose last copy has no unit, near its due time."""
        delay = await self._accepted(schedule)
        if delay is None:
            return False
        target = Target(delay.topic_id, delay.partition)
        written = schedule.text.encode("ascii")
        read_bytes = 0
        try:
            offset = await self._partitions.offset_for_time(target, schedule.due_ms)
            while read_bytes < _EVIDENCE_BYTES_MAX:
                result = await self._partitions.read(target, offset, max_bytes=_EVIDENCE_READ_BYTES)
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

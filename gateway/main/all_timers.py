"""The delayed records that a node has, as one timer: those of its own store, if it has one, and of the shards of
`__timer` that are here. Lists go through one timer after the other; in the order of due times they are merged.

A position is the number of the timer (0: the node's own, shard N: N + 1) times _PER_TIMER, and the position there. A
shard that goes to another node while somebody turns pages may be met twice, or missed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gateway.cluster.timer_shard import shard_at
from gateway.main.timer_shards import TimerShards, shard_of_key
from timer.changes import Standing
from timer.changing import Outcome
from timer.metrics import TimerMetrics
from timer.schedule import ScheduleId
from timer.schedules import LAST_POSITION, Census, DuePage, DuePosition, Page, Query, Schedule
from timer.service import TimerService

_PER_TIMER = 10**16
"""More than the bytes of a timer log."""


class AllTimers:
    """See the module."""

    def __init__(self, own: TimerService | None, shards: TimerShards, metrics: TimerMetrics) -> None:
        """`metrics`: of all, which count together."""
        self._own = own
        self._shards = shards
        self.metrics = metrics

    def _all(self) -> dict[int, TimerService]:
        own = {} if self._own is None else {0: self._own}
        return own | {shard + 1: timer for shard, timer in self._shards.here().items()}

    def _find(self, schedule: ScheduleId) -> TimerService | None:
        """The timer that has a schedule; None: its id is one of a store, and there is none here. Raises Overloaded when
        its shard is not here."""
        shard = shard_at(schedule.position)
        return self._own if shard is None else self._shards.timer(shard)

    def _of(self, schedule: ScheduleId) -> TimerService:
        """The timer that has a schedule of which `topic_of` knew."""
        timer = self._find(schedule)
        assert timer is not None
        return timer

    # ---- one ---------------------------------------------------------------------------------------------------------

    async def named(self, topic_id: int, key: bytes) -> ScheduleId | None:
        """See `TimerService.named`. Raises Overloaded, too, while the shard of the key is being taken over."""
        found = None if self._own is None else await self._own.named(topic_id, key)
        if found is None and (shard := self._shards.shard_here(shard_of_key(topic_id, key))) is not None:
            return await shard.named(topic_id, key)
        return found

    async def find(self, schedule: ScheduleId) -> tuple[Standing, Schedule | None]:
        """See `TimerService.find`."""
        timer = self._find(schedule)
        return (Standing.UNKNOWN, None) if timer is None else await timer.find(schedule)

    async def topic_of(self, schedule: ScheduleId) -> int | None:
        """See `TimerService.topic_of`."""
        timer = self._find(schedule)
        return None if timer is None else await timer.topic_of(schedule)

    async def cancel(self, schedule: ScheduleId) -> Outcome:
        """See `TimerService.cancel`."""
        return await self._of(schedule).cancel(schedule)

    async def move(self, schedule: ScheduleId, due_ms: int) -> Outcome:
        """See `TimerService.move`."""
        return await self._of(schedule).move(schedule, due_ms)

    async def fire(self, schedule: ScheduleId) -> Outcome:
        """See `TimerService.fire`."""
        return await self._of(schedule).fire(schedule)

    # ---- many --------------------------------------------------------------------------------------------------------

    async def page(self, query: Query, *, cursor: int = 0, limit: int) -> Page:
        """See `TimerService.page`."""
        first, at = divmod(cursor, _PER_TIMER)
        schedules: list[Schedule] = []
        positions: list[int] = []
        for number, timer in self._all().items():
            if number < first:
                continue
            if len(schedules) == limit:
                return Page(schedules, number * _PER_TIMER, positions)
            part = await timer.page(query, cursor=at if number == first else 0, limit=limit - len(schedules))
            schedules += part.schedules
            positions += [number * _PER_TIMER + position for position in part.positions]
            if part.next_cursor is not None:
                return Page(schedules, number * _PER_TIMER + part.next_cursor, positions)
        return Page(schedules, None, positions)

    async def page_by_due(self, query: Query, *, after: DuePosition | None, limit: int) -> DuePage:
        """See `TimerService.page_by_due`."""
        found: list[tuple[DuePosition, Schedule]] = []
        ends: list[DuePosition] = []
        for number, timer in self._all().items():
            part = await timer.page_by_due(query, after=_after_in(number, after), limit=limit)
            at = (DuePosition(due_ms, number * _PER_TIMER + position) for due_ms, position in part.positions)
            found += zip(at, part.schedules, strict=True)
            if part.next_after is not None:
                ends.append(_in_all(number, part.next_after))
        found.sort(key=lambda one: one[0])
        until = min(ends, default=None)
        if until is not None:  # behind it one of them has told nothing
            found = found[: bisect_right(found, until, key=lambda one: one[0])]
        next_after = until
        if len(found) > limit:
            found = found[:limit]
            next_after = found[-1][0]
        return DuePage([schedule for _, schedule in found], next_after, [at for at, _ in found])

    async def census(self, query: Query, bounds_ms: Sequence[int]) -> Census:
        """See `TimerService.census`."""
        parts = [await timer.census(query, bounds_ms) for timer in self._all().values()]
        nothing = [0] * (len(bounds_ms) - 1)
        counts = [sum(each) for each in zip(nothing, *(part.counts for part in parts), strict=True)]
        return Census(counts, sum(part.overdue_count for part in parts), sum(part.rolled_count for part in parts))

    async def count(self, query: Query) -> int:
        """See `TimerService.count`."""
        return sum([await timer.count(query) for timer in self._all().values()])

    async def cancel_all(self, query: Query) -> int:
        """See `TimerService.cancel_all`."""
        return sum([await timer.cancel_all(query) for timer in self._all().values()])

    # ---- figures -----------------------------------------------------------------------------------------------------

    def _sum(self, of: Callable[[TimerService], int]) -> int:
        return sum(map(of, self._all().values()))

    @property
    def pending_count(self) -> int:
        """See `TimerService.pending_count`."""
        return self._sum(lambda timer: timer.pending_count)

    @property
    def intake_lag_count(self) -> int:
        """See `TimerService.intake_lag_count`."""
        return self._sum(lambda timer: timer.intake_lag_count)

    def pending_counts(self) -> Mapping[int, int]:
        """See `TimerService.pending_counts`."""
        counts: Counter[int] = Counter()
        for timer in self._all().values():
            counts.update(timer.pending_counts())
        return counts

    @property
    def read_lag_ms(self) -> int:
        """See `TimerService.read_lag_ms`: the longest."""
        return max((timer.read_lag_ms for timer in self._all().values()), default=0)

    @property
    def write_lag_ms(self) -> int:
        """See `TimerService.write_lag_ms`: the longest."""
        return max((timer.write_lag_ms for timer in self._all().values()), default=0)


def _after_in(number: int, after: DuePosition | None) -> DuePosition | None:
    """What one timer is asked for behind a position of all."""
    if after is None:
        return None
    at, position = divmod(after.position, _PER_TIMER)
    if number > at:
        return DuePosition(after.due_ms, -1)
    return DuePosition(after.due_ms, LAST_POSITION if number < at or position == _PER_TIMER - 1 else position)


def _in_all(number: int, after: DuePosition) -> DuePosition:
    """A position of one timer among those of all."""
    return DuePosition(after.due_ms, number * _PER_TIMER + min(after.position, _PER_TIMER - 1))

"""Several timers as one: lists in both orders, page by page, and what is counted.

Covers gateway.main.all_timers.
"""

from __future__ import annotations

from typing import cast

import pytest

from gateway.main.all_timers import AllTimers
from gateway.main.timer_shards import TimerShards, shard_of_key, shard_of_partition
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import FakeKeyIndex, FakeLog, make_timer, settle
from timer.schedules import Query
from timer.service import TimerService


class Shards:
    """Of which some are here."""

    def __init__(self) -> None:
        self.timers: dict[int, TimerService] = {}

    def here(self) -> dict[int, TimerService]:
        return self.timers


async def all_timers(*dues_ms: list[int]) -> tuple[AllTimers, FakeClock]:
    """The node's own timer, and of shards 0, 1 ...; each with schedules due so many ms after the start."""
    clock, shards, found = FakeClock(), Shards(), []
    for number, its_dues_ms in enumerate(dues_ms):
        log = FakeLog(clock)
        timer = make_timer(log, SimDisk(), clock, key_index=FakeKeyIndex())
        await timer.start()
        for due_ms in its_dues_ms:
            await log.accept([(START_MS + due_ms, b"%d" % due_ms)])
        await settle(timer)
        found.append(timer)
        if number:
            shards.timers[number - 1] = timer
    return AllTimers(found[0], cast(TimerShards, shards), found[0].metrics), clock


DUES_MS = ([5000, 1000, 3000], [], [2000, 3000, 9000, 3000], [4000, 1000])


@pytest.mark.parametrize("limit", [1, 2, 3, 9, 10])
async def test_pages_have_each_schedule_once(limit: int) -> None:
    timers, _ = await all_timers(*DUES_MS)
    in_turn: list[int] = []
    cursor: int | None = 0
    while cursor is not None:
        page = await timers.page(Query(), cursor=cursor, limit=limit)
        assert len(page.schedules) <= limit
        assert len(page.positions) == len(page.schedules)
        in_turn += [schedule.id.due_ms - START_MS for schedule in page.schedules]
        cursor = page.next_cursor
    assert in_turn == [due_ms for dues_ms in DUES_MS for due_ms in dues_ms]

    by_due: list[int] = []
    after = None
    while True:
        due_page = await timers.page_by_due(Query(), after=after, limit=limit)
        assert len(due_page.schedules) <= limit
        by_due += [schedule.id.due_ms - START_MS for schedule in due_page.schedules]
        if (after := due_page.next_after) is None:
            break
    assert by_due == sorted(in_turn)


async def test_a_page_goes_on_behind_any_schedule_that_was_shown() -> None:
    timers, _ = await all_timers(*DUES_MS)
    whole = await timers.page_by_due(Query(), after=None, limit=50)
    for number, position in enumerate(whole.positions):
        rest = await timers.page_by_due(Query(), after=position, limit=50)
        assert [one.id for one in rest.schedules] == [one.id for one in whole.schedules[number + 1 :]]
    accepted = await timers.page(Query(), limit=50)
    for number, at in enumerate(accepted.positions):
        rest_of = await timers.page(Query(), cursor=at, limit=50)
        assert [one.id for one in rest_of.schedules] == [one.id for one in accepted.schedules[number:]]


async def test_counts_are_those_of_all() -> None:
    timers, clock = await all_timers(*DUES_MS)
    assert timers.pending_count == 9
    assert await timers.count(Query(from_ms=START_MS + 3000, to_ms=START_MS + 5000)) == 4
    census = await timers.census(Query(), [START_MS, START_MS + 3000, START_MS + 10_000])
    assert census.counts == [3, 6]
    assert sum(timers.pending_counts().values()) == 9
    assert await timers.cancel_all(Query(to_ms=START_MS + 3000)) == 3
    assert timers.read_lag_ms >= 0
    clock.step(1000)
    assert timers.write_lag_ms >= 0


def test_shards_are_chosen_for_good() -> None:
    assert {shard_of_partition(16, partition) for partition in range(200)} == set(range(16))
    assert [shard_of_partition(16, 0), shard_of_partition(17, 3)] == [11, 6]
    assert shard_of_key(16, b"mine") == 0
    assert shard_of_key(17, b"mine") == 5

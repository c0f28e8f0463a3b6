"""store/ahead.py: which records are dated ahead, and that a search by record time passes over none of them. What a
crash leaves of it is P9 of tests/properties/store_world.py."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from store import ahead
from store.ahead import AHEAD_MS, ROWS_MAX, STRETCHES_MAX, AheadTable, Stretch
from store.record_batch import max_timestamp_ms
from store.store import Store
from store.types import Boundary, QueueKey
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.store.kit import SMALL, abandon, append_of, entries_of, open_store, opened

QUEUE, OTHER = QueueKey(16, 0), QueueKey(17, 0)
HOUR_MS = 3_600_000


def table_of(*leads_ms: int, batch: int = 10) -> AheadTable:
    """Batches of ten records that are dated so much ahead of a second each."""
    table = AheadTable()
    for number, lead_ms in enumerate(leads_ms):
        table.add(QUEUE, number * batch, number * batch + batch, store_time_ms=number, dated_ms=number + lead_ms)
    return table


def test_batches_of_one_clock_are_one_stretch_and_others_their_own() -> None:
    table = table_of(HOUR_MS, HOUR_MS + 7, HOUR_MS - 3, 30 * HOUR_MS, HOUR_MS)
    assert table.of(QUEUE) == [
        Stretch(0, 30, HOUR_MS + 7, HOUR_MS + 8),
        Stretch(30, 40, 30 * HOUR_MS, 30 * HOUR_MS + 3),
        Stretch(40, 50, HOUR_MS, HOUR_MS + 4),
    ]
    assert table.of(OTHER) == ()


def test_a_queue_has_a_bounded_number_of_stretches_that_cover_all() -> None:
    leads_ms = [HOUR_MS << number % 7 for number in range(1_000)]
    for count in (STRETCHES_MAX, STRETCHES_MAX + 1, 1_000):
        table = table_of(*leads_ms[:count])
        stretches = table.of(QUEUE)
        assert len(stretches) == STRETCHES_MAX
        for number, lead_ms in enumerate(leads_ms[:count]):
            [one] = [one for one in stretches if one.first <= number * 10 < one.end]
            assert one.lead_ms >= lead_ms
            assert one.max_ms >= number + lead_ms


def test_what_is_known_changes_nothing_and_the_table_is_saved_whole() -> None:
    table = table_of(HOUR_MS, 5 * HOUR_MS)
    before = table.rows()
    table.add(QUEUE, 0, 10, store_time_ms=0, dated_ms=HOUR_MS)
    assert table.rows() == before == [[16, 0, 0, 10, HOUR_MS, HOUR_MS], [16, 0, 10, 20, 5 * HOUR_MS, 5 * HOUR_MS + 1]]
    again = AheadTable()
    again.restore(before)
    assert again.of(QUEUE) == table.of(QUEUE)


def test_what_is_gone_is_forgotten() -> None:
    table = table_of(HOUR_MS, 5 * HOUR_MS)
    table.add(OTHER, 3, 4, store_time_ms=0, dated_ms=HOUR_MS)
    table.prune(lambda queue: 5 if queue == QUEUE else 3)
    table.cut(lambda queue: 10 if queue == QUEUE else 9)
    assert [(one.first, one.end) for one in table.of(QUEUE)] == [(5, 10)]
    assert len(table.of(OTHER)) == 1
    table.cut(lambda queue: 0)
    assert table.rows() == []
    table = table_of(HOUR_MS)
    table.drop_topic(QUEUE.topic_id)
    assert table.rows() == []


def test_all_queues_together_have_a_bounded_number_of_rows() -> None:
    table = AheadTable()
    queues = [QueueKey(16, number) for number in range(ROWS_MAX + 1)]
    for queue in queues[:-1]:
        table.add(queue, 0, 10, store_time_ms=0, dated_ms=HOUR_MS)
    assert len(table.rows()) == ROWS_MAX
    assert table.of_others is None
    table.add(queues[0], 10, 20, store_time_ms=0, dated_ms=9 * HOUR_MS)
    assert table.of(queues[0]) == [Stretch(0, 20, 9 * HOUR_MS, 9 * HOUR_MS)]
    table.add(queues[-1], 7, 9, store_time_ms=5, dated_ms=3 * HOUR_MS)
    table.add(OTHER, 0, 1, store_time_ms=0, dated_ms=2 * HOUR_MS)
    assert table.of(queues[-1]) == table.of(OTHER) == ()
    assert table.of_others is not None
    assert (table.of_others.lead_ms, table.of_others.max_ms) == (3 * HOUR_MS - 5, 3 * HOUR_MS)
    assert len(table.rows()) == ROWS_MAX + 1
    again = AheadTable()
    again.restore(table.rows())
    assert again.rows() == table.rows()
    again.cut(lambda queue: 0)  # it stays: what it says of the others is not known queue by queue
    assert again.of_others == table.of_others
    again.add(OTHER, 0, 1, store_time_ms=0, dated_ms=HOUR_MS)
    assert len(again.of(OTHER)) == 1


async def put_dated(store: Store, queue: QueueKey, dated_ms: int, count: int = 1) -> None:
    await store.append([append_of(queue, [b"x"] * count, dated_ms=dated_ms)])


async def check(store: Store, queue: QueueKey, dates_ms: Sequence[int]) -> None:
    """Batches of two records with these dates, from offset 0 on: no search begins behind the first that it is for."""
    assert [max_timestamp_ms(entry.batch) for entry in await entries_of(store, queue)] == dates_ms
    for time_ms in {time_ms + by for time_ms in dates_ms for by in (-1, 0, 1)}:
        first = next((2 * at for at, dated_ms in enumerate(dates_ms) if dated_ms >= time_ms), 2 * len(dates_ms))
        assert await store.offset_for_time(queue, time_ms, Boundary.DATED) <= first, time_ms


async def test_the_first_record_of_a_time_is_found_whatever_it_is_dated() -> None:
    disk, clock, rng = SimDisk(), FakeClock(), Random(25)
    store = await open_store(disk, clock=clock)
    topic, _ = await store.create_topic("orders", 1)
    queue, dates_ms = QueueKey(topic.topic_id, 0), list[int]()
    for number in range(200):
        clock.step(rng.choice((0, 40, 5_000, HOUR_MS)))
        lead_ms = rng.choice((0, -HOUR_MS, AHEAD_MS, AHEAD_MS + 1, HOUR_MS, 2**40, 2**60 >> rng.randrange(48)))
        dates_ms.append(clock.now_ms() + (lead_ms if rng.random() < 0.3 else 0))
        await put_dated(store, queue, dates_ms[-1], 2)
        if number % 40 == 20:
            await store._save_checkpoint()
        if number % 40 == 39:
            await abandon()
            disk.kill()
            store = await open_store(disk, clock=clock)
            await check(store, queue, dates_ms)
    await store.close()
    async with opened(disk, clock=clock) as again:
        await check(again, queue, dates_ms)
        assert len(again._ahead.of(queue)) == STRETCHES_MAX
    for path in list(disk.paths()):  # the snapshot of the topics is lost, and all of the log is there
        if "meta." in path:
            disk.remove(SMALL.root / path.rsplit("/", 1)[-1])
    async with opened(disk, clock=clock) as again:
        await check(again, queue, dates_ms)


async def test_the_first_record_of_a_time_is_found_though_its_queue_has_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead, "ROWS_MAX", 1)
    disk, clock = SimDisk(), FakeClock()
    async with opened(disk, clock=clock) as store:
        topic, _ = await store.create_topic("orders", 2)
        dates_ms = []
        for lead_ms in (0, HOUR_MS, 0, 2**50, 5 * HOUR_MS):
            clock.step(HOUR_MS)
            dates_ms.append(clock.now_ms() + lead_ms)
            for partition in (0, 1):
                await put_dated(store, QueueKey(topic.topic_id, partition), dates_ms[-1], 2)
        assert store._ahead.of(QueueKey(topic.topic_id, 1)) == ()
        for partition in (0, 1):
            await check(store, QueueKey(topic.topic_id, partition), dates_ms)
    async with opened(disk, clock=clock) as again:
        for partition in (0, 1):
            await check(again, QueueKey(topic.topic_id, partition), dates_ms)


@pytest.mark.parametrize("lead_ms", [0, AHEAD_MS + 1, HOUR_MS])
async def test_a_search_begins_near_its_record_though_the_clock_of_its_producer_is_off(
    lead_ms: int,
) -> None:
    clock = FakeClock()
    async with opened(SimDisk(), clock=clock) as store:
        topic, _ = await store.create_topic("orders", 1)
        queue = QueueKey(topic.topic_id, 0)
        for _ in range(300):
            clock.step(60_000)
            await put_dated(store, queue, clock.now_ms() + lead_ms)
        for number in (0, 150, 299):
            time_ms = START_MS + (number + 1) * 60_000 + lead_ms
            assert await store.offset_for_time(queue, time_ms, Boundary.DATED) == number
        await put_dated(store, queue, 2**60)
        assert await store.offset_for_time(queue, 2**50, Boundary.DATED) == 300
        assert await store.offset_for_time(queue, 2**61, Boundary.DATED) == 301
        assert await store.offset_for_time(queue, -5, Boundary.DATED) == 0

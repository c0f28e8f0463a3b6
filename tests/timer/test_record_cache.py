"""timer.record_cache: what is decoded of an entry, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from store.errors import Corrupt
from store.record_batch import Record, encode, zstd_packed
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay, Source
from tests.clock import START_MS, FakeClock
from tests.timer.fakes import TARGET, FakeLog
from timer.entry_reader import STARTS_OVERHEAD_BYTES, EntryReader
from timer.record_cache import Body, RecordCache, pick


async def log_with(count: int, *, pack: bool = False, tagged: bool = True) -> tuple[FakeLog, list[int]]:
    """A log with three entries of so many delayed records, of all sizes; and where they are."""
    log, rng, positions = FakeLog(FakeClock()), Random(count), []
    for _ in range(3):
        records = [
            Record(
                rng.choice((None, b"", b"k%d" % number)),
                rng.choice((None, b"", rng.randbytes(rng.choice((1, 60, 70, 20_000))))),
                START_MS + number,
                rng.choice(((), [("a", b"1"), ("b", None)])),
            )
            for number in range(count)
        ]
        batch = encode(records)
        append = Append(
            queue=TIMER_QUEUE,
            batch=zstd_packed(batch, level=1) if pack else batch,
            record_count=count,
            delays=[Delay(START_MS + 7 * number, *TARGET) for number in range(count)],
            tag_hashes=[number * 3 for number in range(count)] if tagged else (),
        )
        (appended,) = await log.append([append], acks=Acks.FLUSHED)
        positions.append(appended.position)
    return log, positions


def reader_of(
    log: FakeLog, starts_bytes_max: int = 1 << 23, yield_to_loop: Callable[[], Awaitable[None]] | None = None
) -> EntryReader:
    return EntryReader(
        log.entry_at_hand,
        log.read_entry,
        log.read_entries,
        yield_to_loop or log.yield_to_loop,
        starts_bytes_max=starts_bytes_max,
    )


def record_cache_of(log: FakeLog, bytes_max: int = 1 << 24) -> RecordCache:
    return RecordCache(reader_of(log, bytes_max // 2), bytes_max=bytes_max)


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("count", [1, 2, 700])
async def test_a_few_records_of_an_entry_are_those_of_the_whole_one(count: int, tagged: bool, pack: bool) -> None:
    log, (position, *_) = await log_with(count, pack=pack, tagged=tagged)
    whole = await record_cache_of(log).get(position, range(count))
    rng = Random(count)
    record_cache = record_cache_of(log)
    for _ in range(20):
        indexes = rng.sample(range(count), min(count, rng.choice((1, 2, 17, 400))))
        some = await record_cache.get(position, indexes)
        for index in indexes:
            source = Source(position, index)
            assert pick(source, some) == pick(source, whole)


async def test_only_what_is_wanted_is_decoded_and_the_rest_when_it_is_wanted() -> None:
    log, positions = await log_with(100)
    record_cache = record_cache_of(log)
    assert await record_cache.read_ahead({positions[2]: [1]}) == 1, "it learns how large they are"
    assert await record_cache.read_ahead({position: [5, 3] for position in positions}) == 3
    first: Body = await record_cache.get(positions[0], [3])
    assert first.rows == {3: 0, 5: 1}
    assert len(first.keys) == len(first.delays) == len(first.tag_hashes) == 2
    assert first.has([3, 5])
    assert not first.has([3, 4])
    assert (await record_cache.get(positions[0], [4])).rows == {4: 0}
    assert (await record_cache.get(positions[0], range(25))).rows is None, "a quarter of it: the whole"
    assert (await record_cache.get(positions[0], [99])).rows is None


async def test_others_have_a_turn_after_so_many_records_of_however_many_entries() -> None:
    log, positions = await log_with(700)
    turn_count = 0

    async def yield_to_loop() -> None:
        nonlocal turn_count
        turn_count += 1

    record_cache = RecordCache(reader_of(log, yield_to_loop=yield_to_loop), bytes_max=1 << 24)
    for position in positions:
        await record_cache.get(position, [0])  # finds where its records start
    for count, expected in ((50, 2), (150, 7), (700, 32)):
        turn_count = 0
        for position in positions:
            await record_cache.get(position, range(1, count + 1))
        assert turn_count in (expected, expected + 1), "one in 64 records, and what was left over before"


async def test_a_record_that_the_entry_does_not_have_is_damage() -> None:
    log, (position, *_) = await log_with(100)
    record_cache = record_cache_of(log)
    for index in (100, 2**31):
        body = await record_cache.get(position, [7, index])
        assert pick(Source(position, 7), body).delay.due_ms == START_MS + 49
        with pytest.raises(Corrupt):
            pick(Source(position, index), body)
    alone = await record_cache.get(position, [100])
    with pytest.raises(Corrupt):
        pick(Source(position, 100), alone)


async def test_where_records_start_is_kept_within_half_of_the_bytes() -> None:
    log, positions = await log_with(100)
    each_bytes = 400 + STARTS_OVERHEAD_BYTES
    record_cache = record_cache_of(log, bytes_max=2 * 2 * each_bytes)
    for position in (*positions, *positions):
        await record_cache.get(position, [1])
    assert list(record_cache._reader._starts) == positions[1:]
    assert record_cache._reader._starts_bytes == 2 * each_bytes
    assert record_cache._bytes == sum(body.size_bytes for body in record_cache._cached.values())


async def test_all_of_an_entry_is_decoded_once_when_all_is_asked_for() -> None:
    log, (position, *_) = await log_with(100)
    record_cache = record_cache_of(log)
    some = await record_cache.get(position, [1])
    assert not some.has(None)
    whole = await record_cache.get(position, None)
    assert whole.has(None)
    assert len(whole.keys) == 100
    assert await record_cache.get(position, None) is whole
    assert await record_cache.get(position, [1]) is whole


async def test_a_few_records_do_not_take_the_place_of_a_whole_entry() -> None:
    log, (position, *_) = await log_with(700)
    record_cache = record_cache_of(log)
    decoding = asyncio.create_task(record_cache.get(position, None))
    for _ in range(5):
        await asyncio.sleep(0)
    some = await record_cache.get(position, [1])
    whole = await decoding
    assert some.rows == {1: 0}, "they were decoded at the same time"
    assert await record_cache.get(position, [1]) is whole
    assert record_cache._bytes == whole.size_bytes


@pytest.mark.parametrize("pack", [False, True])
async def test_all_that_is_held_counts(pack: bool) -> None:
    log = FakeLog(FakeClock())
    records = [Record(b"k" * 1000, b"v" * 2000, START_MS, [("name", b"h" * 5000)])] * 20
    batch = zstd_packed(encode(records), level=1) if pack else encode(records)
    delays = [Delay(START_MS, *TARGET)] * 20
    append = Append(queue=TIMER_QUEUE, batch=batch, record_count=20, delays=delays)
    (appended,) = await log.append([append], acks=Acks.FLUSHED)
    for indexes in ([3], None):
        body = await record_cache_of(log).get(appended.position, indexes)
        held_bytes = len(body.keys) * 3000 + 5000  # equal headers are held once
        assert held_bytes < body.size_bytes < held_bytes + 500 * len(body.keys) + 500

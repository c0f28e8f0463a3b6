"""What is held of decoded entries, and how it is taken out of them."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from store.errors import Corrupt
from store.record_batch import Record, encode
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay, Entry, Source
from tests.clock import START_MS, FakeClock
from tests.timer.fakes import TARGET, FakeLog
from timer.delivery import DueRecords
from timer.items import pack_item
from timer.record_cache import RecordCache, pick

COUNT = 1000


async def _log_with_an_entry() -> tuple[FakeLog, int]:
    log = FakeLog(FakeClock())
    headers = [("content-type", b"text/plain")]
    records = [Record(b"k%d" % number, b"v%d" % number, START_MS, headers) for number in range(COUNT)]
    delays = [Delay(START_MS + number, *TARGET) for number in range(COUNT)]
    append = Append(queue=TIMER_QUEUE, batch=encode(records), record_count=COUNT, delays=delays)
    (appended,) = await log.append([append], acks=Acks.FLUSHED)
    return log, appended.position


async def test_a_decoded_entry_and_its_due_records_are_few_objects() -> None:
    log, position = await _log_with_an_entry()
    record_cache = RecordCache(
        log.entry_at_hand, log.read_entry, log.read_entries, log.yield_to_loop, bytes_max=1 << 20
    )
    gc.collect()
    before_count = len(gc.get_objects())
    body = await record_cache.get(position, range(COUNT))
    due = DueRecords(
        [pack_item(START_MS + number, position, number, START_MS // 1000, False) for number in range(COUNT)]
    )
    due.fill(range(COUNT), body)
    gc.collect()
    assert len(gc.get_objects()) - before_count < 100
    assert due.values[7] == b"v7"


async def test_due_records_are_what_picking_each_one_gives() -> None:
    log, position = await _log_with_an_entry()
    body = await RecordCache(
        log.entry_at_hand, log.read_entry, log.read_entries, log.yield_to_loop, bytes_max=1 << 20
    ).get(position, range(COUNT))
    numbers = (3, 999, 0)
    due = DueRecords([pack_item(START_MS, position, number, START_MS // 1000, False) for number in numbers])
    total_bytes = due.fill(range(3), body)
    picked = [pick(Source(position, number), body) for number in numbers]
    assert [one.record for one in picked] == list(map(Record, due.keys, due.values, due.timestamps_ms, due.headers))
    assert [one.size_bytes for one in picked] == due.sizes_bytes
    assert total_bytes == sum(due.sizes_bytes)
    with pytest.raises(Corrupt):
        pick(Source(position, COUNT), body)
    with pytest.raises(Corrupt):
        DueRecords([pack_item(START_MS, position, COUNT, START_MS // 1000, False)]).fill(range(1), body)


async def test_the_cache_keeps_the_last_used_up_to_its_bytes() -> None:
    log, first = await _log_with_an_entry()
    (entry,) = log.entries
    (second,) = await log.append(
        [Append(queue=TIMER_QUEUE, batch=bytes(entry.batch), record_count=COUNT, delays=entry.delays)],
        acks=Acks.FLUSHED,
    )
    reads: list[int] = []

    async def read_entry(position: int) -> Entry:
        reads.append(position)
        return await log.read_entry(position)

    size_bytes = (
        await RecordCache(log.entry_at_hand, read_entry, log.read_entries, log.yield_to_loop, bytes_max=1 << 20).get(
            first, range(COUNT)
        )
    ).size_bytes
    for bytes_max, expected in (
        (2 * size_bytes, [first, second.position]),
        (2 * size_bytes - 1, [first, second.position, first]),
    ):
        reads.clear()
        record_cache = RecordCache(
            log.entry_at_hand, read_entry, log.read_entries, log.yield_to_loop, bytes_max=bytes_max
        )
        for position in (first, second.position, first, first):
            await record_cache.get(position, range(COUNT))
        assert reads == expected


async def test_what_is_at_hand_is_decoded_one_by_one_and_the_rest_is_read_in_one_go() -> None:
    log, first = await _log_with_an_entry()
    (entry,) = log.entries
    append = Append(queue=TIMER_QUEUE, batch=bytes(entry.batch), record_count=COUNT, delays=entry.delays)
    positions = [first] + [(await log.append([append], acks=Acks.FLUSHED))[0].position for _ in range(4)]
    reads: list[list[int]] = []

    async def read_entries(wanted: Sequence[int]) -> list[Entry]:
        reads.append(list(wanted))
        return await log.read_entries(wanted)

    def entry_at_hand(position: int) -> Entry | None:
        if position in log.unreadable:
            raise Corrupt("commitlog", position, "CRC does not match")
        return log.entry_at_hand(position)

    record_cache = RecordCache(entry_at_hand, log.read_entry, read_entries, log.yield_to_loop, bytes_max=1 << 20)
    await record_cache.read_ahead({first: range(COUNT)})  # it knows about how large they are from here on
    assert reads == [[first]]
    reads.clear()
    log.at_hand, log.unreadable = {positions[1], positions[3]}, {positions[2]}
    assert await record_cache.read_ahead({position: [0, 7] for position in positions}) == len(positions)
    assert reads == [[positions[4]]], "what is decoded, at hand or damaged is not read"
    assert [record_cache.has(position, [0, 7]) for position in positions] == [True, True, False, True, True]
    with pytest.raises(Corrupt):
        await record_cache.get(positions[2], [0])
    reads.clear()
    log.at_hand = set(positions)
    await record_cache.get(positions[4], range(COUNT))
    assert not reads

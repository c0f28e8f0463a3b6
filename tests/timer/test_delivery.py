"""timer.ready, timer.delivery: what is due, made ready and put into batches."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from random import Random

import orjson
import pytest

from store.errors import Corrupt
from store.log.entry import packed_delays
from store.record_batch import Record, decode, encode, zstd_packed
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay, Entry, Source
from tests.clock import START_MS, FakeClock
from tests.timer.fakes import OTHER_TARGET, TARGET, FakeLog
from timer.delivery import Group, Grouping
from timer.entry_reader import EntryReader
from timer.items import Item, pack_item
from timer.ports import Target
from timer.ready import (
    DELIVER_AT_HEADER,
    FRAMING_BYTES,
    QUEUES_HEADER,
    ROW_OVERHEAD_BYTES,
    SCHEDULE_ID_HEADER,
    SCHEDULE_KEY_HEADER,
    Ready,
    make_row,
)
from timer.record_cache import RecordCache, pick
from timer.schedule import SLOT_MS, encode_schedule_id

COUNT = 1000
HEADERS = [("content-type", b"text/plain")]


async def append(log: FakeLog, records: Sequence[Record], **fields: object) -> int:
    """An entry of `__timer`; its position."""
    delays = [Delay(START_MS + number, *TARGET) for number in range(len(records))]
    given = {"batch": encode(records), "delays": delays, **fields}
    (appended,) = await log.append(
        [Append(queue=TIMER_QUEUE, record_count=len(records), **given)],  # type: ignore[arg-type]
        acks=Acks.FLUSHED,
    )
    return appended.position


async def log_with_an_entry() -> tuple[FakeLog, int]:
    log = FakeLog(FakeClock())
    records = [Record(b"k%d" % number, b"v%d" % number, START_MS, HEADERS) for number in range(COUNT)]
    return log, await append(log, records)


def items_at(position: int, indexes: Sequence[int] = range(COUNT), *, rolls: bool = False) -> list[Item]:
    return [pack_item(START_MS + index, position, index, START_MS // 1000, rolls) for index in indexes]


def reader_of(
    log: FakeLog,
    *,
    entry_at_hand: Callable[[int], Entry | None] | None = None,
    read_entries: Callable[..., object] | None = None,
) -> EntryReader:
    return EntryReader(
        entry_at_hand or log.entry_at_hand,
        log.read_entry,
        read_entries or log.read_entries,  # type: ignore[arg-type]
        log.yield_to_loop,
        starts_bytes_max=1 << 20,
    )


def grouped(items: Sequence[Item], rows: Sequence[bytes]) -> Grouping:
    grouping = Grouping(batch_bytes_max=1 << 20)
    for item, row in zip(items, rows, strict=True):
        grouping.add(item, row)
    return grouping


def fields(group: Group) -> list[tuple[object, ...]]:
    return [(record.key, record.value, record.timestamp, list(record.headers)) for record in decode(group.due().batch)]


async def test_what_is_ready_and_its_due_records_are_few_objects() -> None:
    log, position = await log_with_an_entry()
    ready = Ready(reader_of(log), bytes_max=1 << 20)
    items = items_at(position)
    gc.collect()
    before_count = len(gc.get_objects())
    rows = await ready.get(position, items)
    grouping = grouped(items, rows)
    gc.collect()
    assert len(gc.get_objects()) - before_count < 100
    assert len(grouping.firing[0].items) == COUNT


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("count", [1, 17, 400])
async def test_what_is_delivered_is_what_was_accepted_and_two_headers(count: int, pack: bool) -> None:
    log, rng = FakeLog(FakeClock()), Random(count)
    key_header, own_header, lie = (SCHEDULE_KEY_HEADER, b"key"), ("a", None), (SCHEDULE_ID_HEADER, b"lie")
    records = [
        Record(
            rng.choice((None, b"", b"k%d" % number)),
            rng.choice((None, b"", rng.randbytes(rng.choice((1, 63, 64, 9000))))),
            START_MS + rng.randrange(-5000, 5000),
            rng.choice(((), (), [own_header], [key_header, own_header], [lie, own_header])),
        )
        for number in range(700)
    ]
    batch = encode(records)
    origin = rng.randrange(700)
    delays = [
        Delay(START_MS + number, *rng.choice((TARGET, OTHER_TARGET)), *((64, 5) if number == origin else ()))
        for number in range(700)
    ]
    position = await append(
        log, records, batch=zstd_packed(batch, level=1) if pack else batch, delays=delays,
        tag_hashes=[number * 3 for number in range(700)], json_values=True,
    )  # fmt: skip
    indexes = sorted({origin, *rng.sample(range(700), count)})
    items = items_at(position, indexes)
    grouping = grouped(items, await Ready(reader_of(log), bytes_max=1 << 24).get(position, items))
    assert not grouping.rolling
    for group in grouping.firing:
        own = [index for index in indexes if delays[index][1:3] == group.target]
        expected = []
        for index in own:
            record, from_ = records[index], (64, 5) if index == origin else (position, index)
            kept = [header for header in record.headers if header != lie]
            schedule_id = encode_schedule_id(START_MS + index, *from_).encode()
            added = [(DELIVER_AT_HEADER, b"%d" % (START_MS + index)), (SCHEDULE_ID_HEADER, schedule_id)]
            expected.append((record.key, record.value, record.timestamp_ms, kept + added))
            assert group.first_id.encode() != schedule_id or index == own[0]
        assert fields(group) == expected
        due = group.due()
        assert (due.target, due.record_count, due.json_values) == (group.target, len(own), True)
        assert list(due.tag_hashes or [0] * len(own)) == [index * 3 for index in own]
        assert list(due.sources) == [Source(position, index) for index in own]
        assert group.size_bytes >= len(due.batch) - 61 + 20 * len(own), "with what an entry says of them"


async def test_what_rolls_is_as_it_was_accepted_and_knows_where_it_comes_from() -> None:
    log = FakeLog(FakeClock())
    records = [Record(None, b"%d" % number, START_MS, [(QUEUES_HEADER, b'["q"]'), *HEADERS]) for number in range(2)]
    delays = [Delay(START_MS + 99_000, *TARGET), Delay(START_MS + 99_001, *TARGET, 64, 5)]
    position = await append(log, records, delays=delays)
    items = items_at(position, range(2), rolls=True)
    grouping = grouped(items, await Ready(reader_of(log), bytes_max=1 << 20).get(position, items))
    assert not grouping.firing
    [group] = grouping.rolling
    assert (group.target, group.first_id) == (Target(*TIMER_QUEUE), "")
    made = group.append()
    assert (made.queue, list(made.delays)) == (TIMER_QUEUE, [Delay(*delays[0][:3], position, 0), delays[1]])
    assert fields(group) == [(None, b"%d" % number, START_MS, list(records[number].headers)) for number in range(2)]


async def test_names_of_light_queues_are_the_batch_s_and_in_no_header() -> None:
    log = FakeLog(FakeClock())
    names = [(), (b"a", "b\u00e4".encode()), ()]
    records = [
        Record(None, b"v", START_MS, [(QUEUES_HEADER, orjson.dumps([one.decode() for one in own]))] if own else ())
        for own in names
    ]
    position = await append(log, records)
    items = items_at(position, range(3))
    [group] = grouped(items, await Ready(reader_of(log), bytes_max=1 << 20).get(position, items)).firing
    due = group.due()
    assert due.light is not None
    assert [tuple(own) for own in due.light.of_records()] == names
    assert all(
        [name for name, _ in headers] == [DELIVER_AT_HEADER, SCHEDULE_ID_HEADER] for *_, headers in fields(group)
    )
    first, second = group.halves()
    assert fields(first) + fields(second) == fields(group)


async def test_batches_are_cut_at_their_bytes_and_halves_are_the_whole() -> None:
    log, position = await log_with_an_entry()
    items = items_at(position)
    rows = await Ready(reader_of(log), bytes_max=1 << 20).get(position, items)
    [whole] = grouped(items, rows).firing
    grouping = Grouping(batch_bytes_max=whole.size_bytes - 1)
    for item, row in zip(items, rows, strict=True):
        grouping.add(item, row)
    assert [len(group.items) for group in grouping.firing] == [COUNT - 1, 1]
    halves = whole.halves()
    assert [item for half in halves for item in half.items] == items
    assert fields(halves[0]) + fields(halves[1]) == fields(whole)


def row_of(
    partition: int = 1,
    *,
    headers: Sequence[tuple[str, bytes]] = (),
    tag_hash: int = 0,
    rolls: bool = False,
    is_json: bool = True,
    at: int = 0,
) -> tuple[Item, bytes]:
    due_ms = START_MS + at
    batch = encode([Record(b"k", b"%d" % at, START_MS - at % 3, headers)])
    [record] = decode(batch)
    item = pack_item(due_ms, 64, at, due_ms // SLOT_MS, rolls)
    delay = packed_delays([Delay(due_ms, 7, partition, 64, at)]).row_bytes(0)
    return item, make_row(record, delay, tag_hash, item=item, schedule_id=b"s" * 28, is_json=is_json)


@pytest.mark.parametrize("tags", [(0, 0, 0), (0, 5, 0)])
@pytest.mark.parametrize("json", [(True, True, True), (True, False, True)])
def test_records_of_one_partition_are_grouped_by_columns_as_one_by_one(
    tags: Sequence[int], json: Sequence[bool]
) -> None:
    made = [
        row_of(tag_hash=tag, is_json=is_json, at=at) for at, (tag, is_json) in enumerate(zip(tags, json, strict=True))
    ]
    items, rows = [item for item, _ in made], [row for _, row in made]
    grouping = Grouping(batch_bytes_max=1 << 20)
    assert grouping.add_alike(items, rows)
    expected = grouped(items, rows)
    assert (grouping.firing, grouping.rolling) == (expected.firing, [])
    assert grouping.firing[0].due() == expected.firing[0].due()
    # What comes behind it goes into the same group.
    later = row_of(headers=[(QUEUES_HEADER, b'["q"]')], at=9)
    grouping.add(*later)
    expected.add(*later)
    assert grouping.firing == expected.firing


@pytest.mark.parametrize(
    "other",
    [
        row_of(2, at=1),
        row_of(headers=[(QUEUES_HEADER, b'["q"]')], at=1),
        row_of(rolls=True, at=1),
    ],
    ids=["another partition", "light queues", "rolls"],
)
def test_what_is_not_one_plain_group_is_added_one_by_one(other: tuple[Item, bytes]) -> None:
    first = row_of()
    grouping = Grouping(batch_bytes_max=1 << 20)
    assert not grouping.add_alike([first[0], other[0]], [first[1], other[1]])
    assert (grouping.firing, grouping.rolling) == ([], [])


@pytest.mark.parametrize(("over", "is_one"), [(0, True), (1, False)])
def test_columns_are_of_what_one_batch_takes(over: int, is_one: bool) -> None:
    made = [row_of(at=at) for at in range(3)]
    size = sum(len(row) + FRAMING_BYTES for _, row in made)
    grouping = Grouping(batch_bytes_max=size - over)
    assert grouping.add_alike([item for item, _ in made], [row for _, row in made]) is is_one


async def test_a_record_that_the_entry_does_not_have_is_damage() -> None:
    log, position = await log_with_an_entry()
    ready = Ready(reader_of(log), bytes_max=1 << 20)
    with pytest.raises(Corrupt, match=f"no delayed record {COUNT}"):
        await ready.get(position, items_at(position, [7, COUNT]))
    assert not ready.missing(items_at(position, [7]))
    body = await RecordCache(reader_of(log), bytes_max=1 << 20).get(position, range(COUNT))
    assert pick(Source(position, 7), body).delay == Delay(START_MS + 7, *TARGET)
    with pytest.raises(Corrupt):
        pick(Source(position, COUNT), body)


async def test_rows_are_dropped_one_by_one_and_given_up_when_they_are_too_many() -> None:
    log, position = await log_with_an_entry()
    items = items_at(position)
    rows = await Ready(reader_of(log), bytes_max=1 << 20).get(position, items)
    bytes_max = sum(len(row) + ROW_OVERHEAD_BYTES for row in rows)
    ready = Ready(reader_of(log), bytes_max=bytes_max)
    for _ in range(2):
        assert await ready.get(position, items) == rows
        assert not ready.missing(items)
        assert ready._bytes == bytes_max
        ready.drop(items[:600])
        ready.drop(items[:600])
        assert ready.missing(items) == items[:600]
    ready.drop(items)
    assert ready._bytes == 0
    ready = Ready(reader_of(log), bytes_max=bytes_max - 1)
    assert await ready.get(position, items) == rows, "who asks has them all the same"
    assert (ready.missing(items), ready._bytes) == (items, 0)


async def test_the_cache_keeps_the_last_used_up_to_its_bytes() -> None:
    log, first = await log_with_an_entry()
    (entry,) = log.entries
    second = await append(log, [Record(None, None, 0)] * COUNT, batch=bytes(entry.batch))
    reads: list[int] = []
    read_entry = log.read_entry

    async def counted(position: int) -> Entry:
        reads.append(position)
        return await read_entry(position)

    log.read_entry = counted  # type: ignore[method-assign]
    size_bytes = (await RecordCache(reader_of(log), bytes_max=1 << 20).get(first, range(COUNT))).size_bytes
    for bytes_max, expected in (
        (2 * size_bytes, [first, second]),
        (2 * size_bytes - 1, [first, second, first]),
    ):
        reads.clear()
        record_cache = RecordCache(reader_of(log), bytes_max=bytes_max)
        for position in (first, second, first, first):
            await record_cache.get(position, range(COUNT))
        assert reads == expected


async def test_what_is_at_hand_is_decoded_one_by_one_and_the_rest_is_read_in_one_go() -> None:
    log, first = await log_with_an_entry()
    (entry,) = log.entries
    again = [await append(log, [Record(None, None, 0)] * COUNT, batch=bytes(entry.batch)) for _ in range(4)]
    positions = [first, *again]
    reads: list[list[int]] = []

    async def read_entries(wanted: Sequence[int]) -> list[Entry]:
        reads.append(list(wanted))
        return await log.read_entries(wanted)

    def entry_at_hand(position: int) -> Entry | None:
        if position in log.unreadable:
            raise Corrupt("commitlog", position, "CRC does not match")
        return log.entry_at_hand(position)

    ready = Ready(reader_of(log, entry_at_hand=entry_at_hand, read_entries=read_entries), bytes_max=1 << 20)
    await ready.read_ahead({first: items_at(first)})  # it knows about how large they are from here on
    assert reads == [[first]]
    reads.clear()
    log.at_hand, log.unreadable = {positions[1], positions[3]}, {positions[2]}
    wanted = {position: items_at(position, [0, 7]) for position in positions}
    assert await ready.read_ahead(wanted) == len(positions)
    assert reads == [[positions[4]]], "what is ready, at hand or damaged is not read"
    assert [not ready.missing(items) for items in wanted.values()] == [True, True, False, True, True]
    with pytest.raises(Corrupt):
        await ready.get(positions[2], wanted[positions[2]])
    reads.clear()
    log.at_hand = set(positions)
    await ready.get(positions[4], items_at(positions[4]))
    assert not reads

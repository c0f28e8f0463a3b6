"""gateway.groups.coordinator.records: entries are decoded once, remembered in bounded memory, and found by offset."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest

from gateway.groups.coordinator.records import DECODED_A_TURN, LOOKED_AT_BYTES, Decoded, RecordReader, size_of
from gateway.groups.machines.progress import PartitionKey
from gateway.groups.protocol import PlainRecords
from gateway.routing.table import RouteTable
from store import record_batch
from store.errors import UnknownQueue
from store.record_batch import DecodedRecord, Record
from store.types import Entry, QueueKey
from tests.gateway.groups.coordinator.world import World, world


def reader(made: World, **settings: int) -> RecordReader:
    return RecordReader(made.routes, **settings)


async def test_any_record_is_found_by_its_offset() -> None:
    async with world(partitions=1, values=[b"0", b"1"]) as made:
        await made.send(b"2", b"3", b"4")
        records = reader(made)
        for offset in (3, 0, 4, 2, 1):
            stored = await records.at("orders", PartitionKey(16, 0), offset)
            assert stored is not None
            assert (stored.record.value, stored.offset, stored.size_bytes) == (b"%d" % offset, offset, 1)
        assert await records.at("orders", PartitionKey(16, 0), 5) is None
        with pytest.raises(UnknownQueue):
            await records.at("nothing", PartitionKey(16, 0), 0)


async def test_what_was_read_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(partitions=1, values=[b"0", b"1"]) as made:
        records = reader(made)
        first = await records.step("orders", 0, 0)
        monkeypatch.setattr(made.store, "read", None)
        assert await records.step("orders", 0, 1) == first


async def test_memory_is_bounded_and_the_entry_in_use_stays() -> None:
    async with world(partitions=1) as made:
        for number in range(20):
            await made.send(b"%02d" % number + b"x" * 500)
        records = reader(made, bytes_max=3000)
        for offset in range(20):
            await records.step("orders", 0, offset)
            assert records._bytes <= 3000
        assert sum(map(len, records._bases.values())) == len(records._entries) <= 4
        tiny = reader(made, bytes_max=1)
        assert len((await tiny.step("orders", 0, 0)).entries) >= 1
        assert len(tiny._entries) == 1


async def test_bounds_and_times_are_the_partitions() -> None:
    async with world(partitions=1, values=[b"0"]) as made:
        made.clock.step(1000)
        await made.send(b"1")
        records = reader(made)
        assert await records.bounds("orders", 0) == (0, 2)
        assert await records.offset_at_time("orders", 0, made.clock.now_ms()) == 1


def test_the_size_of_a_record_is_its_key_value_and_headers() -> None:
    assert size_of(b"key", b"value", [("h", b"12"), ("e", None)]) == 3 + 5 + 3 + 1
    assert size_of(None, None, []) == 0


def test_an_entry_knows_where_it_ends() -> None:
    assert Decoded(5, 0, True, False, [], 0, array("q", [0])).next_offset == 5


@pytest.mark.parametrize("keys", [None, [b"k%03d" % number for number in range(150)], [b""] * 150])
@pytest.mark.parametrize("values", [[b"%03d" % number for number in range(150)], [None] * 150])
async def test_records_that_are_alike_are_what_the_codec_says_without_an_object_for_each(
    keys: list[bytes] | None, values: list[bytes | None]
) -> None:
    batch = record_batch.with_base_offset(record_batch.encode_columns(keys, values, 7), 10)
    entry = Entry(0, len(batch), QueueKey(16, 0), "orders", 10, 150, 9, True, bytes(batch), (), (), (), None)
    found = await RecordReader(RouteTable())._opened((16, 0), entry)
    assert isinstance(found.records, PlainRecords)
    assert (found.records.keys is None) == (keys is None)

    def fields(records: Sequence[DecodedRecord]) -> list[tuple[object, ...]]:
        return [(one.offset, one.key, one.value, list(one.headers), one.timestamp) for one in records]

    expected = fields(list(record_batch.decode(entry.batch)))
    assert fields(found.records) == expected == [fields([found.records[at]])[0] for at in range(150)]
    assert fields([found.records[-1]]) == expected[-1:]
    for first, end in ((0, 150), (3, 20), (149, 150), (20, 3), (140, 199), (-5, 150)):
        part = found.records[first:end]
        assert (fields(part), len(part)) == (expected[first:end], len(expected[first:end]))
    sizes = [size_of(one.key, one.value, one.headers) for one in record_batch.decode(entry.batch)]
    assert list(found.sizes) == [sum(sizes[:count]) for count in range(151)]
    with pytest.raises(IndexError):
        found.records[150]


async def test_many_records_that_are_alike_are_taken_apart_aside() -> None:
    aside: list[int] = []

    async def run(work: Callable[[], None]) -> None:
        aside.append(1)
        work()

    for count, threads in ((DECODED_A_TURN, 0), (DECODED_A_TURN + 1, 1)):
        batch = bytes(record_batch.encode_columns(None, [b"x"] * count, 7))
        entry = Entry(0, len(batch), QueueKey(16, 0), "orders", 0, count, 9, True, batch, (), (), (), None)
        found = await RecordReader(RouteTable(), run_blocking=run)._opened((16, 0), entry)
        assert isinstance(found.records, PlainRecords)
        assert (len(found.records), len(aside)) == (count, threads)


@pytest.mark.parametrize("count", [2, 150])
@pytest.mark.parametrize(
    ("key", "value", "raw_keys", "are_json"),
    [
        (b'"k"', b'{"a": 1}', False, True),
        (b"k-y", b'{"a": 1}', True, True),
        (b"k-y", b'{"a": 1}', False, False),
        (None, None, False, True),
        (None, b"[1]", False, True),
        (None, b"[1]]", False, False),
        (None, b"1,1", False, False),
        (None, b"[1,\n2]", False, False),
        (None, b'"\xff"', False, False),
    ],
)
async def test_whether_an_entry_is_json_is_looked_up_once_where_its_sender_did_not_promise(
    count: int, key: bytes | None, value: bytes | None, raw_keys: bool, are_json: bool
) -> None:
    batch = bytes(record_batch.encode([Record(key, value, 7)] * count))
    key_of = QueueKey(16, 0)
    entry = Entry(0, len(batch), key_of, "orders", 0, count, 9, False, batch, raw_keys=raw_keys)
    found = await RecordReader(RouteTable())._opened((16, 0), entry)
    assert found.json_values is are_json
    mixed = bytes(record_batch.encode([*[Record(None, b"1", 7)] * count, Record(None, b"x", 7)]))
    entry = Entry(0, len(mixed), key_of, "orders", 0, count + 1, 9, False, mixed, raw_keys=raw_keys)
    assert not (await RecordReader(RouteTable())._opened((16, 0), entry)).json_values


async def test_large_entries_are_not_looked_at_whether_they_are_json() -> None:
    for size, is_looked_at in ((LOOKED_AT_BYTES, True), (LOOKED_AT_BYTES + 1, False)):
        batch = bytes(record_batch.encode([Record(None, b"1".rjust(size), 7)]))
        entry = Entry(0, len(batch), QueueKey(16, 0), "orders", 0, 1, 9, False, batch)
        assert (await RecordReader(RouteTable())._opened((16, 0), entry)).json_values is is_looked_at

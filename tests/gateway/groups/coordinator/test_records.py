"""gateway.groups.coordinator.records: entries are decoded once, remembered in bounded memory, and found by offset."""

from __future__ import annotations

from array import array

import pytest

from gateway.groups.coordinator.records import Decoded, RecordReader, size_of
from gateway.groups.machines.progress import PartitionKey
from store.errors import UnknownQueue
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

"""store.read_ahead: what a reader will ask for next is read while the loop has nothing else to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from store.errors import Corrupt, UnknownQueue
from store.index.base import Run
from store.limits import KiB, MiB
from store.read_ahead import (
    BUSY_TURNS_MAX,
    BYTES_MAX,
    ENTRY_BYTES_MAX,
    IDLE_TURN_S,
    LARGE_BYTES,
    PIECE_BYTES,
    PLACES_MAX,
    ReadAhead,
)
from store.store import Store
from store.types import Entry, QueueKey
from tests.simdisk import SimDisk, SimFile
from tests.store.kit import opened, put, with_settings
from tests.waiting import PATIENCE_S, until

Q = QueueKey(1, 0)
LOG = Path("/data/commitlog/0")


class Log:
    """One queue, `count` entries of 10 records and so many bytes each."""

    def __init__(self, *, count: int = 100, size: int = PIECE_BYTES // 2) -> None:
        self.entries = [
            Entry(number * size, size, Q, "t", number * 10, 10, 0, False, b"", (), (), ()) for number in range(count)
        ]
        self.now_s = 1.0
        self.turn_s = 0.0  # how long each turn takes
        self.pieces: list[int] = []  # how many entries each had
        self.in_memory: set[int] = set()
        self.is_cached = True
        self.error: Exception | None = None

    def clock(self) -> float:
        self.now_s += self.turn_s
        return self.now_s

    def runs_from(self, _: QueueKey, offset: int) -> Iterator[Run]:
        for entry in self.entries[offset // 10 :]:
            yield Run(entry.position, entry.size, entry.base_offset)

    def read(self, _: QueueKey, runs: Sequence[Run]) -> Sequence[Entry] | None:
        if self.error is not None:
            raise self.error
        if not self.is_cached:
            return None
        self.pieces.append(len(runs))
        return [self.entries[run.offset // 10] for run in runs]

    def ahead(self) -> ReadAhead:
        return ReadAhead(self.runs_from, self.read, self.in_memory.__contains__, self.clock)

    def has_read(self, ahead: ReadAhead, first: int, count: int, queue: QueueKey = Q) -> None:
        """A read of so many entries ends."""
        entries = self.entries[first : first + count]
        ahead.has_read(queue, first * 10, entries, sum(entry.size for entry in entries))


async def turns(count: int = 40) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def here(ahead: ReadAhead, log: Log) -> list[int]:
    return [number for number, entry in enumerate(log.entries) if entry.position in ahead._entries]


async def test_who_goes_on_from_read_to_read_is_read_ahead_of_and_each_entry_is_given_once() -> None:
    log = Log()
    ahead = log.ahead()
    log.has_read(ahead, 0, 6)
    await turns()
    assert not ahead, "it may be the only read"
    log.has_read(ahead, 6, 6)
    await turns()
    assert here(ahead, log) == list(range(12, 18)), "as much as it read"
    assert log.pieces == [2, 2, 2, 0]
    assert [run.offset for run in ahead.runs_from(Q, 120)] == list(range(120, 190, 10)), "and one that is too much"
    entry = log.entries[13]
    assert ahead.taken(entry.position) is entry
    assert ahead.taken(entry.position) is None
    assert len(ahead) == 5


async def test_one_piece_a_turn_and_none_in_a_turn_that_had_something_else_to_do() -> None:
    log = Log()
    ahead = log.ahead()
    log.has_read(ahead, 0, 20)
    log.has_read(ahead, 20, 20)
    seen = []
    for _ in range(4):
        await asyncio.sleep(0)
        seen.append(len(ahead))
    assert seen == [0, 2, 4, 6]
    log.turn_s = IDLE_TURN_S
    await turns()
    assert len(ahead) == 6, "nothing more"
    log.turn_s = 0.0
    await turns()
    assert len(ahead) == 6, "and it has ended"


@pytest.mark.parametrize("busy", [BUSY_TURNS_MAX, BUSY_TURNS_MAX + 1])
async def test_it_waits_for_so_many_turns_with_something_else_to_do(busy: int) -> None:
    log = Log()
    ahead = log.ahead()
    log.has_read(ahead, 0, 4)
    log.has_read(ahead, 4, 4)
    log.turn_s = IDLE_TURN_S
    await turns(busy)
    log.turn_s = 0.0
    await turns()
    assert bool(ahead) is (busy <= BUSY_TURNS_MAX)


async def test_small_entries_and_those_in_memory_are_left_alone() -> None:
    small = Log(size=LARGE_BYTES - 1)
    ahead = small.ahead()
    small.has_read(ahead, 0, 4)
    small.has_read(ahead, 4, 4)
    await turns()
    assert not ahead
    log = Log(size=LARGE_BYTES)
    log.in_memory |= {log.entries[9].position}
    ahead = log.ahead()
    log.has_read(ahead, 0, 4)
    log.has_read(ahead, 4, 4)
    await turns()
    assert here(ahead, log) == [8, 10, 11]


@pytest.mark.parametrize(("size", "is_read"), [(ENTRY_BYTES_MAX, True), (ENTRY_BYTES_MAX + 1, False)])
async def test_an_entry_that_a_turn_would_be_long_for_is_left_to_a_thread(size: int, is_read: bool) -> None:
    log = Log(size=size)
    ahead = log.ahead()
    log.has_read(ahead, 0, 1)
    log.has_read(ahead, 1, 1)
    await turns()
    assert bool(ahead) is is_read


async def test_there_is_room_for_so_many_bytes_and_what_is_here_is_not_read_twice() -> None:
    log = Log(count=400)
    fitting = BYTES_MAX // (PIECE_BYTES // 2)
    ahead = log.ahead()
    log.has_read(ahead, 0, 50)
    log.has_read(ahead, 50, 50)
    await turns(200)
    assert here(ahead, log) == list(range(100, 150))
    log.has_read(ahead, 10, 10)
    log.has_read(ahead, 20, 110)
    await turns(200)
    assert here(ahead, log) == list(range(100, 100 + fitting))
    assert sum(log.pieces) == fitting
    ahead.forget()
    assert not ahead
    log.has_read(ahead, 0, 20)
    log.has_read(ahead, 20, 20)
    await turns()
    assert len(ahead) == 20, "the room is free again"


async def test_so_many_places_are_known_and_one_more_takes_the_place_of_the_oldest() -> None:
    for places, is_known in ((PLACES_MAX, True), (PLACES_MAX + 1, False)):
        log = Log()
        ahead = log.ahead()
        for number in range(places):
            log.has_read(ahead, 0, 2, QueueKey(1, number))
        log.has_read(ahead, 2, 2, QueueKey(1, 0))
        await turns()
        assert bool(ahead) is is_known


async def test_readers_that_are_as_far_share_a_place() -> None:
    log = Log()
    ahead = log.ahead()
    for _ in range(2):
        log.has_read(ahead, 0, 4)
    for _ in range(2):
        log.has_read(ahead, 4, 4)
        await turns()
    assert here(ahead, log) == [8, 9, 10, 11]
    assert sum(log.pieces) == 4


async def test_it_ends_where_the_disk_would_be_waited_for_and_at_an_error() -> None:
    for change in ({"is_cached": False}, {"error": Corrupt(LOG, 0, "damaged")}, {"error": UnknownQueue("gone")}):
        log = Log()
        ahead = log.ahead()
        log.has_read(ahead, 0, 4)
        for name, value in change.items():
            setattr(log, name, value)
        log.has_read(ahead, 4, 4)
        await turns()
        assert not ahead
        assert ahead._pieces is None


# ---- in a store ------------------------------------------------------------------------------------------------------


async def filled(store: Store, count: int) -> QueueKey:
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    for number in range(count):
        await put(store, queue, *[b"%d" % number + bytes(2 * LARGE_BYTES)] * (1 + number % 3))
    return queue


async def test_a_store_reads_the_same_with_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.read_ahead.IDLE_TURN_S", 10.0)
    random = Random(5)
    config = with_settings(tail_bytes_max=0, commit_log_file_bytes=256 * KiB)
    given = 0
    async with opened(SimDisk(), config) as store:
        queue = await filled(store, 60)
        whole = (await store.read(queue, 0, max_bytes=100 * MiB)).entries
        end = whole[-1].next_offset
        store._read_ahead.forget()
        for _ in range(40):
            offset, max_bytes = random.randrange(end), random.choice([20, 60, 200]) * KiB
            seen = [entry for entry in whole if entry.next_offset > offset]
            while offset < end:
                before = len(store._read_ahead)
                end_offset = None if random.random() < 0.9 else offset + random.randrange(1, 9)
                read = await store.read(queue, offset, max_bytes=max_bytes, end_offset=end_offset)
                given += max(0, before - len(store._read_ahead))
                count = len(read.entries)
                assert read.entries == seen[:count]
                assert read.next_offset == read.entries[-1].next_offset
                is_full = count == len(seen) or sum(entry.size for entry in seen[: count + 1]) > max_bytes
                assert is_full or (end_offset is not None and seen[count].base_offset >= end_offset)
                seen, offset = seen[count:], read.next_offset
                await turns(random.randrange(12))
        assert given > 100, "most of them were here"
        await store.expire_queue(queue, end - 5)
        assert (await store.read(queue, end - 5, max_bytes=MiB)).min_offset == end - 5


async def test_damage_that_is_read_ahead_is_told_by_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.read_ahead.IDLE_TURN_S", 10.0)
    async with opened(SimDisk(), with_settings(tail_bytes_max=0, commit_log_file_bytes=MiB)) as store:
        queue = await filled(store, 9)
        at = 0
        original = SimFile.pread_cached

        def damaged(self: SimFile, size: int, position: int) -> bytes | None:
            found = original(self, size, position)
            return None if found is None else bytes(len(found))

        for number in range(3):
            if number == 2:
                monkeypatch.setattr(SimFile, "pread_cached", damaged)
                store._read_ahead.forget()
                with pytest.raises(Corrupt):
                    await store.read(queue, at, max_bytes=20 * KiB)
                return
            at = (await store.read(queue, at, max_bytes=20 * KiB)).next_offset
            if number == 1:
                monkeypatch.setattr(SimFile, "pread_cached", damaged)
                await turns()
                assert not store._read_ahead
                monkeypatch.setattr(SimFile, "pread_cached", original)


async def test_what_was_read_ahead_is_forgotten_after_a_while_and_when_the_store_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("store.read_ahead.IDLE_TURN_S", 10.0)
    monkeypatch.setattr("store.store.TAIL_KEPT_S", 0.02)
    async with opened(SimDisk(), with_settings(tail_bytes_max=0, commit_log_file_bytes=MiB)) as store:
        queue = await filled(store, 30)
        for _ in range(2):
            async with asyncio.timeout(PATIENCE_S):
                while not store._read_ahead:  # it may be forgotten in the middle of it
                    at = 0
                    for _ in range(2):
                        at = (await store.read(queue, at, max_bytes=60 * KiB)).next_offset
                    await turns()
            await until(lambda: not store._read_ahead)
        at = (await store.read(queue, 0, max_bytes=60 * KiB)).next_offset
        await store.read(queue, at, max_bytes=60 * KiB)
    await turns()
    assert not store._read_ahead

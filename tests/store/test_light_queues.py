"""Light queues of a store: one record in many queues, through restarts, retention, a full disk and a rebuild.

Power cuts and kills at any moment are in tests/properties (P10), with the same code on a simulated database.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import pytest
from rocksdict import WriteBatch

from store.data_format import BASE_VERSION
from store.errors import DiskFull, IndexDamaged, IndexRefused, NoLightQueues
from store.files import OsFiles
from store.index import light as light_index
from store.index import pauses
from store.index.opening import ROCKSDB_DIRECTORY, open_kind
from store.index.rocksdb import _Database
from store.light_names import LightNames
from store.limits import KiB, MiB
from store.log.entry import entry_bytes
from store.offline.index_rebuild import rebuild_index
from store.offline.verify import verify
from store.store import LIGHT_FORMAT, TOLD_BYTES_MAX, Store, flush_pauses_s
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Appended, Bounds, Delay, LightRecord, QueueKey
from tests.simdb import SimBatch, SimRdict, simulated_database
from tests.simdisk import Fault, SimDisk
from tests.store.kit import append_of, open_store, opened, with_settings

CONFIG = with_settings(index="rocksdb", retention_ms=None, retention_bytes=130 * KiB)


def light_append(queue: QueueKey, *names: Sequence[bytes], size: int = 10) -> Append:
    """A record for each element of `names`, in those light queues."""
    append = append_of(queue, [bytes(size) for _ in names])
    append.light = LightNames.of(names)
    return append


async def send(store: Store, queue: QueueKey, *names: Sequence[bytes], size: int = 10) -> Appended:
    [answer] = await store.append([light_append(queue, *names, size=size)], acks=Acks.FLUSHED)
    return answer


async def rows_of(store: Store, queue: QueueKey, name: bytes, offset: int = 0) -> list[tuple[int, int]]:
    """Offsets of a light queue, and those of the same records in the partition."""
    read = await store.read_light(queue, name, offset, max_records=1000, max_bytes=1 << 20)
    return [(record.offset, record.entry.base_offset + record.record_index) for record in read.records]


async def all_rows(store: Store, queue: QueueKey) -> dict[bytes, list[tuple[int, int]]]:
    names = store.light_names(queue, b"", after=b"", count=1000)
    return {name: await rows_of(store, queue, name) for name in names}


@asynccontextmanager
async def a_store() -> AsyncIterator[tuple[SimDisk, Store, QueueKey]]:
    with simulated_database():
        disk = SimDisk()
        async with opened(disk, CONFIG) as store:
            topic, _ = await store.create_topic("orders", 2)
            yield disk, store, QueueKey(topic.topic_id, 0)


async def test_a_read_of_a_busy_queue_costs_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    class Counted(light_index.LightUnit):
        def __new__(cls, *cells: int) -> Self:
            nonlocal made
            made += 1
            return super().__new__(cls, *cells)

    async with a_store() as (_, store, queue):
        for _ in range(20):
            await send(store, queue, *[[b"room"]] * 50)
        monkeypatch.setattr(light_index, "LightUnit", Counted)
        for offset in (0, 1, 49, 50, 998):
            read = await store.read_light(queue, b"room", offset, max_records=2, max_bytes=1 << 20)
            assert [record.offset for record in read.records] == [offset, offset + 1]
        assert made < 50, "a thousand are in memory"


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_record_is_in_each_queue_it_names_at_dense_offsets(is_flushed: bool) -> None:
    async with a_store() as (_, store, queue):
        other = QueueKey(queue.topic_id, 1)
        await send(store, queue, [b"a", b"b"], [], [b"a"])
        if is_flushed:
            await store._save_checkpoint()
        await send(store, other, [b"a"])
        await send(store, queue, [b"c"], [b"b", b"a"])
        assert await all_rows(store, queue) == {b"a": [(0, 0), (1, 2), (2, 4)], b"b": [(0, 0), (1, 4)], b"c": [(3, 3)]}
        assert await all_rows(store, other) == {b"a": [(0, 0)]}
        assert await rows_of(store, queue, b"a", 1) == [(1, 2), (2, 4)]
        assert await rows_of(store, queue, b"a", 3) == []
        assert store.light_bounds(queue, b"a") == Bounds(0, 3)
        assert store.light_bounds(queue, b"c") == Bounds(3, 4)
        assert store.light_bounds(queue, b"never") == Bounds(5, 5)


async def test_a_read_is_bounded_and_says_where_to_go_on() -> None:
    async with a_store() as (_, store, queue):
        for _ in range(6):
            await send(store, queue, [b"a"], [b"a"], size=100)
        read = await store.read_light(queue, b"a", 1, max_records=4, max_bytes=1 << 20)
        assert [record.offset for record in read.records] == [1, 2, 3, 4]
        assert read.next_offset == 5
        size = read.records[0].entry.size
        read = await store.read_light(queue, b"a", 1, max_records=100, max_bytes=2 * size)
        assert [record.offset for record in read.records] == [1, 2, 3], "two entries"
        read = await store.read_light(queue, b"a", 1, max_records=100, max_bytes=0)
        assert [record.offset for record in read.records] == [1], "one entry at least"
        assert (await store.read_light(queue, b"a", 99, max_records=1, max_bytes=1))[1:] == (12, 12)


async def test_names_are_listed_by_prefix_a_page_at_a_time() -> None:
    async with a_store() as (_, store, queue):
        names = [b"room/%02d" % number for number in range(30)]
        await send(store, queue, *[[name] for name in names[::2]], [b"room"], [b"roon"], [b"\xff\xff"])
        await store._save_checkpoint()
        await send(store, queue, *[[name] for name in names[1::2]], [names[0]])
        found: list[bytes] = []
        while page := store.light_names(queue, b"room/", after=found[-1] if found else b"", count=7):
            assert len(page) <= 7
            found += page
        assert found == names
        assert store.light_names(queue, b"", after=b"roon", count=9) == [b"\xff\xff"]
        assert store.light_names(queue, b"\xff", after=b"", count=9) == [b"\xff\xff"]


async def test_readers_are_woken_by_their_queue_alone() -> None:
    async with a_store() as (_, store, queue):
        woken: list[str] = []
        call_offs = [store.watch_light(queue, b"a", lambda _, one=one: woken.append(one)) for one in ("x", "y")]  # type: ignore[misc]
        other = QueueKey(queue.topic_id, 1)
        call_offs.append(store.watch_light(other, b"a", lambda _: woken.append("other partition")))
        await send(store, queue, [b"b"])
        assert woken == []
        await send(store, queue, [b"b", b"a"], [b"a"])
        assert woken == ["x", "y"], "once for all that come together"
        call_offs[0]()
        call_offs[0]()
        await store.delete_topic("orders")
        assert woken == ["x", "y", "y", "other partition"]
        for call_off in call_offs:
            call_off()
        assert store._light_watching == {}


async def test_who_watches_is_told_the_record_if_it_is_one_in_a_small_batch() -> None:
    async with a_store() as (_, store, queue):
        told: list[LightRecord | None] = []
        call_off = store.watch_light(queue, b"a", told.append)
        await send(store, queue, [b"b"], [b"b", b"a"], [b"c"])
        await send(store, queue, [b"a"])
        read = await store.read_light(queue, b"a", 0, max_records=9, max_bytes=1 << 20)
        assert [(record.offset, record.record_index) for record in read.records] == [(1, 1), (2, 0)]
        assert told == read.records
        told.clear()
        await send(store, queue, [b"a"], [b"a"])
        assert told == [None], "two of one batch"
        told.clear()
        size = next(
            size for size in range(TOLD_BYTES_MAX, 0, -1)
            if entry_bytes(light_append(queue, [b"a"], size=size), len("orders")) <= TOLD_BYTES_MAX
        )  # fmt: skip
        await send(store, queue, [b"a"], size=size)
        await send(store, queue, [b"a"], size=size + 1)
        of_size, too_large = told
        assert of_size is not None
        assert of_size.entry.size == TOLD_BYTES_MAX
        assert too_large is None
        await store.delete_topic("orders")
        assert told[2:] == [None]
        call_off()


async def test_rows_are_there_after_a_kill_and_after_a_restart() -> None:
    with simulated_database():
        disk = SimDisk()
        store = await open_store(disk, CONFIG)
        topic, _ = await store.create_topic("orders", 1)
        queue = QueueKey(topic.topic_id, 0)
        await send(store, queue, [b"a", b"b"])
        await store._save_checkpoint()
        await send(store, queue, [b"a"])
        before = await all_rows(store, queue)
        disk.kill()
        async with opened(disk, CONFIG) as store:
            assert await all_rows(store, queue) == before
            await send(store, queue, [b"b"])
        async with opened(disk, CONFIG) as store:
            assert await all_rows(store, queue) == {b"a": [(0, 0), (1, 1)], b"b": [(0, 0), (1, 2)]}


async def test_rows_go_with_the_log_and_a_queue_that_comes_back_begins_above_all_it_had() -> None:
    async with a_store() as (_, store, queue):
        for number in range(60):
            await send(store, queue, [b"old"] if number < 3 else [b"busy"], size=6000)
        await store._save_checkpoint()
        while await store.expire():
            pass
        first = store.bounds(queue).min_offset
        assert first > 3
        rows = await all_rows(store, queue)
        assert set(rows) == {b"busy"}, "a queue without rows is not listed"
        assert [partition_offset for _, partition_offset in rows[b"busy"]] == list(range(first, 60))
        assert [offset for offset, _ in rows[b"busy"]] == list(range(rows[b"busy"][0][0], 60))
        assert store._queues.light is not None
        assert len(store._queues.light.units(queue, b"busy", 0, 1000)) == 60 - first, "rows before it are gone"
        await send(store, queue, [b"old"], [b"old"])
        assert await rows_of(store, queue, b"old") == [(60, 60), (61, 61)]


async def test_records_that_are_given_up_are_gone_from_light_queues_too() -> None:
    async with a_store() as (_, store, queue):
        for number in range(40):
            await send(store, queue, [b"even"] if number % 2 == 0 else [b"odd"])
            if number == 29:
                await store._save_checkpoint()
        await store.expire_queue(queue, 25)
        assert await rows_of(store, queue, b"even") == [(offset, 2 * offset) for offset in range(13, 20)]
        assert store.light_bounds(queue, b"odd") == Bounds(13, 21), "odd began at 1"
        await store.expire_queue(queue, 40)
        assert store.light_bounds(queue, b"even") == Bounds(20, 20)
        assert await rows_of(store, queue, b"even") == []
        await send(store, queue, [b"even"])
        assert await rows_of(store, queue, b"even") == [(20, 40)], "its rows are there: it goes on"


async def test_a_topic_that_is_deleted_takes_its_light_queues_along() -> None:
    async with a_store() as (_, store, queue):
        topic, _ = await store.create_topic("others", 1)
        other = QueueKey(topic.topic_id, 0)
        await send(store, queue, [b"a"])
        await send(store, other, [b"a"])
        await store._save_checkpoint()
        await send(store, queue, [b"a", b"b"])
        await store.delete_topic("orders")
        assert store._queues.light is not None
        assert store._queues.light.names(queue, b"", b"", 10) == []
        assert await all_rows(store, other) == {b"a": [(0, 0)]}


async def test_offsets_of_refused_appends_are_given_back() -> None:
    async with a_store() as (disk, store, queue):
        await send(store, queue, [b"a"])
        disk.capacity_bytes = disk.used_bytes()
        large = light_append(queue, [b"a", b"b"], size=12 * KiB)
        appends = [store.begin_append([large], acks=Acks.FLUSHED) for _ in range(4)]
        for one in appends:
            with pytest.raises(DiskFull):
                await one
        disk.capacity_bytes = None
        assert await all_rows(store, queue) == {b"a": [(0, 0)]}
        await send(store, queue, [b"a", b"b"])
        assert await all_rows(store, queue) == {b"a": [(0, 0), (1, 1)], b"b": [(1, 1)]}
        assert store._writer._light_ends == {}, "nothing stays in memory for a queue"


async def test_sends_under_way_count_in_their_order() -> None:
    async with a_store() as (_, store, queue):
        appends = [light_append(queue, [b"a"], [b"a", b"b"]), light_append(queue, [b"b", b"a"])]
        both = store.begin_append(appends, acks=Acks.FLUSHED), store.begin_append(appends[:1], acks=Acks.FLUSHED)
        await asyncio.gather(*both)
        assert await all_rows(store, queue) == {
            b"a": [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)],
            b"b": [(1, 1), (2, 2), (3, 4)],
        }


async def test_names_of_a_delayed_record_are_kept_and_get_no_offset() -> None:
    async with a_store() as (_, store, queue):
        append = light_append(TIMER_QUEUE, [b"a"])
        append.delays = [Delay(1, queue.topic_id, 0)]
        [answer] = await store.append([append], acks=Acks.FLUSHED)
        await store._save_checkpoint()
        entry = await store.read_entry(answer.position)
        assert entry.light is not None
        assert entry.light.of_records() == [[b"a"]]
        assert not entry.light.is_assigned
        assert store._queues.light is not None
        assert store._queues.light.names(TIMER_QUEUE, b"", b"", 10) == []


async def test_a_flush_that_fails_leaves_its_rows_to_the_next() -> None:
    async with a_store() as (disk, store, queue):
        await send(store, queue, [b"a"])
        disk.inject(Fault("pwritev", errno.EAGAIN, path_part=ROCKSDB_DIRECTORY))
        await store._save_checkpoint()
        await send(store, queue, [b"a", b"b"])
        rows = {b"a": [(0, 0), (1, 1)], b"b": [(1, 1)]}
        assert await all_rows(store, queue) == rows
        assert store._queues.light is not None
        assert store._queues.light.pending_bytes > 0
        store._queues._failure = None  # type: ignore[attr-defined]  # as a restart, which the real database needs
        await store._save_checkpoint()
        assert store._queues.light.pending_bytes == 0
        assert await all_rows(store, queue) == rows


@pytest.mark.parametrize(
    "names",
    [
        [[b"a"]] * 9,
        [[b"%d" % number] for number in range(9)],
        [[b"a", b"b", b"c"]] * 3,
        [[b"a"], [b"b", b"a"], [b"a"], [b"a"], [b"c"], [b"a"]],
    ],
)
async def test_a_flush_writes_few_rows_at_a_time_with_pauses_and_the_end_of_a_queue_with_its_rows(
    monkeypatch: pytest.MonkeyPatch, names: list[list[bytes]]
) -> None:
    batches: list[list[tuple[str, str, bytes, bytes]]] = []
    slept: list[float] = []
    written = SimRdict.write

    def write(self: SimRdict, batch: SimBatch, options: object) -> None:
        batches.append(batch.changes)
        written(self, batch, options)

    monkeypatch.setattr(SimRdict, "write", write)
    monkeypatch.setattr(pauses.time, "sleep", slept.append)
    async with a_store() as (_, store, queue):
        light = store._queues.light
        assert light is not None
        light._batch_rows_max = 4
        await send(store, queue, *names)
        await store._save_checkpoint()
        before = await all_rows(store, queue)
    of_light = [changes for changes in batches if any(family == "light" for _, family, _, _ in changes)]
    ends: dict[bytes, int] = {}
    for changes in of_light:
        assert len(changes) <= 4
        last: dict[bytes, int] = {}
        for _, family, key, value in changes:
            if family == "light":
                last[light_index.light_queue_of(key)] = light_index.offset_of(key)
            else:
                ends[key] = light_index.end_of(value)
        assert all(ends[key] == offset + 1 for key, offset in last.items())
    assert len(of_light) > 1
    assert len(slept) == len(of_light) - 1
    counts = {light_index.end_key(queue, name): len(rows) for name, rows in before.items()}
    assert sum(counts.values()) == sum(map(len, names))
    assert ends.keys() == counts.keys()


async def test_the_beginning_of_a_new_queue_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first record is behind what its reader waits for."""
    scanned: list[bytes] = []
    scan = _Database.light_rows

    def light_rows(self: _Database, first: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        scanned.append(first)
        return scan(self, first, end, count)

    async with a_store() as (_, store, queue):
        await send(store, queue, [b"a"], [b"b"])
        await store._save_checkpoint()
        waits_at = store.light_end(queue, b"new")
        await send(store, queue, [b"a"], [b"new"], [b"new"])
        monkeypatch.setattr(_Database, "light_rows", light_rows)
        read = await store.read_light(queue, b"new", waits_at, max_records=10, max_bytes=MiB)
        places = [(record.offset, record.entry.base_offset + record.record_index) for record in read.records]
        assert places == [(3, 3), (4, 4)]
        assert (read.max_offset, read.next_offset) == (5, 5)
        assert len(scanned) == 1, "for rows that the database may have before those in memory"


@pytest.mark.parametrize(
    ("passed_s", "pauses_s"),
    [(0, 0.25), (1.25, 0.25), (1.26, 0.252), (4.99, 0.998), (5, 1.0), (5.01, 1.0), (9_999, 1.0)],
)
def test_a_flush_may_pause_for_a_part_of_the_time_since_the_last(passed_s: float, pauses_s: float) -> None:
    assert flush_pauses_s(passed_s) == pytest.approx(pauses_s)


async def test_many_rows_in_memory_make_a_checkpoint_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_index, "PENDING_ROWS_MAX", 3)
    async with a_store() as (_, store, queue):
        await send(store, queue, [b"a", b"b"])
        assert not store._is_checkpoint_due(0)
        await send(store, queue, [b"a"])
        assert store._is_checkpoint_due(0)
        await store._save_checkpoint()
        assert not store._is_checkpoint_due(0)


async def test_an_index_in_files_refuses_them_and_says_what_to_run(tmp_path: Path) -> None:
    files = with_settings(root=tmp_path)
    rocksdb = with_settings(root=tmp_path, index="rocksdb")
    async with opened(OsFiles(), files) as store:
        topic, _ = await store.create_topic("orders", 1)
        queue = QueueKey(topic.topic_id, 0)
        delayed = light_append(TIMER_QUEUE, [b"a"])
        delayed.delays = [Delay(1, queue.topic_id, 0)]
        for append in (light_append(queue, [b"a"]), delayed):
            with pytest.raises(NoLightQueues, match="mq index rebuild --to rocksdb"):
                await store.append([append])
        with pytest.raises(NoLightQueues):
            await store.read_light(queue, b"a", 0, max_records=1, max_bytes=1)
        assert store.bounds(queue) == Bounds(0, 0)
    assert (tmp_path / "format").read_bytes() == b"mq data format %d\n" % BASE_VERSION, (
        "who never used them can go back"
    )
    rebuild_index(files, "rocksdb")
    async with opened(OsFiles(), rocksdb) as store:
        await send(store, queue, [b"a"])
        await send(store, queue, [b"b"], [b"a"])
        assert (tmp_path / "format").read_bytes() == b"mq data format %d\n" % LIGHT_FORMAT
        before = await all_rows(store, queue)
    rebuild_index(rocksdb, "file")
    with pytest.raises(IndexRefused):
        await open_store(OsFiles(), rocksdb)
    async with opened(OsFiles(), files) as store:
        assert store.bounds(queue) == Bounds(0, 3), "the records are in their partition"
    rebuild_index(files, "rocksdb")
    async with opened(OsFiles(), rocksdb) as store:
        assert await all_rows(store, queue) == before


async def test_the_real_database_does_the_same_and_a_rebuild_forgets_what_is_not_in_the_log(tmp_path: Path) -> None:
    config = with_settings(root=tmp_path, index="rocksdb", retention_ms=None, retention_bytes=130 * KiB)
    async with opened(OsFiles(), config) as store:
        topic, _ = await store.create_topic("orders", 1)
        queue = QueueKey(topic.topic_id, 0)
        for number in range(50):
            await send(store, queue, [b"a", b"b/%d" % number], [b"a"], size=3000)
            if number % 9 == 0:
                await store._save_checkpoint()
        while await store.expire():
            pass
        before = await all_rows(store, queue)
        assert 2 < len(before) < 51
        position = store.end_position - 8
    assert verify(tmp_path).findings == []
    ghosts = [
        ("light", light_index.row_key(queue, b"a", 1000)),
        ("light", light_index.row_key(queue, b"a", before[b"a"][-1][0])),  # that of another record
        ("light_end", light_index.end_key(queue, b"ghost")),
    ]
    for family, key in ghosts:
        async with opened(OsFiles(), config) as store:
            database = store._queues._database  # type: ignore[attr-defined]
            batch = WriteBatch(raw_mode=True)
            value = light_index.ROW.pack(1000, position, 5) if family == "light" else (7).to_bytes(8, "big")
            batch.put(key, value, getattr(database, family))
            database.write(batch)
        [finding] = verify(tmp_path).findings
        assert "light queues" in finding.reason
        queues = open_kind("rocksdb", config, OsFiles(), first_position=0, rebuild=True)  # as a start that finds damage
        assert queues.light is not None
        assert queues.light.names(queue, b"", b"", 100) == []
        queues.close()
        rebuild_index(config, "rocksdb")
        assert verify(tmp_path).findings == []
    async with opened(OsFiles(), config) as store:
        assert await all_rows(store, queue) == before
        await send(store, queue, [b"b/0"])
        assert await rows_of(store, queue, b"b/0") == [(100, 100)]


async def test_a_row_that_leads_to_another_record_is_an_error() -> None:
    async with a_store() as (_, store, queue):
        await send(store, queue, [b"a"], [b"b"])
        light = store._queues.light
        assert light is not None
        key = light_index.end_key(queue, b"a")
        offset, _, *entry = light._pending[key]
        light._pending[key] = (offset, 1, *entry)  # its place in the partition
        with pytest.raises(IndexDamaged, match=r"light queue a .* offset 0"):
            await store.read_light(queue, b"a", 0, max_records=1, max_bytes=1)

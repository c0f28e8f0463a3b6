"""The bench of the store alone: small runs of each kind of work do what they say, and rows are told plainly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtest.bench import store_work as work
from loadtest.bench.disk import DiskLoop, disk_loop
from loadtest.bench.parts import Part, Row, as_dicts
from loadtest.bench.store import Options, append_rows, as_markdown, queue_rows
from store.config import StoreConfig
from store.types import QueueKey

KiB = 1024
MiB = 1024 * KiB


async def test_a_call_is_one_write_of_so_many_batches(tmp_path: Path) -> None:
    batch = work.batch_of(10, 100)
    async with work.opened(StoreConfig(root=tmp_path, extent_bytes=MiB, disk_floor_bytes=0), 3) as (store, queues):
        groups = store.stats.group_count
        left = iter(range(2))
        speed = await work.append_calls(
            store, work.round_robin(queues), batch, 10, batches=3, until=lambda: next(left, None) is None
        )
        assert store.stats.group_count == groups + 2
        assert (speed.record_count, speed.byte_count) == (60, 6 * len(batch))
        assert [store.bounds(queue).max_offset for queue in queues] == [20, 20, 20]


async def test_callers_side_by_side_share_a_write(tmp_path: Path) -> None:
    batch = work.batch_of(10, 100)
    async with work.opened(StoreConfig(root=tmp_path, extent_bytes=MiB, disk_floor_bytes=0), 2) as (store, queues):
        groups = store.stats.group_count
        left = iter(range(12))
        speed = await work.append_side_by_side(
            store, work.round_robin(queues), batch, 10, callers=4, until=lambda: next(left, None) is None
        )
        assert (speed.record_count, speed.byte_count) == (120, 12 * len(batch))
        assert [store.bounds(queue).max_offset for queue in queues] == [60, 60]
        assert store.stats.group_count - groups <= 6, "12 batches"


async def test_the_log_lets_go_of_its_pages_up_to_its_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr("os.posix_fadvise", lambda fd, at, size, advice: asked.append((at, size, advice)))
    config = StoreConfig(root=tmp_path, extent_bytes=MiB, commit_log_file_bytes=2 * MiB, disk_floor_bytes=0)
    async with work.opened(config) as (store, queues):
        work.forget_log_pages(store)
        first_end = store.end_position
        left = iter(range(6))
        batch = work.batch_of(10, 40_000)
        await work.append_calls(
            store, work.round_robin(queues), batch, 10, batches=1, until=lambda: next(left, None) is None
        )
        work.forget_log_pages(store)
        in_second = store.end_position - 2 * MiB
    sizes = [size for _, size, _ in asked]
    assert sizes[0] == first_end > 0
    assert sorted(sizes[1:]) == sorted([2 * MiB, in_second]), "never the zeros that are ready for what comes"
    assert {(at, advice) for at, _, advice in asked} == {(0, os.POSIX_FADV_DONTNEED)}


@pytest.mark.matrix
async def test_the_limit_of_an_append_merges_as_many_batches_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.bench.disk.FILE_BYTES", 64 * MiB)
    merged: list[int] = []

    def disk_writes(disk: DiskLoop, batch: bytes, count: int, *, batches: int, duration_s: float) -> work.Speed:
        merged.append(batches)
        return work.Speed(1_000, 0, 1.0)

    monkeypatch.setattr(work, "disk_writes", disk_writes)
    options = Options(tmp_path, rounds=2, queue_rounds=1, run_s=0.5, scan_bytes=0, append_bytes=0)
    rows = await append_rows(options)
    assert merged == [1, 1, 8, 8, 64, 64, 4, 4, 16, 16]
    for row, batches in zip(rows, merged[::2], strict=True):
        assert row.note.endswith(f", of the limit {batches}")
        assert 1 <= float(row.note.split(": ")[1].split(",")[0]) <= batches, "what ours merged"
        assert len(row.ours) == len(row.limit) == len(row.cpu_us) == len(row.kernel_us) == 2
        assert min(*row.ours, *row.cpu_us) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.matrix
async def test_many_queues_are_timed_beside_few_of_the_same_store(tmp_path: Path) -> None:
    every, few = await work.over_queues(tmp_path / "store", 3, 1, "file", duration_s=0)
    for speed in (every, few):
        assert speed.record_count % 2000 == 0
        assert min(speed.record_count, speed.byte_count, speed.duration_s, speed.cpu_s) > 0
    _, store = await work.start(tmp_path / "store")
    topic = max(store.topics(), key=lambda topic: topic.topic_id)
    counts = [store.bounds(QueueKey(topic.topic_id, partition)).max_offset for partition in range(3)]
    await store.close()
    assert counts[0] - counts[1] >= few.record_count > abs(counts[1] - counts[2])


async def test_an_append_over_many_queues_is_judged_beside_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def over_queues(
        root: Path, queue_count: int, few_count: int, index: work.IndexKind, *, duration_s: float
    ) -> tuple[work.Speed, work.Speed]:
        assert (few_count, index) == (1, "file")
        few = work.Speed(500, 0, 0.5, 0.25).with_more(work.Speed(300, 0, 0.5, 0.25))
        return work.Speed({1: 100, 10: 640, 100: 639}[queue_count], 0, 1.0, 0.5), few

    monkeypatch.setattr(work, "over_queues", over_queues)
    options = Options(tmp_path, rounds=1, queue_rounds=3, run_s=0.1, scan_bytes=0, append_bytes=0)
    rows = await queue_rows(options, "file", (1, 10, 100))
    assert [row.is_met() for row in rows] == [None, True, False], "the fewest beside themselves are not judged"
    assert [row.limit for row in rows] == [[1250] * 3] * 3
    assert rows[1].ours == [1e6 / 640] * 3
    assert rows[1].share().median == 0.8
    assert "1.25x" in rows[1].note, "CPU a record, beside that of few"
    assert rows[1].cpu_us == [0.5e6 / 640] * 3


def test_kernel_threads_are_charged_without_what_an_idle_machine_takes() -> None:
    speed = work.Speed(1_000, 0, duration_s=2.0, cpu_s=0.5, kernel_cpu_s=0.3)
    assert speed.kernel_us(0.1) == pytest.approx(100)
    assert speed.kernel_us(0.2) == 0.0, "never less than nothing"
    assert speed.cpu_us == 500


async def test_reading_and_recovery_go_through_everything_that_was_filled_in(tmp_path: Path) -> None:
    count = await work.fill(tmp_path, 2 * MiB, record_bytes=1024, records_per_batch=10)
    work.forget_checkpoints(tmp_path)
    _, store = await work.start(tmp_path)
    recovered = store.recovery
    await store.close()
    assert recovered.entry_count == count // 10 + 1, "all batches and the topic: there was no checkpoint"
    assert (await work.read_all(tmp_path)).record_count == count
    _, store = await work.start(tmp_path)
    assert store.recovery.entry_count == 0, "a clean start scans nothing"
    await store.close()


def test_the_limit_writes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.bench.disk.FILE_BYTES", 4 * MiB)  # else 2 GiB of zeros for some writes
    with disk_loop(tmp_path) as disk:
        speed = work.disk_writes(disk, b"x" * 1000, 10, batches=4, duration_s=0.01)
    assert speed.byte_count % 4000 == 0
    assert speed.record_count == speed.byte_count // 1000 * 10


def test_the_page_says_which_part_is_of_which_commit() -> None:
    row = Row("append", "records/s", [2.5e6], [5e6])
    page = as_markdown({"append": Part({"commit": "aaa"}, as_dicts([row])), "read": Part({"commit": "bbb"}, [])})
    assert "| append | 2.50 M/s, n = 1 | 5.00 M/s | 50% |" in page
    assert "- **append**: commit aaa" in page
    assert "- **read**: commit bbb" in page

"""The bench of the store alone: small runs of each kind of work do what they say, and rows are told plainly."""

from __future__ import annotations

from pathlib import Path

from loadtest.bench import store_work as work
from loadtest.bench.disk import disk_loop
from loadtest.bench.store import Row, as_markdown, cells
from store.config import StoreConfig

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


async def test_reading_and_recovery_go_through_everything_that_was_filled_in(tmp_path: Path) -> None:
    count = await work.fill(tmp_path, 2 * MiB, record_bytes=1024, records_per_batch=10, checkpoints=False)
    _, store = await work.start(tmp_path)
    recovered = store.recovery
    await store.close()
    assert recovered.entry_count == count // 10 + 1, "all batches and the topic: there was no checkpoint"
    assert (await work.read_all(tmp_path)).record_count == count
    _, store = await work.start(tmp_path)
    assert store.recovery.entry_count == 0, "a clean start scans nothing"
    await store.close()


def test_the_limit_writes_the_same_bytes(tmp_path: Path) -> None:
    with disk_loop(tmp_path) as disk:
        speed = work.disk_writes(disk, b"x" * 1000, 10, batches=4, duration_s=0.01)
    assert speed.byte_count % 4000 == 0
    assert speed.record_count == speed.byte_count // 1000 * 10


def test_a_row_says_whether_its_goal_was_met() -> None:
    row = Row("append", 2.5e6, "records/s", 5e6, ">= 60 %", False)
    assert cells(row) == ("append", "2.50 M/s", "5.00 M/s (50%)", ">= 60 %", "**no**")
    assert cells(row._replace(limit=None, is_met=None, goal=""))[2:] == ("-", "-", "-")
    assert "| append | 2.50 M/s |" in as_markdown({"cores": 2}, [row])

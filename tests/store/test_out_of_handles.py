"""A process that can open no more files: appends are refused while the log has to grow, nothing is lost, and all goes
on as soon as a file can be opened (store.log.commit_log)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from store.errors import IndexDamaged, OutOfHandles, Overloaded
from store.index.file import FileConsumeQueues
from store.limits import KiB
from store.log.commit_log import CommitLog
from store.store import Store
from store.types import QueueKey
from tests.clock import FakeClock
from tests.simdisk import SimDisk, SimFile
from tests.store.kit import abandon, append_of, open_store, opened, with_settings
from tests.waiting import until

ROOT = Path("/data")


class FewHandles(SimDisk):
    """Opens nothing while `code` is set, or no directory."""

    code = 0
    only_directories = False

    def open(self, path: Path, *, create: bool = False, is_private: bool = False) -> SimFile:
        if self.code and not self.only_directories:
            raise OSError(self.code, os.strerror(self.code), str(path))
        return super().open(path, create=create, is_private=is_private)

    def sync_dir(self, directory: Path) -> None:
        if self.code:
            raise OSError(self.code, os.strerror(self.code), str(directory))
        super().sync_dir(directory)


async def fill(store: Store, queue: QueueKey, count: int) -> int:
    """Appends that the log has to grow for; how many were refused."""
    refused_count = 0
    for _ in range(count):
        try:
            await store.append([append_of(queue, [b"x" * 10 * KiB])])
        except OutOfHandles:
            refused_count += 1
    return refused_count


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("only_directories", [False, True])
async def test_appends_are_refused_and_go_on(code: int, only_directories: bool) -> None:
    disk = FewHandles()
    store = await open_store(disk, with_settings(disk_floor_bytes=0))
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    assert await fill(store, queue, 20) == 0
    disk.code, disk.only_directories = code, only_directories
    count = 1000
    refused_count = await fill(store, queue, count)
    assert refused_count > 0
    assert store.failure is None
    stored_count = 20 + count - refused_count
    assert store.bounds(queue).max_offset == stored_count
    disk.code = 0
    assert await fill(store, queue, 100) == 0
    await store.close()
    store = await open_store(disk, with_settings(disk_floor_bytes=0))
    assert store.bounds(queue).max_offset == stored_count + 100
    read_count, offset = 0, 0
    while offset < stored_count + 100:
        result = await store.read(queue, offset, max_bytes=1 << 20)
        read_count += sum(entry.record_count for entry in result.entries)
        offset = result.next_offset
    assert read_count == stored_count + 100
    await store.close()


def test_an_index_that_cannot_be_opened_is_not_damaged() -> None:
    disk = FewHandles()
    queues = FileConsumeQueues(ROOT, disk, file_units=10, first_position=0)
    disk.code = errno.EMFILE
    with pytest.raises(Overloaded):
        queues._read_files(ROOT / "1" / "0", 0, 1)
    disk.code = 0
    with pytest.raises(IndexDamaged):  # it is not there, whatever could be opened
        queues._read_files(ROOT / "1" / "0", 0, 1)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, None])
async def test_retention_goes_on_after_a_look_that_failed(
    code: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log's first file is gone when the sync of its directory fails; the next look has that done, and goes on."""
    disk, clock = FewHandles(), FakeClock()
    store = await open_store(disk, with_settings(retention_ms=10_000, retention_interval_ms=1), clock)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    await fill(store, queue, 60)
    remove_first, looks = CommitLog.remove_first, 0

    def failing(log: CommitLog) -> None:
        nonlocal looks
        looks += 1
        if code is None and looks <= 3:
            raise Overloaded("what an index file that cannot be opened is told as")
        disk.code = code or 0 if looks <= 3 else 0
        try:
            remove_first(log)
        finally:
            disk.code = 0

    monkeypatch.setattr(CommitLog, "remove_first", failing)
    files = store._log.starts()
    assert len(files) > 2
    clock.step(60_000)
    await until(lambda: store._log.starts() == files[-1:])
    assert caplog.text.count("retention is tried again") == 1
    assert (store.failure, store.bounds(queue).max_offset) == (None, 60)
    await store.append([append_of(queue, [b"goes on"])])
    await store.close()


async def test_a_kill_behind_retention_leaves_an_index_that_need_not_be_built_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Files of the index went with those of the log, and no checkpoint said so."""
    disk, clock = SimDisk(), FakeClock()
    config = with_settings(retention_ms=10_000, consume_queue_file_units=7)
    store = await open_store(disk, config, clock)
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    for _ in range(60):
        clock.step(1000)
        await store.append([append_of(queue, [b"x" * 4 * KiB])])
    await store._save_checkpoint()
    assert await store.expire(file_count_max=99)
    bounds = store.bounds(queue)
    assert bounds.min_offset > 7
    await abandon()
    disk.kill()
    async with opened(disk, config, clock) as store:
        assert store.bounds(queue) == bounds
        assert "building the consume queues again" not in caplog.text
        found = await store.read(queue, bounds.min_offset, max_bytes=1)
        assert found.entries

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
from store.store import Store
from store.types import QueueKey
from tests.simdisk import SimDisk, SimFile
from tests.store.kit import append_of, open_store, with_settings

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

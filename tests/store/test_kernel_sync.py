"""store.kernel_sync: real syncs of real files, and the store's writer over them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import platform
import sys
import time
from pathlib import Path

import pytest

from store import kernel_sync
from store.files import OsFiles
from store.kernel_sync import IDLE_TURN_S, LATE_S, KernelSync
from store.store import Store
from store.types import QueueKey
from tests.store.kit import put, values_of, with_settings
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux's asynchronous I/O")


def opened_sync() -> KernelSync:
    found = KernelSync.open()
    if found is None:
        pytest.skip("no asynchronous I/O here")
    return found


async def test_syncs_one_after_the_other_end_in_the_loop(tmp_path: Path) -> None:
    kernel = opened_sync()
    file = OsFiles().open(tmp_path / "f", create=True)
    for number in range(20):
        file.pwritev([b"x" * 4096], number * 4096)
        begun = kernel.begin(file._fd)
        assert begun is not None
        async with asyncio.timeout(PATIENCE_S):
            await begun
    kernel.close()
    file.close()


async def test_a_file_that_cannot_be_synced_so_is_begun_nothing_for() -> None:
    kernel = opened_sync()
    reading, writing = os.pipe()
    assert kernel.begin(writing) is None, "a pipe has nothing to sync"
    os.close(reading)
    os.close(writing)
    assert kernel.begin(writing) is None, "a closed file neither"
    kernel.close()


async def test_an_error_of_the_disk_is_the_one_of_fdatasync(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernel = opened_sync()
    file = OsFiles().open(tmp_path / "f", create=True)
    unpacked = KernelSync._result

    def failing(self: KernelSync) -> int:
        assert unpacked(self) == 0
        return -errno.EIO

    monkeypatch.setattr(KernelSync, "_result", failing)
    begun = kernel.begin(file._fd)
    assert begun is not None
    with pytest.raises(OSError, match="Input/output") as failed:
        await begun
    assert failed.value.errno == errno.EIO
    kernel.close()
    file.close()


async def test_who_gives_up_waiting_disturbs_nobody(tmp_path: Path) -> None:
    kernel = opened_sync()
    file = OsFiles().open(tmp_path / "f", create=True)
    begun = kernel.begin(file._fd)
    assert begun is not None
    begun.cancel()
    async with asyncio.timeout(PATIENCE_S):
        while kernel.is_syncing:  # noqa: ASYNC110
            await asyncio.sleep(0)
    again = kernel.begin(file._fd)
    assert again is not None
    await again
    kernel.close()
    file.close()


async def test_a_busy_loop_gives_way_to_a_sync_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = opened_sync()
    yielded: list[float] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yielded.append(time.perf_counter()))
    file, never_synced = os.memfd_create("f"), asyncio.get_running_loop().create_future()
    monkeypatch.setattr(kernel_sync._libc, "syscall", lambda *_: 1)  # begun, and it does not end
    begun_s = time.perf_counter()
    assert kernel.begin(file) is not None
    turn_count = 0
    while time.perf_counter() < begun_s + 10 * LATE_S:
        turn_end_s = time.perf_counter() + 4 * IDLE_TURN_S
        while time.perf_counter() < turn_end_s:
            pass
        turn_count += 1
        await asyncio.sleep(0)
    assert yielded[0] - begun_s >= LATE_S / 2, "what gathers meanwhile is the next group"
    assert turn_count / 4 < len(yielded) <= turn_count
    yielded.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10 * LATE_S):
            await never_synced
    assert len(yielded) <= 40, "a loop with nothing to do does not spin: two turns each time it looks"
    monkeypatch.undo()
    kernel.close()
    os.close(file)


async def test_work_in_the_background_gives_way_at_once_and_only_to_a_sync(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened_sync().close()
    store = await Store.open(with_settings(root=tmp_path))
    topic, _ = await store.create_topic("t", 1)
    yielded: list[bool] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yielded.append(True))
    is_syncing = False
    begin = KernelSync.begin

    def begun(self: KernelSync, fd: int) -> asyncio.Future[None] | None:
        nonlocal is_syncing
        is_syncing = True
        return begin(self, fd)

    monkeypatch.setattr(KernelSync, "begin", begun)
    await store.yield_to_loop()
    assert not yielded, "nothing is under way"
    async with asyncio.timeout(PATIENCE_S):
        while not yielded:  # the first group may have been synced by the thread, while space was prepared
            putting = asyncio.create_task(put(store, QueueKey(topic.topic_id, 0), b"a"))
            while not (is_syncing or putting.done()):  # noqa: ASYNC110
                await asyncio.sleep(0)
            await store.yield_to_loop()
            await putting
            is_syncing = False
    await store.close()


async def test_closing_waits_for_what_is_under_way(tmp_path: Path) -> None:
    kernel = opened_sync()
    file = OsFiles().open(tmp_path / "f", create=True)
    file.pwritev([bytes(1 << 20)], 0)
    assert kernel.begin(file._fd) is not None
    kernel.close()
    file.close()


@pytest.mark.parametrize(("system", "machine"), [("Linux", "riscv128"), ("Darwin", "x86_64")])
async def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert KernelSync.open() is None
    assert OsFiles().background_sync() is None


async def test_small_groups_of_a_store_are_synced_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened_sync().close()
    begun: list[int] = []
    original = KernelSync.begin

    def begin(self: KernelSync, fd: int) -> asyncio.Future[None] | None:
        begun.append(fd)
        return original(self, fd)

    monkeypatch.setattr(KernelSync, "begin", begin)
    store = await Store.open(with_settings(root=tmp_path))
    topic, _ = await store.create_topic("t", 1)
    queue = QueueKey(topic.topic_id, 0)
    for number in range(20):
        await put(store, queue, b"%d" % number)
        assert store._log.durable_position == store._log.end_position
    assert 10 < len(begun) <= store.stats.sync_count, "all but those for which space had to be prepared"
    assert await values_of(store, queue) == [b"%d" % number for number in range(20)]
    await store.close()

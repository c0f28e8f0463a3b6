"""A disk that fails or is full, at every single call: contract C9.

EIO      a failed write or fdatasync of the log ends all appends for good; nothing is synced again; reads go on
ENOSPC   appends are refused with nothing stored, reads go on, appends work again when there is space
always   what was acked survives the power cut that follows, what was refused never shows up
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from random import Random

import pytest

from store.errors import DiskFull, StoreError, StoreStopped
from store.limits import KiB
from store.store import Store
from store.types import Acks, QueueKey
from tests.history import Recorder, Seen, check
from tests.simdisk import CHANGING, Fault, Operation, SimDisk
from tests.store.kit import SMALL, abandon, open_store, put, values_of

LOG = "commitlog"
FAILURES = (errno.EIO, errno.ENOSPC)


@pytest.fixture(autouse=True)
def quiet_log() -> None:
    logging.getLogger("store").setLevel(logging.CRITICAL)


class Session:
    """A store on a simulated disk with two queues, and the history of what its client was told."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.history = Recorder()
        self.topic_id = 0
        self.now = 0
        self.store: Store

    async def open(self) -> None:
        self.store = await open_store(self.disk)

    async def create_topic(self) -> None:
        topic, _ = await self.store.create_topic("t", 2)
        self.topic_id = topic.topic_id

    async def append(self, partition: int, size: int, acks: Acks = Acks.FLUSHED) -> StoreError | None:
        """Append one record; the error if there was one."""
        value = self.history.value("p")
        self.now += 2
        send = self.history.send(value, partition, self.now)
        try:
            answer = await put(self.store, self.queue(partition), value.encode().ljust(size, b"\0"), acks=acks)
        except DiskFull as error:
            send.fail(self.now + 1)
            return error
        except StoreStopped as error:
            return error
        assert answer.acks >= acks
        if acks is Acks.FLUSHED:
            send.ok(self.now + 1, answer.base_offset)
        return None

    def queue(self, partition: int) -> QueueKey:
        return QueueKey(self.topic_id, partition)

    async def read(self, *, is_final: bool = False) -> None:
        """Note everything a reader can see."""
        for partition in (0, 1):
            values = await values_of(self.store, self.queue(partition))
            seen = [Seen(offset, value.rstrip(b"\0").decode()) for offset, value in enumerate(values)]
            if is_final:
                self.history.final_read(partition, seen)
            else:
                self.history.read(partition, seen)

    async def survives(self, disk: SimDisk) -> None:
        """Recover on what is left of the disk and check the whole history."""
        await abandon()
        self.disk = disk
        await self.open()
        if not self.topic_id:
            assert not self.history.sends
            return
        await self.read(is_final=True)
        assert check(self.history) == []
        assert await self.append(0, 10) is None, "a healed disk takes appends again"
        await abandon()


async def script(session: Session) -> Counter[type]:
    """A session that rolls twice, checkpoints and closes; goes on after errors. Counts the errors."""
    errors = Counter[type]()
    await session.open()
    try:
        await session.create_topic()
    except StoreError:
        return errors
    for number in range(40):
        error = await session.append(number % 2, 4000, Acks.WRITTEN if number % 5 == 0 else Acks.FLUSHED)
        if error is not None:
            errors[type(error)] += 1
        if number % 8 == 7:
            await session.store._save_checkpoint()
    if session.store.failure is None:
        await session.read()
    await session.store.close()
    return errors


def calls_of_a_clean_run() -> Counter[Operation]:
    disk = SimDisk()
    asyncio.run(script(Session(disk)))
    return Counter(call.operation for call in disk.calls)


@pytest.mark.parametrize("operation", sorted(CHANGING))
def test_any_call_may_fail_once_or_for_ever_and_no_promise_breaks(operation: Operation) -> None:
    count = calls_of_a_clean_run()[operation]

    async def fail_at(nth: int, code: int, sticky: bool, rng: Random) -> None:
        disk = SimDisk()
        disk.syncs_beside = nth % 2 == 0
        session = Session(disk)
        fault = Fault(operation, code, nth=nth, sticky=sticky, drop_dirty=rng.random() < 0.5, partial_bytes=nth * 97)
        disk.inject(fault)
        try:
            await script(session)
        except OSError:
            assert not session.history.sends, "only opening may fail with a bare OSError"
        assert fault.hit_count, "the session never came to this call"
        await session.survives(disk.crash(rng))

    for nth in range(1, count + 1):
        for code in FAILURES:
            for sticky in (False, True):
                asyncio.run(fail_at(nth, code, sticky, Random(nth)))


@pytest.mark.parametrize("syncs_beside", [False, True])
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("operation", ["datasync", "pwritev"])
async def test_after_a_failed_write_of_the_log_nothing_is_acked_written_or_synced(
    operation: Operation, sticky: bool, syncs_beside: bool
) -> None:
    """The fsync that lies: its failure drops the pages, and the next one would claim success."""
    for nth in range(1, 12):
        disk = SimDisk()
        disk.syncs_beside = syncs_beside
        session = Session(disk)
        await session.open()
        await session.create_topic()
        for number in range(5):
            assert await session.append(number % 2, 500) is None
        disk.inject(Fault(operation, nth=nth, sticky=sticky, path_part=LOG, drop_dirty=True))
        results = [await session.append(number % 2, 3000) for number in range(20)]
        failed_at = next(n for n, result in enumerate(results) if result is not None)
        assert all(isinstance(result, StoreStopped) for result in results[failed_at:])
        assert isinstance(session.store.failure, StoreStopped)
        await session.read()  # what was acked can still be read
        await session.store.close()
        calls = [call for call in disk.calls if LOG in call.path]
        first_error = next(n for n, call in enumerate(calls) if call.error)
        assert not calls[first_error + 1 :], "the log was touched after its disk had failed"
        await session.survives(disk.crash(Random(nth)))


@pytest.mark.parametrize("syncs_beside", [False, True])
async def test_every_waiter_of_a_failed_group_and_all_later_ones_are_told(syncs_beside: bool) -> None:
    disk = SimDisk()
    disk.syncs_beside = syncs_beside
    session = Session(disk)
    await session.open()
    await session.create_topic()
    disk.inject(Fault("datasync", path_part=LOG))
    results = await asyncio.gather(*(session.append(number % 2, 100) for number in range(10)))
    assert all(isinstance(result, StoreStopped) for result in results)
    assert isinstance(await session.append(0, 1), StoreStopped)
    with pytest.raises(StoreStopped):
        await session.store.create_topic("u", 1)
    assert session.store.bounds(session.queue(0)).max_offset == 0, "nothing of the failed group is shown"
    await abandon()


async def test_a_reader_that_waits_is_not_woken_by_records_that_failed() -> None:
    disk = SimDisk()
    session = Session(disk)
    await session.open()
    await session.create_topic()
    waiting = asyncio.create_task(session.store.wait_for(session.queue(0), 0, 60_000))
    disk.inject(Fault("datasync", path_part=LOG))
    await session.append(0, 100)
    assert not waiting.done()
    await session.store.close()
    assert await waiting is False
    await abandon()


async def test_a_full_disk_refuses_appends_and_heals_without_a_restart() -> None:
    disk = SimDisk()
    session = Session(disk)
    await session.open()
    await session.create_topic()
    rng = Random(1)
    for _ in range(20):
        disk.capacity_bytes = disk.used_bytes() + rng.randrange(40 * KiB)
        appended_count = 0
        while (error := await session.append(rng.randrange(2), rng.randrange(1, 5000))) is None:
            appended_count += 1
            assert appended_count < 100
        assert isinstance(error, DiskFull)
        assert str(SMALL.root) in str(error)
        assert isinstance(await session.append(0, 10_000), DiskFull | None)
        await session.read()
        await session.store._save_checkpoint()  # must not hurt, whether it works or not
        disk.capacity_bytes = None
        assert await session.append(0, 5000) is None
    assert session.store.failure is None
    await session.read()
    await session.survives(disk.crash(rng))


async def test_a_disk_that_filled_up_while_a_new_file_was_made_loses_nothing_acked_later() -> None:
    """The name of a half-made file is not durable yet; who goes on with it must make it so."""
    for seed in range(30):
        disk = SimDisk()
        session = Session(disk)
        await session.open()
        await session.create_topic()
        for _ in range(15):
            assert await session.append(0, 4000) is None
        disk.capacity_bytes = disk.used_bytes() + 1000
        while await session.append(0, 4000) is None:
            pass
        disk.capacity_bytes = None
        while len(disk.list(SMALL.root / LOG)) < 2:
            assert await session.append(0, 4000) is None
        assert await session.append(1, 100) is None
        await session.survives(disk.crash(Random(seed)))


async def test_the_disk_floor_refuses_appends_before_the_disk_is_full() -> None:
    from tests.store.kit import with_settings

    disk = SimDisk()
    session = Session(disk)
    session.store = await open_store(disk, with_settings(disk_floor_bytes=100 * KiB))
    await session.create_topic()
    disk.capacity_bytes = disk.used_bytes() + 150 * KiB
    while (error := await session.append(0, 5000)) is None:
        pass
    assert isinstance(error, DiskFull)
    assert disk.free_bytes(SMALL.root) >= 100 * KiB
    await session.store.close()


async def test_a_directory_is_synced_before_the_first_ack_in_a_new_file() -> None:
    disk = SimDisk()
    session = Session(disk)
    await session.open()
    await session.create_topic()
    named = set[str]()
    for _ in range(60):
        disk.calls.clear()
        assert await session.append(0, 4000) is None
        for call in disk.calls:
            if call.operation == "create" and LOG in call.path:
                named.add(call.path)
            if call.operation == "sync_dir" and call.path.endswith(LOG):
                named.clear()
        assert not named, "acked while the name of a log file may still be lost"
    assert len(disk.list(SMALL.root / LOG)) >= 3
    await abandon()

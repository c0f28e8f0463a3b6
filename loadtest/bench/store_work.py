"""What is measured on the store alone, in one process and without HTTP: each function runs one kind of work.

All data goes below the directory given; stores use their default settings unless a line says otherwise.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from crc32c import crc32c

from loadtest.bench.disk import DiskLoop, forget_pages
from loadtest.kernel_cpu import kernel_cpu_s, kernel_cpu_since
from loadtest.stats import percentile
from store import Store
from store.config import StoreConfig
from store.limits import PARTITIONS_MAX
from store.record_batch import Record, encode
from store.types import Acks, Append, QueueKey

MiB = 1024 * 1024
GiB = 1024 * MiB
TIMESTAMP_MS = 1_767_225_600_000
READ_BYTES = 1 * MiB
RECORD_OVERHEAD_BYTES = 8  # of a record inside a batch, about

IndexKind = Literal["file", "rocksdb"]


class Speed(NamedTuple):
    """Records and bytes of the log in so many seconds, and the CPU time they took: `cpu_s` of this process, in user and
    kernel mode; `kernel_cpu_s` of kernel threads, machine-wide (0: not measured)."""

    record_count: int
    byte_count: int
    duration_s: float
    cpu_s: float = 0.0
    kernel_cpu_s: float = 0.0

    @property
    def records_per_s(self) -> float:
        return self.record_count / self.duration_s

    def with_more(self, more: Speed) -> Speed:
        """Both together, one after the other."""
        return Speed(
            self.record_count + more.record_count,
            self.byte_count + more.byte_count,
            self.duration_s + more.duration_s,
            self.cpu_s + more.cpu_s,
            self.kernel_cpu_s + more.kernel_cpu_s,
        )

    @property
    def cpu_us(self) -> float:
        """CPU time of this process, per record."""
        return self.cpu_s / self.record_count * 1e6

    def kernel_us(self, idle_share: float) -> float:
        """CPU time of kernel threads per record, without the share of a second that an idle machine takes."""
        return max(0.0, self.kernel_cpu_s - idle_share * self.duration_s) / self.record_count * 1e6


class Memory(NamedTuple):
    """Memory while appending. `index_bytes` and `tail_bytes` are the largest values seen of the two buffers."""

    start_rss_bytes: int
    max_rss_bytes: int
    index_bytes: int
    tail_bytes: int
    appended_bytes: int


class Latency(NamedTuple):
    """Milliseconds of single durable appends."""

    p50_ms: float
    p99_ms: float
    max_ms: float


def batch_of(record_count: int, record_bytes: int) -> bytes:
    """A batch of equal records, each about `record_bytes` long."""
    value = os.urandom(record_bytes - RECORD_OVERHEAD_BYTES)
    return bytes(encode([Record(None, value, TIMESTAMP_MS)] * record_count))


@asynccontextmanager
async def opened(config: StoreConfig, queue_count: int = 1) -> AsyncIterator[tuple[Store, list[QueueKey]]]:
    """A store and queues of it, made if need be."""
    store = await Store.open(config)
    try:
        queues: list[QueueKey] = []
        while len(queues) < queue_count:
            partitions = min(PARTITIONS_MAX, queue_count - len(queues))
            topic, _ = await store.create_topic(f"bench{len(queues)}", partitions)
            queues += [QueueKey(topic.topic_id, number) for number in range(partitions)]
        yield store, queues
    finally:
        await store.close()


async def append_calls(
    store: Store,
    queues: Iterator[QueueKey],
    batch: bytes,
    record_count: int,
    *,
    batches: int,
    until: Callable[[], bool],
) -> Speed:
    """Append `batches` batches in one durable call, again and again, one call at a time: a write each."""
    spent = _Spent()
    call_count = await _append_until(store, queues, batch, record_count, batches=batches, until=until)
    return spent.speed(call_count * batches * record_count, call_count * batches * len(batch))


async def _append_until(
    store: Store,
    queues: Iterator[QueueKey],
    batch: bytes,
    record_count: int,
    *,
    batches: int,
    until: Callable[[], bool],
) -> int:
    """The number of calls."""
    call_count = 0
    while not until():
        appends = [
            Append(queue=next(queues), batch=batch, record_count=record_count, json_values=True) for _ in range(batches)
        ]
        await store.append(appends, acks=Acks.FLUSHED)
        call_count += 1
    return call_count


async def append_side_by_side(
    store: Store,
    queues: Iterator[QueueKey],
    batch: bytes,
    record_count: int,
    *,
    callers: int,
    until: Callable[[], bool],
) -> Speed:
    """Append one batch in a durable call, again and again, by so many callers at the same time: those who come while
    the disk is busy share the next write, as the requests of a server do."""
    alone = partial(_append_until, store, queues, batch, record_count, batches=1, until=until)
    spent = _Spent()
    call_count = sum(await asyncio.gather(*[alone() for _ in range(callers)]))
    return spent.speed(call_count * record_count, call_count * len(batch))


class _Spent:
    """Time and CPU time from here on."""

    def __init__(self) -> None:
        self._kernel_before = kernel_cpu_s()
        self._cpu_began_s = time.process_time()
        self._began_s = time.perf_counter()

    def speed(self, record_count: int, byte_count: int) -> Speed:
        duration_s, cpu_s = time.perf_counter() - self._began_s, time.process_time() - self._cpu_began_s
        return Speed(record_count, byte_count, duration_s, cpu_s, kernel_cpu_since(self._kernel_before))


def disk_writes(disk: DiskLoop, batch: bytes, record_count: int, *, batches: int, duration_s: float) -> Speed:
    """The limit of `append_calls`: the same bytes by one pwritev and one fdatasync each time."""
    written = disk.run([batch] * batches, duration_s)
    return Speed(written.sync_count * batches * record_count, written.byte_count, written.duration_s)


def forget_log_pages(store: Store) -> None:
    """Take what the log holds, all of it durable, out of the page cache; not what is prepared behind it."""
    end = store.end_position
    directory = store.config.root / "commitlog"
    for name in os.listdir(directory):
        if int(name) < end:
            fd = os.open(directory / name, os.O_RDONLY)
            try:
                forget_pages(fd, min(end - int(name), store.config.commit_log_file_bytes))
            finally:
                os.close(fd)


def passed(duration_s: float) -> Callable[[], bool]:
    """True from so many seconds on."""
    end_s = time.perf_counter() + duration_s
    return lambda: time.perf_counter() >= end_s


def emptied(store: Store) -> Callable[[], bool]:
    """True when the index has put what waited in memory where it belongs since the last call."""
    last_bytes = 0

    def has_emptied() -> bool:
        nonlocal last_bytes
        before_bytes, last_bytes = last_bytes, store._queues.pending_bytes
        return last_bytes < before_bytes

    return has_emptied


def round_robin(queues: Sequence[QueueKey]) -> Iterator[QueueKey]:
    """Each queue in turn, for ever."""
    while True:
        yield from queues


async def fill(root: Path, byte_count: int, *, record_bytes: int, records_per_batch: int) -> int:
    """Put so many bytes of batches into one queue and close; the number of records."""
    batch = batch_of(records_per_batch, record_bytes)
    per_call = max(1, 4 * MiB // len(batch))
    calls = max(1, byte_count // (per_call * len(batch)))
    config = StoreConfig(root=root)
    async with opened(config) as (store, queues):
        left = iter(range(calls))
        await append_calls(
            store, round_robin(queues), batch, records_per_batch, batches=per_call,
            until=lambda: next(left, None) is None,
        )  # fmt: skip
    return calls * per_call * records_per_batch


def forget_checkpoints(root: Path) -> None:
    """Leave of a closed store what one has that was killed before its first checkpoint: its log."""
    for name in ("index.0", "index.1"):
        (root / name).unlink(missing_ok=True)
    shutil.rmtree(root / "consumequeue", ignore_errors=True)


async def read_all(root: Path) -> Speed:
    """Read the first queue from its beginning to its end, whole batches, READ_BYTES at a time."""
    async with opened(StoreConfig(root=root)) as (store, queues):
        queue = queues[0]
        offset, max_offset = store.bounds(queue)
        byte_count = 0
        began_s = time.perf_counter()
        while offset < max_offset:
            result = await store.read(queue, offset, max_bytes=READ_BYTES)
            byte_count += sum(entry.size for entry in result.entries)
            offset = result.next_offset
        return Speed(max_offset, byte_count, time.perf_counter() - began_s)


def raw_read(root: Path, byte_count: int, *, with_crc: bool) -> float:
    """Seconds to pread the first bytes of the log as large pieces, with a CRC of all of them if asked."""
    began_s = time.perf_counter()
    left = byte_count
    for path in sorted((root / "commitlog").iterdir()):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            position = 0
            while left > 0 and (piece := os.pread(fd, min(READ_BYTES, left), position)):
                if with_crc:
                    crc32c(piece)
                position += len(piece)
                left -= len(piece)
        finally:
            os.close(fd)
    return time.perf_counter() - began_s


async def start(root: Path) -> tuple[float, Store]:
    """Open a store; seconds it took, and the store, to be closed."""
    began_s = time.perf_counter()
    store = await Store.open(StoreConfig(root=root))
    return time.perf_counter() - began_s, store


async def over_queues(
    root: Path, queue_count: int, few_count: int, index: IndexKind, *, duration_s: float
) -> tuple[Speed, Speed]:
    """Batches of 10 records, 200 a durable call, round robin over so many queues, checkpoints included; and, in the
    same store before and after, over the first `few_count` of them.

    Whole turns of the index are timed, at least `duration_s`: from one checkpoint that leaves nothing in memory or in
    the snapshot to another. So every append is paid for in full, and the files and directories of the queues are made
    before the clock starts: later appends need none.
    """
    batch = batch_of(10, 100)
    async with opened(StoreConfig(root=root, index=index), queue_count) as (store, queues):
        has_emptied = emptied(store)

        async def timed(some: Iterator[QueueKey], at_least_s: float) -> Speed:
            is_over = passed(at_least_s)
            return await append_calls(store, some, batch, 10, batches=200, until=lambda: has_emptied() and is_over())

        few, all_ = round_robin(queues[:few_count]), round_robin(queues)
        each_once = iter(range(-(-queue_count // 200)))
        await append_calls(store, all_, batch, 10, batches=200, until=lambda: next(each_once, None) is None)
        await timed(all_, 0)
        before = await timed(few, duration_s / 2)
        speed = await timed(all_, duration_s)
        after = await timed(few, duration_s / 2)
    return speed, before.with_more(after)


async def memory_while_appending(root: Path, byte_count: int) -> Memory:
    """Append batches of 1,000 records of 100 bytes to 4 queues, 10 a call; watch this process."""
    batch = batch_of(1000, 100)
    async with opened(StoreConfig(root=root, retention_bytes=2 * GiB, retention_interval_ms=500), 4) as (store, queues):
        start_rss = rss_bytes()
        seen = Memory(start_rss, start_rss, 0, 0, 0)

        def is_enough() -> bool:
            nonlocal seen
            seen = Memory(
                start_rss,
                max(seen.max_rss_bytes, rss_bytes()),
                max(seen.index_bytes, store._queues.pending_bytes),
                max(seen.tail_bytes, store._tail_bytes),
                store.end_position,
            )
            return store.end_position >= byte_count

        await append_calls(store, round_robin(queues), batch, 1000, batches=10, until=is_enough)
        return seen


async def append_latency(root: Path, *, is_preparing: bool, count: int) -> Latency:
    """Single durable appends of 103 kB every 4 ms, with the log being zeroed ahead of them all the time, or never."""
    config = StoreConfig(root=root, extent_bytes=8 * MiB if is_preparing else 512 * MiB)
    batch = batch_of(1000, 100)
    async with opened(config) as (store, [queue]):
        if not is_preparing:
            # The first log file to its end; nothing is left to be done behind the appends.
            await asyncio.to_thread(store._log.prepare, config.commit_log_file_bytes)
        times_ms = []
        for _ in range(count):
            began_s = time.perf_counter()
            await store.append([Append(queue=queue, batch=batch, record_count=1000)], acks=Acks.FLUSHED)
            times_ms.append((time.perf_counter() - began_s) * 1000)
            await asyncio.sleep(max(0.0, 0.004 - (time.perf_counter() - began_s)))
        return Latency(percentile(times_ms, 50), percentile(times_ms, 99), max(times_ms))


def rss_bytes() -> int:
    """Resident memory of this process."""
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")

"""The timer at work on a real disk, in one process, without wire or reader: what loadtest/bench/timer.py measures.

accept      batches of 1,000 delayed records of 100 bytes, appended durably and put into the wheel
busy        records due in one second: from its first millisecond until the last is delivered durably
others      meanwhile, what another client waits for a durable append of one record and for reading it back. The limit
            writes the same bytes at the same pace from a thread of a bare loop, and another's small writes between
lateness    records due evenly over some seconds: from the due millisecond until durably delivered. The limit does
            nothing but write the same bytes at the same pace: one pwritev and fdatasync, from a thread of a bare loop
flat        CPU of accepting a schedule while few and while many are pending
recovery    starting on what a killed process left: the store, then the timer
change      cancelling by id, one after the other and many at once, with many pending
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from loadtest.stats import spread
from store import Store
from store.clock import SystemClock
from store.config import StoreConfig
from store.files import OsFiles
from store.record_batch import Record, encode
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Delay, QueueKey
from timer.config import TimerConfig
from timer.firing import PIECE_RECORDS_MAX
from timer.items import Item, fire_ms_of
from timer.metrics import TimerMetrics
from timer.ports import OwnPartitions
from timer.schedule import ScheduleId
from timer.service import TimerService

VALUE = b'{"carrier":"UA","dest":"IAH","delay":11,"padding":"' + b"x" * 45 + b'"}'
BATCH_RECORDS = 1000
CONCURRENT_BATCHES = 8
PARTITIONS = 4
HOUR_MS = 3_600_000
PROBE_INTERVAL_MS = 5
BARE_FILE_BYTES = 64 * 1024 * 1024
DELIVERED_BYTES = 250
"""Of one delivered record in the log, with its headers and its share of the batch and the entry."""


class TooSlow(Exception):
    """What is to be due in one second could not be accepted before it began: the machine is busy with other things."""


class Row(NamedTuple):
    """One line of the result. `is_met` None: there is no goal. `n`: of how many rounds."""

    work: str
    measured: str
    goal: str = ""
    is_met: bool | None = None
    figures: dict[str, float] = {}  # noqa: RUF012 - never written to
    n: int = 1


class Lateness(TimerMetrics):
    """The timer's counters, and the exact lateness of every record."""

    def __init__(self) -> None:
        super().__init__()
        self.late_ms: list[int] = []

    def fired(self, now_ms: int, items: Sequence[Item]) -> None:
        super().fired(now_ms, items)
        self.late_ms += [max(0, now_ms - fire_ms_of(item)) for item in items]


def percentiles(values: Sequence[float], shares: Sequence[float] = (50, 99, 99.9)) -> list[float]:
    """The values below which these shares (in per cent) lie."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] for share in shares]


class Rig:
    """A store and its timer over one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = SystemClock()
        self.metrics = Lateness()
        self.store: Store
        self.timer: TimerService
        self.topic_id = self.other_topic_id = 0
        self.store_open_s = self.timer_start_s = 0.0
        self._running: asyncio.Task[None] | None = None

    async def open(self, *, run: bool = True) -> None:
        """Open (recover) both, and let the timer run."""
        started_s = time.perf_counter()
        self.store = await Store.open(StoreConfig(root=self.root), files=OsFiles(), clock=self.clock)
        self.store_open_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        own, config = OwnPartitions(self.store), TimerConfig(root=self.root / "timer")
        self.timer = TimerService(config, self.store, OsFiles(), self.clock, partitions=own)
        self.timer.metrics = self.metrics
        await self.timer.start()
        self.timer_start_s = time.perf_counter() - started_s
        topic, _ = await self.store.create_topic("bench", PARTITIONS)
        self.topic_id = topic.topic_id
        other, _ = await self.store.create_topic("other", 1)
        self.other_topic_id = other.topic_id
        if run:
            self._running = asyncio.create_task(self.timer.run())

    async def close(self, *, clean: bool = True) -> None:
        """Stop; unless `clean`, as if killed."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            self._running = None
        if clean:
            await self.timer.close()
        await self.store.close()

    async def accept(self, due_ms: Callable[[int], int], count: int) -> list[ScheduleId]:
        """Accept `count` schedules, some batches at a time; return the id of each batch's first."""
        numbers = iter(range(0, count, BATCH_RECORDS))
        firsts: list[ScheduleId] = []

        async def sender() -> None:
            for start in numbers:
                dues = [due_ms(number) for number in range(start, min(start + BATCH_RECORDS, count))]
                batch = encode([Record(b"key", VALUE, dues[0])] * len(dues))
                delays = [Delay(due, self.topic_id, index % PARTITIONS) for index, due in enumerate(dues)]
                append = Append(queue=TIMER_QUEUE, batch=batch, record_count=len(dues), json_values=True, delays=delays)
                appended = await self.timer.schedule(append, acks=Acks.FLUSHED)
                firsts.append(ScheduleId(dues[0], appended.position, 0))

        await asyncio.gather(*(sender() for _ in range(CONCURRENT_BATCHES)))
        return firsts

    async def scheduled(self) -> None:
        """Wait until all that was accepted hangs in the wheel."""
        while self.timer.intake_lag_count:  # noqa: ASYNC110 - it is no event
            await asyncio.sleep(0.001)


async def accepting(root: Path, count: int, rounds: int) -> list[Row]:
    """accept: three times `count` in a round."""
    rig = Rig(root)
    await rig.open()
    far_ms = rig.clock.now_ms() + HOUR_MS
    accepted_per_s, scheduled_per_s = [], []
    for _ in range(rounds):
        started_s = time.perf_counter()
        await rig.accept(lambda number: far_ms + number, 3 * count)
        accepted_per_s.append(3 * count / (time.perf_counter() - started_s))
        await rig.scheduled()
        scheduled_per_s.append(3 * count / (time.perf_counter() - started_s))
    await rig.close()
    accepted, scheduled = spread(accepted_per_s), spread(scheduled_per_s)
    measured = (
        f"{accepted.median:,.0f}/s durable ({accepted.low:,.0f} - {accepted.high:,.0f}), "
        f"{scheduled.median:,.0f}/s in the wheel ({scheduled.low:,.0f} - {scheduled.high:,.0f})"
    )
    figures = {"accepted_per_s": accepted.median, "scheduled_per_s": scheduled.median}
    return [Row("accept", measured, ">= 100,000/s", scheduled.median >= 100_000, figures, rounds)]


async def busy(root: Path, count: int, rounds: int) -> list[Row]:
    """busy and others."""
    rig = Rig(root)
    await rig.open()
    rows: list[Row] = []
    fired_ms: list[float] = []
    calm_ms: list[float] = []
    busy_ms: list[float] = []
    bare_calm_ms: list[float] = []
    bare_busy_ms: list[float] = []
    for _ in range(rounds):
        start_ms = (rig.clock.now_ms() // 1000 + 6 + count // 100_000) * 1000
        await rig.accept(lambda number, start_ms=start_ms: start_ms + number * 7919 % 1000, count)  # type: ignore[misc]
        await rig.scheduled()
        until_ms = start_ms - 1100  # then the slot is opened
        calm_ms += await _others(rig, lambda until_ms=until_ms: rig.clock.now_ms() < until_ms)  # type: ignore[misc]
        wanted = rig.metrics.fired_count + count
        if rig.clock.now_ms() >= start_ms:
            raise TooSlow("the busy second began while it was being filled")
        await asyncio.sleep(max(0, start_ms - rig.clock.now_ms()) / 1000)
        busy_ms += await _others(rig, lambda wanted=wanted: rig.metrics.fired_count < wanted)  # type: ignore[misc]
        fired_ms.append(rig.clock.now_ms() - start_ms)
        with _bare_file(root / "limit") as fd:
            bare_calm_ms += await _bare_others(fd, 0, 2.0)
            bare_busy_ms += await _bare_others(fd, count, fired_ms[-1] / 1000)
    slowest_ms = max(fired_ms)
    rows.append(
        Row(
            "busy",
            f"{count:,} due in one second, all delivered after {statistics.median(fired_ms):,.0f} ms "
            f"(slowest of {rounds}: {slowest_ms:,.0f})",
            "<= 2,000 ms",
            statistics.median(fired_ms) <= 2000,
            {"median_ms": statistics.median(fired_ms), "slowest_ms": slowest_ms},
            rounds,
        )
    )
    (calm_p50, calm_p99), (busy_p50, busy_p99) = percentiles(calm_ms, (50, 99)), percentiles(busy_ms, (50, 99))
    rows.append(
        Row(
            "others",
            f"append and read back: p50 {calm_p50:.1f}, p99 {calm_p99:.1f} ms before; p50 {busy_p50:.1f}, "
            f"p99 {busy_p99:.1f} ms while the busy second fires: x{busy_p99 / calm_p99:.1f}",
            "p99 at most x2",
            busy_p99 <= 2 * calm_p99,
            {"calm_p50_ms": calm_p50, "calm_p99_ms": calm_p99, "busy_p50_ms": busy_p50, "busy_p99_ms": busy_p99},
            rounds,
        )
    )
    (calm_p50, calm_p99), (busy_p50, busy_p99) = (
        percentiles(bare_calm_ms, (50, 99)),
        percentiles(bare_busy_ms, (50, 99)),
    )
    rows.append(
        Row(
            "others, the limit",
            f"bare writes between the same bytes at the same pace: p50 {calm_p50:.1f}, p99 {calm_p99:.1f} ms before; "
            f"p50 {busy_p50:.1f}, p99 {busy_p99:.1f} ms meanwhile: x{busy_p99 / calm_p99:.1f}",
            figures={
                "calm_p50_ms": calm_p50,
                "calm_p99_ms": calm_p99,
                "busy_p50_ms": busy_p50,
                "busy_p99_ms": busy_p99,
            },
            n=rounds,
        )
    )
    await rig.close()
    return rows


async def _others(rig: Rig, going_on: Callable[[], bool]) -> list[float]:
    """Append one record durably and read it back, every few milliseconds; return how long each took."""
    queue = QueueKey(rig.other_topic_id, 0)
    batch = encode([Record(b"key", VALUE, 0)])
    took_ms = []
    while going_on():
        started_s = time.perf_counter()
        append = Append(queue=queue, batch=batch, record_count=1, json_values=True)
        (appended,) = await rig.store.append([append], acks=Acks.FLUSHED)
        assert (await rig.store.read(queue, appended.base_offset, max_bytes=1)).entries
        took_s = time.perf_counter() - started_s
        took_ms.append(took_s * 1000)
        await asyncio.sleep(max(0, PROBE_INTERVAL_MS / 1000 - took_s))
    return took_ms


async def _bare_others(fd: int, count: int, seconds: float) -> list[float]:
    """What small durable writes take, every few milliseconds, while `count` delivered records are written evenly over
    some seconds, each piece durably: all by one thread, in the order in which they come."""
    loop = asyncio.get_running_loop()
    took_ms: list[float] = []
    position = 0

    def write(size: int) -> None:
        nonlocal position
        if position + size > BARE_FILE_BYTES:
            position = 0
        os.pwrite(fd, bytes(size), position)
        position += size
        os.fdatasync(fd)

    async def fires(executor: ThreadPoolExecutor) -> None:
        piece_count = max(1, count // PIECE_RECORDS_MAX)
        started_s = loop.time()
        for number in range(piece_count):
            await asyncio.sleep(max(0, started_s + seconds * number / piece_count - loop.time()))
            if count:
                await loop.run_in_executor(executor, write, count // piece_count * DELIVERED_BYTES)
        await asyncio.sleep(max(0, started_s + seconds - loop.time()))

    with ThreadPoolExecutor(1) as executor:
        firing = asyncio.create_task(fires(executor))
        while not firing.done():
            started_s = time.perf_counter()
            await loop.run_in_executor(executor, write, DELIVERED_BYTES)
            took_s = time.perf_counter() - started_s
            took_ms.append(took_s * 1000)
            await asyncio.sleep(max(0, PROBE_INTERVAL_MS / 1000 - took_s))
        await firing
    return took_ms


async def lateness(root: Path, rounds: int) -> list[Row]:
    """lateness and its limit, in turn."""
    rate, seconds = 5_000, 4
    rig = Rig(root)
    await rig.open()
    ours_ms: list[float] = []
    limit_ms: list[float] = []
    sync_ms: list[float] = []
    with _bare_file(root / "limit") as fd:
        for _ in range(rounds):
            start_ms = rig.clock.now_ms() + 3_000
            wanted = rig.metrics.fired_count + rate * seconds
            before = len(rig.metrics.late_ms)
            await rig.accept(
                lambda number, start_ms=start_ms: start_ms + number * 1000 // rate,  # type: ignore[misc]
                rate * seconds,
            )
            while rig.metrics.fired_count < wanted:  # noqa: ASYNC110 - it is no event
                await asyncio.sleep(0.05)
            ours_ms += rig.metrics.late_ms[before:]
            late_ms, syncs_ms = await _bare_lateness(fd, rate, seconds)
            limit_ms += late_ms
            sync_ms += syncs_ms
    await rig.close()
    ours, limit, sync = percentiles(ours_ms), percentiles(limit_ms), percentiles(sync_ms)
    figures = {
        f"{name}_p{share}_ms": value
        for name, values in (("ours", ours), ("limit", limit), ("fdatasync", sync))
        for share, value in zip((50, 99, 99.9), values, strict=True)
    }
    return [
        Row(
            "lateness",
            f"{rate:,} fires/s: p50 {ours[0]:.0f}, p99 {ours[1]:.0f}, p99.9 {ours[2]:.0f} ms",
            "p99 <= 20 ms",
            ours[1] <= 20,
            figures,
            rounds,
        ),
        Row(
            "lateness, the limit",
            f"the same bytes at the same pace: p50 {limit[0]:.0f}, p99 {limit[1]:.0f}, p99.9 {limit[2]:.0f} ms; "
            f"of it fdatasync p50 {sync[0]:.2f}, p99 {sync[1]:.1f}, p99.9 {sync[2]:.1f} ms",
            n=rounds,
        ),
    ]


@contextmanager
def _bare_file(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, bytes(BARE_FILE_BYTES))
        os.fsync(fd)
        yield fd
    finally:
        os.close(fd)
        path.unlink()


async def _bare_lateness(fd: int, rate: int, seconds: int) -> tuple[list[float], list[float]]:
    """Lateness of `rate` records a second that are only written, and what each fdatasync took."""
    interval_ms = TimerConfig(root=Path()).fire_interval_ms
    late_ms: list[float] = []
    sync_ms: list[float] = []
    position = 0

    def write(count: int) -> None:
        nonlocal position
        size = count * DELIVERED_BYTES
        if position + size > BARE_FILE_BYTES:
            position = 0
        os.pwrite(fd, bytes(size), position)
        position += size
        started_s = time.perf_counter()
        os.fdatasync(fd)
        sync_ms.append((time.perf_counter() - started_s) * 1000)

    started_s = time.perf_counter()
    done_ms = 0
    while done_ms < seconds * 1000:
        now_ms = int((time.perf_counter() - started_s) * 1000)
        if now_ms - done_ms >= interval_ms:
            await asyncio.to_thread(write, (now_ms - done_ms) * rate // 1000)
            end_ms = (time.perf_counter() - started_s) * 1000
            late_ms += [end_ms - due_ms for due_ms in range(done_ms, now_ms) for _ in range(rate // 1000)]
            done_ms = now_ms
        await asyncio.sleep(interval_ms / 1000)
    return late_ms, sync_ms


async def flat_and_recovery(root: Path, few: int, many: int) -> list[Row]:
    """flat, recovery, change, and memory with `many` pending."""
    rig = Rig(root)
    await rig.open()
    far_ms = rig.clock.now_ms() + 2 * HOUR_MS
    spread_ms = 20 * HOUR_MS

    async def probe() -> float:
        """CPU µs a schedule, of five times 20,000 more the median: in some of them the store or the timer does in the
        background what earlier ones have left."""
        return statistics.median([await probe_once() for _ in range(5)])

    async def probe_once() -> float:
        await rig.scheduled()
        gc.collect()
        started_s = time.process_time()
        await rig.accept(lambda number: far_ms + number * 104_729 % spread_ms, 20_000)
        await rig.scheduled()
        return (time.process_time() - started_s) / 20_000 * 1e6

    await rig.accept(lambda number: far_ms + number * 104_729 % spread_ms, few)
    few_us = await probe()
    firsts = await rig.accept(lambda number: far_ms + number * 104_729 % spread_ms, many - few)
    many_us = await probe()
    rss_mb = _rss_bytes() / 1e6
    rows = [
        Row(
            "flat",
            f"{few_us:.1f} µs each at {few:,} pending, {many_us:.1f} at {many:,}: ratio {many_us / few_us:.2f}",
            "ratio <= 1.2",
            many_us / few_us <= 1.2,
            {"few_us": few_us, "many_us": many_us, "many_count": many},
        ),
        Row(
            "memory",
            f"{rss_mb:.0f} MB resident with {rig.timer.pending_count:,} pending (store and its caches included)",
            "< 300 MB at 10 M",
            rss_mb < 300,
            {"rss_mb": rss_mb},
        ),
    ]
    started_s = time.perf_counter()
    for schedule in firsts[:100]:
        await rig.timer.cancel(schedule)
    one_ms = (time.perf_counter() - started_s) * 10
    started_s = time.perf_counter()
    await asyncio.gather(*(rig.timer.cancel(schedule) for schedule in firsts[100:]))
    all_s = time.perf_counter() - started_s
    rate = len(firsts[100:]) / all_s
    rows.append(Row("change", f"cancel one by one {one_ms:.1f} ms each; {rate:,.0f}/s when many wait"))
    pending = rig.timer.pending_count
    await rig.timer.checkpoint()
    await rig.close(clean=False)
    again = Rig(root)
    await again.open(run=False)
    await again.timer.intake_step()
    assert again.timer.pending_count == pending, "recovery counts otherwise"
    recovered_s = again.timer_start_s + again.store_open_s
    rows.append(
        Row(
            "recovery",
            f"{pending:,} pending after a kill: timer {again.timer_start_s:.1f} s, store {again.store_open_s:.1f} s",
            "<= 10 s at 1 M",
            recovered_s * 1e6 / max(1e6, pending) <= 10,
            {"timer_s": again.timer_start_s, "store_s": again.store_open_s, "pending_count": pending},
        )
    )
    await again.close()
    last = Rig(root)
    await last.open(run=False)
    rows.append(
        Row(
            "clean start",
            f"timer {last.timer_start_s:.2f} s, store {last.store_open_s:.2f} s",
            "<= 1 s",
            last.timer_start_s + last.store_open_s <= 1,
        )
    )
    await last.close()
    return rows


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

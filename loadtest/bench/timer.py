"""`python -m loadtest.bench.timer`: the timer's speed on a real disk, in one process without HTTP; prints a table.

    accept      batches of 1,000 delayed records of 100 bytes, appended durably and hung into the wheel
    busy        records due in one second: from its first millisecond until the last is delivered durably
    lateness    records due evenly over some seconds: from the due millisecond until durably delivered
    flat        accepting (CPU, and wall time) a schedule while few and while many are pending
    recovery    starting on what a killed process left: the store, then the timer
    change      cancelling by id, one after the other and many at once, with many pending

Beside it, if they are installed, what people would use instead: a Redis sorted set polled every 10 ms by a script that
moves what is due to a list (appendfsync everysec: Redis' default), and beanstalkd with delayed jobs (-f 50: at most
50 ms between syncs). Neither answers after a sync, as we do.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from store import Store
from store.clock import SystemClock
from store.config import StoreConfig
from store.files import OsFiles
from store.record_batch import Record, encode
from store.types import Acks, Append, Delay, QueueKey
from timer.config import TimerConfig
from timer.delivery import TIMER_QUEUE
from timer.metrics import LATENESS_BOUNDS_MS
from timer.schedule import ScheduleId
from timer.service import TimerService

VALUE = b'{"carrier":"UA","dest":"IAH","delay":11,"padding":"' + b"x" * 45 + b'"}'
BATCH_RECORDS = 1000
CONCURRENT_BATCHES = 8
PARTITIONS = 4
HOUR_MS = 3_600_000

Row = tuple[str, str, str]


class Rig:
    """A store and its timer over one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = SystemClock()
        self.store: Store
        self.timer: TimerService
        self.topic_id = 0
        self.store_open_s = self.timer_start_s = 0.0
        self._running: asyncio.Task[None] | None = None

    async def open(self, *, run: bool = True) -> None:
        """Open (recover) both, and let the timer run."""
        started_s = time.perf_counter()
        self.store = await Store.open(StoreConfig(root=self.root), files=OsFiles(), clock=self.clock)
        self.store_open_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        self.timer = TimerService(TimerConfig(root=self.root / "timer"), self.store, OsFiles(), self.clock)
        await self.timer.start()
        self.timer_start_s = time.perf_counter() - started_s
        topic, _ = await self.store.create_topic("bench", PARTITIONS)
        self.topic_id = topic.topic_id
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

    async def hung(self) -> None:
        """Wait until all that was accepted hangs in the wheel."""
        while self.timer.enqueue_lag_count:  # noqa: ASYNC110 - it is no event
            await asyncio.sleep(0.001)

    def delivered_count(self) -> int:
        """Records in the target's partitions."""
        return sum(self.store.bounds(QueueKey(self.topic_id, queue)).max_offset for queue in range(PARTITIONS))


async def accept_and_fire(root: Path, count: int) -> list[Row]:
    """accept, busy and lateness."""
    rig = Rig(root)
    await rig.open()
    rows: list[Row] = []
    far_ms = rig.clock.now_ms() + HOUR_MS
    started_s = time.perf_counter()
    await rig.accept(lambda number: far_ms + number, count)
    accepted_s = time.perf_counter() - started_s
    await rig.hung()
    hung_s = time.perf_counter() - started_s
    rows.append(("accept", f"{count / accepted_s:,.0f}/s durable, {count / hung_s:,.0f}/s hung in", "100,000/s"))

    start_ms = (rig.clock.now_ms() // 1000 + 4 + count // 100_000) * 1000
    await rig.accept(lambda number: start_ms + number * 7919 % 1000, count)
    await rig.hung()
    slack_ms = start_ms - rig.clock.now_ms()
    assert slack_ms > 0, "the busy second began while it was being filled"
    while rig.delivered_count() < count:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    fired_ms = rig.clock.now_ms() - start_ms
    rows.append(("busy", f"{count:,} due in one second, all delivered after {fired_ms} ms", "2,000 ms"))

    rate, seconds = 5_000, 4
    before = list(rig.timer.metrics.late_counts)
    start_ms = rig.clock.now_ms() + 3_000
    await rig.accept(lambda number: start_ms + number * 1000 // rate, rate * seconds)
    while rig.delivered_count() < count + rate * seconds:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    late_counts = [now - then for now, then in zip(rig.timer.metrics.late_counts, before, strict=True)]
    shown = ", ".join(f"p{share:g} ≤ {_percentile(late_counts, share)} ms" for share in (50, 99, 99.9))
    rows.append(("lateness", f"{rate:,} fires/s: {shown}", "p99 ≤ 20 ms"))
    await rig.close()
    return rows


async def flat_and_recovery(root: Path, few: int, many: int) -> list[Row]:
    """flat, recovery, change, and memory with `many` pending."""
    rig = Rig(root)
    await rig.open()
    far_ms = rig.clock.now_ms() + 2 * HOUR_MS
    spread_ms = 20 * HOUR_MS

    async def probe() -> float:
        """CPU µs a schedule of 20,000 more."""
        await rig.hung()
        gc.collect()
        started_s = time.process_time()
        await rig.accept(lambda number: far_ms + number * 104_729 % spread_ms, 20_000)
        await rig.hung()
        return (time.process_time() - started_s) / 20_000 * 1e6

    await rig.accept(lambda number: far_ms + number * 104_729 % spread_ms, few)
    few_us = await probe()
    firsts = await rig.accept(lambda number: far_ms + number * 104_729 % spread_ms, many - few)
    many_us = await probe()
    rss_mb = _rss_bytes() / 1e6
    rows = [
        (
            "flat",
            f"{few_us:.1f} µs each at {few:,} pending, {many_us:.1f} at {many:,}: ratio {many_us / few_us:.2f}",
            "flat",
        ),
        ("memory", f"{rss_mb:.0f} MB resident with {rig.timer.pending_count:,} pending", "300 MB at 10 M"),
    ]
    started_s = time.perf_counter()
    for schedule in firsts[:100]:
        await rig.timer.cancel(schedule)
    one_ms = (time.perf_counter() - started_s) * 10
    started_s = time.perf_counter()
    await asyncio.gather(*(rig.timer.cancel(schedule) for schedule in firsts[100:]))
    all_s = time.perf_counter() - started_s
    rate = len(firsts[100:]) / all_s
    rows.append(("change", f"cancel one by one {one_ms:.1f} ms each; {rate:,.0f}/s when many wait", ""))
    pending = rig.timer.pending_count
    await rig.timer.checkpoint()
    await rig.close(clean=False)
    again = Rig(root)
    await again.open(run=False)
    await again.timer.enqueue_step()
    rows.append(
        (
            "recovery",
            f"{again.timer.pending_count:,} of {pending:,} pending after a kill: timer {again.timer_start_s:.1f} s, "
            f"store {again.store_open_s:.1f} s",
            "10 s at 1 M",
        )
    )
    await again.close()
    last = Rig(root)
    await last.open(run=False)
    rows.append(("clean start", f"timer {last.timer_start_s:.2f} s, store {last.store_open_s:.2f} s", "1 s"))
    await last.close()
    return rows


# ---------------------------------------------------------------------- peers


def redis_rows(root: Path, count: int) -> list[Row]:
    """A sorted set polled every 10 ms; its script moves what is due to a list, 1,000 at a time."""
    with _process("redis-server", "--port", "{port}", "--appendonly", "yes", "--dir", str(root), "--save", "") as port:
        connection = socket.create_connection(("127.0.0.1", port))
        replies = connection.makefile("rb")
        start_ms = (time.time_ns() // 1_000_000_000 + 3 + count // 100_000) * 1000
        started_s = time.perf_counter()
        for first in range(0, count, BATCH_RECORDS):
            parts = [b"ZADD", b"due"]
            for number in range(first, first + BATCH_RECORDS):
                parts += [b"%d" % (start_ms + number * 7919 % 1000), b"%d:" % number + VALUE]
            connection.sendall(_resp(parts))
            replies.readline()
        accepted_s = time.perf_counter() - started_s
        script = (
            b"local d=redis.call('ZRANGEBYSCORE',KEYS[1],'-inf',ARGV[1],'LIMIT',0,1000) "
            b"if #d>0 then redis.call('ZREM',KEYS[1],unpack(d)) redis.call('RPUSH',KEYS[2],unpack(d)) end return #d"
        )
        moved_count = 0
        while moved_count < count:
            connection.sendall(_resp([b"EVAL", script, b"2", b"due", b"ready", b"%d" % (time.time_ns() // 1_000_000)]))
            found = int(replies.readline()[1:])
            moved_count += found
            if not found:
                time.sleep(0.01)
        fired_ms = time.time_ns() // 1_000_000 - start_ms
        connection.close()
    return [
        ("accept: redis zset", f"{count / accepted_s:,.0f}/s, not synced when answered", ""),
        ("busy: redis zset", f"{count:,} due in one second, all moved after {fired_ms} ms", ""),
    ]


def beanstalkd_rows(root: Path, count: int) -> list[Row]:
    """Delayed jobs; delays are whole seconds. Consumed as `reserve` and `delete`, pipelined."""
    with _process("beanstalkd", "-l", "127.0.0.1", "-p", "{port}", "-b", str(root), "-f", "50") as port:
        connection = socket.create_connection(("127.0.0.1", port))
        replies = connection.makefile("rb")
        started_s = time.perf_counter()
        for _ in range(0, count, BATCH_RECORDS):
            delay_s = max(1, 4 + count // 50_000 - int(time.perf_counter() - started_s))
            put = b"put 1 %d 60 %d\r\n%s\r\n" % (delay_s, len(VALUE), VALUE)
            connection.sendall(put * BATCH_RECORDS)
            for _ in range(BATCH_RECORDS):
                replies.readline()
            last_due_s = time.perf_counter() + delay_s
        accepted_s = time.perf_counter() - started_s
        done_count = 0
        while done_count < count:
            connection.sendall(b"reserve\r\n" * BATCH_RECORDS)
            deletes = []
            for _ in range(BATCH_RECORDS):
                job = replies.readline().split()[1]
                replies.read(len(VALUE) + 2)
                deletes.append(b"delete %s\r\n" % job)
            connection.sendall(b"".join(deletes))
            for _ in deletes:
                replies.readline()
            done_count += BATCH_RECORDS
        late_ms = (time.perf_counter() - last_due_s) * 1000
        connection.close()
    return [
        ("accept: beanstalkd", f"{count / accepted_s:,.0f}/s, synced within 50 ms", ""),
        ("busy: beanstalkd", f"{count:,} delayed jobs, all consumed {late_ms:,.0f} ms after the last was due", ""),
    ]


@contextmanager
def _process(program: str, *arguments: str) -> Iterator[int]:
    """A server on a free port until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [program, *(argument.format(port=port) for argument in arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def _resp(parts: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _percentile(counts: list[int], share: float) -> str:
    wanted = sum(counts) * share / 100
    seen = 0
    for bound, count in zip(LATENESS_BOUNDS_MS, counts, strict=False):
        seen += count
        if seen >= wanted:
            return str(bound)
    return f"more than {LATENESS_BOUNDS_MS[-1]}"


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Run what is asked for, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.timer", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="records of accept and busy")
    parser.add_argument("--many", type=int, default=1_000_000, help="pending schedules of flat and recovery")
    parser.add_argument("--only", default="", help="accept, flat or peers")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="must be a disk, not memory")
    options = parser.parse_args()
    rows: list[Row] = []
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as `mq serve` does

    def measured(work: Callable[[Path], Awaitable[list[Row]] | list[Row]]) -> None:
        with tempfile.TemporaryDirectory(prefix="mq-timer-", dir=options.dir) as directory:
            found = work(Path(directory))
            rows.extend(found if isinstance(found, list) else uvloop.run(found))  # type: ignore[arg-type]

    if options.only in ("", "accept"):
        measured(lambda root: accept_and_fire(root, options.count))
    if options.only in ("", "flat"):
        measured(lambda root: flat_and_recovery(root, 10_000, options.many))
    if options.only in ("", "peers"):
        for program, peer in (("redis-server", redis_rows), ("beanstalkd", beanstalkd_rows)):
            if shutil.which(program):
                measured(lambda root, peer=peer: peer(root, options.count))  # type: ignore[misc]
            else:
                rows.append((program, "not installed", ""))
    table = Table("what", "measured", "wanted", title=f"timer, {os.cpu_count()} cores", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, width=140).print(table)


if __name__ == "__main__":
    main()

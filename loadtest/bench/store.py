"""`python -m loadtest.bench.store`: the speed of the store alone beside its limits and goals; `store.json`, `store.md`.

Every row is measured beside its limit in the same run, round by round. The goals are those of the design (issue "The
store, complete"). Takes twelve minutes; each part is written when it is measured, and `--only` measures one again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import uvloop
from rich.console import Console
from rich.table import Table

from gateway.main.garbage import calm_collector
from loadtest.bench import parts as pages
from loadtest.bench import store_work as work
from loadtest.bench.disk import disk_loop
from loadtest.bench.parts import ALIGNMENT, HEADINGS, Goal, Part, Row, cells, rows_of
from loadtest.bench.store_work import GiB, IndexKind, MiB, Speed
from loadtest.kernel_cpu import idle_kernel_cpu_share
from loadtest.process import end_when_told
from store.config import StoreConfig

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
GROUPS = (1, 8, 64)
CALLERS = (4, 16)
FILE_QUEUES = (1, 10, 100, 1_000, 10_000)
ROCKSDB_QUEUES = (10, 100, 1_000, 10_000, 100_000)
APPEND_GOAL = Goal(share=0.6, at_least=1e6)
FLAT_GOAL = Goal(share=0.8)


@dataclass(frozen=True, slots=True)
class Options:
    """How long and how much. `idle_share`: seconds of CPU that kernel threads take in a second while nothing runs."""

    directory: Path
    rounds: int
    queue_rounds: int
    run_s: float
    scan_bytes: int
    append_bytes: int
    idle_share: float = 0.0


Measure = Callable[[Options], Awaitable[list[Row]]]


async def append_rows(options: Options) -> list[Row]:
    """Durable appends beside a loop that writes the same bytes in groups of the same size: so many batches a call by
    one caller, which waits for each call; and one batch a call by many callers, whose batches share a write."""
    batch = work.batch_of(1_000, 100)
    size = f"{len(batch) / 1e3:.0f} kB"
    workloads: list[tuple[str, int, Callable[..., Awaitable[Speed]]]] = [
        *((f"append, {n} x {size} a call", n, partial(work.append_calls, batches=n)) for n in GROUPS),
        *((f"append, {n} callers of 1 x {size}", n, partial(work.append_side_by_side, callers=n)) for n in CALLERS),
    ]
    return [await _append_row(options, *one, batch) for one in workloads]


async def _append_row(
    options: Options, name: str, batches: int, append: Callable[..., Awaitable[Speed]], batch: bytes
) -> Row:
    """`batches`: in a write of the limit, as many as one of ours can have."""
    ours: list[Speed] = []
    limits: list[Speed] = []
    with _directory(options) as root, disk_loop(root) as disk:
        async with work.opened(StoreConfig(root=root / "store"), 4) as (store, queues):
            turn = work.round_robin(queues)
            groups_before, appends_before = store.stats.group_count, store.stats.append_count
            for _ in range(options.rounds):
                limits.append(work.disk_writes(disk, batch, 1_000, batches=batches, duration_s=options.run_s))
                disk.forget_pages()
                ours.append(await append(store, turn, batch, 1_000, until=work.passed(options.run_s)))
                work.forget_log_pages(store)
            merged = (store.stats.append_count - appends_before) / (store.stats.group_count - groups_before)
    return Row(
        name,
        "records/s",
        [speed.records_per_s for speed in ours],
        [speed.records_per_s for speed in limits],
        APPEND_GOAL,
        [speed.cpu_us for speed in ours],
        [speed.kernel_us(options.idle_share) for speed in ours],
        f"batches in a write: {merged:.1f}, of the limit {batches}",
    )


async def read_rows(options: Options) -> list[Row]:
    """Sequential reading of whole batches from the log's files, which the page cache holds."""
    with _directory(options) as root:
        await work.fill(root, 512 * MiB, record_bytes=100, records_per_batch=1_000)
        speeds, limits = [], []
        for _ in range(options.rounds):
            speed = await work.read_all(root)
            speeds.append(speed.records_per_s)
            limits.append(speed.record_count / work.raw_read(root, speed.byte_count, with_crc=True))
        note = "the limit: pread of 1 MiB and CRC"
        return [Row("sequential read, 1 MiB a read", "records/s", speeds, limits, Goal(at_least=2e6), note=note)]


async def queue_rows(options: Options, index: IndexKind, counts: tuple[int, ...]) -> list[Row]:
    """Appends over more and more queues, each beside appends over the fewest of them in the same store: what a store
    does in one minute it may not do in the next. Rounds in which all counts take turns."""
    speeds: list[list[tuple[Speed, Speed]]] = [[] for _ in counts]
    for _ in range(options.queue_rounds):
        for number, queue_count in enumerate(counts):
            with _directory(options) as root:
                pair = await work.over_queues(root, queue_count, counts[0], index, duration_s=options.run_s)
            speeds[number].append(pair)
    rows: list[Row] = []
    for queue_count, pairs in zip(counts, speeds, strict=True):
        cpu_ratio = median(every.cpu_us / few.cpu_us for every, few in pairs)
        rows.append(
            Row(
                f"append over {queue_count:,} queues, {index} index",
                "us/record",
                [1e6 / every.records_per_s for every, _ in pairs],
                [1e6 / few.records_per_s for _, few in pairs],
                None if queue_count == counts[0] else FLAT_GOAL,  # beside itself: how much the machine changes
                [every.cpu_us for every, _ in pairs],
                [every.kernel_us(options.idle_share) for every, _ in pairs],
                f"the limit: {counts[0]} of them; CPU {cpu_ratio:.2f}x",
            )
        )
    return rows


async def recovery_rows(options: Options) -> list[Row]:
    """Scanning the whole log after a kill before the first checkpoint; and starting after a clean stop. Each round
    beside reading the same bytes."""
    rows = []
    for records_per_batch in (1, 100):
        scans, limits, starts = [], [], []
        with _directory(options) as root:
            await work.fill(root, options.scan_bytes, record_bytes=1024, records_per_batch=records_per_batch)
            for _ in range(options.rounds):
                work.forget_checkpoints(root)
                scan_s, store = await work.start(root)
                byte_count = store.recovery.end_position
                await store.close()
                scans.append(scan_s / byte_count * GiB)
                limits.append(work.raw_read(root, byte_count, with_crc=True) / byte_count * GiB)
                clean_s, store = await work.start(root)
                await store.close()
                starts.append(clean_s)
        name = f"recovery, 1 KiB records, {records_per_batch} a batch"
        rows.append(Row(name, "s/GiB", scans, limits, Goal(at_most=3), note="the limit: pread and CRC"))
        name = f"clean start, {byte_count / GiB:.1f} GiB, {records_per_batch} a batch"
        rows.append(Row(name, "s", starts, goal=Goal(at_most=1)))
    with _directory(options) as root:
        await work.over_queues(root, 10_000, 1, "file", duration_s=options.run_s)
        clean_s, store = await work.start(root)
        await store.close()
    rows.append(Row("clean start, 10,000 queues, file index", "s", [clean_s], goal=Goal(at_most=1)))
    return rows


async def memory_rows(options: Options) -> list[Row]:
    """Memory of the process while it appends."""
    with _directory(options) as root:
        memory = await work.memory_while_appending(root, options.append_bytes)
    grown = (memory.max_rss_bytes - memory.start_rss_bytes) / MiB
    name = f"RSS grown by appending {memory.appended_bytes / GiB:.1f} GiB"
    note = (
        f"{memory.max_rss_bytes / MiB:.0f} MiB at most; tail {memory.tail_bytes / MiB:.0f} MiB, "
        f"index not yet in files {memory.index_bytes / MiB:.1f} MiB at most"
    )
    return [Row(name, "MiB", [grown], goal=Goal(at_most=256), note=note)]


async def prepare_rows(options: Options) -> list[Row]:
    """What zeroing the log ahead of the tail costs those who append."""
    latencies = []
    for is_preparing in (False, True):
        with _directory(options) as root:
            appends = int(options.run_s * options.rounds * 100)
            latencies.append(await work.append_latency(root, is_preparing=is_preparing, count=appends))
    quiet, busy = latencies
    note = f"p50 {busy.p50_ms:.2f} ms beside {quiet.p50_ms:.2f} ms, longest {busy.max_ms:.1f} beside {quiet.max_ms:.1f}"
    name = "append of 103 kB while the log is being zeroed, p99"
    return [Row(name, "ms", [busy.p99_ms], [quiet.p99_ms], note=f"{note}; the limit: nothing is being zeroed")]


PARTS: dict[str, Measure] = {
    "append": append_rows,
    "read": read_rows,
    "queues-file": partial(queue_rows, index="file", counts=FILE_QUEUES),
    "queues-rocksdb": partial(queue_rows, index="rocksdb", counts=ROCKSDB_QUEUES),
    "recovery": recovery_rows,
    "memory": memory_rows,
    "prepare": prepare_rows,
}

_numbers = count(1)


@contextmanager
def _directory(options: Options) -> Iterator[Path]:
    path = options.directory / str(next(_numbers))
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


def as_markdown(parts: Mapping[str, Part]) -> str:
    """One page: the table, then the conditions."""
    rows = [row for part in parts.values() for row in rows_of(part)]
    lines = [
        "# The store alone, beside its limits and goals",
        "",
        "Written by `make bench-store`; every run is in `store.json`. Medians of rounds, in which ours and the limit",
        "take turns; the share is the median of the rounds' ratios, and their range. Everything is durable: answered",
        "after an fdatasync.",
        "",
        "The limit of an append is a loop of one pwritev and one fdatasync, from end to end of a file of 2 GiB that",
        "got its blocks before and is not in the page cache; the store has to get its blocks within the time that is",
        "measured. A write of the loop has as many batches as one of ours can have: those of one call, or one of each",
        "caller. It is no upper bound: the loop writes all of a group before it syncs, the store lets the disk begin",
        "with the first pieces of a large group. Both let go of their cached pages after each round: in a virtual",
        "machine a page that the guest has not used before costs several times as much as one that was free a moment",
        "ago.",
        "",
        "Over many queues: whole turns of the index, its files written included; the limit is the same over the fewest",
        "queues, in the same store, before and after (for the fewest itself: how much the machine changes).",
        "",
        "CPU, per record: that of the whole process, in user and kernel mode. Kernel threads: CPU time per record that",
        "they took machine-wide meanwhile (the syncs that the store asks the kernel for, the file system's journal),",
        "less what they take while nothing runs; no process is charged for it.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        ALIGNMENT,
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
        "## Conditions",
        "",
        *pages.condition_lines(parts),
        "",
    ]
    return "\n".join(lines)


async def _measured(console: Console, options: Options, names: list[str], out: Path) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        settings = {
            "rounds": options.queue_rounds if "queues" in name else options.rounds,
            "run_s": options.run_s,
            "kernel_threads_while_idle": f"{options.idle_share:.1%} of a core",
        }
        conditions, others = pages.conditions(options.directory, **settings), pages.OtherPrograms()
        with console.status(name):
            found = await PARTS[name](options)
        conditions["other_programs"] = others.said()
        rows += found
        pages.write(out, "store", list(PARTS), {name: Part(conditions, pages.as_dicts(found))}, as_markdown)
    return rows


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    end_when_told()
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.store", description="The speed of the store alone.")
    parser.add_argument("--only", default="", metavar="NAME", help=f"parts named like this: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--append-gib", type=float, help="how much to append while watching memory (10; quick: 1)")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where stores are put; a disk, not memory")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    arguments = parser.parse_args()
    names = [name for name in PARTS if arguments.only in name]
    if not names:
        sys.exit(f"nothing is named like {arguments.only!r}; there are: {', '.join(PARTS)}")
    console = Console(highlight=False, width=160)
    calm_collector()
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=arguments.dir) as directory:
        options = Options(
            Path(directory),
            rounds=3 if arguments.quick else 9,
            queue_rounds=1 if arguments.quick else 5,
            run_s=0.6 if arguments.quick else 1.5,
            scan_bytes=(256 if arguments.quick else 1024) * MiB,
            append_bytes=int((arguments.append_gib or (1 if arguments.quick else 10)) * GiB),
            idle_share=idle_kernel_cpu_share(),
        )
        rows = uvloop.run(_measured(console, options, names, arguments.out))
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)


if __name__ == "__main__":
    main()

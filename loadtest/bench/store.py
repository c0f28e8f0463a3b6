"""`python -m loadtest.bench.store`: the speed of the store alone beside its limits and goals; `store.json`, `store.md`.

Every row is measured beside its limit in the same run; rows say medians of rounds. The goals are those of the design
(issue "The store, complete"). Takes twelve minutes; the results are written after each part.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from gateway.main.wiring import calm_collector
from loadtest.bench import machine
from loadtest.bench import store_work as work
from loadtest.bench.disk import disk_loop
from loadtest.bench.store_work import GiB, IndexKind, MiB, Speed
from store.config import StoreConfig

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
HEADINGS = ("work", "ours", "limit", "goal", "met")
GROUPS = (1, 8, 64)
CALLERS = (4, 16)
FILE_QUEUES = (1, 10, 100, 1_000, 10_000)
ROCKSDB_QUEUES = (10, 100, 1_000, 10_000, 100_000)
FLAT_RATIO = 0.8


class Row(NamedTuple):
    """One line of the result. `value` and `limit` are in `unit`."""

    work: str
    value: float
    unit: str
    limit: float | None
    goal: str
    is_met: bool | None  # None: there is no goal
    note: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """How long and how much."""

    directory: Path
    rounds: int
    queue_rounds: int
    run_s: float
    scan_bytes: int
    append_bytes: int


Part = Callable[[Options], Awaitable[list[Row]]]


async def append_rows(options: Options) -> list[Row]:
    """Durable appends beside a loop that writes the same bytes: so many batches a write by one caller, which waits for
    each; and one batch a call by many callers, beside one batch a write."""
    batch = work.batch_of(1_000, 100)
    size = f"{len(batch) / 1e3:.0f} kB"
    rows = []
    with _directory(options) as root, disk_loop(root) as disk:
        async with work.opened(StoreConfig(root=root / "store"), 4) as (store, queues):
            turn = work.round_robin(queues)

            async def beside_limit(name: str, batches: int, append: Callable[..., Awaitable[Speed]]) -> Row:
                ours, limits = [], []
                for _ in range(options.rounds):
                    limit = work.disk_writes(disk, batch, 1_000, batches=batches, duration_s=options.run_s)
                    disk.forget_pages()
                    speed = await append(store, turn, batch, 1_000, until=work.passed(options.run_s))
                    work.forget_log_pages(store)
                    ours.append(speed.records_per_s)
                    limits.append(limit.records_per_s)
                ratio = median(one / other for one, other in zip(ours, limits, strict=True))
                is_met = ratio >= 0.6 and median(ours) >= 1e6
                note = f"median of the rounds' ratios: {ratio:.0%}"
                return Row(name, median(ours), "records/s", median(limits), ">= 60 %, >= 1 M/s", is_met, note)

            for batches in GROUPS:
                append = partial(work.append_calls, batches=batches)
                rows.append(await beside_limit(f"append, {batches} x {size} a write", batches, append))
            for callers in CALLERS:
                append = partial(work.append_side_by_side, callers=callers)
                rows.append(await beside_limit(f"append, {callers} callers of 1 x {size}", 1, append))
    return rows


async def read_rows(options: Options) -> list[Row]:
    """Sequential reading of whole batches from the log's files, which the page cache holds."""
    with _directory(options) as root:
        await work.fill(root, 512 * MiB, record_bytes=100, records_per_batch=1_000)
        speeds, limits = [], []
        for _ in range(options.rounds):
            speed = await work.read_all(root)
            speeds.append(speed.records_per_s)
            limits.append(speed.record_count / work.raw_read(root, speed.byte_count, with_crc=True))
        ours = median(speeds)
        note = "the limit: pread of 1 MiB and CRC"
        return [Row("sequential read, 1 MiB a read", ours, "records/s", median(limits), ">= 2 M/s", ours >= 2e6, note)]


async def queue_rows(options: Options, index: IndexKind, counts: tuple[int, ...]) -> list[Row]:
    """Appends over more and more queues, each beside appends over the fewest of them in the same store: what a store
    does in one minute it may not do in the next. Medians of rounds in which all counts take turns."""
    speeds: list[list[tuple[Speed, Speed]]] = [[] for _ in counts]
    for _ in range(options.queue_rounds):
        for number, queue_count in enumerate(counts):
            with _directory(options) as root:
                pair = await work.over_queues(root, queue_count, counts[0], index, duration_s=options.run_s)
            speeds[number].append(pair)
    rows: list[Row] = []
    for queue_count, pairs in zip(counts, speeds, strict=True):
        us, few_us = (median(1e6 / pair[side].records_per_s for pair in pairs) for side in (0, 1))
        ratio = median(every.records_per_s / few.records_per_s for every, few in pairs)
        cpu_us = median(every.cpu_s / every.record_count * 1e6 for every, _ in pairs)
        cpu_ratio = median(every.cpu_s / every.record_count / (few.cpu_s / few.record_count) for every, few in pairs)
        name = f"append over {queue_count:,} queues, {index} index"
        note = f"{ratio:.0%} of the speed with {counts[0]} of them; processor time {cpu_us:.2f} us, {cpu_ratio:.2f}x"
        if queue_count == counts[0]:  # beside itself: how much the machine changes
            rows.append(Row(name, us, "us/record", few_us, "", None, note))
            continue
        goal = f">= {FLAT_RATIO:.0%} of the limit's speed"
        rows.append(Row(name, us, "us/record", few_us, goal, ratio >= FLAT_RATIO, note))
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
        note = f"{min(scans):.2f} to {max(scans):.2f}; the limit: pread and CRC"
        s_per_gib = median(scans)
        rows.append(Row(name, s_per_gib, "s/GiB", median(limits), "<= 3 s/GiB", s_per_gib <= 3, note))
        name = f"clean start, {byte_count / GiB:.1f} GiB, {records_per_batch} a batch"
        rows.append(Row(name, median(starts), "s", None, "<= 1 s", median(starts) <= 1))
    with _directory(options) as root:
        await work.over_queues(root, 10_000, 1, "file", duration_s=options.run_s)
        clean_s, store = await work.start(root)
        await store.close()
    rows.append(Row("clean start, 10,000 queues, file index", clean_s, "s", None, "<= 1 s", clean_s <= 1))
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
    return [Row(name, grown, "MiB", None, "bounded: <= 256 MiB", grown <= 256, note)]


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
    return [Row(name, busy.p99_ms, "ms", quiet.p99_ms, "", None, f"{note}; the limit: nothing is being zeroed")]


PARTS: dict[str, Part] = {
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


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """A row for people."""
    limit = "-" if row.limit is None else _number(row.limit, row.unit)
    if row.limit is not None and row.unit == "records/s":
        limit += f" ({row.value / row.limit:.0%})"
    work_ = f"{row.work} ({row.note})" if row.note else row.work
    met = "-" if row.is_met is None else "yes" if row.is_met else "**no**"
    return work_, _number(row.value, row.unit), limit, row.goal or "-", met


def _number(value: float, unit: str) -> str:
    if unit == "records/s" and value >= 1e6:
        return f"{value / 1e6:.2f} M/s"
    if unit == "records/s":
        return f"{value / 1e3:.0f} k/s"
    return f"{value:.3g} {unit}"


def as_markdown(conditions: dict[str, object], rows: list[Row]) -> str:
    """One page: the table, then the conditions."""
    lines = [
        "# The store alone, beside its limits and goals",
        "",
        "Written by `make bench-store`; the numbers for programs are in `store.json`. Everything is durable: answered",
        "after an fdatasync. The limit of an append is a loop of one pwritev and one fdatasync of the same bytes, from",
        "end to end of a file of 2 GiB that got its blocks before and is not in the page cache; the store has to get",
        "its blocks within the time that is measured. Rounds of both alternate, and both let go of their cached pages",
        "after each: in a virtual machine a page that the guest has not used before costs several times as much as",
        "one that was free a moment ago.",
        "",
        "Over many queues: whole turns of the index, its files written included; the limit is the same over the",
        "fewest queues, in the same store, before and after (for the fewest itself: how much the machine changes).",
        "Rounds in which all counts take turns. The processor time is that of the whole process, the kernel's part",
        "included.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---:|---:|---|---|",
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
        "## Conditions",
        "",
        *(f"- {name.replace('_', ' ')}: {value}" for name, value in conditions.items()),
        "",
    ]
    return "\n".join(lines)


def _write(directory: Path, conditions: dict[str, object], rows: list[Row]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    content = {"conditions": conditions, "versions": dict(machine.versions()), "rows": [row._asdict() for row in rows]}
    (directory / "store.json").write_bytes(
        orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    )
    (directory / "store.md").write_text(as_markdown(conditions, rows))


async def _measured(
    console: Console, options: Options, parts: list[str], have_rows: Callable[[list[Row]], None]
) -> list[Row]:
    rows: list[Row] = []
    for name in parts:
        with console.status(name):
            rows += await PARTS[name](options)
        have_rows(rows)  # a run that is cut off has measured something
    return rows


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.store", description="The speed of the store alone.")
    parser.add_argument("--only", default="", metavar="NAME", help=f"one of: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--append-gib", type=float, help="how much to append while watching memory (10; quick: 1)")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where stores are put; a disk, not memory")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    arguments = parser.parse_args()
    parts = [name for name in PARTS if arguments.only in name]
    if not parts:
        sys.exit(f"nothing is named like {arguments.only!r}; there are: {', '.join(PARTS)}")
    console = Console(highlight=False)
    calm_collector()
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=arguments.dir) as directory:
        options = Options(
            Path(directory),
            rounds=3 if arguments.quick else 9,
            queue_rounds=1 if arguments.quick else 3,
            run_s=0.6 if arguments.quick else 1.5,
            scan_bytes=(256 if arguments.quick else 1024) * MiB,
            append_bytes=int((arguments.append_gib or (1 if arguments.quick else 10)) * GiB),
        )
        started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        facts = machine.facts(Path(directory))
        conditions: dict[str, object] = {"started": started, **facts, "rounds": options.rounds, "run_s": options.run_s}
        rows = uvloop.run(_measured(console, options, parts, partial(_write, arguments.out, conditions)))
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)


if __name__ == "__main__":
    main()

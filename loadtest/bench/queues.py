"""`python -m loadtest.bench.queues`: light queues by the million; `queues.json`, `queues.md`.

    rows      one process: sends that name 1, 8 and 64 of a million light queues, durable, the index included
    many      1 M and 10 M queues: reads of random ones, memory, and a start after kill -9
    inboxes   a socket on an inbox of its own, 15,000 times: memory of each, and POST to push at a fixed rate
    beside    the same work through the servers of mq, Redis Streams and NATS JetStream, at the same durability

The goals are those of the issue. Each part is written when it is measured; `--only` measures one again, `--scale 0.01`
tries it out.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import orjson
import uvloop
from rich.console import Console

from loadtest.bench import parts as pages
from loadtest.bench.parts import ALIGNMENT, HEADINGS, Goal, Part, Row, cells, rows_of
from loadtest.bench.push_latency import Latency
from loadtest.bench.queues_wire import CORE, SERVERS, Inboxes, Ours
from loadtest.bench.queues_work import (
    CONNECTIONS,
    ROWS_A_REQUEST,
    Clock,
    InboxPath,
    Stretch,
    fill,
    listening,
    read_inboxes,
    send_rows,
)
from loadtest.bench.request import RunFailed
from loadtest.peers.peer import Unavailable
from loadtest.process import end_when_told
from loadtest.stats import paired_ratio, percentile

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
FAN_OUTS = (1, 8, 64)
ROWS = 2_000_000
QUEUES = 1_000_000
MANY = (1_000_000, 10_000_000)
SOCKETS = 15_000
RATE = 2_000
RUN_S = 10.0
ROWS_BESIDE = 500_000
SOCKETS_BESIDE = 5_000
READS = 2_000
BESIDE = "beside"
LEFT_OUT = ("left out", "")
"""The work and unit of the row that says which servers could not be had."""

SETTLE_S = 2.0
MiB, KiB = 1024 * 1024, 1024


@dataclass(frozen=True, slots=True)
class Options:
    """How much of it."""

    directory: Path
    rounds: int
    scale: float

    def scaled(self, count: int, least: int) -> int:
        """So many, or fewer to try it out."""
        return max(int(count * self.scale), least)


def child(directory: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """A store in a process of its own (queues_store.py)."""
    command = [sys.executable, "-m", "loadtest.bench.queues_store", str(directory), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def figures(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What it says next. Raises RuntimeError when it has ended instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the store ended with {process.wait()}")
    said: dict[str, Any] = orjson.loads(line)
    return said


async def rows_part(options: Options) -> list[Row]:
    """Durable rows a second."""
    rows = []
    queue_count, row_count = options.scaled(QUEUES, 1_000), options.scaled(ROWS, 20_000)
    for fan_out in FAN_OUTS:
        found = []
        for _ in range(options.rounds):
            directory = options.directory / "rows"
            with child(directory, "fill", queue_count, row_count, fan_out) as process:
                found.append(await asyncio.to_thread(figures, process))
            shutil.rmtree(directory)
        rows.append(
            Row(
                f"index rows on disk, {fan_out} queues a record, {queue_count:,} queues",
                "records/s",
                [one["rows_per_s"] for one in found],
                goal=Goal(at_least=100_000),
                cpu_us=[one["cpu_us"] for one in found],
                note=f"sends answered: {pages.number(found[0]['answered_per_s'], 'records/s')}",
            )
        )
    return rows


async def many_part(options: Options) -> list[Row]:
    """What many queues cost to read, in memory, and at a start after kill -9."""
    rows = []
    for wanted in MANY:
        count = options.scaled(wanted, 1_000)
        directory = options.directory / "many"
        with child(directory, "fill", count, count, 8) as process:
            filled = await asyncio.to_thread(figures, process)
        with child(directory, "serve", count) as process:
            found = await asyncio.to_thread(figures, process)
            await asyncio.sleep(SETTLE_S)
            process.kill()
        with child(directory, "serve", count) as process:
            again = await asyncio.to_thread(figures, process)
            process.kill()
        shutil.rmtree(directory)
        name = f"{count:,} queues"
        memory = max(filled["rss_bytes"], found["rss_bytes"], again["rss_bytes"]) / MiB
        rows += [
            Row(f"read of a random inbox, p99, {name}", "ms", [again["p99_ms"]], goal=Goal(at_most=5),
                note=f"p50 {again['p50_ms']:.3g} ms; the first time p99 {again['cold_p99_ms']:.3g} ms"),
            Row(f"memory, {name}", "MiB", [memory], goal=Goal(at_most=1024)),
            Row(f"start after kill -9, {name}", "s", [again["open_s"]], goal=Goal(at_most=30)),
        ]  # fmt: skip
    return rows


async def inboxes_part(options: Options) -> list[Row]:
    """Sockets, each on an inbox of its own."""
    count = options.scaled(SOCKETS, 100)
    _raise_limits()
    found: list[Pushes] = []
    for number in range(options.rounds):
        with SERVERS[Ours.name](_directory(options, f"inboxes-{number}")) as ours:
            await ours.begin()
            found.append(await pushes(ours, ours.pushes[0], count, options))
    name = f"{count:,} sockets, each on its own inbox"
    memory = [one.socket_bytes / KiB for one in found]
    rows = [Row(f"memory of a socket, {name}", "KiB", memory, goal=Goal(at_most=32))]
    late_ms = max(one.latency.send_late_p99_ms for one in found)
    notes = {
        "p50": "; ".join(one.sending.cores for one in found),
        "p99": f"of which the client late by {late_ms:.3g} ms",
    }
    for percent, goal in (("p50", None), ("p99", Goal(at_most=30))):
        values = [getattr(one.latency, f"{percent}_ms") for one in found]
        work = f"POST to push, {percent}, {RATE:,} durable sends/s, {name}"
        rows.append(Row(work, "ms", values, goal=goal, note=notes[percent]))
    return rows


class Pushes(NamedTuple):
    """What sockets on inboxes cost, and how fast they are."""

    socket_bytes: float
    latency: Latency
    sending: Stretch


async def pushes(server: Inboxes, push: str, count: int, options: Options) -> Pushes:
    """Memory of each of so many sockets, and how long records take to them. Raises RunFailed."""
    path = InboxPath(server, count)
    (await server.listen(push, 0, path.arrived, "127.0.0.1")).close()  # what the first one makes once is not counted
    await asyncio.sleep(SETTLE_S)
    before_bytes = server.rss_bytes()
    sockets = await listening(server, push, count, path)
    try:
        await asyncio.sleep(SETTLE_S)
        socket_bytes = (server.rss_bytes() - before_bytes) / count
        await path.run(RATE, options.scale * RUN_S / 5)  # what is made once is not counted
        clock = Clock(server)
        latency = await path.run(RATE, max(options.scale * RUN_S, 1.0))
        return Pushes(socket_bytes, latency, clock.stretch(latency.record_count))
    finally:
        for socket in sockets:
            socket.close()
        await asyncio.sleep(SETTLE_S)


def _raise_limits() -> None:
    """Of open files, also for the servers that are started from here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _directory(options: Options, name: str) -> Path:
    directory = options.directory / name
    directory.mkdir()
    return directory


class Beside(NamedTuple):
    """One work at all servers: values of each round in `unit`, by server, and what else there is to say of one. A
    server without values could not do it."""

    work: str
    unit: str
    values: dict[str, list[float]]
    notes: dict[str, str]


async def beside_part(options: Options) -> list[Beside]:
    """The same work at ours, Redis Streams and NATS JetStream, round by round."""
    _raise_limits()
    found: dict[tuple[str, str], Beside] = {}
    for number in range(options.rounds):
        for place, (name, started) in enumerate(SERVERS.items()):
            directory = _directory(options, f"beside-{number}-{place}")
            try:
                with started(directory) as server:
                    async for work, unit, value, note in _figures(server, options):
                        row = found.setdefault((work, unit), Beside(work, unit, {}, {}))
                        if value is not None:
                            row.values.setdefault(name, []).append(value)
                        row.notes[name] = note
            except Unavailable as error:
                found.setdefault(LEFT_OUT, Beside(*LEFT_OUT, {}, {})).notes[name] = str(error)
            shutil.rmtree(directory)
    return list(found.values())


async def _figures(server: Inboxes, options: Options) -> AsyncIterator[tuple[str, str, float | None, str]]:
    """Work, unit, value, note, as they are measured."""
    count, rows_wanted = options.scaled(QUEUES, 1_000), options.scaled(ROWS_BESIDE, 20_000)
    await server.begin()
    await fill(server, count)
    await asyncio.sleep(SETTLE_S)
    disk = f"{server.disk_bytes() / MiB:,.0f} MiB of files"
    yield f"memory, {count:,} inboxes with a record each", "MiB", server.rss_bytes() / MiB, disk
    for fan_out in FAN_OUTS:
        took = await send_rows(server, count, rows_wanted, fan_out)
        yield f"rows durable, {fan_out} a record", "records/s", took.done / took.took_s, took.cores
    took_ms = await read_inboxes(server, count, options.scaled(READS, 100))
    yield "read of a random inbox, p99", "ms", percentile(took_ms, 99), f"p50 {percentile(took_ms, 50):.3g} ms"
    sockets = options.scaled(SOCKETS_BESIDE, 100)
    for push in server.pushes:
        said = f"{sockets:,} sockets, {RATE:,} sends/s"
        is_early = push == CORE
        if is_early:
            said += "; pushed before it is stored"
        try:
            pushed = await pushes(server, push, sockets, options)
        except RunFailed as error:
            yield f"send to push, p99, {said}", "ms", None, f"{push}: {error}"
            continue
        latency, note = pushed.latency, f"{push}; {pushed.sending.cores}"
        yield f"send to push, p99, {said}", "ms", latency.p99_ms, f"p50 {latency.p50_ms:.3g} ms; {note}"
        yield f"memory of a socket, {said}", "KiB", pushed.socket_bytes / KiB, push


PARTS: dict[str, Callable[[Options], Awaitable[Sequence[Row | Beside]]]] = {
    "rows": rows_part,
    "many": many_part,
    "inboxes": inboxes_part,
    BESIDE: beside_part,
}


def beside_table(rows: Sequence[Beside]) -> list[str]:
    """Markdown: medians, and ours beside each other: above 1 ours is the faster, or the smaller."""
    others = [name for name in SERVERS if name != Ours.name]
    lines = [
        f"| work | {' | '.join(SERVERS)} | {' | '.join(f'ours beside {name}' for name in others)} |",
        "|---|" + "---:|" * (len(SERVERS) + len(others)),
    ]
    for row in rows:
        if (row.work, row.unit) == LEFT_OUT:
            continue
        cells = [_cell(row, name) for name in SERVERS]
        cells += [_times(row, name) for name in others]
        lines.append(f"| {row.work} | {' | '.join(cells)} |")
    left_out = next((row.notes for row in rows if (row.work, row.unit) == LEFT_OUT), {})
    return [*lines, *(f"\nLeft out: {name}: {why}." for name, why in left_out.items())]


def _cell(row: Beside, name: str) -> str:
    values, note = row.values.get(name), row.notes.get(name)
    if values is None:
        return f"- ({note})" if note else "-"
    return f"{pages.number(median(values), row.unit)} ({note})"


def _times(row: Beside, name: str) -> str:
    ours, its = row.values.get(Ours.name, []), row.values.get(name, [])
    if not ours or len(ours) != len(its):
        return "-"
    pair = (ours, its) if row.unit in pages.HIGHER_IS_BETTER else (its, ours)
    return pages.shown_times(paired_ratio(*pair))


def as_markdown(parts: Mapping[str, Part]) -> str:
    """One page."""
    lines = [
        "# Light queues by the million",
        "",
        "Written by `make bench-queues`; every run is in `queues.json`. A record has a value of 58 bytes. *Index",
        "rows*: records that came into light queues, each once a queue, counted until the index is on disk too, in",
        "one process without HTTP. Memory is the largest of the process while it was filled, read and started again.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        ALIGNMENT,
        *(f"| {' | '.join(cells(row))} |" for name, part in parts.items() if name != BESIDE for row in rows_of(part)),
        "",
        *(_beside_lines(parts[BESIDE]) if BESIDE in parts else ()),
        "## Conditions",
        "",
        *pages.condition_lines(parts),
        "",
    ]
    return "\n".join(lines)


def _beside_lines(part: Part) -> list[str]:
    return [
        "## Beside Redis Streams and NATS JetStream",
        "",
        "Each through its own server and protocol, by the same raw sockets (`loadtest/bench/queues_wire.py`):",
        f"prebuilt requests of {ROWS_A_REQUEST} rows over {CONNECTIONS} connections, a disk sync that covers all of it",
        "before each answer, and a record in all its inboxes or in none. mq: JSON over HTTP, index in RocksDB. Redis:",
        "`appendfsync always`, an XADD an inbox, in MULTI. NATS: `sync_interval: always`, a message an inbox, in",
        "atomic batches. *cores*: CPU of the server, and of the client, a second, in the last round: a server of one",
        "thread is at its limit at 1; where both are below it, syncs of the disk are the limit. Pushes: single",
        "records, for which NATS syncs each by itself, and the others all that came together. NATS's core",
        "subscriptions are pushed before a message is stored. Redis has all records in memory, NATS each subject, mq",
        "neither.",
        "",
        *beside_table([Beside(**row) for row in part.rows]),  # type: ignore[arg-type]
        "",
    ]


async def _measured(console: Console, options: Options, names: Sequence[str], out: Path) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name in names:
        conditions = pages.conditions(options.directory, rounds=options.rounds, scale=options.scale)
        others, began_s = pages.OtherPrograms(), time.monotonic()
        with console.status(name):
            rows = await PARTS[name](options)
        conditions |= {"other_programs": others.said(), "took": f"{time.monotonic() - began_s:.0f} s"}
        shown = [row._asdict() if isinstance(row, Beside) else pages.as_dicts([row])[0] for row in rows]
        parts[name] = Part(conditions, shown)
        pages.write(out, "queues", list(PARTS), {name: parts[name]}, as_markdown)
    return parts


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    end_when_told()
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.queues", description="Light queues by the million.")
    parser.add_argument("--only", default="", metavar="NAME", help=f"parts named like this: {', '.join(PARTS)}")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where stores keep their files; a disk")
    parser.add_argument("--scale", type=float, default=1.0, help="of how many queues, rows and sockets")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    asked = parser.parse_args()
    names = [name for name in PARTS if asked.only in name]
    if not names:
        sys.exit(f"nothing is named like {asked.only!r}; there are: {', '.join(PARTS)}")
    console = Console(highlight=False, width=160)
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=asked.dir) as directory:
        options = Options(Path(directory), asked.rounds, asked.scale)
        parts = uvloop.run(_measured(console, options, names, asked.out))
    console.print(as_markdown(parts), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()

"""`python -m loadtest.bench.python_client`: how fast one process with the Python client is; `python-client.json`,
`.md`.

sends     awaited concurrently, each a call of its own: all at once, and by 1,000 tasks that wait for each receipt
receives  a reader from the earliest record, by message and by frame; values decoded into a struct, too
worker    tasks that return at once, each acked durably
beside    the same by other clients (python_beside.py), in turn with ours

The server runs beside it on the same machine and takes as much CPU or more; the column of CPU is the client's own, per
record: what it would do with a core for itself.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import mq
import msgspec
from rich.console import Console
from rich.table import Table

from loadtest.bench import parts as pages
from loadtest.bench.parts import ALIGNMENT, HEADINGS, Goal, Part, Row, cells, rows_of
from loadtest.bench.python_beside import TASKS, Other, Taken, others, timed
from loadtest.process import end_when_told, running_server

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
VALUE = {"sku": 9, "qty": 2, "note": "x" * 60}
"""100 bytes of JSON."""
SENDS_GOAL, RECEIVES_GOAL, WORKER_GOAL = 60_000, 100_000, 8_000

Work = Callable[[mq.Client, int, int], Awaitable[None]]
"""Given the client, the round and the number of records."""


class Order(msgspec.Struct):
    """VALUE."""

    sku: int
    qty: int
    note: str


async def sends_at_once(client: mq.Client, number: int, count: int) -> None:
    await asyncio.gather(*[client.send("sends", VALUE) for _ in range(count)])


async def sends_by_tasks(client: mq.Client, number: int, count: int) -> None:
    async def one_after_the_other() -> None:
        for _ in range(count // TASKS):
            await client.send("sends", VALUE)

    await asyncio.gather(*(one_after_the_other() for _ in range(TASKS)))


async def messages(client: mq.Client, number: int, count: int) -> None:
    left = count
    async for _ in client.read("records", start="earliest"):
        left -= 1
        if not left:
            return


async def decoded(client: mq.Client, number: int, count: int) -> None:
    left, quantity = count, 0
    async for message in client.read("records", start="earliest", as_=Order):
        quantity += message.value.qty
        left -= 1
        if not left:
            assert quantity == 2 * count
            return


async def batches(client: mq.Client, number: int, count: int) -> None:
    left = count
    async for batch in client.read("records", start="earliest").batches():
        left -= len(batch)
        if left <= 0:
            return


async def worked_off(client: mq.Client, number: int, count: int) -> None:
    left = count

    @mq.worker("tasks", group=f"workers-{number}", concurrency=256)
    async def work(message: mq.Message[Order]) -> None:
        nonlocal left
        left -= 1
        if not left:
            work.stop()

    await work.run(client)


class Measured(NamedTuple):
    """One work of ours; `what` others are asked to do as well, if anything."""

    name: str
    work: Work
    goal: int
    note: str
    what: str = ""


WORKS = (
    Measured("sends awaited together", sends_at_once, SENDS_GOAL, "durable, idempotent"),
    Measured(f"sends by {TASKS:,} tasks, each awaited", sends_by_tasks, SENDS_GOAL, "durable, idempotent", "sends"),
    Measured("a reader, by message", messages, RECEIVES_GOAL, ""),
    Measured("a reader, by message, values as structs", decoded, RECEIVES_GOAL, "", "reads"),
    Measured("a reader, by frame", batches, RECEIVES_GOAL, ""),
    Measured(
        "a worker's tasks", worked_off, WORKER_GOAL, "each acked durably, 256 at a time, values as structs", "tasks"
    ),
)


async def measure(url: str, directory: Path, asked: argparse.Namespace) -> list[Row]:
    """All of it; a client of ours for each round, and after it the others do the same."""
    async with mq.connect(url) as client:
        for topic in ("sends", "records", "tasks"):
            await client.topics.create(topic, 4)
        for topic in ("records", "tasks"):
            for _ in range(asked.records // 1_000):
                await client.send_many(topic, [VALUE] * 1_000)
    rows = []
    async with others(url, VALUE, directory, asked.records, print) as beside:
        for one in WORKS:
            if asked.only is None or asked.only in one.name:
                rows += await measure_one(url, one, beside, asked)
    return rows


async def measure_one(url: str, one: Measured, beside: Sequence[Other], asked: argparse.Namespace) -> list[Row]:
    """Our row, and one for each of the others that can do the work."""
    able = [other for other in beside if one.what in other.workloads]
    ours: list[Taken] = []
    theirs: dict[str, list[Taken]] = {other.name: [] for other in able}
    for number in range(asked.rounds):
        async with mq.connect(url, pending_max=asked.records) as client:
            ours.append(await timed(one.work(client, number, asked.records)))
        for other in able:
            theirs[other.name].append(await other.workloads[one.what](asked.records))

    def rates(runs: Sequence[Taken]) -> list[float]:
        return [asked.records / run.wall_s for run in runs]

    cpu_us = [run.cpu_s / asked.records * 1e6 for run in ours]
    rows = [Row(one.name, "records/s", rates(ours), [], Goal(at_least=one.goal), cpu_us, [], one.note)]
    for name, runs in theirs.items():
        median_us = statistics.median(run.cpu_s for run in runs) / asked.records * 1e6
        note = f"{name}'s CPU: {median_us:.2f} µs"
        rows.append(Row(f"{one.name}: beside {name}", "records/s", rates(ours), rates(runs), None, cpu_us, [], note))
    return rows


def as_markdown(parts: Mapping[str, Part]) -> str:
    """One page: the table, then the conditions."""
    lines = [
        "# The Python client",
        "",
        "Written by `make bench-python`; every run is in `python-client.json`. One client process, a server beside it.",
        "Medians of rounds. CPU, per record: of the client's process. Where there is a *limit*, it is another client",
        "doing the same in turn with ours; its server syncs before it answers, as ours does",
        "(`loadtest/bench/python_beside.py`).",
        "",
        f"| {' | '.join(HEADINGS)} |",
        ALIGNMENT,
        *(f"| {' | '.join(cells(row))} |" for part in parts.values() for row in rows_of(part)),
        "",
        "## Conditions",
        "",
        *pages.condition_lines(parts),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    end_when_told()
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.python_client", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where the server keeps its files; a disk")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="workloads whose name contains this; nothing is written then")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-bench-python-", dir=asked.dir) as directory:
        settings = {name: getattr(asked, name) for name in ("records", "rounds")}
        conditions, others = pages.conditions(Path(directory), **settings), pages.OtherPrograms()
        with running_server(Path(directory) / "mq") as server:
            rows = asyncio.run(measure(server.url, Path(directory), asked))
        conditions["other_programs"] = others.said()
    if asked.only is None:
        page = {"python": Part(conditions, pages.as_dicts(rows))}
        pages.write(asked.out, "python-client", ["python"], page, as_markdown)
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row))
    Console(highlight=False, width=160).print(table)


if __name__ == "__main__":
    main()

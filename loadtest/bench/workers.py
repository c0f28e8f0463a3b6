"""`python -m loadtest.bench.workers`: what sends and reads cost the store's process when it does all, and when two
workers stand before it; `workers.json`, `workers.md`.

Both servers are up at once and take turns, the first of a round alternating. What the store's process costs a request
bounds what one machine takes, however many cores it has: the ratio says how much further it goes with workers. What all
processes cost together says what that takes. CPU time varies less than rates do on a shared machine; on two cores,
which the load's client shares, rates say nothing about many.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp
import orjson
import uvloop

from loadtest.bench import machine
from loadtest.bench.hot_path import BODY, TOPIC
from loadtest.bench.parts import OtherPrograms
from loadtest.bench.payloads import JSON_TYPE
from loadtest.bench.request import Request, RunFailed
from loadtest.bench.wrk_client import WrkClient
from loadtest.process import Running, end_when_told, running_server
from loadtest.stats import Spread, mean_ratio, ratio_rounds
from store.record_batch import Record, encode

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
ROUNDS, RUN_S = 10, 2.0
WORKERS = 2
ALONE, WITH = "one process", f"{WORKERS} workers"


class Row(NamedTuple):
    """A kind of request."""

    name: str
    request: Request
    connections: int


def rows() -> Sequence[Row]:
    """What is measured."""
    sent = {"Content-Type": JSON_TYPE}
    batch = bytes(encode([Record(None, b"x" * 100, 0)] * 100))
    raw = Request("POST", f"/topics/{TOPIC}", {"Content-Type": "application/vnd.mq.batch"}, batch)
    read = Request("GET", f"/topics/{TOPIC}/partitions/0/records?offset=0&format=json&max_bytes=10000", {}, b"")
    return (
        Row("JSON POST, written, 32 connections", Request("POST", f"/topics/{TOPIC}?acks=written", sent, BODY), 32),
        Row("JSON POST, written, 128 connections", Request("POST", f"/topics/{TOPIC}?acks=written", sent, BODY), 128),
        Row("JSON POST, durable, 128 connections", Request("POST", f"/topics/{TOPIC}", sent, BODY), 128),
        Row("raw batch of 100 records, durable, 32 connections", raw, 32),
        Row("read of some hundred records, 32 connections", read, 32),
    )


class Cost(NamedTuple):
    """CPU of one run, µs a request: of the store's process, and of all."""

    store_us: float
    all_us: float
    requests_per_s: float


class Subject(NamedTuple):
    """A server that is measured, and its processes: the store's first."""

    name: str
    url: str
    processes: Sequence[Running]


def _subject(stack: ExitStack, name: str, data: Path, *flags: str) -> Subject:
    server = stack.enter_context(running_server(data, *flags))
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    workers = [
        Running("", int(pid)) for pid in children if b"gateway.main.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return Subject(name, server.url, [server, *workers])


async def measured(wrk: WrkClient, subjects: Sequence[Subject], options: argparse.Namespace) -> Costs:
    """The costs of each row, round by round. Raises RunFailed."""
    async with aiohttp.ClientSession() as session:
        for one in subjects:
            async with session.put(f"{one.url}/mq/v1/topics/{TOPIC}", json={"partitions": 4}) as answer:
                answer.raise_for_status()
    found: dict[str, dict[str, list[Cost]]] = {}
    for row in rows():
        if options.only not in row.name:
            continue
        found[row.name] = {one.name: [] for one in subjects}
        for number in range(options.rounds + 1):
            for one in subjects if number % 2 else subjects[::-1]:
                before = [process.cpu_s() for process in one.processes]
                load = await wrk.drive(
                    one.url, row.request, connections=row.connections, duration_s=options.seconds if number else 1
                )
                if load.error_count or not load.request_count:
                    raise RunFailed(f"{one.name}, {row.name}: {load.error_count} errors, {load.request_count} answers")
                took = [process.cpu_s() - begun for process, begun in zip(one.processes, before, strict=True)]
                each = [seconds / load.request_count * 1e6 for seconds in took]
                if number:  # the first round is not counted
                    found[row.name][one.name].append(Cost(each[0], sum(each), load.request_count / options.seconds))
        print(line_of(row.name, found[row.name]), flush=True)
    return found


Costs = Mapping[str, Mapping[str, Sequence[Cost]]]
HEADINGS = (
    "request", "store's process, alone", f"with {WORKERS} workers", "alone / with workers", "all processes, alone",
    "with workers", "with workers / alone",
)  # fmt: skip


def line_of(name: str, costs: Mapping[str, Sequence[Cost]]) -> str:
    """A line of the table: µs a request, medians; ratios with their 95 %."""
    alone, workers = costs[ALONE], costs[WITH]
    stores = [[cost.store_us for cost in side] for side in (alone, workers)]
    alls = [[cost.all_us for cost in side] for side in (alone, workers)]
    cells = [
        name, *(f"{median(side):.1f}" for side in stores), _said(mean_ratio(stores[0], stores[1])),
        *(f"{median(side):.1f}" for side in alls), _said(mean_ratio(alls[1], alls[0])),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _said(ratio: Spread) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def page_of(conditions: Mapping[str, object], costs: Costs) -> str:
    """The page of the results."""
    return "\n".join(
        [
            "# What workers take off the store's process",
            "",
            "CPU in µs a request, medians of the rounds; ratios are means of the rounds, with their intervals of 95 %.",
            "By `python -m loadtest.bench.workers`; every round is in `workers.json`.",
            "",
            f"| {' | '.join(HEADINGS)} |",
            f"|---{'|---:' * (len(HEADINGS) - 1)}|",
            *(line_of(name, row) for name, row in costs.items()),
            "",
            *(f"- {name.replace('_', ' ')}: {text}" for name, text in conditions.items()),
            "",
        ]
    )


def main() -> None:
    """Measure, print a table, write the results."""
    end_when_told()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=ratio_rounds, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=RUN_S)
    parser.add_argument("--only", default="", help="a part of the names of rows: nothing is written")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where data lies; on a disk, not in memory")
    options = parser.parse_args()
    wrk = WrkClient.find()
    if wrk is None:
        sys.exit("wrk is missing: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="mq-workers-", dir=options.dir) as made, ExitStack() as stack:
        directory = Path(made)
        flags = ("--log-level", "warning")
        subjects = [
            _subject(stack, ALONE, directory / "alone", *flags),
            _subject(stack, WITH, directory / "workers", *flags, "--workers", str(WORKERS)),
        ]
        facts, others = machine.facts(directory), OtherPrograms()
        print(f"| {' | '.join(HEADINGS)} |", flush=True)
        costs = uvloop.run(measured(wrk, subjects, options))
        conditions = {
            "ended at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "commit": machine.commit(),
            "rounds": f"{options.rounds} of {options.seconds:g} s, after one that is not counted", **facts,
            **machine.versions(), "client": wrk.name, "other programs took": others.said(),
        }  # fmt: skip
    if not options.only:
        found = {
            name: {subject: [one._asdict() for one in them] for subject, them in row.items()}
            for name, row in costs.items()
        }
        text = orjson.dumps(
            {"conditions": conditions, "rows": found}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        )
        (RESULTS / "workers.json").write_bytes(text)
        (RESULTS / "workers.md").write_text(page_of(conditions, costs))


if __name__ == "__main__":
    main()

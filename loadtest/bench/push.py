"""`python -m loadtest.bench.push`: how fast sockets are fed, beside bare aiohttp sockets and NATS JetStream's push;
`push.json`, `push.md`.

Each work of ours is run beside the bare server with frames of the size that ours had, in turn; rows say medians of
rounds. The goals are those of the design (issue "Consumer groups"). Takes about two minutes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.bench import machine
from loadtest.bench.payloads import JSON_TYPE
from loadtest.bench.push_latency import Latency, bare_push_path, our_push_path
from loadtest.bench.push_peer import nats_push
from loadtest.bench.push_work import FAN_OUT_BATCH, bare_fan_out, bare_frames, fan_out, fill, idle_bytes, one_subscriber
from loadtest.bench.scenarios import running_bare_server
from loadtest.peers.peer import Unavailable
from loadtest.process import Running, running_server

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
HEADINGS = ("work", "ours", "bare socket", "NATS", "goal", "met")
JSON_RECORDS = 300_000
SINGLE_RECORDS = 100_000
BATCH_RECORDS = 3_000_000
PEER_RECORDS = 100_000
PEER_VALUE = b"x" * 85
READERS = 1_000
IDLE_SOCKETS = 9_000
LATENCY_RATE = 2_000
LATENCY_RUN_S = 5.0
KiB = 1024


@dataclass(frozen=True, slots=True)
class Options:
    """How much of it."""

    directory: Path
    rounds: int
    scale: float
    readers: int
    idle_sockets: int


class Row(NamedTuple):
    """One line of the result; `value` and `bare` are in `unit`."""

    work: str
    value: float
    unit: str
    bare: float
    goal: str
    is_met: bool
    note: str = ""
    peer: float | None = None
    """The same work by NATS JetStream's push."""


class Subscribing(NamedTuple):
    """One way to feed one subscriber."""

    work: str
    topic: str
    form: str
    record_count: int
    goal: float


async def measure(options: Options, console: Console) -> tuple[list[Row], str]:
    """All rows, on fresh servers; and what is to be said of NATS."""
    rows: list[Row] = []
    directory = options.directory
    with running_bare_server(directory) as bare:
        with running_server(directory / "fast", "--acks", "written") as ours:
            for work in _subscribers(options.scale):
                with console.status(work.work):
                    await fill(ours.url, work.topic, work.record_count, work.topic)
                    rows.append(await _one_subscriber(ours, bare, work, options.rounds))
            with console.status("fan-out"):
                await fill(ours.url, "fan", 0, "batch")
                rows.append(await _fan_out(ours, bare, options))
        with running_server(directory / "durable") as ours, console.status("latency"):
            rows += await _latency(ours, bare, options)
        with console.status("idle sockets"):
            rows.append(await _idle(directory, bare, options))
    with console.status("NATS"):
        return await _beside_nats(rows, options)


async def _beside_nats(rows: list[Row], options: Options) -> tuple[list[Row], str]:
    """The rows of one subscriber with what NATS pushes to one."""
    try:
        rates, about = await nats_push(options.directory / "nats", PEER_RECORDS, PEER_VALUE, options.rounds)
    except Unavailable as error:
        return rows, f"not measured: {error}"
    return [row._replace(peer=median(rates)) if row.work.startswith("one") else row for row in rows], about


def _subscribers(scale: float) -> list[Subscribing]:
    def scaled(count: int) -> int:
        return max(int(count * scale) // 10_000 * 10_000, 10_000)

    return [
        Subscribing("one subscriber, JSON frames", "json", "json", scaled(JSON_RECORDS), 100_000),
        Subscribing(
            "one subscriber, JSON frames, records stored one by one", "single", "json", scaled(SINGLE_RECORDS), 100_000
        ),
        Subscribing("one subscriber, raw-batch frames", "batch", "batch", scaled(BATCH_RECORDS), 1_000_000),
    ]


async def _one_subscriber(ours: Running, bare: Running, work: Subscribing, rounds: int) -> Row:
    rates, bares = [], []
    for number in range(rounds):
        batch = 255 - number  # other frames than before: none of them is encoded already
        rate = await one_subscriber(ours, work.topic, work.form, work.record_count, batch)
        rates.append(rate)
        bares.append(work.record_count / await bare_frames(bare.url, rate.frame_count, rate.frame_bytes))
    value = median(rate.per_s for rate in rates)
    per_cpu_s = median(rate.per_cpu_s for rate in rates)
    note = f"{_thousands(per_cpu_s)} a second of the server's CPU time"
    goal = f">= {work.goal:,.0f} /s"
    return Row(work.work, value, "records/s", median(bares), goal, value >= work.goal, note)


async def _fan_out(ours: Running, bare: Running, options: Options) -> Row:
    rates, bares = [], []
    for _ in range(options.rounds):
        rate = await fan_out(ours, options.readers)
        rates.append(rate)
        bares.append((await bare_fan_out(bare, options.readers, rate.frame_bytes)).per_s)
    value = median(rate.per_s for rate in rates)
    note = (
        f"{FAN_OUT_BATCH} records a batch; "
        f"{_thousands(median(rate.per_cpu_s for rate in rates))} a second of the server's CPU time"
    )
    work = f"fan-out to {options.readers:,} readers of one partition"
    return Row(work, value, "records/s", median(bares), ">= 500,000 /s", value >= 500_000, note)


async def _latency(ours: Running, bare: Running, options: Options) -> list[Row]:
    headers = {"Content-Type": JSON_TYPE}
    mine: list[Latency] = []
    limits: list[Latency] = []
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{ours.url}/mq/v1/topics/bench", json={"partitions": 4}) as answer:
            answer.raise_for_status()
        async with (
            our_push_path(session, ours.url, headers) as path,
            bare_push_path(session, bare.url, headers) as limit,
        ):
            for _ in range(options.rounds):
                limits.append(await limit.run(LATENCY_RATE, LATENCY_RUN_S * options.scale))
                mine.append(await path.run(LATENCY_RATE, LATENCY_RUN_S * options.scale))
    rows = []
    for name, goal_ms in (("p50", 3.0), ("p99", 15.0)):
        value, beside = (median(getattr(one, f"{name}_ms") for one in runs) for runs in (mine, limits))
        work = f"POST to push, {name}, {LATENCY_RATE:,} durable records/s, each in a request of its own"
        rows.append(
            Row(work, value, "ms", beside, f"<= {goal_ms:g} ms", value <= goal_ms, "the bare one stores nothing")
        )
    return rows


async def _idle(directory: Path, bare: Running, options: Options) -> Row:
    """Each round has a server of its own: what one has freed before is not memory that grows."""
    socket_count = options.idle_sockets
    values = []
    for number in range(options.rounds):
        with running_server(directory / f"idle-{number}") as ours:
            values.append(await idle_bytes(ours, socket_count, says_hello=True) / KiB)
    value = median(values)
    beside = await idle_bytes(bare, socket_count, says_hello=False) / KiB
    note = f"each has said hello, so it has a session; {min(values):.1f} to {max(values):.1f}"
    return Row(f"memory of each of {socket_count:,} idle sockets", value, "KiB", beside, "<= 24 KiB", value <= 24, note)


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table."""
    work = f"{row.work} ({row.note})" if row.note else row.work
    bare = _number(row.bare, row.unit)
    if row.unit == "records/s":
        bare += f" ({row.value / row.bare:.0%})"
    peer = "" if row.peer is None else f"{_number(row.peer, row.unit)} ({row.value / row.peer:.3g} times)"
    return work, _number(row.value, row.unit), bare, peer, row.goal, "yes" if row.is_met else "**no**"


def _number(value: float, unit: str) -> str:
    return f"{_thousands(value)}/s" if unit == "records/s" else f"{value:.3g} {unit}"


def _thousands(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"


def as_markdown(conditions: dict[str, object], rows: Sequence[Row]) -> str:
    """One page: the table, then the conditions."""
    lines = [
        "# How fast sockets are fed",
        "",
        "Written by `make bench-push`; the numbers for programs are in `push.json`. Records have a key of 8 characters",
        "and a JSON value of 85 bytes. The bare socket is one of aiohttp that sends as many frames of the same size,",
        "made before: what it can take when nothing is read, encoded or counted. Rounds alternate; medians.",
        "NATS JetStream pushes values of 85 bytes to an ordered push consumer.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---:|---:|---:|---|---|",
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
        "## Conditions",
        "",
        *(f"- {name.replace('_', ' ')}: {value}" for name, value in conditions.items()),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.push", description="How fast sockets are fed.")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where servers keep their files; a disk")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer records")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readers", type=int, default=READERS)
    parser.add_argument("--idle", type=int, default=IDLE_SOCKETS, help="idle sockets; needs as many open files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    asked = parser.parse_args()
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=asked.dir) as directory:
        options = Options(Path(directory), asked.rounds, asked.scale, asked.readers, asked.idle)
        started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        conditions: dict[str, object] = {"started": started, **machine.facts(Path(directory)), "rounds": asked.rounds}
        rows, conditions["NATS"] = uvloop.run(measure(options, console))
    asked.out.mkdir(parents=True, exist_ok=True)
    content = {"conditions": conditions, "versions": dict(machine.versions()), "rows": [row._asdict() for row in rows]}
    (asked.out / "push.json").write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    (asked.out / "push.md").write_text(as_markdown(conditions, rows))
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)


if __name__ == "__main__":
    main()

"""`python -m loadtest.bench.push`: how fast sockets are fed, beside bare aiohttp sockets and NATS JetStream's push;
`push.json`, `push.md`.

Each work of ours is run beside the bare server with frames of the size that ours had, and beside NATS, round by round.
The goals are those of the design (issue "Consumer groups"). Takes about six minutes; each part is written when it is
measured, and `--only` measures one again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp
import orjson
import uvloop
from rich.console import Console

from loadtest.bench import parts as pages
from loadtest.bench.parts import ALIGNMENT, HEADINGS, Goal, Part, Row, cells, number, rows_of, shown_times
from loadtest.bench.payloads import JSON_TYPE, json_value
from loadtest.bench.push_latency import Latency, bare_push_path, our_push_path
from loadtest.bench.push_peer import NatsPush, nats_push
from loadtest.bench.push_work import (
    FAN_OUT_BATCH,
    Decode,
    Pushed,
    Subscribing,
    bare_fan_out,
    bare_frames,
    decode_batches,
    fan_out,
    fill,
    idle_bytes,
    one_subscriber,
    parse_json,
)
from loadtest.bench.scenarios import running_bare_server
from loadtest.kernel_cpu import idle_kernel_cpu_share
from loadtest.peers.peer import Unavailable
from loadtest.process import Running, end_when_told, running_server
from loadtest.stats import paired_ratio

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
JSON_RECORDS = 1_000_000
SINGLE_RECORDS = 300_000
BATCH_RECORDS = 20_000_000
PEER_RECORDS = 1_500_000
PEER_PYTHON_RECORDS = 300_000
"""Of the peer's records, as many as its Python client gets in a second or two."""

READERS = 1_000
IDLE_SOCKETS = 9_000
LATENCY_RATE = 2_000
LATENCY_RUN_S = 5.0
FRAME_RECORDS = 255
"""In a frame, in the first run; one less in each of the next: a server that has encoded a frame keeps it."""

BOUND = 0.9
"""A process that takes this share of a core is taken for what limits the rate."""

KiB = 1024


@dataclass(frozen=True, slots=True)
class Options:
    """How much of it. `idle_share`: seconds of CPU that kernel threads take in a second while nothing runs."""

    directory: Path
    rounds: int
    scale: float
    readers: int
    idle_sockets: int
    idle_share: float = 0.0


class Beside(NamedTuple):
    """One way of ours to feed a subscriber beside one of NATS, which do the same with each record. A value a round."""

    done: str
    """What is done with a record: `counted`, `decoded` or `parsed`."""

    ours: str
    peer: str
    ours_per_s: Sequence[float]
    peer_per_s: Sequence[float]
    ours_bound: str
    peer_bound: str
    """See `bound`."""


Rows = list[dict[str, object]]
Run = Callable[[], Awaitable[Pushed]]

_JSON, _SINGLE, _BATCH = "JSON frames", "JSON frames, records stored one by one", "raw-batch frames"
_RAW, _TOOL, _PYTHON, _PYTHON_JSON = "raw socket", "nats bench (Go)", "nats-py", "nats-py and orjson"
COUNTED, DECODED, PARSED = "counted", "decoded", "parsed"
COMPARED = (
    (COUNTED, _BATCH, _RAW),
    (COUNTED, _JSON, _RAW),
    (COUNTED, _SINGLE, _RAW),
    (DECODED, _BATCH, _TOOL),
    (DECODED, _BATCH, _PYTHON),
    (PARSED, _JSON, _TOOL),
    (PARSED, _JSON, _PYTHON_JSON),
    (PARSED, _SINGLE, _TOOL),
    (PARSED, _SINGLE, _PYTHON_JSON),
)
"""The tool does not parse: it is in two groups, and in that of `parsed` it does less."""


def subscribings(scale: float) -> list[Subscribing]:
    """The ways of ours to feed one subscriber."""

    def scaled(count: int) -> int:
        return max(int(count * scale) // 10_000 * 10_000, 10_000)

    return [
        Subscribing(_JSON, "json", "json", scaled(JSON_RECORDS), 100_000),
        Subscribing(_SINGLE, "single", "json", scaled(SINGLE_RECORDS), 100_000),
        Subscribing(_BATCH, "batch", "batch", scaled(BATCH_RECORDS), 1_000_000),
    ]


async def one_subscriber_parts(options: Options) -> dict[str, Rows]:
    """One subscriber, beside bare frames and beside NATS: every way in every round, after one that does not count."""
    async with AsyncExitStack() as stack:
        bare = stack.enter_context(running_bare_server(options.directory))
        ours = stack.enter_context(running_server(options.directory / "fast", "--acks", "written"))
        workloads = subscribings(options.scale)
        for work in workloads:
            await fill(ours.url, work.topic, work.record_count, work.topic)
        peer_count = max(int(PEER_RECORDS * options.scale), 10_000)
        value = orjson.dumps(json_value(1))
        nats, about = None, ""
        try:
            nats, about = await stack.enter_async_context(nats_push(options.directory / "nats", peer_count, value))
        except Unavailable as error:
            about = f"not measured: {error}"
        runs: dict[tuple[str, str], list[Pushed]] = {}
        bares: dict[str, list[float]] = {work.work: [] for work in workloads}
        frame_records = iter(range(FRAME_RECORDS, 0, -1))
        for round_number in range(options.rounds + 1):
            for work in workloads:
                batch = next(frame_records)
                counted = await one_subscriber(ours, work, batch, None, options.idle_share)
                runs.setdefault((COUNTED, work.work), []).append(counted)
                bare_s = await bare_frames(bare.url, counted.frame_count, counted.frame_bytes)
                bares[work.work].append(work.record_count / bare_s)
                done, decode = _decoding(work)
                decoded = await one_subscriber(ours, work, next(frame_records), decode, options.idle_share)
                runs.setdefault((done, work.work), []).append(decoded)
            if nats is not None:
                for key, run in peer_runs(nats, options.scale).items():
                    runs.setdefault(key, []).append(await run())
            if round_number == 0:
                runs.clear()
                bares = {name: [] for name in bares}
    rows = [_subscriber_row(work, runs[COUNTED, work.work], bares[work.work]) for work in workloads]
    beside = [] if nats is None else compared(runs)
    return {"one subscriber": pages.as_dicts(rows), "beside NATS": [{"about": about}, *beside]}


def _decoding(work: Subscribing) -> tuple[str, Decode]:
    return (DECODED, decode_batches) if work.form == "batch" else (PARSED, parse_json)


def peer_runs(nats: NatsPush, scale: float) -> dict[tuple[str, str], Run]:
    """The ways of NATS, by what is done with a record and by client."""
    python_count = max(int(PEER_PYTHON_RECORDS * scale), 10_000)
    return {
        (COUNTED, _RAW): nats.raw,
        (DECODED, _TOOL): nats.tool,
        (DECODED, _PYTHON): lambda: nats.python(python_count, parses=False),
        (PARSED, _PYTHON_JSON): lambda: nats.python(python_count, parses=True),
    }


def _subscriber_row(work: Subscribing, runs: Sequence[Pushed], bares: Sequence[float]) -> Row:
    return Row(
        f"one subscriber, {work.work}",
        "records/s",
        [run.per_s for run in runs],
        list(bares),
        Goal(at_least=work.goal_per_s),
        *_cpu(runs),
        "the limit: a bare socket",
    )


def _cpu(runs: Sequence[Pushed]) -> tuple[list[float], list[float]]:
    """Of the server's process and of kernel threads, microseconds a record."""
    return (
        [run.server_cpu_s / run.record_count * 1e6 for run in runs],
        [run.kernel_cpu_s / run.record_count * 1e6 for run in runs],
    )


def compared(runs: Mapping[tuple[str, str], Sequence[Pushed]]) -> Rows:
    """COMPARED, from the runs by what is done with a record and by who does it."""
    rows: Rows = []
    for done, ours, peer in COMPARED:
        mine = runs[done, ours]
        its = runs[DECODED if peer == _TOOL else done, peer]
        rates = [[run.per_s for run in side] for side in (mine, its)]
        rows.append(Beside(done, ours, peer, rates[0], rates[1], bound(mine), bound(its))._asdict())
    return rows


def bound(runs: Sequence[Pushed]) -> str:
    """What limits a rate, with the shares of a core that both sides took: the process that takes a core's worth of CPU
    time, the machine, or neither of them."""
    wall_s = sum(run.wall_s for run in runs)
    shares = {
        "client": sum(run.client_cpu_s for run in runs) / wall_s,
        "server": sum(run.server_cpu_s for run in runs) / wall_s,
    }
    said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    full = [name for name, share in shares.items() if share >= BOUND]
    if sum(shares.values()) >= BOUND * (os.cpu_count() or 1):
        full = ["the machine"]
    return f"{' and '.join(full) or 'neither'} ({said})"


async def fan_out_parts(options: Options) -> dict[str, Rows]:
    """Batches to many readers of one partition."""
    runs: list[Pushed] = []
    bares: list[float] = []
    with (
        running_bare_server(options.directory) as bare,
        running_server(options.directory / "fan", "--acks", "written") as ours,
    ):
        await fill(ours.url, "fan", 0, "batch")
        for _ in range(options.rounds):
            runs.append(await fan_out(ours, options.readers, options.idle_share))
            bares.append((await bare_fan_out(bare, options.readers, runs[-1].frame_bytes)).per_s)
    row = Row(
        f"fan-out to {options.readers:,} readers of one partition",
        "records/s",
        [run.per_s for run in runs],
        bares,
        Goal(at_least=500_000),
        *_cpu(runs),
        f"{FAN_OUT_BATCH} records a batch; the limit: bare sockets; limited by: {bound(runs)}",
    )
    return {"fan-out": pages.as_dicts([row])}


async def latency_parts(options: Options) -> dict[str, Rows]:
    """POST to push."""
    with (
        running_bare_server(options.directory) as bare,
        running_server(options.directory / "durable") as ours,
    ):
        return {"latency": pages.as_dicts(await _latency(ours, bare, options))}


async def idle_parts(options: Options) -> dict[str, Rows]:
    """Memory of idle sockets."""
    return {"idle sockets": pages.as_dicts([await _idle(options)])}


PARTS: dict[str, Callable[[Options], Awaitable[dict[str, Rows]]]] = {
    "subscriber": one_subscriber_parts,
    "fan-out": fan_out_parts,
    "latency": latency_parts,
    "idle": idle_parts,
}
ORDER = ("one subscriber", "beside NATS", "fan-out", "latency", "idle sockets")


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
    note = "the limit: a bare server, which stores nothing"
    return [
        Row(
            f"POST to push, {name}, {LATENCY_RATE:,} durable records/s, each in a request of its own",
            "ms",
            [getattr(run, f"{name}_ms") for run in mine],
            [getattr(run, f"{name}_ms") for run in limits],
            Goal(at_most=goal_ms),
            note=note,
        )
        for name, goal_ms in (("p50", 3.0), ("p99", 15.0))
    ]


async def _idle(options: Options) -> Row:
    """Each round has servers of its own: what one has freed before is not memory that grows."""
    count = options.idle_sockets
    values, bares = [], []
    for round_number in range(options.rounds):
        directory = options.directory / f"idle-{round_number}"
        with running_server(directory) as ours:
            values.append(await idle_bytes(ours, count, says_hello=True) / KiB)
        with running_bare_server(directory) as bare:
            bares.append(await idle_bytes(bare, count, says_hello=False) / KiB)
    note = f"{min(values):.1f} to {max(values):.1f}; each has said hello, so it has a session; the limit: bare sockets"
    return Row(f"memory of each of {count:,} idle sockets", "KiB", values, bares, Goal(at_most=24), note=note)


BESIDE_HEADINGS = ("a record is", "ours", "NATS", "ours, records/s", "NATS, records/s", "ours / NATS", "limited by")


def beside_cells(row: Beside) -> tuple[str, ...]:
    """A row as BESIDE_HEADINGS has it."""
    return (
        row.done,
        row.ours,
        row.peer,
        number(median(row.ours_per_s), "records/s"),
        number(median(row.peer_per_s), "records/s"),
        shown_times(paired_ratio(row.ours_per_s, row.peer_per_s)),
        f"ours: {row.ours_bound}; NATS: {row.peer_bound}",
    )


def as_markdown(parts: Mapping[str, Part]) -> str:
    """One page: ours beside bare sockets, ours beside NATS, the conditions."""
    own = [row for name, part in parts.items() if name != "beside NATS" for row in rows_of(part)]
    lines = [
        "# How fast sockets are fed",
        "",
        "Written by `make bench-push`; every run is in `push.json`. Records have a key of 8 characters and a JSON",
        "value of 85 bytes. Medians of rounds, in which ours, the bare socket and NATS take turns; ratios are medians",
        "of the rounds' ratios, and their range. The bare socket is one of aiohttp that sends as many frames of the",
        "same size, made before: what it takes when nothing is read, encoded or counted. Here the client only counts",
        "frames by their headers. CPU, per record: of the server's process. Kernel threads: CPU time per record that",
        "they took machine-wide meanwhile, less what they take while nothing runs.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        ALIGNMENT,
        *(f"| {' | '.join(cells(row))} |" for row in own),
        "",
        *_beside_lines(parts.get("beside NATS")),
        "## Conditions",
        "",
        *pages.condition_lines(parts),
        "",
    ]
    return "\n".join(lines)


def _beside_lines(part: Part | None) -> list[str]:
    """The table beside NATS, or why there is none."""
    if part is None:
        return []
    (first, *rest) = part.rows
    lines = ["## One subscriber, beside NATS", "", f"NATS: {first['about']}", ""]
    if not rest:
        return lines
    return [
        *lines,
        "Both push a topic (stream) from its first record to one subscriber. NATS stores each message by itself; its",
        "values are the same 85 bytes, without keys. What is done with a record:",
        "",
        "- *counted*: nothing is decoded on either side. Ours: frames are counted by their headers. NATS: a plain",
        "  socket counts the lines that begin a message.",
        "- *decoded*: the program gets each value as bytes. Ours: RecordBatches are decoded by this project's codec,",
        "  in Python. NATS: its own benchmark tool, in Go (`nats bench oldjs ordered`, a push consumer), or nats-py.",
        "- *parsed*: the program gets each value as an object. Ours: a frame is parsed by orjson. NATS: nats-py, each",
        "  value parsed by orjson; `nats bench` returns bytes and parses nothing.",
        "",
        "*Limited by*: the process whose CPU time is 90 % of the time that passed, or more; the machine, where all",
        "processes together take that of all cores.",
        "",
        f"| {' | '.join(BESIDE_HEADINGS)} |",
        "|---|---|---|---:|---:|---:|---|",
        *(f"| {' | '.join(beside_cells(Beside(**row)))} |" for row in rest),  # type: ignore[arg-type]
        "",
    ]


async def _measured(console: Console, options: Options, names: Sequence[str], out: Path) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name in names:
        settings = {
            "rounds": options.rounds,
            "kernel_threads_while_idle": f"{options.idle_share:.1%} of a core",
        }
        conditions, others = pages.conditions(options.directory, **settings), pages.OtherPrograms()
        with console.status(name):
            found = await PARTS[name](options)
        conditions["other_programs"] = others.said()
        new = {one: Part(conditions, rows) for one, rows in found.items()}
        pages.write(out, "push", ORDER, new, as_markdown)
        parts |= new
    return parts


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    end_when_told()
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.push", description="How fast sockets are fed.")
    parser.add_argument("--only", default="", metavar="NAME", help=f"parts named like this: {', '.join(PARTS)}")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where servers keep their files; a disk")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer records")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--readers", type=int, default=READERS)
    parser.add_argument("--idle", type=int, default=IDLE_SOCKETS, help="idle sockets; needs as many open files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    asked = parser.parse_args()
    names = [name for name in PARTS if asked.only in name]
    if not names:
        sys.exit(f"nothing is named like {asked.only!r}; there are: {', '.join(PARTS)}")
    console = Console(highlight=False, width=160)
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=asked.dir) as directory:
        options = Options(
            Path(directory), asked.rounds, asked.scale, asked.readers, asked.idle, idle_kernel_cpu_share()
        )
        parts = uvloop.run(_measured(console, options, names, asked.out))
    console.print(as_markdown(parts), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()

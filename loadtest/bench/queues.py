"""`python -m loadtest.bench.queues`: light queues by the million; `queues.json`, `queues.md`.

    rows      one process: sends that name 1, 8 and 64 of a million light queues, durable, the index included
    many      1 M and 10 M queues: reads of random ones, memory, and a start after kill -9
    inboxes   a socket on an inbox of its own, 15,000 times: memory of each, and POST to push at a fixed rate

The goals are those of the issue. Each part is written when it is measured; `--only` measures one again, `--scale 0.01`
tries it out.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop
from rich.console import Console

from loadtest.bench import parts as pages
from loadtest.bench.parts import ALIGNMENT, HEADINGS, Goal, Part, Row, cells, rows_of
from loadtest.bench.payloads import JSON_TYPE
from loadtest.bench.push_latency import Latency, PushPath
from loadtest.bench.push_work import Frames, connect
from loadtest.bench.request import Request, RunFailed
from loadtest.process import Running, end_when_told, running_server

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
FAN_OUTS = (1, 8, 64)
ROWS = 2_000_000
QUEUES = 1_000_000
MANY = (1_000_000, 10_000_000)
SOCKETS = 15_000
RATE = 2_000
RUN_S = 10.0
ADDRESSES = 8
"""Of this machine, from which sockets come."""

SOCKETS_AT_ONCE = 100
SUBSCRIBE_TIMEOUT_S = 120.0
SETTLE_S = 2.0
MiB, KiB = 1024 * 1024, 1024
SETTINGS = """
[store]
index = "rocksdb"
[limits]
ws_sockets_max = 50000
connections_max = 60000
"""


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


class InboxPath(PushPath):
    """Sends each record to one of many inboxes, and hears of it from the sockets on them."""

    def __init__(self, url: str, count: int) -> None:
        self._count = count
        self._choose = random.Random(5)
        self._arrived: list[int] = []
        self._came = asyncio.Event()
        super().__init__(url, self._next, {"Content-Type": JSON_TYPE})

    def decode(self, payload: bytes) -> int:
        """Of a frame of a socket."""
        push = orjson.loads(payload)
        if push.get("op") == "messages":
            self._arrived += [message["value"]["sequence"] for message in push["messages"]]
            self._came.set()
        return 0

    async def _next(self) -> list[int]:
        while not self._arrived:
            self._came.clear()
            await self._came.wait()
        arrived, self._arrived = self._arrived, []
        return arrived

    def _request(self, sequence: int) -> bytes:
        queues = [f"user/{self._choose.randrange(self._count)}"]
        body = orjson.dumps({"records": [{"value": {"sequence": sequence}, "queues": queues}]})
        return Request("POST", "/topics/bench", self._headers, body).encode(self._url)


async def inboxes_part(options: Options) -> list[Row]:
    """Sockets, each on an inbox of its own."""
    count = options.scaled(SOCKETS, 100)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings = options.directory / "mq.toml"
    settings.write_text(SETTINGS)
    found: list[Latency] = []
    memory = []
    for number in range(options.rounds):
        with running_server(options.directory / f"inboxes-{number}", "--config", str(settings)) as ours:
            one_memory, latency = await _inboxes(ours, count, options)
            memory.append(one_memory / KiB)
            found.append(latency)
    name = f"{count:,} sockets, each on its own inbox"
    rows = [Row(f"memory of a socket, {name}", "KiB", memory, goal=Goal(at_most=32))]
    for percent, goal in (("p50", None), ("p99", Goal(at_most=30))):
        values = [getattr(one, f"{percent}_ms") for one in found]
        rows.append(Row(f"POST to push, {percent}, {RATE:,} durable sends/s, {name}", "ms", values, goal=goal))
    return rows


async def _inboxes(ours: Running, count: int, options: Options) -> tuple[float, Latency]:
    async with (
        aiohttp.ClientSession() as session,
        session.put(f"{ours.url}/mq/v1/topics/bench", json={"partitions": 1}) as answer,
    ):
        answer.raise_for_status()
    path = InboxPath(ours.url, count)
    (await connect(ours.url, "/ws/v1", lambda _: None)).close()  # what the first one makes once is not counted
    await asyncio.sleep(SETTLE_S)
    before_bytes = ours.rss_bytes()
    sockets: list[Frames] = []
    for first in range(0, count, SOCKETS_AT_ONCE):
        sockets += await asyncio.gather(
            *(
                connect(ours.url, "/ws/v1", lambda _: None, path.decode, f"127.0.0.{1 + number % ADDRESSES}")
                for number in range(first, min(first + SOCKETS_AT_ONCE, count))
            )
        )
    for number, socket in enumerate(sockets):
        subscribe = {"op": "subscribe", "sub": "s", "topics": ["bench"], "queue": f"user/{number}", "credit": 100}
        socket.say({"id": 1, **subscribe})
    await _all_subscribed(sockets)
    await asyncio.sleep(SETTLE_S)
    memory = (ours.rss_bytes() - before_bytes) / count
    await path.run(RATE, options.scale * RUN_S / 5)  # what is made once is not counted
    latency = await path.run(RATE, max(options.scale * RUN_S, 1.0))
    for socket in sockets:
        socket.close()
    return memory, latency


async def _all_subscribed(sockets: Sequence[Frames]) -> None:
    """Wait for the answer and `caught_up` of each. Raises RunFailed when one is refused, or when they take too long."""
    until_s = time.monotonic() + SUBSCRIBE_TIMEOUT_S
    while waiting := [socket for socket in sockets if socket.count < 2]:
        refused = [socket.last for socket in waiting if b'"ok":false' in socket.last]
        closed = [socket.closed_with for socket in waiting if socket.closed_with is not None]
        if refused or closed or time.monotonic() > until_s:
            why = (refused or closed or [b"no answer"])[0].decode(errors="replace")
            raise RunFailed(f"{len(waiting)} of {len(sockets)} sockets have no subscription: {why}")
        await asyncio.sleep(0.1)


PARTS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "rows": rows_part,
    "many": many_part,
    "inboxes": inboxes_part,
}


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
        *(f"| {' | '.join(cells(row))} |" for part in parts.values() for row in rows_of(part)),
        "",
        "## Conditions",
        "",
        *pages.condition_lines(parts),
        "",
    ]
    return "\n".join(lines)


async def _measured(console: Console, options: Options, names: Sequence[str], out: Path) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name in names:
        conditions = pages.conditions(options.directory, rounds=options.rounds, scale=options.scale)
        others, began_s = pages.OtherPrograms(), time.monotonic()
        with console.status(name):
            rows = await PARTS[name](options)
        conditions |= {"other_programs": others.said(), "took": f"{time.monotonic() - began_s:.0f} s"}
        parts[name] = Part(conditions, pages.as_dicts(rows))
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

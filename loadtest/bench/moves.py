"""`python -m loadtest.bench.moves`: for how long a partition takes no records as it moves; `moves.json`, `moves.md`.

Three nodes and etcd on this machine, each in a process of its own. Each partition has a client that sends it one
durable record after the other, each with an id of its own, through all nodes in turn, so many a second. Partitions move
in turn, each to another node than it is on, asked for at any of the three.

    pause   of the node that makes the move, from the seal to the commit: `pause_ms` in its log, and what
            mq_move_pause_seconds counts
    held    the slowest send to the partition of those that were under way while it moved: what a client sees
    other   sends while nothing moved, for comparison

CPU of a move is that of the nodes and of etcd in a second run, without clients. Nodes, etcd and clients share this
machine's cores: where other programs use them too, the times are theirs as well, and the page says what they took.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import NamedTuple

import aiohttp
import orjson
import uvloop

from loadtest.bench import machine
from loadtest.bench.nodes import etcd_running, node_running
from loadtest.bench.parts import OtherPrograms
from loadtest.bench.payloads import JSON_TYPE
from loadtest.bench.request import RunFailed
from loadtest.process import Running, end_when_told
from loadtest.stats import percentile

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
NODES = ("n1", "n2", "n3")
TOPIC = "bench"
PARTITIONS = 6
MOVES, RATE, REST_S = 240, 300.0, 0.05
WARM_UP_MOVES = 2 * PARTITIONS
"""Of the first run, so that every node has met every other one."""

_PAUSE = re.compile(rb"partition moved .* pause_ms=([0-9.]+)")


class Sent(NamedTuple):
    """A record that was sent; seconds of one clock."""

    partition: int
    begun_s: float
    ended_s: float


class Found(NamedTuple):
    """What was measured, ms."""

    pauses: Sequence[float]
    held: Sequence[float]
    other: Sequence[float]
    cpu_ms: float  # of one move, of all servers
    records_per_s: float


class Moving:
    """The cluster as its clients see it."""

    def __init__(self, session: aiohttp.ClientSession, nodes: Mapping[str, Running], random: Random) -> None:
        self._session = session
        self._nodes = nodes
        self._random = random
        self._at = [""] * PARTITIONS
        self.sent: list[Sent] = []
        self.moved: list[Sent] = []

    async def make(self) -> None:
        """Make the topic, and have its partitions where it is known that they are."""
        await self._done("PUT", f"/mq/v1/topics/{TOPIC}", {"partitions": PARTITIONS})
        for partition in range(PARTITIONS):
            await self._move(partition, NODES[partition % len(NODES)])

    async def move_on(self, partition: int) -> None:
        """Move a partition to a node that it is not on."""
        to = self._random.choice([name for name in NODES if name != self._at[partition]])
        begun_s = time.perf_counter()
        await self._move(partition, to)
        self.moved.append(Sent(partition, begun_s, time.perf_counter()))

    async def _move(self, partition: int, to: str) -> None:
        await self._done("POST", f"/mq/v1/topics/{TOPIC}/partitions/{partition}/move", {"to": to})
        self._at[partition] = to

    async def send(self, partition: int, rate: float) -> None:
        """Send a partition record after record, until cancelled."""
        number, next_s = 0, time.perf_counter() + self._random.random() / rate
        while True:
            await asyncio.sleep(next_s - time.perf_counter())
            record = {"value": "x" * 100, "msg_id": f"{partition}-{number}-{self._random.random()}"}
            begun_s = time.perf_counter()
            url = self._nodes[NODES[number % len(NODES)]].url + f"/topics/{TOPIC}/partitions/{partition}"
            body = orjson.dumps({"records": [record]})
            async with self._session.post(url, data=body, headers={"Content-Type": JSON_TYPE}) as answer:
                text = await answer.read()
                if answer.status != 200 or orjson.loads(text)["offsets"][0]["error_code"] is not None:
                    raise RunFailed(f"a send was answered {answer.status}: {text.decode()}")
            self.sent.append(Sent(partition, begun_s, time.perf_counter()))
            number += 1
            next_s = max(next_s + 1 / rate, self.sent[-1].ended_s)

    async def _done(self, method: str, path: str, body: Mapping[str, object]) -> None:
        url = self._random.choice(list(self._nodes.values())).url + path
        async with self._session.request(method, url, json=body) as answer:
            if answer.status >= 300:
                raise RunFailed(f"{method} {path}: {answer.status} {await answer.text()}")


async def measured(nodes: Mapping[str, Running], etcd: Running, logs: Sequence[Path], moves: int, rate: float) -> Found:
    """Move partitions, first under load and then without. Raises RunFailed."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        moving = Moving(session, nodes, Random(24))
        await moving.make()
        begun_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            senders = [group.create_task(moving.send(number, rate / PARTITIONS)) for number in range(PARTITIONS)]
            for number in range(WARM_UP_MOVES + moves):
                if number == WARM_UP_MOVES:
                    moving.moved.clear()
                    not_counted = [len(pauses) for pauses in _pauses(logs)]
                await moving.move_on(number % PARTITIONS)
                await asyncio.sleep(REST_S)
            for sender in senders:
                sender.cancel()
        took_s, sent = time.perf_counter() - begun_s, moving.sent
        pauses = [one for every, count in zip(_pauses(logs), not_counted, strict=True) for one in every[count:]]
        held, other = told_apart(moving.moved, sent)
        before_s = sum(each.cpu_s() for each in (*nodes.values(), etcd))
        for number in range(moves):
            await moving.move_on(number % PARTITIONS)
        cpu_s = sum(each.cpu_s() for each in (*nodes.values(), etcd)) - before_s
    return Found(pauses, held, other, cpu_s / moves * 1000, len(sent) / took_s)


def told_apart(moved: Sequence[Sent], sent: Sequence[Sent]) -> tuple[list[float], list[float]]:
    """For each move the slowest send to its partition that was under way meanwhile, and all sends that met no move of
    any partition; ms."""
    held: list[float] = []
    free = set(range(len(sent)))
    for move in moved:
        met = [n for n, one in enumerate(sent) if one.begun_s <= move.ended_s and one.ended_s >= move.begun_s]
        free.difference_update(met)
        own = [(sent[n].ended_s - sent[n].begun_s) * 1000 for n in met if sent[n].partition == move.partition]
        if own:
            held.append(max(own))
    return held, [(sent[n].ended_s - sent[n].begun_s) * 1000 for n in sorted(free)]


def _pauses(logs: Sequence[Path]) -> list[list[float]]:
    """Of the moves that each node has made so far."""
    return [[float(found) for found in _PAUSE.findall(log.read_bytes())] for log in logs]


HEADINGS = ("ms", "p50", "p90", "p99", "max", "of")


def page_of(conditions: Mapping[str, object], found: Found) -> str:
    """The page of the results."""
    rows = []
    for name, values in (("pause", found.pauses), ("held", found.held), ("other sends", found.other)):
        cells = [f"{percentile(values, percent):.1f}" for percent in (50, 90, 99, 100)]
        rows.append(f"| {name} | {' | '.join(cells)} | {len(values):,} |")
    return "\n".join(
        [
            "# For how long a partition takes no records as it moves",
            "",
            "*pause*: from the seal of the old queue to the commit, at the node that makes the move. *held*: the",
            "slowest send to the partition that was under way meanwhile, as its client saw it. By",
            "`python -m loadtest.bench.moves`.",
            "",
            f"| {' | '.join(HEADINGS)} |",
            f"|---{'|---:' * (len(HEADINGS) - 1)}|",
            *rows,
            "",
            f"A move without load takes {found.cpu_ms:.1f} ms of CPU, of three nodes and etcd together. The load was"
            f" {found.records_per_s:,.0f} records a second.",
            "",
            *(f"- {name.replace('_', ' ')}: {text}" for name, text in conditions.items()),
            "",
        ]
    )


def main() -> None:
    """Measure, print the page, write the results if that is asked for."""
    end_when_told()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=MOVES, help="in each of the two runs")
    parser.add_argument("--rate", type=float, default=RATE, help="records a second, to all partitions together")
    parser.add_argument("--write", action="store_true", help="write moves.json and moves.md into docs/benchmarks")
    parser.add_argument("--tree", type=Path, help="a checkout whose servers are measured; by default this one")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where data lies; on a disk, not in memory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-moves-", dir=options.dir) as made, ExitStack() as stack:
        directory = Path(made)
        etcd = etcd_running(stack, directory)
        nodes = {name: node_running(stack, directory, name, etcd.url, tree=options.tree) for name in NODES}
        logs = [directory / name / "server.log" for name in NODES]
        facts, others = machine.facts(directory), OtherPrograms()
        found = uvloop.run(measured(nodes, etcd, logs, options.moves, options.rate))
        conditions = {
            "ended at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "commit": machine.commit(),
            "moves": options.moves, **facts, **machine.versions(), "other programs took": others.said(),
        }  # fmt: skip
    page = page_of(conditions, found)
    sys.stdout.write(page)
    if options.write:
        text = orjson.dumps(
            {"conditions": conditions, **found._asdict()}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        )
        (RESULTS / "moves.json").write_bytes(text)
        (RESULTS / "moves.md").write_text(page)


if __name__ == "__main__":
    main()

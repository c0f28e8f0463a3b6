"""`python -m loadtest.bench.trees OTHER`: CPU that a record costs the server of this checkout and of another one.

Both servers are up at once and take turns, the first of a round alternating, so that both see the same machine. What is
compared is the CPU time of the process and of kernel threads beside it, not a rate: on shared machines it varies least.
A work's line has the mean of the rounds' ratios (this / other, of their logarithms, so that 2 and 1/2 are equally far
from 1) and its confidence interval of 95 %.

The other checkout is run with this one's Python and packages. Nothing is written into it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
import orjson
import uvloop

from loadtest.bench.groups_wire import over_http, over_websocket
from loadtest.bench.payloads import BATCH_TYPE, JSON_TYPE, RECORDS_PER_BATCH, json_body, raw_batch
from loadtest.bench.push_work import Subscribing, fill, one_subscriber
from loadtest.bench.request import LoadClient, Request, RunFailed
from loadtest.bench.wrk_client import WrkClient
from loadtest.kernel_cpu import CpuMeter, idle_kernel_cpu_share
from loadtest.process import Running, end_when_told, running_server
from loadtest.stats import mean_ratio

ROUNDS = 12
RUN_S = 1.5
WARM_UP_S = 0.3
CONNECTIONS = 16
QUEUED = 20_000
"""Records that queue mode gives out in a run, from the beginning of the topic: each run is a group of its own."""

PUSHED = 200_000
PUSHED_SINGLY = 50_000
STORED, SINGLES = "stored", "singles"
"""The topics that are read: filled once, the second with a batch a record."""

CONSUMERS = 8
RECEIVE_BATCH = 100
JSON_PULL = f"/topics/{STORED}/partitions/0/records?offset=0&max_records=1000"
RAW_PULL = f"/topics/{STORED}/partitions/0/records?offset=0&max_bytes=1048576"


class Tree(NamedTuple):
    """The server of a checkout."""

    name: str
    server: Running


Work = Callable[[Tree, float], Awaitable[float]]
"""Works for about so many seconds; how many records it was."""


def works(client: LoadClient) -> Mapping[str, Work]:
    """What is measured, by its name."""
    sent = {"Content-Type": JSON_TYPE}
    delayed = orjson.loads(json_body(range(100)))
    for record in delayed["records"]:
        record["delay_ms"] = 86_400_000

    def load(count: int, request: Request) -> Work:
        async def run(tree: Tree, duration_s: float) -> float:
            done = await client.drive(tree.server.url, request, connections=CONNECTIONS, duration_s=duration_s)
            if done.error_count or not done.request_count:
                raise RunFailed(f"{tree.name}: {done.error_count} answers were not 200")
            return float(done.request_count * count)

        return run

    def push(topic: str, form: str, count: int) -> Work:
        frames = iter(range(sys.maxsize))

        async def run(tree: Tree, duration_s: float) -> float:
            del duration_s
            batch = 1_000 - next(frames) // 2  # a server that has encoded a frame keeps it
            await one_subscriber(tree.server, Subscribing("", topic, form, count, 0.0), batch, None, 0.0)
            return float(count)

        return run

    groups = iter(range(sys.maxsize))

    def queue(consume: Callable[[str, str, str, int, int, int], Awaitable[float]]) -> Work:
        async def run(tree: Tree, duration_s: float) -> float:
            del duration_s
            await consume(tree.server.url, f"g{next(groups)}", STORED, QUEUED, CONSUMERS, RECEIVE_BATCH)
            return float(QUEUED)

        return run

    one, batch = json_body([1]), json_body(range(RECORDS_PER_BATCH))
    raw = raw_batch(range(RECORDS_PER_BATCH))
    return {
        "POST, one record, durable": load(1, Request("POST", "/topics/sent", sent, one)),
        "POST, one record, written": load(1, Request("POST", "/topics/sent?acks=written", sent, one)),
        "POST, 1,000 JSON records": load(RECORDS_PER_BATCH, Request("POST", "/topics/sent", sent, batch)),
        "POST, a raw batch of 1,000": load(RECORDS_PER_BATCH, Request("POST", "/topics/sent", _typed(), raw)),
        "POST, 100 delayed records": load(100, Request("POST", "/topics/sent", sent, orjson.dumps(delayed))),
        "pull, 1,000 JSON records": load(1000, Request("GET", JSON_PULL, {"Accept": JSON_TYPE})),
        "pull, 1 MiB of raw batches": load(10_000, Request("GET", RAW_PULL, {"Accept": BATCH_TYPE})),
        "push, JSON frames of 1,000": push(STORED, "json", PUSHED),
        "push, JSON frames of records sent one by one": push(SINGLES, "json", PUSHED_SINGLY),
        "push, raw batches": push(STORED, "batch", PUSHED),
        "queue mode, HTTP": queue(over_http),
        "queue mode, WebSocket": queue(over_websocket),
    }


def _typed() -> Mapping[str, str]:
    return {"Content-Type": BATCH_TYPE}


async def measured(
    trees: Sequence[Tree], chosen: Mapping[str, Work], rounds: int, run_s: float
) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """CPU of a record in µs, by work and tree, round by round. Raises RunFailed."""
    for tree in trees:
        await fill(tree.server.url, STORED, PUSHED, "raw")
        await fill(tree.server.url, SINGLES, PUSHED_SINGLY, "single")
        async with (
            aiohttp.ClientSession() as session,
            session.put(f"{tree.server.url}/mq/v1/topics/sent", json={"partitions": 4}) as answer,
        ):
            answer.raise_for_status()
    idle_share = idle_kernel_cpu_share()
    found: dict[str, dict[str, list[float]]] = {name: {tree.name: [] for tree in trees} for name in chosen}
    for name, work in chosen.items():
        for tree in trees:
            await work(tree, WARM_UP_S)
        for number in range(rounds):
            for tree in trees if number % 2 else reversed(trees):
                meter = CpuMeter(tree.server.cpu_s, idle_share)
                count = await work(tree, run_s)
                found[name][tree.name].append(sum(meter.taken_s()) / count * 1e6)
        print(_line(name, *(found[name][tree.name] for tree in trees)), flush=True)
    return found


def _line(name: str, this: Sequence[float], other: Sequence[float]) -> str:
    ratio = mean_ratio(this, other)
    middle = [sorted(values)[len(values) // 2] for values in (this, other)]
    verdict = "level" if ratio.low <= 1 <= ratio.high else "less" if ratio.high < 1 else "MORE"
    return (
        f"| {name} | {middle[0]:.3g} | {middle[1]:.3g} | {ratio.median:.3f} | "
        f"{ratio.low:.3f} - {ratio.high:.3f} | {verdict} |"
    )


def main() -> None:
    """Measure, and print a table: CPU in seconds per million records, this tree's and the other's, and their ratio."""
    end_when_told()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of mq")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=RUN_S, help="of a run of those works that are timed")
    parser.add_argument("--only", default="", help="part of the names of works")
    parser.add_argument("--dir", type=Path, help="where the servers' data lies; on a disk, not in memory")
    options = parser.parse_args()
    client = WrkClient.find()
    if client is None:
        sys.exit("wrk is missing: apt-get install wrk")
    chosen = {name: work for name, work in works(client).items() if options.only in name}
    with tempfile.TemporaryDirectory(prefix="mq-trees-", dir=options.dir) as directory, ExitStack() as stack:
        trees = []
        for name, tree in (("this", Path.cwd()), ("other", options.other)):
            running = stack.enter_context(running_server(Path(directory) / name, tree=tree.absolute()))
            trees.append(Tree(name, running))
        print("| work | this, s of CPU per million records | other | this / other | 95 % | |")
        print("|---|---:|---:|---:|---:|---|", flush=True)
        uvloop.run(measured(trees, chosen, options.rounds, options.seconds))


if __name__ == "__main__":
    main()

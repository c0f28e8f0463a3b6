"""`python -m loadtest.bench.push_rate OTHER`: what a record costs the server of this checkout and of another one from
its POST to its push, and how long that takes, at rates that leave the server idle most of the time.

Each record is sent durably in a request of its own. Both servers are up at once and take turns, the first of a round
alternating. The CPU time is that of the process: waking up is part of what a record costs at such rates, so it is more
than where the server is busy. Ratios are means of the rounds' ratios with intervals of 95 %.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp
import uvloop

from loadtest.bench.payloads import JSON_TYPE
from loadtest.bench.push_latency import PushPath, our_event_path, our_push_path
from loadtest.process import Running, end_when_told, running_server
from loadtest.stats import mean_ratio, ratio_rounds

ROUNDS, RUN_S, WARM_UP_S = 7, 4.0, 1.0
RATES = (200, 2_000)
HEADERS = {"Content-Type": JSON_TYPE}

Open = Callable[[aiohttp.ClientSession, str], AbstractAsyncContextManager[PushPath]]
_groups = count()


class Pushed(NamedTuple):
    """What a run came to."""

    cpu_us: float
    """Of the server's process, a record."""

    p50_ms: float
    p99_ms: float


def _in_group(mode: str) -> Open:
    def path(session: aiohttp.ClientSession, url: str) -> AbstractAsyncContextManager[PushPath]:
        of_group = {"mode": mode, "group": f"{mode}-{next(_groups)}", "start": "latest", "auto_ack": True}
        return our_push_path(session, url, HEADERS, of_group)

    return path


WAYS: Mapping[str, Open] = {
    "WebSocket": lambda session, url: our_push_path(session, url, HEADERS),
    "SSE": lambda session, url: our_event_path(session, url, HEADERS),
    "WebSocket, group": _in_group("stream"),
    "WebSocket, queue mode": _in_group("queue"),
}


async def measured(server: Running, way: Open, rate: int, run_s: float) -> Pushed:
    """One run. Raises RunFailed."""
    async with aiohttp.ClientSession() as session, way(session, server.url) as path:
        await path.run(rate, WARM_UP_S)
        before_s = server.cpu_s()
        latency = await path.run(rate, run_s)
        cpu_s = server.cpu_s() - before_s
    return Pushed(cpu_s / latency.record_count * 1e6, latency.p50_ms, latency.p99_ms)


async def compare(
    servers: Sequence[Running], ways: Sequence[str], rates: Sequence[int], rounds: int, run_s: float
) -> None:
    """Print a line for each way and rate: this tree's CPU and times, the other's, and their ratios."""
    for server in servers:
        async with (
            aiohttp.ClientSession() as session,
            session.put(f"{server.url}/mq/v1/topics/bench", json={"partitions": 4}) as answer,
        ):
            answer.raise_for_status()
    for way in ways:
        for rate in rates:
            runs: list[list[Pushed]] = [[] for _ in servers]
            for number in range(rounds):
                for at in range(len(servers)) if number % 2 else reversed(range(len(servers))):
                    runs[at].append(await measured(servers[at], WAYS[way], rate, run_s))
            cells = [way, str(rate)]
            for field in Pushed._fields:
                ours, theirs = ([getattr(run, field) for run in side] for side in runs)
                ratio = mean_ratio(ours, theirs)
                cells += [f"{median(ours):.3g}", f"{median(theirs):.3g}"]
                cells.append(f"{ratio.median:.2f} ({ratio.low:.2f} - {ratio.high:.2f})")
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure, and print a table."""
    end_when_told()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of mq")
    parser.add_argument("--rounds", type=ratio_rounds, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=RUN_S)
    parser.add_argument("--only", choices=WAYS, action="append", help="one of the ways")
    parser.add_argument("--rate", type=int, action="append", help="records a second")
    parser.add_argument("--dir", type=Path, help="where the servers' data lies; on a disk, not in memory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-push-", dir=options.dir) as directory, ExitStack() as stack:
        servers = [
            stack.enter_context(running_server(Path(directory) / name, tree=tree.absolute()))
            for name, tree in (("this", Path.cwd()), ("other", options.other))
        ]
        print(
            "| way | records/s | CPU µs a record | other | this / other | p50 ms | other | this / other | p99 ms "
            "| other | this / other |\n|---|---:|---:|---:|---|---:|---:|---|---:|---:|---|",
            flush=True,
        )
        uvloop.run(compare(servers, options.only or list(WAYS), options.rate or RATES, options.rounds, options.seconds))


if __name__ == "__main__":
    main()

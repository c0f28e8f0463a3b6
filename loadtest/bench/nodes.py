"""`python -m loadtest.bench.nodes`: what a send costs through the owner of its partition, through another node, and
through a gateway without a store; `nodes.json`, `nodes.md`.

Two nodes, a gateway and etcd on this machine; all partitions are on the first node. They are asked in turn, the first
of a round alternating, by the same client. CPU is of the owner, and of the server that passes on: it adds up, whatever
shares the cores. The rate says what a client sees where all of them, and the client, share this machine's cores: so it
is the least that several machines do.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
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
from loadtest.bench.hop import free_port
from loadtest.bench.parts import OtherPrograms
from loadtest.bench.payloads import JSON_TYPE
from loadtest.bench.request import Request, RunFailed
from loadtest.bench.wrk_client import WrkClient
from loadtest.process import Running, end_when_told, running_server, started
from loadtest.stats import Spread, mean_ratio, ratio_rounds
from store.record_batch import Record, encode

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
ROUNDS, RUN_S = 10, 2.0
TOPIC = "bench"
PARTITIONS = 4
OWNER, OTHER, GATEWAY = "owner", "other node", "gateway"
SECRET = b"the secret of nodes that are measured"


class Row(NamedTuple):
    """A kind of request, and how many records it has."""

    name: str
    request: Request
    connections: int
    records: int


class Cost(NamedTuple):
    """Of one run: CPU of the owner, and of the other servers, us a record, and records a second."""

    owner_us: float
    others_us: float
    records_per_s: float


Costs = Mapping[str, Mapping[str, Sequence[Cost]]]


def rows() -> Sequence[Row]:
    """What is measured."""
    path = f"/topics/{TOPIC}"
    sent = {"Content-Type": JSON_TYPE}
    one = orjson.dumps({"records": [{"value": "x" * 100}]})
    many = orjson.dumps({"records": [{"value": "x" * 100}] * 1000})
    raw = bytes(encode([Record(None, b"x" * 100, 0)] * 1000))
    batch = {"Content-Type": "application/vnd.mq.batch"}
    return (
        Row("raw batch of 1,000 records, 8 connections", Request("POST", path, batch, raw), 8, 1000),
        Row("JSON batch of 1,000 records, 8 connections", Request("POST", path, sent, many), 8, 1000),
        Row("JSON POST of one record, 32 connections", Request("POST", path, sent, one), 32, 1),
    )


def etcd_running(stack: ExitStack, directory: Path) -> Running:
    """An etcd, until the stack ends."""
    program = shutil.which("etcd")
    if program is None:
        sys.exit("etcd is missing: apt-get install etcd-server")
    address, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = [
        program, "--data-dir", str(directory / "etcd"), "--listen-client-urls", address,
        "--advertise-client-urls", address, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
        "--initial-cluster", f"default={peers}",
    ]  # fmt: skip
    log = stack.enter_context((directory / "etcd.log").open("wb"))
    process = subprocess.Popen(command, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return Running(address, process.pid)


def _common(directory: Path, etcd: str) -> Sequence[str]:
    secret = directory / "secret"
    secret.write_bytes(SECRET)
    return ("--etcd", etcd, "--secret-file", str(secret))


def node_running(
    stack: ExitStack, directory: Path, name: str, etcd: str, *flags: str, tree: Path | None = None
) -> Running:
    """A node whose data lies in the directory, until the stack ends. `tree`: see `running_server`."""
    own = ("--node", name, "--internal-port", "0", "--kafka-port", "0", *_common(directory, etcd))
    return stack.enter_context(running_server(directory / name, *own, *flags, tree=tree))


def servers(stack: ExitStack, directory: Path) -> Mapping[str, Running]:
    """Two nodes and a gateway, by what they are to the partitions."""
    etcd, quiet = etcd_running(stack, directory).url, ("--log-level", "warning")
    nodes = {kind: node_running(stack, directory, name, etcd, *quiet) for name, kind in (("n1", OWNER), ("n2", OTHER))}
    command = [sys.executable, "-m", "gateway", "serve", "--join", "--port", "0", *_common(directory, etcd), *quiet]
    unlimited = {"MQ_LIMITS_CONNECTIONS_PER_ADDRESS_MAX": "0"}
    return {**nodes, GATEWAY: stack.enter_context(started(command, directory / "gateway.log", unlimited))}


async def measured(wrk: WrkClient, subjects: Mapping[str, Running], options: argparse.Namespace) -> Costs:
    """The costs of each row, round by round. Raises RunFailed."""
    async with aiohttp.ClientSession() as session:
        url = subjects[OWNER].url + f"/mq/v1/topics/{TOPIC}"
        async with session.put(url, json={"partitions": PARTITIONS}) as answer:
            answer.raise_for_status()
        for partition in range(PARTITIONS):
            async with session.post(f"{url}/partitions/{partition}/move", json={"to": "n1"}) as answer:
                answer.raise_for_status()
    found: dict[str, dict[str, list[Cost]]] = {}
    for row in rows():
        if options.only not in row.name:
            continue
        found[row.name] = {kind: [] for kind in subjects}
        for number in range(options.rounds + 1):
            kinds = list(subjects)
            for kind in kinds if number % 2 else reversed(kinds):
                seconds = options.seconds if number else 1
                before = [process.cpu_s() for process in subjects.values()]
                load = await wrk.drive(subjects[kind].url, row.request, connections=row.connections, duration_s=seconds)
                if load.error_count or not load.request_count:
                    raise RunFailed(f"{kind}, {row.name}: {load.error_count} errors, {load.request_count} answers")
                records = load.request_count * row.records
                owner_us, *others_us = (
                    (process.cpu_s() - begun) / records * 1e6
                    for process, begun in zip(subjects.values(), before, strict=True)
                )
                if number:  # the first round is not counted
                    found[row.name][kind].append(Cost(owner_us, sum(others_us), records / seconds))
        print(line_of(row.name, found[row.name]), flush=True)
    return found


HEADINGS = (
    "send", f"{OWNER}, us a record", f"{OTHER}: it + {OWNER}", f"{GATEWAY}: it + {OWNER}", f"{OWNER}, records/s",
    f"{OTHER} / {OWNER}", f"{GATEWAY} / {OWNER}",
)  # fmt: skip


def line_of(name: str, costs: Mapping[str, Sequence[Cost]]) -> str:
    """A line of the table: medians; ratios of rates with their 95 %."""
    rates = {kind: [cost.records_per_s for cost in costs[kind]] for kind in costs}
    cells = [
        name, f"{median(cost.owner_us for cost in costs[OWNER]):.2f}", _parts(costs[OTHER]), _parts(costs[GATEWAY]),
        f"{median(rates[OWNER]):,.0f}", *(_said(mean_ratio(rates[kind], rates[OWNER])) for kind in (OTHER, GATEWAY)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _parts(costs: Sequence[Cost]) -> str:
    return f"{median(cost.others_us for cost in costs):.2f} + {median(cost.owner_us for cost in costs):.2f}"


def _said(ratio: Spread) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def page_of(conditions: Mapping[str, object], costs: Costs) -> str:
    """The page of the results."""
    return "\n".join(
        [
            "# What a send costs through another node, and through a gateway without a store",
            "",
            "CPU in us a record, of the server that is asked and of the owner, medians of the rounds; ratios are of",
            "rates, means of the rounds with their intervals of 95 %. By `python -m loadtest.bench.nodes`; every round",
            "is in `nodes.json`.",
            "",
            f"| {' | '.join(HEADINGS)} |",
            f"|---{'|---:' * (len(HEADINGS) - 1)}|",
            *(line_of(name, row) for name, row in costs.items()),
            "",
            *(f"- {name.replace('_', ' ')}: {text}" for name, text in conditions.items()),
            "",
        ]
    )  # fmt: skip


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
    with tempfile.TemporaryDirectory(prefix="mq-nodes-", dir=options.dir) as made, ExitStack() as stack:
        directory = Path(made)
        subjects = servers(stack, directory)
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
            name: {kind: [one._asdict() for one in them] for kind, them in row.items()} for name, row in costs.items()
        }
        text = orjson.dumps(
            {"conditions": conditions, "rows": found}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        )
        (RESULTS / "nodes.json").write_bytes(text)
        (RESULTS / "nodes.md").write_text(page_of(conditions, costs))


if __name__ == "__main__":
    main()

"""`python -m loadtest.bench.hot_path OTHER`: what a small request costs the server of this checkout and of another
one, in CPU time of its own threads and, apart, of the kernel's; beside bare aiohttp and nsqd.

All servers are up at once and take turns, the first of a round alternating, so that all see the same machine. On shared
machines CPU time varies less than rates do, and ratios of a round less than either. Results go to
`docs/benchmarks/hot-path.json` and `.md`; a row names its client's way of sending, as heads that vary, tokens, TLS and
bodies that come apart take other ways through the server.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp
import orjson
import uvloop

from loadtest.bench import machine
from loadtest.bench.parts import OtherPrograms
from loadtest.bench.payloads import JSON_TYPE
from loadtest.bench.raw_client import RawClient
from loadtest.bench.request import LoadClient, Request, RunFailed
from loadtest.bench.wrk_client import WrkClient
from loadtest.certificates import write_certificate
from loadtest.kernel_cpu import CpuMeter, idle_kernel_cpu_share
from loadtest.peers.fetch import TOOLS
from loadtest.peers.nsq import Endpoint, Nsq
from loadtest.peers.peer import Unavailable
from loadtest.process import Running, end_when_told, running_server, started
from loadtest.stats import mean_ratio, ratio_rounds

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
ROUNDS, RUN_S, WARM_UP_S = 7, 2.0, 1.0
TOPIC = "sent"
VALUE = b'{"sku":9,"count":1,"at":"2026-01-01T00:00:00Z"}'
THIS, OTHER, BARE, NSQD = "this", "other", "bare aiohttp", "nsqd"
VARIANTS = 4_096
"""Requests of a row whose heads vary; more than a server remembers of heads."""


class Row(NamedTuple):
    """A kind of request. `server`: how ours is set up. `bare`, `nsqd`: whether theirs is measured beside it."""

    name: str
    request: Request
    connections: int = 32
    server: str = "plain"
    beside: tuple[str, ...] = ()
    variant: Callable[[int], Request] | None = None
    is_apart: bool = False
    """Whether head and body are sent one after the other."""


class Cost(NamedTuple):
    """What a run has cost, in µs of CPU a request, and done."""

    own_us: float
    kernel_us: float
    requests_per_s: float


BODY = b'{"records":[{"value":%b}]}' % VALUE


_WRITTEN = f"/topics/{TOPIC}?acks=written"


def _json(headers: Mapping[str, str] | None = None, *, target: str = _WRITTEN, body: bytes = BODY) -> Request:
    return Request("POST", target, {"Content-Type": JSON_TYPE, **(headers or {})}, body)


_NATIVE = f"/mq/v1/topics/{TOPIC}/messages"
_AS_AIOHTTP = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "Python/3.11 aiohttp/3.14.5"}
_AS_FETCH = {
    "connection": "keep-alive", "accept": "*/*", "accept-language": "*", "sec-fetch-mode": "cors", "user-agent": "node",
    "accept-encoding": "gzip, deflate",
}  # fmt: skip
_AS_REQUESTS = {
    "User-Agent": "python-requests/2.32", "Accept-Encoding": "gzip, deflate", "Accept": "*/*",
    "Connection": "keep-alive",
}  # fmt: skip


def _of_length(number: int) -> Request:
    return _json(body=BODY.replace(b'"sku"', b'"s%b"' % (b"k" * (number % 1_500))))


def rows(cluster: str) -> Sequence[Row]:
    """What is measured. `cluster`: the id of ours, as the v3 API has it in its paths."""
    both = (BARE, NSQD)
    durable = f"/topics/{TOPIC}"
    v3 = f"/v3/clusters/{cluster}/topics/{TOPIC}/records"
    v3_body = b'{"value":{"type":"JSON","data":%b}}' % VALUE
    return (
        Row("JSON POST, written, 32 connections", _json(), beside=both),
        Row("JSON POST, written, 64 connections", _json(), 64, beside=both),
        Row("JSON POST, durable, 32 connections", _json(target=durable), beside=(BARE,)),
        Row("JSON POST, durable, 64 connections", _json(target=durable), 64, beside=(BARE,)),
        Row("one message, written", Request("POST", f"{_NATIVE}?acks=written", {"Content-Type": "text/json"}, VALUE)),
        Row(
            "one line of NDJSON, written",
            Request(
                "POST", f"{_NATIVE}:batch?acks=written", {"Content-Type": "application/x-ndjson"},
                b'{"value":%b}\n' % VALUE,
            ),
        ),
        Row("v3, one record, durable", Request("POST", v3, {"Content-Type": "application/json"}, v3_body)),
        Row("JSON POST with a token, written", _json(), server="token"),
        Row("JSON POST over TLS, written", _json(), server="tls"),
        Row("JSON POST as aiohttp sends it, lengths vary", _json(_AS_AIOHTTP), variant=_of_length),
        Row("JSON POST as fetch of Node sends it", _json(_AS_FETCH)),
        Row(
            "JSON POST, request ids vary", _json(),
            variant=lambda number: _json({"X-Request-Id": f"{number:032x}"}),
        ),
        Row("JSON POST as requests sends it: head and body apart", _json(_AS_REQUESTS), is_apart=True),
    )  # fmt: skip


class Subject(NamedTuple):
    """A server that is measured: where it is, what it has taken of the CPU, and what its clients have to send."""

    name: str
    url: str
    cpu_s: Callable[[], float]
    headers: Mapping[str, str]


def _ours(stack: ExitStack, name: str, directory: Path, tree: Path, kind: str) -> Subject:
    data = directory / f"{name}-{kind}"
    data.mkdir(parents=True)
    headers, flags = {}, []
    if kind == "token":
        command = ["token", "create", "bench", "--data", str(data), "--allow", "admin"]
        made = subprocess.run([sys.executable, "-m", "gateway", *command], cwd=tree, check=True, capture_output=True)
        headers, flags = {"Authorization": f"Bearer {made.stdout.decode().strip()}"}, ["--auth"]
    elif kind == "tls":
        cert, key, config = (data / file for file in ("cert.pem", "key.pem", "mq.toml"))
        write_certificate(cert, key)
        config.write_text(f'[tls]\ncert_file = "{cert}"\nkey_file = "{key}"\n')
        flags = ["--config", str(config)]
    server = stack.enter_context(running_server(data, *flags, tree=tree))
    return Subject(name, server.url, server.cpu_s, headers)


def _bare(stack: ExitStack, directory: Path) -> Subject:
    command = [sys.executable, "-m", "loadtest.bench.bare_server"]
    server = stack.enter_context(started(command, directory / "bare.log"))
    return Subject(BARE, server.url, server.cpu_s, {})


def _nsqd(stack: ExitStack, directory: Path) -> Subject | None:
    """None, with the reason printed, where it cannot be had."""
    try:
        Nsq().prepare(TOOLS)
    except Unavailable as reason:
        print(f"nsqd is left out: {reason}", file=sys.stderr)
        return None
    data = directory / NSQD
    data.mkdir()
    server = stack.enter_context(Nsq().serve(TOOLS, data, Nsq.levels[0]))
    return Subject(NSQD, Endpoint.parse(server.endpoint).url, Running("", *server.pids).cpu_s, {})


async def _prepared(subject: Subject) -> Mapping[str, Row]:
    """The rows by their names, as a server of ours gets them; it has the topic then."""
    connector = aiohttp.TCPConnector(ssl=False)  # its certificate is of our own making
    async with aiohttp.ClientSession(headers=dict(subject.headers), connector=connector) as session:
        async with session.put(f"{subject.url}/mq/v1/topics/{TOPIC}", json={"partitions": 4}) as answer:
            answer.raise_for_status()
        async with session.get(f"{subject.url}/v3/clusters") as answer:
            answer.raise_for_status()
            return {row.name: row for row in rows((await answer.json())["data"][0]["cluster_id"])}


async def _load(wrk: WrkClient, row: Row, subject: Subject, duration_s: float) -> int:
    """How many requests were answered. Raises RunFailed."""
    request = Request("POST", f"/pub?topic={TOPIC}", {}, VALUE) if subject.name == NSQD else row.request
    request = Request(request.method, request.target, {**request.headers, **subject.headers}, request.body)
    client: LoadClient = RawClient(is_apart=True) if row.is_apart else wrk
    if row.variant is None:
        load = await client.drive(subject.url, request, connections=row.connections, duration_s=duration_s)
    else:
        each = [row.variant(number).encode(subject.url) for number in range(VARIANTS)]
        load = await wrk.drive(subject.url, request, connections=row.connections, duration_s=duration_s, each=each)
    if load.error_count or not load.request_count:
        raise RunFailed(f"{subject.name}, {row.name}: {load.error_count} errors, {load.request_count} answers")
    return load.request_count


Costs = Mapping[str, Mapping[str, Sequence[Cost]]]
"""By the name of the row and of the subject, round by round."""


async def measured(
    wrk: WrkClient, ours: Mapping[str, Sequence[Subject]], peers: Sequence[Subject], options: argparse.Namespace
) -> Costs:
    """What each row costs each of its subjects. `ours`: by how they are set up. Raises RunFailed."""
    prepared = {id(one): await _prepared(one) for kind in ours.values() for one in kind}
    idle_share = idle_kernel_cpu_share()
    found: dict[str, dict[str, list[Cost]]] = {}
    for name, row in next(iter(prepared.values())).items():
        if not any(part in name for part in options.only.split("; ")):
            continue
        subjects = [*ours[row.server], *(peer for peer in peers if peer.name in row.beside)]
        found[name] = {one.name: [] for one in subjects}
        for number in range(options.rounds + 1):
            for one in subjects if number % 2 else subjects[::-1]:
                own_row = prepared[id(one)][name] if id(one) in prepared else row
                meter, began_s = CpuMeter(one.cpu_s, idle_share), time.perf_counter()
                count = await _load(wrk, own_row, one, options.seconds if number else WARM_UP_S)
                took_s, (own_s, kernel_s) = time.perf_counter() - began_s, meter.taken_s()
                if number:  # the first round is not counted
                    found[name][one.name].append(Cost(own_s / count * 1e6, kernel_s / count * 1e6, count / took_s))
        print("\n".join(lines_of(name, found[name])), flush=True)
    return found


HEADINGS = (
    "request", "subject", "CPU, own threads", "CPU, kernel's threads", "requests/s", "this / subject, own threads",
    "with the kernel's", "requests/s",
)  # fmt: skip


def lines_of(name: str, costs: Mapping[str, Sequence[Cost]]) -> list[str]:
    """The lines of a row in the table."""
    lines = []
    for subject, theirs in costs.items():
        cells = [name, subject, *(f"{median(values):.3g}" for values in zip(*theirs, strict=True))]
        for value_of in (_OWN, _ALL, _RATE):
            ours, others = ([value_of(cost) for cost in side] for side in (costs[THIS], theirs))
            ratio = mean_ratio(ours, others)
            cells.append("" if subject == THIS else f"{ratio.median:.2f} ({ratio.low:.2f} - {ratio.high:.2f})")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


_OWN, _RATE = attrgetter("own_us"), attrgetter("requests_per_s")


def _ALL(cost: Cost) -> float:
    return cost.own_us + cost.kernel_us


def page_of(conditions: Mapping[str, object], costs: Costs) -> str:
    return "\n".join(
        [
            "# What one small request costs",
            "",
            "Written by `python -m loadtest.bench.hot_path OTHER`; every round is in `hot-path.json`. CPU: µs",
            "a request, medians; of ratios the means of the rounds and their intervals of 95 %. *this* is the commit",
            "named below, *other* the tree it was compared with. What was done, and what did not help: decisions 37,",
            "115, 117.",
            "",
            f"| {' | '.join(HEADINGS)} |",
            "|---|---|---:|---:|---:|---|---|---|",
            *(line for name, row in costs.items() for line in lines_of(name, row)),
            "",
            *(f"- {name.replace('_', ' ')}: {text}" for name, text in conditions.items()),
            "",
        ]
    )


def main() -> None:
    """Measure, print a table, write the results."""
    end_when_told()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of mq")
    parser.add_argument("--rounds", type=ratio_rounds, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=RUN_S)
    parser.add_argument(
        "--only", default="", help="parts of the names of rows, with '; ' between them: nothing is written"
    )
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where data lies; on a disk, not in memory")
    options = parser.parse_args()
    wrk = WrkClient.find()
    if wrk is None:
        sys.exit("wrk is missing: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="mq-hot-path-", dir=options.dir) as made, ExitStack() as stack:
        directory = Path(made)
        trees = {THIS: Path.cwd(), OTHER: options.other.absolute()}
        ours = {
            kind: [_ours(stack, name, directory, tree, kind) for name, tree in trees.items()]
            for kind in ("plain", "token", "tls")
        }
        peers = [one for one in (_bare(stack, directory), _nsqd(stack, directory)) if one is not None]
        facts, others = machine.facts(directory), OtherPrograms()
        print(f"| {' | '.join(HEADINGS)} |\n|---|---|---:|---:|---:|---|---|---|", flush=True)
        costs = uvloop.run(measured(wrk, ours, peers, options))
        conditions = {
            "ended at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "this": machine.commit(),
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
        (RESULTS / "hot-path.json").write_bytes(text)
        (RESULTS / "hot-path.md").write_text(page_of(conditions, costs))


if __name__ == "__main__":
    main()

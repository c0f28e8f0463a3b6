"""`python -m loadtest.bench.trees OTHER`: CPU that a record costs the server of this checkout and of another one, and
how many a second both do.

Both servers are up at once and take turns, the first of a round alternating, so that both see the same machine. The CPU
time is that of the process and of kernel threads beside it: on shared machines it varies less than a rate does. A
work's line has the means of the rounds' ratios (this / other, of their logarithms, so that 2 and 1/2 are equally far
from 1) and their confidence intervals of 95 %.

The works of Kafka's protocol are with prebuilt bytes: what Kafka's Java client sends of records of 1 KB, a request at a
time; batches of 1 MB in and out, the latter also when the system has nothing of the log in memory; and a record to a
fetch that waits for it, 1 ms after the one before.

The other checkout is run with this one's Python and packages. Nothing is written into it. With `--node` this checkout's
server is the only node of a cluster, with an etcd of its own: against this checkout (`.`) that is what being a node
costs a server that is alone.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
import orjson
import uvloop

from loadtest.bench.disk import forget_files
from loadtest.bench.groups_wire import make_topics, over_http, over_websocket
from loadtest.bench.nodes import etcd_running, node_running
from loadtest.bench.payloads import BATCH_TYPE, JSON_TYPE, RECORDS_PER_BATCH, json_body, raw_batch
from loadtest.bench.push_work import Subscribing, fill, one_subscriber
from loadtest.bench.request import LoadClient, Request, RunFailed
from loadtest.bench.wrk_client import WrkClient
from loadtest.kernel_cpu import CpuMeter, idle_kernel_cpu_share
from loadtest.peers import kafka_protocol as kafka
from loadtest.peers import replay
from loadtest.peers.mq import JsonClient
from loadtest.peers.servers import free_port
from loadtest.peers.work import delayed
from loadtest.process import Running, end_when_told, running_server
from loadtest.stats import mean_ratio, ratio_rounds
from store.limits import MiB
from store.record_batch import encode_columns, numbered

ROUNDS = 12
RUN_S = 1.5
WARM_UP_S = 0.3
CONNECTIONS = 16
SOCKET_UNANSWERED = 64
SOCKET_TOPICS = 10
QUEUED = 20_000
"""Records that queue mode gives out in a run, from the beginning of the topic: each run is a group of its own."""

DELAYED, DELAYED_MS, DELAYED_ACCEPTED_PER_S = 100_000, 6_000, 20_000
"""Delayed records that are due within so long, as many a second as a million within a minute, and their due times as
mixed within a request."""

PUSHED = 200_000
PUSHED_SINGLY = 50_000
STORED, SINGLES, SENT_AS_JSON = "stored", "singles", "sent-as-json"
"""The topics that are read: filled once, with raw batches, with a batch a record, and with batches of JSON. Rendered,
the first and the last are larger than what a server keeps of rendered records: a walk through them finds nothing there.
"""

REPLAYING = 4
STRING_CHARS = 100

KAFKA, KAFKA_HOST = "Kafka: ", "127.0.0.1"
SMALL_RECORDS, LARGE_RECORDS, KB_BYTES = 15, 1_000, 1_000
LARGE, LARGE_BATCHES = "kafka-large", 200
"""The topic that is read, 200 MB: more than what a server keeps in memory of what came last."""

FETCH_BYTES = 1 * MiB
PAUSE_S = 0.001

CONSUMERS = 8
RECEIVE_BATCH = 100
SMALL_CONSUMERS, SMALL_RECEIVE_BATCH = 16, 32
MADE = 500
"""Topics of a run. They stay, so later rounds make theirs beside those of the earlier ones."""

MAKING = 64
"""Of them under way at a time."""
JSON_PULL = f"/topics/{STORED}/partitions/0/records?offset=0&max_records=1000"
RAW_PULL = f"/topics/{STORED}/partitions/0/records?offset=0&max_bytes=1048576"


class Tree(NamedTuple):
    """The server of a checkout, its port for Kafka clients (0: it has none), and where its data are."""

    name: str
    server: Running
    kafka_port: int
    directory: Path


Work = Callable[[Tree, float], Awaitable[float]]
"""Works for about so many seconds; how many records it was."""


class Cost(NamedTuple):
    """What a run has cost, and done."""

    cpu_us: float
    """Of one record."""

    records_per_s: float


def workloads(client: LoadClient) -> Mapping[str, Work]:
    """What is measured, by its name."""
    sent = {"Content-Type": JSON_TYPE}
    hundred = orjson.loads(json_body(range(100)))
    for record in hundred["records"]:
        record["delay_ms"] = 86_400_000

    def load(count: int, request: Request, connections: int = CONNECTIONS) -> Work:
        async def run(tree: Tree, duration_s: float) -> float:
            done = await client.drive(tree.server.url, request, connections=connections, duration_s=duration_s)
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

    def queue(
        consume: Callable[[str, str, str, int, int, int], Awaitable[float]],
        consumers: int = CONSUMERS,
        batch: int = RECEIVE_BATCH,
    ) -> Work:
        async def run(tree: Tree, duration_s: float) -> float:
            del duration_s
            await consume(tree.server.url, f"g{next(groups)}", STORED, QUEUED, consumers, batch)
            return float(QUEUED)

        return run

    async def make(tree: Tree, duration_s: float) -> float:
        del duration_s
        await make_topics(tree.server.url, f"made-{next(groups)}", MADE, MAKING)
        return float(MADE)

    def by_socket(topics: int, sockets: int, acks: str) -> Work:
        """Produces of one record over sockets, SOCKET_UNANSWERED in all unanswered at any time, to so many topics."""
        command = {"op": "produce", "records": [{"value": "x" * STRING_CHARS}], "acks": acks}

        async def run(tree: Tree, duration_s: float) -> float:
            async with aiohttp.ClientSession() as session, AsyncExitStack() as stack:
                open_ = [
                    await stack.enter_async_context(session.ws_connect(f"{tree.server.url}/ws/v1"))
                    for _ in range(sockets)
                ]
                until_s = time.monotonic() + duration_s
                return sum(await asyncio.gather(*[one(socket, until_s) for socket in open_]))

        async def one(socket: aiohttp.ClientWebSocketResponse, until_s: float) -> float:
            sent = answered = 0
            while answered < sent or not sent:
                while sent - answered < SOCKET_UNANSWERED // sockets and (not sent or time.monotonic() < until_s):
                    sent += 1
                    await socket.send_json({"id": sent, "topic": f"socket-{sent % topics}", **command}, dumps=_text)
                if not orjson.loads(await socket.receive_str())["ok"]:
                    raise RunFailed("a produce was refused")
                answered += 1
            return float(answered)

        return run

    async def delay(tree: Tree, duration_s: float) -> float:
        del duration_s
        async with aiohttp.ClientSession() as session:
            await delayed(
                JsonClient(session, tree.server.url), f"delayed-{next(groups)}",
                count=DELAYED, spread_ms=DELAYED_MS, accepted_per_s=DELAYED_ACCEPTED_PER_S,
            )  # fmt: skip
        return float(DELAYED)

    def walk(topic: str, accept: str, query: str) -> Work:
        """One connection that reads a topic from end to end, again and again."""

        async def run(tree: Tree, duration_s: float) -> float:
            url = urlsplit(tree.server.url)
            assert url.hostname is not None
            assert url.port is not None

            def ask(offset: int) -> bytes:
                target = f"/topics/{topic}/partitions/0/records?offset={offset}&{query}"
                return Request("GET", target, {"Accept": accept}).encode(tree.server.url)

            done = await replay.fetch(
                url.hostname, url.port,
                request=ask, whole=replay.http_records, count=PUSHED, duration_s=duration_s, warm_s=0.0,
            )  # fmt: skip
            return float(done["records"])

        return run

    def replayed(load_one: Request) -> Work:
        """Four connections that send the same batch again and again."""

        async def run(tree: Tree, duration_s: float) -> float:
            url = urlsplit(tree.server.url)
            assert url.hostname is not None
            assert url.port is not None
            done = await replay.replay(
                url.hostname, url.port,
                request=load_one.encode(tree.server.url), whole=replay.http_answer, records=RECORDS_PER_BATCH,
                connections=REPLAYING, duration_s=duration_s, warm_s=0.0,
            )  # fmt: skip
            return float(done["records"])

        return run

    async def kafka_small(tree: Tree, duration_s: float) -> float:
        """A batch of 15 records a request, as an idempotent producer numbers them."""
        topic, producer_id, count = f"small-{next(groups)}", secrets.randbits(62), 0
        await make_topic(tree, topic)
        until_s = time.monotonic() + duration_s
        async with replay.connected(KAFKA_HOST, tree.kafka_port, 1) as (connection,):
            while time.monotonic() < until_s:
                request = kafka.produce_compactly(topic, numbered(small, producer_id, 0, count))
                connection.skip(await connection.answer(request, kafka.produced_compactly))
                count += SMALL_RECORDS
        return float(count)

    async def kafka_large(tree: Tree, duration_s: float) -> float:
        topic = f"large-{next(groups)}"
        await make_topic(tree, topic)
        done = await replay.replay(
            KAFKA_HOST, tree.kafka_port,
            request=kafka.produce(topic, large), whole=kafka.produced_bytes, records=LARGE_RECORDS,
            connections=1, duration_s=duration_s, warm_s=0.0,
        )  # fmt: skip
        return float(done["records"])

    async def kafka_fetch(tree: Tree, duration_s: float) -> float:
        done = await replay.fetch(
            KAFKA_HOST, tree.kafka_port,
            request=lambda offset: kafka.fetch(LARGE, offset, FETCH_BYTES), whole=kafka.fetched,
            count=LARGE_BATCHES * LARGE_RECORDS, duration_s=duration_s, warm_s=0.0,
        )  # fmt: skip
        return float(done["records"])

    async def kafka_fetch_from_disk(tree: Tree, duration_s: float) -> float:
        """All of the topic, once."""
        del duration_s
        forget_files(tree.directory / "commitlog")
        offset = 0
        async with replay.connected(KAFKA_HOST, tree.kafka_port, 1) as (connection,):
            while offset < LARGE_BATCHES * LARGE_RECORDS:
                found = await connection.answer(kafka.fetch(LARGE, offset, FETCH_BYTES), kafka.fetched)
                connection.skip(found.size_bytes)
                offset = found.next_offset
        return float(offset)

    async def kafka_waiting(tree: Tree, duration_s: float) -> float:
        topic, offset = f"waits-{next(groups)}", 0
        await make_topic(tree, topic)
        until_s = time.monotonic() + duration_s
        async with replay.connected(KAFKA_HOST, tree.kafka_port, 2) as (reader, writer):
            while time.monotonic() < until_s:
                fetching = asyncio.ensure_future(reader.answer(kafka.fetch(topic, offset, FETCH_BYTES), kafka.fetched))
                await asyncio.sleep(PAUSE_S)
                writer.skip(await writer.answer(kafka.produce_compactly(topic, single), kafka.produced_compactly))
                found = await fetching
                reader.skip(found.size_bytes)
                offset = found.next_offset
        return float(offset)

    one, batch = json_body([1]), json_body(range(RECORDS_PER_BATCH))
    raw = raw_batch(range(RECORDS_PER_BATCH))
    strings = orjson.dumps({"records": [{"value": "x" * STRING_CHARS}] * RECORDS_PER_BATCH})
    to_one = "/topics/sent/partitions/0"
    single, small, large = (_plain(count) for count in (1, SMALL_RECORDS, LARGE_RECORDS))
    return {
        "POST, one record, durable": load(1, Request("POST", "/topics/sent", sent, one)),
        "POST, one record, written": load(1, Request("POST", "/topics/sent?acks=written", sent, one)),
        "socket, one record, durable": by_socket(1, 1, "flushed"),
        "socket, one record, written": by_socket(1, 1, "written"),
        "socket, one record, ten topics, durable": by_socket(SOCKET_TOPICS, 1, "flushed"),
        "socket, one record, ten topics, written": by_socket(SOCKET_TOPICS, 1, "written"),
        "16 sockets, one record, ten topics, durable": by_socket(SOCKET_TOPICS, CONNECTIONS, "flushed"),
        "POST, 1,000 JSON records": load(RECORDS_PER_BATCH, Request("POST", "/topics/sent", sent, batch)),
        "POST, 1,000 JSON records, 32 connections": load(
            RECORDS_PER_BATCH, Request("POST", "/topics/sent", sent, batch), 32
        ),
        "POST, a raw batch of 1,000": load(RECORDS_PER_BATCH, Request("POST", "/topics/sent", _typed(), raw)),
        "replay, a raw batch of 1,000, durable": replayed(Request("POST", to_one, _typed(), raw)),
        "replay, a raw batch of 1,000, written": replayed(Request("POST", f"{to_one}?acks=written", _typed(), raw)),
        "replay, 1,000 JSON strings, durable": replayed(Request("POST", to_one, sent, strings)),
        "replay, 1,000 JSON strings, written": replayed(Request("POST", f"{to_one}?acks=written", sent, strings)),
        "POST, 100 delayed records": load(100, Request("POST", "/topics/sent", sent, orjson.dumps(hundred))),
        "delayed, 1,000 records a request, from the send to the push": delay,
        "pull, 1,000 JSON records": load(1000, Request("GET", JSON_PULL, {"Accept": JSON_TYPE})),
        "walk, 1,000 JSON records of raw batches": walk(STORED, JSON_TYPE, "max_records=1000"),
        "walk, 1,000 JSON records sent as JSON": walk(SENT_AS_JSON, JSON_TYPE, "max_records=1000"),
        "walk, 1 MiB of raw batches": walk(STORED, BATCH_TYPE, "max_bytes=1048576"),
        "pull, 1 MiB of raw batches": load(10_000, Request("GET", RAW_PULL, {"Accept": BATCH_TYPE})),
        "push, JSON frames of 1,000": push(STORED, "json", PUSHED),
        "push, JSON frames of records sent one by one": push(SINGLES, "json", PUSHED_SINGLY),
        "push, raw batches": push(STORED, "batch", PUSHED),
        "queue mode, HTTP": queue(over_http),
        "queue mode, WebSocket": queue(over_websocket),
        "queue mode, batches of 32, HTTP": queue(over_http, SMALL_CONSUMERS, SMALL_RECEIVE_BATCH),
        "queue mode, batches of 32, WebSocket": queue(over_websocket, SMALL_CONSUMERS, SMALL_RECEIVE_BATCH),
        "topics, one a request": make,
        f"{KAFKA}produce, 15 records of 1 KB a request": kafka_small,
        f"{KAFKA}produce, batches of 1 MB": kafka_large,
        f"{KAFKA}fetch, batches of 1 MB": kafka_fetch,
        f"{KAFKA}fetch, batches of 1 MB from the disk": kafka_fetch_from_disk,
        f"{KAFKA}a record to the fetch that waits": kafka_waiting,
    }


def _text(command: object) -> str:
    return orjson.dumps(command).decode()


def _plain(count: int) -> bytearray:
    """A batch of records of 1 KB."""
    return encode_columns(None, [bytes(KB_BYTES)] * count, time.time_ns() // 1_000_000)


async def make_topic(tree: Tree, topic: str) -> None:
    """A topic of one partition."""
    async with (
        aiohttp.ClientSession() as session,
        session.put(f"{tree.server.url}/mq/v1/topics/{topic}", json={"partitions": 1}) as made,
    ):
        made.raise_for_status()


async def _fill_for_kafka(tree: Tree) -> None:
    await make_topic(tree, LARGE)
    request = kafka.produce(LARGE, _plain(LARGE_RECORDS))
    async with replay.connected(KAFKA_HOST, tree.kafka_port, 1) as (connection,):
        for _ in range(LARGE_BATCHES):
            connection.skip(await connection.answer(request, kafka.produced_bytes))


def _typed() -> Mapping[str, str]:
    return {"Content-Type": BATCH_TYPE}


async def _fill_with_json(url: str) -> None:
    async with (
        aiohttp.ClientSession(headers={"Content-Type": JSON_TYPE}) as session,
        session.put(f"{url}/mq/v1/topics/{SENT_AS_JSON}", json={"partitions": 1}) as made,
    ):
        made.raise_for_status()
        for first in range(0, PUSHED, RECORDS_PER_BATCH):
            body = json_body(range(first, first + RECORDS_PER_BATCH))
            async with session.post(f"{url}/topics/{SENT_AS_JSON}", data=body) as answer:
                answer.raise_for_status()


async def measured(
    trees: Sequence[Tree], chosen: Mapping[str, Work], rounds: int, run_s: float, *, own: bool
) -> Mapping[str, Mapping[str, Sequence[Cost]]]:
    """What each work costs in each tree, round by round; `own`: without what the kernel's threads take. Raises
    RunFailed."""
    for tree in trees:
        await fill(tree.server.url, STORED, PUSHED, "raw")
        await fill(tree.server.url, SINGLES, PUSHED_SINGLY, "single")
        await _fill_with_json(tree.server.url)
        async with (
            aiohttp.ClientSession() as session,
            session.put(f"{tree.server.url}/mq/v1/topics/sent", json={"partitions": 4}) as answer,
        ):
            answer.raise_for_status()
        for number in range(SOCKET_TOPICS):
            await make_topic(tree, f"socket-{number}")
        if any(name.startswith(KAFKA) for name in chosen):
            await _fill_for_kafka(tree)
    idle_share = idle_kernel_cpu_share()
    found: dict[str, dict[str, list[Cost]]] = {name: {tree.name: [] for tree in trees} for name in chosen}
    for name, work in chosen.items():
        for tree in trees:
            await work(tree, WARM_UP_S)
        for number in range(rounds):
            for tree in trees if number % 2 else reversed(trees):
                meter, began_s = CpuMeter(tree.server.cpu_s, idle_share), time.perf_counter()
                count = await work(tree, run_s)
                taken_s, (own_s, kernel_s) = time.perf_counter() - began_s, meter.taken_s()
                cpu_s = own_s if own else own_s + kernel_s
                found[name][tree.name].append(Cost(cpu_s / count * 1e6, count / taken_s))
        print(_line(name, *(found[name][tree.name] for tree in trees)), flush=True)
    return found


def _line(name: str, this: Sequence[Cost], other: Sequence[Cost]) -> str:
    cells = [name]
    for field, better in (("cpu_us", "less"), ("records_per_s", "more")):
        ours, theirs = ([getattr(cost, field) for cost in costs] for costs in (this, other))
        ratio = mean_ratio(ours, theirs)
        cells += [f"{sorted(values)[len(values) // 2]:.3g}" for values in (ours, theirs)]
        is_better = ratio.high < 1 if better == "less" else ratio.low > 1
        verdict = "level" if ratio.low <= 1 <= ratio.high else better if is_better else "WORSE"
        cells.append(f"{ratio.median:.3f} ({ratio.low:.3f} - {ratio.high:.3f}) {verdict}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, and print a table: CPU in seconds per million records and records a second, this tree's and the other's
    (medians), and their ratios."""
    end_when_told()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of mq")
    parser.add_argument("--rounds", type=ratio_rounds, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=RUN_S, help="of a run of those workloads that are timed")
    parser.add_argument("--only", default="", help="parts of the names of workloads, with '; ' between them")
    parser.add_argument("--node", action="store_true", help="this checkout's server is a node of a cluster")
    parser.add_argument("--own", action="store_true", help="the process's CPU time alone: others use the kernel's too")
    parser.add_argument("--acks", choices=("flushed", "written"), default="flushed", help="of both servers")
    parser.add_argument("--dir", type=Path, help="where the servers' data lies; on a disk, not in memory")
    options = parser.parse_args()
    client = WrkClient.find()
    if client is None:
        sys.exit("wrk is missing: apt-get install wrk")
    chosen = {
        name: work
        for name, work in workloads(client).items()
        if any(part in name for part in options.only.split("; ")) and not (options.node and name.startswith(KAFKA))
    }
    with tempfile.TemporaryDirectory(prefix="mq-trees-", dir=options.dir) as directory, ExitStack() as stack:
        trees = []
        for name, tree in (("this", Path.cwd()), ("other", options.other)):
            data, port = Path(directory) / name, 0
            if options.node and name == "this":
                etcd = etcd_running(stack, Path(directory))
                running = node_running(stack, Path(directory), name, etcd.url)
            else:
                port = free_port()
                own = ("--kafka-port", str(port), "--acks", options.acks)
                running = stack.enter_context(running_server(data, *own, tree=tree.absolute()))
            trees.append(Tree(name, running, port, data))
        print(
            "| work | this, CPU s per million records | other | this / other | this, records/s | other | this / other |"
        )
        print("|---|---:|---:|---|---:|---:|---|", flush=True)
        uvloop.run(measured(trees, chosen, options.rounds, options.seconds, own=options.own))


if __name__ == "__main__":
    main()

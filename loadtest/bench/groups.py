"""`python -m loadtest.bench.groups`: how fast consumer groups are; `groups.json`, `groups.md`.

queue mode   receive and ack in batches of 32, durably, by many consumers at once: by the coordinator itself over a real
             store, over HTTP, and over WebSockets. Beside each, in the same run, what limits it: durable appends of
             the events' size, one after the other; requests of a bare aiohttp server, as many as were needed;
             frames of a bare aiohttp socket that sends back what it gets, two a batch
rebalance    200 members, 1,000 partitions: one comes, and all release what is to move; one leaves; all come at once
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from gateway.brokers.local import LocalBroker
from gateway.groups.coordinator.service import Coordinator
from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.membership import Membership
from gateway.groups.machines.strategies.base import StrategyContext
from gateway.groups.machines.strategies.registry import StrategyRegistry
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import Receive, receipts_of
from gateway.routing.base import TopicView
from gateway.routing.table import RouteTable
from gateway.routing.tail_watcher import TailWatcher
from gateway.settings.limits import Limits
from loadtest.bench import parts as pages
from loadtest.bench.groups_wire import echoes, over_http, over_websocket
from loadtest.bench.parts import ALIGNMENT, HEADINGS, Goal, Part, Row, cells, rows_of
from loadtest.bench.payloads import JSON_TYPE, json_value
from loadtest.bench.raw_client import RawClient
from loadtest.bench.request import Request
from loadtest.bench.scenarios import bare_server
from loadtest.kernel_cpu import CpuMeter, idle_kernel_cpu_share
from loadtest.process import Running, end_when_told, running_server
from store import Store, record_batch
from store.clock import SystemClock
from store.config import StoreConfig
from store.files import OsFiles
from store.limits import MiB
from store.record_batch import Record
from store.topics import Topic
from store.types import Acks, Append, Appended, QueueKey

BATCH = 32
VALUE_BYTES = 100
ECHOES = 20_000
ECHO_BYTES = 6_000
"""About the mean of our frames: a batch of messages, the acks of it, and their results."""
GOAL = 100_000
"""Records a second in queue mode."""

MEMBERS, PARTITIONS = 200, 1_000
REBALANCE_GOAL_S = 1.0
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
TOPIC = "orders"


class _NoTimer:
    """Nothing is nacked here."""

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        raise AssertionError("a record was given back in a run that gives none back")


class Bench:
    """A store and a coordinator in a directory of their own."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.routes = RouteTable()

    def _place(self, topic: TopicView) -> None:
        self.routes.put(topic, self.broker)

    async def create_own_topic(self, name: str, partitions: int) -> TopicView:
        return await self.broker.create_topic(name, partitions, is_own=True)

    async def open(self) -> None:
        clock, files = SystemClock(), OsFiles()
        self.store = await Store.open(StoreConfig(root=self.root, extent_bytes=64 * MiB), files=files, clock=clock)
        self.broker = LocalBroker(
            self.store, _NoTimer(), name="b", on_topic=self._place, on_deleted=self.routes.remove
        )  # fmt: skip
        self.groups = Coordinator(
            directory=self.root,
            files=files,
            broker=self.broker,
            routes=self.routes,
            tail_watcher=TailWatcher(self.routes),
            own_topics=self,
            clock=clock,
            monotonic_ms=lambda: time.monotonic_ns() // 1_000_000,
            draining=asyncio.Event(),
            limits=Limits(),
        )
        await self.groups.start()
        self.running = asyncio.create_task(self.groups.run())

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.groups.close()
        await self.store.close()

    async def fill(self, topic: Topic, count: int) -> None:
        per_batch = 1000
        for first in range(0, count, per_batch):
            records = [Record(None, b"x" * VALUE_BYTES, 0)] * min(per_batch, count - first)
            queue = QueueKey(topic.topic_id, first // per_batch % topic.partitions)
            append = Append(queue=queue, batch=record_batch.encode(records), record_count=len(records))
            await self.store.append([append], acks=Acks.WRITTEN)

    async def queue_mode(self, group: str, topic: str, count: int, consumers: int) -> float:
        """Records a second, received and acked by some consumers at once."""
        left = count

        async def consume() -> None:
            nonlocal left
            request = Receive(topics=(topic,), max_messages=BATCH, wait_ms=100)
            while left > 0:
                receipts = receipts_of((await self.groups.receive(group, request)).runs)
                results = await self.groups.ack(group, receipts)
                assert all(result.ok for result in results)
                left -= len(receipts)

        begin = time.perf_counter()
        await asyncio.gather(*(consume() for _ in range(consumers)))
        return count / (time.perf_counter() - begin)

    async def small_appends(self, queue: QueueKey, seconds: float = 1.0) -> float:
        """Durable appends a second, one after the other."""
        batch = bytes(record_batch.encode([Record(None, b"x" * 1000, 0)]))
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            await self.store.append([Append(queue=queue, batch=batch, record_count=1)], acks=Acks.FLUSHED)
            count += 1
        return count / seconds


def rebalance(members: int, partitions: int) -> dict[str, float]:
    """Seconds on one core to decide and apply: a member coming, with all releases; one leaving; all coming in turn."""
    membership = Membership("g", GroupConfig(), StrategyRegistry().make("sticky", StrategyContext()))
    topics: Sequence[TopicView] = [Topic(16, TOPIC, partitions)]
    wish = Subscription(frozenset([TOPIC]))
    took: dict[str, float] = {}
    began_s = time.process_time()
    for number in range(members):
        at_s = time.process_time()
        events = membership.decide_join(f"m{number:04d}", wish, topics)
        for event in events:
            membership.apply(event, 0)
        for other in membership.members():  # every member gives up at once what is to move
            share = membership.share(other.member_id)
            if share.revoking:
                for released in membership.decide_release(other.member_id, share.generation, share.revoking, topics):
                    membership.apply(released, 0)
        took["one member comes, all release"] = time.process_time() - at_s
    took["all come, one by one"] = time.process_time() - began_s
    at_s = time.process_time()
    for event in membership.decide_leave(membership.members()[0].member_id, membership.generation, topics):
        membership.apply(event, 0)
    took["one member leaves"] = time.process_time() - at_s
    owned = sum(len(membership.share(member.member_id).assigned) for member in membership.members())
    assert owned == partitions
    return took


async def by_coordinator(root: Path, asked: argparse.Namespace, idle_share: float) -> Row:
    """Without a wire. CPU is that of this process, client included."""
    bench = Bench(root)
    await bench.open()
    topic = await bench.broker.create_topic(TOPIC, asked.partitions)
    other = await bench.broker.create_topic("other", 1)
    await bench.fill(topic, asked.records)
    rates, appends, cpus = [], [], []
    for number in range(asked.rounds):
        appends.append(await bench.small_appends(QueueKey(other.topic_id, 0)))
        meter = CpuMeter(time.process_time, idle_share)
        rates.append(await bench.queue_mode(f"g{number}", TOPIC, asked.records, asked.consumers))
        cpus.append(meter.taken_s())
    await bench.close()
    note = f"between {median(appends):,.0f} durable appends/s, one after the other; CPU: client and server"
    return _row("the coordinator", asked, rates, [], cpus, note)


async def over_wires(root: Path, asked: argparse.Namespace, idle_share: float) -> list[Row]:
    """A real server, and a bare one for as many requests as HTTP needs: two for a batch."""
    with running_server(root / "mq") as ours, bare_server(root) as bare:
        await _fill(ours, asked)
        rates: dict[str, list[float]] = {"HTTP": [], "WebSocket": []}
        cpus: dict[str, list[tuple[float, float]]] = {"HTTP": [], "WebSocket": []}
        bare_rates, echo_rates = [], []
        request = Request("POST", "/topics/t", {"Content-Type": "application/json+json"}, b'{"receipts": []}')
        for number in range(asked.rounds):
            load = await RawClient().drive(bare, request, connections=asked.consumers, duration_s=2.0)
            bare_rates.append(load.request_count / load.duration_s * BATCH / 2)
            frames = await echoes(bare, ECHOES, asked.consumers, ECHO_BYTES)
            echo_rates.append(frames * BATCH / 2)
            for wire, consume in (("HTTP", over_http), ("WebSocket", over_websocket)):
                meter = CpuMeter(ours.cpu_s, idle_share)
                rate = await consume(ours.url, f"{wire}{number}", TOPIC, asked.records, asked.consumers, BATCH)
                rates[wire].append(rate)
                cpus[wire].append(meter.taken_s())
    return [
        _row("HTTP", asked, rates["HTTP"], bare_rates, cpus["HTTP"], "the limit: bare aiohttp, 2 requests a batch"),
        _row(
            "WebSocket",
            asked,
            rates["WebSocket"],
            echo_rates,
            cpus["WebSocket"],
            f"the limit: bare aiohttp socket, 2 echoes of {ECHO_BYTES:,} bytes a batch",
        ),
    ]


def _row(
    where: str,
    asked: argparse.Namespace,
    rates: Sequence[float],
    limits: Sequence[float],
    cpus_s: Sequence[tuple[float, float]],
    note: str,
) -> Row:
    work = f"receive and ack, batches of {BATCH}, {where}"
    cpu_us, kernel_us = ([spent[one] / asked.records * 1e6 for spent in cpus_s] for one in (0, 1))
    return Row(work, "records/s", rates, limits, Goal(at_least=GOAL), cpu_us, kernel_us, note)


async def _fill(ours: Running, asked: argparse.Namespace) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.put(f"{ours.url}/mq/v1/topics/{TOPIC}", json={"partitions": asked.partitions}) as answer:
            answer.raise_for_status()
        for number, first in enumerate(range(0, asked.records, 1000)):
            partition = number % asked.partitions
            records = [
                {"partition": partition, "value": json_value(one)}
                for one in range(first, min(first + 1000, asked.records))
            ]
            async with http.post(
                f"{ours.url}/topics/{TOPIC}", json={"records": records}, headers={"Content-Type": JSON_TYPE}
            ) as answer:
                answer.raise_for_status()


async def measure(root: Path, asked: argparse.Namespace, idle_share: float) -> list[Row]:
    """All of it."""
    rows = [
        await by_coordinator(root / "coordinator", asked, idle_share),
        *await over_wires(root, asked, idle_share),
    ]
    took_ms: dict[str, list[float]] = {}
    for _ in range(asked.rounds):
        for name, took_s in rebalance(MEMBERS, PARTITIONS).items():
            took_ms.setdefault(name, []).append(took_s * 1e3)
    for name, values in took_ms.items():
        goal = Goal(at_most=REBALANCE_GOAL_S * 1e3 * (MEMBERS if name.startswith("all") else 1))
        work = f"rebalance of {MEMBERS} members, {PARTITIONS:,} partitions: {name}"
        rows.append(Row(work, "ms", values, goal=goal, note="CPU time of one core, all of it"))
    return rows


def as_markdown(parts: Mapping[str, Part]) -> str:
    """One page: the table, then the conditions."""
    lines = [
        "# How fast consumer groups are",
        "",
        "Written by `make bench-groups`; every run is in `groups.json`. Acks are durable: answered after `fdatasync`.",
        "Medians of rounds, in which ours and the limit take turns. CPU, per record: of the server's process. Kernel",
        "threads: CPU time per record that they took machine-wide meanwhile, less what they take while nothing runs.",
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


def main() -> None:
    """Measure, print, and write the results; exit code 0 also when a goal was missed: it is a report."""
    end_when_told()
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.groups", description="How fast groups are.")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where servers keep their files; a disk")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--consumers", type=int, default=16)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    asked = parser.parse_args()
    idle_share = idle_kernel_cpu_share()
    with tempfile.TemporaryDirectory(prefix="mq-bench-groups-", dir=asked.dir) as directory:
        settings = {name: getattr(asked, name) for name in ("records", "consumers", "partitions", "rounds")}
        conditions, others = pages.conditions(Path(directory), **settings), pages.OtherPrograms()
        rows = uvloop.run(measure(Path(directory), asked, idle_share))  # as the server does
        conditions["other_programs"] = others.said()
    pages.write(asked.out, "groups", ["groups"], {"groups": Part(conditions, pages.as_dicts(rows))}, as_markdown)
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row))
    Console(highlight=False, width=160).print(table)


if __name__ == "__main__":
    main()

"""`python -m loadtest.bench.hop`: what a broker on another node costs beside one's own, and how long a move stops a
partition; `hop.json`, `hop.md`.

    hop    the same appends to a broker and to the same broker as a peer over TCP, in turn, the first of a
           round alternating. Client and server of the hop run in this process, so the CPU time is that of both nodes:
           what a record costs more is the hop. The store writes to a real disk
    move   a partition moves between two stores, with more and more ids in the window; the pause is from the call that
           seals the old queue to the end of the commit, with metadata in memory: a change of real metadata comes on top
    etcd   (with --partitions) a real etcd with the records of so many partitions: what it takes of memory and disk, and
           what a compare-and-set and the list that a node reads at its start take

CPU time is of the whole process, the threads of the stores included. Rates depend on the disk and say nothing here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import orjson
import uvloop
from aiohttp import web

from gateway.brokers.base import Broker, NodeBroker
from gateway.brokers.local import LocalBroker
from gateway.cluster.etcd import EtcdConfig, EtcdMetadata
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.metadata import ABSENT, CAS_KEYS_MAX, MetadataError
from gateway.cluster.mover import PARTITIONS, Mover, key_of
from gateway.cluster.peer import PeerBroker
from gateway.cluster.peer_auth import Secret
from gateway.cluster.record import PartitionRecord, SegmentRecord, encode
from gateway.surfaces.peer.server import PeerService
from loadtest.bench.machine import commit, facts, versions
from loadtest.process import Running
from loadtest.stats import mean_ratio
from store import Store, record_batch
from store.clock import SystemClock
from store.config import StoreConfig
from store.record_batch import Record
from store.types import Acks, Append, Appended, ExportedIds, Identity, QueueKey

VALUE = b"x" * 100
ROUNDS = 12
MOVES = 11
IDS = (0, 10_000, 100_000)
IDS_PER_BATCH = 500


class Work(NamedTuple):
    """Appends of so many records each, by so many callers at once."""

    name: str
    records: int
    callers: int
    appends: int  # of each caller, in a run


WORKS = (
    Work("1 record", 1, 32, 60),
    Work("100 records", 100, 8, 40),
    Work("1,000 records", 1000, 4, 40),
)


class Row(NamedTuple):
    """Microseconds of CPU a record: at one's own broker, at a peer; the mean of the rounds' ratios with its bounds."""

    work: str
    own_us: float
    peer_us: float
    ratio: float
    low: float
    high: float


class Moved(NamedTuple):
    """A move with ids in the window: pauses in ms, and what the whole move takes of the processor."""

    ids: int
    p50_ms: float
    max_ms: float
    cpu_ms: float


class Etcd(NamedTuple):
    """An etcd that holds the records of so many partitions."""

    partitions: int
    record_bytes: int
    rss_mb: int
    disk_mb: int
    cas_p50_ms: float
    cas_p99_ms: float
    list_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--moves", type=int, default=MOVES)
    parser.add_argument("--partitions", type=int, default=0, help="measure etcd with so many")
    parser.add_argument("--out", type=Path, help="where hop.json and hop.md are written; by default nowhere")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        hops, moves = uvloop.run(_measure(Path(directory), options.rounds, options.moves))
        etcd = uvloop.run(_etcd(Path(directory), options.partitions)) if options.partitions else None
        conditions = {**facts(Path(directory)), **versions(), "commit": commit(), "rounds": options.rounds}
    page = "\n".join(_page(hops, moves, etcd, conditions)) + "\n"
    sys.stdout.write(page)
    if options.out is not None:
        found = {
            "hop": [row._asdict() for row in hops],
            "move": [row._asdict() for row in moves],
            "etcd": None if etcd is None else etcd._asdict(),
        }
        (options.out / "hop.json").write_bytes(
            orjson.dumps(found | {"conditions": conditions}, option=orjson.OPT_INDENT_2)
        )
        (options.out / "hop.md").write_text(page)


async def _measure(root: Path, rounds: int, moves: int) -> tuple[list[Row], list[Moved]]:
    async with AsyncExitStack() as parts:
        clock, secret = SystemClock(), Secret(os.urandom(32))
        store, own = await _broker(parts, root / "n1", "n1")
        peer = await _as_peer(parts, store, own, secret)
        topic, _ = await store.create_topic("hop", 1)
        queue = QueueKey(topic.topic_id, 0)
        hops = []
        for work in WORKS:
            own_us: list[float] = []
            peer_us: list[float] = []
            for number in range(rounds + 1):
                in_turn: list[tuple[int, Broker]] = [(0, own), (1, peer)]
                cost = {at: await _cost_us(broker, queue, work) for at, broker in in_turn[:: 1 - 2 * (number % 2)]}
                if number:  # the first one warms up
                    own_us.append(cost[0])
                    peer_us.append(cost[1])
            hops.append(Row(work.name, median(own_us), median(peer_us), *mean_ratio(peer_us, own_us)))
        other_store, other = await _broker(parts, root / "n2", "n2")
        await other_store.create_topic("hop", 1)  # so that later ones have the same id on both
        far = await _as_peer(parts, other_store, other, secret)
        moved = []
        for count in IDS:
            topic, _ = await store.create_topic(f"move-{count}", 1)
            there, _ = await other_store.create_topic(f"move-{count}", 1)
            assert topic.topic_id == there.topic_id
            await _send_with_ids(own, QueueKey(topic.topic_id, 0), count)
            moved.append(await _move(topic.topic_id, count, own, far, clock, moves))
        return hops, moved


async def _broker(parts: AsyncExitStack, root: Path, name: str) -> tuple[Store, LocalBroker]:
    config = replace(StoreConfig(root=root), dedup_ids_max=10_000_000)
    store = await Store.open(config)
    parts.push_async_callback(store.close)
    return store, LocalBroker(store, _NoTimer(), name=name, on_topic=lambda _: None, on_deleted=lambda _: None)


class _NoTimer:
    async def schedule(self, append: Append, *, acks: Acks, keys: object = ()) -> Appended:
        raise AssertionError("no record of this benchmark is delayed")


async def _as_peer(parts: AsyncExitStack, store: Store, broker: LocalBroker, secret: Secret) -> PeerBroker:
    service = PeerService(broker, secret, SystemClock(), queues_of=store.queues_of)
    runner = web.AppRunner(service.application())
    await runner.setup()
    parts.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://{site.name.removeprefix('http://')}"
    return await parts.enter_async_context(PeerBroker(broker.name, address, secret, SystemClock()))


async def _cost_us(broker: Broker, queue: QueueKey, work: Work) -> float:
    batch = record_batch.encode([Record(None, VALUE, 0)] * work.records)

    async def send() -> None:
        for _ in range(work.appends):
            append = Append(queue=queue, batch=bytes(batch), record_count=work.records)
            await broker.append([append], acks=Acks.WRITTEN)

    begun_s = time.process_time()
    async with asyncio.TaskGroup() as callers:
        for _ in range(work.callers):
            callers.create_task(send())
    return (time.process_time() - begun_s) * 1e6 / (work.records * work.callers * work.appends)


async def _send_with_ids(broker: Broker, queue: QueueKey, count: int) -> None:
    for first in range(0, count, IDS_PER_BATCH):
        ids = [b"%05d%011d" % (queue.topic_id, number) for number in range(first, first + IDS_PER_BATCH)]
        batch = record_batch.encode([Record(None, VALUE, 0)] * len(ids))
        append = Append(queue=queue, batch=batch, record_count=len(ids), identity=Identity(message_ids=ids))
        await broker.append([append], acks=Acks.WRITTEN)


class _Watched:
    """A broker of which it is noted when a queue was sealed."""

    def __init__(self, broker: NodeBroker) -> None:
        self._broker = broker
        self.sealed_s = 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    async def leave_queue(self, queue: QueueKey, **telling: Any) -> tuple[int, ExportedIds]:
        self.sealed_s = time.perf_counter()
        return await self._broker.leave_queue(queue, **telling)


async def _move(topic_id: int, ids: int, own: NodeBroker, far: NodeBroker, clock: SystemClock, moves: int) -> Moved:
    watched = {"n1": _Watched(own), "n2": _Watched(far)}
    mover = Mover(MemoryMetadata(), watched.__getitem__, clock, home=lambda *_: "n1")  # type: ignore[arg-type]
    pauses, costs = [], []
    for number in range(moves):
        begun_s = time.process_time()
        source, target = ("n1", "n2") if number % 2 == 0 else ("n2", "n1")
        await mover.move(topic_id, 0, target)
        pauses.append((time.perf_counter() - watched[source].sealed_s) * 1000)
        costs.append((time.process_time() - begun_s) * 1000)
    return Moved(ids, median(pauses), max(pauses), costs[0])


async def _etcd(root: Path, partitions: int) -> Etcd:
    ports = [free_port(), free_port()]
    client, peer = (f"http://127.0.0.1:{port}" for port in ports)
    command = [
        "etcd", f"--data-dir={root / 'etcd'}", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        "--log-level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        async with EtcdMetadata(EtcdConfig(endpoints=[client])) as metadata:
            await _answers(metadata)
            record = encode(_record())
            keys = [key_of(16 + number // 1000, number % 1000) for number in range(partitions)]
            for first in range(0, partitions, CAS_KEYS_MAX):
                some = keys[first : first + CAS_KEYS_MAX]
                await metadata.compare_and_set(dict.fromkeys(some, ABSENT), dict.fromkeys(some, record))
            took_ms = []
            for key in keys[:: max(1, partitions // 500)]:
                value = await metadata.get(key)
                assert value is not None
                begun_s = time.perf_counter()
                await metadata.compare_and_set({key: value.revision}, {key: record})
                took_ms.append((time.perf_counter() - begun_s) * 1000)
            begun_s = time.perf_counter()
            assert len((await metadata.list(PARTITIONS)).values) == partitions
            list_s = time.perf_counter() - begun_s
        disk = sum(path.stat().st_size for path in (root / "etcd").rglob("*") if path.is_file())
        rss = Running(client, process.pid).rss_bytes()
    finally:
        process.kill()
        process.wait()
    took_ms.sort()
    p50, p99 = took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100]
    return Etcd(partitions, len(record), rss // 10**6, disk // 10**6, p50, p99, list_s)


def _record() -> PartitionRecord:
    """Of a partition that has moved once, and whose first records have not expired."""
    now_ms = 1_800_000_000_000
    sealed = SegmentRecord(start=0, broker="node-1", queue=(16, 0), end=1_000_000, from_ms=now_ms, to_ms=now_ms)
    opened = SegmentRecord(start=1_000_000, broker="node-2", queue=(16, 1024), epoch=1, from_ms=now_ms)
    return PartitionRecord(epoch=1, owner="node-2", segments=(sealed, opened))


async def _answers(metadata: EtcdMetadata) -> None:
    for _ in range(200):
        try:
            await metadata.get("nothing")
        except MetadataError:
            await asyncio.sleep(0.05)
        else:
            return
    raise RuntimeError("etcd does not answer")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _page(hops: list[Row], moves: list[Moved], etcd: Etcd | None, conditions: dict[str, object]) -> Iterator[str]:
    yield "# The cost of a hop, and of a move"
    yield ""
    yield "CPU of both nodes for an append of 100-byte records, by `python -m loadtest.bench.hop`. Batches of"
    yield "1,000 are what clients that batch send; single records wait together and share a request."
    yield ""
    yield "| an append of | own broker, µs/record | peer, µs/record | ratio | 95 % |"
    yield "|---|---|---|---|---|"
    for row in hops:
        interval = f"{row.low:.2f} to {row.high:.2f}"
        yield f"| {row.work} | {row.own_us:.2f} | {row.peer_us:.2f} | {row.ratio:.2f} | {interval} |"
    yield ""
    yield "| ids in the window | pause of the move, ms p50 | max | CPU of the first move, ms |"
    yield "|---|---|---|---|"
    for moved in moves:
        yield f"| {moved.ids:,} | {moved.p50_ms:.1f} | {moved.max_ms:.1f} | {moved.cpu_ms:.0f} |"
    if etcd is not None:
        yield ""
        yield "| partitions that moved | a record | memory of etcd | its disk | change p50 | p99 | list at a start |"
        yield "|---|---|---|---|---|---|---|"
        yield (
            f"| {etcd.partitions:,} | {etcd.record_bytes} bytes | {etcd.rss_mb} MB | {etcd.disk_mb} MB "
            f"| {etcd.cas_p50_ms:.1f} ms | {etcd.cas_p99_ms:.1f} ms | {etcd.list_s:.1f} s |"
        )
    yield ""
    yield "Conditions: " + ", ".join(f"{name} {value}" for name, value in conditions.items()) + "."


if __name__ == "__main__":
    main()

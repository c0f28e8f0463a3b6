"""Three nodes as processes and a real etcd: partitions move under load, nodes are killed and frozen, etcd is restarted.
What senders and readers saw is judged by tests/history.py.

Covers gateway.cluster and gateway.surfaces.peer. MQ_CLUSTER_ROUNDS sets how many rounds the long form has.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from gateway.brokers.base import Broker
from gateway.cluster.follower import ChainFollower
from gateway.cluster.metadata import MetadataError
from gateway.cluster.mover import MoveConflict, Mover, UnknownBroker
from gateway.cluster.peer import PeerBroker
from gateway.cluster.record import PartitionState
from gateway.routing.reading import PartitionReader
from gateway.routing.table import RouteTable
from store import record_batch
from store.clock import SystemClock
from store.errors import Overloaded, StoreError
from store.record_batch import Record
from store.topics import FIRST_USER_TOPIC_ID, Topic
from store.types import Acks, Append
from tests.e2e.server import DIES_WITH_US, REPOSITORY
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_metadata, free_port
from tests.gateway.cluster.node_process import SECRET, TOPIC
from tests.history import Outcome, Recorder, Seen, check
from tests.waiting import PATIENCE_S, until

NAMES = ("n1", "n2", "n3")
PARTITIONS = 2
LONG_ROUNDS = int(os.environ.get("MQ_CLUSTER_ROUNDS", "100"))
SENDERS = 4


class NodeProcess:
    """One node; `start` and `kill` as often as wanted, on the same port and data."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.address = f"http://127.0.0.1:{(port := free_port())}"
        self._arguments = (str(directory / name), name, str(port), str(PARTITIONS))
        self._log = directory / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *DIES_WITH_US, sys.executable, "-m", "tests.gateway.cluster.node_process", *self._arguments,
                cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        assert line == b"ready\n", self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._process is not None
        await self._process.wait()


class RealCluster:
    """Nodes, and a gateway without a store (the test's own process) that sends, reads and moves."""

    def __init__(
        self, nodes: dict[str, NodeProcess], brokers: dict[str, PeerBroker], mover: Mover, routes: RouteTable
    ) -> None:
        self.nodes, self.brokers, self.mover, self.routes = nodes, brokers, mover, routes
        self.history = Recorder()
        self.is_over = False
        self.moves = 0

    async def send(self, client: str, partition: int) -> None:
        """One record after the other, until it is over."""
        while not self.is_over:
            segment = self.routes.writable(TOPIC, partition)
            value = self.history.value(client)
            batch = record_batch.encode([Record(None, value.encode(), 0)])
            send = self.history.send(value, partition, _now_ms())
            try:
                [appended] = await segment.broker.append(
                    [Append(queue=segment.queue, batch=batch, record_count=1)], acks=Acks.FLUSHED
                )
            except Overloaded:  # it moves, or its node is away: nothing was stored
                send.fail(_now_ms())
                await asyncio.sleep(0.002)
            except StoreError:  # nobody knows
                await asyncio.sleep(0.002)
            else:
                send.ok(_now_ms(), segment.to_logical(appended.base_offset))

    async def read(self, partition: int) -> None:
        """Follow the partition, until it is over."""
        reader, offset = PartitionReader(self.routes), 0
        while not self.is_over:
            try:
                read = await reader.read(TOPIC, partition, offset, max_bytes=4000)
            except StoreError:
                await asyncio.sleep(0.01)
                continue
            if not read.entries:
                await asyncio.sleep(0.002)
            self.history.read(partition, [seen for seen in _seen(read.entries) if seen.offset >= offset])
            offset = read.next_offset

    async def final_read(self, partition: int) -> None:
        reader, offset, seen = PartitionReader(self.routes), 0, []
        while offset < (await reader.bounds(TOPIC, partition)).max_offset:
            read = await reader.read(TOPIC, partition, offset, max_bytes=100_000)
            seen += _seen(read.entries)
            offset = read.next_offset
        self.history.final_read(partition, seen)

    async def move(self, partition: int, to: str) -> bool:
        """Whether it was done."""
        try:
            await self.mover.move(FIRST_USER_TOPIC_ID, partition, to)
        except (MoveConflict, MetadataError, StoreError):
            return False
        self.moves += 1
        return True

    async def settle(self) -> None:
        """Finish what was left: every partition takes records again."""
        for partition in range(PARTITIONS):
            while not await self.move(partition, "n1"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            known = await self.mover.known(FIRST_USER_TOPIC_ID, partition)
            assert known.record.state is PartitionState.NORMAL
            start = known.record.open_segment.start
            await until(lambda p=partition, s=start: self.routes.writable(TOPIC, p).logical_start == s, pause_s=0.005)


@asynccontextmanager
async def real_cluster(directory: Path, etcd: EtcdServer) -> AsyncIterator[RealCluster]:
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(etcd_metadata(etcd))
        clock = SystemClock()
        nodes = {name: NodeProcess(directory, name) for name in NAMES}
        await asyncio.gather(*[node.start() for node in nodes.values()])
        for node in nodes.values():
            stack.push_async_callback(node.kill)
        brokers = {
            name: await stack.enter_async_context(PeerBroker(name, node.address, SECRET, clock))
            for name, node in nodes.items()
        }

        def broker_named(name: str) -> Broker:
            if name not in brokers:
                raise UnknownBroker(name)
            return brokers[name]

        routes = RouteTable()
        routes.put(Topic(FIRST_USER_TOPIC_ID, TOPIC, PARTITIONS), brokers["n1"])
        following = asyncio.create_task(ChainFollower(metadata, routes, broker_named).run())
        mover = Mover(metadata, broker_named, clock, home=lambda topic_id, partition: "n1")
        made = RealCluster(nodes, brokers, mover, routes)
        try:
            yield made
        finally:
            made.is_over = True
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def run(made: RealCluster, etcd: EtcdServer, random: Random, faults: list[str]) -> None:
    """Load, and one fault after the other with moves before, during and behind it; then the judgement."""
    work = [asyncio.create_task(made.send(f"s{number}", number % PARTITIONS)) for number in range(SENDERS)] + [
        asyncio.create_task(made.read(partition)) for partition in range(PARTITIONS)
    ]
    for fault in faults:
        moves = [asyncio.create_task(made.move(partition, random.choice(NAMES))) for partition in range(PARTITIONS)]
        await asyncio.sleep(random.random() * 0.02)  # the fault comes in the middle of one
        node = made.nodes[random.choice(NAMES)]
        if fault == "kill":
            await node.kill()
            await asyncio.sleep(random.random() * 0.1)
            await node.start()
        elif fault == "freeze":
            node.signal(signal.SIGSTOP)
            await asyncio.sleep(0.3)
            node.signal(signal.SIGCONT)
        elif fault == "etcd":
            etcd.stop()
            etcd.start()
        elif fault == "leave":
            random.choice(moves).cancel()
        await asyncio.wait(moves)
        await made.settle()
        count = made.history.count(Outcome.OK)
        await until(lambda count=count: made.history.count(Outcome.OK) > count + 20, pause_s=0.005)  # type: ignore[misc]
    made.is_over = True
    done, _ = await asyncio.wait(work, timeout=PATIENCE_S)
    assert len(done) == len(work)
    for task in work:
        task.result()
    for partition in range(PARTITIONS):
        await made.final_read(partition)
    assert check(made.history) == []
    assert made.moves >= 2 * len(faults)


@pytest.mark.matrix
async def test_three_nodes_lose_nothing_while_partitions_move_and_one_is_killed(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), real_cluster(tmp_path, etcd) as made:
        await run(made, etcd, Random(24), ["leave", "kill", "etcd"])


@pytest.mark.long
async def test_three_nodes_lose_nothing_in_many_rounds(tmp_path: Path, etcd: EtcdServer) -> None:
    random = Random(os.environ.get("MQ_CLUSTER_SEED", "24"))
    async with real_cluster(tmp_path, etcd) as made:
        faults = random.choices(["kill", "freeze", "etcd", "leave", "none"], [4, 2, 1, 2, 1], k=LONG_ROUNDS)
        await run(made, etcd, random, faults)


def _seen(entries: object) -> list[Seen]:
    return [
        Seen(record.offset, (record.value or b"").decode())
        for entry in entries  # type: ignore[attr-defined]
        for record in record_batch.decode(entry.batch)
    ]


def _now_ms() -> float:
    return time.monotonic() * 1000

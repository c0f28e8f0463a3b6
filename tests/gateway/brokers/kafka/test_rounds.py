"""Three brokers of a real Apache Kafka (three replicas, two in sync), three nodes with a real etcd, and everything that
goes wrong with either, while partitions move to Kafka and back under load. What clients saw is judged by
tests/history.py.

    requests    what nodes send to a broker of Kafka is held, and arrives when they have given it up
    answers     what it answers is held
    leader      a broker of Kafka is killed, and started again
    frozen      one is stopped for longer than its session lasts
    alone       two are killed: no send to Kafka is acknowledged then, and nothing that was is lost
    full        a disk of one is full, and it ends
    node        a node of mq is killed, and started again
    zombie      one is stopped for longer than its session lasts, with connections to Kafka that stay open

Kafka forgets producers of which it has heard nothing for some seconds, so no fence of its own holds a zombie off.
MQ_KAFKA_ROUNDS sets how many rounds there are, MQ_KAFKA_SEED which.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

import aiohttp
import pytest

from gateway.cluster.members import SESSION_TTL_MS
from tests.gateway.brokers.kafka.servers import KafkaServers, kafka_servers
from tests.gateway.cluster.cutting import Direction, Relay
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_server, free_port
from tests.gateway.cluster.test_served import JSON, PARTITIONS, TOPIC, Nodes, loaded, served
from tests.history import Outcome
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.long

ROUNDS = int(os.environ.get("MQ_KAFKA_ROUNDS", "12"))
SEED = os.environ.get("MQ_KAFKA_SEED", "26")
JUDGED_EVERY = 10
KINDS = {"requests": 3, "answers": 3, "leader": 3, "frozen": 2, "alone": 2, "full": 1, "node": 3, "zombie": 2}
BROKER_SESSION_S = 3.0
FORGET_S = 4.0
DISK_BYTES = 256 * 1024 * 1024
SETTINGS = {
    "broker.session.timeout.ms": str(round(1000 * BROKER_SESSION_S)),
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "producer.id.expiration.ms": str(round(1000 * FORGET_S)),
    "producer.id.expiration.check.interval.ms": "500",
    "log.index.size.max.bytes": "1048576",
    "log.segment.bytes": "16777216",
}
HELD_LOOKS = 30
PROBE = "probe"
"""A topic that stays on Kafka."""


@contextmanager
def small_disk(directory: Path) -> Iterator[Path | None]:
    """A file system of its own, which can be filled; None, with the reason on stdout, where none can be had."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "mq-full", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"no disk is filled: {done.stderr.strip()}")
        yield None
        return
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


class Rounds:
    """What is done to Kafka and to the nodes."""

    def __init__(
        self, kafka: KafkaServers, relays: Sequence[Relay], nodes: Nodes, disk: Path | None, random: Random
    ) -> None:
        self._kafka, self._relays, self._nodes, self._disk, self._random = kafka, relays, nodes, disk, random
        self.done: Counter[str] = Counter()
        self.recovered_s: list[float] = []
        self.refused_alone = 0

    async def one(self, kind: str) -> None:
        """A fault, and its end; then all partitions take records again."""
        print(f"{time.strftime('%H:%M:%S')} {kind}", flush=True)
        await getattr(self, kind)()
        begun_s = time.monotonic()
        await self._goes_on()
        self.recovered_s.append(time.monotonic() - begun_s)
        self.done[kind] += 1

    async def requests(self) -> None:
        await self._held(Direction.REQUESTS)

    async def answers(self) -> None:
        await self._held(Direction.ANSWERS)

    async def _held(self, direction: Direction) -> None:
        for relay in self._random.sample(list(self._relays), len(self._relays)):
            before = relay.held_count
            relay.cut(direction)
            probing = asyncio.create_task(self._probed())  # one of the brokers leads this
            for _ in range(HELD_LOOKS):
                if relay.held_count > before:
                    break
                await asyncio.sleep(0.1)
            await asyncio.sleep(self._random.uniform(1.0, 14.0) * (relay.held_count > before))  # nodes wait for 10 s
            relay.mend()
            await asyncio.gather(probing, return_exceptions=True)
            if relay.held_count > before:
                return
        raise AssertionError("nothing was sent to any broker")

    async def leader(self) -> None:
        broker = self._random.choice(self._kafka.brokers)
        broker.kill()
        await asyncio.sleep(self._random.uniform(0.0, 2 * BROKER_SESSION_S))
        await self._started(broker)

    async def frozen(self) -> None:
        broker = self._random.choice(self._kafka.brokers)
        broker.signal(signal.SIGSTOP)
        await asyncio.sleep(BROKER_SESSION_S + self._random.uniform(0.5, 4.0))
        broker.signal(signal.SIGCONT)

    async def alone(self) -> None:
        two = self._random.sample(list(self._kafka.brokers), 2)
        for broker in two:
            broker.kill()
        await self._refused()
        for _ in range(3):
            status, _ = await self._probed()
            assert status == 503, "acknowledged by one replica"
            self.refused_alone += 1
        for broker in two:
            broker.start()
        for broker in two:
            await asyncio.to_thread(broker.wait)

    async def full(self) -> None:
        broker = self._kafka.brokers[0]
        assert self._disk is not None
        filler = self._disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(65_536)):
                pass
        await asyncio.sleep(self._random.uniform(1.0, 5.0))
        if broker.is_running:  # it has had nothing to write
            broker.kill()
        filler.unlink()
        await self._started(broker)

    async def node(self) -> None:
        server = self._nodes.servers[self._nodes.any()]
        await server.kill()
        await asyncio.sleep(self._random.uniform(0.0, 2.0))
        await server.start()

    async def zombie(self) -> None:
        server = self._nodes.servers[self._nodes.any()]
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(SESSION_TTL_MS / 1000 + self._random.uniform(3.0, 6.0))
        server.signal(signal.SIGCONT)

    async def _started(self, broker: object) -> None:
        broker.start()  # type: ignore[attr-defined]
        await asyncio.to_thread(broker.wait)  # type: ignore[attr-defined]

    async def _probed(self) -> tuple[int, object]:
        path = f"/topics/{PROBE}/partitions/0"
        return await self._nodes.ask("n1", "POST", path, json={"records": [{"value": 1}]}, headers=JSON)

    async def _refused(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self._probed())[0] != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _goes_on(self) -> None:
        """Every partition takes records again."""
        history = self._nodes.history
        for partition in range(PARTITIONS):
            first = len(history.sends)
            await until(
                lambda partition=partition, first=first: any(  # type: ignore[misc]
                    send.outcome is Outcome.OK and send.partition == partition for send in history.sends[first:]
                ),
                pause_s=0.05,
            )


async def keep_moving(nodes: Nodes, random: Random) -> None:
    """Partitions go to Kafka, between nodes and back, until cancelled."""
    places = ["kafka1", "kafka1", "kafka1", "n1", "n2", "n3"]
    while True:
        await asyncio.sleep(random.uniform(0.3, 3.0))
        await nodes.move(random.randrange(PARTITIONS), random.choice(places))


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    (tmp_path / "etcd").mkdir()
    with etcd_server(tmp_path / "etcd") as server:
        yield server


async def test_nothing_is_lost_or_doubled_whatever_happens_to_kafka_and_to_nodes(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    random = Random(SEED)
    ports = {node: free_port() for node in (1, 2, 3)}
    async with AsyncExitStack() as stack:
        relays = [await stack.enter_async_context(Relay(f"kafka://127.0.0.1:{port}")) for port in ports.values()]
        addresses = {node: relay.url.removeprefix("kafka://") for node, relay in zip(ports, relays, strict=True)}
        disk = stack.enter_context(small_disk(tmp_path / "disk"))
        logs = {} if disk is None else {1: disk / "logs"}
        kafka = stack.enter_context(
            kafka_servers(
                tmp_path / "kafka", brokers=3, settings=SETTINGS, logs=logs, ports=ports, advertised=addresses
            )
        )
        (tmp_path / "nodes").mkdir()
        nodes = await stack.enter_async_context(
            served(tmp_path / "nodes", etcd, random, 3, kind=partial(OnKafka, kafka.endpoint))
        )
        await rounds(kafka, relays, nodes, disk, random)


class OnKafka(Nodes):
    """Nodes whose topics begin on Kafka."""

    def __init__(
        self, endpoint: str, directory: Path, etcd: EtcdServer, http: aiohttp.ClientSession, random: Random
    ) -> None:
        super().__init__(directory, etcd, http, random)
        self._settings |= {"MQ_CLUSTER_KAFKA": f"kafka1=kafka://{endpoint}", "MQ_CLUSTER_DEFAULT_BROKER": "kafka1"}

    async def up_count(self, name: str) -> int:
        """Nodes only."""
        return await super().up_count(name) - 1


async def rounds(kafka: KafkaServers, relays: Sequence[Relay], nodes: Nodes, disk: Path | None, random: Random) -> None:
    await nodes.done("n2", "PUT", f"/mq/v1/topics/{PROBE}", json={"partitions": 1})
    await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
    weights = {kind: weight for kind, weight in KINDS.items() if kind != "full" or disk is not None}
    kinds = [*weights, *random.choices([*weights], [*weights.values()], k=max(0, ROUNDS - len(weights)))][:ROUNDS]
    made = Rounds(kafka, relays, nodes, disk, random)
    for first in range(0, len(kinds), JUDGED_EVERY):
        nodes.is_over = False
        async with loaded(nodes):
            moving = asyncio.create_task(keep_moving(nodes, random))
            for kind in kinds[first : first + JUDGED_EVERY]:
                await made.one(kind)
            moving.cancel()
            await asyncio.wait([moving])
        counts = {outcome.value: nodes.history.count(outcome) for outcome in Outcome}
        recovered = sorted(made.recovered_s)
        print(
            f"{made.done.total()} rounds, 0 anomalies: {dict(made.done)}; sends {counts}; moves {nodes.moves};"
            f" refused with one replica {made.refused_alone};"
            f" recovered p50 {recovered[len(recovered) // 2]:.1f} s, max {recovered[-1]:.1f} s",
            flush=True,
        )

"""Consumer groups whose log is on a real Apache Kafka: three nodes, of which the owner of groups is stopped, killed
or frozen while consumers receive and acknowledge. What they were told holds on whichever node goes on.

Covers gateway.main.group_shards, gateway.cluster.shard_log and gateway.groups.coordinator.shards.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from gateway.cluster.members import SESSION_TTL_MS
from gateway.cluster.shard_log import shard_of
from loadtest.peers.servers import Server as Peer
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_metadata
from tests.gateway.cluster.test_served import Nodes
from tests.waiting import until

pytestmark = pytest.mark.matrix

TOPIC = "work"
GROUPS = [f"g{number}" for number in range(12)]
LEASE_MS = 600_000
RECORDS = 20_000
OWNERS = (("n2", False), ("n3", True), ("n2", True), ("n3", False), ("n2", True), ("n3", True))
"""Which node goes next, each of which owns some groups then, and whether it is killed."""

CLEAN_S, DEAD_S = SESSION_TTL_MS / 1000, 10.0
"""How long groups may be without an owner that answers; a clean stop waits for no session to end. It takes less than
1 s on a machine that does nothing else: what it took is printed."""


class Consumers(Nodes):
    """Consumers of several groups that all ask n1, which sends on to who has the group."""

    endpoint = ""
    kafka_prefix = ""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.handed_out: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.acked: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.kept: dict[str, str] = {}
        """A receipt of each group that is acknowledged at the end alone."""

        self.answered_s: dict[str, float] = {}
        self.longest_s: dict[str, float] = dict.fromkeys(GROUPS, 0.0)

    async def start(self, name: str, *, joined: bool = False, **more: str) -> None:
        address = f"kafka1=kafka://{self.endpoint}?replication=1&min_insync=1&prefix={self.kafka_prefix}"
        settings = {"MQ_CLUSTER_KAFKA": address, "MQ_CLUSTER_GROUPS_BROKER": "kafka1", "MQ_CLUSTER_BALANCE": "false"}
        await super().start(name, joined=joined, **settings, **more)

    async def verb(self, group: str, verb: str, sent: object) -> Any:
        """What the group answers; None: nothing certain."""
        try:
            status, answer = await self.ask("n1", "POST", f"/mq/v1/groups/{group}/messages:{verb}", json=sent)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        if status == 200:
            now_s = time.monotonic()
            before_s = self.answered_s.get(group, now_s)
            self.longest_s[group] = max(self.longest_s[group], now_s - before_s)
            self.answered_s[group] = now_s
            return answer
        assert status == 503, answer
        return None

    async def consume(self, group: str) -> None:
        """Receive and acknowledge until it is over. Nothing that was handed out to a client is handed out again: the
        leases outlast the test."""
        wanted = {"topics": [TOPIC], "start": "earliest", "max_messages": 5, "wait_ms": 0, "invisible_ms": LEASE_MS}
        while not self.is_over:
            if (answer := await self.verb(group, "receive", wanted)) is None:
                await asyncio.sleep(0.05)
                continue
            messages = answer["messages"]
            assert messages, "there are more records than are consumed"
            offsets = {message["offset"] for message in messages}
            assert not offsets & self.handed_out[group], "handed out again while its lease holds, or behind its ack"
            self.handed_out[group] |= offsets
            if group not in self.kept:
                self.kept[group] = messages.pop()["receipt"]
            receipts = [message["receipt"] for message in messages]
            while (done := await self.verb(group, "ack", {"receipts": receipts})) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert all("error_code" not in one for one in done.get("results", [])), done
            self.acked[group] |= {message["offset"] for message in messages}
            await asyncio.sleep(0.01)

    async def all_go_on(self) -> None:
        """Return when every group has acknowledged more."""
        before = {group: len(self.acked[group]) for group in GROUPS}
        await until(lambda: all(len(self.acked[group]) > before[group] for group in GROUPS), pause_s=0.02)

    def reset_times(self) -> None:
        """Measure from now on."""
        self.longest_s = dict.fromkeys(GROUPS, 0.0)


@asynccontextmanager
async def three_nodes(directory: Path, etcd: EtcdServer, kafka: Peer, prefix: str) -> AsyncIterator[Consumers]:
    """n2 begins the shards, and n1 has the records."""
    async with etcd_metadata(etcd), aiohttp.ClientSession() as http:
        (directory / "cert.pem").write_bytes((etcd._directory / "cert.pem").read_bytes())
        nodes = Consumers(directory, etcd, http, Random(1))
        nodes.endpoint, nodes.kafka_prefix = kafka.endpoint, prefix
        try:
            await nodes.start("n2")
            first = {"max_attempts": 5}
            while (await nodes.ask("n2", "PATCH", f"/mq/v1/groups/{GROUPS[0]}", json=first))[0] != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the shards are begun
            await nodes.start("n1")
            await nodes.start("n3")
            await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": 1})
            await nodes.done("n1", "POST", f"/mq/v1/topics/{TOPIC}/partitions/0/move", json={"to": "n1"})
            records = [{"value": number} for number in range(1000)]
            headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
            for _ in range(RECORDS // 1000):
                await nodes.done("n1", "POST", f"/topics/{TOPIC}", json={"records": records}, headers=headers)
            yield nodes
        finally:
            nodes.is_over = True
            await nodes.end()


async def test_groups_go_on_elsewhere_with_their_offsets_and_leases(
    tmp_path: Path, etcd: EtcdServer, kafka: Peer
) -> None:
    async with three_nodes(tmp_path, etcd, kafka, "groups.") as nodes:
        assert len({shard_of(group) for group in GROUPS}) > 5
        consumers = [asyncio.create_task(nodes.consume(group)) for group in GROUPS]
        await nodes.all_go_on()
        told = []
        for name, is_dead in OWNERS:
            server = nodes.servers[name]
            nodes.reset_times()
            if is_dead:
                await server.kill()
            else:
                assert await server.stop() == 0
            await nodes.all_go_on()
            longest_s = max(nodes.longest_s.values())
            told.append(f"{name} {'killed' if is_dead else 'stopped'}: {longest_s:.2f} s")
            await server.start()
            await asyncio.sleep(1)
            assert longest_s <= (DEAD_S if is_dead else CLEAN_S), told
        owner = nodes.servers["n2"]
        owner.signal(signal.SIGSTOP)  # it has requests in its hands, and knows of nothing
        await nodes.all_go_on()
        owner.signal(signal.SIGCONT)
        await nodes.all_go_on()
        nodes.is_over = True
        await asyncio.gather(*consumers)
        for group, receipt in nodes.kept.items():  # of a lease that has seen all these owners
            answer = await nodes.verb(group, "ack", {"receipts": [receipt]})
            assert answer is not None
            assert all("error_code" not in one for one in answer.get("results", [])), answer
            view = await nodes.done("n1", "GET", f"/mq/v1/groups/{group}")
            assert view["group"] == group
        print(f"\n{sum(map(len, nodes.acked.values()))} records acknowledged; without an answer at most: {told}")

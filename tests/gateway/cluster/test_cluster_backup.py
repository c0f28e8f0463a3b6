"""`mq cluster backup` of nodes under load, while partitions and groups move; all of them are destroyed, and restored.

What had been acknowledged before the backup began is there, once, at its offset (of what came later, some may be
missing, and some may not); groups go on where they were; delayed
records fire once; no offset is given twice. Covers gateway.main.cluster_backup, gateway.cluster.restoring,
timer.copying and gateway.cli.cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from gateway.cluster.move import TAKEN_OFFSETS
from tests.e2e.server import REPOSITORY
from tests.gateway.cluster.etcd_server import EtcdServer, free_port
from tests.gateway.cluster.test_served import JSON, PARTITIONS, SENDERS, TOPIC, Nodes, served
from tests.history import Outcome, Read, Seen, check
from tests.waiting import PATIENCE_S, until

GROUP = "workers"
NAMES = ("n1", "n2")
LATER_MS = 3_600_000


async def command(nodes: Nodes, *arguments: str) -> Any:
    """What `mq cluster …` of one of the nodes prints, as JSON."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "cluster", *arguments, "--json",
        cwd=REPOSITORY, env={**environment, **nodes._settings, "MQ_CLUSTER_NODE": "n1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return orjson.loads(out)


def data(directory: Path, name: str) -> Path:
    return directory / name / "data"


class Worker:
    """Consumes as a group, from any node. `done`: what it has acknowledged, by the time of the answer."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.done: dict[tuple[int, int], float] = {}

    async def run(self) -> None:
        while not self._nodes.is_over:
            with contextlib.suppress(Exception):  # a node goes, the group moves
                await self.turn(10)

    async def turn(self, count: int, name: str | None = None) -> int:
        """Receive and acknowledge; how many there were."""
        name = name or self._nodes.any()
        path = f"/mq/v1/groups/{GROUP}/messages"
        asked = {"topics": [TOPIC], "start": "earliest", "max_messages": count, "wait_ms": 300}
        found = (await self._nodes.done(name, "POST", f"{path}:receive", json=asked))["messages"]
        if found:
            receipts = {"receipts": [row["receipt"] for row in found]}
            answer = await self._nodes.done(name, "POST", f"{path}:ack", json=receipts)
            for row, result in zip(found, answer["results"], strict=True):
                if result["ok"]:
                    self.done[row["partition"], row["offset"]] = time.monotonic() * 1000
        return len(found)


@pytest.mark.matrix
async def test_what_was_acknowledged_before_the_backup_is_in_it_once(tmp_path: Path, etcd: EtcdServer) -> None:
    random = Random(43)
    async with asyncio.timeout(6 * PATIENCE_S), served(tmp_path, etcd, random, len(NAMES)) as nodes:
        await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
        worker = Worker(nodes)
        work = [
            *[asyncio.create_task(nodes.send(f"s{number}", number % PARTITIONS)) for number in range(SENDERS)],
            asyncio.create_task(worker.run()),
            asyncio.create_task(_keep_moving(nodes, random)),
        ]
        later = [await _delayed(nodes, partition) for partition in range(PARTITIONS)]
        await until(lambda: nodes.history.count(Outcome.OK) > 60 and len(worker.done) > 10, pause_s=0.05)
        began_ms = time.monotonic() * 1000
        roots = [argument for name in NAMES for argument in ("--data", str(data(tmp_path, name)))]
        made = await command(nodes, "backup", str(tmp_path / "backup"), *roots, "--no-verify")
        assert made["nodes"] == list(NAMES)
        count = nodes.history.count(Outcome.OK)
        await until(lambda: nodes.history.count(Outcome.OK) > count + 20, pause_s=0.05)  # the cluster goes on
        nodes.is_over = True
        await asyncio.gather(*work)
        for name in NAMES:
            await nodes.servers[name].kill()
            shutil.rmtree(data(tmp_path, name))
        nodes._settings["MQ_CLUSTER_PREFIX"] = f"restored-{free_port()}/"

        nodes._settings["MQ_STORE_DEDUP_WINDOW_MS"] = "1000"  # what a timer delivers again is not known by its id
        into = [argument for name in NAMES for argument in ("--data", f"{name}={data(tmp_path, name)}")]
        done = await command(nodes, "restore", str(tmp_path / "backup"), *into)
        assert done["partitions"] == PARTITIONS
        for name in NAMES:
            await nodes.start(name)
        await _judge(nodes, began_ms)
        await _goes_on(nodes, worker, began_ms)
        for name, partition in later:
            assert (await nodes.ask("n1", "GET", f"/mq/v1/schedules/{name}"))[0] == 200, partition
            assert (await nodes.ask("n1", "POST", f"/mq/v1/schedules/{name}:fire"))[0] < 300


async def _keep_moving(nodes: Nodes, random: Random) -> None:
    """Partitions by hand, and groups by drains."""
    while not nodes.is_over:
        await nodes.move(random.randrange(PARTITIONS), random.choice(NAMES))
        name = random.choice(NAMES)
        if random.random() < 0.2:
            with contextlib.suppress(Exception):
                await nodes.ask("n1", "PATCH", f"/mq/v1/brokers/{name}", json={"draining": True})
                await asyncio.sleep(0.5)
                await nodes.ask("n1", "PATCH", f"/mq/v1/brokers/{name}", json={"draining": False})
        await asyncio.sleep(0.05)


async def _delayed(nodes: Nodes, partition: int) -> tuple[str, int]:
    """A record that is due long after all this: its schedule."""
    records = {"records": [{"value": f"later-{partition}", "delay_ms": LATER_MS}]}
    path = f"/topics/{TOPIC}/partitions/{partition}"
    while True:
        status, answer = await nodes.ask("n1", "POST", path, json=records, headers=JSON)
        if status == 200:
            return answer["offsets"][0]["schedule_id"], partition


async def _judge(nodes: Nodes, began_ms: float) -> None:
    """All that had been acknowledged is there, and nothing twice; what came later may be."""
    history = nodes.history
    for send in history.sends:
        if send.outcome is Outcome.OK and send.ended_ms > began_ms:
            send.outcome, send.offset = Outcome.INFO, None
    assert history.count(Outcome.OK) > 40
    await asyncio.sleep(1.5)  # what was due meanwhile has fired
    for partition in range(PARTITIONS):
        for name in NAMES:
            seen = await _all_of(nodes, name, partition)
            for run in _runs(seen):  # between them is what was acknowledged later, and the beginning of the new epoch
                history.reads.append(Read(partition, run, is_final=True, begin_offset=run[0].offset))
            assert seen[0].offset == 0
    assert check(history) == []


def _runs(seen: list[Seen]) -> list[list[Seen]]:
    """Stretches without a gap."""
    runs: list[list[Seen]] = [[]]
    for row in seen:
        if runs[-1] and row.offset != runs[-1][-1].offset + 1:
            runs.append([])
        runs[-1].append(row)
    return runs


async def _all_of(nodes: Nodes, name: str, partition: int) -> list[Seen]:
    seen: list[Seen] = []
    while more := await nodes.fetch(name, partition, seen[-1].offset + 1 if seen else 0):
        seen += more
    return seen


async def _goes_on(nodes: Nodes, worker: Worker, began_ms: float) -> None:
    """Sends get offsets that nobody has seen; the group gets all that it had not done, and nothing that it had."""
    for partition in range(PARTITIONS):
        path = f"/topics/{TOPIC}/partitions/{partition}"
        records = {"records": [{"value": f"new-{partition}"}]}
        answer = await nodes.done("n2", "POST", path, json=records, headers=JSON)
        assert answer["offsets"][0]["offset"] >= TAKEN_OFFSETS
    everything = {
        (partition, row.offset) for partition in range(PARTITIONS) for row in await _all_of(nodes, "n1", partition)
    }
    before = {place for place, at_ms in worker.done.items() if at_ms < began_ms}
    again = Worker(nodes)
    async with asyncio.timeout(PATIENCE_S):
        while not everything <= again.done.keys() | worker.done.keys() or await again.turn(100):
            await again.turn(100)
    assert before
    assert not before & again.done.keys(), "what was done before the backup stays done"
    assert everything <= again.done.keys() | before | worker.done.keys()

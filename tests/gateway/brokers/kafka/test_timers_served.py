"""Delayed records whose log is on a real Apache Kafka: three nodes, of which the owner of shards is stopped or killed
while records become due. Each is delivered once, none early, whichever node goes on.

Covers gateway.main.timer_shards, gateway.main.all_timers and gateway.cluster.timer_shard.

    MQ_TEST_DELAYS, MQ_TEST_KILLS    how many records (default 6,000), over how many kills and stops (6)
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import aiohttp
import mq
import pytest
from aiokafka import AIOKafkaConsumer

from gateway.cluster.members import SESSION_TTL_MS
from loadtest.peers.servers import Server as Peer
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_metadata
from tests.gateway.cluster.test_served import Nodes

pytestmark = pytest.mark.matrix

TOPIC = "orders"
PARTITIONS = 8
DELAYS = int(os.environ.get("MQ_TEST_DELAYS", "6000"))
KILLS = int(os.environ.get("MQ_TEST_KILLS", "6"))
BATCH = 50
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
NAMES = ("n1", "n2", "n3")
STAYS, STAYING = "n0", range(4)
"""A node that goes on, and the partitions that it owns: what is due for the others waits for who takes those over."""

CLEAN_S, DEAD_S = SESSION_TTL_MS / 1000, 10.0
"""How late records may be whose shard had an owner that was stopped, or killed, and their partition perhaps too. A
clean stop waits for no session to end: it takes less than 1 s on a machine that does nothing else; what it took is
printed."""

QUIET_S = 8.0
"""Between two kills: the longest takeover, and some time in which all is well."""


class Sent(NamedTuple):
    """A record that was accepted, and when that was answered: it may have been due before."""

    value: int
    partition: int
    due_ms: int
    schedule_id: str
    told_ms: int


class Senders(Nodes):
    """Clients that ask whichever node answers."""

    endpoint = ""
    kafka_prefix = ""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.away: set[str] = set()
        self.sent: list[Sent] = []
        self.unsure: set[int] = set()
        self.number = self.first = 0

    async def start(self, name: str, *, joined: bool = False, **more: str) -> None:
        address = f"kafka1=kafka://{self.endpoint}?replication=1&min_insync=1&prefix={self.kafka_prefix}"
        settings = {"MQ_CLUSTER_KAFKA": address, "MQ_CLUSTER_TIMERS_BROKER": "kafka1", "MQ_CLUSTER_BALANCE": "false"}
        await super().start(name, joined=joined, **settings, **more)

    async def verb(self, method: str, path: str, **sent: Any) -> tuple[int, Any]:
        """What a node that is there answers; status 0: nothing certain."""
        name = self._random.choice([name for name in self.servers if name not in self.away])
        try:
            return await self.ask(name, method, path, **sent)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0, {}

    async def send(self, delays_ms: list[int], **fields: Any) -> None:
        """A batch to one partition; what was accepted is noted."""
        now_ms = int(time.time() * 1000)
        records, dues = [], []
        for delay_ms in delays_ms:
            dues.append((self.number, now_ms + delay_ms))
            records.append({"value": self.number, "deliver_at": now_ms + delay_ms, **fields})
            self.number += 1
        partition = self._random.randrange(PARTITIONS)
        path = f"/topics/{TOPIC}/partitions/{partition}"
        status, answer = await self.verb("POST", path, json={"records": records}, headers=JSON)
        told_ms = int(time.time() * 1000)
        if status == 200:
            for (value, due_ms), told in zip(dues, answer["offsets"], strict=True):
                assert told.get("error_code") is None, told
                self.sent.append(Sent(value, partition, due_ms, told.get("schedule_id", ""), told_ms))
        else:
            assert status in (0, 503), answer
            self.unsure.update(value for value, _ in dues)

    async def owner(self) -> str:
        """The node that has most of the shards, by the schedules that it has pending."""
        totals = {}
        for name in NAMES:
            if name not in self.away:
                status, answer = await self.ask(name, "GET", "/mq/v1/schedules:histogram", headers={"Mq-Scope": "node"})
                totals[name] = answer["total"] if status == 200 else 0
        return max(totals, key=lambda name: totals[name])


@asynccontextmanager
async def three_nodes(directory: Path, etcd: EtcdServer, kafka: Peer, prefix: str) -> AsyncIterator[Senders]:
    """All partitions are on Kafka."""
    async with etcd_metadata(etcd), aiohttp.ClientSession() as http:
        (directory / "cert.pem").write_bytes((etcd._directory / "cert.pem").read_bytes())
        nodes = Senders(directory, etcd, http, Random(1))
        nodes.endpoint, nodes.kafka_prefix = kafka.endpoint, prefix
        try:
            await nodes.start("n1")  # and begins the shards
            await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
            while {one.partition for one in nodes.sent} != set(range(PARTITIONS)):
                await nodes.send([1000])
                await asyncio.sleep(0.05)
            for name in (STAYS, "n2", "n3"):
                await nodes.start(name)
            for partition in range(PARTITIONS):
                path = f"/mq/v1/topics/{TOPIC}/partitions/{partition}/move"
                owner = STAYS if partition in STAYING else NAMES[partition % 3]
                await nodes.done(owner, "POST", path, json={"to": "kafka1"})
            nodes.sent.clear()
            nodes.unsure.clear()
            nodes.first = nodes.number
            yield nodes
        finally:
            nodes.is_over = True
            await nodes.end()


async def delivered_of(nodes: Senders) -> Counter[int]:
    """The values in all partitions, as a client of mq reads them."""
    counts: Counter[int] = Counter()
    for partition in range(PARTITIONS):
        offset = 0
        while True:
            path = f"/topics/{TOPIC}/partitions/{partition}/records?offset={offset}&timeout=0&format=json"
            status, rows = await nodes.verb("GET", path)
            if status != 200:
                await asyncio.sleep(0.2)
                continue
            if not rows:
                break
            assert rows[0]["offset"] == offset, "offsets have no gap"
            counts.update(row["value"] for row in rows if row["value"] >= nodes.first)
            offset = rows[-1]["offset"] + 1
    return counts


async def stored_ms_of(nodes: Senders) -> dict[int, int]:
    """When each value was first stored, by Kafka's clock."""
    consumer = AIOKafkaConsumer(
        f"{nodes.kafka_prefix}{TOPIC}", bootstrap_servers=nodes.endpoint, auto_offset_reset="earliest", group_id=None
    )
    await consumer.start()
    stored_ms: dict[int, int] = {}
    try:
        ends = await consumer.end_offsets(list(consumer.assignment()))
        while any([await consumer.position(at) < end for at, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=500, max_records=5000)).values():
                for record in records:
                    if any(name == "mq-deliver-at" for name, _ in record.headers):
                        stored_ms.setdefault(int(record.value), record.timestamp)
    finally:
        await consumer.stop()
    return stored_ms


async def test_delayed_records_are_delivered_once_over_kills_and_stops(
    tmp_path: Path, etcd: EtcdServer, kafka: Peer
) -> None:
    async with three_nodes(tmp_path, etcd, kafka, "timers.") as nodes:
        span_s = KILLS * (QUIET_S + 4)
        random = Random(2)

        async def send_all() -> None:
            while nodes.number < nodes.first + DELAYS:
                await nodes.send([random.randrange(2_000, int(span_s * 1000)) for _ in range(BATCH)])
                await asyncio.sleep(span_s * 0.6 * BATCH / DELAYS)

        sending = asyncio.create_task(send_all())
        events: list[tuple[int, str, bool]] = []
        for number in range(KILLS):
            await asyncio.sleep(QUIET_S / 2)
            name = await nodes.owner()
            is_dead = number % 2 == 1
            nodes.away.add(name)
            events.append((int(time.time() * 1000), name, is_dead))
            if is_dead:
                await nodes.servers[name].kill()
            else:
                assert await nodes.servers[name].stop() == 0
            await asyncio.sleep(QUIET_S)
            await nodes.servers[name].start()
            nodes.away.discard(name)
        await sending
        last_ms = max(one.due_ms for one in nodes.sent)
        await asyncio.sleep(max(0.0, last_ms / 1000 - time.time()) + 1)

        async def total() -> int:
            status, answer = await nodes.verb("GET", "/mq/v1/schedules?limit=1")
            return answer["total"] if status == 200 and not answer["missing_nodes"] else -1

        async with asyncio.timeout(60):
            while await total() != 0:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        counts = await delivered_of(nodes)
        surely = {one.value for one in nodes.sent}
        assert max(counts.values()) == 1, [value for value, count in counts.items() if count > 1][:10]
        assert not surely - counts.keys(), f"lost {len(surely - counts.keys())}"
        assert counts.keys() <= surely | nodes.unsure
        stored_ms = await stored_ms_of(nodes)
        assert all(stored_ms[one.value] >= one.due_ms for one in nodes.sent), "early"
        late_ms = {one.value: stored_ms[one.value] - max(one.due_ms, one.told_ms) for one in nodes.sent}
        told: dict[tuple[bool, bool], list[float]] = {}
        too_late = []
        bounds_ms = [at_ms for at_ms, _, _ in events] + [1 << 62]
        for (at_ms, name, is_dead), (from_ms, until_ms) in zip(events, pairwise(bounds_ms), strict=True):
            concerned = [one for one in nodes.sent if from_ms <= stored_ms[one.value] < until_ms]
            for stays in (True, False):
                late = [late_ms[one.value] for one in concerned if (one.partition in STAYING) == stays]
                told.setdefault((is_dead, stays), []).append(max(late, default=0) / 1000)
            latest = sorted(concerned, key=lambda one: late_ms[one.value])[-5:]
            shown = [(one.partition, one.due_ms - at_ms, one.told_ms - at_ms, late_ms[one.value]) for one in latest]
            if max(told[is_dead, True][-1], told[is_dead, False][-1]) > (DEAD_S if is_dead else CLEAN_S):
                too_late.append((name, is_dead, shown))
        for is_dead in {is_dead for is_dead, _ in told}:
            latest_s = sorted(map(max, told[is_dead, True], told[is_dead, False]))
            p50, p99, most = (latest_s[round(share * (len(latest_s) - 1))] for share in (0.5, 0.99, 1))
            print(f"\nlatest delivery behind a {'kill' if is_dead else 'stop'}: {p50}, {p99}, {most} s (p50, p99, max)")
        print(
            f"\n{len(counts)} delivered once, {len(nodes.unsure)} of unknown outcome. Latest behind its time in s:"
            f" killed {told.get((True, True))}, stopped {told.get((False, True))}; of partitions that lost their owner"
            f" too: killed {told.get((True, False))}, stopped {told.get((False, False))}"
        )
        assert not too_late


class Again(NamedTuple):
    """A send that may be made again, and its answer."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    told: list[Any]


async def test_a_delayed_send_that_comes_again_has_the_answer_of_its_first(
    tmp_path: Path, etcd: EtcdServer, kafka: Peer
) -> None:
    """By message id and by Idempotency-Key, with a delay and with a due time, at any node, while owners of shards and
    partitions are stopped and killed, and behind the delivery."""
    async with three_nodes(tmp_path, etcd, kafka, "ids.") as nodes:
        random = Random(3)
        sends: list[Again] = []

        async def ask(path: str, body: dict[str, Any], headers: dict[str, str]) -> list[Any] | None:
            status, answer = await nodes.verb("POST", path, json=body, headers=JSON | headers)
            assert status in (0, 200, 503), answer
            if status != 200 or any(one.get("error_code") for one in answer["offsets"]):
                return None
            return [{name: one for name, one in row.items() if name != "duplicate"} for row in answer["offsets"]]

        async def send(number: int) -> None:
            due = {"delay_ms": random.randrange(1_000, 12_000)}
            if number % 2:
                due = {"deliver_at": int(time.time() * 1000) + random.randrange(200, 12_000)}
            values = [nodes.number, nodes.number + 1]
            nodes.number += 2
            records = [{"value": value, **due} for value in values]
            headers = {"Idempotency-Key": f"request-{number}"} if number % 3 == 0 else {}
            if not headers:
                records = [{**one, "msg_id": f"id-{one['value']}"} for one in records]
            path = f"/topics/{TOPIC}/partitions/{random.randrange(PARTITIONS)}"
            while (told := await ask(path, {"records": records}, headers)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # with the same ids, as clients do
            sends.append(Again(path, {"records": records}, headers, told))

        async def repeat() -> None:
            while True:
                if sends:
                    one = random.choice(sends)
                    told = await ask(one.path, one.body, one.headers)
                    assert told in (None, one.told), "another answer"
                await asyncio.sleep(0.02)

        repeating = asyncio.create_task(repeat())
        for number in range(120):
            await send(number)
            if number in (30, 70, 100):
                name = await nodes.owner()
                nodes.away.add(name)
                server = nodes.servers[name]
                await (server.kill() if number == 70 else server.stop())
                await asyncio.gather(*[send(1_000 * number + more) for more in range(20)])
                await server.start()
                nodes.away.discard(name)
        await asyncio.sleep(13)
        assert not repeating.done(), repeating.exception()
        repeating.cancel()
        for one in sends:
            assert await ask(one.path, one.body, one.headers) == one.told
        counts = await delivered_of(nodes)
        assert counts == Counter(range(nodes.first, nodes.number))
        assert len(sends) == 180


async def test_a_client_of_python_sends_with_a_delay(tmp_path: Path, etcd: EtcdServer, kafka: Peer) -> None:
    async with three_nodes(tmp_path, etcd, kafka, "python.") as nodes, mq.connect(nodes.servers["n2"].url) as client:
        receipts = await asyncio.gather(*[client.send(TOPIC, nodes.first + n, delay="2s") for n in range(40)])
        assert all(receipt.schedule_id for receipt in receipts)
        name = await nodes.owner()
        if name != "n2":
            await nodes.servers[name].stop()
            nodes.away.add(name)
        more = await asyncio.gather(*[client.send(TOPIC, nodes.first + 40 + n, delay=0.5) for n in range(40)])
        assert all(receipt.schedule_id for receipt in more)
        await asyncio.sleep(8)
        for name in nodes.away:
            await nodes.servers[name].start()  # it has the records from before the partitions were moved
        nodes.away.clear()
        assert await delivered_of(nodes) == Counter(range(nodes.first, nodes.first + 80))


async def test_a_node_that_drains_has_others_take_over_what_it_owns_on_kafka(
    tmp_path: Path, etcd: EtcdServer, kafka: Peer
) -> None:
    async with three_nodes(tmp_path, etcd, kafka, "drain.") as nodes:
        await nodes.send([3_000] * 10)

        async def state(name: str) -> str:
            rows = (await nodes.done("n2", "GET", "/mq/v1/brokers"))["brokers"]
            return str(next(row["state"] for row in rows if row["broker"] == name))

        assert await state("n1") == "up"
        await nodes.done("n2", "PATCH", "/mq/v1/brokers/n1", json={"draining": True})
        async with asyncio.timeout(30):
            while await state("n1") != "drained":  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        scope = {"Mq-Scope": "node"}
        assert (await nodes.done("n1", "GET", "/mq/v1/schedules:histogram", headers=scope))["total"] == 0

        async def owns_some() -> bool:
            routes = (await nodes.done("n1", "GET", f"/mq/v1/topics/{TOPIC}/routes"))["partitions"]
            return "kafka1" in {row["owner"] for row in routes}

        async with asyncio.timeout(30):  # by its own view, which may be behind that of n2
            while await owns_some():  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        await asyncio.sleep(5)
        assert not await owns_some(), "it takes nothing back"
        assert (await delivered_of(nodes)).total() == 10


async def test_a_delayed_record_is_changed_by_its_id_or_key_at_any_node(
    tmp_path: Path, etcd: EtcdServer, kafka: Peer
) -> None:
    async with three_nodes(tmp_path, etcd, kafka, "changes.") as nodes:
        for _ in range(30):
            await nodes.send([60_000, 61_000])
        await nodes.send([62_000], schedule_key="mine")
        assert len(nodes.sent) == 61
        assert all("." not in one.schedule_id for one in nodes.sent), "they name no node"
        ids = [one.schedule_id for one in nodes.sent]
        listed: list[str] = []
        for order in ("accepted", "due"):
            listed, cursor = [], ""
            while True:
                query = "?limit=7" + ("&order=due" if order == "due" else "") + (f"&cursor={cursor}" if cursor else "")
                answer = await nodes.done("n3", "GET", f"/mq/v1/schedules{query}")
                listed += [row["schedule_id"] for row in answer["schedules"]]
                if (cursor := answer["next_cursor"]) is None:
                    break
            assert sorted(listed) == sorted(ids), order
        taken = {"records": [{"value": 0, "delay_ms": 5000, "schedule_key": "mine"}]}
        for partition in range(PARTITIONS):
            status, answer = await nodes.ask(
                "n2", "POST", f"/topics/{TOPIC}/partitions/{partition}", json=taken, headers=JSON
            )
            assert status == 409 or answer["offsets"][0].get("error_code"), answer
        shown = await nodes.done("n2", "GET", f"/mq/v1/schedules/mine?topic={TOPIC}")
        assert shown["schedule_id"] == ids[-1]
        for name, id_ in zip(NAMES, ids, strict=False):
            assert (await nodes.ask(name, "DELETE", f"/mq/v1/schedules/{id_}"))[0] == 204
            assert (await nodes.ask(name, "GET", f"/mq/v1/schedules/{id_}"))[0] == 404
        moved = await nodes.done("n1", "PATCH", f"/mq/v1/schedules/{ids[3]}", json={"delay_ms": 90_000})
        fired = await nodes.done("n2", "POST", f"/mq/v1/schedules/{moved['schedule_id']}:fire")
        assert fired["topic"] == TOPIC
        batch = {"action": "cancel", "schedule_ids": ids[4:10]}
        done = await nodes.done("n3", "POST", "/mq/v1/schedules:batch", json=batch)
        assert all(one["ok"] for one in done["results"]), done
        histogram = await nodes.done("n1", "GET", "/mq/v1/schedules:histogram")
        assert histogram["total"] == 61 - 3 - 1 - 6
        cancelled = await nodes.done("n2", "DELETE", f"/mq/v1/schedules?topic={TOPIC}")
        assert cancelled["cancelled"] == 51

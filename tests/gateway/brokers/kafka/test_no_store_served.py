"""Three nodes without a store on a real Apache Kafka, with their metadata in etcd or in that Kafka, two of which are
killed and replaced by others of other names, and a gateway, under load: sends with ids, a group in queue mode with
retries and dead letters, a socket, delayed records, recurring schedules. Whatever was answered holds, those that come
have their share in the end, and nothing is on a disk.

Covers gateway.main.no_store, gateway.main.recurring_shards, gateway.brokers.none, and gateway.cluster.kafka_metadata in
servers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.cluster.balancer import STEADY_S
from loadtest.peers.servers import Server as Peer
from tests.e2e.server import REPOSITORY
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_metadata
from tests.gateway.cluster.test_served import JSON, Nodes
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.matrix

TOPIC, TICKS = "work", "ticks"
PARTITIONS = 4
SENDERS, WORKERS = 3, 3
MAX_ATTEMPTS = 3
KILLED = (("n1", "n4"), ("n2", "n5"))
"""Which node is killed, and the one that comes then."""

GATEWAY = "g"

REST_S = 10.0
"""Between two kills: what a takeover may take, and some time in which all is well."""

TICK_MS = 1_000


def fails(value: int) -> bool:
    """Whether each attempt at a record fails."""
    return value % 25 == 0


def fails_once(value: int) -> bool:
    """Whether the first one does."""
    return value % 10 == 1


class Clients(Nodes):
    """Clients that ask whichever node they believe to be there, until one answers."""

    endpoint = ""
    prefix = ""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.more: dict[str, str] = {}
        self.stored: dict[int, tuple[int, int]] = {}
        self.sent_by: Counter[str] = Counter()
        self.delayed: dict[int, int] = {}
        self.acked: set[int] = set()
        self.pushed: set[int] = set()
        self.numbers = iter(range(10**9))
        self.is_sent = False

    async def start(self, name: str, *, joined: bool = False, **more: str) -> None:
        empty = self._directory / name / "empty"
        empty.mkdir(parents=True)
        self.under = ("env", "-C", str(empty))
        clusters = {
            "MQ_CLUSTER_KAFKA": f"kafka1=kafka://{self.endpoint}?replication=1&min_insync=1&prefix={self.prefix}."
        }
        own = {"MQ_CLUSTER_NO_STORE": "true", **clusters} | {
            f"MQ_CLUSTER_{which}_BROKER": "kafka1" for which in ("DEFAULT", "GROUPS", "TIMERS")
        }
        if joined:  # a gateway knows the cluster only where the metadata is in it
            own = clusters if self.more else {}
        await super().start(
            name,
            joined=joined,
            HOME=str(empty),
            TMPDIR=str(empty),
            PYTHONPATH=str(REPOSITORY),
            **own,
            **self.more,
            **more,
        )

    async def answered(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """What some node answers with certainty."""
        data = None if body is None else orjson.dumps(body)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                name = self._random.choice(list(self.servers))
                with suppress(aiohttp.ClientError, TimeoutError, OSError):
                    status, answer = await self.ask(name, method, path, data=data, headers={**JSON, **headers})
                    if status != 503:
                        assert status < 300, (path, answer)
                        self.sent_by[name] += path.startswith(f"/topics/{TOPIC}/") and method == "POST"
                        return answer
                await asyncio.sleep(0.05)

    async def replace(self, gone: str, come: str) -> None:
        """Kill a node, and start another one."""
        server = self.servers.pop(gone)
        await server.kill()
        await self.start(come)

    async def are_even(self) -> None:
        """Wait until each node owns its share of the partitions, those that came last too: each counts as its own what
        it says to be on Kafka. A gateway owns nothing, and says what the node says that it asks."""
        async with asyncio.timeout(STEADY_S + PATIENCE_S):
            while True:
                owned, total = [], 0
                for name in self.servers.keys() - {GATEWAY}:
                    rows = (await self.done(name, "GET", "/mq/v1/routes?limit=200"))["partitions"]
                    total = len(rows)
                    owned.append(sum(row["owner"] == "kafka1" for row in rows))
                if sum(owned) == total and min(owned) >= total // len(owned):
                    return
                await asyncio.sleep(0.5)

    def files_of(self, name: str) -> list[str]:
        """What a node has open that may be on a disk."""
        handles = Path(f"/proc/{self.servers[name].pid}/fd")
        targets = [os.readlink(handles / one) for one in os.listdir(handles)]
        nowhere = ("/memfd:", "socket:", "pipe:", "anon_inode:", "/dev/")
        return [one for one in targets if not one.startswith(nowhere) and not one.endswith("/server.log")]

    # ---- load -------------------------------------------------------------------------------------------------------

    async def send_on(self) -> None:
        """Records with an id, one after the other; a send without an answer is sent again, to any node."""
        while not self.is_sent:
            value = next(self.numbers)
            record: dict[str, object] = {"value": value}
            headers = {"Idempotency-Key": f"send-{value}"}
            if value % 5 == 4:
                delay_ms = self._random.randrange(500, 15_000)
                record["deliver_at"] = due_ms = int(time.time() * 1000) + delay_ms
                headers = {}  # one with an id is refused
            partition = self._random.randrange(PARTITIONS)
            path = f"/topics/{TOPIC}/partitions/{partition}"
            if value % 5 == 4:
                sent = await self._delayed(path, record)
                if sent is not None:
                    self.delayed[value] = due_ms
                continue
            answer = await self.answered("POST", path, {"records": [record]}, **headers)
            [told] = answer["offsets"]
            assert told.get("error_code") is None, told
            self.stored[value] = told["partition"], told["offset"]
            await asyncio.sleep(0.01)

    async def _delayed(self, path: str, record: dict[str, object]) -> object:
        """What is answered to a delayed record; None: nothing certain, and it is not sent again."""
        name = self._random.choice(list(self.servers))
        try:
            status, answer = await self.ask(name, "POST", path, json={"records": [record]}, headers=JSON)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        assert status in (200, 503), answer
        return answer["offsets"][0] if status == 200 and answer["offsets"][0].get("error_code") is None else None

    async def work_on(self) -> None:
        """Take records of the group `jobs`; acknowledge some, give others back. What is acknowledged stays so."""
        wanted = {"topics": [TOPIC], "start": "earliest", "max_messages": 10, "wait_ms": 300, "invisible_ms": 20_000}
        while not self.is_over:
            messages = (await self.answered("POST", "/mq/v1/groups/jobs/messages:receive", wanted))["messages"]
            ok, again = [], []
            for message in messages:
                value = message["value"]
                if not (fails(value) or fails_once(value)):  # of those a nack without an answer may leave two copies
                    assert value not in self.acked, f"{value} is handed out behind its ack"
                is_failure = fails(value) or (fails_once(value) and message["delivery_attempt"] == 1)
                (again if is_failure else ok).append(message)
            await self._settle("ack", ok)
            await self._settle("nack", again, delay_ms=1_200)

    async def _settle(self, verb: str, messages: list[dict[str, Any]], **more: object) -> None:
        if not messages:
            return
        receipts = [message["receipt"] for message in messages]
        answer = await self.answered("POST", f"/mq/v1/groups/jobs/messages:{verb}", {"receipts": receipts, **more})
        for message, told in zip(messages, answer["results"], strict=True):
            if told["ok"] and verb == "ack":
                self.acked.add(message["value"])

    async def listen_on(self) -> None:
        """A socket in queue mode of the group `sockets`, opened again when it has closed or its subscription has
        ended."""
        path = f"/ws/v1/consume?topic={TOPIC}&group=sockets&mode=queue&start=earliest&invisible_ms=10000"
        while not self.is_over:
            url = self._random.choice(list(self.servers.values())).url
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self._http.ws_connect(url + path) as socket:
                    await self._listen(socket)
            await asyncio.sleep(0.1)

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while not self.is_over:
            try:
                message = await socket.receive(timeout=1)
            except TimeoutError:
                continue
            if message.type is not aiohttp.WSMsgType.TEXT:
                return
            said = orjson.loads(message.data)
            if said.get("op") == "error":
                return
            if messages := said.get("messages"):
                self.pushed.update(one["value"] for one in messages)
                receipts = [one["receipt"] for one in messages]
                await socket.send_json({"id": 1, "op": "ack", "sub": "s", "receipts": receipts})

    # ---- what is there -----------------------------------------------------------------------------------------------

    async def read_all(self, topic: str, partitions: int) -> list[dict[str, Any]]:
        """All records, as a client of mq reads them."""
        found: list[dict[str, Any]] = []
        for partition in range(partitions):
            offset = 0
            while True:
                path = f"/topics/{topic}/partitions/{partition}/records?offset={offset}&timeout=0&format=json"
                rows = await self.answered("GET", path)
                if not rows:
                    break
                assert [row["offset"] for row in rows] == list(range(offset, offset + len(rows))), "no gaps"
                found += [{**row, "partition": partition} for row in rows]
                offset = rows[-1]["offset"] + 1
        return found

    async def dead_letters(self) -> set[int]:
        rows = await self.read_all("%DLQ%jobs", 1)
        return {row["value"] for row in rows}


@pytest.fixture(params=["etcd", "kafka"])
async def etcd_if_any(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EtcdServer | None]:
    """None: the metadata is in Kafka."""
    if request.param == "kafka":
        yield None
        return
    etcd: EtcdServer = request.getfixturevalue("etcd")
    (tmp_path / "cert.pem").write_bytes(etcd.ca_file.read_bytes())
    async with etcd_metadata(etcd):
        yield etcd


@asynccontextmanager
async def three_nodes(directory: Path, etcd: EtcdServer | None, kafka: Peer) -> AsyncIterator[Clients]:
    async with aiohttp.ClientSession() as http:
        nodes = Clients(directory, etcd, http, Random(1))
        nodes.endpoint, nodes.prefix = kafka.endpoint, directory.name
        if etcd is None:
            nodes.more["MQ_CLUSTER_METADATA_BROKER"] = "kafka1"
        try:
            for name in ("n1", "n2", "n3"):
                await nodes.start(name)
            for topic, partitions in ((TOPIC, PARTITIONS), (TICKS, 2)):
                await nodes.answered("PUT", f"/mq/v1/topics/{topic}", {"partitions": partitions})
            settings = {"max_attempts": MAX_ATTEMPTS, "retry_through_timer_ms": 1_000}
            await nodes.answered("PATCH", "/mq/v1/groups/jobs", settings)
            yield nodes
        finally:
            nodes.is_over = True
            await nodes.end()


async def test_nodes_are_killed_and_replaced_and_nothing_is_lost(
    tmp_path: Path, etcd_if_any: EtcdServer | None, kafka: Peer
) -> None:
    async with three_nodes(tmp_path, etcd_if_any, kafka) as nodes:
        await nodes.start(GATEWAY, joined=True)
        rule = {"topic": TICKS, "record": {"value": "tick"}, "every_ms": TICK_MS, "missed": "all"}
        made = await nodes.answered("PUT", "/mq/v1/recurring/clock", rule)
        senders = [asyncio.create_task(nodes.send_on()) for _ in range(SENDERS)]
        workers = [asyncio.create_task(nodes.work_on()) for _ in range(WORKERS)]
        workers.append(asyncio.create_task(nodes.listen_on()))
        for gone, come in KILLED:
            await asyncio.sleep(REST_S)
            await nodes.replace(gone, come)
        await nodes.are_even()
        nodes.is_sent = True
        await asyncio.gather(*senders)
        told = nodes.stored.keys() | nodes.delayed.keys()
        assert min(len(nodes.stored), len(nodes.delayed)) > 50
        assert nodes.sent_by[GATEWAY] > 20, nodes.sent_by
        lasting = {value for value in told if not fails(value)}

        until_s = time.monotonic() + PATIENCE_S
        while not (lasting <= nodes.acked and told <= nodes.pushed):
            for task in workers:
                if task.done():
                    task.result()
            left = sorted(lasting - nodes.acked)[:5], sorted(told - nodes.pushed)[:5]
            assert time.monotonic() < until_s, (len(told), len(nodes.acked), len(nodes.pushed), left)
            await asyncio.sleep(0.2)
        async with asyncio.timeout(PATIENCE_S):
            while not {value for value in told if fails(value)} <= await nodes.dead_letters():  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        nodes.is_over = True
        await asyncio.gather(*workers, return_exceptions=False)

        rows = await nodes.read_all(TOPIC, PARTITIONS)
        counts = Counter(row["value"] for row in rows)
        assert [value for value, count in counts.items() if count > 1] == [], "stored twice"
        assert not told - counts.keys(), "lost"
        places = {row["value"]: (row["partition"], row["offset"]) for row in rows}
        assert all(places[value] == place for value, place in nodes.stored.items()), "offsets are what was told"
        early = [row for row in rows if row["value"] in nodes.delayed and row["store_timestamp"] < row["deliver_at"]]
        assert early == []
        assert all(fails(value) for value in await nodes.dead_letters())
        dues = sorted(row["deliver_at"] for row in await nodes.read_all(TICKS, 2))
        assert dues == list(range(made["next_at"], dues[-1] + 1, TICK_MS)), "each due time once"
        assert dues[-1] >= time.time() * 1000 - 15_000
        status, refused = await nodes.ask("n3", "POST", f"/mq/v1/topics/{TOPIC}/partitions/0/move", json={"to": "n4"})
        assert (status, refused["error_code"]) == (409, 40964), refused
        for name in nodes.servers:
            assert nodes.files_of(name) == []
            assert await nodes.servers[name].stop() == 0
        left = [str(path) for path in tmp_path.glob("n*/**/*") if path.name not in ("empty", "server.log")]
        assert left == [], "no node has made a file"
        print(
            f"\n{len(nodes.stored)} sends, {len(nodes.delayed)} delayed, {len(nodes.acked)} acknowledged,"
            f" {len(dues)} due times, {len(KILLED)} nodes killed"
        )


async def test_a_frozen_node_whose_name_another_process_has_by_now_ends(
    tmp_path: Path, etcd_if_any: EtcdServer | None, kafka: Peer
) -> None:
    async with three_nodes(tmp_path, etcd_if_any, kafka) as nodes:
        frozen = nodes.servers["n1"]
        senders = [asyncio.create_task(nodes.send_on()) for _ in range(SENDERS)]
        await asyncio.sleep(1)
        frozen.signal(signal.SIGSTOP)
        del nodes.servers["n1"]
        try:
            await nodes.start("again", MQ_CLUSTER_NODE="n1")
            frozen.signal(signal.SIGCONT)
            assert await frozen.ended() != 0
            assert "another process is node n1 by now" in frozen.log()
        finally:
            await frozen.end()
        await asyncio.sleep(2)
        nodes.is_sent = True
        await asyncio.gather(*senders)
        counts = Counter(row["value"] for row in await nodes.read_all(TOPIC, PARTITIONS))
        assert not nodes.stored.keys() - counts.keys(), "lost"
        assert [value for value, count in counts.items() if count > 1] == [], "stored twice"

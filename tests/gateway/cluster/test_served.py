"""`mq serve` as several nodes with a real etcd: any node is asked for anything, while partitions move under load, nodes
are killed and frozen, and etcd goes away. What clients saw is judged by tests/history.py.

Covers gateway.cluster.node, gateway.cluster.members, gateway.cluster.topics, gateway.main.clustering,
gateway.cluster.move_stats, gateway.main.recurring_names, gateway.routing.holding and
gateway.surfaces.http.forwarding. MQ_CLUSTER_ROUNDS sets how many rounds the long form has.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import mq as mq_client
import orjson
import pytest
from pyspark_mq.batch import BatchReader
from pyspark_mq.options import Options

from gateway.cluster.members import SESSION_TTL_MS
from gateway.errors import OVERLOADED
from tests.e2e.server import SMALL_FILES, Server
from tests.gateway.cli.command import mq
from tests.gateway.cluster.cutting import Direction, Relay
from tests.gateway.cluster.etcd_server import PASSWORD, EtcdServer, etcd_metadata, free_port
from tests.history import Outcome, Recorder, Seen, check
from tests.waiting import PATIENCE_S, until

TOPIC = "orders"
PARTITIONS = 3
SENDERS = 4
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
LONG_ROUNDS = int(os.environ.get("MQ_CLUSTER_ROUNDS", "60"))


class Nodes:
    """Servers of one cluster, and clients that use any of them."""

    rest_s = 0.0
    """How long senders, readers and movers rest between two requests."""

    under: Sequence[str] = ()
    """A command that runs the servers that are started from now on."""

    def __init__(self, directory: Path, etcd: EtcdServer | None, http: aiohttp.ClientSession, random: Random) -> None:
        """`etcd` None: their metadata is elsewhere."""
        self._directory, self._http, self._random = directory, http, random
        (directory / "secret").write_bytes(b"the secret of served nodes in tests")
        (directory / "password").write_text(PASSWORD)
        in_etcd = {} if etcd is None else {
            "MQ_CLUSTER_ETCD": ",".join(etcd.config.endpoints),
            "MQ_CLUSTER_ETCD_USER": "root",
            "MQ_CLUSTER_ETCD_PASSWORD_FILE": str(directory / "password"),
            "MQ_CLUSTER_ETCD_CA_FILE": str(directory / "cert.pem"),
            "MQ_CLUSTER_PREFIX": f"served-{free_port()}/",
        }  # fmt: skip
        self._settings = {
            **SMALL_FILES,
            **in_etcd,
            "MQ_CLUSTER_SECRET_FILE": str(directory / "secret"),
            "MQ_KAFKA_ENABLED": "false",
        }
        self.servers: dict[str, Server] = {}
        self.history = Recorder()
        self.is_over = False
        self.moves = 0
        self.pauses_ms: list[float] = []

    async def start(self, name: str, *, joined: bool = False, **more: str) -> None:
        """A node of that name, or a gateway that joins without a store."""
        (self._directory / name).mkdir(exist_ok=True)
        own = {"MQ_CLUSTER_JOIN": "true"} if joined else {
            "MQ_CLUSTER_NODE": name, "MQ_CLUSTER_INTERNAL_PORT": str(free_port()),
        }  # fmt: skip
        settings = {**self._settings, "MQ_ROOM": "east", **own, **more}
        server = Server(self._directory / name / "data", settings, port=free_port(), under=self.under)
        self.servers[name] = server
        await server.start()

    async def ask(self, name: str, method: str, path: str, **sent: Any) -> tuple[int, Any]:
        """Status and JSON of what a node answers."""
        timeout = aiohttp.ClientTimeout(total=20)
        async with self._http.request(method, self.servers[name].url + path, timeout=timeout, **sent) as response:
            return response.status, await response.json(content_type=None)

    async def done(self, name: str, method: str, path: str, **sent: Any) -> Any:
        status, answer = await self.ask(name, method, path, **sent)
        assert status < 300, (path, answer)
        return answer

    def any(self) -> str:
        return self._random.choice(list(self.servers))

    async def send(self, client: str, partition: int) -> None:
        """One record after the other, each by any node, until it is over; some with a delay."""
        while not self.is_over:
            value = self.history.value(client)
            record: dict[str, object] = {"value": value}
            begun_ms = _now_ms()
            due_ms = None
            if self._random.random() < 0.1:
                record["delay_ms"] = 50
                due_ms = int(time.time() * 1000) + 50
            send = self.history.send(value, partition, begun_ms, due_ms=due_ms)
            path = f"/topics/{TOPIC}/partitions/{partition}"
            try:
                status, answer = await self.ask(self.any(), "POST", path, json={"records": [record]}, headers=JSON)
            except (aiohttp.ClientError, TimeoutError, OSError):
                await asyncio.sleep(0.01)
                continue
            if status == 200 and (sent := answer["offsets"][0]).get("error_code") is None:
                send.ok(_now_ms(), sent["offset"])
                self.pauses_ms.append(_now_ms() - begun_ms)
                await asyncio.sleep(self.rest_s)
            elif answer.get("error_code") == OVERLOADED:
                send.fail(_now_ms())
                await asyncio.sleep(0.01)
            else:
                assert status == 503, answer
                await asyncio.sleep(0.01)

    async def read(self, partition: int) -> None:
        """Follow the partition, each time by any node, until it is over."""
        offset = 0
        while not self.is_over:
            try:
                seen = await self.fetch(self.any(), partition, offset, wait_ms=100)
            except (aiohttp.ClientError, TimeoutError, OSError, Refused):
                await asyncio.sleep(0.02)
                continue
            self.history.read(partition, seen)
            offset = seen[-1].offset + 1 if seen else offset
            await asyncio.sleep(self.rest_s)

    async def fetch(self, name: str, partition: int, offset: int, *, wait_ms: int = 0) -> list[Seen]:
        path = f"/topics/{TOPIC}/partitions/{partition}/records?offset={offset}&timeout={wait_ms}&format=json"
        status, answer = await self.ask(name, "GET", path)
        if status != 200:
            raise Refused(answer)
        return [Seen(row["offset"], row["value"]) for row in answer]

    async def shown(self, name: str, partition: int, offset: int, *, wait_ms: int = 0) -> list[Seen]:
        """As `fetch`, once more as long as it is refused for the moment: nodes that were frozen may just go on."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await self.fetch(name, partition, offset, wait_ms=wait_ms)
                except Refused as error:
                    if not error.args[0].get("retriable"):
                        raise
                await asyncio.sleep(0.1)

    async def move(self, partition: int, to: str) -> bool:
        """Whether it was done."""
        path = f"/mq/v1/topics/{TOPIC}/partitions/{partition}/move"
        try:
            status, _ = await self.ask(self.any(), "POST", path, json={"to": to})
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
        self.moves += status == 200
        return status == 200

    async def delays_are_there(self) -> None:
        """Wait for the delayed records that were accepted: a clock that was set back makes them late. What does not
        come is found by the judgement."""
        delayed = {send.value for send in self.history.sends if send.due_ms is not None and send.outcome is Outcome.OK}
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                for partition in range(PARTITIONS):
                    offset = 0
                    wanted = {send.value for send in self.history.sends if send.partition == partition} & delayed
                    while wanted:
                        seen = await self.shown("n1", partition, offset, wait_ms=100)
                        wanted -= {row.value for row in seen}
                        offset += len(seen)

    async def judge(self) -> None:
        """What every node shows at the end, and what all clients saw."""
        for name in self.servers:
            for partition in range(PARTITIONS):
                seen: list[Seen] = []
                while more := await self.shown(name, partition, len(seen)):
                    seen += more
                self.history.final_read(partition, seen)
                bounds = await self.done(name, "GET", f"/topics/{TOPIC}/partitions/{partition}/offsets")
                assert bounds == {"beginning_offset": 0, "end_offset": len(seen)}
        delayed = {send.value for send in self.history.sends if send.due_ms is not None}
        assert check(self.history) == [], f"delayed: {sorted(delayed)}"

    async def up_count(self, name: str) -> int:
        """How many brokers a node knows to be there."""
        rows = (await self.done(name, "GET", "/mq/v1/brokers"))["brokers"]
        return sum(row["state"] == "up" for row in rows)

    async def end(self) -> None:
        for server in self.servers.values():
            await server.end()


class Refused(Exception):
    """An answer that is an error: its JSON."""


@asynccontextmanager
async def served(
    directory: Path, etcd: EtcdServer, random: Random, count: int, kind: type[Nodes] = Nodes
) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(etcd_metadata(etcd))  # its users are there
        (directory / "cert.pem").write_bytes((etcd._cert).read_bytes())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        nodes = kind(directory, etcd, http, random)
        stack.push_async_callback(nodes.end)
        names = [f"n{number}" for number in range(1, count + 1)]
        await asyncio.gather(*map(nodes.start, names))
        for name in names:  # a node tells of what it changes those that it knows
            async with asyncio.timeout(PATIENCE_S):
                while await nodes.up_count(name) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        try:
            yield nodes
        finally:
            nodes.is_over = True


@asynccontextmanager
async def loaded(nodes: Nodes) -> AsyncIterator[None]:
    """Senders and readers while the block runs; at its end what they saw is judged."""
    work = [asyncio.create_task(nodes.send(f"s{number}", number % PARTITIONS)) for number in range(SENDERS)] + [
        asyncio.create_task(nodes.read(partition)) for partition in range(PARTITIONS)
    ]
    try:
        yield
        nodes.is_over = True
        await asyncio.wait_for(asyncio.gather(*work), PATIENCE_S)
    finally:
        for task in work:
            task.cancel()
    await nodes.delays_are_there()
    await nodes.judge()


async def test_two_nodes_answer_as_one_while_partitions_move(tmp_path: Path, etcd: EtcdServer) -> None:
    random = Random(24)
    async with asyncio.timeout(2 * PATIENCE_S), served(tmp_path, etcd, random, 2) as nodes:
        assert (await nodes.ask("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": 1}))[0] == 201
        await nodes.done("n2", "PATCH", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
        async with loaded(nodes):
            for step in range(9):
                assert await nodes.move(step % PARTITIONS, f"n{random.randint(1, 2)}")
                count = nodes.history.count(Outcome.OK)
                await until(lambda count=count: nodes.history.count(Outcome.OK) > count + 5, pause_s=0.005)  # type: ignore[misc]
        await _owns_as_it_says(nodes)
        await _streams_of_a_group_are_of_its_node(nodes)
        await _subscribes_to_groups_of_both(nodes)
        await _lists_what_both_have(nodes)
        await _belongs_to_one_node(nodes)
        await _knows_the_rooms_of_others(nodes)


async def _knows_the_rooms_of_others(nodes: Nodes) -> None:
    """Both nodes stand in one room, so its selector takes the partitions of both."""
    await nodes.done("n1", "PUT", "/mq/v1/topics/rooms", json={"partitions": 2})
    routes = (await nodes.done("n1", "GET", "/mq/v1/topics/rooms/routes"))["partitions"]
    assert {row["owner"] for row in routes} == {"n1", "n2"}
    records = {"records": [{"value": 1}]}
    for name in ("n1", "n2"):
        answers = [
            await nodes.done(name, "POST", "/topics/rooms?selector=room", json=records, headers=JSON) for _ in "12"
        ]
        assert sorted(answer["offsets"][0]["partition"] for answer in answers) == [0, 1]


async def _owns_as_it_says(nodes: Nodes) -> None:
    """Routes, brokers and leaders in the words of each API, and of the command line; wrong moves are refused."""
    (first, *_) = (await nodes.done("n1", "GET", f"/mq/v1/topics/{TOPIC}/routes"))["partitions"]
    other = "n2" if first["owner"] == "n1" else "n1"
    moved = await nodes.done("n1", "POST", f"/mq/v1/topics/{TOPIC}/partitions/0/move", json={"to": other})
    assert moved["owner"] == other
    assert [segment["state"] for segment in moved["segments"]][-2:] == ["sealed", "open"]
    brokers = (await nodes.done("n1", "GET", "/mq/v1/brokers"))["brokers"]
    assert [(row["broker"], row["state"]) for row in brokers] == [("n1", "up"), ("n2", "up")]
    assert sum(row["partitions"] for row in brokers) == PARTITIONS
    assert (await nodes.done("n2", "GET", "/brokers")) == {"brokers": [0, 1]}
    numbers = {row["url"]: number for number, row in enumerate(brokers)}
    cluster = (await nodes.done("n1", "GET", "/v3/clusters"))["data"][0]["cluster_id"]
    v3 = (await nodes.done("n2", "GET", f"/v3/clusters/{cluster}/brokers"))["data"]
    by_port = {row["port"]: row["broker_id"] for row in v3}
    leader = (await nodes.done("n2", "GET", f"/topics/{TOPIC}/partitions/0"))["leader"]
    assert leader == by_port[int(nodes.servers[other].url.rpartition(":")[2])]
    assert len(numbers) == 2
    for path, to, status in (("0", "n9", 404), (f"{PARTITIONS}", "n1", 404), ("0", "n" * 33, 422)):
        sent = await nodes.ask("n1", "POST", f"/mq/v1/topics/{TOPIC}/partitions/{path}/move", json={"to": to})
        assert sent[0] == status
    url = nodes.servers["n2"].url
    ran = await asyncio.to_thread(mq, "partition", "move", TOPIC, "--all", "--to", "n1", url=url)
    assert ran.stdout == "".join(f"{TOPIC} partition {number} is on n1\n" for number in range(PARTITIONS)), ran.stderr
    ran = await asyncio.to_thread(mq, "topic", "routes", TOPIC, "--json", url=url)
    routes = [orjson.loads(line) for line in ran.stdout.splitlines()]
    assert [(row["partition"], row["owner"]) for row in routes] == [(number, "n1") for number in range(PARTITIONS)], (
        ran.stderr
    )
    ran = await asyncio.to_thread(mq, "topic", "routes", TOPIC, url=url)
    assert f"n1 {routes[0]['segments'][-1]['first_offset']}-" in ran.stdout
    async with nodes._http.get(f"{nodes.servers['n1'].url}/metrics") as metrics:
        lines = dict(line.rsplit(" ", 1) for line in (await metrics.text()).splitlines() if line.startswith("mq_move"))
    done = float(lines['mq_moves_total{outcome="done"}'])
    assert done > 0
    assert (lines["mq_moves_running"], lines["mq_move_pause_seconds_count"]) == ("0.0", f"{done}")
    ran = await asyncio.to_thread(mq, "broker", "list", url=url)
    assert [line.split()[:3] for line in ran.stdout.splitlines()[-2:]] == [["n1", "up", "3"], ["n2", "up", "0"]]
    assert (await asyncio.to_thread(mq, "partition", "move", TOPIC, "--to", "n1", url=url)).returncode == 2
    ran = await asyncio.to_thread(mq, "broker", "drain", "n1", url=url)
    assert ran.stdout.startswith("n1 is drained; "), ran.stderr
    (drained, _) = (await nodes.done("n1", "GET", "/mq/v1/brokers"))["brokers"]
    assert (drained["state"], drained["partitions"], drained["groups"]) == ("drained", 0, 0)
    assert drained["sealed_segments"] > 0
    await nodes.done("n1", "PUT", "/mq/v1/topics/elsewhere", json={"partitions": 2})
    owners = [row["owner"] for row in (await nodes.done("n1", "GET", "/mq/v1/topics/elsewhere/routes"))["partitions"]]
    assert owners == ["n2", "n2"], "none begins on a broker that drains"
    ran = await asyncio.to_thread(mq, "broker", "add", "n1", "--json", url=url)
    row = orjson.loads(ran.stdout)
    assert (row["state"], row["partitions"], row["balancing"]) == ("up", 2, False), ran.stderr
    assert (await asyncio.to_thread(mq, "broker", "drain", "n9", url=url)).returncode == 1


@pytest.mark.matrix
async def test_a_gateway_without_a_store_and_workers_of_a_node_answer_as_nodes_do(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    random = Random(26)
    async with asyncio.timeout(2 * PATIENCE_S), served(tmp_path, etcd, random, 1) as nodes:
        await nodes.start("n2", MQ_WORKERS="2")
        await nodes.start("g", joined=True)
        assert (await nodes.ask("g", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS}))[0] == 201
        async with loaded(nodes):
            for step in range(6):
                assert await nodes.move(step % PARTITIONS, f"n{1 + step % 2}")
                count = nodes.history.count(Outcome.OK)
                await until(lambda count=count: nodes.history.count(Outcome.OK) > count + 5, pause_s=0.005)  # type: ignore[misc]
            etcd.stop()  # what is known goes on
            count = nodes.history.count(Outcome.OK)
            await until(lambda: nodes.history.count(Outcome.OK) > count + 20, pause_s=0.005)
            etcd.start()
        brokers = (await nodes.done("g", "GET", "/mq/v1/brokers"))["brokers"]
        assert [(row["broker"], row["state"]) for row in brokers] == [("n1", "up"), ("n2", "up")], "a gateway is none"
        assert (await nodes.ask("g", "GET", "/readyz"))[0] == 200
        await _streams_of_a_group_are_of_its_node(nodes, by="g")
        await _sends_all_else_to_nodes(nodes)
        ran = await asyncio.to_thread(mq, "broker", "drain", "n2", "--json", url=nodes.servers["g"].url)
        assert (orjson.loads(ran.stdout)["state"], orjson.loads(ran.stdout)["groups"]) == ("drained", 0), ran.stderr
        assert await nodes.servers["n2"].stop() == 0
        topic = "/mq/v1/topics/after"
        assert (await nodes.ask("g", "PUT", topic, json={"partitions": 1}))[0] == 201, "by the node that is left"
        for name in ("n1", "g"):
            assert await nodes.servers[name].stop() == 0
        assert not list((tmp_path / "g").glob("data*")), "it writes nothing"


async def _sends_all_else_to_nodes(nodes: Nodes) -> None:
    """Groups, schedules, dead letters, sockets and pages, by a gateway and by workers that have none of it."""
    records = {"records": [{"value": 1, "delay_ms": 60_000}]}
    for name in ("g", "n2"):
        path = f"/topics/{TOPIC}/partitions/0"
        schedule = (await nodes.done(name, "POST", path, json=records, headers=JSON))["offsets"][0]["schedule_id"]
        for other in nodes.servers:
            found = await nodes.done(other, "GET", f"/mq/v1/schedules/{schedule}")
            assert found["schedule_id"] == schedule
        assert (await nodes.ask("g", "DELETE", f"/mq/v1/schedules/{schedule}"))[0] == 204
    recurring = {"topic": TOPIC, "every_ms": 3_600_000, "record": {"value": 1}}
    assert (await nodes.ask("g", "PUT", "/mq/v1/recurring/hourly", json=recurring))[0] == 201
    for other in nodes.servers:
        assert (await nodes.done(other, "GET", "/mq/v1/recurring/hourly"))["name"] == "hourly"
    receive = {"topics": [TOPIC], "max_messages": 3, "start": "earliest"}
    for name in ("g", "n2", "n1"):
        found = (await nodes.done(name, "POST", "/mq/v1/groups/all/messages:receive", json=receive))["messages"]
        receipts = {"receipts": [row["receipt"] for row in found]}
        acked = await nodes.done("g", "POST", "/mq/v1/groups/all/messages:ack", json=receipts)
        assert [result["ok"] for result in acked["results"]] == [True] * 3
    async with nodes._http.ws_connect(nodes.servers["g"].url + "/ws/v1") as socket:
        await socket.send_json({"type": "hello", "id": 1})
        assert (await socket.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.TEXT
    async with nodes._http.get(nodes.servers["g"].url + "/") as page:
        assert page.status == 200
    async with nodes._http.get(nodes.servers["g"].url + "/metrics") as page:
        assert 'mq_http_requests_total{code="200",route="produce_partition"}' in await page.text()
    assert (await nodes.ask("g", "POST", "/topics/nowhere", json=records, headers=JSON))[0] == 404


async def _streams_of_a_group_are_of_its_node(nodes: Nodes, by: str = "n2") -> None:
    """An event stream and a socket of a consumer of a group, by one that does not have it."""
    topic, count = "streamed", 4
    await nodes.done("n1", "PUT", f"/mq/v1/topics/{topic}", json={"partitions": 2})
    await nodes.done("n1", "POST", "/mq/v1/groups/streams/messages:receive", json={"topics": [topic]})
    records = {"records": [{"value": number, "partition": number % 2} for number in range(count)]}
    await nodes.done(by, "POST", f"/topics/{topic}", json=records, headers=JSON)
    url = f"{nodes.servers[by].url}/mq/v1/topics/{topic}/sse?group=streams&ack=auto"
    async with asyncio.timeout(PATIENCE_S), nodes._http.get(url) as stream:
        assert stream.status == 200, await stream.text()
        read = b""
        while read.count(b'"value"') < count:
            piece = await stream.content.readany()
            assert piece, read
            read += piece
    # with ack=auto, what a node hands to a stream before it has heard that its client is gone is done
    async with asyncio.timeout(PATIENCE_S):
        while not await _has_ended(nodes, "n1", "follow_topic"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await nodes.done(by, "POST", f"/topics/{topic}", json=records, headers=JSON)
    url = f"{nodes.servers[by].url}/ws/v1/consume?topic={topic}&group=streams&mode=queue&auto_ack=true"
    async with asyncio.timeout(PATIENCE_S), nodes._http.ws_connect(url) as socket:
        seen = 0
        while seen < count:
            message = await socket.receive()
            assert message.type is aiohttp.WSMsgType.TEXT, message
            seen += str(message.data).count('"value"')


async def _has_ended(nodes: Nodes, name: str, route: str) -> bool:
    """Whether a request of the route has come to its end at that node."""
    async with nodes._http.get(f"{nodes.servers[name].url}/metrics") as page:
        return f'mq_http_requests_total{{code="200",route="{route}"}}' in await page.text()


async def _subscribes_to_groups_of_both(nodes: Nodes) -> None:
    """One socket, groups of two nodes: commands and answers, errors, a lost connection, the end."""
    topic = "/topics/streamed"
    values = {"records": [{"value": f"w{number}", "partition": number % 2} for number in range(4)]}
    for name, group in (("n1", "near"), ("n2", "far"), ("n1", "kept")):
        await nodes.done(name, "PATCH", f"/mq/v1/groups/{group}", json={"max_attempts": 3})
    url = nodes.servers["n2"].url + "/ws/v1"
    async with asyncio.timeout(PATIENCE_S), nodes._http.ws_connect(url) as socket:
        talk = _Talk(socket)
        session = (await talk.ask({"op": "hello"}))["session"]
        for sub, group in (("a", "near"), ("b", "far")):
            command = {"op": "subscribe", "sub": sub, "topics": ["streamed"], "group": group, "mode": "queue"}
            assert (await talk.ask({**command, "start": "latest"}))["mode"] == "queue"
            assert (await talk.ask(command))["error_code"] == 40960, "one of a name"
        stream = {"op": "subscribe", "sub": "c", "topics": ["streamed"], "group": "kept", "mode": "stream"}
        assert (await talk.ask({**stream, "member": "m", "start": "latest"}))["member"] == "m"
        refused = {"op": "subscribe", "sub": "d", "topics": ["nowhere"], "group": "near", "mode": "queue"}
        assert (await talk.ask(refused))["error_code"] == 40401
        assert (await talk.ask({"op": "pause", "sub": "d"}))["error_code"] == 40450, "it never began"
        await nodes.done("n1", "POST", topic, json=values, headers=JSON)
        for sub in ("a", "b"):
            found = await talk.messages(sub, 4)
            assert sorted(one["value"] for one in found) == ["w0", "w1", "w2", "w3"]
            acked = await talk.ask({"op": "ack", "sub": sub, "receipts": [one["receipt"] for one in found]})
            assert [one["ok"] for one in acked["results"]] == [True] * 4
        assert len(await talk.messages("c", 4)) == 4
        assert (await talk.ask({"op": "seen", "subs": {"a": talk.seq["a"], "b": talk.seq["b"], "c": talk.seq["c"]}}))[
            "ok"
        ]
        assert (await talk.ask({"op": "unsubscribe", "sub": "c"}))["ok"]
        assert (await talk.ask({"op": "pause", "sub": "c"}))["error_code"] == 40450
        transport = socket.get_extra_info("socket")
        assert transport is not None
        assert socket._response.connection is not None
        assert socket._response.connection.transport is not None
        socket._response.connection.transport.abort()
    await nodes.done("n1", "POST", topic, json=values, headers=JSON)
    async with asyncio.timeout(PATIENCE_S), nodes._http.ws_connect(url) as socket:
        talk = _Talk(socket)
        resumed = await talk.ask({"op": "hello", "resume": session, "seen": {"a": 1, "b": 1}})
        assert resumed["resumed"] is True
        assert resumed["subs"].keys() | resumed["ended"].keys() >= {"a", "b"}, resumed
        for sub in resumed["subs"].keys() & {"a", "b"}:
            await talk.messages(sub, 4)


async def _lists_what_both_have(nodes: Nodes) -> None:
    """Groups, delayed records, connections, figures: of all nodes, whichever is asked."""
    rows = (await nodes.done("n1", "GET", "/mq/v1/groups"))["groups"]
    assert {"near", "far", "kept", "streams"} <= {row["group"] for row in rows}
    names: list[str] = []
    query = "?limit=2&sort=name"
    while query:
        page = await nodes.done("n2", "GET", f"/mq/v1/groups{query}")
        names += [row["group"] for row in page["groups"]]
        query = page["next_cursor"] and f"?limit=2&sort=name&cursor={page['next_cursor']}"
    assert names == sorted(row["group"] for row in rows)
    cluster = (await nodes.done("n1", "GET", "/v3/clusters"))["data"][0]["cluster_id"]
    v3 = (await nodes.done("n1", "GET", f"/v3/clusters/{cluster}/consumer-groups"))["data"]
    assert [row["consumer_group_id"] for row in v3] == names
    topic = "streamed"
    delays = [(60_000 * (number + 1), number % 2) for number in range(6)]
    records = {
        "records": [{"value": number, "delay_ms": delay, "partition": p} for number, (delay, p) in enumerate(delays)]
    }
    sent = (await nodes.done("n1", "POST", f"/topics/{topic}", json=records, headers=JSON))["offsets"]
    ids = [one["schedule_id"] for one in sent]
    assert {text.partition(".")[0] for text in ids} == {"n1", "n2"}
    for order, expected in (("due", ids), ("accepted", sorted(ids, key=lambda text: text.partition(".")[0]))):
        found: list[str] = []
        query = f"?topic={topic}&limit=1&order={order}"
        while query:
            page = await nodes.done("n2", "GET", f"/mq/v1/schedules{query}")
            assert page["total"] == 6
            found += [row["schedule_id"] for row in page["schedules"]]
            assert all("at" not in row for row in page["schedules"])
            query = page["next_cursor"] and f"?topic={topic}&limit=1&order={order}&cursor={page['next_cursor']}"
        assert found == expected, order
    counted = await nodes.done("n2", "GET", f"/mq/v1/schedules:histogram?topic={topic}")
    assert (counted["total"], counted["missing_nodes"]) == (6, [])
    batch = {"action": "cancel", "schedule_ids": [ids[1], "nonsense", ids[0], "n9.s1"]}
    results = (await nodes.done("n1", "POST", "/mq/v1/schedules:batch", json=batch))["results"]
    assert [(one["schedule_id"], one["ok"]) for one in results] == [
        (ids[1], True), ("nonsense", False), (ids[0], True), ("n9.s1", False),
    ]  # fmt: skip
    assert (await nodes.done("n2", "DELETE", f"/mq/v1/schedules?topic={topic}"))["cancelled"] == 4
    keyed = {"records": [{"value": 1, "delay_ms": 60_000, "partition": p, "schedule_key": f"a.{p}"} for p in (0, 1)]}
    await nodes.done("n1", "POST", f"/topics/{topic}", json=keyed, headers=JSON)
    for name, key in (("n1", "a.0"), ("n1", "a.1"), ("n2", "a.0")):
        assert (await nodes.done(name, "GET", f"/mq/v1/schedules/{key}?topic={topic}"))["schedule_key"] == key
    assert (await nodes.ask("n1", "DELETE", f"/mq/v1/schedules/a.0?topic={topic}"))[0] == 204
    assert (await nodes.ask("n1", "DELETE", f"/mq/v1/schedules/a.0?topic={topic}"))[0] == 404
    assert (await nodes.done("n1", "DELETE", f"/mq/v1/schedules?topic={topic}"))["cancelled"] == 1
    for name in ("n1", "n2"):
        rows = (await nodes.done(name, "GET", "/mq/v1/connections?limit=100"))["connections"]
        assert {row["connection"].partition(".")[0] for row in rows} == {"n1", "n2"}
        listed = (await nodes.done(name, "GET", "/mq/v1/topics?sort=records"))["topics"]
        assert next(row["records"] for row in listed if row["topic"] == topic) == 16
    await nodes.done("n1", "DELETE", "/mq/v1/groups/far")
    assert "far" not in {row["group"] for row in (await nodes.done("n2", "GET", "/mq/v1/groups"))["groups"]}
    path = "/mq/v1/groups/far/messages:receive"  # nobody's: of whichever is asked first
    assert len((await nodes.done("n1", "POST", path, json={"topics": [topic], "start": "earliest"}))["messages"]) > 0


class _Talk:
    """One socket: answers by id, and messages by subscription."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last_id = 0
        self._messages: dict[str, list[Any]] = {}
        self.seq: dict[str, int] = {}

    async def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        self._last_id += 1
        await self._socket.send_json({**command, "id": self._last_id})
        while (said := await self._next()).get("id") != self._last_id:
            pass
        return said

    async def messages(self, sub: str, count: int) -> list[Any]:
        while len(self._messages.get(sub, ())) < count:
            await self._next()
        return self._messages.pop(sub)

    async def _next(self) -> dict[str, Any]:
        message = await self._socket.receive()
        assert message.type is aiohttp.WSMsgType.TEXT, message
        said: dict[str, Any] = orjson.loads(message.data)
        if said.get("op") == "messages":
            self._messages.setdefault(said["sub"], []).extend(said["messages"])
            self.seq[said["sub"]] = said["seq"]
        return said


async def _belongs_to_one_node(nodes: Nodes) -> None:
    """A group, a schedule and a recurring schedule are those of one node, and answered by any."""
    receive = {"topics": [TOPIC], "max_messages": 5}
    path = "/mq/v1/groups/workers/messages:receive"
    first = (await nodes.done("n1", "POST", path, json=receive))["messages"]
    second = (await nodes.done("n2", "POST", path, json=receive))["messages"]
    both = [(row["partition"], row["offset"]) for row in (*first, *second)]
    assert len(both) == len(set(both)) == 10
    acked = await nodes.done(
        "n2", "POST", "/mq/v1/groups/workers/messages:ack", json={"receipts": [row["receipt"] for row in first]}
    )
    assert [result["ok"] for result in acked["results"]] == [True] * 5
    await _goes_on_when_its_node_drains(nodes, path, second)
    sent = await nodes.done(
        "n1", "POST", f"/topics/{TOPIC}/partitions/1", json={"records": [{"value": "x", "delay_ms": 60_000}]},
        headers=JSON,
    )  # fmt: skip
    schedule = sent["offsets"][0]["schedule_id"]
    for name in ("n1", "n2"):
        assert (await nodes.done(name, "GET", f"/mq/v1/schedules/{schedule}"))["schedule_id"] == schedule
    assert (await nodes.ask("n2", "DELETE", f"/mq/v1/schedules/{schedule}"))[0] == 204
    assert (await nodes.ask("n1", "GET", f"/mq/v1/schedules/{schedule}"))[0] == 404
    await _is_any_nodes_when_deleted(nodes)
    status, _ = await nodes.ask("n2", "DELETE", f"/mq/v1/topics/{TOPIC}")
    assert status == 204
    assert (await nodes.ask("n1", "GET", f"/topics/{TOPIC}"))[0] == 404


async def _is_any_nodes_when_deleted(nodes: Nodes) -> None:
    """The name of a recurring schedule: as soon as the other node has heard that it is no node's, one begins there."""
    recurring, hourly = "/mq/v1/recurring", {"topic": TOPIC, "every_ms": 3_600_000, "record": {"value": 1}}
    for name in ("n1", "n2"):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert (await nodes.ask(name, "PUT", f"{recurring}/hourly", json=hourly))[0] == 201
                own = (await nodes.done(name, "GET", recurring, headers={"Mq-Scope": "node"}))["recurring"]
                assert (await nodes.ask(name, "DELETE", f"{recurring}/hourly"))[0] == 204
                if own:
                    break


async def _goes_on_when_its_node_drains(nodes: Nodes, path: str, leased: list[Any]) -> None:
    """Leases, receipts, waits, consumer instances: whoever uses a group does not notice."""
    await nodes.done("n1", "PUT", "/mq/v1/topics/quiet", json={"partitions": 1})
    v2 = {"Content-Type": "application/vnd.kafka.v2+json"}
    instance = "/consumers/readers/instances/one"
    made = {"name": "one", "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
    await nodes.done("n1", "POST", "/consumers/readers", json=made, headers=v2)
    await nodes.done("n1", "POST", f"{instance}/subscription", json={"topics": [TOPIC]}, headers=v2)
    accepts = {"Accept": "application/vnd.kafka.json.v2+json"}
    before = await nodes.done("n1", "GET", f"{instance}/records?max_bytes=300", headers=accepts)
    await nodes.done("n1", "POST", f"{instance}/offsets", headers=v2)
    wait = {"topics": ["quiet"], "wait_ms": 15_000, "start": "earliest", "max_messages": 1}
    patient = "/mq/v1/groups/patient/messages:receive"
    waiting = [asyncio.create_task(nodes.done("n1", "POST", patient, json=wait))]
    while (await nodes.ask("n2", "GET", "/mq/v1/groups/patient"))[0] != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    waiting.append(asyncio.create_task(nodes.done("n2", "POST", patient, json=wait)))
    ran = await asyncio.to_thread(mq, "broker", "drain", "n1", "--json", url=nodes.servers["n2"].url)
    row = orjson.loads(ran.stdout)
    assert (row["state"], row["groups"]) == ("drained", 0), ran.stderr
    acked = await nodes.done(
        "n1", "POST", path.replace("receive", "ack"), json={"receipts": [r["receipt"] for r in leased]}
    )
    assert [result["ok"] for result in acked["results"]] == [True] * len(leased)
    after = await nodes.done("n1", "GET", f"{instance}/records?max_bytes=300", headers=accepts)
    places = [(row["partition"], row["offset"]) for row in (*before, *after)]
    assert before
    assert after
    assert len(places) == len(set(places))
    await nodes.done("n1", "POST", "/topics/quiet", json={"records": [{"value": 1}, {"value": 2}]}, headers=JSON)
    found = [row for answer in await asyncio.gather(*waiting) for row in answer["messages"]]
    assert sorted((row["offset"], row["delivery_attempt"]) for row in found) == [(0, 1), (1, 1)]
    await nodes.done("n1", "PATCH", "/mq/v1/brokers/n1", json={"draining": False})


@pytest.mark.matrix
async def test_three_nodes_lose_nothing_while_one_is_killed(tmp_path: Path, etcd: EtcdServer) -> None:
    async with asyncio.timeout(4 * PATIENCE_S), served(tmp_path, etcd, Random(25), 3) as nodes:
        await faults(nodes, etcd, Random(25), ["none", "kill", "freeze", "etcd"])
        assert await nodes.servers["n1"].stop() == 0
        brokers = (await nodes.done("n2", "GET", "/mq/v1/brokers"))["brokers"]
        assert [row["state"] for row in brokers] == ["offline", "up", "up"]
        alone = Server(tmp_path / "n1" / "data", {"MQ_KAFKA_ENABLED": "false"})
        with pytest.raises(AssertionError, match="belongs to node n1 of cluster"):
            await alone.start()


@pytest.mark.matrix
async def test_what_a_dead_node_had_is_taken_over_and_read_again_when_it_is_back(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    async with asyncio.timeout(4 * PATIENCE_S), served(tmp_path, etcd, Random(27), 3) as nodes:
        await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": 1})
        await nodes.done("n1", "POST", f"/mq/v1/topics/{TOPIC}/partitions/0/move", json={"to": "n1"})
        path = f"/topics/{TOPIC}/partitions/0"
        receive = {"topics": [TOPIC], "max_messages": 2, "start": "earliest"}

        async def send(name: str, *values: int) -> list[int]:
            records = {"records": [{"value": value} for value in values]}
            return [
                row["offset"] for row in (await nodes.done(name, "POST", path, json=records, headers=JSON))["offsets"]
            ]

        assert await send("n2", 0, 1, 2) == [0, 1, 2]
        group = "/mq/v1/groups/lost/messages:receive"
        assert len((await nodes.done("n1", "POST", group, json=receive))["messages"]) == 2
        url = nodes.servers["n2"].url
        takeover = ("partition", "takeover", TOPIC, "0")
        refused = await asyncio.to_thread(mq, *takeover, "--accept-offline", url=url)
        assert "is there: move the partition" in refused.stderr
        await nodes.servers["n1"].kill()
        assert (await nodes.ask("n2", "POST", path, json={"records": [{"value": 0}]}, headers=JSON))[0] == 503
        for name in ("n2", "n3"):  # lists name the node that they lack
            for listed in ("groups", "recurring", "connections"):
                assert (await nodes.done(name, "GET", f"/mq/v1/{listed}"))["missing_nodes"] == ["n1"]
        warned = await asyncio.to_thread(mq, *takeover, url=url)
        assert warned.returncode == 2
        assert "nothing is skipped" in " ".join(warned.stderr.split())
        while (await nodes.done("n2", "GET", "/mq/v1/brokers"))["brokers"][0]["state"] != "offline":  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        taken = await asyncio.to_thread(mq, *takeover, "--accept-offline", "--to", "n3", "--json", url=url)
        route = orjson.loads(taken.stdout)
        (sealed, opened) = route["segments"]
        assert (sealed["broker"], opened["broker"], opened["first_offset"]) == ("n1", "n3", sealed["end_offset"])
        first = opened["first_offset"]
        assert await send("n2", 3, 4) == [first, first + 1]
        with pytest.raises(Refused, match="503"):
            await nodes.fetch("n2", 0, 0)
        assert [row.value for row in await nodes.fetch("n2", 0, first)] == [3, 4]
        ran = await asyncio.to_thread(mq, "broker", "takeover", "n1", "--accept-offline", "--json", url=url)
        assert orjson.loads(ran.stdout) == {"broker": "n1", "partitions": 0, "groups": ["lost"]}, ran.stderr
        assert (await nodes.ask("n3", "POST", "/mq/v1/groups/lost/messages:receive", json=receive))[0] == 503
        await nodes.servers["n1"].start()
        for name in nodes.servers:
            seen: list[Seen] = []
            while more := await nodes.fetch(name, 0, seen[-1].offset + 1 if seen else 0):
                seen += more
            assert [(row.offset, row.value) for row in seen] == [(0, 0), (1, 1), (2, 2), (first, 3), (first + 1, 4)]
        assert await send("n1", 5) == [first + 2]
        found: list[int] = []
        while len(found) < 6:
            answer = await nodes.done("n1", "POST", group, json={**receive, "max_messages": 10})
            found += [row["offset"] for row in answer["messages"]]
        assert found == [0, 1, 2, first, first + 1, first + 2], "the group begins anew"
        await _goes_on_over_the_gap(nodes, first)


async def _goes_on_over_the_gap(nodes: Nodes, first: int) -> None:
    """Readers of every other kind, from the first record on: consumer instances, sockets, lines, whole batches."""
    expected = [0, 1, 2, first, first + 1, first + 2]
    v2 = {"Content-Type": "application/vnd.kafka.v2+json"}
    made = {"name": "one", "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
    await nodes.done("n2", "POST", "/consumers/gap", json=made, headers=v2)
    instance = "/consumers/gap/instances/one"
    await nodes.done("n2", "POST", f"{instance}/subscription", json={"topics": [TOPIC]}, headers=v2)
    found: list[int] = []
    while len(found) < 6:
        accepts = {"Accept": "application/vnd.kafka.json.v2+json"}
        found += [row["offset"] for row in await nodes.done("n2", "GET", f"{instance}/records", headers=accepts)]
    assert found == expected
    async with mq_client.connect(nodes.servers["n2"].url) as client:
        read = []
        async for message in client.read(TOPIC, start="earliest"):
            read.append(message.offset)
            if len(read) == 6:
                break
    assert read == expected
    url = f"{nodes.servers['n2'].url}/mq/v1/topics/{TOPIC}/sse?from=earliest&partitions=0"
    seen = b""
    async with asyncio.timeout(PATIENCE_S), nodes._http.get(url) as stream:
        while seen.count(b'"offset":') < 6:
            piece = await stream.content.readany()
            assert piece, seen
            seen += piece
    events = [line.removeprefix(b"data: ") for line in seen.splitlines() if line.startswith(b"data: {")]
    assert [orjson.loads(line)["offset"] for line in events if b'"offset":' in line] == expected
    tasks, offsets = await asyncio.to_thread(_read_by_spark, nodes.servers["n2"].url)
    assert (tasks, offsets) == (1, expected)


def _read_by_spark(url: str) -> tuple[int, list[int]]:
    """What a batch read of Spark plans and reads: the gap is no records, and no tasks."""
    reader = BatchReader(Options.parse({"url": url, "subscribe": TOPIC}), ("offset",))
    tasks = reader.partitions()
    return len(tasks), [row for task in tasks for rows in reader.read(task) for row in rows.column(0).to_pylist()]


@pytest.mark.long
async def test_three_nodes_lose_nothing_in_many_rounds(tmp_path: Path, etcd: EtcdServer) -> None:
    random = Random(os.environ.get("MQ_CLUSTER_SEED", "24"))
    async with served(tmp_path, etcd, random, 3) as nodes:
        await faults(
            nodes, etcd, random, random.choices(["kill", "freeze", "etcd", "none"], [4, 2, 1, 2], k=LONG_ROUNDS)
        )


FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
"""Sets a process's clock; without it clocks are not stepped."""


class Linked(Nodes):
    """Nodes that reach each other, and etcd, through relays that can be cut, whose clocks are set, and at each of which
    a member of two groups is, over sockets: of `workers` in queue mode, and of `streamers` in stream mode."""

    sets_clocks = FAKETIME.exists()

    def __init__(self, directory: Path, etcd: EtcdServer, http: aiohttp.ClientSession, random: Random) -> None:
        super().__init__(directory, etcd, http, random)
        self._etcd = etcd
        self._relays = AsyncExitStack()
        self.inward: dict[str, Relay] = {}
        self.to_etcd: dict[str, Relay] = {}
        self.taken: dict[str, set[tuple[int, str]]] = {"workers": set(), "streamers": set()}
        """What the members of each group were given. An ack whose answer is lost may have been carried out."""

    async def start(self, name: str, *, joined: bool = False, **more: str) -> None:
        internal = f"http://127.0.0.1:{(port := free_port())}"
        self.inward[name] = await self._relays.enter_async_context(Relay(internal))
        self.to_etcd[name] = await self._relays.enter_async_context(Relay(self._etcd.config.endpoints[-1]))
        own = {
            "MQ_CLUSTER_INTERNAL_PORT": str(port),
            "MQ_CLUSTER_INTERNAL_URL": self.inward[name].url,
            "MQ_CLUSTER_ETCD": self.to_etcd[name].url,
        }
        if self.sets_clocks:
            self._clock(name).parent.mkdir(exist_ok=True)
            self.step_clock(name, 0)
            own |= {
                "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self._clock(name)),
                "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }  # fmt: skip
        await super().start(name, joined=joined, **own, **more)

    def _clock(self, name: str) -> Path:
        return self._directory / name / "clock"

    def step_clock(self, name: str, seconds: int) -> None:
        """Set a node's clock that far from the true time, within a second."""
        beside = self._clock(name).with_suffix(".new")
        beside.write_text(f"{seconds:+d}\n")
        beside.replace(self._clock(name))

    async def clock_ahead_s(self, name: str) -> float:
        """How far a node's clock is ahead of the true time, by what it says."""
        async with self._http.get(self.servers[name].url + "/healthz") as answer:
            return parsedate_to_datetime(answer.headers["Date"]).timestamp() - time.time()

    async def work(self, name: str) -> None:
        """Take records of a group over a socket and ack each, until it is cancelled."""
        while True:
            with suppress(mq_client.MqError, aiohttp.ClientError, OSError, ExceptionGroup):
                async with (
                    mq_client.connect(self.servers[name].url, retry=PATIENCE_S) as client,
                    client.group("workers").queue(TOPIC, start="earliest", lease=10) as queue,
                    asyncio.TaskGroup() as acks,
                ):
                    async for message in queue:
                        self.taken["workers"].add((message.partition, message.value))
                        acks.create_task(_acked(message))
            await asyncio.sleep(0.1)

    async def stream(self, name: str) -> None:
        """Consume in order as a member of a group, over a socket, until it is cancelled."""
        while True:
            with suppress(mq_client.MqError, aiohttp.ClientError, OSError, ExceptionGroup):
                async with (
                    mq_client.connect(self.servers[name].url, retry=PATIENCE_S) as client,
                    client.group("streamers").stream(TOPIC, start="earliest", member=name) as messages,
                ):
                    async for message in messages:
                        self.taken["streamers"].add((message.partition, message.value))
            await asyncio.sleep(0.1)

    async def lag(self, group: str) -> int | None:
        """How much a group has to do; None: it is not known now."""
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            return (await self.ask("n1", "GET", f"/mq/v1/groups/{group}/lag"))[1].get("total_lag")  # type: ignore[no-any-return]
        return None

    def untaken(self, group: str) -> set[tuple[int, str]]:
        """What was accepted, and no member was given."""
        accepted = {(send.partition, send.value) for send in self.history.sends if send.outcome is Outcome.OK}
        return accepted - self.taken[group]

    async def end(self) -> None:
        for relay in (*self.inward.values(), *self.to_etcd.values()):
            relay.mend()
        await super().end()
        await self._relays.aclose()


async def _acked(message: Any) -> None:
    with suppress(mq_client.LeaseLost):  # it comes again, if it was not acked
        await message.ack()


CUT_S = SESSION_TTL_MS / 1000 + 1.0
"""How long nodes are frozen or cut off: others see that their session has ended."""

LINK_FAULTS = ("freeze", "cut-requests", "cut-answers", "cut-etcd", "clock")


async def disturb(nodes: Linked, kind: str, name: str, random: Random) -> None:
    """One fault of a node, from its beginning to its end."""
    server, inward, to_etcd = nodes.servers[name], nodes.inward[name], nodes.to_etcd[name]
    if kind == "none":
        await asyncio.sleep(1)
    elif kind == "kill":
        await server.kill()
        await asyncio.sleep(random.random())
        await server.start()
    elif kind == "freeze":
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(CUT_S)
        server.signal(signal.SIGCONT)
    elif kind == "clock":
        nodes.step_clock(name, by_s := random.choice((-10, 10)))
        await asyncio.sleep(3)
        stepped_s = await nodes.clock_ahead_s(name)
        nodes.step_clock(name, 0)
        assert abs(stepped_s - by_s) < 5, f"the clock of {name} is {stepped_s} s ahead instead of {by_s} s"
    else:
        relay = to_etcd if kind == "cut-etcd" else inward
        before = relay.held_count
        relay.cut(Direction.ANSWERS if kind == "cut-answers" else Direction.REQUESTS)
        await asyncio.sleep(CUT_S)
        relay.mend()
        assert relay.held_count > before, f"{kind} of {name} held nothing"


async def link_faults(nodes: Linked, random: Random, kinds: Sequence[str]) -> None:
    """Senders over HTTP, readers, members of two groups over sockets; one fault after the other in the middle of moves.
    After each one every partition takes records again within 60 s; at the end both groups were given everything."""
    await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
    names = list(nodes.servers)
    members = [asyncio.create_task(run(name)) for name in names for run in (nodes.work, nodes.stream)]
    async with loaded(nodes):
        for kind in kinds:
            print(f"fault {kind}", flush=True)
            moves = [
                asyncio.create_task(nodes.move(partition, random.choice(names))) for partition in range(PARTITIONS)
            ]
            await asyncio.sleep(random.random() * 0.03)
            fault = asyncio.create_task(disturb(nodes, kind, random.choice(names), random))
            while not fault.done():
                await nodes.move(random.randrange(PARTITIONS), random.choice(names))
                await asyncio.sleep(0.2 + 5 * nodes.rest_s)
            fault.result()
            await asyncio.wait(moves)
            for partition in range(PARTITIONS):
                async with asyncio.timeout(60):
                    while not await nodes.move(partition, random.choice(names)):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            count = nodes.history.count(Outcome.OK)
            await until(lambda count=count: nodes.history.count(Outcome.OK) > count + 20, pause_s=0.005)  # type: ignore[misc]
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            for group in nodes.taken:
                while nodes.untaken(group) or await nodes.lag(group) != 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
    for group in nodes.taken:
        assert (nodes.untaken(group), await nodes.lag(group)) == (set(), 0), group
    for member in members:
        member.cancel()
    counts = {group: len(taken) for group, taken in nodes.taken.items()}
    print(f"moves={nodes.moves} acknowledged={nodes.history.count(Outcome.OK)} taken={counts}")


class Leisurely(Linked):
    """A load that costs little: what it meets is the same. No clock is set, as the library for that costs at each look
    at the clock, and keeps servers from being forked."""

    rest_s = 0.25
    sets_clocks = False


async def test_three_nodes_lose_nothing_in_three_rounds_of_faults(tmp_path: Path, etcd: EtcdServer) -> None:
    async with asyncio.timeout(4 * PATIENCE_S), served(tmp_path, etcd, Random(30), 3, Leisurely) as nodes:
        assert isinstance(nodes, Linked)
        await link_faults(nodes, Random(30), ["kill", "cut-answers", "cut-etcd"])


@pytest.mark.matrix
async def test_three_nodes_lose_nothing_while_one_is_cut_off_or_its_clock_is_set(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    async with asyncio.timeout(6 * PATIENCE_S), served(tmp_path, etcd, Random(26), 3, Linked) as nodes:
        assert isinstance(nodes, Linked)
        kinds = [kind for kind in LINK_FAULTS if kind != "clock" or FAKETIME.exists()]
        await link_faults(nodes, Random(26), kinds)


@pytest.mark.long
async def test_three_nodes_lose_nothing_in_many_rounds_of_cuts(tmp_path: Path, etcd: EtcdServer) -> None:
    random = Random(os.environ.get("MQ_CLUSTER_SEED", "26"))
    async with served(tmp_path, etcd, random, 3, Linked) as nodes:
        assert isinstance(nodes, Linked)
        kinds = [kind for kind in LINK_FAULTS if kind != "clock" or FAKETIME.exists()]
        await link_faults(nodes, random, random.choices(kinds, k=LONG_ROUNDS))


async def moves_by_pause(nodes: Nodes) -> dict[float, int]:
    """How many moves all nodes made since they were started, by the upper bound of their pause in seconds."""
    found: Counter[float] = Counter()
    for server in nodes.servers.values():
        async with nodes._http.get(f"{server.url}/metrics") as metrics:
            lines = [line for line in (await metrics.text()).splitlines() if "mq_move_pause_seconds_bucket" in line]
        below = 0
        for line in lines:
            bound, count = float(line.split('"')[1]), int(float(line.rsplit(" ", 1)[1]))
            found[bound] += count - below
            below = count
    return dict(found)


def pause_below(counts: dict[float, int], share: float) -> float:
    """The upper bound of the bucket in which this share of the pauses ends, in seconds."""
    left = share * sum(counts.values())
    for bound in sorted(counts):
        left -= counts[bound]
        if left <= 0:
            return bound
    raise AssertionError


@pytest.mark.long
async def test_how_long_moves_under_load_pause_without_faults(tmp_path: Path, etcd: EtcdServer) -> None:
    """Prints it: a time is no reason to fail where other programs use the machine as well (`-s` shows it). Nodes reach
    each other and etcd directly: a relay would be measured with them."""
    random = Random(os.environ.get("MQ_CLUSTER_SEED", "28"))
    async with served(tmp_path, etcd, random, 3) as nodes:
        nodes.rest_s = 0.02
        await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
        async with loaded(nodes):
            for number in range(LONG_ROUNDS * PARTITIONS):
                await nodes.move(number % PARTITIONS, random.choice(list(nodes.servers)))
                await asyncio.sleep(nodes.rest_s)
        counts = await moves_by_pause(nodes)
        print(f"pauses={counts} p50<={pause_below(counts, 0.5)} p99<={pause_below(counts, 0.99)}")
        assert sum(counts.values()) >= PARTITIONS


async def faults(nodes: Nodes, etcd: EtcdServer, random: Random, kinds: list[str]) -> None:
    """Load, and one fault after the other in the middle of moves. Every partition takes records again afterwards."""
    await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
    names = list(nodes.servers)
    async with loaded(nodes):
        for kind in kinds:
            print(f"fault {kind}", flush=True)
            moves = [
                asyncio.create_task(nodes.move(partition, random.choice(names))) for partition in range(PARTITIONS)
            ]
            await asyncio.sleep(random.random() * 0.03)
            server = nodes.servers[random.choice(names)]
            if kind == "kill":
                await server.kill()
                await asyncio.sleep(random.random())
                await server.start()
            elif kind == "freeze":
                server.signal(signal.SIGSTOP)
                await asyncio.sleep(0.5)
                server.signal(signal.SIGCONT)
            elif kind == "etcd":
                etcd.stop()
                await asyncio.sleep(random.random())
                etcd.start()
            await asyncio.wait(moves)
            for partition in range(PARTITIONS):
                async with asyncio.timeout(60):
                    while not await nodes.move(partition, random.choice(names)):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            count = nodes.history.count(Outcome.OK)
            await until(lambda count=count: nodes.history.count(Outcome.OK) > count + 20, pause_s=0.005)  # type: ignore[misc]
    print(f"moves={nodes.moves} acknowledged={nodes.history.count(Outcome.OK)}")


def _now_ms() -> float:
    return time.monotonic() * 1000

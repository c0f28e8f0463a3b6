"""Every node of a cluster is restarted, and drained and restarted, one after the other, while applications use it
through the Python and the JavaScript client: no error reaches them, and what they saw is whole.

Each application knows one node. It sends, reads all of the topic, works a queue, follows an event stream and asks over
HTTP. Covers gateway.routing.patience.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import mq as mq_client
import orjson
import pytest

from gateway.routing.patience import AWAY_S
from tests.e2e import test_js
from tests.e2e.server import DIES_WITH_US
from tests.gateway.cluster.etcd_server import EtcdServer
from tests.gateway.cluster.test_served import JSON, PARTITIONS, TOPIC, Nodes, served
from tests.history import Recorder, Seen, check
from tests.waiting import PATIENCE_S

DRIVER = Path(__file__).with_name("rolling_client.mjs")
MODULE = test_js.CLIENT / "dist" / "node.js"
NAMES = ("n1", "n2", "n3")
ANSWERS = 3
"""How often each application sends and asks with success between two restarts, however long that takes."""

RETRY_S = 4 * PATIENCE_S
"""How long clients try again: longer than a node takes to restart, also on a machine that is busy."""


class Application:
    """What one application has sent, and seen: places and values. An error ends its task, and the test."""

    def __init__(self, name: str, url: str, group: str) -> None:
        self.name, self.url, self.group = name, url, group
        self.sent: list[tuple[str, int, int, float, float]] = []
        self.read: list[tuple[int, int, str]] = []
        self.worked: list[tuple[int, int, str]] = []
        self.streamed: list[tuple[int, int, str]] = []
        self.asked = 0
        self.errors: list[str] = []
        self.has_stopped = asyncio.Event()

    async def goes_on(self) -> None:
        """Return when more of its requests have been answered. While a node is away those that need it are not, and
        what a client that tries again now and then gets done between two restarts is as much as there is time for."""
        asked, sent = self.asked + ANSWERS, len(self.sent) + ANSWERS
        await _until(lambda: self.errors or (self.asked >= asked and len(self.sent) >= sent))

    async def run(self, is_over: asyncio.Event, all_stopped: asyncio.Event) -> None:
        """Send until it is over, and when all have stopped, read and work on until there is nothing left."""
        async with mq_client.connect(self.url, retry=RETRY_S) as client, asyncio.TaskGroup() as tasks:
            reading = [
                tasks.create_task(self._guarded(work))
                for work in (lambda: self._read(client), lambda: self._work(client), self._stream)
            ]
            await asyncio.gather(
                self._guarded(lambda: self._send(client, is_over)), self._guarded(lambda: self._ask(client, is_over))
            )
            self.has_stopped.set()
            await all_stopped.wait()
            answer = await client.http.call("GET", f"/mq/v1/topics/{TOPIC}/offsets")
            ends = {row["partition"]: row["end_offset"] for row in answer["partitions"]}
            for seen in (self.read, self.streamed):
                await _until(lambda seen=seen: all(_has(seen, *end) for end in ends.items()))  # type: ignore[misc]
            await _until(lambda: len({row[:2] for row in self.worked}) >= sum(ends.values()))
            for task in reading:
                task.cancel()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except* (mq_client.MqError, aiohttp.ClientError, AssertionError) as errors:
            self.errors += [f"{self.name}: {error!r}" for error in errors.exceptions]

    async def _send(self, client: mq_client.Client, is_over: asyncio.Event) -> None:
        number = 0
        while not is_over.is_set():
            value, partition = f"{self.name}-{number}", number % PARTITIONS
            begun_ms = time.monotonic() * 1000
            receipt = await client.send(TOPIC, value, partition=partition)
            assert receipt.offset is not None
            self.sent.append((value, receipt.partition, receipt.offset, begun_ms, time.monotonic() * 1000))
            number += 1
            await asyncio.sleep(0.02)

    async def _ask(self, client: mq_client.Client, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            await client.http.call("GET", f"/mq/v1/topics/{TOPIC}")
            self.asked += 1
            await asyncio.sleep(0.1)

    async def _read(self, client: mq_client.Client) -> None:
        async for message in client.read(TOPIC, start="earliest"):
            self.read.append((message.partition, message.offset, message.value))

    async def _work(self, client: mq_client.Client) -> None:
        async with client.group(self.group).queue(TOPIC, start="earliest") as queue, asyncio.TaskGroup() as acks:
            async for message in queue:
                acks.create_task(self._done(message))

    async def _done(self, message: Any) -> None:
        with suppress(mq_client.LeaseLost):  # it comes again
            await message.ack()
            self.worked.append((message.partition, message.offset, message.value))

    async def _stream(self) -> None:
        """As a browser's EventSource: after an end it comes back with the last id."""
        last_id = None
        async with aiohttp.ClientSession() as http:
            while True:
                headers = {} if last_id is None else {"Last-Event-ID": last_id}
                url = f"{self.url}/mq/v1/topics/{TOPIC}/sse?from=earliest&format=json"
                try:
                    async with http.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as answer:
                        if answer.status == 503:  # a browser's would be made anew by its page
                            await asyncio.sleep(0.2)
                            continue
                        assert answer.status == 200, await answer.text()
                        last_id = await self._events(answer, last_id)
                except (aiohttp.ClientError, OSError):
                    await asyncio.sleep(0.2)

    async def _events(self, answer: aiohttp.ClientResponse, last_id: str | None) -> str | None:
        name, data, seen_id = "", "", last_id
        with suppress(aiohttp.ClientError):
            async for raw in answer.content:
                field, _, text = raw.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = text
                elif field == "data":
                    data = text
                elif field == "id":
                    seen_id = text
                elif not field:
                    last_id = seen_id
                    assert name != "error", data
                    if name == "message":
                        row = json.loads(data)
                        self.streamed.append((row["partition"], row["offset"], row["value"]))
                    name = ""
        return last_id


class JsApplication(Application):
    """The same in a process of Node, but for the event stream."""

    def __init__(self, name: str, url: str, group: str) -> None:
        super().__init__(name, url, group)
        self._begun: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()

    async def goes_on(self) -> None:
        """As of any other one, as its process says."""
        process = await asyncio.wait_for(asyncio.shield(self._begun), 2 * PATIENCE_S)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{ANSWERS}\n".encode())
        assert await asyncio.wait_for(process.stdout.readline(), 2 * PATIENCE_S) == b"gone on\n"

    async def run(self, is_over: asyncio.Event, all_stopped: asyncio.Event) -> None:
        process = await asyncio.create_subprocess_exec(
            *DIES_WITH_US, "node", str(DRIVER), str(MODULE), self.url, TOPIC, self.group, self.name, str(PARTITIONS),
            str(round(RETRY_S * 1000)),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert await process.stdout.readline() == b"ready\n"
            self._begun.set_result(process)
            await is_over.wait()
            process.stdin.write(b"over\n")
            assert await process.stdout.readline() == b"stopped\n"
            self.has_stopped.set()
            await all_stopped.wait()
            process.stdin.close()
            seen = orjson.loads(await process.stdout.readline())
            for name, rows in seen.items():
                setattr(self, name, [tuple(row) for row in rows] if name not in ("asked", "errors") else rows)
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()


@asynccontextmanager
async def used(
    nodes: Nodes, kinds: list[type[Application]], group: str, seeds: Application
) -> AsyncIterator[list[Application]]:
    """Applications of each kind at every node while the block runs; at its end what they saw is judged."""
    is_over, all_stopped = asyncio.Event(), asyncio.Event()
    applications = []
    for kind in kinds:
        for at in NAMES:
            name = f"{kind.__name__[:2].lower()}-{at}"
            applications.append(kind(name, nodes.servers[at].url, f"{group}-{name}"))  # each does all of the work
    running = [asyncio.create_task(application.run(is_over, all_stopped)) for application in applications]
    try:
        yield applications
        is_over.set()
        stopped = [asyncio.create_task(application.has_stopped.wait()) for application in applications]
        await asyncio.wait([asyncio.gather(*stopped), *running], return_when=asyncio.FIRST_COMPLETED)
        all_stopped.set()
        await asyncio.wait_for(asyncio.gather(*running), 4 * PATIENCE_S)
    finally:
        for task in running:
            task.cancel()
        for application in applications:
            print(f"{application.name}: sent {len(application.sent)} read {len(application.read)} worked "
                  f"{len(application.worked)} streamed {len(application.streamed)} asked {application.asked} "
                  f"errors {application.errors}")  # fmt: skip
    await judge(nodes, [seeds, *applications])


async def judge(nodes: Nodes, applications: list[Application]) -> None:
    """No error, every record once, offsets without a gap, all of them worked on."""
    assert [error for application in applications for error in application.errors] == []
    history = Recorder()
    for application in applications:
        for value, partition, offset, begun_ms, ended_ms in application.sent:
            send = history.send(value, partition, begun_ms)
            if application.name.startswith("ap"):  # the clock of another process is another one
                send.ok(ended_ms, offset)
            else:
                send.ok(float("inf"), offset)
                send.begun_ms = 0.0
        assert application.asked > 5
    for partition in range(PARTITIONS):
        seen: list[Seen] = []
        while more := await nodes.fetch("n1", partition, len(seen)):
            seen += more
        history.final_read(partition, seen)
        places = [(partition, row.offset, row.value) for row in seen]
        for application in applications:
            if application is applications[0]:  # it has only sent
                continue
            readers = {"read": application.read}
            if application.streamed:
                readers["streamed"] = application.streamed
            for what, rows in readers.items():
                own = [row for row in rows if row[0] == partition]
                assert own == places, (application.name, what)
    assert check(history) == []
    for application in applications[1:]:
        await _until_lag_is_none(nodes, application.group)
        assert {row[2] for row in application.worked} == {send.value for send in history.sends}, application.name


async def _until_lag_is_none(nodes: Nodes, group: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await nodes.ask("n2", "GET", f"/mq/v1/groups/{group}/lag"))[1].get("total_lag") != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(2 * PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _has(seen: list[tuple[int, int, str]], partition: int, end: int) -> bool:
    return any(row[0] == partition and row[1] == end - 1 for row in reversed(seen)) if end else True


async def _spread(nodes: Nodes) -> Application:
    """Each partition has sealed records on every node, and its open segment on another one than the others; who sent
    them."""
    seeds = Application("ap-seeds", "", "")
    seeds.asked = 10
    await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
    for shift in (0, 1, 2):
        for partition in range(PARTITIONS):
            to = NAMES[(partition + shift) % len(NAMES)]
            await nodes.done("n1", "POST", f"/mq/v1/topics/{TOPIC}/partitions/{partition}/move", json={"to": to})
            values = [f"seed-{shift}-{partition}-{number}" for number in range(20)]
            records = {"records": [{"value": value, "partition": partition} for value in values]}
            answer = await nodes.done("n1", "POST", f"/topics/{TOPIC}", json=records, headers=JSON)
            seeds.sent += [
                (value, partition, row["offset"], 0.0, float("inf"))
                for value, row in zip(values, answer["offsets"], strict=True)
            ]
    return seeds


async def restart(nodes: Nodes, name: str, *, away_s: float = 0.0) -> None:
    """As an operator does it: SIGTERM, and the next version starts."""
    begun_s = time.monotonic()
    assert await nodes.servers[name].stop() == 0, nodes.servers[name].log()[-4000:]
    stopped_s = time.monotonic()
    await asyncio.sleep(away_s)
    await nodes.servers[name].start()
    async with asyncio.timeout(PATIENCE_S):
        while (await nodes.ask(name, "GET", "/readyz"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    print(f"{name} stopped in {stopped_s - begun_s:.1f} s, was back after {time.monotonic() - stopped_s:.1f} s")


async def drained(nodes: Nodes, name: str) -> None:
    """Return when a node has nothing any more."""
    other = next(each for each in NAMES if each != name)
    await nodes.done(other, "PATCH", f"/mq/v1/brokers/{name}", json={"draining": True})
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            _, answer = await nodes.ask(other, "GET", "/mq/v1/brokers")
            (row,) = [each for each in answer["brokers"] if each["broker"] == name]
            if row["state"] == "drained":
                return
            await asyncio.sleep(0.1)


async def roll(nodes: Nodes, applications: list[Application], *, drains: bool, away_s: float = 0.0) -> None:
    """Every node in turn, each when all applications have gone on since the one before."""
    await asyncio.gather(*[application.goes_on() for application in applications])
    for name in NAMES:
        if drains:
            await drained(nodes, name)
        await restart(nodes, name, away_s=away_s)
        if drains:
            await nodes.done(name, "PATCH", f"/mq/v1/brokers/{name}", json={"draining": False})
        await asyncio.gather(*[application.goes_on() for application in applications])


@pytest.fixture(scope="module")
def client_is_built() -> None:
    if (reason := test_js.why_missing()) is not None:
        pytest.skip(reason)
    test_js.install_packages()
    test_js.run("npm", "run", "build", "--", "--dist-only")


@pytest.mark.matrix
async def test_every_node_is_restarted_and_no_python_application_notices(tmp_path: Path, etcd: EtcdServer) -> None:
    async with asyncio.timeout(6 * PATIENCE_S), served(tmp_path, etcd, Random(30), 3) as nodes:
        seeds = await _spread(nodes)
        async with used(nodes, [Application], "workers", seeds) as applications:
            await roll(nodes, applications, drains=False)


@pytest.mark.matrix
@pytest.mark.parametrize("drains", [False, True], ids=["restart", "drain"])
async def test_a_rolling_restart_reaches_no_application_as_an_error(
    client_is_built: None, tmp_path: Path, etcd: EtcdServer, drains: bool
) -> None:
    async with asyncio.timeout(8 * PATIENCE_S), served(tmp_path, etcd, Random(31), 3) as nodes:
        seeds = await _spread(nodes)
        async with used(nodes, [Application, JsApplication], "workers", seeds) as applications:
            await roll(nodes, applications, drains=drains, away_s=0.0 if drains else 6.0)


@pytest.mark.matrix
async def test_a_node_that_is_away_holds_up_only_what_it_has(tmp_path: Path, etcd: EtcdServer) -> None:
    """Partition 0 has sealed records on n2, partition 1 none. While n2 is away, whoever follows both gets those of
    partition 1; a read of what n2 has waits, and is refused when n2 is away for long; then all of it is read."""
    async with asyncio.timeout(4 * PATIENCE_S), served(tmp_path, etcd, Random(32), 2) as nodes:
        await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": 2})
        for partition, node in ((0, "n2"), (1, "n1")):
            await _move(nodes, partition, node)
        sent = [(partition, offset, f"{partition}-{offset}") for partition in (0, 1) for offset in (0, 1)]
        await _send(nodes, *sent[:1])
        await _move(nodes, 0, "n1")
        application = Application("ap-n1", nodes.servers["n1"].url, "away-n1")
        async with mq_client.connect(application.url, retry=RETRY_S) as client:
            assert await nodes.servers["n2"].stop() == 0
            await _send(nodes, *sent[1:])
            following = [
                asyncio.create_task(work)
                for work in (application._read(client), application._work(client), application._stream())
            ]
            reading = asyncio.create_task(nodes.ask("n1", "GET", f"/topics/{TOPIC}/partitions/0/records?offset=0"))
            ready = [row for row in sent if row[0] == 1]
            for seen in (application.read, application.worked, application.streamed):
                await _until(lambda seen=seen: seen == ready)  # type: ignore[misc]
            answer = await nodes.done("n1", "POST", "/mq/v1/groups/away/messages:receive", json=_receive(100))
            assert {row["partition"] for row in answer["messages"]} == {1}
            instance = await _instance(nodes)
            records = await nodes.done("n1", "GET", f"{instance}/records?timeout=500", headers=ACCEPTS)
            assert [(row["partition"], row["offset"]) for row in records] == [row[:2] for row in ready]
            status, refused = await reading
            assert (status, refused["retriable"]) == (503, True)
            begun_s = time.monotonic()
            assert (await nodes.ask("n1", "GET", f"/topics/{TOPIC}/partitions/0/records?offset=0"))[0] == 503
            assert time.monotonic() - begun_s < AWAY_S, "it has been away for long"
            empty = await nodes.ask("n1", "POST", "/mq/v1/groups/away/messages:receive", json=_receive(100))
            assert empty[0] == 503, "there is more, and it cannot be had"
            await nodes.servers["n2"].start()
            for seen in (application.read, application.worked, application.streamed):
                await _until(lambda seen=seen: sorted(seen) == sent)  # type: ignore[misc]
            records = await nodes.done("n1", "GET", f"{instance}/records?timeout=20000", headers=ACCEPTS)
            assert [(row["partition"], row["offset"]) for row in records] == [(0, 0), (0, 1)]
            for task in following:
                task.cancel()


ACCEPTS = {"Accept": "application/vnd.kafka.json.v2+json"}


async def _instance(nodes: Nodes) -> str:
    v2 = {"Content-Type": "application/vnd.kafka.v2+json"}
    made = {"name": "one", "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
    await nodes.done("n1", "POST", "/consumers/readers", json=made, headers=v2)
    instance = "/consumers/readers/instances/one"
    partitions = [{"topic": TOPIC, "partition": partition} for partition in (0, 1)]
    await nodes.done("n1", "POST", f"{instance}/assignments", json={"partitions": partitions}, headers=v2)
    return instance


def _receive(wait_ms: int) -> dict[str, object]:
    return {"topics": [TOPIC], "max_messages": 10, "start": "earliest", "wait_ms": wait_ms}


async def _move(nodes: Nodes, partition: int, to: str) -> None:
    await nodes.done("n1", "POST", f"/mq/v1/topics/{TOPIC}/partitions/{partition}/move", json={"to": to})


async def _send(nodes: Nodes, *sent: tuple[int, int, str]) -> None:
    for partition, offset, value in sent:
        path = f"/topics/{TOPIC}/partitions/{partition}"
        answer = await nodes.done("n1", "POST", path, json={"records": [{"value": value}]}, headers=JSON)
        assert answer["offsets"][0]["offset"] == offset

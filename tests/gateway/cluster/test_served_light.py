"""Light queues over three `mq serve` with a real etcd: sends, pulls, sockets, devices and workers, each by any node,
while their partitions move and a node is killed.

Covers gateway.main.group_moves (offsets in light queues) and gateway.surfaces.http.forwarding (groups of light queues).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.errors import NO_LIGHT_QUEUES, OVERLOADED
from tests.gateway.cluster.etcd_server import EtcdServer
from tests.gateway.cluster.test_served import JSON, PARTITIONS, TOPIC, Nodes, Refused, served
from tests.waiting import PATIENCE_S, until

QUEUES = [f"user/{number}" for number in range(4)] + ["room/1"]
READ = [*QUEUES[:2], "room/1"]
"""By pulls, and by an event stream."""

LOST = (aiohttp.ClientError, TimeoutError, OSError, Refused)
EVENTS_A_NODE = 20
PATH = f"/mq/v1/topics/{TOPIC}/queues/"


def path_of(queue: str) -> str:
    return PATH + queue.replace("/", "%2F")


class LightNodes(Nodes):
    """Clients of light queues. What they saw: by queue, partition and offset there, the record."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._settings["MQ_STORE_INDEX"] = "rocksdb"
        self.accepted: dict[str, list[str]] = {}  # by value, its queues
        self.sent: dict[str, list[str]] = {}
        self.shown: dict[tuple[str, int, int], tuple[int, str]] = {}
        self.read_values: dict[str, list[str]] = defaultdict(list)
        self.pushed: set[str] = set()
        self.last: object = None
        self.worked: set[str] = set()
        self.streamed_by: Counter[str] = Counter()

    def show(self, queue: str, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            place = (queue, row["partition"], row["queue_offset"])
            seen = (row["offset"], row["value"])
            assert self.shown.setdefault(place, seen) == seen, "an offset that was shown has another record"

    async def send_light(self, client: str) -> None:
        number = 0
        while not self.is_over:
            number += 1
            value = f"{client}-{number}"
            queues = self.sent[value] = self._random.sample(QUEUES, self._random.randrange(1, 4))
            record: dict[str, object] = {"value": value, "queues": queues, "msg_id": value}
            if number % 10 == 0:
                record["delay_ms"] = 30
            while not self.is_over:
                with suppress(*LOST):
                    status, answer = await self.ask(
                        self.any(), "POST", f"/topics/{TOPIC}", json={"records": [record]}, headers=JSON
                    )
                    if status == 200 and answer["offsets"][0].get("error_code") is None:
                        self.accepted[value] = queues
                        break
                    assert status in (200, 503), answer
                await asyncio.sleep(0.01)

    async def page(self, node: str, queue: str, cursor: str | None, wait_ms: int, **more: str) -> dict[str, Any]:
        params = {"timeout": str(wait_ms), **({} if cursor is None else {"cursor": cursor}), **more}
        status, answer = await self.ask(node, "GET", path_of(queue) + "/records", params=params)
        if status != 200:
            raise Refused(answer)
        self.show(queue, answer["records"])
        found: dict[str, Any] = answer
        return found

    async def pull(self, queue: str) -> None:
        """By any node, each time; none twice."""
        cursor = None
        while not self.is_over:
            try:
                page = await self.page(self.any(), queue, cursor, 200)
            except LOST:
                await asyncio.sleep(0.02)
                continue
            cursor = page["next_cursor"]
            self.read_values[queue] += [row["value"] for row in page["records"]]

    async def work(self, queue: str) -> None:
        """Queue mode, each request by any node."""
        while not self.is_over:
            with suppress(*LOST):
                body = {"topics": [TOPIC], "queue": queue, "wait_ms": 200, "invisible_ms": 3000}
                status, answer = await self.ask(self.any(), "POST", "/mq/v1/groups/workers/messages:receive", json=body)
                self.last = answer
                if status != 200:
                    assert status == 503, answer
                    raise Refused(answer)
                self.show(queue, answer["messages"])
                receipts = [message["receipt"] for message in answer["messages"]]
                if receipts:
                    given = {message["value"] for message in answer["messages"]}
                    self.worked |= given  # also when it is not known whether the ack was done
                    status, done = await self.ask(
                        self.any(), "POST", "/mq/v1/groups/workers/messages:ack", json={"receipts": receipts}
                    )
                    if status == 200:
                        rows = zip(answer["messages"], done["results"], strict=True)
                        self.worked -= {message["value"] for message, result in rows if not result["ok"]}
                    else:
                        assert status == 503, done
                        self.worked -= given
                continue
            await asyncio.sleep(0.02)

    async def inbox(self, queue: str) -> None:
        """A socket of a device, which says how far it has come, of what it has taken in; opened on another node when it
        closes. With `auto_ack` what was on its way to a socket that ends is done."""
        while not self.is_over:
            with suppress(*LOST, TypeError):
                url = self.servers[self.any()].url.replace("http", "ws") + "/ws/v1"
                async with self._http.ws_connect(url) as socket:
                    await socket.send_json(
                        {
                            "op": "subscribe",
                            "id": 1,
                            "sub": "s",
                            "topics": [TOPIC],
                            "queue": queue,
                            "mode": "stream",
                            "group": "device",
                            "auto_credit": True,
                            "start": "earliest",
                        }
                    )
                    answer = await socket.receive_json()
                    assert answer["ok"] or answer["retriable"], answer
                    while not self.is_over:
                        message = await asyncio.wait_for(socket.receive_json(), 5)
                        if message.get("op") == "messages":
                            self.show(queue, message["messages"])
                            self.pushed |= {row["value"] for row in message["messages"]}
                            ends = {row["partition"]: row["queue_offset"] for row in message["messages"]}
                            up_to = [{"topic": TOPIC, "partition": at, "offset": end} for at, end in ends.items()]
                            await socket.send_json({"op": "ack", "id": 2, "sub": "s", "up_to": up_to})
            await asyncio.sleep(0.02)

    async def stream(self, queue: str) -> None:
        """Server-Sent Events, after some of them by another node, from the last id on; none twice."""
        last_id = ""
        while not self.is_over:
            node = self.any()
            url = self.servers[node].url + path_of(queue) + "/sse"
            headers = {"Last-Event-ID": last_id} if last_id else {}
            with suppress(*LOST):
                async with self._http.get(url, params={"from": "earliest"}, headers=headers) as response:
                    if response.status != 200:
                        assert response.status == 503, await response.text()
                        raise Refused
                    event: dict[str, str] = {}
                    for _ in range(EVENTS_A_NODE):
                        event.clear()
                        while line := (await asyncio.wait_for(response.content.readline(), 5)).decode():
                            if line == "\n":
                                break
                            name, _, text = line.rstrip("\n").partition(": ")
                            event[name] = text
                        else:
                            break  # it has ended, maybe within an event
                        last_id = event.get("id", last_id)
                        if event.get("event") == "message":
                            row = orjson.loads(event["data"])
                            self.show(queue, [row])
                            self.read_values[queue].append(row["value"])
                            self.streamed_by[node] += 1
                        elif event.get("event") == "error":
                            assert orjson.loads(event["data"])["error_code"] == OVERLOADED, event
            await asyncio.sleep(0.02)

    async def until_done(self, queue: str, found: Callable[[], Collection[str]]) -> None:
        """Wait for all that was accepted for a queue by now."""
        wanted = {value for value, queues in self.accepted.items() if queue in queues}
        with suppress(TimeoutError):
            await until(lambda: wanted <= set(found()))
        assert wanted <= set(found()), (queue, sorted(wanted - set(found())), self.last)


@pytest.mark.matrix
async def test_light_queues_are_served_by_every_node_while_partitions_move_and_a_node_is_killed(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    random = Random(28)
    async with asyncio.timeout(4 * PATIENCE_S), served(tmp_path, etcd, random, 3, kind=LightNodes) as nodes:
        assert isinstance(nodes, LightNodes)
        await nodes.done("n1", "PUT", f"/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
        await nodes.start("g1", joined=True)  # without a store
        work = [
            asyncio.create_task(one)
            for one in (
                *(nodes.send_light(f"s{number}") for number in range(3)),
                *map(nodes.pull, QUEUES[:2]),
                nodes.stream("room/1"),
                nodes.work("user/2"),
                nodes.work("user/2"),
                nodes.inbox("user/3"),
            )
        ]
        for step in range(8):
            assert await nodes.move(step % PARTITIONS, f"n{random.randint(1, 3)}") or step
            count = len(nodes.accepted)
            await until(lambda count=count: len(nodes.accepted) > count + 20)  # type: ignore[misc]
            for task in work:
                if task.done():
                    task.result()
            if step == 4:
                await nodes.servers["n2"].kill()
                await asyncio.sleep(0.5)
                await nodes.servers["n2"].start()
        assert nodes.moves > 4
        accepted = dict(nodes.accepted)
        await until(lambda: len(nodes.accepted) > len(accepted) + 5)
        for queue in READ:
            await nodes.until_done(queue, lambda queue=queue: nodes.read_values[queue])
        await nodes.until_done("user/2", lambda: nodes.worked)
        await nodes.until_done("user/3", lambda: nodes.pushed)
        nodes.is_over = True
        await asyncio.wait_for(asyncio.gather(*work), PATIENCE_S)
        for queue in READ:
            values = nodes.read_values[queue]
            assert len(set(values)) == len(values), "a record twice"
        assert len(nodes.streamed_by) > 1, "by one that has the partition, and by others"
        await _agree(nodes)
        await _devices(nodes)
        await _refused(nodes)


async def _agree(nodes: LightNodes) -> None:
    """Every node shows the same of every queue: all that was accepted, once."""
    pages: dict[str, list[tuple[int, int, int, str]]] = {}
    for node in nodes.servers:
        for queue in QUEUES:
            cursor, rows = None, []
            while (page := await nodes.page(node, queue, cursor, 0))["records"]:
                cursor = page["next_cursor"]
                rows += [
                    (row["partition"], row["queue_offset"], row["offset"], row["value"]) for row in page["records"]
                ]
            values = [value for *_, value in rows]
            assert len(set(values)) == len(values)
            wanted = {value for value, queues in nodes.accepted.items() if queue in queues}
            assert wanted <= set(values), (node, queue, sorted(wanted - set(values)))
            assert all(queue in nodes.sent[value] for value in values)
            assert pages.setdefault(queue, sorted(rows)) == sorted(rows)
            described = await nodes.done(node, "GET", path_of(queue))
            assert described["record_count"] == len(rows)
        listed = await nodes.done(node, "GET", PATH.rstrip("/"), params={"limit": "100"})
        assert listed["queues"] == sorted(QUEUES)


async def _devices(nodes: LightNodes) -> None:
    """How far a device is, any node says, takes and forgets, and it goes along when its node drains."""
    page = await nodes.page("n1", "user/1", None, 0)
    cursor = page["next_cursor"]
    path = path_of("user/1") + "/offsets"
    assert (await nodes.ask("n3", "PUT", path, params={"group": "phone", "cursor": cursor}))[0] == 204
    for node in nodes.servers:
        told = await nodes.done(node, "GET", path, params={"group": "phone"})
        assert told["cursor"] == cursor
        rest = sum(row["lag"] for row in told["partitions"])
        behind = await nodes.page(node, "user/1", None, 0, group="phone")
        count = 0
        while behind["records"]:
            count += len(behind["records"])
            behind = await nodes.page(node, "user/1", behind["next_cursor"], 0)
        assert count == rest, "without the offsets that moves have passed over"
    groups = await nodes.done("n2", "GET", "/mq/v1/light-groups")
    assert {row["group"] for row in groups["groups"]} == {"phone", "device", "workers"}
    await nodes.done("n1", "PATCH", "/mq/v1/brokers/n3", json={"draining": True})

    async def drained() -> bool:
        rows = (await nodes.done("n1", "GET", "/mq/v1/brokers"))["brokers"]
        return any(row["broker"] == "n3" and row["state"] == "drained" for row in rows)

    while not await drained():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    for node in nodes.servers:
        assert (await nodes.done(node, "GET", path, params={"group": "phone"}))["cursor"] == cursor
    assert (await nodes.ask("n3", "DELETE", path, params={"group": "phone"}))[0] == 204
    for node in nodes.servers:
        assert (await nodes.done(node, "GET", path, params={"group": "phone"}))["cursor"] is None


async def _refused(nodes: LightNodes) -> None:
    """A node whose index is in files takes no record with light queues, by whichever node it is sent."""
    nodes._settings["MQ_STORE_INDEX"] = "file"
    await nodes.start("n4")
    await nodes.done("n1", "POST", f"/mq/v1/topics/{TOPIC}/partitions/0/move", json={"to": "n4"})
    record = {"value": 1, "queues": ["user/1"]}
    for node in ("n1", "n4", "g1"):
        answer = await nodes.ask(
            node, "POST", f"/topics/{TOPIC}/partitions/0", json={"records": [record]}, headers=JSON
        )
        codes = {answer[1].get("error_code")} | {one.get("error_code") for one in answer[1].get("offsets", [])}
        assert NO_LIGHT_QUEUES in codes, answer

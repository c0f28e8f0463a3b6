"""Nodes without a store, the whole servers in this process: a Kafka cluster and the metadata in memory, or the metadata
in that Kafka, are all that outlives them.

Covers gateway.main.no_store, gateway.main.shards and gateway.main.recurring_shards, with test_recurring_shards.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.cluster.members import CannotJoin
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.metadata import OtherMetadata, Unavailable
from gateway.main import clustering
from gateway.settings.config import GatewayConfig, build
from store.clock import SystemClock
from tests.gateway.brokers.kafka.fake import FakeKafka
from tests.gateway.cluster.metadata_world import TOPIC, LogKafka
from tests.gateway.main.test_wiring import serving
from tests.waiting import PATIENCE_S

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}


class World:
    """What nodes share."""

    def __init__(self, directory: Path, *, is_in_kafka: bool) -> None:
        self.is_in_kafka = is_in_kafka
        self.kafka, self.metadata = LogKafka() if is_in_kafka else FakeKafka(), MemoryMetadata()
        self.kafka.clock = SystemClock()  # type: ignore[assignment]
        self.secret = directory / "secret"
        self.secret.write_bytes(b"the secret of nodes in tests")

    def config(self, name: str, **settings: object) -> GatewayConfig:
        """Of a node without a store, if `settings` say nothing else."""
        chosen: dict[str, object] = {f"cluster.{which}_broker": "kafka1" for which in ("default", "groups", "timers")}
        given = {
            "port": 0, "shutdown_timeout_ms": 2000, "kafka.enabled": False, "cluster.no_store": True,
            "cluster.node": name, "cluster.secret_file": self.secret,
            **({"cluster.metadata_broker": "kafka1"} if self.is_in_kafka else {"cluster.etcd": ("http://127.0.0.1:1",)}),
            "cluster.internal_port": 0, "cluster.kafka": ("kafka1=kafka://127.0.0.1:1?prefix=mq.",), **chosen,
            **settings,
        }  # fmt: skip
        return build({name: value for name, value in given.items() if value is not None})

    @asynccontextmanager
    async def node(self, name: str, **settings: object) -> AsyncIterator[aiohttp.ClientSession]:
        async with serving(self.config(name, **settings)) as client:
            yield client

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[aiohttp.ClientSession]:
        """One that joins, and knows no Kafka cluster but that of the metadata."""
        unset = [f"cluster.{which}_broker" for which in ("default", "groups", "timers")] + ["cluster.no_store"]
        unset += [] if self.is_in_kafka else ["cluster.kafka"]
        settings = {**dict.fromkeys(unset), "cluster.node": None, "cluster.join": True}
        async with serving(self.config("", **settings)) as client:
            yield client


@pytest.fixture(params=["etcd", "kafka"])
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    """Servers run in an empty directory."""
    made = World(tmp_path, is_in_kafka=request.param == "kafka")

    @asynccontextmanager
    async def etcd(_: object) -> AsyncIterator[MemoryMetadata]:
        yield made.metadata

    monkeypatch.setattr(clustering, "EtcdMetadata", etcd)
    monkeypatch.setattr(clustering, "kept_fresh", lambda *_: nullcontext())
    monkeypatch.setattr(clustering, "SharedLinks", lambda _: made.kafka)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("HOME", str(tmp_path / "empty"))
    return made


async def asked(client: aiohttp.ClientSession, method: str, path: str, body: object = None, **headers: str) -> Any:
    """What is answered when somebody who tries again while a shard is being taken over has an answer."""
    data = None if body is None else orjson.dumps(body)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with client.request(method, path, data=data, headers={**JSON, **headers}) as answer:
                found = orjson.loads(await answer.read() or b"null")
            if answer.status != 503:
                return answer.status, found
            await asyncio.sleep(0.05)


async def done(client: aiohttp.ClientSession, method: str, path: str, body: object = None, **headers: str) -> Any:
    status, found = await asked(client, method, path, body, **headers)
    assert status < 300, (path, found)
    return found


async def values_of(client: aiohttp.ClientSession, topic: str, partition: int) -> list[Any]:
    """All of a partition; an answer has records of one segment."""
    found: list[Any] = []
    while True:
        path = f"/topics/{topic}/partitions/{partition}/records?offset={len(found)}&timeout=0&format=json"
        if not (rows := await done(client, "GET", path)):
            return found
        assert [row["offset"] for row in rows] == list(range(len(found), len(found) + len(rows)))
        found += [row["value"] for row in rows]


async def received(client: aiohttp.ClientSession, count: int) -> list[dict[str, Any]]:
    wanted = {"topics": ["orders"], "start": "earliest", "max_messages": count, "wait_ms": 1000}
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            more = (await done(client, "POST", "/mq/v1/groups/g/messages:receive", wanted))["messages"]
            found += more
            wanted["max_messages"] = count - len(found)
    return found


async def settled(client: aiohttp.ClientSession, verb: str, messages: list[dict[str, Any]], **more: object) -> None:
    body = {"receipts": [one["receipt"] for one in messages], **more}
    answer = await done(client, "POST", f"/mq/v1/groups/g/messages:{verb}", body)
    assert all(one["ok"] for one in answer["results"]), answer


async def test_one_node_goes_on_where_another_one_was(world: World, tmp_path: Path) -> None:
    body = {"records": [{"key": f"k{number}", "value": number} for number in range(8)]}
    once = {"Idempotency-Key": "once"}
    async with world.node("n1") as client:
        await done(client, "PUT", "/mq/v1/topics/orders", {"partitions": 2})
        first = await done(client, "POST", "/topics/orders", body, **once)
        await done(client, "PATCH", "/mq/v1/groups/g", {"max_attempts": 2, "retry_through_timer_ms": 0})
        taken = await received(client, 5)
        await settled(client, "ack", taken[:2])
        await settled(client, "nack", taken[2:3], delay_ms=1500)
        delayed = {"records": [{"value": "later", "partition": 0, "delay_ms": 1500}]}
        told = (await done(client, "POST", "/topics/orders", delayed))["offsets"][0]
        repeated = {"topic": "ticks", "record": {"value": "tick"}, "every_ms": 1000}
        await done(client, "PUT", "/mq/v1/topics/ticks", {"partitions": 3})
        await done(client, "PUT", "/mq/v1/recurring/clock", repeated)
    async with world.node("n2") as client:
        again = await done(client, "POST", "/topics/orders", body, **once)
        assert [one["offset"] for one in again["offsets"]] == [one["offset"] for one in first["offsets"]]
        assert all(one["duplicate"] for one in again["offsets"]), "ids of sends"
        await settled(client, "ack", taken[3:4])
        await settled(client, "nack", taken[4:], delay_ms=0)
        rest = await received(client, 6)  # what was not handed out, "later", and both retries
        values = Counter(one["value"] for one in rest)
        expected = Counter([*range(8), "later"]) - Counter([one["value"] for one in taken[:2] + taken[3:4]])
        assert values == expected
        attempts = {one["value"]: one["delivery_attempt"] for one in rest}
        assert {attempts[one["value"]] for one in (taken[2], taken[4])} == {2}
        retried = [one for one in rest if one["delivery_attempt"] == 2]
        await settled(client, "nack", retried)
        await settled(client, "ack", [one for one in rest if one["delivery_attempt"] == 1])
        letters = await done(client, "GET", "/mq/v1/groups/g/dlq?limit=10")
        assert letters, "dead letters"
        status, _ = await asked(client, "DELETE", f"/mq/v1/schedules/{told['schedule_id']}")
        assert status in (404, 409), "delivered"
        rows = (await done(client, "GET", "/mq/v1/recurring"))["recurring"]
        assert [row["name"] for row in rows] == ["clock"]
        async with asyncio.timeout(PATIENCE_S):
            ticks: list[Any] = []
            while len(ticks) < 3:
                ticks = [value for partition in range(3) for value in await values_of(client, "ticks", partition)]
        assert set(ticks) == {"tick"}
        status, refused = await asked(client, "POST", "/mq/v1/topics/orders/partitions/0/move", {"to": "n2"})
        assert (status, refused["error_code"]) == (409, 40964)
        assert "no store" in refused["message"]
    assert list((tmp_path / "empty").iterdir()) == []
    assert {name for name, _ in world.kafka.logs} == {
        "mq.orders", "mq.ticks", "mq.__retry.g", "mq.__dlq.g", "mq.__timer", "mq.__offsets", "mq.__recurring",
        *(["mq.__meta"] if world.is_in_kafka else []),
    }  # fmt: skip


@pytest.mark.parametrize("world", ["etcd"], indirect=True)
async def test_a_node_that_starts_waits_for_an_etcd_that_goes_away_after_it_has_joined(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "RETRY_S", 0.001)
    session, refused = world.metadata.session, iter(range(2))

    def away_at_first(*given: Any, **named: Any) -> Any:
        if next(refused, None) is not None:
            raise Unavailable("no etcd endpoint answers")
        return session(*given, **named)

    monkeypatch.setattr(world.metadata, "session", away_at_first)
    async with world.node("n1") as client:
        await done(client, "PUT", "/mq/v1/topics/orders", {"partitions": 1})
    assert next(refused, None) is None


async def test_partitions_begin_on_all_nodes_and_those_of_one_that_is_gone_elsewhere(world: World) -> None:
    async with world.node("n1") as client:
        async with world.node("n2"), world.node("n3"):
            await done(client, "PUT", "/mq/v1/topics/orders", {"partitions": 6})
            for partition in range(6):
                await done(
                    client, "POST", f"/topics/orders/partitions/{partition}", {"records": [{"value": partition}]}
                )
            routes = (await done(client, "GET", "/mq/v1/topics/orders/routes"))["partitions"]
            owners = Counter(one["owner"] for one in routes)
            assert owners.keys() == {"kafka1", "n2", "n3"}, "the asked node is the broker for what it owns itself"
        async with asyncio.timeout(PATIENCE_S):
            for partition in range(6):
                while await values_of(client, "orders", partition) != [partition]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        rows = {row["broker"]: row["state"] for row in (await done(client, "GET", "/mq/v1/brokers"))["brokers"]}
        assert rows == {"kafka1": "up", "n1": "up"}, "of the others nothing is left"
        await done(client, "PUT", "/mq/v1/topics/more", {"partitions": 4})
        await done(client, "POST", "/topics/more", {"records": [{"value": 1}]})


async def test_a_node_with_a_store_and_one_without_are_one_cluster(world: World, tmp_path: Path) -> None:
    stored = {
        "cluster.no_store": False, "data": tmp_path / "data", "cluster.default_broker": None,
        "store.commit_log_file_bytes": 1 << 24, "store.extent_bytes": 1 << 20,
    }  # fmt: skip
    async with world.node("s1", **stored) as one, world.node("n1") as other:
        await done(one, "PUT", "/mq/v1/topics/own", {"partitions": 2})
        await done(other, "PUT", "/mq/v1/topics/orders", {"partitions": 2})
        await done(one, "POST", "/mq/v1/topics/own/partitions/1/move", {"to": "kafka1"})
        for number, client in enumerate((one, other)):
            for topic in ("own", "orders"):
                for partition in (0, 1):
                    body = {"records": [{"value": number}]}
                    await done(client, "POST", f"/topics/{topic}/partitions/{partition}", body)
        for client in (one, other):
            for topic in ("own", "orders"):
                assert [await values_of(client, topic, partition) for partition in (0, 1)] == [[0, 1]] * 2
        status, refused = await asked(one, "POST", "/mq/v1/topics/own/partitions/0/move", {"to": "n1"})
        assert (status, refused["error_code"]) == (409, 40964)
        plan = await done(one, "GET", "/mq/v1/brokers/n1/plan?draining=true")
        assert plan == {"moves": [], "total": 0}
        rule = {"topic": "own", "record": {"value": 2, "partition": 0}, "every_ms": 1000}
        await done(one, "PUT", "/mq/v1/recurring/clock", rule)
        async with asyncio.timeout(PATIENCE_S):
            while 2 not in await values_of(other, "own", 0):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await done(other, "DELETE", "/mq/v1/recurring/clock")
        assert (await asked(one, "GET", "/mq/v1/recurring/clock"))[0] == 404
    assert list((tmp_path / "empty").iterdir()) == []


async def test_a_gateway_sends_and_reads_what_is_on_kafka_through_its_owner(world: World) -> None:
    partitions = range(6)
    once = {"Idempotency-Key": "once"}
    body = {"records": [{"value": partition, "partition": partition} for partition in partitions]}
    async with world.node("n2"), world.gateway() as client:
        async with world.node("n1") as node:
            await done(node, "PUT", "/mq/v1/topics/orders", {"partitions": 6})
            routes = (await done(node, "GET", "/mq/v1/topics/orders/routes"))["partitions"]
            assert {one["owner"] for one in routes} == {"kafka1", "n2"}, "some are n1's, some n2's"
            first = await done(client, "POST", "/topics/orders", body, **once)
            assert [one["offset"] for one in first["offsets"]] == [0] * 6
            delayed = {"records": [{"value": "later", "partition": number, "delay_ms": 300} for number in partitions]}
            await done(client, "POST", "/topics/orders", delayed)
            async with asyncio.timeout(PATIENCE_S):
                for partition in partitions:
                    while await values_of(client, "orders", partition) != [partition, "later"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
        again = await done(client, "POST", "/topics/orders", body, **once)  # n2 has taken over what n1 had
        assert [(one["offset"], one["duplicate"]) for one in again["offsets"]] == [(0, True)] * 6
        for partition in partitions:
            await done(client, "POST", f"/topics/orders/partitions/{partition}", {"records": [{"value": "more"}]})
            assert await values_of(client, "orders", partition) == [partition, "later", "more"], "of two tenures"


async def test_a_gateway_follows_a_partition_to_kafka_and_back(world: World, tmp_path: Path) -> None:
    stored = {
        "cluster.no_store": False, "data": tmp_path / "data", "cluster.default_broker": None,
        "store.commit_log_file_bytes": 1 << 24, "store.extent_bytes": 1 << 20,
    }  # fmt: skip
    async with world.node("s1", **stored) as node, world.gateway() as client:
        await done(node, "PUT", "/mq/v1/topics/orders", {"partitions": 1})
        for number, broker in enumerate(("s1", "kafka1", "s1", "kafka1")):
            await done(client, "POST", "/mq/v1/topics/orders/partitions/0/move", {"to": broker})
            path = "/topics/orders/partitions/0"
            told = (await done(client, "POST", path, {"records": [{"value": number}]}))["offsets"][0]
            assert told["offset"] == number
            assert await values_of(client, "orders", 0) == [*range(number + 1)]


async def test_a_name_is_taken_by_one_process_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "NAME_WAIT_S", 0.5)
    async with world.node("n1") as client:
        await done(client, "PUT", "/mq/v1/topics/orders", {"partitions": 1})
        with pytest.raises(CannotJoin, match="another process is node n1"):
            async with world.node("n1"):
                pass
        await done(client, "POST", "/topics/orders", {"records": [{"value": 1}]})
    async with world.node("n1") as client:
        assert await values_of(client, "orders", 0) == [1]


async def _served_until_it_is_lost(world: World) -> None:
    async with asyncio.timeout(PATIENCE_S), world.node("n1") as client:
        await done(client, "PUT", "/mq/v1/topics/orders", {"partitions": 1})
        await done(client, "POST", "/topics/orders", {"records": [{"value": 1}]})
        end = world.kafka.log(TOPIC, 0).end
        await done(client, "PUT", "/mq/v1/topics/lost", {"partitions": 1})
        world.kafka.log(TOPIC, 0).lose(end)
        with suppress(aiohttp.ClientError):
            while True:
                await client.get("/healthz")
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("world", ["kafka"], indirect=True)
async def test_a_server_stops_when_the_metadata_in_kafka_is_not_what_it_was(world: World) -> None:
    with pytest.raises(OtherMetadata, match="Kafka has lost records"):
        await _served_until_it_is_lost(world)
    async with world.node("n2") as client:
        assert await values_of(client, "orders", 0) == [1], "a restart goes on with what the log has"

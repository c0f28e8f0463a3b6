"""gateway/surfaces/rest_v2/consumers.py and instances/ through HTTP: the REST Proxy's consumer instances.

The life cycle, the two commit dialects, seeking and sizes restate what Karapace's tests of its REST consumer assert.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from gateway.api.shapes.consumers import TOPIC_PARTITIONS_MAX
from gateway.codec.tags import batch_tag_hashes
from gateway.groups.machines.errors import GroupFull
from gateway.main.application import build_application
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.rest_v2.consumers import FORMAT_DIFFERS, install_instances
from gateway.surfaces.rest_v2.instances import service
from gateway.surfaces.rest_v2.instances.instance import ILLEGAL_STATE
from gateway.surfaces.rest_v2.instances.polling import Poll
from gateway.surfaces.rest_v2.instances.service import (
    CALLS_WAITING_MAX,
    DOCUMENT_PREFIX,
    INSTANCE_EXISTS,
    INSTANCE_NOT_FOUND,
    OTHER_TOPIC,
    Instances,
)
from store import record_batch
from store.errors import DiskFull, StoreStopped
from store.record_batch import Record
from store.types import Acks, Append, QueueKey
from tests.clock import FakeClock
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.fake_groups import FakeGroups
from tests.gateway.production_server import ProductionServer
from tests.waiting import WOKEN_S, until

Json = Any
IDLE_MS = 300_000


class Time:
    """A monotonic clock that adds what a test skips."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.skipped_s


class Proxy:
    """A server with consumer instances, and what a client does with it."""

    def __init__(self, gateway: Gateway, broker: FakeBroker, groups: FakeGroups) -> None:
        self.gateway = gateway
        self.broker = broker
        self.groups = groups
        self.time = Time()
        self.client: Client
        self.instances: Instances
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, make_client: Callable[[TestServer], Awaitable[Client]], **limits: int) -> None:
        """Begin anew, as after a restart: all there is comes from the groups' documents."""
        await self.stop()
        self.instances = Instances(
            self.groups,  # type: ignore[arg-type]
            self.gateway.consumer,
            self.gateway.routes_table,
            limits=self.gateway.limits,
            idle_timeout_ms=IDLE_MS,
            draining=self.gateway.draining,
            monotonic_s=self.time,
        )
        self.instances.restore()
        self._tasks.append(asyncio.create_task(self.instances.run()))
        await asyncio.sleep(0)
        application = build_application(self.gateway)
        install_instances(application, self.gateway, self.instances)
        server = ProductionServer(self.gateway, application)
        await server.start_server()
        self.client = await make_client(server)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def call(self, method: str, path: str, body: Json = None, **headers: str) -> tuple[int, Json]:
        """Status and JSON of `/consumers/<path>`."""
        response = await self.client.request(method, f"/consumers/{path}", json=body, headers=headers)
        content = await response.read()
        return response.status, await response.json(content_type=None) if content else None

    async def create(self, group: str = "g", **settings: Json) -> str:
        status, answer = await self.call(
            "POST", group, {key.replace("_", "."): value for key, value in settings.items()}
        )
        assert status == 200, answer
        return f"{group}/instances/{answer['instance_id']}"

    async def reader(self, group: str = "g", *topics: str, **settings: Json) -> str:
        """An instance that subscribes."""
        settings = {"format": "json", "auto_offset_reset": "earliest", **settings}
        base = await self.create(group, **settings)
        assert (await self.call("POST", f"{base}/subscription", {"topics": topics or ["orders"]}))[0] == 204
        return base

    async def read(self, base: str, query: str = "timeout=0", **headers: str) -> list[Json]:
        status, answer = await self.call("GET", f"{base}/records?{query}", **headers)
        assert status == 200, answer
        assert isinstance(answer, list)
        return answer

    async def values(self, base: str, query: str = "timeout=0") -> list[Json]:
        return [record["value"] for record in await self.read(base, query)]

    async def committed(self, base: str, partition: int = 0, topic: str = "orders") -> int | None:
        status, answer = await self.call("GET", f"{base}/offsets?topic={topic}&partition={partition}")
        assert status == 200, answer
        return next((row["offset"] for row in answer["offsets"]), None)

    async def send(
        self, *values: bytes, partition: int = 0, topic_id: int = 16, headers: record_batch.Headers = ()
    ) -> None:
        batch = record_batch.encode([Record(None, value, 7, headers) for value in values])
        append = Append(
            queue=QueueKey(topic_id, partition),
            batch=batch,
            record_count=len(values),
            tag_hashes=batch_tag_hashes(batch),
        )
        await self.broker.append([append], acks=Acks.FLUSHED)


MakeClient = Callable[[TestServer], Awaitable[Client]]


@pytest.fixture
async def proxy(aiohttp_client: MakeClient) -> AsyncIterator[Proxy]:
    """With the topic `orders` of 4 partitions."""
    gateway, broker = fake_gateway(FakeClock(), limits__consumer_instances_max=20)
    await broker.create_topic("orders", 4)
    made = Proxy(gateway, broker, FakeGroups(gateway.routes_table, gateway.consumer))
    await made.start(aiohttp_client)
    yield made
    await made.stop()


# Create and delete


@pytest.mark.parametrize("slash", ["", "/"])
async def test_an_instance_is_made_once_and_can_be_made_again_after_its_end(proxy: Proxy, slash: str) -> None:
    status, answer = await proxy.call("POST", f"g{slash}", {"name": "c1", "topic.metadata.refresh.interval.ms": 5})
    assert status == 200
    host = f"http://{proxy.client.host}:{proxy.client.port}"
    assert answer == {"instance_id": "c1", "base_uri": f"{host}/consumers/g/instances/c1"}
    status, answer = await proxy.call("POST", f"g{slash}", {"name": "c1"})
    assert (status, answer["error_code"]) == (409, INSTANCE_EXISTS)
    assert await proxy.call("DELETE", f"g/instances/c1{slash}", {}) == (204, None)
    assert (await proxy.call("POST", f"g{slash}", {"id": "c1", "name": "ignored"}))[1]["instance_id"] == "c1"
    status, answer = await proxy.call("DELETE", f"g/instances/other{slash}")
    assert (status, answer["error_code"]) == (404, INSTANCE_NOT_FOUND)


async def test_an_instance_without_a_name_gets_one_and_needs_no_body(proxy: Proxy) -> None:
    status, answer = await proxy.call("POST", "g")
    assert status == 200
    assert answer["instance_id"].startswith("rest-consumer-")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"format": "avro"}, 422, 42202),
        ({"format": "xml"}, 422, 422),
        ({"format": 1}, 422, 422),
        ({"auto.offset.reset": "bad-config"}, 422, 42204),
        ({"fetch.min.bytes": -10}, 422, 40001),
        ({"fetch.min.bytes": 10_000_001}, 422, 40001),
        ({"auto.commit.enable": "maybe"}, 422, 42204),
        ({"name": "a/b"}, 422, 42204),
        ([], 400, 400),
    ],
)
async def test_a_creation_that_breaks_a_rule_makes_nothing(proxy: Proxy, body: Json, status: int, code: int) -> None:
    found, answer = await proxy.call("POST", "g", body)
    assert (found, answer["error_code"]) == (status, code)
    assert proxy.instances.count == 0


async def test_the_server_holds_so_many_instances_and_not_one_more(proxy: Proxy) -> None:
    assert proxy.gateway.limits.consumer_instances_max == 20
    for _ in range(20):
        await proxy.create()
    status, answer = await proxy.call("POST", "g")
    assert (status, answer["error_code"], answer["retriable"]) == (429, 42950, True)


async def test_the_base_uri_is_the_clients_way_to_the_server_unless_it_is_no_host(
    aiohttp_client: MakeClient,
) -> None:
    gateway, broker = fake_gateway(FakeClock(), insecure_no_auth=True)
    proxy = Proxy(gateway, broker, FakeGroups(gateway.routes_table, gateway.consumer))
    await proxy.start(aiohttp_client)
    own = f"{proxy.client.host}:{proxy.client.port}"
    for host, shown in (
        ("queue.example:99", "queue.example:99"),
        ("[::1]:80", "[::1]:80"),
        ('evil"><script>', own),
        ("a/../b", own),
        ("a" * 300, own),
    ):
        _, answer = await proxy.call("POST", "a group", None, Host=host)
        assert answer["base_uri"].startswith(f"http://{shown}/consumers/a%20group/instances/")
    await proxy.stop()


async def test_an_instance_that_cannot_be_kept_is_not_made(proxy: Proxy) -> None:
    proxy.groups.error = DiskFull()
    assert (await proxy.call("POST", "g", {"name": "c1"}))[0] == 507
    proxy.groups.error = None
    assert (await proxy.call("POST", "g", {"name": "c1"}))[0] == 200


# Subscription


@pytest.mark.parametrize("slash", ["", "/"])
async def test_subscriptions_by_name_and_by_pattern(proxy: Proxy, slash: str) -> None:
    base = await proxy.create(format="json", auto_offset_reset="earliest")
    subscription = f"{base}/subscription{slash}"
    assert await proxy.call("GET", subscription) == (200, {"topics": []})
    assert await proxy.call("POST", subscription, {"topics": ["orders"]}) == (204, None)
    assert await proxy.call("GET", subscription, {}) == (200, {"topics": ["orders"]})
    await proxy.send(b"1", b"2")
    await proxy.send(b"3", partition=3)
    assert sorted(await proxy.values(base)) == [1, 2, 3]
    assert await proxy.call("DELETE", subscription) == (204, None)
    assert await proxy.call("GET", subscription) == (200, {"topics": []})
    for number in range(3):
        await proxy.broker.create_topic(f"many-{number}", 1)
    assert await proxy.call("POST", subscription, {"topic_pattern": "many-.*"}) == (204, None)
    assert await proxy.call("GET", subscription) == (200, {"topics": ["many-0", "many-1", "many-2"]})
    for topic_id in (17, 18, 19):
        await proxy.send(b"4", b"5", topic_id=topic_id)
    assert sorted(await proxy.values(base)) == [4, 4, 4, 5, 5, 5]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"topics": ["orders"], "topic_pattern": "o.*"}, 409, ILLEGAL_STATE),
        ({"topics": "orders"}, 422, 422),
        ({"topics": [1]}, 422, 422),
        ({"topic_pattern": ["o"]}, 422, 422),
        ({"topic_pattern": "(a+)+"}, 422, 422),
        ({}, 422, 422),
        (None, 422, 422),
    ],
)
async def test_a_subscription_that_breaks_a_rule(proxy: Proxy, body: Json, status: int, code: int) -> None:
    base = await proxy.create()
    found, answer = await proxy.call("POST", f"{base}/subscription", body)
    assert (found, answer["error_code"]) == (status, code)


async def test_subscribing_and_assigning_exclude_each_other(proxy: Proxy) -> None:
    base = await proxy.reader()
    partitions = {"partitions": [{"topic": "orders", "partition": 0}]}
    status, answer = await proxy.call("POST", f"{base}/assignments", partitions)
    assert (status, answer["error_code"]) == (409, ILLEGAL_STATE)
    await proxy.call("DELETE", f"{base}/subscription")
    assert (await proxy.call("POST", f"{base}/assignments", partitions))[0] == 204
    status, answer = await proxy.call("POST", f"{base}/subscription", {"topics": ["orders"]})
    assert (status, answer["error_code"]) == (409, ILLEGAL_STATE)
    assert await proxy.call("POST", f"{base}/assignments", {"partitions": []}) == (204, None)
    assert (await proxy.call("POST", f"{base}/subscription", {"topics": ["orders"]}))[0] == 204


async def test_the_last_records_begin_with_the_subscription_not_with_the_first_read(proxy: Proxy) -> None:
    await proxy.send(b"1")
    base = await proxy.reader(auto_offset_reset="latest")
    await proxy.send(b"2")
    assert await proxy.values(base) == [2]


# Assignment and positions


async def test_assigned_partitions(proxy: Proxy) -> None:
    base = await proxy.create(format="json", auto_offset_reset="earliest")
    assert await proxy.call("GET", f"{base}/assignments") == (200, {"partitions": []})
    partitions = {"partitions": [{"topic": "orders", "partition": 1}]}
    assert await proxy.call("POST", f"{base}/assignments", partitions) == (204, None)
    assert await proxy.call("GET", f"{base}/assignments") == (200, partitions)
    await proxy.send(b"0", partition=0)
    await proxy.send(b"1", partition=1)
    assert await proxy.values(base) == [1]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"partitions": [{"topic": "orders", "partition": 4}]}, 404, 40402),
        ({"partitions": [{"topic": "nope", "partition": 0}]}, 404, 40401),
        ({"partitions": [{"topic": "orders"}]}, 422, 422),
        ({"partitions": [{"topic": "orders", "partition": True}]}, 422, 422),
        ({"partitions": [1]}, 422, 422),
        ({}, 422, 422),
    ],
)
async def test_an_assignment_that_breaks_a_rule(proxy: Proxy, body: Json, status: int, code: int) -> None:
    base = await proxy.create()
    found, answer = await proxy.call("POST", f"{base}/assignments", body)
    assert (found, answer["error_code"]) == (status, code)


async def test_one_request_names_so_many_partitions_and_not_one_more(proxy: Proxy) -> None:
    base = await proxy.create()
    places = [{"topic": "orders", "partition": 0}] * TOPIC_PARTITIONS_MAX
    assert (await proxy.call("POST", f"{base}/assignments", {"partitions": places}))[0] == 204
    status, answer = await proxy.call("POST", f"{base}/assignments", {"partitions": places + places[:1]})
    assert (status, answer["error_code"]) == (422, 422)


async def test_seeking_to_offsets_bounds_and_times(proxy: Proxy) -> None:
    await proxy.send(b"0", b"1", b"2")
    clock = proxy.broker.clock
    later_ms = clock.step(5000)
    await proxy.send(b"3", b"4")
    base = await proxy.reader()
    partition = {"topic": "orders", "partition": 0}
    for path, body, values in (
        ("positions", {"offsets": [{**partition, "offset": 4, "metadata": "m"}]}, [4]),
        ("positions", {"timestamps": [{**partition, "timestamp": later_ms}]}, [3, 4]),
        ("positions", {"timestamps": [{**partition, "timestamp": "2023-11-14T22:13:25Z"}]}, [3, 4]),
        ("positions/beginning", {"partitions": [partition]}, [0, 1, 2, 3, 4]),
        ("positions/end", {"partitions": [partition]}, []),
        ("positions/beginning/", {"partitions": [partition]}, [0, 1, 2, 3, 4]),
        ("positions", {"offsets": [{**partition, "offset": 10}]}, [0, 1, 2, 3, 4]),  # past the end: as the reset says
    ):
        assert await proxy.call("POST", f"{base}/{path}", body) == (204, None)
        assert await proxy.values(base) == values, path
    for topic, number in (("faulty", 0), ("orders", 9)):
        body = {"offsets": [{"topic": topic, "partition": number, "offset": 10}]}
        status, answer = await proxy.call("POST", f"{base}/positions", body)
        assert (status, answer["error_code"]) == (409, ILLEGAL_STATE)
    assert (await proxy.call("POST", f"{base}/positions", {"offsets": [{**partition, "offset": -1}]}))[0] == 422
    assert (await proxy.call("POST", f"{base}/positions", {"timestamps": [{**partition, "timestamp": "x"}]}))[0] == 422
    assert (await proxy.call("POST", f"{base}/positions", {}))[0] == 422


@pytest.mark.parametrize("auto_commit", ["true", "false"])
async def test_a_commit_past_the_end_is_kept_and_reading_waits_there(
    proxy: Proxy, aiohttp_client: MakeClient, auto_commit: str
) -> None:
    await proxy.send(b"0", b"1")
    ahead = {"offsets": [{"topic": "orders", "partition": 0, "offset": 3}]}
    one = await proxy.reader(auto_commit_enable=auto_commit)
    assert await proxy.call("POST", f"{one}/offsets", ahead) == (200, [])
    assert await proxy.values(one) == [0, 1], "a commit does not move who commits"
    assert await proxy.values(one) == []
    assert await proxy.committed(one) == 4
    assert await proxy.call("DELETE", one) == (204, None)
    await proxy.start(aiohttp_client)
    two = await proxy.reader(auto_commit_enable=auto_commit)
    assert await proxy.values(two) == []
    await proxy.send(b"2")
    assert await proxy.values(two) == []
    reading = asyncio.create_task(proxy.values(two, "timeout=10000"))
    await proxy.broker.waiting.wait()
    for value in (b"3", b"4"):
        assert not reading.done()
        await proxy.send(value)
        await asyncio.sleep(0.02)
    assert await reading == [4]
    await proxy.send(b"5")
    assert await proxy.values(two) == [5]
    assert await proxy.committed(two) == (5 if auto_commit == "true" else 4)


# Records


@pytest.mark.parametrize("fmt", ["binary", "json", "text"])
async def test_records_come_in_the_format_of_the_instance(proxy: Proxy, fmt: str) -> None:
    await proxy.send(b'{"a": 1}', headers=[("trace", b"abc"), ("none", None), ("mq-tag", b"paid")])
    await proxy.send(b'"x"')
    base = await proxy.reader(format=fmt)
    response = await proxy.client.get(f"/consumers/{base}/records?timeout=0")
    first, second = await response.json(content_type=None)
    assert response.headers["Content-Type"] == f"application/vnd.kafka.{fmt}.v2+json"
    shown = {"binary": b64encode(b'{"a": 1}').decode(), "json": {"a": 1}, "text": '{"a": 1}'}[fmt]
    assert (first["topic"], first["partition"], first["offset"], first["timestamp"]) == ("orders", 0, 0, 7)
    assert (first["key"], first["value"], first["tag"]) == (None, shown, "paid")
    assert first["headers"] == [{"key": "trace", "value": "YWJj"}, {"key": "none", "value": None}]
    assert "headers" not in second


@pytest.mark.parametrize(
    ("accept", "status", "code"),
    [
        ("application/vnd.kafka.json.v2+json", 200, None),
        ("application/vnd.kafka.json.v1+json", 200, None),
        ("application/vnd.kafka.v2+json", 200, None),
        ("application/vnd.kafka+json, */*;q=0.1", 200, None),
        ("*/*", 200, None),
        ("application/json", 200, None),
        ("text/html, application/vnd.kafka.json.v2+json;q=0.5", 200, None),
        ("application/vnd.kafka.binary.v2+json", 406, FORMAT_DIFFERS),
        ("application/vnd.mq.batch", 406, FORMAT_DIFFERS),
        ("text/html", 406, 406),
        ("text/html, application/vnd.kafka.protobuf.v2+json", 422, 42202),
        ("application/vnd.kafka.avro.v2+json, application/vnd.kafka.binary.v2+json", 406, FORMAT_DIFFERS),
        ("application/vnd.kafka.avro.v2+json, */*;q=0.1", 200, None),
    ],
)
async def test_the_format_is_fixed_when_the_instance_is_made(
    proxy: Proxy, accept: str, status: int, code: int | None
) -> None:
    base = await proxy.reader()
    await proxy.send(b"1")
    found, answer = await proxy.call("GET", f"{base}/records?timeout=0", Accept=accept)
    assert found == status
    assert code is None or answer["error_code"] == code


async def test_sizes_of_an_answer(proxy: Proxy) -> None:
    await proxy.send(*(b"%07d" % number for number in range(100)))
    base = await proxy.reader(format="binary")
    assert len(await proxy.read(base, "timeout=0&max_bytes=1")) == 1  # never stuck
    assert len(await proxy.read(base, "timeout=0&max_bytes=14")) == 2
    assert len(await proxy.read(base, "timeout=0&max_bytes=20")) == 2
    assert len(await proxy.read(base, "timeout=0&max_records=5")) == 5
    rest = await proxy.read(base)
    assert [int(b64decode(record["value"])) for record in rest] == list(range(10, 100))
    assert await proxy.read(base) == []


async def test_headers_count_for_the_size(proxy: Proxy) -> None:
    for _ in range(5):
        await proxy.send(b"1", headers=[("big", b"x" * 2000)])
    base = await proxy.reader()
    assert len(await proxy.read(base, "timeout=0&max_bytes=4100")) == 2


async def test_an_instance_may_limit_the_records_of_a_read(proxy: Proxy) -> None:
    await proxy.send(b"1", b"2", b"3")
    base = await proxy.reader(max_poll_records=2)
    assert [len(await proxy.read(base, query)) for query in ("timeout=0", "timeout=0&max_records=9")] == [2, 1]


async def test_only_records_with_a_wanted_tag(proxy: Proxy) -> None:
    for tag in (b"a", b"b", b"c"):
        await proxy.send(b'"%s"' % tag, headers=[("mq-tag", tag)])
    await proxy.send(b"0")
    base = await proxy.reader()
    assert await proxy.values(base, "timeout=0&filter=tag:a||c") == ["a", "c"]
    await proxy.call("POST", f"{base}/offsets")
    assert await proxy.committed(base) == 4  # what was passed over is done, too
    status, answer = await proxy.call("GET", f"{base}/records?filter=colour:red")
    assert (status, answer["error_code"]) == (422, 42252)


@pytest.mark.parametrize(("choice", "values"), [("inline", [1, None, 3]), ("skip", [1, 3])])
async def test_a_record_in_another_format_never_blocks(proxy: Proxy, choice: str, values: list[Json]) -> None:
    await proxy.send(b"1", b"\xff", b"3")
    base = await proxy.reader(on_decode_error=choice)
    records = await proxy.read(base)
    assert [record["value"] for record in records] == values
    if choice == "inline":
        assert (records[1]["value_b64"], records[1]["error_code"]) == ("/w==", 40801)


async def test_a_record_in_another_format_fails_the_read_if_that_is_wanted(proxy: Proxy) -> None:
    await proxy.send(b"1", b"\xff", b"3")
    base = await proxy.reader(on_decode_error="fail")
    assert await proxy.values(base) == [1]
    for _ in range(2):
        status, answer = await proxy.call("GET", f"{base}/records?timeout=0")
        assert (status, answer["error_code"], answer["details"]["offset"]) == (408, 40801, 1)
    await proxy.call("POST", f"{base}/positions", {"offsets": [{"topic": "orders", "partition": 0, "offset": 2}]})
    assert await proxy.values(base) == [3]


async def test_a_read_waits_for_the_first_record_and_no_longer(proxy: Proxy) -> None:
    base = await proxy.reader()
    reading = asyncio.create_task(proxy.values(base, "timeout=30000"))
    await proxy.broker.waiting.wait()
    await proxy.send(b"1", partition=2)
    assert await asyncio.wait_for(reading, WOKEN_S) == [1]


async def test_a_read_waits_for_as_many_bytes_as_the_instance_wants(proxy: Proxy) -> None:
    base = await proxy.reader(fetch_min_bytes=4)
    reading = asyncio.create_task(proxy.values(base, "timeout=30000"))
    for value in (b"11", b"22"):
        await proxy.broker.waiting.wait()
        assert not reading.done()
        proxy.broker.waiting.clear()
        await proxy.send(value)
    assert await asyncio.wait_for(reading, WOKEN_S) == [11, 22]


async def test_a_read_ends_with_its_time(proxy: Proxy) -> None:
    loop = asyncio.get_running_loop()
    for settings, query, least_s in (
        ({"consumer_request_timeout_ms": 30_000}, "timeout=100", 0.1),
        ({"consumer_request_timeout_ms": 100}, "timeout=30000", 0.1),
        ({"requestWaitMs": "1200"}, "", 1.2),
        ({}, "", 1.0),
    ):
        base = await proxy.reader("g2", **settings)
        begun = loop.time()
        assert await proxy.read(base, query) == []
        assert least_s <= loop.time() - begun < WOKEN_S
        await proxy.call("DELETE", base)


async def test_a_waiting_read_ends_when_the_server_drains(proxy: Proxy) -> None:
    base = await proxy.reader()
    reading = asyncio.create_task(proxy.values(base, "timeout=30000"))
    await proxy.broker.waiting.wait()
    proxy.gateway.draining.set()
    assert await asyncio.wait_for(reading, WOKEN_S) == []


async def test_what_a_lost_client_was_to_get_is_read_again(proxy: Proxy) -> None:
    base = await proxy.reader()
    gone = False

    async def read() -> list[Json]:
        group, _, name = base.split("/")
        return await proxy.instances.read(
            group, name, Poll(timeout_ms=30_000), is_client_gone=lambda: gone, may_read=lambda _: True, visible=None
        )

    reading = asyncio.create_task(read())
    await proxy.broker.waiting.wait()
    gone = True
    await proxy.send(b"1")
    assert await asyncio.wait_for(reading, WOKEN_S) == []
    assert await proxy.values(base) == [1]
    assert await proxy.values(base) == []


async def test_what_retention_took_is_passed_over(proxy: Proxy) -> None:
    await proxy.send(b"0", b"1")
    base = await proxy.reader(auto_offset_reset="earliest")
    await proxy.send(b"2")
    proxy.broker.min_offsets[QueueKey(16, 0)] = 2
    assert await proxy.values(base) == [2]


# Concurrent calls


async def test_concurrent_reads_take_turns_and_share_nothing(proxy: Proxy) -> None:
    await proxy.send(*(b"%d" % number for number in range(50)))
    base = await proxy.reader()
    answers = await asyncio.gather(*(proxy.values(base, "timeout=0&max_records=5") for _ in range(10)))
    assert sorted(value for values in answers for value in values) == list(range(50))


async def test_a_waiting_read_makes_way_for_another_call(proxy: Proxy) -> None:
    base = await proxy.reader()
    reading = asyncio.create_task(proxy.values(base, "timeout=30000"))
    await proxy.broker.waiting.wait()
    assert (await asyncio.wait_for(proxy.call("DELETE", base), WOKEN_S))[0] == 204
    assert await asyncio.wait_for(reading, WOKEN_S) == []


async def test_so_many_calls_wait_for_an_instance_and_not_one_more(proxy: Proxy) -> None:
    base = await proxy.reader()
    reads = [asyncio.create_task(proxy.call("GET", f"{base}/records?timeout=30000"))]
    await proxy.broker.waiting.wait()
    reads += [asyncio.create_task(proxy.call("GET", f"{base}/records?timeout=30000")) for _ in range(CALLS_WAITING_MAX)]
    live = proxy.instances._find("g", base.rsplit("/", 1)[1])
    await until(lambda: live.waiting_count == CALLS_WAITING_MAX, pause_s=0.01)
    status, answer = await proxy.call("GET", f"{base}/records?timeout=0")
    assert (status, answer["error_code"]) == (429, 42950)
    proxy.gateway.draining.set()
    assert {status for status, _ in await asyncio.gather(*reads)} == {200}


# Commits


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"auto_commit_enable": "false"}, (200, [])),
        ({"auto_commit_enable": "true"}, (200, [])),
        ({}, (200, [])),
        ({"enable_auto_commit": False}, (204, None)),
        ({"enable_auto_commit": True}, (204, None)),
    ],
)
async def test_a_commit_names_the_last_record_done_and_stores_the_next(
    proxy: Proxy, settings: Json, answer: tuple[int, Json]
) -> None:
    await proxy.send(b"1", b"2", b"3")
    base = await proxy.reader(**settings)
    partition = {"topic": "orders", "partition": 0}
    for offset in (0, 1):
        body = {"offsets": [{**partition, "offset": offset, "metadata": "m"}]}
        assert await proxy.call("POST", f"{base}/offsets/?async=true", body) == answer
        expected = {"offsets": [{**partition, "offset": offset + 1, "metadata": "m"}]}
        assert await proxy.call("GET", f"{base}/offsets", {"partitions": [partition]}) == (200, expected)
        assert await proxy.call("POST", f"{base}/offsets:query", {"partitions": [partition]}) == (
            200,
            expected,
        )
        assert await proxy.committed(base) == offset + 1
    status, error = await proxy.call("GET", f"{base}/offsets")
    assert (status, error["error_code"]) == (404, 40402)


async def test_a_commit_without_a_body_is_of_all_that_was_read(proxy: Proxy) -> None:
    base = await proxy.reader(auto_commit_enable="false")
    assert await proxy.call("POST", f"{base}/offsets", {}) == (200, [])  # before anything was read
    await proxy.send(b"1")
    await proxy.send(b"2", partition=1)
    assert len(await proxy.read(base)) == 2
    assert await proxy.committed(base, 1) in (None, 0)
    assert await proxy.call("POST", f"{base}/offsets") == (200, [])
    assert [await proxy.committed(base, number) for number in (0, 1)] == [1, 1]


@pytest.mark.parametrize(
    "offsets", [{}, 1, [1], [{"topic": "orders", "partition": 0}], [{"topic": "orders", "partition": 0, "offset": "1"}]]
)
async def test_a_commit_that_breaks_a_rule(proxy: Proxy, offsets: Json) -> None:
    base = await proxy.reader()
    assert (await proxy.call("POST", f"{base}/offsets", {"offsets": offsets}))[0] == 422


async def test_automatic_commits_follow_what_the_client_has(proxy: Proxy) -> None:
    await proxy.send(*(b"%d" % number for number in range(6)))
    base = await proxy.reader()
    await proxy.read(base, "timeout=0&max_records=2")
    assert await proxy.committed(base) in (None, 0)  # the answer may never have arrived
    await proxy.read(base, "timeout=0&max_records=2")
    assert await proxy.committed(base) == 2
    await proxy.call("DELETE", base)
    other = await proxy.reader()
    assert await proxy.committed(other) == 4
    assert await proxy.values(other) == [4, 5]


async def test_without_automatic_commits_nothing_is_committed_by_reading(proxy: Proxy) -> None:
    await proxy.send(b"1", b"2")
    base = await proxy.reader(auto_commit_enable="false")
    for _ in range(3):
        await proxy.read(base, "timeout=0&max_records=1")
    await proxy.call("DELETE", base)
    assert await proxy.values(await proxy.reader()) == [1, 2]


async def test_reads_go_on_when_the_store_has_stopped(proxy: Proxy) -> None:
    await proxy.send(b"1", b"2")
    base = await proxy.reader()
    proxy.groups.error = StoreStopped()
    assert [await proxy.values(base, "timeout=0&max_records=1") for _ in range(3)] == [[1], [2], []]
    assert (await proxy.call("POST", f"{base}/offsets"))[0] == 503


# Several members


async def test_partitions_move_to_a_second_instance_at_once_and_nothing_is_read_twice(proxy: Proxy) -> None:
    first = await proxy.reader()
    for partition in range(4):
        await proxy.send(b"%d" % partition, partition=partition)
    assert sorted(await proxy.values(first)) == [0, 1, 2, 3]
    assert await proxy.values(first) == []  # it has come back: all is committed
    second = await proxy.reader()
    shares = []
    for base in (first, second):
        _, answer = await proxy.call("GET", f"{base}/assignments")
        shares.append([row["partition"] for row in answer["partitions"]])
    assert sorted(map(len, shares)) == [2, 2]
    assert sorted(shares[0] + shares[1]) == [0, 1, 2, 3]
    for partition in range(4):
        await proxy.send(b"%d" % (4 + partition), partition=partition)
    assert sorted(await proxy.values(first) + await proxy.values(second)) == [4, 5, 6, 7]


async def test_a_client_that_does_not_come_back_loses_its_partition_after_a_while(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "REVOKE_WAIT_MS", 100)
    first = await proxy.reader()
    for partition in range(4):
        await proxy.send(b"%d" % partition, partition=partition)
    assert len(await proxy.read(first)) == 4  # and is never heard of again
    second = await proxy.reader()
    assert await proxy.read(second) == []
    got: list[Json] = []
    while len(got) < 2:
        got += await proxy.values(second, "timeout=5000")
    assert len(got) == 2  # delivered again, to the new owner


async def test_a_waiting_read_sees_partitions_it_is_given_meanwhile(proxy: Proxy) -> None:
    first, second = await proxy.reader(), await proxy.reader()
    _, answer = await proxy.call("GET", f"{first}/assignments")
    lost = answer["partitions"][0]["partition"]
    reading = asyncio.create_task(proxy.values(second, "timeout=30000"))
    await proxy.broker.waiting.wait()
    await proxy.call("DELETE", first)
    await proxy.send(b"9", partition=lost)
    assert await asyncio.wait_for(reading, WOKEN_S) == [9]


async def test_a_member_that_was_put_out_joins_again_and_goes_on_with_what_is_committed(proxy: Proxy) -> None:
    await proxy.send(b"1", b"2")
    base = await proxy.reader(auto_commit_enable="false")
    await proxy.read(base, "timeout=0&max_records=1")
    await proxy.call("POST", f"{base}/offsets")
    assert await proxy.values(base) == [2]
    proxy.groups.put_out("g", base.rsplit("/", 1)[1])
    await asyncio.sleep(0)
    assert await proxy.values(base) == [2]


async def test_an_instance_by_the_name_of_a_member_is_refused(proxy: Proxy) -> None:
    base = await proxy.reader()
    name = base.rsplit("/", 1)[1]
    proxy.instances._lives.clear()  # another surface's member
    status, answer = await proxy.call("POST", "g", {"name": name})
    assert (status, answer["error_code"]) == (409, INSTANCE_EXISTS)


# Time and restarts


async def test_an_idle_instance_is_forgotten_and_a_called_one_is_not(proxy: Proxy) -> None:
    idle, busy = await proxy.create(), await proxy.create()
    proxy.time.skipped_s += IDLE_MS / 1000 - 1
    await proxy.read(busy)
    await proxy.instances.forget_idle()
    assert proxy.instances.count == 2
    proxy.time.skipped_s += 2
    await proxy.instances.forget_idle()
    status, answer = await proxy.call("GET", f"{idle}/records")
    assert (status, answer["error_code"]) == (404, INSTANCE_NOT_FOUND)
    assert await proxy.read(busy) == []
    assert len(proxy.groups.documents(prefix=DOCUMENT_PREFIX)) == 1


async def test_an_instance_that_is_called_while_others_are_forgotten_stays(proxy: Proxy) -> None:
    _, called = await proxy.create(name="a"), await proxy.create(name="b")
    proxy.time.skipped_s += IDLE_MS / 1000
    put, is_writing, go_on = proxy.groups.put_document, asyncio.Event(), asyncio.Event()

    async def slow(group: str, key: str, content: bytes | None, *, flushed: bool = False) -> None:
        if content is None:
            is_writing.set()
            await go_on.wait()
        await put(group, key, content, flushed=flushed)

    proxy.groups.put_document = slow  # type: ignore[method-assign]
    forgetting = asyncio.create_task(proxy.instances.forget_idle())
    await is_writing.wait()
    assert (await proxy.call("POST", f"{called}/subscription", {"topics": ["orders"]}))[0] == 204
    go_on.set()
    await forgetting
    assert await proxy.read(called) == []
    assert proxy.instances.count == 1


@pytest.mark.parametrize("error", [DiskFull("full"), GroupFull("no room")])
async def test_a_read_whose_progress_cannot_be_kept_is_answered(proxy: Proxy, error: Exception) -> None:
    """The next read takes for received what this one would have had."""
    await proxy.send(*(b"%d" % number for number in range(4)))
    base = await proxy.reader()

    async def failing(*args: object, **options: object) -> None:
        raise error

    proxy.groups.put_document = failing  # type: ignore[method-assign]
    assert [await proxy.values(base, "timeout=0&max_records=2") for _ in range(2)] == [[0, 1], [2, 3]]


async def test_an_instance_whose_part_fails_is_out_and_takes_nobody_along(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    await proxy.send(b"0")
    base, other = await proxy.reader(), await proxy.create()

    def failing(*_: object) -> None:
        raise ZeroDivisionError

    heartbeat, proxy.groups.heartbeat = proxy.groups.heartbeat, failing  # type: ignore[method-assign,assignment]
    await proxy.call("POST", f"{other}/subscription", {"topics": ["orders"]})  # shares are changed
    await until(lambda: "ZeroDivisionError" in caplog.text)
    proxy.groups.heartbeat = heartbeat  # type: ignore[method-assign]
    assert not proxy._tasks[0].done()
    assert sorted(await proxy.values(base) + await proxy.values(other)) == [0]


@pytest.mark.parametrize("auto_commit", ["true", "false"])
async def test_instances_survive_a_restart(proxy: Proxy, aiohttp_client: MakeClient, auto_commit: str) -> None:
    await proxy.send(*(b"%d" % number for number in range(9)))
    base = await proxy.reader(auto_commit_enable=auto_commit)
    for _ in range(2):
        await proxy.read(base, "timeout=0&max_records=2")
    await proxy.start(aiohttp_client)
    assert await proxy.call("GET", f"{base}/subscription") == (200, {"topics": ["orders"]})
    # Whether the last answer arrived nobody knows: it comes again.
    assert await proxy.values(base, "timeout=0&max_records=3") == [2, 3, 4]
    assert await proxy.values(base) == [5, 6, 7, 8]
    assert (await proxy.committed(base) in (None, 0)) == (auto_commit == "false")


async def test_after_a_restart_a_client_may_commit_what_it_was_handed_before(
    proxy: Proxy, aiohttp_client: MakeClient
) -> None:
    await proxy.send(b"0", b"1", b"2")
    base = await proxy.reader(auto_commit_enable="false")
    await proxy.read(base, "timeout=0&max_records=2")
    await proxy.start(aiohttp_client)
    assert await proxy.call("POST", f"{base}/offsets") == (200, [])
    assert await proxy.committed(base) == 2
    assert await proxy.values(base) == [2]


async def test_an_assignment_and_its_positions_survive_a_restart(proxy: Proxy, aiohttp_client: MakeClient) -> None:
    await proxy.send(b"0", b"1", b"2", partition=1)
    base = await proxy.create(format="json")
    partition = {"topic": "orders", "partition": 1}
    await proxy.call("POST", f"{base}/assignments", {"partitions": [partition]})
    await proxy.call("POST", f"{base}/positions", {"offsets": [{**partition, "offset": 1}]})
    await proxy.start(aiohttp_client)
    assert await proxy.call("GET", f"{base}/assignments") == (200, {"partitions": [partition]})
    assert await proxy.values(base) == [1, 2]


async def test_a_document_that_cannot_be_read_costs_one_instance_only(proxy: Proxy, aiohttp_client: MakeClient) -> None:
    base = await proxy.reader()
    for content in (b"", b"{}", b'{"version": 99}', b'{"version": 1, "settings": {"format": "?"}}'):
        await proxy.groups.put_document("g", f"{DOCUMENT_PREFIX}broken-{len(content)}", content)
    await proxy.start(aiohttp_client)
    assert proxy.instances.count == 1
    assert await proxy.read(base) == []


# REST Proxy v1


async def test_v1_reads_a_topic_without_subscribing_first(proxy: Proxy) -> None:
    await proxy.broker.create_topic("other", 1)
    await proxy.send(b"1")
    base = await proxy.create(auto_offset_reset="smallest")
    accept = "application/vnd.kafka.binary.v1+json"
    status, records = await proxy.call("GET", f"{base}/topics/orders?max_bytes=1000", Accept=accept)
    assert (status, [b64decode(record["value"]) for record in records]) == (200, [b"1"])
    assert await proxy.call("POST", f"{base}/offsets") == (200, [])
    assert await proxy.committed(base) == 1
    status, answer = await proxy.call("GET", f"{base}/topics/other", Accept=accept)
    assert (status, answer["error_code"]) == (409, OTHER_TOPIC)
    status, answer = await proxy.call("GET", f"{await proxy.create()}/topics/nope")
    assert (status, answer["error_code"]) == (404, 40401)


async def test_v1_reads_a_partition_by_offset_and_count(proxy: Proxy) -> None:
    await proxy.send(b"0", b"1", b"2", b"3")
    path = "/topics/orders/partitions/0/messages"
    for query, values in (("?offset=1", [1]), ("?offset=1&count=2", [1, 2]), ("?offset=9", [])):
        response = await proxy.client.get(path + query, headers={"Accept": "application/vnd.kafka.json.v1+json"})
        assert [record["value"] for record in await response.json(content_type=None)] == values
    assert (await proxy.client.get(path)).status == 422

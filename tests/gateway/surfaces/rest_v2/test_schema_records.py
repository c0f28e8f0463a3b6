"""Avro, JSON Schema and Protobuf through the REST Proxy's v2 API: sends, pulls and consumer instances, and v3 beside
them, over a registry in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiohttp.test_utils import TestServer

from gateway.codec.schema_parts import framed
from gateway.main.application import build_application
from gateway.schemas.registry import Registry
from gateway.schemas.service import RegistrySchemas
from gateway.settings.registry import RegistryConfig
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.rest_v2 import schema_records
from gateway.surfaces.rest_v2.consumers import install_instances
from gateway.surfaces.rest_v2.instances.service import Instances
from gateway.surfaces.rest_v2.schema_records import RECORDS_AT_ONCE
from store import record_batch
from store.record_batch import Record
from store.types import Acks, Append, QueueKey
from tests.clock import FakeClock
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker, fake_gateway
from tests.gateway.fake_groups import FakeGroups
from tests.gateway.production_server import ProductionServer
from tests.gateway.schemas.converting import HereConverter
from tests.gateway.schemas.fake_registry import AVRO, JSON_SCHEMA, PROTO, FakeRegistry, serving

Json = Any
PATH = "/topics/orders/partitions/0/records"
SENT = {
    "avro": (AVRO, {"sku": 9, "note": {"string": "x"}}, b"\x12\x02\x02x"),
    "jsonschema": (JSON_SCHEMA, {"sku": 9}, b'{"sku":9}'),
    "protobuf": (PROTO, {"sku": 9, "orderNote": "x"}, b"\x00\x08\x09\x12\x01x"),
}


class World:
    """A gateway with a registry, and its consumer instances."""

    def __init__(self, gateway: Gateway, broker: FakeBroker, fake: FakeRegistry, converter: HereConverter) -> None:
        self.gateway = gateway
        self.broker = broker
        self.fake = fake
        self.converter = converter
        self.client: Client

    async def send(self, fmt: str, body: Json, path: str = "/topics/orders/partitions/0") -> tuple[int, Json]:
        headers = {"Content-Type": f"application/vnd.kafka.{fmt}.v2+json"}
        response = await self.client.post(path, data=orjson.dumps(body), headers=headers)
        return response.status, await response.json(content_type=None)

    async def put(self, *records: tuple[bytes | None, bytes | None]) -> None:
        """Records as Kafka's clients have serialized them, in one batch."""
        batch = record_batch.encode([Record(key, value, 7, ()) for key, value in records])
        append = Append(queue=QueueKey(16, 0), batch=batch, record_count=len(records), tag_hashes=None)
        await self.broker.append([append], acks=Acks.FLUSHED)

    def stored(self) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of all that was sent."""
        return [(one.key, one.value) for append in self.broker.appends for one in record_batch.decode(append.batch)]

    async def pull(self, fmt: str, query: str = "offset=0") -> tuple[list[Json], int]:
        headers = {"Accept": f"application/vnd.kafka.{fmt}.v2+json"}
        response = await self.client.get(f"{PATH}?{query}", headers=headers)
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == headers["Accept"]
        return await response.json(content_type=None), int(response.headers["Mq-Next-Offset"])

    async def instance(self, fmt: str = "avro", **settings: Json) -> str:
        body = {"format": fmt, "auto.offset.reset": "earliest", **settings}
        response = await self.client.post("/consumers/g", json=body)
        answer = await response.json(content_type=None)
        assert response.status == 200, answer
        base = f"/consumers/g/instances/{answer['instance_id']}"
        assert (await self.client.post(f"{base}/subscription", json={"topics": ["orders"]})).status == 204
        return base

    async def read(self, base: str, query: str = "") -> tuple[int, Json]:
        response = await self.client.get(f"{base}/records?timeout=0&{query}")
        return response.status, await response.json(content_type=None)


@pytest.fixture
async def world(aiohttp_client: Callable[[TestServer], Awaitable[Client]]) -> AsyncIterator[World]:
    plain, broker = fake_gateway(FakeClock())
    await broker.create_topic("orders", 4)
    async with serving() as fake, Registry(RegistryConfig(url=fake.url, timeout_ms=5_000)) as registry:
        converter = HereConverter()
        schemas = RegistrySchemas(registry, converter)
        gateway = replace(plain, schemas=schemas)
        instances = Instances(
            FakeGroups(gateway.routes_table, gateway.consumer),  # type: ignore[arg-type]
            gateway.consumer,
            gateway.routes_table,
            limits=gateway.limits,
            idle_timeout_ms=300_000,
            draining=gateway.draining,
            schemas=schemas,
        )
        running = asyncio.create_task(instances.run())
        await asyncio.sleep(0)
        application = build_application(gateway)
        install_instances(application, gateway, instances)
        server = ProductionServer(gateway, application)
        await server.start_server()
        made = World(gateway, broker, fake, converter)
        made.client = await aiohttp_client(server)
        yield made
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await schemas.close()


# Sends


@pytest.mark.parametrize("fmt", SENT)
async def test_values_are_stored_as_a_serializer_writes_them(world: World, fmt: str) -> None:
    text, value, payload = SENT[fmt]
    status, answer = await world.send(fmt, {"value_schema": text, "records": [{"value": value}, {"value": None}]})
    assert status == 200, answer
    assert answer == {
        "offsets": [{"partition": 0, "offset": at, "error_code": None, "error": None} for at in (0, 1)],
        "key_schema_id": None,
        "value_schema_id": 1,
    }
    assert world.stored() == [(None, framed(1, payload)), (None, None)]
    assert world.fake.subjects == {"orders-value": [1]}
    assert not world.broker.appends[0].json_values
    status, answer = await world.send(fmt, {"value_schema_id": 1, "records": [{"value": value}]})
    assert (status, answer["value_schema_id"]) == (200, 1)
    assert (await world.pull(fmt))[0][0]["value"] == value


async def test_keys_have_a_schema_of_their_own(world: World) -> None:
    body = {"key_schema": '"string"', "value_schema": AVRO, "records": [{"key": "u1", "value": {"sku": 1}}]}
    status, answer = await world.send("avro", body)
    assert (status, answer["key_schema_id"], answer["value_schema_id"]) == (200, 1, 2)
    assert world.stored() == [(framed(1, b"\x04u1"), framed(2, b"\x02\x00"))]
    assert world.fake.subjects == {"orders-key": [1], "orders-value": [2]}
    [record], _ = await world.pull("avro")
    assert (record["key"], record["value"]) == ("u1", {"sku": 1, "note": None})


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"records": [{"value": {"sku": 1}}]}, 422, 42202),
        ({"value_schema": AVRO, "records": [{"key": 1, "value": {"sku": 1}}]}, 422, 42201),
        ({"value_schema": AVRO, "records": [{"value": {"sku": 1}}, {"value": {"sku": "x"}}]}, 422, 42203),
        ({"value_schema": AVRO, "records": [{"value": {"sku": 1, "more": 1}}]}, 422, 42203),
        ({"value_schema": "{", "records": [{"value": 1}]}, 422, 42205),
        ({"value_schema_id": 9, "records": [{"value": 1}]}, 408, 40801),
        ({"value_schema": AVRO, "value_schema_id": 1, "records": [{"value": {"sku": 1}}]}, 400, 400),
        ({"value_schema": 5, "records": [{"value": 1}]}, 400, 400),
        ({"value_schema_id": "5", "records": [{"value": 1}]}, 400, 400),
        ({"value_schema_id": True, "records": [{"value": 1}]}, 400, 400),
        ({"value_schema": AVRO, "records": []}, 422, 422),
        ({"value_schema": AVRO}, 422, 422),
        ({"value_schema": AVRO, "records": [1]}, 400, 400),
        ({"value_schema": AVRO, "records": [{"value": {"sku": 1}, "dealy_ms": 5}]}, 422, 422),
        ({"value_schema": AVRO, "shcema": 1, "records": [{"value": {"sku": 1}}]}, 422, 422),
        ([], 400, 400),
    ],
)
async def test_a_send_that_breaks_a_rule_stores_nothing(world: World, body: Json, status: int, code: int) -> None:
    found, answer = await world.send("avro", body)
    assert (found, answer["error_code"]) == (status, code), answer
    assert world.stored() == []


async def test_which_record_does_not_fit_is_said(world: World) -> None:
    body = {"value_schema": AVRO, "records": [{"value": None}, {"value": {"sku": 1}}, {"value": {"sku": "x"}}]}
    _, answer = await world.send("avro", body)
    assert answer["validation_errors"] == ["records[2]: The value does not fit its schema: value.sku is no int"]


async def test_a_record_that_is_refused_for_itself_leaves_the_others(world: World) -> None:
    body = {"value_schema": AVRO, "records": [{"value": {"sku": 1}, "partition": 9}, {"value": {"sku": 2}}]}
    status, answer = await world.send("avro", body, "/topics/orders")
    assert status == 200
    assert [one["error_code"] for one in answer["offsets"]] == [40402, None]
    assert [value for _, value in world.stored()] == [framed(1, b"\x04\x00")]


async def test_what_other_formats_can_do_is_done(world: World) -> None:
    body = {
        "value_schema": AVRO,
        "records": [{"value": {"sku": 1}, "tag": "paid", "headers": [{"key": "h", "text": "v"}]}],
    }
    status, _ = await world.send("avro", body, "/topics/orders/partitions/0?acks=written")
    assert status == 200
    [record], _ = await world.pull("avro", "offset=0&filter=tag:paid")
    assert record["tag"] == "paid"
    assert record["headers"][0]["key"] == "h"
    assert (await world.pull("avro", "offset=0&filter=tag:other")) == ([], 1)


async def test_many_records_of_a_large_body(world: World) -> None:
    values = [{"sku": number, "note": {"string": "x" * 200}} for number in range(1000)]
    body = {"value_schema": AVRO, "records": [{"value": value} for value in values]}
    status, answer = await world.send("avro", body)
    assert status == 200
    assert len(answer["offsets"]) == 1000
    assert world.converter.request_count == 1
    assert len(world.stored()) == 1000


async def test_which_of_many_records_is_illegal_is_said(world: World) -> None:
    records: list[Json] = [{"value": {"sku": number}} for number in range(3000)]
    records[2345]["tag"] = "a|b"
    status, answer = await world.send("avro", {"value_schema": AVRO, "records": records})
    assert (status, answer["error_code"]) == (422, 42251)
    assert answer["validation_errors"][0].startswith("records[2345]: tag")
    assert world.stored() == []


async def test_a_topic_attached_from_kafka_has_subjects_by_its_name_there(world: World) -> None:
    from gateway.routing.base import Attachment

    world.gateway.routes_table.attachments[16] = Attachment("kafka1", "prod.orders")  # type: ignore[attr-defined]
    await world.send("avro", {"value_schema": AVRO, "records": [{"value": {"sku": 1}}]})
    assert world.fake.subjects == {"prod.orders-value": [1]}


async def test_a_registry_that_is_down_stores_nothing_and_says_so(world: World) -> None:
    world.fake.status = 500
    body = {"value_schema": AVRO, "records": [{"value": {"sku": 1}}]}
    status, answer = await world.send("avro", body)
    assert (status, answer["error_code"], answer["retriable"]) == (503, 50352, True)
    world.fake.status = 401
    status, answer = await world.send("avro", body)
    assert (status, answer["error_code"]) == (502, 50251)
    assert world.stored() == []


# Reads


async def test_a_record_that_cannot_be_read_does_not_block_the_others(world: World) -> None:
    number = world.fake.add('"int"')
    await world.put(
        (b"u1", framed(number, b"\x02")), (None, b"plain"), (b"\xff", framed(number, b"\x04")),
        (b"\0", framed(99, b"")), (framed(number, b"\x06"), None),
    )  # fmt: skip
    records, at = await world.pull("avro")
    assert at == 5
    assert [(one["key"], one["value"]) for one in records] == [
        ("u1", 1),
        (None, None),
        (None, None),
        (None, None),
        (3, None),
    ]
    assert [one.get("error_code") for one in records] == [None, 40801, 40801, 40801, None]
    assert "value: it does not begin" in records[1]["error"]
    assert "key: it does not begin" in records[2]["error"]
    assert "99" in records[3]["error"]
    assert records[1]["value_b64"] == "cGxhaW4="


@pytest.mark.parametrize(("choice", "values"), [("inline", [1, None, 2]), ("skip", [1, 2])])
async def test_an_instance_goes_by_its_own_choice(world: World, choice: str, values: list[Json]) -> None:
    number = world.fake.add('"int"')
    await world.put((None, framed(number, b"\x02")), (None, b"plain"), (None, framed(number, b"\x04")))
    base = await world.instance(**{"on.decode.error": choice})
    status, records = await world.read(base)
    assert (status, [one["value"] for one in records]) == (200, values)
    assert records[0]["offset"] == 0


async def test_an_instance_that_fails_stays_where_it_is(world: World) -> None:
    number = world.fake.add('"int"')
    await world.put((None, framed(number, b"\x02")), (None, b"plain"))
    base = await world.instance(**{"on.decode.error": "fail"})
    assert [one["value"] for one in (await world.read(base))[1]] == [1]
    for _ in range(2):
        status, answer = await world.read(base)
        assert (status, answer["error_code"], answer["details"]["offset"]) == (408, 40801, 1)


async def test_a_registry_that_is_down_passes_nothing_over(world: World) -> None:
    number = world.fake.add('"int"')
    await world.put((None, framed(number, b"\x02")), (None, framed(number, b"\x04")))
    base = await world.instance(**{"on.decode.error": "skip"})
    world.fake.status = 503
    for _ in range(2):
        status, answer = await world.read(base)
        assert (status, answer["error_code"], answer["retriable"]) == (503, 50352, True)
    response = await world.client.get(f"{PATH}?offset=0&format=avro")
    assert response.status == 503
    world.fake.status = 0
    assert [one["value"] for one in (await world.read(base))[1]] == [1, 2]


async def test_a_read_goes_on_where_the_time_was_over(world: World) -> None:
    number = world.fake.add('"int"')
    await world.put(*((framed(number, b"\x02"), framed(number, bytes([2 * at]))) for at in range(10)))
    world.converter.values_max = 5  # two records and a key
    seen: list[int] = []
    at = 0
    while at < 10:
        records, following = await world.pull("avro", f"offset={at}")
        assert [one["offset"] for one in records] == list(range(at, following))
        assert len(records) <= 2
        seen += [one["value"] for one in records]
        at = following
    assert seen == list(range(10))
    base = await world.instance()
    _, records = await world.read(base)
    assert [one["value"] for one in records] == list(range(10))
    world.converter.values_max = 1  # a record at a time, although it has two parts
    assert [one["value"] for one in (await world.pull("avro"))[0]] == [0]


async def test_one_pull_has_so_many_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    number = world.fake.add('"int"')
    await world.put(*((None, framed(number, b"\x02")) for _ in range(RECORDS_AT_ONCE + 1)))
    records, at = await world.pull("avro")
    assert (len(records), at) == (RECORDS_AT_ONCE, RECORDS_AT_ONCE)
    assert await world.pull("avro", f"offset={at}") == ([{**records[0], "offset": at}], at + 1)
    assert len((await world.pull("avro", "offset=3&max_records=2"))[0]) == 2
    assert (await world.pull("avro", "offset=3&end_offset=5"))[1] == 5
    monkeypatch.setattr(schema_records, "RECORDS_AT_ONCE", 2)
    base = await world.instance()
    assert len((await world.read(base, "max_records=7"))[1]) == 7


async def test_the_size_of_an_answer_is_that_of_its_json(world: World) -> None:
    nulls = world.fake.add('{"type":"array","items":"null"}')
    await world.put(*((None, framed(nulls, b"\x80\x7d\x00")) for _ in range(3)))  # 8,000 nulls in 8 bytes
    base = await world.instance()
    assert [len((await world.read(base, "max_bytes=50000"))[1]) for _ in range(3)] == [1, 1, 1]


async def test_an_instance_answers_in_its_format_and_no_other(world: World) -> None:
    base = await world.instance("protobuf")
    headers = {"Accept": "application/vnd.kafka.avro.v2+json"}
    response = await world.client.get(f"{base}/records?timeout=0", headers=headers)
    assert (response.status, (await response.json())["error_code"]) == (406, 40601)
    headers = {"Accept": "application/vnd.kafka.protobuf.v2+json"}
    response = await world.client.get(f"{base}/records?timeout=0", headers=headers)
    assert response.headers["Content-Type"] == headers["Accept"]
    response = await world.client.get("/topics/orders/partitions/0/messages?offset=0&count=1", headers=headers)
    assert (response.status, response.headers["Content-Type"]) == (200, headers["Accept"])


async def test_without_a_registry_the_formats_are_refused(client: Client) -> None:
    avro = "application/vnd.kafka.avro.v2+json"
    body = orjson.dumps({"value_schema": AVRO, "records": [{"value": {"sku": 1}}]})
    answers = [
        await client.post("/topics/orders", data=body, headers={"Content-Type": avro}),
        await client.get(PATH, headers={"Accept": avro}),
        await client.get(f"{PATH}?format=protobuf"),
    ]
    for answer in answers:
        assert (answer.status, (await answer.json(content_type=None))["error_code"]) == (422, 42202)


# v3


async def v3(world: World, *records: Json, batch: bool = False) -> list[Json]:
    topic = f"/v3/clusters/{world.gateway.cluster_id}/topics/orders/records"
    if batch:
        entries = [{"id": str(number), **record} for number, record in enumerate(records)]
        response = await world.client.post(f"{topic}:batch", json={"entries": entries})
        answer = await response.json(content_type=None)
        return sorted(answer["successes"] + answer["failures"], key=lambda one: one["id"])
    response = await world.client.post(topic, data=b"".join(map(orjson.dumps, records)))
    return [orjson.loads(line) for line in (await response.read()).splitlines()]


@pytest.mark.parametrize("batch", [False, True])
async def test_v3_by_a_schema_an_id_a_version_and_the_newest(world: World, batch: bool) -> None:
    data = {"sku": 9, "note": None}
    answers = await v3(
        world,
        {
            "partition_id": 0,
            "key": {"type": "STRING", "data": "u1"},
            "value": {"type": "AVRO", "schema": AVRO, "data": data},
        },
        batch=batch,
    )
    shown = {"type": "AVRO", "subject": "orders-value", "schema_id": 1, "schema_version": 1, "size": 7}
    assert answers[0]["value"] == shown
    assert answers[0]["key"] == {"type": "STRING", "size": 2}
    answers = await v3(
        world,
        *({"partition_id": 0, "value": {**way, "data": data}} for way in (
            {"schema_id": 1}, {"schema_version": 1}, {}, {"type": "AVRO", "schema_id": 1}, {"subject": "orders-value"},
            {"subject_name_strategy": "TOPIC_NAME"},
        )),
        batch=batch,
    )  # fmt: skip
    assert [one.get("value") for one in answers] == [shown] * 6
    assert {value for _, value in world.stored()} == {framed(1, b"\x12\x00")}
    records, _ = await world.pull("avro")
    assert [one["key"] for one in records] == ["u1", *[None] * 6]
    assert world.converter.request_count < 10  # records that name the same schema are serialized together


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"type": "AVRO", "schema": AVRO, "data": {"sku": "x"}}, 42203),
        ({"type": "PROTOBUF", "schema_id": 1, "data": {}}, 42205),
        ({"type": "AVRO", "schema": "{", "data": 1}, 42205),
        ({"schema_id": 9, "data": 1}, 40801),
        ({"subject": "none", "data": 1}, 40801),
        ({"type": "AVRO", "schema": AVRO, "subject": "other-value", "data": {"sku": 1}}, 40801),
        ({"schema_id": 1, "schema_version": 1, "data": 1}, 400),
        ({"type": "XML", "data": 1}, 400),
        ({"type": "AVRO", "schema_id": "1", "data": 1}, 400),
        ({"subject_name_strategy": "MY_OWN", "data": 1}, 400),
        ({"subject": "a", "subject_name_strategy": "TOPIC_NAME", "data": 1}, 400),
        ({"schema_id": 1, "data": 1, "shcema": 1}, 422),
    ],
)
async def test_v3_each_record_is_judged_alone(world: World, value: Json, code: int) -> None:
    world.fake.add(AVRO, subject="orders-value")
    good = {"partition_id": 0, "value": {"schema_id": 1, "data": {"sku": 1}}}
    answers = await v3(world, good, {"value": value}, {"partition_id": 0, "value": {"type": "JSON", "data": 1}}, good)
    assert [one["error_code"] for one in answers] == [200, code, 200, 200]
    assert "other-value" not in world.fake.subjects


async def test_v3_a_tombstone_needs_no_schema(world: World) -> None:
    [answer] = await v3(world, {"partition_id": 0, "value": {"type": "AVRO", "data": None}})
    assert answer["error_code"] == 200
    assert world.stored() == [(None, None)]
    assert world.fake.asked == []

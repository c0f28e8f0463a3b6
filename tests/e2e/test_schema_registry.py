"""Confluent's serializers for Python and the REST Proxy's formats on one topic, over one registry: what either writes
the other reads, in equal bytes. The registry is Apicurio's; where it cannot be had, one in memory, and that is said."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import confluent_kafka
import pytest
import pytest_asyncio
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from gateway.schemas.protobuf import Protobuf
from gateway.schemas.request import SchemaText
from loadtest.peers.peer import Unavailable
from tests.e2e.apicurio import VERSION, apicurio
from tests.e2e.test_kafka import Kafka
from tests.e2e.test_kafka import serving as serving_kafka
from tests.gateway.schemas.fake_registry import AVRO, JSON_SCHEMA, PROTO
from tests.gateway.schemas.fake_registry import serving as serving_fake
from tests.gateway.schemas.test_protobuf import CUSTOMER, NESTED

pytestmark = [pytest.mark.matrix, pytest.mark.asyncio(loop_scope="module")]

KEY = '{"type": "record", "name": "Key", "fields": [{"name": "id", "type": "string"}]}'
RICH_AVRO = """{"type": "record", "name": "Rich", "namespace": "org.example", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}, {"name": "raw", "type": "bytes"},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "ratio", "type": "double"}, {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "prices", "type": {"type": "map", "values": "int"}}, {"name": "next", "type": ["null", "Rich"]}]}"""
RICH = {
    "id": 2**40, "name": "ä", "raw": b"\x00\xff", "kind": "B", "ratio": 0.5, "tags": ["x", "y"], "prices": {"a": 1},
    "next": {"id": 1, "name": None, "raw": b"", "kind": "A", "ratio": -1.0, "tags": [], "prices": {}, "next": None},
}  # fmt: skip
RICH_JSON = {
    **RICH, "name": {"string": "ä"}, "raw": "\x00\xff",
    "next": {"org.example.Rich": {**RICH["next"], "raw": ""}},  # type: ignore[dict-item]
}  # fmt: skip
Order: Any = GetMessageClass(Protobuf(SchemaText("protobuf", PROTO))._pool.FindMessageTypeByName("org.example.Order"))


class World:
    def __init__(self, kafka: Kafka, registry: str, session: aiohttp.ClientSession) -> None:
        self.kafka = kafka
        self.url = kafka.server.url
        self.registry = SchemaRegistryClient({"url": registry})
        self.session = session

    async def sent_by_rest(self, topic: str, fmt: str, body: Any) -> Any:
        headers = {"Content-Type": f"application/vnd.kafka.{fmt}.v2+json"}
        async with self.session.post(f"{self.url}/topics/{topic}", json=body, headers=headers) as answer:
            content = await answer.json(content_type=None)
            assert answer.status == 200, content
            return content

    async def read_by_rest(self, topic: str, fmt: str, count: int) -> list[Any]:
        """By a consumer instance."""
        consumers = f"{self.url}/consumers/{topic}-{fmt}"
        wish = {"format": fmt, "auto.offset.reset": "earliest"}
        async with self.session.post(consumers, json=wish) as answer:
            base = (await answer.json(content_type=None))["base_uri"]
        async with self.session.post(f"{base}/subscription", json={"topics": [topic]}) as answer:
            assert answer.status == 204
        records: list[Any] = []
        while len(records) < count:
            async with self.session.get(f"{base}/records?timeout=5000") as answer:
                found = await answer.json(content_type=None)
                assert answer.status == 200, found
                assert found, "nothing came"
                records += found
        return records

    async def bytes_in(self, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values as a Kafka client gets them."""
        return await asyncio.to_thread(self._bytes_in, topic, count)

    def _bytes_in(self, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.kafka.address, "group.id": f"{topic}-bytes", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([topic])
        try:
            found: list[tuple[bytes | None, bytes | None]] = []
            for _ in range(60):
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    found.append((message.key(), message.value()))
                if len(found) == count:
                    return found
            raise AssertionError(f"{len(found)} of {count} came")
        finally:
            consumer.close()

    async def sent_by_kafka(self, topic: str, values: list[bytes]) -> None:
        await asyncio.to_thread(self.kafka.send, topic, values)


@contextmanager
def _fake() -> Iterator[str]:
    """A registry in memory, on an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    serving = serving_fake()
    fake = asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(30)
    try:
        yield fake.url.rstrip("/")
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@contextmanager
def _registry(directory: Path, say: Callable[[str], None]) -> Iterator[str]:
    try:
        with apicurio(directory) as url:
            say(f"the schema registry is Apicurio {VERSION}")
            yield url
    except Unavailable as reason:
        say(f"the schema registry is one in memory: {reason}")
        with _fake() as url:
            yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    directory = tmp_path_factory.mktemp("registry")

    def say(text: str) -> None:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{text}")

    with _registry(directory, say) as url:
        async with serving_kafka(directory, {"MQ_REGISTRY_URL": url}) as kafka, aiohttp.ClientSession() as session:
            yield World(kafka, url, session)


def _context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


async def test_avro_both_ways(world: World) -> None:
    await world.kafka.create("avro", 1)
    serialize = AvroSerializer(world.registry, RICH_AVRO)
    theirs = await asyncio.to_thread(serialize, RICH, _context("avro"))
    await world.sent_by_kafka("avro", [theirs])
    answer = await world.sent_by_rest("avro", "avro", {"value_schema": RICH_AVRO, "records": [{"value": RICH_JSON}]})
    stored = [value for _, value in await world.bytes_in("avro", 2)]
    assert stored == [theirs, theirs]
    assert answer["value_schema_id"] == int.from_bytes(theirs[1:5], "big")
    assert [one["value"] for one in await world.read_by_rest("avro", "avro", 2)] == [RICH_JSON] * 2
    read = await asyncio.to_thread(AvroDeserializer(world.registry), stored[1], _context("avro"))
    assert read == RICH


async def test_json_schema_both_ways(world: World) -> None:
    await world.kafka.create("json", 1)
    value = {"sku": 9, "more": ["ä", 1.5, None]}
    theirs = await asyncio.to_thread(JSONSerializer(JSON_SCHEMA, world.registry), value, _context("json"))
    await world.sent_by_kafka("json", [theirs])
    await world.sent_by_rest("json", "jsonschema", {"value_schema": JSON_SCHEMA, "records": [{"value": value}]})
    stored = [one for _, one in await world.bytes_in("json", 2)]
    assert stored == [theirs, theirs]
    assert [one["value"] for one in await world.read_by_rest("json", "jsonschema", 2)] == [value] * 2
    deserialize = JSONDeserializer(JSON_SCHEMA, schema_registry_client=world.registry)
    assert await asyncio.to_thread(deserialize, stored[1], _context("json")) == value


async def test_protobuf_both_ways(world: World) -> None:
    await world.kafka.create("proto", 1)
    value = {"sku": 9, "orderNote": "ä"}
    message = json_format.ParseDict(value, Order())
    theirs = await asyncio.to_thread(ProtobufSerializer(Order, world.registry), message, _context("proto"))
    await world.sent_by_kafka("proto", [theirs])
    schema_id = int.from_bytes(theirs[1:5], "big")
    await world.sent_by_rest("proto", "protobuf", {"value_schema_id": schema_id, "records": [{"value": value}]})
    stored = [one for _, one in await world.bytes_in("proto", 2)]
    assert stored == [theirs, theirs]
    assert [one["value"] for one in await world.read_by_rest("proto", "protobuf", 2)] == [value] * 2
    deserialize = ProtobufDeserializer(Order, {}, world.registry)
    assert await asyncio.to_thread(deserialize, stored[1], _context("proto")) == message


async def test_a_nested_protobuf_message_with_imports_is_read(world: World) -> None:
    """Their client registers what is imported as schemas of their own, and names the message by indexes."""
    await world.kafka.create("nested", 1)
    nested = Protobuf(SchemaText("protobuf", NESTED, (("other/customer.proto", CUSTOMER),)))
    inner: Any = GetMessageClass(nested._pool.FindMessageTypeByName("a.b.Second.Inner"))
    value = {"at": "1970-01-01T00:00:05Z", "who": {"name": "z"}, "bigOnes": ["7", "-8"]}
    serialize = ProtobufSerializer(inner, world.registry)
    theirs = await asyncio.to_thread(serialize, json_format.ParseDict(value, inner()), _context("nested"))
    assert theirs[5:8] == b"\x04\x02\x02"
    await world.sent_by_kafka("nested", [theirs])
    assert [one["value"] for one in await world.read_by_rest("nested", "protobuf", 1)] == [value]


async def test_keys_by_a_schema_of_their_own(world: World) -> None:
    await world.kafka.create("keys", 1)
    key_context = SerializationContext("keys", MessageField.KEY)
    key = await asyncio.to_thread(AvroSerializer(world.registry, KEY), {"id": "u1"}, key_context)
    value = await asyncio.to_thread(AvroSerializer(world.registry, AVRO), {"sku": 3, "note": "x"}, _context("keys"))
    sent = {"key": {"id": "u1"}, "value": {"sku": 3, "note": {"string": "x"}}}
    body = {"key_schema": KEY, "value_schema": AVRO, "records": [sent]}
    answer = await world.sent_by_rest("keys", "avro", body)
    assert await world.bytes_in("keys", 1) == [(key, value)]
    assert answer["key_schema_id"] == int.from_bytes(key[1:5], "big")
    [record] = await world.read_by_rest("keys", "avro", 1)
    assert {name: record[name] for name in sent} == sent


async def test_a_proto_text_is_registered_by_rest_and_read_by_their_client(world: World) -> None:
    await world.kafka.create("text", 1)
    value = {"sku": 5, "orderNote": "z"}
    await world.sent_by_rest("text", "protobuf", {"value_schema": PROTO, "records": [{"value": value}]})
    [(_, stored)] = await world.bytes_in("text", 1)
    assert [one["value"] for one in await world.read_by_rest("text", "protobuf", 1)] == [value]
    read = await asyncio.to_thread(ProtobufDeserializer(Order, {}), stored, _context("text"))
    assert json_format.MessageToDict(read) == value


async def test_v3_and_v2_write_the_same(world: World) -> None:
    await world.kafka.create("v3", 1)
    async with world.session.get(f"{world.url}/v3/clusters") as answer:
        cluster = (await answer.json())["data"][0]["cluster_id"]
    target = f"{world.url}/v3/clusters/{cluster}/topics/v3/records"
    ways: list[Any] = [{"type": "AVRO", "schema": AVRO}, {"schema_version": 1}, {}]
    receipts = []
    for way in ways:
        body = {"key": {"type": "STRING", "data": "u1"}, "value": {**way, "data": {"sku": 3, "note": None}}}
        async with world.session.post(target, json=body) as answer:
            receipts.append(await answer.json(content_type=None))
    assert [one["error_code"] for one in receipts] == [200] * 3, receipts
    assert {(one["value"]["subject"], one["value"]["schema_version"]) for one in receipts} == {("v3-value", 1)}
    await world.sent_by_rest("v3", "avro", {"value_schema": AVRO, "records": [{"value": {"sku": 3, "note": None}}]})
    stored = await world.bytes_in("v3", 4)
    assert len({value for _, value in stored}) == 1
    assert [key for key, _ in stored] == [b"u1"] * 3 + [None]
    records = await world.read_by_rest("v3", "avro", 4)
    assert [one["key"] for one in records] == ["u1"] * 3 + [None]


async def test_an_incompatible_schema_is_refused_and_nothing_is_stored(world: World) -> None:
    await world.kafka.create("refused", 1)
    body: Any = {"value_schema": "no schema", "records": [{"value": 1}]}
    headers = {"Content-Type": "application/vnd.kafka.avro.v2+json"}
    async with world.session.post(f"{world.url}/topics/refused", json=body, headers=headers) as answer:
        assert (answer.status, (await answer.json(content_type=None))["error_code"]) == (422, 42205)
    body["value_schema_id"], _ = 2**31 - 1, body.pop("value_schema")
    async with world.session.post(f"{world.url}/topics/refused", json=body, headers=headers) as answer:
        assert (answer.status, (await answer.json(content_type=None))["error_code"]) == (408, 40801)
    async with world.session.get(f"{world.url}/topics/refused/partitions/0/offsets") as answer:
        assert (await answer.json(content_type=None))["end_offset"] == 0

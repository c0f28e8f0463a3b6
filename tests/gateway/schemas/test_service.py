"""gateway/schemas/service.py: which schema a sender means, who may register one, and values by their schemas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.api.schemas import SchemaWish, Unreadable
from gateway.codec.schema_parts import SchemaFormat, SubjectStrategy, framed
from gateway.errors import MALFORMED, REGISTRY_AWAY, SCHEMA_ILLEGAL, UNDECODABLE, RequestError
from gateway.schemas.registry import Registry
from gateway.schemas.request import REFERENCES_MAX, SCHEMA_BYTES_MAX
from gateway.schemas.service import ABSENT_S, LATEST_S, RegistrySchemas
from gateway.settings.registry import RegistryConfig
from tests.gateway.schemas.converting import HereConverter
from tests.gateway.schemas.fake_registry import AVRO, JSON_SCHEMA, PROTO, FakeRegistry, serving

AVRO_WISH = SchemaWish(format=SchemaFormat.AVRO, text=AVRO)


class World:
    def __init__(self, fake: FakeRegistry, registry: Registry) -> None:
        self.fake = fake
        self.registry = registry
        self.converter = HereConverter()
        self.now_s = 0.0
        self.schemas = self.made()

    def made(self, **more: bool) -> RegistrySchemas:
        return RegistrySchemas(self.registry, self.converter, monotonic_s=lambda: self.now_s, **more)

    async def error(self, wish: SchemaWish, topic: str = "orders") -> RequestError:
        with pytest.raises(RequestError) as caught:
            await self.schemas.choose(topic, wish, is_key=False)
        return caught.value


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as fake, Registry(RegistryConfig(url=fake.url, timeout_ms=10_000)) as registry:
        made = World(fake, registry)
        yield made
        await made.schemas.close()


# Which schema


async def test_a_new_schema_is_registered_once_under_the_topics_subject(world: World) -> None:
    chosen = await asyncio.gather(*(world.schemas.choose("orders", AVRO_WISH, is_key=False) for _ in range(20)))
    assert {one.schema_id for one in chosen} == {1}
    assert world.fake.subjects == {"orders-value": [1]}
    await world.schemas.choose("orders", AVRO_WISH, is_key=True)
    assert world.fake.subjects == {"orders-value": [1], "orders-key": [1]}
    assert [one for one in world.fake.asked if one.startswith("POST") and one.endswith("versions")] == [
        "POST /subjects/orders-value/versions",
        "POST /subjects/orders-key/versions",
    ]


async def test_a_schema_that_is_there_needs_no_right_to_register(world: World) -> None:
    number = world.fake.add(AVRO, subject="orders-value")
    schemas = world.made(auto_register=False)
    assert (await schemas.choose("orders", AVRO_WISH, is_key=False)).schema_id == number
    with pytest.raises(RequestError, match="gets no new schemas") as caught:
        await schemas.choose("orders", AVRO_WISH, is_key=True)
    assert caught.value.error_code == UNDECODABLE
    assert "orders-key" not in world.fake.subjects


@pytest.mark.parametrize(
    ("wish", "subject"),
    [
        (SchemaWish(format=SchemaFormat.AVRO, text=AVRO, subject="other-value"), "other-value"),
        (SchemaWish(format=SchemaFormat.AVRO, text=AVRO, subject="orders-eu-value"), "orders-eu-value"),
        (
            SchemaWish(format=SchemaFormat.AVRO, text=AVRO, strategy=SubjectStrategy.RECORD_NAME),
            "org.example.Order",
        ),
        (  # the value's subject of the topic `orders-eu`, by a title
            SchemaWish(
                format=SchemaFormat.JSONSCHEMA,
                text='{"title": "eu-value"}',
                strategy=SubjectStrategy.TOPIC_RECORD_NAME,
            ),
            "orders-eu-value",
        ),
    ],
)
async def test_under_a_subject_that_is_not_the_topics_a_schema_has_to_be_there(
    world: World, wish: SchemaWish, subject: str
) -> None:
    error = await world.error(wish)
    assert error.error_code == UNDECODABLE
    assert subject in error.message
    assert world.fake.schemas == {}
    assert wish.text is not None
    kind = "AVRO" if wish.format is SchemaFormat.AVRO else "JSON"
    world.fake.add(wish.text, kind, subject)
    assert (await world.schemas.choose("orders", wish, is_key=False)).subject == subject


async def test_a_subject_of_topic_and_record_is_the_topics(world: World) -> None:
    for fmt, text in ((SchemaFormat.AVRO, AVRO), (SchemaFormat.PROTOBUF, PROTO)):
        wish = SchemaWish(format=fmt, text=text, strategy=SubjectStrategy.TOPIC_RECORD_NAME, with_version=True)
        chosen = await world.schemas.choose("orders", wish, is_key=False)
        assert chosen.subject == "orders-org.example.Order"
    assert chosen.version == 2


async def test_by_id(world: World) -> None:
    number = world.fake.add(AVRO, subject="orders-value")
    wish = SchemaWish(schema_id=number)
    assert await world.schemas.choose("orders", wish, is_key=False) == (SchemaFormat.AVRO, number, None, None)
    wish = SchemaWish(format=SchemaFormat.AVRO, schema_id=number, with_version=True)
    assert await world.schemas.choose("orders", wish, is_key=False) == (SchemaFormat.AVRO, number, "orders-value", 1)
    error = await world.error(SchemaWish(format=SchemaFormat.PROTOBUF, schema_id=number))
    assert error.error_code == SCHEMA_ILLEGAL
    error = await world.error(SchemaWish(schema_id=number, subject="other-value", with_version=True))
    assert error.error_code == UNDECODABLE


async def test_a_schema_that_is_known_and_is_deleted_in_the_registry_has_no_version(world: World) -> None:
    chosen = await world.schemas.choose("orders", AVRO_WISH, is_key=False)
    await world.schemas.serialize(chosen.schema_id, [b'{"sku":1}'])
    world.fake.schemas.clear()
    error = await world.error(SchemaWish(schema_id=chosen.schema_id, with_version=True))
    assert (error.error_code, error.retriable) == (UNDECODABLE, False)


@pytest.mark.parametrize("schema_id", [0, -1, 2**31, 7])
async def test_an_id_that_there_is_not(world: World, schema_id: int) -> None:
    error = await world.error(SchemaWish(schema_id=schema_id))
    assert (error.error_code, error.retriable) == (UNDECODABLE, False)


async def test_that_there_is_no_such_id_is_believed_for_a_while(world: World) -> None:
    for _ in range(5):
        await world.error(SchemaWish(schema_id=1))
    assert world.fake.asked == ["GET /schemas/ids/1"]
    world.fake.add(AVRO)
    world.now_s = ABSENT_S - 0.1
    await world.error(SchemaWish(schema_id=1))
    world.now_s = ABSENT_S
    await world.schemas.choose("orders", SchemaWish(schema_id=1), is_key=False)
    world.now_s = 1e9
    await world.schemas.choose("orders", SchemaWish(schema_id=1), is_key=False)
    assert world.fake.asked == ["GET /schemas/ids/1"] * 2


async def test_by_version_and_the_newest(world: World) -> None:
    first, second = world.fake.add(AVRO, subject="orders-value"), world.fake.add(JSON_SCHEMA, "JSON", "orders-value")
    chosen = await world.schemas.choose("orders", SchemaWish(version=1), is_key=False)
    assert chosen == (SchemaFormat.AVRO, first, "orders-value", 1)
    chosen = await world.schemas.choose("orders", SchemaWish(), is_key=False)
    assert chosen == (SchemaFormat.JSONSCHEMA, second, "orders-value", 2)
    third = world.fake.add(PROTO, "PROTOBUF", "orders-value")
    assert (await world.schemas.choose("orders", SchemaWish(), is_key=False)).schema_id == second
    world.now_s = LATEST_S
    assert (await world.schemas.choose("orders", SchemaWish(), is_key=False)).schema_id == third
    assert (await world.error(SchemaWish(version=9))).error_code == UNDECODABLE
    assert (await world.error(SchemaWish(strategy=SubjectStrategy.RECORD_NAME))).error_code == MALFORMED


async def test_three_ways_to_name_a_schema_exclude_each_other(world: World) -> None:
    for wish in (SchemaWish(text=AVRO, schema_id=1), SchemaWish(schema_id=1, version=1)):
        assert (await world.error(wish)).error_code == MALFORMED
    assert (await world.error(SchemaWish(text=AVRO))).error_code == MALFORMED  # of which type?
    assert world.fake.asked == []


async def test_what_the_registry_does_not_take(world: World) -> None:
    assert (await world.error(SchemaWish(format=SchemaFormat.AVRO, text="{"))).error_code == SCHEMA_ILLEGAL
    await world.schemas.choose("orders", AVRO_WISH, is_key=False)
    error = await world.error(SchemaWish(format=SchemaFormat.JSONSCHEMA, text='{"title": "incompatible"}'))
    assert error.error_code == UNDECODABLE
    assert "incompatible" in error.message
    wish = SchemaWish(format=SchemaFormat.AVRO, text="{", strategy=SubjectStrategy.RECORD_NAME)
    assert (await world.error(wish)).error_code == SCHEMA_ILLEGAL


async def test_a_schema_that_is_sent_has_so_many_bytes_and_not_one_more(world: World) -> None:
    text = '{"doc":"%s"}' % ("x" * (SCHEMA_BYTES_MAX - 10))
    assert len(text) == SCHEMA_BYTES_MAX
    await world.schemas.choose("orders", SchemaWish(format=SchemaFormat.JSONSCHEMA, text=text), is_key=False)
    error = await world.error(SchemaWish(format=SchemaFormat.JSONSCHEMA, text=text + " "))
    assert error.error_code == SCHEMA_ILLEGAL


# References


async def test_what_a_schema_refers_to_comes_with_it(world: World) -> None:
    world.fake.add('{"type":"record","name":"b.Name","fields":[{"name":"n","type":"string"}]}', subject="name")
    world.fake.add(
        '{"type":"record","name":"b.Customer","fields":[{"name":"name","type":"b.Name"}]}', subject="customer",
        references=[{"name": "b.Name", "subject": "name", "version": 1}],
    )  # fmt: skip
    number = world.fake.add(
        '{"type":"record","name":"Order","fields":[{"name":"who","type":"b.Customer"},{"name":"n","type":"b.Name"}]}',
        references=[
            {"name": "b.Customer", "subject": "customer", "version": 1},
            {"name": "b.Name", "subject": "name", "version": 1},
        ],
    )
    value = b'{"who":{"name":{"n":"x"}},"n":{"n":"y"}}'
    [made] = await world.schemas.serialize(number, [value])
    assert made == framed(number, b"\x02x\x02y")
    assert await world.schemas.deserialize(SchemaFormat.AVRO, [made]) == [value]


async def test_references_that_are_missing_or_go_round(world: World) -> None:
    lost = world.fake.add('"int"', references=[{"name": "x", "subject": "none", "version": 1}])
    assert "Subject not found" in (await world.error(SchemaWish(schema_id=lost))).message
    world.fake.add('"long"', subject="a", references=[{"name": "b", "subject": "b", "version": 1}])
    world.fake.add('"float"', subject="b", references=[{"name": "a", "subject": "a", "version": 1}])
    round_ = world.fake.add('"double"', references=[{"name": "a", "subject": "a", "version": 1}])
    await world.schemas.choose("orders", SchemaWish(schema_id=round_), is_key=False)  # each is asked for once
    assert len(world.fake.asked) < 10


async def test_so_many_references_and_not_one_more(world: World) -> None:
    references = []
    for index in range(REFERENCES_MAX + 1):
        world.fake.add(f'{{"type":"fixed","size":1,"name":"f{index}"}}', subject=f"s{index}")
        references.append({"name": f"f{index}", "subject": f"s{index}", "version": 1})
    fits = world.fake.add('"f0"', references=references[:-1])
    await world.schemas.choose("orders", SchemaWish(schema_id=fits), is_key=False)
    too_many = world.fake.add('"f1"', references=references)
    assert str(REFERENCES_MAX) in (await world.error(SchemaWish(schema_id=too_many))).message


async def test_a_schema_with_its_references_has_so_many_bytes_and_not_one_more(world: World) -> None:
    half = '{"type":"fixed","size":1,"name":"f","doc":"%s"}' % ("x" * (SCHEMA_BYTES_MAX // 2))
    world.fake.add(half, subject="half")
    rest = SCHEMA_BYTES_MAX - len(half)
    reference = [{"name": "f", "subject": "half", "version": 1}]
    fits = world.fake.add('"f"' + " " * (rest - 3), references=reference)
    await world.schemas.choose("orders", SchemaWish(schema_id=fits), is_key=False)
    too_large = world.fake.add('"f"' + " " * (rest - 2), references=reference)
    assert str(SCHEMA_BYTES_MAX) in (await world.error(SchemaWish(schema_id=too_large))).message


# Values


async def test_each_value_is_read_by_its_own_schema(world: World) -> None:
    ids = [
        world.fake.add('"int"'),
        world.fake.add('"string"'),
        world.fake.add(PROTO, "PROTOBUF"),
        world.fake.add("{}", "X"),
    ]
    parts = [
        framed(ids[0], b"\x02"), framed(ids[1], b"\x02a"), b"plain", framed(ids[2], b"\0"), framed(ids[3], b""),
        framed(99, b""), framed(ids[0], b"\x04"), framed(ids[1], b"\x04a"),
    ]  # fmt: skip
    made = await world.schemas.deserialize(SchemaFormat.AVRO, parts)
    assert [one for one in made if isinstance(one, bytes)] == [b"1", b'"a"', b"2"]
    whys = [one.why for one in made if isinstance(one, Unreadable)]
    assert len(whys) == 5
    assert whys[0].startswith("it does not begin")
    assert whys[1] == f"its schema {ids[2]} is one of protobuf, not of avro"
    assert "is one of X" in whys[2]
    assert whys[3] == "schema 99: Schema not found"
    assert world.converter.request_count == 1


async def test_what_there_is_no_time_for_is_read_later_but_a_send_is_refused(world: World) -> None:
    number = world.fake.add('"int"')
    world.converter.values_max = 2
    parts = [framed(number, b"\x02"), b"no", framed(number, b"\x04"), framed(number, b"\x06"), b"no"]
    made = await world.schemas.deserialize(SchemaFormat.AVRO, parts)
    assert [one if isinstance(one, bytes) else None for one in made] == [b"1", None, b"2"]
    sent = await world.schemas.serialize(number, [b"1", b"2", b"3"])
    assert [isinstance(one, bytes) for one in sent] == [True, True, False]


async def test_many_schemas_at_once_are_asked_for_a_few_at_a_time(world: World) -> None:
    ids = [world.fake.add(f'{{"type":"int","n":{number}}}') for number in range(200)]
    made = await world.schemas.deserialize(SchemaFormat.AVRO, [framed(number, b"\x02") for number in ids])
    assert made == [b"1"] * 200
    assert len(world.fake.asked) == 200


async def test_with_the_registry_down_what_is_known_goes_on(world: World) -> None:
    chosen = await world.schemas.choose("orders", AVRO_WISH, is_key=False)
    [made] = await world.schemas.serialize(chosen.schema_id, [b'{"sku":1}'])
    world.fake.status = 503
    assert await world.schemas.choose("orders", AVRO_WISH, is_key=False) == chosen
    assert isinstance(made, bytes)
    assert await world.schemas.deserialize(SchemaFormat.AVRO, [made]) == [b'{"sku":1,"note":null}']
    with pytest.raises(RequestError) as caught:
        await world.schemas.deserialize(SchemaFormat.AVRO, [made, framed(77, b"")])
    assert caught.value.error_code == REGISTRY_AWAY


async def test_many_callers_wait_for_one_answer_of_a_slow_registry(world: World) -> None:
    number = world.fake.add('"int"')
    world.fake.delay_s = 0.1
    parts = [framed(number, b"\x02")]
    made = await asyncio.gather(*(world.schemas.deserialize(SchemaFormat.AVRO, parts) for _ in range(100)))
    assert made == [[b"1"]] * 100
    assert world.fake.asked == [f"GET /schemas/ids/{number}"]

"""gateway/schemas/converter.py with its processes: what hostile values do to them, and not to their server."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from gateway.api.schemas import Converted, Unreadable
from gateway.errors import OVERLOADED, RequestError
from gateway.schemas import converter as converting
from gateway.schemas.converter import Converter
from gateway.schemas.request import MEMORY_BYTES_MAX, VALUE_CPU_S, SchemaText
from tests.gateway.schemas.converting import HereConverter
from tests.gateway.schemas.fake_registry import AVRO, JSON_SCHEMA, PROTO

AVRO_TEXT = SchemaText("avro", AVRO)
NULLS = SchemaText("avro", '{"type": "array", "items": "null"}')
CHAIN = SchemaText("avro", '{"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}')
WIDE = "".join(f"int32 f{n} = {n + 1};" for n in range(9_000))
MANY_NULLS = b"\xff\xff\xff\xff\xff\xff\x7f\x00"  # a list of 2^48 nulls in 8 bytes


@pytest.fixture
async def converter() -> AsyncIterator[Converter]:
    made = Converter()
    yield made
    await made.close()


async def all_of(
    converter: Converter, act: str, schemas: list[SchemaText], values: list[tuple[int, bytes]]
) -> list[Converted]:
    """What becomes of all values, also where the time of one request is over before."""
    made: list[Converted] = []
    while len(made) < len(values):
        made += await converter.convert(act, schemas, values[len(made) :])
    return made


def pids_of(converter: Converter) -> list[int]:
    return [child._process.pid for child in converter._idle]


async def test_values_of_all_formats_both_ways(converter: Converter) -> None:
    schemas = [AVRO_TEXT, SchemaText("jsonschema", JSON_SCHEMA), SchemaText("protobuf", PROTO)]
    values = [(0, b'{"sku":9,"note":{"string":"x"}}'), (1, b'{"sku":9}'), (2, b'{"sku":9,"orderNote":"y"}')]
    serialized = await converter.convert("serialize", schemas, values)
    assert [isinstance(one, bytes) for one in serialized] == [True] * 3
    read = await converter.convert(
        "deserialize", schemas, [(number, one) for number, one in enumerate(serialized) if isinstance(one, bytes)]
    )
    assert [orjson.loads(one) for one in read if isinstance(one, bytes)] == [orjson.loads(value) for _, value in values]
    assert len(pids_of(converter)) == 1  # one was enough


async def test_a_value_that_takes_all_memory_is_refused_and_the_others_are_not(converter: Converter) -> None:
    item = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "null"}]}  # a dict each: soon too much
    items = SchemaText("avro", orjson.dumps({"type": "array", "items": item}).decode())
    made = await all_of(converter, "deserialize", [items], [(0, b"\x04\x00"), (0, MANY_NULLS), (0, b"\x00")])
    assert made[0] == b'[{"n":null},{"n":null}]'
    assert isinstance(made[1], Unreadable)
    assert str(MEMORY_BYTES_MAX) in made[1].why or "processor time" in made[1].why
    assert made[2] == b"[]"


async def test_a_value_that_overflows_the_stack_is_refused_and_the_others_are_not(converter: Converter) -> None:
    deep = b"\x02" * 4_000_000 + b"\x00"
    made = await all_of(converter, "deserialize", [CHAIN], [(0, b"\x00"), (0, deep), (0, b"\x02\x00")])
    assert made[0] == b'{"n":null}'
    assert isinstance(made[1], Unreadable)
    assert made[2] == b'{"n":{"N":{"n":null}}}'


HOSTILE_SCHEMAS = (
    SchemaText("jsonschema", '{"$ref": "#"}'),
    SchemaText("jsonschema", '{"not": {"$ref": "#"}}'),
    SchemaText("avro", '{"type":"array","items":' * 5_000 + '"int"' + "}" * 5_000),
    SchemaText("avro", '{"type":"record","name":"A","fields":[{"name":"a","type":"A"}]}'),
    SchemaText("protobuf", 'syntax = "proto3";' + "message A {" * 5_000 + "}" * 5_000),
    SchemaText("protobuf", f'syntax = "proto3"; message A {{ {WIDE} }}'),
    SchemaText("protobuf", b64encode(b"\x0a\x01a\x22\x05\x0a\x03B\xff\xff").decode()),
    SchemaText("protobuf", b64encode(b"\x0a\x01a\x1a\x01a\x22\x03\x0a\x01A").decode()),  # that imports itself
)


async def test_schemas_that_go_round_or_are_nested_or_wide(converter: Converter) -> None:
    for schema in HOSTILE_SCHEMAS:
        values = [(0, b"{}"), (1, b'{"sku":1}')]
        made = await all_of(converter, "serialize", [schema, AVRO_TEXT], values)
        assert len(made) == 2, schema.text[:30]
        assert made[1] == b"\x02\x00", schema.text[:30]
        made = await all_of(converter, "deserialize", [schema, AVRO_TEXT], [(0, b"\0\0\0"), (1, b"\x02\x00")])
        assert made[1] == b'{"sku":1,"note":null}', schema.text[:30]


async def test_a_value_that_ended_a_process_ends_no_other(
    converter: Converter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converting, "HARMFUL_MAX", 1)
    deep = b"\x02" * 4_000_000 + b"\x00"
    values = [(0, b"\x00"), (0, deep), (0, b"\x00"), (0, deep)]
    first = await all_of(converter, "deserialize", [CHAIN], values)
    assert [isinstance(one, Unreadable) for one in first] == [False, True, False, True]
    assert await all_of(converter, "deserialize", [CHAIN], values) == first
    assert len(caplog.records) == 2  # one process has ended, and one that was asked for one value after the other
    other = await all_of(converter, "deserialize", [CHAIN], [(0, deep + b"\x00"), (0, deep)])
    assert [isinstance(one, Unreadable) for one in other] == [True, True]
    assert len(caplog.records) == 4  # the first was forgotten for the second


@pytest.mark.matrix  # it takes all the time that one may take
async def test_a_value_that_takes_too_long_is_refused_and_the_others_are_not(converter: Converter) -> None:
    twice = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(40)}
    slow = SchemaText(
        "jsonschema", orjson.dumps({"$ref": "#/$defs/a0", "$defs": {**twice, "a40": {"const": 1}}}).decode()
    )
    made = await all_of(converter, "serialize", [slow, AVRO_TEXT], [(0, b"1"), (0, b"2"), (1, b'{"sku":1}')])
    assert made == [b"1", Unreadable(f"it takes more than {VALUE_CPU_S} s of processor time"), b"\x02\x00"]


async def test_a_process_that_is_killed_is_begun_anew(converter: Converter) -> None:
    await converter.convert("serialize", [AVRO_TEXT], [(0, b'{"sku":1}')])
    [before] = pids_of(converter)
    os.kill(before, signal.SIGKILL)
    made = await converter.convert("serialize", [AVRO_TEXT], [(0, b'{"sku":1}'), (0, b'{"sku":2}')])
    assert made[-1] == b"\x04\x00"
    assert pids_of(converter) != [before]


async def test_a_caller_that_is_gone_leaves_no_answer_for_the_next(converter: Converter) -> None:
    await converter.convert("serialize", [AVRO_TEXT], [(0, b'{"sku":1}')])
    asking = asyncio.create_task(converter.convert("deserialize", [NULLS], [(0, MANY_NULLS)]))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await converter.convert("serialize", [AVRO_TEXT], [(0, b'{"sku":2}')]) == [b"\x04\x00"]


async def test_so_many_requests_wait_and_not_one_more() -> None:
    converter = Converter(processes_max=1, waiting_max=2)
    try:
        values = [(0, b'{"sku":1}')]
        running = [asyncio.create_task(converter.convert("serialize", [AVRO_TEXT], values)) for _ in range(3)]
        await asyncio.sleep(0)  # one has the process, two wait
        with pytest.raises(RequestError) as caught:
            await converter.convert("serialize", [AVRO_TEXT], values)
        assert caught.value.error_code == OVERLOADED
        assert caught.value.retriable
        assert await asyncio.gather(*running) == [[b"\x02\x00"]] * 3
    finally:
        await converter.close()


async def test_the_event_loop_has_little_of_the_work(converter: Converter) -> None:
    wide = {"type": "record", "name": "W", "fields": [{"name": f"f{n}", "type": "int"} for n in range(5_000)]}
    schemas = [SchemaText("avro", orjson.dumps(wide).decode())]
    values = [(0, orjson.dumps({f"f{n}": n for n in range(5_000)}))] * 100

    async def cpu_s(one: Converter) -> float:
        begun_s = time.thread_time()
        assert all(isinstance(value, bytes) for value in await all_of(one, "serialize", schemas, values))
        return time.thread_time() - begun_s

    await converter.convert("serialize", [AVRO_TEXT], [(0, b'{"sku":1}')])
    assert await cpu_s(converter) < await cpu_s(HereConverter()) / 5


async def test_a_process_ends_with_its_server(converter: Converter) -> None:
    await converter.convert("serialize", [AVRO_TEXT], [(0, b'{"sku":1}')])
    [child] = converter._idle
    os.kill(child._process.pid, signal.SIGTERM)  # of a whole process group: the server says when
    assert await converter.convert("serialize", [AVRO_TEXT], [(0, b'{"sku":1}')]) == [b"\x02\x00"]
    assert converter._idle == [child]
    assert child._process.stdin is not None
    child._process.stdin.close()  # as when the server is killed
    assert await asyncio.wait_for(child._process.wait(), 30) == 0
    assert not Path(child._directory).exists()


async def test_nothing_is_left_behind() -> None:
    converter = Converter()
    await converter.convert("serialize", [SchemaText("protobuf", PROTO)], [(0, b"{}")])
    [pid] = pids_of(converter)
    [directory] = [child._directory for child in converter._idle]
    assert Path(directory).exists()
    await converter.close()
    assert not Path(directory).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

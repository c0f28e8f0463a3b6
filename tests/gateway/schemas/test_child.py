"""gateway/schemas/child.py, without the process: what is answered, and how much of it."""

from __future__ import annotations

import pytest

from gateway.schemas import child
from gateway.schemas.child import Codecs, answer, convert
from gateway.schemas.request import (
    ANSWER_BYTES_MAX,
    ANSWERED,
    DONE,
    LATER,
    PARSED_MAX,
    UNFIT,
    Request,
    SchemaText,
    Unfit,
)

TEXT = SchemaText("avro", '"string"')


class Upper:
    """A codec that makes bytes of the text's own length times the value's number."""

    name = None

    def __init__(self, schema: SchemaText) -> None:
        if schema.text == "no":
            raise ValueError("it is\n  none")
        self.parsed = schema.text

    def serialize(self, value: bytes) -> bytes:
        if value == b"unfit":
            raise Unfit("value is no good")
        if value == b"deep":
            raise RecursionError
        if value == b"memory":
            raise MemoryError
        return b"x" * int(value)

    deserialize = serialize


def codecs(**more: int) -> Codecs:
    return Codecs(Upper, **more)


def answered(values: list[bytes], **more: object) -> list[tuple[int, bytes]]:
    """What is said of each; the same at once and one by one."""
    ways = []
    for one_by_one in (True, False):
        said: list[bytes] = []
        looked: list[None] = []
        answer(
            codecs(), Request("serialize", [TEXT], [(0, value) for value in values], one_by_one),
            lambda some, said=said: said.append(bytes(some)), next_value=lambda looked=looked: looked.append(None),  # type: ignore[misc]
        )  # fmt: skip
        assert len(looked) <= len(values)
        ways.append(said)
    single, joined = ways
    assert b"".join(single) == b"".join(joined)
    return [(one[0], one[ANSWERED.size :]) for one in single]


def test_each_value_is_answered_in_order_and_a_bad_one_alone_is_refused() -> None:
    assert answered([b"1", b"unfit", b"deep", b"x", b"2"]) == [
        (DONE, b"x"),
        (UNFIT, b"value is no good"),
        (UNFIT, b"nested too deep"),
        (UNFIT, b"invalid literal for int() with base 10: b'x'"),
        (DONE, b"xx"),
    ]


def test_a_schema_that_is_none_is_told_for_each_of_its_values() -> None:
    assert convert(codecs(), "serialize", SchemaText("avro", "no"), b"1") == (UNFIT, b"Invalid schema: it is none")


def test_without_memory_nothing_is_answered() -> None:
    with pytest.raises(MemoryError):
        convert(codecs(), "serialize", TEXT, b"memory")


def test_one_value_has_so_many_bytes_and_not_one_more() -> None:
    assert answered([b"%d" % ANSWER_BYTES_MAX])[0][0] == DONE
    [(status, why)] = answered([b"%d" % (ANSWER_BYTES_MAX + 1)])
    assert (status, why) == (UNFIT, b"it has more than %d bytes in this form" % ANSWER_BYTES_MAX)


def test_one_answer_has_so_many_bytes_and_the_rest_comes_later() -> None:
    half = b"%d" % (ANSWER_BYTES_MAX // 2)
    assert [status for status, _ in answered([half, half])] == [DONE, DONE]
    assert [status for status, _ in answered([half, half, b"1", b"2"])] == [DONE, DONE, LATER]


def test_what_there_is_no_time_for_comes_later_but_never_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "REQUEST_S", -1.0)
    assert answered([b"1", b"2"]) == [(DONE, b"x"), (LATER, b"")]


def test_so_many_schemas_stay_parsed() -> None:
    kept = codecs()
    schemas = [SchemaText("avro", str(number)) for number in range(PARSED_MAX + 1)]
    first = kept.of(schemas[0])
    for schema in schemas[:PARSED_MAX]:
        kept.of(schema)
    assert kept.of(schemas[0]) is first
    kept.of(schemas[PARSED_MAX])  # one more: the one that was used the longest ago goes
    assert kept.of(schemas[0]) is first
    second = kept.of(schemas[2])
    kept.of(schemas[1])
    assert kept.of(schemas[2]) is second
    assert len(kept._kept) == PARSED_MAX


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (SchemaText("avro", '{"type": "record", "name": "a.R", "fields": []}'), (DONE, b"a.R")),
        (SchemaText("avro", '"int"'), (UNFIT, b"the schema has no name")),
        (SchemaText("jsonschema", '{"title": "T"}'), (DONE, b"T")),
        (SchemaText("protobuf", 'syntax = "proto3"; package p; message M {}'), (DONE, b"p.M")),
    ],
)
def test_the_name_of_a_schema(schema: SchemaText, name: tuple[int, bytes]) -> None:
    assert convert(Codecs(), "name", schema, b"") == name

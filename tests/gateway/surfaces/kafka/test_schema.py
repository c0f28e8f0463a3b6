"""Messages against kafka-python's codec of the same definitions, both ways; hostile bytes."""

from __future__ import annotations

import random
from contextlib import suppress
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.surfaces.kafka import schema
from gateway.surfaces.kafka.apis import APIS, FETCH, PRODUCE, Api
from gateway.surfaces.kafka.schema import ELEMENTS_MAX, Malformed
from tests.gateway.surfaces.kafka import definitions, oracle

# Produce and Fetch carry records, and are read and written by hand.
BY_SCHEMA = [api for api in APIS.values() if api.key not in (PRODUCE, FETCH)]
VERSIONS = [(api, version) for api in BY_SCHEMA for version in range(api.min_version, api.max_version + 1)]


def _value(kind: str, inner: Any, version: int, rng: random.Random, nullable: bool) -> Any:
    if nullable and rng.random() < 0.2:
        return None
    if kind.startswith("[]"):
        return [_value(kind[2:], inner, version, rng, False) for _ in range(rng.randrange(4))]
    if kind == "struct":
        return _fields(inner, version, rng)
    if kind == "string":
        return rng.choice(("", "orders", "größe", "x" * 200))
    if kind == "bytes":
        return rng.randbytes(rng.choice((0, 1, 300)))
    if kind == "bool":
        return rng.random() < 0.5
    bits = int(kind.removeprefix("int"))
    return rng.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))


def _fields(fields: list[list[Any]], version: int, rng: random.Random) -> dict[str, Any]:
    return {
        name: _value(kind, inner, version, rng, nullable is not None and nullable[0] <= version <= nullable[1])
        for name, kind, versions, nullable, _, inner in fields
        if versions[0] <= version <= versions[1]
    }


def random_message(name: str, version: int, seed: int) -> dict[str, Any]:
    """A message with values of all kinds in its fields."""
    return _fields(schema._definitions()[name]["fields"], version, random.Random(seed))


def test_the_layouts_are_those_of_apache_kafka() -> None:
    stored = (files("gateway.surfaces.kafka") / "messages.json").read_text()
    assert definitions.generated() == stored


@pytest.mark.parametrize("kind", ["Request", "Response"])
@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=[f"{api.name}-{version}" for api, version in VERSIONS])
def test_every_version_reads_and_writes_what_kafka_python_does(api: Api, version: int, kind: str) -> None:
    name = api.name + kind
    for seed in range(5):
        message = random_message(name, version, seed)
        if name == "ApiVersionsResponse":  # kafka-python takes an error for version 0, and forgets the time
            message |= {"error_code": 0} | ({"throttle_time_ms": 0} if version > 0 else {})
        written = bytes(schema.encode(name, version, message))
        theirs = oracle.message(name, version, written)
        assert oracle.encoded(theirs, version) == written
        assert schema.decode(name, version, written) == message


def test_tagged_fields_are_read_past() -> None:
    written = bytes(schema.encode("HeartbeatRequest", 4, {"group_id": "g", "generation_id": 1, "member_id": "m"}))
    assert written[-1] == 0
    tagged = written[:-1] + b"\x02\x00\x03abc\x7f\x00"
    assert schema.decode("HeartbeatRequest", 4, tagged)["member_id"] == "m"


def test_a_field_that_is_none_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="grop_id"):
        schema.encode("HeartbeatRequest", 0, {"grop_id": "g"})


def test_a_count_is_believed_only_as_far_as_there_are_bytes() -> None:
    with pytest.raises(Malformed):
        schema.decode("MetadataRequest", 1, b"\x7f\xff\xff\xff")
    with pytest.raises(Malformed):
        schema.decode("MetadataRequest", 9, b"\xff\xff\xff\xff\x0f")


def test_a_request_has_elements_max_elements_and_not_one_more() -> None:
    def names(count: int) -> bytes:
        return count.to_bytes(4, "big") + b"\x00\x01a" * count

    assert len(schema.decode("MetadataRequest", 1, names(ELEMENTS_MAX))["topics"]) == ELEMENTS_MAX
    with pytest.raises(Malformed):
        schema.decode("MetadataRequest", 1, names(ELEMENTS_MAX + 1))


@given(st.sampled_from(VERSIONS), st.integers(0, 10**6), st.data())
def test_mangled_requests_are_refused_and_nothing_else_happens(
    one: tuple[Api, int], seed: int, data: st.DataObject
) -> None:
    api, version = one
    name = api.name + "Request"
    written = schema.encode(name, version, random_message(name, version, seed))
    for _ in range(data.draw(st.integers(1, 4))):
        if written:
            written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(written[: data.draw(st.integers(0, len(written)))])
    with suppress(Malformed):
        schema.decode(name, version, cut)

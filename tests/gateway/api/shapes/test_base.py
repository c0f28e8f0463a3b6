"""gateway.api.shapes.base and gateway.api.shapes.schema: what is taken, what is said of the rest, and one schema of
both."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from msgspec import UNSET, Meta, UnsetType

from gateway.api.shapes.base import (
    COMMAS_MAX,
    Begin,
    Name,
    OpenShape,
    Shape,
    Time,
    chars,
    in_bytes,
    load,
    load_json,
    up_to,
    whole,
)
from gateway.api.shapes.groups import AckReceipts
from gateway.api.shapes.schema import not_null, nullable, schema_of
from gateway.errors import RequestError
from gateway.settings.limits import Limits

LIMITS = replace(Limits(), timeout_ms_max=100)


class Inner(Shape):
    at: Annotated[int, whole(0, 5)]


class Sample(Shape):
    """Every kind of field."""

    codes = {"delay_ms": 42250}
    more = {"examples": [{"names": ["a"]}]}

    names: Annotated[list[Name], Meta(min_length=1, max_length=3)]
    count: Annotated[int, whole(1, 10, "How many.")] | None = None
    wait_ms: Annotated[int, up_to("timeout_ms_max")] | None = None
    delay_ms: Annotated[int, up_to("delay_ms_max")] | None = None
    why: Annotated[str, in_bytes(4, least=1)] | None = None
    token: Annotated[str, chars(3)] | None = None
    start: Begin | None = None
    is_dry: bool = False
    mode: Literal["a", "b"] | None = None
    inner: Inner | None = None
    seen: dict[str, Annotated[int, whole(0, 9)]] | None = None
    choice: int | UnsetType | None = UNSET
    at: Time = None


class Loose(OpenShape):
    name: str | None = None


def refused(value: object) -> tuple[int, str]:
    with pytest.raises(RequestError) as raised:
        load(Sample, value, LIMITS)
    return raised.value.error_code, raised.value.message


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"names": []}, 422, "names: must be an array of 1 to 3 entries"),
        ({"names": ["a"] * 4}, 422, "names: must be an array of 1 to 3 entries"),
        ({"names": ["a", ""]}, 422, "names[1]: must be a string of at least 1 characters"),
        ({"names": None}, 422, "names: must be an array of 1 to 3 entries"),
        ({"count": 0}, 42253, "count: must be an integer from 1 to 10"),
        ({"count": 11}, 42253, "count: must be an integer from 1 to 10"),
        ({"count": 2**80}, 42253, "count: must be an integer from 1 to 10"),
        ({"count": "1"}, 422, "count: must be an integer from 1 to 10"),
        ({"count": True}, 422, "count: must be an integer from 1 to 10"),
        ({"count": 1.0}, 422, "count: must be an integer from 1 to 10"),
        ({"wait_ms": 101}, 42253, "wait_ms: must be an integer from 0 to 100"),
        ({"wait_ms": -1}, 42253, "wait_ms: must be an integer from 0 to 100"),
        ({"delay_ms": -1}, 42250, "delay_ms: must be an integer from 0 to 31536000000"),
        ({"delay_ms": "1"}, 42250, "delay_ms: must be an integer from 0 to 31536000000"),
        ({"delay_ms": 31536000001}, 42250, "delay_ms: must be an integer from 0 to 31536000000"),
        ({"why": "ééé"}, 422, "why: must be a string of 1 to 4 bytes"),
        ({"token": "abcd"}, 422, "token: must be a string of 1 to 3 characters"),
        ({"start": "first"}, 422, 'start: must be "earliest" or "latest" or an object {"timestamp"}'),
        ({"start": {}}, 422, "start.timestamp: is required"),
        ({"start": {"timestamp": "soon"}}, 422, "timestamp: is not an RFC 3339 time such as 2026-01-31T09:30:00Z"),
        ({"is_dry": None}, 422, "is_dry: must be true or false"),
        ({"mode": "c"}, 422, 'mode: must be "a" or "b"'),
        ({"inner": {"at": 6}}, 42253, "inner.at: must be an integer from 0 to 5"),
        ({"inner": {"at": 1, "x": 1}}, 422, "Unrecognized field: x"),
        ({"seen": {"s": 10}}, 42253, "seen[...]: must be an integer from 0 to 9"),
        ({"a.b`": 1}, 422, "Unrecognized field: a.b`"),
    ],
)
def test_what_is_refused_is_named_with_its_rule(change: dict[str, object], code: int, message: str) -> None:
    assert refused({"names": ["a"], **change}) == (code, message)


def test_what_is_missing_or_no_object_is_named() -> None:
    assert refused({}) == (422, "names: is required")
    assert refused([])[0] == 422


def test_null_is_as_good_as_nothing_where_both_are_taken() -> None:
    nulls = dict.fromkeys(("count", "wait_ms", "why", "token", "start", "mode", "inner", "seen"))
    assert load(Sample, {"names": ["a"], **nulls}, LIMITS) == load(Sample, {"names": ["a"]}, LIMITS)
    assert load(Sample, {"names": ["a"], "choice": None}, LIMITS).choice is None
    assert load(Sample, {"names": ["a"]}, LIMITS).choice is UNSET


def test_an_open_shape_takes_fields_of_others() -> None:
    assert load(Loose, {"name": "x", "of.kafka": 1}, LIMITS) == Loose(name="x")
    assert schema_of(Loose, LIMITS)["additionalProperties"] is True


def test_a_schema_that_may_be_null_and_back() -> None:
    for schema in ({"type": "integer", "minimum": 1}, {"type": "string", "enum": ["a"]}):
        assert not_null(nullable(schema)) == schema


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 200)
    | st.text("aé", max_size=5)
    | st.sampled_from(["earliest", "a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["at", "timestamp", "s"]), inner, max_size=2)
    ),
    max_leaves=5,
)


FIELDS = [name for name in Sample.__struct_fields__ if name not in ("why", "at")]  # bytes, and what its user judges


@given(st.dictionaries(st.sampled_from([*FIELDS, "x"]), values, max_size=5))
def test_what_is_taken_is_what_the_schema_allows(fields: dict[str, object]) -> None:
    value = {"names": ["a"], **fields}
    try:
        load(Sample, value, LIMITS)
        is_taken = True
    except RequestError:
        is_taken = False
    assert Draft202012Validator(schema_of(Sample, LIMITS)).is_valid(value) is is_taken


def test_a_list_of_too_many_values_is_refused_before_it_is_read() -> None:
    for commas, said in ((COMMAS_MAX, "receipts"), (COMMAS_MAX + 1, "more than 100,000 commas")):
        with pytest.raises(RequestError, match=said):
            load_json(AckReceipts, b'{"receipts":[%b""]}' % (b'"",' * commas), Limits())

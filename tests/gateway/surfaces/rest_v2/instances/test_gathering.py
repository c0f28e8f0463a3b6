"""gateway/surfaces/rest_v2/instances/gathering.py: bounds, filters and records that do not decode."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.codec.filters import parse_filter
from gateway.codec.records import Format
from gateway.errors import RequestError
from gateway.groups.machines.strategies.base import Partition
from gateway.surfaces.rest_v2.instances.gathering import Gathering
from gateway.surfaces.rest_v2.instances.settings import OnDecodeError
from store import record_batch
from store.record_batch import Record, at_once
from store.types import Entry, QueueKey

P0, P1 = Partition("orders", 16, 0), Partition("orders", 16, 1)


def entry(*values: bytes, base_offset: int = 0, tag: str | None = None) -> Entry:
    headers = [] if tag is None else [("mq-tag", tag.encode())]
    batch = record_batch.with_base_offset(
        record_batch.encode([Record(None, value, 7, headers) for value in values]), base_offset
    )
    return Entry(0, len(batch), QueueKey(16, 0), "", base_offset, len(values), 9, False, memoryview(batch))


def gathering(**changes: Any) -> Gathering:
    arguments = {"bytes_max": 1000, "count_max": 1000, **changes}
    return Gathering(
        arguments.pop("fmt", Format.TEXT), arguments.pop("on_decode_error", OnDecodeError.INLINE), **arguments
    )


def values(made: Gathering) -> list[object]:
    return [orjson.loads(record)["value"] for record in made.records()]


def test_bounds_hold_and_one_record_is_always_taken() -> None:
    for bytes_max, count_max, taken, next_offset in (
        (6, 9, ["aaa", "bbb"], 2),
        (5, 9, ["aaa"], 1),
        (1, 9, ["aaa"], 1),
        (9, 9, ["aaa", "bbb", "ccc"], 3),
        (9, 2, ["aaa", "bbb"], 2),
    ):
        made = gathering(bytes_max=bytes_max, count_max=count_max)
        assert at_once(made.take_in_steps(P0, 0, [entry(b"aaa", b"bbb"), entry(b"ccc", base_offset=2)])) == next_offset
        assert (values(made), made.ends, made.is_full) == (taken, {P0: next_offset}, len(taken) < 3)


def test_what_lies_before_the_start_is_left_out() -> None:
    made = gathering()
    assert at_once(made.take_in_steps(P0, 1, [entry(b"a", b"b", b"c")])) == 3
    assert values(made) == ["b", "c"]
    assert at_once(made.take_in_steps(P0, 3, [entry(b"a", b"b", b"c")])) == 3
    assert values(made) == ["b", "c"]


def test_filtered_records_are_passed_over() -> None:
    made = gathering(tag_filter=parse_filter("tag:x"), bytes_max=1)
    entries = [entry(b"a", tag="y"), entry(b"b", tag="x", base_offset=1), entry(b"c", base_offset=2)]
    assert at_once(made.take_in_steps(P0, 0, entries)) == 3
    assert values(made) == ["b"]


def test_a_partition_that_is_lost_is_taken_back() -> None:
    made = gathering(bytes_max=2)
    at_once(made.take_in_steps(P0, 0, [entry(b"a")]))
    at_once(made.take_in_steps(P1, 0, [entry(b"bb", b"c")]))
    assert made.is_full
    made.drop(P1)
    assert (values(made), made.count, made.size_bytes, made.ends) == (["a"], 1, 1, {P0: 1})
    made.drop(P1)
    made.drop(P0)
    assert (made.count, made.size_bytes, made.ends, made.is_full) == (0, 0, {}, False)


@pytest.mark.parametrize(
    ("choice", "shown"), [(OnDecodeError.INLINE, ["a", None, "c"]), (OnDecodeError.SKIP, ["a", "c"])]
)
def test_records_that_do_not_decode_are_shown_or_left_out(choice: OnDecodeError, shown: list[object]) -> None:
    made = gathering(on_decode_error=choice)
    assert at_once(made.take_in_steps(P0, 0, [entry(b"a", b"\xff", b"c")])) == 3
    assert values(made) == shown


def test_a_record_that_does_not_decode_can_refuse_a_read_but_not_those_before_it() -> None:
    made = gathering(on_decode_error=OnDecodeError.FAIL)
    assert at_once(made.take_in_steps(P0, 0, [entry(b"a", b"\xff")])) == 1
    assert (values(made), made.is_full) == (["a"], True)
    with pytest.raises(RequestError) as refused:
        at_once(gathering(on_decode_error=OnDecodeError.FAIL).take_in_steps(P0, 1, [entry(b"a", b"\xff")]))
    assert refused.value.error_code == 40801

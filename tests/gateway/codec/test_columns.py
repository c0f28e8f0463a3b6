"""gateway/codec/columns.py: what it takes is what `parse_records` makes of it, and what that refuses it never takes."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.codec.columns import Columns, columns_of, strings_of
from gateway.codec.json_text import parse_json
from gateway.codec.records import Format, open_envelope, parse_records
from gateway.errors import RequestError
from store.limits import KEY_BYTES_MAX, RECORD_BYTES_MAX

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=6),
    st.sampled_from(["null", "\n", ',\n,', "AP8=", "AP8", "\x00", "\u2028", "ä", "\U0001f600"]),
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
plain = st.fixed_dictionaries({"key": scalars, "value": values})
keyless = st.fixed_dictionaries({"value": values})
odd = st.dictionaries(st.sampled_from(["key", "value", "partition", "tag", "x"]), values, max_size=3) | values
requests = st.one_of(
    st.lists(plain, max_size=6),
    st.lists(keyless, max_size=6),
    st.lists(st.one_of(plain, keyless, odd), max_size=6),
    values,
)


def same(records: object, fmt: Format) -> bool:
    """Whether there were columns; AssertionError when they differ from what `parse_records` makes."""
    columns = columns_of(records, fmt, raw_keys=False)
    if columns is None:
        return False
    parsed = parse_records(records, fmt, raw_keys=False)
    assert list(columns.values) == [record.value for record in parsed]
    keys = [None] * len(parsed) if columns.keys is None else list(columns.keys)
    assert keys == [record.key for record in parsed]
    assert all(record[2:] == ([], *[None] * 9) for record in parsed)
    largest = max(len(record.key or b"") + len(record.value or b"") for record in parsed)
    assert columns.bytes_max >= largest
    return True


@settings(max_examples=150)
@given(requests, st.sampled_from(Format))
@example([{"key": None, "value": None}] * 2, Format.JSON)
@example([{"key": "k", "value": "null"}, {"key": "null", "value": None}], Format.JSON)
@example([{"value": 1}, {"key": 1, "value": 2, "tag": "t"}], Format.JSON)
def test_columns_are_what_parse_records_makes(records: object, fmt: Format) -> None:
    same(orjson.loads(orjson.dumps(records)), fmt)


@settings(max_examples=150)
@given(requests, st.data())
def test_so_they_are_of_ugly_bodies(records: object, data: st.DataObject) -> None:
    body = bytearray(orjson.dumps({"records": records}))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        sent = open_envelope(bytes(body), records_max=5)
    except RequestError:
        return
    same(sent, Format.JSON)


texts = st.lists(
    st.text(max_size=6) | st.sampled_from(['"', "\\", "},{", '"},{"value":"', "\x7f", "\x1f", "ä"]), max_size=5
)
spaces = st.sampled_from(["", " ", "\n", "\t \r", "\x0b", "\xa0"])


@settings(max_examples=300)
@given(texts, spaces, spaces, st.data())
def test_strings_are_what_parse_records_makes_of_their_text(
    sent: list[str], space: str, other: str, data: st.DataObject
) -> None:
    """Of ugly bodies too; without an escape or a flaw they are always found."""
    records = f"{space},{other}".join(f'{{{other}"value"{space}:{orjson.dumps(one).decode()}}}' for one in sent)
    body = bytearray(f'{space}{{"records"{other}:[{records}]}}{space}'.encode())
    flaw_count = data.draw(st.integers(0, 2))
    for _ in range(flaw_count):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b",", b"\n", b"{", b'","', b'"},{"value":"', b"\xc3"])
        )
    columns = strings_of(bytes(body), records_max=4)
    is_blank = not {space, other} & {"\x0b", "\xa0"}
    if flaw_count or b"\\" in body or not 1 < len(sent) <= 4 or not is_blank:
        if columns is None:
            return
        parsed = parse_records(open_envelope(parse_json(bytes(body)), records_max=4), Format.JSON, raw_keys=False)
    else:
        assert columns is not None
        parsed = parse_records([{"value": one} for one in sent], Format.JSON, raw_keys=False)
    assert (columns.keys, columns.quote) == (None, b'"')
    assert [b'"%b"' % value for value in columns.values if value is not None] == [record.value for record in parsed]
    assert all(record[2:] == ([], *[None] * 9) for record in parsed)
    assert columns.bytes_max >= max(len(record.value or b"") for record in parsed)


@pytest.mark.parametrize("fmt", Format)
def test_plain_records_have_columns(fmt: Format) -> None:
    value: object = {"a": 1} if fmt is Format.JSON else "AP8="
    assert same([{"key": "AAAA", "value": value}] * 3, fmt)
    assert same([{"value": value}] * 3, fmt)
    assert same([{"key": None, "value": value}, {"key": None, "value": None}], fmt)


@pytest.mark.parametrize(
    "records",
    [
        None, {}, [], [{"value": 1}], [1, 2], [{}, {}], [{"key": "k"}, {"key": "k"}],
        [{"key": "k", "value": 1}, {"key": None, "value": 1}],
        [{"key": "k", "value": 1}, {"value": 1}],
        [{"value": 1, "partition": 0}, {"value": 1, "partition": 0}],
        [{"value": 1}, {"key": 1, "value": 2, "delay_ms": 5}],
    ],
)  # fmt: skip
def test_what_is_not_plain_has_none(records: object) -> None:
    assert columns_of(records, Format.JSON, raw_keys=False) is None


def test_a_bad_record_leaves_all_to_parse_records() -> None:
    assert columns_of([{"value": "AP8="}, {"value": "AP8"}], Format.BINARY, raw_keys=False) is None
    assert columns_of([{"key": "k", "value": "v"}, {"key": 1, "value": "v"}], Format.TEXT, raw_keys=False) is None


def test_a_value_nested_too_deeply_to_be_written_again_is_left_to_parse_records() -> None:
    deep = orjson.loads(b"[" * 300 + b"]" * 300)
    assert columns_of([{"value": deep}, {"value": 1}], Format.JSON, raw_keys=False) is None


def test_keys_and_values_up_to_their_limits_have_columns() -> None:
    key, value = "k" * KEY_BYTES_MAX, "v" * (RECORD_BYTES_MAX - KEY_BYTES_MAX)
    assert columns_of([{"key": key, "value": value}] * 2, Format.TEXT, raw_keys=False) == Columns(
        [key.encode()] * 2, [value.encode()] * 2
    )
    assert columns_of([{"key": key + "k", "value": ""}] * 2, Format.TEXT, raw_keys=False) is None
    assert columns_of([{"key": "", "value": value + "v"}] * 2, Format.TEXT, raw_keys=False) is None

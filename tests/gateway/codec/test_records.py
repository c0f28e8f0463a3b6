"""gateway/codec/records.py"""

from __future__ import annotations

import base64
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.json_text import parse_json
from gateway.codec.records import (
    STEP_ITEMS,
    Format,
    ProduceRecord,
    only_value,
    open_envelope,
    parse_records,
    plain_record,
    render_records_in_steps,
)
from gateway.errors import DELAY_ILLEGAL, RECORD_PART_ILLEGAL, RECORD_TOO_LARGE, UNDECODABLE, RequestError
from gateway.settings.limits import MESSAGE_GROUP_BYTES_MAX, MSG_ID_BYTES_MAX
from store import record_batch
from store.limits import HEADER_COUNT_MAX, HEADERS_BYTES_MAX, KEY_BYTES_MAX, RECORD_BYTES_MAX, TAG_BYTES_MAX
from store.record_batch import Headers, Record, at_once
from store.types import Entry, QueueKey

NO_HEADERS: list[tuple[str, bytes | None]] = []


def refusal(records: object, fmt: Format = Format.JSON) -> int:
    with pytest.raises(RequestError) as caught:
        parse_records(records, fmt, raw_keys=False)
    return caught.value.error_code


def record(**fields: object) -> ProduceRecord:
    (parsed,) = parse_records([fields], Format.JSON, raw_keys=False)
    return parsed


# ---- in ----------------------------------------------------------------------------------------------------------


def test_json_keys_and_values_are_stored_as_compact_json() -> None:
    parsed = parse_records([{"key": "u1", "value": {"sku": 9, "a": [1, 2.5, None]}}], Format.JSON, raw_keys=False)
    assert parsed == [ProduceRecord(b'"u1"', b'{"sku":9,"a":[1,2.5,null]}', NO_HEADERS, None, None, None, None, None)]


def test_a_missing_or_null_value_is_a_tombstone_and_a_missing_key_is_none() -> None:
    for item in ({}, {"value": None}, {"key": None}, {"key": None, "value": None}):
        assert parse_records([item], Format.JSON, raw_keys=False)[0][:2] == (None, None)


def test_false_zero_and_empty_are_values() -> None:
    values = [record(value=value).value for value in (False, 0, "", [], {})]
    assert values == [b"false", b"0", b'""', b"[]", b"{}"]


def test_binary_is_base64_and_text_is_utf8() -> None:
    assert parse_records([{"key": "aw==", "value": "AP8="}], Format.BINARY, raw_keys=False)[0][:2] == (
        b"k",
        b"\x00\xff",
    )
    assert parse_records([{"key": "k", "value": "ä"}], Format.TEXT, raw_keys=False)[0][:2] == (b"k", "ä".encode())


@pytest.mark.parametrize("text", ["AP8", "AP8==", "A*8=", "AP 8=", "AP8=\n", "é", "=", "AP8=AP8="])
def test_what_is_not_padded_base64_is_refused(text: str) -> None:
    assert refusal([{"value": text}], Format.BINARY) == 400


@pytest.mark.parametrize("fmt", [Format.BINARY, Format.TEXT])
@pytest.mark.parametrize("value", [1, True, {}, []])
def test_formats_of_strings_refuse_other_types(fmt: Format, value: object) -> None:
    assert refusal([{"value": value}], fmt) == 400
    assert refusal([{"key": value}], fmt) == 400


@pytest.mark.parametrize(
    ("records", "answer"),
    [
        (None, 422),
        ([], 422),
        ({}, 400),
        ("x", 400),
        ([1], 400),
        ([None], 400),
        ([[]], 400),
        ([{"value": 1, "dealy_ms": 5}], 422),
        ([{"valu": 1}], 422),
        ([{"headers": [{"key": "a", "vale": "YQ=="}]}], 422),
        ([{"partition": "0"}], 400),
        ([{"partition": True}], 400),
        ([{"partition": 1.0}], 400),
        ([{"timestamp": "now"}], 400),
        ([{"timestamp": True}], 400),
        ([{"timestamp": -1}], 422),
        ([{"timestamp": 253_402_300_800_000}], 422),
    ],
)
def test_wrong_shapes_and_unknown_fields_are_refused(records: object, answer: int) -> None:
    assert refusal(records) == answer


def test_an_unknown_field_is_named_in_the_words_clients_know() -> None:
    with pytest.raises(RequestError) as caught:
        parse_records([{"value": 1}, {"value": 1, "dealy_ms": 5}], Format.JSON, raw_keys=False)
    assert caught.value.message == "Unrecognized field: dealy_ms"
    assert caught.value.validation_errors == ["records[1]: Unrecognized field: dealy_ms"]


@pytest.mark.parametrize("delay_ms", [-1, 1.5, 1.0, True, False, "5", [], {}, float("nan"), float("inf")])
def test_an_illegal_delay_is_refused_and_never_sent_at_once(delay_ms: object) -> None:
    assert refusal([{"value": 1, "delay_ms": delay_ms}]) == DELAY_ILLEGAL


@pytest.mark.parametrize("deliver_at", [-1, 1.5, True, "tomorrow", "2026-01-01", 253_402_300_800_000, [], 10**30])
def test_an_illegal_due_time_is_refused(deliver_at: object) -> None:
    assert refusal([{"value": 1, "deliver_at": deliver_at}]) == DELAY_ILLEGAL


def test_a_delay_and_a_due_time_exclude_each_other() -> None:
    assert refusal([{"value": 1, "delay_ms": 0, "deliver_at": 0}]) == DELAY_ILLEGAL


def test_delays_and_due_times_are_read() -> None:
    assert record(delay_ms=0).delay_ms == 0
    assert record(delay_ms=90_000).delay_ms == 90_000
    assert record(deliver_at=1_767_225_690_000).deliver_at_ms == 1_767_225_690_000
    assert record(deliver_at="2026-01-01T00:01:30Z").deliver_at_ms == 1_767_225_690_000
    assert record(delay_ms=None, deliver_at=None)[-2:] == (None, None)


def test_all_fields_together() -> None:
    parsed = record(
        key="k",
        value=1,
        partition=3,
        timestamp=7,
        tag="paid",
        delay_ms=5,
        headers=[{"key": "a", "value": "eA=="}, {"key": "b", "text": "ä"}, {"key": "c", "value": None}, {"key": "c"}],
    )
    headers = [("a", b"x"), ("b", "ä".encode()), ("c", None), ("c", None)]
    assert parsed == ProduceRecord(b'"k"', b"1", headers, 7, 3, "paid", 5, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"tag": 1},
        {"tag": ""},
        {"tag": "a|b"},
        {"tag": "a\nb"},
        {"headers": {}},
        {"headers": [1]},
        {"headers": [{}]},
        {"headers": [{"key": 1}]},
        {"headers": [{"key": ""}]},
        {"headers": [{"key": "a\r\nb"}]},
        {"headers": [{"key": "mq-deliver-at", "text": "1"}]},
        {"headers": [{"key": "a", "value": 1}]},
        {"headers": [{"key": "a", "text": 1}]},
        {"headers": [{"key": "a", "text": "b", "value": "YQ=="}]},
    ],
)
def test_illegal_tags_and_headers_are_refused(fields: dict[str, object]) -> None:
    assert refusal([fields]) == RECORD_PART_ILLEGAL


def test_the_key_limit_holds_at_n_and_n_plus_1() -> None:
    assert record(key="k" * (KEY_BYTES_MAX - 2)).key is not None
    assert refusal([{"key": "k" * (KEY_BYTES_MAX - 1)}]) == RECORD_PART_ILLEGAL
    assert refusal([{"key": "k" * (KEY_BYTES_MAX - 1), "tag": "t"}]) == RECORD_PART_ILLEGAL


def test_the_tag_limit_holds_at_n_and_n_plus_1_in_bytes() -> None:
    assert record(tag="ä" * (TAG_BYTES_MAX // 2)).tag is not None
    assert refusal([{"tag": "ä" * (TAG_BYTES_MAX // 2) + "a"}]) == RECORD_PART_ILLEGAL


def test_the_header_limits_hold_at_n_and_n_plus_1() -> None:
    assert len(record(headers=[{"key": "a"}] * HEADER_COUNT_MAX).headers) == HEADER_COUNT_MAX
    assert refusal([{"headers": [{"key": "a"}] * (HEADER_COUNT_MAX + 1)}]) == RECORD_PART_ILLEGAL
    full = "x" * (HEADERS_BYTES_MAX - 1)
    assert record(headers=[{"key": "a", "text": full}]).headers == [("a", full.encode())]
    assert refusal([{"headers": [{"key": "ab", "text": full}]}]) == RECORD_PART_ILLEGAL


@pytest.mark.parametrize("extra", [{}, {"tag": "t"}])
def test_the_record_limit_counts_key_and_value_and_holds_at_n_and_n_plus_1(extra: dict[str, object]) -> None:
    key = "k" * 10
    value = "v" * (RECORD_BYTES_MAX - 10)
    assert parse_records([{"key": key, "value": value, **extra}], Format.TEXT, raw_keys=False)
    too_large = [{"key": key, "value": value + "v", **extra}]
    assert refusal(too_large, Format.TEXT) == RECORD_TOO_LARGE


def test_headers_count_towards_the_record_limit() -> None:
    value = "v" * (RECORD_BYTES_MAX - 2)
    assert parse_records([{"value": value, "headers": [{"key": "a", "text": "b"}]}], Format.TEXT, raw_keys=False)
    too_large = [{"value": value, "headers": [{"key": "a", "text": "bc"}]}]
    assert refusal(too_large, Format.TEXT) == RECORD_TOO_LARGE


def test_one_bad_record_refuses_the_batch() -> None:
    assert refusal([{"value": 1}] * 999 + [{"value": 1, "tag": "a|b"}]) == RECORD_PART_ILLEGAL


def test_a_value_too_deep_to_be_written_again_is_refused() -> None:
    deep = orjson.loads("[" * 400 + "]" * 400)
    assert refusal([{"value": deep}]) == 422


def test_envelopes_ignore_the_schema_fields_of_old_clients() -> None:
    body = b'{"records":[{"value":1}],"key_schema":null,"value_schema_id":3,"key_schema_id":1,"value_schema":"s"}'
    assert open_envelope(parse_json(body), records_max=1) == [{"value": 1}]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'"records"', 400),
        (b'{"records":[{"value":NaN}]}', 400),
        (b'{"records":[{"value":"\xff"}]}', 400),
        (b'{"records":[{"value":"\\ud800"}]}', 400),
        (b"[" * 100_000, 400),
        (b"{}", 422),
        (b'{"records":null}', 422),
        (b'{"records":[]}', 422),
        (b'{"record":[{"value":1}]}', 422),
        (b'{"records":[{"value":1}],"recrods":1}', 422),
    ],
)
def test_bad_envelopes_are_refused(body: bytes, code: int) -> None:
    with pytest.raises(RequestError) as caught:
        parse_records(open_envelope(parse_json(body), records_max=10), Format.JSON, raw_keys=False)
    assert caught.value.error_code == code


def test_the_limit_of_records_holds_at_n_and_n_plus_1() -> None:
    assert open_envelope({"records": [{}] * 10}, records_max=10) == [{}] * 10
    with pytest.raises(RequestError, match="the limit is 10"):
        open_envelope({"records": [{}] * 11}, records_max=10)


# ---- out ---------------------------------------------------------------------------------------------------------


def entry(*records: Record, base_offset: int = 0, json_values: bool = False) -> Entry:
    batch = memoryview(record_batch.with_base_offset(record_batch.encode(records), base_offset))
    return Entry(0, len(batch), QueueKey(16, 1), "orders", base_offset, len(records), 99, json_values, batch)


def rendered(fmt: Format | None, *entries: Entry, start: int = 0, stop: int = 2**63 - 1) -> list[dict[str, object]]:
    records = at_once(render_records_in_steps("orders", 1, entries, fmt, start=start, stop=stop))
    loaded = orjson.loads(orjson.dumps(records))
    assert isinstance(loaded, list)
    return loaded


@pytest.mark.parametrize("json_values", [False, True])
@pytest.mark.parametrize("fmt", [Format.JSON, Format.BINARY, None])
@pytest.mark.parametrize("first", [0, 990])
def test_many_headers_are_rendered_in_steps(fmt: Format | None, json_values: bool, first: int) -> None:
    """Those of records that are passed over are decoded, too."""
    headers = [(f"h{number}", b"1") for number in range(HEADER_COUNT_MAX)]
    made = entry(*[Record(None, b"1", 0, headers)] * 1_000, json_values=json_values)
    steps = render_records_in_steps("orders", 1, [made], fmt, start=first, stop=1_000)
    assert sum(1 for _ in steps) >= 1_000 * (1 + HEADER_COUNT_MAX) // STEP_ITEMS
    records = rendered(fmt, made, start=first)
    assert [record["offset"] for record in records] == list(range(first, 1_000))
    assert records[0]["headers"] == [{"key": name, "value": "MQ=="} for name, _ in headers]


PLACE = {"topic": "orders", "partition": 1, "offset": 0, "timestamp": 7, "store_timestamp": 99}


@pytest.mark.parametrize("json_values", [True, False])
def test_json_comes_back_as_json_whether_or_not_it_was_sent_as_json(json_values: bool) -> None:
    stored = entry(Record(b'"k"', b'{"a":1}', 7), json_values=json_values)
    assert rendered(Format.JSON, stored) == [{**PLACE, "key": "k", "value": {"a": 1}}]


@pytest.mark.parametrize("fmt", [*Format, None])
@pytest.mark.parametrize("json_values", [True, False])
def test_tombstones_are_null_in_every_format(fmt: Format | None, json_values: bool) -> None:
    assert rendered(fmt, entry(Record(None, None, 7), json_values=json_values)) == [
        {**PLACE, "key": None, "value": None}
    ]


def test_binary_and_text_forms() -> None:
    stored = entry(Record(b"k", "ä".encode(), 7))
    assert rendered(Format.BINARY, stored) == [
        {**PLACE, "key": "aw==", "value": base64.b64encode("ä".encode()).decode()}
    ]
    assert rendered(Format.TEXT, stored) == [{**PLACE, "key": "k", "value": "ä"}]


@pytest.mark.parametrize("fmt", [Format.JSON, Format.TEXT])
def test_a_record_of_another_format_does_not_block_a_reader(fmt: Format) -> None:
    bad = entry(Record(b"\xff", b"\xfe", 7), Record(b"1", b"2", 7))
    first, second = rendered(fmt, bad)
    assert (first["key"], first["value"], first["key_b64"], first["value_b64"]) == (None, None, "/w==", "/g==")
    assert first["error_code"] == UNDECODABLE
    assert second["offset"] == 1
    assert "error" not in second


def test_the_native_form_uses_the_best_form_each_key_and_value_has() -> None:
    stored = entry(Record(b"1", b'{"a":1}', 7), Record(b"text", b"{", 7), Record(b"\xff", b"\xfe", 7))
    first, second, third = rendered(None, stored)
    assert (first["key"], first["value"]) == (1, {"a": 1})
    assert (second["key_text"], second["value_text"]) == ("text", "{")
    assert (third["key_b64"], third["value_b64"]) == ("/w==", "/g==")


PIECES = [
    b"1",
    b'"x"',
    b"{}",
    b"[1]",
    b"1,2",
    b"[1",
    b"2]",
    b'{"a":',
    b"}",
    b'"a',
    b'b"',
    b"",
    b" ",
    b"\n1",
    b"nul",
    b"\xff",
    None,
]


@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(PIECES)), min_size=1, max_size=6), st.booleans())
def test_what_stands_beside_a_record_does_not_change_its_form(
    pairs: list[tuple[bytes | None, bytes | None]], is_native: bool
) -> None:
    """Keys and values are looked at together; pieces that are JSON only together must not pass for it."""
    fmt = None if is_native else Format.JSON
    records = [Record(key, value, 0) for key, value in pairs]
    together = rendered(fmt, entry(*records))
    apart = [rendered(fmt, entry(one))[0] | {"offset": offset} for offset, one in enumerate(records)]
    assert together == apart
    assert not any(b"\n" in line[:-1] for line in map(orjson.dumps, together))


def test_records_outside_the_range_are_dropped() -> None:
    entries = [entry(*[Record(None, b"1", 7)] * 5, base_offset=base, json_values=True) for base in (10, 15, 20)]
    offsets = [item["offset"] for item in rendered(Format.JSON, *entries, start=12, stop=17)]
    assert offsets == [12, 13, 14, 15, 16]


def test_headers_come_back_and_our_own_become_fields() -> None:
    headers: Headers = [
        ("a", b"x"),
        ("mq-tag", b"paid"),
        ("mq-deliver-at", b"1767225690000"),
        ("mq-schedule-id", b"sABC"),
        ("b", None),
    ]
    (item,) = rendered(Format.JSON, entry(Record(None, b"1", 7, headers), json_values=True))
    assert item["headers"] == [{"key": "a", "value": "eA=="}, {"key": "b", "value": None}]
    assert (item["tag"], item["deliver_at"], item["schedule_id"]) == ("paid", 1_767_225_690_000, "sABC")


def test_trouble_in_a_header_never_fails_a_read() -> None:
    headers: Headers = [("mq-tag", b"\xff"), ("mq-deliver-at", b"soon"), ("mq-deliver-at", b"9" * 40), ("mq-tag", None)]
    (item,) = rendered(Format.JSON, entry(Record(None, b"1", 7, headers)))
    assert item["tag"] == "\ufffd"
    assert "deliver_at" not in item or item["deliver_at"] is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(st.tuples(JSON, JSON), min_size=1, max_size=5))
def test_what_goes_in_as_json_comes_out_the_same(pairs: list[tuple[object, object]]) -> None:
    parsed = parse_records([{"key": None, "value": value} for _, value in pairs], Format.JSON, raw_keys=False)
    stored = entry(*[Record(item.key, item.value, 7) for item in parsed], json_values=True)
    for fmt in (Format.JSON, None):
        assert [item["value"] for item in rendered(fmt, stored)] == [value for _, value in pairs]


FIELDS = ["key", "value", "headers", "tag", "delay_ms", "deliver_at", "partition", "text", "timestamp", "x"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(FIELDS), inner),
)


@given(ANYTHING, st.sampled_from(Format))
def test_any_json_is_either_parsed_or_refused(records: object, fmt: Format) -> None:
    with suppress(RequestError):
        parsed = parse_records(records, fmt, raw_keys=False)
        assert isinstance(records, list)
        assert len(parsed) == len(records)


@pytest.mark.parametrize(("field", "limit"), [("msg_id", MSG_ID_BYTES_MAX), ("message_group", MESSAGE_GROUP_BYTES_MAX)])
@pytest.mark.parametrize("others", [{}, {"tag": "t"}])
def test_ids_and_groups_have_limits(field: str, limit: int, others: dict[str, object]) -> None:
    (parsed,) = parse_records([{"value": 1, field: "é" * (limit // 2), **others}], Format.JSON, raw_keys=False)
    assert getattr(parsed, field) == "é" * (limit // 2)
    for illegal in ("é" * (limit // 2) + "x", "", 7):
        with pytest.raises(RequestError) as refusal:
            parse_records([{"value": 1, field: illegal, **others}], Format.JSON, raw_keys=False)
        assert refusal.value.error_code == RECORD_PART_ILLEGAL
    (parsed,) = parse_records([{"value": 1, field: None, **others}], Format.JSON, raw_keys=False)
    assert getattr(parsed, field) is None


PLAIN = ["1", "null", '"é"', '{"a":[1,{"b":null}]}', "1e5", "true"]


@pytest.mark.parametrize("raw_keys", [True, False])
@pytest.mark.parametrize("value", PLAIN)
@pytest.mark.parametrize("key", [None, *PLAIN, f'"{"k" * KEY_BYTES_MAX}"', f'"{"k" * (KEY_BYTES_MAX + 1)}"'])
def test_a_single_record_is_parsed_as_among_others(key: str | None, value: str, raw_keys: bool) -> None:
    for fields in (f'"value":{value}', ""):
        both = ",".join(field for field in (f'"key":{key}' if key is not None else "", fields) if field)
        sent = orjson.loads(f"{{{both}}}")
        single = plain_record(sent, raw_keys=raw_keys)
        is_large = key is not None and len(key) - (2 if raw_keys else 0) > KEY_BYTES_MAX
        assert (single is None) == is_large
        if single is not None:
            assert [single] == parse_records([sent], Format.JSON, raw_keys=raw_keys)


@pytest.mark.parametrize("value", PLAIN)
def test_the_only_value_of_a_body_is_parsed_as_by_the_others(value: str) -> None:
    body = parse_json(f'{{"records":[{{"value":{value}}}]}}'.encode())
    assert [only_value(body)] == parse_records(open_envelope(body, records_max=1), Format.JSON, raw_keys=True)


@pytest.mark.parametrize(
    "body",
    [
        b"1", b"[]", b"null", b"{}", b'{"records":{}}', b'{"records":[]}', b'{"records":"x"}',
        b'{"records":{"value":1}}', b'{"records":[1]}', b'{"records":["value"]}', b'{"records":[{}]}',
        b'{"records":[{"key":1}]}', b'{"value":[{"value":1}]}', b'{"records":[{"value":1},{"value":2}]}',
        b'{"records":[{"value":1,"key":2}]}', b'{"records":[{"value":1}],"x":1}',
        b'{"records":[{"value":1}],"key_schema_id":null}',
    ],
)  # fmt: skip
def test_a_body_of_any_other_form_is_left_to_the_others(body: bytes) -> None:
    assert only_value(parse_json(body)) is None


def test_a_value_that_is_too_large_or_too_deep_is_left_to_the_others_or_refused_as_by_them() -> None:
    assert only_value({"records": [{"value": "x" * (RECORD_BYTES_MAX - KEY_BYTES_MAX)}]}) is None
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(RequestError) as refusal:
        only_value({"records": [{"value": deep}]})
    with pytest.raises(RequestError) as same:
        parse_records([{"value": deep}], Format.JSON, raw_keys=False)
    assert str(refusal.value) == str(same.value)


@pytest.mark.parametrize("sent", [1, None, [], {"value": 1, "tag": "t"}, {"oops": 1}, {"msg_id": "m"}])
def test_a_record_with_anything_else_is_not_plain(sent: object) -> None:
    assert plain_record(sent, raw_keys=True) is None

"""gateway/codec/texts.py: texts are, byte for byte, the objects of `render_records` as orjson writes them."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.codec.filters import parse_filter
from gateway.codec.records import Format, are_json, render_records
from gateway.codec.tags import TAG_HEADER
from gateway.codec.texts import render_texts
from store import record_batch
from store.record_batch import Record
from store.types import Entry, QueueKey

json_parts = st.sampled_from(
    [None, b"1", b'"k"', b'{"a":[1,2]}', b"null", b'"%d"', b'"\xc3\xa4"', b'" ,1, "', b"-0.5e3", b'{"a" : 1}']
)
other_parts = st.sampled_from(
    [b"", b"x", b"1,2", b"[1", b"2]", b'"', b"\xff", b'"a\nb"', b"1\n", b"1\r\n", b"{}}", b'1,"x":2', b"]", b"[", b" "]
)
headers = st.sampled_from([(), (), (), ((TAG_HEADER, b"red"),), (("h", b"\xff"), (TAG_HEADER, b"blue"))])


def entry_of(records: list[Record], *, base_offset: int, json_values: bool) -> Entry:
    batch = memoryview(record_batch.with_base_offset(record_batch.encode(records), base_offset))
    return Entry(0, len(batch), QueueKey(16, 1), "a%b", base_offset, len(records), 99, json_values, batch)


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    made = []
    base_offset = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 3))):
        is_json = draw(st.booleans())
        part = json_parts if is_json else st.one_of(json_parts, other_parts)
        record = st.builds(Record, part, part, st.integers(0, 2**41), headers if draw(st.booleans()) else st.just(()))
        records = draw(st.lists(record, min_size=1, max_size=4))
        made.append(entry_of(records, base_offset=base_offset, json_values=is_json and draw(st.booleans())))
        base_offset += len(records) + draw(st.integers(0, 1))
    return made


@settings(max_examples=200)
@given(
    entries(),
    st.sampled_from([*Format, None]),
    st.integers(0, 8),
    st.integers(0, 16),
    st.sampled_from([None, 16]),
    st.sampled_from([None, "tag:red", "tag:green"]),
)
def test_texts_are_the_objects_written(
    entries: list[Entry], fmt: Format | None, start: int, stop: int, topic_id: int | None, wanted: str | None
) -> None:
    tag_filter = parse_filter(wanted)
    objects = render_records("a%b", 1, entries, fmt, start=start, stop=stop, topic_id=topic_id, tag_filter=tag_filter)
    texts = render_texts("a%b", 1, entries, fmt, start=start, stop=stop, topic_id=topic_id, tag_filter=tag_filter)
    assert texts == [orjson.dumps(one) for one in objects]
    assert orjson.loads(b"[%b]" % b",".join(texts)) == orjson.loads(orjson.dumps(objects))
    assert not any(b"\n" in text or b"\r" in text for text in texts)


def test_a_plain_record_looks_as_documented() -> None:
    entry = entry_of([Record(b'"k"', b'{"a":1}', 5)], base_offset=7, json_values=True)
    (text,) = render_texts("orders", 0, [entry], None, start=0, stop=100, topic_id=16)
    assert text == (
        b'{"topic":"orders","key":"k","value":{"a":1},"partition":0,"offset":7,"timestamp":5,"store_timestamp":99,'
        b'"message_id":"16-0-7"}'
    )


@pytest.mark.parametrize(
    "parts", [[b"[1", b"2]"], [b"1,2", b"[3", b"4]"], [b'"a', b'b"'], [b""], [b"", b""], [b"1", b""], [b"1]", b"[2"]]
)
def test_parts_that_are_json_only_together_are_not_json(parts: list[bytes]) -> None:
    assert not are_json(parts)


def test_nothing_at_all_is_json() -> None:
    assert are_json([])
    assert are_json([None, None])

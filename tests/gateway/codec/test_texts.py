"""gateway/codec/texts.py: texts are, byte for byte, the objects of `render_records_in_steps` as orjson writes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.codec import texts as texts_module
from gateway.codec.filters import parse_filter
from gateway.codec.records import Format, are_json, render_records_in_steps
from gateway.codec.tags import DELIVER_AT_HEADER, SCHEDULE_ID_HEADER, TAG_HEADER
from gateway.codec.texts import KEPT_RECORDS_MIN, TextCache, as_json_strings, render_texts_in_steps
from store import record_batch
from store.limits import MiB
from store.record_batch import ALIKE_COUNT_MIN, Record, at_once
from store.types import Entry, QueueKey

json_parts = st.sampled_from(
    [None, b"1", b'"k"', b'{"a":[1,2]}', b"null", b'"%d"', b'"\xc3\xa4"', b'" ,1, "', b"-0.5e3", b'{"a" : 1}']
)
other_parts = st.sampled_from(
    [b"", b"x", b"1,2", b"[1", b"2]", b'"', b"\xff", b'"a\nb"', b"1\n", b"1\r\n", b"{}}", b'1,"x":2', b"]", b"[", b" "]
)
headers = st.sampled_from([(), (), (), ((TAG_HEADER, b"red"),), (("h", b"\xff"), (TAG_HEADER, b"blue"))])
delayed = st.tuples(
    st.tuples(st.just(DELIVER_AT_HEADER), st.integers(0, 2**41).map(lambda due_ms: b"%d" % due_ms)),
    st.tuples(st.just(SCHEDULE_ID_HEADER), st.sampled_from([b"sAAABi8_laAAAAAAAAAAwOQAAAAA", b"s-"])),
)
oddly_delayed = st.one_of(
    delayed,
    delayed,
    delayed.map(lambda both: both[::-1]),
    delayed.map(lambda both: both[:1]),
    delayed.map(lambda both: (*both, (TAG_HEADER, b"red"))),
    delayed.map(lambda both: ((TAG_HEADER, b"red"), both[1])),
    st.tuples(
        st.tuples(st.just(DELIVER_AT_HEADER), st.sampled_from([None, b"", b"007", b"1x", b"9" * 15, b"9" * 16, b"-1"])),
        st.tuples(st.just(SCHEDULE_ID_HEADER), st.sampled_from([None, b"", b'"', b"\xff", b"\n"])),
    ),
)


def entry_of(
    records: list[Record], *, base_offset: int, json_values: bool, raw_keys: bool = False, level: int | None = None
) -> Entry:
    made = record_batch.encode(records)
    if level is not None:
        made = record_batch.zstd_packed(made, level=level)
    batch = memoryview(record_batch.with_base_offset(made, base_offset))
    entry = Entry(
        base_offset * 1000, len(batch), QueueKey(16, 1), "a%b", base_offset, len(records), 99, json_values, batch
    )
    entry.raw_keys = raw_keys
    return entry


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    made = []
    base_offset = draw(st.integers(0, 3))
    raw_keys = draw(st.booleans())
    time_ms = st.just(7) if draw(st.booleans()) else st.integers(0, 2**41)
    for _ in range(draw(st.integers(0, 3))):
        is_json = draw(st.booleans())
        part = json_parts if is_json else st.one_of(json_parts, other_parts)
        own = draw(st.sampled_from([st.just(()), headers, delayed, oddly_delayed]))
        record = st.builds(Record, part, part, time_ms, own)
        records = draw(st.lists(record, min_size=1, max_size=4))
        records *= draw(st.sampled_from([1, 1, KEPT_RECORDS_MIN, ALIKE_COUNT_MIN]))
        made.append(
            entry_of(
                records,
                base_offset=base_offset,
                json_values=is_json and draw(st.booleans()),
                raw_keys=raw_keys,
                level=draw(st.sampled_from([None, None, 1])),
            )
        )
        base_offset += len(records) + draw(st.integers(0, 1))
    return made


@settings(max_examples=300)
@given(
    entries(),
    st.sampled_from([*Format, None]),
    st.integers(0, 8),
    st.one_of(st.integers(0, 16), st.just(1000)),
    st.booleans(),
    st.sampled_from([None, "tag:red", "tag:green"]),
    st.sampled_from([b",", b"\n"]),
)
def test_texts_are_the_objects_written(
    entries: list[Entry],
    fmt: Format | None,
    start: int,
    stop: int,
    has_ids: bool,
    wanted: str | None,
    separator: bytes,
) -> None:
    tag_filter = parse_filter(wanted)
    objects = at_once(
        render_records_in_steps(
            "a%b", 1, entries, fmt, start=start, stop=stop, topic_id=16 if has_ids else None, tag_filter=tag_filter
        )
    )
    expected = [orjson.dumps(one) for one in objects]
    cache = TextCache(MiB)
    for _ in range(2):  # from the cache the second time
        steps = render_texts_in_steps(
            "a%b", 1, entries, fmt,
            separator=separator, start=start, stop=stop, topic_id=16, has_ids=has_ids,
            tag_filter=tag_filter, cache=cache,
        )  # fmt: skip
        texts = at_once(steps)
        assert separator.join([one.data for one in texts]) == separator.join(expected)
        assert sum(one.record_count for one in texts) == len(expected)
        assert sum(one.size for one in texts) == sum(map(len, expected))
        assert not any(b"\n" in one.data.replace(separator, b"") or b"\r" in one.data for one in texts)
        if wanted is not None:
            assert all(one.record_count == 1 for one in texts)
    assert orjson.loads(b"[%b]" % b",".join(expected)) == orjson.loads(orjson.dumps(objects))


def plain_entry(number: int, *, count: int = KEPT_RECORDS_MIN, queue_of: int = 16) -> Entry:
    records = [Record(None, b"%d" % number, 5)] * count
    made = entry_of(records, base_offset=number * count, json_values=True)
    return replace(made, queue=QueueKey(queue_of, 1))


def rendered(entry: Entry, cache: TextCache, *, partition: int = 1, stop: int = 10_000, **options: Any) -> bytes:
    given = {"separator": b",", "start": 0, "topic_id": 16, "has_ids": False, **options}
    texts = at_once(render_texts_in_steps("t", partition, [entry], None, stop=stop, cache=cache, **given))
    return b",".join([one.data for one in texts])


def test_whole_entries_are_kept_and_found_again() -> None:
    cache = TextCache(MiB)
    entry = plain_entry(0)
    first = rendered(entry, cache)
    assert cache.held_bytes > len(first)
    held_bytes = cache.held_bytes
    entry.batch = memoryview(b"")  # it is not looked at again
    assert rendered(entry, cache) == first
    assert cache.held_bytes == held_bytes


@pytest.mark.parametrize(
    "other",
    [
        {"topic_id": 17},
        {"partition": 2},
        {"has_ids": True},
        {"separator": b"\n"},
        {"stop": KEPT_RECORDS_MIN - 1},
        {"start": 1},
        {"entry": plain_entry(0, queue_of=17)},
        {"entry": replace(plain_entry(0), position=8)},
        {"entry": plain_entry(1)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_is_kept_is_not_given_for_anything_else(other: dict[str, Any]) -> None:
    cache = TextCache(MiB)
    rendered(plain_entry(0), cache)
    asked = {"entry": plain_entry(0), **other}
    entry = asked.pop("entry")
    assert rendered(entry, cache, **asked) == rendered(entry, TextCache(0), **asked)
    raw = replace(plain_entry(0))
    raw.raw_keys = True
    assert rendered(raw, cache) == rendered(raw, TextCache(0))


def test_entries_of_few_records_are_not_kept() -> None:
    cache = TextCache(MiB)
    rendered(plain_entry(0, count=KEPT_RECORDS_MIN - 1), cache)
    assert cache.held_bytes == 0


def test_the_cache_is_bounded_and_lets_go_of_what_was_not_asked_for_longest() -> None:
    one = TextCache(MiB)
    rendered(plain_entry(1), one)
    cache = TextCache(2 * one.held_bytes)
    for number in (1, 2):
        rendered(plain_entry(number), cache)
    assert cache.held_bytes == 2 * one.held_bytes
    for number in (1, 3):
        rendered(plain_entry(number), cache)
    assert cache.held_bytes == 2 * one.held_bytes
    blind = {number: replace(plain_entry(number), batch=memoryview(b"")) for number in (1, 2, 3)}
    assert rendered(blind[1], cache)
    assert rendered(blind[3], cache)
    with pytest.raises(Exception, match="requires a buffer"):
        rendered(blind[2], cache)
    exact, smaller = TextCache(one.held_bytes), TextCache(one.held_bytes - 1)
    rendered(plain_entry(1), exact)
    rendered(plain_entry(1), smaller)
    assert (exact.held_bytes, smaller.held_bytes) == (one.held_bytes, 0)


def test_an_entry_with_headers_is_no_longer_decoded_than_until_they_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes as long as a record."""
    decoded = 0
    decode = record_batch.decode

    def counted(batch: Any) -> Iterator[record_batch.DecodedRecord]:
        nonlocal decoded
        for record in decode(batch):
            decoded += 1
            yield record

    monkeypatch.setattr(record_batch, "decode", counted)
    count = 10 * texts_module._LOOKED_AT
    made = entry_of([Record(None, b"1", 5, [("h", b"1")])] * count, base_offset=0, json_values=True)
    steps = render_texts_in_steps(
        "orders", 0, [made], None, separator=b",", start=count - 1, stop=count, topic_id=16, has_ids=True
    )
    assert [one.record_count for one in at_once(steps)] == [1]
    assert decoded == count + texts_module._LOOKED_AT, "once as objects"


def test_a_plain_record_looks_as_documented() -> None:
    entry = entry_of([Record(b'"k"', b'{"a":1}', 5)], base_offset=7, json_values=True)
    steps = render_texts_in_steps(
        "orders", 0, [entry], None, separator=b",", start=0, stop=100, topic_id=16, has_ids=True
    )  # fmt: skip
    (texts,) = at_once(steps)
    assert texts.data == (
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


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.text(max_size=4),
            st.sampled_from(['"k"', "\\n", "\\", "a\nb", "\n", "\r\t", '\\"n', "", "\x00", "ключ", "\u2028"]),
        ),
        max_size=6,
    )
)
def test_keys_become_json_strings_together_as_each_by_itself(keys: list[str | None]) -> None:
    shown, quote = as_json_strings([None if key is None else key.encode() for key in keys])
    strings = [None if one is None else quote + one + quote for one in shown]
    assert strings == [None if key is None else orjson.dumps(key) for key in keys]

"""Record batches made from Arrow, against the server's own decoder and our decoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_mq.decode import ARROW_TYPES, decode, find_batches
from pyspark_mq.encode import encode, header_sections, sizes_of

from store import record_batch

Header = tuple[str, bytes | None]
Sent = tuple[bytes | None, bytes | None, int, list[Header] | None, str | None]

NAMES = st.text(max_size=5)
RECORDS = st.tuples(
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.integers(-(2**40), 2**45),
    st.none() | st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=100)), max_size=4),
    st.none() | st.text(max_size=5),
)


def to_rows(records: Sequence[Sent]) -> pa.RecordBatch:
    keys, values, stamps, headers, tags = zip(*records, strict=True)
    listed = [None if hs is None else [{"key": k, "value": v} for k, v in hs] for hs in headers]
    sections = header_sections(pa.array(listed, ARROW_TYPES["headers"]), pa.array(tags, pa.string()), len(records))
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "sections": sections,
            "timestamp_ms": pa.array(stamps, pa.int64()),
        }
    )


def as_read(record: Sent) -> tuple[object, ...]:
    key, value, stamp, headers, tag = record
    tags: list[Header] = [] if tag is None else [("mq-tag", tag.encode())]
    return key, value, stamp, [*tags, *(headers or [])]


@given(st.lists(RECORDS, min_size=1, max_size=40), st.integers(0, 5))
def test_the_server_reads_what_was_encoded(records: list[Sent], skipped: int) -> None:
    padded = [records[0]] * skipped + records
    batch = encode(to_rows(padded).slice(skipped)).sealed(0)
    header = record_batch.check(batch)
    assert header.record_count == len(records)
    assert header.max_timestamp_ms == max(record[2] for record in records)
    read = list(record_batch.decode(batch))
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in read] == [as_read(r) for r in records]
    assert [r.offset for r in read] == list(range(len(records)))


@given(st.lists(RECORDS, min_size=1, max_size=40))
def test_our_decoder_reads_what_was_encoded(records: list[Sent]) -> None:
    batch = encode(to_rows(records)).sealed(0)
    columns = ("key", "value", "tag")
    (rows,) = decode(find_batches(batch), topic="t", partition=0, start=0, end=len(records), columns=columns)
    assert rows.to_pylist() == [{"key": key, "value": value, "tag": tag or first_tag(headers, tag)}
                                for key, value, _, headers, tag in records]  # fmt: skip


def first_tag(headers: list[Header] | None, tag: str | None) -> str | None:
    """A header that happens to be called like the one of tags."""
    if tag is not None:
        return tag
    return next((None if v is None else v.decode("utf-8", "replace") for k, v in headers or [] if k == "mq-tag"), None)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 127, 128, 8191, 8192, 8193])
def test_sizes_at_the_edges_of_varints(count: int) -> None:
    """Key, value, record and number of records: each one below, at and above where a varint grows."""
    rows = pa.record_batch({"key": pa.array([b"k" * count, b""]), "value": pa.array([b"", b"v" * count])})
    (first, second) = record_batch.decode(encode(rows).sealed(7))
    assert (first.key, first.value, second.key, second.value) == (b"k" * count, b"", b"", b"v" * count)
    many = pa.record_batch({"key": pa.nulls(count, pa.binary()), "value": pa.nulls(count, pa.binary())})
    assert record_batch.check(encode(many).sealed(7)).record_count == count


def test_rows_without_times_have_that_of_the_batch_and_equal_rows_are_equal_bytes() -> None:
    rows = pa.record_batch({"key": pa.array([b"a", b"b"]), "value": pa.array([b"1", None])})
    encoded = encode(rows)
    assert encoded.records.to_pybytes() == encode(pa.concat_batches([rows[:1], rows[1:]])).records.to_pybytes()
    for now_ms in (5, 1_700_000_000_000):
        batch = encoded.sealed(now_ms)
        assert record_batch.check(batch).base_timestamp_ms == now_ms
        assert [r.timestamp for r in record_batch.decode(batch)] == [now_ms, now_ms]


def test_a_header_needs_a_key() -> None:
    headers = pa.array([[{"key": None, "value": b"x"}]], ARROW_TYPES["headers"])
    with pytest.raises(ValueError, match="no key"):
        header_sections(headers, None, 1)


def test_sizes_tell_null_from_empty() -> None:
    assert np.array_equal(sizes_of(pa.array([None, b"", b"abc"])), [-1, 0, 3])

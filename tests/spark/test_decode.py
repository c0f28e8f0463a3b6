"""The decoder against aiokafka's encoder and decoder, and against bytes that are not what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark_mq import decode as decoder
from pyspark_mq.decode import ARROW_TYPES, decode, find_batches
from pyspark_mq.errors import MalformedBody

from tests.spark.batches import CODECS, HEADER_BYTES, Message, batch

KAFKA = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

texts = st.text(st.characters(codec="utf-8"), max_size=8)
blobs = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
times = st.integers(-1, 4_000_000_000_000)
messages = st.builds(Message, blobs, blobs, times, st.lists(st.tuples(texts, blobs), max_size=4))
bodies = st.lists(
    st.tuples(
        st.lists(messages, min_size=1, max_size=70), st.sampled_from(sorted(CODECS)), st.none() | st.integers(0, 10**13)
    ),
    min_size=1,
    max_size=5,
)


def rows_of(
    body: bytes, columns: Sequence[str] = KAFKA, *, start: int = 0, end: int = 1 << 60
) -> list[dict[str, object]]:
    found = decode(find_batches(body), topic="t", partition=3, start=start, end=end, columns=columns)
    return [row for rows in found for row in rows.to_pylist()]


def expected(plain: bytes) -> list[dict[str, object]]:
    """What aiokafka's decoder reads from one uncompressed batch, in the shape of our rows."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 3,
            "offset": record.offset,
            "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
            "timestampType": record.timestamp_type,
            "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        }
        for record in DefaultRecordBatch(bytearray(plain))
    ]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(bodies, st.integers(0, 1000), st.integers(0, 200), st.integers(0, 200), st.data())
def test_a_body_decodes_as_the_reference_decodes_it(
    parts: list[tuple[list[Message], str, int | None]], base: int, skip: int, take: int, data: st.DataObject
) -> None:
    bases = list(accumulate((len(part[0]) for part in parts), initial=base))
    body, reference = b"", []
    for (records, codec, log_time), offset in zip(parts, bases, strict=False):
        body += batch(records, offset, codec=codec, log_append_time_ms=log_time)
        reference += expected(batch(records, offset, log_append_time_ms=log_time))
    columns = data.draw(st.permutations(KAFKA).map(lambda names: names[: data.draw(st.integers(1, len(names)))]))
    start, end = base + skip, base + skip + take
    assert find_batches(body).next_offset == bases[-1]
    assert rows_of(body, columns, start=start, end=end) == [
        {name: row[name] for name in columns} for row in reference if start <= int(str(row["offset"])) < end
    ]


@given(st.lists(st.lists(messages, min_size=1, max_size=5), min_size=1, max_size=3), st.data())
@settings(deadline=None)
def test_a_body_cut_anywhere_loses_only_the_batch_that_is_cut(parts: list[list[Message]], data: st.DataObject) -> None:
    bases = list(accumulate(map(len, parts), initial=0))
    whole = [batch(records, base) for records, base in zip(parts, bases, strict=False)]
    sizes = list(accumulate(map(len, whole), initial=0))
    cut = data.draw(st.integers(len(whole[0]), sizes[-1]))
    kept = sum(size <= cut for size in sizes) - 1
    body = b"".join(whole)[:cut]
    assert find_batches(body).next_offset == bases[kept]
    assert [row["offset"] for row in rows_of(body, ["offset"])] == list(range(bases[kept]))


@given(st.lists(messages, min_size=1, max_size=20), st.data())
@settings(deadline=None)
def test_damaged_bytes_are_refused_or_decoded_but_never_read_out_of_bounds(
    records: list[Message], data: st.DataObject
) -> None:
    damaged = bytearray(batch(records))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(HEADER_BYTES, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = list(decode(find_batches(bytes(damaged)), topic="t", partition=0, start=0, end=99, columns=KAFKA))
    except MalformedBody:
        return
    for rows in found:
        rows.validate(full=True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"x", "no whole batch"),
        (bytes(61), "12 bytes; a header alone has more"),
        (batch([Message()])[:-1], "no whole batch"),
        (batch([Message()])[:16] + b"\x01" + batch([Message()])[17:], "magic"),
    ],
)
def test_bytes_that_are_no_batch_are_refused(body: bytes, said: str) -> None:
    with pytest.raises(MalformedBody, match=said):
        find_batches(body)


@pytest.mark.parametrize("attributes", [2, 5, 1, 4])
def test_a_batch_that_does_not_decompress_is_refused(attributes: int) -> None:
    body = bytearray(batch([Message(value=b"v" * 50)]))
    body[22] = attributes
    with pytest.raises(MalformedBody, match=r"codec|decompress"):
        rows_of(bytes(body))


def test_a_value_longer_than_what_is_left_of_the_body_is_refused() -> None:
    body = bytearray(batch([Message(value=b"abc")]))
    assert body[-5] == 6, "the length of the value, as a zig-zag varint"
    body[-5] = 2 * 60
    with pytest.raises(MalformedBody, match="run over its end"):
        rows_of(bytes(body), ["value"])


def test_a_batch_stamped_by_the_log_has_one_time_for_all_its_records() -> None:
    body = batch([Message(timestamp_ms=5), Message(timestamp_ms=7)], log_append_time_ms=99)
    stamped = {"timestamp": EPOCH + timedelta(milliseconds=99), "timestampType": 1}
    assert rows_of(body, ["timestamp", "timestampType"]) == [stamped, stamped]


def test_control_batches_are_left_out_but_counted() -> None:
    control = bytearray(batch([Message(value=b"commit")], 1))
    control[22] = 0x20
    body = batch([Message(value=b"a")], 0) + bytes(control) + batch([Message(value=b"b")], 2)
    assert [row["offset"] for row in rows_of(body, ["offset"])] == [0, 2]
    assert find_batches(body[: -len(batch([Message(value=b"b")], 2))]).next_offset == 2


def test_inflated_batches_come_in_chunks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "CHUNK_BYTES", 3000)
    body = b"".join(batch([Message(value=b"v" * 1000)] * 2, 2 * i, codec="zstd") for i in range(5))
    found = list(decode(find_batches(body), topic="t", partition=0, start=1, end=9, columns=["offset"]))
    assert [chunk["offset"].to_pylist() for chunk in found] == [[1, 2, 3], [4, 5, 6, 7], [8]]


def test_records_of_a_mebibyte_decode() -> None:
    values = [bytes([n]) * (1 << 20) for n in range(3)]
    assert [row["value"] for row in rows_of(batch([Message(value=v) for v in values]), ["value"])] == values


@pytest.mark.parametrize("octets", [0, 50, 56, 57, 58, 8180, 8183, 8184, 8185, 1_048_560, 1_048_569, 1_048_570])
def test_lengths_of_one_to_four_octets_lead_to_the_next_record(octets: int) -> None:
    values = [b"a" * octets, b"", b"b" * octets, b"c" * octets]
    assert [row["value"] for row in rows_of(batch([Message(value=v) for v in values]), ["value"])] == values


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-9000, 9000), min_size=1, max_size=30))
def test_numbers_of_one_to_ten_octets_are_read_at_any_position(numbers: list[int]) -> None:
    written, positions = b"", []
    for number in numbers:
        left = (number << 1) ^ (number >> 63)
        positions.append(len(written))
        while left >= 0x80:
            written, left = written + bytes([0x80 | left & 0x7F]), left >> 7
        written += bytes([left])
    values, after = decoder._varints(np.frombuffer(written, dtype=np.uint8), np.array(positions))
    assert values.tolist() == numbers
    assert after.tolist() == [*positions[1:], len(written)]


@pytest.mark.parametrize("octets", [b"\x80", b"\x02\xff", b"\x80\x80\x80"])
def test_a_number_that_is_cut_off_is_never_read(octets: bytes) -> None:
    with pytest.raises(IndexError):
        decoder._varints(np.frombuffer(octets, dtype=np.uint8), np.arange(len(octets)))


def test_a_number_of_eleven_octets_is_refused() -> None:
    with pytest.raises(MalformedBody, match="ten bytes"):
        decoder._varints(np.frombuffer(b"\x80" * 10 + b"\x00", dtype=np.uint8), np.array([0]))


def test_tag_due_time_and_schedule_come_from_the_headers() -> None:
    body = batch(
        [
            Message(headers=[("a", b"1"), ("mq-tag", "grün".encode()), ("mq-tag", b"second")]),
            Message(),
            Message(headers=[("mq-deliver-at", b"1700000000123"), ("mq-schedule-id", b"s1")]),
            Message(headers=[("mq-tag", None), ("mq-deliver-at", b"soon"), ("x", b"")]),
            Message(headers=[("mq-tag", b"\xff!")]),
        ]
    )
    due = EPOCH + timedelta(milliseconds=1700000000123)
    assert rows_of(body, ["tag", "deliverAt", "scheduleId"]) == [
        {"tag": "grün", "deliverAt": None, "scheduleId": None},
        {"tag": None, "deliverAt": None, "scheduleId": None},
        {"tag": None, "deliverAt": due, "scheduleId": "s1"},
        {"tag": None, "deliverAt": None, "scheduleId": None},
        {"tag": "\ufffd!", "deliverAt": None, "scheduleId": None},
    ]


def test_every_column_has_exactly_the_type_that_spark_compares_with() -> None:
    rows = next(
        decode(find_batches(batch([Message()])), topic="t", partition=0, start=0, end=1, columns=[*ARROW_TYPES])
    )
    assert rows.schema == pa.schema(list(ARROW_TYPES.items()))
    assert next(iter(rows.schema)).nullable

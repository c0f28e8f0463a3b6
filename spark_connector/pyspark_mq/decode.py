"""From the body of a fetch to Arrow: RecordBatches v2 laid end to end become columns, a whole body at a time.

Format (Apache Kafka protocol guide, "Record Batch"). The batch header is `_HEADER_FIELDS`, big-endian, 61 bytes. After
it, compressed as a whole or not, come the records, each:

    length | attributes i8 | timestamp delta | offset delta | key length | key | value length | value | headers
    headers: count, then for each: key length | key | value length | value

All numbers in a record are zig-zag varints; a length of -1 means null.

How it is fast: where the records begin is found as chain.py says; every field is then read for all records of the body
at once with numpy, most in one or two octets. Keys and values are not copied one by one:
positions in the body *are* the offsets of an Arrow binary array whose elements alternate between wanted bytes and the
bytes in between, and one `take` gathers the wanted ones.

Invariants
    D1  nothing is read outside the buffer, whatever the bytes are: positions are checked before Arrow sees them
    D2  rows come out in offset order, only those in [start, end), and all of those that the body holds
    D3  a batch cut short at the end of the body is left out; the next fetch brings it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_mq.chain import record_starts
from pyspark_mq.errors import MalformedBody

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_HEADER_FIELDS = [
    ("base_offset", ">i8"),
    ("length", ">i4"),
    ("leader_epoch", ">i4"),
    ("magic", "i1"),
    ("crc", ">u4"),
    ("attributes", ">i2"),
    ("last_offset_delta", ">i4"),
    ("base_timestamp", ">i8"),
    ("max_timestamp", ">i8"),
    ("producer_id", ">i8"),
    ("producer_epoch", ">i2"),
    ("base_sequence", ">i4"),
    ("record_count", ">i4"),
]
_HEADER = np.dtype(_HEADER_FIELDS)
HEADER_BYTES = 61
assert _HEADER.itemsize == HEADER_BYTES
_LENGTH_AT = 8
_LENGTH_FROM = 12  # `length` counts the bytes after itself

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_CONTROL = 0x20
_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}

INFLATED_BATCH_BYTES_MAX = 64 * 1024 * 1024
"""What one batch may inflate to; the server accepts far less."""

CHUNK_BYTES = 64 * 1024 * 1024
"""Inflated batches are decoded together up to this size: bounds memory, and keeps positions in 32 bits."""

BODY_BYTES_MAX = (1 << 30) - 1  # so that the sum of two positions fits 32 bits
assert CHUNK_BYTES + INFLATED_BATCH_BYTES_MAX < BODY_BYTES_MAX < 1 << 31

_TIMESTAMP_MS_MAX = (1 << 63) // 1000 - 1  # beyond it, microseconds do not fit 64 bits

TAG_HEADER = "mq-tag"
DELIVER_AT_HEADER = "mq-deliver-at"
SCHEDULE_ID_HEADER = "mq-schedule-id"

ARROW_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "tag": pa.string(),
    "deliverAt": pa.timestamp("us", tz="UTC"),
    "scheduleId": pa.string(),
    "messageId": pa.string(),
}
"""Every column there is, with the Arrow type that Spark expects of it."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The whole batches of a body: where each begins, and their headers (a structured array)."""

    body: bytes
    positions: Ints
    headers: npt.NDArray[np.void]

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        last = self.headers[-1]
        return int(last["base_offset"]) + int(last["last_offset_delta"]) + 1


def find_batches(body: bytes) -> Batches:
    """Find the batches of a body that is not empty; one cut short at its end is left out (D3).

    Raises MalformedBody when there is no whole batch, or bytes that are not a batch.
    """
    if len(body) > BODY_BYTES_MAX:
        raise MalformedBody(f"a body of {len(body)} bytes; {BODY_BYTES_MAX} can be decoded at once")
    found = []
    at, size = 0, len(body)
    while size - at >= HEADER_BYTES:
        end = at + _LENGTH_FROM + int.from_bytes(body[at + _LENGTH_AT : at + _LENGTH_FROM], "big", signed=True)
        if end < at + HEADER_BYTES:
            raise MalformedBody(f"the batch at byte {at} says it has {end - at} bytes; a header alone has more")
        if end > size:
            break
        found.append(at)
        at = end
    if not found:
        raise MalformedBody(f"{size} bytes hold no whole batch")
    positions = np.array(found, dtype=np.int64)
    rows = np.frombuffer(body, dtype=np.uint8)[positions[:, None] + np.arange(HEADER_BYTES)]
    headers = rows.view(_HEADER).reshape(-1)
    if (headers["magic"] != 2).any():
        raise MalformedBody(f"the batch at byte {found[int(np.argmax(headers['magic'] != 2))]} has not magic byte 2")
    return Batches(body, positions, headers)


def decode(
    batches: Batches, *, topic: str, partition: int, epoch: str = "", start: int, end: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The records with offsets in [start, end) as Arrow, with the given columns of ARROW_TYPES, in that order (D2).

    One Arrow batch for the whole body, more when it inflates to more than CHUNK_BYTES, none when no record is in
    range. Raises MalformedBody.
    """
    headers = batches.headers
    wanted = (
        (headers["attributes"] & _CONTROL == 0)
        & (headers["record_count"] > 0)
        & (headers["base_offset"] < end)
        & (headers["base_offset"] + headers["last_offset_delta"] >= start)
    )
    chosen = np.flatnonzero(wanted)
    try:
        for section in _sections(batches, chosen):
            records = _parse(section)
            low, high = np.searchsorted(records.offsets, (start, end))
            if low < high:
                yield _to_arrow(section.buffer, records.rows(slice(low, high)), (topic, partition, epoch), columns)
    except IndexError as error:
        raise MalformedBody(
            f"records of {topic}/{partition} in [{start}, {end}) run over the end of a batch"
        ) from error


# --- the records sections, uncompressed -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Section:
    """Uncompressed records of several batches in one buffer: those of batch i are buffer[starts[i]:ends[i]]."""

    buffer: bytes
    starts: Ints
    ends: Ints
    headers: npt.NDArray[np.void]


def _sections(batches: Batches, chosen: Ints) -> Iterator[_Section]:
    """The chosen batches in order. When none is compressed the buffer is the body itself; else they are copied."""
    headers = batches.headers[chosen]
    starts = batches.positions[chosen] + HEADER_BYTES
    ends = batches.positions[chosen] + _LENGTH_FROM + headers["length"]
    if not len(chosen):
        return
    codecs = headers["attributes"] & _COMPRESSION_MASK
    if not codecs.any():
        yield _Section(batches.body, starts, ends, headers)
        return
    pieces: list[bytes] = []
    first, size = 0, 0
    view = memoryview(batches.body)
    for i, (start, end, codec) in enumerate(zip(starts.tolist(), ends.tolist(), codecs.tolist(), strict=True)):
        pieces.append(_inflate(view[start:end], codec))
        size += len(pieces[-1])
        if size >= CHUNK_BYTES or i == len(chosen) - 1:
            bounds = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
            yield _Section(b"".join(pieces), bounds[:-1], bounds[1:], headers[first : i + 1])
            pieces, first, size = [], i + 1, 0


def _inflate(packed: memoryview, codec: int) -> bytes:
    if codec == 0:
        return bytes(packed)
    name = _CODECS.get(codec)
    if name is None:
        raise MalformedBody(f"a batch is compressed with codec {codec}; none, gzip, lz4 and zstd can be read")
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), name) as stream:
            plain: bytes = stream.read(INFLATED_BATCH_BYTES_MAX + 1)
    except (OSError, pa.ArrowException) as error:
        raise MalformedBody(f"a batch does not decompress with {name}: {error}") from error
    if len(plain) > INFLATED_BATCH_BYTES_MAX:
        raise MalformedBody(f"a batch inflates to more than {INFLATED_BATCH_BYTES_MAX} bytes")
    return plain


# --- records --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Records:
    """One row a record: its numbers, and where its key and value lie in the buffer. An end before its start: null."""

    offsets: Ints
    timestamps_ms: Ints
    timestamp_types: npt.NDArray[np.int32]
    key_starts: Ints
    key_ends: Ints
    value_starts: Ints
    value_ends: Ints
    headers_at: Ints

    def rows(self, kept: slice) -> _Records:
        """Some rows of all columns."""
        return _Records(
            self.offsets[kept],
            self.timestamps_ms[kept],
            self.timestamp_types[kept],
            self.key_starts[kept],
            self.key_ends[kept],
            self.value_starts[kept],
            self.value_ends[kept],
            self.headers_at[kept],
        )


def _parse(section: _Section) -> _Records:
    octets = np.frombuffer(section.buffer, dtype=np.uint8)
    headers = section.headers
    counts = headers["record_count"].astype(np.int64)

    def of_batch(values: npt.ArrayLike) -> Ints:
        return np.repeat(np.asarray(values, dtype=np.int64), counts)

    starts = record_starts(section.buffer, section.starts, section.ends, counts)
    _, at = _varints(octets, starts)
    at += 1  # the attributes byte has no meaning yet
    timestamp_deltas, at = _varints(octets, at)
    offset_deltas, at = _varints(octets, at)
    key_sizes, key_starts = _sizes(octets, at)
    value_sizes, value_starts = _sizes(octets, key_starts + np.maximum(key_sizes, 0))
    types = headers["attributes"] & _LOG_APPEND_TIME != 0
    timestamps_ms = of_batch(headers["base_timestamp"]) + timestamp_deltas
    if types.any():
        timestamps_ms = np.where(np.repeat(types, counts), of_batch(headers["max_timestamp"]), timestamps_ms)
    return _Records(
        of_batch(headers["base_offset"]) + offset_deltas,
        timestamps_ms,
        np.repeat(types.astype(np.int32), counts),
        key_starts,
        key_starts + key_sizes,
        value_starts,
        value_starts + value_sizes,
        value_starts + np.maximum(value_sizes, 0),
    )


def _varints(octets: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The zig-zag varint at each position, and the position after each. Raises IndexError, MalformedBody.

    Most have one octet or two. Small numbers are kept in few bits until the end: a processor does many of them at once.
    """
    first = octets.take(at)
    is_long = first >= 0x80
    if not is_long.any():
        return _unsigned_to_signed(first).astype(np.int64), at + 1
    second = octets.take(at + 1, mode="clip") * is_long  # clip: where the last octet of all is a number of one octet
    both = (first & 0x7F).astype(np.uint16) | (second & 0x7F).astype(np.uint16) << np.uint16(7)
    values = _unsigned_to_signed(both).astype(np.int64)
    after = at + 1 + is_long
    if (second >= 0x80).any():
        longer = np.flatnonzero(second >= 0x80)
        values[longer], after[longer] = _long_varints(octets, at[longer])
    return values, after


def _long_varints(octets: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """As `_varints`, an octet of all of them after the other."""
    values, after = np.zeros(len(at), dtype=np.uint64), at.copy()
    more = np.arange(len(at))
    for shift in range(0, 70, 7):
        octet = octets[after[more]]
        values[more] |= (octet & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[octet >= 0x80]
        if not more.size:
            return _unsigned_to_signed(values), after
    raise MalformedBody("a varint of more than ten bytes")


def _unsigned_to_signed(values: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.signedinteger]:
    """Zig-zag: 0, 1, 2, 3, ... are 0, -1, 1, -2, ..., in as many bits."""
    signed = np.dtype(f"i{values.itemsize}")
    numbers: npt.NDArray[np.signedinteger] = (values >> 1).view(signed) ^ -(values & 1).view(signed)
    return numbers


def _sizes(octets: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """As `_varints`, for the length of a field: -1 to the size of the buffer."""
    sizes, after = _varints(octets, at)
    if ((sizes < -1) | (sizes > len(octets))).any():
        raise MalformedBody("a record has a field of an impossible length")
    return sizes, after


# --- columns --------------------------------------------------------------------------------------------------------


def _to_arrow(buffer: bytes, records: _Records, source: tuple[str, int, str], columns: Sequence[str]) -> pa.RecordBatch:
    topic, partition, epoch = source
    count = len(records.offsets)
    arrays: dict[str, pa.Array] = {}

    def constant(value: str | int, column: str) -> pa.Array:
        return pa.repeat(pa.scalar(value, ARROW_TYPES[column]), count)

    if "key" in columns or "value" in columns:
        arrays["key"], arrays["value"] = _pairs(
            buffer,
            (records.key_starts, records.key_ends),
            (records.value_starts, records.value_ends),
            wanted=("key" in columns, "value" in columns),
        )
    if not {"headers", "tag", "deliverAt", "scheduleId"}.isdisjoint(columns):
        arrays |= _header_columns(buffer, records.headers_at, columns)
    plain: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: constant(topic, "topic"),
        "partition": lambda: constant(partition, "partition"),
        "offset": lambda: pa.array(records.offsets),
        "timestamp": lambda: _timestamps(records.timestamps_ms),
        "messageId": lambda: pc.binary_join_element_wise(
            f"{epoch}-{partition}", pa.array(records.offsets).cast(pa.string()), "-"
        ),
        "timestampType": lambda: pa.array(records.timestamp_types),
    }
    return pa.RecordBatch.from_arrays(
        [arrays[name] if name in arrays else plain[name]() for name in columns],
        schema=pa.schema([(name, ARROW_TYPES[name]) for name in columns]),
    )


def _timestamps(times_ms: Ints) -> pa.Array:
    times_us = np.clip(times_ms, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX) * 1000
    return pa.Array.from_buffers(ARROW_TYPES["timestamp"], len(times_us), [None, pa.py_buffer(times_us)])


_Spans = tuple[Ints, Ints]
"""Starts and ends of byte strings in a buffer; an end before its start stands for null."""


def _pairs(
    buffer: bytes, keys: _Spans, values: _Spans, *, wanted: tuple[bool, bool] = (True, True)
) -> tuple[pa.Array, pa.Array]:
    """Binary arrays of keys and values that lie in the buffer in the order key, value, key, value, ...

    An array that is not wanted comes back as None.
    """
    count = len(keys[0])
    cuts = np.empty((count, 4), dtype=np.int32)
    cuts[:, 0], cuts[:, 1] = keys[0], np.maximum(*keys)
    cuts[:, 2], cuts[:, 3] = values[0], np.maximum(*values)
    bounds = cuts.reshape(-1)
    if count and (bounds[0] < 0 or bounds[-1] > len(buffer) or (bounds[1:] < bounds[:-1]).any()):  # D1
        raise MalformedBody("the fields of a record run over its end")
    whole = pa.BinaryArray.from_buffers(
        pa.binary(),
        max(0, 4 * count - 1),
        [None, pa.py_buffer(bounds), pa.py_buffer(buffer)],
    )

    def pick(first: int, spans: _Spans) -> pa.Array:
        null = spans[1] < spans[0]
        at = np.arange(first, 4 * count, 4, dtype=np.int32)
        return whole.take(pa.array(at, mask=null) if null.any() else pa.array(at))

    return pick(0, keys) if wanted[0] else None, pick(2, values) if wanted[1] else None


@dataclass(frozen=True, slots=True)
class _Headers:
    """All headers of all rows, in order: the row each belongs to, its key and its value."""

    rows: Ints
    keys: pa.Array
    values: pa.Array


def _header_columns(buffer: bytes, at: Ints, columns: Sequence[str]) -> dict[str, pa.Array]:
    count = len(at)
    headers = _parse_headers(buffer, at)
    arrays: dict[str, pa.Array] = {}
    if "headers" in columns:
        ends = np.searchsorted(headers.rows, np.arange(count + 1)).astype(np.int32)
        none = np.append(ends[1:] == ends[:-1], False)  # as in Spark's Kafka source: no headers are null, not empty
        arrays["headers"] = pa.ListArray.from_arrays(
            pa.array(ends, mask=none) if none.any() else pa.array(ends),
            pa.StructArray.from_arrays([headers.keys, headers.values], fields=list(ARROW_TYPES["headers"].value_type)),
        )
    if "tag" in columns:
        arrays["tag"] = _text(_one_header(headers, TAG_HEADER, count))
    if "scheduleId" in columns:
        arrays["scheduleId"] = _text(_one_header(headers, SCHEDULE_ID_HEADER, count))
    if "deliverAt" in columns:
        arrays["deliverAt"] = _times_in_text(_text(_one_header(headers, DELIVER_AT_HEADER, count)))
    return arrays


def _parse_headers(buffer: bytes, at: Ints) -> _Headers:
    """All headers: a loop over the ordinal of a header in its record, not over records."""
    octets = np.frombuffer(buffer, dtype=np.uint8)
    left, at = _varints(octets, at)
    if (left < 0).any():
        raise MalformedBody("a record with a negative number of headers")
    rows = np.flatnonzero(left)
    at, left = at[rows], left[rows]
    parts: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
    while rows.size:
        key_sizes, key_starts = _sizes(octets, at)
        if (key_sizes < 0).any():
            raise MalformedBody("a header without a key")
        value_sizes, value_starts = _sizes(octets, key_starts + key_sizes)
        parts.append((rows, key_starts, key_starts + key_sizes, value_starts, value_starts + value_sizes))
        more = left > 1
        at = (value_starts + np.maximum(value_sizes, 0))[more]
        rows, left = rows[more], left[more] - 1
    if not parts:
        return _Headers(np.empty(0, dtype=np.int64), pa.array([], pa.string()), pa.array([], pa.binary()))
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    row, key_start, key_end, value_start, value_end = (column[order] for column in joined)
    keys, values = _pairs(buffer, (key_start, key_end), (value_start, value_end))
    return _Headers(row, _text(keys), values)


def _one_header(headers: _Headers, key: str, count: int) -> pa.Array:
    """For each of `count` rows the value of its first header with this key, else null."""
    found = np.flatnonzero(pc.equal(headers.keys, key).to_numpy(zero_copy_only=False))
    rows, first = np.unique(headers.rows[found], return_index=True)
    at = np.zeros(count, dtype=np.int64)
    missing = np.ones(count, dtype=np.bool_)
    at[rows], missing[rows] = found[first], False
    return headers.values.take(pa.array(at, mask=missing))


def _text(array: pa.Array) -> pa.Array:
    """Bytes as text. What is not UTF-8 is replaced character by character: one odd record must not stop a job."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in array.to_pylist()]
        return pa.array(texts, pa.string())


def _times_in_text(texts: pa.Array) -> pa.Array:
    """Decimal milliseconds as timestamps; null for a text that is none."""
    legal = pc.match_substring_regex(texts, r"^[0-9]{1,15}$")
    times_ms = pc.if_else(legal, texts, pa.scalar(None, pa.string())).cast(pa.int64())
    return pc.multiply(times_ms, 1000).cast(pa.timestamp("us")).view(pa.timestamp("us", tz="UTC"))

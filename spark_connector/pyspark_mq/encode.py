"""From Arrow to the form in which records are stored: a table of rows becomes one RecordBatch v2.

The layout is in `decode.py`. How it is fast: the varints of all rows are made at once with numpy, and one call of
Arrow lays the parts of all records behind each other: the bytes of the joined array *are* the records of the batch.

Invariants
    E1  the records section depends on nothing but the rows and their order: the same rows, the same bytes. (Records
        without a timestamp of their own share the base timestamp, which is in the batch's header.)
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_mq.checksum import crc32c
from pyspark_mq.decode import HEADER_BYTES, TAG_HEADER

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_HEADER = ">qiibIhiqqqhii"
assert struct.calcsize(_HEADER) == HEADER_BYTES
_LENGTH_FROM = 12
_CRC_FROM = 21
_MAGIC = 2
_NOBODY = -1, -1, -1  # producer id, epoch, base sequence: numbers of Kafka's own protocol, not ours
_EMPTY = pa.scalar(b"", pa.binary())


class Encoded(NamedTuple):
    """The records section of a batch, and what its header says of it."""

    records: pa.Buffer
    record_count: int
    base_timestamp_ms: int | None
    """None: the rows have no timestamps of their own."""

    max_timestamp_ms: int | None

    def sealed(self, now_ms: int) -> bytes:
        """The whole batch. `now_ms` stamps rows without a timestamp."""
        base_ms = now_ms if self.base_timestamp_ms is None else self.base_timestamp_ms
        max_ms = now_ms if self.max_timestamp_ms is None else self.max_timestamp_ms
        size = HEADER_BYTES - _LENGTH_FROM + self.records.size
        fields = (self.record_count - 1, base_ms, max_ms, *_NOBODY, self.record_count)
        unsealed = struct.pack(_HEADER, 0, size, 0, _MAGIC, 0, 0, *fields)
        crc = crc32c(self.records, crc32c(unsealed[_CRC_FROM:], 0))
        return b"".join((struct.pack(_HEADER, 0, size, 0, _MAGIC, crc, 0, *fields), self.records))


def encode(rows: pa.RecordBatch) -> Encoded:
    """Encode rows with the binary columns `key` and `value`, and, if they have them, `sections` (the headers of each,
    see `header_sections`) and `timestamp_ms` (int64, no nulls)."""
    count = rows.num_rows
    keys, values = rows["key"], rows["value"]
    stamps = _numbers(rows["timestamp_ms"]) if "timestamp_ms" in rows.schema.names else None
    base_ms = None if stamps is None else int(stamps[0])
    deltas = np.zeros(count, dtype=np.int64) if stamps is None else stamps - stamps[0]
    key_sizes, value_sizes = sizes_of(keys), sizes_of(values)
    head = _varints(np.zeros(count, dtype=np.int64), deltas, np.arange(count, dtype=np.int64), key_sizes)
    middle = _varints(value_sizes)
    if "sections" in rows.schema.names:
        tail = rows["sections"]
        tail_sizes = sizes_of(tail)
    else:
        tail, tail_sizes = pa.scalar(b"\0", pa.binary()), np.ones(count, dtype=np.int64)
    body_sizes = head.sizes() + np.maximum(key_sizes, 0) + middle.sizes() + np.maximum(value_sizes, 0) + tail_sizes
    parts = [_varints(body_sizes).beside(head).array(), keys, middle.array(), values, tail]
    whole = pc.binary_join_element_wise(*parts, _EMPTY, null_handling="replace", null_replacement="")
    return Encoded(_bytes_of(whole), count, base_ms, None if stamps is None else int(stamps.max()))


def header_sections(headers: pa.Array | None, tags: pa.Array | None, count: int) -> pa.Array:
    """The headers of each row as a record holds them: their count, then each key and value. A tag is one more header.

    `headers` is a list of (key string, value binary) a row. A header without a key, or a null in place of one, is a
    ValueError.
    """
    counts = np.zeros(count, dtype=np.int64)
    parts: list[pa.Array] = []
    if tags is not None:
        tagged = pc.is_valid(tags)
        counts += _numbers(tagged.cast(pa.int64()))
        name = TAG_HEADER.encode()
        lead = pa.scalar(_varints(np.array([len(name)])).octets.tobytes() + name, pa.binary())
        texts = tags.cast(pa.binary())
        tag_parts = pc.binary_join_element_wise(lead, _varints(sizes_of(texts)).array(), texts, _EMPTY)
        parts.append(pc.fill_null(tag_parts, b""))
    if headers is not None:
        counts += np.maximum(_numbers(pc.fill_null(pc.list_value_length(headers), 0)), 0)
        parts.append(_headers_of(headers))
    return pc.binary_join_element_wise(_varints(counts).array(), *parts, _EMPTY)


def _headers_of(headers: pa.Array) -> pa.Array:
    """Key and value of all headers of each row, one behind the other."""
    flat = headers.flatten()  # without what lies behind nulls and outside of a slice
    keys = flat.field(0).cast(pa.binary())
    if flat.null_count or keys.null_count:
        raise ValueError("a header has no key")
    values = flat.field(1).cast(pa.binary())
    each = pc.binary_join_element_wise(
        _varints(sizes_of(keys)).array(), keys, _varints(sizes_of(values)).array(), values, _EMPTY,
        null_handling="replace", null_replacement="",
    )  # fmt: skip
    ends = np.concatenate(([0], np.cumsum(_numbers(pc.fill_null(pc.list_value_length(headers), 0)))))
    offsets = np.frombuffer(each.buffers()[1], dtype=np.int32)[each.offset : each.offset + len(each) + 1][ends]
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(headers), [None, pa.py_buffer(np.ascontiguousarray(offsets)), each.buffers()[2]]
    )


def sizes_of(array: pa.Array) -> Ints:
    """Bytes of each element; -1 for null."""
    return _numbers(pc.fill_null(pc.binary_length(array), -1))


def _numbers(array: pa.Array) -> Ints:
    numbers: Ints = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def _bytes_of(array: pa.Array) -> pa.Buffer:
    """The bytes of all elements, one behind the other."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)
    first, last = int(offsets[array.offset]), int(offsets[array.offset + len(array)])
    return array.buffers()[2].slice(first, last - first)


class _Varints(NamedTuple):
    """Zig-zag varints: a row of bytes for each row, and which of them are there."""

    octets: Bytes
    kept: Flags

    def beside(self, other: _Varints) -> _Varints:
        """This one's bytes, then the other's."""
        return _Varints(np.hstack((self.octets, other.octets)), np.hstack((self.kept, other.kept)))

    def sizes(self) -> Ints:
        """Bytes of each row."""
        counts: Ints = self.kept.sum(axis=1, dtype=np.int64)
        return counts

    def array(self) -> pa.Array:
        """One binary value a row."""
        offsets = np.concatenate(([0], np.cumsum(self.sizes()))).astype(np.int32)
        flat = self.octets[self.kept]
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(self.octets), [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
        )


def _varints(*columns: Ints) -> _Varints:
    """The numbers of each row one behind the other."""
    made = [_column(numbers) for numbers in columns]
    return _Varints(np.hstack([octets for octets, _ in made]), np.hstack([kept for _, kept in made]))


def _column(numbers: Ints) -> tuple[Bytes, Flags]:
    plain = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    width = max(1, -(-int(plain.max(initial=0)).bit_length() // 7))
    sevens = plain[:, None] >> (np.arange(width, dtype=np.uint64) * np.uint64(7))
    kept = sevens != 0
    kept[:, 0] = True
    octets = (sevens & np.uint64(0x7F)).astype(np.uint8)
    octets[:, :-1] |= kept[:, 1:].astype(np.uint8) << 7
    return octets, kept

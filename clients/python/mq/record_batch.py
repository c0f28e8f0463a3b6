"""Kafka RecordBatch v2, read: whole batches as the server stores them. Pure. Big-endian:

    base offset i64 | length i32 | epoch i32 | magic i8 = 2 | crc u32 | attributes i16 | last offset delta i32 |
    base time i64 | max time i64 | producer i64, i16, i32 | count i32 | records

A record: length, attributes i8, time delta, offset delta, key length and key, value length and value, header count and
headers; the numbers are zigzag varints. The low three bits of the attributes name the compression, bit 3 says that all
records have the max time. Checksums are left to the connection: the server checks what it reads from disk.

In Python a loop over these records is slower than messages decoded by msgspec in C: batches are for passing on as they
are (`Client.send_raw`), and for other decoders.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from mq.errors import Undecodable

_HEADER = Struct(">qiiBIhiqqqhii")
assert _HEADER.size == 61
_LENGTH_FROM = 12  # the length counts from behind itself
_MAX_TIME = 8
_INFLATED_BYTES_MAX = 64 * 1024 * 1024


class RawRecord(NamedTuple):
    """One record of a raw batch. `timestamp_ms`: event time, epoch ms."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class RawBatch(NamedTuple):
    """Record batches of one partition, end to end: records from `offset` up to, not including, `next_offset`. The first
    batch may begin before `offset`."""

    topic: str
    partition: int
    offset: int
    next_offset: int
    payload: bytes

    @property
    def place(self) -> int:
        """As `Message.place`."""
        return self.offset

    def records(self) -> Iterator[RawRecord]:
        """The records, decoded; gzip, and zstd where the package `zstandard` is installed. Raises Undecodable."""
        for record in decode(self.payload):
            if record.offset >= self.offset:
                yield record


def decode(payload: bytes) -> Iterator[RawRecord]:
    """The records of batches laid end to end. Raises Undecodable."""
    at = 0
    try:
        while at < len(payload):
            base, length, _, magic, _, attributes, _, base_time, max_time, _, _, _, count = _HEADER.unpack_from(
                payload, at
            )
            end = at + _LENGTH_FROM + length
            if magic != 2 or not at + _HEADER.size <= end <= len(payload):
                raise Undecodable(f"at byte {at}: no record batch of format 2, or one that is cut short")
            body = _inflate(payload[at + _HEADER.size : end], attributes & 7)
            fixed_time = max_time if attributes & _MAX_TIME else None
            yield from _records(body, count, base, base_time, fixed_time)
            at = end
    except (StructError, IndexError, UnicodeDecodeError) as error:
        raise Undecodable(f"at byte {at}: a record batch that is cut short or damaged: {error}") from None


def _records(body: bytes, count: int, base: int, base_time: int, fixed_time: int | None) -> Iterator[RawRecord]:
    at = 0
    for _ in range(count):
        length, at = _varint(body, at)
        end = at + length
        if length < 0 or end > len(body):
            raise Undecodable("a record that is longer than its batch")
        time_delta, at = _varint(body, at + 1)
        offset_delta, at = _varint(body, at)
        key, at = _bytes(body, at)
        value, at = _bytes(body, at)
        header_count, at = _varint(body, at)
        headers = []
        for _ in range(header_count):
            name, at = _bytes(body, at)
            content, at = _bytes(body, at)
            headers.append(((name or b"").decode(), content))
        if at != end:
            raise Undecodable("a record that is not as long as it says")
        timestamp_ms = base_time + time_delta if fixed_time is None else fixed_time
        yield RawRecord(base + offset_delta, timestamp_ms, key, value, headers)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint, and where it ends."""
    number = shift = 0
    while True:
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > 63:
            raise Undecodable("a number that is too long")


def _bytes(body: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(body, at)
    if length < 0:
        return None, at
    if at + length > len(body):
        raise Undecodable("a key, value or header that is longer than its record")
    return body[at : at + length], at + length


def _inflate(body: bytes, compression: int) -> bytes:
    if compression == 0:
        return body
    if compression == 1:
        try:
            inflated = zlib.decompressobj(wbits=31).decompress(body, _INFLATED_BYTES_MAX)
        except zlib.error as error:
            raise Undecodable(f"a gzip batch that is damaged: {error}") from None
        return inflated
    if compression == 4:
        try:
            import zstandard
        except ImportError:
            raise Undecodable("a batch is compressed with zstd: pip install zstandard, or read messages") from None
        try:
            return zstandard.ZstdDecompressor().decompress(body, max_output_size=_INFLATED_BYTES_MAX)
        except zstandard.ZstdError as error:
            raise Undecodable(f"a zstd batch that is damaged: {error}") from None
    raise Undecodable(f"a batch has compression {compression} (2: snappy, 3: lz4): read messages, not raw batches")

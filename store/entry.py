"""The envelope around one RecordBatch in the commit log: encode, decode, and tell good bytes from bad.

Format, big-endian, version 1; entries begin at multiples of 8:

     0        4        8       9       10       12           16         24
    +--------+--------+-------+-------+--------+------------+----------+---------------+
    |length  |crc32c  |version|flags  |topic   |extension   |position  |durable        |
    |u32     |u32     |u8 = 1 |u8     |bytes   |bytes u32   |i64       |position i64   |
    |        |        |       |       |u16     |            |          |               |
    +--------+--------+-------+-------+--------+------------+----------+---------------+
     32          40            48        52         56
    +-----------+-------------+---------+----------+-----------+-------+-----------+-------------+---------+
    |base offset|store time   |topic id |queue id  |record     |topic  |extension  |RecordBatch  |padding  |
    |i64        |ms i64       |u32      |u32       |count u32  |UTF-8  |           |v2, verbatim |to 8     |
    +-----------+-------------+---------+----------+-----------+-------+-----------+-------------+---------+

    length    bytes from the start of the entry to the end of the batch, without padding; 0 means nothing is here
    crc       CRC-32C of everything from `version` to the end of the batch
    position  the entry's own position: bytes that were copied, misplaced or left from an older life do not pass
    durable   everything in the log before this position was covered by an fdatasync when this entry was written;
              recovery tells a torn tail from rot by it (store/recovery.py)
    flags     1: all keys and values are JSON or null; 2: blank, the rest of the file is unused (CRC covers the header
              only, length covers the rest of the file)
    extension blocks of (type u8, count u32, items):
              1 tag hashes   i64 a record                                       count = records
              2 delays       due ms i64, topic id u32, queue id u32,
                             origin position i64, origin index u32              count = records
              3 sources      position i64, index u32                            count = records delivered by the timer

Invariants
    E1  a length of 0 never parses, so zero-filled space is not an entry
    E2  bytes are an entry only if position, version, lengths and CRC all fit
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from store.limits import ENTRY_BYTES_MAX
from store.types import Append, Buffer, Delay, Entry, QueueKey, Source

_HEADER = struct.Struct(">IIBBHIqqqqIII")
HEADER_BYTES = 60
assert _HEADER.size == HEADER_BYTES
_BLOCK = struct.Struct(">BI")
_TAG_HASH = struct.Struct(">q")
_DELAY = struct.Struct(">qIIqI")
_SOURCE = struct.Struct(">qI")
_CRC = struct.Struct(">I")

VERSION = 1
ALIGNMENT = 8
_CRC_AT = 4
_CRC_FROM = 8
_POSITION_AT = 16
BLANK_BYTES = 64  # smallest rest of a file that can hold a blank marker
assert BLANK_BYTES >= HEADER_BYTES
assert BLANK_BYTES % ALIGNMENT == 0

_JSON_VALUES = 1
_BLANK = 2

_TAG_HASHES, _DELAYS, _SOURCES = 1, 2, 3
_ITEM = {_TAG_HASHES: _TAG_HASH, _DELAYS: _DELAY, _SOURCES: _SOURCE}

_PADDING = [b"\0" * n for n in range(ALIGNMENT)]


class Blank(NamedTuple):
    """A marker that the rest of this file is unused; the next entry is at the start of the next file."""

    position: int
    size: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not an entry, and why."""

    position: int
    reason: str
    is_zero: bool  # the length field is 0: nothing was ever written here


def padded(size: int) -> int:
    """`size` rounded up to the alignment of entries."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def entry_bytes(append: Append, topic_bytes: int) -> int:
    """Bytes the append will take in the log, padding included."""
    return padded(HEADER_BYTES + topic_bytes + _extension_bytes(append) + len(append.batch))


def encode_entry(
    append: Append,
    batch: Buffer,
    *,
    topic: bytes,
    position: int,
    durable_position: int,
    base_offset: int,
    store_time_ms: int,
) -> list[Buffer]:
    """The buffers of one entry, to be written end to end. `batch` is `append.batch` with its base offset set."""
    extension = _encode_extension(append)
    length = HEADER_BYTES + len(topic) + len(extension) + len(batch)
    header = bytearray(HEADER_BYTES)
    _HEADER.pack_into(
        header, 0,
        length, 0, VERSION, _JSON_VALUES if append.json_values else 0, len(topic), len(extension),
        position, durable_position, base_offset, store_time_ms,
        append.queue.topic_id, append.queue.queue_id, append.record_count,
    )  # fmt: skip
    header += topic
    header += extension
    crc = crc32c(batch, crc32c(memoryview(header)[_CRC_FROM:]))
    _CRC.pack_into(header, _CRC_AT, crc)
    buffers: list[Buffer] = [header, batch]
    if length % ALIGNMENT:
        buffers.append(_PADDING[-length % ALIGNMENT])
    return buffers


def encode_blank(position: int, size: int, durable_position: int) -> bytes:
    """A marker for the unused rest of a file: `size` bytes from `position` to the end of the file."""
    header = bytearray(HEADER_BYTES)
    _HEADER.pack_into(header, 0, size, 0, VERSION, _BLANK, 0, 0, position, durable_position, 0, 0, 0, 0, 0)
    _CRC.pack_into(header, _CRC_AT, crc32c(memoryview(header)[_CRC_FROM:]))
    return bytes(header)


def entry_length(header: Buffer, at: int = 0) -> int:
    """Padded bytes of the entry whose first bytes are at `at`; 0 where nothing was written. Not checked."""
    length: int = _CRC.unpack_from(header, at)[0]
    return padded(length)


def durable_position_of(view: memoryview, at: int) -> int:
    """The durable position an entry carries (see module header). The entry must have been decoded before."""
    durable: int = struct.unpack_from(">q", view, at + _POSITION_AT + 8)[0]
    return durable


def decode_entry(view: memoryview, at: int, position: int) -> Entry | Blank | Damage:
    """Decode the bytes at `view[at:]`, which were read from log position `position`.

    The entry's batch is a view into `view`; nothing is copied.
    """
    available = len(view) - at
    if available < HEADER_BYTES:
        is_zero = not any(view[at:])
        return Damage(position, f"{available} bytes are less than an entry header", is_zero)
    (
        length, crc, version, flags, topic_bytes, extension_bytes, own_position, _,
        base_offset, store_time_ms, topic_id, queue_id, record_count,
    ) = _HEADER.unpack_from(view, at)  # fmt: skip
    if length == 0:
        return Damage(position, "length is 0", True)
    if own_position != position:
        return Damage(position, f"the entry says it belongs at position {own_position}", False)
    if version != VERSION:
        return Damage(position, f"entry version {version}; this program knows {VERSION}", False)
    if flags & _BLANK:
        if crc32c(view[at + _CRC_FROM : at + HEADER_BYTES]) != crc:
            return Damage(position, "CRC of a blank marker does not match", False)
        return Blank(position, length)
    body_from = HEADER_BYTES + topic_bytes + extension_bytes
    if not body_from < length <= ENTRY_BYTES_MAX:
        return Damage(position, f"length {length} is impossible", False)
    if length > available:
        return Damage(position, f"length {length}, but only {available} bytes follow", False)
    if crc32c(view[at + _CRC_FROM : at + length]) != crc:
        return Damage(position, "CRC does not match", False)
    extension_from = at + HEADER_BYTES + topic_bytes
    tag_hashes: Sequence[int] = ()
    delays: Sequence[Delay] = ()
    sources: Sequence[Source] = ()
    if extension_bytes:
        tag_hashes, delays, sources = _decode_extension(view[extension_from : extension_from + extension_bytes])
    return Entry(
        position,
        padded(length),
        QueueKey(topic_id, queue_id),
        str(view[at + HEADER_BYTES : extension_from], "utf-8"),
        base_offset,
        record_count,
        store_time_ms,
        bool(flags & _JSON_VALUES),
        view[extension_from + extension_bytes : at + length],
        tag_hashes,
        delays,
        sources,
    )


def _extension_bytes(append: Append) -> int:
    size = 0
    for items, item in ((append.tag_hashes, _TAG_HASH), (append.delays, _DELAY), (append.sources, _SOURCE)):
        if items:
            size += _BLOCK.size + len(items) * item.size
    return size


def _encode_extension(append: Append) -> bytes:
    if not (append.tag_hashes or append.delays or append.sources):
        return b""
    parts = []
    if append.tag_hashes:
        hashes = append.tag_hashes
        parts += [_BLOCK.pack(_TAG_HASHES, len(hashes)), struct.pack(f">{len(hashes)}q", *hashes)]
    if append.delays:
        parts += [_BLOCK.pack(_DELAYS, len(append.delays)), *(_DELAY.pack(*delay) for delay in append.delays)]
    if append.sources:
        parts += [_BLOCK.pack(_SOURCES, len(append.sources)), *(_SOURCE.pack(*source) for source in append.sources)]
    return b"".join(parts)


def _decode_extension(view: memoryview) -> tuple[Sequence[int], Sequence[Delay], Sequence[Source]]:
    """Blocks were written by us and are covered by the CRC, so they are trusted to be whole."""
    tag_hashes: Sequence[int] = ()
    delays: Sequence[Delay] = ()
    sources: Sequence[Source] = ()
    at = 0
    while at < len(view):
        kind, count = _BLOCK.unpack_from(view, at)
        at += _BLOCK.size
        item = _ITEM[kind]
        block = view[at : at + count * item.size]
        at += count * item.size
        items: Iterable[tuple[int, ...]] = item.iter_unpack(block)
        if kind == _TAG_HASHES:
            tag_hashes = [value for (value,) in items]
        elif kind == _DELAYS:
            delays = [Delay(*fields) for fields in items]
        else:
            sources = [Source(*fields) for fields in items]
    return tag_hashes, delays, sources

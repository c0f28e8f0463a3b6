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
              recovery tells a torn tail from rot by it (store/log/recovery.py)
    flags     1: all values are JSON or null, and all keys if its topic has JSON keys (store/topics.py); 2: blank, the
              rest of the file is unused (CRC covers the header only, length covers the rest of the file)
    extension blocks of (type u8, count u32, items):
              1 tag hashes   i64 a record                                       count = records
              2 delays       due ms i64, topic id u32, queue id u32,
                             origin position i64, origin index u32              count = records
              3 sources      position i64, index u32                            count = records delivered by the timer
              4 message ids  16 bytes a record, zeros = none                    count = records
              5 request      id 16 bytes, fingerprint 8 bytes                   count = 1
              6 indexes      u32: a record's index in that request              count = records, or 1: the first one's,
                                                                                the others follow it one by one
              7 producer     id 16 bytes, sequence i64                          count = 1
              8 light queues one packed block (store/light_names.py)            count = bytes of it

Invariants
    E1  a length of 0 never parses, so zero-filled space is not an entry
    E2  bytes are an entry only if position, version, lengths and CRC all fit
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from crc32c import crc32c

from store.light_names import LightNames
from store.limits import ENTRY_BYTES_MAX
from store.log.packed import Packed
from store.record_batch import HEADER_BYTES as BATCH_HEADER_BYTES
from store.record_batch import MAX_TIMESTAMP_AT
from store.types import (
    ID_BYTES,
    Append,
    Buffer,
    Delay,
    Entry,
    Identity,
    ProducerSequence,
    QueueKey,
    RequestPart,
    Source,
)

_Row = TypeVar("_Row", Delay, Source)

_HEADER = struct.Struct(">IIBBHIqqqqIII")
HEADER_BYTES = 60
assert _HEADER.size == HEADER_BYTES
_BLOCK = struct.Struct(">BI")
_TAG_HASH = struct.Struct(">q")
_DELAY = struct.Struct(">qIIqI")
_SOURCE = struct.Struct(">qI")
_MAKE_DELAY, _MAKE_SOURCE = Delay._make, Source._make  # bound once: each binding is an object
unpack_delay = _DELAY.unpack
"""One packed row -> the fields of a Delay."""
_MESSAGE_ID = struct.Struct(f">{ID_BYTES}s")
_REQUEST_ITEM = struct.Struct(">16s8s")
_REQUEST_INDEX = struct.Struct(">I")
_PRODUCER_ITEM = struct.Struct(">16sq")
_BYTE = struct.Struct("B")
_CRC = struct.Struct(">I")
_DATE = struct.Struct(">q")

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

_SCANNED = struct.Struct(">IIIIqqqqQI")  # the header in fewer fields: one for version to topic bytes, one for the queue
assert _SCANNED.size == HEADER_BYTES
_TOPIC_BYTES_MASK = 0xFFFF
_KIND_MASK = 0xFFFFFFFF ^ _TOPIC_BYTES_MASK ^ _JSON_VALUES << 16  # version, and all flags but this one
_PLAIN_KIND = VERSION << 24

_TAG_HASHES, _DELAYS, _SOURCES, _MESSAGE_IDS, _REQUEST, _REQUEST_INDEXES, _PRODUCER, _LIGHT = range(1, 9)
_ITEM = {
    _TAG_HASHES: _TAG_HASH,
    _DELAYS: _DELAY,
    _SOURCES: _SOURCE,
    _MESSAGE_IDS: _MESSAGE_ID,
    _REQUEST: _REQUEST_ITEM,
    _REQUEST_INDEXES: _REQUEST_INDEX,
    _PRODUCER: _PRODUCER_ITEM,
    _LIGHT: _BYTE,
}

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


class Header(NamedTuple):
    """What a scan of many entries needs of one without an extension."""

    position: int
    size: int  # bytes of the entry in the log, padding included
    queue: QueueKey
    base_offset: int
    record_count: int
    store_time_ms: int
    dated_ms: int
    """The highest event time of its records; -1 when its batch is none."""

    @property
    def next_offset(self) -> int:
        """The offset after the last record of the entry."""
        return self.base_offset + self.record_count

    @property
    def tag_hashes(self) -> Sequence[int]:
        """None: they would be in an extension."""
        return ()

    @property
    def light(self) -> None:
        """None: they would be in an extension."""
        return None


def padded(size: int) -> int:
    """`size` rounded up to the alignment of entries."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def entry_bytes(append: Append, topic_bytes: int) -> int:
    """Bytes the append will take in the log, padding included."""
    return padded(HEADER_BYTES + topic_bytes + _extension_bytes(append) + len(append.batch))


def encode_entry(
    append: Append,
    *batch: Buffer,
    topic: bytes,
    position: int,
    durable_position: int,
    base_offset: int,
    store_time_ms: int,
) -> list[Buffer]:
    """The buffers of one entry, to be written end to end. `batch` is `append.batch` with its base offset set, in one
    piece or in several."""
    extension = encode_extension(append)
    length = HEADER_BYTES + len(topic) + len(extension) + sum(map(len, batch))
    header = bytearray(HEADER_BYTES)
    _HEADER.pack_into(
        header, 0,
        length, 0, VERSION, _JSON_VALUES if append.json_values else 0, len(topic), len(extension),
        position, durable_position, base_offset, store_time_ms,
        append.queue.topic_id, append.queue.queue_id, append.record_count,
    )  # fmt: skip
    header += topic
    header += extension
    crc = crc32c(memoryview(header)[_CRC_FROM:])
    for piece in batch:
        crc = crc32c(piece, crc)
    _CRC.pack_into(header, _CRC_AT, crc)
    buffers: list[Buffer] = [header, *batch]
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
    identity: Identity | None = None
    light: LightNames | None = None
    if extension_bytes:
        extension = view[extension_from : extension_from + extension_bytes]
        tag_hashes, delays, sources, identity, light = decode_extension(extension, record_count)
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
        identity,
        light=light,
    )


def decode_headers(view: memoryview, at: int, position: int) -> list[Header]:
    """The headers of as many entries from `view[at:]` on as are whole, valid and without an extension; `view[at]` was
    read from log position `position`. What stops it, if anything, is for `decode_entry` to say."""
    headers: list[Header] = []
    add, make = headers.append, tuple.__new__  # recovery is this loop: a step of it is a second for some GiB
    queues: dict[int, QueueKey] = {}
    unpack_date = _DATE.unpack_from
    view_end = len(view)
    last = view_end - HEADER_BYTES
    skew = position - at
    while at <= last:
        (
            length, crc, kind, extension_bytes, own_position, _, base_offset, store_time_ms, word, record_count,
        ) = _SCANNED.unpack_from(view, at)  # fmt: skip
        end = at + length
        if (
            own_position != at + skew
            or extension_bytes
            or kind & _KIND_MASK != _PLAIN_KIND
            or not HEADER_BYTES + (kind & _TOPIC_BYTES_MASK) < length <= ENTRY_BYTES_MAX
            or end > view_end
            or crc32c(view[at + _CRC_FROM : end]) != crc
        ):
            break
        queue = queues.get(word)
        if queue is None:
            queue = queues[word] = QueueKey(word >> 32, word & 0xFFFFFFFF)
        size = (length + ALIGNMENT - 1) & -ALIGNMENT
        batch = at + HEADER_BYTES + (kind & _TOPIC_BYTES_MASK)
        dated_ms = unpack_date(view, batch + MAX_TIMESTAMP_AT)[0] if end - batch >= BATCH_HEADER_BYTES else -1
        add(make(Header, (own_position, size, queue, base_offset, record_count, store_time_ms, dated_ms)))
        at += size
    return headers


def _extension_bytes(append: Append) -> int:
    if not (append.tag_hashes or append.delays or append.sources or append.identity or append.light):
        return 0
    size = 0 if append.light is None else _BLOCK.size + len(append.light.block)
    for items, item in ((append.tag_hashes, _TAG_HASH), (append.delays, _DELAY), (append.sources, _SOURCE)):
        if items:
            size += _BLOCK.size + len(items) * item.size
    return size if append.identity is None else size + _identity_bytes(append.identity)


def _identity_bytes(identity: Identity) -> int:
    size = 0
    if identity.message_ids:
        size += _BLOCK.size + len(identity.message_ids) * ID_BYTES
    if identity.request is not None:
        request_indexes = identity.request.request_indexes
        size += (
            2 * _BLOCK.size
            + _REQUEST_ITEM.size
            + _REQUEST_INDEX.size * (1 if _is_run(request_indexes) else len(request_indexes))
        )
    if identity.producer is not None:
        size += _BLOCK.size + _PRODUCER_ITEM.size
    return size


def _is_run(request_indexes: Sequence[int]) -> bool:
    """True when the indexes follow each other one by one. They ascend."""
    return request_indexes[-1] - request_indexes[0] == len(request_indexes) - 1


def pack_rows(append: Append) -> Append:
    """The same append, its delays and sources packed: what may stay in memory (store/log/packed.py says why)."""
    if not (append.delays or append.sources):
        return append
    return replace(
        append,
        delays=_packed(append.delays, _DELAY, _MAKE_DELAY) if append.delays else (),
        sources=_packed(append.sources, _SOURCE, _MAKE_SOURCE) if append.sources else (),
    )


def packed_delays(rows: Sequence[Delay]) -> Packed[Delay]:
    """The same delays, packed."""
    return _packed(rows, _DELAY, _MAKE_DELAY)


def packed_sources(block: bytes) -> Packed[Source]:
    """Sources from their rows: position i64 and record index u32 each, big-endian."""
    return Packed(block, _SOURCE, _MAKE_SOURCE)


def _packed(rows: Sequence[_Row], layout: struct.Struct, make: Callable[[Iterable[int]], _Row]) -> Packed[_Row]:
    if isinstance(rows, Packed):
        return rows
    return Packed(b"".join([layout.pack(*row) for row in rows]), layout, make)


def encode_extension(append: Append) -> bytes:
    """The extension of an append's entry; empty when it has none."""
    if not (append.tag_hashes or append.delays or append.sources or append.identity or append.light):
        return b""
    parts = []
    if append.tag_hashes:
        hashes = append.tag_hashes
        parts += [_BLOCK.pack(_TAG_HASHES, len(hashes)), struct.pack(f">{len(hashes)}q", *hashes)]
    if append.delays:
        parts += [_BLOCK.pack(_DELAYS, len(append.delays)), _packed(append.delays, _DELAY, _MAKE_DELAY).block]
    if append.sources:
        parts += [_BLOCK.pack(_SOURCES, len(append.sources)), _packed(append.sources, _SOURCE, _MAKE_SOURCE).block]
    if append.identity is not None:
        parts += _encode_identity(append.identity)
    if append.light is not None:
        parts += [_BLOCK.pack(_LIGHT, len(append.light.block)), append.light.block]
    return b"".join(parts)


def encode_identity(identity: Identity) -> bytes:
    """The blocks of an identity as in an extension, for `decode_identity`."""
    return b"".join(_encode_identity(identity))


def decode_identity(blocks: bytes, record_count: int) -> Identity | None:
    """What `encode_identity` gave, of a batch of so many records; None for no blocks. Raises struct.error, KeyError for
    other bytes."""
    return decode_extension(memoryview(blocks), record_count)[3]


def _encode_identity(identity: Identity) -> list[bytes]:
    parts = []
    if identity.message_ids:
        parts += [_BLOCK.pack(_MESSAGE_IDS, len(identity.message_ids)), *identity.message_ids]
    if (request := identity.request) is not None:
        request_indexes = request.request_indexes[:1] if _is_run(request.request_indexes) else request.request_indexes
        parts += [_BLOCK.pack(_REQUEST, 1), _REQUEST_ITEM.pack(request.request_id, request.fingerprint)]
        parts += [
            _BLOCK.pack(_REQUEST_INDEXES, len(request_indexes)),
            struct.pack(f">{len(request_indexes)}I", *request_indexes),
        ]
    if identity.producer is not None:
        parts += [_BLOCK.pack(_PRODUCER, 1), _PRODUCER_ITEM.pack(*identity.producer)]
    return parts


def decode_extension(
    view: memoryview, record_count: int
) -> tuple[Sequence[int], Sequence[Delay], Sequence[Source], Identity | None, LightNames | None]:
    """Blocks were written by us and are covered by the CRC, so they are trusted to be whole."""
    tag_hashes: Sequence[int] = ()
    delays: Sequence[Delay] = ()
    sources: Sequence[Source] = ()
    own: dict[int, memoryview] = {}  # the blocks that make up the identity
    light: LightNames | None = None
    at = 0
    while at < len(view):
        kind, count = _BLOCK.unpack_from(view, at)
        at += _BLOCK.size
        item = _ITEM[kind]
        block = view[at : at + count * item.size]
        at += count * item.size
        if kind == _LIGHT:
            light = LightNames(block)
            continue
        if kind >= _MESSAGE_IDS:
            own[kind] = block
            continue
        if kind == _TAG_HASHES:
            tag_hashes = [value for (value,) in item.iter_unpack(block)]
        elif kind == _DELAYS:
            delays = Packed(block, _DELAY, _MAKE_DELAY)
        else:
            sources = Packed(block, _SOURCE, _MAKE_SOURCE)
    return tag_hashes, delays, sources, _decode_identity(own, record_count) if own else None, light


def _decode_identity(own: dict[int, memoryview], record_count: int) -> Identity:
    message_ids: Sequence[bytes] = ()
    request: RequestPart | None = None
    producer: ProducerSequence | None = None
    if _MESSAGE_IDS in own:
        message_ids = [message_id for (message_id,) in _MESSAGE_ID.iter_unpack(own[_MESSAGE_IDS])]
    if _REQUEST in own:
        request_indexes: Sequence[int] = [
            request_index for (request_index,) in _REQUEST_INDEX.iter_unpack(own[_REQUEST_INDEXES])
        ]
        if len(request_indexes) != record_count:
            request_indexes = range(request_indexes[0], request_indexes[0] + record_count)
        request_id, fingerprint = _REQUEST_ITEM.unpack(own[_REQUEST])
        request = RequestPart(request_id, fingerprint, request_indexes)
    if _PRODUCER in own:
        producer = ProducerSequence(*_PRODUCER_ITEM.unpack(own[_PRODUCER]))
    return Identity(message_ids=message_ids, request=request, producer=producer)

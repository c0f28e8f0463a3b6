"""Kafka's wire protocol, as much as replaying one batch and fetching raw bytes needs: Produce v3 and Fetch v4, and
Produce v9 as Kafka's Java client sends it. Pure.

Format (Apache Kafka protocol guide), big-endian. The first two are the oldest that brokers of 4.x accept; v9 is the
newest that mq serves, with compact lengths. Their records are RecordBatch v2.

    request   i32 length | i16 api key | i16 version | i32 correlation | string client id | body
    answer    i32 length | i32 correlation | body

    string    i16 length, bytes; length -1: none
    array     i32 count, elements
"""

from __future__ import annotations

import struct

from loadtest.peers.peer import WorkFailed
from loadtest.peers.replay import Fetched
from store.types import Buffer

_PRODUCE, _PRODUCE_VERSION, _PRODUCE_COMPACT_VERSION = 0, 3, 9
_FETCH, _FETCH_VERSION = 1, 4
_CLIENT_ID = b"scoreboard"
_TIMEOUT_MS = 30_000
_ALL_REPLICAS = -1
_CONSUMER = -1
_WAIT_MS, _BYTES_MIN = 500, 1
_READ_UNCOMMITTED = 0
_PARTITION = 0

_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_REQUEST = struct.Struct(">hhi")  # api key, version, correlation
_ANSWER = struct.Struct(">ii")  # length, correlation
_PRODUCE_BODY = struct.Struct(">hhi")  # no transactional id (-1), acks, timeout
_PRODUCED = struct.Struct(">ihqq")  # partition, error, base offset, log append time
_FETCH_BODY = struct.Struct(">iiiib")  # replica, wait, least and most bytes, isolation level
_FETCH_PARTITION = struct.Struct(">iqi")  # partition, offset, most bytes
_FETCHED = struct.Struct(">ihqqi")  # partition, error, high watermark, last stable offset, aborted transactions
_ABORTED_BYTES = 16
_BATCH = struct.Struct(">qi")  # base offset; length of what follows
_LAST_OFFSET_DELTA_AT = 23


def produce(topic: str, batch: Buffer) -> bytes:
    """A request to append one batch to partition 0, answered when all replicas have it."""
    body = _PRODUCE_BODY.pack(-1, _ALL_REPLICAS, _TIMEOUT_MS)
    body += _INT.pack(1) + _string(topic) + _INT.pack(1) + _INT.pack(_PARTITION) + _INT.pack(len(batch))
    return _request(_PRODUCE, _PRODUCE_VERSION, body + bytes(batch))


def produced_bytes(buffer: Buffer) -> int:
    """How many bytes of the buffer are the whole answer to one `produce`; 0 when it is not whole.

    Raises WorkFailed when it says that the batch was not appended.
    """
    size = _answer_bytes(buffer)
    if size:
        at = _ANSWER.size + _INT.size
        (name_size,) = _SHORT.unpack_from(buffer, at)
        _, error, _, _ = _PRODUCED.unpack_from(buffer, at + _SHORT.size + name_size + _INT.size)
        if error:
            raise WorkFailed(f"Produce answered error code {error}")
    return size


def produce_compactly(topic: str, batch: Buffer) -> bytes:
    """As `produce`, in the newest version."""
    body = b"\0\0" + _PRODUCE_BODY.pack(-1, _ALL_REPLICAS, _TIMEOUT_MS)[_SHORT.size :]  # no tags, no transactional id
    body += _varint(2) + _varint(len(topic) + 1) + topic.encode() + _varint(2) + _INT.pack(_PARTITION)
    return _request(_PRODUCE, _PRODUCE_COMPACT_VERSION, body + _varint(len(batch) + 1) + bytes(batch) + bytes(3))


def produced_compactly(buffer: Buffer) -> int:
    """As `produced_bytes`, of what answers `produce_compactly`; the topic's name is short."""
    size = _answer_bytes(buffer)
    if size:
        at = _ANSWER.size + 2  # no tags, count of topics
        _, error, _, _ = _PRODUCED.unpack_from(buffer, at + buffer[at] + 1)
        if error:
            raise WorkFailed(f"Produce answered error code {error}")
    return size


def fetch(topic: str, offset: int, bytes_max: int) -> bytes:
    """A request for up to that many bytes of partition 0."""
    body = _FETCH_BODY.pack(_CONSUMER, _WAIT_MS, _BYTES_MIN, bytes_max, _READ_UNCOMMITTED)
    body += _INT.pack(1) + _string(topic) + _INT.pack(1) + _FETCH_PARTITION.pack(_PARTITION, offset, bytes_max)
    return _request(_FETCH, _FETCH_VERSION, body)


def fetched(buffer: Buffer) -> Fetched | None:
    """What answers one `fetch`, None when it is not whole. A batch that the size limit has cut short does not count.

    Only headers of batches are read. Raises WorkFailed when the answer is an error, or holds no whole batch.
    """
    size = _answer_bytes(buffer)
    if not size:
        return None
    at = _ANSWER.size + 2 * _INT.size  # throttle time, count of topics
    (name_size,) = _SHORT.unpack_from(buffer, at)
    at += _SHORT.size + name_size + _INT.size
    _, error, _, _, aborted_count = _FETCHED.unpack_from(buffer, at)
    if error:
        raise WorkFailed(f"Fetch answered error code {error}")
    at += _FETCHED.size + max(aborted_count, 0) * _ABORTED_BYTES + _INT.size
    next_offset = -1
    while at + _BATCH.size <= size:
        base_offset, length = _BATCH.unpack_from(buffer, at)
        end = at + _BATCH.size + length
        if end > size:
            break
        next_offset = base_offset + _INT.unpack_from(buffer, at + _LAST_OFFSET_DELTA_AT)[0] + 1
        at = end
    if next_offset < 0:
        raise WorkFailed("Fetch brought no whole batch")
    return Fetched(size, next_offset)


def _answer_bytes(buffer: Buffer) -> int:
    """The size of the answer at the start of the buffer; 0 when it is not whole."""
    if len(buffer) < _INT.size:
        return 0
    size: int = _INT.unpack_from(buffer)[0] + _INT.size
    return size if len(buffer) >= size else 0


def _request(key: int, version: int, body: bytes) -> bytes:
    content = _REQUEST.pack(key, version, 0) + _SHORT.pack(len(_CLIENT_ID)) + _CLIENT_ID + body
    return _INT.pack(len(content)) + content


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded

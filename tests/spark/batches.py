"""RecordBatches v2 as a Kafka client would send them, made by aiokafka's encoder: the reference for our decoder."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import zstandard
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

HEADER_BYTES = 61
CODECS = {"none": 0, "gzip": 1, "lz4": 3, "zstd": 4}


class Message(NamedTuple):
    """One record before it is encoded."""

    key: bytes | None = None
    value: bytes | None = b""
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


def batch(
    messages: Sequence[Message], base_offset: int = 0, *, codec: str = "none", log_append_time_ms: int | None = None
) -> bytes:
    """One batch of these messages, with a CRC that fits."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for delta, message in enumerate(messages):
        assert builder.append(delta, message.timestamp_ms, message.key, message.value, list(message.headers))
    plain = bytearray(builder.build())
    records = bytes(plain[HEADER_BYTES:])
    packed = plain[:HEADER_BYTES] + _compress(records, codec)
    attributes = CODECS[codec]
    if log_append_time_ms is not None:
        attributes |= 0x08
        struct.pack_into(">q", packed, 35, log_append_time_ms)
    struct.pack_into(">qi", packed, 0, base_offset, len(packed) - 12)
    struct.pack_into(">h", packed, 21, attributes)
    struct.pack_into(">I", packed, 17, crc32c(bytes(packed[21:])))
    return bytes(packed)


def _compress(records: bytes, codec: str) -> bytes:
    match codec:
        case "gzip":
            return gzip.compress(records)
        case "zstd":
            return zstandard.compress(records)
        case "lz4":
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, "lz4") as stream:
                stream.write(records)
            packed: bytes = sink.getvalue().to_pybytes()
            return packed
        case _:
            return records

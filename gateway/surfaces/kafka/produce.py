"""Produce requests and their responses, by hand: batches are views of the request, which pass to the store unopened
but for its own checks. Pure.

    request    transactional id · i16 acks · i32 timeout · topics: (name · partitions: (i32 index · records))
    response   topics: (name · partitions: (i32 index · i16 error · i64 base offset · i64 log append time ·
               i64 log start offset (from 5) · record errors, message (from 8))) · i32 throttle time

From version 9 on lengths are compact and tagged fields follow each struct.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from gateway.surfaces.kafka.by_hand import count, length, text, write_count, write_text
from gateway.surfaces.kafka.schema import Malformed, Reader

FLEXIBLE = 9
_LOG_START_FROM, _MESSAGE_FROM = 5, 8

_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")
_ANSWER, _ANSWER_WITH_START = struct.Struct(">ihqq"), struct.Struct(">ihqqq")
_UNKNOWN = -1


class PartitionRecords(NamedTuple):
    """What is to be appended to one partition; `records` None: nothing was given."""

    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    """A request to append; `topics` in the order of the request."""

    is_transactional: bool
    acks: int
    topics: Sequence[tuple[str, Sequence[PartitionRecords]]]


class Produced(NamedTuple):
    """What became of one partition's records."""

    partition: int
    error_code: int
    base_offset: int
    log_start_offset: int
    message: str | None


class TooMany(Exception):
    """A request names more partitions than its reader wants to look at."""


def read_produce(frame: memoryview, at: int, version: int, partitions_max: int | None = None) -> ProduceRequest:
    """The request whose message begins at `at`. Raises Malformed, and TooMany beyond `partitions_max`."""
    flexible = version >= FLEXIBLE
    reader = Reader(frame, at)
    id_length = length(reader, _I16, flexible)
    if id_length >= 0:
        reader.take(id_length)
    acks = reader.unpack(_I16)
    reader.unpack(_I32)
    topics = []
    for _ in range(count(reader, flexible)):
        name = text(reader, flexible)
        partitions = []
        partition_count = count(reader, flexible)
        if partitions_max is not None:
            partitions_max -= 1 + partition_count
            if partitions_max < 0:
                raise TooMany
        for _ in range(partition_count):
            partition = reader.unpack(_I32)
            size = length(reader, _I32, flexible)
            if size > reader.end - reader.at:
                raise Malformed(f"{size} bytes of records at byte {reader.at} of {reader.end}")
            records = frame[reader.at : reader.at + size] if size >= 0 else None
            reader.at += max(0, size)
            if flexible:
                reader.skip_tags()
            partitions.append(PartitionRecords(partition, records))
        if flexible:
            reader.skip_tags()
        topics.append((name, partitions))
    return ProduceRequest(id_length >= 0, acks, topics)


def write_produced(topics: Sequence[tuple[str, Sequence[Produced]]], version: int) -> bytearray:
    """The response's message."""
    flexible = version >= FLEXIBLE
    out = bytearray()
    write_count(out, len(topics), flexible)
    for name, partitions in topics:
        write_text(out, name, flexible)
        write_count(out, len(partitions), flexible)
        for partition, error_code, base_offset, log_start_offset, message in partitions:
            if version < _LOG_START_FROM:
                out += _ANSWER.pack(partition, error_code, base_offset, _UNKNOWN)
            else:
                out += _ANSWER_WITH_START.pack(partition, error_code, base_offset, _UNKNOWN, log_start_offset)
            if version >= _MESSAGE_FROM:
                write_count(out, 0, flexible)  # records that were refused
                write_text(out, message, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    out += _I32.pack(0)
    if flexible:
        out.append(0)
    return out

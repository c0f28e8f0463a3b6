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
from store.limits import KiB

FLEXIBLE = 9
_LOG_START_FROM, _MESSAGE_FROM = 5, 8

_I16, _I32 = struct.Struct(">h"), struct.Struct(">i")
_ANSWER, _ANSWER_WITH_START = struct.Struct(">ihqq"), struct.Struct(">ihqqq")
_UNKNOWN = -1
_END_BYTES = _I32.size
_NO_MESSAGE = (struct.pack(">ih", 0, -1), b"\1\0\0")
"""No records that were refused, no message; compactly, and without tags."""

HEAD_BYTES_MAX = 1 * KiB
"""Of what a connection keeps of its last request. Names of topics have 249 bytes at most; what is longer is read each
time."""


class PartitionRecords(NamedTuple):
    """What is to be appended to one partition; `records` None: nothing was given."""

    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    """A request to append; `topics` in the order of the request. `records_at`: the byte at which the length of the last
    partition's records is."""

    is_transactional: bool
    acks: int
    topics: Sequence[tuple[str, Sequence[PartitionRecords]]]
    records_at: int = 0


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
    records_at = at
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
            records_at = reader.at
            partitions.append(PartitionRecords(partition, _records(frame, reader, flexible)))
        if flexible:
            reader.skip_tags()
        topics.append((name, partitions))
    return ProduceRequest(id_length >= 0, acks, topics, records_at)


class ProduceReader:
    """Reads the requests of one connection. Most are for one partition, and begin with the same bytes as the one
    before, up to the length of their records: those are compared, not read again."""

    __slots__ = ("_head", "_last", "_version")

    def __init__(self) -> None:
        self._version = -1
        self._head = b""  # of the message of a request in this version, up to the length of its records
        self._last = ProduceRequest(False, 0, ())  # what it says

    def read(self, frame: memoryview, at: int, version: int, partitions_max: int) -> ProduceRequest:
        """As `read_produce`."""
        records_at = at + len(self._head)
        if version == self._version and frame[at:records_at] == self._head:
            flexible = version >= FLEXIBLE
            reader = Reader(frame, records_at)
            records = _records(frame, reader, flexible)
            if flexible:
                reader.skip_tags()
            is_transactional, acks, ((topic, ((partition, _),)),), _ = self._last
            topics = [(topic, [PartitionRecords(partition, records)])]
            return ProduceRequest(is_transactional, acks, topics, records_at)
        request = read_produce(frame, at, version, partitions_max)
        if [len(partitions) for _, partitions in request.topics] == [1] and request.records_at - at <= HEAD_BYTES_MAX:
            self._version, self._head = version, bytes(frame[at : request.records_at])
            ((topic, ((partition, _),)),) = request.topics
            self._last = request._replace(topics=[(topic, [PartitionRecords(partition, None)])])
        return request


def _records(frame: memoryview, reader: Reader, flexible: bool) -> memoryview | None:
    """The records of one partition, up to behind its tags."""
    size = length(reader, _I32, flexible)
    at = reader.at
    if size > reader.end - at:
        raise Malformed(f"{size} bytes of records at byte {at} of {reader.end}")
    reader.at = at + max(0, size)
    records = frame[at : reader.at] if size >= 0 else None
    if flexible:
        reader.skip_tags()
    return records


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
            if version < _MESSAGE_FROM:
                continue
            if message is None:
                out += _NO_MESSAGE[flexible]
                continue
            write_count(out, 0, flexible)  # records that were refused
            write_text(out, message, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    out += bytes(_END_BYTES + flexible)  # no throttle time, no tags
    return out

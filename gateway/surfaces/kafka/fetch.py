"""Fetch requests and their responses, by hand: stored batches go out as they are, as buffers of one scattered write.
Pure.

    request    i32 replica · i32 longest wait · i32 least bytes · i32 most bytes · i8 isolation · i32 session, i32 epoch
               (from 7) · topics: (name · partitions: (i32 index · i32 leader epoch (from 9) · i64 offset · i32 last
               epoch (from 12) · i64 log start (from 5) · i32 most bytes)) · forgotten topics (from 7) · rack (from 11)
    response   i32 throttle time · i16 error, i32 session (from 7) · topics: (name · partitions: (i32 index · i16 error
               · i64 high watermark · i64 last stable offset · i64 log start (from 5) · aborted transactions · i32
               preferred replica (from 11) · records))

There are no sessions: every response says session 0, so that the client's next request names all its partitions again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.surfaces.kafka.by_hand import count, text, write_count, write_text
from gateway.surfaces.kafka.schema import Reader
from store.types import Buffer

FLEXIBLE = 12
_LOG_START_FROM, _SESSION_FROM, _LEADER_EPOCH_FROM, _REPLICA_FROM = 5, 7, 9, 11

_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_HEAD = struct.Struct(">iiiib")
_SESSION = struct.Struct(">ii")
_PARTITION = struct.Struct(">ihqq")
_ERROR_AND_SESSION = struct.Struct(">hi")
_UNKNOWN = -1


class PartitionFetch(NamedTuple):
    """What is asked of one partition; `leader_epoch` as far as the client knows it, -1: not at all."""

    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    """A request for records; `topics` in the order of the request."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_epoch: int
    topics: Sequence[tuple[str, Sequence[PartitionFetch]]]


class PartitionBatches(NamedTuple):
    """The answer of one partition. `end` is its high watermark and last stable offset; -1: not known."""

    partition: int
    error_code: int
    end: int
    start: int
    batches: Sequence[Buffer]


def read_fetch(frame: memoryview, at: int, version: int) -> FetchRequest:
    """The request whose message begins at `at`. Raises Malformed."""
    flexible = version >= FLEXIBLE
    reader = Reader(frame, at)
    _, max_wait_ms, min_bytes, max_bytes, _ = _HEAD.unpack(reader.take(_HEAD.size))
    session_epoch = -1
    if version >= _SESSION_FROM:
        _, session_epoch = _SESSION.unpack(reader.take(_SESSION.size))
    topics = []
    for _ in range(count(reader, flexible)):
        name = text(reader, flexible)
        partitions = []
        for _ in range(count(reader, flexible)):
            partition = reader.unpack(_I32)
            leader_epoch = reader.unpack(_I32) if version >= _LEADER_EPOCH_FROM else _UNKNOWN
            offset = reader.unpack(_I64)
            if flexible:
                reader.unpack(_I32)
            if version >= _LOG_START_FROM:
                reader.unpack(_I64)
            partitions.append(PartitionFetch(partition, leader_epoch, offset, reader.unpack(_I32)))
            if flexible:
                reader.skip_tags()
        if flexible:
            reader.skip_tags()
        topics.append((name, partitions))
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, session_epoch, topics)


def write_fetched(
    topics: Sequence[tuple[str, Sequence[PartitionBatches]]], version: int, *, error_code: int = 0
) -> Iterator[Buffer]:
    """The response's message as buffers in order, the batches among them as they are."""
    flexible = version >= FLEXIBLE
    out = bytearray(_I32.pack(0))
    if version >= _SESSION_FROM:
        out += _ERROR_AND_SESSION.pack(error_code, 0)
    write_count(out, len(topics), flexible)
    for name, partitions in topics:
        write_text(out, name, flexible)
        write_count(out, len(partitions), flexible)
        for partition, partition_error, end, start, batches in partitions:
            out += _PARTITION.pack(partition, partition_error, end, end)
            if version >= _LOG_START_FROM:
                out += _I64.pack(start)
            write_count(out, 0, flexible)  # aborted transactions
            if version >= _REPLICA_FROM:
                out += _I32.pack(-1)
            write_count(out, sum(map(len, batches)), flexible)  # of bytes
            if batches:
                yield out
                yield from batches
                out = bytearray()
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    yield out

"""What the nodes agree on about one partition: who may append to it, and where its records are.

One metadata key a partition, JSON:

    {"v": 1, "epoch": 17, "owner": "n2", "state": "normal", "to": null, "verified": 58,
     "segments": [
       {"start": 0, "broker": "n1", "queue": [16, 0], "physical": 0, "end": 101, "epoch": 3, "from_ms": 1, "to_ms": 9},
       {"start": 101, "broker": "k1", "queue": ["orders", 2], "physical": 58, "end": null, "epoch": 17, "from_ms": 9,
        "pid": 4001, "kepoch": 5}]}

    epoch      the fencing number: of the owner's tenure (normal), or of the move that is under way (sealing)
    owner      the node that may append, once its segment is open
    to         the broker that a move is going to; null when there is none
    verified   a physical offset of the open segment that its owner has confirmed: where a search for its end begins
    start      the partition's offset of the segment's first record
    queue      [topic id, queue id] of an embedded broker, [topic, partition] of a Kafka cluster
    physical   the queue's offset of the first record; `end` is the one behind the last, null while the segment is open
    from_ms    when the segment was opened; `to_ms`: when it was sealed
    pid        of a Kafka segment: the producer whose batches are its own, and `kepoch`, its epoch of that producer.
               Anything else in the Kafka partition is none of mq's records: a fence, an older owner, a stranger
    taken      true (written only then): the partition was taken over while the segment's broker was away. `end` is an
               offset that it cannot have reached; its queue ends somewhere before

Invariants
    R1  segments follow each other without a gap: start of the next = start + end - physical
    R2  the last segment is open, every other one has an end
    R3  epochs rise from segment to segment, and none is above the record's
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import orjson

VERSION = 1

NODE_NAME_CHARS_MAX = 32
"""Of the name of a node, which is that of its broker."""

SEGMENTS_MAX = 4096
"""Segments of one partition: the record of so many has 700 kB, within one value of the metadata."""


class PartitionState(StrEnum):
    """Whether a move is under way."""

    NORMAL = "normal"
    SEALING = "sealing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """A stretch of one queue in a partition. See the module."""

    start: int
    broker: str
    queue: tuple[int | str, int]
    physical: int = 0
    end: int | None = None
    epoch: int = 0
    from_ms: int = 0
    to_ms: int | None = None
    taken: bool = False
    pid: int | None = None
    kepoch: int = 0

    @property
    def next_start(self) -> int:
        """The partition's offset behind a sealed segment."""
        if self.end is None:
            raise ValueError("an open segment has no end")
        return self.start + self.end - self.physical


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """One partition. See the module."""

    epoch: int
    owner: str
    segments: tuple[SegmentRecord, ...]
    state: PartitionState = PartitionState.NORMAL
    to: str | None = None
    verified: int = 0

    @property
    def open_segment(self) -> SegmentRecord:
        """Where records are appended, or were until a move began to seal it."""
        return self.segments[-1]


def check(record: PartitionRecord) -> None:
    """Raises ValueError when a record breaks an invariant."""
    *sealed, last = record.segments
    if last.end is not None or any(segment.end is None for segment in sealed):
        raise ValueError("the last segment is open, and no other one (R2)")
    for segment in sealed:
        if segment.end is not None and segment.end < segment.physical:
            raise ValueError("a segment ends before it begins (R1)")
    for before, behind in pairwise(record.segments):
        if before.next_start != behind.start:
            raise ValueError("segments follow each other without a gap (R1)")
        if before.epoch >= behind.epoch:
            raise ValueError("epochs rise from segment to segment (R3)")
    if last.epoch > record.epoch or (record.state is PartitionState.NORMAL and last.epoch != record.epoch):
        raise ValueError("the open segment has the record's epoch, a lower one while it is sealed (R3)")


def encode(record: PartitionRecord) -> bytes:
    """The JSON of a record."""
    segments = []
    for segment in record.segments:
        fields: dict[str, object] = {
            "start": segment.start,
            "broker": segment.broker,
            "queue": list(segment.queue),
            "physical": segment.physical,
            "end": segment.end,
            "epoch": segment.epoch,
            "from_ms": segment.from_ms,
        }
        if segment.to_ms is not None:
            fields["to_ms"] = segment.to_ms
        if segment.taken:
            fields["taken"] = True
        if segment.pid is not None:
            fields |= {"pid": segment.pid, "kepoch": segment.kepoch}
        segments.append(fields)
    return orjson.dumps(
        {
            "v": VERSION,
            "epoch": record.epoch,
            "owner": record.owner,
            "state": record.state,
            "to": record.to,
            "verified": record.verified,
            "segments": segments,
        }
    )


def decode(data: bytes) -> PartitionRecord:
    """The record of its JSON. Raises ValueError: a record that is not understood must not be acted on."""
    try:
        fields: dict[str, Any] = orjson.loads(data)
        version = fields.pop("v")
        if version != VERSION:
            raise ValueError(f"version {version}; this program knows {VERSION}")
        segments = tuple(
            SegmentRecord(**{**segment, "queue": tuple(segment["queue"])}) for segment in fields.pop("segments")
        )
        record = PartitionRecord(segments=segments, state=PartitionState(fields.pop("state")), **fields)
        check(record)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"a partition's record is not understood: {error!r}") from error
    return record

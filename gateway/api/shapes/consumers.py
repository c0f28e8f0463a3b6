"""Consumer instances of the REST Proxy v2: what they subscribe to, commit and seek to. Old clients send fields of
their own with all of these, which are ignored.

The settings of an instance are not here: two dialects write them, as JSON or as texts, and
`gateway/surfaces/rest_v2/instances/settings.py` reads both.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.api.shapes.base import Name, OpenShape, Partition, RecordOffset, Time
from gateway.errors import INVALID

TOPIC_PARTITIONS_MAX = 10_000
"""Partitions of one request."""

_EXAMPLE = {"topic": "orders", "partition": 0}


class OfPartition(OpenShape):
    """A partition by name."""

    topic: Name
    partition: Partition


class AtOffset(OfPartition):
    """A record of it."""

    offset: RecordOffset
    metadata: str | None = None


class AtTimestamp(OfPartition):
    """The first record stored at or after a time."""

    timestamp: Time


class TopicsBody(OpenShape):
    """Topics by name."""

    topics: Annotated[list[str], Meta(min_length=1)]
    topic_pattern: None = None


class PatternBody(OpenShape):
    """Topics by a pattern."""

    topic_pattern: str
    topics: Annotated[list[str], Meta(max_length=0)] | None = None


class PartitionsBody(OpenShape):
    """Partitions to be given, or to be told of."""

    codes = {"partitions": INVALID}
    more = {"examples": [{"partitions": [_EXAMPLE]}]}

    partitions: Annotated[list[OfPartition], Meta(max_length=TOPIC_PARTITIONS_MAX)]


class CommitBody(OpenShape):
    """The last records done; without any, all that was read."""

    codes = {"offsets": INVALID}
    more = {"examples": [{"offsets": [{**_EXAMPLE, "offset": 41}]}]}

    offsets: Annotated[list[AtOffset], Meta(max_length=TOPIC_PARTITIONS_MAX)] | None = None


class PositionsBody(OpenShape):
    """Where to go on."""

    codes = {"offsets": INVALID, "timestamps": INVALID}
    more = {
        "minProperties": 1,
        "examples": [
            {"offsets": [{**_EXAMPLE, "offset": 0}]},
            {"timestamps": [{**_EXAMPLE, "timestamp": "2026-01-31T09:30:00Z"}]},
        ],
    }

    offsets: Annotated[list[AtOffset], Meta(max_length=TOPIC_PARTITIONS_MAX)] | None = None
    timestamps: Annotated[list[AtTimestamp], Meta(max_length=TOPIC_PARTITIONS_MAX)] | None = None

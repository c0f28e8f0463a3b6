"""Queue mode and groups: what is asked for with a receive, how records are settled, where a group is moved."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.api.shapes.base import (
    AtTime,
    Begin,
    Name,
    NextOffset,
    Partition,
    RecordOffset,
    Shape,
    in_bytes,
    one_of,
    up_to,
    whole,
)
from gateway.codec.filters import parse_filter
from gateway.codec.records import parse_light_name
from gateway.errors import DELAY_ILLEGAL, INVALID, invalid
from gateway.groups.machines.config import INVISIBLE_MS_MAX
from gateway.groups.machines.copies import REASON_BYTES_MAX
from gateway.groups.machines.leases import ATTEMPT_ID_BYTES_MAX
from gateway.groups.machines.progress import Start, StartTime
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import (
    RECEIPTS_MAX,
    RECEIVE_BYTES_MAX,
    RECEIVE_MESSAGES_MAX,
    REDRIVE_MAX,
    SETTLE_LETTERS_MAX,
    Receive,
    ResetTo,
    StartSpec,
)
from store.limits import LIGHT_NAME_BYTES_MAX

RECEIVE_DEFAULTS = Receive(topics=())
CONSUMER_BYTES_MAX = 255
_STARTS: dict[str, Start] = {"earliest": Start.FIRST, "latest": Start.LAST}
_AGAIN = "The same again: the records of an answer that was lost."
_EXAMPLE = "r2.AgAAABAA.0"

Receipts = Annotated[list[str], Meta(min_length=1, max_length=RECEIPTS_MAX)]
DelayMs = Annotated[int, up_to("delay_ms_max")]
InvisibleMs = Annotated[int, whole(1, INVISIBLE_MS_MAX)]
Reason = Annotated[str, in_bytes(REASON_BYTES_MAX, f"At most {REASON_BYTES_MAX:,} bytes.")]


def start_of(begin: Begin) -> StartSpec:
    """Where a group begins."""
    return StartTime(begin.ms()) if isinstance(begin, AtTime) else _STARTS[begin]


class ReceiveBody(Shape):
    """Records to be leased."""

    more = {"examples": [{"topics": ["orders"], "start": "earliest", "max_messages": 32, "wait_ms": 20_000}]}

    topics: Annotated[list[Name], Meta(min_length=1, max_length=TOPICS_MAX)]
    queue: Annotated[str, in_bytes(LIGHT_NAME_BYTES_MAX, "Of the topics, this light queue.", least=1)] | None = None
    max_messages: Annotated[int, whole(1, RECEIVE_MESSAGES_MAX, "32 by default.")] | None = None
    max_bytes: Annotated[int, whole(1, RECEIVE_BYTES_MAX, "1 MiB by default.")] | None = None
    wait_ms: Annotated[int, up_to("timeout_ms_max", "For a first record; 0 by default.")] | None = None
    invisible_ms: Annotated[int, whole(1, INVISIBLE_MS_MAX, "Of the lease; else the group's setting.")] | None = None
    filter: str | None = None
    attempt_id: Annotated[str, in_bytes(ATTEMPT_ID_BYTES_MAX, _AGAIN, least=1)] | None = None
    consumer: Annotated[str, in_bytes(CONSUMER_BYTES_MAX, "Who asks; for people who look.", least=1)] | None = None
    start: Annotated[
        Begin | None,
        Meta(description="Only for topics in which the group has never been; earliest by default."),
    ] = None

    def request(self) -> Receive:
        """What the group is asked. Raises RequestError for a filter that is none."""
        tag_filter = parse_filter(self.filter)
        if self.queue is not None:
            parse_light_name(self.queue)
            if tag_filter is not None:
                raise invalid("filter: not with a light queue")
            if isinstance(self.start, AtTime):
                raise invalid('start: a light queue is begun at "earliest" or "latest"')
        default = RECEIVE_DEFAULTS
        return Receive(
            topics=tuple(dict.fromkeys(self.topics)),
            max_messages=default.max_messages if self.max_messages is None else self.max_messages,
            max_bytes=default.max_bytes if self.max_bytes is None else self.max_bytes,
            wait_ms=self.wait_ms or 0,
            invisible_ms=self.invisible_ms,
            tags=None if tag_filter is None else tag_filter.tags,
            attempt_id=self.attempt_id,
            consumer=self.consumer,
            start=Start.FIRST if self.start is None else start_of(self.start),
            queue=self.queue,
        )


class Place(Shape):
    """A record, by where it is."""

    codes = {"partition": INVALID, "offset": INVALID}

    topic: Name
    partition: Partition
    offset: RecordOffset


class AckReceipts(Shape):
    """Done with the records of these receipts."""

    receipts: Receipts


class AckUpTo(Shape):
    """Done with all that is on lease up to a record."""

    codes = {"up_to": INVALID}

    up_to: Place


class NackBody(Shape):
    """Not done: to be delivered again after `delay_ms`, or the group's back-off."""

    codes = {"delay_ms": DELAY_ILLEGAL}
    more = {"examples": [{"receipts": [_EXAMPLE], "delay_ms": 5000, "reason": "db down"}]}

    receipts: Receipts
    delay_ms: DelayMs | None = None
    reason: Reason | None = None


class RejectBody(Shape):
    """Never again."""

    more = {"examples": [{"receipts": [_EXAMPLE], "reason": "no such sku"}]}

    receipts: Receipts
    reason: Reason | None = None


class ExtendBody(Shape):
    """Keep them longer."""

    more = {"examples": [{"receipts": [_EXAMPLE], "invisible_ms": 60_000}]}

    receipts: Receipts
    invisible_ms: InvisibleMs


class RedriveBody(Shape):
    """Dead letters to hand out again."""

    max_messages: Annotated[int, whole(1, REDRIVE_MAX, f"{REDRIVE_MAX:,} by default.")] | None = None


class SettleLettersBody(Shape):
    """Dead letters to send back, or to have gone, by their offsets."""

    more = {"examples": [{"action": "redrive", "offsets": [4, 7]}]}

    action: Annotated[Literal["redrive", "purge"], one_of("redrive", "purge")]
    offsets: Annotated[list[RecordOffset], Meta(min_length=1, max_length=SETTLE_LETTERS_MAX)]


class ResetBody(Shape):
    """Where a group is moved."""

    codes = {"to": INVALID, "partitions": INVALID}
    more = {"examples": [{"topic": "orders", "to": {"timestamp": "2026-01-31T09:30:00Z"}, "dry_run": True}]}

    topic: Name
    to: Literal["earliest", "latest"] | NextOffset | AtTime
    partitions: Annotated[list[Partition], Meta(min_length=1)] | None = None
    dry_run: Annotated[bool, Meta(description="Tell, and change nothing.")] = False
    force: Annotated[bool, Meta(description="Put the members aside; they begin anew.")] = False

    def target(self) -> ResetTo:
        """Where to."""
        return self.to if isinstance(self.to, int) else start_of(self.to)

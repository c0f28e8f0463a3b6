"""The records of system topic `__offsets`: everything that ever happens to a consumer group, one JSON object an event.

    {"event": "member_joined", "group": "billing", "member_id": "m1", "topics": ["orders"], "pattern": null, …}
    {"event": "rebalanced", "group": "billing", "generation": 7, "shares": [["m1", [["orders", [[16, 0]]]]]], …}
    {"event": "partitions_assigned", "group": "billing", "generation": 7, "member_id": "m1", "partitions": …}
    {"event": "offsets_committed", "group": "billing", "offsets": [[16, 0, 1042, "", 1767225600000]]}
    {"event": "leased", "group": "billing", "topic_id": 16, "partition": 0, "offsets": [100, 101], …}

Partitions are written by topic: [[topic, [[topic id, partition], …]], …]. Bytes are written as base64.
The fields of an event are those of its class here. Each kind of event belongs to one machine: membership, progress,
leases, or the table of groups; replaying all of them in order rebuilds it. A member of a broadcasting group is a group
of its own, `group/member` (see `broadcast`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import Visible


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A member is in, or one that was in has changed what it wants. `since_generation` tells its process from former
    ones under the same id."""

    group: str
    member_id: str
    topics: tuple[str, ...]
    pattern: str | None
    session_timeout_ms: int
    since_generation: int
    metadata: bytes = b""
    visible: Visible | None = None
    plans: bool = False
    """See `Member.plans`."""

    room: str = ""


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member is out; all it owned is free at once."""

    group: str
    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class AssignmentAsked:
    """A generation begins in which `leader` is to compute the assignment; until then no member is given anything."""

    group: str
    generation: int
    leader: str


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """Who shall own what in a generation. Owning begins with PartitionsAssigned, when the former owner is done.

    `notes` are bytes for single members, from the leader that computed the assignment.
    """

    group: str
    generation: int
    shares: Mapping[str, tuple[Partition, ...]]
    notes: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionsAssigned:
    """A member owns partitions from now on; `generation` is its fencing number for them."""

    group: str
    generation: int
    member_id: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class PartitionsReleased:
    """A member has drained and committed partitions, and owns them no longer."""

    group: str
    member_id: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Configured:
    """A group has these settings; those that are not named have their defaults."""

    group: str
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DocumentPut:
    """A small document that is kept with the group is this now; without content it is gone."""

    group: str
    key: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Barrier:
    """Nothing has happened; when this is durable, everything before it is. Belongs to no group."""

    group: str = ""


class CommittedOffset(NamedTuple):
    """How far a group is in one partition: the next offset to consume, and when that was said (epoch ms). Offset -1:
    nothing is committed any more."""

    topic_id: int
    partition: int
    offset: int
    metadata: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """A group is done with everything before these offsets, or was reset to them."""

    group: str
    offsets: tuple[CommittedOffset, ...]


class LightPosition(NamedTuple):
    """How far a group is in one light queue: the next offset to read; -1: nothing is known any more."""

    partition: int
    group: str
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class LightCommitted:
    """Groups have read light queues of a topic up to here: see `light_offsets`. `group`: if it is of one alone."""

    topic_id: int
    positions: tuple[LightPosition, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class LightForgotten:
    """What groups have read of the light queues of a topic does not matter any more: it is gone. Belongs to no
    group."""

    topic_id: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Offsets and leases a group has of these topics are gone: the topics are. Without topics: the group is deleted."""

    group: str
    topic_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Leased:
    """Records of one partition are leased until `until_ms` (epoch ms), each for one attempt more than before.

    First, the records up to `fetched_to` come under the group's care: those in `fresh` are open, all others were
    filtered out and are done. `message_groups` has one name a fresh record, or is empty; `attempts` likewise has the
    deliveries each had before, as a copy of another record.
    """

    group: str
    topic_id: int
    partition: int
    fetched_to: int
    fresh: tuple[int, ...]
    message_groups: tuple[str | None, ...]
    offsets: tuple[int, ...]
    until_ms: int
    attempt_id: str | None = None
    attempts: tuple[int, ...] = ()
    name: str = ""
    """Of the light queue, in whose offsets all is, here and in the events of leases below; empty: of the partition."""


@dataclass(frozen=True, slots=True)
class LeaseMoved:
    """Leases end at another time (extended), or records wait until then to be delivered again (given back).

    `uncounted`: they never reached the consumer, and the attempt does not count.
    """

    group: str
    topic_id: int
    partition: int
    offsets: tuple[int, ...]
    visible_at_ms: int
    leased: bool
    uncounted: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Records that shall not be tried again; they stay open until their copy in the dead-letter topic is durable."""

    group: str
    topic_id: int
    partition: int
    offsets: tuple[int, ...]
    reason: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """The group is done with these records: acked, or their copy in the dead-letter topic or the timer is durable."""

    group: str
    topic_id: int
    partition: int
    offsets: tuple[int, ...]
    name: str = ""


class OpenRecord(NamedTuple):
    """One record under a group's care that is not settled; see `leases`."""

    offset: int
    attempt: int
    visible_at_ms: int
    leased: bool
    message_group: str | None
    attempt_id: str | None
    rejected: str | None


@dataclass(frozen=True, slots=True)
class LeasesBegun:
    """A group consumes partitions `first` to before `end` of a topic in queue mode, each from its next offset on (those
    that are left out: from 0). From 0 on: whatever it had there is gone, and receipts of another epoch are void."""

    group: str
    topic_id: int
    epoch: int
    first: int
    end: int
    next_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LightBegun:
    """A group leases records of light queues of a topic from here on; receipts of another epoch are void."""

    group: str
    topic_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class LeasesSet:
    """The whole state of one partition's leases: a snapshot, or a reset to `next_offset` that voids older receipts."""

    group: str
    topic_id: int
    partition: int
    epoch: int
    next_offset: int
    open_records: tuple[OpenRecord, ...]
    name: str = ""


MembershipEvent = MemberJoined | MemberLeft | AssignmentAsked | Rebalanced | PartitionsAssigned | PartitionsReleased
ProgressEvent = OffsetsCommitted | Forgotten
LightEvent = LightCommitted | LightForgotten
LeaseEvent = Leased | LeaseMoved | Rejected | Settled | LeasesSet
"""Of one partition, or one light queue of it."""

QueueEvent = LeaseEvent | LeasesBegun | LightBegun
GroupEvent = Configured | DocumentPut | Barrier
Event = MembershipEvent | ProgressEvent | LightEvent | QueueEvent | GroupEvent

_KINDS: dict[str, type[Event]] = {
    "member_joined": MemberJoined,
    "member_left": MemberLeft,
    "assignment_asked": AssignmentAsked,
    "rebalanced": Rebalanced,
    "partitions_assigned": PartitionsAssigned,
    "partitions_released": PartitionsReleased,
    "offsets_committed": OffsetsCommitted,
    "forgotten": Forgotten,
    "light_committed": LightCommitted,
    "light_forgotten": LightForgotten,
    "leased": Leased,
    "lease_moved": LeaseMoved,
    "rejected": Rejected,
    "settled": Settled,
    "leases_set": LeasesSet,
    "leases_begun": LeasesBegun,
    "light_begun": LightBegun,
    "configured": Configured,
    "document_put": DocumentPut,
    "barrier": Barrier,
}

_LEFT_OUT = ("plans", "name", "room")
"""Fields that are not written where they say nothing, so that servers from before them read what they know."""


def encode_event(event: Event) -> bytes:
    """The JSON record of one event."""
    kind, names, values_of, writers, left_out = _FORMS[type(event)]
    written: dict[str, Any] = {"event": kind}
    written.update(zip(names, values_of(event), strict=True))
    for name, write in writers:
        written[name] = write(written[name])
    for name in left_out:
        if not written[name]:
            del written[name]
    return orjson.dumps(written)


def decode_events(values: Iterable[bytes | None]) -> list[Event]:
    """The events of the records of one entry. Raises ValueError: an unknown event must not be skipped."""
    events: list[Event] = []
    for value in values:
        try:
            read = orjson.loads(value or b"")
            kind = _KINDS[read.pop("event")]
            events.append(kind(**{name: _decoded(name, item) for name, item in read.items()}))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"a record of a consumer group is not understood ({error!r}); was it written by a newer version?"
            raise ValueError(reason) from error
    return events


def _decoded(name: str, value: Any) -> Any:
    if name in _CODECS:
        return _CODECS[name][1](value)
    return tuple(value) if isinstance(value, list) else value


def _from_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _to_bytes(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


def _from_partitions(partitions: Iterable[Partition]) -> list[tuple[str, list[tuple[int, int]]]]:
    topics: dict[str, list[tuple[int, int]]] = {}
    for topic, topic_id, partition in partitions:
        topics.setdefault(topic, []).append((topic_id, partition))
    return list(topics.items())


def _to_partitions(value: Iterable[Any]) -> tuple[Partition, ...]:
    return tuple(Partition(topic, topic_id, number) for topic, inside in value for topic_id, number in inside)


def _from_shares(shares: Mapping[str, tuple[Partition, ...]]) -> list[Any]:
    return [(member, _from_partitions(partitions)) for member, partitions in shares.items()]


def _to_shares(value: Iterable[Any]) -> dict[str, tuple[Partition, ...]]:
    return {member: _to_partitions(partitions) for member, partitions in value}


# The fields that JSON has no form for, by name: how they are written, how they are read.
_CODECS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "metadata": (_from_bytes, _to_bytes),
    "content": (
        lambda content: None if content is None else _from_bytes(content),
        lambda content: None if content is None else _to_bytes(content),
    ),
    "notes": (
        lambda notes: {member: _from_bytes(note) for member, note in notes.items()},
        lambda notes: {member: _to_bytes(note) for member, note in notes.items()},
    ),
    "visible": (
        lambda visible: visible,
        lambda visible: None if visible is None else tuple(map(tuple, visible)),
    ),
    "partitions": (_from_partitions, _to_partitions),
    "shares": (_from_shares, _to_shares),
    "positions": (
        lambda positions: [tuple(position) for position in positions],
        lambda positions: tuple(LightPosition(*position) for position in positions),
    ),
    "open_records": (
        lambda records: [tuple(record) for record in records],
        lambda records: tuple(OpenRecord(*record) for record in records),
    ),
    "offsets": (
        lambda offsets: [tuple(item) for item in offsets] if offsets and isinstance(offsets[0], tuple) else offsets,
        lambda offsets: tuple(CommittedOffset(*item) if isinstance(item, list) else item for item in offsets),
    ),
}


class _Form(NamedTuple):
    """How a kind of events is written: its name, its fields and what takes all of their values, those that JSON has no
    form for, and those that may be left out."""

    event: str
    names: Sequence[str]
    values_of: Callable[[Event], Any]
    writers: Sequence[tuple[str, Callable[[Any], Any]]]
    left_out: Sequence[str]


def _form_of(event: str, kind: type[Event]) -> _Form:
    names = [item.name for item in fields(kind)]
    take = attrgetter(*names)
    values_of = take if len(names) > 1 else lambda event: (take(event),)
    writers = [(name, _CODECS[name][0]) for name in names if name in _CODECS]
    return _Form(event, names, values_of, writers, [name for name in names if name in _LEFT_OUT])


_FORMS = {kind: _form_of(event, kind) for event, kind in _KINDS.items()}

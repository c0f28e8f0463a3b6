"""How far each group is: committed offsets, where to start, lag, reset.

A committed offset is the next one to consume: everything before it is done. Topics are known by id, so a topic that was
deleted and created again begins anew.

A lookup has three answers, and they are different things: `Found`, `Absent` (the group never committed here), and
`Unavailable` (nobody can say now: not all events are read yet). `Unavailable` never moves an offset. Where consuming
begins:

    stored                 first                last                 a time
    found                  the stored offset, whatever the group asks for; min when retention has passed it
    absent                 min                  max                  first stored at or after it; max if none
    absent, retry topic    min                  min                  max
    unavailable            wait and ask again

A stored offset may be past the end, because somebody committed it there: consuming waits for the record that gets it,
and what comes before that one is not the group's.

Where a group begins is stored at once, for all partitions of the topic, and then found (`coordinator/start_positions`).
The original begins a retry topic at 0, which its first read moves to min; here it is min at once.

Invariants
    P1  An offset is there from the first start in the topic on, and changes by a commit, a reset, or the deletion of
        group or topic; never by a read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, assert_never

from gateway.groups.machines.errors import GroupActive, IllegalRequest
from gateway.groups.machines.events import CommittedOffset, Forgotten, OffsetsCommitted, ProgressEvent
from store.types import OFFSET_MAX, Bounds

COMMIT_METADATA_BYTES_MAX = 4096
COMMITS_MAX = 10_000
"""Offsets of one commit, and of one event in a snapshot."""


class PartitionKey(NamedTuple):
    """A partition, by the topic's id."""

    topic_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class Found:
    """The group has committed here."""

    offset: int
    metadata: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Absent:
    """The group has never committed here."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nobody can say now. Ask again; nothing may be concluded from it."""

    reason: str


Stored = Found | Absent | Unavailable


class Start(Enum):
    """Where a group begins in a partition it has never committed in."""

    FIRST = "first"
    LAST = "last"


class StartTime(NamedTuple):
    """A group begins with the first record stored at or after this time."""

    time_ms: int


class PartitionBounds(NamedTuple):
    """What the broker knows of a partition: its bounds, and the answer to a search by time where one was asked for."""

    bounds: Bounds
    offset_at_time: int | None = None


def where_to_start(
    stored: Stored,
    start: Start | StartTime,
    found: PartitionBounds | Unavailable,
    *,
    is_retry_topic: bool = False,
) -> int | Unavailable:
    """The offset at which to begin; `Unavailable` when that cannot be said now. The table is in the module's docstring.

    A group that starts at a time needs `found.offset_at_time`.
    """
    if isinstance(stored, Unavailable):
        return stored
    if isinstance(found, Unavailable):
        return found
    low, high = found.bounds
    if isinstance(stored, Found):
        return max(stored.offset, low)
    if isinstance(start, StartTime):
        if is_retry_topic:
            return high
        if found.offset_at_time is None:
            return Unavailable(f"the offset at {start.time_ms} ms is not known")
        return min(max(found.offset_at_time, low), high)
    return low if is_retry_topic or start is Start.FIRST else high


class Lag(NamedTuple):
    """How far a group is behind in one partition. `lost_count`: records that retention took before they were consumed.

    `committed` is None when nothing is committed; `lag` then counts what the group would get."""

    committed: int | None
    end: int
    lag: int
    lost_count: int


def lag_of(stored: Found | Absent, bounds: Bounds, start_offset: int) -> Lag:
    """`start_offset` is where a group without a committed offset would begin."""
    low, high = bounds
    if isinstance(stored, Absent):
        return Lag(None, high, high - min(max(start_offset, low), high), 0)
    return Lag(stored.offset, high, max(high - max(stored.offset, low), 0), max(low - stored.offset, 0))


class Commit(NamedTuple):
    """One offset a member commits."""

    key: PartitionKey
    offset: int
    metadata: str = ""


class Move(NamedTuple):
    """What a reset does to one partition; `before` is None where nothing was committed."""

    key: PartitionKey
    before: int | None
    after: int


ResetTo = Start | StartTime | int
"""The first record, the end, a time, or an offset (kept within bounds)."""


class Progress:
    """Committed offsets of all groups of this node. Not complete, and silent about what it lacks, until `opened`."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[PartitionKey, CommittedOffset]] = {}
        self._is_open = False

    def open(self) -> None:
        """All events up to now have been applied: from here on, what is not there was never committed."""
        self._is_open = True

    def lookup(self, group: str, key: PartitionKey) -> Stored:
        """The committed offset, with all three answers."""
        if not self._is_open:
            return Unavailable("committed offsets are being read")
        committed = self._offsets.get(group, {}).get(key)
        return Absent() if committed is None else Found(committed.offset, committed.metadata, committed.at_ms)

    def groups(self) -> list[str]:
        """Groups that have committed something."""
        return sorted(self._offsets)

    def topic_ids(self, group: str) -> set[int]:
        """Topics in which a group has committed something."""
        return {key.topic_id for key in self._offsets.get(group, ())}

    def committed(self, group: str) -> list[CommittedOffset]:
        """Everything a group has committed, by topic id and partition."""
        return sorted(self._offsets.get(group, {}).values())

    def decide_commit(
        self,
        group: str,
        commits: Sequence[Commit],
        now_ms: int,
        *,
        keep_unchanged: bool = False,
    ) -> list[OffsetsCommitted]:
        """The event of a commit; nothing when it says only what is known, unless it is to `keep_unchanged`: another
        commit, decided before and not applied yet, may say otherwise. `now_ms` is wall time.

        Whether the member may commit is asked of `Membership.check_owner` first. An offset may go back: a member that
        sought back commits from there. It may be past the end. Raises IllegalRequest for an offset that no record can
        get, and for too much metadata.
        """
        if len(commits) > COMMITS_MAX:
            raise IllegalRequest(f"at most {COMMITS_MAX} offsets are committed at once")
        for commit in commits:
            if not 0 <= commit.offset <= OFFSET_MAX:
                raise IllegalRequest(
                    f"offset {commit.offset} of partition {commit.key.partition} is not within 0 to {OFFSET_MAX}"
                )
            if len(commit.metadata.encode()) > COMMIT_METADATA_BYTES_MAX:
                raise IllegalRequest(f"the metadata of a commit has at most {COMMIT_METADATA_BYTES_MAX} bytes")
        known = self._offsets.get(group, {})
        news = tuple(
            CommittedOffset(*commit.key, commit.offset, commit.metadata, now_ms)
            for commit in commits
            if keep_unchanged
            or (old := known.get(commit.key)) is None
            or (old.offset, old.metadata) != (commit.offset, commit.metadata)
        )
        return [OffsetsCommitted(group, news)] if news else []

    def plan_reset(self, group: str, to: ResetTo, found_of: Mapping[PartitionKey, PartitionBounds]) -> list[Move]:
        """What a reset would do, partition by partition: the whole of a dry run. A time needs `offset_at_time`.

        Raises IllegalRequest while offsets are not known.
        """
        if not self._is_open:
            raise IllegalRequest("committed offsets are being read; try again")
        known = self._offsets.get(group, {})
        moves: list[Move] = []
        for key, found in sorted(found_of.items()):
            low, high = found.bounds
            if isinstance(to, Start):
                after = low if to is Start.FIRST else high
            elif isinstance(to, StartTime):
                if found.offset_at_time is None:
                    raise IllegalRequest(f"the offset at {to.time_ms} ms of partition {key.partition} is not known")
                after = min(max(found.offset_at_time, low), high)
            else:
                after = min(max(to, low), high)
            before = known.get(key)
            moves.append(Move(key, None if before is None else before.offset, after))
        return moves

    def decide_reset(
        self, group: str, moves: Sequence[Move], *, member_count: int, force: bool, now_ms: int
    ) -> list[OffsetsCommitted]:
        """The event of a planned reset. Members that go on consuming would commit over it, so a group with members is
        refused unless `force`; the shell then has to begin a new generation. Raises GroupActive."""
        if member_count and not force:
            raise GroupActive(f"group={group} has {member_count} members; stop them, or force the reset")
        moved = tuple(CommittedOffset(*move.key, move.after, "", now_ms) for move in moves if move.before != move.after)
        return [OffsetsCommitted(group, moved)] if moved else []

    def apply(self, event: ProgressEvent) -> None:
        """Change the table; the only way it changes, live or at start."""
        match event:
            case OffsetsCommitted():
                offsets = self._offsets.setdefault(event.group, {})
                for committed in event.offsets:
                    offsets[PartitionKey(committed.topic_id, committed.partition)] = committed
            case Forgotten():
                before = self._offsets.pop(event.group, {})
                if event.topic_ids is not None:
                    gone = set(event.topic_ids)
                    after = {key: committed for key, committed in before.items() if key.topic_id not in gone}
                    if after:
                        self._offsets[event.group] = after
            case _:
                assert_never(event)

    def snapshot(self) -> Iterable[OffsetsCommitted]:
        """Events that lead an empty table to this state, each of bounded size."""
        for group in self.groups():
            offsets = self.committed(group)
            for begin in range(0, len(offsets), COMMITS_MAX):
                yield OffsetsCommitted(group, tuple(offsets[begin : begin + COMMITS_MAX]))

"""How far each group is: committed offsets, where to start, lag, reset.

A committed offset is the next one to consume: everything before it is done. Topics are known by id, so a topic that was
deleted and created again begins anew.

A lookup has three answers, and they are different things: `Found`, `Absent` (the group never committed here), and
`Unavailable` (not known yet: not all events are read). `Unavailable` never moves an offset. Where consuming
begins:

    stored                 first                last                 a time
    found                  the stored offset, whatever the group asks for; min when retention has passed it
    absent                 min                  max                  first stored at or after it; max if none
    absent, retry topic    min                  min                  max
    unavailable            wait and ask again

A stored offset may be past the end, because it was committed there: consuming waits for the record that gets it,
and what comes before that one is not the group's.

Where a group begins is stored at once, for all partitions of the topic, and then found (`coordinator/start_positions`).
The original begins a retry topic at 0, which its first read moves to min; here it is min at once.

Invariants
    P1  An offset is there from the first start in the topic on, and changes by a commit, a reset, or the deletion of
        itself, group or topic; never by a read.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import NamedTuple, assert_never

from gateway.groups.machines.errors import GroupActive, IllegalRequest
from gateway.groups.machines.events import CommittedOffset, Forgotten, OffsetsCommitted, ProgressEvent
from store.types import OFFSET_MAX, Bounds

COMMIT_METADATA_BYTES_MAX = 4096
COMMITS_MAX = 10_000
"""Offsets of one commit, and of one event in a snapshot."""

POSITION_BYTES = 16
"""What an offset takes: itself and its time; in queue mode, itself and its epoch."""

TOPIC_BYTES = 400
"""What the offsets of a topic take besides."""

METADATA_BYTES = 200
"""What metadata take besides their text."""

_NONE = -1
"""In place of an offset: nothing is committed (any more)."""


class PartitionKey(NamedTuple):
    """A partition, by the topic's id."""

    topic_id: int
    partition: int

    @property
    def name(self) -> str:
        """Of a light queue: none."""
        return ""


class LightKey(NamedTuple):
    """A light queue of a partition, by the topic's id."""

    topic_id: int
    partition: int
    name: str


Place = PartitionKey | LightKey
"""Where records are leased one by one: each is a machine of its own."""


def place_of(topic_id: int, partition: int, name: str) -> Place:
    """The light queue of this name in a partition; without a name, the partition."""
    return LightKey(topic_id, partition, name) if name else PartitionKey(topic_id, partition)


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
    """It is not known now. Ask again; nothing may be concluded from it."""

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


class _TopicOffsets:
    """Committed offsets of one group in one topic, in arrays up to the highest partition that has one: an object each
    would take 20 times as much."""

    __slots__ = ("metadata", "metadata_bytes", "offsets", "times_ms")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.times_ms = array("q")
        self.metadata: dict[int, str] = {}
        self.metadata_bytes = 0

    @property
    def size_bytes(self) -> int:
        return TOPIC_BYTES + POSITION_BYTES * len(self.offsets) + self.metadata_bytes

    def get(self, topic_id: int, partition: int) -> CommittedOffset | None:
        if partition >= len(self.offsets) or (offset := self.offsets[partition]) == _NONE:
            return None
        return CommittedOffset(topic_id, partition, offset, self.metadata.get(partition, ""), self.times_ms[partition])

    def added_bytes(self, news: Sequence[CommittedOffset]) -> int:
        """How much more it takes with these, each of another partition."""
        end = max(committed.partition for committed in news) + 1
        texts = sum(
            _text_bytes(committed.metadata) - _text_bytes(self.metadata.get(committed.partition, ""))
            for committed in news
        )
        return max(end - len(self.offsets), 0) * POSITION_BYTES + texts

    def put(self, committed: CommittedOffset) -> None:
        partition = committed.partition
        if (lacking := partition + 1 - len(self.offsets)) > 0:
            self.offsets.extend([_NONE] * lacking)
            self.times_ms.extend([0] * lacking)
        self.offsets[partition], self.times_ms[partition] = committed.offset, committed.at_ms
        self.metadata_bytes += _text_bytes(committed.metadata) - _text_bytes(self.metadata.pop(partition, ""))
        if committed.metadata:
            self.metadata[partition] = committed.metadata

    def copy(self) -> _TopicOffsets:
        made = _TopicOffsets()
        made.offsets, made.times_ms, made.metadata = self.offsets[:], self.times_ms[:], dict(self.metadata)
        return made

    def all(self, topic_id: int) -> Iterator[CommittedOffset]:
        found = (self.get(topic_id, partition) for partition in range(len(self.offsets)))
        return (committed for committed in found if committed is not None)


def _events_of(topics: Iterable[tuple[str, int, _TopicOffsets]]) -> Iterator[OffsetsCommitted]:
    for group, topic_id, offsets in topics:
        left = offsets.all(topic_id)
        while some := tuple(islice(left, COMMITS_MAX)):
            yield OffsetsCommitted(group, some)


def _text_bytes(text: str) -> int:
    return METADATA_BYTES + (len(text) if text.isascii() else 4 * len(text)) if text else 0


def _by_topic(offsets: Iterable[CommittedOffset]) -> dict[int, list[CommittedOffset]]:
    topics: dict[int, list[CommittedOffset]] = {}
    for committed in offsets:
        topics.setdefault(committed.topic_id, []).append(committed)
    return topics


class Progress:
    """Committed offsets of all groups of this node. Not complete, and silent about what it lacks, until `opened`."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[int, _TopicOffsets]] = {}  # by group and topic id
        self._bytes: dict[str, int] = {}
        self.size_bytes = 0
        """What they take, about."""

        self._is_open = False

    def size_of(self, group: str) -> int:
        """What those of one group take, about."""
        return self._bytes.get(group, 0)

    def added_bytes(self, event: OffsetsCommitted) -> int:
        """How much more they would take with this."""
        more = 0
        for topic_id, news in _by_topic(event.offsets).items():
            offsets = self._of(event.group, topic_id)
            more += (TOPIC_BYTES if offsets is None else 0) + (offsets or _TopicOffsets()).added_bytes(news)
        return more

    def _of(self, group: str, topic_id: int) -> _TopicOffsets | None:
        return self._offsets.get(group, {}).get(topic_id)

    def _get(self, group: str, key: PartitionKey) -> CommittedOffset | None:
        offsets = self._of(group, key.topic_id)
        return None if offsets is None else offsets.get(*key)

    def _grown(self, group: str, more: int) -> None:
        self.size_bytes += more
        self._bytes[group] = self._bytes.get(group, 0) + more
        if not self._bytes[group]:
            del self._bytes[group]

    def open(self) -> None:
        """All events up to now have been applied: from here on, what is not there was never committed."""
        self._is_open = True

    def lookup(self, group: str, key: PartitionKey) -> Stored:
        """The committed offset, with all three answers."""
        if not self._is_open:
            return Unavailable("committed offsets are being read")
        committed = self._get(group, key)
        return Absent() if committed is None else Found(committed.offset, committed.metadata, committed.at_ms)

    def groups(self) -> list[str]:
        """Groups that have committed something."""
        return sorted(self._offsets)

    def topic_ids(self, group: str) -> set[int]:
        """Topics in which a group has committed something."""
        return set(self._offsets.get(group, ()))

    def committed(self, group: str) -> list[CommittedOffset]:
        """Everything a group has committed, by topic id and partition."""
        topics = sorted(self._offsets.get(group, {}).items())
        return [committed for topic_id, offsets in topics for committed in offsets.all(topic_id)]

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
        news = tuple(
            CommittedOffset(*commit.key, commit.offset, commit.metadata, now_ms)
            for commit in commits
            if keep_unchanged
            or (old := self._get(group, commit.key)) is None
            or (old.offset, old.metadata) != (commit.offset, commit.metadata)
        )
        return [OffsetsCommitted(group, news)] if news else []

    def decide_forget(
        self, group: str, keys: Iterable[PartitionKey], now_ms: int, *, keep_unknown: bool
    ) -> list[OffsetsCommitted]:
        """The event by which nothing is committed in these partitions any more. `keep_unknown`: a commit that was
        decided before may not be applied yet, so partitions where nothing is known are named too."""
        gone = tuple(
            CommittedOffset(*key, _NONE, "", now_ms)
            for key in keys
            if keep_unknown or self._get(group, key) is not None
        )
        return [
            OffsetsCommitted(group, gone[first : first + COMMITS_MAX]) for first in range(0, len(gone), COMMITS_MAX)
        ]

    def plan_reset(self, group: str, to: ResetTo, found_of: Mapping[PartitionKey, PartitionBounds]) -> list[Move]:
        """What a reset would do, partition by partition: the whole of a dry run. A time needs `offset_at_time`.

        Raises IllegalRequest while offsets are not known.
        """
        if not self._is_open:
            raise IllegalRequest("committed offsets are being read; try again")
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
            before = self._get(group, key)
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
                topics = self._offsets.setdefault(event.group, {})
                for topic_id, news in _by_topic(event.offsets).items():
                    before = topics[topic_id].size_bytes if topic_id in topics else 0
                    offsets = topics.setdefault(topic_id, _TopicOffsets())
                    for committed in news:
                        offsets.put(committed)
                    self._grown(event.group, offsets.size_bytes - before)
            case Forgotten():
                topics = self._offsets.pop(event.group, {})
                for topic_id in list(topics) if event.topic_ids is None else event.topic_ids:
                    if topic_id in topics:
                        self._grown(event.group, -topics.pop(topic_id).size_bytes)
                if topics:
                    self._offsets[event.group] = topics
            case _:
                assert_never(event)

    def snapshot(self, groups: Collection[str] | None = None) -> Iterable[OffsetsCommitted]:
        """Events that lead an empty table to this state, each of bounded size: the state as it is at this call, though
        the events are made one by one, later and in another thread: that of millions takes seconds. `groups`: of these
        alone."""
        topics = [
            (group, topic_id, offsets.copy())
            for group in (self.groups() if groups is None else groups)
            for topic_id, offsets in sorted(self._offsets.get(group, {}).items())
        ]
        return _events_of(topics)

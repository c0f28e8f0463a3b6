"""What consumer groups offer: the seam between the coordinator and every surface (HTTP, v2 instances, socket, CLI).

Two ways to consume in a group:

    stream   a member joins, is told its share of partitions, fetches them itself, commits offsets, releases what is
             revoked. A commit names member and generation and is refused from a stale owner.
    queue    a caller receives single records with a receipt each, and settles them one by one. No membership.

What is durable on return is said at each method. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Literal, NamedTuple, Protocol, overload

from gateway.codec.tags import MESSAGE_GROUP_HEADER, TAG_HEADER, text_of
from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.membership import Join, Member, PlanState, Share
from gateway.groups.machines.progress import Start, StartTime
from gateway.groups.machines.settled_letters import SettledLetters
from gateway.groups.machines.subscription import Subscription
from store.limits import MiB
from store.record_batch import Headers

RECEIPTS_MAX = 10_000
"""Receipts of one ack, nack, reject or extend."""

RECEIVE_MESSAGES_MAX = 10_000
"""Records of one receive."""

RECEIVE_BYTES_MAX = 64 * MiB
REDRIVE_MAX = 10_000
"""Dead letters of one redrive."""

SETTLE_LETTERS_MAX = 1_000
"""Dead letters that are settled by their offsets in one go."""


_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class TopicPartition(NamedTuple):
    """A partition as clients name it."""

    topic: str
    partition: int


class MemberKey(NamedTuple):
    """Who calls: a member, and the generation it last heard of."""

    member_id: str
    generation: int


GroupState = Literal["empty", "stable", "rebalancing"]


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group, for lists. `state`: "empty" (no members), "stable", or "rebalancing" (a partition waits to move)."""

    group: str
    state: GroupState
    generation: int
    member_count: int
    topics: tuple[str, ...]
    """Topics it has members, offsets or leases for, sorted."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member and what it has."""

    member: Member
    share: Share
    heard_ago_ms: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group, whole."""

    view: GroupView
    config: GroupConfig
    members: tuple[MemberView, ...]
    warnings: tuple[str, ...]
    """What is odd about how partitions are shared out, for people."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is in one partition. Times are epoch ms, counts are records.

    `committed` None: nothing is. `lag` counts from there to the end. Queue mode: `in_flight` on lease, `delayed` given
    back and not due yet. `oldest_unacked_ms`: store time of the first record not done; None when there is none.
    """

    topic: str
    partition: int
    committed: int | None
    metadata: str
    beginning: int
    end: int
    lag: int
    lost: int
    in_flight: int
    delayed: int
    oldest_unacked_ms: int | None
    owner: str | None
    """The member that owns it in stream mode."""


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """One offset to commit: `offset` is the next record to consume."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """What is committed in one partition; `offset` None: nothing."""

    topic: str
    partition: int
    offset: int | None
    metadata: str


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """What a reset does (or would do) to one partition; `before` None: nothing was committed."""

    topic: str
    partition: int
    before: int | None
    after: int


class GroupCounts(NamedTuple):
    """How much a group has: members in stream mode, records leased or given back, dead letters."""

    member_count: int
    in_flight: int
    dead: int


class LeaseKey(NamedTuple):
    """What open records are listed by, in order. `queue`: of the light queue, in whose offsets it is; or empty."""

    topic: str
    partition: int
    queue: str
    offset: int


class LeaseView(NamedTuple):
    """An open record of queue mode. `is_leased`: in a consumer's hands until `until_ms`; else it is to be delivered
    again from then on. `queue`: as in `LeaseKey`. `consumer`: who holds a receipt of this delivery, as far as
    the caller knew."""

    topic: str
    partition: int
    queue: str
    offset: int
    attempt: int
    until_ms: int
    is_leased: bool
    consumer: str | None


class LagKey(NamedTuple):
    """What the lags of a group are listed by, in order. `name`: the group, or a member of a broadcasting one."""

    topic: str
    partition: int
    name: str


StartSpec = Start | StartTime
ResetTo = Start | StartTime | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """A request for records in queue mode. `start` is for topics in which the group has never been: its first receive
    fixes, durably, where it begins in all their partitions. Those that are added later begin with their first record,
    and so do topics that came after the group began to `follow` them.

    `tags` None: all records. `wait_ms`: how long to wait for the first record. `invisible_ms` None: the group's.
    `attempt_id`: a repeated request with the same one gets the records that are still leased to it.

    `queue`: of the topics, the light queue of this name alone; without tags, and begun first or last.
    """

    topics: tuple[str, ...]
    max_messages: int = 32
    max_bytes: int = 1_048_576
    wait_ms: int = 0
    invisible_ms: int | None = None
    tags: frozenset[str] | None = None
    attempt_id: str | None = None
    consumer: str | None = None
    start: StartSpec = Start.FIRST
    queue: str | None = None


class Delivered(NamedTuple):
    """One record in a consumer's hands until `until_ms` (epoch ms). A retried one shows the position it came from
    first.

    `attempt` counts deliveries from 1. `json_value`: value, and key if it is no raw one, are known to be JSON or null.
    `raw_key`: its topic's keys are raw (store/topics.py). `queue`: the light queue it was received from, and its offset
    there.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    store_time_ms: int
    json_value: bool
    raw_key: bool
    tag: str | None
    message_group: str | None
    attempt: int
    receipt: str
    until_ms: int
    queue: str | None = None
    queue_offset: int | None = None


class RecordShown(Protocol):
    """A record as a consumer is to see it."""

    @property
    def key(self) -> bytes | None:
        """None: without one."""
        ...

    @property
    def value(self) -> bytes | None:
        """None: a tombstone."""
        ...

    @property
    def headers(self) -> Headers:
        """Those that are shown."""
        ...

    @property
    def timestamp(self) -> int:
        """Event time, epoch ms."""
        ...


class PlainRecord(NamedTuple):
    """One of `PlainRecords`."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


class PlainRecords(Sequence[PlainRecord]):
    """Records one behind the other, without headers and of one time, by columns: there is an object for one only when
    somebody looks at it. `keys` None: none has one."""

    __slots__ = ("keys", "offset", "timestamp", "values")

    def __init__(
        self, offset: int, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], timestamp: int
    ) -> None:
        """`offset`: of the first one."""
        self.offset = offset
        self.keys = keys
        self.values = values
        self.timestamp = timestamp

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> PlainRecord: ...
    @overload
    def __getitem__(self, index: slice) -> PlainRecords: ...
    def __getitem__(self, index: int | slice) -> PlainRecord | PlainRecords:
        keys = self.keys
        if isinstance(index, slice):
            first, _, step = index.indices(len(self.values))
            assert step == 1, "they lie one behind the other"
            own_keys = None if keys is None else keys[index]
            return PlainRecords(self.offset + first, own_keys, self.values[index], self.timestamp)
        at = range(len(self.values))[index]
        key = None if keys is None else keys[at]
        return PlainRecord(self.offset + at, key, self.values[at], [], self.timestamp)

    def __iter__(self) -> Iterator[PlainRecord]:
        keys = repeat(None) if self.keys is None else self.keys
        for offset, (key, value) in enumerate(zip(keys, self.values, strict=False), self.offset):
            yield PlainRecord(offset, key, value, [], self.timestamp)


class Run(NamedTuple):
    """Records in a consumer's hands that lie one behind the other and were leased together, the first one at `offset`.
    Fields are as those of `Delivered`, and `receipts` has one a record. What was retried, or comes from a light queue,
    is a run of its own."""

    topic: str
    partition: int
    offset: int
    records: Sequence[RecordShown]
    store_time_ms: int
    json_values: bool
    raw_keys: bool
    attempt: int
    receipts: Sequence[str]
    until_ms: int
    queue: str | None = None
    queue_offset: int | None = None

    def part(self, first: int, end: int) -> Run:
        """Its records of these indexes."""
        return self._replace(
            offset=self.offset + first, records=self.records[first:end], receipts=self.receipts[first:end]
        )

    def messages(self) -> list[Delivered]:
        """Each by itself."""
        topic, partition, first, records, store_time_ms, json_values, raw_keys, attempt, receipts, until_ms = self[:10]
        queue = self[10:]
        return [
            _new(
                Delivered,
                (
                    topic, partition, offset, record.key, record.value, headers := record.headers, record.timestamp,
                    store_time_ms, json_values, raw_keys, text_of(headers, TAG_HEADER) if headers else None,
                    text_of(headers, MESSAGE_GROUP_HEADER) if headers else None, attempt, receipt, until_ms, *queue,
                ),
            )
            for offset, (record, receipt) in enumerate(zip(records, receipts, strict=True), first)
        ]  # fmt: skip


def cut(runs: Sequence[Run], first: int, end: int) -> Sequence[Run]:
    """Of the records of runs those of these indexes."""
    at = 0
    found: list[Run] = []
    for run in runs:
        size = len(run.receipts)
        low, high = max(first - at, 0), min(end - at, size)
        if low < high:
            found.append(run if high - low == size else run.part(low, high))
        at += size
    return found


def receipts_of(runs: Sequence[Run]) -> Sequence[str]:
    """Those of all records, in order."""
    return runs[0].receipts if len(runs) == 1 else list(chain.from_iterable([run.receipts for run in runs]))


@dataclass(frozen=True, slots=True)
class Received:
    """The answer to a receive. `backlog`: records of these topics the group has not been handed yet."""

    runs: tuple[Run, ...]
    backlog: int

    @property
    def messages(self) -> tuple[Delivered, ...]:
        """Each record by itself: for few of them, or who needs an object for each."""
        return tuple(chain.from_iterable(run.messages() for run in self.runs))


RECEIPT_ILLEGAL = 40050
LEASE_OVER = 40951


class Settled(NamedTuple):
    """What became of one receipt, in the order asked. `ok` False: `error_code` RECEIPT_ILLEGAL (no receipt of this
    group) or LEASE_OVER, and `error`. `new_receipt` after an extend."""

    receipt: str
    ok: bool
    error_code: int | None = None
    error: str | None = None
    new_receipt: str | None = None


class Accepted(Sequence[Settled]):
    """What became of receipts that were all accepted, without an object for each until somebody looks at it."""

    __slots__ = ("receipts",)

    def __init__(self, receipts: Sequence[str]) -> None:
        self.receipts = receipts

    def __len__(self) -> int:
        return len(self.receipts)

    @overload
    def __getitem__(self, index: int) -> Settled: ...
    @overload
    def __getitem__(self, index: slice) -> Accepted: ...
    def __getitem__(self, index: int | slice) -> Settled | Accepted:
        if isinstance(index, slice):
            return Accepted(self.receipts[index])
        return Settled(self.receipts[index], True)

    def __iter__(self) -> Iterator[Settled]:
        return (Settled(receipt, True) for receipt in self.receipts)


class LightPlace(NamedTuple):
    """How far a group is in a light queue of one partition: `committed` is the next offset that it reads. Places are in
    the order of the first three, by which they are known."""

    topic: str
    queue: str
    partition: int
    committed: int


class LightOffsets(Protocol):
    """How far groups are in light queues; of a group that is only this, nothing else is kept. What is said last
    stands. Where the group has records on lease, nothing is said (GroupActive). Raises IllegalRequest, UnknownQueue,
    UnknownPartition."""

    def committed(self, group: str, topic: str, partition: int, name: str) -> int | None:
        """The next offset that the group reads; None: it has never said."""
        ...

    async def commit(self, group: str, topic: str, name: str, offsets: Mapping[int, int]) -> None:
        """By partition. Durable (flushed) on return. Raises GroupFull."""
        ...

    def count(self, group: str) -> int:
        """In how many light queues a group has an offset, each partition counted."""
        ...

    async def places(
        self, group: str, prefix: str, *, after: LightPlace | None, count: int, shows: Callable[[str], bool]
    ) -> list[LightPlace]:
        """Up to `count` of the group's offsets in light queues whose names begin so, in topics that `shows` lets
        through, in order, behind `after`. Goes through the offsets of all groups in these topics, in short turns."""
        ...

    async def groups(self, prefix: str, *, after: str, count: int) -> list[tuple[str, int]]:
        """Up to `count` groups that have such offsets, by name, behind `after`, and how many each has. Goes through the
        names of all; there may be a million, so they never come all at once."""
        ...

    async def forget(self, group: str, topic: str, name: str) -> None:
        """Nothing is known of the group in this light queue any more. Durable on return."""
        ...


class Groups(Protocol):
    """All consumer groups of this node. Errors: `gateway.groups.machines.errors`, RequestError, `store.errors`.

    A group comes into being with its first join, commit, receive or configure. Names follow the rule of topic names;
    callers check permission before they call.
    """

    # Groups

    def describe(self, group: str) -> GroupDescription:
        """All there is to say of a group; goes through its members. Raises UnknownGroup (404/40405)."""
        ...

    def config(self, group: str) -> GroupConfig:
        """A group's settings, the defaults when there is none."""
        ...

    def members(self, group: str) -> Mapping[str, Member]:
        """Who is in a group in stream mode, by id, the longest first; none where there is no such group. To be looked
        at now: it changes with the group. It costs nothing however many there are, but in a broadcasting group."""
        ...

    def names(self) -> list[str]:
        """The names of all groups, sorted."""
        ...

    def view(self, group: str) -> GroupView:
        """One group. Raises UnknownGroup."""
        ...

    async def counts(self, group: str) -> GroupCounts:
        """How much a group has. Raises UnknownGroup."""
        ...

    def leases(
        self,
        group: str,
        *,
        after: LeaseKey | None,
        limit: int,
        shows: Callable[[str], bool],
        held: Mapping[str, str],
    ) -> tuple[list[LeaseView], int]:
        """Open records in the topics that `shows` lets through, by key, after one; and how many there are in all.
        `held`: consumers, by the receipts they have. Raises UnknownGroup."""
        ...

    async def lag_page(
        self, group: str, *, after: LagKey | None, limit: int, shows: Callable[[str], bool]
    ) -> tuple[list[PartitionLag], LagKey | None]:
        """Lags of the topics that `shows` lets through, by key, after one; and the key of the last of them (None:
        there are no others). Raises UnknownGroup."""
        ...

    async def configure(self, group: str, changes: Mapping[str, object]) -> GroupConfig:
        """Change settings, by the names of GroupConfig's fields; durable on return. Raises IllegalRequest."""
        ...

    async def delete(self, group: str) -> None:
        """Forget a group: offsets, leases, settings, documents; durable on return. Raises UnknownGroup, GroupActive."""
        ...

    async def follow(self, group: str, wish: Subscription) -> None:
        """The group wants these topics from now on: one that is created later begins with its first record, whatever a
        receive says. Durable on return. A join does the same. Raises GroupFull, IllegalRequest."""
        ...

    # Members (stream mode)

    async def join(
        self,
        group: str,
        member_id: str | None,
        subscription: Subscription,
        *,
        generation: int | None = None,
        session_timeout_ms: int | None = None,
        metadata: bytes = b"",
        room: str = "",
    ) -> tuple[str, Share]:
        """Come in, or say again what one wants (with `generation`). Without a member id one is made. `room`: the
        machine room that the member stands in, for strategies that go by it.

        When no other member has to give something up, the share is complete on return.
        Raises GroupFull, IllegalRequest, StaleGeneration.
        """
        ...

    def heartbeat(self, group: str, member: MemberKey) -> Share:
        """Any sign of life. Raises UnknownMember, StaleGeneration."""
        ...

    async def share_changed(self, group: str, member_id: str, since: Share) -> Share:
        """Wait until a member's share differs from `since`. Raises UnknownMember when the member is out."""
        ...

    async def release(self, group: str, member: MemberKey, partitions: Sequence[TopicPartition]) -> Share:
        """Give up revoked partitions, drained and committed. Raises UnknownMember, StaleGeneration."""
        ...

    async def leave(self, group: str, member: MemberKey) -> None:
        """Go; all that was owned is free. Raises UnknownMember, StaleGeneration."""
        ...

    # Members that plan (Kafka's protocol): one of them computes the assignment while all of them can

    def plan_state(self, group: str) -> PlanState | None:
        """How the assignment of a group is made now; None: it has no members."""
        ...

    async def begin_round(self, group: str, joins: Sequence[Join], leaving: Sequence[str]) -> list[Share | Exception]:
        """Members come in or say again what they want, all in one generation, which begins in any case while all
        members plan; `leaving` are put out. What each is to know, or why it is refused. Durable on return."""
        ...

    async def assign(
        self, group: str, member: MemberKey, shares: Mapping[str, Sequence[TopicPartition]], notes: Mapping[str, bytes]
    ) -> Share:
        """The assignment that was asked of the leader; what is not there (any more) is left out. What members owned and
        do not get is released. `notes`: bytes for members. Durable on return. Raises UnknownMember, StaleGeneration,
        IllegalRequest."""
        ...

    # Progress

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition], *, member_id: str | None = None
    ) -> list[CommittedPosition]:
        """In the order asked. `member_id` is for broadcasting groups, whose members have positions of their own. Raises
        GroupUnavailable while progress is being read, UnknownQueue, UnknownPartition."""
        ...

    async def start_offset(
        self,
        group: str,
        topic_partition: TopicPartition,
        start: StartSpec,
        *,
        member_id: str | None = None,
    ) -> int:
        """Where the group (or, when it is broadcasting, the member) begins in a partition: a stored offset wins, then
        `start`. The first start in a topic fixes the position in all its partitions, durable on return (see
        `coordinator/start_positions`); a stored one is never moved."""
        ...

    async def commit(self, group: str, commits: Sequence[OffsetCommit], member: MemberKey | None = None) -> None:
        """Commit offsets, past the end of a partition too; durable (flushed) on return. With `member` the commit is
        fenced; without, it is refused while the partition is owned by a member. Raises UnknownMember, StaleGeneration,
        GroupActive, IllegalRequest, UnknownQueue, UnknownPartition."""
        ...

    async def forget_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        """Take committed offsets of a topic back: nothing is committed in these partitions then. Durable on return.
        Raises UnknownGroup, GroupActive while a member wants the topic or the group is in queue mode in it,
        IllegalRequest for a broadcasting group, UnknownQueue, UnknownPartition."""
        ...

    @property
    def light_offsets(self) -> LightOffsets:
        """How far groups are in light queues."""
        ...

    async def lag(self, group: str, topics: Sequence[str] | None = None) -> list[PartitionLag]:
        """By topic and partition. Raises UnknownGroup."""
        ...

    async def reset(
        self,
        group: str,
        topic: str,
        to: ResetTo,
        *,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[PlannedMove]:
        """Move committed offsets, and queue mode with them; durable on return. Members that were forced aside join
        again. Raises GroupActive, UnknownGroup, UnknownPartition."""
        ...

    # Queue mode

    async def receive(self, group: str, request: Receive) -> Received:
        """Lease records. Returns at once with any, else after `wait_ms` (or when the server drains) with none.
        Raises IllegalRequest, GroupFull (in-flight limits), UnknownQueue."""
        ...

    def begin_receive(self, group: str, request: Receive, told: Callable[[Received | None], None]) -> bool:
        """Lease new records together with other receives, without a task for each. Whether it was begun; if not,
        `receive` is to be asked. `told`, which raises nothing, gets what was leased, and has to give it back where it
        cannot be used; None: there may be some that are not found this way, or it was refused: `receive` is to be
        asked. Raises IllegalRequest."""
        ...

    def ack(self, group: str, receipts: Sequence[str]) -> Awaitable[Sequence[Settled]]:
        """Done with these; durable when it is awaited, and written whether or not anybody goes on waiting. Acking twice
        is fine."""
        ...

    async def ack_up_to(self, group: str, topic_partition: TopicPartition, offset: int) -> int:
        """Done with every leased record of a partition up to and including `offset`; durable; how many that were."""
        ...

    async def nack(
        self, group: str, receipts: Sequence[str], *, delay_ms: int | None = None, reason: str = ""
    ) -> Sequence[Settled]:
        """Not done: to be delivered again after `delay_ms`, or after the group's back-off. After the last attempt the
        reason goes with the dead letter."""
        ...

    async def give_back(self, group: str, receipts: Sequence[str]) -> None:
        """Never reached the consumer: ready at once, and the attempt does not count."""
        ...

    async def reject(self, group: str, receipts: Sequence[str], reason: str) -> Sequence[Settled]:
        """Never again: on to the dead-letter topic."""
        ...

    async def extend(self, group: str, receipts: Sequence[str], invisible_ms: int) -> Sequence[Settled]:
        """Leases end `invisible_ms` from now, under new receipts."""
        ...

    async def redrive(self, group: str, max_messages: int) -> int:
        """Send dead letters back to where they came from, with attempts at 0; how many. Durable on return."""
        ...

    def settled_letters(self, group: str) -> SettledLetters:
        """Which dead letters are settled out of turn, behind the group's committed offset in their topic."""
        ...

    async def settle_letters(self, group: str, offsets: Sequence[int], *, redrive: bool) -> list[bool]:
        """Send these dead letters back, or have them gone; whether each was there, and not settled yet. Durable on
        return. Raises UnknownGroup, GroupFull."""
        ...

    # What others keep beside a group (v2 instances, sockets)

    def documents(self, group: str | None = None, prefix: str = "") -> list[tuple[str, str, bytes]]:
        """(group, key, content), of one group or all, by group and key."""
        ...

    async def put_document(self, group: str, key: str, content: bytes | None, *, flushed: bool = False) -> None:
        """Keep a small document (at most 64 KiB) with a group's state, or remove it (None). Survives a restart;
        durable on return when `flushed`, else soon."""
        ...

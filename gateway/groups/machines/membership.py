"""Who is in a group and who owns which partition: join, heartbeat, leave, expiry, rebalance, fencing.

Two maps say everything about partitions. `target` is who shall own a partition in this generation, `owned` is who owns
it now. A partition that two members want passes through three states:

    owned by a, target a      a consumes it
    owned by a, target b      revoking: a drains, commits, and releases it; b waits
    without owner, target b   b is assigned it at once

    t    event                                      generation   owned of p0     m1 is told        m2 is told
    0    m1 joins                                   1            m1 (gen 1)      assigned p0 p1
    1    m2 joins; target of p1 becomes m2          2            m1 (gen 1)      revoking p1       nothing
    2    m1 has drained and committed, releases p1  2            m1 (gen 1)      has p0            assigned p1 (gen 2)
    3    m1 falls silent, its session ends          3            m2 (gen 3)      out               assigned p0 (gen 3)

A new owner waits only for members that live: a session that ends frees what the member owned. A member that lives but
does not release within `drain_timeout_ms` is put out the same way.

Fencing. Every call of a member names the generation it last heard of. For a partition it is refused unless it owns
it, and has since that generation or an earlier one. Owning ends only with a release or the member, and begins anew
only in a later generation (M2), so a member that lost a partition unknowingly is refused, though it may own it again.
Each join begins a generation: an earlier process under the same member id is told from its successor, and refused.

Assignment by a member: where the group has no strategy, and while all members plan, as Kafka's do. After a change of
members a generation begins without any target; the shell asks the leader (the longest member), which answers through
`decide_assign`. Until then members keep what they own and may release it (eager protocols do). A leader that does not
answer in `drain_timeout_ms` is put out, unless all plan. Kafka's join barrier, who has joined again in this
generation, is the adapter's (gateway/surfaces/kafka/groups.py), and so is how long it waits. A round (`decide_joins`
with `is_round`) always begins a generation. What a planner does not get in a leader's assignment it has given up
before: its clients revoke first and join then, or the leader gives nothing to others that has not been revoked. So the
assignment releases it. When a member comes that does not plan, the strategy decides.

`now_ms` is monotonic time everywhere in this file: sessions are lengths of time. At start, events are applied with the
time of the start, so every member has a whole session to be heard in again; its partitions wait for it.

Invariants
    M1  A partition has at most one owner, and no owner that is not a member.
    M2  The generation grows with each change of members and each new target; a partition is assigned at most once in
        a generation.
    M3  Every partition of a topic that a member wants is owned, being revoked, or in the next `decide_rebalance`,
        unless the strategy gives it to no member.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, assert_never

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.errors import (
    GroupActive,
    GroupError,
    GroupFull,
    IllegalRequest,
    StaleGeneration,
    UnknownMember,
)
from gateway.groups.machines.events import (
    AssignmentAsked,
    MemberJoined,
    MemberLeft,
    MembershipEvent,
    PartitionsAssigned,
    PartitionsReleased,
    Rebalanced,
)
from gateway.groups.machines.strategies.base import IllegalAssignment, Partition, Rooms, Strategy, allocate, check
from gateway.groups.machines.strategies.sticky import Sticky
from gateway.groups.machines.subscription import Subscription
from gateway.routing.base import TopicView

log = logging.getLogger(__name__)

MEMBER_ID_BYTES_MAX = 255
METADATA_BYTES_MAX = 64 * 1024
ROOM_BYTES_MAX = 100

MEMBER_BYTES = 1_500
"""What a member takes besides its metadata and the topics it names."""

TOPIC_BYTES = 120
"""What a topic takes that a member names."""

ASSIGNED_BYTES = 450
"""What a partition takes that a member owns, or shall own."""

LEFT = "left"
REPLACED = "replaced"
SESSION_EXPIRED = "session_expired"
DRAIN_EXPIRED = "drain_expired"
ASSIGNMENT_EXPIRED = "assignment_expired"
ROUND_EXPIRED = "round_expired"
FORCED = "forced"


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer in the group, as it last joined. `metadata` is its own; the server only keeps it."""

    member_id: str
    subscription: Subscription
    session_timeout_ms: int
    metadata: bytes
    since_generation: int
    """Who calls with an earlier one is a former process under this member id."""

    plans: bool = False
    """It can compute the assignment for all members, as members of Kafka's protocol can, and does while all of them
    can."""

    room: str = ""
    """The machine room that it says it stands in."""

    @property
    def size_bytes(self) -> int:
        """What it takes, about."""
        return MEMBER_BYTES + len(self.metadata) + len(self.room) + TOPIC_BYTES * len(self.subscription.topics)


class Join(NamedTuple):
    """One member that comes in; see `Membership.decide_join`."""

    member_id: str
    subscription: Subscription
    generation: int | None = None
    session_timeout_ms: int | None = None
    metadata: bytes = b""
    plans: bool = False
    room: str = ""


class PlanState(NamedTuple):
    """How the assignment of a group is made: `is_planned` by its members; `is_asked`: it is awaited from `leader`."""

    generation: int
    is_planned: bool
    is_asked: bool
    leader: str | None


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who owns a partition, and the generation in which that began."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one member is to know. A shell that has sent an older one sends the difference."""

    generation: int
    assigned: tuple[Partition, ...]
    """Owned, and to be consumed."""

    revoking: tuple[Partition, ...]
    """Owned, to be drained, committed and released."""

    note: bytes
    """What the leader that computed the assignment has for this member."""

    is_asked: bool
    """This member is the leader and is to compute the assignment of the generation."""


class Membership:
    """The members of one group and their partitions. Changes through `apply`, and by `heartbeat`, which is not kept.

    Every `decide_…` returns all events of one change, in order: write them together, then apply them. The topics given
    are all topics there are. `strategy` is None when a member computes the assignment.
    """

    def __init__(self, group: str, config: GroupConfig, strategy: Strategy | None, rooms: Rooms | None = None) -> None:
        """`rooms`: what the strategy knows rooms of members by."""
        self.group = group
        self.rooms = rooms or Rooms(group)
        self._config = config
        self._strategy = strategy
        self._members: dict[str, Member] = {}  # the longest first
        self._heard_ms: dict[str, int] = {}
        self._generation = 0
        self._target: dict[Partition, str] = {}
        self._notes: Mapping[str, bytes] = {}
        self._owned: dict[Partition, Ownership] = {}
        self._by_owner: dict[str, list[Partition]] | None = None  # the same, by member; None: to be made
        self._topics: frozenset[str] | None = None  # of what is owned or aimed at; None: to be made
        self._by_target: dict[str, list[Partition]] | None = None  # likewise
        self._revoking_since_ms: dict[Partition, int] = {}
        self._asked: str | None = None  # the leader, until it has answered
        self._asked_since_ms = 0
        self._has_changed = False  # members came, went or changed since the last target
        self._members_bytes = 0

    def reconfigure(self, config: GroupConfig, strategy: Strategy | None, *, is_other_strategy: bool) -> None:
        """Go on with other settings. With another strategy the next `decide_rebalance` begins a generation."""
        self._config, self._strategy = config, strategy
        if is_other_strategy and self._members:
            self._has_changed = True

    # What is

    @property
    def generation(self) -> int:
        """Grows with each change of members and each new target."""
        return self._generation

    @property
    def size_bytes(self) -> int:
        """What members and their partitions take, about."""
        return self._members_bytes + ASSIGNED_BYTES * self.assigned_count

    @property
    def assigned_count(self) -> int:
        """Partitions that a member owns, or shall own."""
        return max(len(self._owned), len(self._target))

    @property
    def topics(self) -> frozenset[str]:
        """The topics of which a member owns a partition, or shall own one: of a pattern what it has found."""
        if self._topics is None:
            self._topics = frozenset(partition.topic for partition in chain(self._owned, self._target))
        return self._topics

    def members(self) -> list[Member]:
        """All members, the longest first."""
        return list(self._members.values())

    @property
    def by_id(self) -> Mapping[str, Member]:
        """The same by their ids; changes with the group."""
        return MappingProxyType(self._members)

    def owner(self, partition: Partition) -> Ownership | None:
        """Who owns a partition now; while it is being revoked, still the one who gives it up."""
        return self._owned.get(partition)

    def share(self, member_id: str) -> Share:
        """What a member is to know. Raises UnknownMember."""
        self._member(member_id)
        mine = self._owned_by(member_id)
        return Share(
            self._generation,
            tuple(partition for partition in mine if partition not in self._revoking_since_ms),
            tuple(partition for partition in mine if partition in self._revoking_since_ms),
            self._notes.get(member_id, b""),
            self._asked == member_id,
        )

    @property
    def is_rebalancing(self) -> bool:
        """Whether a partition waits to move, or an assignment is awaited."""
        return bool(self._revoking_since_ms) or self._asked is not None

    def heard_ago_ms(self, member_id: str, now_ms: int) -> int:
        """How long a member has been silent."""
        return now_ms - self._heard_ms[member_id]

    def check_owner(self, member_id: str, generation: int, partitions: Iterable[Partition]) -> None:
        """Whether a member may commit for these partitions; one that is draining them may.

        Raises UnknownMember, or StaleGeneration when one of them is another's, or was in between.
        """
        member = self._caller(member_id, generation)
        for partition in partitions:
            owner = self._owned.get(partition)
            if owner is None and member.plans:  # it was released by an assignment, and has had no owner since
                continue
            if owner is None or owner.member_id != member_id or generation < owner.generation:
                raise StaleGeneration(
                    f"group={self.group} member={member_id} does not own partition {partition.partition} of topic "
                    f"{partition.topic} in generation {generation}"
                )

    def next_deadline_ms(self) -> int | None:
        """When `decide_expiry` may next have something to do, if no member is heard until then."""
        sessions = [heard + self._members[member].session_timeout_ms for member, heard in self._heard_ms.items()]
        if self._asked is None:
            waits: Iterable[int] = self._revoking_since_ms.values()
        else:
            waits = () if self._members[self._asked].plans else (self._asked_since_ms,)
        return min(sessions + [since + self._config.drain_timeout_ms for since in waits], default=None)

    @property
    def _leader_plans(self) -> bool:
        """Whether a member computes the assignment."""
        planning_count = sum(member.plans for member in self._members.values())
        if not planning_count:
            return self._strategy is None
        return planning_count == len(self._members)

    def plan_state(self) -> PlanState:
        """How the assignment is made."""
        return PlanState(self._generation, self._leader_plans, self._asked is not None, self._asked)

    def heartbeat(self, member_id: str, generation: int, now_ms: int) -> Share:
        """Any sign of life of a member; begins its session anew. Raises UnknownMember, StaleGeneration."""
        self._caller(member_id, generation)
        self._heard_ms[member_id] = now_ms
        return self.share(member_id)

    # What shall be

    def decide_join(
        self,
        member_id: str,
        subscription: Subscription,
        topics: Sequence[TopicView],
        *,
        generation: int | None = None,
        session_timeout_ms: int | None = None,
        metadata: bytes = b"",
    ) -> list[MembershipEvent]:
        """A member comes in, or says again what it wants.

        A member that names its generation is the same process as before and keeps what it owns. Without, a member of
        this id is taken for dead and its partitions are free: a named member that has been restarted. The caller finds
        its generation in `share` once the events are applied.
        Raises GroupFull, IllegalRequest; StaleGeneration when another process has taken this member id.
        """
        join = Join(member_id, subscription, generation, session_timeout_ms, metadata)
        events, (error,) = self.decide_joins([join], topics)
        if error is not None:
            raise error
        return events

    def decide_joins(
        self,
        joins: Sequence[Join],
        topics: Sequence[TopicView],
        *,
        leaving: Iterable[str] = (),
        is_round: bool = False,
    ) -> tuple[list[MembershipEvent], list[GroupError | None]]:
        """Several at once, each of another member id, with one rebalance: a thousand members that come together would
        else share out everything a thousand times. What is wrong with each, in order, as `decide_join` raises it.
        `leaving`: who is put out because it has not joined again in time. `is_round`: a generation begins in any
        case."""
        events: list[MembershipEvent] = [
            MemberLeft(self.group, member_id, ROUND_EXPIRED) for member_id in leaving if member_id in self._members
        ]
        errors: list[GroupError | None] = []
        new_count = 0
        for join in joins:
            try:
                decided = self._decide_join(join, new_count)
            except GroupError as error:
                errors.append(error)
            else:
                errors.append(None)
                events += decided
                new_count += join.member_id not in self._members
        if not events and not is_round:
            return [], errors
        return self._followed_by_rebalance(events, topics, is_round=is_round), errors

    def _decide_join(self, join: Join, new_count: int) -> list[MembershipEvent]:
        config = self._config
        member_id, subscription, generation, session_timeout_ms, metadata, plans, room = join
        timeout_ms = config.session_timeout_ms if session_timeout_ms is None else session_timeout_ms
        if not config.session_timeout_ms_min <= timeout_ms <= config.session_timeout_ms_max:
            low, high = config.session_timeout_ms_min, config.session_timeout_ms_max
            raise IllegalRequest(f"session_timeout_ms must be from {low} to {high}, not {timeout_ms}")
        if not 1 <= len(member_id.encode()) <= MEMBER_ID_BYTES_MAX:
            raise IllegalRequest(f"a member id has 1 to {MEMBER_ID_BYTES_MAX} bytes")
        if len(metadata) > METADATA_BYTES_MAX:
            raise IllegalRequest(f"the metadata of a member has at most {METADATA_BYTES_MAX} bytes")
        if len(room.encode()) > ROOM_BYTES_MAX:
            raise IllegalRequest(f"the room of a member has at most {ROOM_BYTES_MAX} bytes")
        known = self._members.get(member_id)
        if known is None and len(self._members) + new_count >= config.members_max:
            raise GroupFull(f"group={self.group} has {config.members_max} members, which is its limit")
        before: list[MembershipEvent] = []
        since_generation = self._generation + 1
        if known is not None and generation is not None:
            since_generation = self._caller(member_id, generation).since_generation
        elif known is not None:
            before.append(MemberLeft(self.group, member_id, REPLACED))
        member = Member(member_id, subscription, timeout_ms, metadata, since_generation, plans, room)
        return [] if member == known else [*before, self._joined(member)]

    def decide_leave(self, member_id: str, generation: int, topics: Sequence[TopicView]) -> list[MembershipEvent]:
        """A member goes. Raises UnknownMember, StaleGeneration."""
        events, (error,) = self.decide_leaves([(member_id, generation)], topics)
        if error is not None:
            raise error
        return events

    def decide_leaves(
        self, members: Sequence[tuple[str, int]], topics: Sequence[TopicView]
    ) -> tuple[list[MembershipEvent], list[GroupError | None]]:
        """Several at once, each another, by id and generation, with one rebalance. What is wrong with each, in order,
        as `decide_leave` raises it."""
        left: list[MembershipEvent] = []
        errors: list[GroupError | None] = []
        for member_id, generation in members:
            try:
                self._caller(member_id, generation)
            except GroupError as error:
                errors.append(error)
            else:
                errors.append(None)
                left.append(MemberLeft(self.group, member_id, LEFT))
        return self._followed_by_rebalance(left, topics) if left else [], errors

    def decide_evict(self, topics: Sequence[TopicView]) -> list[MembershipEvent]:
        """Put out every member, by force: they have to join again."""
        left: list[MembershipEvent] = [MemberLeft(self.group, member_id, FORCED) for member_id in self._members]
        return self._followed_by_rebalance(left, topics) if left else []

    def decide_release(
        self, member_id: str, generation: int, partitions: Iterable[Partition], topics: Sequence[TopicView]
    ) -> list[MembershipEvent]:
        """A member has drained and committed partitions that were revoked. Others are passed over: it shall have them,
        or does not have them any more. Raises UnknownMember, StaleGeneration."""
        self._caller(member_id, generation)
        released = tuple(
            sorted(
                partition
                for partition in set(partitions)
                if partition in self._revoking_since_ms and self._owned[partition].member_id == member_id
            )
        )
        if not released:
            return []
        event = PartitionsReleased(self.group, member_id, released)
        if self._has_changed:
            return self._followed_by_rebalance([event], topics)
        # Who shall have them has been worked out already: that of 200 members takes 2 ms, and all of them release.
        given = {partition: member for partition in released if (member := self._target.get(partition)) is not None}
        return [event, *self._given(self._generation, given)]

    def decide_expiry(self, topics: Sequence[TopicView], now_ms: int) -> list[MembershipEvent]:
        """Put out members whose session has ended, who drain for too long, or who owe an assignment."""
        reasons: dict[str, str] = {}
        timeout_ms = self._config.drain_timeout_ms
        if self._asked is not None:  # it is not known yet what is to be drained
            if now_ms - self._asked_since_ms > timeout_ms and not self._members[self._asked].plans:
                reasons[self._asked] = ASSIGNMENT_EXPIRED
        else:
            for partition, since_ms in self._revoking_since_ms.items():
                if now_ms - since_ms > timeout_ms:
                    reasons[self._owned[partition].member_id] = DRAIN_EXPIRED
        for member_id, heard_ms in self._heard_ms.items():
            if now_ms - heard_ms > self._members[member_id].session_timeout_ms:
                reasons[member_id] = SESSION_EXPIRED
        left: list[MembershipEvent] = [
            MemberLeft(self.group, member_id, reasons[member_id]) for member_id in self._members if member_id in reasons
        ]
        return self._followed_by_rebalance(left, topics) if left else []

    def decide_rebalance(self, topics: Sequence[TopicView]) -> list[MembershipEvent]:
        """What is missing between how things are and how they should be; nothing when all is well.

        Every change of members ends with this one. Ask also when topics have changed, and from time to time: whatever
        the reason for which a partition has no owner, it has one afterwards.
        """
        events: list[MembershipEvent] = []
        generation, target = self._generation, self._target
        if self._leader_plans:
            self.rooms.warnings = ()
            if self._has_changed:
                generation, target = generation + 1, {}
                leader = next(iter(self._members), None)
                events.append(
                    Rebalanced(self.group, generation, {})
                    if leader is None
                    else AssignmentAsked(self.group, generation, leader)
                )
        else:
            target = self._wanted(self._strategy or Sticky(), topics)
            if self._has_changed or target != self._target:
                generation += 1
                events.append(Rebalanced(self.group, generation, _by_member(target)))
        return events + self._assigned(generation, target)

    def decide_assign(
        self,
        member_id: str,
        generation: int,
        shares: Mapping[str, Sequence[Partition]],
        topics: Sequence[TopicView],
        *,
        notes: Mapping[str, bytes] | None = None,
    ) -> list[MembershipEvent]:
        """The leader's answer: who shall own what in this generation.

        Raises UnknownMember; StaleGeneration when the leader of this generation is another or has answered; and
        IllegalRequest when a partition is given twice, to a stranger, or does not exist.
        """
        self._caller(member_id, generation)
        if self._asked != member_id or generation != self._generation:
            raise StaleGeneration(
                f"group={self.group} member={member_id} was not asked for the assignment of generation {generation}"
            )
        notes = notes or {}
        if strangers := (shares.keys() | notes.keys()) - self._members.keys():
            raise IllegalRequest(f"group={self.group} has no members {', '.join(sorted(strangers))}")
        if any(len(note) > METADATA_BYTES_MAX for note in notes.values()):
            raise IllegalRequest(f"the note for a member has at most {METADATA_BYTES_MAX} bytes")
        try:
            check(shares, self._members, (partition for topic in topics for partition in _partitions_of(topic)))
        except IllegalAssignment as error:
            raise IllegalRequest(str(error)) from error
        target = {partition: member for member, share in shares.items() for partition in share}
        released = {
            partition: owner.member_id
            for partition, owner in self._owned.items()
            if self._members[owner.member_id].plans and target.get(partition) != owner.member_id
        }
        return [
            Rebalanced(self.group, generation, _by_member(target), dict(notes)),
            *(PartitionsReleased(self.group, member, freed) for member, freed in _by_member(released).items()),
            *self._given(
                generation, {p: member for p, member in target.items() if p not in self._owned or p in released}
            ),
        ]

    def check_deletable(self) -> None:
        """Raises GroupActive while there are members."""
        if self._members:
            raise GroupActive(f"group={self.group} has {len(self._members)} members")

    def snapshot(self) -> Iterator[MembershipEvent]:
        """Events that lead an empty machine to this state (but for times, which begin anew): as it is at this call,
        though they are made one by one, later and in another thread."""
        return self._copy()._events()

    def _events(self) -> Iterator[MembershipEvent]:
        for member in self._members.values():
            yield self._joined(member)
        # No change of members is without its generation: every decision ends with a rebalance.
        if self._asked is not None:
            yield AssignmentAsked(self.group, self._generation, self._asked)
        else:
            yield Rebalanced(self.group, self._generation, _by_member(self._target), self._notes)
        owners: dict[Ownership, list[Partition]] = {}
        for partition, owner in sorted(self._owned.items(), key=lambda item: item[0]):
            owners.setdefault(owner, []).append(partition)
        for owner, partitions in owners.items():
            yield PartitionsAssigned(self.group, owner.generation, owner.member_id, tuple(partitions))

    # What has been decided and written

    def apply(self, event: MembershipEvent, now_ms: int) -> None:
        """Change the state; the only way it changes, live or at start. What is revoked is what its owner shall not
        have; an event of one member looks at the partitions of that one alone: hundreds come and go together."""
        self._topics = None
        match event:
            case MemberJoined():
                subscription = Subscription(frozenset(event.topics), event.pattern, event.visible)
                if (known := self._members.get(event.member_id)) is not None:
                    self._members_bytes -= known.size_bytes
                member = self._members[event.member_id] = Member(
                    event.member_id,
                    subscription,
                    event.session_timeout_ms,
                    event.metadata,
                    event.since_generation,
                    event.plans,
                    event.room,
                )
                self._members_bytes += member.size_bytes
                self._heard_ms[event.member_id] = now_ms
                self._has_changed = True
            case MemberLeft():
                self._members_bytes -= self._members.pop(event.member_id).size_bytes
                del self._heard_ms[event.member_id]
                for partition in self._aimed_at(event.member_id):
                    del self._target[partition]
                for partition in self._owned_by(event.member_id):
                    del self._owned[partition]
                    self._revoking_since_ms.pop(partition, None)
                self._indexes_without(event.member_id)
                self._has_changed = True
            case AssignmentAsked():
                self._generation, self._asked = event.generation, event.leader
                self._asked_since_ms = now_ms
                self._target, self._notes = {}, {}
                self._target_changed(now_ms)
                self._has_changed = False
            case Rebalanced():
                if self._asked is not None:  # only now is it known what moves, so only now draining begins
                    self._revoking_since_ms = {}
                self._generation, self._asked = event.generation, None
                self._target = {p: member for member, share in event.shares.items() for p in share}
                self._notes = event.notes
                self._target_changed(now_ms)
                self._has_changed = False
            case PartitionsAssigned():
                for partition in event.partitions:
                    assert partition not in self._owned, "M1: a partition has one owner"
                    self._owned[partition] = Ownership(event.member_id, event.generation)
                    if self._target.get(partition) != event.member_id:
                        self._revoking_since_ms[partition] = now_ms
                self._by_owner = None
            case PartitionsReleased():
                for partition in event.partitions:
                    del self._owned[partition]
                    self._revoking_since_ms.pop(partition, None)
                self._by_owner = None
            case _:
                assert_never(event)

    def _target_changed(self, now_ms: int) -> None:
        """What is revoked of all that is owned."""
        self._by_target = None
        self._revoking_since_ms = {
            partition: self._revoking_since_ms.get(partition, now_ms)
            for partition, owner in self._owned.items()
            if self._target.get(partition) != owner.member_id
        }

    def _indexes_without(self, member_id: str) -> None:
        for index in (self._by_owner, self._by_target):
            if index is not None:
                index.pop(member_id, None)

    # How it is worked out

    def _owned_by(self, member_id: str) -> Sequence[Partition]:
        """Sorted. After a change every member asks for its own."""
        if self._by_owner is None:
            self._by_owner = {}
            for partition in sorted(self._owned):
                self._by_owner.setdefault(self._owned[partition].member_id, []).append(partition)
        return self._by_owner.get(member_id, ())

    def _aimed_at(self, member_id: str) -> Sequence[Partition]:
        """What a member shall own."""
        if self._by_target is None:
            self._by_target = {}
            for partition, member in self._target.items():
                self._by_target.setdefault(member, []).append(partition)
        return self._by_target.get(member_id, ())

    def _member(self, member_id: str) -> Member:
        member = self._members.get(member_id)
        if member is None:
            raise UnknownMember(f"group={self.group} has no member {member_id}: join again")
        return member

    def _caller(self, member_id: str, generation: int) -> Member:
        """The member, if it is this process that calls. Raises UnknownMember, StaleGeneration."""
        member = self._member(member_id)
        if not member.since_generation <= generation <= self._generation:
            raise StaleGeneration(
                f"group={self.group} member={member_id} is in since generation {member.since_generation}, the group is "
                f"at {self._generation}; the call is of {generation}"
            )
        return member

    def _joined(self, member: Member) -> MemberJoined:
        wish = member.subscription
        return MemberJoined(
            self.group,
            member.member_id,
            tuple(sorted(wish.topics)),
            wish.pattern,
            member.session_timeout_ms,
            member.since_generation,
            member.metadata,
            wish.visible,
            member.plans,
            member.room,
        )

    def _followed_by_rebalance(
        self, events: list[MembershipEvent], topics: Sequence[TopicView], *, is_round: bool = False
    ) -> list[MembershipEvent]:
        """The events of a change and of the rebalance after it, worked out on a copy: they are written together."""
        after = self._copy()
        for event in events:
            after.apply(event, 0)
        if is_round and after._leader_plans:
            after._has_changed = True
        return events + after.decide_rebalance(topics)

    def _copy(self) -> Membership:
        """Another one of the same state: what `apply` changes in place is its own."""
        made = copy(self)
        made._members, made._heard_ms, made._owned = dict(self._members), dict(self._heard_ms), dict(self._owned)
        made._target, made._revoking_since_ms = dict(self._target), dict(self._revoking_since_ms)
        made._by_owner = None if self._by_owner is None else dict(self._by_owner)
        made._by_target = None if self._by_target is None else dict(self._by_target)
        return made

    def _assigned(self, generation: int, target: Mapping[Partition, str]) -> list[MembershipEvent]:
        """What can be given now: partitions with a target and without an owner."""
        return self._given(generation, {p: member for p, member in target.items() if p not in self._owned})

    def _given(self, generation: int, free: Mapping[Partition, str]) -> list[MembershipEvent]:
        return [
            PartitionsAssigned(self.group, generation, member, partitions)
            for member, partitions in _by_member(free).items()
        ]

    def _wanted(self, strategy: Strategy, topics: Sequence[TopicView]) -> dict[Partition, str]:
        """Who shall own what, by the strategy: asked once for all topics that the same members want."""
        members_of: dict[Subscription, list[str]] = {}
        for member in self._members.values():
            members_of.setdefault(member.subscription, []).append(member.member_id)
        partitions_of: dict[tuple[str, ...], list[Partition]] = {}
        for topic in topics:
            wanting = [members for wish, members in members_of.items() if wish.matches(topic.name)]
            if wanting:
                subscribers = tuple(sorted(member for members in wanting for member in members))
                partitions_of.setdefault(subscribers, []).extend(_partitions_of(topic))
        current = _by_member(self._target)
        target: dict[Partition, str] = {}
        self.rooms.begin({member.member_id: member.room for member in self._members.values() if member.room})
        for subscribers, partitions in partitions_of.items():
            try:
                shares = allocate(strategy, subscribers, partitions, current)
            except Exception:  # a plug-in may raise anything; the members it has go on with what they have
                log.exception("group=%s strategy=%s failed; its assignment stays", self.group, strategy.name)
                existing = set(partitions).intersection(self._target)
                target |= {p: self._target[p] for p in existing if self._target[p] in subscribers}
            else:
                target |= {partition: member for member, share in shares.items() for partition in share}
        self.rooms.end()
        return target


def _partitions_of(topic: TopicView) -> list[Partition]:
    return [Partition(topic.name, topic.topic_id, number) for number in range(topic.partitions)]


def _by_member(target: Mapping[Partition, str]) -> dict[str, tuple[Partition, ...]]:
    shares: dict[str, list[Partition]] = {}
    for partition, member in sorted(target.items()):
        shares.setdefault(member, []).append(partition)
    return {member: tuple(shares[member]) for member in sorted(shares)}

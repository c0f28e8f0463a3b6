"""Kafka's classic group protocol on mq's groups: the join barrier, and what a member is told.

Kafka's members and all others are members of the same groups (gateway/groups): the same offsets, generations and
fencing. A group is in one of two ways, by who is in it now:

    planned   all members are Kafka's. A change of members begins a round: every member joins again, or is put out after
              the longest rebalance timeout; then a generation begins, its leader computes the assignment (SyncGroup),
              and each member is told its part
    assigned  any member is not Kafka's. The server assigns by the group's strategy. A Kafka member's JoinGroup is
              answered at once, it is never the leader, and SyncGroup answers the server's plan for it. When the plan
              changes its heartbeat says REBALANCE_IN_PROGRESS: it gives up what it no longer has by joining again

What is kept here is what a restart may lose: rounds, and what was told. A member's Kafka side (protocols, timeouts,
names) is its `metadata`, which is durable; so after a restart members go on under their generation, and a round that
had begun begins again.

    crash                                       what clients see
    while a round waits for members             the former generation; heartbeats go on, or joins are sent again
    after the round is durable                  a generation whose assignment is awaited: the leader sends it again, or
    a
                                                heartbeat of an older generation makes its member join
    after the assignment is durable             SyncGroup, sent again, answers it
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from time import monotonic
from typing import Any, NamedTuple

import orjson

from gateway.groups.machines.errors import GroupError
from gateway.groups.machines.membership import Join, Member, Share
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import Groups, MemberKey, TopicPartition
from gateway.surfaces.kafka.errors import (
    FENCED_INSTANCE_ID,
    INCONSISTENT_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from gateway.surfaces.kafka.schema import Malformed, decode, encode
from store.waits import is_set_within

INITIAL_WAIT_S = 0.3
"""How long the first round of a group waits for more members: without it each of them would begin one of its own."""

LOOK_S = 1.0
"""How often a round looks who is still alive, and keeps alive who waits in it."""

PENDING_MAX = 10_000
"""Member ids that were given out and not come back with, in all groups: clients come back with theirs at once, so the
first of them is given up."""

CONSUMER = "consumer"
NO_TOPICS = "/"
"""A pattern that no topic's name matches: of a member that wants no topic (yet)."""

_SUBSCRIPTION, _ASSIGNMENT = "ConsumerProtocolSubscription", "ConsumerProtocolAssignment"
_VERSION_MAX = 3
_METADATA_KIND = "kafka"


class Refused(Exception):
    """A refusal with a code of Kafka's."""

    def __init__(self, code: int, *, member_id: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.member_id = member_id


class KafkaMember(NamedTuple):
    """The Kafka side of a member."""

    client_id: str
    client_host: str
    instance_id: str | None
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Mapping[str, bytes]
    """Its metadata for each way of assigning that it knows, the one it likes best first."""

    def encoded(self) -> bytes:
        """As it is kept with the member."""
        fields = self._asdict() | {
            "kind": _METADATA_KIND,
            "protocols": [[name, base64.b64encode(content).decode()] for name, content in self.protocols.items()],
        }
        return orjson.dumps(fields)


def kafka_member(member: Member) -> KafkaMember | None:
    """The Kafka side of a member; None: it has none."""
    if not member.plans:
        return None
    fields = orjson.loads(member.metadata)
    del fields["kind"]
    fields["protocols"] = {name: base64.b64decode(content) for name, content in fields["protocols"]}
    return KafkaMember(**fields)


class JoinAsked(NamedTuple):
    """One JoinGroup request."""

    group: str
    member_id: str
    session_timeout_ms: int
    member: KafkaMember
    subscription: Subscription
    owned: frozenset[TopicPartition]
    """What it has not given up, as cooperative members say; eager ones have given up all."""

    needs_id: bool
    """Whether a new member is to come back with the id that it is told."""

    room: str = ""


class Joined(NamedTuple):
    """The answer to a JoinGroup request. `members` for the leader alone: each with its instance id and metadata."""

    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    members: Sequence[tuple[str, str | None, bytes]] = ()


@dataclass(slots=True)
class _Round:
    """Members that wait for the others to join."""

    joins: dict[str, JoinAsked] = field(default_factory=dict)
    answers: dict[str, asyncio.Future[Joined]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _GroupState:
    """What is kept of one group besides its members."""

    round: _Round | None = None
    ending: _Round | None = None  # the one before, while its generation is made durable
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # rounds and ends of leaders, under way
    planned: dict[int, asyncio.Future[None]] = field(default_factory=dict)  # by generation, while it is awaited
    told: dict[str, tuple[Partition, ...]] = field(default_factory=dict)  # in assigned groups, by member
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class KafkaGroups:
    """Kafka's side of all groups of this node."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._states: dict[str, _GroupState] = {}
        self._pending: OrderedDict[str, str] = OrderedDict()  # member ids that were given out, each for its group

    # ------------------------------------------------------------------------------------------- JoinGroup

    async def join(self, asked: JoinAsked) -> Joined:
        """Come in, or join again; waits for the other members where they plan. Raises Refused, GroupError,
        StoreError."""
        state = self._states.setdefault(asked.group, _GroupState())
        try:
            members = self._groups.members(asked.group)
            self._check_protocols(asked, state, members)
            asked = self._identified(asked, state, members)
            if any(not member.plans for member in members.values()):
                return await self._join_assigned(asked, state)
            return await self._join_round(asked, state)
        finally:
            self._forget_if_idle(asked.group)

    def _identified(self, asked: JoinAsked, state: _GroupState, members: Mapping[str, Member]) -> JoinAsked:
        """The request under the member's id. Raises Refused: MEMBER_ID_REQUIRED with a new one, UNKNOWN_MEMBER_ID."""
        instance_id = asked.member.instance_id
        if asked.member_id:
            known = asked.member_id in members or self._pending.get(asked.member_id) == asked.group
            in_round = state.round is not None and asked.member_id in state.round.joins
            if not known and not in_round:
                raise Refused(UNKNOWN_MEMBER_ID)
            holder = self.holder_of(asked.group, instance_id)
            if holder not in (None, asked.member_id):
                raise Refused(FENCED_INSTANCE_ID)
            self._pending.pop(asked.member_id, None)
            return asked
        name = instance_id or asked.member.client_id or "member"
        member_id = f"{name[:150]}-{token_hex(16)}"
        if asked.needs_id and instance_id is None:
            if len(self._pending) >= PENDING_MAX:
                self._pending.popitem(last=False)
            self._pending[member_id] = asked.group
            raise Refused(MEMBER_ID_REQUIRED, member_id=member_id)
        return asked._replace(member_id=member_id)

    def holder_of(self, group: str, instance_id: str | None) -> str | None:
        """The member that has a static name; None: there is none."""
        if instance_id is None:
            return None
        for member_id, member in self._groups.members(group).items():
            known = kafka_member(member)
            if known is not None and known.instance_id == instance_id:
                return member_id
        return None

    def _check_protocols(self, asked: JoinAsked, state: _GroupState, members: Mapping[str, Member]) -> None:
        """Raises Refused unless the member has a way of assigning in common with all others, so those of a round always
        have one: as they have joined it, or are known."""
        others = {id_: kafka for id_, member in members.items() if (kafka := kafka_member(member))}
        for joining in (state.ending, state.round):
            if joining is not None:
                others |= {id_: other.member for id_, other in joining.joins.items()}
        others.pop(asked.member_id, None)
        mine = asked.member
        if not mine.protocols or not mine.protocol_type:
            raise Refused(INCONSISTENT_PROTOCOL)
        common = set(mine.protocols).intersection(*(other.protocols for other in others.values()))
        if not common or any(other.protocol_type != mine.protocol_type for other in others.values()):
            raise Refused(INCONSISTENT_PROTOCOL)
        if mine.protocol_type != CONSUMER and any(not member.plans for member in members.values()):
            raise Refused(INCONSISTENT_PROTOCOL)

    async def _join_assigned(self, asked: JoinAsked, state: _GroupState) -> Joined:
        """Join a group in which the server assigns."""
        group, member_id = asked.group, asked.member_id
        async with state.turn:
            leaving = self._replaced(asked)
            (share,) = await self._groups.begin_round(group, [self._join_of(asked)], leaving)
            if isinstance(share, Exception):
                raise share
            given_up = [
                TopicPartition(one.topic, one.partition)
                for one in share.revoking
                if TopicPartition(one.topic, one.partition) not in asked.owned
            ]
            if given_up:
                share = await self._groups.release(group, MemberKey(member_id, share.generation), given_up)
        protocol = next(iter(asked.member.protocols))
        return Joined(share.generation, asked.member.protocol_type, protocol, "mq", member_id)

    def _replaced(self, asked: JoinAsked) -> list[str]:
        """The former member of a static name that another one has now."""
        holder = self.holder_of(asked.group, asked.member.instance_id)
        return [] if holder is None or holder == asked.member_id else [holder]

    async def _join_round(self, asked: JoinAsked, state: _GroupState) -> Joined:
        """Join a group whose members plan."""
        if state.round is None:
            state.round = _Round()
            # Their leader is to join as well, and while they wait they send no heartbeats that would tell them.
            _refuse_planned(state, REBALANCE_IN_PROGRESS)
            _begin(state, self._run_round(asked.group, state, state.round), "kafka round")
        current = state.round
        if (before := current.answers.get(asked.member_id)) is not None and not before.done():
            before.set_exception(Refused(UNKNOWN_MEMBER_ID))  # it has asked again, on another connection
        for holder in self._replaced(asked):
            if (fenced := current.answers.pop(holder, None)) is not None and not fenced.done():
                fenced.set_exception(Refused(FENCED_INSTANCE_ID))
            current.joins.pop(holder, None)
        answer: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        current.joins[asked.member_id], current.answers[asked.member_id] = asked, answer
        current.changed.set()
        try:
            return await answer
        except asyncio.CancelledError:  # the client has gone: the others do not wait for it
            if current.answers.get(asked.member_id) is answer:
                del current.joins[asked.member_id], current.answers[asked.member_id]
                current.changed.set()
            raise

    async def _run_round(self, group: str, state: _GroupState, current: _Round) -> None:
        """Wait for the members, begin a generation, and tell them."""
        try:
            await self._gather(group, current)
            state.round, state.ending = None, current  # who comes from now on is in the next one
            await self._finish_round(group, state, current)
        except Exception as error:
            self._fail(current, error)
        finally:
            if state.round is current:
                state.round = None
            if state.ending is current:
                state.ending = None
            self._fail(current, Refused(NOT_COORDINATOR))
            self._forget_if_idle(group)

    def _fail(self, current: _Round, error: Exception) -> None:
        for answer in current.answers.values():
            if not answer.done():
                answer.set_exception(error)

    async def _gather(self, group: str, current: _Round) -> None:
        """Wait until all members have joined again, or the longest rebalance timeout is over."""
        began_s = monotonic()
        if not self._groups.members(group):
            await asyncio.sleep(INITIAL_WAIT_S)
        while True:
            members = self._groups.members(group)
            missing = members.keys() - current.joins.keys()
            if not current.joins or any(not member.plans for member in members.values()):
                return
            missing -= {holder for asked in current.joins.values() for holder in self._replaced(asked)}
            if not missing:
                return
            timeouts = [one.member.rebalance_timeout_ms for one in current.joins.values()]
            timeouts += [kafka.rebalance_timeout_ms for id_ in missing if (kafka := kafka_member(members[id_]))]
            left_s = began_s + max(timeouts) / 1000 - monotonic()
            if left_s <= 0:
                return
            for member_id in current.joins.keys() & members.keys():
                self._keep_alive(group, member_id)
            current.changed.clear()
            await is_set_within(current.changed, min(left_s, LOOK_S))

    def _keep_alive(self, group: str, member_id: str) -> None:
        """A member that waits in a request sends no heartbeats."""
        state = self._groups.plan_state(group)
        with suppress(GroupError):
            if state is not None:
                self._groups.heartbeat(group, MemberKey(member_id, state.generation))

    async def _finish_round(self, group: str, state: _GroupState, current: _Round) -> None:
        members = self._groups.members(group)
        joins = list(current.joins.values())
        if not joins:
            return
        if any(not member.plans for member in members.values()):  # another member has come meanwhile
            for asked in joins:
                answer = current.answers[asked.member_id]
                try:
                    joined = await self._join_assigned(asked, state)
                    if not answer.done():
                        answer.set_result(joined)
                except Exception as error:
                    if not answer.done():
                        answer.set_exception(error)
            return
        leaving = sorted(members.keys() - current.joins.keys())
        shares = await self._groups.begin_round(group, [self._join_of(asked) for asked in joins], leaving)
        came: dict[str, JoinAsked] = {}
        for asked, share in zip(joins, shares, strict=True):
            answer = current.answers[asked.member_id]
            if isinstance(share, Exception):
                if not answer.done():
                    answer.set_exception(share)
            else:
                came[asked.member_id] = asked
        plan = self._groups.plan_state(group)
        if plan is None or not came:
            return
        if plan.leader is None:  # not planned any more: their first heartbeat tells them to join again
            plan = plan._replace(leader="mq")
        protocol = _chosen([asked.member for asked in came.values()])
        state.planned[plan.generation] = asyncio.get_running_loop().create_future()
        for member_id, asked in came.items():
            told: Sequence[tuple[str, str | None, bytes]] = ()
            if member_id == plan.leader:
                told = [(id_, one.member.instance_id, one.member.protocols[protocol]) for id_, one in came.items()]
            answer = current.answers[member_id]
            if not answer.done():
                answer.set_result(
                    Joined(plan.generation, asked.member.protocol_type, protocol, plan.leader or "", member_id, told)
                )
        longest_ms = max(asked.member.rebalance_timeout_ms for asked in came.values())
        asyncio.get_running_loop().call_later(
            longest_ms / 1000, self._look_for_plan, group, state, plan.generation, plan.leader or ""
        )

    def _look_for_plan(self, group: str, state: _GroupState, generation: int, leader: str) -> None:
        """Put out a leader that has not sent the assignment in time."""
        waiting = state.planned.pop(generation, None)
        if waiting is None or waiting.done():
            return
        waiting.set_exception(Refused(REBALANCE_IN_PROGRESS))
        waiting.exception()

        async def put_out() -> None:
            with suppress(GroupError):
                await self._groups.leave(group, MemberKey(leader, generation))

        _begin(state, put_out(), "kafka leader expired")

    def _join_of(self, asked: JoinAsked) -> Join:
        plan = self._groups.plan_state(asked.group)
        is_known = asked.member_id in self._groups.members(asked.group)
        return Join(
            asked.member_id,
            asked.subscription,
            plan.generation if plan is not None and is_known else None,
            asked.session_timeout_ms,
            asked.member.encoded(),
            True,
            asked.room,
        )

    # ------------------------------------------------------------------------------------------- SyncGroup

    async def sync(
        self,
        group: str,
        member: MemberKey,
        instance_id: str | None,
        assignments: Mapping[str, bytes],
        *,
        protocol: tuple[str | None, str | None] = (None, None),
    ) -> bytes:
        """The member's part of the assignment, which the leader gives and the others wait for. `protocol`: type and
        name of what the member has joined with; None: it does not say. Raises Refused, GroupError, StoreError,
        Malformed."""
        self.check_instance(group, member.member_id, instance_id)
        share = self._groups.heartbeat(group, member)
        self._check_protocol(group, member.member_id, *protocol)
        state = self._states.setdefault(group, _GroupState())
        try:
            plan = self._groups.plan_state(group)
            if plan is None or (state.round is not None and member.member_id not in state.round.joins):
                raise Refused(REBALANCE_IN_PROGRESS)
            if not plan.is_planned:
                return self._sync_assigned(group, member, share, state)
            if plan.generation != member.generation:
                raise Refused(REBALANCE_IN_PROGRESS)
            if plan.is_asked and plan.leader == member.member_id:
                shares = {id_: _partitions_in(content) for id_, content in assignments.items()}
                try:
                    share = await self._groups.assign(group, member, shares, assignments)
                finally:
                    if (waiting := state.planned.pop(member.generation, None)) is not None and not waiting.done():
                        waiting.set_result(None)
                return share.note
            if plan.is_asked:
                await self._planned(group, member, state)
                share = self._groups.heartbeat(group, member)
                plan = self._groups.plan_state(group)
                if plan is None or plan.generation != member.generation or plan.is_asked:
                    raise Refused(REBALANCE_IN_PROGRESS)
            return share.note
        finally:
            self._forget_if_idle(group)

    def _check_protocol(self, group: str, member_id: str, protocol_type: str | None, name: str | None) -> None:
        """Raises Refused when the member has not joined with these; None: it does not say."""
        own = kafka_member(self._groups.members(group)[member_id])
        if own is not None and (
            protocol_type not in (None, own.protocol_type) or (name is not None and name not in own.protocols)
        ):
            raise Refused(INCONSISTENT_PROTOCOL)

    async def _planned(self, group: str, member: MemberKey, state: _GroupState) -> None:
        """Wait until the leader of a generation has assigned, or a round or another generation has begun."""
        waiting = state.planned.setdefault(member.generation, asyncio.get_running_loop().create_future())
        while not waiting.done():
            plan = self._groups.plan_state(group)
            if plan is None or plan.generation != member.generation:
                raise Refused(REBALANCE_IN_PROGRESS)
            self._keep_alive(group, member.member_id)
            await asyncio.wait((waiting,), timeout=LOOK_S)
        waiting.result()

    def _sync_assigned(self, group: str, member: MemberKey, share: Share, state: _GroupState) -> bytes:
        """The server's plan for a member, as far as its generation may have it."""
        if share.generation != member.generation and state.told.get(member.member_id) != share.assigned:
            raise Refused(REBALANCE_IN_PROGRESS)
        state.told[member.member_id] = share.assigned
        return assignment_of(share.assigned)

    # ------------------------------------------------------------------------------------------- the others

    def heartbeat(self, group: str, member: MemberKey, instance_id: str | None) -> None:
        """A sign of life. Raises Refused when the member is to join again, GroupError."""
        self.check_instance(group, member.member_id, instance_id)
        share = self._groups.heartbeat(group, member)
        plan = self._groups.plan_state(group)
        assert plan is not None
        state = self._states.get(group)
        if state is not None and state.round is not None and member.member_id not in state.round.joins:
            raise Refused(REBALANCE_IN_PROGRESS)
        if plan.is_planned:
            if share.generation != member.generation:
                raise Refused(REBALANCE_IN_PROGRESS)
        elif share.revoking or state is None or state.told.get(member.member_id) != share.assigned:
            raise Refused(REBALANCE_IN_PROGRESS)

    async def leave(self, group: str, member_id: str, instance_id: str | None) -> None:
        """A member goes. Raises Refused, GroupError, StoreError."""
        if not member_id and instance_id is not None:
            member_id = self.holder_of(group, instance_id) or ""
        state = self._states.get(group)
        if self._pending.get(member_id) == group:
            del self._pending[member_id]
        if state is not None:
            state.told.pop(member_id, None)
        plan = self._groups.plan_state(group)
        if plan is None:
            raise Refused(UNKNOWN_MEMBER_ID)
        await self._groups.leave(group, MemberKey(member_id, plan.generation))
        if state is not None and state.round is not None:
            state.round.changed.set()

    def check_instance(self, group: str, member_id: str, instance_id: str | None) -> None:
        """Raises Refused when another member has this static name, or none has."""
        if instance_id is None:
            return
        holder = self.holder_of(group, instance_id)
        if holder != member_id:
            raise Refused(UNKNOWN_MEMBER_ID if holder is None else FENCED_INSTANCE_ID)

    def _forget_if_idle(self, group: str) -> None:
        state = self._states.get(group)
        is_idle = state is not None and state.round is None and state.ending is None
        if is_idle and self._groups.plan_state(group) is None:
            del self._states[group]

    def forget(self, group: str) -> None:
        """Keep nothing but ids that were given out of a group that has gone to another node: it may come back
        otherwise. Who waits is told."""
        state = self._states.pop(group, None)
        if state is None:
            return
        for task in list(state.tasks):
            task.cancel()
        _refuse_planned(state, NOT_COORDINATOR)

    async def close(self) -> None:
        """End what waits; clients join again with the next server."""
        for state in list(self._states.values()):
            for task in list(state.tasks):
                task.cancel()


def _begin(state: _GroupState, work: Coroutine[Any, Any, None], name: str) -> None:
    """Begin a task of a group, which is kept until it ends: the event loop alone would not."""
    task = asyncio.create_task(work, name=name)
    state.tasks.add(task)
    task.add_done_callback(state.tasks.discard)


def _refuse_planned(state: _GroupState, code: int) -> None:
    """Nobody waits for an assignment any more."""
    for waiting in state.planned.values():
        if not waiting.done():
            waiting.set_exception(Refused(code))
            waiting.exception()
    state.planned.clear()


def _chosen(members: Sequence[KafkaMember]) -> str:
    """The way of assigning that most members like best of those that all of them know."""
    common = set(members[0].protocols).intersection(*(member.protocols for member in members[1:]))
    votes: dict[str, int] = {}
    for member in members:
        favourite = next(name for name in member.protocols if name in common)
        votes[favourite] = votes.get(favourite, 0) + 1
    return max(votes, key=lambda name: votes[name])


class Wanted(NamedTuple):
    """What the metadata of a consumer says: the topics it wants, the partitions it has not given up, its room."""

    topics: Sequence[str] = ()
    owned: frozenset[TopicPartition] = frozenset()
    room: str = ""


def subscription_of(protocol_type: str, metadata: bytes) -> Wanted:
    """What the metadata of a consumer says; nothing, for that of anything else. Raises Malformed."""
    if protocol_type != CONSUMER or len(metadata) < 2:
        return Wanted()
    version = min(int.from_bytes(metadata[:2], "big", signed=True), _VERSION_MAX)
    if version < 0:
        raise Malformed(f"a subscription of version {version}")
    message = decode(_SUBSCRIPTION, version, metadata, 2)
    owned = [
        TopicPartition(one["topic"], number)
        for one in message.get("owned_partitions", ())
        for number in one["partitions"]
    ]
    return Wanted(message["topics"], frozenset(owned), message.get("rack_id") or "")


def _partitions_in(assignment: bytes) -> list[TopicPartition]:
    """The partitions of an assignment; none, for one that is not of a consumer."""
    if len(assignment) < 6:
        return []
    version = min(int.from_bytes(assignment[:2], "big", signed=True), _VERSION_MAX)
    try:
        message = decode(_ASSIGNMENT, max(version, 0), assignment, 2)
    except Malformed:
        return []
    return [
        TopicPartition(one["topic"], number) for one in message["assigned_partitions"] for number in one["partitions"]
    ]


def assignment_of(partitions: Sequence[Partition]) -> bytes:
    """The assignment that tells a consumer of these partitions."""
    topics: dict[str, list[int]] = {}
    for one in partitions:
        topics.setdefault(one.topic, []).append(one.partition)
    assigned = [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()]
    return b"\0\0" + bytes(encode(_ASSIGNMENT, 0, {"assigned_partitions": assigned, "user_data": None}))


def subscription_bytes(topics: Sequence[str]) -> bytes:
    """The metadata that tells of a member that wants these topics."""
    return b"\0\0" + bytes(encode(_SUBSCRIPTION, 0, {"topics": list(topics), "user_data": None}))

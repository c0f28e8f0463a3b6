"""Stream mode: members come and go, partitions move between them, offsets are committed.

Every change is decided under the group's turn, written flushed, and applied before it is answered. Joins that come
while one is being written share the next go, and with it one rebalance; so do those who leave. The members of a
broadcasting group are groups of their own here (see gateway/groups/machines/broadcast.py); who joins without a name
leaves no position behind.

    crash                                     what a restart finds
    after a join is durable, before its answer   the member, who joins again: under its generation as the same process,
                                                  without it as a successor
    after a release, before the assignment        both or neither: they are one entry
    after a commit, before its answer             the commit; committing again changes nothing
    members that were in at the crash              still in, each with a whole session to be heard in again
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import TypeVar

from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.goes import Goes
from gateway.groups.coordinator.start_positions import decide_follow
from gateway.groups.machines.broadcast import is_lone, lone_group, member_of
from gateway.groups.machines.config import BROADCAST
from gateway.groups.machines.copies import check_group_name
from gateway.groups.machines.errors import (
    GroupActive,
    GroupElsewhere,
    GroupError,
    GroupFull,
    IllegalRequest,
    UnknownMember,
)
from gateway.groups.machines.events import (
    AssignmentAsked,
    DocumentPut,
    Event,
    Forgotten,
    MemberJoined,
    MemberLeft,
    MembershipEvent,
    Rebalanced,
)
from gateway.groups.machines.membership import (
    ASSIGNED_BYTES,
    MEMBER_BYTES,
    TOPIC_BYTES,
    Join,
    Membership,
    PlanState,
    Share,
)
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import Subscription
from gateway.groups.machines.table import Group, document_bytes
from gateway.groups.protocol import MemberKey, TopicPartition
from gateway.routing.base import TopicView
from store.errors import RecordTooLarge, UnknownQueue
from store.uncancelled import uncancelled

Decided = TypeVar("Decided")

NAMELESS = "m-"
"""Begins the ids that are made here. No member comes back under such a one: a broadcasting group keeps no position for
it."""

SHARED_IN_LOOP_MAX = 2_000
"""Partitions, of all topics, and MEMBERS_SHARE times the members, that are shared out without a thread."""

MEMBERS_SHARE = 4

CALLS_PER_GO = 500
"""Members that come, or go, with one rebalance."""


class StreamMode:
    """Members of all groups of one node."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._joins = Goes(self._join_all, calls_max=CALLS_PER_GO)  # whose caller is cancelled: its session will end
        self._leaves = Goes(self._leave_all, calls_max=CALLS_PER_GO)
        self._look_at_ms: dict[str, int] = {}  # when a group's members are to be looked at next

    # What members do

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
        """See `Groups.join`."""
        check_group_name(group)
        member_id = member_id or f"{NAMELESS}{token_hex(8)}"
        join = Join(member_id, subscription, generation, session_timeout_ms, metadata, room=room)
        return member_id, await self._joins.ask(group, member_id, join)

    async def _join_all(self, group: str, joins: Sequence[Join]) -> list[Share | Exception]:
        context = self._context
        async with context.whole_group(group):
            if context.table.config(group).mode != BROADCAST:
                return await self._join_some(group, joins)
            outcomes: list[Share | Exception] = []
            for join in joins:
                name = lone_group(group, join.member_id)
                try:
                    self._check_member_count(group, name)
                    async with context.turns.of_group(name):
                        outcomes += await self._join_some(name, [join])
                except GroupError as error:
                    outcomes.append(error)
            return outcomes

    async def begin_round(self, group: str, joins: Sequence[Join], leaving: Sequence[str]) -> list[Share | Exception]:
        """See `Groups.begin_round`."""
        check_group_name(group)
        context = self._context
        async with context.whole_group(group):
            if context.table.config(group).mode == BROADCAST:
                raise IllegalRequest(f"group={group} is broadcasting: no member can plan for others")
            return await self._join_some(group, joins, leaving, is_round=True)

    def plan_state(self, group: str) -> PlanState | None:
        """See `Groups.plan_state`."""
        table = self._context.table
        if group not in table or not (membership := table.get(group).membership).members():
            return None
        return membership.plan_state()

    async def _join_some(
        self, name: str, joins: Sequence[Join], leaving: Sequence[str] = (), *, is_round: bool = False
    ) -> list[Share | Exception]:
        """The turn of the group is the caller's."""
        context = self._context
        state = context.table.get_or_new(name)
        if state.leased_count(context.clock.now_ms()):
            raise GroupActive(f"group={name} has records on lease in queue mode; use another group to stream")
        topics = context.routes.topics()
        events, errors = await self._decided(
            state.membership,
            topics,
            lambda: state.membership.decide_joins(joins, topics, leaving=leaving, is_round=is_round),
        )
        wishes: list[DocumentPut] = []
        known = dict(state.documents)
        try:
            for join, refusal in zip(joins, errors, strict=True):
                if refusal is None:
                    more = decide_follow(name, known, join.subscription, topics)
                    known |= dict.fromkeys((wish.key for wish in more), b"")
                    wishes += more
            with context.room.for_bytes(name, _added_bytes(state, wishes, events)):
                await context.write([*wishes, *events])
        except (GroupFull, RecordTooLarge) as error:  # who is too much is refused alone
            if len(joins) == 1:
                return [error]
            half = len(joins) // 2
            return [
                *await self._join_some(name, joins[:half], leaving, is_round=is_round),
                *await self._join_some(name, joins[half:], is_round=is_round),
            ]
        membership = context.table.get(name).membership
        outcomes: list[Share | Exception] = []
        for join, refusal in zip(joins, errors, strict=True):
            if refusal is None:
                generation = membership.share(join.member_id).generation
                outcomes.append(membership.heartbeat(join.member_id, generation, context.monotonic_ms()))
            else:
                outcomes.append(refusal)
        return outcomes

    def heartbeat(self, group: str, member: MemberKey) -> Share:
        """See `Groups.heartbeat`."""
        membership = self._context.table.get(self._joined(group, member.member_id)).membership
        return membership.heartbeat(member.member_id, member.generation, self._context.monotonic_ms())

    async def share_changed(self, group: str, member_id: str, since: Share) -> Share:
        """See `Groups.share_changed`."""
        context = self._context
        while True:
            name = self._joined(group, member_id)
            share = context.table.get(name).membership.share(member_id)
            if share != since:
                return share
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            context.members_changed.listen(name, waiter)
            try:
                await waiter
            finally:
                context.members_changed.forget(name, waiter)

    async def release(self, group: str, member: MemberKey, partitions: Sequence[TopicPartition]) -> Share:
        """See `Groups.release`."""
        context = self._context
        async with context.turns.of_group(self.name_of(group, member.member_id)):
            membership = context.table.get(self._joined(group, member.member_id)).membership
            owned = self.partitions_of(group, member.member_id, partitions)
            topics = context.routes.topics()
            events = await self._decided(membership, topics, lambda: membership.decide_release(*member, owned, topics))
            await context.write(events)
            return membership.heartbeat(*member, context.monotonic_ms())

    async def leave(self, group: str, member: MemberKey) -> None:
        """See `Groups.leave`."""
        await self._leaves.ask(self.name_of(group, member.member_id), member.member_id, member)

    async def _leave_all(self, name: str, members: Sequence[MemberKey]) -> list[Exception | None]:
        context = self._context
        async with context.turns.of_group(name):
            if name not in context.table:
                return [_not_joined(name, member.member_id) for member in members]
            membership, topics = context.table.get(name).membership, context.routes.topics()
            events, errors = await self._decided(membership, topics, lambda: membership.decide_leaves(members, topics))
            await context.write([*events, *_offsets_of_nameless(name)] if events else [])
        return list(errors)

    async def assign(
        self, group: str, member: MemberKey, shares: Mapping[str, Sequence[TopicPartition]], notes: Mapping[str, bytes]
    ) -> Share:
        """See `Groups.assign`."""
        context = self._context
        async with context.turns.of_group(group):
            membership = context.table.get(group).membership
            topics = context.routes.topics()
            views = {view.name: view for view in topics}
            planned = {
                member_id: [
                    Partition(topic, views[topic].topic_id, number)
                    for topic, number in share
                    if topic in views and 0 <= number < views[topic].partitions
                ]
                for member_id, share in shares.items()
            }
            events = membership.decide_assign(*member, planned, topics, notes=notes)
            with context.room.for_bytes(group, _added_bytes(context.table.get(group), (), events)):
                await context.write(events)
            return membership.share(member.member_id)

    def decide_evict(self, group: str) -> list[MembershipEvent]:
        """The events that put out every member. The group's turn is the caller's."""
        context = self._context
        return context.table.get(group).membership.decide_evict(context.routes.topics())

    # What time does

    async def look(self) -> None:
        """Put out members whose time is over, and heal what is not as it should be, in the groups that are due."""
        context = self._context
        now_ms = context.monotonic_ms()
        for name in [group.name for group in context.table.groups() if group.membership.members()]:
            if self._look_at_ms.get(name, 0) <= now_ms:
                await self._look_at_own(name)
                await asyncio.sleep(0)  # it may not have waited for anything

    async def topics_changed(self) -> None:
        """Topics came, grew or went: share them out, and forget what groups had in those that are gone."""
        context = self._context
        for event in context.table.decide_prune(self._exists):  # asked of the groups' topics, however many there are
            await self._prune(event)
        if light := context.table.light_offsets.decide_prune(self._exists):
            await uncancelled(context.log.write(light))
        for name in [group.name for group in context.table.groups() if group.membership.members()]:
            await self._look_at_own(name)
            await asyncio.sleep(0)

    def _exists(self, topic_id: int) -> bool:
        try:
            self._context.routes.by_id(topic_id)
        except UnknownQueue:
            return False
        return True

    async def _prune(self, event: Forgotten) -> None:
        context = self._context
        with suppress(GroupElsewhere):
            async with context.whole_group(event.group):
                if event.group in context.table:
                    await context.write([event])

    async def _look_at_own(self, name: str) -> None:
        with suppress(GroupElsewhere):  # its node looks
            await self._look_at(name)

    async def _look_at(self, name: str) -> None:
        context = self._context
        async with context.turns.of_group(name):
            if name not in context.table:
                return
            membership = context.table.get(name).membership
            topics = context.routes.topics()
            now_ms = context.monotonic_ms()
            events: list[Event] = [
                *await self._decided(
                    membership,
                    topics,
                    lambda: membership.decide_expiry(topics, now_ms) or membership.decide_rebalance(topics),
                )
            ]
            if any(isinstance(event, MemberLeft) for event in events):
                events += _offsets_of_nameless(name)
            await context.write(events)
            now_ms = context.monotonic_ms()
            deadline_ms = membership.next_deadline_ms()
            interval_ms = context.table.config(name).rebalance_interval_ms
            self._look_at_ms[name] = min(
                now_ms + interval_ms, now_ms + interval_ms if deadline_ms is None else deadline_ms + 1
            )
            if not membership.members():
                del self._look_at_ms[name]

    def applied(self, event: MembershipEvent) -> None:
        """A membership has changed: tell who waits, and look at the group soon."""
        self._look_at_ms.pop(event.group, None)
        stats = self._context.stats
        stats.rebalance_count += isinstance(event, Rebalanced | AssignmentAsked)
        stats.expired_member_count += isinstance(event, MemberLeft) and event.reason.endswith("_expired")
        self._context.members_changed.happened(event.group)

    # How it is worked out

    async def _decided(
        self, membership: Membership, topics: Sequence[TopicView], decide: Callable[[], Decided]
    ) -> Decided:
        """What is decided about members, under the group's turn. Sharing out takes 3 microseconds a partition and 10 a
        member: the event loop does not wait for that of many."""
        size = MEMBERS_SHARE * len(membership.by_id) + sum(topic.partitions for topic in topics)
        if size <= SHARED_IN_LOOP_MAX:
            return decide()
        found: list[Decided] = []
        await self._context.run_blocking(lambda: found.append(decide()))
        return found[0]

    def name_of(self, group: str, member_id: str | None) -> str:
        """The group under which a member is, and has its offsets."""
        if self._context.table.config(group).mode != BROADCAST:
            return group
        if member_id is None:
            raise IllegalRequest(
                f"group={group} is broadcasting: its members have offsets of their own; name the member"
            )
        return lone_group(group, member_id)

    def _joined(self, group: str, member_id: str) -> str:
        name = self.name_of(group, member_id)
        if name not in self._context.table:
            raise _not_joined(group, member_id)
        return name

    def _check_member_count(self, group: str, name: str) -> None:
        table = self._context.table
        config = table.config(group)
        count = sum(bool(table.get(lone).membership.members()) for lone in table.lone_groups(group) if lone != name)
        if count >= config.members_max:
            raise GroupFull(f"group={group} has {config.members_max} members, which is its limit")

    def partitions_of(self, group: str, member_id: str, partitions: Sequence[TopicPartition]) -> list[Partition]:
        """Partitions by topic id. Those of a topic that is gone have no owner and are left out."""
        share = self._context.table.get(self._joined(group, member_id)).membership.share(member_id)
        wanted = set(partitions)
        return [p for p in (*share.assigned, *share.revoking) if TopicPartition(p.topic, p.partition) in wanted]


def _not_joined(group: str, member_id: str) -> UnknownMember:
    return UnknownMember(f"group={group} has no member {member_id}: join again")


def _added_bytes(state: Group, wishes: Sequence[DocumentPut], events: Sequence[MembershipEvent]) -> int:
    """How much more a group keeps with a member that comes, about."""
    more = sum(document_bytes(event.key, event.content) for event in wishes)
    for event in events:
        match event:
            case MemberJoined():
                more += MEMBER_BYTES + TOPIC_BYTES * len(event.topics) + len(event.metadata)
            case Rebalanced():
                assigned_count = sum(map(len, event.shares.values()))
                more += ASSIGNED_BYTES * max(assigned_count - state.membership.assigned_count, 0)
            case _:
                pass
    return more


def _offsets_of_nameless(name: str) -> list[Event]:
    """What goes with the last event of a broadcasting group's member that has no name of its own: its position."""
    is_nameless = is_lone(name) and member_of(name).startswith(NAMELESS)
    return [Forgotten(name, None)] if is_nameless else []

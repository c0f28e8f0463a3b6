"""Stream mode: members come and go, partitions move between them, offsets are committed.

Every change is decided under the group's turn, written flushed, and applied before anybody is told. The members of a
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
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from secrets import token_hex

from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.start_positions import decide_follow
from gateway.groups.machines.broadcast import is_lone, lone_group, member_of
from gateway.groups.machines.config import BROADCAST
from gateway.groups.machines.copies import check_group_name
from gateway.groups.machines.errors import GroupActive, GroupFull, IllegalRequest, UnknownMember
from gateway.groups.machines.events import AssignmentAsked, Event, Forgotten, MemberLeft, MembershipEvent, Rebalanced
from gateway.groups.machines.membership import Share
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import MemberKey, TopicPartition

NAMELESS = "m-"
"""Begins the ids that are made here. Nobody comes back under such a one: a broadcasting group keeps no position for
it."""


class StreamMode:
    """Members of all groups of one node."""

    def __init__(self, context: Context) -> None:
        self._context = context
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
    ) -> tuple[str, Share]:
        """See `Groups.join`."""
        check_group_name(group)
        context = self._context
        member_id = member_id or f"{NAMELESS}{token_hex(8)}"
        async with AsyncExitStack() as held:
            await held.enter_async_context(context.whole_group(group))
            name = self.name_of(group, member_id)
            context.check_room(name)
            if name != group:
                self._check_member_count(group, name)
                await held.enter_async_context(context.turns.of_group(name))
            now_ms = context.clock.now_ms()
            state = context.table.get_or_new(name)
            if any(leases.leased_count(now_ms) for leases in state.leases.values()):
                raise GroupActive(f"group={group} has records on lease in queue mode; use another group to stream")
            events = state.membership.decide_join(
                member_id,
                subscription,
                context.routes.topics(),
                generation=generation,
                session_timeout_ms=session_timeout_ms,
                metadata=metadata,
            )
            wishes = decide_follow(name, state.documents, subscription, context.routes.topics())
            await context.write([*wishes, *events])
            membership = context.table.get(name).membership
            share = membership.share(member_id)
            return member_id, membership.heartbeat(member_id, share.generation, context.monotonic_ms())

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
            events = membership.decide_release(*member, owned, context.routes.topics())
            await context.write(events)
            return membership.heartbeat(*member, context.monotonic_ms())

    async def leave(self, group: str, member: MemberKey) -> None:
        """See `Groups.leave`."""
        context = self._context
        async with context.turns.of_group(self.name_of(group, member.member_id)):
            name = self._joined(group, member.member_id)
            events = context.table.get(name).membership.decide_leave(*member, context.routes.topics())
            await context.write([*events, *_offsets_of_nameless(name)])

    async def assign(
        self, group: str, member: MemberKey, shares: Mapping[str, Sequence[Partition]], notes: Mapping[str, bytes]
    ) -> Share:
        """The assignment that the leader computed, where the group has no strategy."""
        context = self._context
        async with context.turns.of_group(group):
            membership = context.table.get(group).membership
            await context.write(membership.decide_assign(*member, shares, context.routes.topics(), notes=notes))
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
                await self._look_at(name)

    async def topics_changed(self) -> None:
        """Topics came, grew or went: share them out, and forget what groups had in those that are gone."""
        context = self._context
        ids = {topic.topic_id for topic in context.routes.topics()}
        for event in context.table.decide_prune(ids.__contains__):
            await self._prune(event)
        for name in [group.name for group in context.table.groups() if group.membership.members()]:
            await self._look_at(name)

    async def _prune(self, event: Forgotten) -> None:
        context = self._context
        async with context.whole_group(event.group):
            if event.group in context.table:
                await context.write([event])

    async def _look_at(self, name: str) -> None:
        context = self._context
        async with context.turns.of_group(name):
            if name not in context.table:
                return
            membership = context.table.get(name).membership
            topics = context.routes.topics()
            events: list[Event] = [*membership.decide_expiry(topics, context.monotonic_ms())]
            if events:
                events += _offsets_of_nameless(name)
            await context.write(events or membership.decide_rebalance(topics))
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

    def name_of(self, group: str, member_id: str | None) -> str:
        """The group under which a member is, and has its offsets."""
        if self._context.table.config(group).mode != BROADCAST:
            return group
        if member_id is None:
            raise IllegalRequest(
                f"group={group} is broadcasting: its members have places of their own; name the member"
            )
        return lone_group(group, member_id)

    def _joined(self, group: str, member_id: str) -> str:
        name = self.name_of(group, member_id)
        if name not in self._context.table:
            raise UnknownMember(f"group={group} has no member {member_id}: join again")
        return name

    def _check_member_count(self, group: str, name: str) -> None:
        table = self._context.table
        config = table.config(group)
        count = sum(bool(table.get(lone).membership.members()) for lone in table.lone_groups(group) if lone != name)
        if count >= config.members_max:
            raise GroupFull(f"group={group} has {config.members_max} members, which is its limit")

    def partitions_of(self, group: str, member_id: str, partitions: Sequence[TopicPartition]) -> list[Partition]:
        """Partitions by topic id. Those of a topic that is gone belong to nobody and are left out."""
        share = self._context.table.get(self._joined(group, member_id)).membership.share(member_id)
        wanted = set(partitions)
        return [p for p in (*share.assigned, *share.revoking) if TopicPartition(p.topic, p.partition) in wanted]


def _offsets_of_nameless(name: str) -> list[Event]:
    """What goes with the last event of a broadcasting group's member that has no name of its own: its position."""
    is_nameless = is_lone(name) and member_of(name).startswith(NAMELESS)
    return [Forgotten(name, None)] if is_nameless else []

"""Consumer groups in memory: the pure machines of stream mode, applied at once, and documents. Nothing is durable.

Implements the parts of `gateway.groups.protocol.Groups` that consumer instances and the group resources of v3 use;
queue mode is not here. Tests of sockets set shares and leases by hand: `tests.gateway.surfaces.ws.scripted_groups`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from gateway.api.read import Consumer
from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.errors import GroupActive, UnknownGroup
from gateway.groups.machines.events import MembershipEvent
from gateway.groups.machines.membership import Member, Membership, Share
from gateway.groups.machines.progress import (
    Commit,
    Found,
    PartitionBounds,
    PartitionKey,
    Progress,
    Start,
    StartTime,
    Unavailable,
    lag_of,
    where_to_start,
)
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.strategies.sticky import Sticky
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import (
    CommittedPosition,
    GroupDescription,
    GroupView,
    MemberKey,
    MemberView,
    OffsetCommit,
    PartitionLag,
    TopicPartition,
)
from gateway.routing.base import Routes, TopicView


class FakeGroups:
    """`error` is raised by every write while it is set."""

    def __init__(self, routes: Routes, consumer: Consumer) -> None:
        self.error: Exception | None = None
        self.kept: dict[tuple[str, str], bytes] = {}
        self.commits: list[list[OffsetCommit]] = []
        self.progress = Progress()
        self.progress.open()
        self.memberships: dict[str, Membership] = {}
        self.now_ms = 0
        self._routes = routes
        self._consumer = consumer
        self._changed = asyncio.Event()

    def names(self) -> list[str]:
        return sorted(self.memberships)

    def describe(self, group: str) -> GroupDescription:
        if group not in self.memberships:
            raise UnknownGroup(group)
        membership = self.memberships[group]
        members = tuple(
            MemberView(one, membership.share(one.member_id), membership.heard_ago_ms(one.member_id, self.now_ms))
            for one in membership.members()
        )
        topics = tuple(topic.name for topic in self._topics_of(membership))
        return GroupDescription(
            GroupView(group, "stable", membership.generation, len(members), topics), GroupConfig(), members, ()
        )

    async def lag(self, group: str, topics: Sequence[str] | None = None) -> list[PartitionLag]:
        self.describe(group)
        rows = []
        for topic in self._topics_of(self.memberships[group]):
            for number in range(topic.partitions if topics is None or topic.name in topics else 0):
                bounds = await self._consumer.bounds(topic.name, number)
                stored = self.progress.lookup(group, PartitionKey(topic.topic_id, number))
                assert not isinstance(stored, Unavailable)
                lag = lag_of(stored, bounds, bounds.min_offset)
                owner = self.memberships[group].owner(self._partition(topic.name, number))
                rows.append(
                    PartitionLag(
                        topic.name, number, lag.committed, "", *bounds, lag.lag, lag.lost_count, 0, 0, None,
                        None if owner is None else owner.member_id,
                    )
                )  # fmt: skip
        return rows

    def config(self, group: str) -> GroupConfig:
        return GroupConfig()

    def members(self, group: str) -> Mapping[str, Member]:
        return self.memberships[group].by_id if group in self.memberships else {}

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
        self._raise()
        assert member_id is not None
        membership = self.memberships.setdefault(group, Membership(group, GroupConfig(), Sticky()))
        events = membership.decide_join(
            member_id,
            subscription,
            self._routes.topics(),
            generation=generation,
            session_timeout_ms=session_timeout_ms,
            metadata=metadata,
        )
        self._apply(membership, events)
        await asyncio.sleep(0.01)  # as long as others may take to let go
        return member_id, membership.share(member_id)

    def heartbeat(self, group: str, member: MemberKey) -> Share:
        return self._membership(group).heartbeat(*member, self.now_ms)

    async def share_changed(self, group: str, member_id: str, since: Share) -> Share:
        while (share := self.memberships[group].share(member_id)) == since:
            await self.next_change()
        return share

    async def release(self, group: str, member: MemberKey, partitions: Sequence[TopicPartition]) -> Share:
        self._raise()
        membership = self._membership(group)
        whole = [self._partition(*one) for one in partitions]
        self._apply(membership, membership.decide_release(*member, whole, self._routes.topics()))
        return membership.share(member.member_id)

    async def leave(self, group: str, member: MemberKey) -> None:
        self._raise()
        membership = self._membership(group)
        self._apply(membership, membership.decide_leave(*member, self._routes.topics()))

    def put_out(self, group: str, member_id: str) -> None:
        """As if its session had ended."""
        membership = self._membership(group)
        generation = membership.share(member_id).generation
        self._apply(membership, membership.decide_leave(member_id, generation, self._routes.topics()))

    async def committed(self, group: str, partitions: Sequence[TopicPartition]) -> list[CommittedPosition]:
        found = []
        for partition in partitions:
            stored = self.progress.lookup(group, self._key(partition))
            offset, metadata = (stored.offset, stored.metadata) if isinstance(stored, Found) else (None, "")
            found.append(CommittedPosition(*partition, offset, metadata))
        return found

    async def start_offset(
        self,
        group: str,
        partition: TopicPartition,
        start: Start | StartTime,
    ) -> int:
        bounds = await self._consumer.bounds(*partition)
        answer = where_to_start(self.progress.lookup(group, self._key(partition)), start, PartitionBounds(bounds))
        assert isinstance(answer, int)
        return answer

    async def commit(self, group: str, commits: Sequence[OffsetCommit], member: MemberKey | None = None) -> None:
        self._raise()
        membership = self.memberships.get(group)
        partitions = [self._partition(one.topic, one.partition) for one in commits]
        if member is not None:
            self._membership(group).check_owner(*member, partitions)
        elif membership is not None and any(membership.owner(partition) for partition in partitions):
            raise GroupActive(f"group={group} has members")
        named = [TopicPartition(one.topic, one.partition) for one in commits]
        keyed = [Commit(self._key(p), one.offset, one.metadata) for p, one in zip(named, commits, strict=True)]
        for event in self.progress.decide_commit(group, keyed, self.now_ms):
            self.progress.apply(event)
        self.commits.append(list(commits))

    def documents(self, group: str | None = None, prefix: str = "") -> list[tuple[str, str, bytes]]:
        return [
            (of, key, content)
            for (of, key), content in sorted(self.kept.items())
            if group in (None, of) and key.startswith(prefix)
        ]

    async def put_document(self, group: str, key: str, content: bytes | None, *, flushed: bool = False) -> None:
        self._raise()
        if content is None:
            self.kept.pop((group, key), None)
        else:
            self.kept[group, key] = content

    async def next_change(self) -> None:
        await self._changed.wait()

    def rebalance(self) -> None:
        """The periodic look at topics."""
        for membership in self.memberships.values():
            self._apply(membership, membership.decide_rebalance(self._routes.topics()))

    def _apply(self, membership: Membership, events: Sequence[MembershipEvent]) -> None:
        for event in events:
            membership.apply(event, self.now_ms)
        self._changed.set()
        self._changed = asyncio.Event()

    def _topics_of(self, membership: Membership) -> list[TopicView]:
        wanted = [member.subscription for member in membership.members()]
        return [topic for topic in self._routes.topics() if any(one.matches(topic.name) for one in wanted)]

    def _membership(self, group: str) -> Membership:
        return self.memberships.setdefault(group, Membership(group, GroupConfig(), Sticky()))

    def _partition(self, topic: str, partition: int) -> Partition:
        return Partition(topic, self._routes.topic(topic).topic_id, partition)

    def _key(self, partition: TopicPartition) -> PartitionKey:
        return PartitionKey(self._routes.topic(partition.topic).topic_id, partition.partition)

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

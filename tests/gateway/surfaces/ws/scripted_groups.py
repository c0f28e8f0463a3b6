"""Consumer groups for tests of sockets: the test sets who owns what, leases are numbered, time does not pass.

`tests.gateway.fake_groups` is the fake with the real membership machine. This one is not built on it: these tests set
shares that no machine would decide at that moment (a partition lost while it drains, a member that is put out between
two frames), and they count generations and receipts. One class for both would have each method twice. Its rules are
those that sockets rely on: shares change when told, commits of a stale member are refused, a record is leased to one
receipt at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.api.read import Consumer
from gateway.codec.tags import TAG_HEADER
from gateway.groups import protocol
from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.errors import StaleGeneration, UnknownMember
from gateway.groups.machines.membership import Member as GroupMember
from gateway.groups.machines.membership import Share
from gateway.groups.machines.progress import Start
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import (
    CommittedPosition,
    GroupDescription,
    GroupView,
    MemberKey,
    OffsetCommit,
    Receive,
    Received,
    Run,
    Settled,
    StartSpec,
    TopicPartition,
)
from gateway.routing.table import RouteTable
from store import record_batch

LEASE_MS = 30_000


@dataclass
class Member:
    since: int
    share: Share
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class OnLease:
    record: tuple[str, int, int]
    until_ms: int


class ScriptedGroups:
    """One group, whatever it is called. `assign` and `revoke` are the test's rebalance."""

    def __init__(self, routes: RouteTable, consumer: Consumer, now_ms: int) -> None:
        self.routes = routes
        self.consumer = consumer
        self.now_ms = now_ms
        self.settings = GroupConfig()
        self.present: dict[str, Member] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.commits: list[list[OffsetCommit]] = []
        self.hold: asyncio.Event | None = None
        self.hold_join: asyncio.Event | None = None
        self.leases: dict[str, OnLease] = {}
        self.attempts: dict[tuple[str, int, int], int] = {}
        self.done: set[tuple[str, int, int]] = set()
        self.rejected: dict[tuple[str, int, int], str] = {}
        self.acked: set[str] = set()
        self.starts: list[StartSpec] = []
        """Where each receive wanted to begin."""
        self.followed: list[Subscription] = []
        self.given_back: list[str] = []
        self.generation = 0
        self._receipt_count = 0
        self._more = asyncio.Event()

    # The test's side

    def assign(self, member_id: str, *owned: tuple[str, int], revoking: Sequence[tuple[str, int]] = ()) -> None:
        """From here on the member has exactly these."""
        self.generation += 1
        member = self.present[member_id]
        member.share = Share(self.generation, self._named(owned), self._named(revoking), b"", False)
        self._tell(member)

    def revoke_topic(self, member_id: str, topic: str) -> None:
        """The group has heard that a topic is gone."""
        self.generation += 1
        member = self.present[member_id]
        kept = tuple(one for one in member.share.assigned if one.topic != topic)
        gone = tuple(one for one in member.share.assigned if one.topic == topic)
        member.share = Share(self.generation, kept, gone, b"", False)
        self._tell(member)

    def put_out(self, member_id: str) -> None:
        self._tell(self.present.pop(member_id))

    def wake(self) -> None:
        """There is something to receive."""
        more, self._more = self._more, asyncio.Event()
        more.set()

    def held(self) -> set[tuple[str, int, int]]:
        return {lease.record for lease in self.leases.values()}

    def _named(self, owned: Sequence[tuple[str, int]]) -> tuple[Partition, ...]:
        return tuple(Partition(name, self.routes.topic(name).topic_id, number) for name, number in owned)

    def _tell(self, member: Member) -> None:
        changed, member.changed = member.changed, asyncio.Event()
        changed.set()

    # The protocol: members

    def groups(self) -> list[GroupView]:
        return []

    def describe(self, group: str) -> GroupDescription:
        view = GroupView(group, "stable", self.generation, len(self.present), ())
        return GroupDescription(view, self.settings, (), ())

    def config(self, group: str) -> GroupConfig:
        return self.settings

    def members(self, group: str) -> Mapping[str, GroupMember]:
        return {}

    async def configure(self, group: str, changes: Mapping[str, object]) -> GroupConfig:
        return self.settings

    async def follow(self, group: str, wish: Subscription) -> None:
        self.followed.append(wish)

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
        if self.hold_join is not None:
            await self.hold_join.wait()
        member_id = member_id or f"m{len(self.present) + 1}"
        self.generation += 1
        free = [
            (topic.name, number)
            for topic in self.routes.topics()
            if subscription.matches(topic.name)
            for number in range(topic.partitions)
        ]
        owned = self._named(free) if not self.present.keys() - {member_id} else ()
        former = self.present.get(member_id)
        member = Member(self.generation, Share(self.generation, owned, (), b"", False))
        self.present[member_id] = member
        if former is not None:
            self._tell(former)
        return member_id, member.share

    def heartbeat(self, group: str, member: MemberKey) -> Share:
        known = self.present.get(member.member_id)
        if known is None:
            raise UnknownMember(member.member_id)
        if member.generation < known.since:
            raise StaleGeneration(member.member_id)
        return known.share

    async def share_changed(self, group: str, member_id: str, since: Share) -> Share:
        while (member := self.present.get(member_id)) is not None:
            if member.share != since:
                return member.share
            await member.changed.wait()
        raise UnknownMember(member_id)

    async def release(self, group: str, member: MemberKey, partitions: Sequence[TopicPartition]) -> Share:
        self.heartbeat(group, member)
        known = self.present[member.member_id]
        left = [one for one in known.share.revoking if (one.topic, one.partition) not in partitions]
        self.generation += 1
        known.share = Share(self.generation, known.share.assigned, tuple(left), b"", False)
        self._tell(known)
        return known.share

    async def leave(self, group: str, member: MemberKey) -> None:
        self.heartbeat(group, member)
        del self.present[member.member_id]

    # The protocol: progress

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition], *, member_id: str | None = None
    ) -> list[CommittedPosition]:
        return [CommittedPosition(*one, self.offsets.get(one), "") for one in partitions]

    async def start_offset(
        self,
        group: str,
        partition: TopicPartition,
        start: StartSpec,
        *,
        member_id: str | None = None,
    ) -> int:
        bounds = await self.consumer.bounds(*partition)
        return self.offsets.get(partition, bounds.min_offset if start is Start.FIRST else bounds.max_offset)

    async def commit(self, group: str, commits: Sequence[OffsetCommit], member: MemberKey | None = None) -> None:
        if self.hold is not None:
            await self.hold.wait()
        assert member is not None
        share = self.heartbeat(group, member)
        owned = {(one.topic, one.partition) for one in (*share.assigned, *share.revoking)}
        if not {(commit.topic, commit.partition) for commit in commits} <= owned:
            raise StaleGeneration(member.member_id)
        self.commits.append(list(commits))
        self.offsets.update({TopicPartition(one.topic, one.partition): one.offset for one in commits})

    # The protocol: queue mode

    async def receive(self, group: str, request: Receive) -> Received:
        self.starts.append(request.start)
        while True:
            more = self._more
            runs = await self._lease(request)
            if runs or not request.wait_ms:
                return Received(tuple(runs), 0)
            await more.wait()

    def begin_receive(self, group: str, request: Receive, told: Callable[[Received | None], None]) -> bool:
        return False

    async def _lease(self, request: Receive) -> list[Run]:
        leased: list[Run] = []
        held = self.held()
        for topic in request.topics:
            for partition in range(self.routes.topic(topic).partitions):
                fetched = await self.consumer.fetch(topic, partition, 0, max_bytes=1 << 30)
                for entry in fetched.entries:
                    for record in record_batch.decode(entry.batch):
                        key = topic, partition, record.offset
                        tag = next((value for name, value in record.headers if name == TAG_HEADER), None)
                        wanted = request.tags is None or (tag is not None and tag.decode() in request.tags)
                        if key in self.done or key in held or not wanted or len(leased) >= request.max_messages:
                            continue
                        self._receipt_count += 1
                        receipt = f"r{self._receipt_count}"
                        until_ms = self.now_ms + (request.invisible_ms or LEASE_MS)
                        self.leases[receipt] = OnLease(key, until_ms)
                        self.attempts[key] = self.attempts.get(key, 0) + 1
                        leased.append(
                            Run(
                                topic, partition, record.offset, [record], entry.store_time_ms, False, entry.raw_keys,
                                self.attempts[key], [receipt], until_ms,
                            )
                        )  # fmt: skip
        return leased

    def _take(self, receipts: Sequence[str]) -> list[tuple[Settled, OnLease | None]]:
        taken: list[tuple[Settled, OnLease | None]] = []
        for receipt in receipts:
            if not receipt.startswith("r"):
                taken.append((Settled(receipt, False, 40050, "not a receipt"), None))
            elif (lease := self.leases.get(receipt)) is None:
                taken.append((Settled(receipt, False, 40951, "the lease is over"), None))
            else:
                taken.append((Settled(receipt, True), lease))
        return taken

    async def ack(self, group: str, receipts: Sequence[str]) -> list[Settled]:
        assert len(receipts) <= protocol.RECEIPTS_MAX
        if self.hold is not None:
            await self.hold.wait()
        answers = []
        for receipt in receipts:
            ((settled, lease),) = self._take([receipt])
            if lease is not None:
                self.done.add(lease.record)
                self.acked.add(receipt)
                del self.leases[receipt]
            answers.append(Settled(receipt, True) if receipt in self.acked else settled)
        return answers

    async def nack(
        self, group: str, receipts: Sequence[str], *, delay_ms: int | None = None, reason: str = ""
    ) -> list[Settled]:
        assert len(receipts) <= protocol.RECEIPTS_MAX
        taken = self._take(receipts)
        for settled, lease in taken:
            if lease is not None:
                del self.leases[settled.receipt]
        self.wake()
        return [settled for settled, _ in taken]

    async def give_back(self, group: str, receipts: Sequence[str]) -> None:
        assert len(receipts) <= protocol.RECEIPTS_MAX
        self.given_back += receipts
        for settled, lease in self._take(receipts):
            if lease is not None:
                self.attempts[lease.record] -= 1
                del self.leases[settled.receipt]
        self.wake()

    async def reject(self, group: str, receipts: Sequence[str], reason: str) -> list[Settled]:
        taken = self._take(receipts)
        for settled, lease in taken:
            if lease is not None:
                self.rejected[lease.record] = reason
                self.done.add(lease.record)
                del self.leases[settled.receipt]
        return [settled for settled, _ in taken]

    async def extend(self, group: str, receipts: Sequence[str], invisible_ms: int) -> list[Settled]:
        answers = []
        for settled, lease in self._take(receipts):
            if lease is None:
                answers.append(settled)
                continue
            self._receipt_count += 1
            receipt = f"r{self._receipt_count}"
            del self.leases[settled.receipt]
            self.leases[receipt] = OnLease(lease.record, self.now_ms + invisible_ms)
            answers.append(Settled(settled.receipt, True, new_receipt=receipt))
        return answers

    def documents(self, group: str | None = None, prefix: str = "") -> list[tuple[str, str, bytes]]:
        return []

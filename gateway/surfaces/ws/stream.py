"""Stream mode: a member of a group, fed the partitions it owns, committing for them.

    coordinator says      here                                                             told to the client
    assigned p            start at the committed offset, push                              assigned p, cursor
    revoking p            stop pushing; wait until what was sent is acked, the client      revoked p, drain_ms
                          releases, or DRAIN_MS are over; then release p
    p is gone             forget it (of a deleted topic: and release it)                   revoked p, lost
    not a member          forget all, join again under the same member id                  revoked all, lost

While a connection is lost all of this goes on without the client; a resumed session is told how things are by `state`.

Invariants
    T1  a partition is pushed only while the last share that was heard of has it assigned
    T2  a partition is released only when nothing of it is pushed any more, and after the acks that came before
    T3  an ack is answered when its commit is durable
    T4  the client is told of a partition before it is sent any of it: it drops what is of others
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from gateway.api.read import Consumer
from gateway.api.tasks import Tasks, task_group
from gateway.auth.access import Access, Permission
from gateway.brokers.base import BrokerUnreachable
from gateway.errors import RequestError
from gateway.groups.machines.errors import GroupError, StaleGeneration, UnknownMember
from gateway.groups.machines.membership import Share
from gateway.groups.machines.progress import Start, StartTime
from gateway.groups.machines.subscription import Subscription as Wish
from gateway.groups.protocol import Groups, MemberKey, StartSpec, TopicPartition
from gateway.routing.base import Routes, topic_id_of
from gateway.routing.patience import AGAIN_S
from gateway.surfaces.ws import commands
from gateway.surfaces.ws.commands import From, FromTime, Mode, Subscribe, UpTo
from gateway.surfaces.ws.commits import Commits, Owned
from gateway.surfaces.ws.feed import Fed, FedPartition, Feed
from gateway.surfaces.ws.outbox import Outbox, OutboxClosed
from gateway.surfaces.ws.protocol import NOT_OWNER, assigned_push, partitions_of, revoked_push
from gateway.surfaces.ws.reader import seek, too_many_partitions
from store.errors import StoreError, UnknownQueue
from store.waits import is_set_within

log = logging.getLogger(__name__)

DRAIN_MS = 10_000
"""How long a client may take to finish what it has of a partition that moves; less in a group that waits for less."""

HEARTBEATS_PER_SESSION = 3


class Stream(Fed):
    """One subscription in stream mode."""

    mode = Mode.STREAM
    queue: str | None = None

    def __init__(
        self,
        command: Subscribe,
        feed: Feed,
        *,
        groups: Groups,
        routes: Routes,
        consumer: Consumer,
        access: Callable[[], Access],
        partitions_left: Callable[[], int],
        tasks: Tasks,
    ) -> None:
        assert command.group is not None
        super().__init__(command, feed, routes=routes, access=access, partitions_left=partitions_left)
        self.group: str = command.group
        self._start = start_spec(command.start)
        self._groups = groups
        self._consumer = consumer
        self._wish = self._wish_now()
        self._tasks = tasks
        self._member_id = command.member
        self._share = Share(0, (), (), b"", False)
        self._owned: dict[TopicPartition, Owned] = {}
        self._told: set[TopicPartition] = set()  # what the client knows to have; those that it is to give up are not
        self._commits = Commits(
            self.group,
            self._owned,
            self._member,
            auto=command.auto_ack,
            groups=groups,
            tasks=tasks,
        )
        self._drain_ms = DRAIN_MS
        self._heeding = asyncio.Lock()  # what a share says is done, or some of it again

    # Beginning and end

    async def open(self) -> dict[str, object]:
        """Join; the answer's fields. Raises RequestError, GroupError, StoreError."""
        await self._join()
        return {"member": self._member_id, "epochs": self._epochs(), **self.state()}

    async def end(self) -> None:
        """Leave the group. What was acked is committed before."""
        await self._commits.settled()
        if self._share.generation == 0:
            return  # never came in
        try:
            await self._groups.leave(self.group, self._member())
        except (GroupError, StoreError) as error:
            log.info("group=%s member=%s did not leave: %s", self.group, self._member_id, error)

    async def keep(self) -> NoReturn:
        """Stay a member, and follow what the group says. Raises RequestError, GroupError, StoreError."""
        async with task_group() as keeping:
            keeping.create_task(self._beat())
            if self._command.auto_ack:
                keeping.create_task(self._commits.now_and_then())
            await self._follow()
        raise AssertionError("a member stays until it is cancelled")

    # What is

    def topics(self) -> list[str]:
        """Topics it has partitions of."""
        return sorted({key.topic for key in self._owned})

    def partition_count(self) -> int:
        """How many are its own now."""
        return len(self._owned)

    def state(self) -> dict[str, object]:
        """What a client must know to go on, which it is about to be told."""
        live = [owned.fed for owned in self._owned.values() if not owned.draining]
        self._told = {fed.key for fed in live}
        return {
            "generation": self._share.generation,
            "partitions": partitions_of(fed.key for fed in live),
            "cursor": self.feed.cursor_of(live),
        }

    def _epochs(self) -> dict[str, str]:
        return {key.topic: str(owned.fed.topic_id) for key, owned in sorted(self._owned.items())}

    # What the client does

    async def push(self, outbox: Outbox) -> NoReturn:
        """Push for ever. Raises RequestError, StoreError, OutboxClosed."""
        self._outbox = outbox
        try:
            # What has changed since the answer that told how things are (T4).
            await self._tell_revoked([key for key, owned in self._owned.items() if owned.draining], self._drain_ms)
            await self._tell_revoked(sorted(self._told - self._owned.keys()), None)
            live = [owned.fed for owned in self._owned.values() if not owned.draining]
            await self._tell_assigned([fed for fed in live if fed.key not in self._told])
            await self.feed.run(outbox)
        finally:
            self._outbox = None

    async def rewind(self, seen: int) -> None:
        """See `Feed.rewind`."""
        self.feed.rewind(seen)
        for owned in self._owned.values():
            owned.look()

    async def seek(self, to: commands.Start) -> str:
        """Go on from elsewhere; the new cursor. Raises RequestError, StoreError."""
        await seek(self.feed, self._consumer, to)
        for owned in self._owned.values():
            owned.sought()
        return self.feed.cursor

    async def ack(self, up_to: Sequence[UpTo]) -> Sequence[RequestError | None]:
        """Commit; for each partition None, or why not (T3). Raises GroupError, StoreError."""
        return await self._commits.ask(up_to)

    def release(self, partitions: Sequence[TopicPartition]) -> None:
        """The client is done with partitions that were revoked. Others are passed over."""
        for key in partitions:
            if (owned := self._owned.get(key)) is not None:
                owned.finish()

    def is_current(self) -> bool:
        """Whether `refresh` would find nothing new."""
        return self._wish_now() == self._wish

    async def refresh(self) -> None:
        """The group itself notices what becomes of topics; what a pattern may find, it is told when rights change."""
        wish = self._wish_now()
        if wish != self._wish and self._member_id is not None:
            self._wish = wish
            with suppress(UnknownMember, StaleGeneration):  # `_follow` is told the same, and does something about it
                await self._groups.join(
                    self.group, self._member_id, wish, generation=self._share.generation, room=self._command.room
                )

    # Membership

    def _wish_now(self) -> Wish:
        """What the client wants, of what it may have."""
        pattern = self._command.pattern
        visible = None if pattern is None else self._access().topics(Permission.RECEIVE)
        return Wish(topics=frozenset(self._command.topics), pattern=pattern, visible=visible)

    def _member(self) -> MemberKey:
        assert self._member_id is not None
        return MemberKey(self._member_id, self._share.generation)

    async def _join(self) -> None:
        self._wish = self._wish_now()
        self._member_id, share = await self._groups.join(
            self.group, self._member_id, self._wish, room=self._command.room
        )
        self._drain_ms = min(DRAIN_MS, self._groups.config(self.group).drain_timeout_ms // 2)
        await self._heed(share)

    async def _follow(self) -> NoReturn:
        while True:
            try:
                assert self._member_id is not None
                share = await self._groups.share_changed(self.group, self._member_id, self._share)
                # Another process may have joined under this name: then the share is its, and this one is out.
                self._groups.heartbeat(self.group, self._member())
                await self._heed(share)
            except UnknownMember:
                log.info("group=%s member=%s was put out, joins again", self.group, self._member_id)
                await self._lose(list(self._owned))
                await self._join()
            except StaleGeneration:
                await self._lose(list(self._owned))
                raise RequestError(
                    NOT_OWNER, f"Another process has joined group {self.group} as member {self._member_id}."
                ) from None

    async def _beat(self) -> NoReturn:
        member = self._groups.members(self.group).get(self._member().member_id)
        timeout_ms = (member or self._groups.config(self.group)).session_timeout_ms
        while True:
            await asyncio.sleep(timeout_ms / HEARTBEATS_PER_SESSION / 1000)
            with suppress(UnknownMember, StaleGeneration):  # `_follow` is told the same, and does something about it
                self._groups.heartbeat(self.group, self._member())

    async def _heed(self, share: Share) -> None:
        """Make what is pushed what the share says (T1)."""
        self._share = share
        async with self._heeding:
            await self._heed_now(share)

    async def _heed_now(self, share: Share) -> None:
        assigned = dict(_assigned_in(share))
        revoking = {TopicPartition(one.topic, one.partition): one.topic_id for one in share.revoking}
        ids = assigned | revoking  # a topic that was made anew is another one: its partitions are lost, and taken
        gone = {key for key, topic_id in revoking.items() if topic_id_of(self._routes, key.topic) != topic_id}
        await self._lose(
            [key for key, owned in self._owned.items() if key in gone or ids.get(key) != owned.fed.topic_id]
        )
        if nothing_sent := [key for key in revoking if key not in self._owned]:
            self._tasks.start(self._give_up(nothing_sent))
        await self._revoke([key for key in sorted(revoking) if key in self._owned and not self._owned[key].draining])
        await self._take(_assigned_in(share))

    async def _take(self, assigned: Sequence[tuple[TopicPartition, int]]) -> None:
        new_count = sum(key not in self._owned for key, _ in assigned)
        if new_count and new_count > self._partitions_left():
            raise too_many_partitions()
        taken: list[FedPartition] = []
        is_away = False
        for key, topic_id in assigned:
            owned = self._owned.get(key)
            if owned is None:
                access = self._access()
                if self._command.pattern is None:
                    access.check(Permission.RECEIVE, topic=key.topic)
                elif not access.allows(Permission.RECEIVE, topic=key.topic):
                    continue  # rights have changed since the group was told what the pattern may find: see `refresh`
                try:
                    offset = await self._groups.start_offset(self.group, key, self._start, member_id=self._member_id)
                except UnknownQueue:
                    continue  # deleted a moment ago: the group is about to say so
                except BrokerUnreachable as error:  # its node restarts: the others are fed meanwhile
                    log.info("group=%s member=%s waits for %s: %s", self.group, self._member_id, key, error)
                    is_away = True
                    continue
                owned = self._owned[key] = Owned(FedPartition(key, topic_id, offset))
                taken.append(owned.fed)
            elif owned.draining:  # it is to stay after all
                owned.drained = None
                taken.append(owned.fed)
        await self._tell_assigned(taken)
        for fed in taken:
            if fed.key in self.feed.fed_partitions:
                self.feed.go(fed)
            else:
                self.feed.add(fed)
        if is_away:
            self._tasks.start(self._take_again())

    async def _take_again(self) -> None:
        """What is assigned and could not be begun, as its broker was away."""
        await asyncio.sleep(AGAIN_S)
        async with self._heeding:
            with suppress(GroupError):  # `_follow` is told the same
                await self._take(_assigned_in(self._share))

    async def _lose(self, lost: Sequence[TopicPartition]) -> None:
        told = []
        for key in lost:
            owned = self._owned.pop(key)
            if key in self.feed.fed_partitions:
                self.feed.remove(owned.fed)
            if not owned.draining:
                told.append(key)
            owned.finish()
        await self._tell_revoked(told, None)

    async def _revoke(self, keys: Sequence[TopicPartition]) -> None:
        if not keys:
            return
        for key in keys:
            owned = self._owned[key]
            self.feed.stop(owned.fed)
            owned.drained = asyncio.Event()
            self._tasks.start(self._drain(key, owned, owned.drained))
            owned.look()
        await self._tell_revoked(keys, self._drain_ms)

    async def _drain(self, key: TopicPartition, owned: Owned, drained: asyncio.Event) -> None:
        """Wait for what the client still acks; then give the partition up (T2), unless it is to stay after all."""
        if not self._command.auto_ack and not await is_set_within(drained, self._drain_ms / 1000):
            log.info("group=%s member=%s released %s unfinished", self.group, self._member_id, key)
        try:
            await self._commits.settled()
            if owned.drained is drained and self._owned.get(key) is owned:
                await self._give_up([key])
        except (GroupError, StoreError) as error:
            log.info("group=%s member=%s could not commit %s: %s", self.group, self._member_id, key, error)

    async def _give_up(self, keys: Sequence[TopicPartition]) -> None:
        try:
            await self._groups.release(self.group, self._member(), keys)
        except (GroupError, StoreError) as error:
            log.info("group=%s member=%s did not release %s: %s", self.group, self._member_id, keys, error)

    async def _tell_assigned(self, taken: Sequence[FedPartition]) -> None:
        """To a client that is there; one that comes back asks how things are."""
        if taken and self._outbox is not None:
            self._told |= {fed.key for fed in taken}
            partitions, cursor = partitions_of(fed.key for fed in taken), self.feed.cursor_of(taken)
            with suppress(OutboxClosed):
                await self._outbox.put(assigned_push(self.name, self._share.generation, partitions, cursor))

    async def _tell_revoked(self, keys: Sequence[TopicPartition], drain_ms: int | None) -> None:
        """Likewise; without `drain_ms` they are lost."""
        if keys and self._outbox is not None:
            self._told.difference_update(keys)
            with suppress(OutboxClosed):
                await self._outbox.put(revoked_push(self.name, self._share.generation, partitions_of(keys), drain_ms))


def _assigned_in(share: Share) -> list[tuple[TopicPartition, int]]:
    """With the ids of their topics, sorted."""
    return sorted((TopicPartition(one.topic, one.partition), one.topic_id) for one in share.assigned)


def start_spec(start: commands.Start | None) -> StartSpec:
    """Where a group begins that was never there, in the coordinator's words."""
    match start:
        case FromTime(timestamp_ms):
            return StartTime(timestamp_ms)
        case From.EARLIEST:
            return Start.FIRST
        case _:
            return Start.LAST

"""All consumer instances of one server: the shell around `Instance` that waits, reads, and speaks to the coordinator.

Calls on one instance take turns. A read that waits for records gives up its turn when another kind of call comes, when
its client has gone, or when the server drains. Other reads queue behind it.

An instance that subscribes is a member of its group under its own name. Its client polls when it likes, so the server
plays the member's part between calls: a partition that is to go to another member is released at once if the client
has nothing of it that is not committed, else at the client's next call, or after `REVOKE_WAIT_MS` (what was delivered
and not committed is then delivered again, to the new owner). A member that is out, for whatever reason, joins again at
its instance's next call.

What is durable: creating, deleting, subscribing, assigning and seeking are on disk before they are answered; how far
an instance has read is written soon after each read, and commits are as `Groups.commit` says. Automatic commits that
fail because the store has stopped do not stop the read.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from gateway.api.read import Consumer
from gateway.api.schemas import Schemas
from gateway.errors import FORBIDDEN, TOO_MANY, RequestError
from gateway.groups.machines.errors import GroupError, StaleGeneration, UnknownGroup, UnknownMember
from gateway.groups.machines.membership import Share
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import Subscription, Visible
from gateway.groups.protocol import CommittedPosition, Groups, MemberKey, OffsetCommit, TopicPartition
from gateway.routing.base import Routes, UnknownPartition
from gateway.settings.limits import Limits
from gateway.surfaces.rest_v2.instances.gathering import Gathering, Reserve
from gateway.surfaces.rest_v2.instances.instance import Instance, decode_instance
from gateway.surfaces.rest_v2.instances.polling import Poll, Poller, turn_of_others
from gateway.surfaces.rest_v2.instances.settings import InstanceSettings
from store.errors import StoreError

log = logging.getLogger(__name__)

INSTANCE_NOT_FOUND = 40403
INSTANCE_EXISTS = 40902
OTHER_TOPIC = 40901

DOCUMENT_PREFIX = "v2/"
"""Of the keys under which instances are kept with their groups."""

CALLS_WAITING_MAX = 64
"""Calls that may wait for their turn at one instance."""

REVOKE_WAIT_MS = 10_000
"""How long a client may take to commit what it has of a partition that another member is to get."""

_CHECK_S = 5.0
"""How often idle instances are looked for."""

_SESSION_SLACK_MS = 30_000


class _Live:
    """An instance and who is at it."""

    def __init__(self, instance: Instance, now_s: float) -> None:
        self.instance = instance
        self.turn = asyncio.Lock()
        self.waiting_count = 0
        self.urgent_count = 0  # of those that wait: calls that are no reads
        self.stirred = asyncio.Event()  # a waiting read is to look around
        self.heard_s = now_s
        self.is_gone = False
        self.is_member = False
        self.share: Share | None = None
        self.follower: asyncio.Task[None] | None = None


class Instances:
    """The instances. `run` must be running. Errors: RequestError, GroupError, StoreError."""

    def __init__(
        self,
        groups: Groups,
        consumer: Consumer,
        routes: Routes,
        *,
        limits: Limits,
        idle_timeout_ms: int,
        draining: asyncio.Event,
        monotonic_s: Callable[[], float] = time.monotonic,
        schemas: Schemas | None = None,
    ) -> None:
        """`idle_timeout_ms`: an instance that is not called for so long is forgotten."""
        self._groups = groups
        self._poller = Poller(consumer, limits, monotonic_s=monotonic_s, schemas=schemas)
        self._routes = routes
        self._limits = limits
        self._idle_timeout_ms = idle_timeout_ms
        self._draining = draining
        self._monotonic_s = monotonic_s
        self._lives: dict[tuple[str, str], _Live] = {}
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def count(self) -> int:
        """Instances there are."""
        return len(self._lives)

    async def run(self) -> None:
        """Follow the groups of all instances, and forget idle ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for live in self._lives.values():
                self._follow(live)
            while True:
                await asyncio.sleep(min(_CHECK_S, self._idle_timeout_ms / 4000))
                await self.forget_idle()

    def restore(self) -> None:
        """Take up the instances of an earlier run. Called once, before any other call."""
        self.take_up(None)

    def take_up(self, group: str | None) -> None:
        """Take up the instances of a group that has come from another node (None: of all groups)."""
        for of, key, content in self._groups.documents(group, prefix=DOCUMENT_PREFIX):
            name = key.removeprefix(DOCUMENT_PREFIX)
            try:
                instance = decode_instance(of, name, content)
            except (ValueError, KeyError, TypeError, RequestError, GroupError) as error:
                log.error("consumer instance cannot be read and is gone group=%s instance=%s error=%r", of, name, error)
                continue
            live = _Live(instance, self._monotonic_s())
            live.is_member = instance.wish is not None and instance.generation is not None
            self._lives[of, name] = live
            self._follow(live)

    # Instances

    async def create(self, group: str, name: str | None, settings: InstanceSettings) -> str:
        """Make an instance; its name. Durable on return. Raises RequestError 409/40902, 429/42950."""
        name = name or f"rest-consumer-{uuid.uuid4()}"
        if (group, name) in self._lives or name in self._groups.members(group):
            raise RequestError(
                INSTANCE_EXISTS,
                "Consumer with specified consumer ID already exists in the specified consumer group.",
            )
        if len(self._lives) >= self._limits.consumer_instances_max:
            raise RequestError(
                TOO_MANY,
                f"This server holds {self._limits.consumer_instances_max} consumer instances, which is its limit; "
                "delete some, or raise limits.consumer_instances_max.",
                retriable=True,
                retry_after_ms=5000,
            )
        live = _Live(Instance(group, name, settings), self._monotonic_s())
        self._lives[group, name] = live  # taken from here on
        try:
            async with live.turn:
                await self._keep(live, flushed=True)
        except BaseException:
            self._drop(live)
            raise
        return name

    async def delete(self, group: str, name: str) -> None:
        """Forget an instance; with auto commit, what its client has is committed. Durable on return."""
        async with self._at(group, name) as live:
            live.instance.confirm()
            await self._commit_automatically(live)
            await self._forget(live)

    async def forget_idle(self) -> None:
        """Forget instances that were not called for too long. Nothing is committed that their clients may not have."""
        overdue_s = self._monotonic_s() - self._idle_timeout_ms / 1000
        for live in [live for live in self._lives.values() if live.heard_s <= overdue_s]:
            if live.turn.locked() or live.waiting_count:
                continue
            async with live.turn:
                if live.is_gone or live.heard_s > overdue_s:  # called while others were forgotten
                    continue
                log.info("consumer instance idle group=%s instance=%s", live.instance.group, live.instance.name)
                try:
                    await self._commit_automatically(live)
                    await self._forget(live)
                except (GroupError, StoreError) as error:
                    log.warning("consumer instance not forgotten yet instance=%s error=%r", live.instance.name, error)

    def forget_group(self, group: str) -> None:
        """The group has been deleted, and the documents of its instances with it."""
        for live in [live for (of, _), live in self._lives.items() if of == group]:
            self._drop(live)

    def settings(self, group: str, name: str) -> InstanceSettings:
        """Of one instance. Raises RequestError 404/40403."""
        return self._find(group, name).instance.settings

    # What it consumes

    async def subscribe(self, group: str, name: str, wish: Subscription) -> None:
        """Replace the subscription and become a member. Durable on return, and the partitions are there."""
        async with self._at(group, name) as live:
            await self._subscribe(live, wish)

    async def unsubscribe(self, group: str, name: str) -> None:
        """End subscription or assignment. Durable on return."""
        async with self._at(group, name) as live:
            instance = live.instance
            instance.confirm()
            await self._commit_automatically(live)
            await self._leave(live)
            instance.unsubscribe()
            await self._keep(live, flushed=True)

    async def topics(self, group: str, name: str) -> list[str]:
        """The topics it subscribes to."""
        async with self._at(group, name) as live:
            return live.instance.topics(topic.name for topic in self._routes.topics())

    async def assign(self, group: str, name: str, partitions: Sequence[TopicPartition]) -> None:
        """Replace the assignment. Durable on return. Raises UnknownQueue, UnknownPartition."""
        for topic, partition in partitions:
            if not 0 <= partition < (count := self._routes.topic(topic).partitions):
                raise UnknownPartition(f"topic={topic} has partitions 0 to {count - 1}, not {partition}")
        async with self._at(group, name) as live:
            instance = live.instance
            if instance.wish is None:
                instance.confirm()
                await self._commit_automatically(live)
            instance.assign(partitions)
            await self._sync(live)
            await self._keep(live, flushed=True)

    async def owned(self, group: str, name: str) -> list[TopicPartition]:
        """The partitions it has."""
        async with self._at(group, name) as live:
            await self._sync(live)
            return live.instance.owned()

    async def seek(self, group: str, name: str, offsets: Sequence[tuple[TopicPartition, int]]) -> None:
        """Go on at these offsets. Durable on return. Raises RequestError 409/40903 unless all are its partitions."""
        async with self._at(group, name) as live:
            await self._sync(live)
            partitions = live.instance.partitions_of(partition for partition, _ in offsets)
            live.instance.is_resumed = False
            for partition, (_, offset) in zip(partitions, offsets, strict=True):
                live.instance.seek(partition, offset)
            await self._keep(live, flushed=True)

    # Progress

    async def commit(self, group: str, name: str, commits: Sequence[OffsetCommit] | None) -> None:
        """Commit these, or (None) all its client was handed. Durable on return."""
        async with self._at(group, name) as live:
            await self._sync(live)
            instance = live.instance
            if commits is None:
                instance.confirm()
                commits = instance.unsaved()
            if commits:
                await self._groups.commit(group, commits, self._member_key(live))
                instance.committed(commits)
            await self._release(live, forced=True)
            await self._keep_soon(live)

    async def committed(self, group: str, name: str, partitions: Sequence[TopicPartition]) -> list[CommittedPosition]:
        """What the group has committed, in the order asked."""
        async with self._at(group, name):
            return await self._groups.committed(group, partitions)

    # Reading

    async def read(
        self,
        group: str,
        name: str,
        poll: Poll,
        *,
        reserve: Reserve = int,
        is_client_gone: Callable[[], bool],
        may_read: Callable[[str], bool],
        visible: Visible | None,
        topic: str | None = None,
    ) -> list[bytes]:
        """Records from the instance's positions on: at once if there are enough, else as they come, up to the timeout.

        Each is JSON. `reserve` is asked for memory when the first one is found. When the client goes meanwhile, nothing
        has been delivered. `may_read` says whether it may read a topic, and `visible` what its pattern may find: who
        reads is not always who subscribed, nor with the rights of that time. With `topic` (REST Proxy v1) the instance
        subscribes to it by itself. Raises RequestError 403/40301 when the client may not read a topic that the instance
        has by name, 409/40901 when it subscribes to others than `topic`.
        """
        async with self._at(group, name, is_read=True) as live:
            instance = live.instance
            if topic is not None:
                await self._subscribe_only(live, topic)
            wish = instance.wish
            if wish is not None and wish.pattern is not None and wish.visible != visible:
                await self._subscribe(live, Subscription(wish.topics, wish.pattern, visible))
            instance.ask_for_more()
            live.stirred.clear()
            await self._sync(live)
            await self._commit_automatically(live)
            await self._release(live, forced=True)

            def must_stop() -> bool:
                return bool(live.urgent_count) or live.is_gone or self._draining.is_set() or is_client_gone()

            def check_topics() -> None:
                if not all(map(may_read, instance.owned_topics())):
                    # Its name is not told: another client may have subscribed to it.
                    raise RequestError(FORBIDDEN, "Not allowed: receive in a topic that this consumer instance has.")

            async def look_around(gathering: Gathering) -> None:
                await self._look_around(live, gathering)
                check_topics()

            check_topics()
            gathering = await self._poller.gather(
                instance, poll, reserve=reserve, stirred=live.stirred, must_stop=must_stop, look_around=look_around
            )
            if is_client_gone():
                return []
            check_topics()  # again: rules may have changed while it waited
            instance.delivered(gathering.ends)
            if gathering.ends:
                await self._keep_soon(live)
            return gathering.records()

    async def _look_around(self, live: _Live, gathering: Gathering) -> None:
        """The group may have changed: take what is new, give up what is revoked."""
        await self._sync(live)
        await self._release(live, forced=False)
        positions, revoking = live.instance.positions, live.instance.revoking
        for topic_partition in [
            topic_partition
            for topic_partition in gathering.ends
            if topic_partition not in positions or topic_partition in revoking
        ]:
            gathering.drop(topic_partition)

    # Membership

    async def _subscribe(self, live: _Live, wish: Subscription) -> None:
        instance = live.instance
        if not instance.assigned:
            instance.confirm()
            await self._commit_automatically(live)
        before = instance.wish
        instance.subscribe(wish)
        try:
            await self._join(live)
        except BaseException:
            instance.wish = before
            raise
        await self._keep(live, flushed=True)

    async def _subscribe_only(self, live: _Live, topic: str) -> None:
        self._routes.topic(topic)
        wish = live.instance.wish
        if wish is None:
            await self._subscribe(live, Subscription(frozenset((topic,))))
        elif not wish.matches(topic) or wish.topics - {topic}:
            raise RequestError(OTHER_TOPIC, "Consumer instance is subscribed to other topics already.")

    async def _join(self, live: _Live) -> None:
        """Join, or say again what is wanted. A member that is out comes in anew, without its partitions."""
        instance = live.instance
        assert instance.wish is not None
        arguments = (instance.group, instance.name, instance.wish)
        timeout_ms, room = self._session_timeout_ms(instance.group), instance.settings.room
        generation = instance.generation
        if not live.is_member:
            generation = None
            instance.own(())  # whatever it had may have been another's meanwhile
        try:
            _, share = await self._groups.join(
                *arguments, generation=generation, session_timeout_ms=timeout_ms, room=room
            )
        except (StaleGeneration, UnknownMember):
            instance.own(())
            _, share = await self._groups.join(*arguments, session_timeout_ms=timeout_ms, room=room)
        live.is_member = True
        await self._take(live, share)
        self._follow(live)

    async def _sync(self, live: _Live) -> None:
        """Learn what partitions the instance has, and be heard."""
        instance = live.instance
        if instance.wish is None:
            await self._begin(live, instance.own(self._assigned(instance)))
            return
        if live.is_member:
            try:
                share = self._groups.heartbeat(instance.group, self._key_of(instance))
            except (UnknownMember, StaleGeneration) as error:
                log.info("consumer instance was out group=%s instance=%s why=%s", instance.group, instance.name, error)
                live.is_member = False
            else:
                if share != live.share:
                    await self._take(live, share)
                return
        await self._join(live)

    async def _take(self, live: _Live, share: Share) -> None:
        live.share = share
        await self._begin(live, live.instance.own_share(share))

    async def _begin(self, live: _Live, topic_partitions: Sequence[Partition]) -> None:
        """Find where to begin in new partitions."""
        if not topic_partitions:
            return
        instance = live.instance
        named = [
            TopicPartition(topic_partition.topic, topic_partition.partition) for topic_partition in topic_partitions
        ]
        stored = await self._groups.committed(instance.group, named)
        for number, (topic_partition, partition, committed) in enumerate(
            zip(topic_partitions, named, stored, strict=True)
        ):
            await turn_of_others(number)
            offset = await self._groups.start_offset(instance.group, partition, instance.settings.start)
            instance.begin(topic_partition, offset, committed.offset)

    def _assigned(self, instance: Instance) -> list[Partition]:
        """The assigned partitions that exist."""
        topics = {topic.name: topic for topic in self._routes.topics()}
        return [
            Partition(topic, topics[topic].topic_id, partition)
            for topic, partition in instance.assigned
            if topic in topics and partition < topics[topic].partitions
        ]

    async def _release(self, live: _Live, *, forced: bool) -> None:
        """Give up what is revoked. Unless `forced`, only partitions of which the client has nothing uncommitted."""
        instance = live.instance
        ready = [
            topic_partition
            for topic_partition in instance.revoking
            if forced or instance.positions[topic_partition].is_clean
        ]
        if not ready:
            return
        partitions = [
            TopicPartition(topic_partition.topic, topic_partition.partition) for topic_partition in sorted(ready)
        ]
        try:
            share = await self._groups.release(instance.group, self._key_of(instance), partitions)
        except (UnknownMember, StaleGeneration):
            live.is_member = False
            instance.own(())
            return
        await self._take(live, share)

    async def _leave(self, live: _Live) -> None:
        """Be no member any more."""
        self._unfollow(live)
        if not live.is_member:
            return
        with suppress(UnknownMember, StaleGeneration, UnknownGroup):  # it was out already
            await self._groups.leave(live.instance.group, self._key_of(live.instance))
        live.is_member = False
        live.share = None

    def _follow(self, live: _Live) -> None:
        if self._tasks is None or not live.is_member or (live.follower is not None and not live.follower.done()):
            return
        live.follower = self._tasks.create_task(self._followed(live), name=f"follow {live.instance.name}")

    def _unfollow(self, live: _Live) -> None:
        if live.follower is not None:
            live.follower.cancel()
            live.follower = None

    async def _followed(self, live: _Live) -> None:
        """Play the member's part while the client is away."""
        instance = live.instance
        try:
            if live.share is None:  # taken up from an earlier run
                async with live.turn:
                    if live.share is None and live.is_member:
                        await self._take(live, self._groups.heartbeat(instance.group, self._key_of(instance)))
            while live.share is not None:
                is_overdue = False
                try:
                    async with asyncio.timeout(REVOKE_WAIT_MS / 1000 if instance.revoking else None):
                        await self._groups.share_changed(instance.group, instance.name, live.share)
                except TimeoutError:
                    is_overdue = True
                live.stirred.set()
                async with live.turn:
                    if not live.is_member or live.is_gone:
                        return
                    await self._take(live, self._groups.heartbeat(instance.group, self._key_of(instance)))
                    await self._commit_automatically(live)
                    await self._release(live, forced=is_overdue)
                    await self._keep_soon(live)
        except Exception as error:  # the server does not end with it, whatever it is
            is_usual = isinstance(error, GroupError | StoreError)
            log.log(
                logging.INFO if is_usual else logging.ERROR,
                "consumer instance is out group=%s instance=%s why=%s", instance.group, instance.name, error,
                exc_info=None if is_usual else error,
            )  # fmt: skip
            live.is_member = False  # joins again at its next call
            live.stirred.set()

    # What all calls have in common

    @asynccontextmanager
    async def _at(self, group: str, name: str, *, is_read: bool = False) -> AsyncIterator[_Live]:
        """One's turn at an instance. Raises RequestError 404/40403, 429/42950."""
        live = self._find(group, name)
        if live.waiting_count >= CALLS_WAITING_MAX:
            raise RequestError(
                TOO_MANY,
                f"{CALLS_WAITING_MAX} calls wait for this consumer instance; one instance is for one client.",
                retriable=True,
                retry_after_ms=1000,
            )
        live.waiting_count += 1
        live.urgent_count += not is_read
        live.stirred.set()
        try:
            await live.turn.acquire()
        finally:
            live.waiting_count -= 1
            live.urgent_count -= not is_read
        try:
            if live.is_gone:
                raise _not_found()
            live.heard_s = self._monotonic_s()
            yield live
        finally:
            live.heard_s = self._monotonic_s()
            live.turn.release()

    def _find(self, group: str, name: str) -> _Live:
        live = self._lives.get((group, name))
        if live is None:
            raise _not_found()
        return live

    async def _forget(self, live: _Live) -> None:
        """Durably, then be gone."""
        instance = live.instance
        await self._groups.put_document(instance.group, DOCUMENT_PREFIX + instance.name, None, flushed=True)
        await self._leave(live)
        self._drop(live)

    def _drop(self, live: _Live) -> None:
        self._unfollow(live)
        live.is_gone = True
        live.stirred.set()
        place = live.instance.group, live.instance.name
        if self._lives.get(place) is live:  # not another of that name
            del self._lives[place]

    async def _keep(self, live: _Live, *, flushed: bool) -> None:
        instance = live.instance
        key = DOCUMENT_PREFIX + instance.name
        await self._groups.put_document(instance.group, key, instance.encode(), flushed=flushed)

    async def _keep_soon(self, live: _Live) -> None:
        """How far it is: worth keeping, but no reason to refuse a read when the store takes nothing (C9), or the group
        has no room: the next read would confirm what was not answered."""
        try:
            await self._keep(live, flushed=False)
        except (GroupError, StoreError) as error:
            log.warning("position not kept instance=%s error=%r", live.instance.name, error)

    async def _commit_automatically(self, live: _Live) -> None:
        """With auto commit: commit what the client has. What cannot be committed now is at the next call."""
        instance = live.instance
        if not instance.settings.auto_commit or not (commits := instance.unsaved()):
            return
        try:
            await self._groups.commit(instance.group, commits, self._member_key(live))
        except (GroupError, StoreError) as error:
            log.warning("automatic commit failed group=%s instance=%s error=%r", instance.group, instance.name, error)
        else:
            instance.committed(commits)

    def _member_key(self, live: _Live) -> MemberKey | None:
        return None if live.instance.wish is None else self._key_of(live.instance)

    def _key_of(self, instance: Instance) -> MemberKey:
        assert instance.generation is not None
        return MemberKey(instance.name, instance.generation)

    def _session_timeout_ms(self, group: str) -> int:
        """Longer than an idle instance lives, as far as the group allows: who is slow to poll is not dead."""
        wanted_ms = self._idle_timeout_ms + self._limits.timeout_ms_max + _SESSION_SLACK_MS
        config = self._groups.config(group)
        return min(max(wanted_ms, config.session_timeout_ms_min), config.session_timeout_ms_max)


def _not_found() -> RequestError:
    return RequestError(INSTANCE_NOT_FOUND, "Consumer instance not found.")

"""The coordinator: all consumer groups of one node, behind the protocol of `api`.

    start   read the last snapshot and the events behind it; forget what belongs to topics that are gone
    run     write events, put out silent members, heal assignments, dead-letter dead letters, save snapshots
    close   write what waits, save a last snapshot

Its parts do the work, and what they offer is bound here by name, so that a call goes to them directly:

    stream        members: join, heartbeat, release, leave
    offsets       progress: commit, lag, reset (`light_offsets`: in light queues)
    receiving     which records a consumer gets, and the wait for them (`search`: what there is in one partition)
    settling      ack, nack, extend, give back, reject
    dead_letters  what was rejected or failed too often, and its way back
    handover      groups that leave for another node, or come from one
    shards        groups whose log is not this node's own
    looking       pages of groups, open records and lags
    origins       which topics that came from
    copies        records on their way to a retry or a dead-letter topic

Their events are written and read again by gateway/brokers/event_log.py.

Here is what concerns a group as a whole (lists, settings, deletion, documents), and what one part must know of another
when an event is applied.

Leases of one partition change under its turn. Events of queue mode, and when they are durable:

    LeasesBegun             flushed: where a group began must not move
    Leased, LeaseMoved      written: a kill -9 keeps them, a power cut may take the last ones; those records are
                            delivered again, perhaps under an attempt number that was used before
    Settled, Rejected       flushed before the answer (C5)

    crash                                        what a restart finds
    before the first use is durable              no position: no consumer has got anything, the next receive begins anew
    after it, before a lease is written          the position, in all partitions; the records as they were
    after the lease, before the answer           the lease; it ends by itself, or is asked for again by attempt_id
    before an ack is durable                     the lease, or its end: the record is delivered again
    after it, before the answer                  the ack; acking again is fine
    between a copy (retry, dead letter) and      both: the copy is durable first, so nothing is lost
    the settling of its record
    between a redriven copy and the offset       the copy, and the dead letter to redrive: it comes twice
    that says so
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import get_args

from prometheus_client.samples import Sample

from gateway.brokers.base import Broker, LightQueues
from gateway.brokers.event_log import EventLog, RunBlocking
from gateway.groups.coordinator.context import (
    GROUP_EVENTS,
    Belonging,
    Context,
    GroupLimits,
    OwnTopics,
    Room,
    Stats,
    Turns,
)
from gateway.groups.coordinator.copies import CopyWriter
from gateway.groups.coordinator.dead_letters import DeadLetters
from gateway.groups.coordinator.handover import Handover
from gateway.groups.coordinator.light_offsets import LightProgress
from gateway.groups.coordinator.looking import Looking
from gateway.groups.coordinator.lossy_replay import LossyReplay
from gateway.groups.coordinator.offsets import Offsets
from gateway.groups.coordinator.receipt_key import load_or_make_key
from gateway.groups.coordinator.receiving import Receiving
from gateway.groups.coordinator.records import RecordReader
from gateway.groups.coordinator.search import Search
from gateway.groups.coordinator.settling import Settling
from gateway.groups.coordinator.shards import GroupLogs, Shards
from gateway.groups.coordinator.start_positions import decide_follow
from gateway.groups.coordinator.stream import StreamMode
from gateway.groups.machines.broadcast import group_of
from gateway.groups.machines.config import INVISIBLE_MS_LIMIT, GroupConfig, changed_settings, with_changes
from gateway.groups.machines.copies import check_group_name
from gateway.groups.machines.errors import GroupActive, GroupFull, IllegalRequest
from gateway.groups.machines.events import (
    Configured,
    DocumentPut,
    Event,
    Forgotten,
    Leased,
    LeaseMoved,
    LeasesBegun,
    LeasesSet,
    LightBegun,
    MembershipEvent,
    QueueEvent,
    Rejected,
    Settled,
)
from gateway.groups.machines.membership import Member
from gateway.groups.machines.progress import place_of
from gateway.groups.machines.receipts import Signer
from gateway.groups.machines.strategies.base import Partition, StrategyContext
from gateway.groups.machines.strategies.registry import StrategyRegistry, installed
from gateway.groups.machines.subscription import Subscription
from gateway.groups.machines.table import GroupTable, document_bytes, settings_bytes
from gateway.groups.protocol import GroupDescription, MemberView
from gateway.routing.base import Routes
from gateway.routing.tail_watcher import TailWatcher
from store.clock import Clock
from store.errors import NoLightQueues, StoreError, StoreStopped, UnknownQueue
from store.files import Files
from store.limits import KiB

log = logging.getLogger(__name__)

DOCUMENT_BYTES_MAX = 64 * KiB
DOCUMENT_KEY_BYTES_MAX = 512
DOCUMENTS_MAX = 10_000
"""Documents of one group."""

LOOK_INTERVAL_MS = 200
"""How often it is asked whose session is over."""

DEAD_LETTER_INTERVAL_MS = 1_000
"""How often it is asked which records were delivered for the last time and came back by silence."""

LAG_INTERVAL_MS = 5_000
"""How old the lag in the metrics may be."""

LAGS_MAX = 10_000
"""Partitions whose lag is kept for the metrics."""

GROUPS_PER_TURN = 100
"""Groups looked at in one turn of the event loop, where little is done for each."""

SNAPSHOT_INTERVAL_MS = 30_000
SNAPSHOT_EVENTS_MAX = 200_000
"""Events behind the last snapshot after which the next one does not wait for its time: what a restart has to read."""

_MEMBERSHIP_EVENTS = get_args(MembershipEvent)
_QUEUE_EVENTS = get_args(QueueEvent)


class Coordinator:
    """The consumer groups of one node. `start`, then `run` until cancelled, then `close`.

    `run_blocking` runs what waits for the disk (default: a thread). Whoever keeps topics calls `topics_changed`.
    """

    def __init__(
        self,
        *,
        directory: Path,
        files: Files,
        broker: Broker,
        routes: Routes,
        tail_watcher: TailWatcher,
        own_topics: OwnTopics,
        clock: Clock,
        monotonic_ms: Callable[[], int],
        draining: asyncio.Event,
        limits: GroupLimits,
        strategies: StrategyRegistry | None = None,
        run_blocking: RunBlocking = asyncio.to_thread,
    ) -> None:
        context = StrategyContext(broker_of=partial(_broker_of, routes), room_of_broker=routes.room_of)
        table = GroupTable(strategies or StrategyRegistry(installed()), context)
        self._log = EventLog(
            GROUP_EVENTS,
            broker,
            clock,
            GROUP_EVENTS.snapshot_files(directory, files, run_blocking),
            apply=lambda event, _: self._apply(event),
            whole_state=lambda: table.snapshot(
                without=self.shards.names(), light_of=lambda group: not logs.is_sharded(group)
            ),
        )
        self._table = table
        logs = GroupLogs(self._log)
        self.belonging = Belonging()
        self._context = Context(
            table=table,
            log=logs,
            routes=routes,
            records=RecordReader(routes, run_blocking=run_blocking),
            tail_watcher=tail_watcher,
            own_topics=own_topics,
            clock=clock,
            monotonic_ms=monotonic_ms,
            draining=draining,
            room=Room(table, limits),
            run_blocking=run_blocking,
            belonging=self.belonging,
            turns=Turns(self.belonging),
            note_light=broker.note_light if isinstance(broker, LightQueues) else _no_light,
        )
        self._directory = directory
        self._files = files
        self._run_blocking = run_blocking
        self._copies = CopyWriter(self._context)
        self._search = Search(self._context)
        self.light_offsets = LightProgress(self._context)
        self.stream = stream = StreamMode(self._context)
        self._offsets = offsets = Offsets(self._context, stream)
        self.dead_letters = DeadLetters(self._context, self._copies)
        self.handover = Handover(self._context, self.dead_letters.origins)
        self.shards = Shards(self._context, logs, self.handover, apply=self._apply_one)

        # The methods of `Groups` that a part does (those of receiving and settling: see `start`).
        self.join, self.heartbeat, self.share_changed = stream.join, stream.heartbeat, stream.share_changed
        self.release, self.leave = stream.release, stream.leave
        self.begin_round, self.assign, self.plan_state = stream.begin_round, stream.assign, stream.plan_state
        self.committed, self.start_offset, self.commit = offsets.committed, offsets.start_offset, offsets.commit
        self.forget_offsets, self.lag, self.reset = offsets.forget, offsets.lag, offsets.reset
        self.redrive, self.settle_letters = self.dead_letters.redrive, self.dead_letters.settle
        self.settled_letters = self.dead_letters.settled
        self.looking = looking = Looking(self._context, offsets, self.dead_letters)
        self.names, self.view, self.counts = looking.names, looking.view, looking.counts
        self.leases, self.lag_page = looking.leases, looking.lag_page

        self._lossy_replay: LossyReplay | None = None  # while events are read, behind a lost one
        self._topics_changed = asyncio.Event()
        self.lags: list[Sample] = []
        """Lag by group, topic and partition, as it was when last looked at: the first LAGS_MAX. As /metrics shows them:
        to make so many for each request would hold the event loop."""

        self.omitted_lag_count = 0
        """Partitions of groups' topics whose lag was not looked at."""

        self.group_lags: dict[str, int] = {}
        """Lag by group, as it was then: of those of which every partition was looked at."""

        self.lags_version = 0
        """Grows when lags were looked at."""

    # ---- life

    async def start(self) -> None:
        """Read what there is. Raises Corrupt, OSError, and what reading raises."""
        keys: list[bytes] = []
        await self._run_blocking(lambda: keys.append(load_or_make_key(self._directory, self._files)))
        signer = self.looking.signer = self.handover.signer = Signer(keys)
        self.handover.keys = keys
        settling = Settling(self._context, self._copies, self.dead_letters, signer)
        self._receiving = Receiving(
            self._context,
            self._offsets,
            self._search,
            signer,
            give_back=settling.give_back,
        )
        self.receive, self.begin_receive = self._receiving.receive, self._receiving.begin
        self.give_back = settling.give_back
        self.ack, self.ack_up_to, self.extend = settling.ack, settling.ack_up_to, settling.extend
        self.nack, self.reject = settling.nack, settling.reject
        event_count = await self._log.replay(self._events_lost)
        if self._lossy_replay is not None:
            ended, self._lossy_replay = self._lossy_replay.end(), None
            for event in ended:
                self._apply(event)
            await self._log.save()
        self.dead_letters.origins.start()
        self.handover.start()
        self._table.progress.open()
        self._context.stats.reset()  # what was read is not what has happened
        self._topics_changed.set()
        if event_count or self._table.names():
            log.info("consumer groups read groups=%s events=%s", len(self._table.names()), event_count)

    async def run(self) -> None:
        """Work until cancelled. Raises only what a restart can help with."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._log.run(), name="groups events")
            tasks.create_task(self._now_and_then(LOOK_INTERVAL_MS, self.stream.look), name="groups members")
            tasks.create_task(
                self._now_and_then(DEAD_LETTER_INTERVAL_MS, self.dead_letters.dead_letter_all),
                name="groups dead letters",
            )
            tasks.create_task(self.dead_letters.origins.run(), name="groups origins")
            tasks.create_task(self._now_and_then(DEAD_LETTER_INTERVAL_MS, self._save_if_due()), name="groups snapshot")
            tasks.create_task(self._now_and_then(LAG_INTERVAL_MS, self._read_lags), name="groups lag")
            tasks.create_task(self._follow_topics(), name="groups topics")
            tasks.create_task(self._drain(), name="groups draining")

    async def close(self) -> None:
        """End all waits, those of others who share the tail watcher too, and leave a snapshot, so that the next start
        reads little. Call after `run` has ended."""
        await self._context.tail_watcher.close()
        await self.shards.close()
        await self._log.close()

    def topics_changed(self) -> None:
        """Topics came, grew or went."""
        self._topics_changed.set()

    @property
    def needed_position(self) -> int | None:
        """Retention must keep the log from this position on; None: nothing of it."""
        return self._log.needed_position

    @property
    def stats(self) -> Stats:
        """What is counted since start."""
        return self._context.stats

    @property
    def log(self) -> EventLog[Event]:
        """The events, for what they count."""
        return self._log

    @property
    def table(self) -> GroupTable:
        """The groups, for those who look."""
        return self._table

    @property
    def group_count(self) -> int:
        """Groups there are; a broadcasting one with all its members is one."""
        return len(self._table) - self._table.lone_count

    def _events_lost(self, count: int) -> None:
        if self._lossy_replay is None:
            log.warning("events of consumer groups were lost in a repair: members join again, records may come again")
            lossy_replay = LossyReplay(self._table, self._context.clock.now_ms())
            for event in lossy_replay.begin():
                self._apply(event)
            self._lossy_replay = lossy_replay
        self._lossy_replay.lost_count += count

    def _apply(self, event: Event) -> None:
        if self._lossy_replay is None:
            self._apply_one(event)
            return
        for one in self._lossy_replay.kept(event):
            self._apply_one(one)

    def _apply_one(self, event: Event) -> None:
        if isinstance(event, Forgotten):
            self._forget(event)
            return
        self._table.apply(event, self._context.monotonic_ms())
        if isinstance(event, _QUEUE_EVENTS):
            self._leases_changed(event)
        elif isinstance(event, _MEMBERSHIP_EVENTS):
            self.stream.applied(event)

    def _leases_changed(self, event: QueueEvent) -> None:
        """Tell who waits for leases to change, and remember where dead letters may be."""
        context = self._context
        group = event.group
        if isinstance(event, LightBegun):
            return  # whose receive it is, goes on
        if isinstance(event, LeasesBegun):
            if event.first == 0:
                self._search.forget_topics(group, {event.topic_id})
            context.leases_changed.happened(group)
            return
        key = place_of(event.topic_id, event.partition, event.name)
        leases = context.table.opened(group, key)
        if leases is None:
            self._search.forget(group, key)
        elif leases.may_have_dead_letters:
            self.dead_letters.expect(group, key)
        match event:
            case Leased():  # each receive: first, as each class before it is a call
                pass
            case Settled():
                context.stats.settled_count += len(event.offsets)
                self._receiving.settled(group, event.name)
            case LeaseMoved():
                self._receiving.moved(group, key)
            case LeasesSet():
                self._search.forget(group, key)
                context.leases_changed.happened(group)
            case Rejected():
                pass

    def _forget(self, event: Forgotten) -> None:
        """Leases are gone, with their topics or with the whole group: tell who waits."""
        group, ids = event.group, event.topic_ids
        self._table.apply(event, self._context.monotonic_ms())
        self._search.forget_topics(group, ids)
        if ids is None:
            self._receiving.forget(group)
        self._context.leases_changed.happened(group)

    async def _now_and_then(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        """Do something at intervals. What the store refuses is tried again; a stopped store stays stopped."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except StoreStopped:
                await asyncio.Event().wait()  # until the server ends: reads go on, nothing else does
            except StoreError as error:
                log.warning("consumer groups wait for the store error=%s", error)

    def _save_if_due(self) -> Callable[[], Awaitable[None]]:
        saved_ms = self._context.monotonic_ms()

        async def save() -> None:
            nonlocal saved_ms
            now_ms = self._context.monotonic_ms()
            if now_ms - saved_ms >= SNAPSHOT_INTERVAL_MS or self._log.unsaved_count >= SNAPSHOT_EVENTS_MAX:
                saved_ms = now_ms
                await asyncio.shield(self._log.save())  # cancelled half-way, a thread would write while `close` does

        return save

    async def _read_lags(self) -> None:
        lags: list[Sample] = []
        omitted_count = 0
        group_lags: dict[str, int] = {}
        incomplete: set[str] = set()
        for number, name in enumerate(self._table.names()):
            some, omitted = await self._offsets.lags(name, LAGS_MAX - len(lags))
            group = group_of(name)
            group_lags[group] = group_lags.get(group, 0) + sum(int(one.value) for one in some)
            if omitted:
                incomplete.add(group)
            lags += some
            omitted_count += omitted
            if some or number % GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        self.lags, self.omitted_lag_count = lags, omitted_count
        self.group_lags = {group: lag for group, lag in group_lags.items() if group not in incomplete}
        self.lags_version += 1

    async def _follow_topics(self) -> None:
        while True:
            await self._topics_changed.wait()
            self._topics_changed.clear()
            self._context.leases_changed.all_happened()  # there may be more to look into
            try:
                await self.stream.topics_changed()
            except StoreStopped:
                return
            except StoreError as error:
                log.warning("topics are shared out later error=%s", error)
                await asyncio.sleep(LOOK_INTERVAL_MS / 1000)
                self._topics_changed.set()

    async def _drain(self) -> None:
        await self._context.draining.wait()
        self._context.leases_changed.all_happened()

    # ---- groups

    def describe(self, group: str) -> GroupDescription:
        """See `Groups.describe`."""
        members: list[MemberView] = []
        warnings: set[str] = set()
        now_ms = self._context.monotonic_ms()
        for state in self.looking.parts(group):
            warnings.update(state.membership.rooms.warnings)
            for member in state.membership.members():
                share = state.membership.share(member.member_id)
                members.append(MemberView(member, share, state.membership.heard_ago_ms(member.member_id, now_ms)))
        return GroupDescription(
            self.looking.view(group), self._table.config(group), tuple(members), tuple(sorted(warnings))
        )

    def config(self, group: str) -> GroupConfig:
        """See `Groups.config`."""
        return self._table.config(group)

    def members(self, group: str) -> Mapping[str, Member]:
        """See `Groups.members`."""
        if group not in self._table:
            return {}
        first, *lone = [part.membership.by_id for part in self.looking.parts(group)]
        return {name: member for part in (first, *lone) for name, member in part.items()} if lone else first

    async def configure(self, group: str, changes: Mapping[str, object]) -> GroupConfig:
        """See `Groups.configure`."""
        check_group_name(group)
        async with self._context.whole_group(group, *self._table.lone_groups(group)):
            before = self._table.config(group)
            config = with_changes(before, changes)
            if config.invisible_ms_max > INVISIBLE_MS_LIMIT:  # asked here, not where settings are read again
                raise IllegalRequest(f"invisible_ms_max may be at most {INVISIBLE_MS_LIMIT}")
            try:
                self._table.strategy(config)
            except (ValueError, ImportError, AttributeError) as error:
                raise IllegalRequest(str(error)) from error
            if config.mode != before.mode:
                self._check_empty(group)
            event = Configured(group, changed_settings(config))
            more = settings_bytes(event.settings) - settings_bytes(self._table.get_or_new(group).settings)
            with self._context.room.for_bytes(group, more):
                await self._context.write([event])
        self._topics_changed.set()  # another strategy shares out anew
        return config

    async def delete(self, group: str) -> None:
        """See `Groups.delete`."""
        async with self._context.whole_group(group, *self._table.lone_groups(group)):
            self._check_empty(group)
            parts = self.looking.parts(group)
            await self.light_offsets.delete(group)
            if group in self._table:
                await self._context.write([Forgotten(part.name, None) for part in parts])

    async def follow(self, group: str, wish: Subscription) -> None:
        """See `Groups.follow`."""
        check_group_name(group)
        context = self._context
        async with context.turns.of_group(group):
            documents = self._table.get_or_new(group).documents
            events = decide_follow(group, documents, wish, context.routes.topics())
            with context.room.for_bytes(group, sum(document_bytes(event.key, event.content) for event in events)):
                await context.write(events)

    def _check_empty(self, group: str) -> None:
        """Raises GroupActive while the group has members or records on lease."""
        if group not in self._table:
            return
        now_ms = self._context.clock.now_ms()
        for part in self.looking.parts(group):
            part.membership.check_deletable()
            if leased_count := part.leased_count(now_ms):
                raise GroupActive(f"group={group} has {leased_count} records on lease; settle them, or wait")

    # ---- documents

    def documents(self, group: str | None = None, prefix: str = "") -> list[tuple[str, str, bytes]]:
        """See `Groups.documents`."""
        names = self._table.names() if group is None else [group] if group in self._table else []
        return [
            (name, key, content)
            for name in names
            for key, content in sorted(self._table.get(name).documents.items())
            if key.startswith(prefix)
        ]

    async def put_document(self, group: str, key: str, content: bytes | None, *, flushed: bool = False) -> None:
        """See `Groups.put_document`."""
        check_group_name(group)
        if not 1 <= len(key.encode()) <= DOCUMENT_KEY_BYTES_MAX:
            raise IllegalRequest(f"the key of a document has 1 to {DOCUMENT_KEY_BYTES_MAX} bytes")
        if content is not None and len(content) > DOCUMENT_BYTES_MAX:
            raise IllegalRequest(f"a document has at most {DOCUMENT_BYTES_MAX} bytes")
        documents = self._table.get_or_new(group).documents
        if content is None and key not in documents:
            return
        if content is not None and key not in documents and len(documents) >= DOCUMENTS_MAX:
            raise GroupFull(f"group={group} has {DOCUMENTS_MAX} documents, which is its limit")
        more = document_bytes(key, content) - document_bytes(key, documents.get(key))
        with self._context.room.for_bytes(group, more):
            await self._context.write([DocumentPut(group, key, content)], flushed=flushed)


def _no_light() -> None:
    raise NoLightQueues("the events of groups are kept by a broker that has no light queues")


def _broker_of(routes: Routes, partition: Partition) -> str:
    """The broker that takes records of a partition now; none for a topic that is gone meanwhile."""
    try:
        return routes.broker_name(partition.topic, partition.partition)
    except UnknownQueue:
        return ""

"""How records come into consumers' hands: a receive goes through the partitions of its topics until it has enough.

It begins with another partition each time, and goes to those first that nobody is busy with. When it finds nothing it
waits until a record comes, a lease ends, or one is given back. Whoever is cancelled gives back what it had leased.

Where a group begins is settled by its first receive in a topic, for all partitions of the topic at once and durably:
whatever is stored from then on, in whichever partition, reaches the group (see `start_positions`). The group's own
retry topic begins with its first record.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gateway.codec.tags import MESSAGE_GROUP_HEADER, TAG_HEADER
from gateway.groups.coordinator.context import Context
from gateway.groups.coordinator.offsets import Offsets
from gateway.groups.coordinator.records import Stored
from gateway.groups.coordinator.search import Lane, Search, Wanted, lanes_of, text_of
from gateway.groups.coordinator.start_positions import start_in
from gateway.groups.machines.config import BROADCAST
from gateway.groups.machines.copies import check_group_name, origin_of, retry_topic, shown_headers
from gateway.groups.machines.errors import GroupActive, GroupError, GroupFull, IllegalRequest
from gateway.groups.machines.events import LeaseEvent
from gateway.groups.machines.leases import Lease, PartitionLeases
from gateway.groups.machines.progress import PartitionKey, Start
from gateway.groups.machines.receipts import Receipt, Signer
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import (
    RECEIVE_BYTES_MAX,
    RECEIVE_MESSAGES_MAX,
    Delivered,
    Receive,
    Received,
    StartSpec,
    TopicPartition,
)
from gateway.routing.base import TopicView
from store.errors import StoreError
from store.record_batch import Headers
from store.types import Bounds
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)

_RECHECK_MS = 250  # when something is due that this request does not want


@dataclass(slots=True)
class _Round:
    """What one round through all partitions brought."""

    messages: list[Delivered] = field(default_factory=list)
    size_bytes: int = 0
    has_moved: bool = False
    is_full: bool = False
    bounds: dict[PartitionKey, Bounds] = field(default_factory=dict)


class Receiving:
    """Hands out records of all groups of one node. `give_back` takes receipts that reached nobody."""

    def __init__(
        self,
        context: Context,
        offsets: Offsets,
        search: Search,
        signer: Signer,
        *,
        give_back: Callable[[str, Sequence[str]], Awaitable[None]],
        in_flight_max: int,
    ) -> None:
        self._context = context
        self._offsets = offsets
        self._search = search
        self._signer = signer
        self._give_back = give_back
        self._in_flight_max = in_flight_max
        self._next_lane: dict[str, int] = {}
        self._taking: Counter[str] = Counter()  # records that are about to be opened, by group
        self._starved: set[str] = set()  # groups in which a receive found a bound reached

    def forget(self, group: str) -> None:
        """The group was deleted."""
        self._next_lane.pop(group, None)
        self._starved.discard(group)

    def settled(self, group: str) -> None:
        """Records of a group are done: tell who waits for room, or for the next of a message group."""
        if group in self._starved or self._context.table.config(group).fifo:
            self._starved.discard(group)
            self._context.leases_changed.happened(group)

    async def receive(self, group: str, request: Receive) -> Received:
        """See `Groups.receive`."""
        self._check(group, request)
        context = self._context
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + request.wait_ms / 1000
        while True:
            waiter: asyncio.Future[None] = loop.create_future()
            context.leases_changed.listen(group, waiter)
            try:
                lanes = await self._lanes(group, request)
                found = await self._round(group, request, lanes)
                if found.messages:
                    return Received(tuple(found.messages), self._backlog(group, found))
                left_s = deadline_s - loop.time()
                if left_s <= 0 or context.draining.is_set():
                    if found.is_full:
                        raise GroupFull(
                            f"group={group} has as many records handed out and not settled as it may; ack some"
                        )
                    return Received((), self._backlog(group, found))
                if found.has_moved:
                    await asyncio.sleep(0)
                else:
                    await self._wait(group, lanes, found, waiter, left_s)
            finally:
                context.leases_changed.forget(group, waiter)

    def _check(self, group: str, request: Receive) -> None:
        check_group_name(group)
        context = self._context
        context.check_room(group)
        config = context.table.config(group)
        self._check_mode(group)
        if not 1 <= len(request.topics) <= TOPICS_MAX:
            raise IllegalRequest(f"a receive names 1 to {TOPICS_MAX} topics")
        if not 1 <= request.max_messages <= RECEIVE_MESSAGES_MAX:
            raise IllegalRequest(f"max_messages must be from 1 to {RECEIVE_MESSAGES_MAX}, not {request.max_messages}")
        if not 1 <= request.max_bytes <= RECEIVE_BYTES_MAX:
            raise IllegalRequest(f"max_bytes must be from 1 to {RECEIVE_BYTES_MAX}, not {request.max_bytes}")
        if request.invisible_ms is not None and not 1 <= request.invisible_ms <= config.invisible_ms_max:
            raise IllegalRequest(
                f"invisible_ms must be from 1 to {config.invisible_ms_max}, not {request.invisible_ms}"
            )

    def _check_mode(self, group: str) -> None:
        """Raises GroupActive, IllegalRequest where the group is in stream mode, or broadcasting."""
        table = self._context.table
        if table.config(group).mode == BROADCAST:
            raise IllegalRequest(f"group={group} is broadcasting; its members consume in stream mode")
        if group in table and (members := table.get(group).membership.members()):
            raise GroupActive(f"group={group} has {len(members)} members in stream mode; use another group to receive")

    async def _lanes(self, group: str, request: Receive) -> list[Lane]:
        """All partitions to look into, another one first each time. Raises UnknownQueue."""
        context = self._context
        own = retry_topic(group)
        views = [(context.routes.topic(name), name == own) for name in dict.fromkeys(request.topics)]
        if own not in request.topics and (view := context.find_topic(own)) is not None:
            views.append((view, True))
        lanes = [
            lane
            for view, is_retry in views
            for lane in lanes_of(view.name, view.topic_id, view.partitions, is_retry=is_retry)
        ]
        known = context.table.get(group).leases if group in context.table else {}
        if any(lane.key not in known for lane in lanes):
            for view, is_retry in views:
                await to_its_end(self._begin(group, view, Start.FIRST if is_retry else request.start))
        first = self._next_lane.get(group, 0) % len(lanes)
        self._next_lane[group] = first + 1
        return lanes[first:] + lanes[:first]

    async def _begin(self, group: str, view: TopicView, start: StartSpec) -> None:
        """Fix where the group is in every partition of a topic. Durable on return: all partitions are one entry."""
        context = self._context
        async with context.turns.of_group(group):
            self._check_mode(group)
            known = context.table.get(group).leases if group in context.table else {}
            start = start_in(context.table, group, view, start)
            now_ms = context.clock.now_ms()
            events: list[LeaseEvent] = []
            for number in range(view.partitions):
                key = PartitionKey(view.topic_id, number)
                if key not in known:
                    offset = await self._offsets.where(group, TopicPartition(view.name, number), start)
                    begun = PartitionLeases(group, *key, context.table.config(group))
                    events += begun.decide_reset(offset, now_ms)
            await context.write(events)

    async def _round(self, group: str, request: Receive, lanes: Sequence[Lane]) -> _Round:
        table, turns = self._context.table, self._context.turns
        now_ms = self._context.clock.now_ms()
        done = _Round()
        again: list[Lane] = []
        if request.attempt_id is not None:
            again = [
                lane
                for lane in lanes
                if (leases := table.leases(group, lane.key)) and leases.leases_of(request.attempt_id, now_ms)
            ]
            if again:  # the answer to an earlier request with this id is the whole answer
                lanes = again
        for lane in lanes:
            done.bounds[lane.key] = await self._context.records.bounds(lane.topic, lane.partition)
        promising = [lane for lane in lanes if again or self._may_have(group, lane, done.bounds[lane.key])]
        promising.sort(key=lambda lane: turns.is_busy(group, lane.key))
        for lane in promising:
            left_count, left_bytes = request.max_messages - len(done.messages), request.max_bytes - done.size_bytes
            if left_count <= 0 or (done.messages and left_bytes <= 0):
                break
            if not again and not self._may_have(group, lane, done.bounds[lane.key]):
                continue  # others were faster
            try:
                taken = await to_its_end(
                    self._take(group, lane, request, left_count, left_bytes, done),
                    undo=lambda late: self._give_back_all(group, [*done.messages, *late]),
                )
            except (StoreError, GroupError):
                if done.messages:
                    break
                raise
            done.messages += taken
        return done

    def _may_have(self, group: str, lane: Lane, bounds: Bounds) -> bool:
        """Whether a partition is worth its turn: it has new records, or something is due."""
        leases = self._context.table.leases(group, lane.key)
        if leases is None:
            return True
        if bounds.max_offset > leases.next_offset or leases.low_offset < bounds.min_offset:
            return True
        due_ms = leases.next_due_ms()
        return due_ms is not None and due_ms <= self._context.clock.now_ms()

    async def _take(
        self, group: str, lane: Lane, request: Receive, limit: int, max_bytes: int, done: _Round
    ) -> list[Delivered]:
        """Lease records of one partition."""
        context = self._context
        async with context.turns.of_leases(group, lane.key):
            leases = context.table.leases(group, lane.key)
            if leases is None:  # the group, or the topic, was deleted a moment ago
                done.has_moved = True
                return []
            self._check_mode(group)
            now_ms = context.clock.now_ms()
            if request.attempt_id is not None and leases.leases_of(request.attempt_id, now_ms):
                return await self._taken_before(group, lane, leases, request.attempt_id, now_ms)
            config = context.table.config(group)
            wanted = Wanted(request.topics, request.tags, limit, max_bytes, min(self._room(group), leases.room))
            found = await self._search.look(group, lane, leases, wanted, now_ms)
            if found.is_full:
                done.is_full = done.is_full or not found.wanted_count
                self._starved.add(group)
            if found.lost:
                log.warning(
                    "records expired before they were consumed group=%s topic=%s partition=%s count=%s",
                    group, lane.topic, lane.partition, len(found.lost),
                )  # fmt: skip
                context.stats.lost_count += len(found.lost)
                await context.write(leases.decide_settle(found.lost))
            # Others have taken records meanwhile; from here to the write there is no await.
            found.cut(self._room(group))
            fresh_count = len(found.fresh)
            self._taking[group] += fresh_count
            try:
                leased, events = leases.decide_receive(
                    found.old,
                    found.fresh,
                    fetched_to=found.fetched_to,
                    limit=limit,
                    invisible_ms=config.invisible_ms if request.invisible_ms is None else request.invisible_ms,
                    now_ms=now_ms,
                    attempt_id=request.attempt_id,
                )
                done.has_moved = done.has_moved or bool(events)
                done.size_bytes += found.size_bytes
                await context.write(events, flushed=False)
            finally:
                self._taking[group] -= fresh_count
                if not self._taking[group]:
                    del self._taking[group]
            return self._delivered(group, lane, leases.epoch, leased, [found.records[lease.offset] for lease in leased])

    def _room(self, group: str) -> int:
        """How many more records the group may have open, over all partitions."""
        return max(self._in_flight_max - self._context.table.get(group).open_count - self._taking[group], 0)

    async def _taken_before(
        self, group: str, lane: Lane, leases: PartitionLeases, attempt_id: str, now_ms: int
    ) -> list[Delivered]:
        """What an earlier request with this attempt_id got, and still has."""
        leased = leases.leases_of(attempt_id, now_ms)
        records = []
        for lease in leased:
            stored = await self._context.records.at(lane.topic, lane.partition, lease.offset)
            if stored is None:
                raise IllegalRequest("records of this attempt_id have expired; ask with another one")
            records.append(stored)
        return self._delivered(group, lane, leases.epoch, leased, records)

    def _delivered(
        self, group: str, lane: Lane, epoch: int, leased: Sequence[Lease], records: Sequence[Stored]
    ) -> list[Delivered]:
        """Leased records as their consumer sees them."""
        stats = self._context.stats
        stats.delivered_count += len(leased)
        stats.redelivered_count += sum(lease.attempt > 1 for lease in leased)
        receipts = self._signer.sign_all(
            group, [Receipt(*lane.key, offset, attempt, until_ms, epoch) for offset, attempt, until_ms in leased]
        )
        delivered = []
        for lease, stored, receipt in zip(leased, records, receipts, strict=True):
            record = stored.record
            headers: Headers = record.headers
            topic, partition, offset, raw_keys = lane.topic, lane.partition, lease.offset, stored.raw_keys
            if lane.is_retry:
                if (origin := origin_of(headers)) is not None:
                    topic, partition, offset, _, raw_keys = origin
                headers = shown_headers(headers)
            delivered.append(
                Delivered(
                    topic,
                    partition,
                    offset,
                    record.key,
                    record.value,
                    headers,
                    record.timestamp,
                    stored.store_time_ms,
                    stored.json_values,
                    raw_keys,
                    text_of(headers, TAG_HEADER) if headers else None,
                    text_of(headers, MESSAGE_GROUP_HEADER) if headers else None,
                    lease.attempt,
                    receipt,
                    lease.until_ms,
                )
            )
        return delivered

    async def _give_back_all(self, group: str, messages: Iterable[Delivered]) -> None:
        """Nobody is there any more to have these."""
        try:
            await self._give_back(group, [message.receipt for message in messages])
        except (StoreError, GroupError) as error:
            log.warning("leases could not be given back, they end by themselves group=%s error=%s", group, error)

    def _backlog(self, group: str, done: _Round) -> int:
        """Records that were there and not handed out."""
        backlog = 0
        for key, bounds in done.bounds.items():
            leases = self._context.table.leases(group, key)
            if leases is not None:
                backlog += max(bounds.max_offset - max(leases.next_offset, bounds.min_offset), 0)
        return backlog

    async def _wait(
        self, group: str, lanes: Sequence[Lane], done: _Round, waiter: asyncio.Future[None], left_s: float
    ) -> None:
        """Until something may have changed for this request since the round, or its time is over."""
        context = self._context
        now_ms = context.clock.now_ms()
        wake = partial(_finish, waiter)
        call_offs = []
        for lane in lanes:
            end = done.bounds[lane.key].max_offset
            call_offs.append(context.tail_watcher.watch(lane.topic, lane.partition, end, wake))
            leases = context.table.leases(group, lane.key)
            due_ms = None if leases is None else leases.next_due_ms()
            if due_ms is not None:
                left_s = min(left_s, max(due_ms - now_ms, _RECHECK_MS if due_ms <= now_ms else 1) / 1000)
        timer = asyncio.get_running_loop().call_later(left_s, _finish, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            for call_off in call_offs:
                call_off()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

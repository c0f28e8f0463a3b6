"""Queue mode: records are handed to whoever asks, each under a lease with a receipt, and settled one by one.

Leases of one partition change under its turn. A receive goes through the partitions of its topics and of the group's
retry topic, from another one each time, those that nobody is busy with first; when it finds nothing it waits until a
record comes, a lease ends, or one is given back. Acks of a group that come while one write is under way share the next.

Events, and when they are durable:

    Leased, LeaseMoved      written: a kill -9 keeps them, a power cut may take the last ones; those records are
                            delivered again, perhaps under an attempt number that was used before
    LeasesSet (first use)   flushed: where a group began must not move
    Settled, Rejected       flushed before the answer (C5)

    crash                                        what a restart finds
    before a lease is written                    the record as it was; nobody has got it
    after it, before the answer                  the lease; it ends by itself, or is asked for again by attempt_id
    before an ack is durable                     the lease, or its end: the record is delivered again
    after it, before the answer                  the ack; acking again is fine
    between a copy (retry, dead letter) and      both: the copy is durable first, so nothing is lost
    the settling of its record
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from gateway.codec.tags import MESSAGE_GROUP_HEADER, TAG_HEADER, tag_hash
from gateway.coordinator.api import Delivered, Receive, Received, Settled, TopicPartition
from gateway.coordinator.arrivals import Arrivals
from gateway.coordinator.context import Context
from gateway.coordinator.copies import Copy, CopyWriter
from gateway.coordinator.offsets import Offsets
from gateway.coordinator.records import Stored
from gateway.coordinator.uncancelled import uncancelled
from gateway.groups.config import BROADCAST
from gateway.groups.copies import (
    REASON_BYTES_MAX,
    Origin,
    check_group_name,
    dead_letter,
    dead_letter_topic,
    origin_of,
    retry_copy,
    retry_topic,
    shown_headers,
)
from gateway.groups.errors import GroupActive, GroupError, GroupFull, IllegalRequest
from gateway.groups.events import Event, Leased, LeaseEvent, LeaseMoved, LeasesSet, Rejected
from gateway.groups.events import Settled as SettledEvent
from gateway.groups.leases import Decision, Fresh, Lease, PartitionLeases, Verdict
from gateway.groups.progress import Commit, Found, PartitionKey
from gateway.groups.receipts import Receipt, Signer
from gateway.groups.subscription import TOPICS_MAX
from gateway.topics import TopicView
from store.errors import StoreError, StoreStopped
from store.record_batch import Headers
from store.types import Bounds
from timer.errors import TooManySchedules

log = logging.getLogger(__name__)

RECEIVE_MESSAGES_MAX = 1_000
"""Records of one receive."""

RECEIVE_BYTES_MAX = 64 * 1024 * 1024
RECEIPTS_MAX = 10_000
"""Receipts of one ack, nack, reject or extend."""

REDRIVE_MAX = 10_000
"""Dead letters sent back by one call."""

RECEIPT_ILLEGAL = 40050
LEASE_OVER = 40951

_SCAN_RECORDS = 2_000  # records passed over (filtered, withheld) in one look at a partition
_LETTERS_PER_GO = 100
_RECHECK_MS = 250  # when something is due that this request does not want

T = TypeVar("T")


class _Lane(NamedTuple):
    """One partition that a receive looks into."""

    view: TopicView
    partition: int
    is_retry: bool
    key: PartitionKey


@dataclass(slots=True)
class _Found:
    """What one look at a partition found: records by offset, those to take, and how far it has come."""

    records: dict[int, Stored] = field(default_factory=dict)
    old: list[int] = field(default_factory=list)
    fresh: list[Fresh] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    fetched_to: int = 0
    wanted_count: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Round:
    """What one round through all partitions brought."""

    messages: list[Delivered] = field(default_factory=list)
    has_moved: bool = False
    is_full: bool = False
    bounds: dict[PartitionKey, Bounds] = field(default_factory=dict)


class QueueMode:
    """Leases of all groups of one node."""

    def __init__(
        self, context: Context, offsets: Offsets, copies: CopyWriter, signer: Signer, *, in_flight_max: int
    ) -> None:
        self._context = context
        self._offsets = offsets
        self._copies = copies
        self._signer = signer
        self._in_flight_max = in_flight_max
        self._arrivals = Arrivals()
        self._next_lane: dict[str, int] = {}
        self._taking: dict[str, int] = {}  # records that are about to be opened, by group
        self._starved: set[str] = set()  # groups in which a receive found a bound reached
        self._doomed: set[tuple[str, PartitionKey]] = set()  # where dead letters are, or will be
        self._origins: dict[tuple[str, PartitionKey], dict[int, str]] = {}  # topics of open records in retry topics
        self._acks: dict[str, list[tuple[list[Receipt], asyncio.Future[Mapping[Receipt, Verdict]]]]] = {}
        self._acking: set[str] = set()
        self._running: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """End all waits."""
        await self._arrivals.close()

    # ---- receive

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
                lanes = self._lanes(group, request)
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
        config = context.table.config(group)
        if config.mode == BROADCAST:
            raise IllegalRequest(f"group={group} is broadcasting; its members consume in stream mode")
        if group in context.table and (members := context.table.get(group).membership.members()):
            raise GroupActive(f"group={group} has {len(members)} members in stream mode; use another group to receive")
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

    def _lanes(self, group: str, request: Receive) -> list[_Lane]:
        """All partitions to look into, another one first each time. Raises UnknownQueue."""
        routes = self._context.routes
        own = retry_topic(group)
        views = [(routes.topic(name), name == own) for name in dict.fromkeys(request.topics)]
        if own not in request.topics and (view := self._context.find_topic(own)) is not None:
            views.append((view, True))
        lanes = [
            _Lane(view, number, is_retry, PartitionKey(view.topic_id, number))
            for view, is_retry in views
            for number in range(view.partitions)
        ]
        first = self._next_lane.get(group, 0) % len(lanes)
        self._next_lane[group] = first + 1
        return lanes[first:] + lanes[:first]

    async def _round(self, group: str, request: Receive, lanes: Sequence[_Lane]) -> _Round:
        table, turns = self._context.table, self._context.turns
        now_ms = self._context.clock.now_ms()
        done = _Round()
        again: list[_Lane] = []
        if request.attempt_id is not None:
            again = [
                lane
                for lane in lanes
                if (leases := table.leases(group, lane.key)) and leases.leases_of(request.attempt_id, now_ms)
            ]
            if again:  # the answer to an earlier request with this id is the whole answer
                lanes = again
        idle = [lane for lane in lanes if not turns.of_leases(group, lane.key).locked()]
        busy = [lane for lane in lanes if turns.of_leases(group, lane.key).locked()]
        left_bytes = request.max_bytes
        for lane in lanes:
            done.bounds[lane.key] = await self._context.records.bounds(lane.view.name, lane.partition)
        for lane in [*idle, *busy]:
            if len(done.messages) >= request.max_messages or (done.messages and left_bytes <= 0):
                break
            if not again and not self._may_have(group, lane, done.bounds[lane.key]):
                continue
            try:
                taken = await self._shielded(
                    self._take(group, lane, request, request.max_messages - len(done.messages), left_bytes, done),
                    undo=lambda late: self._give_back_all(group, [*done.messages, *late]),
                )
            except StoreError:
                if done.messages:
                    break
                raise
            done.messages += taken
            left_bytes -= sum(_size(message) for message in taken)
        return done

    def _may_have(self, group: str, lane: _Lane, bounds: Bounds) -> bool:
        """Whether a partition is worth its turn: it was never looked into, has new records, or something is due."""
        leases = self._context.table.leases(group, lane.key)
        if leases is None:
            return True
        if bounds.max_offset > leases.next_offset or leases.low_offset < bounds.min_offset:
            return True
        due_ms = leases.next_due_ms()
        return due_ms is not None and due_ms <= self._context.clock.now_ms()

    async def _take(
        self, group: str, lane: _Lane, request: Receive, limit: int, max_bytes: int, done: _Round
    ) -> list[Delivered]:
        """Lease records of one partition."""
        context = self._context
        key = lane.key
        async with context.turns.of_leases(group, key):
            leases = await self._leases(group, lane, request)
            now_ms = context.clock.now_ms()
            config = context.table.config(group)
            invisible_ms = config.invisible_ms if request.invisible_ms is None else request.invisible_ms
            found = await self._look(group, lane, leases, request, limit, max_bytes, now_ms, done)
            if found.lost:
                log.warning(
                    "records expired before they were consumed group=%s topic=%s partition=%s count=%s",
                    group, lane.view.name, lane.partition, len(found.lost),
                )  # fmt: skip
                context.stats.lost_count += len(found.lost)
                await context.write(leases.decide_settle(found.lost))
            leased, events = leases.decide_receive(
                found.old,
                found.fresh,
                fetched_to=found.fetched_to,
                limit=limit,
                invisible_ms=invisible_ms,
                now_ms=now_ms,
                attempt_id=request.attempt_id,
            )
            if events:
                done.has_moved = True
                self._taking[group] = self._taking.get(group, 0) + len(found.fresh)
                try:
                    await context.write(events, flushed=False)
                finally:
                    self._taking[group] -= len(found.fresh)
            delivered = []
            for lease in leased:
                stored = found.records.get(lease.offset)
                if stored is None:  # leased by an earlier request with this attempt_id
                    stored = await context.records.at(lane.view.name, lane.partition, lease.offset)
                    if stored is None:
                        raise IllegalRequest("records of this attempt_id have expired; ask with another one")
                delivered.append(self._delivered(group, lane, lease, leases.epoch, stored))
            return delivered

    async def _leases(self, group: str, lane: _Lane, request: Receive) -> PartitionLeases:
        """The group's leases in a partition, begun where it stands in it. The turn is the caller's."""
        context = self._context
        leases = context.table.leases(group, lane.key)
        if leases is not None:
            return leases
        place = TopicPartition(lane.view.name, lane.partition)
        start = await self._offsets.start_offset(group, place, request.start)
        begun = PartitionLeases(group, *lane.key, context.table.config(group))
        await context.write(begun.decide_reset(start, context.clock.now_ms()))
        leases = context.table.leases(group, lane.key)
        assert leases is not None
        return leases

    async def _look(
        self,
        group: str,
        lane: _Lane,
        leases: PartitionLeases,
        request: Receive,
        limit: int,
        max_bytes: int,
        now_ms: int,
        done: _Round,
    ) -> _Found:
        """Find records to lease: those that are ready again first, then fresh ones."""
        found = _Found(fetched_to=leases.next_offset)
        if request.attempt_id is not None and leases.leases_of(request.attempt_id, now_ms):
            return found
        bounds = await self._context.records.bounds(lane.view.name, lane.partition)
        await self._look_again(group, lane, leases, request, limit, max_bytes, now_ms, bounds, found)
        state = self._context.table.get(group)
        room = self._in_flight_max - state.open_count - self._taking.get(group, 0)
        room = min(room, leases.room)
        if room <= 0 and found.wanted_count < limit and bounds.max_offset > leases.next_offset:
            done.is_full = not found.wanted_count
            self._starved.add(group)
        if room > 0 and found.wanted_count < limit:
            await self._look_ahead(group, lane, leases, request, limit, max_bytes, bounds, room, found)
        return found

    async def _look_again(
        self,
        group: str,
        lane: _Lane,
        leases: PartitionLeases,
        request: Receive,
        limit: int,
        max_bytes: int,
        now_ms: int,
        bounds: Bounds,
        found: _Found,
    ) -> None:
        """Open records that may be handed out again."""
        records = self._context.records
        if lane.is_retry:
            await self._learn_origins(group, lane, leases, now_ms)
            topics = self._origins.get((group, lane.key), {})
            ready = leases.ready(now_ms, limit, lambda offset: topics.get(offset) in request.topics)
        else:
            ready = leases.ready(now_ms, limit)
        for offset in ready:
            stored = await records.at(lane.view.name, lane.partition, offset)
            if stored is None:
                found.lost.append(offset)
                continue
            size = _record_bytes(stored)
            if found.wanted_count and found.size_bytes + size > max_bytes:
                break
            found.old.append(offset)
            found.records[offset] = stored
            found.wanted_count += 1
            found.size_bytes += size
        if leases.low_offset < bounds.min_offset:
            found.lost += [offset for offset in leases.ready(now_ms, limit) if offset < bounds.min_offset]
            found.lost = list(dict.fromkeys(found.lost))

    async def _learn_origins(self, group: str, lane: _Lane, leases: PartitionLeases, now_ms: int) -> None:
        """Which topics the ready records of a retry topic came from: a consumer gets those of the topics it names."""
        known = self._origins.setdefault((group, lane.key), {})
        for offset in leases.ready(now_ms, leases.open_count):
            if offset not in known:
                stored = await self._context.records.at(lane.view.name, lane.partition, offset)
                origin = None if stored is None else origin_of(stored.record.headers)
                known[offset] = lane.view.name if origin is None else origin.topic
        if len(known) > 2 * leases.open_count + 64:
            low_offset = leases.low_offset
            for offset in [offset for offset in known if offset < low_offset]:
                del known[offset]

    async def _look_ahead(
        self,
        group: str,
        lane: _Lane,
        leases: PartitionLeases,
        request: Receive,
        limit: int,
        max_bytes: int,
        bounds: Bounds,
        room: int,
        found: _Found,
    ) -> None:
        """Records the group has not been handed yet, filtered by tag."""
        context = self._context
        is_fifo = context.table.config(group).fifo
        tags = None if lane.is_retry else request.tags
        hashes = None if tags is None else frozenset(tag_hash(tag) for tag in tags)
        begun: set[str] = set()
        scanned = 0
        if found.fetched_to < bounds.min_offset:
            context.stats.lost_count += bounds.min_offset - found.fetched_to
            found.fetched_to = bounds.min_offset
        while scanned < _SCAN_RECORDS and found.fetched_to < bounds.max_offset:
            step = await context.records.step(lane.view.name, lane.partition, found.fetched_to, tag_hashes=hashes)
            for entry in step.entries:
                for offset in range(max(entry.base_offset, found.fetched_to), entry.next_offset):
                    stored = Stored(
                        entry.records[offset - entry.base_offset], offset, entry.store_time_ms, entry.json_values
                    )
                    headers = stored.record.headers
                    if tags is not None and _text(headers, TAG_HEADER) not in tags:
                        found.fetched_to = offset + 1
                        scanned += 1
                        continue
                    size = _record_bytes(stored)
                    if found.wanted_count and found.size_bytes + size > max_bytes:
                        return
                    message_group = _text(headers, MESSAGE_GROUP_HEADER) if is_fifo else None
                    attempts, is_held = 0, False
                    if lane.is_retry and (origin := origin_of(headers)) is not None:
                        attempts = origin.attempts
                        is_held = origin.topic not in request.topics
                        self._origins.setdefault((group, lane.key), {})[offset] = origin.topic
                    found.fresh.append(Fresh(offset, message_group, attempts, is_held))
                    found.fetched_to = offset + 1
                    is_withheld = message_group is not None and (
                        message_group in begun or leases.is_withheld(message_group)
                    )
                    if is_held or is_withheld:
                        scanned += 1
                    else:
                        if message_group is not None:
                            begun.add(message_group)
                        found.records[offset] = stored
                        found.wanted_count += 1
                        found.size_bytes += size
                    if found.wanted_count == limit or len(found.fresh) == room:
                        return
            if step.next_offset <= found.fetched_to and not step.entries:
                return
            scanned += max(step.next_offset - found.fetched_to, 0) if not step.entries else 0
            found.fetched_to = max(found.fetched_to, step.next_offset)

    def _delivered(self, group: str, lane: _Lane, lease: Lease, epoch: int, stored: Stored) -> Delivered:
        """One leased record as its consumer sees it."""
        record = stored.record
        headers: Headers = record.headers
        topic, partition, offset = lane.view.name, lane.partition, lease.offset
        if lane.is_retry:
            if (origin := origin_of(headers)) is not None:
                topic, partition, offset, _ = origin
            headers = shown_headers(headers)
        stats = self._context.stats
        stats.delivered_count += 1
        stats.redelivered_count += lease.attempt > 1
        topic_id, lane_partition = lane.key
        receipt = Receipt(topic_id, lane_partition, lease.offset, lease.attempt, lease.until_ms, epoch)
        return Delivered(
            topic,
            partition,
            offset,
            record.key,
            record.value,
            headers,
            record.timestamp,
            stored.store_time_ms,
            stored.json_values,
            _text(headers, TAG_HEADER) if headers else None,
            _text(headers, MESSAGE_GROUP_HEADER) if headers else None,
            lease.attempt,
            self._signer.sign(group, receipt),
            lease.until_ms,
        )

    def _backlog(self, group: str, done: _Round) -> int:
        """Records that were there and not handed out."""
        backlog = 0
        for key, bounds in done.bounds.items():
            leases = self._context.table.leases(group, key)
            if leases is not None:
                backlog += max(bounds.max_offset - max(leases.next_offset, bounds.min_offset), 0)
        return backlog

    async def _wait(
        self, group: str, lanes: Sequence[_Lane], done: _Round, waiter: asyncio.Future[None], left_s: float
    ) -> None:
        """Until something may have changed for this request since the round, or its time is over."""
        context = self._context
        now_ms = context.clock.now_ms()
        tails = []
        for lane in lanes:
            broker, queue = context.records.tail(lane.view.name, lane.partition)
            self._arrivals.listen(broker, queue, done.bounds[lane.key].max_offset, waiter)
            tails.append((broker, queue))
            leases = context.table.leases(group, lane.key)
            due_ms = None if leases is None else leases.next_due_ms()
            if due_ms is not None:
                left_s = min(left_s, max(due_ms - now_ms, _RECHECK_MS if due_ms <= now_ms else 1) / 1000)
        timer = asyncio.get_running_loop().call_later(left_s, _finish, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            for broker, queue in tails:
                self._arrivals.forget(broker, queue, waiter)

    # ---- settle

    async def ack(self, group: str, receipts: Sequence[str]) -> list[Settled]:
        """See `Groups.ack`."""
        parsed = self._parsed(group, receipts)
        own = [receipt for receipt in parsed if isinstance(receipt, Receipt)]
        verdicts: Mapping[Receipt, Verdict] = {}
        if own:
            told: asyncio.Future[Mapping[Receipt, Verdict]] = asyncio.get_running_loop().create_future()
            self._acks.setdefault(group, []).append((own, told))
            if group not in self._acking:
                self._acking.add(group)
                self._start(self._write_acks(group))
            verdicts = await told
        return _results(receipts, parsed, verdicts)

    async def _write_acks(self, group: str) -> None:
        """Write the acks that wait, all in one go; those that come meanwhile are the next go."""
        try:
            while waiting := self._acks.pop(group, None):
                receipts = [receipt for own, _ in waiting for receipt in own]
                try:
                    verdicts = await self._decide(group, receipts, PartitionLeases.decide_ack, flushed=True)
                except Exception as error:
                    for _, told in waiting:
                        if not told.done():  # its caller may have been cancelled
                            told.set_exception(error)
                else:
                    for _, told in waiting:
                        if not told.done():
                            told.set_result(verdicts)
        finally:
            self._acking.discard(group)

    async def ack_up_to(self, group: str, place: TopicPartition, offset: int) -> int:
        """See `Groups.ack_up_to`."""
        return await self._shielded(self._ack_up_to(group, self._context.key(*place), offset))

    async def _ack_up_to(self, group: str, key: PartitionKey, offset: int) -> int:
        context = self._context
        async with context.turns.of_leases(group, key):
            leases = context.table.leases(group, key)
            if leases is None:
                return 0
            events = leases.decide_ack_up_to(offset, context.clock.now_ms())
            await context.write(events)
            return sum(len(event.offsets) for event in events if isinstance(event, SettledEvent))

    async def extend(self, group: str, receipts: Sequence[str], invisible_ms: int) -> list[Settled]:
        """See `Groups.extend`."""
        parsed = self._parsed(group, receipts)
        until_ms = 0

        def decide(leases: PartitionLeases, own: Sequence[Receipt], now_ms: int) -> Decision:
            nonlocal until_ms
            until_ms = now_ms + invisible_ms
            return leases.decide_extend(own, invisible_ms, now_ms)

        verdicts = await self._shielded(self._decide(group, parsed, decide, flushed=False))
        return [
            result._replace(new_receipt=self._signer.sign(group, receipt._replace(until_ms=until_ms)))
            if result.ok and isinstance(receipt, Receipt)
            else result
            for result, receipt in zip(_results(receipts, parsed, verdicts), parsed, strict=True)
        ]

    async def give_back(self, group: str, receipts: Sequence[str]) -> None:
        """See `Groups.give_back`."""
        parsed = self._parsed(group, receipts)
        await self._shielded(self._decide(group, parsed, PartitionLeases.decide_give_back, flushed=False))

    async def _give_back_all(self, group: str, messages: Iterable[Delivered]) -> None:
        """Nobody is there any more to have these."""
        try:
            await self.give_back(group, [message.receipt for message in messages])
        except (StoreError, GroupError) as error:
            log.warning("leases could not be given back, they end by themselves group=%s error=%s", group, error)

    async def reject(self, group: str, receipts: Sequence[str], reason: str) -> list[Settled]:
        """See `Groups.reject`."""
        return await self._shielded(self._reject(group, receipts, reason))

    async def _reject(self, group: str, receipts: Sequence[str], reason: str) -> list[Settled]:
        if len(reason.encode()) > REASON_BYTES_MAX:
            raise IllegalRequest(f"a reason has at most {REASON_BYTES_MAX} bytes")
        parsed = self._parsed(group, receipts)
        verdicts = await self._decide(
            group, parsed, lambda leases, own, now_ms: leases.decide_reject(own, reason, now_ms), flushed=True
        )
        for key in {PartitionKey(*receipt[:2]) for receipt, verdict in verdicts.items() if verdict is Verdict.OK}:
            await self.bury(group, key)
        return _results(receipts, parsed, verdicts)

    async def nack(
        self, group: str, receipts: Sequence[str], *, delay_ms: int | None = None, reason: str = ""
    ) -> list[Settled]:
        """See `Groups.nack`."""
        if reason:
            log.debug("nack group=%s count=%s reason=%s", group, len(receipts), reason[:REASON_BYTES_MAX])
        return await self._shielded(self._nack(group, receipts, delay_ms))

    async def _nack(self, group: str, receipts: Sequence[str], delay_ms: int | None) -> list[Settled]:
        """Long waits are spent in the timer, as copies; when it cannot take them, in place like the short ones."""
        context = self._context
        parsed = self._parsed(group, receipts)
        by_key = _by_key(parsed)
        verdicts: dict[Receipt, Verdict] = {}
        async with self._turns(group, by_key):
            now_ms = context.clock.now_ms()
            going: dict[PartitionKey, list[Receipt]] = {}
            copies: list[Copy] = []
            for key, own in by_key.items():
                if (leases := context.table.leases(group, key)) is not None:
                    leases.decide_nack(
                        own, now_ms, delay_ms=delay_ms
                    )  # refuses an illegal delay before anything is done
                    for receipt, copy in await self._copies_of(group, key, leases, own, delay_ms, now_ms):
                        going.setdefault(key, []).append(receipt)
                        copies.append(copy)
            if copies:
                try:
                    await self._copies.schedule(group, copies)
                except StoreStopped:
                    raise
                except (StoreError, TooManySchedules) as error:
                    log.warning("retries wait in place group=%s count=%s error=%s", group, len(copies), error)
                    going = {}
            events: list[Event] = []
            for key, own in by_key.items():
                leases = context.table.leases(group, key)
                if leases is None:
                    verdicts |= dict.fromkeys(own, Verdict.STALE)
                    continue
                gone = {receipt.offset for receipt in going.get(key, ())}
                events += leases.decide_settle(gone)
                rest = []
                for receipt, verdict in zip(own, leases.verdicts(own, now_ms), strict=True):
                    if receipt.offset in gone:
                        verdicts[receipt] = verdict
                    else:
                        rest.append(receipt)
                decision = leases.decide_nack(rest, now_ms, delay_ms=delay_ms)
                verdicts |= dict(zip(rest, decision.verdicts, strict=True))
                events += decision.events
            await context.write(events, flushed=bool(going))
        for key in by_key:
            if (group, key) in self._doomed:
                await self.bury(group, key)
        return _results(receipts, parsed, verdicts)

    async def _copies_of(
        self,
        group: str,
        key: PartitionKey,
        leases: PartitionLeases,
        receipts: Sequence[Receipt],
        delay_ms: int | None,
        now_ms: int,
    ) -> list[tuple[Receipt, Copy]]:
        """Copies of the records that are to wait in the timer."""
        config = self._context.table.config(group)
        topic = self._context.topic_name(key.topic_id)
        found: list[tuple[Receipt, Copy]] = []
        copied: set[int] = set()  # an extended lease has two receipts
        for receipt, verdict in zip(receipts, leases.verdicts(receipts, now_ms), strict=True):
            wait_ms = leases.backoff_ms(receipt.attempt) if delay_ms is None else delay_ms
            if (
                verdict is not Verdict.OK
                or topic is None
                or wait_ms < config.retry_through_timer_ms
                or receipt.attempt >= config.max_attempts
                or leases.message_group(receipt.offset) is not None
                or receipt.offset in copied
            ):
                continue
            stored = await self._context.records.at(topic, key.partition, receipt.offset)
            if stored is not None:
                origin = _origin(group, topic, stored, key.partition, receipt.attempt)
                record = retry_copy(stored.record, origin)
                copied.add(receipt.offset)
                found.append((receipt, Copy(record, stored.json_values, origin.partition, now_ms + wait_ms)))
        return found

    # ---- dead letters

    async def bury(self, group: str, key: PartitionKey) -> None:
        """Copy what is finished into the dead-letter topic and settle it. What cannot be copied now is tried again."""
        try:
            async with self._context.turns.of_leases(group, key):
                while await self._bury_some(group, key):
                    pass
        except StoreStopped:
            raise
        except StoreError as error:
            log.warning("dead letters wait group=%s partition=%s error=%s", group, key.partition, error)

    async def _bury_some(self, group: str, key: PartitionKey) -> bool:
        context = self._context
        leases = context.table.leases(group, key)
        if leases is None or not leases.may_have_dead_letters:
            self._doomed.discard((group, key))
            return False
        topic = context.topic_name(key.topic_id)
        now_ms = context.clock.now_ms()
        letters = leases.dead_letters(now_ms, _LETTERS_PER_GO)
        if not letters or topic is None:
            return False
        copies: list[Copy] = []
        for letter in letters:
            stored = await context.records.at(topic, key.partition, letter.offset)
            if stored is not None:
                origin = _origin(group, topic, stored, key.partition, letter.attempt)
                copies.append(
                    Copy(dead_letter(stored.record, origin, reason=letter.reason, now_ms=now_ms), stored.json_values)
                )
        if copies:
            await self._copies.bury(group, copies)
        await context.write(leases.decide_settle(letter.offset for letter in letters))
        return True

    async def bury_all(self) -> None:
        """Look after everything that may have been handed out for the last time."""
        for group, key in list(self._doomed):
            await self._shielded(self.bury(group, key))

    async def redrive(self, group: str, max_messages: int) -> int:
        """See `Groups.redrive`."""
        if not 1 <= max_messages <= REDRIVE_MAX:
            raise IllegalRequest(f"max_messages must be from 1 to {REDRIVE_MAX}, not {max_messages}")
        self._context.table.get(group)
        return await self._shielded(self._redrive(group, max_messages))

    async def _redrive(self, group: str, max_messages: int) -> int:
        """Dead letters go into the retry topic, so that no other group sees them again. How far that is, is the group's
        committed offset in its dead-letter topic."""
        context = self._context
        name = dead_letter_topic(group)
        view = context.find_topic(name)
        if view is None:
            return 0
        async with context.turns.of_group(group):
            count = 0
            for partition in range(view.partitions):
                key = PartitionKey(view.topic_id, partition)
                low, high = await context.records.bounds(name, partition)
                stored = context.table.progress.lookup(group, key)
                at = max(stored.offset, low) if isinstance(stored, Found) else low
                while count < max_messages and at < high:
                    copies, following = await self._revived(name, partition, at, min(max_messages - count, 1000))
                    if copies:
                        await self._copies.retry_now(group, copies)
                    events = context.table.progress.decide_commit(
                        group, [Commit(key, following)], {key: high}, context.clock.now_ms()
                    )
                    await context.write(events)
                    count += len(copies)
                    at = following
            return count

    async def _revived(self, topic: str, partition: int, offset: int, limit: int) -> tuple[list[Copy], int]:
        """Copies of up to `limit` dead letters from an offset on, with no attempts, and where the next ones are."""
        step = await self._context.records.step(topic, partition, offset)
        copies: list[Copy] = []
        at = offset
        for entry in step.entries:
            for at in range(max(entry.base_offset, offset), entry.next_offset):
                if len(copies) == limit:
                    return copies, at
                record = entry.records[at - entry.base_offset]
                if (origin := origin_of(record.headers)) is not None:
                    revived = retry_copy(record, origin._replace(attempts=0))
                    copies.append(Copy(revived, entry.json_values, origin.partition))
        return copies, max(step.next_offset, at)

    # ---- what was applied

    def applied(self, event: LeaseEvent) -> None:
        """Leases have changed: tell who waits for it, and remember where dead letters may be."""
        context = self._context
        key = PartitionKey(event.topic_id, event.partition)
        leases = context.table.leases(event.group, key)
        if leases is not None and leases.may_have_dead_letters:
            self._doomed.add((event.group, key))
        match event:
            case SettledEvent():
                context.stats.settled_count += len(event.offsets)
                if event.group in self._starved or context.table.config(event.group).fifo:
                    self._starved.discard(event.group)
                    context.leases_changed.happened(event.group)
            case LeaseMoved() | LeasesSet():
                if isinstance(event, LeasesSet):
                    self._origins.pop((event.group, key), None)
                context.leases_changed.happened(event.group)
            case Leased() | Rejected():
                pass

    # ---- how it is done

    def _parsed(self, group: str, receipts: Sequence[str]) -> list[Receipt | None]:
        """The receipts in texts; None for what is no receipt of this group."""
        if len(receipts) > RECEIPTS_MAX:
            raise IllegalRequest(f"at most {RECEIPTS_MAX} receipts at once")
        parsed: list[Receipt | None] = []
        for text in receipts:
            try:
                parsed.append(self._signer.check(group, text))
            except IllegalRequest:
                parsed.append(None)
        return parsed

    async def _decide(
        self,
        group: str,
        receipts: Iterable[Receipt | None],
        decide: Callable[[PartitionLeases, Sequence[Receipt], int], Decision],
        *,
        flushed: bool,
    ) -> dict[Receipt, Verdict]:
        """Decide receipts of many partitions, and write the events of all in one go."""
        context = self._context
        by_key = _by_key(receipts)
        verdicts: dict[Receipt, Verdict] = {}
        async with self._turns(group, by_key):
            now_ms = context.clock.now_ms()
            events: list[Event] = []
            for key, own in by_key.items():
                leases = context.table.leases(group, key)
                if leases is None:
                    verdicts |= dict.fromkeys(own, Verdict.STALE)
                else:
                    decision = decide(leases, own, now_ms)
                    verdicts |= dict(zip(own, decision.verdicts, strict=True))
                    events += decision.events
            await context.write(events, flushed=flushed)
        return verdicts

    @asynccontextmanager
    async def _turns(self, group: str, keys: Iterable[PartitionKey]) -> AsyncIterator[None]:
        """The turns of some partitions, in the order of the keys, so that two callers never wait for each other."""
        async with AsyncExitStack() as held:
            for key in sorted(keys):
                await held.enter_async_context(self._context.turns.of_leases(group, key))
            yield

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _shielded(self, work: Coroutine[Any, Any, T], *, undo: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Do something to its end, whoever is cancelled meanwhile; then undo it, if need be."""
        task = self._start(work)
        try:
            return await uncancelled(task)
        except asyncio.CancelledError:
            if undo is not None and not task.cancelled() and task.exception() is None:
                await undo(task.result())
            raise


def _by_key(receipts: Iterable[Receipt | None]) -> dict[PartitionKey, list[Receipt]]:
    """Receipts by partition; one that is named twice counts once."""
    by_key: dict[PartitionKey, list[Receipt]] = {}
    for receipt in dict.fromkeys(receipts):
        if receipt is not None:
            by_key.setdefault(PartitionKey(receipt.topic_id, receipt.partition), []).append(receipt)
    return by_key


def _results(
    texts: Sequence[str], receipts: Sequence[Receipt | None], verdicts: Mapping[Receipt, Verdict]
) -> list[Settled]:
    results = []
    for text, receipt in zip(texts, receipts, strict=True):
        if receipt is None:
            results.append(Settled(text, False, RECEIPT_ILLEGAL, "this is not a receipt of this group"))
        elif verdicts[receipt] is Verdict.OK:
            results.append(Settled(text, True))
        else:
            results.append(Settled(text, False, LEASE_OVER, "the lease is over; the record is, or was, another's"))
    return results


def _origin(group: str, topic: str, stored: Stored, partition: int, attempts: int) -> Origin:
    """Where a record came from first, after so many deliveries. Only what we wrote ourselves is believed."""
    first = origin_of(stored.record.headers) if topic == retry_topic(group) else None
    return Origin(topic, partition, stored.offset, attempts) if first is None else first._replace(attempts=attempts)


def _text(headers: Headers, wanted: str) -> str | None:
    for name, value in headers:
        if name == wanted and value is not None:
            return value.decode("utf-8", "replace")
    return None


def _record_bytes(stored: Stored) -> int:
    record = stored.record
    return _bytes_of(record.key, record.value, record.headers)


def _size(message: Delivered) -> int:
    return _bytes_of(message.key, message.value, message.headers)


def _bytes_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = len(key or b"") + len(value or b"")
    return size + sum(len(name) + len(content or b"") for name, content in headers) if headers else size


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

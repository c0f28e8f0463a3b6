"""How records come into consumers' hands: a receive goes through the partitions of its topics until it has enough.

It begins with another partition each time, and goes to those first that no other receive is at. When it finds nothing
it waits until a record comes, a lease ends, or one is given back. Whoever is cancelled gives back what it had leased.

Most partitions have nothing new most of the time, and a receive may name 100,000. So:

    first look            all partitions, in stretches (see `store.turns`); together with other receives from the same
                          topics that came in the same turn, or while a look was under way
    it waits              first it has itself told of the ends of its topics, then looks again
    woken by a record     only the partitions that got one, and those with open records: some may be due, or given back
    a broker is away      its partitions are passed over, and looked at again each AGAIN_S. A receive that has found
                          nothing when its time is over, or that of a read (gateway/routing/patience.py), fails then
    woken by else         there is room again, a reset, a topic that came or grew: all partitions again

Nothing is kept of a partition in which nothing is open, but where the group is (see `topic_leases`).

Where a group begins is settled by its first receive in a topic, for all partitions of the topic at once and durably:
whatever is stored from then on, in whichever partition, reaches the group (see `start_positions`). The group's own
retry topic begins with its first record.

Of a light queue the same is asked in its own offsets, in all partitions of its topics. Nothing is written before it is
leased from, unless the group begins with its end. Who waits is told of that queue alone, not of all of its topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from gateway.brokers.base import BrokerUnreachable
from gateway.groups.coordinator.context import STRETCH_PARTITIONS, Context, Turns
from gateway.groups.coordinator.goes import Goes
from gateway.groups.coordinator.offsets import FEW, Offsets
from gateway.groups.coordinator.records import Part
from gateway.groups.coordinator.search import Found, Lane, Search, Wanted, lane_of
from gateway.groups.coordinator.start_positions import start_in
from gateway.groups.coordinator.waiting import Topics, Waiting
from gateway.groups.machines.config import BROADCAST
from gateway.groups.machines.copies import check_group_name, origin_of, place_name, retry_topic, shown_headers
from gateway.groups.machines.errors import GroupActive, GroupError, GroupFull, IllegalRequest
from gateway.groups.machines.events import LeaseEvent, LeasesBegun, LightCommitted, LightPosition
from gateway.groups.machines.leases import Lease, PartitionLeases, Verdict
from gateway.groups.machines.light_leases import LightLeases
from gateway.groups.machines.progress import (
    POSITION_BYTES,
    LightKey,
    PartitionKey,
    Place,
    Start,
    StartTime,
)
from gateway.groups.machines.receipts import Receipt, Signer
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.machines.table import QUEUE_BYTES
from gateway.groups.machines.topic_leases import TopicLeases
from gateway.groups.protocol import (
    RECEIVE_BYTES_MAX,
    RECEIVE_MESSAGES_MAX,
    Receive,
    Received,
    RecordShown,
    Run,
    StartSpec,
    receipts_of,
)
from gateway.routing.base import TopicView
from gateway.routing.light import LightPartitionReader, light_route
from gateway.routing.patience import AGAIN_S, AWAY_S
from store.errors import StoreError
from store.record_batch import Headers
from store.turns import stretches
from store.types import Bounds
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)

_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long
_RECHECK_MS = 250  # when something is due that this request does not want

BEGUN_PER_WRITE = 50_000
"""Offsets to begin at that are written in one entry, but for those of one topic, which are never cut apart."""

TAKEN_A_TURN = 500
"""Records of one partition that are decided, leased and signed for in one turn of the event loop: 5 ms."""

TOGETHER_RECORDS_MAX = 1_000
"""Records that the receives of one go ask for, and so what is leased in one turn: new ones, as a run a receive, which
takes a fifth of the time."""

PROMISING_MAX = 2_048
"""Partitions that one round goes to. When they give nothing, the next round begins with others."""

_FULL_RECHECK_MS = 1_000  # when all groups together may have no more records open: of another group's we are not told

_Taken = tuple[Part, int, int]
"""Records that are leased together, their attempt, and until when (epoch ms)."""


@dataclass(slots=True)
class _Round:
    """What one round through partitions brought."""

    promising: dict[Lane, Bounds] = field(default_factory=dict)
    """Those with something new or due."""

    due_ms: int | None = None
    """When the next open record may be leased again."""

    runs: list[Run] = field(default_factory=list)
    """Leased."""

    count: int = 0
    """Records of these."""

    size_bytes: int = 0
    has_moved: bool = False
    is_full: bool = False
    other_backlog: int = 0
    """Records in partitions beyond PROMISING_MAX."""

    backlog: int | None = None
    """What was there and not leased, where that is known."""

    away: dict[Lane, BrokerUnreachable] = field(default_factory=dict)
    """Those whose broker was not reached."""

    def is_wanted(self, request: Receive) -> bool:
        """Whether there is room for one more record in the answer. The first one may be larger than all of it."""
        return self.count < request.max_messages and (not self.count or self.size_bytes < request.max_bytes)

    def add(self, runs: Sequence[Run]) -> None:
        """These are leased."""
        self.runs += runs
        self.count += sum([len(run.receipts) for run in runs])


@dataclass(slots=True)
class _Asking:
    """One of several receives that share a round, and what it wants yet."""

    done: _Round
    request: Receive
    count_left: int
    bytes_left: int


class _Told:
    """Who is told of what a go has leased to it, without a future; see `goes.Waiter`."""

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[[Received | None], None]) -> None:
        self._tell = tell

    def done(self) -> bool:
        return False

    def set_result(self, answer: tuple[Topics, _Round]) -> None:
        _, found = answer
        is_all = found.runs or not (found.promising or found.away or found.is_full or found.other_backlog)
        self._call(Received(tuple(found.runs), found.backlog or 0) if is_all else None)

    def set_exception(self, error: Exception) -> None:
        self._call(None)

    def _call(self, received: Received | None) -> None:
        try:
            self._tell(received)
        except Exception:  # of one; the others of the go wait for their answers
            log.exception("who receives failed when told of it")


class _Shown(NamedTuple):
    """A record with the headers that its consumer sees."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


class _Share(NamedTuple):
    """New records of a partition for one of several receives."""

    one: _Asking
    lane: Lane
    leases: PartitionLeases
    found: Found


class Receiving:
    """Leases records of all groups of one node. `give_back` takes receipts that were not delivered."""

    def __init__(
        self,
        context: Context,
        offsets: Offsets,
        search: Search,
        signer: Signer,
        *,
        give_back: Callable[[str, Sequence[str]], Awaitable[None]],
    ) -> None:
        self._context = context
        self._offsets = offsets
        self._search = search
        self._signer = signer
        self._give_back = give_back
        self._goes: Goes[tuple[str, tuple[str, ...]], Receive, tuple[Topics, _Round]] = Goes(
            self._round_of_all,
            calls_max=TOGETHER_RECORDS_MAX,
            count_of=lambda request: request.max_messages,
            undo=lambda key, answer: self._give_back_all(key[0], answer[1].runs),
            gathers=True,
        )
        self._next_lane: dict[str, int] = {}
        self._starved: set[str] = set()  # groups in which a receive found a bound reached

    def forget(self, group: str) -> None:
        """The group was deleted."""
        self._next_lane.pop(group, None)
        self._starved.discard(group)

    def settled(self, group: str, name: str) -> None:
        """Records of a group, or of its light queue of this name, are done: tell who waits for room, or for the next of
        a message group."""
        if group in self._starved:
            self._starved.discard(group)
            self._context.leases_changed.happened(group)
        elif self._context.table.config(group).fifo:
            self._context.leases_moved.happened(_moved(group, name))

    def moved(self, group: str, key: Place) -> None:
        """Leases there end at another time: tell who waits."""
        context = self._context
        context.leases_moved.happened(_moved(group, key.name))
        # Who waits at a light queue is not told of moves elsewhere, but what came from it may be in the retry topic.
        if (
            not key.name
            and context.table.light_topic_ids(group)
            and context.topic_name(key.topic_id) == retry_topic(group)
        ):
            context.leases_changed.happened(group)

    def begin(self, group: str, request: Receive, told: Callable[[Received | None], None]) -> bool:
        """See `Groups.begin_receive`."""
        self._check(group, request)
        if not self._is_shared(group, request):
            return False
        self._goes.begin((group, request.topics), None, request, _Told(told))
        return True

    async def receive(self, group: str, request: Receive) -> Received:
        """See `Groups.receive`."""
        self._check(group, request)
        if not request.wait_ms:
            _, found = await self._round(group, request, None)
            if found.runs or not found.away:
                return self._outcome(group, found)
        context = self._context
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + request.wait_ms / 1000
        patient_s = loop.time() + AWAY_S
        waiting = Waiting(context, request.queue)
        moved = _moved(group, request.queue or "")
        lanes: list[Lane] | None = None  # all
        try:
            while True:
                waiter = waiting.renew()
                context.leases_changed.listen(group, waiter)
                context.leases_moved.listen(moved, waiter)
                try:
                    topics, found = await self._round(group, request, lanes)
                    left_s = (max(deadline_s, patient_s) if found.away else deadline_s) - loop.time()
                    if found.runs or left_s <= 0 or context.draining.is_set():
                        return self._outcome(group, found)
                    if found.has_moved:
                        await asyncio.sleep(0)
                        lanes = [*found.promising, *found.away, *waiting.changed()]
                    elif not waiting.watches(topics):
                        waiting.watch(topics)  # and look again: what came before was not notified
                        lanes = None
                    else:
                        await self._wait(waiter, found, left_s)
                        lanes = [*self._open_lanes(group, topics, request), *found.away, *waiting.changed()]
                    if found.is_full or found.other_backlog:
                        lanes = None
                finally:
                    context.leases_moved.forget(moved, waiter)
                    if not context.leases_changed.forget(group, waiter):
                        lanes = None
        finally:
            waiting.close()

    def _outcome(self, group: str, found: _Round) -> Received:
        """What a receive is answered that has found something, or waits no longer. Raises BrokerUnreachable,
        GroupFull."""
        if not found.runs:
            for error in found.away.values():
                raise error
            if found.is_full:
                raise GroupFull(
                    f"group={group} has as many records leased and not settled as it may "
                    "(group_in_flight_max, or in_flight_total_max of all groups together); ack some"
                )
        backlog = self._backlog(group, found) if found.backlog is None else found.backlog
        return Received(tuple(found.runs), backlog)

    def _check(self, group: str, request: Receive) -> None:
        check_group_name(group)
        config = self._context.table.config(group)
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
        if request.queue is not None and (request.tags is not None or isinstance(request.start, StartTime)):
            raise IllegalRequest("a light queue is not filtered, and not begun at a time")

    def _check_mode(self, group: str) -> None:
        """Raises GroupActive, IllegalRequest where the group is in stream mode, or broadcasting."""
        table = self._context.table
        if table.config(group).mode == BROADCAST:
            raise IllegalRequest(f"group={group} is broadcasting; its members consume in stream mode")
        if group in table and (members := table.get(group).membership.members()):
            raise GroupActive(f"group={group} has {len(members)} members in stream mode; use another group to receive")

    async def _topics(self, group: str, request: Receive) -> Topics:
        """All topics to look into, each begun. Raises UnknownQueue, GroupFull."""
        context = self._context
        own = retry_topic(group)
        topics = [(context.routes.topic(name), name == own) for name in dict.fromkeys(request.topics)]
        if own not in request.topics and (view := context.find_topic(own)) is not None:
            topics.append((view, True))
        whole = [topic for topic in topics if request.queue is None or topic[1]]
        queues = ((context.table.queue(group, view.topic_id), view.partitions) for view, _ in whole)
        if any(queue is None or queue.end < partitions for queue, partitions in queues):
            await to_its_end(self._begin(group, whole, request.start))
        if request.queue is not None:
            views = [view for view, is_retry in topics if not is_retry]
            if any(self._is_new(group, view, request) for view in views):
                await to_its_end(self._begin_light(group, views, request))
        return topics

    def _is_new(self, group: str, view: TopicView, request: Receive) -> bool:
        """Whether the group has to be begun in the light queue of a topic."""
        table = self._context.table
        if table.light(group, view.topic_id) is None:
            return True
        return request.start is Start.LAST and not self._has_been(group, view, request.queue or "")

    def _has_been(self, group: str, view: TopicView, name: str) -> bool:
        known = self._context.table.light_offsets.get
        return any(known(group, view.topic_id, partition, name) is not None for partition in range(view.partitions))

    async def _begin_light(self, group: str, views: Sequence[TopicView], request: Receive) -> None:
        """Have the group lease records of the light queues of topics. It begins with the first record of each queue,
        which need not be said anywhere, or with the end of this one, in all partitions. Durable on return."""
        context = self._context
        name = request.queue or ""
        async with context.turns.of_group(group):
            self._check_mode(group)
            for view in views:
                for partition in range(view.partitions):
                    light_route(context.routes, view.name, partition)
                context.note_light()
                if context.table.light(group, view.topic_id) is None:
                    begun = LightLeases(group, view.topic_id).decide_begin(context.clock.now_ms())
                    with context.room.for_bytes(group, QUEUE_BYTES):
                        await context.write([begun])
                if request.start is Start.LAST and not self._has_been(group, view, name):
                    reader = LightPartitionReader(context.routes)
                    ends = [
                        await reader.end(view.name, name.encode(), partition) for partition in range(view.partitions)
                    ]
                    event = LightCommitted(
                        view.topic_id,
                        tuple(LightPosition(partition, group, name, end) for partition, end in enumerate(ends)),
                        group,
                    )
                    with context.room.for_light(context.table.light_offsets.added_bytes(event)):
                        await context.write([event])

    async def _begin(self, group: str, topics: Topics, start: StartSpec) -> None:
        """Fix where the group is in every partition of its topics. Durable on return; those of a topic are one
        entry."""
        context = self._context
        async with context.turns.of_group(group):
            self._check_mode(group)
            queues = [(view, is_retry, context.table.queue_or_new(group, view.topic_id)) for view, is_retry in topics]
            queues = [(view, is_retry, queue) for view, is_retry, queue in queues if queue.end < view.partitions]
            more = sum(QUEUE_BYTES + (view.partitions - queue.end) * POSITION_BYTES for view, _, queue in queues)
            events: list[LeasesBegun] = []
            with context.room.for_bytes(group, more):
                for view, is_retry, queue in queues:
                    begin = start_in(context.table, group, view, Start.FIRST if is_retry else start)
                    numbers = range(queue.end, view.partitions)
                    offsets = await self._offsets.where_all(group, view.name, numbers, begin)
                    events.append(queue.decide_begin(queue.end, offsets, context.clock.now_ms()))
                    if sum(len(event.next_offsets) for event in events) >= BEGUN_PER_WRITE:
                        await context.write(events)
                        events = []
                await context.write(events)

    async def _round(self, group: str, request: Receive, lanes: Sequence[Lane] | None) -> tuple[Topics, _Round]:
        """Look at some partitions of the topics, or at all, and take what is there."""
        if lanes is None and self._is_shared(group, request):
            topics, done = await self._round_with_others(group, request)
            if not done.runs:
                await self._take_promising(group, request, done)
            return topics, done
        topics, done = await self._topics(group, request), _Round()
        again = self._leased_by(group, topics, request)
        if again:  # the answer to an earlier request with this id is the whole answer
            bounds = self._context.records.bounds_of
            done.promising = {lane: await bounds(lane.topic, lane.key) for lane in again}
        elif lanes is None:
            await self._look_at_all(group, topics, request, done)
        else:
            await self._look_at(group, iter(lanes), len(lanes), done)
        await self._take_promising(group, request, done, is_again=bool(again))
        return topics, done

    async def _take_promising(self, group: str, request: Receive, done: _Round, *, is_again: bool = False) -> None:
        """Take what is there in partitions that were looked at, one after the other."""
        for lane in _free_first(group, done.promising, self._context.turns):
            if not done.is_wanted(request):
                break
            queue = self._context.table.queue(group, lane.key.topic_id)
            if not is_again and not self._may_have(group, queue, lane, done.promising[lane], done):
                continue  # others were faster
            try:
                await self._take(group, lane, request, done)
            except asyncio.CancelledError:
                await self._give_back_all(group, done.runs)
                raise
            except BrokerUnreachable as error:
                done.away[lane] = error
                continue
            except (StoreError, GroupError):
                if done.runs:
                    break
                raise
        for lane in done.away:
            done.promising.pop(lane, None)

    # What receives do together

    def _is_shared(self, group: str, request: Receive) -> bool:
        """Whether a receive asks for no more than the next new records, and may have them with others of its kind."""
        return (
            request.attempt_id is None
            and request.queue is None
            and request.tags is None
            and request.max_messages <= TOGETHER_RECORDS_MAX
            and not self._context.table.config(group).fifo
        )

    async def _round_with_others(self, group: str, request: Receive) -> tuple[Topics, _Round]:
        """What the receive got in a go with others. It may have got nothing although there is something."""
        told: asyncio.Future[tuple[Topics, _Round]] = asyncio.get_running_loop().create_future()
        self._goes.begin((group, request.topics), None, request, told)
        try:
            return await told
        except asyncio.CancelledError:
            if not told.cancelled() and told.exception() is None:  # it was told in the very turn
                await self._give_back_all(group, told.result()[1].runs)
            raise

    async def _round_of_all(
        self, key: tuple[str, tuple[str, ...]], requests: Sequence[Receive]
    ) -> list[tuple[Topics, _Round] | Exception]:
        """A round of several receives from the same topics. All partitions are looked at once. Of those in which there
        are new records and nothing else, as many as are needed are leased from in one write, as if the receives came
        one after the other. To where something is due again one is sent by itself. Those at which others are (an ack
        that is being written, mostly) are left alone while there is enough elsewhere; when they are all there is, the
        receives wait for them together. Raises as `_topics`."""
        group, _ = key
        topics = await self._topics(group, requests[0])
        looked = _Round()
        await self._look_at_all(group, topics, requests[0], looked)
        asking = [_Asking(_Round(), request, request.max_messages, request.max_bytes) for request in requests]
        rounds = [one.done for one in asking]
        lanes: list[Lane] = []
        wanted_count = sum([one.count_left for one in asking])
        is_busy = self._context.turns.is_busy
        for lane in _free_first(group, looked.promising, self._context.turns):
            if wanted_count <= 0 or not asking:
                break
            bounds = looked.promising[lane]
            is_held_up = is_busy(group, lane.key) and bool(lanes) and not is_busy(group, lanes[0].key)
            if self._is_plain(group, lane, bounds) and not is_held_up:
                lanes.append(lane)
                wanted_count -= self._backlog_of(
                    group, self._context.table.queue(group, lane.key.topic_id), lane, bounds
                )
            else:
                alone = asking.pop()
                wanted_count -= alone.count_left
                alone.done.promising[lane] = bounds
        if lanes and asking:
            with suppress(StoreError, GroupError):  # who has got nothing meets it, too
                await self._take_for_all(group, lanes, deque(asking))
        backlog = self._backlog(group, looked)
        for done in rounds:
            if done.runs:
                done.backlog = backlog
            else:
                done.promising |= looked.promising
                done.away |= looked.away
                done.due_ms, done.other_backlog = looked.due_ms, looked.other_backlog
        return [(topics, done) for done in rounds]

    def _is_plain(self, group: str, lane: Lane, bounds: Bounds) -> bool:
        """Whether there are only new records in a partition for consumers."""
        context = self._context
        if lane.is_retry:
            return False
        leases = context.table.opened(group, lane.key)
        return leases is None or _has_only_new(leases, bounds, context.clock.now_ms())

    async def _take_for_all(self, group: str, lanes: Sequence[Lane], asking: deque[_Asking]) -> None:
        """Lease the next new records of partitions to several receives, to one after the other as much as it wants."""
        context = self._context
        async with context.turns.of_leases(group, *(lane.key for lane in lanes)):
            self._check_mode(group)
            shares: list[_Share] = []
            room = context.room.for_records(group)
            for lane in lanes:
                leases = context.table.leases(group, lane.key)
                if leases is None or context.table.config(group).fifo:
                    continue
                bounds = await context.records.bounds_of(lane.topic, lane.key)
                if not _has_only_new(leases, bounds, context.clock.now_ms()):
                    continue
                next_offset, lane_room = leases.next_offset, leases.room
                while asking and next_offset < bounds.max_offset and min(room, lane_room) > 0:
                    one, found = asking[0], Found(next_offset)
                    wanted = Wanted(one.request.topics, None, one.count_left, one.bytes_left, min(room, lane_room))
                    await self._search.read_new(group, lane, leases, wanted, bounds, found)
                    if not (count := len(found.fresh)):
                        break
                    shares.append(_Share(one, lane, leases, found))
                    next_offset, room, lane_room = found.fetched_to, room - count, lane_room - count
                    one.count_left -= count
                    one.bytes_left -= found.size_bytes
                    if next_offset < bounds.max_offset or one.count_left <= 0 or one.bytes_left <= 0:
                        asking.popleft()
            await self._lease_shares(group, shares)

    async def _lease_shares(self, group: str, shares: Sequence[_Share]) -> None:
        """Lease what was found for several receives, in one write. The turns of the leases are the caller's."""
        context = self._context
        now_ms, config = context.clock.now_ms(), context.table.config(group)
        # Others have taken records meanwhile; from here to the write there is no await.
        room = context.room.for_records(group)
        events: list[LeaseEvent] = []
        leased_to: list[tuple[_Share, list[Lease]]] = []
        for share in shares:
            request, found = share.one.request, share.found
            found.cut(room)
            if not found.fresh:
                break
            room -= len(found.fresh)
            leased, own = share.leases.decide_receive(
                (),
                found.fresh,
                fetched_to=found.fetched_to,
                limit=len(found.fresh),  # so they are one lease
                invisible_ms=config.invisible_ms if request.invisible_ms is None else request.invisible_ms,
                now_ms=now_ms,
            )
            events += own
            leased_to.append((share, leased))
        with context.room.taking(group, sum(len(share.found.fresh) for share, _ in leased_to)):
            await context.write(events, flushed=False)
        for (one, lane, leases, found), (lease,) in leased_to:
            self._hand_out_new(group, one.done, lane, leases.epoch, found, lease)

    def _hand_out_new(self, group: str, done: _Round, lane: Lane, epoch: int, found: Found, lease: Lease) -> None:
        """As `_handed_out`, of new records of a topic, which are one lease."""
        offset, attempt, until_ms, size = lease
        topic_id, partition = lane.key.topic_id, lane.key.partition
        receipt = _new(Receipt, (topic_id, partition, offset, attempt, until_ms, epoch, size, ""))
        receipts = self._signer.sign_all(group, [receipt])
        self._context.stats.delivered_count += size
        at = 0
        for records, base_offset, store_time_ms, json_values, raw_keys in found.parts_of(lease):
            end = base_offset + len(records) - offset
            own = receipts if end - at == size else receipts[at:end]
            at = end
            run = (
                lane.topic, partition, base_offset, records, store_time_ms, json_values, raw_keys, attempt, own,
                until_ms, None, None,
            )  # fmt: skip
            done.runs.append(_new(Run, run))
        done.count += size

    # What one takes

    def _open_lanes(self, group: str, topics: Topics, request: Receive) -> Iterator[Lane]:
        """Partitions, or of the light queue those, with open records."""
        table, name = self._context.table, request.queue or ""
        for view, is_retry in topics:
            if name and not is_retry:
                if (light := table.light(group, view.topic_id)) is not None and light.open:
                    for partition in range(view.partitions):
                        if (partition, name) in light.open:
                            yield lane_of(view, False, partition, name)
            elif (queue := table.queue(group, view.topic_id)) is not None:
                for partition in queue.open:
                    yield lane_of(view, is_retry, partition)

    def _leased_by(self, group: str, topics: Topics, request: Receive) -> list[Lane]:
        """Partitions in which a receive with this id got records, and still has some."""
        if request.attempt_id is None:
            return []
        now_ms, opened = self._context.clock.now_ms(), self._context.table.opened
        return [
            lane
            for lane in self._open_lanes(group, topics, request)
            if (leases := opened(group, lane.key)) is not None and leases.leases_of(request.attempt_id, now_ms)
        ]

    async def _look_at_all(self, group: str, topics: Topics, request: Receive, done: _Round) -> None:
        """Look at all partitions, another one first each time."""
        total = sum(view.partitions for view, _ in topics)
        first = self._next_lane.get(group, 0) % total
        self._next_lane[group] = first + 1
        await self._look_at(group, _lanes_from(topics, first, request.queue or ""), total, done)

    async def _look_at(self, group: str, lanes: Iterator[Lane], count: int, done: _Round) -> None:
        """Note which of so many partitions are worth their turn."""
        records, queue_of = self._context.records, self._context.table.queue
        bounds_of, light_bounds_of = records.bounds, records.bounds_of
        while some := list(islice(lanes, STRETCH_PARTITIONS)):
            async with nullcontext() if count <= FEW else stretches().next():
                for lane in some:
                    try:
                        if lane.key.name:
                            bounds = await light_bounds_of(lane.topic, lane.key)
                        else:
                            bounds = await bounds_of(lane.topic, lane.partition)
                    except BrokerUnreachable as error:
                        done.away[lane] = error
                        continue
                    queue = queue_of(group, lane.key.topic_id)
                    if self._may_have(group, queue, lane, bounds, done):
                        if len(done.promising) < PROMISING_MAX:
                            done.promising[lane] = bounds
                        else:
                            done.other_backlog += self._backlog_of(group, queue, lane, bounds)

    def _may_have(self, group: str, queue: TopicLeases | None, lane: Lane, bounds: Bounds, done: _Round) -> bool:
        """Whether a partition is worth its turn: it has new records, or something is due; if not, when it will be."""
        if isinstance(lane.key, LightKey):
            leases = self._context.table.opened(group, lane.key)
            if bounds.max_offset > max(self._light_next(group, lane.key), bounds.min_offset):
                return True
        elif queue is None or bounds.max_offset > queue.next_offset(lane.partition):
            return True
        else:
            leases = queue.open.get(lane.partition)
        if leases is None:
            return False
        due_ms = leases.next_due_ms()
        if leases.low_offset < bounds.min_offset:
            return True
        if due_ms is None:
            return False
        done.due_ms = due_ms if done.due_ms is None else min(done.due_ms, due_ms)
        return due_ms <= self._context.clock.now_ms()

    def _light_next(self, group: str, key: LightKey) -> int:
        """The next record of a light queue to take."""
        leases = self._context.table.opened(group, key)
        return self._context.table.light_offset(group, key) if leases is None else leases.next_offset

    async def _take(self, group: str, lane: Lane, request: Receive, done: _Round) -> None:
        """Lease records of one partition, some in each turn of the event loop; no other's come in between. They are
        in `done` also when this is cancelled while they are being leased."""
        context = self._context
        async with context.turns.of_leases(group, lane.key):
            leases = context.table.leases(group, lane.key)
            if leases is None:  # the group, or the topic, was deleted a moment ago
                done.has_moved = True
                return
            self._check_mode(group)
            now_ms = context.clock.now_ms()
            if request.attempt_id is not None and leases.leases_of(request.attempt_id, now_ms):
                await self._taken_before(group, lane, leases, request.attempt_id, now_ms, done)
                return
            while done.is_wanted(request):
                before_count = done.count
                wanted_count = min(request.max_messages - before_count, TAKEN_A_TURN)
                await self._take_some(group, lane, request, wanted_count, done)
                if done.count < before_count + wanted_count:
                    break

    async def _take_some(self, group: str, lane: Lane, request: Receive, limit: int, done: _Round) -> None:
        """Lease records of one partition, as many as in one turn of the event loop. The turn of the leases is the
        caller's."""
        context = self._context
        leases = context.table.leases(group, lane.key)
        if leases is None:
            return
        now_ms = context.clock.now_ms()
        config = context.table.config(group)
        places = request.topics
        if request.queue is not None:
            places = tuple(place_name(topic, request.queue) for topic in request.topics)
        max_bytes, room = request.max_bytes - done.size_bytes, min(context.room.for_records(group), leases.room)
        wanted = Wanted(places, request.tags, limit, max_bytes, room)
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
        found.cut(context.room.for_records(group))
        with context.room.taking(group, len(found.fresh)), self._room_for(group, lane.key):
            leased, events = leases.decide_receive(
                found.old,
                found.fresh,
                fetched_to=found.fetched_to,
                limit=limit,
                invisible_ms=config.invisible_ms if request.invisible_ms is None else request.invisible_ms,
                now_ms=now_ms,
                attempt_id=request.attempt_id,
                is_more=True,  # whether it had some before is known
            )
            done.has_moved = done.has_moved or bool(events)
            done.size_bytes += found.size_bytes
            cancelled: asyncio.CancelledError | None = None
            try:
                await context.write(events, flushed=False)
            except asyncio.CancelledError as error:
                if not _are_leased(lane.key, context.table.leases(group, lane.key), leased, now_ms):
                    raise  # nothing was written: another consumer may lease them, and keeps them
                cancelled = error
        done.add(self._handed_out(group, lane, leases.epoch, _parts_of(found, leased)))
        if cancelled is not None:
            raise cancelled

    def _room_for(self, group: str, key: Place) -> AbstractContextManager[None]:
        """While a place is first written of."""
        if not isinstance(key, LightKey):
            return nullcontext()
        room, offsets = self._context.room, self._context.table.light_offsets
        begun = LightCommitted(key.topic_id, (LightPosition(key.partition, group, key.name, 0),))
        return room.for_light(offsets.added_bytes(begun))

    async def _taken_before(
        self,
        group: str,
        lane: Lane,
        leases: PartitionLeases,
        attempt_id: str,
        now_ms: int,
        done: _Round,
    ) -> None:
        """What an earlier request with this attempt_id got, and still has."""
        leased = leases.leases_of(attempt_id, now_ms)
        found: list[Run] = []
        for first in range(0, len(leased), TAKEN_A_TURN):
            parts: list[_Taken] = []
            for offset, attempt, until_ms, _ in leased[first : first + TAKEN_A_TURN]:
                stored = await self._context.records.at(lane.topic, lane.key, offset)
                if stored is None:
                    raise IllegalRequest("records of this attempt_id have expired; ask with another one")
                parts.append((stored.part(), attempt, until_ms))
            found += self._handed_out(group, lane, leases.epoch, parts)
            await asyncio.sleep(0)
        done.add(found)

    def _handed_out(self, group: str, lane: Lane, epoch: int, leased: Sequence[_Taken]) -> list[Run]:
        """Leased records as their consumer sees them."""
        topic_id, own_partition, name = lane.key.topic_id, lane.key.partition, lane.key.name
        receipts = self._signer.sign_all(
            group,
            [
                Receipt(topic_id, own_partition, part.base_offset, attempt, until_ms, epoch, len(part.records), name)
                for part, attempt, until_ms in leased
            ],
        )
        stats = self._context.stats
        stats.delivered_count += len(receipts)
        runs: list[Run] = []
        at = 0
        for part, attempt, until_ms in leased:
            records, base_offset, store_time_ms, json_values, raw_keys = part
            if attempt > 1:
                stats.redelivered_count += len(records)
            own = receipts[at : at + len(records)]
            at += len(records)
            if not (name or lane.is_retry):
                runs.append(
                    Run(
                        lane.topic, own_partition, base_offset, records, store_time_ms, json_values, raw_keys, attempt,
                        own, until_ms,
                    )
                )  # fmt: skip
                continue
            for own_offset, (record, receipt) in enumerate(zip(records, own, strict=True), base_offset):
                topic, partition, offset, queue, queue_offset = lane.topic, own_partition, own_offset, None, None
                if name:
                    offset, queue, queue_offset = record.offset, name, own_offset
                shown: RecordShown = record
                if lane.is_retry:
                    if (origin := origin_of(record.headers)) is not None:
                        topic, partition, offset, _, raw_keys, queue, queue_offset = origin
                    shown = _Shown(record.key, record.value, shown_headers(record.headers), record.timestamp)
                runs.append(
                    Run(
                        topic, partition, offset, [shown], store_time_ms, json_values, raw_keys, attempt, [receipt],
                        until_ms, queue, queue_offset,
                    )
                )  # fmt: skip
        return runs

    async def _give_back_all(self, group: str, runs: Sequence[Run]) -> None:
        """The consumer of these is gone."""
        if not runs:
            return
        try:
            await self._give_back(group, receipts_of(runs))
        except (StoreError, GroupError) as error:
            log.warning("leases could not be given back, they end by themselves group=%s error=%s", group, error)

    def _backlog(self, group: str, done: _Round) -> int:
        """Records that were there and not leased."""
        queue_of, count = self._context.table.queue, done.other_backlog
        known, queue = -1, None
        for lane, bounds in done.promising.items():
            if lane.key.topic_id != known:
                known = lane.key.topic_id
                queue = queue_of(group, known)
            count += self._backlog_of(group, queue, lane, bounds)
        return count

    def _backlog_of(self, group: str, queue: TopicLeases | None, lane: Lane, bounds: Bounds) -> int:
        if isinstance(lane.key, LightKey):
            next_offset = self._light_next(group, lane.key)
        elif queue is None:
            return 0
        else:
            next_offset = queue.next_offset(lane.partition)
        behind = bounds.max_offset - next_offset
        return min(behind, bounds.max_offset - bounds.min_offset) if behind > 0 else 0

    async def _wait(self, waiter: asyncio.Future[None], done: _Round, left_s: float) -> None:
        """Until something may have changed for this request since the round, or its time is over."""
        if done.due_ms is not None:
            in_ms = done.due_ms - self._context.clock.now_ms()
            left_s = min(left_s, max(in_ms, _RECHECK_MS if in_ms <= 0 else 1) / 1000)
        if done.is_full:
            left_s = min(left_s, _FULL_RECHECK_MS / 1000)
        if done.away:
            left_s = min(left_s, AGAIN_S)
        timer = asyncio.get_running_loop().call_later(left_s, _finish, waiter)
        try:
            await waiter
        finally:
            timer.cancel()


def _moved(group: str, name: str) -> str:
    """What is listened to for leases that move in partitions, or in the light queues of this name."""
    return f"{group}/{name}" if name else group


def _are_leased(key: Place, leases: PartitionLeases | None, leased: Sequence[Lease], now_ms: int) -> bool:
    """Whether leases that were decided are in force, all or none. For who has the turn of the partition's leases."""
    if leases is None:
        return False
    receipts = [
        Receipt(key.topic_id, key.partition, one.offset, one.attempt, one.until_ms, leases.epoch) for one in leased[:1]
    ]
    return leases.verdicts(receipts, now_ms) == [Verdict.OK]


def _has_only_new(leases: PartitionLeases, bounds: Bounds, now_ms: int) -> bool:
    """Whether nothing that was leased before is to be leased again, or lost."""
    due_ms = leases.next_due_ms()
    return leases.low_offset >= bounds.min_offset and (due_ms is None or due_ms > now_ms)


def _parts_of(found: Found, leased: Iterable[Lease]) -> list[_Taken]:
    return [(part, lease.attempt, lease.until_ms) for lease in leased for part in found.parts_of(lease)]


def _free_first(group: str, lanes: Iterable[Lane], turns: Turns) -> Iterator[Lane]:
    """Those that no other receive is at when it is their turn, then the others."""
    busy: list[Lane] = []
    for lane in lanes:
        if turns.is_busy(group, lane.key):
            busy.append(lane)
        else:
            yield lane
    yield from busy


def _lanes_from(topics: Topics, first: int, light_name: str) -> Iterator[Lane]:
    """All partitions of all topics, or the light queue of this name in them, the one of this index first."""
    for is_before in (False, True):
        at = 0
        for view, is_retry in topics:
            cut = min(max(first - at, 0), view.partitions)
            name, topic_id = view.name, view.topic_id
            numbers = range(cut) if is_before else range(cut, view.partitions)
            if light_name and not is_retry:
                yield from (lane_of(view, False, partition, light_name) for partition in numbers)
            else:
                for partition in numbers:  # as `lane_of`
                    yield _new(Lane, (name, partition, is_retry, _new(PartitionKey, (topic_id, partition))))
            at += view.partitions


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

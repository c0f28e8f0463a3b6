"""One shard of the system topic `__timer` on a Kafka cluster, as the log and the partitions of a timer
(`timer.service.TimerService`), in one tenure of one node: the timer is the one that a node has over its own store.

    entry     a batch of the shard. What the extension of an entry has (store/log/entry.py) is in a header in front of
              all others of its first record, `mq-timer`: one byte of flags (1: all values are JSON; 2: a claim), then
              the blocks
    position  BASE of the shard + offset: so the id of a schedule names its shard, and no position of a node's own log
              is one of a shard
    claim     a record that names copies that are about to be delivered, in rows of a source each. Those whose delivery
              is over since the claim before are its sources: as deliveries are in the log of a node, which tells a
              restart of them
    others    parts of snapshots (shard_log.py), and of what is known of repeated sends (shard_ids.py). Claims and these
              are records that the timer passes over

Exactly once. A record is delivered by the owner alone: whoever delivers has appended a claim of it, which an owner that
was replaced cannot. What was claimed and is not known to be over may have been delivered. It is delivered again with
the same message id (gateway/routing/delivery.py), by which its partition finds the first one, as long as ids are known
there; when its claim is older than half of that time, it is looked for in the partition before.

Invariants
    T1  nothing is delivered without a claim that was acknowledged in this tenure, less than FRESH_SHARE of the window
        ago; the window is how long partitions know ids
    T2  what was claimed and is not known to be over is not changed (cancelled, moved): it may have been delivered
    T3  a snapshot leaves all claims that count to be read again
    T4  what is over is in memory until a claim has told it; lost with the process, it is what T1 delivers again
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.cluster.shard_ids import PART, NamedPart, ShardIds
from gateway.cluster.shard_log import SHARDS, Shard, ShardLog
from gateway.routing.delivery import RoutedPartitions, only
from store import record_batch
from store.clock import Clock
from store.errors import Corrupt, MalformedBatch, Overloaded, StoreError, StoreStopped
from store.limits import KiB, MiB
from store.log.entry import decode_extension, encode_extension, packed_sources
from store.record_batch import Headers, Record
from store.topics import TIMER, TIMER_QUEUE
from store.types import Acks, Append, Appended, Bounds, Entry, QueueKey, ReadResult, ReadStatus, Source
from store.waits import is_set_within
from timer.changes import NO_SCHEDULE, TOMBSTONE_TOPIC_ID
from timer.ports import Delivered, Due, Target
from timer.ready import SCHEDULE_ID_HEADER

MARK = b"mq-timer"
_JSON_VALUES, _CLAIM = 1, 2

_SHARD_BITS = 48
"""Of a position; the rest is the offset in the shard. No log of a node has so many bytes."""

RECENT_BYTES_MAX = 2 * MiB
"""Of entries that were appended, or read in a takeover, for the timer, which reads each of them at once."""

READ_BYTES = 1 * MiB
NEAR_BYTES = 64 * KiB
NEAR_OFFSETS = 64
"""Entries that are no further apart are read in one go."""

RETRY_S = 0.2
FRESH_SHARE = 4
"""A claim is good for this part of the window: whoever was held up for longer between claiming and delivering claims
anew."""

OLD_SHARE = 2
CLOCK_SKEW_MS = 60_000
"""How far before its claim a delivery is looked for: stores have their own clocks."""

_SOURCE = struct.Struct(">qI")
_TURN_ENTRIES = 256

T = TypeVar("T")


def base_of(shard: int) -> int:
    """The position of a shard's first record."""
    return shard + 1 << _SHARD_BITS


def shard_at(position: int) -> int | None:
    """The shard that a position is in; None: it is one of a node's own log."""
    number = (position >> _SHARD_BITS) - 1
    return number if 0 <= number < SHARDS else None


def queue_of_shard(shard: int) -> QueueKey:
    """What an append names that is to be scheduled in a shard, not by a node's own timer."""
    return QueueKey(TIMER.topic_id, shard + 1)


def shard_of_queue(queue: QueueKey) -> int | None:
    """The other way round; None: of the node's own timer."""
    return None if queue == TIMER_QUEUE else queue.queue_id - 1


class Claim(NamedTuple):
    """When something was claimed, by Kafka's clock, and where the log says so."""

    time_ms: int
    position: int


class TimerShardLog:
    """`timer.ports.Log` of a shard. `close` it when its tenure is over: what waits for Kafka then ends."""

    def __init__(self, shard: Shard, clock: Clock, ids: ShardIds) -> None:
        self.shard = shard
        self._clock = clock
        self.ids = ids
        self._snapshot_until = 0
        self.base = base_of(shard.number)
        self.events = ShardLog(shard)
        self._start = 0
        self._known_end = 0
        self._grown = asyncio.Event()
        self._closed = asyncio.Event()
        self._recent: OrderedDict[int, Entry] = OrderedDict()
        self._recent_bytes = 0
        self._call_off: Callable[[], None] = lambda: None
        self.claimed: dict[Source, Claim] = {}
        """Copies whose delivery has begun and is not known to be over, and the first claim of each."""

        self._over: list[Source] = []

    async def open(self) -> None:
        """Know where the shard begins and ends. Raises what the broker raises."""
        self._start, self._known_end = await self.events.bounds(self.shard.queue)
        tenure, grown = self.shard.tenure, self._grown
        self._call_off = self.shard.kafka.watch(TIMER.topic_id, lambda ends: grown.set() if tenure in ends else None)

    async def load_ids(self, parts: Sequence[NamedPart], until: int) -> None:
        """Know what parts tell of entries before an offset, up to which a snapshot is. Raises what reading raises."""
        self._snapshot_until = until
        await self.ids.load(parts, self.events, self.shard.queue, self._clock.now_ms())

    async def tell_ids(self, before: int) -> Sequence[NamedPart]:
        """Have parts tell of the ids of all entries before an offset, and where they are. Raises what appends raise."""

        async def put(content: bytes) -> int:
            batch = record_batch.encode([Record(PART, content, self._clock.now_ms())])
            part = Append(queue=self.shard.queue, batch=batch, record_count=1)
            [appended] = await self.events.append([part], acks=Acks.FLUSHED)
            return appended.base_offset

        return await self.ids.tell(put, before, self._clock.now_ms())

    def close(self) -> None:
        """Wait for nothing any more."""
        self._closed.set()
        self._grown.set()
        self._call_off()

    @property
    def _end(self) -> int:
        opened = self.shard.chain[-1]
        if (end := self.shard.kafka.served_end(opened.queue)) is not None:
            self._known_end = max(self._known_end, opened.to_logical(end))
        return self._known_end

    # ---- as the timer asks it ---------------------------------------------------------------------------------------

    @property
    def end_position(self) -> int:
        """See `Log.end_position`."""
        return self.base + self._end

    def bounds(self, queue: QueueKey) -> Bounds:
        """See `Log.bounds`."""
        return Bounds(self._start, self._end)

    async def read(self, queue: QueueKey, offset: int, *, max_bytes: int) -> ReadResult:
        """See `Log.read`."""
        end = self._end
        if offset >= end:
            return ReadResult(ReadStatus.AT_END, [], self._start, end, end)
        entries: list[Entry] = []
        at, size = offset, 0
        while (entry := self._recent.get(at)) is not None and (not entries or size < max_bytes):
            entries.append(entry)
            size += len(entry.batch)
            at = entry.next_offset
        if not entries:
            found = await self._answered(partial(self.events.read, queue, offset, max_bytes=max_bytes))
            if not found.entries:
                return found
            entries = [self._parsed(entry)[1] for entry in found.entries if entry.base_offset < end]
        return ReadResult(ReadStatus.FOUND, entries, self._start, end, entries[-1].next_offset)

    async def wait_for(self, queue: QueueKey, offset: int, timeout_ms: int) -> bool:
        """See `Log.wait_for`."""
        if self._end <= offset:
            self._grown.clear()
            await is_set_within(self._grown, timeout_ms / 1000)
        return self._end > offset

    def entry_at_hand(self, position: int) -> Entry | None:
        """See `Log.entry_at_hand`: none is."""
        return None

    async def read_entry(self, position: int) -> Entry:
        """See `Log.read_entry`."""
        [entry] = await self.read_entries([position])
        return entry

    async def read_entries(self, positions: Sequence[int]) -> list[Entry]:
        """See `Log.read_entries`."""
        found: dict[int, Entry] = {}
        wanted = sorted(set(positions))
        for number, position in enumerate(wanted):
            if position in found:
                continue
            is_near = number + 1 < len(wanted) and wanted[number + 1] - position <= NEAR_OFFSETS
            read = await self.read(self.shard.queue, position - self.base, max_bytes=NEAR_BYTES if is_near else 1)
            found.update((entry.position, entry) for entry in read.entries)
            if position not in found:
                raise Corrupt(f"{self.shard.topic_name}/{self.shard.number}", position - self.base, "no entry there")
        return [found[position] for position in positions]

    async def sources_since(self, position: int) -> set[Source]:
        """See `Log.sources_since`: of what is over, too. Learns of claims, and of ids that no part tells of. What
        intake reads next is at hand then, as far as RECENT_BYTES_MAX goes."""
        sources: set[Source] = set()
        at, end = max(position - self.base, self._start), self._end
        while at < end:
            read = await self._answered(partial(self.events.read, self.shard.queue, at, max_bytes=READ_BYTES))
            for number, raw in enumerate(read.entries):
                flags, entry = self._parsed(raw)
                sources.update(entry.sources)
                self._consumed(entry)
                if entry.base_offset >= self._snapshot_until:
                    self.ids.stored(entry)
                    if self._recent_bytes < RECENT_BYTES_MAX:
                        self._remember(entry)
                if flags & _CLAIM:
                    [record] = record_batch.decode(entry.batch)
                    for source in packed_sources(record.value or b""):
                        self.claimed.setdefault(source, Claim(entry.store_time_ms, entry.position))
                if number % _TURN_ENTRIES == 0:
                    await self.yield_to_loop()
            at = read.next_offset
        return sources

    async def yield_to_loop(self) -> None:
        """See `Log.yield_to_loop`."""
        await asyncio.sleep(0)

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """See `Log.append`. AnswerLost: the tenure is over. Overloaded also for a change of what is being delivered
        (T2)."""
        for append in appends:
            if append.delays and append.delays[0].topic_id == TOMBSTONE_TOPIC_ID:
                self._check_unclaimed(append.sources)
        if all(append.identity is None for append in appends):
            return await self._append(appends)
        await self.refuse_known(appends, acks=acks)
        begun = asyncio.ensure_future(self._append(appends))  # in the turn of the check: nothing comes in between
        self.ids.begin(appends, begun)
        return await asyncio.shield(begun)

    async def refuse_known(self, appends: Sequence[Append], *, acks: Acks) -> None:
        """See `Log.refuse_known`."""
        while waiters := self.ids.in_flight(appends):
            await asyncio.wait(waiters)
        self.ids.check(appends, self._clock.now_ms())

    # ---- claims -----------------------------------------------------------------------------------------------------

    async def claim(self, sources: Sequence[Source]) -> None:
        """Have it in the log that copies are about to be delivered, and which deliveries are over. Raises Overloaded
        when that is not certain: then nothing may be delivered."""
        over, self._over = self._over, []
        rows = b"".join([_SOURCE.pack(*source) for source in sources])
        batch = record_batch.encode([Record(None, rows, self._clock.now_ms())])
        try:
            [appended] = await self._append(
                [Append(queue=self.shard.queue, batch=batch, record_count=1, sources=over)], flags=_CLAIM
            )
        except AnswerLost as error:
            raise Overloaded(f"it is not known whether a claim is in {self.shard.topic_name}") from error
        except BaseException:
            self._over = over + self._over
            raise
        for source in sources:
            self.claimed.setdefault(source, Claim(appended.store_time_ms, appended.position))

    def forget(self, is_pending: Callable[[Source], bool]) -> None:
        """Forget claims of what is not pending any more: that they are over, a crash has kept from being told."""
        for source in [source for source in self.claimed if not is_pending(source)]:
            del self.claimed[source]

    @property
    def claims_from(self) -> int:
        """The position of the first claim that counts; the end when none does."""
        return min((claim.position for claim in self.claimed.values()), default=self.end_position)

    def over(self, sources: Sequence[Source]) -> None:
        """The delivery of copies that were claimed is certain."""
        for source in sources:
            self.claimed.pop(source, None)
        self._over += sources

    def refused(self, sources: Sequence[Source]) -> None:
        """Nothing of copies that were claimed was stored, and what was stored by an earlier try would have been found:
        they may be changed (T2) until they are claimed again."""
        for source in sources:
            self.claimed.pop(source, None)

    async def tell_over(self) -> None:
        """Have it in the log which deliveries are over, if any were since the last claim. Raises as `claim`."""
        if self._over:
            await self.claim(())

    def _consumed(self, entry: Entry) -> None:
        """Copies are over; or have rolled, and what was claimed of them is so of the next copies."""
        if not self.claimed:
            return
        has_rolled = entry.delays[0].topic_id != TOMBSTONE_TOPIC_ID
        for index, source in enumerate(entry.sources):
            claim = self.claimed.pop(source, None)
            if claim is not None and has_rolled:
                self.claimed[Source(entry.position, index)] = claim

    def _check_unclaimed(self, sources: Sequence[Source]) -> None:
        if self.claimed and any(source in self.claimed for source in sources):
            raise Overloaded("the schedule is being delivered; ask again what became of it")

    # ---- entries ----------------------------------------------------------------------------------------------------

    async def _append(self, appends: Sequence[Append], flags: int = 0) -> list[Appended]:
        answers = await self.events.append([self._sent(append, flags) for append in appends], acks=Acks.FLUSHED)
        for append, answer in zip(appends, answers, strict=True):
            entry = Entry(
                position=self.base + answer.base_offset,
                size=append.record_count,
                queue=TIMER_QUEUE,
                topic=self.shard.topic_name,
                base_offset=answer.base_offset,
                record_count=append.record_count,
                store_time_ms=answer.store_time_ms,
                json_values=append.json_values,
                batch=memoryview(record_batch.with_base_offset(bytes(append.batch), answer.base_offset)),
                tag_hashes=append.tag_hashes,
                delays=append.delays or [NO_SCHEDULE] * append.record_count,
                sources=append.sources,
                identity=append.identity,
            )
            self._consumed(entry)
            self.ids.stored(entry)
            self._remember(entry)
        return [answer._replace(position=self.base + answer.base_offset) for answer in answers]

    def _sent(self, append: Append, flags: int) -> Append:
        """The append as it goes to Kafka. Raises RecordTooLarge."""
        flags |= _JSON_VALUES if append.json_values else 0
        blocks = bytes([flags]) + encode_extension(append)
        batch = record_batch.marked(append.batch, MARK, blocks)
        return Append(queue=self.shard.queue, batch=batch, record_count=append.record_count)

    def _remember(self, entry: Entry) -> None:
        self._recent[entry.base_offset] = entry
        self._recent_bytes += len(entry.batch)
        while self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1].batch)

    def _parsed(self, raw: Entry) -> tuple[int, Entry]:
        """The flags of an entry as Kafka has it, and the entry as the timer knows it. Raises Corrupt."""
        base_offset, count = raw.base_offset, raw.record_count
        flags, tag_hashes, delays, sources, identity = 0, raw.tag_hashes, raw.delays, raw.sources, None
        try:
            blocks = record_batch.mark_of(raw.batch, MARK)
            batch = raw.batch if blocks is None else record_batch.unmarked(bytearray(raw.batch), MARK)
            if blocks:
                flags = blocks[0]
                tag_hashes, delays, sources, identity, _ = decode_extension(memoryview(blocks)[1:], count)
        except (MalformedBatch, IndexError, KeyError, struct.error) as error:
            raise Corrupt(f"{self.shard.topic_name}/{self.shard.number}", base_offset, str(error)) from error
        return flags, Entry(
            position=self.base + base_offset,
            size=count,
            queue=TIMER_QUEUE,
            topic=raw.topic,
            base_offset=base_offset,
            record_count=count,
            store_time_ms=raw.store_time_ms,
            json_values=bool(flags & _JSON_VALUES),
            batch=memoryview(batch),
            tag_hashes=tag_hashes,
            delays=delays or [NO_SCHEDULE] * count,
            sources=sources,
            identity=identity,
        )

    async def _answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What Kafka answers, however long it is away. Raises StoreStopped when the tenure is over, and what says that
        the log is not as it should be."""
        while True:
            try:
                return await ask()
            except (BrokerUnreachable, Overloaded) as error:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._closed.wait()
                    raise StoreStopped(f"shard {self.shard.number} of {self.shard.topic_name} is left") from error


class Claims(Protocol):
    """Where it stands which copies are about to be delivered; `TimerShardLog` is one."""

    @property
    def claimed(self) -> Mapping[Source, Claim]:
        """What was claimed and is not known to be over."""
        ...

    async def claim(self, sources: Sequence[Source]) -> None:
        """Have it stand there that copies are about to be delivered. Raises StoreError when that is not certain, as
        somebody else may own the log by now: then nothing may be delivered."""
        ...

    def over(self, sources: Sequence[Source]) -> None:
        """The delivery of copies is certain."""
        ...

    def refused(self, sources: Sequence[Source]) -> None:
        """Nothing of copies that were claimed was stored."""
        ...


def schedules_in(headers: Headers) -> list[bytes]:
    """The schedules that a record's headers name: the last one is the timer's."""
    return [value or b"" for name, value in headers if name == SCHEDULE_ID_HEADER]


class ClaimedPartitions:
    """`timer.ports.Partitions` for who owns a log in this tenure: delivered are records that were claimed there.
    `window_ms`: how long partitions know ids. `header`, and what `named` makes of the headers, tells records apart."""

    def __init__(
        self,
        claims: Claims,
        routed: RoutedPartitions,
        clock: Clock,
        *,
        window_ms: int,
        header: str = SCHEDULE_ID_HEADER,
        named: Callable[[Headers], list[bytes]] = schedules_in,
    ) -> None:
        self._claims = claims
        self._routed = routed
        self._clock = clock
        self._window_ms = window_ms
        self._header = header.encode()
        self._named = named

    async def deliver(self, dues: Sequence[Due]) -> Sequence[Delivered]:
        """See `Partitions.deliver`. Raises, too, what keeps a claim from being made."""
        found = [await self._found(due) for due in dues]  # before the claim: it may take long
        rest = [
            (number, due if not known else only(due, [at for at in range(due.record_count) if at not in known]))
            for number, (due, known) in enumerate(zip(dues, found, strict=True))
            if known is not None and len(known) < due.record_count
        ]
        answers: Sequence[Delivered] = ()
        if rest:
            await self._claim([source for _, due in rest for source in due.sources])
            answers = await self._routed.deliver([due for _, due in rest])
        told: list[Delivered] = [
            list(known.values()) if known and len(known) == due.record_count else None
            for due, known in zip(dues, found, strict=True)
        ]
        for (number, _), offsets in zip(rest, answers, strict=True):
            if isinstance(offsets, StoreError):
                told[number] = offsets
                self._claims.refused(dues[number].sources)
            elif offsets is not None:
                new, known = iter(offsets), found[number] or {}
                told[number] = [known[at] if at in known else next(new) for at in range(dues[number].record_count)]
        for due, its_offsets in zip(dues, told, strict=True):
            if its_offsets is not None and not isinstance(its_offsets, StoreError):
                self._claims.over(list(due.sources))
        return told

    async def _claim(self, sources: Sequence[Source]) -> None:
        """Claim copies, a short time ago (T1)."""
        while True:
            begun_ms = _boot_ms()
            await self._claims.claim(sources)
            if _boot_ms() - begun_ms < self._window_ms // FRESH_SHARE:
                return

    async def _found(self, due: Due) -> dict[int, int] | None:
        """Which records of a claim that is old are in their partition already, and at which offsets; None: that cannot
        be read now."""
        claimed = self._claims.claimed
        since_ms = min((claimed[source].time_ms for source in due.sources if source in claimed), default=None)
        if since_ms is None or self._clock.now_ms() - since_ms < self._window_ms // OLD_SHARE:
            return {}
        records = record_batch.decode(due.batch)
        wanted = {self._named(record.headers)[-1]: index for index, record in enumerate(records)}
        found: dict[int, int] = {}
        try:
            at = await self._routed.offset_for_time(due.target, since_ms - CLOCK_SKEW_MS)
            while True:
                read = await self._routed.read(due.target, at, max_bytes=READ_BYTES)
                if not read.entries:
                    return dict(sorted(found.items()))
                for entry in read.entries:
                    if self._header in bytes(entry.batch):
                        for record in record_batch.decode(entry.batch):
                            for name in self._named(record.headers):
                                if (index := wanted.get(name)) is not None:
                                    found[index] = record.offset
                    await asyncio.sleep(0)
                at = read.next_offset
        except StoreError:
            return None

    def has_moved(self, target: Target) -> bool:
        """See `Partitions.has_moved`."""
        return self._routed.has_moved(target)

    async def offset_for_time(self, target: Target, time_ms: int) -> int:
        """See `Partitions.offset_for_time`."""
        return await self._routed.offset_for_time(target, time_ms)

    async def read(self, target: Target, offset: int, *, max_bytes: int) -> ReadResult:
        """See `Partitions.read`."""
        return await self._routed.read(target, offset, max_bytes=max_bytes)


def _boot_ms() -> int:
    """A clock that goes on while the process, or the machine, is asleep."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

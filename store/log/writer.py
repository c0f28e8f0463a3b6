"""The one owner of the log's tail: group commit.

Appends queue here in the order they come and get their offsets at once. While one group is being written and synced,
the next one gathers; so the slower the disk, the larger the groups, and one fdatasync answers them all.

    append ──> waiting ──> group: place, encode, one pwritev a file, one fdatasync ──> publish ──> wake the callers

What was only written (acks WRITTEN) is synced when half of the flush interval has passed, beside the groups that come
then. They wait for it only when the interval is over: what a power cut can take is of one interval, whatever the disk
does (docs/decisions/0026-what-is-only-written-does-not-wait-for-the-disk.md).

A thread writes and syncs what is large. A small group, for which the log has room, is written by the event loop itself
unless the disk holds it up (store/log/pace.py, docs/decisions/0011-small-groups-are-written-by-the-loop.md), and synced
by the kernel beside it (store/kernel_sync.py, docs/decisions/0018-small-groups-are-synced-by-the-kernel.md), or by the
thread where the kernel cannot. What a turn of the event loop appends while writes are held, and only has to be written,
is written at its end. After a sync that several have waited for the next one waits a moment for what those send then
(docs/decisions/0115-one-record-in-fewer-steps.md, 0117-a-sync-for-all-who-were-answered.md).

Invariants
    W1  offsets of one queue are assigned and written in the same order
    W2  `publish` sees an entry before its caller is woken, and never before the entry is durable at its level
    W3  after an I/O error no caller is answered with success any more: the failed group, and all that wait or come
        later, get StoreStopped
    W4  when the disk is full, no offset is used up: all that wait are refused, and the offsets they had are given back
    W5  one sync at a time; what is written while one is under way is left to the next
    W6  but for appends to `__meta` and `__offsets`: acks, commits and deletions go on. Sends leave them
        `own_reserve_bytes` of prepared log, and the free space below the disk floor
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from store.clock import Clock
from store.config import StoreConfig
from store.errors import DiskFull, OffsetMoved, Overloaded, RecordTooLarge, StoreError, StoreStopped
from store.files import BackgroundSync
from store.limits import KiB, MiB
from store.log.commit_log import CommitLog, Unsynced
from store.log.entry import encode_entry, entry_bytes, pack_rows
from store.log.pace import Pace
from store.record_batch import REBASED_BYTES, head_with_base_offset, rebased_head, with_base_offset
from store.topics import CLUSTER, META, OFFSETS, RECURRING
from store.types import Acks, Append, Appended, Buffer, Entry, QueueKey

GROUP_BYTES_MAX = 16 * MiB
"""Bytes written by one group: bounds how long a small append can wait behind large ones."""

ZERO_GROUP_BYTES_MAX = 256 * KiB
"""Groups up to this size find zeros written ahead of them, larger ones allocated space. Twice the bytes cost as much as
a commit of metadata here: a group of 100 kB takes 0.21 ms in zeros and 0.44 ms in allocated space, one of 800 kB 0.5 ms
(and 2.5 ms for the zeros) and 0.9 ms. No caller waits for the sync of what is only written: where nothing else has come
since space was last made ready, it is allocated too."""


WRITEOUT_BYTES = 384 * KiB
WRITEOUT_PIECES_MAX = 8
"""A large group goes to the disk in pieces of at least so many bytes, at most so many: the disk begins with each while
the next one is encoded. 64 batches of 100 kB take 2.8 ms instead of 3.9. Each piece gives up the interpreter's lock."""

UNSYNCED_BYTES_MAX = 64 * MiB
"""Bytes that were only written and are not yet synced; beyond it groups wait for the disk, however young they are."""

GATHER_TURNS, GATHER_MS = 6, 1
"""Turns of the event loop, and milliseconds, that the next sync waits at most for those whom the last one has answered:
their answers leave in the second turn, what they send then is read in the third or later. A loop with nothing else to
do takes 10 us for all of them."""

SHARED_CALLERS_MIN = 8
"""So many callers of one append are waited for. Fewer come back later than these turns take, and then one by one."""

COPIED_BYTES_MAX = 4 * KiB
"""Batches up to this size are kept in memory as bytes of their own, larger ones as a view of what was written: a view
is two more objects for the garbage collector to look at, and takes as much memory as a small batch."""

GIVEN_SHARE = 2
"""A view that was given is kept as it is if it is one of so many parts of its memory, or more of it: what is kept is
counted by what is in the view."""

OWN_TOPIC_IDS = frozenset((META.topic_id, OFFSETS.topic_id, RECURRING.topic_id, CLUSTER.topic_id))
"""System topics whose entries are small and free space in the end; those of `__timer` are sends."""


class _Call:
    """One call of `append`: batches that are written together, and the future their caller waits on."""

    __slots__ = ("acks", "appends", "base_offsets", "done", "size", "sizes", "topics")

    def __init__(
        self,
        appends: Sequence[Append],
        topics: list[str],
        base_offsets: list[int],
        sizes: list[int],
        size: int,
        acks: Acks,
        done: asyncio.Future[list[Appended]],
    ) -> None:
        self.appends = appends
        self.topics = topics
        self.base_offsets = base_offsets
        self.sizes = sizes  # of each append in the log
        self.size = size  # of all of them
        self.acks = acks
        self.done = done

    @property
    def is_own(self) -> bool:
        """Whether it is the server's own note (W6)."""
        return all(append.queue.topic_id in OWN_TOPIC_IDS for append in self.appends)

    @property
    def is_of_timer(self) -> bool:
        """Whether it is of the timer: records that were due, rolled or cancelled. Most of them have no waiter."""
        return any(append.sources for append in self.appends)


@dataclass(slots=True)
class WriterStats:
    """Plain counters since start, for metrics."""

    append_count: int = 0
    record_count: int = 0
    group_count: int = 0
    sync_count: int = 0


class Writer:
    """Appends to the log of one store. All methods belong to the event loop's thread."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        clock: Clock,
        *,
        executor: Executor,
        flush_executor: Executor,
        background: BackgroundSync | None = None,
        prepare_executor: Executor,
        next_offset_of: Callable[[QueueKey], int],
        light_ends_of: Callable[[QueueKey, Sequence[bytes]], Sequence[int | None]],
        topic_name_of: Callable[[QueueKey], str],
        publish: Callable[[Sequence[Entry]], None],
        is_followed: Callable[[QueueKey], bool],
        last_store_time_ms: int,
    ) -> None:
        self._log = log
        self._config = config
        self._entry_bytes_max = config.entry_bytes_max
        self._clock = clock
        self._executor = executor
        self._flush_executor = flush_executor
        self._flush: asyncio.Task[None] | None = None  # of what was only written, beside the groups
        self._flush_interval_s = config.flush_interval_ms / 1000
        self._unsynced_since: float | None = None  # what was only written is no older; what is being flushed apart
        self._flushing_since: float | None = None  # ... of that
        self._background = background
        self._prepare_executor = prepare_executor
        self._preparing: Future[None] | None = None
        self._has_synced = True  # a group that asked for it, since space was last made ready
        self._published_offset_of = next_offset_of
        self._published_light_ends_of = light_ends_of
        self._topic_name_of = topic_name_of
        self._publish = publish
        self._is_followed = is_followed
        self._last_store_time_ms = last_store_time_ms
        self._next_offsets: dict[QueueKey, int] = {}  # of queues with appends under way
        self._light_ends: dict[QueueKey, dict[bytes, int]] = {}  # ... and of light queues
        self._waiting: list[_Call] = []
        self._group: list[_Call] = []  # under way
        self._waiting_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._is_held = False  # `append` leaves it to `write_held` to have what waits written
        self._meanwhile: list[Callable[[], None]] = []  # while the disk works for what waits
        self._is_shared = False  # one call of what waits is of several callers
        self._gathering: list[Callable[[], None]] | None = None  # to be called before the next group; None: no wait
        self._alarm: asyncio.TimerHandle | None = None  # sets `_work` when it is time to flush
        self._stopping = False
        self._failure: StoreError | None = None
        self._pace = Pace()
        self.stats = WriterStats()

    @property
    def failure(self) -> StoreError | None:
        """Why appends are refused for good; None while all is well."""
        return self._failure

    @property
    def last_store_time_ms(self) -> int:
        """Store time of the newest entry; the next one will not be older."""
        return self._last_store_time_ms

    @property
    def waiting_bytes(self) -> int:
        """Bytes accepted and not yet written."""
        return self._waiting_bytes

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for an append that is not of the timer."""
        return not all(call.is_of_timer for call in chain(self._group, self._waiting))

    def append(self, appends: Sequence[Append], acks: Acks) -> asyncio.Future[list[Appended]]:
        """Queue batches to be written together. The future yields one answer a batch, in order.

        Raises, with nothing stored: UnknownQueue, RecordTooLarge, OffsetMoved, Overloaded, StoreStopped; for batches
        that name light queues also NoLightQueues, DiskFull, IndexDamaged. The future raises DiskFull (nothing stored)
        or StoreStopped (outcome unknown).
        """
        if self._failure is not None:
            raise self._failure
        if self._stopping:
            raise StoreStopped("the store is closing")
        topics: list[str] = []
        sizes: list[int] = []
        size = 0
        has_light = False
        for append in appends:
            topic = self._topic_name_of(append.queue)
            bytes_ = entry_bytes(append, len(topic.encode()))
            if bytes_ > self._entry_bytes_max:
                raise RecordTooLarge(f"an entry of {bytes_} bytes; this store takes {self._entry_bytes_max}")
            if append.expected_offset is not None:
                next_offset = self.next_offset(append.queue)
                if next_offset != append.expected_offset:
                    raise OffsetMoved(append.expected_offset, next_offset)
            if append.light is not None:
                has_light = True
            topics.append(topic)
            sizes.append(bytes_)
            size += bytes_
        if self._waiting_bytes + size > self._config.append_bytes_max and self._waiting:
            raise Overloaded(f"{self._waiting_bytes} bytes wait for the disk; send again in a moment")
        published_ends = self._published_ends(appends) if has_light else ()  # the last thing that may raise
        base_offsets = [self._take_offsets(append) for append in appends]
        if has_light:
            appends = [
                append if ends is None else self._with_light_offsets(append, base_offset, ends)
                for append, base_offset, ends in zip(appends, base_offsets, published_ends, strict=True)
            ]
        done: asyncio.Future[list[Appended]] = self._loop.create_future()
        self._waiting.append(_Call(appends, topics, base_offsets, sizes, size, acks, done))
        self._waiting_bytes += size
        if not self._is_held:
            self._work.set()
        return done

    def hold(self) -> None:
        """Have what is appended from here on wait for `write_held`; the caller calls that in the same turn of the event
        loop."""
        self._is_held = True

    def when_gathered(self, call: Callable[[], None]) -> bool:
        """Whether this waits for those whom the last sync has answered. If so `call` is called once, before the next
        group is taken, so that what comes until then may be appended together. It must not raise."""
        if self._gathering is None:
            return False
        self._gathering.append(call)
        return True

    def write_held(self, meanwhile: Callable[[], None] | None = None, *, caller_count: int = 1) -> None:
        """Write what waits at once if nothing is to be waited for: the futures of its appends are done on return then.
        Else `run` writes it, in a later turn of the event loop, and calls `meanwhile` while the disk works for it; it
        is not called when no sync is asked for, and must not raise. `caller_count`: how many wait for it."""
        self._is_held = False
        if not self._waiting:
            return
        size = self._waiting_bytes
        is_at_once = (
            not (self._group or self._stopping)
            and (self._flush is None or not self._flush.done())  # it may have failed (W3)
            and all(call.acks is Acks.WRITTEN for call in self._waiting)
            and not self._is_behind(self._loop.time())
            and self._is_inline(size)
        )
        if not is_at_once:
            if meanwhile is not None:
                self._meanwhile.append(meanwhile)
            self._is_shared = self._is_shared or caller_count >= SHARED_CALLERS_MIN
            self._work.set()
            return
        group, self._waiting = self._waiting, []
        try:
            written: list[_Written] = []
            entries: list[Entry] = []
            self._write_inline(group, written)
            self._prepare_ahead(size)
            if self._unsynced_since is None:
                self._unsynced_since = self._loop.time()
                self._set_alarm()
            self._make_entries(written, entries)
            self._answer(group, entries, Acks.WRITTEN)
        except BaseException as error:
            self._fail(group, error)
            self._work.set()  # `run` ends with it
            if not isinstance(error, Exception):
                raise

    def next_offset(self, queue: QueueKey) -> int:
        """The offset that the next record gets, what is under way included."""
        next_offset = self._next_offsets.get(queue)
        return self._published_offset_of(queue) if next_offset is None else next_offset

    def _take_offsets(self, append: Append) -> int:
        base_offset = self.next_offset(append.queue)
        self._next_offsets[append.queue] = base_offset + append.record_count
        return base_offset

    def _published_ends(self, appends: Sequence[Append]) -> list[Sequence[int | None] | None]:
        """For each batch that names light queues, where those end as readers see it. Those of a delayed record get no
        offset now: it is not in its partition yet."""
        ends: list[Sequence[int | None] | None] = []
        for append in appends:
            if append.light is None:
                ends.append(None)
                continue
            found = self._published_light_ends_of(append.queue, () if append.delays else append.light.names)
            ends.append(None if append.delays else found)
        return ends

    def _with_light_offsets(self, append: Append, base_offset: int, published_ends: Sequence[int | None]) -> Append:
        """The same batch, with the offsets of its records in their light queues (store/light_names.py)."""
        light, queue = append.light, append.queue
        assert light is not None
        ends = self._light_ends.setdefault(queue, {})
        first_offsets = []
        for name, end, first_record, count in zip(
            light.names, published_ends, light.first_records(), light.record_counts(), strict=True
        ):
            offset = ends.get(name, end)
            if offset is None:
                offset = base_offset + first_record  # L2
            first_offsets.append(offset)
            ends[name] = offset + count
        return replace(append, light=light.assigned(first_offsets))

    def _forget_light_ends(self, append: Append) -> None:
        """Leave the ends of light queues to the index, which knows them by now, but for those with appends under
        way."""
        light, queue = append.light, append.queue
        assert light is not None
        if append.delays:
            light.let_go()
            return
        ends = self._light_ends.get(queue, {})
        for name, first_offset, count in zip(light.names, light.first_offsets, light.record_counts(), strict=True):
            if ends.get(name) == first_offset + count:
                del ends[name]
        if not ends:
            self._light_ends.pop(queue, None)
        light.let_go()

    async def run(self) -> None:
        """Write until `stop`; then write what still waits, sync, and return. On an I/O error answer everyone and
        raise StoreStopped."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wait_for_work()
                if self._failure is not None:
                    raise self._failure
                self._refuse_if_flush_failed()
                group = self._group = self._take_group()
                is_shared, self._is_shared = self._is_shared or len(group) > 1, False
                is_last = self._stopping and self._unsynced_since is not None
                is_asked = is_last or any(call.acks is Acks.FLUSHED for call in group)
                if group or is_asked:
                    await self._write(loop, group, is_asked=is_asked)
                    group = []  # else its records stay in memory until the next one
                    if is_asked and (self._waiting or is_shared):  # one caller alone would wait in vain
                        await self._gather()
                elif self._stopping:
                    return
                if self._flush is None and self._flush_at is not None and loop.time() >= self._flush_at:
                    self._begin_flush(loop)
        except BaseException as error:
            group, self._group = self._group, []
            self._fail(group, error)
            raise
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
            if self._flush is not None:
                await asyncio.gather(self._flush, return_exceptions=True)

    async def _gather(self) -> None:
        """Let those who were just answered send again, before the disk works for who came meanwhile. Else callers that
        send one after the other fall into two halves, and each waits while the disk works for the other: a sync costs
        the same for all of them."""
        began_ms = self._clock.now_ms()
        gathering = self._gathering = []
        try:
            for _ in range(GATHER_TURNS):
                await asyncio.sleep(0)
                if self._stopping or self._clock.now_ms() - began_ms > GATHER_MS:
                    return
        finally:
            self._gathering = None
            for call in gathering:
                call()

    def _fail(self, group: list[_Call], error: BaseException) -> None:
        """End appends for good (W3)."""
        self._failure = error if isinstance(error, StoreError) else StoreStopped(f"the writer stopped: {error!r}")
        self._refuse(group, self._failure)

    async def _write(self, loop: asyncio.AbstractEventLoop, group: list[_Call], *, is_asked: bool) -> None:
        """Write one group, sync it if asked or behind, and answer it."""
        self._has_synced = self._has_synced or is_asked
        sync = is_asked or self._is_behind(loop.time())
        if sync and self._flush is not None:
            await asyncio.wait([self._flush])  # W5
            self._refuse_if_flush_failed()
            sync = is_asked or self._is_behind(loop.time())
        size = sum([call.size for call in group])
        written: list[_Written] = []
        entries: list[Entry] = []
        calls, self._meanwhile = self._meanwhile, []

        def make_entries() -> None:  # while the disk is busy
            self._make_entries(written, entries)
            while sync and calls:
                calls.pop()()

        try:
            if self._is_inline(size):
                self._write_inline(group, written)
                if sync:
                    await self._sync_beside(loop, self._executor, self._log.take_unsynced(), make_entries)
            else:
                have_written = partial(loop.call_soon_threadsafe, make_entries)
                await loop.run_in_executor(self._executor, self._write_and_sync, group, written, sync, have_written)
        except DiskFull as error:
            self._group = []
            self._refuse_for_room(group, error)
            return
        self._prepare_ahead(size)
        if sync:
            self._unsynced_since = None
        elif self._unsynced_since is None:
            self._unsynced_since = loop.time()
        if not entries:
            make_entries()
        self._refuse_if_flush_failed()
        self._answer(group, entries, Acks.FLUSHED if sync else Acks.WRITTEN)
        self._group = []

    @property
    def _flush_at(self) -> float | None:
        """When what was only written is to be flushed."""
        return None if self._unsynced_since is None else self._unsynced_since + self._flush_interval_s / 2

    def _is_behind(self, now: float) -> bool:
        """Whether nothing more may be only written before the disk has done some of its work."""
        oldest = self._unsynced_since if self._flush is None else self._flushing_since
        return (
            oldest is not None and now >= oldest + self._flush_interval_s
        ) or self._log.end_position - self._log.durable_position >= UNSYNCED_BYTES_MAX

    def _begin_flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sync what was only written, beside the groups to come."""
        self._flushing_since, self._unsynced_since = self._unsynced_since, None
        self._flush = loop.create_task(
            self._sync_beside(loop, self._flush_executor, self._log.take_unsynced()), name="mq-store-flush"
        )
        self._flush.add_done_callback(lambda _: self._work.set())

    def _refuse_if_flush_failed(self) -> None:
        """Raise what a flush that has ended came to (W3)."""
        if self._flush is not None and self._flush.done():
            flush, self._flush = self._flush, None
            flush.result()

    def stop(self) -> None:
        """Let `run` finish what waits and return. Later appends are refused."""
        self._stopping = True
        self._work.set()

    async def _wait_for_work(self) -> None:
        flush = self._flush
        if self._waiting or (self._stopping if flush is None else flush.done()):
            return
        self._work.clear()
        self._set_alarm()
        await self._work.wait()

    def _set_alarm(self) -> None:
        """Have `run` look when it is time to flush. The end of a flush sets `_work` as well. An alarm is left alone by
        what comes before it, a thousand groups perhaps: it is of the oldest of them, and at worst the writer looks once
        more."""
        if self._flush is None and self._alarm is None and (flush_at := self._flush_at) is not None:
            self._alarm = self._loop.call_at(flush_at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._work.set()

    def _take_group(self) -> list[_Call]:
        if self._waiting_bytes <= GROUP_BYTES_MAX:
            group, self._waiting = self._waiting, []
            return group
        size = count = 0
        for call in self._waiting:
            if count and size + call.size > GROUP_BYTES_MAX:
                break
            size += call.size
            count += 1
        group = self._waiting[:count]
        del self._waiting[:count]
        return group

    def _is_inline(self, size: int) -> bool:
        """Whether the loop writes a group of this size itself: a small one, within this file and what is prepared."""
        log = self._log
        end = log.end_position
        return (
            end + size + self._config.own_reserve_bytes <= log.prepared_position
            and log.position_for(end, size) == end
            and self._pace.is_inline(size, self._clock.now_ms())
        )

    def _write_inline(self, group: list[_Call], written: list[_Written]) -> None:
        started_ms = self._clock.now_ms()
        self._write_group(group, written)
        now_ms = self._clock.now_ms()
        self._pace.wrote(now_ms - started_ms, now_ms)

    def _write_and_sync(
        self, group: list[_Call], written: list[_Written], sync: bool, have_written: Callable[[], object]
    ) -> None:
        """Blocking, in the executor's thread."""
        self._write_group(group, written, begin_writeout=sync)
        if sync:
            have_written()
            self._sync(self._log.take_unsynced())

    async def _sync_beside(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        unsynced: Unsynced,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Sync while the loop goes on: by the kernel where it can, else in the thread."""
        if self._background is not None and await self._log.sync_beside(unsynced, self._background, meanwhile):
            self.stats.sync_count += 1
            return
        syncing = loop.run_in_executor(executor, self._sync, unsynced)
        if meanwhile is not None:
            meanwhile()
        await syncing

    def _sync(self, unsynced: Unsynced) -> None:
        """Blocking, in an executor's thread."""
        self._log.sync(unsynced)
        self.stats.sync_count += 1

    def _write_group(self, group: list[_Call], written: list[_Written], *, begin_writeout: bool = False) -> None:
        """Blocking, by one thread at a time: the only code that moves the log's tail."""
        log = self._log
        store_time_ms = max(self._last_store_time_ms, self._clock.now_ms())
        positioned, end = self._assign_positions(group)
        if end + self._config.own_reserve_bytes > log.prepared_position:
            is_own = all(call.is_own for call in group)
            log.prepare(
                end if is_own else end + self._config.own_reserve_bytes,
                zero=self._needs_zeros(end - log.end_position),
                below_floor=is_own,
            )
        self._last_store_time_ms = store_time_ms
        buffers: list[Buffer] = []
        write_at = position = log.end_position
        piece_bytes = max(WRITEOUT_BYTES, (end - write_at) // WRITEOUT_PIECES_MAX)
        number = 0
        for call in group:
            for append, topic, base_offset in zip(call.appends, call.topics, call.base_offsets, strict=True):
                position_for, size = positioned[number]
                number += 1
                if position_for != position:  # a roll
                    if buffers:
                        log.write(write_at, buffers)
                    buffers, write_at = [], position_for
                elif begin_writeout and position - write_at >= piece_bytes:
                    log.write(write_at, buffers)
                    log.begin_writeout(write_at, position - write_at)
                    buffers, write_at = [], position_for
                position = position_for + size
                if append.delays or append.sources:
                    append = pack_rows(append)
                pieces, batch = _with_base_offset(append, base_offset)
                buffers += encode_entry(
                    append,
                    *pieces,
                    topic=topic.encode(),
                    position=position_for,
                    durable_position=log.durable_position,
                    base_offset=base_offset,
                    store_time_ms=store_time_ms,
                )
                written.append(_Written(position_for, size, append, topic, base_offset, store_time_ms, batch))
        if buffers:
            log.write(write_at, buffers)

    def _prepare_ahead(self, group_bytes: int) -> None:
        """Keep an extent prepared ahead of the tail, by another thread, so that no send waits for it.

        A failure shows when the writer itself needs the space.
        """
        log = self._log
        if log.prepared_position - log.end_position >= self._config.extent_bytes:
            return
        if self._preparing is None or self._preparing.done():
            position = log.end_position + self._config.extent_bytes
            zero, self._has_synced = self._needs_zeros(group_bytes), False
            self._preparing = self._prepare_executor.submit(partial(log.prepare, position, zero=zero))

    def _needs_zeros(self, group_bytes: int) -> bool:
        """Whether groups like one of this size are to find zeros written ahead of them, not allocated space."""
        return self._has_synced and group_bytes <= ZERO_GROUP_BYTES_MAX

    def _assign_positions(self, group: list[_Call]) -> tuple[list[tuple[int, int]], int]:
        """The position and size of every entry of the group, and where the last one ends."""
        positioned = []
        position = self._log.end_position
        for call in group:
            for size in call.sizes:
                position = self._log.position_for(position, size)
                positioned.append((position, size))
                position += size
        return positioned, position

    def _make_entries(self, written: list[_Written], entries: list[Entry]) -> None:
        """Fill in the entries, as readers get them from memory: all, or none when it fails. To copy a batch for nobody
        takes a tenth of the time of its send, so where no one follows its queue an entry has the batch's head."""
        made = []
        for position, size, append, topic, base_offset, store_time_ms, batch in written:
            if batch is None:
                if append.light is not None or self._is_followed(append.queue):
                    batch = memoryview(with_base_offset(append.batch, base_offset))
                else:
                    batch = head_with_base_offset(append.batch, base_offset)
            made.append(
                Entry(
                    position, size, append.queue, topic, base_offset, append.record_count, store_time_ms,
                    append.json_values, batch, append.tag_hashes, append.delays, append.sources, append.identity,
                    light=append.light,
                )
            )  # fmt: skip
        entries += made
        written.clear()  # the senders' batches

    def _answer(self, group: list[_Call], entries: list[Entry], reached: Acks) -> None:
        self._publish(entries)
        stats = self.stats
        stats.group_count += 1
        stats.append_count += len(entries)
        at = 0
        for call in group:
            self._waiting_bytes -= call.size
            own = entries[at : at + len(call.appends)]
            at += len(own)
            stats.record_count += sum(entry.record_count for entry in own)
            if self._light_ends:
                for append in call.appends:
                    if append.light is not None:
                        self._forget_light_ends(append)
            if not call.done.done():  # its caller may have been cancelled
                call.done.set_result(
                    [Appended(entry.position, entry.base_offset, entry.store_time_ms, reached) for entry in own]
                )
        if not self._waiting:
            self._next_offsets.clear()

    def _refuse_for_room(self, group: list[_Call], error: DiskFull) -> None:
        """Refuse the sends, so that what the server itself has to note (W6) is tried again without them."""
        waiting = group + self._waiting
        own = [call for call in waiting if call.is_own]
        if not own or all(call.is_own for call in group):
            self._refuse(group, error)
            return
        sends = [call for call in waiting if not call.is_own]
        self._waiting = own
        self._waiting_bytes = sum(call.size for call in own)
        self._next_offsets = {queue: n for queue, n in self._next_offsets.items() if queue.topic_id in OWN_TOPIC_IDS}
        self._light_ends.clear()
        for call in sends:
            if not call.done.done():
                call.done.set_exception(error)

    def _refuse(self, group: list[_Call], error: StoreError) -> None:
        """Answer everyone with an error. With DiskFull nothing was written, so their offsets are free again (W4)."""
        refused, self._waiting = group + self._waiting, []
        self._waiting_bytes = 0
        self._next_offsets.clear()
        self._light_ends.clear()
        for call in refused:
            if not call.done.done():
                call.done.set_exception(error)


class _Written(NamedTuple):
    """What an entry in memory is made of. `batch` is None where it has yet to be copied from the caller's."""

    position: int
    size: int
    append: Append
    topic: str
    base_offset: int
    store_time_ms: int
    batch: bytes | memoryview | None


def _with_base_offset(append: Append, base_offset: int) -> tuple[Sequence[Buffer], bytes | memoryview | None]:
    """What to write of a batch, and what to keep of it; None where that is a copy with no need to be made before the
    write: the bytes never change."""
    batch = append.batch
    if len(batch) <= COPIED_BYTES_MAX:
        if isinstance(batch, bytearray):
            copy = bytes(with_base_offset(batch, base_offset))
        else:
            copy = b"".join((rebased_head(batch, base_offset), memoryview(batch)[REBASED_BYTES:]))
        return (copy,), copy
    whole = batch.obj if isinstance(batch, memoryview) else batch
    if isinstance(whole, bytearray) and append.is_given and GIVEN_SHARE * len(batch) >= len(whole):
        view = memoryview(batch)
        view[:REBASED_BYTES] = rebased_head(batch, base_offset)
        return (view,), view
    if isinstance(whole, bytes):
        return (rebased_head(batch, base_offset), memoryview(batch)[REBASED_BYTES:]), None
    patched = with_base_offset(batch, base_offset)
    return (patched,), memoryview(patched)

"""The timer: takes accepted schedules out of `__timer`, and delivers each at its millisecond, exactly once.

Five stages, each over batches:

    enqueue get       read `__timer` from the queue offset on
    enqueue put       unit into the timer log, position into the wheel; into memory too when the slot is open
    dequeue get       open the slots the clock comes near, walk their chains
    dequeue message   take what is due, read its records
    dequeue put       append one batch for each target queue (or again to `__timer`, when it rolls), flushed

and a checkpoint beside them. Enqueueing, dequeueing and checkpointing are three loops over `enqueue_step`,
`dequeue_step` and `checkpoint`; tests call the steps.

Marks. Slots before the read mark are done for good; slots before the write mark are open (timer/open_slots.py says
how the mark is the barrier between arriving and being loaded). Both only move forward, the clock may not: a record is
compared with the clock when it fires, and one that is late hangs in the read mark's slot. A slot is opened up to
`open_ahead_ms` early, so that its first millisecond is on time.

Invariants
    T1  A record is popped only when the clock says it is due.
    T2  A schedule is counted done only when its delivery, roll or drop is decided durably; until then its slot stays
        before the checkpoint's reach, and a restart takes it up again.
    T3  A unit names only what the log shows as durable, and a checkpoint only what the timer log has flushed.
    T4  Slots in use span less than two laps: nothing is hung while the read mark is a lap behind the clock.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from store.clock import Clock
from store.errors import DiskFull, Overloaded, RecordTooLarge, StoreError, StoreStopped, UnknownQueue
from store.files import Files
from store.limits import MiB
from store.types import Acks, Append, Appended, Bounds, Entry, QueueKey, ReadResult, ReadStatus, Source
from timer.checkpoint import Checkpoint, CheckpointFile
from timer.config import TimerConfig
from timer.delivery import TIMER_QUEUE, Bodies, Group, Grouping, Picked, pick
from timer.metrics import TimerMetrics
from timer.open_slots import Item, Load, OpenSlots
from timer.recovery import recover
from timer.schedule import LAP_SLOTS, SLOT_MS, place
from timer.timer_log import MAGIC_DEFAULT, MAGIC_ROLL, TimerLog
from timer.wheel import NOWHERE, Wheel

log = logging.getLogger(__name__)

_READ_BYTES = 1 * MiB
_TURN_UNITS = 2048  # units walked, or records hung, between two turns of the event loop: a few milliseconds
_WAIT_MS_MAX = 500
_RETRY_MS = 200
_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))


class Log(Protocol):
    """What the timer asks of the store. Only durable entries are seen through it."""

    @property
    def end_position(self) -> int:
        """Exclusive end of the dispatched log. An append called from now on lands at or after it."""
        ...

    def bounds(self, queue: QueueKey) -> Bounds: ...

    async def read(self, queue: QueueKey, offset: int, *, max_bytes: int) -> ReadResult: ...

    async def wait_for(self, queue: QueueKey, offset: int, timeout_ms: int) -> bool: ...

    async def read_entry(self, position: int) -> Entry: ...

    async def sources_since(self, position: int) -> set[Source]:
        """Sources of all entries (those of `__timer` too) that lie at or after `position`."""
        ...

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """As Store.append. When it raises UnknownQueue, RecordTooLarge, Overloaded or DiskFull, it has stored none of
        `appends`."""
        ...


Deliver = Callable[[Sequence[Append]], Awaitable[object]]
"""Appends due records to their queues, durably; errors as `Log.append`."""

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that waits for the disk without holding up the event loop."""


class TimerService:
    """One broker's timer. `start`, then `run` until cancelled, then `close`.

    `deliver` is where due records go (default: the log itself). `run_blocking` runs what waits for the disk (default:
    a thread).
    """

    def __init__(
        self,
        config: TimerConfig,
        store_log: Log,
        files: Files,
        clock: Clock,
        *,
        deliver: Deliver | None = None,
        run_blocking: RunBlocking = asyncio.to_thread,
    ) -> None:
        self.metrics = TimerMetrics()
        self.needed_position = 0
        """Retention must keep the log from this position on: an undelivered body may lie there."""
        self._config = config
        self._log = store_log
        self._files = files
        self._clock = clock
        self._deliver = deliver or self._append_flushed
        self._run_blocking = run_blocking
        self._bodies = Bodies(store_log.read_entry, bytes_max=config.bodies_bytes_max)
        self._wake = asyncio.Event()  # something earlier may have become due
        self._room = asyncio.Event()  # enqueueing may go on
        self._writing = asyncio.Lock()  # one checkpoint at a time
        self._started = False
        self._blocked = False  # the last delivery found no room on the disk or in the writer's queue
        self._lost_targets: set[QueueKey] = set()

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Open or rebuild the timer's files, before the log takes its first append of this process: what a power cut
        took from the log must not have been replaced yet. Raises Corrupt, OSError, and what the log raises."""
        assert not self._started
        root = self._config.root
        self._files.make_dirs(root)
        self._checkpoint_file = CheckpointFile(self._files, root / "checkpoint")
        self._wheel = Wheel(self._files, root / "wheel")
        self._files.sync_dir(root)
        self._timer_log = TimerLog(self._files, root / "timerlog", file_units=self._config.timer_log_file_units)
        recovered = await recover(
            self._checkpoint_file.latest, self._wheel, self._timer_log, self._log,
            now_s=self._clock.now_ms() // SLOT_MS,
        )  # fmt: skip
        self.recovery_outcome = recovered.outcome
        self._queue_offset = recovered.queue_offset
        self._queue_end_at_start = recovered.queue_end
        self._hung_count = recovered.hung_count
        self._consumed_hung = recovered.hung
        self._consumed_queued = recovered.queued
        self._delivered_from_at_start = recovered.delivered_from
        self._delivered_until_s = recovered.delivered_until_s  # slots that held any of _consumed_hung are before it
        self._open = OpenSlots(
            recovered.read_mark_s,
            delivered_from=self._log.end_position,
            count_max=self._config.heap_count_max,
        )
        self._saved = self._progress()
        self._started = True
        # From here on the wheel file is not what there is, and the marks of a clean stop do not bound what may be
        # delivered; also, what recovery cut or rebuilt must not be met again under the old checkpoint's marks.
        await self._write_checkpoint(clean=False)

    async def run(self) -> None:
        """Accept and deliver until cancelled. Raises when the store or a disk has failed for good."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._enqueue_loop(), name="timer enqueue")
            tasks.create_task(self._dequeue_loop(), name="timer dequeue")
            tasks.create_task(self._checkpoint_loop(), name="timer checkpoint")

    async def close(self) -> None:
        """Leave a clean checkpoint: the next start trusts the wheel. Call after `run` has ended; raises OSError."""
        if not self._started:
            return
        self._started = False
        try:
            async with self._writing:
                await self._write_checkpoint(clean=False)
                await self._run_blocking(self._wheel.flush)
                await self._write_checkpoint(clean=True)
        finally:
            self._wheel.close()
            self._timer_log.close()
            self._checkpoint_file.close()

    # ------------------------------------------------------------------ what others may know

    @property
    def pending_count(self) -> int:
        """Records accepted and neither delivered nor dropped, exact."""
        return self._hung_count + self._log.bounds(TIMER_QUEUE).max_offset - self._queue_offset

    @property
    def read_lag_ms(self) -> int:
        """How far the read mark is behind the clock; up to a second when all is well."""
        return max(0, self._clock.now_ms() - self._open.read_mark_s * SLOT_MS)

    @property
    def write_lag_ms(self) -> int:
        """How far the write mark is behind the clock; 0 when all is well."""
        return max(0, self._clock.now_ms() - self._open.write_mark_s * SLOT_MS)

    @property
    def enqueue_lag_count(self) -> int:
        """Accepted records that are not in the wheel yet."""
        return self._log.bounds(TIMER_QUEUE).max_offset - self._queue_offset

    # ------------------------------------------------------------------ loops

    async def _enqueue_loop(self) -> None:
        while True:
            if await self.enqueue_step():
                await asyncio.sleep(0)
            elif self._may_enqueue():
                await self._log.wait_for(TIMER_QUEUE, self._queue_offset, _WAIT_MS_MAX)
            else:
                self._room.clear()
                await _wait(self._room, _WAIT_MS_MAX)

    async def _dequeue_loop(self) -> None:
        while True:
            self._wake.clear()
            if await self.dequeue_step():
                await asyncio.sleep(0)
            else:
                await _wait(self._wake, self._idle_ms())

    async def _checkpoint_loop(self) -> None:
        expire_in_ms = self._config.expire_interval_ms
        interval_ms = self._config.checkpoint_interval_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await asyncio.shield(self.checkpoint())  # cancelled half-way, a thread would write while `close` does
            expire_in_ms -= interval_ms
            if expire_in_ms <= 0:
                expire_in_ms = self._config.expire_interval_ms
                await asyncio.shield(self.expire())

    def _idle_ms(self) -> int:
        """How long nothing can become due, by a clock that may lie: so never long, and never 0."""
        if self._blocked:
            return _RETRY_MS
        wait_ms = min(_WAIT_MS_MAX, max(1, self._config.open_ahead_ms // 2))
        fire_ms = self._open.next_fire_ms()
        return wait_ms if fire_ms is None else max(1, min(wait_ms, fire_ms - self._clock.now_ms()))

    # ------------------------------------------------------------------ enqueue

    async def enqueue_step(self) -> int:
        """Hang the next accepted schedules into the wheel; return how many records were taken (0: none there, or no
        room)."""
        if not self._may_enqueue():
            return 0
        first_offset = self._queue_offset
        for entry in await self._enqueue_get():
            if not self._may_enqueue():
                break
            while self._queue_offset < entry.next_offset:
                self._enqueue_put(entry)
                await asyncio.sleep(0)
        return self._queue_offset - first_offset

    def _may_enqueue(self) -> bool:
        """False while memory is full of what fires at once, units wait for a full disk, or T4 forbids it."""
        base_s = max(self._open.write_mark_s, self._clock.now_ms() // SLOT_MS)
        return (
            not self._open.is_full()
            and self._timer_log.unwritten_bytes < self._config.unwritten_bytes_max
            and base_s - self._open.read_mark_s <= LAP_SLOTS
        )

    async def _enqueue_get(self) -> list[Entry]:
        result = await self._log.read(TIMER_QUEUE, self._queue_offset, max_bytes=_READ_BYTES)
        if result.status is ReadStatus.TOO_SMALL:
            log.error(
                "timer: retention removed records %d to %d of __timer before they were hung into the wheel",
                self._queue_offset, result.min_offset - 1,
            )  # fmt: skip
            self._queue_offset = result.min_offset
        return result.entries

    def _enqueue_put(self, entry: Entry) -> None:
        """Hang the next records of one entry, as many as one turn allows. No await inside: files and marks agree."""
        wheel_hang = self._wheel.hang
        timer_log = self._timer_log
        open_slots = self._open
        log_end = self._log.end_position
        roll_window_ms = self._config.roll_window_ms
        base_ms = max(open_slots.write_mark_s, self._clock.now_ms() // SLOT_MS) * SLOT_MS
        read_mark_s = open_slots.read_mark_s
        write_mark_s = open_slots.write_mark_s
        consumed = self._consumed_queued
        hung_count = accepted_count = 0
        start = self._queue_offset - entry.base_offset
        stop = min(start + _TURN_UNITS, entry.record_count)
        arrived = False
        for index, delay in enumerate(entry.delays[start:stop], start):
            if consumed and Source(entry.position, index) in consumed:
                consumed.discard(Source(entry.position, index))
                self.metrics.already_delivered_count += 1
                continue
            slot_s, rolls = place(delay.due_ms, base_ms, roll_window_ms)
            if slot_s < read_mark_s:
                slot_s = read_mark_s
            timer_log.append(
                wheel_hang(slot_s, timer_log.end),
                MAGIC_ROLL if rolls else MAGIC_DEFAULT,
                delay.due_ms,
                entry.position,
                entry.size,
                index,
                delay.topic_id,
                slot_s,
            )
            hung_count += 1
            if delay.origin_position < 0:
                accepted_count += 1
            if slot_s < write_mark_s:
                fire_ms = slot_s * SLOT_MS if rolls else delay.due_ms
                open_slots.arrive(Item(fire_ms, entry.position, index, slot_s, rolls), log_end)
                arrived = True
        self._hung_count += hung_count
        self.metrics.accepted_count += accepted_count
        self._queue_offset = entry.base_offset + stop
        if self._queue_offset >= self._queue_end_at_start:
            consumed.clear()
        if arrived:
            self._wake.set()

    # ------------------------------------------------------------------ dequeue

    async def dequeue_step(self) -> int:
        """Deliver what is due, up to one batch; return how many records left the timer."""
        now_ms = self._clock.now_ms()
        self._blocked = False
        await self._dequeue_get(now_ms)
        due = self._open.pop_due(self._clock.now_ms(), self._config.fire_records_max)
        left_count = 0
        if due:
            grouping, rest = await self._dequeue_message(due)
            self._open.put_back(rest)
            left_count = len(due) - len(rest)
            for groups, put in ((grouping.rolling, self._append_flushed), (grouping.firing, self._deliver)):
                left_count -= await self._dequeue_put(groups, put)
        self._open.advance(self._clock.now_ms() // SLOT_MS)
        self._room.set()
        return left_count

    async def _dequeue_get(self, now_ms: int) -> None:
        """Open slots up to a little ahead of the clock, and load them as memory allows."""
        until_ms = now_ms + self._config.open_ahead_ms
        open_slots = self._open
        while True:
            load = open_slots.next_load(until_ms)
            if load is not None:
                await self._walk(load)
                continue
            if not open_slots.has_room():
                return
            to_s = until_ms // SLOT_MS + 1
            slot_s = self._wheel.next_occupied(open_slots.write_mark_s, to_s)
            if slot_s is None:
                open_slots.skip_to(to_s)
                return
            open_slots.open(slot_s, self._log.end_position)

    async def _walk(self, load: Load) -> None:
        """Walk the chain of an open slot, newest to oldest, as it stands now."""
        position = self._wheel.at(load.slot_s).last
        read = self._timer_log.read
        offer = load.offer
        walked_count = 0
        while position != NOWHERE:
            unit = read(position)
            assert unit.slot_s == load.slot_s
            rolls = unit.magic == MAGIC_ROLL
            fire_ms = unit.slot_s * SLOT_MS if rolls else unit.due_ms
            offer(Item(fire_ms, unit.entry_position, unit.record_index, unit.slot_s, rolls))
            position = unit.previous
            walked_count += 1
            if walked_count % _TURN_UNITS == 0:
                await asyncio.sleep(0)
        self._open.finish(load)

    async def _dequeue_message(self, due: list[Item]) -> tuple[Grouping, list[Item]]:
        """Read the records of due items and group them, in order; also what did not fit the bytes of one go.

        Each entry is decoded once for all its due records: in a busy second the records of one accepted batch lie
        scattered over `due`, and there may be more batches than memory is to hold.
        """
        by_entry: dict[int, list[Item]] = {}
        left: set[Item] = set()  # delivered before the last restart, or parked
        for item in due:
            source = Source(item.position, item.record_index)
            if source in self._consumed_hung:
                self._consumed_hung.discard(source)
                self.metrics.already_delivered_count += 1
                self._open.done([item])
                left.add(item)
            else:
                by_entry.setdefault(item.position, []).append(item)
        picked: dict[Item, Picked] = {}
        size_bytes = 0
        turn_count = 0
        for position, items in by_entry.items():
            if size_bytes >= self._config.fire_bytes_max:
                break
            try:
                body = await self._bodies.get(position)
                for item in items:
                    chosen = picked[item] = pick(item, body)
                    size_bytes += chosen.size_bytes
            except StoreStopped:
                raise
            except StoreError as damage:
                # Never skipped: they keep their slots, and with them the read mark, until the entry can be read.
                self.metrics.parked_count += len(items)
                left.update(items)
                log.error("timer: %d due records of entry %d cannot be read: %s", len(items), position, damage)
                continue
            turn_count += len(items) + len(body.records) // 4
            if turn_count >= _TURN_UNITS // 4:
                turn_count = 0
                await asyncio.sleep(0)
        grouping = Grouping(batch_bytes_max=self._config.batch_bytes_max)
        for number, item in enumerate(due):
            if (found := picked.get(item)) is not None:
                grouping.add(found)
            elif item not in left:  # what follows must not overtake it
                return grouping, [later for later in due[number:] if later not in left]
            if number % (_TURN_UNITS // 4) == 0:
                await asyncio.sleep(0)
        return grouping, []

    async def _dequeue_put(self, groups: list[Group], put: Deliver) -> int:
        """Append groups durably; return how many records have to be tried again later."""
        if not groups:
            return 0
        try:
            appends = []
            for group in groups:
                appends.append(group.append())
                await asyncio.sleep(0)
            await put(appends)
        except (Overloaded, DiskFull):
            self._blocked = True
            again_count = 0
            for group in groups:
                self._open.put_back(group.items)
                again_count += len(group.items)
            return again_count
        except (UnknownQueue, RecordTooLarge) as error:
            # None was stored, and one of them is to blame: find it by halves.
            if len(groups) == 1:
                if isinstance(error, UnknownQueue) or len(groups[0].items) == 1:
                    self._drop(groups[0], error)
                    return 0
                groups = list(groups[0].halves())
            middle = len(groups) // 2
            again_count = await self._dequeue_put(groups[:middle], put)
            return again_count + await self._dequeue_put(groups[middle:], put)
        now_ms = self._clock.now_ms()
        for group in groups:
            self._leave(group)
            if group.delays:
                self.metrics.rolled_count += len(group.items)
            else:
                for item in group.items:
                    self.metrics.fired(max(0, now_ms - item.fire_ms))
        return 0

    def _drop(self, group: Group, error: StoreError) -> None:
        if isinstance(error, RecordTooLarge):
            log.error("timer: dropping a record that cannot be delivered, entry=%d: %s", group.items[0].position, error)
        elif group.queue not in self._lost_targets:
            self._lost_targets.add(group.queue)
            log.warning("timer: dropping records due for a queue that is gone, topic id=%d queue=%d", *group.queue)
        self._leave(group)
        self.metrics.dropped_count += len(group.items)

    async def _append_flushed(self, appends: Sequence[Append]) -> object:
        return await self._log.append(appends, acks=Acks.FLUSHED)

    def _leave(self, group: Group) -> None:
        self._open.done(group.items)
        self._hung_count -= len(group.items)

    # ------------------------------------------------------------------ checkpoint

    async def checkpoint(self) -> None:
        """Make what was hung and delivered since the last one part of the timer's files. Durable on return, except on
        a full disk, where it is counted and left to the next call. Raises OSError for other failures."""
        async with self._writing:
            if self._progress() != self._saved:
                await self._try_checkpoint()

    async def expire(self) -> None:
        """Remove timer-log files without pending schedules, and move `needed_position` on. Raises OSError."""
        async with self._writing:
            # A restart walks from the checkpoint's read mark; what that needs stays.
            if not await self._try_checkpoint() or (saved := self._checkpoint_file.latest) is None:
                return
            unhung = (await self._log.read(TIMER_QUEUE, saved.queue_offset, max_bytes=1)).entries
            oldest = saved.log_end

            def survey() -> None:
                nonlocal oldest
                if (found := self._wheel.survey(saved.read_mark_s).oldest) != NOWHERE:
                    oldest = found

            log_end = self._log.end_position
            await self._run_blocking(survey)
            if oldest < saved.log_end:
                self.needed_position = self._timer_log.read(oldest).entry_position
            else:
                self.needed_position = unhung[0].position if unhung else log_end
            removed_count = self._timer_log.expire(oldest)
            if removed_count:
                log.info("timer: removed %d timer-log files, needed position=%d", removed_count, self.needed_position)

    async def _try_checkpoint(self) -> bool:
        """Write a checkpoint; False when the disk is full."""
        try:
            await self._write_checkpoint(clean=False)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            # Safe to repeat: the next one writes the same bytes to the same places again.
            self.metrics.checkpoint_failure_count += 1
            log.warning("timer: no space for a checkpoint: %s", error)
            return False
        return True

    def _progress(self) -> tuple[int, int, int, int]:
        """Changes when there is anything worth a checkpoint; the marks alone, moving with the clock, are not."""
        left_count = self.metrics.fired_count + self.metrics.rolled_count + self.metrics.dropped_count
        return self._timer_log.end, self._queue_offset, left_count, self.metrics.already_delivered_count

    async def _write_checkpoint(self, *, clean: bool) -> None:
        progress = self._progress()
        position, units = self._timer_log.unwritten()
        delivered_from = self._open.delivered_from(self._log.end_position)
        if self._consumed_queued or self._open.read_mark_s < self._delivered_until_s:
            # A restart would meet them again, in slots it has to walk again.
            delivered_from = min(delivered_from, self._delivered_from_at_start)
        checkpoint = Checkpoint(
            log_end=position + len(units),
            queue_offset=self._queue_offset,
            read_mark_s=self._open.read_mark_s,
            write_mark_s=max(self._open.write_mark_s, self._delivered_until_s),
            delivered_from=delivered_from,
            clean=clean,
        )
        assert checkpoint.log_end == progress[0]

        def write() -> None:
            if units:
                self._timer_log.write(position, units)

        await self._run_blocking(write)
        self._timer_log.written(position, len(units))
        await self._run_blocking(lambda: self._checkpoint_file.write(checkpoint))
        self._saved = progress
        self.metrics.checkpoint_count += 1


async def _wait(event: asyncio.Event, timeout_ms: int) -> None:
    """Wait for an event, but not longer than `timeout_ms`."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        pass

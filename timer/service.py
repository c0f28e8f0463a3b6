"""The timer: takes accepted schedules out of `__timer`, and delivers each at its millisecond, exactly once.

Five stages, each over batches:

    enqueue get       read `__timer` from the queue offset on
    enqueue put       unit into the timer log, position into the wheel; into memory too when the slot is open
    dequeue get       open the slots the clock comes near, walk their chains
    dequeue message   take what is due, read its records
    dequeue put       append one batch for each target queue (or again to `__timer`, when it rolls), flushed

and a checkpoint beside them. Enqueueing, opening slots, delivering and checkpointing are four loops; tests call
the steps: `enqueue_step`, `dequeue_step` (opens and delivers) and `checkpoint`.

Marks. Slots before the read mark are done for good; slots before the write mark are open (timer/open_slots.py says
how the mark is the barrier between arriving and being loaded). Both only move forward, the clock may not: a record is
compared with the clock when it fires, and one that is late hangs in the read mark's slot. A slot is opened up to
`open_ahead_ms` early, so that its first millisecond is on time.

Changes (cancel, move, fire now: timer/changes.py) and deliveries exclude each other by one lock: a change is decided,
appended and counted between two goes, so a copy has one consumer. All changes that wait share one append.

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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from store.clock import Clock
from store.errors import Corrupt, DiskFull, Overloaded, RecordTooLarge, StoreError, StoreStopped, UnknownQueue
from store.files import Files
from store.limits import MiB
from store.types import Acks, Append, Appended, Boundary, Bounds, Delay, Entry, QueueKey, ReadResult, ReadStatus, Source
from timer.changes import MARKS, TOMBSTONE_TOPIC_ID, Change, Reason, Standing, encode_changes
from timer.checkpoint import Checkpoint, CheckpointFile
from timer.config import TimerConfig
from timer.delivery import TIMER_QUEUE, Bodies, Group, Grouping, Picked, pick
from timer.errors import TooManySchedules
from timer.metrics import TimerMetrics
from timer.open_slots import Item, Load, OpenSlots
from timer.pending_file import PendingFile
from timer.recovery import recover
from timer.schedule import LAP_SLOTS, SLOT_MS, ScheduleId, place
from timer.schedules import Page, Query, Schedule, Schedules
from timer.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_FIRED, MAGIC_MOVED, MAGIC_ROLL, TimerLog, Unit
from timer.wheel import NOWHERE, Wheel

log = logging.getLogger(__name__)

_READ_BYTES = 1 * MiB
_TURN_UNITS = 256  # units walked, or records hung, between two turns of the event loop: about a millisecond
_TURN_RECORDS = 512  # records looked at between two turns while delivering
_PIECE_RECORDS = 1024  # what one append delivers at most, so that nobody's append waits long behind it; and its bytes:
_PIECE_BYTES = 1 * MiB
_WAIT_MS_MAX = 500
_RETRY_MS = 200
_TRIES = 20
_PATIENCE_MS = 5000  # how long a change or a look waits for what was accepted before it to hang in the wheel
_CHANGES_PER_GO = 5000
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

    async def read_entries(self, positions: Sequence[int]) -> list[Entry]: ...

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int: ...

    async def sources_since(self, position: int) -> set[Source]:
        """Sources of all entries (those of `__timer` too) that lie at or after `position`."""
        ...

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """As Store.append. When it raises UnknownQueue, RecordTooLarge, Overloaded or DiskFull, it has stored none of
        `appends`."""
        ...


Deliver = Callable[[Sequence[Append]], Awaitable[list[Appended]]]
"""Appends due records to their queues, durably; errors as `Log.append`."""

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that waits for the disk without holding up the event loop."""


class Outcome(NamedTuple):
    """What a change did. `standing` PENDING: it was done, and `schedule` is the id that names the schedule from now on
    (of a cancel: the id that named it). DELIVERED or UNKNOWN: it was not. `queue` and `offset` are where a record fired
    now went."""

    standing: Standing
    schedule: ScheduleId
    queue: QueueKey | None = None
    offset: int = -1


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
        """Retention must keep the log from this position on: a body that is still to be delivered may lie there, or
        what tells a restart that another one was. Right from `start` on."""
        self._config = config
        self._log = store_log
        self._files = files
        self._clock = clock
        self._deliver = deliver or self._append_flushed
        self._run_blocking = run_blocking
        self._bodies = Bodies(store_log.read_entry, store_log.read_entries, bytes_max=config.bodies_bytes_max)
        self._wake = asyncio.Event()  # something earlier may have become due
        self._room = asyncio.Event()  # enqueueing may go on
        self._drained = asyncio.Event()  # there may be room to load more of a slot
        self._hung = asyncio.Event()  # enqueueing went on
        self._writing = asyncio.Lock()  # one checkpoint at a time
        self._leaving = asyncio.Lock()  # one go of deliveries, or of changes, at a time
        self._changes: list[Change] = []
        self._changed: dict[Source, Reason] = {}  # copies consumed by changes whose tombstones were not met yet
        self._tombstone_count = 0  # ... and how many those are
        self._awaited: dict[Source, asyncio.Future[tuple[QueueKey, int]]] = {}  # copies to fire now
        self._accepting_count = 0  # records in appends under way
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
        self._pending_file = PendingFile(self._files, root / "pending")
        self._files.sync_dir(root)
        self._timer_log = TimerLog(self._files, root / "timerlog", file_units=self._config.timer_log_file_units)
        recovered = await recover(
            self._checkpoint_file.latest, self._wheel, self._timer_log, self._pending_file, self._log,
            now_s=self._clock.now_ms() // SLOT_MS,
        )  # fmt: skip
        self.recovery_outcome = recovered.outcome
        self._queue_offset = recovered.queue_offset
        self._queue_end_at_start = recovered.queue_end
        self._enqueued_position = recovered.delivered_from  # no entry that is still to be hung in lies before it
        self._pending_counts = recovered.pending_counts  # by topic id, of what hangs
        self._hung_count = sum(recovered.pending_counts.values())
        self._consumed_hung = recovered.hung
        self._consumed_queued = recovered.queued if recovered.queue_offset < recovered.queue_end else set()
        self._delivered_from_at_start = recovered.delivered_from
        self._delivered_until_s = recovered.delivered_until_s  # slots that held any of _consumed_hung are before it
        self._open = OpenSlots(
            recovered.read_mark_s,
            delivered_from=self._log.end_position,
            count_max=self._config.heap_count_max,
        )
        self._schedules = Schedules(
            self._log,
            self._timer_log,
            self._bodies,
            standing_of=self._standing_of,
            settled=self._leaving,
            caught_up=self._caught_up,
            copied_count=lambda: self.metrics.rolled_count + self.metrics.moved_count,
            read_mark_s=lambda: self._open.read_mark_s,
        )
        self._saved = self._progress()
        self._started = True
        # From here on the wheel file is not what there is, and the marks of a clean stop do not bound what may be
        # delivered; also, what recovery cut or rebuilt must not be met again under the old checkpoint's marks.
        await self._write_checkpoint(clean=False)
        await self._find_needed()

    async def run(self) -> None:
        """Accept and deliver until cancelled. Raises when the store or a disk has failed for good."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._enqueue_loop(), name="timer enqueue")
            tasks.create_task(self._open_loop(), name="timer dequeue get")
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
                log_end, queue_offset = self._timer_log.end, self._queue_offset
                await self._run_blocking(lambda: self._pending_file.write(self._pending_counts, log_end, queue_offset))
                await self._write_checkpoint(clean=True)
        finally:
            self._wheel.close()
            self._pending_file.close()
            self._timer_log.close()
            self._checkpoint_file.close()

    # ------------------------------------------------------------------ what others may know

    @property
    def pending_count(self) -> int:
        """Schedules accepted and neither delivered, dropped nor cancelled. Exact; for a moment after a start what
        `__timer` holds beyond the last checkpoint counts in full, delivered, cancelled or not."""
        return self._hung_count + self.enqueue_lag_count - self._tombstone_count

    def pending_counts(self) -> dict[int, int]:
        """Pending schedules by topic id, of those that hang in the wheel (all but the newest `enqueue_lag_count`)."""
        return {topic_id: count for topic_id, count in self._pending_counts.items() if count}

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
        time_s = asyncio.get_running_loop().time
        interval_s = self._config.fire_interval_ms / 1000
        while True:
            self._wake.clear()
            started_s = time_s()
            if await self._dequeue_go():
                await asyncio.sleep(max(0, started_s + interval_s - time_s()))
            else:
                await _wait(self._wake, self._idle_ms())

    async def _open_loop(self) -> None:
        """A loop of its own: what is due does not wait until the next, perhaps full, slot has been walked."""
        wait_ms = min(_WAIT_MS_MAX, max(1, self._config.open_ahead_ms // 2))
        while True:
            self._drained.clear()
            await self._dequeue_get(self._clock.now_ms())
            self._wake.set()
            await _wait(self._drained, wait_ms)

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
        pending_counts = self._pending_counts
        base_ms = max(open_slots.write_mark_s, self._clock.now_ms() // SLOT_MS) * SLOT_MS
        read_mark_s = open_slots.read_mark_s
        write_mark_s = open_slots.write_mark_s
        consumed = self._consumed_queued
        position, entry_size = entry.position, entry.size
        hung_count = accepted_count = 0
        first_offset = self._queue_offset
        start = first_offset - entry.base_offset
        stop = min(start + _TURN_UNITS, entry.record_count)
        arrived = False
        for index, delay in enumerate(entry.delays[start:stop], start):
            if consumed and (source := Source(position, index)) in consumed:
                consumed.discard(source)
                self.metrics.already_delivered_count += 1
                continue
            due_ms, topic_id, _, origin_position, _ = delay
            if topic_id == TOMBSTONE_TOPIC_ID:
                self._meet_tombstone(entry.sources[index], Reason(delay.queue_id))
                if entry.base_offset + index >= self._queue_end_at_start:
                    self._tombstone_count -= 1
                arrived = True
                continue
            slot_s, rolls = place(due_ms, base_ms, roll_window_ms)
            if slot_s < read_mark_s:
                slot_s = read_mark_s
            timer_log.append(
                wheel_hang(slot_s, timer_log.end),
                MAGIC_ROLL if rolls else MAGIC_DEFAULT,
                due_ms,
                position,
                entry_size,
                index,
                topic_id,
                slot_s,
            )
            hung_count += 1
            pending_counts[topic_id] = pending_counts.get(topic_id, 0) + 1
            if origin_position < 0:
                accepted_count += 1
            if slot_s < write_mark_s:
                fire_ms = slot_s * SLOT_MS if rolls else due_ms
                open_slots.arrive((fire_ms, position, index, slot_s, rolls), log_end)
                arrived = True
        self._hung_count += hung_count
        self.metrics.accepted_count += accepted_count
        self._queue_offset = entry.base_offset + stop
        self._enqueued_position = position + entry_size if stop == entry.record_count else position
        self._hung.set()
        if first_offset < self._queue_end_at_start <= self._queue_offset:
            consumed.clear()
            # All tombstones were met: what else was consumed lies in slots that had been opened.
            until_s = max(self._consumed_hung.values(), default=0) + 1
            self._delivered_until_s = min(self._delivered_until_s, max(until_s, write_mark_s))
        if arrived:
            self._wake.set()

    def _meet_tombstone(self, source: Source, reason: Reason) -> None:
        """Mark the unit of a copy that a change has consumed, so that its slot's walk passes over it."""
        position = self._timer_log.find(*source)
        if position is not None:
            unit = self._timer_log.read(position)
            if not unit.magic & MAGIC_DELETE:
                self._timer_log.mark(position, unit.magic | MARKS[reason])
            self._open.withdraw(_item_of(unit))  # the walk may have been there before
        self._changed.pop(source, None)
        self._consumed_hung.pop(source, None)

    # ------------------------------------------------------------------ accepting, changing, looking

    async def schedule(self, append: Append, *, acks: Acks) -> Appended:
        """Accept delayed records: `append` is to `__timer`, with one delay a record. Returns when they are as durable
        as the answer says; (position, index) and the due time are then the id of each. This is the way in for every
        delay: what clients send, retries, leases that expire.

        Raises TooManySchedules before anything is stored, and what `Log.append` raises.
        """
        assert append.queue == TIMER_QUEUE
        with self._room_for(append.delays):
            return (await self._log.append([append], acks=acks))[0]

    async def find(self, schedule: ScheduleId) -> tuple[Standing, Schedule | None]:
        """What became of a schedule, and the schedule itself while it is pending. Raises Overloaded, Corrupt."""
        for _ in range(_TRIES):
            found = await self._schedules.find(schedule)
            if found.standing is not Standing.PENDING:
                return found.standing, None
            try:
                return found.standing, await self._schedules.read(found.position)
            except Corrupt:
                if self._standing_of(self._timer_log.read(found.position)) is Standing.PENDING:
                    raise
        raise Overloaded("the schedule is being copied all the time; try again")

    async def page(self, query: Query, *, cursor: int = 0, limit: int) -> Page:
        """Pending schedules; see timer/schedules.py. Raises Overloaded, Corrupt."""
        return await self._schedules.page(query, cursor=cursor, limit=limit)

    async def histogram(self, query: Query, bounds_ms: Sequence[int]) -> list[int]:
        """Pending schedules by due time; see timer/schedules.py. Raises Overloaded, Corrupt."""
        return await self._schedules.histogram(query, bounds_ms)

    async def cancel(self, schedule: ScheduleId) -> Outcome:
        """Have a schedule never delivered. Durable on return. Raises what `Log.append` raises, Overloaded, Corrupt."""
        outcome, _ = await self._change(schedule, Reason.CANCELLED, 0)
        return outcome

    async def move(self, schedule: ScheduleId, due_ms: int) -> Outcome:
        """Give a schedule another due time, and with it another id. Durable on return. Raises as `cancel`."""
        outcome, _ = await self._change(schedule, Reason.MOVED, due_ms)
        return outcome

    async def fire(self, schedule: ScheduleId) -> Outcome:
        """Deliver a schedule now. Delivered durably on return. Raises as `cancel`; UnknownQueue when its queue is gone;
        Overloaded also when it is due now but its delivery takes long."""
        outcome, change = await self._change(schedule, Reason.FIRED, self._clock.now_ms())
        if change is None or change.copy is None:
            return outcome
        delivery = self._awaited[change.copy]
        try:
            async with asyncio.timeout(_PATIENCE_MS / 1000):
                queue, offset = await delivery
        except TimeoutError:
            raise Overloaded("the schedule is due now; its delivery waits for others") from None
        finally:
            self._awaited.pop(change.copy, None)
        return outcome._replace(queue=queue, offset=offset)

    async def cancel_all(self, query: Query) -> int:
        """Cancel all pending schedules that are meant, in goes of some thousand; return how many were. Durable on
        return; on an error those of earlier goes are cancelled. Raises as `cancel`."""
        cancelled_count = 0
        cursor: int | None = 0
        while cursor is not None:
            page = await self._schedules.page(query, cursor=cursor, limit=_CHANGES_PER_GO)
            changes = [Change(position, Reason.CANCELLED) for position in page.positions]
            await self._decide(changes)
            cancelled_count += sum(change.is_done for change in changes)
            cursor = page.next_cursor
        return cancelled_count

    @contextmanager
    def _room_for(self, delays: Sequence[Delay]) -> Iterator[None]:
        """Hold room for records about to be accepted. Raises TooManySchedules."""
        pending_count_max, slot_count_max = self._config.pending_count_max, self._config.slot_count_max
        if self.pending_count + self._accepting_count + len(delays) > pending_count_max:
            raise TooManySchedules(f"{pending_count_max} schedules are pending; no more are accepted")
        in_slots: dict[int, int] = {}
        for delay in delays:
            slot_s = delay.due_ms // SLOT_MS
            in_slots[slot_s] = in_slots.get(slot_s, 0) + 1
        for slot_s, count in in_slots.items():
            if self._wheel.at(slot_s).unit_count + count > slot_count_max:
                raise TooManySchedules(f"{slot_count_max} schedules are due in second {slot_s}; no more are accepted")
        self._accepting_count += len(delays)
        try:
            yield
        finally:
            self._accepting_count -= len(delays)

    async def _caught_up(self) -> None:
        """Wait until all records accepted before the call hang in the wheel. Raises Overloaded when that takes long."""
        end = self._log.bounds(TIMER_QUEUE).max_offset
        try:
            async with asyncio.timeout(_PATIENCE_MS / 1000):
                while self._queue_offset < end:
                    self._hung.clear()
                    await self._hung.wait()
        except TimeoutError:
            raise Overloaded("accepted schedules wait to be hung into the wheel") from None

    def _standing_of(self, unit: Unit) -> Standing:
        """What became of one copy. Exact while `_leaving` is held by no delivery."""
        source = Source(unit.entry_position, unit.record_index)
        reason = self._changed.get(source)
        magic = unit.magic if reason is None else unit.magic | MARKS[reason]
        if magic & MAGIC_DELETE:
            if magic & MAGIC_FIRED:
                return Standing.DELIVERED
            return Standing.MOVED if magic & MAGIC_MOVED else Standing.UNKNOWN
        slot_s = unit.slot_s
        open_slots = self._open
        if source not in self._consumed_hung and (
            slot_s >= open_slots.write_mark_s
            or (slot_s >= open_slots.read_mark_s and open_slots.is_waiting(_item_of(unit)))
        ):
            return Standing.PENDING
        return Standing.ROLLED if magic & MAGIC_ROLL else Standing.DELIVERED

    async def _change(self, schedule: ScheduleId, reason: Reason, due_ms: int) -> tuple[Outcome, Change | None]:
        """Find the copy that waits now, and change it; again when it was copied in between."""
        for _ in range(_TRIES):
            found = await self._schedules.find(schedule)
            if found.standing is not Standing.PENDING:
                return Outcome(found.standing, schedule), None
            change = Change(found.position, reason, due_ms)
            await self._decide([change])
            if change.is_done:
                named = schedule if reason is Reason.CANCELLED else schedule._replace(due_ms=due_ms)
                return Outcome(Standing.PENDING, named), change
        raise Overloaded("the schedule is being copied all the time; try again")

    async def _decide(self, changes: list[Change]) -> None:
        """Have changes decided, with all others that wait. Raises the error of the first that has one."""
        self._changes += changes
        while not all(change.is_decided for change in changes):
            await asyncio.shield(self._change_step())  # never cancelled between its decisions and their append
        for change in changes:
            if change.error is not None:
                raise change.error

    async def _change_step(self) -> None:
        """Decide the next changes that wait, and append those that can be done in one go."""
        async with self._leaving:
            changes, self._changes = self._changes[:_CHANGES_PER_GO], self._changes[_CHANGES_PER_GO:]
            if not changes:
                return
            try:
                await self._change_go(changes)
            except Exception as error:
                for change in changes:
                    if not change.is_done:
                        change.error = error
            finally:
                for change in changes:
                    change.is_decided = True

    async def _change_go(self, changes: list[Change]) -> None:
        if self._open.withdrawn_count >= self._config.heap_count_max:
            raise Overloaded("many schedules that are due have been cancelled; try again")
        for change in changes:
            if change.reason is not Reason.CANCELLED:
                await self._take_body(change)
        claimed: list[Change] = []
        try:
            claimed += (change for change in changes if self._claim(change))
        except Corrupt:
            self._unclaim(claimed)
            raise
        groups = list(_go_sizes(claimed, self._config.batch_bytes_max))
        for number, group in enumerate(groups):
            try:
                append = encode_changes(group, self._clock.now_ms())
                (appended,) = await self._log.append([append], acks=Acks.FLUSHED)
            except (Overloaded, DiskFull, RecordTooLarge, UnknownQueue):  # nothing was stored
                for rest in groups[number:]:
                    self._unclaim(rest)
                raise
            self._changed_durably(group, appended)

    async def _take_body(self, change: Change) -> None:
        """Read the record of a schedule that is to be copied."""
        try:
            unit = self._timer_log.read(change.position)
            if self._standing_of(unit) is Standing.PENDING:
                change.moved = pick(_item_of(unit), await self._bodies.get(unit.entry_position))
        except StoreStopped:
            raise
        except StoreError as error:
            change.error = error

    def _claim(self, change: Change) -> bool:
        """Keep a copy that is pending from being delivered; False when it is not pending any more."""
        unit = change.unit = self._timer_log.read(change.position)
        if change.error is not None or self._standing_of(unit) is not Standing.PENDING:
            return False
        self._changed[change.source] = change.reason
        return True

    def _unclaim(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._changed.pop(change.source, None)

    def _changed_durably(self, changes: list[Change], appended: Appended) -> None:
        """Count changes whose entry is durable. Their units are marked when their tombstones are met."""
        metrics = self.metrics
        copy_index = len(changes)
        for change in changes:
            assert change.unit is not None
            change.is_done = True
            self._hung_count -= 1
            self._pending_counts[change.unit.topic_id] -= 1
            if change.reason is Reason.CANCELLED:
                metrics.cancelled_count += 1
                continue
            metrics.moved_count += 1
            change.copy = Source(appended.position, copy_index)
            copy_index += 1
            if change.reason is Reason.FIRED:
                self._awaited[change.copy] = asyncio.get_running_loop().create_future()
        self._tombstone_count += len(changes)

    # ------------------------------------------------------------------ dequeue

    async def dequeue_step(self) -> int:
        """Deliver what is due, up to one batch; return how many records left the timer."""
        await self._dequeue_get(self._clock.now_ms())
        return await self._dequeue_go()

    async def _dequeue_go(self) -> int:
        self._blocked = False
        async with self._leaving:
            due = self._open.pop_due(self._clock.now_ms(), self._config.fire_records_max)
            left_count = 0
            if due:
                picked, rest = await self._dequeue_message(due)
                self._open.put_back(rest)
                left_count = len(due) - len(rest)
                for piece in _pieces(picked):
                    if self._blocked:  # what follows must not overtake it
                        self._open.put_back([chosen.item for chosen in piece])
                        left_count -= len(piece)
                        continue
                    grouping = Grouping(batch_bytes_max=self._config.batch_bytes_max)
                    for chosen in piece:
                        grouping.add(chosen)
                    for groups, put in ((grouping.rolling, self._append_flushed), (grouping.firing, self._deliver)):
                        left_count -= await self._dequeue_put(groups, put)
            self._open.advance(self._clock.now_ms() // SLOT_MS)
        self._room.set()
        if not self._open.is_loaded:
            self._drained.set()
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
            position = unit.previous
            walked_count += 1
            if walked_count % _TURN_UNITS == 0:
                await asyncio.sleep(0)
            if unit.magic & MAGIC_DELETE:
                continue
            offer(_item_of(unit))
        self._open.finish(load)

    async def _dequeue_message(self, due: list[Item]) -> tuple[list[Picked], list[Item]]:
        """Read the records of due items, in order; also the items that did not fit the bytes of one go.

        Each entry is decoded once for all its due records: in a busy second the records of one accepted batch lie
        scattered over `due`, and there may be more batches than memory is to hold.
        """
        by_entry: dict[int, list[int]] = {}  # places in `due`
        found: list[Picked | None] = [None] * len(due)
        gone: set[int] = set()  # consumed already, or parked
        for number, item in enumerate(due):
            source = item[1:3]
            if source in self._consumed_hung or source in self._changed:
                if self._consumed_hung.pop(source, None) is not None:
                    self.metrics.already_delivered_count += 1
                self._open.done([item])
                gone.add(number)
            elif (numbers := by_entry.get(item[1])) is not None:
                numbers.append(number)
            else:
                by_entry[item[1]] = [number]
            if number % _TURN_RECORDS == 0:
                await asyncio.sleep(0)
        positions = list(by_entry)
        size_bytes = turn_count = ahead_count = 0
        for count, (position, numbers) in enumerate(by_entry.items()):
            if size_bytes >= self._config.fire_bytes_max:
                break
            if count == ahead_count:
                ahead_count += await self._bodies.read_ahead(positions[count:])
            try:
                body = await self._bodies.get(position)
                for number in numbers:
                    chosen = found[number] = pick(due[number], body)
                    size_bytes += chosen[5]
            except StoreStopped:
                raise
            except StoreError as damage:
                # Never skipped: they keep their slots, and with them the read mark, until the entry can be read.
                self.metrics.parked_count += len(numbers)
                gone.update(numbers)
                log.error("timer: %d due records of entry %d cannot be read: %s", len(numbers), position, damage)
                continue
            turn_count += len(numbers) + len(body.records) // 4
            if turn_count >= _TURN_RECORDS:
                turn_count = 0
                await asyncio.sleep(0)
        picked: list[Picked] = []
        for number, chosen_or_none in enumerate(found):
            if number in gone:
                continue
            if chosen_or_none is None:  # what follows must not overtake it
                return picked, [later for at, later in enumerate(due[number:], number) if at not in gone]
            picked.append(chosen_or_none)
        return picked, []

    async def _dequeue_put(self, groups: list[Group], put: Deliver) -> int:
        """Append groups durably; return how many records have to be tried again later."""
        if not groups:
            return 0
        try:
            appends = []
            for group in groups:
                appends.append(group.append())
                await asyncio.sleep(0)
            appendeds = await put(appends)
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
        for group, appended in zip(groups, appendeds, strict=True):
            self._leave(group)
            if group.delays:
                self.metrics.rolled_count += len(group.items)
            else:
                self.metrics.fired(now_ms, group.items)
                if self._awaited:
                    for index, source in enumerate(group.sources):
                        self._answer(source, (group.queue, appended.base_offset + index))
        return 0

    def _answer(self, source: Source, delivered: tuple[QueueKey, int] | UnknownQueue) -> None:
        """Tell who had a record fired now where it went, or that it could not be delivered."""
        waiting = self._awaited.get(source)
        if waiting is not None and not waiting.done():
            if isinstance(delivered, UnknownQueue):
                waiting.set_exception(delivered)
            else:
                waiting.set_result(delivered)

    def _drop(self, group: Group, error: StoreError) -> None:
        if isinstance(error, RecordTooLarge):
            log.error("timer: dropping a record that cannot be delivered, entry=%d: %s", group.items[0][1], error)
        elif group.queue not in self._lost_targets:
            self._lost_targets.add(group.queue)
            log.warning("timer: dropping records due for a queue that is gone, topic id=%d queue=%d", *group.queue)
        self._leave(group)
        self.metrics.dropped_count += len(group.items)
        for source in group.sources:
            self._answer(source, UnknownQueue(str(error)))

    async def _append_flushed(self, appends: Sequence[Append]) -> list[Appended]:
        return await self._log.append(appends, acks=Acks.FLUSHED)

    def _leave(self, group: Group) -> None:
        self._open.done(group.items)
        self._hung_count -= len(group.items)
        counts = self._pending_counts
        if group.delays:
            for delay in group.delays:
                counts[delay.topic_id] -= 1
        else:
            counts[group.queue.topic_id] -= len(group.items)

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
            if not await self._try_checkpoint():
                return
            oldest = await self._find_needed()
            removed_count = self._timer_log.expire(oldest)
            if removed_count:
                log.info("timer: removed %d timer-log files, needed position=%d", removed_count, self.needed_position)

    async def _find_needed(self) -> int:
        """Set `needed_position` by the last checkpoint; return the oldest timer-log position a restart would need."""
        saved = self._checkpoint_file.latest
        assert saved is not None
        unhung = (await self._log.read(TIMER_QUEUE, saved.queue_offset, max_bytes=1)).entries
        oldest = saved.log_end

        def survey() -> None:
            nonlocal oldest
            if (found := self._wheel.survey(saved.read_mark_s).oldest) != NOWHERE:
                oldest = min(oldest, found)

        await self._run_blocking(survey)
        needed = saved.delivered_from
        if oldest < saved.log_end:
            needed = min(needed, self._timer_log.read(oldest).entry_position)
        if unhung:
            needed = min(needed, unhung[0].position)
        self.needed_position = needed
        return oldest

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
        unwritten = self._timer_log.unwritten()
        log_end = self._log.end_position
        delivered_from = self._open.delivered_from(log_end)
        if self._queue_offset < self._log.bounds(TIMER_QUEUE).max_offset:
            delivered_from = min(delivered_from, self._enqueued_position)  # a tombstone may be among what is not met
        if self._consumed_queued or self._open.read_mark_s < self._delivered_until_s:
            # A restart would meet them again, in slots it has to walk again.
            delivered_from = min(delivered_from, self._delivered_from_at_start)
        checkpoint = Checkpoint(
            log_end=unwritten.position + len(unwritten.units),
            queue_offset=self._queue_offset,
            read_mark_s=self._open.read_mark_s,
            write_mark_s=max(self._open.write_mark_s, self._delivered_until_s),
            delivered_from=delivered_from,
            clean=clean,
        )
        assert checkpoint.log_end == progress[0]

        def write() -> None:
            if unwritten.units or unwritten.marks:
                self._timer_log.write(unwritten)

        await self._run_blocking(write)
        self._timer_log.written(unwritten)
        await self._run_blocking(lambda: self._checkpoint_file.write(checkpoint))
        self._saved = progress
        self.metrics.checkpoint_count += 1


def _item_of(unit: Unit) -> Item:
    """A unit as the open slots hold it."""
    rolls = unit.magic & MAGIC_ROLL != 0
    fire_ms = unit.slot_s * SLOT_MS if rolls else unit.due_ms
    return fire_ms, unit.entry_position, unit.record_index, unit.slot_s, rolls


def _pieces(picked: list[Picked]) -> Iterator[list[Picked]]:
    """Due records cut into what one append delivers."""
    start = size_bytes = 0
    for number, chosen in enumerate(picked):
        size_bytes += chosen[5]
        if number - start + 1 == _PIECE_RECORDS or size_bytes >= _PIECE_BYTES:
            yield picked[start : number + 1]
            start, size_bytes = number + 1, 0
    if start < len(picked):
        yield picked[start:]


def _go_sizes(changes: list[Change], bytes_max: int) -> Iterator[list[Change]]:
    """Changes cut into groups of about `bytes_max` of records to copy."""
    group: list[Change] = []
    size_bytes = 0
    for change in changes:
        moved_bytes = 0 if change.moved is None else change.moved.size_bytes
        if group and size_bytes + moved_bytes > bytes_max:
            yield group
            group, size_bytes = [], 0
        group.append(change)
        size_bytes += moved_bytes
    if group:
        yield group


async def _wait(event: asyncio.Event, timeout_ms: int) -> None:
    """Wait for an event, but not longer than `timeout_ms`."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        pass

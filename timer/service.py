"""The timer: takes accepted schedules out of `__timer`, and delivers each at its millisecond, exactly once.

    accepting        timer/accepting.py      the way in: an append to `__timer`, when there is room
    enqueue get      timer/intake.py     read `__timer` from the queue offset on
    enqueue put                              unit into the timer log, position into the wheel; into memory too when the
                                             slot is open
    dequeue get      timer/firing.py     open the slots the clock comes near, walk their chains
    prefetch       timer/prefetch.py     read and decode what is due soon
    dequeue message  timer/firing.py     take what is due, read its records
    dequeue put                              deliver one batch for each partition (or append it again to `__timer`,
                                             when it rolls), flushed
    changing         timer/changing.py       cancel, move, fire now
    keys             timer/schedule_keys.py  schedules by a key of their sender's
    looking          timer/schedules.py      find one, list, count
    checkpointing    timer/checkpointing.py  all of it durable in the timer's own files

Each stage works on batches. What they share is in timer/state.py. Intake, opening slots, prefetching, delivering
and checkpointing are five loops; tests call the steps: `intake_step`, `firing_step` (opens, prefetches, delivers),
`checkpoint`.

Marks. Slots before the read mark are done for good; slots before the write mark are open (timer/open_slots.py says
how the mark is the barrier between arriving and being loaded). Both only move forward, the clock may not: a record is
compared with the clock when it fires, and one that is late is in the read mark's slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from store.clock import Clock
from store.files import Files
from store.types import Acks, Append, Appended, Source
from timer.accepting import Accepting
from timer.changes import Standing
from timer.changing import Changing, Outcome
from timer.checkpoint import CheckpointFile
from timer.checkpointing import Checkpointing
from timer.config import TimerConfig
from timer.entry_reader import EntryReader
from timer.firing import Firing
from timer.intake import Intake
from timer.key_index import SqliteKeyIndex
from timer.key_rows import KeyRows
from timer.metrics import TimerMetrics
from timer.open_slots import OpenSlots
from timer.pending_file import PendingFile
from timer.ports import KeyIndex, KeyRow, Log, Partitions, RunBlocking, TopicKey
from timer.prefetch import Prefetch
from timer.ready import Ready
from timer.record_cache import RecordCache
from timer.recovery import recover
from timer.saved import SAVED_PER_TURN, Saved, packed_unit
from timer.schedule import SLOT_MS, ScheduleId
from timer.schedule_keys import ScheduleKeys
from timer.schedules import Census, DuePage, DuePosition, Page, Query, Schedule, Schedules
from timer.state import TimerState
from timer.timer_log import MAGIC_DELETE, TimerLog
from timer.wheel import Wheel

log = logging.getLogger(__name__)


class TimerService:
    """One broker's timer. `start`, then `run` until cancelled, then `close`.

    `partitions` is where due records go (default: the queues of the log itself). `run_blocking` runs what waits for the
    disk (default: a thread). `key_index` keeps the rows of schedule keys (default: a file beside the others). Timers
    that count together share `metrics`.
    """

    def __init__(
        self,
        config: TimerConfig,
        store_log: Log,
        files: Files,
        clock: Clock,
        *,
        partitions: Partitions,
        run_blocking: RunBlocking = asyncio.to_thread,
        key_index: KeyIndex | None = None,
        metrics: TimerMetrics | None = None,
    ) -> None:
        self.metrics = metrics or TimerMetrics()
        self._config = config
        self._log = store_log
        self._files = files
        self._clock = clock
        self._partitions = partitions
        self._run_blocking = run_blocking
        self._key_index = key_index
        self._started = False

    # ------------------------------------------------------------------ life

    async def start(self, saved: Saved | None = None) -> None:
        """Open or rebuild the timer's files, before the log takes its first append of this process: what a power cut
        took from the log must not have been replaced yet. `saved`: what `save` of another timer of this log has given,
        for files that are not there. Raises Corrupt, OSError, and what the log raises."""
        assert not self._started
        root = self._config.root
        self._files.make_dirs(root)
        self._checkpoint_file = CheckpointFile(self._files, root / "checkpoint")
        wheel = self._wheel = Wheel(self._files, root / "wheel")
        self._pending_file = PendingFile(self._files, root / "pending")
        self._files.sync_dir(root)
        timer_log = self._timer_log = TimerLog(
            self._files, root / "timerlog", file_units=self._config.timer_log_file_units
        )
        checkpoint = self._checkpoint_file.latest
        key_index = self._key_index = self._key_index or SqliteKeyIndex(root / "keys")
        if checkpoint is not None and checkpoint.keyed and key_index.queue_offset < checkpoint.queue_offset:
            log.warning(
                "timer: the rows of schedule keys are behind the checkpoint or damaged, rebuilding from the log"
            )
            checkpoint = None
        try:
            recovered = await recover(
                checkpoint, wheel, timer_log, self._pending_file, self._log,
                now_s=max(1, self._clock.now_ms() // SLOT_MS), saved=saved,
            )  # fmt: skip
        except BaseException:
            self._close_files()
            raise
        self.recovery_outcome = recovered.outcome
        if recovered.outcome == "rebuilt" or checkpoint is None or not checkpoint.keyed:
            key_index.reset()  # no key is pending, or all are met again
        if recovered.outcome == "saved" and saved is not None and saved.rows:
            rows, queue_offset = dict(saved.rows), saved.queue_offset
            await self._run_blocking(lambda: key_index.commit(rows, queue_offset, before_s=None))
        bytes_max = self._config.bodies_bytes_max
        reader = EntryReader(
            self._log.entry_at_hand,
            self._log.read_entry,
            self._log.read_entries,
            self._log.yield_to_loop,
            starts_bytes_max=bytes_max // 2,
        )
        state = self._state = TimerState(
            config=self._config,
            log=self._log,
            clock=self._clock,
            metrics=self.metrics,
            record_cache=RecordCache(reader, bytes_max=bytes_max // 4),
            ready=Ready(reader, bytes_max=bytes_max),
            wheel=wheel,
            timer_log=timer_log,
            open=OpenSlots(
                recovered.read_mark_s,
                delivered_from=self._log.end_position,
                count_max=self._config.heap_count_max,
            ),
            key_rows=KeyRows(key_index, self._run_blocking),
            queue_offset=recovered.queue_offset,
            queue_end_at_start=recovered.queue_end,
            intake_position=recovered.delivered_from,
            pending=recovered.pending,
            consumed_scheduled=recovered.scheduled,
            consumed_queued=recovered.queued if recovered.queue_offset < recovered.queue_end else set(),
            delivered_from_at_start=recovered.delivered_from,
            delivered_until_s=recovered.delivered_until_s,
        )
        self._keys = ScheduleKeys(state)
        self._accepting = Accepting(state, self._keys)
        self._intake = Intake(state, self._accepting.forget_met)
        self._prefetch = Prefetch(state)
        self._firing = Firing(state, self._partitions)
        self._schedules = Schedules(state, self._partitions)
        self._changing = Changing(state, self._schedules, self._accepting)
        self._checkpointing = Checkpointing(state, self._checkpoint_file, self._pending_file, self._run_blocking)
        self._started = True
        await self._checkpointing.begin()

    async def run(self) -> None:
        """Accept and deliver until cancelled. Raises when the store or a disk has failed for good."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._intake.run(), name="timer enqueue")
            tasks.create_task(self._firing.run_get(), name="timer dequeue get")
            tasks.create_task(self._prefetch.run(), name="timer look ahead")
            tasks.create_task(self._firing.run(), name="timer dequeue")
            tasks.create_task(self._checkpointing.run(), name="timer checkpoint")

    async def close(self) -> None:
        """Leave a clean checkpoint: the next start trusts the wheel. Call after `run` has ended; raises OSError."""
        if not self._started:
            return
        self._started = False
        try:
            await self._checkpointing.end()
        finally:
            self._close_files()

    def abandon(self) -> None:
        """Release the files, which no other timer opens. Call after `run` has ended."""
        if self._started:
            self._started = False
            self._close_files()

    def _close_files(self) -> None:
        self._wheel.close()
        self._pending_file.close()
        self._timer_log.close()
        self._checkpoint_file.close()
        if self._key_index is not None:
            self._key_index.close()

    async def intake_step(self) -> int:
        """Hang the next accepted schedules into the wheel; return how many records were taken (0: none there, or no
        room)."""
        return await self._intake.step()

    async def firing_step(self) -> int:
        """Deliver what is due, up to one batch; return how many records have left memory."""
        await self._firing.get(self._clock.now_ms())
        await self._prefetch.step()
        return await self._firing.go()

    async def checkpoint(self) -> None:
        """Make what was scheduled and delivered since the last one part of the timer's files. Durable on return, except
        on a full disk, where it is counted and left to the next call. Raises OSError for other failures."""
        await self._checkpointing.checkpoint()

    async def save(self) -> Saved:
        """What another timer of the same log needs to go on from here, as of a checkpoint that is written now. No
        `expire` at the same time. Raises Corrupt, OSError."""
        await self._checkpointing.checkpoint()
        checkpoint = self._checkpoint_file.latest
        assert checkpoint is not None
        assert self._key_index is not None
        packed = bytearray()
        for count, (position, unit) in enumerate(self._state.timer_log.scan(), 1):
            if position >= checkpoint.log_end:
                break
            if unit.slot_s >= checkpoint.read_mark_s and not unit.magic & MAGIC_DELETE:
                packed += packed_unit(unit)
            if count % SAVED_PER_TURN == 0:
                await self._log.yield_to_loop()
        rows: list[tuple[TopicKey, KeyRow]] = []
        index = self._key_index

        def read_rows() -> None:
            rows.extend(index.all_rows() if index.is_used else ())

        await self._run_blocking(read_rows)
        return Saved(checkpoint.queue_offset, checkpoint.read_mark_s, checkpoint.delivered_from, bytes(packed), rows)

    async def expire(self) -> None:
        """Remove timer-log files without pending schedules, and move `needed_position` on. Raises OSError."""
        await self._checkpointing.expire()

    # ------------------------------------------------------------------ schedules

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """Accept delayed records: `append` is to `__timer`, with one delay a record. Returns when they are as durable
        as the answer says; (position, index) and the due time are then the id of each. This is the way in for every
        delay: what clients send, retries, leases that expire. `keys`: the schedule key of each record, which is in its
        header `mq-schedule-key` too; None, or nothing at all, for those without.

        Raises TooManySchedules or ScheduleKeyTaken before anything is stored, and what `Log.append` raises; of these
        AlreadyStored first.
        """
        return await self._accepting.schedule(append, acks=acks, keys=keys)

    async def named(self, topic_id: int, key: bytes) -> ScheduleId | None:
        """The id of the pending schedule that has a schedule key in a topic. Raises TimerBusy, Corrupt."""
        return await self._keys.named(TopicKey(topic_id, key))

    async def find(self, schedule: ScheduleId) -> tuple[Standing, Schedule | None]:
        """What became of a schedule, and the schedule itself while it is pending. Raises TimerBusy, Corrupt."""
        return await self._schedules.show(schedule)

    async def topic_of(self, schedule: ScheduleId) -> int | None:
        """The topic id of the schedule that an id names, pending or not; None when the log does not know it (any
        more)."""
        return await self._schedules.topic_of(schedule)

    async def page(self, query: Query, *, cursor: int = 0, limit: int) -> Page:
        """Pending schedules; see timer/schedules.py. Raises TimerBusy, Corrupt."""
        return await self._schedules.page(query, cursor=cursor, limit=limit)

    async def page_by_due(self, query: Query, *, after: DuePosition | None, limit: int) -> DuePage:
        """Pending schedules, the first due first; see timer/schedules.py. Raises TimerBusy, Corrupt."""
        return await self._schedules.page_by_due(query, after=after, limit=limit)

    async def census(self, query: Query, bounds_ms: Sequence[int]) -> Census:
        """Pending schedules by due time; see timer/schedules.py. Raises TimerBusy, Corrupt."""
        return await self._schedules.census(query, bounds_ms)

    async def count(self, query: Query) -> int:
        """How many schedules are pending and meant; see timer/schedules.py. Raises TimerBusy, Corrupt."""
        return await self._schedules.count(query)

    async def cancel(self, schedule: ScheduleId) -> Outcome:
        """Have a schedule never delivered. Durable on return. Raises what `Log.append` raises, TimerBusy, Corrupt."""
        return await self._changing.cancel(schedule)

    async def cancel_all(self, query: Query) -> int:
        """Cancel all pending schedules that are meant, in goes of some thousand; return how many were. Durable on
        return; on an error those of earlier goes are cancelled. Raises as `cancel`."""
        return await self._changing.cancel_all(query)

    async def move(self, schedule: ScheduleId, due_ms: int) -> Outcome:
        """Give a schedule another due time, and with it another id. Durable on return. Raises as `cancel`;
        TooManySchedules when no more are accepted for that second."""
        return await self._changing.move(schedule, due_ms)

    async def fire(self, schedule: ScheduleId) -> Outcome:
        """Deliver a schedule now. Delivered durably on return. Raises as `cancel`; UnknownQueue when its queue is gone;
        TimerBusy also when it is due now but its delivery takes long."""
        return await self._changing.fire(schedule)

    # ------------------------------------------------------------------ what others may know

    @property
    def needed_position(self) -> int:
        """Retention must keep the log from this position on: a body that is still to be delivered may lie there, or
        what tells a restart that another one was. Right from `start` on; 0 before."""
        return self._checkpointing.needed_position if self._started else 0

    @property
    def pending_count(self) -> int:
        """Schedules accepted and neither delivered, dropped nor cancelled. Exact; for a moment after a start what
        `__timer` holds beyond the last checkpoint counts in full, delivered, cancelled or not."""
        return self._state.pending_count

    def may_be_pending(self, copy: Source) -> bool:
        """Whether a copy waits, or is not in the wheel yet."""
        if copy.position >= self._state.intake_position:
            return True
        position = self._state.timer_log.find(*copy)
        if position is None:
            return False
        return self._state.standing_of(self._state.timer_log.read(position)) is Standing.PENDING

    def pending_counts(self) -> dict[int, int]:
        """Pending schedules by topic id, of those that are in the wheel (all but the newest `intake_lag_count`)."""
        return {topic_id: count for topic_id, count in self._state.pending.by_topic.items() if count}

    @property
    def read_lag_ms(self) -> int:
        """How far the read mark is behind the clock; up to a second when all is well."""
        return max(0, self._clock.now_ms() - self._state.open.read_mark_s * SLOT_MS)

    @property
    def write_lag_ms(self) -> int:
        """How far the write mark is behind the clock; 0 when all is well."""
        return max(0, self._clock.now_ms() - self._state.open.write_mark_s * SLOT_MS)

    @property
    def intake_lag_count(self) -> int:
        """Accepted records that are not in the wheel yet."""
        return self._state.intake_lag_count

"""Checkpoints: making what was scheduled and delivered part of the timer's files, and removing what nothing needs any
more.

Order of writing (K2 in timer/checkpoint.py): timer log, rows of schedule keys, at a clean stop the wheel and the
counts, then the checkpoint.
So a checkpoint names only what the timer log has flushed.

A thread that waits for the disk goes on when its caller is cancelled. So what was begun here comes to its end first:
no two threads write at a time, and no file is closed under one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

from store.files import OUT_OF_HANDLES
from store.topics import TIMER_QUEUE
from store.uncancelled import to_its_end
from store.waits import is_set_within
from timer.checkpoint import Checkpoint, CheckpointFile
from timer.pending_file import PendingFile
from timer.ports import RunBlocking
from timer.state import TimerState
from timer.wheel import NOWHERE

log = logging.getLogger(__name__)

FREED_AT_ONCE = 4096
_NO_SPACE = OUT_OF_HANDLES | {errno.ENOSPC, errno.EDQUOT}


class Checkpointing:
    """Writes the checkpoints of one timer, one at a time."""

    def __init__(
        self, state: TimerState, file: CheckpointFile, pending_file: PendingFile, run_blocking: RunBlocking
    ) -> None:
        self._state = state
        self._file = file
        self._pending_file = pending_file
        self._run_blocking = run_blocking
        self._writing = asyncio.Lock()
        self._saved = self._progress()
        self.needed_position = 0
        """See TimerService.needed_position."""

    async def begin(self) -> None:
        """Say that the timer is at work. From here on the wheel file is not what there is, and the marks of a clean
        stop do not bound what may be delivered; also, what recovery cut or rebuilt must not be met again under the
        old checkpoint's marks. Raises OSError, and what the log raises."""
        await to_its_end(self._begin())

    async def _begin(self) -> None:
        await self._write(clean=False)
        await self._find_needed()

    async def run(self) -> None:
        """Write a checkpoint now and then, and when many keys wait for one, until cancelled."""
        config, now_s = self._state.config, asyncio.get_running_loop().time
        expired_s = now_s()
        while True:
            await is_set_within(self._state.key_rows.are_many, config.checkpoint_interval_ms / 1000)
            await self.checkpoint()
            if now_s() >= expired_s + config.expire_interval_ms / 1000:
                expired_s = now_s()
                await self.expire()

    async def end(self) -> None:
        """Leave a clean checkpoint: the next start trusts the wheel file. Raises OSError."""
        await to_its_end(self._end())

    async def _end(self) -> None:
        state = self._state
        async with state.leaving, self._writing:  # what is stored by now is counted, too
            await self._write(clean=False)
            await self._run_blocking(state.wheel.flush)
            log_end, queue_offset = state.timer_log.end, state.queue_offset
            await self._run_blocking(lambda: self._pending_file.write(state.pending, log_end, queue_offset))
            await self._write(clean=True)

    async def checkpoint(self) -> None:
        """Make what was scheduled and delivered since the last one part of the timer's files. Durable on return, except
        on a full disk, where it is counted and left to the next call. Raises OSError for other failures."""
        await to_its_end(self._checkpoint())

    async def _checkpoint(self) -> None:
        async with self._writing:
            if self._progress() != self._saved:
                await self._try_to_write()

    async def expire(self) -> None:
        """Remove timer-log files without pending schedules, and move `needed_position` on. Raises OSError."""
        await to_its_end(self._expire())

    async def _expire(self) -> None:
        async with self._writing:
            # A restart walks from the checkpoint's read mark; what that needs stays.
            if not await self._try_to_write():
                return
            oldest = await self._find_needed()
            removed_count = self._state.timer_log.expire(oldest)
            if removed_count:
                log.info("timer: removed %d timer-log files, needed position=%d", removed_count, self.needed_position)

    async def _find_needed(self) -> int:
        """Set `needed_position` by the last checkpoint; return the oldest timer-log position a restart would need."""
        saved = self._file.latest
        assert saved is not None
        unscheduled = (await self._state.log.read(TIMER_QUEUE, saved.queue_offset, max_bytes=1)).entries
        oldest = saved.log_end

        def survey() -> None:
            nonlocal oldest
            if (found := self._state.wheel.survey(saved.read_mark_s).oldest) != NOWHERE:
                oldest = min(oldest, found)

        await self._run_blocking(survey)
        needed = saved.delivered_from
        if oldest < saved.log_end:
            needed = min(needed, self._state.timer_log.read(oldest).entry_position)
        if unscheduled:
            needed = min(needed, unscheduled[0].position)
        self.needed_position = needed
        return oldest

    async def _try_to_write(self) -> bool:
        """Write a checkpoint; False when the disk is full."""
        try:
            await self._write(clean=False)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            # Safe to repeat: the next one writes the same bytes to the same places again.
            self._state.metrics.checkpoint_failure_count += 1
            log.warning("timer: no space for a checkpoint: %s", error)
            return False
        return True

    def _progress(self) -> tuple[int, int, int, int]:
        """Changes when there is anything worth a checkpoint; the marks alone, moving with the clock, are not."""
        state, metrics = self._state, self._state.metrics
        left_count = metrics.fired_count + metrics.rolled_count + metrics.dropped_count
        return state.timer_log.end, state.queue_offset, left_count, metrics.already_delivered_count

    async def _write(self, *, clean: bool) -> None:
        state = self._state
        progress = self._progress()
        unwritten = state.timer_log.unwritten()
        rows = state.key_rows.take()
        log_end = state.log.end_position
        delivered_from = state.open.delivered_from(log_end)
        if state.queue_offset < state.log.bounds(TIMER_QUEUE).max_offset:
            delivered_from = min(delivered_from, state.intake_position)  # a tombstone may be among what is not met
        if state.consumed_queued or state.open.read_mark_s < state.delivered_until_s:
            # A restart would meet them again, in slots it has to walk again.
            delivered_from = min(delivered_from, state.delivered_from_at_start)
        checkpoint = Checkpoint(
            log_end=unwritten.position + len(unwritten.units),
            queue_offset=state.queue_offset,
            read_mark_s=state.open.read_mark_s,
            write_mark_s=max(state.open.write_mark_s, state.delivered_until_s),
            delivered_from=delivered_from,
            clean=clean,
            keyed=state.key_rows.is_used,
        )
        is_behind = state.queue_offset < state.log.bounds(TIMER_QUEUE).max_offset
        # The next copy of what rolled in a slot that is done may not be met yet: its key's row stays.
        rows_before_s = None if is_behind else checkpoint.read_mark_s
        assert checkpoint.log_end == progress[0]

        def write() -> None:
            if unwritten.units or unwritten.marks:
                state.timer_log.write(unwritten)
            if checkpoint.keyed:
                state.key_rows.commit(rows, checkpoint.queue_offset, rows_before_s)

        await self._run_blocking(write)
        state.timer_log.written(unwritten)
        state.key_rows.committed()
        await self._run_blocking(lambda: self._file.write(checkpoint))
        self._saved = progress
        await self._let_go(unwritten.marks)
        await self._let_go(rows)

    async def _let_go(self, done: dict[Any, Any]) -> None:
        """Free what is not needed any more, in turns: of a hundred thousand it takes 20 ms."""
        while done:
            for _ in range(min(FREED_AT_ONCE, len(done))):
                done.popitem()
            await self._state.log.yield_to_loop()

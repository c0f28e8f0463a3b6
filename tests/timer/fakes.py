"""A log in memory for the timer's tests: what `timer.ports.Log` asks of a store, with the crashes a store survives.

Entries appended FLUSHED survive everything; of those appended WRITTEN a power cut takes a suffix. `observed` records
each delivery with the clock's reading when it was appended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from store import record_batch
from store.clock import Clock
from store.errors import Corrupt, StoreError, UnknownQueue
from store.record_batch import Record
from store.topics import TIMER_QUEUE
from store.types import Acks, Append, Appended, Boundary, Bounds, Delay, Entry, QueueKey, ReadResult, ReadStatus, Source
from tests.simdisk import SimDisk
from timer.config import TimerConfig
from timer.ports import KeyIndex, KeyRow, OwnPartitions, RunBlocking, TopicKey
from timer.ready import SCHEDULE_KEY_HEADER
from timer.service import TimerService

ROOT = Path("/data/timer")
TARGET = QueueKey(7, 0)
OTHER_TARGET = QueueKey(7, 1)
LOG_START = 64
"""The log's first position is not 0, as in the store."""


class Delivered(NamedTuple):
    """One record that reached its queue."""

    queue: QueueKey
    value: bytes
    due_ms: int
    schedule_id: str
    at_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


class FakeLog:
    """One store's log, seen by the timer. Nothing waits; a test may make the next appends fail or the process die."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.entries: list[Entry] = []
        self.levels: list[Acks] = []
        self.observed_ms: dict[int, int] = {}
        self.queues = {TIMER_QUEUE, TARGET, OTHER_TARGET}
        self.before_append: Callable[[Sequence[Append]], None] = lambda appends: None
        self.after_append: Callable[[Sequence[Append]], None] = lambda appends: None
        self.append_count = 0
        self._grown = asyncio.Event()
        self.unreadable: set[int] = set()
        self.at_hand: set[int] = set()
        """Positions of entries that are read without a wait."""

    @property
    def end_position(self) -> int:
        return self.entries[-1].position + self.entries[-1].size if self.entries else LOG_START

    def bounds(self, queue: QueueKey) -> Bounds:
        if queue not in self.queues:
            raise UnknownQueue(str(queue))
        return Bounds(0, max((entry.next_offset for entry in self.entries if entry.queue == queue), default=0))

    async def read(self, queue: QueueKey, offset: int, *, max_bytes: int) -> ReadResult:
        bounds = self.bounds(queue)
        found: list[Entry] = []
        size_bytes = 0
        for entry in self.entries:
            if entry.queue == queue and entry.next_offset > offset and (not found or size_bytes < max_bytes):
                found.append(entry)
                size_bytes += entry.size
        status = ReadStatus.FOUND if found else ReadStatus.AT_END
        return ReadResult(status, found, *bounds, found[-1].next_offset if found else offset)

    async def wait_for(self, queue: QueueKey, offset: int, timeout_ms: int) -> bool:
        assert timeout_ms <= 1000
        if self.bounds(queue).max_offset <= offset:
            self._grown.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._grown.wait()
        return self.bounds(queue).max_offset > offset

    def entry_at_hand(self, position: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.position == position and position in self.at_hand), None)

    async def read_entry(self, position: int) -> Entry:
        for entry in self.entries:
            if entry.position == position and position not in self.unreadable:
                return entry
        raise Corrupt("commitlog", position, "no entry there")

    async def read_entries(self, positions: Sequence[int]) -> list[Entry]:
        return [await self.read_entry(position) for position in positions]

    async def yield_to_loop(self) -> None:
        await asyncio.sleep(0)

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        assert boundary is Boundary.LOWER
        at = (entry.base_offset for entry in self.entries if entry.queue == queue and entry.store_time_ms >= time_ms)
        return next(at, self.bounds(queue).max_offset)

    async def sources_since(self, position: int) -> set[Source]:
        return {source for entry in self.entries if entry.position >= position for source in entry.sources}

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        self.before_append(appends)
        for append in appends:
            self.bounds(append.queue)
        answers = []
        for append in appends:
            position = self.end_position
            base_offset = self.bounds(append.queue).max_offset
            batch = memoryview(record_batch.with_base_offset(append.batch, base_offset))
            record_batch.check(batch)
            now_ms = self._clock.now_ms()
            store_time_ms = max(now_ms, self.entries[-1].store_time_ms if self.entries else 0)
            entry = Entry(
                position, 64 + len(batch), append.queue, "t", base_offset, append.record_count, store_time_ms,
                append.json_values, batch, tuple(append.tag_hashes), tuple(append.delays), tuple(append.sources),
            )  # fmt: skip
            self.entries.append(entry)
            self.levels.append(acks)
            self.observed_ms[position] = now_ms
            self.append_count += 1
            self._grown.set()
            answers.append(Appended(position, base_offset, store_time_ms, acks))
        await asyncio.sleep(0)
        self.after_append(appends)
        return answers

    async def refuse_known(self, appends: Sequence[Append], *, acks: Acks) -> None:
        """Nothing here has an identity."""

    async def accept(self, delays: Sequence[tuple[int, bytes]], *, acks: Acks = Acks.FLUSHED) -> Appended:
        """Accept one batch of schedules for TARGET, each a due time and a value."""
        batch = record_batch.encode([Record(b"key", value, due_ms) for due_ms, value in delays])
        targets = [Delay(due_ms, *TARGET) for due_ms, _ in delays]
        append = Append(queue=TIMER_QUEUE, batch=batch, record_count=len(delays), delays=targets)
        return (await self.append([append], acks=acks))[0]

    def lose_unflushed(self) -> None:
        """What a power cut does to the log: the WRITTEN entries at its end are gone."""
        while self.levels and self.levels[-1] is Acks.WRITTEN:
            self.levels.pop()
            self.entries.pop()

    def delivered(self) -> list[Delivered]:
        """Everything in queues other than the timer's, in log order."""
        found = []
        for entry in self.entries:
            if entry.queue == TIMER_QUEUE:
                continue
            for record in record_batch.decode(entry.batch):
                headers = dict(record.headers)
                due, schedule_id = headers["mq-deliver-at"], headers["mq-schedule-id"]
                assert record.value is not None
                assert due is not None
                assert schedule_id is not None
                found.append(
                    Delivered(
                        entry.queue, record.value, int(due), schedule_id.decode(), self.observed_ms[entry.position],
                        tuple(record.headers),
                    )
                )  # fmt: skip
        return found


async def run_inline(work: Callable[[], None]) -> None:
    """Disk work on the event loop, so that a test decides what happens when."""
    work()


class FakeKeyIndex:
    """Rows of schedule keys that outlive a process: what is committed is durable."""

    def __init__(self) -> None:
        self.reset()

    @property
    def is_used(self) -> bool:
        return self.queue_offset >= 0

    def find(self, keys: Iterable[TopicKey]) -> dict[TopicKey, Source]:
        assert self.is_used
        return {key: self.rows[key].source for key in keys if key in self.rows}

    def commit(self, rows: Mapping[TopicKey, KeyRow], queue_offset: int, *, before_s: int | None) -> None:
        kept = {key: row for key, row in self.rows.items() if before_s is None or row.slot_s >= before_s}
        self.rows = {**kept, **rows}
        self.queue_offset = queue_offset

    def all_rows(self) -> Iterable[tuple[TopicKey, KeyRow]]:
        return list(self.rows.items())

    def reset(self) -> None:
        self.rows: dict[TopicKey, KeyRow] = {}
        self.queue_offset = -1

    def close(self) -> None:
        """There is nothing to release."""


def keyed_append(schedules: Sequence[tuple[int, bytes, bytes | None]]) -> Append:
    """One batch of schedules for TARGET, each a due time, a value, and a schedule key or None."""
    records = [
        Record(b"key", value, due_ms, [] if key is None else [(SCHEDULE_KEY_HEADER, key)])
        for due_ms, value, key in schedules
    ]
    delays = [Delay(due_ms, *TARGET) for due_ms, _, _ in schedules]
    return Append(queue=TIMER_QUEUE, batch=record_batch.encode(records), record_count=len(records), delays=delays)


def make_timer(
    log: FakeLog, disk: SimDisk, clock: Clock, *, key_index: KeyIndex | None = None,
    run_blocking: RunBlocking = run_inline, partitions: OwnPartitions | None = None, **settings: int,
) -> TimerService:  # fmt: skip
    """A timer over fakes. Rolls already after ten seconds unless told otherwise."""
    # A record rolls from the end of what is open on, which so short a window must not be.
    chosen = {"roll_window_ms": 10_000, "open_ahead_ms": 3_000, "timer_log_file_units": 64} | settings
    config = TimerConfig(root=ROOT, **chosen)
    key_index = key_index or FakeKeyIndex()
    partitions = partitions or OwnPartitions(log)
    return TimerService(config, log, disk, clock, partitions=partitions, run_blocking=run_blocking, key_index=key_index)


async def settle(timer: TimerService) -> None:
    """Step the timer until nothing more happens at this time of the clock."""
    while await timer.intake_step() + await timer.firing_step():
        pass


class FailOnce:
    """Raises an error at the next append, before anything is stored."""

    def __init__(self, error: StoreError) -> None:
        self._error: StoreError | None = error

    def __call__(self, appends: Sequence[Append]) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

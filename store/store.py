"""The store: one commit log and its consume queues, wired together.

    append ──> Writer ──> CommitLog ──(durable at its level)──> _publish ──┬─ consume queues
                                                                           ├─ tail in memory
                                                                           └─ waiting readers

Opening is recovery: the log is scanned from the checkpoint, the tail is cut or refused (store/log/recovery.py), consume
queues are brought up to date by the same `append` that live records use, then the topic table is rebuilt from `__meta`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Unpack

import orjson

from store.ahead import AHEAD_MS, AheadTable
from store.clock import Clock, SystemClock
from store.config import StoreConfig
from store.data_format import check_format, raise_format
from store.dedup.idempotency import Idempotency
from store.dedup.moved import (
    PART_BYTES_MAX,
    Leaving,
    decode_part,
    encode_part,
    first_part,
    first_producers,
    still_known,
)
from store.errors import (
    AlreadyStored,
    Corrupt,
    DiskFull,
    IndexDamaged,
    NoLightQueues,
    PartitionLeft,
    SealedQueue,
    StoreError,
    StoreLocked,
    StoreStopped,
    UnknownQueue,
)
from store.files import BackgroundSync, Files, Lock, OsFiles
from store.index.base import ConsumeQueues, Run, search_time
from store.index.opening import open_consume_queues
from store.light_names import LightNames, LightRow
from store.limits import KiB, MiB
from store.log.commit_log import CommitLog, Group, Span
from store.log.entry import Blank, Damage, Header
from store.log.recovery import Progress, RecoveryReport, recover
from store.log.retention import LogFile, decide_expired
from store.log.writer import Writer, WriterStats
from store.read_ahead import ReadAhead
from store.record_batch import HEADER_BYTES, Record, decode, encode, max_timestamp_ms
from store.snapshot import Snapshot, SnapshotFiles
from store.topic_changes import TopicChanges
from store.topics import (
    APPLIED,
    META_QUEUE,
    MOVED_IDS_QUEUE,
    TIMER_QUEUE,
    Changes,
    Event,
    Topic,
    TopicChoices,
    TopicTable,
    check_config,
    decode_events,
    encode_event,
    partition_of,
)
from store.types import (
    NO_ID,
    OFFSET_MAX,
    Acks,
    Append,
    Appended,
    Boundary,
    Bounds,
    Entry,
    ExportedIds,
    Identity,
    LightRead,
    LightRecord,
    LightWake,
    QueueKey,
    ReadResult,
    ReadStatus,
    Source,
)
from store.uncancelled import to_its_end
from store.watching import watch

if TYPE_CHECKING:
    from store.index.light import LightRows  # loads the database

log = logging.getLogger(__name__)

TOLD_BYTES_MAX = 4 * KiB
"""Of an entry whose records are told to those who watch their light queues; those of a larger one are looked up. It is
held until it is pushed, also by who is in no hurry."""

UNITS_PER_LOOK_UP = 4096
"""Index units looked at in one step of a read."""

INLINE_READ_BYTES_MAX = 1 * MiB
"""Bytes of the log that the event loop reads itself, when the system has them in memory: a thread's turn costs more."""

UNITS_PER_READ_MAX = 16 * UNITS_PER_LOOK_UP
"""Index units a filtered read passes over before it answers that nothing matched so far."""

TAIL_KEPT_S = 20.0
"""So long, and at most twice as long, entries are kept in memory for readers at the tail."""

TAIL_ENTRIES_PER_STEP = 256
"""Of those that are freed then, in one turn of the event loop."""

FLUSHED_FILE_LOG_BYTES = 16 * KiB
"""What writing one file of the index at a checkpoint may cost, in bytes of the log: it dirties a page, an inode and its
share of the journal. The log grows by so much more for each before the next checkpoint is due by its size."""

FLUSH_PAUSES_S = 0.25
FLUSH_PAUSES_SHARE = 0.2
FLUSH_PAUSES_S_MAX = 1.0
"""How long a flush of the index in RocksDB may pause for the event loop: for rows of light queues, and again for those
of partitions. So much of the time since the last one, as what comes in must not get ahead of it, but this at least and
at most: a stop, and the deletion of a topic, wait for one that is under way."""

YIELD_TURNS_MAX = 5
YIELD_S_MAX = 250e-6
"""How many turns of the event loop work in the background gives at most to appends under way, and how long: a loop that
has much to do in each turn goes through them anyway, and what is due must not wait for all of it."""

LIGHT_ENTRIES_PER_STEP = 256
"""Entries whose rows of light queues are freed in one step, before the log file that they are in goes."""

LIGHT_FORMAT = 3
"""The version of a data directory whose log may name light queues."""

CHECKPOINT_STEPS_MAX = 4
"""Times `checkpoint_log_bytes` that the log may grow by at most; what recovery may have to scan."""


def flush_pauses_s(passed_s: float) -> float:
    """How long the pauses of a flush may take, so long after the last one."""
    return min(max(FLUSH_PAUSES_S, FLUSH_PAUSES_SHARE * passed_s), FLUSH_PAUSES_S_MAX)


class Store:
    """One data directory. Made by `open`; belongs to the event loop that opened it."""

    def __init__(self, config: StoreConfig, files: Files, clock: Clock, executor: Executor | None) -> None:
        self.config = config
        self._files = files
        self._clock = clock
        self._owned_executors: list[ThreadPoolExecutor] = []
        self._write_executor = executor or self._own_executor("write", 1)
        self._flush_executor = executor or self._own_executor("flush", 1)
        self._prepare_executor = executor or self._own_executor("prepare", 1)
        self._index_executor = executor or self._own_executor("index", 1)
        self._read_executor = executor or self._own_executor("read", 4)
        self._topics = TopicTable()
        self.appended: dict[int, list[int]] = {}
        """Records and bytes that became readable since the start, by topic id."""

        self._tail: dict[int, Entry] = {}
        self._tail_order: deque[Entry] = deque()
        self._tail_bytes = 0
        self._read_ahead = ReadAhead(self._runs_from, self._cached, self._tail.__contains__)
        self._waiters: dict[QueueKey, list[asyncio.Future[None]]] = {}
        self._watching: dict[int, dict[object, Callable[[Mapping[QueueKey, int]], None]]] = {}  # by topic id
        self._told: dict[QueueKey, Entry] = {}  # what watchers were told of last, of one group: they will read it next
        self._followed: set[QueueKey] = set()  # read near their ends since the tail was looked at, every TAIL_KEPT_S
        self._followed_before: set[QueueKey] = set()
        self._published_position = 0
        self._closing = False
        self._last_store_time_ms = 0
        self._topic_changes = TopicChanges(self._write_topic_events)
        self._sealing_one = asyncio.Lock()
        self._sealing: QueueKey | None = None
        self._saving = asyncio.Lock()
        self._meta_offset = 0  # records of `__meta` before it are in the topic table
        self._snapshot_offset = 0  # ... and in the saved snapshot
        self._log_start = 0  # retention has given up everything before it
        self._saved_log_start = 0
        self._has_light_format = False  # the directory says that its log may name light queues
        self._light_watching: dict[tuple[QueueKey, bytes], dict[object, LightWake]] = {}
        self._idempotency = Idempotency(
            config.root,
            files,
            window_ms=config.dedup_window_ms,
            ids_max=config.dedup_ids_max,
            producer_expiry_ms=config.producer_expiry_ms,
            producers_max=config.producers_max,
        )
        self._ahead = AheadTable()
        self._pins: list[Callable[[], int]] = []
        self._newest_ms: dict[int, int] = {}  # of full log files, by start
        self._hidden_until: dict[QueueKey, int] = {}  # min offsets of topics with a retention of their own
        self._tasks: list[asyncio.Task[None]] = []
        self._log: CommitLog
        self._queues: ConsumeQueues
        self._writer: Writer
        self._background: BackgroundSync | None
        self._lock: Lock
        self._meta_snapshots: SnapshotFiles
        self.recovery: RecoveryReport

    def _own_executor(self, role: str, thread_count: int) -> Executor:
        made = ThreadPoolExecutor(thread_count, thread_name_prefix=f"mq-{role}")
        self._owned_executors.append(made)
        return made

    # ---- opening and closing -------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        config: StoreConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        executor: Executor | None = None,
        progress: Progress | None = None,
    ) -> Store:
        """Open a data directory, creating it if need be; recover it if it was not closed.

        `executor` replaces the store's own threads (tests run everything inline). `progress` is called from a thread
        with bytes scanned and bytes to scan at most. Raises StoreLocked when another
        process has it open, Corrupt when stored bytes that had been durable are damaged: nothing is changed then.
        """
        store = cls(config, files or OsFiles(), clock or SystemClock(), executor)
        try:
            await asyncio.get_running_loop().run_in_executor(store._index_executor, store._recover, progress)
        except BaseException:
            store._shut_down_executors()
            raise
        for queue in store._topics.stated_queues():
            store._hide_given_up(queue)
        store._start()
        await store._hide_expired(store._topics.all())
        return store

    def _recover(self, progress: Progress | None) -> None:
        """Blocking part of `open`."""
        config, files = self.config, self._files
        files.make_dirs(config.root)
        try:
            self._lock = files.lock(config.root)
        except BlockingIOError as error:
            raise StoreLocked(f"{config.root} is in use by another process") from error
        try:
            check_format(config.root, files)
        except BaseException:
            self._lock.close()
            raise
        self._log = CommitLog(
            config.root / "commitlog",
            files,
            file_bytes=config.commit_log_file_bytes,
            extent_bytes=config.extent_bytes,
            disk_floor_bytes=config.disk_floor_bytes,
        )
        try:
            self._log.open()
            self._meta_snapshots = SnapshotFiles(config.root, "meta", files)
            snapshot = self._meta_snapshots.load()
            fields = {} if snapshot is None else orjson.loads(snapshot.content)
            self._idempotency.load(fields.get("repeats", {}))
            self._ahead.restore(fields.get("ahead", ()))
            self._replay_log(progress)
            self._load_topics(snapshot)
        except BaseException:
            self._log.close()
            self._lock.close()
            raise
        if self.recovery.entry_count or self.recovery.cut_bytes:
            log.info("recovered data_dir=%s %s", config.root, self.recovery)

    def _replay_log(self, progress: Progress | None) -> None:
        """Open the index and bring it up to date; build it again from the whole log when it is damaged."""
        try:
            self._recover_log(rebuild=False, progress=progress)
        except IndexDamaged as damage:
            log.warning("building the consume queues again data_dir=%s reason=%s", self.config.root, damage)
            self._recover_log(rebuild=True, progress=progress)
            self._queues.finish_rebuild()
        self._published_position = self._log.end_position

    def _recover_log(self, *, rebuild: bool, progress: Progress | None) -> None:
        self._queues = open_consume_queues(
            self.config, self._files, first_position=self._log.first_position, rebuild=rebuild
        )
        checkpoint = self._queues.checkpoint
        self._ahead.cut(self._queues.max_offset)
        self._load_moved_ids()
        before_bytes = self._idempotency.catch_up(
            self._log, checkpoint, self._clock.now_ms(), progress, also=self._see_date
        )

        def tell(done_bytes: int, total_bytes: int) -> None:
            if progress is not None:
                progress(before_bytes + done_bytes, before_bytes + total_bytes)

        self.recovery = recover(
            self._log,
            checkpoint,
            self._replay,
            durable_position=self._queues.durable_position,
            progress=tell,
        )

    def _load_moved_ids(self) -> None:
        """The ids of the window that came with partitions, from the entries that the index has already."""
        bounds = self._queues.bounds(MOVED_IDS_QUEUE)
        search = search_time(bounds, self._clock.now_ms() - self.config.dedup_window_ms, Boundary.LOWER)
        try:
            offset = next(search)
            while True:
                offset = search.send(self._moved_ids_entry(offset).store_time_ms)
        except StopIteration as found:
            for offset in range(min(int(found.value), bounds.max_offset), bounds.max_offset):
                self._idempotency.apply_moved_ids(self._moved_ids_entry(offset))

    def _moved_ids_entry(self, offset: int) -> Entry:
        [run] = self._queues.runs(MOVED_IDS_QUEUE, offset, 1)
        entry = self._log.read_entry(run.position)
        _check_runs(MOVED_IDS_QUEUE, [run], [entry])
        return entry

    def _replay(self, entries: Sequence[Header | Entry]) -> None:
        of_queue: dict[QueueKey, list[Header | Entry]] = {}
        queue: QueueKey | None = None
        add: Callable[[Header | Entry], None]
        for entry in entries:
            if isinstance(entry, Entry) and entry.identity is not None:
                self._idempotency.apply(entry, is_durable=True)  # it will be, before anything is shown or saved
            self._see_date(entry)
            if entry.queue is not queue:  # neighbours in the log are often of one queue, and share the key then
                queue = entry.queue
                add = of_queue.setdefault(queue, []).append
            add(entry)
        for queue, its_entries in of_queue.items():
            self._queues.extend(queue, its_entries)
        self._last_store_time_ms = max(self._last_store_time_ms, entries[-1].store_time_ms)

    def _see_date(self, entry: Header | Entry) -> None:
        """Take note of an entry that is dated ahead; in the order of the log, once or again."""
        dated_ms = max_timestamp_ms(entry.batch) if isinstance(entry, Entry) else entry.dated_ms
        store_time_ms = entry.store_time_ms
        if dated_ms - store_time_ms > AHEAD_MS:
            self._ahead.add(
                entry.queue, entry.base_offset, entry.next_offset, store_time_ms=store_time_ms, dated_ms=dated_ms
            )

    def _load_topics(self, snapshot: Snapshot | None) -> None:
        """The topic table: the last snapshot, and the records of `__meta` behind it."""
        if snapshot is not None:
            fields = orjson.loads(snapshot.content)
            self._topics.restore(fields)
            self._log_start = self._saved_log_start = fields["log_start"]
            self._last_store_time_ms = max(self._last_store_time_ms, fields["store_time_ms"])
            self._meta_offset = self._snapshot_offset = snapshot.next_offset
        if self._log.first_position > self._log_start:
            raise Corrupt(self._log.path_of(self._log_start), self._log_start, "the first log file is missing")
        given_up = self._log.file_start(min(self._log_start, self._log.end_position))
        if self._log.first_position < given_up:
            # A crash came between giving up a file and its removal: units and rows of it may be gone already.
            self._queues.advance_min(given_up)
        bounds = self._queues.bounds(META_QUEUE)
        if self._meta_offset < bounds.min_offset:
            path = str(self.config.root / "meta.0")
            raise Corrupt(path, 0, f"no snapshot of the topics reaches the first kept record, {bounds.min_offset}")
        while self._meta_offset < bounds.max_offset:
            count = min(UNITS_PER_LOOK_UP, bounds.max_offset - self._meta_offset)
            for run in self._queues.runs(META_QUEUE, self._meta_offset, count):
                entry = self._log.read_entry(run.position)
                _check_runs(META_QUEUE, [run], [entry])
                try:
                    for event in decode_events(record.value for record in decode(entry.batch)):
                        self._topics.apply(event)
                except ValueError as error:
                    raise Corrupt(self._log.path_of(entry.position), entry.position, str(error)) from error
                self._meta_offset = entry.next_offset
        for topic_id in self._queues.topic_ids():
            if topic_id not in self._topics:
                self._queues.drop_topic(topic_id)  # deleted; recovery may have met its records
                self._ahead.drop_topic(topic_id)

    def _start(self) -> None:
        self._background = self._files.background_sync()
        self._queues.pauses_s = FLUSH_PAUSES_S
        self._writer = Writer(
            self._log,
            self.config,
            self._clock,
            executor=self._write_executor,
            flush_executor=self._flush_executor,
            background=self._background,
            prepare_executor=self._prepare_executor,
            next_offset_of=lambda queue: self._queues.max_offset(queue),
            light_ends_of=self._light_ends_for_append,
            topic_name_of=self._name_for_append,
            publish=self._publish,
            is_followed=self._is_followed,
            last_store_time_ms=self._last_store_time_ms,
        )
        self._tasks = [
            asyncio.create_task(self._writer.run(), name="mq-store-writer"),
            asyncio.create_task(self._checkpoint_now_and_then(), name="mq-store-checkpoint"),
            asyncio.create_task(self._expire_now_and_then(), name="mq-store-retention"),
            asyncio.create_task(self._forget_old_tail(), name="mq-store-tail"),
        ]
        for task in self._tasks:
            task.add_done_callback(_log_failure)

    async def close(self) -> None:
        """Write what waits, flush everything, move the checkpoint to the end. A later `open` scans nothing."""
        writer, *periodic = self._tasks
        self._writer.stop()
        await asyncio.wait([writer])
        for task in periodic:
            task.cancel()
        await asyncio.wait(periodic)
        self._closing = True
        self._read_ahead.forget()
        self._queues.pauses_s = 0
        self._wake_all()
        try:
            if self._writer.failure is None:
                await self._save_checkpoint()
        finally:
            self._shut_down_executors()  # before the files: a thread may still be zeroing an extent
            if self._background is not None:
                self._background.close()
            self._queues.close()
            self._log.close()
            self._lock.close()

    def _shut_down_executors(self) -> None:
        for executor in self._owned_executors:
            executor.shutdown()

    async def watch(self) -> None:
        """Return when the store was closed; raise if one of its tasks died of anything but a disk error.

        A disk error leaves the process up: reads go on, appends raise StoreStopped (see `failure`).
        """
        waiting = set(self._tasks)
        while waiting:
            finished, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                if not task.cancelled() and (error := task.exception()) and not isinstance(error, StoreError):
                    raise error

    # ---- topics --------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, partitions: int, **choices: Unpack[TopicChoices]) -> tuple[Topic, bool]:
        """The topic, and whether it was made now. Durable on return. Raises IllegalTopic, TopicExists, and what
        `append` raises."""
        if (config := choices.get("config")) is not None:
            check_config(config, retention_ms_max=self.config.retention_ms)
        return await self._topic_changes.make(
            lambda before: self._topics.decide_create(name, partitions, self._clock.now_ms(), before=before, **choices),
            creates=name,
        )

    async def put_topic(self, wanted: Topic) -> Topic:
        """Have a topic that was made elsewhere, under its id, with its partitions and configuration; another one of its
        name is deleted. Durable on return. Raises IllegalTopic when it has more partitions here, and what `append`
        raises."""
        with suppress(UnknownQueue):
            if self.topic(wanted.name).topic_id != wanted.topic_id:
                await self.delete_topic(wanted.name)
        while True:
            topic, is_new = await self._topic_changes.make(lambda _: self._topics.decide_put(wanted))
            if not is_new:
                return topic
            await self._in_force(topic)

    async def configure_topic(self, name: str, changes: Changes) -> tuple[Topic, bool]:
        """The topic with other choices (names of TopicConfig; None takes one back), and whether that changed it.
        Durable and in force on return. Raises UnknownQueue, IllegalTopic, and what `append` raises."""
        check_config(self.topic(name).config.changed(changes), retention_ms_max=self.config.retention_ms)
        topic, is_new = await self._topic_changes.make(lambda _: self._topics.decide_configure(name, changes))
        if is_new:
            await self._in_force(topic)
        return topic, is_new

    async def _in_force(self, topic: Topic) -> None:
        """Hide what the topic's configuration says is over, and nothing else."""
        for queue in self._topics.queues_of(topic):
            self._hidden_until.pop(queue, None)
            self._hide_given_up(queue)
        await self._hide_expired([topic])

    async def grow_topic(self, name: str, partitions: int) -> tuple[Topic, bool]:
        """The topic with more partitions, and whether that changed it. Raises UnknownQueue, IllegalTopic, and what
        `append` raises."""
        return await self._topic_changes.make(lambda _: self._topics.decide_grow(name, partitions))

    async def delete_topic(self, name: str) -> Topic:
        """Delete a topic and forget its records; readers that wait get UnknownQueue. Durable on return. Raises
        UnknownQueue, IllegalTopic, and what `append` raises."""
        return await to_its_end(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> Topic:
        queues = self._topics.queues_of(self.topic(name))
        topic, _ = await self._topic_changes.make(lambda _: self._topics.decide_delete(name))
        async with self._saving:  # no flush may be under way
            self._queues.drop_topic(topic.topic_id)
        self._ahead.drop_topic(topic.topic_id)
        self.appended.pop(topic.topic_id, None)
        for queue in queues:
            self._hidden_until.pop(queue, None)
        await self._save_checkpoint()
        for queue in [queue for queue in self._waiters if queue.topic_id == topic.topic_id]:
            _wake(self._waiters.pop(queue))
        for key in [key for key in self._light_watching if key[0].topic_id == topic.topic_id]:
            self._wake_light(key, None)
        for wake in list(self._watching.get(topic.topic_id, {}).values()):
            wake({})
        return topic

    async def _write_topic_events(self, events: Sequence[Event]) -> Sequence[Topic]:
        now_ms = self._clock.now_ms()
        batch = encode([Record(None, encode_event(event), now_ms) for event in events])
        append = Append(queue=META_QUEUE, batch=batch, record_count=len(events), json_values=True)
        [appended] = await self.append([append], acks=Acks.FLUSHED)
        topics = [self._topics.apply(event) for event in events]
        self._meta_offset = appended.base_offset + len(events)
        return topics

    # ---- queues --------------------------------------------------------------------------------------------------

    async def create_queue(self, queue: QueueKey) -> None:
        """Have a further queue of a topic, for a segment of a partition; one that is there stays. Durable on return.
        Raises UnknownQueue, IllegalTopic, and what `append` raises."""
        await self._topic_changes.make(lambda _: self._topics.decide_create_queue(queue))

    async def seal_queue(self, queue: QueueKey) -> int:
        """Have a queue take no more records: appends that were accepted before are stored, later ones raise
        SealedQueue. Returns where it ends. Durable on return, and answered again as it was. On an error it is open.
        Raises UnknownQueue, IllegalTopic for a system topic, and what `append` raises."""
        return await to_its_end(self._seal_queue(queue))

    async def _seal_queue(self, queue: QueueKey) -> int:
        async with self._sealing_one:
            self._topics.of_queue(queue)
            self._sealing = queue
            try:
                if self._writer.next_offset(queue) > self._queues.max_offset(queue):
                    await self._writer.append((), Acks.WRITTEN)  # what was accepted before is published behind it
                await self._topic_changes.make(
                    lambda _: self._topics.decide_seal(queue, self._queues.max_offset(queue))
                )
            finally:
                self._sealing = None
        end_offset = self._topics.state_of(queue).end_offset
        assert end_offset is not None
        return end_offset

    async def export_ids(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> ExportedIds:
        """The next part of what is remembered of sends to the partition of `queue`, at positions from `since` on, for
        `import_ids` of the store that it moves to: the ids of the window, and its producers' numbers. Only of what no
        power cut takes. `into` is the queue in which the partition goes on; an offset of `queue` plus `shift` is one of
        the partition. With `since` OFFSET_MAX all producers' numbers, and nothing else. Raises UnknownQueue, Corrupt,
        and what `append` raises."""
        self._topics.of_queue(queue)
        leaving = Leaving(queue=queue, into=into, shift=shift, since=since)
        if self._topics.state_of(queue).end_offset is None:  # else all of it is before the durable entry that says so
            await self._writer.append((), Acks.FLUSHED)
        until = min(self._published_position, self._log.durable_position)
        now_ms = self._clock.now_ms()
        if self._idempotency.is_saved(since):
            async with self._saving:  # nothing changes places meanwhile
                loop = asyncio.get_running_loop()
                own = await loop.run_in_executor(self._index_executor, self._idempotency.saved_rows, leaving, now_ms)
                own += self._idempotency.unsaved_rows(leaving, until)
        else:
            own = self._idempotency.unsaved_rows(leaving, until)
        oldest_ms = now_ms - self.config.dedup_window_ms
        found = [(row.position, [row]) for row in own]
        for entry in await self.read_entries(self._idempotency.moved_positions(leaving)):
            parts = [decode_part(record.value or b"") for record in decode(entry.batch)]
            found.append((entry.position, [row for part in parts for row in still_known(part, oldest_ms=oldest_ms)]))
        bytes_max = min(PART_BYTES_MAX, self.config.entry_bytes_max // 2)
        rows, following = first_part(sorted(found, key=itemgetter(0)), bytes_max=bytes_max)
        producers = self._idempotency.leaving_producers(leaving, until)
        if since < OFFSET_MAX:
            producers, following = first_producers(producers, before=following)
        if following is not None:
            return ExportedIds(encode_part(rows, producers), following, is_last=False)
        content = encode_part(rows, producers) if rows or producers else b""
        return ExportedIds(content, until, is_last=True)

    async def import_ids(self, content: bytes) -> None:
        """Remember what another store has told of a partition that moves here (`export_ids`). Durable and in force on
        return; said again, it changes nothing. Raises MalformedBatch, TooManyIds, and what `append` raises."""
        now_ms = self._clock.now_ms()
        content = self._idempotency.new_part(content, now_ms)
        if not content:
            return
        append = Append(
            queue=MOVED_IDS_QUEUE,
            batch=encode([Record(None, content, now_ms)]),
            record_count=1,
            identity=Identity(message_ids=[NO_ID]),  # entries with one are shown to `Idempotency.apply`
        )
        await self._writer.append([append], Acks.FLUSHED)

    async def expire_queue(self, queue: QueueKey, before_offset: int) -> None:
        """Give up the records of a queue before an offset: from the return on none is returned to a reader, durably.
        Their bytes go with the log files they are in. Raises UnknownQueue, IllegalTopic, and what `append` raises."""
        await self._topic_changes.make(
            lambda _: self._topics.decide_expire(queue, min(before_offset, self._queues.max_offset(queue)))
        )
        self._hide_given_up(queue)

    def _hide_given_up(self, queue: QueueKey) -> None:
        before_offset = self._topics.state_of(queue).before_offset
        if before_offset > self._hidden_until.get(queue, 0):
            self._hidden_until[queue] = before_offset

    def _name_for_append(self, queue: QueueKey) -> str:
        """The topic of a queue that takes records. Raises UnknownQueue, SealedQueue."""
        name = self._topics.of_queue(queue).name
        if queue == self._sealing or self._topics.state_of(queue).end_offset is not None:
            raise SealedQueue(f"queue {queue.queue_id} of topic {name} takes no more records; send again in a moment")
        return name

    def _light_ends_for_append(self, queue: QueueKey, names: Sequence[bytes]) -> Sequence[int | None]:
        """Where the light queues of a batch to be appended end; None: they have no rows. Raises NoLightQueues,
        DiskFull, StoreStopped, IndexDamaged."""
        self.note_light()
        return self._light_rows().ends(queue, names)

    def note_light(self) -> None:
        """Have programs that know of no light queues refuse the directory from now on. Durable on return. Raises
        NoLightQueues, DiskFull, StoreStopped."""
        self._light_rows()
        if not self._has_light_format:  # once in the life of a directory
            try:
                raise_format(self.config.root, self._files, LIGHT_FORMAT)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise DiskFull(f"no room to note that there are light queues: {error}") from error
                raise StoreStopped(f"could not note that there are light queues: {error}") from error
            self._has_light_format = True

    def _light_rows(self) -> LightRows:
        """Raises NoLightQueues."""
        light = self._queues.light
        if light is None:
            raise NoLightQueues(
                f'an index of the kind "{self.config.index}" keeps no light queues: stop the server, run '
                '`mq index rebuild --to rocksdb`, and set index = "rocksdb"'
            )
        return light

    def topic(self, name: str) -> Topic:
        """Raises UnknownQueue."""
        return self._topics.by_name(name)

    def queues_of(self, topic_id: int) -> list[QueueKey]:
        """The queues of a topic. Raises UnknownQueue."""
        return self._topics.queues_of(self._topics.of_queue(QueueKey(topic_id, 0)))

    @property
    def next_topic_id(self) -> int:
        """The lowest id that no topic has had here."""
        return self._topics.next_id

    def topics(self) -> list[Topic]:
        """All topics, system topics included, by id."""
        return self._topics.all()

    # ---- writing -------------------------------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append], *, acks: Acks | None = None) -> list[Appended]:
        """Append batches, in order, in one group. On return they are as durable as the answers say, and readable.

        `acks` None means the configured level. Raises UnknownQueue, RecordTooLarge, Overloaded, DiskFull: nothing was
        stored; StoreStopped: the outcome is unknown.

        A batch with an identity is stored once, however often it is sent: raises AlreadyStored when a record is known
        (an equal append that is under way is waited for), IdentityReused, SequenceGone, TooManyIds: nothing was stored.
        So does one with an expected offset: raises OffsetMoved when it would get another. Of several batches for one
        queue only the first can have one.
        """
        if acks is None:
            acks = self.config.acks
        for append in appends:
            if append.identity is not None:
                return await self._append_once(appends, acks)
        return await self._writer.append(appends, acks)

    def begin_append(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        """As `append`; the place of new batches among all appends is taken on return. Raises at once UnknownQueue,
        RecordTooLarge, Overloaded, StoreStopped, and for batches with an identity IdentityReused, SequenceGone,
        TooManyIds: nothing was stored. AlreadyStored is the future's."""
        for append in appends:
            if append.identity is not None:
                return self._begin_once(appends, acks)
        return self._writer.append(appends, acks)

    def hold_writes(self) -> None:
        """Appends that are begun before `write_held`, in the same turn of the event loop, go to the log together."""
        self._writer.hold()

    def write_held(self, meanwhile: Callable[[], None] | None = None, *, caller_count: int = 1) -> None:
        """Write what was begun at once, if its callers ask for no sync and the log is free: it is answered on return
        then. `meanwhile` is called while the disk works for it, if it does, before it is answered; it must not
        raise. `caller_count`: how many wait for it, and may soon send again."""
        self._writer.write_held(meanwhile, caller_count=caller_count)

    def when_gathered(self, call: Callable[[], None]) -> bool:
        """Whether the next write waits for those whom the last sync has answered. If so `call` is called before it,
        once: what comes until then may be appended together. It must not raise."""
        return self._writer.when_gathered(call)

    def next_offset(self, queue: QueueKey) -> int:
        """The offset that the next record gets, if all that is under way is stored."""
        return self._writer.next_offset(queue)

    def _begin_once(self, appends: Sequence[Append], acks: Acks) -> asyncio.Future[list[Appended]]:
        """As `_append_once`, begun on return when all is new."""
        idempotency, now_ms = self._idempotency, self._clock.now_ms()
        if len(appends) == 1 and (following := idempotency.following(appends[0], now_ms)) is not None:
            return self._begin_new((following,), acks)
        new = idempotency.resolved(appends, now_ms)
        if not idempotency.in_flight(new):
            try:
                idempotency.check(new, now_ms)
            except AlreadyStored:
                pass  # said by the answer, as it may have to wait for the disk
            else:
                return self._begin_new(new, acks)
        return asyncio.ensure_future(self._append_once(appends, acks))

    def _begin_new(self, appends: Sequence[Append], acks: Acks) -> asyncio.Future[list[Appended]]:
        self._refuse_left(appends)
        outcome = self._writer.append(appends, acks)
        self._idempotency.begin(appends, outcome)
        return outcome

    async def refuse_known(self, appends: Sequence[Append], *, acks: Acks) -> None:
        """Raise what `append` would raise now for the identities of these batches (AlreadyStored, IdentityReused,
        SequenceGone, TooManyIds), if anything. For who has no room for what is new, and yet answers a repeat."""
        await self._only_new(appends, acks)

    async def _only_new(self, appends: Sequence[Append], acks: Acks) -> Sequence[Append]:
        """As `refuse_known`; the batches as they are to be appended in this turn of the event loop."""
        idempotency = self._idempotency
        new = idempotency.resolved(appends, self._clock.now_ms())
        while waiters := idempotency.in_flight(new):
            await asyncio.wait(waiters)
            new = idempotency.resolved(appends, self._clock.now_ms())
        try:
            idempotency.check(new, self._clock.now_ms())
        except AlreadyStored as known:
            if acks is Acks.FLUSHED and known.last_position >= self._log.durable_position:
                await self._writer.append((), Acks.FLUSHED)  # the originals were only written
            raise
        return new

    async def _append_once(self, appends: Sequence[Append], acks: Acks) -> list[Appended]:
        outcome = self._begin_new(await self._only_new(appends, acks), acks)  # in the turn of its check
        return await asyncio.shield(outcome)  # who gives up waiting does not end what is under way

    def _refuse_left(self, appends: Sequence[Append]) -> None:
        """Raise PartitionLeft for delayed records with an identity of a partition that has moved away: `export_ids`
        has been asked for it already, and a repeat at its new place would not find them."""
        for append in appends:
            if append.queue == TIMER_QUEUE:
                for partition in {QueueKey(delay.topic_id, delay.partition) for delay in append.delays}:
                    is_sealing = self._sealing is not None and partition_of(self._sealing) == partition
                    if is_sealing or self._topics.has_left(partition):
                        topic_id, number = partition
                        raise PartitionLeft(f"partition {number} of topic id {topic_id} moves; send again in a moment")

    @property
    def files(self) -> Files:
        """The file system of the data directory."""
        return self._files

    @property
    def failure(self) -> StoreError | None:
        """Why appends are refused for good; None while all is well."""
        return self._writer.failure

    @property
    def stats(self) -> WriterStats:
        """What the writer has done since the start."""
        return self._writer.stats

    @property
    def remembered(self) -> tuple[int, int]:
        """Ids of recent sends, and numbered producers (a pair with each queue), that are remembered."""
        return self._idempotency.id_count, self._idempotency.producer_count

    @property
    def light_counts(self) -> tuple[int, int]:
        """Rows of light queues that came since the start, and bytes of those that are in memory."""
        light = self._queues.light
        return (0, 0) if light is None else (light.added_count, light.pending_bytes)

    @property
    def waiting_bytes(self) -> int:
        """Bytes accepted and not yet written."""
        return self._writer.waiting_bytes

    def _publish(self, entries: Sequence[Entry]) -> None:
        """Make entries visible: they are as durable as their senders asked for."""
        for entry in entries:
            if entry.queue.topic_id not in self._topics:
                continue  # the topic was deleted while the append was under way
            self._queues.append(entry)
            self._see_date(entry)
            counted = self.appended.get(entry.queue.topic_id)
            if counted is None:
                counted = self.appended[entry.queue.topic_id] = [0, 0]
            counted[0] += entry.record_count
            counted[1] += entry.size
            if entry.identity is not None:
                self._idempotency.apply(entry, is_durable=entry.position < self._log.durable_position)
            if entry.queue.topic_id not in APPLIED and _is_whole(entry):
                self._remember(entry)
        if entries:
            self._published_position = entries[-1].position + entries[-1].size
        if self._waiters:
            for entry in entries:
                if waiting := self._waiters.pop(entry.queue, None):
                    _wake(waiting)
        if self._light_watching:
            for entry in entries:
                if entry.light is not None:
                    self._tell_light(entry, entry.light)
        if self._watching:
            self._tell_watching(entries)

    def _tell_watching(self, entries: Sequence[Entry]) -> None:
        ends: dict[int, dict[QueueKey, int]] = {}
        told = self._told = {}
        for entry in entries:
            if entry.queue.topic_id in self._watching:
                ends.setdefault(entry.queue.topic_id, {})[entry.queue] = entry.next_offset
                if _is_whole(entry):
                    told[entry.queue] = entry
        for topic_id, own in ends.items():
            for wake in list(self._watching[topic_id].values()):
                wake(own)

    def _is_followed(self, queue: QueueKey) -> bool:
        """Whether someone waits for what a queue gets, or has read near its end lately: others read it from the log's
        files, which the system's cache has."""
        return (
            queue in self._followed
            or queue in self._followed_before
            or queue in self._waiters
            or queue.topic_id in self._watching
        )

    def _remember(self, entry: Entry) -> None:
        self._tail[entry.position] = entry
        self._tail_order.append(entry)
        self._tail_bytes += entry.size
        while self._tail_bytes > self.config.tail_bytes_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = self._tail_order.popleft()
        del self._tail[oldest.position]
        self._tail_bytes -= oldest.size

    async def _forget_old_tail(self) -> None:
        """Give memory back: what follows the log closely has long read these, and the system's cache has them."""
        while True:
            old_end = self._published_position
            await asyncio.sleep(TAIL_KEPT_S)
            self._read_ahead.forget()
            self._told = {}
            self._followed_before, self._followed = self._followed, set()
            count = 0
            while self._tail_order and self._tail_order[0].position < old_end:
                self._forget_oldest()
                count += 1
                if count % TAIL_ENTRIES_PER_STEP == 0:
                    await asyncio.sleep(0)

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def log_bytes(self) -> int:
        """How long the log is."""
        return self._log.end_position - self._log.first_position

    def bounds(self, queue: QueueKey) -> Bounds:
        """Raises UnknownQueue."""
        self._topics.of_queue(queue)
        bounds = self._queues.bounds(queue)
        if self._hidden_until and (low := self._hidden_until.get(queue, 0)) > bounds.min_offset:
            return Bounds(low, bounds.max_offset)
        return bounds

    @property
    def end_position(self) -> int:
        """The end of what has been published."""
        return self._published_position

    async def read(
        self,
        queue: QueueKey,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        """Whole entries from the one that holds `offset` on: at least one if there is any, then up to `max_bytes`, and
        none that begins at or behind `end_offset`.

        With `tag_hashes`, entries without any record of such a tag are passed over in the index, the log is not read
        for them; an entry that is returned may hold other records too, and tags of equal hash. The bounds are of one
        moment. Raises UnknownQueue, Corrupt.
        """
        bounds = self.bounds(queue)
        if not bounds.min_offset <= offset < bounds.max_offset:
            if offset == bounds.max_offset:
                self._followed.add(queue)
            return _nothing(bounds, offset)
        told = self._told.get(queue)
        if (
            told is not None
            and told.base_offset <= offset
            and told.next_offset == bounds.max_offset
            and tag_hashes is None
        ):
            return ReadResult(ReadStatus.FOUND, [told], *bounds, bounds.max_offset)
        end = bounds.max_offset if end_offset is None else min(bounds.max_offset, max(end_offset, offset + 1))
        runs: list[Run] = []
        total_bytes = 0
        at = offset
        known = self._read_ahead.runs_from(queue, offset) if tag_hashes is None else ()
        while at < end and (total_bytes < max_bytes or not runs):
            if known:
                found, step = [run for run in known if run.offset < end], known[-1].offset - at
                known = ()
            else:
                step = min(UNITS_PER_LOOK_UP, end - at)
                found = self._queues.runs(queue, at, step, tag_hashes)
            for run in found:
                if runs and run.position == runs[-1].position:
                    continue  # an entry that began in the step before
                if runs and total_bytes + run.size > max_bytes:
                    total_bytes = max_bytes
                    break
                runs.append(run)
                total_bytes += run.size
            at = min(at + step, end)
            if not runs and at - offset >= UNITS_PER_READ_MAX:
                break
        low, high = bounds
        if not runs:
            return ReadResult(ReadStatus.NO_MATCH, [], low, high, min(at, high))
        try:
            entries = await self._entries(queue, runs)
        except Corrupt:
            if runs[0].position >= self._log.first_position:
                raise
            # Retention removed the file while this waited for a thread. The min offset has risen before that.
            return _nothing(self.bounds(queue), offset)
        is_all = total_bytes < max_bytes  # of what was looked at
        if not is_all:
            self._read_ahead.has_read(queue, offset, entries, max_bytes)
        next_offset = min(at, high) if is_all else entries[-1].next_offset
        return ReadResult(ReadStatus.FOUND, entries, low, high, max(next_offset, entries[-1].next_offset))

    async def _entries(self, queue: QueueKey, runs: Sequence[Run]) -> list[Entry]:
        """Entries from memory where they are, from the log's files otherwise."""
        if runs[-1].position >= self._published_position - self.config.tail_bytes_max:
            self._followed.add(queue)
        remembered = [self._tail.get(run.position) for run in runs]
        if self._read_ahead:
            taken = self._read_ahead.taken
            remembered = [
                taken(run.position) if entry is None else entry for run, entry in zip(runs, remembered, strict=True)
            ]
        missing = [run for run, entry in zip(runs, remembered, strict=True) if entry is None]
        if not missing:
            return [entry for entry in remembered if entry is not None]
        is_small = sum([run.size for run in missing]) <= INLINE_READ_BYTES_MAX
        fetched = self._cached(queue, missing) if is_small else None
        if fetched is None:
            loop = asyncio.get_running_loop()
            fetched = await loop.run_in_executor(self._read_executor, self._log.read_spans, _spans(missing))
            _check_runs(queue, missing, fetched)
        rest = iter(fetched)
        return [entry if entry is not None else next(rest) for entry in remembered]

    def _runs_from(self, queue: QueueKey, offset: int) -> Iterator[Run]:
        """See `read_ahead.RunsOf`."""
        position = -1
        while offset < (end := self.bounds(queue).max_offset):
            count = min(UNITS_PER_LOOK_UP, end - offset)
            for run in self._queues.runs(queue, offset, count):
                if run.position != position:
                    yield run
                position = run.position
            offset += count

    def _cached(self, queue: QueueKey, runs: Sequence[Run]) -> Sequence[Entry] | None:
        """See `read_ahead.ReadAll`."""
        entries = self._log.cached_spans(_spans(runs))
        if entries is not None:
            _check_runs(queue, runs, entries)
        return entries

    async def read_entry(self, position: int) -> Entry:
        """The entry at a position of the log. Raises Corrupt."""
        return (await self.read_entries([position]))[0]

    def entry_at_hand(self, position: int) -> Entry | None:
        """The entry at a position of the log, if it is not large and can be read without a wait; else None. A thread
        that reads many waits for the interpreter's lock after each, where the loop is busy. Raises Corrupt."""
        entry = self._tail.get(position)
        return self._log.cached_entry(position, bytes_max=INLINE_READ_BYTES_MAX) if entry is None else entry

    async def read_entries(self, positions: Sequence[int]) -> list[Entry]:
        """The entries at the given positions, in that order; what is not in memory is read in one go in a thread.
        Raises Corrupt."""
        remembered = [self._tail.get(position) for position in positions]
        missing = [position for position, entry in zip(positions, remembered, strict=True) if entry is None]
        if not missing:
            return [entry for entry in remembered if entry is not None]
        loop = asyncio.get_running_loop()
        rest = iter(await loop.run_in_executor(self._read_executor, self._read_each, missing))
        return [entry if entry is not None else next(rest) for entry in remembered]

    def _read_each(self, positions: Sequence[int]) -> list[Entry]:
        return [self._log.read_entry(position) for position in positions]

    async def yield_to_loop(self) -> None:
        """For work in the background, between two pieces of it: the loop has its turn, and the sync that others wait
        for has the processor. While an append is under way the loop has several turns, if they are short: an
        append takes some from its call to its answer, and would have to wait for a piece of this work in each."""
        if self._background is not None:
            self._background.yield_to_loop()
        given_up_s = time.perf_counter() + YIELD_S_MAX
        await asyncio.sleep(0)
        for _ in range(YIELD_TURNS_MAX - 1):
            if not self._writer.is_awaited or time.perf_counter() >= given_up_s:
                return
            await asyncio.sleep(0)

    def watch_topic(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> Callable[[], None]:
        """Call `wake` with the queues of a topic that have got entries and their new max offsets, once for all that
        become readable together, and with none when the topic is gone, until the answer is called. It must not raise,
        nor use the store."""
        token = object()
        self._watching.setdefault(topic_id, {})[token] = wake

        def call_off() -> None:
            if (watching := self._watching.get(topic_id)) is not None:
                watching.pop(token, None)
                if not watching:
                    del self._watching[topic_id]

        return call_off

    async def wait_for(self, queue: QueueKey, offset: int, timeout_ms: int) -> bool:
        """Wait until the queue's max offset is beyond `offset`; False when `timeout_ms` passed or the store closes."""
        if self.bounds(queue).max_offset > offset:
            return True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while (left_s := deadline - loop.time()) > 0 and not self._closing:
            await self._next_publish(queue, left_s)
            if self.bounds(queue).max_offset > offset:
                return True
        return False

    async def _next_publish(self, queue: QueueKey, timeout_s: float) -> None:
        """Return when the queue gets an entry or goes away, when the store closes, or after the time."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.setdefault(queue, []).append(waiter)
        handle = loop.call_later(timeout_s, _finish, waiter)
        try:
            await waiter
        finally:
            handle.cancel()
            if (waiting := self._waiters.get(queue)) and waiter in waiting:
                waiting.remove(waiter)
                if not waiting:
                    del self._waiters[queue]

    def _wake_all(self) -> None:
        for waiting in self._waiters.values():
            _wake(waiting)

    # ---- light queues --------------------------------------------------------------------------------------------

    def light_bounds(self, queue: QueueKey, name: bytes) -> Bounds:
        """Where a light queue of a partition begins and ends. Min and max of one without records are the partition's
        max: whatever it gets from now on has no lower offset. Raises UnknownQueue, NoLightQueues, IndexDamaged."""
        of_partition = self.bounds(queue)
        found = self._light_rows().bounds(queue, name, of_partition.min_offset)
        return Bounds(of_partition.max_offset, of_partition.max_offset) if found is None else found

    def light_end(self, queue: QueueKey, name: bytes) -> int:
        """The max of `light_bounds`, without a look for the min. Raises as it."""
        of_partition = self.bounds(queue)
        [end] = self._light_rows().ends(queue, [name])
        return of_partition.max_offset if end is None else end

    async def read_light(
        self, queue: QueueKey, name: bytes, offset: int, *, max_records: int, max_bytes: int
    ) -> LightRead:
        """Up to `max_records` records of a light queue from the first one at or behind `offset` on, at least one if
        there is any, then as many as are in up to `max_bytes` of entries. The end is of one moment; a first record
        behind `offset` says that retention took those before, or that the queue was gone meanwhile. Raises
        UnknownQueue, NoLightQueues, Corrupt, IndexDamaged."""
        max_offset = self.light_end(queue, name)
        count = min(max_records, UNITS_PER_LOOK_UP)
        units = self._light_rows().units(queue, name, offset, count) if offset < max_offset else []
        if not units or units[0].partition_offset < self.bounds(queue).min_offset:
            # At the end, or retention took what it asks for. Who follows the queue is never here, not even for the
            # first record, which is behind what it asked for: to look for where a queue begins takes longer than all
            # else.
            bounds = self.light_bounds(queue, name)
            first = max(offset, bounds.min_offset)
            if first >= bounds.max_offset:
                return LightRead([], bounds.max_offset, max(min(offset, bounds.max_offset), bounds.min_offset))
            max_offset = bounds.max_offset
            units = self._light_rows().units(queue, name, first, count)
        runs: list[Run] = []
        total_bytes = 0
        for number, unit in enumerate(units):
            if runs and unit.position == runs[-1].position:
                continue  # its neighbour in the same entry
            if runs and total_bytes + unit.size > max_bytes:
                units = units[:number]
                break
            runs.append(Run(unit.position, unit.size, unit.partition_offset))
            total_bytes += unit.size
        try:
            entries = await self._entries(queue, runs)
        except Corrupt:
            if not runs or runs[0].position >= self._log.first_position:
                raise
            # Retention removed the file while this waited for a thread. The min offset has risen before that.
            bounds = self.light_bounds(queue, name)
            return LightRead([], bounds.max_offset, max(offset, bounds.min_offset))
        found = {entry.position: entry for entry in entries}
        records = []
        for unit in units:
            entry = found[unit.position]
            record_index = unit.partition_offset - entry.base_offset
            if entry.light is None or not entry.light.has(LightRow(record_index, name, unit.offset)):
                raise IndexDamaged(
                    f"the index of light queue {name.decode()} of topic id {queue.topic_id}, queue {queue.queue_id} is "
                    f"damaged at offset {unit.offset}; stop the server and run `mq index rebuild`"
                )
            records.append(LightRecord(unit.offset, entry, record_index))
        return LightRead(records, max_offset, records[-1].offset + 1 if records else max_offset)

    def light_names(self, queue: QueueKey, prefix: bytes, *, after: bytes, count: int) -> list[bytes]:
        """Up to `count` names of light queues of a partition that have rows, behind `after`, in the order of their
        bytes. Some may have no record that retention has left. Raises UnknownQueue, NoLightQueues, IndexDamaged."""
        self._topics.of_queue(queue)
        return self._light_rows().names(queue, prefix, after, count)

    def watch_light(self, queue: QueueKey, name: bytes, wake: LightWake) -> Callable[[], None]:
        """Call `wake` whenever a light queue of a partition has got records, with the record if it is one in a small
        batch, and when its topic is gone, until the answer is called: who is told a record each time has missed none.
        It must not raise, nor use the store. Nothing else is kept of the queue."""
        return watch(self._light_watching, (queue, name), wake)

    def _tell_light(self, entry: Entry, light: LightNames) -> None:
        """A record that is told need not be looked up. Who is told may hold its entry for a while: a small one."""
        names, queue, watching = light.names, entry.queue, self._light_watching
        keys = [(index, key) for index, name in enumerate(names) if (key := (queue, name)) in watching]
        if not keys:
            return
        if entry.size > TOLD_BYTES_MAX:
            for _, key in keys:
                self._wake_light(key, None)
            return
        offsets, records, counts = light.first_offsets, light.first_records(), light.record_counts()
        for index, key in keys:
            is_one = counts[index] == 1
            self._wake_light(key, LightRecord(offsets[index], entry, records[index]) if is_one else None)

    def _wake_light(self, key: tuple[QueueKey, bytes], told: LightRecord | None) -> None:
        for wake in list(self._light_watching.get(key, {}).values()):
            wake(told)

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        """Search by store time; see `store.index.base.search_time`. DATED: where a search by record time begins, which
        then goes on to the first record that is dated so. What is not in memory is read in a thread. Raises
        UnknownQueue, Corrupt."""
        if boundary is Boundary.DATED:
            return await self._first_dated(queue, time_ms)
        search = search_time(self.bounds(queue), time_ms, boundary)
        try:
            offset = next(search)
            while True:
                offset = search.send(await self._store_time_ms(queue, offset))
        except StopIteration as found:
            low, high = self.bounds(queue)
            return min(max(int(found.value), low), high)

    async def _first_dated(self, queue: QueueKey, time_ms: int) -> int:
        others = self._ahead.of_others
        lead_ms = AHEAD_MS if others is None or others.max_ms < time_ms else max(AHEAD_MS, others.lead_ms)
        found = await self.offset_for_time(queue, time_ms - lead_ms, Boundary.LOWER)
        for first, end, lead_ms, max_ms in list(self._ahead.of(queue)):
            if first >= found:
                break
            if max_ms >= time_ms:
                at = max(first, await self.offset_for_time(queue, time_ms - lead_ms, Boundary.LOWER))
                if at < end:  # in or before the stretch: an entry is a stretch's as a whole
                    return min(found, at)
        return found

    async def _store_time_ms(self, queue: QueueKey, offset: int) -> int:
        """When a record was stored; before all times for one that retention has taken meanwhile."""
        if offset < self.bounds(queue).min_offset:
            return -1
        if (known := self._queues.store_time_ms(queue, offset)) is not None:
            return known
        try:
            [entry] = await self._entries(queue, self._queues.runs(queue, offset, 1))
        except Corrupt:
            if offset < self.bounds(queue).min_offset:
                return -1
            raise
        return entry.store_time_ms

    async def sources_since(self, position: int) -> set[Source]:
        """The schedules whose records were delivered by entries at or behind a log position (an entry boundary)."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._read_executor, self._sources_since, position)

    def _sources_since(self, position: int) -> set[Source]:
        return {source for entry in self._scan(position) for source in entry.sources}

    def _scan(self, position: int) -> Iterator[Entry]:
        """All published entries from `position` on. Raises Corrupt."""
        for found in self._log.scan(max(position, self._log.first_position), end=self._published_position):
            if isinstance(found, Damage):
                raise Corrupt(self._log.path_of(found.position), found.position, found.reason)
            if not isinstance(found, Blank):
                yield found

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    async def _checkpoint_now_and_then(self) -> None:
        """Flush indexes and move the checkpoint when enough time has passed or enough log has been written."""
        step_s = min(0.1, self.config.checkpoint_interval_ms / 1000)
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(step_s)
            if self._is_checkpoint_due(passed_s := loop.time() - last):
                self._queues.pauses_s = flush_pauses_s(passed_s)
                await self._save_checkpoint()
                last = loop.time()

    def _is_checkpoint_due(self, passed_s: float) -> bool:
        grown_bytes = self._published_position - self._queues.checkpoint
        if self._queues.light is not None and self._queues.light.is_flush_due:
            return True
        if passed_s >= self.config.checkpoint_interval_ms / 1000:
            return grown_bytes > 0
        step_bytes = self.config.checkpoint_log_bytes
        more_bytes = self._queues.pending_file_count * FLUSHED_FILE_LOG_BYTES
        return grown_bytes >= min(step_bytes + more_bytes, CHECKPOINT_STEPS_MAX * step_bytes)

    async def _save_checkpoint(self) -> None:
        """Make what is derived durable, in this order: log, identities, topic snapshot, indexes, checkpoint.

        Whoever waits may be cancelled; what was begun goes on. Cut off before its thread began, it would take along the
        units it was to write, and the next snapshot would count them.
        """
        await to_its_end(self._save_checkpoint_now())

    async def _save_checkpoint_now(self) -> None:
        async with self._saving:
            until = min(self._published_position, self._log.durable_position)
            flush = self._queues.flush(until)
            saving = None
            is_saved = False
            log_start = self._log_start
            self._ahead.prune(lambda queue: self._queues.bounds(queue).min_offset)
            has_grown = self._published_position > self._queues.checkpoint
            has_changed = self._meta_offset > self._snapshot_offset or log_start > self._saved_log_start
            if has_grown or has_changed or self._meta_snapshots.is_torn or self._idempotency.is_damaged:
                saving = self._idempotency.saving(until, self._clock.now_ms())
            meta_offset = self._meta_offset
            topics = self._topics.captured()
            before = {"log_start": log_start, "store_time_ms": self._writer.last_store_time_ms}
            ahead = self._ahead.rows()

            def save() -> None:
                nonlocal is_saved
                if saving is not None:
                    saving.run()
                    content = orjson.dumps({**before, **topics(), "ahead": ahead, "repeats": saving.marks})
                    self._meta_snapshots.save(Snapshot(meta_offset, content))
                    is_saved = True
                flush.run()

            try:
                await asyncio.get_running_loop().run_in_executor(self._index_executor, save)
            except OSError as error:
                # Derived files only: nothing is lost, recovery starts further back. The next round tries again.
                log.warning("checkpoint failed data_dir=%s error=%s", self.config.root, error)
                return
            finally:
                if saving is not None:
                    saving.finish(is_saved=is_saved)
            flush.finish()
            if saving is not None:
                self._snapshot_offset = meta_offset
                self._saved_log_start = log_start

    # ---- retention -----------------------------------------------------------------------------------------------

    def pin(self, lowest_needed: Callable[[], int]) -> None:
        """Have retention ask, each time it looks, for the lowest log position that is still needed."""
        self._pins.append(lowest_needed)

    async def _expire_now_and_then(self) -> None:
        trouble = ""
        while True:
            await asyncio.sleep(self.config.retention_interval_ms / 1000)
            try:
                await self._hide_expired(self._topics.all())
                await self.expire()
            except (StoreError, OSError) as error:  # nothing is half done: what is left is removed the next time
                if str(error) != trouble:
                    log.warning("retention is tried again: %s", trouble := str(error))
            else:
                trouble = ""

    async def _hide_expired(self, topics: Sequence[Topic]) -> None:
        """Raise the min offsets of topics whose own retention is shorter than the store's."""
        for topic in topics:
            retention_ms = topic.config.retention_ms
            if retention_ms is None:
                continue
            time_ms = self._clock.now_ms() - retention_ms
            for queue in self._topics.queues_of(topic):
                try:
                    low = await self.offset_for_time(queue, time_ms, Boundary.LOWER)
                except StoreError as error:  # the topic is gone, or its readers will be told the same
                    log.warning("retention not applied topic=%s queue=%d error=%s", topic.name, queue.queue_id, error)
                    break
                if not self._is_so_still(topic):  # what is in force now has been seen to meanwhile
                    break
                if low > self._hidden_until.get(queue, 0):
                    self._hidden_until[queue] = low
                await asyncio.sleep(0)

    def _is_so_still(self, topic: Topic) -> bool:
        try:
            now = self._topics.by_name(topic.name)
        except UnknownQueue:
            return False
        return (now.topic_id, now.config) == (topic.topic_id, topic.config)

    async def expire(self, *, file_count_max: int = 1) -> int:
        """Remove up to `file_count_max` log files that are past retention, oldest first; return how many went.

        The checkpoint moves first: neither the topics nor the indexes need what goes, and the snapshot says that it
        goes, so that a log file missing for any other reason is noticed. Then each queue's min offset rises, so that
        no reader is sent to a file that is about to go.
        """
        expired = decide_expired(
            self._log_files(),
            now_ms=self._clock.now_ms(),
            retention_ms=self.config.retention_ms,
            retention_bytes=self.config.retention_bytes,
            # What no flush has covered stays: a power cut may take it, and the log then grows again from before a start
            # of the log that a snapshot has told already.
            pinned_position=min(
                self._published_position, self._log.durable_position, *(lowest_needed() for lowest_needed in self._pins)
            ),
        )[:file_count_max]
        if not expired or self.failure is not None:
            return 0
        self._log_start = expired[-1].end
        await self._save_checkpoint()
        removed = 0
        for file in expired:
            if file.end > min(self._queues.checkpoint, self._saved_log_start):
                break  # the checkpoint could not be saved
            await self._remove_light_rows(file.start, file.end)
            async with self._saving:
                self._queues.advance_min(file.end)
                await asyncio.get_running_loop().run_in_executor(self._index_executor, self._log.remove_first)
            self._newest_ms.pop(file.start, None)
            removed += 1
            log.info("log file expired path=%s", self._log.path_of(file.start))
        return removed

    async def _remove_light_rows(self, start: int, end: int) -> None:
        """Free the rows of a part of the log that is about to go: only it says which they are. Cut off by a crash, it
        is done again before the file goes; where it fails, rows are left that no reader is shown."""
        light = self._queues.light
        if light is None or not light.has_rows:
            return
        loop = asyncio.get_running_loop()
        groups = self._log.scan_groups(start, end=end)
        try:
            while entries := await loop.run_in_executor(self._read_executor, _some_with_light, groups):
                async with self._saving:
                    await loop.run_in_executor(self._index_executor, light.remove, entries)
                await self.yield_to_loop()
        except (StoreError, OSError) as error:
            log.warning("rows of light queues not freed start=%d error=%s", start, error)

    def _log_files(self) -> list[LogFile]:
        """The log's files; a full one is as old as the first record of the file behind it."""
        starts = self._log.starts()
        files = []
        for start, following in pairwise(starts):
            if start not in self._newest_ms:
                if following >= self._published_position:
                    break
                self._newest_ms[start] = self._log.read_entry(following).store_time_ms
            files.append(LogFile(start, following, self._newest_ms[start]))
        if starts:
            last = files[-1].end if files else starts[0]
            files.append(LogFile(last, self._log.end_position, self._clock.now_ms()))
        return files


def _some_with_light(groups: Iterator[Group | Blank | Damage]) -> list[Entry]:
    """The next entries that name light queues, none at the end of the groups. Blocking."""
    found: list[Entry] = []
    for group in groups:
        if isinstance(group, Group):
            found += [entry for entry in group.entries if isinstance(entry, Entry) and entry.light is not None]
        if len(found) >= LIGHT_ENTRIES_PER_STEP:
            break
    return found


def _spans(runs: Sequence[Run]) -> list[Span]:
    return [Span(run.position, run.size) for run in runs]


def _check_runs(queue: QueueKey, runs: Sequence[Run], entries: Sequence[Entry]) -> None:
    """Index units have no checksum; the entries they lead to say whether they were right. Raises IndexDamaged."""
    for run, entry in zip(runs, entries, strict=True):
        if entry.queue != queue or not entry.base_offset <= run.offset < entry.next_offset:
            raise IndexDamaged(
                f"the index of topic id {queue.topic_id}, queue {queue.queue_id} is damaged at offset {run.offset}; "
                "stop the server and run `mq index rebuild`"
            )


def _is_whole(entry: Entry) -> bool:
    """Whether a published entry has its batch; else the head alone (Writer)."""
    return len(entry.batch) > HEADER_BYTES


def _nothing(bounds: Bounds, offset: int) -> ReadResult:
    """The answer to a read that finds no record, with the nearest offset that makes sense next."""
    if offset < bounds.min_offset:
        status, following = ReadStatus.TOO_SMALL, bounds.min_offset
    elif offset > bounds.max_offset:
        status, following = ReadStatus.TOO_LARGE, bounds.max_offset
    else:
        status, following = ReadStatus.EMPTY if bounds.max_offset == 0 else ReadStatus.AT_END, offset
    return ReadResult(status, [], bounds.min_offset, bounds.max_offset, following)


def _wake(waiters: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        _finish(waiter)


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("store task failed task=%s error=%r", task.get_name(), error)

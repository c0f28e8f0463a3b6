"""The events of one part of the server in a system topic: written in batches, applied in the order of the log, and read
back at start from the last snapshot on. Consumer groups and recurring schedules each have one (`EventKind`).

    decide ──> write ──> waiting ──> one append of all that waits ──> apply, in order ──> wake the callers

While one append is under way the next one gathers, so the events of many callers share an fdatasync. The events of one
call are in one entry: after a crash all of them are there or none.

Snapshot: `<name>.0` and `<name>.1` in the data directory (format: store/snapshot.py), or where else `Snapshots` keeps
it. The content is events, one JSON object a line, that lead an empty state to the one at the snapshot's offset. It is
written now and then and at a clean stop; until it is saved, retention keeps the entries behind the last one. Records
with a key are none of the events: a log that keeps its snapshots in itself has some (gateway/cluster/shard_log.py).

    crash                         what a restart finds
    before the append             nothing: no caller was answered
    during the append             all of the entry or, cut off as a torn tail, nothing
    after it, before `apply`      the event: it is applied at start; the caller, who got no answer, may do it again
    during a snapshot             the other slot, and the log behind it, which retention had to keep
    between snapshot and expiry   the same state, made from fewer events

Invariants
    E1  memory is the events of the log before `_next_offset`, applied in order; nothing else changes it
    E2  a refused append (full disk, overload) changes nothing in memory, and is answered as what it is
    E3  what was appended is applied, also when its caller is cancelled meanwhile
    E4  a snapshot is saved only when the log is durable up to its offset
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from store import record_batch
from store.clock import Clock
from store.errors import Corrupt, RecordTooLarge, StoreError, StoreStopped
from store.files import Files
from store.limits import MiB
from store.record_batch import Record
from store.snapshot import Snapshot, SnapshotFiles
from store.types import Acks, Append, Appended, Bounds, Entry, QueueKey, ReadResult, Source
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)

WRITE_BYTES = 1 * MiB
"""Events are gathered up to this size for one append; the events of one call are never cut apart."""

_READ_BYTES = 1 * MiB
_APPLIED_PER_TURN = 500
"""At a start. While callers are served, a turn of the event loop ends with the call that reaches:"""

_APPLIED_PER_LIVE_TURN = 100

IN_SNAPSHOT = Source(-1, 0)
"""Where an event is that stands in a snapshot."""

EventT = TypeVar("EventT")

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that takes long, as it waits for the disk, without holding up the event loop."""


class Log(Protocol):
    """What of a broker the events need."""

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """See `Broker.append`."""
        ...

    async def read(self, queue: QueueKey, offset: int, *, max_bytes: int) -> ReadResult:
        """See `Broker.read`."""
        ...

    async def bounds(self, queue: QueueKey) -> Bounds:
        """See `Broker.bounds`."""
        ...


class Snapshots(Protocol):
    """Where the snapshots of one log are kept."""

    async def load(self) -> Snapshot | None:
        """The newest one; None: there is none. Raises FormatTooNew, and as reading does."""
        ...

    async def save(self, next_offset: int, content: Callable[[], bytes]) -> None:
        """Keep a state in place of an older one; durable on return. `content` may take long. Raises OSError,
        StoreError: the one before still holds."""
        ...


class InFiles:
    """`Snapshots` in two files of a directory."""

    def __init__(self, files: SnapshotFiles, run_blocking: RunBlocking) -> None:
        self._files = files
        self._run_blocking = run_blocking

    async def load(self) -> Snapshot | None:
        """See `Snapshots.load`."""
        loaded: list[Snapshot | None] = []
        await self._run_blocking(lambda: loaded.append(self._files.load()))
        return loaded[0]

    async def save(self, next_offset: int, content: Callable[[], bytes]) -> None:
        """See `Snapshots.save`."""
        await self._run_blocking(lambda: self._files.save(Snapshot(next_offset, content())))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKind(Generic[EventT]):
    """Whose events they are: the queue they are written to, the name of the snapshot, and their form as records."""

    whose: str
    """For messages: `consumer groups`."""

    snapshot_name: str
    queue: QueueKey
    encode: Callable[[EventT], bytes]
    decode: Callable[[Iterable[bytes | None]], list[EventT]]
    """Raises ValueError."""

    barrier: EventT
    """An event that changes nothing; when it is durable, all before it is."""

    def snapshot_files(self, directory: Path, files: Files, run_blocking: RunBlocking = asyncio.to_thread) -> Snapshots:
        """The two slots of the snapshot."""
        return InFiles(SnapshotFiles(directory, self.snapshot_name, files), run_blocking)


class _Call(Generic[EventT]):
    """The events of one call, and the future its caller waits on."""

    __slots__ = ("acks", "done", "events", "records", "size")

    def __init__(
        self, events: Sequence[EventT], acks: Acks, done: asyncio.Future[None], encode: Callable[[EventT], bytes]
    ) -> None:
        self.events = events
        self.acks = acks
        self.done = done
        self.records = [encode(event) for event in events]
        self.size = sum(map(len, self.records))


class EventLog(Generic[EventT]):
    """Writes events and keeps what is made of them durable. `apply` gets each event once its entry is as durable as its
    call asked, and where it is: the entry's position in the log and its index there. `whole_state` gives the events of
    a snapshot, as of its call, to be gone through in another thread."""

    def __init__(
        self,
        kind: EventKind[EventT],
        broker: Log,
        clock: Clock,
        snapshots: Snapshots,
        *,
        apply: Callable[[EventT, Source], None],
        whole_state: Callable[[], Iterable[EventT]],
    ) -> None:
        self._kind = kind
        self._broker = broker
        self._clock = clock
        self._snapshots = snapshots
        self._apply = apply
        self._whole_state = whole_state
        self._waiting: deque[_Call[EventT]] = deque()
        self._work = asyncio.Event()
        self._write_bytes = WRITE_BYTES
        self._saving = asyncio.Lock()
        self._next_offset = 0  # events before it are applied
        self._durable_offset = 0  # ... and survive a power cut
        self._saved_offset = 0  # ... and are in the saved snapshot
        self._entries: deque[tuple[int, int]] = deque()  # (last offset, position) of entries that go past the snapshot
        self._failure: BaseException | None = None
        self._closing = False
        self._is_ending = False
        self._is_closed = False
        self._is_read = False
        self.event_count = 0
        self.append_count = 0
        self.snapshot_count = 0

    @property
    def unsaved_count(self) -> int:
        """Events that a restart would have to read."""
        return self._next_offset - self._saved_offset

    @property
    def needed_position(self) -> int | None:
        """Retention must keep the log from this position on; None: all is in the snapshot. 0 until `replay` is done."""
        if not self._is_read:
            return 0
        return self._entries[0][1] if self._entries else None

    def write(self, events: Sequence[EventT], *, flushed: bool = True) -> asyncio.Future[None]:
        """Have events written, in the order of the calls. The future is done when they are applied.

        It raises DiskFull, Overloaded, RecordTooLarge: nothing was written; StoreStopped: the outcome is unknown until
        a restart, or, after `close`, nothing was written. Decide and call this in one turn of the event loop.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failure is not None or self._is_closed:
            done.set_exception(self._stopped())
        elif events:
            acks = Acks.FLUSHED if flushed else Acks.WRITTEN
            self._waiting.append(_Call(events, acks, done, self._kind.encode))
            self._work.set()
        else:
            done.set_result(None)
        return done

    async def run(self) -> None:
        """Write until cancelled. Raises when an event that was written cannot be applied: only a restart can help."""
        self._is_ending = False
        writing = asyncio.create_task(self._write_on(), name=f"events of {self._kind.whose}")
        while not writing.done():
            try:
                await asyncio.wait([writing])
            except asyncio.CancelledError:  # what is being written is applied first (E3)
                self._is_ending = True
                self._work.set()
        if not self._is_ending or self._failure is not None:
            await writing
        raise asyncio.CancelledError

    async def _write_on(self) -> None:
        while not self._is_ending:
            await self._work.wait()
            await self._write_all()

    async def _write_all(self) -> None:
        self._work.clear()
        while self._waiting and not self._is_ending:
            await self._write_group(self._take_group())

    def _take_group(self) -> list[_Call[EventT]]:
        group = [self._waiting.popleft()]
        size = group[0].size
        while self._waiting and size + self._waiting[0].size <= self._write_bytes:
            group.append(self._waiting.popleft())
            size += group[-1].size
        return group

    async def _write_group(self, group: list[_Call[EventT]]) -> None:
        """Append events and apply them, or tell the callers why they are not in the log."""
        try:
            try:
                (appended,) = await self._append(group)
            except RecordTooLarge as error:
                if len(group) == 1:
                    self._refuse(group, error)
                else:  # a store with small files: each call may well fit
                    self._write_bytes = sum(call.size for call in group) // 2
                    self._waiting.extendleft(reversed(group))
            except StoreError as error:
                self._refuse(group, error)
            else:
                await self._applied(group, appended)
        except BaseException as error:
            self._failure = error
            self._refuse([*group, *self._waiting], self._stopped())
            self._waiting.clear()
            raise

    def _stopped(self) -> StoreStopped:
        return StoreStopped(f"the {self._kind.whose} have stopped; restart the server")

    def _refuse(self, group: Iterable[_Call[EventT]], error: StoreError) -> None:
        for call in group:
            if not call.done.done():
                call.done.set_exception(error)

    async def _append(self, group: Sequence[_Call[EventT]]) -> list[Appended]:
        now_ms = self._clock.now_ms()
        records = [Record(None, record, now_ms) for call in group for record in call.records]
        batch = record_batch.encode(records)
        append = Append(queue=self._kind.queue, batch=batch, record_count=len(records), json_values=True)
        return await self._broker.append([append], acks=max(call.acks for call in group))

    async def _applied(self, group: Sequence[_Call[EventT]], appended: Appended) -> None:
        """Apply events in the order of the log, and wake who waits (E1, E3). Those of one call in one turn of the event
        loop: no reader sees a part of them."""
        end_offset = appended.base_offset + sum(len(call.events) for call in group)
        self._entries.append((end_offset - 1, appended.position))
        self._next_offset = appended.base_offset  # what lies between is none of the events
        position, index, new = appended.position, 0, tuple.__new__
        turn_count = 0
        for call in group:
            if turn_count >= _APPLIED_PER_LIVE_TURN:
                turn_count = 0
                await asyncio.sleep(0)
            turn_count += len(call.events)
            for event in call.events:
                self._apply(event, new(Source, (position, index)))  # a NamedTuple's own constructor takes twice as long
                index += 1
            self._next_offset += len(call.events)
            if not call.done.done():
                call.done.set_result(None)
        if appended.acks is Acks.FLUSHED:
            self._durable_offset = self._next_offset
        self.event_count += self._next_offset - appended.base_offset
        self.append_count += 1

    # Start and stop

    async def replay(self, on_lost: Callable[[int], None]) -> int:
        """Read the last snapshot and the events behind it; how many those were. `on_lost` is told, before those behind
        them, of events that a repair of the store could not save. Raises Corrupt, or as reading does."""
        whose, name = self._kind.whose, self._kind.snapshot_name
        snapshot = await self._snapshots.load()
        if snapshot is not None:
            path = f"{self._kind.snapshot_name} snapshot"
            for number, event in enumerate(self._events_of(path, 0, snapshot.content.splitlines())):
                self._apply(event, IN_SNAPSHOT)
                if number % _APPLIED_PER_TURN == 0:
                    await asyncio.sleep(0)
            self._next_offset = self._saved_offset = snapshot.next_offset
        low, high = await self._broker.bounds(self._kind.queue)
        if self._next_offset < low:
            raise Corrupt(name, 0, f"no snapshot of the {whose} reaches the first kept event, {low}; restore it")
        if self._next_offset > high:
            raise Corrupt(name, 0, f"the snapshot is of offset {self._next_offset}, the log ends at {high}")
        first = self._next_offset
        while self._next_offset < high:
            read = await self._broker.read(self._kind.queue, self._next_offset, max_bytes=_READ_BYTES)
            if not read.entries:
                raise Corrupt("commitlog", 0, f"event {self._next_offset} of the {whose} cannot be read")
            for entry in read.entries:
                self._replay_entry(entry, on_lost)
            await asyncio.sleep(0)
        self._is_read = True
        self._durable_offset = self._next_offset  # recovery made it so
        return self._next_offset - first

    def _replay_entry(self, entry: Entry, on_lost: Callable[[int], None]) -> None:
        records = record_batch.decode(entry.batch)
        found = [record for record in records if record.offset >= self._next_offset and record.key is None]
        kept = [record for record in found if record.value is not None]  # nothing of ours writes one without a value
        if len(kept) < len(found):
            on_lost(len(found) - len(kept))
        events = self._events_of("commitlog", entry.position, [record.value for record in kept])
        for record, event in zip(kept, events, strict=True):
            self._apply(event, Source(entry.position, record.offset - entry.base_offset))
        self._entries.append((entry.next_offset - 1, entry.position))
        self._next_offset = entry.next_offset

    async def save(self) -> None:
        """Save a snapshot, unless nothing has happened since the last one. A disk error is logged: the log still holds
        everything, and the next one tries again."""
        async with self._saving:
            if not self.unsaved_count:
                return
            offset = self._next_offset
            events = self._whole_state()

            try:
                await self._flush(offset)
                await self._snapshots.save(offset, lambda: b"\n".join(map(self._kind.encode, events)))
            except (OSError, StoreError) as error:
                log.warning("snapshot of %s failed error=%s", self._kind.whose, error)
                return
            self._saved_offset = offset
            while self._entries and self._entries[0][0] < offset:
                self._entries.popleft()
            self.snapshot_count += 1

    async def _flush(self, offset: int) -> None:
        """Make events durable that were only written: a snapshot must never be ahead of the log after a power cut."""
        if self._durable_offset < offset:
            flushing = self.write([self._kind.barrier])
            if self._closing:
                await to_its_end(self._write_all())
            await flushing

    async def close(self, *, saves: bool = True) -> None:
        """Write what waits and, if it `saves`, leave a snapshot. Call when `run` has ended; a later `write` is
        refused."""
        self._closing = True
        self._is_ending = False
        if self._failure is None:
            await to_its_end(self._write_all())
            if saves:
                await self.save()
        self._is_closed = True
        self._refuse(self._waiting, self._stopped())  # came while the snapshot was saved, and will not be written
        self._waiting.clear()

    def abandon(self, error: StoreError) -> None:
        """Write nothing more, as another one may own the log by now: what waits is refused with an error. Call when
        `run` has ended; a later `write` is refused."""
        self._is_closed = True
        self._refuse(self._waiting, error)
        self._waiting.clear()

    def _events_of(self, path: str, position: int, values: Iterable[bytes | None]) -> list[EventT]:
        try:
            return self._kind.decode(values)
        except ValueError as error:
            raise Corrupt(path, position, str(error)) from error

"""Metadata in a Kafka cluster, for nodes with neither etcd nor a disk: a topic of one partition, to which each node
appends commands, and which each node applies (gateway/cluster/metadata_log.py says what commands do).

    a change     is appended (acks=all), read back, and its outcome answered. One whose answer is lost is appended
                 again, the same bytes, until it is read back or Kafka refuses it
    a read       appends a command without effect, which all reads share that wait for one, and answers when it is read
                 back. To ask Kafka for the end of the log is not enough: a leader that was replaced and does not know
                 it yet would name an old one. It can append nothing with acks=all
    a session    see `Silence`: other nodes propose its end, the log decides

The log is kept short: a node writes a snapshot into it, in parts. When it has read all of them back, and they are
whole, it has Kafka delete the records before the snapshot's offset. A node that starts reads the first whole snapshot,
then the records from its offset on.

    killed within a snapshot           parts that nobody uses; nothing was deleted. The next snapshot is a new one
    two nodes write one                each is whole by itself; the log begins at the later offset, and a snapshot as of
                                       an earlier one, the last parts of which may lie behind it, is passed over
    a node is behind the log's start   it reads the snapshot, as one that starts; watchers are given all keys

Kafka may lose records that were acknowledged (all replicas, an unclean leader election), and somebody may delete the
topic. A node that has applied what the log does not have any more must not go on: it stops with OtherMetadata. It
notices by the last batch that it has applied: that is read again and compared whenever batches of another leader's
epoch follow, and after any interruption of its reads.

While Kafka cannot be reached, or takes no appends, calls raise Unavailable after CALL_TIMEOUT_S, or OutcomeUnknown for
a change that was sent: it may still be made much later.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from gateway.brokers.kafka.codes import NEVER, OFFSET_OUT_OF_RANGE, Stored
from gateway.brokers.kafka.port import Fetched, Kafka, Refused, TopicDiffers, TopicPlan, Unreached
from gateway.cluster.memory import WatchedKeys
from gateway.cluster.metadata import (
    ABSENT,
    Changes,
    Listing,
    MetadataError,
    OtherMetadata,
    OutcomeUnknown,
    SessionTaken,
    Unavailable,
    Value,
    check_change,
)
from gateway.cluster.metadata_log import (
    KEY,
    Action,
    Applied,
    Beat,
    Change,
    Command,
    End,
    LogState,
    Part,
    Read,
    Silence,
    Snapshot,
    SnapshotReader,
    Suspect,
    Verdict,
    decode_command,
    encode_command,
)
from store import record_batch
from store.errors import CorruptBatch, StoreError
from store.limits import MiB
from store.record_batch import Record
from store.waits import is_set_within

log = logging.getLogger(__name__)

TOPIC = "__meta"
"""Its name, behind the prefix of the Kafka cluster."""

FOR_EVER_MS = -1
CALL_TIMEOUT_S = 5.0
"""One call. Longer than Kafka needs to elect a leader that it knows to be gone."""

BATCH_BYTES = 1 * MiB
"""Commands are gathered up to this size for one append."""

FETCH_BYTES = 1 * MiB
WAIT_MS = 500
"""How long Kafka holds a fetch at the end of the log."""

FRESH_S = 2.0
"""Of an answered fetch: how long the end of the log counts as known, to propose the end of others' sessions. Behind a
longer pause the last batch is compared."""

LOOK_S = 0.25
"""Between two looks at sessions, and at the size of the log."""

SNAPSHOT_RECORDS = 10_000
SNAPSHOT_BYTES = 16 * MiB
"""Behind a snapshot: with so many records or bytes, and at least as many records as there are keys, the next one."""

SNAPSHOT_REST_S = 10.0
"""Behind any part of a snapshot, its own or another node's, a node begins none for so long."""

SESSION_WAIT_S = 5.0
"""How long beyond its time to live the session of an earlier process is waited for."""

RETRY_S, RETRY_MAX_S = 0.05, 1.0
RENEWALS_PER_TTL = 3
_APPLIED_PER_TURN = 100


@dataclass(slots=True, eq=False)
class _Call:
    """A command on its way. `number`: since it was sent. `until_s`: it is not sent later, when nobody waits for it."""

    action: Action
    done: asyncio.Future[int | None]
    until_s: float | None = None
    number: int | None = None


class _Replaced(Exception):
    """The log begins behind what was to be read."""


class KafkaMetadata(WatchedKeys):
    """`Metadata` in one topic of a Kafka cluster, which it makes if it is not there. Use as an async context manager;
    leaving it raises what has ended `running`."""

    def __init__(self, kafka: Kafka, topic: str, *, older_than: Sequence[str] = ()) -> None:
        """`older_than`: see `TopicPlan`."""
        super().__init__()
        self._kafka = kafka
        self._topic = topic
        self._plan = TopicPlan(topic, 1, FOR_EVER_MS, is_kept=True, older_than=tuple(older_than))
        self._state = LogState()
        self._last: tuple[int, int, int] | None = None  # the stamp of the last batch that was applied
        self._is_verified = True
        self._answered_s = self._stored_s = 0.0
        self._is_at_end = False
        self._is_loaded = asyncio.Event()
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._waiting: deque[_Call] = deque()
        self._has_waiting = asyncio.Event()
        self._sent: dict[int, _Call] = {}
        self._read: _Call | None = None
        self._sessions: dict[str, asyncio.Event] = {}
        self._silence = Silence()
        self._covered, self._bytes = 0, 0
        self._no_snapshot_until_s = 0.0
        self._jitter = 1 + random.random() / 2
        self._proof: SnapshotReader | None = None
        self._proven: LogState | None = None
        self._trouble = "it was not asked yet"
        self._closed: MetadataError | None = None
        self.running: asyncio.Task[None]
        """Writes and reads until it is cancelled. Ends with OtherMetadata when this process must not go on with what it
        knows; a restart reads the log anew."""

    async def __aenter__(self) -> KafkaMetadata:
        self.running = asyncio.create_task(self._run(), name="metadata in Kafka")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.running.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self.running
        finally:
            await self._kafka.close()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_forever())
                tasks.create_task(self._write_forever())
                tasks.create_task(self._look_forever())
        except ExceptionGroup as failures:
            [failure, *_] = failures.exceptions
            log.error("the metadata cannot be followed any more topic=%s error=%s", self._topic, failure)
            self._end(OtherMetadata(str(failure)))
            raise failure from None
        finally:
            self._end(Unavailable("the server is stopping; nothing was changed"))

    def _end(self, error: MetadataError) -> None:
        """Take no more calls, for the first reason that is given, and tell those that wait."""
        self._closed = self._closed or error
        self._begin_writer(OutcomeUnknown("the server is stopping; it may have been done"))
        for call in self._waiting:
            _fail(call, self._closed)

    # ---- the port --------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Value | None:
        """See `Metadata.get`."""
        await self._catch_up()
        return self.keyspace.values.get(key)

    async def list(self, prefix: str) -> Listing:
        """See `Metadata.list`."""
        await self._catch_up()
        return self.keyspace.listing(prefix)

    async def compare_and_set(self, expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        """See `Metadata.compare_and_set`."""
        check_change(expected, changes)
        return await self.submit(Change(dict(expected), dict(changes)))

    async def watch(self, prefix: str) -> AsyncGenerator[Listing | Changes, None]:
        """See `Metadata.watch`."""
        while True:
            try:
                await self._catch_up()
                break
            except Unavailable:
                await asyncio.sleep(RETRY_MAX_S)
        async with aclosing(super().watch(prefix)) as seen:
            async for one in seen:
                yield one

    @asynccontextmanager
    async def session(self, key: str, data: bytes, *, ttl_ms: int) -> AsyncIterator[KafkaSession]:
        """See `Metadata.session`; a beat three times in `ttl_ms`."""
        session = KafkaSession(self, key, data, ttl_ms=ttl_ms)
        await session.begin()
        beating = asyncio.create_task(session.beat_forever(), name=f"session {key}")
        try:
            yield session
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating
            await session.end()

    def wake_when_suspected(self, session: str, wake: asyncio.Event) -> None:
        """Set an event when another node has read no beat of a session of this process."""
        self._sessions[session] = wake

    def forget_session(self, session: str) -> None:
        """It is over."""
        self._sessions.pop(session, None)

    # ---- appends ---------------------------------------------------------------------------------------------------

    async def submit(self, action: Action) -> int | None:
        """Append a command; its revision, or None when a condition of it does not hold. Raises Unavailable when it has
        no effect for certain, OutcomeUnknown, MetadataError."""
        call = self._enqueue(action)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await call.done
        except TimeoutError as error:
            if call.number is None:
                raise Unavailable(f"Kafka does not take it; nothing was changed: {self._trouble}") from error
            raise OutcomeUnknown(f"Kafka may have stored it: {self._trouble}") from error
        finally:
            if call.number is None and call in self._waiting:
                self._waiting.remove(call)

    async def _catch_up(self) -> None:
        """Apply all that was acknowledged before this call. Raises Unavailable."""
        call = self._read
        if call is None or call.number is not None or call.done.done():
            call = self._read = self._enqueue(Read())
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await asyncio.shield(call.done)
        except (TimeoutError, OutcomeUnknown) as error:
            raise Unavailable(f"Kafka does not answer: {self._trouble}") from error

    def _enqueue(self, action: Action, *, until_s: float | None = None) -> _Call:
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))
        call = _Call(action, asyncio.get_running_loop().create_future(), until_s)
        call.done.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting
        self._waiting.append(call)
        self._has_waiting.set()
        return call

    async def _write_forever(self) -> None:
        """One append at a time: so the commands of a writer lie in the log in the order of their numbers."""
        await self._is_loaded.wait()
        while True:
            await self._has_waiting.wait()
            records, numbers = self._taken()
            if records:
                await self._append(bytes(record_batch.compressed(record_batch.encode(records))), numbers)

    def _taken(self) -> tuple[Sequence[Record], Sequence[int]]:
        """The commands of the next append, which have numbers now."""
        records: list[Record] = []
        numbers: list[int] = []
        size = 0
        while self._waiting and size < BATCH_BYTES and len(records) < _APPLIED_PER_TURN:
            call = self._waiting.popleft()
            if call.done.done() or (call.until_s is not None and call.until_s < time.monotonic()):
                continue
            self._number += 1
            call.number = self._number
            command = Command(self._writer, call.number, self._state.next_offset, call.action)
            records.append(Record(KEY, encode_command(command), 0))
            numbers.append(call.number)
            self._sent[call.number] = call
            size += len(records[-1].value or b"")
        if not self._waiting:
            self._has_waiting.clear()
        return records, numbers

    async def _append(self, batch: bytes, numbers: Sequence[int]) -> None:
        """Append until it is stored, or was read back."""
        writer = self._writer
        pause_s = RETRY_S
        while writer == self._writer and any(number in self._sent for number in numbers):
            outcome = await self._kafka.produce(self._topic, 0, batch)
            if isinstance(outcome, Stored):
                self._stored_s = time.monotonic()
                return
            if outcome in NEVER and writer == self._writer:
                refused = MetadataError(f"Kafka refuses to store it in topic {self._topic}: error {outcome}")
                for number in numbers:
                    _fail(self._sent.pop(number), refused)
                self._begin_writer(OutcomeUnknown("it is not known whether it was done, as Kafka has refused another"))
                return
            self._trouble = "its answer was lost" if outcome is None else f"it answers with error {outcome}"
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _begin_writer(self, error: Exception) -> None:
        """Be another writer from now on; what was sent as the one before is told an error."""
        for call in self._sent.values():
            _fail(call, error)
        self._sent.clear()
        self._writer, self._number = secrets.token_hex(8), 0

    # ---- reads -----------------------------------------------------------------------------------------------------

    async def _read_forever(self) -> None:
        """Apply the log. Raises OtherMetadata."""
        pause_s = RETRY_S
        is_made = False
        while True:
            try:
                if not is_made:
                    await self._kafka.make_topic(self._plan)
                    is_made = True
                if not self._is_loaded.is_set():
                    await self._load()
                await self._read_on()
                pause_s = RETRY_S
            except TopicDiffers as error:
                raise OtherMetadata(str(error)) from error
            except _Replaced:
                log.info("the metadata log begins behind what was read; reading its snapshot topic=%s", self._topic)
                self._is_loaded.clear()
                self._is_at_end = False
            except (Unreached, Refused, CorruptBatch) as error:
                if pause_s == RETRY_S:
                    log.warning("metadata cannot be read, trying again topic=%s error=%s", self._topic, error)
                self._trouble = str(error)
                self._is_verified = self._is_at_end = False
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _fetched(self, offset: int, *, max_bytes: int = FETCH_BYTES, wait_ms: int = 0) -> Fetched:
        """Batches from an offset on. Raises _Replaced, OtherMetadata, Unreached, Refused."""
        try:
            return await self._kafka.fetch(self._topic, 0, offset, max_bytes=max_bytes, wait_ms=wait_ms)
        except Refused as error:
            if error.code != OFFSET_OUT_OF_RANGE:
                raise
            start, end = await self._kafka.bounds(self._topic, 0)
            if offset < start:
                raise _Replaced from error
            raise OtherMetadata(
                f"topic {self._topic} in Kafka ends at offset {end}, before {offset}, up to which this node has read "
                "it: Kafka has lost records, or the topic was made anew"
            ) from error

    async def _read_on(self) -> None:
        """Apply what is there, or comes soon."""
        if not self._is_verified or time.monotonic() > self._answered_s + WAIT_MS / 1000 + FRESH_S:
            await self._verify()
        fetched = await self._fetched(self._state.next_offset, wait_ms=WAIT_MS)
        if self._last is not None and any(
            record_batch.stamp_of(batch)[1] != self._last[1] for batch in record_batch.whole_batches(fetched.batches)
        ):
            await self._verify()
        await self._apply(self._state, fetched, self._on_applied)
        self._answered_s = time.monotonic()
        self._is_at_end = self._state.next_offset >= fetched.end

    async def _verify(self) -> None:
        """Raises OtherMetadata when the last batch that was applied is not in the log any more."""
        if self._last is not None:
            fetched = await self._fetched(self._last[0], max_bytes=1)
            batch = next(record_batch.whole_batches(fetched.batches), None)
            if batch is None:
                raise Unreached("Kafka does not give what was read before, yet")
            if record_batch.stamp_of(batch) != self._last:
                raise OtherMetadata(
                    f"topic {self._topic} in Kafka has another batch at offset {self._last[0]} than this node has read "
                    "there: Kafka has lost records, or the topic was made anew"
                )
        self._is_verified = True

    async def _load(self) -> None:
        """Begin with the first whole snapshot of the log, and use it when the end of the log, as of now, is applied."""
        self._last = None
        start, end = await self._kafka.bounds(self._topic, 0)
        state = LogState() if start == 0 else await self._snapshot(start, end)
        while state.next_offset < end:
            await self._apply(state, await self._fetched(state.next_offset), lambda *_: None)
        self._covered, self._bytes = start, 0
        self._state = state
        self._is_verified = True
        self._answered_s = time.monotonic()
        self._begin_writer(OutcomeUnknown("it is not known whether it was done: the log was read anew"))
        self.use(state.keyspace)
        self._is_loaded.set()

    async def _snapshot(self, start: int, end: int) -> LogState:
        reader = SnapshotReader()
        offset = start
        while offset < end:
            fetched = await self._fetched(offset)
            for batch, records in self._batches(fetched, offset):
                for at, command in records:
                    offset = at + 1
                    try:
                        found = None if command is None else reader.take(command)
                    except ValueError as error:
                        log.error("topic=%s: %s", self._topic, error)  # there may be another one
                        continue
                    if found is not None and found.next_offset >= start:  # not one that was overtaken by another
                        return found
                offset = max(offset, record_batch.offsets_of(batch)[1])
                await asyncio.sleep(0)
        raise OtherMetadata(
            f"topic {self._topic} in Kafka begins at offset {start} and has no whole snapshot: others have deleted "
            "records of it"
        )

    def _batches(
        self, fetched: Fetched, offset: int
    ) -> Iterator[tuple[memoryview, Iterator[tuple[int, Command | None]]]]:
        """Batches from an offset on, each with its records; None: not one of ours. Raises CorruptBatch."""
        for batch in record_batch.whole_batches(fetched.batches):
            if record_batch.offsets_of(batch)[1] > offset:
                yield batch, self._commands(bytes(batch), offset)

    def _commands(self, batch: bytes, offset: int) -> Iterator[tuple[int, Command | None]]:
        try:
            record_batch.check(batch)
        except CorruptBatch:
            raise
        except StoreError:
            return  # of a transaction, or malformed: no node appends such a batch
        for record in record_batch.decode(batch):
            if record.offset < offset:
                continue
            if record.key != KEY:
                yield record.offset, None
                continue
            try:
                yield record.offset, decode_command(record.value)
            except ValueError as error:
                raise OtherMetadata(f"topic {self._topic} in Kafka, offset {record.offset}: {error}") from error

    async def _apply(self, state: LogState, fetched: Fetched, on_applied: Callable[[Command, Applied], None]) -> None:
        """Apply batches to a state. Raises CorruptBatch, OtherMetadata."""
        count = 0
        for batch, commands in self._batches(fetched, state.next_offset):
            for offset, command in commands:
                if command is None:
                    state.skip(offset)
                else:
                    on_applied(command, state.apply(offset, command))
                count += 1
                if count % _APPLIED_PER_TURN == 0:
                    await asyncio.sleep(0)
            state.next_offset = record_batch.offsets_of(batch)[1]
            self._last = record_batch.stamp_of(batch)
            self._bytes += len(batch)

    def _on_applied(self, command: Command, applied: Applied) -> None:
        """Tell whom it concerns what a command has come to."""
        if applied.changes is not None:
            self.tell(applied.changes)
        action = command.action
        if isinstance(action, Suspect) and applied.verdict is Verdict.DONE and action.session in self._sessions:
            self._sessions[action.session].set()
        if isinstance(action, Part):
            self._on_part(command, action, applied.verdict)
        if command.writer != self._writer:
            return
        if applied.verdict is Verdict.UNKNOWN:
            self._begin_writer(Unavailable("Kafka has stored it too late; nothing was changed"))
        elif (call := self._sent.pop(command.number, None)) is not None and not call.done.done():
            is_done = applied.verdict is Verdict.DONE
            call.done.set_result(self._state.next_offset if is_done else None)

    # ---- looking after the log -------------------------------------------------------------------------------------

    async def _look_forever(self) -> None:
        """Propose the end of silent sessions, and write snapshots."""
        await self._is_loaded.wait()
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            is_fresh = self._is_at_end and now_s < self._answered_s + FRESH_S
            is_stuck = self._waiting and now_s > self._stored_s + FRESH_S
            if not is_fresh or is_stuck:  # what is due now may not be due when it can be appended
                continue
            for proposed in self._silence.due(self._state.sessions, now_s):
                self._enqueue(proposed, until_s=now_s + FRESH_S)
            if self._is_snapshot_due(now_s):
                await self._save()

    def _is_snapshot_due(self, now_s: float) -> bool:
        records = self._state.next_offset - self._covered
        is_long = records > max(SNAPSHOT_RECORDS, len(self.keyspace.values)) * self._jitter
        is_large = self._bytes > SNAPSHOT_BYTES * self._jitter
        return (is_long or is_large) and now_s > self._no_snapshot_until_s

    async def _save(self) -> None:
        """Write a snapshot, and have Kafka delete what is before it, if it can be read back."""
        snapshot = Snapshot(self._state)
        self._proof, self._proven = SnapshotReader(), None
        try:
            for part in snapshot.parts():
                if await self.submit(part) is None:
                    raise Unavailable("another process has gone on as this writer")
            if self._proven is None:
                raise MetadataError("it is not whole when it is read back")
            await self._kafka.delete_before(self._topic, 0, snapshot.at)
            log.info("snapshot of the metadata written topic=%s offset=%d", self._topic, snapshot.at)
        except (MetadataError, Unreached, Refused) as error:
            log.warning("no snapshot of the metadata, trying again topic=%s error=%s", self._topic, error)
            self._no_snapshot_until_s = time.monotonic() + SNAPSHOT_REST_S
        finally:
            self._proof = None

    def _on_part(self, command: Command, part: Part, verdict: Verdict) -> None:
        self._no_snapshot_until_s = time.monotonic() + SNAPSHOT_REST_S
        if verdict is not Verdict.DONE:
            return
        if part.count:
            self._covered, self._bytes = max(self._covered, part.at), 0
        if self._proof is not None and command.writer == self._writer:
            with suppress(ValueError):  # then it is not proven
                self._proven = self._proof.take(command)


class KafkaSession:
    """A key that goes with a session of the log."""

    def __init__(self, metadata: KafkaMetadata, key: str, data: bytes, *, ttl_ms: int) -> None:
        self._metadata = metadata
        self._key = key
        self._data = data
        self._ttl_ms = ttl_ms
        self._id: str | None = None
        self._is_suspected = asyncio.Event()
        self._held_until_s = 0.0
        self.loss_count = 0

    @property
    def is_held(self) -> bool:
        """See `Session.is_held`."""
        return self._id is not None and time.monotonic() < self._held_until_s

    async def begin(self) -> None:
        """Write the key. An earlier process of this name may have died with it: wait until its session must have ended.
        Raises SessionTaken."""
        deadline_s = time.monotonic() + self._ttl_ms / 1000 + SESSION_WAIT_S
        while not await self._write():
            if time.monotonic() > deadline_s:
                raise SessionTaken(f"{self._key} is held by another session")
            await asyncio.sleep(RETRY_MAX_S / 4)

    async def beat_forever(self) -> None:
        """Keep the key there."""
        while True:
            pause_s = self._ttl_ms / 1000 / RENEWALS_PER_TTL if self.is_held else RETRY_MAX_S / 4
            await is_set_within(self._is_suspected, pause_s)
            self._is_suspected.clear()
            try:
                if self._id is None:
                    await self._write()
                elif not await self._beat(self._id):
                    self._metadata.forget_session(self._id)
                    self._id = None
                    self.loss_count += 1
                    log.warning("the metadata session was lost; writing it again key=%s", self._key)
                    await self._write()
            except OtherMetadata:
                return
            except MetadataError as error:
                log.warning("metadata session not renewed key=%s error=%s", self._key, error)

    async def end(self) -> None:
        """Remove the key, if Kafka can be reached; else the other nodes do."""
        if self._id is not None:
            self._metadata.forget_session(self._id)
            with suppress(MetadataError):
                await self._metadata.submit(End(self._id))

    async def _beat(self, session: str) -> bool:
        """Whether the session, and the key with it, is still there."""
        asked_s = time.monotonic()
        if await self._metadata.submit(Beat(session)) is None:
            return False
        self._held_until_s = asked_s + self._ttl_ms / 1000
        return True

    async def _write(self) -> bool:
        """Write the key in a new session; False when another one's is there. Our own of before, whose session has ended
        or whose write had an unknown outcome, is written over."""
        asked_s = time.monotonic()
        found = await self._metadata.get(self._key)
        if found is not None and found.data != self._data:
            return False
        session = secrets.token_hex(8)
        revision = ABSENT if found is None else found.revision
        change = Change({self._key: revision}, {self._key: self._data}, session, self._ttl_ms)
        if await self._metadata.submit(change) is None:
            return False
        self._id, self._held_until_s = session, asked_s + self._ttl_ms / 1000
        self._metadata.wake_when_suspected(session, self._is_suspected)
        return True


def _fail(call: _Call, error: Exception) -> None:
    if not call.done.done():
        call.done.set_exception(error)

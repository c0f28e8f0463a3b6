"""Repeated sends, power cuts, kills and restarts at any moment, against a model: a list of what the log holds.

Every record's value names what it was sent as (a message id, a place of a request, a number of a producer), so the
oracle is a scan of the queues. What must hold, at every moment:

    R1  no id is stored twice within the window, whatever was cut off and sent again
    R2  a send of something known names its original, the same before and after any crash, and stores nothing
    R3  a send of something unknown is stored: nothing is taken for known that is not there, or has left the window
    R4  what was acked is there
    R5  `mq verify` finds no damage in what a crash or a clean stop leaves
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from store.dedup.producers import SEQUENCES_KEPT
from store.errors import AlreadyStored, SequenceGone, StoreError
from store.limits import KiB
from store.offline.verify import verify
from store.record_batch import Record, decode, encode
from store.store import Store
from store.types import (
    NO_FINGERPRINT,
    Acks,
    Append,
    Appended,
    Identity,
    Original,
    ProducerSequence,
    QueueKey,
    RequestPart,
)
from tests.clock import FakeClock
from tests.simdisk import SimDisk
from tests.store.kit import abandon, entries_of, open_store, with_settings

WINDOW_MS = 1000
QUEUES = 2
CONFIG = with_settings(
    retention_ms=None, dedup_window_ms=WINDOW_MS, producer_expiry_ms=10**9, commit_log_file_bytes=64 * KiB
)


@dataclass(frozen=True)
class Messages:
    """A batch of records with message ids."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Indexes:
    """Some records of a request."""

    request: int
    request_indexes: tuple[int, ...]


@dataclass(frozen=True)
class Numbered:
    """A batch of a producer."""

    producer: int
    sequence: int


@dataclass(frozen=True)
class Send:
    """One call of `append`."""

    what: Messages | Indexes | Numbered
    queue: int
    acks: Acks


@dataclass(frozen=True)
class Turn:
    """Calls that are made in one turn of the event loop; who waits for the first of them may give up."""

    sends: tuple[Send, ...]
    first_gives_up: bool


@dataclass(frozen=True)
class Tick:
    by_ms: int


@dataclass(frozen=True)
class Checkpoint:
    pass


@dataclass(frozen=True)
class Reopen:
    """A clean restart; some of the saved files may be lost in between."""

    lost: str | None


@dataclass(frozen=True)
class Kill:
    pass


@dataclass(frozen=True)
class PowerCut:
    in_calls: int


Operation = Turn | Tick | Checkpoint | Reopen | Kill | PowerCut


@dataclass(frozen=True)
class Stored:
    """One record as it lies in the log."""

    name: str
    queue: QueueKey
    offset: int
    store_time_ms: int


class World:
    """A disk, the store on it, and what was learned of it."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.disk = SimDisk()
        self.clock = FakeClock()
        self.topic_id = 0
        self.log: list[Stored] = []
        self.acked: list[tuple[Acks, str, QueueKey, int]] = []
        self.is_verified = rng.random() < 0.25
        self.has_lost_files = False  # since the last clean stop, which saves everything anew
        self.store: Store

    async def start(self, *, survivors: Acks) -> None:
        """Open the store; `survivors`: the lowest level of acks that must be there."""
        self.store = await open_store(self.disk, CONFIG, self.clock)
        if not self.topic_id:
            topic, _ = await self.store.create_topic("t", QUEUES)
            self.topic_id = topic.topic_id
        await self.look()
        there = {(one.name, one.queue, one.offset) for one in self.log}
        self.acked = [one for one in self.acked if one[0] >= survivors or one[1:] in there]
        assert {one[1:] for one in self.acked} <= there, "R4"

    async def look(self) -> None:
        """Read everything, and check R1."""
        found: list[Stored] = []
        for number in range(QUEUES):
            queue = QueueKey(self.topic_id, number)
            for entry in await entries_of(self.store, queue):
                for record in decode(entry.batch):
                    assert record.value is not None
                    found.append(Stored(record.value.decode(), queue, record.offset, entry.store_time_ms))
        self.log = found
        times: dict[str, list[int]] = {}
        for one in found:
            times.setdefault(one.name, []).append(one.store_time_ms)
        for name, stored_ms in times.items():
            stored_ms.sort()
            is_numbered = name.startswith("p")
            for earlier, later in pairwise(stored_ms):
                assert not is_numbered, f"R1: {name} is there twice"
                assert later - earlier > WINDOW_MS, f"R1: {name} is there twice within the window"

    def known(self, name: str) -> Stored | None:
        """Where a name is now, inside the window."""
        now_ms = self.clock.now_ms()
        alive = [one for one in self.log if one.name == name and now_ms - one.store_time_ms <= WINDOW_MS]
        return max(alive, key=lambda one: one.store_time_ms, default=None)

    async def run(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            try:
                await self._run(operation)
            except (StoreError, OSError):
                assert self.disk.is_dark, "only a power cut may stop this store"
            if self.disk.is_dark:
                await abandon()
                self.disk = self.disk.crash(self.rng)
                if not self.has_lost_files:
                    self.verify()
                await self.start(survivors=Acks.FLUSHED)
        await self.look()
        await self.store.close()
        was_clean = not self.disk.is_dark
        if not was_clean:
            self.disk = self.disk.crash(self.rng)
        if was_clean or not self.has_lost_files:
            self.verify()

    def verify(self) -> None:
        """Check R5 on a copy of the disk, in some lives."""
        if not self.is_verified:
            return
        with TemporaryDirectory() as directory:
            for path in self.disk.paths():
                copy = Path(directory) / path.removeprefix(f"{CONFIG.root}/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(self.disk.contents(path))
            if (Path(directory) / "commitlog").exists():
                report = verify(Path(directory))
                assert report.is_clean, f"R5: {report.findings}"

    async def _run(self, operation: Operation) -> None:
        match operation:
            case Turn():
                await self._turn(operation)
            case Tick(by_ms):
                self.clock.step(by_ms)
            case Checkpoint():
                await self.store._save_checkpoint()
            case Reopen(lost):
                await self.store.close()
                if not self.disk.is_dark:
                    self.verify()
                    self.has_lost_files = lost is not None
                    for path in [path for path in self.disk.paths() if lost and lost in path]:
                        self.disk.remove(CONFIG.root / path.removeprefix(f"{CONFIG.root}/"))
                    await self.start(survivors=Acks.WRITTEN)
            case Kill():
                await abandon()
                self.disk.kill()
                if not self.has_lost_files:
                    self.verify()
                await self.start(survivors=Acks.WRITTEN)
            case PowerCut(in_calls):
                self.disk.cut_power_at(in_calls)

    async def _turn(self, turn: Turn) -> None:
        calls = [asyncio.ensure_future(self._send(send)) for send in turn.sends]
        if turn.first_gives_up:
            await asyncio.sleep(0)
            calls[0].cancel()
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, asyncio.CancelledError):
                raise answer
        await self.look()

    async def _send(self, send: Send) -> None:
        """Send until all is stored, leaving out what is known, as a producer does; check each answer (R2, R3)."""
        queue = QueueKey(self.topic_id, send.queue)
        names, identity = self._named(send)
        while names:
            append = Append(
                queue=queue,
                batch=encode([Record(None, name.encode(), 1) for name in names]),
                record_count=len(names),
                identity=identity,
            )
            try:
                [appended] = await self.store.append([append], acks=send.acks)
            except AlreadyStored as known:
                [originals] = known.originals
                assert originals
                await self.look()
                for index, original in originals.items():
                    self._check_original(send, names[index], original)
                if isinstance(send.what, Numbered):
                    return
                kept = [index for index in range(len(names)) if index not in originals]
                names = [names[index] for index in kept]
                identity = _only(identity, kept)
                continue
            except SequenceGone:
                assert isinstance(send.what, Numbered)
                await self.look()
                used = self._sequences(send.what.producer, queue)
                assert send.what.sequence < used[-1], "R3"
                assert send.what.sequence not in used, "R3"
                return
            self._check_new(send, names, queue, appended)
            return

    def _check_original(self, send: Send, name: str, original: Original) -> None:
        assert original.schedule is None
        if isinstance(send.what, Numbered) and original.offset is None:
            used = self._sequences(send.what.producer, original.queue)
            assert send.what.sequence not in used[-SEQUENCES_KEPT:]
            assert len(used) >= SEQUENCES_KEPT
            return
        at = [one for one in self.log if (one.queue, one.offset) == (original.queue, original.offset)]
        assert [one.name for one in at] == [name], "R2: an original that is another record"
        assert original.store_time_ms == at[0].store_time_ms
        if isinstance(send.what, Numbered):
            return
        assert self.known(name) == at[0], "R2"

    def _check_new(self, send: Send, names: Sequence[str], queue: QueueKey, appended: Appended) -> None:
        for index, name in enumerate(names):
            there = None if isinstance(send.what, Numbered) else self.known(name)
            assert there is None or (there.queue, there.offset) == (queue, appended.base_offset + index), "R1"
            self.acked.append((send.acks, name, queue, appended.base_offset + index))

    def _sequences(self, producer: int, queue: QueueKey) -> list[int]:
        """The numbers a producer has stored in a queue, in order."""
        own = [one for one in self.log if one.queue == queue and one.name.startswith(f"p{producer}:")]
        used = [int(one.name.split(":")[1]) for one in own]
        assert used == sorted(used), "numbers that do not rise were stored"
        return used

    def _named(self, send: Send) -> tuple[list[str], Identity]:
        match send.what:
            case Messages(ids):
                identity = Identity(message_ids=[b"%016d" % number for number in ids])
                return [f"m{number}" for number in ids], identity
            case Indexes(request, request_indexes):
                part = RequestPart(b"r%015d" % request, NO_FINGERPRINT, request_indexes)
                return [f"r{request}:{request_index}" for request_index in request_indexes], Identity(request=part)
            case Numbered(producer, sequence):
                number = ProducerSequence(b"p%015d" % producer, sequence)
                return [f"p{producer}:{sequence}:{send.queue}"], Identity(producer=number)


def _only(identity: Identity, kept: Sequence[int]) -> Identity:
    """The identity of some records of a batch."""
    if identity.request is None:
        return Identity(message_ids=[identity.message_ids[index] for index in kept])
    request_indexes = [identity.request.request_indexes[index] for index in kept]
    return Identity(request=identity.request._replace(request_indexes=request_indexes))


some_numbers = st.sets(st.integers(0, 7), min_size=1, max_size=4).map(sorted).map(tuple)
sends = st.builds(
    Send,
    st.one_of(
        st.builds(Messages, some_numbers),
        st.builds(Indexes, st.integers(0, 1), some_numbers),
        st.builds(Numbered, st.integers(0, 1), st.integers(0, 9)),
    ),
    st.integers(0, QUEUES - 1),
    st.sampled_from(Acks),
)
histories = st.lists(
    st.one_of(
        st.builds(Turn, st.lists(sends, min_size=1, max_size=4).map(tuple), st.booleans()),
        st.builds(Turn, st.lists(sends, min_size=1, max_size=4).map(tuple), st.just(False)),
        st.builds(Tick, st.sampled_from((1, 250, WINDOW_MS // 2, WINDOW_MS, WINDOW_MS + 1))),
        st.builds(Checkpoint),
        st.builds(Reopen, st.sampled_from((None, None, "/dedup/", "/producers.", "consumequeue/"))),
        st.builds(Kill),
        st.builds(PowerCut, st.integers(1, 25)),
    ),
    max_size=20,
)  # fmt: skip

ONE = Send(Messages((1,)), 0, Acks.FLUSHED)
NUMBERED = Send(Numbered(0, 1), 0, Acks.WRITTEN)
_SAVED_BEFORE_DURABLE = [Turn((NUMBERED,), False), Checkpoint()]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories, seed=st.integers(0, 2**32))
@example([Turn((ONE,), True), Turn((ONE,), False), Kill(), Turn((ONE,), False)], 0)
@example([Turn((ONE, ONE), True), Turn((ONE,), False)], 0)
@example([Turn((ONE,), False), Tick(WINDOW_MS), Checkpoint(), Kill(), Turn((ONE,), False)], 0)
@example([Turn((ONE,), False), Tick(WINDOW_MS + 1), Checkpoint(), Kill(), Turn((ONE,), False)], 0)
@example([*_SAVED_BEFORE_DURABLE, PowerCut(1), Turn((ONE,), False), Turn((NUMBERED,), False)], 4)  # lost by these cuts
@example([*_SAVED_BEFORE_DURABLE, PowerCut(1), Turn((ONE,), False), Turn((NUMBERED,), False)], 6)
@example([*_SAVED_BEFORE_DURABLE, Turn((ONE,), False), Checkpoint(), Kill(), Turn((NUMBERED,), False)], 0)
@example([Reopen("consumequeue/"), PowerCut(1)], 1)  # the last stop is cut off, with files lost before it
def test_whatever_is_sent_again_is_stored_once(history: list[Operation], seed: int) -> None:
    async def live() -> None:
        world = World(Random(seed))
        await world.start(survivors=Acks.WRITTEN)
        await world.run(history)

    asyncio.run(live())

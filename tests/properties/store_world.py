"""A store on a simulated disk, a model of a few lines, and what must hold between them.

A history is a list of operations on a store with small files (64 KiB, extents of 16 KiB, index files of 40 units).
After a power cut, a kill or a clean restart `World.start` opens the store again and checks:

    P1  every record acked FLUSHED (and every one before it in the log) is there, at its offset
    P2  what is there is a prefix of what was sent, in the order of the log, over all queues, byte for byte: no gap, no
        phantom
    P3  an acked topic is there with the partitions it was acked with; a deleted one is gone with its records
    P6  after a kill -9 every acked record is there, whatever its level
    P7  retention takes whole files of the log and only from its beginning; offsets are never used again
    P8  what was acked WRITTEN is there after a power cut if anything was acked a flush interval later
    P9  a search by record time passes over no record
    P10 in each light queue (an index in the database keeps them) are exactly the records that named it, in their
        order, at offsets without a gap from the first that is kept; an offset that was shown never has another
        record, and none of a record that expired is used again

and while it runs, that nothing is shown before it was acked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from operator import add
from random import Random

from store.ahead import AHEAD_MS
from store.config import StoreConfig
from store.errors import StoreError
from store.light_names import LightNames
from store.limits import KiB
from store.record_batch import max_timestamp_ms
from store.store import Store
from store.topics import Topic
from store.types import Acks, Append, Appended, Buffer, Entry, QueueKey
from tests.clock import START_MS
from tests.simdisk import SimDisk
from tests.store.kit import abandon, age_unsynced, append_of, entries_of, open_store, with_settings

PARTITIONS = 3
SETTINGS = with_settings(retention_ms=None, retention_bytes=130 * KiB)


@dataclass(frozen=True)
class Call:
    """One call: batches as (queue number, value sizes), and the level asked for. The records of the call are in turn in
    the light queues of the elements of `light`, by number, if it has any and the index keeps some."""

    batches: tuple[tuple[int, tuple[int, ...]], ...]
    acks: Acks
    light: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Put:
    """One call of `append` for each element of `calls`, all in one turn of the loop."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class CreateTopic:
    """Make one more topic."""


@dataclass(frozen=True)
class GrowTopic:
    """Give the newest topic one more partition."""


@dataclass(frozen=True)
class DeleteTopic:
    """Delete the oldest topic, unless it is the only one."""


@dataclass(frozen=True)
class Expire:
    """Let retention remove up to two files."""


@dataclass(frozen=True)
class Wait:
    """So many flush intervals pass: from half of one on, what was only written is synced beside the operations to come;
    from a whole one on, those wait for it."""

    intervals: float


@dataclass(frozen=True)
class Checkpoint:
    """Flush the indexes and move the checkpoint."""


@dataclass(frozen=True)
class Reopen:
    """A clean stop and start."""


@dataclass(frozen=True)
class Kill:
    """kill -9 and start."""


@dataclass(frozen=True)
class PowerCut:
    """The power fails within the next operations: in the `in_calls`-th change of the disk from here."""

    in_calls: int


Operation = Put | CreateTopic | GrowTopic | DeleteTopic | Expire | Wait | Checkpoint | Reopen | Kill | PowerCut


@dataclass(slots=True)
class Sent:
    """One batch of one queue as it must be read, and where. The position is known once it was answered or read."""

    queue: QueueKey
    base_offset: int
    record_count: int
    batch: bytes
    light: LightNames | None = None  # as it was sent: without offsets
    position: int | None = None
    light_offsets: Sequence[int] | None = None  # once they were shown

    def copy(self) -> Sent:
        """As `dataclasses.replace`, in a third of the time: there are many."""
        return Sent(
            self.queue, self.base_offset, self.record_count, self.batch, self.light, self.position, self.light_offsets
        )


LightQueue = tuple[QueueKey, bytes]


@dataclass(slots=True)
class Model:
    """What must be there: the log as a list of batches, and how much of it is certain."""

    log: list[Sent] = field(default_factory=list)
    acked_count: int = 0  # batches answered, at any level
    durable_count: int = 0  # batches certain to survive a power cut
    aged_count: int = 0  # batches acked at least a flush interval ago
    topics: dict[str, Topic] = field(default_factory=dict)  # acked
    doomed: set[str] = field(default_factory=set)  # topics whose deletion was not answered
    next_offsets: dict[QueueKey, int] = field(default_factory=dict)
    floors: dict[QueueKey, int] = field(default_factory=dict)  # offsets before it have expired
    light_floors: dict[LightQueue, int] = field(default_factory=dict)  # offsets before it were of records that expired
    removable_to: int = 0  # retention was never asked to remove the log beyond this position
    sent_count: int = 0

    def queues(self) -> list[QueueKey]:
        return [QueueKey(t.topic_id, number) for t in self.topics.values() for number in range(t.partitions)]

    def value(self, size: int) -> bytes:
        """A value nobody else sends; sizes beyond its head are filled with zeros, the disk's own favourite."""
        self.sent_count += 1
        return b"%d;" % self.sent_count + bytes(size)

    def forget(self, gone: Callable[[Sent], bool]) -> None:
        """Take batches out of the log, and out of what is counted."""
        kept = [not gone(sent) for sent in self.log]
        if all(kept):
            return
        self.acked_count = sum(kept[: self.acked_count])
        self.durable_count = sum(kept[: self.durable_count])
        self.aged_count = sum(kept[: self.aged_count])
        self.log = [sent for sent, is_kept in zip(self.log, kept, strict=True) if is_kept]

    def delete(self, name: str) -> None:
        topic = self.topics.pop(name)
        self.forget(lambda sent: sent.queue.topic_id == topic.topic_id)

    def expire(self, first_position: int) -> None:
        for sent in self.log:
            if sent.position is not None and sent.position < first_position:
                self.floors[sent.queue] = sent.base_offset + sent.record_count
                if sent.light is not None and sent.light_offsets is not None:
                    ends = map(add, sent.light_offsets, sent.light.record_counts())
                    self.light_floors.update(zip(((sent.queue, name) for name in sent.light.names), ends, strict=True))
        self.forget(lambda sent: sent.position is not None and sent.position < first_position)

    def copy(self) -> Model:
        """A model that changes on its own; topics are values and may be shared."""
        return Model(
            [sent.copy() for sent in self.log],
            self.acked_count,
            self.durable_count,
            self.aged_count,
            dict(self.topics),
            set(self.doomed),
            dict(self.next_offsets),
            dict(self.floors),
            dict(self.light_floors),
            self.removable_to,
            self.sent_count,
        )


class World:
    """A disk, the store on it, and what its clients know."""

    def __init__(self, disk: SimDisk, model: Model, settings: StoreConfig = SETTINGS) -> None:
        self.disk = disk
        self.model = model
        self.settings = settings
        self.store: Store

    async def start(self, *, certain_count: int) -> None:
        """Open the store and check that the first `certain_count` entries are there (P1, P6), P2, P3 and P7."""
        self.store = await open_store(self.disk, self.settings)
        await self._check(certain_count)

    async def run(self, operations: Sequence[Operation]) -> None:
        """Run until the power fails or there is nothing left to do."""
        for operation in operations:
            try:
                await self._run(operation)
            except (StoreError, OSError):
                assert self.disk.is_dark, "only a power cut may stop this store"
                break
        await abandon()

    async def _run(self, operation: Operation) -> None:
        model = self.model
        match operation:
            case Put(calls):
                await self._put(calls)
            case CreateTopic():
                model.sent_count += 1
                topic, is_new = await self.store.create_topic(f"topic-{model.sent_count}", PARTITIONS)
                assert is_new
                self._changed(topic)
            case GrowTopic():
                name = list(model.topics)[-1]
                topic, _ = await self.store.grow_topic(name, model.topics[name].partitions + 1)
                self._changed(topic)
            case DeleteTopic():
                if len(model.topics) > 1:
                    name = next(iter(model.topics))
                    model.doomed.add(name)
                    await self.store.delete_topic(name)
                    model.durable_count = model.acked_count
                    model.delete(name)
            case Expire():
                model.removable_to = self._first_position() + 2 * SETTINGS.commit_log_file_bytes
                await self.store.expire(file_count_max=2)
                model.expire(self._first_position())
            case Wait(intervals):
                age_unsynced(self.store, intervals)
                if intervals >= 1:
                    model.aged_count = model.acked_count
                await asyncio.sleep(0)
            case Checkpoint():
                await self.store._save_checkpoint()
            case Reopen():
                await self.store.close()
                if self.store.failure is None and not self.disk.is_dark:
                    model.durable_count = model.acked_count
                    await self.start(certain_count=model.durable_count)
            case Kill():
                await abandon()
                self.disk.kill()
                await self.start(certain_count=model.acked_count)  # P6
            case PowerCut(in_calls):
                self.disk.cut_power_at(in_calls)

    def _changed(self, topic: Topic) -> None:
        """A topic was created or grown, durably, and all that was acked before it is durable with it."""
        self.model.topics[topic.name] = topic
        self.model.durable_count = self.model.acked_count
        for queue in self.model.queues():  # opened now, so that bounds can be asked for when the disk is dark
            self.store.bounds(queue)

    def _first_position(self) -> int:
        return min(map(int, self.disk.names_in(SETTINGS.root / "commitlog")), default=0)

    def _begun(self, appends: list[Append], acks: Acks) -> asyncio.Future[list[Appended]]:
        try:
            return self.store.begin_append(appends, acks=acks)
        except StoreError as error:
            refused: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    async def _put(self, calls: tuple[Call, ...]) -> None:
        model = self.model
        queues = model.queues()
        asked: list[tuple[Call, list[Sent], Awaitable[list[Appended]]]] = []
        is_held = model.sent_count % 2 == 0  # as the gateway sends the records of one turn
        if is_held:
            self.store.hold_writes()
        for call in calls:
            batches, appends = [], []
            light = cycle(call.light if self.settings.index == "rocksdb" and call.light else ((),))
            for number, sizes in call.batches:
                queue = queues[number % len(queues)]
                values = [model.value(size) for size in sizes]
                append = append_of(queue, values, dated_ms=START_MS + _ahead_ms(model.sent_count))
                append.light = LightNames.of([[b"light/%d" % one for one in next(light)] for _ in sizes])
                base_offset = model.next_offsets.get(queue, 0)
                model.next_offsets[queue] = base_offset + len(sizes)
                batches.append(Sent(queue, base_offset, len(sizes), _as_read(append.batch, base_offset), append.light))
                appends.append(append)
            model.log += batches
            answer = self._begun(appends, call.acks) if is_held else self.store.append(appends, acks=call.acks)
            asked.append((call, batches, answer))
        if is_held:
            self.store.write_held()
        answers = await asyncio.gather(*(answer for _, _, answer in asked), return_exceptions=True)
        for (call, batches, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                self._check_that_nothing_unacked_is_shown()
                raise answer
            for sent, appended in zip(batches, answer, strict=True):
                assert appended.acks >= call.acks
                assert appended.base_offset == sent.base_offset
                sent.position = appended.position
                if sent.light is not None:
                    _show_light(sent, await self.store.read_entry(appended.position))
            model.acked_count += len(batches)
            model.durable_count = max(model.durable_count, model.aged_count)  # P8
            if call.acks is Acks.FLUSHED:
                model.durable_count = model.acked_count

    def _check_that_nothing_unacked_is_shown(self) -> None:
        acked = dict(self.model.floors)
        for sent in self.model.log[: self.model.acked_count]:
            acked[sent.queue] = sent.base_offset + sent.record_count
        for queue in self.model.queues():
            assert self.store.bounds(queue).max_offset == acked.get(queue, 0), "shown before it was acked"
            if (rows := self.store._queues.light) is not None:
                for name in rows.names(queue, b"", b"", 100):
                    for unit in rows.units(queue, name, 0, 1000):
                        assert unit.partition_offset < acked.get(queue, 0), "shown in a light queue before it was acked"

    async def _check(self, certain_count: int) -> None:
        model, store = self.model, self.store
        model.durable_count = certain_count
        found_topics = {topic.name: topic for topic in store.topics() if not topic.is_system}
        for name in model.doomed & model.topics.keys() - found_topics.keys():
            model.delete(name)
        for name, topic in model.topics.items():
            assert name in found_topics, "P3: a topic is gone"
            assert found_topics[name].topic_id == topic.topic_id
            assert found_topics[name].partitions >= topic.partitions, "P3: partitions are gone"
        file_bytes = self.settings.commit_log_file_bytes
        given_up = min(store._log_start, store._log.end_position) // file_bytes * file_bytes
        first_position = max(self._first_position(), given_up)  # a file that was given up may not be gone yet
        assert first_position <= model.removable_to, "P7: the beginning of the log is gone"
        model.expire(first_position)
        model.topics = found_topics

        found = {queue: await entries_of(store, queue) for queue in model.queues()}
        rest = {queue: entries[::-1] for queue, entries in found.items()}
        survived = 0
        for sent in model.log:
            if not rest[sent.queue]:
                break
            entry = rest[sent.queue].pop()
            assert entry.queue == sent.queue, f"P2: an entry of {entry.queue} in {sent.queue}"
            assert entry.base_offset == sent.base_offset, f"P2: a gap in {sent.queue}"
            assert entry.record_count == sent.record_count
            batch = bytes(entry.batch)  # views compare byte by byte, bytes all at once
            assert batch == sent.batch, f"P2: {batch[:100]!r} where {sent.batch[:100]!r} was sent"
            sent.position = entry.position
            assert (entry.light is None) == (sent.light is None), "P10: light queues are gone, or there are others"
            if sent.light is not None:
                _show_light(sent, entry)
            survived += 1
        assert not any(rest.values()), f"P2: records without those before them in the log, or phantoms: {rest!r:.300}"
        assert survived >= model.durable_count, f"P1, P6, P8: {model.durable_count} were certain, {survived} are there"
        # What recovery shows is durable from now on, and what it does not show never comes back.
        del model.log[survived:]
        model.acked_count = model.durable_count = survived
        model.aged_count = 0
        model.next_offsets.clear()
        for queue in model.queues():
            bounds = store.bounds(queue)
            assert bounds.min_offset == model.floors.get(queue, 0), f"P7: {queue} begins elsewhere"
            assert bounds.max_offset == bounds.min_offset + sum(entry.record_count for entry in found[queue])
            model.next_offsets[queue] = bounds.max_offset
            _check_dates(store, found[queue])
        if self.settings.index == "rocksdb":
            await self._check_light()

    async def _check_light(self) -> None:
        """P10 of what is there."""
        model, store = self.model, self.store
        expected: dict[LightQueue, list[tuple[int, int]]] = {}  # offsets there, and in the partition
        for sent in model.log:
            if sent.light is None:
                continue
            for record_index, name, offset in sent.light.assigned(sent.light_offsets or ()).rows():
                queue, partition_offset = (sent.queue, name), sent.base_offset + record_index
                own = expected.setdefault(queue, [])
                if own:
                    assert offset == own[-1][0] + 1, f"P10: a gap in {queue}"
                elif (floor := model.light_floors.get(queue)) is None:
                    assert offset == partition_offset, f"P10: {queue} begins elsewhere"
                else:
                    assert offset in (floor, partition_offset), f"P10: {queue} goes on elsewhere"
                    assert offset >= floor, f"P10: offset {offset} of {queue} is used again"
                own.append((offset, partition_offset))
        for key in model.queues():
            listed = store.light_names(key, b"", after=b"", count=1000)
            kept = {name for queue, name in expected if queue == key}
            assert kept <= set(listed), f"P10: of {kept} only {listed} are listed"
            assert {name for name in set(listed) - kept if (key, name) not in model.light_floors} == set()
            for name in {*listed, b"light/none"}:
                read = await store.read_light(key, name, 0, max_records=1000, max_bytes=1 << 20)
                found = [(offset, entry.base_offset + index) for offset, entry, index in read.records]
                assert found == expected.get((key, name), []), f"P10: other records in {name!r} of {key}"
                bounds = store.light_bounds(key, name)
                assert store.light_end(key, name) == read.max_offset == bounds.max_offset
                if found:
                    assert bounds == (found[0][0], found[-1][0] + 1)
                    assert read.next_offset == read.max_offset
                    again = await store.read_light(key, name, found[-1][0], max_records=1, max_bytes=1)
                    assert [record.offset for record in again.records] == [found[-1][0]], "P10: by its own offset"
                else:
                    assert bounds.min_offset == bounds.max_offset


def _show_light(sent: Sent, entry: Entry) -> None:
    """Take note of the offsets that the records of a batch have in their light queues, for ever."""
    assert sent.light is not None
    assert entry.light is not None
    offsets = entry.light.first_offsets
    assert entry.light == sent.light.assigned(offsets), "P10: other light queues"
    assert sent.light_offsets in (None, offsets), "P10: an offset that was shown has changed"
    sent.light_offsets = offsets


def _ahead_ms(number: int) -> int:
    """Some batches are dated ahead: by a second, a day, years."""
    return 1 << number % 40 if number % 5 == 0 else 0


def _check_dates(store: Store, entries: Sequence[Entry]) -> None:
    """P9: a search by record time knows of each entry that is dated ahead (A1 of store/ahead.py)."""
    for entry in entries:
        dated_ms = max_timestamp_ms(entry.batch)
        lead_ms = dated_ms - entry.store_time_ms
        assert lead_ms <= AHEAD_MS or any(
            one.first <= entry.base_offset and entry.next_offset <= one.end
            and lead_ms <= one.lead_ms and dated_ms <= one.max_ms
            for one in store._ahead.of(entry.queue)
        ), f"P9: {entry.queue} has at {entry.base_offset} what no search by record time would find"  # fmt: skip


def _as_read(batch: Buffer, base_offset: int) -> bytes:
    """A batch as the store must serve it: base offset and leader epoch set, every other byte as it was sent."""
    sent = bytes(batch)
    return base_offset.to_bytes(8, "big") + sent[8:12] + bytes(4) + sent[16:]


def some_operations(rng: Random, count: int) -> list[Operation]:
    """A random history without power cuts."""
    acks = rng.choice(((Acks.FLUSHED,), (Acks.WRITTEN,), (Acks.FLUSHED, Acks.WRITTEN)))
    largest = rng.choice((20, 600, 6000))
    light_share = rng.choice((0.0, 0.2, 0.8))

    def some_light() -> tuple[tuple[int, ...], ...]:
        if rng.random() >= light_share:
            return ()
        return tuple(tuple(rng.sample(range(8), rng.choice((0, 1, 1, 3)))) for _ in range(rng.choice((1, 3))))

    def call() -> Call:
        batches = tuple(
            (rng.randrange(12), tuple(rng.randrange(largest) // n for n in range(1, rng.choice((2, 2, 6)))))
            for _ in range(rng.choice((1, 1, 1, 3)))
        )
        return Call(batches, rng.choice(acks), some_light())

    operations: list[Operation] = []
    for _ in range(count):
        dice = rng.random()
        if dice < 0.70:
            operations.append(Put(tuple(call() for _ in range(rng.choice((1, 1, 2, 5))))))
        elif dice < 0.80:
            operations.append(Wait(rng.choice((0.5, 1.0))))
        elif dice < 0.92:
            operations.append(Checkpoint())
        elif dice < 0.93:
            operations.append(Expire())
        elif dice < 0.95:
            operations.append(Reopen())
        elif dice < 0.98:
            operations.append(Kill())
        else:
            operations.append(rng.choice((CreateTopic(), GrowTopic(), DeleteTopic())))
    return operations

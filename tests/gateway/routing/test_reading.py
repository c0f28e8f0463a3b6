"""gateway.routing.reading: a partition of many segments reads as one list, whatever moved, expired and was reused."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.reading import PartitionReader
from gateway.routing.table import RouteTable, Segment
from store import record_batch
from store.record_batch import Record
from store.types import Acks, Append, Boundary, QueueKey, ReadStatus
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker, FakeTopic

START_MS = 1_700_000_000_000
TOPIC = FakeTopic("orders", 16, 2)
PARTITION = 1
TAGGED = 7


class Held(NamedTuple):
    """A record of the model: what it is, when it was stored, and where its broker has it."""

    value: bytes
    time_ms: int
    broker: FakeBroker
    queue: QueueKey
    physical: int
    is_tagged: bool

    @property
    def is_gone(self) -> bool:
        return self.physical < self.broker.min_offsets.get(self.queue, 0)


class World:
    """A topic whose second partition moves about, and the plain list that it must read as. Its first queue is no queue
    1, and partition 0 lies in queues of the same brokers."""

    def __init__(self) -> None:
        self.clock = FakeClock(START_MS)
        self.brokers = [FakeBroker(self.clock), FakeBroker(self.clock)]
        self.routes = RouteTable()
        self.other = (Segment(self.brokers[0], QueueKey(16, 1)),)
        self.routes.set_chains(TOPIC, [self.other, (Segment(self.brokers[0], QueueKey(16, 5)),)])
        self.reader = PartitionReader(self.routes)
        self.held: list[Held] = []

    async def send(self, count: int, *, is_tagged: bool = False) -> None:
        segment = self.routes.writable("orders", PARTITION)
        values = [b"%d" % (len(self.held) + number) for number in range(count)]
        appended = await append(segment.broker, segment.queue, values, TAGGED if is_tagged else 0)
        assert segment.to_logical(appended) == len(self.held)
        now_ms = self.clock.now_ms()
        self.held += [
            Held(value, now_ms, segment.broker, segment.queue, appended + number, is_tagged)  # type: ignore[arg-type]
            for number, value in enumerate(values)
        ]

    async def move(self, broker: FakeBroker, queue_id: int) -> None:
        """Seal the open segment and open one in a queue, which may have held something else, or this very partition."""
        chain = self.routes.chain("orders", PARTITION)
        last = chain[-1]
        end = max((await last.broker.bounds(last.queue)).max_offset, last.physical_start)
        sealed = Segment(last.broker, last.queue, last.logical_start, last.physical_start, end)
        queue = QueueKey(16, queue_id)
        physical_start = (await broker.bounds(queue)).max_offset
        opened = Segment(broker, queue, sealed.to_logical(end), physical_start)
        self.routes.set_chains(TOPIC, [self.other, (*chain[:-1], sealed, opened)])

    async def expire(self, number: int, share: float) -> None:
        """Retention takes the front of a queue."""
        chain = self.routes.chain("orders", PARTITION)
        segment = chain[number % len(chain)]
        assert isinstance(segment.broker, FakeBroker)
        low, high = await segment.broker.bounds(segment.queue)
        segment.broker.min_offsets[segment.queue] = low + int((high - low) * share)

    @property
    def first(self) -> int:
        """Behind it nothing is missing."""
        return max((offset + 1 for offset, held in enumerate(self.held) if held.is_gone), default=0)

    async def read_all(self, offset: int, end_offset: int | None, max_bytes: int) -> list[tuple[int, bytes]]:
        """What a reader gets who begins at an offset, and goes on until there is no more."""
        found: list[tuple[int, bytes]] = []
        end = len(self.held) if end_offset is None else min(end_offset, len(self.held))
        while offset < end:
            result = await self.reader.read("orders", PARTITION, offset, max_bytes=max_bytes, end_offset=end_offset)
            assert (result.min_offset, result.max_offset) == (self.first, len(self.held))
            assert result.status is ReadStatus.FOUND, result
            for entry in result.entries:
                records = list(record_batch.decode(entry.batch))
                assert [record.offset for record in records] == list(range(entry.base_offset, entry.next_offset))
                found += [(record.offset, record.value or b"") for record in records if record.offset >= offset]
            assert offset < result.next_offset
            offset = result.next_offset
        return found


async def append(broker: object, queue: QueueKey, values: list[bytes], tag_hash: int = 0) -> int:
    assert isinstance(broker, FakeBroker)
    batch = record_batch.encode([Record(None, value, START_MS) for value in values])
    hashes = [tag_hash] * len(values) if tag_hash else ()
    made = Append(queue=queue, batch=batch, record_count=len(values), tag_hashes=hashes)
    [appended] = await broker.append([made], acks=Acks.FLUSHED)
    return appended.base_offset


Step = tuple[str, int, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4), st.integers(0, 1)),
        st.tuples(st.just("pass"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 1), st.integers(5, 6)),
        st.tuples(st.just("foreign"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("expire"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("configure"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=400)
@given(STEPS, st.integers(0, 60), st.integers(0, 60))
def test_a_chain_reads_as_one_list(steps: list[Step], start: int, end: int) -> None:
    asyncio.run(_a_chain_reads_as_one_list(steps, start, end))


async def _a_chain_reads_as_one_list(steps: list[Step], start: int, end: int) -> None:
    world = World()
    for step, first, second in steps:
        if step == "send":
            await world.send(first, is_tagged=bool(second))
        elif step == "pass":
            world.clock.step(first)
        elif step == "move":
            await world.move(world.brokers[first], second)
        elif step == "foreign":  # somebody else's records in a queue that this partition does not write now
            chain = world.routes.chain("orders", PARTITION)
            segment = chain[first % len(chain)]
            if (segment.broker, segment.queue) != (chain[-1].broker, chain[-1].queue):
                await append(segment.broker, segment.queue, [b"foreign"] * second, TAGGED)
        elif step == "expire":
            await world.expire(first, second / 3)
        else:  # the topic's shape comes anew, as when it is configured or grown
            world.routes.put(FakeTopic("orders", 16, 2), world.brokers[0])
    reader, held = world.reader, world.held
    low, high = await reader.bounds("orders", PARTITION)
    assert (low, high) == (world.first, len(held))
    expected = [(offset, held[offset].value) for offset in range(low, high)]
    for max_bytes in (1, 150, 10_000):
        assert await world.read_all(low, None, max_bytes) == expected
    from_start = max(start, low)
    got = await world.read_all(from_start, max(end, from_start), 150)
    assert got == [row for row in expected if from_start <= row[0]][: len(got)]
    if from_start < min(end, high):
        assert got[-1][0] >= min(end, high) - 1

    for offset, status, following in (
        (low - 1, ReadStatus.TOO_SMALL, low),
        (high, ReadStatus.AT_END if high else ReadStatus.EMPTY, high),
        (high + 1, ReadStatus.TOO_LARGE, high),
    ):
        if offset >= 0:
            result = await reader.read("orders", PARTITION, offset, max_bytes=1)
            assert (result.status, result.entries, result.next_offset) == (status, [], following)
            assert (result.min_offset, result.max_offset) == (low, high)

    at, tagged = low, list[int]()
    while at < high:
        result = await reader.read("orders", PARTITION, at, max_bytes=150, tag_hashes=frozenset((TAGGED,)))
        assert at < result.next_offset <= high
        tagged += [offset for entry in result.entries for offset in range(entry.base_offset, entry.next_offset)]
        at = result.next_offset
    assert [offset for offset in tagged if offset >= low] == [n for n in range(low, high) if held[n].is_tagged]

    shown = [held[offset].time_ms for offset in range(low, high)]
    for time_ms in range(START_MS - 1, world.clock.now_ms() + 2):
        lower = next((low + n for n, stored_ms in enumerate(shown) if stored_ms >= time_ms), high)
        upper = max((low + n for n, stored_ms in enumerate(shown) if stored_ms <= time_ms), default=low)
        found = [await reader.offset_for_time("orders", PARTITION, time_ms, boundary) for boundary in Boundary]
        assert found == [lower, upper, lower]  # a record of this broker is dated when it is stored


async def test_tags_are_looked_for_segment_by_segment() -> None:
    world = World()
    await world.send(3)
    await world.move(world.brokers[1], 6)
    await world.send(2, is_tagged=True)
    wanted = frozenset((TAGGED,))
    nothing = await world.reader.read("orders", PARTITION, 1, max_bytes=1, tag_hashes=wanted)
    assert (nothing.status, nothing.next_offset) == (ReadStatus.NO_MATCH, 3)
    found = await world.reader.read("orders", PARTITION, 3, max_bytes=1, tag_hashes=wanted)
    assert [entry.base_offset for entry in found.entries] == [3]


def test_a_grown_topic_keeps_its_chains_and_a_new_one_has_none_of_the_old() -> None:
    world = World()
    chain = world.routes.chain("orders", PARTITION)
    world.routes.put(FakeTopic("orders", 16, 4), world.brokers[1])
    assert world.routes.chain("orders", PARTITION) is chain
    assert [world.routes.writable("orders", p).queue.queue_id for p in range(4)] == [1, 5, 2, 3]
    world.routes.put(FakeTopic("orders", 18, 2), world.brokers[1])
    assert [world.routes.writable("orders", p).queue for p in range(2)] == [QueueKey(18, 0), QueueKey(18, 1)]

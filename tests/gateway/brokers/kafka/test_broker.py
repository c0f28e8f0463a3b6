"""gateway.brokers.kafka.broker over a Kafka in memory: tenures, fences, reads, and what is refused."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.brokers.kafka import broker as module
from gateway.brokers.kafka import writer as writing
from gateway.brokers.kafka.broker import Fence, KafkaBroker, Place
from gateway.cluster.move import queue_id_for
from store import record_batch
from store.errors import BrokerLacks, Corrupt, NoLightQueues, Overloaded, SealedQueue, UnknownQueue
from store.record_batch import Record
from store.types import Acks, Append, Boundary, Bounds, Delay, Identity, QueueKey, ReadStatus
from tests.clock import FakeClock
from tests.gateway.brokers.kafka.fake import APPENDED_MS, FakeKafka, strangers_batch

TOPIC_ID = 16
NEVER_MS = -1


@dataclass
class Topic:
    name: str = "orders"
    partitions: int = 2


class World:
    """A broker, and the tenures of partition 0, one after the other."""

    def __init__(self, kafka: FakeKafka | None = None) -> None:
        self.kafka = kafka or FakeKafka()
        self.doubts = 0
        self.broker = KafkaBroker(
            "kafka1", self.kafka, FakeClock(), prefix="mq.",
            topic_of=self._topic_of, retention_ms_of=lambda _: NEVER_MS, on_doubt=self._doubt,
        )  # fmt: skip

    def _topic_of(self, topic_id: int) -> Topic:
        if topic_id != TOPIC_ID:
            raise UnknownQueue("no such topic")
        return Topic()

    def _doubt(self) -> None:
        self.doubts += 1

    async def open(self, epoch: int) -> tuple[QueueKey, Place]:
        queue = QueueKey(TOPIC_ID, queue_id_for(0, epoch))
        await self.broker.create_queue(queue)
        fence = Fence(4001, epoch)
        start = await self.broker.fence("mq.orders", 0, fence) + 1
        place = Place("mq.orders", 0, fence, start, None)
        self.broker.serve(queue, place)
        return queue, place

    async def send(self, queue: QueueKey, *values: bytes) -> int:
        batch = record_batch.encode([Record(b"k", value, 1_000 + n) for n, value in enumerate(values)])
        append = Append(queue=queue, batch=batch, record_count=len(values))
        [appended] = await self.broker.append([append], acks=Acks.FLUSHED)
        return appended.base_offset

    async def read_all(self, queue: QueueKey, offset: int, max_bytes: int = 200) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = []
        while True:
            result = await self.broker.read(queue, offset, max_bytes=max_bytes)
            if not result.entries:
                assert result.status is ReadStatus.AT_END
                return found
            for entry in result.entries:
                record_batch.check(entry.batch)
                found += [(one.offset, one.value) for one in record_batch.decode(entry.batch) if one.offset >= offset]
            offset = result.next_offset


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "FENCE_TRIES", 3)


async def test_records_are_read_back_as_they_were_sent_with_their_own_times() -> None:
    world = World()
    queue, place = await world.open(1)
    assert await world.send(queue, b"a", b"b") == place.start == 1
    await world.send(queue, b"c")
    assert await world.read_all(queue, 1) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert await world.read_all(queue, 2) == [(2, b"b"), (3, b"c")]
    result = await world.broker.read(queue, 1, max_bytes=1000)
    assert [entry.store_time_ms for entry in result.entries] == [APPENDED_MS] * 2
    assert [record.timestamp for record in record_batch.decode(result.entries[0].batch)] == [1_000, 1_001]
    assert (result.status, result.min_offset, result.max_offset) == (ReadStatus.FOUND, 1, 4)


async def test_a_read_has_its_bytes_but_one_entry_and_nothing_behind_its_end() -> None:
    world = World()
    queue, _ = await world.open(1)
    for value in (b"a", b"b", b"c"):
        await world.send(queue, value)
    size = (await world.broker.read(queue, 1, max_bytes=1)).entries[0].size
    counts = [len((await world.broker.read(queue, 1, max_bytes=n)).entries) for n in (1, 2 * size - 1, 2 * size)]
    assert counts == [1, 1, 2]
    assert len((await world.broker.read(queue, 1, max_bytes=1000, end_offset=3)).entries) == 2
    assert (await world.broker.read(queue, 0, max_bytes=1)).status is ReadStatus.TOO_SMALL
    assert (await world.broker.read(queue, 4, max_bytes=1)).status is ReadStatus.AT_END
    assert (await world.broker.read(queue, 5, max_bytes=1)).status is ReadStatus.TOO_LARGE


async def test_a_tenure_ends_at_the_fence_of_the_next_one_or_before_a_stranger() -> None:
    world = World()
    queue, place = await world.open(1)
    await world.send(queue, b"a", b"b")
    fence = await world.broker.fence("mq.orders", 0, Fence(4001, 2))
    assert fence == 3
    assert await world.broker.own_end(place, since=place.start, until=fence) == 3
    world.kafka.log("mq.orders", 0).append(strangers_batch())
    later = await world.broker.fence("mq.orders", 0, Fence(4001, 3))
    assert await world.broker.own_end(place, since=place.start, until=later) == 3
    second = Place("mq.orders", 0, Fence(4001, 2), 4, None)
    assert await world.broker.own_end(second, since=4, until=later) == 4


async def test_a_fence_that_is_said_again_is_where_it_was_and_an_older_one_is_refused() -> None:
    world = World()
    await world.broker.create_queue(QueueKey(TOPIC_ID, 0))
    world.kafka.script.append("lost")
    assert await world.broker.fence("mq.orders", 0, Fence(4001, 2)) == 0
    assert await world.broker.fence("mq.orders", 0, Fence(4001, 2)) == 0
    with pytest.raises(SealedQueue):
        await world.broker.fence("mq.orders", 0, Fence(4001, 1))
    world.kafka.is_away = True
    with pytest.raises(BrokerUnreachable):
        await world.broker.fence("mq.orders", 0, Fence(4001, 3))


async def test_an_older_owner_that_lives_on_acknowledges_nothing_and_its_batches_are_nobodys() -> None:
    kafka = FakeKafka()
    zombie, owner = World(kafka), World(kafka)
    old_queue, old = await zombie.open(1)
    await zombie.send(old_queue, b"a")
    new_queue, _ = await owner.open(2)
    kafka.forget_producers()
    with pytest.raises(AnswerLost):
        await zombie.send(old_queue, b"late")
    assert zombie.doubts == 1
    with pytest.raises(AnswerLost):
        await owner.send(new_queue, b"b")  # it sees that something lies where its batch should
    assert owner.doubts == 1
    fence = await owner.broker.fence("mq.orders", 0, Fence(4001, 3))
    assert await owner.broker.own_end(old, since=1, until=2) == 2
    assert await owner.broker.own_end(Place("mq.orders", 0, Fence(4001, 2), 3, None), since=3, until=fence) == 3


async def test_a_tenure_that_is_over_is_read_to_its_end_by_whoever_knows_it() -> None:
    kafka = FakeKafka()
    world, other = World(kafka), World(kafka)
    queue, place = await world.open(1)
    await world.send(queue, b"a", b"b")
    other.broker.know(queue, place)
    with pytest.raises(BrokerUnreachable):
        await other.broker.bounds(queue)
    other.broker.know(queue, replace(place, end=3))
    assert await other.broker.bounds(queue) == Bounds(1, 3)
    assert await other.broker.seal_queue(queue) == 3
    assert await other.read_all(queue, 1) == [(1, b"a"), (2, b"b")]
    with pytest.raises(SealedQueue):
        await other.send(queue, b"c")
    with pytest.raises(Overloaded):
        await world.broker.seal_queue(queue)
    with pytest.raises(UnknownQueue):
        await other.broker.bounds(QueueKey(TOPIC_ID, 5))


async def test_what_kafka_has_lost_is_an_error_and_never_skipped() -> None:
    world = World()
    queue, _ = await world.open(1)
    await world.send(queue, b"a")
    log = world.kafka.log("mq.orders", 0)
    del log.batches[1:]
    log.end = 1
    with pytest.raises(BrokerUnreachable):
        await world.broker.read(queue, 1, max_bytes=100)
    log.end = 0
    with pytest.raises(Corrupt):
        await world.broker.read(queue, 1, max_bytes=100)


async def test_a_batch_whose_bytes_have_changed_is_not_served() -> None:
    world = World()
    queue, _ = await world.open(1)
    await world.send(queue, b"a")
    log = world.kafka.log("mq.orders", 0)
    offset, batch = log.batches[1]
    log.batches[1] = offset, batch[:-2] + bytes([batch[-2] ^ 1, batch[-1]])
    with pytest.raises(Corrupt):
        await world.broker.read(queue, 1, max_bytes=100)


async def test_expired_records_are_given_up_and_times_are_those_of_the_append() -> None:
    world = World()
    queue, _ = await world.open(1)
    for value in (b"a", b"b", b"c"):
        await world.send(queue, value)
    find = world.broker.offset_for_time
    assert await find(queue, APPENDED_MS, Boundary.LOWER) == 1
    assert await find(queue, APPENDED_MS + 1, Boundary.LOWER) == 4
    assert await find(queue, APPENDED_MS, Boundary.UPPER) == 3
    assert await find(queue, 0, Boundary.DATED) == 1
    await world.broker.expire_queue(queue, 3)
    assert await world.broker.first_kept(queue) == 3
    assert (await world.broker.read(queue, 1, max_bytes=100)).status is ReadStatus.TOO_SMALL
    assert await world.read_all(queue, 3) == [(3, b"c")]


async def test_who_watches_a_topic_is_told_of_ends_and_that_it_is_gone() -> None:
    world = World()
    queue, _ = await world.open(1)
    told: list[dict[QueueKey, int]] = []
    forget = world.broker.watch(TOPIC_ID, lambda ends: told.append(dict(ends)))
    await world.send(queue, b"a")
    world.broker.forget_topic(TOPIC_ID)
    assert told == [{queue: 2}, {}]
    forget()
    assert not world.broker.serves(queue)


async def test_what_cannot_be_kept_on_kafka_yet_is_refused_before_anything_is_stored() -> None:
    world = World()
    queue, _ = await world.open(1)
    batch = record_batch.encode([Record(None, b"a", 1)])
    plain = Append(queue=queue, batch=batch, record_count=1)
    for refused in (
        replace(plain, identity=Identity(message_ids=[bytes(16)])),
        replace(plain, delays=[Delay(1, TOPIC_ID, 0)]),
    ):
        with pytest.raises(BrokerLacks):
            world.broker.begin_append([plain, refused], acks=Acks.FLUSHED)
    with pytest.raises(NoLightQueues):
        world.broker.begin_append([replace(plain, light=object())], acks=Acks.FLUSHED)  # type: ignore[arg-type]
    with pytest.raises(BrokerLacks):
        await world.broker.schedule(plain, acks=Acks.FLUSHED)
    with pytest.raises(BrokerLacks):
        await world.broker.import_ids(b"x")
    assert world.kafka.log("mq.orders", 0).end == 1


async def test_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    queue, _ = await world.open(1)
    batch = bytes(record_batch.encode([Record(None, b"a", 1)]))
    append = Append(queue=queue, batch=batch, record_count=1)
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 2 * len(batch))
    begun = [world.broker.begin_append([append], acks=Acks.FLUSHED) for _ in range(2)]
    with pytest.raises(Overloaded):
        world.broker.begin_append([append], acks=Acks.FLUSHED)
    for one in begun:
        await one
    await world.broker.append([append], acks=Acks.FLUSHED)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
async def test_owners_come_and_go_while_everything_goes_wrong(random: Random) -> None:
    """Two nodes take the partition over from each other; both go on sending, answers are lost, Kafka forgets its
    producers and strangers write. The chain of tenures then has every acknowledged record once, at its offset."""
    kafka = FakeKafka()
    nodes = [World(kafka), World(kafka)]
    chain: list[tuple[Place, int]] = []  # what a move has committed, and where it ended
    acknowledged: dict[tuple[int, int], bytes] = {}  # by tenure and offset
    tenures: list[tuple[World, QueueKey, Place]] = [(nodes[0], *await nodes[0].open(0))]
    for number in range(random.randrange(5, 40)):
        what = random.random()
        if what < 0.6:
            index = random.choice(range(max(0, len(tenures) - 2), len(tenures)))
            world, queue, place = tenures[index]
            kafka.script.extend(random.choice([[], [], ["lost"], ["dropped"], [6, "lost"]]))
            value = b"%d" % number
            with contextlib.suppress(AnswerLost, SealedQueue):
                acknowledged[place.fence.epoch, await world.send(queue, value)] = value
        elif what < 0.7:
            kafka.forget_producers()
        elif what < 0.8:
            kafka.log("mq.orders", 0).append(strangers_batch(random.randrange(1, 3)))
        else:
            kafka.script.clear()
            before, after = tenures[-1], random.choice(nodes)
            epoch = len(tenures)
            fence = await after.broker.fence("mq.orders", 0, Fence(4001, epoch))
            end = await after.broker.own_end(before[2], since=before[2].start, until=fence)
            chain.append((before[2], end))
            queue = QueueKey(TOPIC_ID, queue_id_for(0, epoch))
            place = Place("mq.orders", 0, Fence(4001, epoch), fence + 1, None)
            after.broker.serve(queue, place)
            tenures.append((after, queue, place))
    world, queue, place = tenures[-1]
    chain.append((place, world.broker.served_end(queue) or 0))
    for place, end in chain:
        queue = QueueKey(TOPIC_ID, queue_id_for(0, place.fence.epoch))
        reader = World(kafka)
        reader.broker.know(queue, replace(place, end=end))
        found = dict(await reader.read_all(queue, place.start)) if end > place.start else {}
        assert list(found) == list(range(place.start, end))
        own = {offset: value for (epoch, offset), value in acknowledged.items() if epoch == place.fence.epoch}
        assert own.items() <= found.items()
        assert b"a stranger's" not in found.values()
        assert len(set(found.values())) == len(found)
    for world in nodes:
        await world.broker.close()

"""gateway.brokers.kafka.broker over a Kafka in memory: tenures, fences, reads, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.brokers.kafka import broker as module
from gateway.brokers.kafka import writer as writing
from gateway.brokers.kafka.broker import Fence, KafkaBroker, Place, kafka_name
from gateway.cluster.move import queue_id_for
from store import record_batch
from store.errors import (
    AlreadyStored,
    BrokerLacks,
    Corrupt,
    MalformedBatch,
    NoLightQueues,
    Overloaded,
    SealedQueue,
    SequenceGap,
    UnknownQueue,
)
from store.record_batch import Record
from store.topics import TIMER_QUEUE
from store.types import (
    ID_BYTES,
    Acks,
    Append,
    Appended,
    Boundary,
    Bounds,
    Delay,
    Identity,
    QueueKey,
    ReadStatus,
    RecordNumbers,
)
from tests.clock import FakeClock
from tests.gateway.brokers.kafka.fake import APPENDED_MS, FakeKafka, new_repeats, strangers_batch

TOPIC_ID = 16
NEVER_MS = -1
IDENTITY = Identity(message_ids=[b"a" * ID_BYTES, b"b" * ID_BYTES])


@dataclass
class Topic:
    name: str = "orders"
    partitions: int = 2


class World:
    """A broker, and the tenures of partition 0, one after the other."""

    name = "n1"

    def __init__(self, kafka: FakeKafka | None = None) -> None:
        self.kafka = kafka or FakeKafka()
        self.doubts = 0
        self.scheduled: list[Append] = []
        self.broker = KafkaBroker(
            "kafka1", self.kafka, FakeClock(), prefix="mq.",
            topic_of=self._topic_of, retention_ms_of=lambda _: NEVER_MS, on_doubt=self._doubt,
            repeats=new_repeats(), timer=self,
        )  # fmt: skip

    def _topic_of(self, topic_id: int) -> Topic:
        if topic_id != TOPIC_ID:
            raise UnknownQueue("no such topic")
        return Topic()

    def _doubt(self) -> None:
        self.doubts += 1

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        self.scheduled.append(append)
        return Appended(8, 0, 1, acks)

    async def open(self, epoch: int) -> tuple[QueueKey, Place]:
        queue = QueueKey(TOPIC_ID, queue_id_for(0, epoch))
        await self.broker.create_queue(queue)
        fence = Fence(4001, epoch)
        await self.broker.fence("mq.orders", 0, fence)
        start = await self.broker.open(queue, "mq.orders", 0, fence)
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
    assert await world.send(queue, b"a", b"b") == place.start == 2
    await world.send(queue, b"c")
    assert await world.read_all(queue, 2) == [(2, b"a"), (3, b"b"), (4, b"c")]
    assert await world.read_all(queue, 3) == [(3, b"b"), (4, b"c")]
    result = await world.broker.read(queue, 2, max_bytes=1000)
    assert [entry.store_time_ms for entry in result.entries] == [APPENDED_MS] * 2
    assert [record.timestamp for record in record_batch.decode(result.entries[0].batch)] == [1_000, 1_001]
    assert (result.status, result.min_offset, result.max_offset) == (ReadStatus.FOUND, 2, 5)


async def test_a_read_has_its_bytes_but_one_entry_and_nothing_behind_its_end() -> None:
    world = World()
    queue, _ = await world.open(1)
    for value in (b"a", b"b", b"c"):
        await world.send(queue, value)
    size = (await world.broker.read(queue, 2, max_bytes=1)).entries[0].size
    counts = [len((await world.broker.read(queue, 2, max_bytes=n)).entries) for n in (1, 2 * size - 1, 2 * size)]
    assert counts == [1, 1, 2]
    assert len((await world.broker.read(queue, 2, max_bytes=1000, end_offset=4)).entries) == 2
    assert (await world.broker.read(queue, 1, max_bytes=1)).status is ReadStatus.TOO_SMALL
    assert (await world.broker.read(queue, 5, max_bytes=1)).status is ReadStatus.AT_END
    assert (await world.broker.read(queue, 6, max_bytes=1)).status is ReadStatus.TOO_LARGE


async def test_who_reads_on_is_read_ahead_of_up_to_what_is_acknowledged() -> None:
    world = World()
    queue, _ = await world.open(1)
    for value in (b"a", b"b", b"c", b"d"):
        await world.send(queue, value)
    world.kafka.fetches.clear()
    offset = 2
    for asked in ([2], [2, 3, 4], [2, 3, 4, 5], [2, 3, 4, 5]):
        result = await world.broker.read(queue, offset, max_bytes=1)
        offset = result.next_offset
        for _ in range(3):
            await asyncio.sleep(0)
        assert [offset for offset, _ in world.kafka.fetches] == asked
    assert (await world.broker.read(queue, offset, max_bytes=1)).status is ReadStatus.AT_END
    await world.send(queue, b"e")
    assert await world.read_all(queue, 2, max_bytes=1) == [(2, b"a"), (3, b"b"), (4, b"c"), (5, b"d"), (6, b"e")]
    await world.broker.close()


async def test_a_tenure_ends_at_the_fence_of_the_next_one_or_before_a_stranger() -> None:
    world = World()
    queue, place = await world.open(1)
    await world.send(queue, b"a", b"b")
    fence = await world.broker.fence("mq.orders", 0, Fence(4001, 2))
    assert fence == 4
    assert await world.broker.own_end(place, since=place.start, until=fence) == 4
    world.kafka.log("mq.orders", 0).append(strangers_batch())
    later = await world.broker.fence("mq.orders", 0, Fence(4001, 3))
    assert await world.broker.own_end(place, since=place.start, until=later) == 4
    second = Place("mq.orders", 0, Fence(4001, 2), 5, None)
    assert await world.broker.own_end(second, since=5, until=later) == 5


@pytest.mark.parametrize(("kept_from", "end"), [(2, 5), (3, 5), (4, 5), (5, 5), (6, 6), (7, 6)])
async def test_a_tenure_whose_beginning_has_expired_ends_where_its_rest_does(kept_from: int, end: int) -> None:
    """Kept from within a batch; from behind all that was the tenure's; from behind the fence."""
    world = World()
    queue, place = await world.open(1)
    await world.send(queue, b"a", b"b")
    await world.send(queue, b"c")
    world.kafka.log("mq.orders", 0).append(strangers_batch())
    fence = await world.broker.fence("mq.orders", 0, Fence(4001, 2))
    await world.broker.first_kept(queue)  # as is believed for a while
    await world.kafka.delete_before("mq.orders", 0, kept_from)
    assert await world.broker.own_end(place, since=place.start, until=fence) == end


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
    assert await owner.broker.own_end(old, since=2, until=3) == 3
    assert await owner.broker.own_end(Place("mq.orders", 0, Fence(4001, 2), 5, None), since=5, until=fence) == 5


async def test_a_tenure_that_is_over_is_read_to_its_end_by_whoever_knows_it() -> None:
    kafka = FakeKafka()
    world, other = World(kafka), World(kafka)
    queue, place = await world.open(1)
    await world.send(queue, b"a", b"b")
    other.broker.know(queue, place)
    with pytest.raises(BrokerUnreachable):
        await other.broker.bounds(queue)
    other.broker.know(queue, replace(place, end=4))
    assert await other.broker.bounds(queue) == Bounds(2, 4)
    assert await other.broker.seal_queue(queue) == 4
    assert await other.read_all(queue, 2) == [(2, b"a"), (3, b"b")]
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
    del log.batches[2:]
    log.end = 2
    with pytest.raises(BrokerUnreachable):
        await world.broker.read(queue, 2, max_bytes=100)
    log.end = 1
    with pytest.raises(Corrupt):
        await world.broker.read(queue, 2, max_bytes=100)


async def test_a_batch_whose_bytes_have_changed_is_not_served() -> None:
    world = World()
    queue, _ = await world.open(1)
    await world.send(queue, b"a")
    log = world.kafka.log("mq.orders", 0)
    offset, batch = log.batches[2]
    log.batches[2] = offset, batch[:-2] + bytes([batch[-2] ^ 1, batch[-1]])
    with pytest.raises(Corrupt):
        await world.broker.read(queue, 2, max_bytes=100)


async def test_expired_records_are_given_up_and_times_are_those_of_the_append() -> None:
    world = World()
    queue, _ = await world.open(1)
    for value in (b"a", b"b", b"c"):
        await world.send(queue, value)
    find = world.broker.offset_for_time
    assert await find(queue, APPENDED_MS, Boundary.LOWER) == 2
    assert await find(queue, APPENDED_MS + 1, Boundary.LOWER) == 5
    assert await find(queue, APPENDED_MS, Boundary.UPPER) == 4
    assert await find(queue, 0, Boundary.DATED) == 2
    await world.broker.expire_queue(queue, 4)
    assert await world.broker.first_kept(queue) == 4
    assert (await world.broker.read(queue, 2, max_bytes=100)).status is ReadStatus.TOO_SMALL
    assert await world.read_all(queue, 4) == [(4, b"c")]


async def test_who_watches_a_topic_is_told_of_ends_and_that_it_is_gone() -> None:
    world = World()
    queue, _ = await world.open(1)
    told: list[dict[QueueKey, int]] = []
    forget = world.broker.watch(TOPIC_ID, lambda ends: told.append(dict(ends)))
    await world.send(queue, b"a")
    world.broker.forget_topic(TOPIC_ID)
    assert told == [{queue: 3}, {}]
    forget()
    assert not world.broker.serves(queue)


async def test_what_cannot_be_kept_on_kafka_is_refused_before_anything_is_stored() -> None:
    world = World()
    queue, _ = await world.open(1)
    plain = Append(queue=queue, batch=record_batch.encode([Record(None, b"a", 1)]), record_count=1)
    with pytest.raises(NoLightQueues):
        world.broker.begin_append([plain, replace(plain, light=object())], acks=Acks.FLUSHED)  # type: ignore[arg-type]
    delayed = replace(plain, queue=TIMER_QUEUE, delays=[Delay(1, TOPIC_ID, 0)])
    with pytest.raises(BrokerLacks):
        await world.broker.schedule(replace(delayed, identity=IDENTITY), acks=Acks.FLUSHED)
    with pytest.raises(MalformedBatch):
        await world.broker.import_ids(b"x")
    assert world.kafka.log("mq.orders", 0).end == 2
    assert world.scheduled == []
    await world.broker.schedule(delayed, acks=Acks.FLUSHED)
    assert world.scheduled == [delayed], "the owner's own timer has it"


def sent_by(queue: QueueKey, identity: Identity | None, *values: bytes, **more: Any) -> Append:
    batch = record_batch.encode([Record(None, value, 1_000, more.get("headers", ())) for value in values])
    return Append(queue=queue, batch=batch, record_count=len(values), identity=identity)


def numbered(first: int, count: int = 1, epoch: int = 0) -> Identity:
    return Identity(numbers=RecordNumbers(b"p" * ID_BYTES, epoch, first, count))


async def offset_of_original(world: World, append: Append) -> int | None:
    with pytest.raises(AlreadyStored) as known:
        await world.broker.append([append], acks=Acks.FLUSHED)
    [found] = known.value.originals
    assert found[0].queue == QueueKey(TOPIC_ID, 0)
    assert found[0].is_moved, "said in offsets of the partition"
    return found[0].offset


async def test_a_repeated_send_is_recognised_and_its_ids_are_seen_by_no_reader() -> None:
    world = World()
    queue, place = await world.open(1)
    headers = [("mq-ids", b"a user's own"), ("h", b"1")]
    append = sent_by(queue, IDENTITY, b"a", b"b", headers=headers)
    [stored] = await world.broker.append([append], acks=Acks.FLUSHED)
    await world.broker.append([sent_by(queue, None, b"c", headers=headers)], acks=Acks.FLUSHED)
    assert await offset_of_original(world, append) == stored.base_offset == place.start
    found = (await world.broker.read(queue, place.start, max_bytes=9_000)).entries
    assert [list(record.headers) for entry in found for record in record_batch.decode(entry.batch)] == [headers] * 3
    assert world.kafka.log("mq.orders", 0).end == place.start + 3


async def test_of_equal_sends_at_the_same_time_one_is_stored_also_when_its_caller_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "GIVE_UP_S", 0.02)
    monkeypatch.setattr(module, "GIVE_UP_S", 0.02)
    monkeypatch.setattr(writing, "PAUSE_S", 0.01)
    world = World()
    queue, place = await world.open(1)
    append = sent_by(queue, IDENTITY, b"a", b"b")
    world.kafka.is_away = True
    outcomes = await asyncio.gather(
        *[world.broker.append([append], acks=Acks.FLUSHED) for _ in range(3)], return_exceptions=True
    )
    assert [type(one) for one in outcomes] == [AnswerLost] * 3
    monkeypatch.setattr(writing, "GIVE_UP_S", 5.0)
    monkeypatch.setattr(module, "GIVE_UP_S", 5.0)
    world.kafka.is_away = False
    assert await offset_of_original(world, append) == place.start
    assert world.kafka.log("mq.orders", 0).end == place.start + 2


async def test_batches_of_a_numbered_producer_may_be_sent_behind_each_other_and_none_twice() -> None:
    world = World()
    queue, place = await world.open(1)
    appends = [sent_by(queue, numbered(number), b"%d" % number) for number in range(8)]
    begun = [world.broker.begin_append([append], acks=Acks.FLUSHED) for append in appends]
    assert [one.base_offset for [one] in await asyncio.gather(*begun)] == list(range(place.start, place.start + 8))
    assert await offset_of_original(world, appends[7]) == place.start + 7
    with pytest.raises(SequenceGap):
        world.broker.begin_append([sent_by(queue, numbered(9), b"x")], acks=Acks.FLUSHED)


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
            start = await after.broker.open(queue, "mq.orders", 0, Fence(4001, epoch))
            place = Place("mq.orders", 0, Fence(4001, epoch), start, None)
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


def test_topics_have_names_that_kafka_takes_and_no_two_the_same() -> None:
    names = {
        "orders": "orders",
        "a-25b": "a-25b",
        "a%b": "__topic-25.a-25b",
        "%RETRY%billing": "__retry.billing",
        "%DLQ%billing": "__dlq.billing",
        "%RETRY%a-25b": "__retry.a-25b",
        "%RETRY%a%b": "__retry-25.a-25b",
        "%RETRY%a-25%": "__retry-25.a-2D25-25",
        "%DLQ%%RETRY%g": "__dlq-25.-25RETRY-25g",
    }
    assert {name: kafka_name(name) for name in names} == names
    assert len(set(names.values())) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]+", name) for name in names.values())

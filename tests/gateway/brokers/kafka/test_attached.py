"""gateway.brokers.kafka.attached over a Kafka in memory in which others write: reads, ends, waits, sends, and what
Kafka refuses. Covers gateway.brokers.kafka.attached_writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.brokers.kafka import attached as module
from gateway.brokers.kafka import writer as writing
from gateway.brokers.kafka.attached import AttachedBroker
from gateway.brokers.kafka.attached_links import Limits
from gateway.brokers.kafka.codes import (
    INVALID_RECORD,
    LEADER_NOT_AVAILABLE,
    MESSAGE_TOO_LARGE,
    OUT_OF_ORDER,
    TOPIC_AUTHORIZATION,
    UNKNOWN_TOPIC,
)
from gateway.brokers.kafka.port import Unreached
from store import record_batch
from store.errors import BrokerLacks, BrokerRefuses, Corrupt, NoLightQueues, Overloaded, RecordTooLarge, UnknownQueue
from store.light_names import LightNames
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
)
from tests.gateway.brokers.kafka.fake_shared import FakeSharedKafka, Row, emptied_batch, foreign_batch
from tests.waiting import until

TOPIC_ID = 16
QUEUE = QueueKey(TOPIC_ID, 0)
NAME = "prod.orders"


class World:
    """A broker, and the topic that it is attached to."""

    name = "n1"

    def __init__(self) -> None:
        self.kafka = FakeSharedKafka()
        self.log = self.kafka.make(NAME, 2)
        self.broker = AttachedBroker("kafka1", self.kafka, timer=self)
        self.broker.attach(TOPIC_ID, "orders", NAME, 2)
        self.scheduled: list[Append] = []

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        self.scheduled.append(append)
        return Appended(8, 0, 1, acks)

    async def read_all(self, offset: int = 0, max_bytes: int = 200) -> list[tuple[int, bytes | None]]:
        """All records from an offset on, as a reader goes on from read to read."""
        found: list[tuple[int, bytes | None]] = []
        while True:
            result = await self.broker.read(QUEUE, offset, max_bytes=max_bytes)
            if not result.entries:
                assert result.status is ReadStatus.AT_END
                assert result.next_offset == result.max_offset == offset, "a reader at the end is at the end"
                return found
            for one, other in zip(result.entries, result.entries[1:], strict=False):
                assert one.next_offset == other.base_offset, "no holes within a read"
            for entry in result.entries:
                found += [(one.offset, one.value) for one in record_batch.decode(entry.batch) if one.offset >= offset]
            assert result.next_offset == result.entries[-1].next_offset > offset
            offset = result.next_offset


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.broker.close()


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "ENDS_FRESH_S", 0.0)
    monkeypatch.setattr(module, "FOLLOW_AGAIN_S", 0.01)


def batch_of(*values: bytes) -> bytearray:
    return record_batch.encode([Record(b"k", value, 1_000 + n) for n, value in enumerate(values)])


def append_of(*values: bytes, queue: QueueKey = QUEUE, **more: object) -> Append:
    return Append(queue=queue, batch=batch_of(*values), record_count=len(values), **more)  # type: ignore[arg-type]


async def send(world: World, *values: bytes) -> Appended:
    [appended] = await world.broker.append([append_of(*values)], acks=Acks.WRITTEN)
    return appended


def fill(world: World) -> list[tuple[int, bytes | None]]:
    """Holes of every kind, at the beginning, in the middle and at the end; what is to be seen of it."""
    log = world.log
    log.put(emptied_batch(3))
    log.send((None, b"3"), (b"k", None))
    log.put(foreign_batch({1: (b"k", b"6"), 4: (b"k", b"9")}, offset_count=7))
    for commit in (True, False):
        log.put(foreign_batch({0: (b"t", b"t")}, producer_id=5, is_transactional=True))
        log.end_transaction(5, commit=commit)
    log.send((None, b"16"))
    log.put(emptied_batch(4))
    return [(3, b"3"), (4, None), (6, b"6"), (9, b"9"), (12, b"t"), (16, b"16")]


@pytest.mark.parametrize("max_bytes", [1, 100, 250, 10_000])
async def test_a_reader_sees_every_record_once_whatever_holes_there_are(world: World, max_bytes: int) -> None:
    expected = fill(world)
    for offset in range(18):
        found = await world.read_all(offset, max_bytes)
        assert found == [one for one in expected if one[0] >= offset]
    assert await world.broker.bounds(QUEUE) == Bounds(0, 17)


async def test_what_was_fetched_behind_a_hole_is_not_fetched_again(world: World) -> None:
    rows: dict[int, Row] = {2 * n: (b"k", b"%d" % n) for n in range(500)}
    world.log.put(foreign_batch(rows))
    await world.broker.bounds(QUEUE)
    before = world.kafka.fetched
    assert len(await world.read_all()) == 500
    assert world.kafka.fetched == before + 1


async def test_the_end_is_behind_the_last_record_that_is_shown(world: World) -> None:
    assert await world.broker.bounds(QUEUE) == Bounds(0, 0)
    world.log.put(emptied_batch(2))
    assert await world.broker.bounds(QUEUE) == Bounds(0, 0)
    world.log.send((None, b"2"))
    assert await world.broker.bounds(QUEUE) == Bounds(0, 3)
    for _ in range(300):
        world.log.put(foreign_batch({0: (b"t", b"t")}, producer_id=5, is_transactional=True))
        world.log.end_transaction(5, commit=False)
    assert await world.broker.bounds(QUEUE) == Bounds(0, 3)
    fetched = world.kafka.fetched
    assert await world.broker.bounds(QUEUE) == Bounds(0, 3)
    assert world.kafka.fetched == fetched, "it is looked for once"
    world.log.send((None, b"more"))
    assert (await world.broker.bounds(QUEUE)).max_offset == world.log.end
    assert world.kafka.fetched == fetched + 1


async def test_what_is_behind_the_first_record_of_an_open_transaction_is_not_there_yet(world: World) -> None:
    world.log.send((None, b"0"))
    world.log.put(foreign_batch({0: (b"t", b"1")}, producer_id=5, is_transactional=True))
    world.log.send((None, b"2"))
    assert await world.broker.bounds(QUEUE) == Bounds(0, 1)
    assert (await world.broker.read(QUEUE, 0, max_bytes=1000)).next_offset == 1
    world.log.end_transaction(5, commit=True)
    assert await world.read_all(1) == [(1, b"1"), (2, b"2")]


async def test_bounds_and_statuses_are_those_of_other_brokers(world: World) -> None:
    fill(world)
    world.log.start = 5
    assert (await world.broker.read(QUEUE, 4, max_bytes=1)).status is ReadStatus.TOO_SMALL
    assert (await world.broker.read(QUEUE, 4, max_bytes=1)).next_offset == 5
    assert (await world.broker.read(QUEUE, 17, max_bytes=1)).status is ReadStatus.AT_END
    too_far = await world.broker.read(QUEUE, 18, max_bytes=1)
    assert (too_far.status, too_far.next_offset) == (ReadStatus.TOO_LARGE, 17)
    assert await world.broker.first_kept(QUEUE) == 5
    with pytest.raises(UnknownQueue):
        await world.broker.bounds(QueueKey(TOPIC_ID, 2))
    with pytest.raises(UnknownQueue):
        await world.broker.bounds(QueueKey(TOPIC_ID + 1, 0))


async def test_an_end_that_is_asked_for_is_moved_by_a_hole_before_the_first_record(world: World) -> None:
    fill(world)

    async def offsets(offset: int, end_offset: int) -> list[int]:
        result = await world.broker.read(QUEUE, offset, max_bytes=10_000, end_offset=end_offset)
        return [one.base_offset for one in result.entries]

    assert await offsets(0, 1) == [3]
    assert await offsets(5, 6) == [6]
    assert await offsets(3, 4) == [3]
    assert await offsets(3, 3) == []


async def test_records_that_expire_or_are_compacted_meanwhile_do_not_hold_up_a_reader(world: World) -> None:
    world.log.send((None, b"0"))
    world.log.send((None, b"1"))
    await world.broker.bounds(QUEUE)
    world.log.start, world.log.batches = 1, world.log.batches[1:]
    with pytest.raises(BrokerUnreachable):  # what was known is forgotten
        await world.broker.read(QUEUE, 0, max_bytes=100)
    assert (await world.broker.read(QUEUE, 0, max_bytes=100)).status is ReadStatus.TOO_SMALL
    world.log.batches[0] = (1, bytes(emptied_batch(1)[:0] + _at(1, emptied_batch(1))))
    assert (await world.broker.read(QUEUE, 1, max_bytes=100)).status is ReadStatus.AT_END
    assert await world.broker.bounds(QUEUE) == Bounds(1, 1)


def _at(offset: int, batch: bytearray) -> bytearray:
    return record_batch.with_base_offset(batch, offset)


async def test_ends_that_are_believed_for_a_moment_never_go_back_and_have_ones_own_sends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENDS_FRESH_S", 60.0)
    world.log.send((None, b"0"))
    assert (await world.broker.bounds(QUEUE)).max_offset == 1
    world.log.send((None, b"1"))
    assert (await world.broker.bounds(QUEUE)).max_offset == 1
    assert (await world.broker.read(QUEUE, 0, max_bytes=1000)).next_offset == 2
    assert (await world.broker.bounds(QUEUE)).max_offset == 2
    assert (await send(world, b"2")).base_offset == 2
    assert (await world.broker.bounds(QUEUE)).max_offset == 3


async def test_records_that_kafka_has_lost_are_not_there_any_more(world: World) -> None:
    told: list[Mapping[QueueKey, int]] = []
    world.log.send((None, b"0"))
    world.log.send((None, b"1"))
    world.broker.watch(TOPIC_ID, told.append)
    await until(lambda: told and told[-1].get(QUEUE) == 2)
    del world.log.batches[1]
    world.log.end = 1
    assert await world.broker.bounds(QUEUE) == Bounds(0, 1)
    assert (await world.broker.read(QUEUE, 2, max_bytes=1)).status is ReadStatus.TOO_LARGE
    await until(lambda: told[-1].get(QUEUE) == 1)
    world.log.send((None, b"another"))
    assert await world.read_all(1) == [(1, b"another")]
    await until(lambda: told[-1].get(QUEUE) == 2)


async def test_who_waits_is_told_of_what_comes_behind_an_end_that_was_asked_for_meanwhile(world: World) -> None:
    told: list[Mapping[QueueKey, int]] = []
    world.broker.watch(TOPIC_ID, told.append)
    await until(lambda: told)
    for _ in range(20):
        await world.broker.bounds(QUEUE)
        world.log.send((None, b"x"))
        await world.broker.bounds(QUEUE)
        await until(lambda: told[-1] == {QUEUE: world.log.end})


async def test_what_cannot_be_shown_holds_up_nobody_but_who_comes_there(world: World) -> None:
    world.log.send((None, b"0"))
    world.log.put(damaged := foreign_batch({0: (None, b"1")}))
    at, batch = world.log.batches[1]
    assert batch == damaged
    world.log.batches[1] = at, batch[:-1] + b"x"
    assert await world.broker.bounds(QUEUE) == Bounds(0, 2)
    assert (await world.broker.read(QUEUE, 0, max_bytes=1_000)).next_offset == 1
    for _ in range(2):
        with pytest.raises(Corrupt, match="CRC"):
            await world.broker.read(QUEUE, 1, max_bytes=1_000)
    world.log.send((None, b"2"))
    assert await world.read_all(2) == [(2, b"2")]


async def test_who_gives_up_in_a_long_hole_and_asks_again_goes_on_where_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_BYTES", 1)
    for _ in range(50):
        world.log.put(emptied_batch(3))
    world.log.send((None, b"last"))
    assert await world.broker.bounds(QUEUE) == Bounds(0, 151)
    world.kafka.fetches_left = 20
    with pytest.raises(BrokerUnreachable):
        await world.broker.read(QUEUE, 0, max_bytes=1)
    world.kafka.fetches_left = 35
    assert (await world.broker.read(QUEUE, 0, max_bytes=1)).next_offset == 151


async def test_many_who_ask_for_bounds_at_once_ask_kafka_once_also_when_it_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENDS_FRESH_S", 60.0)
    for _ in range(2):
        asked = world.kafka.ends_asked
        answers = await asyncio.gather(*[world.broker.bounds(QUEUE) for _ in range(100)], return_exceptions=True)
        assert world.kafka.ends_asked == asked + (not world.kafka.is_away)
        assert len(set(map(str, answers))) == 1
        world.kafka.is_away = True
        world.broker._topics[TOPIC_ID].forget()
    assert isinstance(answers[0], BrokerUnreachable)


async def test_times_are_searched_by_kafkas_own(world: World) -> None:
    for time_ms in (10, 20, 30):
        world.log.put(foreign_batch({0: (None, b"x")}, time_ms=time_ms))

    async def at(time_ms: int, boundary: Boundary) -> int:
        return await world.broker.offset_for_time(QUEUE, time_ms, boundary)

    assert [await at(time_ms, Boundary.LOWER) for time_ms in (5, 20, 21, 31)] == [0, 1, 2, 3]
    assert [await at(time_ms, Boundary.UPPER) for time_ms in (5, 20, 21, 31)] == [0, 1, 1, 2]
    assert await at(25, Boundary.DATED) == 0


# ---- waiting ---------------------------------------------------------------------------------------------------------


async def test_who_waits_is_told_of_records_and_not_of_the_marks_of_transactions(world: World) -> None:
    told: list[Mapping[QueueKey, int]] = []
    call_off = world.broker.watch(TOPIC_ID, told.append)
    await until(lambda: told == [{QUEUE: 0, QueueKey(TOPIC_ID, 1): 0}])
    world.log.send((None, b"a"))
    await until(lambda: told[-1].get(QUEUE) == 1)
    world.log.put(foreign_batch({0: (b"t", b"t")}, producer_id=5, is_transactional=True))
    world.log.end_transaction(5, commit=False)
    await asyncio.sleep(0.05)
    assert [one.get(QUEUE) for one in told] == [0, 1]
    call_off()
    await until(lambda: world.kafka.left == [NAME])


async def test_who_waits_is_told_that_the_cluster_is_away_once_and_where_ends_are_when_it_is_back(world: World) -> None:
    told: list[Mapping[QueueKey, int]] = []
    world.broker.watch(TOPIC_ID, told.append)
    await until(lambda: len(told) == 1)
    world.kafka.is_away = True
    await until(lambda: told[-1] == {})
    await asyncio.sleep(0.05)
    assert told.count({}) == 1
    world.kafka.is_away = False
    world.log.send((None, b"a"))
    await until(lambda: told[-1].get(QUEUE) == 1)


async def test_who_waits_is_told_of_what_comes_behind_an_error_of_any_kind(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Mapping[QueueKey, int]] = []
    wait_for_more, errors = world.kafka.wait_for_more, [ValueError("a bug")]

    async def failing(topic: str, ends: Mapping[int, int], *, wait_ms: int) -> Mapping[int, int]:
        if errors:
            raise errors.pop()
        return await wait_for_more(topic, ends, wait_ms=wait_ms)

    monkeypatch.setattr(world.kafka, "wait_for_more", failing)
    call_off = world.broker.watch(TOPIC_ID, told.append)
    await until(lambda: {} in told)
    world.log.send((None, b"a"))
    await until(lambda: told[-1].get(QUEUE) == 1)
    assert "a bug" in caplog.text
    call_off()


async def test_partitions_that_come_are_read_and_told_of_too(world: World) -> None:
    told: list[Mapping[QueueKey, int]] = []
    world.broker.watch(TOPIC_ID, told.append)
    await until(lambda: len(told) == 1)
    world.kafka.make(NAME, 3)
    world.broker.attach(TOPIC_ID, "orders", NAME, 3)
    world.kafka.shared(NAME, 2).send((None, b"a"))
    await until(lambda: told[-1].get(QueueKey(TOPIC_ID, 2)) == 1)
    assert await world.broker.bounds(QueueKey(TOPIC_ID, 2)) == Bounds(0, 1)
    world.broker.detach(TOPIC_ID)
    assert told[-1] == {}
    assert not world.broker.has(QUEUE)


@pytest.mark.parametrize("asks", ["starts", "stable_ends"])
async def test_a_partition_that_comes_while_bounds_are_asked_for_has_bounds_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    ask, begun, may_answer = getattr(world.kafka, asks), asyncio.Event(), asyncio.Event()

    async def slow(topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        begun.set()
        await may_answer.wait()
        answer: Mapping[int, int] = await ask(topic, partitions)
        return answer

    monkeypatch.setattr(world.kafka, asks, slow)
    before = asyncio.create_task(world.broker.bounds(QUEUE))
    await begun.wait()
    world.kafka.make(NAME, 3)
    world.broker.attach(TOPIC_ID, "orders", NAME, 3)
    come = [asyncio.create_task(world.broker.bounds(QueueKey(TOPIC_ID, 2))) for _ in range(2)]
    may_answer.set()
    assert await asyncio.gather(before, *come) == [Bounds(0, 0)] * 3
    assert await world.broker.bounds(QueueKey(TOPIC_ID, 2)) == Bounds(0, 0), "nor are starts without it believed"


# ---- sends -----------------------------------------------------------------------------------------------------------


async def test_sends_are_stored_behind_what_others_have_sent_and_read_back(world: World) -> None:
    assert (await send(world, b"a", b"b")).base_offset == 0
    world.log.send((None, b"stranger"))
    assert (await send(world, b"c")).base_offset == 3
    assert await world.read_all() == [(0, b"a"), (1, b"b"), (2, b"stranger"), (3, b"c")]
    assert (await send(world, b"d")) == Appended(4, 4, 1_000, Acks.FLUSHED)


async def test_a_send_whose_answer_is_lost_is_sent_again_and_stored_once(world: World) -> None:
    world.kafka.script.extend(["lost", "dropped", LEADER_NOT_AVAILABLE])
    assert (await send(world, b"a")).base_offset == 0
    assert await world.read_all() == [(0, b"a")]


async def test_of_many_sends_at_once_the_order_stays_when_some_are_sent_again(world: World) -> None:
    world.kafka.script.extend([None, "lost", LEADER_NOT_AVAILABLE, None])
    answers = await asyncio.gather(*[send(world, b"%d" % n) for n in range(12)])
    assert [one.base_offset for one in answers] == list(range(12))
    assert await world.read_all() == [(n, b"%d" % n) for n in range(12)]


async def test_ids_are_not_in_force(world: World) -> None:
    identity = Identity(message_ids=[b"a" * ID_BYTES])
    for offset in (0, 1):
        [appended] = await world.broker.append([append_of(b"a", identity=identity)], acks=Acks.FLUSHED)
        assert appended.base_offset == offset


async def test_a_producer_that_kafka_has_forgotten_is_replaced_and_nobody_is_told_a_lie(world: World) -> None:
    await send(world, b"a")
    world.kafka.script.append(OUT_OF_ORDER)
    with pytest.raises(AnswerLost):
        await send(world, b"b")
    assert (await send(world, b"c")).base_offset == 1
    assert await world.read_all() == [(0, b"a"), (1, b"c")]


@pytest.mark.parametrize("code", [TOPIC_AUTHORIZATION, INVALID_RECORD, MESSAGE_TOO_LARGE])
async def test_what_kafka_refuses_is_said_at_once_and_later_sends_go_on(world: World, code: int) -> None:
    world.kafka.script.append(code)
    with pytest.raises(RecordTooLarge if code == MESSAGE_TOO_LARGE else BrokerRefuses, match="Kafka"):
        await send(world, b"a")
    assert (await send(world, b"b")).base_offset == 0


async def test_a_topic_that_is_gone_in_kafka_is_said_to_senders_and_readers(world: World) -> None:
    await send(world, b"a")
    world.kafka.drop(NAME)
    with pytest.raises(BrokerRefuses, match="does not exist") as refused:
        await send(world, b"b")
    assert refused.value.code == UNKNOWN_TOPIC
    with pytest.raises(BrokerRefuses, match="does not exist"):
        await world.broker.bounds(QUEUE)
    with pytest.raises(BrokerRefuses, match="does not exist"):
        await world.broker.read(QUEUE, 0, max_bytes=1)


async def test_a_right_that_is_missing_is_said_to_readers(world: World) -> None:
    world.kafka.refused[NAME] = TOPIC_AUTHORIZATION
    with pytest.raises(BrokerRefuses, match="right"):
        await world.broker.bounds(QUEUE)
    with pytest.raises(BrokerRefuses, match="right"):
        await world.broker.partition_count(NAME)


async def test_a_cluster_that_is_away_is_said_and_sends_wait_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GIVE_UP_S", 0.05)
    await send(world, b"a")
    world.kafka.is_away = True
    with pytest.raises(BrokerUnreachable):
        await world.broker.read(QUEUE, 0, max_bytes=1)
    with pytest.raises(AnswerLost):
        await send(world, b"b")
    for _ in range(50):  # while it is away nobody sends it again
        await asyncio.sleep(0)
    world.kafka.is_away = False
    assert (await send(world, b"c")).base_offset == 1
    monkeypatch.setattr(writing, "GIVE_UP_S", 10.0)
    world.kafka.is_away = True
    sending = asyncio.create_task(send(world, b"d"))
    await asyncio.sleep(0.02)
    world.kafka.is_away = False
    assert (await sending).base_offset == 2


async def test_behind_what_nobody_waits_for_any_more_sends_go_on_by_another_producer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def looked(_: str) -> int:
        looking.set()
        await go_on.wait()
        raise Unreached("away")

    async def producer() -> int:
        while world.kafka.is_away:  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0)
        return await own()

    own = world.kafka.new_producer
    monkeypatch.setattr(world.kafka, "new_producer", producer)
    monkeypatch.setattr(world.kafka, "partition_count", looked)
    await send(world, b"a")
    world.kafka.is_away = True
    monkeypatch.setattr(writing, "GIVE_UP_S", 0.05)
    lost = world.broker.begin_append([append_of(b"b")], acks=Acks.FLUSHED)
    await asyncio.gather(looking.wait(), asyncio.wait([lost]))
    monkeypatch.setattr(writing, "GIVE_UP_S", 10.0)
    sending = asyncio.create_task(send(world, b"c"))
    await asyncio.sleep(0)
    go_on.set()
    for _ in range(20):
        await asyncio.sleep(0)
    world.kafka.is_away = False
    assert (await sending).base_offset == 1
    assert isinstance(lost.exception(), AnswerLost)
    assert [value for _, value in await world.read_all()] == [b"a", b"c"]
    assert len(world.log.producers) == 2


async def test_bytes_that_wait_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(append_of(b"x" * 100).batch)
    for room, is_refused in ((2 * size, False), (2 * size - 1, True)):
        monkeypatch.setattr(module, "WAITING_BYTES_MAX", room)
        first = world.broker.begin_append([append_of(b"x" * 100)], acks=Acks.FLUSHED)
        if is_refused:
            with pytest.raises(Overloaded):
                world.broker.begin_append([append_of(b"x" * 100)], acks=Acks.FLUSHED)
        else:
            await world.broker.begin_append([append_of(b"x" * 100)], acks=Acks.FLUSHED)
        await first


async def test_what_only_a_single_writer_can_do_is_refused(world: World) -> None:
    with pytest.raises(BrokerLacks, match="attached"):
        world.broker.begin_append([append_of(b"a", expected_offset=0)], acks=Acks.FLUSHED)
    with pytest.raises(NoLightQueues):
        world.broker.begin_append([append_of(b"a", light=LightNames.of([[b"q"]]))], acks=Acks.FLUSHED)
    for refused in (
        world.broker.seal_queue(QUEUE),
        world.broker.create_queue(QUEUE),
        world.broker.expire_queue(QUEUE, 1),
        world.broker.export_ids(QUEUE, into=QUEUE, shift=0, since=0),
        world.broker.import_ids(b""),
    ):
        with pytest.raises(BrokerLacks, match="attached"):
            await refused
    assert not world.log.batches


async def test_delayed_records_that_kafka_would_not_take_are_not_accepted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def schedule(key: bytes | None, value: bytes) -> None:
        batch = record_batch.encode([Record(key, value, 1, [("h", b"x")])])
        append = Append(queue=TIMER_QUEUE, batch=batch, record_count=1, delays=[Delay(5_000, TOPIC_ID, 1)])
        await world.broker.schedule(append, acks=Acks.FLUSHED)

    world.kafka.taken = Limits(100 + module.RECORD_OVERHEAD_BYTES, needs_keys=True)
    await schedule(b"k", bytes(97))
    with pytest.raises(RecordTooLarge):
        await schedule(b"k", bytes(98))
    with pytest.raises(BrokerRefuses, match="key"):
        await schedule(None, b"x")
    monkeypatch.setattr(module, "LIMITS_FRESH_S", 0.0)
    world.kafka.taken = Limits(1_000_000, needs_keys=False)
    await schedule(None, bytes(1_000))
    world.kafka.refused[NAME] = TOPIC_AUTHORIZATION  # to know its settings
    await schedule(None, bytes(1_000))
    assert len(world.scheduled) == 3


async def test_delayed_records_go_to_the_own_timer(world: World) -> None:
    append = append_of(b"later", queue=TIMER_QUEUE, delays=[Delay(5_000, TOPIC_ID, 0)])
    await world.broker.schedule(append, acks=Acks.FLUSHED)
    assert world.scheduled == [append]
    assert world.broker.served_by == "n1"

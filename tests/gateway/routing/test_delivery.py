"""gateway.routing.delivery: what is due reaches the queue in which its partition lies then, once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.brokers.kafka.attached import AttachedBroker
from gateway.brokers.kafka.codes import MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION, Outcome
from gateway.brokers.local import LocalBroker
from gateway.routing.base import Attachment
from gateway.routing.delivery import RoutedPartitions
from gateway.routing.table import RouteTable, Segment
from store import Store, record_batch
from store.errors import Overloaded, StoreError, StoreStopped, TooManyIds, UnknownQueue
from store.limits import PARTITIONS_MAX
from store.record_batch import Record
from store.topics import TIMER_QUEUE, Topic
from store.types import Acks, Append, Appended, Delay, Entry, QueueKey, Source
from tests.clock import START_MS, FakeClock
from tests.gateway.brokers.kafka.fake_shared import FakeSharedKafka
from tests.simdisk import SimDisk
from tests.store.kit import opened
from tests.timer.fakes import ROOT, run_inline
from timer import firing
from timer.config import TimerConfig
from timer.ports import Due, Target
from timer.service import TimerService

PARTITIONS = 3
HERE, THERE = QueueKey(16, 1), QueueKey(16, 0)
"""Where partition 2 lies: in another queue of its own broker first, then in one of the other broker."""


class Broker(LocalBroker):
    """A store with a name that refuses when it is told to, or stores and does not say so."""

    error: Exception | None = None

    async def append(self, appends: list[Append], *, acks: Acks) -> list[Appended]:  # type: ignore[override]
        if self.error is not None and not isinstance(self.error, AnswerLost):
            raise self.error
        answers = await super().append(appends, acks=acks)
        if self.error is not None:
            raise self.error
        return answers


@dataclass
class World:
    """Two brokers, the timer of the first, and a topic whose partition 2 moves from the first to the second."""

    clock: FakeClock
    stores: list[Store]
    brokers: list[Broker]
    routes: RouteTable
    partitions: RoutedPartitions

    def move(self) -> None:
        end = self.stores[0].bounds(HERE).max_offset
        self.place(
            (Segment(self.brokers[0], HERE, physical_end=end), Segment(self.brokers[1], THERE, logical_start=end))
        )

    def place(self, chain: tuple[Segment, ...]) -> None:
        others = [(Segment(self.brokers[0], QueueKey(16, queue_id)),) for queue_id in (0, 2)]
        self.routes.set_chains(Topic(16, "orders", PARTITIONS), [*others, chain])

    async def timer(self, root: str, **settings: int) -> TimerService:
        config = replace(TimerConfig(root=ROOT / root), **settings)  # type: ignore[arg-type]
        made = TimerService(
            config, self.stores[0], SimDisk(), self.clock, partitions=self.partitions, run_blocking=run_inline
        )
        await made.start()
        return made

    async def schedule(self, timer: TimerService, due_ms: int, *values: bytes) -> list[Delay]:
        """Accept records, the n-th for partition n modulo their number."""
        delays = [Delay(due_ms, 16, number % PARTITIONS) for number in range(len(values))]
        batch = record_batch.encode([Record(None, value, START_MS) for value in values])
        append = Append(queue=TIMER_QUEUE, batch=batch, record_count=len(values), delays=delays)
        await timer.schedule(append, acks=Acks.FLUSHED)
        return delays

    async def schedule_to(
        self, timer: TimerService, due_ms: int, partition: int, numbers: Sequence[int]
    ) -> list[Delay]:
        delays = [Delay(due_ms, 16, partition) for _ in numbers]
        batch = record_batch.encode([Record(None, b"%d" % number, START_MS) for number in numbers])
        append = Append(queue=TIMER_QUEUE, batch=batch, record_count=len(delays), delays=delays)
        await timer.schedule(append, acks=Acks.FLUSHED)
        return delays

    async def values(self, number: int, queue: QueueKey) -> list[bytes]:
        return [record.value or b"" for entry in await self.entries(number, queue) for record in decoded(entry)]

    async def entries(self, number: int, queue: QueueKey) -> list[Entry]:
        return (await self.stores[number].read(queue, 0, max_bytes=1 << 20)).entries


def decoded(entry: Entry) -> list[record_batch.DecodedRecord]:
    return list(record_batch.decode(entry.batch))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock, routes = FakeClock(), RouteTable()
    async with AsyncExitStack() as stack:
        stores, brokers = [], []
        for name in "ab":
            store = await stack.enter_async_context(opened(SimDisk(), clock=clock))
            await store.create_topic("orders", PARTITIONS)
            stores.append(store)
            brokers.append(
                Broker(store, None, name=name, on_topic=lambda _: None, on_deleted=lambda _: None)  # type: ignore[arg-type]
            )
        made = World(clock, stores, brokers, routes, RoutedPartitions(routes, own="a"))
        made.place((Segment(brokers[0], HERE),))
        yield made


async def go(timer: TimerService) -> None:
    while await timer.intake_step() or await timer.firing_step():
        pass


async def test_what_is_due_goes_where_its_partition_lies_then() -> None:
    async with world() as made:
        timer = await made.timer("timer")
        await made.schedule(timer, START_MS + 1_000, b"0", b"1", b"2")
        await made.schedule(timer, START_MS + 5_000, b"3", b"4", b"5")
        made.clock.step(1_000)
        await go(timer)
        assert [await made.values(0, QueueKey(16, queue_id)) for queue_id in range(3)] == [[b"0"], [b"2"], [b"1"]]
        made.move()
        made.clock.step(4_000)
        await go(timer)
        assert [await made.values(0, QueueKey(16, queue_id)) for queue_id in range(3)] == [
            [b"0", b"3"],
            [b"2"],
            [b"1", b"4"],
        ]
        assert await made.values(1, THERE) == [b"5"]
        assert timer.pending_count == 0
        await timer.close()


async def test_a_timer_that_has_lost_all_its_files_delivers_nothing_again_on_either_broker() -> None:
    async with world() as made:
        made.move()
        timer = await made.timer("timer")
        await made.schedule(timer, START_MS + 1_000, *(b"%d" % number for number in range(9)))
        made.clock.step(1_000)
        await go(timer)
        again = await made.timer("another")
        await made.schedule(again, START_MS + 2_000, b"new")
        made.clock.step(1_000)
        await go(again)
        assert again.pending_count == 0
        assert await made.values(1, THERE) == [b"2", b"5", b"8"]
        assert await made.values(0, QueueKey(16, 0)) == [b"0", b"3", b"6", b"new"]
        for started in (timer, again):
            await started.close()


def due(partition: int, *records: tuple[int, bytes], topic_id: int = 16) -> Due:
    """Records of some copies of schedules."""
    batch = record_batch.encode([Record(None, value, START_MS) for _, value in records])
    sources = [Source(position, 0) for position, _ in records]
    return Due(Target(topic_id, partition), batch, len(records), False, [position for position, _ in records], sources)


async def test_only_what_is_new_of_a_batch_is_stored_on_another_broker() -> None:
    async with world() as made:
        made.move()
        deliver = made.partitions.deliver
        assert await deliver([due(2, (1, b"1"), (2, b"2")), due(2, (3, b"3"))]) == [range(2), range(2, 3)]
        [mixed, known, new] = await deliver(
            [due(2, (0, b"0"), (2, b"2"), (4, b"4")), due(2, (3, b"3")), due(2, (5, b"5"))]
        )
        assert (mixed, known, new) == ([3, 1, 4], [2], [5])
        assert await made.values(1, THERE) == [b"1", b"2", b"3", b"0", b"4", b"5"]
        tags = [tag for entry in await made.entries(1, THERE) for tag in entry.tag_hashes]
        assert tags == [1, 2, 3, 0, 4, 5]


async def test_a_broker_that_refuses_does_not_hold_up_the_other_and_the_own_one_is_heard() -> None:
    async with world() as made:
        made.move()
        dues = [due(2, (1, b"1")), due(0, (2, b"2")), due(2, (3, b"3"))]
        made.brokers[1].error = Overloaded("full")
        assert await made.partitions.deliver(dues) == [None, range(1), None]
        assert await made.partitions.deliver([dues[0], dues[2]]) == [None, None]
        made.brokers[0].error = Overloaded("full")
        with pytest.raises(Overloaded):
            await made.partitions.deliver(dues)
        made.brokers[0].error = made.brokers[1].error = None
        assert await made.partitions.deliver([dues[0], dues[2]]) == [range(1), range(1, 2)]
        assert await made.values(0, QueueKey(16, 0)) == [b"2"]


async def test_the_timer_tries_again_what_one_broker_has_refused() -> None:
    async with world() as made:
        made.move()
        timer = await made.timer("timer")
        await made.schedule(timer, START_MS + 1_000, b"0", b"1", b"2")
        made.clock.step(1_000)
        made.brokers[1].error = Overloaded("full")
        await timer.intake_step()
        assert await timer.firing_step() == 2
        assert timer.pending_count == 1
        made.brokers[1].error = None
        await go(timer)
        assert (timer.pending_count, await made.values(1, THERE)) == (0, [b"2"])
        await timer.close()


@pytest.mark.parametrize("error", [AnswerLost("lost"), TooManyIds("full", 1000), StoreError("of a newer version")])
async def test_the_timer_goes_on_when_nobody_knows_whether_another_node_has_stored_it(error: StoreError) -> None:
    async with world() as made:
        made.move()
        timer = await made.timer("timer")
        await made.schedule(timer, START_MS + 1_000, b"0", b"1", b"2")
        made.clock.step(1_000)
        made.brokers[1].error = error
        await timer.intake_step()
        await timer.firing_step()
        assert timer.pending_count == 1
        made.brokers[1].error = None
        await go(timer)
        assert (timer.pending_count, await made.values(1, THERE)) == (0, [b"2"])
        await timer.close()


async def test_its_own_store_that_stops_is_an_error() -> None:
    async with world() as made:
        made.brokers[0].error = StoreStopped("a disk has failed")
        with pytest.raises(StoreStopped):
            await made.partitions.deliver([due(0, (1, b"1"))])


async def test_what_another_broker_has_stored_without_an_answer_is_known_when_its_partition_is_back() -> None:
    """Seen as one record at two offsets: the delivery to the own broker had no id to find it by."""
    async with world() as made:
        here, back = QueueKey(16, 2), QueueKey(16, 2 + 2 * PARTITIONS_MAX)
        there = QueueKey(16, 2 + PARTITIONS_MAX)
        a, b = made.stores
        await b.create_queue(there)
        at_b = (Segment(made.brokers[0], here, physical_end=0), Segment(made.brokers[1], there))
        made.place(at_b)
        timer = await made.timer("timer")
        await made.schedule(timer, START_MS + 1_000, b"0", b"1", b"2")
        made.clock.step(1_000)
        made.brokers[1].error = AnswerLost("killed behind its fdatasync")
        await timer.intake_step()
        await timer.firing_step()
        assert await made.values(1, there) == [b"2"]
        await a.create_queue(back)
        end = await b.seal_queue(there)
        told = await b.export_ids(there, into=back, shift=0, since=0)
        await a.import_ids(told.content)
        made.place(
            (Segment(made.brokers[1], there, physical_end=end), Segment(made.brokers[0], back, logical_start=end))
        )
        await go(timer)
        assert (timer.pending_count, await made.values(0, back)) == (0, [])
        await made.schedule(timer, START_MS + 2_000, b"3", b"4", b"5")
        made.clock.step(1_000)
        await go(timer)
        assert await made.values(0, back) == [b"5"]
        await timer.close()
        again = await made.timer("another")  # knows from the log alone, or by the ids
        await go(again)
        assert await made.values(0, back) == [b"5"]
        await again.close()


async def test_a_broker_that_is_away_holds_up_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records wait for it: the oldest of all, which would be taken first each time."""
    monkeypatch.setattr(firing, "PIECE_RECORDS_MAX", 4)
    async with world() as made:
        made.move()
        timer = await made.timer("timer", fire_records_max=8)
        sent = await made.schedule_to(timer, START_MS + 1_000, 2, range(40))
        made.clock.step(1_000)
        made.brokers[1].error = BrokerUnreachable("away")
        while await timer.intake_step():
            pass
        for number in range(8):
            await made.schedule_to(timer, made.clock.now_ms() + 1_000, 0, [100 + number])
            made.clock.step(1_000)
            await timer.intake_step()
            for _ in range(8):
                await timer.firing_step()
            assert len(await made.values(0, QueueKey(16, 0))) == number + 1
        assert timer.pending_count == len(sent) == 40
        made.brokers[1].error = None
        await go(timer)
        assert await made.values(1, THERE) == [b"%d" % number for number in range(40)]
        assert timer.pending_count == 0
        await timer.close()


async def test_what_waits_goes_on_when_its_partition_is_elsewhere_and_not_only_at_the_next_try() -> None:
    async with world() as made:
        timer = await made.timer("timer")
        await made.schedule_to(timer, START_MS + 1_000, 2, range(3))
        made.clock.step(1_000)
        made.move()
        made.brokers[1].error = BrokerUnreachable("away")
        await timer.intake_step()
        await timer.firing_step()
        timer._firing._retry_s = float("inf")
        await made.schedule_to(timer, START_MS + 1_000, 0, [100])  # so it is not idle
        await timer.intake_step()
        made.brokers[1].error = None
        await timer.firing_step()
        assert await made.values(1, THERE) == []
        assert not made.partitions.has_moved(Target(16, 2))
        await made.stores[1].create_queue(QueueKey(16, 2 + 2 * PARTITIONS_MAX))
        made.place((Segment(made.brokers[1], QueueKey(16, 2 + 2 * PARTITIONS_MAX)),))
        assert made.partitions.has_moved(Target(16, 2))
        await made.schedule_to(timer, START_MS + 1_000, 0, [101])
        await timer.intake_step()
        await timer.firing_step()
        assert await made.values(1, QueueKey(16, 2 + 2 * PARTITIONS_MAX)) == [b"0", b"1", b"2"]
        await timer.close()


async def test_what_waits_for_a_broker_that_is_away_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as made:
        made.move()
        timer = await made.timer("timer", heap_count_max=20)
        monkeypatch.setattr(firing, "HELD_SHARE", 2)
        await made.schedule_to(timer, START_MS + 1_000, 2, range(30))
        made.clock.step(1_000)
        made.brokers[1].error = BrokerUnreachable("away")
        while await timer.intake_step():
            pass
        for _ in range(9):
            await timer.firing_step()
            assert sum(map(len, timer._firing._held.values())) <= 10
        made.brokers[1].error = None
        await go(timer)
        assert await made.values(1, THERE) == [b"%d" % number for number in range(30)]
        await timer.close()


async def test_a_topic_that_is_gone_is_told_before_anything_is_stored() -> None:
    async with world() as made:
        with pytest.raises(UnknownQueue):
            await made.partitions.deliver([due(0, (1, b"1")), due(0, (2, b"2"), topic_id=99)])
        assert await made.values(0, QueueKey(16, 0)) == []


async def test_the_partition_is_read_and_searched_over_its_chain() -> None:
    async with world() as made:
        await made.partitions.deliver([due(2, (1, b"1"))])
        made.move()
        made.clock.step(5)
        await made.partitions.deliver([due(2, (2, b"2"))])
        offset = await made.partitions.offset_for_time(Target(16, 2), START_MS + 1)
        [entry] = (await made.partitions.read(Target(16, 2), offset, max_bytes=1)).entries
        assert (offset, [record.value for record in decoded(entry)]) == (1, [b"2"])


class Picky(FakeSharedKafka):
    """Takes no batch with what it dislikes."""

    dislikes = b"large"
    refused_count = 0

    def _produced(self, topic: str, partition: int, batch: bytes) -> Outcome:
        if self.dislikes and self.dislikes in batch:
            self.refused_count += 1
            return MESSAGE_TOO_LARGE
        return super()._produced(topic, partition, batch)

    def stored(self) -> list[bytes]:
        batches = [batch for log in self.logs.values() for _, batch in log.batches]
        return [one.value or b"" for batch in batches for one in record_batch.decode(batch)]


@asynccontextmanager
async def picky(made: World) -> AsyncIterator[tuple[Picky, TimerService]]:
    """The partitions are a Kafka topic that others write to as well."""
    kafka = Picky()
    kafka.make("theirs", PARTITIONS)
    attached = AttachedBroker("kafka1", kafka, timer=made.brokers[0])
    attached.attach(16, "orders", "theirs", PARTITIONS)
    made.routes.attachments[16] = Attachment("kafka1", "theirs")
    chains = [(Segment(attached, QueueKey(16, number)),) for number in range(PARTITIONS)]
    made.routes.set_chains(Topic(16, "orders", PARTITIONS), chains)
    yield kafka, await made.timer("timer")
    await attached.close()


async def schedule_with_large(made: World, timer: TimerService, due_ms: int) -> list[bytes]:
    """Forty records for one partition, of which two are too large, and one for another."""
    values = [b"large" if number in (11, 30) else b"%02d" % number for number in range(40)]
    delays = [*[Delay(due_ms, 16, 1) for _ in values], Delay(due_ms, 16, 0)]
    batch = record_batch.encode([Record(None, value, START_MS) for value in (*values, b"other")])
    append = Append(queue=TIMER_QUEUE, batch=batch, record_count=len(delays), delays=delays)
    await timer.schedule(append, acks=Acks.FLUSHED)
    return values


async def test_nothing_waits_behind_records_that_kafka_refuses_and_these_are_dropped_in_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as made, picky(made) as (kafka, timer):
        values = await schedule_with_large(made, timer, START_MS + 1_000)
        made.clock.step(1_000)
        await go(timer)
        for _ in range(40):
            await timer.firing_step()
        rest = [value for value in values if value != b"large"]
        assert [value for value in kafka.stored() if value != b"other"] == rest, "in their order"
        assert kafka.stored().count(b"other") == 1
        assert (timer.pending_count, timer.metrics.dropped_count) == (2, 0)
        assert caplog.text.count("is refused, tried for 600 s") == 2
        await made.schedule_to(timer, made.clock.now_ms() + 1_000, 1, [99])
        made.clock.step(1_000)
        await go(timer)
        assert kafka.stored()[-1] == b"99"
        monkeypatch.setattr(firing, "REFUSED_S", 0.0)
        monkeypatch.setattr(firing, "REFUSED_RETRY_S", 0.0)
        timer._firing._refused_retry_s = 0.0
        await made.schedule_to(timer, made.clock.now_ms() + 1_000, 1, [97, 98])
        made.clock.step(1_000)
        await go(timer)
        for _ in range(10):
            await timer.firing_step()
        assert (timer.pending_count, timer.metrics.dropped_count) == (0, 2)
        assert kafka.stored()[-2:] == [b"97", b"98"]
        assert caplog.text.count("dropping a record that cannot be delivered, schedule=s") == 2


async def test_a_record_that_kafka_takes_again_is_delivered_and_retried_only_now_and_then() -> None:
    async with world() as made, picky(made) as (kafka, timer):
        await schedule_with_large(made, timer, START_MS + 1_000)
        made.clock.step(1_000)
        await go(timer)
        for _ in range(40):
            await timer.firing_step()
        refused_count = kafka.refused_count
        for _ in range(40):
            await timer.firing_step()
        assert kafka.refused_count == refused_count, "a minute has not passed"
        kafka.dislikes = b""
        timer._firing._refused_retry_s = 0.0
        await go(timer)
        assert kafka.stored().count(b"large") == 2
        assert (timer.pending_count, timer.metrics.dropped_count) == (0, 0)


@pytest.mark.parametrize("code", [MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION])
async def test_what_kafka_refuses_of_an_attached_topic_waits_and_what_it_took_is_not_sent_again(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "RETRY_MS", 0)
    async with world() as made:
        kafka = FakeSharedKafka()
        kafka.make("theirs", PARTITIONS)
        attached = AttachedBroker("kafka1", kafka, timer=made.brokers[0])
        attached.attach(16, "orders", "theirs", PARTITIONS)
        made.routes.attachments[16] = Attachment("kafka1", "theirs")
        chains = [(Segment(attached, QueueKey(16, number)),) for number in range(PARTITIONS)]
        made.routes.set_chains(Topic(16, "orders", PARTITIONS), chains)
        timer = await made.timer("timer")
        await made.schedule(timer, START_MS + 1_000, b"0", b"1", b"2")
        await made.schedule(timer, START_MS + 5_000, b"3", b"4", b"5")
        kafka.script.extend([None, code, None])
        made.clock.step(1_000)
        await go(timer)

        def stored() -> list[bytes]:
            batches = [batch for log in kafka.logs.values() for _, batch in log.batches]
            return sorted(one.value or b"" for batch in batches for one in record_batch.decode(batch))

        assert not kafka.script
        assert stored() == [b"0", b"1", b"2"], "each once, whatever was refused"
        kafka.script.extend([code] * 3)
        made.clock.step(4_000)
        for _ in range(10):
            await go(timer)
        assert stored() == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert (timer.pending_count, timer.metrics.dropped_count) == (0, 0)
        await attached.close()

"""One shard of `__recurring` on a Kafka cluster in memory, owned by nodes in turn: every due time has one record,
whatever becomes of its owner.

Covers gateway.main.recurring_shards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from gateway.brokers.base import AnswerLost, Broker
from gateway.brokers.kafka.broker import KafkaBroker
from gateway.cluster.mover import chain_of
from gateway.cluster.shard_log import SHARD_TOPICS, Shard
from gateway.codec.records import ProduceRecord
from gateway.codec.tags import DELIVER_AT_HEADER, RECURRING_HEADER
from gateway.main import recurring_shards
from gateway.main.recurring_shards import Tenure, named_in
from gateway.recurring.definitions import Definition, Delivered, RecurringRecord
from gateway.recurring.rule import Rule
from gateway.recurring.service import RecurringStats
from gateway.routing.reading import PartitionReader
from store import record_batch
from store.errors import Overloaded, StoreError
from store.record_batch import Record
from store.topics import RECURRING, Topic
from store.types import Acks, Append, Appended, Source
from tests.clock import START_MS
from tests.gateway.brokers.kafka.fake import new_repeats, not_paused
from tests.gateway.cluster.shard_world import NoTimer
from tests.gateway.cluster.timer_world import WINDOW_MS, TimerNode, World
from timer.ports import Target

NUMBER = 5
ORDERS = Topic(16, "orders", 2)
EVERY_MS = 1_000


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    not_paused(monkeypatch)


class Routing:
    """Each record goes to the next partition, as one without a key may."""

    def __init__(self) -> None:
        self.next = 0

    def check(self, topic: str, record: ProduceRecord) -> None:
        """It takes all."""

    def route(self, topic: str, records: Sequence[ProduceRecord]) -> tuple[Target, Sequence[Record]]:
        self.next += 1
        return Target(ORDERS.topic_id, self.next % ORDERS.partitions), [Record(None, b"v", 1) for _ in records]


class TwoPartitions(World):
    """To which is delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.routing = Routing()

    def broker(self, name: str) -> KafkaBroker:
        topics = {**SHARD_TOPICS, ORDERS.topic_id: ORDERS}
        return KafkaBroker(
            "kafka1", self.kafka, self.clock, prefix="mq.", topic_of=topics.__getitem__, retention_ms_of=lambda _: -1,
            on_doubt=lambda: None, repeats=new_repeats(WINDOW_MS), timer=NoTimer(),
        )  # fmt: skip

    async def serve(self) -> None:
        def named(_: str) -> Broker:
            return self.target

        chains = []
        for partition in range(ORDERS.partitions):
            await self._mover.begin(ORDERS.topic_id, partition, "kafka1")
            known = await self._mover.move(ORDERS.topic_id, partition, "kafka1")
            chains.append(chain_of(ORDERS.topic_id, partition, known.record, named, own="t"))
        self.routes.set_chains(ORDERS, chains)

    async def dues(self) -> list[int]:
        """The due times of what was delivered, in the order of its partition."""
        reader, found = PartitionReader(self.routes), []
        for partition in range(ORDERS.partitions):
            at = 0
            while (read := await reader.read(ORDERS.name, partition, at, max_bytes=1 << 20)).entries:
                for entry in read.entries:
                    headers = [dict(record.headers) for record in record_batch.decode(entry.batch)]
                    found += [int(one[DELIVER_AT_HEADER] or b"") for one in headers]
                at = read.next_offset
        return found


class Node(TimerNode):
    """One that may own the shard. What it had when it is told of nothing, it goes on with as a zombie does."""

    world: TwoPartitions

    def __init__(self, name: str, world: TwoPartitions) -> None:
        super().__init__(name, world)
        self.held: Tenure | None = None
        self._writing: asyncio.Task[None] | None = None

    async def own(self) -> Tenure:
        """Be the owner, and read what there is."""
        await self.leave()
        await self.mover.begin(RECURRING.topic_id, NUMBER, "kafka1")
        known = await self.mover.move(RECURRING.topic_id, NUMBER, "kafka1")
        chain = chain_of(RECURRING.topic_id, NUMBER, known.record, self._named, own=self.name)
        tenure = Tenure(
            Shard(NUMBER, chain, self.broker, lambda: None), self._snapshots_of, self.world.routes, self.world.clock,
            routing=self.world.routing, count_max=2, window_ms=WINDOW_MS, stats=RecurringStats(),
        )  # fmt: skip
        await tenure.start()
        self._writing = asyncio.create_task(tenure.schedules._events.run())
        self.held = tenure
        return tenure

    async def leave(self) -> None:
        """As its process ends."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        self.held = self._writing = None

    async def settle(self) -> None:
        """Fire and deliver until nothing happens at this time of the clock, or it has failed."""
        if self.held is None:
            return
        try:
            for _ in range(20):
                if not await self.held.schedules.step():
                    return
        except StoreError:
            self.held.shard.kafka.refuse(self.held.shard.tenure)

    async def put(self) -> None:
        assert self.held is not None
        rule = Rule(every_ms=EVERY_MS, anchor_ms=START_MS)
        definition = Definition(ORDERS.name, RecurringRecord(value=b"v"), rule, "all")
        await self.held.schedules.put("clock", definition, None)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[TwoPartitions, Node, Node]]:
    """n1 owns the shard, and has put a schedule in it."""
    world = TwoPartitions()
    await world.serve()
    first, second = Node("n1", world), Node("n2", world)
    await first.own()
    await first.put()
    try:
        yield world, first, second
    finally:
        for node in (first, second):
            await node.leave()
            await node.broker.close()
        await world.target.close()


def expected(world: World) -> list[int]:
    return list(range(START_MS + EVERY_MS, world.clock.now_ms() + 1, EVERY_MS))


async def test_another_owner_goes_on_with_the_next_due_time() -> None:
    async with served() as (world, first, second):
        for node in (first, second, first):
            await node.own()
            world.clock.step(3 * EVERY_MS)
            await node.settle()
            assert node.held is not None
            await node.held.save()
        assert sorted(await world.dues()) == expected(world)
        assert (await world.metadata.get(f"shards/{RECURRING.topic_id}/{NUMBER}")) is not None
        record = first.held.schedules.table.get("clock") if first.held else None
        assert record is not None
        assert (record.delivered_count, record.owed) == (9, ())


@pytest.mark.parametrize("away_ms", [0, WINDOW_MS // 2 + 1, 5 * WINDOW_MS])
async def test_what_was_delivered_and_not_noted_is_not_delivered_again(
    away_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id, as long as the partition knows it; behind that it is looked for."""
    async with served() as (world, first, second):
        assert first.held is not None
        world.clock.step(EVERY_MS)

        def killed(events: Sequence[Delivered]) -> None:
            if events:
                raise Overloaded("the process ends here")

        monkeypatch.setattr(first.held.schedules, "_done", killed)
        await first.held.schedules.step()
        with pytest.raises(Overloaded):
            await first.held.schedules.step()
        assert await world.dues() == [START_MS + EVERY_MS]
        await first.leave()
        at = expected(world)
        world.clock.step(away_ms)
        world.target._repeats = new_repeats(WINDOW_MS) if away_ms else world.target._repeats
        tenure = await second.own()
        [owed] = tenure.schedules.table.get("clock").owed
        assert owed.partition is not None
        await second.settle()
        counts = Counter(await world.dues())
        assert counts[at[0]] == 1, "it went to the partition that was chosen when it fired, and was found"
        assert sorted(counts) == expected(world)


async def test_what_may_have_been_delivered_long_ago_is_looked_for_by_the_same_owner_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as (world, first, _):
        world.clock.step(EVERY_MS)
        stores = world.target.append

        async def lost(appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
            await stores(appends, acks=acks)
            raise AnswerLost("nobody knows")

        monkeypatch.setattr(world.target, "append", lost)
        await first.settle()
        assert await world.dues() == expected(world)
        monkeypatch.setattr(world.target, "append", stores)
        world.clock.step(2 * WINDOW_MS)
        world.target._repeats = new_repeats(WINDOW_MS)
        await first.settle()
        assert sorted(await world.dues()) == expected(world)


async def test_an_owner_that_was_replaced_delivers_nothing() -> None:
    async with served() as (world, first, second):
        assert first.held is not None
        world.clock.step(EVERY_MS)
        assert await first.held.schedules.step(), "it has fired"
        await second.own()
        await second.settle()
        assert await world.dues() == expected(world)
        world.target._repeats = new_repeats(WINDOW_MS)  # nobody would recognise it
        world.kafka.forget_producers()
        with suppress(StoreError):
            assert not await first.held.schedules._deliver(), "there is no room for it"
        assert await world.dues() == expected(world)


async def test_a_deleted_schedule_is_forgotten_with_what_it_owed() -> None:
    async with served() as (world, first, second):
        assert first.held is not None
        world.clock.step(EVERY_MS)
        assert await first.held.schedules.step()
        await first.held.schedules.delete("clock")
        tenure = await second.own()
        await second.settle()
        assert len(tenure.schedules.table) == 0
        assert await world.dues() == []


async def test_a_snapshot_is_due_when_the_next_owner_would_have_much_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (_, first, _second):
        assert first.held is not None
        await first.held.schedules.confirm()
        for count, is_due in ((2, True), (3, False)):
            monkeypatch.setattr(recurring_shards, "SAVE_EVENTS_MAX", count)
            assert first.held.is_save_due is is_due
        await first.held.save()
        monkeypatch.setattr(recurring_shards, "SAVE_EVENTS_MAX", 1)
        assert not first.held.is_save_due


async def test_claims_of_what_nobody_owes_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurring_shards, "CLAIMED_MAX", 3)
    async with served() as (world, first, _):
        assert first.held is not None
        world.clock.step(EVERY_MS)
        assert await first.held.schedules.step()
        [owed] = first.held.schedules.table.get("clock").owed
        claims, old = first.held._claims, [Source(number, 0) for number in range(5)]
        await claims.claim([owed.source, *old[:2]])
        assert len(claims.claimed) == recurring_shards.CLAIMED_MAX
        await claims.claim(old[2:3])
        assert claims.claimed.keys() == {owed.source, old[2]}


def test_records_are_told_apart_by_schedule_and_due_time() -> None:
    assert named_in([(RECURRING_HEADER, b"clock"), (DELIVER_AT_HEADER, b"17")]) == [b"clock@17"]
    assert named_in([(DELIVER_AT_HEADER, b"17")]) == named_in([]) == []


@pytest.mark.seeds(range(8), 300)
async def test_each_due_time_has_one_record_whatever_happens(seed: int) -> None:
    random = Random(seed)
    async with served() as (world, *nodes):
        owner = nodes[0]
        for _ in range(60):
            match random.randrange(12):
                case 0:  # the other one takes over, and this one does not know
                    owner = nodes[1 - nodes.index(owner)]
                    await _until_owned(owner)
                case 1:  # it is killed
                    await owner.leave()
                    owner = random.choice(nodes)
                    await _until_owned(owner)
                case 2:
                    world.kafka.script.extend(random.choices(["lost", "dropped", "forgotten", 6], k=2))
                case 3:
                    world.kafka.forget_producers()
                case 4:  # all are away for long
                    for node in nodes:
                        await node.leave()
                    world.clock.step(random.randrange(3 * WINDOW_MS))
                    await _until_owned(owner)
                case 5 if owner.held is not None and owner.held.shard.is_served:
                    await owner.held.save()
                case 6:
                    await _again(world.serve)
                case _:
                    world.clock.step(random.randrange(3 * EVERY_MS))
                    for node in random.sample(nodes, 2):
                        await node.settle()
            if owner.held is None or not owner.held.shard.is_served:
                await _until_owned(owner)
        world.kafka.script.clear()
        await _again(world.serve)
        await _until_owned(owner)
        world.clock.step(EVERY_MS)
        await owner.settle()
        dues = await world.dues()
        assert sorted(dues) == expected(world), Counter(dues).most_common(3)


async def _until_owned(node: Node) -> None:
    await _again(node.own)


async def _again(ask: object) -> None:
    for _ in range(20):
        try:
            await ask()  # type: ignore[operator]
        except StoreError:
            continue
        return
    raise AssertionError("never")

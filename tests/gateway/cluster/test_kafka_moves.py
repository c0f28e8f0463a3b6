"""Moves between nodes and a Kafka cluster in memory: the real mover, stores and brokers, on simulated disks.

Covers gateway.cluster.mover, gateway.cluster.follower, gateway.brokers.kafka.beside and gateway.brokers.kafka.repeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.api.light import LightReader
from gateway.brokers.base import AnswerLost, Broker, BrokerUnreachable, PartlyStored
from gateway.brokers.kafka import writer as writing
from gateway.brokers.kafka.beside import Beside
from gateway.brokers.kafka.broker import KafkaBroker
from gateway.cluster import mover as moving
from gateway.cluster.mover import Known, MoveConflict, key_of
from gateway.cluster.record import decode
from gateway.groups.protocol import LightPlace
from gateway.routing.base import place_of
from store import record_batch
from store.config import StoreConfig
from store.errors import AlreadyStored, BrokerLacks, Corrupt, NoLightQueues, SealedQueue
from store.limits import PARTITIONS_MAX
from store.record_batch import Record
from store.types import ID_BYTES, Acks, Append, Bounds, Identity, QueueKey, RecordNumbers
from tests.gateway.brokers.kafka.fake import FakeKafka, new_repeats, strangers_batch
from tests.gateway.cluster.nodes import CONFIG, NAMES, TOPIC, Cluster, settle
from tests.gateway.cluster.test_light_moves import rows as light_rows
from tests.simdb import simulated_database


class KafkaCluster(Cluster):
    """Nodes, each of which knows one Kafka cluster as `kafka1`."""

    def __init__(self, config: StoreConfig = CONFIG) -> None:
        super().__init__(config=config)
        self.kafka = FakeKafka()
        self.kafka.clock = self.clock
        self.known: dict[str, KafkaBroker] = {}
        self.beside: dict[str, Beside] = {}

    def made(self, name: str) -> KafkaBroker:
        if name not in self.known:
            self.known[name] = KafkaBroker(
                "kafka1", self.kafka, self.clock, prefix="",
                topic_of=lambda topic_id: self.nodes[name].routes.by_id(topic_id),
                retention_ms_of=lambda _: -1, on_doubt=lambda: None,
                repeats=new_repeats(), timer=self.nodes[name].broker,
            )  # fmt: skip
        return self.known[name]

    def broker_named(self, name: str, seen_from: str = "") -> Broker:
        if name == "kafka1":
            return self.made(seen_from)
        own = super().broker_named(name, seen_from)
        if name == seen_from:
            return own
        made = self.made(name)
        if name not in self.beside or made not in self.beside[name]._kafka:
            self.beside[name] = Beside(own, [made])
        return self.beside[name]

    def restart(self, name: str) -> None:
        """A node's process has ended, and with it what it served on Kafka."""
        self.known.pop(name, None)
        for node in self.nodes.values():
            for key, value in list(node.follower._values.items()):  # they name the broker that is no more
                node.follower._apply(key, value)

    async def move(self, via: str, to: str) -> None:
        node = self.nodes[via]
        known = await node.mover.move(self.topic.topic_id, 0, to)
        node.follower.note(self.topic.topic_id, 0, known)
        await settle()

    async def record(self) -> Any:
        value = await self.metadata.get(key_of(self.topic.topic_id, 0))
        assert value is not None
        return decode(value.data)

    async def known_away(self, name: str) -> None:
        """What the owner of a partition on Kafka knows of it is of no use to another node."""
        owner = (await self.record()).owner
        if owner != name:
            self.known.pop(name, None)
            self.restart(name)

    async def sent(self, via: str, value: bytes, identity: Identity | None = None) -> int | None:
        """The offset; None: nobody knows, or nothing was stored, as nobody takes records now."""
        node = self.nodes[via]
        segment = node.routes.writable(TOPIC, 0)
        batch = record_batch.encode([Record(None, value, self.clock.now_ms())])
        append = Append(queue=segment.queue, batch=batch, record_count=1, identity=identity)
        try:
            [appended] = await segment.broker.append([append], acks=Acks.FLUSHED)
        except (SealedQueue, AnswerLost, BrokerUnreachable):
            return None
        except AlreadyStored as known:
            _, offset = place_of(node.routes, TOPIC, segment.broker, known.originals[0][0])
            return offset
        return segment.to_logical(appended.base_offset)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PAUSE_S", 0.0)


@pytest.fixture
async def cluster() -> AsyncIterator[KafkaCluster]:
    async with running(KafkaCluster()) as made:
        yield made


@asynccontextmanager
async def running(made: KafkaCluster) -> AsyncIterator[KafkaCluster]:
    await made.start()
    try:
        yield made
    finally:
        for broker in made.known.values():
            await broker.close()
        await made.stop()


async def test_a_partition_goes_to_kafka_and_back_and_every_node_reads_all_of_it(cluster: KafkaCluster) -> None:
    sent = []
    for number, to in enumerate(("kafka1", "n2", "kafka1", "n1")):
        for via in NAMES:
            sent.append(b"%d by %s" % (number, via.encode()))
            assert await cluster.send(via, sent[-1]) == len(sent) - 1
        await cluster.move("n1", to)
    for via in NAMES:
        assert await cluster.read_all(via) == sent
    record = await cluster.record()
    assert [segment.broker for segment in record.segments] == ["n1", "kafka1", "n2", "kafka1", "n1"]
    assert [segment.kepoch for segment in record.segments if segment.pid] == [0, 2]


@pytest.mark.parametrize("is_sent_to_there", [True, False])
async def test_light_queues_are_refused_on_kafka_and_begin_above_all_they_had_when_the_partition_is_back(
    is_sent_to_there: bool,
) -> None:
    """C3: also of a queue that had nothing since, and where Kafka has not got a record."""
    shown: dict[tuple[bytes, int], bytes] = {}

    async def see(made: KafkaCluster, name: bytes) -> list[int]:
        """Its offsets, the same on every node."""
        offsets: list[int] = []
        for via in NAMES:
            found = await light_rows(made, via, name)
            for own, _, value in found:
                assert shown.setdefault((name, own), value) == value, "an offset that was shown has another record"
            offsets = [own for own, _, _ in found]
        return offsets

    with simulated_database():
        async with running(KafkaCluster(replace(CONFIG, index="rocksdb"))) as made:
            ends = {b"a": 0, b"b": 0}
            count = 0
            for back in ("n2", "n3", "n1"):
                for names in ([b"a"], [b"a", b"b"], [b"a"]):
                    assert await made.send("n1", b"%d" % count, queues=names) == count
                    count += 1
                before = {name: await see(made, name) for name in ends}
                await made.move("n1", "kafka1")
                for via in NAMES:
                    reader = LightReader(made.nodes[via].routes)
                    with pytest.raises(NoLightQueues):
                        await made.send(via, b"refused", queues=[b"a"])
                    for asked in (
                        reader.end(TOPIC, b"a", 0),
                        reader.stretches(TOPIC, b"a", 0),
                        light_rows(made, via, b"a"),
                    ):
                        with pytest.raises(NoLightQueues):
                            await asked
                    place = LightPlace(TOPIC, "a", 0, 1)
                    assert await reader.ends_and_lags([place, place]) == [None, None], "a page of a group is shown"
                for _ in range(3 * is_sent_to_there):
                    assert await made.sent("n1", b"%d" % count) == count
                    count += 1
                await made.move("n1", back)
                for name, end in ends.items():
                    assert await see(made, name) == before[name], "what they had is there"
                    assert await LightReader(made.nodes["n1"].routes).end(TOPIC, name, 0) >= max(
                        end, before[name][-1] + 1
                    )
                assert await made.send("n2", b"%d" % count, queues=[b"a"]) == count
                count += 1
                after = await see(made, b"a")
                assert after[:-1] == before[b"a"]
                assert after[-1] == count - 1, "at the partition's offset, which no row before it can have"
                assert await light_rows(made, "n3", b"a", begin=before[b"a"][-1] + 1) == [
                    (count - 1, count - 1, b"%d" % (count - 1))
                ], "a cursor from before reads on"
                ends = {b"a": after[-1] + 1, b"b": before[b"b"][-1] + 1}
            for via in NAMES:
                values = await made.read_all(via)
                assert values == [b"%d" % number for number in range(count)], "what was refused is nowhere"


async def test_sends_that_were_held_are_taken_as_soon_as_anyone_is_told_of_the_move(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch may be faster than the mover: who comes then was refused, and held for another move."""
    written, taken = cluster.metadata.compare_and_set, []

    async def told(expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        revision = await written(expected, changes)
        record = await cluster.record()
        if revision is not None and record.to is None and record.open_segment.broker == "kafka1":
            cluster.nodes["n1"].follower.note(cluster.topic.topic_id, 0, Known(record, revision))
            taken.append(await cluster.sent("n1", b"held"))
        return revision

    monkeypatch.setattr(cluster.metadata, "compare_and_set", told)
    await cluster.move("n1", "kafka1")
    assert taken == [0]


async def test_nodes_append_through_the_owner_and_hear_of_it(cluster: KafkaCluster) -> None:
    await cluster.move("n1", "kafka1")
    woken = asyncio.Event()
    forget = cluster.nodes["n3"].watcher.watch(TOPIC, 0, 0, woken.set)
    await settle()
    assert await cluster.send("n2", b"a") == 0
    async with asyncio.timeout(5):
        await woken.wait()
    forget()
    assert await cluster.nodes["n3"].reader.offset_for_time(TOPIC, 0, 0) == 0


async def test_a_call_that_is_refused_at_once_in_part_says_what_it_stored(cluster: KafkaCluster) -> None:
    """C11: the caller sends again only what was not stored."""
    await cluster.move("n1", "kafka1")
    on_kafka, embedded = cluster.nodes["n2"].routes.writable(TOPIC, 0), QueueKey(cluster.topic.topic_id, 0)
    await cluster.nodes["n1"].broker.create_queue(other := QueueKey(cluster.topic.topic_id, 9 * PARTITIONS_MAX))
    cluster.known["n1"].refuse(on_kafka.queue)  # a move is about to seal it
    batch = record_batch.encode([Record(None, b"a", 1)])
    appends = [Append(queue=queue, batch=batch, record_count=1) for queue in (other, on_kafka.queue)]
    with pytest.raises(PartlyStored) as partly:
        await on_kafka.broker.append(appends, acks=Acks.FLUSHED)
    assert isinstance(partly.value.error, SealedQueue)
    assert [None if one is None else one.base_offset for one in partly.value.answers] == [0, None]
    for refused in ([appends[1]], [appends[1], replace(appends[0], queue=embedded)]):
        with pytest.raises(SealedQueue):  # the queue on n1 was sealed when the partition left
            await on_kafka.broker.append(refused, acks=Acks.FLUSHED)


async def test_an_owner_that_was_started_again_takes_its_partition_over_with_a_new_epoch(cluster: KafkaCluster) -> None:
    await cluster.move("n1", "kafka1")
    await cluster.send("n1", b"a")
    cluster.restart("n1")
    assert await cluster.sent("n1", b"nobody serves it") is None
    await cluster.move("n1", "kafka1")
    assert await cluster.send("n2", b"b") == 1
    assert await cluster.read_all("n3") == [b"a", b"b"]
    assert [segment.kepoch for segment in (await cluster.record()).segments if segment.pid] == [0, 1]


@pytest.mark.parametrize("by", ["the records were deleted", "retention", "retention, and the owner is in doubt"])
async def test_a_tenure_whose_beginning_has_expired_is_taken_over_and_its_offsets_are_not_given_again(
    cluster: KafkaCluster, by: str
) -> None:
    await cluster.move("n1", "kafka1")
    for number in range(5):
        await cluster.send("n1", b"%d" % number)
    record = await cluster.record()
    assert record.verified == record.open_segment.physical, "its end is searched from its first offset on"
    if by == "the records were deleted":
        segment = cluster.nodes["n1"].routes.writable(TOPIC, 0)
        await segment.broker.expire_queue(segment.queue, segment.to_physical(5))
    elif by == "retention, and the owner is in doubt":
        cluster.kafka.script.extend(["forgotten", "forgotten"])
        assert await cluster.sent("n1", b"stored behind what the owner knows") is None
    log = cluster.kafka.log(TOPIC, 0)
    await cluster.kafka.delete_before(TOPIC, 0, log.end)
    if by != "retention, and the owner is in doubt":
        cluster.restart("n1")
    await cluster.move("n1", "kafka1")
    offset = await cluster.send("n2", b"b")
    assert offset >= 5
    assert await cluster.nodes["n3"].reader.bounds(TOPIC, 0) == Bounds(offset, offset + 1)
    assert await cluster.send("n2", b"c") == offset + 1


async def test_another_node_takes_over_and_the_old_owner_acknowledges_nothing_more(cluster: KafkaCluster) -> None:
    await cluster.move("n1", "kafka1")
    await cluster.send("n1", b"a")
    await cluster.pause("n1")  # it hears nothing of it
    node = cluster.nodes["n2"]
    known = await node.mover.move(cluster.topic.topic_id, 0, "kafka1")
    node.follower.note(cluster.topic.topic_id, 0, known)
    cluster.kafka.forget_producers()
    assert await cluster.sent("n1", b"late") is None
    assert await cluster.sent("n2", b"finds what lies there") is None
    await cluster.move("n2", "kafka1")
    assert await cluster.send("n2", b"b") == 1
    assert await cluster.read_all("n2") == [b"a", b"b"]


async def test_a_batch_that_is_stored_twice_as_kafka_has_forgotten_it_is_read_once(cluster: KafkaCluster) -> None:
    await cluster.move("n1", "kafka1")
    await cluster.send("n1", b"a")
    cluster.kafka.script.extend(["forgotten", "forgotten"])
    assert await cluster.sent("n1", b"b") is None, "it lies where it must not: nobody knows"
    assert len([batch for _, batch in cluster.kafka.log(TOPIC, 0).batches if b"b" in batch[61:]]) > 1
    await cluster.move("n2", "kafka1")
    assert await cluster.send("n2", b"c") == 2
    for via in NAMES:
        assert await cluster.read_all(via) == [b"a", b"b", b"c"]


async def test_how_far_a_partition_is_known_is_written_down_and_an_end_is_searched_from_there(
    cluster: KafkaCluster,
) -> None:
    await cluster.move("n1", "kafka1")
    for number in range(5):
        await cluster.send("n1", b"%d" % number)
    known = await cluster.nodes["n1"].mover.verify(cluster.topic.topic_id, 0)
    assert known.record.verified == 7
    assert (await cluster.nodes["n1"].mover.verify(cluster.topic.topic_id, 0)).revision == known.revision
    await cluster.send("n1", b"5")
    cluster.kafka.fetches.clear()
    await cluster.move("n2", "n2")
    assert cluster.kafka.fetches[0][0] == 7
    assert len(await cluster.read_all("n3")) == 6


def identity(name: bytes) -> Identity:
    return Identity(message_ids=[name * ID_BYTES])


def numbers(first: int) -> Identity:
    return Identity(numbers=RecordNumbers(b"p" * ID_BYTES, 0, first, 1))


PLACES = ["kafka1 by n1", "kafka1 by n2", "n1 by n1", "n2 by n1", "n3 by n2", "restart"]


@pytest.mark.parametrize("second", PLACES)
@pytest.mark.parametrize("first", PLACES)
async def test_repeats_are_recognised_wherever_the_partition_goes(
    cluster: KafkaCluster, first: str, second: str
) -> None:
    """On a node, on Kafka, and behind two further moves; by the ids, and by the numbers of a producer."""
    assert await cluster.send("n1", b"a", identity=identity(b"a")) == 0
    assert await cluster.send("n1", b"0", identity=numbers(0)) == 1
    await cluster.move("n1", "kafka1")
    sent = [b"a", b"0"]
    for number, step in enumerate((first, second, ""), 1):
        for repeated in range(number):
            name = bytes([ord("a") + repeated])
            assert await cluster.send("n3", name, identity=identity(name)) == 2 * repeated
            assert await cluster.send("n2", b"%d" % repeated, identity=numbers(repeated)) == 2 * repeated + 1
        sent += [name := bytes([ord("a") + number]), b"%d" % number]
        assert await cluster.send("n2", name, identity=identity(name)) == 2 * number
        assert await cluster.send("n1", b"%d" % number, identity=numbers(number)) == 2 * number + 1
        if step == "restart":
            owner = (await cluster.record()).owner
            cluster.restart(owner)
            if (await cluster.record()).open_segment.pid is not None:
                await cluster.move(owner, "kafka1")
        elif step:
            to, _, via = step.partition(" by ")
            await cluster.known_away(via)
            await cluster.move(via, to)
    assert await cluster.read_all("n3") == sent


async def test_a_batch_that_belongs_to_no_tenure_is_no_original(cluster: KafkaCluster) -> None:
    """A zombie's batch is in Kafka, and was acknowledged to nobody: its repeat is stored."""
    await cluster.move("n1", "kafka1")
    await cluster.send("n1", b"a")
    await cluster.pause("n1")
    node = cluster.nodes["n2"]
    known = await node.mover.move(cluster.topic.topic_id, 0, "kafka1")
    node.follower.note(cluster.topic.topic_id, 0, known)
    cluster.kafka.forget_producers()
    assert await cluster.sent("n1", b"late", identity(b"l")) is None
    assert await cluster.sent("n2", b"in doubt", identity(b"d")) is None
    await cluster.move("n3", "kafka1")
    await settle(100)
    assert await cluster.send("n3", b"late", identity=identity(b"l")) == 1
    assert await cluster.send("n3", b"in doubt", identity=identity(b"d")) == 2
    assert await cluster.read_all("n2") == [b"a", b"late", b"in doubt"]


async def test_ids_are_forgotten_behind_the_window_and_numbers_are_not(cluster: KafkaCluster) -> None:
    assert await cluster.send("n1", b"a", identity=identity(b"a")) == 0
    assert await cluster.send("n1", b"0", identity=numbers(0)) == 1
    await cluster.move("n1", "kafka1")
    assert await cluster.send("n1", b"b", identity=identity(b"b")) == 2
    for _ in range(3):
        cluster.clock.step(400_000)
        cluster.restart("n1")
        await cluster.move("n1", "kafka1")
        assert await cluster.send("n1", b"0", identity=numbers(0)) == 1
    assert await cluster.send("n1", b"a", identity=identity(b"a")) == 3
    assert await cluster.send("n1", b"b", identity=identity(b"b")) == 4


async def test_a_producer_whose_epochs_have_run_out_is_followed_by_another(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "KAFKA_EPOCH_MAX", 1)
    for number in range(4):
        await cluster.move("n1" if number % 2 else "n2", "kafka1")
        await cluster.send("n1", b"%d" % number)
    fences = [(segment.pid, segment.kepoch) for segment in (await cluster.record()).segments if segment.pid]
    assert [epoch for _, epoch in fences] == [0, 1, 0, 1]
    assert len(set(fences)) == 4
    assert await cluster.read_all("n3") == [b"0", b"1", b"2", b"3"]


async def test_expired_segments_on_kafka_come_off_the_chain(cluster: KafkaCluster) -> None:
    await cluster.send("n1", b"a")
    await cluster.move("n1", "kafka1")
    await cluster.send("n1", b"b")
    await cluster.move("n1", "n2")
    await cluster.send("n1", b"c")
    await cluster.nodes["n1"].broker.expire_queue(QueueKey(cluster.topic.topic_id, 0), 1)
    await cluster.kafka.delete_before(TOPIC, 0, 3)
    for broker in cluster.known.values():
        broker._starts.clear()
    await cluster.nodes["n2"].mover.trim(cluster.topic.topic_id, 0)
    assert [segment.broker for segment in (await cluster.record()).segments] == ["n2"]
    await settle()
    assert (await cluster.nodes["n1"].reader.bounds(TOPIC, 0)).min_offset == 2


async def test_nothing_is_taken_over_to_kafka(cluster: KafkaCluster) -> None:
    with pytest.raises(BrokerLacks):
        await cluster.nodes["n2"].mover.take_over(cluster.topic.topic_id, 0, "kafka1")
    assert await cluster.send("n1", b"a") == 0


@pytest.mark.seeds(range(4), 1200)
async def test_moves_that_stop_anywhere_are_finished_and_nothing_is_lost(cluster: KafkaCluster, seed: int) -> None:
    """Movers are cancelled at any turn, owners are started again, Kafka loses answers, forgets and takes strangers'."""
    random = Random(seed)
    acknowledged: dict[int, bytes] = {}
    places = ["kafka1", "kafka1", "n1", "n2"]
    for number in range(60):
        what = random.random()
        if what < 0.6:
            cluster.kafka.script.extend(random.choice([[], [], ["lost"], ["forgotten"], ["dropped"], [6]]))
            value = b"%d" % (number if random.random() < 0.6 else random.randrange(number + 1))  # perhaps once more
            ids = Identity(message_ids=[value.zfill(ID_BYTES)])
            offset = await cluster.sent(random.choice(NAMES), value, ids)
            if offset is not None:
                assert acknowledged.setdefault(offset, value) == value
            cluster.kafka.script.clear()
        elif what < 0.7:
            task = asyncio.create_task(cluster.move(random.choice(NAMES), random.choice(places)))
            for _ in range(random.randrange(60)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        elif what < 0.85:
            await _ended(cluster.move, random.choice(NAMES), random.choice(places))
        elif what < 0.9:
            cluster.restart(random.choice(NAMES))
        elif what < 0.95:
            cluster.kafka.forget_producers()
        elif (log := cluster.kafka.logs.get((TOPIC, 0))) is not None:
            log.append(strangers_batch())
    await _ended(cluster.move, "n3", "n3")
    await settle(100)
    assert await cluster.send("n1", b"the end") not in acknowledged
    found = await cluster.read_all("n2")
    assert all(found[offset] == value for offset, value in acknowledged.items())
    assert len(set(found)) == len(found)
    assert b"a stranger's" not in found


async def _ended(move: Callable[[str, str], Awaitable[None]], via: str, to: str) -> None:
    for _ in range(20):
        try:
            await move(via, to)
        except MoveConflict:
            await settle()
        else:
            return
    raise AssertionError("a move that others are in the way of, again and again")


async def test_what_kafka_has_lost_is_an_error_and_its_offsets_are_not_given_again(cluster: KafkaCluster) -> None:
    await cluster.move("n1", "kafka1")
    for value in (b"a", b"b", b"c"):
        await cluster.send("n1", value)
    log = cluster.kafka.log(TOPIC, 0)
    lost = log.batches.pop(), log.batches.pop()
    log.end = lost[1][0]
    log.producers.clear()
    assert await cluster.sent("n1", b"lies where it should not") is None
    await cluster.move("n1", "kafka1")
    assert await cluster.send("n1", b"d") == 3
    reader = cluster.nodes["n1"].reader
    for offset, value in ((0, b"a"), (3, b"d")):
        read = await reader.read(TOPIC, 0, offset, max_bytes=1000)
        assert [record.value for entry in read.entries for record in record_batch.decode(entry.batch)] == [value]
    for offset in (1, 2):
        with pytest.raises(Corrupt):
            await reader.read(TOPIC, 0, offset, max_bytes=1000)
